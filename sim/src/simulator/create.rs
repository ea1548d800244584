//! Creation of the array, at random or in the default order.

use super::{
    accept, ends,
    oracle::Oracle,
    step,
    subject::{Subject, SubjectError, create_options},
    world::{Failure, World},
};
use emu::ssd::Cut;
use std::rc::Rc;

/// Creates the subject; `false` if it refuses the geometry. Sometimes the power is cut first.
pub(super) fn create(world: &mut World<'_>) -> Result<bool, Failure> {
    let mut interrupt = world.rng.chance(1, 10);
    loop {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&world.rng.next_u64().to_le_bytes());
        let options = create_options(&world.scenario, uuid);
        let drives = world.members.iter().flatten().map(|bay| world.drive(*bay)).collect();
        let pending = world.start(world.maker.create(&world.runtime, options, drives, world.scenario.join));
        let events = std::mem::take(&mut interrupt).then(|| world.rng.below(100));
        match step::wait(world, &pending, events, false)? {
            Some(result) => return created(world, result),
            None => ends::cut_power(world, |_| Cut { cache_lost: true, zrwa_lost: false })?,
        }
    }
}

/// Takes the new subject; `false` if it was refused.
///
/// # Errors
/// The subject promises more than its drives can keep, or less.
fn created(world: &mut World<'_>, result: Result<Rc<dyn Subject>, SubjectError>) -> Result<bool, Failure> {
    Ok(match result {
        Ok(subject) => {
            let geometry = subject.geometry().clone();
            world.trace.note(|| format!("created: {geometry:?}"));
            let volatile_cache = accept::promise(world, &*subject, &[], false)?;
            world.oracle = Oracle::new(geometry.zones, geometry.zone_capacity_blocks, volatile_cache);
            world.limits = Some(geometry);
            accept::hear_said(world, &*subject)?;
            world.subject = Some(subject);
            true
        }
        Err(why) => {
            world.counts.refusals += 1;
            world.trace.note(|| format!("not created: {why}"));
            world.refusal = Some(why.to_string());
            false
        }
    })
}

/// Creates the subject in the default order; `false` if it refuses.
pub(super) fn create_in_order(world: &mut World<'_>) -> Result<bool, Failure> {
    let options = create_options(&world.scenario, [7; 16]);
    let drives = world.members.iter().flatten().map(|bay| world.drive(*bay)).collect();
    let pending = world.start(world.maker.create(&world.runtime, options, drives, world.scenario.join));
    let result = step::wait_in_order(world, &pending)?;
    created(world, result)
}
