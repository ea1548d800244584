//! Spare drives: drives that do not belong to the array but may be offered to it.
//!
//! Spares are not always blank, and an assembly may be offered drives that do not belong to it. The expected result
//! follows from the promises and from the known contents of each drive:
//!
//! - an attached drive is reset, with any contents: a former member, a member of another array, unknown bytes;
//! - a blank drive, or one with other contents, is ignored by an assembly, and a member of another array is a refusal
//!   that names it;
//! - a copy of a member is stale once the array has been assembled since the copy. Before that it cannot be told from
//!   the original: an assembly with both refuses and names both, and one with the copy alone accepts it, so that no
//!   life does that;
//! - no spare drive is written before it is attached, and no drive at all by an assembly that refuses for these
//!   reasons.

use super::{
    command_queue::Bay,
    create, load,
    scenario::Scenario,
    step,
    subject::SubjectError,
    world::{Failure, TraceMode, World},
};
use engine::{
    buf::Buf,
    device::{Command, Zones},
    zone::{Lba, ZoneIndex},
};
use std::collections::BTreeSet;

/// Copies of members that are kept.
const MOST_COPIES: usize = 2;
/// Data chunks per stripe of the other array.
const OTHERS_DATA: usize = 2;

/// Contents of a spare drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpareContents {
    /// No array.
    Nothing,
    /// A member of another array.
    Another,
    /// A copy of a member after this many assemblies.
    Copy { member: usize, assemblies: u64 },
}

/// Drives that do not belong to the array.
#[derive(Default)]
pub(super) struct SpareDrives {
    drives: Vec<(Bay, SpareContents)>,
    /// Assemblies of the array that have ended.
    pub assemblies: u64,
    /// Drives that were refused, which are not offered again before the next end.
    pub refused: BTreeSet<Bay>,
}

impl SpareDrives {
    fn find(&self, bay: Bay) -> Option<SpareContents> {
        self.drives.iter().find(|(other, _)| *other == bay).map(|(_, holds)| *holds)
    }

    /// Whether a drive is among the spare drives, so that it can never be a member.
    pub fn has(&self, bay: Bay) -> bool {
        self.find(bay).is_some()
    }

    /// Whether these are the contents of a copy that cannot be told from the original.
    fn is_fresh(&self, holds: SpareContents) -> bool {
        matches!(holds, SpareContents::Copy { assemblies, .. } if assemblies == self.assemblies)
    }

    /// Whether one of `offered` is a copy that cannot be told from the original.
    pub fn any_fresh(&self, offered: &[Bay]) -> bool {
        offered.iter().any(|bay| self.find(*bay).is_some_and(|holds| self.is_fresh(holds)))
    }

    /// Members with an older copy, which may be offered if the original is lost.
    pub fn copied(&self) -> Vec<usize> {
        let old = self.drives.iter().filter(|(_, holds)| !self.is_fresh(*holds));
        old.filter_map(
            |(_, holds)| if let SpareContents::Copy { member, .. } = holds { Some(*member) } else { None },
        )
        .collect()
    }
}

/// A drive to replace a member: a blank one, one of the `former` members, which is removed there, a member of
/// another array, or one with unknown bytes.
pub(super) fn spare(
    world: &mut World<'_>,
    former: &mut Vec<Bay>,
    usable: impl Fn(Bay) -> bool,
) -> Result<Bay, Failure> {
    if !world.rng.chance(world.scenario.misfortune.used_spare_percent, 100) {
        return Ok(world.new_drive());
    }
    // A drive is not opened again before its last command has ended, if only by a controller reset.
    let usable = |bay| usable(bay) && !world.command_queue.is_awaited(bay);
    let usable: Vec<usize> = (0..former.len()).filter(|at| usable(former[*at])).collect();
    match world.rng.below(4) {
        0 | 1 if !usable.is_empty() => {
            let bay = former.swap_remove(*world.rng.pick(&usable));
            world.command_queue.clear_fault(bay);
            Ok(bay)
        }
        0 | 1 => of_another_array(world).inspect(|bay| _ = world.foreign.insert(*bay)),
        _ => Ok(used_drive(world)),
    }
}

/// Copies a member's drive to the spare drives, if it is there.
pub(super) fn copy_member(
    world: &mut World<'_>,
    spare_drives: &mut SpareDrives,
    member: usize,
) -> Result<(), Failure> {
    let Some(bay) = world.members[member].filter(|bay| !world.command_queue.is_gone(*bay)) else {
        return Ok(());
    };
    let ssd = world.command_queue.ssd(bay).copy();
    let copy = world.command_queue.insert(ssd.map_err(|error| Failure(format!("copying a drive: {error}")))?);
    world.trace.note(|| format!("drive{copy} is a copy of drive{bay}, member {member}"));
    let is_copy = |(_, holds): &(Bay, SpareContents)| matches!(holds, SpareContents::Copy { .. });
    if spare_drives.drives.iter().filter(|drive| is_copy(drive)).count() == MOST_COPIES
        && let Some(oldest) = spare_drives.drives.iter().position(is_copy)
    {
        spare_drives.drives.remove(oldest);
    }
    spare_drives.drives.push((copy, SpareContents::Copy { member, assemblies: spare_drives.assemblies }));
    Ok(())
}

/// Adds spare drives to the offered ones. `sound` says whether the original of a copy can be read.
pub(super) fn offer_spare_drives(
    world: &mut World<'_>,
    spare_drives: &mut SpareDrives,
    bays: &mut Vec<Bay>,
    sound: impl Fn(usize) -> bool,
) -> Result<(), Failure> {
    let percent = world.scenario.misfortune.strangers_percent;
    let strangers =
        spare_drives.drives.iter().filter(|(_, holds)| !matches!(holds, SpareContents::Copy { .. })).count();
    if strangers < 2 && world.rng.chance(percent, 100) {
        let (bay, holds) = match world.rng.below(3) {
            0 => (world.new_drive(), SpareContents::Nothing),
            1 => (used_drive(world), SpareContents::Nothing),
            _ => (of_another_array(world)?, SpareContents::Another),
        };
        spare_drives.drives.push((bay, holds));
    }
    for (bay, holds) in &spare_drives.drives {
        let may = match *holds {
            SpareContents::Copy { member, .. } => {
                let beside = world.members[member].is_some_and(|bay| bays.contains(&bay)) && sound(member);
                beside || !spare_drives.is_fresh(*holds)
            }
            SpareContents::Nothing | SpareContents::Another => true,
        };
        if may && !spare_drives.refused.contains(bay) && world.rng.chance(1, 2) {
            bays.push(*bay);
            world.coverage.struck = match holds {
                SpareContents::Nothing => "a stranger offered",
                SpareContents::Another => "another array's offered",
                SpareContents::Copy { .. } if spare_drives.is_fresh(*holds) => "a fresh copy offered",
                SpareContents::Copy { .. } => "an old copy offered",
            };
        }
    }
    Ok(())
}

/// Judges a refusal by the offered drives. Drives that it names rightly are not offered again.
///
/// # Errors
/// No offered drive is a reason for it, or the refusal does not name that drive.
pub(super) fn judge_refusal(
    world: &mut World<'_>,
    spare_drives: &mut SpareDrives,
    half_attached: &BTreeSet<usize>,
    offered: &[Bay],
    why: &SubjectError,
) -> Result<(), Failure> {
    // A drive does not belong to this array if its attachment was not completed.
    let members = world.members.clone();
    let unattached = |bay: Bay| half_attached.iter().copied().find(|member| members[*member] == Some(bay));
    let is_reason = |bay: Bay| match spare_drives.find(bay) {
        Some(SpareContents::Another) => true,
        Some(holds @ SpareContents::Copy { member, .. }) => {
            // Its original is offered as well, or another copy of the same age.
            let others = spare_drives.drives.iter().filter(|(other, also)| *other != bay && *also == holds);
            let mut twins = others.map(|(other, _)| *other).chain(world.members[member]);
            spare_drives.is_fresh(holds) && twins.any(|bay| why.names_drive(bay))
        }
        Some(SpareContents::Nothing) => false,
        None => unattached(bay).is_some() && world.foreign.contains(&bay),
    };
    let named: Vec<Bay> =
        offered.iter().copied().filter(|bay| why.names_drive(*bay) && is_reason(*bay)).collect();
    if named.is_empty() {
        return Err(Failure(format!("the array does not assemble: {why}")));
    }
    world.trace.note(|| format!("refused: {why}"));
    for bay in named {
        match unattached(bay) {
            Some(member) => world.members[member] = None,
            None => _ = spare_drives.refused.insert(bay),
        }
    }
    Ok(())
}

/// Checks that no spare drive was written, and that no member of another array was ignored.
///
/// # Errors
/// The drive that was written or ignored.
pub(super) fn check_spare_drives(
    world: &World<'_>,
    spare_drives: &SpareDrives,
    assembled_from: &[Bay],
) -> Result<(), Failure> {
    if let Some((bay, holds)) =
        spare_drives.drives.iter().find(|(bay, _)| world.command_queue.changes(*bay) > 0)
    {
        return Err(Failure(format!("drive{bay}, which is none of the array's ({holds:?}), was changed")));
    }
    match assembled_from.iter().find(|bay| spare_drives.find(**bay) == Some(SpareContents::Another)) {
        Some(bay) => Err(Failure(format!("drive{bay} belongs to another array, but was not refused"))),
        None => Ok(()),
    }
}

/// A drive with unknown bytes, and with zones in any state.
fn used_drive(world: &mut World<'_>) -> Bay {
    let bay = world.new_drive();
    let geometry = world.command_queue.geometry(bay).clone();
    for zone in 0..geometry.zones {
        if world.rng.chance(1, 3) {
            continue;
        }
        let start = geometry.start(ZoneIndex(zone)).0;
        let zones = Zones::One(ZoneIndex(zone));
        let mut commands = Vec::new();
        if geometry.zrwa.is_some() && world.rng.chance(1, 2) {
            commands.push(Command::Open { zones, zrwa: true });
        }
        let most = geometry.zone_capacity_blocks.min(geometry.max_transfer_blocks as u64);
        let mut data = Buf::zeroed((1 + world.rng.below(most)) as usize * engine::buf::BLOCK);
        let word = world.rng.next_u64().to_le_bytes();
        data.as_mut().into_iter().flat_map(|bytes| bytes.chunks_exact_mut(8)).for_each(|eight| {
            eight.copy_from_slice(&word);
        });
        commands.push(Command::write(Lba(start), data, false));
        match world.rng.below(4) {
            0 => commands.push(Command::Finish { zones }),
            1 => commands.push(Command::Close { zones }),
            _ => (),
        }
        for command in commands {
            // Some may exceed the drive's limits.
            world.command_queue.ssd(bay).execute(command);
        }
    }
    bay
}

/// A drive that is a member of another array that holds data.
fn of_another_array(world: &mut World<'_>) -> Result<Bay, Failure> {
    let parities = world.scenario.parities;
    let members = if parities == 0 { 1 } else { OTHERS_DATA + parities };
    let scenario = Scenario { members, forks: 0, ..world.scenario.clone() };
    let mut other = World::new(world.maker, scenario, world.rng.fork(), TraceMode::Off);
    step::set_in_order(&mut other);
    if create::create_in_order(&mut other)? {
        let blocks = 1 + other.rng.below(other.oracle.capacity);
        load::write(&mut other, 0, blocks.min(2 * world.scenario.chunk_blocks), true, false);
        step::drain_in_order(&mut other)?;
    }
    let which = world.rng.below(members as u64) as usize;
    let Some(bay) = other.members[which] else { return Ok(world.new_drive()) };
    let ssd = other.command_queue.ssd(bay).copy();
    Ok(world.command_queue.insert(ssd.map_err(|error| Failure(format!("copying a drive: {error}")))?))
}
