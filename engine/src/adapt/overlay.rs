//! Copy-on-write overlay of a drive: writes stay in memory, and the drive is only read.
//!
//! Assembly writes before the array can be read: it repairs zones after a crash, and records the membership on every
//! member. Where drives must not be changed, for a read-only inspection, or since a member that may come back would
//! become stale otherwise, it runs on overlays. The memory is small: a checkpoint, and the rows that are being written
//! of each open zone.
//!
//! While an overlay exists the drive must not be changed by other means. If the drive loses power, it may lose blocks
//! of which the overlay knows nothing: zone reports fail from then on. A ZRWA that the drive has lost without that is
//! missing in the reports.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, DriveId, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::Runtime,
    table::ZoneTable,
    zone::{Lba, UNKNOWN_WP, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// A drive, with all changes kept in memory.
pub struct Overlay {
    device: Rc<dyn ZonedDevice>,
    runtime: Runtime,
    slots: Rc<Slots>,
    written: RefCell<OverlayState>,
    /// Power epoch of the drive at the report of its zones.
    power_epoch: Option<u64>,
    /// Zones that had a ZRWA then.
    with_zrwa: BTreeSet<ZoneIndex>,
}

/// The changes: with them, the drive as if it had carried out all commands.
struct OverlayState {
    /// The zones, or the error of their report, with which all changes fail.
    table: Result<ZoneTable, DeviceError>,
    /// Written blocks: data, then out-of-band metadata.
    blocks: BTreeMap<Lba, Box<[u8]>>,
    /// Zones that have been reset: the data of the drive in them is ignored.
    reset: BTreeSet<ZoneIndex>,
}

type Outcome = Result<(), DeviceError>;

impl Overlay {
    /// An overlay on `device` as it is now.
    pub async fn over(runtime: &Runtime, device: Rc<dyn ZonedDevice>) -> Overlay {
        let (geometry, power_epoch) = (device.geometry(), device.power_epoch());
        let done = device.submit(Command::Report { first: ZoneIndex(0), count: geometry.zones }).await;
        let with_zrwa = done.zones.iter().filter(|info| info.zrwa).map(|info| info.zone).collect();
        let table = done.result.map(|()| {
            let mut table = ZoneTable::new(geometry);
            for mut info in done.zones {
                // A zone without a write pointer can be read, but not written.
                if info.wp_blocks == UNKNOWN_WP && info.state.is_active() {
                    info.state = ZoneState::ReadOnly;
                }
                // Reports of a drive are not trusted.
                info.wp_blocks = info.wp_blocks.min(geometry.zone_capacity_blocks);
                if info.zone.0 < geometry.zones {
                    table.load(&info);
                }
            }
            table
        });
        let written = OverlayState { table, blocks: BTreeMap::new(), reset: BTreeSet::new() };
        let (runtime, slots) = (runtime.clone(), Rc::default());
        Overlay { device, runtime, slots, written: written.into(), power_epoch, with_zrwa }
    }

    /// Answers a report with `zones`, the zones as the overlay knows them, of which some may have lost their ZRWAs since.
    fn report(&self, mut zones: Vec<ZoneInfo>) -> Completion {
        if self.device.power_epoch() != self.power_epoch {
            return Completion::failed(DeviceError::PowerLost);
        }
        let mut held = zones.iter().map(|info| info.zone).filter(|zone| self.with_zrwa.contains(zone));
        let Some(first) = held.next() else {
            return Completion::ready(Done { zones, ..Done::ok() });
        };
        let count = held.last().unwrap_or(first).0 - first.0 + 1;
        let now = self.device.submit(Command::Report { first, count });
        let with_zrwa = self.with_zrwa.clone();
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            let now = now.await;
            if let Err(error) = now.result {
                return completer.complete(Done::error(error));
            }
            let kept = |zone: ZoneIndex| now.zones.iter().any(|info| info.zone == zone && info.zrwa);
            for info in zones.iter_mut().filter(|info| with_zrwa.contains(&info.zone)) {
                info.zrwa &= kept(info.zone);
            }
            completer.complete(Done { zones, ..Done::ok() });
        });
        completion
    }

    fn read(&self, lba: Lba, data: Buf, oob: Buf) -> Completion {
        let (written, geometry) = (self.written.borrow(), self.device.geometry());
        let end = Lba(lba.0 + data.blocks());
        let reset = written.reset.contains(&geometry.locate(lba).0);
        if !reset && written.blocks.range(lba..end).next().is_none() {
            return self.device.submit(Command::Read { lba, data, oob });
        }
        let checked = geometry.check_buffers(&data, &oob, geometry.max_transfer_blocks);
        let checked = checked.map_err(DeviceError::from).and_then(|blocks| match &written.table {
            Ok(table) => Ok(table.check_read(lba, blocks)?),
            Err(error) => Err(*error),
        });
        if let Err(error) = checked {
            return Completion::ready(Done { data, oob, ..Done::error(error) });
        }
        let (oob_bytes, has_oob) = (geometry.oob_bytes as usize, !oob.is_empty());
        let below = |lba: Lba| {
            let oob = Buf::zeroed(if has_oob { oob_bytes } else { 0 });
            self.device.submit(Command::Read { lba, data: Buf::zeroed(BLOCK), oob })
        };
        // Blocks are read individually, since overwritten blocks of the drive need not be readable.
        let parts = (lba.0..end.0).map(Lba).map(|lba| match written.blocks.get(&lba) {
            Some(bytes) => BlockSource::Here(bytes.clone()),
            None if reset => BlockSource::Here(vec![0; BLOCK + oob_bytes].into()),
            None => BlockSource::Below(below(lba)),
        });
        let parts: Vec<BlockSource> = parts.collect();
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move { completer.complete(put_together(parts, data, oob).await) });
        completion
    }
}

/// Source of a block that is read.
enum BlockSource {
    /// In memory: data, then metadata.
    Here(Box<[u8]>),
    /// A read of the drive in flight.
    Below(Completion),
}

/// Waits for the blocks of a read, and copies them to its buffers.
async fn put_together(parts: Vec<BlockSource>, data: Buf, oob: Buf) -> Done {
    assert_eq!(parts.len() as u64, data.blocks(), "blocks that were found, and blocks to be read");
    let oob_bytes = oob.len() / parts.len().max(1);
    let (mut result, mut data, mut oob) = (Ok(()), data.into_mut(), oob.into_mut());
    for (block, part) in parts.into_iter().enumerate() {
        let read = match part {
            BlockSource::Here(bytes) => bytes,
            BlockSource::Below(completion) => {
                let done = completion.await;
                result = result.and(done.result);
                [&*done.data, &*done.oob].concat().into()
            }
        };
        if let Some((bytes, metadata)) = read.split_at_checked(BLOCK) {
            data[block * BLOCK..][..BLOCK].copy_from_slice(bytes);
            oob[block * oob_bytes..][..oob_bytes].copy_from_slice(&metadata[..oob_bytes]);
        }
    }
    Done { result, data: data.freeze(), oob: oob.freeze(), ..Done::ok() }
}

impl OverlayState {
    fn table(&mut self) -> Result<&mut ZoneTable, DeviceError> {
        self.table.as_mut().map_err(|error| *error)
    }

    /// Stores a write from `lba` on.
    fn keep(&mut self, lba: Lba, data: &Buf, oob: &Buf, oob_bytes: usize) {
        for (at, bytes) in data.chunks_exact(BLOCK).enumerate() {
            let nothing = vec![0; oob_bytes];
            let metadata = oob.get(at * oob_bytes..(at + 1) * oob_bytes).unwrap_or(&nothing);
            self.blocks.insert(Lba(lba.0 + at as u64), [bytes, metadata].concat().into());
        }
    }

    fn open(&mut self, zones: Zones, zrwa: bool) -> Outcome {
        match zones {
            Zones::One(zone) => self.table()?.open(zone, zrwa)?,
            Zones::All if zrwa => return Err(Status::InvalidField.into()),
            Zones::All => self.table()?.open_all()?,
        }
        Ok(())
    }

    fn close(&mut self, zones: Zones) -> Outcome {
        match zones {
            Zones::One(zone) => self.table()?.close(zone)?,
            Zones::All => self.table()?.close_all(),
        }
        Ok(())
    }

    fn finish(&mut self, zones: Zones) -> Outcome {
        match zones {
            Zones::One(zone) => self.table()?.finish(zone)?,
            Zones::All => self.table()?.finish_all(|_| ()),
        }
        Ok(())
    }

    fn reset(&mut self, zones: Zones, geometry: &Geometry) -> Outcome {
        let mut reset = Vec::new();
        match zones {
            Zones::One(zone) => {
                self.table()?.reset(zone)?;
                reset.push(zone);
            }
            Zones::All => self.table()?.reset_all(|zone| reset.push(zone)),
        }
        for zone in reset {
            let (from, to) = (geometry.start(zone), geometry.start(ZoneIndex(zone.0 + 1)));
            self.blocks.retain(|lba, _| !(from..to).contains(lba));
            self.reset.insert(zone);
        }
        Ok(())
    }
}

impl ZonedDevice for Overlay {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.device.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.device.drive_id()
    }

    fn optimal_write_blocks(&self) -> u64 {
        self.device.optimal_write_blocks()
    }

    fn note(&self, zone: ZoneIndex) -> Option<Buf> {
        let (written, geometry) = (self.written.borrow(), self.device.geometry());
        let zone_blocks = geometry.start(zone)..geometry.start(ZoneIndex(zone.0 + 1));
        let is_below = !written.reset.contains(&zone) && written.blocks.range(zone_blocks).next().is_none();
        is_below.then(|| self.device.note(zone)).flatten()
    }

    /// Cells are only read.
    fn read_cell(&self, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
        let is_below = !self.written.borrow().reset.contains(&zone);
        is_below.then(|| self.device.read_cell(zone, cell, copy)).flatten()
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        let written = self.written.borrow();
        let is_below = !written.blocks.contains_key(&lba)
            && !written.reset.contains(&self.device.geometry().locate(lba).0);
        is_below.then(|| self.device.reread(lba, attempt)).flatten()
    }

    fn submit(&self, command: Command) -> Completion {
        let geometry = self.device.geometry();
        let oob_bytes = geometry.oob_bytes as usize;
        let answer = |result: Outcome| Completion::ready(Done { result, ..Done::ok() });
        let command = match command {
            Command::Read { lba, data, oob } => return self.read(lba, data, oob),
            other => other,
        };
        let mut written = self.written.borrow_mut();
        match command {
            Command::Write { lba, data, oob, .. } => {
                let result = geometry
                    .check_buffers(&data, &oob, geometry.max_transfer_blocks)
                    .map_err(DeviceError::from)
                    .and_then(|blocks| Ok(written.table()?.write(lba, blocks)?));
                if result.is_ok() {
                    written.keep(lba, &data, &oob, oob_bytes);
                }
                Completion::ready(Done { result: result.map(|_| ()), data, oob, ..Done::ok() })
            }
            Command::Append { zone, data, oob, .. } => {
                let result = geometry
                    .check_buffers(&data, &oob, geometry.max_append_blocks)
                    .map_err(DeviceError::from)
                    .and_then(|blocks| Ok(written.table()?.append(zone, blocks)?));
                let lba = Lba(geometry.start(zone).0 + result.map_or(0, |effect| effect.offset_blocks));
                if result.is_ok() {
                    written.keep(lba, &data, &oob, oob_bytes);
                }
                Completion::ready(Done { result: result.map(|_| ()), data, oob, lba, ..Done::ok() })
            }
            Command::Report { first, count } => {
                match written.table().and_then(|table| Ok(table.report(first, count)?)) {
                    Ok(zones) => self.report(zones),
                    Err(error) => Completion::failed(error),
                }
            }
            Command::FlushZrwa { last } => {
                answer(written.table().and_then(|table| Ok(table.flush_zrwa(last).map(|_| ())?)))
            }
            Command::Open { zones, zrwa } => answer(written.open(zones, zrwa)),
            Command::Close { zones } => answer(written.close(zones)),
            Command::Finish { zones } => answer(written.finish(zones)),
            Command::Reset { zones } => answer(written.reset(zones, geometry)),
            Command::Flush | Command::Read { .. } => answer(Ok(())),
        }
    }
}
