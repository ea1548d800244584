//! `create`, `status`, `replace`, `rebuild` and `fail`: the life of an array.

use super::{
    Create, Level, Policy,
    daemon::ask,
    output::{self, DEGRADED, HEALTHY, Output, UNUSABLE, table},
};
use crate::{
    daemon::{self, Request},
    drive,
    members::{ArrayName, Found, OpenDrive, Session, directory_of},
    reactor::Reactor,
    repair::{self, MemberName, Members, real_path},
    report::{Failed, Rebuild, Rebuilt, State, Status, bytes, so_many_zones},
    size::show,
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::{Array, CreateOptions, MemberState},
    device::ZonedDevice,
};
use indicatif::HumanDuration;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Serialize)]
struct Created {
    name: String,
    /// Nothing in a dry run.
    uuid: Option<String>,
    level: &'static str,
    chunk_bytes: u64,
    dry_run: bool,
    /// Known once the array is made.
    policy: Option<&'static str>,
    aggregate: Option<u32>,
    zones: Option<u32>,
    zone_size_bytes: Option<u64>,
    zone_capacity_bytes: Option<u64>,
    drives: Vec<CreatedFrom>,
}

#[derive(Serialize)]
struct CreatedFrom {
    drive: String,
    size_bytes: u64,
    /// Nothing for an image.
    model: Option<String>,
    /// What creating the array destroys; nothing if the drive is blank.
    destroys: Option<String>,
}

pub fn create(output: Output, options: Create) -> Result<u8> {
    let Level::Raid5 = options.level;
    ensure!(!options.name.is_empty(), "the name of an array cannot be empty");
    ensure!(
        !options.name.contains('/'),
        "the name of an array cannot contain '/', or it would look like a path"
    );
    ensure!(options.name.len() <= 64, "the name of an array can have 64 bytes at most");
    refuse_twice(&options.drives)?;
    let reactor = Reactor::default();
    let drives: Vec<OpenDrive> =
        options.drives.iter().map(|path| OpenDrive::open(&reactor, path)).collect::<Result<_>>()?;
    let mut created = Created {
        name: options.name.clone(),
        uuid: None,
        level: "raid5",
        chunk_bytes: bytes(options.chunk),
        dry_run: options.dry_run,
        policy: None,
        aggregate: None,
        zones: None,
        zone_size_bytes: None,
        zone_capacity_bytes: None,
        drives: Vec::new(),
    };
    let mut used = Vec::new();
    for drive in &drives {
        drive.refuse_if_waited_for()?;
        let destroys = drive.describe();
        if let Some(what) = &destroys {
            used.push(format!("{}: {what}", drive.introduce()));
        }
        created.drives.push(CreatedFrom {
            drive: drive.path.display().to_string(),
            size_bytes: drive.size_bytes(),
            model: drive::model(&drive.path),
            destroys,
        });
    }
    if !options.dry_run {
        ensure!(
            options.yes || used.is_empty(),
            "the drives are not blank ({}); --yes destroys what is on them",
            used.join(", ")
        );
        let uuid = output::new_uuid()?;
        let array = make(&reactor, &options, uuid, &drives)?;
        let (geometry, status) = (array.geometry(), array.status());
        created.policy = Some(status.policy.name());
        created.aggregate = Some(status.aggregate);
        created.uuid = Some(output::uuid(&uuid));
        created.zones = Some(geometry.zones);
        created.zone_size_bytes = Some(bytes(geometry.zone_size_blocks));
        created.zone_capacity_bytes = Some(bytes(geometry.zone_capacity_blocks));
    }
    output.print(&created, created_text)?;
    Ok(HEALTHY)
}

fn make(reactor: &Reactor, options: &Create, uuid: [u8; 16], drives: &[OpenDrive]) -> Result<Array> {
    let create = CreateOptions {
        name: options.name.clone(),
        uuid,
        chunk_blocks: options.chunk,
        zone_size_blocks: options.zone_size,
        policy: options.policy.map(|policy| match policy {
            Policy::Log => engine::raid::policy::Policy::Log,
            Policy::Zrwa => engine::raid::policy::Policy::Zrwa,
            Policy::Inplace => engine::raid::policy::Policy::InPlace,
        }),
    };
    let members = drives.iter().map(OpenDrive::drive).collect();
    Ok(reactor.wait(Array::create(reactor.runtime(), create, members))??)
}

/// The same drive under two names would be found locked by ourselves, which says little.
fn refuse_twice(paths: &[PathBuf]) -> Result<()> {
    let mut seen: Vec<PathBuf> = Vec::new();
    for path in paths {
        let real = path.canonicalize().with_context(|| format!("{} cannot be opened", path.display()))?;
        let real = drive::resolve(&real);
        ensure!(!seen.contains(&real), "{} is named twice", path.display());
        seen.push(real);
    }
    Ok(())
}

fn created_text(created: &Created) -> String {
    let mut text = String::new();
    let verb = if created.dry_run { "would destroy" } else { "destroyed" };
    for drive in &created.drives {
        let what = drive.destroys.as_ref().map_or("blank".to_string(), |what| format!("{verb}: {what}"));
        let model = drive.model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
        text += &format!("{} ({}{model}): {what}\n", drive.drive, show(drive.size_bytes));
    }
    match (created.zones, created.zone_capacity_bytes) {
        (Some(zones), Some(capacity)) => {
            text += &format!(
                "array '{}' has {zones} zones of {}, {} altogether; policy {}{}\n",
                created.name,
                show(capacity),
                show(zones as u64 * capacity),
                created.policy.unwrap_or_default(),
                as_one(created.aggregate.unwrap_or(1))
            );
        }
        _ => text += "nothing was written (dry run)\n",
    }
    text
}

/// How many zones of a drive are one, if it is more.
pub fn as_one(aggregate: u32) -> String {
    if aggregate > 1 { format!(", {aggregate} zones of a drive as one") } else { String::new() }
}

pub fn status(output: Output, name: &ArrayName) -> Result<u8> {
    let status = match daemon::find(name)? {
        Some(mut client) => ask(output, &mut client, &Request::Status)?,
        None => inspect(output, name)?,
    };
    output.print(&status, status_text)?;
    Ok(match status.state {
        State::Healthy => HEALTHY,
        State::Degraded => DEGRADED,
        State::Unusable => UNUSABLE,
    })
}

/// How an array is that nobody runs.
fn inspect(output: Output, name: &ArrayName) -> Result<Status> {
    let found = Found::by_name(name)?;
    for (path, error) in &found.damaged {
        output.note(&format!("{}: {error}; done without it", path.display()));
    }
    Ok(match found.inspect() {
        Ok(array) => Status::of(&name.to_string(), &array.status, &array.geometry),
        Err(error) => Status::unusable(&found, error.to_string()),
    })
}

/// Offline zones that are named on the terminal.
const MOST_OFFLINE: usize = 10;

fn status_text(status: &Status) -> String {
    let mut text = format!("  array: {}\n", status.name);
    text += &format!("   uuid: {}\n  state: {}\n status: {}\n", status.uuid, status.state, status.status);
    if let Some(action) = &status.action {
        text += &format!(" action: {action}\n");
    }
    let mut size = format!("{}, chunks of {}", status.level, show(status.chunk_bytes));
    if let (Some(zones), Some(capacity)) = (status.zones, status.zone_capacity_bytes) {
        size += &format!(", {zones} zones of {}", show(capacity));
    }
    text += &format!("   size: {size}\n policy: {}{}\n", status.policy, as_one(status.aggregate));
    if let Some(rebuild) = &status.rebuild {
        text += &format!("rebuild: {}\n", rebuild_text(rebuild));
    }
    if let Some(pid) = status.pid {
        let device = match (&status.block_device, &status.link) {
            (Some(device), Some(link)) => format!("{device} ({link})"),
            (Some(device), None) => device.clone(),
            (None, _) => "none".to_string(),
        };
        text += &format!(" device: {device}, by process {pid}\n");
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
    let mut rows = vec![["ROLE", "DRIVE", "STATE", "READ", "WRITE", "NOTE"].map(String::from).to_vec()];
    rows.extend(status.members.iter().map(|member| {
        let drive = if member.drive.is_empty() { "-".to_string() } else { member.drive.clone() };
        let note = if member.state == "rebuilding" && member.note.is_empty() {
            format!("{} to rebuild", so_many_zones(member.zones_to_rebuild as usize))
        } else {
            member.note.clone()
        };
        let (read, write) = (member.read_errors.to_string(), member.write_errors.to_string());
        vec![member.role.to_string(), drive, member.state.to_string(), read, write, note]
    }));
    text + &table(&rows)
}

fn rebuild_text(rebuild: &Rebuild) -> String {
    let Rebuild { done_bytes, total_bytes, bytes_per_second, seconds_left } = *rebuild;
    let left = match seconds_left {
        Some(seconds) => format!("{} left", HumanDuration(Duration::from_secs(seconds))),
        None => "just begun".into(),
    };
    format!("{} of {}, {}/s, {left}", show(done_bytes), show(total_bytes), show(bytes_per_second))
}

/// The members of `found`.
fn members(found: &Found) -> Members<'_> {
    let label = &found.label;
    let drives: Vec<(u32, PathBuf)> = found
        .drives
        .iter()
        .filter_map(|drive| Some((drive.label()?.role, real_path(&drive.path).ok()?)))
        .collect();
    let missing = (0..label.members).filter(|role| !drives.iter().any(|(r, _)| r == role)).collect();
    Members { array: &label.name, count: label.members, drives, missing }
}

pub fn replace(output: Output, mut args: Vec<PathBuf>, yes: bool) -> Result<u8> {
    let (Some(new), Some(old)) = (args.pop(), args.pop()) else { bail!("replace needs OLD and NEW") };
    let name = match args.pop() {
        Some(array) => ArrayName::from(array),
        None if old.exists() => ArrayName::from(old.clone()),
        None if old.to_string_lossy().parse::<u32>().is_ok() => {
            bail!("a role needs its array: zoneraid replace ARRAY {} {}", old.display(), new.display())
        }
        None => ArrayName::from(directory_of(&old)),
    };
    let member = MemberName::new(&old)?;
    let rebuilt = match daemon::find(&name)? {
        Some(mut client) => {
            let drive = real_path(&new)?;
            ask(output, &mut client, &Request::Replace { member: member.clone(), drive, yes })?
        }
        None => replace_here(output, &name, &member, &new, yes)?,
    };
    output.print(&rebuilt, |rebuilt| {
        let (size, role) = (show(rebuilt.rebuilt_bytes), rebuilt.role.unwrap_or_default());
        let done = format!("{} is member {role} of '{}' now; {size} rebuilt\n", new.display(), rebuilt.array);
        done + &rebuilt.losses()
    })?;
    Ok(if rebuilt.is_whole() { HEALTHY } else { DEGRADED })
}

/// As [`replace`], where nobody runs the array.
fn replace_here(
    output: Output,
    name: &ArrayName,
    member: &MemberName,
    new: &Path,
    yes: bool,
) -> Result<Rebuilt> {
    let mut found = Found::by_name(name)?;
    let role = members(&found).role(member)?;
    let drive = take_new(&mut found, new)?;
    drive.refuse_if_waited_for()?;
    if let Some(what) = drive.describe() {
        ensure!(yes, "{}: {what}; --yes destroys that", drive.introduce());
    }
    let session = found.assemble()?;
    session.wait(repair::attach(&session.array, role, drive.drive(), &|note| output.note(note)))??;
    let done = run_rebuild(output, &session)?;
    let drive = Some(new.display().to_string());
    Ok(Rebuilt::of(session.array.status().name, Some(role as u32), drive, &done))
}

/// Opens the drive at `path`, or takes it from those of the array if it is one of them that the
/// array has to do without.
fn take_new(found: &mut Found, path: &Path) -> Result<OpenDrive> {
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
    let rebuilt = match daemon::find(name)? {
        Some(mut client) => ask(output, &mut client, &Request::Rebuild)?,
        None => rebuild_here(output, name)?,
    };
    output.print(&rebuilt, |rebuilt| {
        let sync = if rebuilt.left_out.is_empty() { "; every member is in sync" } else { "" };
        let next = match rebuilt.left_out.is_empty() {
            true => String::new(),
            false => format!("what to do about that: zoneraid status {name}\n"),
        };
        format!("{} rebuilt{sync}\n", show(rebuilt.rebuilt_bytes)) + &rebuilt.losses() + &next
    })?;
    Ok(if rebuilt.is_whole() { HEALTHY } else { DEGRADED })
}

/// As [`rebuild`], where nobody runs the array.
fn rebuild_here(output: Output, name: &ArrayName) -> Result<Rebuilt> {
    let session = Session::open(name)?;
    let status = session.array.status();
    if let Some(role) = status.members.iter().position(|member| member.state == MemberState::Out) {
        bail!("member {role} is out; give the array a drive with: zoneraid replace {name} {role} NEW");
    }
    let done = run_rebuild(output, &session)?;
    Ok(Rebuilt::of(status.name, None, None, &done))
}

fn run_rebuild(output: Output, session: &Session) -> Result<engine::array::Rebuilt> {
    let bar = output.bar("rebuild", 0);
    let progress = |progress: engine::array::Progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
    };
    let rebuilt = session.wait(session.array.rebuild(&progress));
    bar.finish_and_clear();
    Ok(rebuilt??)
}

pub fn fail(output: Output, name: &ArrayName, member: &Path) -> Result<u8> {
    let member = MemberName::new(member)?;
    let failed: Failed = match daemon::find(name)? {
        Some(mut client) => ask(output, &mut client, &Request::Fail { member })?,
        None => {
            let found = Found::by_name(name)?;
            let role = members(&found).role(&member)?;
            let session = found.assemble()?;
            session.wait(repair::fail(&session.array, role))??
        }
    };
    output.print(&failed, |failed| {
        format!("member {} ({}) is out of '{}'\n", failed.role, failed.drive, failed.array)
    })?;
    Ok(HEALTHY)
}
