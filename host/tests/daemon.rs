//! The daemon without a block device: commands send it their requests instead of opening the drives.

use crate::support::{Place, Ran, Random, drive};
use emu::ssd::EmulatedDrive;
use host::{
    control::{name::ArrayName, protocol::PROTOCOL},
    members::{FoundArray, OpenDrive, StartTerms, repair},
    process::output::uuid,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread::JoinHandle,
    time::{Duration, Instant},
};

fn socket(place: &Place) -> PathBuf {
    let files = std::fs::read_dir(place.path("run")).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|e| e == "sock")).unwrap()
}

#[test]
fn commands_are_served_by_daemon_holding_drives() {
    let place = Place::with_array(7);
    let data = Random(5).bytes(9 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    let before = place.json(&["zone", "report", "drives"]);
    let daemon = place.daemon();

    // By directory, member, name and UUID.
    let status = place.json(&["status", "drives"]);
    assert_eq!((&status["state"], &status["pid"]), (&"healthy".into(), &std::process::id().into()));
    let uuid = status["uuid"].as_str().unwrap();
    for name in [&drive("drives", 2), "tank", uuid] {
        assert_eq!(place.json(&["status", name])["uuid"], uuid, "{name}");
    }
    assert_eq!(place.json(&["zone", "report", "tank"]), before);
    assert_eq!(place.json(&["zone", "report", "tank", "1"])["zones"].as_array().unwrap().len(), 1);
    place.run(&["zone", "report", "tank", "1000"]).fails_with(&["no zone 1000"]);
    let examined = place.json(&["examine", &drive("drives", 1)]);
    assert_eq!((&examined["superblock"]["role"], &examined["superblock"]["uuid"]), (&1.into(), &uuid.into()));
    let listed = place.json(&["list", "drives"]);
    assert_eq!(
        (&listed["arrays"][0]["name"], &listed["arrays"][0]["members_found"]),
        (&"tank".into(), &5.into())
    );
    assert_eq!(
        (listed["blank"].as_array().unwrap().len(), listed["unseen"].as_array().unwrap().len()),
        (2, 0)
    );
    place.run(&["start", "drives"]).fails_with(&["runs already", &std::process::id().to_string()]);
    for verb in ["reset", "finish", "open", "close", "read", "write"] {
        place.run(&["zone", verb, "drives", "0"]).fails_with(&["'tank'", "runs"]);
    }

    place.run(&["fail", "tank", "7"]).fails_with(&["no role 7"]);
    place.run(&["fail", "tank", &drive("drives", 6)]).fails_with(&["not a member"]);
    assert_eq!(place.json(&["fail", "drives", &drive("drives", 3)])["role"], 3);
    let degraded = place.run(&["status", "tank"]);
    assert_eq!(degraded.code, 1);
    assert!(degraded.text().contains("zoneraid replace tank 3 NEW"), "{}", degraded.text());
    place.run(&["fail", "tank", "2"]).fails_with(&["member 3 is not in sync"]);
    place.run(&["rebuild", "tank"]).fails_with(&["member 3 is out", "zoneraid replace tank 3 NEW"]);
    place.run(&["replace", "tank", "3", &drive("drives", 0)]).fails_with(&["in use"]);
    // The removed drive is attached again, and then another one replaced.
    place.run(&["replace", "tank", "3", &drive("drives", 3)]).fails_with(&["--yes"]);
    place.run(&["replace", "tank", "3", &drive("drives", 3), "--yes"]).ok();
    let replaced = place.json(&["replace", &drive("drives", 1), &drive("drives", 5)]);
    assert_eq!(replaced["role"], 1);
    // The old drive still worked.
    assert!(replaced["copied_bytes"].as_u64() >= Some(2 << 20), "{replaced}");
    assert_eq!(replaced["rebuilt_bytes"], 0);
    assert_eq!(place.json(&["rebuild", "tank"])["rebuilt_bytes"], 0);
    let status = place.run(&["status", "tank", "--json"]).ok().json();
    assert_eq!(status["members"][1]["drive"], place.path(&drive("drives", 5)).display().to_string());

    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    place.run(&["stop", "drives"]).fails_with(&["does not run"]);
    place.remove(&drive("drives", 0));
    assert!(place.read_zone("drives", 0) == data);
}

#[test]
fn replaced_drive_is_released_with_nothing_to_copy() {
    let place = Place::with_array(6);
    let daemon = place.daemon();
    let replaced = place.json(&["replace", "drives", "1", &drive("drives", 5)]);
    assert_eq!(replaced["copied_bytes"], 0);
    let is_free = |number| EmulatedDrive::open_image(&place.path(&drive("drives", number))).is_ok();
    assert!(is_free(1) && !is_free(0) && !is_free(5));
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
}

#[test]
fn running_array_allows_adopt_autostart_refuses_rename_destroy() {
    let place = Place::with_array(6);
    place.run(&["fail", "drives", "4"]).ok();
    place.run(&["replace", "drives", "4", &drive("drives", 5)]).ok();
    let daemon = place.daemon();
    let said = || {
        let status = place.json(&["status", "drives"]);
        (status["host"].clone(), status["host_id"].clone(), status["autostart"].clone())
    };
    // The daemon in this process is on another machine than the commands.
    let (before, own) = (said(), host::process::machine::id().map(|id| uuid(&id)));
    assert_eq!((&before.0, &before.2), (&"other".into(), &true.into()));
    place.run(&["autostart", "tank", "no"]).ok();
    assert_eq!(said(), (before.0, before.1, false.into()));
    match &own {
        Some(own) => {
            place.run(&["adopt", "tank"]).ok();
            assert_eq!(said(), ("this".into(), own.as_str().into(), false.into()));
        }
        None => _ = place.run(&["adopt", "tank"]).fails_with(&["no identity"]),
    }
    let first = ["'tank' runs", "zoneraid stop tank"];
    place.run(&["rename", "tank", "pool"]).fails_with(&first);
    place.run(&["destroy", "--yes", "tank"]).fails_with(&first);
    let member = drive("drives", 2);
    place
        .run(&["wipe", "--yes", &member])
        .fails_with(&["a member of 'tank', which runs", "zoneraid replace tank"]);
    // A replaced drive belongs to no array; one that was only taken out may come back.
    place.run(&["wipe", &drive("drives", 4)]).ok();
    place.run(&["fail", "tank", "3"]).ok();
    place.run(&["wipe", &drive("drives", 3)]).fails_with(&["which runs"]);
    place.run(&["replace", "tank", "3", &drive("drives", 4)]).ok();
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    let status = place.json(&["status", "drives"]);
    assert_eq!((&status["autostart"], &status["state"]), (&false.into(), &"healthy".into()));
    assert!(own.is_none_or(|own| status["host_id"] == own));
    place.run(&["rename", "tank", "pool"]).fails_with(&["no array called 'tank'"]);
    place.run(&["rename", "drives", "pool"]).ok();
}

#[test]
fn interrupted_rebuild_continues_in_daemon() {
    let place = Place::with_array(5);
    place.emulate("blank", 1);
    let data = Random(6).bytes(12 << 20);
    place.run_with(&["zone", "write", "drives", "1"], &data).ok();
    {
        // As if a replacement had been cut off before it rebuilt anything.
        let found = FoundArray::by_name(&ArrayName::from(place.path("drives"))).unwrap();
        let new = OpenDrive::open(&found.reactor, &place.path(&drive("blank", 0))).unwrap().drive();
        let session = found.assemble().unwrap();
        let replaced = repair::replace(&session.array, 0, new, true, &|_| {}, &|_| {});
        session.wait(replaced).unwrap().unwrap();
        session.reactor.runtime().clear();
    }
    place.remove(&drive("drives", 0));
    std::fs::rename(place.path(&drive("blank", 0)), place.path(&drive("drives", 0))).unwrap();
    assert_eq!(place.json(&["status", "drives"])["members"][0]["state"], "rebuilding");
    let daemon = place.daemon();
    place.run(&["rebuild", "drives"]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    place.remove(&drive("drives", 4));
    assert!(place.read_zone("drives", 1) == data);
}

#[test]
fn daemon_replaces_drive_gone_while_held() {
    let place = Place::with_array(6);
    let data = Random(7).bytes(4 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    let daemon = place.daemon();
    let gone = drive("drives", 3);
    place.run(&["examine", &gone]).ok();
    place.run(&["emulate", "fault", &gone, "gone"]).ok();
    std::thread::sleep(emu::ssd::LOOK_EVERY);
    place.run(&["examine", &gone]).fails_with(&["the drive is gone"]);
    place.run(&["emulate", "fault", &gone, "clear"]).ok();
    std::thread::sleep(emu::ssd::LOOK_EVERY);
    place.run(&["examine", &gone]).ok();
    place.run(&["emulate", "fault", &gone, "gone"]).ok();
    // The superblock of the vanished drive cannot record that it is out, and need not.
    place.run(&["replace", "tank", "3", &drive("drives", 5)]).ok();
    assert_eq!(place.run(&["status", "tank"]).code, 0);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    assert!(place.read_zone("drives", 0) == data);
}

#[test]
fn daemon_socket_answers_invalid_requests_with_errors() {
    let place = Place::with_array(5);
    let daemon = place.daemon();
    let say = |text: &[u8]| {
        let mut stream = UnixStream::connect(socket(&place)).unwrap();
        stream.write_all(text).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    assert!(say(b"\n").contains("\"error\""));
    let ask = |protocol: u32, verb: &str| {
        let answer = say(format!("{{\"protocol\":{protocol},\"verb\":\"{verb}\"}}\n").as_bytes());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["protocol"], PROTOCOL);
        answer["error"].as_str().unwrap_or_default().to_string()
    };
    assert_eq!(ask(PROTOCOL, "status"), "");
    assert!(ask(PROTOCOL, "explode").starts_with("the request is invalid"));
    for (other, advice) in [(PROTOCOL + 1, "restart the daemon"), (PROTOCOL - 1, "use a newer zoneraid")] {
        let said = format!("this daemon has protocol version {PROTOCOL}, not {other}: {advice}");
        // Also for an unknown request.
        assert_eq!([ask(other, "status"), ask(other, "explode")], [said.clone(), said]);
    }
    assert!(say(&[b'x'; 100_000]).contains("bytes at most"));
    // Idle clients, more than are served at a time, and one that disconnects in the middle of a request.
    let hanging: Vec<UnixStream> = (0..31).map(|_| UnixStream::connect(socket(&place)).unwrap()).collect();
    UnixStream::connect(socket(&place)).unwrap().write_all(b"{\"protocol\":2,").unwrap();
    assert_eq!(place.run(&["status", "tank"]).code, 0);
    drop(hanging);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
}

#[test]
fn stale_daemon_socket_is_ignored() {
    let place = Place::with_array(5);
    let daemon = place.daemon();
    let path = socket(&place);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    let daemon = place.daemon();
    assert_eq!(place.json(&["status", "tank"])["state"], "healthy");
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

/// Contents of the images in `drives`.
fn images(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(place.path("drives")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// State of a member, state of the array, and whether it is in deferred-write mode, according to `status`.
fn seen(place: &Place, member: usize) -> (Value, Value, Value) {
    let status = place.run(&["status", "drives", "--json"]).json();
    (status["members"][member]["state"].clone(), status["state"].clone(), status["provisional"].clone())
}

/// Writes to an array, and moves the image of member 2 away; returns the data, the old path and the new one.
fn without_member_2(place: &Place) -> (Vec<u8>, PathBuf, PathBuf) {
    let data = Random(8).bytes(5 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    let (there, away) = (place.path(&drive("drives", 2)), place.path("away.img"));
    std::fs::rename(&there, &away).unwrap();
    (data, there, away)
}

/// Stops a daemon and checks that the data is there without another drive, so all others have it.
fn ends_with(place: &Place, daemon: JoinHandle<()>, data: &[u8]) {
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    place.remove(&drive("drives", 0));
    assert!(place.read_zone("drives", 0) == data);
}

fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn deferred_daemon_readmits_missing_member_before_first_write() {
    let place = Place::with_array(6);
    let (data, there, away) = without_member_2(&place);
    let before = images(&place);
    let waits = ("missing".into(), "degraded".into(), true.into());
    assert_eq!(seen(&place, 2), waits);
    // Either the array cannot be shown to the kernel here, or the command insists on all members.
    place.run(&["start", "drives", "--complete"]).fails_with(&["--complete refuses", "member 2", "missing"]);
    assert_eq!(place.run(&["start", "drives"]).code, 4);
    let daemon = place.daemon();
    assert_eq!(seen(&place, 2), waits);
    // The array's member is missing, so its drive is not wiped without `--yes`.
    place.run(&["wipe", "away.img"]).fails_with(&["member 2 of array 'tank'", "runs without it", "--yes"]);
    let text = place.run(&["status", "drives"]).text();
    assert!(text.contains("nothing has been written without it"), "{text}");
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    assert!(images(&place) == before, "a daemon without a member has written");

    let daemon = place.daemon();
    assert_eq!(seen(&place, 2), waits);
    std::fs::rename(&away, &there).unwrap();
    until(|| seen(&place, 2) == ("active".into(), "healthy".into(), false.into()));
    ends_with(&place, daemon, &data);
}

/// Copying the image back takes longer than the daemon's interval between looks.
#[test]
fn deferred_daemon_readmits_member_once_image_is_complete() {
    let place = Place::with_array(5);
    let (data, there, away) = without_member_2(&place);
    let daemon = place.daemon();
    let image = std::fs::read(&away).unwrap();
    let (first, rest) = image.split_at(image.len() / 2);
    std::fs::write(&there, first).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(seen(&place, 2), ("missing".into(), "degraded".into(), true.into()));
    std::fs::File::options().append(true).open(&there).unwrap().write_all(rest).unwrap();
    until(|| seen(&place, 2) == ("active".into(), "healthy".into(), false.into()));
    ends_with(&place, daemon, &data);
}

/// Another array's block device, served by a killed daemon, may be mounted: its drive still belongs to that array.
#[test]
fn replace_refuses_member_of_array_awaiting_its_daemon() {
    let place = Place::with_array(5);
    place.emulate("others", 5);
    place.create("pool", "others", 5).ok();
    let tails = place.leave_tails("others");
    let (theirs, new) = (place.path(&drive("others", 0)), place.path("drives/other.img"));
    std::fs::rename(&theirs, &new).unwrap();
    let before = std::fs::read(&new).unwrap();
    let daemon = place.daemon_of(place.path(&drive("drives", 0)), StartTerms::default());
    let replace = ["replace", "--yes", "tank", "3", "drives/other.img"];
    place.run(&replace).fails_with(&[
        "member 0 of 'pool'",
        "waits for the daemon of that array",
        "zoneraid start ",
    ]);
    assert!(std::fs::read(&new).unwrap() == before);
    std::fs::remove_file(&tails).unwrap();
    place.run(&replace).ok();
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

/// The daemon waits for both members, takes each when it returns, and writes nothing before.
#[test]
fn raid6_daemon_readmits_two_missing_members_in_turn() {
    let place = Place::with_raid6(6);
    let data = Random(18).bytes(5 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    let (there, away) =
        ([2, 4].map(|n| place.path(&drive("drives", n))), [2, 4].map(|n| place.path(&format!("away{n}"))));
    let move_away = || [0, 1].map(|n| std::fs::rename(&there[n], &away[n]).unwrap());
    let move_back = |n: usize| std::fs::rename(&away[n], &there[n]).unwrap();
    let waits = ("missing".into(), "degraded".into(), true.into());
    let back = ("active".into(), "degraded".into(), true.into());
    let well = ("active".into(), "healthy".into(), false.into());
    move_away();
    let before = images(&place);
    place.run(&["start", "drives", "--complete"]).fails_with(&[
        "--complete refuses",
        "members 2 and 4",
        "missing",
    ]);
    let daemon = place.daemon();
    assert_eq!((seen(&place, 2), seen(&place, 4)), (waits.clone(), waits.clone()));
    let text = place.run(&["status", "drives"]).text();
    assert!(text.contains("nothing has been written without them"), "{text}");
    assert!(text.contains("connect their drives before the first write"), "{text}");
    move_back(0);
    until(|| seen(&place, 2) == back);
    assert_eq!(seen(&place, 4), waits);
    let status = place.run(&["status", "drives", "--json"]).json();
    assert_eq!(status["may_be_lost"], 1);
    let said = status["status"].as_str().unwrap();
    assert!(said.starts_with("member 4") && said.contains("one more member may be lost"), "{said}");
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    std::fs::rename(&there[0], &away[0]).unwrap();
    assert!(images(&place) == before, "a daemon without two members has written");

    // Both return; no member is stale.
    let daemon = place.daemon();
    move_back(1);
    until(|| seen(&place, 4) == back);
    move_back(0);
    until(|| (seen(&place, 2), seen(&place, 4)) == (well.clone(), well.clone()));
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();

    // One returns before the first write, and the other one after it.
    move_away();
    let daemon = place.daemon();
    move_back(1);
    until(|| seen(&place, 4) == back);
    place.run(&["fail", "drives", "2"]).ok();
    assert_eq!(seen(&place, 4), ("active".into(), "degraded".into(), false.into()));
    move_back(0);
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    let status = place.run(&["status", "drives", "--json"]).json();
    assert_eq!((&status["members"][2]["state"], &status["may_be_lost"]), (&"out".into(), &1.into()));
    place.remove(&drive("drives", 0));
    assert!(place.read_zone("drives", 0) == data);
}

/// While the array runs, a second member can be taken out, and both can be replaced.
#[test]
fn raid6_daemon_replaces_two_failed_members() {
    let place = Place::with_raid6(8);
    let data = Random(19).bytes(7 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    let daemon = place.daemon();
    place.run(&["fail", "tank", "1"]).ok();
    place.run(&["fail", "tank", "5"]).ok();
    place.run(&["fail", "tank", "0"]).fails_with(&["members 1 and 5 are not in sync"]);
    place.run(&["rebuild", "tank"]).fails_with(&["member 1 is out", "zoneraid replace tank 1 NEW"]);
    let degraded = place.run(&["status", "tank"]);
    assert_eq!(degraded.code, 1);
    assert!(degraded.text().contains("zoneraid replace tank 1 NEW"), "{}", degraded.text());
    let replaced = place.json(&["replace", "tank", "1", &drive("drives", 6)]);
    assert_eq!(replaced["still_out"], serde_json::json!([5]));
    let rebuilt = place.run(&["rebuild", "tank"]);
    assert!(rebuilt.code == 4 && rebuilt.stderr.contains("member 5 is out"), "{}", rebuilt.stderr);
    place.run(&["replace", "tank", "5", &drive("drives", 7)]).ok();
    assert_eq!(place.json(&["status", "tank"])["may_be_lost"], 2);
    let listed = place.json(&["list", "drives"]);
    assert_eq!(
        (&listed["arrays"][0]["level"], &listed["arrays"][0]["members_active"]),
        (&"raid6".into(), &6.into())
    );
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    [0, 2].into_iter().for_each(|lost| place.remove(&drive("drives", lost)));
    assert!(place.read_zone("drives", 0) == data);
}

/// The second drive is attached while the first one is being rebuilt, and both commands report the end of their
/// rebuild.
#[test]
fn raid6_daemon_replaces_two_members_concurrently() {
    let place = Place::with_raid6(8);
    let data: Vec<Vec<u8>> = (0..6).map(|seed| Random(seed + 51).bytes(12 << 20)).collect();
    for (zone, data) in data.iter().enumerate() {
        place.run_with(&["zone", "write", "drives", &zone.to_string()], data).ok();
    }
    let daemon = place.daemon();
    place.run(&["fail", "tank", "1"]).ok();
    place.run(&["fail", "tank", "4"]).ok();
    let replace = |old: &str, new: usize| {
        place.command(&["replace", "tank", old, &drive("drives", new), "--json"]).spawn().unwrap()
    };
    let first = replace("1", 6);
    until(|| place.json(&["status", "tank"])["members"][1]["state"] != "out");
    let second = replace("4", 7);
    for child in [first, second] {
        let replaced = Ran::new(child.wait_with_output().unwrap()).ok().json();
        assert_eq!(replaced["left_out"], serde_json::json!([]), "{replaced}");
    }
    assert_eq!(place.json(&["status", "tank"])["may_be_lost"], 2);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    [0, 3].into_iter().for_each(|lost| place.remove(&drive("drives", lost)));
    for (zone, data) in data.iter().enumerate() {
        assert!(place.read_zone("drives", zone as u32) == *data, "zone {zone}");
    }
}

#[test]
fn missing_member_is_out_after_deferred_array_commits() {
    let place = Place::with_array(6);
    let there = place.path(&drive("drives", 2));
    // A former member is present as well, and belongs to no array.
    place.run(&["replace", "drives", "4", &drive("drives", 5)]).ok();
    std::fs::rename(&there, place.path("away.img")).unwrap();
    let daemon = place.daemon();
    assert_eq!(seen(&place, 2), ("missing".into(), "degraded".into(), true.into()));
    place.run(&["replace", "--yes", "drives", "2", &drive("drives", 4)]).ok();
    assert_eq!(seen(&place, 2), ("active".into(), "healthy".into(), false.into()));
    std::fs::rename(place.path("away.img"), &there).unwrap();
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!(status["members"][2]["drive"], drive("drives", 4));
}

#[test]
fn forced_read_only_assembly_offlines_possibly_changed_zones() {
    let place = Place::with_array(5);
    let full =
        Random(9).bytes(place.json(&["status", "drives"])["zone_capacity_bytes"].as_u64().unwrap() as usize);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &full).ok();
    place.run_with(&["zone", "write", "drives", "1", "--fua"], &full[..1 << 20]).ok();
    let image = |role| (place.path(&drive("drives", role)), place.path(&format!("away{role}.img")));
    let away = |role| std::fs::rename(image(role).0, image(role).1).unwrap();
    let back = |role| std::fs::rename(image(role).1, image(role).0).unwrap();
    away(3);
    place.run_with(&["zone", "write", "drives", "2", "--fua"], &full[..1 << 20]).ok();
    back(3);
    away(4);
    assert_eq!(place.run(&["status", "drives"]).code, 2);
    let before = images(&place);
    let daemon = place.daemon_on(StartTerms { read_only: true, force: true, ..StartTerms::default() });
    let status = place.run(&["status", "drives", "--json"]).json();
    assert_eq!((&status["state"], &status["read_only"]), (&"degraded".into(), &true.into()));
    let offline: Vec<_> = status["offline_zones"].as_array().unwrap().iter().map(|z| &z["zone"]).collect();
    assert!(!offline.contains(&&0.into()) && offline.contains(&&1.into()) && offline.contains(&&2.into()));
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    assert!(images(&place) == before, "to read is not to write");
    back(4);
    for (zone, end) in [(0, full.len()), (1, 1 << 20), (2, 1 << 20)] {
        assert!(place.read_zone("drives", zone) == full[..end], "zone {zone}");
    }
}

/// Two members are stale and a third one is missing: `--force` takes only as many stale members as needed, the newest
/// first.
#[test]
fn raid6_force_uses_fewest_newest_stale_members() {
    let place = Place::with_raid6(6);
    let capacity = place.json(&["status", "drives"])["zone_capacity_bytes"].as_u64().unwrap();
    let full = Random(61).bytes(capacity as usize);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &full).ok();
    let image = |role| (place.path(&drive("drives", role)), place.path(&format!("away{role}.img")));
    let away = |role| std::fs::rename(image(role).0, image(role).1).unwrap();
    let back = |role| std::fs::rename(image(role).1, image(role).0).unwrap();
    for stale in [3, 4] {
        away(stale);
        let zone = stale.to_string();
        place.run_with(&["zone", "write", "drives", &zone, "--fua"], &full[..1 << 20]).ok();
    }
    [3, 4].into_iter().for_each(back);
    away(5);
    let status = place.run(&["status", "drives", "--json"]);
    assert_eq!((status.code, &status.json()["may_be_lost"]), (2, &0.into()));
    let daemon = place.daemon_on(StartTerms { read_only: true, force: true, ..StartTerms::default() });
    let status = place.run(&["status", "drives", "--json"]).json();
    let state = |role: usize| status["members"][role]["state"].as_str().unwrap().to_string();
    assert_eq!((state(3), state(5)), ("out".into(), "out".into()));
    assert!(status["members"][4]["note"].as_str().unwrap().ends_with("by force"), "{status}");
    let offline: Vec<_> = status["offline_zones"].as_array().unwrap().iter().map(|z| &z["zone"]).collect();
    assert!(!offline.contains(&&0.into()) && offline.contains(&&3.into()) && offline.contains(&&4.into()));
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
    back(5);
    for (zone, end) in [(0, full.len()), (3, 1 << 20), (4, 1 << 20)] {
        assert!(place.read_zone("drives", zone) == full[..end], "zone {zone}");
    }
}
