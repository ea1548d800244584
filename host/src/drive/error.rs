//! Errors of opening a drive.

use emu::ssd::cause;
use std::{io, path::Path, time::Duration};

/// The reason for which a drive cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct OpenError {
    pub(super) path: String,
    pub(super) problem: String,
    pub(super) patience: Option<Duration>,
}

impl OpenError {
    pub(super) fn failed(path: &Path, problem: String) -> OpenError {
        OpenError { path: path.display().to_string(), problem, patience: None }
    }

    pub(super) fn in_use(path: &Path, problem: String, patience: Duration) -> OpenError {
        OpenError { patience: Some(patience), ..OpenError::failed(path, problem) }
    }

    /// How long to retry, if the drive is locked by another process.
    pub fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// The problem, without the path.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// The error for a path or device that cannot be opened, with the system's reason.
pub(super) fn cannot_open(path: &Path, error: &io::Error) -> OpenError {
    OpenError::failed(path, format!("cannot be opened: {}", cause(error)))
}
