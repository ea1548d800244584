//! Where appended blocks have landed, as the drives have said: what the engine finds again in their metadata is
//! compared with this.

use engine::{
    device::{Command, Zones},
    zone::ZoneIndex,
};
use std::collections::BTreeMap;

/// Where in the zones of a drive blocks are that were appended, by zone and by the number in their metadata. What was
/// appended last counts; of what was on its way in a power cut nothing is known.
#[derive(Clone, Default)]
pub struct Landed(BTreeMap<(ZoneIndex, u32), u64>);

impl Landed {
    /// The numbers of the blocks of an append; nothing if they have no metadata that could say them.
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

    /// Forgets what nobody knows any more when `command` has been carried out, or perhaps.
    pub(super) fn forget(&mut self, command: &Command) {
        match command {
            Command::Append { zone, .. } => {
                Landed::blocks(command).into_iter().for_each(|block| _ = self.0.remove(&(*zone, block)));
            }
            Command::Reset { zones: Zones::One(zone) } => self.0.retain(|(of, _), _| of != zone),
            Command::Reset { zones: Zones::All } => self.0.clear(),
            _ => (),
        }
    }

    /// Where a block of a zone is, if that is known.
    pub fn place(&self, zone: ZoneIndex, block: u64) -> Option<u64> {
        self.0.get(&(zone, u32::try_from(block).ok()?)).copied()
    }
}
