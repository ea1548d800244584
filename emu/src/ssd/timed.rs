//! The emulated SSD with the timing of a real one.
//!
//! - Write: firmware, write buffer (waits for room, for a program unit at a time), link, acknowledgement.
//! - Append: as a write, but one at a time in each zone as far as the firmware goes.
//! - Drain, whenever the buffer has a program unit: the drive's write bandwidth, then a die, and its channel for the
//!   transfer; then the unit's room in the buffer is free.
//! - Read: firmware, then for each page its die (sensing, and the channel for the transfer) and the link,
//!   acknowledgement.
//!
//! A command takes effect, by the rules of [`Ssd`], when the firmware has served it. Commands that arrive in a wrong
//! order therefore fail as they would on a drive.

use super::{
    compress::PAGE_BLOCKS,
    emulated::Ssd,
    hardware::{DieWatch, Hardware, ns},
    traffic::{Classifier, Counters, Traffic},
};
use crate::{
    clock::Clock,
    timing::{Timing, ZrwaMedium},
};
use engine::{
    buf::BLOCK,
    device::{Command, Completer, Completion, Done, Geometry, Slots, ZonedDevice, Zones},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// Size of the pieces in which a finished zone is padded.
const PADDING_BLOCKS: u64 = 16;

/// An emulated SSD with the latencies of a real one. Clones are the same drive.
#[derive(Clone)]
pub struct TimedDrive(Rc<Namespace>);

/// The zones of a drive, or a part of them.
struct Namespace {
    geometry: Geometry,
    hardware: Rc<Hardware>,
    /// Number of zones of the drive before these.
    first_zone: u32,
    ssd: Rc<RefCell<Ssd>>,
    slots: Rc<Slots>,
    traffic: RefCell<Traffic>,
    /// Zones with an append in the firmware, and the appends queued behind it.
    appends: RefCell<BTreeMap<u32, VecDeque<(Command, Completer)>>>,
    /// The write pointers of zones before they were finished.
    finished_at: RefCell<BTreeMap<u32, u64>>,
}

impl TimedDrive {
    /// A drive around `ssd` on this clock. `seed` decides the service times; without one there is no jitter, every
    /// service takes its mean.
    pub fn new(ssd: Rc<RefCell<Ssd>>, timing: &Timing, clock: &Clock, seed: Option<u64>) -> TimedDrive {
        TimedDrive::on(Rc::new(Hardware::new(timing, clock, seed)), ssd)
    }

    /// Another namespace of the same drive: zones of its own, and everything else shared.
    pub fn namespace(&self, ssd: Rc<RefCell<Ssd>>) -> TimedDrive {
        TimedDrive::on(self.0.hardware.clone(), ssd)
    }

    fn on(hardware: Rc<Hardware>, ssd: Rc<RefCell<Ssd>>) -> TimedDrive {
        let geometry = ssd.borrow().geometry().clone();
        TimedDrive(Rc::new(Namespace {
            first_zone: hardware.add_zones(geometry.zones),
            geometry,
            hardware,
            ssd,
            slots: Rc::default(),
            traffic: RefCell::default(),
            appends: RefCell::default(),
            finished_at: RefCell::default(),
        }))
    }

    /// The SSD itself.
    pub fn ssd(&self) -> &Rc<RefCell<Ssd>> {
        &self.0.ssd
    }

    /// Counters of commands, and of blocks that reached flash.
    pub fn counters(&self) -> Counters {
        self.0.traffic.borrow().counters.clone()
    }

    /// Calls `watch` for the operations of the drive's dies from now on, for all namespaces.
    pub fn watch_dies(&self, watch: DieWatch) {
        self.0.hardware.watch(watch);
    }

    /// Classifies written blocks by `classifier` from now on; until then all are data.
    pub fn set_classifier(&self, classifier: Classifier) {
        self.0.traffic.borrow_mut().classifier = Some(classifier);
    }
}

impl ZonedDevice for TimedDrive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let (completer, completion) = self.0.slots.pair();
        self.0.start(command, completer);
        completion
    }
}

impl Namespace {
    /// Calls `next` at `due_ns`. An event does not keep a drive alive that has been dropped.
    fn after(self: &Rc<Self>, due_ns: u64, next: impl FnOnce(&Rc<Namespace>) + 'static) {
        let drive = Rc::downgrade(self);
        self.hardware.clock.at(due_ns, move || {
            if let Some(drive) = drive.upgrade() {
                next(&drive);
            }
        });
    }

    fn start(self: &Rc<Self>, command: Command, completer: Completer) {
        let timing = &self.hardware.timing;
        let due = match &command {
            Command::Append { zone, .. } => {
                let mut appends = self.appends.borrow_mut();
                if let Some(queue) = appends.get_mut(&zone.0) {
                    return queue.push_back((command, completer));
                }
                appends.insert(zone.0, VecDeque::new());
                drop(appends);
                return self.start_append(command, completer);
            }
            Command::Read { .. } => self.hardware.read_firmware(),
            Command::Write { lba, .. } => {
                let (zone, offset) = self.geometry.locate(*lba);
                let first_us = if offset == 0 && self.is_empty(zone) { timing.first_write_us } else { 0.0 };
                let factor = if self.info(zone).is_some_and(|zone| zone.zrwa) {
                    timing.zrwa_write_factor
                } else {
                    1.0
                };
                self.hardware.write_firmware(&[timing.write_firmware_us * factor], first_us)
            }
            Command::FlushZrwa { .. } => self.hardware.write_firmware(&[timing.zrwa_flush_firmware_us], 0.0),
            _ => self.hardware.write_firmware(&[timing.write_firmware_us], 0.0),
        };
        self.after(due, move |drive| drive.served(command, completer));
    }

    /// An append starts in the firmware, alone in its zone.
    fn start_append(self: &Rc<Self>, command: Command, completer: Completer) {
        let Command::Append { zone, data, .. } = &command else { return };
        let (zone, further) = (*zone, data.blocks().saturating_sub(1) as f64);
        let timing = &self.hardware.timing;
        let first_us = if self.is_empty(zone) { timing.first_append_us } else { 0.0 };
        let half_us = (timing.append_firmware_us + timing.append_block_us * further) / 2.0;
        let due = self.hardware.write_firmware(&[half_us, half_us], first_us);
        self.after(due, move |drive| drive.served(command, completer));
        self.after(due + ns(timing.append_zone_us - timing.append_firmware_us), move |drive| {
            let mut appends = drive.appends.borrow_mut();
            let next = appends.get_mut(&zone.0).and_then(VecDeque::pop_front);
            if next.is_none() {
                appends.remove(&zone.0);
            }
            drop(appends);
            if let Some((command, completer)) = next {
                drive.start_append(command, completer);
            }
        });
    }

    /// The firmware has served a command: it takes effect.
    fn served(self: &Rc<Self>, command: Command, completer: Completer) {
        match command {
            Command::Read { lba, .. } => self.read(lba, command, completer),
            Command::Write { lba, .. } => self.write(self.geometry.locate(lba).0, command, completer),
            Command::Append { zone, .. } => self.write(zone, command, completer),
            Command::FlushZrwa { last } => self.flush_zrwa(self.geometry.locate(last).0, command, completer),
            Command::Finish { zones } => self.finish(zones, command, completer),
            Command::Reset { zones } => self.reset(zones, command, completer),
            _ => {
                let timing = &self.hardware.timing;
                let rest_us = match command {
                    Command::Open { .. } => timing.open_us - timing.write_firmware_us,
                    Command::Close { .. } => timing.close_us - timing.write_firmware_us,
                    _ => timing.write_acknowledge_us,
                };
                let done = self.ssd.borrow_mut().execute(command);
                answer(&self.hardware, rest_us, done, completer);
            }
        }
    }

    fn write(self: &Rc<Self>, zone: ZoneIndex, command: Command, completer: Completer) {
        let timing = &self.hardware.timing;
        let append = matches!(command, Command::Append { .. });
        let mut acknowledge_us =
            if append { timing.append_acknowledge_us } else { timing.write_acknowledge_us };
        let lba = if let Command::Write { lba, .. } = command { Some(lba) } else { None };
        let (before, pages) = (self.info(zone), self.ssd.borrow().flash_pages(zone));
        let done = self.ssd.borrow_mut().execute(command);
        let (Some(before), Ok(())) = (before, done.result) else {
            return answer(&self.hardware, acknowledge_us, done, completer);
        };
        let offset = self.geometry.locate(lba.unwrap_or(done.lba)).1;
        let passed = self.record(&before, |traffic| {
            *(if append { &mut traffic.counters.appends } else { &mut traffic.counters.writes }) += 1;
            traffic.wrote(&before, offset, &done.data);
        });
        let blocks = done.data.blocks();
        let mut buffered = blocks;
        if let ZrwaMedium::Dram { acknowledge_us: zrwa_us } = timing.zrwa
            && before.zrwa
        {
            (acknowledge_us, buffered) = (zrwa_us, passed);
        }
        if pages.is_some() {
            acknowledge_us += timing.compress_us;
            buffered = self.programmed(zone, pages);
        }
        let zone = self.first_zone + zone.0;
        self.hardware.take(zone, blocks, buffered, move |hardware| {
            answer(hardware, acknowledge_us, done, completer);
        });
    }

    /// Counts the effect of a command on a zone that was as in `before`; returns how far its write pointer moved.
    fn record(&self, before: &ZoneInfo, count: impl FnOnce(&mut Traffic)) -> u64 {
        let now = self.ssd.borrow().zones().info(before.zone);
        // Another host may have reset the zone just before.
        let passed = now.wp_blocks.saturating_sub(before.wp_blocks);
        let mut traffic = self.traffic.borrow_mut();
        count(&mut traffic);
        if before.zrwa {
            traffic.passed(before.zone, passed);
        }
        passed
    }

    /// Blocks of the flash pages that a compressing drive has begun in a zone that had `before` pages.
    fn programmed(&self, zone: ZoneIndex, before: Option<u64>) -> u64 {
        let now = self.ssd.borrow().flash_pages(zone);
        now.unwrap_or_default().saturating_sub(before.unwrap_or_default()) * self.hardware.timing.page_blocks
    }

    fn flush_zrwa(self: &Rc<Self>, zone: ZoneIndex, command: Command, completer: Completer) {
        let (before, pages) = (self.info(zone), self.ssd.borrow().flash_pages(zone));
        let done = self.ssd.borrow_mut().execute(command);
        let acknowledge_us = self.hardware.timing.zrwa_flush_acknowledge_us;
        let (Some(before), Ok(())) = (before, done.result) else {
            return answer(&self.hardware, acknowledge_us, done, completer);
        };
        let passed = self.record(&before, |traffic| traffic.counters.zrwa_flushes += 1);
        let drained = match self.hardware.timing.zrwa {
            _ if pages.is_some() => self.programmed(zone, pages),
            // Holes take no time: 6.8 µs is the time of a flush of 32 unwritten KiB (ZRAID §6.7).
            ZrwaMedium::Flash => 0,
            ZrwaMedium::Dram { .. } => passed,
        };
        let zone = self.first_zone + zone.0;
        self.hardware.take(zone, 0, drained, move |hardware| {
            answer(hardware, acknowledge_us, done, completer);
        });
    }

    fn finish(self: &Rc<Self>, zones: Zones, command: Command, completer: Completer) {
        let timing = &self.hardware.timing;
        let before = self.chosen(zones);
        let done = self.ssd.borrow_mut().execute(command);
        if done.result.is_err() {
            return answer(&self.hardware, timing.write_acknowledge_us, done, completer);
        }
        let mut padding = VecDeque::new();
        for before in before {
            let chosen = before.state.is_active() || zones != Zones::All;
            if before.state == ZoneState::Full || !chosen {
                continue;
            }
            self.finished_at.borrow_mut().insert(before.zone.0, before.wp_blocks);
            let mut missing = before.capacity_blocks - before.wp_blocks;
            let mut traffic = self.traffic.borrow_mut();
            traffic.counters.finishes += 1;
            if before.zrwa {
                let holes = traffic.passed(before.zone, missing);
                if timing.zrwa == ZrwaMedium::Flash && self.ssd.borrow().flash_pages(before.zone).is_none() {
                    // Its written blocks are in flash already.
                    missing = holes;
                }
            } else if before.wp_blocks > 0 {
                traffic.counters.padding += missing;
            } else {
                continue;
            }
            padding.push_back((self.first_zone + before.zone.0, missing));
        }
        if padding.is_empty() {
            let rest_us = timing.finish_empty_us - timing.write_firmware_us;
            return answer(&self.hardware, rest_us, done, completer);
        }
        pad(&self.hardware, padding, done, completer);
    }

    fn reset(self: &Rc<Self>, zones: Zones, command: Command, completer: Completer) {
        let hardware = &self.hardware;
        let timing = &hardware.timing.reset;
        let before = self.chosen(zones);
        let done = self.ssd.borrow_mut().execute(command);
        if done.result.is_err() {
            return answer(hardware, hardware.timing.write_acknowledge_us, done, completer);
        }
        let mut rest_us = timing.fixed_us - hardware.timing.write_firmware_us;
        let mut due = hardware.clock.now_ns();
        for before in before {
            let zone = before.zone;
            if zones == Zones::All && !before.state.is_begun() {
                continue;
            }
            let written = self.finished_at.borrow_mut().remove(&zone.0).unwrap_or(before.wp_blocks);
            due = hardware.reset();
            rest_us += timing.full_us * written as f64 / before.capacity_blocks as f64;
            if written > 0 && before.state != ZoneState::Full {
                rest_us += timing.unfinished_us;
            }
            if timing.erase_us > 0.0 && written > 0 {
                hardware.erase(self.die(zone, 0));
            }
            hardware.release(self.first_zone + zone.0);
            let mut traffic = self.traffic.borrow_mut();
            traffic.counters.resets += 1;
            traffic.dropped(zone);
        }
        hardware.after(due, move |hardware| answer(hardware, rest_us, done, completer));
    }

    fn read(self: &Rc<Self>, lba: Lba, command: Command, completer: Completer) {
        let hardware = &self.hardware;
        let done = self.ssd.borrow_mut().execute(command);
        if done.result.is_err() {
            return answer(hardware, hardware.timing.read_acknowledge_us, done, completer);
        }
        let blocks = done.data.blocks();
        {
            let counters = &mut self.traffic.borrow_mut().counters;
            counters.reads += 1;
            counters.read_blocks += blocks;
        }
        let (zone, start) = self.geometry.locate(lba);
        if self.ssd.borrow().flash_pages(zone).is_some() {
            return self.read_compressed(zone, start, done, completer);
        }
        let in_memory = hardware.timing.zrwa != ZrwaMedium::Flash
            && self.info(zone).is_some_and(|zone| zone.zrwa && start >= zone.wp_blocks);
        if in_memory {
            return Sending::new(1, 0.0, done, completer).send(hardware, blocks);
        }
        let (page_blocks, end) = (hardware.timing.page_blocks, start + blocks);
        let pages = start / page_blocks..end.div_ceil(page_blocks);
        let sending = Sending::new(pages.end - pages.start, 0.0, done, completer);
        for page in pages {
            let wanted = end.min((page + 1) * page_blocks) - start.max(page * page_blocks);
            let die = self.die(zone, page);
            let sending = sending.clone();
            hardware.read_page(die, wanted * BLOCK as u64, move |hardware| sending.send(hardware, wanted));
        }
    }

    /// A read of a compressing drive. Each flash page is read once; one with rests of units after all pages that refer
    /// to them. Each logical page is sent to the host as soon as it is complete.
    fn read_compressed(self: &Rc<Self>, zone: ZoneIndex, start: u64, done: Done, completer: Completer) {
        let end = start + done.data.blocks();
        let (mut parts, mut in_buffer) = (BTreeMap::<u64, Part>::new(), Vec::new());
        let pages = start / PAGE_BLOCKS..end.div_ceil(PAGE_BLOCKS);
        let count = pages.end - pages.start;
        for page in pages {
            let wanted = end.min((page + 1) * PAGE_BLOCKS) - start.max(page * PAGE_BLOCKS);
            let lba = Lba(self.geometry.start(zone).0 + page * PAGE_BLOCKS);
            let pieces = self.ssd.borrow().pieces(lba);
            for (nth, piece) in pieces.iter().enumerate() {
                let part = parts.entry(piece.page).or_default();
                part.bytes += piece.bytes;
                match pieces.get(nth + 1) {
                    Some(rest) => part.rests.push(rest.page),
                    None => part.whole.push(wanted),
                }
                part.waits += (nth > 0) as usize;
            }
            if pieces.is_empty() {
                in_buffer.push(wanted);
            }
        }
        let expand_us = if parts.is_empty() { 0.0 } else { self.hardware.timing.expand_us };
        let sending = Sending::new(count, expand_us, done, completer);
        in_buffer.into_iter().for_each(|blocks| sending.send(&self.hardware, blocks));
        let first: Vec<u64> =
            parts.iter().filter(|(_, part)| part.waits == 0).map(|(page, _)| *page).collect();
        let parts = Rc::new(RefCell::new(parts));
        first.into_iter().for_each(|page| self.read_part(zone, page, &parts, &sending));
    }

    /// Reads a flash page, then the pages with rests that have waited for it.
    fn read_part(self: &Rc<Self>, zone: ZoneIndex, page: u64, parts: &Parts, sending: &Rc<Sending>) {
        let Some(part) = parts.borrow_mut().remove(&page) else { return };
        let (drive, parts, sending) = (Rc::downgrade(self), parts.clone(), sending.clone());
        self.hardware.read_page(self.die(zone, page), part.bytes, move |hardware| {
            part.whole.iter().for_each(|blocks| sending.send(hardware, *blocks));
            let Some(drive) = drive.upgrade() else { return };
            for rest in part.rests {
                let waits = parts.borrow_mut().get_mut(&rest).map(|rest| {
                    rest.waits -= 1;
                    rest.waits
                });
                if waits == Some(0) {
                    drive.read_part(zone, rest, &parts, &sending);
                }
            }
        });
    }

    /// The die of a flash page of a zone.
    fn die(&self, zone: ZoneIndex, page: u64) -> usize {
        let (zone, first) = (self.first_zone + zone.0, page * self.hardware.timing.page_blocks);
        self.hardware.die(zone, self.geometry.zone_size_blocks, first)
    }

    fn is_empty(&self, zone: ZoneIndex) -> bool {
        self.info(zone).is_some_and(|zone| zone.state == ZoneState::Empty)
    }

    fn info(&self, zone: ZoneIndex) -> Option<ZoneInfo> {
        (zone.0 < self.geometry.zones).then(|| self.ssd.borrow().zones().info(zone))
    }

    /// The zones of a management command, as they are.
    fn chosen(&self, zones: Zones) -> Vec<ZoneInfo> {
        match zones {
            Zones::One(zone) => self.info(zone).into_iter().collect(),
            Zones::All => (0..self.geometry.zones).filter_map(|zone| self.info(ZoneIndex(zone))).collect(),
        }
    }
}

/// A flash page that a read of a compressing drive needs.
#[derive(Default)]
struct Part {
    /// The bytes to transfer.
    bytes: u64,
    /// For each logical page that is complete with this one: the requested blocks.
    whole: Vec<u64>,
    /// The pages with the rests of its units.
    rests: Vec<u64>,
    /// Number of rests in it that wait until the first page of their unit has been read.
    waits: usize,
}

/// Flash pages that have not been requested yet, by number.
type Parts = Rc<RefCell<BTreeMap<u64, Part>>>;

/// A read that sends its pages to the host one by one.
struct Sending {
    left: Cell<u64>,
    /// Additional latency of its acknowledgement.
    later_us: f64,
    waiting: RefCell<Option<(Done, Completer)>>,
}

impl Sending {
    fn new(pages: u64, later_us: f64, done: Done, completer: Completer) -> Rc<Sending> {
        let waiting = RefCell::new(Some((done, completer)));
        Rc::new(Sending { left: Cell::new(pages), later_us, waiting })
    }

    /// Sends this many blocks of one page to the host; the last page completes the read.
    fn send(self: &Rc<Self>, hardware: &Rc<Hardware>, blocks: u64) {
        let sending = self.clone();
        hardware.after(hardware.transfer_out(blocks), move |hardware| {
            sending.left.set(sending.left.get() - 1);
            if sending.left.get() == 0
                && let Some((done, completer)) = sending.waiting.take()
            {
                answer(hardware, hardware.timing.read_acknowledge_us + sending.later_us, done, completer);
            }
        });
    }
}

/// Pads zones piece by piece, so that host writes can go in between.
fn pad(hardware: &Rc<Hardware>, mut zones: VecDeque<(u32, u64)>, done: Done, completer: Completer) {
    let Some((zone, missing)) = zones.front_mut() else {
        return answer(hardware, hardware.timing.finish_us, done, completer);
    };
    let (zone, piece) = (*zone, PADDING_BLOCKS.min(*missing));
    *missing -= piece;
    if *missing == 0 {
        zones.pop_front();
    }
    hardware.admit(piece, move |hardware| {
        hardware.fill(zone, piece);
        // By way of the clock, or the recursion would be as deep as a zone has pieces.
        hardware.after(hardware.clock.now_ns(), move |hardware| pad(hardware, zones, done, completer));
    });
}

/// Completes a command in `us` microseconds.
fn answer(hardware: &Hardware, us: f64, done: Done, completer: Completer) {
    let due = hardware.clock.now_ns() + ns(us.max(0.0));
    hardware.clock.at(due, move || completer.complete(done));
}
