//! Schedule of the forks of a life: at interesting moments, at random.

use emu::rng::Rng;

/// Events after a recovery within which its fork comes.
const SOON_EVENTS: u64 = 24;

/// Moments that may have a fork: promises are made there, or many commands are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Any event.
    Event,
    /// A recovery has ended. The fork comes a few events later.
    Recovered,
    /// A recovery was interrupted.
    Interrupted,
    /// A write with FUA, or a flush, has completed.
    Promised,
    /// A zone has become full, or was reset or finished.
    Ended,
    /// A member was rebuilt.
    Rebuilt,
    /// A drive is taking over from another one: any event.
    TakingOver,
}

impl Moment {
    /// One in this many such moments has a fork.
    fn rarity(self) -> u64 {
        match self {
            Moment::Event => 400,
            Moment::Promised => 40,
            Moment::Ended => 8,
            Moment::Recovered | Moment::Interrupted | Moment::Rebuilt => 2,
            Moment::TakingOver => 30,
        }
    }
}

/// Schedule of the forks of a life.
pub(super) struct Forks {
    rng: Rng,
    left: u64,
    /// Events until a fork is due.
    due_in: Option<u64>,
}

impl Forks {
    /// `most` forks at most.
    pub fn new(most: u64, rng: Rng) -> Forks {
        Forks { rng, left: most, due_in: None }
    }

    /// A generator for the next fork.
    pub fn generator(&mut self) -> Rng {
        self.rng.fork()
    }

    /// Records a moment that may have a fork.
    pub fn notice(&mut self, moment: Moment) {
        match &mut self.due_in {
            Some(events) if moment == Moment::Event => *events = events.saturating_sub(1),
            None if self.left > 0 && self.rng.chance(1, moment.rarity()) => {
                let events = if moment == Moment::Recovered { self.rng.below(SOON_EVENTS) } else { 0 };
                self.due_in = Some(events);
            }
            _ => (),
        }
    }

    /// Whether a fork is due; it counts as done then.
    pub fn take(&mut self) -> bool {
        let due = self.due_in == Some(0);
        if due {
            (self.due_in, self.left) = (None, self.left - 1);
        }
        due
    }
}
