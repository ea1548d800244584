//! The array: N zoned devices as one.
//!
//! [`Array`] is a [`ZonedDevice`] itself: reads, writes, appends, flushes and zone management go
//! in as [`Command`]s, in the order of the calls. Around that there is only its life: made with
//! [`Array::create`], found again with [`Array::assemble`] or, while the drives keep power, with
//! [`Array::take_over`], repaired with [`Array::attach`] and [`Array::rebuild`].

use crate::{
    adapt::aggregate::Aggregated,
    buf::{BLOCK, Buf, BufPool, Source},
    device::{Command, Completion, DeviceError, Done, Geometry, Plate, Status, ZonedDevice, Zones},
    format::{
        Uuid,
        oob::OOB_BYTES,
        record::{Burned, Record, ZoneRecord},
        superblock::{
            AGGREGATES, CHUNK_BLOCKS, MEMBERS, MODEL_BYTES, SERIAL_BYTES, Stage, Superblock,
            SuperblockMember, kept_of, wrong_with_name,
        },
    },
    owner::Change,
    provisional::{Handle, changes},
    raid::{
        Canary, Consistency, LogStep,
        core::{Core, Member},
        geometry::Layout,
        metalog::{Live, META_ZONES, MetaLog, checkpoint_blocks, log_blocks},
        patrol::replace::Newcomer,
        policy::{Policy, log, zrwa::Refusal},
        recover::{Candidate, Verdict, ZoneView, decide_members, prepare, scan},
    },
    runtime::{Gate, Runtime},
    zone::{ZoneIndex, ZoneInfo, ZoneState, ZoneTable, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    rc::Rc,
};

/// A drive as the caller found it.
#[derive(Clone)]
pub struct Drive {
    /// What messages call it: a path, usually.
    pub name: String,
    pub device: Rc<dyn ZonedDevice>,
}

/// How an array shall be made.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// 1 to 64 bytes that show, without `/` (see [`wrong_with_name`]).
    pub name: String,
    /// Random, chosen by the caller.
    pub uuid: [u8; 16],
    /// Blocks in a chunk: a power of two; where the policy uses the drives' ZRWA, at least twice its
    /// flush granularity and at most half of it.
    pub chunk_blocks: u64,
    /// Distance between two logical zones; the next power of two above the capacity by default.
    /// If it is smaller than what a zone could hold, the zone's capacity is cut to it.
    pub zone_size_blocks: Option<u64>,
    /// How partial stripes are protected; by default the best the drives can do.
    pub policy: Option<Policy>,
    /// Who makes it; zeros for nobody.
    pub host: [u8; 16],
    /// Whether it starts by itself on that host.
    pub autostart: bool,
}

/// An array that could be made (see [`Array::design`]).
#[derive(Clone, Debug)]
pub struct Design {
    pub geometry: Geometry,
    pub policy: Policy,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Blocks of all members together that hold parity when every zone is full.
    pub parity_blocks: u64,
    /// Blocks of all members together in zones for metadata.
    pub metadata_blocks: u64,
}

/// What a member is to the array now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Holds what it should.
    Active,
    /// Being filled; not counted as redundancy yet.
    Rebuilding,
    /// Not there, failed, or stale: the array does without it.
    Out,
}

/// One line of [`ArrayStatus`].
#[derive(Clone, Debug)]
pub struct MemberStatus {
    pub state: MemberState,
    /// Name of the drive; empty if there is none.
    pub drive: String,
    /// Why a member is out, or what else there is to say; empty if all is well.
    pub note: String,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Zones on this member that have to be rebuilt.
    pub zones_to_rebuild: u32,
    /// Zones of the drive are read-only or offline: they can be rebuilt on another drive only.
    pub worn: bool,
    /// What was written on the drive when it became the member, whether it is there or not.
    pub plate: Plate,
}

/// What there is to say about an array.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    pub name: String,
    pub uuid: [u8; 16],
    pub chunk_blocks: u64,
    pub policy: Policy,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Grows with every change of membership.
    pub event: u64,
    /// Who made or adopted it; zeros for nobody.
    pub host: [u8; 16],
    /// Whether it starts by itself on that host.
    pub autostart: bool,
    /// In order of their roles.
    pub members: Vec<MemberStatus>,
    /// Blocks that a rebuild could not bring back: reads of them, and of those that they would be decoded
    /// from, fail while another drive cannot read either.
    pub lost_blocks: u64,
    /// Whether more members are out than parity can make up for: nothing works any more.
    pub failed: bool,
    /// Zones that are offline, since nobody can tell where they ended.
    pub offline: Vec<OfflineZone>,
    /// Nothing has been written on the drives yet, since a member is missing that is not out so far.
    pub provisional: bool,
    /// It can only be read, and nothing is written on the drives.
    pub read_only: bool,
    /// Why an array that has held back could not begin to write.
    pub problem: Option<String>,
}

/// A zone that could not be decided; everything else works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineZone {
    pub zone: ZoneIndex,
    pub refusal: Refusal,
    /// Members that may decide it when they are there again.
    pub waits_for: Vec<usize>,
}

/// How far a rebuild is, in bytes on the members that are rebuilt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// What has become of a drive that was to replace another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// It holds what the old one did, but for what is to be rebuilt; so many bytes have been copied.
    Copied { bytes: u64 },
    /// The old one went out on the way: it is to be rebuilt as a whole.
    Attached,
}

/// What a rebuild has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes written to the members under repair.
    pub bytes: u64,
    /// Zones that could not be rebuilt; all others have been.
    pub left_out: Vec<LeftOut>,
    /// Blocks of the array that nobody can read any more: the drives under repair lacked something of
    /// them, and another one could not read what it had. In order.
    pub lost: Vec<LostBlocks>,
}

/// Blocks of a zone that cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBlocks {
    pub zone: u32,
    /// From the start of the zone.
    pub from: u64,
    pub blocks: u64,
}

/// A member's part of a zone that could not be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub zone: u32,
    pub member: usize,
    /// Why, in a sentence without its full stop.
    pub reason: String,
}

/// Why there is no array, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArrayError(pub String);

/// What a process that runs an array leaves outside of its own memory, so that the next one can go on
/// exactly there if it dies while the drives keep power ([`Array::take_over`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tails {
    /// [`Array::assembly`] of the array that the process ran.
    pub assembly: u64,
    /// For each logical zone the largest [`Done::tail`] of the writes and appends that have completed:
    /// raised before anybody is told of the completion, and set to 0 with a reset before anybody is
    /// told of that.
    pub blocks: Vec<u64>,
}

/// N zoned devices as one. Clones are the same array. Its tasks belong to the runtime: it lives, and
/// holds its drives, until [`Runtime::clear`].
#[derive(Clone)]
pub struct Array(pub(crate) Rc<Handle>);

/// How an array shall be assembled and behave: the default but for experiments, tests, and where an operator
/// has no other choice.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    pub consistency: Consistency,
    /// Whether writes that are queued behind each other in a zone share a plan.
    pub join: bool,
    pub canary: Option<Canary>,
    pub log_step: LogStep,
    /// Takes stale members where there are too few others, for zones that are full (see [`crate::raid::recover`]).
    pub force: bool,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        let (consistency, log_step) = (Consistency::default(), LogStep::None);
        Behaviour { consistency, join: true, canary: None, log_step, force: false }
    }
}

/// What [`examine`] finds on a drive.
#[derive(Clone, Debug)]
pub struct Examined {
    pub superblock: Superblock,
    /// Role of the drive.
    pub member: usize,
    /// Generation of its metadata log, and how many records are in it.
    pub generation: u64,
    pub records: usize,
    /// Records that cannot be read: torn by a power cut, usually.
    pub damaged: u32,
}

/// Reads what zoneraid has written on a drive; writes nothing.
pub async fn examine(runtime: &Runtime, drive: &Drive) -> Result<Examined, ArrayError> {
    let (candidates, damaged) = scan(runtime, vec![drive.clone()]).await?;
    let Some(candidate) = candidates.first() else {
        return Err(ArrayError(damaged.into_iter().next().unwrap_or_default()));
    };
    Ok(Examined {
        superblock: candidate.superblock().clone(),
        member: candidate.log.origin.member as usize,
        generation: candidate.log.generation,
        records: candidate.log.records.len() + candidate.log.parities,
        damaged: candidate.log.damaged,
    })
}

/// What [`Array::inspect`] finds.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub status: ArrayStatus,
    pub geometry: Geometry,
    /// As they would be after assembly.
    pub zones: Vec<ZoneInfo>,
}

/// Reads the metadata of `drives` and decides what each zone needs; writes nothing.
pub(crate) async fn look(
    runtime: &Runtime,
    drives: Vec<Drive>,
    tails: Option<&Tails>,
    behaviour: Behaviour,
) -> Result<Look, ArrayError> {
    let (candidates, damaged) = scan(runtime, drives).await?;
    let found = decide_members(candidates, &damaged, behaviour.force)?;
    for candidate in found.members.iter().flatten() {
        check_drive(&candidate.drive.name, &*candidate.device, &found.superblock)?;
    }
    let mut present = found.members.iter().flatten().map(|candidate| candidate.drive.device.geometry());
    let geometry = array_geometry(&found.superblock, present.any(|geometry| geometry.volatile_cache));
    let ignored = behaviour.canary == Some(Canary::TailsIgnored);
    let tails = tails.filter(|tails| tails.assembly == found.superblock.assembly && !ignored);
    if let Some(tails) = tails.filter(|tails| tails.blocks.len() != geometry.zones as usize) {
        let (known, zones) = (tails.blocks.len(), geometry.zones);
        return Err(ArrayError(format!(
            "the array has {zones} zones, but the process that ran it left the ends of {known}: leave them out"
        )));
    }
    let zones = (found.zones, found.burned);
    let core = Core::new(runtime, found.superblock, geometry, zones, found.sequence, behaviour);
    *core.holes.borrow_mut() = found.holes;
    for (role, candidate) in found.members.into_iter().enumerate() {
        let Some(Candidate { drive: Drive { name, device: drive }, device, log }) = candidate else {
            continue;
        };
        let log = MetaLog::new(&core, role, drive, device, log.zone, log.generation, log.live);
        core.put(role, name, log);
    }
    for (member, note) in core.members.iter().zip(found.notes) {
        *member.note.borrow_mut() = note;
    }
    for member in Core::each(found.returned) {
        let what = if found.forced & 1 << member == 0 {
            "the zones that cannot do without it"
        } else {
            "full zones, by force"
        };
        *core.members[member].note.borrow_mut() = format!("was away: it has been taken back for {what}");
    }
    let verdicts = core.judge_all(tails, found.forced).await?;
    Ok(Look { core, verdicts, floor: found.floor, late: found.returned | found.undecided })
}

/// What [`look`] finds.
pub(crate) struct Look {
    core: Rc<Core>,
    verdicts: Vec<(ZoneIndex, Verdict)>,
    /// The floor of the next superblock.
    floor: u64,
    /// Members (bits) that come back from having been away, or of which one of two drives was taken: they are
    /// told last.
    late: u32,
}

impl Look {
    /// Whether all members are there that are not out yet.
    pub fn is_complete(&self) -> bool {
        let superblock = self.core.superblock.borrow();
        let mut members = superblock.members.iter().enumerate();
        members.all(|(member, about)| !about.active || self.core.device(member).is_some())
    }

    /// Whether a drive is a member.
    pub fn uses(&self, drive: &Drive) -> bool {
        self.core.check_unused(drive).is_err()
    }

    /// [`Array::assembly`] as it is on the drives.
    pub fn assembly(&self) -> u64 {
        self.core.superblock.borrow().assembly
    }

    /// Has every zone end where it does `without` members that are here: of those that would not, they lack
    /// their parts.
    pub fn end_as(&mut self, without: Look) {
        let core = &self.core;
        let absent = core.active.get() & !without.core.active.get();
        let mut others: BTreeMap<_, _> = without.verdicts.into_iter().collect();
        let mut own: BTreeMap<_, _> = std::mem::take(&mut self.verdicts).into_iter().collect();
        for zone in (0..core.geometry.zones).map(ZoneIndex) {
            let other = others.remove(&zone).unwrap_or(Verdict::Empty);
            let seen = core.seen(own.get(&zone).unwrap_or(&Verdict::Empty));
            if seen == core.seen(&other) || matches!(other, Verdict::Offline(_)) {
                continue;
            }
            let mut record = without.core.zones.borrow()[zone.0 as usize];
            record.lost |= absent;
            core.zones.borrow_mut()[zone.0 as usize] = record;
            core.offline.borrow_mut().remove(&zone.0);
            core.holding.borrow_mut().remove(&zone.0);
            let burned = without.core.burned.borrow();
            core.burned.borrow_mut().retain(|burned| burned.zone != zone.0);
            core.burned.borrow_mut().extend(burned.iter().filter(|burned| burned.zone == zone.0).cloned());
            core.holes.borrow_mut().take_over(zone.0, &without.core.holes.borrow());
            core.forget_logs_of(absent, zone.0);
            own.insert(zone, other);
        }
        self.verdicts = own.into_iter().filter(|(_, verdict)| !matches!(verdict, Verdict::Empty)).collect();
    }

    /// Tells the table what the zones are.
    fn load(&self) {
        self.verdicts.iter().for_each(|(zone, verdict)| self.core.load(*zone, verdict));
    }

    /// Drops what is in logs and does not count any more.
    fn keep_what_counts(&self) -> Result<(), ArrayError> {
        match self.core.layout.policy {
            Policy::Log => self.core.keep_of_logs(&self.verdicts),
            Policy::Zrwa | Policy::InPlace => {
                self.core.forget_dead(&self.verdicts);
                Ok(())
            }
        }
    }

    /// Has all members that are here say `change`, and nothing else: as an assembly does that is cut off when
    /// it has written its checkpoints.
    pub async fn relabel(self, change: &Change) -> Result<(), ArrayError> {
        change.apply(&mut self.core.superblock.borrow_mut())?;
        self.keep_what_counts()?;
        self.load();
        let told = self.core.active.get();
        self.core.renew(self.floor, self.late).await?;
        match told & !self.core.active.get() {
            0 => Ok(()),
            failed => Err(ArrayError(format!("not all could be told: {}", self.core.notes(failed)))),
        }
    }

    /// Does on the drives what was decided.
    pub async fn carry_out(self) -> Result<Rc<Core>, ArrayError> {
        self.keep_what_counts()?;
        self.load();
        let Look { core, verdicts, floor, late } = self;
        core.renew(floor, late).await?;
        core.start_members();
        core.expel_absent().await?;
        for (zone, verdict) in verdicts {
            core.repair(zone, verdict).await?;
        }
        core.begin().await?;
        // One that was away may hold zones that ended without it.
        core.clear_leftovers().await;
        Ok(core)
    }
}

/// Finds what `drives` are members of, and gets it going.
pub(crate) async fn assemble(
    runtime: &Runtime,
    drives: Vec<Drive>,
    tails: Option<&Tails>,
    behaviour: Behaviour,
) -> Result<Rc<Core>, ArrayError> {
    look(runtime, drives, tails, behaviour).await?.carry_out().await
}

impl Array {
    /// Makes a new array of `drives`, in the order of their roles. Every zone of them is reset.
    ///
    /// One drive after the other is emptied and told what it is to be; when all have been, they are told that
    /// the array is there. A cut on the way leaves drives as they were, one that is not empty yet, and some
    /// that say what they were to become: [`Array::assemble`] refuses these. Once one drive knows that the array
    /// is there, all of them are members.
    pub async fn create(
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
    ) -> Result<Array, ArrayError> {
        Array::create_with(runtime, options, drives, Behaviour::default()).await
    }

    /// What [`Array::create`] would make of `drives`; writes nothing.
    ///
    /// # Errors
    /// Whatever it would refuse.
    pub fn design(
        runtime: &Runtime,
        options: &CreateOptions,
        drives: &[Drive],
    ) -> Result<Design, ArrayError> {
        let Draft { superblock, geometry, members } = draft(runtime, options, drives, Behaviour::default())?;
        let capacities = members.iter().map(|member| member.device.geometry().zone_capacity_blocks);
        Ok(Design {
            policy: superblock.policy,
            aggregate: superblock.aggregate,
            parity_blocks: superblock.layout().rows
                * superblock.layout().chunk_blocks
                * geometry.zones as u64,
            metadata_blocks: capacities.map(|capacity| capacity * META_ZONES as u64).sum(),
            geometry,
        })
    }

    /// As [`Array::create`], for experiments.
    pub async fn create_with(
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        behaviour: Behaviour,
    ) -> Result<Array, ArrayError> {
        let Draft { superblock, geometry, members } = draft(runtime, &options, &drives, behaviour)?;
        let zones = vec![ZoneRecord::default(); superblock.zones as usize];
        let core = Core::new(runtime, superblock, geometry, (zones, Vec::new()), 1, behaviour);
        for (member, (drive, Drive { name, device })) in drives.into_iter().zip(members).enumerate() {
            let wiped = wipe(&*device).await;
            wiped.map_err(|error| ArrayError(format!("{name}: resetting it failed: {error}")))?;
            // The other zone than the one before the first.
            let log = MetaLog::new(&core, member, drive.device, device, 1, 0, Live::default());
            core.put(member, name.clone(), log.clone());
            let written = log.checkpoint(&core, true).await;
            written.map_err(|error| ArrayError(format!("{name}: writing its metadata failed: {error}")))?;
        }
        core.start_logs();
        core.end_making().await?;
        core.runtime.spawn(core.clone().keep_membership());
        Ok(Array::of(core))
    }

    /// Finds the array that `drives`, in any order, are members of; recovers what a power cut
    /// left behind. One missing member is done without.
    pub async fn assemble(runtime: &Runtime, drives: Vec<Drive>) -> Result<Array, ArrayError> {
        Array::assemble_with(runtime, drives, None, Behaviour::default()).await
    }

    /// As [`Array::assemble`], after a process that ran the array has died while the drives kept power:
    /// whatever it had answered is there, also without FUA or flush. None of its commands may be on its
    /// way to a drive any more. Tails of another assembly than the last are not looked at.
    pub async fn take_over(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: &Tails,
    ) -> Result<Array, ArrayError> {
        Array::assemble_with(runtime, drives, Some(tails), Behaviour::default()).await
    }

    /// As [`Array::assemble`], or [`Array::take_over`] if there are `tails`, for experiments.
    pub async fn assemble_with(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: Behaviour,
    ) -> Result<Array, ArrayError> {
        Ok(Array::of(assemble(runtime, drives, tails, behaviour).await?))
    }

    /// Where everything lies in a zone.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// What [`Array::assemble`], or [`Array::take_over`] if there are `tails`, would find in `drives`;
    /// writes nothing.
    pub async fn inspect(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
    ) -> Result<Inspected, ArrayError> {
        let found = look(runtime, drives, tails, Behaviour::default()).await?;
        found.keep_what_counts()?;
        found.load();
        let provisional = !found.is_complete();
        let core = found.core;
        let zones = core.table.borrow().report(ZoneIndex(0), core.geometry.zones);
        let zones = zones.map_err(|error| ArrayError(format!("its zones cannot be listed: {error}")))?;
        let array = Array::of(core);
        let status = ArrayStatus { provisional, ..array.status() };
        Ok(Inspected { status, geometry: array.geometry().clone(), zones })
    }

    /// Whether `drive` could take the place of a member; otherwise the error says what it lacks.
    pub fn accepts(&self, drive: &Drive) -> Result<(), ArrayError> {
        self.prepare(drive).map(|_| ())
    }

    /// The drive as a member uses it, if it could be one.
    fn prepare(&self, drive: &Drive) -> Result<Rc<dyn ZonedDevice>, ArrayError> {
        let core = self.core();
        let superblock = core.superblock.borrow();
        let aggregate = superblock.aggregate;
        let device = prepare(&core.runtime, drive.device.clone(), superblock.policy, aggregate);
        let device = device.ok_or_else(|| {
            ArrayError(format!(
                "{}: {aggregate} of its zones cannot be used as one, as this array needs",
                drive.name
            ))
        })?;
        check_drive(&drive.name, &*device, &superblock)?;
        Ok(device)
    }

    /// Puts a drive in the place of `member`, which must be out, to be rebuilt. Every zone of the
    /// drive is reset.
    pub async fn attach(&self, member: usize, drive: Drive) -> Result<(), ArrayError> {
        self.begin().await?;
        let core = &self.core();
        let place = core.check_role(member)?;
        if core.active.get() & (1 << member) != 0 {
            return Err(ArrayError(format!("member {member} is in use: fail it first")));
        }
        if core.mirror.borrow().is_some() || core.held.borrow().is_some() {
            return Err(ArrayError("another drive is being replaced: let that end first".into()));
        }
        let device = self.prepare(&drive)?;
        core.check_unused(&drive)?;
        let problem = |error| ArrayError(format!("{}: {error}", drive.name));
        // It may be the drive that was here before, and reads of that be on their way.
        core.losses.set(core.losses.get() + 1);
        wipe(&*device).await.map_err(problem)?;
        core.membership_settled().await;
        let event = core.next_sequence();
        {
            let mut superblock = core.superblock.borrow_mut();
            superblock.event = event;
            let (uuid, plate) = (member_uuid(core.array, member, event), kept_plate(&*drive.device));
            superblock.members[member] = SuperblockMember::new(uuid, event, plate);
            let (table, running) = (core.table.borrow(), core.running.borrow());
            for (zone, record) in core.zones.borrow_mut().iter_mut().enumerate() {
                let empty = table.info(ZoneIndex(zone as u32)).state == ZoneState::Empty
                    && !running.contains_key(&(zone as u32));
                record.lost &= !(1 << member);
                record.lost |= (!empty as u32) << member;
                record.waits &= !(1 << member);
            }
        }
        let log = MetaLog::new(core, member, drive.device.clone(), device, 1, 0, Live::default());
        place.read_errors.set(0);
        place.write_errors.set(0);
        place.note.borrow_mut().clear();
        let others = core.active.get();
        core.put(member, drive.name.clone(), log.clone());
        // The new member learns last that it is one. If it knew before the others, and they went
        // on without it, its superblock would be the newest.
        let own = log.renew(core);
        core.renew_logs(others).await;
        core.runtime.spawn(log.run());
        own.await;
        core.membership_settled().await;
        if core.failed.get() || core.active.get() & (1 << member) == 0 {
            return Err(ArrayError(format!("{}: it failed while it was added", drive.name)));
        }
        core.superblock.borrow_mut().floor = event;
        Ok(())
    }

    /// Whether [`Array::replace`] could copy `member` to `drive`, which the array accepts; otherwise the error
    /// says why not.
    pub fn can_copy(&self, member: usize, drive: &Drive) -> Result<(), ArrayError> {
        let device = self.prepare(drive)?;
        let Drive { name, device: bare } = drive.clone();
        self.core().check_copy(member, &Newcomer { name, drive: bare, device }).map_err(ArrayError)
    }

    /// Puts a drive in the place of `member`, which works: that one is copied, and kept up to date, until the
    /// new one holds the same, and is left then. Every zone of the new drive is reset first. What could not
    /// be copied is to be rebuilt then; if the old drive goes out on the way, everything is. Has to be polled
    /// to its end, as [`Array::rebuild`].
    ///
    /// # Errors
    /// The new drive cannot be used, or has failed: the array is as before. A rebuild is under way, or zones
    /// are offline or have failed.
    pub async fn replace(
        &self,
        member: usize,
        drive: Drive,
        progress: &dyn Fn(Progress),
    ) -> Result<Replaced, ArrayError> {
        self.begin().await?;
        let core = &self.core();
        core.check_role(member)?;
        if core.active.get() & (1 << member) == 0 {
            return Err(ArrayError(format!("member {member} is out: there is nothing to copy")));
        }
        let device = self.prepare(&drive)?;
        core.check_unused(&drive)?;
        let Drive { name, device: bare } = drive.clone();
        let newcomer = Newcomer { name, drive: bare, device };
        match core.replace(member, newcomer, progress).await.map_err(ArrayError)? {
            Some(bytes) => Ok(Replaced::Copied { bytes }),
            None => {
                self.attach(member, drive).await?;
                Ok(Replaced::Attached)
            }
        }
    }

    /// Rebuilds whatever is not in sync, while reads and writes go on, and goes on where an
    /// earlier rebuild was interrupted. A zone that cannot be rebuilt is left out; blocks that cannot be
    /// brought back are lost, and the others of their zone are not. Has to be polled to its end: a zone that
    /// it holds for its last steps would stay held.
    ///
    /// # Errors
    /// The drive under repair or too many others failed, or a rebuild is under way already.
    pub async fn rebuild(&self, progress: &dyn Fn(Progress)) -> Result<Rebuilt, ArrayError> {
        self.begin().await?;
        self.core().rebuild(progress).await.map_err(ArrayError)
    }

    /// Takes `member` out of the array: it will not be read or written any more.
    pub async fn fail(&self, member: usize) -> Result<(), ArrayError> {
        self.begin().await?;
        let core = &self.core();
        let active = core.active.get();
        core.check_role(member)?;
        if active & (1 << member) == 0 {
            return Err(ArrayError(format!("member {member} is out already")));
        }
        if !core.can_spare(member) {
            return Err(ArrayError(format!(
                "member {member} is needed: another one is out or not rebuilt yet"
            )));
        }
        *core.members[member].note.borrow_mut() = "taken out by the operator".into();
        core.take_out(member);
        core.membership_settled().await;
        Ok(())
    }

    /// Waits for the next change of who the members are, from this call on.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        let core = self.core();
        async move { core.membership_done.wait().await }
    }

    /// Takes new buffers from `source` from now on, as long as that has any.
    pub fn feed(&self, source: Source) {
        *self.core().pool.borrow_mut() = BufPool::fed_by(source);
    }

    /// How the array is.
    pub fn status(&self) -> ArrayStatus {
        let core = &self.core();
        let superblock = core.superblock.borrow();
        let zones = core.zones.borrow();
        let members = core.members.iter().enumerate().map(|(m, member)| {
            let active = core.active.get() & (1 << m) != 0;
            let zones_to_rebuild = zones.iter().filter(|z| active && z.lost & (1 << m) != 0).count() as u32;
            let state = match (active, zones_to_rebuild) {
                (false, _) => MemberState::Out,
                (true, 0) => MemberState::Active,
                (true, _) => MemberState::Rebuilding,
            };
            MemberStatus {
                state,
                drive: member.name.borrow().clone(),
                note: member.note.borrow().clone(),
                read_errors: member.read_errors.get(),
                write_errors: member.write_errors.get(),
                zones_to_rebuild,
                worn: member.worn.get(),
                plate: superblock.members[m].plate.clone(),
            }
        });
        let offline = |zone: u32, refusal: &Refusal| OfflineZone {
            zone: ZoneIndex(zone),
            refusal: refusal.clone(),
            waits_for: Core::each(zones[zone as usize].waits & !core.active.get()).collect(),
        };
        ArrayStatus {
            name: superblock.name.clone(),
            uuid: superblock.array.0,
            chunk_blocks: core.layout.chunk_blocks,
            policy: superblock.policy,
            aggregate: superblock.aggregate,
            event: superblock.event,
            host: superblock.host.0,
            autostart: superblock.autostart,
            members: members.collect(),
            lost_blocks: core.holes.borrow().blocks(),
            failed: core.failed.get(),
            provisional: self.is_provisional(),
            read_only: self.is_read_only(),
            problem: self.problem(),
            offline: core.offline.borrow().iter().map(|(zone, refusal)| offline(*zone, refusal)).collect(),
        }
    }
}

impl Core {
    fn check_role(&self, member: usize) -> Result<&Member, ArrayError> {
        let all = self.members.len();
        let place = self.members.get(member);
        place.ok_or_else(|| ArrayError(format!("there is no member {member}: the array has {all}")))
    }

    fn check_unused(&self, drive: &Drive) -> Result<(), ArrayError> {
        let is_used = |member: usize| {
            let log = self.members[member].log.borrow();
            log.as_ref().is_some_and(|log| Rc::ptr_eq(&log.drive, &drive.device))
        };
        match Core::each(self.active.get()).any(is_used) {
            true => Err(ArrayError(format!("{} is a member of this array already", drive.name))),
            false => Ok(()),
        }
    }

    /// Starts a command for the array.
    pub fn submit_command(self: &Rc<Self>, command: Command) -> Completion {
        if self.failed.get() {
            return Completion::failed(Status::InternalError);
        }
        if let Some(held) = &mut *self.held.borrow_mut()
            && changes(&command)
        {
            let (completer, completion) = self.slots.pair();
            held.push((command, completer));
            return completion;
        }
        self.dispatch(command).unwrap_or_else(Completion::failed)
    }

    fn dispatch(self: &Rc<Self>, command: Command) -> Result<Completion, DeviceError> {
        let check_busy = |zone: ZoneIndex| match self.busy.borrow().contains(&zone.0) {
            true => Err(DeviceError::from(Status::InvalidZoneStateTransition)),
            false => Ok(()),
        };
        let check_written = |zone: ZoneIndex| match zone.0 < self.geometry.zones && self.has_failed(zone) {
            true => Err(DeviceError::from(Status::ZoneIsReadOnly)),
            false => check_busy(zone),
        };
        let blocks = |data: &Buf| match data.len().is_multiple_of(BLOCK) {
            true => Ok(data.blocks()),
            false => Err(DeviceError::from(Status::InvalidField)),
        };
        Ok(match command {
            Command::Read { lba, data, .. } => {
                self.table.borrow().check_read(lba, blocks(&data)?)?;
                let (zone, at) = self.geometry.locate(lba);
                self.read(zone, at, data)
            }
            Command::Write { lba, data, fua, .. } => {
                let (zone, _) = self.geometry.locate(lba);
                check_written(zone)?;
                let effect = self.table.borrow_mut().write(lba, blocks(&data)?)?;
                self.write(effect.zone, effect.offset_blocks, data, fua)
            }
            Command::Append { zone, data, fua, .. } => {
                check_written(zone)?;
                let effect = self.table.borrow_mut().append(zone, blocks(&data)?)?;
                self.write(effect.zone, effect.offset_blocks, data, fua)
            }
            Command::Flush => self.run_async(self.clone().flush()),
            Command::Open { zrwa: true, .. } | Command::FlushZrwa { .. } => {
                return Err(Status::InvalidField.into());
            }
            Command::Open { zones, zrwa: false } => {
                let mut table = self.table.borrow_mut();
                match zones {
                    Zones::One(zone) => check_busy(zone).and_then(|()| Ok(table.open(zone, false)?))?,
                    Zones::All => table.open_all()?,
                }
                Completion::ready(Done::ok())
            }
            Command::Close { zones } => {
                let mut table = self.table.borrow_mut();
                match zones {
                    Zones::One(zone) => check_busy(zone).and_then(|()| Ok(table.close(zone)?))?,
                    Zones::All => table.close_all(),
                }
                Completion::ready(Done::ok())
            }
            Command::Finish { zones } => self.start_finish(zones)?,
            Command::Reset { zones } => self.start_reset(zones)?,
            Command::Report { first, count } => {
                let mut zones = self.table.borrow().report(first, count)?;
                for info in zones.iter_mut().filter(|info| self.has_failed(info.zone)) {
                    // To the table it is as it was: it takes as much of the drives.
                    if info.state != ZoneState::Offline {
                        info.state = ZoneState::ReadOnly;
                    }
                }
                Completion::ready(Done { zones, ..Done::ok() })
            }
        })
    }

    fn start_reset(self: &Rc<Self>, zones: Zones) -> Result<Completion, DeviceError> {
        let ranges = match zones {
            // One that is offline is given up.
            Zones::One(zone) => std::iter::once(zone.0..zone.0.saturating_add(1)).collect(),
            Zones::All => self.ranges_online(),
        };
        self.mark_busy(&ranges)?;
        let core = self.clone();
        Ok(self.run_async(async move {
            let mut result = Ok(());
            for range in ranges {
                result = result.and(core.clone().reset(range).await);
            }
            result
        }))
    }

    /// All zones, but for those that are offline.
    fn ranges_online(&self) -> Vec<Range<u32>> {
        let (mut ranges, mut from) = (Vec::new(), 0);
        for zone in self.offline.borrow().keys().copied().chain([self.geometry.zones]) {
            if from < zone {
                ranges.push(from..zone);
            }
            from = zone + 1;
        }
        ranges
    }

    fn start_finish(self: &Rc<Self>, zones: Zones) -> Result<Completion, DeviceError> {
        let state = |zone: u32| self.table.borrow().info(ZoneIndex(zone)).state;
        if let Zones::One(zone) = zones
            && self.offline.borrow().contains_key(&zone.0)
        {
            return Err(Status::InvalidZoneStateTransition.into());
        }
        let chosen: Vec<u32> = match zones {
            Zones::One(zone) if zone.0 >= self.geometry.zones => return Err(Status::LbaOutOfRange.into()),
            // Full already; but its last writes may still be on their way.
            Zones::One(zone)
                if state(zone.0) == ZoneState::Full && !self.running.borrow().contains_key(&zone.0) =>
            {
                Vec::new()
            }
            Zones::One(zone) => vec![zone.0],
            Zones::All => (0..self.geometry.zones)
                .filter(|zone| state(*zone).is_active() && !self.has_failed(ZoneIndex(*zone)))
                .collect(),
        };
        self.mark_busy(&chosen.iter().map(|zone| *zone..zone + 1).collect::<Vec<_>>())?;
        let core = self.clone();
        Ok(self.run_async(async move {
            let mut result = Ok(());
            for zone in chosen {
                result = result.and(core.clone().finish(ZoneIndex(zone)).await);
            }
            result
        }))
    }

    /// Marks zones for a reset or finish; refused while another one is under way in any of them.
    fn mark_busy(&self, zones: &[Range<u32>]) -> Result<(), DeviceError> {
        if zones.iter().any(|range| range.end > self.geometry.zones) {
            return Err(Status::LbaOutOfRange.into());
        }
        let mut busy = self.busy.borrow_mut();
        if zones.iter().any(|range| busy.range(range.clone()).next().is_some()) {
            return Err(Status::InvalidZoneStateTransition.into());
        }
        busy.extend(zones.iter().cloned().flatten());
        Ok(())
    }

    pub(crate) fn new(
        runtime: &Runtime,
        superblock: Superblock,
        geometry: Geometry,
        (zones, burned): (Vec<ZoneRecord>, Vec<Burned>),
        sequence: u64,
        behaviour: Behaviour,
    ) -> Rc<Core> {
        Rc::new(Core {
            runtime: runtime.clone(),
            slots: Rc::default(),
            array: superblock.array,
            layout: superblock.layout(),
            table: RefCell::new(ZoneTable::new(&geometry)),
            may_lose: Cell::new(geometry.volatile_cache),
            geometry,
            consistency: behaviour.consistency,
            join: behaviour.join,
            volatile: Cell::new(false),
            generation: Cell::new(superblock.event as u32),
            canary: behaviour.canary,
            log_step: behaviour.log_step,
            members: superblock.members.iter().map(|_| Member::default()).collect(),
            active: Cell::new(0),
            failed: Cell::new(false),
            superblock: RefCell::new(superblock),
            zones: RefCell::new(zones),
            burned: RefCell::new(burned),
            holes: RefCell::default(),
            sequence: Cell::new(sequence),
            offline: RefCell::default(),
            holding: RefCell::default(),
            running: RefCell::default(),
            pool: RefCell::default(),
            membership_pending: Cell::new(false),
            lacks: RefCell::default(),
            waits: Cell::new(false),
            losses: Cell::new(0),
            membership: Gate::default(),
            membership_done: Gate::default(),
            idle_readers: RefCell::default(),
            busy: RefCell::default(),
            repairing: Cell::new(None),
            rebuild_runs: Cell::new(false),
            mirror: RefCell::default(),
            held: RefCell::default(),
            underway: Cell::default(),
            clearing: RefCell::default(),
            rebuilding: Cell::new(None),
            rebuild_stop: Cell::new(false),
            handing_over: Cell::new(None),
            zones_changed: Gate::default(),
        })
    }

    /// Starts the tasks that every array has.
    fn start_members(self: &Rc<Self>) {
        self.start_logs();
        self.runtime.spawn(self.clone().keep_membership());
    }

    fn start_logs(self: &Rc<Self>) {
        for member in &self.members {
            if let Some(log) = &*member.log.borrow() {
                self.runtime.spawn(log.clone().run());
            }
        }
    }

    /// Tells all members of a new array that it is there. Those that have not been told when the power goes are
    /// members all the same: the floor is below what they have.
    async fn end_making(&self) -> Result<(), ArrayError> {
        let event = self.next_sequence();
        let superblock = {
            let mut superblock = self.superblock.borrow_mut();
            (superblock.event, superblock.stage) = (event, Stage::Whole);
            superblock.clone()
        };
        self.append_to(self.active.get(), Record::Superblock(Box::new(superblock)), event).await;
        self.superblock.borrow_mut().floor = event;
        let out = u32::MAX >> (32 - self.members.len()) & !self.active.get();
        if out == 0 { Ok(()) } else { Err(ArrayError(format!("a member is out: {}", self.notes(out)))) }
    }

    /// What there is to say of the members in `mask`, in a sentence without its full stop.
    fn notes(&self, mask: u32) -> String {
        let noted = Core::each(mask).filter_map(|role| Some((role, self.members.get(role)?)));
        let noted = noted.filter(|(_, member)| !member.note.borrow().is_empty());
        let notes: Vec<_> =
            noted.map(|(role, member)| format!("member {role}: {}", member.note.borrow())).collect();
        notes.join("; ")
    }

    /// Looks at every zone; writes nothing. Members that are `forced` (bits) count in full zones only.
    async fn judge_all(
        &self,
        tails: Option<&Tails>,
        forced: u32,
    ) -> Result<Vec<(ZoneIndex, Verdict)>, ArrayError> {
        let mut reports = Vec::new();
        let mut missing = (0..self.members.len()).any(|role| self.device(role).is_none());
        for role in 0..self.members.len() {
            let Some(device) = self.device(role) else {
                reports.push(None);
                continue;
            };
            let count = self.geometry.zones;
            let done = device.submit(Command::Report { first: Core::physical(ZoneIndex(0)), count }).await;
            let listed = done.zones.len();
            let note = match done.result {
                Ok(()) if listed >= count as usize => {
                    let is_worn = |info: &ZoneInfo| is_worn(info.state);
                    self.members[role].worn.set(done.zones.iter().any(is_worn));
                    reports.push(Some(done.zones));
                    continue;
                }
                Ok(()) => format!("it lists only {listed} zones"),
                Err(error) => format!("its zones cannot be listed: {error}"),
            };
            reports.push(None);
            if std::mem::replace(&mut missing, true) {
                let name = self.members[role].name.borrow().clone();
                return Err(ArrayError(format!("{name}: {note}, and another member is missing")));
            }
            self.leave_out(role, note);
        }
        let (floor, was_active) = {
            let superblock = self.superblock.borrow();
            let active = superblock.members.iter().enumerate().map(|(m, member)| (member.active as u32) << m);
            (superblock.floor, active.sum::<u32>())
        };
        let mut verdicts = Vec::new();
        for index in 0..self.geometry.zones {
            let zone = ZoneIndex(index);
            let info = reports.iter().map(|r| r.as_ref().map(|zones| zones[index as usize])).collect();
            let mut record = self.zones.borrow()[index as usize];
            let mut parts = reports.iter().flatten().map(|zones| zones[index as usize].state);
            let unproven = forced & !record.waits;
            if unproven != 0 && !parts.all(|state| state == ZoneState::Full) {
                record.lost |= unproven;
                self.forget_logs_of(unproven, index);
            }
            let answered_blocks = tails.map_or(0, |tails| tails.blocks[index as usize]);
            let mut view = ZoneView { zone, record: &mut record, info, answered_blocks };
            let verdict = self.judge(&mut view).await.unwrap_or_else(Verdict::Offline);
            match &verdict {
                Verdict::Offline(refusal) => {
                    self.offline.borrow_mut().insert(index, refusal.clone());
                    // As long as it is offline these parts stay as they are, whoever comes and goes.
                    record.wait_for((was_active | self.active.get()) & !record.lost, floor);
                    let holds = |report: &Option<Vec<ZoneInfo>>| {
                        report.as_ref().is_some_and(|zones| zones[index as usize].state.is_active())
                    };
                    if reports.iter().any(holds) {
                        self.holding.borrow_mut().insert(index);
                    }
                }
                // Those that have come back are members again only when all others know it.
                _ => record.waits &= self.active.get(),
            }
            if matches!(verdict, Verdict::Reset) && !record.resetting {
                // Promised like any other reset: half of it must not look like a zone that lost members,
                // and nothing that is left of its life may be believed later.
                (record.epoch, record.resetting) = (self.next_sequence(), true);
            }
            self.zones.borrow_mut()[index as usize] = record;
            if !matches!(verdict, Verdict::Empty) {
                verdicts.push((zone, verdict));
            }
        }
        Ok(verdicts)
    }

    /// Drops whatever the logs of some members (bits) say of a zone.
    fn forget_logs_of(&self, members: u32, zone: u32) {
        for member in Core::each(members) {
            if let Some(log) = &*self.members[member].log.borrow() {
                log.live.borrow_mut().retain_zones(|other, _| other != zone);
            }
        }
    }

    /// Drops logged parity and tails of zones that do not go on. In one that does, parity of stripes below
    /// its tail is still needed: until write pointers show these, another crash may end before them.
    fn forget_dead(&self, verdicts: &[(ZoneIndex, Verdict)]) {
        let goes_on = |zone: u32, epoch: u64| {
            self.zones.borrow()[zone as usize].epoch == epoch
                && verdicts.iter().any(|(z, verdict)| {
                    let goes_on =
                        matches!(verdict, Verdict::Open(_) | Verdict::Finish(Some(_)) | Verdict::Offline(_));
                    z.0 == zone && goes_on
                })
        };
        for member in &self.members {
            if let Some(log) = &*member.log.borrow() {
                let mut live = log.live.borrow_mut();
                live.parity.retain(|zone, epoch, _, _, _| goes_on(zone, epoch));
                live.tails.retain(|zone, tail| goes_on(*zone, tail.epoch));
            }
        }
    }

    /// Writes the superblock of this assembly to all members, as a checkpoint. Who is absent is not out yet:
    /// this may come to nothing. Those that are `late` learn last that they are members: if one of
    /// them knew before the others, and they went on without it, its superblock would be the newest.
    async fn renew(self: &Rc<Self>, floor: u64, late: u32) -> Result<(), ArrayError> {
        let event = self.next_sequence();
        {
            let mut superblock = self.superblock.borrow_mut();
            (superblock.event, superblock.floor) = (event, floor);
            self.generation.set(event as u32);
            for (m, member) in superblock.members.iter_mut().enumerate() {
                member.active |= self.active.get() & (1 << m) != 0;
            }
        }
        // What was decided rests on what the drives hold. If a process has died and the power goes only
        // now, no checkpoint may speak of what was lost with a cache.
        self.flush_caches(self.active.get()).await;
        let active = self.active.get();
        for member in Core::each(active & !late).chain(Core::each(active & late)) {
            let Some(log) = self.members[member].log.borrow().clone() else { continue };
            if let Err(error) = log.checkpoint(self, true).await {
                self.member_failed(self.seat(member), error, "metadata write");
            }
        }
        self.check_members()?;
        if !self.membership_pending.get() {
            self.superblock.borrow_mut().floor = event;
        }
        Ok(())
    }

    /// Has all members know that those are out which are not there, before anything is done without them:
    /// one that was taking over, too, and the one before it.
    async fn expel_absent(&self) -> Result<(), ArrayError> {
        let is_out = |member: usize| self.active.get() & (1 << member) == 0;
        let mut listed = false;
        for (m, member) in self.superblock.borrow_mut().members.iter_mut().enumerate() {
            let undecided = member.taking_over.take();
            listed |= undecided.is_some() || member.active && is_out(m);
        }
        if listed {
            self.membership_pending.set(true);
            self.membership.open();
        }
        self.membership_settled().await;
        self.check_members()
    }

    /// Ends the assembly: everything is safe that tails of an earlier process spoke of, and they are
    /// not to be believed any more.
    async fn begin(&self) -> Result<(), ArrayError> {
        self.membership_settled().await;
        let decided: Vec<(u32, u64)> = {
            let (zones, offline) = (self.zones.borrow(), self.offline.borrow());
            let waited = (0..).zip(zones.iter()).filter(|(_, record)| record.waits != 0);
            // One that has failed goes on waiting: whom it waited for may be gone again.
            waited
                .filter(|(zone, _)| !offline.contains_key(zone) && !self.has_failed(ZoneIndex(*zone)))
                .map(|(z, record)| (z, record.epoch))
                .collect()
        };
        for (zone, epoch) in decided {
            self.zones.borrow_mut()[zone as usize].waits = 0;
            let sequence = self.next_sequence();
            self.broadcast(Record::Decided { zone, epoch }, sequence).await;
        }
        self.superblock.borrow_mut().assembly = self.next_sequence();
        self.membership_pending.set(true);
        self.membership.open();
        self.membership_settled().await;
        self.check_members()
    }

    pub(crate) fn check_members(&self) -> Result<(), ArrayError> {
        if !self.failed.get() {
            return Ok(());
        }
        Err(ArrayError(format!("too many drives have failed: {}", self.notes(u32::MAX))))
    }

    /// What a zone is to the host by a verdict.
    fn seen(&self, verdict: &Verdict) -> (ZoneState, u64) {
        match verdict {
            Verdict::Empty | Verdict::Reset => (ZoneState::Empty, 0),
            Verdict::Full | Verdict::Finish(_) => (ZoneState::Full, self.layout.capacity_blocks()),
            Verdict::Open(tail) if tail.blocks == self.layout.capacity_blocks() => {
                (ZoneState::Full, tail.blocks)
            }
            Verdict::Open(tail) => (ZoneState::Closed, tail.blocks),
            Verdict::Offline(_) => (ZoneState::Offline, 0),
        }
    }

    /// Tells the table what a zone is.
    fn load(&self, zone: ZoneIndex, verdict: &Verdict) {
        let (state, wp_blocks) = self.seen(verdict);
        if state == ZoneState::Offline {
            self.table.borrow_mut().hold(self.holding.borrow().len() as u32);
        }
        let info =
            ZoneInfo { zone, state, wp_blocks, capacity_blocks: self.layout.capacity_blocks(), zrwa: false };
        self.table.borrow_mut().load(&info);
    }
}

/// Zones at the start of a drive in which the log of an array may be, of whatever kind that is.
const LOG_ZONES: u32 = META_ZONES * AGGREGATES[AGGREGATES.len() - 1];

/// Resets every zone of a drive. What says that there is something in the others goes first. Zones that an
/// orderly shutdown has made empty may still let be read what was in their ZRWA, and a reset of all zones
/// passes them over.
pub(crate) async fn wipe(device: &dyn ZonedDevice) -> Result<(), DeviceError> {
    let geometry = device.geometry();
    let first = LOG_ZONES.min(geometry.zones);
    reset_each(device, 0..first).await?;
    device.submit(Command::Reset { zones: Zones::All }).await.result?;
    reset_each(device, (first..geometry.zones).filter(|_| geometry.zrwa.is_some())).await
}

/// Resets `zones` of a drive, in any order.
pub(crate) async fn reset_each(
    device: &dyn ZonedDevice,
    zones: impl Iterator<Item = u32>,
) -> Result<(), DeviceError> {
    let zones: Vec<u32> = zones.collect();
    for batch in zones.chunks(64) {
        let reset = |zone: &u32| device.submit(Command::Reset { zones: Zones::One(ZoneIndex(*zone)) });
        let pending: Vec<_> = batch.iter().map(reset).collect();
        for completion in pending {
            match completion.await.result {
                // It is worn, and will be found to be.
                Err(DeviceError::Status(Status::InvalidZoneStateTransition)) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// What is written on a drive, as far as a superblock can keep it.
pub(crate) fn kept_plate(device: &dyn ZonedDevice) -> Plate {
    let Plate { model, serial, size_bytes } = device.plate();
    Plate { model: kept_of(&model, MODEL_BYTES), serial: kept_of(&serial, SERIAL_BYTES), size_bytes }
}

/// A name for a member that nobody else has, from what is unique about it.
pub(crate) fn member_uuid(array: Uuid, member: usize, event: u64) -> Uuid {
    let mut uuid = array.0;
    for (byte, add) in
        uuid.iter_mut().zip(event.to_le_bytes().into_iter().chain((member as u64).to_le_bytes()))
    {
        *byte = byte.wrapping_mul(167).wrapping_add(add);
    }
    Uuid(uuid)
}

/// How many zones of the drives are used as one: more than 1 if their ZRWAs do not hold two chunks. Then they
/// get four, as much as it takes to hold write pointers back (ZRAID §4.4, §6.5).
fn aggregate_for<'a>(
    policy: Policy,
    chunk_blocks: u64,
    drives: impl Iterator<Item = &'a Geometry> + Clone,
) -> u32 {
    let holds = |chunks: u64, aggregate: u32| {
        drives.clone().all(|drive| {
            let zrwa = Aggregated::geometry_of(drive, aggregate).and_then(|geometry| geometry.zrwa);
            zrwa.is_some_and(|zrwa| zrwa.size_blocks >= chunks * chunk_blocks)
        })
    };
    let too_small = |drive: &Geometry| drive.zrwa.is_some_and(|zrwa| zrwa.size_blocks < 2 * chunk_blocks);
    if !policy.uses_zrwa() || !drives.clone().any(too_small) {
        return 1;
    }
    AGGREGATES.into_iter().find(|aggregate| holds(4, *aggregate)).unwrap_or(1)
}

/// A new array before anything is written.
struct Draft {
    superblock: Superblock,
    geometry: Geometry,
    /// The drives as they are used.
    members: Vec<Drive>,
}

fn draft(
    runtime: &Runtime,
    options: &CreateOptions,
    drives: &[Drive],
    behaviour: Behaviour,
) -> Result<Draft, ArrayError> {
    let geometries = || drives.iter().map(|drive| drive.device.geometry());
    let policy = options.policy.unwrap_or_else(|| Policy::best_for(geometries()));
    let aggregate = aggregate_for(policy, options.chunk_blocks, geometries());
    // Where nothing keeps the writes of a zone in order, drives are used as if all had a ZRWA.
    let used_as = if behaviour.log_step < LogStep::Unsequenced { policy } else { Policy::Zrwa };
    let prepared = |drive: &Drive| {
        let device = prepare(runtime, drive.device.clone(), used_as, aggregate)?;
        Some(Drive { name: drive.name.clone(), device })
    };
    let members: Vec<Drive> = drives.iter().filter_map(prepared).collect();
    let mut superblock = plan(options, policy, aggregate, &members)?;
    // Of the drives as they are.
    for (member, drive) in superblock.members.iter_mut().zip(drives) {
        member.plate = kept_plate(&*drive.device);
    }
    let geometry = array_geometry(&superblock, geometries().any(|geometry| geometry.volatile_cache));
    Ok(Draft { superblock, geometry, members })
}

/// The superblock of a new array; refuses what cannot be.
fn plan(
    options: &CreateOptions,
    policy: Policy,
    aggregate: u32,
    drives: &[Drive],
) -> Result<Superblock, ArrayError> {
    let fail = |message: String| Err(ArrayError(message));
    if let Some(wrong) = wrong_with_name(&options.name) {
        return fail(format!("an array cannot have this name: {wrong}"));
    }
    if !MEMBERS.contains(&(drives.len() as u64)) {
        let (fewest, most) = (MEMBERS.start(), MEMBERS.end());
        return fail(format!("RAID-5 takes {fewest} to {most} drives, not {}", drives.len()));
    }
    let chunk = options.chunk_blocks;
    if !chunk.is_power_of_two() || !CHUNK_BLOCKS.contains(&chunk) {
        return fail("the chunk size must be a power of two from 8 KiB to 16 MiB".into());
    }
    let distance = match policy {
        Policy::Log => log::IN_FLIGHT_STRIPES,
        Policy::Zrwa | Policy::InPlace => distance_in_zrwa(chunk, drives)?,
    };
    let geometries = || drives.iter().map(|d| d.device.geometry());
    let capacity = geometries().map(|g| g.zone_capacity_blocks).min().unwrap_or(0);
    let count = drives.len() as u64;
    let stripe = chunk * (count - 1);
    let rows = options.zone_size_blocks.map_or(u64::MAX, |size| size / stripe).min(capacity / chunk);
    let zones = geometries().map(|g| g.zones).min().unwrap_or(0).saturating_sub(META_ZONES);
    if rows == 0 || zones == 0 {
        return fail(format!(
            "the drives need zones of at least {} KiB, and more than {META_ZONES} of them; a zone of the array \
             has at least {} KiB",
            chunk * 4,
            stripe * 4
        ));
    }
    let capacity = rows * stripe;
    // One for the metadata zone that is being written, one for a full zone under repair.
    let active =
        geometries().map(|g| active_zones(g, policy)).min().unwrap_or(0).saturating_sub(2).min(zones);
    if active == 0 {
        return fail("the drives allow too few open zones: three are the least".into());
    }
    let array = Uuid(options.uuid);
    let mut superblock = Superblock {
        compatible: 0,
        read_only_compatible: 0,
        incompatible: 0,
        array,
        name: options.name.clone(),
        event: 1,
        floor: 1,
        chunk_blocks: chunk as u32,
        rows,
        // There are no rows further ahead.
        distance: distance.min(rows) as u32,
        zone_size_blocks: options.zone_size_blocks.unwrap_or(capacity.next_power_of_two()),
        zones,
        max_active: active,
        log_blocks: 0,
        assembly: 1,
        policy,
        aggregate,
        host: Uuid(options.host),
        autostart: options.autostart,
        stage: Stage::Making,
        members: (0..drives.len())
            .map(|member| SuperblockMember::new(member_uuid(array, member, 1), 1, Plate::default()))
            .collect(),
    };
    if policy == Policy::Log {
        // Partial parity of all active zones has to fit in a log, beside what is written to it.
        let room = geometries().map(|g| log_blocks(g, policy)).min().unwrap_or(0) / 2;
        while checkpoint_blocks(&superblock) > room && superblock.max_active > 1 {
            superblock.max_active -= 1;
        }
    }
    let log_blocks = match policy {
        // What is left is for relocated blocks.
        Policy::Log => checkpoint_blocks(&superblock).max(rows * chunk),
        Policy::Zrwa | Policy::InPlace => checkpoint_blocks(&superblock),
    };
    superblock.log_blocks = log_blocks.min(u32::MAX as u64) as u32;
    superblock.check().map_err(|absurd| ArrayError(format!("there can be no such array: {absurd}")))?;
    for drive in drives {
        check_drive(&drive.name, &*drive.device, &superblock)?;
    }
    Ok(superblock)
}

/// How many rows ahead partial parity can be in the drives' ZRWA.
fn distance_in_zrwa(chunk: u64, drives: &[Drive]) -> Result<u64, ArrayError> {
    let mut zrwa = u64::MAX;
    for drive in drives {
        let Some(found) = drive.device.geometry().zrwa else {
            return Err(ArrayError(format!(
                "{} has no ZRWA (Zone Random Write Area), which this policy needs",
                drive.name
            )));
        };
        zrwa = zrwa.min(found.size_blocks);
    }
    match zrwa / chunk / 2 {
        0 => Err(ArrayError(format!(
            "a chunk of {} KiB is too large for the drives' ZRWA: {} KiB at most",
            chunk * 4,
            zrwa * 2
        ))),
        distance => Ok(distance),
    }
}

/// Zones that a drive can have active, as far as the array is concerned.
fn active_zones(geometry: &Geometry, policy: Policy) -> u32 {
    let limited = |limit: u32| if limit == 0 { u32::MAX } else { limit };
    let zrwas = match policy {
        Policy::Log => u32::MAX,
        Policy::Zrwa | Policy::InPlace => geometry.zrwa.map_or(0, |zrwa| zrwa.max_zones),
    };
    limited(geometry.max_open).min(limited(geometry.max_active)).min(zrwas)
}

/// What the array looks like from outside, if a member may lose completed writes (`volatile`) or none.
pub(crate) fn array_geometry(superblock: &Superblock, volatile: bool) -> Geometry {
    Geometry {
        zones: superblock.zones,
        zone_size_blocks: superblock.zone_size_blocks,
        zone_capacity_blocks: superblock.layout().capacity_blocks(),
        max_open: superblock.max_active,
        max_active: superblock.max_active,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 4096,
        max_append_blocks: 4096,
        // With ZRAID a write is safe when write pointers or a log show it.
        volatile_cache: volatile || superblock.policy == Policy::Zrwa,
    }
}

/// Checks that a drive can hold its part of an array.
fn check_drive(name: &str, device: &dyn ZonedDevice, superblock: &Superblock) -> Result<(), ArrayError> {
    let geometry = device.geometry();
    let layout = superblock.layout();
    let kib = |blocks: u64| blocks * (BLOCK as u64 / 1024);
    let fail = |message: String| Err(ArrayError(format!("{name}: {message}")));
    let (log, transfer) = (log_blocks(geometry, superblock.policy), geometry.max_transfer_blocks as u64);
    let sizes = [
        ("its zones hold", geometry.zone_capacity_blocks, layout.rows * layout.chunk_blocks, "larger zones"),
        (
            "for metadata its zones hold",
            log,
            superblock.log_blocks as u64,
            "larger zones, or all drives with fewer",
        ),
        ("its requests have at most", transfer, layout.chunk_blocks, "larger requests, or smaller chunks"),
    ];
    for (what, have, need, advice) in sizes {
        if have < need {
            let (have, need) = (kib(have), kib(need));
            return fail(format!("{what} {have} KiB, {need} KiB are needed: take a drive with {advice}"));
        }
    }
    if layout.policy.uses_zrwa() {
        let Some(zrwa) = geometry.zrwa else {
            return fail("it has no ZRWA (Zone Random Write Area), which this array needs".into());
        };
        let (have, need) = (zrwa.size_blocks, 2 * layout.distance * layout.chunk_blocks);
        if have < need {
            return fail(format!("its ZRWA has {} KiB, {} KiB are needed", kib(have), kib(need)));
        }
        // Write pointers stop inside chunks where they have to tell what is complete.
        let (step, what) = match layout.policy {
            Policy::InPlace => (layout.chunk_blocks, "a chunk"),
            _ => (layout.chunk_blocks / 2, "half a chunk"),
        };
        if !step.is_multiple_of(zrwa.granularity_blocks) {
            let (chunk, granularity) = (kib(layout.chunk_blocks), kib(zrwa.granularity_blocks));
            return fail(format!(
                "{what} of {chunk} KiB is not a multiple of its ZRWA flush granularity of {granularity} KiB"
            ));
        }
    }
    if layout.policy == Policy::InPlace && (geometry.oob_bytes as usize) < OOB_BYTES {
        let have = geometry.oob_bytes;
        return fail(format!(
            "its blocks have {have} bytes of metadata, the policy 'inplace' needs {OOB_BYTES}: format it so, or choose another policy"
        ));
    }
    if geometry.zones < superblock.zones + META_ZONES {
        return fail(format!(
            "it has {} zones, {} are needed",
            geometry.zones,
            superblock.zones + META_ZONES
        ));
    }
    let needed = superblock.max_active.saturating_add(2);
    let active = active_zones(geometry, superblock.policy);
    if active < needed {
        return fail(format!("it can have {active} zones active, {needed} are needed"));
    }
    Ok(())
}
