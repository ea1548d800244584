//! Copies of the world on which a judgement is tried.

use super::world::{Failure, World};

/// Whether copies of a world's drives can be assembled and written on their own: an array, with no member being
/// replaced, no drive of another array, and an array that notices other hosts.
pub(super) fn can_live_on(world: &World<'_>) -> bool {
    !world.scenario.is_bare()
        && world.replacement_drive.is_none()
        && world.foreign.is_empty()
        && world.maker.notices_others()
}

/// Judges a copy of a world; adds its counts to this world, and its trace if the judgement fails.
///
/// # Errors
/// The failure of the judgement.
pub(super) fn on_copy(
    world: &mut World<'_>,
    mut copy: World<'_>,
    judge: impl FnOnce(&mut World<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let result = judge(&mut copy);
    take_from(world, &mut copy);
    if result.is_err() {
        world.trace.extend(std::mem::take(&mut copy.trace));
    }
    result
}

/// Adds the counts and the coverage of a copy.
pub(super) fn take_from(world: &mut World<'_>, copy: &mut World<'_>) {
    world.counts.judgements += copy.counts.judgements;
    world.counts.beyond += copy.counts.beyond;
    world.counts.double_losses += copy.counts.double_losses;
    world.counts.claims += copy.counts.claims;
    world.counts.pessimistic_claims += copy.counts.pessimistic_claims;
    world.counts.remedies += copy.counts.remedies;
    world.coverage.seen.append(&mut copy.coverage.seen);
}
