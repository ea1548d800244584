//! The array: N zoned devices as one.
//!
//! [`Array`] is a [`crate::device::ZonedDevice`] itself: reads, writes, appends, flushes and zone management are
//! submitted as [`crate::device::Command`]s, in the order of the calls. The other methods are its life cycle: an array
//! is created with [`Array::create`], assembled with [`Array::assemble`] or, while the drives keep power, with
//! [`Array::take_over`], and repaired with [`Array::attach`] and [`Array::rebuild`].

use crate::{
    buf::{Buf, BufPool, BufSource},
    deferred::ArrayHandle,
    device::{Command, Completion, Geometry, ZonedDevice},
    format::Uuid,
    raid::{
        create,
        geometry::Layout,
        maintain::{attach, job, rebuild, repair, replace, scrub, target},
        power,
        recover::assemble::{KnownEnds, assemble, look},
        run, status,
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

pub use crate::raid::{
    ArrayOptions, Drive, PowerMark, Tails,
    create::{CHECKSUM_GROUP_BLOCKS, CreateOptions, Design},
    error::ArrayError,
    events::{Event, EventList},
    health::{Cause, Condition, Health, Remedy},
    recover::scan::examine,
    status::{
        ArrayInspection, ArrayStatus, DriveExamination, LostBlocks, MemberState, MemberStatus, OfflineZone,
        Progress, RebuildOutcome, ReplaceOutcome, ScrubFinding, ScrubFindingKind, SkippedPart,
        UnfinishedCopy, UnreadableRange, ZoneScrub,
    },
};

/// N zoned devices as one. Clones are the same array. Its tasks belong to the runtime: the array runs, and keeps its
/// drives open, until it is closed ([`Array::close`]), or its tasks are dropped by [`Runtime::clear`].
#[derive(Clone)]
pub struct Array(pub(crate) Rc<ArrayHandle>);

impl Array {
    /// Creates an array of `drives`, in the order of their roles. Every zone of them is reset.
    ///
    /// Each drive in turn is reset and gets a superblock with the stage that the array is being created; when all have
    /// one, the stage is updated on all of them. After an interruption some drives are unchanged, one is partly reset,
    /// and the others have the first superblock, which [`Array::assemble`] refuses. Once one drive has the superblock
    /// of a complete array, all of them are members.
    pub async fn create(
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
    ) -> Result<Array, ArrayError> {
        Array::create_with(runtime, options, drives, ArrayOptions::default()).await
    }

    /// The array that [`Array::create`] would make of `drives` with options from [`Array::spares_for`]; writes nothing.
    ///
    /// # Errors
    /// Those of [`Array::create`] that do not depend on the state or the contents of the drives.
    pub fn design(
        runtime: &Runtime,
        options: &CreateOptions,
        drives: &[Drive],
    ) -> Result<Design, ArrayError> {
        create::design(runtime, options, drives)
    }

    /// The options as [`Array::create`] completes them: if they do not give the number of spare zones, it is the
    /// default number or, if that is more, the largest number of worn zones of a drive.
    pub async fn spares_for(
        runtime: &Runtime,
        options: &CreateOptions,
        drives: &[Drive],
    ) -> Result<CreateOptions, ArrayError> {
        create::with_spares(runtime, options, drives, ArrayOptions::default()).await
    }

    /// Zones of a drive that are read-only or offline.
    pub async fn worn_zones(drive: &Drive) -> Vec<u32> {
        create::worn_zones(&*drive.device).await
    }

    /// As [`Array::create`], for experiments.
    pub async fn create_with(
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        behaviour: ArrayOptions,
    ) -> Result<Array, ArrayError> {
        let raid = create::create(runtime, &options, drives, behaviour).await?;
        runtime.spawn(repair::keep_repaired(raid.clone()));
        Ok(Array(ArrayHandle::new(raid)))
    }

    /// Assembles the array that `drives`, in any order, are members of, and recovers it from a crash. As many members
    /// may be missing as there are parities. Has to be polled to its end, as [`Array::create`]: tasks of an array that
    /// was half assembled live until [`Runtime::clear`].
    pub async fn assemble(runtime: &Runtime, drives: Vec<Drive>) -> Result<Array, ArrayError> {
        Array::assemble_with(runtime, drives, None, ArrayOptions::default()).await
    }

    /// As [`Array::assemble`], after a process that ran the array has died while the drives kept power: everything that
    /// it had acknowledged is there, also without FUA or flush. None of its commands may be in flight to a drive any
    /// more. Tails of an assembly other than the last are ignored.
    pub async fn take_over(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: &Tails,
    ) -> Result<Array, ArrayError> {
        Array::assemble_with(runtime, drives, Some(tails), ArrayOptions::default()).await
    }

    /// As [`Array::assemble`], or [`Array::take_over`] if there are `tails`, for experiments.
    pub async fn assemble_with(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: ArrayOptions,
    ) -> Result<Array, ArrayError> {
        Ok(Array(ArrayHandle::new(assemble(runtime, drives, tails, behaviour).await?)))
    }

    /// As [`Array::assemble_with`], but if members are missing that are not out yet, the array is in deferred-write
    /// mode: nothing is written before the first command that changes something, or [`Array::begin`].
    pub async fn assemble_deferred(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: ArrayOptions,
    ) -> Result<Array, ArrayError> {
        Ok(Array(ArrayHandle::assemble_deferred(runtime, drives, tails, behaviour).await?))
    }

    /// As [`Array::assemble_with`], but the array can only be read, and nothing is written on the drives.
    pub async fn assemble_read_only(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: ArrayOptions,
    ) -> Result<Array, ArrayError> {
        Ok(Array(ArrayHandle::assemble_read_only(runtime, drives, tails, behaviour).await?))
    }

    /// Whether the array is in deferred-write mode: nothing has been written on the drives, since members are missing.
    pub fn is_deferred(&self) -> bool {
        self.0.is_deferred()
    }

    /// Whether the array can only be read.
    pub fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    /// Calls `hook` when the array leaves deferred-write mode, before it executes the first command that changes
    /// something.
    pub fn on_begin(&self, hook: Box<dyn FnOnce()>) {
        self.0.on_begin(hook);
    }

    /// Number of this assembly: each assembly sets a new one, which stays while the array runs.
    pub fn assembly(&self) -> u64 {
        self.0.assembly()
    }

    /// The power epochs of the members' drives, for drives that report them. To be stored in [`Tails::power`], and to
    /// be read again after each change of the membership ([`Array::changed`]).
    pub fn power_marks(&self) -> Vec<PowerMark> {
        power::power_marks(&self.0.raid())
    }

    /// Checks whether drives have lost power or were reset, by their power epochs and by their zone reports, and waits
    /// until the members' logs name the parts of zones that were lost. Reads and writes compare power epochs
    /// themselves; the host calls this periodically, for idle arrays and for drives without such evidence.
    pub async fn check_power(&self) {
        power::look_for_lost_zrwas(&self.0.raid()).await;
    }

    /// Ends deferred-write mode: the array writes from now on, and the missing members are out.
    ///
    /// # Errors
    /// The array is read-only, or it cannot be assembled any more. Then it can still be read.
    pub async fn begin(&self) -> Result<(), ArrayError> {
        self.0.begin().await
    }

    /// Adds the drive of a missing member to an array in deferred-write mode; the drive has missed no write. If it was
    /// the last one missing, the array starts to write, with all of its members; otherwise it stays in deferred-write
    /// mode.
    ///
    /// # Errors
    /// The drive is not that of a missing member, or the array has started to write without it; nothing is changed.
    pub async fn complete(&self, drive: Drive) -> Result<(), ArrayError> {
        self.0.complete(drive).await
    }

    /// The arrangement of a zone over the members.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The result that [`Array::assemble`], or [`Array::take_over`] if there are `tails`, would have with `drives`;
    /// writes nothing.
    pub async fn inspect(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
    ) -> Result<ArrayInspection, ArrayError> {
        Array::inspect_with(runtime, drives, &[], tails).await
    }

    /// As [`Array::inspect`], with the progress of copies to the `filled` drives that are unfinished.
    pub async fn inspect_with(
        runtime: &Runtime,
        drives: Vec<Drive>,
        filled: &[Drive],
        tails: Option<&Tails>,
    ) -> Result<ArrayInspection, ArrayError> {
        let known = KnownEnds { tails, ..KnownEnds::default() };
        look(runtime, drives, known, ArrayOptions::default()).await?.inspected(filled).await
    }

    /// The unfinished copy of a member to `drive` that [`Array::replace`] would continue; `None` if there is none.
    pub async fn copy_to(&self, drive: &Drive) -> Option<UnfinishedCopy> {
        let raid = self.0.raid();
        target::copy_to(&raid, drive).await
    }

    /// Checks whether `drive` could take the place of a member; the error names the property that it lacks.
    pub fn accepts(&self, drive: &Drive) -> Result<(), ArrayError> {
        Ok(attach::prepare(&self.0.raid(), drive, Uuid::default()).map(|_| ())?)
    }

    /// Makes a drive the member in the place of `member`, which must be out; it is to be rebuilt. Every zone of the
    /// drive is reset.
    pub async fn attach(&self, member: usize, drive: Drive) -> Result<(), ArrayError> {
        job::given_up_ended(&self.0.raid()).await;
        self.begin().await?;
        attach::attach(&self.0.raid(), member, drive).await
    }

    /// Checks whether [`Array::replace`] could copy `member` to `drive`, which the array accepts; the error gives the
    /// reason.
    pub fn can_copy(&self, member: usize, drive: &Drive) -> Result<(), ArrayError> {
        let raid = self.0.raid();
        replace::mirror_with(&raid, member, &target::newcomer(&raid, member, drive, None)?).map(|_| ())
    }

    /// Cancels [`Array::replace`]: it returns an error once the new drive has been made blank.
    ///
    /// # Errors
    /// No replacement is under way, or the new drive is taking over already.
    pub fn cancel_replacement(&self) -> Result<(), ArrayError> {
        replace::cancel_replacement(&self.0.raid())
    }

    /// Replaces the drive of `member`, which works: it is copied to `drive`, and writes go to both, until both hold the
    /// same; then the old drive is no longer a member. Every zone of the new drive is reset first, except for zones
    /// that an interrupted copy of the member has completed. Parts that could not be copied are to be rebuilt
    /// afterwards; all of them, if the old drive fails meanwhile. If the future is dropped, the copy ends soon, as after
    /// a crash, and can be continued; only a new drive that is taking over already becomes the member.
    ///
    /// # Errors
    /// The new drive cannot be used, or has failed: the array is as before. A rebuild is under way, or zones are
    /// offline or have failed.
    pub async fn replace(
        &self,
        member: usize,
        drive: Drive,
        progress: &dyn Fn(Progress),
    ) -> Result<ReplaceOutcome, ArrayError> {
        job::given_up_ended(&self.0.raid()).await;
        self.begin().await?;
        match replace::replace(&self.0.raid(), member, &drive, progress).await? {
            Some(bytes) => Ok(ReplaceOutcome::Copied { bytes }),
            None => {
                self.attach(member, drive).await?;
                Ok(ReplaceOutcome::Attached)
            }
        }
    }

    /// Rebuilds everything that is not in sync, while reads and writes go on, and continues an interrupted rebuild. A
    /// zone that cannot be rebuilt is left out; blocks that cannot be recovered are lost, and the others of their zone
    /// are not. If the future is dropped, the rebuild ends soon, and can be continued; the next rebuild or replacement
    /// waits for that end, which needs an answer of the drives to the commands in flight.
    ///
    /// # Errors
    /// The drive under repair or too many others failed, or a rebuild is under way already.
    pub async fn rebuild(&self, progress: &dyn Fn(Progress)) -> Result<RebuildOutcome, ArrayError> {
        job::given_up_ended(&self.0.raid()).await;
        self.begin().await?;
        rebuild::rebuild(&self.0.raid(), progress).await
    }

    /// Reads the blocks of a zone that do not change any more, with their parity, and repairs wrong ones. `pace` is
    /// awaited after each batch, with the number of bytes that were read: it bounds the rate. A future that is dropped
    /// leaves no trace.
    ///
    /// # Errors
    /// The array has failed.
    pub async fn scrub_zone(
        &self,
        zone: ZoneIndex,
        pace: impl AsyncFn(u64),
    ) -> Result<ZoneScrub, ArrayError> {
        self.begin().await?;
        scrub::scrub_zone(&self.0.raid(), zone, pace).await
    }

    /// Requests a zone report from each member, so that a drive that is gone is noticed while nothing is read or
    /// written. A member that the array cannot do without is not taken out: the array fails only when a command fails.
    pub async fn probe(&self) {
        let raid = self.0.raid();
        run::probe(&raid).await;
    }

    /// Takes `member` out of the array: it is not read or written any more.
    ///
    /// # Errors
    /// The member is out already, or needed: nothing has been changed, and an array in deferred-write mode stays in it.
    pub async fn fail(&self, member: usize) -> Result<(), ArrayError> {
        run::check_fail(&self.0.raid(), member)?;
        self.begin().await?;
        run::fail(&self.0.raid(), member).await
    }

    /// Waits for the next change of the membership, from this call on.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        let raid = self.0.raid();
        raid.membership.changed()
    }

    /// Sets the source of new buffers; they are allocated when it has none.
    pub fn feed(&self, source: BufSource) {
        *self.0.raid().pool.borrow_mut() = BufPool::fed_by(source);
    }

    /// Stops the array: completed writes are made durable, later commands fail with
    /// [`crate::device::DeviceError::Gone`], and all of its tasks end. Its drives are released with the last clone.
    ///
    /// # Errors
    /// A rebuild, a replacement or the end of deferred-write mode is under way: nothing has been done. Or not
    /// everything could be made durable: the array has stopped all the same.
    pub async fn close(&self) -> Result<(), ArrayError> {
        self.0.close().await
    }

    /// Events of the array from number `since` on, as far as they are still kept.
    pub fn events(&self, since: u64) -> EventList {
        self.0.raid().events.since(since)
    }

    /// Checks whether another host has assembled the array. If so, the array fails here: unanswered requests fail, and
    /// nothing more is written. To be called every few seconds: a host that assembles an array which another host may
    /// run waits that long before its own writes count.
    ///
    /// # Errors
    /// [`ArrayError::Fenced`].
    pub async fn check_fence(&self) -> Result<(), ArrayError> {
        match self.is_deferred() || self.is_read_only() {
            true => Ok(()),
            false => run::check_fence(&self.0.raid()).await,
        }
    }

    /// State of the array, its members and its zones.
    pub fn status(&self) -> ArrayStatus {
        let status = status::status(&self.0.raid());
        let problem = self.0.problem().or(status.problem.clone());
        let mut status = ArrayStatus { read_only: self.is_read_only(), problem, ..status };
        self.0.say_who_is_awaited(&mut status);
        status
    }
}

/// The epoch of a zone of an array: a number that grows with each reset, over all zones.
pub fn zone_epoch(array: &Array, zone: ZoneIndex) -> u64 {
    array.0.raid().zone_records.epoch(zone)
}

impl ZonedDevice for Array {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    /// One stripe: its parity is written once.
    fn optimal_write_blocks(&self) -> u64 {
        self.0.layout.stripe_blocks()
    }

    /// One chunk.
    fn direct_read_blocks(&self) -> u64 {
        self.0.layout.chunk_blocks
    }

    fn submit(&self, command: Command) -> Completion {
        self.0.submit(command)
    }

    fn note_room(&self, lba: Lba, blocks: u64) -> usize {
        self.0.note_room(lba, blocks)
    }

    fn write_with_note(&self, lba: Lba, data: Buf, note: Buf) -> Completion {
        self.0.write_with_note(lba, data, note)
    }

    fn note(&self, zone: ZoneIndex) -> Option<Buf> {
        self.0.note(zone)
    }

    fn cells(&self) -> u32 {
        self.0.cells()
    }

    fn write_cell(&self, zone: ZoneIndex, cell: u32, data: Buf) -> Completion {
        self.0.write_cell(zone, cell, data)
    }

    fn read_cell(&self, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
        self.0.read_cell(zone, cell, copy)
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        self.0.reread(lba, attempt)
    }
}
