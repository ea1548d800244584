//! `export`: arrays for other machines.

use crate::{
    client,
    export::{self, MODULES, NVMET, Secret, Step},
    members::Found,
    name::ArrayName,
    output::{HEALTHY, Output, quoted},
};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::{
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Serialize)]
struct Exported {
    array: String,
    nqn: String,
    transport: &'static str,
    address: String,
    port: u16,
    /// Names of the hosts that may connect; any may if there are none.
    hosts: Vec<String>,
    /// Whether these have to prove who they are.
    authenticated: bool,
    dry_run: bool,
    /// What is done to the configuration of the kernel's target.
    steps: Vec<String>,
}

/// Where an export is to be found, and by whom.
pub struct Access {
    pub address: IpAddr,
    pub port: u16,
    /// Any host, if there are none.
    pub hosts: Vec<String>,
    /// The file with what these have to prove that they know.
    pub key: Option<PathBuf>,
}

pub fn nvmet(output: Output, name: &ArrayName, access: &Access, dry_run: bool) -> Result<u8> {
    let Access { address, port, hosts, key } = access;
    let secret = key.as_deref().map(Secret::read).transpose()?;
    if let Some(key) = key.as_deref().filter(|key| is_open_to_others(key)) {
        output.note(&format!("others may read or change the secret in {0}: chmod 600 {0}", key.display()));
    }
    let client = client::find(name)?;
    let client = client
        .with_context(|| format!("'{name}' does not run; zoneraid start {}", quoted(&name.to_string())))?;
    let about = &client.about;
    let device = about.block_device.as_ref();
    let device = device.with_context(|| format!("'{}' has no block device", about.name))?;
    let root = Path::new(NVMET);
    if !dry_run {
        load_modules()?;
        ensure!(root.is_dir(), "the kernel shows no NVMe target in {NVMET}; is configfs mounted?");
    }
    let (uuid, address, port, secret) = (about.uuid.as_str(), *address, *port, secret.as_ref());
    let steps = export::Export { uuid, device, address, port, hosts, secret }.steps(root);
    let steps = steps.with_context(|| format!("'{}' cannot be exported", about.name))?;
    if !dry_run && let Err(error) = export::carry_out(&steps) {
        // Half an export would be in the way of the next try.
        if let Ok(steps) = export::removal(root, &about.uuid) {
            let _ = export::carry_out(&steps);
        }
        return Err(error.context(format!("'{}' cannot be exported", about.name)));
    }
    let exported = Exported {
        array: about.name.clone(),
        nqn: export::nqn(&about.uuid),
        transport: "tcp",
        address: address.to_string(),
        port,
        hosts: hosts.clone(),
        authenticated: secret.is_some(),
        dry_run,
        steps: steps.iter().map(Step::to_string).collect(),
    };
    output.print(&exported, |exported| {
        let Exported { array, nqn, address, port, dry_run, steps, .. } = exported;
        if *dry_run {
            return format!("modprobe -a {}\n{}\n", MODULES.join(" "), steps.join("\n"));
        }
        let secret = if exported.authenticated { " --dhchap-secret SECRET" } else { "" };
        format!("'{array}' is exported; nvme connect -t tcp -a {address} -s {port} -n {nqn}{secret}\n")
    })?;
    Ok(HEALTHY)
}

/// Whether anybody but its owner may do something with a file.
fn is_open_to_others(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

/// Loads what the target needs; what is built in needs no loading, so that only says why if there is
/// no target afterwards.
fn load_modules() -> Result<()> {
    let ran = Command::new("modprobe").arg("-a").args(MODULES).output();
    let why = match &ran {
        Ok(ran) => String::from_utf8_lossy(&ran.stderr).trim().to_string(),
        Err(error) => error.to_string(),
    };
    ensure!(Path::new(NVMET).is_dir() || why.is_empty(), "the kernel has no NVMe target: {why}");
    Ok(())
}

#[derive(Serialize)]
struct Removed {
    array: String,
    nqn: String,
}

pub fn remove(output: Output, name: &ArrayName) -> Result<u8> {
    let (array, uuid) = match client::find(name)? {
        Some(client) => (client.about.name, client.about.uuid),
        None => {
            let label = Found::to_read(name)?.label;
            (label.name, crate::output::uuid(&label.uuid))
        }
    };
    let steps = export::removal(Path::new(NVMET), &uuid);
    export::carry_out(&steps.with_context(|| format!("'{array}' cannot be removed"))?)?;
    output.print(&Removed { array, nqn: export::nqn(&uuid) }, |removed| {
        format!("'{}' is not exported any more\n", removed.array)
    })?;
    Ok(HEALTHY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_the_schemas_say() {
        let text = String::new;
        let exported = Exported {
            array: text(),
            nqn: text(),
            transport: "tcp",
            address: text(),
            port: 1,
            hosts: vec![text()],
            authenticated: true,
            dry_run: true,
            steps: vec![text()],
        };
        assert_eq!(crate::output::undescribed(&exported, "export-nvmet.json"), [""; 0]);
        let removed = Removed { array: text(), nqn: text() };
        assert_eq!(crate::output::undescribed(&removed, "export-remove.json"), [""; 0]);
    }
}
