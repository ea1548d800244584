//! What is made of the definition of the command line: shell completions and manual pages.

use super::{
    Cli,
    output::{HEALTHY, Output},
};
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// Prints the completions for a shell.
pub fn completions(output: Output, shell: Shell) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "zoneraid", &mut script);
    output.raw(&String::from_utf8_lossy(&script))?;
    Ok(HEALTHY)
}

/// Writes one manual page for every command to `dir`.
pub fn pages(dir: &Path) -> Result<u8> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .with_context(|| format!("manual pages cannot be written to {}", dir.display()))?;
    Ok(HEALTHY)
}
