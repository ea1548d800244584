//! The lineage of an array: the assemblies that have written to its drives.
//!
//! Every assembly that writes has a random id. Counters cannot tell two copies of an array from each other once both
//! have been written to, since they count alike; ids can. How they are compared is in `raid/recover/lineage.rs`.

use crate::{
    buf::BLOCK,
    format::{
        Uuid,
        codec::{Absurd, Decoder, Encoder, HEADER_BYTES, RecordError, expect},
    },
};

/// Bytes of a superblock head, of a member in it, and of an assembly and an attempt after these.
const HEAD_BYTES: usize = 240;
const MEMBER_BYTES: usize = 112;
const ASSEMBLY_BYTES: usize = 16;
const ATTEMPT_BYTES: usize = 24;

/// Most assemblies and most attempts that are kept, even if there is room for more.
const MOST_KEPT: usize = 64;
const MOST_ATTEMPTS: usize = 5;

/// An assembly that has written its checkpoints, and is not known to have written anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Event of its checkpoints.
    pub event: u64,
    /// Its random id.
    pub id: Uuid,
}

/// The assemblies that have written to an array, and those that were about to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Ids of assemblies that have written, the newest one at the end; the oldest ones are dropped if there are too
    /// many. Empty if only zoneraid versions without ids have written.
    pub assemblies: Vec<Uuid>,
    /// Attempts since the last assembly, in the order of their events.
    pub attempts: Vec<Attempt>,
}

/// Most assemblies that fit in a superblock of `members` members, which has to fit in one block.
fn most_assemblies(members: usize) -> usize {
    let taken = HEADER_BYTES + HEAD_BYTES + members * MEMBER_BYTES + MOST_ATTEMPTS * ATTEMPT_BYTES;
    (BLOCK.saturating_sub(taken) / ASSEMBLY_BYTES).min(MOST_KEPT)
}

impl Lineage {
    /// The lineage of a new array.
    pub fn new(id: Uuid) -> Lineage {
        Lineage { assemblies: vec![id], attempts: Vec::new() }
    }

    /// Id of the last assembly that has written; zeros if there are no ids.
    pub fn id(&self) -> Uuid {
        self.assemblies.last().copied().unwrap_or_default()
    }

    /// Whether an assembly with this id is known to have written to the array; true for zeros, which are no id.
    pub fn has(&self, id: Uuid) -> bool {
        id == Uuid::default() || self.assemblies.contains(&id)
    }

    /// Whether no id has been dropped, in an array of `members` members.
    pub fn is_whole(&self, members: usize) -> bool {
        self.assemblies.len() < most_assemblies(members)
    }

    /// Event of the checkpoints of an attempt, if the attempt is known.
    pub fn attempted(&self, id: Uuid) -> Option<u64> {
        self.attempts.iter().find(|attempt| attempt.id == id).map(|attempt| attempt.event)
    }

    /// Adds an attempt. The oldest ones are dropped if there are too many.
    pub fn attempt(&mut self, attempt: Attempt) {
        if attempt.id == self.id() || self.attempted(attempt.id).is_some() {
            return;
        }
        self.attempts.push(attempt);
        self.attempts.sort_by_key(|attempt| attempt.event);
        let surplus = self.attempts.len().saturating_sub(MOST_ATTEMPTS);
        self.attempts.drain(..surplus);
    }

    /// Adds an assembly that is about to write, of an array with `members` members.
    pub fn commit(&mut self, id: Uuid, members: usize) {
        self.attempts.clear();
        self.assemblies.push(id);
        self.cut(members);
    }

    /// Drops the oldest assemblies if there are too many for a superblock of `members` members.
    pub fn cut(&mut self, members: usize) {
        let surplus = self.assemblies.len().saturating_sub(most_assemblies(members));
        self.assemblies.drain(..surplus);
    }

    /// Appends the encoded lineage (docs/FORMAT.md) without the counts of its parts.
    pub fn encode(&self, out: &mut Encoder) {
        self.assemblies.iter().for_each(|id| _ = out.bytes(&id.0));
        self.attempts.iter().for_each(|Attempt { event, id }| _ = out.u64(*event).bytes(&id.0));
    }

    /// Reads `assemblies` assemblies and `attempts` attempts.
    ///
    /// # Errors
    /// The field that is truncated or out of range.
    pub fn decode(from: &mut Decoder<'_>, assemblies: u32, attempts: u32) -> Result<Lineage, RecordError> {
        let assemblies =
            (0..assemblies).map(|_| Ok(Uuid(from.array()?))).collect::<Result<_, RecordError>>()?;
        let attempt = |_| Ok(Attempt { event: from.u64()?, id: Uuid(from.array()?) });
        let attempts = (0..attempts).map(attempt).collect::<Result<_, RecordError>>()?;
        Ok(Lineage { assemblies, attempts })
    }

    /// Checks whether this can be the lineage of an array of `members` members and a superblock with this event.
    ///
    /// # Errors
    /// The first field with an impossible value.
    pub fn check(&self, members: usize, event: u64) -> Result<(), Absurd> {
        let (assemblies, attempts) = (self.assemblies.len(), self.attempts.len());
        expect(assemblies <= most_assemblies(members), "assemblies", assemblies as u64)?;
        expect(attempts <= MOST_ATTEMPTS, "attempts", attempts as u64)?;
        let mut events = self.attempts.iter().map(|attempt| attempt.event);
        events.try_for_each(|attempted| expect(attempted <= event, "event of an attempt", attempted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::geometry::MAX_MEMBERS;

    fn id(number: u8) -> Uuid {
        Uuid([number; 16])
    }

    #[test]
    fn lineage_drops_oldest_ids_when_full() {
        for members in [3, 8, MAX_MEMBERS] {
            let most = most_assemblies(members);
            assert!((4..=MOST_KEPT).contains(&most), "{most} of {members} members");
            let mut lineage = Lineage::new(id(1));
            (2..=100).for_each(|number| lineage.commit(id(number), members));
            assert_eq!((lineage.id(), lineage.assemblies.len()), (id(100), most));
            for number in 1..=20 {
                lineage.attempt(Attempt { event: number as u64, id: id(200 - number) });
            }
            assert_eq!(lineage.attempts.len(), MOST_ATTEMPTS);
            assert_eq!(lineage.attempted(id(180)), Some(20));
            assert_eq!(lineage.check(members, 20), Ok(()));
            assert!(lineage.check(members, 19).is_err());
        }
    }
}
