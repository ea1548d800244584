//! Permitted states and contents of the zones of a namespace.
//!
//! Writes to a zone complete in order, so a zone has three ends: of the submitted, of the completed, and of the durable
//! blocks. After a power cut the write pointer lies between the last and the first of these, all blocks below it read
//! as written, and all above it as zeros. The state found by a recovery is durable.

use crate::simulator::{
    layer::world::LayerEnd,
    stamp::{self, Stamp},
};
use engine::{
    buf::BLOCK,
    zone::{ZoneInfo, ZoneState},
};

/// A command that changes a zone and has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceChange {
    Finish,
    Reset,
}

/// One zone of a namespace.
#[derive(Clone, Debug)]
pub struct NamespaceZone {
    /// Identifies the zone in the stamps of its blocks.
    mark: u32,
    capacity: u64,
    /// Number of the write of each submitted block.
    stamps: Vec<u64>,
    pub completed: u64,
    pub safe: u64,
    /// End of the data when the zone was finished.
    pub finished: Option<u64>,
    /// A write has failed: the zone is only read until the next recovery.
    pub failed: bool,
    pub change: Option<NamespaceChange>,
    /// Number of submitted resets.
    pub epoch: u64,
}

impl NamespaceZone {
    pub fn new(mark: u32, capacity: u64) -> NamespaceZone {
        NamespaceZone {
            mark,
            capacity,
            stamps: Vec::new(),
            completed: 0,
            safe: 0,
            finished: None,
            failed: false,
            change: None,
            epoch: 0,
        }
    }

    /// Number of submitted blocks.
    pub fn submitted(&self) -> u64 {
        self.stamps.len() as u64
    }

    /// Whether the zone has no data and is not full.
    pub fn is_empty(&self) -> bool {
        self.stamps.is_empty() && self.finished.is_none()
    }

    /// Number of completed blocks; 0 while a reset is in flight.
    pub fn promised(&self) -> u64 {
        if self.change == Some(NamespaceChange::Reset) { 0 } else { self.completed }
    }

    /// Whether the zone can be written.
    pub fn takes_writes(&self) -> bool {
        let open = self.change.is_none() && self.finished.is_none() && !self.failed;
        open && self.submitted() < self.capacity
    }

    /// Submits a write with this number; returns its data.
    pub fn write(&mut self, number: u64, blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; blocks as usize * BLOCK];
        for block in bytes.chunks_exact_mut(BLOCK) {
            Stamp { zone: self.mark, block: self.submitted(), write: number }.fill(block);
            self.stamps.push(number);
        }
        bytes
    }

    /// A write up to `end` has completed, with FUA if `safe`. A write with FUA may complete after the writes behind it.
    pub fn wrote(&mut self, end: u64, safe: bool) {
        self.completed = self.completed.max(end);
        if safe {
            self.safe = self.safe.max(end);
        }
    }

    /// A finish or reset has completed.
    pub fn changed(&mut self) {
        match self.change.take() {
            Some(NamespaceChange::Finish) => {
                (self.completed, self.safe) = (self.submitted(), self.submitted());
                self.finished = Some(self.submitted());
            }
            Some(NamespaceChange::Reset) => self.clear(),
            None => (),
        }
    }

    fn clear(&mut self) {
        self.stamps.clear();
        (self.completed, self.safe, self.finished, self.change) = (0, 0, None, None);
    }

    /// Checks that blocks from `from` on are as written below `end`, and with `all` that those above are zeros.
    ///
    /// # Errors
    /// The first wrong block.
    pub fn check(&self, from: u64, end: u64, all: bool, data: &[u8]) -> Result<(), String> {
        for (block, bytes) in (from..).zip(data.chunks_exact(BLOCK)) {
            let right = match self.stamps.get(block as usize) {
                Some(write) if block < end => Stamp { zone: self.mark, block, write: *write }.matches(bytes),
                _ => !all || stamp::is_zero(bytes),
            };
            if !right {
                return Err(format!("block {block} below {end} holds {}: {self:?}", stamp::describe(bytes)));
            }
        }
        Ok(())
    }

    /// Checks that blocks hold no data of another place: each holds zeros, or data that some life of the zone had
    /// there.
    ///
    /// # Errors
    /// The first block with foreign data.
    pub fn check_own(&self, from: u64, data: &[u8]) -> Result<(), String> {
        for (block, bytes) in (from..).zip(data.chunks_exact(BLOCK)) {
            let is_own = |stamp: Stamp| (stamp.zone, stamp.block) == (self.mark, block);
            if !stamp::is_zero(bytes) && !stamp::stamp_of(bytes).is_some_and(is_own) {
                return Err(format!("block {block} holds {}, which is not its own", stamp::describe(bytes)));
            }
        }
        Ok(())
    }

    /// Judges the state and contents of the zone after a recovery, and takes them as its state from now on.
    ///
    /// # Errors
    /// Description of the violation.
    pub fn recovered(
        &mut self,
        end: LayerEnd,
        volatile: bool,
        info: &ZoneInfo,
        data: &[u8],
    ) -> Result<(), String> {
        let change = self.change.take();
        self.failed = false;
        let empty = info.state == ZoneState::Empty;
        if change == Some(NamespaceChange::Reset) && empty {
            self.clear();
            return self.check(0, 0, true, data);
        }
        let full = info.state == ZoneState::Full;
        if let Some(tail) = self.finished {
            return match full {
                true => self.check(0, tail, true, data),
                false => Err(format!("a finished zone is {info:?}: {self:?}")),
            };
        }
        if change == Some(NamespaceChange::Finish) && full {
            self.finished = Some(self.submitted());
            (self.completed, self.safe) = (self.submitted(), self.submitted());
            return self.check(0, self.submitted(), true, data);
        }
        let wp = if full { self.capacity } else { info.wp_blocks };
        let floor = if volatile && end == LayerEnd::PowerCut { self.safe } else { self.completed };
        if wp < floor || wp > self.submitted() || empty != (wp == 0) {
            return Err(format!("the zone is {info:?}, promised were {floor} blocks: {self:?}"));
        }
        self.check(0, wp, true, data)?;
        self.stamps.truncate(wp as usize);
        (self.completed, self.safe) = (wp, wp);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::zone::ZoneIndex;

    fn info(state: ZoneState, wp_blocks: u64) -> ZoneInfo {
        ZoneInfo { zone: ZoneIndex(0), state, wp_blocks, capacity_blocks: 4, zrwa: false }
    }

    fn written() -> (NamespaceZone, Vec<u8>) {
        let mut zone = NamespaceZone::new(3, 4);
        let mut bytes = zone.write(1, 2);
        zone.wrote(2, true);
        bytes.extend(zone.write(2, 1));
        zone.wrote(3, false);
        bytes.resize(4 * BLOCK, 0);
        (zone, bytes)
    }

    #[test]
    fn namespace_oracle_allows_loss_of_unsafe_data_only() {
        for (end, volatile, wp, right) in [
            (LayerEnd::PowerCut, true, 3, true),
            (LayerEnd::PowerCut, true, 2, true),
            (LayerEnd::PowerCut, true, 1, false),
            (LayerEnd::PowerCut, false, 2, false),
            (LayerEnd::Kill, true, 2, false),
            (LayerEnd::Kill, true, 3, true),
        ] {
            let (mut zone, mut bytes) = written();
            bytes[wp as usize * BLOCK..].fill(0);
            let result = zone.recovered(end, volatile, &info(ZoneState::Closed, wp), &bytes);
            assert_eq!(result.is_ok(), right, "{end:?} {volatile} {wp}: {result:?}");
        }
        let (mut zone, bytes) = written();
        // There is data above the write pointer.
        assert!(zone.recovered(LayerEnd::PowerCut, true, &info(ZoneState::Closed, 2), &bytes).is_err());
    }

    #[test]
    fn namespace_oracle_rejects_data_of_other_zones() {
        let (zone, bytes) = written();
        assert!(zone.check_own(0, &bytes).is_ok());
        assert!(zone.check_own(1, &bytes).is_err());
        assert!(NamespaceZone::new(4, 4).check_own(0, &bytes).is_err());
        assert!(NamespaceZone::new(3, 4).check_own(0, &bytes).is_ok());
    }

    #[test]
    fn namespace_oracle_accepts_interrupted_change_done_or_undone() {
        let (zone, bytes) = written();
        for (change, state, right) in [
            (NamespaceChange::Reset, ZoneState::Empty, false),
            (NamespaceChange::Reset, ZoneState::Closed, true),
            (NamespaceChange::Finish, ZoneState::Full, true),
            (NamespaceChange::Finish, ZoneState::Closed, true),
            (NamespaceChange::Finish, ZoneState::Empty, false),
        ] {
            let mut zone = zone.clone();
            zone.change = Some(change);
            let result = zone.recovered(LayerEnd::PowerCut, true, &info(state, 3), &bytes);
            assert_eq!(result.is_ok(), right, "{change:?} {state:?}: {result:?}");
        }
        let mut reset = zone.clone();
        reset.change = Some(NamespaceChange::Reset);
        assert!(
            reset.recovered(LayerEnd::PowerCut, true, &info(ZoneState::Empty, 0), &[0; 4 * BLOCK]).is_ok()
        );
    }
}
