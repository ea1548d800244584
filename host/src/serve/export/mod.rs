//! Export of the block device of an array to other machines with the kernel's NVMe target, as a zoned namespace.
//!
//! The target is configured by creating directories and writing files in configfs, so an export is a list of steps that
//! can be printed first. The target accepts zoned block devices without conventional zones, with zones of one size that
//! is a power of two, and with appends: the block device of an array always is one.

use crate::process::output::quoted;
use anyhow::{Context, Result, bail, ensure};
use std::{
    ffi::OsStr,
    fmt,
    fs::{self, File},
    io::{self, Read},
    net::IpAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Configuration directory of the kernel's NVMe target.
pub const NVMET: &str = "/sys/kernel/config/nvmet";

/// Kernel modules for an export over TCP.
pub const MODULES: [&str; 2] = ["nvmet", "nvmet-tcp"];

/// A step of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    MakeDirectory(PathBuf),
    Write(PathBuf, String),
    WriteSecret(PathBuf, Secret),
    Link {
        at: PathBuf,
        to: PathBuf,
    },
    RemoveLink(PathBuf),
    RemoveDirectory(PathBuf),
    /// Removes the entry of a host, unless another subsystem allows it.
    Forget(PathBuf),
}

/// The step as a shell command.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |path: &Path| quoted(&path.to_string_lossy());
        match self {
            Step::MakeDirectory(path) => write!(f, "mkdir {}", word(path)),
            Step::Write(path, value) => write!(f, "echo {} > {}", quoted(value), word(path)),
            Step::WriteSecret(path, secret) => write!(f, "cat {} > {}", word(&secret.file), word(path)),
            Step::Link { at, to } => write!(f, "ln -s {} {}", word(to), word(at)),
            Step::RemoveLink(path) => write!(f, "rm {}", word(path)),
            Step::RemoveDirectory(path) | Step::Forget(path) => write!(f, "rmdir {}", word(path)),
        }
    }
}

impl Step {
    fn carry_out(&self) -> io::Result<()> {
        match self {
            Step::MakeDirectory(path) => fs::create_dir(path),
            Step::Write(path, value) => fs::write(path, value),
            Step::WriteSecret(path, _) if !path.exists() => Err(io::Error::other(
                "this kernel's NVMe target does not support authentication (CONFIG_NVME_TARGET_AUTH)",
            )),
            Step::WriteSecret(path, secret) => fs::write(path, &secret.text),
            Step::Link { at, to } => symlink(to, at),
            Step::RemoveLink(path) => fs::remove_file(path),
            Step::RemoveDirectory(path) => fs::remove_dir(path),
            Step::Forget(path) => match fs::remove_dir(path) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) =>
                {
                    Ok(())
                }
                result => result,
            },
        }
    }
}

/// Carries out `steps` up to the first that fails; returns the number of those done.
pub fn carry_out(steps: &[Step]) -> (usize, Result<()>) {
    for (done, step) in steps.iter().enumerate() {
        let result = step.carry_out().with_context(|| format!("'{step}' failed"));
        if result.is_err() {
            return (done, result);
        }
    }
    (steps.len(), Ok(()))
}

/// The NQN of the subsystem that exports the array `uuid`.
pub fn nqn(uuid: &str) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")
}

/// Longest NQN, in bytes.
const NQN_BYTES: usize = 223;

/// Checks the NQN of a host, which becomes the name of a directory.
pub fn parse_nqn(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_graphic() && c != '/';
    if !text.starts_with("nqn.") || !text.chars().all(plain) || text.len() > NQN_BYTES {
        return Err(format!("the name of an NVMe host begins with 'nqn.' and has at most {NQN_BYTES} bytes"));
    }
    Ok(text.to_string())
}

/// Longest secret, in bytes.
const SECRET_BYTES: u64 = 256;

/// The shared secret of hosts (DH-HMAC-CHAP). It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    pub file: PathBuf,
    text: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.file.display())
    }
}

impl Secret {
    /// Reads a secret in the format of `nvme gen-dhchap-key`.
    ///
    /// # Errors
    /// The file cannot be read, or contains no secret.
    pub fn read(file: &Path) -> Result<Secret> {
        let mut text = String::new();
        let read = File::open(file).and_then(|file| file.take(SECRET_BYTES + 2).read_to_string(&mut text));
        read.with_context(|| format!("{} cannot be read", file.display()))?;
        let text = text.trim_end();
        let is_one =
            text.starts_with("DHHC-1:") && text.ends_with(':') && text.chars().all(|c| c.is_ascii_graphic());
        ensure!(
            is_one && text.len() as u64 <= SECRET_BYTES,
            "{} contains no secret in the format of `nvme gen-dhchap-key`",
            file.display()
        );
        Ok(Secret { file: file.to_path_buf(), text: text.to_string() })
    }
}

/// Parameters of an export.
pub struct NvmetExport<'a> {
    pub uuid: &'a str,
    pub device: &'a Path,
    pub address: IpAddr,
    pub port: u16,
    /// NQNs of the hosts that may connect; empty for any host.
    pub hosts: &'a [String],
    /// Secret that these hosts have to prove.
    pub secret: Option<&'a Secret>,
}

impl NvmetExport<'_> {
    /// The steps that export the array over TCP, for the configuration in `root`.
    pub fn steps(&self, root: &Path) -> Result<Vec<Step>> {
        let nqn = nqn(self.uuid);
        let subsystem = root.join("subsystems").join(&nqn);
        ensure!(!subsystem.exists(), "it is exported already, as {nqn}: remove that export first");
        let mut steps = Vec::new();
        let namespace = subsystem.join("namespaces/1");
        let write = |path: PathBuf, value: &str| Step::Write(path, value.to_string());
        steps.push(Step::MakeDirectory(subsystem.clone()));
        steps.push(write(
            subsystem.join("attr_allow_any_host"),
            if self.hosts.is_empty() { "1" } else { "0" },
        ));
        for (index, host) in self.hosts.iter().enumerate() {
            if self.hosts[..index].contains(host) {
                continue;
            }
            let known = root.join("hosts").join(host);
            if !known.exists() {
                steps.push(Step::MakeDirectory(known.clone()));
            }
            if let Some(secret) = self.secret {
                let key = known.join("dhchap_key");
                let before = match fs::read_to_string(&key) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                    before => before.with_context(|| format!("{} cannot be read", key.display()))?,
                };
                let before = before.trim();
                ensure!(
                    ["", &secret.text].contains(&before),
                    "{host} has another secret, which other exports may use: {}",
                    key.display()
                );
                // A host has one secret for all exports: the other one would require it too, even if this one fails.
                ensure!(
                    !before.is_empty() || !is_allowed(&entries(&root.join("subsystems")), host.as_ref()),
                    "another export allows {host} without a secret: remove that export first, or omit --key"
                );
                if before.is_empty() {
                    steps.push(Step::WriteSecret(key, secret.clone()));
                }
            }
            steps.push(Step::Link { at: subsystem.join("allowed_hosts").join(host), to: known });
        }
        steps.push(write(subsystem.join("attr_model"), "zoneraid"));
        let serial: String = self.uuid.chars().filter(|c| *c != '-').take(20).collect();
        steps.push(write(subsystem.join("attr_serial"), &serial));
        steps.push(Step::MakeDirectory(namespace.clone()));
        steps.push(write(namespace.join("device_path"), &self.device.display().to_string()));
        steps.push(write(namespace.join("device_uuid"), self.uuid));
        steps.push(write(namespace.join("device_nguid"), self.uuid));
        steps.push(write(namespace.join("enable"), "1"));
        let port = match self.existing_port(root) {
            Some(port) => port,
            None => {
                let number = free_port(root).context("the kernel's target has no port left")?;
                let port = root.join("ports").join(number.to_string());
                let family = if self.address.is_ipv4() { "ipv4" } else { "ipv6" };
                steps.push(Step::MakeDirectory(port.clone()));
                steps.push(write(port.join("addr_trtype"), "tcp"));
                steps.push(write(port.join("addr_adrfam"), family));
                steps.push(write(port.join("addr_traddr"), &self.address.to_string()));
                steps.push(write(port.join("addr_trsvcid"), &self.port.to_string()));
                port
            }
        };
        steps.push(Step::Link { at: port.join("subsystems").join(&nqn), to: subsystem });
        Ok(steps)
    }

    /// The port with this address, if it exists.
    fn existing_port(&self, root: &Path) -> Option<PathBuf> {
        let (address, port) = (self.address.to_string(), self.port.to_string());
        let wanted = [("addr_trtype", "tcp"), ("addr_traddr", &address), ("addr_trsvcid", &port)];
        ports(root).into_iter().find(|path| wanted.iter().all(|(file, value)| holds(&path.join(file), value)))
    }
}

/// The steps that remove the export of the array `uuid` from the configuration in `root`, with ports that it alone
/// uses.
pub fn removal(root: &Path, uuid: &str) -> Result<Vec<Step>> {
    let nqn = nqn(uuid);
    let subsystem = root.join("subsystems").join(&nqn);
    if !subsystem.exists() {
        bail!("it is not exported");
    }
    let mut steps = Vec::new();
    for port in ports(root) {
        let link = port.join("subsystems").join(&nqn);
        if link.symlink_metadata().is_err() {
            continue;
        }
        let others = fs::read_dir(port.join("subsystems")).map_or(0, Iterator::count) > 1;
        steps.push(Step::RemoveLink(link));
        if !others {
            steps.push(Step::RemoveDirectory(port));
        }
    }
    let namespace = subsystem.join("namespaces/1");
    if namespace.exists() {
        steps.push(Step::RemoveDirectory(namespace));
    }
    let others: Vec<PathBuf> =
        entries(&root.join("subsystems")).into_iter().filter(|other| *other != subsystem).collect();
    let mut allowed = entries(&subsystem.join("allowed_hosts"));
    allowed.sort();
    // Hosts that no other subsystem allows are removed, and their secrets with them.
    let mut forgotten = Vec::new();
    for link in allowed {
        let host = link.file_name().unwrap_or_default().to_owned();
        if !is_allowed(&others, &host) {
            forgotten.push(Step::Forget(root.join("hosts").join(&host)));
        }
        steps.push(Step::RemoveLink(link));
    }
    steps.push(Step::RemoveDirectory(subsystem));
    steps.extend(forgotten);
    Ok(steps)
}

/// Undoes `steps`, all of which have been carried out: half an export would block the next attempt. Entries that
/// existed before stay, and so do those that another export has begun to use.
pub fn undo(steps: &[Step]) {
    for step in steps.iter().rev() {
        let _ = match step {
            Step::MakeDirectory(path) => Step::RemoveDirectory(path.clone()).carry_out(),
            Step::Link { at, .. } => Step::RemoveLink(at.clone()).carry_out(),
            // The host had no secret. Only a new entry has none again; the kernel keeps one that an export allows.
            Step::WriteSecret(key, _) => {
                key.parent().map_or(Ok(()), |host| fs::remove_dir(host).and_then(|()| fs::create_dir(host)))
            }
            _ => Ok(()),
        };
    }
}

/// The ports, sorted by number.
fn ports(root: &Path) -> Vec<PathBuf> {
    let mut ports = entries(&root.join("ports"));
    ports.sort_by_key(|path| number(path));
    ports
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn number(port: &Path) -> u16 {
    port.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// The first unused port number.
fn free_port(root: &Path) -> Option<u16> {
    let taken: Vec<u16> = ports(root).iter().map(|port| number(port)).collect();
    (1..=u16::MAX).find(|number| !taken.contains(number))
}

/// Whether one of these subsystems allows the host.
fn is_allowed(subsystems: &[PathBuf], host: &OsStr) -> bool {
    let allows = |path: &PathBuf| path.join("allowed_hosts").join(host).symlink_metadata().is_ok();
    subsystems.iter().any(allows)
}

fn holds(file: &Path, value: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.trim() == value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    const UUID: &str = "01234567-89ab-4def-8123-456789abcdef";

    fn export(port: u16) -> NvmetExport<'static> {
        let address = IpAddr::from([192, 0, 2, 1]);
        NvmetExport { uuid: UUID, device: Path::new("/dev/ublkb0"), address, port, hosts: &[], secret: None }
    }

    /// A directory with the entries that configfs creates itself.
    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("ports")).unwrap();
        fs::create_dir_all(root.path().join("subsystems")).unwrap();
        fs::create_dir_all(root.path().join("hosts")).unwrap();
        root
    }

    /// Carries out steps in an ordinary directory; makes the entries that configfs creates itself.
    fn carry_out_as_configfs(steps: &[Step]) {
        for step in steps {
            if let Step::MakeDirectory(path) = step {
                for made in ["namespaces", "subsystems", "allowed_hosts"] {
                    fs::create_dir_all(path.join(made)).unwrap();
                }
            } else {
                step.carry_out().unwrap();
            }
        }
    }

    #[test]
    fn export_uses_array_identity_and_reuses_existing_port() {
        let root = root();
        let steps = export(4420).steps(root.path()).unwrap();
        let text: Vec<String> = steps.iter().map(Step::to_string).collect();
        let text = text.join("\n").replace(&*root.path().to_string_lossy(), "R");
        assert!(text.starts_with(&format!("mkdir R/subsystems/{}\n", nqn(UUID))), "{text}");
        for line in [
            format!("echo {UUID} > R/subsystems/{}/namespaces/1/device_nguid", nqn(UUID)),
            "echo 192.0.2.1 > R/ports/1/addr_traddr".into(),
            format!("ln -s R/subsystems/{0} R/ports/1/subsystems/{0}", nqn(UUID)),
        ] {
            assert!(text.contains(&line), "no {line:?} in {text}");
        }
        carry_out_as_configfs(&steps);
        assert!(export(4420).steps(root.path()).is_err());

        // Another array joins the port, or gets a port of its own.
        let other = "11234567-89ab-4def-8123-456789abcdef";
        let joined = NvmetExport { uuid: other, ..export(4420) }.steps(root.path()).unwrap();
        assert!(!joined.contains(&Step::MakeDirectory(root.path().join("ports/2"))));
        let apart = NvmetExport { uuid: other, ..export(4421) }.steps(root.path()).unwrap();
        assert!(apart.contains(&Step::MakeDirectory(root.path().join("ports/2"))));
        let port = Step::RemoveDirectory(root.path().join("ports/1"));
        assert!(removal(root.path(), UUID).unwrap().contains(&port));
        carry_out_as_configfs(&joined);
        let removed = removal(root.path(), UUID).unwrap();
        assert!(!removed.contains(&port), "another array uses it: {removed:?}");
        assert!(removal(root.path(), "none").is_err());

        // Port numbers of other exports do not matter.
        fs::create_dir(root.path().join("ports/65535")).unwrap();
        let third = "21234567-89ab-4def-8123-456789abcdef";
        let apart = NvmetExport { uuid: third, ..export(4421) }.steps(root.path());
        assert!(apart.unwrap().contains(&Step::MakeDirectory(root.path().join("ports/2"))));
    }

    /// The second of two commands for the same array fails.
    #[test]
    fn failed_export_removes_only_its_own_entries() {
        let root = root();
        let steps = export(4420).steps(root.path()).unwrap();
        carry_out_as_configfs(&steps);
        let there = || {
            let (port, link) = (root.path().join("ports/1"), format!("subsystems/{}", nqn(UUID)));
            (port.join(&link).symlink_metadata().is_ok(), port.exists(), root.path().join(link).exists())
        };
        let (done, result) = carry_out(&steps);
        assert!(done == 0 && result.is_err());
        undo(&steps[..done]);
        assert_eq!(there(), (true, true, true));

        // A port that another process has created meanwhile.
        let other = NvmetExport { uuid: "11234567-89ab-4def-8123-456789abcdef", ..export(4421) };
        let steps = other.steps(root.path()).unwrap();
        fs::create_dir_all(root.path().join("ports/2/subsystems")).unwrap();
        let subsystem = root.path().join("subsystems").join(nqn(other.uuid));
        let simple = |step: &&Step| matches!(step, Step::MakeDirectory(path) if !path.starts_with(subsystem.join("namespaces")));
        let steps: Vec<Step> = steps.iter().filter(simple).cloned().collect();
        let (done, result) = carry_out(&steps);
        assert!(done == 1 && result.is_err());
        undo(&steps[..done]);
        assert!(!subsystem.exists() && root.path().join("ports/2").exists());
        assert_eq!(there(), (true, true, true));
    }

    #[test]
    fn export_secret_is_set_before_access_never_shown() {
        let root = root();
        let file = root.path().join("secret");
        let text = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        fs::write(&file, format!("{text}\n")).unwrap();
        let secret = Secret::read(&file).unwrap();
        let hosts = ["nqn.2014-08.org.example:one".to_string()];
        let export = NvmetExport { hosts: &hosts, secret: Some(&secret), ..export(4420) };
        let steps = export.steps(root.path()).unwrap();
        let key = root.path().join("hosts").join(&hosts[0]).join("dhchap_key");
        let place = |wanted: &dyn Fn(&Step) -> bool| steps.iter().position(wanted).unwrap();
        let key_set = place(&|step| *step == Step::WriteSecret(key.clone(), secret.clone()));
        assert!(place(&|step| matches!(step, Step::Link { at, .. } if at.ends_with(&hosts[0]))) > key_set);
        let shown = steps.iter().map(Step::to_string).collect::<String>() + &format!("{steps:?}");
        assert!(!shown.contains(&text[10..]) && shown.contains("cat "), "{shown}");
        // A kernel without support for secrets has an error message of its own.
        let unknown = steps[key_set].carry_out().unwrap_err().to_string();
        assert!(unknown.contains("CONFIG_NVME_TARGET_AUTH"), "{unknown}");
        fs::create_dir_all(key.parent().unwrap()).unwrap();
        fs::write(&key, "").unwrap();
        steps[key_set].carry_out().unwrap();
        assert_eq!(fs::read_to_string(&key).unwrap(), text);
        let again = export.steps(root.path()).unwrap();
        assert!(!again.iter().any(|step| matches!(step, Step::WriteSecret(..))), "the same again");
        // A host that another export allows without a secret.
        let link = root.path().join("subsystems/other/allowed_hosts").join(&hosts[0]);
        fs::create_dir_all(&link).unwrap();
        assert!(export.steps(root.path()).is_ok(), "with the same secret");
        fs::write(&key, "\n").unwrap();
        let refused = export.steps(root.path()).unwrap_err().to_string();
        assert!(
            refused.contains("another export allows nqn.2014-08.org.example:one without a secret"),
            "{refused}"
        );
        fs::write(&key, "DHHC-1:00:other:").unwrap();
        assert!(export.steps(root.path()).unwrap_err().to_string().contains("another secret"));
        for wrong in
            ["", "password", "DHHC-1:00:a b:", "DHHC-1:00:a", &format!("DHHC-1:{}:", "x".repeat(300))]
        {
            fs::write(&file, wrong).unwrap();
            assert!(Secret::read(&file).is_err(), "{wrong}");
        }
    }

    #[test]
    fn failed_export_removes_secret_of_existing_host() {
        let root = root();
        let host = root.path().join("hosts/nqn.one");
        let secret = Secret { file: PathBuf::new(), text: String::new() };
        let steps = [Step::WriteSecret(host.join("dhchap_key"), secret)];
        let mode = || fs::metadata(&host).unwrap().permissions().mode() & 0o777;
        fs::create_dir(&host).unwrap();
        fs::set_permissions(&host, Permissions::from_mode(0o711)).unwrap();
        undo(&steps);
        assert_ne!(mode(), 0o711, "the entry is a new one");
        // Another export allows the host by now: configfs refuses to remove it.
        fs::set_permissions(&host, Permissions::from_mode(0o711)).unwrap();
        fs::write(host.join("link"), "").unwrap();
        undo(&steps);
        assert_eq!(mode(), 0o711);
    }

    #[test]
    fn export_allows_only_named_hosts_to_connect() {
        let root = root();
        let hosts = ["one", "two"].map(|name| format!("nqn.2014-08.org.example:{name}"));
        let attribute = |steps: &[Step], value: &str| {
            let path = root.path().join("subsystems").join(nqn(UUID)).join("attr_allow_any_host");
            steps.contains(&Step::Write(path, value.into()))
        };
        assert!(attribute(&export(4420).steps(root.path()).unwrap(), "1"));
        let steps = NvmetExport { hosts: &hosts, ..export(4420) }.steps(root.path()).unwrap();
        let twice = [&hosts[..], &hosts[..]].concat();
        assert_eq!(NvmetExport { hosts: &twice, ..export(4420) }.steps(root.path()).unwrap(), steps);
        assert!(attribute(&steps, "0") && !attribute(&steps, "1"));
        // No host may connect before the list is complete.
        let shown = steps.iter().position(|step| matches!(step, Step::Link { at, .. } if at.ends_with(format!("ports/1/subsystems/{}", nqn(UUID)))));
        let allowed = |host: &String| {
            steps.iter().position(|step| matches!(step, Step::Link { at, .. } if at.ends_with(host)))
        };
        assert!(hosts.iter().all(|host| allowed(host).is_some() && allowed(host) < shown));
        carry_out_as_configfs(&steps);
        let removed = removal(root.path(), UUID).unwrap();
        assert_eq!(removed.iter().filter(|step| matches!(step, Step::RemoveLink(_))).count(), 3);

        // A host that another subsystem allows is kept.
        let other = "11234567-89ab-4def-8123-456789abcdef";
        carry_out_as_configfs(
            &NvmetExport { uuid: other, hosts: &hosts[1..], ..export(4420) }.steps(root.path()).unwrap(),
        );
        let removed = removal(root.path(), UUID).unwrap();
        let forgotten = hosts.each_ref().map(|host| {
            let known = Step::Forget(root.path().join("hosts").join(host));
            removed.iter().position(|step| *step == known)
        });
        let unlinked = removed.iter().rposition(|step| matches!(step, Step::RemoveLink(_)));
        assert!(forgotten[0] > unlinked && forgotten[1].is_none(), "{removed:?}");

        // A failed export leaves no new host behind, and removes none that was there.
        let third = "21234567-89ab-4def-8123-456789abcdef";
        let hosts = ["one", "three"].map(|name| format!("nqn.2014-08.org.example:{name}"));
        let steps = NvmetExport { uuid: third, hosts: &hosts, ..export(4420) }.steps(root.path()).unwrap();
        let last = steps.iter().rposition(|step| matches!(step, Step::Link { .. })).unwrap();
        carry_out_as_configfs(&steps[..last]);
        for host in &hosts {
            for made in ["namespaces", "subsystems", "allowed_hosts"] {
                fs::remove_dir(root.path().join("hosts").join(host).join(made)).unwrap();
            }
        }
        undo(&steps[..last]);
        let known = hosts.map(|host| root.path().join("hosts").join(host).exists());
        assert_eq!(known, [true, false]);

        for wrong in ["", "host", "nqn.", "nqn.a/../b", "nqn.a b", "nqn.\n"] {
            assert_eq!(parse_nqn(wrong).is_ok(), wrong == "nqn.", "{wrong:?}");
        }
        assert!(parse_nqn(&format!("nqn.{}", "x".repeat(220))).is_err());
    }
}
