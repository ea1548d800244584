//! Programs of a newer version than this machine has: a package of the distribution's and the libraries that it needs,
//! unpacked, not installed.

use crate::kernel::{cache, output};
use anyhow::{Context, Result, ensure};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

/// Dynamic linker of amd64, which runs a program with the libraries of its package.
const LINKER: &str = "ld-linux-x86-64.so.2";

/// Directories of a package with programs, and with libraries.
const PROGRAMS: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// A package, and the oldest version that suffices.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    name: String,
    oldest: String,
}

impl FromStr for Package {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, oldest) =
            text.split_once('=').with_context(|| format!("{text} is not PACKAGE=VERSION"))?;
        let is_plain = |word: &str| {
            word.starts_with(|first: char| first.is_ascii_alphanumeric())
                && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-.:~".contains(c))
        };
        ensure!(is_plain(name) && is_plain(oldest), "{text} is not PACKAGE=VERSION");
        Ok(Self { name: name.into(), oldest: oldest.into() })
    }
}

impl Package {
    /// The directory with its programs, which is fetched once.
    pub fn programs(&self) -> Result<PathBuf> {
        let place = cache()?.join("tools").join(format!("{}-{}", self.name, self.oldest));
        let programs = place.join("run");
        if !programs.is_dir() {
            self.fetch(&place)?;
        }
        Ok(programs)
    }

    fn fetch(&self, place: &Path) -> Result<()> {
        let Self { name, oldest } = self;
        let offered =
            output("apt-cache", &["show", "--no-all-versions", name].map(OsStr::new), Path::new("/"));
        let version = offered.ok().and_then(|text| {
            text.lines().find_map(|line| Some(line.strip_prefix("Version: ")?.trim().to_string()))
        });
        let is_new_enough = |version: &String| {
            let compared = ["--compare-versions", version, "ge", oldest].map(OsStr::new);
            Command::new("dpkg").args(compared).status().is_ok_and(|status| status.success())
        };
        let version = version.filter(is_new_enough).with_context(|| {
            format!(
                "apt offers no {name} from {oldest} on: run apt-get update, or add a newer distribution to its sources; \
                 $APT_CONFIG may name a configuration with others"
            )
        })?;
        let room = place.with_extension("new");
        if room.exists() {
            fs::remove_dir_all(&room).with_context(|| format!("cannot remove {}", room.display()))?;
        }
        fs::create_dir_all(&room).with_context(|| format!("cannot create {}", room.display()))?;
        eprintln!("guest: fetching {name} {version} into {} (once)", place.display());
        let mut names = libraries_of(name)?;
        names.insert(name.clone());
        // The package comes last: its programs are those of the directory.
        for package in names.iter().filter(|package| *package != name).chain([name]) {
            output("apt-get", &["download", package].map(OsStr::new), &room)?;
        }
        for entry in fs::read_dir(&room)? {
            let file = entry?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                let of_package = file
                    .file_name()
                    .is_some_and(|found| found.to_string_lossy().split('_').next() == Some(name));
                let to = room.join(if of_package { "package" } else { "libraries" });
                output("dpkg", &["-x".as_ref(), file.as_ref(), to.as_ref()], &room)?;
                fs::remove_file(file)?;
            }
        }
        fs::create_dir(room.join("run"))?;
        wrap(&room, place)?;
        if place.exists() {
            fs::remove_dir_all(place)?;
        }
        fs::rename(&room, place)?;
        Ok(())
    }
}

/// Packages of libraries that a package needs, directly or not.
fn libraries_of(package: &str) -> Result<BTreeSet<String>> {
    let (mut found, mut left) = (BTreeSet::new(), vec![package.to_string()]);
    while let Some(package) = left.pop() {
        let listed =
            output("apt-cache", &["depends", "--important", &package].map(OsStr::new), Path::new("/"))?;
        for name in listed.lines().filter_map(library) {
            if found.insert(name.to_string()) {
                left.push(name.into());
            }
        }
    }
    Ok(found)
}

/// The package of a library in a line of `apt-cache depends`.
fn library(line: &str) -> Option<&str> {
    let (how, name) = line.trim().trim_start_matches('|').split_once(": ")?;
    (how.ends_with("Depends") && name.starts_with("lib")).then_some(name)
}

/// Writes scripts that run the programs in `room`, which will be `place`, with their own libraries.
fn wrap(room: &Path, place: &Path) -> Result<()> {
    let linker = LIBRARIES.map(|dir| Path::new("libraries").join(dir).join(LINKER));
    let linker =
        linker.iter().find(|linker| room.join(linker).exists()).context("the package needs no libc6")?;
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let libraries = LIBRARIES.map(|dir| place.join("libraries").join(dir).display().to_string()).join(":");
    let of_package = LIBRARIES.map(|dir| place.join("package").join(dir).display().to_string()).join(":");
    for dir in PROGRAMS.map(|dir| Path::new("package").join(dir)) {
        for entry in fs::read_dir(room.join(&dir)).into_iter().flatten() {
            let (file, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            if !fs::read(&file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")) {
                continue;
            }
            let script = format!(
                "#!/bin/sh\nexec {} --library-path {} --argv0 {} {} \"$@\"\n",
                quoted(&place.join(linker)),
                quoted(Path::new(&format!("{of_package}:{libraries}"))),
                quoted(Path::new(&name)),
                quoted(&place.join(&dir).join(&name)),
            );
            let to = room.join("run").join(&name);
            fs::write(&to, script)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_option_is_name_and_oldest_version() {
        let package: Package = "xfsprogs=6.15".parse().unwrap();
        assert_eq!((&*package.name, &*package.oldest), ("xfsprogs", "6.15"));
        for wrong in ["xfsprogs", "=6", "xfsprogs=", "../x=6", "x=../6", "-x=6"] {
            assert!(wrong.parse::<Package>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn libraries_are_found_in_dependencies() {
        let lines = [
            "xfsprogs",
            "  PreDepends: libc6",
            " |Depends: libreadline8t64",
            "  Depends: python3",
            "  Breaks: libx",
        ];
        let found: Vec<&str> = lines.into_iter().filter_map(library).collect();
        assert_eq!(found, ["libc6", "libreadline8t64"]);
    }

    #[test]
    fn programs_run_with_libraries_of_their_package() {
        let dir = tempfile::tempdir().unwrap();
        let (room, place) = (dir.path().join("a.new"), dir.path().join("it's"));
        for file in [
            "libraries/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "package/usr/sbin/mkfs.x",
            "package/usr/sbin/info",
            "run/x",
        ] {
            fs::create_dir_all(room.join(file).parent().unwrap()).unwrap();
            let contents: &[u8] = if file.ends_with("mkfs.x") { b"\x7fELF" } else { b"#!/bin/sh" };
            fs::write(room.join(file), contents).unwrap();
        }
        wrap(&room, &place).unwrap();
        let script = fs::read_to_string(room.join("run/mkfs.x")).unwrap();
        assert!(
            script.contains(r"it'\''s/package/usr/sbin/mkfs.x'") && script.contains("--argv0 'mkfs.x'"),
            "{script}"
        );
        assert!(!room.join("run/info").exists());
    }
}
