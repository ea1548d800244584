//! Sets up the device below a volume: a bare drive behind a sequencer, or an array with an acknowledgement log.

use super::{
    scenario::VolumeScenario,
    tested::{self, Tested},
};
use crate::simulator::layer::{DeviceBelow, sequenced, world::Life};
use engine::{
    array::{Array, Drive, Tails},
    buf::Buf,
    device::{Command, Completion, DeviceError, Geometry, Slots, ZonedDevice, Zones},
    runtime::Runtime,
    volume::{self, Opened, Pool, PoolError, PoolShape, Volume, VolumeError, VolumeOptions, VolumePlan},
    zone::{Lba, ZoneIndex},
};
use std::{cell::RefCell, rc::Rc};

/// Slots of a pool for snapshots.
const SNAPSHOT_SLOTS: u32 = 6;

/// An array that records its tails for the next process, before any completion is reported.
pub(in crate::simulator) struct RecordingArray {
    array: Array,
    runtime: Runtime,
    slots: Rc<Slots>,
    tails: Rc<RefCell<Tails>>,
}

impl RecordingArray {
    /// An array without recorded tails, and the tails that it will record.
    pub(in crate::simulator) fn over(
        runtime: &Runtime,
        array: Array,
    ) -> (RecordingArray, Rc<RefCell<Tails>>) {
        let blocks = vec![0; array.geometry().zones as usize];
        let (assembly, power) = (array.assembly(), array.power_marks());
        let tails = Rc::new(RefCell::new(Tails { assembly, blocks, power }));
        let (runtime, slots) = (runtime.clone(), Rc::default());
        (RecordingArray { array, runtime, slots, tails: tails.clone() }, tails)
    }
}

impl ZonedDevice for RecordingArray {
    fn geometry(&self) -> &Geometry {
        self.array.geometry()
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        self.array.reread(lba, attempt)
    }

    fn cells(&self) -> u32 {
        self.array.cells()
    }

    fn write_cell(&self, zone: ZoneIndex, cell: u32, data: Buf) -> Completion {
        self.array.write_cell(zone, cell, data)
    }

    fn read_cell(&self, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
        self.array.read_cell(zone, cell, copy)
    }

    fn note_room(&self, lba: Lba, blocks: u64) -> usize {
        self.array.note_room(lba, blocks)
    }

    fn write_with_note(&self, lba: Lba, data: Buf, note: Buf) -> Completion {
        let zone = self.geometry().locate(lba).0;
        self.recorded(self.array.write_with_note(lba, data, note), zone, false)
    }

    fn note(&self, zone: ZoneIndex) -> Option<Buf> {
        self.array.note(zone)
    }

    fn submit(&self, command: Command) -> Completion {
        let (zone, resets) = match &command {
            Command::Write { lba, .. } => (self.geometry().locate(*lba).0, false),
            Command::Reset { zones: Zones::One(zone) } => (*zone, true),
            _ => return self.array.submit(command),
        };
        self.recorded(self.array.submit(command), zone, resets)
    }
}

impl RecordingArray {
    /// Records the tail of a zone when its command has completed.
    fn recorded(&self, done: Completion, zone: ZoneIndex, resets: bool) -> Completion {
        let tails = self.tails.clone();
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            let done = done.await;
            if done.result.is_ok() {
                let tail = &mut tails.borrow_mut().blocks[zone.0 as usize];
                *tail = if resets { 0 } else { done.tail.max(*tail) };
            }
            completer.complete(done);
        });
        completion
    }
}

/// Creates a volume on new drives.
pub(super) async fn create(
    runtime: Runtime,
    life: Life,
    scenario: VolumeScenario,
    drives: Vec<Drive>,
    uuid: [u8; 16],
) -> Result<Vec<u64>, String> {
    let device = life.create(&runtime, drives, uuid).await?;
    let blocks_for = |shards| {
        let plan = VolumePlan::of(device.geometry(), None, shards)?;
        let blocks = (plan.usable * scenario.size_percent / 100).max(1);
        VolumePlan::of(device.geometry(), Some(blocks), shards).map(|plan| plan.blocks)
    };
    let shards = Some(scenario.shards).filter(|shards| blocks_for(Some(*shards)).is_ok());
    let blocks = blocks_for(shards).map_err(|e| e.to_string())?;
    let VolumeScenario { codec, unit, .. } = scenario;
    let options =
        volume::VolumeCreateOptions { uuid, blocks: Some(blocks), codec, unit, shards, ..Default::default() };
    let pool = Some(PoolShape {
        extent_blocks: scenario.extent_blocks,
        slots: scenario.volumes as u32 + 1 + SNAPSHOT_SLOTS,
    });
    let of_pool = volume::VolumeCreateOptions { blocks: None, pool, ..options };
    // A small device has no room for a pool.
    if scenario.volumes == 0 || Pool::options(&*device, of_pool).is_err() {
        Volume::create(&runtime, device, options).await.map_err(|e| e.to_string())?;
        return Ok(Vec::new());
    }
    Pool::create(&runtime, device.clone(), of_pool).await.map_err(|e| e.to_string())?;
    let sizes = vec![(blocks / scenario.volumes).max(1); scenario.volumes as usize];
    match volume::open(&runtime, device, scenario.behaviour).await.map_err(|e| e.to_string())? {
        Opened::Volume(_) => return Err("a pool is taken for a volume".into()),
        Opened::Pool(pool) => {
            for (number, blocks) in sizes.iter().enumerate() {
                tested::add(&pool, number, *blocks).await.map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(sizes)
}

/// Opens the volume on these drives, and enlarges it to `size` blocks, if there are any. `left` are the tails of a killed
/// process; those of the new one are recorded in `tails`.
pub(super) async fn bring_up(
    runtime: Runtime,
    over: DeviceBelow,
    drives: Vec<Drive>,
    ((behaviour, size), sizes): ((VolumeOptions, Option<u64>), Vec<u64>),
    (left, tails): (Option<Tails>, Rc<RefCell<Tails>>),
) -> Result<Tested, String> {
    let device = match over {
        DeviceBelow::Drive => sequenced(&runtime, &drives)?,
        DeviceBelow::Array { .. } => {
            let array = match &left {
                Some(left) => Array::take_over(&runtime, drives, left).await,
                None => Array::assemble(&runtime, drives).await,
            };
            let array = array.map_err(|e| e.to_string())?;
            let blocks = vec![0; array.geometry().zones as usize];
            *tails.borrow_mut() = Tails { assembly: array.assembly(), blocks, power: array.power_marks() };
            Rc::new(RecordingArray { array, runtime: runtime.clone(), slots: Rc::default(), tails })
        }
    };
    let volume = match volume::open(&runtime, device, behaviour).await.map_err(|e| e.to_string())? {
        Opened::Volume(volume) => Tested::of_volume(volume),
        Opened::Pool(pool) => Tested::of_pool(pool, &sizes).await.map_err(|e| e.to_string())?,
    };
    if let Some(size) = size {
        match grow(&volume, size).await {
            // An interrupted growth has made it larger.
            Ok(()) | Err(VolumeError::Shrinks { .. }) => (),
            Err(error) => return Err(format!("not enlarged: {error}")),
        }
    }
    Ok(volume)
}

/// Enlarges the volume, unless it has several shards or too little room.
pub(super) async fn grow(volume: &Tested, size: u64) -> Result<(), VolumeError> {
    let before = volume.blocks();
    let grown = volume.grow(size).await;
    let expected = if grown.is_ok() { size } else { before };
    assert_eq!(volume.blocks(), expected, "blocks after growth from {before} to {size}: {grown:?}");
    match grown {
        Err(
            VolumeError::TooFullToGrow
            | VolumeError::ManyShards
            | VolumeError::Design(_)
            | VolumeError::Pool(PoolError::FewAddresses { .. } | PoolError::NotGuaranteeable { .. }),
        ) => Ok(()),
        grown => grown,
    }
}

/// Cuts off the end of the volume, which was discarded, unless snapshots have data there.
pub(super) async fn shrink(volume: &Tested, size: u64) -> Result<(), VolumeError> {
    let before = volume.blocks();
    let shrunk = volume.shrink(size).await;
    let expected = if shrunk.is_ok() { size } else { before };
    assert_eq!(volume.blocks(), expected, "blocks after a cut from {before} to {size}: {shrunk:?}");
    match shrunk {
        Err(VolumeError::Pool(
            PoolError::KeptBehindEnd { name, last, to } | PoolError::BelowBehindEnd { name, last, to },
        )) => {
            match volume.has_data(&name, last).await {
                // The snapshot has begun to be removed since.
                Err(
                    VolumeError::Device(DeviceError::Gone) | VolumeError::Pool(PoolError::NoSnapshot { .. }),
                ) => (),
                has_data => assert!(last >= to && has_data?, "block {last} of '{name}' has no data"),
            }
            Ok(())
        }
        shrunk => shrunk,
    }
}
