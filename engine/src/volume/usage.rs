//! How much space the volumes and snapshots of a pool take, and how much of it they share.
//!
//! A piece is in one extent, that of its volume or of the snapshot that keeps it. So the space of a volume without snapshots
//! is the counted room of its extents ([`super::extent_room`]). Shared space is found by comparing the map of a volume with
//! those of its snapshots, in the extents that both have. Pages of the map are read that are not in memory, but stay there
//! only if they were; no data is read.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError},
    runtime::{all, give_way},
    volume::{
        address::{Address, GRAIN},
        core::{Need, VolumeCore},
        error::VolumeError,
        extent_room::grains_of,
        format::FANOUT,
        part::{PoolCore, PoolVolume},
        pool_table::VolumeOrigin,
        status::SpaceUse,
        thin::{ThinSpace, View},
    },
};
use std::{collections::BTreeMap, rc::Rc};

/// Pages of the map that are read at a time.
const PAGES_AT_ONCE: u32 = 32;

/// A page of the map on the device: its place, and its entries if it could be read.
type StoredPage = (Address, Option<Vec<Address>>);

/// Reads a page of the map at its present place.
async fn read_stored(core: &VolumeCore, page: u32) -> StoredPage {
    let (place, lba) = {
        let state = core.state.borrow();
        let place = state.map.place(page);
        if state.map.is_known(page) {
            return (place, None);
        }
        (place, state.lba(&*core.device, place))
    };
    let done = core.device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
    (place, done.result.ok().and_then(|()| core.page_of(page, place, &done.data)))
}

/// The present entries of a page; `None` if they are neither in memory nor those that were read.
fn present(core: &VolumeCore, page: u32, (place, entries): StoredPage) -> Option<Vec<Address>> {
    let state = core.state.borrow();
    state.map.copy(page).or_else(|| entries.filter(|_| state.map.place(page) == place))
}

/// The entries of a page of the map. The page is put into memory only if it has to be reconstructed. No other task runs
/// between the moment of the entries and the return.
async fn page_entries(core: &VolumeCore, page: u32) -> Result<Vec<Address>, DeviceError> {
    loop {
        let stored = read_stored(core, page).await;
        let is_in_place = core.state.borrow().map.place(page) == stored.0;
        if let Some(entries) = present(core, page, stored) {
            return Ok(entries);
        }
        if is_in_place {
            core.hold(page, Need::Read).await?;
        }
    }
}

/// Counts the room of all extents, unless that has been done.
///
/// # Errors
/// A page of the map cannot be read; the next call continues.
pub async fn count_extents(core: &VolumeCore) -> Result<(), DeviceError> {
    loop {
        give_way().await;
        let (page, end) = {
            let mut state = core.state.borrow_mut();
            let Some(from) = state.space.extents.as_ref().and_then(|extents| extents.uncounted()) else {
                return Ok(());
            };
            let pages = state.map.directory().len() as u32;
            let page = state.map.next_page((from / FANOUT) as u32, pages);
            if let Some(extents) = &mut state.space.extents {
                extents.count_unmapped(page as u64 * FANOUT);
            }
            (page, pages.min(page + PAGES_AT_ONCE))
        };
        let stored = all((page..end).map(|page| read_stored(core, page))).await;
        for (page, stored) in (page..end).zip(stored) {
            let entries = match present(core, page, stored) {
                Some(entries) => entries,
                None => page_entries(core, page).await?,
            };
            let mut state = core.state.borrow_mut();
            let Some(extents) = &mut state.space.extents else { return Ok(()) };
            // Another call may have counted it.
            if extents.uncounted() == Some(page as u64 * FANOUT) {
                extents.count_page(page, &entries);
            }
        }
    }
}

/// The entries of `blocks` blocks of an extent, from `start` on.
async fn entries(space: &ThinSpace, start: u64, blocks: u64) -> Result<Vec<Address>, DeviceError> {
    let (core, start) = space.find(start);
    let (first, last) = (start / FANOUT, (start + blocks - 1) / FANOUT);
    let mut found = Vec::with_capacity(((last - first + 1) * FANOUT) as usize);
    for page in first..=last {
        found.extend(page_entries(core, page as u32).await?);
    }
    let from = (start - first * FANOUT) as usize;
    Ok(found[from..from + blocks as usize].to_vec())
}

/// As [`entries`], of an extent; none without one.
async fn layer(
    space: &ThinSpace,
    start: Option<u64>,
    blocks: u64,
) -> Result<Option<Vec<Address>>, DeviceError> {
    match start {
        Some(start) => entries(space, start, blocks).await.map(Some),
        None => Ok(None),
    }
}

/// Gives the blocks that have an entry in an upper layer this entry.
fn cover(upper: &[Address], lower: &mut [Address]) {
    for (upper, lower) in upper.iter().zip(lower) {
        if *upper != 0 {
            *lower = *upper;
        }
    }
}

/// Grains that become free when the entries of a snapshot are passed on to the one before it.
fn freed(passed: &[Address], before: &[Address]) -> u64 {
    let mut merged = passed.to_vec();
    cover(before, &mut merged);
    (grains_of(passed) + grains_of(before)).saturating_sub(grains_of(&merged))
}

/// Grains that a volume or a snapshot takes: those of all its data, and those that only it has.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    all: u64,
    own: u64,
}

/// Space of the volumes and snapshots, by slot, without those that are being removed; none if extents may be in
/// two shards, or are too large to be counted.
/// If data is written meanwhile, the result may have the former or the present state of it.
///
/// # Errors
/// A page of the map cannot be read.
pub async fn space_use(pool: &PoolCore) -> Result<BTreeMap<u32, SpaceUse>, VolumeError> {
    let mut found = BTreeMap::new();
    if !pool.space.has_whole_extents() || pool.space.first().state.borrow().space.extents.is_none() {
        return Ok(found);
    }
    for core in pool.space.cores() {
        count_extents(core).await?;
    }
    let volumes: Vec<Rc<PoolVolume>> = pool.volumes.borrow().values().cloned().collect();
    for volume in volumes.iter().filter(|volume| volume.number() == 0 && !volume.is_removed()) {
        let counted = match volume.origin {
            VolumeOrigin::Empty => count_family(pool, volume).await?,
            _ => vec![(volume.clone(), count_clone(pool, volume).await?)],
        };
        for (volume, Counted { all, own }) in counted {
            if !volume.is_removed() {
                // The removal of a snapshot with clones frees nothing, as there is none.
                let own = if pool.clones_of(&volume).is_empty() { own } else { 0 };
                assert!(own <= all, "{own} of {all} grains are those of slot {} alone", volume.slot);
                let bytes = |grains: u64| grains * GRAIN as u64;
                let space = SpaceUse { own: bytes(own), shared: bytes(all - own) };
                volume.counted_space.set(Some(space));
                found.insert(volume.slot, space);
            }
        }
    }
    Ok(found)
}

/// Counted grains of an extent; 0 for none.
fn held(pool: &PoolCore, extent: u32) -> u64 {
    let (core, in_shard) = pool.space.find_extent(extent);
    let state = core.state.borrow();
    state.space.extents.as_ref().filter(|_| extent != 0).map_or(0, |extents| extents.held(in_shard))
}

/// Counts the space of a volume, which is no clone, and of its snapshots.
async fn count_family(
    pool: &PoolCore,
    head: &Rc<PoolVolume>,
) -> Result<Vec<(Rc<PoolVolume>, Counted)>, DeviceError> {
    let snapshots: Vec<Rc<PoolVolume>> =
        head.snapshots.borrow().iter().filter(|snapshot| !snapshot.hidden.get()).cloned().collect();
    let (mut of_head, mut counted) = (Counted::default(), vec![Counted::default(); snapshots.len()]);
    for (extent, index) in head.sorted_extents() {
        give_way().await;
        // Earlier snapshots have zeros there.
        let from = snapshots.partition_point(|other| other.number() <= head.birth(index.into()));
        let (with, held) = (&snapshots[from..], held(pool, extent));
        let counted = &mut counted[from..];
        let extents: Vec<u32> = with.iter().map(|snapshot| snapshot.extent(index.into())).collect();
        if extents.iter().all(|extent| *extent == 0) {
            of_head.all += held;
            of_head.own += if with.is_empty() { held } else { 0 };
            counted.iter_mut().for_each(|counted| counted.all += held);
        } else {
            count_shared(pool, extent, &extents, (&mut of_head, counted)).await?;
        }
    }
    Ok(snapshots.into_iter().zip(counted).chain([(head.clone(), of_head)]).collect())
}

/// Adds the space of a volume and its snapshots in one of its extents, and `extents` of the snapshots.
async fn count_shared(
    pool: &PoolCore,
    extent: u32,
    extents: &[u32],
    (of_head, counted): (&mut Counted, &mut [Counted]),
) -> Result<(), DeviceError> {
    assert_eq!(extents.len(), counted.len(), "extents of the snapshots, and snapshots");
    let (space, size) = (&pool.space, pool.layout.extent_blocks as u64);
    for at in (0..size).step_by(FANOUT as usize) {
        give_way().await;
        let blocks = FANOUT.min(size - at);
        let start = |extent: u32| (extent != 0).then(|| pool.layout.start(extent) + at);
        let layers = all(extents.iter().map(|extent| layer(space, start(*extent), blocks))).await;
        let layers = layers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut view = entries(space, pool.layout.start(extent) + at, blocks).await?;
        let of_view = grains_of(&view);
        of_head.all += of_view;
        if let Some(Some(latest)) = layers.last() {
            // The latest snapshot has the blocks of the volume that it does not keep.
            let mut seen = view.clone();
            seen.iter_mut().zip(latest).filter(|(_, kept)| **kept != 0).for_each(|(seen, _)| *seen = 0);
            of_head.own += of_view.saturating_sub(grains_of(&seen));
        }
        for (number, layer) in layers.iter().enumerate().rev() {
            give_way().await;
            layer.iter().for_each(|layer| cover(layer, &mut view));
            counted[number].all += grains_of(&view);
            counted[number].own += match (layer, number.checked_sub(1).map(|before| &layers[before])) {
                (None, _) | (_, Some(None)) => 0,
                (Some(passed), Some(Some(before))) => freed(passed, before),
                // No earlier snapshot has blocks there.
                (Some(passed), None) => grains_of(passed),
            };
        }
    }
    Ok(())
}

/// Counts the space of a clone. Blocks that its snapshot has, too, are shared.
async fn count_clone(pool: &PoolCore, clone: &Rc<PoolVolume>) -> Result<Counted, DeviceError> {
    let (space, size) = (&pool.space, pool.layout.extent_blocks as u64);
    let mut counted = Counted::default();
    for index in 0..pool.layout.extents_of(clone.blocks.get()) {
        give_way().await;
        let own = clone.extent(index);
        counted.own += held(pool, own);
        let mut below = View::default();
        pool.view_below(clone, index, 0, &mut below);
        if let ([start], 0) = (&below.layers[..], own) {
            counted.all += held(pool, (*start / size) as u32);
            continue;
        }
        for at in (0..size).step_by(FANOUT as usize).filter(|_| !below.layers.is_empty()) {
            give_way().await;
            let blocks = FANOUT.min(size - at);
            let mut view = vec![0; blocks as usize];
            for start in below.layers.iter().rev() {
                cover(&entries(space, start + at, blocks).await?, &mut view);
            }
            if own != 0 {
                let upper = entries(space, pool.layout.start(own) + at, blocks).await?;
                view.iter_mut().zip(upper).filter(|(_, upper)| *upper != 0).for_each(|(seen, _)| *seen = 0);
            }
            counted.all += grains_of(&view);
        }
    }
    counted.all += counted.own;
    Ok(counted)
}
