//! Data to compress: files of Debian packages, fetched with apt, and local files.
//!
//! A package is named with its version and the SHA-256 of the file, so that every run uses the same bytes or reports an
//! error. The files of a set are concatenated in the order of their paths, as on a drive that is filled by copying:
//! they are not aligned. Each file in the directory `LAB_DATA` is measured as a set, too: that is the way to use
//! Silesia, Calgary and private data, which the lab does not fetch.

use anyhow::{Context, bail};
use emu::ssd::compress::{PAGE, compress};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Longest part of a set that is used: 16 MiB are a thousand pages.
const MOST_BYTES: usize = 16 << 20;

/// Files of a package.
pub struct Source {
    /// Name of the set.
    pub name: &'static str,
    pub package: &'static str,
    pub version: &'static str,
    /// Of the package's file.
    pub sha256: &'static str,
    /// Path of the files in the package: one file, or all below it.
    pub path: &'static str,
    /// Suffix of their names.
    pub suffix: &'static str,
}

/// Bytes with a name.
pub struct Dataset {
    pub name: String,
    /// Origin of the bytes.
    pub origin: String,
    pub bytes: Vec<u8>,
}

/// Available data sets.
#[derive(Default)]
pub struct Datasets {
    pub found: Vec<Dataset>,
    /// Names of unavailable sets, and the reasons.
    pub missing: Vec<(String, String)>,
}

/// Compressibility of a set, page by page.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Uncompressed bytes per compressed byte.
    pub ratio: f64,
    /// Distance of the lower and the upper quartile of the compressed sizes, as a share of a page.
    pub spread: f64,
}

impl Class {
    /// Smallest ratio that counts as high, and as medium.
    const HIGH: f64 = 2.5;
    const MEDIUM: f64 = 1.4;
    /// Largest spread that counts as dense.
    const DENSE: f64 = 1.0 / 16.0;

    /// The paper's abbreviation: high, medium or low, dense or sparse.
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
    /// Its whole pages.
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
/// A file in `LAB_DATA` cannot be read.
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
    /// Loads the set.
    ///
    /// # Errors
    /// The package cannot be fetched, or has another hash.
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

    /// The directory of the unpacked files, which are fetched if they are missing.
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
        // It gets its name only when it is complete.
        let partly = folder.join("partly");
        run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&partly))?;
        fs::rename(partly, folder.join("files"))?;
        Ok(folder.join("files"))
    }
}

/// The output of a program.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} cannot be run"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A file, or the files below a directory with this suffix; symbolic links are not followed.
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

/// The beginning of the concatenation of these files.
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
    fn dataset_class_follows_ratio_and_spread() {
        let name = |ratio, spread| Class { ratio, spread }.name();
        assert_eq!([name(4.0, 0.01), name(2.5, 0.2), name(2.0, 0.0)], ["HD", "HS", "MD"]);
        assert_eq!([name(1.5, 0.1), name(1.0, 0.0), name(1.3, 0.9)], ["MS", "LD", "LS"]);
    }

    #[test]
    fn dataset_of_zeros_is_high_and_dense() {
        let set = Dataset { name: "zeros".into(), origin: String::new(), bytes: vec![0; 5 * PAGE] };
        let class = set.class();
        assert!(class.ratio > 100.0, "{class:?}");
        assert_eq!(class.name(), "HD");
    }
}
