//! Places of appended blocks as the drives reported them, to be compared with those the engine finds by metadata.

use engine::{
    device::{Command, Zones},
    zone::ZoneIndex,
};
use std::collections::BTreeMap;

/// Places of appended blocks in the zones of a drive, by zone and by the block number in their metadata. The last
/// append counts; places of appends in flight at a power cut are unknown.
#[derive(Clone, Default)]
pub struct AppendPlaces(BTreeMap<(ZoneIndex, u32), u64>);

impl AppendPlaces {
    /// The block numbers of an append; empty if its metadata has no room for them.
    pub(super) fn blocks(command: &Command) -> Vec<u32> {
        let Command::Append { data, oob, .. } = command else { return Vec::new() };
        let bytes = oob.len() / (data.blocks() as usize).max(1);
        if bytes < 16 {
            return Vec::new();
        }
        oob.chunks_exact(bytes).map(|oob| u32::from_le_bytes([oob[4], oob[5], oob[6], oob[7]])).collect()
    }

    pub(super) fn note(&mut self, zone: ZoneIndex, block: u32, place: u64) {
        self.0.insert((zone, block), place);
    }

    /// Forgets the places that are unknown once `command` was, or may have been, carried out.
    pub(super) fn forget(&mut self, command: &Command) {
        match command {
            Command::Append { zone, .. } => {
                AppendPlaces::blocks(command)
                    .into_iter()
                    .for_each(|block| _ = self.0.remove(&(*zone, block)));
            }
            Command::Reset { zones: Zones::One(zone) } => self.0.retain(|(of, _), _| of != zone),
            Command::Reset { zones: Zones::All } => self.0.clear(),
            _ => (),
        }
    }

    /// The place of a block of a zone, if it is known.
    pub fn place(&self, zone: ZoneIndex, block: u64) -> Option<u64> {
        self.0.get(&(zone, u32::try_from(block).ok()?)).copied()
    }
}
