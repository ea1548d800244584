//! `rename`, `adopt`, `autostart`, `error-limit`, `destroy` and `wipe`: arrays as a whole, and single drives.
//!
//! Name, host, autostart and error limit can be changed while the array does not run, also if a member is missing,
//! which does not become stale. Commands that destroy data need `--yes`.

use super::{daemon::ask, interrupt};
use crate::{
    control::{
        client,
        name::{ArrayName, real_path},
        protocol::Request,
    },
    drive::{
        self, ModelAndSerial,
        label::{Content, Label},
        same_file,
    },
    members::{EraseBar, FoundArray, OpenDrive, PATIENCE_TO_LOOK, Scan, directory_of, explain, find_running},
    process::{
        machine,
        output::{HEALTHY, Output, quoted, uuid},
        size::show,
    },
    reactor::Reactor,
    report::{OwnerReport, Status, in_a_row, is_or_are, used_zones},
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::{Array, Drive, MemberState},
    format::{name::wrong_with_name, superblock::Stage},
    owner::{Change, make_blank},
};
use serde::Serialize;
use std::path::{Path, PathBuf};

pub fn rename(output: Output, name: &ArrayName, new: &str) -> Result<u8> {
    if let Some(wrong) = wrong_with_name(new) {
        bail!("an array cannot have this name: {wrong}");
    }
    if let Some(client) = find_running(name)? {
        let old = quoted(&client.about.name);
        bail!(
            "'{}' runs, and its block device has this name: stop it first with zoneraid stop {old}",
            client.about.name
        );
    }
    let taken = names()?;
    let found = FoundArray::by_name(name)?;
    let old = found.label.name.clone();
    ensure!(old != new, "'{old}' has this name already");
    let own = uuid(&found.label.uuid);
    if let Some((other, _)) = taken.iter().find(|(other, name)| name == new && *other != own) {
        bail!("the name '{new}' is used by another array on this machine ({other})");
    }
    let owned = change(&found, &Change::Name(new.into()))?;
    output.print(&owned, |owned| format!("'{old}' is called '{}' now\n", owned.array))?;
    Ok(HEALTHY)
}

/// UUIDs and names of the arrays on this machine that can be found.
fn names() -> Result<Vec<(String, String)>> {
    let running = client::running()?.into_iter().map(|client| (client.about.uuid, client.about.name));
    let mut names: Vec<_> = running.collect();
    for scan in Scan::everywhere(&Reactor::default(), PATIENCE_TO_LOOK)? {
        names.extend(scan.arrays().into_iter().map(|label| (uuid(&label.uuid), label.name.clone())));
    }
    Ok(names)
}

pub fn adopt(output: Output, name: &ArrayName) -> Result<u8> {
    let host = machine::id().context(machine::NO_IDENTITY)?;
    let owned = set(output, name, &Request::Adopt, &Change::Host(host))?;
    output.print(&owned, |owned| {
        let starts = if owned.autostart { "is started automatically" } else { "is started manually" };
        format!("'{}' belongs to this host now, and {starts} here\n", owned.array)
    })?;
    Ok(HEALTHY)
}

pub fn autostart(output: Output, name: &ArrayName, yes: bool) -> Result<u8> {
    let owned = set(output, name, &Request::Autostart { yes }, &Change::Autostart(yes))?;
    output.print(&owned, |owned| match (owned.autostart, owned.host) {
        (false, _) => format!("'{}' will be started manually only\n", owned.array),
        (true, machine::Owner::This) => format!("'{}' will be started automatically\n", owned.array),
        (true, _) => format!(
            "'{}' will be started automatically on its host, which is not this one: zoneraid adopt {}\n",
            owned.array,
            quoted(&name.to_string())
        ),
    })?;
    Ok(HEALTHY)
}

pub fn error_limit(output: Output, name: &ArrayName, limit: u32) -> Result<u8> {
    let owned = set(output, name, &Request::ErrorLimit { limit }, &Change::ErrorLimit(limit))?;
    output.print(&owned, |owned| match owned.error_limit {
        0 => format!("'{}' has no limit for the repaired blocks of a drive\n", owned.array),
        limit => format!(
            "a drive of '{}' is to be replaced when {limit} blocks of it were repaired\n",
            owned.array
        ),
    })?;
    Ok(HEALTHY)
}

/// Changes host, autostart or error limit of an array, by its daemon if it runs, or else in this process.
fn set(output: Output, name: &ArrayName, request: &Request, wanted: &Change) -> Result<OwnerReport> {
    match find_running(name)? {
        Some(mut client) => ask(output, &mut client, request),
        None => change(&FoundArray::by_name(name)?, wanted),
    }
}

fn change(found: &FoundArray, change: &Change) -> Result<OwnerReport> {
    found.refuse_if_waited_for()?;
    let drives = || found.drives.iter().map(OpenDrive::drive).collect();
    let runtime = found.reactor.runtime();
    found.reactor.wait(Array::change(runtime, drives(), change))?.map_err(|error| found.explain(error))?;
    let seen = found.reactor.wait(Array::inspect(runtime, drives(), None))??;
    Ok(OwnerReport::of(&seen.status))
}

#[derive(Serialize)]
struct DestroyOutput {
    array: String,
    uuid: String,
    drives: Vec<WipeOutput>,
}

#[derive(Serialize)]
struct WipeOutput {
    drive: String,
    size_bytes: u64,
    /// `None` if the drive does not report it.
    model: Option<String>,
    serial: Option<String>,
    /// The former contents; `None` if the drive was blank.
    destroyed: Option<String>,
}

impl WipeOutput {
    fn of(drive: &OpenDrive) -> WipeOutput {
        let ModelAndSerial { model, serial } = drive::drive_id(&drive.path);
        let (path, size_bytes) = (drive.path.display().to_string(), drive.size_bytes());
        WipeOutput { drive: path, size_bytes, model, serial, destroyed: drive.describe() }
    }
}

pub fn destroy(output: Output, name: &ArrayName, yes: bool) -> Result<u8> {
    if let Some(client) = find_running(name)? {
        let array = &client.about.name;
        bail!("'{array}' runs: stop it first with: zoneraid stop {}", quoted(array));
    }
    let found = FoundArray::by_name(name)?;
    found.refuse_if_waited_for()?;
    ensure!(yes || found.label.stage == Stage::Making, "{}: confirm with --yes", at_stake(&found));
    for (path, error) in &found.damaged {
        let (path, word) = (path.display(), quoted(&path.to_string_lossy()));
        output.note(&format!("{path}: {error}; if it was a member, wipe it with: zoneraid wipe {word}"));
    }
    let erasing = EraseBar::new(output, &found.drives);
    let drives: Vec<Drive> = found.drives.iter().map(|drive| erasing.drive(drive)).collect();
    let destroyed = DestroyOutput {
        array: found.label.name.clone(),
        uuid: uuid(&found.label.uuid),
        drives: found.drives.iter().map(WipeOutput::of).collect(),
    };
    let again = quoted(&name.to_string());
    interrupt::explain(move || {
        format!("the array is unchanged or partly destroyed: continue with zoneraid destroy --yes {again}")
    });
    let gone = found.reactor.wait(Array::destroy(found.reactor.runtime(), drives))?;
    interrupt::forget();
    drop(erasing);
    gone.map_err(|error| found.explain(error))?;
    output.print(&destroyed, |destroyed| {
        let blank = destroyed.drives.iter().map(|wiped| format!("{}: blank\n", wiped.drive));
        format!("'{}' is destroyed\n", destroyed.array) + &blank.collect::<String>()
    })?;
    Ok(HEALTHY)
}

/// The message about the data that is lost with an array.
fn at_stake(found: &FoundArray) -> String {
    let Label { name, members, .. } = &found.label;
    let drives: Vec<String> = found.drives.iter().map(OpenDrive::introduce).collect();
    let content = match found.inspect() {
        Ok(array) => {
            let (size, used) = (show(array.geometry.size_bytes()), used_zones(&array.zones));
            format!("{size}, {used} of {} zones in use", array.geometry.zones)
        }
        Err(error) => error.to_string(),
    };
    format!(
        "this destroys '{name}' ({content}), on {} drives of its {members} members: {}",
        drives.len(),
        drives.join(", ")
    )
}

#[derive(Serialize)]
struct WipedDrives {
    drives: Vec<WipeOutput>,
}

pub fn wipe(output: Output, paths: &[PathBuf], yes: bool) -> Result<u8> {
    super::create::refuse_twice(paths)?;
    paths.iter().try_for_each(|path| refuse_if_run(path))?;
    let reactor = Reactor::default();
    // Claimed before the check below, so that no other process makes them members meanwhile.
    let drives: Vec<OpenDrive> =
        paths.iter().map(|path| OpenDrive::open(&reactor, path)).collect::<Result<_>>()?;
    let mut losses = Vec::new();
    for drive in &drives {
        losses.extend(loss_by_wipe(output, drive)?);
    }
    ensure!(yes || losses.is_empty(), "{}; --yes destroys that", losses.join("; "));
    drives.iter().try_for_each(OpenDrive::refuse_if_waited_for)?;
    let wiped = WipedDrives { drives: drives.iter().map(WipeOutput::of).collect() };
    let erasing = EraseBar::new(output, &drives);
    let empty = |drive: &OpenDrive| {
        let blank = reactor.wait(make_blank(&erasing.drive(drive)))?;
        blank.map_err(|error| explain(error.into(), [drive.path.clone()]))
    };
    let failed = drives.iter().enumerate().find_map(|(done, drive)| Some((done, empty(drive).err()?)));
    drop(erasing);
    if let Some((done, error)) = failed {
        let blank: Vec<String> =
            drives[..done].iter().map(|drive| drive.path.display().to_string()).collect();
        ensure!(done > 0, error);
        bail!("{error:#}; {} {} blank already", in_a_row(&blank), is_or_are(done));
    }
    output.print(&wiped, |wiped| {
        let line = |wiped: &WipeOutput| {
            let was = wiped.destroyed.as_ref().map(|what| format!("; it was {what}")).unwrap_or_default();
            format!("{}: blank{was}\n", wiped.drive)
        };
        wiped.drives.iter().map(line).collect()
    })?;
    Ok(HEALTHY)
}

/// Refuses a drive that the daemon of an array holds.
fn refuse_if_run(path: &Path) -> Result<()> {
    let real = real_path(path)?;
    for client in client::running()? {
        if client.about.drives.iter().any(|drive| same_file(drive, &real)) {
            let name = &client.about.name;
            bail!(
                "{} is a member of '{name}', which runs: replace it first (zoneraid replace {} {} NEW), \
                 or stop the array",
                path.display(),
                quoted(name),
                quoted(&path.to_string_lossy())
            );
        }
    }
    Ok(())
}

/// Message about the data that wiping a drive destroys, and its array; `None` if the drive is blank or provably a former
/// member, or if the creation or destruction of its array is incomplete.
///
/// A copy of all members in another directory is an array of the same UUID. So a running array decides about drives in
/// its own directory only.
fn loss_by_wipe(output: Output, drive: &OpenDrive) -> Result<Option<String>> {
    let (introduced, what) = (drive.introduce(), drive.describe().unwrap_or_default());
    let label = match &drive.content {
        Content::Blank => return Ok(None),
        Content::Member(label) if label.stage != Stage::Whole => return Ok(None),
        Content::Member(label) => label,
        Content::Filled(_) | Content::Other(_) => return Ok(Some(format!("{introduced}: {what}"))),
    };
    let id = uuid(&label.uuid);
    if let Some(mut client) = client::running()?.into_iter().find(|client| client.about.uuid == id) {
        let status: Status = ask(output, &mut client, &Request::Status)?;
        let Some(member) = status.members.iter().find(|member| member.role == label.role) else {
            return Ok(Some(format!("{introduced}: {what}; the running array has no such member")));
        };
        if ["out", "missing"].contains(&&*member.state) {
            return Ok(Some(format!("{introduced}: {what}; the array runs without it")));
        }
        let used = Path::new(&member.drive);
        if same_file(&directory_of(used), &directory_of(&drive.path)) {
            let successor = OpenDrive::look(&Reactor::default(), used).ok();
            let successor = successor.as_ref().and_then(OpenDrive::label);
            let is_former = successor.is_some_and(|own| own.member != label.member);
            let is_copy =
                || format!("{introduced}: {what}; it may be a copy of {}, which runs", member.drive);
            return Ok((!is_former).then(is_copy));
        }
    }
    let found = FoundArray::to_look(&ArrayName::from(drive.path.clone()))?;
    let effect = match found.inspect() {
        Ok(array) => {
            let is_this = |other: &str| same_file(Path::new(other), &drive.path);
            let used = array.status.members.iter().any(|m| m.state != MemberState::Out && is_this(&m.drive));
            if !used {
                return Ok(None);
            }
            let others = array.status.members.iter().filter(|m| m.state == MemberState::Active).count();
            match others as u32 + label.parities > label.members {
                true => "which would be degraded without it",
                false => "which would be lost with it",
            }
        }
        Err(_) => "which cannot be assembled as it is",
    };
    Ok(Some(format!("{introduced}: {what}, {effect}")))
}
