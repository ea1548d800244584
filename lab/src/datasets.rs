//! Data to compress: files of Debian packages, fetched with apt, and whatever else somebody has.
//!
//! A package is named with its version and the SHA-256 of the file, so that everybody gets the same bytes or a message.
//! The files of a set come one behind the other in the order of their paths, as they lie on a drive that is filled by
//! copying: nothing is aligned. What there is in `LAB_DATA`, a directory, is measured too, each file in it as a set:
//! that is the way for Silesia, Calgary and one's own data, which the lab does not fetch.

use anyhow::{Context, bail};
use sim::ssd::compress::{PAGE, compress};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The most that is taken of a set: 16 MiB are a thousand pages.
const MOST_BYTES: usize = 16 << 20;

/// Files of a package.
pub struct Source {
    /// What the set is called.
    pub name: &'static str,
    pub package: &'static str,
    pub version: &'static str,
    /// Of the package's file.
    pub sha256: &'static str,
    /// Where in the package the files are: one, or all below it.
    pub path: &'static str,
    /// How their names end.
    pub suffix: &'static str,
}

/// Bytes with a name.
pub struct Dataset {
    pub name: String,
    /// Where they come from.
    pub origin: String,
    pub bytes: Vec<u8>,
}

/// What there is to compress.
#[derive(Default)]
pub struct Datasets {
    pub found: Vec<Dataset>,
    /// The names of others, and why they are not there.
    pub missing: Vec<(String, String)>,
}

/// How far a set can be compressed, page by page.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Bytes for each byte of the compressed pages.
    pub ratio: f64,
    /// Between the lower and the upper quartile of the compressed sizes, as a share of a page.
    pub spread: f64,
}

impl Class {
    /// From which ratio on a set counts as high, and from which as medium.
    const HIGH: f64 = 2.5;
    const MEDIUM: f64 = 1.4;
    /// Up to which spread it counts as dense.
    const DENSE: f64 = 1.0 / 16.0;

    /// As the paper abbreviates it: high, medium or low, dense or sparse.
    pub fn name(self) -> &'static str {
        match (self.ratio, self.spread <= Class::DENSE) {
            (Class::HIGH.., true) => "HD",
            (Class::HIGH.., false) => "HS",
            (Class::MEDIUM.., true) => "MD",
            (Class::MEDIUM.., false) => "MS",
            (_, true) => "LD",
            (_, false) => "LS",
        }
    }
}

impl Dataset {
    /// The whole pages of it.
    pub fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(PAGE)
    }

    pub fn class(&self) -> Class {
        let mut sizes: Vec<usize> = self.pages().map(|page| compress(page).len()).collect();
        sizes.sort_unstable();
        let quartile = |of_four: usize| sizes.get(sizes.len() * of_four / 4).copied().unwrap_or(PAGE) as f64;
        let all: usize = sizes.iter().sum();
        Class {
            ratio: (sizes.len() * PAGE) as f64 / all.max(1) as f64,
            spread: (quartile(3) - quartile(1)) / PAGE as f64,
        }
    }
}

/// All sets: those of packages, and those in `LAB_DATA`.
///
/// # Errors
/// When a file in `LAB_DATA` cannot be read.
pub fn all(sources: &[Source]) -> anyhow::Result<Datasets> {
    let mut sets = Datasets::default();
    for source in sources {
        match source.dataset() {
            Ok(set) => sets.found.push(set),
            Err(error) => sets.missing.push((source.name.into(), format!("{error:#}"))),
        }
    }
    if let Some(folder) = env::var_os("LAB_DATA").map(PathBuf::from) {
        for path in files(&folder, "")? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let origin = path.display().to_string();
            match head(&[path])? {
                bytes if bytes.len() < PAGE => sets.missing.push((name, "it is smaller than a page".into())),
                bytes => sets.found.push(Dataset { name, origin, bytes }),
            }
        }
    }
    Ok(sets)
}

impl Source {
    /// What it is.
    ///
    /// # Errors
    /// When the package cannot be had, or is another one.
    pub fn dataset(&self) -> anyhow::Result<Dataset> {
        let folder = self.unpacked()?;
        let mut files = files(&folder.join(self.path), self.suffix)?;
        files.sort();
        let bytes = head(&files)?;
        if bytes.len() < PAGE {
            bail!("{} {} has nothing at {}", self.package, self.version, self.path);
        }
        let origin = format!("{} {}: {}", self.package, self.version, self.path);
        Ok(Dataset { name: self.name.into(), origin, bytes })
    }

    /// The files of the package, fetched if they are not there.
    fn unpacked(&self) -> anyhow::Result<PathBuf> {
        let cache = env::var_os("CARGO_TARGET_DIR").map_or(PathBuf::from("target"), PathBuf::from);
        let folder = cache.join("lab/data").join(format!("{}-{}", self.package, self.sha256));
        if folder.join("files").exists() {
            return Ok(folder.join("files"));
        }
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let wanted = format!("{}={}", self.package, self.version);
        run(Command::new("apt-get").args(["download", &wanted]).current_dir(&folder))
            .with_context(|| format!("{wanted} cannot be fetched; 'apt-get update' may help"))?;
        let Some(file) = files(&folder, ".deb")?.pop() else { bail!("apt-get has fetched nothing") };
        let sum = run(Command::new("sha256sum").arg(&file))?;
        if !sum.starts_with(self.sha256) {
            fs::remove_file(&file)?;
            bail!("{wanted} is another file than the one that was measured: its SHA-256 is {sum}");
        }
        // Under its name only when it is whole.
        let partly = folder.join("partly");
        run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&partly))?;
        fs::rename(partly, folder.join("files"))?;
        Ok(folder.join("files"))
    }
}

/// What a program prints.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} cannot be run"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A file, or the files below a directory whose names end so; links lead nowhere.
fn files(path: &Path, suffix: &str) -> anyhow::Result<Vec<PathBuf>> {
    let found = path.symlink_metadata().with_context(|| format!("{} is not there", path.display()))?;
    if found.is_file() {
        let fits = path.to_string_lossy().ends_with(suffix);
        return Ok(fits.then(|| path.to_path_buf()).into_iter().collect());
    }
    let mut all = Vec::new();
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            all.extend(files(&entry?.path(), suffix)?);
        }
    }
    Ok(all)
}

/// The beginning of what is in these files, one behind the other.
fn head(files: &[PathBuf]) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for file in files {
        bytes.extend(fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?);
        if bytes.len() >= MOST_BYTES {
            bytes.truncate(MOST_BYTES);
            break;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_go_by_ratio_and_spread() {
        let name = |ratio, spread| Class { ratio, spread }.name();
        assert_eq!([name(4.0, 0.01), name(2.5, 0.2), name(2.0, 0.0)], ["HD", "HS", "MD"]);
        assert_eq!([name(1.5, 0.1), name(1.0, 0.0), name(1.3, 0.9)], ["MS", "LD", "LS"]);
    }

    #[test]
    fn a_set_of_zeros_is_high_and_dense() {
        let set = Dataset { name: "zeros".into(), origin: String::new(), bytes: vec![0; 5 * PAGE] };
        let class = set.class();
        assert!(class.ratio > 100.0, "{class:?}");
        assert_eq!(class.name(), "HD");
    }
}
