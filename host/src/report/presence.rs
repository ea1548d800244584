//! Presence of a volume or of namespaces on an array, which may be undecidable.

use super::words::{in_a_row, is_or_are, members_named};
use anyhow::{Error, Result, anyhow};
use engine::{array::ArrayStatus, evidence::Presence};

/// Most zones that an error names.
const MOST_NAMED: usize = 6;

/// Whether `what` is on the array or namespace `called`.
///
/// # Errors
/// The zones that decide are offline or cannot be read: it may be there, so nothing is written.
pub fn is_there(presence: Presence, what: &str, called: &str, array: &ArrayStatus) -> Result<bool> {
    match presence {
        Presence::Yes => Ok(true),
        Presence::No => Ok(false),
        Presence::Unknown(zones) => Err(hidden(&zones, what, called, array)),
    }
}

/// The error if it is unknown whether `what` is on `called`, since `zones` of that are offline or cannot be read. Names
/// the members that may bring them back: those of all offline zones of `array` if `called` is a namespace, whose zones
/// have other numbers.
pub fn hidden(zones: &[u32], what: &str, called: &str, array: &ArrayStatus) -> Error {
    let is_array = called == array.name;
    let hiding = array.offline.iter().filter(|offline| !is_array || zones.contains(&offline.zone.0));
    let mut waits: Vec<usize> = hiding.flat_map(|offline| offline.waits_for.clone()).collect();
    waits.sort_unstable();
    waits.dedup();
    let action = match waits.is_empty() {
        true => "no data is written there until they can be read".to_string(),
        false => format!("start it with {} again", members_named(&waits)),
    };
    let mut named: Vec<String> = zones.iter().take(MOST_NAMED).map(u32::to_string).collect();
    if zones.len() > MOST_NAMED {
        named.push("others".into());
    }
    let word = if zones.len() == 1 { "zone" } else { "zones" };
    let (named, are) = (in_a_row(&named), is_or_are(zones.len()));
    anyhow!(
        "it is unknown whether '{called}' carries {what}: {word} {named} {are} offline or unreadable; {action}"
    )
}
