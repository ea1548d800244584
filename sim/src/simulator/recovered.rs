//! Checks of a recovered array: its report and its data, compared with the promises.

use super::{
    assembly,
    fault_budget::without,
    load,
    oracle::Change,
    step,
    world::{Failure, World},
};
use engine::{
    array::MemberState,
    buf::{BLOCK, Buf},
    device::Command,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeSet;

/// Checks the report of a recovery against the promises.
///
/// # Errors
/// The broken promise, and the reasons of offline zones.
pub(super) fn recovered(world: &mut World<'_>, report: &[ZoneInfo]) -> Result<(), Failure> {
    see(world, report);
    let offline = world.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
    world.oracle.recovered(report).map_err(|what| match offline[..] {
        [] => Failure(what),
        _ => Failure(format!("{what}; offline: {offline:?}")),
    })?;
    report.iter().try_for_each(|info| check_note(world, info))
}

/// Checks the note of a recovered zone.
fn check_note(world: &World<'_>, info: &ZoneInfo) -> Result<(), Failure> {
    let note = world.subject.as_ref().and_then(|subject| subject.note(info.zone));
    world.oracle.check_note(info, note.as_deref()).map_err(Failure)
}

/// Records the result of a recovery for coverage, before the oracle takes it over.
fn see(world: &mut World<'_>, report: &[ZoneInfo]) {
    let states = world.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
    world.coverage.see(&world.scenario, &states, &world.oracle, report);
}

/// Counts a judged recovery, with the present states of the members.
pub(super) fn count_judgement(world: &mut World<'_>) {
    let members = world.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
    let out = members.iter().filter(|(state, _)| *state == MemberState::Out).count();
    world.counts.judgements += 1;
    world.counts.double_losses += u64::from(out > 1);
}

/// The subject's report of all zones.
pub(super) fn report(world: &mut World<'_>) -> Result<Vec<ZoneInfo>, Failure> {
    let count = world.oracle.zones.len() as u32;
    let done = step::ask(world, vec![Command::Report { first: ZoneIndex(0), count }])?;
    let Some(done) = done.into_iter().next() else { return Err(Failure("no report".into())) };
    done.result.map_err(|error| Failure(format!("report: {error}")))?;
    Ok(done.zones)
}

/// Reads every zone up to its tail, and a few blocks beyond.
pub(super) fn verify(world: &mut World<'_>) -> Result<(), Failure> {
    const BEYOND: u64 = 4;
    let Some(limits) = world.limits.clone() else { return Ok(()) };
    let most = limits.max_transfer_blocks as u64;
    for zone in 0..limits.zones {
        let end = world.oracle.zones[zone as usize].submitted();
        let end = (end + BEYOND).min(limits.zone_capacity_blocks);
        let (mut points, mut commands) = (Vec::new(), Vec::new());
        let mut block = 0;
        while block < end {
            let blocks = most.min(end - block);
            points.push(world.oracle.read(zone, block));
            let lba = Lba(limits.start(ZoneIndex(zone)).0 + block);
            commands.push(Command::read(lba, world.pool.take(blocks).freeze()));
            block += blocks;
        }
        for (point, done) in points.into_iter().zip(step::ask(world, commands)?) {
            done.result.map_err(|error| {
                Failure(format!("reading zone {zone} from block {} on: {error}", point.block))
            })?;
            world.oracle.check_read(point, &done.data)?;
            world.pool.give(done.data);
        }
    }
    Ok(())
}

/// Compares the report and the data of the array with its promises.
pub(super) fn check_recovery(world: &mut World<'_>) -> Result<(), Failure> {
    let report = report(world)?;
    recovered(world, &report)?;
    count_judgement(world);
    verify(world)
}

/// Checks the zone report against the promises. A zone for which `may` holds is left unchanged in the oracle if it
/// is offline or read-only.
pub(super) fn take_report(
    world: &mut World<'_>,
    may: impl Fn(u32) -> bool,
) -> Result<Vec<ZoneInfo>, Failure> {
    let report = report(world)?;
    let members = world.subject.as_ref().map(|subject| subject.members());
    world.trace.note(|| format!("assembled; {}; {members:?}", brief(&report)));
    see(world, &report);
    let listed = world.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
    for info in &report {
        let zone = info.zone.0;
        let reason = listed.iter().find(|(listed, _)| *listed == zone).map(|(_, reason)| reason);
        let offline = info.state == ZoneState::Offline;
        // The status names zones of the array, which are not those of a layer on it.
        if offline != reason.is_some() && !world.maker.is_layered() {
            return Err(Failure(format!("zone {zone} is {:?}, but the status says {reason:?}", info.state)));
        }
        // The zone lacks parts, but it never held promised data.
        let state = &world.oracle.zones[zone as usize];
        let finished = state.finished || state.change == Some(Change::Finish);
        let may = |zone: u32| may(zone) || !offline && finished && state.durable.min(state.acknowledged) == 0;
        if offline || info.state == ZoneState::ReadOnly {
            world.trace.note(|| format!("zone {zone} is {:?}: {reason:?}", info.state));
            if !may(zone) {
                return Err(Failure(format!("zone {zone} is {:?}: {reason:?}", info.state)));
            }
        } else {
            world.oracle.recovered_in(info)?;
            check_note(world, info)?;
        }
    }
    Ok(report)
}

/// As [`verify`], but reads may fail in zones for which `may` holds; returns the zones with failed reads.
pub(super) fn verify_where(
    world: &mut World<'_>,
    report: &[ZoneInfo],
    may: impl Fn(u32) -> bool,
) -> Result<BTreeSet<u32>, Failure> {
    const BEYOND: u64 = 4;
    let Some(limits) = world.limits.clone() else { return Ok(BTreeSet::new()) };
    let mut failed = BTreeSet::new();
    for info in report {
        let zone = info.zone.0;
        let end = (world.oracle.zones[zone as usize].submitted() + BEYOND).min(world.oracle.capacity);
        let sure = !matches!(info.state, ZoneState::Offline | ZoneState::ReadOnly);
        // Reads above the write pointer of a read-only zone fail by design.
        let readable = match info.state {
            ZoneState::ReadOnly => info.wp_blocks.max(world.oracle.promised(zone)),
            _ => end,
        };
        let reads = |from: u64| Command::read(Lba(limits.start(info.zone).0 + from), Buf::zeroed(BLOCK));
        let points: Vec<_> = (0..end).map(|block| world.oracle.read_sure(zone, block, sure)).collect();
        for (point, done) in points.into_iter().zip(step::ask(world, (0..end).map(reads).collect())?) {
            match done.result {
                Ok(()) if info.state == ZoneState::Offline => {
                    return Err(Failure(format!("zone {zone} is offline, but can be read")));
                }
                Ok(()) => world.oracle.check_read(point, &done.data)?,
                Err(_) if may(zone) => {
                    world.oracle.zones[zone as usize].end();
                    if point.block < readable {
                        failed.insert(zone);
                    }
                }
                Err(error) => {
                    return Err(Failure(format!("reading block {} of zone {zone}: {error}", point.block)));
                }
            }
        }
    }
    Ok(failed)
}

/// Recovers without `lost` and checks everything against the promises; only `lost` members and suspects may be
/// inactive.
pub(super) fn judge(world: &mut World<'_>, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
    world.trace.note(|| format!("fork: assembly {}", without(lost)));
    assembly::assemble_without(world, lost)?;
    check_recovery(world)?;
    world.hear(|member| lost.contains(&member) || suspects.contains(&member))?;
    match world.unsound_members().find(|member| !lost.contains(member) && !suspects.contains(member)) {
        // Power cuts may have displaced more blocks than the member's metadata log has room for.
        Some(_) if world.scenario.cramped && lost.len() < world.scenario.parities => Ok(()),
        Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
        None => Ok(()),
    }
}

/// Submits a few writes with FUA behind the recovered data; some may still be in flight afterwards.
pub(super) fn write_on(world: &mut World<'_>) -> Result<(), Failure> {
    let zones = (0..world.oracle.zones.len() as u32).filter(|zone| world.oracle.zones[*zone as usize].active);
    let mut begun: Vec<u32> = zones.collect();
    world.rng.shuffle(&mut begun);
    for zone in begun.into_iter().take(2) {
        for _ in 0..1 + world.rng.below(2) {
            let left = world.oracle.capacity - world.oracle.zones[zone as usize].submitted();
            let blocks = 1 + world.rng.below(2 * world.scenario.chunk_blocks);
            if left > 0 {
                load::write(world, zone, blocks.min(left), true, false);
            }
        }
    }
    match world.rng.chance(1, 2) {
        true => step::drain_in_order(world),
        false => {
            let rounds = world.rng.below(12);
            (0..rounds).try_for_each(|_| step::advance_in_order(world))
        }
    }
}

/// The states and write pointers of zones, in a line of the trace.
pub(super) fn brief(report: &[ZoneInfo]) -> String {
    let zones: Vec<String> = report.iter().map(|z| format!("{:?} {}", z.state, z.wp_blocks)).collect();
    zones.join(", ")
}
