//! `create`, `status`, `replace`, `rebuild` and `fail`.

use super::{
    args::{Create, Policy, Switch},
    daemon::ask,
    interrupt, overview,
};
use crate::{
    control::{
        name::{ArrayName, MemberName, real_path},
        protocol::Request,
    },
    drive::{self, ModelAndSerial, same_file},
    members::{
        self, EraseBar, FoundArray, OpenDrive, Session, directory_of, explain, find_running, listed, places,
        refuse_scattered,
        repair::{self, Members},
    },
    process::{
        machine::{self, Owner},
        output::{self, DEGRADED, HEALTHY, Output, quoted, shaded_state, table},
        size::{bytes, show},
    },
    reactor::Reactor,
    report::{
        self, Compression, Division, FailReport, Rebuild, RebuildReport, Status, VolumeReport, WrittenBytes,
        is_or_are, latency_words, level, members_named, so_many_zones,
    },
    serve::ublk,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use emu::ssd::cause;
use engine::{
    array::{Array, CreateOptions, Design, Drive, MemberState, Progress},
    volume::{NoVolume, Plan},
    zone::MOST_BLOCKS,
};
use indicatif::{HumanDuration, ProgressBar};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

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
    if options.checksums == Switch::On
        && let Some(real) = options.drives.iter().find(|path| !path.is_file())
    {
        // A known defect, see docs/OPERATING.md.
        bail!(
            "{} is not an emulated drive, and only arrays of emulated drives can have checksums yet: create the array \
             without --checksums",
            real.display()
        );
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
    let create = reactor.wait(Array::spares_for(reactor.runtime(), &create, &members))??;
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
    let created = ArrayCreateOutput::new(&options, &design, &drives, created_from, &uuid);
    if created.lost_to_rounding_bytes + created.lost_to_shapes_bytes > created.capacity_bytes {
        output.note(
            "more space of the drives stays unused than the array holds: choose another --zone-size, or drives \
             of one geometry",
        );
    }
    if let Err(NoVolume::FewActive { active, least }) = Plan::of(&design.geometry, None) {
        output.note(&format!(
            "the array can have {active} active zones, and a volume needs {least}; {}",
            report::MORE_ACTIVE
        ));
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
        checksums: options.checksums == Switch::On,
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
        design: &Design,
        drives: &[OpenDrive],
        from: Vec<CreatedFrom>,
        uuid: &[u8; 16],
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
            uuid: (!options.dry_run).then(|| output::uuid(uuid)),
            level: level(options.level.parities()),
            chunk_bytes: bytes(options.chunk),
            dry_run: options.dry_run,
            policy: design.policy.name_with(design.group_blocks),
            checksums: options.checksums == Switch::On,
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

fn with_checksums(checksums: bool) -> &'static str {
    if checksums { ", with checksums" } else { "" }
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

/// Number of zones of a drive that are used as one, if more than one.
pub fn as_one(aggregate: u32) -> String {
    if aggregate > 1 { format!(", {aggregate} zones of a drive as one") } else { String::new() }
}

pub fn status(output: Output, names: &[ArrayName]) -> Result<u8> {
    let [name] = names else { return overview::status(output, names) };
    let status = status_of(output, name)?;
    output.print(&status, status_text)?;
    Ok(status.state.code())
}

/// Status of an array, from its daemon, or else from the drives.
pub fn status_of(output: Output, name: &ArrayName) -> Result<Status> {
    if let Some(mut client) = find_running(name)? {
        return ask(output, &mut client, &Request::Status);
    }
    let found = FoundArray::to_look(name)?;
    for (path, error) in &found.damaged {
        output.note(&format!("{}: {error}; continuing without it", path.display()));
    }
    Ok(Status::looked(&found, found.glance(PATIENCE_TO_INSPECT)?))
}

/// Time limit for the inspection of the drives.
pub const PATIENCE_TO_INSPECT: Duration = Duration::from_secs(60);

/// Most offline zones named on the terminal.
const MOST_OFFLINE: usize = 10;

fn status_text(status: &Status) -> String {
    let mut text = format!("  array: {}\n", status.name);
    text += &format!("   uuid: {}\n  state: {}\n", status.uuid, status.state.shaded());
    text += &format!(" status: {}\n", output::in_one_line(&status.status));
    if let Some(action) = &status.action {
        text += &format!(" action: {}\n", output::in_one_line(action));
    }
    let mut size = format!("{}, chunks of {}", status.level, show(status.chunk_bytes));
    if let (Some(zones), Some(capacity)) = (status.zones, status.zone_capacity_bytes) {
        size += &format!(", {zones} zones of {}", show(capacity));
    }
    if let Some(all) = status.size_bytes() {
        size += &format!(", {} altogether", show(all));
    }
    let (together, checksums) = (as_one(status.aggregate), with_checksums(status.checksums));
    text += &format!("   size: {size}\n policy: {}{together}{checksums}\n", status.policy);
    let id = status.host_id.as_ref().filter(|_| status.host == Owner::Other);
    let id = id.map(|id| format!(" ({id})")).unwrap_or_default();
    text += &format!("   host: {}{id}\n", status.host.words(status.autostart));
    if let Some(rebuild) = &status.rebuild {
        text += &format!("{:>7}: {}\n", rebuild.kind(), rebuild_text(rebuild));
    }
    if !status.used_by.is_empty() {
        let how = if status.changing { ", and keeps changing" } else { "" };
        text += &format!(" in use: by {}{how}\n", output::in_one_line(&listed(&status.used_by)));
    }
    if let Some(pid) = status.pid {
        let device = match (&status.block_device, &status.link) {
            (Some(device), Some(link)) => format!("{device} ({link})"),
            (Some(device), None) => device.clone(),
            (None, _) if status.namespaces.is_some() => "one for each namespace".to_string(),
            (None, _) => "none".to_string(),
        };
        text += &format!(" device: {device}, by process {pid}\n");
    }
    if let Some(place) = &status.nbd {
        text += &format!("    nbd: {place}\n");
    }
    if let Some(volume) = &status.volume {
        text += &volume_text(volume);
    }
    if let Some(division) = &status.namespaces {
        text += &division_text(division);
    }
    if !status.offline_zones.is_empty() {
        text += "offline:\n";
        let mut rows = vec![["ZONE", "WAITS FOR", "REASON"].map(String::from).to_vec()];
        rows.extend(status.offline_zones.iter().take(MOST_OFFLINE).map(|zone| {
            let roles: Vec<String> = zone.waits_for.iter().map(|role| format!("member {role}")).collect();
            let roles = if roles.is_empty() { "-".to_string() } else { roles.join(", ") };
            vec![zone.zone.to_string(), roles, zone.reason.clone()]
        }));
        text += &table(&rows);
        if status.offline_zones.len() > MOST_OFFLINE {
            text +=
                &format!("and {} more (--json names them all)\n", status.offline_zones.len() - MOST_OFFLINE);
        }
    }
    text += "members:\n";
    let heads = ["ROLE", "DRIVE", "STATE", "SIZE", "MODEL", "SERIAL", "READ", "WRITE", "NOTE"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(status.members.iter().map(|member| {
        let drive = if member.drive.is_empty() { "-".to_string() } else { member.drive.clone() };
        let note = if member.state == "rebuilding" && member.note.is_empty() {
            format!("{} to rebuild", so_many_zones(member.zones_to_rebuild as usize))
        } else if member.note.is_empty() && member.moved_zones > 0 {
            let moved = so_many_zones(member.moved_zones as usize);
            format!("{moved} worn, in spare ones; {} left", member.spare_zones)
        } else {
            member.note.clone()
        };
        let or_dash = |text: Option<String>| text.unwrap_or("-".into());
        vec![
            member.role.to_string(),
            drive,
            shaded_state(&member.state),
            or_dash(member.size_bytes.map(show)),
            or_dash(member.model.clone()),
            or_dash(member.serial.clone()),
            member.read_errors.to_string(),
            member.write_errors.to_string(),
            note,
        ]
    }));
    text + &table(&rows)
}

fn division_text(division: &Division) -> String {
    let heads = [
        "NAME",
        "DEVICE",
        "SIZE",
        "USED",
        "ACTIVE",
        "WIDTHS",
        "ESSENTIAL",
        "OWN",
        "HELD",
        "BORROWED",
        "WEIGHT",
        "LIMITS",
        "FLOORS",
        "LATENCY",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(division.list.iter().map(|namespace| {
        let (size, used) = match &namespace.volume {
            Some(volume) => (volume.size_bytes, volume.used_bytes),
            None => (namespace.capacity_bytes, namespace.written_bytes),
        };
        let widths: Vec<String> = namespace.widths.iter().map(u32::to_string).collect();
        vec![
            namespace.name.clone(),
            namespace.block_device.clone().unwrap_or("-".into()),
            show(size),
            show(used),
            format!("{} of {}", namespace.active_zones, namespace.active),
            if widths.is_empty() { "-".into() } else { widths.join(", ") },
            namespace.essential.to_string(),
            namespace.own_spares.to_string(),
            namespace.held_spares.to_string(),
            namespace.borrowed_spares.to_string(),
            namespace.weight.to_string(),
            namespace.limits.words(),
            namespace.floors.words(),
            latency_words(namespace.latency_us),
        ]
    }));
    let Division { free_zones, zone_capacity_bytes, .. } = division;
    let room = format!("namespaces: room for {free_zones} more zones of {}\n", show(*zone_capacity_bytes));
    room + &table(&rows)
}

fn volume_text(volume: &VolumeReport) -> String {
    let VolumeReport { size_bytes, used_bytes, free_bytes, collection, written, .. } = volume;
    let compresses = volume.compression != Compression(None) || volume.physical_bytes < *used_bytes;
    let sectors = match volume.sector_bytes {
        4096 => String::new(),
        bytes => format!(" in sectors of {bytes} bytes"),
    };
    let mut text = format!(
        " volume: {}{sectors}, {} used, {} free; {} of {} zones are free\n",
        show(*size_bytes),
        show(*used_bytes),
        show(*free_bytes),
        volume.free_zones,
        volume.valid_bytes.len(),
    );
    if volume.lent_bytes > 0 {
        let (lent, reserve) = (show(volume.lent_bytes), show(volume.reserve_bytes));
        text += &format!("  reserve: {lent} of {reserve} are lent to new blocks until it stops\n");
    }
    if volume.when_full.0 > 0 {
        text += &format!(
            "  when full: writes wait for up to {} seconds; {} do now\n",
            volume.when_full.0, volume.waiting_writes
        );
    }
    if compresses {
        let how = volume.compression.does(volume.unit_bytes);
        text += &format!(
            "  ratio: {:.2}: {} take {}, so there is room for {} like that; new data is written {how}\n",
            volume.compression_ratio,
            show(*used_bytes),
            show(volume.physical_bytes),
            show(volume.effective_bytes),
        );
    }
    text += &written_text(written, compresses, volume.write_amplification);
    text += &format!(
        "    map: {} % in memory, {} of {}\n",
        100 * volume.map_memory_bytes / volume.map_bytes.max(1),
        show(volume.map_memory_bytes),
        show(volume.map_bytes),
    );
    let active = if collection.active { "active" } else { "idle" };
    let unreadable = match collection.unreadable_zones {
        0 => String::new(),
        count => format!(", {} cannot be", so_many_zones(count as usize)),
    };
    text += &format!(
        "     gc: {active}; {} emptied{unreadable}\n",
        so_many_zones(collection.collected_zones as usize)
    );
    if let Some(why) = &volume.failed {
        text += &format!("         the volume refuses writes: {}\n", output::in_one_line(why));
    }
    text
}

/// Lines about the bytes written to the drives, by purpose.
fn written_text(written: &WrittenBytes, compresses: bool, amplification: f64) -> String {
    let first = match written.user_bytes {
        0 => "no user data yet".to_string(),
        bytes => {
            format!("{} for users; {amplification:.2} times as much in all, without rebuilds", show(bytes))
        }
    };
    let saved = Some((written.saved_bytes, "saved by compression")).filter(|_| compresses);
    let rebuilt = Some((written.rebuild_bytes, "rebuilt")).filter(|(bytes, _)| *bytes > 0);
    let row = |parts: &[Option<(u64, &str)>]| {
        let parts = parts.iter().flatten().map(|(bytes, what)| format!("{} {what}", show(*bytes)));
        parts.collect::<Vec<_>>().join(", ")
    };
    let volume = [Some((written.gc_bytes, "moved")), saved, Some((written.header_bytes, "of headers"))];
    let others = [
        Some((written.map_bytes, "of map")),
        Some((written.padding_bytes, "of padding")),
        Some((written.parity_bytes, "of parity")),
        rebuilt,
    ];
    format!("written: {first}\n         {},\n         {}\n", row(&volume), row(&others))
}

pub fn rebuild_text(rebuild: &Rebuild) -> String {
    let Rebuild { copied, done_bytes, total_bytes, bytes_per_second, seconds_left, running } = rebuild;
    let what = copied.as_ref().map(|copied| format!("member {} to {}, ", copied.role, copied.drive));
    if !running || rebuild.total_bytes == 0 {
        let doing = if *running { "the drive is being emptied" } else { "interrupted" };
        let what = output::in_one_line(&what.unwrap_or_default());
        return format!("{what}{} of {}, {doing}", show(*done_bytes), show(*total_bytes));
    }
    let left = match *seconds_left {
        Some(seconds) => format!("{} left", HumanDuration(Duration::from_secs(seconds))),
        None => "just begun".into(),
    };
    let what = output::in_one_line(&what.unwrap_or_default());
    format!("{what}{} of {}, {}/s, {left}", show(*done_bytes), show(*total_bytes), show(*bytes_per_second))
}

/// The members of `found`, to resolve the name of one.
fn members(found: &FoundArray) -> Members<'_> {
    let label = &found.label;
    let drives: Vec<(u32, PathBuf)> = found
        .drives
        .iter()
        .filter_map(|drive| Some((drive.label()?.role, real_path(&drive.path).ok()?)))
        .collect();
    let missing = (0..label.members).filter(|role| !drives.iter().any(|(r, _)| r == role)).collect();
    Members { array: &label.name, count: label.members, drives, missing }
}

pub fn replace(output: Output, mut args: Vec<PathBuf>, now: bool, yes: bool) -> Result<u8> {
    let (Some(new), Some(old)) = (args.pop(), args.pop()) else {
        bail!("OLD or NEW is missing: zoneraid replace [ARRAY] OLD NEW")
    };
    let two = args.is_empty();
    let name = match args.pop() {
        Some(array) => ArrayName::from(array),
        None if old.exists() => ArrayName::from(old.clone()),
        None if old.to_string_lossy().parse::<u32>().is_ok() => {
            bail!("a role needs its array: zoneraid replace ARRAY {} {}", old.display(), word(&new))
        }
        None => ArrayName::from(directory_of(&old)),
    };
    // A number in the place of NEW is a role: NEW is missing.
    let is_role = !new.exists() && new.to_string_lossy().parse::<u32>().is_ok();
    ensure!(
        two || !is_role,
        "{} is not a drive: zoneraid replace {} {} NEW, where NEW is a blank drive",
        new.display(),
        word(name.path()),
        word(&old)
    );
    if two && (is_role || is_array(&old)?) {
        bail!("NEW, a blank drive, is missing: zoneraid replace {} {} NEW", word(&old), word(&new));
    }
    let member = MemberName::new(&old)?;
    let rebuilt = match find_running(&name)? {
        Some(mut client) => {
            let drives = client.about.drives.iter().map(PathBuf::as_path);
            refuse_scattered(drives.chain([new.as_path()]))?;
            let drive = real_path(&new)?;
            // Checked here: in the daemon, this search for running daemons would query the daemon itself.
            OpenDrive::look(&Reactor::default(), &drive::resolve(&drive))?.refuse_if_waited_for()?;
            explain_daemon(&name);
            ask(output, &mut client, &Request::Replace { member: member.clone(), drive, now, yes })?
        }
        None => replace_here(output, &name, &member, &new, (now, yes))?,
    };
    output.print(&rebuilt, |rebuilt| {
        let (copied, size) = (show(rebuilt.copied_bytes), show(rebuilt.rebuilt_bytes));
        let what = match (rebuilt.copied_bytes, rebuilt.rebuilt_bytes) {
            (0, _) => format!("{size} rebuilt"),
            (_, 0) => format!("{copied} copied"),
            _ => format!("{copied} copied, {size} rebuilt"),
        };
        let role = rebuilt.role.unwrap_or_default();
        let done = format!("{} is member {role} of '{}' now; {what}\n", new.display(), rebuilt.array);
        done + &rebuilt.losses()
    })?;
    Ok(if rebuilt.is_whole() { HEALTHY } else { DEGRADED })
}

/// Whether the argument is the name of an array, and not of a drive.
fn is_array(path: &Path) -> Result<bool> {
    let name = ArrayName::from(path.to_path_buf());
    Ok(path.is_dir() || !path.exists() && find_running(&name)?.is_some())
}

/// A path, quoted as a word of a command.
fn word(path: &Path) -> String {
    output::quoted(&path.to_string_lossy())
}

/// As [`replace`], for an array that does not run.
fn replace_here(
    output: Output,
    name: &ArrayName,
    member: &MemberName,
    new: &Path,
    (now, yes): (bool, bool),
) -> Result<RebuildReport> {
    let mut found = FoundArray::by_name(name)?;
    let role = members(&found).role(member)?;
    refuse_scattered(found.drives.iter().map(|drive| drive.path.as_path()).chain([new]))?;
    let drive = take_new(&mut found, new)?;
    drive.refuse_if_waited_for()?;
    let goes_on = drive.is_filled_for(&found.label.uuid, role);
    if let Some(what) = drive.describe().filter(|_| !goes_on) {
        ensure!(yes, "{}: {what}; --yes destroys that", drive.introduce());
    }
    let session = found.assemble()?;
    let bar = output.bar("copy", 0);
    let progress = show_on(&bar);
    let note = |note: &str| bar.suspend(|| output.note(note));
    let work = repair::replace(&session.array, role, drive.drive(), now, &progress, &note);
    let (told, called) = (bar.clone(), quoted(&name.to_string()));
    interrupt::explain(move || {
        let (done, all) = (show(told.position()), show(told.length().unwrap_or_default()));
        format!(
            "{done} of {all} are copied, and the member is unchanged: the same command continues the copy (with --yes if \
             NEW was not blank, and not emptied yet), zoneraid replace --cancel {called} {role} cancels it; zoneraid \
             status {called} shows its progress"
        )
    });
    let replaced = session.wait(work);
    bar.finish_and_clear();
    let copied_bytes = repair::copied_bytes(replaced??);
    let done = run_rebuild(output, &session, name)?;
    let drive = Some(new.display().to_string());
    Ok(RebuildReport {
        copied_bytes,
        ..RebuildReport::of(&session.array.status(), Some(role as u32), drive, &done)
    })
}

/// Opens the drive at `path`. A drive of `found` is taken from there; it is refused if a member uses it.
fn take_new(found: &mut FoundArray, path: &Path) -> Result<OpenDrive> {
    let real = path.canonicalize().with_context(|| format!("{} cannot be opened", path.display()))?;
    let position = found.drives.iter().position(|d| d.path.canonicalize().is_ok_and(|p| p == real));
    let Some(position) = position else { return OpenDrive::open(&found.reactor, path) };
    let own = found.drives[position].path.display().to_string();
    let status = found.inspect()?.status;
    let in_use = status.members.iter().any(|m| m.state != MemberState::Out && m.drive == own);
    ensure!(!in_use, repair::in_use(path, &status.name));
    Ok(found.drives.swap_remove(position))
}

pub fn rebuild(output: Output, name: &ArrayName) -> Result<u8> {
    let rebuilt = match find_running(name)? {
        Some(mut client) => {
            explain_daemon(name);
            ask(output, &mut client, &Request::Rebuild)?
        }
        None => rebuild_here(output, name)?,
    };
    output.print(&rebuilt, |rebuilt| {
        let sync = if rebuilt.is_in_sync() { "; every member is in sync" } else { "" };
        let next = match rebuilt.left_out.is_empty() && rebuilt.still_lacking.is_empty() {
            true => String::new(),
            false => format!("see the recommended action with: zoneraid status {}\n", word(name.path())),
        };
        format!("{} rebuilt{sync}\n", show(rebuilt.rebuilt_bytes)) + &rebuilt.losses() + &next
    })?;
    Ok(if rebuilt.is_whole() { HEALTHY } else { DEGRADED })
}

/// As [`rebuild`], for an array that does not run.
fn rebuild_here(output: Output, name: &ArrayName) -> Result<RebuildReport> {
    let session = members::assembled(name)?;
    repair::refuse_if_only_out(&output::quoted(&name.to_string()), &session.array.status())?;
    let done = run_rebuild(output, &session, name)?;
    Ok(RebuildReport::of(&session.array.status(), None, None, &done))
}

/// Shows progress on `bar`; the rate is that of this run.
fn show_on(bar: &ProgressBar) -> impl Fn(Progress) {
    let begun = std::cell::Cell::new(false);
    move |progress| {
        bar.set_length(progress.total_bytes);
        if !begun.replace(true) {
            bar.set_position(progress.kept_bytes);
            bar.reset_eta();
        }
        bar.set_position(progress.done_bytes);
    }
}

/// Cancels the copy of a member: `args` are the array and, if one is given, the member or the new drive.
pub fn cancel_copy(output: Output, args: Vec<PathBuf>) -> Result<u8> {
    let mut args = args.into_iter();
    let name = ArrayName::from(args.next().unwrap_or_default());
    let member = args.next().map(|member| MemberName::new(&member)).transpose()?;
    ensure!(args.next().is_none(), "too many arguments: zoneraid replace --cancel ARRAY [MEMBER]");
    let called = quoted(&name.to_string());
    interrupt::explain(move || format!("check whether the copy is cancelled with: zoneraid status {called}"));
    let by_daemon: Option<FailReport> = match find_running(&name)? {
        Some(mut client) => ask(output, &mut client, &Request::CancelCopy { member: member.clone() })?,
        None => None,
    };
    let cancelled = match by_daemon {
        Some(cancelled) => cancelled,
        None => cancel_copy_here(output, &name, member.as_ref())?,
    };
    output.print(&cancelled, fail_text)?;
    Ok(HEALTHY)
}

fn fail_text(report: &FailReport) -> String {
    let FailReport { array, role, drive, called_off, also_out } = report;
    let others: Vec<usize> = also_out.iter().map(|role| *role as usize).collect();
    let (members, are) = (members_named(&others), is_or_are(others.len()));
    match called_off {
        true => format!("the copy of member {role} of '{array}' to {drive} is cancelled; {drive} is blank\n"),
        false if others.is_empty() => format!("member {role} ({drive}) is out of '{array}'\n"),
        false => format!(
            "member {role} ({drive}) is out of '{array}'; {members}, missing at the start, {are} out as well\n"
        ),
    }
}

/// As [`cancel_copy`], of a copy that no daemon works on. Only the drive that is filled is written.
fn cancel_copy_here(output: Output, name: &ArrayName, member: Option<&MemberName>) -> Result<FailReport> {
    let found = FoundArray::to_look(name)?;
    let array = &found.label.name;
    let mut filled = found.filled.clone();
    if let Some(member) = member {
        let is_filled = |path: &Path| filled.iter().any(|(_, filled)| same_file(filled, path));
        match member {
            MemberName::Path { path, .. } if is_filled(path) => {
                filled.retain(|(_, filled)| same_file(filled, path));
            }
            member => {
                // Something that is no member is not being copied either.
                let role = members(&found).role(member).ok();
                filled.retain(|(filled, _)| Some(*filled) == role);
            }
        }
    }
    let (role, path) = match &filled[..] {
        [] => bail!(
            "'{array}' has no unfinished copy of {}: nothing is cancelled",
            match member {
                Some(_) => "that member",
                None => "a member",
            }
        ),
        [copy] => copy,
        copies => {
            let named = copies.iter().map(|(role, path)| format!("member {role} to {}", path.display()));
            bail!(
                "members of '{array}' are copied to several drives ({}): name one of these drives",
                named.collect::<Vec<_>>().join(", ")
            )
        }
    };
    if let Some(user) = drive::user(path) {
        bail!("{} is in use by {user}: interrupt that first, which ends the copy", path.display());
    }
    let drive = OpenDrive::open(&found.reactor, path)?;
    let erasing = EraseBar::new(output, std::slice::from_ref(&drive));
    let was_filled = drive.is_filled_for(&found.label.uuid, *role)
        && found
            .reactor
            .wait(engine::owner::cancel_copy(found.reactor.runtime(), &erasing.drive(&drive)))??;
    ensure!(was_filled, "{} changed while it was looked at; try again", path.display());
    let (array, role, drive) = (array.clone(), *role as u32, path.display().to_string());
    Ok(FailReport { array, role, drive, called_off: true, also_out: Vec::new() })
}

fn run_rebuild(output: Output, session: &Session, name: &ArrayName) -> Result<engine::array::RebuildOutcome> {
    let bar = output.bar("rebuild", 0);
    let (told, called) = (bar.clone(), quoted(&name.to_string()));
    interrupt::explain(move || {
        let (done, all) = (show(told.position()), show(told.length().unwrap_or_default()));
        format!("{done} of {all} are rebuilt; rebuild the rest with: zoneraid rebuild {called}")
    });
    let rebuilt = session.wait(session.array.rebuild(&show_on(&bar)));
    interrupt::forget();
    bar.finish_and_clear();
    Ok(rebuilt??)
}

/// Sets the message for a signal: the daemon continues with the request.
fn explain_daemon(name: &ArrayName) {
    let called = quoted(&name.to_string());
    interrupt::explain(move || {
        format!("the daemon of the array continues it; progress: zoneraid status {called}")
    });
}

pub fn fail(output: Output, name: &ArrayName, member: &Path) -> Result<u8> {
    let member = MemberName::new(member)?;
    let called = quoted(&name.to_string());
    interrupt::explain(move || format!("check the state of the member with: zoneraid status {called}"));
    let failed: FailReport = match find_running(name)? {
        Some(mut client) => ask(output, &mut client, &Request::Fail { member })?,
        None => {
            let found = FoundArray::by_name(name)?;
            let role = members(&found).role(&member)?;
            let session = found.assemble()?;
            session.wait(repair::fail(&session.array, role))??
        }
    };
    output.print(&failed, fail_text)?;
    Ok(HEALTHY)
}
