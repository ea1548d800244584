//! State of a running zone: its progress, and the writes and commands in flight. The fields are private to `zone`.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Completer, Completion, Done},
    raid::{
        geometry::{ChunkRange, Layout, MAX_MEMBERS, MAX_PARITIES},
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

/// A running zone.
pub struct Zone {
    pub index: ZoneIndex,
    /// The zone has failed, and its queued writes have returned errors. Even after a rebuild it can be written only
    /// after a reset, or in the next assembly.
    pub failed: Cell<bool>,
    /// The first promise has been recorded, is being recorded, or needs no record (`record_promise`).
    pub promised: Cell<bool>,
    pub flow: RefCell<Flow>,
    /// Opened when a write is queued, or more may be submitted. Awaited by `submit_plans`.
    pub(super) queued: Gate,
    /// Opened when a plan is submitted. Awaited by `reap_flights`.
    pub(super) submitted: Gate,
    /// Opened when there may be something to settle. Awaited by `settle`.
    pub(super) completed: Gate,
    /// Opened when the zone may have become quiesced, or complete or safe up to some block.
    pub(super) changed: Gate,
}

/// Progress of a zone. Blocks are counted from the start of the logical zone.
#[derive(Default)]
pub struct Flow {
    pub(super) epoch: u64,
    /// Whether the members' zones are open or being opened, and whether they are being opened.
    pub(super) open: bool,
    pub(super) opening: bool,
    /// The zone is full, reset or finished, and its tasks end.
    pub(super) ended: bool,
    /// Number of callers that have paused submission.
    pub(super) paused: u32,
    /// Writes of cells in flight.
    pub(super) cells: u32,
    /// The zone is about to end: nothing is settled any more.
    pub(super) frozen: bool,
    /// End of the submitted blocks; `parities` are those of this tail.
    pub(super) next: u64,
    /// End of the blocks that are complete on the members.
    pub(super) complete: u64,
    /// End of the blocks that survive a power cut and the loss of a member.
    pub(super) safe: u64,
    /// End of the blocks that have to be made safe, for a flush, a FUA write or a rebuild.
    pub(super) wanted: u64,
    /// Number of calls of [`Zone::wait_until_complete`] in progress.
    pub(super) awaited: u32,
    /// Number of the last flush that reports completed data of this failed zone as not safe; `None` before the first.
    pub(super) loss_reported: Option<u64>,
    /// End of the window: blocks below may be submitted.
    pub(super) limit: u64,
    /// Number of settled chunks: shown by write pointers or, with the policy `log`, safe.
    pub(super) claimed: u64,
    /// Write pointer of each member: in half chunks, as completed; with the policy `log` in blocks, as submitted.
    pub(super) positions: [u64; MAX_MEMBERS],
    /// A round of settling is in progress.
    pub(super) settling: bool,
    /// See [`Flow::without_zrwa`].
    without_zrwa: u32,
    /// Policy `inplace`: the tail in the zone's last tail record, in blocks.
    pub(super) recorded_tail: u64,
    /// The log block that was written last: 0 or 1.
    pub(super) log_block: u64,
    /// Explicit flushes in flight; there is one caller of `move_to` at a time.
    pub(super) moves: VecDeque<(Seat, Completion)>,
    /// Running parities of the stripe of `next`, one chunk each: below the offset of `next` with its chunk, above it
    /// without.
    pub(super) parities: [BufMut; MAX_PARITIES],
    /// Parities of the partial stripe that assembly found on the members and that contradict the data.
    pub(super) found: ParityMismatch,
    /// Writes that have not been submitted completely; they follow those in `sent`.
    pub(super) queue: VecDeque<Write>,
    /// Writes that have been submitted completely, and are not complete on the members.
    pub(super) sent: VecDeque<Write>,
    pub(super) flights: VecDeque<SubmittedPlan>,
    /// Maximum of the blocks queued and in flight since the present stripe was begun; the same of the stripe before.
    pub(super) depth: [u64; 2],
    /// Sub-requests of all flights, in order.
    pub(super) subs: VecDeque<SubRequest>,
    /// Notes, each with the tail that it belongs to, in order: of writes that are not logged yet, and of the last one.
    notes: VecDeque<(u64, Buf)>,
    /// Complete writes that are acknowledged when they are safe, each with the end of its plan.
    pub(super) waiting: VecDeque<(u64, Completer, Done)>,
    /// Data of a plan by chunk: kept for its allocation.
    pub(super) pieces: Vec<Buf>,
}

/// A write that has not been acknowledged.
pub(super) struct Write {
    /// First block.
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

/// P and Q of the same blocks; `None` for a parity that is not to be written, or not known.
pub type Parities = [Option<Buf>; MAX_PARITIES];

/// Parity blocks of the partial stripe as assembly read them, where they contradict the data: either is damaged.
#[derive(Default)]
pub struct ParityMismatch {
    /// Tail of the zone that they belong to.
    pub tail: u64,
    /// By parity number and offset in the chunk.
    pub blocks: BTreeMap<(usize, u64), Buf>,
    /// Offsets at which the stripe is complete and contradicts its parity; it is not known which of its blocks is wrong.
    pub contradicting: BTreeSet<u64>,
    /// Offsets at which a parity contradicts the data. The other parity is kept there too, as decoding may need both.
    differing: BTreeSet<u64>,
}

impl ParityMismatch {
    /// Adds block `at` of parity `which` as it was read, if it was; `computed` is that parity computed from the data.
    pub fn compare(&mut self, (which, at): (usize, u64), found: Option<&[u8]>, computed: &[u8]) {
        let Some(found) = found else { return };
        self.blocks.insert((which, at), Buf::copy_of(found));
        if found != computed {
            self.differing.insert(at);
        }
    }

    /// Drops the blocks at offsets where parity agrees with the data.
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

/// A submitted plan.
pub(super) struct SubmittedPlan {
    pub end: u64,
    /// Sub-requests that have not been reaped.
    pub subs: u32,
    /// Its share of the array's traffic.
    pub traffic: Traffic,
}

/// Traffic to the members: commands in flight, and their blocks of data and parity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub commands: u64,
    pub blocks: u64,
}

pub(super) struct SubRequest {
    pub seat: Seat,
    pub completion: Completion,
    pub blocks: u64,
}

/// Work of a round of settling.
pub struct Round {
    /// End of the complete blocks.
    pub complete: u64,
    /// Whether these have to be made safe.
    pub wanted: bool,
    /// Chunks that are to count as settled after the round, and chunks that are settled before it.
    pub chunks: u64,
    pub claimed: u64,
}

impl Zone {
    /// A zone without data, in this epoch.
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

    /// Pauses submission. Commands in flight continue.
    pub fn pause(&self) {
        self.flow.borrow_mut().paused += 1;
    }

    /// Waits until all blocks below `tail_blocks` are complete, or the zone has ended; `false` if the zone fails before
    /// that.
    pub async fn wait_until_complete(&self, tail_blocks: u64) -> bool {
        self.flow.borrow_mut().awaited += 1;
        loop {
            let changed = self.changed.wait();
            {
                let mut flow = self.flow.borrow_mut();
                let is_complete = flow.complete >= tail_blocks || flow.ended;
                if is_complete || self.failed.get() && flow.flights.is_empty() {
                    flow.awaited -= 1;
                    return is_complete;
                }
            }
            changed.await;
        }
    }

    /// Ends the tasks of the zone. Queued writes are never completed.
    pub fn end(&self) {
        self.flow.borrow_mut().ended = true;
        self.wake();
    }

    /// Wakes all tasks of the zone.
    pub fn wake(&self) {
        self.queued.open();
        self.submitted.open();
        self.completed.open();
        self.changed.open();
    }
}

impl Flow {
    /// The zone's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// End of the blocks that are complete on the members.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Number of settled chunks.
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Position of each member (see [`crate::raid::policy::Policy::position_blocks`]).
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

    /// Whether submitted blocks are not complete.
    pub fn is_ahead(&self) -> bool {
        self.next > self.complete
    }

    /// Whether the zone has ended, or is frozen: nothing is settled any more.
    pub fn is_over(&self) -> bool {
        self.ended || self.frozen
    }

    /// Whether no block of the zone has been submitted.
    pub fn is_unwritten(&self) -> bool {
        self.next == 0
    }

    /// Whether all submitted blocks survive a power cut and the loss of a member.
    pub fn is_all_safe(&self) -> bool {
        self.safe == self.next
    }

    /// Policy `inplace`: the tail in the zone's last tail record, in blocks.
    pub fn recorded_tail(&self) -> u64 {
        self.recorded_tail
    }

    pub fn set_recorded_tail(&mut self, tail_blocks: u64) {
        assert!(
            tail_blocks <= self.next,
            "a tail at {tail_blocks} is logged, {} blocks were submitted",
            self.next
        );
        self.recorded_tail = tail_blocks;
    }

    /// The log block that was written last: 0 or 1.
    pub fn log_block(&self) -> u64 {
        self.log_block
    }

    /// Switches to the log block to be written next, and returns it.
    pub fn next_log_block(&mut self) -> u64 {
        self.log_block = 1 - self.log_block;
        self.log_block
    }

    /// Splits `data` for block `at` of a member's part (see [`crate::raid::policy::Policy::split`]).
    pub fn split(
        &mut self,
        policy: Policy,
        member: usize,
        at: u64,
        data: Buf,
    ) -> (Option<Buf>, Option<(u64, Buf)>) {
        policy.split(&mut self.positions[member], at, data)
    }

    /// Sets the position of a member whose part has been rebuilt.
    pub fn join(&mut self, member: usize, position: u64) {
        self.positions[member] = position;
    }

    /// Records that all blocks below a tail are safe, and the number of settled chunks.
    ///
    /// # Panics
    /// If the tail is beyond the complete blocks.
    pub fn secure(&mut self, tail_blocks: u64, chunks: u64) {
        assert!(tail_blocks <= self.complete, "safe up to {tail_blocks}, complete up to {}", self.complete);
        self.claimed = chunks;
        self.safe = tail_blocks;
    }

    /// Sets the end of the window.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Requests that all blocks below `tail_blocks` be made safe.
    pub fn want(&mut self, tail_blocks: u64) {
        self.wanted = self.wanted.max(tail_blocks);
    }

    /// Checks the invariants of a running zone.
    ///
    /// # Panics
    /// If one is violated: data that was not written could be acknowledged otherwise.
    pub(super) fn check(&self) {
        let Flow { safe, complete, next, limit, .. } = *self;
        assert!(safe <= complete, "safe up to {safe}, complete up to {complete}");
        assert!(complete <= next, "complete up to {complete}, submitted up to {next}");
        assert!(next <= limit || !self.open, "submitted up to {next}, the window ends at {limit}");
        assert!(self.log_block <= 1, "log block {} of two", self.log_block);
    }

    /// Adds the note of a tail that is not complete yet, or of the tail with which the zone continues.
    ///
    /// # Panics
    /// If the tail is not behind that of the note before.
    pub fn add_note(&mut self, tail_blocks: u64, note: Buf) {
        let last = self.notes.back().map_or(0, |(tail, _)| *tail);
        assert!(tail_blocks > last, "a note of a tail at {tail_blocks} follows one at {last}");
        self.notes.push_back((tail_blocks, note));
    }

    /// Whether no write is queued or in flight.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty()
    }

    /// Start and end of the first queued write with a note.
    pub(super) fn queued_with_note(&self) -> Option<(u64, u64)> {
        let (end, _) = self.notes.iter().find(|(tail, _)| *tail > self.next)?;
        self.queue.iter().find(|write| write.end() == *end).map(|write| (write.start, *end))
    }

    /// The note of a tail.
    pub fn note_of(&self, tail_blocks: u64) -> Option<&Buf> {
        self.notes.iter().find(|(tail, _)| *tail == tail_blocks).map(|(_, note)| note)
    }

    /// Drops the notes of tails before one that is logged.
    pub fn drop_notes_before(&mut self, tail_blocks: u64) {
        while self.notes.front().is_some_and(|(tail, _)| *tail < tail_blocks) {
            self.notes.pop_front();
        }
    }

    /// Sets the state of a zone that continues at `tail`: the positions, and the parities that were computed and found.
    pub fn restore(
        &mut self,
        tail: u64,
        positions: [u64; MAX_MEMBERS],
        (parities, found): ([BufMut; MAX_PARITIES], ParityMismatch),
        note: Option<Buf>,
    ) {
        assert!(self.next == 0 && self.flights.is_empty(), "a zone with {} blocks is recovered", self.next);
        self.open = true;
        self.next = tail;
        self.complete = tail;
        self.positions = positions;
        self.parities = parities;
        self.found = ParityMismatch { tail, ..found };
        self.found.keep_differing();
        if let Some(note) = note {
            self.add_note(tail, note);
        }
    }

    /// Sets the state of a read-only zone: its tail does not change. `lacks_parities`: the running parities are not
    /// known; `without_zrwa`: see [`Flow::without_zrwa`].
    pub fn restore_read_only(
        &mut self,
        tail: u64,
        positions: [u64; MAX_MEMBERS],
        (parities, lacks_parities): (&[BufMut; MAX_PARITIES], bool),
        without_zrwa: u32,
        note: Option<Buf>,
    ) {
        assert!(tail > 0, "a read-only zone with a tail at {tail}");
        let copy = |which: usize| {
            let parity = &parities[which];
            let mut copy = BufMut::zeroed(parity.len());
            copy.copy_from_slice(parity);
            copy
        };
        self.restore(tail, positions, (std::array::from_fn(copy), ParityMismatch::default()), note);
        self.end_here();
        // The zone takes no open or active resources of the drives.
        self.open = false;
        self.without_zrwa = without_zrwa;
        if lacks_parities {
            // With submitted blocks that do not become complete, reads decode nothing in this stripe.
            self.next = self.complete + 1;
        }
    }

    /// Members (bits) whose parts of a read-only zone have had no ZRWA since the assembly.
    pub fn without_zrwa(&self) -> u32 {
        self.without_zrwa
    }

    /// State of the stripe that ends at block `end`: the tail that its newest parities cover, and whether these are the
    /// running parities; `None` if the stripe is complete.
    pub(super) fn partial_stripe(&self, end: u64) -> Option<(u64, bool)> {
        // If the tail has passed the stripe, the running parities are those of another one.
        (self.complete < end && !self.ended).then(|| (self.next.min(end), self.next < end))
    }

    /// Freezes the zone; all complete blocks count as safe.
    pub fn end_here(&mut self) {
        assert!(self.flights.is_empty(), "{} plans are in flight in a zone that ends", self.flights.len());
        self.safe = self.complete;
        self.frozen = true;
    }

    /// Whether the running parities at the offsets of `piece` may be wrong: assembly found that the blocks there contradict
    /// each other.
    pub fn contradicts(&self, layout: &Layout, piece: ChunkRange) -> bool {
        piece.stripe == self.found.tail / layout.stripe_blocks()
            && self.found.contradicting.range(piece.from..piece.to).next().is_some()
    }

    /// Blocks `from..to` of parity number `which` of the present stripe.
    pub fn parity(&self, which: usize, from: u64, to: u64) -> Buf {
        Buf::copy_of(&self.parities[which][from as usize * BLOCK..to as usize * BLOCK])
    }
}
