//! Consistent reads of several drives that other processes may be using, without a lock.
//!
//! The drives are read at different moments. If a second pass of the same reads has the same results, there was a
//! moment at which all of them were valid: after the last read of the first pass and before the first of the second.

use engine::{
    buf::{Buf, is_zero},
    device::{Command, Completion, Done, Geometry, Slots, ZonedDevice},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// A drive that records its reads and zone reports.
pub struct StableRead {
    device: Rc<dyn ZonedDevice>,
    runtime: Runtime,
    slots: Rc<Slots>,
    recording: Cell<bool>,
    recorded: Rc<RefCell<Vec<RecordedCommand>>>,
}

/// A recorded command, and the checksum of its result once it has completed.
#[derive(Clone, Copy)]
struct RecordedCommand {
    read: ReadCommand,
    answer: Option<u32>,
}

#[derive(Clone, Copy)]
enum ReadCommand {
    Read { lba: Lba, data_bytes: usize, oob_bytes: usize },
    Report { first: ZoneIndex, count: u32 },
}

impl ReadCommand {
    /// The record of a command; `None` unless it is a read or a report.
    fn of(command: &Command) -> Option<ReadCommand> {
        match command {
            Command::Read { lba, data, oob } => {
                Some(ReadCommand::Read { lba: *lba, data_bytes: data.len(), oob_bytes: oob.len() })
            }
            Command::Report { first, count } => Some(ReadCommand::Report { first: *first, count: *count }),
            _ => None,
        }
    }

    fn again(self) -> Command {
        match self {
            ReadCommand::Read { lba, data_bytes, oob_bytes } => {
                Command::Read { lba, data: Buf::zeroed(data_bytes), oob: Buf::zeroed(oob_bytes) }
            }
            ReadCommand::Report { first, count } => Command::Report { first, count },
        }
    }
}

impl StableRead {
    pub fn of(runtime: &Runtime, device: Rc<dyn ZonedDevice>) -> StableRead {
        let (slots, recorded) = Default::default();
        StableRead { device, runtime: runtime.clone(), slots, recording: Cell::new(true), recorded }
    }

    /// Stops recording.
    pub fn dismiss(&self) {
        self.recording.set(false);
    }

    /// Whether `device`, the same drive opened anew, still returns the recorded results.
    pub async fn agrees_with(&self, device: &dyn ZonedDevice) -> bool {
        let recorded = self.recorded.borrow().clone();
        for RecordedCommand { read, answer } in recorded {
            if answer != Some(checksum(&device.submit(read.again()).await)) {
                return false;
            }
        }
        true
    }
}

impl ZonedDevice for StableRead {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.device.power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        let Some(read) = ReadCommand::of(&command).filter(|_| self.recording.get()) else {
            return self.device.submit(command);
        };
        let mut answered = self.device.submit(command);
        // A task for each of many commands of a drive that answers at once would cost more than the command.
        if let Some(done) = answered.take() {
            self.recorded.borrow_mut().push(RecordedCommand { read, answer: Some(checksum(&done)) });
            return Completion::ready(done);
        }
        let place = self.recorded.borrow().len();
        self.recorded.borrow_mut().push(RecordedCommand { read, answer: None });
        let (completer, completion) = self.slots.pair();
        let recorded = self.recorded.clone();
        self.runtime.spawn(async move {
            let done = answered.await;
            if let Some(recorded) = recorded.borrow_mut().get_mut(place) {
                recorded.answer = Some(checksum(&done));
            }
            completer.complete(done);
        });
        completion
    }
}

fn checksum(done: &Done) -> u32 {
    let mut sum = done.result.map_or_else(|error| crc32c::crc32c(format!("{error:?}").as_bytes()), |()| 0);
    for part in [&done.data, &done.oob] {
        // Most blocks that an inspection reads were never written.
        sum = match is_zero(part) {
            true => crc32c::crc32c_append(!sum, &part.len().to_le_bytes()),
            false => crc32c::crc32c_append(sum, part),
        };
    }
    for ZoneInfo { zone, state, wp_blocks, capacity_blocks, zrwa } in &done.zones {
        let mut bytes = [0; 22];
        bytes[..4].copy_from_slice(&zone.0.to_le_bytes());
        bytes[4..6].copy_from_slice(&[*state as u8, *zrwa as u8]);
        bytes[6..14].copy_from_slice(&wp_blocks.to_le_bytes());
        bytes[14..].copy_from_slice(&capacity_blocks.to_le_bytes());
        sum = crc32c::crc32c_append(sum, &bytes);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use emu::ssd::{EmulatedDrive, Model};
    use engine::{buf::BLOCK, device::Zones};

    #[test]
    fn stable_read_detects_changes_of_read_data_only() {
        let runtime = Runtime::default();
        let run = |future| runtime.block_on(future, || false).unwrap();
        let drive = EmulatedDrive::in_memory(&Model::zn540().scaled(4, 1024).geometry);
        let do_it = |device: &dyn ZonedDevice, command| {
            let done = runtime.block_on(device.submit(command), || false).unwrap();
            assert_eq!(done.result, Ok(()));
        };
        let write = |lba| Command::write(Lba(lba), Buf::copy_of(&[7; BLOCK]), false);
        let stable_read = StableRead::of(&runtime, Rc::new(drive.clone()));
        do_it(&stable_read, Command::Report { first: ZoneIndex(0), count: 2 });
        do_it(&stable_read, Command::read(Lba(0), Buf::zeroed(BLOCK)));
        assert!(run(stable_read.agrees_with(&drive)));
        do_it(&drive, Command::Open { zones: Zones::One(ZoneIndex(3)), zrwa: true });
        do_it(&drive, write(3 * 1024));
        assert!(run(stable_read.agrees_with(&drive)), "nothing was read there");
        stable_read.dismiss();
        do_it(&stable_read, Command::read(Lba(3 * 1024), Buf::zeroed(BLOCK)));
        do_it(&drive, write(3 * 1024));
        assert!(run(stable_read.agrees_with(&drive)));
        do_it(&drive, write(0));
        assert!(!run(stable_read.agrees_with(&drive)));
    }
}
