//! The load: submits operations as a host would, and checks every completion.
//!
//! The load keeps to the rules for hosts: it writes at the end of the submitted writes, keeps within the limits of open
//! and active zones, and mostly resets or finishes a zone only when no operation is in flight in it. An error is a
//! failure, except for writes that a reset or finish has overtaken, and for invalid commands, which must be refused
//! without effect.

use super::{
    accept,
    ops::{Op, OpKind, WaitingChange, outcome},
    oracle::Change,
    schedule::Moment,
    subject::Subject,
    world::{Failure, World},
};
use engine::{
    buf::Buf,
    device::{Command, Completion, DeviceError, Done, Geometry, Zones},
    zone::{Lba, ZoneIndex},
};

/// Submits the next operation, if the drawn one is possible now.
pub(super) fn issue(world: &mut World<'_>) {
    let Some(limits) = world.limits.clone() else { return };
    if let Some(index) = world.held.iter().position(|held| is_quiet(world, *held)) {
        let held = world.held.remove(index);
        return issue_held(world, held, &limits);
    }
    let load = &world.scenario.load;
    let rates = [
        load.write,
        load.append * u64::from(limits.max_append_blocks > 0),
        load.flush,
        load.read,
        load.report,
        load.reset,
        load.reset_all,
        load.finish,
        load.open,
        load.close,
        load.wrong,
    ];
    let kind = world.rng.weighted(&rates);
    let zone = pick_zone(world, limits.zones);
    match kind {
        0 | 1 => issue_write(world, zone, kind == 1, &limits),
        2 => issue_flush(world),
        3 => issue_read(world, zone, &limits),
        4 => {
            let first = world.rng.below(limits.zones as u64) as u32;
            let count = limits.zones - first;
            let point = world.oracle.report();
            submit(
                world,
                OpKind::Report { first, point },
                Command::Report { first: ZoneIndex(first), count },
            );
        }
        5 => hold_or_race(world, WaitingChange::Reset(zone), &limits),
        6 => hold(world, WaitingChange::ResetAll),
        7 => hold_or_race(world, WaitingChange::Finish(zone), &limits),
        8 => hold(world, WaitingChange::Open(zone)),
        9 => hold(world, WaitingChange::Close(zone)),
        _ => issue_wrong(world, zone, &limits),
    }
}

/// A random zone, mostly one of the hot zones.
fn pick_zone(world: &mut World<'_>, zones: u32) -> u32 {
    let hot = world.scenario.load.hot_zones.min(zones as u64);
    if world.rng.chance(7, 8) {
        // The hot zones are the first that are not full, so that all zones get written.
        let first = (0..zones).filter(|z| !world.oracle.is_full(*z)).take(hot as usize);
        let candidates: Vec<u32> = first.collect();
        if !candidates.is_empty() {
            return *world.rng.pick(&candidates);
        }
    }
    world.rng.below(zones as u64) as u32
}

fn hold(world: &mut World<'_>, held: WaitingChange) {
    if world.held.len() < 2 && !world.held.iter().any(|h| *h == held || *h == WaitingChange::ResetAll) {
        world.held.push(held);
    }
}

/// Resets or finishes a zone at once, with operations in flight there, or later when the zone is idle.
fn hold_or_race(world: &mut World<'_>, held: WaitingChange, limits: &Geometry) {
    let (WaitingChange::Reset(zone) | WaitingChange::Finish(zone)) = held else { return };
    let state = &world.oracle.zones[zone as usize];
    let free = state.change.is_none() && !state.opening && !is_held(world, zone);
    if free && world.rng.chance(world.scenario.load.race_percent, 100) {
        issue_held(world, held, limits);
    } else {
        hold(world, held);
    }
}

fn is_held(world: &World<'_>, zone: u32) -> bool {
    world.held.iter().any(|held| held.holds(zone))
}

fn is_quiet(world: &World<'_>, held: WaitingChange) -> bool {
    let mut zones = world.oracle.zones.iter().enumerate();
    zones.all(|(zone, state)| state.in_flight == 0 || !held.holds(zone as u32))
}

/// Whether the zone may be written or opened within the limits of active and open zones, in whatever order the
/// operations in flight complete.
fn may_activate(world: &World<'_>, zone: u32, limits: &Geometry) -> bool {
    let zones = &world.oracle.zones;
    let this = &zones[zone as usize];
    let others = || zones.iter().enumerate().filter(|(z, _)| *z != zone as usize).map(|(_, z)| z);
    let active = others().filter(|z| z.active || z.in_flight > 0).count();
    let opened = others().filter(|z| z.opened || z.opening).count();
    (this.active || limits.max_active == 0 || active < limits.max_active as usize)
        && (this.opened || limits.max_open == 0 || opened < limits.max_open as usize)
}

fn issue_held(world: &mut World<'_>, held: WaitingChange, limits: &Geometry) {
    let one = |zone: u32| Zones::One(ZoneIndex(zone));
    match held {
        WaitingChange::Reset(zone) => issue_one_change(world, zone, Change::Reset),
        WaitingChange::ResetAll => {
            issue_change(world, (0..limits.zones).collect(), Change::Reset, Zones::All)
        }
        WaitingChange::Finish(zone) => {
            if world.oracle.is_full(zone) || may_activate(world, zone, limits) {
                issue_one_change(world, zone, Change::Finish);
            }
        }
        WaitingChange::Open(zone) => {
            if !world.oracle.is_full(zone) && may_activate(world, zone, limits) {
                let state = &mut world.oracle.zones[zone as usize];
                (state.active, state.opening) = (true, true);
                state.begin();
                submit(world, OpKind::Open { zone }, Command::Open { zones: one(zone), zrwa: false });
            }
        }
        WaitingChange::Close(zone) => {
            let state = &mut world.oracle.zones[zone as usize];
            if state.active {
                state.begin();
                submit(world, OpKind::Close { zone }, Command::Close { zones: one(zone) });
            }
        }
    }
}

/// Submits a flush.
pub(super) fn issue_flush(world: &mut World<'_>) {
    let point = world.oracle.flush();
    submit(world, OpKind::Flush(point), Command::Flush);
}

/// Submits a reset or finish of one zone.
pub(super) fn issue_one_change(world: &mut World<'_>, zone: u32, change: Change) {
    issue_change(world, vec![zone], change, Zones::One(ZoneIndex(zone)));
}

fn issue_change(world: &mut World<'_>, zones: Vec<u32>, change: Change, which: Zones) {
    for zone in &zones {
        world.oracle.change(*zone, change);
    }
    let command = match change {
        Change::Reset => Command::Reset { zones: which },
        Change::Finish => Command::Finish { zones: which },
    };
    submit(world, OpKind::Change { zones, change }, command);
}

/// Draws the size of a write in blocks: below a chunk, around a chunk, or up to three stripes.
fn draw_blocks(world: &mut World<'_>, start: u64) -> u64 {
    let chunk = world.scenario.chunk_blocks;
    let stripe = chunk * world.scenario.data_chunks();
    let load = &world.scenario.load;
    let (sizes, aligned_percent) = (load.sizes, load.aligned_percent);
    let draw = world.rng.below(sizes.iter().sum());
    let blocks = if draw < sizes[0] {
        1 + world.rng.below(chunk)
    } else if draw < sizes[0] + sizes[1] {
        chunk / 2 + 1 + world.rng.below(chunk + chunk / 2)
    } else {
        1 + world.rng.below(3 * stripe)
    };
    if world.rng.chance(aligned_percent, 100) {
        (start + blocks).next_multiple_of(chunk) - start
    } else {
        blocks
    }
}

fn issue_write(world: &mut World<'_>, zone: u32, append: bool, limits: &Geometry) {
    let start = world.oracle.zones[zone as usize].submitted();
    if world.oracle.is_full(zone) || is_held(world, zone) || !may_activate(world, zone, limits) {
        return;
    }
    if world.oracle.zones[zone as usize].change.is_some() || world.oracle.zones[zone as usize].opening {
        return;
    }
    let most = if append { limits.max_append_blocks } else { limits.max_transfer_blocks } as u64;
    let blocks = draw_blocks(world, start).min(most).min(limits.zone_capacity_blocks - start);
    let fua = world.rng.chance(world.scenario.load.fua_percent, 100);
    write(world, zone, blocks, fua, append);
}

/// Submits a write, which must be possible.
pub(super) fn write(world: &mut World<'_>, zone: u32, blocks: u64, fua: bool, append: bool) {
    let Some(limits) = &world.limits else { return };
    let zone_start = limits.start(ZoneIndex(zone)).0;
    let (start, data) = world.oracle.write(zone, world.pool.take(blocks).freeze());
    let life = world.oracle.zones[zone as usize].life;
    let kind = OpKind::Write { zone, start, end: start + blocks, fua, append, life };
    let lba = Lba(zone_start + start);
    let room = world.subject.as_ref().map_or(0, |subject| subject.note_room(lba, blocks));
    // Every fourth write that may have a note has one.
    if fua
        && !append
        && room > 0
        && let Some(note) = world.oracle.note(zone, room)
    {
        return submit_as(world, kind, |subject| subject.write_with_note(lba, data, note));
    }
    let command =
        if append { Command::append(ZoneIndex(zone), data, fua) } else { Command::write(lba, data, fua) };
    submit(world, kind, command);
}

fn issue_read(world: &mut World<'_>, zone: u32, limits: &Geometry) {
    if is_held(world, zone) || world.oracle.zones[zone as usize].change.is_some() {
        return;
    }
    // Mostly written blocks, with a few beyond the end.
    let end = (world.oracle.zones[zone as usize].submitted() + 4).min(limits.zone_capacity_blocks);
    let block = world.rng.below(end);
    let blocks = (1 + world.rng.below(end - block)).min(limits.max_transfer_blocks as u64);
    let point = world.oracle.read(zone, block);
    let data = world.pool.take(blocks).freeze();
    let lba = Lba(limits.start(ZoneIndex(zone)).0 + block);
    submit(world, OpKind::Read { point, blocks }, Command::read(lba, data));
}

/// Submits an invalid command to an idle zone, so that its status is predictable.
fn issue_wrong(world: &mut World<'_>, zone: u32, limits: &Geometry) {
    let state = &world.oracle.zones[zone as usize];
    if state.in_flight > 0 || is_held(world, zone) {
        return;
    }
    let full = world.oracle.is_full(zone);
    let start = limits.start(ZoneIndex(zone)).0;
    let (wp, capacity) = (state.submitted(), limits.zone_capacity_blocks);
    let (what, command) = match world.rng.below(4) {
        0 if full => (
            "a write to a full zone",
            Command::write(Lba(start + wp.min(capacity - 1)), Buf::zeroed(4096), true),
        ),
        1 if full && limits.max_append_blocks > 0 => {
            ("an append to a full zone", Command::append(ZoneIndex(zone), Buf::zeroed(4096), false))
        }
        0 | 1 if !full && wp + 1 < capacity => {
            ("a write after a gap", Command::write(Lba(start + wp + 1), Buf::zeroed(4096), false))
        }
        2 if !full && wp > 0 => {
            ("a write over written blocks", Command::write(Lba(start + wp - 1), Buf::zeroed(4096), false))
        }
        3 => {
            let beyond = limits.zones as u64 * limits.zone_size_blocks;
            ("a read beyond the last zone", Command::read(Lba(beyond), Buf::zeroed(4096)))
        }
        _ => return,
    };
    world.oracle.zones[zone as usize].begin();
    submit(world, OpKind::Wrong { zone, what }, command);
}

fn submit(world: &mut World<'_>, kind: OpKind, command: Command) {
    submit_as(world, kind, |subject| subject.submit(command));
}

fn submit_as(world: &mut World<'_>, kind: OpKind, start: impl FnOnce(&dyn Subject) -> Completion) {
    let Some(subject) = &world.subject else { return };
    world.counts.operations += 1;
    world.trace.note(|| format!("host submits: {kind}"));
    let completion = start(&**subject);
    world.ops.push(Op { kind, completion });
}

/// Takes the completions that are available.
///
/// # Errors
/// A completion that breaks a promise.
pub(super) fn collect(world: &mut World<'_>) -> Result<(), Failure> {
    accept::note_gone_back(world)?;
    let mut index = 0;
    while index < world.ops.len() {
        match world.ops[index].completion.take() {
            Some(done) => {
                let op = world.ops.remove(index);
                complete(world, op.kind, done)?;
                if !world.in_order && world.rng.chance(1, 4) {
                    // Other events may come between two completions.
                    world.ready = true;
                    return Ok(());
                }
            }
            None => index += 1,
        }
    }
    Ok(())
}

fn complete(world: &mut World<'_>, kind: OpKind, done: Done) -> Result<(), Failure> {
    world.trace.note(|| format!("host learns: {kind} {}", outcome(&done)));
    if let OpKind::Wrong { zone, what } = kind {
        world.oracle.zones[zone as usize].end();
        return match done.result {
            Err(DeviceError::Status(_)) => Ok(()),
            other => Err(Failure(format!("{what} in zone {zone} was answered with {other:?}"))),
        };
    }
    if let Err(error) = done.result {
        let overtaken = match kind {
            OpKind::Write { zone, life, .. } => world.oracle.is_overtaken(zone, life).then_some(zone),
            OpKind::Read { point, .. } => world.oracle.is_reset_since(point).then_some(point.zone),
            _ => None,
        };
        if let (Some(zone), DeviceError::Status(_)) = (overtaken, error) {
            world.oracle.zones[zone as usize].end();
            return Ok(());
        }
        world.excused += u64::from(world.lenient);
        return if world.lenient { Ok(()) } else { Err(Failure(format!("{kind}: {error}"))) };
    }
    match kind {
        OpKind::Write { zone, start, end, fua, append, life } => {
            let limits = world.limits.as_ref();
            let told = limits.map(|g| g.start(ZoneIndex(zone)).0 + start);
            if append && told != Some(done.lba.0) {
                let what = format!("an append to zone {zone} landed at block {}", done.lba.0);
                return Err(Failure(format!("{what}, which is not the end of the writes before it")));
            }
            world.oracle.written(zone, life, end, done.tail, fua);
            if fua {
                world.forks.notice(Moment::Promised);
            }
            if end == world.oracle.capacity {
                world.forks.notice(Moment::Ended);
            }
        }
        OpKind::Read { point, blocks } => {
            if done.data.blocks() != blocks {
                return Err(Failure(format!("a read of {blocks} blocks gave {:?}", done.data)));
            }
            world.oracle.check_read(point, &done.data)?;
        }
        OpKind::Flush(point) => {
            world.oracle.flushed(&point);
            world.forks.notice(Moment::Promised);
        }
        OpKind::Report { point, .. } => world.oracle.check_report(&point, &done.zones)?,
        OpKind::Change { zones, .. } => {
            zones.iter().for_each(|zone| world.oracle.changed(*zone));
            world.forks.notice(Moment::Ended);
        }
        OpKind::Open { zone } => {
            let state = &mut world.oracle.zones[zone as usize];
            state.end();
            (state.opened, state.opening) = (true, false);
        }
        OpKind::Close { zone } => {
            let state = &mut world.oracle.zones[zone as usize];
            state.end();
            state.opened = false;
            // A closed zone that was opened but not written may be empty or closed: it may still count as active,
            // so the load assumes that.
        }
        OpKind::Wrong { .. } => {}
    }
    world.pool.give(done.data);
    Ok(())
}
