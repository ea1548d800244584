//! The queues of a block device: requests come out of them, go through the zoned device, and their
//! results go back.
//!
//! Every request slot has a task that lives as long as the device: nothing is spawned or allocated
//! per request. The data is copied once each way, between the kernel's pages and a buffer of ours.
//! That is done by plain `pread` and `pwrite`: the driver copies at once, without waiting for
//! anything, while io_uring would hand either to a worker thread.
#![allow(unsafe_code)]

use super::{
    abi::{self, Info, Operation, Request, SECTORS},
    replay::{self, Replay},
};
use crate::{
    map::SharedMap,
    reactor::Reactor,
    ring::{Outcome, Ring, Target, TargetId},
    tails::{Extent, TailFile},
};
use anyhow::{Context, Result};
use engine::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completion, DeviceError, Done, Status, ZonedDevice, Zones},
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState},
};
use io_uring::{opcode, types::Fd};
use rustix::io::{pread, pwrite};
use std::{
    cell::{Cell, RefCell},
    fs::File,
    future::poll_fn,
    ops::Range,
    os::fd::AsRawFd,
    rc::Rc,
    task::{Poll, Waker},
};

/// All queues of a block device.
pub(super) struct Queues {
    ring: Ring,
    target: RefCell<Option<TargetId>>,
    /// `/dev/ublkcN`.
    channel: File,
    /// Per queue, the descriptors of its requests.
    descriptors: Vec<SharedMap>,
    depth: u16,
    slots: Vec<Slot>,
    /// Slots with a task.
    serving: Cell<usize>,
    /// Opened when the last slot has lost its task, or one has lost it to a failure.
    idle: Gate,
    /// Why the kernel takes no answer or fetch, if it has not stopped the device.
    failure: Cell<Option<i32>>,
    device: Rc<dyn ZonedDevice>,
    tails: Rc<TailFile>,
    replay: RefCell<Replay>,
    pool: RefCell<BufPool>,
    /// Opened when appends need not wait any more for one that comes again.
    replayed: Gate,
    /// Slots of appends whose results are on their way to the kernel.
    answered: RefCell<Vec<usize>>,
    more_answered: Gate,
}

/// A place for one request.
#[derive(Default)]
struct Slot {
    /// What the last fetch came to.
    fetched: Cell<Option<i32>>,
    waker: RefCell<Option<Waker>>,
}

/// Which request: its queue and its tag in there.
type Place = (u16, u16);

/// What the kernel is told: bytes or a negative errno, and the sector of an append.
type Answer = (i32, u64);

impl Target for Queues {
    fn complete(&self, token: u32, outcome: Outcome) {
        // The driver ends a fetch with ENODEV when the device is stopped.
        if outcome.result < 0 && outcome.result != -libc::ENODEV {
            self.failure.set(Some(-outcome.result));
            self.idle.open();
        }
        let slot = &self.slots[token as usize];
        slot.fetched.set(Some(outcome.result));
        if let Some(waker) = &*slot.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Queues {
    /// Maps the queues of the device behind `channel` and serves them from now on.
    pub(super) fn serve(
        reactor: &Reactor,
        channel: File,
        info: &Info,
        device: Rc<dyn ZonedDevice>,
        tails: Rc<TailFile>,
        replay: Replay,
    ) -> Result<Rc<Queues>> {
        let page = rustix::param::page_size();
        let distance = (abi::MAX_DEPTH * abi::REQUEST_WORDS * 8).next_multiple_of(page);
        let words = (info.depth as usize * abi::REQUEST_WORDS * 8).next_multiple_of(page) / 8;
        let map = |queue| SharedMap::read_only(&channel, queue as u64 * distance as u64, words);
        let descriptors = (0..info.queues).map(map).collect::<Result<Vec<_>, _>>();
        let slots = info.queues as usize * info.depth as usize;
        let ring = reactor.ring()?;
        let queues = Rc::new(Queues {
            ring: ring.clone(),
            target: RefCell::default(),
            descriptors: descriptors.context("the queues of the block device cannot be mapped")?,
            channel,
            depth: info.depth,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            serving: Cell::new(slots),
            idle: Gate::default(),
            failure: Cell::new(None),
            device,
            tails,
            replay: RefCell::new(replay),
            pool: RefCell::new(BufPool::fed_by(reactor.buffers())),
            replayed: Gate::default(),
            answered: RefCell::default(),
            more_answered: Gate::default(),
        });
        *queues.target.borrow_mut() = Some(ring.add(queues.clone()));
        for slot in 0..slots {
            reactor.runtime().spawn(queues.clone().serve_slot(slot));
        }
        reactor.runtime().spawn(queues.clone().acknowledge_appends());
        Ok(queues)
    }

    /// Whether the kernel has taken all fetches so far.
    pub(super) fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(errno) => Err(std::io::Error::from_raw_os_error(errno))
                .context("the kernel does not let this process serve the block device"),
            None => Ok(()),
        }
    }

    /// Waits until the kernel has taken every slot back, or something has failed.
    pub(super) async fn drained(&self) {
        while self.serving.get() > 0 && self.failure.get().is_none() {
            self.idle.wait().await;
        }
    }

    /// Leaves the ring, which keeps what is still in flight.
    pub(super) fn detach(&self) {
        let target = self.target.take();
        if let Some(target) = target {
            self.ring.remove(target);
        }
    }

    async fn serve_slot(self: Rc<Self>, slot: usize) {
        let place = ((slot / self.depth as usize) as u16, (slot % self.depth as usize) as u16);
        let mut fetched = self.exchange(slot, place, abi::FETCH, (0, 0)).await;
        while fetched == 0 {
            let request = self.request(place);
            let answer = match self.perform(place, &request).await {
                Ok(answer) => answer,
                Err(error) => (-abi::errno(error), 0),
            };
            fetched = self.exchange(slot, place, abi::COMMIT_AND_FETCH, answer).await;
        }
        self.serving.set(self.serving.get() - 1);
        if self.serving.get() == 0 {
            self.idle.open();
            self.more_answered.open();
        }
    }

    /// Hands an answer in, if there is one, and waits for the next request.
    async fn exchange(&self, slot: usize, place: Place, command: u32, answer: Answer) -> i32 {
        let command = opcode::UringCmd80::new(Fd(self.channel.as_raw_fd()), command)
            .cmd(abi::io_command(place, answer.0, answer.1))
            .build();
        match &*self.target.borrow() {
            // SAFETY: the command points to nothing.
            Some(target) => unsafe { self.ring.push(target, slot as u32, command) },
            None => return -libc::ENODEV,
        }
        let slot = &self.slots[slot];
        poll_fn(|context| match slot.fetched.take() {
            Some(fetched) => Poll::Ready(fetched),
            None => {
                let mut waker = slot.waker.borrow_mut();
                match &mut *waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        })
        .await
    }

    fn request(&self, (queue, tag): Place) -> Request {
        let descriptors = &self.descriptors[queue as usize];
        let word = tag as usize * abi::REQUEST_WORDS;
        Request::from_words(descriptors.load(word), descriptors.load(word + 1))
    }

    /// Carries out a request. Commands are submitted before anything is waited for, so that they
    /// reach the device in the order in which the kernel handed them over.
    async fn perform(&self, place: Place, request: &Request) -> Result<Answer, DeviceError> {
        let Some(operation) = request.operation else { return Err(Status::InvalidOpcode.into()) };
        let geometry = self.device.geometry();
        let lba = Lba(request.sector / SECTORS);
        let (zone, at) = geometry.locate(lba);
        let command = match operation {
            Operation::Read => return self.read(place, request, lba).await,
            Operation::Write => {
                let data = self.data_of(place, request)?;
                let end = at + data.blocks();
                let tail = self.write(lba, data, request.fua).await?;
                self.tails.complete(zone, tail.max(end));
                return Ok((request.bytes() as i32, 0));
            }
            Operation::Append => {
                let data = self.data_of(place, request)?;
                let blocks = data.blocks();
                let slot = self.slot(place);
                // It has another request now.
                self.answered.borrow_mut().retain(|answered| *answered != slot);
                let appended = self.append(slot, zone, data, request.fua).await;
                if appended.is_err() {
                    self.tails.end_append(slot);
                }
                let (lba, tail) = appended?;
                let (_, at) = geometry.locate(lba);
                self.tails.complete(zone, tail.max(at + blocks));
                self.answered.borrow_mut().push(slot);
                self.more_answered.open();
                return Ok((0, lba.0 * SECTORS));
            }
            Operation::Reset => return self.reset(zone.0..zone.0 + 1, Zones::One(zone)).await,
            Operation::ResetAll => return self.reset(0..geometry.zones, Zones::All).await,
            Operation::Report => return self.report(place, zone, request.count).await,
            Operation::Close => return self.close(zone).await,
            Operation::Flush => Command::Flush,
            Operation::Open => Command::Open { zones: Zones::One(zone), zrwa: false },
            Operation::Finish => {
                self.device.submit(Command::Finish { zones: Zones::One(zone) }).await.result?;
                self.forget_replay(zone);
                return Ok((0, 0));
            }
        };
        self.device.submit(command).await.result?;
        Ok((0, 0))
    }

    async fn read(&self, place: Place, request: &Request, lba: Lba) -> Result<Answer, DeviceError> {
        let data = self.pool.borrow_mut().take(request.blocks()).freeze();
        let done = self.device.submit(Command::read(lba, data)).await;
        done.result?;
        self.give_data(place, &done.data)?;
        self.pool.borrow_mut().give(done.data);
        Ok((request.bytes() as i32, 0))
    }

    /// Writes, and says what [`Done::tail`] says.
    async fn write(&self, lba: Lba, data: Buf, fua: bool) -> Result<u64, DeviceError> {
        let (zone, at) = self.device.geometry().locate(lba);
        let there = self.replay.borrow_mut().written_already(zone, at, data.blocks());
        self.replayed.open();
        let (lba, data) = match there {
            0 => (lba, data),
            // The process before this one has written so much of it.
            there => {
                if !replay::holds(&*self.device, lba, &data.slice_blocks(0..there)).await? {
                    return Err(Status::ZoneInvalidWrite.into());
                }
                if there == data.blocks() {
                    return Ok(0);
                }
                (Lba(lba.0 + there), data.slice_blocks(there..data.blocks()))
            }
        };
        let done = self.device.submit(Command::write(lba, data, fua)).await;
        done.result?;
        self.pool.borrow_mut().give(done.data);
        Ok(done.tail)
    }

    /// Appends, and says where the data is, and what [`Done::tail`] says.
    async fn append(
        &self,
        slot: usize,
        zone: ZoneIndex,
        data: Buf,
        fua: bool,
    ) -> Result<(Lba, u64), DeviceError> {
        if self.replay.borrow().has_appends(zone) {
            if let Some(found) = self.append_again(slot, zone, &data, fua).await? {
                return Ok(found);
            }
            while self.replay.borrow().has_partial_append(zone) {
                self.replayed.wait().await;
            }
        }
        // Where it will go: nothing comes between this and the append.
        if let Some(at) = self.wp(zone) {
            self.tails.begin_append(slot, Extent { zone, at, blocks: data.blocks() });
        }
        let done = self.device.submit(Command::append(zone, data, fua)).await;
        done.result?;
        self.pool.borrow_mut().give(done.data);
        Ok((done.lba, done.tail))
    }

    /// Carries out an append that the process before this one has carried out, or begun.
    async fn append_again(
        &self,
        slot: usize,
        zone: ZoneIndex,
        data: &Buf,
        fua: bool,
    ) -> Result<Option<(Lba, u64)>, DeviceError> {
        let start = self.device.geometry().start(zone);
        let mut different = Vec::new();
        let found = loop {
            let claimed = self.replay.borrow_mut().claim(zone, data);
            let Some(append) = claimed else { break Ok(None) };
            let lba = Lba(start.0 + append.extent.at);
            match replay::holds(&*self.device, lba, &data.slice_blocks(0..append.written)).await {
                Ok(true) => break Ok(Some((append, lba))),
                Ok(false) => different.push(append),
                Err(error) => {
                    different.push(append);
                    break Err(error);
                }
            }
        };
        for append in different {
            self.replay.borrow_mut().give_back(&append);
        }
        let Some((append, lba)) = found? else { return Ok(None) };
        if append.slot != slot {
            self.tails.begin_append(slot, append.extent);
            self.tails.end_append_to(append.slot, &append.extent);
        }
        let rest = data.slice_blocks(append.written..data.blocks());
        let completion = match rest.is_empty() {
            true => Completion::ready(Done::ok()),
            false => self.device.submit(Command::write(Lba(lba.0 + append.written), rest, fua)),
        };
        self.replay.borrow_mut().settle(&append);
        self.replayed.open();
        let done = completion.await;
        done.result?;
        Ok(Some((lba, done.tail)))
    }

    /// The write pointer of `zone`, which an array knows at once.
    fn wp(&self, zone: ZoneIndex) -> Option<u64> {
        let report = self.device.submit(Command::Report { first: zone, count: 1 }).take()?;
        Some(report.zones.first()?.wp_blocks)
    }

    fn forget_replay(&self, zone: ZoneIndex) {
        self.replay.borrow_mut().forget(zone);
        self.replayed.open();
    }

    fn slot(&self, (queue, tag): Place) -> usize {
        queue as usize * self.depth as usize + tag as usize
    }

    async fn reset(&self, zones: Range<u32>, command: Zones) -> Result<Answer, DeviceError> {
        let known: Vec<_> = zones.clone().map(|zone| self.tails.clear(ZoneIndex(zone))).collect();
        let done = self.device.submit(Command::Reset { zones: command }).await;
        for (zone, known) in zones.map(ZoneIndex).zip(known) {
            match done.result {
                Ok(()) => self.forget_replay(zone),
                // Some of it may have been carried out.
                Err(_) => self.tails.complete(zone, known.min(self.wp(zone).unwrap_or(0))),
            }
        }
        done.result?;
        Ok((0, 0))
    }

    async fn close(&self, zone: ZoneIndex) -> Result<Answer, DeviceError> {
        let done = self.device.submit(Command::Close { zones: Zones::One(zone) }).await;
        if done.result == Err(Status::InvalidZoneStateTransition.into()) && self.replay.borrow().goes_on() {
            // An empty zone that the process before this one had open is so no more.
            let report = self.device.submit(Command::Report { first: zone, count: 1 }).await;
            if report.zones.first().is_some_and(|info| info.state == ZoneState::Empty) {
                return Ok((0, 0));
            }
        }
        done.result?;
        Ok((0, 0))
    }

    async fn report(&self, place: Place, first: ZoneIndex, count: u32) -> Result<Answer, DeviceError> {
        let done = self.device.submit(Command::Report { first, count }).await;
        done.result?;
        let geometry = self.device.geometry();
        let zones: Vec<u8> =
            done.zones.iter().flat_map(|zone| abi::zone_descriptor(geometry, zone)).collect();
        self.give_data(place, &zones)?;
        // The kernel's buffer may be larger than what it asked for, and it would ask for the rest;
        // of a result that is too large it takes what it needs.
        Ok((abi::MAX_REQUEST_BLOCKS as i32 * BLOCK as i32, 0))
    }

    /// The data of a write or append.
    fn data_of(&self, (queue, tag): Place, request: &Request) -> Result<Buf, DeviceError> {
        let mut data = self.pool.borrow_mut().take(request.blocks());
        let length = data.len();
        let position = abi::data_position(queue, tag);
        copied(length, |done| pread(&self.channel, &mut data[done..], position + done as u64))?;
        Ok(data.freeze())
    }

    /// Hands over what a read or report asks for.
    fn give_data(&self, (queue, tag): Place, bytes: &[u8]) -> Result<(), DeviceError> {
        let position = abi::data_position(queue, tag);
        copied(bytes.len(), |done| pwrite(&self.channel, &bytes[done..], position + done as u64))
    }

    /// Notes which appends the kernel has answers for. A kill must not find an append that it has
    /// one for, and that is not noted as such, while the process sleeps: the next process would
    /// take it for the answer to a later append of the same data. So results are handed to the
    /// kernel first, those of one round together.
    async fn acknowledge_appends(self: Rc<Self>) {
        while self.serving.get() > 0 {
            if self.answered.borrow().is_empty() || self.ring.submit().is_err() {
                self.more_answered.wait().await;
                continue;
            }
            for slot in self.answered.borrow_mut().drain(..) {
                self.tails.end_append(slot);
            }
        }
    }
}

/// Copies `length` bytes, of which the driver may take fewer at a time when memory is short: `copy`
/// goes on behind those that are done and says how many it has taken.
fn copied(
    length: usize,
    mut copy: impl FnMut(usize) -> rustix::io::Result<usize>,
) -> Result<(), DeviceError> {
    let mut done = 0;
    while done < length {
        match copy(done) {
            Ok(0) => return Err(DeviceError::Os(libc::EIO)),
            Ok(more) => done += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(DeviceError::Os(error.raw_os_error())),
        }
    }
    Ok(())
}
