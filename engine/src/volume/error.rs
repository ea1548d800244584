//! Why there is no volume.

/// Why there is no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct VolumeError(pub String);

impl From<crate::device::DeviceError> for VolumeError {
    fn from(error: crate::device::DeviceError) -> VolumeError {
        VolumeError(format!("the device of the volume: {error}"))
    }
}
