//! The connection of an NBD client: receives and queues its requests, and sends replies.
//!
//! A worker that has executed a request queues its reply. If no other one is sending, it lets the requests that are ready
//! be executed, and sends their replies with its own.

use super::{
    ACTIVE, MOST_HELD_BYTES, MOST_QUEUED, MOST_READ_BYTES, MOST_RUNNING, PIECE_BYTES, REQUEST_COST,
    SHARED_PIECE_BYTES, Server,
    receive::ReceiveBuffer,
    replies::{JobShare, NbdAnswer, Reply, ReplyBody, ReplyShare, send_parts},
    wire::{self, NbdExport, NbdOperation, NbdRequest, NbdTerms, Negotiation, Next, ReplyHead},
};
use crate::{
    reactor::{self, ring::Ring, traffic::Traffic},
    serve::bytes::{Bytes, CountedRequest, ZEROS_BYTES},
};
use engine::{
    buf::{BLOCK, BufMut},
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

/// Most bytes that one system call copies, beside the received ones of later requests: as many as a slice of work.
const COPIED_BYTES: usize = (runtime::SLICE / runtime::COPY) as usize * BLOCK;

/// Work of a system call, or of the execution of a request, without copies: some microseconds.
const CALL: u32 = 32;

/// Work of parsing a request.
const PARSING: u32 = 4;

/// Factor on counted work while several clients are active, so that a task yields to other clients and the ring after
/// only a few requests. A turn of the ring costs as much as half of a small request, which would slow down a single
/// client.
const SHARED_WORK: u32 = 8;

/// Work of copying `bytes`.
fn copy_work(bytes: usize) -> u32 {
    (bytes as u64 * runtime::COPY as u64 / BLOCK as u64) as u32
}

/// A received request, with the data that is not written yet: buffers, and the range of the data in each.
pub(super) struct Job {
    pub request: NbdRequest,
    pub data: VecDeque<(BufMut, Range<usize>)>,
    /// Time at which its header was taken from the received bytes, if latencies are measured.
    pub begun: Option<Instant>,
    /// Present until it has been carried out, or waits for room, if it counts for the throttling of volumes.
    pub counted: Option<CountedRequest>,
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

    /// Its share of the limits of its connection.
    pub fn share(&self) -> JobShare {
        // Zeros that are written, and searches of the map, take less memory than this.
        let read_bytes = match self.request.work {
            Ok(NbdOperation::Read { bytes, .. }) => (bytes as u64).min(PIECE_BYTES),
            Ok(NbdOperation::Write { .. } | NbdOperation::Flush) | Err(_) => 0,
            _ => ZEROS_BYTES,
        };
        JobShare { held_bytes: self.held_bytes(), cost: self.cost(), read_bytes }
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
    /// Held while replies are sent.
    writing: Exclusive,
    /// Replies that are not being sent yet.
    replies: RefCell<VecDeque<Reply>>,
    /// A task sends the replies.
    sending: Cell<bool>,
    /// Received requests that have not started.
    jobs: RefCell<VecDeque<Job>>,
    /// Received requests that wait for the limits of the volume, in front of `jobs`.
    limited: RefCell<VecDeque<Job>>,
    /// Opened when there is another one, and when no more requests are accepted.
    limited_more: Gate,
    /// Idle workers.
    idle: RefCell<Vec<Waker>>,
    /// Number of workers.
    workers: Cell<usize>,
    /// Number, total cost and memory of requests that are being executed, or of which the replies are being sent.
    running: Cell<usize>,
    running_cost: Cell<u64>,
    read_bytes: Cell<u64>,
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
            server.counted_active.set(None);
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
            replies: RefCell::default(),
            sending: Cell::new(false),
            jobs: RefCell::default(),
            limited: RefCell::default(),
            limited_more: Gate::default(),
            idle: RefCell::default(),
            workers: Cell::new(0),
            running: Cell::new(0),
            running_cost: Cell::new(0),
            read_bytes: Cell::new(0),
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

    /// The server, unless it has ended.
    pub fn server(&self) -> Option<Rc<Server>> {
        self.server.upgrade()
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
        self.send(&wire::GREETING).await?;
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
            self.send(&replies).await?;
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
        let mut received = ReceiveBuffer::default();
        while !self.done.get() {
            let Some(header) = received.take_header() else {
                self.receive_more(&mut received).await?;
                continue;
            };
            let request = NbdRequest::read(&header, terms).ok_or_else(invalid_data)?;
            let (mut data, begun) = (VecDeque::new(), traffic.begin());
            match request.work {
                Ok(NbdOperation::Disconnect) => return Ok(()),
                Ok(NbdOperation::Write { at, bytes: length, .. }) => {
                    let (mut at, end) = (at, at + length as u64);
                    self.wait_for_room(length as u64).await;
                    self.held_bytes.set(self.held_bytes.get() + length as u64);
                    received.expect_alike(length as usize);
                    let most = self.server.upgrade().map_or(PIECE_BYTES, |server| server.piece_bytes());
                    while at < end {
                        let piece = (end - at).min(most);
                        let (mut buffer, inside) = bytes.buffer(at, piece);
                        self.receive_data(&mut received, &mut buffer[inside.clone()]).await?;
                        data.push_back((buffer, inside));
                        at += piece;
                    }
                }
                _ => {
                    self.wait_for_room(0).await;
                    self.skip(&mut received, request.payload_bytes).await?;
                }
            }
            let count = |server: Rc<Server>| server.count_request(self.is_active(server.received.get()));
            self.last.set(self.server.upgrade().map_or(0, count));
            let job = Job { request, data, begun, counted: None };
            let waits = bytes.needs_admission() || !self.limited.borrow().is_empty();
            if waits && job.limited_bytes(bytes).is_some() {
                self.limited.borrow_mut().push_back(job);
                self.limited_more.open();
            } else {
                self.queue(job);
            }
            self.give_way_after(PARSING).await;
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
                        self.queue(Job { counted, ..job });
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

    /// Releases the share of a request of which the reply has been sent, or that waits for free space without a worker.
    /// [`NbdConnection::wake_for_room`] has to follow.
    pub fn release(&self, share: JobShare) {
        self.held_bytes.set(self.held_bytes.get() - share.held_bytes);
        self.running.set(self.running.get() - 1);
        self.running_cost.set(self.running_cost.get() - share.cost);
        self.read_bytes.set(self.read_bytes.get() - share.read_bytes);
        self.room.open();
    }

    /// Wakes a worker for the next request, if one waits, or all workers at the end.
    pub fn wake_for_room(&self) {
        if self.done.get() {
            self.idle.borrow_mut().drain(..).for_each(Waker::wake);
        } else if !self.jobs.borrow().is_empty() {
            self.wake_worker();
        }
    }

    /// Counts another worker, if there is no idle one for the next request; `false` if there is, or if there are as many
    /// workers as allowed.
    pub fn count_worker(&self) -> bool {
        let is_needed = self.idle.borrow().is_empty() && self.workers.get() < MOST_RUNNING && !self.is_over();
        self.workers.set(self.workers.get() + is_needed as usize);
        is_needed
    }

    /// Whether there are no more requests to execute, and none will come.
    fn is_over(&self) -> bool {
        self.done.get() && self.jobs.borrow().is_empty() && self.limited.borrow().is_empty()
    }

    /// Counts an answered request.
    pub fn count(&self, request: &NbdRequest, begun: Option<Instant>) {
        let latency = begun.map(|begun| begun.elapsed());
        let server = self.server.upgrade();
        let traffics = server.iter().map(|server| &server.traffic).chain([&self.traffic]);
        match request.work {
            Ok(NbdOperation::Read { bytes, .. }) => {
                traffics.for_each(|traffic| traffic.reads.count(bytes as u64, latency));
            }
            Ok(NbdOperation::Write { bytes, .. }) => {
                traffics.for_each(|traffic| traffic.writes.count(bytes as u64, latency));
            }
            _ => {}
        }
    }

    fn wake_worker(&self) {
        let worker = self.idle.borrow_mut().pop();
        worker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the next request to execute; `None` when there will be no more.
    pub async fn next_job(&self) -> Option<Job> {
        let mut was_idle = false;
        poll_fn(|context| {
            let mut idle = self.idle.borrow_mut();
            // A busy worker must not be chosen to be woken for the next request.
            if std::mem::replace(&mut was_idle, true) {
                idle.retain(|worker| !worker.will_wake(context.waker()));
            }
            let share = self.jobs.borrow().front().map(Job::share).unwrap_or_default();
            let next = || self.jobs.borrow_mut().pop_front();
            if self.has_room(share)
                && let Some(job) = next()
            {
                self.running.set(self.running.get() + 1);
                self.running_cost.set(self.running_cost.get() + share.cost);
                self.read_bytes.set(self.read_bytes.get() + share.read_bytes);
                if !self.jobs.borrow().is_empty() {
                    idle.pop().into_iter().for_each(Waker::wake);
                }
                return Poll::Ready(Some(job));
            }
            if self.is_over() {
                return Poll::Ready(None);
            }
            idle.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether a request with this share may be started. If none is running, it may.
    fn has_room(&self, share: JobShare) -> bool {
        let most_cost = || self.server.upgrade().map_or(u64::MAX, |server| server.share());
        self.running.get() == 0
            || self.running.get() < MOST_RUNNING
                && self.read_bytes.get() + share.read_bytes <= MOST_READ_BYTES
                && self.running_cost.get() + share.cost <= most_cost()
    }

    /// Number and memory of requests in execution, and of those with replies that have not been sent.
    #[cfg(test)]
    pub fn in_execution(&self) -> (usize, u64) {
        (self.running.get(), self.read_bytes.get())
    }

    /// Requests that wait for a worker.
    #[cfg(test)]
    pub fn queued(&self) -> std::cell::Ref<'_, VecDeque<Job>> {
        self.jobs.borrow()
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

    /// Waits until no replies are being sent, and excludes others while the result is held.
    pub async fn take_turn(&self) -> ExclusiveGuard<'_> {
        self.writing.take().await
    }

    /// Sends a message of the negotiation.
    async fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_all(|| std::iter::once(message)).await
    }

    /// Sends all of these parts of a message.
    async fn send_all<'p, P: Iterator<Item = &'p [u8]>>(&self, parts: impl Fn() -> P) -> io::Result<()> {
        let bytes: usize = parts().map(<[u8]>::len).sum();
        let mut sent = 0;
        while sent < bytes {
            match send_parts(&*self.socket, parts(), sent, COPIED_BYTES) {
                Ok(count) => {
                    sent += count;
                    self.give_way(count).await;
                }
                Err(error) => self.wait(error, libc::POLLOUT).await?,
            }
        }
        Ok(())
    }

    /// Ends a request: queues its reply, or closes the connection after an error.
    pub async fn end_job(&self, volume: &Bytes, job: Job, share: ReplyShare, answer: io::Result<NbdAnswer>) {
        let Job { request, begun, .. } = job;
        let sent = match answer {
            Ok(NbdAnswer::Reply(head, body)) => {
                self.reply(volume, Reply { head, body, request, begun, share }).await
            }
            sent => {
                self.release_reply(&request, begun, share);
                self.wake_for_room();
                sent.map(drop)
            }
        };
        if sent.is_err() {
            self.end(Shutdown::Both);
        }
    }

    /// Queues a reply. Returns at once if replies are being sent already: then it is sent with these.
    async fn reply(&self, volume: &Bytes, reply: Reply) -> io::Result<()> {
        self.replies.borrow_mut().push_back(reply);
        if self.sending.replace(true) {
            return Ok(());
        }
        reactor::give_way().await;
        let mut batch = VecDeque::new();
        let mut result = Ok(());
        while result.is_ok() && !self.replies.borrow().is_empty() {
            // The turn is released between batches: long replies wait for it.
            let _turn = self.take_turn().await;
            std::mem::swap(&mut batch, &mut *self.replies.borrow_mut());
            result = self.send_batch(volume, &mut batch).await;
        }
        self.sending.set(false);
        batch.extend(self.replies.borrow_mut().drain(..));
        batch.drain(..).for_each(|reply| self.end_reply(volume, reply));
        self.wake_for_room();
        result
    }

    /// Sends replies, and removes each when it has been sent.
    async fn send_batch(&self, volume: &Bytes, batch: &mut VecDeque<Reply>) -> io::Result<()> {
        let mut sent = 0;
        while !batch.is_empty() {
            let most = if self.is_shared() { SHARED_PIECE_BYTES as usize } else { COPIED_BYTES };
            match send_parts(&*self.socket, batch.iter().flat_map(Reply::parts), sent, most) {
                Ok(count) => {
                    sent += count;
                    while let Some(first) = batch.front().map(Reply::bytes).filter(|bytes| *bytes <= sent) {
                        sent -= first;
                        batch.pop_front().into_iter().for_each(|reply| self.end_reply(volume, reply));
                    }
                    self.wake_for_room();
                    self.give_way(count).await;
                }
                Err(error) => self.wait(error, libc::POLLOUT).await?,
            }
        }
        Ok(())
    }

    /// Releases what a reply holds. It has been sent, or the connection has failed.
    fn end_reply(&self, volume: &Bytes, reply: Reply) {
        reply.body.give_back(volume);
        self.release_reply(&reply.request, reply.begun, reply.share);
    }

    /// Releases the share of a request that has been answered, and counts the request.
    fn release_reply(&self, request: &NbdRequest, begun: Option<Instant>, share: ReplyShare) {
        match share {
            ReplyShare::Running(share) => self.release(share),
            ReplyShare::Waiting(bytes) => {
                self.server().into_iter().for_each(|server| server.release_waiting(bytes));
            }
        }
        self.count(request, begun);
    }

    /// Sends a part of a reply, for the holder of the turn.
    pub async fn send_now(&self, head: Option<&ReplyHead>, body: &ReplyBody) -> io::Result<()> {
        self.send_all(|| head.map(|head| &head[..]).into_iter().chain(body.parts())).await
    }

    /// Receives all of `target`, and nothing behind it.
    async fn receive(&self, target: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < target.len() {
            match rustix::io::read(&*self.socket, &mut target[done..]) {
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

    /// Receives as many bytes as the socket has, at least one.
    async fn receive_more(&self, received: &mut ReceiveBuffer) -> io::Result<()> {
        loop {
            match received.receive(&*self.socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.give_way(count).await;
                    return Ok(());
                }
                Err(error) => self.wait(error, libc::POLLIN).await?,
            }
        }
    }

    /// Receives data into all of `target`.
    async fn receive_data(&self, received: &mut ReceiveBuffer, target: &mut [u8]) -> io::Result<()> {
        let mut done = received.take_into(target);
        self.give_way_after(copy_work(done)).await;
        while done < target.len() {
            match received.receive_into(&*self.socket, &mut target[done..], COPIED_BYTES) {
                Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((count, all)) => {
                    done += count;
                    self.give_way(all).await;
                }
                Err(error) => self.wait(error, libc::POLLIN).await?,
            }
        }
        Ok(())
    }

    /// Receives and discards data.
    async fn skip(&self, received: &mut ReceiveBuffer, bytes: u32) -> io::Result<()> {
        let mut left = bytes as usize;
        loop {
            left -= received.skip(left);
            if left == 0 {
                return Ok(());
            }
            self.receive_more(received).await?;
        }
    }

    /// Whether several clients are active.
    pub fn is_shared(&self) -> bool {
        self.server.upgrade().is_some_and(|server| server.is_shared())
    }

    /// Yields to other tasks after a slice of work, even if this client always has more to receive or send. A system call
    /// has copied `bytes`, or a request with so many bytes has been executed.
    pub async fn give_way(&self, bytes: usize) {
        self.give_way_after(CALL + copy_work(bytes)).await;
    }

    /// Yields to other tasks after a slice of work, of which `work` has been done now.
    async fn give_way_after(&self, work: u32) {
        runtime::work(work * if self.is_shared() { SHARED_WORK } else { 1 });
        runtime::give_way().await;
    }

    /// Waits until the socket is ready for `events`, if that is the reason for `error`.
    pub async fn wait(&self, error: Errno, events: i16) -> io::Result<()> {
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
