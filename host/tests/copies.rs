//! Copies of members to new drives: interrupted, continued, cancelled and failing, with and without a daemon.

use crate::{
    support::{Place, Ran, Random, drive},
    volume::{Client, Server},
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

/// Drives of six, of which the array `tank` has five; the last one is blank.
const NEW: usize = 5;

/// A place with an array of five drives, a volume of 128 MiB with these data, and a blank drive.
fn filled(policy: &str) -> (Place, Vec<u8>) {
    let place = Place::new();
    let model = if policy == "append" { "plain-zns" } else { "zn540" };
    let drives = ["emulate", "create", "drives", "--count", "6", "--zones", "32", "--zone-capacity", "4M"];
    place.run(&[&drives[..], &["--model", model]].concat()).ok();
    let members: Vec<String> = (0..5).map(|number| drive("drives", number)).collect();
    let members = members.iter().map(String::as_str);
    let create: Vec<&str> = ["create", "tank", "--policy", policy].into_iter().chain(members).collect();
    place.run(&create).ok();
    place.run(&["volume", "create", "drives", "--size", "128M"]).ok();
    let data = Random(77).bytes(112 << 20);
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    for (at, part) in (0..).zip(data.chunks(1 << 20)) {
        assert_eq!(client.write(at << 20, part, false), 0);
    }
    drop(client);
    place.run(&["stop", "drives"]).ok();
    server.end(Signal::TERM);
    (place, data)
}

fn slow(place: &Place, number: usize, times: &str) {
    let drive = drive("drives", number);
    match times {
        "" => place.run(&["emulate", "fault", &drive, "clear"]).ok(),
        times => place.run(&["emulate", "fault", &drive, "slow", times]).ok(),
    };
}

fn start_copy(place: &Place) -> Child {
    place.command(&["replace", "drives", "1", &drive("drives", NEW)]).spawn().unwrap()
}

fn status(place: &Place) -> Value {
    place.json(&["status", "drives"])
}

fn done_bytes(status: &Value) -> u64 {
    status["rebuild"]["done_bytes"].as_u64().unwrap_or_default()
}

/// Waits until `is_so` holds for the status.
fn until(place: &Place, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = status(place);
        if is_so(&status) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {status}");
        sleep(Duration::from_millis(20));
    }
}

/// Waits until so many bytes have been copied.
fn copied(place: &Place, bytes: u64) {
    until(place, "the copy is under way", |status| {
        status["rebuild"]["copied"]["role"] == 1 && done_bytes(status) >= bytes
    });
}

/// Waits for the end of the copy, and checks the data without the old drive.
fn check_replaced(place: &Place, data: &[u8]) {
    slow(place, NEW, "");
    let at_end = until(place, "the new drive is the member", |status| {
        status["rebuild"].is_null() && status["members"][1]["drive"].to_string().contains("drive5")
    });
    assert_eq!(at_end["state"], "healthy");
    place.run(&["stop", "drives"]).ok();
    let released = place.run(&["replace", "--cancel", "drives"]);
    released.fails_with(&["no unfinished copy"]);
    // The old drive is needed neither by the array nor by another one: no `--yes`.
    place.run(&["wipe", &drive("drives", 1)]).ok();
    check_data(place, data);
}

fn check_data(place: &Place, data: &[u8]) {
    let mut server = Server::of(place, &[]);
    let mut client = Client::ready(place, false);
    for (at, part) in (0..).zip(data.chunks(1 << 20)) {
        assert!(client.read(at << 20, part.len() as u32).unwrap() == part, "MiB {at}");
    }
    drop(client);
    place.run(&["stop", "drives"]).ok();
    server.process.wait().unwrap();
}

fn is_blank(place: &Place) -> bool {
    place.json(&["examine", &drive("drives", NEW)])["blank"] == true
}

/// A daemon is killed, and its successor stopped by a signal, in the middle of a copy: the copy continues by itself,
/// with its complete zones, and `status` and `examine` show its progress.
fn copy_continues(policy: &str) {
    let (place, data) = filled(policy);
    let mut server = Server::of(&place, &[]);
    slow(&place, NEW, "200");
    let mut client = start_copy(&place);
    copied(&place, 13 << 20);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    assert!(!client.wait().unwrap().success());
    for next in [Some(Signal::TERM), None] {
        // Offline: by the label of the new drive.
        let offline = status(&place);
        let Value::Object(rebuild) = &offline["rebuild"] else { panic!("{offline}") };
        let (done, all) = (done_bytes(&offline), rebuild["total_bytes"].as_u64().unwrap());
        assert!(done >= 8 << 20 && done < all, "{rebuild:?}");
        assert_eq!((&rebuild["running"], &offline["state"]), (&false.into(), &"healthy".into()));
        assert!(rebuild["copied"]["drive"].to_string().contains("drive5"), "{rebuild:?}");
        let text = place.run(&["status", "drives"]).ok().text();
        assert!(
            text.contains("copy: member 1 to drives/drive5.img, ") && text.contains("interrupted"),
            "{text}"
        );
        for number in [1, NEW] {
            let examined = place.json(&["examine", &drive("drives", number)]);
            assert_eq!(examined["copy"], offline["rebuild"], "drive {number}");
            let text = place.run(&["examine", &drive("drives", number)]).ok().text();
            assert!(text.contains("copy: member 1 to drives/drive5.img, "), "{text}");
        }
        assert!(place.json(&["examine", &drive("drives", 0)])["copy"].is_null());
        let all_arrays = place.command(&["status"]).current_dir(place.path("drives")).output().unwrap();
        let all_arrays = Ran::new(all_arrays).ok().text();
        assert!(all_arrays.contains("copy, ") && all_arrays.contains(" %, interrupted"), "{all_arrays}");
        server = Server::of(&place, &[]);
        let first =
            until(&place, "the copy continues", |status| status["rebuild"]["total_bytes"].as_u64() > Some(0));
        assert!(done_bytes(&first) >= done, "{first} after {offline}");
        assert_eq!(first["rebuild"]["running"], true);
        let examined = place.json(&["examine", &drive("drives", NEW)]);
        assert_eq!(examined["copy"]["copied"]["role"], 1, "{examined}");
        // The same command again is no second copy.
        let again = place.run(&["replace", "drives", "1", &drive("drives", NEW)]);
        again.fails_with(&["member 1 is being copied to", "zoneraid replace --cancel tank 1"]);
        if let Some(signal) = next {
            copied(&place, done + (4 << 20));
            assert_eq!(server.end(signal), Some(0));
            server = Server::of(&place, &[]);
            copied(&place, done + (4 << 20));
            server.process.kill().unwrap();
            server.process.wait().unwrap();
        }
    }
    check_replaced(&place, &data);
    server.process.wait().unwrap();
}

#[test]
fn copy_continues_after_kill_and_stop_of_daemon() {
    copy_continues("zrwa");
}

/// A replacement by a client runs when the array begins to write, with which interrupted copies continue.
#[test]
fn copy_continues_after_replacement_by_client() {
    let (place, _) = filled("zrwa");
    slow(&place, NEW, "200");
    let mut client = start_copy(&place);
    until(&place, "the copy is under way", |status| done_bytes(status) >= 8 << 20);
    client.kill().unwrap();
    client.wait().unwrap();
    slow(&place, NEW, "");
    place.run(&["emulate", "create", "more", "--zones", "32", "--zone-capacity", "4M", "--count", "1"]).ok();
    std::fs::rename(place.path(&drive("more", 0)), place.path(&drive("drives", 6))).unwrap();
    place.remove(&drive("drives", 3));
    let daemon = place.daemon();
    place.run(&["replace", "drives", "3", &drive("drives", 6)]).ok();
    until(&place, "the new drives are members", |status| {
        let is_member = |role: usize, drive| status["members"][role]["drive"].to_string().contains(drive);
        status["state"] == "healthy" && is_member(1, "drive5") && is_member(3, "drive6")
    });
    place.run(&["stop", "drives"]).ok();
    daemon.join().unwrap();
}

#[test]
fn copy_with_policy_append_continues_after_kill_and_stop() {
    copy_continues("append");
}

#[test]
fn copy_is_cancelled_by_a_daemon_while_it_runs() {
    let (place, data) = filled("zrwa");
    let mut server = Server::of(&place, &[]);
    place
        .run(&["replace", "--cancel", "drives"])
        .fails_with(&["'tank' has no unfinished copy", "nothing is cancelled"]);
    for (member, at_once) in [(Some("1"), false), (None, true), (Some("drives/drive5.img"), false)] {
        // At first the drive is emptied, which takes this one several seconds.
        slow(&place, NEW, if at_once { "20000" } else { "200" });
        let client = start_copy(&place);
        match at_once {
            true => _ = until(&place, "the copy begins", |status| status["rebuild"]["copied"]["role"] == 1),
            false => copied(&place, 5 << 20),
        }
        place.run(&["replace", "--cancel", "drives", "2"]).fails_with(&["no unfinished copy of that member"]);
        slow(&place, NEW, "");
        let cancel: Vec<&str> = ["replace", "--cancel", "drives"].into_iter().chain(member).collect();
        let said = place.run(&cancel).ok().text();
        assert!(
            said.contains("the copy of member 1 of 'tank' to ") && said.ends_with("drive5.img is blank\n"),
            "{said}"
        );
        assert!(is_blank(&place), "{member:?}");
        let ran = Ran::new(client.wait_with_output().unwrap());
        ran.fails_with(&["member 1 was not replaced by", "the copy was cancelled"]);
        let after = status(&place);
        assert_eq!((&after["state"], &after["rebuild"]), (&"healthy".into(), &Value::Null));
        assert!(after["members"][1]["drive"].to_string().contains("drive1"));
        place.run(&cancel).fails_with(&["nothing is cancelled"]);
    }
    place.run(&["stop", "drives"]).ok();
    server.process.wait().unwrap();
    assert!(is_blank(&place));
    check_data(&place, &data);
}

#[test]
fn copy_without_daemon_is_continued_and_cancelled() {
    for policy in ["zrwa", "append"] {
        let (place, data) = filled(policy);
        let interrupt = |bytes: u64| {
            slow(&place, NEW, "200");
            let client = start_copy(&place);
            // By another process, as far as the label of the drive says.
            let seen = until(&place, "the copy is under way", |status| done_bytes(status) >= bytes);
            assert_eq!(seen["rebuild"]["running"], true, "{seen}");
            let pid = rustix::process::Pid::from_child(&client);
            place.run(&["replace", "--cancel", "drives"]).fails_with(&["in use by `zoneraid replace"]);
            rustix::process::kill_process(pid, Signal::TERM).unwrap();
            let said = String::from_utf8(client.wait_with_output().unwrap().stderr).unwrap();
            assert!(
                said.contains("interrupted; ") && said.contains("zoneraid replace --cancel drives 1"),
                "{said}"
            );
            slow(&place, NEW, "");
        };
        interrupt(8 << 20);
        assert_eq!(place.run(&["replace", "--cancel", "drives", "1"]).ok().code, 0);
        assert!(is_blank(&place), "{policy}");
        let after = status(&place);
        assert_eq!(
            (&after["state"], &after["rebuild"], &after["action"]),
            (&"healthy".into(), &Value::Null, &Value::Null)
        );
        place.run(&["replace", "--cancel", "drives", "1"]).fails_with(&["nothing is cancelled"]);
        interrupt(8 << 20);
        let action = status(&place)["action"].as_str().unwrap().to_string();
        assert!(action.contains("zoneraid replace drives 1 drives/drive5.img"), "{action}");
        // What is complete is not copied again.
        let (all, done) =
            (status(&place)["rebuild"]["total_bytes"].as_u64().unwrap(), done_bytes(&status(&place)));
        let replaced = place.json(&["replace", "drives", "1", &drive("drives", NEW)]);
        // Blocks of a ZRWA behind the data are copied, too.
        let copied_bytes = replaced["copied_bytes"].as_u64().unwrap();
        assert!((all - done..all).contains(&copied_bytes), "{policy}: {replaced}, {done} of {all}");
        place.run(&["wipe", &drive("drives", 1)]).ok();
        check_data(&place, &data);
    }
}

#[test]
fn failed_copy_names_cause_and_remedy() {
    let (place, data) = filled("zrwa");
    let mut server = Server::of(&place, &[]);
    // The new drive.
    slow(&place, NEW, "200");
    let client = start_copy(&place);
    copied(&place, 5 << 20);
    place.run(&["emulate", "fault", &drive("drives", NEW), "gone"]).ok();
    let said = Ran::new(client.wait_with_output().unwrap());
    said.fails_with(&["member 1 was not replaced by", "the new drive failed", "give another drive"]);
    let after = status(&place);
    assert_eq!((&after["state"], &after["rebuild"]), (&"healthy".into(), &Value::Null));
    let events = after["events"].to_string();
    assert!(events.contains("not-replaced") && events.contains("the new drive failed"), "{events}");
    // The same drive again, as it is there again; then the old one fails.
    place.run(&["emulate", "fault", &drive("drives", NEW), "clear"]).ok();
    slow(&place, NEW, "200");
    let client = start_copy(&place);
    copied(&place, 14 << 20);
    place.run(&["emulate", "fault", &drive("drives", 1), "gone"]).ok();
    sleep(emu::ssd::LOOK_EVERY);
    slow(&place, NEW, "");
    let said = Ran::new(client.wait_with_output().unwrap()).ok();
    assert!(said.stderr.contains("member 1 went out during the copy"), "{}", said.stderr);
    assert_eq!(status(&place)["state"], "healthy");
    place.run(&["stop", "drives"]).ok();
    server.process.wait().unwrap();
    check_data(&place, &data);
}

#[test]
fn interrupted_rebuild_says_how_far_it_is() {
    let (place, data) = filled("zrwa");
    slow(&place, NEW, "200");
    let mut client =
        place.command(&["replace", "--now", "drives", "1", &drive("drives", NEW)]).spawn().unwrap();
    until(&place, "the rebuild is under way", |status| {
        status["members"][1]["state"] == "rebuilding" && done_bytes(status) >= 8 << 20
    });
    client.kill().unwrap();
    client.wait().unwrap();
    slow(&place, NEW, "");
    let offline = status(&place);
    let (done, all) = (done_bytes(&offline), offline["rebuild"]["total_bytes"].as_u64().unwrap());
    assert!(done >= 8 << 20 && done < all && offline["rebuild"]["copied"].is_null(), "{offline}");
    assert_eq!(offline["rebuild"]["running"], false);
    let text = place.run(&["status", "drives"]).text();
    assert!(text.contains("rebuild: ") && text.contains("interrupted"), "{text}");
    let rebuilt = place.json(&["rebuild", "drives"]);
    assert!((all - done..all).contains(&rebuilt["rebuilt_bytes"].as_u64().unwrap()), "{rebuilt}");
    place.run(&["wipe", &drive("drives", 1)]).ok();
    check_data(&place, &data);
}
