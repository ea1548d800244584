//! The running array: its components, and the operations that take several of them.
//!
//! Each component owns its state: `members` the drives and the access to them, `membership` the superblock and its
//! pending changes, `zone_records` the persistent state of the zones, `zones` the running zones. The operations are in
//! the modules beside this file: reads and writes in `zone`, rebuild and replacement in `maintain`, crash recovery in
//! `recover`, and the parts of these that depend on the policy in `policy::run`.

use crate::{
    adapt::spare::SpareZoneDevice,
    buf::{Buf, BufPool},
    device::{Command, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice},
    format::{
        Uuid,
        record::{Checkpoint, Lacks, Record},
        superblock::Superblock,
    },
    raid::{
        ArrayOptions,
        error::{ArrayError, BadMember, Note},
        events::{Event, Events},
        geometry::{Layout, each, physical},
        journal::{
            log::{LogContext, LogOwner, MetaLog},
            logged::LiveRecords,
        },
        maintain::background::BackgroundJob,
        members::{Members, is_of_zone},
        membership::Membership,
        seat::Seat,
        zone::{
            drain::Drain,
            flow::Zone,
            reader::Readers,
            set::{UnclearPart, ZoneSet},
        },
        zone_records::ZoneRecords,
    },
    runtime::Runtime,
    zone::{ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    rc::{Rc, Weak},
    task::Poll,
};

/// A running array.
pub struct Raid {
    pub runtime: Runtime,
    pub slots: Rc<Slots>,
    pub pool: Rc<RefCell<BufPool>>,
    pub array: Uuid,
    pub layout: Layout,
    /// Geometry of the array.
    pub geometry: Geometry,
    pub behaviour: ArrayOptions,
    /// Whether the array advertises a volatile write cache: a power cut may then lose completed writes.
    may_lose: Cell<bool>,
    pub members: Members,
    pub membership: Membership,
    pub zone_records: ZoneRecords,
    pub zones: ZoneSet,
    pub readers: Readers,
    pub drain: Drain,
    pub background: BackgroundJob,
    pub events: Events,
}

/// Parts of zones that a drive may lose one by one before the drive as a whole is taken out: this number, or an eighth
/// of its zones if that is more.
const MOST_PARTS_LOST: u32 = 16;

impl LogOwner for Raid {
    fn seat(&self, member: usize) -> Seat {
        self.members.seat(member)
    }

    fn is_current(&self, member: usize, log: &MetaLog) -> bool {
        self.members.is_current(member, log)
    }

    fn log_failed(&self, seat: Seat, error: DeviceError) {
        self.member_failed(seat, error, "metadata write");
    }

    fn claimed(&self) {
        self.fence();
    }

    fn contents(&self, generation: u64, live: &LiveRecords) -> (Checkpoint, u64) {
        let records = self.zone_records.records();
        // Zones in doubt. The tail of every other zone has been decided, so that no missing record of it matters.
        let in_doubt = (0..).zip(records.iter()).filter(|(zone, record)| {
            (record.waits != 0 || self.zones.is_offline(ZoneIndex(*zone)))
                && (live.holes || live.incomplete.get(zone) == Some(&record.epoch))
        });
        let incomplete: BTreeSet<u32> = in_doubt.map(|(zone, _)| zone).collect();
        let parity = live.parity.records().into_iter().chain(live.relocated.records());
        let checkpoint = Checkpoint {
            generation,
            incomplete,
            moved: BTreeMap::new(),
            superblock: self.membership.superblock().clone(),
            zones: records.clone(),
            burned: self.zone_records.burned().clone(),
            holes: self.zone_records.bad_blocks().all(),
            parity: parity.collect(),
            tails: live.tails.values().copied().collect(),
        };
        (checkpoint, self.membership.sequence())
    }
}

impl Raid {
    pub fn new(
        runtime: &Runtime,
        superblock: Superblock,
        geometry: Geometry,
        zone_records: ZoneRecords,
        sequence: u64,
        behaviour: ArrayOptions,
    ) -> Rc<Raid> {
        let layout = superblock.layout();
        let zones = zone_records.records().len();
        assert!(zones == geometry.zones as usize, "records of {zones} zones, an array of {}", geometry.zones);
        Rc::new(Raid {
            runtime: runtime.clone(),
            slots: Rc::default(),
            pool: Rc::default(),
            array: superblock.array,
            layout,
            may_lose: Cell::new(geometry.volatile_cache),
            behaviour,
            members: Members::new(layout.members, layout.fewest_members()),
            membership: Membership::new(superblock, sequence),
            zone_records,
            zones: ZoneSet::new(&geometry),
            readers: Readers::default(),
            drain: Drain::default(),
            background: BackgroundJob::default(),
            events: Events::default(),
            geometry,
        })
    }

    /// Whether the array advertises a volatile write cache.
    pub fn may_lose(&self) -> bool {
        self.may_lose.get()
    }

    /// Sets whether the array advertises a volatile write cache: if it does not, every write is acknowledged only when
    /// it is safe.
    pub fn tell_may_lose(&self, may_lose: bool) {
        self.may_lose.set(may_lose);
    }

    /// Creates the log of a drive that is accessed through `device` and holds some parts in spare zones (`moved`, by
    /// zone of the array). `read` is the metadata zone that was read and its generation, 0 if there was none; the new
    /// log continues after it.
    pub fn new_log(
        self: &Rc<Self>,
        member: usize,
        drive: Rc<dyn ZonedDevice>,
        (device, moved): (Rc<dyn ZonedDevice>, BTreeMap<u32, u32>),
        read: (u32, u64),
        live: LiveRecords,
    ) -> Rc<MetaLog> {
        let places = moved.into_iter().map(|(zone, place)| (physical(ZoneIndex(zone)).0, place)).collect();
        let shown = physical(ZoneIndex(self.geometry.zones)).0;
        let device = Rc::new(SpareZoneDevice::new(&self.runtime, device, shown, places));
        assert!(member < self.layout.members, "a log of member {member} of {}", self.layout.members);
        let (array, layout, log_step) = (self.array, self.layout, self.behaviour.log_step);
        let kit = LogContext { array, layout, log_step, slots: self.slots.clone(), pool: self.pool.clone() };
        let this: Weak<Raid> = Rc::downgrade(self);
        MetaLog::new(this, kit, member, (drive, device), read, live)
    }

    /// Starts the log tasks, and the task that logs changes of the membership.
    pub fn start_members(self: &Rc<Self>) {
        self.start_logs();
        self.runtime.spawn(self.clone().keep_membership());
    }

    pub fn start_logs(self: &Rc<Self>) {
        self.members.logs().for_each(|log| self.runtime.spawn(log.run()));
    }

    /// Makes all completed writes safe. Called when no more commands are accepted.
    pub async fn come_to_rest(self: &Rc<Self>) -> Result<(), DeviceError> {
        self.underway_ended().await;
        let flushed = self.clone().flush().await;
        self.pause_zones().await;
        self.membership.settled().await;
        flushed
    }

    /// Waits until no flush, reset or finish is in progress, or the array has failed.
    pub async fn underway_ended(&self) {
        while !self.drain.is_quiet() && !self.membership.has_failed() {
            self.zones.changed.wait().await;
        }
    }

    /// Waits until no command of a running zone is in flight, and pauses submission until each zone is resumed.
    pub async fn pause_zones(&self) -> Vec<Rc<Zone>> {
        let zones = self.zones.all_running();
        for zone in &zones {
            self.quiesce(zone).await;
        }
        zones
    }

    /// Ends all tasks when the reads in progress are complete. After this only commands in flight to drives remain of
    /// the array.
    pub async fn end(&self) {
        self.readers.quiet().await;
        for zone in self.zones.all_running() {
            self.zones.end(zone.index);
            zone.end();
        }
        self.readers.end();
        self.membership.close();
        self.members.logs().for_each(|log| log.end());
    }

    /// Members (bits) that hold their part of `zone`.
    pub fn live(&self, zone: ZoneIndex) -> u32 {
        self.members.active() & !self.zone_records.lost(zone)
    }

    /// Whether `zone` cannot be written any more, since it lacks more parts than parity covers or a member that cannot
    /// be spared cannot write it. Other zones still work, unless the array has failed.
    pub fn has_failed(&self, zone: ZoneIndex) -> bool {
        self.membership.has_failed()
            || !self.members.are_enough(self.live(zone))
            || self.zones.gave_up(zone)
            || self.zones.stuck(zone).is_some()
    }

    /// Copies `data` to a buffer from the pool.
    pub fn copy(&self, data: &[u8]) -> Buf {
        let mut copy = self.pool.borrow_mut().take((data.len() / crate::buf::BLOCK) as u64);
        copy.copy_from_slice(data);
        copy.freeze()
    }

    /// Logs a record on one member.
    pub fn append(&self, member: usize, record: Record) -> Completion {
        match self.members.log(member) {
            Some(log) if self.members.is_active(member) => {
                log.append(record, self.membership.next_sequence())
            }
            _ => Completion::failed(DeviceError::Gone),
        }
    }

    /// Submits `command`, which concerns `zone`, to every member of `mask` and waits; an error costs a member its part
    /// of the zone, or takes it out ([`Raid::part_failed`]).
    pub async fn on_parts(
        &self,
        zone: ZoneIndex,
        mask: u32,
        what: &'static str,
        command: impl Fn(usize) -> Command,
    ) {
        let pending: Vec<_> =
            each(mask).map(|m| (self.members.seat(m), self.members.submit(m, command(m)))).collect();
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.part_failed(zone, seat, error, what);
            }
        }
    }

    /// Flushes the drives of the members in `mask` that have a volatile cache.
    pub async fn flush_caches(&self, mask: u32) {
        let volatile = each(mask)
            .filter(|m| self.members.device(*m).is_some_and(|d| d.geometry().volatile_cache))
            .fold(0, |mask, m| mask | 1 << m);
        let pending: Vec<_> =
            each(volatile).map(|m| (self.members.seat(m), self.members.submit(m, Command::Flush))).collect();
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.member_failed(seat, error, "flush");
            }
        }
    }

    /// Flushes the members in `mask`, and waits until the membership is settled: a member that failed meanwhile may
    /// have writes in its volatile cache only, so the others must have logged first that it is out.
    pub async fn barrier(&self, mask: u32) {
        self.flush_caches(mask).await;
        self.notices_power_loss(mask);
        self.membership.settled().await;
    }

    /// Appends a record to the logs of the members in `mask` and waits for all of them.
    pub async fn append_to(&self, mask: u32, record: Record, sequence: u64) {
        let pending: Vec<_> =
            each(mask).filter_map(|m| Some(self.members.log(m)?.append(record.clone(), sequence))).collect();
        for completion in pending {
            // A member that fails here has been taken out by its log.
            completion.await;
        }
    }

    /// Writes a checkpoint on each member in `mask`, one after the other: each resets a metadata zone, which may turn
    /// out to be worn.
    pub async fn renew_logs(&self, mask: u32) {
        for log in each(mask).filter_map(|member| self.members.log(member)) {
            // A member that fails here has been taken out by its log.
            log.renew().await;
        }
    }

    /// Logs a record on every active member, and waits until it is durable on all that remain.
    pub async fn broadcast(&self, record: Record, sequence: u64) {
        self.append_to(self.members.active(), record, sequence).await;
        self.membership.settled().await;
    }

    /// Records why a member is out.
    pub fn say_out(&self, member: usize, why: Note) {
        self.events.note(Event::Out { member, why: why.clone() });
        self.members.say(member, why);
    }

    /// Takes a member out after an error of its drive. Nothing that relies on this is acknowledged before it has been
    /// logged.
    pub fn member_failed(&self, seat: Seat, error: DeviceError, what: &'static str) {
        if !self.members.is_seated(seat) {
            return;
        }
        self.members.count_write_error(seat.member);
        self.say_out(seat.member, Note::Failed { what, error });
        self.take_out(seat.member);
    }

    /// Handles an error of a command for `zone`: if it concerns this zone only, the member loses its part of the zone;
    /// otherwise the member goes out.
    pub fn part_failed(&self, zone: ZoneIndex, seat: Seat, error: DeviceError, what: &'static str) {
        let member = seat.member;
        if !is_of_zone(error) {
            return self.member_failed(seat, error, what);
        }
        if self.live(zone) & (1 << member) == 0 || self.members.seat(member) != seat {
            return;
        }
        self.members.note_wear(member, error);
        if self.members.are_needed(self.live(zone)) && self.keeps_data(zone, member, error) {
            // Parity does not cover the loss of this part too. The part can still be read, and may be needed to rebuild
            // the others: the zone is stuck (not writable) until the member can be spared.
            if error != Status::UnrecoveredReadError.into() {
                self.members.count_write_error(member);
                self.members.say(member, Note::PartLost { zone: zone.0, what, error });
            }
            self.zones.stick(zone, member);
            return self.zones.wake_one(zone);
        }
        if self.members.are_needed(self.live(zone)) && self.may_keep_data(zone, error) {
            let epoch = self.zone_records.epoch(zone);
            self.zones.doubt_part(UnclearPart { zone, epoch, seat, error, what });
            self.members.note_loss();
            self.membership.announce();
            return self.zones.wake_one(zone);
        }
        self.lose_part(zone, seat, error, what);
    }

    /// Marks a part as lost, or takes its member out if the member has lost many parts.
    fn lose_part(&self, zone: ZoneIndex, seat: Seat, error: DeviceError, what: &'static str) {
        let member = seat.member;
        let most = MOST_PARTS_LOST.max(self.geometry.zones / 8);
        if self.members.parts_lost(member) >= most && self.others_are_whole(member) {
            return self.member_failed(seat, error, what);
        }
        self.members.count_write_error(member);
        self.members.say(member, Note::PartLost { zone: zone.0, what, error });
        self.part_lost(zone, member, error, what);
    }

    /// Whether a member's part of a zone still holds its data after a command has failed with `error`. False for write
    /// errors while the zone is not running, since an assembly has then not carried out its verdict yet.
    fn keeps_data(&self, zone: ZoneIndex, member: usize, error: DeviceError) -> bool {
        let keeps = [Status::ZoneIsReadOnly, Status::WriteFault].map(DeviceError::from).contains(&error);
        // Later errors on a part that is stuck already follow from the first one.
        let is_stuck = self.zones.stuck_members(zone) & (1 << member) != 0;
        let follows = is_stuck && error != Status::ZoneIsOffline.into();
        error == Status::UnrecoveredReadError.into() || (keeps || follows) && self.zones.is_running(zone)
    }

    /// Whether a part may still hold its data after a command has failed with this ambiguous `error`: an explicit
    /// flush, for example, returns Invalid Field both for a read-only zone and for one that has lost its ZRWA.
    fn may_keep_data(&self, zone: ZoneIndex, error: DeviceError) -> bool {
        let is_clear = [Status::ZoneIsReadOnly, Status::WriteFault, Status::ZoneIsOffline];
        !is_clear.map(DeviceError::from).contains(&error) && self.zones.is_running(zone)
    }

    /// Requests the zone state of each unclear part: a read-only part keeps its data, any other is marked as lost.
    /// Called by the task that logs changes of the membership.
    async fn check_unclear_parts(&self) {
        let parts = self.zones.unclear_parts();
        for UnclearPart { zone, epoch, seat, error, what } in &parts {
            let (zone, member) = (*zone, seat.member);
            let info = self.part(zone, member).await;
            let is_stuck = self.zones.stuck_members(zone) & (1 << member) != 0;
            if !is_stuck || self.zone_records.epoch(zone) != *epoch {
                continue;
            }
            if !self.members.is_seated(*seat) {
                self.zones.release(zone, member);
            } else if info.is_some_and(|info| info.state == ZoneState::ReadOnly) {
                self.members.note_wear(member, Status::ZoneIsReadOnly.into());
                self.members.count_write_error(member);
                self.members.say(member, Note::PartLost { zone: zone.0, what, error: *error });
            } else {
                self.zones.release(zone, member);
                self.lose_part(zone, *seat, *error, what);
            }
        }
        self.zones.end_doubt(parts.len());
    }

    /// Waits until it is known which parts of a zone can be read, or the array has failed.
    pub async fn parts_checked(&self, zone: ZoneIndex) {
        while self.zones.is_unclear(zone) && !self.membership.has_failed() {
            self.membership.changed().await;
        }
    }

    /// Marks a member's part of a zone as lost after an error, and has that logged.
    pub fn part_lost(&self, zone: ZoneIndex, member: usize, error: DeviceError, what: &'static str) {
        self.events.note(Event::PartLost { member, zone: zone.0, what, error });
        self.members.count_part_lost(member);
        let epoch = self.zone_records.change(zone, |record| record.lost |= 1 << member);
        self.members.note_loss();
        self.membership.announce_lack(Lacks { zone: zone.0, epoch, members: 1 << member });
        self.zones.wake_one(zone);
    }

    /// Counts parts of zones that a member has regained.
    pub fn parts_back(&self, member: usize, parts: u32) {
        self.members.count_parts_back(member, parts);
        if !self.zone_records.records().iter().any(|zone| zone.lost & (1 << member) != 0) {
            self.members.say(member, Note::Nothing);
        }
    }

    /// Whether the array can do without a member: enough other members are active, and every zone has enough other
    /// parts.
    pub fn can_spare(&self, member: usize) -> bool {
        let others = self.members.active() & !(1 << member);
        self.members.are_enough(others)
            && self.zone_records.records().iter().all(|zone| self.members.are_enough(others & !zone.lost))
    }

    /// Whether all other members are active and lack no part of any zone.
    fn others_are_whole(&self, member: usize) -> bool {
        let others = self.members.active() & !(1 << member);
        let lacking = self.zone_records.records().iter().any(|zone| zone.lost & others != 0);
        others.count_ones() as usize + 1 == self.members.count() && !lacking
    }

    /// Checks that a member is active and can be spared.
    pub fn check_fail(&self, member: usize) -> Result<(), ArrayError> {
        self.members.check(member)?;
        if !self.members.is_active(member) {
            return Err(BadMember::IsOut(member).into());
        }
        if !self.can_spare(member) {
            return Err(BadMember::IsNeeded(member).into());
        }
        Ok(())
    }

    /// As [`crate::array::Array::fail`].
    pub async fn fail(&self, member: usize) -> Result<(), ArrayError> {
        self.check_fail(member)?;
        self.say_out(member, Note::ByOperator);
        self.take_out(member);
        self.membership.settled().await;
        Ok(())
    }

    /// As [`crate::array::Array::probe`]. A single error may be transient: a member goes out if two reports fail.
    pub async fn probe(&self) {
        let report = || Command::Report { first: physical(ZoneIndex(0)), count: 1 };
        let ask = |member| (self.members.seat(member), self.members.submit(member, report()));
        let asked: Vec<_> = each(self.members.active()).map(ask).collect();
        for (seat, first) in asked {
            let first = first.await.result;
            if first.is_ok() || !self.members.is_seated(seat) {
                continue;
            }
            let again = self.members.submit(seat.member, report()).await.result;
            if let Err(error) = again
                && !is_of_zone(error)
                && self.can_spare(seat.member)
            {
                self.member_failed(seat, error, "zone report");
            }
        }
    }

    /// Takes a member out, and has that logged.
    pub fn take_out(&self, member: usize) {
        self.members.take_out(member);
        self.zone_records.unreadable.remove_parts(member, None);
        self.wait_for(member);
        // While a drive is taking over, its predecessor can become the member again.
        if self.drain.handing_over() != Some(member) {
            self.fail_without_enough();
        }
        self.membership.announce();
        self.zones.changed.open();
        self.zones.wake();
    }

    /// Marks the array as failed if more members are out than parity covers.
    pub fn fail_without_enough(&self) {
        if !self.members.are_enough(self.members.active()) {
            if !self.membership.has_failed() {
                self.events.note(Event::ArrayFailed);
            }
            self.membership.fail();
        }
    }

    /// The error of an array that has failed: fenced, or too many members out.
    pub fn too_many_failed(&self) -> ArrayError {
        match self.membership.is_fenced() {
            true => ArrayError::Fenced,
            false => ArrayError::Failed(self.members.notes(u32::MAX)),
        }
    }

    /// As [`crate::array::Array::check_fence`].
    pub async fn check_fence(&self) -> Result<(), ArrayError> {
        if self.membership.is_fenced() {
            return Err(ArrayError::Fenced);
        }
        // Members that are out are checked only if the array has failed: their drives may never answer.
        let (failed, active) = (self.membership.has_failed(), self.members.active());
        let asked = (0..self.members.count()).filter(|member| failed || active & (1 << member) != 0);
        let logs: Vec<_> = asked.filter_map(|member| self.members.log(member)).collect();
        let check = |log: Rc<MetaLog>| async move {
            // A log that has been replaced meanwhile is no evidence.
            if log.is_foreign().await && self.members.logs().any(|other| Rc::ptr_eq(&other, &log)) {
                self.fence();
            }
        };
        // Concurrently, and only until one shows a claim: a drive that does not answer does not delay the others.
        let mut checks: Vec<_> = logs.into_iter().map(|log| Box::pin(check(log))).collect();
        poll_fn(|context| {
            checks.retain_mut(|check| check.as_mut().poll(context).is_pending());
            match checks.is_empty() || self.membership.is_fenced() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        if self.membership.is_fenced() { Err(ArrayError::Fenced) } else { Ok(()) }
    }

    /// Takes all members out, since another host has assembled the array. Outstanding commands fail.
    fn fence(&self) {
        if self.membership.fence() {
            self.events.note(Event::Fenced);
            for member in each(self.members.active()) {
                self.say_out(member, Note::Fenced);
                self.members.take_out(member);
            }
            self.membership.announce();
            self.zones.changed.open();
            self.zones.wake();
        }
    }

    /// Marks the zones that lack too many parts without `member`, which has just gone out, as waiting for it: they are
    /// not written any more, so its parts are still valid when it returns.
    fn wait_for(&self, member: usize) {
        let (bit, others, floor) = (1 << member, self.members.active(), self.membership.superblock().floor);
        if !self.members.are_enough(others) {
            return;
        }
        self.zone_records.change_all(|zone, record| {
            let enough = self.members.are_enough(others & !record.lost);
            if enough || record.lost & bit != 0 || record.resetting || self.zones.is_empty(zone) {
                return;
            }
            record.wait_for(bit, floor);
            self.membership.note_waits();
        });
    }

    /// Zone report of a member's part of a zone; `None` if the drive does not answer.
    pub async fn part(&self, zone: ZoneIndex, member: usize) -> Option<ZoneInfo> {
        for _ in 0..2 {
            let report = Command::Report { first: physical(zone), count: 1 };
            if let Some(info) = self.members.submit(member, report).await.zones.first() {
                return Some(*info);
            }
        }
        None
    }

    /// Marks members as worn that have lost parts in read-only or offline zones: the error of a command does not always
    /// show it.
    async fn look_for_wear(&self, lost: &[Lacks]) {
        for (zone, member) in lost.iter().flat_map(|lacks| each(lacks.members).map(|m| (lacks.zone, m))) {
            let seat = self.members.seat(member);
            let part = self.part(ZoneIndex(zone), member).await;
            if self.members.is_seated(seat) && part.is_some_and(|info| is_worn(info.state)) {
                self.members.set_worn(member, true);
            }
        }
    }

    /// Task: logs lost parts and changes of the membership, one batch after the other.
    pub async fn keep_membership(self: Rc<Self>) {
        loop {
            let announced = self.membership.announced();
            let mut lost = Vec::new();
            while self.membership.is_pending() {
                // The failure may be due to another host that has assembled the array.
                if self.check_fence().await.is_err() {
                    break;
                }
                // A member that becomes suspect, or a part that becomes unclear, during a check is checked before its
                // announcement counts as logged.
                while self.members.suspects() != 0 || self.zones.has_unclear_parts() {
                    self.check_power().await;
                    self.check_unclear_parts().await;
                }
                let (begun, active) = (self.membership.begin(), self.members.active());
                for lacks in self.membership.take_lacks() {
                    lost.push(lacks);
                    let sequence = self.membership.next_sequence();
                    self.append_to(active, Record::Lacks(lacks), sequence).await;
                }
                let event = self.membership.next_sequence();
                let superblock = self.membership.change(|superblock| {
                    superblock.event = event;
                    for (m, member) in superblock.members.iter_mut().enumerate() {
                        member.active = active & (1 << m) != 0;
                    }
                    superblock.clone()
                });
                match self.membership.take_waits() {
                    // Only checkpoints record the members that zones wait for.
                    true => self.renew_logs(active).await,
                    false => self.append_to(active, Record::Superblock(Box::new(superblock)), event).await,
                }
                if self.membership.end(event, begun) {
                    self.members.settle_epochs();
                    self.events.note(Event::Settled { event, active });
                }
            }
            self.membership.tell();
            self.zones.wake();
            if self.membership.is_closed() {
                return;
            }
            if !lost.is_empty() {
                self.look_for_wear(&lost).await;
                self.membership.tell();
            }
            announced.await;
        }
    }
}
