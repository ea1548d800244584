//! Commands that only read change nothing and block no other process: neither those that use the drives, nor users with
//! read permission only.

use crate::support::{Place, Ran, as_nobody, drive, fingerprint};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// All commands that only read, for the array in `dir`.
fn looks(dir: &str) -> Vec<Vec<String>> {
    let looks: [&[&str]; 8] = [
        &["status", dir],
        &["status", dir, "--json"],
        &["status"],
        &["list", dir],
        &["examine", &drive(dir, 1)],
        &["examine", "--export", &drive(dir, 1)],
        &["zone", "report", dir],
        &["zone", "read", dir, "0"],
    ];
    looks.iter().map(|look| look.iter().map(|word| word.to_string()).collect()).collect()
}

/// Runs the commands of [`looks`] on `dir` until `done`, beginning with the one of `number`; returns how many were run.
fn look_on(place: &Place, dir: &str, number: usize, done: &AtomicBool, held: &[u8]) -> usize {
    let (looks, mut looked) = (looks(dir), 0);
    while !done.load(Relaxed) {
        let look: Vec<&str> = looks[(looked + number) % looks.len()].iter().map(String::as_str).collect();
        let ran = place.run(&look);
        match look[0] {
            "zone" if ran.code == 4 => {
                _ = ran.fails_with(&["is being changed by `zoneraid "]);
            }
            "zone" if look[1] == "read" => {
                assert!(ran.stdout == held, "{look:?}: {} bytes", ran.stdout.len())
            }
            "status" => assert!([0, 1].contains(&ran.code), "{look:?}: {} {}", ran.text(), ran.stderr),
            _ => assert_eq!(ran.code, 0, "{look:?}: {}", ran.stderr),
        }
        looked += 1;
    }
    looked
}

#[test]
fn write_and_replace_succeed_during_concurrent_inspection() {
    let place = Place::with_array(7);
    let held = vec![7; 1 << 20];
    place.run_with(&["zone", "write", "drives", "0"], &held).ok();
    let done = AtomicBool::new(false);
    let looked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (place, done, held, looked) = (&place, &done, &held, &looked);
            scope.spawn(move || looked.fetch_add(look_on(place, "drives", 3 * number, done, held), Relaxed));
        }
        let work = || {
            let mut spare = [5, 6];
            for round in 0..4 {
                for _ in 0..3 {
                    place.run_with(&["zone", "write", "drives", "1", "--fua"], &[9; 128 << 10]).ok();
                }
                place.run(&["zone", "reset", "drives", "1"]).ok();
                let (old, new) = ((round % 2).to_string(), drive("drives", spare[round % 2]));
                place.run(&["replace", "--yes", "drives", &old, &new]).ok();
                spare[round % 2] = if spare[round % 2] < 5 { 5 + round % 2 } else { round % 2 };
            }
        };
        // The reading threads end in any case.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Relaxed);
        worked.unwrap();
    });
    assert!(looked.load(Relaxed) > 20, "{looked:?} looks");
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    assert!(place.read_zone("drives", 0) == held);
}

#[test]
fn create_succeeds_during_concurrent_inspection() {
    let place = Place::new();
    place.emulate("drives", 4);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (place, done) = (&place, &done);
            scope.spawn(move || {
                let looks: [&[&str]; 3] =
                    [&["list", "drives"], &["examine", "drives/drive1.img"], &["status"]];
                while !done.load(Relaxed) {
                    place.run(looks[number]).ok();
                }
            });
        }
        let worked = std::panic::catch_unwind(|| {
            for _ in 0..8 {
                let drives: Vec<String> = (0..4).map(|n| drive("drives", n)).collect();
                let mut create = vec!["create", "--yes", "pond"];
                create.extend(drives.iter().map(String::as_str));
                place.run(&create).ok();
                place.run_with(&["zone", "write", "drives", "0"], &[5; 4096]).ok();
            }
        });
        done.store(true, Relaxed);
        worked.unwrap();
    });
    assert_eq!(place.read_zone("drives", 0), [5; 4096]);
}

/// Inodes and times of `dir` and of everything in it, to detect writes.
fn times(place: &Place, dir: &str) -> Vec<(u64, i64, i64, i64, i64)> {
    let mut paths: Vec<_> =
        fs::read_dir(place.path(dir)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.push(place.path(dir));
    paths.sort();
    let time = |m: fs::Metadata| (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    paths.into_iter().map(|path| time(path.metadata().unwrap())).collect()
}

#[test]
fn inspection_with_read_permission_only_changes_nothing() {
    let place = Place::with_array(6);
    let data = vec![3; 300 << 10];
    place.run_with(&["zone", "write", "drives", "0"], &data).ok();
    // A missing member must not become stale because the array was read without it.
    fs::create_dir(place.path("away")).unwrap();
    fs::rename(place.path("drives/drive4.img"), place.path("away/drive4.img")).unwrap();
    for number in [0, 1, 2, 3, 5] {
        let mode = fs::Permissions::from_mode(0o444);
        fs::set_permissions(place.path(&drive("drives", number)), mode).unwrap();
    }
    fs::set_permissions(place.path("drives"), fs::Permissions::from_mode(0o555)).unwrap();
    let (contents, before) = (fingerprint(&place.path("drives")), times(&place, "drives"));
    for look in looks("drives") {
        let look: Vec<&str> = look.iter().map(String::as_str).collect();
        let ran = as_nobody(&place, "", &look);
        assert_eq!(
            ran.code,
            if look.starts_with(&["status", "drives"]) { 1 } else { 0 },
            "{look:?}: {}",
            ran.stderr
        );
        assert!(!look.starts_with(&["zone", "read"]) || ran.stdout == data);
    }
    // For a healthy array, reading zones reads the drives themselves, too.
    assert!(as_nobody(&place, "drives", &["zone", "read", "tank", "0"]).ok().stdout == data);
    // Commands that write are refused, and the message says which users may.
    as_nobody(&place, "", &["zone", "reset", "drives", "0"])
        .fails_with(&["drive0.img", "permission denied; its owner may, or root"]);
    assert!(fingerprint(&place.path("drives")) == contents);
    assert_eq!(times(&place, "drives"), before);
    fs::set_permissions(place.path("drives"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(place.path("away/drive4.img"), place.path("drives/drive4.img")).unwrap();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
}

#[test]
fn inspection_holds_no_lock_on_drives() {
    let place = Place::with_array(5);
    // Reading this drive's metadata takes two seconds.
    place.run(&["emulate", "fault", "drives/drive1.img", "slow", "1000000"]).ok();
    let mut look = place.command(&["status", "drives"]).spawn().unwrap();
    let images: Vec<File> = (0..5).map(|n| File::open(place.path(&drive("drives", n))).unwrap()).collect();
    let inodes: Vec<String> = images.iter().map(|f| format!(":{} ", f.metadata().unwrap().ino())).collect();
    let (begun, mut tried) = (Instant::now(), 0);
    while look.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let pid = format!(" {} ", look.id());
        let held = |line: &&str| line.contains(&pid) && inodes.iter().any(|inode| line.contains(inode));
        assert_eq!(locks.lines().filter(held).count(), 0, "{locks}");
        for image in &images {
            flock(image, FlockOperation::NonBlockingLockExclusive).unwrap();
            flock(image, FlockOperation::Unlock).unwrap();
        }
        tried += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(tried > 100, "{tried}");
    assert_eq!(Ran::new(look.wait_with_output().unwrap()).code, 1);
}

/// Process ID and command that use the drives, according to `status --json`.
fn user(status: &Value) -> (u64, String) {
    let users = status["used_by"].as_array().unwrap();
    assert_eq!(users.len(), 1, "{status}");
    (users[0]["pid"].as_u64().unwrap(), users[0]["command"].as_str().unwrap().to_string())
}

#[test]
fn status_names_process_using_drives_writers_are_refused() {
    let place = Place::with_array(6);
    let mut command = place.command(&["zone", "write", "drives", "0"]);
    let mut writer = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = writer.stdin.take().unwrap();
    stdin.write_all(&[1; 1 << 20]).unwrap();
    // A megabyte does not fit into a pipe, so the writer is reading and has the drives open.
    let pid = u64::from(writer.id());
    let by = format!("`zoneraid zone write drives 0` (process {pid})");
    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!(user(&status), (pid, "zoneraid zone write drives 0".to_string()));
    assert_eq!(status["state"], "healthy");
    assert!(place.run(&["status", "drives"]).ok().text().contains(&format!("in use: by {by}")));
    assert!(place.run(&["examine", "drives/drive2.img"]).ok().text().contains(&by));
    let all = place.command(&["status"]).current_dir(place.path("drives")).output().unwrap();
    assert!(String::from_utf8_lossy(&all.stdout).contains(&by), "{all:?}");
    let report = place.run(&["zone", "report", "drives", "0"]).ok();
    assert!(report.stderr.contains(&by), "{}", report.stderr);
    for args in [&["zone", "reset", "drives", "1"][..], &["fail", "drives", "2"], &["rebuild", "drives"]] {
        place.run(args).fails_with(&["drive0.img", "is in use by", &by]);
    }
    drop(stdin);
    assert!(writer.wait().unwrap().success());
    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!(status["used_by"], serde_json::json!([]));
    assert_eq!(place.read_zone("drives", 0), vec![1; 1 << 20]);
}

/// A command that waits for drives while one of them is being replaced has to see the new member.
#[test]
fn waiting_command_includes_member_replaced_meanwhile() {
    let place = Place::with_array(7);
    place.run_with(&["zone", "write", "drives", "0"], &[1; 4 << 20]).ok();
    let spares = [drive("drives", 5), "drives/a.img".to_string()];
    // With either order in which the drives are read.
    fs::rename(place.path("drives/drive6.img"), place.path(&spares[1])).unwrap();
    for (role, spare) in [2, 1].into_iter().zip(&spares) {
        let role = role.to_string();
        place.run(&["emulate", "fault", spare, "slow", "300"]).ok();
        let mut replace = place.command(&["replace", "drives", &role, spare]).spawn().unwrap();
        let begun = Instant::now();
        while place.json(&["examine", spare])["used_by"].is_null() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        let listed = place.json(&["list", "drives"])["unseen"][0].clone();
        let by = format!("it is in use by `zoneraid replace drives {role} {spare}`");
        assert!(listed.is_null() || listed["error"].as_str().unwrap().contains(&by), "{listed}");
        // The command waits and is refused, and is repeated until it succeeds.
        while place.run(&["zone", "reset", "drives", "3"]).code != 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        assert!(replace.wait().unwrap().success());
        place.run(&["emulate", "fault", spare, "clear"]).ok();
        let status = place.run(&["status", "drives", "--json"]);
        assert_eq!(status.code, 0, "{}", status.text());
    }
    place.remove(&drive("drives", 0));
    assert!(place.read_zone("drives", 0) == [1; 4 << 20]);
}

/// Bytes of an entry in an image's table of zones.
const ENTRY: u64 = 16;

/// The image of a drive, locked as by a process that uses it.
struct Scribbled {
    image: File,
    /// Offset of the table of zones.
    table: u64,
}

impl Scribbled {
    fn new(image: &Path) -> Scribbled {
        let image = File::options().read(true).write(true).open(image).unwrap();
        flock(&image, FlockOperation::LockExclusive).unwrap();
        let mut scribbled = Scribbled { image, table: 0 };
        // The table begins with the first entry, which is not blank and has a valid checksum.
        let table = (2..2048).map(|page| page * 4096).find(|at| {
            scribbled.table = *at;
            let entry = scribbled.zone(0);
            entry != [0; ENTRY as usize] && entry == sealed(entry)
        });
        assert_eq!(table, Some(scribbled.table));
        scribbled
    }

    fn zone(&self, zone: u64) -> [u8; ENTRY as usize] {
        let mut entry = [0; ENTRY as usize];
        self.image.read_exact_at(&mut entry, self.table + zone * ENTRY).unwrap();
        entry
    }

    fn set_zone(&self, zone: u64, entry: [u8; ENTRY as usize]) {
        self.image.write_all_at(&entry, self.table + zone * ENTRY).unwrap();
    }

    /// Sets the write pointer of the last zone.
    fn write_on(&self, wp: u64) {
        let mut entry = [0; ENTRY as usize];
        entry[0] = 4;
        entry[8..].copy_from_slice(&wp.to_le_bytes());
        self.set_zone(15, sealed(entry));
    }

    /// Calls `change` repeatedly on another thread, until one of several calls of `look` returns a value.
    fn change_until<T>(&self, change: impl Fn(&Scribbled, u64) + Sync, look: impl FnMut() -> Option<T>) -> T {
        let (done, mut look) = (AtomicBool::new(false), look);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (1..2048_u64).cycle().take_while(|_| !done.load(Relaxed)) {
                    change(self, number);
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            // This thread may be delayed alone.
            let looked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (0..20).find_map(|_| look())));
            done.store(true, Relaxed);
            looked.unwrap().unwrap()
        })
    }
}

/// An entry with its checksum.
fn sealed(mut entry: [u8; ENTRY as usize]) -> [u8; ENTRY as usize] {
    entry[4..8].fill(0);
    let sum = crc32c::crc32c(&entry).to_le_bytes();
    entry[4..8].copy_from_slice(&sum);
    entry
}

/// Exit code of `status DIR`, `status` or `list DIR`, by number, and its report of the array in `drives`.
fn said(place: &Place, number: usize) -> (i32, Value) {
    let looks: [&[&str]; 3] = [&["status", ".", "--json"], &["status", "--json"], &["list", ".", "--json"]];
    let mut look = place.command(looks[number]);
    let ran = Ran::new(look.current_dir(place.path("drives")).output().unwrap());
    let said = ran.json();
    (ran.code, if number == 0 { said } else { said["arrays"][0].clone() })
}

#[test]
fn inspection_reports_constantly_written_array_as_changing() {
    let place = Place::with_array(5);
    // Slow enough for a change during a look.
    place.run(&["emulate", "fault", "drives/drive0.img", "slow", "300"]).ok();
    let scribbled = Scribbled::new(&place.path("drives/drive0.img"));
    assert_eq!(scribbled.zone(15), [0; 16], "the last zone is empty");
    // For each command, although nothing is wrong.
    for from in 0..3 {
        let changing = |(code, array): (i32, Value)| {
            assert_eq!((code, &array["state"]), (0, &"healthy".into()));
            (array["changing"] == true).then_some(array)
        };
        let array = scribbled.change_until(Scribbled::write_on, || changing(said(&place, from)));
        assert!(from == 2 || user(&array).0 == u64::from(std::process::id()));
    }
    let read = || Some(place.run(&["zone", "read", "drives", "0"])).filter(|ran| ran.code != 0);
    let me = format!("(process {})", std::process::id());
    scribbled.change_until(Scribbled::write_on, read).fails_with(&["'tank' is being changed by", &me]);
    scribbled.set_zone(15, [0; 16]);
    drop(scribbled);
    for from in 0..3 {
        let (_, array) = said(&place, from);
        assert_eq!(array["changing"], false);
        assert!(array.get("used_by").is_none_or(|users| *users == serde_json::json!([])));
    }
}

#[test]
fn inspection_reports_no_faults_caused_by_changes() {
    let place = Place::with_array(5);
    place.run(&["emulate", "fault", "drives/drive0.img", "slow", "300"]).ok();
    let scribbled = Scribbled::new(&place.path("drives/drive0.img"));
    let metadata = [0, 1].map(|zone| scribbled.zone(zone));
    let offline = sealed([15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // Half of the time the drive is a member, and half of the time its metadata is unreadable.
    let come_and_go = |scribbled: &Scribbled, number: u64| {
        scribbled.write_on(number);
        for (zone, entry) in (0..).zip(metadata) {
            scribbled.set_zone(zone, if number.is_multiple_of(2) { entry } else { offline });
        }
    };
    for from in 0..3 {
        let changing = |(code, array): (i32, Value)| {
            assert_eq!(code, 0, "{array}");
            assert!(array["state"] == "healthy" || array["changing"] == true, "{array}");
            assert!(["healthy", "changing"].contains(&array["state"].as_str().unwrap()), "{array}");
            Some(array).filter(|array| array["state"] == "changing")
        };
        let array = scribbled.change_until(come_and_go, || changing(said(&place, from)));
        let why = array["status"].as_str().unwrap_or("is being changed by");
        assert!(why.contains("is being changed by") && array["action"].is_null(), "{array}");
    }
    let text = || Some(place.run(&["list", "drives"]).text()).filter(|text| text.contains("changing"));
    scribbled.change_until(come_and_go, text);
    (0..).zip(metadata).for_each(|(zone, entry)| scribbled.set_zone(zone, entry));

    // Facts that do not change are reported.
    fs::rename(place.path("drives/drive4.img"), place.path("away.img")).unwrap();
    for from in 0..3 {
        let look = || Some(said(&place, from)).filter(|(_, array)| array["changing"] == true);
        let (code, array) = scribbled.change_until(Scribbled::write_on, look);
        assert_eq!((code, &array["state"]), (if from == 2 { 0 } else { 1 }, &"degraded".into()));
    }
}

#[test]
fn create_dry_run_needs_no_lock_nor_permission() {
    let place = Place::new();
    place.emulate("drives", 4);
    let drives: [String; 4] = std::array::from_fn(|n| drive("drives", n));
    let create = |options: &[&'static str]| {
        let words = ["create", "tank"].iter().chain(options).copied();
        words.chain(drives.iter().map(String::as_str)).collect::<Vec<&str>>()
    };
    let (contents, before) = (fingerprint(&place.path("drives")), times(&place, "drives"));
    let promised = place.run(&create(&["--dry-run"])).ok();
    assert_eq!(promised.stderr, "");

    // A drive is in use.
    let image = File::open(place.path(&drives[2])).unwrap();
    flock(&image, FlockOperation::LockExclusive).unwrap();
    let ran = place.run(&create(&["--dry-run"])).ok();
    assert_eq!(ran.text(), promised.text());
    let said = "drive2.img is in use by `all";
    assert!(ran.stderr.lines().count() == 1 && ran.stderr.contains(said), "{}", ran.stderr);
    place.run(&create(&[])).fails_with(&[
        "drive2.img",
        "is in use by",
        &format!("(process {})", std::process::id()),
    ]);
    drop(image);

    // A user with read permission only can run it, too.
    for drive in &drives {
        fs::set_permissions(place.path(drive), fs::Permissions::from_mode(0o444)).unwrap();
    }
    let ran = as_nobody(&place, "", &create(&["--dry-run"])).ok();
    assert_eq!(ran.text(), promised.text());
    as_nobody(&place, "", &create(&[])).fails_with(&["drive0.img", "permission denied"]);
    assert!(fingerprint(&place.path("drives")) == contents);
    let unwritten = |times: Vec<(u64, i64, i64, i64, i64)>| {
        times.into_iter().map(|t| (t.0, t.1, t.2)).collect::<Vec<_>>()
    };
    assert_eq!(unwritten(times(&place, "drives")), unwritten(before));
}

#[test]
fn drive_in_use_with_unknown_membership_blocks_assembly() {
    let place = Place::with_array(5);
    place.run(&["emulate", "fault", "drives/drive1.img", "gone"]).ok();
    let image = File::open(place.path("drives/drive1.img")).unwrap();
    flock(&image, FlockOperation::LockExclusive).unwrap();
    let me = format!("(process {})", std::process::id());
    place
        .run(&["zone", "reset", "drives", "0"])
        .fails_with(&["drive1.img may be a member of 'tank', but is in use by", &me]);
    drop(image);
    place.run(&["zone", "reset", "drives", "0"]).ok();
}

#[test]
fn former_member_does_not_hide_unidentified_drive() {
    let place = Place::with_array(6);
    place.run(&["replace", "drives", "2", "drives/drive5.img"]).ok();
    let me = format!("(process {})", std::process::id());
    // The former member has the role of another member, and that of the drive that cannot be identified.
    for hidden in ["drives/drive4.img", "drives/drive5.img"] {
        place.run(&["emulate", "fault", hidden, "gone"]).ok();
        let image = File::open(place.path(hidden)).unwrap();
        flock(&image, FlockOperation::LockExclusive).unwrap();
        let said = format!("{hidden} may be a member of 'tank', but is in use by");
        place.run(&["zone", "reset", "drives", "0"]).fails_with(&[&said, &me]);
        drop(image);
        place.run(&["emulate", "fault", hidden, "clear"]).ok();
    }
    place.run(&["zone", "reset", "drives", "0"]).ok();
}

#[test]
fn zone_read_fails_if_zone_is_reset_meanwhile() {
    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0"], &[7; 4 << 20]).ok();
    // The command fills the pipe, and continues when the pipe is read.
    let mut read = place.command(&["zone", "read", "drives", "0"]).spawn().unwrap();
    let mut stdout = read.stdout.take().unwrap();
    let mut data = vec![0; 1 << 20];
    stdout.read_exact(&mut data).unwrap();
    place.run(&["zone", "reset", "drives", "0"]).ok();
    let rest = stdout.read_to_end(&mut data);
    let ran = Ran::new(read.wait_with_output().unwrap());
    rest.unwrap();
    ran.fails_with(&["zone 0 was reset by", "while it was read"]);
}

/// After the last read of a zone it is reset and written past its former write pointer, or the array cannot be inspected.
#[test]
fn zone_read_fails_unless_zone_is_provably_unchanged() {
    let interrupted = |change: &dyn Fn(&Place)| {
        let place = Place::with_array(5);
        place.run_with(&["zone", "write", "drives", "0"], &[7; 4 << 20]).ok();
        let mut read = place.command(&["zone", "read", "drives", "0"]).spawn().unwrap();
        let mut stdout = read.stdout.take().unwrap();
        stdout.read_exact(&mut vec![0; 7 << 19]).unwrap();
        change(&place);
        stdout.read_to_end(&mut Vec::new()).unwrap();
        Ran::new(read.wait_with_output().unwrap())
    };
    let refill = |place: &Place| {
        place.run(&["zone", "reset", "drives", "0"]).ok();
        place.run_with(&["zone", "write", "drives", "0"], &[8; 5 << 20]).ok();
    };
    interrupted(&refill).fails_with(&["zone 0 was reset while it was read"]);
    let lose = |place: &Place| {
        for drive in [0, 1].map(|number| drive("drives", number)) {
            place.run(&["emulate", "fault", &drive, "gone"]).ok();
        }
    };
    interrupted(&lose).fails_with(&["it is unknown whether zone 0 was reset", "only 3 of 5 members"]);
}

#[test]
fn start_waiting_for_members_locks_no_present_drives() {
    let place = Place::with_array(5);
    fs::create_dir(place.path("away")).unwrap();
    fs::rename(place.path("drives/drive4.img"), place.path("away/drive4.img")).unwrap();
    let mut start = place.command(&["start", "drives", "--wait", "60"]).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(start.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("lacks member 4; waiting up to 60 seconds"), "{said}");
    let images: Vec<File> = (0..4).map(|n| File::open(place.path(&drive("drives", n))).unwrap()).collect();
    // The waiting command looks twice a second.
    for _ in 0..1500 {
        for image in &images {
            flock(image, FlockOperation::NonBlockingLockExclusive).unwrap();
            flock(image, FlockOperation::Unlock).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(start.try_wait().unwrap().is_none());
    start.kill().unwrap();
    start.wait().unwrap();
}

/// Five drives of 40,000 zones. The limit is on private memory, which does not depend on the load of the machine; a
/// table of these zones takes a megabyte, so that each further one for all drives exceeds it.
#[test]
fn inspection_of_many_zones_takes_little_memory() {
    let place = Place::new();
    let many = ["--model", "pm1731a", "--zones", "40000", "--zone-capacity", "1M"];
    place.run(&[&["emulate", "create", "drives"][..], &many].concat()).ok();
    place.create("tank", "drives", 5).ok();
    place.run_with(&["zone", "write", "drives", "9000"], &[7; 1 << 20]).ok();
    let examined = drive("drives", 1);
    for (kib, words) in
        [(17_500, ["status", "drives"]), (17_500, ["list", "drives"]), (12_000, ["examine", &examined])]
    {
        let mut limited = place.program("sh");
        limited.args(["-c", r#"ulimit -d "$0" && exec "$@""#, &kib.to_string()]);
        limited.arg(env!("CARGO_BIN_EXE_zoneraid")).args(words);
        let output = limited.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, place.run(&words).ok().stdout);
    }
}
