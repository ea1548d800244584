//! Errors: each cause is named, and a problem of one array or drive does not affect others.

use crate::support::{Place, Ran, as_nobody, drive, fingerprint};
use host::control::protocol::PROTOCOL;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

/// Listens on a daemon's socket, and passes each connection to `answer`.
fn pretend(place: &Place, name: &str, answer: fn(UnixStream)) {
    let listener = UnixListener::bind(place.path("run").join(name)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                // Reads the request first, so that no client finds the connection closed.
                let _ = BufReader::new(&stream).read_line(&mut String::new());
                answer(stream);
            });
        }
    });
}

fn send(mut stream: UnixStream, text: &str) {
    // The client may have disconnected.
    let _ = stream.write_all(text.as_bytes());
}

/// A line of a daemon with this protocol version.
fn of_version(protocol: u32, rest: &str) -> String {
    format!("{{\"protocol\":{protocol},{}\n", rest.trim_start_matches('{'))
}

/// Message for a daemon with another protocol version.
fn versions(daemon: u32, advice: &str) -> String {
    format!("the daemon has protocol version {daemon}, this zoneraid {PROTOCOL}: {advice}")
}

#[test]
fn unresponsive_daemons_delay_no_other_arrays() {
    let place = Place::with_array(6);
    let daemon = place.daemon();
    let id = "11111111-2222-4333-8444-555555555555";
    pretend(&place, &format!("{id}.sock"), |_| std::thread::sleep(Duration::from_secs(60)));
    pretend(&place, "garbled.sock", |stream| send(stream, "\x1b[2J{}}{\n"));
    pretend(&place, "endless.sock", |mut stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
    pretend(&place, "slow.sock", |mut stream| {
        while stream.write_all(b"{").is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    // The rest of their answers is unknown to this version.
    pretend(&place, "later.sock", |stream| {
        send(stream, &of_version(PROTOCOL + 1, "{\"news\":{\"is\":[1]}}"))
    });
    pretend(&place, "older.sock", |stream| send(stream, &of_version(PROTOCOL - 1, "{\"error\":\"no\"}")));
    // No process accepts connections there, and the backlog is full.
    let full = UnixListener::bind(place.path("run/full.sock")).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let _waiting = UnixStream::connect(place.path("run/full.sock")).unwrap();
    let later = versions(PROTOCOL + 1, "use a newer zoneraid");
    let older = versions(PROTOCOL - 1, "restart the daemon");
    let lines = [
        (id, "does not answer within 2 seconds"),
        ("garbled.sock", "the daemon sent an invalid message"),
        ("endless.sock", ""),
        ("slow.sock", "does not answer within 2 seconds"),
        ("later.sock", later.as_str()),
        ("older.sock", older.as_str()),
        ("full.sock", "does not answer within 2 seconds"),
    ];
    let commands: [&[&str]; 6] = [
        &["status", "tank"],
        &["status", "drives"],
        &["status"],
        &["list", "drives"],
        &["examine", "drives/drive1.img"],
        &["zone", "report", "tank"],
    ];
    for args in commands {
        let started = Instant::now();
        let ran = place.run(args);
        // The status of all arrays is not known, so it is no success.
        assert_eq!(ran.code, if args == ["status"] { 4 } else { 0 }, "{args:?}: {}", ran.stderr);
        assert!(started.elapsed() < Duration::from_secs(8), "{args:?}: {:?}", started.elapsed());
        assert!(
            ran.text().contains("drive1.img") || ran.text().contains("tank") || args[0] == "zone",
            "{args:?}"
        );
        for (socket, why) in lines {
            let said: Vec<&str> = ran.stderr.lines().filter(|line| line.contains(socket)).collect();
            assert!(said.len() == 1 && said[0].contains(why), "{args:?}, {socket}: {:?}", ran.stderr);
        }
        assert!(!ran.stderr.contains('\x1b'));
    }
    let all = place.run(&["status", "--json"]).json();
    let silent = all["silent"].as_array().unwrap();
    assert!(silent.len() == lines.len() && all["arrays"][0]["name"] == "tank", "{all}");
    for (socket, why) in lines {
        let of_it = silent.iter().find(|silent| silent["socket"].as_str().unwrap().contains(socket));
        assert!(of_it.unwrap()["error"].as_str().unwrap().contains(why), "{all}");
    }
    // Neither reports that the array does not exist, nor searches for it.
    place
        .run(&["status", id])
        .fails_with(&["runs, but its daemon cannot be queried", "does not answer within 2 seconds"]);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

#[test]
fn unresponsive_drive_delays_no_other_arrays() {
    let place = Place::with_array(10);
    let drives: Vec<String> = (5..9).map(|n| drive("drives", n)).collect();
    let mut create = vec!["create", "pond"];
    create.extend(drives.iter().map(String::as_str));
    place.run(&create).ok();
    place.run(&["emulate", "fault", &drives[1], "slow", "1000000"]).ok();
    let list = place.command(&["list", "drives", "--json"]);
    let mut all = place.command(&["status", "--json"]);
    all.current_dir(place.path("drives"));
    for mut command in [list, all] {
        let started = Instant::now();
        let found = Ran::new(command.output().unwrap());
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        let found = found.json();
        let states =
            [0, 1].map(|n| (found["arrays"][n]["name"].clone(), found["arrays"][n]["state"].clone()));
        assert!(states.contains(&("tank".into(), "healthy".into())), "{found}");
        assert!(states.contains(&("pond".into(), "degraded".into())), "{found}");
        let unseen = found["unseen"].as_array().unwrap();
        assert!(unseen[0]["drive"].as_str().unwrap().ends_with("drive6.img"), "{found}");
        assert!(unseen[0]["error"].as_str().unwrap().contains("does not answer within 2 seconds"), "{found}");
    }
}

#[test]
fn denied_drive_access_is_reported_not_hidden() {
    let place = Place::with_array(6);
    for number in 0..6 {
        let image = place.path(&drive("drives", number));
        fs::set_permissions(image, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let denied = "permission denied; its owner may, or root";
    as_nobody(&place, "", &["status", "drives"]).fails_with(&["drive0.img", denied]);
    as_nobody(&place, "", &["status", &drive("drives", 0)]).fails_with(&["drive0.img", denied]);
    as_nobody(&place, "drives", &["status", "tank"]).fails_with(&[
        "no array called 'tank'",
        "drive0.img",
        denied,
    ]);
    as_nobody(&place, "", &["examine", &drive("drives", 1)]).fails_with(&["drive1.img", denied]);
    let listed = as_nobody(&place, "", &["list", "drives", "--json"]).ok().json();
    assert_eq!(listed["unseen"].as_array().unwrap().len(), 6, "{listed}");
    assert!(listed["unseen"].to_string().contains(denied), "{listed}");
    assert!(as_nobody(&place, "", &["list", "drives"]).ok().text().contains(denied));
    let all = as_nobody(&place, "drives", &["status"]).ok().text();
    assert!(
        all.starts_with("no arrays found, but not everything could be examined\n") && all.contains(denied),
        "{all}"
    );
}

#[test]
fn denied_daemon_access_is_reported() {
    let place = Place::with_array(5);
    let daemon = place.daemon();
    let socket = fs::read_dir(place.path("run")).unwrap().map(|entry| entry.unwrap().path()).next().unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    let id = socket.file_stem().unwrap().to_str().unwrap().to_string();
    let refused = as_nobody(&place, "", &["status", &id]);
    refused.fails_with(&["runs, but its daemon cannot be queried", "permission denied"]);
    let all = as_nobody(&place, "run", &["status"]);
    assert!(all.stderr.contains(&id) && all.stderr.contains("permission denied"), "{}", all.stderr);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

#[test]
fn empty_search_result_names_searched_directories() {
    let place = Place::with_array(5);
    fs::create_dir_all(place.path("run")).unwrap();
    assert_eq!(
        place.run(&["status"]).ok().text(),
        "no arrays in /dev or .; to look elsewhere, name a directory\n"
    );
    assert_eq!(
        place.run(&["list"]).ok().text(),
        "no drives in /dev or .; to look elsewhere, name a directory\n"
    );
    assert_eq!(place.run(&["list", "run/.."]).ok().text(), "no drives in run/..\n");
    pretend(&place, "garbled.sock", |stream| send(stream, "?\n"));
    let blind = place.run(&["status"]);
    assert_eq!(
        (blind.code, blind.text().as_str()),
        (4, "no arrays found, but not everything could be examined\n")
    );
    assert!(place.run(&["list"]).ok().text().starts_with("no drives found, but not everything"));
}

/// Special files beside images are neither waited for nor written to.
#[test]
fn special_files_as_images_or_faults_are_refused() {
    let place = Place::with_array(5);
    let fifo = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(place.path(name)).status().unwrap();
        assert!(made.success());
    };
    fifo("drives/fifo.img");
    place
        .run(&["emulate", "fault", "drives/fifo.img", "gone"])
        .fails_with(&["fifo.img", "it is not a regular file"]);
    place.run(&["examine", "drives/fifo.img"]).fails_with(&["fifo.img", "neither a drive nor an image"]);
    assert_eq!(place.run(&["status", "drives"]).code, 0);

    let faults = "drives/drive1.img.faults";
    fs::write(place.path("victim"), "").unwrap();
    let kinds: [(&str, &dyn Fn()); 5] = [
        ("a pipe", &|| fifo(faults)),
        ("a directory", &|| fs::create_dir(place.path(faults)).unwrap()),
        ("a device", &|| std::os::unix::fs::symlink("/dev/zero", place.path(faults)).unwrap()),
        ("a link", &|| std::os::unix::fs::symlink("../victim", place.path(faults)).unwrap()),
        ("a link to nothing", &|| std::os::unix::fs::symlink("../made", place.path(faults)).unwrap()),
    ];
    for (kind, make) in kinds {
        make();
        for args in [&["status", "drives"][..], &["list", "drives"]] {
            let begun = Instant::now();
            let ran = place.run(args);
            assert!(begun.elapsed() < Duration::from_secs(8), "{kind}");
            let said = ran.stderr.clone() + &ran.text();
            assert!(
                said.contains("drive1.img") && said.contains("it is not a regular file"),
                "{kind}: {said}"
            );
        }
        let add = place.run(&["emulate", "fault", "drives/drive1.img", "slow", "2"]);
        add.fails_with(&["the faults of drives/drive1.img cannot be written", "it is not a regular file"]);
        match place.path(faults).is_dir() {
            true => fs::remove_dir(place.path(faults)).unwrap(),
            false => _ = place.run(&["emulate", "fault", "drives/drive1.img", "clear"]).ok(),
        }
        assert_eq!(place.run(&["status", "drives"]).code, 0, "{kind}");
    }
    assert_eq!(fs::read(place.path("victim")).unwrap(), b"");
    assert!(!place.path("made").exists());
}

#[test]
fn status_shows_array_waiting_for_its_daemon() {
    let place = Place::with_array(5);
    let status = place.json(&["status", "drives"]);
    assert_eq!(status["waits_for_daemon"], false);
    place.run(&["stop", "drives"]).fails_with(&["'drives' does not run"]);
    place.leave_tails("drives");

    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!(
        (&status["waits_for_daemon"], &status["action"]),
        (&true.into(), &"zoneraid start drives".into())
    );
    assert!(
        status["status"].as_str().unwrap().ends_with("requests to its block device wait for the next one"),
        "{status}"
    );
    let mut all = place.command(&["status"]);
    let all = Ran::new(all.current_dir(place.path("drives")).output().unwrap()).ok().text();
    assert!(all.contains("waits for its daemon"), "{all}");
    for args in [&["stop", "drives"][..], &["zone", "reset", "drives", "0"], &["destroy", "--yes", "drives"]]
    {
        place.run(args).fails_with(&[
            "has ended while",
            "zoneraid start drives",
            "zoneraid serve drives --nbd",
        ]);
    }
    let member = drive("drives", 3);
    place.run(&["wipe", "--yes", &member]).fails_with(&["waits", &format!("zoneraid start {member}")]);
    // Another array has the same name.
    place.emulate("others", 5);
    place.create("tank", "others", 5).ok();
    let mut all = place.command(&["status", "--json"]);
    all.current_dir(place.path("drives")).env("ZONERAID_DIR", place.path("others"));
    let all = Ran::new(all.output().unwrap()).ok().json();
    let waits = all["arrays"].as_array().unwrap().iter().find(|array| array["waits_for_daemon"] == true);
    assert_eq!(waits.unwrap()["action"], format!("zoneraid start {}", status["uuid"].as_str().unwrap()));
}

#[test]
fn non_utf8_arguments_are_refused_with_escaped_message() {
    let place = Place::with_array(5);
    for before in [&["status", "--bogus"][..], &["create"], &["zone", "read", "drives", "x"], &["status"]] {
        let mut command = place.command(before);
        let ran = Ran::new(command.arg(OsStr::from_bytes(b"dri\xff\x1bves")).output().unwrap());
        assert_eq!(ran.code, 4, "{before:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("zoneraid: ") && !ran.stderr.contains('\x1b'), "{:?}", ran.stderr);
    }
}

#[test]
fn drive_with_two_names_counts_once() {
    let place = Place::with_array(6);
    fs::hard_link(place.path(&drive("drives", 1)), place.path("drives/again.img")).unwrap();
    std::os::unix::fs::symlink("drive2.img", place.path("drives/link.img")).unwrap();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    let listed = place.json(&["list", "drives"]);
    let numbers = [&listed["arrays"][0]["drives"], &listed["blank"], &listed["unseen"]];
    assert_eq!(numbers.map(|list| list.as_array().unwrap().len()), [5, 1, 0], "{listed}");
    let args = ["create", "--yes", "new", &drive("drives", 1), "drives/again.img", &drive("drives", 0)];
    place.run(&args).fails_with(&["again.img is named twice"]);
}

#[test]
fn failed_member_stays_out_in_unusable_array() {
    let place = Place::with_array(6);
    place.run(&["fail", "drives", "2"]).ok();
    place.remove(&drive("drives", 0));
    let status = place.run(&["status", "drives", "--json"]);
    assert_eq!(status.code, 2);
    let states: Vec<_> = (0..5).map(|n| status.json()["members"][n]["state"].clone()).collect();
    assert_eq!(states, ["missing", "active", "out", "active", "active"]);
    let all = place.command(&["status"]).current_dir(place.path("drives")).output().unwrap();
    assert_eq!(all.status.code(), Some(2));
}

#[test]
fn replace_without_new_drive_is_refused_with_usage() {
    let place = Place::with_array(6);
    place.run(&["replace", "drives", "2"]).fails_with(&[
        "NEW",
        "is missing",
        "zoneraid replace drives 2 NEW",
    ]);
    let old = drive("drives", 2);
    place.run(&["replace", "drives", &old]).fails_with(&["NEW", "is missing", &format!("{old} NEW")]);
    assert_eq!(place.run(&["status", "drives"]).code, 0);
}

#[test]
fn list_counts_members_not_replaced_drives() {
    let place = Place::with_array(6);
    place.run(&["replace", "drives", "2", &drive("drives", 5)]).ok();
    let array = place.json(&["list", "drives"])["arrays"][0].clone();
    let counts = ["members", "members_found", "members_active"].map(|count| array[count].as_u64().unwrap());
    assert_eq!((counts, &array["state"]), ([5, 5, 5], &"healthy".into()), "{array}");
    let old = array["drives"].as_array().unwrap().iter().find(|d| d["drive"] == drive("drives", 2)).unwrap();
    assert_eq!((&old["state"], &old["role"]), (&"stale".into(), &2.into()));
    // A drive that is identical to another one is no former member.
    fs::copy(place.path(&drive("drives", 0)), place.path("drives/a.img")).unwrap();
    let twins = place.json(&["list", "drives"])["arrays"][0].clone();
    let states = twins["drives"].as_array().unwrap().iter().filter(|drive| drive["role"] == 0);
    let states: BTreeSet<_> = states.map(|drive| drive["state"].as_str().unwrap()).collect();
    assert_eq!((&twins["state"], states), (&"unusable".into(), BTreeSet::from(["active", "twin"])));
    place.remove("drives/a.img");
    assert!(old["serial"].as_str().unwrap().len() == 8 && old["size_bytes"].as_u64() > Some(0));
    let text = place.run(&["list", "drives"]).ok().text();
    assert!(text.contains("5 of 5") && text.contains("stale") && text.contains("zn540"), "{text}");
}

/// Runs `create` with `options` on the drives in `dirs`, first as a dry run.
fn create(place: &Place, options: &[&str], dirs: &[(&str, usize)]) -> [Ran; 2] {
    let drives: Vec<String> = dirs.iter().flat_map(|(dir, n)| (0..*n).map(|n| drive(dir, n))).collect();
    let mut args = [&["create", "tank", "--json"], options].concat();
    args.extend(drives.iter().map(String::as_str));
    let dry = place.run(&[&args[..], &["--dry-run"]].concat());
    [dry, place.run(&args)]
}

#[test]
fn create_dry_run_matches_actual_create() {
    let emulated = |dir: &str, count: &str, options: &[&str]| {
        let place = Place::new();
        place.run(&[&["emulate", "create", dir, "--count", count], options].concat()).ok();
        place
    };
    let small = ["--zones", "16", "--zone-capacity", "8M"];
    let cases: [(&[&str], &[&str], usize); 13] = [
        (&small, &[], 5),
        (&small, &["--zone-size", "1M"], 5),
        (&small, &["--zone-size", "64M", "--chunk", "128K"], 5),
        (&small, &["--zone-size", "9223372036854775808"], 5),
        (&small, &["--zone-size", "8796093022208K"], 5),
        // No block device could have such zones.
        (&small, &["--zone-size", "100M"], 5),
        (&small, &["--zone-size", "64K"], 5),
        (&small, &["--chunk", "96K"], 5),
        (&small, &["--chunk", "4K"], 5),
        (&small, &["--chunk", "1M"], 5),
        (&small, &[], 2),
        (&["--model", "smr", "--zones", "16", "--zone-capacity", "8M"], &["--policy", "zrwa"], 4),
        (&["--zones", "2", "--zone-capacity", "8M"], &[], 4),
    ];
    let mut refused = Vec::new();
    for (emulate, options, count) in cases {
        let place = emulated("d", "5", emulate);
        let before = fingerprint(&place.path("d"));
        let [dry, made] = create(&place, options, &[("d", count)]);
        assert_eq!(dry.code, made.code, "{options:?}: {} and {}", dry.stderr, made.stderr);
        if made.code != 0 {
            refused.push(options.join(" "));
            assert_eq!(dry.stderr, made.stderr, "{options:?}");
            assert!(fingerprint(&place.path("d")) == before, "{options:?}: something was written");
            continue;
        }
        let (mut dry, mut made) = (dry.json(), made.json());
        for json in [&mut dry, &mut made] {
            json["uuid"] = "".into();
            json["dry_run"] = true.into();
        }
        assert_eq!(dry, made);
        let status = place.json(&["status", "d"]);
        assert_eq!(
            (&status["zones"], &status["zone_capacity_bytes"]),
            (&made["zones"], &made["zone_capacity_bytes"])
        );
        adds_up(&made);
    }
    let expected = [
        "--zone-size 9223372036854775808",
        "--zone-size 8796093022208K",
        "--zone-size 100M",
        "--zone-size 64K",
        "--chunk 96K",
        "--chunk 4K",
        "",
        "--policy zrwa",
        "",
    ];
    assert_eq!(refused, expected);
    let place = emulated("d", "3", &small);
    for run in create(&place, &["--zone-size", "9223372036854775808"], &[("d", 3)]) {
        // In the unit of the option, and not in blocks.
        assert!(
            run.code == 4
                && run
                    .stderr
                    .contains("--zone-size is too large for this number of zones: 524288 TiB at most"),
            "{}",
            run.stderr
        );
    }
    // `create` destroys nothing without `--yes`, and a dry run says so.
    let place = Place::with_array(5);
    let [dry, made] = create(&place, &[], &[("drives", 5)]);
    assert_eq!((dry.code, &dry.stderr), (4, &made.stderr));
}

/// Checks that the parts, with the lost ones, add up to the size of the drives.
fn adds_up(created: &serde_json::Value) {
    let drives =
        created["drives"].as_array().unwrap().iter().map(|drive| drive["size_bytes"].as_u64().unwrap());
    let parts = ["capacity", "parity", "metadata", "spare", "lost_to_rounding", "lost_to_shapes"];
    let parts = parts.map(|part| created[format!("{part}_bytes")].as_u64().unwrap());
    assert_eq!(parts.iter().sum::<u64>(), drives.sum::<u64>(), "{created}");
}

#[test]
fn create_reports_capacity_lost_to_shapes_and_rounding() {
    let place = Place::new();
    place.emulate("small", 4);
    place
        .run(&["emulate", "create", "large", "--count", "1", "--zones", "32", "--zone-capacity", "16M"])
        .ok();
    let [dry, _] = create(&place, &[], &[("small", 4), ("large", 1)]);
    // Drives in different directories would not be found together, so the array is refused.
    assert!(dry.code == 4 && dry.stderr.contains("are in different directories"), "{}", dry.stderr);
    fs::rename(place.path("large/drive0.img"), place.path("small/drive4.img")).unwrap();
    let [dry, _] = create(&place, &[], &[("small", 5)]);
    let dry = dry.ok().json();
    adds_up(&dry);
    assert_eq!(dry["lost_to_shapes_bytes"], (32 * 16 - 16 * 8) << 20);
    let drives: Vec<String> = (0..5).map(|n| drive("small", n)).collect();
    let mut args = vec!["create", "new", "--dry-run", "--yes", "--zone-size", "1M"];
    args.extend(drives.iter().map(String::as_str));
    let said = place.run(&args).ok();
    assert!(said.text().contains("384 MiB unused because the drives are not alike"), "{}", said.text());
    assert!(said.text().contains("unused because zones of the array end before"), "{}", said.text());
    assert!(
        said.stderr.contains("more space of the drives stays unused than the array holds"),
        "{}",
        said.stderr
    );
}
