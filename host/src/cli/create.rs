//! `create`.

use super::{
    args::{Create, Policy, Switch},
    interrupt,
    repair::word,
    status::{as_one, with_checksums},
};
use crate::{
    drive::{self, ModelAndSerial, same_file},
    members::{EraseBar, OpenDrive, directory_of, explain, places, refuse_scattered},
    process::{
        machine,
        output::{self, HEALTHY, Output, quoted},
        size::{bytes, show},
    },
    reactor::Reactor,
    report::{self, level},
    serve::ublk,
};
use anyhow::{Result, anyhow, ensure};
use emu::ssd::cause;
use engine::{
    array::{Array, CHECKSUM_GROUP_BLOCKS, CreateOptions, Design, Drive},
    volume::{NoVolume, VolumePlan},
    zone::MOST_BLOCKS,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct ArrayCreateOutput {
    name: String,
    /// `None` in a dry run.
    uuid: Option<String>,
    level: String,
    chunk_bytes: u64,
    dry_run: bool,
    policy: &'static str,
    checksums: bool,
    aggregate: u32,
    zones: u32,
    zone_size_bytes: u64,
    zone_capacity_bytes: u64,
    /// 0 if there is no limit.
    max_active_zones: u32,
    /// Capacity with all zones full.
    capacity_bytes: u64,
    parity_bytes: u64,
    metadata_bytes: u64,
    /// Kept for worn zones.
    spare_bytes: u64,
    /// Unused because zones of the array are rounded down.
    lost_to_rounding_bytes: u64,
    /// Unused because other drives of the array have smaller or fewer zones.
    lost_to_shapes_bytes: u64,
    drives: Vec<CreatedFrom>,
    /// Name or directory by which a command here finds the array.
    #[serde(skip)]
    called: String,
    /// Whether its drives are image files.
    #[serde(skip)]
    emulated: bool,
}

#[derive(Serialize)]
struct CreatedFrom {
    drive: String,
    size_bytes: u64,
    /// `None` if the drive reports none.
    model: Option<String>,
    serial: Option<String>,
    /// Contents that creating the array destroys; `None` if the drive is blank.
    destroys: Option<String>,
}

pub fn create(output: Output, options: Create) -> Result<u8> {
    ensure!(
        !drive::is_drive(Path::new(&options.name)).unwrap_or(false),
        "{} is a drive, and the name of the array is missing: zoneraid create NAME {0} ...",
        word(Path::new(&options.name))
    );
    refuse_twice(&options.drives)?;
    refuse_scattered(options.drives.iter().map(PathBuf::as_path))?;
    let reactor = Reactor::default();
    let open = if options.dry_run { OpenDrive::try_out } else { OpenDrive::open };
    let drives: Vec<OpenDrive> =
        options.drives.iter().map(|path| open(&reactor, path)).collect::<Result<_>>()?;
    let mut used = Vec::new();
    let mut created_from = Vec::new();
    for drive in &drives {
        drive.refuse_if_waited_for()?;
        let destroys = drive.describe();
        if let Some(what) = destroys.as_ref().filter(|_| !drive.holds_nothing()) {
            used.push(format!("{}: {what}", drive.introduce()));
        }
        let ModelAndSerial { model, serial } = drive::drive_id(&drive.path);
        let (drive, size_bytes) = (drive.path.display().to_string(), drive.size_bytes());
        created_from.push(CreatedFrom { drive, size_bytes, model, serial, destroys });
    }
    let uuid = output::new_uuid()?;
    let create = create_options(&options, uuid);
    let erasing = EraseBar::new(output, &drives);
    let members: Vec<Drive> = drives.iter().map(|drive| erasing.drive(drive)).collect();
    let zones = drives.iter().map(|drive| drive.device.geometry().zones).min().unwrap_or(1);
    let most = MOST_BLOCKS / u64::from(zones.max(1));
    ensure!(
        options.zone_size.is_none_or(|size| size <= most),
        "--zone-size is too large for this number of zones: {} at most",
        show(bytes(most))
    );
    ensure!(
        options.zone_size.is_none_or(ublk::takes_zone_size),
        "--zone-size must be a power of two below 2 TiB: block devices support no other zone size"
    );
    // All checks come before anything is destroyed, and in a dry run, too.
    let mut create = reactor.wait(Array::spares_for(reactor.runtime(), &create, &members))??;
    if options.checksums.is_none() {
        match create.may_have_checksums(reactor.runtime(), &members)? {
            Ok(()) => create.checksums = true,
            Err(reason) => output.note(&format!(
                "the array will have no checksums, and will not notice data that a drive returns wrong without an error: \
                 {reason}"
            )),
        }
    }
    for member in &members {
        let worn = reactor.wait(Array::worn_zones(member))?;
        if !worn.is_empty() {
            output.note(&worn_note(&member.name, &worn));
        }
    }
    let design = Array::design(reactor.runtime(), &create, &members)?;
    ensure!(
        options.yes || used.is_empty(),
        "the drives are not blank ({}); --yes destroys their data",
        used.join(", ")
    );
    let created = ArrayCreateOutput::new(&options, &create, &design, &drives, created_from);
    if created.lost_to_rounding_bytes + created.lost_to_shapes_bytes > created.capacity_bytes {
        output.note(
            "more space of the drives stays unused than the array holds: choose another --zone-size, or drives \
             of one geometry",
        );
    }
    if let Err(NoVolume::FewActive { active, least }) = VolumePlan::of(&design.geometry, None, None) {
        output.note(&format!(
            "the array can have {active} active zones, and a volume needs {least}; {}",
            report::MORE_ACTIVE
        ));
    }
    if create.parities == 0 {
        output.note("there is no parity: if the drive is lost, all data is lost");
    }
    if 2 * create.parities >= drives.len() {
        output.note(TWO_HALVES);
    }
    if create.autostart && create.host == machine::NO_HOST {
        output.note(&format!(
            "{}; the array belongs to no host, and is not started automatically",
            machine::NO_IDENTITY
        ));
    }
    if !options.dry_run {
        interrupt::explain(|| {
            "the array exists only after all members have been written: run the same command again; zoneraid \
             list shows drives that are not blank"
                .into()
        });
        let made = reactor.wait(Array::create(reactor.runtime(), create, members))?;
        made.map_err(|error| explain(error.into(), drives.iter().map(|drive| drive.path.clone())))?;
    }
    drop(erasing);
    output.print(&created, created_text)?;
    Ok(HEALTHY)
}

/// Note about a drive with worn zones.
fn worn_note(drive: &str, worn: &[u32]) -> String {
    const MOST: usize = 10;
    let named: Vec<String> = worn.iter().take(MOST).map(u32::to_string).collect();
    let more = if worn.len() > MOST { ", ..." } else { "" };
    format!(
        "{drive}: {} read-only or offline ({}{more}): spare zones are used in their place",
        if worn.len() == 1 { "1 zone is".to_string() } else { format!("{} zones are", worn.len()) },
        named.join(", ")
    )
}

/// Blocks of a group with policy `append`. Larger groups are not faster, and need a larger table.
const GROUP_BLOCKS: u32 = 256;

/// Warning about split brain: each half of the array can be started.
const TWO_HALVES: &str = "any two of these four members can be started alone: if both pairs are written \
        separately they diverge (split brain), and only the newer pair is used when they are united; with \
        five members this cannot happen";

fn create_options(options: &Create, uuid: [u8; 16]) -> CreateOptions {
    CreateOptions {
        group_blocks: if options.policy == Some(Policy::Append) { GROUP_BLOCKS } else { 0 },
        spare_zones: options.spare_zones,
        checksums: options.checksums == Some(Switch::On),
        checksum_group_blocks: CHECKSUM_GROUP_BLOCKS,
        name: options.name.clone(),
        uuid,
        chunk_blocks: options.chunk,
        zone_size_blocks: options.zone_size,
        parities: options.level.parities(),
        policy: options.policy.map(|policy| match policy {
            Policy::Log | Policy::Append => engine::raid::policy::Policy::Log,
            Policy::Zrwa => engine::raid::policy::Policy::Zrwa,
            Policy::Inplace => engine::raid::policy::Policy::InPlace,
        }),
        host: machine::id().unwrap_or(machine::NO_HOST),
        autostart: !options.no_autostart,
    }
}

impl ArrayCreateOutput {
    fn new(
        options: &Create,
        create: &CreateOptions,
        design: &Design,
        drives: &[OpenDrive],
        from: Vec<CreatedFrom>,
    ) -> ArrayCreateOutput {
        let geometry = &design.geometry;
        let shapes = || drives.iter().map(|drive| drive.device.geometry());
        let zones = shapes().map(|shape| u64::from(shape.zones)).min().unwrap_or(0);
        let capacity = shapes().map(|shape| shape.zone_capacity_blocks).min().unwrap_or(0);
        let common = bytes(zones * capacity * drives.len() as u64);
        let all = drives.iter().map(OpenDrive::size_bytes).sum::<u64>();
        let capacity_bytes = bytes(u64::from(geometry.zones) * geometry.zone_capacity_blocks);
        let (parity_bytes, metadata_bytes) = (bytes(design.parity_blocks), bytes(design.metadata_blocks));
        let metadata_bytes = metadata_bytes.min(common.saturating_sub(capacity_bytes + parity_bytes));
        let used_bytes = capacity_bytes + parity_bytes + metadata_bytes;
        let spare_bytes = bytes(design.spare_blocks).min(common.saturating_sub(used_bytes));
        ArrayCreateOutput {
            name: options.name.clone(),
            uuid: (!options.dry_run).then(|| output::uuid(&create.uuid)),
            level: level(options.level.parities()),
            chunk_bytes: bytes(options.chunk),
            dry_run: options.dry_run,
            policy: design.policy.name_with(design.group_blocks),
            checksums: create.checksums,
            aggregate: design.aggregate,
            zones: geometry.zones,
            zone_size_bytes: bytes(geometry.zone_size_blocks),
            zone_capacity_bytes: bytes(geometry.zone_capacity_blocks),
            max_active_zones: geometry.max_active,
            capacity_bytes,
            parity_bytes,
            metadata_bytes,
            spare_bytes,
            lost_to_rounding_bytes: common.saturating_sub(used_bytes + spare_bytes),
            lost_to_shapes_bytes: all - common,
            drives: from,
            called: called_from_here(&options.name, &options.drives),
            emulated: options.drives.iter().any(|path| path.is_file()),
        }
    }
}

/// Argument that finds an array on these drives from the current directory: its name, or else the directory.
fn called_from_here(name: &str, drives: &[PathBuf]) -> String {
    let place = drives.first().map(|path| directory_of(path)).unwrap_or_default();
    match places().iter().any(|other| same_file(other, &place)) {
        true => name.to_string(),
        false => place.display().to_string(),
    }
}

/// Refuses a drive that is given twice: otherwise the second open would fail with the misleading error that the drive
/// is in use.
pub fn refuse_twice(paths: &[PathBuf]) -> Result<()> {
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for path in paths {
        let used = drive::resolve(path);
        let identity = drive::identity(&used);
        let identity = identity.map_err(|e| anyhow!("{} cannot be opened: {}", path.display(), cause(&e)))?;
        ensure!(!seen.contains(&identity), "{} is named twice", path.display());
        seen.push(identity);
    }
    Ok(())
}

fn created_text(created: &ArrayCreateOutput) -> String {
    let mut text = String::new();
    let verb = if created.dry_run { "would destroy" } else { "destroyed" };
    for drive in &created.drives {
        let what = drive.destroys.as_ref().map_or("blank".to_string(), |what| format!("{verb}: {what}"));
        let drive_id: Vec<&str> =
            [&drive.model, &drive.serial].into_iter().flatten().map(String::as_str).collect();
        let drive_id = drive_id.iter().map(|word| format!(", {word}")).collect::<String>();
        let name = output::in_one_line(&drive.drive);
        text += &format!("{name} ({}{drive_id}): {what}\n", show(drive.size_bytes));
    }
    let verb = if created.dry_run { "would have" } else { "has" };
    text += &format!(
        "array '{}' {verb} {} zones of {}, {} apart, {} altogether; {}, policy {}{}{}\n",
        created.name,
        created.zones,
        show(created.zone_capacity_bytes),
        show(created.zone_size_bytes),
        show(created.capacity_bytes),
        created.level,
        created.policy,
        as_one(created.aggregate),
        with_checksums(created.checksums)
    );
    text += &format!("parity {}, metadata {}", show(created.parity_bytes), show(created.metadata_bytes));
    if created.spare_bytes > 0 {
        text += &format!(", spare zones {}", show(created.spare_bytes));
    }
    let losses = [
        (created.lost_to_rounding_bytes, "because zones of the array end before those of the drives"),
        (created.lost_to_shapes_bytes, "because the drives are not alike"),
    ];
    for (lost, why) in losses.iter().filter(|(lost, _)| *lost > 0) {
        text += &format!("; {} unused {why}", show(*lost));
    }
    if created.max_active_zones > 0 {
        text += &format!("; {} zones can be active at once", created.max_active_zones);
    }
    text += "\n";
    match created.dry_run {
        true => text + "nothing was written (dry run)\n",
        false => text + &how_to_run(&quoted(&created.called), created.emulated),
    }
}

/// Advice about the next commands. Users of image files mostly try zoneraid out without root.
fn how_to_run(called: &str, emulated: bool) -> String {
    let nbd = format!("zoneraid volume create {called}, and then zoneraid serve {called} --nbd SOCKET");
    match emulated {
        true => format!(
            "use it without root, by NBD: {nbd}\nor as a block device, by root and the kernel module ublk_drv: zoneraid \
             start {called}\n"
        ),
        false => format!("run it with: zoneraid start {called}\n"),
    }
}
