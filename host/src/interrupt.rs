//! What a command says when a signal ends it: what has been done, and how to go on.
//!
//! Without a word from [`explain`] the process dies in silence. With one it dies all the same, by the same signal, so
//! that a shell sees why.

use crate::output::note;
use anyhow::{Context, Result};
use std::{
    io::Read,
    os::unix::net::UnixStream,
    sync::{Mutex, Once, PoisonError},
    thread,
};

/// The signals that end a command.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Makes the sentence when it is needed.
type Explanation = Box<dyn Fn() -> String + Send>;

static EXPLANATION: Mutex<Option<Explanation>> = Mutex::new(None);

/// Has the process say what `sentence` gives, after "interrupted; ", if a signal ends it from now on.
pub fn explain(sentence: impl Fn() -> String + Send + 'static) {
    static WATCHED: Once = Once::new();
    *EXPLANATION.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(sentence));
    // Without it a signal ends the process as before, in silence.
    WATCHED.call_once(|| SIGNALS.into_iter().for_each(|signal| _ = watch(signal)));
}

/// Ends the process in silence again: the command is done.
pub fn forget() {
    EXPLANATION.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// Waits for a signal on a thread of its own. One that is ignored, as by `nohup`, stays so.
fn watch(signal: i32) -> Result<()> {
    if crate::daemon::ignores(signal) {
        return Ok(());
    }
    let problem = "signals cannot be watched";
    let (mut signalled, sender) = UnixStream::pair().context(problem)?;
    let end = move || {
        if signalled.read_exact(&mut [0]).is_err() {
            return;
        }
        if let Some(explanation) = &*EXPLANATION.lock().unwrap_or_else(PoisonError::into_inner) {
            note(&format!("interrupted; {}", explanation()));
        }
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    };
    thread::Builder::new().spawn(end).context(problem)?;
    signal_hook::low_level::pipe::register(signal, sender).context(problem)?;
    Ok(())
}
