//! What the simulator tests: anything that makes a zoned device out of drives.
//!
//! The array is the subject that matters. The seam exists so that the simulator can be tested
//! itself, against something small, and so that options that only tests may set stay in one place.

use super::scenario::Scenario;
use engine::{
    array::{
        Array, ArrayError, ArrayStatus, Behaviour, CreateOptions, Drive, LeftOut, LostBlocks, MemberState,
        PowerMark, Tails, examine,
    },
    device::ZonedDevice,
    owner::Change,
    raid::{
        Consistency,
        error::{BadDrive, DriveFault, NoArray, NoReplacement, NotTaken, Note, Notes},
        events::Noted,
        geometry::Layout,
        policy::{Policy, zrwa::Refusal},
    },
    runtime::Runtime,
};
use std::{
    fmt::{self, Display, Formatter},
    future::Future,
    pin::Pin,
    rc::Rc,
};

/// Why a subject has not done what it was asked for.
#[derive(Clone, Debug)]
pub enum Why {
    Array(ArrayError),
    /// A rebuild has not brought this back, though no more drives were struck than may be; it may have left something
    /// out, too.
    Lost(LostBlocks, Option<LeftOut>),
    LeftOut(LeftOut),
    /// A subject that is no array can use too few of its members.
    TooFew(String),
    /// What else it says.
    Other(String),
}

impl Why {
    /// Drives that it speaks of, by their names.
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
            Why::Array(ArrayError::Drive(drive)) => vec![&drive.name],
            Why::Array(ArrayError::Failed(Notes(notes))) => {
                notes.iter().filter_map(|(_, note)| of_note(note)).collect()
            }
            Why::Array(ArrayError::Drives(why)) => match why {
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

    /// Members that it speaks of.
    pub(super) fn members(&self) -> Vec<usize> {
        match self {
            Why::Array(
                ArrayError::Failed(Notes(notes))
                | ArrayError::Incomplete(Notes(notes))
                | ArrayError::NotTold(Notes(notes)),
            ) => notes.iter().map(|(member, _)| *member).collect(),
            Why::Array(ArrayError::LogIsFull { member }) => vec![*member],
            Why::Array(ArrayError::Drives(
                NoArray::Needed { member, .. } | NoArray::SameMember { member, .. },
            )) => vec![*member],
            _ => Vec::new(),
        }
    }

    /// Whether a copy was cancelled, and the new drive has been made blank.
    pub(super) fn is_cancelled(&self) -> bool {
        let Why::Array(ArrayError::Replace(NoReplacement::Failed { why, .. })) = self else { return false };
        *why == NotTaken::Cancelled
    }

    /// Whether a drive could be a member, but not be copied to.
    pub(super) fn is_no_copy(&self) -> bool {
        matches!(self, Why::Array(ArrayError::Drive(BadDrive { fault: DriveFault::NoCopy(_), .. })))
    }
}

impl Display for Why {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Why::Array(error) => write!(f, "{error}"),
            Why::Lost(lost, _) => {
                write!(f, "{lost:?} is lost, though no more drives were struck than may be")
            }
            Why::LeftOut(out) => write!(f, "zone {} of member {}: {}", out.zone, out.member, out.reason),
            Why::TooFew(sentence) | Why::Other(sentence) => f.write_str(sentence),
        }
    }
}

impl From<ArrayError> for Why {
    fn from(error: ArrayError) -> Why {
        Why::Array(error)
    }
}

impl From<String> for Why {
    fn from(sentence: String) -> Why {
        Why::Other(sentence)
    }
}

impl From<&str> for Why {
    fn from(sentence: &str) -> Why {
        Why::Other(sentence.into())
    }
}

/// Something the subject does.
pub type Work<T> = Pin<Box<dyn Future<Output = Result<T, Why>>>>;

/// What a subject says of itself, which its owner may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub name: String,
    pub host: [u8; 16],
    pub autostart: bool,
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
    /// As [`Array::fail`].
    fn fail(&self, member: usize) -> Work<()>;
    /// The state of each member and the name of its drive, in order of their roles.
    fn members(&self) -> Vec<(MemberState, String)>;
    /// As [`Array::assembly`].
    fn assembly(&self) -> u64;
    /// As [`Array::power_marks`].
    fn power_marks(&self) -> Vec<PowerMark> {
        Vec::new()
    }

    /// As [`Array::layout`]; `None` where what lies on the drives is nobody's business.
    fn layout(&self) -> Option<Layout> {
        None
    }

    /// As [`Array::events`]; `None` of a subject that tells nothing.
    fn events(&self, _since: u64) -> Option<Noted> {
        None
    }

    /// As [`Array::check_fence`].
    fn check_fence(&self) -> Work<()> {
        Box::pin(async { Ok(()) })
    }
    /// Whether it has let go of its drives, which another host uses.
    fn is_fenced(&self) -> bool {
        false
    }

    /// As [`Array::is_provisional`].
    fn is_provisional(&self) -> bool {
        false
    }
    /// Whether it had written nothing before anything was laid on it.
    fn began_deferred(&self) -> bool {
        self.is_provisional()
    }
    /// As [`Array::complete`].
    fn complete(&self, _: Drive) -> Work<()> {
        Box::pin(async { Ok(()) })
    }

    /// What it says of itself; `None` of a subject that says nothing, and cannot be changed or destroyed.
    fn said(&self) -> Option<Said> {
        None
    }
    /// As [`Array::change_running`].
    fn change(&self, _: Change) -> Work<()> {
        Box::pin(async { Err("nothing can be changed".into()) })
    }

    /// Zones of the array, whatever it shows.
    fn array_zones(&self) -> u32 {
        self.geometry().zones
    }

    /// Ends of zones that its process has noted for the next one, if these are not those of the zones that it shows.
    fn tails(&self) -> Option<Vec<u64>> {
        None
    }

    /// As [`Array::status`]; `None` of what has no array below it.
    fn array_status(&self) -> Option<ArrayStatus> {
        None
    }

    /// Zones that are offline, and why.
    fn offline(&self) -> Vec<(u32, Refusal)> {
        Vec::new()
    }
}

/// Makes subjects, and finds them again after a power cut.
pub trait Maker {
    /// As [`Array::create`]; `join` as in [`Behaviour::join`].
    fn create(
        &self,
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        join: bool,
    ) -> Work<Rc<dyn Subject>>;
    /// The policy that scenarios are drawn for; any if there is none.
    fn policy(&self) -> Option<Policy> {
        None
    }
    /// Whether zones are written by appends, in a scenario of the policy `log`, for which that was drawn or not.
    fn appends(&self, _drawn: bool) -> bool {
        false
    }
    /// Changes a scenario to what it needs; `false` if another one is to be drawn.
    fn arrange(&self, _: &mut Scenario) -> bool {
        true
    }
    /// Whether something lies on the array, so that zones are not those of the drives.
    fn is_layered(&self) -> bool {
        false
    }
    /// Whether it notices what others have written to its drives: copies that have been written to independently, and
    /// zones that another hand has finished.
    fn notices_others(&self) -> bool {
        true
    }
    /// The number of parities that scenarios are drawn for; any of [`super::scenario::PARITIES`] if there is none.
    fn parities(&self) -> Option<usize> {
        None
    }
    /// Whether completed writes may be lost in a power cut until a flush, as docs/GUARANTEES.md has it;
    /// `members` says whether a member has a volatile cache.
    fn may_lose_completed(&self, policy: Policy, members: bool) -> bool {
        members || policy == Policy::Zrwa
    }
    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, how: How) -> Work<Rc<dyn Subject>>;
    /// As [`Array::change`].
    fn change(&self, _: &Runtime, _: Vec<Drive>, _: Change) -> Work<()> {
        Box::pin(async { Err("nothing can be changed".into()) })
    }
    /// As [`Array::destroy`], of those of `drives` that say they are of an array; nothing if none does.
    fn destroy(&self, _: &Runtime, _: Vec<Drive>) -> Work<()> {
        Box::pin(async { Err("nothing can be destroyed".into()) })
    }
}

/// How a subject is to be assembled.
#[derive(Clone, Default)]
pub struct How {
    /// What the process before has left: as [`Array::take_over`].
    pub tails: Option<Tails>,
    /// As in [`Behaviour::join`].
    pub join: bool,
    /// As [`Array::assemble_provisionally`].
    pub hold_back: bool,
    /// As in [`Behaviour::force`].
    pub force: bool,
}

/// Makes arrays.
#[derive(Clone, Default)]
pub struct ArrayMaker {
    pub consistency: Consistency,
    /// The policy of all arrays, if not any.
    pub policy: Option<Policy>,
    /// The number of parities of all arrays, if not any.
    pub parities: Option<usize>,
    /// Zones are written by appends. The policy is `log` then. If all policies are drawn, so is this.
    pub appends: bool,
    /// A drive fails silently in each life.
    pub silent: bool,
    /// Forks play cases that are known to fail now and then as well.
    pub beyond: bool,
}

/// How the subject of a scenario is made.
pub(super) fn create_options(scenario: &Scenario, uuid: [u8; 16]) -> CreateOptions {
    let name = "simulated".into();
    let Scenario { chunk_blocks, zone_size_blocks, policy, parities, group_blocks, spare_zones, .. } =
        *scenario;
    let (policy, spare_zones, host, autostart) = (Some(policy), Some(spare_zones), [0; 16], false);
    CreateOptions {
        name,
        uuid,
        chunk_blocks,
        zone_size_blocks,
        parities,
        policy,
        group_blocks,
        spare_zones,
        host,
        autostart,
    }
}

impl ArrayMaker {
    pub(super) fn behaviour(&self, join: bool) -> Behaviour {
        Behaviour { consistency: self.consistency, join, ..Behaviour::default() }
    }

    /// Assembles an array.
    pub(super) async fn array(&self, runtime: &Runtime, drives: Vec<Drive>, how: How) -> Result<Array, Why> {
        let How { tails, join, hold_back, force } = how;
        let behaviour = Behaviour { force, ..self.behaviour(join) };
        let array = match hold_back {
            true => Array::assemble_provisionally(runtime, drives, tails.as_ref(), behaviour).await,
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

    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, how: How) -> Work<Rc<dyn Subject>> {
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
                (Some(lost), out) => Err(Why::Lost(*lost, out.copied())),
                (None, Some(out)) => Err(Why::LeftOut(*out)),
                (None, None) => Ok(rebuilt.bytes),
            }
        })
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

    fn events(&self, since: u64) -> Option<Noted> {
        Some(Array::events(self, since))
    }

    fn check_fence(&self) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::check_fence(&array).await?) })
    }

    fn is_fenced(&self) -> bool {
        self.status().problem == Some(ArrayError::Fenced)
    }

    fn is_provisional(&self) -> bool {
        Array::is_provisional(self)
    }

    fn complete(&self, drive: Drive) -> Work<()> {
        let array = self.clone();
        Box::pin(async move { Ok(Array::complete(&array, drive).await?) })
    }

    fn said(&self) -> Option<Said> {
        let status = self.status();
        Some(Said { name: status.name, host: status.host, autostart: status.autostart })
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
