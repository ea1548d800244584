//! Runs a rebuild or a copy as a task, which comes to an orderly end if the future that waits for it is dropped.
//!
//! The future of the caller can be dropped at any moment: with commands in flight, with a zone paused, or while a new
//! drive takes over. A job that ended there would leave the zone paused or the takeover half done, and its commands in
//! flight, carried out late, could overwrite newer data. So the job is a task, and the caller's future waits for its
//! result. If that future is dropped, the task ends at the next point at which a reset of a zone could stop it; the next
//! job begins after that.

use crate::{
    raid::{parts::Raid, status::Progress},
    runtime::Gate,
};
use std::{cell::Cell, future::poll_fn, pin::pin, rc::Rc};

/// What a job tells the future that waits for it.
#[derive(Default)]
struct News {
    /// The first and the last report that the caller has not got yet.
    progress: [Cell<Option<Progress>>; 2],
    /// The job has ended, and another one may have begun.
    ended: Cell<bool>,
    reported: Gate,
}

/// The end of a job's task, also of one that is dropped with the runtime's tasks.
struct JobEnd(Rc<News>);

impl Drop for JobEnd {
    fn drop(&mut self) {
        self.0.ended.set(true);
    }
}

/// The future that waits for a job; if it is dropped before the job has ended, the job is given up.
struct Waiter<'a> {
    raid: &'a Raid,
    news: Rc<News>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.news.ended.get() {
            return;
        }
        let raid = self.raid;
        raid.background.give_up();
        // A drive that is taking over cannot be let go.
        if !raid.drain.has_begun() {
            raid.members.let_mirror_go();
        }
        raid.zones.changed.open();
        raid.zones.wake();
    }
}

/// Waits until a job that was given up has ended. Checks of members and drives come after this, since the job may have
/// changed them.
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
    let news = Rc::new(News::default());
    let told = news.clone();
    let report = Box::new(move |progress| {
        let is_first = told.progress[0].get().is_none();
        told.progress[usize::from(!is_first)].set(Some(progress));
        told.reported.open();
    });
    let (job, end) = (job(raid.clone(), report), JobEnd(news.clone()));
    let mut whole = pin!(raid.runtime.run_whole(async move {
        let _end = end;
        job.await
    }));
    let _waiter = Waiter { raid, news: news.clone() };
    poll_fn(|context| {
        let result = whole.as_mut().poll(context);
        news.progress.iter().filter_map(Cell::take).for_each(progress);
        if result.is_pending() {
            // Only to be woken by the next report.
            _ = pin!(news.reported.wait()).poll(context);
        }
        result
    })
    .await
}
