//! Deferred-write mode: an array that is assembled without a member, and writes nothing before the first change.
//!
//! Assembling an array without a member makes that member stale for good: it lacks all writes from then on. So an array
//! that lacks at most as many members as there are parities can defer its writes: it is assembled on overlays
//! ([`crate::adapt::overlay`]), can be read, and reports its zones, while the drives stay unchanged. A member that
//! returns meanwhile simply joins. The first command that changes something waits until the array has been assembled
//! again, on the drives themselves; the return of the last missing member has the same effect.
//!
//! *Zones end where they were reported to end.* With a member that has returned, recovery may find a larger tail of a
//! zone than without it: the end of a write that was not acknowledged. The host may have read the write pointer by
//! then, and continue to write there. So members that have returned count as lacking their parts of such a zone, which
//! ends without them where it did before. With two parities another member may be lost before the array starts to
//! write, and recovery without that one may find another tail: where possible, the zone ends at the reported end all
//! the same.

use crate::{
    adapt::overlay::Overlay,
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, DeviceError, Done, Geometry, Status, Zones},
    format::Uuid,
    raid::{
        ArrayOptions, Drive, PowerMark, Tails,
        error::{ArrayError, BadDrive, DriveFault, Note},
        geometry::Layout,
        maintain::{job, rebuild},
        parts::Raid,
        power,
        recover::{
            assemble::{self, ArrayLook, KnownEnds, look},
            last_checksums,
        },
        run,
        status::{ArrayStatus, MemberState},
        zone::{cells, dispatch, drain::changes, note, reread},
    },
    runtime::{Gate, Runtime},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// The running array and its properties; the running array is exchanged once if it was in deferred-write mode.
pub struct ArrayHandle {
    pub geometry: Geometry,
    pub layout: Layout,
    raid: RefCell<Rc<Raid>>,
    /// `None` if the array writes.
    held: RefCell<Option<DeferredState>>,
    /// Opened when an attempt to start writing has ended, or the closing of the array.
    ended: Gate,
    closing: Cell<Closing>,
}

/// How far [`crate::array::Array::close`] is.
#[derive(Clone, Copy)]
enum Closing {
    Open,
    Begun,
    Ended(Result<(), DeviceError>),
}

/// State of an array in deferred-write mode, or one that is read-only or closed.
struct DeferredState {
    /// The input of the assembly that starts writing; `None` if there will be none.
    source: Option<AssemblyInputs>,
    /// [`crate::array::Array::assembly`] as stored on the drives.
    assembly: u64,
    /// Members (bits) that are still missing.
    awaited: u32,
    /// Whether the assembly that starts writing is under way, and the commands that wait for it.
    begins: bool,
    waiting: Vec<(Command, Completer)>,
    /// Why the array could not start writing.
    problem: Option<ArrayError>,
    /// Called when the array has started writing, before waiting commands are executed.
    hook: Option<Box<dyn FnOnce()>>,
    /// The array is closed: it cannot be read either.
    closed: bool,
}

#[derive(Clone)]
struct AssemblyInputs {
    runtime: Runtime,
    drives: Vec<Drive>,
    /// Members that have returned since, with their roles.
    returned: Vec<(usize, Drive)>,
    tails: Option<Tails>,
    /// Ends of all zones as reported to the host.
    ends: Vec<Option<u64>>,
    /// Notes of these ends, by zone.
    notes: BTreeMap<u32, Buf>,
    /// Power epochs of the drives at that time.
    power: Vec<PowerMark>,
    behaviour: ArrayOptions,
}

impl AssemblyInputs {
    async fn look(&self) -> Result<ArrayLook, ArrayError> {
        self.look_at(self.drives.clone()).await
    }

    async fn look_at(&self, drives: Vec<Drive>) -> Result<ArrayLook, ArrayError> {
        let known = KnownEnds {
            tails: self.tails.as_ref(),
            ends: &self.ends,
            notes: Some(&self.notes),
            power: &self.power,
        };
        look(&self.runtime, drives, known, self.behaviour).await
    }

    /// Inspects the drives including the members that have returned.
    async fn look_again(&self) -> Result<ArrayLook, ArrayError> {
        let returned = self.returned.iter().map(|(_, drive)| drive);
        self.look_at(self.drives.iter().chain(returned).cloned().collect()).await
    }

    /// Inspects the drives for the assembly that writes. Zones end as they did without the members that have returned,
    /// unless other members have gone meanwhile: then the parts of those that have returned are needed.
    async fn look_to_begin(&self) -> Result<ArrayLook, ArrayError> {
        let without = self.look().await;
        if self.returned.is_empty() {
            return without;
        }
        let mut found = self.look_again().await?;
        if let Ok(without) = without
            && found.has_all_of(&without)
        {
            found.end_as(without);
        }
        Ok(found)
    }

    /// Assembles the array on the drives themselves.
    async fn assemble(&self) -> Result<Rc<Raid>, ArrayError> {
        let found = self.look_to_begin().await?;
        found.claim_and_carry_out(async || self.look_to_begin().await).await
    }
}

impl ArrayHandle {
    fn with(raid: Rc<Raid>, held: Option<DeferredState>) -> Rc<ArrayHandle> {
        Rc::new(ArrayHandle {
            geometry: raid.geometry.clone(),
            layout: raid.layout,
            raid: raid.into(),
            held: held.into(),
            ended: Gate::default(),
            closing: Cell::new(Closing::Open),
        })
    }

    /// An array that writes from the start.
    pub fn new(raid: Rc<Raid>) -> Rc<ArrayHandle> {
        ArrayHandle::with(raid, None)
    }

    /// The array that runs now.
    pub fn raid(&self) -> Rc<Raid> {
        self.raid.borrow().clone()
    }

    /// See [`crate::array::Array::assemble_deferred`].
    pub async fn assemble_deferred(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: ArrayOptions,
    ) -> Result<Rc<ArrayHandle>, ArrayError> {
        let (runtime, tails) = (runtime.clone(), tails.cloned());
        let mut source = AssemblyInputs {
            runtime,
            drives,
            returned: Vec::new(),
            tails,
            ends: Vec::new(),
            notes: BTreeMap::new(),
            power: Vec::new(),
            behaviour,
        };
        let found = source.look().await?;
        let awaited = found.awaited();
        if awaited == 0 {
            let raid = found.claim_and_carry_out(async || source.look().await).await?;
            rebuild::clear_leftovers(&raid).await;
            return Ok(ArrayHandle::new(raid));
        }
        let assembly = found.assembly();
        // Drives that are not members are released.
        source.drives.retain(|drive| found.uses(drive));
        let AssemblyInputs { runtime, drives, tails, .. } = &source;
        let known = KnownEnds { tails: tails.as_ref(), ..KnownEnds::default() };
        let raid =
            look(runtime, overlaid(runtime, drives).await, known, behaviour).await?.carry_out().await?;
        (source.ends, source.notes) = (assemble::ends(&raid), assemble::notes(&raid));
        source.power = power::power_marks(&raid);
        Ok(ArrayHandle::with(raid, Some(DeferredState::new(Some(source), assembly, awaited))))
    }

    /// See [`crate::array::Array::assemble_read_only`].
    pub async fn assemble_read_only(
        runtime: &Runtime,
        drives: Vec<Drive>,
        tails: Option<&Tails>,
        behaviour: ArrayOptions,
    ) -> Result<Rc<ArrayHandle>, ArrayError> {
        let known = KnownEnds { tails, ..KnownEnds::default() };
        let found = look(runtime, overlaid(runtime, &drives).await, known, behaviour).await?;
        let assembly = found.assembly();
        Ok(ArrayHandle::with(found.carry_out().await?, Some(DeferredState::new(None, assembly, 0))))
    }

    /// See [`crate::array::Array::is_deferred`].
    pub fn is_deferred(&self) -> bool {
        self.held.borrow().as_ref().is_some_and(|held| held.source.is_some())
    }

    /// See [`crate::array::Array::is_read_only`].
    pub fn is_read_only(&self) -> bool {
        self.held.borrow().as_ref().is_some_and(|held| held.source.is_none())
    }

    /// See [`crate::array::Array::on_begin`].
    pub fn on_begin(&self, hook: Box<dyn FnOnce()>) {
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.hook = Some(hook);
        }
    }

    /// See [`crate::array::Array::assembly`].
    pub fn assembly(&self) -> u64 {
        let held = self.held.borrow().as_ref().map(|held| held.assembly);
        held.unwrap_or_else(|| self.raid().membership.superblock().assembly)
    }

    /// See [`crate::array::Array::begin`].
    pub async fn begin(self: &Rc<Self>) -> Result<(), ArrayError> {
        self.start_to_begin()?;
        loop {
            match &*self.held.borrow() {
                None => return Ok(()),
                Some(held) if !held.begins => {
                    return Err(held.problem.clone().unwrap_or(ArrayError::NotBegun));
                }
                Some(_) => (),
            }
            self.ended.wait().await;
        }
    }

    /// See [`crate::array::Array::complete`].
    pub async fn complete(self: &Rc<Self>, drive: Drive) -> Result<(), ArrayError> {
        let bad = |fault| Err(BadDrive::new(&drive.name, fault).into());
        loop {
            let mut source = match &*self.held.borrow() {
                Some(DeferredState { source: Some(source), begins: false, .. }) => source.clone(),
                _ => return bad(DriveFault::IsLate),
            };
            let known = source.returned.len();
            source.returned.push((0, drive.clone()));
            let found = source.look_again().await?;
            match source.returned.last_mut().zip(found.role_of(&drive)) {
                Some(((role, _), of_drive)) => *role = of_drive,
                None => return bad(DriveFault::NotMissing),
            }
            let awaited = found.awaited();
            match &mut *self.held.borrow_mut() {
                // Another member has returned meanwhile.
                Some(DeferredState { source: Some(now), begins: false, .. })
                    if now.returned.len() != known =>
                {
                    continue;
                }
                // Without a source the array has been closed meanwhile.
                Some(held) if !held.begins && held.source.is_some() => {
                    (held.source, held.awaited) = (Some(source), awaited)
                }
                _ => return bad(DriveFault::IsLate),
            }
            return if awaited == 0 { self.begin().await } else { Ok(()) };
        }
    }

    fn start_to_begin(self: &Rc<Self>) -> Result<(), ArrayError> {
        if let Some(held) = &mut *self.held.borrow_mut() {
            let Some(source) = held.source.clone() else {
                return Err(ArrayError::ReadOnly);
            };
            if !std::mem::replace(&mut held.begins, true) {
                let array = self.clone();
                self.raid().runtime.spawn(async move { array.try_to_begin(source).await });
            }
        }
        Ok(())
    }

    async fn try_to_begin(self: Rc<Self>, source: AssemblyInputs) {
        let begun = match source.assemble().await {
            Ok(raid) => {
                let before = self.switch_to(&raid);
                rebuild::clear_leftovers(&raid).await;
                Ok((raid, before))
            }
            Err(error) => Err(error),
        };
        let Some(mut held) = self.held.take() else { return };
        let waiting = std::mem::take(&mut held.waiting);
        match begun {
            Ok((raid, before)) => {
                if let Some(hook) = held.hook {
                    hook();
                }
                // Zones that do not end at the reported end.
                let ends = assemble::ends(&raid).into_iter().zip(&source.ends).enumerate();
                let mut moved: BTreeSet<u32> =
                    ends.filter(|(_, (end, before))| end != *before).map(|(zone, _)| zone as u32).collect();
                for (command, completer) in waiting {
                    match &command {
                        Command::Reset { zones: Zones::One(zone) } => _ = moved.remove(&zone.0),
                        Command::Reset { zones: Zones::All } => moved.clear(),
                        _ => {}
                    }
                    // The append was meant for the reported end: it fails like a write that does not start at the write
                    // pointer.
                    let completion = match &command {
                        Command::Append { zone, .. } if moved.contains(&zone.0) => {
                            Completion::failed(Status::ZoneInvalidWrite)
                        }
                        _ => dispatch::submit_command(&raid, command),
                    };
                    source.runtime.spawn(async move { completer.complete(completion.await) });
                }
                before.membership.tell();
                raid.membership.tell();
                source.runtime.spawn(async move { run::end(&before).await });
            }
            Err(error) => {
                (held.begins, held.problem) = (false, Some(error));
                *self.held.borrow_mut() = Some(held);
                for (_, completer) in waiting {
                    completer.complete(Done::error(Status::InternalError.into()));
                }
            }
        }
        self.ended.open();
    }

    /// Serves reads from `raid`, an assembly on the drives themselves, from now on; returns the array before.
    fn switch_to(&self, raid: &Rc<Raid>) -> Rc<Raid> {
        let before = self.raid();
        raid.pool.swap(&before.pool);
        raid.tell_may_lose(self.geometry.volatile_cache);
        raid.events.follow(&before.events);
        self.raid.replace(raid.clone())
    }

    /// Carries out a read of an array in deferred-write mode: again if the array has started writing meanwhile, since
    /// what the first read found may have been reset or rebuilt.
    fn read_deferred(self: &Rc<Self>, lba: Lba, data: Buf) -> Completion {
        let (raid, blocks) = (self.raid(), data.blocks() as usize);
        let mut first = dispatch::submit_command(&raid, Command::read(lba, data));
        if let Some(done) = first.take() {
            return Completion::ready(done);
        }
        let (completer, completion) = raid.slots.pair();
        let (array, runtime) = (self.clone(), raid.runtime.clone());
        runtime.spawn(async move {
            let mut done = first.await;
            let now = array.raid();
            if !Rc::ptr_eq(&now, &raid) {
                let returned = done.data.blocks() as usize == blocks;
                let data = if returned { done.data } else { Buf::zeroed(blocks * BLOCK) };
                done = dispatch::submit_command(&now, Command::read(lba, data)).await;
            }
            completer.complete(done);
        });
        completion
    }

    /// Why an array in deferred-write mode could not start writing.
    pub fn problem(&self) -> Option<ArrayError> {
        self.held.borrow().as_ref()?.problem.clone()
    }

    /// Adds to `status` the members that are missing, and those that have returned meanwhile.
    pub fn say_who_is_awaited(&self, status: &mut ArrayStatus) {
        let held = self.held.borrow();
        let Some(DeferredState { source: Some(source), awaited, .. }) = &*held else { return };
        status.wait_for(*awaited);
        // Also when the last one has returned, until the array has started writing.
        status.provisional = true;
        status.most_missing = status.most_missing.saturating_sub(source.returned.len());
        for (role, drive) in &source.returned {
            let member = &mut status.members[*role];
            (member.state, member.drive) = (MemberState::Active, drive.name.clone());
            member.note = Note::IsBack;
        }
    }

    /// Queues a command until the array has started writing.
    fn hold_back(self: &Rc<Self>, command: Command) -> Completion {
        if self.start_to_begin().is_err() {
            return Completion::failed(Status::NamespaceIsWriteProtected);
        }
        let (completer, completion) = self.raid().slots.pair();
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.waiting.push((command, completer));
        }
        completion
    }

    /// Starts a command for the array.
    pub fn submit(self: &Rc<Self>, command: Command) -> Completion {
        let state = self.held.borrow();
        match &*state {
            Some(DeferredState { closed: true, .. }) => Completion::failed(DeviceError::Gone),
            Some(held) if changes(&command) || held.overtakes(&command) => {
                drop(state);
                self.hold_back(command)
            }
            Some(DeferredState { source: Some(_), .. }) => match command {
                Command::Read { lba, data, .. } => self.read_deferred(lba, data),
                other => dispatch::submit_command(&self.raid.borrow(), other),
            },
            _ => dispatch::submit_command(&self.raid.borrow(), command),
        }
    }

    /// The running array, if it may be written now.
    fn written(&self) -> Option<Rc<Raid>> {
        self.held.borrow().is_none().then(|| self.raid())
    }

    /// See [`crate::device::ZonedDevice::note_room`].
    pub fn note_room(&self, lba: Lba, blocks: u64) -> usize {
        self.written().map_or(0, |raid| note::room(&raid, lba, blocks))
    }

    /// See [`crate::device::ZonedDevice::write_with_note`].
    pub fn write_with_note(&self, lba: Lba, data: Buf, note: Buf) -> Completion {
        match self.written() {
            Some(raid) => dispatch::write_with_note(&raid, lba, data, note),
            None => Completion::failed(Status::InvalidField),
        }
    }

    /// See [`crate::device::ZonedDevice::note`].
    pub fn note(&self, zone: ZoneIndex) -> Option<Buf> {
        note::note(&self.raid.borrow(), zone)
    }

    /// See [`crate::device::ZonedDevice::cells`].
    pub fn cells(&self) -> u32 {
        cells::count(&self.raid.borrow())
    }

    /// See [`crate::device::ZonedDevice::write_cell`].
    pub fn write_cell(&self, zone: ZoneIndex, cell: u32, data: Buf) -> Completion {
        match self.written() {
            Some(raid) => cells::write(&raid, zone, cell, data),
            None => Completion::failed(Status::InvalidField),
        }
    }

    /// See [`crate::device::ZonedDevice::read_cell`].
    pub fn read_cell(&self, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
        cells::read(&self.raid.borrow(), zone, cell, copy)
    }

    /// See [`crate::device::ZonedDevice::reread`].
    pub fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        match &*self.held.borrow() {
            Some(DeferredState { closed: true, .. }) => None,
            _ => reread::reread(&self.raid.borrow(), lba, attempt),
        }
    }

    /// See [`crate::array::Array::close`].
    pub async fn close(self: &Rc<Self>) -> Result<(), ArrayError> {
        job::given_up_ended(&self.raid()).await;
        loop {
            let ended = self.ended.wait();
            match self.closing.get() {
                Closing::Open => break,
                Closing::Begun => ended.await,
                Closing::Ended(result) => return result.map_err(ArrayError::NotSafe),
            }
        }
        let raid = self.raid();
        // No job begins from now on: this one does not end.
        if self.held.borrow().as_ref().is_some_and(|held| held.begins) || !raid.background.begin() {
            return Err(ArrayError::Busy);
        }
        self.closing.set(Closing::Begun);
        let has_begun = self.held.borrow().is_none();
        // No command is accepted from now on.
        let closed = DeferredState { closed: true, ..DeferredState::new(None, self.assembly(), 0) };
        *self.held.borrow_mut() = Some(closed);
        let (array, runtime) = (self.clone(), raid.runtime.clone());
        let result = runtime.run_whole(async move { array.close_now(&raid, has_begun).await }).await;
        result.map_err(ArrayError::NotSafe)
    }

    /// Ends the tasks of the array, after it has come to rest if it `has_begun` to write.
    async fn close_now(&self, raid: &Rc<Raid>, has_begun: bool) -> Result<(), DeviceError> {
        let (mut result, mut _pauses) = (Ok(()), Vec::new());
        if has_begun {
            (result, _pauses) = run::come_to_rest(raid).await;
            if result.is_ok() && raid.membership.superblock().runner != Uuid::default() {
                raid.membership.change(|superblock| superblock.runner = Uuid::default());
                raid.membership.settle().await;
            }
            last_checksums::remember(raid).await;
        }
        run::end(raid).await;
        self.closing.set(Closing::Ended(result));
        self.ended.open();
        result
    }
}

impl DeferredState {
    /// Whether a command that changes nothing would overtake one that waits, and which it may depend on.
    fn overtakes(&self, command: &Command) -> bool {
        matches!(command, Command::Close { .. }) && !self.waiting.is_empty()
    }

    fn new(source: Option<AssemblyInputs>, assembly: u64, awaited: u32) -> DeferredState {
        DeferredState {
            source,
            assembly,
            awaited,
            begins: false,
            waiting: Vec::new(),
            problem: None,
            hook: None,
            closed: false,
        }
    }
}

async fn overlaid(runtime: &Runtime, drives: &[Drive]) -> Vec<Drive> {
    let mut overlaid = Vec::new();
    for Drive { name, device } in drives {
        let overlay = Overlay::over(runtime, device.clone()).await;
        overlaid.push(Drive { name: name.clone(), device: Rc::new(overlay) });
    }
    overlaid
}
