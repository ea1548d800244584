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
//!
//! Or they are written in their ZRWAs (`window.rs`). Then several groups form a *bundle*, followed by their checksum blocks.

pub mod block;
mod learn;
mod read;
mod state;
mod window;
mod write;

use crate::{
    device::{
        BlockChecksums, Command, Completion, Done, DriveId, Geometry, Status, ZoneEpochs, ZonedDevice, Zones,
    },
    runtime::Runtime,
    zone::ZoneIndex,
};
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
        let shape = ChecksumShape::new(device.geometry(), usage.group_blocks, usage.in_zrwa)?;
        Some(ChecksumDevice(Rc::new(ChecksumInner::new(runtime, device, shape, usage))))
    }

    /// Geometry of a drive with a checksum block for each `group_blocks` blocks, with the ZRWA if zones are written
    /// `in_zrwa`. `None` if these are not in [`block::GROUP_BLOCKS`]; a zone has no room for a block and its checksum; or the
    /// ZRWA is larger than a bundle, or no larger than its checksum blocks.
    pub fn geometry_of(drive: &Geometry, group_blocks: u64, in_zrwa: bool) -> Option<Geometry> {
        Some(ChecksumShape::new(drive, group_blocks, in_zrwa)?.geometry(drive))
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
        self.0.unverified(zone)
    }

    fn set_unverified(&self, zone: ZoneIndex, at: u64, sums: &[u32]) {
        (at..).zip(sums).for_each(|(at, sum)| self.0.set_unverified(zone, at, *sum));
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
        Command::FlushZrwa { .. } if !inner.in_zrwa() => return Completion::failed(Status::InvalidField),
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
    let waits = learn::needs_state(inner, &command) && !inner.is_ready(zone);
    if waits || inner.waiting.borrow().contains_key(&zone.0) {
        return wait(inner, zone, command);
    }
    carry_out(inner, zone, command)
}

/// Carries out a command that changes a zone. The end of the zone is known if the command needs it, and so are, without a
/// ZRWA, the checksums of the last group.
fn carry_out(inner: &Rc<ChecksumInner>, zone: ZoneIndex, command: Command) -> Completion {
    match inner.in_zrwa() {
        true => window::carry_out(inner, zone, command),
        false => write::carry_out(inner, zone, command),
    }
}

/// Queues a command until the checksums of its zone are known.
fn wait(inner: &Rc<ChecksumInner>, zone: ZoneIndex, command: Command) -> Completion {
    let (completer, completion) = inner.slots.pair();
    let mut waiting = inner.waiting.borrow_mut();
    let others = waiting.entry(zone.0).or_default();
    others.push((command, completer));
    if others.len() == 1 {
        let this = inner.clone();
        inner.runtime.spawn(async move {
            let known = learn::believe(&this, zone).await;
            let commands = this.waiting.borrow_mut().remove(&zone.0).unwrap_or_default();
            let mut sent = Vec::new();
            for (command, completer) in commands {
                match known {
                    Err(error) if learn::needs_state(&this, &command) => {
                        completer.complete(Done::error(error));
                    }
                    _ => sent.push((carry_out(&this, zone, command), completer)),
                }
            }
            for (completion, completer) in sent {
                completer.complete(completion.await);
            }
        });
    }
    completion
}
