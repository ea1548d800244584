//! Table 1 of the ZRAID paper: losses of three consistency policies in a power cut (§6.6).
//!
//! As there: five members with the ZRWA of the ZN540 and 64 KiB chunks; FUA writes of 4 to 512 KiB, in multiples of 4
//! KiB, one after the other; the power is cut at any moment, and a member is lost. A run fails if the write pointer
//! after the recovery is below the end of the last acknowledged write; the difference is lost. Not as there: zones are
//! short, the first write brings the tail to a random place, time is counted in events instead of seconds, and the data
//! is read back in one run of sixteen.

use super::{
    assembly, create, ends, load, recovered,
    runner::{catch_panics, quietly},
    scenario::{Load, Misfortune, Pace, Scenario},
    scripted, step,
    subject::Maker,
    world::{Failure, TraceMode, World},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Model},
};
use engine::{buf::BLOCK, device::Command, raid::policy::Policy, zone::ZoneIndex};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

const MEMBERS: usize = 5;
const CHUNK_BLOCKS: u64 = 16;
const MOST_WRITE_BLOCKS: u64 = 128;
/// Rows of a zone; more than the writes of a run can fill.
const ROWS: u64 = 128;
/// Events before the cut, at most: some ten writes.
const MOST_EVENTS: u64 = 1000;
const CHECKED_IN: u64 = 16;

/// Results of one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    pub runs: u64,
    /// Runs in which the write pointer went back.
    pub failures: u64,
    /// Bytes between the last acknowledged end and the write pointer, in all failures.
    pub lost_bytes: u64,
}

impl Row {
    /// The share of runs that failed, from 0 to 1.
    pub fn failure_rate(&self) -> f64 {
        if self.runs == 0 { 0.0 } else { self.failures as f64 / self.runs as f64 }
    }

    /// Average bytes lost per failure.
    pub fn average_loss_bytes(&self) -> f64 {
        if self.failures == 0 { 0.0 } else { self.lost_bytes as f64 / self.failures as f64 }
    }
}

/// Runs the experiment for one policy: `runs` runs on `jobs` threads.
///
/// # Errors
/// A promise that no policy may break: bytes below the write pointer that do not read back, an
/// array that does not assemble, a panic.
pub fn experiment(
    maker: &(dyn Maker + Sync),
    runs: u64,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> Result<Row, Failure> {
    let next = AtomicU64::new(0);
    let total: Mutex<Result<Row, Failure>> = Mutex::new(Ok(Row::default()));
    let work = || {
        let mut part = Row::default();
        let mut failure = None;
        while failure.is_none() {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                break;
            }
            match catch_panics(|| one_run(maker, run)) {
                Ok(Ok(lost_blocks)) => {
                    part.runs += 1;
                    part.failures += u64::from(lost_blocks > 0);
                    part.lost_bytes += lost_blocks * BLOCK as u64;
                }
                Ok(Err(what)) => failure = Some(Failure(format!("run {run}: {what}"))),
                Err(panic) => failure = Some(Failure(format!("run {run}: {panic}"))),
            }
            finished();
        }
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = failure {
            *total = Err(failure);
        }
        if let Ok(total) = &mut *total {
            total.runs += part.runs;
            total.failures += part.failures;
            total.lost_bytes += part.lost_bytes;
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
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn scenario() -> Scenario {
    let mut drive = Model::zn540().geometry;
    drive.zones = 4;
    drive.zone_capacity_blocks = ROWS * CHUNK_BLOCKS;
    drive.zone_size_blocks = ROWS * CHUNK_BLOCKS;
    let pace = Pace {
        execute: 1,
        deliver: 1,
        step: 1,
        issue: 1,
        in_order: false,
        spike_permille: 0,
        spike_events: 0,
        slow_per_myriad: 0,
    };
    Scenario {
        policy: Policy::Zrwa,
        join: true,
        members: MEMBERS,
        parities: 1,
        drive,
        mixed: false,
        cramped: false,
        finish_drops: false,
        fua_alone: false,
        sectors_tear: false,
        spare_zones: 0,
        compression: None,
        unwritten_fails: false,
        group_blocks: 0,
        checksum_group_blocks: 0,
        chunk_blocks: CHUNK_BLOCKS,
        aggregate: 1,
        zone_size_blocks: None,
        load: Load { queue_depth: 1, ..Load::default() },
        pace,
        misfortune: Misfortune::default(),
        rounds: 0,
        work_events: 0,
        forks: 0,
    }
}

/// One run; returns the number of acknowledged blocks that were lost.
fn one_run(maker: &dyn Maker, run: u64) -> Result<u64, Failure> {
    let mut rng = Rng::new(run);
    let draws = rng.fork();
    let mut world = World::new(maker, scenario(), draws, TraceMode::Off);
    if !create::create_in_order(&mut world)? {
        return Err(Failure(format!("not created: {}", world.refusal().unwrap_or_default())));
    }
    load::write(&mut world, 0, 1 + rng.below(MOST_WRITE_BLOCKS), true, false);
    step::drain_in_order(&mut world)?;
    for _ in 0..rng.below(MOST_EVENTS) {
        if !scripted::is_waiting(&world) {
            let left = world.oracle.capacity - world.oracle.zones[0].submitted();
            if left < MOST_WRITE_BLOCKS {
                break;
            }
            load::write(&mut world, 0, 1 + rng.below(MOST_WRITE_BLOCKS), true, false);
            world.ready = true;
        }
        step::event(&mut world, false, true)?;
    }
    let acknowledged = world.oracle.zones[0].acknowledged;
    ends::cut_power(&mut world, |_| Cut::default())?;
    // A policy that loses acknowledged data breaks no promise here: the loss is measured.
    world.oracle.zones[0].durable = 0;
    assembly::assemble_without(&mut world, &[rng.below(MEMBERS as u64) as usize])?;
    let done = step::ask(&mut world, vec![Command::Report { first: ZoneIndex(0), count: 1 }])?;
    let wp = done.first().and_then(|done| done.zones.first()).map_or(0, |zone| zone.wp_blocks);
    if run.is_multiple_of(CHECKED_IN) {
        recovered::check_recovery(&mut world)?;
    }
    Ok(acknowledged.saturating_sub(wp))
}
