//! The condition of an array and the recommended action in words, from its [`Health`].

use super::words::{in_a_row, is_or_are, members_named, number, so_many_zones};
use crate::{
    drive::ModelAndSerial,
    process::{
        output::quoted,
        size::{bytes, show},
    },
};
use engine::{
    array::{ArrayStatus, Cause, Health, Remedy},
    zone::ZoneIndex,
};

/// Advice for offline zones, before the name of the array.
pub(super) const GIVE_UP_ZONE: &str = "give up its data: zoneraid zone reset";

/// Advice for failed zones, which lack more parts than there are parities, before the name of the array.
pub(super) const RESET_FAILED: &str = "copy what can be read there, then: zoneraid zone reset";

/// Advice for lost blocks.
pub(super) const RESTORE: &str = "restore the lost data from a backup, or reset its zones";

/// Description of a member that is out.
fn is_out(array: &ArrayStatus, role: usize) -> String {
    let why = &array.members[role].note;
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!("member {role}{} is out{why}", drive_of(array, role))
}

/// Description of a member with zones to be rebuilt.
fn lacks(array: &ArrayStatus, role: usize) -> String {
    let member = &array.members[role];
    let zones = so_many_zones(member.zones_to_rebuild as usize);
    let worn = match member.worn {
        _ if member.is_worn_out() => ", and zones of its drive cannot be written any more",
        true => ", in spare zones of its drive",
        false => "",
    };
    format!("member {role} has {zones} to rebuild{worn}")
}

/// Clause about the consequences of further losses; `may_be_lost` members can be lost without loss of data. Empty for a
/// single drive.
fn stake(parities: usize, may_be_lost: usize) -> String {
    match may_be_lost {
        0 if parities == 0 => String::new(),
        0 => ", but losing another member would lose it".into(),
        count => format!(", and {} may be lost", more_members(count)),
    }
}

/// `one more member`, `two more members`, ...
fn more_members(count: usize) -> String {
    let members = if count == 1 { "member" } else { "members" };
    format!("{} more {members}", number(count))
}

/// Description of an array in deferred-write mode: members are missing, and nothing has been written without them.
fn waiting(array: &ArrayStatus, health: &Health) -> String {
    let Health { out, missing, may_be_lost, .. } = health;
    let gone = missing.iter().map(|role| format!("member {role}{} is missing", drive_of(array, *role)));
    let outs = out.iter().map(|role| is_out(array, *role));
    let what = in_a_row(&gone.chain(outs).collect::<Vec<_>>());
    let why = array.problem.as_ref().map(|why| format!(", and writes fail ({why})")).unwrap_or_default();
    let it = if missing.len() == 1 { "it" } else { "them" };
    let more = match *may_be_lost {
        0 => String::new(),
        count => format!("; {} may be lost", more_members(count)),
    };
    let readable = readable(health);
    format!(
        "{what}; {readable}, and the array is in deferred-write mode: nothing has been written without \
         {it}{why}{more}"
    )
}

/// The condition of an array in one sentence.
pub fn sentence(array: &ArrayStatus, health: &Health) -> String {
    let Health { out, lacking, .. } = health;
    let members = || {
        let (outs, lacks) = (out.iter().map(|r| is_out(array, *r)), lacking.iter().map(|r| lacks(array, *r)));
        in_a_row(&outs.chain(lacks).collect::<Vec<_>>())
    };
    let stake = || stake(array.parities, health.may_be_lost);
    match health.cause {
        Some(Cause::ArrayFailed) if array.parities == 0 => {
            format!("{}; nothing can be read or written", members())
        }
        Some(Cause::ArrayFailed) => "too many members are out; nothing can be read or written".into(),
        Some(Cause::ZonesOffline) => {
            let (zones, are) = (so_many_zones(array.offline.len()), is_or_are(array.offline.len()));
            let others = match array.failed_zones.len() {
                0 => others_work(health).into(),
                count => {
                    let lack = if count == 1 { "lacks" } else { "lack" };
                    let failed = zones_named(&array.failed_zones);
                    format!("{failed} {lack} more parts than there are parities, and cannot be written")
                }
            };
            format!("{zones} {are} offline: the end of the data there cannot be determined; {others}")
        }
        Some(Cause::ZonesFailed) => {
            let count = array.failed_zones.len();
            let (which, work) = (zones_named(&array.failed_zones), others_work(health));
            let lack = if count == 1 { "lacks" } else { "lack" };
            let what = match array.unreadable_zones.len() {
                0 => format!("all data is there, but nothing can be written to {}", it_or_them(count)),
                unread if unread == count => {
                    "not all of it can be read, and nothing can be written there".into()
                }
                _ => format!(
                    "not all of {} can be read, and nothing can be written to any of them",
                    zones_named(&array.unreadable_zones)
                ),
            };
            format!("{which} {lack} more parts than there are parities ({}): {what}; {work}", members())
        }
        Some(Cause::MembersMissing) => waiting(array, health),
        Some(Cause::NotBegun) => {
            let why = array.problem.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("every member is present, but the array cannot be written{why}")
        }
        Some(Cause::MembersLack) => format!("{}; {}{}", members(), readable(health), stake()),
        Some(Cause::LogsConfined) => {
            let count = health.confined.len();
            let (have, they_are) = if count == 1 { ("has", "it is") } else { ("have", "they are") };
            format!(
                "{} {have} a worn metadata zone and no spare zone left: when the other metadata zone is full, \
                 {they_are} out",
                members_named(&health.confined)
            )
        }
        Some(Cause::BlocksUnreadable) => {
            let of = |role: &usize| {
                let size = show(bytes(array.members[*role].unreadable_blocks));
                format!("the drive of member {role} cannot read up to {size}")
            };
            let what = in_a_row(&health.unreadable.iter().map(of).collect::<Vec<_>>());
            format!("{what}; {}{}", readable(health), stake())
        }
        Some(Cause::BlocksLost) => {
            let lost = show(bytes(array.lost_blocks));
            format!("every member is in sync, but {lost} could not be rebuilt, and may be unreadable")
        }
        Some(Cause::ErrorsExceeded) => {
            let of = |role: &usize| {
                let repaired = array.members[*role].errors.repaired;
                format!("{repaired} blocks of member {role} had to be repaired")
            };
            let what = in_a_row(&health.exceeded.iter().map(of).collect::<Vec<_>>());
            let limit = array.error_limit;
            format!("every member is in sync, but {what}, and the limit is {limit}")
        }
        None if array.parities == 0 => "the drive works; if it is lost, all data is lost".into(),
        None => format!("every member is in sync; any {} of them may be lost", number(array.parities)),
    }
}

/// Clause about readability, for an array without failed zones.
fn readable(health: &Health) -> String {
    match health.blocks_unreadable {
        true => "single blocks cannot be read, and all other data is there".into(),
        false => "all data is there".into(),
    }
}

/// Clause about the zones that are neither offline nor failed.
fn others_work(health: &Health) -> &'static str {
    match health.blocks_unreadable {
        true => "all others work, but single blocks there cannot be read",
        false => "all others work",
    }
}

/// `it` or `them`, depending on a count.
fn it_or_them(count: usize) -> &'static str {
    if count == 1 { "it" } else { "them" }
}

/// Zones in a sentence: the first four by number.
fn zones_named(zones: &[ZoneIndex]) -> String {
    const MOST: usize = 4;
    let mut named: Vec<String> = zones.iter().take(MOST).map(|zone| zone.0.to_string()).collect();
    if zones.len() > MOST {
        named.push(format!("{} more", zones.len() - MOST));
    }
    format!("{} {}", if zones.len() == 1 { "zone" } else { "zones" }, in_a_row(&named))
}

/// The recommended action, as a command or in words.
pub fn advice(called: &str, array: &ArrayStatus, health: &Health, remedy: &Remedy) -> String {
    match remedy {
        Remedy::AssembleAgain(_) if health.cause == Some(Cause::NotBegun) => {
            "remove the cause, and start the array again".into()
        }
        Remedy::AssembleAgain(members) => {
            let members = match members[..] {
                [] => "the missing members".into(),
                _ => members_named(members),
            };
            format!(
                "connect the drives of {members} again, then stop the array and start it again: zoneraid stop \
                 {}",
                quoted(called)
            )
        }
        Remedy::AssembleWith(waited) => {
            // Zones that wait for members are not given up: they may show whether there is a volume.
            if !waited.is_empty() {
                return format!(
                    "start it with {} again; do not replace drives that may hold the data of these zones",
                    members_named(waited)
                );
            }
            let zone = array.offline.first().filter(|_| array.offline.len() == 1);
            let zone = zone.map_or("ZONE".into(), |zone| zone.zone.0.to_string());
            format!("{GIVE_UP_ZONE} {} {zone}", quoted(called))
        }
        Remedy::BringBack(missing) => {
            let (its, drives) = if missing.len() == 1 { ("its", "drive") } else { ("their", "drives") };
            format!("connect {its} {drives} before the first write, or {}", replacements(called, missing))
        }
        Remedy::Replace(members) => replacements(called, members),
        Remedy::Rebuild => format!("zoneraid rebuild {}", quoted(called)),
        Remedy::ResetZones if health.cause == Some(Cause::ZonesFailed) => {
            let zone = array.failed_zones.first().filter(|_| array.failed_zones.len() == 1);
            let zone = zone.map_or("ZONE".into(), |zone| zone.0.to_string());
            format!("{RESET_FAILED} {} {zone}", quoted(called))
        }
        Remedy::ResetZones => RESTORE.into(),
    }
}

/// Model, serial number and size of a member's drive, so that the right drive is pulled; empty if the drive reports
/// none.
fn drive_of(array: &ArrayStatus, role: usize) -> String {
    let drive_id = ModelAndSerial::kept(&array.members[role].drive_id).words();
    if drive_id.is_empty() { drive_id } else { format!("{drive_id},") }
}

/// The commands that replace the drives of members that are out or worn, one after the other.
fn replacements(called: &str, roles: &[usize]) -> String {
    let [first, others @ ..] = roles else { return String::new() };
    let replace = format!("zoneraid replace {} {first} NEW, where NEW is a blank drive", quoted(called));
    match others {
        [] => replace,
        _ => format!("{replace}; then {} in the same way", members_named(others)),
    }
}
