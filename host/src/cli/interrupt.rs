//! The message of a command that a signal ends: how far it has come, and how to continue.
//!
//! Without an explanation set by [`explain`] the process dies silently. With one it prints that first, and then dies by
//! the same signal, so that the shell reports it.

use crate::process::{output::note, proc_status};
use anyhow::{Context, Result};
use std::{
    io::Read,
    os::unix::net::UnixStream,
    sync::{Mutex, Once, PoisonError},
    thread,
};

/// The signals that end a command.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Produces the message when it is needed.
type Explanation = Box<dyn Fn() -> String + Send>;

static EXPLANATION: Mutex<Option<Explanation>> = Mutex::new(None);

/// Sets the message, printed after "interrupted; ", for a signal that ends the process from now on.
pub fn explain(sentence: impl Fn() -> String + Send + 'static) {
    static WATCHED: Once = Once::new();
    *EXPLANATION.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(sentence));
    // If this fails, a signal ends the process silently as before.
    WATCHED.call_once(|| SIGNALS.into_iter().for_each(|signal| _ = watch(signal)));
}

/// Clears the message: the command is done.
pub fn forget() {
    EXPLANATION.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// Waits for a signal on a separate thread. A signal that is ignored, as by `nohup`, stays ignored.
fn watch(signal: i32) -> Result<()> {
    if proc_status::ignores(signal) {
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
