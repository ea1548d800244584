//! `sim run`: random lives of arrays, volumes, namespaces and stacks of these.

use super::{OUTPUT_VERSION, Progress, default_jobs, parse_level, parse_policy, print_lines};
use anyhow::{Context, bail};
use engine::raid::policy::Policy;
use serde_json::json;
use sim::simulator::{
    coverage::Ledger,
    layer::{DeviceBelow, seeds, world::LayerModel},
    layered::{Layer, LayeredMaker},
    namespaces::NamespaceModel,
    runner::{self, Outcome, Seeds, Summary},
    scenario::{GROUP_BLOCKS, PARITIES, level},
    silent::SilentResult,
    subject::ArrayMaker,
    volume::VolumeModel,
    world::{Counts, TraceMode},
};
use std::collections::BTreeMap;

/// Number of trace lines that are shown for a failing seed.
const TRACE_TAIL: usize = 60;
/// Number of failing seeds that are shown for each kind of failure.
const MOST_SHOWN: usize = 5;
/// Path of the ledger, and its number of seeds.
const LEDGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ledger.txt");
const LEARNT: usize = 48;

#[derive(Clone, clap::Args)]
pub struct Run {
    /// Number of seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of threads [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Start no more seeds after a failure
    #[arg(long)]
    until_failure: bool,
    /// Do not play the seeds of the ledger, which are otherwise played first unless only one seed is selected
    #[arg(long)]
    no_ledger: bool,
    /// Rewrite the ledger with the seeds that reach the rarest states; needs the sources
    #[arg(long, conflicts_with_all = ["policy", "level", "no_ledger"])]
    learn: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Only arrays of this policy: log, zrwa, inplace or append (without this option, half of the log arrays use
    /// append)
    #[arg(long, value_name = "NAME", value_parser = parse_named)]
    policy: Option<NamedPolicy>,
    /// Only arrays of this level: raid5, raid6, or single, which is not drawn without this option
    #[arg(long, value_name = "NAME", value_parser = parse_level)]
    level: Option<usize>,
    /// Print every event of the seed; only with one seed
    #[arg(long)]
    trace: bool,
    /// Play volumes instead: block devices on single drives and on arrays; with --policy, only on arrays of that policy
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "until_failure"])]
    volume: bool,
    /// With --volume or --namespaces, only on single drives
    #[arg(long, requires = "layer", conflicts_with_all = ["policy", "level"])]
    single: bool,
    /// Play namespaces instead, on single drives and on arrays; with --policy, only on arrays of that policy
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "until_failure", "level"])]
    namespaces: bool,
    /// Play a layer on arrays instead, with all ends and faults of arrays: namespaces, volume, volume-on-namespace,
    /// pool-on-namespace, or volume-on-namespace-on-drive, which has no array; without a name, all of them
    #[arg(
        long,
        value_name = "LAYER",
        num_args = 0..=1,
        default_missing_value = "all",
        value_parser = parse_layers,
        group = "layer",
        conflicts_with_all = ["learn", "until_failure", "single"],
    )]
    stack: Option<Layers>,
    /// Make one drive of each life lose, misplace or revert a write without an error, and count the results: arrays
    /// need not survive such faults
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "until_failure", "single"])]
    silent: bool,
    /// Also play cases that are known to fail occasionally: two hosts at once, damage to more members than parity
    /// covers, remedies and readability beyond the guarantee (docs/TESTING.md)
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "single"])]
    beyond: bool,
}

/// Layers on arrays.
#[derive(Clone)]
struct Layers(Vec<Layer>);

fn parse_layers(name: &str) -> Result<Layers, String> {
    if name == "all" {
        return Ok(Layers(Layer::ALL.to_vec()));
    }
    let known = Layer::ALL.into_iter().find(|layer| layer.name() == name);
    known.map(|layer| Layers(vec![layer])).ok_or_else(|| {
        format!("there is no layer of this name; there are {}", Layer::ALL.map(Layer::name).join(", "))
    })
}

/// A policy as named on the command line. Arrays of `append` are arrays of `log` that write their zones by appends.
#[derive(Clone, Copy)]
struct NamedPolicy {
    policy: Policy,
    appends: bool,
}

impl NamedPolicy {
    fn name(self) -> &'static str {
        self.policy.name_with(self.group_blocks())
    }

    /// Blocks of a group, below volumes and namespaces.
    fn group_blocks(self) -> u32 {
        if self.appends { GROUP_BLOCKS } else { 0 }
    }
}

fn parse_named(name: &str) -> Result<NamedPolicy, String> {
    match name {
        "append" => Ok(NamedPolicy { policy: Policy::Log, appends: true }),
        name => match parse_policy(name) {
            Ok(policy) => Ok(NamedPolicy { policy, appends: false }),
            Err(known) => Err(known + ", append"),
        },
    }
}

impl Run {
    pub fn run(&self) -> anyhow::Result<bool> {
        if self.namespaces {
            return self.run_namespaces();
        }
        if self.volume {
            return self.run_volumes();
        }
        let policy = self.policy.map(|named| named.policy);
        let appends = self.policy.is_some_and(|named| named.appends);
        let maker = ArrayMaker {
            policy,
            parities: self.level,
            appends,
            beyond: self.beyond,
            silent: self.silent,
            ..ArrayMaker::default()
        };
        if self.silent && !self.trace {
            return self.run_silent(maker);
        }
        if let Some(Layers(layers)) = &self.stack {
            return self.run_stacks(&maker, layers);
        }
        if self.trace {
            if self.seeds != 1 {
                bail!("--trace prints one seed: add --seeds 1 --from SEED");
            }
            if self.silent && (self.policy.is_none() || self.level.is_none()) {
                bail!(
                    "a life with a silent fault is one of a policy and level: add --policy NAME --level NAME"
                );
            }
            let outcome = runner::replay(&maker, self.from, TraceMode::All);
            print_lines(&outcome.trace)?;
            return match outcome.failure {
                Some(failure) => {
                    print_lines(&[format!("seed {}: {failure}", self.from)])?;
                    Ok(false)
                }
                None => Ok(true),
            };
        }
        let end = self.from.checked_add(self.seeds).context("there are no seeds above 2^64 - 1")?;
        let ledger = match self.no_ledger || self.seeds == 1 || appends {
            true => Vec::new(),
            false => Ledger::built_in().map_err(anyhow::Error::msg)?.seeds(policy, self.level),
        };
        let progress = Progress::new(self.seeds + ledger.len() as u64);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let Run { until_failure, learn, .. } = *self;
        let seeds = Seeds { first: ledger, range: self.from..end, until_failure, learn };
        let summary = runner::play(&maker, &seeds, jobs, &|| progress.advance());
        let seconds = progress.finish();
        if learn && summary.failures.is_empty() {
            std::fs::write(LEDGER, Ledger::learn(&summary.sights_by_seed, LEARNT)).context(LEDGER)?;
        }
        if self.json {
            print_lines(&[serde_json::to_string_pretty(&self.json_of(&summary, seconds))?])?
        } else {
            self.print_text(&summary, seconds)?
        }
        if self.seeds == 1 && !summary.failures.is_empty() {
            let outcome = runner::replay(&maker, self.from, TraceMode::Tail(TRACE_TAIL));
            for line in outcome.trace {
                eprintln!("{line}");
            }
        }
        Ok(summary.failures.is_empty())
    }

    /// Plays arrays with silent faults, and counts the results by policy and level.
    fn run_silent(&self, arrays: ArrayMaker) -> anyhow::Result<bool> {
        let policies = arrays.policy.map_or(Policy::ALL.to_vec(), |policy| vec![policy]);
        let levels = arrays.parities.map_or(PARITIES.to_vec(), |parities| vec![parities]);
        let kinds: Vec<(Policy, usize)> =
            policies.iter().flat_map(|policy| levels.iter().map(|level| (*policy, *level))).collect();
        let (mut value, mut failures, mut counts_of_all) =
            (serde_json::Map::new(), Vec::new(), Counts::default());
        for (policy, parities) in &kinds {
            let maker = ArrayMaker { policy: Some(*policy), parities: Some(*parities), ..arrays.clone() };
            let range = self.from..self.from + (self.seeds / kinds.len() as u64).max(1);
            let jobs = self.jobs.unwrap_or_else(default_jobs);
            let summary = runner::play(&maker, &Seeds { range, ..Seeds::default() }, jobs, &|| ());
            counts_of_all.add(&summary.counts);
            let mut counts =
                BTreeMap::from([(SilentResult::Intact, summary.seeds - summary.failures.len() as u64)]);
            for failure in &summary.failures {
                let came = SilentResult::of(failure.failure.as_deref());
                *counts.entry(came).or_insert(0) += 1;
                // With checksums no wrong data may be read.
                let was_stored = failure.checksums && failure.counts.in_last_groups == 0;
                let is_wrong = came == SilentResult::WrongData && was_stored;
                if came == SilentResult::Panic || is_wrong {
                    let (why, policy) = (failure.failure.as_deref().unwrap_or_default(), policy.name());
                    let options = format!("--policy {policy} --level {}", level(*parities));
                    failures.push(format!("seed {} with {options}: {why}", failure.seed));
                }
            }
            let line = SilentResult::ALL.map(|came| (came.name(), counts.get(&came).copied().unwrap_or(0)));
            let name = format!("{} {}", level(*parities), policy.name());
            if !self.json {
                let cells: String =
                    line.iter().map(|(name, count)| format!("{name:>15}{count:>6}")).collect();
                print_lines(&[format!("{name:<16}{cells}")])?;
            }
            value.insert(name, line.into_iter().map(|(name, count)| (name, json!(count))).collect());
        }
        if self.json {
            let Counts { bit_flips, lost_writes, misdirected, stale, in_last_groups, judgements, .. } =
                counts_of_all;
            let value = json!({
                "output_version": OUTPUT_VERSION,
                "kinds": value,
                "bit_flips": bit_flips,
                "lost_writes": lost_writes,
                "misdirected": misdirected,
                "stale": stale,
                "in_last_groups": in_last_groups,
                "judgements": judgements,
                "failures": failures,
            });
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        } else {
            print_lines(&failures)?;
        }
        Ok(failures.is_empty())
    }

    /// Plays the same number of seeds for each of the layers.
    fn run_stacks(&self, arrays: &ArrayMaker, layers: &[Layer]) -> anyhow::Result<bool> {
        let (mut sound, mut values) = (true, serde_json::Map::new());
        for (index, layer) in layers.iter().enumerate() {
            let maker = LayeredMaker { layer: *layer, arrays: arrays.clone() };
            if self.trace {
                let outcome = runner::replay(&maker, self.from, TraceMode::All);
                print_lines(&outcome.trace)?;
                let failure = outcome.failure.map(|failure| format!("seed {}: {failure}", self.from));
                print_lines(failure.as_slice())?;
                sound &= failure.is_none();
                continue;
            }
            let count = (self.seeds + index as u64) / layers.len() as u64;
            let end = self.from.checked_add(count).context("there are no seeds above 2^64 - 1")?;
            let progress = Progress::new(count);
            let jobs = self.jobs.unwrap_or_else(default_jobs);
            let seeds = Seeds { range: self.from..end, ..Seeds::default() };
            let summary = runner::play(&maker, &seeds, jobs, &|| progress.advance());
            let seconds = progress.finish();
            sound &= summary.failures.is_empty();
            let one = Run { stack: Some(Layers(vec![*layer])), ..self.clone() };
            match self.json {
                true => _ = values.insert(layer.name().into(), one.json_of(&summary, seconds)),
                false => {
                    print_lines(&[String::new(), layer.name().into()])?;
                    one.print_text(&summary, seconds)?;
                }
            }
        }
        if self.json && !self.trace {
            let failures = |value: &serde_json::Value| value["failures"].as_u64().unwrap_or(0);
            let first = values.values().find_map(|value| value["first_failure"].as_str());
            let value = json!({
                "output_version": OUTPUT_VERSION,
                "failures": values.values().map(failures).sum::<u64>(),
                "first_failure": first,
                "stacks": values,
            });
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        }
        Ok(sound)
    }

    /// The device below all layers, if an option selects it.
    fn over(&self) -> Option<DeviceBelow> {
        if self.single {
            return Some(DeviceBelow::Drive);
        }
        let array = |named: NamedPolicy| {
            let (policy, group_blocks) = (named.policy, named.group_blocks());
            DeviceBelow::Array { policy, parities: self.level.unwrap_or(1), group_blocks }
        };
        self.policy.map(array)
    }

    /// Plays a layer alone, on a drive or an array; `own` gives the figures of its own counters.
    fn run_layer<M: LayerModel>(
        &self,
        option: &str,
        own: impl Fn(&M::Counts) -> Vec<(&'static str, u64)>,
    ) -> anyhow::Result<bool> {
        let over = self.over();
        if self.trace {
            if self.seeds != 1 {
                bail!("--trace prints one seed: add --seeds 1 --from SEED");
            }
            let outcome = seeds::replay::<M>(over, self.from, TraceMode::All);
            print_lines(&outcome.trace)?;
            let failure = outcome.failure.map(|failure| format!("seed {}: {failure}", self.from));
            print_lines(failure.as_slice())?;
            return Ok(failure.is_none());
        }
        let end = self.from.checked_add(self.seeds).context("there are no seeds above 2^64 - 1")?;
        let progress = Progress::new(self.seeds);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let summary = seeds::run_seeds::<M>(over, self.from..end, jobs, &|| progress.advance());
        let seconds = progress.finish();
        let mut command = format!("sim run {option}");
        match over {
            Some(DeviceBelow::Drive) => command += " --single",
            Some(DeviceBelow::Array { policy, parities, group_blocks }) => {
                let policy = policy.name_with(group_blocks);
                command += &format!(" --policy {policy} --level {}", level(parities));
            }
            None => (),
        }
        let replay = |seed: u64| format!("{command} --seeds 1 --from {seed}");
        let counts = &summary.counts;
        let mut figures = vec![
            ("seeds", summary.seeds),
            ("operations", counts.operations),
            ("power_cuts", counts.power_cuts),
            ("kills", counts.kills),
            ("interrupted_recoveries", counts.interrupted_recoveries),
            ("member_losses", counts.member_losses),
            ("forks", counts.forks),
            ("judgements", counts.judgements),
            ("flipped_bits", counts.flips),
        ];
        figures.extend(own(&counts.own));
        figures.push(("failures", summary.failures.len() as u64));
        if self.json {
            let mut value = json!({
                "output_version": OUTPUT_VERSION,
                "first_failure": summary.failures.first().and_then(|f| f.failure.as_deref()),
                "replay": summary.failures.iter().map(|f| replay(f.seed)).collect::<Vec<_>>(),
                "seconds": seconds,
            });
            figures.iter().for_each(|(name, figure)| value[*name] = json!(figure));
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        } else {
            let line = |(name, figure): &(&str, u64)| format!("{:<24}{figure:>12}", name.replace('_', " "));
            let mut lines: Vec<String> = figures.iter().map(line).collect();
            lines.push(format!("{seconds:.1} s"));
            for failure in summary.failures.iter().take(MOST_SHOWN) {
                let text = failure.failure.as_deref().unwrap_or_default();
                lines.push(format!("\n{}, over {}: {text}", replay(failure.seed), failure.over.name()));
            }
            print_lines(&lines)?;
        }
        if self.seeds == 1 && !summary.failures.is_empty() {
            for line in seeds::replay::<M>(over, self.from, TraceMode::Tail(TRACE_TAIL)).trace {
                eprintln!("{line}");
            }
        }
        Ok(summary.failures.is_empty())
    }

    fn run_namespaces(&self) -> anyhow::Result<bool> {
        self.run_layer::<NamespaceModel>("--namespaces", |counts| {
            vec![
                ("namespaces", counts.namespaces),
                ("reshapes", counts.reshapes),
                ("moved_groups", counts.moved_groups),
                ("most_spares", counts.most_spares),
            ]
        })
    }

    fn run_volumes(&self) -> anyhow::Result<bool> {
        self.run_layer::<VolumeModel>("--volume", |counts| {
            vec![
                ("collected_zones", counts.collected_zones),
                ("blocks_in_hot_windows", counts.in_window),
                ("checkpoints", counts.checkpoints),
                ("discarded_blocks", counts.discarded),
                ("growths", counts.growths),
                ("shrinks", counts.shrinks),
                ("replacements", counts.replacements),
                ("snapshots", counts.snapshots),
                ("removed_snapshots", counts.removed_snapshots),
                ("returns_to_snapshots", counts.returns),
                ("clones", counts.clones),
                ("guarantees", counts.guarantees),
                ("refused_writes", counts.refusals),
            ]
        })
    }

    fn replay_command(&self, seed: u64) -> String {
        let policy = self.policy.map(|named| format!(" --policy {}", named.name())).unwrap_or_default();
        let level = self.level.map(|parities| format!(" --level {}", level(parities))).unwrap_or_default();
        let stack = self.stack.as_ref().and_then(|Layers(layers)| layers.first());
        let stack = stack.map(|layer| format!(" --stack {}", layer.name())).unwrap_or_default();
        format!("sim run{stack} --seeds 1 --from {seed}{policy}{level}")
    }

    fn json_of(&self, summary: &Summary, seconds: f64) -> serde_json::Value {
        let counts = &summary.counts;
        let replay: Vec<String> = summary.failures.iter().map(|f| self.replay_command(f.seed)).collect();
        let kind = |policy: Policy, parities| format!("{} {}", level(parities), policy.name());
        let of_kinds = summary.seconds.iter();
        let seconds_by_kind: BTreeMap<String, f64> =
            of_kinds.map(|((policy, parities), seconds)| (kind(*policy, *parities), *seconds)).collect();
        json!({
            "output_version": OUTPUT_VERSION,
            "seeds": summary.seeds,
            "operations": counts.operations,
            "power_cuts": counts.power_cuts,
            "kills": counts.kills,
            "shutdowns": counts.shutdowns,
            "cuts_after_kills": counts.cuts_after_kills,
            "zrwa_losses": counts.zrwa_losses,
            "deferred_starts": counts.deferred_starts,
            "member_losses": counts.member_losses,
            "double_losses": counts.double_losses,
            "interrupted_recoveries": counts.interrupted_recoveries,
            "rebuilds": counts.rebuilds,
            "replacements": counts.replacements,
            "cancelled_copies": counts.cancelled_copies,
            "continued_copies": counts.continued_copies,
            "faults": counts.faults,
            "changes": counts.changes,
            "destructions": counts.destructions,
            "healed": counts.healed,
            "refusals": counts.refusals,
            "forks": counts.forks,
            "judgements": counts.judgements,
            "beyond": counts.beyond,
            "claims": counts.claims,
            "pessimistic_claims": counts.pessimistic_claims,
            "remedies": counts.remedies,
            "scrubs": counts.scrubs,
            "repaired": counts.repaired,
            "coverage": summary.sights.len(),
            "failures": summary.failures.len(),
            "first_failure": summary.failures.first().and_then(|f| f.failure.as_deref()),
            "replay": replay,
            "seconds": seconds,
            "judgements_per_second": counts.judgements as f64 / seconds.max(1e-9),
            "seconds_by_kind": seconds_by_kind,
        })
    }

    fn print_text(&self, summary: &Summary, seconds: f64) -> anyhow::Result<()> {
        let counts = &summary.counts;
        let mut lines: Vec<String> = [
            ("seeds", summary.seeds),
            ("operations", counts.operations),
            ("power cuts", counts.power_cuts),
            ("processes killed", counts.kills),
            ("orderly shutdowns", counts.shutdowns),
            ("power cuts after kills", counts.cuts_after_kills),
            ("lost ZRWAs", counts.zrwa_losses),
            ("deferred starts", counts.deferred_starts),
            ("member losses", counts.member_losses),
            ("double losses", counts.double_losses),
            ("interrupted recoveries", counts.interrupted_recoveries),
            ("rebuilds", counts.rebuilds),
            ("replacements", counts.replacements),
            ("cancelled copies", counts.cancelled_copies),
            ("continued copies", counts.continued_copies),
            ("faults", counts.faults),
            ("changes of arrays", counts.changes),
            ("destroyed arrays", counts.destructions),
            ("healed drives", counts.healed),
            ("refusals", counts.refusals),
            ("forks", counts.forks),
            ("judgements", counts.judgements),
            ("beyond the promise", counts.beyond),
            ("claims of the status", counts.claims),
            ("too pessimistic", counts.pessimistic_claims),
            ("remedies", counts.remedies),
            ("zones scrubbed", counts.scrubs),
            ("blocks repaired in them", counts.repaired),
            ("coverage", summary.sights.len() as u64),
            ("failures", summary.failures.len() as u64),
        ]
        .map(|(name, count)| format!("{name:<24}{count:>12}"))
        .to_vec();
        let rate = counts.judgements as f64 / seconds.max(1e-9);
        lines.push(format!("{seconds:.1} s, {rate:.0} judgements a second"));
        for (why, count) in &summary.refusals {
            lines.push(format!("refused {count} times: {why}"));
        }
        let mut kinds: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
        for failure in &summary.failures {
            kinds
                .entry(runner::kind(failure.failure.as_deref().unwrap_or_default()))
                .or_default()
                .push(failure);
        }
        for failures in kinds.values() {
            let text = failures.first().and_then(|f| f.failure.as_deref()).unwrap_or_default();
            lines.push(format!("\n{} times, as: {text}", failures.len()));
            lines.extend(
                failures.iter().take(MOST_SHOWN).map(|f| format!("  {}", self.replay_command(f.seed))),
            );
            if failures.len() > MOST_SHOWN {
                lines.push(format!("  and {} more (--json names them all)", failures.len() - MOST_SHOWN));
            }
        }
        print_lines(&lines)
    }
}
