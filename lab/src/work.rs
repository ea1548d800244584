//! Independent points on several threads, with a progress bar.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// All progress bars: points may have points of their own.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Prints a line above the bars.
pub fn line(text: &str) {
    BARS.suspend(|| println!("{text}"));
}

/// Runs `one` for each of `points` on as many threads as there are processors; the results are in the
/// order of the points. Shows progress on a terminal if it takes more than two seconds.
///
/// # Errors
/// The first error; points that have not begun are left out then.
pub fn each<P: Sync, R: Send>(
    what: &str,
    points: &[P],
    one: impl Fn(&P) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, anyhow::Result<R>)>> = Mutex::new(Vec::new());
    let started = Instant::now();
    let bar = bar(what, points.len());
    let work = || {
        while let Some((index, point)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            points.get(index).map(|point| (index, point))
        } {
            let result = one(point);
            if result.is_err() {
                next.store(points.len(), Ordering::Relaxed);
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, result));
            if started.elapsed() > Duration::from_secs(2) {
                bar.set_position(done.len() as u64);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(points.len()) {
            scope.spawn(work);
        }
        work();
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn bar(what: &str, len: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{msg} {bar:40} {pos}/{len} ({percent} %), {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    BARS.add(ProgressBar::new(len as u64).with_style(style).with_message(what.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_results_are_ordered_and_errors_end_work() {
        let points: Vec<u32> = (0..50).collect();
        assert_eq!(each("", &points, |point| Ok(point * 2)).unwrap()[49], 98);
        let failed = each("", &points, |point| {
            anyhow::ensure!(*point != 20, "not 20");
            Ok(())
        });
        assert_eq!(failed.unwrap_err().to_string(), "not 20");
    }
}
