//! The journal: records behind a checkpoint, in one of two zones; when that is full, the other one gets a checkpoint.
//!
//! Every block is written with FUA, one at a time. A record is applied to the state in memory in the synchronous
//! stretch in which it has become durable, before the next one is written: so a checkpoint contains the effect of all
//! records before it.

use crate::{
    buf::Buf,
    device::{Command, DeviceError, Status, Zones},
    vzone::{
        core::NamespaceCore,
        format::{BlockFiller, JournalEntry, JournalHeader},
    },
    zone::{Lba, ZoneIndex},
};

/// Writes a record, and calls `apply`, which changes the state in memory, as soon as the record is durable.
///
/// # Errors
/// Those of the device, after which nothing can be changed any more.
pub async fn record(
    core: &NamespaceCore,
    entry: JournalEntry,
    apply: impl FnOnce(),
) -> Result<(), DeviceError> {
    let _turn = core.journal.turn.take().await;
    core.check()?;
    let result = record_now(core, &entry).await;
    match result {
        Ok(()) => apply(),
        Err(error) => core.fail(error),
    }
    result
}

/// Writes a record, after a checkpoint if the zone is full.
async fn record_now(core: &NamespaceCore, entry: &JournalEntry) -> Result<(), DeviceError> {
    if core.journal.place.get().1 as u64 >= core.identity.zone_capacity_blocks {
        checkpoint_now(core).await?;
    }
    let mut filler = BlockFiller::default();
    filler.add(entry);
    let (zone, offset) = core.journal.place.get();
    write_block(core, &filler, 0, 0, (zone, offset)).await?;
    core.journal.place.set((zone, offset + 1));
    Ok(())
}

/// Writes a checkpoint to the other zone of the journal, and resets the present one.
pub async fn checkpoint(core: &NamespaceCore) -> Result<(), DeviceError> {
    let _turn = core.journal.turn.take().await;
    core.check()?;
    let result = checkpoint_now(core).await;
    if let Err(error) = result {
        core.fail(error);
    }
    result
}

/// Writes a checkpoint; the caller has the turn. The zone that the journal leaves is reset, opened and closed, so that
/// it stays active although it is empty: the device may allow fewer active zones than it reports (an array with zones
/// in doubt), and groups would take the one that the next checkpoint needs.
async fn checkpoint_now(core: &NamespaceCore) -> Result<(), DeviceError> {
    let _binding = core.binding.take().await;
    let old = core.journal.place.get().0;
    let zone = 1 - old;
    // A journal in which a zone has two owners would be refused at the next start.
    let consistent = core.arbiter.borrow().audit(core.claims().into_iter());
    assert_eq!(consistent, Ok(()), "owners of physical zones at a checkpoint of the journal");
    reset_head(core, zone).await?;
    let mut filler = BlockFiller::default();
    core.entries().iter().for_each(|entry| filler.add(entry));
    if filler.len() as u64 >= core.identity.zone_capacity_blocks {
        return Err(Status::CapacityExceeded.into());
    }
    core.journal.generation.set(core.journal.generation.get() + 1);
    for index in 0..filler.len() {
        let kind = if index + 1 == filler.len() { 2 } else { 1 };
        write_block(core, &filler, index, kind, (zone, index as u32)).await?;
    }
    core.journal.place.set((zone, filler.len() as u32));
    reset_head(core, old).await?;
    if core.device.geometry().max_active != 0 {
        let zones = Zones::One(ZoneIndex(old));
        // If this fails, the next checkpoint depends on a free active zone.
        _ = core.device.submit(Command::Open { zones, zrwa: false }).await;
        _ = core.device.submit(Command::Close { zones }).await;
    }
    Ok(())
}

async fn reset_head(core: &NamespaceCore, zone: u32) -> Result<(), DeviceError> {
    core.device.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await.result
}

/// Writes block `index` of `filler` with FUA to a zone of the journal; `kind` is [`JournalHeader::kind`].
async fn write_block(
    core: &NamespaceCore,
    filler: &BlockFiller,
    index: usize,
    kind: u8,
    (zone, offset): (u32, u32),
) -> Result<(), DeviceError> {
    let capacity = core.identity.zone_capacity_blocks;
    assert!(
        zone < 2 && (offset as u64) < capacity,
        "journal block {offset} of zone {zone}, of 2 zones of {capacity} blocks"
    );
    let head = JournalHeader {
        mark: core.identity.mark(),
        generation: core.journal.generation.get(),
        serial: core.arbiter.borrow().serial(),
        offset,
        kind,
    };
    let mut block = core.take_buffer(1);
    filler.seal(index, head, &mut block);
    let lba = Lba(core.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
    let data: Buf = block.freeze();
    let done = core.device.submit(Command::write(lba, data, true)).await;
    core.give_buffer(done.data);
    done.result
}
