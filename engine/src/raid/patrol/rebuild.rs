//! Rebuild: fills what a member lacks, zone by zone, while reads and writes go on.
//!
//! What is lacking is a bit per zone and member in the metadata: set for a new drive in every zone
//! that is not empty, and for a member that lost the ZRWA of a zone. It is cleared, safely on all
//! members, when everything of that zone is on the member: data, parity, slots and log of the
//! tail, and a write pointer that claims no more than is true. From then on the member counts in
//! that zone, also after a crash; so an interrupted rebuild goes on with the next zone.
//!
//! A zone that is being written is followed until little is left, and then held for the rest.
//!
//! Zones that lack most come first, so that one lost member is made up for everywhere before the second.
//!
//! A part whose place on the drive is worn is rebuilt in one of the drive's spare zones, if there is one left
//! ([`crate::adapt::spare`]).
//!
//! A block that cannot be decoded, because other members cannot read theirs, is lost: the rebuild leaves
//! a hole there ([`super::holes`]) and goes on. When nothing is lacking any more, holes are tried again. A zone that cannot be rebuilt at all is left out.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode,
    device::{Command, DeviceError, Status, ZonedDevice, Zones},
    format::{
        Origin,
        oob::Content,
        record::{ParityRecord, Record, TailRecord},
    },
    raid::{
        error::{ArrayError, NoPart, NoRebuild},
        events::Event,
        geometry::{Layout, Piece, Place, Role, each, physical},
        holes::Lost,
        journal::log::MetaLog,
        members::{is_of_zone, is_unreadable},
        parts::Raid,
        policy::{
            inplace,
            zrwa::{self, SlotPart},
        },
        seat::Seat,
        status::{LeftOut, LostBlocks, Progress, Rebuilt},
        zone::flow::{Parities, Zone},
    },
    runtime::{self, COPY, give_way},
    zone::{Lba, ZoneIndex, ZoneState, is_worn},
};
use std::{collections::BTreeMap, ops::Range, rc::Rc};

/// Blocks read from each member at a time.
const BATCH_BLOCKS: u64 = 256;

/// Why a zone was not rebuilt.
pub enum Stopped {
    /// Somebody wants to reset or finish the zone, or it has changed: try again.
    Again,
    /// It cannot be done now.
    Error(NoPart),
}

impl From<NoPart> for Stopped {
    fn from(error: NoPart) -> Stopped {
        Stopped::Error(error)
    }
}

impl From<DeviceError> for Stopped {
    fn from(error: DeviceError) -> Stopped {
        Stopped::Error(error.into())
    }
}

/// A member's part of a zone that is being rebuilt.
pub(super) struct Work<'a> {
    /// Takes bytes that are done.
    pub(super) report: &'a mut dyn FnMut(u64),
    pub(super) lost: Lost,
    /// Power epoch of the member's drive when the rebuild of its part began.
    pub(super) power_epoch: Option<u64>,
}

/// Blocks of complete stripes as members hold them, from block `from` of their parts on.
struct Rows {
    from: u64,
    /// By member.
    parts: Vec<Buf>,
}

impl Rows {
    /// Blocks of `member`, all in one row, from those of `others` (bits); `false` if these do not tell them.
    fn decode(
        &self,
        layout: &Layout,
        member: usize,
        blocks: Range<u64>,
        others: u32,
        result: &mut BufMut,
    ) -> bool {
        let row = blocks.start / layout.chunk_blocks;
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

/// Ends a rebuild, also one that is dropped half-way.
struct Guard<'a>(&'a Raid);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.duty.end();
        self.0.zones.changed.open();
    }
}

/// Blocks of a logical zone, in any order, as ranges.
fn lost_blocks(zone: ZoneIndex, mut blocks: Vec<u64>) -> Vec<LostBlocks> {
    blocks.sort_unstable();
    blocks.dedup();
    let ranges = blocks.chunk_by(|a, b| a + 1 == *b);
    ranges.map(|run| LostBlocks { zone: zone.0, from: run[0], blocks: run.len() as u64 }).collect()
}

impl Raid {
    /// Has a rebuild leave `zones` alone, and waits until it does.
    pub async fn stop_rebuild(&self, zones: Range<u32>) {
        loop {
            if !self.duty.stop(&zones) {
                return;
            }
            self.zones.changed.wait().await;
        }
    }

    /// Has a member that lacks `zone` reset what it holds of it. Meanwhile nothing else begins
    /// there: the reset may be carried out late.
    pub async fn clear(&self, zone: ZoneIndex, member: usize) {
        self.duty.begin_clearing(zone);
        let seat = self.members.seat(member);
        let done = self.members.submit(member, Command::Reset { zones: Zones::One(physical(zone)) }).await;
        // If it is refused, the drive cannot write the zone any more, and it holds nothing either. If there
        // is no answer, it may be carried out when the zone is written anew.
        if let Err(error) = done.result
            && !is_of_zone(error)
        {
            self.member_failed(seat, error, "reset");
        }
        self.duty.end_clearing(zone);
        self.zones.changed.open();
    }

    /// Zones and members that need a rebuild: first those that lack most.
    fn lacking(&self) -> Vec<(ZoneIndex, usize)> {
        let records = self.catalog.records();
        let active = self.members.active();
        let mut lacking: Vec<_> = (0..records.len())
            .filter(|z| !self.zones.is_offline(ZoneIndex(*z as u32)))
            .flat_map(|z| each(records[z].lost & active).map(move |m| (ZoneIndex(z as u32), m)))
            .collect();
        lacking.sort_by_key(|(zone, _)| self.live(*zone).count_ones());
        lacking
    }

    /// Resets what members hold of zones that they lack, and what is in zones that are not used: it would take
    /// resources of their drives.
    pub async fn clear_leftovers(&self) {
        for log in each(self.members.active()).filter_map(|member| self.members.log(member)) {
            log.device.clear_unused().await;
        }
        for (zone, member) in self.lacking() {
            let leftover = self.part(zone, member).await.is_some_and(|info| info.state.is_active());
            let is_idle = || self.catalog.record(zone).lost & (1 << member) != 0 && !self.zones.is_busy(zone);
            if leftover && is_idle() {
                self.let_go(zone).await;
                // Meanwhile a reset may have given the part back, which is not to be wiped then.
                if is_idle() {
                    self.clear(zone, member).await;
                }
            }
        }
    }

    /// Waits for what a member that lacks its part of `zone` was told there before it was lost: carried out
    /// late, it would be mixed up with what is written anew.
    async fn let_go(&self, zone: ZoneIndex) {
        let running = self.zones.running(zone);
        if let Some(running) = running {
            self.quiesce(&running).await;
            self.resume(&running);
        }
    }

    /// Bytes that a member holds of a zone.
    pub fn member_bytes(&self, zone: ZoneIndex) -> u64 {
        self.tail(zone).div_ceil(self.layout.stripe_blocks()) * self.layout.chunk_blocks * BLOCK as u64
    }

    /// Rebuilds everything that is lacking and can be rebuilt.
    pub async fn rebuild(self: &Rc<Self>, progress: &dyn Fn(Progress)) -> Result<Rebuilt, ArrayError> {
        if !self.duty.begin() {
            return Err(NoRebuild::UnderWay.into());
        }
        let _guard = Guard(self);
        self.events.note(Event::RebuildBegun);
        let rebuilt = self.rebuild_all(progress).await;
        match &rebuilt {
            Ok(rebuilt) => self.note_rebuilt(rebuilt),
            Err(error) => self.events.note(Event::RebuildStopped(error.clone())),
        }
        rebuilt
    }

    fn note_rebuilt(&self, rebuilt: &Rebuilt) {
        for LostBlocks { zone, from, blocks } in rebuilt.lost.iter().copied() {
            self.events.note(Event::BlocksLost { zone, from, blocks });
        }
        for LeftOut { zone, member, reason: why } in rebuilt.left_out.iter().copied() {
            self.events.note(Event::LeftOut { member, zone, why });
        }
        self.events.note(Event::RebuildEnded { bytes: rebuilt.bytes });
    }

    async fn rebuild_all(self: &Rc<Self>, progress: &dyn Fn(Progress)) -> Result<Rebuilt, ArrayError> {
        let (mut done_bytes, mut rebuilt, mut filled) = (0, Rebuilt::default(), false);
        let under_repair = self.lacking().iter().fold(0, |mask, (_, member)| mask | 1u32 << member);
        let kept_bytes = self.rebuild_progress().done_bytes;
        let show = |done_bytes: u64, total_bytes: u64| {
            let (done_bytes, total_bytes) = (kept_bytes + done_bytes, kept_bytes + total_bytes);
            progress(Progress { done_bytes, total_bytes: total_bytes.max(done_bytes), kept_bytes });
        };
        self.clear_leftovers().await;
        loop {
            let mut lacking = self.lacking();
            lacking.retain(|(zone, m)| !rebuilt.left_out.iter().any(|l| (l.zone, l.member) == (zone.0, *m)));
            let left: u64 = lacking.iter().map(|(zone, _)| self.member_bytes(*zone)).sum();
            let total_bytes = done_bytes + left;
            show(done_bytes, total_bytes);
            let free = |zone: &ZoneIndex| !self.zones.is_busy(*zone) && !self.duty.is_clearing(*zone);
            let Some((zone, member)) = lacking.iter().find(|(zone, _)| free(zone)).copied() else {
                if lacking.is_empty() && !std::mem::replace(&mut filled, true) {
                    done_bytes += self.fill_holes().await;
                    continue;
                }
                if lacking.is_empty() {
                    rebuilt.left_out.extend(self.left_offline());
                    return match self.members.active() & under_repair == under_repair {
                        true => Ok(Rebuilt { bytes: done_bytes, ..rebuilt }),
                        false => Err(NoRebuild::Failed.into()),
                    };
                }
                self.zones.changed.wait().await;
                continue;
            };
            self.duty.enter(zone);
            self.duty.work_on(self.members.seat(member));
            let before = done_bytes;
            let (result, lost) = {
                let mut report = |bytes: u64| {
                    done_bytes += bytes;
                    show(done_bytes, total_bytes);
                };
                let (lost, power_epoch) = (Lost::default(), self.drive_epoch(member));
                let mut work = Work { report: &mut report, lost, power_epoch };
                (self.rebuild_zone(zone, member, &mut work).await, work.lost)
            };
            // It may count again already: only what came after has failed.
            let lacks = self.catalog.record(zone).lost & (1 << member) != 0;
            if result.is_err() && lacks {
                // Half a zone would hold resources of the drive.
                let zones = Zones::One(physical(zone));
                self.on_member(member, Command::Reset { zones }).await.ok();
            }
            self.duty.leave();
            self.zones.changed.open();
            match result {
                Ok(()) => rebuilt.lost.extend(lost_blocks(zone, lost.blocks)),
                Err(Stopped::Again) if !self.membership.has_failed() => done_bytes = before,
                Err(Stopped::Again) => return Err(self.too_many_failed()),
                // It went bad meanwhile.
                Err(Stopped::Error(NoPart::Worn(_)))
                    if lacks && self.find_spare(zone, member).await.is_some() =>
                {
                    done_bytes = before;
                }
                // One zone does not keep the others from being rebuilt.
                Err(Stopped::Error(_)) if !lacks && !self.membership.has_failed() => {
                    rebuilt.lost.extend(lost_blocks(zone, lost.blocks));
                }
                Err(Stopped::Error(reason))
                    if self.check_active(member).is_ok() && !self.membership.has_failed() =>
                {
                    done_bytes = before;
                    rebuilt.left_out.push(LeftOut { zone: zone.0, member, reason });
                }
                // What is left may be on another drive.
                Err(Stopped::Error(_))
                    if !self.members.is_active(member) && !self.membership.has_failed() =>
                {
                    done_bytes = before;
                }
                Err(Stopped::Error(why)) => return Err(NoRebuild::Zone { zone: zone.0, why }.into()),
            }
        }
    }

    /// Parts that are lacking of zones that are offline: nothing is done there, but they are no more in sync.
    fn left_offline(&self) -> Vec<LeftOut> {
        let active = self.members.active();
        let zones = self.zones.offline();
        let lacking = zones.keys().flat_map(|zone| {
            each(self.catalog.lost(ZoneIndex(*zone)) & active).map(|member| (*zone, member))
        });
        lacking.map(|(zone, member)| LeftOut { zone, member, reason: NoPart::Offline }).collect()
    }

    async fn rebuild_zone(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        work: &mut Work<'_>,
    ) -> Result<(), Stopped> {
        let zones = Zones::One(physical(zone));
        self.check_waits(zone)?;
        self.check_stuck(zone)?;
        self.let_go(zone).await;
        self.check_stop(member)?;
        self.move_part(zone, member).await?;
        self.check_stop(member)?;
        self.on_member(member, Command::Reset { zones }).await?;
        self.check_stop(member)?;
        self.unburn(zone, member);
        let running = self.zones.running(zone);
        match running {
            // A zone that waits to be opened is opened on this member too, once it is left alone.
            Some(running) if !running.flow.borrow().is_open() => self.rebuilt(zone, member, work).await,
            Some(running) => self.rebuild_running(&running, member, work).await,
            None => self.rebuild_full(zone, member, work).await,
        }
    }

    /// A spare zone for a member's part of a zone, if its own place is worn and there is one.
    async fn find_spare(&self, zone: ZoneIndex, member: usize) -> Option<(Rc<MetaLog>, u32)> {
        let log = self.members.log(member)?;
        let worn = self.part(zone, member).await.is_some_and(|info| is_worn(info.state));
        let place = if worn { log.device.find_free().await } else { None };
        place.map(|place| (log, place))
    }

    /// Has a member's part of a zone, which it lacks and nobody else works on, be in a spare zone from now on if its
    /// own place is worn. The member knows that for good before anything is written there: what is in a place that
    /// nobody has written down would be lost without anybody knowing.
    pub async fn move_part(&self, zone: ZoneIndex, member: usize) -> Result<(), DeviceError> {
        let seat = self.members.seat(member);
        if let Some((log, place)) = self.find_spare(zone, member).await {
            // Of small zones that are used as one some may not be worn: they would take resources of the drive.
            log.device.submit(Command::Reset { zones: Zones::One(physical(zone)) }).await;
            log.device.place(physical(zone), place);
            self.events.note(Event::Moved { member, zone: zone.0, place });
        }
        // A rebuild that was dropped may have left it so.
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

    /// A command for the member under repair. If it fails the zone is left out, or the member taken out.
    async fn on_member(&self, member: usize, command: Command) -> Result<(), Stopped> {
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

    fn check_active(&self, member: usize) -> Result<(), Stopped> {
        // Not another drive in the same place either.
        if !self.members.is_active(member) || self.duty.seat() != Some(self.members.seat(member)) {
            return Err(NoPart::Gone.into());
        }
        Ok(())
    }

    pub fn check_stop(&self, member: usize) -> Result<(), Stopped> {
        self.check_active(member)?;
        if self.duty.is_stopped() || self.membership.has_failed() { Err(Stopped::Again) } else { Ok(()) }
    }

    /// Refuses a zone that waits for a drive: nothing is done there before that is back.
    pub(super) fn check_waits(&self, zone: ZoneIndex) -> Result<(), Stopped> {
        match self.catalog.record(zone).waits {
            0 => Ok(()),
            _ => Err(NoPart::Waits.into()),
        }
    }

    /// Refuses a zone that is being written if a member cannot write it that cannot be done without, and it is not
    /// known that the others, and this one, hold all of it at rest. The next assembly finds out where it ends.
    fn check_stuck(&self, zone: ZoneIndex) -> Result<(), Stopped> {
        let Some((member, running)) = self.zones.stuck(zone).zip(self.zones.running(zone)) else {
            return Ok(());
        };
        match self.layout.policy.uses_zrwa() || running.flow.borrow().is_ahead() {
            true => Err(NoPart::Stuck(member).into()),
            false => Ok(()),
        }
    }

    /// Does without a member that could not write `zone` and was needed there, if that is not so any more.
    fn release_stuck(&self, zone: ZoneIndex) {
        let stuck = self.zones.stuck(zone).filter(|_| !self.members.are_needed(self.live(zone)));
        if let Some(member) = stuck {
            self.zones.unstick(&(zone.0..zone.0 + 1));
            self.part_lost(zone, member, Status::ZoneIsReadOnly.into(), "write");
        }
    }

    /// The members that a part of `zone` is rebuilt from: all others that have theirs.
    fn check_others(&self, zone: ZoneIndex, member: usize) -> Result<u32, Stopped> {
        let others = self.live(zone) & !(1 << member);
        match self.members.are_enough(others) && !self.zones.is_cut(zone) {
            true => Ok(others),
            false => Err(NoPart::TooFewOthers.into()),
        }
    }

    /// Blocks `from..to` of the rows of complete stripes, of one member, from all others; zeros for those
    /// that are lost.
    pub async fn other_rows(
        &self,
        zone: ZoneIndex,
        member: usize,
        Range { start: from, end: to }: Range<u64>,
        lost: &mut Lost,
    ) -> Result<Buf, Stopped> {
        self.power_checked().await;
        let (others, losses) = (self.check_others(zone, member)?, self.members.losses());
        let pending: Vec<_> = each(others)
            .map(|other| {
                let lba = Lba(self.members.start(other, zone).0 + from);
                let buf = self.pool.borrow_mut().take(to - from).freeze();
                (self.members.seat(other), self.members.submit(other, Command::read(lba, buf)))
            })
            .collect();
        let mut found = Rows { from, parts: vec![Buf::default(); self.members.count()] };
        let mut unreadable: BTreeMap<u64, u32> = BTreeMap::new();
        // Why something cannot be read that may be there all the same.
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
            blocks.extend(self.catalog.holes_among(zone, seat.member, from..to));
            for at in blocks.into_iter().filter(|at| !self.is_relocated(zone, seat.member, *at)) {
                *unreadable.entry(at).or_default() |= 1 << seat.member;
            }
        }
        if self.members.losses() != losses {
            // What was read may be of what has been written anew since.
            return Err(Stopped::Again);
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

    /// Blocks of a member's part of a zone of which it cannot read all, one by one; and which it cannot. Takes
    /// note of an `other_error` than that they are unreadable.
    async fn read_singly_from(
        &self,
        zone: ZoneIndex,
        seat: Seat,
        blocks: Range<u64>,
        other_error: &mut Option<DeviceError>,
    ) -> Result<(Buf, Vec<u64>), Stopped> {
        let start = self.members.start(seat.member, zone).0;
        let mut data = BufMut::zeroed((blocks.end - blocks.start) as usize * BLOCK);
        let mut unreadable = Vec::new();
        for (place, at) in (0..).zip(blocks) {
            if self.live(zone) & (1 << seat.member) == 0 {
                // The others may be enough.
                return Err(Stopped::Again);
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

    /// A piece of the stripe of a tail as `decode` gives it: where that fails block by block, and with zeros
    /// for those that are lost.
    async fn decode_singly(
        &self,
        zone: ZoneIndex,
        member: usize,
        piece: Piece,
        lost: &mut Lost,
        decode: impl AsyncFn(Piece) -> Result<Buf, DeviceError>,
    ) -> Result<Buf, Stopped> {
        let losses = self.members.losses();
        // What was read may be of what has been written anew since.
        let as_found = |found| if self.members.losses() == losses { Ok(found) } else { Err(Stopped::Again) };
        if let Ok(found) = decode(piece).await {
            return as_found(found);
        }
        let layout = &self.layout;
        let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
        for from in piece.from..piece.to {
            let single = Piece { from, to: from + 1, ..piece };
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

    /// The most blocks that are read from each member at a time.
    pub(super) fn batch_blocks(&self) -> u64 {
        let limits = (0..self.members.count()).filter_map(|m| self.members.device(m));
        let limits = limits.map(|d| d.geometry().max_transfer_blocks as u64);
        limits.fold(BATCH_BLOCKS, u64::min)
    }

    /// Copies rows `rows` of complete stripes to the member. In a zone with a ZRWA its write pointer
    /// follows, up to the position (half chunks) in `follow`.
    async fn copy_rows(
        &self,
        zone: ZoneIndex,
        member: usize,
        rows: Range<u64>,
        follow: Option<u64>,
        work: &mut Work<'_>,
    ) -> Result<(), Stopped> {
        let chunk = self.layout.chunk_blocks;
        let start = self.members.start(member, zone).0;
        let most = self.batch_blocks();
        let (mut at, end) = (rows.start * chunk, rows.end * chunk);
        while at < end {
            give_way().await;
            // Row by row in a ZRWA: what is written must stay inside it.
            let row_end = if follow.is_some() { (at / chunk + 1) * chunk } else { end };
            let to = (at + most).min(row_end);
            let data = self.other_rows(zone, member, at..to, &mut work.lost).await?;
            self.check_stop(member)?;
            (work.report)(data.len() as u64);
            let content = self.content_of(member, at / chunk);
            // Of a full zone nobody asks for more than the data.
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

    /// A zone that is full, or was finished before.
    async fn rebuild_full(
        self: &Rc<Self>,
        zone: ZoneIndex,
        member: usize,
        work: &mut Work<'_>,
    ) -> Result<(), Stopped> {
        let layout = &self.layout;
        if self.zones.table().info(zone).state != ZoneState::Full {
            // Empty: nothing is lacking.
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
            let piece = Piece { stripe, index, from: 0, to: to.min(layout.chunk_blocks) };
            if piece.to > 0 {
                let none = Parities::default();
                let decode = async |piece: Piece| self.decode(zone, piece, role, tail, &none).await;
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

    /// Writes down that the member has the zone again, and what it lacks of it for good.
    pub(super) async fn rebuilt(
        &self,
        zone: ZoneIndex,
        member: usize,
        work: &Work<'_>,
    ) -> Result<(), Stopped> {
        self.flush_caches(1 << member).await;
        self.check_stop(member)?;
        if self.drive_epoch(member) != work.power_epoch {
            // The drive has lost power since: blocks written by this rebuild may be gone.
            return Err(Stopped::Again);
        }
        self.keep_holes(zone, member, &work.lost.holes).await?;
        // That the part was lost is not to be written down after it was rebuilt.
        self.membership.settled().await;
        self.check_stop(member)?;
        // One of the others may have gone out since everything was copied.
        self.check_waits(zone)?;
        // A checkpoint from now on may forget the record, so it has to say the same. Whatever relies on the
        // member from now on, and is written down, comes behind the record in every log.
        let sequence = self.membership.next_sequence();
        let epoch = self.catalog.change(zone, |record| record.lost &= !(1 << member));
        self.broadcast(Record::Rebuilt { zone: zone.0, epoch, members: 1 << member }, sequence).await;
        self.check_active(member)?;
        self.catalog.unreadable.remove_parts(member, Some(zone.0));
        self.parts_back(member, 1);
        self.release_stuck(zone);
        Ok(())
    }

    /// A zone that is being written.
    async fn rebuild_running(
        self: &Rc<Self>,
        zone: &Rc<Zone>,
        member: usize,
        work: &mut Work<'_>,
    ) -> Result<(), Stopped> {
        let layout = self.layout;
        let zones = Zones::One(physical(zone.index));
        let zrwa = layout.policy.uses_zrwa();
        self.on_member(member, Command::Open { zones, zrwa }).await?;
        let mut row = 0;
        for _ in 0..8 {
            // All but the last complete row: its write pointer might claim too much.
            let settled = (zone.flow.borrow().claimed() / layout.data_chunks()).saturating_sub(1);
            if settled < row + layout.distance {
                break;
            }
            let follow = zrwa.then_some(2 * settled);
            self.copy_rows(zone.index, member, row..settled, follow, work).await?;
            if zone.flow.borrow().has_ended() {
                return Err(Stopped::Again);
            }
            row = settled;
        }
        self.quiesce(zone).await;
        let result = self.join(zone, member, row, work).await;
        self.resume(zone);
        result
    }

    /// The rest of a zone that is held still.
    async fn join(
        self: &Rc<Self>,
        zone: &Rc<Zone>,
        member: usize,
        row: u64,
        work: &mut Work<'_>,
    ) -> Result<(), Stopped> {
        let layout = self.layout;
        if zone.flow.borrow().is_over() {
            // One that could not be finished stays so until it is reset, or found again.
            let ends = zone.flow.borrow().has_ended() || self.zones.is_busy(zone.index);
            return Err(if ends { Stopped::Again } else { NoPart::TooFewOthers.into() });
        }
        self.check_stuck(zone.index)?;
        let tail = zone.flow.borrow().complete();
        self.make_safe(zone, tail).await?;
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        // As far as the write pointer may go, with the member as one that shows the tail among the others.
        let (zrwa, position) = (layout.policy.uses_zrwa(), layout.policy.position(&layout, member, tail));
        self.copy_rows(zone.index, member, row..stripe, zrwa.then_some(position), work).await?;
        layout.policy.show_with(self, zone, member, tail).await;
        // First the log: with the policy `inplace` it voids parity that was logged before.
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
        self.check_stop(member)?;
        self.rebuilt(zone.index, member, work).await?;
        let mut flow = zone.flow.borrow_mut();
        flow.join(member, position);
        let limit = self.window(&flow, self.live(zone.index));
        flow.set_limit(limit);
        Ok(())
    }

    /// The member's part of a partial stripe: data, and the slots that a tail there needs.
    async fn copy_tail(
        self: &Rc<Self>,
        zone: &Zone,
        member: usize,
        (stripe, covered): (u64, u64),
        work: &mut Work<'_>,
    ) -> Result<(), Stopped> {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        if let Role::Data(index) = layout.role(member, stripe)
            && covered > index * chunk
        {
            let to = (covered - index * chunk).min(chunk);
            let piece = Piece { stripe, index, from: 0, to };
            let tail = stripe * layout.stripe_blocks() + covered;
            let role = Role::Data(index);
            let decode = async |piece: Piece| {
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
                Place::Row(row) => {
                    let content = inplace::version_of(stripe, row, index);
                    let at = row * chunk + from;
                    self.on_member(member, self.write_of(member, zone.index, at, data, content, false))
                        .await?;
                }
                Place::MetaLog => {
                    let epoch = zone.flow.borrow().epoch();
                    let (index, from) = (index as u32, from as u32);
                    let record = ParityRecord { zone: zone.index.0, epoch, stripe, index, from, data };
                    self.log_on(member, Record::Parity(record)).await?;
                }
            }
        }
        Ok(())
    }

    async fn log_on(&self, member: usize, record: Record) -> Result<(), Stopped> {
        let sequence = self.membership.next_sequence();
        match self.members.log(member) {
            Some(log) => Ok(log.append(record, sequence).await.result?),
            None => Err(NoPart::Gone.into()),
        }
    }

    /// The member's copy of the record of a tail, if it has one.
    async fn copy_log(&self, zone: &Zone, member: usize, record: TailRecord) -> Result<(), Stopped> {
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
        let Place::Row(row) = place else { return self.log_on(member, record).await };
        let sequence = self.membership.next_sequence();
        let block = zone.flow.borrow().log_block();
        let lba = self.members.start(member, zone.index).0 + row * layout.chunk_blocks + block;
        let origin = Origin { array: self.array, member: member as u32, lba };
        let command = Command::write(Lba(lba), record.encode(origin, sequence), false);
        self.on_member(member, command).await
    }
}
