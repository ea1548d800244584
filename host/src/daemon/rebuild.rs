//! Rebuilds and replacements in the background: one at a time. They continue when the client disconnects.

use super::{
    drives,
    rebuilder::Rebuilder,
    socket::ControlConnection,
    state::{Daemon, log, writing_begun},
    status,
};
use crate::{
    control::{name::MemberName, protocol::Answer},
    members::{OpenDrive, repair},
    process::{output::quoted, size::show},
    report::{CopyReport, FailReport, RebuildReport},
};
use anyhow::{Result, anyhow, bail, ensure};
use engine::{
    array::{self, MemberState, Progress, ReplaceOutcome},
    raid::error::{ArrayError, NoReplacement, ReplaceFailure},
};
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Least time between two progress messages to a client.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Interval between attempts to cancel a copy that the array has not begun yet.
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// Exclusive right to replace a member, released when dropped.
struct ReplaceClaim(Rc<Daemon>);

impl Drop for ReplaceClaim {
    fn drop(&mut self) {
        self.0.rebuilder.replacing.set(false);
        self.0.rebuilder.changed.open();
    }
}

/// Result of a replacement, for the client that waits for it.
#[derive(Default)]
struct ReplaceResult {
    /// Unexpected steps, in words.
    notes: RefCell<Vec<String>>,
    /// Bytes that were copied; `None` while it runs.
    result: RefCell<Option<Result<u64>>>,
}

/// Whether the error only says that a copy was cancelled: the new drive is blank then.
fn is_cancelled(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref();
    matches!(error, Some(ArrayError::Replace(NoReplacement::Failed { why: ReplaceFailure::Cancelled, .. })))
}

/// Starts a rebuild of lacking parts in the background; if one is running, another one follows it.
pub(super) fn start_rebuild(daemon: &Rc<Daemon>) {
    let rebuilder = &daemon.rebuilder;
    if rebuilder.running.get().is_some() {
        rebuilder.again.set(true);
        return;
    }
    let status = daemon.array.status();
    let is_lacking = status.members.iter().any(|m| m.state == MemberState::Rebuilding);
    // Blocks that could not be read may be readable now.
    if !is_lacking && status.lost_blocks == 0 {
        return;
    }
    let started = Instant::now();
    rebuilder.running.set(Some((started, Progress::default())));
    let (runtime, daemon) = (daemon.reactor.runtime().clone(), daemon.clone());
    runtime.spawn(async move {
        let rebuilder = &daemon.rebuilder;
        let result = daemon
            .array
            .rebuild(&|progress| rebuilder.advance(started, progress))
            .await
            .map_err(|error| error.to_string());
        let name = daemon.array.status().name;
        match &result {
            Ok(done) => {
                log(&format!("'{name}': {} rebuilt", show(done.bytes)));
                let losses = RebuildReport::of(&daemon.array.status(), None, None, done).losses();
                losses.lines().for_each(|loss| log(&format!("'{name}': {loss}")));
            }
            Err(error) => log(&format!("'{name}': the rebuild stopped: {error}")),
        }
        rebuilder.running.set(None);
        rebuilder.count(result.as_ref().map_or(0, |done| done.bytes));
        *rebuilder.last.borrow_mut() = Some(result);
        if rebuilder.again.take() {
            start_rebuild(&daemon);
        }
        rebuilder.changed.open();
        status::publish_status(&daemon);
    });
}

/// Waits for the end of the rebuild, and reports the progress to the client. Returns the result.
async fn watch_rebuild(
    rebuilder: &Rebuilder,
    connection: &ControlConnection,
) -> Result<array::RebuildOutcome> {
    let mut told: Option<Instant> = None;
    while let Some(progress) = rebuilder.progress() {
        let changed = rebuilder.changed.wait();
        if told.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY) {
            told = Some(Instant::now());
            connection.send(Answer::Progress(progress)).await?;
        }
        changed.await;
    }
    match &*rebuilder.last.borrow() {
        Some(Ok(done)) => Ok(done.clone()),
        Some(Err(error)) => Err(anyhow!("the rebuild stopped: {error}")),
        None => Ok(array::RebuildOutcome::default()),
    }
}

/// Continues an interrupted rebuild or follows the running one, for a client.
pub(super) async fn rebuild_for(
    daemon: &Rc<Daemon>,
    connection: &ControlConnection,
) -> Result<RebuildReport> {
    let status = daemon.array.status();
    repair::refuse_if_only_out(&quoted(&status.name), &status)?;
    *daemon.rebuilder.last.borrow_mut() = None;
    start_rebuild(daemon);
    let done = watch_rebuild(&daemon.rebuilder, connection).await?;
    Ok(RebuildReport::of(&daemon.array.status(), None, None, &done))
}

/// Replaces a member by the drive at `path`, for a client, and waits until the parts that are lacking are rebuilt. A
/// working member is copied, unless `now` takes it out at once. Without `yes` the drive must have no contents.
pub(super) async fn replace(
    daemon: &Rc<Daemon>,
    member: &MemberName,
    path: &Path,
    (now, yes): (bool, bool),
    connection: &ControlConnection,
) -> Result<RebuildReport> {
    if let Some(CopyReport { role, drive }) = &*daemon.rebuilder.copied.borrow() {
        let called = quoted(&daemon.array.status().name);
        bail!(
            "member {role} is being copied to {drive}: wait for its end (zoneraid status {called}), or cancel that \
             (zoneraid replace --cancel {called} {role})"
        );
    }
    let busy = daemon.rebuilder.replacing.replace(true);
    ensure!(!busy, "a replacement is running: try again when it has ended");
    let replacement = ReplaceClaim(daemon.clone());
    let role = drives::role(daemon, member)?;
    let drive = drives::take_new(daemon, path).await?;
    let goes_on = drive.is_filled_for(&daemon.array.status().uuid, role);
    if let Some(what) = drive.describe().filter(|_| !goes_on) {
        ensure!(yes, "{}: {what}; --yes destroys that", path.display());
    }
    *daemon.rebuilder.last.borrow_mut() = None;
    let outcome = Rc::new(ReplaceResult::default());
    let (replacing, about) = (daemon.clone(), outcome.clone());
    daemon.reactor.runtime().spawn(async move {
        let result = place(&replacing, role, drive, now, &about).await;
        *about.result.borrow_mut() = Some(result);
        drop(replacement);
        start_rebuild(&replacing);
        replacing.rebuilder.changed.open();
        status::publish_status(&replacing);
    });
    let copied_bytes = watch_placing(&daemon.rebuilder, &outcome, connection).await?;
    for note in outcome.notes.take() {
        connection.send(Answer::Note(note)).await?;
    }
    let done = watch_rebuild(&daemon.rebuilder, connection).await?;
    let drive = Some(path.display().to_string());
    Ok(RebuildReport {
        copied_bytes,
        ..RebuildReport::of(&daemon.array.status(), Some(role as u32), drive, &done)
    })
}

/// Continues interrupted copies of members, to the drives in `filled` by role, as soon as the array is written to
/// and neither a rebuild nor a replacement runs.
pub(super) async fn continue_copies(daemon: Rc<Daemon>, filled: Vec<(usize, PathBuf)>) {
    for (role, path) in filled {
        writing_begun(&daemon.array).await;
        // Parts that are lacking are rebuilt first, as at every start.
        if daemon.rebuilder.running.get().is_none() {
            start_rebuild(&daemon);
        }
        while daemon.rebuilder.running.get().is_some() || daemon.rebuilder.replacing.get() {
            daemon.rebuilder.changed.wait().await;
        }
        // A client may have continued the copy.
        if drives::held(&daemon, &path).is_none() {
            continue_copy(&daemon, role, &path).await;
        }
    }
}

async fn continue_copy(daemon: &Rc<Daemon>, role: usize, path: &Path) {
    let busy = daemon.rebuilder.replacing.replace(true);
    assert!(!busy, "the copy of member {role} is continued beside a replacement");
    let replacement = ReplaceClaim(daemon.clone());
    let name = daemon.array.status().name;
    let not_continued = |why: &str| {
        log(&format!("'{name}': the copy of member {role} to {} cannot be continued: {why}", path.display()));
    };
    match drives::take_new(daemon, path).await {
        Ok(drive) => match daemon.array.copy_to(&drive.drive()).await {
            Some(copy) if copy.member == role => {
                let (done, all) = (show(copy.progress.done_bytes), show(copy.progress.total_bytes));
                let to = path.display();
                log(&format!("'{name}': the copy of member {role} to {to} continues at {done} of {all}"));
                // The result is logged.
                place(daemon, role, drive, false, &ReplaceResult::default()).await.ok();
            }
            _ => not_continued("the drive that was copied is not the member any more; wipe the new drive"),
        },
        Err(error) => not_continued(&format!("{error:#}")),
    }
    drop(replacement);
    start_rebuild(daemon);
    daemon.rebuilder.changed.open();
    status::publish_status(daemon);
}

/// Cancels the copy that is under way, if it is one to the drive that `member` names.
pub(super) async fn cancel_copy_to(daemon: &Daemon, member: &MemberName) -> Result<Option<FailReport>> {
    match member {
        MemberName::Path { path, .. } if daemon.rebuilder.copied_to().as_deref() == Some(path) => {
            cancel_copy(daemon, None).await
        }
        _ => Ok(None),
    }
}

/// Cancels the copy that is under way, of the member or to the drive that `member` names, and waits until the new
/// drive is blank. `None` if there is no such copy.
pub(super) async fn cancel_copy(daemon: &Daemon, member: Option<&MemberName>) -> Result<Option<FailReport>> {
    let Some(copied) = daemon.rebuilder.copied.borrow().clone() else { return Ok(None) };
    let is_meant = match member {
        None => true,
        Some(MemberName::Path { path, .. }) if *path == Path::new(&copied.drive) => true,
        Some(member) => drives::role(daemon, member).is_ok_and(|role| role == copied.role as usize),
    };
    if !is_meant {
        return Ok(None);
    }
    // The array may not have begun with it yet.
    let none_yet = ArrayError::from(NoReplacement::NoneUnderWay);
    while let Err(error) = daemon.array.cancel_replacement() {
        let has_ended = daemon.rebuilder.copied.borrow().as_ref() != Some(&copied);
        ensure!(error == none_yet && !has_ended, "{error}");
        daemon.reactor.ring()?.sleep(RETRY_EVERY).await;
    }
    while daemon.rebuilder.copied.borrow().as_ref() == Some(&copied) {
        daemon.rebuilder.changed.wait().await;
    }
    let error = daemon.rebuilder.copy_error.borrow().clone();
    if let Some(error) = error {
        bail!("{error}");
    }
    let array = daemon.array.status().name;
    Ok(Some(FailReport {
        array,
        role: copied.role,
        drive: copied.drive,
        called_off: true,
        also_out: Vec::new(),
    }))
}

/// Logs that a copy stops with the daemon.
pub(super) fn log_copy_given_up(daemon: &Daemon) {
    if let Some(CopyReport { role, drive }) = &*daemon.rebuilder.copied.borrow() {
        let array = daemon.array.status().name;
        log(&format!(
            "'{array}': the copy of member {role} to {drive} is interrupted, and continues at the next start"
        ));
    }
}

/// Replaces the member in `role` by `drive`, which the daemon then holds open in the place of the old one.
async fn place(
    daemon: &Rc<Daemon>,
    role: usize,
    drive: OpenDrive,
    now: bool,
    outcome: &ReplaceResult,
) -> Result<u64> {
    let (rebuilder, path) = (&daemon.rebuilder, drive.path.clone());
    let members = daemon.array.status().members.len();
    assert!(role < members, "replaced member {role} of an array of {members} members");
    let copied = rebuilder.copied.borrow().clone();
    assert!(
        rebuilder.replacing.get() && copied.is_none(),
        "member {role} is replaced beside another replacement: {copied:?}"
    );
    let old = daemon.array.status().members.get(role).map(|member| PathBuf::from(&member.drive));
    let started = Instant::now();
    // Listed among the open drives from now on, so that writes to it are counted.
    let is_new = drives::held(daemon, &path).is_none();
    if is_new {
        daemon.drives.borrow_mut().push(drive.clone());
    }
    let progress = |progress: Progress| {
        rebuilder.advance(started, progress);
    };
    let works = daemon.array.status().members.get(role).is_some_and(|m| m.state != MemberState::Out);
    if works && !now && rebuilder.running.get().is_none() {
        // From here on it can be cancelled.
        *rebuilder.copied.borrow_mut() =
            Some(CopyReport { role: role as u32, drive: path.display().to_string() });
        progress(Progress::default());
    }
    let note = |note: &str| outcome.notes.borrow_mut().push(note.to_string());
    let result = repair::replace(&daemon.array, role, drive.drive(), now, &progress, &note).await;
    let failed = result.as_ref().err().filter(|error| !is_cancelled(error));
    *rebuilder.copy_error.borrow_mut() = failed.map(|error| format!("{error:#}"));
    if rebuilder.copied.take().is_some() {
        rebuilder.running.set(None);
        rebuilder.changed.open();
    }
    let name = daemon.array.status().name;
    match &result {
        Ok(ReplaceOutcome::Attached) if works && !now => log(&format!(
            "'{name}': member {role} failed while it was copied; {} is member {role} now and is rebuilt from the \
             others",
            path.display()
        )),
        Ok(_) => log(&format!("'{name}': {} is member {role} now", path.display())),
        Err(error) => log(&format!("'{name}': {} is not member {role}: {error}", path.display())),
    }
    if result.is_err() && is_new {
        daemon.drives.borrow_mut().retain(|held| held.path != path);
    }
    let replaced = result?;
    // A copy of 0 bytes, of an empty array, replaces the old drive as well.
    let is_given_back =
        |held: &OpenDrive| replaced != ReplaceOutcome::Attached && Some(&held.path) == old.as_ref();
    let mut drives = daemon.drives.borrow_mut();
    drives.retain(|held| held.path != path && !is_given_back(held));
    drives.push(drive);
    let copied_bytes = repair::copied_bytes(replaced);
    rebuilder.count(copied_bytes);
    Ok(copied_bytes)
}

/// Waits for the end of a replacement, and reports the progress to the client.
async fn watch_placing(
    rebuilder: &Rebuilder,
    outcome: &ReplaceResult,
    connection: &ControlConnection,
) -> Result<u64> {
    let mut told: Option<Instant> = None;
    loop {
        let changed = rebuilder.changed.wait();
        if let Some(result) = outcome.result.take() {
            return result;
        }
        if let Some(progress) = rebuilder.progress()
            && told.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY)
        {
            told = Some(Instant::now());
            connection.send(Answer::Progress(progress)).await?;
        }
        changed.await;
    }
}
