//! `start`, `serve` and `stop`: the daemon of an array.

use super::args::Start;
use crate::{
    control::{
        client::Client,
        name::ArrayName,
        protocol::{NamespaceDevice, Request, StopReport},
    },
    daemon::{self, Signals},
    drive::label::Label,
    members::{FoundArray, StartTerms, find_running, runner},
    process::{
        machine::Owner,
        output::{self, HEALTHY, Output, quoted},
        run::{self, Lock},
        size::show,
    },
    report::{State, in_a_row, is_or_are, members_named, so_many_zones},
    serve::{
        ack_log::AckLogContents,
        nbd::NbdAddress,
        ublk::{self, Orphan},
    },
};
use anyhow::{Result, bail, ensure};
use engine::{
    array::{ArrayStatus, MemberState, MemberStatus},
    raid::error::Note,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Interval at which missing members are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct StartOutput {
    array: String,
    uuid: String,
    state: State,
    pid: u32,
    block_device: Option<PathBuf>,
    /// The symbolic link to the block device, by the name of its array.
    link: Option<PathBuf>,
    /// The block devices of its namespaces.
    namespaces: Vec<NamespaceDevice>,
}

#[derive(Serialize)]
struct ServeOutput {
    array: String,
    uuid: String,
    state: State,
    pid: u32,
    /// URI for NBD clients.
    uri: String,
    size_bytes: u64,
}

/// An array that is ready to be started.
struct Ready {
    /// Held until the daemon has ended.
    lock: Lock,
    found: FoundArray,
    terms: StartTerms,
    directory: PathBuf,
    left: Option<AckLogContents>,
    /// Block devices left by a dead daemon.
    devices: Vec<Orphan>,
}

/// Finds the array, claims its drives, and checks everything that can be checked before anything is written.
fn prepare(output: Output, options: &Start) -> Result<Ready> {
    let name = &options.array;
    refuse_if_running(name)?;
    let found = find(output, options)?;
    for (path, error) in &found.damaged {
        output.note(&format!("{}: {error}; continuing without it", path.display()));
    }
    if options.complete {
        refuse_unless_complete(&found)?;
    }
    // --force takes effect only if the array cannot be assembled without it.
    let force = options.force && found.inspect().is_err();
    let Start { read_only, give_up, map_memory, .. } = *options;
    let terms = StartTerms { read_only, force, give_up, map_memory };
    note_unless_own(output, &found);
    let uuid = found.label.uuid;
    if let Some(ack_log) = found.left_by_owner() {
        bail!(
            "{0} is the acknowledgement log of another user's daemon of '{1}': start the array as that user, \
             or remove {0} to start as after a power cut",
            ack_log.display(),
            found.label.name
        );
    }
    let directory = run::directory(&uuid);
    let lock = lock(&directory, &found.label)?;
    let ack_log = run::ack_log_path(&directory, &uuid);
    let left = AckLogContents::read(&ack_log, &uuid)?;
    // Before anything is written: on a kernel without ublk the start fails here.
    let devices = found.reactor.wait(ublk::find(&found.reactor, &uuid))??;
    ensure!(
        devices.is_empty() || left.is_some(),
        "the block device of '{}' exists, but its acknowledgement log {} is missing: reboot, or end the users \
         of /dev/ublkb{} and remove the device",
        found.label.name,
        ack_log.display(),
        devices.first().map(|orphan| orphan.id).unwrap_or_default()
    );
    ensure!(
        devices.is_empty() || !terms.read_only,
        "the block device of '{}' is in use and waits for its daemon: start the array without --read-only",
        found.label.name
    );
    Ok(Ready { lock, found, terms, directory, left, devices })
}

pub fn start(output: Output, options: Start) -> Result<u8> {
    let Ready { lock: _lock, found, terms, directory, left, devices } = prepare(output, &options)?;
    let daemon = daemon::start(found, &directory, left.as_ref(), terms)?;
    let signals = Signals::new()?;
    if let Err(error) = daemon::serve_block_devices(&daemon, &devices, left) {
        daemon.give_up();
        return Err(error);
    }
    daemon::end_on(&daemon, signals)?;
    let (about, status) = (daemon::about(&daemon), daemon::status(&daemon));
    if terms.force {
        output.note(&forced(&daemon.array.status()));
    }
    daemon.losses().iter().for_each(|loss| output.note(loss));
    let started = StartOutput {
        array: about.name,
        uuid: about.uuid,
        state: status.state,
        pid: about.pid,
        block_device: about.block_device,
        link: about.link,
        namespaces: about.namespaces,
    };
    output.print(&started, |started| {
        let own = started.link.as_ref().or(started.block_device.as_ref());
        let others =
            started.namespaces.iter().map(|shown| shown.link.as_ref().unwrap_or(&shown.block_device));
        let devices: Vec<String> =
            own.into_iter().chain(others).map(|path| path.display().to_string()).collect();
        let device = if devices.is_empty() { String::new() } else { format!(" as {}", in_a_row(&devices)) };
        let wrong = if started.state == State::Healthy { "" } else { &format!(": {}", status.status) };
        format!("'{}' runs{device}, {}{wrong}\n", started.array, started.state)
    })?;
    daemon.run()?;
    Ok(HEALTHY)
}

pub fn serve(output: Output, options: Start, place: &NbdAddress) -> Result<u8> {
    let Ready { lock: _lock, found, terms, directory, left, devices } = prepare(output, &options)?;
    ensure!(
        devices.is_empty(),
        "the block device of '{}' is in use and waits for its daemon: zoneraid start {}",
        found.label.name,
        quoted(&found.called)
    );
    let daemon = daemon::start(found, &directory, left.as_ref(), terms)?;
    let signals = Signals::new()?;
    if let Err(error) = daemon::serve_nbd(&daemon, place, left) {
        daemon.give_up();
        return Err(error);
    }
    daemon::end_on(&daemon, signals)?;
    if terms.force {
        output.note(&forced(&daemon.array.status()));
    }
    daemon.losses().iter().for_each(|loss| output.note(loss));
    let status = daemon::status(&daemon);
    let served = ServeOutput {
        array: status.name,
        uuid: status.uuid,
        state: status.state,
        pid: std::process::id(),
        uri: status.nbd.unwrap_or_default(),
        size_bytes: status.volume.map_or(0, |volume| volume.size_bytes),
    };
    output.print(&served, |served| {
        let wrong = if served.state == State::Healthy { "" } else { &format!(": {}", status.status) };
        let size = match &status.volumes {
            Some(volumes) => format!("{} volumes", volumes.len()),
            None => show(served.size_bytes),
        };
        format!("'{}' serves {size} at {}, {}{wrong}\n", served.array, served.uri, served.state)
    })?;
    daemon.run()?;
    Ok(HEALTHY)
}

/// The warning after a forced start: stale members, and zones that are offline without the missing ones.
fn forced(array: &ArrayStatus) -> String {
    let of = |which: fn(&MemberStatus) -> bool| {
        let members = array.members.iter().enumerate().filter(|(_, member)| which(member));
        members.map(|(role, _)| role).collect::<Vec<_>>()
    };
    let (taken, missing) = (of(|m| m.note == Note::TakenBack { by_force: true }), of(|m| m.drive.is_empty()));
    let offline = so_many_zones(array.offline.len());
    let (are, stale) = (is_or_are(array.offline.len()), is_or_are(taken.len()));
    let (its, it) = if taken.len() == 1 { ("its", "it") } else { ("their", "they") };
    let (taken, missing) = (members_named(&taken), members_named(&missing));
    let lacks = match array.read_only {
        true => String::new(),
        false => format!("; new writes do not reach the drive of {missing}"),
    };
    format!(
        "forced start: {taken} {stale} stale, and only {its} zones that were full when {it} went out are used; \
         {offline} {are} offline without {missing}{lacks}"
    )
}

/// Refuses an array of which a member is out.
fn refuse_unless_complete(found: &FoundArray) -> Result<()> {
    let status = found.inspect()?.status;
    let name = &status.name;
    let out = |(_, member): &(usize, &MemberStatus)| member.state == MemberState::Out;
    let out: Vec<usize> = status.members.iter().enumerate().filter(out).map(|(role, _)| role).collect();
    let notes = out.iter().map(|role| &status.members[*role].note).filter(|note| !note.is_empty());
    let notes = notes.map(Note::to_string).collect::<Vec<_>>().join("; ");
    let why = if notes.is_empty() { notes } else { format!(" ({notes})") };
    ensure!(
        out.is_empty(),
        "'{name}' was not started: --complete refuses an array without {}{why}",
        members_named(&out)
    );
    Ok(())
}

/// Prints a note if the array does not belong to this host, since then it is not started automatically here.
fn note_unless_own(output: Output, FoundArray { label, called, .. }: &FoundArray) {
    let whose = match Owner::of(&label.host) {
        Owner::This => return,
        Owner::Other => "belongs to another host",
        Owner::NoHost => "belongs to no host",
    };
    let adopt = format!("zoneraid adopt {} changes that", quoted(called));
    output.note(&format!("'{}' {whose}: it is not started automatically here; {adopt}", label.name));
}

fn refuse_if_running(name: &ArrayName) -> Result<()> {
    if let Some(client) = find_running(name)? {
        let about = &client.about;
        let device = about.block_device.as_ref();
        let device = device.map(|device| format!(" as {}", device.display())).unwrap_or_default();
        bail!("'{}' runs already{device}, by process {}", about.name, about.pid);
    }
    Ok(())
}

/// Prevents other processes from running this array, or a copy of it on other drives with the same UUID: sockets and
/// acknowledgement logs are named by the UUID.
fn lock(directory: &Path, label: &Label) -> Result<Lock> {
    if let Some(lock) = Lock::take(directory, &label.uuid)? {
        return Ok(lock);
    }
    let (name, uuid) = (&label.name, output::uuid(&label.uuid));
    let by = runner(&label.uuid).map_or("another process".into(), |user| user.to_string());
    bail!("{by} runs a copy of '{name}' on other drives: stop that first with zoneraid stop {uuid}")
}

/// Finds the members of an array and claims them; waits for missing ones first.
fn find(output: Output, options: &Start) -> Result<FoundArray> {
    let wait = Duration::from_secs(options.wait.into());
    let deadline = Instant::now() + wait;
    let mut said = false;
    loop {
        let early = Instant::now() < deadline;
        let problem = match find_now(options, early) {
            Err(error) if early => error,
            found => return found,
        };
        if !said {
            output.note(&format!("{problem:#}; waiting up to {} seconds", wait.as_secs()));
            said = true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Finds and claims the members of an array. Missing members are an error while it is `early`: within --wait.
fn find_now(options: &Start, early: bool) -> Result<FoundArray> {
    let found = FoundArray::to_read(&options.array)?.absolute()?;
    match missing(&found).filter(|_| early) {
        Some(missing) => bail!(missing),
        None if options.read_only => found.claim_to_read(),
        None => found.claim(),
    }
}

/// A message that names the missing members; members that were out before do not count.
fn missing(found: &FoundArray) -> Option<String> {
    let Label { name, members, active, .. } = &found.label;
    let there = |role: u32| found.drives.iter().any(|d| d.label().is_some_and(|label| label.role == role));
    let missing = (0..*members).filter(|role| active & (1 << role) != 0 && !there(*role));
    let missing: Vec<usize> = missing.map(|role| role as usize).collect();
    (!missing.is_empty()).then(|| format!("'{name}' lacks {}", members_named(&missing)))
}

pub fn stop(output: Output, name: &ArrayName) -> Result<u8> {
    let Some(mut client) = find_running(name)? else {
        // The array may be waiting for its next daemon.
        if let Ok(found) = FoundArray::to_look(name) {
            found.refuse_if_waited_for()?;
        }
        bail!("'{name}' does not run");
    };
    let stopped: StopReport = ask(output, &mut client, &Request::Stop)?;
    output.print(&stopped, |stopped| format!("'{}' does not run any more\n", stopped.array))?;
    Ok(HEALTHY)
}

/// Sends a request to the daemon of an array, and shows the progress of a rebuild or copy.
pub fn ask<T: DeserializeOwned>(output: Output, client: &mut Client, request: &Request) -> Result<T> {
    let bar = output.bar("rebuild", 0);
    let answer = client.ask(
        request,
        |note| bar.suspend(|| output.note(note)),
        |progress| {
            bar.set_message(if progress.copied.is_some() { "copy" } else { "rebuild" });
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        },
    );
    bar.finish_and_clear();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_output_matches_schemas() {
        let started = StartOutput {
            array: "tank".into(),
            uuid: String::new(),
            state: State::Healthy,
            pid: 1,
            block_device: None,
            link: None,
            namespaces: Vec::new(),
        };
        assert_eq!(crate::process::output::undescribed(&started, "start.json"), [""; 0]);
        let (uri, pid, size_bytes) = (String::new(), 1, 0);
        let served = ServeOutput {
            array: "tank".into(),
            uuid: String::new(),
            state: State::Healthy,
            pid,
            uri,
            size_bytes,
        };
        assert_eq!(crate::process::output::undescribed(&served, "serve.json"), [""; 0]);
        let stopped = StopReport { array: "tank".into(), uuid: String::new() };
        assert_eq!(crate::process::output::undescribed(&stopped, "stop.json"), [""; 0]);
    }
}
