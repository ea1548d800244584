//! `zoneraid demo`: power cuts and losses of drives, on real files.
//!
//! The scenario: a tar stream is written to an array of five emulated ZN540 with many writes in flight; at a moment
//! drawn from the seed the power fails, and one drive is lost with it. The array is assembled from the other four, and
//! all acknowledged bytes are compared with the stream. The rest of the stream is written degraded, with another power
//! cut; a blank drive is rebuilt, with a third power cut; bits flip on a drive, and a scrub repairs them; another drive is
//! lost, and everything is read back, unpacked and compared with the files. Every write carries FUA, so that acknowledged
//! data is durable.

mod rig;
mod source;
mod stream;

use super::interrupt;
use crate::{
    members::full,
    process::{
        output::{self, FAILED, HEALTHY, Output, Shade, quoted, shaded},
        size::show,
    },
};
use anyhow::{Result, ensure};
use emu::ssd::Model;
use engine::{
    array::{Array, ArrayOptions, CHECKSUM_GROUP_BLOCKS, CreateOptions, Progress},
    buf::BLOCK,
    device::ZonedDevice,
    runtime::Runtime,
    zone::ZoneIndex,
};
use rig::DemoRig;
use serde::Serialize;
use source::DemoSource;
use std::{
    cell::Cell,
    collections::BTreeSet,
    fs::Metadata,
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    pin::pin,
    task::Poll,
    time::Instant,
};
use stream::{Checker, DemoArray, StreamWriter};

/// Most changed files that are named.
const MOST_NAMED: usize = 10;

const MEMBERS: usize = 5;
const DATA_MEMBERS: u64 = MEMBERS as u64 - 1;
const CHUNK_BLOCKS: u64 = (64 << 10) / BLOCK as u64;
/// Zones of the array that the stream occupies, unless it is very small or very large.
const ZONES: u64 = 4;
/// Zones that the array reserves, and some spare ones.
const MORE_ZONES: u64 = 6;

/// A stream of at least this length is always being written when the power fails.
const ENOUGH_BYTES: u64 = 1 << 20;

/// Power cuts while the stream is written.
const CUTS: u64 = 2;

/// Bits that flip on a drive.
const FLIPS: u64 = 24;

/// Most bytes of the files that are stored if no path is given.
const OWN_BYTES: u64 = 256 << 20;

/// A power cut while the stream is written, and the recovery from it.
#[derive(Serialize)]
struct PowerCut {
    /// Bytes of the stream that had been acknowledged as durable.
    acknowledged_bytes: u64,
    /// Drive commands in flight.
    commands_in_flight: u64,
    /// Position of the write pointers after recovery: at least the acknowledged bytes.
    recovered_bytes: u64,
    /// Recovered bytes that are the same as in the stream.
    verified_bytes: u64,
}

/// Results of the demo; `lost_bytes` is the one that matters.
#[derive(Serialize, Default)]
struct Report {
    seed: u64,
    /// Files, directories and links in the stream.
    entries: u64,
    /// Length of the tar stream.
    input_bytes: u64,
    /// Bytes of the stream acknowledged as durable: all of them by the end.
    acknowledged_bytes: u64,
    /// Bytes of the stream that were read back at the end, after the second loss of a drive, and are the same.
    verified_bytes: u64,
    /// Acknowledged bytes that were missing or different after a cut or at the end.
    lost_bytes: u64,
    /// Power cuts, also those during the rebuild.
    power_cuts: u32,
    /// The power cuts while the stream was written.
    cuts: Vec<PowerCut>,
    /// The first entry of `cuts` again, as are the next three fields: scripts may use them.
    commands_in_flight: u64,
    acknowledged_at_cut_bytes: u64,
    recovered_at_cut_bytes: u64,
    verified_at_cut_bytes: u64,
    members_lost: u32,
    rebuilt_bytes: u64,
    /// Blocks in which a bit flipped, and blocks that scrubs repaired.
    flipped_blocks: u64,
    repaired_blocks: u64,
    /// Blocks written to flash on the five drives of the array after the rebuild, divided by blocks of the stream. A
    /// block that is overwritten inside a ZRWA counts once. `None` without input.
    flash_write_amplification: Option<f64>,
    entries_same: u64,
    entries_different: u64,
    /// Files that changed on disk while the demo ran.
    entries_changed: u64,
    seconds: f64,
}

impl Report {
    /// Whether the power failed at least once while writes were in flight and others were acknowledged.
    fn was_cut(&self) -> bool {
        self.cuts.iter().any(|cut| cut.commands_in_flight > 0 && cut.acknowledged_bytes > 0)
    }
}

/// Runs the demo with the files at `path`; without a path, with the project's directory: its sources and build output.
pub fn run(output: Output, path: Option<PathBuf>, seed: Option<u64>) -> Result<u8> {
    let started = Instant::now();
    let seed = match seed {
        Some(seed) => seed,
        None => u64::from_le_bytes(output::new_uuid()?[8..].try_into()?) >> 16,
    };
    let again =
        path.as_deref().map(|path| format!(" {}", quoted(&path.to_string_lossy()))).unwrap_or_default();
    interrupt::explain(|| "nothing is left behind: the drives were unlinked files".into());
    let played = pack(output, path).and_then(|source| {
        let mut scenario = Scenario::new(output, source, seed, ArrayOptions::default())?;
        scenario.play()?;
        Ok(scenario)
    });
    // A drive only reports that a write has failed, not that its file system is full.
    let known = |error: &anyhow::Error| {
        let other = |error: &io::Error| error.kind() != io::ErrorKind::StorageFull;
        error.chain().any(|cause| cause.downcast_ref().is_some_and(other))
    };
    let scenario = played.map_err(|error| match full([std::env::temp_dir()]) {
        Some(full) if !known(&error) => error.context(full),
        _ => error,
    })?;
    let mut report = scenario.report;
    report.seconds = started.elapsed().as_secs_f64();
    if let Some(first) = report.cuts.first() {
        report.commands_in_flight = first.commands_in_flight;
        report.acknowledged_at_cut_bytes = first.acknowledged_bytes;
        report.recovered_at_cut_bytes = first.recovered_bytes;
        report.verified_at_cut_bytes = first.verified_bytes;
    }
    if !report.was_cut() {
        output.note(&format!(
            "the input is too small: no write was in flight or none was acknowledged at the power cut; use {} or more",
            show(ENOUGH_BYTES)
        ));
    }
    let good = report.lost_bytes == 0 && report.entries_different == 0;
    output.print(&report, |report| report_text(report, &again))?;
    Ok(if good { HEALTHY } else { FAILED })
}

fn pack(output: Output, path: Option<PathBuf>) -> Result<DemoSource> {
    let source = match path {
        Some(path) => DemoSource::pack(&path, |_, _| false)?,
        None => {
            let own = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
            ensure!(
                own.is_dir(),
                "{} does not exist any more: name a directory with zoneraid demo PATH",
                own.display()
            );
            DemoSource::pack(own, skip_beyond(OWN_BYTES))?
        }
    };
    for note in &source.notes {
        output.note(note);
    }
    Ok(source)
}

/// Skips `.git`, and each file that would exceed `most_bytes` together with the files before it.
fn skip_beyond(most_bytes: u64) -> impl FnMut(&Path, &Metadata) -> bool {
    let mut left_bytes = most_bytes;
    move |path, meta| {
        if !meta.is_file() {
            return path.ends_with(".git");
        }
        let rest = left_bytes.checked_sub(meta.len());
        left_bytes = rest.unwrap_or(left_bytes);
        rest.is_none()
    }
}

/// A run of the demo.
struct Scenario {
    output: Output,
    source: DemoSource,
    rig: DemoRig,
    runtime: Runtime,
    /// Default options, except in tests.
    behaviour: ArrayOptions,
    /// Length of the stream, rounded up to whole blocks.
    total: u64,
    report: Report,
}

/// A scaled-down drive model for a stream of `bytes` in a handful of zones.
fn plan(bytes: u64) -> Model {
    let model = Model::zn540();
    let blocks = bytes.div_ceil(BLOCK as u64);
    let wanted = blocks.div_ceil(ZONES * DATA_MEMBERS).next_multiple_of(256);
    let capacity = wanted.clamp(2048, model.geometry.zone_capacity_blocks);
    // The end of a zone may stay unused.
    let zones = blocks.div_ceil((capacity - CHUNK_BLOCKS) * DATA_MEMBERS) + MORE_ZONES;
    let zones = zones.min(model.geometry.zones as u64) as u32;
    model.scaled(zones, capacity)
}

impl Scenario {
    fn new(output: Output, source: DemoSource, seed: u64, behaviour: ArrayOptions) -> Result<Scenario> {
        let rig = DemoRig::new(plan(source.bytes), MEMBERS, seed)?;
        let report = Report { seed, entries: source.entries, input_bytes: source.bytes, ..Report::default() };
        let total = source.bytes.next_multiple_of(BLOCK as u64);
        Ok(Scenario { output, source, rig, runtime: Runtime::new(), behaviour, total, report })
    }

    /// Prints a line of progress, unless the output is JSON.
    fn say(&self, what: &str, details: &str) -> Result<()> {
        if self.output.json { Ok(()) } else { self.output.line(&format!("{what:>10}  {details}")) }
    }

    fn demo_array<'a>(&'a self, array: &'a Array) -> DemoArray<'a> {
        DemoArray { array, runtime: &self.runtime, rig: &self.rig, source: &self.source }
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.rig.wait(&self.runtime, future)
    }

    fn play(&mut self) -> Result<()> {
        let size = show(self.source.bytes);
        self.say(
            "input",
            &format!("{} entries, {size} as a tar stream; seed {}", self.source.entries, self.report.seed),
        )?;
        let mut array = self.create()?;
        let lost = self.rig.draw(MEMBERS as u64) as usize;
        let mut from = 0;
        for cut in 0..CUTS {
            let (acknowledged, in_flight) = self.write_until_the_cut(&array, from)?;
            drop(array);
            if cut == 0 {
                self.rig.lose(lost);
                self.report.members_lost += 1;
            }
            (array, from) = self.recover(lost, acknowledged, in_flight)?;
        }
        self.write_on(&array, lost, from)?;
        self.rebuild(array, lost)?;
        self.flip_and_scrub()?;
        self.lose_another(lost)
    }

    fn create(&self) -> Result<Array> {
        let options = CreateOptions {
            group_blocks: 0,
            spare_zones: None,
            checksums: true,
            checksum_group_blocks: CHECKSUM_GROUP_BLOCKS,
            name: "demo".into(),
            uuid: output::new_uuid()?,
            chunk_blocks: CHUNK_BLOCKS,
            zone_size_blocks: None,
            parities: 1,
            policy: None,
            host: [0; 16],
            autostart: false,
        };
        let array =
            self.wait(Array::create_with(&self.runtime, options, self.rig.members(), self.behaviour))??;
        let geometry = array.geometry();
        let (zones, capacity) = (geometry.zones as u64, geometry.zone_capacity_blocks * BLOCK as u64);
        let room = zones * capacity;
        ensure!(
            room >= self.total,
            "the array holds {}, less than the {} to write",
            show(room),
            show(self.total)
        );
        self.say(
            "array",
            &format!(
                "{MEMBERS} emulated ZN540, RAID-5 in chunks of 64 KiB: {zones} zones of {}",
                show(capacity)
            ),
        )?;
        Ok(array)
    }

    fn assemble(&self) -> Result<Array> {
        Ok(self.wait(Array::assemble_with(&self.runtime, self.rig.members(), None, self.behaviour))??)
    }

    /// Cuts the power, and ends all tasks of the array. Returns the drive commands in flight.
    fn cut_power(&mut self) -> Result<u64> {
        let in_flight = self.rig.cut()? as u64;
        self.runtime.clear();
        self.report.power_cuts += 1;
        Ok(in_flight)
    }

    /// Writes the stream from byte `from` up to a point drawn from the seed, and cuts the power with all other writes in
    /// flight. Returns the acknowledged bytes and the drive commands in flight.
    fn write_until_the_cut(&mut self, array: &Array, from: u64) -> Result<(u64, u64)> {
        // Between one tenth and six tenths of the rest.
        let rest = self.total - from;
        let cut_at = from + rest / 10 + self.rig.draw((rest / 2).max(1));
        let cut_at = cut_at / BLOCK as u64 * BLOCK as u64;
        let bar = self.output.bar("write", self.total);
        let mut writer = StreamWriter::new(self.demo_array(array), bar.clone(), from, self.total);
        writer.write_until(cut_at)?;
        bar.finish_and_clear();
        let (acknowledged, submitted) = (writer.acknowledged, writer.submitted);
        drop(writer);
        let in_flight = self.cut_power()?;
        let (done, on_the_way) = (show(acknowledged), show(submitted - acknowledged));
        self.say(
            "power cut",
            &format!("{done} acknowledged, {on_the_way} in flight in {}", drive_commands(in_flight)),
        )?;
        Ok((acknowledged, in_flight))
    }

    /// Assembles without the lost drive, and compares the recovered data with the stream. Returns the array, and the
    /// recovered bytes.
    fn recover(
        &mut self,
        lost: usize,
        acknowledged_bytes: u64,
        commands_in_flight: u64,
    ) -> Result<(Array, u64)> {
        let array = self.assemble()?;
        let recovered_bytes = self.demo_array(&array).end()?.min(self.total);
        let bar = self.output.bar("compare", recovered_bytes);
        // Data above the acknowledged bytes may be missing, but recovered data has to be right.
        let bad = Checker::new(self.demo_array(&array), bar, recovered_bytes).finish()?;
        let lost_bytes = acknowledged_bytes.saturating_sub(recovered_bytes) + bad;
        self.report.lost_bytes += lost_bytes;
        let verified_bytes = recovered_bytes - bad;
        self.report.cuts.push(PowerCut {
            acknowledged_bytes,
            commands_in_flight,
            recovered_bytes,
            verified_bytes,
        });
        let (recovered, lost_bytes) = (show(recovered_bytes), show(lost_bytes));
        let details = format!("{recovered} without drive {lost}, all of it compared: {lost_bytes} lost");
        self.say("recovered", &details)?;
        // Of the writes that were in flight, those to the next zone may be there.
        self.demo_array(&array).reset_behind(recovered_bytes)?;
        Ok((array, recovered_bytes))
    }

    fn write_on(&mut self, array: &Array, lost: usize, from: u64) -> Result<()> {
        let bar = self.output.bar("write on", self.total);
        let mut writer = StreamWriter::new(self.demo_array(array), bar, from, self.total);
        writer.write_to_the_end()?;
        self.report.acknowledged_bytes = writer.acknowledged.min(self.source.bytes);
        self.say("written", &format!("the other {}, still without drive {lost}", show(self.total - from)))
    }

    /// Rebuilds a blank drive in the place of the lost one, with a power cut at a percentage drawn from the seed.
    fn rebuild(&mut self, array: Array, lost: usize) -> Result<()> {
        let drive = self.rig.replace(lost)?;
        self.wait(array.attach(lost, drive))??;
        let cut_percent = 20 + self.rig.draw(60);
        let (mut done_bytes, is_rebuilt) = self.rebuild_until(&array, Some(cut_percent))?;
        drop(array);
        if !is_rebuilt {
            let (in_flight, rebuilt) = (self.cut_power()?, show(done_bytes));
            self.say("power cut", &format!("{rebuilt} rebuilt, {} in flight", drive_commands(in_flight)))?;
            (done_bytes, _) = self.rebuild_until(&self.assemble()?, None)?;
        }
        self.report.rebuilt_bytes = done_bytes;
        let flash = self.rig.flash_bytes() as f64;
        self.report.flash_write_amplification = (self.total > 0).then(|| flash / self.total as f64);
        self.say("rebuilt", &format!("{} on a blank drive {lost}", show(done_bytes)))
    }

    /// Rebuilds up to this percentage, or to the end. Returns the rebuilt bytes, those before an interruption included,
    /// and whether the rebuild has ended.
    fn rebuild_until(&self, array: &Array, percent: Option<u64>) -> Result<(u64, bool)> {
        let (bar, done_bytes, is_due) = (self.output.bar("rebuild", 0), Cell::new(0), Cell::new(false));
        let progress = |progress: Progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
            done_bytes.set(progress.done_bytes);
            is_due.set(percent.is_some_and(|p| progress.done_bytes * 100 >= progress.total_bytes * p));
        };
        let mut rebuild = pin!(array.rebuild(&progress));
        let ended = self.wait(poll_fn(|context| match rebuild.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if is_due.get() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }));
        bar.finish_and_clear();
        let is_rebuilt = ended?.transpose()?.is_some();
        Ok((done_bytes.get(), is_rebuilt))
    }

    /// Flips bits on one drive, in the first half of the stream, and scrubs the array.
    fn flip_and_scrub(&mut self) -> Result<()> {
        self.runtime.clear();
        let array = self.assemble()?;
        let (drive, zone_blocks) =
            (self.rig.draw(MEMBERS as u64) as usize, array.geometry().zone_capacity_blocks / DATA_MEMBERS);
        let mut flipped = BTreeSet::new();
        for _ in 0..FLIPS.min(self.total / BLOCK as u64 / 8) {
            let block = self.rig.draw(self.total / BLOCK as u64 / DATA_MEMBERS / 2);
            flipped.insert((block / zone_blocks, block % zone_blocks));
        }
        for (zone, at) in &flipped {
            self.rig.flip(drive, *zone, *at);
        }
        self.report.flipped_blocks = flipped.len() as u64;
        let mut read = 0;
        for zone in (0..array.geometry().zones).map(ZoneIndex) {
            let scrubbed = self.wait(array.scrub_zone(zone, async |_| ()))??;
            read += scrubbed.scanned_bytes;
            self.report.repaired_blocks +=
                scrubbed.findings.iter().filter(|found| found.is_repaired).count() as u64;
        }
        let (flipped, repaired) = (self.report.flipped_blocks, self.report.repaired_blocks);
        let details =
            format!("{}; {flipped} bits had flipped on drive {drive}, {repaired} repaired", show(read));
        self.say("scrubbed", &details)
    }

    /// Loses a drive that survived the first loss, then reads and unpacks everything.
    fn lose_another(&mut self, lost: usize) -> Result<()> {
        let second = (lost + 1 + self.rig.draw(DATA_MEMBERS) as usize) % MEMBERS;
        self.runtime.clear();
        self.rig.lose(second);
        self.report.members_lost += 1;
        let array = self.assemble()?;
        let end = self.demo_array(&array).end()?.min(self.total);
        let bar = self.output.bar("compare", end);
        let mut checker = Checker::new(self.demo_array(&array), bar, end);
        let compared = self.source.compare(&mut checker);
        let bad = checker.finish()? + (self.total - end);
        self.report.lost_bytes += bad;
        self.report.verified_bytes = self.source.bytes.saturating_sub(bad);
        let mut compared = match compared {
            // A stream with lost bytes may not be a valid tar stream.
            Err(_) if bad > 0 => source::Comparison::default(),
            compared => compared?,
        };
        if bad == 0 {
            // All bytes came back as they were sent, so any difference is due to changed files.
            compared.changed.append(&mut compared.different);
        }
        for path in &compared.different {
            self.output.note(&format!("{} came back different", path.display()));
        }
        for path in compared.changed.iter().take(MOST_NAMED) {
            self.output.note(&format!("{} was changed while the demo ran", path.display()));
        }
        if compared.changed.len() > MOST_NAMED {
            let others = compared.changed.len() - MOST_NAMED;
            self.output.note(&format!("and so were {others} others"));
        }
        self.report.entries_same = compared.same;
        self.report.entries_different = compared.different.len() as u64;
        self.report.entries_changed = compared.changed.len() as u64;
        self.say("lost again", &format!("drive {second}; everything read back and unpacked without it"))
    }
}

/// A number of drive commands in a sentence.
fn drive_commands(count: u64) -> String {
    if count == 1 { "1 drive command".into() } else { format!("{count} drive commands") }
}

/// `again` is the rest of the command line that repeats this run, behind the seed.
fn report_text(report: &Report, again: &str) -> String {
    let amplification = report.flash_write_amplification.map_or("-".into(), |factor| format!("{factor:.3}"));
    let rows = [
        ("power cuts", report.power_cuts.to_string()),
        ("drives lost", report.members_lost.to_string()),
        ("read back and compared at the end", show(report.verified_bytes)),
        ("files, directories and links the same", report.entries_same.to_string()),
        ("different", report.entries_different.to_string()),
        ("rebuilt", show(report.rebuilt_bytes)),
        ("flipped bits repaired", format!("{} of {}", report.repaired_blocks, report.flipped_blocks)),
        ("flash write amplification", amplification),
        ("lost", show(report.lost_bytes)),
        ("seconds", format!("{:.2}", report.seconds)),
    ];
    let mut text = String::from("\n");
    for (what, figure) in rows {
        text += &format!("  {what:<40} {figure:>12}\n");
    }
    let verdict = if report.lost_bytes > 0 || report.entries_different > 0 {
        shaded("DATA WAS LOST; please report this with the seed.", Shade::Bad)
    } else if report.was_cut() {
        shaded("Nothing was lost.", Shade::Good)
    } else {
        "Nothing was lost, but the input is too small to show anything.".into()
    };
    text + &format!("\n  {verdict} The same again: {} demo --seed {}{again}\n", called(), report.seed)
}

/// This program as it was invoked, quoted for a shell: it need not be installed.
fn called() -> String {
    std::env::args().next().map_or("zoneraid".to_string(), |called| quoted(&called))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::raid::Consistency;

    /// For each of these seeds, whether the demo with a file of `mib` MiB reports no loss.
    fn verdicts(consistency: Consistency, mib: usize, seeds: std::ops::Range<u64>) -> Vec<bool> {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("file"), vec![0xa5; mib << 20]).unwrap();
        let is_intact = |seed| {
            let source = DemoSource::pack(tree.path(), |_, _| false).unwrap();
            let behaviour = ArrayOptions { consistency, ..ArrayOptions::default() };
            let mut scenario = Scenario::new(Output { json: true }, source, seed, behaviour).unwrap();
            scenario.play().is_ok()
                && scenario.report.lost_bytes == 0
                && scenario.report.entries_different == 0
        };
        seeds.map(is_intact).collect()
    }

    #[test]
    fn demo_source_leaves_out_files_beyond_limit() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", 3000), ("b", 3000), ("c", 1000)] {
            std::fs::write(dir.path().join(name), vec![7; bytes]).unwrap();
        }
        let source = DemoSource::pack(dir.path(), skip_beyond(4000)).unwrap();
        assert_eq!(source.entries, 2);
        assert!((4000..16_000).contains(&source.bytes), "{}", source.bytes);
    }

    /// Writes in flight may be in two zones at a power cut, and those to the later one may be recovered.
    #[test]
    fn demo_continues_after_cut_with_writes_in_two_zones() {
        let intact = verdicts(Consistency::WpLog, 64, 0..12);
        let failed: Vec<usize> = (0..12).filter(|seed| !intact[*seed]).collect();
        assert_eq!(failed, [0_usize; 0]);
    }

    #[test]
    fn demo_detects_array_losing_promised_data() {
        assert!(verdicts(Consistency::WpLog, 3, 0..20).iter().all(|intact| *intact));
        assert!(verdicts(Consistency::Stripe, 3, 0..20).iter().any(|intact| !intact));
    }
}
