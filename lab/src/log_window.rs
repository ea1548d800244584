//! The window of log zones that have a ZRWA (ZRAID §4.4, §6.3: Z and its steps). Log writes may be in any order there,
//! up to the end of the ZRWA, and the write pointer is moved by explicit flushes only: half a window at a time, when
//! all writes up to there have completed.
//!
//! Invariants: no write beyond the window is in flight, so that none moves the write pointer by itself; and writes of a
//! zone are submitted in the order in which they came.

use engine::{
    device::{Command, Completer, Completion, Done, DriveId, Geometry, Slots, ZonedDevice, Zones, Zrwa},
    raid::geometry::META_ZONES,
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// A member with a window of its own for each log zone.
pub struct LogWindow(Rc<LogWindowInner>);

struct LogWindowInner {
    drive: Rc<dyn ZonedDevice>,
    zrwa: Zrwa,
    runtime: Runtime,
    slots: Rc<Slots>,
    zones: Vec<RefCell<Flow>>,
}

/// A log zone.
#[derive(Default)]
struct Flow {
    waiting: VecDeque<(Command, Completer)>,
    /// Its write pointer, if it has its ZRWA.
    wp: Option<u64>,
    /// Ends of writes in flight or above the write pointer, and whether they have completed.
    flights: VecDeque<(u64, bool)>,
    /// An exclusive command is in flight: the zone is opened, reset or finished, or its write pointer moves.
    moving: bool,
}

impl LogWindow {
    /// Gives the log zones of `drive` a window, if it has a ZRWA.
    pub fn over(drive: Rc<dyn ZonedDevice>, runtime: &Runtime) -> Rc<dyn ZonedDevice> {
        let Some(zrwa) = drive.geometry().zrwa else { return drive };
        let zones = (0..META_ZONES).map(|_| RefCell::default()).collect();
        let (runtime, slots) = (runtime.clone(), Rc::default());
        Rc::new(LogWindow(Rc::new(LogWindowInner { drive, zrwa, runtime, slots, zones })))
    }
}

impl ZonedDevice for LogWindow {
    fn geometry(&self) -> &Geometry {
        self.0.drive.geometry()
    }

    fn drive_id(&self) -> DriveId {
        self.0.drive.drive_id()
    }

    fn submit(&self, command: Command) -> Completion {
        let zone = match &command {
            Command::Write { lba, .. } => self.geometry().locate(*lba).0,
            Command::Open { zones: Zones::One(zone), .. }
            | Command::Finish { zones: Zones::One(zone) }
            | Command::Reset { zones: Zones::One(zone) } => *zone,
            _ => return self.0.drive.submit(command),
        };
        let Some(flow) = self.0.zones.get(zone.0 as usize) else { return self.0.drive.submit(command) };
        let (completer, completion) = self.0.slots.pair();
        flow.borrow_mut().waiting.push_back((command, completer));
        self.0.pump(zone);
        completion
    }
}

/// The next action of a zone.
enum Next {
    Write(Command, Completer, u64),
    /// A command that needs the zone exclusively.
    Alone(Command, Completer),
    Open,
    Move(u64),
}

impl LogWindowInner {
    fn flow(&self, zone: ZoneIndex) -> &RefCell<Flow> {
        &self.zones[zone.0 as usize]
    }

    /// Submits all commands that may be in flight now.
    fn pump(self: &Rc<Self>, zone: ZoneIndex) {
        loop {
            let next = self.flow(zone).borrow_mut().next(&self.zrwa, self.drive.geometry());
            let zones = Zones::One(zone);
            match next {
                None => return,
                Some(Next::Write(command, completer, end)) => self.write(zone, command, completer, end),
                Some(Next::Alone(command, completer)) => self.alone(zone, command, Some(completer), None),
                Some(Next::Open) => self.alone(zone, Command::Open { zones, zrwa: true }, None, Some(0)),
                Some(Next::Move(wp)) => {
                    let last = self.drive.geometry().start(zone).0 + wp - 1;
                    let flush = Command::FlushZrwa { last: Lba(last) };
                    self.alone(zone, flush, None, Some(wp));
                }
            }
        }
    }

    fn write(self: &Rc<Self>, zone: ZoneIndex, command: Command, completer: Completer, end: u64) {
        let (submitted, this) = (self.drive.submit(command), self.clone());
        self.runtime.spawn(async move {
            let done = submitted.await;
            this.flow(zone).borrow_mut().answered(end);
            completer.complete(done);
            this.pump(zone);
        });
    }

    /// Submits an exclusive command, after which the write pointer is at `wp`.
    fn alone(
        self: &Rc<Self>,
        zone: ZoneIndex,
        command: Command,
        completer: Option<Completer>,
        wp: Option<u64>,
    ) {
        let (submitted, this) = (self.drive.submit(command), self.clone());
        self.runtime.spawn(async move {
            let done = submitted.await;
            this.flow(zone).borrow_mut().moved(wp, &done);
            match completer {
                Some(completer) => completer.complete(done),
                None if done.result.is_ok() => {}
                // The waiting commands fail with the same error.
                None => {
                    let waiting = std::mem::take(&mut this.flow(zone).borrow_mut().waiting);
                    for (_, completer) in waiting {
                        completer.complete(Done { result: done.result, ..Done::ok() });
                    }
                }
            }
            this.pump(zone);
        });
    }
}

impl Flow {
    fn next(&mut self, zrwa: &Zrwa, geometry: &Geometry) -> Option<Next> {
        if self.moving {
            return None;
        }
        let half = zrwa.size_blocks / 2 / zrwa.granularity_blocks * zrwa.granularity_blocks;
        if let Some(wp) = self.wp.map(|wp| wp + half)
            && self.complete() >= wp
        {
            self.moving = true;
            return Some(Next::Move(wp));
        }
        let (command, _) = self.waiting.front()?;
        let Command::Write { lba, data, .. } = command else {
            self.moving = self.flights.iter().all(|(_, answered)| *answered);
            let (command, completer) = if self.moving { self.waiting.pop_front()? } else { return None };
            // It is opened with its ZRWA by the next write.
            return Some(Next::Alone(command, completer));
        };
        let Some(wp) = self.wp else {
            self.moving = true;
            return Some(Next::Open);
        };
        let end = geometry.locate(*lba).1 + data.blocks();
        if end > wp + zrwa.size_blocks {
            return None;
        }
        let (command, completer) = self.waiting.pop_front()?;
        self.flights.push_back((end, false));
        Some(Next::Write(command, completer, end))
    }

    /// End of the completed prefix of the writes.
    fn complete(&self) -> u64 {
        let answered = self.flights.iter().take_while(|(_, answered)| *answered);
        answered.last().map_or(0, |(end, _)| *end)
    }

    fn answered(&mut self, end: u64) {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.0 == end) {
            flight.1 = true;
        }
    }

    /// An exclusive command has completed. A zone that was reset or finished has no window.
    fn moved(&mut self, wp: Option<u64>, done: &Done) {
        (self.moving, self.wp) = (false, wp.filter(|_| done.result.is_ok()));
        self.flights.retain(|(end, _)| wp.is_some_and(|wp| *end > wp));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use emu::{
        clock::Clock,
        ssd::{Model, NoMedia, Ssd, TimedDrive},
        timing::Timing,
    };
    use engine::buf::Buf;

    /// After 1,200 blocks that are all submitted at once, the write pointer is where explicit flushes moved it: a write
    /// beyond the window would have moved it further.
    #[test]
    fn log_window_write_pointer_moves_only_by_flushes() {
        let geometry = Model::zn540().geometry;
        let ssd = Rc::new(RefCell::new(Ssd::new(geometry.clone(), Box::new(NoMedia::new(&geometry)))));
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let drive = TimedDrive::new(ssd, &Timing::zn540(), &clock, Some(1));
        let log = LogWindow::over(Rc::new(drive.clone()), &runtime);
        let run = |what: Vec<Completion>| {
            let all = async {
                for completion in what {
                    completion.await.result.unwrap();
                }
            };
            runtime.block_on(all, || clock.advance()).unwrap();
        };
        for round in 1..3 {
            let write = |at: u64| log.submit(Command::write(Lba(at * 3), Buf::zeroed(3 * 4096), false));
            run((0..400).map(write).collect());
            let info = drive.ssd().borrow().zones().info(ZoneIndex(0));
            assert_eq!((info.zrwa, info.wp_blocks), (true, 1152));
            assert_eq!(drive.counters().zrwa_flushes, round * 9);
            run(vec![log.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) })]);
        }
    }
}
