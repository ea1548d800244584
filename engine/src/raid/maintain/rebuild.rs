//! Rebuild: restores the parts of zones that members lack, zone by zone, during reads and writes.
//!
//! The metadata has a bit per zone and member for a lost part: set for a new drive in every zone that is not empty, and
//! for a member that has lost the ZRWA of a zone. The bit is cleared, durably on all members, when the member has
//! everything of that zone: data, parity, slots and log of the tail, and a write pointer that claims no more than is
//! true. From then on the member counts in that zone, also after a crash, so an interrupted rebuild continues with the
//! next zone.
//!
//! A zone that is being written is copied behind its writes until little is left, and then paused for the rest.
//!
//! Zones that lack most parts come first: if two members are lost, every zone has some redundancy again before any zone
//! has all of it.
//!
//! A part in a worn zone is rebuilt in one of the drive's spare zones, if one is left ([`crate::adapt::spare`]).
//!
//! A block that cannot be decoded, because other members cannot read theirs, is lost: the rebuild leaves a hole there
//! ([`super::bad_blocks`]) and continues. When all parts are rebuilt, it tries to fill the holes. A zone that cannot be
//! rebuilt at all is left out.

use crate::{
    adapt::spare::ReservedSpare,
    buf::{BLOCK, Buf, BufMut},
    code::decode,
    device::{Command, DeviceError, Status, ZonedDevice, Zones},
    format::{
        Origin,
        oob::Content,
        record::{ParityRecord, Record, TailRecord},
    },
    raid::{
        bad_blocks::RebuildLoss,
        error::{ArrayError, NoPart, NoRebuild},
        events::Event,
        geometry::{ChunkRange, Layout, ParityPlace, Role, each, physical},
        journal::log::MetaLog,
        members::{is_of_zone, is_unreadable},
        parts::Raid,
        policy::{
            inplace,
            zrwa::{self, SlotPart},
        },
        seat::Seat,
        status::{LostBlocks, Progress, RebuildOutcome, SkippedPart},
        zone::flow::{Parities, Zone},
    },
    runtime::{self, COPY, give_way},
    zone::{Lba, ZoneIndex, ZoneState, is_worn},
};
use std::{collections::BTreeMap, ops::Range, rc::Rc};

/// Blocks read from each member at a time.
const BATCH_BLOCKS: u64 = 256;

/// Zones of which one part is rebuilt before the zones are sorted again by the parts that they lack.
const ZONES_IN_PASS: usize = 16;

/// Why a zone was not rebuilt.
pub enum RebuildStop {
    /// A reset or finish of the zone is requested, or its state has changed: try again.
    Again,
    /// The zone cannot be rebuilt now.
    Error(NoPart),
}

impl From<NoPart> for RebuildStop {
    fn from(error: NoPart) -> RebuildStop {
        RebuildStop::Error(error)
    }
}

impl From<DeviceError> for RebuildStop {
    fn from(error: DeviceError) -> RebuildStop {
        RebuildStop::Error(error.into())
    }
}

/// The rebuild of a member's part of a zone.
pub(super) struct PartRebuild<'a> {
    /// Called with the number of bytes that have been rebuilt.
    pub(super) report: &'a mut dyn FnMut(u64),
    /// Blocks that could not be decoded.
    pub(super) lost: RebuildLoss,
    /// Power epoch of the member's drive when the rebuild of its part began.
    pub(super) power_epoch: Option<u64>,
}

/// Blocks of complete stripes as read from the members, from block `from` of their parts on.
struct RebuildRows {
    from: u64,
    /// By member.
    parts: Vec<Buf>,
}

impl RebuildRows {
    /// Decodes blocks of `member`, all in one row, from those of `others` (bits); `false` if these do not suffice.
    fn decode(
        &self,
        layout: &Layout,
        member: usize,
        blocks: Range<u64>,
        others: u32,
        result: &mut BufMut,
    ) -> bool {
        let row = blocks.start / layout.chunk_blocks;
        assert!(
            self.from <= blocks.start && blocks.end <= (row + 1) * layout.chunk_blocks,
            "{blocks:?} of row {row}"
        );
        assert!(others & (1 << member) == 0, "member {member} is decoded from itself");
        let bytes = (blocks.start - self.from) as usize * BLOCK..(blocks.end - self.from) as usize * BLOCK;
        let symbols = layout.symbols(layout.data_chunks());
        let present = each(others).fold(0, |all, other| all | 1 << layout.index(other, row));
        let own = symbols[layout.index(member, row) as usize];
        let Some(recipe) = decode::solve(present, &symbols[..layout.members], own) else { return false };
        let members = recipe.sources().iter().map(|source| layout.member(row, source.stored as u64));
        let sources: Vec<&[u8]> = members.map(|member| &self.parts[member][bytes.clone()]).collect();
        recipe.run(&mut result[bytes], &sources);
        true
    }
}

/// Ends a rebuild, also when its future is dropped.
struct RebuildGuard<'a>(&'a Raid);

impl Drop for RebuildGuard<'_> {
    fn drop(&mut self) {
        self.0.background.end();
        self.0.zones.changed.open();
    }
}

/// Merges blocks of a logical zone, in any order, to ranges.
fn lost_blocks(zone: ZoneIndex, mut blocks: Vec<u64>) -> Vec<LostBlocks> {
    blocks.sort_unstable();
    blocks.dedup();
    let ranges = blocks.chunk_by(|a, b| a + 1 == *b);
    ranges.map(|run| LostBlocks { zone: zone.0, from: run[0], blocks: run.len() as u64 }).collect()
}

impl Raid {
    /// Stops a rebuild in `zones`, and waits until it has left them.
    pub async fn stop_rebuild(&self, zones: Range<u32>) {
        loop {
            if !self.background.stop(&zones) {
                return;
            }
            self.zones.changed.wait().await;
        }
    }

    /// Whether no other operation works on a zone: neither a reset or finish, nor the clearing of a lost part.
    pub(super) fn is_free(&self, zone: ZoneIndex) -> bool {
        !self.zones.is_busy(zone) && !self.background.is_clearing(zone)
    }

    /// Resets the remains of a zone on a member that lacks its part. No rebuild begins in the zone until that ends: the
    /// drive may carry out the reset late.
    pub async fn clear(&self, zone: ZoneIndex, member: usize) {
        self.background.begin_clearing(zone);
        let seat = self.members.seat(member);
        let done = self.members.submit(member, Command::Reset { zones: Zones::One(physical(zone)) }).await;
        // A drive that refuses the reset cannot write the zone any more, and the zone holds no resources. If a drive
        // does not answer, it may carry out the reset when the zone is written again.
        if let Err(error) = done.result
            && !is_of_zone(error)
        {
            self.member_failed(seat, error, "reset");
        }
        self.background.end_clearing(zone);
        self.zones.changed.open();
    }

    /// Zones with members (bits) whose parts need a rebuild, those that lack most parts first; and the size of these
    /// parts, in bytes.
    async fn lacking(&self, left_out: &[SkippedPart]) -> (Vec<(ZoneIndex, u32)>, u64) {
        let mut skipped = BTreeMap::new();
        for part in left_out {
            *skipped.entry(part.zone).or_insert(0) |= 1 << part.member;
        }
        let (mut by_live, mut bytes) = (vec![Vec::new(); self.members.count() + 1], 0);
        for zone in (0..self.geometry.zones).map(ZoneIndex) {
            let lacking = self.lacking_members(zone) & !skipped.get(&zone.0).copied().unwrap_or(0);
            if lacking != 0 {
                bytes += u64::from(lacking.count_ones()) * self.member_bytes(zone);
                by_live[self.live(zone).count_ones() as usize].push((zone, lacking));
            }
            runtime::work(1);
            give_way().await;
        }
        (by_live.concat(), bytes)
    }

    /// Members (bits) whose parts of a zone need a rebuild.
    fn lacking_members(&self, zone: ZoneIndex) -> u32 {
        if self.zones.is_offline(zone) { 0 } else { self.zone_records.lost(zone) & self.members.active() }
    }

    /// Resets the remains of parts that members lack, and zones of drives that are not used: they would hold active
    /// resources.
    pub async fn clear_leftovers(&self) {
        for log in each(self.members.active()).filter_map(|member| self.members.log(member)) {
            log.device.clear_unused().await;
        }
        let lacking = self.lacking(&[]).await.0.into_iter();
        for (zone, member) in lacking.flat_map(|(zone, mask)| each(mask).map(move |member| (zone, member))) {
            let leftover = self.part(zone, member).await.is_some_and(|info| info.state.is_active());
            let is_idle = || self.zone_records.lost(zone) & (1 << member) != 0 && self.is_free(zone);
            if leftover && is_idle() {
                self.wait_for_flights(zone).await;
                // A reset in the meantime may have given the part back: it must not be cleared then.
                if is_idle() {
                    self.clear(zone, member).await;
                }
            }
        }
    }

    /// Waits for the commands in flight in `zone`: one that was submitted to a member before it lost its part would, if
    /// carried out late, overwrite blocks that are written again.
    async fn wait_for_flights(&self, zone: ZoneIndex) {
        let running = self.zones.running(zone);
        if let Some(running) = running {
            self.quiesce(&running).await;
            self.resume(&running);
        }
    }

    /// Bytes of a member's part of a zone.
    pub fn member_bytes(&self, zone: ZoneIndex) -> u64 {
        self.tail(zone).div_ceil(self.layout.stripe_blocks()) * self.layout.chunk_blocks * BLOCK as u64
    }

    /// Rebuilds all lost parts that can be rebuilt.
    pub async fn rebuild(self: &Rc<Self>, progress: &dyn Fn(Progress)) -> Result<RebuildOutcome, ArrayError> {
        if !self.background.begin() {
            return Err(NoRebuild::UnderWay.into());
        }
        let _guard = RebuildGuard(self);
        self.events.note(Event::RebuildBegun);
        let rebuilt = self.rebuild_all(progress).await;
        match &rebuilt {
            Ok(rebuilt) => self.note_rebuilt(rebuilt),
            Err(error) => self.events.note(Event::RebuildStopped(error.clone())),
        }
        rebuilt
    }

    fn note_rebuilt(&self, rebuilt: &RebuildOutcome) {
        for LostBlocks { zone, from, blocks } in rebuilt.lost.iter().copied() {
            self.events.note(Event::BlocksLost { zone, from, blocks });
        }
        for SkippedPart { zone, member, reason: why } in rebuilt.left_out.iter().copied() {
            self.events.note(Event::LeftOut { member, zone, why });
        }
        self.events.note(Event::RebuildEnded { bytes: rebuilt.bytes });
    }

    async fn rebuild_all(self: &Rc<Self>, progress: &dyn Fn(Progress)) -> Result<RebuildOutcome, ArrayError> {
        let (mut done_bytes, mut rebuilt, mut filled) = (0, RebuildOutcome::default(), false);
        let under_repair = self.lacking(&[]).await.0.iter().fold(0, |all, (_, lacking)| all | lacking);
        let kept_bytes = self.rebuild_progress().done_bytes;
        let show = |done_bytes: u64, total_bytes: u64| {
            let (done_bytes, total_bytes) = (kept_bytes + done_bytes, kept_bytes + total_bytes);
            progress(Progress { done_bytes, total_bytes: total_bytes.max(done_bytes), kept_bytes });
        };
        self.clear_leftovers().await;
        loop {
            let changed = self.zones.changed.wait();
            let (lacking, left_bytes) = self.lacking(&rebuilt.left_out).await;
            let total_bytes = done_bytes + left_bytes;
            show(done_bytes, total_bytes);
            if lacking.is_empty() && !std::mem::replace(&mut filled, true) {
                done_bytes += self.fill_bad_blocks().await;
                continue;
            }
            if lacking.is_empty() {
                rebuilt.left_out.extend(self.left_offline());
                return match self.members.active() & under_repair == under_repair {
                    true => Ok(RebuildOutcome { bytes: done_bytes, ..rebuilt }),
                    false => Err(NoRebuild::Failed.into()),
                };
            }
            let mut all_are_busy = true;
            let free = lacking.into_iter().filter(|(zone, _)| self.is_free(*zone));
            for (zone, parts) in free.take(ZONES_IN_PASS) {
                all_are_busy = false;
                let Some(member) = each(parts & self.lacking_members(zone)).next() else { continue };
                let before = done_bytes;
                let mut report = |bytes: u64| {
                    done_bytes += bytes;
                    show(done_bytes, total_bytes);
                };
                let (result, lost, lacks) = self.rebuild_part(zone, member, &mut report).await;
                match result {
                    Ok(()) => rebuilt.lost.extend(lost_blocks(zone, lost.blocks)),
                    Err(RebuildStop::Again) if !self.membership.has_failed() => {
                        done_bytes = before;
                        break;
                    }
                    Err(RebuildStop::Again) => return Err(self.too_many_failed()),
                    // The zone of the drive became worn during the rebuild.
                    Err(RebuildStop::Error(NoPart::Worn(_)))
                        if lacks && self.find_spare(zone, member).await.is_some() =>
                    {
                        done_bytes = before;
                        break;
                    }
                    // The failure of one zone does not stop the rebuild of the others.
                    Err(RebuildStop::Error(_)) if !lacks && !self.membership.has_failed() => {
                        rebuilt.lost.extend(lost_blocks(zone, lost.blocks));
                    }
                    Err(RebuildStop::Error(reason))
                        if self.check_active(member).is_ok() && !self.membership.has_failed() =>
                    {
                        done_bytes = before;
                        rebuilt.left_out.push(SkippedPart { zone: zone.0, member, reason });
                    }
                    // The member is out, but other members may lack parts too.
                    Err(RebuildStop::Error(_))
                        if !self.members.is_active(member) && !self.membership.has_failed() =>
                    {
                        done_bytes = before;
                    }
                    Err(RebuildStop::Error(why)) => return Err(NoRebuild::Zone { zone: zone.0, why }.into()),
                }
            }
            if all_are_busy {
                changed.await;
            }
        }
    }

    /// As [`Raid::rebuild_zone`], while no other operation works on the zone; also returns the blocks that could not be
    /// decoded, and whether the member still lacks its part, which is empty then.
    async fn rebuild_part(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        report: &mut dyn FnMut(u64),
    ) -> (Result<(), RebuildStop>, RebuildLoss, bool) {
        self.background.enter(zone);
        self.background.work_on(self.members.seat(member));
        let (lost, power_epoch) = (RebuildLoss::default(), self.drive_epoch(member));
        let mut work = PartRebuild { report, lost, power_epoch };
        let result = self.rebuild_zone(zone, member, &mut work).await;
        // The member may have its part again, if only a later step has failed.
        let lacks = self.zone_records.lost(zone) & (1 << member) != 0;
        if result.is_err() && lacks {
            // A partly rebuilt part would hold active resources of the drive.
            let zones = Zones::One(physical(zone));
            self.on_member(member, Command::Reset { zones }).await.ok();
        }
        self.background.leave();
        self.zones.changed.open();
        (result, work.lost, lacks)
    }

    /// Lost parts of offline zones: they cannot be rebuilt now, and are reported as left out.
    fn left_offline(&self) -> Vec<SkippedPart> {
        let active = self.members.active();
        let zones = self.zones.offline();
        let lacking = zones.keys().flat_map(|zone| {
            each(self.zone_records.lost(ZoneIndex(*zone)) & active).map(|member| (*zone, member))
        });
        let reason = |zone| match self.zones.is_read_only(ZoneIndex(zone)) {
            true => NoPart::ReadOnly,
            false => NoPart::Offline,
        };
        lacking.map(|(zone, member)| SkippedPart { zone, member, reason: reason(zone) }).collect()
    }

    /// Rebuilds a member's part of a zone: empties it, moves it if its zone is worn, writes it anew, and logs that.
    async fn rebuild_zone(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        work: &mut PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        let zones = Zones::One(physical(zone));
        self.check_waits(zone)?;
        self.check_stuck(zone)?;
        self.wait_for_flights(zone).await;
        self.check_stop(member)?;
        self.move_part(zone, member).await?;
        self.check_stop(member)?;
        self.on_member(member, Command::Reset { zones }).await?;
        self.check_stop(member)?;
        self.unburn(zone, member);
        let running = self.zones.running(zone);
        match running {
            // A zone that waits to be opened is opened on this member too, when the rebuild has left it.
            Some(running) if !running.flow.borrow().is_open() => self.rebuilt(zone, member, work).await,
            Some(running) => self.rebuild_running(&running, member, work).await,
            None => self.rebuild_full(zone, member, work).await,
        }
    }

    /// A spare zone for a member's part of a zone, if its own zone is worn and a spare one is left.
    pub async fn find_spare(&self, zone: ZoneIndex, member: usize) -> Option<(Rc<MetaLog>, ReservedSpare)> {
        let log = self.members.log(member)?;
        let worn = self.part(zone, member).await.is_some_and(|info| is_worn(info.state));
        let spare = if worn { log.device.find_free().await } else { None };
        spare.map(|spare| (log, spare))
    }

    /// Moves a member's part of a zone, which is lost and not in use, to a spare zone if its own zone is worn. The
    /// member logs the new place before anything is written there: the content of a place that is not in the log would
    /// be lost silently.
    pub async fn move_part(&self, zone: ZoneIndex, member: usize) -> Result<(), DeviceError> {
        let seat = self.members.seat(member);
        if let Some((log, spare)) = self.find_spare(zone, member).await {
            // Some of the small zones that are used as one may not be worn: they would hold active resources.
            log.device.submit(Command::Reset { zones: Zones::One(physical(zone)) }).await;
            log.device.place(physical(zone), spare.zone);
            self.events.note(Event::Moved { member, zone: zone.0, place: spare.zone });
        }
        // A rebuild whose future was dropped may have left a place that is not logged.
        if let Some(log) = self.members.log(member).filter(|log| !log.device.is_kept()) {
            log.renew().await.result?;
            let report = Command::Report { first: physical(ZoneIndex(0)), count: self.geometry.zones };
            let zones = log.device.submit(report).await.zones;
            if self.members.is_seated(seat) {
                self.members.set_worn(member, zones.iter().any(|info| is_worn(info.state)));
            }
        }
        Ok(())
    }

    /// Submits a command to the member that is being rebuilt. An error of the zone makes the rebuild leave it out; any
    /// other takes the member out.
    async fn on_member(&self, member: usize, command: Command) -> Result<(), RebuildStop> {
        self.check_active(member)?;
        let seat = self.members.seat(member);
        let result = self.members.submit(member, command).await.result;
        result.map_err(|error| match is_of_zone(error) {
            true => {
                self.members.note_wear(member, error);
                NoPart::Worn(error).into()
            }
            false => {
                self.member_failed(seat, error, "rebuild");
                NoPart::Failed(error).into()
            }
        })
    }

    /// Checks that the member is active with the drive on which the job began.
    fn check_active(&self, member: usize) -> Result<(), RebuildStop> {
        if !self.members.is_active(member) || self.background.seat() != Some(self.members.seat(member)) {
            return Err(NoPart::Gone.into());
        }
        Ok(())
    }

    /// Checks that the member is active with the same drive, no other operation needs the zone, and the array has not
    /// failed.
    pub fn check_stop(&self, member: usize) -> Result<(), RebuildStop> {
        self.check_active(member)?;
        if self.background.is_stopped() || self.membership.has_failed() {
            Err(RebuildStop::Again)
        } else {
            Ok(())
        }
    }

    /// Refuses a zone that waits for a member: it is not written before that member returns.
    pub(super) fn check_waits(&self, zone: ZoneIndex) -> Result<(), RebuildStop> {
        match self.zone_records.record(zone).waits {
            0 => Ok(()),
            _ => Err(NoPart::Waits.into()),
        }
    }

    /// Refuses a zone that is being written and is stuck, unless its submitted blocks are known to be complete on the
    /// other members. The next assembly finds the tail of a refused zone.
    fn check_stuck(&self, zone: ZoneIndex) -> Result<(), RebuildStop> {
        let Some((member, running)) = self.zones.stuck(zone).zip(self.zones.running(zone)) else {
            return Ok(());
        };
        match self.layout.policy.uses_zrwa() || running.flow.borrow().is_ahead() {
            true => Err(NoPart::Stuck(member).into()),
            false => Ok(()),
        }
    }

    /// Marks the part of the member that a zone is stuck on as lost, if enough other members hold the zone now.
    fn release_stuck(&self, zone: ZoneIndex) {
        for member in each(self.zones.stuck_members(zone)) {
            if self.members.are_needed(self.live(zone)) {
                return;
            }
            self.zones.release(zone, member);
            self.part_lost(zone, member, Status::ZoneIsReadOnly.into(), "write");
        }
    }

    /// The members (bits) that a part of `zone` is rebuilt from: all others that hold their parts, if these are enough.
    fn check_others(&self, zone: ZoneIndex, member: usize) -> Result<u32, RebuildStop> {
        let others = self.live(zone) & !(1 << member);
        match self.members.are_enough(others) && !self.zones.is_cut(zone) {
            true => Ok(others),
            false => Err(NoPart::TooFewOthers.into()),
        }
    }

    /// Decodes blocks `from..to` of a member's part, in rows of complete stripes, from all other members. Blocks that
    /// cannot be decoded are zeros and are added to `lost`.
    pub async fn other_rows(
        &self,
        zone: ZoneIndex,
        member: usize,
        Range { start: from, end: to }: Range<u64>,
        lost: &mut RebuildLoss,
    ) -> Result<Buf, RebuildStop> {
        self.power_checked().await;
        let (others, losses) = (self.check_others(zone, member)?, self.members.losses());
        let pending: Vec<_> = each(others)
            .map(|other| {
                let lba = Lba(self.members.start(other, zone).0 + from);
                let buf = self.pool.borrow_mut().take(to - from).freeze();
                (self.members.seat(other), self.members.submit(other, Command::read(lba, buf)))
            })
            .collect();
        let mut found = RebuildRows { from, parts: vec![Buf::default(); self.members.count()] };
        let mut unreadable: BTreeMap<u64, u32> = BTreeMap::new();
        // An error other than that of an unreadable block: the data may still exist.
        let mut other_error = None;
        for (seat, completion) in pending {
            let done = completion.await;
            self.notices_power_loss(1 << seat.member);
            let (data, mut blocks) = match done.result {
                Ok(()) => (done.data, Vec::new()),
                Err(error) => {
                    self.read_failed(zone, seat, error);
                    self.read_singly_from(zone, seat, from..to, &mut other_error).await?
                }
            };
            found.parts[seat.member] = self.overlay(zone, seat.member, from, data);
            blocks.extend(self.zone_records.bad_blocks_among(zone, seat.member, from..to));
            for at in blocks.into_iter().filter(|at| !self.is_relocated(zone, seat.member, *at)) {
                *unreadable.entry(at).or_default() |= 1 << seat.member;
            }
        }
        if self.members.losses() != losses {
            // A part was lost meanwhile: blocks of it may have been read after they were written again.
            return Err(RebuildStop::Again);
        }
        let (layout, mut result) = (&self.layout, self.pool.borrow_mut().take(to - from));
        runtime::work((to - from) as u32 * COPY);
        let mut at = from;
        while at < to {
            let end = to.min((at / layout.chunk_blocks + 1) * layout.chunk_blocks);
            found.decode(layout, member, at..end, others, &mut result);
            at = end;
        }
        for (at, unreadable) in unreadable {
            if !found.decode(layout, member, at..at + 1, others & !unreadable, &mut result) {
                if let Some(error) = other_error {
                    return Err(error.into());
                }
                result.block_mut(at - from).fill(0);
                lost.add(layout, member, at, each(unreadable));
            }
        }
        found.parts.into_iter().for_each(|part| self.pool.borrow_mut().give(part));
        Ok(result.freeze())
    }

    /// Reads blocks of a member's part one by one, after a read of all has failed. Returns them, and those that are
    /// unreadable; `other_error` is set to any other error.
    async fn read_singly_from(
        &self,
        zone: ZoneIndex,
        seat: Seat,
        blocks: Range<u64>,
        other_error: &mut Option<DeviceError>,
    ) -> Result<(Buf, Vec<u64>), RebuildStop> {
        let start = self.members.start(seat.member, zone).0;
        let mut data = BufMut::zeroed((blocks.end - blocks.start) as usize * BLOCK);
        let mut unreadable = Vec::new();
        for (place, at) in (0..).zip(blocks) {
            if self.live(zone) & (1 << seat.member) == 0 {
                // The other members may be enough.
                return Err(RebuildStop::Again);
            }
            let read = Command::read(Lba(start + at), Buf::zeroed(BLOCK));
            let done = self.members.submit(seat.member, read).await;
            self.note_read_of(zone, seat.member, at..at + 1, done.result);
            match done.result {
                Ok(()) => data.block_mut(place).copy_from_slice(&done.data),
                Err(error) => {
                    self.read_failed(zone, seat, error);
                    unreadable.push(at);
                    if !is_unreadable(error) {
                        *other_error = Some(error);
                    }
                }
            }
        }
        Ok((data.freeze(), unreadable))
    }

    /// Decodes a piece of the partial stripe with `decode`: as a whole or, if that fails, block by block. Blocks that
    /// cannot be decoded are zeros and are added to `lost`.
    async fn decode_singly(
        &self,
        zone: ZoneIndex,
        member: usize,
        piece: ChunkRange,
        lost: &mut RebuildLoss,
        decode: impl AsyncFn(ChunkRange) -> Result<Buf, DeviceError>,
    ) -> Result<Buf, RebuildStop> {
        let losses = self.members.losses();
        // A part was lost meanwhile: blocks of it may have been read after they were written again.
        let as_found =
            |found| if self.members.losses() == losses { Ok(found) } else { Err(RebuildStop::Again) };
        if let Ok(found) = decode(piece).await {
            return as_found(found);
        }
        let layout = &self.layout;
        let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
        for from in piece.from..piece.to {
            let single = ChunkRange { from, to: from + 1, ..piece };
            match decode(single).await {
                Ok(found) => whole.block_mut(from - piece.from).copy_from_slice(&found),
                Err(error) => {
                    let mut others = Vec::new();
                    for other in each(self.check_others(zone, member)?) {
                        let read = self.read_member(zone, other, single).await;
                        others.extend(read.is_err().then_some(other));
                    }
                    if !is_unreadable(error) || self.check_others(zone, member).is_err() {
                        return Err(error.into());
                    }
                    lost.add(layout, member, piece.stripe * layout.chunk_blocks + from, others);
                }
            }
        }
        as_found(whole.freeze())
    }

    /// Most blocks that are read from each member at a time.
    pub(super) fn batch_blocks(&self) -> u64 {
        let limits = (0..self.members.count()).filter_map(|m| self.members.device(m));
        let limits = limits.map(|d| d.geometry().max_transfer_blocks as u64);
        limits.fold(BATCH_BLOCKS, u64::min)
    }

    /// Copies rows `rows` of complete stripes to the member. In a zone with a ZRWA the write pointer follows, up to the
    /// position (half chunks) in `follow`.
    async fn copy_rows(
        &self,
        zone: ZoneIndex,
        member: usize,
        rows: Range<u64>,
        follow: Option<u64>,
        work: &mut PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        let chunk = self.layout.chunk_blocks;
        let start = self.members.start(member, zone).0;
        let most = self.batch_blocks();
        let (mut at, end) = (rows.start * chunk, rows.end * chunk);
        while at < end {
            give_way().await;
            // Row by row in a ZRWA: writes have to stay inside it.
            let row_end = if follow.is_some() { (at / chunk + 1) * chunk } else { end };
            let to = (at + most).min(row_end);
            let data = self.other_rows(zone, member, at..to, &mut work.lost).await?;
            self.check_stop(member)?;
            (work.report)(data.len() as u64);
            let content = self.content_of(member, at / chunk);
            // Out-of-band metadata is not needed in a full zone.
            let write = match follow {
                Some(_) => self.write_of(member, zone, at, data, content, false),
                None => Command::write(Lba(start + at), data, false),
            };
            self.on_member(member, write).await?;
            if let Some(position) = follow
                && to == row_end
            {
                let wp = to.min(position * (chunk / 2));
                self.on_member(member, Command::FlushZrwa { last: Lba(start + wp - 1) }).await?;
            }
            self.check_stop(member)?;
            at = to;
        }
        Ok(())
    }

    /// Rebuilds a part of a zone that is full or finished.
    async fn rebuild_full(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        work: &mut PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        let layout = &self.layout;
        if self.zones.table().info(zone).state != ZoneState::Full {
            // The zone is empty, and so is the part.
            return self.rebuilt(zone, member, work).await;
        }
        let tail = self.finished_tail(zone);
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        self.copy_rows(zone, member, 0..stripe, None, work).await?;
        if covered > 0 {
            let mut data = BufMut::zeroed(layout.chunk_blocks as usize * BLOCK);
            let role = layout.role(member, stripe);
            let (index, to) = match role {
                Role::Data(index) => (index, covered.saturating_sub(index * layout.chunk_blocks)),
                Role::Parity(_) => (0, layout.chunk_blocks),
            };
            let piece = ChunkRange { stripe, index, from: 0, to: to.min(layout.chunk_blocks) };
            if piece.to > 0 {
                let none = Parities::default();
                let decode = async |piece: ChunkRange| self.decode(zone, piece, role, tail, &none).await;
                let found = self.decode_singly(zone, member, piece, &mut work.lost, decode).await?;
                data[..found.len()].copy_from_slice(&found);
            }
            (work.report)(data.len() as u64);
            self.check_stop(member)?;
            let at = stripe * layout.chunk_blocks;
            self.on_member(member, self.write_of(member, zone, at, data.freeze(), Content::Data, false))
                .await?;
        }
        let zones = Zones::One(physical(zone));
        self.on_member(member, Command::Finish { zones }).await?;
        self.check_stop(member)?;
        self.rebuilt(zone, member, work).await
    }

    /// Logs that a member has its part of a zone again, and the holes in it.
    pub(super) async fn rebuilt(
        &self,
        zone: ZoneIndex,
        member: usize,
        work: &PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        self.flush_caches(1 << member).await;
        self.check_stop(member)?;
        self.record_bad_blocks(zone, member, &work.lost.bad_blocks).await?;
        // The loss of the part has to be logged before its rebuild.
        self.membership.settled().await;
        self.check_stop(member)?;
        // Another member may have gone out since the copy.
        self.check_waits(zone)?;
        // Last, without a pause before the change: until then no power loss of the drive marks the part as lost.
        self.check_kept_power(member, work)?;
        // A checkpoint from now on may replace the record, so it has to contain the change. Records that rely on the
        // member follow this record in every log.
        let sequence = self.membership.next_sequence();
        let epoch = self.zone_records.change(zone, |record| record.lost &= !(1 << member));
        self.broadcast(Record::Rebuilt { zone: zone.0, epoch, members: 1 << member }, sequence).await;
        self.check_active(member)?;
        self.zone_records.unreadable.remove_parts(member, Some(zone.0));
        self.parts_back(member, 1);
        self.release_stuck(zone);
        Ok(())
    }

    /// Stops if a drive has lost power since the rebuild of its part began: blocks that were written may be gone.
    pub(super) fn check_kept_power(&self, member: usize, work: &PartRebuild<'_>) -> Result<(), RebuildStop> {
        if self.drive_epoch(member) == work.power_epoch { Ok(()) } else { Err(RebuildStop::Again) }
    }

    /// Rebuilds a part of a zone that is being written.
    async fn rebuild_running(
        self: &Rc<Self>,
        zone: &Rc<Zone>,
        member: usize,
        work: &mut PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        let layout = self.layout;
        let zones = Zones::One(physical(zone.index));
        let zrwa = layout.policy.uses_zrwa();
        self.on_member(member, Command::Open { zones, zrwa }).await?;
        let mut row = 0;
        for _ in 0..8 {
            // Not the last complete row: a write pointer at its end might claim too much.
            let settled = (zone.flow.borrow().claimed() / layout.data_chunks()).saturating_sub(1);
            if settled < row + layout.distance {
                break;
            }
            let follow = zrwa.then_some(2 * settled);
            self.copy_rows(zone.index, member, row..settled, follow, work).await?;
            if zone.flow.borrow().has_ended() {
                return Err(RebuildStop::Again);
            }
            row = settled;
        }
        self.quiesce(zone).await;
        let result = self.join(zone, member, row, work).await;
        self.resume(zone);
        result
    }

    /// Rebuilds the rest of a part in a zone that is quiesced.
    async fn join(
        self: &Rc<Self>,
        zone: &Rc<Zone>,
        member: usize,
        row: u64,
        work: &mut PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        let layout = self.layout;
        if zone.flow.borrow().is_over() {
            // A zone that could not be finished stays frozen until it is reset or judged by the next assembly.
            let ends = zone.flow.borrow().has_ended() || self.zones.is_busy(zone.index);
            return Err(if ends { RebuildStop::Again } else { NoPart::TooFewOthers.into() });
        }
        self.check_stuck(zone.index)?;
        let tail = zone.flow.borrow().complete();
        self.make_safe(zone, tail).await?;
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        // The highest position that claims no more than the tail, of which the member may be a witness.
        let (zrwa, position) = (layout.policy.uses_zrwa(), layout.policy.position(&layout, member, tail));
        self.copy_rows(zone.index, member, row..stripe, zrwa.then_some(position), work).await?;
        layout.policy.show_with(self, zone, member, tail).await;
        // The tail record first: with the policy `inplace` it voids parity that was logged before.
        if let Some(record) = layout.policy.tail_record(self, zone, tail) {
            self.copy_log(zone, member, record).await?;
        }
        if covered > 0 {
            self.copy_tail(zone, member, (stripe, covered), work).await?;
        }
        if zrwa && position > 2 * stripe {
            let last = self.members.start(member, zone.index).0 + position * (layout.chunk_blocks / 2) - 1;
            self.on_member(member, Command::FlushZrwa { last: Lba(last) }).await?;
        }
        if zrwa && position == 0 && tail > 0 {
            self.record_promise_with(zone, tail, member).await;
        }
        self.check_stop(member)?;
        self.rebuilt(zone.index, member, work).await?;
        let mut flow = zone.flow.borrow_mut();
        flow.join(member, position);
        let limit = self.window(&flow, self.live(zone.index));
        flow.set_limit(limit);
        Ok(())
    }

    /// Copies the member's part of a partial stripe: data, and the slots that its tail needs.
    async fn copy_tail(
        self: &Rc<Self>,
        zone: &Zone,
        member: usize,
        (stripe, covered): (u64, u64),
        work: &mut PartRebuild<'_>,
    ) -> Result<(), RebuildStop> {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        if let Role::Data(index) = layout.role(member, stripe)
            && covered > index * chunk
        {
            let to = (covered - index * chunk).min(chunk);
            let piece = ChunkRange { stripe, index, from: 0, to };
            let tail = stripe * layout.stripe_blocks() + covered;
            let role = Role::Data(index);
            let decode = async |piece: ChunkRange| {
                let known = self.running_parities(&zone.flow.borrow(), piece);
                self.decode(zone.index, piece, role, tail, &known).await
            };
            let data = self.decode_singly(zone.index, member, piece, &mut work.lost, decode).await?;
            let write = self.write_of(member, zone.index, stripe * chunk, data, Content::Data, false);
            self.on_member(member, write).await?;
        }
        for (which, SlotPart { index, from, to }) in zrwa::tail_slots(layout, covered) {
            let (slot_member, place) = layout.slot(stripe, index, which);
            if slot_member != member {
                continue;
            }
            let data = zone.flow.borrow().parity(which, from, to);
            match place {
                ParityPlace::Row(row) => {
                    let content = inplace::version_of(stripe, row, index);
                    let at = row * chunk + from;
                    self.on_member(member, self.write_of(member, zone.index, at, data, content, false))
                        .await?;
                }
                ParityPlace::MetaLog => {
                    let epoch = zone.flow.borrow().epoch();
                    let (index, from) = (index as u32, from as u32);
                    let record = ParityRecord { zone: zone.index.0, epoch, stripe, index, from, data };
                    self.log_on(member, Record::Parity(record)).await?;
                }
            }
        }
        Ok(())
    }

    async fn log_on(&self, member: usize, record: Record) -> Result<(), RebuildStop> {
        let sequence = self.membership.next_sequence();
        match self.members.log(member) {
            Some(log) => Ok(log.append(record, sequence).await.result?),
            None => Err(NoPart::Gone.into()),
        }
    }

    /// Writes the member's copy of the tail record, if it keeps one.
    async fn copy_log(&self, zone: &Zone, member: usize, record: TailRecord) -> Result<(), RebuildStop> {
        let layout = &self.layout;
        let last = record.tail_blocks.saturating_sub(1);
        let (mut members, place) = layout.log(last / layout.stripe_blocks());
        let (record, everywhere) = (Record::Tail(record), record.generation > 0);
        if everywhere {
            return self.log_on(member, record).await;
        }
        if !members.any(|holder| holder == member) {
            return Ok(());
        }
        let ParityPlace::Row(row) = place else { return self.log_on(member, record).await };
        let sequence = self.membership.next_sequence();
        let block = zone.flow.borrow().log_block();
        let lba = self.members.start(member, zone.index).0 + row * layout.chunk_blocks + block;
        let origin = Origin { array: self.array, member: member as u32, lba };
        let command = Command::write(Lba(lba), record.encode(origin, sequence), false);
        self.on_member(member, command).await
    }
}
