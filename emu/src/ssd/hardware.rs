//! Queueing model of a drive's hardware.
//!
//! A station serves in the order of arrival. There is one event for each stage of a command, so that stations work at
//! the same time on different commands.

use crate::{
    clock::Clock,
    rng::Rng,
    timing::{Placement, Timing},
};
use engine::buf::BLOCK;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

/// The hardware of one drive.
pub(super) struct Hardware {
    pub timing: Timing,
    pub clock: Clock,
    /// Number of zones in all namespaces so far.
    zones: Cell<u32>,
    stations: RefCell<Stations>,
    places: RefCell<Places>,
    watch: RefCell<Option<DieWatch>>,
}

/// Dies of zones that have been written since their reset, if each zone is on one die.
#[derive(Default)]
struct Places {
    die: Vec<Option<usize>>,
    next: usize,
}

/// Is called for each operation of a die: number of the die, operation, start and end in ns.
pub type DieWatch = Box<dyn Fn(usize, &'static str, u64, u64)>;

/// Continuation of a command.
type Continuation = Box<dyn FnOnce(&Rc<Hardware>)>;

struct Stations {
    /// Random service times; without it every service takes its mean.
    rng: Option<Rng>,
    write_firmware: Station,
    read_firmware: Station,
    write_link: Station,
    read_link: Station,
    drain: Station,
    resets: Station,
    channels: Vec<Station>,
    dies: Vec<Die>,
    buffer: Buffer,
}

/// A FIFO server.
#[derive(Clone, Default)]
struct Station {
    free_ns: u64,
}

/// A die: one operation at a time, reads first; operations are not suspended.
#[derive(Default)]
struct Die {
    busy: bool,
    /// The current operation and its start.
    work: (&'static str, u64),
    /// Reads, each with the bytes to transfer.
    reads: VecDeque<(u64, Continuation)>,
    programs: u32,
    erases: u32,
}

/// The write buffer, in blocks.
struct Buffer {
    /// Below 0 after an entry that is larger than the buffer.
    free: i64,
    waiting: VecDeque<(u64, Continuation)>,
    /// Fill level in blocks of each open program unit: one for each die, or one in all.
    filling: Vec<u64>,
    /// Units that are being moved to a die.
    draining: u64,
    next_die: usize,
}

impl Hardware {
    pub fn new(timing: &Timing, clock: &Clock, seed: Option<u64>) -> Hardware {
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
            dies: (0..timing.dies).map(|_| Die::default()).collect(),
            buffer: Buffer {
                free: (timing.write_buffer_kib * 1024) as i64 / BLOCK as i64,
                waiting: VecDeque::new(),
                filling: vec![0; units],
                draining: 0,
                next_die: 0,
            },
        };
        Hardware {
            timing: timing.clone(),
            clock: clock.clone(),
            zones: Cell::default(),
            stations: RefCell::new(stations),
            places: RefCell::default(),
            watch: RefCell::default(),
        }
    }

    /// Calls `watch` for the operations of dies from now on.
    pub fn watch(&self, watch: DieWatch) {
        self.watch.replace(Some(watch));
    }

    /// The die of a zone that is written: the next in turn if it has none yet.
    fn place(&self, zone: u32) -> usize {
        let places = &mut *self.places.borrow_mut();
        let zone = zone as usize;
        if places.die.len() <= zone {
            places.die.resize(zone + 1, None);
        }
        if let Some(die) = places.die[zone] {
            return die;
        }
        let next = (places.next + 1) % self.timing.dies as usize;
        let die = std::mem::replace(&mut places.next, next);
        places.die[zone] = Some(die);
        die
    }

    /// A zone has been reset: it may get another die.
    pub fn release(&self, zone: u32) {
        if let Some(die) = self.places.borrow_mut().die.get_mut(zone as usize) {
            *die = None;
        }
    }

    /// Adds zones and returns the number of the first.
    pub fn add_zones(&self, zones: u32) -> u32 {
        self.zones.replace(self.zones.get() + zones)
    }

    /// Calls `next` at `due_ns`, if the drive still exists then.
    pub fn after(self: &Rc<Self>, due_ns: u64, next: impl FnOnce(&Rc<Hardware>) + 'static) {
        let hardware = Rc::downgrade(self);
        self.clock.at(due_ns, move || {
            if let Some(hardware) = hardware.upgrade() {
                next(&hardware);
            }
        });
    }

    /// Completion time in the firmware of a write or a management command: stages with these mean times, and
    /// `extra_us`.
    pub fn write_firmware(&self, means_us: &[f64], extra_us: f64) -> u64 {
        let stations = &mut *self.stations.borrow_mut();
        let service = means_us.iter().map(|mean| exponential_ns(&mut stations.rng, *mean)).sum::<u64>();
        stations.write_firmware.serve(self.clock.now_ns(), service + ns(extra_us))
    }

    /// Completion time in the firmware of a read.
    pub fn read_firmware(&self) -> u64 {
        let stations = &mut *self.stations.borrow_mut();
        let service = exponential_ns(&mut stations.rng, self.timing.read_firmware_us);
        stations.read_firmware.serve(self.clock.now_ns(), service)
    }

    /// Completion time of the transfer of this many blocks from the host. A command without data does not queue.
    fn transfer_in(&self, blocks: u64) -> u64 {
        let (now, transfer) = (self.clock.now_ns(), transfer_ns(blocks, self.timing.write_link_mb_s));
        if blocks == 0 { now } else { self.stations.borrow_mut().write_link.serve(now, transfer) }
    }

    /// Completion time of the transfer of this many blocks to the host.
    pub fn transfer_out(&self, blocks: u64) -> u64 {
        let transfer = transfer_ns(blocks, self.timing.read_link_mb_s);
        self.stations.borrow_mut().read_link.serve(self.clock.now_ns(), transfer)
    }

    /// Completion time in the server for resets.
    pub fn reset(&self) -> u64 {
        let stations = &mut *self.stations.borrow_mut();
        let service = exponential_ns(&mut stations.rng, self.timing.reset.server_us);
        stations.resets.serve(self.clock.now_ns(), service)
    }

    /// Admits a write of `blocks` blocks, which may be 0. `buffered` of them need room in the write buffer: all of
    /// them, or with a ZRWA in memory those that the write pointer passes. At most one program unit enters at a time,
    /// so that a large write queues once for each of its units.
    pub fn take(
        self: &Rc<Self>,
        zone: u32,
        blocks: u64,
        buffered: u64,
        next: impl FnOnce(&Rc<Hardware>) + 'static,
    ) {
        if self.timing.placement == Placement::ZonePerDie {
            self.place(zone);
        }
        let piece = buffered.min(self.timing.program_blocks);
        self.admit(piece, move |hardware| {
            if piece == buffered {
                return hardware.after(hardware.transfer_in(blocks), move |hardware| {
                    hardware.fill(zone, piece);
                    next(hardware);
                });
            }
            // If fewer blocks come from the host than need room, the transfer comes last.
            let sent = piece.min(blocks.saturating_sub(buffered - piece));
            let arrived = hardware.transfer_in(sent);
            hardware.after(arrived, move |hardware| hardware.fill(zone, piece));
            hardware.take(zone, blocks - sent, buffered - piece, next);
        });
    }

    /// Calls `next` as soon as this many blocks fit into the write buffer.
    pub fn admit(self: &Rc<Self>, blocks: u64, next: impl FnOnce(&Rc<Hardware>) + 'static) {
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

    /// This many admitted blocks of a zone have arrived in the write buffer.
    pub fn fill(self: &Rc<Self>, zone: u32, blocks: u64) {
        let timing = &self.timing;
        let of_zone = match timing.placement {
            Placement::ZonePerDie => self.place(zone),
            Placement::Striped => 0,
        };
        let stations = &mut *self.stations.borrow_mut();
        let (buffer, unit) = (&mut stations.buffer, of_zone);
        buffer.filling[unit] += blocks;
        while buffer.filling[unit] >= timing.program_blocks {
            buffer.filling[unit] -= timing.program_blocks;
            buffer.draining += 1;
            let die = match timing.placement {
                Placement::ZonePerDie => of_zone,
                Placement::Striped => {
                    let next = (buffer.next_die + 1) % timing.dies as usize;
                    std::mem::replace(&mut buffer.next_die, next)
                }
            };
            let service = timing.drain_mb_s.map_or(0, |mb_s| transfer_ns(timing.program_blocks, mb_s));
            let due = stations.drain.serve(self.clock.now_ns(), service);
            self.after(due, move |hardware| {
                hardware.stations.borrow_mut().dies[die].programs += 1;
                hardware.start_die(die);
            });
        }
    }

    /// A unit has been programmed: its room in the buffer is free.
    fn drained(self: &Rc<Self>) {
        let mut stations = self.stations.borrow_mut();
        stations.buffer.draining -= 1;
        stations.buffer.free += self.timing.program_blocks as i64;
        while let Some((blocks, next)) = stations.buffer.next_admitted() {
            stations.buffer.free -= blocks as i64;
            drop(stations);
            next(self);
            stations = self.stations.borrow_mut();
        }
    }

    /// The die of the block at `offset_blocks` of a zone that is `zone_blocks` long, for reads and erases.
    pub fn die(&self, zone: u32, zone_blocks: u64, offset_blocks: u64) -> usize {
        let number = match self.timing.placement {
            Placement::Striped => (zone as u64 * zone_blocks + offset_blocks) / self.timing.page_blocks,
            // An unwritten zone has no die; reads of blank drives spread.
            Placement::ZonePerDie => {
                let placed = self.places.borrow().die.get(zone as usize).copied().flatten();
                placed.map_or(zone as u64, |die| die as u64)
            }
        };
        (number % self.timing.dies as u64) as usize
    }

    /// Calls `next` when a die has read a page and `bytes` of it have passed its channel.
    pub fn read_page(self: &Rc<Self>, die: usize, bytes: u64, next: impl FnOnce(&Rc<Hardware>) + 'static) {
        self.stations.borrow_mut().dies[die].reads.push_back((bytes, Box::new(next)));
        self.start_die(die);
    }

    /// Queues an erase of a zone, at the lowest priority.
    pub fn erase(self: &Rc<Self>, die: usize) {
        self.stations.borrow_mut().dies[die].erases += 1;
        self.start_die(die);
    }

    /// Starts the next operation of a die, if it is idle and there is one.
    fn start_die(self: &Rc<Self>, number: usize) {
        let (now, timing) = (self.clock.now_ns(), &self.timing);
        let mut stations = self.stations.borrow_mut();
        let Stations { rng, dies, channels, .. } = &mut *stations;
        let (die, channel) = (&mut dies[number], number % channels.len());
        if die.busy {
            return;
        }
        die.busy = true;
        if let Some((bytes, next)) = die.reads.pop_front() {
            die.work = ("read", now);
            let sense_us = match rng {
                Some(rng) => timing.read_page_us * (0.8 + 0.2 * rng.below(3) as f64),
                None => timing.read_page_us,
            };
            let asked = channels[channel].serve(now, ns(timing.channel_read_us));
            self.after(asked + ns(sense_us), move |hardware| {
                let transfer = ns(bytes as f64 / hardware.timing.channel_read_mb_s);
                let due =
                    hardware.stations.borrow_mut().channels[channel].serve(hardware.clock.now_ns(), transfer);
                hardware.after(due, move |hardware| {
                    next(hardware);
                    hardware.die_done(number);
                });
            });
        } else if die.programs > 0 {
            die.programs -= 1;
            die.work = ("program", now);
            drop(stations);
            self.program(number, timing.program_blocks);
        } else if die.erases > 0 {
            die.erases -= 1;
            die.work = ("erase", now);
            self.after(now + ns(timing.reset.erase_us), move |hardware| hardware.die_done(number));
        } else {
            die.busy = false;
        }
    }

    /// Transfers the rest of a unit to its die, page by page, so that others can use the channel too; then programs it.
    fn program(self: &Rc<Self>, die: usize, left: u64) {
        let timing = &self.timing;
        if left == 0 {
            let transfer = transfer_ns(timing.program_blocks, timing.channel_program_mb_s);
            let rest = ns(timing.program_us).saturating_sub(transfer);
            return self.after(self.clock.now_ns() + rest, move |hardware| {
                hardware.die_done(die);
                hardware.drained();
            });
        }
        let page = timing.page_blocks.min(left);
        let transfer = transfer_ns(page, timing.channel_program_mb_s);
        let mut stations = self.stations.borrow_mut();
        let channel = die % stations.channels.len();
        let due = stations.channels[channel].serve(self.clock.now_ns(), transfer);
        self.after(due, move |hardware| hardware.program(die, left - page));
    }

    fn die_done(self: &Rc<Self>, number: usize) {
        let (what, since) = {
            let die = &mut self.stations.borrow_mut().dies[number];
            die.busy = false;
            die.work
        };
        if let Some(watch) = &*self.watch.borrow() {
            watch(number, what, since, self.clock.now_ns());
        }
        self.start_die(number);
    }
}

impl Station {
    /// End of a service of `ns` that arrives at `now_ns`.
    fn serve(&mut self, now_ns: u64, ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + ns;
        self.free_ns
    }
}

impl Buffer {
    /// A buffer that is not draining never gets emptier, so any entry fits.
    fn has_room(&self, blocks: u64) -> bool {
        blocks as i64 <= self.free || self.draining == 0
    }

    /// The entry that has waited longest, if there is room now.
    fn next_admitted(&mut self) -> Option<(u64, Continuation)> {
        let blocks = self.waiting.front()?.0;
        if self.has_room(blocks) { self.waiting.pop_front() } else { None }
    }
}

/// A service time with this mean, exponentially distributed.
fn exponential_ns(rng: &mut Option<Rng>, mean_us: f64) -> u64 {
    ns(mean_us * rng.as_mut().map_or(1.0, Rng::exponential))
}

pub(super) fn ns(us: f64) -> u64 {
    (us * 1000.0) as u64
}

/// Transfer time of `blocks` blocks at this bandwidth.
fn transfer_ns(blocks: u64, mb_s: f64) -> u64 {
    ns((blocks * BLOCK as u64) as f64 / mb_s)
}
