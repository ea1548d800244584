//! Management of namespaces, by name and size in bytes, on an array that this process runs.

use crate::{
    control::qos::NewQos,
    process::{clock::clock, output::quoted, size::show_blocks},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::{
    evidence::Presence,
    qos::Qos,
    volume::{NoVolume, Volume, VolumePlan},
    vzone::{Namespace, NamespaceOptions, Namespaces, PATIENCE_US, Spec, VzoneError},
};
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// Default for the zones of a namespace that may be active at once.
const ACTIVE: u32 = 4;

/// Default for the weight of a namespace.
const WEIGHT: u32 = 1;

/// Options of the namespaces that this process runs.
pub fn behaviour() -> NamespaceOptions {
    NamespaceOptions { clock: clock(), patience_us: PATIENCE_US, admission: true }
}

/// Parameters of a new namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewNamespace {
    pub name: String,
    /// Least capacity, in blocks.
    pub blocks: u64,
    /// Zones that may be active at once; `None` for the default.
    pub active: Option<u32>,
    /// Zones of the array guaranteed to each active zone.
    pub width: u32,
    pub weight: u32,
    pub qos: NewQos,
}

impl NewNamespace {
    /// The namespace with so many zones, of which so many may be active.
    fn spec(&self, zones: u32, active: u32) -> Spec {
        Spec {
            name: self.name.clone(),
            zones,
            max_active: active,
            max_open: active,
            essential: self.width,
            weight: self.weight,
            qos: self.qos.into(),
        }
    }
}

/// The namespaces of an array. Errors name them as the user does.
pub struct Tenants {
    pub namespaces: Namespaces,
    /// The array's name as the user typed it.
    pub array: String,
}

impl Tenants {
    pub async fn add(&self, wanted: &NewNamespace) -> Result<Namespace> {
        let NewNamespace { width, weight, .. } = *wanted;
        let zones = self.zones_for(wanted.blocks)?;
        let active = wanted.active.unwrap_or(ACTIVE.min(zones));
        ensure!(active <= zones, "--active {active} is more than the {zones} zones of the namespace");
        ensure!((1..=1000).contains(&weight), "a weight is 1 to 1000, not {weight}");
        ensure!(width.is_power_of_two(), "--width is a power of two, not {width}");
        let most = self.namespaces.vzone_zones();
        ensure!(
            width <= most,
            "--width is at most {most}: a zone of a namespace consists of so many zones of '{}'",
            self.array
        );
        self.namespaces
            .add(wanted.spec(zones, active))
            .await
            .map_err(|error| self.explain(error, &wanted.name))
    }

    /// The smallest namespace that has room for a volume of `blocks` blocks.
    pub fn for_volume(&self, name: &str, blocks: u64) -> Result<NewNamespace> {
        let (mut zones, mut active) = (self.zones_for(blocks)?.max(1), ACTIVE);
        let most = self.namespaces.zones();
        let capacity = self.namespaces.zone_capacity_blocks().max(1);
        let qos = NewQos::default();
        let mut wanted =
            NewNamespace { name: name.into(), blocks, active: None, width: 1, weight: WEIGHT, qos };
        while u64::from(zones) <= most {
            let geometry = self.namespaces.geometry_of(&wanted.spec(zones, active));
            match VolumePlan::of(&geometry, Some(blocks), None) {
                Ok(VolumePlan { usable, .. }) if usable >= blocks => {
                    (wanted.blocks, wanted.active) = (zones as u64 * capacity, Some(active));
                    return Ok(wanted);
                }
                Ok(VolumePlan { usable, .. }) => {
                    let more = (blocks - usable).div_ceil(capacity).min(most + 1);
                    zones = zones.saturating_add(more as u32);
                }
                Err(NoVolume::FewActive { least, .. }) if least > active => {
                    active = least;
                    zones = zones.max(least);
                }
                Err(NoVolume::DeviceTooSmall { .. }) => zones += 1,
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("no volume can be created on '{}/{name}'", self.array));
                }
            }
        }
        bail!(
            "'{}' is too small for a volume of {}: it has {most} zones of {}",
            self.array,
            show_blocks(blocks),
            show_blocks(capacity)
        )
    }

    /// The namespace `name`, if it may be resized, and the number of zones that hold `blocks`.
    pub async fn resizable(&self, name: &str, blocks: u64) -> Result<(Namespace, u32)> {
        let (found, zones) = (self.find(name)?, self.zones_for(blocks)?);
        ensure!(
            Volume::is_on(Rc::new(found.clone())).await? == Presence::No,
            "'{}/{name}' carries or may carry a volume, which uses these zones: copy it to a volume on \
             another namespace",
            self.array
        );
        Ok((found, zones))
    }

    /// Resizes a namespace returned by [`Tenants::resizable`] to `zones`.
    pub async fn resize(&self, namespace: &Namespace, zones: u32) -> Result<Namespace> {
        let name = namespace.name();
        self.namespaces.resize(name, zones).await.map_err(|error| self.explain(error, name))
    }

    pub async fn set(&self, name: &str, qos: Qos) -> Result<Namespace> {
        self.namespaces.set_qos(name, qos).await.map_err(|error| self.explain(error, name))
    }

    pub async fn remove(&self, name: &str) -> Result<()> {
        self.namespaces.remove(name).await.map_err(|error| self.explain(error, name))
    }

    /// The namespace called `name`.
    pub fn find(&self, name: &str) -> Result<Namespace> {
        let found = self.namespaces.list().into_iter().find(|namespace| namespace.name() == name);
        found.ok_or_else(|| self.explain(VzoneError::Unknown, name))
    }

    /// As [`Tenants::find`], for its removal: requires `yes`.
    pub fn doomed(&self, name: &str, yes: bool) -> Result<Namespace> {
        let found = self.find(name)?;
        ensure!(yes, "this destroys {}/{name} and its data: confirm with --yes", self.array);
        Ok(found)
    }

    /// Translates an error into the terms of the command line.
    fn explain(&self, error: VzoneError, name: &str) -> anyhow::Error {
        let array = &self.array;
        match error {
            VzoneError::Full { left } => {
                let capacity = self.namespaces.zone_capacity_blocks();
                anyhow!("'{array}' has room for {left} more zones, {}", show_blocks(left * capacity))
            }
            VzoneError::Floors { left } => anyhow!(
                "too few active zones of '{array}': --active times --width are needed, and {left} are neither \
                 guaranteed to other namespaces nor in use"
            ),
            VzoneError::Taken => anyhow!("'{array}' has a namespace '{name}' already"),
            VzoneError::Unknown => {
                let names: Vec<String> =
                    self.namespaces.list().iter().map(|namespace| quoted(namespace.name())).collect();
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                anyhow!("'{array}' has no namespace '{name}'; there are {there}")
            }
            VzoneError::Holds { zone } => {
                anyhow!("zone {zone} of {array}/{name} holds data that would be lost: reset it first")
            }
            error => anyhow!("{array}/{name}: {error}"),
        }
    }

    /// Number of zones that hold `blocks`.
    fn zones_for(&self, blocks: u64) -> Result<u32> {
        let zones = blocks.div_ceil(self.namespaces.zone_capacity_blocks().max(1));
        u32::try_from(zones)
            .ok()
            .with_context(|| format!("a namespace of {} is too large", show_blocks(blocks)))
    }
}

/// The UUID of a namespace: a hash (FNV-1a) of the array's UUID and the namespace's name. Its number is not included:
/// numbers are reused, and other hosts would take the new namespace for the old one.
pub fn uuid_of(array: [u8; 16], name: &str) -> [u8; 16] {
    const BASIS: u128 = 0x6c62272e07bb014262b821756295c58d;
    const PRIME: u128 = 0x0000000001000000000000000000013b;
    let bytes = array.iter().chain(name.as_bytes());
    bytes.fold(BASIS, |hash, byte| (hash ^ *byte as u128).wrapping_mul(PRIME)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_uuids_differ_by_array_and_name() {
        let uuids = [[1; 16], [2; 16]].map(|array| ["a", "b"].map(|name| uuid_of(array, name)));
        let (all, first) = (uuids.concat(), uuid_of([1; 16], "a"));
        assert_eq!(all.iter().filter(|uuid| **uuid == first).count(), 1);
        assert!((1..4).all(|at| all[at - 1] != all[at]));
    }
}
