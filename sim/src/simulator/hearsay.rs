//! What a subject says of its members, while it runs: judged by what has struck them; and what it may say of itself.
//!
//! Its events are values. Every member that is out has to be in one that says so, and none may accuse a member that
//! nothing has struck: an operator would pull a drive that is sound.

use super::subject::{Said, Subject};
use engine::{array::MemberState, raid::events::Event};
use std::collections::BTreeSet;

/// What an array may say of itself.
#[derive(Clone, Default)]
pub(super) struct Books {
    /// The next assembly says one of these.
    pub may: Vec<Said>,
    /// Changes that were begun, which is where names come from.
    pub begun: u64,
}

/// What a subject has said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    /// The number of the next event.
    next: u64,
    /// Members that are out by what was said.
    out: BTreeSet<usize>,
}

impl Heard {
    fn hear(&mut self, event: &Event) {
        match event {
            Event::Out { member, .. } => _ = self.out.insert(*member),
            Event::Back { member, .. } | Event::Attached { member, .. } | Event::Replaced { member, .. } => {
                self.out.remove(member);
            }
            _ => (),
        }
    }

    /// Listens to what `subject` has said since it was last listened to; `is_suspect` says who was struck.
    /// `note` is told of each event.
    ///
    /// # Errors
    /// It accuses a member that was not, or is silent about one that is out.
    pub(super) fn listen(
        &mut self,
        subject: &dyn Subject,
        is_suspect: impl Fn(usize) -> bool,
        mut note: impl FnMut(&Event),
    ) -> Result<(), String> {
        let Some(noted) = subject.events(self.next) else { return Ok(()) };
        for event in &noted.events {
            note(event);
            if let Some(member) = event.accused().filter(|member| !is_suspect(*member)) {
                return Err(format!("an event accuses member {member}, without any cause: {event}"));
            }
            self.hear(event);
        }
        self.next = noted.next();
        let members = subject.members();
        let silent = |(member, (state, _)): &(usize, &(MemberState, String))| {
            *state == MemberState::Out && !self.out.contains(member)
        };
        match members.iter().enumerate().find(silent) {
            Some((member, _)) if noted.dropped == 0 => {
                Err(format!("member {member} is out, and no event says so"))
            }
            _ => Ok(()),
        }
    }
}
