//! The array: N zoned devices as one.
//!
//! [`Array`] is a [`crate::device::ZonedDevice`] itself: reads, writes, appends, flushes and zone management go
//! in as [`crate::device::Command`]s, in the order of the calls. Around that there is only its life: made with
//! [`Array::create`], found again with [`Array::assemble`] or, while the drives keep power, with
//! [`Array::take_over`], repaired with [`Array::attach`] and [`Array::rebuild`].

use crate::{
    buf::{BufPool, Source},
    device::{Command, Completion, Geometry, ZonedDevice},
    format::Uuid,
    provisional::Handle,
    raid::{
        create,
        error::NoReplacement,
        geometry::Layout,
        recover::assemble::{Told, assemble, look},
    },
    runtime::Runtime,
    zone::Lba,
};
use std::rc::Rc;

pub use crate::raid::{
    Behaviour, Drive, PowerMark, Tails,
    create::{CreateOptions, Design},
    error::ArrayError,
    events::{Event, Noted},
    health::{Cause, Condition, Health, Remedy},
    recover::scan::examine,
    status::{
        ArrayStatus, Examined, Inspected, LeftOut, LostBlocks, MemberState, MemberStatus, OfflineZone,
        Progress, Rebuilt, Replaced,
    },
};

/// N zoned devices as one. Clones are the same array. Its tasks belong to the runtime: it lives, and
/// holds its drives, until it is closed ([`Array::close`]), or cut off by [`Runtime::clear`].
#[derive(Clone)]
pub struct Array(pub(crate) Rc<Handle>);

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
        create::design(runtime, options, drives)
    }

    /// The options, if they do not say how many zones are spare, with one for each zone that is worn of the drive that
    /// has most of these, if that is more than the default: as [`Array::create`] does.
    pub async fn spares_for(
        runtime: &Runtime,
        options: &CreateOptions,
        drives: &[Drive],
    ) -> Result<CreateOptions, ArrayError> {
        create::with_spares(runtime, options, drives, Behaviour::default()).await
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
        behaviour: Behaviour,
    ) -> Result<Array, ArrayError> {
        let raid = create::create(runtime, &options, drives, behaviour).await?;
        Ok(Array(Handle::new(raid)))
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
        Ok(Array(Handle::new(assemble(runtime, drives, tails, behaviour).await?)))
    }

    /// As [`Array::assemble_with`], but where members are missing that are not out yet nothing is written
    /// before the first command that changes something, or [`Array::begin`].
    pub async fn assemble_provisionally(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: Behaviour,
    ) -> Result<Array, ArrayError> {
        Ok(Array(Handle::assemble_provisionally(runtime, drives, tails, behaviour).await?))
    }

    /// As [`Array::assemble_with`], but the array can only be read, and nothing is written on the drives.
    pub async fn assemble_read_only(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: Behaviour,
    ) -> Result<Array, ArrayError> {
        Ok(Array(Handle::assemble_read_only(runtime, drives, tails, behaviour).await?))
    }

    /// Whether nothing has been written on the drives, since members are missing.
    pub fn is_provisional(&self) -> bool {
        self.0.is_provisional()
    }

    /// Whether the array can only be read.
    pub fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    /// Calls `hook` when the array begins to write: before that is seen by anybody.
    pub fn on_begin(&self, hook: Box<dyn FnOnce()>) {
        self.0.on_begin(hook);
    }

    /// A number that every assembly sets anew, and that stays while the array runs.
    pub fn assembly(&self) -> u64 {
        self.0.assembly()
    }

    /// The power epochs of the members' drives, as far as these give any evidence of power cycles. Kept for
    /// [`Tails::power`], and to be read again after each change of the membership ([`Array::changed`]).
    pub fn power_marks(&self) -> Vec<PowerMark> {
        self.0.raid().power_marks()
    }

    /// Checks whether drives have lost power or were reset, by their power epochs and by the zones that they report, and
    /// waits until the members' logs name the parts of zones that were lost. Reads and writes compare power epochs
    /// themselves; the host calls this periodically, for idle arrays and for drives without such evidence.
    pub async fn check_power(&self) {
        self.0.raid().look_for_lost_zrwas().await;
    }

    /// Has an array that has held back write from now on: the members that are missing are out then.
    ///
    /// # Errors
    /// It can only be read, or it cannot be assembled any more. Then it can still be read.
    pub async fn begin(&self) -> Result<(), ArrayError> {
        self.0.begin().await
    }

    /// Takes a drive that was missing: the array has missed nothing that it should have. If that was the last
    /// one, the array begins, with all of its members; otherwise it goes on to hold back.
    ///
    /// # Errors
    /// It is no such drive, or the array has begun without it; nothing is changed.
    pub async fn complete(&self, drive: Drive) -> Result<(), ArrayError> {
        self.0.complete(drive).await
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
        look(runtime, drives, Told { tails, ..Told::default() }, Behaviour::default()).await?.inspected()
    }

    /// Whether `drive` could take the place of a member; otherwise the error says what it lacks.
    pub fn accepts(&self, drive: &Drive) -> Result<(), ArrayError> {
        Ok(self.0.raid().prepare(drive, Uuid::default()).map(|_| ())?)
    }

    /// Puts a drive in the place of `member`, which must be out, to be rebuilt. Every zone of the
    /// drive is reset.
    pub async fn attach(&self, member: usize, drive: Drive) -> Result<(), ArrayError> {
        self.begin().await?;
        self.0.raid().attach(member, drive).await
    }

    /// Whether [`Array::replace`] could copy `member` to `drive`, which the array accepts; otherwise the error
    /// says why not.
    pub fn can_copy(&self, member: usize, drive: &Drive) -> Result<(), ArrayError> {
        let raid = self.0.raid();
        raid.mirror_with(member, &raid.newcomer(member, drive)?).map(|_| ())
    }

    /// Calls off what [`Array::replace`] is doing: it ends with an error, when the new drive has been made blank.
    ///
    /// # Errors
    /// Nothing is being copied, or the new drive is taking over already.
    pub fn cancel_replacement(&self) -> Result<(), ArrayError> {
        self.0.raid().cancel_replacement()
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
        let raid = &self.0.raid();
        raid.members.check(member)?;
        if !raid.members.is_active(member) {
            return Err(NoReplacement::NothingToCopy(member).into());
        }
        let newcomer = raid.newcomer(member, &drive)?;
        raid.members.check_unused(&drive)?;
        match raid.replace(member, newcomer, progress).await? {
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
        self.0.raid().rebuild(progress).await
    }

    /// Asks each member for the report of a zone, so that a drive that is gone is noticed while nothing is read or
    /// written. A member that the array cannot do without stays: the array has not failed before a command has.
    pub async fn probe(&self) {
        let raid = self.0.raid();
        raid.probe().await;
    }

    /// Takes `member` out of the array: it will not be read or written any more.
    ///
    /// # Errors
    /// It is out already, or needed: nothing has been changed, and an array that holds back has not begun.
    pub async fn fail(&self, member: usize) -> Result<(), ArrayError> {
        self.0.raid().check_fail(member)?;
        self.begin().await?;
        self.0.raid().fail(member).await
    }

    /// Waits for the next change of who the members are, from this call on.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        let raid = self.0.raid();
        raid.membership.changed()
    }

    /// Takes new buffers from `source` from now on, as long as that has any.
    pub fn feed(&self, source: Source) {
        *self.0.raid().pool.borrow_mut() = BufPool::fed_by(source);
    }

    /// Ends the array: what has completed is made safe, commands that come from now on are answered with
    /// [`crate::device::DeviceError::Gone`], and nothing of it runs any more. Its drives are let go with the last
    /// clone.
    ///
    /// # Errors
    /// A rebuild, a replacement or a beginning is under way: nothing has been done. Or not everything could be
    /// made safe: it has ended all the same.
    pub async fn close(&self) -> Result<(), ArrayError> {
        self.0.close().await
    }

    /// What has happened to the array, from event number `since` on: of that the last ones are kept.
    pub fn events(&self, since: u64) -> Noted {
        self.0.raid().events.since(since)
    }

    /// Checks whether another host has assembled the array. If so, the array fails here: unanswered requests fail, and
    /// nothing more is written. To be called every few seconds: a host that assembles an array which another host may
    /// run waits that long before its own writes count.
    ///
    /// # Errors
    /// [`ArrayError::Fenced`].
    pub async fn check_fence(&self) -> Result<(), ArrayError> {
        match self.is_provisional() || self.is_read_only() {
            true => Ok(()),
            false => self.0.raid().check_fence().await,
        }
    }

    /// How the array is.
    pub fn status(&self) -> ArrayStatus {
        let status = self.0.raid().status();
        let problem = self.0.problem().or(status.problem.clone());
        let mut status = ArrayStatus { read_only: self.is_read_only(), problem, ..status };
        self.0.say_who_is_awaited(&mut status);
        status
    }
}

impl ZonedDevice for Array {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    /// A stripe: its parity is written once.
    fn optimal_write_blocks(&self) -> u64 {
        self.0.layout.stripe_blocks()
    }

    fn submit(&self, command: Command) -> Completion {
        self.0.submit(command)
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        self.0.reread(lba, attempt)
    }
}
