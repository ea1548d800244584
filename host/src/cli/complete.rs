//! What a shell completes: commands and options, and the arrays, members, drives and zones that there are.
//!
//! The script of the shell runs this program, with [`VARIABLE`] set, whenever somebody presses the key. So it is
//! quick: what is not known within [`PATIENCE`] is not offered. It only looks, which keeps nobody from anything,
//! and says nothing if something is wrong: whoever is typing has not asked for that.

use super::{array, manual, zone};
use crate::{
    client,
    label::{Content, Label},
    members::Scan,
    name::ArrayName,
    output::{HEALTHY, Output, hush, quoted, uuid},
    reactor::Reactor,
    report::{self, Zones},
    size::show,
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

/// The variable that says for which shell something is to be completed.
const VARIABLE: &str = "ZONERAID_COMPLETE";

/// The variable in which scripts say which word is to be completed.
const INDEX_VARIABLE: &str = "_CLAP_COMPLETE_INDEX";

/// How long somebody who has pressed a key may be kept waiting.
const PATIENCE: Duration = Duration::from_millis(300);

/// The same for one drive.
const PATIENCE_WITH_A_DRIVE: Duration = Duration::from_millis(100);

/// A word that may be meant, and what it is.
type Offer = (String, String);

/// Sends what there is as it is found.
type Search = fn(&Sender<Offer>) -> Result<()>;

/// Prints the script for a shell.
pub fn script(output: Output, shell: Shell) -> Result<u8> {
    let shells = Shells::builtins();
    let shell = shells.completer(&shell.to_string()).context("there is no such shell")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "zoneraid", "zoneraid", "zoneraid", &mut script)?;
    output.raw(&String::from_utf8_lossy(&script))?;
    Ok(HEALTHY)
}

/// Completes what is being typed, if that is what this process was started for.
pub fn answer() -> bool {
    if std::env::var_os(VARIABLE).is_none_or(|shell| shell.is_empty()) {
        return false;
    }
    hush();
    let command = || with_completers(manual::command(), "");
    let complete = CompleteEnv::with_factory(command).var(VARIABLE).bin("zoneraid").completer("zoneraid");
    let directory = std::env::current_dir().ok();
    // Nobody could do anything about an error while typing.
    let _ = complete.try_complete(std::env::args_os(), directory.as_deref());
    true
}

/// Has the arguments of all commands completed by what they are called.
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
        ("replace", "drives") => ArgValueCompleter::new(Replacement),
        ("create", "drives") => ArgValueCompleter::new(Paths(blank_drives)),
        ("examine", "drive") | ("wipe", "drives") => ArgValueCompleter::new(Paths(all_drives)),
        (_, "member") => ArgValueCompleter::new(Paths(members)),
        (path, "zone") if path.starts_with("zone ") => ArgValueCompleter::new(Words(zones)),
        _ => return None,
    })
}

/// What a function offers.
struct Words(fn() -> Vec<Offer>);

/// As [`Words`], and paths.
struct Paths(fn() -> Vec<Offer>);

/// `[ARRAY] OLD NEW`
struct Replacement;

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

impl ValueCompleter for Replacement {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let offers: fn() -> Vec<Offer> = match typed().len() {
            ..=1 => arrays,
            2 => members_or_blank_drives,
            _ => blank_drives,
        };
        Paths(offers).complete(current)
    }
}

/// The words that were typed before the one that is completed, without options and the name of the program.
fn typed() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(2).collect();
    let index = std::env::var(INDEX_VARIABLE).ok().and_then(|index| index.parse::<usize>().ok());
    let before = index.unwrap_or(words.len()).saturating_sub(1).min(words.len());
    let is_word = |word: &&OsString| !word.as_encoded_bytes().starts_with(b"-");
    words[..before].iter().filter(is_word).cloned().collect()
}

/// What several searches have found that may take too long.
fn within_patience(searches: Vec<Search>) -> Vec<Offer> {
    let deadline = Instant::now() + PATIENCE;
    let (sender, offers) = mpsc::channel();
    for search in searches {
        let sender = sender.clone();
        // Whoever is given up on ends with the process.
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

/// Arrays by their names, or by their UUIDs where the name would have to be quoted or means two of them.
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

/// The roles and drives of the array before it.
fn members() -> Vec<Offer> {
    within_patience(vec![members_of_array])
}

fn members_or_blank_drives() -> Vec<Offer> {
    within_patience(vec![members_of_array, |found| drives(found, |content| *content == Content::Blank)])
}

fn members_of_array(found: &Sender<Offer>) -> Result<()> {
    let name = typed().into_iter().nth(1).context("there is no array before it")?;
    for member in array::status_of(Output { json: false }, &ArrayName::from(name))?.members {
        let report::StatusMember { role, drive, state, .. } = member;
        found.send((role.to_string(), format!("{drive}, {state}")))?;
        if !drive.is_empty() {
            found.send((drive, format!("member {role}, {state}")))?;
        }
    }
    Ok(())
}

/// The zones of the array before it, as far as the command may be meant for them.
fn zones() -> Vec<Offer> {
    within_patience(vec![|found| {
        let mut words = typed().into_iter().skip(1);
        let (verb, name) = words.next().zip(words.next()).context("there is no array before it")?;
        // Whoever asks a namespace has it run, which is too much for a word.
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
