//! NBD server for volumes, on a Unix socket or an IP address; it needs neither root nor kernel support.
//!
//! `wire.rs` is the protocol, `../bytes.rs` byte access to the volume, `address.rs` the address, `connection.rs` one
//! client: a task receives requests, with all data of a write, and workers execute and answer them (`receive.rs`,
//! `replies.rs`). A client that does not read its answers, or sends half of a request, blocks only its own connection.
//!
//! **Ended connections write nothing.** A client that has lost or closed its connection sends unanswered requests again
//! on another one, and continues. If a request of the former connection were executed later, it would undo acknowledged
//! writes. Therefore a request that changes data
//!
//! 1. starts when it has been received completely, with its data;
//! 2. waits for other requests that change the same blocks (`Bytes::claim`);
//! 3. is dropped if the client has hung up by then; the kernel is queried for this right before the first block
//!    changes.
//!
//! A request that waits for free space releases its claim, and repeats steps 2 and 3 afterwards. One that waits for the
//! limits of its volume does so before these steps, without a worker, and counts as received.
//!
//! Suppose that a later request of the client for the same blocks has been received. Then the client had hung up before
//! it sent that one. So the former request is either dropped by step 3, or it has passed step 3 earlier, and the later
//! one waits for its end by step 2. A hang-up arrives behind all data that the client sent before, so the receiver
//! reads all available data, up to `MOST_QUEUED` requests and `MOST_HELD_BYTES` of data, without waiting for the
//! execution of requests.

mod address;
mod connection;
mod receive;
mod replies;
pub mod wire;

pub use address::{NbdAddress, parse_place};

use super::bytes::Bytes;
use crate::{
    process::output::note,
    reactor::{
        Reactor,
        ring::Ring,
        traffic::{Traffic, TrafficCounts},
    },
};
use anyhow::Result;
use connection::{Job, NbdConnection};
use engine::{
    buf::{BLOCK, BufSource},
    device::{DeviceError, Status},
    runtime::{Gate, Runtime},
    volume::Volume,
};
use replies::{NbdAnswer, ReplyBody, ReplyShare};
use rustix::{
    io::Errno,
    net::{
        Shutdown, SocketFlags, accept_with,
        sockopt::{
            set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
        },
    },
};
use std::{
    cell::{Cell, RefCell},
    io::{self, ErrorKind},
    os::fd::OwnedFd,
    rc::{Rc, Weak},
    time::Duration,
};
use wire::{Chunk, NbdExport, NbdOperation, NbdRequest};

/// Most clients at a time. Others are refused with a message.
const MAX_CLIENTS: usize = 32;

/// Most refused clients in negotiation at a time. Further ones wait for their greeting.
const MAX_REFUSALS: usize = 16;

/// Most requests of a client at a time that are being executed, or of which the replies are being sent.
const MOST_RUNNING: usize = 128;

/// Least bytes of a piece that is read into several buffers, to save copies.
const LONG_READ_BYTES: u64 = 32 << 10;

/// Most bytes of data of these replies; their buffers may take twice as much.
const MOST_READ_BYTES: u64 = 16 << 20;

/// Limit for the total cost of requests in execution while several clients are active. Each active client has an equal
/// share, and at least one request, so that a client with few requests does not wait behind the load of others. A
/// request costs its bytes, at most those of a piece, plus the cost of copying [`REQUEST_COST`] bytes.
const SHARED_COST: u64 = 640 << 10;
const REQUEST_COST: u64 = 16 << 10;

/// A client is active while fewer requests of all clients than this have been received since its last one.
const ACTIVE: u64 = 256;

/// Most bytes of one read or write of the volume with a single active client, and with several. Longer requests are
/// executed in pieces.
const PIECE_BYTES: u64 = 1 << 20;
const SHARED_PIECE_BYTES: u64 = 64 << 10;

/// Limits for a client: received requests that have not started, and write data in memory. The latter is the longest
/// request, and more than kernels buffer for a connection.
const MOST_QUEUED: usize = 1024;
const MOST_HELD_BYTES: u64 = wire::MOST_BYTES as u64;

/// Most extents in an answer.
const MOST_EXTENTS: usize = 1024;

/// Time limit for negotiation, and for reading the last answers when the server closes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a connection is closed if not even the client's kernel responds.
const VANISHED: Duration = Duration::from_secs(120);

/// Pause after a failure to accept connections.
const PAUSE: Duration = Duration::from_secs(1);

/// A volume that is served.
struct ServedVolume {
    /// The name by which clients select it.
    name: String,
    /// Whether it is a snapshot, which is read-only.
    is_snapshot: bool,
    bytes: Bytes,
}

/// The server of the volumes of an array.
pub struct Server {
    /// In the order in which they were added.
    volumes: RefCell<Vec<Rc<ServedVolume>>>,
    buffers: BufSource,
    read_only: bool,
    ring: Ring,
    runtime: Runtime,
    place: NbdAddress,
    listener: Rc<OwnedFd>,
    connections: RefCell<Vec<Weak<NbdConnection>>>,
    /// Opened when a connection ends.
    ended: Gate,
    ending: Cell<bool>,
    /// Requests received so far.
    received: Cell<u64>,
    /// Number of requests received when the active clients were counted last, and their number then; `None` if there may
    /// be more or fewer now.
    counted_active: Cell<Option<(u64, usize)>>,
    /// Connections accepted so far.
    accepted: Cell<u64>,
    /// Write data of requests that wait for free space, at least a block for each; limited to `MOST_HELD_BYTES`.
    waiting_bytes: Cell<u64>,
    /// Whether the refusal of a client has been logged since the last successful negotiation.
    refusal_logged: Cell<bool>,
    /// Counters of the requests of all clients.
    traffic: Traffic,
}

impl Server {
    /// Listens at `place`, and serves clients until the server is closed.
    ///
    /// # Errors
    /// The address is not available, or there is no ring.
    pub fn start(
        reactor: &Reactor,
        volumes: Vec<(String, Volume)>,
        place: &NbdAddress,
        read_only: bool,
    ) -> Result<Rc<Server>> {
        let (listener, place) = place.listen()?;
        let server = Rc::new(Server {
            volumes: RefCell::default(),
            buffers: reactor.buffers(),
            read_only,
            ring: reactor.ring()?.clone(),
            runtime: reactor.runtime().clone(),
            place,
            listener: Rc::new(listener),
            connections: RefCell::default(),
            ended: Gate::default(),
            ending: Cell::new(false),
            received: Cell::new(0),
            counted_active: Cell::default(),
            accepted: Cell::new(0),
            waiting_bytes: Cell::new(0),
            refusal_logged: Cell::new(false),
            traffic: Traffic::default(),
        });
        volumes.into_iter().for_each(|(name, volume)| server.add(name, volume));
        server.runtime.spawn(server.clone().take_connections());
        Ok(server)
    }

    /// Serves another volume or snapshot, to clients that connect from now on.
    pub fn add(&self, name: String, volume: Volume) {
        let is_snapshot = volume.is_snapshot();
        let bytes = Bytes::of(volume, self.buffers.clone(), Some(self.ring.clone()));
        self.volumes.borrow_mut().push(Rc::new(ServedVolume { name, is_snapshot, bytes }));
    }

    /// Serves a volume no longer; `false` if it has clients.
    pub fn remove(&self, name: &str) -> bool {
        let mut volumes = self.volumes.borrow_mut();
        let is_it = |served: &Rc<ServedVolume>| served.name == name;
        // Each connection to it holds it, too.
        let is_used = volumes.iter().any(|served| is_it(served) && Rc::strong_count(served) > 1);
        if !is_used {
            volumes.retain(|served| !is_it(served));
        }
        !is_used
    }

    /// Address for clients.
    pub fn place(&self) -> &NbdAddress {
        &self.place
    }

    /// Number of clients, without refused ones.
    pub fn clients(&self) -> usize {
        self.connected().filter(|connection| !connection.is_refused()).count()
    }

    /// Counts a received request and returns its number. `was_active` tells whether its client was active before.
    fn count_request(&self, was_active: bool) -> u64 {
        self.received.set(self.received.get() + 1);
        if !was_active {
            self.counted_active.set(None);
        }
        self.received.get()
    }

    /// Number of active clients. One that is active no longer is noticed some requests later.
    fn active(&self) -> usize {
        let received = self.received.get();
        let counted = self.counted_active.get().filter(|(at, _)| received - at < ACTIVE / 16);
        if let Some((_, active)) = counted {
            return active;
        }
        let is_active = |connection: &Rc<NbdConnection>| connection.is_active(received);
        let active = self.connections.borrow().iter().filter_map(Weak::upgrade).filter(is_active).count();
        self.counted_active.set(Some((received, active)));
        active
    }

    /// Limit for the cost of the requests of one client in execution.
    fn share(&self) -> u64 {
        match self.active() {
            0 | 1 => u64::MAX,
            active => SHARED_COST / active as u64,
        }
    }

    /// Whether several clients are active.
    fn is_shared(&self) -> bool {
        self.active() > 1
    }

    /// Most bytes of one read or write of the volume.
    fn piece_bytes(&self) -> u64 {
        if self.is_shared() { SHARED_PIECE_BYTES } else { PIECE_BYTES }
    }

    /// Requests of all clients so far.
    pub fn requests(&self) -> u64 {
        self.traffic.requests()
    }

    /// Counters of all clients together, and of each connected client with the number of its connection.
    pub fn counted(&self) -> (TrafficCounts, Vec<(u64, TrafficCounts)>) {
        let clients = self.connected().filter(|connection| !connection.is_refused());
        (self.traffic.counted(), clients.map(|client| (client.number, client.traffic.counted())).collect())
    }

    fn connected(&self) -> impl Iterator<Item = Rc<NbdConnection>> {
        let connections: Vec<_> = self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        connections.into_iter()
    }

    /// Accepts no more requests, and waits until those in progress have been answered.
    pub async fn close(self: &Rc<Self>) {
        self.ending.set(true);
        self.place.close();
        self.volumes.borrow().iter().for_each(|served| served.bytes.end_waiting());
        self.connected().for_each(|connection| connection.end(Shutdown::Read));
        let (ring, patience) = (self.ring.clone(), Rc::downgrade(self));
        self.runtime.spawn(async move {
            ring.sleep(PATIENCE).await;
            // Clients that do not read their answers.
            if let Some(server) = patience.upgrade() {
                server.connected().for_each(|connection| connection.end(Shutdown::Both));
            }
        });
        while self.connected().next().is_some() {
            self.ended.wait().await;
        }
    }

    async fn take_connections(self: Rc<Self>) {
        while !self.ending.get() {
            self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
            if self.connections.borrow().len() >= MAX_CLIENTS + MAX_REFUSALS {
                self.ended.wait().await;
                continue;
            }
            match accept_with(&*self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.clone().welcome(socket),
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.ring.ready(self.listener.clone(), libc::POLLIN).await;
                }
                // The client has closed the connection already, or no file descriptors are left.
                Err(_) => _ = self.ring.sleep(PAUSE).await,
            }
        }
    }

    fn welcome(self: Rc<Self>, socket: OwnedFd) {
        // These options fail on Unix sockets, where they are not needed. With them, a client on a vanished host does
        // not occupy a slot.
        let _ = set_tcp_nodelay(&socket, true);
        let _ = set_socket_keepalive(&socket, true);
        let _ = set_tcp_keepidle(&socket, VANISHED / 2);
        let _ = set_tcp_keepintvl(&socket, VANISHED / 4);
        let _ = set_tcp_user_timeout(&socket, VANISHED.as_millis() as u32);
        let refused = self.clients() >= MAX_CLIENTS;
        if refused && !self.refusal_logged.replace(true) {
            note(&format!("an NBD client was refused: {MAX_CLIENTS} are connected, which is the limit"));
        }
        let ended = Rc::downgrade(&self);
        let number = self.accepted.replace(self.accepted.get() + 1) + 1;
        let connection = Rc::new(NbdConnection::new(self.ring.clone(), socket, (number, refused), ended));
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        let (negotiating, ring) = (Rc::downgrade(&connection), self.ring.clone());
        self.runtime.spawn(async move {
            ring.sleep(PATIENCE).await;
            if let Some(slow) = negotiating.upgrade().filter(|connection| !connection.has_agreed()) {
                slow.end(Shutdown::Both);
            }
        });
        let server = self.clone();
        self.runtime.spawn(async move {
            // If the client disappears or sends invalid data, only its own connection ends.
            let volumes = server.volumes.borrow().clone();
            let export = |served: &Rc<ServedVolume>| {
                let ServedVolume { name, is_snapshot, bytes } = &**served;
                NbdExport {
                    name: name.clone(),
                    size_bytes: bytes.size_bytes(),
                    read_only: server.read_only || *is_snapshot,
                    is_snapshot: *is_snapshot,
                }
            };
            let exports = volumes.iter().map(export).collect();
            let Ok(Some(terms)) = connection.negotiate(exports).await else { return };
            let volume = volumes[terms.export].clone();
            drop(volumes);
            server.refusal_logged.set(false);
            if connection.count_worker() {
                server.clone().start_worker(connection.clone(), volume.clone());
            }
            let (limited, of_limited) = (connection.clone(), volume.clone());
            server.runtime.spawn(async move { limited.admit_jobs(&of_limited.bytes).await });
            if connection.receive_jobs((&volume.bytes, &server.traffic), &terms).await.is_err() {
                connection.end(Shutdown::Both);
            }
        });
    }

    /// Starts a worker, which starts the next one when no worker is left that waits for requests.
    fn start_worker(self: Rc<Self>, connection: Rc<NbdConnection>, volume: Rc<ServedVolume>) {
        self.runtime.clone().spawn(async move {
            while let Some(job) = connection.next_job().await {
                if connection.count_worker() {
                    self.clone().start_worker(connection.clone(), volume.clone());
                }
                self.serve(&connection, &volume, job).await;
            }
        });
    }

    /// Executes and answers a request. A request that waits for free space releases its worker, unless
    /// `MOST_HELD_BYTES` of data wait already: then it keeps its worker, and counts towards the limits of the
    /// connection, which accepts no requests beyond these.
    async fn serve(self: &Rc<Self>, connection: &Rc<NbdConnection>, volume: &Rc<ServedVolume>, mut job: Job) {
        let share = job.share();
        // A request without data takes memory and time too.
        let waiting = share.held_bytes.max(BLOCK as u64);
        let carried_out = self.carry_out(connection, &volume.bytes, &mut job).await;
        job.counted = None;
        let answer = match carried_out {
            Ok(Err(refused)) if self.waiting_bytes.get() + waiting <= MOST_HELD_BYTES => {
                connection.release(share);
                connection.wake_for_room();
                self.waiting_bytes.set(self.waiting_bytes.get() + waiting);
                let (server, connection, volume) = (self.clone(), connection.clone(), volume.clone());
                self.runtime.spawn(async move {
                    let answer = server.wait_for_room(&connection, &volume.bytes, &mut job, refused).await;
                    connection.end_job(&volume.bytes, job, ReplyShare::Waiting(waiting), answer).await;
                });
                return;
            }
            Ok(Err(refused)) => self.wait_for_room(connection, &volume.bytes, &mut job, refused).await,
            Ok(Ok(answer)) => Ok(answer),
            Err(error) => Err(error),
        };
        connection.end_job(&volume.bytes, job, ReplyShare::Running(share), answer).await;
        connection.give_way(share.read_bytes as usize).await;
    }

    /// Releases the room of a request that waited for free space, and has been answered.
    fn release_waiting(&self, bytes: u64) {
        self.waiting_bytes.set(self.waiting_bytes.get() - bytes);
    }

    /// Retries a request that was refused for lack of space, until there is an answer.
    async fn wait_for_room(
        &self,
        connection: &NbdConnection,
        volume: &Bytes,
        job: &mut Job,
        mut refused: DeviceError,
    ) -> io::Result<NbdAnswer> {
        let mut since = None;
        loop {
            if !volume.wait_for_room(refused, &mut since).await {
                return Ok(NbdAnswer::of(&job.request, Err(refused)));
            }
            match self.carry_out(connection, volume, job).await? {
                Ok(answer) => return Ok(answer),
                Err(error) => refused = error,
            }
        }
    }

    /// Executes a request. Returns the error in place of the answer if it was refused for lack of space and may wait
    /// for some.
    async fn carry_out(
        &self,
        connection: &NbdConnection,
        volume: &Bytes,
        job: &mut Job,
    ) -> io::Result<Result<NbdAnswer, DeviceError>> {
        let request = job.request;
        let (at, bytes, fua) = match request.work {
            Ok(NbdOperation::Zero { keep: true, fast: true, .. }) if volume.writes_zeros() => {
                return Ok(Ok(NbdAnswer::error(&request, wire::NOT_FAST)));
            }
            Ok(
                NbdOperation::Write { at, bytes, fua }
                | NbdOperation::Zero { at, bytes, fua, .. }
                | NbdOperation::Trim { at, bytes, fua },
            ) => (at, bytes as u64, fua),
            _ => return self.answer(connection, volume, &request).await.map(Ok),
        };
        let claim = volume.claim(at, bytes).await;
        if connection.has_hung_up() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let result = match request.work {
            Ok(NbdOperation::Zero { keep: true, .. }) => volume.zero_in_place(&claim, (at, bytes)).await,
            Ok(NbdOperation::Zero { .. }) => volume.zero(&claim, (at, bytes)).await,
            Ok(NbdOperation::Trim { .. }) => volume.trim(&claim, (at, bytes)).await,
            _ => {
                let mut from = at + bytes - job.held_bytes();
                let mut result = Ok(());
                while let Some((piece, inside)) = job.data.front_mut()
                    && result.is_ok()
                {
                    let length = inside.len() as u64;
                    result = volume.write(&claim, (from, length), piece, fua).await;
                    if result.is_ok() {
                        job.data.pop_front();
                        from += length;
                    }
                }
                result
            }
        };
        let writes = matches!(request.work, Ok(NbdOperation::Write { .. }));
        let result = if fua && !writes && result.is_ok() { volume.flush().await } else { result };
        drop(claim);
        // A trim frees space, and never waits for it.
        let may_wait = !matches!(request.work, Ok(NbdOperation::Trim { .. }));
        Ok(match result {
            Err(error) if error == Status::CapacityExceeded.into() && may_wait => Err(error),
            result => Ok(NbdAnswer::of(&request, result)),
        })
    }

    /// Executes a request that changes nothing.
    async fn answer(
        &self,
        connection: &NbdConnection,
        volume: &Bytes,
        request: &NbdRequest,
    ) -> io::Result<NbdAnswer> {
        let result = match request.work {
            Err(error) => return Ok(NbdAnswer::error(request, error)),
            Ok(NbdOperation::Read { bytes, whole: true, .. }) if bytes as u64 > PIECE_BYTES => {
                return Ok(NbdAnswer::error(request, wire::TOO_LONG));
            }
            Ok(NbdOperation::Read { at, bytes, whole }) => {
                return self.read((connection, volume), request, (at, bytes as u64), whole).await;
            }
            Ok(NbdOperation::Status { at, bytes, one }) => {
                let most = if one { 1 } else { MOST_EXTENTS };
                match extents(volume, at, bytes as u64, most).await {
                    Err(error) => Err(error),
                    Ok(extents) => {
                        let head = wire::chunk(request.cookie, true, Chunk::Extents(extents.len()));
                        return Ok(NbdAnswer::Reply(head, ReplyBody::Extents(wire::extents(&extents))));
                    }
                }
            }
            Ok(NbdOperation::Flush) => volume.flush().await,
            Ok(
                NbdOperation::Write { .. }
                | NbdOperation::Zero { .. }
                | NbdOperation::Trim { .. }
                | NbdOperation::Disconnect,
            ) => Ok(()),
        };
        Ok(NbdAnswer::of(request, result))
    }

    /// Executes a read. If it is longer than a piece, it is answered in pieces at once.
    async fn read(
        &self,
        (connection, volume): (&NbdConnection, &Bytes),
        request: &NbdRequest,
        (at, bytes): (u64, u64),
        is_whole: bool,
    ) -> io::Result<NbdAnswer> {
        let mut done = 0;
        let mut writing = None;
        // A read that must be answered in one piece is not longer than a piece.
        let most = if is_whole { PIECE_BYTES } else { self.piece_bytes() };
        while done < bytes {
            let piece = (bytes - done).min(most);
            let last = done + piece == bytes;
            let read = match piece < LONG_READ_BYTES {
                true => {
                    volume.read(at + done, piece).await.map(|(data, inside)| ReplyBody::Data(data, inside))
                }
                false => {
                    let read = volume.read_parts(at + done, piece).await;
                    read.map(|(parts, inside)| ReplyBody::Parts(parts, inside))
                }
            };
            let body = match read {
                Ok(body) => body,
                // In a simple reply success has been sent already: only closing the connection can report the error.
                Err(_) if writing.is_some() => return Err(ErrorKind::ConnectionAborted.into()),
                Err(error) => return Ok(NbdAnswer::error(request, wire::errno(error))),
            };
            let head = match request.chunks {
                true => {
                    let chunk = Chunk::Data { at: at + done, bytes: piece as u32 };
                    wire::chunk(request.cookie, last, chunk)
                }
                false => wire::simple(request.cookie, 0),
            };
            if piece == bytes {
                return Ok(NbdAnswer::Reply(head, body));
            }
            if request.chunks || writing.is_none() {
                writing = Some(connection.take_turn().await);
            }
            let with_head = request.chunks || done == 0;
            let sent = connection.send_now(with_head.then_some(&head), &body).await;
            body.give_back(volume);
            sent?;
            if request.chunks {
                writing = None;
            }
            done += piece;
        }
        Ok(NbdAnswer::Sent)
    }
}

/// Extents of a range, at most `most` of them: their lengths, and whether they are mapped.
async fn extents(volume: &Bytes, at: u64, bytes: u64, most: usize) -> Result<Vec<(u32, bool)>, DeviceError> {
    let (mut extents, mut done) = (Vec::new(), 0);
    while done < bytes && extents.len() < most {
        let (alike, mapped) = volume.extent(at + done, bytes - done).await?;
        extents.push((alike as u32, mapped));
        done += alike;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests;
