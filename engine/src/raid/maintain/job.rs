//! Runs a rebuild or a copy as a task, which comes to an orderly end if the future that waits for it is dropped.
//!
//! The future of the caller can be dropped at any moment: with commands in flight, with a zone paused, or while a new
//! drive takes over. Work that stopped there would leave that behind, and a command that is carried out late would
//! overwrite what is written in the meantime. So the future only waits for the task; if it is dropped, the task stops
//! where it would stop for a reset, and the next job begins when it has ended.

use crate::{
    raid::{parts::Raid, status::Progress},
    runtime::Gate,
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// What a job tells the future that waits for it.
struct Outcome<T> {
    progress: Cell<Option<Progress>>,
    result: RefCell<Option<T>>,
    changed: Gate,
}

/// The future that waits for the job; if it is dropped before the job has ended, the job is given up.
struct Waiter<'a>(&'a Raid);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let raid = self.0;
        // A job that was begun ends after its waiter only if it is given up.
        if raid.background.give_up() && !raid.drain.has_begun() {
            raid.members.let_mirror_go();
        }
        raid.zones.changed.open();
        raid.zones.wake();
    }
}

/// Waits until a job that was given up has ended.
pub async fn given_up_ended(raid: &Raid) {
    while raid.background.is_given_up() {
        raid.zones.changed.wait().await;
    }
}

/// Runs `job`, for which [`super::background::BackgroundJob::begin`] has been called and which ends that, as a task,
/// and waits for its result. `progress` is called with its progress; reports that follow each other closely are merged.
pub async fn run<T: 'static, F: Future<Output = T> + 'static>(
    raid: &Rc<Raid>,
    progress: &dyn Fn(Progress),
    job: impl FnOnce(Rc<Raid>, Box<dyn Fn(Progress)>) -> F,
) -> T {
    let outcome =
        Rc::new(Outcome { progress: Cell::new(None), result: RefCell::new(None), changed: Gate::default() });
    let told = outcome.clone();
    let report = Box::new(move |progress| {
        told.progress.set(Some(progress));
        told.changed.open();
    });
    let (job, done) = (job(raid.clone(), report), outcome.clone());
    raid.runtime.spawn(async move {
        let result = job.await;
        done.result.replace(Some(result));
        done.changed.open();
    });
    let _waiter = Waiter(raid);
    loop {
        let changed = outcome.changed.wait();
        if let Some(now) = outcome.progress.take() {
            progress(now);
        }
        if let Some(result) = outcome.result.take() {
            return result;
        }
        changed.await;
    }
}
