//! Snapshots and clones of the volumes of a pool.
//!
//! A snapshot is a volume of the pool whose blocks are at first those of its *head*, the volume that it was made of. Before
//! the head changes a block for the first time after a snapshot, the entry of the map moves to the latest snapshot
//! ([`EntryKind::Keep`](super::format::EntryKind::Keep)): no data is copied, and the map has each piece only once. So a
//! block of a snapshot is the first that is mapped of its own, of those of later snapshots in their order, and of that of
//! the head. A snapshot that is removed passes on to the one before it what that one needs.
//!
//! The blocks of a clone are at first those of a snapshot. Blocks that are written to the clone are in extents of its own, and
//! blocks that are discarded in it are holes.

use crate::{
    buf::BLOCK,
    device::DeviceError,
    qos::Qos,
    volume::{
        core::{Kin, VolumeCore},
        error::{PoolError, VolumeError},
        guarantee::check_snapshot_addresses,
        part::{PoolCore, PoolVolume, Quiet},
        pool_table::{ExtentOwner, MOST_SNAPSHOTS, VolumeOrigin, VolumeRecord},
        request::MapChange,
        root::MOST_LIVE_SHARED,
        state::Keep,
        thin::View,
    },
};
use std::{
    collections::BTreeSet,
    ops::Range,
    rc::{Rc, Weak},
};

/// A new snapshot of a volume.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// Name of the volume.
    pub volume: String,
    /// Its own name: 1 to 64 bytes, not that of another snapshot of the volume.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
}

/// The blocks of a pool that belong together: those of a volume and of its snapshots.
struct PoolKin {
    pool: Weak<PoolCore>,
    /// The shard in which the blocks are counted.
    shard: usize,
}

impl Kin for PoolKin {
    fn others(&self, block: u64, into: &mut Vec<u64>) {
        let Some(pool) = self.pool.upgrade() else { return };
        let block = pool.space.block(self.shard, block);
        let (owner, start) = pool.table.borrow().owner_of(block);
        let Some(volume) = owner.slot().and_then(|slot| pool.at(slot)) else { return };
        let head = pool.head_of(&volume).unwrap_or(volume);
        let snapshots = head.snapshots.borrow();
        for of_family in snapshots.iter().chain([&head]) {
            let extent = of_family.extent(owner.index().into());
            let other = pool.layout.start(extent) + (block - start);
            if extent != 0 && other != block {
                // What the volume has got again, after it was cut and has grown, may be in another shard.
                into.extend(pool.space.place_in(self.shard, other));
            }
        }
    }
}

/// Passes on what a snapshot keeps in an extent to the one before it.
async fn pass_on(
    pool: &PoolCore,
    snapshot: &PoolVolume,
    before: &PoolVolume,
    (extent, index): (u32, u32),
) -> Result<(), VolumeError> {
    assert!(
        before.number() < snapshot.number(),
        "snapshot {} passes on blocks to snapshot {}",
        snapshot.number(),
        before.number()
    );
    let changing = pool.changes.take().await;
    let own = before.extent(index.into());
    if own == 0 {
        let owner = ExtentOwner::new(before.slot, index, 0);
        pool.write_owners(pool.layout.owner_block(extent), |of| (of == extent).then_some(owner)).await?;
        pool.table.borrow_mut().give(extent, owner);
        snapshot.set_extent(index, 0, 0);
        before.set_extent(index, extent, 0);
        return Ok(());
    }
    drop(changing);
    let _passing = pool.passing.take().await;
    let (from, to) = (pool.layout.start(extent), pool.layout.start(own));
    let merge = MapChange::Merge(pool.space.distance(to, from));
    Ok(pool.space.change(to, pool.layout.extent_blocks.into(), merge).await?)
}

impl PoolCore {
    /// The volume in a slot.
    fn at(&self, slot: u32) -> Option<Rc<PoolVolume>> {
        self.volumes.borrow().get(&slot).cloned()
    }

    /// The volume that a snapshot was made of; `None` for other volumes.
    pub fn head_of(&self, volume: &PoolVolume) -> Option<Rc<PoolVolume>> {
        match volume.origin {
            VolumeOrigin::Snapshot { slot, .. } => self.at(slot),
            _ => None,
        }
    }

    /// The name of a volume, or `VOLUME@SNAPSHOT`.
    pub fn full_name(&self, volume: &PoolVolume) -> String {
        let name = volume.record.borrow().name.clone();
        match self.head_of(volume) {
            Some(head) => snapshot_name(&head, &name),
            None => name,
        }
    }

    /// The snapshot of which a volume is a clone.
    pub fn below(&self, volume: &PoolVolume) -> Option<Rc<PoolVolume>> {
        match volume.origin {
            VolumeOrigin::Clone { slot } => self.at(slot),
            _ => None,
        }
    }

    /// Links the snapshots to their volumes, after all records are read.
    ///
    /// # Errors
    /// When a record refers to a volume that does not exist, or to one that cannot be meant.
    pub fn link(self: &Rc<Self>) -> Result<(), VolumeError> {
        let volumes: Vec<Rc<PoolVolume>> = self.volumes.borrow().values().cloned().collect();
        for volume in &volumes {
            let of = volume.origin.slot().map(|slot| self.at(slot).ok_or(VolumeError::Absurd)).transpose()?;
            match (volume.origin, of) {
                (VolumeOrigin::Snapshot { number, .. }, Some(head)) if head.origin == VolumeOrigin::Empty => {
                    let mut snapshots = head.snapshots.borrow_mut();
                    let place = snapshots.partition_point(|other| other.number() < number);
                    let name = volume.record.borrow().name.clone();
                    let is_twice = |other: &Rc<PoolVolume>| {
                        other.number() == number || other.record.borrow().name == name
                    };
                    if snapshots.iter().any(is_twice) {
                        return Err(VolumeError::Absurd);
                    }
                    snapshots.insert(place, volume.clone());
                }
                (VolumeOrigin::Clone { .. }, Some(snapshot)) if snapshot.number() > 0 => {}
                (VolumeOrigin::Empty, None) => {}
                _ => return Err(VolumeError::Absurd),
            }
        }
        if volumes.iter().any(|volume| volume.origin != VolumeOrigin::Empty) {
            if !self.space.has_whole_extents() {
                return Err(VolumeError::Absurd);
            }
            self.set_kin();
        }
        Ok(())
    }

    /// Lets collection find the blocks of snapshots.
    fn set_kin(self: &Rc<Self>) {
        for (shard, core) in self.space.cores().iter().enumerate() {
            core.kin.get_or_init(|| Box::new(PoolKin { pool: Rc::downgrade(self), shard }));
        }
    }

    /// Adds the blocks of the pool from which extent `index` of a volume is read, from block `at` of it on.
    pub fn view(&self, volume: &PoolVolume, index: u64, at: u64, into: &mut View) {
        let add = |extent: u32, into: &mut View| {
            if extent != 0 {
                into.layers.push(self.layout.start(extent) + at);
            }
        };
        let Some(head) = self.head_of(volume) else {
            add(volume.extent(index), into);
            into.fixed = into.layers.len();
            return self.view_below(volume, index, at, into);
        };
        let extent = head.extent(index);
        if extent == 0 || head.birth(index) >= volume.number() {
            return;
        }
        let snapshots = head.snapshots.borrow();
        let from = snapshots.partition_point(|other| other.number() < volume.number());
        let latest = snapshots.iter().rposition(|snapshot| !snapshot.is_removed());
        for (place, snapshot) in snapshots.iter().enumerate().skip(from) {
            if !snapshot.hidden.get() {
                add(snapshot.extent(index), into);
            }
            if Some(place + 1) == latest {
                into.fixed = into.layers.len();
            }
        }
        add(extent, into);
    }

    /// As [`PoolCore::view`], of the snapshot of which a volume is a clone; nothing for other volumes.
    pub fn view_below(&self, volume: &PoolVolume, index: u64, at: u64, into: &mut View) {
        // Behind the end of the snapshot, too: what the volume writes there when it has grown, it keeps holes for.
        if let Some(snapshot) = self.below(volume) {
            self.view(&snapshot, index, at, into);
        }
    }

    /// Where the latest snapshot of a volume keeps the blocks of its extent `index`; gives the snapshot an extent if it
    /// has none. `None` if no snapshot has the blocks.
    pub async fn keep(self: &Rc<Self>, volume: &PoolVolume, index: u64) -> Result<Option<Keep>, DeviceError> {
        loop {
            let latest = {
                let snapshots = volume.snapshots.borrow();
                snapshots.iter().rev().find(|snapshot| !snapshot.is_removed()).cloned()
            };
            let Some(latest) = latest.filter(|latest| volume.birth(index) < latest.number()) else {
                return Ok(None);
            };
            let mut to = latest.extent(index);
            if to == 0 {
                let (pool, snapshot) = (self.clone(), latest.clone());
                let claimed = async move { pool.claim(&snapshot, index).await };
                match self.runtime.run_whole(claimed).await {
                    // It is being removed: the one before it is the latest now.
                    Err(DeviceError::Gone) if latest.is_removed() => continue,
                    claimed => to = claimed?,
                }
            }
            let own = volume.extent(index);
            assert!(
                own != 0 && own != to,
                "extent {own} of the volume in slot {} is kept in {to}",
                volume.slot
            );
            let from = self.layout.start(own);
            let distance = |extent: u32| self.space.distance(from, self.layout.start(extent));
            let snapshots = volume.snapshots.borrow();
            let later = snapshots.iter().filter(|other| other.number() > latest.number());
            let mut merged = later.filter(|other| !other.hidden.get()).map(|other| other.extent(index));
            let merged = merged.find(|extent| *extent != 0 && *extent != to);
            return Ok(Some(Keep { to: distance(to), merged: merged.map(distance) }));
        }
    }

    /// The snapshot of a volume with this name.
    pub fn find_snapshot(&self, volume: &PoolVolume, name: &str) -> Result<Rc<PoolVolume>, VolumeError> {
        let snapshots = volume.snapshots.borrow();
        let found =
            snapshots.iter().find(|snapshot| !snapshot.is_removed() && snapshot.record.borrow().name == name);
        let missing = || PoolError::NoSnapshot { name: snapshot_name(volume, name) };
        Ok(found.cloned().ok_or_else(missing)?)
    }

    /// The clones of a snapshot, with those that are being removed.
    pub fn clones_of(&self, snapshot: &PoolVolume) -> Vec<Rc<PoolVolume>> {
        let volumes = self.volumes.borrow();
        let is_clone =
            |volume: &&Rc<PoolVolume>| volume.origin == VolumeOrigin::Clone { slot: snapshot.slot };
        volumes.values().filter(is_clone).cloned().collect()
    }

    /// Makes snapshots of different volumes, all of the same moment.
    ///
    /// # Errors
    /// As [`super::Pool::snapshot`].
    pub async fn snapshot(
        self: &Rc<Self>,
        new: Vec<NewSnapshot>,
    ) -> Result<Vec<Rc<PoolVolume>>, VolumeError> {
        if !self.space.has_whole_extents() {
            return Err(PoolError::ManyShards.into());
        }
        let heads = new.iter().map(|new| self.find(&new.volume)).collect::<Result<Vec<_>, _>>()?;
        let names: BTreeSet<&String> = new.iter().map(|new| &new.volume).collect();
        if let Some(twice) = new.iter().find(|_| names.len() < new.len()) {
            return Err(PoolError::Twice { name: twice.volume.clone() }.into());
        }
        if heads.iter().any(|head| head.origin != VolumeOrigin::Empty) {
            return Err(PoolError::OfClone.into());
        }
        self.permit_snapshots().await?;
        let _quiet = Quiet::of(heads.clone()).await;
        // Earlier writes are in the snapshots, also after a crash.
        self.space.settle().await?;
        let _changing = self.changes.take().await;
        let mut records = Vec::new();
        for (head, NewSnapshot { name, uuid, .. }) in heads.iter().zip(new) {
            if head.is_removed() {
                return Err(PoolError::NoVolume { name: head.record.borrow().name.clone() }.into());
            }
            if head.record.borrow().returns_to.is_some() {
                return Err(PoolError::Returning.into());
            }
            let number = self.next_number(head, &name)?;
            let origin = VolumeOrigin::Snapshot { slot: head.slot, number };
            let (qos, guaranteed) = (Qos::default(), 0);
            records.push(VolumeRecord {
                name,
                uuid,
                origin,
                qos,
                guaranteed,
                ..head.record.borrow().clone()
            });
        }
        check_snapshot_addresses(self, &heads)?;
        let mut slots = self.free_slots(records.len())?.into_iter();
        let mut snapshots = Vec::new();
        for (head, record) in heads.iter().zip(records) {
            let Some(slot) = slots.next() else { break };
            self.write_record(slot, &record).await?;
            let snapshot = Rc::new(PoolVolume::new(slot, record));
            self.volumes.borrow_mut().insert(slot, snapshot.clone());
            head.snapshots.borrow_mut().push(snapshot.clone());
            snapshots.push(snapshot);
        }
        Ok(snapshots)
    }

    /// Records in a root that the log may have entries which concern snapshots: a program without these must not read them.
    async fn permit_snapshots(self: &Rc<Self>) -> Result<(), VolumeError> {
        let most = u32::MAX as u64 / MOST_LIVE_SHARED;
        if self.space.first().capacity() as u64 > most {
            return Err(PoolError::ZonesTooLarge { most_gib: (most * BLOCK as u64) >> 30 }.into());
        }
        let _changing = self.changes.take().await;
        self.set_kin();
        let permit =
            |core: &Rc<VolumeCore>| std::mem::replace(&mut core.state.borrow_mut().has_snapshots, true);
        if !self.space.cores().iter().map(permit).fold(true, |all, had| all & had) {
            self.space.checkpoint().await?;
        }
        Ok(())
    }

    /// The number of a new snapshot of a volume: no extent was born after another one with this number.
    fn next_number(&self, head: &PoolVolume, name: &str) -> Result<u32, PoolError> {
        let snapshots = head.snapshots.borrow();
        if snapshots.iter().any(|snapshot| snapshot.record.borrow().name == name) {
            return Err(PoolError::SnapshotTaken { name: snapshot_name(head, name) });
        }
        let latest = snapshots.last().map_or(0, |snapshot| snapshot.number()).max(head.latest_birth());
        if latest < MOST_SNAPSHOTS { Ok(latest + 1) } else { Err(PoolError::ManySnapshots) }
    }

    /// Removes a snapshot of a volume.
    ///
    /// # Errors
    /// When there is no such snapshot, or a clone of it; those of the device.
    pub async fn remove_snapshot(&self, head: &Rc<PoolVolume>, name: &str) -> Result<(), VolumeError> {
        let _removing = head.removal.take().await;
        self.finish_snapshot_removals(head).await?;
        let snapshot = {
            let _changing = self.changes.take().await;
            let snapshot = self.find_snapshot(head, name)?;
            if head.record.borrow().returns_to.is_some() {
                return Err(PoolError::Returning.into());
            }
            let clones = self.clones_of(&snapshot);
            if !clones.is_empty() {
                return Err(PoolError::HasClones { names: names(&clones) }.into());
            }
            let record = VolumeRecord { is_removed: true, ..snapshot.record.borrow().clone() };
            self.change_record(&snapshot, record).await?;
            snapshot
        };
        self.finish_snapshot_removal(head, &snapshot).await
    }

    /// Continues removals of snapshots that were interrupted. The caller holds `removal` of the volume.
    pub async fn finish_snapshot_removals(&self, head: &Rc<PoolVolume>) -> Result<(), VolumeError> {
        let removed: Vec<Rc<PoolVolume>> =
            head.snapshots.borrow().iter().filter(|snapshot| snapshot.is_removed()).cloned().collect();
        for snapshot in removed {
            self.finish_snapshot_removal(head, &snapshot).await?;
        }
        Ok(())
    }

    /// Passes on what a removed snapshot keeps to the one before it, as far as that one needs it, and frees the rest. No
    /// data is read. The caller holds `removal` of the volume.
    async fn finish_snapshot_removal(
        &self,
        head: &Rc<PoolVolume>,
        snapshot: &Rc<PoolVolume>,
    ) -> Result<(), VolumeError> {
        assert!(snapshot.is_removed(), "the snapshot in slot {} loses its data", snapshot.slot);
        // Writes of which it keeps the former blocks have ended.
        drop(Quiet::of(vec![head.clone()]).await);
        let before = {
            let snapshots = head.snapshots.borrow();
            let place = snapshots.partition_point(|other| other.number() < snapshot.number());
            place.checked_sub(1).map(|before| snapshots[before].clone())
        };
        if let Some(before) = before {
            for (extent, index) in snapshot.sorted_extents() {
                // Without an extent of the volume it has holes alone.
                if head.extent(index.into()) != 0 && head.birth(index.into()) < before.number() {
                    pass_on(self, snapshot, &before, (extent, index)).await?;
                }
            }
        }
        snapshot.hidden.set(true);
        // Writes that merge it with the one before it have ended. Readers notice that it is hidden.
        drop(Quiet::of(vec![head.clone()]).await);
        // The entries that it has passed on must be durable before the others are discarded.
        self.space.settle().await?;
        self.free_volume(snapshot).await?;
        head.snapshots.borrow_mut().retain(|other| !Rc::ptr_eq(other, snapshot));
        Ok(())
    }

    /// Gives a volume the contents of its latest snapshot, and at least its size. Its requests wait meanwhile.
    ///
    /// # Errors
    /// When there is no such snapshot, or a later one; those of the device.
    pub async fn roll_back(&self, head: &Rc<PoolVolume>, name: &str) -> Result<(), VolumeError> {
        let _removing = head.removal.take().await;
        self.finish_snapshot_removals(head).await?;
        let _quiet = Quiet::of(vec![head.clone()]).await;
        {
            let _changing = self.changes.take().await;
            let snapshot = self.find_snapshot(head, name)?;
            let later: Vec<Rc<PoolVolume>> = {
                let snapshots = head.snapshots.borrow();
                snapshots.iter().filter(|other| other.number() > snapshot.number()).cloned().collect()
            };
            if !later.is_empty() {
                return Err(PoolError::HasLater { names: names(&later) }.into());
            }
            // What the snapshot has lies in the volume.
            let blocks = head.blocks.get().max(snapshot.blocks.get());
            let returns_to = Some(snapshot.slot);
            let record = VolumeRecord { returns_to, blocks, ..head.record.borrow().clone() };
            self.change_guaranteed(head, record).await?;
        }
        self.finish_return(head).await
    }

    /// Completes the return of a volume to the contents of a snapshot. No data is read. No request to the volume may be in
    /// progress; after an error the volume cannot be used, since it has parts of both.
    pub async fn finish_return(&self, head: &PoolVolume) -> Result<(), VolumeError> {
        let Some(slot) = head.record.borrow().returns_to else { return Ok(()) };
        head.hidden.set(true);
        let snapshot = self.at(slot).filter(|snapshot| {
            snapshot.origin == (VolumeOrigin::Snapshot { slot: head.slot, number: snapshot.number() })
        });
        let snapshot = snapshot.ok_or(VolumeError::Absurd)?;
        for (extent, index) in head.sorted_extents() {
            let (start, blocks) = (self.layout.start(extent), self.layout.extent_blocks as u64);
            let kept = snapshot.extent(index.into());
            if head.birth(index.into()) >= snapshot.number() {
                self.space.discard(start, blocks).await?;
            } else if kept != 0 {
                let _passing = self.passing.take().await;
                let from = self.space.distance(start, self.layout.start(kept));
                self.space.change(start, blocks, MapChange::Return(from)).await?;
            }
        }
        self.space.flush().await?;
        let _changing = self.changes.take().await;
        let record = VolumeRecord { returns_to: None, ..head.record.borrow().clone() };
        self.change_record(head, record).await?;
        head.hidden.set(false);
        Ok(())
    }

    /// The blocks of a volume that may differ between two moments: a snapshot, and a later one, or now.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn changed(
        &self,
        head: &PoolVolume,
        from: &PoolVolume,
        to: Option<&PoolVolume>,
    ) -> Result<Vec<Range<u64>>, VolumeError> {
        let numbers = from.number()..to.map_or(u32::MAX, |to| to.number());
        let snapshots = head.snapshots.borrow().clone();
        let mut extents: Vec<(u32, u32)> = Vec::new();
        for snapshot in snapshots.iter().filter(|other| numbers.contains(&other.number())) {
            extents.extend(snapshot.sorted_extents());
        }
        // Of an extent that the volume got in between, snapshots from the second moment on may have blocks, too.
        for (extent, index) in head.sorted_extents() {
            if numbers.contains(&head.birth(index.into())) {
                let later = snapshots.iter().filter(|other| other.number() >= numbers.end);
                let theirs =
                    later.map(|snapshot| snapshot.extent(index.into())).filter(|extent| *extent != 0);
                extents.extend(theirs.chain([extent]).map(|extent| (extent, index)));
            }
        }
        let mut found = Vec::new();
        for (extent, index) in extents {
            let (start, size) = (self.layout.start(extent), self.layout.extent_blocks as u64);
            let first = index as u64 * size;
            let mapped = self.space.mapped(start..start + size).await?;
            found.extend(
                mapped.into_iter().map(|range| range.start - start + first..range.end - start + first),
            );
        }
        found.sort_unstable_by_key(|range| range.start);
        let end = to.map_or(head.blocks.get(), |to| to.blocks.get());
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in found.into_iter().map(|range| range.start..range.end.min(end)) {
            match joined.last_mut().filter(|last| last.end >= range.start) {
                Some(last) => last.end = last.end.max(range.end),
                None if range.start < range.end => joined.push(range),
                None => {}
            }
        }
        Ok(joined)
    }
}

/// The name of a snapshot of a volume: `VOLUME@SNAPSHOT`.
fn snapshot_name(head: &PoolVolume, name: &str) -> String {
    format!("{}@{name}", head.record.borrow().name)
}

/// Names of volumes for a message.
pub fn names(volumes: &[Rc<PoolVolume>]) -> String {
    let names: Vec<String> = volumes.iter().map(|volume| volume.record.borrow().name.clone()).collect();
    names.join(", ")
}
