//! The load: submits operations as a host would, and checks every completion.
//!
//! The load keeps to the rules for hosts: it writes at the end of the submitted writes, keeps within the limits of open
//! and active zones, and mostly resets or finishes a zone only when no operation is in flight in it. An error is a
//! failure, except for writes that a reset or finish has overtaken, and for invalid commands, which must be refused
//! without effect.

use super::{
    ops::{Op, OpKind, WaitingChange, outcome},
    oracle::Change,
    schedule::Moment,
    world::{Failure, World},
};
use engine::{
    buf::Buf,
    device::{Command, DeviceError, Done, Geometry, Zones},
    zone::{Lba, ZoneIndex},
};

impl World<'_> {
    /// Submits the next operation, if the drawn one is possible now.
    pub(super) fn issue(&mut self) {
        let Some(limits) = self.limits.clone() else { return };
        if let Some(index) = self.held.iter().position(|held| self.is_quiet(*held)) {
            let held = self.held.remove(index);
            return self.issue_held(held, &limits);
        }
        let load = &self.scenario.load;
        let rates = [
            load.write,
            load.append * u64::from(limits.max_append_blocks > 0),
            load.flush,
            load.read,
            load.report,
            load.reset,
            load.reset_all,
            load.finish,
            load.open,
            load.close,
            load.wrong,
        ];
        let kind = self.rng.weighted(&rates);
        let zone = self.pick_zone(limits.zones);
        match kind {
            0 | 1 => self.issue_write(zone, kind == 1, &limits),
            2 => self.issue_flush(),
            3 => self.issue_read(zone, &limits),
            4 => {
                let first = self.rng.below(limits.zones as u64) as u32;
                let count = limits.zones - first;
                let point = self.oracle.report();
                self.submit(
                    OpKind::Report { first, point },
                    Command::Report { first: ZoneIndex(first), count },
                );
            }
            5 => self.hold_or_race(WaitingChange::Reset(zone), &limits),
            6 => self.hold(WaitingChange::ResetAll),
            7 => self.hold_or_race(WaitingChange::Finish(zone), &limits),
            8 => self.hold(WaitingChange::Open(zone)),
            9 => self.hold(WaitingChange::Close(zone)),
            _ => self.issue_wrong(zone, &limits),
        }
    }

    /// A random zone, mostly one of the hot zones.
    fn pick_zone(&mut self, zones: u32) -> u32 {
        let hot = self.scenario.load.hot_zones.min(zones as u64);
        if self.rng.chance(7, 8) {
            // The hot zones are the first that are not full, so that all zones get written.
            let first = (0..zones).filter(|z| !self.oracle.is_full(*z)).take(hot as usize);
            let candidates: Vec<u32> = first.collect();
            if !candidates.is_empty() {
                return *self.rng.pick(&candidates);
            }
        }
        self.rng.below(zones as u64) as u32
    }

    fn hold(&mut self, held: WaitingChange) {
        if self.held.len() < 2 && !self.held.iter().any(|h| *h == held || *h == WaitingChange::ResetAll) {
            self.held.push(held);
        }
    }

    /// Resets or finishes a zone at once, with operations in flight there, or later when the zone is idle.
    fn hold_or_race(&mut self, held: WaitingChange, limits: &Geometry) {
        let (WaitingChange::Reset(zone) | WaitingChange::Finish(zone)) = held else { return };
        let state = &self.oracle.zones[zone as usize];
        let free = state.change.is_none() && !state.opening && !self.is_held(zone);
        if free && self.rng.chance(self.scenario.load.race_percent, 100) {
            self.issue_held(held, limits);
        } else {
            self.hold(held);
        }
    }

    fn is_held(&self, zone: u32) -> bool {
        self.held.iter().any(|held| held.holds(zone))
    }

    fn is_quiet(&self, held: WaitingChange) -> bool {
        let mut zones = self.oracle.zones.iter().enumerate();
        zones.all(|(zone, state)| state.in_flight == 0 || !held.holds(zone as u32))
    }

    /// Whether the zone may be written or opened within the limits of active and open zones, in whatever order the
    /// operations in flight complete.
    fn may_activate(&self, zone: u32, limits: &Geometry) -> bool {
        let zones = &self.oracle.zones;
        let this = &zones[zone as usize];
        let others = || zones.iter().enumerate().filter(|(z, _)| *z != zone as usize).map(|(_, z)| z);
        let active = others().filter(|z| z.active || z.in_flight > 0).count();
        let opened = others().filter(|z| z.opened || z.opening).count();
        (this.active || limits.max_active == 0 || active < limits.max_active as usize)
            && (this.opened || limits.max_open == 0 || opened < limits.max_open as usize)
    }

    fn issue_held(&mut self, held: WaitingChange, limits: &Geometry) {
        let one = |zone: u32| Zones::One(ZoneIndex(zone));
        match held {
            WaitingChange::Reset(zone) => self.issue_one_change(zone, Change::Reset),
            WaitingChange::ResetAll => {
                self.issue_change((0..limits.zones).collect(), Change::Reset, Zones::All)
            }
            WaitingChange::Finish(zone) => {
                if self.oracle.is_full(zone) || self.may_activate(zone, limits) {
                    self.issue_one_change(zone, Change::Finish);
                }
            }
            WaitingChange::Open(zone) => {
                if !self.oracle.is_full(zone) && self.may_activate(zone, limits) {
                    let state = &mut self.oracle.zones[zone as usize];
                    (state.active, state.opening) = (true, true);
                    state.begin();
                    self.submit(OpKind::Open { zone }, Command::Open { zones: one(zone), zrwa: false });
                }
            }
            WaitingChange::Close(zone) => {
                let state = &mut self.oracle.zones[zone as usize];
                if state.active {
                    state.begin();
                    self.submit(OpKind::Close { zone }, Command::Close { zones: one(zone) });
                }
            }
        }
    }

    /// Submits a flush.
    pub(super) fn issue_flush(&mut self) {
        let point = self.oracle.flush();
        self.submit(OpKind::Flush(point), Command::Flush);
    }

    /// Submits a reset or finish of one zone.
    pub(super) fn issue_one_change(&mut self, zone: u32, change: Change) {
        self.issue_change(vec![zone], change, Zones::One(ZoneIndex(zone)));
    }

    fn issue_change(&mut self, zones: Vec<u32>, change: Change, which: Zones) {
        for zone in &zones {
            self.oracle.change(*zone, change);
        }
        let command = match change {
            Change::Reset => Command::Reset { zones: which },
            Change::Finish => Command::Finish { zones: which },
        };
        self.submit(OpKind::Change { zones, change }, command);
    }

    /// Draws the size of a write in blocks: below a chunk, around a chunk, or up to three stripes.
    fn draw_blocks(&mut self, start: u64) -> u64 {
        let chunk = self.scenario.chunk_blocks;
        let stripe = chunk * self.scenario.data_chunks();
        let load = &self.scenario.load;
        let (sizes, aligned_percent) = (load.sizes, load.aligned_percent);
        let draw = self.rng.below(sizes.iter().sum());
        let blocks = if draw < sizes[0] {
            1 + self.rng.below(chunk)
        } else if draw < sizes[0] + sizes[1] {
            chunk / 2 + 1 + self.rng.below(chunk + chunk / 2)
        } else {
            1 + self.rng.below(3 * stripe)
        };
        if self.rng.chance(aligned_percent, 100) {
            (start + blocks).next_multiple_of(chunk) - start
        } else {
            blocks
        }
    }

    fn issue_write(&mut self, zone: u32, append: bool, limits: &Geometry) {
        let start = self.oracle.zones[zone as usize].submitted();
        if self.oracle.is_full(zone) || self.is_held(zone) || !self.may_activate(zone, limits) {
            return;
        }
        if self.oracle.zones[zone as usize].change.is_some() || self.oracle.zones[zone as usize].opening {
            return;
        }
        let most = if append { limits.max_append_blocks } else { limits.max_transfer_blocks } as u64;
        let blocks = self.draw_blocks(start).min(most).min(limits.zone_capacity_blocks - start);
        let fua = self.rng.chance(self.scenario.load.fua_percent, 100);
        self.write(zone, blocks, fua, append);
    }

    /// Submits a write, which must be possible.
    pub(super) fn write(&mut self, zone: u32, blocks: u64, fua: bool, append: bool) {
        let Some(limits) = &self.limits else { return };
        let zone_start = limits.start(ZoneIndex(zone)).0;
        let (start, data) = self.oracle.write(zone, self.pool.take(blocks).freeze());
        let life = self.oracle.zones[zone as usize].life;
        let kind = OpKind::Write { zone, start, end: start + blocks, fua, append, life };
        let command = if append {
            Command::append(ZoneIndex(zone), data, fua)
        } else {
            Command::write(Lba(zone_start + start), data, fua)
        };
        self.submit(kind, command);
    }

    fn issue_read(&mut self, zone: u32, limits: &Geometry) {
        if self.is_held(zone) || self.oracle.zones[zone as usize].change.is_some() {
            return;
        }
        // Mostly written blocks, with a few beyond the end.
        let end = (self.oracle.zones[zone as usize].submitted() + 4).min(limits.zone_capacity_blocks);
        let block = self.rng.below(end);
        let blocks = (1 + self.rng.below(end - block)).min(limits.max_transfer_blocks as u64);
        let point = self.oracle.read(zone, block);
        let data = self.pool.take(blocks).freeze();
        let lba = Lba(limits.start(ZoneIndex(zone)).0 + block);
        self.submit(OpKind::Read { point, blocks }, Command::read(lba, data));
    }

    /// Submits an invalid command to an idle zone, so that its status is predictable.
    fn issue_wrong(&mut self, zone: u32, limits: &Geometry) {
        let state = &self.oracle.zones[zone as usize];
        if state.in_flight > 0 || self.is_held(zone) {
            return;
        }
        let full = self.oracle.is_full(zone);
        let start = limits.start(ZoneIndex(zone)).0;
        let (wp, capacity) = (state.submitted(), limits.zone_capacity_blocks);
        let (what, command) = match self.rng.below(4) {
            0 if full => (
                "a write to a full zone",
                Command::write(Lba(start + wp.min(capacity - 1)), Buf::zeroed(4096), true),
            ),
            1 if full && limits.max_append_blocks > 0 => {
                ("an append to a full zone", Command::append(ZoneIndex(zone), Buf::zeroed(4096), false))
            }
            0 | 1 if !full && wp + 1 < capacity => {
                ("a write after a gap", Command::write(Lba(start + wp + 1), Buf::zeroed(4096), false))
            }
            2 if !full && wp > 0 => {
                ("a write over written blocks", Command::write(Lba(start + wp - 1), Buf::zeroed(4096), false))
            }
            3 => {
                let beyond = limits.zones as u64 * limits.zone_size_blocks;
                ("a read beyond the last zone", Command::read(Lba(beyond), Buf::zeroed(4096)))
            }
            _ => return,
        };
        self.oracle.zones[zone as usize].begin();
        self.submit(OpKind::Wrong { zone, what }, command);
    }

    fn submit(&mut self, kind: OpKind, command: Command) {
        let Some(subject) = &self.subject else { return };
        self.counts.operations += 1;
        self.trace.note(|| format!("host submits: {kind}"));
        let completion = subject.submit(command);
        self.ops.push(Op { kind, completion });
    }

    /// Takes the completions that are available.
    ///
    /// # Errors
    /// A completion that breaks a promise.
    pub(super) fn collect(&mut self) -> Result<(), Failure> {
        self.note_gone_back()?;
        let mut index = 0;
        while index < self.ops.len() {
            match self.ops[index].completion.take() {
                Some(done) => {
                    let op = self.ops.remove(index);
                    self.complete(op.kind, done)?;
                    if !self.in_order && self.rng.chance(1, 4) {
                        // Other events may come between two completions.
                        self.ready = true;
                        return Ok(());
                    }
                }
                None => index += 1,
            }
        }
        Ok(())
    }

    fn complete(&mut self, kind: OpKind, done: Done) -> Result<(), Failure> {
        self.trace.note(|| format!("host learns: {kind} {}", outcome(&done)));
        if let OpKind::Wrong { zone, what } = kind {
            self.oracle.zones[zone as usize].end();
            return match done.result {
                Err(DeviceError::Status(_)) => Ok(()),
                other => Err(Failure(format!("{what} in zone {zone} was answered with {other:?}"))),
            };
        }
        if let Err(error) = done.result {
            let overtaken = match kind {
                OpKind::Write { zone, life, .. } => self.oracle.is_overtaken(zone, life).then_some(zone),
                OpKind::Read { point, .. } => self.oracle.is_reset_since(point).then_some(point.zone),
                _ => None,
            };
            if let (Some(zone), DeviceError::Status(_)) = (overtaken, error) {
                self.oracle.zones[zone as usize].end();
                return Ok(());
            }
            self.excused += u64::from(self.lenient);
            return if self.lenient { Ok(()) } else { Err(Failure(format!("{kind}: {error}"))) };
        }
        match kind {
            OpKind::Write { zone, start, end, fua, append, life } => {
                let limits = self.limits.as_ref();
                let told = limits.map(|g| g.start(ZoneIndex(zone)).0 + start);
                if append && told != Some(done.lba.0) {
                    let what = format!("an append to zone {zone} landed at block {}", done.lba.0);
                    return Err(Failure(format!("{what}, which is not the end of the writes before it")));
                }
                self.oracle.written(zone, life, end, done.tail, fua);
                if fua {
                    self.forks.notice(Moment::Promised);
                }
                if end == self.oracle.capacity {
                    self.forks.notice(Moment::Ended);
                }
            }
            OpKind::Read { point, blocks } => {
                if done.data.blocks() != blocks {
                    return Err(Failure(format!("a read of {blocks} blocks gave {:?}", done.data)));
                }
                self.oracle.check_read(point, &done.data)?;
            }
            OpKind::Flush(point) => {
                self.oracle.flushed(&point);
                self.forks.notice(Moment::Promised);
            }
            OpKind::Report { point, .. } => self.oracle.check_report(&point, &done.zones)?,
            OpKind::Change { zones, .. } => {
                zones.iter().for_each(|zone| self.oracle.changed(*zone));
                self.forks.notice(Moment::Ended);
            }
            OpKind::Open { zone } => {
                let state = &mut self.oracle.zones[zone as usize];
                state.end();
                (state.opened, state.opening) = (true, false);
            }
            OpKind::Close { zone } => {
                let state = &mut self.oracle.zones[zone as usize];
                state.end();
                state.opened = false;
                // A closed zone that was opened but not written may be empty or closed: it may still count as active,
                // so the load assumes that.
            }
            OpKind::Wrong { .. } => {}
        }
        self.pool.give(done.data);
        Ok(())
    }
}
