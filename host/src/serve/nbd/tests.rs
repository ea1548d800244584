//! Tests of the NBD server within one process: a client sends bytes on a thread of its own, or in the test's.

use super::{
    MOST_READ_BYTES, MOST_RUNNING, NbdAddress, PIECE_BYTES, Server,
    connection::NbdConnection,
    wire::{NbdExport, NbdOperation, NbdTerms, Negotiation},
};
use crate::{reactor::Reactor, serve::bytes::Bytes};
use emu::ssd::{EmulatedDrive, Model};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, Geometry, Slots, ZonedDevice},
    runtime::Runtime,
    volume::{Volume, VolumeCreateOptions, VolumeOptions},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::UnixStream,
    rc::{Rc, Weak},
    time::Duration,
};

/// Blocks of the volume.
const BLOCKS: u64 = 2048;

const READ: u16 = 0;
const WRITE: u16 = 1;

/// A drive in memory of which reads wait for [`Slow::answer`], if they are held.
struct Slow {
    drive: EmulatedDrive,
    holds: Cell<bool>,
    held: RefCell<Vec<(Command, Completer)>>,
}

impl Slow {
    fn answer(&self) {
        for (command, answer) in self.held.take() {
            answer.complete(self.drive.ssd().borrow_mut().execute(command));
        }
    }
}

impl ZonedDevice for Slow {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        if !self.holds.get() || !matches!(command, Command::Read { .. }) {
            return self.drive.submit(command);
        }
        let (answer, completion) = Rc::new(Slots::default()).pair();
        self.held.borrow_mut().push((command, answer));
        completion
    }
}

/// The byte at this offset of the volume: each block differs.
fn byte_at(at: u64) -> u8 {
    (at / BLOCK as u64 * 7 + at % 251) as u8
}

fn bytes_at(at: u64, bytes: u64) -> Vec<u8> {
    (at..at + bytes).map(byte_at).collect()
}

/// A volume with [`byte_at`] everywhere.
fn filled_volume(runtime: &Runtime) -> (Rc<Slow>, Volume) {
    let drive = EmulatedDrive::in_memory(&Model::zn540().scaled(24, 1024).geometry);
    let drive = Rc::new(Slow { drive, holds: Cell::default(), held: RefCell::default() });
    let options =
        VolumeCreateOptions { uuid: [1; 16], blocks: Some(BLOCKS), ..VolumeCreateOptions::default() };
    runtime.block_on(Volume::create(runtime, drive.clone(), options), || false).unwrap().unwrap();
    let opened = Volume::open(runtime, drive.clone(), VolumeOptions::default());
    let volume = runtime.block_on(opened, || false).unwrap().unwrap();
    for block in (0..BLOCKS).step_by(64) {
        let data = Buf::copy_of(&bytes_at(block * BLOCK as u64, 64 * BLOCK as u64));
        runtime.block_on(volume.write(block, &data, false), || false).unwrap().unwrap();
    }
    runtime.run();
    (drive, volume)
}

fn request(kind: u16, cookie: u64, at: u64, bytes: u32) -> Vec<u8> {
    let (magic, flags) = (0x2560_9513_u32.to_be_bytes(), [0, 0]);
    let kind = kind.to_be_bytes();
    [&magic[..], &flags, &kind, &cookie.to_be_bytes(), &at.to_be_bytes(), &bytes.to_be_bytes()].concat()
}

/// Reads with the cookies from 0 on, of `of(cookie)` (offset, length).
fn reads(count: u64, of: impl Fn(u64) -> (u64, u64)) -> Vec<u8> {
    (0..count).flat_map(|cookie| request(READ, cookie, of(cookie).0, of(cookie).1 as u32)).collect()
}

/// A server of a filled volume; `None` on a machine without io_uring.
struct Rig {
    reactor: Reactor,
    drive: Rc<Slow>,
    server: Rc<Server>,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Option<Rig> {
        let (reactor, dir) = (Reactor::default(), tempfile::tempdir().unwrap());
        reactor.ring().ok()?;
        let (drive, volume) = filled_volume(reactor.runtime());
        let place = NbdAddress::Socket(dir.path().join("nbd.sock"));
        let server = Server::start(&reactor, vec![("tank".into(), volume)], &place, false).unwrap();
        Some(Rig { reactor, drive, server, dir })
    }

    /// A client in this thread that has sent its negotiation.
    fn client(&self) -> UnixStream {
        let mut client = UnixStream::connect(self.dir.path().join("nbd.sock")).unwrap();
        client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        self.run(20);
        client.read_exact(&mut [0; 28]).unwrap();
        client
    }

    /// Runs the server for so many milliseconds.
    fn run(&self, ms: u64) {
        let ring = self.reactor.ring().unwrap().clone();
        self.reactor.wait(async move { _ = ring.sleep(Duration::from_millis(ms)).await }).unwrap();
    }

    fn connection(&self) -> Rc<NbdConnection> {
        self.server.connected().next().unwrap()
    }

    /// Runs the server until `client` has ended on a thread of its own.
    fn serve<T: Send + 'static>(&self, client: impl FnOnce() -> T + Send + 'static) -> T {
        self.reactor.wait(self.reactor.offload(client)).unwrap().unwrap().expect("the client has failed")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.reactor.runtime().clear();
    }
}

/// Reads the simple reply to a read of `of(cookie)` (offset, length), and returns its cookie.
fn take_reply(client: &mut UnixStream, of: impl Fn(u64) -> (u64, u64)) -> u64 {
    let mut head = [0; 16];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[..8], *b"\x67\x44\x66\x98\0\0\0\0");
    let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
    let (at, bytes) = of(cookie);
    let mut data = vec![0; bytes as usize];
    client.read_exact(&mut data).unwrap();
    assert!(data == bytes_at(at, bytes), "reply {cookie}");
    cookie
}

#[test]
fn nbd_many_requests_in_one_segment_are_all_answered() {
    let Some(rig) = Rig::new() else { return };
    let mut client = rig.client();
    let of = |cookie: u64| (cookie * 4099, 1 + cookie * 13);
    let requests = reads(1500, of);
    let cookies: BTreeSet<u64> = rig.serve(move || {
        client.write_all(&requests).unwrap();
        (0..1500).map(|_| take_reply(&mut client, of)).collect()
    });
    assert_eq!(cookies.len(), 1500);
    assert_eq!(rig.server.requests(), 1500);
}

/// Replies of several pieces are not interleaved with others, and each piece has its place.
#[test]
fn nbd_long_reads_beside_short_ones_are_whole() {
    let Some(rig) = Rig::new() else { return };
    let mut client = rig.client();
    let of = |cookie: u64| match cookie % 8 {
        0 => (cookie * 333, 2 * PIECE_BYTES + 4097),
        1 => (cookie * 4096, PIECE_BYTES),
        _ => (cookie * 777, 5000 + cookie * 1000),
    };
    let requests = reads(64, of);
    let cookies: BTreeSet<u64> = rig.serve(move || {
        client.write_all(&requests).unwrap();
        (0..64).map(|_| take_reply(&mut client, of)).collect()
    });
    assert_eq!(cookies.len(), 64);
}

#[test]
fn nbd_client_has_128_requests_in_execution() {
    let Some(rig) = Rig::new() else { return };
    let mut client = rig.client();
    rig.drive.holds.set(true);
    client.write_all(&reads(200, |cookie| (cookie * 8192, 4096))).unwrap();
    rig.run(50);
    assert_eq!(rig.drive.held.borrow().len(), MOST_RUNNING);
    rig.drive.holds.set(false);
    rig.drive.answer();
    let cookies: BTreeSet<u64> = rig
        .serve(move || (0..200).map(|_| take_reply(&mut client, |cookie| (cookie * 8192, 4096))).collect());
    assert_eq!(cookies.len(), 200);
}

/// Until the client reads replies, their number and the memory for their data are limited. Then all are sent.
#[test]
fn nbd_client_that_reads_no_replies_holds_bounded_memory() {
    for bytes in [4096, 100 << 10, 1 << 20] {
        let Some(rig) = Rig::new() else { return };
        let (mut client, connection) = (rig.client(), rig.connection());
        let of = move |cookie: u64| (cookie % 7 * 4000, bytes);
        client.write_all(&reads(300, of)).unwrap();
        rig.run(300);
        let (running, read_bytes) = connection.in_execution();
        assert!(running <= MOST_RUNNING && read_bytes <= MOST_READ_BYTES, "{running}, {read_bytes} bytes");
        let is_full = running == MOST_RUNNING || read_bytes + bytes > MOST_READ_BYTES;
        assert!(is_full, "{running} of {bytes} bytes are less than allowed");
        assert!(
            rig.server.requests() < 300 - running as u64 + 1,
            "requests count when they have been answered"
        );
        let cookies: BTreeSet<u64> =
            rig.serve(move || (0..300).map(|_| take_reply(&mut client, of)).collect());
        assert_eq!(cookies.len(), 300);
        rig.run(20);
        assert_eq!(connection.in_execution(), (0, 0));
    }
}

/// Requests in any state when the client hangs up: received in part, queued, or with unread replies.
#[test]
fn nbd_hang_up_in_any_state_releases_connection() {
    let Some(rig) = Rig::new() else { return };
    for sent in [1, 27, 28, 29, 28 + 4000, 28 + 300_000, usize::MAX] {
        let mut client = rig.client();
        let (first, second) = (vec![5; 4096], vec![6; 600_000]);
        let write = [&request(WRITE, 1, 0, 4096)[..], &first].concat();
        let half = [&request(WRITE, 2, 1 << 20, 600_000)[..], &second].concat();
        rig.serve(move || {
            client.write_all(&write).unwrap();
            let mut reply = [0; 16];
            client.read_exact(&mut reply).unwrap();
            for cookie in 0..if sent == usize::MAX { 200 } else { 0 } {
                client.write_all(&request(READ, cookie, 0, 1 << 20)).unwrap();
            }
            client.write_all(&half[..sent.min(400_000)]).unwrap();
        });
        for _ in 0..200 {
            if rig.server.clients() == 0 {
                break;
            }
            rig.run(10);
        }
        assert_eq!((rig.server.clients(), rig.server.waiting_bytes.get()), (0, 0), "after {sent} bytes");
    }
    let mut client = rig.client();
    let (acknowledged, other) = rig.serve(move || {
        let mut read = |at| {
            client.write_all(&request(READ, 3, at, 4096)).unwrap();
            let mut reply = vec![0; 16 + 4096];
            client.read_exact(&mut reply).unwrap();
            reply[16..].to_vec()
        };
        (read(0), read(1 << 20))
    });
    assert!(acknowledged == [5; 4096], "the acknowledged write is there");
    assert!(other == bytes_at(1 << 20, 4096), "no write that was not received completely is");
}

/// Terms of a client that selects the only export.
fn terms() -> NbdTerms {
    let export = NbdExport {
        name: "tank".into(),
        size_bytes: BLOCKS * BLOCK as u64,
        read_only: false,
        is_snapshot: false,
    };
    let mut negotiation = Negotiation::new(vec![export], [0, 0, 0, 3]).unwrap();
    negotiation.answer(b"IHAVEOPT\0\0\0\x01\0\0\0\0", b"", &mut Vec::new());
    negotiation.terms()
}

/// Requests, and data of writes of several lengths, that arrive in two parts, or in single bytes.
#[test]
fn nbd_requests_split_at_any_byte_are_received() {
    let reactor = Reactor::default();
    if reactor.ring().is_err() {
        return;
    }
    let (_drive, volume) = filled_volume(reactor.runtime());
    let bytes = Rc::new(Bytes::of(volume, Rc::new(|_| None), None));
    let data = |length: usize| (0..length).map(|at| (at * at) as u8).collect::<Vec<u8>>();
    let lengths = [5_usize, 0, 700, 4096, 0, 33_000, 3, 300_000, 1];
    let (mut stream, mut starts) = (Vec::new(), Vec::new());
    for (cookie, length) in lengths.into_iter().enumerate() {
        starts.push(stream.len());
        let (kind, bytes) = if length == 0 { (READ, 512) } else { (WRITE, length as u32) };
        stream.extend(request(kind, cookie as u64, 4097, bytes));
        stream.extend(data(length));
    }
    // All bytes near the start of a request or of its data, and some others.
    let near =
        |at: &usize| starts.iter().any(|start| (*start..start + 60).contains(at)) || at.is_multiple_of(9973);
    let splits: Vec<Vec<usize>> =
        (0..stream.len()).filter(near).map(|at| vec![at]).chain([(0..900).collect()]).collect();
    for split in splits {
        let (mut client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let ring = reactor.ring().unwrap().clone();
        let connection = Rc::new(NbdConnection::new(ring.clone(), socket.into(), (1, false), Weak::new()));
        let (receiving, volume) = (connection.clone(), bytes.clone());
        reactor.runtime().spawn(async move {
            receiving.receive_jobs((&volume, &receiving.traffic), &terms()).await.unwrap();
        });
        let mut from = 0;
        for to in split.iter().copied().chain([stream.len()]) {
            for piece in stream[from..to].chunks(50_000) {
                client.write_all(piece).unwrap();
                reactor.runtime().run();
                ring.submit().unwrap();
                while ring.pass().is_ok() && reactor.runtime().step() {}
            }
            from = to;
        }
        for _ in 0..100 {
            if connection.queued().len() == lengths.len() {
                break;
            }
            reactor.wait(ring.sleep(Duration::from_millis(1))).unwrap();
        }
        let jobs = connection.queued();
        assert_eq!(jobs.len(), lengths.len(), "split at {split:?}");
        for (cookie, (job, length)) in jobs.iter().zip(lengths).enumerate() {
            assert_eq!(job.request.cookie, cookie as u64);
            assert_eq!(matches!(job.request.work, Ok(NbdOperation::Write { .. })), length > 0);
            let received: Vec<u8> =
                job.data.iter().flat_map(|(buffer, inside)| buffer[inside.clone()].to_vec()).collect();
            assert!(received == data(length), "data of request {cookie}, split at {split:?}");
        }
        drop(jobs);
        drop(client);
        reactor.wait(ring.sleep(Duration::from_millis(1))).unwrap();
    }
    reactor.runtime().clear();
}
