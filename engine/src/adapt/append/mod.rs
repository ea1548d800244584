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
//!   without a write pointer ([`UNKNOWN_WP`](crate::zone::UNKNOWN_WP)) and takes no writes until it is reset; blocks
//!   that can be found in it can be read. The same holds for a zone whose marks cannot be read at all.
//!
//! The first zones of a drive may be passed through; they are written one command at a time. So are all zones if groups
//! have one block, which needs neither appends nor metadata.

pub mod judge;
mod learn;
pub mod mark;
pub mod ranks;
mod read;
mod state;

use self::{
    mark::{AppendMark, MARK_BYTES, SEALED_MARK_BYTES, mark_bytes, seal},
    ranks::AppendGroup,
    state::{AppendFlight, AppendFlightKind, AppendInner, AppendLane, AppendZoneState, GroupCache, Session},
};
use crate::{
    adapt::sequence::Sequencer,
    buf::{BLOCK, Buf},
    device::{
        BlockChecksums, Command, Completer, Completion, DeviceError, Done, DriveId, Geometry, Status,
        ZoneEpochs, ZonedDevice,
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
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
    /// Whether blocks have checksums, which reads verify; groups of one block have none.
    pub checksums: bool,
    /// Number of first zones that are passed through: they differ from those of the drive only in capacity.
    pub plain_zones: u32,
    /// UUID of the member, part of the owner of all blocks ([`MarkOwner`](mark::MarkOwner)).
    pub member: [u8; 16],
    /// Size in bytes of the cache of groups that are not being written.
    pub groups_bytes: usize,
}

/// A drive whose zones are filled by appends. Commands that still wait when it is dropped are never submitted.
pub struct AppendDevice(Rc<AppendInner>);

impl AppendDevice {
    /// Wraps `device`; `None` if [`AppendDevice::geometry_of`] is. `runtime` runs a task for each zone that is in use
    /// at the same time.
    pub fn new(runtime: &Runtime, device: Rc<dyn ZonedDevice>, usage: Usage) -> Option<AppendDevice> {
        let Usage { group_blocks, checksums, plain_zones, member, groups_bytes } = usage;
        let geometry = AppendDevice::geometry_of(device.geometry(), group_blocks, checksums)?;
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
            checksums,
            epochs: RefCell::default(),
            wrong_reads: Cell::default(),
            zones: RefCell::new(zones),
            groups: RefCell::new(GroupCache::new(groups_bytes)),
            loading: RefCell::default(),
            lanes: RefCell::default(),
            pool: RefCell::default(),
        })))
    }

    /// Geometry of a drive that is wrapped. `None` if it cannot be: the group size is no power of two, zones are too
    /// large, or groups have several blocks and the drive has no zone append, or too little metadata for marks.
    pub fn geometry_of(drive: &Geometry, group_blocks: u64, checksums: bool) -> Option<Geometry> {
        let capacity = drive.zone_capacity_blocks;
        let reserve = match group_blocks {
            1 => 0,
            _ => (capacity / RESERVE_SHARE).max(LEAST_RESERVE_BLOCKS).min(capacity / 4),
        };
        let possible = group_blocks.is_power_of_two()
            && capacity <= u32::MAX as u64
            && match group_blocks {
                1 => !checksums,
                _ => drive.max_append_blocks > 0 && drive.oob_bytes as usize >= mark_bytes(checksums),
            };
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
        submit(&self.0, command)
    }

    fn drive_id(&self) -> DriveId {
        self.0.device.drive_id()
    }

    fn checksums(&self) -> Option<&dyn BlockChecksums> {
        self.0.checksums.then_some(self as &dyn BlockChecksums)
    }
}

/// All checksums are on the drive, each with its block.
impl BlockChecksums for AppendDevice {
    fn unverified(&self, _: ZoneIndex) -> Range<u64> {
        0..0
    }

    fn set_unverified(&self, _: ZoneIndex, _: u64, _: &[u32]) {}

    fn last_sums(&self, _: ZoneIndex) -> Option<(u64, Vec<u32>)> {
        None
    }

    fn wrong_reads(&self) -> u64 {
        self.0.wrong_reads.get()
    }

    fn set_epochs(&self, epochs: ZoneEpochs) {
        *self.0.epochs.borrow_mut() = Some(epochs);
    }

    fn move_zone(&self, _: ZoneIndex, _: ZoneIndex) {}
}

fn submit(inner: &Rc<AppendInner>, command: Command) -> Completion {
    match &command {
        Command::Report { first, count } => {
            let (first, count) = (*first, *count);
            let (completer, completion) = inner.slots.pair();
            let this = inner.clone();
            inner.runtime.spawn(async move {
                let done = match learn::report(&this, first, count).await {
                    Ok(zones) => Done { zones, ..Done::ok() },
                    Err(error) => Done::error(error),
                };
                completer.complete(done);
            });
            return completion;
        }
        Command::FlushZrwa { .. } => return Completion::failed(Status::InvalidField),
        Command::Flush => return inner.device.submit(command),
        _ => {}
    }
    let Some(zone) = command.zone(&inner.geometry) else {
        // A command for all zones at once: their state is not known any more.
        (0..inner.geometry.zones).for_each(|zone| inner.end_life(ZoneIndex(zone)));
        return inner.device.submit(command);
    };
    if zone.0 < inner.plain_zones || zone.0 >= inner.geometry.zones {
        return inner.plain.submit(command);
    }
    match command {
        Command::Read { lba, data, oob } => read::read(inner, zone, inner.geometry.locate(lba).1, data, oob),
        command => queue(inner, zone, command),
    }
}

/// Finds the end of a zone before its first write; on an error the oldest waiting command fails.
async fn look_first(inner: &AppendInner, lane: &AppendLane, zone: ZoneIndex) {
    let found = learn::check_writable(inner, zone).await;
    lane.looking.set(false);
    if let Err(error) = found
        && let Some((_, completer)) = lane.waiting.borrow_mut().pop_front()
    {
        completer.complete(Done::error(error));
    }
    pump(inner, lane, zone);
}

/// Appends a command to the lane of its zone.
fn queue(inner: &Rc<AppendInner>, zone: ZoneIndex, command: Command) -> Completion {
    let (completer, completion) = inner.slots.pair();
    let lane = lane(inner, zone);
    lane.waiting.borrow_mut().push_back((command, completer));
    lane.zone.set(Some(zone));
    pump(inner, &lane, zone);
    lane.begun.open();
    completion
}

/// The lane of `zone`, or an idle or new one.
fn lane(inner: &Rc<AppendInner>, zone: ZoneIndex) -> Rc<AppendLane> {
    let mut lanes = inner.lanes.borrow_mut();
    let find = |wanted| lanes.iter().find(|lane| lane.zone.get() == wanted);
    if let Some(lane) = find(Some(zone)).or_else(|| find(None)) {
        return lane.clone();
    }
    let lane = Rc::new(AppendLane::default());
    lanes.push(lane.clone());
    inner.runtime.spawn(serve(lane.clone(), Rc::downgrade(inner)));
    lane
}

/// Submits as many of the waiting commands as possible; if none waits or is in flight, the lane becomes idle.
fn pump(inner: &AppendInner, lane: &AppendLane, zone: ZoneIndex) {
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
                match write(inner, lane, zone, lba, data, oob, fua, completer) {
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
                    inner.end_life(zone);
                }
                lane.alone.set(true);
                let flight = AppendFlight { completion: inner.device.submit(command), what };
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
    inner: &AppendInner,
    lane: &AppendLane,
    zone: ZoneIndex,
    lba: Lba,
    data: Buf,
    oob: Buf,
    fua: bool,
    completer: Completer,
) -> Result<(), (Command, Completer)> {
    let mut zones = inner.zones.borrow_mut();
    let Some(session) = &mut zones[zone.0 as usize].session else {
        if lane.count.get() == 0 {
            lane.looking.set(true);
        }
        return Err((Command::Write { lba, data, oob, fua }, completer));
    };
    let at = inner.geometry.locate(lba).1;
    let checked = inner.geometry.check_buffers(&data, &oob, inner.geometry.max_transfer_blocks);
    let error = match checked {
        Err(status) => Some(status),
        _ if session.failed || session.in_doubt || at != session.next => Some(Status::ZoneInvalidWrite),
        Ok(blocks) if at + blocks > inner.geometry.zone_capacity_blocks => Some(Status::ZoneBoundaryError),
        Ok(_) => None,
    };
    if let Some(status) = error {
        completer.complete(Done { data, oob, ..Done::error(status.into()) });
        return Ok(());
    }
    let (mut sent, blocks) = (0, data.blocks());
    while sent < blocks {
        let count = (blocks - sent).min(most_from(inner, session.next));
        if !may_send(inner, lane, session, count) {
            // The rest becomes a write of its own, which completes the whole one.
            let rest = if sent == 0 { data } else { data.slice_blocks(sent..blocks) };
            let lba = Lba(lba.0 + sent);
            return Err((Command::Write { lba, data: rest, oob, fua }, completer));
        }
        let piece = data.slice_blocks(sent..sent + count);
        let completion = send(inner, zone, session, piece, fua);
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
    let (next, capacity) = (session.next, inner.geometry.zone_capacity_blocks);
    assert!(next == at + blocks && next <= capacity, "{blocks} blocks at {at} end at {next}, of {capacity}");
    if let Some(AppendFlight { what: AppendFlightKind::Blocks { owner, .. }, .. }) =
        lane.flights.borrow_mut().back_mut()
    {
        *owner = Some((completer, data));
    }
    Ok(())
}

/// Maximum blocks of a command that begins with block `at` of a zone: it does not cross the end of a group.
fn most_from(inner: &AppendInner, at: u64) -> u64 {
    match inner.group_blocks {
        1 => inner.geometry.max_transfer_blocks as u64,
        group => (inner.device.geometry().max_append_blocks as u64).min(group - at % group),
    }
}

/// Whether the next `count` blocks of a zone may be submitted in addition to those in flight: they are in the same
/// group, and their loss would not exceed the reserve.
fn may_send(inner: &AppendInner, lane: &AppendLane, session: &Session, count: u64) -> bool {
    let reserve = inner.device.geometry().zone_capacity_blocks - inner.geometry.zone_capacity_blocks;
    let group = |block: u64| block / inner.group_blocks;
    lane.count.get() == 0
        || inner.group_blocks > 1
            && group(session.landed) == group(session.next)
            && lane.blocks.get() - lane.oldest_blocks.get() + count <= reserve.saturating_sub(session.void)
}

/// Submits a write or an append of the next blocks of a zone.
fn send(inner: &AppendInner, zone: ZoneIndex, session: &mut Session, data: Buf, fua: bool) -> Completion {
    if inner.group_blocks == 1 {
        let lba = Lba(inner.geometry.start(zone).0 + session.next);
        return inner.device.submit(Command::write(lba, data, fua));
    }
    let first = session.next - session.next % inner.group_blocks;
    if session.group.as_ref().is_none_or(|group| group.first != first) {
        let group = AppendGroup::new(first, inner.group_blocks, first + session.void);
        if let Some(whole) = session.group.replace(group) {
            inner.groups.borrow_mut().hold(zone, whole);
        }
    }
    let bytes = inner.device.geometry().oob_bytes as usize;
    let len = data.blocks() as usize * bytes;
    let mut oob = inner.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64);
    let (owner, epoch) = (inner.owner(zone), inner.epoch(zone));
    for (at, oob) in (0..).zip(oob[..len].chunks_exact_mut(bytes)) {
        let block = session.next as u32 + at;
        let mark = AppendMark { block, from: session.from as u32, void: session.void as u32 };
        oob[..MARK_BYTES].copy_from_slice(&mark.encode(&owner));
        oob[MARK_BYTES..].fill(0);
        if inner.checksums {
            let seal = seal(&owner, epoch, block, &data[at as usize * BLOCK..][..BLOCK]);
            oob[MARK_BYTES..SEALED_MARK_BYTES].copy_from_slice(&seal);
        }
    }
    inner.device.submit(Command::Append { zone, data, oob: oob.freeze().slice(0..len), fua })
}

/// Handles the completion of a command of a zone.
fn landed(inner: &AppendInner, lane: &AppendLane, zone: ZoneIndex, what: AppendFlightKind, done: Done) {
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
                inner.zones.borrow_mut()[zone.0 as usize].session = Some(Session::default());
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
            let result = note(inner, zone, from, count, &done);
            inner.pool.borrow_mut().give(done.oob);
            drop(done.data);
            let result = lane.failed.take().map_or(result, Err);
            match owner {
                Some((completer, data)) => completer.complete(Done { result, data, ..Done::ok() }),
                None => lane.failed.set(result.err()),
            }
        }
    }
}

/// Records where `count` blocks from `from` on have landed. After an error, or if the reported place is impossible, the
/// zone takes no more writes.
fn note(inner: &AppendInner, zone: ZoneIndex, from: u64, count: u64, done: &Done) -> Result<(), DeviceError> {
    let mut zones = inner.zones.borrow_mut();
    let Some(session) = &mut zones[zone.0 as usize].session else {
        return Err(Status::ZoneInvalidWrite.into());
    };
    let (landed_in, place) = inner.geometry.locate(done.lba);
    // A place beyond all submitted and void blocks shows that other software has written to the zone.
    let is_own = landed_in == zone && place + count <= session.next + session.void;
    let has_landed = |session: &mut Session| match &mut session.group {
        Some(group) => is_own && (0..count).all(|at| group.land(from + at, place + at, session.void)),
        None => inner.group_blocks == 1,
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

/// Task of a lane: waits for its commands in flight, oldest first, and submits the next ones.
async fn serve(lane: Rc<AppendLane>, appended: Weak<AppendInner>) {
    loop {
        let Some(zone) = lane.zone.get() else {
            lane.begun.wait().await;
            continue;
        };
        if lane.looking.get() {
            let Some(inner) = appended.upgrade() else { return };
            look_first(&inner, &lane, zone).await;
            continue;
        }
        let flight = lane.flights.borrow_mut().pop_front();
        let Some(AppendFlight { completion, what }) = flight else {
            lane.begun.wait().await;
            continue;
        };
        let done = completion.await;
        let Some(inner) = appended.upgrade() else { return };
        landed(&inner, &lane, zone, what, done);
        pump(&inner, &lane, zone);
    }
}
