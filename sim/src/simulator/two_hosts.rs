//! A second host that assembles the array while the first one runs it.
//!
//! In some forks one host assembles the array, and at any moment of the load another host assembles it as well: with
//! its own executor and host id, on the same drives. The first host checks for a foreign assembly now and then; the
//! second one waits, as [`engine::array::Array::check_fence`] requires, until the first one has checked and its last
//! commands have reached the drives. Either host may be killed, a drive may fail or be unreachable for one of them, and
//! the power may be cut. The promises of the first host until the second assembly has ended, and those of the second
//! one after that, have to be kept. A fenced host promises nothing and writes nothing.

use super::{
    accept, assembly,
    command_queue::Bay,
    copy, ends,
    fault_budget::{Losses, named},
    recovered, step,
    subject::{AssembleOptions, Subject, SubjectError},
    world::{End, Failure, Pending, World},
};
use emu::rng::Rng;
use engine::{
    array::{ArrayError, Drive},
    buf::Buf,
    device::{Command, Completion},
    runtime::{Gate, Host, Pause, Runtime},
    zone::{Lba, ZoneIndex},
};
use std::{cell::Cell, rc::Rc};

/// Most events between two actions.
const MOST_EVENTS: u64 = 300;
/// Upper bound of the events of an assembly while another host runs.
const TOO_MANY_EVENTS: u64 = 1_000_000;

/// An assembly by another host.
struct RivalAssembly {
    process: u64,
    runtime: Runtime,
    pending: Pending<Rc<dyn Subject>>,
    /// It has claimed the array and is in its pause.
    waits: Rc<Cell<bool>>,
    go: Rc<Gate>,
    /// Its executor has become the world's.
    took: Cell<bool>,
}

/// Result of the assembly by another host.
enum RivalOutcome {
    /// It runs the array.
    Took(Rc<dyn Subject>),
    Refused(SubjectError),
    Killed,
    PowerCut,
}

/// The previous host, from which another one has taken the array.
struct FormerHost {
    process: u64,
    runtime: Runtime,
    subject: Rc<dyn Subject>,
    commands: Vec<(&'static str, Completion)>,
}

impl Drop for RivalAssembly {
    fn drop(&mut self) {
        if !self.took.get() {
            // Tasks hold the executor that holds them.
            self.runtime.clear();
        }
    }
}

impl Drop for FormerHost {
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

fn start_on<T: 'static>(runtime: &Runtime, work: super::subject::Work<T>) -> Pending<T> {
    let pending: Pending<T> = Rc::default();
    let result = pending.clone();
    runtime.spawn(async move {
        let value = work.await;
        *result.borrow_mut() = Some(value);
    });
    pending
}

/// Assembles a copy of the ended world by two or three hosts in turn, in a quarter of the forks.
///
/// # Errors
/// A broken promise.
pub(super) fn fence_fork(
    world: &mut World<'_>,
    ended: &World<'_>,
    losses: &Losses,
    rng: &mut Rng,
) -> Result<(), Failure> {
    let plain = copy::can_live_on(world) && !world.maker.is_layered();
    if !plain || !losses.suspects.is_empty() || !losses.offered || world.scenario.cramped || !rng.chance(1, 4)
    {
        return Ok(());
    }
    copy::on_copy(world, ended.copy(rng.fork())?, judge_two_hosts)
        .map_err(|failure| Failure(format!("with two hosts: {failure}")))
}

fn judge_two_hosts(world: &mut World<'_>) -> Result<(), Failure> {
    world.in_order = false;
    // A fenced host fails commands with any error, and reports no zones.
    (world.scenario.load.wrong, world.scenario.load.report) = (0, 0);
    let mut lost: Vec<usize> = (0..world.members.len()).collect();
    world.rng.shuffle(&mut lost);
    let most = world.scenario.parities as u64 + 1;
    lost.truncate(if world.rng.chance(1, 2) { 0 } else { world.rng.below(most) as usize });
    set_host(world, 1, None);
    world.trace.note(|| format!("fork: host 1 assembles without {}", named(&lost)));
    assembly::assemble_without(world, &lost)?;
    recovered::check_recovery(world)?;
    for host in 2..3 + world.rng.below(2) as u8 {
        let events = world.rng.below(MOST_EVENTS);
        work_for(world, events)?;
        match meet(world, host, &mut lost)? {
            RivalOutcome::Took(subject) => take_over_from_other(world, host, subject, &lost)?,
            RivalOutcome::PowerCut => return judge_rest(world, &lost),
            RivalOutcome::Refused(why) => {
                world.trace.note(|| format!("fork: host {host} does not assemble: {why}"));
                if !goes_on(world)? {
                    end_all(world)?;
                    return judge_rest(world, &lost);
                }
            }
            RivalOutcome::Killed => {
                world.trace.note(|| format!("fork: host {host} is killed"));
                if !goes_on(world)? {
                    end_all(world)?;
                    return judge_rest(world, &lost);
                }
            }
        }
    }
    end_all(world)?;
    judge_rest(world, &lost)
}

/// Judges a recovery when no host runs any more.
fn judge_rest(world: &mut World<'_>, lost: &[usize]) -> Result<(), Failure> {
    world.in_order = true;
    world.runtime.clear();
    world.runtime = Runtime::new();
    world.lenient = false;
    let missing = match world.rng.chance(1, 2) {
        true => lost.to_vec(),
        false => Vec::new(),
    };
    world.trace.note(|| format!("fork: no host runs; assembly without {}", named(&missing)));
    assembly::assemble_without(world, &missing)?;
    recovered::check_recovery(world)?;
    match world.unsound_members().find(|member| !lost.contains(member)) {
        Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
        None => Ok(()),
    }
}

fn set_host(world: &mut World<'_>, id: u8, pause: Option<Pause>) {
    world.runtime.clear();
    world.runtime = Runtime::seeded(world.rng.next_u64());
    world.runtime.set_host(Host { id: [id; 16], pause });
}

/// Ends all hosts. A killed host may have been about to be fenced: its acknowledgement log is not used.
fn end_all(world: &mut World<'_>) -> Result<(), Failure> {
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(3, 4);
    let end = *world.rng.pick(&[End::PowerCut, End::Kill, End::Shutdown]);
    let end = ends::end_by(world, end, cache_lost)?;
    world.trace.note(|| format!("fork: all hosts end: {end}"));
    world.tails = None;
    world.oracle.power_cut();
    Ok(())
}

/// Starts the assembly by another host while this one runs.
fn meet(world: &mut World<'_>, host: u8, lost: &mut Vec<usize>) -> Result<RivalOutcome, Failure> {
    let mut offered: Vec<Bay> = world.kept(lost);
    world.rng.shuffle(&mut offered);
    let process = world.command_queue.start_other();
    let (waits, go): (Rc<Cell<bool>>, Rc<Gate>) = Default::default();
    let pause: Pause = {
        let (waits, go) = (waits.clone(), go.clone());
        Rc::new(move || {
            waits.set(true);
            let go = go.clone();
            Box::pin(async move { go.wait().await })
        })
    };
    let runtime = Runtime::seeded(world.rng.next_u64());
    runtime.set_host(Host { id: [host; 16], pause: Some(pause) });
    let drive = |bay: &Bay| Drive {
        name: format!("drive{bay}"),
        device: Rc::new(world.command_queue.drive_for(process, *bay)),
    };
    let drives = offered.iter().map(drive).collect();
    world.trace.note(|| format!("fork: host {host} (process {process}) assembles from {offered:?}"));
    let how = AssembleOptions { join: world.scenario.join, ..AssembleOptions::default() };
    let pending = start_on(&runtime, world.maker.assemble(&runtime, drives, how));
    let rival = RivalAssembly { process, runtime, pending, waits, go, took: Cell::new(false) };
    (world.lenient, world.excused) = (true, 0);
    run_with(world, rival, lost)
}

/// Runs both hosts until the assembly by the other one has ended in some way.
fn run_with(
    world: &mut World<'_>,
    rival: RivalAssembly,
    lost: &mut Vec<usize>,
) -> Result<RivalOutcome, Failure> {
    let own = world.command_queue.process();
    let every = 1 + world.rng.below(200);
    // At least half of the assemblies end without a fault.
    let ends = world.rng.chance(1, 2).then(|| world.rng.below(2 * MOST_EVENTS));
    let (mut check, mut noticed, mut gone) = (None::<(bool, Pending<()>)>, false, false);
    for event in 0..TOO_MANY_EVENTS {
        if let Some(result) = rival.pending.borrow_mut().take() {
            return Ok(match result {
                Ok(subject) => {
                    // From here on the world runs the executor of the other host.
                    former(world, own, &rival)?;
                    RivalOutcome::Took(subject)
                }
                Err(why) => {
                    world.command_queue.kill_one(rival.process, &mut world.rng);
                    RivalOutcome::Refused(why)
                }
            });
        }
        let subject = world.subject.clone();
        let done = check.as_ref().filter(|(_, pending)| pending.borrow().is_some()).map(|(after, _)| *after);
        if let Some(after) = done {
            noticed |= after;
            check = None;
        }
        if let Some(subject) = subject.as_ref().filter(|_| check.is_none() && world.rng.chance(1, every)) {
            check = Some((rival.waits.get(), world.start(subject.check_fence())));
        }
        // The first host has checked, and its commands that were in flight when it was fenced have reached the
        // drives.
        let let_go =
            |subject: &Rc<dyn Subject>| subject.is_fenced() && world.command_queue.is_used_by(own, false);
        let settled = subject.is_none() || noticed && !subject.as_ref().is_some_and(let_go);
        if rival.waits.get() && settled && !gone {
            gone = true;
            rival.go.open();
        }
        if ends == Some(event) {
            match strike_one(world, &rival, own, lost)? {
                Some(met) => return Ok(met),
                None => check = check.filter(|_| world.subject.is_some()),
            }
        }
        let moved = match world.rng.below(3) {
            0 => rival.runtime.step(),
            _ => step::event(world, true, false)?,
        };
        if !moved && world.command_queue.queued() + world.command_queue.executed() == 0 {
            let stuck = !rival.runtime.step() && !world.runtime.step();
            if stuck && world.subject.is_none() && rival.pending.borrow().is_none() && gone {
                return Err(Failure("the assembly of another host never ends".into()));
            }
        }
    }
    Err(Failure(format!("an assembly beside another host has not ended after {TOO_MANY_EVENTS} events")))
}

/// Injects a fault while two hosts are running.
fn strike_one(
    world: &mut World<'_>,
    rival: &RivalAssembly,
    own: u64,
    lost: &mut Vec<usize>,
) -> Result<Option<RivalOutcome>, Failure> {
    match world.rng.below(6) {
        0 => {
            world.command_queue.kill_one(rival.process, &mut world.rng);
            return Ok(Some(RivalOutcome::Killed));
        }
        1 | 2 => {
            world.trace.note(|| "fork: the host that runs is killed".into());
            world.command_queue.kill_one(own, &mut world.rng);
            ends::end_process(world);
            world.oracle.power_cut();
        }
        3 => {
            world.trace.note(|| "fork: the power is cut".into());
            end_all(world)?;
            return Ok(Some(RivalOutcome::PowerCut));
        }
        kind => {
            let member = match lost.first() {
                None => world.rng.below(world.members.len() as u64) as usize,
                Some(_) => return Ok(None),
            };
            let Some(bay) = world.members[member] else { return Ok(None) };
            lost.push(member);
            match kind {
                4 => world.command_queue.set_gone(bay, true),
                _ => world.command_queue.cut_off(*world.rng.pick(&[own, rival.process]), bay),
            }
            world.trace.note(|| format!("fork: member {member} is out of reach, for all: {}", kind == 4));
        }
    }
    Ok(None)
}

/// Checks that the previous host, if it still runs, is fenced and does nothing from now on.
fn former(world: &mut World<'_>, own: u64, rival: &RivalAssembly) -> Result<(), Failure> {
    rival.took.set(true);
    let runtime = std::mem::replace(&mut world.runtime, rival.runtime.clone());
    let subject = world.subject.take();
    world.command_queue.switch_to(rival.process);
    if let Some(subject) = subject {
        if !subject.is_fenced() {
            runtime.clear();
            return Err(Failure("a host goes on with an array that another one has assembled".into()));
        }
        world.ops.clear();
        world.held.clear();
        let mut former = FormerHost { process: own, runtime, subject, commands: Vec::new() };
        try_former(world, &mut former)?;
    } else {
        runtime.clear();
    }
    Ok(())
}

/// Commands to a fenced host fail, and none of its own commands reaches a drive.
fn try_former(world: &mut World<'_>, former: &mut FormerHost) -> Result<(), Failure> {
    let Some(limits) = world.limits.clone() else { return Ok(()) };
    for zone in 0..limits.zones.min(3) {
        let end = world.oracle.zones[zone as usize].submitted().min(limits.zone_capacity_blocks - 1);
        let lba = Lba(limits.start(ZoneIndex(zone)).0 + end);
        for (what, command) in [
            ("write", Command::write(lba, Buf::zeroed(4096), true)),
            ("flush", Command::Flush),
            ("read", Command::read(lba, Buf::zeroed(4096))),
        ] {
            former.commands.push((what, former.subject.submit(command)));
        }
    }
    for _ in 0..1000 {
        if !former.runtime.step() {
            break;
        }
    }
    if world.command_queue.is_used_by(former.process, true) {
        return Err(Failure("a host writes that has let go of the array".into()));
    }
    for (what, completion) in &mut former.commands {
        match completion.take() {
            Some(done) if done.result.is_ok() => {
                return Err(Failure(format!("a host that has let go of the array answers a {what}")));
            }
            Some(_) => (),
            None => return Err(Failure(format!("a host that has let go never answers a {what}"))),
        }
    }
    Ok(())
}

/// Continues with the array of the other host and judges it.
fn take_over_from_other(
    world: &mut World<'_>,
    host: u8,
    subject: Rc<dyn Subject>,
    lost: &[usize],
) -> Result<(), Failure> {
    world.trace.note(|| format!("fork: host {host} has the array, without {}", named(lost)));
    world.lenient = false;
    world.tails = None;
    world.oracle.power_cut();
    world.oracle.process_ended();
    world.ready = true;
    let offered = world.kept(&[]);
    world.oracle.volatile_cache = accept::promise(world, &*subject, &offered, true)?;
    accept::take_subject(world, subject)?;
    recovered::check_recovery(world)?;
    match world.unsound_members().find(|member| !lost.contains(member)) {
        Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
        None => Ok(()),
    }
}

/// Whether the host still runs the array, because no other host has assembled it.
fn goes_on(world: &mut World<'_>) -> Result<bool, Failure> {
    let Some(subject) = world.subject.clone() else { return Ok(false) };
    let check = world.start(subject.check_fence());
    loop {
        if let Some(result) = check.borrow_mut().take() {
            world.lenient = false;
            return match result {
                Ok(()) if world.excused > 0 => {
                    Err(Failure("operations have failed on a host that goes on".into()))
                }
                Ok(()) => Ok(true),
                Err(SubjectError::Array(ArrayError::Fenced)) => Ok(false),
                Err(why) => Err(Failure(format!("a check for other hosts: {why}"))),
            };
        }
        step::event(world, false, true)?;
    }
}

/// Runs the load for this number of events.
fn work_for(world: &mut World<'_>, events: u64) -> Result<(), Failure> {
    (0..events).try_for_each(|_| step::event(world, true, false).map(|_| ()))
}
