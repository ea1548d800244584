//! Checksums inside the zones, for drives without out-of-band metadata.
//!
//! The blocks of a zone are divided into *groups*. Each group is followed by a *checksum block* with the checksums of its
//! blocks ([`block`]), which is written as soon as the group is complete: 0.1 % of the capacity. [`ChecksumDevice`]
//! presents the zone without the checksum blocks, compares every block that is read with its checksum, and returns
//! Unrecovered Read Error for one that differs: a block that has changed on the drive, a block of another address, or the
//! old content of a block whose write the drive has acknowledged and lost.
//!
//! A checksum block is valid for one member, one address and one epoch of its zone alone: with a group that is as old as
//! its checksum block, both are recognized as old. All blocks of a group without a valid checksum block fail.
//!
//! The checksums of the last group, which is not complete, are in memory. When the drive is opened again they are not
//! known: these blocks are *unverified*, until the caller has compared them with other evidence
//! ([`BlockChecksums::set_unverified`]). Before the zone is written again, the rest of them is believed.
//!
//! A zone that is finished is filled with zeros up to the end of its last group first. The checksum block of that group
//! says that nothing is written behind it; any other missing checksum block of a full zone was lost.
//!
//! Zones are written at their write pointers, one write after the other: the device below is a
//! [`Sequencer`](crate::adapt::sequence::Sequencer). A write that completes a group is followed by the checksum block, in
//! the same batch. Until that is written, or if it cannot be, it stays in memory.

pub mod block;
mod learn;
mod read;
mod state;
mod write;

use crate::{
    device::{
        BlockChecksums, Command, Completion, DriveId, Geometry, Status, ZoneEpochs, ZonedDevice, Zones,
    },
    runtime::Runtime,
    zone::ZoneIndex,
};
use block::GROUP_BLOCKS;
pub use state::ChecksumUsage;
use state::{ChecksumInner, ChecksumShape, ZoneSums};
use std::{ops::Range, rc::Rc};

/// Recommended [`ChecksumUsage::cached_blocks`]: 16 MiB, for 16 GiB of data.
pub const CACHED_BLOCKS: usize = 4096;

/// A drive without out-of-band metadata whose blocks have checksums.
pub struct ChecksumDevice(Rc<ChecksumInner>);

impl ChecksumDevice {
    /// Presents `device` with a checksum for each block. `None` if that is impossible
    /// ([`ChecksumDevice::geometry_of`]).
    pub fn new(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        usage: ChecksumUsage,
    ) -> Option<ChecksumDevice> {
        let geometry = ChecksumDevice::geometry_of(device.geometry(), usage.group_blocks)?;
        Some(ChecksumDevice(Rc::new(ChecksumInner::new(runtime, device, geometry, usage))))
    }

    /// Geometry of a drive with a checksum block for each `group_blocks` blocks. `None` if they are not in
    /// [`GROUP_BLOCKS`], or a zone has no room for a block and its checksum.
    pub fn geometry_of(drive: &Geometry, group_blocks: u64) -> Option<Geometry> {
        let possible = GROUP_BLOCKS.contains(&group_blocks) && drive.zone_capacity_blocks >= 2;
        possible.then(|| Geometry {
            zone_capacity_blocks: ChecksumShape::new(group_blocks, drive.zone_capacity_blocks)
                .capacity_blocks,
            zrwa: None,
            max_append_blocks: 0,
            ..drive.clone()
        })
    }
}

impl ZonedDevice for ChecksumDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.0.device.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.0.device.drive_id()
    }

    fn checksums(&self) -> Option<&dyn BlockChecksums> {
        Some(self)
    }

    fn submit(&self, command: Command) -> Completion {
        submit(&self.0, command)
    }
}

impl BlockChecksums for ChecksumDevice {
    fn unverified(&self, zone: ZoneIndex) -> Range<u64> {
        self.0.with(zone, |sums| match sums {
            ZoneSums::Open(open) => open.unverified(),
            _ => 0..0,
        })
    }

    fn set_unverified(&self, zone: ZoneIndex, at: u64, sums: &[u32]) {
        self.0.with(zone, |known| {
            (at..).zip(sums).for_each(|(at, sum)| known.set_unverified(at, *sum));
        });
    }

    fn last_sums(&self, zone: ZoneIndex) -> Option<(u64, Vec<u32>)> {
        self.0.with(zone, |sums| match sums {
            ZoneSums::Open(open) if !open.sums.is_empty() => Some((open.first, open.sums.clone())),
            _ => None,
        })
    }

    fn wrong_reads(&self) -> u64 {
        self.0.wrong_reads.get()
    }

    fn set_epochs(&self, epochs: ZoneEpochs) {
        self.0.epochs.replace(Some(epochs));
    }

    fn move_zone(&self, zone: ZoneIndex, to: ZoneIndex) {
        if self.0.is_plain(zone) {
            self.0.plain.borrow_mut().insert(to.0);
        }
    }
}

fn submit(inner: &Rc<ChecksumInner>, command: Command) -> Completion {
    match &command {
        Command::Report { first, count } => return learn::report(inner, *first, *count),
        Command::Flush => return inner.device.submit(command),
        Command::Reset { zones: Zones::All } => {
            inner.forget_all();
            return inner.device.submit(command);
        }
        Command::Append { .. } => return Completion::failed(Status::InvalidOpcode),
        Command::FlushZrwa { .. } => return Completion::failed(Status::InvalidField),
        _ => {}
    }
    // A command for all zones: none of them can be finished without the checksums of its last group.
    let Some(zone) = command.zone(&inner.geometry) else { return Completion::failed(Status::InvalidField) };
    if zone.0 >= inner.geometry.zones || inner.is_plain(zone) {
        return inner.device.submit(command);
    }
    if let Command::Read { lba, data, oob } = command {
        return read::read(inner, zone, inner.geometry.locate(lba).1, data, oob);
    }
    let needs_sums = matches!(command, Command::Write { .. } | Command::Finish { .. });
    if inner.waiting.borrow().contains_key(&zone.0) || needs_sums && !inner.is_ready(zone) {
        return learn::wait(inner, zone, command);
    }
    write::carry_out(inner, zone, command)
}
