//! A zone at work: how far it is, and what is on its way. All of it changes in this room alone.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Completer, Completion, Done},
    raid::{
        geometry::{Layout, MAX_MEMBERS, MAX_PARITIES},
        policy::Policy,
        seat::Seat,
    },
    runtime::Gate,
    zone::ZoneIndex,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
};

/// A zone with something going on.
pub struct Zone {
    pub index: ZoneIndex,
    /// The zone has failed and refused what was queued: whatever is rebuilt, it goes on only with a reset or
    /// in the next assembly.
    pub failed: Cell<bool>,
    /// The first promise has been recorded, or needs no record (`Raid::record_promise`).
    pub promised: Cell<bool>,
    pub flow: RefCell<Flow>,
    /// Something was queued, or more may be submitted.
    pub(super) queued: Gate,
    /// Something was submitted, or the tasks have to look again.
    pub(super) submitted: Gate,
    /// There may be something to settle.
    pub(super) completed: Gate,
    /// Anything else changed: waited for by whoever wants the zone quiet, or safe up to a point.
    pub(super) changed: Gate,
}

/// Blocks are counted from the start of the logical zone.
#[derive(Default)]
pub struct Flow {
    pub(super) epoch: u64,
    /// Whether the members' zones have been opened, or are being opened now.
    pub(super) open: bool,
    pub(super) opening: bool,
    /// The zone is over: full, reset or finished. Its tasks end.
    pub(super) ended: bool,
    /// Number of those who want no more submissions for now.
    pub(super) paused: u32,
    /// The zone is about to end: nothing is settled any more.
    pub(super) frozen: bool,
    /// Everything below has been submitted; `parity` belongs to this tail.
    pub(super) next: u64,
    /// Everything below is complete on the members.
    pub(super) complete: u64,
    /// Everything below survives a power cut and the loss of a member.
    pub(super) safe: u64,
    /// Somebody waits for everything below to be safe.
    pub(super) wanted: u64,
    /// Number of those who wait for something to be complete.
    pub(super) awaited: u32,
    /// The zone has failed, and flushes up to this number have told that something of it is not safe, or will.
    pub(super) loss_told: Option<u64>,
    /// Everything below may be submitted: the window.
    pub(super) limit: u64,
    /// Chunks that are settled: shown by write pointers or, with the policy `log`, safe; and each
    /// member's position: its write pointer in half chunks or, with `log`, in blocks, as submitted.
    pub(super) claimed: u64,
    pub(super) positions: [u64; MAX_MEMBERS],
    pub(super) settling: bool,
    /// Policy `inplace`: the tail in the zone's last tail record.
    pub(super) told: u64,
    /// Which of the two log blocks was written last.
    pub(super) log_block: u64,
    /// Explicit flushes that are on their way: one caller of `move_to` at a time.
    pub(super) moves: VecDeque<(Seat, Completion)>,
    /// One chunk for each parity, of the stripe of `next`: below the tail's offset with its chunk, above
    /// without.
    pub(super) parities: [BufMut; MAX_PARITIES],
    /// Parities of the partial stripe that assembly has found on the members, and that contradict the data.
    pub(super) found: Found,
    /// Writes that have not been submitted to their end; they start where `sent` ends.
    pub(super) queue: VecDeque<Write>,
    /// Writes that have been, and are not complete.
    pub(super) sent: VecDeque<Write>,
    pub(super) flights: VecDeque<Flight>,
    /// The most that was queued and in flight together since this stripe was begun, and the one
    /// before it.
    pub(super) depth: [u64; 2],
    /// Sub-requests of all flights, in order.
    pub(super) subs: VecDeque<Sub>,
    /// FUA writes and others that are complete and wait to be safe.
    pub(super) waiting: VecDeque<(u64, Completer, Done)>,
    /// The data of a plan, chunk by chunk: kept for its allocation.
    pub(super) pieces: Vec<Buf>,
}

/// A write on its way through the zone.
pub(super) struct Write {
    /// Its first block.
    pub start: u64,
    pub data: Buf,
    pub fua: bool,
    pub completer: Completer,
}

impl Write {
    pub fn end(&self) -> u64 {
        self.start + self.data.blocks()
    }
}

/// P and Q of some blocks, as far as they are to be written.
pub type Parities = [Option<Buf>; MAX_PARITIES];

/// Blocks of the parities of a partial stripe as the members had them at assembly, where the data says something else:
/// one of the two is damaged. By parity and offset in the chunk.
#[derive(Default)]
pub struct Found {
    /// The tail of the zone that they belong to.
    pub tail: u64,
    pub blocks: BTreeMap<(usize, u64), Buf>,
    /// Offsets at which one of the parities differs: the others are needed with it.
    differing: BTreeSet<u64>,
}

impl Found {
    /// Notes what was found of block `at` of parity `which`, and whether the data says something else.
    pub fn compare(&mut self, (which, at): (usize, u64), found: Option<&[u8]>, said: &[u8]) {
        let Some(found) = found else { return };
        self.blocks.insert((which, at), Buf::copy_of(found));
        if found != said {
            self.differing.insert(at);
        }
    }

    /// Forgets what agrees with the data.
    fn keep_differing(&mut self) {
        let differing = &self.differing;
        self.blocks.retain(|(_, at), _| differing.contains(at));
    }
}

/// A chunk of zeros for each parity.
pub fn blank_parities(layout: &Layout) -> [BufMut; MAX_PARITIES] {
    std::array::from_fn(|which| match which < layout.parities {
        true => BufMut::zeroed(layout.chunk_blocks as usize * BLOCK),
        false => BufMut::default(),
    })
}

/// A plan that is on its way.
pub(super) struct Flight {
    pub end: u64,
    /// Sub-requests that have not been looked at.
    pub subs: u32,
    /// What it added to the traffic of the array.
    pub traffic: Traffic,
}

/// What is on its way to the members: commands, and blocks of data and parity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub commands: u64,
    pub blocks: u64,
}

pub(super) struct Sub {
    pub seat: Seat,
    pub completion: Completion,
    pub blocks: u64,
}

/// What a round of settling has to do.
pub struct Round {
    /// Everything below is complete.
    pub complete: u64,
    /// Somebody waits for that to be safe.
    pub wanted: bool,
    /// Chunks that are to count as settled, and those that do.
    pub chunks: u64,
    pub claimed: u64,
}

impl Zone {
    /// A zone in the life `epoch` that nothing has been written to.
    pub fn new(layout: &Layout, index: ZoneIndex, epoch: u64) -> Zone {
        let flow = Flow {
            epoch,
            limit: layout.distance.min(layout.rows) * layout.stripe_blocks(),
            parities: blank_parities(layout),
            ..Flow::default()
        };
        Zone {
            index,
            failed: Cell::default(),
            promised: Cell::default(),
            flow: RefCell::new(flow),
            queued: Gate::default(),
            submitted: Gate::default(),
            completed: Gate::default(),
            changed: Gate::default(),
        }
    }

    /// Has nothing be submitted from now on. What is on its way goes on.
    pub fn pause(&self) {
        self.flow.borrow_mut().paused += 1;
    }

    /// Waits until everything below `tail_blocks` is complete, or the zone has ended; `false` if it has failed
    /// before that.
    pub async fn landed(&self, tail_blocks: u64) -> bool {
        self.flow.borrow_mut().awaited += 1;
        loop {
            let changed = self.changed.wait();
            {
                let mut flow = self.flow.borrow_mut();
                let landed = flow.complete >= tail_blocks || flow.ended;
                if landed || self.failed.get() && flow.flights.is_empty() {
                    flow.awaited -= 1;
                    return landed;
                }
            }
            changed.await;
        }
    }

    /// Ends the tasks of the zone. What has not been submitted is never answered.
    pub fn end(&self) {
        self.flow.borrow_mut().ended = true;
        self.wake();
    }

    /// Has every task of the zone look again.
    pub fn wake(&self) {
        self.queued.open();
        self.submitted.open();
        self.completed.open();
        self.changed.open();
    }
}

impl Flow {
    /// The life that the zone is in.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Everything below this block is complete on the members.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Chunks that are settled.
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Each member's position, as submitted (see [`crate::raid::policy::Policy::position_blocks`]).
    pub fn positions(&self) -> &[u64; MAX_MEMBERS] {
        &self.positions
    }

    /// Whether the members' zones have been opened, or are being opened now.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether the zone is full, reset or finished.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether something has been submitted that is not complete.
    pub fn is_ahead(&self) -> bool {
        self.next > self.complete
    }

    /// Whether the zone has ended, or is about to.
    pub fn is_over(&self) -> bool {
        self.ended || self.frozen
    }

    /// Whether nothing of the zone has been submitted.
    pub fn is_unwritten(&self) -> bool {
        self.next == 0
    }

    /// Whether everything that has been submitted survives a power cut and the loss of a member.
    pub fn is_all_safe(&self) -> bool {
        self.safe == self.next
    }

    /// Policy `inplace`: the tail in the zone's last tail record.
    pub fn told(&self) -> u64 {
        self.told
    }

    pub fn tell(&mut self, tail_blocks: u64) {
        self.told = tail_blocks;
    }

    /// Which of the two log blocks was written last.
    pub fn log_block(&self) -> u64 {
        self.log_block
    }

    /// The log block to be written next.
    pub fn next_log_block(&mut self) -> u64 {
        self.log_block = 1 - self.log_block;
        self.log_block
    }

    /// What becomes of `data` for block `at` of a member's part (see [`crate::raid::policy::Policy::split`]).
    pub fn split(
        &mut self,
        policy: Policy,
        member: usize,
        at: u64,
        data: Buf,
    ) -> (Option<Buf>, Option<(u64, Buf)>) {
        policy.split(&mut self.positions[member], at, data)
    }

    /// A member takes part again, at this position.
    pub fn join(&mut self, member: usize, position: u64) {
        self.positions[member] = position;
    }

    /// Everything below a tail is safe, with so many chunks settled.
    pub fn secure(&mut self, tail_blocks: u64, chunks: u64) {
        self.claimed = chunks;
        self.safe = tail_blocks;
    }

    /// Everything below may be submitted from now on.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Somebody waits for everything below `tail_blocks` to be safe.
    pub fn want(&mut self, tail_blocks: u64) {
        self.wanted = self.wanted.max(tail_blocks);
    }

    /// What is true of a zone at work at any time.
    ///
    /// # Panics
    /// When it is not: better to stop than to answer for what is not there.
    pub(super) fn check(&self) {
        let Flow { safe, complete, next, limit, .. } = *self;
        assert!(safe <= complete, "safe up to {safe}, complete up to {complete}");
        assert!(complete <= next, "complete up to {complete}, submitted up to {next}");
        assert!(next <= limit || !self.open, "submitted up to {next}, the window ends at {limit}");
    }

    /// Sets what recovery found.
    pub fn restore(
        &mut self,
        tail: u64,
        positions: [u64; MAX_MEMBERS],
        (parities, found): ([BufMut; MAX_PARITIES], Found),
    ) {
        self.open = true;
        self.next = tail;
        self.complete = tail;
        self.positions = positions;
        self.parities = parities;
        self.found = Found { tail, ..found };
        self.found.keep_differing();
    }

    /// Nothing goes on, and everything that is there is safe.
    pub fn end_here(&mut self) {
        self.safe = self.complete;
        self.frozen = true;
    }

    /// Blocks `from..to` of parity number `which` of the stripe that is being written.
    pub fn parity(&self, which: usize, from: u64, to: u64) -> Buf {
        Buf::copy_of(&self.parities[which][from as usize * BLOCK..to as usize * BLOCK])
    }
}
