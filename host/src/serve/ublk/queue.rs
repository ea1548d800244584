//! The queues of a block device: requests are fetched from the kernel, executed by the zoned device or the volume, and
//! answered.
//!
//! Every request slot has a task that lives as long as the device, so that requests neither spawn tasks nor allocate.
#![allow(unsafe_code)]

use super::{
    abi::{self, Info, UblkOperation, UblkRequest},
    plain,
    transfer::{DataTransfer, RequestTag, UblkAnswer},
    zoned::ZonedBackend,
};
use crate::{
    reactor::{
        Reactor,
        ring::{Outcome, Ring, Target, TargetId},
        traffic::{Counter, Traffic},
    },
    serve::{bytes::Bytes, map::SharedMap},
};
use anyhow::{Context, Result};
use engine::{
    buf::BLOCK,
    device::{DeviceError, Status},
    runtime::Gate,
    vzone::Namespace,
};
use io_uring::{opcode, types::Fd};
use std::{
    cell::{Cell, OnceCell, RefCell},
    fs::File,
    future::poll_fn,
    os::fd::AsRawFd,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

/// All queues of a block device.
pub(super) struct Queues {
    ring: Ring,
    target: RefCell<Option<TargetId>>,
    transfer: DataTransfer,
    /// Per queue, the descriptors of its requests.
    descriptors: Vec<SharedMap>,
    depth: u16,
    slots: Vec<Slot>,
    /// Number of slots with a running task.
    serving: Cell<usize>,
    /// Opened when the last slot task has ended, or after a failure.
    idle: Gate,
    /// Errno with which the kernel refused an answer or a fetch, unless the device was stopped.
    failure: Cell<Option<i32>>,
    pub(super) served: UblkBackend,
    /// Counters of requests.
    pub traffic: Rc<Traffic>,
    /// The namespace that admits reads and writes, if there is one.
    pub namespace: OnceCell<Namespace>,
}

/// The device that executes requests.
pub(super) enum UblkBackend {
    Zoned(Box<ZonedBackend>),
    Volume(Box<Bytes>),
}

/// A slot for one request.
#[derive(Default)]
struct Slot {
    /// Result of the last fetch.
    fetched: Cell<Option<i32>>,
    waker: RefCell<Option<Waker>>,
}

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
    /// Maps the queues of the device behind `channel` and starts serving them.
    pub(super) fn serve(
        reactor: &Reactor,
        channel: File,
        info: &Info,
        served: UblkBackend,
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
            transfer: DataTransfer::over(channel, info.depth, reactor.buffers()),
            depth: info.depth,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            serving: Cell::new(slots),
            idle: Gate::default(),
            failure: Cell::new(None),
            served,
            traffic: Rc::default(),
            namespace: OnceCell::new(),
        });
        *queues.target.borrow_mut() = Some(ring.add(queues.clone()));
        for slot in 0..slots {
            reactor.runtime().spawn(queues.clone().serve_slot(slot));
        }
        reactor.runtime().spawn(queues.clone().acknowledge_appends());
        Ok(queues)
    }

    /// Checks that the kernel has accepted all fetches so far.
    pub(super) fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(errno) => Err(std::io::Error::from_raw_os_error(errno))
                .context("the kernel refuses this process as the server of the block device"),
            None => Ok(()),
        }
    }

    /// Waits until the kernel has taken all slots back, or a fetch has failed.
    pub(super) async fn drained(&self) {
        while self.serving.get() > 0 && self.failure.get().is_none() {
            self.idle.wait().await;
        }
    }

    /// Unregisters from the ring, which still holds the queues until no operation is in flight.
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
            let counter = self.counter(&request);
            let begun = counter.and_then(|_| self.traffic.begin());
            // To a namespace, a part of a block counts as a block.
            let blocks = request.bytes().div_ceil(BLOCK as u64);
            let namespace = counter.and_then(|_| self.namespace.get());
            let passed = match namespace {
                Some(namespace) => Some(namespace.admit(blocks, |us| self.sleep(us)).await),
                None => None,
            };
            let answer = self.perform(place, &request).await;
            if let Some((namespace, passed)) = namespace.zip(passed) {
                namespace.answered(passed, blocks);
            }
            if let Some(counter) = counter {
                counter.count(request.bytes(), begun.map(|begun| begun.elapsed()));
            }
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => (-abi::errno(error), 0),
            };
            fetched = self.exchange(slot, place, abi::COMMIT_AND_FETCH, answer).await;
        }
        self.serving.set(self.serving.get() - 1);
        if self.serving.get() == 0 {
            self.idle.open();
            if let UblkBackend::Zoned(zoned) = &self.served {
                zoned.more_answered.open();
            }
        }
    }

    /// Submits the answer to the last request, if there was one, and waits for the next request.
    async fn exchange(&self, slot: usize, place: RequestTag, command: u32, answer: UblkAnswer) -> i32 {
        let command = opcode::UringCmd80::new(Fd(self.transfer.channel.as_raw_fd()), command)
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

    fn request(&self, (queue, tag): RequestTag) -> UblkRequest {
        let descriptors = &self.descriptors[queue as usize];
        let word = tag as usize * abi::REQUEST_WORDS;
        UblkRequest::from_words(descriptors.load(word), descriptors.load(word + 1))
    }

    /// Executes a request.
    async fn perform(&self, place: RequestTag, request: &UblkRequest) -> Result<UblkAnswer, DeviceError> {
        let Some(operation) = request.operation else { return Err(Status::InvalidOpcode.into()) };
        match &self.served {
            UblkBackend::Zoned(zoned) => zoned.perform(&self.transfer, place, (operation, request)).await,
            UblkBackend::Volume(volume) => {
                plain::perform(volume, &self.transfer, place, (operation, request)).await
            }
        }
    }

    async fn sleep(&self, us: u64) {
        self.ring.sleep(Duration::from_micros(us)).await;
    }

    /// The counter of a request; `None` for kinds of requests that are neither counted nor subject to admission.
    fn counter(&self, request: &UblkRequest) -> Option<&Counter> {
        match request.operation {
            Some(UblkOperation::Read) => Some(&self.traffic.reads),
            Some(UblkOperation::Write | UblkOperation::Append) => Some(&self.traffic.writes),
            _ => None,
        }
    }

    /// Frees the slots of appends as soon as the kernel has their results.
    ///
    /// The results are submitted to the kernel first, then the slots are freed, both before the process sleeps. If it
    /// were killed while a slot is occupied although the kernel has the result, the next process would take a later
    /// append of the same data for a reissue of this one.
    async fn acknowledge_appends(self: Rc<Self>) {
        let UblkBackend::Zoned(zoned) = &self.served else { return };
        while self.serving.get() > 0 {
            if !zoned.has_answered() {
                zoned.more_answered.wait().await;
            } else if self.ring.submit().is_ok() {
                zoned.acknowledge_appends();
            } else {
                self.ring.sleep(Duration::from_millis(1)).await;
            }
        }
    }
}
