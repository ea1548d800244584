//! Reports on arrays: the objects that `--json` prints. A command that has opened the drives builds them itself; the
//! daemon of a running array builds them and sends them to the command.

mod events;
mod health;
mod namespaces;
mod presence;
mod rates;
pub mod scrub;
mod volume;
mod words;

use crate::{
    drive::{ModelAndSerial, User},
    process::{
        machine::{self, Owner},
        output::{DEGRADED, HEALTHY, Shade, UNUSABLE, shaded, uuid},
        size::{bytes, show, total},
    },
};
use anyhow::{Result, ensure};
use engine::{
    array::{
        self, ArrayInspection, ArrayStatus, Condition, Health, LostBlocks, MemberState, MemberStatus,
        Progress, UnreadableRange,
    },
    device::Geometry,
    format::superblock::Stage,
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use indicatif::HumanDuration;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

pub use engine::format::superblock::level;
pub use events::EventReport;
pub use namespaces::{Division, NamespaceReport, latency_words};
pub use presence::{hidden, is_there};
pub use rates::RatesReport;
pub use volume::{
    ChangedRange, Compression, PoolVolumeReport, SnapshotReport, Space, VolumeLosses, VolumeRange,
    VolumeReport, VolumeSet, WhenFull, WrittenBytes, given_up, no_start, no_volume,
};
pub use words::{has_or_have, in_a_row, is_or_are, members_named, number, so_many_zones};

/// Advice for an array with too few active zones. Their number is limited because the records of all of them have to
/// fit into a metadata zone.
pub const MORE_ACTIVE: &str = "a smaller --chunk, or fewer zones by a larger --zone-size, allow more";

/// Condition of an array; the values are in the order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Healthy,
    /// Another process keeps changing the array, so that no consistent status can be read.
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
    /// Exit code of a command that reports this state. `Changing` counts as healthy: a fault that is not certain raises
    /// no alarm.
    pub fn code(self) -> u8 {
        match self {
            State::Healthy | State::Changing => HEALTHY,
            State::Degraded => DEGRADED,
            State::Unusable => UNUSABLE,
        }
    }

    /// The state, coloured for terminals.
    pub fn shaded(self) -> String {
        let shade = match self {
            State::Healthy => Shade::Good,
            State::Changing | State::Degraded => Shade::Fair,
            State::Unusable => Shade::Bad,
        };
        shaded(&self.to_string(), shade)
    }
}

/// Use of the zones of an array, if users do not manage them themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneContents {
    Volume,
    Namespaces,
    /// The blocks that distinguish a volume from namespaces cannot be read.
    Unknown,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    pub uuid: String,
    pub level: String,
    pub state: State,
    /// Condition in one sentence.
    pub status: String,
    /// Recommended action.
    pub action: Option<String>,
    /// Number of further members that can be lost without loss of data.
    pub may_be_lost: u32,
    pub event: u64,
    pub chunk_bytes: u64,
    /// Partial parity policy.
    pub policy: String,
    /// Whether each block of a zone has a checksum.
    pub checksums: bool,
    /// Number of zones of a drive that are used as one.
    pub aggregate: u32,
    /// `None` while the array is unusable.
    pub zones: Option<u32>,
    pub zone_capacity_bytes: Option<u64>,
    /// Process that runs the array; `None` if there is none.
    pub pid: Option<u32>,
    /// Longest turn of the daemon's event loop since its start, in microseconds; no request is processed during a turn
    /// of another one.
    pub longest_turn_us: Option<u64>,
    /// Path of the kernel's block device, if there is one.
    pub block_device: Option<String>,
    /// Link to the block device by the name of the array.
    pub link: Option<String>,
    /// Address or socket for NBD clients, if the array is served to them.
    pub nbd: Option<String>,
    /// Volume on the array, as reported by the daemon.
    pub volume: Option<VolumeReport>,
    /// The volumes of a pool, if the array carries one, as reported by the daemon; `volume` is the pool then.
    #[serde(default)]
    pub volumes: Option<Vec<PoolVolumeReport>>,
    /// Division into namespaces, as reported by the daemon.
    pub namespaces: Option<Division>,
    /// Progress of the running rebuild or replacement.
    pub rebuild: Option<Rebuild>,
    /// The present scrub, or else the last one, as reported by the daemon.
    #[serde(default)]
    pub scrub: Option<scrub::ScrubReport>,
    /// Processes that use the drives and have no control socket; a daemon that answers is `pid`.
    pub used_by: Vec<User>,
    /// Whether these processes keep changing the array, so that the parts of this status are of different moments.
    pub changing: bool,
    /// A daemon was killed: requests to its block device, or of its NBD clients, wait for the next daemon.
    pub waits_for_daemon: bool,
    /// Zones of which no tail can be proven. All other zones work.
    pub offline_zones: Vec<OfflineZone>,
    /// Zones that lack more parts than there are parities: they cannot be written.
    pub failed_zones: Vec<u32>,
    /// Members are missing, and nothing has been written without them (deferred-write mode).
    pub provisional: bool,
    pub read_only: bool,
    /// Ranges of members that cannot be read and have not been repaired.
    #[serde(default)]
    pub unreadable: Vec<UnreadableReport>,
    /// Data of the array that is lost with these ranges.
    #[serde(default)]
    pub lost: Vec<LostRange>,
    /// Data that rebuilds could not recover.
    pub lost_bytes: u64,
    /// Whether the array belongs to this host, and the id of its host; `None` if it belongs to no host.
    pub host: Owner,
    pub host_id: Option<String>,
    /// Whether it starts automatically on its host.
    pub autostart: bool,
    pub stage: Life,
    /// Latest events, as reported by the daemon.
    pub events: Vec<EventReport>,
    pub members: Vec<StatusMember>,
}

/// A range of a member's part of a zone that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableReport {
    pub role: u32,
    pub zone: u32,
    /// Offset in the member's part of the zone.
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// Whether it cannot be decoded from the other members either.
    pub lost: bool,
}

impl UnreadableReport {
    fn of(range: &UnreadableRange) -> UnreadableReport {
        UnreadableReport {
            role: range.member as u32,
            zone: range.zone,
            offset_bytes: bytes(range.from),
            length_bytes: bytes(range.to - range.from),
            lost: range.is_lost,
        }
    }
}

/// Stage in the life of an array.
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

    /// Condition of an incomplete array and the action against it; `None` for a complete one.
    pub fn trouble(self) -> Option<(&'static str, &'static str)> {
        match self {
            Life::Unfinished => Some(("its creation was interrupted", "create it again")),
            Life::Whole => None,
            Life::HalfDestroyed => Some(("its destruction was interrupted", "destroy it again")),
        }
    }

    /// The stage, coloured for terminals; `None` for a complete array.
    pub fn shaded(self) -> Option<String> {
        match self {
            Life::Unfinished => Some(shaded("creation interrupted", Shade::Bad)),
            Life::Whole => None,
            Life::HalfDestroyed => Some(shaded("destruction interrupted", Shade::Bad)),
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct OfflineZone {
    pub zone: u32,
    pub reason: String,
    /// Roles of missing members that may prove the tail.
    pub waits_for: Vec<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct StatusMember {
    pub role: u32,
    /// Path; empty if there is no drive.
    pub drive: String,
    /// Of the present drive, or else of the last known one; `None` if the drive reports none.
    pub model: Option<String>,
    pub serial: Option<String>,
    pub size_bytes: Option<u64>,
    pub state: String,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Blocks of the member that its drive could not read and that have not been read, rewritten by a rebuild or reset
    /// since.
    pub unreadable_bytes: u64,
    /// Blocks of its drive that were repaired.
    #[serde(default)]
    pub repaired_bytes: u64,
    /// Those of them that it had returned wrong, without an error.
    #[serde(default)]
    pub wrong_bytes: u64,
    pub zones_to_rebuild: u32,
    /// Worn zones that have been replaced by spare zones.
    pub moved_zones: u32,
    /// Free spare zones.
    pub spare_zones: u32,
    pub note: String,
}

/// A working member that is being replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    pub role: u32,
    /// Drive that the member is copied to.
    pub drive: String,
}

/// Progress of a rebuild or a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    /// The member that is copied; `None` for a rebuild from the other members.
    pub copied: Option<CopyReport>,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_second: u64,
    /// `None` until something has been rebuilt.
    pub seconds_left: Option<u64>,
    /// Whether a process may be working on it; `false` if it is interrupted.
    pub running: bool,
}

impl Rebuild {
    /// The word for it: rebuild or copy.
    pub fn kind(&self) -> &'static str {
        if self.copied.is_some() { "copy" } else { "rebuild" }
    }

    /// The rebuild or copy that a start of a stopped array would continue.
    pub fn unfinished(array: &ArrayInspection) -> Option<Rebuild> {
        let copy = array.copies.first();
        let Progress { done_bytes, total_bytes, .. } = array.rebuild.or(copy.map(|copy| copy.progress))?;
        let copy = copy.filter(|_| array.rebuild.is_none());
        let copied = copy.map(|copy| CopyReport { role: copy.member as u32, drive: copy.drive.clone() });
        let (bytes_per_second, seconds_left, running) = (0, None, false);
        Some(Rebuild { copied, done_bytes, total_bytes, bytes_per_second, seconds_left, running })
    }

    /// Progress in percent, with the remaining time if it is known.
    pub fn percent(&self) -> String {
        let done = self.done_bytes.saturating_mul(100) / self.total_bytes.max(1);
        let left = self.seconds_left.map(|s| format!(", {} left", HumanDuration(Duration::from_secs(s))));
        let interrupted = if self.running { "" } else { ", interrupted" };
        format!("{done} %{}{interrupted}", left.unwrap_or_default())
    }
}

/// State of a member in one word.
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
    /// Status of an array that can be assembled; `called` is the name that the user typed.
    pub fn of(called: &str, array: &ArrayStatus, geometry: &Geometry) -> Status {
        let health = Health::of(array);
        let action = health.remedy.as_ref().map(|remedy| health::advice(called, array, &health, remedy));
        let (state, status) = (State::of(health.condition), health::sentence(array, &health));
        let members = array.members.iter().enumerate().map(|(role, member)| StatusMember {
            role: role as u32,
            drive: member.drive.clone(),
            model: ModelAndSerial::kept(&member.drive_id).model,
            serial: ModelAndSerial::kept(&member.drive_id).serial,
            size_bytes: Some(member.drive_id.size_bytes),
            state: member_state(member).into(),
            read_errors: member.errors.reads.into(),
            write_errors: member.errors.writes.into(),
            unreadable_bytes: bytes(member.unreadable_blocks),
            repaired_bytes: bytes(member.errors.repaired.into()),
            wrong_bytes: bytes(member.errors.wrong.into()),
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
            checksums: array.checksums,
            aggregate: array.aggregate,
            zones: Some(geometry.zones),
            zone_capacity_bytes: Some(bytes(geometry.zone_capacity_blocks)),
            pid: None,
            block_device: None,
            link: None,
            nbd: None,
            longest_turn_us: None,
            volume: None,
            volumes: None,
            namespaces: None,
            rebuild: None,
            scrub: None,
            used_by: Vec::new(),
            changing: false,
            waits_for_daemon: false,
            offline_zones: array.offline.iter().map(offline_zone).collect(),
            failed_zones: array.failed_zones.iter().map(|zone| zone.0).collect(),
            provisional: array.provisional,
            read_only: array.read_only,
            unreadable: array.unreadable.iter().map(UnreadableReport::of).collect(),
            lost: array.lost.iter().map(LostRange::of).collect(),
            lost_bytes: bytes(array.lost_blocks),
            host: Owner::of(&array.host),
            host_id: host_id(&array.host),
            autostart: array.autostart,
            stage: Life::Whole,
            events: Vec::new(),
            members: members.collect(),
        }
    }

    /// Adds shortages of space in its volume, or in those on its namespaces, to state, status and action.
    pub fn add_shortages(&mut self) {
        let own = self.volume.iter().map(|volume| (String::new(), volume));
        let namespaces = self.namespaces.iter().flat_map(|division| &division.list);
        let called = |namespace: &NamespaceReport| format!("{}/{}: ", self.name, namespace.name);
        let on_namespaces = namespaces.filter_map(|n| Some((called(n), n.volume.as_ref()?)));
        let short = own.chain(on_namespaces).filter_map(|(called, volume)| {
            let (what, action) = volume.shortage()?;
            Some((format!("; {called}{what}"), action, volume.space.is_alarming()))
        });
        for (what, action, is_alarming) in short.collect::<Vec<_>>() {
            if is_alarming {
                self.state = self.state.max(State::Degraded);
            }
            self.status += &what;
            self.action.get_or_insert(action);
        }
    }

    /// Replaces the advice to reset zones of the array, which is refused if they belong to a volume or to namespaces.
    pub fn respect(&mut self, carried: ZoneContents) {
        let Some(action) = &mut self.action else { return };
        if let Some(at) = action.find(health::GIVE_UP_ZONE) {
            action.truncate(at);
            *action += match carried {
                ZoneContents::Volume => {
                    "give up the lost data of the volume: start or serve the array with --give-up"
                }
                ZoneContents::Namespaces => {
                    "give up its data: zoneraid zone reset ARRAY/NAME ZONE, or, if the namespace carries a \
                     volume, start the array with --give-up"
                }
                ZoneContents::Unknown => {
                    "connect the drives that hold these zones again: without them it is unknown whether the \
                     zones belong to a volume or to namespaces, and they must not be reset"
                }
            };
        }
        if action.starts_with(health::RESET_FAILED) {
            *action = match carried {
                ZoneContents::Volume | ZoneContents::Unknown => {
                    "start or serve the array: a volume then moves its data to other zones".into()
                }
                ZoneContents::Namespaces => {
                    "copy what can be read there, then reset zones of the namespaces: zoneraid zone reset \
                     ARRAY/NAME ZONE"
                        .into()
                }
            };
        }
        if action == health::RESTORE {
            *action = match carried {
                ZoneContents::Volume | ZoneContents::Unknown => {
                    "restore the lost data from a backup: rewritten blocks can be read again".into()
                }
                ZoneContents::Namespaces => {
                    "restore the lost data from a backup, or reset zones of the namespaces: zoneraid zone \
                     reset ARRAY/NAME ZONE"
                        .into()
                }
            };
        }
    }

    /// Capacity of the array; `None` while it is unusable.
    pub fn size_bytes(&self) -> Option<u64> {
        self.zone_capacity_bytes?.checked_mul(self.zones?.into())
    }

    /// Number of active members.
    pub fn active(&self) -> usize {
        self.members.iter().filter(|member| member.state == "active").count()
    }
}

/// Identity and settings of an array, without its data.
#[derive(Clone, Serialize, Deserialize)]
pub struct OwnerReport {
    pub array: String,
    pub uuid: String,
    pub host: Owner,
    pub host_id: Option<String>,
    pub autostart: bool,
    /// Repaired blocks of a drive from which on it is to be replaced; 0 for no limit.
    #[serde(default)]
    pub error_limit: u32,
}

impl OwnerReport {
    pub fn of(array: &ArrayStatus) -> OwnerReport {
        OwnerReport {
            array: array.name.clone(),
            uuid: uuid(&array.uuid),
            host: Owner::of(&array.host),
            host_id: host_id(&array.host),
            autostart: array.autostart,
            error_limit: array.error_limit,
        }
    }
}

/// Id of the host that an array belongs to; `None` if it belongs to no host.
pub fn host_id(host: &[u8; 16]) -> Option<String> {
    (*host != machine::NO_HOST).then(|| uuid(host))
}

fn offline_zone(zone: &array::OfflineZone) -> OfflineZone {
    OfflineZone {
        zone: zone.zone.0,
        reason: zone.refusal.to_string(),
        waits_for: zone.waits_for.iter().map(|role| *role as u32).collect(),
    }
}

/// Result of a rebuild or a replacement.
#[derive(Clone, Serialize, Deserialize)]
pub struct RebuildReport {
    pub array: String,
    pub role: Option<u32>,
    pub drive: Option<String>,
    /// Roles of members that are still out.
    pub still_out: Vec<u32>,
    /// Copied from the replaced drive.
    pub copied_bytes: u64,
    /// Decoded from the other members.
    pub rebuilt_bytes: u64,
    /// Zones that could not be rebuilt.
    pub left_out: Vec<SkippedPart>,
    /// Roles of members that still have zones to be rebuilt.
    pub still_lacking: Vec<u32>,
    /// Data that is lost for good.
    pub lost: Vec<LostRange>,
}

/// A member's part of a zone that could not be rebuilt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SkippedPart {
    pub zone: u32,
    pub role: u32,
    pub reason: String,
}

/// A range of a zone that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostRange {
    pub zone: u32,
    /// Offset in the zone.
    pub start_bytes: u64,
    pub bytes: u64,
}

impl LostRange {
    pub fn of(lost: &LostBlocks) -> LostRange {
        LostRange { zone: lost.zone, start_bytes: bytes(lost.from), bytes: bytes(lost.blocks) }
    }
}

impl RebuildReport {
    /// The result `done`, with the current state of `array`.
    pub fn of(
        array: &ArrayStatus,
        role: Option<u32>,
        drive: Option<String>,
        done: &array::RebuildOutcome,
    ) -> RebuildReport {
        let still_out = Health::of(array).out.into_iter().map(|role| role as u32).collect();
        let left_out = done.left_out.iter().map(|out| SkippedPart {
            zone: out.zone,
            role: out.member as u32,
            reason: out.reason.to_string(),
        });
        let lost = done.lost.iter().map(LostRange::of);
        let (left_out, lost) = (left_out.collect(), lost.collect());
        let still_lacking = Health::of(array).lacking.into_iter().map(|role| role as u32).collect();
        let (array, rebuilt_bytes) = (array.name.clone(), done.bytes);
        RebuildReport {
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

    /// Whether everything that was lacking has been rebuilt.
    pub fn is_whole(&self) -> bool {
        self.left_out.is_empty() && self.lost.is_empty() && self.still_lacking.is_empty()
    }

    /// Whether all members are complete.
    pub fn is_in_sync(&self) -> bool {
        self.left_out.is_empty() && self.still_out.is_empty() && self.still_lacking.is_empty()
    }

    /// Sentences about members that are still out or incomplete, zones left out and lost data, a line each; empty if
    /// there are none.
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
        for SkippedPart { zone, role, reason } in &self.left_out {
            text += &format!("zone {zone} of member {role} was left out: {reason}\n");
        }
        if !self.lost.is_empty() {
            let total = total(self.lost.iter().map(|lost| lost.bytes));
            let zones: BTreeSet<u32> = self.lost.iter().map(|lost| lost.zone).collect();
            let zones: Vec<String> = zones.iter().map(u32::to_string).collect();
            text += &format!("{} are lost (zones: {}); --json lists them\n", show(total), zones.join(", "));
        }
        text
    }
}

/// Result of `fail`: the member is out, or its replacement has been cancelled.
#[derive(Clone, Serialize, Deserialize)]
pub struct FailReport {
    pub array: String,
    pub role: u32,
    pub drive: String,
    /// The drive was the target of a replacement, which was cancelled; the member stays.
    pub called_off: bool,
    /// Roles of other members that went out as well, since they were missing in deferred-write mode.
    pub also_out: Vec<u32>,
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
    /// Offset of the write pointer in the zone; `None` if the condition leaves it undefined.
    pub wp_bytes: Option<u64>,
    pub capacity_bytes: u64,
}

impl Zones {
    /// All of `zones`, or only number `only`.
    ///
    /// # Errors
    /// There is no zone `only`.
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

/// Name of a zone's condition, as blkzone has it.
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

/// Whether the write pointer of a zone in this state is defined.
pub fn has_wp(state: ZoneState) -> bool {
    !matches!(state, ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline)
}

/// Number of zones that are not empty.
pub fn used_zones(zones: &[ZoneInfo]) -> u32 {
    zones.iter().filter(|zone| zone.state != ZoneState::Empty).count() as u32
}

/// Checks that a zone exists.
///
/// # Errors
/// It does not.
pub fn check_zone(zone: u32, zones: u32) -> Result<()> {
    ensure!(
        zone < zones,
        "there is no zone {zone}: the array has {zones} zones, from 0 to {}",
        zones.max(1) - 1
    );
    Ok(())
}

/// Result of `examine`: a drive and its superblock.
#[derive(Clone, Serialize, Deserialize)]
pub struct ExamineReport {
    pub drive: String,
    /// `None` if the drive reports none.
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
    /// Why a drive that is not blank has no usable superblock.
    pub superblock_error: Option<String>,
    /// Process that has locked the drive.
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
    /// Whether the array belongs to this host, and the id of its host; `None` if it belongs to no host.
    pub host: Owner,
    pub host_id: Option<String>,
    /// Whether it starts automatically on its host.
    pub autostart: bool,
    pub stage: Life,
    /// All members by role, as recorded on this drive.
    pub drives: Vec<KnownDrive>,
}

/// A member as recorded in a superblock.
#[derive(Clone, Serialize, Deserialize)]
pub struct KnownDrive {
    pub role: u32,
    /// Whether the member is active, and not out or missing.
    pub active: bool,
    /// `None` if the drive reported none.
    pub model: Option<String>,
    pub serial: Option<String>,
    pub size_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Reactor;
    use emu::ssd::{EmulatedDrive, Model};
    use engine::{
        array::{Array, CreateOptions, Drive},
        device::ZonedDevice,
        qos::Qos,
        volume::{Volume, VolumeCreateOptions, VolumeOptions},
        vzone::{NamespaceStatus, Spec},
    };
    use std::rc::Rc;

    #[test]
    fn full_volume_on_namespace_degrades_array_status() {
        let (reactor, geometry) = (Reactor::default(), Model::zn540().scaled(32, 1024).geometry);
        let runtime = reactor.runtime();
        let device = || Rc::new(EmulatedDrive::in_memory(&geometry));
        let drives = ["a", "b", "c"].map(|name| Drive { name: name.into(), device: device() }).into();
        let options = CreateOptions::new("tank", [1; 16]);
        let (array, device) = (Array::create(runtime, options, drives), device());
        let array = reactor.wait(array).unwrap().unwrap();
        let created = Volume::create(runtime, device.clone(), VolumeCreateOptions::default());
        reactor.wait(created).unwrap().unwrap();
        let volume = Volume::open(runtime, device, VolumeOptions::default());
        let volume = VolumeReport::of(&reactor.wait(volume).unwrap().unwrap().status(), 0, 0);
        let (name, qos) = ("mail".into(), Qos::default());
        let spec = Spec { name, zones: 1, max_active: 1, max_open: 1, essential: 1, weight: 1, qos };
        let namespace = NamespaceStatus {
            spec,
            active: 0,
            own_spares: 0,
            spares: 0,
            widths: Vec::new(),
            written_blocks: 0,
            read_blocks: 0,
            read_window_blocks: None,
            tokens: 0,
            held_to: None,
            out_of_reach: [false; 2],
        };
        let mut status = Status::of("tank", &array.status(), array.geometry());
        let mut with_space = |space| {
            let volume = Some(VolumeReport { space, ..volume.clone() });
            let report = NamespaceReport { volume, ..NamespaceReport::of(&namespace, 1) };
            status.namespaces = Some(Division::of(1, 1, vec![report]));
            status.add_shortages();
            (status.state, status.status.clone())
        };
        assert_eq!(with_space(Space::Enough).0, State::Healthy);
        let (state, said) = with_space(Space::Full);
        assert!(state == State::Degraded && said.contains("; tank/mail: the volume is full"), "{said}");
    }
}
