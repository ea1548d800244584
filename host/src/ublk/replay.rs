//! What to do with requests that the kernel issues again because the process before this one died
//! before it had answered them.
//!
//! Management commands can be carried out twice. A write that is in the array already, or its
//! beginning, is recognised by its place and compared. An append is recognised by its data among
//! what lies between the last append that the kernel had certainly been told of and the end of
//! the zone, from the end backwards, since earlier ones are more likely to have been answered.
//! Each place is given away once; an append that is not found is done again.

use crate::tails::Left;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, ZonedDevice},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::collections::BTreeMap;

/// Blocks read at once.
const BATCH_BLOCKS: u64 = 256;

/// Requests that may come again. Empty for a device that is new.
#[derive(Default)]
pub(super) struct Replay {
    /// Per zone, the write pointer at the take-over; 0 where nothing can come again.
    wps: Vec<u64>,
    appends: BTreeMap<u32, Appends>,
}

/// What may be the data of appends.
struct Appends {
    /// Offset of the first block, from the start of the zone.
    from: u64,
    /// Checksums of the blocks that nobody has claimed.
    sums: Vec<Option<u32>>,
}

impl Replay {
    /// Looks at what the process before this one has written and, if what it has `left` is known,
    /// not told the kernel.
    pub(super) async fn after(device: &dyn ZonedDevice, left: Option<&Left>) -> Result<Replay, DeviceError> {
        let geometry = device.geometry();
        let report = device.submit(Command::Report { first: ZoneIndex(0), count: geometry.zones }).await;
        report.result?;
        let mut replay = Replay::default();
        for info in &report.zones {
            let wp = match info.state {
                ZoneState::Full => info.capacity_blocks,
                ZoneState::Offline => 0,
                _ => info.wp_blocks,
            };
            replay.wps.push(wp);
            let zone = info.zone.0;
            let Some(left) = left else { continue };
            let from = left.acknowledged.get(zone as usize).copied().unwrap_or(wp);
            let mut found = Vec::new();
            while from + (found.len() as u64) < wp {
                let at = from + found.len() as u64;
                let data = Buf::zeroed((wp - at).min(BATCH_BLOCKS) as usize * BLOCK);
                let done = device.submit(Command::read(Lba(geometry.start(info.zone).0 + at), data)).await;
                done.result?;
                found.extend(sums(&done.data).into_iter().map(Some));
            }
            if !found.is_empty() {
                replay.appends.insert(zone, Appends { from, sums: found });
            }
        }
        Ok(replay)
    }

    /// Whether anything may come again.
    pub(super) fn goes_on(&self) -> bool {
        !self.wps.is_empty()
    }

    /// How many blocks of a write of `blocks` blocks at offset `at` the zone may hold already. A
    /// write that begins where the process before this one stopped comes after all that may come
    /// again.
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

    pub(super) fn has_appends(&self, zone: ZoneIndex) -> bool {
        self.appends.contains_key(&zone.0)
    }

    /// Claims the last place before offset `below` whose blocks have these checksums, and gives
    /// its offset.
    pub(super) fn claim(&mut self, zone: ZoneIndex, sums: &[u32], below: u64) -> Option<u64> {
        let appends = self.appends.get_mut(&zone.0)?;
        let matches = |place: &[Option<u32>]| place.iter().zip(sums).all(|(here, sum)| *here == Some(*sum));
        let before = below.saturating_sub(appends.from) as usize;
        let places = appends.sums.windows(sums.len().max(1)).enumerate();
        let (index, _) = places.take(before).rfind(|(_, place)| matches(place))?;
        appends.sums[index..index + sums.len()].fill(None);
        Some(appends.from + index as u64)
    }

    /// Takes a claim back: the checksums were a coincidence.
    pub(super) fn give_up(&mut self, zone: ZoneIndex, sums: &[u32], at: u64) {
        if let Some(appends) = self.appends.get_mut(&zone.0) {
            let index = at.saturating_sub(appends.from) as usize;
            for (here, sum) in appends.sums.iter_mut().skip(index).zip(sums) {
                *here = Some(*sum);
            }
        }
    }

    /// Nothing can come again for this zone.
    pub(super) fn forget(&mut self, zone: ZoneIndex) {
        if let Some(wp) = self.wps.get_mut(zone.0 as usize) {
            *wp = 0;
        }
        self.appends.remove(&zone.0);
    }
}

/// The checksum of every block.
pub(super) fn sums(data: &Buf) -> Vec<u32> {
    data.chunks(BLOCK).map(crc32c::crc32c).collect()
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
    use engine::zone::ZoneTable;
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

    fn replay(device: &Memory, acknowledged: u64) -> Replay {
        let left = Left { assembly: 1, complete: vec![0, 6], acknowledged: vec![0, acknowledged] };
        let built = Replay::after(device, Some(&left));
        Runtime::new().block_on(built, || false).unwrap().unwrap()
    }

    /// A replay whose zone holds blocks with these checksums from offset 2 on.
    fn with_sums(sums: &[u32]) -> Replay {
        let sums = sums.iter().copied().map(Some).collect();
        Replay { wps: vec![0, 8], appends: BTreeMap::from([(1, Appends { from: 2, sums })]) }
    }

    #[test]
    fn a_write_is_compared_as_far_as_the_zone_is_written_and_a_later_one_ends_that() {
        let mut replay = replay(&memory(6), 6);
        assert_eq!(replay.written_already(Z, 2, 3), 3);
        assert_eq!(replay.written_already(Z, 4, 3), 2);
        assert_eq!(replay.written_already(Z, 6, 1), 0);
        assert_eq!(replay.written_already(Z, 4, 3), 0);
        assert_eq!(replay.written_already(ZoneIndex(0), 0, 1), 0);
        let mut reset = with_sums(&[1]);
        reset.forget(Z);
        assert_eq!(reset.written_already(Z, 0, 1), 0);
        assert!(!reset.has_appends(Z));
        assert_eq!(Replay::default().written_already(Z, 0, 1), 0);
    }

    #[test]
    fn appends_are_looked_for_between_the_last_answer_and_the_write_pointer() {
        let device = memory(6);
        let data = |first: u8, blocks: u8| {
            let mut data = Buf::zeroed(blocks as usize * BLOCK);
            for (block, bytes) in data.as_mut().unwrap().chunks_mut(BLOCK).enumerate() {
                bytes.fill(8 + first + block as u8 + 1);
            }
            data
        };
        let mut replay = replay(&device, 2);
        assert!(!replay.has_appends(ZoneIndex(0)));
        assert_eq!(replay.claim(Z, &sums(&data(4, 2)), u64::MAX), Some(4));
        assert_eq!(replay.claim(Z, &sums(&data(3, 2)), u64::MAX), None);
        assert_eq!(replay.claim(Z, &sums(&data(2, 2)), u64::MAX), Some(2));
        // Answered before, and beyond the write pointer.
        assert_eq!(replay.claim(Z, &sums(&data(1, 1)), u64::MAX), None);
        assert_eq!(replay.claim(Z, &sums(&data(6, 1)), u64::MAX), None);
        let holds = |lba, data: &Buf| Runtime::new().block_on(holds(&device, Lba(lba), data), || false);
        assert_eq!(holds(10, &data(2, 2)), Some(Ok(true)));
        assert_eq!(holds(10, &data(3, 2)), Some(Ok(false)));
    }

    #[test]
    fn equal_data_is_given_away_once_each_from_the_end() {
        let mut replay = with_sums(&[7, 7, 5, 7]);
        assert_eq!(replay.claim(Z, &[7], u64::MAX), Some(5));
        assert_eq!(replay.claim(Z, &[7], u64::MAX), Some(3));
        assert_eq!(replay.claim(Z, &[7], u64::MAX), Some(2));
        assert_eq!(replay.claim(Z, &[7], u64::MAX), None);
        assert_eq!(replay.claim(Z, &[5], u64::MAX), Some(4));
    }

    #[test]
    fn a_coincidence_is_passed_over_and_left_to_others() {
        let mut replay = with_sums(&[7, 8, 7, 8]);
        assert_eq!(replay.claim(Z, &[7, 8], u64::MAX), Some(4));
        replay.give_up(Z, &[7, 8], 4);
        assert_eq!(replay.claim(Z, &[7, 8], 4), Some(2));
        replay.give_up(Z, &[7, 8], 2);
        assert_eq!(replay.claim(Z, &[7, 8], 2), None);
        assert_eq!(replay.claim(Z, &[8, 7], u64::MAX), Some(3));
    }
}
