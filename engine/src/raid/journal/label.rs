//! Reads the label of a drive that is being filled with a copy of a member ([`crate::raid::maintain::target`]).

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice},
    format::{
        Origin,
        record::{Header, Record},
        superblock::{Superblock, SuperblockMember},
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{collections::BTreeMap, rc::Rc};

/// The metadata zone that the label lies in.
pub const LABEL_ZONE: ZoneIndex = ZoneIndex(1);

/// Contents of a label.
#[derive(Clone)]
pub struct Label {
    /// The array's superblock when the copy began. `taking_over` of the copied member is the number from which the UUID
    /// of the drive being filled is derived.
    pub superblock: Superblock,
    /// Role of the member that is copied.
    pub member: usize,
    /// Zones of the array that have been copied completely, with their epochs.
    pub copied: BTreeMap<u32, u64>,
    /// End of the label, in blocks of its zone.
    pub wp_blocks: u64,
}

impl Label {
    /// Entry of the copied drive in the superblock when the copy began.
    pub fn source(&self) -> &SuperblockMember {
        &self.superblock.members[self.member]
    }
}

/// Reads the label of a drive, accessed with the aggregation of the array; `None` if there is none or it is unreadable.
pub async fn read_label(device: &Rc<dyn ZonedDevice>) -> Option<Label> {
    let report = device.submit(Command::Report { first: LABEL_ZONE, count: 1 }).await;
    let info = report.zones.first().filter(|info| info.state != ZoneState::Empty)?;
    let capacity = device.geometry().zone_capacity_blocks;
    let end = if info.state == ZoneState::Full { capacity } else { info.wp_blocks.min(capacity) };
    let start = device.geometry().start(LABEL_ZONE).0;
    let read = async |at: u64, blocks: u64| {
        let most = (device.geometry().max_transfer_blocks as u64).min(end.saturating_sub(at));
        let fits = (1..=most).contains(&blocks);
        let read = fits.then(|| Command::read(Lba(start + at), Buf::zeroed(blocks as usize * BLOCK)))?;
        let done = device.submit(read).await;
        done.result.ok().map(|()| done.data)
    };
    let record = async |at: u64| {
        let header = Header::read(&read(at, 1).await?)?;
        let origin = Origin { lba: start + at, ..header.origin };
        let (record, _, blocks) = Record::read(&read(at, header.blocks()).await?, origin).ok()?;
        Some((record, origin, blocks))
    };
    let (Record::Superblock(superblock), origin, mut at) = record(0).await? else { return None };
    let (array, member) = (origin.array, origin.member as usize);
    if superblock.array != array || member >= superblock.members.len() {
        return None;
    }
    let mut copied = BTreeMap::new();
    while let Some((Record::Finish { zone, epoch, .. }, of, blocks)) = record(at).await {
        if (of.array, of.member) == (array, origin.member) {
            copied.insert(zone, epoch);
        }
        at += blocks;
    }
    Some(Label { superblock: *superblock, member, copied, wp_blocks: at })
}
