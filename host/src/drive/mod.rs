//! Drives: what a path leads to, opened and claimed for this process.

mod claim;
mod nvme;
mod sysfs;

use crate::reactor::Reactor;
use engine::device::ZonedDevice;
use nvme::NvmeDrive;
use sim::ssd::{EmulatedDrive, ImageError, ImageMedia};
use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    rc::Rc,
    time::Duration,
};
use sysfs::Node;

/// Why a drive cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct OpenError {
    path: String,
    problem: String,
    patience: Option<Duration>,
}

impl OpenError {
    fn failed(path: &Path, problem: String) -> OpenError {
        OpenError { path: path.display().to_string(), problem, patience: None }
    }

    fn in_use(path: &Path, problem: String, patience: Duration) -> OpenError {
        OpenError { patience: Some(patience), ..OpenError::failed(path, problem) }
    }

    /// How long trying again may help: that of a drive that another process has locked.
    pub fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// What is wrong, without the path.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl From<ImageError> for OpenError {
    fn from(error: ImageError) -> OpenError {
        let patience = error.in_use().then_some(claim::PATIENCE_WITH_THE_LIVING);
        OpenError { path: error.path, problem: error.problem, patience }
    }
}

/// Opens the drive at `path` and claims it: an image of an emulated drive or an NVMe zoned
/// namespace.
///
/// # Errors
/// When there is none, it is in use, or it is of a kind that is not supported.
pub fn open(reactor: &Reactor, path: &Path) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    let node = Node::at(path).map_err(|error| cannot_open(path, &error))?;
    match node {
        Node::File => Ok(Rc::new(EmulatedDrive::open_image(path)?)),
        Node::Namespace(name) => open_namespace(reactor, path, &name),
        Node::Block(name) => match sysfs::namespace(&name) {
            Some(namespace) if sysfs::is_zoned(&name) => {
                open_namespace(reactor, &Path::new("/dev").join(&namespace), &namespace)
            }
            _ => Err(OpenError::failed(path, "is not an NVMe zoned namespace".into())),
        },
        Node::Other => Err(OpenError::failed(path, "is neither a drive nor an image of one".into())),
    }
}

fn open_namespace(reactor: &Reactor, path: &Path, name: &str) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    let ring =
        reactor.ring().map_err(|error| OpenError::failed(path, format!("cannot be used: {error:#}")))?;
    Ok(Rc::new(NvmeDrive::open(ring, path, name)?))
}

/// Whether `path` may be a drive: an image, an NVMe namespace or block device with zones. Opens
/// nothing but files.
pub fn is_drive(path: &Path) -> bool {
    match Node::at(path) {
        Ok(Node::File) => ImageMedia::is_image(path),
        Ok(Node::Namespace(name)) => sysfs::is_zoned(&sysfs::twin(&name)),
        _ => false,
    }
}

fn open_file(path: &Path) -> Result<File, OpenError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| cannot_open(path, &error))
}

fn cannot_open(path: &Path, error: &io::Error) -> OpenError {
    OpenError::failed(path, format!("cannot be opened: {error}"))
}
