//! The event loop of the process: tasks, and the ring for their I/O.

mod arena;
pub mod ring;
pub mod traffic;
pub mod workers;

use crate::process::{machine, output::note};
use anyhow::{Context, Result, bail};
use engine::{
    buf::BufSource,
    runtime::{Host, Pause, Runtime},
};
use ring::Ring;
use rustix::time::{ClockId, clock_gettime};
use std::{
    cell::{Cell, OnceCell},
    future::{Future, poll_fn},
    hash::{BuildHasher, RandomState},
    os::unix::net::UnixStream,
    pin::pin,
    rc::{Rc, Weak},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use traffic::Counter;

/// Single-threaded executor with its ring. Clones refer to the same one.
#[derive(Clone)]
pub struct Reactor(Rc<ReactorInner>);

struct ReactorInner {
    runtime: Runtime,
    /// Created on first use: emulated drives do not need it.
    ring: OnceCell<Ring>,
    /// Turns of the event loop: how long tasks ran between two polls of the ring.
    turns: Counter,
    /// Clock for measuring turns.
    clock: Cell<ClockId>,
}

impl Default for Reactor {
    fn default() -> Reactor {
        let runtime = Runtime::new();
        runtime.set_entropy(entropy());
        let inner = Rc::new(ReactorInner {
            runtime,
            ring: OnceCell::new(),
            turns: Counter::default(),
            clock: Cell::new(ClockId::MonotonicCoarse),
        });
        let weak = Rc::downgrade(&inner);
        let pause: Pause = Rc::new(move || Box::pin(pause(weak.clone())));
        inner.runtime.set_host(Host { id: machine::id().unwrap_or_default(), pause: Some(pause) });
        Reactor(inner)
    }
}

/// Pauses a start, so that another host that may still run the array notices that it is being started here.
async fn pause(inner: Weak<ReactorInner>) {
    note(&format!(
        "the array was not stopped on the host that ran it last: waiting for {} seconds, so that a daemon \
         there can notice and fence itself",
        FENCE_PAUSE.as_secs()
    ));
    if let Some(inner) = inner.upgrade()
        && let Ok(Some(())) = Reactor(inner).offload(|| std::thread::sleep(FENCE_PAUSE)).await
    {
        return;
    }
    // Without a ring or a thread: blocks the event loop.
    std::thread::sleep(FENCE_PAUSE);
}

/// Interval at which a host checks whether another one has started its array, and the pause of a start for that.
pub const FENCE_CHECK: Duration = Duration::from_secs(1);
const FENCE_PAUSE: Duration = Duration::from_secs(5);

/// Random bits that are unique to this process.
fn entropy() -> [u8; 16] {
    let mut bits = [0; 16];
    if getrandom::fill(&mut bits).is_err() {
        // The kernel has no entropy yet, early during boot: take the keys of hash tables.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let half = || RandomState::new().hash_one((now, std::process::id()));
        bits = ((half() as u128) << 64 | half() as u128).to_le_bytes();
    }
    bits
}

impl Reactor {
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    pub fn ring(&self) -> Result<&Ring> {
        if let Some(ring) = self.0.ring.get() {
            return Ok(ring);
        }
        let ring = Ring::new()
            .context("the kernel provides no io_uring, which real drives need (Linux 6.1 or newer)")?;
        Ok(self.0.ring.get_or_init(|| ring))
    }

    /// Durations of the turns of the event loop so far.
    pub fn turns(&self) -> &Counter {
        &self.0.turns
    }

    /// Time since a fixed moment, with the resolution of the kernel's tick (1 to 4 ms). The clock is read twice each
    /// turn, and needs no system call on any machine.
    fn tick(&self) -> Duration {
        let now = clock_gettime(self.0.clock.get());
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }

    /// A reactor that measures turns exactly, in processor time of this thread, for one or two system calls each.
    pub fn timing_work() -> Reactor {
        let reactor = Reactor::default();
        reactor.0.clock.set(ClockId::ThreadCPUTime);
        reactor
    }

    /// Source of buffers for I/O: memory registered with the kernel, if there is a ring and the kernel has accepted
    /// some.
    pub fn buffers(&self) -> BufSource {
        let arena = self.0.ring.get().and_then(Ring::arena).cloned();
        Rc::new(move |length| arena.as_ref()?.lend(length))
    }

    /// Runs `work`, which may block, on a thread of its own, while tasks continue. `None` if the thread ended without a
    /// value.
    pub async fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>> {
        let (here, there) = UnixStream::pair().context("a socket pair cannot be created")?;
        let value = Arc::new(Mutex::new(None));
        let slot = value.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            // Dropped last; this wakes the waiting task.
            let _there = there;
            let value = work();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        thread.context("no thread can be started")?;
        self.ring()?.ready(Rc::new(here), libc::POLLIN).await;
        let value = value.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(value)
    }

    /// Runs tasks until `future` is done.
    ///
    /// # Errors
    /// The ring fails, or nothing is left that could complete.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let (mut broken, mut begun) = (None, self.tick());
        // Without fairness, clients with a constant stream of requests that need no drive would block all others.
        let value = self.0.runtime.block_on_fairly(future, |busy| {
            let Some(ring) = self.0.ring.get() else { return busy };
            self.0.turns.count(0, Some(self.tick().saturating_sub(begun)));
            let turned = if busy { ring.pass().map(|()| true) } else { ring.wait() };
            begun = self.tick();
            turned.unwrap_or_else(|error| {
                broken = Some(error);
                false
            })
        });
        match (value, broken) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error).context("io_uring failed"),
            (None, None) => bail!("the drives no longer respond"),
        }
    }
}

/// Yields once to all other ready tasks: for a task that may be ready all the time.
pub async fn give_way() {
    let mut given = false;
    poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Reactor {
    /// Like [`Reactor::wait`], with a timeout: `None` when it expires. Without a ring all commands complete at once.
    pub fn wait_for<T>(&self, patience: Duration, future: impl Future<Output = T>) -> Result<Option<T>> {
        let mut future = pin!(future);
        if let Some(value) = self.0.runtime.block_on(future.as_mut(), || false) {
            return Ok(Some(value));
        }
        self.wait(self.within(patience, future))
    }

    /// The result of `future`, or `None` if it takes longer than `patience`.
    pub async fn within<T>(&self, patience: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let Ok(ring) = self.ring() else { return Some(future.await) };
        let mut timer = pin!(ring.sleep(patience));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => timer.as_mut().poll(context).map(|_| None),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reactor_wait_for_ends_at_timeout() {
        let reactor = Reactor::default();
        if reactor.ring().is_err() {
            return;
        }
        let short = Duration::from_millis(20);
        assert_eq!(reactor.wait_for(short, async { 7 }).unwrap(), Some(7));
        assert_eq!(reactor.wait_for(short, std::future::pending::<u32>()).unwrap(), None);
        assert_eq!(reactor.wait_for(short, async { 8 }).unwrap(), Some(8));
    }

    #[test]
    fn reactor_polls_ring_beside_always_ready_task() {
        let reactor = Reactor::default();
        let Ok(ring) = reactor.ring().cloned() else { return };
        reactor.runtime().spawn(async {
            loop {
                give_way().await;
            }
        });
        reactor.wait(ring.sleep(Duration::from_millis(20))).unwrap();
    }

    #[test]
    fn reactor_offload_returns_result_or_none_on_panic() {
        let reactor = Reactor::default();
        if reactor.ring().is_err() {
            return;
        }
        assert_eq!(reactor.wait(reactor.offload(|| 7)).unwrap().unwrap(), Some(7));
        let lost = reactor.wait(reactor.offload(|| -> u32 { panic!("on purpose") }));
        assert_eq!(lost.unwrap().unwrap(), None);
    }
}
