//! Judges the contents of the drives without the array: by its layout and with code of its own.
//!
//! When all members are active and no command is in flight, each complete stripe has its parity, the state of each
//! member's part matches that of its zone, and the metadata logs of all members agree and hold nothing damaged.

use super::{
    command_queue::Bay,
    stamp::is_zero,
    step,
    world::{Failure, World},
};
use engine::{
    adapt::append::{
        judge::{AppendRecovery, judge},
        mark::{BlockContent, MarkOwner},
    },
    array::MemberState,
    buf::BLOCK,
    format::{
        Origin, Uuid,
        codec::RecordError,
        record::{Header, RELOCATED, Record},
        superblock::Superblock,
    },
    raid::{
        geometry::{Layout, Role},
        policy::{Policy, log},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Zones of a member that come before its part of the first logical zone.
pub(super) const META_ZONES: u32 = 2;

/// Contents of a metadata log.
struct Log {
    generation: u64,
    superblock: Superblock,
    /// Rows with blocks stored elsewhere: zone, and blocks from its start.
    displaced: Vec<(u32, Range<u64>)>,
    places: Places,
}

/// The zones of a member that hold its parts.
#[derive(Default)]
pub(super) struct Places {
    /// Zones with a part in a spare zone, and that spare zone.
    moved: BTreeMap<u32, u32>,
}

impl Places {
    fn of(&self, zone: u32) -> u32 {
        self.moved.get(&zone).copied().unwrap_or(zone + META_ZONES)
    }

    /// The zone that has its part in place `place` of the drive, or a number that is no zone of the array if none has.
    /// `None` for the zones of the metadata log.
    pub fn zone_at(&self, place: u32) -> Option<u32> {
        let own = place.checked_sub(META_ZONES)?;
        let here = self.moved.iter().find(|(_, other)| **other == place).map(|(zone, _)| *zone);
        Some(here.unwrap_or(if self.moved.contains_key(&own) { u32::MAX } else { own }))
    }
}

/// Judges the contents of the drives. Does nothing unless all members are active; the zones have to be as the last
/// recovery has reported them.
///
/// # Errors
/// The first inconsistency, with its drive.
pub(super) fn judge_drives(world: &mut World<'_>) -> Result<(), Failure> {
    let Some(subject) = world.subject.clone() else { return Ok(()) };
    let Some(layout) = subject.layout() else { return Ok(()) };
    if subject.members().iter().any(|(state, _)| *state != MemberState::Active) {
        return Ok(());
    }
    settle(world)?;
    let bays: Vec<Bay> = world.members.iter().filter_map(|bay| *bay).collect();
    let mut logs: Vec<Log> = Vec::new();
    for (member, bay) in bays.iter().enumerate() {
        let log = log_of(world, *bay, member).map_err(|what| Failure(format!("drive{bay}: {what}")))?;
        if let Some(first) = logs.first()
            && first.superblock != log.superblock
        {
            let (first, own) = (&first.superblock, &log.superblock);
            return Err(Failure(format!("drive{bay} says {own:?}, but another member {first:?}")));
        }
        logs.push(log);
    }
    let Some(superblock) = logs.first().map(|log| &log.superblock) else { return Ok(()) };
    let aggregate = superblock.aggregate;
    for zone in 0..world.oracle.zones.len() as u32 {
        let of_zone = logs.iter().flat_map(|log| &log.displaced).filter(|(z, _)| *z == zone);
        let displaced: BTreeSet<u64> =
            of_zone.flat_map(|(_, blocks)| blocks.clone()).map(|b| b / layout.chunk_blocks).collect();
        let places: Vec<(Bay, u32)> =
            bays.iter().zip(&logs).map(|(bay, log)| (*bay, log.places.of(zone))).collect();
        judge_states(world, &layout, &places, aggregate, zone)?;
        let uuids: Vec<_> = superblock.members.iter().map(|member| member.uuid).collect();
        let found = places.iter().zip(uuids).map(|((bay, place), uuid)| found(world, *bay, *place, uuid));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        judge_parity(world, &layout, &places, aggregate, (zone, &found), &displaced)?;
    }
    Ok(())
}

/// Waits until the array's background commands have completed.
fn settle(world: &mut World<'_>) -> Result<(), Failure> {
    loop {
        step::run_tasks(world)?;
        if world.command_queue.queued() == 0 && world.command_queue.executed() == 0 {
            return Ok(());
        }
        world.command_queue.run_all();
    }
}

/// Checks that the state of each member's part of a zone matches that of the zone.
fn judge_states(
    world: &World<'_>,
    layout: &Layout,
    places: &[(Bay, u32)],
    aggregate: u32,
    zone: u32,
) -> Result<(), Failure> {
    let state = &world.oracle.zones[zone as usize];
    let (tail, full) = (state.submitted(), world.oracle.is_full(zone));
    for (member, (bay, place)) in places.iter().enumerate() {
        let parts = parts(world, *bay, aggregate, *place);
        let right = if full {
            parts.iter().all(|part| part.state == ZoneState::Full)
        } else if tail == 0 && !state.active {
            parts.iter().all(|part| part.state == ZoneState::Empty)
        } else {
            let wp: u64 = parts.iter().map(|part| part.wp_blocks.min(part.capacity_blocks)).sum();
            let sound = |p: &ZoneInfo| !matches!(p.state, ZoneState::ReadOnly | ZoneState::Offline);
            parts.iter().all(sound)
                && match layout.policy {
                    Policy::Log => wp >= log::position(layout, member, tail),
                    Policy::Zrwa | Policy::InPlace => {
                        let row = (tail / layout.stripe_blocks()).saturating_sub(layout.distance);
                        // A small zone that a shutdown has emptied is opened by the next write to the aggregate.
                        let small = |p: &ZoneInfo| aggregate > 1 && p.state == ZoneState::Empty;
                        let writable = |p: &ZoneInfo| p.zrwa || p.state == ZoneState::Full || small(p);
                        wp >= row * layout.chunk_blocks && parts.iter().all(writable)
                    }
                }
        };
        if !right {
            let what = format!("drive{bay} has {parts:?} for member {member}'s part of zone {zone}");
            let tail = if full { "is full".into() } else { format!("ends at block {tail}") };
            return Err(Failure(format!("{what}, which {tail}")));
        }
    }
    Ok(())
}

/// Checks the parities of complete stripes, except rows with `displaced` blocks. `found` has by member the places
/// of the zone's blocks, for zones written by appends.
fn judge_parity(
    world: &World<'_>,
    layout: &Layout,
    places: &[(Bay, u32)],
    aggregate: u32,
    (zone, found): (u32, &[Option<AppendRecovery>]),
    displaced: &BTreeSet<u64>,
) -> Result<(), Failure> {
    // Writes that were overtaken by a finish may be lost.
    let promised = &world.oracle.zones[zone as usize];
    let tail = if promised.finished { promised.acknowledged } else { promised.submitted() };
    let complete = tail / layout.stripe_blocks();
    if complete == 0 {
        return Ok(());
    }
    for row in (0..complete).filter(|row| !displaced.contains(row)) {
        for block in row * layout.chunk_blocks..(row + 1) * layout.chunk_blocks {
            let mut data = vec![None; layout.data_chunks() as usize];
            let mut parities = Vec::new();
            for (member, (bay, part)) in places.iter().enumerate() {
                let place = match &found[member] {
                    Some(found) => found.places.get(&block).copied().unwrap_or(u64::MAX),
                    None => {
                        let bundle = world.scenario.bundle(&world.command_queue.geometry(*bay));
                        block + bundle.map_or(0, |(data, sums)| block / data * sums)
                    }
                };
                let bytes = read_block(world, *bay, aggregate, *part, place)?;
                match layout.role(member, row) {
                    Role::Data(index) => data[index as usize] = bytes,
                    Role::Parity(which) => parities.push((which, bytes)),
                }
            }
            let wrong =
                |(which, parity): &&(usize, Option<Vec<u8>>)| !is_parity(*which, parity.as_deref(), &data);
            if let Some((which, _)) = parities.iter().find(wrong) {
                let place = format!("zone {zone}, stripe {row}, block {block} of the members");
                let name = ["P", "Q"][*which];
                return Err(Failure(format!("{place}: the parity is not that of the data ({name})")));
            }
        }
    }
    Ok(())
}

/// The small zones of a drive that form one aggregated zone.
fn parts(world: &World<'_>, bay: Bay, aggregate: u32, zone: u32) -> Vec<ZoneInfo> {
    let ssd = world.command_queue.ssd(bay);
    (0..aggregate).map(|part| ssd.zones().info(ZoneIndex(zone * aggregate + part))).collect()
}

/// The places of the blocks of a member's zone that was written by appends, compared with the places that the drive
/// has reported.
fn found(world: &World<'_>, bay: Bay, zone: u32, member: Uuid) -> Result<Option<AppendRecovery>, Failure> {
    if world.scenario.group_blocks <= 1 {
        return Ok(None);
    }
    let places = 0..world.command_queue.geometry(bay).zone_capacity_blocks;
    let seen = places.map(|place| {
        let bytes = read_block(world, bay, 1, zone, place)?;
        let owner = MarkOwner { member: member.0, zone };
        Ok((place, bytes.map_or(BlockContent::Nothing, |bytes| BlockContent::read(&bytes[BLOCK..], &owner))))
    });
    let found = judge(0, &seen.collect::<Result<Vec<_>, Failure>>()?);
    let landed = world.command_queue.landed(bay);
    for (block, place) in &found.places {
        let told = landed.place(ZoneIndex(zone), *block);
        if let Some(told) = told.filter(|told| told != place) {
            let what = format!("drive{bay}, zone {zone}: block {block} is looked for in place {place}");
            return Err(Failure(format!("{what}, and has landed in {told}")));
        }
    }
    Ok(Some(found))
}

/// A block of a zone, with its metadata; `None` if it is unwritten.
fn read_block(
    world: &World<'_>,
    bay: Bay,
    aggregate: u32,
    zone: u32,
    block: u64,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut ssd = world.command_queue.ssd(bay);
    let unit = ssd.geometry().zrwa.filter(|_| aggregate > 1).map_or(u64::MAX, |zrwa| zrwa.size_blocks);
    let (units, parts) = (block / unit, aggregate as u64);
    let part = ZoneIndex(zone * aggregate + (units % parts) as u32);
    let offset = if aggregate > 1 { units / parts * unit + block % unit } else { block };
    let geometry = ssd.geometry();
    if offset >= geometry.zone_capacity_blocks {
        return Ok(None);
    }
    let lba = Lba(geometry.start(part).0 + offset);
    ssd.stored(lba).map_err(|error| Failure(format!("drive{bay}: {error}")))
}

/// Whether a part of an array's zone is empty on its drive, which nevertheless holds written blocks, all of them zeros:
/// with a member missing, an array may have to take them for lost (GUARANTEES.md).
pub(super) fn has_zeros_in_empty_part(world: &World<'_>, zone: u32) -> Result<bool, Failure> {
    let aggregate = world.scenario.aggregate;
    for bay in world.members.iter().flatten().copied() {
        let place = places(world, bay).of(zone);
        if parts(world, bay, aggregate, place).iter().any(|info| info.state != ZoneState::Empty) {
            continue;
        }
        let (mut stored, blocks) = (Vec::new(), world.command_queue.geometry(bay).zone_capacity_blocks);
        for block in 0..blocks * aggregate as u64 {
            stored.extend(read_block(world, bay, aggregate, place, block)?);
        }
        if !stored.is_empty() && stored.iter().all(|block| is_zero(&block[..BLOCK])) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The places of the parts of the member on this drive, by its metadata log.
pub(super) fn places(world: &World<'_>, bay: Bay) -> Places {
    let zones = (0..world.command_queue.geometry(bay).zones)
        .map(|zone| world.command_queue.ssd(bay).zones().info(ZoneIndex(zone)));
    let member = world.members.iter().position(|member| *member == Some(bay));
    // Parts move only if a zone is worn.
    let member = member.filter(|_| zones.into_iter().any(|info| is_worn(info.state)));
    member.and_then(|member| log_of(world, bay, member).ok()).map(|log| log.places).unwrap_or_default()
}

/// The newest metadata log of a member.
fn log_of(world: &World<'_>, bay: Bay, member: usize) -> Result<Log, Failure> {
    const AGGREGATES: [u32; 5] = [1, 2, 4, 8, 16];
    let mut newest: Option<Log> = None;
    for aggregate in AGGREGATES {
        let small = world.command_queue.geometry(bay).zones < (META_ZONES + 1) * aggregate;
        for zone in 0..if small { 0 } else { META_ZONES } {
            let log = read_log(world, bay, aggregate, zone, member)?;
            if log.as_ref().is_some_and(|l| newest.as_ref().is_none_or(|n| n.generation < l.generation)) {
                newest = log;
            }
        }
        // The last spare zones, which take the place of worn metadata zones.
        let zones = world.command_queue.geometry(bay).zones / aggregate;
        let spare = newest.as_ref().map_or(META_ZONES, |log| META_ZONES + log.superblock.zones);
        for place in spare.max(zones.saturating_sub(4))..zones {
            let log = read_log(world, bay, aggregate, place, member).ok().flatten();
            if log.as_ref().is_some_and(|l| newest.as_ref().is_none_or(|n| n.generation < l.generation)) {
                newest = log;
            }
        }
    }
    newest.ok_or_else(|| Failure("there is no metadata log".into()))
}

/// The log in a metadata zone, if it begins with a checkpoint.
fn read_log(
    world: &World<'_>,
    bay: Bay,
    aggregate: u32,
    zone: u32,
    member: usize,
) -> Result<Option<Log>, Failure> {
    let (mut at, mut origin, mut log) = (0, None, None);
    while let Some(first) = read_block(world, bay, aggregate, zone, at)? {
        let Some(header) = Header::read(&first) else { break };
        let base: Origin = *origin.get_or_insert(header.origin);
        let origin = Origin { lba: base.lba + at, ..base };
        let (mut bytes, mut is_torn) = (first[..BLOCK].to_vec(), false);
        for next in 1..if header.origin.lba == origin.lba { header.blocks() } else { 1 } {
            let block = read_block(world, bay, aggregate, zone, at + next)?;
            is_torn |= block.is_none();
            bytes.extend_from_slice(&block.unwrap_or_else(|| vec![0; BLOCK])[..BLOCK]);
        }
        let (record, _, blocks) = match Record::read(&bytes, origin) {
            Ok(read) => read,
            Err(RecordError::NoRecord) => break,
            // A torn checkpoint; the other zone has the log.
            Err(_) if at == 0 => return Ok(None),
            // The end of a log that was continued in the other zone after a power cut, and could not be reset since.
            Err(RecordError::Damaged) if is_torn => break,
            Err(error) => return Err(Failure(format!("block {at} of its metadata log: {error:?}"))),
        };
        if origin.member as usize != member {
            return Err(Failure(format!("its record has role {}, not {member}", origin.member)));
        }
        at += blocks;
        match (record, &mut log) {
            // Read with the wrong aggregate, a log looks like one only within its first zone.
            (Record::Checkpoint(checkpoint), None) if checkpoint.superblock.aggregate != aggregate => {
                return Ok(None);
            }
            // The first checkpoint, or one behind it, where the log had no other zone to go to.
            (Record::Checkpoint(checkpoint), _) => {
                let chunk = checkpoint.superblock.chunk_blocks as u64;
                let burned = checkpoint.burned.iter().map(|burned| (burned.zone, burned.from..burned.to));
                let relocated = checkpoint.parity.iter().filter(|parity| parity.index == RELOCATED);
                let relocated = relocated.map(|p| (p.zone, p.stripe * chunk..(p.stripe + 1) * chunk));
                log = Some(Log {
                    generation: checkpoint.generation,
                    displaced: burned.chain(relocated).collect(),
                    places: Places { moved: checkpoint.moved },
                    superblock: checkpoint.superblock,
                });
            }
            (Record::Superblock(superblock), Some(log)) => log.superblock = *superblock,
            (Record::Parity(parity), Some(log)) if parity.index == RELOCATED => {
                let chunk = log.superblock.chunk_blocks as u64;
                log.displaced.push((parity.zone, parity.stripe * chunk..(parity.stripe + 1) * chunk));
            }
            (_, None) => return Ok(None),
            _ => (),
        }
    }
    Ok(log)
}

/// Whether a block is the parity of the blocks of `data`, where missing blocks count as zeros. P is their sum; for Q
/// the block with index i has the factor 2^i. Bytes are polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1.
fn is_parity(which: usize, parity: Option<&[u8]>, data: &[Option<Vec<u8>>]) -> bool {
    let mut sum = [0; BLOCK];
    for block in data.iter().rev() {
        if which > 0 {
            sum.iter_mut().for_each(|byte: &mut u8| {
                *byte = (*byte << 1) ^ if *byte & 0x80 > 0 { 0x1d } else { 0 };
            });
        }
        for (sum, byte) in sum.iter_mut().zip(block.iter().flatten()) {
            *sum ^= byte;
        }
    }
    sum[..] == parity.unwrap_or(&[0; BLOCK])[..BLOCK]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::simulator::{create, scenario::Scenario, subject::ArrayMaker, world::TraceMode};
    use emu::{rng::Rng, ssd::Fault};
    use engine::device::Command;

    /// Result of judging an array with an almost full first zone, after flipping a bit in one of its blocks.
    fn with_wrong_bit(policy: Policy, parities: usize, zone: u32) -> Result<(), Failure> {
        let maker = ArrayMaker::default();
        let mut rng = Rng::new(3);
        let scenario = Scenario { mixed: false, ..Scenario::draw(&mut rng, Some(policy), Some(parities)) };
        let mut world = World::new(&maker, scenario, rng, TraceMode::Off);
        step::set_in_order(&mut world);
        assert!(create::create_in_order(&mut world).unwrap());
        step::fill_to(&mut world, 0, 1).unwrap();
        judge_drives(&mut world).unwrap();
        let aggregate = log_of(&world, 0, 0).unwrap().superblock.aggregate;
        let mut ssd = world.command_queue.ssd(0);
        let lba = ssd.geometry().start(ZoneIndex(zone * aggregate));
        ssd.faults().after(0, Fault::Corrupt { lba, bit: 999 });
        ssd.execute(Command::Report { first: ZoneIndex(0), count: 1 });
        drop(ssd);
        judge_drives(&mut world)
    }

    #[test]
    fn parity_check_accepts_only_correct_p_and_q() {
        let data = [Some(vec![0x80; BLOCK]), None, Some(vec![3; BLOCK]), Some(vec![0x81; BLOCK])];
        // 0x80 + 4 * 3 + 8 * 0x81, the last of which is 8 + 0x74.
        for (which, byte) in [(0, 0x02), (1, 0x80 ^ 0x0c ^ 0x08 ^ 0x74)] {
            assert!(is_parity(which, Some(&[byte; BLOCK]), &data));
            assert!(!is_parity(which, Some(&[byte ^ 1; BLOCK]), &data));
            assert!(!is_parity(which, None, &data));
            assert!(is_parity(which, None, &[None, None, None]));
        }
    }

    #[test]
    fn media_check_detects_flipped_data_or_log_bit() {
        for (policy, parities) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 1), (policy, 2)]) {
            let wrong = with_wrong_bit(policy, parities, META_ZONES).unwrap_err().0;
            assert!(wrong.contains("the parity is not"), "{wrong}");
            // One of the two zones holds the log.
            let wrong = [0, 1].map(|zone| with_wrong_bit(policy, parities, zone));
            assert!(wrong.iter().any(|result| result.is_err()), "{wrong:?}");
        }
    }
}
