//! One NBD client: what it sends is received, queued and answered here.

use super::{
    ACTIVE, MOST_HELD_BYTES, MOST_QUEUED, PIECE_BYTES, REQUEST_COST, SHARED_PIECE_BYTES, Server,
    wire::{self, Chunk, Export, Negotiation, Next, Request, Terms, Work},
};
use crate::{bytes::Bytes, ring::Ring, traffic::Traffic};
use engine::{
    buf::{BLOCK, BufMut},
    device::DeviceError,
    runtime::{self, Exclusive, Gate, Held},
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

/// Work of a system call that copies nothing, some microseconds.
const CALL: u32 = 32;

/// How many times as much work counts while several clients are active: others, and the ring that tells of them, have
/// their turn so much more often, after some requests. A turn of the ring costs as much as half of a small request, so
/// that one client alone would feel it.
const SHARED_WORK: u32 = 8;

/// A request that has been received, with the data of a write that is not written yet: buffers, and where in them the
/// data is.
pub(super) struct Job {
    pub request: Request,
    pub data: VecDeque<(BufMut, Range<usize>)>,
    /// When its header had been received, if that is measured.
    pub begun: Option<Instant>,
}

impl Job {
    /// Bytes of data that it keeps in memory.
    pub fn held_bytes(&self) -> u64 {
        self.data.iter().map(|(_, inside)| inside.len() as u64).sum()
    }

    /// What it costs while it is carried out. What has no data is a long look at the map, maybe.
    pub fn cost(&self) -> u64 {
        let bytes = match self.request.work {
            Ok(Work::Read { bytes, .. } | Work::Write { bytes, .. }) => bytes as u64,
            Ok(Work::Flush) | Err(_) => 0,
            _ => SHARED_PIECE_BYTES,
        };
        REQUEST_COST + bytes.min(SHARED_PIECE_BYTES)
    }
}

pub(super) struct Connection {
    ring: Ring,
    socket: Rc<OwnedFd>,
    /// One answer is sent at a time.
    writing: Exclusive,
    /// Requests that have been received and not begun.
    jobs: RefCell<VecDeque<Job>>,
    /// Workers that have nothing to do.
    idle: RefCell<Vec<Waker>>,
    /// Requests that are being carried out, and what they cost.
    running: Cell<usize>,
    running_cost: Cell<u64>,
    /// The number of the last request, among those of all clients.
    last: Cell<u64>,
    /// Bytes of data that are in memory.
    held_bytes: Cell<u64>,
    /// Opened when a request has been carried out.
    room: Gate,
    /// No more requests are received.
    done: Cell<bool>,
    /// This end has stopped to listen, so that the kernel does not tell any more whether the client is still there.
    deaf: Cell<bool>,
    /// The client has hung up.
    gone: Cell<bool>,
    /// It has been agreed on what requests are like.
    agreed: Cell<bool>,
    /// There are too many clients.
    refused: bool,
    /// How many connections there had been with this one.
    pub number: u64,
    /// What the client asked for.
    pub traffic: Traffic,
    server: Weak<Server>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.ended.open();
        }
    }
}

fn nonsense() -> io::Error {
    ErrorKind::InvalidData.into()
}

impl Connection {
    pub fn new(
        ring: Ring,
        socket: OwnedFd,
        (number, refused): (u64, bool),
        server: Weak<Server>,
    ) -> Connection {
        Connection {
            ring,
            socket: Rc::new(socket),
            writing: Exclusive::default(),
            jobs: RefCell::default(),
            idle: RefCell::default(),
            running: Cell::new(0),
            running_cost: Cell::new(0),
            last: Cell::new(0),
            held_bytes: Cell::new(0),
            room: Gate::default(),
            done: Cell::new(false),
            deaf: Cell::new(false),
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

    /// Whether it is one of those that share what may be on the way, when so many requests were received of all.
    pub fn is_active(&self, received: u64) -> bool {
        self.running.get() > 0 || self.last.get() > 0 && received - self.last.get() < ACTIVE
    }

    pub fn has_agreed(&self) -> bool {
        self.agreed.get()
    }

    /// Comes to terms; `None` if the client has gone.
    pub async fn negotiate(&self, export: &Export) -> io::Result<Option<Terms>> {
        self.send(&[&wire::GREETING]).await?;
        let mut flags = [0; wire::CLIENT_FLAGS_BYTES];
        self.receive(&mut flags).await?;
        let mut negotiation = Negotiation::new(export, flags).ok_or_else(nonsense)?;
        loop {
            let mut header = [0; wire::OPTION_BYTES];
            self.receive(&mut header).await?;
            let bytes = negotiation.option_bytes(&header).ok_or_else(nonsense)?;
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

    /// Receives requests until there are no more, and queues them for the workers.
    pub async fn receive_jobs(&self, of: (&Bytes, &Traffic), terms: &Terms) -> io::Result<()> {
        let result = self.receive_until_end(of, terms).await;
        self.stop_receiving();
        match result {
            // What was to follow will not come: the client is gone, whatever it was in the middle of.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            result => result,
        }
    }

    async fn receive_until_end(&self, (bytes, traffic): (&Bytes, &Traffic), terms: &Terms) -> io::Result<()> {
        while !self.done.get() {
            let mut header = [0; wire::REQUEST_BYTES];
            self.receive(&mut header).await?;
            if self.done.get() {
                return Ok(());
            }
            let request = Request::read(&header, terms).ok_or_else(nonsense)?;
            let (mut data, begun) = (VecDeque::new(), traffic.begin());
            match request.work {
                Ok(Work::Disconnect) => return Ok(()),
                Ok(Work::Write { at, bytes: length, .. }) => {
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
            self.jobs.borrow_mut().push_back(Job { request, data, begun });
            self.wake_worker();
        }
        Ok(())
    }

    /// Waits until there is room for one more request with so many bytes of data, which always fit alone.
    async fn wait_for_room(&self, bytes: u64) {
        let is_full = || {
            let held = self.held_bytes.get();
            held > 0 && held + bytes > MOST_HELD_BYTES || self.jobs.borrow().len() >= MOST_QUEUED
        };
        while is_full() && !self.done.get() {
            self.room.wait().await;
        }
    }

    /// A request has been carried out that had so many bytes of data, or waits without a worker.
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

    /// The next request to be carried out; `None` once there will be no more.
    pub async fn next_job(&self) -> Option<Job> {
        poll_fn(|context| {
            // A worker that is busy must not be the one that is woken for the next request.
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
            if self.done.get() && self.jobs.borrow().is_empty() {
                return Poll::Ready(None);
            }
            idle.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the client has ended the connection, as far as the kernel knows by now.
    pub fn has_hung_up(&self) -> bool {
        if self.gone.get() {
            return true;
        }
        let ends = match self.deaf.get() {
            true => PollFlags::HUP | PollFlags::ERR,
            false => PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP,
        };
        let mut socket = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let asked = poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let gone = asked.is_ok_and(|ready| ready > 0) && socket[0].revents().intersects(ends);
        self.gone.set(gone);
        gone
    }

    fn stop_receiving(&self) {
        self.done.set(true);
        self.room.open();
        self.idle.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// What was asked for has come to this.
    pub async fn answer(&self, request: &Request, result: Result<(), DeviceError>) -> io::Result<()> {
        match result {
            Ok(()) => self.send(&[&wire::simple(request.cookie, 0)]).await,
            Err(error) => self.refuse(request, wire::errno(error)).await,
        }
    }

    pub async fn refuse(&self, request: &Request, error: u32) -> io::Result<()> {
        match request.chunks {
            true => self.send(&[&wire::chunk(request.cookie, true, Chunk::Error(error))]).await,
            false => self.send(&[&wire::simple(request.cookie, error)]).await,
        }
    }

    /// Waits until no other answer is being sent; none is while the turn is held.
    pub async fn take_turn(&self) -> Held<'_> {
        self.writing.take().await
    }

    /// Sends an answer, and no other one in the middle of it.
    pub async fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let _turn = self.take_turn().await;
        for part in parts {
            self.send_now(part).await?;
        }
        Ok(())
    }

    /// As [`Connection::send`], while the turn is held.
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

    /// Lets others go on after so much work, also if this client always has something more to say. Bytes were copied.
    async fn give_way(&self, bytes: usize) {
        let times =
            if self.server.upgrade().is_some_and(|server| server.is_shared()) { SHARED_WORK } else { 1 };
        runtime::work((CALL + (bytes as u64 * runtime::COPY as u64 / BLOCK as u64) as u32) * times);
        runtime::give_way().await;
    }

    /// Receives data that is not used.
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

    /// Ends the connection, or only what the client sends. Requests that were received before are carried out.
    pub fn end(&self, which: Shutdown) {
        if self.has_hung_up() || which != Shutdown::Read {
            self.gone.set(true);
        }
        self.deaf.set(true);
        self.stop_receiving();
        // The client may have been first.
        let _ = shutdown(&*self.socket, which);
    }
}
