//! Permanent media damage. A drive counts as sound again once the array has moved the contents of its worn zones to
//! spare zones of the same drive.

use super::{
    assembly,
    command_queue::Bay,
    drives,
    drives::Places,
    ends, health, recovered,
    run_state::RunState,
    subject::SubjectError,
    world::{Failure, World},
};
use emu::ssd::{Cut, Fault};
use engine::{
    array::MemberState,
    raid::{
        error::{ArrayError, NoArray},
        policy::Policy,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeSet;

/// Damages the media of a drive permanently: one block, or a `whole_zone`.
pub(super) fn damage(world: &mut World<'_>, run_state: &mut RunState, bay: Bay, whole_zone: bool) {
    let geometry = world.command_queue.geometry(bay).clone();
    let mut zone = ZoneIndex(world.rng.below(geometry.zones as u64) as u32);
    let mut block = world.rng.below(geometry.zone_capacity_blocks);
    if world.rng.chance(1, 2) {
        // Blocks that were written last matter most: near a write pointer, in the metadata log or among data.
        const BELOW: u64 = 24;
        let zones: Vec<_> =
            (0..geometry.zones).map(|z| world.command_queue.ssd(bay).zones().info(ZoneIndex(z))).collect();
        let begun: Vec<_> = zones.into_iter().filter(|info| info.state.is_active()).collect();
        if !begun.is_empty() {
            let info = begun[world.rng.below(begun.len() as u64) as usize];
            let above = geometry.zrwa.filter(|_| info.zrwa).map_or(0, |zrwa| zrwa.size_blocks);
            let from = info.wp_blocks.saturating_sub(BELOW);
            let to = (info.wp_blocks + above).min(geometry.zone_capacity_blocks);
            (zone, block) = (info.zone, from + world.rng.below((to - from).max(1)));
        }
    }
    let read_only = world.rng.chance(1, 2);
    let fault = match (whole_zone, read_only) {
        (false, _) => Fault::Unreadable(Lba(geometry.start(zone).0 + block)),
        (true, true) => Fault::ReadOnly(zone),
        (true, false) => Fault::Offline(zone),
    };
    world.command_queue.ssd(bay).faults().after(0, fault);
    run_state.damaged.insert(bay);
    match whole_zone {
        true => run_state.worn.entry(bay).or_default().insert(zone.0),
        false => run_state.scarred.insert(bay),
    };
}

/// Makes the part of a zone read-only on more members than there are parities, as if this had happened at the end.
/// All promised data of the zone is read, also after another power cut; if ZRWAs were lost as well, or another part
/// or member in a later power cut, reads may fail, and the status names the zone. No data is invented.
///
/// # Errors
/// A broken promise.
pub(super) fn judge_common_wear(world: &mut World<'_>) -> Result<(), Failure> {
    let (members, parities) = (world.members.len(), world.scenario.parities);
    let is_array = world.maker.notices_others() && !world.maker.is_layered();
    let is_plain = is_array && world.scenario.aggregate == 1 && world.scenario.group_blocks <= 1;
    let is_begun = |zone: &u32| {
        let zone = &world.oracle.zones[*zone as usize];
        zone.change.is_none() && zone.submitted() > 0
    };
    let begun: Vec<u32> = (0..world.oracle.zones.len() as u32).filter(is_begun).collect();
    let bays: Vec<Bay> = world.members.iter().flatten().copied().collect();
    if !is_plain || members == 1 || begun.is_empty() || bays.len() < members {
        return Ok(());
    }
    let zone = *world.rng.pick(&begun);
    let mut worn: Vec<usize> = (0..members).collect();
    world.rng.shuffle(&mut worn);
    let others = worn.split_off(parities + 1 + world.rng.below((members - parities - 1) as u64) as usize);
    let mut places = Vec::new();
    for bay in &bays {
        let (of, count) = (drives::places(world, *bay), world.command_queue.geometry(*bay).zones);
        let Some(place) = (0..count).find(|place| of.zone_at(*place) == Some(zone)) else {
            return Ok(());
        };
        places.push(ZoneIndex(place));
    }
    let (zrwa_lost, later) = (world.rng.chance(1, 4), world.rng.below(4));
    world.trace.note(|| {
        format!("fork: zone {zone} is read-only on members {worn:?}; ZRWAs lost: {zrwa_lost}; then {later}")
    });
    let chunk = world.scenario.chunk_blocks;
    let used_blocks = world.oracle.capacity.div_ceil(chunk * (members - parities) as u64) * chunk;
    let info = |(bay, place): (&Bay, &ZoneIndex)| world.command_queue.ssd(*bay).zones().info(*place);
    let parts: Vec<ZoneInfo> = bays.iter().zip(&places).map(info).collect();
    let are_full = parts.iter().all(|info| info.state == ZoneState::Full);
    let is_any_full = parts.iter().any(|info| info.wp_blocks >= used_blocks);
    for member in &worn {
        let mut ssd = world.command_queue.ssd(bays[*member]);
        match zrwa_lost {
            true => {
                let lost = ssd.wear_out_with_zrwa(places[*member]);
                lost.map_err(|error| Failure(error.to_string()))?;
            }
            false => ssd.faults().after(0, Fault::ReadOnly(places[*member])),
        }
    }
    world.lenient = true;
    for round in 0..3 {
        if round > 0 {
            let hit = others.first().filter(|_| (round, later) == (1, 1)).map(|member| bays[*member]);
            ends::cut_power(world, |bay| Cut { cache_lost: false, zrwa_lost: hit == Some(bay) })?;
        }
        let mut absent = None;
        match (round, later) {
            (1, 2) => {
                world.command_queue.ssd(bays[worn[0]]).faults().after(0, Fault::Offline(places[worn[0]]))
            }
            (1, 3) => absent = Some(world.rng.below(members as u64) as usize),
            _ => {}
        }
        let promised = world.oracle.promised(zone);
        match assembly::assemble_from(world, |member| absent != Some(member))? {
            Ok(()) => {}
            // Members that were out before.
            Err(SubjectError::Array(ArrayError::Drives(NoArray::TooFew { .. })))
                if round == 0 || absent.is_some() =>
            {
                return Ok(());
            }
            Err(why) => return Err(Failure(format!("the array does not assemble: {why}"))),
        }
        let report = recovered::take_report(world, |of| of == zone)?;
        let has_sound = others.iter().any(|m| world.member_state(*m) == Some(MemberState::Active));
        // An absent member comes back to a zone that has not been written without it.
        let is_whole = !zrwa_lost && (round == 0 || later == 0 || (round, later) == (2, 3) && !is_any_full);
        let must_be_read = match is_any_full {
            false => world.scenario.policy != Policy::InPlace,
            true => are_full && has_sound,
        };
        let is_offline = report[zone as usize].state == ZoneState::Offline;
        if is_offline && promised > 0 && is_whole && must_be_read {
            let listed = world.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
            let why = listed.into_iter().find(|(listed, _)| *listed == zone).map(|(_, why)| why);
            return Err(Failure(format!("zone {zone} is offline, of {promised} blocks: {why:?}")));
        }
        let failed = recovered::verify_where(world, &report, |of| of == zone)?;
        if is_whole && !is_offline && failed.contains(&zone) {
            return Err(Failure(format!("some of {promised} blocks of zone {zone} cannot be read")));
        }
        health::judge_readable(world, &failed)?;
        world.counts.beyond += 1;
    }
    Ok(())
}

pub(super) fn is_damaged(world: &World<'_>, run_state: &RunState, member: usize) -> bool {
    world.drives_of(member).any(|bay| run_state.damaged.contains(&bay))
}

/// Whether a damaged drive has spare zones for all its worn zones.
pub(super) fn can_heal(world: &World<'_>, run_state: &RunState, bay: Bay) -> bool {
    let (worn, places) = (worn(world, run_state, bay), drives::places(world, bay));
    let all = 0..world.command_queue.geometry(bay).zones / world.scenario.aggregate;
    let spare = all.filter(|place| !worn.contains(place) && !holds(world, &places, *place));
    let lost = worn.iter().filter(|place| holds(world, &places, **place));
    let is_log = |place: &u32| places.zone_at(*place).is_none();
    !worn.is_empty() && !worn.iter().any(is_log) && lost.count() <= spare.count()
}

/// Clears the drives that hold nothing in worn zones any more.
pub(super) fn note_healed(world: &mut World<'_>, run_state: &mut RunState) {
    for member in 0..world.members.len() {
        let whole = world.member_state(member) == Some(MemberState::Active);
        let Some(bay) = world.members[member].filter(|_| whole && world.replacement_drive.is_none()) else {
            continue;
        };
        let (worn, places) = (worn(world, run_state, bay), drives::places(world, bay));
        let is_healed = !worn.is_empty() && !worn.iter().any(|place| holds(world, &places, *place));
        if is_healed && run_state.damaged.remove(&bay) {
            world.trace.note(|| format!("drive{bay} has nothing in zones that have worn out"));
            world.counts.healed += 1;
        }
    }
}

/// The worn zones of a drive, in units of the array's zones; empty if the drive has other damage as well.
fn worn(world: &World<'_>, run_state: &RunState, bay: Bay) -> BTreeSet<u32> {
    let worn = run_state.worn.get(&bay).filter(|_| !run_state.scarred.contains(&bay));
    worn.into_iter().flatten().map(|zone| zone / world.scenario.aggregate).collect()
}

/// Whether a zone of a drive, given by its place, holds data or metadata of the array, or may do so.
fn holds(world: &World<'_>, places: &Places, place: u32) -> bool {
    let shown = world.oracle.zones.len() as u32;
    let zones = world.subject.as_ref().map_or(shown, |subject| subject.array_zones());
    places.zone_at(place).is_none_or(|zone| zone < zones)
}
