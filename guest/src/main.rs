//! `guest`: runs a command, or the tests in `guest/scenarios`, under a Linux kernel of its own with emulated ZNS
//! drives, in QEMU.
//!
//! The guest has this machine's files, read-only below an overlay in its memory: programs that are installed or built
//! here run there. It needs neither root rights nor kernel modules here, and no KVM. [`kernel`] gets a kernel,
//! [`initramfs`] packs the initramfs, [`machine`] starts QEMU, [`run`] supervises one run, [`scenario`] finds and
//! judges the tests. [`load`] makes and verifies writes that have to survive crashes; it runs inside the guest.
#![forbid(unsafe_code)]

mod initramfs;
mod kernel;
mod load;
mod machine;
mod qmp;
mod run;
mod scenario;
mod tools;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Run commands and tests in a QEMU guest with emulated ZNS drives.
#[derive(Parser)]
#[command(name = "guest", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a command in a guest, in the current directory
    ///
    /// Its output and exit status are passed on; the status is 124 after the time limit, and 125 if the guest
    /// cannot be started or dies. In the guest, /mnt/guest is the --out directory, and the directory of this
    /// binary is in PATH; $GUEST_KERNEL is the directory of the unpacked kernel and its configuration. Standard
    /// input is empty. Without KVM the emulated processor is a Nehalem: programs built for the processor of
    /// this machine do not run on it.
    Run(run::Run),
    /// Run the tests, all short ones by default
    Test(scenario::Test),
    /// List the tests
    List,
    /// Print the Debian packages that are needed and not installed
    Packages,
    /// In a guest: request a power cut or the removal of a drive
    #[command(subcommand)]
    Ask(run::Ask),
    /// In a guest: write to zones until killed, and log each write that was acknowledged
    Load(load::Load),
    /// In a guest: verify that all acknowledged writes are on a device
    Verify(load::Verify),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Run(run) => run.run(),
        Verb::Test(test) => test.run(),
        Verb::List => scenario::list(),
        Verb::Packages => {
            println!("{}", kernel::missing_packages().join(" "));
            Ok(ExitCode::SUCCESS)
        }
        Verb::Ask(ask) => ask.ask().map(|()| ExitCode::SUCCESS),
        Verb::Load(load) => load.run().map(|()| ExitCode::SUCCESS),
        Verb::Verify(verify) => verify.run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("guest: {error:#}");
        ExitCode::from(run::NO_GUEST)
    })
}
