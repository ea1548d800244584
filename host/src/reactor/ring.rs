//! The io_uring of this process: one ring for drives, block devices and sockets, so that one system call submits and
//! reaps for all of them.
//!
//! Entries are large both ways (128-byte submissions, 32-byte completions), as NVMe passthrough needs. A submitter is a
//! [`Target`]: it keeps the memory that its operations use until they complete.
#![allow(unsafe_code)]

use super::arena::Arena;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::{
    any::Any,
    cell::{Cell, OnceCell, RefCell},
    collections::VecDeque,
    future::Future,
    io,
    os::fd::{AsFd, AsRawFd},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Entries of the submission queue; more are submitted in several batches.
const ENTRIES: u32 = 1024;

/// Result of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// As a system call would return it: negative for an errno.
    pub result: i32,
    /// The second half of a large completion: for NVMe, the result double word.
    pub extra: u64,
    /// Another completion of the same operation will follow.
    pub more: bool,
}

/// Receives completions.
pub trait Target {
    /// `token` is the value that the operation was submitted with.
    fn complete(&self, token: u32, outcome: Outcome);
}

/// An io_uring that its creating thread submits to and waits on. Clones are the same ring.
#[derive(Clone)]
pub struct Ring(Rc<RingInner>);

struct RingInner {
    ring: RefCell<IoUring<squeue::Entry128, cqueue::Entry32>>,
    targets: RefCell<Vec<Option<TargetSlot>>>,
    in_flight: Cell<u64>,
    /// Operations for which the submission queue has had no room, in order.
    backlog: RefCell<VecDeque<squeue::Entry128>>,
    /// Completions of one round; a field so that its allocation is reused.
    reaped: RefCell<Vec<(u64, Outcome)>>,
    ops: Rc<Ops>,
    /// Created on first use; `None` if the kernel does not register it.
    arena: OnceCell<Option<Rc<Arena>>>,
}

/// A target, which is kept until none of its operations is in flight, even if it is removed before.
struct TargetSlot {
    target: Rc<dyn Target>,
    in_flight: u64,
    removed: bool,
}

impl TargetSlot {
    fn new(target: Rc<dyn Target>) -> TargetSlot {
        TargetSlot { target, in_flight: 0, removed: false }
    }
}

/// The index of a target in a ring. It cannot be copied, and [`Ring::remove`] consumes it, so that nothing can be
/// submitted for a removed target.
#[derive(Debug, PartialEq, Eq)]
pub struct TargetId(u32);

/// Target of the single operations of [`Ring::run`].
const OPS: TargetId = TargetId(0);

impl Ring {
    pub fn new() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // To see without a system call whether there are completions to reap.
            .setup_taskrun_flag()
            .setup_cqsize(4 * ENTRIES)
            .build(ENTRIES)?;
        let ops = Rc::new(Ops::default());
        Ok(Ring(Rc::new(RingInner {
            ring: RefCell::new(ring),
            targets: RefCell::new(vec![Some(TargetSlot::new(ops.clone()))]),
            in_flight: Cell::new(0),
            backlog: RefCell::default(),
            reaped: RefCell::default(),
            ops,
            arena: OnceCell::new(),
        })))
    }

    /// Memory registered with the kernel, for operations on fixed buffers. `None` if the kernel does not register it,
    /// for example for lack of lockable memory; ordinary memory can be used instead.
    pub fn arena(&self) -> Option<&Rc<Arena>> {
        let make = || {
            let arena = Arena::new().ok()?;
            let ring = self.0.ring.borrow();
            // SAFETY: the arena lives as long as the ring.
            unsafe { ring.submitter().register_buffers(&[arena.region()]) }.ok()?;
            Some(arena)
        };
        self.0.arena.get_or_init(make).as_ref()
    }

    /// The index of the registered buffer that contains `length` bytes at `address`.
    pub fn fixed(&self, address: u64, length: u32) -> Option<u16> {
        self.0.arena.get()?.as_ref()?.contains(address, length).then_some(0)
    }

    /// Adds a target. It is kept until [`Ring::remove`].
    pub fn add(&self, target: Rc<dyn Target>) -> TargetId {
        let mut targets = self.0.targets.borrow_mut();
        let free = targets.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            targets.push(None);
            targets.len() - 1
        });
        targets[place] = Some(TargetSlot::new(target));
        TargetId(place as u32)
    }

    /// Removes a target. While it has operations in flight it is kept.
    pub fn remove(&self, target: TargetId) {
        let gone = {
            let mut targets = self.0.targets.borrow_mut();
            let place = &mut targets[target.0 as usize];
            if let Some(held) = place {
                held.removed = true;
            }
            place.take_if(|held| held.in_flight == 0)
        };
        // Its drop may call this ring again.
        drop(gone);
    }

    /// Queues an operation; the next [`Ring::wait`] submits it with all others.
    ///
    /// # Safety
    /// Memory that `entry` points to must stay valid until the operation's last completion, and `target` be of this
    /// ring.
    pub unsafe fn push(&self, target: &TargetId, token: u32, entry: squeue::Entry128) {
        let entry = entry.user_data((target.0 as u64) << 32 | token as u64);
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        if let Some(held) = &mut self.0.targets.borrow_mut()[target.0 as usize] {
            held.in_flight += 1;
        }
        let mut backlog = self.0.backlog.borrow_mut();
        backlog.push_back(entry);
        if backlog.len() == 1 {
            enter(&mut self.0.ring.borrow_mut(), &mut backlog);
        }
    }

    /// Submits the queued operations without waiting for completions.
    pub fn submit(&self) -> io::Result<()> {
        let mut ring = self.0.ring.borrow_mut();
        let backlog = &mut self.0.backlog.borrow_mut();
        enter(&mut ring, backlog);
        ring.submit()?;
        // The kernel may accept fewer entries than it is given.
        let all = backlog.is_empty() && ring.submission().is_empty();
        if all { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Submits the queued operations, waits until at least one operation completes, and calls the targets. `false` if
    /// nothing is in flight, so that nothing can complete.
    pub fn wait(&self) -> io::Result<bool> {
        if self.0.in_flight.get() == 0 {
            return Ok(false);
        }
        self.turn(1)?;
        Ok(true)
    }

    /// As [`Ring::wait`], without waiting: for a thread that has other work as well.
    pub fn pass(&self) -> io::Result<()> {
        let queued = {
            let (mut ring, backlog) = (self.0.ring.borrow_mut(), self.0.backlog.borrow());
            let queue = ring.submission();
            !backlog.is_empty() || !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        };
        if queued || !self.0.ring.borrow_mut().completion().is_empty() { self.turn(0) } else { Ok(()) }
    }

    /// Submits the queued operations, waits for `wanted` completions, and calls the targets of all that have completed.
    fn turn(&self, wanted: usize) -> io::Result<()> {
        let mut reaped = self.0.reaped.take();
        {
            let mut ring = self.0.ring.borrow_mut();
            enter(&mut ring, &mut self.0.backlog.borrow_mut());
            match ring.submit_and_wait(wanted) {
                Ok(_) => {}
                // EBUSY: completions have to be reaped first. EAGAIN: the kernel is short of memory.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                Err(error) => return Err(error),
            }
            for entry in ring.completion() {
                let more = cqueue::more(entry.flags());
                let outcome = Outcome { result: entry.result(), extra: entry.big_cqe()[0], more };
                reaped.push((entry.user_data(), outcome));
            }
        }
        for (user_data, outcome) in reaped.drain(..) {
            if !outcome.more {
                self.0.in_flight.set(self.0.in_flight.get() - 1);
            }
            let place = (user_data >> 32) as usize;
            let target = self.0.targets.borrow()[place].as_ref().map(|held| held.target.clone());
            if let Some(target) = target {
                target.complete(user_data as u32, outcome);
            }
            if !outcome.more {
                let gone = self.landed(place);
                drop(gone);
            }
        }
        self.0.reaped.replace(reaped);
        Ok(())
    }

    /// Counts a completed operation of the target in `place`; returns the target if it is removed and this was the last
    /// one.
    fn landed(&self, place: usize) -> Option<TargetSlot> {
        let mut targets = self.0.targets.borrow_mut();
        if let Some(held) = &mut targets[place] {
            held.in_flight -= 1;
        }
        targets[place].take_if(|held| held.removed && held.in_flight == 0)
    }

    /// Carries out one operation; `keep` owns the memory it points to. It allocates, and so is not for reads and
    /// writes.
    ///
    /// # Safety
    /// Memory that `entry` points to must stay valid as long as `keep` lives, and not move with it.
    pub unsafe fn run(&self, entry: squeue::Entry128, keep: impl Any) -> Op {
        // SAFETY: the caller guarantees it.
        unsafe { self.run_keeping(entry, Rc::new(keep)) }
    }

    /// As [`Ring::run`], for memory that is shared: it does not allocate.
    ///
    /// # Safety
    /// As for [`Ring::run`].
    unsafe fn run_keeping(&self, entry: squeue::Entry128, keep: Rc<dyn Any>) -> Op {
        let ops = self.0.ops.clone();
        let token = ops.begin(keep);
        // SAFETY: `keep` lives until the completion, and the caller guarantees the rest.
        unsafe { self.push(&OPS, token, entry) };
        Op { ops, token }
    }

    /// Waits until `fd` is ready for `events` (`libc::POLLIN` and so on), has an error, or its peer has closed. It does
    /// not allocate.
    pub fn ready(&self, fd: Rc<impl AsFd + 'static>, events: i16) -> Op {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_fd().as_raw_fd()), events as u16 as u32).build();
        // SAFETY: the entry points to nothing; the descriptor is kept open so that its number is not reused.
        unsafe { self.run_keeping(entry.into(), fd) }
    }

    /// Completes after `time`.
    pub fn sleep(&self, time: Duration) -> Op {
        let time = Box::new(types::Timespec::from(time));
        let entry = opcode::Timeout::new(&*time).build();
        // SAFETY: the boxed time stays where it is, and is kept until the completion.
        unsafe { self.run(entry.into(), time) }
    }
}

/// Moves the backlog to the submission queue; when that is full, submits it once to make room.
fn enter(ring: &mut IoUring<squeue::Entry128, cqueue::Entry32>, backlog: &mut VecDeque<squeue::Entry128>) {
    let mut submitted = false;
    while let Some(entry) = backlog.front() {
        // SAFETY: the caller of `push` guarantees that its memory stays valid until it completes.
        if unsafe { ring.submission().push(entry) }.is_ok() {
            backlog.pop_front();
            submitted = false;
        } else if std::mem::replace(&mut submitted, true) || ring.submit().is_err() {
            return;
        }
    }
}

impl Drop for RingInner {
    fn drop(&mut self) {
        // The kernel may still write to memory that operations in flight point to.
        if self.in_flight.get() > 0 {
            self.targets.take().into_iter().for_each(std::mem::forget);
            std::mem::forget(self.ops.clone());
        }
    }
}

/// Single operations, each with a future.
#[derive(Default)]
struct Ops {
    states: RefCell<Vec<OpState>>,
    /// Indices of the states that are not in use.
    free: RefCell<Vec<u32>>,
}

#[derive(Default)]
struct OpState {
    /// The future was dropped.
    orphaned: bool,
    keep: Option<Rc<dyn Any>>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Ops {
    fn begin(&self, keep: Rc<dyn Any>) -> u32 {
        let mut states = self.states.borrow_mut();
        let free = self.free.borrow_mut().pop();
        let token = free.unwrap_or_else(|| {
            states.push(OpState::default());
            states.len() as u32 - 1
        });
        states[token as usize] = OpState { keep: Some(keep), ..OpState::default() };
        token
    }

    /// Releases the state of an operation that has completed, and of which the future was dropped.
    fn end(&self, token: u32) {
        self.free.borrow_mut().push(token);
    }
}

impl Target for Ops {
    fn complete(&self, token: u32, outcome: Outcome) {
        let (waker, kept) = {
            let mut states = self.states.borrow_mut();
            let Some(state) = states.get_mut(token as usize) else { return };
            let kept = state.keep.take();
            state.outcome = Some(outcome);
            if state.orphaned {
                self.end(token);
            }
            (state.waker.take(), kept)
        };
        drop(kept);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of [`Ring::run`]. If it is dropped, the operation continues.
#[must_use = "the result of the operation is lost"]
pub struct Op {
    ops: Rc<Ops>,
    token: u32,
}

impl Future for Op {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut states = self.ops.states.borrow_mut();
        let state = &mut states[self.token as usize];
        match state.outcome {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let mut states = self.ops.states.borrow_mut();
        let state = &mut states[self.token as usize];
        if state.outcome.is_some() {
            self.ops.end(self.token);
        } else {
            state.orphaned = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::runtime::Runtime;

    #[test]
    fn ring_operation_completes_or_is_dropped_early() {
        let Ok(ring) = Ring::new() else { return };
        assert!(!ring.wait().unwrap());
        let runtime = Runtime::new();
        // SAFETY: the operations point to nothing.
        let (op, orphan) = unsafe {
            (ring.run(opcode::Nop::new().build().into(), ()), ring.run(opcode::Nop::new().build().into(), ()))
        };
        drop(orphan);
        let outcome = runtime.block_on(op, || ring.wait().unwrap()).unwrap();
        assert_eq!(outcome.result, 0);
        while ring.wait().unwrap() {}
        let ops = &ring.0.ops;
        assert!(ops.states.borrow().iter().all(|state| state.keep.is_none()));
        let mut free = ops.free.borrow().clone();
        free.sort_unstable();
        assert_eq!(free, [0, 1], "each state is free once");
    }

    #[test]
    fn ring_pass_collects_completions_without_waiting() {
        let Ok(ring) = Ring::new() else { return };
        ring.pass().unwrap();
        let short = Duration::from_millis(20);
        let mut timer = std::pin::pin!(ring.sleep(short));
        let begun = std::time::Instant::now();
        let mut context = Context::from_waker(Waker::noop());
        while timer.as_mut().poll(&mut context).is_pending() {
            ring.pass().unwrap();
            assert!(begun.elapsed() < 1000 * short);
        }
        assert!(begun.elapsed() >= short && !ring.wait().unwrap());
    }

    #[test]
    fn ring_target_stays_until_operations_in_flight_end() {
        struct Silent;
        impl Target for Silent {
            fn complete(&self, _: u32, _: Outcome) {}
        }
        let Ok(ring) = Ring::new() else { return };
        let target: Rc<dyn Target> = Rc::new(Silent);
        let id = ring.add(target.clone());
        // SAFETY: the operation points to nothing.
        unsafe { ring.push(&id, 0, opcode::Nop::new().build().into()) };
        let place = id.0;
        ring.remove(id);
        let other = ring.add(Rc::new(Silent));
        assert_ne!(other.0, place, "its place is not reused");
        assert_eq!(Rc::strong_count(&target), 2, "the kernel may still write to what it holds");
        while ring.wait().unwrap() {}
        assert_eq!(Rc::strong_count(&target), 1);
        assert_eq!(ring.add(target).0, place, "its place is free");
    }
}
