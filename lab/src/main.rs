//! `lab`: runs experiments from the command line.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Experiments with zoneraid on emulated drives, in virtual time
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare the emulated drives with published figures of single drives
    Calibrate(lab::calibrate::Calibrate),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Calibrate(calibrate) => calibrate.run(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::from(2)
        }
    }
}
