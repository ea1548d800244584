//! Why there is no array, or no longer.

/// Why there is no array, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArrayError(pub String);
