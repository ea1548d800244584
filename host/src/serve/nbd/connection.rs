//! The connection of an NBD client: receives and queues its requests, and sends answers.

use super::{
    ACTIVE, MOST_HELD_BYTES, MOST_QUEUED, PIECE_BYTES, REQUEST_COST, SHARED_PIECE_BYTES, Server,
    wire::{self, Chunk, NbdExport, NbdOperation, NbdRequest, NbdTerms, Negotiation, Next},
};
use crate::{
    reactor::{ring::Ring, traffic::Traffic},
    serve::bytes::{Bytes, CountedRequest},
};
use engine::{
    buf::{BLOCK, BufMut},
    device::DeviceError,
    runtime::{self, Exclusive, ExclusiveGuard, Gate},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{Shutdown, shutdown},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io::{self, ErrorKind},
    ops::Range,
    os::fd::OwnedFd,
    rc::{Rc, Weak},
    task::{Poll, Waker},
    time::Instant,
};

/// Most bytes that one system call copies: as many as a slice of work.
const COPIED_BYTES: usize = (runtime::SLICE / runtime::COPY) as usize * BLOCK;

/// Work of a system call without its copy: some microseconds.
const CALL: u32 = 32;

/// Factor on counted work while several clients are active, so that a task yields to other clients and the ring after
/// only a few requests. A turn of the ring costs as much as half of a small request, which would slow down a single
/// client.
const SHARED_WORK: u32 = 8;

/// A received request, with the data that is not written yet: buffers, and the range of the data in each.
pub(super) struct Job {
    pub request: NbdRequest,
    pub data: VecDeque<(BufMut, Range<usize>)>,
    /// Time at which its header was received, if latencies are measured.
    pub begun: Option<Instant>,
    /// Present until its end if it counts for the throttling of volumes.
    pub _counted: Option<CountedRequest>,
}

impl Job {
    /// Bytes of data in memory.
    pub fn held_bytes(&self) -> u64 {
        self.data.iter().map(|(_, inside)| inside.len() as u64).sum()
    }

    /// Cost while it is executed, see [`super::SHARED_COST`]. A request without data may take a long search of the map:
    /// it costs a whole piece.
    pub fn cost(&self) -> u64 {
        let bytes = match self.request.work {
            Ok(NbdOperation::Read { bytes, .. } | NbdOperation::Write { bytes, .. }) => bytes as u64,
            Ok(NbdOperation::Flush) | Err(_) => 0,
            _ => SHARED_PIECE_BYTES,
        };
        REQUEST_COST + bytes.min(SHARED_PIECE_BYTES)
    }

    /// Bytes that count towards the limits of the volume; `None` if the request is not limited.
    fn limited_bytes(&self, volume: &Bytes) -> Option<u64> {
        match self.request.work {
            Ok(NbdOperation::Read { bytes, .. } | NbdOperation::Write { bytes, .. }) => Some(bytes as u64),
            Ok(NbdOperation::Zero { bytes, keep: true, .. }) if volume.writes_zeros() => Some(bytes as u64),
            _ => None,
        }
    }
}

pub(super) struct NbdConnection {
    ring: Ring,
    socket: Rc<OwnedFd>,
    /// Held while an answer is sent.
    writing: Exclusive,
    /// Received requests that have not started.
    jobs: RefCell<VecDeque<Job>>,
    /// Received requests that wait for the limits of the volume, in front of `jobs`.
    limited: RefCell<VecDeque<Job>>,
    /// Opened when there is another one, and when no more requests are accepted.
    limited_more: Gate,
    /// Idle workers.
    idle: RefCell<Vec<Waker>>,
    /// Number and total cost of requests in execution.
    running: Cell<usize>,
    running_cost: Cell<u64>,
    /// Number of the client's last request, counted over all clients; 0 before the first.
    last: Cell<u64>,
    /// Bytes of write data in memory.
    held_bytes: Cell<u64>,
    /// Opened when a request has been executed.
    room: Gate,
    /// No more requests are accepted.
    done: Cell<bool>,
    /// The receiving side has been shut down: from then on `RDHUP` is always set, also while the client is connected.
    read_shut_down: Cell<bool>,
    /// The client has hung up.
    gone: Cell<bool>,
    /// Negotiation has succeeded.
    agreed: Cell<bool>,
    /// The client exceeds the limit, and is refused in the negotiation.
    refused: bool,
    /// Number of the connection, from 1.
    pub number: u64,
    /// Counters of the client's requests.
    pub traffic: Traffic,
    server: Weak<Server>,
}

impl Drop for NbdConnection {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.ended.open();
        }
    }
}

fn invalid_data() -> io::Error {
    ErrorKind::InvalidData.into()
}

impl NbdConnection {
    pub fn new(
        ring: Ring,
        socket: OwnedFd,
        (number, refused): (u64, bool),
        server: Weak<Server>,
    ) -> NbdConnection {
        NbdConnection {
            ring,
            socket: Rc::new(socket),
            writing: Exclusive::default(),
            jobs: RefCell::default(),
            limited: RefCell::default(),
            limited_more: Gate::default(),
            idle: RefCell::default(),
            running: Cell::new(0),
            running_cost: Cell::new(0),
            last: Cell::new(0),
            held_bytes: Cell::new(0),
            room: Gate::default(),
            done: Cell::new(false),
            read_shut_down: Cell::new(false),
            gone: Cell::new(false),
            agreed: Cell::new(false),
            refused,
            number,
            traffic: Traffic::default(),
            server,
        }
    }

    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether the client is active, when `received` requests of all clients have been received.
    pub fn is_active(&self, received: u64) -> bool {
        self.running.get() > 0 || self.last.get() > 0 && received - self.last.get() < ACTIVE
    }

    pub fn has_agreed(&self) -> bool {
        self.agreed.get()
    }

    /// Negotiates with the client; `None` if the client has ended that.
    ///
    /// # Errors
    /// The connection failed, or the client sent invalid data.
    pub async fn negotiate(&self, exports: Vec<NbdExport>) -> io::Result<Option<NbdTerms>> {
        self.send(&[&wire::GREETING]).await?;
        let mut flags = [0; wire::CLIENT_FLAGS_BYTES];
        self.receive(&mut flags).await?;
        let mut negotiation = Negotiation::new(exports, flags).ok_or_else(invalid_data)?;
        loop {
            let mut header = [0; wire::OPTION_BYTES];
            self.receive(&mut header).await?;
            let bytes = negotiation.option_bytes(&header).ok_or_else(invalid_data)?;
            let mut data = vec![0; bytes as usize];
            self.receive(&mut data).await?;
            let mut replies = Vec::new();
            let next = match self.refused {
                true => negotiation.refuse(&header, &mut replies),
                false => negotiation.answer(&header, &data, &mut replies),
            };
            self.send(&[&replies]).await?;
            match next {
                Next::Option => {}
                Next::Requests => {
                    self.agreed.set(true);
                    return Ok(Some(negotiation.terms()));
                }
                Next::End => return Ok(None),
            }
        }
    }

    /// Receives requests and queues them for the workers, until the client or the server ends that.
    pub async fn receive_jobs(&self, of: (&Bytes, &Traffic), terms: &NbdTerms) -> io::Result<()> {
        let result = self.receive_until_end(of, terms).await;
        self.stop_receiving();
        match result {
            // The client disappeared in the middle of a message.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            result => result,
        }
    }

    async fn receive_until_end(
        &self,
        (bytes, traffic): (&Bytes, &Traffic),
        terms: &NbdTerms,
    ) -> io::Result<()> {
        while !self.done.get() {
            let mut header = [0; wire::REQUEST_BYTES];
            self.receive(&mut header).await?;
            if self.done.get() {
                return Ok(());
            }
            let request = NbdRequest::read(&header, terms).ok_or_else(invalid_data)?;
            let (mut data, begun) = (VecDeque::new(), traffic.begin());
            match request.work {
                Ok(NbdOperation::Disconnect) => return Ok(()),
                Ok(NbdOperation::Write { at, bytes: length, .. }) => {
                    let (mut at, end) = (at, at + length as u64);
                    self.wait_for_room(length as u64).await;
                    self.held_bytes.set(self.held_bytes.get() + length as u64);
                    let most = self.server.upgrade().map_or(PIECE_BYTES, |server| server.piece_bytes());
                    while at < end {
                        let piece = (end - at).min(most);
                        let (mut buffer, inside) = bytes.buffer(at, piece);
                        self.receive(&mut buffer[inside.clone()]).await?;
                        data.push_back((buffer, inside));
                        at += piece;
                    }
                }
                _ => {
                    self.wait_for_room(0).await;
                    self.skip(request.payload_bytes).await?;
                }
            }
            self.last.set(self.server.upgrade().map_or(0, |server| server.count_request()));
            let job = Job { request, data, begun, _counted: None };
            let waits = bytes.needs_admission() || !self.limited.borrow().is_empty();
            if waits && job.limited_bytes(bytes).is_some() {
                self.limited.borrow_mut().push_back(job);
                self.limited_more.open();
            } else {
                self.queue(job);
            }
        }
        Ok(())
    }

    /// Queues a request for the workers.
    fn queue(&self, job: Job) {
        self.jobs.borrow_mut().push_back(job);
        self.wake_worker();
    }

    /// Queues the requests that wait for the limits of the volume, each when it is within these, until the connection ends.
    /// Requests that are not limited pass them: a flush covers only completed writes.
    pub async fn admit_jobs(&self, volume: &Bytes) {
        loop {
            let first = self.limited.borrow().front().map(|job| job.limited_bytes(volume));
            match first {
                Some(bytes) => {
                    // Requests of a client that has hung up end without a wait.
                    let counted = volume.admit(bytes.unwrap_or(0), || self.has_hung_up()).await;
                    let job = self.limited.borrow_mut().pop_front();
                    if let Some(job) = job {
                        self.queue(Job { _counted: counted, ..job });
                    }
                }
                None if self.done.get() => return,
                None => self.limited_more.wait().await,
            }
        }
    }

    /// Waits until one more request with this number of data bytes can be queued; with an empty queue it always can.
    async fn wait_for_room(&self, bytes: u64) {
        let is_full = || {
            let held = self.held_bytes.get();
            held > 0 && held + bytes > MOST_HELD_BYTES
                || self.jobs.borrow().len() + self.limited.borrow().len() >= MOST_QUEUED
        };
        while is_full() && !self.done.get() {
            self.room.wait().await;
        }
    }

    /// Releases the share of a request that has been executed, or that waits for free space without a worker.
    pub fn release(&self, bytes: u64, cost: u64) {
        self.held_bytes.set(self.held_bytes.get() - bytes);
        self.running.set(self.running.get() - 1);
        self.running_cost.set(self.running_cost.get() - cost);
        self.room.open();
        if self.done.get() {
            self.idle.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }

    fn wake_worker(&self) {
        let worker = self.idle.borrow_mut().pop();
        worker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the next request to execute; `None` when there will be no more.
    pub async fn next_job(&self) -> Option<Job> {
        poll_fn(|context| {
            // A busy worker must not be chosen to be woken for the next request.
            let mut idle = self.idle.borrow_mut();
            idle.retain(|worker| !worker.will_wake(context.waker()));
            let share = self.server.upgrade().map_or(1, |server| server.share());
            let cost = self.jobs.borrow().front().map_or(0, Job::cost);
            let fits = self.running.get() == 0 || self.running_cost.get() + cost <= share;
            let next = || self.jobs.borrow_mut().pop_front();
            if fits && let Some(job) = next() {
                self.running.set(self.running.get() + 1);
                self.running_cost.set(self.running_cost.get() + cost);
                if !self.jobs.borrow().is_empty() {
                    idle.pop().into_iter().for_each(Waker::wake);
                }
                return Poll::Ready(Some(job));
            }
            if self.done.get() && self.jobs.borrow().is_empty() && self.limited.borrow().is_empty() {
                return Poll::Ready(None);
            }
            idle.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the client has ended the connection, as far as the kernel has noticed.
    pub fn has_hung_up(&self) -> bool {
        if self.gone.get() {
            return true;
        }
        let ends = match self.read_shut_down.get() {
            true => PollFlags::HUP | PollFlags::ERR,
            false => PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP,
        };
        let mut socket = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let polled = poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let gone = polled.is_ok_and(|ready| ready > 0) && socket[0].revents().intersects(ends);
        self.gone.set(gone);
        gone
    }

    fn stop_receiving(&self) {
        self.done.set(true);
        self.room.open();
        self.limited_more.open();
        self.idle.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Sends the result of a request without data.
    pub async fn answer(&self, request: &NbdRequest, result: Result<(), DeviceError>) -> io::Result<()> {
        match result {
            Ok(()) => self.send(&[&wire::simple(request.cookie, 0)]).await,
            Err(error) => self.refuse(request, wire::errno(error)).await,
        }
    }

    pub async fn refuse(&self, request: &NbdRequest, error: u32) -> io::Result<()> {
        match request.chunks {
            true => self.send(&[&wire::chunk(request.cookie, true, Chunk::Error(error))]).await,
            false => self.send(&[&wire::simple(request.cookie, error)]).await,
        }
    }

    /// Waits until no other answer is being sent, and excludes others while the result is held.
    pub async fn take_turn(&self) -> ExclusiveGuard<'_> {
        self.writing.take().await
    }

    /// Sends an answer, not interleaved with others.
    pub async fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let _turn = self.take_turn().await;
        for part in parts {
            self.send_now(part).await?;
        }
        Ok(())
    }

    /// Like [`NbdConnection::send`], for the holder of the turn.
    pub async fn send_now(&self, mut left: &[u8]) -> io::Result<()> {
        while !left.is_empty() {
            let part = &left[..left.len().min(COPIED_BYTES)];
            match rustix::net::send(&*self.socket, part, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => {
                    left = &left[count..];
                    self.give_way(count).await;
                }
                Err(error) => self.wait(error, libc::POLLOUT).await?,
            }
        }
        Ok(())
    }

    async fn receive(&self, target: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < target.len() {
            let end = target.len().min(done + COPIED_BYTES);
            match rustix::io::read(&*self.socket, &mut target[done..end]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    done += count;
                    self.give_way(count).await;
                }
                Err(error) => self.wait(error, libc::POLLIN).await?,
            }
        }
        Ok(())
    }

    /// Yields to other tasks after a slice of work, even if this client always has more to receive or send. `bytes`
    /// were copied.
    async fn give_way(&self, bytes: usize) {
        let times =
            if self.server.upgrade().is_some_and(|server| server.is_shared()) { SHARED_WORK } else { 1 };
        runtime::work((CALL + (bytes as u64 * runtime::COPY as u64 / BLOCK as u64) as u32) * times);
        runtime::give_way().await;
    }

    /// Receives and discards data.
    async fn skip(&self, bytes: u32) -> io::Result<()> {
        let mut left = bytes as usize;
        let mut data = [0; 4096];
        while left > 0 {
            let part = left.min(data.len());
            self.receive(&mut data[..part]).await?;
            left -= part;
        }
        Ok(())
    }

    async fn wait(&self, error: Errno, events: i16) -> io::Result<()> {
        match error {
            Errno::AGAIN => {
                self.ring.ready(self.socket.clone(), events).await;
                Ok(())
            }
            Errno::INTR => Ok(()),
            error => Err(error.into()),
        }
    }

    /// Shuts down the connection, or only its receiving side. Requests received before are still executed.
    pub fn end(&self, which: Shutdown) {
        if self.has_hung_up() || which != Shutdown::Read {
            self.gone.set(true);
        }
        self.read_shut_down.set(true);
        self.stop_receiving();
        // The client may have closed it already.
        let _ = shutdown(&*self.socket, which);
    }
}
