//! `scrub`: starts, pauses and stops the scrub of a running array, and shows it and earlier ones.

use super::{args::ScrubCommand, daemon::ask, interrupt};
use crate::{
    control::{
        client::{self, Client},
        name::ArrayName,
        protocol::{Request, ScrubRequest},
    },
    members::find_running,
    process::output::{DEGRADED, HEALTHY, Output, quoted},
    report::scrub::{ScrubState, ScrubStatus},
};
use anyhow::{Context, Result};
use serde::Serialize;
use std::{thread::sleep, time::Duration};

/// Interval at which a command that waits looks at the scrub.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The scrubs of all running arrays.
#[derive(Serialize)]
struct AllScrubs {
    arrays: Vec<ScrubStatus>,
}

pub fn run(output: Output, command: ScrubCommand) -> Result<u8> {
    let (array, request) = match command {
        ScrubCommand::Start { all: true, since_last, rate, .. } => {
            return start_all(output, since_last, rate);
        }
        ScrubCommand::Start { array, since_last, rate, wait, .. } => {
            let array = array.context("ARRAY is missing: zoneraid scrub start ARRAY")?;
            if wait {
                return start_and_wait(output, &array, since_last, rate);
            }
            (array, ScrubRequest::Start { since_last, rate })
        }
        ScrubCommand::Pause { array } => (array, ScrubRequest::Pause),
        ScrubCommand::Stop { array } => (array, ScrubRequest::Stop),
        ScrubCommand::Status { array } => (array, ScrubRequest::Status),
    };
    let mut client = running(&array)?;
    let status: ScrubStatus = ask(output, &mut client, &Request::Scrub(request))?;
    show(output, &status)
}

/// The daemon of a running array.
fn running(array: &ArrayName) -> Result<Client> {
    let called = quoted(&array.to_string());
    find_running(array)?.with_context(|| {
        format!("'{array}' does not run, and only a running array is scrubbed: start it with zoneraid start {called}")
    })
}

fn show(output: Output, status: &ScrubStatus) -> Result<u8> {
    output.print(status, ScrubStatus::text)?;
    Ok(if status.scrub.unrecoverable_bytes > 0 { DEGRADED } else { HEALTHY })
}

fn start_and_wait(output: Output, array: &ArrayName, since_last: bool, rate: Option<u64>) -> Result<u8> {
    let mut client = running(array)?;
    let called = quoted(&array.to_string());
    interrupt::explain(move || {
        format!("the daemon of the array continues the scrub; progress: zoneraid scrub status {called}")
    });
    let mut request = Request::Scrub(ScrubRequest::Start { since_last, rate });
    let bar = output.bar("scrub", 0);
    let status = loop {
        let status: ScrubStatus = client.ask(&request, |note| output.note(note), |_| ())?;
        bar.set_length(status.scrub.total_bytes);
        bar.set_position(status.scrub.scanned_bytes);
        if status.scrub.state != ScrubState::Running {
            break status;
        }
        request = Request::Scrub(ScrubRequest::Status);
        sleep(LOOK_EVERY);
    };
    bar.finish_and_clear();
    interrupt::forget();
    show(output, &status)
}

fn start_all(output: Output, since_last: bool, rate: Option<u64>) -> Result<u8> {
    let (mut arrays, mut failed) = (Vec::new(), false);
    for mut client in client::running()? {
        let request = Request::Scrub(ScrubRequest::Start { since_last, rate });
        match ask::<ScrubStatus>(output, &mut client, &request) {
            Ok(status) => arrays.push(status),
            Err(error) => {
                failed = true;
                output.note(&format!("'{}' is not scrubbed: {error:#}", client.about.name));
            }
        }
    }
    output.print(&AllScrubs { arrays }, |all| {
        let lines =
            all.arrays.iter().map(|status| format!("{}: scrub {}\n", status.array, status.scrub.line()));
        if all.arrays.is_empty() { "no array runs\n".into() } else { lines.collect() }
    })?;
    Ok(if failed { DEGRADED } else { HEALTHY })
}
