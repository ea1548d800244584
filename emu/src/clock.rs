//! Virtual time.
//!
//! A clock jumps from one event to the next, so that a run takes as long as its events take to compute, and gives the
//! same results everywhere. Events of one instant run in the order in which they were planned. In real time the same
//! clock is moved by [`Clock::keep_pace`].

use std::{
    cell::{Cell, RefCell},
    cmp::Ordering,
    collections::BinaryHeap,
    future::Future,
    rc::Rc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

/// Largest expected delay of a sleeping thread's wake-up.
const LATE: Duration = Duration::from_micros(200);

/// A clock and its planned events. Clones are the same clock.
#[derive(Clone, Default)]
pub struct Clock(Rc<Inner>);

#[derive(Default)]
struct Inner {
    now_ns: Cell<u64>,
    planned: Cell<u64>,
    events: RefCell<BinaryHeap<Event>>,
}

struct Event {
    /// Due time in the upper half, sequence number in the lower: a comparison needs no branch, and the heap does little
    /// else.
    order: u128,
    action: Box<dyn FnOnce()>,
}

impl Event {
    fn due_ns(&self) -> u64 {
        (self.order >> 64) as u64
    }
}

impl Ord for Event {
    /// Reversed: the heap gives the greatest first, which has to be the earliest.
    fn cmp(&self, other: &Event) -> Ordering {
        other.order.cmp(&self.order)
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    fn le(&self, other: &Event) -> bool {
        other.order <= self.order
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.order == other.order
    }
}

impl Eq for Event {}

impl Clock {
    /// A clock that shows 0.
    pub fn new() -> Clock {
        Clock::default()
    }

    /// The time, in nanoseconds since the clock was created.
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    /// Plans `action` for `due_ns`, or for now if that is past.
    pub fn at(&self, due_ns: u64, action: impl FnOnce() + 'static) {
        let number = self.0.planned.get();
        self.0.planned.set(number + 1);
        let order = (due_ns.max(self.now_ns()) as u128) << 64 | number as u128;
        self.0.events.borrow_mut().push(Event { order, action: Box::new(action) });
    }

    /// Forgets all events, and drops all that they hold.
    pub fn clear(&self) {
        let events = self.0.events.take();
        drop(events);
    }

    /// Due time of the next event.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.events.borrow().peek().map(Event::due_ns)
    }

    /// Jumps to the next event and runs all that are due then; `false` if there is none.
    pub fn advance(&self) -> bool {
        let next = self.next_ns();
        next.inspect(|next| self.advance_to(*next)).is_some()
    }

    /// Runs all events up to `now_ns`, each at its own time, and stops there.
    pub fn advance_to(&self, now_ns: u64) {
        while let Some(event) = self.pop(now_ns) {
            self.0.now_ns.set(event.due_ns());
            (event.action)();
        }
        self.0.now_ns.set(now_ns.max(self.now_ns()));
    }

    /// As [`Clock::advance`] in real time: waits for the next event and runs all that are due by then. `since` is the
    /// time at which the clock showed 0.
    pub fn keep_pace(&self, since: Instant) -> bool {
        let Some(next) = self.next_ns() else { return false };
        let due = since + Duration::from_nanos(next);
        // The kernel wakes late; the last part is waited for in a loop.
        if let Some(left) = due.saturating_duration_since(Instant::now()).checked_sub(LATE) {
            std::thread::sleep(left);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        self.advance_to(since.elapsed().as_nanos() as u64);
        true
    }

    fn pop(&self, until_ns: u64) -> Option<Event> {
        let mut events = self.0.events.borrow_mut();
        if events.peek()?.due_ns() <= until_ns { events.pop() } else { None }
    }

    /// Completes `ns` from now on.
    pub fn sleep(&self, ns: u64) -> impl Future<Output = ()> + use<> {
        let slept = Rc::new((Cell::new(false), RefCell::<Option<Waker>>::default()));
        let event = slept.clone();
        self.at(self.now_ns() + ns, move || {
            event.0.set(true);
            if let Some(waker) = event.1.take() {
                waker.wake();
            }
        });
        std::future::poll_fn(move |context| {
            if slept.0.get() {
                return Poll::Ready(());
            }
            *slept.1.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::runtime::Runtime;

    #[test]
    fn clock_events_run_by_time_then_schedule_order() {
        let clock = Clock::new();
        let log = Rc::new(RefCell::new(Vec::new()));
        for (due, name) in [(20, 'c'), (10, 'a'), (10, 'b'), (30, 'd')] {
            let (log, at) = (log.clone(), clock.clone());
            clock.at(due, move || log.borrow_mut().push((at.now_ns(), name)));
        }
        assert!(clock.advance());
        assert_eq!(*log.borrow(), [(10, 'a'), (10, 'b')]);
        clock.advance_to(25);
        assert_eq!((log.borrow()[2], clock.now_ns(), clock.next_ns()), ((20, 'c'), 25, Some(30)));
        assert!(clock.advance() && !clock.advance());
        assert_eq!((log.borrow()[3], clock.now_ns()), ((30, 'd'), 30));
    }

    #[test]
    fn clock_clear_drops_pending_events() {
        let (clock, held) = (Clock::new(), Rc::new(()));
        let (kept, itself) = (held.clone(), clock.clone());
        clock.at(10, move || drop((kept, itself)));
        clock.clear();
        assert!(Rc::strong_count(&held) == 1 && !clock.advance());
    }

    #[test]
    fn clock_in_real_time_fires_no_event_early() {
        let (clock, since) = (Clock::new(), Instant::now());
        let fired = Rc::new(Cell::new(None));
        let (event, due) = (fired.clone(), Duration::from_millis(2));
        clock.at(due.as_nanos() as u64, move || event.set(Some(since.elapsed())));
        assert!(clock.keep_pace(since) && !clock.keep_pace(since));
        assert!(fired.get().unwrap() >= due && clock.now_ns() >= due.as_nanos() as u64);
    }

    #[test]
    fn clock_sleep_wakes_at_due_time() {
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let sleeper = clock.clone();
        let slept = runtime.block_on(
            async move {
                sleeper.sleep(500).await;
                sleeper.sleep(500).await;
                sleeper.now_ns()
            },
            || clock.advance(),
        );
        assert_eq!(slept, Some(1000));
    }
}
