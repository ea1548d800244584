//! Names that users give for arrays, namespaces, snapshots and members: words and paths, as typed.

use crate::{
    drive::{self, label::Label},
    process::output::uuid,
};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// An array as the user named it: by its name, one of its members, or the directory of these.
#[derive(Clone, Debug)]
pub struct ArrayName(PathBuf);

impl From<OsString> for ArrayName {
    fn from(name: OsString) -> ArrayName {
        ArrayName(name.into())
    }
}

impl From<PathBuf> for ArrayName {
    fn from(name: PathBuf) -> ArrayName {
        ArrayName(name)
    }
}

impl ArrayName {
    /// The name as a path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether there is a drive, or a directory with drives, of this name.
    pub fn is_path(&self) -> bool {
        if self.0.is_dir() { drive::holds_drive(&self.0) } else { drive::is_drive(&self.0).unwrap_or(false) }
    }

    /// Whether it may be the name of an array: one word, which may be a path too.
    pub fn is_word(&self) -> bool {
        let text = self.0.to_string_lossy();
        !text.contains('/') && ![".", ".."].contains(&&*text)
    }

    /// Whether the array with this label has this name or UUID.
    pub fn means(&self, label: &Label) -> bool {
        let wanted = self.0.to_string_lossy();
        label.name == wanted || uuid(&label.uuid) == wanted.to_lowercase()
    }
}

impl fmt::Display for ArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// The text before and behind the last separator; `None` if either is empty.
fn halves(text: &str, separator: char) -> Option<(&str, &str)> {
    text.rsplit_once(separator).filter(|(before, behind)| !before.is_empty() && !behind.is_empty())
}

/// A namespace as the user named it: ARRAY/NAME.
#[derive(Clone, Debug)]
pub struct NamespaceName {
    pub array: ArrayName,
    pub name: String,
}

impl NamespaceName {
    /// Parses ARRAY/NAME.
    pub fn new(text: &str) -> Option<NamespaceName> {
        let (array, name) = halves(text, '/')?;
        Some(NamespaceName { array: PathBuf::from(array).into(), name: name.into() })
    }

    /// The volume of a pool on a namespace that `name`, given in the place of an array, stands for: ARRAY/NAMESPACE and NAME.
    pub fn of_volume_on_namespace(name: &ArrayName) -> Option<(NamespaceName, String)> {
        let NamespaceName { array, name } =
            NamespaceName::new(&name.to_string()).filter(|_| !name.path().exists())?;
        Some((NamespaceName::meant_by(&array)?, name))
    }

    /// The namespace that `name`, given in the place of an array, stands for; `None` if it may be an array.
    pub fn meant_by(name: &ArrayName) -> Option<NamespaceName> {
        let wanted = NamespaceName::new(&name.to_string()).filter(|_| !name.path().exists())?;
        (wanted.array.is_path() || wanted.array.is_word()).then_some(wanted)
    }
}

impl FromStr for NamespaceName {
    type Err = String;

    fn from_str(text: &str) -> Result<NamespaceName, String> {
        NamespaceName::new(text).ok_or_else(|| "a namespace is called ARRAY/NAME".into())
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.array, self.name)
    }
}

/// A snapshot of a volume of a pool: VOLUME@SNAPSHOT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotName {
    pub volume: String,
    pub snapshot: String,
}

impl SnapshotName {
    /// Parses VOLUME@SNAPSHOT.
    pub fn new(text: &str) -> Option<SnapshotName> {
        let (volume, snapshot) = halves(text, '@')?;
        Some(SnapshotName { volume: volume.into(), snapshot: snapshot.into() })
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

/// A snapshot as the user named it: ARRAY/VOLUME@SNAPSHOT.
#[derive(Clone, Debug)]
pub struct SnapshotOfArray {
    pub array: ArrayName,
    pub name: SnapshotName,
}

impl FromStr for SnapshotOfArray {
    type Err = String;

    fn from_str(text: &str) -> Result<SnapshotOfArray, String> {
        let parsed = NamespaceName::new(text).and_then(|below| {
            Some(SnapshotOfArray { array: below.array, name: SnapshotName::new(&below.name)? })
        });
        parsed.ok_or_else(|| "a snapshot is called ARRAY/VOLUME@SNAPSHOT".into())
    }
}

/// A member as the user named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberName {
    Role(u32),
    /// Without symbolic links if it exists; absolute in any case.
    Path {
        path: PathBuf,
        exists: bool,
    },
}

impl MemberName {
    /// A number is a role, unless there is a file of that name.
    pub fn new(text: &Path) -> Result<MemberName> {
        match text.to_string_lossy().parse() {
            Ok(role) if !text.exists() => Ok(MemberName::Role(role)),
            _ => Ok(MemberName::Path { path: real_path(text)?, exists: text.exists() }),
        }
    }
}

/// The path by which the drive at `path` is used, without symbolic links: for a process that has another working
/// directory or must not look it up itself.
pub fn real_path(path: &Path) -> Result<PathBuf> {
    let path = drive::resolve(path);
    path.canonicalize().or_else(|_| std::path::absolute(&path)).context("the working directory is gone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_name_is_parsed_from_its_end() {
        let parsed = |text: &str| {
            let SnapshotOfArray { array, name } = text.parse().ok()?;
            Some((array.to_string(), name.volume, name.snapshot))
        };
        let of =
            |array: &str, volume: &str, snapshot: &str| Some((array.into(), volume.into(), snapshot.into()));
        assert_eq!(parsed("tank/mail@monday"), of("tank", "mail", "monday"));
        assert_eq!(parsed("./a@b/tank/mail@monday"), of("./a@b/tank", "mail", "monday"));
        // A volume of a pool that is older than snapshots may have such a name.
        assert_eq!(parsed("tank/me@home@monday"), of("tank", "me@home", "monday"));
        for wrong in ["mail@monday", "tank/mail", "tank/@monday", "tank/mail@", "a@b/mail", ""] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
