//! Input of the demo: a directory as a tar stream, and the comparison of the stream that was read back.
//!
//! The stream is kept in a temporary file, because acknowledged data has to be compared with the data that was sent,
//! not with files that may change meanwhile.

use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File, Metadata},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

/// A tar stream of a directory.
pub struct DemoSource {
    root: PathBuf,
    file: File,
    /// Length of the stream.
    pub bytes: u64,
    /// Files, directories and links in it.
    pub entries: u64,
    /// Notes on entries that were left out: unreadable, or no file, directory or link.
    pub notes: Vec<String>,
}

/// Result of the comparison with the files.
#[derive(Default)]
pub struct Comparison {
    /// Entries that are the same.
    pub same: u64,
    /// Files that changed on disk while the demo ran.
    pub changed: Vec<PathBuf>,
    /// Entries that came back different.
    pub different: Vec<PathBuf>,
}

/// The error message if a temporary file cannot be created.
pub fn no_temporary_files() -> String {
    format!("no temporary files can be made in {} ($TMPDIR)", std::env::temp_dir().display())
}

impl DemoSource {
    /// Packs `root`, except the directories and files below it for which `skip` returns true.
    pub fn pack(root: &Path, mut skip: impl FnMut(&Path, &Metadata) -> bool) -> Result<DemoSource> {
        // If the root is a symbolic link, its target is packed.
        let real = root.canonicalize().with_context(|| format!("{} cannot be read", root.display()))?;
        let meta = fs::metadata(&real).with_context(|| format!("{} cannot be read", root.display()))?;
        ensure!(meta.is_dir() || meta.is_file(), "{} is neither a file nor a directory", root.display());
        let file = tempfile::tempfile().with_context(no_temporary_files)?;
        let mut builder = tar::Builder::new(std::io::BufWriter::with_capacity(1 << 20, file));
        builder.follow_symlinks(false);
        let mut source = DemoSource {
            root: real.clone(),
            file: tempfile::tempfile()?,
            bytes: 0,
            entries: 0,
            notes: Vec::new(),
        };
        if meta.is_dir() {
            source.pack_dir(&mut builder, Path::new(""), &mut skip)?;
        } else {
            let name = real.file_name().context("the path has no name")?;
            source.root = real.parent().unwrap_or(Path::new("/")).to_path_buf();
            source.pack_file(&mut builder, Path::new(name))?;
            ensure!(source.entries == 1, "{} cannot be read", root.display());
        }
        source.file = builder.into_inner()?.into_inner().context("the stream cannot be stored")?;
        source.bytes = source.file.seek(SeekFrom::End(0))?;
        Ok(source)
    }

    /// Packs the contents of the directory at `inside` the root, sorted by name.
    fn pack_dir<W: Write>(
        &mut self,
        builder: &mut tar::Builder<W>,
        inside: &Path,
        skip: &mut impl FnMut(&Path, &Metadata) -> bool,
    ) -> Result<()> {
        let dir = self.root.join(inside);
        let listed: std::io::Result<Vec<_>> = fs::read_dir(&dir).and_then(Iterator::collect);
        let mut entries = match listed {
            Ok(entries) => entries,
            Err(error) => {
                self.notes.push(format!("{} is left out: {error}", dir.display()));
                return Ok(());
            }
        };
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let path = inside.join(entry.file_name());
            let full = self.root.join(&path);
            let Ok(meta) = fs::symlink_metadata(&full) else { continue };
            if (meta.is_dir() || meta.is_file()) && skip(&full, &meta) {
                continue;
            }
            if meta.is_dir() {
                let mut header = header(&meta, 0);
                builder
                    .append_data(&mut header, &path, std::io::empty())
                    .context("the stream cannot be stored")?;
                self.entries += 1;
                self.pack_dir(builder, &path, skip)?;
            } else if meta.is_symlink() {
                match fs::read_link(&full) {
                    Ok(target) => {
                        let mut header = header(&meta, 0);
                        builder
                            .append_link(&mut header, &path, target)
                            .context("the stream cannot be stored")?;
                        self.entries += 1;
                    }
                    Err(error) => self.notes.push(format!("{} is left out: {error}", full.display())),
                }
            } else if meta.is_file() {
                self.pack_file(builder, &path)?;
            } else {
                self.notes.push(format!("{} is left out: not a file, directory or link", full.display()));
            }
        }
        Ok(())
    }

    fn pack_file<W: Write>(&mut self, builder: &mut tar::Builder<W>, path: &Path) -> Result<()> {
        let full = self.root.join(path);
        let opened = File::open(&full).and_then(|file| file.metadata().map(|meta| (file, meta)));
        let (file, meta) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.notes.push(format!("{} is left out: {error}", full.display()));
                return Ok(());
            }
        };
        // A file that shrinks meanwhile is padded with zeros, as in any tar.
        let content = file.take(meta.len()).chain(std::io::repeat(0)).take(meta.len());
        let mut header = header(&meta, meta.len());
        builder
            .append_data(&mut header, path, content)
            .with_context(|| format!("{} cannot be packed", full.display()))?;
        self.entries += 1;
        Ok(())
    }

    /// Fills `target` with the stream from `offset` on; zeros follow its end.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let there = self.bytes.saturating_sub(offset).min(target.len() as u64) as usize;
        self.file.read_exact_at(&mut target[..there], offset).context("the stream cannot be read back")?;
        target[there..].fill(0);
        Ok(())
    }

    /// Unpacks `stream` and compares every entry with its file.
    pub fn compare(&self, stream: impl Read) -> Result<Comparison> {
        let mut archive = tar::Archive::new(stream);
        let mut comparison = Comparison::default();
        for entry in archive.entries()? {
            let mut entry = entry.context("the data read back is not a tar stream")?;
            let path = entry.path().context("an entry came back without a name")?.into_owned();
            let full = self.root.join(&path);
            let mtime = entry.header().mtime()? as i64;
            let Ok(meta) = fs::symlink_metadata(&full) else {
                comparison.changed.push(path);
                continue;
            };
            let mut unreadable = false;
            let same = match entry.header().entry_type() {
                tar::EntryType::Directory => meta.is_dir(),
                tar::EntryType::Symlink => {
                    let target = entry.link_name()?.map(|target| target.into_owned());
                    fs::read_link(&full).ok() == target
                }
                _ if meta.is_file() => match same_content(&mut entry, &full)? {
                    Some(same) => same,
                    None => {
                        unreadable = true;
                        false
                    }
                },
                _ => false,
            };
            let resized = entry.size() != meta.len() && !meta.is_dir() && !meta.is_symlink();
            let touched = unreadable || meta.mtime() != mtime || resized;
            match same {
                true => comparison.same += 1,
                false if touched => comparison.changed.push(path),
                false => comparison.different.push(path),
            }
        }
        Ok(comparison)
    }
}

fn header(meta: &Metadata, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_metadata(meta);
    header.set_size(size);
    header
}

/// Whether the file at `path` still has the `stored` contents; `None` if it has grown, or cannot be read any more.
fn same_content(stored: &mut impl Read, path: &Path) -> Result<Option<bool>> {
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = stored.read(&mut a).context("the data read back cannot be unpacked")?;
        if count == 0 {
            // Longer than before, or than its metadata says, as files generated by the kernel are.
            return Ok(file.read(&mut b[..1]).is_ok_and(|more| more == 0).then_some(true));
        }
        match file.read_exact(&mut b[..count]) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Ok(None),
            read if read.is_err() || a[..count] != b[..count] => return Ok(Some(false)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_source_round_trips_tree_and_detects_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("empty/inside")).unwrap();
        fs::create_dir(root.join("skipped")).unwrap();
        fs::write(root.join("skipped/file"), "x").unwrap();
        fs::write(root.join("a \n\"name\" ü"), vec![7; 70_000]).unwrap();
        fs::write(root.join("nothing"), "").unwrap();
        fs::write(root.join("long".repeat(60)), "long name").unwrap();
        std::os::unix::fs::symlink("t".repeat(200), root.join("link")).unwrap();
        let source = DemoSource::pack(root, |path, _| path.ends_with("skipped")).unwrap();
        assert_eq!(source.entries, 6);
        let mut stream = vec![0; source.bytes as usize];
        source.read_at(0, &mut stream).unwrap();
        let comparison = source.compare(&stream[..]).unwrap();
        assert_eq!((comparison.same, comparison.different.len(), comparison.changed.len()), (6, 0, 0));

        let at = stream.windows(9).position(|w| w == b"long name").unwrap();
        stream[at] ^= 1;
        let comparison = source.compare(&stream[..]).unwrap();
        assert_eq!((comparison.same, comparison.different.len()), (5, 1));
    }

    #[test]
    fn demo_source_packs_file_or_link_rejects_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "content").unwrap();
        assert_eq!(DemoSource::pack(&file, |_, _| false).unwrap().entries, 1);
        assert!(DemoSource::pack(&dir.path().join("missing"), |_, _| false).is_err());
        assert!(DemoSource::pack(Path::new("/dev/null"), |_, _| false).is_err());

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let source = DemoSource::pack(&link, |_, _| false).unwrap();
        let mut stream = vec![0; source.bytes as usize];
        source.read_at(0, &mut stream).unwrap();
        assert_eq!(source.compare(&stream[..]).unwrap().same, 1);
    }
}
