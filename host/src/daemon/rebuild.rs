//! Rebuilds and replacements in the background: one at a time. They continue when the client disconnects.

use super::{
    socket::ControlConnection,
    state::{Daemon, holds_back, log},
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

impl Daemon {
    /// Starts a rebuild of lacking parts in the background; if one is running, another one follows it.
    pub fn start_rebuild(self: &Rc<Self>) {
        let rebuilder = &self.rebuilder;
        if rebuilder.running.get().is_some() {
            rebuilder.again.set(true);
            return;
        }
        let status = self.array.status();
        let is_lacking = status.members.iter().any(|m| m.state == MemberState::Rebuilding);
        // Blocks that could not be read may be readable now.
        if !is_lacking && status.lost_blocks == 0 {
            return;
        }
        let started = Instant::now();
        rebuilder.running.set(Some((started, Progress::default())));
        let daemon = self.clone();
        self.reactor.runtime().spawn(async move {
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
                daemon.start_rebuild();
            }
            rebuilder.changed.open();
            daemon.publish_status();
        });
    }

    /// Waits for the end of the rebuild, and reports the progress to the client. Returns the result.
    async fn watch_rebuild(&self, connection: &ControlConnection) -> Result<array::RebuildOutcome> {
        let mut told: Option<Instant> = None;
        while let Some(progress) = self.rebuilder.progress() {
            let changed = self.rebuilder.changed.wait();
            if told.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY) {
                told = Some(Instant::now());
                connection.send(Answer::Progress(progress)).await?;
            }
            changed.await;
        }
        match &*self.rebuilder.last.borrow() {
            Some(Ok(done)) => Ok(done.clone()),
            Some(Err(error)) => Err(anyhow!("the rebuild stopped: {error}")),
            None => Ok(array::RebuildOutcome::default()),
        }
    }

    /// Continues an interrupted rebuild or follows the running one, for a client.
    pub async fn rebuild_for(self: &Rc<Self>, connection: &ControlConnection) -> Result<RebuildReport> {
        let status = self.array.status();
        repair::refuse_if_only_out(&quoted(&status.name), &status)?;
        *self.rebuilder.last.borrow_mut() = None;
        self.start_rebuild();
        let done = self.watch_rebuild(connection).await?;
        Ok(RebuildReport::of(&self.array.status(), None, None, &done))
    }

    pub async fn replace(
        self: &Rc<Self>,
        member: &MemberName,
        path: &Path,
        (now, yes): (bool, bool),
        connection: &ControlConnection,
    ) -> Result<RebuildReport> {
        if let Some(CopyReport { role, drive }) = &*self.rebuilder.copied.borrow() {
            let called = quoted(&self.array.status().name);
            bail!(
                "member {role} is being copied to {drive}: wait for its end (zoneraid status {called}), or cancel that \
                 (zoneraid replace --cancel {called} {role})"
            );
        }
        let busy = self.rebuilder.replacing.replace(true);
        ensure!(!busy, "a replacement is running: try again when it has ended");
        let replacement = ReplaceClaim(self.clone());
        let role = self.role(member)?;
        let drive = self.take_new(path).await?;
        let goes_on = drive.is_filled_for(&self.array.status().uuid, role);
        if let Some(what) = drive.describe().filter(|_| !goes_on) {
            ensure!(yes, "{}: {what}; --yes destroys that", path.display());
        }
        *self.rebuilder.last.borrow_mut() = None;
        let outcome = Rc::new(ReplaceResult::default());
        let (daemon, about) = (self.clone(), outcome.clone());
        self.reactor.runtime().spawn(async move {
            let result = daemon.place(role, drive, now, &about).await;
            *about.result.borrow_mut() = Some(result);
            drop(replacement);
            daemon.start_rebuild();
            daemon.rebuilder.changed.open();
            daemon.publish_status();
        });
        let copied_bytes = self.watch_placing(&outcome, connection).await?;
        for note in outcome.notes.take() {
            connection.send(Answer::Note(note)).await?;
        }
        let done = self.watch_rebuild(connection).await?;
        let drive = Some(path.display().to_string());
        Ok(RebuildReport {
            copied_bytes,
            ..RebuildReport::of(&self.array.status(), Some(role as u32), drive, &done)
        })
    }

    /// Continues interrupted copies of members, to the drives in `filled` by role, as soon as the array is written to
    /// and neither a rebuild nor a replacement runs.
    pub async fn continue_copies(self: Rc<Self>, filled: Vec<(usize, PathBuf)>) {
        for (role, path) in filled {
            loop {
                let changed = self.array.changed();
                if !holds_back(&self.array.status()) {
                    break;
                }
                changed.await;
            }
            // Parts that are lacking are rebuilt first, as at every start.
            if self.rebuilder.running.get().is_none() {
                self.start_rebuild();
            }
            while self.rebuilder.running.get().is_some() || self.rebuilder.replacing.get() {
                self.rebuilder.changed.wait().await;
            }
            // A client may have continued the copy.
            if self.held(&path).is_none() {
                self.clone().continue_copy(role, &path).await;
            }
        }
    }

    async fn continue_copy(self: Rc<Self>, role: usize, path: &Path) {
        let busy = self.rebuilder.replacing.replace(true);
        assert!(!busy, "the copy of member {role} is continued beside a replacement");
        let replacement = ReplaceClaim(self.clone());
        let name = self.array.status().name;
        let not_continued = |why: &str| {
            log(&format!(
                "'{name}': the copy of member {role} to {} cannot be continued: {why}",
                path.display()
            ));
        };
        match self.take_new(path).await {
            Ok(drive) => match self.array.copy_to(&drive.drive()).await {
                Some(copy) if copy.member == role => {
                    let (done, all) = (show(copy.progress.done_bytes), show(copy.progress.total_bytes));
                    let to = path.display();
                    log(&format!("'{name}': the copy of member {role} to {to} continues at {done} of {all}"));
                    // The result is logged.
                    self.place(role, drive, false, &ReplaceResult::default()).await.ok();
                }
                _ => {
                    not_continued("the drive that was copied is not the member any more; wipe the new drive")
                }
            },
            Err(error) => not_continued(&format!("{error:#}")),
        }
        drop(replacement);
        self.start_rebuild();
        self.rebuilder.changed.open();
        self.publish_status();
    }

    /// Cancels the copy that is under way, if it is one to the drive that `member` names.
    pub async fn cancel_copy_to(&self, member: &MemberName) -> Result<Option<FailReport>> {
        match member {
            MemberName::Path { path, .. } if self.copied_to().as_deref() == Some(path) => {
                self.cancel_copy(None).await
            }
            _ => Ok(None),
        }
    }

    /// The drive that a member is being copied to.
    fn copied_to(&self) -> Option<PathBuf> {
        self.rebuilder.copied.borrow().as_ref().map(|copied| PathBuf::from(&copied.drive))
    }

    /// Cancels the copy that is under way, of the member or to the drive that `member` names, and waits until the new
    /// drive is blank. `None` if there is no such copy.
    pub async fn cancel_copy(&self, member: Option<&MemberName>) -> Result<Option<FailReport>> {
        let Some(copied) = self.rebuilder.copied.borrow().clone() else { return Ok(None) };
        let is_meant = match member {
            None => true,
            Some(MemberName::Path { path, .. }) if *path == Path::new(&copied.drive) => true,
            Some(member) => self.role(member).is_ok_and(|role| role == copied.role as usize),
        };
        if !is_meant {
            return Ok(None);
        }
        // The array may not have begun with it yet.
        let none_yet = ArrayError::from(NoReplacement::NoneUnderWay);
        while let Err(error) = self.array.cancel_replacement() {
            let has_ended = self.rebuilder.copied.borrow().as_ref() != Some(&copied);
            ensure!(error == none_yet && !has_ended, "{error}");
            self.reactor.ring()?.sleep(RETRY_EVERY).await;
        }
        while self.rebuilder.copied.borrow().as_ref() == Some(&copied) {
            self.rebuilder.changed.wait().await;
        }
        let error = self.rebuilder.copy_error.borrow().clone();
        if let Some(error) = error {
            bail!("{error}");
        }
        let array = self.array.status().name;
        Ok(Some(FailReport {
            array,
            role: copied.role,
            drive: copied.drive,
            called_off: true,
            also_out: Vec::new(),
        }))
    }

    /// Logs that a copy stops with the daemon.
    pub fn log_copy_given_up(&self) {
        if let Some(CopyReport { role, drive }) = &*self.rebuilder.copied.borrow() {
            let array = self.array.status().name;
            log(&format!(
                "'{array}': the copy of member {role} to {drive} is interrupted, and continues at the next start"
            ));
        }
    }

    /// Replaces the member in `role` by `drive`, which the daemon then holds open in the place of the old one.
    async fn place(
        self: &Rc<Self>,
        role: usize,
        drive: OpenDrive,
        now: bool,
        outcome: &ReplaceResult,
    ) -> Result<u64> {
        let (rebuilder, path) = (&self.rebuilder, drive.path.clone());
        let members = self.array.status().members.len();
        assert!(role < members, "replaced member {role} of an array of {members} members");
        let copied = rebuilder.copied.borrow().clone();
        assert!(
            rebuilder.replacing.get() && copied.is_none(),
            "member {role} is replaced beside another replacement: {copied:?}"
        );
        let old = self.array.status().members.get(role).map(|member| PathBuf::from(&member.drive));
        let started = Instant::now();
        // Listed among the open drives from now on, so that writes to it are counted.
        let is_new = self.held(&path).is_none();
        if is_new {
            self.drives.borrow_mut().push(drive.clone());
        }
        let progress = |progress: Progress| {
            rebuilder.advance(started, progress);
        };
        let works = self.array.status().members.get(role).is_some_and(|m| m.state != MemberState::Out);
        if works && !now && rebuilder.running.get().is_none() {
            // From here on it can be cancelled.
            *rebuilder.copied.borrow_mut() =
                Some(CopyReport { role: role as u32, drive: path.display().to_string() });
            progress(Progress::default());
        }
        let note = |note: &str| outcome.notes.borrow_mut().push(note.to_string());
        let result = repair::replace(&self.array, role, drive.drive(), now, &progress, &note).await;
        let failed = result.as_ref().err().filter(|error| !is_cancelled(error));
        *rebuilder.copy_error.borrow_mut() = failed.map(|error| format!("{error:#}"));
        if rebuilder.copied.take().is_some() {
            rebuilder.running.set(None);
            rebuilder.changed.open();
        }
        let name = self.array.status().name;
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
            self.drives.borrow_mut().retain(|held| held.path != path);
        }
        let replaced = result?;
        // A copy of 0 bytes, of an empty array, replaces the old drive as well.
        let is_given_back =
            |held: &OpenDrive| replaced != ReplaceOutcome::Attached && Some(&held.path) == old.as_ref();
        let mut drives = self.drives.borrow_mut();
        drives.retain(|held| held.path != path && !is_given_back(held));
        drives.push(drive);
        let copied_bytes = repair::copied_bytes(replaced);
        rebuilder.count(copied_bytes);
        Ok(copied_bytes)
    }

    /// Waits for the end of a replacement, and reports the progress to the client.
    async fn watch_placing(&self, outcome: &ReplaceResult, connection: &ControlConnection) -> Result<u64> {
        let mut told: Option<Instant> = None;
        loop {
            let changed = self.rebuilder.changed.wait();
            if let Some(result) = outcome.result.take() {
                return result;
            }
            if let Some(progress) = self.rebuilder.progress()
                && told.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY)
            {
                told = Some(Instant::now());
                connection.send(Answer::Progress(progress)).await?;
            }
            changed.await;
        }
    }
}
