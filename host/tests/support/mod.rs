//! Runs the `zoneraid` binary in a directory of its own.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use host::{
    control::name::ArrayName,
    daemon,
    members::{FoundArray, StartTerms},
    process::output::parse_uuid,
    serve::ack_log::AckLog,
};
use serde_json::Value;
use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread::{JoinHandle, sleep},
    time::Duration,
};

/// A temporary directory in which commands run.
pub struct Place {
    dir: tempfile::TempDir,
}

/// Result of a command.
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    pub fn new(output: Output) -> Ran {
        let code = output.status.code().unwrap_or_else(|| panic!("ended by {}", output.status));
        Ran { code, stdout: output.stdout, stderr: String::from_utf8(output.stderr).unwrap() }
    }

    /// Checks that the command succeeded.
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "stderr: {}", self.stderr);
        self
    }

    /// Checks that the command itself failed with one sentence that has all of `words` in it.
    pub fn fails_with(self, words: &[&str]) -> Ran {
        assert_eq!(self.code, 4, "stdout: {}; stderr: {}", self.text(), self.stderr);
        let last = self.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("zoneraid: "), "{:?}", self.stderr);
        for word in words {
            assert!(last.contains(word), "no {word:?} in {last:?}");
        }
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: stdout {}; stderr {}", self.text(), self.stderr))
    }
}

impl Place {
    pub fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        place.be("0123456789abcdef0123456789abcdef");
        place
    }

    /// A place with `count` blank drives in `drives`, and the array `tank` of the first five.
    pub fn with_array(count: usize) -> Place {
        let place = Place::new();
        place.emulate("drives", count);
        place.create("tank", "drives", 5).ok();
        place
    }

    /// A place with `count` blank drives in `drives`, and the RAID-6 array `tank` of the first six.
    pub fn with_raid6(count: usize) -> Place {
        let place = Place::new();
        place.emulate("drives", count);
        place.create_as("raid6", "tank", "drives", 6).ok();
        place
    }

    /// Sets the machine ID, which may be invalid.
    pub fn be(&self, machine: &str) {
        fs::write(self.path("machine-id"), machine).unwrap();
    }

    /// Drives of 16 zones of 8 MiB.
    pub fn emulate(&self, dir: &str, count: usize) {
        let count = count.to_string();
        self.run(&["emulate", "create", dir, "--count", &count, "--zones", "16", "--zone-capacity", "8M"])
            .ok();
    }

    /// Makes an array of the first `members` drives in `dir`.
    pub fn create(&self, name: &str, dir: &str, members: usize) -> Ran {
        self.create_as("raid5", name, dir, members)
    }

    pub fn create_as(&self, level: &str, name: &str, dir: &str, members: usize) -> Ran {
        let drives: Vec<String> = (0..members).map(|n| drive(dir, n)).collect();
        let mut args = vec!["create", name, "--level", level];
        args.extend(drives.iter().map(String::as_str));
        self.run(&args)
    }

    pub fn path(&self, inside: &str) -> PathBuf {
        self.dir.path().join(inside)
    }

    pub fn remove(&self, inside: &str) {
        fs::remove_file(self.path(inside)).unwrap();
    }

    /// Creates the acknowledgement log that a daemon leaves when it is killed while its block device is in use; returns
    /// its path.
    pub fn leave_tails(&self, array: &str) -> PathBuf {
        let status = self.json(&["status", array]);
        let id = status["uuid"].as_str().unwrap();
        let uuid = parse_uuid(id).unwrap();
        fs::create_dir_all(self.path("run")).unwrap();
        let tails = self.path(&format!("run/{id}.tails"));
        drop(AckLog::create(&tails, &uuid, 1, &[0; 14], &[], &[]).unwrap());
        tails
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_zoneraid"));
        command.args(args);
        command
    }

    /// Another program, in the same environment.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.current_dir(self.dir.path()).env_remove("ZONERAID_DIR");
        // Keeps daemons of the machine out of the test.
        command.env("ZONERAID_RUN_DIR", self.path("run")).env("ZONERAID_MACHINE_ID", self.path("machine-id"));
        command.env("ZONERAID_STATE_DIR", self.path("state"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::new(self.command(args).output().unwrap())
    }

    /// Starts a command; a thread writes `input` to its standard input and closes it.
    pub fn start(&self, args: &[&str], input: Vec<u8>) -> Child {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The command may end before it has read everything.
        std::thread::spawn(move || stdin.write_all(&input));
        child
    }

    pub fn run_with(&self, args: &[&str], input: &[u8]) -> Ran {
        Ran::new(self.start(args, input.to_vec()).wait_with_output().unwrap())
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        self.run(&args).json()
    }

    /// Runs the daemon of the array in `drives` on a thread; works on a machine without ublk.
    pub fn daemon(&self) -> JoinHandle<()> {
        self.daemon_on(StartTerms::default())
    }

    pub fn daemon_on(&self, terms: StartTerms) -> JoinHandle<()> {
        self.daemon_of(self.path("drives"), terms)
    }

    /// As [`Place::daemon_on`], of the array called `name`.
    pub fn daemon_of(&self, name: PathBuf, terms: StartTerms) -> JoinHandle<()> {
        let directory = self.path("run");
        let (ready, wait) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let found = FoundArray::by_name(&ArrayName::from(name)).unwrap();
            let daemon = daemon::start(found, &directory, None, terms).unwrap();
            ready.send(()).unwrap();
            daemon.run().unwrap();
        });
        wait.recv().unwrap();
        thread
    }

    pub fn read_zone(&self, array: &str, zone: u32) -> Vec<u8> {
        self.run(&["zone", "read", array, &zone.to_string()]).ok().stdout
    }
}

/// `zoneraid` as an unprivileged user.
pub fn nobody(place: &Place, directory: &str, args: &[&str]) -> Command {
    let copy = place.path("zoneraid");
    if !copy.exists() {
        fs::copy(env!("CARGO_BIN_EXE_zoneraid"), &copy).unwrap();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(copy);
    command.args(args).current_dir(place.path(directory)).env_remove("ZONERAID_DIR");
    command.env("ZONERAID_RUN_DIR", place.path("run")).env("ZONERAID_STATE_DIR", place.path("state"));
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    command
}

/// Runs [`nobody`].
pub fn as_nobody(place: &Place, directory: &str, args: &[&str]) -> Ran {
    let mut command = nobody(place, directory, args);
    // A process that another thread is just starting may have the copy open for writing until its exec.
    let output = loop {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => sleep(Duration::from_millis(10)),
            output => break output.unwrap(),
        }
    };
    Ran::new(output)
}

pub fn drive(dir: &str, number: usize) -> String {
    format!("{dir}/drive{number}.img")
}

/// A small generator, so that a failure can be repeated from its seed.
pub struct Random(pub u64);

impl Random {
    /// Starts from the clock; tests name the seed when they fail.
    pub fn new() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Random(now.as_nanos() as u64 | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        let mut bytes: Vec<u8> = words.collect();
        bytes.truncate(len);
        bytes
    }
}

/// All files below `dir` with their contents, to detect writes.
pub fn fingerprint(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}
