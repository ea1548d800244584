//! `emulate create`, `examine` and `list`: drives by themselves.

use super::{
    Model,
    array::as_one,
    daemon::ask,
    output::{self, HEALTHY, Output, table},
};
use crate::{
    daemon::{self, About, Request},
    drive,
    label::Content,
    members::{MACHINE, OpenDrive, Scan},
    reactor::Reactor,
    repair::{real_path, same_file},
    report::{Examined, bytes},
    size::{show, show_blocks},
};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sim::ssd::EmulatedDrive;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Emulated {
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
        Model::Zn540 => sim::ssd::Model::zn540(),
        Model::Pm1731a => sim::ssd::Model::pm1731a(),
        Model::PlainZns => sim::ssd::Model::plain_zns(),
        Model::Smr => sim::ssd::Model::smr(),
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
    for path in &paths {
        EmulatedDrive::create_image(path, &model, output::new_uuid()?)?;
    }
    let geometry = &model.geometry;
    let emulated = Emulated {
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
    let holds = |client: &daemon::Client| client.about.drives.iter().any(|drive| same_file(drive, &real));
    let examined = match daemon::running()?.into_iter().find(holds) {
        Some(mut client) => ask(output, &mut client, &Request::Examine { drive: real })?,
        None => {
            let reactor = Reactor::default();
            let drive = OpenDrive::open(&reactor, path)?;
            reactor.wait(Examined::of(&drive))??
        }
    };
    output.print(&examined, examined_text)?;
    Ok(HEALTHY)
}

/// Prints variables for udev about the drive or block device at `path`.
pub fn export(output: Output, path: &Path) -> Result<u8> {
    let running = daemon::running()?;
    let shows = |client: &&daemon::Client| {
        client.about.block_device.as_ref().is_some_and(|device| same_file(device, path))
    };
    if let Some(client) = running.iter().find(shows) {
        let link = client.about.link.as_ref().and_then(|link| link.strip_prefix("/dev").ok()?.to_str());
        // Other names would be several to udev; the daemon has made the link itself.
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if let Some(link) = link.filter(|link| link.chars().all(plain)) {
            output.line(&format!("ZONERAID_LINK={link}"))?;
        }
        return Ok(HEALTHY);
    }
    // udev asks about every disk, also while it is mounted: nothing is opened that has no zones, and
    // nothing claimed.
    if drive::is_drive(path)
        && let Ok(drive) = OpenDrive::peek(&Reactor::default(), path)
        && let Some(label) = drive.label()
    {
        output.line(&format!("ZONERAID_UUID={}", output::uuid(&label.uuid)))?;
    }
    Ok(HEALTHY)
}

fn examined_text(e: &Examined) -> String {
    let mut text = format!(
        "   drive: {}\n   zones: {} of {}, {} apart; {} empty, {} open or closed, {} full\n",
        e.drive,
        e.zones,
        show(e.zone_capacity_bytes),
        show(e.zone_size_bytes),
        e.empty_zones,
        e.active_zones,
        e.full_zones
    );
    text += &format!("  limits: {} zones open, {} active\n", e.max_open_zones, e.max_active_zones);
    if let Some(zrwa) = &e.zrwa {
        let (size, granularity) = (show(zrwa.size_bytes), show(zrwa.granularity_bytes));
        text += &format!("    zrwa: {size}, flushed by {granularity}, in {} zones\n", zrwa.max_zones);
    }
    let array = match (&e.superblock, &e.superblock_error) {
        (Some(s), _) => format!(
            "'{}', role {} of {}, chunks of {}, policy {}{}, event {}\n    uuid: {}",
            s.array,
            s.role,
            s.members,
            show(s.chunk_bytes),
            s.policy,
            as_one(s.aggregate),
            s.event,
            s.uuid
        ),
        (None, Some(error)) => error.clone(),
        (None, None) => "none; the drive is blank".to_string(),
    };
    text + &format!("   array: {array}\n")
}

#[derive(Serialize)]
struct Listed {
    arrays: Vec<ListedArray>,
    blank: Vec<String>,
    locked: Vec<String>,
    unreadable: Vec<Unreadable>,
}

#[derive(Serialize)]
struct ListedArray {
    name: String,
    uuid: String,
    members: u32,
    members_found: u32,
    policy: String,
    /// Zones of a drive that are used as one.
    aggregate: u32,
    /// What the array runs as, if it does.
    block_device: Option<String>,
    drives: Vec<String>,
}

#[derive(Serialize)]
struct Unreadable {
    drive: String,
    error: String,
}

pub fn list(output: Output, dir: Option<&Path>) -> Result<u8> {
    let reactor = Reactor::default();
    let mut scan = Scan::default();
    match dir {
        Some(dir) => scan.add(&reactor, dir)?,
        None => {
            scan.add(&reactor, Path::new("."))?;
            scan.add(&reactor, Path::new(MACHINE))?;
        }
    }
    let name = |path: &PathBuf| path.display().to_string();
    let arrays = scan.arrays().into_iter().map(|label| {
        let drives: Vec<String> = scan
            .drives
            .iter()
            .filter(|drive| drive.label().is_some_and(|l| l.uuid == label.uuid))
            .map(|drive| name(&drive.path))
            .collect();
        ListedArray {
            name: label.name.clone(),
            uuid: output::uuid(&label.uuid),
            members: label.members,
            members_found: drives.len() as u32,
            policy: label.policy.name().into(),
            aggregate: label.aggregate,
            block_device: None,
            drives,
        }
    });
    let mut listed = Listed {
        arrays: arrays.collect(),
        blank: Vec::new(),
        locked: scan.locked.iter().map(name).collect(),
        unreadable: scan
            .damaged
            .iter()
            .map(|(p, e)| Unreadable { drive: name(p), error: e.clone() })
            .collect(),
    };
    for drive in &scan.drives {
        match &drive.content {
            Content::Blank => listed.blank.push(name(&drive.path)),
            Content::Other(what) => {
                listed.unreadable.push(Unreadable { drive: name(&drive.path), error: what.clone() });
            }
            Content::Member(_) => {}
        }
    }
    for client in daemon::running()? {
        listed.add_running(&client.about);
    }
    output.print(&listed, listed_text)?;
    Ok(HEALTHY)
}

impl Listed {
    /// Counts the drives that the daemon of an array holds as what they are.
    fn add_running(&mut self, about: &About) {
        let holds =
            |drive: &mut String| about.drives.iter().any(|held| same_file(held, Path::new(drive.as_str())));
        let held: Vec<String> = self.locked.extract_if(.., holds).collect();
        let device = about.block_device.as_ref().map(|device| device.display().to_string());
        if let Some(array) = self.arrays.iter_mut().find(|array| array.uuid == about.uuid) {
            // Drives that the array does without are in nobody's hands.
            array.members_found = held.len() as u32;
            array.block_device = device;
            array.drives.extend(held);
        } else if !held.is_empty() {
            self.arrays.push(ListedArray {
                name: about.name.clone(),
                uuid: about.uuid.clone(),
                members: about.members,
                members_found: held.len() as u32,
                policy: about.policy.clone(),
                aggregate: about.aggregate,
                block_device: device,
                drives: held,
            });
        }
    }
}

fn listed_text(listed: &Listed) -> String {
    let mut rows = vec![["DRIVE", "ARRAY", "UUID", "MEMBERS", "POLICY", "DEVICE"].map(String::from).to_vec()];
    for array in &listed.arrays {
        let found = format!("{} of {}", array.members_found, array.members);
        for drive in &array.drives {
            let device = array.block_device.clone().unwrap_or_default();
            let (name, uuid, policy) = (array.name.clone(), array.uuid.clone(), array.policy.clone());
            rows.push(vec![drive.clone(), name, uuid, found.clone(), policy, device]);
        }
    }
    let mut add = |drives: &[String], what: &str| {
        rows.extend(drives.iter().map(|drive| vec![drive.clone(), what.to_string()]));
    };
    add(&listed.blank, "(blank)");
    add(&listed.locked, "(in use by another process)");
    for drive in &listed.unreadable {
        rows.push(vec![drive.drive.clone(), format!("({})", drive.error)]);
    }
    if rows.len() == 1 { "no drives here\n".to_string() } else { table(&rows) }
}
