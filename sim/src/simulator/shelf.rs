//! The shelf: drives beside those of the array, which somebody may hand to it.
//!
//! Spares are not always blank, and what is offered to an assembly is not always what belongs there. What has
//! to come of it follows from the promise and from what the world knows of each drive:
//!
//! - a drive that is attached is reset, whatever it holds: a former member, a member of another array, bytes
//!   of somebody else's;
//! - a drive that is blank or holds something else is passed over by an assembly, and a member of another
//!   array is a refusal that names it;
//! - a copy of a member is stale once the array has been assembled since it was made. Before, nothing tells
//!   it from the original: an assembly that is offered both refuses and names both, and one that is offered
//!   the copy alone believes it, so that no life does that;
//! - nothing is written to any of them before it is attached, and nothing to any drive by an assembly that
//!   refuses so.

use super::{
    scenario::Scenario,
    subject::Why,
    wire::Bay,
    world::{Failure, Tracing, World},
};
use engine::{
    buf::Buf,
    device::{Command, Zones},
    zone::{Lba, ZoneIndex},
};
use std::collections::BTreeSet;

/// Copies of members that are kept.
const MOST_COPIES: usize = 2;
/// Data chunks in a stripe of the other array.
const OTHERS_DATA: usize = 2;

/// What a drive on the shelf holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// Nothing of any array.
    Nothing,
    /// What a member of another array does.
    Another,
    /// What a member did when so many assemblies had ended.
    Copy { member: usize, assemblies: u64 },
}

/// Drives that are not the array's.
#[derive(Default)]
pub(super) struct Shelf {
    drives: Vec<(Bay, Holds)>,
    /// Assemblies of the array that have ended.
    pub assemblies: u64,
    /// What was refused and is not offered again before the next end.
    pub refused: BTreeSet<Bay>,
}

impl Shelf {
    fn find(&self, bay: Bay) -> Option<Holds> {
        self.drives.iter().find(|(other, _)| *other == bay).map(|(_, holds)| *holds)
    }

    /// Whether a drive is none of the array's, so that it can never be a member.
    pub fn has(&self, bay: Bay) -> bool {
        self.find(bay).is_some()
    }

    /// Whether nothing tells the drive from the original, if it is a copy.
    fn is_fresh(&self, holds: Holds) -> bool {
        matches!(holds, Holds::Copy { assemblies, .. } if assemblies == self.assemblies)
    }

    /// Whether one of `offered` is a copy that nothing tells from the original.
    pub fn any_fresh(&self, offered: &[Bay]) -> bool {
        offered.iter().any(|bay| self.find(*bay).is_some_and(|holds| self.is_fresh(holds)))
    }

    /// Members of which an older copy is there: who has lost the original may bring it.
    pub fn copied(&self) -> Vec<usize> {
        let old = self.drives.iter().filter(|(_, holds)| !self.is_fresh(*holds));
        old.filter_map(|(_, holds)| if let Holds::Copy { member, .. } = holds { Some(*member) } else { None })
            .collect()
    }
}

impl World<'_> {
    /// A drive to take the place of a member: a blank one, one of `former` members, which is no longer among
    /// these, or one that somebody else has used.
    pub(super) fn spare(
        &mut self,
        former: &mut Vec<Bay>,
        usable: impl Fn(Bay) -> bool,
    ) -> Result<Bay, Failure> {
        if !self.rng.chance(self.scenario.misfortune.used_spare_percent, 100) {
            return Ok(self.new_drive());
        }
        // No drive is opened anew before its last command has ended, if by a reset of its controller.
        let usable = |bay| usable(bay) && !self.wire.is_awaited(bay);
        let usable: Vec<usize> = (0..former.len()).filter(|at| usable(former[*at])).collect();
        match self.rng.below(4) {
            0 | 1 if !usable.is_empty() => {
                let bay = former.swap_remove(*self.rng.pick(&usable));
                self.wire.clear_fault(bay);
                Ok(bay)
            }
            0 | 1 => self.of_another_array().inspect(|bay| _ = self.foreign.insert(*bay)),
            _ => Ok(self.used_drive()),
        }
    }

    /// Copies a member's drive, if that can be read, to the shelf.
    pub(super) fn copy_member(&mut self, shelf: &mut Shelf, member: usize) -> Result<(), Failure> {
        let Some(bay) = self.members[member].filter(|bay| !self.wire.is_gone(*bay)) else { return Ok(()) };
        let ssd = self.wire.ssd(bay).copy();
        let copy = self.wire.insert(ssd.map_err(|error| Failure(format!("copying a drive: {error}")))?);
        self.trace.note(|| format!("drive{copy} is a copy of drive{bay}, member {member}"));
        let is_copy = |(_, holds): &(Bay, Holds)| matches!(holds, Holds::Copy { .. });
        if shelf.drives.iter().filter(|drive| is_copy(drive)).count() == MOST_COPIES
            && let Some(oldest) = shelf.drives.iter().position(is_copy)
        {
            shelf.drives.remove(oldest);
        }
        shelf.drives.push((copy, Holds::Copy { member, assemblies: shelf.assemblies }));
        Ok(())
    }

    /// Adds drives of the shelf to those that are offered. An original that is `sound` can be read.
    pub(super) fn offer_shelf(
        &mut self,
        shelf: &mut Shelf,
        bays: &mut Vec<Bay>,
        sound: impl Fn(usize) -> bool,
    ) -> Result<(), Failure> {
        let percent = self.scenario.misfortune.strangers_percent;
        let strangers = shelf.drives.iter().filter(|(_, holds)| !matches!(holds, Holds::Copy { .. })).count();
        if strangers < 2 && self.rng.chance(percent, 100) {
            let (bay, holds) = match self.rng.below(3) {
                0 => (self.new_drive(), Holds::Nothing),
                1 => (self.used_drive(), Holds::Nothing),
                _ => (self.of_another_array()?, Holds::Another),
            };
            shelf.drives.push((bay, holds));
        }
        for (bay, holds) in &shelf.drives {
            let may = match *holds {
                Holds::Copy { member, .. } => {
                    let beside = self.members[member].is_some_and(|bay| bays.contains(&bay)) && sound(member);
                    beside || !shelf.is_fresh(*holds)
                }
                Holds::Nothing | Holds::Another => true,
            };
            if may && !shelf.refused.contains(bay) && self.rng.chance(1, 2) {
                bays.push(*bay);
                self.coverage.struck = match holds {
                    Holds::Nothing => "a stranger offered",
                    Holds::Another => "another array's offered",
                    Holds::Copy { .. } if shelf.is_fresh(*holds) => "a fresh copy offered",
                    Holds::Copy { .. } => "an old copy offered",
                };
            }
        }
        Ok(())
    }

    /// Judges a refusal by what was offered. Drives that it names rightly are not offered again.
    ///
    /// # Errors
    /// Nothing that was offered is a reason, or it is not named.
    pub(super) fn judge_refusal(
        &mut self,
        shelf: &mut Shelf,
        half_attached: &BTreeSet<usize>,
        offered: &[Bay],
        why: &Why,
    ) -> Result<(), Failure> {
        // A drive that was never attached belongs to nobody here.
        let members = self.members.clone();
        let unattached =
            |bay: Bay| half_attached.iter().copied().find(|member| members[*member] == Some(bay));
        let is_reason = |bay: Bay| match shelf.find(bay) {
            Some(Holds::Another) => true,
            Some(holds @ Holds::Copy { member, .. }) => {
                // Its original is there as well, or another copy that is as new.
                let others = shelf.drives.iter().filter(|(other, also)| *other != bay && *also == holds);
                let mut twins = others.map(|(other, _)| *other).chain(self.members[member]);
                shelf.is_fresh(holds) && twins.any(|bay| self.names_drive(bay, why))
            }
            Some(Holds::Nothing) => false,
            None => unattached(bay).is_some() && self.foreign.contains(&bay),
        };
        let named: Vec<Bay> =
            offered.iter().copied().filter(|bay| self.names_drive(*bay, why) && is_reason(*bay)).collect();
        if named.is_empty() {
            return Err(Failure(format!("the array does not assemble: {why}")));
        }
        self.trace.note(|| format!("refused: {why}"));
        for bay in named {
            match unattached(bay) {
                Some(member) => self.members[member] = None,
                None => _ = shelf.refused.insert(bay),
            }
        }
        Ok(())
    }

    /// Nothing has been written to what is on the shelf, and no member of another array was passed over.
    ///
    /// # Errors
    /// What was.
    pub(super) fn check_shelf(&self, shelf: &Shelf, assembled_from: &[Bay]) -> Result<(), Failure> {
        if let Some((bay, holds)) = shelf.drives.iter().find(|(bay, _)| self.wire.changes(*bay) > 0) {
            return Err(Failure(format!(
                "drive{bay}, which is none of the array's ({holds:?}), was changed"
            )));
        }
        match assembled_from.iter().find(|bay| shelf.find(**bay) == Some(Holds::Another)) {
            Some(bay) => Err(Failure(format!("drive{bay} is of another array, but was not refused"))),
            None => Ok(()),
        }
    }

    /// Commands that have changed drives, of all of `bays` together.
    pub(super) fn changes(&self, bays: &[Bay]) -> u64 {
        bays.iter().map(|bay| self.wire.changes(*bay)).sum()
    }

    /// Whether a refusal speaks of a drive.
    pub(super) fn names_drive(&self, bay: Bay, why: &Why) -> bool {
        why.drives().contains(&format!("drive{bay}").as_str())
    }

    /// A drive that holds somebody else's bytes, in zones that are in any state.
    fn used_drive(&mut self) -> Bay {
        let bay = self.new_drive();
        let geometry = self.wire.geometry(bay).clone();
        for zone in 0..geometry.zones {
            if self.rng.chance(1, 3) {
                continue;
            }
            let start = geometry.start(ZoneIndex(zone)).0;
            let zones = Zones::One(ZoneIndex(zone));
            let mut commands = Vec::new();
            if geometry.zrwa.is_some() && self.rng.chance(1, 2) {
                commands.push(Command::Open { zones, zrwa: true });
            }
            let most = geometry.zone_capacity_blocks.min(geometry.max_transfer_blocks as u64);
            let mut data = Buf::zeroed((1 + self.rng.below(most)) as usize * engine::buf::BLOCK);
            let word = self.rng.next_u64().to_le_bytes();
            data.as_mut().into_iter().flat_map(|bytes| bytes.chunks_exact_mut(8)).for_each(|eight| {
                eight.copy_from_slice(&word);
            });
            commands.push(Command::write(Lba(start), data, false));
            match self.rng.below(4) {
                0 => commands.push(Command::Finish { zones }),
                1 => commands.push(Command::Close { zones }),
                _ => (),
            }
            for command in commands {
                // Some may be too many for the drive's limits.
                self.wire.ssd(bay).execute(command);
            }
        }
        bay
    }

    /// A drive that is a member of another array, with something in it.
    fn of_another_array(&mut self) -> Result<Bay, Failure> {
        let members = OTHERS_DATA + self.scenario.parities;
        let scenario = Scenario { members, forks: 0, ..self.scenario.clone() };
        let mut other = World::new(self.maker, scenario, self.rng.fork(), Tracing::Off);
        other.set_in_order();
        if other.create_in_order()? {
            let blocks = 1 + other.rng.below(other.oracle.capacity);
            other.write(0, blocks.min(2 * self.scenario.chunk_blocks), true, false);
            other.drain_in_order()?;
        }
        let which = self.rng.below(members as u64) as usize;
        let Some(bay) = other.members[which] else { return Ok(self.new_drive()) };
        let ssd = other.wire.ssd(bay).copy();
        Ok(self.wire.insert(ssd.map_err(|error| Failure(format!("copying a drive: {error}")))?))
    }
}
