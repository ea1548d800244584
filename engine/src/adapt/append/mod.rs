//! Device adapter: zones that are written in order, and stored by zone appends, which land in any order.
//!
//! NVMe promises no order among commands in flight, so a zone that is written at its write pointer takes one write at a
//! time. Any number of appends may be in flight, and the drive reports where they have landed. [`AppendDevice`] is a
//! device whose zones are written in order by its user, and filled by appends on the drive below: it keeps the place of
//! each block, and reads it from there. It is an ordinary zoned device without a ZRWA and without metadata.
//!
//! - *Groups.* The blocks of a zone that are in flight at once belong to one group, so the groups are stored in order.
//! - *Order.* A write completes when all earlier ones in its zone have. So the write pointer that recovery finds after
//!   a crash, the first missing block of the zone, is not below any completed write ([`mod@judge`]). A zone in which a
//!   write has failed takes no other until it is reset.
//! - *Room.* Blocks that have landed beyond that write pointer are *void*, and take up room. Therefore the capacity of
//!   a zone is smaller than that of the drive's zone by a *reserve*. The blocks in flight, without those of the oldest
//!   append, never exceed the unused part of the reserve.
//! - *Sessions.* The writes of one process to a zone, from the write pointer that it found on, are a session. The
//!   metadata of each block (its *mark*) names the start of its session.
//! - *Doubt.* If some of the last blocks cannot be read, the write pointer is not certain. Such a zone is reported
//!   without a write pointer ([`UNKNOWN_WP`]) and takes no writes until it is reset; blocks that can be found in it can
//!   be read. The same holds for a zone whose marks cannot be read at all.
//!
//! The first zones of a drive may be passed through; they are written one command at a time. So are all zones if groups
//! have one block, which needs neither appends nor metadata.

pub mod judge;
pub mod mark;
pub mod ranks;

use crate::{
    adapt::sequence::Sequencer,
    buf::{BLOCK, Buf, BufMut, BufPool},
    device::{
        Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones,
    },
    runtime::{Gate, Runtime},
    zone::{Lba, UNKNOWN_WP, ZoneIndex, ZoneInfo, ZoneState},
};
use judge::{AppendRecovery, judge};
use mark::{AppendMark, BlockContent, MARK_BYTES, MarkOwner};
use ranks::{AppendGroup, BlockPosition};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    ops::Range,
    rc::{Rc, Weak},
};

/// Recommended size in bytes of the cache of groups that are not being written.
pub const GROUPS_BYTES: usize = 64 << 20;

/// Reserve of a zone: this fraction (1/n) of its capacity.
const RESERVE_SHARE: u64 = 64;
/// Minimum of the reserve, in blocks, unless that is more than a quarter of the capacity.
const LEAST_RESERVE_BLOCKS: u64 = 8;

/// Options of [`AppendDevice`].
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Blocks of a group, a power of two.
    pub group_blocks: u64,
    /// Number of first zones that are passed through: they differ from those of the drive only in capacity.
    pub plain_zones: u32,
    /// UUID of the member, part of the owner of all blocks ([`MarkOwner`]).
    pub member: [u8; 16],
    /// Size in bytes of the cache of groups that are not being written.
    pub groups_bytes: usize,
}

/// A drive whose zones are filled by appends. Commands that still wait when it is dropped are never submitted.
pub struct AppendDevice(Rc<AppendInner>);

struct AppendInner {
    device: Rc<dyn ZonedDevice>,
    /// Device for the zones that are passed through.
    plain: Sequencer,
    plain_zones: u32,
    runtime: Runtime,
    slots: Rc<Slots>,
    geometry: Geometry,
    group_blocks: u64,
    member: [u8; 16],
    zones: RefCell<Vec<AppendZoneState>>,
    groups: RefCell<GroupCache>,
    /// Groups that are being loaded, by zone and first block.
    loading: RefCell<BTreeMap<(u32, u64), Rc<Gate>>>,
    /// Lanes: one for each zone with commands in flight. They are reused.
    lanes: RefCell<Vec<Rc<AppendLane>>>,
    pool: RefCell<BufPool>,
}

/// State of a zone.
#[derive(Default)]
struct AppendZoneState {
    /// Incremented when the zone is reset or finished, which invalidates earlier reads of its marks.
    life: u64,
    /// `None` if the zone is full, or its end is not known yet.
    session: Option<Session>,
}

/// The writes of this process to a zone. Blocks are counted from the start of the zone.
#[derive(Default)]
struct Session {
    /// First block of the session.
    from: u64,
    /// Number of void blocks of the drive's zone when the session began.
    void: u64,
    /// End of the submitted blocks.
    next: u64,
    /// End of the blocks that have landed, in order.
    landed: u64,
    /// A write has failed: the zone takes no more.
    failed: bool,
    /// The end of the zone is not certain: it takes no writes.
    in_doubt: bool,
    /// The group that is being written.
    group: Option<AppendGroup>,
}

/// Cache of groups that are not being written; the least recently used ones are dropped first.
#[derive(Default)]
struct GroupCache {
    /// Counts uses.
    clock: u64,
    bytes: usize,
    most_bytes: usize,
    /// By zone and first block, with the time of the last use.
    held: BTreeMap<(u32, u64), (u64, AppendGroup)>,
    /// The same groups by the time of the last use.
    used: BTreeMap<u64, (u32, u64)>,
}

/// Queue of the commands of one zone, with those in flight.
#[derive(Default)]
struct AppendLane {
    /// The zone; `None` if the lane is idle.
    zone: Cell<Option<ZoneIndex>>,
    flights: RefCell<VecDeque<AppendFlight>>,
    waiting: RefCell<VecDeque<(Command, Completer)>>,
    /// Number of commands in flight.
    count: Cell<usize>,
    /// Blocks of these commands.
    blocks: Cell<u64>,
    /// Blocks of the oldest of them.
    oldest_blocks: Cell<u64>,
    /// A command for the zone (not a write) is in flight, which excludes all others.
    alone: Cell<bool>,
    /// The end of the zone has to be found before anything is submitted.
    looking: Cell<bool>,
    /// Error of a part of the oldest write, of which other parts are in flight.
    failed: Cell<Option<DeviceError>>,
    begun: Gate,
}

/// A command in flight.
struct AppendFlight {
    completion: Completion,
    what: AppendFlightKind,
}

enum AppendFlightKind {
    /// `count` blocks of a write from block `from` on; with the completer and the buffer of the write if they are its
    /// last ones.
    Blocks { from: u64, count: u64, owner: Option<(Completer, Buf)> },
    /// A command for the zone, other than a write or a reset.
    Zone(Completer),
    /// A reset of the zone.
    Reset(Completer),
}

impl AppendDevice {
    /// Wraps `device`; `None` if [`AppendDevice::geometry_of`] is. `runtime` runs a task for each zone that is in use
    /// at the same time.
    pub fn new(runtime: &Runtime, device: Rc<dyn ZonedDevice>, usage: Usage) -> Option<AppendDevice> {
        let Usage { group_blocks, plain_zones, member, groups_bytes } = usage;
        let geometry = AppendDevice::geometry_of(device.geometry(), group_blocks)?;
        let zones = (0..geometry.zones).map(|_| AppendZoneState::default()).collect();
        Some(AppendDevice(Rc::new(AppendInner {
            plain: Sequencer::new(runtime, device.clone()),
            device,
            plain_zones,
            runtime: runtime.clone(),
            slots: Rc::default(),
            geometry,
            group_blocks,
            member,
            zones: RefCell::new(zones),
            groups: RefCell::new(GroupCache { most_bytes: groups_bytes, ..GroupCache::default() }),
            loading: RefCell::default(),
            lanes: RefCell::default(),
            pool: RefCell::default(),
        })))
    }

    /// Geometry of a drive that is wrapped. `None` if it cannot be: the group size is no power of two, zones are too
    /// large, or groups have several blocks and the drive has no zone append, or too little metadata for marks.
    pub fn geometry_of(drive: &Geometry, group_blocks: u64) -> Option<Geometry> {
        let capacity = drive.zone_capacity_blocks;
        let reserve = match group_blocks {
            1 => 0,
            _ => (capacity / RESERVE_SHARE).max(LEAST_RESERVE_BLOCKS).min(capacity / 4),
        };
        let possible = group_blocks.is_power_of_two()
            && capacity <= u32::MAX as u64
            && (group_blocks == 1 || drive.max_append_blocks > 0 && drive.oob_bytes as usize >= MARK_BYTES);
        possible.then(|| Geometry {
            zone_capacity_blocks: capacity - reserve,
            zrwa: None,
            oob_bytes: 0,
            max_append_blocks: 0,
            ..drive.clone()
        })
    }
}

impl ZonedDevice for AppendDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.0.device.power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        self.0.submit(command)
    }

    fn drive_id(&self) -> crate::device::DriveId {
        self.0.device.drive_id()
    }
}

impl AppendInner {
    fn submit(self: &Rc<Self>, command: Command) -> Completion {
        let zone = match &command {
            Command::Read { lba, .. } | Command::Write { lba, .. } => self.geometry.locate(*lba).0,
            Command::Append { zone, .. }
            | Command::Open { zones: Zones::One(zone), .. }
            | Command::Close { zones: Zones::One(zone) }
            | Command::Finish { zones: Zones::One(zone) }
            | Command::Reset { zones: Zones::One(zone) } => *zone,
            Command::Report { first, count } => {
                let (first, count) = (*first, *count);
                let (completer, completion) = self.slots.pair();
                let this = self.clone();
                self.runtime.spawn(async move {
                    let done = match this.report(first, count).await {
                        Ok(zones) => Done { zones, ..Done::ok() },
                        Err(error) => Done::error(error),
                    };
                    completer.complete(done);
                });
                return completion;
            }
            Command::FlushZrwa { .. } => return Completion::failed(Status::InvalidField),
            Command::Flush => return self.device.submit(command),
            // A command for all zones at once: their state is not known any more.
            _ => {
                (0..self.geometry.zones).for_each(|zone| self.end_life(ZoneIndex(zone)));
                return self.device.submit(command);
            }
        };
        if zone.0 < self.plain_zones || zone.0 >= self.geometry.zones {
            return self.plain.submit(command);
        }
        match command {
            Command::Read { lba, data, oob } => self.read(zone, self.geometry.locate(lba).1, data, oob),
            command => self.queue(zone, command),
        }
    }

    /// Appends a command to the lane of its zone.
    fn queue(self: &Rc<Self>, zone: ZoneIndex, command: Command) -> Completion {
        let (completer, completion) = self.slots.pair();
        let lane = self.lane(zone);
        lane.waiting.borrow_mut().push_back((command, completer));
        lane.zone.set(Some(zone));
        self.pump(&lane, zone);
        lane.begun.open();
        completion
    }

    /// The lane of `zone`, or an idle or new one.
    fn lane(self: &Rc<Self>, zone: ZoneIndex) -> Rc<AppendLane> {
        let mut lanes = self.lanes.borrow_mut();
        let find = |wanted| lanes.iter().find(|lane| lane.zone.get() == wanted);
        if let Some(lane) = find(Some(zone)).or_else(|| find(None)) {
            return lane.clone();
        }
        let lane = Rc::new(AppendLane::default());
        lanes.push(lane.clone());
        self.runtime.spawn(serve(lane.clone(), Rc::downgrade(self)));
        lane
    }

    /// Submits as many of the waiting commands as possible; if none waits or is in flight, the lane becomes idle.
    fn pump(&self, lane: &AppendLane, zone: ZoneIndex) {
        while !lane.looking.get() && !lane.alone.get() {
            let Some((command, completer)) = lane.waiting.borrow_mut().pop_front() else {
                if lane.count.get() == 0 {
                    lane.failed.set(None);
                    lane.zone.set(None);
                }
                return;
            };
            let kept = match command {
                Command::Write { lba, data, oob, fua } => {
                    match self.write(lane, zone, lba, data, oob, fua, completer) {
                        Ok(()) => continue,
                        Err(kept) => kept,
                    }
                }
                Command::Append { .. } => {
                    completer.complete(Done::error(Status::InvalidField.into()));
                    continue;
                }
                command if lane.count.get() > 0 => (command, completer),
                command => {
                    lane.failed.set(None);
                    let what = match command {
                        Command::Reset { .. } => AppendFlightKind::Reset(completer),
                        _ => AppendFlightKind::Zone(completer),
                    };
                    if matches!(command, Command::Reset { .. } | Command::Finish { .. }) {
                        self.end_life(zone);
                    }
                    lane.alone.set(true);
                    let flight = AppendFlight { completion: self.device.submit(command), what };
                    lane.flights.borrow_mut().push_back(flight);
                    lane.count.set(1);
                    return;
                }
            };
            lane.waiting.borrow_mut().push_front(kept);
            return;
        }
    }

    /// Submits as much of a write as possible now.
    ///
    /// # Errors
    /// The rest of the write, which has to wait.
    #[expect(clippy::too_many_arguments, reason = "the fields of a command, and whose it is")]
    fn write(
        &self,
        lane: &AppendLane,
        zone: ZoneIndex,
        lba: Lba,
        data: Buf,
        oob: Buf,
        fua: bool,
        completer: Completer,
    ) -> Result<(), (Command, Completer)> {
        let mut zones = self.zones.borrow_mut();
        let Some(session) = &mut zones[zone.0 as usize].session else {
            if lane.count.get() == 0 {
                lane.looking.set(true);
            }
            return Err((Command::Write { lba, data, oob, fua }, completer));
        };
        let at = self.geometry.locate(lba).1;
        let checked = self.geometry.check_buffers(&data, &oob, self.geometry.max_transfer_blocks);
        let error = match checked {
            Err(status) => Some(status),
            _ if session.failed || session.in_doubt || at != session.next => Some(Status::ZoneInvalidWrite),
            Ok(blocks) if at + blocks > self.geometry.zone_capacity_blocks => Some(Status::ZoneBoundaryError),
            Ok(_) => None,
        };
        if let Some(status) = error {
            completer.complete(Done { data, oob, ..Done::error(status.into()) });
            return Ok(());
        }
        let (mut sent, blocks) = (0, data.blocks());
        while sent < blocks {
            let count = (blocks - sent).min(self.most_from(session.next));
            if !self.may_send(lane, session, count) {
                // The rest becomes a write of its own, which completes the whole one.
                let rest = if sent == 0 { data } else { data.slice_blocks(sent..blocks) };
                let lba = Lba(lba.0 + sent);
                return Err((Command::Write { lba, data: rest, oob, fua }, completer));
            }
            let piece = data.slice_blocks(sent..sent + count);
            let completion = self.send(zone, session, piece, fua);
            let from = session.next;
            session.next += count;
            sent += count;
            let what = AppendFlightKind::Blocks { from, count, owner: None };
            lane.flights.borrow_mut().push_back(AppendFlight { completion, what });
            if lane.count.replace(lane.count.get() + 1) == 0 {
                lane.oldest_blocks.set(count);
            }
            lane.blocks.set(lane.blocks.get() + count);
        }
        let (next, capacity) = (session.next, self.geometry.zone_capacity_blocks);
        assert!(
            next == at + blocks && next <= capacity,
            "{blocks} blocks at {at} end at {next}, of {capacity}"
        );
        if let Some(AppendFlight { what: AppendFlightKind::Blocks { owner, .. }, .. }) =
            lane.flights.borrow_mut().back_mut()
        {
            *owner = Some((completer, data));
        }
        Ok(())
    }

    /// Maximum blocks of a command that begins with block `at` of a zone: it does not cross the end of a group.
    fn most_from(&self, at: u64) -> u64 {
        match self.group_blocks {
            1 => self.geometry.max_transfer_blocks as u64,
            group => (self.device.geometry().max_append_blocks as u64).min(group - at % group),
        }
    }

    /// Whether the next `count` blocks of a zone may be submitted in addition to those in flight: they are in the same
    /// group, and their loss would not exceed the reserve.
    fn may_send(&self, lane: &AppendLane, session: &Session, count: u64) -> bool {
        let reserve = self.device.geometry().zone_capacity_blocks - self.geometry.zone_capacity_blocks;
        let group = |block: u64| block / self.group_blocks;
        lane.count.get() == 0
            || self.group_blocks > 1
                && group(session.landed) == group(session.next)
                && lane.blocks.get() - lane.oldest_blocks.get() + count
                    <= reserve.saturating_sub(session.void)
    }

    /// Submits a write or an append of the next blocks of a zone.
    fn send(&self, zone: ZoneIndex, session: &mut Session, data: Buf, fua: bool) -> Completion {
        if self.group_blocks == 1 {
            let lba = Lba(self.geometry.start(zone).0 + session.next);
            return self.device.submit(Command::write(lba, data, fua));
        }
        let first = session.next - session.next % self.group_blocks;
        if session.group.as_ref().is_none_or(|group| group.first != first) {
            let group = AppendGroup::new(first, self.group_blocks, first + session.void);
            if let Some(whole) = session.group.replace(group) {
                self.groups.borrow_mut().hold(zone, whole);
            }
        }
        let bytes = self.device.geometry().oob_bytes as usize;
        let len = data.blocks() as usize * bytes;
        let mut oob = self.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64);
        for (block, oob) in (session.next..).zip(oob[..len].chunks_exact_mut(bytes)) {
            let mark =
                AppendMark { block: block as u32, from: session.from as u32, void: session.void as u32 };
            oob[..MARK_BYTES].copy_from_slice(&mark.encode(&self.owner(zone)));
            oob[MARK_BYTES..].fill(0);
        }
        self.device.submit(Command::Append { zone, data, oob: oob.freeze().slice(0..len), fua })
    }

    /// Handles the completion of a command of a zone.
    fn landed(&self, lane: &AppendLane, zone: ZoneIndex, what: AppendFlightKind, done: Done) {
        assert!(lane.count.get() > 0, "more commands of zone {} have ended than had begun", zone.0);
        lane.count.set(lane.count.get() - 1);
        match what {
            AppendFlightKind::Zone(completer) => {
                lane.alone.set(false);
                completer.complete(done);
            }
            AppendFlightKind::Reset(completer) => {
                lane.alone.set(false);
                if done.result.is_ok() {
                    self.zones.borrow_mut()[zone.0 as usize].session = Some(Session::default());
                }
                completer.complete(done);
            }
            AppendFlightKind::Blocks { from, count, owner } => {
                lane.blocks.set(lane.blocks.get() - count);
                let oldest = match lane.flights.borrow().front() {
                    Some(AppendFlight { what: AppendFlightKind::Blocks { count, .. }, .. }) => *count,
                    _ => 0,
                };
                lane.oldest_blocks.set(oldest);
                let result = self.note(zone, from, count, &done);
                self.pool.borrow_mut().give(done.oob);
                drop(done.data);
                let result = lane.failed.take().map_or(result, Err);
                match owner {
                    Some((completer, data)) => completer.complete(Done { result, data, ..Done::ok() }),
                    None => lane.failed.set(result.err()),
                }
            }
        }
    }

    /// Records where `count` blocks from `from` on have landed. After an error, or if the reported place is impossible,
    /// the zone takes no more writes.
    fn note(&self, zone: ZoneIndex, from: u64, count: u64, done: &Done) -> Result<(), DeviceError> {
        let mut zones = self.zones.borrow_mut();
        let Some(session) = &mut zones[zone.0 as usize].session else {
            return Err(Status::ZoneInvalidWrite.into());
        };
        let (landed_in, place) = self.geometry.locate(done.lba);
        // A place beyond all submitted and void blocks shows that other software has written to the zone.
        let is_own = landed_in == zone && place + count <= session.next + session.void;
        let has_landed = |session: &mut Session| match &mut session.group {
            Some(group) => is_own && (0..count).all(|at| group.land(from + at, place + at, session.void)),
            None => self.group_blocks == 1,
        };
        let result = match done.result {
            Ok(()) if session.failed || !has_landed(session) => Err(Status::ZoneInvalidWrite.into()),
            result => result,
        };
        match result {
            Ok(()) => {
                let (landed, next) = (session.landed, session.next);
                assert!(
                    from == landed && from + count <= next,
                    "{count} blocks from {from} on have landed, behind {landed}, and {next} were submitted"
                );
                session.landed = from + count;
            }
            Err(_) => session.failed = true,
        }
        if let Some(group) = &mut session.group {
            group.end = session.landed;
        }
        result
    }

    /// Drops the known state of a zone, which a reset or finish changes.
    fn end_life(&self, zone: ZoneIndex) {
        let known = &mut self.zones.borrow_mut()[zone.0 as usize];
        *known = AppendZoneState { life: known.life + 1, session: None };
        self.groups.borrow_mut().forget(zone);
    }

    /// Owner of the blocks of a zone.
    fn owner(&self, zone: ZoneIndex) -> MarkOwner {
        MarkOwner { member: self.member, zone: zone.0 }
    }

    fn life(&self, zone: ZoneIndex) -> u64 {
        self.zones.borrow()[zone.0 as usize].life
    }

    async fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneInfo>, DeviceError> {
        let lives: Vec<u64> = self.zones.borrow().iter().map(|known| known.life).collect();
        let done = self.device.submit(Command::Report { first, count }).await;
        done.result?;
        let mut zones = done.zones;
        for info in &mut zones {
            let found = *info;
            info.capacity_blocks = self.geometry.zone_capacity_blocks;
            info.zrwa = false;
            let zone = info.zone;
            info.wp_blocks = info.wp_blocks.min(self.geometry.zone_capacity_blocks);
            if zone.0 < self.plain_zones || zone.0 >= self.geometry.zones {
                continue;
            }
            if info.state == ZoneState::Empty || info.state.is_active() {
                match self.learn(found, lives[zone.0 as usize]).await {
                    Ok(()) => {}
                    // The error concerns this zone alone.
                    Err(DeviceError::Status(_)) => info.wp_blocks = UNKNOWN_WP,
                    Err(error) => return Err(error),
                }
            }
            if let Some(session) = &self.zones.borrow()[zone.0 as usize].session {
                info.wp_blocks = if session.in_doubt { UNKNOWN_WP } else { session.landed };
            }
        }
        Ok(zones)
    }

    /// Finds the end of a zone, unless it is known. `info` is its report by the drive, and `life` its counter at that
    /// time.
    async fn learn(&self, info: ZoneInfo, life: u64) -> Result<(), DeviceError> {
        let (zone, wp) = (info.zone, info.wp_blocks);
        let is_known = || {
            let known = &self.zones.borrow()[zone.0 as usize];
            known.life != life || known.session.is_some()
        };
        if is_known() {
            return Ok(());
        }
        let session = match self.group_blocks {
            1 => Session { from: wp, next: wp, landed: wp, ..Session::default() },
            _ if wp == 0 => Session::default(),
            size => {
                let first = self.last_group(zone, wp).await?;
                // The range begins one place before the group, for a check of `judge`.
                let found = self.look(zone, first, first.min(wp).saturating_sub(1)..wp).await?;
                let (end, whole) = (found.end, found.end - found.end % size);
                let group = (end > whole).then(|| AppendGroup::of(whole, size, &found, wp));
                let void = wp.saturating_sub(end);
                let in_doubt = !found.is_sure;
                Session { from: end, void, next: end, landed: end, failed: false, in_doubt, group }
            }
        };
        if !is_known() {
            self.zones.borrow_mut()[zone.0 as usize].session = Some(session);
        }
        Ok(())
    }

    /// First block of the last group that has a readable block in the drive's zone; 0 if there is none.
    async fn last_group(&self, zone: ZoneIndex, wp: u64) -> Result<u64, DeviceError> {
        let step = (self.device.geometry().max_transfer_blocks as u64).clamp(1, 16);
        let mut end = wp;
        while end > 0 {
            let from = end.saturating_sub(step);
            for (_, seen) in self.marks(zone, from..end).await?.into_iter().rev() {
                if let BlockContent::Mark(mark) = seen {
                    let block = mark.block as u64;
                    return Ok(block - block % self.group_blocks);
                }
            }
            end = from;
        }
        Ok(0)
    }

    /// Recovers the zone from the group on that begins with `first`, by a range of the drive's zone.
    async fn look(
        &self,
        zone: ZoneIndex,
        first: u64,
        places: Range<u64>,
    ) -> Result<AppendRecovery, DeviceError> {
        Ok(judge(first, &self.marks(zone, places).await?))
    }

    /// Reads the marks of a range of the drive's zone; block by block where a read fails.
    async fn marks(
        &self,
        zone: ZoneIndex,
        places: Range<u64>,
    ) -> Result<Vec<(u64, BlockContent)>, DeviceError> {
        let most = self.device.geometry().max_transfer_blocks as u64;
        let mut marks = Vec::new();
        let mut at = places.start;
        while at < places.end {
            let count = most.min(places.end - at);
            match self.marks_of(zone, at, count).await {
                Ok(found) => marks.extend(found),
                Err(_) if count > 1 => {
                    for at in at..at + count {
                        marks.push(self.mark_of(zone, at).await?);
                    }
                }
                Err(_) => marks.push(self.mark_of(zone, at).await?),
            }
            at += count;
        }
        Ok(marks)
    }

    /// Reads the mark of one block of the drive's zone.
    async fn mark_of(&self, zone: ZoneIndex, at: u64) -> Result<(u64, BlockContent), DeviceError> {
        match self.marks_of(zone, at, 1).await {
            Ok(found) => Ok(found.first().copied().unwrap_or((at, BlockContent::Unknown))),
            Err(DeviceError::Status(Status::DeallocatedBlock)) => Ok((at, BlockContent::Nothing)),
            Err(DeviceError::Status(Status::UnrecoveredReadError)) => Ok((at, BlockContent::Unknown)),
            Err(error) => Err(error),
        }
    }

    /// Reads the marks of `count` blocks by one command.
    async fn marks_of(
        &self,
        zone: ZoneIndex,
        at: u64,
        count: u64,
    ) -> Result<Vec<(u64, BlockContent)>, DeviceError> {
        let bytes = self.device.geometry().oob_bytes as usize;
        let data = self.pool.borrow_mut().take(count).freeze();
        let oob = Buf::zeroed(count as usize * bytes);
        let lba = Lba(self.geometry.start(zone).0 + at);
        let done = self.device.submit(Command::Read { lba, data, oob }).await;
        self.pool.borrow_mut().give(done.data);
        done.result?;
        let owner = self.owner(zone);
        let marks = done.oob.chunks_exact(bytes).map(|oob| BlockContent::read(oob, &owner));
        Ok((at..).zip(marks).collect())
    }

    /// Place of a block; `None` if its group is not in memory.
    fn position(&self, zone: ZoneIndex, block: u64) -> Option<BlockPosition> {
        let first = block - block % self.group_blocks;
        let zones = self.zones.borrow();
        if let Some(session) = &zones[zone.0 as usize].session {
            if block >= session.landed {
                return Some(BlockPosition::Nothing);
            }
            if let Some(group) = session.group.as_ref().filter(|group| group.first == first) {
                return Some(group.position(block));
            }
        }
        self.groups.borrow_mut().position(zone, first, block)
    }

    /// Loads a group into the cache, or waits for a task that does. If the group has changed meanwhile, it is not kept,
    /// and the caller has to try again.
    async fn fetch(&self, zone: ZoneIndex, first: u64) -> Result<(), DeviceError> {
        let key = (zone.0, first);
        let others = self.loading.borrow().get(&key).cloned();
        if let Some(gate) = others {
            gate.wait().await;
        }
        if self.position(zone, first).is_some() {
            return Ok(());
        }
        let gate = Rc::new(Gate::default());
        self.loading.borrow_mut().insert(key, gate.clone());
        let loaded = self.load(zone, first).await;
        self.loading.borrow_mut().remove(&key);
        gate.open();
        loaded
    }

    /// End of the blocks of a group that are known to have landed.
    fn landed_of(&self, zone: ZoneIndex, first: u64) -> u64 {
        let zones = self.zones.borrow();
        let landed = zones[zone.0 as usize].session.as_ref().map_or(0, |session| session.landed);
        landed.min(first + self.group_blocks)
    }

    /// Reads a group from the drive, and keeps it in memory unless it or the zone has changed meanwhile.
    async fn load(&self, zone: ZoneIndex, first: u64) -> Result<(), DeviceError> {
        let (life, landed) = (self.life(zone), self.landed_of(zone, first));
        let done = self.device.submit(Command::Report { first: zone, count: 1 }).await;
        done.result?;
        let Some(info) = done.zones.first().copied() else { return Err(Status::InternalError.into()) };
        if info.state.is_active() {
            self.learn(info, life).await?;
        }
        let end = match info.state {
            ZoneState::Empty => 0,
            ZoneState::Full | ZoneState::ReadOnly => self.device.geometry().zone_capacity_blocks,
            _ => info.wp_blocks,
        };
        let size = self.group_blocks;
        let (mut seen, mut at) = (Vec::new(), first);
        let mut group = loop {
            let to = end.min(at + size);
            let marks = self.marks(zone, at..to.max(at)).await?;
            // The zone was finished: it is unwritten from here to its end.
            let is_unwritten = marks.iter().all(|(_, seen)| *seen == BlockContent::Nothing);
            seen.extend(marks);
            at = to;
            let group = AppendGroup::of(first, size, &judge(first, &seen), at);
            let is_behind = |seen: &(u64, BlockContent)| match seen.1 {
                BlockContent::Mark(mark) => mark.block as u64 >= first + size,
                _ => false,
            };
            if group.is_whole() || at >= end || is_unwritten || seen.iter().any(is_behind) {
                break group;
            }
        };
        group.lose(landed);
        // The marks that were read may not include blocks written meanwhile: then the group is not kept.
        if self.life(zone) == life && group.end >= self.landed_of(zone, first) {
            self.groups.borrow_mut().hold(zone, group);
        }
        Ok(())
    }

    /// Reads blocks of a zone: by one command if their places are known and consecutive.
    fn read(self: &Rc<Self>, zone: ZoneIndex, at: u64, data: Buf, oob: Buf) -> Completion {
        let checked = self.geometry.check_buffers(&data, &oob, self.geometry.max_transfer_blocks);
        let blocks = match checked {
            Ok(blocks) if at + blocks <= self.geometry.zone_size_blocks => blocks,
            Ok(_) => {
                return Completion::ready(Done {
                    data,
                    oob,
                    ..Done::error(Status::ZoneBoundaryError.into())
                });
            }
            Err(status) => return Completion::ready(Done { data, oob, ..Done::error(status.into()) }),
        };
        let start = self.geometry.start(zone).0;
        if self.group_blocks == 1 {
            return self.device.submit(Command::read(Lba(start + at), data));
        }
        if let Some(BlockPosition::At(place)) = self.position(zone, at)
            && (1..blocks).all(|next| self.position(zone, at + next) == Some(BlockPosition::At(place + next)))
        {
            return self.device.submit(Command::read(Lba(start + place), data));
        }
        let (completer, completion) = self.slots.pair();
        let this = self.clone();
        self.runtime.spawn(async move {
            let mut data = data.into_mut();
            let result = this.gather(zone, at, &mut data).await;
            completer.complete(Done { result, data: data.freeze(), ..Done::ok() });
        });
        completion
    }

    /// Reads blocks of a zone from their places.
    async fn gather(&self, zone: ZoneIndex, at: u64, data: &mut BufMut) -> Result<(), DeviceError> {
        let blocks = data.blocks();
        let mut parts: Vec<(u64, u64, Completion)> = Vec::new();
        let mut done = 0;
        while done < blocks {
            let block = at + done;
            let place = match self.position(zone, block) {
                Some(BlockPosition::At(place)) => place,
                Some(BlockPosition::Nothing) => {
                    data.block_mut(done).fill(0);
                    done += 1;
                    continue;
                }
                Some(BlockPosition::Doubtful) => return Err(Status::UnrecoveredReadError.into()),
                None => {
                    // Repeated if the group has been written, or the zone finished or reset, meanwhile.
                    self.fetch(zone, block - block % self.group_blocks).await?;
                    continue;
                }
            };
            let follows =
                |next: &u64| self.position(zone, at + done + next) == Some(BlockPosition::At(place + next));
            let count = 1 + (1..blocks - done).take_while(follows).count() as u64;
            let lba = Lba(self.geometry.start(zone).0 + place);
            let read = Command::read(lba, Buf::zeroed(count as usize * BLOCK));
            parts.push((done, count, self.device.submit(read)));
            done += count;
        }
        let mut result = Ok(());
        for (from, count, part) in parts {
            let done = part.await;
            result = result.and(done.result);
            if done.result.is_ok() {
                data[from as usize * BLOCK..(from + count) as usize * BLOCK].copy_from_slice(&done.data);
            }
        }
        result
    }
}

impl GroupCache {
    fn hold(&mut self, zone: ZoneIndex, group: AppendGroup) {
        let key = (zone.0, group.first);
        self.clock += 1;
        self.bytes += group.bytes();
        self.used.insert(self.clock, key);
        if let Some((used, before)) = self.held.insert(key, (self.clock, group)) {
            self.bytes -= before.bytes();
            self.used.remove(&used);
        }
        let (held, used) = (self.held.len(), self.used.len());
        assert_eq!(held, used, "groups in the cache, and times of their last use");
        while self.bytes > self.most_bytes && self.held.len() > 1 {
            let Some((_, key)) = self.used.pop_first() else { return };
            self.bytes -= self.held.remove(&key).map_or(0, |(_, group)| group.bytes());
        }
    }

    fn position(&mut self, zone: ZoneIndex, first: u64, block: u64) -> Option<BlockPosition> {
        let (used, group) = self.held.get_mut(&(zone.0, first))?;
        self.clock += 1;
        self.used.remove(used);
        self.used.insert(self.clock, (zone.0, first));
        *used = self.clock;
        Some(group.position(block))
    }

    fn forget(&mut self, zone: ZoneIndex) {
        let keys: Vec<_> = self.held.range((zone.0, 0)..=(zone.0, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some((used, group)) = self.held.remove(&key) {
                self.bytes -= group.bytes();
                self.used.remove(&used);
            }
        }
    }
}

/// Task of a lane: waits for its commands in flight, oldest first, and submits the next ones.
async fn serve(lane: Rc<AppendLane>, appended: Weak<AppendInner>) {
    loop {
        let Some(zone) = lane.zone.get() else {
            lane.begun.wait().await;
            continue;
        };
        if lane.looking.get() {
            let Some(inner) = appended.upgrade() else { return };
            inner.look_first(&lane, zone).await;
            continue;
        }
        let flight = lane.flights.borrow_mut().pop_front();
        let Some(AppendFlight { completion, what }) = flight else {
            lane.begun.wait().await;
            continue;
        };
        let done = completion.await;
        let Some(inner) = appended.upgrade() else { return };
        inner.landed(&lane, zone, what, done);
        inner.pump(&lane, zone);
    }
}

impl AppendInner {
    /// Finds the end of a zone before its first write; on an error the oldest waiting command fails.
    async fn look_first(&self, lane: &AppendLane, zone: ZoneIndex) {
        let life = self.life(zone);
        let looked = async {
            let done = self.device.submit(Command::Report { first: zone, count: 1 }).await;
            done.result?;
            let Some(info) = done.zones.first().copied() else { return Err(Status::InternalError.into()) };
            match info.state {
                ZoneState::Full => Err(Status::ZoneIsFull.into()),
                ZoneState::ReadOnly => Err(Status::ZoneIsReadOnly.into()),
                ZoneState::Offline => Err(Status::ZoneIsOffline.into()),
                _ => self.learn(info, life).await,
            }
        };
        let looked: Result<(), DeviceError> = looked.await;
        lane.looking.set(false);
        if let Err(error) = looked
            && let Some((_, completer)) = lane.waiting.borrow_mut().pop_front()
        {
            completer.complete(Done::error(error));
        }
        self.pump(lane, zone);
    }
}
