//! Recording holes ([`crate::raid::bad_blocks`]), within the room for them, and filling them.
//!
//! A hole can be filled once its block can be decoded: the drive that could not read the same block can read it now. A
//! zone cannot be overwritten, so the part is written anew:
//!
//! - Of a full zone, in a spare zone of the drive, from the blocks that the part holds and from decoded ones. The old
//!   place is used until the copy is complete and the member has logged the new place. Then the holes are removed. So
//!   a crash leaves the part as it was, or the new part with holes that are filled already.
//! - Otherwise the part is marked as lost, and rebuilt. That is done only if all other members have their parts, and
//!   all of the part, holes included, has just been decoded from these: otherwise data might be lost.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Command, DeviceError, Status, Zones},
    format::record::{HOLE_BYTES, Holes, Record},
    raid::{
        bad_blocks::RebuildLoss,
        error::NoPart,
        events::Event,
        geometry::{ChunkRange, Role, physical},
        journal::log::{MetaLog, checkpoint_blocks, log_blocks},
        maintain::rebuild::{PartRebuild, RebuildStop},
        parts::Raid,
        zone::flow::Parities,
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// Most holes (runs of blocks) of an array.
const MOST_HOLES: u64 = 4096;

impl Raid {
    /// Logs the holes of a rebuilt part, before the part is in use; an error if there are too many.
    pub async fn record_bad_blocks(
        &self,
        zone: ZoneIndex,
        member: usize,
        ranges: &[Range<u64>],
    ) -> Result<(), RebuildStop> {
        let epoch = self.zone_records.epoch(zone);
        let bad_blocks = Holes { zone: zone.0, member: member as u32, epoch, ranges: ranges.to_vec() };
        let before = self.zone_records.bad_blocks().among(zone, member, 0..u64::MAX).len() as u64;
        if before == 0 && ranges.is_empty() {
            return Ok(());
        }
        if self.zone_records.bad_blocks().count() - before + ranges.len() as u64 > self.most_bad_blocks() {
            return Err(NoPart::TooManyHoles.into());
        }
        self.zone_records.change_bad_blocks(|all| all.set(bad_blocks.clone()));
        let sequence = self.membership.next_sequence();
        self.broadcast(Record::Holes(bad_blocks), sequence).await;
        Ok(())
    }

    /// Removes the holes and the unreadable blocks of zones that have been reset.
    pub fn forget_bad_blocks(&self, zones: Range<u32>) {
        self.zone_records.unreadable.remove_zones(&zones);
        self.zone_records.change_bad_blocks(|all| all.retain(|zone, _| !zones.contains(&zone)));
    }

    /// Blocks of a metadata log that holes take in a checkpoint.
    pub fn bad_block_room(&self) -> u64 {
        (self.zone_records.bad_blocks().count() * HOLE_BYTES as u64).div_ceil(BLOCK as u64)
    }

    /// Most holes that there may be: they take at most a quarter of the room that checkpoints leave in a log.
    fn most_bad_blocks(&self) -> u64 {
        let superblock = self.membership.superblock();
        let devices = (0..self.members.count()).filter_map(|member| self.members.device(member));
        let logs = devices.map(|device| log_blocks(device.geometry(), superblock.policy));
        let room = logs.min().unwrap_or(0).saturating_sub(checkpoint_blocks(&superblock));
        MOST_HOLES.min(room / 4 * (BLOCK as u64 / HOLE_BYTES as u64))
    }

    /// Fills holes that can be decoded now, or marks their parts as lost, which are then to be rebuilt. Returns the
    /// bytes written.
    pub(super) async fn fill_bad_blocks(self: &Rc<Self>) -> u64 {
        let parts = self.zone_records.bad_blocks().parts();
        let mut bytes = 0;
        for (zone, member) in parts {
            let is_live = self.live(zone) & (1 << member) != 0;
            if !is_live || !self.is_free(zone) || self.zones.is_offline(zone) || self.has_failed(zone) {
                continue;
            }
            self.background.enter(zone);
            self.background.work_on(self.members.seat(member));
            // Holes that cannot be filled now stay.
            bytes += self.fill_part(zone, member).await.unwrap_or_default();
            self.background.leave();
            self.zones.changed.open();
        }
        bytes
    }

    /// Fills the holes of one part, or marks it as lost. Returns the bytes written.
    async fn fill_part(self: &Rc<Self>, zone: ZoneIndex, member: usize) -> Result<u64, RebuildStop> {
        self.check_waits(zone)?;
        let bad_blocks =
            self.zone_records.bad_blocks_among(zone, member, 0..self.layout.rows * self.layout.chunk_blocks);
        let mut decoded = 0;
        for at in &bad_blocks {
            decoded += self.decode_block(zone, member, *at).await?.is_some() as usize;
            self.check_stop(member)?;
        }
        if decoded == 0 {
            return Ok(0);
        }
        let is_full = self.zones.state(zone) == ZoneState::Full && !self.zones.is_running(zone);
        let log = self.members.log(member).filter(|_| is_full);
        let spare = match &log {
            Some(log) => log.device.find_free().await,
            None => None,
        };
        if let Some((log, spare)) = log.zip(spare) {
            let copied = self.copy_to_spare(zone, member, (&log, spare.zone)).await;
            if copied.is_err() && log.device.places().get(&physical(zone).0) != Some(&spare.zone) {
                // A partly written zone would hold active resources of the drive.
                let zones = Zones::One(physical(zone));
                log.device.submit_to(spare.zone, Command::Reset { zones }).await;
            }
            return copied;
        }
        let can_spare = self.live(zone).count_ones() as usize == self.members.count();
        if can_spare && decoded == bad_blocks.len() && self.decodes_all(zone, member).await? {
            self.part_lost(zone, member, Status::UnrecoveredReadError.into(), "rebuild of unreadable blocks");
            self.membership.settled().await;
        }
        Ok(0)
    }

    /// Writes a member's part of a full zone anew in a spare zone, and makes this its place.
    async fn copy_to_spare(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        (log, place): (&Rc<MetaLog>, u32),
    ) -> Result<u64, RebuildStop> {
        let seat = self.members.seat(member);
        let zones = Zones::One(physical(zone));
        let submit = async |command| {
            self.check_stop(member)?;
            log.device.submit_to(place, command).await.result.map_err(RebuildStop::from)
        };
        submit(Command::Reset { zones }).await?;
        let (layout, tail) = (self.layout, self.finished_tail(zone));
        let end = tail.div_ceil(layout.stripe_blocks()) * layout.chunk_blocks;
        let most = self.batch_blocks();
        let mut report = |_| ();
        let (lost, power_epoch) = (RebuildLoss::default(), self.drive_epoch(member));
        let mut work = PartRebuild { report: &mut report, lost, power_epoch };
        let mut at = 0;
        while at < end {
            let to = (at + most).min((at / layout.chunk_blocks + 1) * layout.chunk_blocks);
            let data = self.own_or_decoded(zone, member, at..to, &mut work.lost).await?;
            let content = self.content_of(member, at / layout.chunk_blocks);
            submit(self.write_of(member, zone, at, data, content, false)).await?;
            at = to;
        }
        submit(Command::Finish { zones }).await?;
        self.flush_caches(1 << member).await;
        self.check_stop(member)?;
        if !self.members.is_seated(seat) {
            return Err(NoPart::Gone.into());
        }
        self.check_kept_power(member, &work)?;
        // Reads in flight may be of the old place, which may be reset when another zone is moved there.
        log.device.place(physical(zone), place);
        self.members.note_loss();
        self.events.note(Event::Moved { member, zone: zone.0, place });
        log.renew().await.result?;
        self.rebuilt(zone, member, &work).await?;
        self.unburn(zone, member);
        Ok(end * BLOCK as u64)
    }

    /// Blocks of a member's part of a full zone, all in one row: as read, or decoded where the member cannot read them
    /// or has holes.
    async fn own_or_decoded(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        blocks: Range<u64>,
        lost: &mut RebuildLoss,
    ) -> Result<Buf, RebuildStop> {
        let (start, first) = (self.members.start(member, zone).0, blocks.start);
        let read = |blocks: Range<u64>| {
            let buf = Buf::zeroed((blocks.end - blocks.start) as usize * BLOCK);
            self.members.submit(member, Command::read(Lba(start + blocks.start), buf))
        };
        let mut bad_blocks = self.zone_records.bad_blocks_among(zone, member, blocks.clone());
        bad_blocks.retain(|at| !self.is_relocated(zone, member, *at));
        let done = read(blocks.clone()).await;
        if done.result.is_ok() && bad_blocks.is_empty() {
            return Ok(self.overlay(zone, member, first, done.data));
        }
        let mut whole = BufMut::zeroed((blocks.end - first) as usize * BLOCK);
        for at in blocks {
            let own = read(at..at + 1).await;
            let found = match own.result {
                Ok(()) if !bad_blocks.contains(&at) => Some(self.overlay(zone, member, at, own.data)),
                // The rest of the last row was never written.
                Err(DeviceError::Status(Status::DeallocatedBlock)) => continue,
                _ => self.decode_block(zone, member, at).await?,
            };
            self.check_stop(member)?;
            match found {
                Some(found) => whole.block_mut(at - first).copy_from_slice(&found),
                None => lost.add(&self.layout, member, at, []),
            }
        }
        Ok(whole.freeze())
    }

    /// Decodes a block of a member's part of a zone from the other members; `None` if that is impossible now.
    async fn decode_block(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        at: u64,
    ) -> Result<Option<Buf>, RebuildStop> {
        let layout = self.layout;
        let (row, from) = (at / layout.chunk_blocks, at % layout.chunk_blocks);
        if row < self.tail(zone) / layout.stripe_blocks() {
            let mut lost = RebuildLoss::default();
            let data = self.other_rows(zone, member, at..at + 1, &mut lost).await?;
            return Ok(lost.bad_blocks.is_empty().then_some(data));
        }
        let role = layout.role(member, row);
        let index = if let Role::Data(index) = role { index } else { 0 };
        Ok(self.decode_tail(zone, ChunkRange { stripe: row, index, from, to: from + 1 }, role).await.ok())
    }

    /// Decodes the content of `role` at `piece`'s offsets in the stripe that a zone ends in, from the other members.
    async fn decode_tail(&self, zone: ZoneIndex, piece: ChunkRange, role: Role) -> Result<Buf, DeviceError> {
        let known = match self.zones.running(zone) {
            Some(running) => self.running_parities(&running.flow.borrow(), piece),
            None => Parities::default(),
        };
        self.decode(zone, piece, role, self.tail(zone), &known).await
    }

    /// Whether all blocks of a member's part of a zone, readable or not, can be decoded from the other members.
    async fn decodes_all(self: &Rc<Self>, zone: ZoneIndex, member: usize) -> Result<bool, RebuildStop> {
        let (layout, tail) = (self.layout, self.tail(zone));
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        let mut lost = RebuildLoss::default();
        let end = stripe * layout.chunk_blocks;
        let most = self.batch_blocks();
        for at in (0..end).step_by(most as usize) {
            self.other_rows(zone, member, at..end.min(at + most), &mut lost).await?;
            self.check_stop(member)?;
        }
        if !lost.bad_blocks.is_empty() {
            return Ok(false);
        }
        let Role::Data(index) = layout.role(member, stripe) else { return Ok(true) };
        let to = covered.saturating_sub(index * layout.chunk_blocks).min(layout.chunk_blocks);
        let piece = ChunkRange { stripe, index, from: 0, to };
        Ok(to == 0 || self.decode_tail(zone, piece, Role::Data(index)).await.is_ok())
    }
}
