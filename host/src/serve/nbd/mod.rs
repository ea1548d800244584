//! NBD server for volumes, on a Unix socket or an IP address; it needs neither root nor kernel support.
//!
//! `wire.rs` is the protocol, `../bytes.rs` byte access to the volume, `address.rs` the address, `connection.rs` one
//! client: a task receives requests, with all data of a write, and workers execute and answer them. A client that does
//! not read its answers, or sends half of a request, blocks only its own connection.
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

/// Requests of a client in execution at a time.
const WORKERS: usize = 16;

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

    /// Counts a received request and returns its number.
    fn count_request(&self) -> u64 {
        self.received.set(self.received.get() + 1);
        self.received.get()
    }

    /// Number of active clients.
    fn active(&self) -> usize {
        let active = |connection: &Rc<NbdConnection>| connection.is_active(self.received.get());
        self.connections.borrow().iter().filter_map(Weak::upgrade).filter(active).count()
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
            for _ in 0..WORKERS {
                let (server, connection, volume) = (server.clone(), connection.clone(), volume.clone());
                server.runtime.clone().spawn(async move {
                    while let Some(job) = connection.next_job().await {
                        server.clone().serve(connection.clone(), &volume, job).await;
                    }
                });
            }
            let (limited, of_limited) = (connection.clone(), volume.clone());
            server.runtime.spawn(async move { limited.admit_jobs(&of_limited.bytes).await });
            if connection.receive_jobs((&volume.bytes, &server.traffic), &terms).await.is_err() {
                connection.end(Shutdown::Both);
            }
        });
    }

    /// Executes and answers a request. A request that waits for free space releases its worker, unless
    /// `MOST_HELD_BYTES` of data wait already: then it keeps its worker, and counts towards the limits of the
    /// connection, which accepts no requests beyond these.
    async fn serve(self: Rc<Self>, connection: Rc<NbdConnection>, volume: &Rc<ServedVolume>, mut job: Job) {
        let (bytes, cost) = (job.held_bytes(), job.cost());
        // A request without data takes memory and time too.
        let waiting = bytes.max(BLOCK as u64);
        match self.carry_out(&connection, &volume.bytes, &mut job).await {
            Ok(Some(refused)) if self.waiting_bytes.get() + waiting <= MOST_HELD_BYTES => {
                connection.release(bytes, cost);
                self.waiting_bytes.set(self.waiting_bytes.get() + waiting);
                let (server, volume) = (self.clone(), volume.clone());
                self.runtime.spawn(async move {
                    server.wait_for_room(&connection, &volume.bytes, job, refused).await;
                    server.waiting_bytes.set(server.waiting_bytes.get() - waiting);
                });
            }
            Ok(Some(refused)) => {
                self.wait_for_room(&connection, &volume.bytes, job, refused).await;
                connection.release(bytes, cost);
            }
            answered => {
                connection.release(bytes, cost);
                self.end_job(&connection, &job, answered.map(drop));
            }
        }
    }

    /// Retries a request that was refused for lack of space, until it is answered.
    async fn wait_for_room(
        &self,
        connection: &NbdConnection,
        volume: &Bytes,
        mut job: Job,
        mut refused: DeviceError,
    ) {
        let mut since = None;
        let answered = loop {
            if !volume.wait_for_room(refused, &mut since).await {
                break connection.answer(&job.request, Err(refused)).await;
            }
            match self.carry_out(connection, volume, &mut job).await {
                Ok(Some(error)) => refused = error,
                answered => break answered.map(drop),
            }
        };
        self.end_job(connection, &job, answered);
    }

    /// Counts an answered request, and closes the connection if the answer could not be sent.
    fn end_job(&self, connection: &NbdConnection, job: &Job, answered: io::Result<()>) {
        for traffic in [&self.traffic, &connection.traffic] {
            let latency = job.begun.map(|begun| begun.elapsed());
            match job.request.work {
                Ok(NbdOperation::Read { bytes, .. }) => traffic.reads.count(bytes as u64, latency),
                Ok(NbdOperation::Write { bytes, .. }) => traffic.writes.count(bytes as u64, latency),
                _ => {}
            }
        }
        if answered.is_err() {
            connection.end(Shutdown::Both);
        }
    }

    /// Executes and answers a request. Returns the error, without an answer, if it was refused for lack of space and
    /// may wait for some.
    async fn carry_out(
        &self,
        connection: &NbdConnection,
        volume: &Bytes,
        job: &mut Job,
    ) -> io::Result<Option<DeviceError>> {
        let request = job.request;
        let (at, bytes, fua) = match request.work {
            Ok(NbdOperation::Zero { keep: true, fast: true, .. }) if volume.writes_zeros() => {
                return connection.refuse(&request, wire::NOT_FAST).await.map(|()| None);
            }
            Ok(
                NbdOperation::Write { at, bytes, fua }
                | NbdOperation::Zero { at, bytes, fua, .. }
                | NbdOperation::Trim { at, bytes, fua },
            ) => (at, bytes as u64, fua),
            _ => return self.answer(connection, volume, &request).await.map(|()| None),
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
        match result {
            Err(error) if error == Status::CapacityExceeded.into() && may_wait => Ok(Some(error)),
            result => connection.answer(&request, result).await.map(|()| None),
        }
    }

    /// Executes and answers a request that changes nothing.
    async fn answer(
        &self,
        connection: &NbdConnection,
        volume: &Bytes,
        request: &NbdRequest,
    ) -> io::Result<()> {
        let refused = |error| connection.refuse(request, error);
        let result = match request.work {
            Err(error) => return refused(error).await,
            Ok(NbdOperation::Read { bytes, whole: true, .. }) if bytes as u64 > PIECE_BYTES => {
                return refused(wire::TOO_LONG).await;
            }
            Ok(NbdOperation::Read { at, bytes, whole }) => {
                return self.read((connection, volume), request, (at, bytes as u64), whole).await;
            }
            Ok(NbdOperation::Status { at, bytes, one }) => {
                let most = if one { 1 } else { MOST_EXTENTS };
                match extents(volume, at, bytes as u64, most).await {
                    Err(error) => return refused(wire::errno(error)).await,
                    Ok(extents) => {
                        let chunk = wire::chunk(request.cookie, true, Chunk::Extents(&extents));
                        return connection.send(&[&chunk]).await;
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
        connection.answer(request, result).await
    }

    /// Answers a read in pieces.
    async fn read(
        &self,
        (connection, volume): (&NbdConnection, &Bytes),
        request: &NbdRequest,
        (at, bytes): (u64, u64),
        is_whole: bool,
    ) -> io::Result<()> {
        let mut done = 0;
        let mut writing = None;
        // A read that must be answered in one piece is not longer than a piece.
        let most = if is_whole { PIECE_BYTES } else { self.piece_bytes() };
        while done < bytes {
            let piece = (bytes - done).min(most);
            let last = done + piece == bytes;
            let (data, inside) = match volume.read(at + done, piece).await {
                Ok(read) => read,
                // In a simple reply success has been sent already: only closing the connection can report the error.
                Err(_) if writing.is_some() => return Err(ErrorKind::ConnectionAborted.into()),
                Err(error) => return connection.refuse(request, wire::errno(error)).await,
            };
            if request.chunks {
                let chunk = Chunk::Data { at: at + done, bytes: piece as u32 };
                let head = wire::chunk(request.cookie, last, chunk);
                connection.send(&[&head, &data[inside]]).await?;
            } else {
                let head = wire::simple(request.cookie, 0);
                let head = if done == 0 { &head[..] } else { &[] };
                if writing.is_none() {
                    writing = Some(connection.take_turn().await);
                }
                connection.send_now(head).await?;
                connection.send_now(&data[inside]).await?;
            }
            volume.give(data);
            done += piece;
        }
        Ok(())
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
