//! Systematic search: every power cut, with every allowed set of lost members, in every order up to a bound.
//!
//! A case is a small array and a short, fixed workload. There is one default order of events; a schedule deviates from
//! it at up to `delays` places by taking another event that is possible there (delay-bounded scheduling: Emmi, Qadeer,
//! Rakamarić, POPL 2011). For each schedule the power is cut, the process killed while the drives keep power, or the
//! drives shut down in good order, after each event that changed a drive or completed an operation of the host, for
//! each allowed set of lost members, and with three fates of the commands in flight: none is executed, all are, or some
//! are (at a power cut, in part). After a deviation only the next cuts are tried: earlier ones belong to the schedule
//! it deviates from, and later ones look like those of others.
//!
//! Some cases end twice, to test writes to a zone that was recovered. They have no deviations; instead, the power is
//! cut with torn commands after every event of a workload that comes first.
//!
//! With volatile caches, a cut loses all unflushed data, none of it, that of one zone of one drive, that of all zones
//! but one, or some of one: each prefix of the writes is kept, or each position of the write pointer, up to a bound.
//!
//! Nothing is sampled, apart from the torn commands of the third fate and of the first of two ends, and the cache
//! losses that go with these.

pub use super::scripted::{CacheFate, InFlightFate, Step};
use super::{
    assembly, create, ends,
    fault_budget::subsets,
    recovered, replacement,
    replacement::Replacement,
    runner::{catch_panics, quietly},
    scenario::{Load, Misfortune, Pace, Scenario},
    scripted, step,
    subject::Maker,
    world::{End, Failure, Pending, TraceMode, World},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{
    device::{Geometry, Zrwa},
    raid::policy::Policy,
};

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Cuts that are tried after a deviation.
const CUTS_AFTER_DEVIATION: usize = 16;
/// Ways to lose a part of the unflushed data of one zone of a drive.
const MOST_WAYS: usize = 8;
/// Queued commands that a deviation may choose from.
const CHOICES: usize = 6;
/// Failures after which the search ends.
const MOST_FAILURES: usize = 20;

/// A small array and its workload.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub policy: Policy,
    pub members: usize,
    pub parities: usize,
    pub chunk_blocks: u64,
    pub granularity_blocks: u64,
    /// Size of a drive's ZRWA; 0 for drives without.
    pub window_chunks: u64,
    /// Small zones of a drive that form one zone.
    pub aggregate: u32,
    pub spare_zones: u32,
    /// Blocks that share a checksum block; 0 without such blocks.
    pub checksum_group_blocks: u32,
    pub volatile_cache: bool,
    /// Blocks below the capacity at which the workload starts.
    pub from_end_blocks: Option<u64>,
    pub queue_depth: usize,
    /// The workload before a first end; empty if there is no such end.
    pub before: Vec<Step>,
    pub steps: Vec<Step>,
}

/// Numbers of schedules and ends that were tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchCounts {
    pub schedules: u64,
    pub power_cuts: u64,
    pub kills: u64,
    pub shutdowns: u64,
}

/// A broken promise and how to reproduce it.
#[derive(Clone, Debug)]
pub struct Finding {
    pub case: &'static str,
    pub parities: usize,
    pub point: Point,
    pub failure: String,
}

/// A place in the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The first power cut comes before this event of the first workload.
    pub first_cut: Option<usize>,
    /// Deviations from the default order: event, and the choice taken there.
    pub schedule: Vec<(usize, usize)>,
    /// The end comes before this event.
    pub cut_at: Option<usize>,
    pub end: End,
    pub lost: Vec<usize>,
    /// If a lost member is being replaced, the replacement drive is lost, and not the old one.
    pub replacement_lost: bool,
    pub fate: InFlightFate,
    pub cache: CacheFate,
}

/// Properties of a schedule that was played to its end.
#[derive(Default)]
struct ScheduleShape {
    /// Number of choices at each event.
    choices: Vec<usize>,
    /// Events before which a cut is worth a try.
    cuts: Vec<usize>,
    /// For each zone of a drive with unflushed data at the power cut: the number of ways to lose a portion of it.
    unflushed: Vec<usize>,
    /// The events between which the first member lacks a part, if there are such.
    worn: Option<usize>,
    rebuilt: Option<usize>,
}

impl ScheduleShape {
    /// Whether the first member may lack a part before an event.
    fn lacks(&self, event: usize) -> bool {
        self.worn.is_some_and(|worn| worn < event) && self.rebuilt.is_none_or(|rebuilt| event < rebuilt)
    }
}

impl Case {
    /// The cases that `sim exhaustive` tries on arrays with this many parities. Each parity adds a member, so that
    /// stripes have as many data chunks, and room for its slots.
    pub fn all(parities: usize) -> Vec<Case> {
        use Step::{Finish, Flush, Rebuild, Replace, Reset, Wear};
        let fua = |blocks| Step::Write { blocks, fua: true };
        let write = |blocks| Step::Write { blocks, fua: false };
        let rows = Policy::Zrwa.rows_in_zrwa(parities);
        let case = |name, members, distance, steps| Case {
            name,
            policy: Policy::Zrwa,
            members: members + parities - 1,
            parities,
            chunk_blocks: 2,
            granularity_blocks: 1,
            window_chunks: distance * rows,
            aggregate: 1,
            spare_zones: 0,
            checksum_group_blocks: 0,
            volatile_cache: false,
            from_end_blocks: None,
            queue_depth: 2,
            before: Vec::new(),
            steps,
        };
        let in_place = |name, members, steps| Case {
            policy: Policy::InPlace,
            window_chunks: 4,
            ..case(name, members, 2, steps)
        };
        let in_logs = |name, members, steps| Case { policy: Policy::Log, ..case(name, members, 0, steps) };
        // A bundle is as large as the ZRWA without its checksum block; the third one ends in the middle of a row.
        let window_chunks = 2 * rows + 1;
        let with_sums = |name, steps| Case {
            window_chunks,
            checksum_group_blocks: window_chunks as u32 * 2 - 1,
            ..case(name, 3, 2, steps)
        };
        let before_end_of_bundle = Some(if parities == 1 { 20 } else { 28 });
        vec![
            case("two data chunks", 3, 2, vec![fua(1), write(3), fua(2), write(1), Flush, fua(4)]),
            case("smallest window", 3, 1, vec![write(3), fua(3), write(2), fua(1)]),
            case("three data chunks", 4, 2, vec![fua(3), write(4), Flush, write(5), fua(1)]),
            case("reset and reuse", 3, 2, vec![fua(3), Reset, fua(2), write(1), Flush]),
            case("finish", 3, 2, vec![fua(3), write(2), Finish]),
            Case {
                from_end_blocks: Some(9),
                ..case("end of the zone", 3, 2, vec![fua(2), write(3), fua(1), fua(3)])
            },
            Case {
                queue_depth: 4,
                ..case(
                    "joined writes",
                    4,
                    2,
                    vec![write(2), write(1), fua(1), write(1), write(3), fua(2), write(1), Flush],
                )
            },
            Case {
                volatile_cache: true,
                ..case("volatile cache", 3, 2, vec![fua(3), write(2), Flush, fua(1)])
            },
            Case {
                aggregate: 4,
                window_chunks: 4 * parities as u64,
                ..case("small zones", 3, 2, vec![fua(3), write(2)])
            },
            in_logs("in logs", 4, vec![write(1), write(4), write(2)]),
            in_logs("in logs, reset and reuse", 3, vec![write(3), Reset, write(2)]),
            in_logs("in logs, finish", 4, vec![write(3), write(2), Finish]),
            Case {
                from_end_blocks: Some(9),
                ..in_logs("in logs, end of the zone", 3, vec![write(2), write(5), write(1)])
            },
            Case {
                volatile_cache: true,
                ..in_logs("in logs, volatile cache", 3, vec![fua(3), write(2), Flush, write(2)])
            },
            Case {
                checksum_group_blocks: 3,
                ..in_logs("checksum blocks", 3, vec![write(1), write(4), write(2)])
            },
            Case {
                checksum_group_blocks: 3,
                volatile_cache: true,
                ..in_logs("checksum blocks, finish, volatile cache", 3, vec![fua(3), write(2), Finish])
            },
            Case {
                checksum_group_blocks: 5,
                from_end_blocks: Some(9),
                ..in_logs("checksum blocks, end of the zone", 3, vec![write(2), write(5), write(1)])
            },
            Case {
                checksum_group_blocks: 3,
                before: vec![write(4), write(5)],
                ..in_logs("checksum blocks, two ends", 3, vec![write(3), write(4)])
            },
            Case {
                checksum_group_blocks: 3,
                spare_zones: 1,
                ..in_logs("checksum blocks, worn zone", 3, vec![write(3), Wear, write(4), Rebuild, write(3)])
            },
            with_sums("checksum blocks in ZRWAs", vec![fua(3), write(4), Reset, fua(2)]),
            with_sums("checksum blocks in ZRWAs, finish", vec![fua(3), write(2), Finish]),
            Case {
                from_end_blocks: before_end_of_bundle,
                ..with_sums("checksum blocks in ZRWAs, end of a bundle", vec![write(2), fua(5), write(1)])
            },
            Case {
                from_end_blocks: Some(9),
                volatile_cache: true,
                ..with_sums("checksum blocks in ZRWAs, end of the zone", vec![fua(2), write(3), fua(4)])
            },
            in_place("in place", 4, vec![write(1), write(3), write(3)]),
            Case {
                from_end_blocks: Some(9),
                ..in_place("in place, end of the zone", 3, vec![write(2), write(3), write(1)])
            },
            Case {
                volatile_cache: true,
                ..in_place("in place, volatile cache", 3, vec![fua(3), write(2), Flush])
            },
            case("replacement", 3, 2, vec![fua(3), Replace, fua(2), write(3)]),
            in_logs("in logs, replacement", 3, vec![write(3), Replace, write(3)]),
            in_place("in place, replacement", 3, vec![write(3), Replace, write(3)]),
            Case {
                spare_zones: 1,
                ..case("worn zone", 3, 2, vec![fua(3), Wear, fua(4), Rebuild, fua(2), write(3)])
            },
            Case {
                spare_zones: 1,
                ..in_logs("in logs, worn zone", 3, vec![write(3), Wear, write(4), Rebuild, write(3)])
            },
            Case {
                spare_zones: 1,
                ..in_place("in place, worn zone", 3, vec![write(3), Wear, write(4), Rebuild, write(3)])
            },
            Case {
                policy: Policy::Log,
                before: vec![write(4), write(5)],
                ..case("log, two ends", 3, 0, vec![write(3), write(4)])
            },
            Case {
                policy: Policy::Log,
                volatile_cache: true,
                before: vec![fua(1), write(6)],
                ..case("log, two ends, volatile cache", 3, 0, vec![fua(3), write(4)])
            },
        ]
    }

    fn scenario(&self) -> Scenario {
        let parts = self.aggregate;
        let zrwa = (self.window_chunks > 0).then(|| Zrwa {
            size_blocks: self.window_chunks * self.chunk_blocks / parts as u64,
            granularity_blocks: self.granularity_blocks,
            max_zones: 4 * parts,
        });
        let drive = Geometry {
            zones: (4 + self.spare_zones) * parts,
            zone_size_blocks: 64 / parts as u64,
            zone_capacity_blocks: 64 / parts as u64,
            max_open: 4 * parts,
            max_active: 4 * parts,
            zrwa,
            oob_bytes: 16,
            max_transfer_blocks: 64,
            max_append_blocks: 0,
            volatile_cache: self.volatile_cache,
        };
        let pace = Pace {
            execute: 1,
            deliver: 1,
            step: 1,
            issue: 1,
            in_order: true,
            spike_permille: 0,
            spike_events: 0,
            slow_per_myriad: 0,
        };
        Scenario {
            policy: self.policy,
            members: self.members,
            parities: self.parities,
            drive,
            mixed: false,
            cramped: false,
            finish_drops: false,
            fua_alone: false,
            sectors_tear: false,
            spare_zones: self.spare_zones,
            compression: None,
            unwritten_fails: false,
            group_blocks: 0,
            checksum_group_blocks: self.checksum_group_blocks,
            chunk_blocks: self.chunk_blocks,
            aggregate: self.aggregate,
            zone_size_blocks: None,
            join: true,
            load: Load { queue_depth: self.queue_depth, ..Load::default() },
            pace,
            misfortune: Misfortune::default(),
            rounds: 0,
            work_events: 0,
            forks: 0,
        }
    }

    /// Plays one schedule, to its end or to a cut and the recovery after it. Returns the played part of the schedule's
    /// shape.
    fn play(&self, maker: &dyn Maker, point: &Point) -> Result<ScheduleShape, Failure> {
        let rng = Rng::new(1 + point.first_cut.unwrap_or(0) as u64);
        let mut world = World::new(maker, self.scenario(), rng, TraceMode::Off);
        step::set_in_order(&mut world);
        if !create::create_in_order(&mut world)? {
            return Err(Failure(format!("not created: {}", world.refusal().unwrap_or_default())));
        }
        if let Some(blocks) = self.from_end_blocks {
            step::fill_to(&mut world, 0, blocks)?;
        }
        if let Some(cut) = point.first_cut {
            let first = Point { cut_at: Some(cut), fate: InFlightFate::Torn, ..Point::default() };
            self.play_to_end(&mut world, &self.before, &first)?;
        }
        self.play_to_end(&mut world, &self.steps, point)
    }

    /// Plays steps, and the recovery if they are cut.
    fn play_to_end(
        &self,
        world: &mut World<'_>,
        steps: &[Step],
        point: &Point,
    ) -> Result<ScheduleShape, Failure> {
        let mut shape = play_steps(world, steps, point)?;
        if point.cut_at.is_some() {
            scripted::settle_fate(world, point.fate);
            shape.unflushed = scripted::settle_cache(world, point.cache)?;
            let cache_lost = self.volatile_cache && point.cache == CacheFate::Drawn;
            match point.end {
                End::PowerCut => ends::cut_power(world, |_| Cut { cache_lost, zrwa_lost: false })?,
                End::Kill => ends::kill_process(world),
                End::Shutdown => ends::shut_down(world)?,
            }
            replacement::lose_replacement_drive(world, point.replacement_lost);
            assembly::assemble_without(world, &point.lost)?;
            recovered::check_recovery(world)?;
        }
        Ok(shape)
    }

    /// The events of the first workload after which the power is cut first; a single `None` if the case has no first
    /// end.
    fn first_cuts(&self, maker: &dyn Maker, report: &Report<'_>) -> Vec<Option<usize>> {
        if self.before.is_empty() {
            return vec![None];
        }
        let alone = Case { before: Vec::new(), steps: self.before.clone(), ..self.clone() };
        let shape = alone.try_point(maker, &Point::default(), report);
        shape.map_or(Vec::new(), |shape| shape.cuts.into_iter().map(Some).collect())
    }
    /// Tries every cut of one schedule; returns the schedules with one deviation more.
    fn explore(
        &self,
        maker: &dyn Maker,
        first_cut: Option<usize>,
        schedule: &[(usize, usize)],
        report: &Report<'_>,
    ) -> Vec<Vec<(usize, usize)>> {
        let whole = Point { first_cut, schedule: schedule.to_vec(), ..Point::default() };
        let Some(shape) = self.try_point(maker, &whole, report) else { return Vec::new() };
        let after = schedule.last().map_or(0, |(at, _)| at + 1);
        let most = if schedule.is_empty() { usize::MAX } else { CUTS_AFTER_DEVIATION };
        for cut in shape.cuts.iter().copied().filter(|cut| *cut >= after).take(most) {
            // A single drive has no redundancy to test.
            let most = if self.members > 1 { self.parities } else { 0 };
            let members: Vec<usize> = (0..self.members).collect();
            let replacement_drives =
                if self.steps.contains(&Step::Replace) { &[false, true][..] } else { &[false] };
            let lacks = |lost: &Vec<usize>| shape.lacks(cut) && !lost.contains(&STRUCK);
            let mut lost = subsets(&members, most);
            lost.retain(|lost| lost.len() + usize::from(lacks(lost)) <= most);
            let lost = lost.into_iter().flat_map(|lost| {
                let replacement_drives = if lost.contains(&STRUCK) { replacement_drives } else { &[false] };
                replacement_drives.iter().map(move |replacement_lost| (lost.clone(), *replacement_lost))
            });
            for (lost, replacement_lost) in lost {
                for (fate, end) in [InFlightFate::None, InFlightFate::All, InFlightFate::Torn]
                    .into_iter()
                    .flat_map(|fate| [End::PowerCut, End::Kill, End::Shutdown].map(|end| (fate, end)))
                {
                    let lost = lost.clone();
                    let point =
                        Point { cut_at: Some(cut), end, lost, replacement_lost, fate, ..whole.clone() };
                    self.try_caches(maker, &point, report);
                }
            }
        }
        if first_cut.is_some() {
            return Vec::new();
        }
        let deviations = shape.choices.iter().enumerate().skip(after);
        deviations
            .flat_map(|(event, choices)| (1..*choices).map(move |choice| (event, choice)))
            .map(|deviation| schedule.iter().copied().chain([deviation]).collect())
            .collect()
    }

    /// Tries a point with every loss of volatile caches: all, nothing, one part, all but one, or a portion of one. Torn
    /// commands go with random losses, since the one may depend on the other.
    fn try_caches(&self, maker: &dyn Maker, point: &Point, report: &Report<'_>) {
        self.try_point(maker, point, report);
        if !self.volatile_cache || point.end != End::PowerCut || point.fate == InFlightFate::Torn {
            return;
        }
        let kept = Point { cache: CacheFate::Kept, ..point.clone() };
        let Some(shape) = self.try_point(maker, &kept, report) else { return };
        if shape.unflushed.is_empty() {
            return;
        }
        self.try_point(maker, &Point { cache: CacheFate::Lost, ..point.clone() }, report);
        let alone = shape.unflushed.len() == 1;
        for (part, ways) in shape.unflushed.into_iter().enumerate() {
            let whole = [CacheFate::OnlyLost(part), CacheFate::OnlyKept(part)];
            let partly = (0..ways.min(MOST_WAYS)).map(|way| CacheFate::Partly { part, way });
            for cache in whole.into_iter().filter(|_| !alone).chain(partly) {
                self.try_point(maker, &Point { cache, ..point.clone() }, report);
            }
        }
    }

    fn try_point(&self, maker: &dyn Maker, point: &Point, report: &Report<'_>) -> Option<ScheduleShape> {
        if report.stop.load(Ordering::Relaxed) {
            return None;
        }
        let result = catch_panics(|| self.play(maker, point));
        let mut total = report.total.lock().unwrap_or_else(PoisonError::into_inner);
        match point.cut_at {
            None => total.0.schedules += 1,
            Some(_) => match point.end {
                End::PowerCut => total.0.power_cuts += 1,
                End::Kill => total.0.kills += 1,
                End::Shutdown => total.0.shutdowns += 1,
            },
        }
        let failure = match result {
            Ok(Ok(shape)) => return Some(shape),
            Ok(Err(failure)) => failure.0,
            Err(panic) => panic,
        };
        total.1.push(Finding { case: self.name, parities: self.parities, point: point.clone(), failure });
        if total.1.len() >= MOST_FAILURES {
            report.stop.store(true, Ordering::Relaxed);
        }
        None
    }
}

fn play_steps(world: &mut World<'_>, steps: &[Step], point: &Point) -> Result<ScheduleShape, Failure> {
    let mut shape = ScheduleShape::default();
    let mut steps = steps.iter().peekable();
    let mut told = 0;
    let (mut replacement, mut rebuild): (Option<Replacement>, Option<Pending<u64>>) = (None, None);
    loop {
        // A drive that has taken over is the member, and the old one no longer belongs to the array.
        let replaces = match &replacement {
            Some(replacement) => replacement::follow(world, replacement)?,
            None => false,
        };
        let event = shape.choices.len();
        let rebuilds = match rebuild.as_ref().and_then(|rebuild| rebuild.borrow_mut().take()) {
            Some(Ok(_)) => {
                shape.rebuilt = Some(event);
                rebuild = None;
                false
            }
            Some(Err(why)) => return Err(Failure(format!("the rebuild failed: {why}"))),
            None => rebuild.is_some(),
        };
        if point.cut_at == Some(event) {
            return Ok(shape);
        }
        let possible = steps.peek().is_some_and(|step| scripted::can_take(world, **step));
        let choices = scripted::choices(world, possible, CHOICES);
        if choices == 0 {
            if steps.peek().is_some() || scripted::is_waiting(world) || replaces || rebuilds {
                return Err(step::hang(world));
            }
            return Ok(shape);
        }
        shape.choices.push(choices);
        let choice = point.schedule.iter().find(|(at, _)| *at == event).map_or(0, |(_, choice)| *choice);
        let taken = scripted::take_choice(world, choice.min(choices - 1), possible, CHOICES)?;
        match steps.next_if(|_| taken.issues) {
            Some(Step::Replace) => replacement = replacement::replace_in_order(world, STRUCK),
            Some(Step::Wear) => {
                scripted::wear_in_order(world, STRUCK);
                shape.worn = Some(event);
            }
            Some(Step::Rebuild) => rebuild = scripted::rebuild_in_order(world),
            Some(step) => scripted::issue_step(world, *step)?,
            None => {}
        }
        let now_told = scripted::told(world);
        if taken.executes || now_told != told {
            shape.cuts.push(shape.choices.len());
        }
        told = now_told;
    }
}

struct Report<'a> {
    total: &'a Mutex<(SearchCounts, Vec<Finding>)>,
    stop: &'a AtomicBool,
}

/// Searches all `cases`, each with up to `delays` deviations, on `jobs` threads. `progress` gets the numbers of
/// schedules that are done and that are known.
pub fn search(
    maker: &(dyn Maker + Sync),
    cases: &[Case],
    delays: &(dyn Fn(&Case) -> usize + Sync),
    jobs: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> (SearchCounts, Vec<Finding>) {
    let (total, stop) = (Mutex::new((SearchCounts::default(), Vec::new())), AtomicBool::new(false));
    let report = Report { total: &total, stop: &stop };
    let mut level = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        level.extend(case.first_cuts(maker, &report).into_iter().map(|first| (index, first, Vec::new())));
    }
    let most = cases.iter().map(delays).max().unwrap_or(0);
    for delay in 0..=most {
        let (next, deeper) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((case, first, schedule)) = level.get(next.fetch_add(1, Ordering::Relaxed)) {
                let found = cases[*case].explore(maker, *first, schedule, &report);
                if delay < delays(&cases[*case]) {
                    let mut deeper = deeper.lock().unwrap_or_else(PoisonError::into_inner);
                    deeper.extend(found.into_iter().map(|schedule| (*case, *first, schedule)));
                }
                progress(next.load(Ordering::Relaxed).min(level.len()), level.len());
            }
        };
        quietly(|| {
            std::thread::scope(|scope| {
                for _ in 1..jobs.max(1) {
                    scope.spawn(work);
                }
                work();
            });
        });
        level = deeper.into_inner().unwrap_or_else(PoisonError::into_inner);
        level.sort();
    }
    let (tried, mut findings) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    findings
        .sort_by_key(|f| (f.parities, f.case, f.point.first_cut, f.point.schedule.clone(), f.point.cut_at));
    (tried, findings)
}

/// The member that is replaced, or has a worn zone.
const STRUCK: usize = 0;
