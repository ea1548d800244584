//! Two drives in one place: what is written to the first goes to the second as well, zone by zone.
//!
//! A drive that shall replace another one is filled while that one works on (`raid/patrol/replace.rs`). What is
//! copied has to stay equal: from the moment a zone is *followed*, every command that changes it goes to
//! both drives, and is complete when both have answered. So whoever knows that something is complete
//! knows it of both. Whoever has a zone followed sees to it that it is equal on both drives, and that no
//! command for it is on its way.
//!
//! The first drive answers: reads, reports and flushes are its own, and an error of it is the error.
//! The second drive counts for nothing yet. At its first error it is let go, before the command that met it
//! is answered, and nothing is sent to it any more: nobody else is told.

use crate::{
    device::{Command, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::{Gate, Runtime},
    zone::ZoneIndex,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

/// Two drives, of which the second gets what is written to zones that are followed.
pub struct Mirror {
    runtime: Runtime,
    slots: Rc<Slots>,
    first: Rc<dyn ZonedDevice>,
    second: Rc<dyn ZonedDevice>,
    followed: RefCell<BTreeSet<u32>>,
    error: Cell<Option<DeviceError>>,
    /// Commands that are on their way to both drives; opened when the last of them is complete.
    in_flight: Cell<u64>,
    idle: Gate,
}

impl Mirror {
    /// Two drives whose zones are equally far apart: a block has the same address on both.
    pub fn new(
        runtime: &Runtime,
        first: Rc<dyn ZonedDevice>,
        second: Rc<dyn ZonedDevice>,
    ) -> Option<Rc<Mirror>> {
        let (a, b) = (first.geometry(), second.geometry());
        (a.zone_size_blocks == b.zone_size_blocks).then(|| {
            Rc::new(Mirror {
                runtime: runtime.clone(),
                slots: Rc::default(),
                first,
                second,
                followed: RefCell::default(),
                error: Cell::default(),
                in_flight: Cell::default(),
                idle: Gate::default(),
            })
        })
    }

    /// The drive that is written, too.
    pub fn second(&self) -> &Rc<dyn ZonedDevice> {
        &self.second
    }

    /// Has the second drive get what is written to `zone` from now on.
    pub fn follow(&self, zone: ZoneIndex) {
        self.followed.borrow_mut().insert(zone.0);
    }

    /// Whether the second drive has what the first one has of `zone`, as far as that is complete.
    pub fn follows(&self, zone: ZoneIndex) -> bool {
        self.error.get().is_none() && self.followed.borrow().contains(&zone.0)
    }

    /// Why the second drive has been let go, if so.
    pub fn error(&self) -> Option<DeviceError> {
        self.error.get()
    }

    /// Lets the second drive go.
    pub fn let_go(&self, error: DeviceError) {
        self.error.set(self.error.get().or(Some(error)));
    }

    /// Follows no zone any more, and waits until nothing is on its way to the second drive.
    pub async fn end(&self) {
        self.followed.borrow_mut().clear();
        while self.in_flight.get() > 0 {
            self.idle.wait().await;
        }
    }

    /// Of the first drive.
    pub fn geometry(&self) -> &Geometry {
        self.first.geometry()
    }

    /// The zone that a command changes; nothing if it changes none.
    fn zone_of(&self, command: &Command) -> Result<Option<ZoneIndex>, Status> {
        match command {
            Command::Read { .. } | Command::Report { .. } | Command::Flush => Ok(None),
            Command::Write { lba, .. } | Command::FlushZrwa { last: lba } => {
                Ok(Some(self.first.geometry().locate(*lba).0))
            }
            Command::Append { zone, .. } => Ok(Some(*zone)),
            Command::Open { zones, .. }
            | Command::Close { zones }
            | Command::Finish { zones }
            | Command::Reset { zones } => match zones {
                Zones::One(zone) => Ok(Some(*zone)),
                // Some would go to both drives and some to one.
                Zones::All => Err(Status::InvalidField),
            },
        }
    }
}

impl ZonedDevice for Rc<Mirror> {
    fn geometry(&self) -> &Geometry {
        Mirror::geometry(self)
    }

    fn submit(&self, command: Command) -> Completion {
        let zone = match self.zone_of(&command) {
            Ok(zone) => zone.filter(|zone| self.follows(*zone)),
            Err(status) => return Completion::failed(status),
        };
        if zone.is_none() {
            return self.first.submit(command);
        }
        let second = self.second.submit(command.clone());
        let first = self.first.submit(command);
        let (completer, completion) = self.slots.pair();
        let mirror = self.clone();
        self.in_flight.set(self.in_flight.get() + 1);
        self.runtime.spawn(async move {
            let done = first.await;
            if let Err(error) = second.await.result {
                mirror.let_go(error);
            }
            mirror.in_flight.set(mirror.in_flight.get() - 1);
            mirror.idle.open();
            completer.complete(done);
        });
        completion
    }
}
