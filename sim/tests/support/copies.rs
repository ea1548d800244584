//! A small subject of the simulator that survives the loss of a given number of drives, and ways to break it.
//!
//! [`Copies`] keeps all data on each of its drives. Commands are executed one after the other, on all drives at once.
//! The first two zones of a drive hold a log of records and are used in turn; the last record lists the members and
//! their states. An operation that relies on a drive being out completes only after the other drives have recorded
//! that. The tail of a zone is that of the longest copy, and the other copies are brought to it.

use engine::{
    array::{CreateOptions, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones,
    },
    raid::policy::Policy,
    runtime::{Gate, Runtime},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use sim::simulator::subject::{AssembleOptions, Maker, Subject, SubjectError, Work};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, VecDeque},
    rc::Rc,
};

/// A rule that the copies violate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// A write completes when as many copies have it as always remain, and not only when all have it.
    AnswersEarly,
    /// An assembly without a member takes a member that is still being filled for a complete one.
    TrustsUnfilled,
    /// With two members out, the second one is not recorded.
    ForgetsTheSecond,
}

/// Makes [`Copies`].
#[derive(Clone, Copy)]
pub struct CopiesMaker {
    /// Number of members that may be lost.
    pub parities: usize,
    pub broken: Broken,
}

/// Zones of a drive that hold records.
const LOGS: u32 = 2;
const MAGIC: u64 = 0x7365_6970_6f63_6d69;

/// An operation on a zone of all drives, which an interruption may have left on some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    None,
    /// `None` for all zones.
    Reset(Option<u32>),
    Finish(u32),
}

/// The record that every member stores.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    uuid: [u8; 16],
    /// Number of assemblies so far, and of records in the current one.
    assembly: u64,
    sequence: u64,
    /// For each member the name of its drive, which is never reused, and its state.
    members: Vec<(u64, MemberState)>,
    intent: Intent,
}

impl Record {
    /// Encodes the record as a block of the drive named `own`.
    fn block(&self, own: u64) -> Buf {
        let state = |state: &MemberState| match state {
            MemberState::Active => 0,
            MemberState::Rebuilding => 1,
            MemberState::Out => 2,
        };
        let (kind, zone) = match self.intent {
            Intent::None => (0, 0),
            Intent::Reset(zone) => (1, zone.map_or(0, |zone| zone as u64 + 1)),
            Intent::Finish(zone) => (2, zone as u64),
        };
        let mut words = vec![own, self.assembly, self.sequence, kind, zone, self.members.len() as u64];
        words.extend(self.uuid.chunks(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap())));
        words.extend(self.members.iter().flat_map(|(name, member)| [*name, state(member)]));
        let mut bytes: Vec<u8> =
            [MAGIC, sum(&words)].iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(BLOCK, 0);
        Buf::copy_of(&bytes)
    }

    /// The record in a block, and the name of its drive.
    fn read(bytes: &[u8]) -> Option<(Record, u64)> {
        let all: Vec<u64> =
            bytes.chunks(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
        let count = *all.get(7)? as usize;
        let words = all.get(2..10usize.checked_add(count.checked_mul(2)?)?)?;
        if all[0] != MAGIC || all[1] != sum(words) {
            return None;
        }
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&words[6].to_le_bytes());
        uuid[8..].copy_from_slice(&words[7].to_le_bytes());
        let state = |word| match word {
            0 => MemberState::Active,
            1 => MemberState::Rebuilding,
            _ => MemberState::Out,
        };
        let intent = match words[3] {
            0 => Intent::None,
            1 => Intent::Reset(words[4].checked_sub(1).map(|zone| zone as u32)),
            _ => Intent::Finish(words[4] as u32),
        };
        let members = words[8..].chunks(2).map(|pair| (pair[0], state(pair[1]))).collect();
        Some((Record { uuid, assembly: words[1], sequence: words[2], members, intent }, words[0]))
    }
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(MAGIC, |sum, word| (sum.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A drive and the position of its next record.
struct Copy {
    drive: Drive,
    name: u64,
    log: Cell<(u32, u64)>,
    /// Zones that it holds, or `None` for all.
    filled: RefCell<Option<BTreeSet<u32>>>,
}

impl Copy {
    fn new(drive: Drive, name: u64) -> Rc<Copy> {
        Rc::new(Copy { drive, name, log: Cell::new((0, 0)), filled: RefCell::default() })
    }

    async fn run(&self, command: Command) -> Done {
        self.drive.device.submit(command).await
    }

    fn holds(&self, zone: u32) -> bool {
        self.filled.borrow().as_ref().is_none_or(|filled| filled.contains(&zone))
    }

    async fn report(&self) -> Result<Vec<ZoneInfo>, DeviceError> {
        let count = self.drive.device.geometry().zones;
        let done = self.run(Command::Report { first: ZoneIndex(0), count }).await;
        done.result.map(|()| done.zones)
    }

    async fn read(&self, zone: u32, block: u64, blocks: u64) -> Result<Buf, DeviceError> {
        let lba = Lba(self.drive.device.geometry().start(ZoneIndex(zone)).0 + block);
        let done = self.run(Command::read(lba, Buf::zeroed(blocks as usize * BLOCK))).await;
        done.result.map(|()| done.data)
    }

    async fn write(&self, zone: u32, block: u64, data: Buf) -> Result<(), DeviceError> {
        let lba = Lba(self.drive.device.geometry().start(ZoneIndex(zone)).0 + block);
        self.run(Command::write(lba, data, true)).await.result
    }

    async fn reset(&self, zone: u32) -> Result<(), DeviceError> {
        self.run(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await.result
    }

    /// Writes a record; if the log is full, to the other zone.
    async fn note(&self, record: &Record) -> Result<(), DeviceError> {
        let (mut zone, mut block) = self.log.get();
        if block == self.drive.device.geometry().zone_capacity_blocks {
            (zone, block) = (1 - zone, 0);
            self.reset(zone).await?;
        }
        self.write(zone, block, record.block(self.name)).await?;
        self.log.set((zone, block + 1));
        Ok(())
    }

    /// The last record of a drive, if it has a readable one, and the drive with its recorded name.
    async fn last_record(drive: &Drive) -> Option<(Record, Rc<Copy>)> {
        let copy = Copy::new(drive.clone(), 0);
        let zones = copy.report().await.ok()?;
        let capacity = drive.device.geometry().zone_capacity_blocks;
        let mut last: Option<(Record, u64, (u32, u64))> = None;
        for info in zones.iter().take(LOGS as usize) {
            let end = if info.state == ZoneState::Full { capacity } else { info.wp_blocks };
            if end > 0 {
                let bytes = copy.read(info.zone.0, end - 1, 1).await.ok()?;
                let (record, name) = Record::read(&bytes)?;
                let age = |record: &Record| (record.assembly, record.sequence);
                if last.as_ref().is_none_or(|(other, _, _)| age(other) < age(&record)) {
                    last = Some((record, name, (info.zone.0, end)));
                }
            }
        }
        let (record, name, log) = last?;
        let copy = Copy::new(drive.clone(), name);
        copy.log.set(log);
        Some((record, copy))
    }
}

/// Reason why blocks could not be copied.
#[derive(Debug)]
enum Unfilled {
    NoSource,
    NotWritten,
}

/// The members, and the drive that is to replace one of them.
struct State {
    record: Record,
    copies: Vec<Option<Rc<Copy>>>,
    replacement_drive: Option<Rc<Copy>>,
}

pub struct Copies {
    maker: CopiesMaker,
    geometry: Geometry,
    state: RefCell<State>,
    names: Vec<RefCell<String>>,
    queue: RefCell<VecDeque<(Command, Completer)>>,
    gate: Gate,
    slots: Rc<Slots>,
    /// Lock tickets handed out, and the current one.
    turns: Cell<(u64, u64)>,
    reads: Cell<usize>,
}

/// While it exists, no other command or operation is executed.
struct Lock<'a>(&'a Copies);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let (given, now) = self.0.turns.get();
        self.0.turns.set((given, now + 1));
        self.0.gate.open();
    }
}

impl Copies {
    fn new(maker: CopiesMaker, record: Record, copies: Vec<Option<Rc<Copy>>>) -> Rc<Copies> {
        let first = copies.iter().flatten().next().unwrap();
        let drive = first.drive.device.geometry();
        // One active zone is for records, and one for a zone under rebuild that is full on the others.
        let but_two = |limit: u32| if limit == 0 { 0 } else { limit - 2 };
        let geometry = Geometry {
            zones: drive.zones - LOGS,
            max_open: but_two(drive.max_open),
            max_active: but_two(drive.max_active),
            max_append_blocks: 0,
            zrwa: None,
            ..drive.clone()
        };
        let name = |copy: &Option<Rc<Copy>>| copy.as_ref().map_or(String::new(), |c| c.drive.name.clone());
        Rc::new(Copies {
            maker,
            geometry,
            names: copies.iter().map(|copy| RefCell::new(name(copy))).collect(),
            state: RefCell::new(State { record, copies, replacement_drive: None }),
            queue: RefCell::default(),
            gate: Gate::default(),
            slots: Rc::default(),
            turns: Cell::new((0, 0)),
            reads: Cell::new(0),
        })
    }

    async fn lock(&self) -> Lock<'_> {
        let (turn, now) = self.turns.get();
        self.turns.set((turn + 1, now));
        while self.turns.get().1 != turn {
            self.gate.wait().await;
        }
        Lock(self)
    }

    fn record(&self) -> Record {
        self.state.borrow().record.clone()
    }

    /// The drives of members that are not out, and with `replacement_drive` also the one that is to replace a member.
    fn copies(&self, replacement_drive: bool) -> Vec<Rc<Copy>> {
        let state = self.state.borrow();
        state
            .copies
            .iter()
            .flatten()
            .chain(state.replacement_drive.as_ref().filter(|_| replacement_drive))
            .cloned()
            .collect()
    }

    fn outs(&self) -> usize {
        self.record().members.iter().filter(|(_, state)| *state == MemberState::Out).count()
    }

    /// Takes a drive out; `false` if too few others are complete.
    fn take_out(&self, copy: &Rc<Copy>) -> bool {
        let mut state = self.state.borrow_mut();
        if state
            .replacement_drive
            .as_ref()
            .is_some_and(|replacement_drive| Rc::ptr_eq(replacement_drive, copy))
        {
            state.replacement_drive = None;
            return true;
        }
        let is_it = |other: &Option<Rc<Copy>>| other.as_ref().is_some_and(|other| Rc::ptr_eq(other, copy));
        let Some(member) = state.copies.iter().position(is_it) else { return true };
        let members = state.record.members.iter().enumerate().filter(|(other, _)| *other != member);
        if members.filter(|(_, (_, state))| *state != MemberState::Active).count() >= self.maker.parities {
            return false;
        }
        state.copies[member] = None;
        state.record.members[member].1 = MemberState::Out;
        true
    }

    /// Records the present state; drives that cannot be written are taken out.
    async fn note(&self) -> Result<(), SubjectError> {
        if self.maker.broken == Broken::ForgetsTheSecond && self.outs() == 2 {
            return Ok(());
        }
        loop {
            self.state.borrow_mut().record.sequence += 1;
            let record = self.record();
            let mut failed = false;
            for copy in self.copies(false) {
                if copy.note(&record).await.is_err() {
                    failed = true;
                    if !self.take_out(&copy) {
                        return Err(too_few("records cannot be written"));
                    }
                }
            }
            if !failed {
                return Ok(());
            }
        }
    }

    /// Records an intent.
    async fn intend(&self, intent: Intent) -> Result<(), DeviceError> {
        self.state.borrow_mut().record.intent = intent;
        self.note().await.map_err(|_| DeviceError::Status(Status::InternalError))
    }

    /// Executes a command on all `copies`; drives that fail are taken out if others do not fail.
    async fn run_on(&self, copies: &[Rc<Copy>], command: &Command) -> Done {
        let answers: Vec<_> = copies.iter().map(|copy| copy.drive.device.submit(command.clone())).collect();
        let (mut good, mut bad) = (None, None);
        let mut failed = Vec::new();
        for (copy, answer) in copies.iter().zip(answers) {
            let done = answer.await;
            match done.result {
                Ok(()) => good = Some(done),
                Err(_) => {
                    failed.push(copy.clone());
                    bad = Some(done);
                }
            }
        }
        match (good, bad) {
            (Some(good), None) => good,
            (Some(good), Some(bad)) => {
                let borne = failed.iter().all(|copy| self.take_out(copy));
                if borne && self.note().await.is_ok() { good } else { bad }
            }
            (None, bad) => bad.unwrap_or_else(|| Done::error(DeviceError::Gone)),
        }
    }

    async fn work(&self) {
        loop {
            let next = self.queue.borrow_mut().pop_front();
            let Some((command, completer)) = next else {
                self.gate.wait().await;
                continue;
            };
            let _lock = self.lock().await;
            self.carry_out(command, completer).await;
        }
    }

    async fn carry_out(&self, command: Command, completer: Completer) {
        let shift = LOGS as u64 * self.geometry.zone_size_blocks;
        let zones = |zones: Zones| match zones {
            Zones::One(zone) => vec![zone.0],
            Zones::All => (0..self.geometry.zones).collect(),
        };
        let done = match command {
            Command::Read { lba, data, .. } => self.read(Lba(lba.0 + shift), data).await,
            Command::Write { lba, data, fua, .. } => {
                let zone = self.geometry.locate(lba).0.0;
                return self.write(zone, Command::write(Lba(lba.0 + shift), data, fua), completer).await;
            }
            Command::Flush => self.run_on(&self.copies(true), &Command::Flush).await,
            Command::Report { first, count } => {
                let mut zones = vec![None; self.geometry.zones as usize];
                for copy in self.copies(false) {
                    for info in copy.report().await.unwrap_or_default() {
                        let own = info.zone.0.checked_sub(LOGS).filter(|zone| copy.holds(*zone));
                        if let Some(zone) = own.filter(|_| !is_worn(&info))
                            && let Some(found @ None) = zones.get_mut(zone as usize)
                        {
                            *found = Some(ZoneInfo { zone: ZoneIndex(zone), ..info });
                        }
                    }
                    if zones.iter().all(Option::is_some) {
                        break;
                    }
                }
                let wanted = zones.into_iter().skip(first.0 as usize).take(count as usize);
                Done { zones: wanted.flatten().collect(), ..Done::ok() }
            }
            Command::Reset { zones: which } => {
                let one = if let Zones::One(zone) = which { Some(zone.0) } else { None };
                self.change(&zones(which), Intent::Reset(one), |zones| Command::Reset { zones }).await
            }
            Command::Finish { zones: which } => {
                let zones = zones(which);
                let intent = Intent::Finish(zones[0]);
                match self.run_on(&self.copies(true), &Command::Flush).await {
                    done if done.result.is_err() => done,
                    _ => self.change(&zones, intent, |zones| Command::Finish { zones }).await,
                }
            }
            Command::Open { zones: which, .. } => {
                self.each(&zones(which), |zones| Command::Open { zones, zrwa: false }).await
            }
            Command::Close { zones: which } => {
                self.each(&zones(which), |zones| Command::Close { zones }).await
            }
            _ => Done::error(Status::InvalidOpcode.into()),
        };
        completer.complete(done);
    }

    /// The drives that hold a zone, in an order that rotates with each call.
    fn holders(&self, zone: u32) -> Vec<Rc<Copy>> {
        let mut copies = self.copies(true);
        copies.retain(|copy| copy.holds(zone));
        self.reads.set(self.reads.get() + 1);
        let first = self.reads.get() % copies.len().max(1);
        copies.rotate_left(first);
        copies
    }

    async fn read(&self, lba: Lba, data: Buf) -> Done {
        let zone = (lba.0 / self.geometry.zone_size_blocks) as u32 - LOGS;
        let mut failed = Vec::new();
        for copy in self.holders(zone) {
            let done = copy.run(Command::read(lba, Buf::zeroed(data.len()))).await;
            if done.result.is_ok() {
                for copy in &failed {
                    self.take_out(copy);
                }
                if !failed.is_empty() && self.note().await.is_err() {
                    return Done::error(Status::InternalError.into());
                }
                return done;
            }
            failed.push(copy);
        }
        Done::error(Status::UnrecoveredReadError.into())
    }

    async fn write(&self, zone: u32, command: Command, completer: Completer) {
        let mut copies = self.copies(true);
        copies.retain(|copy| copy.holds(zone));
        if self.maker.broken != Broken::AnswersEarly {
            return completer.complete(self.run_on(&copies, &command).await);
        }
        let first = self.record().members.len() - self.maker.parities;
        let later = copies.split_off(first.min(copies.len()));
        completer.complete(self.run_on(&copies, &command).await);
        if !later.is_empty() {
            self.run_on(&later, &command).await;
        }
    }

    /// Executes `command` for each of `zones` on all drives that hold the zone.
    async fn each(&self, zones: &[u32], command: impl Fn(Zones) -> Command) -> Done {
        let mut done = Done::ok();
        for zone in zones {
            let mut copies = self.copies(true);
            copies.retain(|copy| copy.holds(*zone));
            done = self.run_on(&copies, &command(Zones::One(ZoneIndex(zone + LOGS)))).await;
            if done.result.is_err() {
                break;
            }
        }
        done
    }

    /// As [`Copies::each`], with a recorded intent, for operations that must not remain half done.
    async fn change(&self, zones: &[u32], intent: Intent, command: impl Fn(Zones) -> Command) -> Done {
        if let Err(error) = self.intend(intent).await {
            return Done::error(error);
        }
        let done = self.each(zones, command).await;
        match self.intend(Intent::None).await {
            Err(error) if done.result.is_ok() => Done::error(error),
            _ => done,
        }
    }

    /// Brings all active members to the same state after an end.
    async fn agree(&self) -> Result<(), SubjectError> {
        while !self.agree_or_take_out().await? {}
        self.run_on(&self.copies(false), &Command::Flush).await.result.map_err(too_few)
    }

    /// As [`Copies::agree`]; `false` if the longest copies could not be read and were taken out.
    async fn agree_or_take_out(&self) -> Result<bool, SubjectError> {
        let mut reports = Vec::new();
        for copy in self.copies(false) {
            if copy.filled.borrow().is_some() {
                self.empty(&copy).await;
                continue;
            }
            match copy.report().await {
                Ok(report) => reports.push((copy, report)),
                Err(_) if self.take_out(&copy) => (),
                Err(error) => return Err(too_few(error)),
            }
        }
        // Zones that will not be active come first, as drives limit the number of active ones.
        for active in [false, true] {
            for zone in 0..self.geometry.zones {
                if !self.agree_on(zone, &reports, active).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Brings a zone to the same state on all drives, unless its future activity differs from `active`.
    async fn agree_on(
        &self,
        zone: u32,
        reports: &[(Rc<Copy>, Vec<ZoneInfo>)],
        active: bool,
    ) -> Result<bool, SubjectError> {
        let (at, capacity) = ((zone + LOGS) as usize, self.geometry.zone_capacity_blocks);
        let end = |info: &ZoneInfo| match info.state {
            ZoneState::Full => capacity,
            _ if is_worn(info) => 0,
            _ => info.wp_blocks,
        };
        let intent = self.record().intent;
        let is_any = |state| reports.iter().any(|(_, report)| report[at].state == state);
        let resets = matches!(intent, Intent::Reset(which) if which.is_none_or(|which| which == zone));
        let reset = resets && is_any(ZoneState::Empty);
        let finish = intent == Intent::Finish(zone) && is_any(ZoneState::Full);
        let most = reports.iter().map(|(_, report)| end(&report[at])).max().unwrap_or(0);
        if active == (reset || finish || most == capacity) {
            return Ok(true);
        }
        let sources: Vec<Rc<Copy>> =
            reports.iter().filter(|(_, r)| end(&r[at]) == most).map(|(copy, _)| copy.clone()).collect();
        let one = Zones::One(ZoneIndex(at as u32));
        for (copy, report) in reports {
            let info = &report[at];
            let command = if reset {
                Some(Command::Reset { zones: one })
            } else if finish {
                Some(Command::Finish { zones: one })
            } else {
                let is_open = most > end(info) || info.state.is_open();
                (most < capacity && is_open).then_some(Command::Close { zones: one })
            };
            let mut result = if is_worn(info) { Err(()) } else { Ok(()) };
            if result.is_ok() && !reset && !finish {
                let blocks = end(info)..most;
                result = match self.fill(&sources, copy, at as u32, blocks).await {
                    Err(Unfilled::NoSource) if sources.iter().all(|source| self.take_out(source)) => {
                        return Ok(false);
                    }
                    filled => filled.map_err(|_| ()),
                };
            }
            if let (Ok(()), Some(command)) = (result, command) {
                result = copy.run(command).await.result.map_err(|_| ());
            }
            if result.is_ok() || self.take_out(copy) {
                continue;
            }
            if !is_worn(info) {
                return Err(too_few("a zone cannot be brought to one state"));
            }
            // The drive is needed, so only this zone of it is left out.
            let all = || (0..self.geometry.zones).collect();
            copy.filled.borrow_mut().get_or_insert_with(all).remove(&zone);
        }
        Ok(true)
    }

    /// Resets all zones of a drive that is to be filled from the start.
    async fn empty(&self, copy: &Rc<Copy>) {
        for zone in LOGS..LOGS + self.geometry.zones {
            if copy.reset(zone).await.is_err() {
                self.take_out(copy);
                return;
            }
        }
    }

    /// Copies blocks of a zone to a drive from the first readable source.
    async fn fill(
        &self,
        sources: &[Rc<Copy>],
        copy: &Rc<Copy>,
        zone: u32,
        blocks: std::ops::Range<u64>,
    ) -> Result<(), Unfilled> {
        let most = self.geometry.max_transfer_blocks as u64;
        let mut at = blocks.start;
        while at < blocks.end {
            let count = most.min(blocks.end - at);
            let mut data = None;
            for source in sources {
                data = source.read(zone, at, count).await.ok();
                if data.is_some() {
                    break;
                }
            }
            let data = data.ok_or(Unfilled::NoSource)?;
            copy.write(zone, at, data).await.map_err(|_| Unfilled::NotWritten)?;
            at += count;
        }
        Ok(())
    }

    /// Fills incomplete drives zone by zone; commands are executed between two zones.
    async fn fill_all(&self) -> Result<u64, SubjectError> {
        let mut bytes = 0;
        for zone in 0..self.geometry.zones {
            let _lock = self.lock().await;
            for copy in self.copies(true).into_iter().filter(|copy| !copy.holds(zone)) {
                let sources = self.holders(zone);
                let at = zone + LOGS;
                let mut report = Vec::new();
                for source in &sources {
                    report = source.report().await.unwrap_or_default();
                    if !report.is_empty() {
                        break;
                    }
                }
                let info =
                    *report.get(at as usize).ok_or("the report of the zone to be filled is missing")?;
                let full = self.geometry.zone_capacity_blocks;
                let end = if info.state == ZoneState::Full { full } else { info.wp_blocks };
                let filled = match copy.reset(at).await {
                    Ok(()) => self.fill(&sources, &copy, at, 0..end).await.map_err(|_| ()),
                    Err(_) => Err(()),
                };
                // With the same open state as on the others.
                let state = match info.state {
                    ZoneState::ExplicitlyOpen => {
                        Some(Command::Open { zones: Zones::One(ZoneIndex(at)), zrwa: false })
                    }
                    ZoneState::Closed if end > 0 => Some(Command::Close { zones: Zones::One(ZoneIndex(at)) }),
                    _ => None,
                };
                let result = match (filled, state) {
                    (Ok(()), Some(state)) => copy.run(state).await.result.map_err(|_| ()),
                    (filled, _) => filled,
                };
                if result.is_err() {
                    self.take_out(&copy);
                    self.note().await?;
                    return Err("a drive cannot be filled".into());
                }
                if let Some(filled) = copy.filled.borrow_mut().as_mut() {
                    filled.insert(zone);
                }
                bytes += end * BLOCK as u64;
            }
        }
        let _lock = self.lock().await;
        let done = self.run_on(&self.copies(true), &Command::Flush).await;
        done.result.map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    async fn attach_drive(&self, member: usize, drive: Drive) -> Result<(), SubjectError> {
        let _lock = self.lock().await;
        let copy = self.blank(drive).await?;
        *self.names[member].borrow_mut() = copy.drive.name.clone();
        {
            let mut state = self.state.borrow_mut();
            state.record.members[member] = (copy.name, MemberState::Rebuilding);
            state.copies[member] = Some(copy);
        }
        self.note().await
    }

    /// Resets a drive and gives it a new name.
    async fn blank(&self, drive: Drive) -> Result<Rc<Copy>, SubjectError> {
        let record = self.record();
        // The name is unique: it is that of the next record.
        let copy = Copy::new(drive, record.assembly << 32 | record.sequence);
        let done = copy.run(Command::Reset { zones: Zones::All }).await;
        done.result.map_err(|error| error.to_string())?;
        *copy.filled.borrow_mut() = Some(BTreeSet::new());
        Ok(copy)
    }

    async fn rebuild_all(&self) -> Result<u64, SubjectError> {
        let bytes = self.fill_all().await?;
        let _lock = self.lock().await;
        let all: BTreeSet<u32> = (0..self.geometry.zones).collect();
        let mut filled = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            let State { record, copies, .. } = &mut *state;
            for ((_, state), copy) in record.members.iter_mut().zip(copies.iter()) {
                if let Some(copy) = copy.as_ref().filter(|copy| copy.filled.borrow().as_ref() == Some(&all)) {
                    *state = MemberState::Active;
                    filled.push(copy.clone());
                }
            }
        }
        self.note().await?;
        filled.iter().for_each(|copy| *copy.filled.borrow_mut() = None);
        Ok(bytes)
    }

    async fn replace_drive(&self, member: usize, drive: Drive) -> Result<(), SubjectError> {
        let copy = {
            let _lock = self.lock().await;
            self.state.borrow_mut().record.sequence += 1;
            self.blank(drive).await.map_err(|why| format!("the drive stays, but not copied to: {why}"))?
        };
        self.state.borrow_mut().replacement_drive = Some(copy.clone());
        let filled = self.fill_all().await;
        let _lock = self.lock().await;
        let replacement_drive = self.state.borrow_mut().replacement_drive.take();
        let is_member = self.record().members[member].1 == MemberState::Active;
        if filled.is_err() || replacement_drive.is_none() || !is_member {
            return Err("the drive stays, but not copied to the new one".into());
        }
        *copy.filled.borrow_mut() = None;
        let mut record = self.record();
        record.members[member].0 = copy.name;
        record.sequence += 1;
        // The drive is complete, and becomes the member with its own record.
        if copy.note(&record).await.is_err() {
            return Err("the drive stays, but not copied to the new one".into());
        }
        *self.names[member].borrow_mut() = copy.drive.name.clone();
        {
            let mut state = self.state.borrow_mut();
            state.record = record;
            state.copies[member] = Some(copy);
        }
        self.note().await
    }

    async fn fail_member(&self, member: usize) -> Result<(), SubjectError> {
        let _lock = self.lock().await;
        let copy = self.state.borrow().copies[member].clone();
        match copy {
            Some(copy) if !self.take_out(&copy) => Err("too few members would be left".into()),
            _ => self.note().await,
        }
    }
}

fn is_worn(info: &ZoneInfo) -> bool {
    matches!(info.state, ZoneState::ReadOnly | ZoneState::Offline)
}

fn too_few(why: impl std::fmt::Display) -> SubjectError {
    SubjectError::TooFew(format!("too few members can be used: {why}"))
}

async fn create(maker: CopiesMaker, uuid: [u8; 16], drives: Vec<Drive>) -> Result<Rc<Copies>, SubjectError> {
    let mut copies = Vec::new();
    for (index, drive) in drives.into_iter().enumerate() {
        let done = drive.device.submit(Command::Reset { zones: Zones::All }).await;
        done.result.map_err(|error| error.to_string())?;
        copies.push(Some(Copy::new(drive, index as u64)));
    }
    let members = (0..copies.len() as u64).map(|name| (name, MemberState::Active)).collect();
    let record = Record { uuid, assembly: 1, sequence: 0, members, intent: Intent::None };
    let made = Copies::new(maker, record, copies);
    made.note().await?;
    Ok(made)
}

async fn assemble(maker: CopiesMaker, drives: Vec<Drive>, force: bool) -> Result<Rc<Copies>, SubjectError> {
    let mut found = Vec::new();
    for drive in &drives {
        found.extend(Copy::last_record(drive).await);
    }
    let newest = found.iter().map(|(record, _)| record).max_by_key(|r| (r.assembly, r.sequence));
    let mut record = newest.cloned().ok_or("no member of an array is there")?;
    (record.assembly, record.sequence) = (record.assembly + 1, 1);
    let before = record.clone();
    let (mut copies, mut there) = (Vec::new(), 0);
    for (name, state) in &mut record.members {
        let copy = found.iter().map(|(_, copy)| copy).find(|copy| copy.name == *name);
        there += usize::from(copy.is_some());
        let copy = copy.filter(|_| *state != MemberState::Out).cloned();
        if copy.is_none() {
            *state = MemberState::Out;
        }
        copies.push(copy);
    }
    let count = |state| record.members.iter().filter(|(_, other)| *other == state).count();
    if maker.broken == Broken::TrustsUnfilled && count(MemberState::Out) > 0 {
        record.members.iter_mut().filter(|(_, state)| *state == MemberState::Rebuilding).for_each(|member| {
            member.1 = MemberState::Active;
        });
    }
    let whole = record.members.iter().filter(|(_, state)| *state == MemberState::Active).count();
    if whole == 0 || !force && there < record.members.len() - maker.parities {
        return Err(SubjectError::TooFew(format!("{there} members can be used, {whole} are whole")));
    }
    for ((_, state), copy) in record.members.iter().zip(&copies) {
        if let (MemberState::Rebuilding, Some(copy)) = (state, copy) {
            *copy.filled.borrow_mut() = Some(BTreeSet::new());
        }
    }
    let copies = Copies::new(maker, record, copies);
    // First the state from before, so that a refusal makes no member stale. A drive with the second record proves that
    // all drives have the first one, so that no other assembly gets the same number.
    for copy in copies.copies(false) {
        if copy.note(&before).await.is_err() && !copies.take_out(&copy) {
            return Err(too_few("records cannot be written"));
        }
    }
    copies.note().await?;
    copies.agree().await?;
    copies.intend(Intent::None).await.map_err(too_few)?;
    Ok(copies)
}

impl CopiesMaker {
    fn start(
        &self,
        runtime: &Runtime,
        making: impl Future<Output = Result<Rc<Copies>, SubjectError>> + 'static,
    ) -> Work<Rc<dyn Subject>> {
        let runtime = runtime.clone();
        Box::pin(async move {
            let copies = making.await?;
            let worker = copies.clone();
            runtime.spawn(async move { worker.work().await });
            Ok(Rc::new(Handle(copies)) as Rc<dyn Subject>)
        })
    }
}

impl Maker for CopiesMaker {
    fn may_lose_completed(&self, _: Policy, members: bool) -> bool {
        members
    }

    fn parities(&self) -> Option<usize> {
        Some(self.parities)
    }

    /// Records identify assemblies by number only, and the longest copy of a zone is used.
    fn notices_others(&self) -> bool {
        false
    }

    fn create(
        &self,
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        _: bool,
    ) -> Work<Rc<dyn Subject>> {
        self.start(runtime, create(*self, options.uuid, drives))
    }

    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, how: AssembleOptions) -> Work<Rc<dyn Subject>> {
        self.start(runtime, assemble(*self, drives, how.force))
    }
}

/// [`Copies`] as seen by the simulator.
struct Handle(Rc<Copies>);

impl ZonedDevice for Handle {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let (completer, completion) = self.0.slots.pair();
        self.0.queue.borrow_mut().push_back((command, completer));
        self.0.gate.open();
        completion
    }
}

impl Subject for Handle {
    fn attach(&self, member: usize, drive: Drive) -> Work<()> {
        let copies = self.0.clone();
        Box::pin(async move { copies.attach_drive(member, drive).await })
    }

    fn replace(&self, member: usize, drive: Drive) -> Work<()> {
        let copies = self.0.clone();
        Box::pin(async move { copies.replace_drive(member, drive).await })
    }

    fn rebuild(&self) -> Work<u64> {
        let copies = self.0.clone();
        Box::pin(async move { copies.rebuild_all().await })
    }

    fn fail(&self, member: usize) -> Work<()> {
        let copies = self.0.clone();
        Box::pin(async move { copies.fail_member(member).await })
    }

    fn members(&self) -> Vec<(MemberState, String)> {
        let record = self.0.record();
        let names = self.0.names.iter().map(|name| name.borrow().clone());
        record.members.iter().map(|(_, state)| *state).zip(names).collect()
    }

    fn assembly(&self) -> u64 {
        self.0.record().assembly
    }
}
