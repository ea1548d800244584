//! Checks the events of a running array and its identity (name, host, autostart) against the faults of the life.
//!
//! Every member that is out needs an event about it, and no event may accuse a member that was not struck: an operator
//! would pull a sound drive.

use super::subject::{Subject, SubjectIdentity};
use engine::{array::MemberState, raid::events::Event};
use std::collections::BTreeSet;

/// The identities that an array may report.
#[derive(Clone, Default)]
pub(super) struct AllowedIdentities {
    /// The next assembly reports one of these.
    pub may: Vec<SubjectIdentity>,
    /// Number of changes that were begun; new names are made from it.
    pub begun: u64,
}

/// Events that a subject has reported so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportedEvents {
    /// The number of the next event.
    next: u64,
    /// Members that are out according to the events.
    out: BTreeSet<usize>,
}

impl ReportedEvents {
    fn hear(&mut self, event: &Event) {
        match event {
            Event::Out { member, .. } => _ = self.out.insert(*member),
            Event::Back { member, .. } | Event::Attached { member, .. } | Event::Replaced { member, .. } => {
                self.out.remove(member);
            }
            _ => (),
        }
    }

    /// Checks the new events of `subject`; `is_suspect` says whether a member was struck. `note` is called for each
    /// event.
    ///
    /// # Errors
    /// An event accuses a member that was not struck, or a member is out without an event.
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
