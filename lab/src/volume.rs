//! A volume as seen by jobs: a device with one zone that can be written anywhere.

use anyhow::{Context, Result};
use emu::clock::Clock;
use engine::{
    device::{Command, Completion, Done, Geometry, Slots, Status, ZonedDevice},
    runtime::Runtime,
    volume::{Volume, VolumeCreateOptions, VolumeOptions},
};
use std::rc::Rc;

struct VolumeDevice {
    volume: Volume,
    runtime: Runtime,
    slots: Rc<Slots>,
    geometry: Geometry,
}

/// A new volume of `blocks` blocks on `device`, with all of its map in memory.
///
/// # Errors
/// The device is too small.
pub fn over(
    runtime: &Runtime,
    clock: &Clock,
    device: Rc<dyn ZonedDevice>,
    blocks: u64,
) -> Result<Rc<dyn ZonedDevice>> {
    let made = Volume::create(
        runtime,
        device.clone(),
        VolumeCreateOptions { uuid: [1; 16], blocks: Some(blocks), ..VolumeCreateOptions::default() },
    );
    runtime.block_on(made, || clock.advance()).context("creating the volume never ends")??;
    let behaviour = VolumeOptions { map_pages: Some(usize::MAX / 2), ..VolumeOptions::default() };
    let volume = Volume::open(runtime, device.clone(), behaviour);
    let volume = runtime.block_on(volume, || clock.advance()).context("opening the volume never ends")??;
    let blocks = volume.blocks();
    let geometry = Geometry {
        zones: 1,
        zone_size_blocks: blocks,
        zone_capacity_blocks: blocks,
        max_open: 0,
        max_active: 0,
        ..device.geometry().clone()
    };
    Ok(Rc::new(VolumeDevice { volume, runtime: runtime.clone(), slots: Rc::default(), geometry }))
}

impl ZonedDevice for VolumeDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let (completer, completion) = self.slots.pair();
        let volume = self.volume.clone();
        self.runtime.spawn(async move {
            completer.complete(match command {
                Command::Write { lba, data, fua, .. } => {
                    let result = volume.write(lba.0, &data, fua).await;
                    Done { result, data, ..Done::ok() }
                }
                Command::Read { lba, data, .. } => match volume.read(lba.0, data).await {
                    Ok(data) => Done::with_data(data),
                    Err(error) => Done::error(error),
                },
                _ => Done::error(Status::InvalidField.into()),
            });
        });
        completion
    }
}
