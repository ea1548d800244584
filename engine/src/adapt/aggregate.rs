//! Static aggregation: several zones of a drive as one larger zone (ZRAID §4.4, §6.5).
//!
//! Drives with small zones have small ZRWAs. `M` consecutive zones, interleaved by units as large as the ZRWA, make a
//! zone with a ZRWA `M` times as large: unit `u` of it lies in zone `u mod M`, at unit `u / M` there. Then the ZRWA of
//! the aggregate consists of exactly the ZRWAs of its parts, wherever its write pointer is (`AggregateShape`). Only
//! explicit flushes move it: an implicit flush, by a write that ends beyond the ZRWA, would move one part alone.
//!
//! No command to `M` zones is atomic. After a crash the write pointers of the parts show how far it got:
//!
//! - An explicit flush first moves the write pointer of the part that holds the last block below the new write pointer,
//!   and then the others. So the furthest part shows either the old write pointer or the new one. In the latter case
//!   recovery moves the others: all blocks below the new one were complete when the flush was submitted.
//! - An empty part beside one with a ZRWA is given a ZRWA too: either only the others had carried out an open, or an
//!   orderly shutdown of the drive has made this part empty because its write pointer had not moved. Its blocks can
//!   still be read, and are written again. That is done for a part at its start that has a ZRWA already, too: an
//!   earlier repair may have been interrupted between the two steps.
//! - A finish or reset that only some parts have carried out leaves a zone that is neither full nor empty. The caller
//!   has to repeat it, and must not rely on the write pointer any more. A finish first moves every write pointer off
//!   the start of its part: otherwise a shutdown in the middle of it would leave empty parts, as on a drive that has
//!   lost its ZRWAs.
//!
//! A zone is reported as it will be after its repair, which is carried out before the first command that changes the
//! zone.
//!
//! A drive with a volatile cache may lose the write pointer of one part and not that of another, so its ZRWAs are not
//! aggregated. A drive is assumed to lose the ZRWAs of all parts or of none.

use crate::{
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, DriveId, Geometry, Slots, Status, ZonedDevice,
        Zones, Zrwa,
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{cell::RefCell, collections::BTreeMap, ops::Range, rc::Rc};

/// Unit in blocks on drives without a ZRWA: 64 KiB.
const UNIT_BLOCKS: u64 = 16;

/// Layout of the blocks of an aggregated zone.
#[derive(Clone, Copy, Debug)]
struct AggregateShape {
    /// Number of zones of the drive in an aggregate (`M`), its *parts*.
    factor: u64,
    /// Blocks of a unit: the size of the ZRWA of the drive, or [`UNIT_BLOCKS`].
    unit_blocks: u64,
}

/// A piece, within one unit, of a range of an aggregated zone.
struct PartRange {
    part: u64,
    /// Offset in the part, in blocks.
    offset: u64,
    /// Offset in the range, in blocks.
    at: u64,
    /// Length in blocks.
    blocks: u64,
}

impl AggregateShape {
    /// Number of blocks in `part` among the first `blocks` blocks of the aggregate.
    fn share(self, part: u64, blocks: u64) -> u64 {
        let row = self.factor * self.unit_blocks;
        let behind = (blocks % row).saturating_sub(part * self.unit_blocks);
        blocks / row * self.unit_blocks + behind.min(self.unit_blocks)
    }

    /// Offset in the aggregate of block `offset` of `part`.
    fn position(self, part: u64, offset: u64) -> u64 {
        (offset / self.unit_blocks * self.factor + part) * self.unit_blocks + offset % self.unit_blocks
    }

    /// The pieces of `blocks` blocks from `offset` on, in their order.
    fn pieces(self, offset: u64, blocks: u64) -> impl Iterator<Item = PartRange> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (unit, within) = ((offset + at) / self.unit_blocks, (offset + at) % self.unit_blocks);
            let piece = PartRange {
                part: unit % self.factor,
                offset: unit / self.factor * self.unit_blocks + within,
                at,
                blocks: (self.unit_blocks - within).min(blocks - at),
            };
            at += piece.blocks;
            (piece.blocks > 0).then_some(piece)
        })
    }

    /// Derives the state of an aggregate from those of its parts. All blocks below its write pointer are complete.
    fn describe(self, zone: ZoneIndex, parts: &[ZoneInfo]) -> ZoneInfo {
        use ZoneState::*;
        let any = |state| parts.iter().any(|part| part.state == state);
        let all = |state| parts.iter().all(|part| part.state == state);
        let uniform = [Empty, Full].into_iter().find(|state| all(*state));
        let state =
            uniform.or([Offline, ReadOnly, ExplicitlyOpen, ImplicitlyOpen].into_iter().find(|s| any(*s)));
        let state = state.unwrap_or(Closed);
        let capacity_blocks = parts.iter().map(|part| part.capacity_blocks).sum();
        let zrwa = parts.iter().any(|part| part.zrwa)
            && parts.iter().all(|part| part.zrwa || matches!(part.state, Empty | Full));
        let wp = |part: &ZoneInfo| if part.state == Full { part.capacity_blocks } else { part.wp_blocks };
        let wps = || (0..).zip(parts).map(|(part, info)| (part, wp(info)));
        let wp_blocks = match state {
            Empty => 0,
            Full => capacity_blocks,
            // The write pointer to which the last flush has moved the furthest part.
            _ if zrwa => {
                let ends = wps().filter(|(_, wp)| *wp > 0).map(|(part, wp)| self.position(part, wp - 1) + 1);
                ends.max().unwrap_or(0)
            }
            // The first missing block.
            _ => wps().map(|(part, wp)| self.position(part, wp)).min().unwrap_or(0).min(capacity_blocks),
        };
        ZoneInfo { zone, state, wp_blocks, capacity_blocks, zrwa }
    }
}

/// A drive with every `factor` zones as one zone.
pub struct AggregateDevice(Rc<AggregateInner>);

struct AggregateInner {
    device: Rc<dyn ZonedDevice>,
    runtime: Runtime,
    slots: Rc<Slots>,
    geometry: Geometry,
    shape: AggregateShape,
    /// State by zone; `None` before the repair of the zone, and after an open, finish or reset that has failed.
    known: RefCell<Vec<Option<AggregateZoneState>>>,
    /// Commands that wait for the repair of their zone.
    waiting: RefCell<BTreeMap<u32, Vec<(Command, Completer)>>>,
}

/// State of a zone that is needed to carry out commands that change it.
#[derive(Clone, Copy, Default)]
struct AggregateZoneState {
    /// Whether the zone has a ZRWA.
    zrwa: bool,
    /// The write pointer in blocks; valid only with a ZRWA.
    wp_blocks: u64,
}

impl AggregateDevice {
    /// Aggregates every `factor` zones of `device`, at least 2; `None` if they cannot be
    /// ([`AggregateDevice::geometry_of`]).
    pub fn new(runtime: &Runtime, device: Rc<dyn ZonedDevice>, factor: u32) -> Option<AggregateDevice> {
        let geometry = AggregateDevice::geometry_of(device.geometry(), factor)?;
        let unit_blocks = device.geometry().zrwa.map_or(UNIT_BLOCKS, |zrwa| zrwa.size_blocks);
        Some(AggregateDevice(Rc::new(AggregateInner {
            device,
            runtime: runtime.clone(),
            slots: Rc::default(),
            shape: AggregateShape { factor: factor as u64, unit_blocks },
            known: RefCell::new(vec![None; geometry.zones as usize]),
            waiting: RefCell::default(),
            geometry,
        })))
    }

    /// Geometry of a drive with zones aggregated by `factor`. `None` if they cannot be: there are fewer zones, or open
    /// or active ones, than `factor`; the capacity of a zone is not a multiple of the unit; or the drive has a ZRWA and
    /// a volatile cache.
    pub fn geometry_of(drive: &Geometry, factor: u32) -> Option<Geometry> {
        let unit_blocks = drive.zrwa.map_or(UNIT_BLOCKS, |zrwa| zrwa.size_blocks);
        let possible = (2..=drive.zones).contains(&factor)
            && drive.zone_capacity_blocks.is_multiple_of(unit_blocks)
            && !(drive.zrwa.is_some() && drive.volatile_cache)
            && [drive.max_open, drive.max_active].iter().all(|limit| *limit == 0 || *limit >= factor);
        possible.then(|| Geometry {
            zones: drive.zones / factor,
            zone_size_blocks: drive.zone_size_blocks * factor as u64,
            zone_capacity_blocks: drive.zone_capacity_blocks * factor as u64,
            max_open: drive.max_open / factor,
            max_active: drive.max_active / factor,
            zrwa: drive.zrwa.map(|zrwa| Zrwa {
                size_blocks: zrwa.size_blocks * factor as u64,
                granularity_blocks: zrwa.granularity_blocks,
                max_zones: zrwa.max_zones / factor,
            }),
            // A transfer has at most one piece in each part: without a ZRWA two pieces would have to be written one
            // after the other.
            max_transfer_blocks: unit_blocks
                .saturating_mul(factor as u64 - 1)
                .min(drive.max_transfer_blocks as u64) as u32,
            max_append_blocks: 0,
            ..drive.clone()
        })
    }
}

impl ZonedDevice for AggregateDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.0.device.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.0.device.drive_id()
    }

    fn submit(&self, command: Command) -> Completion {
        self.0.submit(command)
    }
}

impl AggregateInner {
    fn submit(self: &Rc<Self>, command: Command) -> Completion {
        let zone = match &command {
            Command::Read { .. } | Command::Append { .. } => None,
            command => command.zone(&self.geometry),
        };
        let Some(zone) = zone else { return self.carry_out(command).unwrap_or_else(Completion::failed) };
        let resets = matches!(command, Command::Reset { .. });
        let known = match self.known.borrow().get(zone.0 as usize) {
            Some(known) => known.is_some(),
            None => return Completion::failed(Status::LbaOutOfRange),
        };
        let mut waiting = self.waiting.borrow_mut();
        if known || resets && !waiting.contains_key(&zone.0) {
            drop(waiting);
            return self.carry_out(command).unwrap_or_else(Completion::failed);
        }
        let (completer, completion) = self.slots.pair();
        let others = waiting.entry(zone.0).or_default();
        others.push((command, completer));
        if others.len() == 1 {
            self.runtime.spawn(self.clone().learn(zone));
        }
        completion
    }

    /// Carries out a command; its zone has been repaired if the command changes it.
    fn carry_out(self: &Rc<Self>, command: Command) -> Result<Completion, DeviceError> {
        match command {
            Command::Read { lba, data, oob } => {
                let (zone, offset) = self.check(lba, &data)?;
                Ok(match self.undivided(zone, offset, data.blocks()) {
                    Some(lba) => self.device.submit(Command::Read { lba, data, oob }),
                    None => self.read(zone, offset, data, oob),
                })
            }
            Command::Write { lba, data, oob, fua } => {
                let (zone, offset) = self.check(lba, &data)?;
                if let Some(lba) = self.undivided(zone, offset, data.blocks()) {
                    return Ok(self.device.submit(Command::Write { lba, data, oob, fua }));
                }
                let oob_bytes = oob.len() / data.blocks() as usize;
                let part = |(lba, range): (Lba, Range<u64>)| {
                    let oob = oob.slice(range.start as usize * oob_bytes..range.end as usize * oob_bytes);
                    self.device.submit(Command::Write { lba, data: data.slice_blocks(range), oob, fua })
                };
                let parts = self.pieces(zone, offset, data.blocks()).map(part).collect();
                Ok(self.join(parts, data, oob))
            }
            Command::FlushZrwa { last } => self.flush_zrwa(last),
            Command::Open { zones: Zones::One(zone), zrwa } => {
                self.change(zone, |known| known.zrwa |= zrwa);
                let opened = self.on_parts(zone, |zones| Command::Open { zones, zrwa });
                Ok(self.forget_on_error(Some(zone), opened))
            }
            Command::Close { zones: Zones::One(zone) } => {
                Ok(self.on_parts(zone, |zones| Command::Close { zones }))
            }
            Command::Finish { zones: Zones::One(zone) } => {
                Ok(self.forget_on_error(Some(zone), self.finish(zone)))
            }
            Command::Reset { zones: Zones::One(zone) } => {
                self.change(zone, |known| *known = AggregateZoneState::default());
                let reset = self.on_parts(zone, |zones| Command::Reset { zones });
                Ok(self.forget_on_error(Some(zone), reset))
            }
            Command::Reset { zones: Zones::All } => {
                self.known.borrow_mut().fill(Some(AggregateZoneState::default()));
                Ok(self.forget_on_error(None, self.device.submit(command)))
            }
            Command::Report { first, count } => {
                let (this, (completer, completion)) = (self.clone(), self.slots.pair());
                self.runtime.spawn(async move {
                    completer.complete(match this.report(first, count).await {
                        Ok(zones) => Done { zones, ..Done::ok() },
                        Err(error) => Done::error(error),
                    });
                });
                Ok(completion)
            }
            Command::Append { .. } => Err(Status::InvalidOpcode.into()),
            Command::Flush | Command::Open { .. } | Command::Close { .. } | Command::Finish { .. } => {
                Ok(self.device.submit(command))
            }
        }
    }

    /// The first block of `part` of `zone` on the drive.
    fn start(&self, zone: ZoneIndex, part: u64) -> Lba {
        self.device.geometry().start(self.part(zone, part))
    }

    /// The zone of the drive that is `part` of `zone`.
    fn part(&self, zone: ZoneIndex, part: u64) -> ZoneIndex {
        ZoneIndex(zone.0 * self.shape.factor as u32 + part as u32)
    }

    /// Checks a transfer; returns its zone and offset.
    fn check(&self, lba: Lba, data: &Buf) -> Result<(ZoneIndex, u64), Status> {
        let (zone, offset) = self.geometry.locate(lba);
        if data.is_empty() || !data.len().is_multiple_of(BLOCK) {
            Err(Status::InvalidField)
        } else if zone.0 >= self.geometry.zones {
            Err(Status::LbaOutOfRange)
        } else if offset + data.blocks() > self.geometry.zone_capacity_blocks {
            Err(Status::ZoneBoundaryError)
        } else {
            Ok((zone, offset))
        }
    }

    /// The pieces of a transfer: their addresses on the drive, and their blocks in the buffer.
    fn pieces(&self, zone: ZoneIndex, offset: u64, blocks: u64) -> impl Iterator<Item = (Lba, Range<u64>)> {
        let (shape, capacity) = (self.shape, self.device.geometry().zone_capacity_blocks);
        shape.pieces(offset, blocks).map(move |piece| {
            let PartRange { part, offset: at, blocks, .. } = piece;
            assert!(
                part < shape.factor && at + blocks <= capacity,
                "blocks {at} to {} of part {part}, of {} parts of {capacity} blocks",
                at + blocks,
                shape.factor
            );
            (Lba(self.start(zone, piece.part).0 + piece.offset), piece.at..piece.at + piece.blocks)
        })
    }

    /// Address of a transfer on the drive if it lies in one unit; otherwise `None`.
    fn undivided(&self, zone: ZoneIndex, offset: u64, blocks: u64) -> Option<Lba> {
        let first = self.pieces(zone, offset, blocks).next();
        first.filter(|(_, range)| range.end == blocks).map(|(lba, _)| lba)
    }

    /// Reads pieces into buffers of their own, since a buffer that is read into must not be shared.
    fn read(&self, zone: ZoneIndex, offset: u64, data: Buf, oob: Buf) -> Completion {
        let oob_bytes = oob.len() / data.blocks() as usize;
        let part = |(lba, range): (Lba, Range<u64>)| {
            let blocks = (range.end - range.start) as usize;
            let (data, oob) = (Buf::zeroed(blocks * BLOCK), Buf::zeroed(blocks * oob_bytes));
            (range, self.device.submit(Command::Read { lba, data, oob }))
        };
        let parts: Vec<_> = self.pieces(zone, offset, data.blocks()).map(part).collect();
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            let (mut result, mut data, mut oob) = (Ok(()), data.into_mut(), oob.into_mut());
            for (range, part) in parts {
                let done = part.await;
                result = result.and(done.result);
                let targets = [(&mut data, done.data, BLOCK), (&mut oob, done.oob, oob_bytes)];
                for (target, found, bytes) in targets.into_iter().filter(|_| done.result.is_ok()) {
                    target[range.start as usize * bytes..range.end as usize * bytes].copy_from_slice(&found);
                }
            }
            completer.complete(Done { result, data: data.freeze(), oob: oob.freeze(), ..Done::ok() });
        });
        completion
    }

    /// Submits a command to all parts of a zone; completes when all have.
    fn on_parts(&self, zone: ZoneIndex, command: impl Fn(Zones) -> Command) -> Completion {
        self.join(self.to_parts(zone, command), Buf::default(), Buf::default())
    }

    /// Completes as `change`, a command that changes `zone`, or all zones, and forgets their state if it has failed:
    /// some parts may have carried it out.
    fn forget_on_error(self: &Rc<Self>, zone: Option<ZoneIndex>, change: Completion) -> Completion {
        let (this, (completer, completion)) = (self.clone(), self.slots.pair());
        self.runtime.spawn(async move {
            let done = change.await;
            if done.result.is_err() {
                let mut known = this.known.borrow_mut();
                let zones = zone.map_or(0..known.len(), |zone| zone.0 as usize..zone.0 as usize + 1);
                known[zones].fill(None);
            }
            completer.complete(done);
        });
        completion
    }

    /// Submits a command to all parts of a zone.
    fn to_parts(&self, zone: ZoneIndex, command: impl Fn(Zones) -> Command) -> Vec<Completion> {
        let part = |part| self.device.submit(command(Zones::One(self.part(zone, part))));
        (0..self.shape.factor).map(part).collect()
    }

    /// Completes when all `parts` have, with the first error and the buffers of the command.
    fn join(&self, parts: Vec<Completion>, data: Buf, oob: Buf) -> Completion {
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            completer.complete(Done { result: all(parts).await, data, oob, ..Done::ok() });
        });
        completion
    }

    fn known(&self, zone: ZoneIndex) -> AggregateZoneState {
        self.known.borrow()[zone.0 as usize].unwrap_or_default()
    }

    fn change(&self, zone: ZoneIndex, change: impl FnOnce(&mut AggregateZoneState)) {
        change(self.known.borrow_mut()[zone.0 as usize].get_or_insert_default());
    }

    /// Explicit flush: moves the part with block `last` first, then the others (see the head of this file).
    fn flush_zrwa(self: &Rc<Self>, last: Lba) -> Result<Completion, DeviceError> {
        let (zone, offset) = self.geometry.locate(last);
        let (from, to) = (self.known(zone).wp_blocks, offset + 1);
        if to <= from || to > self.geometry.zone_capacity_blocks {
            return Err(Status::ZoneBoundaryError.into());
        }
        self.change(zone, |known| known.wp_blocks = to);
        let shape = self.shape;
        let leader = offset / shape.unit_blocks % shape.factor;
        let last = shape.position(leader, shape.share(leader, to) - 1);
        assert_eq!(last, offset, "the last block below {to} of part {leader}, which moves first");
        let first = self.flush_part(zone, leader, to);
        let moves = move |part: &u64| *part != leader && shape.share(*part, to) > shape.share(*part, from);
        if !(0..shape.factor).any(|part| moves(&part)) {
            return Ok(first);
        }
        let this = self.clone();
        Ok(self.after(vec![first], move || {
            (0..shape.factor).filter(moves).map(|part| this.flush_part(zone, part, to)).collect()
        }))
    }

    /// Finishes all parts of a zone, after write pointers at the start of a part have been moved (see the head of this
    /// file).
    fn finish(self: &Rc<Self>, zone: ZoneIndex) -> Completion {
        let known = self.known(zone);
        self.change(zone, |known| known.zrwa = false);
        let granularity_blocks = self.geometry.zrwa.map_or(1, |zrwa| zrwa.granularity_blocks);
        let at_start = |part: &u64| known.zrwa && self.shape.share(*part, known.wp_blocks) == 0;
        let flush = |part| {
            let last = Lba(self.start(zone, part).0 + granularity_blocks - 1);
            self.device.submit(Command::FlushZrwa { last })
        };
        let flushes: Vec<_> = (0..self.shape.factor).filter(at_start).map(flush).collect();
        if flushes.is_empty() {
            return self.on_parts(zone, |zones| Command::Finish { zones });
        }
        let this = self.clone();
        self.after(flushes, move || this.to_parts(zone, |zones| Command::Finish { zones }))
    }

    /// Completes when all of `first`, and then all that `second` submits, have succeeded; or with the first error.
    fn after(
        &self,
        first: Vec<Completion>,
        second: impl FnOnce() -> Vec<Completion> + 'static,
    ) -> Completion {
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            let mut result = all(first).await;
            if result.is_ok() {
                result = all(second()).await;
            }
            completer.complete(Done { result, ..Done::ok() });
        });
        completion
    }

    /// Moves the write pointer of a part to where it is if that of the aggregate is `to`.
    fn flush_part(&self, zone: ZoneIndex, part: u64, to: u64) -> Completion {
        let share = self.shape.share(part, to);
        assert!(
            share > 0,
            "part {part} has none of the blocks below {to}, to which its write pointer is moved"
        );
        let last = Lba(self.start(zone, part).0 + share - 1);
        self.device.submit(Command::FlushZrwa { last })
    }

    async fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneInfo>, DeviceError> {
        let left = self.geometry.zones.checked_sub(first.0).filter(|left| *left > 0);
        let count = left.ok_or(Status::LbaOutOfRange)?.min(count);
        let parts = self.parts(first, count).await?;
        let parts = parts.chunks_exact(self.shape.factor as usize);
        Ok((first.0..).zip(parts).map(|(zone, parts)| self.shape.describe(ZoneIndex(zone), parts)).collect())
    }

    /// Reads the zone report of the drive for all parts of `count` zones.
    async fn parts(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneInfo>, DeviceError> {
        let (first, count) = (self.part(first, 0), count * self.shape.factor as u32);
        let done = self.device.submit(Command::Report { first, count }).await;
        done.result.map(|()| done.zones)
    }

    /// Repairs a zone, and carries out the commands that wait for the repair; if it fails, they fail with its error.
    async fn learn(self: Rc<Self>, zone: ZoneIndex) {
        let learned = self.repair(zone).await;
        if let Ok(known) = learned {
            self.known.borrow_mut()[zone.0 as usize] = Some(known);
        }
        let waiting = self.waiting.borrow_mut().remove(&zone.0).unwrap_or_default();
        let carry_out = |(command, completer)| match learned {
            Ok(_) => (self.submit(command), completer),
            Err(error) => (Completion::failed(error), completer),
        };
        let pending: Vec<(Completion, Completer)> = waiting.into_iter().map(carry_out).collect();
        for (completion, completer) in pending {
            completer.complete(completion.await);
        }
    }

    /// Brings a zone into the state that is reported (see the head of this file).
    async fn repair(&self, zone: ZoneIndex) -> Result<AggregateZoneState, DeviceError> {
        let parts = self.parts(zone, 1).await?;
        let whole = self.shape.describe(zone, &parts);
        let known = AggregateZoneState { zrwa: whole.zrwa, wp_blocks: whole.wp_blocks };
        let zrwa_blocks = self.shape.unit_blocks;
        let lags = |(part, info): (u64, &ZoneInfo)| {
            info.state != ZoneState::Full
                && self.shape.share(part, whole.wp_blocks) > info.wp_blocks + zrwa_blocks
        };
        // Write pointers further apart than a flush can leave them are due to an interrupted finish, which the caller
        // will repeat.
        if !whole.zrwa || (0..).zip(&parts).any(lags) {
            return Ok(known);
        }
        for (part, info) in (0..).zip(&parts).filter(|(_, info)| info.state != ZoneState::Full) {
            let empty = info.state == ZoneState::Empty;
            if empty || info.wp_blocks == 0 && whole.wp_blocks > 0 {
                self.revive(self.part(zone, part), empty).await?;
            }
            if self.shape.share(part, whole.wp_blocks) > info.wp_blocks {
                self.flush_part(zone, part, whole.wp_blocks).await.result?;
            }
        }
        Ok(known)
    }

    /// Writes the readable blocks of the first ZRWA of a zone of the drive again, in a new ZRWA if the zone is empty.
    /// Deallocated blocks are skipped; any other read error ends the repair, since a block that is left out would read
    /// as zeros afterwards.
    async fn revive(&self, zone: ZoneIndex, empty: bool) -> Result<(), DeviceError> {
        let start = self.device.geometry().start(zone).0;
        let read = |at| {
            let (data, oob) = (Buf::zeroed(BLOCK), Buf::zeroed(self.geometry.oob_bytes as usize));
            self.device.submit(Command::Read { lba: Lba(start + at), data, oob })
        };
        let reads: Vec<_> = (0..self.shape.unit_blocks).map(read).collect();
        let mut blocks = Vec::new();
        for (at, read) in (0..).zip(reads) {
            let done = read.await;
            match done.result {
                Ok(()) => blocks.push((Lba(start + at), done.data, done.oob)),
                Err(error) if error == Status::DeallocatedBlock.into() => {}
                Err(error) => return Err(error),
            }
        }
        if empty {
            let zones = Zones::One(zone);
            self.device.submit(Command::Open { zones, zrwa: true }).await.result?;
        }
        let write = |(lba, data, oob)| self.device.submit(Command::Write { lba, data, oob, fua: false });
        all(blocks.into_iter().map(write).collect()).await
    }
}

/// Waits for all completions; returns the first error.
async fn all(completions: Vec<Completion>) -> Result<(), DeviceError> {
    let mut result = Ok(());
    for completion in completions {
        result = result.and(completion.await.result);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = AggregateShape> {
        (2..=5).flat_map(|factor| (1..=4).map(move |unit_blocks| AggregateShape { factor, unit_blocks }))
    }

    /// The parts of a zone with a ZRWA and write pointers at `wps`.
    fn parts(wps: &[u64]) -> Vec<ZoneInfo> {
        let info = |wp_blocks| {
            let state = ZoneState::Closed;
            ZoneInfo { zone: ZoneIndex(0), state, wp_blocks, capacity_blocks: 100, zrwa: true }
        };
        wps.iter().copied().map(info).collect()
    }

    #[test]
    fn positions_are_unique_and_match_shares() {
        for shape in shapes() {
            let mut held = vec![0; shape.factor as usize];
            for offset in 0..4 * shape.factor * shape.unit_blocks {
                let piece = shape.pieces(offset, 1).next().unwrap();
                assert_eq!((piece.offset, piece.blocks), (held[piece.part as usize], 1));
                assert_eq!(shape.position(piece.part, piece.offset), offset);
                held[piece.part as usize] += 1;
                for (part, held) in (0..).zip(&held) {
                    assert_eq!(shape.share(part, offset + 1), *held);
                }
            }
        }
    }

    #[test]
    fn aggregate_pieces_stay_in_units_on_distinct_parts() {
        for shape in shapes() {
            let most = shape.unit_blocks * (shape.factor - 1);
            for (offset, blocks) in (0..2 * most).flat_map(|offset| (1..=most).map(move |n| (offset, n))) {
                let (mut at, mut seen) = (0, Vec::new());
                for piece in shape.pieces(offset, blocks) {
                    assert_eq!(piece.at, at);
                    assert_eq!(shape.position(piece.part, piece.offset), offset + at);
                    assert!(piece.offset % shape.unit_blocks + piece.blocks <= shape.unit_blocks);
                    assert!(!seen.contains(&piece.part));
                    seen.push(piece.part);
                    at += piece.blocks;
                }
                assert_eq!(at, blocks);
            }
        }
    }

    #[test]
    fn aggregate_zrwa_window_equals_windows_of_parts() {
        for shape in shapes() {
            let size = shape.factor * shape.unit_blocks;
            for wp in 0..4 * size {
                for offset in 0..6 * size {
                    let piece = shape.pieces(offset, 1).next().unwrap();
                    let start = shape.share(piece.part, wp);
                    let in_part = (start..start + shape.unit_blocks).contains(&piece.offset);
                    assert_eq!(
                        in_part,
                        (wp..wp + size).contains(&offset),
                        "{shape:?}, wp {wp}, block {offset}"
                    );
                }
            }
        }
    }

    /// Whichever parts lag behind after a power cut, a flush is recovered as carried out, or as not carried out.
    #[test]
    fn aggregate_write_pointer_follows_leading_part_after_flush() {
        for shape in shapes() {
            let size = shape.factor * shape.unit_blocks;
            for (from, to) in
                (0..2 * size).flat_map(|from| (from + 1..=from + size).map(move |to| (from, to)))
            {
                let leader = (to - 1) / shape.unit_blocks % shape.factor;
                let before: Vec<_> = (0..shape.factor).map(|part| shape.share(part, from)).collect();
                assert_eq!(shape.describe(ZoneIndex(0), &parts(&before)).wp_blocks, from);
                for moved in (0..1u64 << shape.factor).filter(|moved| moved & (1 << leader) != 0) {
                    let wp = |part| shape.share(part, if moved & (1 << part) != 0 { to } else { from });
                    let wps: Vec<_> = (0..shape.factor).map(wp).collect();
                    assert_eq!(shape.describe(ZoneIndex(0), &parts(&wps)).wp_blocks, to);
                }
            }
        }
    }

    #[test]
    fn aggregate_zrwa_is_lost_with_zrwa_of_part() {
        let shape = AggregateShape { factor: 3, unit_blocks: 2 };
        let mut parts = parts(&[2, 2, 1]);
        assert!(shape.describe(ZoneIndex(0), &parts).zrwa);
        parts[2].zrwa = false;
        let whole = shape.describe(ZoneIndex(0), &parts);
        assert_eq!((whole.wp_blocks, whole.zrwa), (5, false));
        // An empty part is given a ZRWA again by the repair, and a full one needs none.
        for state in [ZoneState::Empty, ZoneState::Full] {
            parts[2].state = state;
            assert!(shape.describe(ZoneIndex(0), &parts).zrwa, "{state:?}");
        }
    }

    #[test]
    fn aggregate_without_zrwa_ends_at_first_missing_block() {
        let shape = AggregateShape { factor: 3, unit_blocks: 2 };
        let mut torn = parts(&[2, 1, 2]);
        torn.iter_mut().for_each(|part| part.zrwa = false);
        let whole = shape.describe(ZoneIndex(7), &torn);
        assert_eq!((whole.zone, whole.wp_blocks, whole.zrwa), (ZoneIndex(7), 3, false));
    }
}
