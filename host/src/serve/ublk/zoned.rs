//! A zoned device behind a block device: zone requests of the kernel, and the acknowledgement log for the next process.

use super::{
    abi::{self, SECTORS, UblkOperation, UblkRequest},
    replay::{self, Append, Replay},
    transfer::{DataTransfer, RequestTag, UblkAnswer},
};
use crate::serve::ack_log::{AckLog, Extent};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Status, ZonedDevice, Zones},
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
};

/// A served zoned device.
pub(super) struct ZonedBackend {
    device: Rc<dyn ZonedDevice>,
    ack_log: Rc<AckLog>,
    replay: RefCell<Replay>,
    /// Opened after each change of `replay`, for the appends that wait for a reissued one.
    replayed: Gate,
    /// Per zone, the expected end of its last append; 0 after a reset or a failed append.
    append_ends: Vec<Cell<u64>>,
    /// Slots of appends with results that have not been submitted to the kernel.
    answered: RefCell<Vec<usize>>,
    /// Opened when `answered` has grown, and when the block device is no longer served.
    pub more_answered: Gate,
}

impl ZonedBackend {
    pub(super) fn new(device: Rc<dyn ZonedDevice>, ack_log: Rc<AckLog>, replay: Replay) -> ZonedBackend {
        ZonedBackend {
            append_ends: vec![Cell::new(0); device.geometry().zones as usize],
            device,
            ack_log,
            replay: RefCell::new(replay),
            replayed: Gate::default(),
            answered: RefCell::default(),
            more_answered: Gate::default(),
        }
    }

    /// Whether there are appends with results that have not been submitted to the kernel.
    pub(super) fn has_answered(&self) -> bool {
        !self.answered.borrow().is_empty()
    }

    /// Frees the slots in `answered`. To be called when the kernel has the results.
    pub(super) fn acknowledge_appends(&self) {
        for slot in self.answered.borrow_mut().drain(..) {
            self.ack_log.end_append(slot);
        }
    }

    /// Executes a request. The command is submitted before anything is awaited, unless a reissued request has to be
    /// compared first, so that commands reach the device in the order of the kernel.
    pub(super) async fn perform(
        &self,
        transfer: &DataTransfer,
        place: RequestTag,
        (operation, request): (UblkOperation, &UblkRequest),
    ) -> Result<UblkAnswer, DeviceError> {
        let geometry = self.device.geometry();
        let lba = Lba(request.sector / SECTORS);
        let (zone, at) = geometry.locate(lba);
        let command = match operation {
            UblkOperation::Read => return self.read(transfer, place, request, lba).await,
            UblkOperation::Write => {
                let data = transfer.data_of(place, request)?;
                let end = at + data.blocks();
                let tail = self.write(transfer, lba, data, request.fua).await?;
                self.ack_log.complete(zone, tail.max(end));
                return Ok((request.bytes() as i32, 0));
            }
            UblkOperation::Append => {
                let data = transfer.data_of(place, request)?;
                let blocks = data.blocks();
                let slot = transfer.slot(place);
                let reused = self.answered.borrow().iter().position(|answered| *answered == slot);
                if let Some(index) = reused {
                    // The kernel has reused the slot, so it has the previous result.
                    self.answered.borrow_mut().swap_remove(index);
                    self.ack_log.end_append(slot);
                }
                let appended = self.append(transfer, (slot, zone), data, request.fua).await;
                if appended.is_err() {
                    self.ack_log.end_append(slot);
                    self.forget_append_end(zone);
                }
                let (lba, tail) = appended?;
                let (_, at) = geometry.locate(lba);
                self.ack_log.complete(zone, tail.max(at + blocks));
                self.answered.borrow_mut().push(slot);
                self.more_answered.open();
                return Ok((0, lba.0 * SECTORS));
            }
            UblkOperation::Reset => return self.reset(zone.0..zone.0 + 1, Zones::One(zone)).await,
            UblkOperation::ResetAll => return self.reset(0..geometry.zones, Zones::All).await,
            UblkOperation::Report => return self.report(transfer, place, zone, request.count).await,
            UblkOperation::Close => return self.close(zone).await,
            UblkOperation::Flush => Command::Flush,
            UblkOperation::Open => Command::Open { zones: Zones::One(zone), zrwa: false },
            UblkOperation::Finish => {
                self.device.submit(Command::Finish { zones: Zones::One(zone) }).await.result?;
                self.forget_replay(zone);
                return Ok((0, 0));
            }
            UblkOperation::Discard | UblkOperation::WriteZeroes => return Err(Status::InvalidOpcode.into()),
        };
        self.device.submit(command).await.result?;
        Ok((0, 0))
    }

    async fn read(
        &self,
        transfer: &DataTransfer,
        place: RequestTag,
        request: &UblkRequest,
        lba: Lba,
    ) -> Result<UblkAnswer, DeviceError> {
        let data = transfer.pool.borrow_mut().take(request.blocks()).freeze();
        let done = self.device.submit(Command::read(lba, data)).await;
        done.result?;
        transfer.give_data(place, &done.data)?;
        transfer.pool.borrow_mut().give(done.data);
        Ok((request.bytes() as i32, 0))
    }

    /// Writes, and returns [`Done::tail`].
    async fn write(
        &self,
        transfer: &DataTransfer,
        lba: Lba,
        data: Buf,
        fua: bool,
    ) -> Result<u64, DeviceError> {
        let (zone, at) = self.device.geometry().locate(lba);
        let there = self.replay.borrow_mut().written_already(zone, at, data.blocks());
        self.replayed.open();
        let (lba, data) = match there {
            0 => (lba, data),
            // The previous process has written that many blocks of it.
            there => {
                if !replay::holds(&*self.device, lba, &data.slice_blocks(0..there)).await? {
                    return Err(Status::ZoneInvalidWrite.into());
                }
                if there == data.blocks() {
                    if fua {
                        // The previous process may have died before they were durable.
                        self.device.submit(Command::Flush).await.result?;
                    }
                    return Ok(0);
                }
                (Lba(lba.0 + there), data.slice_blocks(there..data.blocks()))
            }
        };
        let done = self.device.submit(Command::write(lba, data, fua)).await;
        done.result?;
        transfer.pool.borrow_mut().give(done.data);
        Ok(done.tail)
    }

    /// Appends, and returns the address of the data and [`Done::tail`].
    async fn append(
        &self,
        transfer: &DataTransfer,
        (slot, zone): (usize, ZoneIndex),
        data: Buf,
        fua: bool,
    ) -> Result<(Lba, u64), DeviceError> {
        let mut others = Vec::new();
        while self.replay.borrow().has_appends(zone) {
            if let Some(found) = self.append_again((slot, zone), &data, fua, &mut others).await? {
                return Ok(found);
            }
            if !self.replay.borrow().has_to_wait(zone, &data, &others) {
                break;
            }
            self.replayed.wait().await;
        }
        let (blocks, expected) = (data.blocks(), self.expect_append(zone, data.blocks()));
        if let Some(at) = expected {
            self.ack_log.begin_append(slot, Extent { zone, at, blocks });
        }
        let done = self.device.submit(Command::append(zone, data, fua)).await;
        done.result?;
        let (_, at) = self.device.geometry().locate(done.lba);
        if expected != Some(at) {
            self.ack_log.begin_append(slot, Extent { zone, at, blocks });
        }
        transfer.pool.borrow_mut().give(done.data);
        Ok((done.lba, done.tail))
    }

    /// Executes an append that the previous process has executed, or begun; `None` if it is not a reissued one. Adds
    /// the slots of appends with other data to `others`.
    async fn append_again(
        &self,
        (slot, zone): (usize, ZoneIndex),
        data: &Buf,
        fua: bool,
        others: &mut Vec<usize>,
    ) -> Result<Option<(Lba, u64)>, DeviceError> {
        let start = self.device.geometry().start(zone);
        let (append, lba) = loop {
            let claimed = self.replay.borrow_mut().claim(zone, data, others);
            let Some(append) = claimed else { return Ok(None) };
            let lba = Lba(start.0 + append.extent.at);
            match replay::holds(&*self.device, lba, &data.slice_blocks(0..append.written)).await {
                Ok(true) => break (append, lba),
                Ok(false) => {
                    others.push(append.slot);
                    self.replay.borrow_mut().give_back(&append);
                    self.replayed.open();
                }
                Err(error) => {
                    // This may be the reissued append. If the noted one stayed, other appends would wait for it
                    // forever.
                    self.settle(&append, slot);
                    return Err(error);
                }
            }
        };
        if append.slot != slot {
            self.ack_log.begin_append(slot, append.extent);
        }
        let rest = data.slice_blocks(append.written..data.blocks());
        let completion = match rest.is_empty() {
            true if fua => self.device.submit(Command::Flush),
            true => Completion::ready(Done::ok()),
            false => self.device.submit(Command::write(Lba(lba.0 + append.written), rest, fua)),
        };
        self.settle(&append, slot);
        let done = completion.await;
        done.result?;
        Ok(Some((lba, done.tail)))
    }

    /// Ends the replay of `append`, which is the one in `slot` from now on.
    fn settle(&self, append: &Append, slot: usize) {
        for settled in self.replay.borrow_mut().settle(append) {
            if settled.slot != slot {
                self.ack_log.end_append_to(settled.slot, &settled.extent);
            }
        }
        self.replayed.open();
    }

    /// The expected offset of the next append to `zone`, which has `blocks` blocks: behind the appends before it, also
    /// if the device delays these and its write pointer does not include them. It is exact unless one of them fails.
    fn expect_append(&self, zone: ZoneIndex, blocks: u64) -> Option<u64> {
        let (wp, end) = (self.wp(zone)?, self.append_ends.get(zone.0 as usize)?);
        let at = wp.max(end.get());
        end.set(at + blocks);
        Some(at)
    }

    fn forget_append_end(&self, zone: ZoneIndex) {
        if let Some(end) = self.append_ends.get(zone.0 as usize) {
            end.set(0);
        }
    }

    /// The write pointer of `zone`; an array answers a report at once.
    fn wp(&self, zone: ZoneIndex) -> Option<u64> {
        let report = self.device.submit(Command::Report { first: zone, count: 1 }).take()?;
        Some(report.zones.first()?.wp_blocks)
    }

    fn forget_replay(&self, zone: ZoneIndex) {
        self.replay.borrow_mut().forget(zone);
        self.replayed.open();
    }

    async fn reset(&self, zones: Range<u32>, command: Zones) -> Result<UblkAnswer, DeviceError> {
        let clear = |zone| {
            self.forget_append_end(zone);
            self.ack_log.clear(zone)
        };
        let known: Vec<_> = zones.clone().map(ZoneIndex).map(clear).collect();
        let done = self.device.submit(Command::Reset { zones: command }).await;
        for (zone, known) in zones.map(ZoneIndex).zip(known) {
            match done.result {
                Ok(()) => self.forget_replay(zone),
                // Part of the reset may have been carried out.
                Err(_) => self.ack_log.complete(zone, known.min(self.wp(zone).unwrap_or(0))),
            }
        }
        done.result?;
        Ok((0, 0))
    }

    async fn close(&self, zone: ZoneIndex) -> Result<UblkAnswer, DeviceError> {
        let done = self.device.submit(Command::Close { zones: Zones::One(zone) }).await;
        if done.result == Err(Status::InvalidZoneStateTransition.into()) && self.replay.borrow().is_takeover()
        {
            // An empty zone does not stay open when the process dies that had opened it.
            let report = self.device.submit(Command::Report { first: zone, count: 1 }).await;
            if report.zones.first().is_some_and(|info| info.state == ZoneState::Empty) {
                return Ok((0, 0));
            }
        }
        done.result?;
        Ok((0, 0))
    }

    async fn report(
        &self,
        transfer: &DataTransfer,
        place: RequestTag,
        first: ZoneIndex,
        count: u32,
    ) -> Result<UblkAnswer, DeviceError> {
        let done = self.device.submit(Command::Report { first, count }).await;
        done.result?;
        let geometry = self.device.geometry();
        let zones: Vec<u8> =
            done.zones.iter().flat_map(|zone| abi::zone_descriptor(geometry, zone)).collect();
        transfer.give_data(place, &zones)?;
        // The kernel's buffer may be larger than the zones it requested, and for a shorter result it would request the
        // rest; of a longer result it uses the part it needs.
        Ok((abi::MAX_REQUEST_BLOCKS as i32 * BLOCK as i32, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::ack_log::AckLogContents;
    use emu::{
        rng::Rng,
        ssd::{Cut, EmulatedDrive, Fault, Model},
    };
    use engine::{
        device::{Completer, Geometry, Slots},
        runtime::Runtime,
    };
    use std::{fs::File, path::Path};

    const ZONE: ZoneIndex = ZoneIndex(1);

    /// A drive with a volatile cache on which a dead process has written the first `written` of three blocks that it
    /// had noted as an append; and the device of the next process.
    fn left_behind(runtime: &Runtime, data: &Buf, written: u64) -> (EmulatedDrive, ZonedBackend) {
        let dir = tempfile::tempdir().unwrap();
        left_behind_in(dir.path(), runtime, data, written)
    }

    /// As [`left_behind`], with the acknowledgement log in `directory`.
    fn left_behind_in(
        directory: &Path,
        runtime: &Runtime,
        data: &Buf,
        written: u64,
    ) -> (EmulatedDrive, ZonedBackend) {
        let geometry = Geometry { volatile_cache: true, ..Model::zn540().scaled(4, 1024).geometry };
        let drive = EmulatedDrive::in_memory(&geometry);
        if written > 0 {
            let write = Command::write(geometry.start(ZONE), data.slice_blocks(0..written), false);
            drive.ssd().borrow_mut().execute(write).result.unwrap();
        }
        let appends = vec![Some(Extent { zone: ZONE, at: 0, blocks: data.blocks() })];
        let left = AckLogContents { assembly: 1, complete: vec![0; 4], appends, power: vec![] };
        let replay = runtime.block_on(Replay::after(&drive, Some(&left)), || false).unwrap().unwrap();
        let ack_log =
            AckLog::create(&directory.join("tails"), &[7; 16], 2, &[0; 4], &left.appends, &[]).unwrap();
        (drive.clone(), ZonedBackend::new(Rc::new(drive), Rc::new(ack_log), replay))
    }

    #[test]
    fn replayed_append_is_durable_when_acknowledged() {
        let data = Buf::copy_of(&[5; 3 * BLOCK]);
        let runtime = Runtime::new();
        let (drive, zoned) = left_behind(&runtime, &data, 3);
        let mut others = Vec::new();
        let again = zoned.append_again((9, ZONE), &data, true, &mut others);
        let (lba, _) = runtime.block_on(again, || false).unwrap().unwrap().unwrap();
        assert_eq!(lba, drive.geometry().start(ZONE));
        let cut = Cut { cache_lost: true, ..Cut::default() };
        drive.ssd().borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
        let stored = drive.ssd().borrow_mut().stored(lba).unwrap();
        assert!(stored.is_some_and(|bytes| bytes[..BLOCK] == [5; BLOCK]));
    }

    #[test]
    fn replayed_append_with_read_error_blocks_no_others() {
        let data = Buf::copy_of(&[5; 3 * BLOCK]);
        let (runtime, dir) = (Runtime::new(), tempfile::tempdir().unwrap());
        let (drive, zoned) = left_behind_in(dir.path(), &runtime, &data, 2);
        assert!(zoned.replay.borrow().has_partial_append(ZONE));
        let second = Lba(drive.geometry().start(ZONE).0 + 1);
        drive.ssd().borrow_mut().faults().after(0, Fault::Unreadable(second));
        let mut others = Vec::new();
        let again = zoned.append_again((7, ZONE), &data, false, &mut others);
        assert_eq!(runtime.block_on(again, || false), Some(Err(Status::UnrecoveredReadError.into())));
        assert!(!zoned.replay.borrow().has_partial_append(ZONE));
        assert!(noted_places(dir.path()).is_empty(), "it would block them in the next process");
    }

    /// The offsets of appends in the acknowledgement log in `directory`.
    fn noted_places(directory: &Path) -> Vec<u64> {
        let left = AckLogContents::read(&directory.join("tails"), &[7; 16]).unwrap().unwrap();
        left.appends.iter().flatten().map(|extent| extent.at).collect()
    }

    /// A drive with reads and appends that the test completes.
    struct Slow {
        drive: EmulatedDrive,
        pending: RefCell<Vec<(Command, Completer)>>,
    }

    impl Slow {
        fn answer(&self) {
            for (command, answer) in self.pending.take() {
                answer.complete(self.drive.ssd().borrow_mut().execute(command));
            }
        }
    }

    impl ZonedDevice for Slow {
        fn geometry(&self) -> &Geometry {
            self.drive.geometry()
        }

        fn submit(&self, command: Command) -> Completion {
            if !matches!(command, Command::Read { .. } | Command::Append { .. }) {
                return self.drive.submit(command);
            }
            let (answer, completion) = Rc::new(Slots::default()).pair();
            self.pending.borrow_mut().push((command, answer));
            completion
        }
    }

    #[test]
    fn delayed_appends_are_recorded_at_final_position() {
        let data = Buf::copy_of(&[5; 3 * BLOCK]);
        let (runtime, dir) = (Runtime::new(), tempfile::tempdir().unwrap());
        let (drive, zoned) = left_behind_in(dir.path(), &runtime, &data, 0);
        let slow = Rc::new(Slow { drive, pending: RefCell::default() });
        let zoned = Rc::new(ZonedBackend { device: slow.clone(), ..zoned });
        let transfer = Rc::new(nowhere());
        for slot in [7, 8] {
            let (zoned, transfer, data) = (zoned.clone(), transfer.clone(), data.clone());
            runtime.spawn(async move {
                zoned.append(&transfer, (slot, ZONE), data, false).await.unwrap();
            });
        }
        runtime.run();
        // The first one is the append of the previous process.
        assert_eq!(noted_places(dir.path()), [0, 0, 3], "behind each other before they are executed");
        slow.drive.ssd().borrow_mut().execute(Command::append(ZONE, Buf::zeroed(BLOCK), false));
        slow.answer();
        runtime.run();
        assert_eq!(noted_places(dir.path()), [0, 1, 4]);
    }

    /// The kernel has the result of the previous append in the slot, and the next one waits.
    #[test]
    fn waiting_append_frees_reused_slot() {
        let data = Buf::copy_of(&[5; 3 * BLOCK]);
        let (runtime, dir) = (Runtime::new(), tempfile::tempdir().unwrap());
        let (_, zoned) = left_behind_in(dir.path(), &runtime, &data, 2);
        zoned.ack_log.begin_append(7, Extent { zone: ZONE, at: 9, blocks: 1 });
        zoned.answered.borrow_mut().push(7);
        let channel = tempfile::tempfile().unwrap();
        channel.set_len(abi::data_position(0, 8)).unwrap();
        let transfer = DataTransfer::over(channel, 8, Rc::new(|_| None));
        let sector = zoned.device.geometry().start(ZONE).0 * SECTORS;
        let operation = Some(UblkOperation::Append);
        let request = UblkRequest { operation, fua: false, keeps_room: false, count: SECTORS as u32, sector };
        let append = zoned.perform(&transfer, (0, 7), (UblkOperation::Append, &request));
        assert_eq!(runtime.block_on(append, || false), None);
        assert_eq!(noted_places(dir.path()), [0]);
    }

    fn nowhere() -> DataTransfer {
        DataTransfer::over(File::open("/dev/null").unwrap(), 1, Rc::new(|_| None))
    }

    /// While one append is compared with a noted one, the reissue of the noted one may arrive.
    #[test]
    fn repeated_append_is_found_during_comparison_by_another() {
        for written in [2, 3] {
            let first = Buf::copy_of(&[5; 3 * BLOCK]);
            let other = Buf::copy_of(&[vec![5; BLOCK], vec![6; 2 * BLOCK]].concat());
            let runtime = Runtime::new();
            let (drive, zoned) = left_behind(&runtime, &first, written);
            let slow = Rc::new(Slow { drive: drive.clone(), pending: RefCell::default() });
            let zoned = Rc::new(ZonedBackend { device: slow.clone(), ..zoned });
            let transfer = Rc::new(nowhere());
            let ends = Rc::new(RefCell::new(Vec::new()));
            for (slot, data) in [(7, &other), (8, &first)] {
                let (zoned, transfer, ends, data) =
                    (zoned.clone(), transfer.clone(), ends.clone(), data.clone());
                runtime.spawn(async move {
                    let (lba, _) = zoned.append(&transfer, (slot, ZONE), data, false).await.unwrap();
                    ends.borrow_mut().push((slot, zoned.device.geometry().locate(lba).1));
                });
            }
            for _ in 0..5 {
                runtime.run();
                slow.answer();
            }
            runtime.run();
            ends.borrow_mut().sort_unstable();
            assert_eq!(*ends.borrow(), [(7, 3), (8, 0)]);
            let start = drive.geometry().start(ZONE);
            let done = drive.ssd().borrow_mut().execute(Command::read(start, Buf::zeroed(6 * BLOCK)));
            assert_eq!(done.data[..], [&first[..], &other[..]].concat());
        }
    }
}
