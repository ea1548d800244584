//! One fault that strikes more members than there are parities: the array may refuse, but must not return wrong data.
//!
//! In some forks the same block is damaged on more members than there are parities: blocks of data zones become
//! unreadable, blocks of metadata logs become unreadable or get a flipped bit. The array may refuse, have offline zones
//! and fail reads. If it has refused and the blocks become readable again, all promised data is there.

use super::{
    fork::Losses,
    world::{Failure, World},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{buf::BLOCK, zone::Lba};

impl World<'_> {
    /// In a quarter of the forks, damages the same block of too many members of the ended world.
    ///
    /// # Errors
    /// Lost or wrong data without an error.
    pub(super) fn damage_fork(
        &mut self,
        ended: &Self,
        losses: &Losses,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let plain = self.members.len() > 1 && self.replacement_drive.is_none() && !self.maker.is_layered();
        if !plain || !losses.suspects.is_empty() || !losses.offered || !rng.chance(1, 4) {
            return Ok(());
        }
        self.on_copy(ended.copy(rng.fork())?, Self::judge_common_damage)
            .map_err(|failure| Failure(format!("with too many members damaged: {failure}")))
    }

    fn judge_common_damage(&mut self) -> Result<(), Failure> {
        let (metadata, count) = (self.rng.chance(1, 2), self.members.len());
        let least = self.scenario.parities + 1;
        let mut members: Vec<usize> = (0..count).collect();
        self.rng.shuffle(&mut members);
        let struck = least + self.rng.below((count - least) as u64 + 1) as usize;
        members.truncate(struck);
        let bays: Vec<_> = members.iter().filter_map(|member| self.members[*member]).collect();
        let Some(first) = bays.first().copied() else { return Ok(()) };
        let Some(lba) = self.pick_block(first, metadata) else { return Ok(()) };
        let (zone, block) = self.command_queue.geometry(first).locate(lba);
        let flips = metadata && self.rng.chance(1, 2);
        let bit = self.rng.below(BLOCK as u64 * 8) as u32;
        self.trace.note(|| {
            format!(
                "fork: block {block} of zone {} of drives {bays:?} is damaged; a bit flips: {flips}",
                zone.0
            )
        });
        for bay in bays.iter().copied() {
            let lba = Lba(self.command_queue.geometry(bay).start(zone).0 + block);
            // A damaged last record of a log looks like the result of a power cut.
            match flips {
                true if !self.is_followed(bay, lba) => (),
                true => self.command_queue.ssd(bay).faults().after(0, Fault::Corrupt { lba, bit }),
                false => self.command_queue.ssd(bay).faults().after(0, Fault::Unreadable(lba)),
            }
        }
        self.lenient = true;
        let refused = self.assemble_from(|_| true)?.err();
        self.counts.beyond += 1;
        let Some(why) = refused else {
            let report = self.take_report(|_| true)?;
            self.verify_where(&report, |_| true)?;
            return Ok(());
        };
        self.trace.note(|| format!("fork: refused: {why}"));
        if flips {
            return Ok(());
        }
        self.lenient = false;
        self.cut_power(|_| Cut::default())?;
        for bay in bays {
            self.command_queue.ssd(bay).faults().mend();
        }
        self.assemble_without(&[]).map_err(|failure| Failure(format!("mended, {failure}")))?;
        self.check_recovery().map_err(|failure| Failure(format!("mended, {failure}")))
    }
}
