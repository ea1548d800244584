//! Error message of a failed assertion.
//!
//! The process ends at once, with exit code 101, and changes nothing any more: its state is wrong. The next one
//! recovers as from a killed process.

use super::output::in_one_line;
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::Write,
    panic::{self, PanicHookInfo},
    thread,
};

/// Installs the panic hook that explains a failed assertion of this thread on standard error. Those of
/// other threads are left to the usual hook.
pub fn explain() {
    let (own, usual) = (thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != own {
            return usual(info);
        }
        // If standard error is closed there is nowhere to report that.
        let _ = writeln!(std::io::stderr().lock(), "{}", message(info));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let _ = writeln!(std::io::stderr().lock(), "{trace}");
        }
    }));
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let formatted = payload.downcast_ref::<String>().map(String::as_str);
    let violated = formatted.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    let place = info.location().map(|at| format!(" ({}, line {})", at.file(), at.line())).unwrap_or_default();
    in_one_line(&format!(
        "zoneraid: internal error: an invariant does not hold: {violated}{place}: this process ends as if it had been \
         killed; start the array again, and report this message as a defect of zoneraid"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set in the process that is to end.
    const CHILD: &str = "ZONERAID_TEST_CRASH";

    #[test]
    fn failed_assertion_names_invariant_and_next_step() {
        if std::env::var_os(CHILD).is_some() {
            explain();
            let (listed, free) = (3, 4);
            let ended = panic::catch_unwind(|| assert_eq!(listed, free, "listed free zones, and free zones"));
            std::process::exit(ended.is_err().into());
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args([
            "process::crash::tests::failed_assertion_names_invariant_and_next_step",
            "--exact",
            "--nocapture",
        ]);
        let ran = again.env(CHILD, "1").env_remove("RUST_BACKTRACE").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("zoneraid: ")).collect();
        assert_eq!((ran.status.code(), lines.len()), (Some(1), 1), "{said}");
        let invariant = ["listed free zones, and free zones", "left: 3", "right: 4", "crash.rs"];
        for part in invariant.into_iter().chain(["internal error", "start the array again"]) {
            assert!(lines[0].contains(part), "{part}: {said}");
        }
    }
}
