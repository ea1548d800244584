//! The volume under test: one that has a device for itself, or the volumes of a pool, one behind the other.

use engine::{
    buf::{BLOCK, Buf, BufPool},
    device::{DeviceError, Status},
    volume::{
        Codec, CompressionWorkers, NewSnapshot, NewVolume, Pool, PoolError, Unit, Volume, VolumeError,
        VolumeStatus,
    },
};
use std::{cell::RefCell, ops::Range, rc::Rc};

/// Reads blocks, from odd ones on into several buffers, whose contents before are not zeros.
async fn read(volume: &Volume, at: u64, data: Buf) -> Result<Buf, DeviceError> {
    if at.is_multiple_of(2) {
        return volume.read(at, data).await;
    }
    let buffers = RefCell::new(BufPool::fed_by(Rc::new(|bytes| Some(Buf::copy_of(&vec![0xa5; bytes])))));
    let parts = volume.read_parts(at, data.blocks(), &buffers).await?;
    let bytes: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), data.len(), "bytes of a read");
    Ok(Buf::copy_of(&bytes.concat()))
}

#[derive(Clone)]
pub struct Tested {
    /// At least one.
    volumes: Vec<TestedVolume>,
    pool: Option<Pool>,
    /// All blocks.
    space: Volume,
}

#[derive(Clone)]
struct TestedVolume {
    /// `None` for a volume of a pool that was removed, if a full pool has no room for its successor: it is empty, and
    /// cannot be written.
    volume: Option<Volume>,
    blocks: u64,
}

impl TestedVolume {
    fn blocks(&self) -> u64 {
        self.volume.as_ref().map_or(self.blocks, Volume::blocks)
    }
}

/// Name of a volume of a pool.
fn name(number: usize) -> String {
    format!("volume {number}")
}

impl Tested {
    pub fn of_volume(volume: Volume) -> Tested {
        let space = volume.clone();
        Tested {
            volumes: vec![TestedVolume { blocks: volume.blocks(), volume: Some(volume) }],
            pool: None,
            space,
        }
    }

    /// The volumes of a pool. Those that are missing are added, with these sizes: an interrupted replacement has removed
    /// them.
    pub async fn of_pool(pool: Pool, sizes: &[u64]) -> Result<Tested, VolumeError> {
        pool.finish_removals().await?;
        let mut volumes = Vec::new();
        for (number, blocks) in sizes.iter().copied().enumerate() {
            let volume = match pool.find(&name(number)) {
                Ok(volume) => Some(volume),
                Err(_) => added(&pool, number, blocks).await?,
            };
            volumes.push(TestedVolume { volume, blocks });
        }
        let there = volumes.iter().filter(|tested| tested.volume.is_some()).count();
        assert_eq!(pool.volumes().len(), there, "volumes of the pool");
        Ok(Tested { volumes, space: pool.space().clone(), pool: Some(pool) })
    }

    pub fn blocks(&self) -> u64 {
        self.volumes.iter().map(TestedVolume::blocks).sum()
    }

    pub fn sizes(&self) -> Vec<u64> {
        self.volumes.iter().map(TestedVolume::blocks).collect()
    }

    /// The blocks of a volume of a pool.
    pub fn range(&self, number: usize) -> Range<u64> {
        let start = self.volumes[..number].iter().map(TestedVolume::blocks).sum();
        start..start + self.volumes[number].blocks()
    }

    /// The parts of a request: the volume, the first block in it, and the blocks of the request.
    fn parts(&self, at: u64, blocks: u64) -> Vec<(Option<&Volume>, u64, Range<u64>)> {
        let ranges = (0..self.volumes.len()).map(|number| self.range(number));
        let parts = self.volumes.iter().zip(ranges).filter_map(|(tested, range)| {
            let (from, to) = (range.start.max(at), range.end.min(at + blocks));
            (from < to).then(|| (tested.volume.as_ref(), from - range.start, from - at..to - at))
        });
        parts.collect()
    }

    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        let blocks = data.blocks();
        if let [TestedVolume { volume: Some(volume), .. }] = &self.volumes[..] {
            return read(volume, at, data).await;
        }
        let mut all = Vec::with_capacity(data.len());
        for (volume, at, part) in self.parts(at, blocks) {
            let some = Buf::zeroed((part.end - part.start) as usize * BLOCK);
            match volume {
                Some(volume) => all.extend_from_slice(&read(volume, at, some).await?),
                None => all.extend_from_slice(&some),
            }
        }
        Ok(Buf::copy_of(&all))
    }

    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        for (volume, at, part) in self.parts(at, data.blocks()) {
            let volume = volume.ok_or(Status::CapacityExceeded)?;
            volume.write(at, &data.slice_blocks(part), fua).await?;
        }
        Ok(())
    }

    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        for (volume, at, part) in self.parts(at, blocks) {
            if let Some(volume) = volume {
                volume.discard(at, part.end - part.start).await?;
            }
        }
        Ok(())
    }

    pub async fn flush(&self) -> Result<(), DeviceError> {
        self.space.flush().await
    }

    pub async fn stop(&self) -> Result<(), DeviceError> {
        self.space.stop().await
    }

    pub async fn compress(&self, codec: Option<Codec>, unit: Unit) -> Result<(), DeviceError> {
        for volume in self.volumes.iter().filter_map(|tested| tested.volume.as_ref()) {
            volume.compress(codec, unit).await?;
        }
        Ok(())
    }

    pub fn employ(&self, workers: Rc<dyn CompressionWorkers>) {
        self.space.employ(workers);
    }

    /// Enlarges the volume, or the last one of a pool, until there are `blocks` blocks.
    pub async fn grow(&self, blocks: u64) -> Result<(), VolumeError> {
        let have = self.blocks();
        let more = blocks.checked_sub(have).ok_or(VolumeError::Shrinks { have })?;
        match self.volumes.last().and_then(|tested| tested.volume.as_ref()) {
            Some(last) => last.grow(last.blocks() + more).await,
            None => Err(VolumeError::TooFullToGrow),
        }
    }

    /// Cuts off the end of the volume, or of the last one of a pool, until there are `blocks` blocks. One block stays.
    pub async fn shrink(&self, blocks: u64) -> Result<(), VolumeError> {
        let less = self.blocks().saturating_sub(blocks);
        match self.volumes.last().and_then(|tested| tested.volume.as_ref()) {
            Some(last) => last.resize(last.blocks().saturating_sub(less).max(1)).await,
            None => Ok(()),
        }
    }

    /// Number of volumes that can be replaced: those of a pool.
    pub fn volumes_of_pool(&self) -> usize {
        if self.pool.is_some() { self.volumes.len() } else { 0 }
    }

    /// Removes a volume of a pool, and adds another one of the same name and size.
    pub async fn replace(&mut self, number: usize) -> Result<(), VolumeError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let tested = &mut self.volumes[number];
        tested.blocks = tested.blocks();
        if tested.volume.is_some() {
            pool.remove(&name(number)).await?;
        }
        tested.volume = added(pool, number, tested.blocks).await?;
        Ok(())
    }

    /// Whether a volume of a pool is there: a full pool may have had no room for its record.
    pub fn is_there(&self, number: usize) -> bool {
        self.volumes[number].volume.is_some()
    }

    /// Whether a volume of a pool is a clone.
    pub fn is_clone(&self, number: usize) -> bool {
        self.clone_of(number).is_some()
    }

    fn clone_of(&self, number: usize) -> Option<String> {
        self.volumes[number].volume.as_ref().and_then(Volume::clone_of)
    }

    /// Whether a snapshot has a clone.
    pub fn has_clone(&self, of: usize, id: u64) -> bool {
        let snapshot = format!("{}@{id}", name(of));
        (0..self.volumes.len()).any(|number| self.clone_of(number).as_ref() == Some(&snapshot))
    }

    /// The pool; only its volumes have snapshots.
    fn pool(&self) -> Result<&Pool, VolumeError> {
        self.pool.as_ref().ok_or(VolumeError::NotThere)
    }

    /// The snapshots, by volume: their numbers, in order.
    pub fn snapshots(&self) -> Vec<(usize, u64)> {
        let Some(pool) = &self.pool else { return Vec::new() };
        let there = |number: &usize| self.volumes[*number].volume.is_some();
        let of_volume = |number: usize| {
            let snapshots = pool.snapshots(&name(number)).unwrap_or_default();
            let ids = snapshots.into_iter().filter_map(|snapshot| snapshot.name()?.parse().ok());
            ids.map(move |id| (number, id)).collect::<Vec<(usize, u64)>>()
        };
        (0..self.volumes.len()).filter(there).flat_map(of_volume).collect()
    }

    fn snapshot_volume(&self, number: usize, id: u64) -> Result<Volume, VolumeError> {
        self.pool()?.find(&format!("{}@{id}", name(number)))
    }

    pub async fn snapshot(&self, number: usize, id: u64) -> Result<(), VolumeError> {
        let new = NewSnapshot { volume: name(number), name: id.to_string(), uuid: [id as u8; 16] };
        self.pool()?.snapshot(vec![new]).await.map(drop)
    }

    pub async fn remove_snapshot(&self, number: usize, id: u64) -> Result<(), VolumeError> {
        self.pool()?.remove_snapshot(&name(number), &id.to_string()).await
    }

    pub async fn roll_back(&self, number: usize, id: u64) -> Result<(), VolumeError> {
        self.pool()?.roll_back(&name(number), &id.to_string()).await
    }

    pub async fn read_snapshot(
        &self,
        (number, id): (usize, u64),
        at: u64,
        data: Buf,
    ) -> Result<Buf, VolumeError> {
        Ok(self.snapshot_volume(number, id)?.read(at, data).await?)
    }

    /// Whether a block of a snapshot, `VOLUME@SNAPSHOT`, has data.
    pub async fn has_data(&self, name: &str, block: u64) -> Result<bool, VolumeError> {
        let data = self.pool()?.find(name)?.read(block, Buf::zeroed(BLOCK)).await?;
        Ok(data.iter().any(|byte| *byte != 0))
    }

    /// Replaces a volume of a pool by a clone of a snapshot.
    pub async fn make_clone(&mut self, number: usize, (of, id): (usize, u64)) -> Result<(), VolumeError> {
        let pool = self.pool()?.clone();
        let tested = &mut self.volumes[number];
        tested.blocks = tested.blocks();
        if tested.volume.take().is_some() {
            pool.remove(&name(number)).await?;
        }
        let added = pool.clone_of((&name(of), &id.to_string()), &name(number), [number as u8; 16]).await;
        tested.volume = or_full(added)?;
        Ok(())
    }

    /// Checks the map; returns the number of mapped blocks that are in no volume.
    pub async fn audit(&self) -> Result<u64, String> {
        let Some(pool) = &self.pool else { return self.space.audit().await.map(|()| 0) };
        // From now on the counts follow all changes.
        pool.space_use().await.map_err(|error| error.to_string())?;
        self.space.audit().await?;
        pool.audit().await
    }

    /// Most blocks that a pool maps beside those of its volumes, and whether writes may be refused in spite of room: it
    /// has no extent left, or a volume is missing.
    pub fn table(&self) -> (u64, bool) {
        self.pool.as_ref().map_or((0, false), |pool| {
            let (extents, free, _) = pool.extents();
            let is_missing = self.volumes.iter().any(|tested| tested.volume.is_none());
            let is_without_extents = free as u64 <= pool.extents_set_aside();
            (extents as u64 + self.volumes.len() as u64, is_without_extents || is_missing)
        })
    }

    /// Guarantees blocks to a volume of a pool; whether that was possible.
    pub async fn guarantee(&self, number: usize, blocks: u64) -> Result<bool, VolumeError> {
        let Some(volume) = &self.volumes[number].volume else { return Ok(false) };
        match volume.guarantee(blocks).await {
            Err(VolumeError::Pool(
                PoolError::NotGuaranteeable { .. }
                | PoolError::FewAddresses { .. }
                | PoolError::GuaranteeInSmallZones { .. },
            )) => Ok(false),
            guaranteed => guaranteed.map(|()| true),
        }
    }

    /// Blocks that are guaranteed to a volume of a pool.
    pub fn guaranteed(&self, number: usize) -> u64 {
        self.volumes[number].volume.as_ref().map_or(0, Volume::guaranteed)
    }

    pub fn is_over_committed(&self) -> bool {
        self.space.is_over_committed()
    }

    pub fn status(&self) -> VolumeStatus {
        let codec = self.volumes.iter().find_map(|tested| tested.volume.as_ref()?.status().codec);
        VolumeStatus { blocks: self.blocks(), codec, ..self.space.status() }
    }
}

/// As [`add`]; `None` if a full pool has no room for the record of the volume.
async fn added(pool: &Pool, number: usize, blocks: u64) -> Result<Option<Volume>, VolumeError> {
    or_full(add(pool, number, blocks).await)
}

/// A volume that was added; `None` if a full pool has no room for its record.
fn or_full(added: Result<Volume, VolumeError>) -> Result<Option<Volume>, VolumeError> {
    match added {
        Err(VolumeError::Device(DeviceError::Status(Status::CapacityExceeded))) => Ok(None),
        added => added.map(Some),
    }
}

/// Adds a volume to a pool.
pub async fn add(pool: &Pool, number: usize, blocks: u64) -> Result<Volume, VolumeError> {
    let new = NewVolume {
        name: name(number),
        uuid: [number as u8; 16],
        blocks,
        sector: Default::default(),
        codec: None,
        unit: Unit::default(),
        qos: Default::default(),
        guaranteed: 0,
    };
    pool.add(new).await
}
