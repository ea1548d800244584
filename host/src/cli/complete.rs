//! Shell completion: commands and options, and the names of arrays, members, drives and zones.
//!
//! The shell's script runs this program, with [`VARIABLE`] set, whenever the completion key is pressed. So it is quick:
//! candidates that are not found within [`PATIENCE`] are not offered. It only reads, locks nothing, and prints no
//! errors, which would disturb the typing.

use super::{manual, status, zone};
use crate::{
    control::{client, name::ArrayName},
    drive::label::{Content, Filled, Label},
    members::Scan,
    process::{
        output::{HEALTHY, Output, hush, quoted, uuid},
        size::show,
    },
    reactor::Reactor,
    report::{self, Zones},
};
use anyhow::{Context, Result, ensure};
use clap::Command;
use clap_complete::{
    CompleteEnv, Shell,
    engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter},
    env::Shells,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::Path,
    sync::mpsc::{self, Sender},
    time::{Duration, Instant},
};

/// Environment variable with the shell for which a word is to be completed.
const VARIABLE: &str = "ZONERAID_COMPLETE";

/// Environment variable with the index of the word to complete, set by the scripts.
const INDEX_VARIABLE: &str = "_CLAP_COMPLETE_INDEX";

/// Most time for a completion.
const PATIENCE: Duration = Duration::from_millis(300);

/// Most time for one drive.
const PATIENCE_WITH_A_DRIVE: Duration = Duration::from_millis(100);

/// A candidate and its description.
type Offer = (String, String);

/// Sends candidates as they are found.
type Search = fn(&Sender<Offer>) -> Result<()>;

/// Prints the completion script for a shell.
pub fn script(output: Output, shell: Shell) -> Result<u8> {
    let shells = Shells::builtins();
    let shell = shells.completer(&shell.to_string()).context("there is no such shell")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "zoneraid", "zoneraid", "zoneraid", &mut script)?;
    output.raw(&String::from_utf8_lossy(&script))?;
    Ok(HEALTHY)
}

/// Completes the word on the command line, if the process was started for that; `false` otherwise.
pub fn answer() -> bool {
    if std::env::var_os(VARIABLE).is_none_or(|shell| shell.is_empty()) {
        return false;
    }
    hush();
    let command = || with_completers(manual::command(), "");
    let complete = CompleteEnv::with_factory(command).var(VARIABLE).bin("zoneraid").completer("zoneraid");
    let directory = std::env::current_dir().ok();
    // Errors are not shown while a command is typed.
    let _ = complete.try_complete(std::env::args_os(), directory.as_deref());
    true
}

/// Adds completers to the arguments of all commands, by their names.
fn with_completers(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_string()).collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |inner| with_completers(inner, path.trim_start()))
    });
    command.mut_args(|argument| match completer(path, argument.get_id().as_str()) {
        Some(completer) => argument.add(completer),
        None => argument,
    })
}

fn completer(path: &str, argument: &str) -> Option<ArgValueCompleter> {
    Some(match (path, argument) {
        (_, "array") => ArgValueCompleter::new(Paths(arrays)),
        ("replace", "drives") => ArgValueCompleter::new(ReplaceArguments),
        ("create", "drives") => ArgValueCompleter::new(Paths(blank_drives)),
        ("examine", "drive") | ("wipe", "drives") => ArgValueCompleter::new(Paths(all_drives)),
        (_, "member") => ArgValueCompleter::new(Paths(members)),
        (path, "zone") if path.starts_with("zone ") => ArgValueCompleter::new(Words(zones)),
        _ => return None,
    })
}

/// Completes the words that a function returns.
struct Words(fn() -> Vec<Offer>);

/// As [`Words`], and paths.
struct Paths(fn() -> Vec<Offer>);

/// `[ARRAY] OLD NEW`
struct ReplaceArguments;

impl ValueCompleter for Words {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let begun = current.to_string_lossy();
        let offers = (self.0)().into_iter().filter(|(word, _)| word.starts_with(&*begun));
        offers.map(|(word, what)| CompletionCandidate::new(word).help(Some(what.into()))).collect()
    }
}

impl ValueCompleter for Paths {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let mut offers = Words(self.0).complete(current);
        let paths = PathCompleter::any().complete(current);
        let known: Vec<OsString> = offers.iter().map(|offer| offer.get_value().to_os_string()).collect();
        offers.extend(paths.into_iter().filter(|path| !known.iter().any(|word| word == path.get_value())));
        offers
    }
}

impl ValueCompleter for ReplaceArguments {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let offers: fn() -> Vec<Offer> = match typed().len() {
            ..=1 => arrays,
            2 => members_or_blank_drives,
            _ => blank_drives,
        };
        Paths(offers).complete(current)
    }
}

/// The words before the one to complete, without options and the name of the program.
fn typed() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(2).collect();
    let index = std::env::var(INDEX_VARIABLE).ok().and_then(|index| index.parse::<usize>().ok());
    let before = index.unwrap_or(words.len()).saturating_sub(1).min(words.len());
    let is_word = |word: &&OsString| !word.as_encoded_bytes().starts_with(b"-");
    words[..before].iter().filter(is_word).cloned().collect()
}

/// The candidates that several searches find within `PATIENCE`.
fn within_patience(searches: Vec<Search>) -> Vec<Offer> {
    let deadline = Instant::now() + PATIENCE;
    let (sender, offers) = mpsc::channel();
    for search in searches {
        let sender = sender.clone();
        // A search that takes longer ends with the process.
        let _ = std::thread::Builder::new().spawn(move || search(&sender));
    }
    drop(sender);
    let mut found = Vec::new();
    while let Ok(offer) = offers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if !found.contains(&offer) {
            found.push(offer);
        }
    }
    found
}

/// Names of arrays, or their UUIDs if the name would have to be quoted or is ambiguous.
fn arrays() -> Vec<Offer> {
    let running: Search = |found| {
        for client in client::running()? {
            found.send((client.about.uuid, client.about.name))?;
        }
        Ok(())
    };
    let on_drives: Search = |found| {
        for scan in Scan::everywhere(&Reactor::default(), PATIENCE_WITH_A_DRIVE)? {
            for label in scan.arrays() {
                found.send((uuid(&label.uuid), label.name.clone()))?;
            }
        }
        Ok(())
    };
    let names: BTreeMap<String, String> = within_patience(vec![running, on_drives]).into_iter().collect();
    let offer = |(id, name): (&String, &String)| match quoted(name) == *name {
        true if names.values().filter(|other| *other == name).count() == 1 => {
            (name.clone(), format!("array {id}"))
        }
        _ => (id.clone(), format!("array '{name}'")),
    };
    names.iter().map(offer).collect()
}

fn drives(found: &Sender<Offer>, wanted: fn(&Content) -> bool) -> Result<()> {
    for scan in Scan::everywhere(&Reactor::default(), PATIENCE_WITH_A_DRIVE)? {
        for drive in scan.drives.iter().filter(|drive| wanted(&drive.content)) {
            let content = match &drive.content {
                Content::Blank => "blank".into(),
                Content::Member(Label { role, name, .. }) => format!("member {role} of '{name}'"),
                Content::Filled(Filled { role, .. }) => format!("unfinished copy of member {role}"),
                Content::Other(_) => "not blank".to_string(),
            };
            let path = drive.path.strip_prefix(".").unwrap_or(&drive.path);
            found.send((path.display().to_string(), format!("{}, {content}", show(drive.size_bytes()))))?;
        }
    }
    Ok(())
}

fn all_drives() -> Vec<Offer> {
    within_patience(vec![|found| drives(found, |_| true)])
}

fn blank_drives() -> Vec<Offer> {
    within_patience(vec![|found| drives(found, |content| *content == Content::Blank)])
}

/// Roles and drives of the array on the command line.
fn members() -> Vec<Offer> {
    within_patience(vec![members_of_array])
}

fn members_or_blank_drives() -> Vec<Offer> {
    within_patience(vec![members_of_array, |found| drives(found, |content| *content == Content::Blank)])
}

fn members_of_array(found: &Sender<Offer>) -> Result<()> {
    let name = typed().into_iter().nth(1).context("there is no array before it")?;
    for member in status::status_of(Output { json: false }, &ArrayName::from(name))?.members {
        let report::StatusMember { role, drive, state, .. } = member;
        found.send((role.to_string(), format!("{drive}, {state}")))?;
        if !drive.is_empty() {
            found.send((drive, format!("member {role}, {state}")))?;
        }
    }
    Ok(())
}

/// Zones of the array on the command line to which the command may apply.
fn zones() -> Vec<Offer> {
    within_patience(vec![|found| {
        let mut words = typed().into_iter().skip(1);
        let (verb, name) = words.next().zip(words.next()).context("there is no array before it")?;
        // The zones of a namespace are not offered: to report them, the namespace has to be opened, which takes too
        // long.
        let path = Path::new(&name);
        ensure!(path.exists() || path.components().count() == 1, "it is a namespace");
        let Zones { zones, .. } = zone::zones_of(Output { json: false }, &ArrayName::from(name), None)?;
        let wanted = |zone: &&report::Zone| match verb.to_str() {
            Some("read" | "reset") => zone.condition != "empty",
            Some("write" | "finish" | "open") => {
                !["full", "read-only", "offline"].contains(&&*zone.condition)
            }
            Some("close") => zone.condition.ends_with("open"),
            _ => true,
        };
        for zone in zones.iter().filter(wanted) {
            let wp = zone.wp_bytes.map(|wp| format!(", {} written", show(wp))).unwrap_or_default();
            found.send((zone.zone.to_string(), format!("{}{wp}", zone.condition)))?;
        }
        Ok(())
    }])
}
