//! A volume for NBD clients: on a socket or at an address, without the kernel's help, and without root.
//!
//! `wire.rs` is the protocol, `../bytes.rs` the volume by bytes, `place.rs` where clients connect; this is what goes to
//! and fro. A connection has a few workers, each of which takes a request, carries it out and answers it, so
//! that so many are on their way and no more memory is taken than theirs. Whoever does not read its answers, or
//! sends half of a request, keeps its own connection waiting, and nobody else's.

mod place;
pub mod wire;

pub use place::{Place, parse_place};

use crate::{
    bytes::Bytes,
    reactor::{self, Reactor},
    ring::Ring,
};
use anyhow::Result;
use engine::{
    device::DeviceError,
    runtime::{Exclusive, Gate, Held, Runtime},
    volume::Volume,
};
use rustix::{
    io::Errno,
    net::{
        Shutdown, SocketFlags, accept_with, shutdown,
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
use wire::{Chunk, Export, Negotiation, Next, Request, Terms, Work};

/// Most connections at a time; more have to wait.
const MAX_CONNECTIONS: usize = 16;

/// Requests of a connection that are on their way.
const WORKERS: usize = 16;

/// Times that a client is read from before others may go on.
const READS: u32 = 32;

/// Most bytes that a worker has in memory: longer requests are carried out piece by piece.
const PIECE_BYTES: u64 = 1 << 20;

/// Most extents in one answer, and most bytes that they cover: looking for them takes time.
const MOST_EXTENTS: usize = 64;
const MOST_COVERED_BYTES: u64 = 1 << 30;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// After what time a client that does not answer at all, not even its kernel, is done without.
const VANISHED: Duration = Duration::from_secs(120);

/// How long it is waited when no connection can be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// A volume that is served.
pub struct Server {
    bytes: Bytes,
    export: Export,
    ring: Ring,
    runtime: Runtime,
    place: Place,
    listener: Rc<OwnedFd>,
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Opened when a connection has ended.
    ended: Gate,
    ending: Cell<bool>,
}

impl Server {
    /// Listens at `place`, and serves whoever connects until it is closed.
    pub fn start(reactor: &Reactor, volume: Volume, place: &Place, export: Export) -> Result<Rc<Server>> {
        let (listener, place) = place.listen()?;
        let server = Rc::new(Server {
            bytes: Bytes::of(volume, reactor.buffers()),
            export,
            ring: reactor.ring()?.clone(),
            runtime: reactor.runtime().clone(),
            place,
            listener: Rc::new(listener),
            connections: RefCell::default(),
            ended: Gate::default(),
            ending: Cell::new(false),
        });
        server.runtime.spawn(server.clone().take_connections());
        Ok(server)
    }

    /// Where clients connect.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// How many clients there are.
    pub fn clients(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.strong_count() > 0).count()
    }

    /// Takes no more requests, and waits until those on their way have been answered.
    pub async fn close(self: &Rc<Self>) {
        self.ending.set(true);
        self.place.close();
        for connection in self.connections.borrow().iter().filter_map(Weak::upgrade) {
            connection.end(Shutdown::Read);
        }
        let (ring, patience) = (self.ring.clone(), Rc::downgrade(self));
        self.runtime.spawn(async move {
            ring.sleep(PATIENCE).await;
            // Those who do not read what they are told.
            if let Some(server) = patience.upgrade() {
                server
                    .connections
                    .borrow()
                    .iter()
                    .filter_map(Weak::upgrade)
                    .for_each(|c| c.end(Shutdown::Both));
            }
        });
        while self.clients() > 0 {
            self.ended.wait().await;
        }
    }

    async fn take_connections(self: Rc<Self>) {
        while !self.ending.get() {
            self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
            if self.clients() >= MAX_CONNECTIONS {
                self.ended.wait().await;
                continue;
            }
            match accept_with(&*self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.clone().welcome(socket),
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.ring.ready(self.listener.clone(), libc::POLLIN).await;
                }
                // The client has gone again, or there are no descriptors left.
                Err(_) => _ = self.ring.sleep(PAUSE).await,
            }
        }
    }

    fn welcome(self: Rc<Self>, socket: OwnedFd) {
        // No matter for a socket of the file system. A client whose host has vanished keeps no place.
        let _ = set_tcp_nodelay(&socket, true);
        let _ = set_socket_keepalive(&socket, true);
        let _ = set_tcp_keepidle(&socket, VANISHED / 2);
        let _ = set_tcp_keepintvl(&socket, VANISHED / 4);
        let _ = set_tcp_user_timeout(&socket, VANISHED.as_millis() as u32);
        let connection = Rc::new(Connection {
            ring: self.ring.clone(),
            socket: Rc::new(socket),
            reading: Exclusive::default(),
            writing: Exclusive::default(),
            done: Cell::new(false),
            agreed: Cell::new(false),
            read: Cell::new(0),
            server: Rc::downgrade(&self),
        });
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        let (hasty, ring) = (Rc::downgrade(&connection), self.ring.clone());
        self.runtime.spawn(async move {
            ring.sleep(PATIENCE).await;
            if let Some(slow) = hasty.upgrade().filter(|connection| !connection.agreed.get()) {
                slow.end(Shutdown::Both);
            }
        });
        let server = self.clone();
        self.runtime.spawn(async move {
            // Whoever has gone away, or talks nonsense, is nobody's concern.
            let Ok(Some(terms)) = connection.negotiate(&server.export).await else { return };
            connection.agreed.set(true);
            for _ in 0..WORKERS {
                let (server, connection) = (server.clone(), connection.clone());
                server.runtime.clone().spawn(async move {
                    if server.work(&connection, &terms).await.is_err() {
                        connection.end(Shutdown::Both);
                    }
                });
            }
        });
    }

    /// Takes requests and answers them until there are no more.
    async fn work(&self, connection: &Connection, terms: &Terms) -> io::Result<()> {
        loop {
            let reading = connection.reading.take().await;
            if connection.done.get() {
                return Ok(());
            }
            let mut header = [0; wire::REQUEST_BYTES];
            let received = connection.receive(&mut header).await;
            let request = received.and_then(|()| Request::read(&header, terms).ok_or_else(nonsense));
            let request = match request {
                Ok(request) if request.work != Ok(Work::Disconnect) => request,
                end => {
                    // Others may still have something to answer.
                    connection.done.set(true);
                    return end.map(|_| ()).or_else(|error| match error.kind() {
                        ErrorKind::UnexpectedEof => Ok(()),
                        _ => Err(error),
                    });
                }
            };
            if let Ok(Work::Write { at, bytes, fua }) = request.work {
                let result = self.take_in(connection, (at, bytes as u64), fua, reading).await?;
                connection.answer(&request, result).await?;
                continue;
            }
            connection.skip(request.payload_bytes).await?;
            drop(reading);
            self.answer(connection, &request).await?;
        }
    }

    /// Writes what a client sends. The last piece is written while others take requests.
    async fn take_in(
        &self,
        connection: &Connection,
        (at, bytes): (u64, u64),
        fua: bool,
        reading: Held<'_>,
    ) -> io::Result<Result<(), DeviceError>> {
        let (mut done, mut result) = (0, Ok(()));
        let mut reading = Some(reading);
        while done < bytes {
            let piece = (bytes - done).min(PIECE_BYTES);
            let (mut data, inside) = self.bytes.buffer(at + done, piece);
            if let Err(error) = connection.receive(&mut data[inside]).await {
                connection.done.set(true);
                return Err(error);
            }
            if done + piece == bytes {
                reading.take();
            }
            if result.is_ok() {
                result = self.bytes.write(at + done, piece, data, fua).await;
            }
            done += piece;
        }
        Ok(result)
    }

    /// Carries out what is no write, and answers.
    async fn answer(&self, connection: &Connection, request: &Request) -> io::Result<()> {
        let refused = |error| connection.refuse(request, error);
        let result = match request.work {
            Err(error) => return refused(error).await,
            Ok(Work::Read { bytes, whole: true, .. }) if bytes as u64 > PIECE_BYTES => {
                return refused(wire::TOO_LONG).await;
            }
            Ok(Work::Read { at, bytes, .. }) => {
                return self.read(connection, request, (at, bytes as u64)).await;
            }
            Ok(Work::Status { at, bytes, one }) => {
                let most = if one { 1 } else { MOST_EXTENTS };
                match self.extents(at, bytes as u64, most).await {
                    Err(error) => return refused(wire::errno(error)).await,
                    Ok(extents) => {
                        let chunk = wire::chunk(request.cookie, true, Chunk::Extents(&extents));
                        return connection.send(&[&chunk]).await;
                    }
                }
            }
            Ok(Work::Zero { at, bytes, fua }) => {
                let result = self.bytes.zero(at, bytes as u64).await;
                self.safe(result, fua).await
            }
            Ok(Work::Trim { at, bytes, fua }) => {
                let result = self.bytes.trim(at, bytes as u64).await;
                self.safe(result, fua).await
            }
            Ok(Work::Flush) => self.bytes.flush().await,
            Ok(Work::Write { .. } | Work::Disconnect) => Ok(()),
        };
        connection.answer(request, result).await
    }

    async fn safe(&self, result: Result<(), DeviceError>, fua: bool) -> Result<(), DeviceError> {
        match (result, fua) {
            (Ok(()), true) => self.bytes.flush().await,
            (result, _) => result,
        }
    }

    /// Answers a read, piece by piece.
    async fn read(
        &self,
        connection: &Connection,
        request: &Request,
        (at, bytes): (u64, u64),
    ) -> io::Result<()> {
        let mut done = 0;
        let mut writing = None;
        while done < bytes {
            let piece = (bytes - done).min(PIECE_BYTES);
            let last = done + piece == bytes;
            let (data, inside) = match self.bytes.read(at + done, piece).await {
                Ok(read) => read,
                // Without chunks the client has been told that all is well.
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
                    writing = Some(connection.writing.take().await);
                }
                connection.send_now(head).await?;
                connection.send_now(&data[inside]).await?;
            }
            self.bytes.give(data);
            done += piece;
        }
        Ok(())
    }

    async fn extents(&self, at: u64, bytes: u64, most: usize) -> Result<Vec<(u32, bool)>, DeviceError> {
        let (mut extents, mut done) = (Vec::new(), 0);
        let bytes = bytes.min(MOST_COVERED_BYTES);
        while done < bytes && extents.len() < most {
            let (alike, mapped) = self.bytes.extent(at + done, bytes - done).await?;
            extents.push((alike as u32, mapped));
            done += alike;
        }
        Ok(extents)
    }
}

/// One client.
struct Connection {
    ring: Ring,
    socket: Rc<OwnedFd>,
    /// Who takes a request, and who sends an answer.
    reading: Exclusive,
    writing: Exclusive,
    /// No more requests are taken.
    done: Cell<bool>,
    /// It has been agreed on what requests are like.
    agreed: Cell<bool>,
    /// Reads since others could go on, whatever the client sends.
    read: Cell<u32>,
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
    /// Comes to terms; `None` if the client has gone.
    async fn negotiate(&self, export: &Export) -> io::Result<Option<Terms>> {
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
            let next = negotiation.answer(&header, &data, &mut replies);
            self.send(&[&replies]).await?;
            match next {
                Next::Option => {}
                Next::Requests => return Ok(Some(negotiation.terms())),
                Next::End => return Ok(None),
            }
        }
    }

    /// What was asked for has come to this.
    async fn answer(&self, request: &Request, result: Result<(), DeviceError>) -> io::Result<()> {
        match result {
            Ok(()) => self.send(&[&wire::simple(request.cookie, 0)]).await,
            Err(error) => self.refuse(request, wire::errno(error)).await,
        }
    }

    async fn refuse(&self, request: &Request, error: u32) -> io::Result<()> {
        match request.chunks {
            true => self.send(&[&wire::chunk(request.cookie, true, Chunk::Error(error))]).await,
            false => self.send(&[&wire::simple(request.cookie, error)]).await,
        }
    }

    /// Sends an answer, and no other one in the middle of it.
    async fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let _turn = self.writing.take().await;
        for part in parts {
            self.send_now(part).await?;
        }
        Ok(())
    }

    /// As [`Connection::send`], for whoever has the turn.
    async fn send_now(&self, mut left: &[u8]) -> io::Result<()> {
        while !left.is_empty() {
            match rustix::net::send(&*self.socket, left, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => left = &left[count..],
                Err(error) => self.wait(error, libc::POLLOUT).await?,
            }
        }
        Ok(())
    }

    async fn receive(&self, target: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < target.len() {
            match rustix::io::read(&*self.socket, &mut target[done..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    done += count;
                    self.give_way().await;
                }
                Err(error) => self.wait(error, libc::POLLIN).await?,
            }
        }
        Ok(())
    }

    /// Lets others go on now and then, also if this client always has something more to say.
    async fn give_way(&self) {
        self.read.set(self.read.get() % READS + 1);
        if self.read.get() == READS {
            reactor::give_way().await;
        }
    }

    /// Reads data that nobody wants.
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

    /// Ends the connection, or only what the client sends.
    fn end(&self, which: Shutdown) {
        self.done.set(true);
        // The client may have been first.
        let _ = shutdown(&*self.socket, which);
    }
}
