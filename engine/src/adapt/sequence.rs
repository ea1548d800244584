//! Sequencer: one write at a time in each zone, for drives that are written at the write pointer.
//!
//! NVMe promises no order among commands in flight, so two writes to a sequential zone must not be in flight together.
//! [`Sequencer`] submits one write a zone at a time, as the kernel's `mq-deadline` scheduler does; later ones wait, and
//! waiting writes that follow each other are merged into one command. The order of the calls is the order in which a
//! zone's writes, appends, opens, closes, finishes and resets are carried out. Reads, reports, flushes, ZRWA flushes
//! and commands for all zones at once do not wait.
//!
//! A zone with a ZRWA may be written in any order and needs none of this.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completer, Completion, Done, DriveId, Geometry, Slots, ZonedDevice},
    runtime::{Gate, Runtime},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::{Rc, Weak},
};

/// A drive whose zones are written one command at a time. Commands that still wait when it is dropped are never
/// submitted.
pub struct Sequencer(Rc<SequencerInner>);

struct SequencerInner {
    device: Rc<dyn ZonedDevice>,
    runtime: Runtime,
    slots: Rc<Slots>,
    /// Lanes: one for each zone with a command in flight. They are reused.
    lanes: RefCell<Vec<Rc<SequencerLane>>>,
    pool: RefCell<BufPool>,
}

/// Queue of the commands of one zone, of which one is in flight.
#[derive(Default)]
struct SequencerLane {
    /// The zone; `None` if the lane is idle.
    zone: Cell<Option<ZoneIndex>>,
    flight: Cell<Option<Completion>>,
    /// The commands that the one in flight completes; several if it is a merged write.
    owners: RefCell<Vec<CommandOwner>>,
    waiting: RefCell<VecDeque<(Command, Completer)>>,
    begun: Gate,
}

/// A submitted command: its completer, and its buffers if it was merged, since the merged command has copies.
struct CommandOwner {
    completer: Completer,
    data: Buf,
    oob: Buf,
}

impl Sequencer {
    /// Wraps `device`. `runtime` runs a task for each zone that is in use at the same time.
    pub fn new(runtime: &Runtime, device: Rc<dyn ZonedDevice>) -> Sequencer {
        Sequencer(Rc::new(SequencerInner {
            device,
            runtime: runtime.clone(),
            slots: Rc::default(),
            lanes: RefCell::default(),
            pool: RefCell::default(),
        }))
    }
}

impl ZonedDevice for Sequencer {
    fn geometry(&self) -> &Geometry {
        self.0.device.geometry()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.0.device.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.0.device.drive_id()
    }

    fn optimal_write_blocks(&self) -> u64 {
        self.0.device.optimal_write_blocks()
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        self.0.device.reread(lba, attempt)
    }

    fn submit(&self, command: Command) -> Completion {
        let inner = &self.0;
        let zone = match &command {
            Command::Read { .. } | Command::FlushZrwa { .. } => None,
            command => command.zone(inner.device.geometry()),
        };
        let Some(zone) = zone else { return inner.device.submit(command) };
        let (completer, completion) = inner.slots.pair();
        let lane = inner.lane(zone);
        lane.waiting.borrow_mut().push_back((command, completer));
        if lane.zone.replace(Some(zone)).is_none() {
            inner.launch(&lane);
            lane.begun.open();
        }
        completion
    }
}

impl SequencerInner {
    /// The lane of `zone`, or an idle or new one.
    fn lane(self: &Rc<Self>, zone: ZoneIndex) -> Rc<SequencerLane> {
        let mut lanes = self.lanes.borrow_mut();
        let find = |wanted| lanes.iter().find(|lane| lane.zone.get() == wanted);
        if let Some(lane) = find(Some(zone)).or_else(|| find(None)) {
            return lane.clone();
        }
        let lane = Rc::new(SequencerLane::default());
        lanes.push(lane.clone());
        self.runtime.spawn(serve(lane.clone(), Rc::downgrade(self)));
        lane
    }

    /// Submits the oldest waiting command, merged with the writes that continue it; if none waits, the lane becomes
    /// idle.
    fn launch(&self, lane: &SequencerLane) {
        let mut waiting = lane.waiting.borrow_mut();
        let Some((first, completer)) = waiting.pop_front() else { return lane.zone.set(None) };
        let mut owners = lane.owners.borrow_mut();
        assert!(owners.is_empty(), "a zone gets a command while one of {} owners is in flight", owners.len());
        owners.push(CommandOwner { completer, data: Buf::default(), oob: Buf::default() });
        let more = followers(&first, &waiting, self.device.geometry().max_transfer_blocks as u64);
        let command = match first {
            Command::Write { lba, data, oob, mut fua } if more > 0 => {
                owners[0].data = data;
                owners[0].oob = oob;
                for (command, completer) in waiting.drain(..more) {
                    let Command::Write { data, oob, fua: also, .. } = command else { continue };
                    fua |= also;
                    owners.push(CommandOwner { completer, data, oob });
                }
                assert_eq!(
                    owners.len(),
                    1 + more,
                    "owners of a merged write, and writes that it consists of"
                );
                let data = self.gather(&owners, |owner| &owner.data);
                let oob = self.gather(&owners, |owner| &owner.oob);
                Command::Write { lba, data, oob, fua }
            }
            single => single,
        };
        let before = lane.flight.replace(Some(self.device.submit(command)));
        assert!(before.is_none(), "a zone has two commands in flight");
    }

    /// Copies one buffer of each owner to a common buffer.
    fn gather(&self, owners: &[CommandOwner], part: fn(&CommandOwner) -> &Buf) -> Buf {
        let len = owners.iter().map(|owner| part(owner).len()).sum::<usize>();
        if len == 0 {
            return Buf::default();
        }
        let mut whole = self.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64);
        let mut rest = &mut whole[..];
        for owner in owners {
            let (target, behind) = rest.split_at_mut(part(owner).len());
            target.copy_from_slice(part(owner));
            rest = behind;
        }
        whole.freeze().slice(0..len)
    }

    /// Completes the command for all its owners.
    fn answer(&self, lane: &SequencerLane, done: Done) {
        let mut owners = lane.owners.borrow_mut();
        if owners.len() == 1 {
            if let Some(owner) = owners.pop() {
                owner.completer.complete(done);
            }
            return;
        }
        for CommandOwner { completer, data, oob } in owners.drain(..) {
            completer.complete(Done { result: done.result, data, oob, ..Done::ok() });
        }
        let mut pool = self.pool.borrow_mut();
        pool.give(done.data);
        pool.give(done.oob);
    }
}

/// Number of writes at the head of `waiting` that continue `first`, a write, such that all together have at most `most`
/// blocks.
fn followers(first: &Command, waiting: &VecDeque<(Command, Completer)>, most: u64) -> usize {
    let shape = |command: &Command| match command {
        Command::Write { lba, data, oob, .. } if data.len().is_multiple_of(BLOCK) && !data.is_empty() => {
            Some((*lba, data.blocks(), oob.len() / data.blocks() as usize))
        }
        _ => None,
    };
    let Some((start, mut blocks, oob_bytes)) = shape(first) else { return 0 };
    let fits = |command: &Command| {
        let Some((lba, more, its_oob_bytes)) = shape(command) else { return false };
        let fits = lba == Lba(start.0 + blocks) && its_oob_bytes == oob_bytes && blocks + more <= most;
        blocks += more;
        fits
    };
    waiting.iter().map(|(command, _)| command).map(fits).take_while(|fits| *fits).count()
}

/// Task of a lane: waits for its command in flight, and submits the next one.
async fn serve(lane: Rc<SequencerLane>, sequencer: Weak<SequencerInner>) {
    loop {
        let Some(flight) = lane.flight.take() else {
            lane.begun.wait().await;
            continue;
        };
        let done = flight.await;
        let Some(inner) = sequencer.upgrade() else { return };
        inner.answer(&lane, done);
        inner.launch(&lane);
    }
}
