//! Reports on arrays and drives that were found.

use super::{
    discover::{FoundArray, LookResult, listed},
    open::OpenDrive,
};
use crate::{
    drive::{
        ModelAndSerial, drive_id,
        label::{Content, Label},
        same_file, user,
    },
    process::{
        machine::Owner,
        output::{quoted, uuid},
        size::bytes,
    },
    report::{
        ExamineReport, KnownDrive, Life, Rebuild, State, Status, StatusMember, Superblock, ZrwaSizes,
        host_id, level, members_named, number,
    },
};
use anyhow::{Context, Result};
use engine::{
    device::{self, Command},
    format::superblock::Stage,
    zone::{ZoneIndex, ZoneState, is_worn},
};
use std::path::Path;

impl Status {
    /// The state of an array that was only inspected, and may be changing.
    pub fn looked(found: &FoundArray, looked: LookResult) -> Status {
        let LookResult { inspected, users, changing } = looked;
        let mut status = match inspected {
            Ok(mut array) => {
                if changing {
                    // A zone that is being written may look undecidable, since its drives are read at different
                    // moments.
                    array.status.offline.clear();
                }
                let mut status = Status::of(&found.called, &array.status, &array.geometry);
                status.rebuild = Rebuild::unfinished(&array);
                status
            }
            Err(why) => Status::unusable(found, why),
        };
        // The contents matter for this advice only: determining them takes an assembly.
        if !changing
            && (!status.offline_zones.is_empty() || status.lost_bytes > 0)
            && let Some(carried) = found.carries()
        {
            status.respect(carried);
        }
        if changing && status.state != State::Healthy && !found.is_short() {
            // The drives were read at different moments, so that their states may contradict each other.
            status.state = State::Changing;
            let who = listed(&users);
            status.status = format!(
                "it is being changed by {who}, so that this status may be inconsistent: {}",
                status.status
            );
        }
        if found.is_waited_for().unwrap_or(false) {
            status.waits_for_daemon = true;
            let called = quoted(&found.called);
            let (waits, action) = match found.served_at() {
                Some(place) => (
                    "its NBD server was killed, and its clients wait for the next one",
                    format!("zoneraid serve {called} --nbd {}", quoted(&place)),
                ),
                None => (
                    "its daemon has ended, and requests to its block device wait for the next one",
                    format!("zoneraid start {called}"),
                ),
            };
            status.status += &format!("; {waits}");
            status.action = Some(action);
        }
        if let Some((rebuild, copied)) =
            status.rebuild.as_mut().and_then(|rebuild| rebuild.copied.clone().map(|copied| (rebuild, copied)))
        {
            rebuild.running = !users.is_empty();
            let (called, role, drive) = (quoted(&found.called), copied.role, quoted(&copied.drive));
            status.action.get_or_insert(format!(
                "start the array, or zoneraid replace {called} {role} {drive}, and the copy of member {role} continues; \
                 or cancel it: zoneraid replace --cancel {called} {role}"
            ));
        }
        if !users.is_empty() {
            // The process that uses the drives may be carrying out the recommended action.
            status.action = None;
        }
        (status.used_by, status.changing) = (users, changing);
        status.identify(&found.drives)
    }

    /// Adds size, model and serial number of the members' drives; `drives` are those that are open.
    pub fn identify(mut self, drives: &[OpenDrive]) -> Status {
        for member in self.members.iter_mut().filter(|member| !member.drive.is_empty()) {
            let drive = drives.iter().find(|drive| same_file(&drive.path, Path::new(&member.drive)));
            // A drive that was removed while in use does not report them any more.
            member.size_bytes = drive.map(OpenDrive::size_bytes).or(member.size_bytes);
            let ModelAndSerial { model, serial } = drive_id(Path::new(&member.drive));
            (member.model, member.serial) = (model.or(member.model.take()), serial.or(member.serial.take()));
        }
        self
    }

    /// The state of an array that cannot be assembled, from its superblocks.
    pub fn unusable(found: &FoundArray, why: String) -> Status {
        let label = &found.label;
        let members = (0..label.members).map(|role| {
            let of_role = found.drives.iter().filter(|drive| drive.label().is_some_and(|l| l.role == role));
            let drive = of_role.max_by_key(|drive| drive.label().map(|label| label.event));
            let (state, note) = match drive {
                _ if label.active & (1 << role) == 0 => ("out", "was out already"),
                None => ("missing", "no drive found"),
                Some(_) => ("active", ""),
            };
            StatusMember {
                role,
                drive: drive.map(|drive| drive.path.display().to_string()).unwrap_or_default(),
                model: ModelAndSerial::kept(&label.drive_ids[role as usize]).model,
                serial: ModelAndSerial::kept(&label.drive_ids[role as usize]).serial,
                size_bytes: Some(label.drive_ids[role as usize].size_bytes),
                state: state.into(),
                read_errors: 0,
                write_errors: 0,
                unreadable_bytes: 0,
                repaired_bytes: 0,
                wrong_bytes: 0,
                zones_to_rebuild: 0,
                moved_zones: 0,
                spare_zones: 0,
                note: note.into(),
            }
        });
        let members: Vec<StatusMember> = members.collect();
        let gone = members.iter().filter(|member| member.drive.is_empty());
        let missing: Vec<usize> = gone.map(|member| member.role as usize).collect();
        let called = quoted(&found.called);
        let action = match missing.len() {
            _ if label.stage == Stage::Making => {
                Some(format!("create it again, or: zoneraid destroy {called}"))
            }
            _ if label.stage == Stage::Ending => Some(format!("zoneraid destroy {called}")),
            0 => None,
            count if count <= label.parities as usize => {
                Some(format!("connect {} again", members_named(&missing)))
            }
            _ => Some(format!(
                "connect all but {} of the {}; or, if the array has been destroyed, wipe these drives: \
                 zoneraid wipe DRIVE",
                number(label.parities as usize),
                members_named(&missing)
            )),
        };
        Status {
            name: label.name.clone(),
            uuid: uuid(&label.uuid),
            level: level(label.parities as usize),
            state: State::Unusable,
            status: why,
            action,
            may_be_lost: 0,
            event: label.event,
            chunk_bytes: bytes(label.chunk_blocks),
            policy: label.policy.into(),
            checksums: label.checksums,
            aggregate: label.aggregate,
            zones: None,
            zone_capacity_bytes: None,
            pid: None,
            longest_turn_us: None,
            block_device: None,
            link: None,
            nbd: None,
            volume: None,
            volumes: None,
            namespaces: None,
            rebuild: None,
            scrub: None,
            used_by: Vec::new(),
            changing: false,
            waits_for_daemon: false,
            offline_zones: Vec::new(),
            failed_zones: Vec::new(),
            provisional: false,
            read_only: false,
            unreadable: Vec::new(),
            lost: Vec::new(),
            lost_bytes: 0,
            host: Owner::of(&label.host),
            host_id: host_id(&label.host),
            autostart: label.autostart,
            stage: Life::of(label.stage),
            events: Vec::new(),
            members,
        }
    }
}

impl KnownDrive {
    fn all(label: &Label) -> Vec<KnownDrive> {
        let known = |(role, drive_id): (u32, &device::DriveId)| {
            let (ModelAndSerial { model, serial }, active) =
                (ModelAndSerial::kept(drive_id), label.active & (1 << role) != 0);
            KnownDrive { role, active, model, serial, size_bytes: drive_id.size_bytes }
        };
        (0..).zip(&label.drive_ids).map(known).collect()
    }
}

impl ExamineReport {
    pub async fn of(drive: &OpenDrive) -> Result<ExamineReport> {
        let geometry = drive.device.geometry();
        let report = Command::Report { first: ZoneIndex(0), count: geometry.zones };
        let done = drive.device.submit(report).await;
        done.result.with_context(|| format!("{} gives no zone report", drive.path.display()))?;
        let count = |state| done.zones.iter().filter(|zone| zone.state == state).count() as u32;
        let active = [ZoneState::ImplicitlyOpen, ZoneState::ExplicitlyOpen, ZoneState::Closed];
        let ModelAndSerial { model, serial } = drive_id(&drive.path);
        Ok(ExamineReport {
            drive: drive.path.display().to_string(),
            model,
            serial,
            blank: drive.content == Content::Blank,
            zones: geometry.zones,
            zone_size_bytes: bytes(geometry.zone_size_blocks),
            zone_capacity_bytes: bytes(geometry.zone_capacity_blocks),
            max_open_zones: geometry.max_open,
            max_active_zones: geometry.max_active,
            zrwa: geometry.zrwa.map(|zrwa| ZrwaSizes {
                size_bytes: bytes(zrwa.size_blocks),
                granularity_bytes: bytes(zrwa.granularity_blocks),
                max_zones: zrwa.max_zones,
            }),
            oob_bytes_per_block: geometry.oob_bytes,
            volatile_cache: geometry.volatile_cache,
            active_zones: active.map(count).iter().sum(),
            full_zones: count(ZoneState::Full),
            empty_zones: count(ZoneState::Empty),
            worn_zones: done
                .zones
                .iter()
                .filter(|zone| is_worn(zone.state))
                .map(|zone| zone.zone.0)
                .collect(),
            superblock: drive.label().map(|label| Superblock {
                array: label.name.clone(),
                uuid: uuid(&label.uuid),
                level: level(label.parities as usize),
                role: label.role,
                members: label.members,
                chunk_bytes: bytes(label.chunk_blocks),
                policy: label.policy.into(),
                aggregate: label.aggregate,
                event: label.event,
                host: Owner::of(&label.host),
                host_id: host_id(&label.host),
                autostart: label.autostart,
                stage: Life::of(label.stage),
                drives: KnownDrive::all(label),
            }),
            superblock_error: match &drive.content {
                Content::Filled(filled) => Some(filled.sentence.clone()),
                Content::Other(what) => Some(what.clone()),
                _ => None,
            },
            used_by: user(&drive.path),
            copy: None,
        })
    }
}
