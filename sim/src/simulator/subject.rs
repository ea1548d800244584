//! The subject: the device under test, a zoned device made of several drives.
//!
//! The array is the main subject. The trait allows testing the simulator itself with something smaller, and keeps
//! options for tests in one place.

use super::{command_queue::Bay, scenario::Scenario};
use engine::{
    array::{
        Array, ArrayError, ArrayOptions, ArrayStatus, CreateOptions, Drive, LostBlocks, MemberState,
        PowerMark, SkippedPart, Tails, ZoneScrub, examine,
    },
    device::ZonedDevice,
    owner::Change,
    raid::{
        Consistency,
        error::{BadDrive, DriveFault, NoArray, NoReplacement, Note, Notes, ReplaceFailure},
        events::EventList,
        geometry::Layout,
        policy::{Policy, zrwa::Refusal},
    },
    runtime::Runtime,
    zone::ZoneIndex,
};
use std::{
    fmt::{self, Display, Formatter},
    future::Future,
    pin::Pin,
    rc::Rc,
};

/// Why an operation of a subject failed.
#[derive(Clone, Debug)]
pub enum SubjectError {
    Array(ArrayError),
    /// Blocks that a rebuild could not restore, although no more drives were struck than the guarantee covers, and a
    /// part that it left out, if any.
    Lost(LostBlocks, Option<SkippedPart>),
    LeftOut(SkippedPart),
    /// A subject that is not an array has too few usable members.
    TooFew(String),
    /// Any other reason.
    Other(String),
}

impl SubjectError {
    /// An error that is known by its message only.
    pub(super) fn other(error: impl ToString) -> SubjectError {
        SubjectError::Other(error.to_string())
    }

    /// Names of the drives in the error.
    pub(super) fn drives(&self) -> Vec<&str> {
        fn of_note(note: &Note) -> Option<&str> {
            match note {
                Note::Unusable(drive) => Some(&drive.name),
                Note::Replaced { drive }
                | Note::WasTakenOut { drive }
                | Note::WasDestroyed { drive }
                | Note::Diverged { drive }
                | Note::Outdated { drive }
                | Note::Stale { drive, .. } => Some(drive),
                _ => None,
            }
        }
        match self {
            SubjectError::Array(ArrayError::Drive(drive)) => vec![&drive.name],
            SubjectError::Array(ArrayError::Failed(Notes(notes))) => {
                notes.iter().filter_map(|(_, note)| of_note(note)).collect()
            }
            SubjectError::Array(ArrayError::Drives(why)) => match why {
                NoArray::NoMember(drive) | NoArray::Misfit(drive) => vec![&drive.name],
                NoArray::Mixed { one, other } => vec![&one.0, &other.0],
                NoArray::SameMember { drives, .. } => vec![&drives.0, &drives.1],
                NoArray::TooFew { notes, .. } => notes.iter().filter_map(of_note).collect(),
                NoArray::Needed { drive, .. } => vec![drive],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// Whether the error names the drive in `bay`.
    pub(super) fn names_drive(&self, bay: Bay) -> bool {
        self.drives().contains(&format!("drive{bay}").as_str())
    }

    /// Members in the error.
    pub(super) fn members(&self) -> Vec<usize> {
        match self {
            SubjectError::Array(
                ArrayError::Failed(Notes(notes))
                | ArrayError::Incomplete(Notes(notes))
                | ArrayError::NotTold(Notes(notes)),
            ) => notes.iter().map(|(member, _)| *member).collect(),
            SubjectError::Array(ArrayError::LogIsFull { member }) => vec![*member],
            SubjectError::Array(ArrayError::Drives(
                NoArray::Needed { member, .. } | NoArray::SameMember { member, .. },
            )) => vec![*member],
            _ => Vec::new(),
        }
    }

    /// Whether a copy was cancelled, and the new drive has been made blank.
    pub(super) fn is_cancelled(&self) -> bool {
        let SubjectError::Array(ArrayError::Replace(NoReplacement::Failed { why, .. })) = self else {
            return false;
        };
        *why == ReplaceFailure::Cancelled
    }

    /// Whether the error says that a drive is a valid member but no target for a copy.
    pub(super) fn is_no_copy(&self) -> bool {
        matches!(self, SubjectError::Array(ArrayError::Drive(BadDrive { fault: DriveFault::NoCopy(_), .. })))
    }
}

impl Display for SubjectError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            SubjectError::Array(error) => write!(f, "{error}"),
            SubjectError::Lost(lost, _) => {
                write!(f, "{lost:?} is lost, though no more drives were struck than may be")
            }
            SubjectError::LeftOut(out) => {
                write!(f, "zone {} of member {}: {}", out.zone, out.member, out.reason)
            }
            SubjectError::TooFew(sentence) | SubjectError::Other(sentence) => f.write_str(sentence),
        }
    }
}

impl From<ArrayError> for SubjectError {
    fn from(error: ArrayError) -> SubjectError {
        SubjectError::Array(error)
    }
}

impl From<String> for SubjectError {
    fn from(sentence: String) -> SubjectError {
        SubjectError::Other(sentence)
    }
}

impl From<&str> for SubjectError {
    fn from(sentence: &str) -> SubjectError {
        SubjectError::Other(sentence.into())
    }
}

/// An operation of the subject.
pub type Work<T> = Pin<Box<dyn Future<Output = Result<T, SubjectError>>>>;

/// The name, host, autostart and error limit of a subject, which its owner may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectIdentity {
    pub name: String,
    pub host: [u8; 16],
    pub autostart: bool,
    pub error_limit: u32,
}

/// A zoned device made of several drives.
pub trait Subject: ZonedDevice {
    /// As [`Array::attach`].
    fn attach(&self, member: usize, drive: Drive) -> Work<()>;
    /// As [`Array::replace`].
    fn replace(&self, _: usize, _: Drive) -> Work<()> {
        Box::pin(async { Err("nothing can be replaced".into()) })
    }
    /// As [`Array::cancel_replacement`]; `false` if it is refused.
    fn cancel_replacement(&self) -> bool {
        false
    }
    /// As [`Array::rebuild`].
    fn rebuild(&self) -> Work<u64>;
    /// As [`Array::scrub_zone`], of a zone of the array.
    fn scrub(&self, _zone: u32) -> Work<ZoneScrub> {
        Box::pin(async { Ok(ZoneScrub::default()) })
    }
    /// As [`Array::fail`].
    fn fail(&self, member: usize) -> Work<()>;
    /// The state of each member and the name of its drive, ordered by role.
    fn members(&self) -> Vec<(MemberState, String)>;
    /// As [`Array::assembly`].
    fn assembly(&self) -> u64;
    /// As [`Array::power_marks`].
    fn power_marks(&self) -> Vec<PowerMark> {
        Vec::new()
    }

    /// As [`Array::layout`]; `None` if the on-media layout is not checked.
    fn layout(&self) -> Option<Layout> {
        None
    }

    /// As [`Array::events`]; `None` of a subject without events.
    fn events(&self, _since: u64) -> Option<EventList> {
        None
    }

    /// As [`Array::check_fence`].
    fn check_fence(&self) -> Work<()> {
        Box::pin(async { Ok(()) })
    }
    /// Whether it was fenced: it has released its drives, which another host uses.
    fn is_fenced(&self) -> bool {
        false
    }

    /// As [`Array::is_deferred`].
    fn is_deferred(&self) -> bool {
        false
    }
    /// Whether the array had written nothing before a layer was started on it.
    fn began_deferred(&self) -> bool {
        self.is_deferred()
    }
    /// As [`Array::complete`].
    fn complete(&self, _: Drive) -> Work<()> {
        Box::pin(async { Ok(()) })
    }

    /// Its identity; `None` of a subject that has none, and cannot be changed or destroyed.
    fn said(&self) -> Option<SubjectIdentity> {
        None
    }
    /// As [`Array::change_running`].
    fn change(&self, _: Change) -> Work<()> {
        Box::pin(async { Err("nothing can be changed".into()) })
    }

    /// Number of zones of the array, whichever zones the subject itself has.
    fn array_zones(&self) -> u32 {
        self.geometry().zones
    }

    /// Contents of the acknowledgement log that its process keeps, if the array's zones are not those of the subject.
    fn tails(&self) -> Option<Vec<u64>> {
        None
    }

    /// As [`Array::status`]; `None` of a subject without an array.
    fn array_status(&self) -> Option<ArrayStatus> {
        None
    }

    /// The offline zones with their reasons.
    fn offline(&self) -> Vec<(u32, Refusal)> {
        Vec::new()
    }
}

/// Creates subjects, and assembles them again after an end.
pub trait Maker {
    /// As [`Array::create`]; `join` as in [`ArrayOptions::join`].
    fn create(
        &self,
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        join: bool,
    ) -> Work<Rc<dyn Subject>>;
    /// The policy that scenarios are drawn for; `None` for any.
    fn policy(&self) -> Option<Policy> {
        None
    }
    /// Whether zones are written by appends in a scenario of the policy `log`; `drawn` says whether that was drawn.
    fn appends(&self, _drawn: bool) -> bool {
        false
    }
    /// Adapts a scenario to the needs of the subject; `false` if another one has to be drawn.
    fn arrange(&self, _: &mut Scenario) -> bool {
        true
    }
    /// Whether a layer lies on the array, so that the subject's zones are not the array's.
    fn is_layered(&self) -> bool {
        false
    }
    /// Whether it detects writes by others to its drives: copies that were both written to, and zones that were
    /// finished outside of the array.
    fn notices_others(&self) -> bool {
        true
    }
    /// The number of parities that scenarios are drawn for; `None` for any of [`super::scenario::PARITIES`].
    fn parities(&self) -> Option<usize> {
        None
    }
    /// Whether completed writes may be lost in a power cut until a flush (see docs/GUARANTEES.md); `members` says
    /// whether a member has a volatile cache.
    fn may_lose_completed(&self, policy: Policy, members: bool) -> bool {
        members || policy == Policy::Zrwa
    }
    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, how: AssembleOptions) -> Work<Rc<dyn Subject>>;
    /// As [`Array::change`].
    fn change(&self, _: &Runtime, _: Vec<Drive>, _: Change) -> Work<()> {
        Box::pin(async { Err("nothing can be changed".into()) })
    }
    /// As [`Array::destroy`], for those of `drives` that have a superblock; does nothing if none has.
    fn destroy(&self, _: &Runtime, _: Vec<Drive>) -> Work<()> {
        Box::pin(async { Err("nothing can be destroyed".into()) })
    }
}

/// Options of an assembly.
#[derive(Clone, Default)]
pub struct AssembleOptions {
    /// The acknowledgement log of the previous process: as [`Array::take_over`].
    pub tails: Option<Tails>,
    /// As in [`ArrayOptions::join`].
    pub join: bool,
    /// As [`Array::assemble_deferred`].
    pub hold_back: bool,
    /// As in [`ArrayOptions::force`].
    pub force: bool,
}

/// Creates and assembles arrays.
#[derive(Clone, Default)]
pub struct ArrayMaker {
    pub consistency: Consistency,
    /// The policy of all arrays; `None` for any.
    pub policy: Option<Policy>,
    /// The number of parities of all arrays; `None` for any.
    pub parities: Option<usize>,
    /// Zones are written by appends, with the policy `log`. If all policies are drawn, so is this.
    pub appends: bool,
    /// In each life a drive fails silently.
    pub silent: bool,
    /// Forks include cases that are known to fail occasionally.
    pub beyond: bool,
}

/// Creation options of the subject of a scenario.
pub(super) fn create_options(scenario: &Scenario, uuid: [u8; 16]) -> CreateOptions {
    let Scenario { chunk_blocks, zone_size_blocks, policy, parities, group_blocks, spare_zones, .. } =
        *scenario;
    CreateOptions {
        chunk_blocks,
        zone_size_blocks,
        parities,
        policy: Some(policy),
        group_blocks,
        spare_zones: Some(spare_zones),
        checksums: scenario.has_checksums(),
        checksum_group_blocks: scenario.checksum_group_blocks.max(1),
        ..CreateOptions::new("simulated", uuid)
    }
}

impl ArrayMaker {
    pub(super) fn behaviour(&self, join: bool) -> ArrayOptions {
        ArrayOptions { consistency: self.consistency, join, ..ArrayOptions::default() }
    }

    /// Assembles an array.
    pub(super) async fn array(
        &self,
        runtime: &Runtime,
        drives: Vec<Drive>,
        how: AssembleOptions,
    ) -> Result<Array, SubjectError> {
        let AssembleOptions { tails, join, hold_back, force } = how;
        let behaviour = ArrayOptions { force, ..self.behaviour(join) };
        let array = match hold_back {
            true => Array::assemble_deferred(runtime, drives, tails.as_ref(), behaviour).await,
            false => Array::assemble_with(runtime, drives, tails.as_ref(), behaviour).await,
        };
        Ok(array?)
    }
}

impl Maker for ArrayMaker {
    fn policy(&self) -> Option<Policy> {
        self.policy
    }

    fn arrange(&self, scenario: &mut Scenario) -> bool {
        scenario.misfortune.beyond = self.beyond;
        if self.silent {
            scenario.misfortune.silent = 1000;
        }
        true
    }

    fn appends(&self, drawn: bool) -> bool {
        self.appends || drawn && self.policy.is_none()
    }

    fn parities(&self) -> Option<usize> {
        self.parities
    }

    fn create(
        &self,
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        join: bool,
    ) -> Work<Rc<dyn Subject>> {
        let (runtime, behaviour) = (runtime.clone(), self.behaviour(join));
        Box::pin(async move {
            let array = Array::create_with(&runtime, options, drives, behaviour).await?;
            Ok(Rc::new(array) as Rc<dyn Subject>)
        })
    }

    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, how: AssembleOptions) -> Work<Rc<dyn Subject>> {
        let (maker, runtime) = (self.clone(), runtime.clone());
        Box::pin(async move { Ok(Rc::new(maker.array(&runtime, drives, how).await?) as Rc<dyn Subject>) })
    }

    fn change(&self, runtime: &Runtime, drives: Vec<Drive>, change: Change) -> Work<()> {
        let runtime = runtime.clone();
        Box::pin(async move { Ok(Array::change(&runtime, drives, &change).await?) })
    }

    fn destroy(&self, runtime: &Runtime, drives: Vec<Drive>) -> Work<()> {
        let runtime = runtime.clone();
        Box::pin(async move {
            let mut labelled = Vec::new();
            for drive in drives {
                if examine(&runtime, &drive).await.is_ok() {
                    labelled.push(drive);
                }
            }
            match labelled.is_empty() {
                true => Ok(()),
                false => Ok(Array::destroy(&runtime, labelled).await?),
            }
        })
    }
}

impl Subject for Array {
    fn attach(&self, member: usize, drive: Drive) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::attach(&array, member, drive).await?) })
    }

    fn replace(&self, member: usize, drive: Drive) -> Work<()> {
        let array = self.clone();
        Box::pin(async move {
            Array::replace(&array, member, drive, &|_| ()).await?;
            Ok(())
        })
    }

    fn cancel_replacement(&self) -> bool {
        Array::cancel_replacement(self).is_ok()
    }

    fn rebuild(&self) -> Work<u64> {
        let array = self.clone();
        Box::pin(async move {
            let rebuilt = Array::rebuild(&array, &|_| ()).await?;
            match (rebuilt.lost.first(), rebuilt.left_out.first()) {
                (Some(lost), out) => Err(SubjectError::Lost(*lost, out.copied())),
                (None, Some(out)) => Err(SubjectError::LeftOut(*out)),
                (None, None) => Ok(rebuilt.bytes),
            }
        })
    }

    fn scrub(&self, zone: u32) -> Work<ZoneScrub> {
        let array = self.clone();
        Box::pin(async move { Ok(array.scrub_zone(ZoneIndex(zone), async |_| ()).await?) })
    }

    fn fail(&self, member: usize) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::fail(&array, member).await?) })
    }

    fn members(&self) -> Vec<(MemberState, String)> {
        self.status().members.into_iter().map(|member| (member.state, member.drive)).collect()
    }

    fn assembly(&self) -> u64 {
        Array::assembly(self)
    }

    fn power_marks(&self) -> Vec<PowerMark> {
        Array::power_marks(self)
    }

    fn layout(&self) -> Option<Layout> {
        Some(*Array::layout(self))
    }

    fn events(&self, since: u64) -> Option<EventList> {
        Some(Array::events(self, since))
    }

    fn check_fence(&self) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::check_fence(&array).await?) })
    }

    fn is_fenced(&self) -> bool {
        self.status().problem == Some(ArrayError::Fenced)
    }

    fn is_deferred(&self) -> bool {
        Array::is_deferred(self)
    }

    fn complete(&self, drive: Drive) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::complete(&array, drive).await?) })
    }

    fn said(&self) -> Option<SubjectIdentity> {
        let status = self.status();
        Some(SubjectIdentity {
            name: status.name,
            host: status.host,
            autostart: status.autostart,
            error_limit: status.error_limit,
        })
    }

    fn change(&self, change: Change) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::change_running(&array, &change).await?) })
    }

    fn array_status(&self) -> Option<ArrayStatus> {
        Some(self.status())
    }

    fn offline(&self) -> Vec<(u32, Refusal)> {
        self.status().offline.into_iter().map(|zone| (zone.zone.0, zone.refusal)).collect()
    }
}
