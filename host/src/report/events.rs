//! Events of an array, as reported to users.

use engine::array::{Event, EventList};
use serde::{Deserialize, Serialize};

/// An event of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventReport {
    /// Sequence number of the event since the start of the process.
    pub number: u64,
    pub event: String,
    /// Member and zone that are affected.
    pub role: Option<u32>,
    pub zone: Option<u32>,
    pub sentence: String,
}

impl EventReport {
    /// The last 64 of these events.
    pub fn lately(list: EventList) -> Vec<EventReport> {
        const MOST: usize = 64;
        let skipped = list.events.len().saturating_sub(MOST);
        let last = (list.first..).zip(&list.events).skip(skipped);
        last.map(|(number, event)| EventReport::of(number, event)).collect()
    }

    fn of(number: u64, event: &Event) -> EventReport {
        EventReport {
            number,
            event: kind(event).into(),
            role: event.member().map(|member| member as u32),
            zone: event.zone(),
            sentence: event.to_string(),
        }
    }
}

/// Name of an event in JSON.
fn kind(event: &Event) -> &'static str {
    match event {
        Event::Out { .. } => "out",
        Event::Back { .. } => "back",
        Event::PartLost { .. } => "part-lost",
        Event::PartLacking { .. } => "part-lacking",
        Event::PartDisplaced { .. } => "part-displaced",
        Event::ZoneOffline { .. } => "zone-offline",
        Event::ZoneFailed { .. } => "zone-failed",
        Event::ArrayFailed => "array-failed",
        Event::Fenced => "fenced",
        Event::Settled { .. } => "settled",
        Event::Attached { .. } => "attached",
        Event::Replaced { .. } => "replaced",
        Event::Moved { .. } => "moved",
        Event::NotReplaced(_) => "not-replaced",
        Event::RebuildBegun => "rebuild-begun",
        Event::LeftOut { .. } => "left-out",
        Event::BlocksLost { .. } => "blocks-lost",
        Event::Repaired { .. } => "repaired",
        Event::Contradicts { .. } => "contradicts",
        Event::RebuildEnded { .. } => "rebuild-ended",
        Event::RebuildStopped(_) => "rebuild-stopped",
    }
}
