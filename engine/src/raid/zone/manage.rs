//! Zone management and flush: atomic with respect to crashes, by intent records in the metadata logs.
//!
//! A reset is logged on every member before the first member's zone is reset, and again when the last one has been;
//! recovery completes a reset that was logged. A finish logs the tail first, since the write pointers of finished zones
//! do not show it. Then the parity of the partial stripe is written in the place of its full parity, as if the rest of
//! the data were zeros, because the slots are lost with the ZRWA.

use crate::{
    device::{Command, Completion, DeviceError, Done, Status, Zones},
    format::record::Record,
    raid::{
        geometry::{each, physical},
        members::is_of_zone,
        parts::Raid,
        zone::flow::Zone,
    },
    zone::{ZoneIndex, ZoneState, is_worn},
};
use std::{ops::Range, rc::Rc};

impl Raid {
    /// Runs `future`, a flush, reset or finish, as a task, and completes the command with its result.
    pub fn run_async(
        self: &Rc<Self>,
        future: impl Future<Output = Result<(), DeviceError>> + 'static,
    ) -> Completion {
        let (completer, completion) = self.slots.pair();
        self.drain.enter();
        let raid = self.clone();
        self.runtime.spawn(async move {
            let result = future.await;
            raid.drain.leave();
            raid.zones.changed.open();
            completer.complete(Done { result, ..Done::ok() });
        });
        completion
    }

    fn check_failed(&self) -> Result<(), DeviceError> {
        if self.membership.has_failed() { Err(Status::InternalError.into()) } else { Ok(()) }
    }

    fn check_zone(&self, zone: ZoneIndex) -> Result<(), DeviceError> {
        if self.has_failed(zone) { Err(Status::InternalError.into()) } else { Ok(()) }
    }

    /// Makes all blocks safe that are complete now.
    ///
    /// # Errors
    /// Internal Error, if the array has failed, or a zone with complete blocks that are not safe. For a failed zone, all
    /// flushes return it that have begun before the first of them ends; later ones cover the other zones only.
    pub fn flush(self: Rc<Self>) -> impl Future<Output = Result<(), DeviceError>> {
        let number = self.zones.begin_flush();
        self.flush_as(number)
    }

    async fn flush_as(self: Rc<Self>, number: u64) -> Result<(), DeviceError> {
        let zones = self.zones.all_running();
        let tails: Vec<_> = zones.iter().map(|zone| zone.flow.borrow().complete()).collect();
        for (zone, tail) in zones.iter().zip(&tails) {
            // Mark all zones before waiting for the first.
            zone.flow.borrow_mut().want(*tail);
        }
        let (mut result, mut lost) = (Ok(()), Vec::new());
        for (zone, tail) in zones.iter().zip(tails) {
            let made = self.make_safe(zone, tail).await;
            if made.is_err() && zone.flow.borrow().loss_reported.is_none_or(|last| number <= last) {
                lost.push(zone);
                result = made;
            }
        }
        for zone in lost {
            zone.flow.borrow_mut().loss_reported.get_or_insert(self.zones.flushes());
        }
        // Data is safe only when the logs show which members are out, and a failed array does not log that.
        self.check_failed().and(result)
    }

    /// Resets `zones`, which are marked busy.
    pub async fn reset(self: Rc<Self>, zones: Range<u32>) -> Result<(), DeviceError> {
        let result = self.reset_busy(zones.clone()).await;
        self.zones.end_busy(&zones);
        self.give_up_frozen(zones);
        result
    }

    async fn reset_busy(self: &Rc<Self>, zones: Range<u32>) -> Result<(), DeviceError> {
        let running = self.zones.running_among(zones.clone());
        for zone in &running {
            self.freeze(zone).await;
        }
        self.stop_rebuild(zones.clone()).await;
        self.check_failed()?;
        let only = zones.clone().nth(1).is_none().then_some(ZoneIndex(zones.start));
        let doubtful = only.filter(|zone| self.zones.is_offline(*zone));
        if let Some(zone) = doubtful
            && !self.is_usable(zone).await
        {
            return Err(Status::InvalidZoneStateTransition.into());
        }
        let is_written = |zone: &u32| {
            let record = self.zone_records.record(ZoneIndex(*zone));
            self.zones.state(ZoneIndex(*zone)) != ZoneState::Empty
                || record.lost != 0
                || record.resetting
                || running.iter().any(|running| running.index.0 == *zone)
        };
        let written: Vec<u32> = zones.clone().filter(is_written).collect();
        let epoch = self.membership.next_sequence();
        self.zone_records.change_each(zones.clone(), |_, record| {
            assert!(record.epoch < epoch, "epoch {epoch} follows epoch {} of a zone", record.epoch);
            (record.epoch, record.resetting, record.finished, record.waits) = (epoch, true, None, 0);
        });
        let (first, count) = (zones.start, zones.end - zones.start);
        self.broadcast(Record::Reset { first, count }, epoch).await;
        self.check_failed()?;
        let mut dead = Vec::new();
        for batch in written.chunks(64) {
            dead.extend(self.reset_members(batch).await);
        }
        self.finish_reset(zones, epoch, &dead).await?;
        for zone in &running {
            self.refuse_queued(zone, Status::ZoneInvalidWrite);
            self.end_zone(zone);
        }
        for zone in written {
            let zone = ZoneIndex(zone);
            match self.zones.end_offline(zone) {
                true => self.forget_doubt(zone),
                false => self.zones.table_mut().reset(zone)?,
            }
        }
        // The zone lacks too many parts now: it was reset, and cannot be written any more.
        match only.is_some_and(|zone| self.has_failed(zone)) {
            true => Err(Status::InvalidZoneStateTransition.into()),
            false => Ok(()),
        }
    }

    /// Whether enough members can write an offline zone after a reset. Moves worn parts to spare zones.
    async fn is_usable(&self, zone: ZoneIndex) -> bool {
        let mut candidates = 0u32;
        for member in each(self.members.active()) {
            let is_sound = self.part(zone, member).await.is_some_and(|info| !is_worn(info.state));
            candidates |= ((is_sound || self.find_spare(zone, member).await.is_some()) as u32) << member;
        }
        if !self.members.are_enough(candidates) {
            return false;
        }
        // A worn part is logged as lost first: otherwise the spare zone in its place would count as the member's data.
        for member in each(self.live(zone)) {
            if self.part(zone, member).await.is_some_and(|info| is_worn(info.state)) {
                self.part_lost(zone, member, Status::ZoneIsOffline.into(), "reset zone");
            }
        }
        self.membership.settled().await;
        let mut usable = 0u32;
        for member in each(self.members.active()) {
            // If the move fails, the member is out.
            _ = self.move_part(zone, member).await;
            let is_usable = self.part(zone, member).await.is_some_and(|info| !is_worn(info.state));
            usable |= (is_usable as u32) << member;
        }
        self.members.are_enough(usable)
    }

    /// Marks a zone that was offline, and has been reset, as empty.
    fn forget_doubt(&self, zone: ZoneIndex) {
        self.forget_logged(zone, u64::MAX);
        self.load_as(zone, ZoneState::Empty, 0);
    }

    /// Carries out a logged reset on the members. Returns the parts that could not be reset: zone, member and error.
    pub async fn reset_members(&self, zones: &[u32]) -> Vec<(u32, usize, DeviceError)> {
        let mut pending = Vec::new();
        for member in each(self.members.active()) {
            for zone in zones {
                let zones = Zones::One(physical(ZoneIndex(*zone)));
                pending.push((
                    *zone,
                    self.members.seat(member),
                    self.members.submit(member, Command::Reset { zones }),
                ));
            }
        }
        let mut dead = Vec::new();
        for (zone, seat, completion) in pending {
            match completion.await.result {
                Ok(()) => {}
                Err(error) if is_of_zone(error) => dead.push((zone, seat.member, error)),
                Err(error) => self.member_failed(seat, error, "reset zone"),
            }
        }
        dead
    }

    /// Logs that a reset is complete, and marks the parts `dead` as lost: see [`Raid::reset_members`].
    pub async fn finish_reset(
        &self,
        zones: Range<u32>,
        epoch: u64,
        dead: &[(u32, usize, DeviceError)],
    ) -> Result<(), DeviceError> {
        let (first, count) = (zones.start, zones.end - zones.start);
        // A member that failed the reset still holds the old data: it has to be logged as out before any record, even a
        // checkpoint, shows that the reset is complete.
        self.membership.settled().await;
        self.check_failed()?;
        let sequence = self.membership.next_sequence();
        let is_back = |zone: u32, member: usize| {
            let lacked = self.zone_records.record(ZoneIndex(zone)).lost & (1 << member) != 0;
            lacked && !dead.iter().any(|(of, dead, _)| (*of, *dead) == (zone, member))
        };
        let parts_of = |member: usize| zones.clone().filter(|zone| is_back(*zone, member)).count() as u32;
        let back: Vec<_> = each(self.members.active()).map(|member| (member, parts_of(member))).collect();
        self.zone_records.change_each(zones.clone(), |zone, record| {
            assert!(
                record.epoch == epoch && record.resetting,
                "zone {} was changed during its reset",
                zone.0
            );
            record.resetting = false;
            record.lost = 0;
        });
        self.zones.unstick(&zones);
        self.forget_burned(zones.clone());
        self.forget_bad_blocks(zones);
        // Lost parts are logged before the end of the reset, with higher sequence numbers: such a member holds data of
        // the epoch before.
        for (zone, member, error) in dead {
            self.part_lost(ZoneIndex(*zone), *member, *error, "reset zone");
        }
        for (member, parts) in back.into_iter().filter(|(_, parts)| *parts > 0) {
            self.parts_back(member, parts);
        }
        self.membership.settled().await;
        self.broadcast(Record::ResetDone { first, count, epoch }, sequence).await;
        self.check_failed()
    }

    /// Finishes one zone, which is marked busy.
    pub async fn finish(self: Rc<Self>, zone: ZoneIndex) -> Result<(), DeviceError> {
        let result = self.finish_busy(zone).await;
        let zones = zone.0..zone.0 + 1;
        self.zones.end_busy(&zones);
        self.give_up_frozen(zones);
        result
    }

    /// Returns errors for the writes of zones that are frozen although their reset or finish has failed. A zone that
    /// was not open yet has no task that would do so.
    fn give_up_frozen(&self, zones: Range<u32>) {
        for zone in self.zones.running_among(zones) {
            if zone.flow.borrow().frozen {
                self.give_up(&zone);
            }
        }
    }

    async fn finish_busy(self: &Rc<Self>, index: ZoneIndex) -> Result<(), DeviceError> {
        self.check_zone(index)?;
        let running = self.zones.running(index);
        if let Some(zone) = &running {
            self.freeze(zone).await;
        }
        self.stop_rebuild(index.0..index.0 + 1).await;
        self.check_zone(index)?;
        // The zone may have become full in the meantime: then it is finished.
        let ended = match &running {
            Some(zone) => zone.flow.borrow().has_ended(),
            None => self.zones.state(index) == ZoneState::Full,
        };
        if ended {
            return Ok(());
        }
        let tail_blocks = running.as_ref().map_or(0, |zone| zone.flow.borrow().complete());
        if let Some(zone) = running.as_ref().filter(|_| tail_blocks > 0) {
            self.prove_data(zone).await;
        }
        self.barrier(self.live(index)).await;
        self.check_zone(index)?;
        let epoch = self.zone_records.change(index, |record| record.finished = Some(tail_blocks));
        let sequence = self.membership.next_sequence();
        self.broadcast(Record::Finish { zone: index.0, epoch, tail_blocks }, sequence).await;
        let finished = match self.check_zone(index) {
            Ok(()) => self.finish_members(index, running.as_deref()).await,
            failed => failed,
        };
        if let Some(zone) = &running {
            finished?;
            self.refuse_queued(zone, Status::ZoneIsFull);
            self.end_zone(zone);
        }
        // A zone without data is full even if its members could not be finished: the logged finish makes it so.
        self.zones.table_mut().finish(index)?;
        finished
    }

    /// Carries out a logged finish on the members; `zone`, if it is running, is quiesced.
    pub async fn finish_members(
        self: &Rc<Self>,
        index: ZoneIndex,
        zone: Option<&Zone>,
    ) -> Result<(), DeviceError> {
        if let Some(zone) = zone {
            self.layout.policy.promote(self, zone).await;
        }
        self.check_zone(index)?;
        let zones = Zones::One(physical(index));
        self.on_parts(index, self.live(index), "finish zone", |_| Command::Finish { zones }).await;
        self.clear_lost(index).await;
        self.notices_power_loss(self.live(index));
        self.membership.settled().await;
        self.check_zone(index)
    }
}
