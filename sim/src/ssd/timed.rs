//! The emulated SSD with the timing of a real one.
//!
//! A command passes stations, each with a queue that is served in the order of arrival; there is
//! one event for each stage, so that stations work at the same time on different commands:
//!
//! - write: firmware, write buffer (waits for room), link, acknowledgement;
//! - append: as a write, but one at a time in each zone as far as the firmware goes;
//! - drain, whenever the buffer has a program unit: the drive's write bandwidth, then a die, and
//!   its channel for the transfer; then the unit's room in the buffer is free;
//! - read: firmware, then for each page its die (sensing, and the channel for the transfer) and
//!   the link, acknowledgement. A die prefers reads, but never stops what it has begun.
//!
//! The command takes effect, by the rules of [`Ssd`], when the firmware has served it. Commands
//! that come in a wrong order therefore fail as they would on a drive.

use super::{
    Ssd,
    traffic::{Classifier, Counters, Traffic},
};
use crate::{
    clock::Clock,
    rng::Rng,
    timing::{Placement, Timing, ZrwaMedium},
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

/// What a finished zone is filled up with at a time.
const PADDING_BLOCKS: u64 = 16;

/// An emulated SSD whose commands take as long as those of a real one. Clones are the same drive.
#[derive(Clone)]
pub struct TimedDrive(Rc<Inner>);

struct Inner {
    geometry: Geometry,
    timing: Timing,
    clock: Clock,
    ssd: Rc<RefCell<Ssd>>,
    slots: Rc<Slots>,
    stations: RefCell<Stations>,
    traffic: RefCell<Traffic>,
}

/// Continues a command.
type Next = Box<dyn FnOnce(&Rc<Inner>)>;

/// Everything that commands wait for.
struct Stations {
    /// Draws service times; without it every service takes its mean.
    rng: Option<Rng>,
    write_firmware: Station,
    read_firmware: Station,
    write_link: Station,
    read_link: Station,
    drain: Station,
    resets: Station,
    channels: Vec<Station>,
    dies: Vec<Die>,
    /// Zones of which an append is in the firmware, and the appends behind it.
    appends: BTreeMap<u32, VecDeque<(Command, Completer)>>,
    buffer: Buffer,
    /// Blocks that were written to zones that have been finished.
    finished_at: BTreeMap<u32, u64>,
}

/// One server, first come first served.
#[derive(Clone, Default)]
struct Station {
    free_ns: u64,
}

impl Station {
    /// When a service of `ns` ends that is asked for at `now_ns`.
    fn serve(&mut self, now_ns: u64, ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + ns;
        self.free_ns
    }
}

/// A die: one operation at a time, reads first.
#[derive(Clone, Default)]
struct Die {
    busy: bool,
    reads: VecDeque<(u64, Rc<Reading>)>,
    programs: u32,
    erases: u32,
}

/// A read of which pages are on the way.
struct Reading {
    pages: Cell<u64>,
    answer: RefCell<Option<(Done, Completer)>>,
}

/// The write buffer, in blocks.
struct Buffer {
    /// Below 0 after something entered that is larger than the buffer.
    free: i64,
    waiting: VecDeque<(u64, Next)>,
    /// Blocks of each program unit that is being filled: one for each die, or one in all.
    filling: Vec<u64>,
    /// Units on their way to a die.
    draining: u64,
    next_die: usize,
}

impl TimedDrive {
    /// A drive around `ssd` by this clock. `seed` decides the service times; without one there
    /// is no jitter, every service takes its mean.
    pub fn new(ssd: Rc<RefCell<Ssd>>, timing: &Timing, clock: &Clock, seed: Option<u64>) -> TimedDrive {
        let geometry = ssd.borrow().geometry().clone();
        let units = match timing.placement {
            Placement::Striped => 1,
            Placement::ZonePerDie => timing.dies as usize,
        };
        let stations = Stations {
            rng: seed.map(Rng::new),
            write_firmware: Station::default(),
            read_firmware: Station::default(),
            write_link: Station::default(),
            read_link: Station::default(),
            drain: Station::default(),
            resets: Station::default(),
            channels: vec![Station::default(); timing.channels as usize],
            dies: vec![Die::default(); timing.dies as usize],
            appends: BTreeMap::new(),
            buffer: Buffer {
                free: (timing.write_buffer_kib * 1024) as i64 / BLOCK as i64,
                waiting: VecDeque::new(),
                filling: vec![0; units],
                draining: 0,
                next_die: 0,
            },
            finished_at: BTreeMap::new(),
        };
        TimedDrive(Rc::new(Inner {
            geometry,
            timing: timing.clone(),
            clock: clock.clone(),
            ssd,
            slots: Rc::default(),
            stations: RefCell::new(stations),
            traffic: RefCell::default(),
        }))
    }

    /// The SSD itself.
    pub fn ssd(&self) -> &Rc<RefCell<Ssd>> {
        &self.0.ssd
    }

    /// What has been asked of the drive, and what reached flash.
    pub fn counters(&self) -> Counters {
        self.0.traffic.borrow().counters.clone()
    }

    /// From now on `classifier` says why blocks are written; until then all are data.
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

fn ns(us: f64) -> u64 {
    (us * 1000.0) as u64
}

/// Time that `blocks` blocks take at this bandwidth.
fn transfer_ns(blocks: u64, mb_s: f64) -> u64 {
    ns((blocks * BLOCK as u64) as f64 / mb_s)
}

impl Inner {
    fn after(self: &Rc<Inner>, due_ns: u64, next: impl FnOnce(&Rc<Inner>) + 'static) {
        // An event must not keep a drive alive that nobody holds any more.
        let drive = Rc::downgrade(self);
        self.clock.at(due_ns, move || {
            if let Some(drive) = drive.upgrade() {
                next(&drive);
            }
        });
    }

    fn answer(self: &Rc<Inner>, due_ns: u64, done: Done, completer: Completer) {
        self.clock.at(due_ns, move || completer.complete(done));
    }

    fn start(self: &Rc<Inner>, command: Command, completer: Completer) {
        let timing = &self.timing;
        let mut stations = self.stations.borrow_mut();
        let due = match &command {
            Command::Append { zone, .. } => {
                let zone = zone.0;
                if let Some(queue) = stations.appends.get_mut(&zone) {
                    return queue.push_back((command, completer));
                }
                stations.appends.insert(zone, VecDeque::new());
                drop(stations);
                return self.start_append(command, completer);
            }
            Command::Read { .. } => {
                let service = stations.exponential_ns(timing.read_firmware_us);
                stations.read_firmware.serve(self.clock.now_ns(), service)
            }
            Command::Write { lba, .. } => {
                let first =
                    if self.is_empty(self.geometry.locate(*lba).0) { timing.first_write_us } else { 0.0 };
                let service = stations.exponential_ns(timing.write_firmware_us) + ns(first);
                stations.write_firmware.serve(self.clock.now_ns(), service)
            }
            Command::FlushZrwa { .. } => {
                let service = stations.exponential_ns(timing.zrwa_flush_firmware_us);
                stations.write_firmware.serve(self.clock.now_ns(), service)
            }
            _ => {
                let service = stations.exponential_ns(timing.write_firmware_us);
                stations.write_firmware.serve(self.clock.now_ns(), service)
            }
        };
        drop(stations);
        self.after(due, move |drive| drive.served(command, completer));
    }

    /// An append has its zone to itself and goes to the firmware.
    fn start_append(self: &Rc<Inner>, command: Command, completer: Completer) {
        let Command::Append { zone, data, .. } = &command else { return };
        let (zone, further) = (*zone, data.blocks().saturating_sub(1) as f64);
        let timing = &self.timing;
        let first = if self.is_empty(zone) { timing.first_append_us } else { 0.0 };
        let mut stations = self.stations.borrow_mut();
        let half = (timing.append_firmware_us + timing.append_block_us * further) / 2.0;
        let service = stations.exponential_ns(half) + stations.exponential_ns(half) + ns(first);
        let due = stations.write_firmware.serve(self.clock.now_ns(), service);
        drop(stations);
        self.after(due, move |drive| drive.served(command, completer));
        self.after(due + ns(timing.append_zone_us - timing.append_firmware_us), move |drive| {
            let mut stations = drive.stations.borrow_mut();
            let next = stations.appends.get_mut(&zone.0).and_then(VecDeque::pop_front);
            if next.is_none() {
                stations.appends.remove(&zone.0);
            }
            drop(stations);
            if let Some((command, completer)) = next {
                drive.start_append(command, completer);
            }
        });
    }

    fn is_empty(&self, zone: ZoneIndex) -> bool {
        zone.0 < self.geometry.zones && {
            let info = self.ssd.borrow().zones().info(zone);
            info.wp_blocks == 0 && !info.zrwa
        }
    }

    /// The firmware has served a command: it takes effect.
    fn served(self: &Rc<Inner>, command: Command, completer: Completer) {
        match command {
            Command::Read { lba, .. } => self.read(lba, command, completer),
            Command::Write { lba, .. } => self.write(self.geometry.locate(lba).0, command, completer),
            Command::Append { zone, .. } => self.write(zone, command, completer),
            Command::FlushZrwa { last } => self.flush_zrwa(self.geometry.locate(last).0, command, completer),
            Command::Finish { zones } => self.finish(zones, command, completer),
            Command::Reset { zones } => self.reset(zones, command, completer),
            _ => {
                let total = match command {
                    Command::Open { .. } => self.timing.open_us,
                    Command::Close { .. } => self.timing.close_us,
                    _ => self.timing.write_firmware_us + self.timing.write_acknowledge_us,
                };
                let done = self.ssd.borrow_mut().execute(command);
                self.answer_after(total - self.timing.write_firmware_us, done, completer);
            }
        }
    }

    fn answer_after(self: &Rc<Inner>, us: f64, done: Done, completer: Completer) {
        self.answer(self.clock.now_ns() + ns(us.max(0.0)), done, completer);
    }

    fn info(&self, zone: ZoneIndex) -> Option<ZoneInfo> {
        (zone.0 < self.geometry.zones).then(|| self.ssd.borrow().zones().info(zone))
    }

    fn is_dram_zrwa(&self, zone: &ZoneInfo) -> Option<f64> {
        match self.timing.zrwa {
            ZrwaMedium::Dram { acknowledge_us } if zone.zrwa => Some(acknowledge_us),
            _ => None,
        }
    }

    fn write(self: &Rc<Inner>, zone: ZoneIndex, command: Command, completer: Completer) {
        let append = matches!(command, Command::Append { .. });
        let mut acknowledge_us =
            if append { self.timing.append_acknowledge_us } else { self.timing.write_acknowledge_us };
        let lba = if let Command::Write { lba, .. } = command { Some(lba) } else { None };
        let before = self.info(zone);
        let done = self.ssd.borrow_mut().execute(command);
        let (Some(before), Ok(())) = (before, done.result) else {
            return self.answer_after(acknowledge_us, done, completer);
        };
        let offset = self.geometry.locate(lba.unwrap_or(done.lba)).1;
        let passed = self.record(&before, |traffic| {
            *(if append { &mut traffic.counters.appends } else { &mut traffic.counters.writes }) += 1;
            traffic.wrote(&before, offset, &done.data);
        });
        let blocks = done.data.blocks();
        let buffered = match self.is_dram_zrwa(&before) {
            Some(us) => {
                acknowledge_us = us;
                passed
            }
            None => blocks,
        };
        self.admit(buffered, move |drive| {
            let transfer = transfer_ns(blocks, drive.timing.write_link_mb_s);
            let due = drive.stations.borrow_mut().write_link.serve(drive.clock.now_ns(), transfer);
            drive.after(due, move |drive| {
                drive.fill(zone, buffered);
                drive.answer_after(acknowledge_us, done, completer);
            });
        });
    }

    /// Counts what happened to a zone that was as in `before`; gives how far its write pointer moved.
    fn record(&self, before: &ZoneInfo, count: impl FnOnce(&mut Traffic)) -> u64 {
        let now = self.ssd.borrow().zones().info(before.zone);
        let passed = now.wp_blocks - before.wp_blocks;
        let mut traffic = self.traffic.borrow_mut();
        count(&mut traffic);
        if before.zrwa {
            traffic.passed(before.zone, passed);
        }
        passed
    }

    fn flush_zrwa(self: &Rc<Inner>, zone: ZoneIndex, command: Command, completer: Completer) {
        let before = self.info(zone);
        let done = self.ssd.borrow_mut().execute(command);
        let acknowledge_us = self.timing.zrwa_flush_acknowledge_us;
        let (Some(before), Ok(())) = (before, done.result) else {
            return self.answer_after(acknowledge_us, done, completer);
        };
        let passed = self.record(&before, |traffic| traffic.counters.zrwa_flushes += 1);
        let drained = if self.is_dram_zrwa(&before).is_some() { passed } else { 0 };
        self.admit(drained, move |drive| {
            drive.fill(zone, drained);
            drive.answer_after(acknowledge_us, done, completer);
        });
    }

    fn finish(self: &Rc<Inner>, zones: Zones, command: Command, completer: Completer) {
        let before: Vec<ZoneInfo> = self.chosen(zones);
        let done = self.ssd.borrow_mut().execute(command);
        if done.result.is_err() {
            return self.answer_after(self.timing.write_acknowledge_us, done, completer);
        }
        let mut padding = VecDeque::new();
        for before in before {
            let active = before.state.is_active();
            if before.state == ZoneState::Full || !active && zones == Zones::All {
                continue;
            }
            let empty = before.wp_blocks == 0 && !before.zrwa;
            let missing = before.capacity_blocks - before.wp_blocks;
            self.stations.borrow_mut().finished_at.insert(before.zone.0, before.wp_blocks);
            let mut traffic = self.traffic.borrow_mut();
            traffic.counters.finishes += 1;
            if empty {
                continue;
            }
            if before.zrwa {
                traffic.passed(before.zone, missing);
                traffic.dropped(before.zone);
            } else {
                traffic.counters.padding += missing;
            }
            padding.push_back((before.zone, missing));
        }
        if padding.is_empty() {
            let rest = self.timing.finish_empty_us - self.timing.write_firmware_us;
            return self.answer_after(rest, done, completer);
        }
        self.pad(padding, done, completer);
    }

    /// Fills zones up, piece by piece, so that writes of the host have their turn.
    fn pad(self: &Rc<Inner>, mut zones: VecDeque<(ZoneIndex, u64)>, done: Done, completer: Completer) {
        let Some((zone, missing)) = zones.front_mut() else {
            return self.answer_after(self.timing.finish_us, done, completer);
        };
        let (zone, piece) = (*zone, PADDING_BLOCKS.min(*missing));
        *missing -= piece;
        if *missing == 0 {
            zones.pop_front();
        }
        self.admit(piece, move |drive| {
            drive.fill(zone, piece);
            // By way of the clock, or a zone of many pieces would be as many calls deep.
            drive.after(drive.clock.now_ns(), move |drive| drive.pad(zones, done, completer));
        });
    }

    fn reset(self: &Rc<Inner>, zones: Zones, command: Command, completer: Completer) {
        let before = self.chosen(zones);
        let done = self.ssd.borrow_mut().execute(command);
        if done.result.is_err() {
            return self.answer_after(self.timing.write_acknowledge_us, done, completer);
        }
        let timing = &self.timing.reset;
        let mut rest_us = timing.fixed_us - self.timing.write_firmware_us;
        let mut due = self.clock.now_ns();
        for before in before {
            let mut stations = self.stations.borrow_mut();
            let written = stations.finished_at.remove(&before.zone.0).unwrap_or(before.wp_blocks);
            if before.state == ZoneState::Empty && zones == Zones::All {
                continue;
            }
            let service = stations.exponential_ns(timing.server_us);
            due = stations.resets.serve(self.clock.now_ns(), service);
            rest_us += timing.full_us * written as f64 / before.capacity_blocks as f64;
            if written > 0 && before.state != ZoneState::Full {
                rest_us += timing.unfinished_us;
            }
            if timing.erase_us > 0.0 && written > 0 {
                let die = self.die_of(self.geometry.start(before.zone));
                stations.dies[die].erases += 1;
                drop(stations);
                self.start_die(die);
            }
            let mut traffic = self.traffic.borrow_mut();
            traffic.counters.resets += 1;
            traffic.dropped(before.zone);
        }
        self.answer(due + ns(rest_us.max(0.0)), done, completer);
    }

    /// The zones of a management command, as they are.
    fn chosen(&self, zones: Zones) -> Vec<ZoneInfo> {
        match zones {
            Zones::One(zone) => self.info(zone).into_iter().collect(),
            Zones::All => (0..self.geometry.zones).filter_map(|zone| self.info(ZoneIndex(zone))).collect(),
        }
    }

    /// Goes on as soon as there is room for so many blocks in the write buffer.
    fn admit(self: &Rc<Inner>, blocks: u64, next: impl FnOnce(&Rc<Inner>) + 'static) {
        let mut stations = self.stations.borrow_mut();
        let buffer = &mut stations.buffer;
        if blocks == 0 || buffer.waiting.is_empty() && buffer.has_room(blocks) {
            buffer.free -= blocks as i64;
            drop(stations);
            next(self);
        } else {
            buffer.waiting.push_back((blocks, Box::new(next)));
        }
    }

    /// So many admitted blocks of `zone` have arrived in the write buffer.
    fn fill(self: &Rc<Inner>, zone: ZoneIndex, blocks: u64) {
        let mut stations = self.stations.borrow_mut();
        let (unit, fixed) = match self.timing.placement {
            Placement::Striped => (0, None),
            Placement::ZonePerDie => {
                let die = (zone.0 % self.timing.dies) as usize;
                (die, Some(die))
            }
        };
        stations.buffer.filling[unit] += blocks;
        while stations.buffer.filling[unit] >= self.timing.program_blocks {
            stations.buffer.filling[unit] -= self.timing.program_blocks;
            stations.buffer.draining += 1;
            let die = fixed.unwrap_or_else(|| {
                let die = stations.buffer.next_die;
                stations.buffer.next_die = (die + 1) % self.timing.dies as usize;
                die
            });
            let service =
                self.timing.drain_mb_s.map_or(0, |mb_s| transfer_ns(self.timing.program_blocks, mb_s));
            let due = stations.drain.serve(self.clock.now_ns(), service);
            self.after(due, move |drive| {
                drive.stations.borrow_mut().dies[die].programs += 1;
                drive.start_die(die);
            });
        }
    }

    /// A unit has been programmed: there is room for others.
    fn drained(self: &Rc<Inner>) {
        let mut stations = self.stations.borrow_mut();
        stations.buffer.draining -= 1;
        stations.buffer.free += self.timing.program_blocks as i64;
        while let Some((blocks, _)) = stations.buffer.waiting.front() {
            let blocks = *blocks;
            if !stations.buffer.has_room(blocks) {
                break;
            }
            stations.buffer.free -= blocks as i64;
            let next = stations.buffer.waiting.pop_front();
            drop(stations);
            if let Some((_, next)) = next {
                next(self);
            }
            stations = self.stations.borrow_mut();
        }
    }

    fn die_of(&self, lba: Lba) -> usize {
        let number = match self.timing.placement {
            Placement::Striped => lba.0 / self.timing.page_blocks,
            Placement::ZonePerDie => lba.0 / self.geometry.zone_size_blocks,
        };
        (number % self.timing.dies as u64) as usize
    }

    fn read(self: &Rc<Inner>, lba: Lba, command: Command, completer: Completer) {
        let done = self.ssd.borrow_mut().execute(command);
        if done.result.is_err() {
            return self.answer_after(self.timing.read_acknowledge_us, done, completer);
        }
        let blocks = done.data.blocks();
        {
            let mut traffic = self.traffic.borrow_mut();
            traffic.counters.reads += 1;
            traffic.counters.read_blocks += blocks;
        }
        let (zone, offset) = self.geometry.locate(lba);
        let in_memory = self
            .info(zone)
            .is_some_and(|info| self.is_dram_zrwa(&info).is_some() && offset >= info.wp_blocks);
        let reading = Rc::new(Reading { pages: Cell::new(0), answer: RefCell::new(Some((done, completer))) });
        if in_memory {
            reading.pages.set(1);
            return self.send_page(blocks, reading);
        }
        let (page_blocks, end) = (self.timing.page_blocks, lba.0 + blocks);
        reading.pages.set(end.div_ceil(page_blocks) - lba.0 / page_blocks);
        let mut at = lba.0;
        while at < end {
            let next = ((at / page_blocks + 1) * page_blocks).min(end);
            let die = self.die_of(Lba(at));
            self.stations.borrow_mut().dies[die].reads.push_back((next - at, reading.clone()));
            self.start_die(die);
            at = next;
        }
    }

    /// A page, or what is wanted of it, goes to the host.
    fn send_page(self: &Rc<Inner>, blocks: u64, reading: Rc<Reading>) {
        let transfer = transfer_ns(blocks, self.timing.read_link_mb_s);
        let due = self.stations.borrow_mut().read_link.serve(self.clock.now_ns(), transfer);
        self.after(due, move |drive| {
            reading.pages.set(reading.pages.get() - 1);
            if reading.pages.get() == 0
                && let Some((done, completer)) = reading.answer.take()
            {
                drive.answer_after(drive.timing.read_acknowledge_us, done, completer);
            }
        });
    }

    /// A die begins its next operation, if it has nothing to do and there is one.
    fn start_die(self: &Rc<Inner>, number: usize) {
        let now = self.clock.now_ns();
        let timing = &self.timing;
        let mut stations = self.stations.borrow_mut();
        let Stations { dies, channels, .. } = &mut *stations;
        let (die, channel) = (&mut dies[number], number % channels.len());
        if die.busy {
            return;
        }
        die.busy = true;
        if let Some((blocks, reading)) = die.reads.pop_front() {
            self.after(now + ns(timing.read_page_us), move |drive| {
                let transfer = transfer_ns(blocks, drive.timing.channel_read_mb_s);
                let due = drive.stations.borrow_mut().channels[channel].serve(drive.clock.now_ns(), transfer);
                drive.after(due, move |drive| {
                    drive.send_page(blocks, reading);
                    drive.die_done(number);
                });
            });
        } else if die.programs > 0 {
            die.programs -= 1;
            let transfer = transfer_ns(timing.program_blocks, timing.channel_program_mb_s);
            let transferred = channels[channel].serve(now, transfer);
            let programmed = transferred + ns(timing.program_us).saturating_sub(transfer);
            self.after(programmed, move |drive| {
                drive.die_done(number);
                drive.drained();
            });
        } else if die.erases > 0 {
            die.erases -= 1;
            self.after(now + ns(timing.reset.erase_us), move |drive| drive.die_done(number));
        } else {
            die.busy = false;
        }
    }

    fn die_done(self: &Rc<Inner>, number: usize) {
        self.stations.borrow_mut().dies[number].busy = false;
        self.start_die(number);
    }
}

impl Buffer {
    /// A buffer that nothing is draining from never gets emptier, so anything may enter it.
    fn has_room(&self, blocks: u64) -> bool {
        blocks as i64 <= self.free || self.draining == 0
    }
}

impl Stations {
    /// A service time with this mean, exponentially distributed.
    fn exponential_ns(&mut self, mean_us: f64) -> u64 {
        ns(match &mut self.rng {
            Some(rng) => {
                let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                -(1.0 - unit).ln() * mean_us
            }
            None => mean_us,
        })
    }
}
