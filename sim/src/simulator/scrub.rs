//! Scrubs of single zones at any moment of a life, beside everything else.
//!
//! A scrub may find blocks that a drive cannot read. As long as no drive fails silently, it may not find wrong ones, or
//! stripes that contradict their parity.

use super::{
    run_state::RunState,
    world::{Failure, World},
};
use engine::array::{ScrubFindingKind, ZoneScrub};

/// Begins to scrub a zone, occasionally; its result is judged by [`note_scrubbed`].
pub(super) fn scrub_somewhere(world: &mut World<'_>, run_state: &mut RunState) {
    let rate = world.scenario.misfortune.scrub;
    if run_state.scrub.is_some() || rate == 0 || !run_state.scrubs.chance(rate, 100_000) {
        return;
    }
    let Some(subject) = world.subject.clone().filter(|subject| !subject.is_deferred()) else { return };
    let zone = run_state.scrubs.below(subject.array_zones().max(1) as u64) as u32;
    world.trace.note(|| format!("scrub of zone {zone}"));
    run_state.scrub = Some(world.start(subject.scrub(zone)));
}

/// Judges the scrub if it has ended.
///
/// # Errors
/// It found blocks wrong that are right.
pub(super) fn note_scrubbed(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let result = run_state.scrub.as_ref().and_then(|scrub| scrub.borrow_mut().take());
    let Some(result) = result else { return Ok(()) };
    run_state.scrub = None;
    // The array may have failed meanwhile.
    let Ok(scrub) = result else { return Ok(()) };
    judge(world, &scrub)
}

fn judge(world: &mut World<'_>, scrub: &ZoneScrub) -> Result<(), Failure> {
    world.counts.scrubs += 1;
    world.counts.repaired += scrub.findings.iter().filter(|finding| finding.is_repaired).count() as u64;
    world.trace.note(|| format!("scrubbed: {scrub:?}"));
    let is_false = scrub.findings.iter().find(|finding| finding.kind != ScrubFindingKind::Unreadable);
    match is_false {
        Some(finding) if world.scenario.misfortune.silent == 0 => {
            Err(Failure(format!("a scrub finds right blocks wrong: {finding:?}")))
        }
        _ => Ok(()),
    }
}
