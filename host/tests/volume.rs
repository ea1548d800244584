//! Volumes from end to end: created, served to NBD clients without root, stopped, and refused with a clear message.

use crate::{
    json::check_schema,
    support::{Place, Ran, Random, as_nobody, drive, fingerprint, nobody},
};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// A place with an array of five drives that carries a volume of 64 MiB.
pub fn with_volume() -> Place {
    let place = Place::new();
    emulate(&place, 6);
    place.create("tank", "drives", 5).ok();
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    place
}

/// Creates drives of 32 zones of 4 MiB.
pub fn emulate(place: &Place, count: usize) {
    let count = count.to_string();
    place
        .run(&["emulate", "create", "drives", "--count", &count, "--zones", "32", "--zone-capacity", "4M"])
        .ok();
}

/// Creates a volume of 64 MiB on the array in `drives`, serves it, and writes `data` to its start.
pub fn serve_filled(place: &Place, data: &[u8]) -> Server {
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    let server = Server::of(place, &[]);
    let mut client = Client::ready(place, false);
    for (at, piece) in (0..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        assert_eq!(client.write(at, piece, true), 0);
    }
    server
}

/// Whether the served volume begins with `data`, and all of it can be read.
pub fn is_right(place: &Place, data: &[u8]) -> bool {
    let mut client = Client::ready(place, false);
    let mut pieces = (0..).step_by(1 << 20).zip(data.chunks(1 << 20));
    pieces.all(|(at, piece)| client.read(at, piece.len() as u32) == Ok(piece.to_vec()))
}

/// A server that has reported that it is ready.
pub struct Server {
    pub process: Child,
    pub said: String,
}

impl Server {
    fn pid(&self) -> String {
        format!("process {}", self.process.id())
    }

    pub fn of(place: &Place, options: &[&str]) -> Server {
        let args = [&["serve", "drives", "--nbd", "nbd.sock"], options].concat();
        Server::started(place.command(&args))
    }

    pub fn started(mut command: Command) -> Server {
        let mut process = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        Server { process, said }
    }

    pub fn end(mut self, signal: rustix::process::Signal) -> Option<i32> {
        self.tell(signal);
        self.process.wait().unwrap().code()
    }

    fn tell(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Server {
    /// A test that fails leaves no server behind.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An NBD client under control of the test.
pub struct Client<S = UnixStream> {
    pub socket: S,
}

pub const GO: u32 = 7;
pub const STRUCTURED: u32 = 8;

impl Client {
    pub fn of(place: &Place) -> Client {
        Client::on(UnixStream::connect(place.path("nbd.sock")).unwrap())
    }

    /// A client that has completed its negotiation.
    pub fn ready(place: &Place, structured: bool) -> Client {
        Client::of(place).agreed(structured)
    }
}

impl<S: Read + Write> Client<S> {
    /// A client on `socket`, after the server's greeting.
    pub fn on(socket: S) -> Client<S> {
        let mut client = Client { socket };
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.say(&[0, 0, 0, 3]);
        client
    }

    /// Completes the negotiation of the client.
    pub fn agreed(mut self, structured: bool) -> Client<S> {
        let client = &mut self;
        if structured {
            assert_eq!(client.option(STRUCTURED, &[]), [(1, vec![])]);
        }
        let said = client.option(GO, &[0; 6]);
        assert_eq!(said.last(), Some(&(1, vec![])));
        self
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.socket.read_exact(&mut taken).unwrap();
        taken
    }

    pub fn number(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.say(b"IHAVEOPT");
        self.say(&number.to_be_bytes());
        self.say(&(data.len() as u32).to_be_bytes());
        self.say(data);
        let mut said = Vec::new();
        loop {
            assert_eq!(
                (self.take(8), self.number()),
                (0x3_e889_0455_65a9_u64.to_be_bytes().to_vec(), number)
            );
            let (kind, bytes) = (self.number(), self.number());
            said.push((kind, self.take(bytes as usize)));
            if kind == 1 || kind >> 31 == 1 {
                return said;
            }
        }
    }

    pub fn request(&mut self, (flags, kind): (u16, u16), cookie: u64, (at, bytes): (u64, u32)) {
        self.say(&0x2560_9513_u32.to_be_bytes());
        self.say(&flags.to_be_bytes());
        self.say(&kind.to_be_bytes());
        self.say(&cookie.to_be_bytes());
        self.say(&at.to_be_bytes());
        self.say(&bytes.to_be_bytes());
    }

    /// Error and cookie of a simple reply.
    pub fn replied(&mut self) -> (u32, u64) {
        assert_eq!(self.number(), 0x6744_6698);
        (self.number(), u64::from_be_bytes(self.take(8).try_into().unwrap()))
    }

    pub fn write(&mut self, at: u64, data: &[u8], fua: bool) -> u32 {
        self.request((fua as u16, 1), 1, (at, data.len() as u32));
        self.say(data);
        self.replied().0
    }

    pub fn read(&mut self, at: u64, bytes: u32) -> Result<Vec<u8>, u32> {
        self.request((0, 0), 2, (at, bytes));
        match self.replied().0 {
            0 => Ok(self.take(bytes as usize)),
            error => Err(error),
        }
    }
}

#[test]
fn volume_keeps_its_sector_size() {
    let place = Place::new();
    emulate(&place, 5);
    place.create("tank", "drives", 5).ok();
    let other = place.run(&["volume", "create", "drives", "--sector-size", "1024"]);
    assert!(other.stderr.contains("sectors have 512 or 4096 bytes"), "{}", other.stderr);
    let made = place.json(&["volume", "create", "drives", "--sector-size", "512"]);
    assert_eq!(made["sector_bytes"], 512);
    let server = Server::of(&place, &[]);
    assert_eq!(place.json(&["status", "drives"])["volume"]["sector_bytes"], 512);
    let said = place.run(&["status", "drives"]).ok().text();
    assert!(said.contains(" in sectors of 512 bytes, "), "{said}");
    server.end(rustix::process::Signal::TERM);
}

/// A stripe of the array in which no drive can read its second block.
#[test]
fn status_names_lost_ranges_of_volume() {
    const BLOCK: u64 = 4096;
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(0, &Random(9).bytes(1 << 20), true), 0);
    assert_eq!(place.json(&["status", "drives"])["volume"]["lost"]["ranges"], serde_json::json!([]));
    // Zone 2 of the array, the first behind the head of the volume, is zone 4 of its drives.
    let second = (4 << 10 | 1).to_string();
    for number in 0..5 {
        place.run(&["emulate", "fault", &drive("drives", number), "unreadable", &second]).ok();
    }
    std::thread::sleep(Duration::from_millis(20));
    let lost: Vec<u64> =
        (0..256).map(|block| block * BLOCK).filter(|at| client.read(*at, BLOCK as u32).is_err()).collect();
    assert!(!lost.is_empty());
    let expected: Vec<Value> =
        lost.iter().map(|at| serde_json::json!({ "offset_bytes": at, "bytes": BLOCK })).collect();
    let said = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let lost = place.json(&["status", "drives"])["volume"]["lost"].clone();
        (lost["ranges"] != serde_json::json!([]) && !lost.is_null()).then_some(lost)
    });
    assert_eq!(said, Some(serde_json::json!({ "ranges": expected, "may_be_more": false })));
    let text = place.run(&["status", "drives"]).text();
    assert!(text.contains(&format!("   lost: 4 KiB at {} KiB of the volume\n", lost[1] / 1024)), "{text}");
    // After they have been written again, the blocks are not lost any more.
    lost.iter().for_each(|at| assert_eq!(client.write(*at, &[1; BLOCK as usize], true), 0));
    lost.iter().for_each(|at| assert_eq!(client.read(*at, BLOCK as u32), Ok(vec![1; BLOCK as usize])));
    let is_noticed = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        place.json(&["status", "drives"])["volume"]["lost"]["ranges"] == serde_json::json!([])
    });
    assert!(is_noticed);
    server.end(rustix::process::Signal::TERM);
}

#[test]
fn volume_survives_stop_sigkill_and_drive_loss() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    assert!(server.said.starts_with("'tank' serves 64 MiB at nbd+unix:///?socket="), "{}", server.said);
    let data = Random(3).bytes(3 << 20);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(0, &data, false), 0);
    // Unaligned positions and lengths, and one request larger than the server's buffer.
    assert_eq!(client.write(5 << 20 | 77, &data[..1000], true), 0);
    assert_eq!(client.read(5 << 20, 1200).unwrap()[77..1077], data[..1000]);
    assert!(client.read(0, data.len() as u32).unwrap() == data);
    let status = place.json(&["status", "drives"]);
    assert_eq!(status["pid"], server.process.id());
    let volume = &status["volume"];
    assert_eq!((&volume["size_bytes"], &volume["used_bytes"]), (&(64 << 20).into(), &(769 << 12).into()));
    assert_eq!(volume["free_bytes"], (64 << 20) - (769 << 12));
    let written = |what: &str| volume["written"][what].as_u64().unwrap();
    assert_eq!(written("user_bytes"), 769 << 12);
    // A fifth of the blocks on five drives, and the cost of partial stripes.
    assert!(written("parity_bytes") > (769 << 12) / 4, "{volume}");
    let drives = volume["write_amplification"].as_f64().unwrap();
    assert!((1.25..9.0).contains(&drives), "{volume}");
    let valid = volume["valid_bytes"].as_array().unwrap().iter().filter_map(|zone| zone.as_u64());
    assert!(valid.sum::<u64>() >= 769 << 12, "{volume}");
    place.run(&["stop", "drives"]).fails_with(&["'tank' has 1 NBD clients"]);
    place.run(&["start", "drives"]).fails_with(&["runs already"]);
    place.run(&["zone", "reset", "drives", "0"]).fails_with(&["'tank' runs"]);

    // Acknowledged writes without a flush survive the process.
    assert_eq!(client.write(9 << 20, &data[..4096], false), 0);
    assert_eq!(server.end(rustix::process::Signal::KILL), None);
    place.run(&["zone", "reset", "drives", "0"]).fails_with(&["zoneraid serve drives --nbd"]);
    place.remove(&drive("drives", 2));
    let server = Server::of(&place, &[]);
    assert!(server.said.contains("degraded: member 2"), "{}", server.said);
    let mut client = Client::ready(&place, false);
    assert!(client.read(0, data.len() as u32).unwrap() == data);
    assert!(client.read(9 << 20, 4096).unwrap() == data[..4096]);
    // Trim, and zeros that do not end at a block boundary.
    client.request((0, 4), 3, (0, 1 << 20));
    assert_eq!(client.replied(), (0, 3));
    client.request((1, 6), 4, ((5 << 20) | 100, 500));
    assert_eq!(client.replied(), (0, 4));
    assert_eq!(client.read(0, 1 << 20).unwrap(), vec![0; 1 << 20]);
    let mut expected = data[..1000].to_vec();
    expected[23..523].fill(0);
    assert_eq!(client.read(5 << 20 | 77, 1000).unwrap(), expected);
    drop(client);
    assert_eq!(place.json(&["status", "drives"])["volume"]["used_bytes"], (770 - 256) << 12);
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    assert!(!place.path("nbd.sock").exists());
    assert_eq!(std::fs::read_dir(place.path("run")).unwrap().count(), 0);

    // A read-only server changes nothing, not even after a crash.
    let server = Server::of(&place, &[]);
    Client::ready(&place, false).write(0, &data[..4096], true);
    server.end(rustix::process::Signal::KILL);
    let before = fingerprint(&place.path("drives"));
    let server = Server::of(&place, &["--read-only"]);
    let mut client = Client::ready(&place, false);
    assert!(client.read(0, 4096).unwrap() == data[..4096]);
    assert_eq!(client.write(0, &data[..512], false), 1);
    drop(client);
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    assert!(before == fingerprint(&place.path("drives")));
}

/// The daemon of the original has acknowledged writes in the acknowledgement log beside its socket, and the copy has
/// the same UUID.
#[test]
fn copy_of_running_array_is_refused() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let data = Random(31).bytes(4096);
    assert_eq!(Client::ready(&place, false).write(1 << 20, &data, false), 0);
    std::fs::create_dir(place.path("copy")).unwrap();
    for number in 0..5 {
        std::fs::copy(place.path(&drive("drives", number)), place.path(&drive("copy", number))).unwrap();
    }
    let serve = ["serve", "copy", "--nbd", "copy.sock"];
    let mut copy = place.command(&serve).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(copy.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "", "the copy runs as well");
    let uuid = place.json(&["status", "drives"])["uuid"].as_str().unwrap().to_string();
    let words = ["runs a copy of 'tank'", &server.pid(), &format!("zoneraid stop {uuid}")];
    Ran::new(copy.wait_with_output().unwrap()).fails_with(&words);
    assert_eq!(place.json(&["status", "drives"])["pid"], server.process.id());
    assert_eq!(server.end(rustix::process::Signal::KILL), None);

    let server = Server::of(&place, &[]);
    assert!(Client::ready(&place, false).read(1 << 20, 4096).unwrap() == data);
    place.run(&["stop", "drives"]).ok();
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    assert_eq!(std::fs::read_dir(place.path("run")).unwrap().count(), 0);
    // A stopped array has flushed everything, and has left no acknowledgement log that its copy could match.
    let mut copy = place.command(&serve).spawn().unwrap();
    BufReader::new(copy.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("'tank' serves"), "{said}");
    Server { process: copy, said }.end(rustix::process::Signal::TERM);
}

/// For example, after a terminal was closed, or a logger has died.
#[test]
fn daemon_survives_closed_log_and_stops_on_sighup() {
    let place = with_volume();
    let mut server = Server::of(&place, &[]);
    drop(server.process.stderr.take());
    place.run(&["fail", "drives", "1"]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 1);
    assert_eq!(server.end(rustix::process::Signal::HUP), Some(0));
    assert_eq!(std::fs::read_dir(place.path("run")).unwrap().count(), 0);

    // Like `nohup`.
    let serve = place.command(&["serve", "drives", "--nbd", "nbd.sock"]);
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" HUP; exec "$0" "$@""#]).arg(serve.get_program()).args(serve.get_args());
    command.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(place.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let server = Server::started(command);
    server.tell(rustix::process::Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(place.json(&["status", "drives"])["pid"], server.process.id());
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

#[test]
fn unresponsive_daemon_is_not_reported_as_ended() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    server.tell(rustix::process::Signal::STOP);
    let status = place.json(&["status", "drives"]);
    assert_eq!((&status["waits_for_daemon"], &status["action"]), (&false.into(), &Value::Null), "{status}");
    assert_eq!(status["used_by"][0]["pid"], server.process.id());
    place.run(&["stop", "drives"]).fails_with(&["'tank'", "is run by", "does not answer within 2 seconds"]);
    server.tell(rustix::process::Signal::CONT);
    place.run(&["stop", "drives"]).ok();
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

#[test]
fn unprivileged_serve_uses_own_run_directory() {
    let place = with_volume();
    let everybody = |path: &str, mode| {
        std::fs::set_permissions(place.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    (0..5).for_each(|number| everybody(&drive("drives", number), 0o666));
    std::fs::create_dir(place.path("own")).unwrap();
    everybody("own", 0o777);
    let of_nobody = |args: &[&str]| {
        let mut command = nobody(&place, "own", args);
        command.env_remove("ZONERAID_RUN_DIR").env("XDG_RUNTIME_DIR", place.path("own"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    as_nobody(&place, "own", &["status"]);
    let server = Server::started(of_nobody(&["serve", "../drives", "--nbd", "nbd.sock"]));
    assert!(server.said.starts_with("'tank' serves 64 MiB"), "{}", server.said);
    let status = Ran::new(of_nobody(&["status", "tank", "--json"]).output().unwrap()).ok().json();
    assert_eq!(status["pid"], server.process.id());
    assert_eq!(server.end(rustix::process::Signal::KILL), None);
    let status = Ran::new(of_nobody(&["status", "../drives", "--json"]).output().unwrap()).ok().json();
    assert_eq!(status["waits_for_daemon"], true);
    // Root is refused an array that waits for another user's daemon.
    let runtime = Path::new("/run/user/65534");
    std::fs::create_dir_all(runtime.join("zoneraid")).unwrap();
    let tails = format!("zoneraid/{}.tails", status["uuid"].as_str().unwrap());
    std::fs::copy(place.path("own").join(&tails), runtime.join(&tails)).unwrap();
    chown(place.path("drives/drive3.img"), Some(65534), None).unwrap();
    let served = place.run(&["serve", "drives", "--nbd", "nbd.sock"]);
    let destroyed = place.run(&["destroy", "--yes", "drives"]);
    let wiped = place.run(&["wipe", "--yes", "drives/drive3.img"]);
    std::fs::remove_dir_all(runtime).unwrap();
    served.fails_with(&["another user", "/run/user/65534/zoneraid/"]);
    destroyed.fails_with(&["the daemon of 'tank' has ended"]);
    wiped.fails_with(&["waits for the daemon of that array"]);
    let mut nowhere = place.command(&["serve", "drives", "--nbd", "nbd.sock"]);
    let nowhere = Ran::new(nowhere.env("ZONERAID_RUN_DIR", "/proc/none").output().unwrap());
    nowhere.fails_with(&["/proc/none cannot be created", "$ZONERAID_RUN_DIR"]);
}

/// The last checkpoint cannot be written, and a flush cannot complete.
#[test]
fn failed_shutdown_keeps_ack_log_for_next_daemon() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let data = Random(32).bytes(1 << 20);
    assert_eq!(Client::ready(&place, false).write(0, &data, false), 0);
    let fault = |number, what| _ = place.run(&["emulate", "fault", &drive("drives", number), what]).ok();
    [1, 2].into_iter().for_each(|number| fault(number, "gone"));
    // Emulated drives read their faults every 5 ms.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(4));
    let tails = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().path().extension() == Some("tails".as_ref())
    };
    assert!(std::fs::read_dir(place.path("run")).unwrap().any(tails));
    [1, 2].into_iter().for_each(|number| fault(number, "clear"));
    let server = Server::of(&place, &[]);
    assert!(Client::ready(&place, false).read(0, data.len() as u32).unwrap() == data);
    server.end(rustix::process::Signal::TERM);
}

#[test]
fn zone_read_is_refused_while_volume_is_served() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    place.run(&["zone", "read", "drives", "0"]).fails_with(&[
        "'tank' runs",
        "carries a volume",
        "zoneraid stop tank",
    ]);
    server.end(rustix::process::Signal::TERM);
    place.run(&["zone", "read", "drives", "0"]).ok();
}

/// Requests without data are answered at once, so such clients always keep the server busy.
#[test]
fn busy_nbd_clients_starve_no_client_or_signal() {
    let place = with_volume();
    let mut server = Server::of(&place, &[]);
    let pid = rustix::process::Pid::from_child(&server.process);
    let mut request = Vec::new();
    // A request to write zeros of no length.
    for field in [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 6], &[0; 8], &[0; 8], &[0; 4]] {
        request.extend_from_slice(field);
    }
    let many = request.repeat(4096);
    for _ in 0..12 {
        let client = Client::ready(&place, false);
        let (mut asks, mut hears, many) = (client.socket.try_clone().unwrap(), client.socket, many.clone());
        std::thread::spawn(move || while asks.write_all(&many).is_ok() {});
        std::thread::spawn(move || std::io::copy(&mut hears, &mut std::io::sink()));
    }
    std::thread::sleep(Duration::from_millis(500));
    let (place, (done, wait)) = (&place, std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            Client::ready(place, false).read(0, 4096).unwrap();
            done.send(()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            assert_eq!(server.process.wait().unwrap().code(), Some(0));
            done.send(()).unwrap();
        });
        for what in ["client", "signal"] {
            if wait.recv_timeout(Duration::from_secs(20)).is_err() {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                panic!("the server hears of no other {what}");
            }
        }
    });
}

/// A volume is enlarged while it is served and while its array does not run, keeps its data, and takes data behind its
/// former end.
#[test]
fn volume_is_enlarged_and_never_made_smaller() {
    let place = with_volume();
    let resize = |size: &str| place.run(&["volume", "resize", "drives", "--size", size]);
    let (data, more) = (Random(6).bytes(1 << 20), Random(7).bytes(1 << 20));
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(63 << 20, &data, true), 0);
    assert!(client.write(100 << 20, &more, true) != 0);
    // While the volume is served.
    let text = resize("96M").ok().text();
    assert!(text.contains("96 MiB now") && text.contains("connect again"), "{text}");
    resize("64M").fails_with(&["has 96 MiB, and only a volume of a pool can become smaller"]);
    let mut again = Client::ready(&place, false);
    assert_eq!(again.write(95 << 20, &more, true), 0);
    assert_eq!(client.read(63 << 20, 1 << 20), Ok(data.clone()));
    drop((client, again));
    assert_eq!(server.end(rustix::process::Signal::KILL), None);
    let server = Server::of(&place, &[]);
    assert_eq!(Client::ready(&place, false).read(95 << 20, 1 << 20), Ok(more.clone()));
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    resize("32M").fails_with(&["has 96 MiB, and only a volume of a pool can become smaller"]);
    resize("15T").fails_with(&["unchanged", "too small"]);
    let resized = place.run(&["volume", "resize", "drives", "--size", "128M", "--json"]).ok().json();
    check_schema(&resized, "volume-resize.json");
    assert_eq!(resized["size_bytes"], 128 << 20);
    resize("1G").ok();
    let _server = Server::of(&place, &[]);
    assert_eq!(place.json(&["status", "drives"])["volume"]["size_bytes"], 1 << 30);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(100 << 20, &more, true), 0);
    assert_eq!(client.read(63 << 20, 1 << 20), Ok(data));
    assert_eq!([95, 100].map(|at| client.read(at << 20, 1 << 20)), [Ok(more.clone()), Ok(more)]);
    assert_eq!(client.read((1 << 30) - 4096, 4096), Ok(vec![0; 4096]));
}

#[test]
fn volume_compression_follows_settings_and_reports_ratio() {
    let place = Place::new();
    emulate(&place, 5);
    place.create("tank", "drives", 5).ok();
    let set = |how: &str| place.run(&["volume", "set", "drives", "--compression", how]);
    set("lz4").fails_with(&["carries no volume", "zoneraid volume create"]);
    let made = place.run(&["volume", "create", "drives", "--size", "1G", "--compression", "lz4"]).ok();
    assert!(made.text().contains("may be used at once, or more if it compresses"), "{}", made.text());
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let mut data = Random(5).bytes(2 << 20);
    data.chunks_mut(4096).for_each(|block| block[1000..].fill(0));
    assert_eq!(client.write(0, &data, false), 0);
    let volume = || place.json(&["status", "drives"])["volume"].clone();
    let bytes = |volume: &serde_json::Value, what: &str| volume[what].as_u64().unwrap();
    let first = volume();
    let quarter = bytes(&first, "physical_bytes");
    assert_eq!((&first["compression"], bytes(&first, "used_bytes")), (&"lz4".into(), 2 << 20));
    assert!((500 << 10..700 << 10).contains(&quarter), "{first}");
    assert!((3.0..4.1).contains(&first["compression_ratio"].as_f64().unwrap()), "{first}");
    let (usable, effective) = (bytes(&first, "usable_bytes"), bytes(&first, "effective_bytes"));
    assert!((3 * usable..5 * usable).contains(&effective), "{first}");
    assert_eq!(bytes(&first, "free_bytes"), usable - quarter, "{first}");
    assert!(first["written"]["saved_bytes"].as_u64().unwrap() > 1 << 20, "{first}");
    let text = place.run(&["status", "drives"]).ok().text();
    assert!(text.contains("ratio: 3.") && text.contains("new data is written with LZ4"), "{text}");

    // Changed while the volume runs; existing data stays as it is. The setting survives any end of the process.
    assert_eq!(place.json(&["volume", "set", "drives", "--compression", "off"])["compression"], "off");
    assert_eq!(client.write(8 << 20, &data, false), 0);
    assert_eq!(bytes(&volume(), "physical_bytes"), quarter + (2 << 20));
    assert_eq!(server.end(rustix::process::Signal::KILL), None);
    set("lz4").fails_with(&["zoneraid serve drives --nbd"]);
    let server = Server::of(&place, &[]);
    assert_eq!(volume()["compression"], "off");
    let mut client = Client::ready(&place, false);
    assert!([0, 8 << 20].iter().all(|at| client.read(*at, data.len() as u32).unwrap() == data));
    drop(client);
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    // Changed while the volume does not run.
    set("zstd:20").fails_with(&["levels of zstd are 1 to 19"]);
    set("gzip").fails_with(&["off, lz4, zstd or zstd:LEVEL"]);
    let in_units =
        |unit: &str| place.run(&["volume", "set", "drives", "--compression", "lz4", "--unit", unit]);
    in_units("128K").fails_with(&["4K, 8K, 16K, 32K or 64K"]);
    assert!(set("lz4").ok().text().contains("is compressed with LZ4\n"));
    assert!(in_units("16K").ok().text().contains("is compressed with LZ4, in units of 16 KiB\n"));
    let text = set("zstd").ok().text();
    assert!(text.contains("is compressed with Zstandard, level 1, in units of 16 KiB\n"), "{text}");
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(8 << 20, &data, false), 0);
    let again = volume();
    assert!((1.9..2.1).contains(&(bytes(&again, "physical_bytes") as f64 / quarter as f64)), "{again}");
    assert_eq!((&again["compression"], &again["unit_bytes"]), (&"zstd:1".into(), &16384.into()));
    // And while it runs.
    assert_eq!(
        place.json(&["volume", "set", "drives", "--compression", "lz4", "--unit", "64K"])["unit_bytes"],
        65536
    );
    assert_eq!(client.write(16 << 20, &data, false), 0);
    assert_eq!(client.write((16 << 20) + 4096, &data[..4096], false), 0);
    assert!(client.read((16 << 20) + 8192, 4096).unwrap() == data[8192..12288]);
    assert!(client.read((16 << 20) + 4096, 4096).unwrap() == data[..4096]);
    assert!([0, 8 << 20].iter().all(|at| client.read(*at, data.len() as u32).unwrap() == data));
    drop(client);
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    let server = Server::of(&place, &["--read-only"]);
    set("off").fails_with(&["is read-only"]);
    server.end(rustix::process::Signal::TERM);
}

#[test]
fn nbd_invalid_client_data_ends_only_its_connection() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let mut one = Client::ready(&place, true);
    let mut context = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15].to_vec();
    context.extend(b"base:allocation");
    let mut two = Client::of(&place);
    assert_eq!(two.option(STRUCTURED, &[]).len(), 1);
    assert_eq!(two.option(10, &context)[0].0, 4);
    two.option(GO, &[0, 0, 0, 4, b't', b'a', b'n', b'k', 0, 0]);
    // A flush on one connection covers all of them, so a client may use several.
    assert_eq!(one.write(8192, &[7; 8192], false), 0);
    two.request((0, 3), 9, (0, 0));
    assert_eq!(two.replied(), (0, 9));
    two.request((0, 7), 5, (0, 64 << 20));
    let extents = [
        &b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x05\0\0\0\x1c\0\0\0\x01"[..],
        &[0, 0, 32, 0, 0, 0, 0, 3],
    ];
    assert_eq!(two.take(32), extents.concat());
    let rest: Vec<u32> = (0..4).map(|_| two.number()).collect();
    assert_eq!(rest, [8192, 0, (64 << 20) - 16384, 3]);
    // In chunks, of which the last one is marked.
    two.request((0, 0), 6, (8192, 3 << 19));
    let (mut read, mut last) = (Vec::new(), 0);
    while last == 0 {
        let head = two.take(20);
        last = head[5];
        let expected = [&b"\x66\x8e\x33\xef\0"[..], &[last], b"\0\x01\0\0\0\0\0\0\0\x06"].concat();
        assert_eq!(head[..16], expected);
        let bytes = u32::from_be_bytes(head[16..].try_into().unwrap()) as usize;
        let chunk = two.take(bytes);
        // Each has its offset; they arrive in order.
        assert_eq!(chunk[..8], (8192 + read.len() as u64).to_be_bytes());
        read.extend_from_slice(&chunk[8..]);
    }
    assert_eq!((last, read.len()), (1, 3 << 19));
    assert_eq!(read[..8192], [7; 8192]);
    // The payload of a refused request is read nevertheless.
    assert_eq!(two.write(64 << 20, &[1; 4096], false), 28);
    assert_eq!(two.write(0, &[1; 100], true), 0);

    // Invalid data ends its own connection at any stage, and no other one.
    let mut random = Random(11);
    for round in 0..60 {
        let mut stranger = match round % 3 {
            0 => Client { socket: UnixStream::connect(place.path("nbd.sock")).unwrap() },
            1 => Client::of(&place),
            _ => Client::ready(&place, round % 2 == 0),
        };
        let count = 1 + random.below(300) as usize;
        let mut nonsense = random.bytes(count);
        if round % 4 > 1 {
            nonsense.splice(0..0, *b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0");
        }
        // The server may have closed the connection before all is sent.
        let _ = stranger.socket.write_all(&nonsense);
    }
    two.request((0, 0), 6, (0, 100));
    assert_eq!(two.take(28)[18..20], [0, 108]);
    assert_eq!(two.take(100), [1; 100]);
    two.request((0, 2), 7, (0, 0));
    assert_eq!(two.socket.read(&mut [0]).unwrap(), 0);
    drop(one);
    assert_eq!(server.end(rustix::process::Signal::INT), Some(0));
}

#[test]
fn volume_commands_refuse_invalid_requests_without_loss() {
    let place = Place::new();
    emulate(&place, 5);
    place.create("tank", "drives", 5).ok();
    let create = |size: &str| place.run(&["volume", "create", "drives", "--size", size]);
    place.run(&["volume", "create", "pond"]).fails_with(&["no array called 'pond'"]);
    place
        .run(&["serve", "drives", "--nbd", "s"])
        .fails_with(&["carries no volume", "zoneraid volume create"]);
    create("0").fails_with(&["size"]);
    create("5K").fails_with(&["4096"]);
    create("15T").fails_with(&["no volume can be created on 'tank'", "too small"]);
    create("17T").fails_with(&["no volume can be created on 'tank'"]);
    place.run_with(&["zone", "write", "drives", "3"], &[7; 4096]).ok();
    create("64M").fails_with(&["zone 3 holds data"]);
    place.run(&["zone", "reset", "drives", "3"]).ok();
    let made = place.run(&["volume", "create", "drives"]).ok();
    assert!(made.text().contains("'tank' carries a volume of"), "{}", made.text());
    create("64M").fails_with(&["the device has a volume already"]);
    for verb in ["reset", "finish", "open", "write"] {
        place
            .run(&["zone", verb, "drives", "5"])
            .fails_with(&["carries a volume", "zoneraid destroy drives"]);
    }
    place.run(&["serve", "drives", "--nbd", "a:b"]).fails_with(&["an address is numeric"]);
    std::fs::write(place.path("precious"), "x").unwrap();
    place.run(&["serve", "drives", "--nbd", "precious"]).fails_with(&["precious exists and is not a socket"]);
    assert_eq!(std::fs::read(place.path("precious")).unwrap(), b"x");
    place.remove(&drive("drives", 0));
    place.remove(&drive("drives", 1));
    place.run(&["serve", "drives", "--nbd", "s"]).fails_with(&["only 3 of 5 members are usable"]);
}

/// Runs a program of the distribution, if it is installed.
fn tool(place: &Place, program: &str, args: &[&str]) -> Option<Ran> {
    let found = std::env::var_os("PATH")?;
    std::env::split_paths(&found).find(|dir| dir.join(program).exists())?;
    let mut command = Command::new(program);
    command.args(args).current_dir(place.path(""));
    Some(Ran::new(command.output().unwrap()))
}

fn uri(place: &Place) -> String {
    format!("nbd+unix:///?socket={}", place.path("nbd.sock").display())
}

/// Independent NBD tools work with the server; those that are not installed are skipped.
#[test]
fn nbd_server_works_with_independent_tools() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let (uri, image) = (uri(&place), place.path("image"));
    if let Some(info) = tool(&place, "nbdinfo", &["--json", &uri]) {
        let info = info.ok().json();
        let export = &info["exports"][0];
        assert_eq!((&export["export-size"], &info["structured"]), (&(64 << 20).into(), &true.into()));
        for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
            assert_eq!(export[can], true, "{can}: {info}");
        }
    }
    let mut data = Random(5).bytes(64 << 20);
    data[8 << 20..40 << 20].fill(0);
    std::fs::write(&image, &data).unwrap();
    if let Some(copied) = tool(&place, "nbdcopy", &["--destination-is-zero", "image", &uri]) {
        copied.ok();
        tool(&place, "nbdcopy", &[&uri, "back"]).unwrap().ok();
        assert!(std::fs::read(place.path("back")).unwrap() == data);
        let used = place.json(&["status", "drives"])["volume"]["used_bytes"].as_u64().unwrap();
        assert!(used <= 32 << 20, "zeros take room: {used}");
    }
    if let Some(converted) =
        tool(&place, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "image", &uri])
    {
        converted.ok();
        tool(&place, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "image", &uri]).unwrap().ok();
    }
    let script = [
        "-f",
        "raw",
        "-c",
        "write -f -P 7 513 1000",
        "-c",
        "discard 1M 1M",
        "-c",
        "read -P 7 513 1000",
        "-c",
    ];
    if let Some(ran) = tool(&place, "qemu-io", &[&script[..], &["write -z 2M 3000", &uri]].concat()) {
        let said = ran.ok().text();
        assert!(!said.contains("failed"), "{said}");
    }
    let job =
        ["--name=x", "--ioengine=nbd", &format!("--uri={uri}"), "--rw=randwrite", "--bs=4k", "--iodepth=16"];
    let rest = ["--size=32M", "--verify=crc32c", "--fsync=64"];
    if let Some(ran) = tool(&place, "fio", &[&job[..], &rest].concat()) {
        // Some builds of fio have no nbd engine.
        if !ran.stderr.contains("not found") && !ran.text().contains("engine nbd not") {
            ran.ok();
        }
    }
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    assert!(!Path::new(&place.path("nbd.sock")).exists());
}

#[test]
fn volume_counts_rebuild_writes_apart_from_parity() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(0, &vec![5; 1 << 20], true), 0);
    let written = || place.json(&["status", "drives"])["volume"]["written"].clone();
    let before = written();
    assert_eq!(before["rebuild_bytes"], 0);
    place.run(&["replace", "--now", "drives", "1", &drive("drives", 5)]).ok();
    let after = written();
    assert!(after["rebuild_bytes"].as_u64() >= Some(256 << 10), "{before} {after}");
    let grown =
        after["parity_bytes"].as_u64().unwrap() as i64 - before["parity_bytes"].as_u64().unwrap() as i64;
    assert!(grown < 256 << 10, "{before} {after}");
    assert!(place.run(&["status", "drives"]).ok().text().contains(" rebuilt\n"));
    drop(client);
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

#[test]
fn volume_with_lost_zone_requires_give_up() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let old = Random(22).bytes(1 << 20);
    assert_eq!(client.write(0, &old, true), 0);
    server.end(rustix::process::Signal::TERM);
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(1 << 20, &old, true), 0);
    server.end(rustix::process::Signal::KILL);
    // The zone that is being written goes offline on one more drive than parity makes up for.
    for member in [1, 2] {
        place.run(&["emulate", "fault", &drive("drives", member), "offline", "4"]).ok();
    }
    let advice = ["cannot be started", "is offline", "--give-up"];
    place.run(&["serve", "drives", "--nbd", "nbd.sock"]).fails_with(&advice);
    let advice_of_reset = ["carries a volume", "--give-up", "zoneraid destroy drives"];
    place.run(&["zone", "reset", "drives", "0"]).fails_with(&advice_of_reset);
    // A read-only server changes nothing.
    let server = Server::of(&place, &["--read-only", "--give-up"]);
    assert!(server.said.contains("nbd"), "{}", server.said);
    server.end(rustix::process::Signal::TERM);
    place.run(&["serve", "drives", "--nbd", "nbd.sock"]).fails_with(&advice);
    let server = Server::of(&place, &["--give-up"]);
    let mut client = Client::ready(&place, false);
    assert_eq!(client.write(0, &old, true), 0);
    assert!(client.read(0, 1 << 20).unwrap() == old);
    server.end(rustix::process::Signal::TERM);
    // The loss is final.
    let server = Server::of(&place, &[]);
    assert!(Client::ready(&place, false).read(0, 1 << 20).unwrap() == old);
    server.end(rustix::process::Signal::TERM);
}

#[test]
fn worn_zones_are_rebuilt_in_spares_during_use() {
    let place = Place::new();
    emulate(&place, 5);
    let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
    let create = ["create", "tank", "--spare-zones", "11"]
        .into_iter()
        .chain(drives.iter().map(String::as_str))
        .collect::<Vec<_>>();
    place.run(&create).ok();
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let data = Random(21).bytes(24 << 20);
    let (before, after) = data.split_at(4 << 20);
    let write = |client: &mut Client, from: usize, bytes: &[u8]| {
        for (index, piece) in bytes.chunks(1 << 20).enumerate() {
            assert_eq!(client.write((from + (index << 20)) as u64, piece, true), 0);
        }
    };
    write(&mut client, 0, before);
    for zone in 2..13 {
        place.run(&["emulate", "fault", &drive("drives", 1), "read-only", &zone.to_string()]).ok();
    }
    std::thread::sleep(emu::ssd::LOOK_EVERY);
    write(&mut client, before.len(), after);
    // Without any command.
    let moved =
        |place: &Place| place.json(&["status", "tank"])["members"][1]["moved_zones"].as_u64().unwrap();
    let healed = |place: &Place, least: u64| {
        while moved(place) < least || place.json(&["status", "tank"])["state"] != "healthy" {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    healed(&place, 1);
    assert!(place.run(&["status", "tank"]).text().contains("worn, in spare ones"));
    server.end(rustix::process::Signal::TERM);
    // Worn zones that were not written since are detected when the array is assembled.
    let server = Server::of(&place, &[]);
    healed(&place, 11);
    server.end(rustix::process::Signal::TERM);
    // Any other drive may be lost afterwards.
    place.remove(&drive("drives", 3));
    let server = Server::of(&place, &["--read-only"]);
    let mut client = Client::ready(&place, false);
    for (index, piece) in data.chunks(1 << 20).enumerate() {
        assert!(client.read((index << 20) as u64, piece.len() as u32).unwrap() == piece, "MiB {index}");
    }
    server.end(rustix::process::Signal::TERM);
}

/// Twenty-four disks of 1 TB: the volume has two shards, and data in both survives the death of the daemon.
#[test]
fn volume_above_16_tib_is_served_and_recovered() {
    let place = Place::new();
    place.run(&["emulate", "create", "drives", "--model", "smr", "--count", "24"]).ok();
    place.create("tank", "drives", 24).ok();
    assert!(place.run(&["volume", "create", "drives"]).ok().text().contains("a volume of 18.0 TiB"));
    let server = Server::of(&place, &[]);
    let size = place.json(&["status", "drives"])["volume"]["size_bytes"].as_u64().unwrap();
    // In the last blocks of the first extent and the first ones of the second, and at the end of the volume.
    let places = [0, (1 << 30) - (1 << 20), 17 << 40, size - (2 << 20)];
    let data = Random(41).bytes(2 << 20);
    let mut client = Client::ready(&place, false);
    assert!(places.iter().all(|at| client.write(*at, &data, true) == 0));
    assert_eq!(server.end(rustix::process::Signal::KILL), None);
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    assert!(places.iter().all(|at| client.read(*at, 2 << 20) == Ok(data.clone())));
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}
