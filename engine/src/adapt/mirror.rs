//! Mirror of a drive on its replacement, zone by zone.
//!
//! A replacement drive is filled while the drive that it replaces is in use (`raid/maintain/copy.rs`). The copy has
//! to stay equal: from the moment a zone is *followed*, every command that changes it goes to both drives, and is
//! complete when both have answered. So a completed command is complete on both. The caller of [`Mirror::follow`] makes
//! sure that the zone is equal on both drives, and that no command for it is outstanding.
//!
//! The first drive decides: reads, reports and flushes go to it alone, and only its errors are returned. The second
//! drive is not a member yet. At its first error it is dropped, before the command that met the error is completed, and
//! gets no more commands; the error is available from [`Mirror::error`].

use crate::{
    device::{Command, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice},
    runtime::{Gate, Runtime},
    zone::ZoneIndex,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

/// Two drives, of which the second is sent all changes of followed zones.
pub struct Mirror {
    runtime: Runtime,
    slots: Rc<Slots>,
    first: Rc<dyn ZonedDevice>,
    second: Rc<dyn ZonedDevice>,
    followed: RefCell<BTreeSet<u32>>,
    error: Cell<Option<DeviceError>>,
    /// Commands in flight to both drives; `idle` is opened when one of them has completed.
    in_flight: Cell<u64>,
    idle: Gate,
}

impl Mirror {
    /// Combines two drives; `None` unless their zones have the same size, since a block must have the same address on
    /// both.
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

    /// The second drive.
    pub fn second(&self) -> &Rc<dyn ZonedDevice> {
        &self.second
    }

    /// Sends all changes of `zone` to the second drive as well from now on.
    pub fn follow(&self, zone: ZoneIndex) {
        let (a, b) = (self.first.geometry(), self.second.geometry());
        assert_eq!(
            a.start(zone),
            b.start(zone),
            "first blocks of zone {} on both halves of a mirror",
            zone.0
        );
        assert!(zone.0 < a.zones.min(b.zones), "zone {} is mirrored, of {} and {}", zone.0, a.zones, b.zones);
        self.followed.borrow_mut().insert(zone.0);
    }

    /// Whether the second drive has all completed changes of `zone`.
    pub fn follows(&self, zone: ZoneIndex) -> bool {
        self.error.get().is_none() && self.followed.borrow().contains(&zone.0)
    }

    /// The error for which the second drive was dropped, if it was.
    pub fn error(&self) -> Option<DeviceError> {
        self.error.get()
    }

    /// Drops the second drive because of `error`; the first such error is kept.
    pub fn let_go(&self, error: DeviceError) {
        self.error.set(self.error.get().or(Some(error)));
    }

    /// Follows no zone any more, and waits until no command to the second drive is in flight.
    pub async fn end(&self) {
        self.followed.borrow_mut().clear();
        while self.in_flight.get() > 0 {
            self.idle.wait().await;
        }
    }

    /// Geometry of the first drive.
    pub fn geometry(&self) -> &Geometry {
        self.first.geometry()
    }

    /// The zone that a command changes, if any.
    fn zone_of(&self, command: &Command) -> Result<Option<ZoneIndex>, Status> {
        match command {
            Command::Read { .. } | Command::Report { .. } | Command::Flush => Ok(None),
            // Commands for all zones are not supported: only the followed ones may be changed on the second drive.
            command => command.zone(self.first.geometry()).map(Some).ok_or(Status::InvalidField),
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
            let in_flight = mirror.in_flight.get();
            assert!(in_flight > 0, "more commands to both halves of a mirror have ended than had begun");
            mirror.in_flight.set(in_flight - 1);
            mirror.idle.open();
            completer.complete(done);
        });
        completion
    }
}
