//! What there is to say about an array: the objects that `--json` prints. A command that holds the
//! drives makes them, and so does the daemon of an array, which sends them to the command.

mod health;
mod namespaces;
mod presence;
mod volume;
mod words;

use crate::{
    drive::{Plate, User},
    machine::{self, Owner},
    output::{DEGRADED, HEALTHY, Shade, UNUSABLE, shaded, uuid},
    size::{bytes, show, total},
};
use anyhow::{Result, ensure};
use engine::{
    array::{
        self, ArrayStatus, Condition, Event, Health, Inspected, MemberState, MemberStatus, Noted, Progress,
    },
    device::Geometry,
    format::superblock::Stage,
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use indicatif::HumanDuration;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

pub use namespaces::{Division, NamespaceReport, RatesReport, latency_words};
pub use presence::{hidden, is_there};
pub use volume::{
    Compression, Space, VolumeReport, VolumeSet, WhenFull, WrittenBytes, given_up, no_start, no_volume,
};
pub use words::{has_or_have, in_a_row, is_or_are, members_named, number, so_many_zones};

/// What an array with so many parities is called where it is typed, and in JSON; in sentences it has its
/// [`level_name`](engine::format::superblock::level_name).
pub fn level(parities: usize) -> String {
    format!("raid{}", 4 + parities)
}

/// What gives an array more active zones: the records of each have to fit into a zone of metadata.
pub const MORE_ACTIVE: &str = "a smaller --chunk, or fewer zones by a larger --zone-size, allow more";

/// How well an array is, from well to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Healthy,
    /// Somebody changes it all the time, so that nobody else can tell.
    Changing,
    Degraded,
    Unusable,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Healthy => "healthy",
            State::Changing => "changing",
            State::Degraded => "degraded",
            State::Unusable => "unusable",
        })
    }
}

impl State {
    /// What a command exits with that says so. What may be wrong, and may be not, is no reason for an alarm.
    pub fn code(self) -> u8 {
        match self {
            State::Healthy | State::Changing => HEALTHY,
            State::Degraded => DEGRADED,
            State::Unusable => UNUSABLE,
        }
    }

    /// For people.
    pub fn shaded(self) -> String {
        let shade = match self {
            State::Healthy => Shade::Good,
            State::Changing | State::Degraded => Shade::Fair,
            State::Unusable => Shade::Bad,
        };
        shaded(&self.to_string(), shade)
    }
}

/// What the zones of an array belong to, if users do not manage them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    Volume,
    Namespaces,
    /// What tells cannot be read.
    Unknown,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    pub uuid: String,
    pub level: String,
    pub state: State,
    /// What is wrong, in a sentence.
    pub status: String,
    /// What to do about it.
    pub action: Option<String>,
    /// How many more members may be lost before data is.
    pub may_be_lost: u32,
    pub event: u64,
    pub chunk_bytes: u64,
    /// How partial stripes are protected.
    pub policy: String,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Nothing while the array is unusable.
    pub zones: Option<u32>,
    pub zone_capacity_bytes: Option<u64>,
    /// Process that runs the array; nothing if none does.
    pub pid: Option<u32>,
    /// The longest turn of its event loop since it was started: nobody was served meanwhile.
    pub longest_turn_us: Option<u64>,
    /// What file systems use, if there is a block device.
    pub block_device: Option<String>,
    /// The block device by the name of its array.
    pub link: Option<String>,
    /// Where NBD clients connect, if they can.
    pub nbd: Option<String>,
    /// The volume that the array carries, as the process tells that runs it.
    pub volume: Option<VolumeReport>,
    /// How it is divided among namespaces, as the process tells that runs it.
    pub namespaces: Option<Division>,
    /// The rebuild that is going on.
    pub rebuild: Option<Rebuild>,
    /// Processes that use the drives and cannot be asked; a daemon that can is `pid`.
    pub used_by: Vec<User>,
    /// Whether they change the array all the time, so that what is said of it is of different moments.
    pub changing: bool,
    /// A daemon was killed, and what uses its block device, or its NBD clients, wait for the next one.
    pub waits_for_daemon: bool,
    /// Zones of which nobody can tell where they ended. Everything else works.
    pub offline_zones: Vec<OfflineZone>,
    /// Zones that lack more parts than parity makes up for: nothing can be written there.
    pub failed_zones: Vec<u32>,
    /// Members are missing, and nothing has been written without them.
    pub provisional: bool,
    pub read_only: bool,
    /// What rebuilds could not bring back.
    pub lost_bytes: u64,
    /// Where the array belongs, and by what it knows that host; nothing if it is nobody's.
    pub host: Owner,
    pub host_id: Option<String>,
    /// Whether it starts by itself there.
    pub autostart: bool,
    pub stage: Life,
    /// What has happened to it lately, as the process tells that runs it.
    pub events: Vec<Happened>,
    pub members: Vec<StatusMember>,
}

/// Something that has happened to an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// Grows by one with every event of a process.
    pub number: u64,
    pub event: String,
    /// What it is about.
    pub role: Option<u32>,
    pub zone: Option<u32>,
    pub sentence: String,
}

impl Happened {
    /// The last ones of those that have been `noted`.
    pub fn lately(noted: Noted) -> Vec<Happened> {
        const MOST: usize = 64;
        let skipped = noted.events.len().saturating_sub(MOST);
        let last = (noted.first..).zip(&noted.events).skip(skipped);
        last.map(|(number, event)| Happened::of(number, event)).collect()
    }

    fn of(number: u64, event: &Event) -> Happened {
        Happened {
            number,
            event: kind(event).into(),
            role: event.member().map(|member| member as u32),
            zone: event.zone(),
            sentence: event.to_string(),
        }
    }
}

/// What scripts call an event.
fn kind(event: &Event) -> &'static str {
    match event {
        Event::Out { .. } => "out",
        Event::Back { .. } => "back",
        Event::PartLost { .. } => "part-lost",
        Event::PartLacking { .. } => "part-lacking",
        Event::PartDisplaced { .. } => "part-displaced",
        Event::ZoneOffline { .. } => "zone-offline",
        Event::ZoneFailed { .. } => "zone-failed",
        Event::ArrayFailed => "array-failed",
        Event::Fenced => "fenced",
        Event::Settled { .. } => "settled",
        Event::Attached { .. } => "attached",
        Event::Replaced { .. } => "replaced",
        Event::Moved { .. } => "moved",
        Event::NotReplaced(_) => "not-replaced",
        Event::RebuildBegun => "rebuild-begun",
        Event::LeftOut { .. } => "left-out",
        Event::BlocksLost { .. } => "blocks-lost",
        Event::RebuildEnded { .. } => "rebuild-ended",
        Event::RebuildStopped(_) => "rebuild-stopped",
    }
}

/// Where in its life an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Life {
    Unfinished,
    Whole,
    HalfDestroyed,
}

impl Life {
    pub fn of(stage: Stage) -> Life {
        match stage {
            Stage::Making => Life::Unfinished,
            Stage::Whole => Life::Whole,
            Stage::Ending => Life::HalfDestroyed,
        }
    }

    /// What is wrong with an array that is none yet, or none any more, and what mends it; nothing if it is one.
    pub fn trouble(self) -> Option<(&'static str, &'static str)> {
        match self {
            Life::Unfinished => Some(("its creation was not finished", "create it again")),
            Life::Whole => None,
            Life::HalfDestroyed => Some(("it is half destroyed", "destroy it again")),
        }
    }

    /// For people; nothing of an array that is one.
    pub fn shaded(self) -> Option<String> {
        match self {
            Life::Unfinished => Some(shaded("not finished", Shade::Bad)),
            Life::Whole => None,
            Life::HalfDestroyed => Some(shaded("half destroyed", Shade::Bad)),
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct OfflineZone {
    pub zone: u32,
    pub reason: String,
    /// Roles of members that are away and may know.
    pub waits_for: Vec<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct StatusMember {
    pub role: u32,
    /// Empty if there is no drive.
    pub drive: String,
    /// Of the drive that is there, or else of the one that is gone; nothing if it does not say.
    pub model: Option<String>,
    pub serial: Option<String>,
    pub size_bytes: Option<u64>,
    pub state: String,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Of its part what its drive could not read, and what has not been read, rebuilt or reset since.
    pub unreadable_bytes: u64,
    pub zones_to_rebuild: u32,
    /// Zones that have worn out, in whose place spare ones are used.
    pub moved_zones: u32,
    /// Spare zones that nothing has been moved to.
    pub spare_zones: u32,
    pub note: String,
}

/// A member that works and is being replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    pub role: u32,
    /// The drive that it is copied to.
    pub drive: String,
}

/// How far a rebuild is, or a copy, and how fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    /// What is being copied; nothing if it is rebuilt from the others.
    pub copied: Option<Copied>,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_second: u64,
    /// Unknown until something has been rebuilt.
    pub seconds_left: Option<u64>,
    /// Whether a process works on it, or may do so; otherwise it is interrupted.
    pub running: bool,
}

impl Rebuild {
    /// What is going on: a rebuild, or a copy.
    pub fn kind(&self) -> &'static str {
        if self.copied.is_some() { "copy" } else { "rebuild" }
    }

    /// The rebuild or copy that a start of a stopped array would continue.
    pub fn unfinished(array: &Inspected) -> Option<Rebuild> {
        let copy = array.copies.first();
        let Progress { done_bytes, total_bytes, .. } = array.rebuild.or(copy.map(|copy| copy.progress))?;
        let copy = copy.filter(|_| array.rebuild.is_none());
        let copied = copy.map(|copy| Copied { role: copy.member as u32, drive: copy.drive.clone() });
        let (bytes_per_second, seconds_left, running) = (0, None, false);
        Some(Rebuild { copied, done_bytes, total_bytes, bytes_per_second, seconds_left, running })
    }

    /// How far it is.
    pub fn percent(&self) -> String {
        let done = self.done_bytes.saturating_mul(100) / self.total_bytes.max(1);
        let left = self.seconds_left.map(|s| format!(", {} left", HumanDuration(Duration::from_secs(s))));
        let interrupted = if self.running { "" } else { ", interrupted" };
        format!("{done} %{}{interrupted}", left.unwrap_or_default())
    }
}

/// The state of a member in one word.
fn member_state(member: &MemberStatus) -> &'static str {
    match member.state {
        MemberState::Active => "active",
        MemberState::Rebuilding => "rebuilding",
        MemberState::Out if member.awaited => "missing",
        MemberState::Out => "out",
    }
}

impl State {
    fn of(condition: Condition) -> State {
        match condition {
            Condition::Healthy => State::Healthy,
            Condition::Degraded => State::Degraded,
            Condition::Unusable => State::Unusable,
        }
    }
}

impl Status {
    /// How an array is that can be assembled; `called` is what the user calls it.
    pub fn of(called: &str, array: &ArrayStatus, geometry: &Geometry) -> Status {
        let health = Health::of(array);
        let action = health.remedy.as_ref().map(|remedy| health::advice(called, array, &health, remedy));
        let (state, status) = (State::of(health.condition), health::sentence(array, &health));
        let members = array.members.iter().enumerate().map(|(role, member)| StatusMember {
            role: role as u32,
            drive: member.drive.clone(),
            model: Plate::kept(&member.plate).model,
            serial: Plate::kept(&member.plate).serial,
            size_bytes: Some(member.plate.size_bytes),
            state: member_state(member).into(),
            read_errors: member.read_errors,
            write_errors: member.write_errors,
            unreadable_bytes: bytes(member.unreadable_blocks),
            zones_to_rebuild: member.zones_to_rebuild,
            moved_zones: member.moved.len() as u32,
            spare_zones: member.spare_zones,
            note: match member.note.to_string() {
                note if note.is_empty() && !member.worn_log.is_empty() => {
                    let zones: Vec<String> = member.worn_log.iter().map(u32::to_string).collect();
                    format!("metadata zone {} of the drive is worn", in_a_row(&zones))
                }
                note => note,
            },
        });
        Status {
            name: array.name.clone(),
            uuid: uuid(&array.uuid),
            level: level(array.parities),
            state,
            status,
            action,
            may_be_lost: health.may_be_lost as u32,
            event: array.event,
            chunk_bytes: bytes(array.chunk_blocks),
            policy: array.policy.name_with(array.group_blocks).into(),
            aggregate: array.aggregate,
            zones: Some(geometry.zones),
            zone_capacity_bytes: Some(bytes(geometry.zone_capacity_blocks)),
            pid: None,
            block_device: None,
            link: None,
            nbd: None,
            longest_turn_us: None,
            volume: None,
            namespaces: None,
            rebuild: None,
            used_by: Vec::new(),
            changing: false,
            waits_for_daemon: false,
            offline_zones: array.offline.iter().map(offline_zone).collect(),
            failed_zones: array.failed_zones.iter().map(|zone| zone.0).collect(),
            provisional: array.provisional,
            read_only: array.read_only,
            lost_bytes: bytes(array.lost_blocks),
            host: Owner::of(&array.host),
            host_id: host_id(&array.host),
            autostart: array.autostart,
            stage: Life::Whole,
            events: Vec::new(),
            members: members.collect(),
        }
    }

    /// Takes back the advice to reset zones of the array, which is refused where they are those of `carried`.
    pub fn respect(&mut self, carried: Carried) {
        let Some(action) = &mut self.action else { return };
        if let Some(at) = action.find(health::GIVE_UP_ZONE) {
            action.truncate(at);
            *action += match carried {
                Carried::Volume => {
                    "give up what the volume has lost there: start or serve the array with --give-up"
                }
                Carried::Namespaces => {
                    "give up what there was: zoneraid zone reset ARRAY/NAME ZONE, or start the array with --give-up \
                     where the namespace carries a volume"
                }
                Carried::Unknown => {
                    "find the drives that held these zones; nothing else tells whether they are those of a volume or \
                     of namespaces, which are not reset"
                }
            };
        }
        if action.starts_with(health::RESET_FAILED) {
            *action = match carried {
                Carried::Volume | Carried::Unknown => {
                    "start or serve the array: a volume moves what is there to other zones".into()
                }
                Carried::Namespaces => {
                    "copy what can be read there, then reset zones of the namespaces: zoneraid \
                                        zone reset ARRAY/NAME ZONE"
                        .into()
                }
            };
        }
        if action == health::RESTORE {
            *action = match carried {
                Carried::Volume | Carried::Unknown => "restore it: what is written again can be read".into(),
                Carried::Namespaces => {
                    "restore it, or reset zones of the namespaces: zoneraid zone reset ARRAY/NAME ZONE".into()
                }
            };
        }
    }

    /// Bytes that the array holds when all zones are full; nothing while it is unusable.
    pub fn size_bytes(&self) -> Option<u64> {
        self.zone_capacity_bytes?.checked_mul(self.zones?.into())
    }

    /// Members that the array does not do without.
    pub fn active(&self) -> usize {
        self.members.iter().filter(|member| member.state == "active").count()
    }
}

/// What is said of an array, and has nothing to do with what it holds.
#[derive(Clone, Serialize, Deserialize)]
pub struct Owned {
    pub array: String,
    pub uuid: String,
    pub host: Owner,
    pub host_id: Option<String>,
    pub autostart: bool,
}

impl Owned {
    pub fn of(array: &ArrayStatus) -> Owned {
        Owned {
            array: array.name.clone(),
            uuid: uuid(&array.uuid),
            host: Owner::of(&array.host),
            host_id: host_id(&array.host),
            autostart: array.autostart,
        }
    }
}

/// By what an array knows its host.
pub fn host_id(host: &[u8; 16]) -> Option<String> {
    (*host != machine::NOBODY).then(|| uuid(host))
}

fn offline_zone(zone: &array::OfflineZone) -> OfflineZone {
    OfflineZone {
        zone: zone.zone.0,
        reason: zone.refusal.to_string(),
        waits_for: zone.waits_for.iter().map(|role| *role as u32).collect(),
    }
}

/// What a rebuild has done.
#[derive(Clone, Serialize, Deserialize)]
pub struct Rebuilt {
    pub array: String,
    pub role: Option<u32>,
    pub drive: Option<String>,
    /// Roles of members that are out all the same.
    pub still_out: Vec<u32>,
    /// From the old drive.
    pub copied_bytes: u64,
    /// From all others.
    pub rebuilt_bytes: u64,
    /// Zones that could not be rebuilt.
    pub left_out: Vec<LeftOut>,
    /// Roles of members that have zones to be rebuilt all the same.
    pub still_lacking: Vec<u32>,
    /// What nobody can read any more.
    pub lost: Vec<Lost>,
}

/// A member's part of a zone that could not be rebuilt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub zone: u32,
    pub role: u32,
    pub reason: String,
}

/// Bytes of a zone that cannot be read any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lost {
    pub zone: u32,
    /// From the start of the zone.
    pub start_bytes: u64,
    pub bytes: u64,
}

impl Rebuilt {
    /// What has been `done` for `array`, as that is now.
    pub fn of(
        array: &ArrayStatus,
        role: Option<u32>,
        drive: Option<String>,
        done: &array::Rebuilt,
    ) -> Rebuilt {
        let still_out = Health::of(array).out.into_iter().map(|role| role as u32).collect();
        let left_out = done.left_out.iter().map(|out| LeftOut {
            zone: out.zone,
            role: out.member as u32,
            reason: out.reason.to_string(),
        });
        let lost = done.lost.iter().map(|lost| Lost {
            zone: lost.zone,
            start_bytes: bytes(lost.from),
            bytes: bytes(lost.blocks),
        });
        let (left_out, lost) = (left_out.collect(), lost.collect());
        let still_lacking = Health::of(array).lacking.into_iter().map(|role| role as u32).collect();
        let (array, rebuilt_bytes) = (array.name.clone(), done.bytes);
        Rebuilt {
            array,
            role,
            drive,
            still_out,
            copied_bytes: 0,
            rebuilt_bytes,
            left_out,
            still_lacking,
            lost,
        }
    }

    /// Whether everything that was lacking is there again.
    pub fn is_whole(&self) -> bool {
        self.left_out.is_empty() && self.lost.is_empty() && self.still_lacking.is_empty()
    }

    /// Whether every member holds all that it should.
    pub fn is_in_sync(&self) -> bool {
        self.left_out.is_empty() && self.still_out.is_empty() && self.still_lacking.is_empty()
    }

    /// What could not be rebuilt, and who is out all the same, a sentence each; nothing if all is well.
    pub fn losses(&self) -> String {
        let mut text = String::new();
        if !self.still_out.is_empty() {
            let out: Vec<usize> = self.still_out.iter().map(|role| *role as usize).collect();
            text += &format!("{} {} still out\n", members_named(&out), is_or_are(out.len()));
        }
        let named = |role: &&u32| self.left_out.iter().all(|out| out.role != **role);
        let lacking: Vec<usize> =
            self.still_lacking.iter().filter(named).map(|role| *role as usize).collect();
        if !lacking.is_empty() {
            text += &format!(
                "{} still {} zones to rebuild\n",
                members_named(&lacking),
                has_or_have(lacking.len())
            );
        }
        for LeftOut { zone, role, reason } in &self.left_out {
            text += &format!("zone {zone} of member {role} was left out: {reason}\n");
        }
        if !self.lost.is_empty() {
            let total = total(self.lost.iter().map(|lost| lost.bytes));
            let zones: BTreeSet<u32> = self.lost.iter().map(|lost| lost.zone).collect();
            let zones: Vec<String> = zones.iter().map(u32::to_string).collect();
            text += &format!(
                "{} cannot be read any more (zones: {}); --json tells which\n",
                show(total),
                zones.join(", ")
            );
        }
        text
    }
}

/// A member that has been taken out, or a drive that was to replace it and does not any more.
#[derive(Clone, Serialize, Deserialize)]
pub struct Failed {
    pub array: String,
    pub role: u32,
    pub drive: String,
    /// The drive was being filled with a copy of the member, which stays.
    pub called_off: bool,
}

/// The zones of an array.
#[derive(Clone, Serialize, Deserialize)]
pub struct Zones {
    pub array: String,
    pub zones: Vec<Zone>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Zone {
    pub zone: u32,
    pub start_bytes: u64,
    pub condition: String,
    /// From the start of the zone; nothing where the condition leaves it undefined.
    pub wp_bytes: Option<u64>,
    pub capacity_bytes: u64,
}

impl Zones {
    /// All of `zones`, or only the one with number `only`.
    pub fn of(array: &str, geometry: &Geometry, zones: &[ZoneInfo], only: Option<u32>) -> Result<Zones> {
        if let Some(zone) = only {
            check_zone(zone, geometry.zones)?;
        }
        let wanted = zones.iter().filter(|info| only.is_none_or(|only| info.zone.0 == only));
        let zones = wanted.map(|info| Zone {
            zone: info.zone.0,
            start_bytes: bytes(geometry.start(ZoneIndex(info.zone.0)).0),
            condition: condition(info.state).into(),
            wp_bytes: has_wp(info.state).then(|| bytes(info.wp_blocks)),
            capacity_bytes: bytes(info.capacity_blocks),
        });
        Ok(Zones { array: array.to_string(), zones: zones.collect() })
    }
}

/// The condition of a zone in the words of blkzone.
pub fn condition(state: ZoneState) -> &'static str {
    match state {
        ZoneState::Empty => "empty",
        ZoneState::ImplicitlyOpen => "implicitly-open",
        ZoneState::ExplicitlyOpen => "explicitly-open",
        ZoneState::Closed => "closed",
        ZoneState::ReadOnly => "read-only",
        ZoneState::Full => "full",
        ZoneState::Offline => "offline",
    }
}

/// Whether a zone in this state has a write pointer that means something.
pub fn has_wp(state: ZoneState) -> bool {
    !matches!(state, ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline)
}

/// How many zones are not empty.
pub fn used_zones(zones: &[ZoneInfo]) -> u32 {
    zones.iter().filter(|zone| zone.state != ZoneState::Empty).count() as u32
}

/// Refuses the number of a zone that does not exist.
pub fn check_zone(zone: u32, zones: u32) -> Result<()> {
    ensure!(
        zone < zones,
        "there is no zone {zone}: the array has {zones} zones, from 0 to {}",
        zones.max(1) - 1
    );
    Ok(())
}

/// What a drive is.
#[derive(Clone, Serialize, Deserialize)]
pub struct Examined {
    pub drive: String,
    /// Nothing if the drive does not say.
    pub model: Option<String>,
    pub serial: Option<String>,
    pub blank: bool,
    pub zones: u32,
    pub zone_size_bytes: u64,
    pub zone_capacity_bytes: u64,
    pub max_open_zones: u32,
    pub max_active_zones: u32,
    pub zrwa: Option<ZrwaSizes>,
    pub oob_bytes_per_block: u32,
    pub volatile_cache: bool,
    /// Zones that are neither empty nor full.
    pub active_zones: u32,
    pub full_zones: u32,
    pub empty_zones: u32,
    /// Zones that are read-only or offline.
    #[serde(default)]
    pub worn_zones: Vec<u32>,
    pub superblock: Option<Superblock>,
    /// What there is instead on a drive that is not blank.
    pub superblock_error: Option<String>,
    /// Who has claimed the drive.
    pub used_by: Option<User>,
    /// The copy of this drive to another one, or of a member to this drive, that is under way or interrupted.
    #[serde(default)]
    pub copy: Option<Rebuild>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct ZrwaSizes {
    pub size_bytes: u64,
    pub granularity_bytes: u64,
    pub max_zones: u32,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Superblock {
    pub array: String,
    pub uuid: String,
    pub level: String,
    pub role: u32,
    pub members: u32,
    pub chunk_bytes: u64,
    pub policy: String,
    pub aggregate: u32,
    pub event: u64,
    /// Where the array belongs, and by what it knows that host; nothing if it is nobody's.
    pub host: Owner,
    pub host_id: Option<String>,
    /// Whether it starts by itself there.
    pub autostart: bool,
    pub stage: Life,
    /// What this drive knows of all members, by role.
    pub drives: Vec<KnownDrive>,
}

/// What a superblock says of a member.
#[derive(Clone, Serialize, Deserialize)]
pub struct KnownDrive {
    pub role: u32,
    /// Whether the array does not do without it.
    pub active: bool,
    /// Nothing if the drive did not say.
    pub model: Option<String>,
    pub serial: Option<String>,
    pub size_bytes: u64,
}
