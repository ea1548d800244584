//! Silent faults of a drive: a flipped bit, or a write that is lost, misdirected, or overwritten by an older one.
//!
//! They are a separate mode (`sim run --silent`), with one fault in each life. In an array with checksums no wrong data
//! may be read, unless the checksum of the block was in memory alone (docs/GUARANTEES.md). In one without, data that a
//! drive returns without an error is trusted. All other results are counted, not judged, except for panics.

use super::{
    command_queue::Bay,
    drives::META_ZONES,
    run_state::{OldBlock, RunState},
    world::World,
};
use engine::{
    buf::BLOCK,
    raid::policy::Policy,
    zone::{Lba, ZoneIndex, ZoneState},
};

/// A silent fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silent {
    Flipped,
    Lost,
    Misdirected,
    Stale,
}

/// The result of a life with a silent fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SilentResult {
    /// All promises were kept.
    Intact,
    /// Wrong data or zeros were read.
    WrongData,
    /// The array refused to assemble.
    Refused,
    /// Another promise was broken: a zone was cut back, a member went out, a rebuild failed.
    OtherPromise,
    Panic,
}

impl SilentResult {
    pub const ALL: [SilentResult; 5] = [
        SilentResult::Intact,
        SilentResult::WrongData,
        SilentResult::Refused,
        SilentResult::OtherPromise,
        SilentResult::Panic,
    ];

    /// The class of the failure of a life.
    pub fn of(failure: Option<&str>) -> SilentResult {
        match failure {
            None => SilentResult::Intact,
            Some(text) if text.starts_with("panic") => SilentResult::Panic,
            Some(text) if text.contains("should hold") => SilentResult::WrongData,
            Some(text) if text.contains("does not assemble") => SilentResult::Refused,
            Some(_) => SilentResult::OtherPromise,
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            SilentResult::Intact => "intact",
            SilentResult::WrongData => "wrong_data",
            SilentResult::Refused => "refused",
            SilentResult::OtherPromise => "other_promise",
            SilentResult::Panic => "panic",
        }
    }
}

/// Draws a written block of a member, usually near the end of a zone.
fn draw_written(world: &mut World<'_>, bay: Bay) -> Option<Lba> {
    let geometry = world.command_queue.geometry(bay).clone();
    for _ in 0..20 {
        let zone = ZoneIndex(world.rng.below(geometry.zones as u64) as u32);
        let end =
            world.command_queue.ssd(bay).zones().info(zone).wp_blocks.min(geometry.zone_capacity_blocks);
        let window = geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks);
        let to = (end + window).min(geometry.zone_capacity_blocks);
        let from = if world.rng.chance(1, 2) { end.saturating_sub(24) } else { 0 };
        if from < to {
            let lba = Lba(geometry.start(zone).0 + from + world.rng.below(to - from));
            if matches!(world.command_queue.ssd(bay).stored(lba), Ok(Some(_))) {
                return Some(lba);
            }
        }
    }
    None
}

/// Whether the checksum of a block is in memory alone, since the checksum block of its group is not written yet.
fn is_in_last_group(world: &World<'_>, bay: Bay, lba: Lba) -> bool {
    let scenario = &world.scenario;
    let ((zone, place), bundle) = {
        let geometry = world.command_queue.geometry(bay);
        (geometry.locate(lba), scenario.bundle(&geometry))
    };
    let info = world.command_queue.ssd(bay).zones().info(zone);
    let Some((data, sums)) = bundle.filter(|_| zone.0 >= META_ZONES * scenario.aggregate) else {
        return false;
    };
    // An empty zone may have blocks in a ZRWA.
    let is_open = info.state.is_active() || scenario.policy == Policy::Zrwa && info.state == ZoneState::Empty;
    let bundle = place / (data + sums) * (data + sums);
    let sum_place = (bundle + data).min(info.capacity_blocks.saturating_sub(1));
    is_open && (scenario.aggregate > 1 || info.wp_blocks <= sum_place)
}

/// Injects one silent fault in a life.
pub(super) fn fail_silently(world: &mut World<'_>, run_state: &mut RunState) {
    let rate = world.scenario.misfortune.silent;
    if rate == 0 || run_state.failed_silently || !world.rng.chance(rate, 100_000) {
        return;
    }
    let member = world.rng.below(world.members.len() as u64) as usize;
    let Some(bay) = world.members[member] else { return };
    let kind = *world.rng.pick(&[Silent::Flipped, Silent::Lost, Silent::Misdirected, Silent::Stale]);
    let (Some(lba), Some(other)) = (draw_written(world, bay), draw_written(world, bay)) else { return };
    let stored = |lba: Lba| world.command_queue.ssd(bay).stored(lba).ok().flatten();
    let (Some(bytes), Some(theirs)) = (stored(lba), stored(other)) else { return };
    let old = run_state.old.as_ref().filter(|_| kind == Silent::Stale).map(|old| (old.bay, old.lba));
    let others = (kind == Silent::Misdirected).then_some((bay, other));
    let concerned = [Some(old.unwrap_or((bay, lba))), others];
    let in_last_group = concerned.into_iter().flatten().any(|(bay, lba)| is_in_last_group(world, bay, lba));
    let (bay, lba) = old.unwrap_or((bay, lba));
    let left = match kind {
        Silent::Flipped => {
            let (mut flipped, bit) = (bytes, world.rng.below(BLOCK as u64 * 8) as usize);
            flipped[bit / 8] ^= 1 << (bit % 8);
            world.command_queue.ssd(bay).forge(lba, Some(&flipped))
        }
        Silent::Lost => world.command_queue.ssd(bay).forge(lba, None),
        Silent::Misdirected => {
            let away = world.command_queue.ssd(bay).forge(other, None);
            away.and_then(|()| world.command_queue.ssd(bay).forge(lba, Some(&theirs)))
        }
        Silent::Stale => match run_state.old.take() {
            Some(old) => world.command_queue.ssd(old.bay).forge(old.lba, Some(&old.bytes)),
            None => {
                // The old contents come back later.
                world.trace.note(|| format!("drive{bay} remembers block {}", lba.0));
                run_state.old = Some(OldBlock { bay, lba, bytes });
                return;
            }
        },
    };
    run_state.failed_silently = left.is_ok();
    world.trace.note(|| format!("drive{bay}: {kind:?} write of block {}", lba.0));
    world.counts.faults += 1;
    world.counts.in_last_groups += u64::from(in_last_group);
    *match kind {
        Silent::Flipped => &mut world.counts.bit_flips,
        Silent::Lost => &mut world.counts.lost_writes,
        Silent::Misdirected => &mut world.counts.misdirected,
        Silent::Stale => &mut world.counts.stale,
    } += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_error_outcome_is_classified_by_message() {
        let wrong = "zone 1 block 3 should hold the data of write 7, but holds zeros";
        for (failure, came) in [
            (None, SilentResult::Intact),
            (Some(wrong), SilentResult::WrongData),
            (Some("the array does not assemble: too few"), SilentResult::Refused),
            (Some("zone 3: durable 4"), SilentResult::OtherPromise),
            (Some("panic: index out of bounds; should hold"), SilentResult::Panic),
        ] {
            assert_eq!(SilentResult::of(failure), came);
        }
    }
}
