//! `export`: exports arrays and namespaces to other machines.

use crate::{
    control::{
        name::{ArrayName, NamespaceName},
        tenants,
    },
    members::{FoundArray, find_running},
    process::output::{self, HEALTHY, Output, quoted},
    serve::export::{self, MODULES, NVMET, Secret, Step},
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
struct ExportOutput {
    array: String,
    nqn: String,
    transport: &'static str,
    address: String,
    port: u16,
    /// NQNs of the hosts that may connect; empty for any host.
    hosts: Vec<String>,
    /// Whether these have to authenticate.
    authenticated: bool,
    dry_run: bool,
    /// Steps of the configuration of the kernel's target.
    steps: Vec<String>,
}

/// Address of an export, and the hosts that may connect.
pub struct Access {
    pub address: IpAddr,
    pub port: u16,
    /// NQNs; empty for any host.
    pub hosts: Vec<String>,
    /// File with the secret of these hosts.
    pub key: Option<PathBuf>,
}

pub fn nvmet(output: Output, name: &ArrayName, access: &Access, dry_run: bool) -> Result<u8> {
    let Access { address, port, hosts, key } = access;
    let secret = key.as_deref().map(Secret::read).transpose()?;
    if let Some(key) = key.as_deref().filter(|key| is_open_to_others(key)) {
        let word = quoted(&key.to_string_lossy());
        output.note(&format!(
            "other users may read or change the secret in {}: chmod 600 {word}",
            key.display()
        ));
    }
    let ExportTarget { called, uuid, device } = ExportTarget::running(name)?.with_context(|| {
        let array = NamespaceName::new(&name.to_string()).map_or(name.clone(), |below| below.array);
        let array = if name.is_word() { name } else { &array };
        format!("'{name}' does not run; zoneraid start {}", quoted(&array.to_string()))
    })?;
    let device = &device.with_context(|| format!("'{called}' has no block device"))?;
    let root = Path::new(NVMET);
    if !dry_run {
        load_modules()?;
        ensure!(root.is_dir(), "there is no NVMe target in {NVMET}: check that configfs is mounted");
    }
    let (address, port, secret) = (*address, *port, secret.as_ref());
    let steps = export::NvmetExport { uuid: &uuid, device, address, port, hosts, secret }.steps(root);
    let steps = steps.with_context(|| format!("'{called}' cannot be exported"))?;
    if !dry_run {
        let (done, result) = export::carry_out(&steps);
        if result.is_err() {
            export::undo(&steps[..done]);
        }
        result.with_context(|| format!("'{called}' cannot be exported"))?;
    }
    let exported = ExportOutput {
        array: called,
        nqn: export::nqn(&uuid),
        transport: "tcp",
        address: address.to_string(),
        port,
        hosts: hosts.clone(),
        authenticated: secret.is_some(),
        dry_run,
        steps: steps.iter().map(Step::to_string).collect(),
    };
    output.print(&exported, |exported| {
        let ExportOutput { array, nqn, address, port, dry_run, steps, .. } = exported;
        if *dry_run {
            return format!("modprobe -a {}\n{}\n", MODULES.join(" "), steps.join("\n"));
        }
        let secret = if exported.authenticated { " --dhchap-secret SECRET" } else { "" };
        format!("'{array}' is exported; nvme connect -t tcp -a {address} -s {port} -n {nqn}{secret}\n")
    })?;
    Ok(HEALTHY)
}

/// The exported device: a running array, or a namespace of one.
struct ExportTarget {
    called: String,
    uuid: String,
    device: Option<PathBuf>,
}

impl ExportTarget {
    /// The array or namespace `name`, if its daemon runs.
    fn running(name: &ArrayName) -> Result<Option<ExportTarget>> {
        let of_pool = NamespaceName::of_volume_on_namespace(name)
            .map(|(on, volume)| NamespaceName { name: format!("{}/{volume}", on.name), ..on });
        if let Some(below) = of_pool.or_else(|| NamespaceName::meant_by(name)) {
            let Some(client) = find_running(&below.array)? else { return Ok(None) };
            let called = format!("{}/{}", client.about.name, below.name);
            let shown = client.about.namespaces.into_iter().find(|shown| shown.name == below.name);
            let shown = shown.with_context(|| format!("there is no namespace or volume '{called}'"))?;
            return Ok(Some(ExportTarget { called, uuid: shown.uuid, device: Some(shown.block_device) }));
        }
        let client = find_running(name)?;
        Ok(client.map(|client| {
            let about = client.about;
            ExportTarget { called: about.name, uuid: about.uuid, device: about.block_device }
        }))
    }
}

/// Whether others than its owner may access a file.
fn is_open_to_others(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

/// Loads the target's modules. Built-in ones need no loading, so an error of modprobe counts only if there is no target
/// afterwards.
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
struct ExportRemoveOutput {
    array: String,
    nqn: String,
}

pub fn remove(output: Output, name: &ArrayName) -> Result<u8> {
    // An export exists independently of the daemon and its block device.
    let below = NamespaceName::meant_by(name);
    let array = below.as_ref().map_or(name, |below| &below.array);
    let (called, array_uuid) = match find_running(array)? {
        Some(client) => (client.about.name, output::parse_uuid(&client.about.uuid)?),
        None => {
            let label = FoundArray::to_read(array)?.label;
            (label.name, label.uuid)
        }
    };
    let (array, uuid) = match below {
        Some(NamespaceName { name, .. }) => (format!("{called}/{name}"), tenants::uuid_of(array_uuid, &name)),
        None => (called, array_uuid),
    };
    let uuid = output::uuid(&uuid);
    let steps = export::removal(Path::new(NVMET), &uuid);
    let (_, result) = export::carry_out(&steps.with_context(|| format!("'{array}' cannot be removed"))?);
    result?;
    output.print(&ExportRemoveOutput { array, nqn: export::nqn(&uuid) }, |removed| {
        format!("'{}' is not exported any more\n", removed.array)
    })?;
    Ok(HEALTHY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_output_matches_schemas() {
        let text = String::new;
        let exported = ExportOutput {
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
        assert_eq!(crate::process::output::undescribed(&exported, "export-nvmet.json"), [""; 0]);
        let removed = ExportRemoveOutput { array: text(), nqn: text() };
        assert_eq!(crate::process::output::undescribed(&removed, "export-remove.json"), [""; 0]);
    }
}
