//! State of a life between its parts: the suspects, background work beside the load, and silently faulty drives.

use super::{
    command_queue::Bay, fault_budget::FaultBudget, spare_drives::SpareDrives, subject::SubjectIdentity,
    world::Pending,
};
use emu::rng::Rng;
use engine::{array::ZoneScrub, zone::Lba};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// A rebuild or a replacement that runs in the background.
pub(super) struct BackgroundRepair {
    /// All members that the repair fills.
    pub members: Vec<usize>,
    pub pending: Pending<u64>,
    /// One of them was struck meanwhile: the repair may fail.
    pub struck: bool,
    /// The repair copies a working drive to another one.
    pub copies: bool,
    /// The copy was cancelled.
    pub cancelled: bool,
}

impl BackgroundRepair {
    /// Whether the repair may fail when `member` is struck.
    pub fn rests_on(&self, member: usize) -> bool {
        self.copies || self.members.contains(&member)
    }
}

/// A change of name, host, autostart or error limit of a running array.
pub(super) struct PendingChange {
    pub pending: Pending<()>,
    /// The possible identities of the array once the change is done, and those if it was refused before it began.
    pub after: Vec<SubjectIdentity>,
    pub before: Vec<SubjectIdentity>,
}

/// Former contents of a block, for a stale write.
pub(super) struct OldBlock {
    pub bay: Bay,
    pub lba: Lba,
    pub bytes: Vec<u8>,
}

/// State of a run between its parts.
pub(super) struct RunState {
    pub suspects: FaultBudget,
    /// Drives with damaged media: a member stays suspect until it has another drive.
    pub damaged: BTreeSet<Bay>,
    /// Drives with unreadable blocks.
    pub scarred: BTreeSet<Bay>,
    /// Worn zones of drives that are damaged, or that were damaged while in use.
    pub worn: BTreeMap<Bay, BTreeSet<u32>>,
    pub repair: Option<BackgroundRepair>,
    /// Set to `true` once the replacement drive is the member.
    pub taken: Option<Rc<Cell<bool>>>,
    /// A member, and a drive of `attic` to which its copy was interrupted: the next process may continue it.
    pub unfinished: Option<(usize, Bay)>,
    /// Drives that were replaced or given up.
    pub attic: Vec<Bay>,
    /// Drives of `attic` that an absent member may still record as members.
    pub missed: BTreeSet<Bay>,
    /// A member is being taken out by an administrative command.
    pub failing: Option<Pending<()>>,
    /// The name, host, autostart or error limit is being changed.
    pub changing: Option<PendingChange>,
    /// The array has written to its drives since the last end: it is not, or no longer, in deferred-write mode.
    pub begun: bool,
    /// A missing member is being taken back.
    pub coming_back: Option<Pending<()>>,
    /// Members that came back to an array that may be in deferred-write mode, which reports them only after its first
    /// change.
    pub back: BTreeSet<usize>,
    /// Drives that are being attached: the flag is set to `false` once the array has taken the drive.
    pub attaching: Vec<(usize, Rc<Cell<bool>>)>,
    /// Members with a drive that the array may or may not have taken, since its attachment was interrupted.
    pub half_attached: BTreeSet<usize>,
    /// The power is to be cut during the repair.
    pub cut_in_rebuild: bool,
    /// A process was killed, and the next end is a power cut that loses its unflushed data in volatile caches.
    pub caches_next: bool,
    /// The drives were shut down and no recovery has ended since; recovery opens zones with ZRWAs again.
    pub reopening: bool,
    pub spare_drives: SpareDrives,
    /// The scrub of a zone, and the generator of their moments.
    pub scrub: Option<Pending<ZoneScrub>>,
    pub scrubs: Rng,
    /// A drive has failed silently in this life; and the former contents of a block for a stale write.
    pub failed_silently: bool,
    pub old: Option<OldBlock>,
}

impl RunState {
    /// A life in which `most` members may be struck at once, with its seed for scrubs.
    pub fn new(most: usize, scrub_seed: u64) -> RunState {
        RunState {
            suspects: FaultBudget::new(most),
            damaged: BTreeSet::new(),
            scarred: BTreeSet::new(),
            worn: BTreeMap::new(),
            repair: None,
            taken: None,
            unfinished: None,
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
            spare_drives: SpareDrives::default(),
            scrub: None,
            scrubs: Rng::new(scrub_seed),
            failed_silently: false,
            old: None,
        }
    }

    /// Retires the drive of a member, if `left` has one: it no longer belongs to the array.
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

    /// Whether a drive of `member` is being attached.
    pub fn is_attaching(&self, member: usize) -> bool {
        self.attaching.iter().any(|(other, attaching)| *other == member && attaching.get())
    }
}
