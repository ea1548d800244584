//! The command line: arguments and commands.
//!
//! A command sends its request to the daemon of the array if one runs. Otherwise it reads the drives; a command that
//! changes something claims them, assembles the array, acts and exits. Exit codes are those of `mdadm --detail --test`.

mod args;
mod complete;
mod create;
mod daemon;
mod demo;
mod drives;
mod export;
mod fault;
mod interrupt;
mod manual;
mod namespace;
mod overview;
mod owner;
mod pool;
mod repair;
mod scrub;
mod status;
mod top;
mod volume;
mod volume_args;
mod zone;

use crate::process::{
    crash,
    output::{FAILED, HEALTHY, Output},
};
use args::{BenchTarget, Cli, Emulate, ExportCommand, Level, Transport, Verb, YesNo};
use clap::{FromArgMatches, error::ErrorKind};
use std::{ffi::OsString, process::ExitCode};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    crash::explain();
    if complete::answer() {
        return ExitCode::SUCCESS;
    }
    let parsed = manual::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(misunderstood(&error)),
    };
    let output = Output::of_process(cli.json);
    let code = run(cli.verb, output).unwrap_or_else(|error| {
        output.error(&format!("{error:#}"));
        FAILED
    });
    ExitCode::from(code)
}

/// Prints help, or the error in the command line in one sentence; returns the exit code.
fn misunderstood(error: &clap::Error) -> u8 {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion => {
            // A closed standard output is no error for help.
            let _ = error.print();
            HEALTHY
        }
        DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            FAILED
        }
        _ => {
            let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
            let json = arguments.iter().any(|argument| argument == "--json");
            Output { json }.error(&format!("{}; see {} --help", sentence(error), verb_of(&arguments)));
            FAILED
        }
    }
}

/// The error of clap in one sentence, with its suggestion.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim);
    let first: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let tips = lines.filter_map(|line| line.strip_prefix("tip: ")).map(|tip| format!("; {tip}"));
    let sentence = first.join(" ") + &tips.collect::<String>();
    // Errors of the standard library about numbers.
    let sentence = sentence
        .replace("invalid digit found in string", "not an integer")
        .replace("cannot parse integer from empty string", "a number is missing")
        .replace("number too large to fit in target type", "the number is too large");
    sentence.strip_prefix("error: ").map(String::from).unwrap_or(sentence)
}

/// The command in the arguments, as far as it is valid.
fn verb_of(arguments: &[OsString]) -> String {
    let mut command = manual::command();
    let mut name = command.get_name().to_string();
    for argument in arguments {
        if let Some(inner) = argument.to_str().and_then(|word| command.find_subcommand(word)).cloned() {
            name = format!("{name} {}", inner.get_name());
            command = inner;
        }
    }
    name
}

fn run(verb: Verb, output: Output) -> anyhow::Result<u8> {
    match verb {
        Verb::Emulate(Emulate::Create { dir, count, model, zones, zone_capacity }) => {
            drives::emulate(output, &dir, count, model, zones, zone_capacity)
        }
        Verb::Emulate(Emulate::Fault { drive, fault }) => fault::run(output, &drive, fault),
        Verb::Create(options) => create::create(output, options),
        Verb::Start(options) => daemon::start(output, options),
        Verb::Serve { start, nbd } => daemon::serve(output, start, &nbd),
        Verb::Volume(verb) => volume::run(output, verb),
        Verb::Stop { array } => daemon::stop(output, &array),
        Verb::Status { arrays } => status::status(output, &arrays),
        Verb::Top { array } => top::run(output, &array),
        Verb::Examine { drive, export: false } => drives::examine(output, &drive),
        Verb::Examine { drive, export: true } => drives::export(output, &drive),
        Verb::List { dirs } => overview::list(output, &dirs),
        Verb::Zone(verb) => zone::run(output, verb),
        Verb::Namespace(verb) => namespace::run(output, verb),
        Verb::Replace { drives, cancel: true, .. } => repair::cancel_copy(output, drives),
        Verb::Replace { drives, now, yes, .. } => repair::replace(output, drives, now, yes),
        Verb::Rebuild { array } => repair::rebuild(output, &array),
        Verb::Scrub(command) => scrub::run(output, command),
        Verb::Export(ExportCommand::Nvmet {
            array,
            transport: Transport::Tcp,
            address,
            port,
            hosts,
            any_host: _,
            key,
            dry_run,
        }) => export::nvmet(output, &array, &export::Access { address, port, hosts, key }, dry_run),
        Verb::Export(ExportCommand::Remove { array }) => export::remove(output, &array),
        Verb::Fail { array, member } => repair::fail(output, &array, &member),
        Verb::Rename { array, new } => owner::rename(output, &array, &new),
        Verb::Adopt { array } => owner::adopt(output, &array),
        Verb::ErrorLimit { array, blocks } => owner::error_limit(output, &array, blocks),
        Verb::Autostart { array, starts } => owner::autostart(output, &array, starts == YesNo::Yes),
        Verb::Destroy { array, yes } => owner::destroy(output, &array, yes),
        Verb::Wipe { yes, drives } => owner::wipe(output, &drives, yes),
        Verb::Demo { path, seed } => demo::run(output, path, seed),
        Verb::Bench { peers: true, rounds, .. } => crate::bench::servers::run(output, rounds as usize),
        Verb::Bench { namespaces: true, rounds, .. } => {
            crate::bench::namespaces::run(output, rounds as usize)
        }
        Verb::Bench { volume: true, rounds, volumes, rows, .. } => {
            crate::bench::volume::run(output, rounds as usize, volumes, &rows)
        }
        Verb::Bench { what: BenchTarget::Engine, level: Level::Single, .. } => {
            anyhow::bail!("the measured array has parity: choose --level raid5 or raid6")
        }
        Verb::Bench { what: BenchTarget::Engine, rounds, level, rows, .. } => {
            crate::bench::run(output, rounds as usize, level.parities(), &rows)
        }
        Verb::Bench { rows, .. } if !rows.is_empty() => {
            anyhow::bail!("--row is for the engine and for --volume only")
        }
        Verb::Bench { what: BenchTarget::Host, rounds, .. } => {
            crate::bench::host::run(output, rounds as usize)
        }
        Verb::Bench { what: BenchTarget::Checksums, rounds, .. } => {
            crate::bench::checksums::run(output, rounds as usize)
        }
        Verb::Bench { what: BenchTarget::Fairness, rounds, .. } => {
            crate::bench::fairness::run(output, rounds as usize)
        }
        Verb::Completions { shell } => complete::script(output, shell),
        Verb::Man { dir } => manual::pages(&dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn cli_definition_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn cli_arguments_all_have_help() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{}: {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
