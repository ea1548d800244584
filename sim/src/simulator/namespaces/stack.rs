//! Sets up namespaces on a bare drive or an array, and reads whole zones of them.

use crate::simulator::layer::{DeviceBelow, sequenced, world::Life};
use engine::{
    array::{Array, Drive},
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice},
    runtime::Runtime,
    vzone::{Namespace, NamespaceOptions, Namespaces},
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::rc::Rc;

/// Prepares new drives for namespaces.
pub(super) async fn create(
    runtime: Runtime,
    life: Life,
    vzone_zones: u32,
    drives: Vec<Drive>,
    uuid: [u8; 16],
) -> Result<(), String> {
    let device = life.create(&runtime, drives, uuid).await?;
    Namespaces::create(device, uuid, vzone_zones).await.map_err(|e| e.to_string())
}

/// Opens the namespaces on these drives.
pub(super) async fn bring_up(
    runtime: Runtime,
    over: DeviceBelow,
    drives: Vec<Drive>,
    behaviour: NamespaceOptions,
) -> Result<Namespaces, String> {
    let device: Rc<dyn ZonedDevice> = match over {
        DeviceBelow::Drive => sequenced(&runtime, &drives)?,
        DeviceBelow::Array { .. } => {
            Rc::new(Array::assemble(&runtime, drives).await.map_err(|e| e.to_string())?)
        }
    };
    Namespaces::open(&runtime, device, behaviour).await.map_err(|e| e.to_string())
}

/// State and all blocks of a zone.
pub(super) async fn show(namespace: Namespace, zone: u32) -> Result<(ZoneInfo, Vec<u8>), String> {
    let first = ZoneIndex(zone);
    let done = namespace.submit(Command::Report { first, count: 1 }).await;
    done.result.map_err(|error| error.to_string())?;
    let info = *done.zones.first().ok_or("there is no such zone")?;
    let geometry = namespace.geometry().clone();
    let (mut all, mut at) = (Vec::new(), 0);
    while at < geometry.zone_capacity_blocks {
        let blocks = (geometry.max_transfer_blocks as u64).min(geometry.zone_capacity_blocks - at);
        let lba = Lba(geometry.start(first).0 + at);
        let done = namespace.submit(Command::read(lba, Buf::zeroed(blocks as usize * BLOCK))).await;
        done.result.map_err(|error| format!("a read of block {at} of zone {zone} fails: {error}"))?;
        all.extend_from_slice(&done.data);
        at += blocks;
    }
    Ok((info, all))
}
