//! Rebuilds in the background: one at a time, whoever has asked for it.

use super::{Answer, Connection, Daemon, log};
use crate::{
    cli::output::quoted,
    repair::{self, MemberName},
    report::{Rebuild, Rebuilt},
    size::show,
};
use anyhow::{Result, anyhow, bail, ensure};
use engine::{
    array::{self, MemberState, Progress},
    runtime::Gate,
};
use std::{
    cell::{Cell, RefCell},
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

/// Time between two lines of progress to a client.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// The rebuild that is going on, and how the last one ended.
#[derive(Default)]
pub struct Rebuilder {
    running: Cell<Option<(Instant, Progress)>>,
    last: RefCell<Option<Result<array::Rebuilt, String>>>,
    changed: Gate,
    /// Whether there may be more to rebuild than when the rebuild began.
    again: Cell<bool>,
    /// Whether a drive is being put in a place.
    replacing: Cell<bool>,
}

/// The right to put a drive in a place: only one at a time.
struct Replacement<'a>(&'a Cell<bool>);

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Rebuilder {
    /// How far the rebuild is; `None` if there is none.
    pub fn progress(&self) -> Option<Rebuild> {
        let (started, progress) = self.running.get()?;
        let seconds = started.elapsed().as_secs_f64();
        let Progress { done_bytes, total_bytes } = progress;
        let bytes_per_second = if seconds > 0.0 { (done_bytes as f64 / seconds) as u64 } else { 0 };
        let left = total_bytes.saturating_sub(done_bytes);
        Some(Rebuild {
            done_bytes,
            total_bytes,
            bytes_per_second,
            seconds_left: (bytes_per_second > 0).then(|| left.div_ceil(bytes_per_second)),
        })
    }
}

impl Daemon {
    /// Rebuilds in the background whatever is lacking.
    pub fn start_rebuild(self: &Rc<Self>) {
        let rebuilder = &self.rebuilder;
        if rebuilder.running.get().is_some() {
            rebuilder.again.set(true);
            return;
        }
        if !self.array.status().members.iter().any(|m| m.state == MemberState::Rebuilding) {
            return;
        }
        let started = Instant::now();
        rebuilder.running.set(Some((started, Progress::default())));
        let daemon = self.clone();
        self.reactor.runtime().spawn(async move {
            let rebuilder = &daemon.rebuilder;
            let result = daemon
                .array
                .rebuild(&|progress| {
                    rebuilder.running.set(Some((started, progress)));
                    rebuilder.changed.open();
                })
                .await
                .map_err(|error| error.to_string());
            let name = daemon.array.status().name;
            match &result {
                Ok(done) => {
                    log(&format!("'{name}': {} rebuilt", show(done.bytes)));
                    let losses = Rebuilt::of(name.clone(), None, None, done).losses();
                    losses.lines().for_each(|loss| log(&format!("'{name}': {loss}")));
                }
                Err(error) => log(&format!("'{name}': the rebuild stopped: {error}")),
            }
            rebuilder.running.set(None);
            *rebuilder.last.borrow_mut() = Some(result);
            if rebuilder.again.take() {
                daemon.start_rebuild();
            }
            rebuilder.changed.open();
            daemon.tell();
        });
    }

    /// Waits for the end of the rebuild, and tells the client how far it is. Gives what it came to.
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
        if let Some(role) = status.members.iter().position(|member| member.state == MemberState::Out) {
            let name = quoted(&status.name);
            bail!("member {role} is out; give the array a drive with: zoneraid replace {name} {role} NEW");
        }
        *self.rebuilder.last.borrow_mut() = None;
        self.start_rebuild();
        let done = self.watch_rebuild(connection).await?;
        Ok(Rebuilt::of(status.name, None, None, &done))
    }

    pub async fn replace(
        self: &Rc<Self>,
        member: &MemberName,
        path: &Path,
        yes: bool,
        connection: &Connection,
    ) -> Result<Rebuilt> {
        let replacing = &self.rebuilder.replacing;
        ensure!(!replacing.replace(true), "another drive is being put in its place; try again");
        let replacement = Replacement(replacing);
        let role = self.role(member)?;
        let drive = self.take_new(path).await?;
        if let Some(what) = drive.describe() {
            ensure!(yes, "{}: {what}; --yes destroys that", path.display());
        }
        let notes = RefCell::new(Vec::new());
        let note = |note: &str| notes.borrow_mut().push(note.to_string());
        repair::attach(&self.array, role, drive.drive(), &note).await?;
        let name = self.array.status().name;
        log(&format!("'{name}': {} is member {role} now", path.display()));
        {
            let mut drives = self.drives.borrow_mut();
            drives.retain(|held| held.path != drive.path);
            drives.push(drive);
        }
        drop(replacement);
        self.start_rebuild();
        for note in notes.take() {
            connection.send(Answer::Note(note)).await?;
        }
        let done = self.watch_rebuild(connection).await?;
        let drive = Some(path.display().to_string());
        Ok(Rebuilt::of(name, Some(role as u32), drive, &done))
    }
}
