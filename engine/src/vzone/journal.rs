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

impl NamespaceCore {
    /// Writes a record, and calls `apply`, which changes the state in memory, as soon as the record is durable.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be changed any more.
    pub async fn record(&self, entry: JournalEntry, apply: impl FnOnce()) -> Result<(), DeviceError> {
        let _turn = self.journal.turn.take().await;
        self.check()?;
        let result = self.record_now(&entry).await;
        match result {
            Ok(()) => apply(),
            Err(error) => self.fail(error),
        }
        result
    }

    /// Writes a record, after a checkpoint if the zone is full.
    async fn record_now(&self, entry: &JournalEntry) -> Result<(), DeviceError> {
        if self.journal.place.get().1 as u64 >= self.identity.zone_capacity_blocks {
            self.checkpoint_now().await?;
        }
        let mut filler = BlockFiller::default();
        filler.add(entry);
        let (zone, offset) = self.journal.place.get();
        self.write_block(&filler, 0, 0, (zone, offset)).await?;
        self.journal.place.set((zone, offset + 1));
        Ok(())
    }

    /// Writes a checkpoint to the other zone of the journal, and resets the present one.
    pub async fn checkpoint(&self) -> Result<(), DeviceError> {
        let _turn = self.journal.turn.take().await;
        self.check()?;
        let result = self.checkpoint_now().await;
        if let Err(error) = result {
            self.fail(error);
        }
        result
    }

    /// Writes a checkpoint; the caller has the turn. The zone that the journal leaves is reset, opened and closed, so
    /// that it stays active although it is empty: the device may allow fewer active zones than it reports (an array
    /// with zones in doubt), and groups would take the one that the next checkpoint needs.
    async fn checkpoint_now(&self) -> Result<(), DeviceError> {
        let _binding = self.binding.take().await;
        let old = self.journal.place.get().0;
        let zone = 1 - old;
        // A journal in which a zone has two owners would be refused at the next start.
        let consistent = self.arbiter.borrow().audit(self.claims().into_iter());
        assert_eq!(consistent, Ok(()), "owners of physical zones at a checkpoint of the journal");
        self.reset_head(zone).await?;
        let mut filler = BlockFiller::default();
        self.entries().iter().for_each(|entry| filler.add(entry));
        if filler.len() as u64 >= self.identity.zone_capacity_blocks {
            return Err(Status::CapacityExceeded.into());
        }
        self.journal.generation.set(self.journal.generation.get() + 1);
        for index in 0..filler.len() {
            let kind = if index + 1 == filler.len() { 2 } else { 1 };
            self.write_block(&filler, index, kind, (zone, index as u32)).await?;
        }
        self.journal.place.set((zone, filler.len() as u32));
        self.reset_head(old).await?;
        if self.device.geometry().max_active != 0 {
            let zones = Zones::One(ZoneIndex(old));
            // If this fails, the next checkpoint depends on a free active zone.
            _ = self.device.submit(Command::Open { zones, zrwa: false }).await;
            _ = self.device.submit(Command::Close { zones }).await;
        }
        Ok(())
    }

    async fn reset_head(&self, zone: u32) -> Result<(), DeviceError> {
        self.device.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await.result
    }

    /// Writes block `index` of `filler` with FUA to a zone of the journal; `kind` is [`JournalHeader::kind`].
    async fn write_block(
        &self,
        filler: &BlockFiller,
        index: usize,
        kind: u8,
        (zone, offset): (u32, u32),
    ) -> Result<(), DeviceError> {
        let capacity = self.identity.zone_capacity_blocks;
        assert!(
            zone < 2 && (offset as u64) < capacity,
            "journal block {offset} of zone {zone}, of 2 zones of {capacity} blocks"
        );
        let head = JournalHeader {
            mark: self.identity.mark(),
            generation: self.journal.generation.get(),
            serial: self.arbiter.borrow().serial(),
            offset,
            kind,
        };
        let mut block = self.take_buffer(1);
        filler.seal(index, head, &mut block);
        let lba = Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
        let data: Buf = block.freeze();
        let done = self.device.submit(Command::write(lba, data, true)).await;
        self.give_buffer(done.data);
        done.result
    }
}
