//! Reissued requests: the kernel issues requests again that the previous process had not answered when it died.
//!
//! Management commands are idempotent. A write of which all or the first blocks are in the array already is recognized
//! by its address, and compared. An append is recognized by its length and data among the outstanding ones, with the
//! places that the previous process has recorded; each block is assigned once, and an append that is not found is
//! executed again. An append of which only the first blocks are in the zone is completed before any other append:
//! blocks without an acknowledged append would take capacity of the zone that its user counts on.

use crate::serve::ack_log::{AckLogContents, Extent};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, ZonedDevice},
    zone::{Lba, ZoneIndex, ZoneState},
};

/// Requests that may be reissued. Empty for a new device.
#[derive(Default)]
pub(super) struct Replay {
    /// Per zone, the write pointer at the take-over; 0 if nothing can be reissued.
    wps: Vec<u64>,
    appends: Vec<Append>,
}

/// An append that may be reissued, and of which at least one block is in its zone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Append {
    /// The slot in which the previous process has noted it.
    pub slot: usize,
    pub extent: Extent,
    /// How many of its blocks are in the zone.
    pub written: u64,
    /// Checksum of the first block.
    sum: u32,
    /// Whether a request has claimed it, and its data is being compared.
    claimed: bool,
}

impl Append {
    fn is_partial(&self) -> bool {
        self.written < self.extent.blocks
    }

    fn may_match(&self, zone: ZoneIndex, data: &Buf, sum: u32, others: &[usize]) -> bool {
        let same = (self.extent.zone, self.extent.blocks, self.sum) == (zone, data.blocks(), sum);
        same && !others.contains(&self.slot)
    }
}

impl Replay {
    /// Determines which of the appends in `left` the previous process has written.
    pub(super) async fn after(
        device: &dyn ZonedDevice,
        left: Option<&AckLogContents>,
    ) -> Result<Replay, DeviceError> {
        let geometry = device.geometry();
        let report = device.submit(Command::Report { first: ZoneIndex(0), count: geometry.zones }).await;
        report.result?;
        let mut replay = Replay::default();
        for info in &report.zones {
            replay.wps.push(match info.state {
                ZoneState::Full => info.capacity_blocks,
                ZoneState::Offline => 0,
                _ => info.wp_blocks,
            });
        }
        let Some(left) = left else { return Ok(replay) };
        for (slot, extent) in left.appends.iter().enumerate() {
            let Some(extent) = extent else { continue };
            let wp = replay.wps.get(extent.zone.0 as usize).copied().unwrap_or(0);
            let written = wp.saturating_sub(extent.at).min(extent.blocks);
            // The acknowledged end in `left` is no evidence of the answer to an append: it may be the end of a stripe
            // inside of one.
            if written > 0 {
                let first = Lba(geometry.start(extent.zone).0 + extent.at);
                let done = device.submit(Command::read(first, Buf::zeroed(BLOCK))).await;
                if done.result.is_err() {
                    // If it is reissued it is appended again: that costs space, but no data.
                    continue;
                }
                let sum = sum(&done.data);
                replay.appends.push(Append { slot, extent: *extent, written, sum, claimed: false });
            }
        }
        // Claimed from the end of a zone down: the last appends are the least likely to have been answered.
        replay.appends.sort_by_key(|append| std::cmp::Reverse(append.extent.at));
        Ok(replay)
    }

    /// Whether the device was taken over from another process.
    pub(super) fn is_takeover(&self) -> bool {
        !self.wps.is_empty()
    }

    /// How many blocks of a write of `blocks` blocks at offset `at` the zone may hold already. A write at or behind the
    /// end at the take-over comes after all reissued ones of its zone.
    pub(super) fn written_already(&mut self, zone: ZoneIndex, at: u64, blocks: u64) -> u64 {
        let wp = self.wps.get(zone.0 as usize).copied().unwrap_or(0);
        if wp == 0 {
            return 0;
        }
        if at >= wp {
            self.forget(zone);
        }
        wp.saturating_sub(at).min(blocks)
    }

    /// Whether the append noted in `slot` may be reissued and is in its zone.
    pub(super) fn has_noted(&self, slot: usize) -> bool {
        self.appends.iter().any(|append| append.slot == slot)
    }

    /// Whether an append to `zone` may be a reissued one, or has to wait for one.
    pub(super) fn has_appends(&self, zone: ZoneIndex) -> bool {
        self.appends.iter().any(|append| append.extent.zone == zone)
    }

    /// Whether `zone` ends inside an append that will be reissued.
    pub(super) fn has_partial_append(&self, zone: ZoneIndex) -> bool {
        self.appends.iter().any(|append| append.extent.zone == zone && append.is_partial())
    }

    /// Claims a noted append that may have `data`, except those in the slots `others` and those with blocks that are
    /// claimed already.
    pub(super) fn claim(&mut self, zone: ZoneIndex, data: &Buf, others: &[usize]) -> Option<Append> {
        let sum = sum(data);
        let claimed: Vec<Extent> =
            self.appends.iter().filter(|append| append.claimed).map(|append| append.extent).collect();
        let is_claimed = |append: &Append| claimed.iter().any(|extent| extent.overlaps(&append.extent));
        let mut appends = self.appends.iter_mut();
        let append =
            appends.find(|append| !is_claimed(append) && append.may_match(zone, data, sum, others))?;
        append.claimed = true;
        Some(*append)
    }

    /// Whether an append of `data` that has claimed nothing has to wait: until a partial append is completed, or until
    /// another request has been compared with a noted append that may have this data.
    pub(super) fn has_to_wait(&self, zone: ZoneIndex, data: &Buf, others: &[usize]) -> bool {
        let sum = sum(data);
        self.has_partial_append(zone)
            || self.appends.iter().any(|append| append.may_match(zone, data, sum, others))
    }

    /// Releases a claim: the data was different.
    pub(super) fn give_back(&mut self, append: &Append) {
        for other in self.appends.iter_mut().filter(|other| other.slot == append.slot) {
            other.claimed = false;
        }
    }

    /// Removes a noted append, which was reissued, and those noted at some of its blocks: they were delayed, and are
    /// not there. Returns all of them.
    pub(super) fn settle(&mut self, append: &Append) -> Vec<Append> {
        let overlaps = |other: &Append| other.extent.overlaps(&append.extent);
        let (settled, left) = self.appends.iter().partition(|other| overlaps(other));
        self.appends = left;
        settled
    }

    /// Nothing can be reissued for this zone any more.
    pub(super) fn forget(&mut self, zone: ZoneIndex) {
        if let Some(wp) = self.wps.get_mut(zone.0 as usize) {
            *wp = 0;
        }
        self.appends.retain(|append| append.extent.zone != zone);
    }
}

/// The checksum of the first block.
fn sum(data: &Buf) -> u32 {
    data.chunks(BLOCK).next().map_or(0, crc32c::crc32c)
}

/// Whether `device` holds `data` at `lba`.
pub(super) async fn holds(device: &dyn ZonedDevice, lba: Lba, data: &Buf) -> Result<bool, DeviceError> {
    let done = device.submit(Command::read(lba, Buf::zeroed(data.len()))).await;
    done.result?;
    Ok(done.data[..] == data[..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::device::{Completion, Done, Geometry};
    use engine::runtime::Runtime;
    use engine::table::ZoneTable;
    use std::cell::RefCell;

    const Z: ZoneIndex = ZoneIndex(1);

    /// Two zones of eight blocks; a block holds its number plus one in every byte.
    struct Memory(Geometry, RefCell<ZoneTable>);

    impl ZonedDevice for Memory {
        fn geometry(&self) -> &Geometry {
            &self.0
        }

        fn submit(&self, command: Command) -> Completion {
            Completion::ready(match command {
                Command::Report { first, count } => {
                    Done { zones: self.1.borrow().report(first, count).unwrap(), ..Done::ok() }
                }
                Command::Read { lba, mut data, .. } => {
                    let bytes = data.as_mut().unwrap();
                    for (block, bytes) in bytes.chunks_mut(BLOCK).enumerate() {
                        bytes.fill(lba.0 as u8 + block as u8 + 1);
                    }
                    Done::with_data(data)
                }
                command => panic!("{command:?}"),
            })
        }
    }

    fn memory(wp: u64) -> Memory {
        let geometry = Geometry {
            zones: 2,
            zone_size_blocks: 8,
            zone_capacity_blocks: 8,
            max_open: 0,
            max_active: 0,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 8,
            max_append_blocks: 8,
            volatile_cache: true,
        };
        let mut table = ZoneTable::new(&geometry);
        if wp > 0 {
            table.append(Z, wp).unwrap();
        }
        Memory(geometry, RefCell::new(table))
    }

    fn extent(at: u64, blocks: u64) -> Extent {
        Extent { zone: Z, at, blocks }
    }

    fn replay(device: &Memory, appends: &[Extent]) -> Replay {
        let appends = appends.iter().copied().map(Some).collect();
        let left = AckLogContents { assembly: 1, complete: vec![0, 0], appends, power: vec![] };
        let built = Replay::after(device, Some(&left));
        Runtime::new().block_on(built, || false).unwrap().unwrap()
    }

    /// The contents of zone 1 at `at`.
    fn data(at: u8, blocks: u8) -> Buf {
        let mut data = Buf::zeroed(blocks as usize * BLOCK);
        for (block, bytes) in data.as_mut().unwrap().chunks_mut(BLOCK).enumerate() {
            bytes.fill(8 + at + block as u8 + 1);
        }
        data
    }

    #[test]
    fn replay_compares_writes_until_first_write_at_end() {
        let mut again = replay(&memory(6), &[extent(4, 3)]);
        assert_eq!(again.written_already(Z, 2, 3), 3);
        assert_eq!(again.written_already(Z, 4, 3), 2);
        assert_eq!(again.written_already(ZoneIndex(0), 0, 1), 0);
        assert!(again.has_appends(Z));
        assert_eq!(again.written_already(Z, 6, 1), 0);
        assert_eq!(again.written_already(Z, 4, 3), 0);
        assert!(!again.has_appends(Z));
        assert_eq!(Replay::default().written_already(Z, 0, 1), 0);
    }

    #[test]
    fn replay_matches_appends_by_data_and_completes_partial() {
        let device = memory(5);
        // The third was cut short; nothing of the fourth was written.
        let mut again = replay(&device, &[extent(0, 2), extent(2, 2), extent(4, 3), extent(7, 1)]);
        assert!(!again.has_appends(ZoneIndex(0)));
        assert!(again.has_partial_append(Z));
        assert_eq!([0, 1, 2, 3].map(|slot| again.has_noted(slot)), [true, true, true, false]);
        assert_eq!(again.claim(Z, &data(7, 1), &[]), None);
        assert_eq!(again.claim(Z, &data(4, 1), &[]), None);
        assert_eq!(again.claim(Z, &data(1, 2), &[]), None);
        let second = again.claim(Z, &data(2, 2), &[]).unwrap();
        assert_eq!((second.extent, second.written), (extent(2, 2), 2));
        assert_eq!(again.claim(Z, &data(2, 2), &[]), None);
        again.settle(&second);
        let third = again.claim(Z, &data(4, 3), &[]).unwrap();
        assert_eq!((third.extent, third.written), (extent(4, 3), 1));
        // Other appends wait until the rest of it is submitted.
        assert!(again.has_partial_append(Z));
        again.settle(&third);
        assert!(!again.has_partial_append(Z) && again.has_appends(Z));
        again.forget(Z);
        assert!(!again.has_appends(Z));
    }

    /// Appends that were delayed, and noted at the same block.
    #[test]
    fn replay_assigns_each_block_to_one_append() {
        for other in [3, 2] {
            let mut again = replay(&memory(5), &[extent(4, 3), extent(4, other), extent(2, 2)]);
            let first = again.claim(Z, &data(4, 3), &[]).unwrap();
            assert_eq!(again.claim(Z, &data(4, other as u8), &[]), None);
            assert!(again.has_to_wait(Z, &data(4, other as u8), &[]));
            assert_eq!(again.settle(&first).len(), 2);
            assert!(!again.has_to_wait(Z, &data(4, other as u8), &[]));
            assert!(again.has_noted(2));
        }
    }

    #[test]
    fn replay_append_is_partial_at_any_completed_end() {
        for complete in 0..=6 {
            let appends = vec![Some(extent(3, 4))];
            let left = AckLogContents { assembly: 1, complete: vec![0, complete], appends, power: vec![] };
            let device = memory(6);
            let again = Runtime::new().block_on(Replay::after(&device, Some(&left)), || false);
            assert!(again.unwrap().unwrap().has_partial_append(Z), "{complete}");
        }
    }

    #[test]
    fn replay_append_given_back_can_be_claimed_again() {
        let device = memory(6);
        let mut again = replay(&device, &[extent(2, 2)]);
        let claim = again.claim(Z, &data(2, 2), &[]).unwrap();
        again.give_back(&claim);
        assert_eq!(again.claim(Z, &data(2, 2), &[]).map(|append| append.extent), Some(extent(2, 2)));
        let holds = |lba, data: &Buf| Runtime::new().block_on(holds(&device, Lba(lba), data), || false);
        assert_eq!(holds(10, &data(2, 2)), Some(Ok(true)));
        assert_eq!(holds(10, &data(3, 2)), Some(Ok(false)));
    }

    #[test]
    fn replay_forgets_only_appends_of_its_zone() {
        let device = memory(6);
        device.1.borrow_mut().append(ZoneIndex(0), 2).unwrap();
        let first = Extent { zone: ZoneIndex(0), at: 0, blocks: 2 };
        let mut again = replay(&device, &[extent(4, 2), first]);
        again.forget(ZoneIndex(0));
        assert_eq!([ZoneIndex(0), Z].map(|zone| again.has_appends(zone)), [false, true]);
    }
}
