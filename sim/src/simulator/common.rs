//! One fault that strikes more members than there are parities: the array may refuse, but must not return wrong data.
//!
//! In some forks the same block is damaged on more members than there are parities: blocks of data zones become
//! unreadable, blocks of metadata logs become unreadable or get a flipped bit. The array may refuse, have offline zones
//! and fail reads. If it has refused and the blocks become readable again, all promised data is there.

use super::{
    assembly, copy, ends,
    fault_budget::Losses,
    recovered, two_faults,
    world::{Failure, World},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{buf::BLOCK, zone::Lba};

/// In a quarter of the forks, damages the same block of too many members of the ended world.
///
/// # Errors
/// Lost or wrong data without an error.
pub(super) fn damage_fork(
    world: &mut World<'_>,
    ended: &World<'_>,
    losses: &Losses,
    rng: &mut Rng,
) -> Result<(), Failure> {
    let plain = !world.scenario.is_bare() && world.replacement_drive.is_none() && !world.maker.is_layered();
    if !plain || !losses.suspects.is_empty() || !losses.offered || !rng.chance(1, 4) {
        return Ok(());
    }
    copy::on_copy(world, ended.copy(rng.fork())?, judge_common_damage)
        .map_err(|failure| Failure(format!("with too many members damaged: {failure}")))
}

fn judge_common_damage(world: &mut World<'_>) -> Result<(), Failure> {
    let (metadata, count) = (world.rng.chance(1, 2), world.members.len());
    let least = world.scenario.parities + 1;
    let mut members: Vec<usize> = (0..count).collect();
    world.rng.shuffle(&mut members);
    let struck = least + world.rng.below((count - least) as u64 + 1) as usize;
    members.truncate(struck);
    let bays: Vec<_> = members.iter().filter_map(|member| world.members[*member]).collect();
    let Some(first) = bays.first().copied() else { return Ok(()) };
    let Some(lba) = two_faults::pick_block(world, first, metadata) else { return Ok(()) };
    let (zone, block) = world.command_queue.geometry(first).locate(lba);
    let flips = metadata && world.rng.chance(1, 2);
    let bit = world.rng.below(BLOCK as u64 * 8) as u32;
    world.trace.note(|| {
        format!("fork: block {block} of zone {} of drives {bays:?} is damaged; a bit flips: {flips}", zone.0)
    });
    for bay in bays.iter().copied() {
        let lba = Lba(world.command_queue.geometry(bay).start(zone).0 + block);
        // A damaged last record of a log looks like the result of a power cut.
        match flips {
            true if !two_faults::is_followed(world, bay, lba) => (),
            true => world.command_queue.ssd(bay).faults().after(0, Fault::Corrupt { lba, bit }),
            false => world.command_queue.ssd(bay).faults().after(0, Fault::Unreadable(lba)),
        }
    }
    world.lenient = true;
    let refused = assembly::assemble_from(world, |_| true)?.err();
    world.counts.beyond += 1;
    let Some(why) = refused else {
        let report = recovered::take_report(world, |_| true)?;
        recovered::verify_where(world, &report, |_| true)?;
        return Ok(());
    };
    world.trace.note(|| format!("fork: refused: {why}"));
    if flips {
        return Ok(());
    }
    world.lenient = false;
    ends::cut_power(world, |_| Cut::default())?;
    for bay in bays {
        world.command_queue.ssd(bay).faults().mend();
    }
    assembly::assemble_without(world, &[]).map_err(|failure| Failure(format!("mended, {failure}")))?;
    recovered::check_recovery(world).map_err(|failure| Failure(format!("mended, {failure}")))
}
