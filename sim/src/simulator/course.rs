//! What a life remembers between its parts: who may be struck, what goes on beside the load, and drives that
//! lie about.

use super::{shelf::Shelf, subject::Said, suspects::Suspects, wire::Bay, world::Pending};
use engine::zone::Lba;
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// A repair that goes on in the background.
pub(super) struct Repair {
    /// All that are filled by it.
    pub members: Vec<usize>,
    pub pending: Pending<u64>,
    /// One of them was struck meanwhile: the repair may fail.
    pub struck: bool,
    /// The drive is copied to another one.
    pub copies: bool,
}

impl Repair {
    /// Whether the repair may fail when `member` is struck.
    pub fn rests_on(&self, member: usize) -> bool {
        self.copies || self.members.contains(&member)
    }
}

/// A change of an array that runs.
pub(super) struct Changing {
    pub pending: Pending<()>,
    /// What there may be to say when it is done, and if it has not even begun.
    pub after: Vec<Said>,
    pub before: Vec<Said>,
}

/// Former contents of a block, for a stale write.
pub(super) struct Old {
    pub bay: Bay,
    pub lba: Lba,
    pub bytes: Vec<u8>,
}

/// What a run remembers between its parts.
pub(super) struct Course {
    pub suspects: Suspects,
    /// Drives whose media are damaged: a member stays suspect until it has another drive.
    pub damaged: BTreeSet<Bay>,
    /// Those that have blocks that cannot be read.
    pub scarred: BTreeSet<Bay>,
    /// Zones that have worn out, of drives that are damaged, or were when these were in use.
    pub worn: BTreeMap<Bay, BTreeSet<u32>>,
    pub repair: Option<Repair>,
    /// Set to `true` once an heir is the member.
    pub taken: Option<Rc<Cell<bool>>>,
    /// Drives that were replaced or given up.
    pub attic: Vec<Bay>,
    /// Those of them of which a member that was away may still believe that they are its array's.
    pub missed: BTreeSet<Bay>,
    /// A member is being taken out by hand.
    pub failing: Option<Pending<()>>,
    /// What is said of the array is being changed.
    pub changing: Option<Changing>,
    /// The array has been assembled on its drives since the last end.
    pub begun: bool,
    /// One comes back that was missing.
    pub coming_back: Option<Pending<()>>,
    /// Those that have come back to an array that may still hold back: it does not say so before it begins.
    pub back: BTreeSet<usize>,
    /// Drives that are being put in place: set to `false` once the array has taken them.
    pub attaching: Vec<(usize, Rc<Cell<bool>>)>,
    /// Members whose drives were being put in place when the power went.
    pub half_attached: BTreeSet<usize>,
    /// The power is going to be cut while the repair goes on.
    pub cut_in_rebuild: bool,
    /// A process was killed, and what it left in volatile caches will be lost with the power next.
    pub caches_next: bool,
    /// The drives were shut down and no recovery has ended since: it gives zones their ZRWAs again.
    pub reopening: bool,
    pub shelf: Shelf,
    /// A drive has failed silently in this life; and what a block held that may come back.
    pub failed_silently: bool,
    pub old: Option<Old>,
}

impl Course {
    /// A life in which `most` members may be struck at once.
    pub fn new(most: usize) -> Course {
        Course {
            suspects: Suspects::new(most),
            damaged: BTreeSet::new(),
            scarred: BTreeSet::new(),
            worn: BTreeMap::new(),
            repair: None,
            taken: None,
            attic: Vec::new(),
            missed: BTreeSet::new(),
            failing: None,
            changing: None,
            begun: false,
            coming_back: None,
            back: BTreeSet::new(),
            attaching: Vec::new(),
            half_attached: BTreeSet::new(),
            cut_in_rebuild: false,
            caches_next: false,
            reopening: false,
            shelf: Shelf::default(),
            failed_silently: false,
            old: None,
        }
    }

    /// A member's drive, if there is one, is none of the array's any more.
    pub fn retire(&mut self, left: Option<(usize, Bay)>) {
        let Some((member, bay)) = left else { return };
        match self.suspects.iter().any(|suspect| suspect.member != member) {
            true => self.missed.insert(bay),
            false => self.missed.remove(&bay),
        };
        if self.worn.contains_key(&bay) {
            self.damaged.insert(bay);
        }
        self.attic.push(bay);
    }

    /// Whether a drive of `member` is being put in place.
    pub fn is_attaching(&self, member: usize) -> bool {
        self.attaching.iter().any(|(other, attaching)| *other == member && attaching.get())
    }
}
