//! Permanent media damage. A drive counts as sound again once the array has moved the contents of its worn zones to
//! spare zones of the same drive.

use super::{command_queue::Bay, drives::Places, run_state::RunState, world::World};
use emu::ssd::Fault;
use engine::{
    array::MemberState,
    zone::{Lba, ZoneIndex},
};
use std::collections::BTreeSet;

impl World<'_> {
    /// Damages the media of a drive permanently: one block, or a `whole_zone`.
    pub(super) fn damage(&mut self, run_state: &mut RunState, bay: Bay, whole_zone: bool) {
        let geometry = self.command_queue.geometry(bay).clone();
        let mut zone = ZoneIndex(self.rng.below(geometry.zones as u64) as u32);
        let mut block = self.rng.below(geometry.zone_capacity_blocks);
        if self.rng.chance(1, 2) {
            // Blocks that were written last matter most: near a write pointer, in the metadata log or among data.
            const BELOW: u64 = 24;
            let zones: Vec<_> =
                (0..geometry.zones).map(|z| self.command_queue.ssd(bay).zones().info(ZoneIndex(z))).collect();
            let begun: Vec<_> = zones.into_iter().filter(|info| info.state.is_active()).collect();
            if !begun.is_empty() {
                let info = begun[self.rng.below(begun.len() as u64) as usize];
                let above = geometry.zrwa.filter(|_| info.zrwa).map_or(0, |zrwa| zrwa.size_blocks);
                let from = info.wp_blocks.saturating_sub(BELOW);
                let to = (info.wp_blocks + above).min(geometry.zone_capacity_blocks);
                (zone, block) = (info.zone, from + self.rng.below((to - from).max(1)));
            }
        }
        let read_only = self.rng.chance(1, 2);
        let fault = match (whole_zone, read_only) {
            (false, _) => Fault::Unreadable(Lba(geometry.start(zone).0 + block)),
            (true, true) => Fault::ReadOnly(zone),
            (true, false) => Fault::Offline(zone),
        };
        self.command_queue.ssd(bay).faults().after(0, fault);
        run_state.damaged.insert(bay);
        match whole_zone {
            true => run_state.worn.entry(bay).or_default().insert(zone.0),
            false => run_state.scarred.insert(bay),
        };
    }

    pub(super) fn is_damaged(&self, run_state: &RunState, member: usize) -> bool {
        self.drives_of(member).any(|bay| run_state.damaged.contains(&bay))
    }

    /// Whether a damaged drive has spare zones for all its worn zones.
    pub(super) fn can_heal(&self, run_state: &RunState, bay: Bay) -> bool {
        let (worn, places) = (self.worn(run_state, bay), self.places(bay));
        let all = 0..self.command_queue.geometry(bay).zones / self.scenario.aggregate;
        let spare = all.filter(|place| !worn.contains(place) && !self.holds(&places, *place));
        let lost = worn.iter().filter(|place| self.holds(&places, **place));
        let is_log = |place: &u32| places.zone_at(*place).is_none();
        !worn.is_empty() && !worn.iter().any(is_log) && lost.count() <= spare.count()
    }

    /// Clears the drives that hold nothing in worn zones any more.
    pub(super) fn note_healed(&mut self, run_state: &mut RunState) {
        for member in 0..self.members.len() {
            let whole = self.member_state(member) == Some(MemberState::Active);
            let Some(bay) = self.members[member].filter(|_| whole && self.replacement_drive.is_none()) else {
                continue;
            };
            let (worn, places) = (self.worn(run_state, bay), self.places(bay));
            let is_healed = !worn.is_empty() && !worn.iter().any(|place| self.holds(&places, *place));
            if is_healed && run_state.damaged.remove(&bay) {
                self.trace.note(|| format!("drive{bay} has nothing in zones that have worn out"));
                self.counts.healed += 1;
            }
        }
    }

    /// The worn zones of a drive, in units of the array's zones; empty if the drive has other damage as well.
    fn worn(&self, run_state: &RunState, bay: Bay) -> BTreeSet<u32> {
        let worn = run_state.worn.get(&bay).filter(|_| !run_state.scarred.contains(&bay));
        worn.into_iter().flatten().map(|zone| zone / self.scenario.aggregate).collect()
    }

    /// Whether a zone of a drive, given by its place, holds data or metadata of the array, or may do so.
    fn holds(&self, places: &Places, place: u32) -> bool {
        let shown = self.oracle.zones.len() as u32;
        let zones = self.subject.as_ref().map_or(shown, |subject| subject.array_zones());
        places.zone_at(place).is_none_or(|zone| zone < zones)
    }
}
