//! A single-threaded executor that can run tasks in any order.
//!
//! In production the ready queue is first in, first out. In the simulator a seed picks the next ready task, so that
//! every interleaving the engine allows is tried sooner or later. The executor has no clock and does no I/O: the owner
//! of the devices polls them between calls of [`Runtime::run`].

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// A future, and its waker.
type Task = (Pin<Box<dyn Future<Output = ()>>>, Waker);

/// Steps, or units of work, after which the devices are polled although tasks are ready. They are also polled after a
/// task has used up its slice.
const STEPS: u32 = 64;
const TURN: u32 = 2 * SLICE;

/// Steps after which a task that has used up its slice is polled although other tasks are ready.
const PASS: u32 = 64;

/// Units of work in a slice, after which a task yields to others ([`give_way`]). A unit is a lookup or a change of one
/// map entry, which takes 25 to 150 ns with its share of cache misses: a slice takes 25 to 150 µs.
pub const SLICE: u32 = 1024;

/// Units of work for the copy of a block, 0.5 µs.
pub const COPY: u32 = 16;

/// Most units of one poll; simulations that exceed it fail. The longest stretch without a yield begins at the end of a
/// slice and discards all blocks of a page of the map, each in a compressed unit of 16 blocks that is looked up whole.
pub const MOST_WORK: u32 = 24 * SLICE;

thread_local! {
    /// Units of work in the present poll, and the number of its task.
    static WORK: Cell<u32> = const { Cell::new(0) };
    static RUNNING: Cell<usize> = const { Cell::new(NO_TASK) };
}

const NO_TASK: usize = usize::MAX;

/// Counts work of the running task.
pub fn work(units: u32) {
    WORK.set(WORK.get().saturating_add(units));
}

/// Whether the running task has used up its slice, and should yield.
pub fn is_spent() -> bool {
    WORK.get() >= SLICE
}

/// Yields once to all ready tasks if this task has used up its slice. Every loop over blocks, pages, zones or entries
/// calls it. The engine has no clock, so work is counted instead of time.
pub async fn give_way() {
    let mut given = !is_spent();
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs tasks on the calling thread. Clones share the same tasks.
#[derive(Clone)]
pub struct Runtime(Rc<RuntimeInner>);

struct RuntimeInner {
    /// By number; `None` while a task is polled, and when it has ended.
    tasks: RefCell<Vec<Option<Task>>>,
    /// Numbers of tasks that have ended, for reuse, with their wakers.
    free: RefCell<Vec<(usize, Waker)>>,
    ready: Arc<Ready>,
    /// State of the generator that picks the next task; `None` for first in, first out.
    random: Option<Cell<u64>>,
    /// Ids are drawn from this entropy and the number of ids so far.
    entropy: Cell<[u64; 2]>,
    ids: Cell<u64>,
    /// Units of work since the devices were last polled, and most units of one poll.
    worked: Cell<u32>,
    most_worked: Cell<u32>,
    host: RefCell<Host>,
}

/// Waits as long as another host takes to notice that its array has been assembled on this one.
pub type Pause = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>>>;

/// The host on which a runtime runs.
#[derive(Clone, Default)]
pub struct Host {
    /// Its id; zeros if it has none.
    pub id: [u8; 16],
    /// Called when another host may still run an array.
    pub pause: Option<Pause>,
}

/// Default entropy of the next runtime: different for each runtime of a process, which suffices for tests.
static RUNTIMES: AtomicU64 = AtomicU64::new(1);

/// Numbers of the ready tasks, each at most once. Wakers have to be `Send`, hence the lock; it is never contended.
#[derive(Default)]
struct Ready(Mutex<ReadyQueue>);

#[derive(Default)]
struct ReadyQueue {
    order: VecDeque<usize>,
    /// Tasks that have used up their slice and have more work. They are polled when no other task is ready, and one of
    /// them after each pass of [`PASS`] steps: so a task with little work does not wait for all tasks with much.
    spent: VecDeque<usize>,
    /// Steps in the present pass.
    steps: u32,
    queued: Vec<bool>,
}

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.task);
    }
}

impl Ready {
    fn push(&self, task: usize) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.queued.len() <= task {
            queue.queued.resize(task + 1, false);
        }
        if !std::mem::replace(&mut queue.queued[task], true) {
            // Only a task that wakes itself has more work; other wakers have other reasons.
            let is_spent = RUNNING.get() == task && is_spent();
            let order = if is_spent { &mut queue.spent } else { &mut queue.order };
            order.push_back(task);
        }
    }

    fn pop(&self, random: Option<&Cell<u64>>) -> Option<usize> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ReadyQueue { order, spent, steps, .. } = &mut *queue;
        let task = match random {
            Some(state) if order.len() + spent.len() > 1 => {
                let pick = split_mix(state) as usize % (order.len() + spent.len());
                let from = pick.checked_sub(order.len());
                from.map_or_else(|| order.swap_remove_back(pick), |from| spent.swap_remove_back(from))
            }
            _ if *steps < PASS && !order.is_empty() => {
                *steps += 1;
                order.pop_front()
            }
            _ => {
                *steps = 0;
                spent.pop_front().or_else(|| order.pop_front())
            }
        }?;
        queue.queued[task] = false;
        Some(task)
    }
}

/// The SplitMix64 generator: one addition and two multiplications a number.
fn split_mix(state: &Cell<u64>) -> u64 {
    state.set(state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
    let mut z = state.get();
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime::new()
    }
}

impl Runtime {
    /// A runtime that polls ready tasks first in, first out.
    pub fn new() -> Runtime {
        Runtime::with_order(None)
    }

    /// A runtime that polls ready tasks in an order drawn from `seed`.
    pub fn seeded(seed: u64) -> Runtime {
        Runtime::with_order(Some(Cell::new(seed)))
    }

    fn with_order(random: Option<Cell<u64>>) -> Runtime {
        let number = RUNTIMES.fetch_add(1, Ordering::Relaxed);
        Runtime(Rc::new(RuntimeInner {
            tasks: RefCell::default(),
            free: RefCell::default(),
            ready: Arc::default(),
            random,
            // Both halves of an id differ: either alone may serve as a number.
            entropy: Cell::new([number, !number]),
            ids: Cell::default(),
            worked: Cell::new(0),
            most_worked: Cell::new(0),
            host: RefCell::default(),
        }))
    }

    /// Sets the entropy from which ids are drawn. Where drives outlive the process, every process needs its own.
    pub fn set_entropy(&self, bits: [u8; 16]) {
        let bits = u128::from_le_bytes(bits);
        self.0.entropy.set([bits as u64, (bits >> 64) as u64]);
    }

    /// Sets the host on which this runtime runs.
    pub fn set_host(&self, host: Host) {
        *self.0.host.borrow_mut() = host;
    }

    /// The host on which this runtime runs.
    pub fn host(&self) -> Host {
        self.0.host.borrow().clone()
    }

    /// Draws an id of 128 bits that no runtime draws again.
    pub fn draw_id(&self) -> [u8; 16] {
        let RuntimeInner { entropy, ids, .. } = &*self.0;
        ids.set(ids.get() + 1);
        let half = |entropy: u64| {
            let drawn = split_mix(&Cell::new(entropy));
            split_mix(&Cell::new(drawn.wrapping_add(ids.get()))).to_le_bytes()
        };
        let [low, high] = entropy.get().map(half);
        std::array::from_fn(|at| if at < 8 { low[at] } else { high[at - 8] })
    }

    /// Most units of work in one poll so far.
    pub fn most_worked(&self) -> u32 {
        self.0.most_worked.get()
    }

    /// Polls a task, and counts its work. Calls may be nested: a simulation may run another runtime inside of a task.
    fn count<T>(&self, task: usize, poll: impl FnOnce() -> T) -> T {
        let outer = (WORK.replace(0), RUNNING.replace(task));
        let value = poll();
        let work = WORK.replace(outer.0);
        RUNNING.set(outer.1);
        let worked = if work < SLICE { self.0.worked.get().saturating_add(work) } else { TURN };
        self.0.worked.set(worked);
        self.0.most_worked.set(self.0.most_worked.get().max(work));
        value
    }

    /// Starts a task. It runs when [`Runtime::run`] is called, and is dropped with the runtime.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let inner = &self.0;
        let free = inner.free.borrow_mut().pop();
        let (task, waker) = free.unwrap_or_else(|| {
            let task = inner.tasks.borrow().len();
            inner.tasks.borrow_mut().push(None);
            (task, Waker::from(Arc::new(TaskWaker { task, ready: inner.ready.clone() })))
        });
        inner.tasks.borrow_mut()[task] = Some((Box::pin(future), waker));
        inner.ready.push(task);
    }

    /// Runs `future` as a task, and waits for its result. The task goes on if the future that this returns is dropped:
    /// for work that must not stop half-way.
    pub async fn run_whole<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let (result, ended) = (Rc::new(RefCell::new(None)), Rc::new(Gate::default()));
        let (place, end) = (result.clone(), ended.clone());
        self.spawn(async move {
            let value = future.await;
            place.replace(Some(value));
            end.open();
        });
        loop {
            let ended = ended.wait();
            if let Some(value) = result.take() {
                return value;
            }
            ended.await;
        }
    }

    /// Polls one ready task; `false` if none is ready.
    pub fn step(&self) -> bool {
        let inner = &self.0;
        let Some(task) = inner.ready.pop(inner.random.as_ref()) else { return false };
        // A command that was in flight when the tasks were dropped may wake one that does not exist any more.
        let taken = inner.tasks.borrow_mut().get_mut(task).and_then(Option::take);
        let Some((mut future, waker)) = taken else { return true };
        match self.count(task, || future.as_mut().poll(&mut Context::from_waker(&waker))) {
            Poll::Ready(()) => inner.free.borrow_mut().push((task, waker)),
            Poll::Pending => inner.tasks.borrow_mut()[task] = Some((future, waker)),
        }
        true
    }

    /// Polls until no task is ready.
    pub fn run(&self) {
        while self.step() {}
    }

    /// Runs tasks until `future` is done. `idle` is called whenever no task is ready: it waits for devices, and returns
    /// `false` if nothing can happen any more, which ends the wait with `None`.
    pub fn block_on<T>(&self, future: impl Future<Output = T>, mut idle: impl FnMut() -> bool) -> Option<T> {
        self.block_on_fairly(future, |busy| busy || idle())
    }

    /// As [`Runtime::block_on`], for devices that have to be polled also while tasks are ready all the time. `turn` is
    /// called with `false` whenever no task is ready, and with `true` after a number of steps, or an amount of work,
    /// without that; then it must not wait.
    pub fn block_on_fairly<T>(
        &self,
        future: impl Future<Output = T>,
        mut turn: impl FnMut(bool) -> bool,
    ) -> Option<T> {
        let (mut future, mut steps) = (pin!(future), 0);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        loop {
            // Checked at every step, and nearly always not set.
            let woken = flag.0.load(Ordering::Relaxed) && flag.0.swap(false, Ordering::Acquire);
            let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
            if woken && let Poll::Ready(value) = self.count(NO_TASK, &mut poll) {
                return Some(value);
            }
            let busy = self.step();
            steps = if busy { (steps + 1) % STEPS } else { 0 };
            if steps > 0 && self.0.worked.get() < TURN {
                continue;
            }
            (steps, _) = (0, self.0.worked.replace(0));
            if (busy || !flag.0.load(Ordering::Relaxed)) && !turn(busy) {
                return None;
            }
        }
    }

    /// Drops every task at once, as a power cut would.
    pub fn clear(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
        self.0.free.borrow_mut().clear();
        let mut queue = self.0.ready.0.lock().unwrap_or_else(PoisonError::into_inner);
        *queue = ReadyQueue::default();
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A condition that tasks wait for. [`Gate::open`] means that it may have become true: every task checks it again.
#[derive(Default)]
pub struct Gate {
    generation: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    /// Wakes all waiting tasks.
    pub fn open(&self) {
        self.generation.set(self.generation.get() + 1);
        // The list keeps its allocation; wakers only mark tasks as ready.
        let mut waiting = self.waiting.borrow_mut();
        for waker in waiting.drain(..) {
            waker.wake();
        }
    }

    /// Waits for the next [`Gate::open`] after this call.
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.generation.get();
        std::future::poll_fn(move |context| {
            if self.generation.get() != seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|w| w.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
    }
}

/// A lock that is granted in the order of requests. A waiting task that is dropped gives up its place.
#[derive(Default)]
pub struct Exclusive {
    /// The ticket of the holder, and those of waiting tasks.
    queue: RefCell<VecDeque<u64>>,
    tickets: Cell<u64>,
    next: Gate,
}

/// The lock, or a place in its queue; given up when dropped.
pub struct ExclusiveGuard<'e> {
    of: &'e Exclusive,
    ticket: u64,
}

impl Exclusive {
    /// Waits for the lock.
    pub async fn take(&self) -> ExclusiveGuard<'_> {
        let ticket = self.tickets.replace(self.tickets.get() + 1);
        self.queue.borrow_mut().push_back(ticket);
        let held = ExclusiveGuard { of: self, ticket };
        while self.queue.borrow().front() != Some(&ticket) {
            self.next.wait().await;
        }
        held
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.of.queue.borrow_mut().retain(|ticket| *ticket != self.ticket);
        self.of.next.open();
    }
}

/// An operation of which one run serves all callers that came before it began.
#[derive(Default)]
pub struct CombinedOperation {
    turn: Exclusive,
    begun: Cell<u64>,
    /// The last successful run.
    good: Cell<u64>,
}

impl CombinedOperation {
    /// Runs the operation, unless a run has begun after this call and succeeded.
    pub async fn run<F, E>(&self, work: impl FnOnce() -> F) -> Result<(), E>
    where
        F: Future<Output = Result<(), E>>,
    {
        let asked = self.begun.get();
        let _turn = self.turn.take().await;
        if self.good.get() > asked {
            return Ok(());
        }
        let number = self.begun.get() + 1;
        self.begun.set(number);
        work().await?;
        self.good.set(number);
        Ok(())
    }
}

/// Runs futures at the same time; returns their results in order when all have ended.
pub async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, result) in pending.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                *result = Some(output);
            }
        }
        if pending.iter().all(|(_, result)| result.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, result)| result).collect()
}

/// Runs futures at the same time until the first has ended, and drops the others.
pub async fn first_of<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut pending: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        let ended = pending.iter_mut().any(|future| future.as_mut().poll(context).is_ready());
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of polls of `busy` tasks, which use up their slice each time, until a task with little work has done 100
    /// steps.
    fn polls_between_steps(runtime: &Runtime, busy: usize) -> usize {
        let log = Rc::new(RefCell::new(Vec::new()));
        for task in 0..=busy {
            let log = log.clone();
            runtime.spawn(async move {
                for _ in 0..100 {
                    log.borrow_mut().push(task);
                    work(if task == 0 { 1 } else { SLICE });
                    match task {
                        0 => yield_now().await,
                        _ => give_way().await,
                    }
                }
            });
        }
        runtime.run();
        let log = log.borrow();
        assert_eq!(log.len(), 100 * (busy + 1));
        let last = log.iter().rposition(|task| *task == 0).unwrap();
        log[..last].iter().filter(|task| **task > 0).count()
    }

    async fn yield_now() {
        let mut given = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut given, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[test]
    fn runtime_ids_differ_in_both_halves() {
        let [one, other] = [Runtime::new(), Runtime::seeded(1)];
        let ids = [one.draw_id(), one.draw_id(), other.draw_id(), other.draw_id()];
        for half in [0..8, 8..16] {
            let halves: std::collections::BTreeSet<&[u8]> = ids.iter().map(|id| &id[half.clone()]).collect();
            assert_eq!(halves.len(), ids.len());
        }
    }

    #[test]
    fn runtime_spent_tasks_yield_without_starving() {
        let between = polls_between_steps(&Runtime::new(), 8);
        // Each busy task once, and then one in each pass.
        assert!((9..=10).contains(&between), "{between}");
    }

    #[test]
    fn runtime_order_is_fifo_or_decided_by_seed() {
        let order = |runtime: Runtime| {
            let log = Rc::new(RefCell::new(Vec::new()));
            for task in 0..8 {
                let log = log.clone();
                runtime.spawn(async move { log.borrow_mut().push(task) });
            }
            runtime.run();
            Rc::try_unwrap(log).unwrap().into_inner()
        };
        assert_eq!(order(Runtime::new()), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(Runtime::seeded(3)), order(Runtime::seeded(3)));
        assert_ne!(order(Runtime::seeded(3)), order(Runtime::seeded(4)));
    }

    #[test]
    fn gate_wakes_waiters_and_block_on_ends_idle() {
        let runtime = Runtime::new();
        let gate = Rc::new(Gate::default());
        let woken = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let (gate, woken) = (gate.clone(), woken.clone());
            runtime.spawn(async move {
                gate.wait().await;
                woken.set(woken.get() + 1);
            });
        }
        runtime.run();
        gate.open();
        runtime.run();
        assert_eq!(woken.get(), 2);
        assert_eq!(runtime.block_on(gate.wait(), || false), None);
    }

    #[test]
    fn exclusive_serves_waiters_in_order_skipping_dropped_ones() {
        let (runtime, order) = (Runtime::seeded(5), Rc::new(RefCell::new(Vec::new())));
        let exclusive = Rc::new(Exclusive::default());
        let first = runtime.block_on(exclusive.take(), || false);
        let mut gone = Box::pin(exclusive.take());
        assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        for task in 0..3 {
            let (exclusive, order) = (exclusive.clone(), order.clone());
            let mut turn = Box::pin(async move {
                let _held = exclusive.take().await;
                order.borrow_mut().push(task);
            });
            assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            runtime.spawn(turn);
        }
        drop(gone);
        runtime.run();
        assert_eq!(*order.borrow(), [0; 0]);
        drop(first);
        runtime.run();
        assert_eq!(*order.borrow(), [0, 1, 2]);
    }

    #[test]
    fn combined_runs_once_for_requests_before_its_start() {
        let (runtime, begun, results) =
            (Runtime::new(), Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (combined, gate) = (Rc::new(CombinedOperation::default()), Rc::new(Gate::default()));
        // The second run fails: the next waiting caller begins another one.
        let ask = || {
            let (combined, gate, begun, results) =
                (combined.clone(), gate.clone(), begun.clone(), results.clone());
            runtime.spawn(async move {
                let work = || async {
                    begun.set(begun.get() + 1);
                    let fails = begun.get() == 2;
                    gate.wait().await;
                    if fails { Err(()) } else { Ok(()) }
                };
                let result = combined.run(work).await;
                results.borrow_mut().push(result.is_ok());
            });
            runtime.run();
        };
        (0..4).for_each(|_| ask());
        let mut seen = Vec::new();
        for _ in 0..3 {
            gate.open();
            runtime.run();
            seen.push((begun.get(), results.borrow().clone()));
        }
        assert_eq!(seen[0], (2, vec![true]));
        assert_eq!(seen[1], (3, vec![true, false]));
        assert_eq!(seen[2], (3, vec![true, false, true, true]));
    }
}
