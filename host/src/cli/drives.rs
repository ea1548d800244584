//! `emulate create` and `examine`: single drives.

use super::{
    args::Model,
    daemon::ask,
    status::{PATIENCE_TO_INSPECT, as_one, rebuild_text},
};
use crate::{
    control::{client, name::real_path, protocol::Request},
    drive::{
        self, ModelAndSerial,
        label::{Content, Label},
        same_file,
    },
    members::{FoundArray, OpenDrive, PATIENCE_TO_LOOK, Scan, directory_of},
    process::{
        machine::Owner,
        output::{self, HEALTHY, Output},
        size::{bytes, show, show_blocks},
    },
    reactor::Reactor,
    report::{ExamineReport, Rebuild, Status, in_a_row},
};
use anyhow::{Context, Result, ensure};
use emu::ssd::EmulatedDrive;
use engine::{format::superblock::Stage, raid::geometry::META_ZONES};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Most time for a drive to report all of its zones.
const PATIENCE_TO_EXAMINE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct EmulateOutput {
    drives: Vec<String>,
    zones: u32,
    zone_size_bytes: u64,
    zone_capacity_bytes: u64,
}

pub fn emulate(
    output: Output,
    dir: &Path,
    count: u32,
    model: Model,
    zones: Option<u32>,
    zone_capacity: Option<u64>,
) -> Result<u8> {
    ensure!((1..=32).contains(&count), "--count has to lie between 1 and 32");
    let model = match model {
        Model::Zn540 => emu::ssd::Model::zn540(),
        Model::Pm1731a => emu::ssd::Model::pm1731a(),
        Model::PlainZns => emu::ssd::Model::plain_zns(),
        Model::Smr => emu::ssd::Model::smr(),
    };
    let zones = zones.unwrap_or(model.geometry.zones);
    let capacity = zone_capacity.unwrap_or(model.geometry.zone_capacity_blocks);
    ensure!(
        zones <= model.geometry.zones,
        "the model has {} zones, which is less than --zones {zones}",
        model.geometry.zones
    );
    ensure!(zones > 0, "--zones cannot be 0");
    ensure!(
        capacity <= model.geometry.zone_capacity_blocks,
        "zones of the model hold {}, which is less than --zone-capacity {}",
        show_blocks(model.geometry.zone_capacity_blocks),
        show_blocks(capacity)
    );
    let model = model.scaled(zones, capacity);
    let paths: Vec<PathBuf> = (0..count).map(|n| dir.join(format!("drive{n}.img"))).collect();
    if let Some(taken) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        anyhow::bail!("{} exists already; remove it or choose another directory", taken.display());
    }
    std::fs::create_dir_all(dir).with_context(|| format!("{} cannot be created", dir.display()))?;
    for (made, path) in paths.iter().enumerate() {
        if let Err(error) = EmulatedDrive::create_image(path, &model, output::new_uuid()?) {
            // Half of the images would block the next attempt.
            for path in &paths[..made] {
                let _ = std::fs::remove_file(path);
            }
            return Err(error.into());
        }
    }
    let geometry = &model.geometry;
    let emulated = EmulateOutput {
        drives: paths.iter().map(|path| path.display().to_string()).collect(),
        zones: geometry.zones,
        zone_size_bytes: bytes(geometry.zone_size_blocks),
        zone_capacity_bytes: bytes(geometry.zone_capacity_blocks),
    };
    output.print(&emulated, |e| {
        let each = format!("{} zones of {}", e.zones, show(e.zone_capacity_bytes));
        e.drives.iter().map(|drive| format!("{drive}: {each}\n")).collect()
    })?;
    Ok(HEALTHY)
}

pub fn examine(output: Output, path: &Path) -> Result<u8> {
    let real = real_path(path)?;
    let holds = |client: &client::Client| client.about.drives.iter().any(|drive| same_file(drive, &real));
    let mut examined: ExamineReport = match client::running()?.into_iter().find(holds) {
        Some(mut client) => ask(output, &mut client, &Request::Examine { drive: real })?,
        None => {
            let reactor = Reactor::default();
            let drive = OpenDrive::look(&reactor, &drive::resolve(path))?;
            let examined = reactor.wait_for(PATIENCE_TO_EXAMINE, ExamineReport::of(&drive))?;
            examined.with_context(|| format!("{} does not answer", path.display()))??
        }
    };
    // A drive that is no member of an array is not part of a copy.
    examined.copy = if examined.blank { None } else { copy_of(output, path, &examined) };
    output.print(&examined, examined_text)?;
    Ok(HEALTHY)
}

/// The copy that the drive at `path` is part of, by the status of its array; `None` if there is none or no status.
fn copy_of(output: Output, path: &Path, examined: &ExamineReport) -> Option<Rebuild> {
    let path = drive::resolve(path);
    let array = match &examined.superblock {
        Some(superblock) => superblock.uuid.clone(),
        None => match OpenDrive::look(&Reactor::default(), &path).ok()?.content {
            Content::Filled(filled) => output::uuid(&filled.array),
            _ => return None,
        },
    };
    let running = client::running().ok()?.into_iter().find(|client| client.about.uuid == array);
    let status: Status = match running {
        Some(mut client) => ask(output, &mut client, &Request::Status).ok()?,
        None => {
            let reactor = Reactor::default();
            let scan = Scan::of(&reactor, &directory_of(&path), PATIENCE_TO_LOOK).ok()?;
            let label = scan.arrays().into_iter().find(|label| output::uuid(&label.uuid) == array)?.clone();
            let found = FoundArray::among(&reactor, &scan, &label);
            // Without a drive that is being filled there is nothing to look for.
            found.filled.first()?;
            Status::looked(&found, found.glance(PATIENCE_TO_INSPECT).ok()?)
        }
    };
    let is_member = |role: u32| {
        let of_role = status.members.iter().find(|member| member.role == role);
        of_role.is_some_and(|member| same_file(Path::new(&member.drive), &path))
    };
    status.rebuild.filter(|rebuild| {
        let copied = rebuild.copied.as_ref();
        copied.is_some_and(|copied| is_member(copied.role) || same_file(Path::new(&copied.drive), &path))
    })
}

/// Variables for udev about a drive or block device; empty for devices that are not zoneraid's.
#[derive(Default, Serialize)]
struct UdevOutput {
    /// The array of the drive, if it is started automatically on this host.
    uuid: Option<String>,
    /// The name below /dev of the block device of a running array.
    link: Option<String>,
}

/// Prints variables for udev about the drive or block device at `path`.
pub fn export(output: Output, path: &Path) -> Result<u8> {
    let exported = UdevOutput::of(path)?;
    output.print(&exported, |exported| {
        let uuid = exported.uuid.as_ref().map(|uuid| format!("ZONERAID_UUID={uuid}\n"));
        let link = exported.link.as_ref().map(|link| format!("ZONERAID_LINK={link}\n"));
        uuid.or(link).unwrap_or_default()
    })?;
    Ok(HEALTHY)
}

impl UdevOutput {
    fn of(path: &Path) -> Result<UdevOutput> {
        let running = client::running()?;
        // The link of a partition is that of its device with `-part` and its number, as in /dev/disk.
        let (whole, part) = match drive::whole_of(path) {
            Some((whole, number)) => (whole, format!("-part{number}")),
            None => (path.to_path_buf(), String::new()),
        };
        if let Some((_, link)) = running.iter().find_map(|client| client.about.device(&whole)) {
            let link =
                link.and_then(|link| Some(link.strip_prefix("/dev").ok()?.to_str()?.to_string() + &part));
            // udev splits names at other characters; then the only link is that of the daemon.
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            let link = link.filter(|link| link.chars().all(plain));
            return Ok(UdevOutput { link, uuid: None });
        }
        // udev runs this for every disk, also while it is mounted: devices without zones are not opened, and nothing
        // is claimed.
        if !drive::is_drive(path).unwrap_or(false) {
            return Ok(UdevOutput::default());
        }
        let drive = OpenDrive::look(&Reactor::default(), path).ok();
        // Only arrays that are started automatically on this host count.
        let starts = |label: &&Label| {
            label.autostart && label.stage == Stage::Whole && Owner::of(&label.host) == Owner::This
        };
        let label = drive.as_ref().and_then(OpenDrive::label).filter(starts);
        let uuid = label.map(|label| output::uuid(&label.uuid));
        Ok(UdevOutput { uuid, link: None })
    }
}

/// The worn zones of a drive, and which of them are metadata zones.
fn worn_text(e: &ExamineReport) -> String {
    let metadata = META_ZONES * e.superblock.as_ref().map_or(1, |superblock| superblock.aggregate);
    let named: Vec<String> = e
        .worn_zones
        .iter()
        .map(|zone| format!("{zone}{}", if *zone < metadata { " (for metadata)" } else { "" }))
        .collect();
    format!("    worn: {} cannot be written any more\n", in_a_row(&named))
}

fn examined_text(e: &ExamineReport) -> String {
    let drive_id = [("model", &e.model), ("serial", &e.serial)];
    let drive_id =
        drive_id.map(|(what, value)| value.as_ref().map(|v| format!(", {what} {v}")).unwrap_or_default());
    let mut text = format!(
        "   drive: {}{}\n   zones: {} of {}, {} apart; {} empty, {} open or closed, {} full\n",
        output::in_one_line(&e.drive),
        drive_id.concat(),
        e.zones,
        show(e.zone_capacity_bytes),
        show(e.zone_size_bytes),
        e.empty_zones,
        e.active_zones,
        e.full_zones
    );
    if !e.worn_zones.is_empty() {
        text += &worn_text(e);
    }
    text += &format!("  limits: {} zones open, {} active\n", e.max_open_zones, e.max_active_zones);
    if let Some(zrwa) = &e.zrwa {
        let (size, granularity) = (show(zrwa.size_bytes), show(zrwa.granularity_bytes));
        text += &format!(
            "    zrwa: {size}, flush granularity {granularity}, in {} zones at once\n",
            zrwa.max_zones
        );
    }
    let array = match (&e.superblock, &e.superblock_error) {
        (Some(s), _) => format!(
            "'{}', role {} of {}, {}, chunks of {}, policy {}{}, event {}\n    uuid: {}",
            s.array,
            s.role,
            s.members,
            s.level,
            show(s.chunk_bytes),
            s.policy,
            as_one(s.aggregate),
            s.event,
            s.uuid
        ),
        (None, Some(error)) => error.clone(),
        (None, None) => "none; the drive is blank".to_string(),
    };
    text += &format!("   array: {array}\n");
    if let Some(s) = &e.superblock {
        text += &format!("    host: {}\n", s.host.words(s.autostart));
        if let Some((what, action)) = s.stage.trouble() {
            text += &format!("  status: {what}: {action}, or wipe this drive\n");
        }
        for drive in s.drives.iter().filter(|drive| drive.model.is_some() || drive.serial.is_some()) {
            let drive_id = ModelAndSerial { model: drive.model.clone(), serial: drive.serial.clone() };
            let out = if drive.active { "" } else { "; the member is out" };
            let size = show(drive.size_bytes);
            text += &format!("member {}: {size}{}{out}\n", drive.role, drive_id.words());
        }
    }
    if let Some(copy) = &e.copy {
        text += &format!("    copy: {}\n", rebuild_text(copy));
    }
    let user =
        e.used_by.as_ref().map(|user| format!("  in use: by {}\n", output::in_one_line(&user.to_string())));
    text + &user.unwrap_or_default()
}
