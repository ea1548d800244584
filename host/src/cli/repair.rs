//! `replace`, `rebuild` and `fail`.

use super::{daemon::ask, interrupt};
use crate::{
    control::{
        name::{ArrayName, MemberName, real_path},
        protocol::Request,
    },
    drive::{self, same_file},
    members::{
        self, EraseBar, FoundArray, OpenDrive, Session, directory_of, find_running, refuse_scattered,
        repair::{self, Members},
    },
    process::{
        output::{self, DEGRADED, HEALTHY, Output, quoted},
        size::show,
    },
    reactor::Reactor,
    report::{FailReport, RebuildReport, is_or_are, members_named},
};
use anyhow::{Context, Result, bail, ensure};
use engine::array::{MemberState, Progress};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};

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
pub fn word(path: &Path) -> String {
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
