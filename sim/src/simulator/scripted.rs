//! Worlds that are played by a script instead of at random.
//!
//! Choice 0 at an event is the default order ([`super::step`]), the others follow in this order.

use super::{
    drives::META_ZONES,
    load,
    oracle::Change,
    world::{Failure, Pending, World},
};
use emu::ssd::Fault as MediaFault;
use engine::{device::Command, zone::ZoneIndex};

/// The zone that the workloads write.
pub(super) const ZONE: ZoneIndex = ZoneIndex(0);

/// One operation of a fixed workload, on the first zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write {
        blocks: u64,
        fua: bool,
    },
    Flush,
    Finish,
    Reset,
    /// Replaces the working drive of the first member by a blank one while the next steps run.
    Replace,
    /// The first member's part of the zone becomes read-only.
    Wear,
    /// Rebuilds the parts that a member is known to lack while the next steps run.
    Rebuild,
}

/// Fate of the commands in flight at the cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlightFate {
    #[default]
    None,
    All,
    Torn,
}

/// Unflushed data in volatile caches that is lost. A part is the unflushed data of one zone of one drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheFate {
    /// Any portion of any part, drawn at random.
    #[default]
    Drawn,
    Kept,
    Lost,
    /// This part alone.
    OnlyLost(usize),
    OnlyKept(usize),
    /// A portion of this part, in one of its ways, and nothing of any other.
    Partly {
        part: usize,
        way: usize,
    },
}

/// The kind of event that a choice was.
pub(super) struct ChoiceKind {
    /// A drive has executed a command.
    pub executes: bool,
    /// The host submits its next operation, which is left to the caller.
    pub issues: bool,
}

/// Number of choices now, with up to `most` commands of each kind; `issue` says whether the host could submit one.
pub(super) fn choices(world: &World<'_>, issue: bool, most: usize) -> usize {
    let queued = world.command_queue.queued().min(most);
    usize::from(world.ready) + world.command_queue.executed().min(most) + usize::from(issue) + queued
}

/// Takes one choice.
pub(super) fn take_choice(
    world: &mut World<'_>,
    choice: usize,
    issue: bool,
    most: usize,
) -> Result<ChoiceKind, Failure> {
    let mut choice = choice;
    let nothing = ChoiceKind { executes: false, issues: false };
    if world.ready {
        if choice == 0 {
            world.ready = world.runtime.step();
            load::collect(world)?;
            return Ok(nothing);
        }
        choice -= 1;
    }
    let executed = world.command_queue.executed().min(most);
    if choice < executed {
        world.command_queue.deliver(choice);
        world.ready = true;
        return Ok(nothing);
    }
    choice -= executed;
    if issue {
        if choice == 0 {
            return Ok(ChoiceKind { issues: true, ..nothing });
        }
        choice -= 1;
    }
    world.command_queue.execute_now(choice, false);
    Ok(ChoiceKind { executes: true, issues: false })
}

/// Whether the host would submit this operation now.
pub(super) fn can_take(world: &World<'_>, step: Step) -> bool {
    let zone = &world.oracle.zones[ZONE.0 as usize];
    match step {
        Step::Write { .. } | Step::Flush => {
            world.ops.len() < world.scenario.load.queue_depth && zone.change.is_none()
        }
        Step::Finish | Step::Reset => zone.in_flight == 0,
        Step::Replace => true,
        // So that the next write runs into it.
        Step::Wear => world.ops.is_empty(),
        Step::Rebuild => world.unsound_members().next().is_some(),
    }
}

/// Submits an operation of a script.
pub(super) fn issue_step(world: &mut World<'_>, step: Step) -> Result<(), Failure> {
    match step {
        Step::Write { blocks, fua } => {
            let left = world.oracle.capacity - world.oracle.zones[ZONE.0 as usize].submitted();
            load::write(world, ZONE.0, blocks.min(left), fua, false);
        }
        Step::Flush => load::issue_flush(world),
        Step::Finish => load::issue_one_change(world, ZONE.0, Change::Finish),
        Step::Reset => load::issue_one_change(world, ZONE.0, Change::Reset),
        // The caller starts these and waits for them.
        Step::Replace | Step::Wear | Step::Rebuild => {}
    }
    world.ready = true;
    load::collect(world)
}

/// Makes the part of the zone on the drive of `member` read-only.
pub(super) fn wear_in_order(world: &mut World<'_>, member: usize) {
    let parts = world.scenario.aggregate;
    for part in 0..parts {
        let zone = ZoneIndex((ZONE.0 + META_ZONES) * parts + part);
        for bay in world.members[member].iter() {
            let mut ssd = world.command_queue.ssd(*bay);
            ssd.faults().after(0, MediaFault::ReadOnly(zone));
            // Faults take effect with the next command.
            ssd.execute(Command::Report { first: zone, count: 1 });
        }
    }
}

/// Starts to rebuild the parts that are lacking.
pub(super) fn rebuild_in_order(world: &mut World<'_>) -> Option<Pending<u64>> {
    let subject = world.subject.clone()?;
    Some(world.start(subject.rebuild()))
}

/// Whether operations are outstanding.
pub(super) fn is_waiting(world: &World<'_>) -> bool {
    !world.ops.is_empty()
}

/// Number of operations that have completed.
pub(super) fn told(world: &World<'_>) -> u64 {
    world.counts.operations - world.ops.len() as u64
}

/// Decides the fate of the commands in flight before a power cut.
pub(super) fn settle_fate(world: &mut World<'_>, fate: InFlightFate) {
    match fate {
        InFlightFate::None => world.command_queue.drop_queued(),
        InFlightFate::All => world.command_queue.execute_all(),
        InFlightFate::Torn => {}
    }
}

/// Decides the loss of unflushed data in a power cut, unless it is to be random. Returns the number of ways to lose
/// a portion of it, for each zone of a drive that has any.
///
/// # Errors
/// I/O errors of the drives' media.
pub(super) fn settle_cache(world: &mut World<'_>, fate: CacheFate) -> Result<Vec<usize>, Failure> {
    let mut parts = Vec::new();
    for bay in world.members.iter().flatten() {
        parts.extend(
            world.command_queue.ssd(*bay).unflushed().into_iter().map(|(zone, ways)| (*bay, zone, ways)),
        );
    }
    for (index, (bay, zone, _)) in parts.iter().enumerate() {
        let lost = match fate {
            CacheFate::Drawn | CacheFate::Kept => false,
            CacheFate::Lost => true,
            CacheFate::OnlyLost(part) => part == index,
            CacheFate::OnlyKept(part) => part != index,
            CacheFate::Partly { part, .. } => part == index,
        };
        if lost {
            let way = if let CacheFate::Partly { way, .. } = fate { Some(way) } else { None };
            let result = world.command_queue.ssd(*bay).lose_unflushed(*zone, way);
            result.map_err(|error| Failure(format!("losing a cache: {error}")))?;
        }
    }
    Ok(parts.into_iter().map(|(_, _, ways)| ways).collect())
}
