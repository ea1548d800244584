//! Rebuilds and replacements in the background: one at a time, whether a client waits for it or not.

use super::{
    socket::Connection,
    state::{Daemon, log},
};
use crate::{
    members::OpenDrive,
    name::MemberName,
    output::quoted,
    protocol::Answer,
    repair,
    report::{Copied, Failed, Rebuilt},
    size::show,
};
use anyhow::{Result, anyhow, ensure};
use engine::array::{self, MemberState, Progress, Replaced};
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Least time between two progress messages to a client.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Exclusive right to replace a member, released when dropped.
struct Replacement(Rc<Daemon>);

impl Drop for Replacement {
    fn drop(&mut self) {
        self.0.rebuilder.replacing.set(false);
    }
}

/// Notes and result of a replacement.
#[derive(Default)]
struct Placing {
    notes: RefCell<Vec<String>>,
    /// Bytes that were copied.
    result: RefCell<Option<Result<u64>>>,
}

impl Daemon {
    /// Starts a rebuild of lacking parts in the background, or makes the running one repeat.
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
                    let losses = Rebuilt::of(&daemon.array.status(), None, None, done).losses();
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
            daemon.tell();
        });
    }

    /// Waits for the end of the rebuild, and reports the progress to the client. Returns the result.
    async fn watch_rebuild(&self, connection: &Connection) -> Result<array::Rebuilt> {
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
            None => Ok(array::Rebuilt::default()),
        }
    }

    pub async fn go_on(self: &Rc<Self>, connection: &Connection) -> Result<Rebuilt> {
        let status = self.array.status();
        repair::refuse_if_only_out(&quoted(&status.name), &status)?;
        *self.rebuilder.last.borrow_mut() = None;
        self.start_rebuild();
        let done = self.watch_rebuild(connection).await?;
        Ok(Rebuilt::of(&self.array.status(), None, None, &done))
    }

    pub async fn replace(
        self: &Rc<Self>,
        member: &MemberName,
        path: &Path,
        (now, yes): (bool, bool),
        connection: &Connection,
    ) -> Result<Rebuilt> {
        let busy = self.rebuilder.replacing.replace(true);
        ensure!(!busy, "another drive is being put in its place; try again when that is done");
        let replacement = Replacement(self.clone());
        let role = self.role(member)?;
        let drive = self.take_new(path).await?;
        let goes_on = drive.is_filled_for(&self.array.status().uuid, role);
        if let Some(what) = drive.describe().filter(|_| !goes_on) {
            ensure!(yes, "{}: {what}; --yes destroys that", path.display());
        }
        *self.rebuilder.last.borrow_mut() = None;
        let placing = Rc::new(Placing::default());
        let (daemon, about) = (self.clone(), placing.clone());
        self.reactor.runtime().spawn(async move {
            let result = daemon.place(role, drive, now, &about).await;
            *about.result.borrow_mut() = Some(result);
            drop(replacement);
            daemon.start_rebuild();
            daemon.rebuilder.changed.open();
            daemon.tell();
        });
        let copied_bytes = self.watch_placing(&placing, connection).await?;
        for note in placing.notes.take() {
            connection.send(Answer::Note(note)).await?;
        }
        let done = self.watch_rebuild(connection).await?;
        let drive = Some(path.display().to_string());
        Ok(Rebuilt { copied_bytes, ..Rebuilt::of(&self.array.status(), Some(role as u32), drive, &done) })
    }

    /// Continues the copy of a member to the drive at `path`, which a previous process has begun.
    pub async fn go_on_copying(self: Rc<Self>, role: usize, path: PathBuf) {
        if self.rebuilder.replacing.replace(true) {
            return;
        }
        let replacement = Replacement(self.clone());
        let name = self.array.status().name;
        let works = self.array.status().members.get(role).is_some_and(|m| m.state != MemberState::Out);
        match self.take_new(&path).await {
            Ok(drive) if works && drive.is_filled_for(&self.array.status().uuid, role) => {
                log(&format!("'{name}': the copy of member {role} to {} goes on", path.display()));
                // The result is logged.
                self.place(role, drive, false, &Placing::default()).await.ok();
            }
            Ok(_) => {}
            Err(error) => {
                log(&format!("'{name}': the copy of member {role} does not go on: {error:#}"));
            }
        }
        drop(replacement);
        self.start_rebuild();
        self.rebuilder.changed.open();
        self.tell();
    }

    /// Cancels the copy to the drive `member`, which becomes blank. `None` if there is no copy to that drive.
    pub fn call_off(&self, member: &MemberName) -> Result<Option<Failed>> {
        let MemberName::Path { path, .. } = member else { return Ok(None) };
        let copied = self.rebuilder.copied.borrow().clone();
        let Some(copied) = copied.filter(|copied| Path::new(&copied.drive) == path) else { return Ok(None) };
        self.array.cancel_replacement()?;
        let array = self.array.status().name;
        log(&format!("'{array}': the copy of member {} to {} is called off", copied.role, copied.drive));
        Ok(Some(Failed { array, role: copied.role, drive: copied.drive, called_off: true }))
    }

    /// Logs that a copy stops with the daemon.
    pub fn log_copy_given_up(&self) {
        if let Some(Copied { role, drive }) = &*self.rebuilder.copied.borrow() {
            let array = self.array.status().name;
            log(&format!(
                "'{array}': the copy of member {role} to {drive} stops here and goes on when the array is started again"
            ));
        }
    }

    /// Replaces the member in `role` by `drive`, and holds that instead of the old one.
    async fn place(
        self: &Rc<Self>,
        role: usize,
        drive: OpenDrive,
        now: bool,
        placing: &Placing,
    ) -> Result<u64> {
        let (rebuilder, path) = (&self.rebuilder, drive.path.clone());
        let members = self.array.status().members.len();
        assert!(role < members, "member {role} is replaced, of {members} members");
        let copied = rebuilder.copied.borrow().clone();
        assert!(
            rebuilder.replacing.get() && copied.is_none(),
            "member {role} is replaced beside another replacement: {copied:?}"
        );
        let old = self.array.status().members.get(role).map(|member| PathBuf::from(&member.drive));
        let started = Instant::now();
        // Held from now on and listed among the drives, so that writes to it are counted.
        let is_new = self.held(&path).is_none();
        if is_new {
            self.drives.borrow_mut().push(drive.clone());
        }
        let progress = |progress: Progress| {
            let drive = path.display().to_string();
            *rebuilder.copied.borrow_mut() = Some(Copied { role: role as u32, drive });
            rebuilder.advance(started, progress);
        };
        let note = |note: &str| placing.notes.borrow_mut().push(note.to_string());
        let result = repair::replace(&self.array, role, drive.drive(), now, &progress, &note).await;
        if rebuilder.copied.take().is_some() {
            rebuilder.running.set(None);
        }
        let name = self.array.status().name;
        match &result {
            Ok(_) => log(&format!("'{name}': {} is member {role} now", path.display())),
            Err(error) => log(&format!("'{name}': {} is not member {role}: {error}", path.display())),
        }
        if result.is_err() && is_new {
            self.drives.borrow_mut().retain(|held| held.path != path);
        }
        let replaced = result?;
        // Not judged by the bytes: the copy of an empty array has none.
        let is_given_back =
            |held: &OpenDrive| replaced != Replaced::Attached && Some(&held.path) == old.as_ref();
        let mut drives = self.drives.borrow_mut();
        drives.retain(|held| held.path != path && !is_given_back(held));
        drives.push(drive);
        let copied_bytes = repair::copied_bytes(replaced);
        rebuilder.count(copied_bytes);
        Ok(copied_bytes)
    }

    /// Waits for the end of a replacement, and reports the progress to the client.
    async fn watch_placing(&self, placing: &Placing, connection: &Connection) -> Result<u64> {
        let mut told: Option<Instant> = None;
        loop {
            let changed = self.rebuilder.changed.wait();
            if let Some(result) = placing.result.take() {
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
