//! Permanent media damage. A drive counts as sound again once the array has moved the contents of its worn zones to
//! spare zones of the same drive.

use super::{
    command_queue::Bay,
    drives::Places,
    run_state::RunState,
    subject::SubjectError,
    world::{Failure, World},
};
use emu::ssd::{Cut, Fault};
use engine::{
    array::MemberState,
    raid::{
        error::{ArrayError, NoArray},
        policy::Policy,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
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

    /// Makes the part of a zone read-only on more members than there are parities, as if this had happened at the end.
    /// All promised data of the zone is read, also after another power cut; if ZRWAs were lost as well, or another part
    /// or member in a later power cut, reads may fail, and the status names the zone. No data is invented.
    ///
    /// # Errors
    /// A broken promise.
    pub(super) fn judge_common_wear(&mut self) -> Result<(), Failure> {
        let (members, parities) = (self.members.len(), self.scenario.parities);
        let is_array = self.maker.notices_others() && !self.maker.is_layered();
        let is_plain = is_array && self.scenario.aggregate == 1 && self.scenario.group_blocks <= 1;
        let is_begun = |zone: &u32| {
            let zone = &self.oracle.zones[*zone as usize];
            zone.change.is_none() && zone.submitted() > 0
        };
        let begun: Vec<u32> = (0..self.oracle.zones.len() as u32).filter(is_begun).collect();
        let bays: Vec<Bay> = self.members.iter().flatten().copied().collect();
        if !is_plain || members == 1 || begun.is_empty() || bays.len() < members {
            return Ok(());
        }
        let zone = *self.rng.pick(&begun);
        let mut worn: Vec<usize> = (0..members).collect();
        self.rng.shuffle(&mut worn);
        let others = worn.split_off(parities + 1 + self.rng.below((members - parities - 1) as u64) as usize);
        let mut places = Vec::new();
        for bay in &bays {
            let (of, count) = (self.places(*bay), self.command_queue.geometry(*bay).zones);
            let Some(place) = (0..count).find(|place| of.zone_at(*place) == Some(zone)) else {
                return Ok(());
            };
            places.push(ZoneIndex(place));
        }
        let (zrwa_lost, later) = (self.rng.chance(1, 4), self.rng.below(4));
        self.trace.note(|| {
            format!(
                "fork: zone {zone} is read-only on members {worn:?}; ZRWAs lost: {zrwa_lost}; then {later}"
            )
        });
        let chunk = self.scenario.chunk_blocks;
        let used_blocks = self.oracle.capacity.div_ceil(chunk * (members - parities) as u64) * chunk;
        let info = |(bay, place): (&Bay, &ZoneIndex)| self.command_queue.ssd(*bay).zones().info(*place);
        let parts: Vec<ZoneInfo> = bays.iter().zip(&places).map(info).collect();
        let are_full = parts.iter().all(|info| info.state == ZoneState::Full);
        let is_any_full = parts.iter().any(|info| info.wp_blocks >= used_blocks);
        for member in &worn {
            let mut ssd = self.command_queue.ssd(bays[*member]);
            match zrwa_lost {
                true => {
                    let lost = ssd.wear_out_with_zrwa(places[*member]);
                    lost.map_err(|error| Failure(error.to_string()))?;
                }
                false => ssd.faults().after(0, Fault::ReadOnly(places[*member])),
            }
        }
        self.lenient = true;
        for round in 0..3 {
            if round > 0 {
                let hit = others.first().filter(|_| (round, later) == (1, 1)).map(|member| bays[*member]);
                self.cut_power(|bay| Cut { cache_lost: false, zrwa_lost: hit == Some(bay) })?;
            }
            let mut absent = None;
            match (round, later) {
                (1, 2) => {
                    self.command_queue.ssd(bays[worn[0]]).faults().after(0, Fault::Offline(places[worn[0]]))
                }
                (1, 3) => absent = Some(self.rng.below(members as u64) as usize),
                _ => {}
            }
            let promised = self.oracle.promised(zone);
            match self.assemble_from(|member| absent != Some(member))? {
                Ok(()) => {}
                // Members that were out before.
                Err(SubjectError::Array(ArrayError::Drives(NoArray::TooFew { .. })))
                    if round == 0 || absent.is_some() =>
                {
                    return Ok(());
                }
                Err(why) => return Err(Failure(format!("the array does not assemble: {why}"))),
            }
            let report = self.take_report(|of| of == zone)?;
            let has_sound = others.iter().any(|m| self.member_state(*m) == Some(MemberState::Active));
            // An absent member comes back to a zone that has not been written without it.
            let is_whole =
                !zrwa_lost && (round == 0 || later == 0 || (round, later) == (2, 3) && !is_any_full);
            let must_be_read = match is_any_full {
                false => self.scenario.policy != Policy::InPlace,
                true => are_full && has_sound,
            };
            let is_offline = report[zone as usize].state == ZoneState::Offline;
            if is_offline && promised > 0 && is_whole && must_be_read {
                let listed = self.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
                let why = listed.into_iter().find(|(listed, _)| *listed == zone).map(|(_, why)| why);
                return Err(Failure(format!("zone {zone} is offline, of {promised} blocks: {why:?}")));
            }
            let failed = self.verify_where(&report, |of| of == zone)?;
            if is_whole && !is_offline && failed.contains(&zone) {
                return Err(Failure(format!("some of {promised} blocks of zone {zone} cannot be read")));
            }
            self.judge_readable(&failed)?;
            self.counts.beyond += 1;
        }
        Ok(())
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
