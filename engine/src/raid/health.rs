//! Health of an array, and the remedy: determined from its [`ArrayStatus`] alone, so that the simulator checks what
//! commands print.
//!
//! Nothing is reported better than it is: missing blocks count, not missing members. A zone that lacks more parts than
//! there are parities has failed, however few members are out.

use crate::{
    raid::status::{ArrayStatus, MemberState, MemberStatus},
    zone::ZoneIndex,
};

/// Condition of an array, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// All data is available, with full redundancy.
    Healthy,
    /// Redundancy is reduced, or zones or blocks are unavailable. Every block that a read returns is as written.
    Degraded,
    /// Nothing can be read or written.
    Unusable,
}

/// Why an array is not healthy: the first of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// More members have gone out at run time than there are parities.
    ArrayFailed,
    /// Zones are offline: recovery could not determine their write pointers.
    ZonesOffline,
    /// Zones lack more parts than there are parities.
    ZonesFailed,
    /// Members are missing, and nothing has been written without them.
    MembersMissing,
    /// All members are present, but the array could not leave deferred-write mode.
    NotBegun,
    /// Members are out, or lack parts of zones.
    MembersLack,
    /// Metadata zones of members are worn, and have no spare zone in their place.
    LogsConfined,
    /// Drives could not read some blocks.
    BlocksUnreadable,
    /// A rebuild could not decode some blocks.
    BlocksLost,
    /// More blocks of members were repaired than the error limit permits.
    ErrorsExceeded,
}

/// Action that improves the condition of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Bring these members back, if any are named, then stop the array and assemble it again.
    AssembleAgain(Vec<usize>),
    /// Assemble the array with these members, with which recovery may determine the tails; or reset the offline zones.
    AssembleWith(Vec<usize>),
    /// Bring these members back before the first write, or replace them.
    BringBack(Vec<usize>),
    /// Replace these members, one after the other.
    Replace(Vec<usize>),
    /// Rebuild the lost parts.
    Rebuild,
    /// Reset the zones with unreadable blocks, which gives up their data.
    ResetZones,
}

/// Health of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Condition of the array.
    pub condition: Condition,
    /// Why the array is not healthy.
    pub cause: Option<Cause>,
    /// Action that improves the condition.
    pub remedy: Option<Remedy>,
    /// Number of further members, any of them, that may be lost without loss of data.
    pub may_be_lost: usize,
    /// Zones with unreadable data; empty if the array has failed.
    pub unreadable_zones: Vec<ZoneIndex>,
    /// Whether single blocks of other zones may be unreadable.
    pub blocks_unreadable: bool,
    /// Members that are out.
    pub out: Vec<usize>,
    /// Members that are missing, and without which nothing has been written.
    pub missing: Vec<usize>,
    /// Members that lack parts of zones.
    pub lacking: Vec<usize>,
    /// Members with blocks that their drives could not read.
    pub unreadable: Vec<usize>,
    /// Members whose drives have reached the error limit.
    pub exceeded: Vec<usize>,
    /// Members with a metadata log that cannot move to another zone any more: they go out when it is full.
    pub confined: Vec<usize>,
}

impl Health {
    /// Determines the health of an array from its status.
    pub fn of(array: &ArrayStatus) -> Health {
        let those = |which: &dyn Fn(&MemberStatus) -> bool| -> Vec<usize> {
            let roles = array.members.iter().enumerate().filter(|(_, member)| which(member));
            roles.map(|(role, _)| role).collect()
        };
        let missing = those(&|member| member.state == MemberState::Out && member.awaited);
        let out = those(&|member| member.state == MemberState::Out && !member.awaited);
        let lacking = those(&|member| member.state == MemberState::Rebuilding);
        let unreadable = those(&|member| member.unreadable_blocks > 0);
        let confined = those(&|member| member.log_confined);
        let is_exceeded = |blocks: u16| array.error_limit > 0 && u32::from(blocks) >= array.error_limit;
        let exceeded =
            those(&|member| member.state != MemberState::Out && is_exceeded(member.errors.repaired));
        let most_missing = array.most_missing.max(out.len() + missing.len());
        let cause = if array.failed {
            Some(Cause::ArrayFailed)
        } else if !array.offline.is_empty() {
            Some(Cause::ZonesOffline)
        } else if !array.failed_zones.is_empty() {
            Some(Cause::ZonesFailed)
        } else if !missing.is_empty() {
            Some(Cause::MembersMissing)
        } else if array.provisional && array.problem.is_some() {
            Some(Cause::NotBegun)
        } else if !out.is_empty() || !lacking.is_empty() {
            Some(Cause::MembersLack)
        } else if !confined.is_empty() {
            Some(Cause::LogsConfined)
        } else if !unreadable.is_empty() {
            Some(Cause::BlocksUnreadable)
        } else if array.lost_blocks > 0 {
            Some(Cause::BlocksLost)
        } else if !exceeded.is_empty() {
            Some(Cause::ErrorsExceeded)
        } else {
            None
        };
        let condition = match cause {
            Some(Cause::ArrayFailed) => Condition::Unusable,
            Some(_) => Condition::Degraded,
            None => Condition::Healthy,
        };
        let may_be_lost = if array.failed { 0 } else { array.parities.saturating_sub(most_missing) };
        let offline = array.offline.iter().map(|offline| offline.zone);
        let mut unreadable_zones: Vec<ZoneIndex> =
            offline.chain(array.unreadable_zones.iter().copied()).collect();
        unreadable_zones.sort_unstable();
        let mut health = Health {
            unreadable_zones,
            blocks_unreadable: array.most_missing_of_blocks > array.parities || array.lost_blocks > 0,
            condition,
            cause,
            remedy: None,
            may_be_lost,
            out,
            missing,
            lacking,
            unreadable,
            exceeded,
            confined,
        };
        health.remedy = cause.map(|cause| health.remedy_of(cause, array));
        health
    }

    fn remedy_of(&self, cause: Cause, array: &ArrayStatus) -> Remedy {
        // Drives of these members have no zones for the parts to be rebuilt.
        let worn = self.lacking.iter().filter(|role| array.members[**role].is_worn_out());
        let need_drives: Vec<usize> = self.out.iter().chain(worn).copied().collect();
        let worn_parts = self.lacking.iter().filter(|role| array.members[**role].worn).count();
        match cause {
            Cause::ArrayFailed => Remedy::AssembleAgain(self.out.clone()),
            Cause::ZonesOffline => {
                let mut waited: Vec<usize> =
                    array.offline.iter().flat_map(|zone| zone.waits_for.clone()).collect();
                waited.sort_unstable();
                waited.dedup();
                let gone = [self.missing.clone(), self.out.clone()].concat();
                match waited.is_empty() && !gone.is_empty() {
                    true => Remedy::Replace(gone),
                    false => Remedy::AssembleWith(waited),
                }
            }
            // A reset needs as many writable parts as a stripe has data chunks.
            Cause::ZonesFailed if !self.out.is_empty() && self.out.len() + worn_parts > array.parities => {
                Remedy::Replace(self.out.clone())
            }
            Cause::ZonesFailed | Cause::BlocksLost => Remedy::ResetZones,
            Cause::MembersMissing => Remedy::BringBack(self.missing.clone()),
            Cause::NotBegun => Remedy::AssembleAgain(Vec::new()),
            Cause::MembersLack if need_drives.is_empty() => Remedy::Rebuild,
            Cause::MembersLack => Remedy::Replace(need_drives),
            Cause::LogsConfined => Remedy::Replace(self.confined.clone()),
            Cause::BlocksUnreadable if array.parities == 0 => Remedy::ResetZones,
            Cause::BlocksUnreadable => Remedy::Replace(self.unreadable.clone()),
            Cause::ErrorsExceeded => Remedy::Replace(self.exceeded.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::DriveId,
        format::superblock::ErrorCounts,
        raid::{error::Note, policy::Policy},
    };

    /// The status of a healthy array of four members.
    fn healthy() -> ArrayStatus {
        let member = MemberStatus {
            state: MemberState::Active,
            drive: String::new(),
            awaited: false,
            note: Note::Nothing,
            errors: ErrorCounts::default(),
            unreadable_blocks: 0,
            zones_to_rebuild: 0,
            worn: false,
            moved: Default::default(),
            spare_zones: 0,
            worn_log: Vec::new(),
            log_confined: false,
            drive_id: DriveId::default(),
        };
        ArrayStatus {
            name: String::new(),
            uuid: [1; 16],
            chunk_blocks: 4,
            policy: Policy::Log,
            group_blocks: 0,
            checksums: false,
            parities: 1,
            aggregate: 1,
            event: 1,
            host: [0; 16],
            autostart: false,
            error_limit: 100,
            members: vec![member; 4],
            unreadable: Vec::new(),
            lost: Vec::new(),
            lost_blocks: 0,
            failed: false,
            most_missing: 0,
            most_missing_of_blocks: 0,
            failed_zones: Vec::new(),
            unreadable_zones: Vec::new(),
            offline: Vec::new(),
            provisional: false,
            read_only: false,
            problem: None,
        }
    }

    #[test]
    fn health_names_confined_logs_and_unreadable_blocks() {
        assert_eq!(Health::of(&healthy()).cause, None);
        let mut array = healthy();
        array.members[2].log_confined = true;
        let health = Health::of(&array);
        let expected = (Some(Cause::LogsConfined), Some(Remedy::Replace(vec![2])));
        assert_eq!((health.cause, health.remedy), expected);
        for (missing, unreadable) in [(1, false), (2, true)] {
            let array = ArrayStatus { most_missing_of_blocks: missing, ..healthy() };
            assert_eq!(Health::of(&array).blocks_unreadable, unreadable);
        }
    }

    #[test]
    fn health_asks_for_another_drive_from_error_limit_on() {
        let mut array = healthy();
        array.members[1].errors.repaired = 99;
        assert_eq!(Health::of(&array).cause, None);
        array.members[1].errors.repaired = 100;
        let health = Health::of(&array);
        assert_eq!((health.cause, health.may_be_lost), (Some(Cause::ErrorsExceeded), 1));
        assert_eq!(health.remedy, Some(Remedy::Replace(vec![1])));
        array.error_limit = 0;
        assert_eq!(Health::of(&array).cause, None);
    }

    #[test]
    fn health_recommends_no_reset_that_would_be_refused() {
        let mut array = ArrayStatus { failed_zones: vec![ZoneIndex(0)], ..healthy() };
        (array.members[1].state, array.members[1].worn) = (MemberState::Rebuilding, true);
        assert_eq!(Health::of(&array).remedy, Some(Remedy::ResetZones));
        array.members[3].state = MemberState::Out;
        assert_eq!(Health::of(&array).remedy, Some(Remedy::Replace(vec![3])));
    }
}
