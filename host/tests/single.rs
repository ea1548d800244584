//! A single drive without parity, from the command line: created, filled, replaced, damaged and scrubbed.

use crate::{
    json::check_schema,
    support::{Place, Random, drive},
    volume::{Client, Server, emulate},
};

/// A served volume of 64 MiB on drive 0, with a spare drive 1.
fn served(data: &[u8]) -> (Place, Server) {
    let place = Place::new();
    emulate(&place, 2);
    let created = place.run(&["create", "solo", "--level", "single", &drive("drives", 0)]).ok();
    assert!(created.stderr.contains("if the drive is lost"), "{}", created.stderr);
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    for (at, piece) in (0..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        assert_eq!(client.write(at, piece, true), 0);
    }
    (place, server)
}

fn is_right(place: &Place, data: &[u8]) -> bool {
    let mut client = Client::ready(place, false);
    let mut pieces = (0..).step_by(1 << 20).zip(data.chunks(1 << 20));
    pieces.all(|(at, piece)| client.read(at, piece.len() as u32) == Ok(piece.to_vec()))
}

#[test]
fn single_drive_is_copied_and_never_taken_out() {
    let data = Random(7).bytes(20 << 20);
    let (place, server) = served(&data);
    let status = place.json(&["status", "drives"]);
    check_schema(&status, "status.json");
    let shown = ["level", "state", "may_be_lost"].map(|key| status[key].to_string());
    assert_eq!(shown, ["\"single\"", "\"healthy\"", "0"]);
    place.run(&["fail", "drives", "0"]).fails_with(&["is the only drive"]);
    place.run(&["replace", "drives", "0", &drive("drives", 1), "--now"]).fails_with(&["without --now"]);
    assert!(is_right(&place, &data));
    let copied = place.run(&["replace", "drives", "0", &drive("drives", 1)]).ok();
    assert!(copied.stderr.contains("still holds a copy of 'solo'"), "{}", copied.stderr);
    assert!(is_right(&place, &data));
    server.end(rustix::process::Signal::KILL);
    let _server = Server::of(&place, &[]);
    place.run(&["wipe", "--yes", &drive("drives", 0)]).ok();
    assert!(is_right(&place, &data));
}

/// A flipped bit is not returned, and what was lost with it is listed.
#[test]
fn wrong_block_of_single_drive_is_lost_and_listed() {
    let data = Random(8).bytes(20 << 20);
    let (place, _server) = served(&data);
    // The sixth block of the third zone of the drive, which is the first one of the volume with data.
    let zones = place.json(&["zone", "report", "drives"]);
    let used = zones["zones"].as_array().unwrap().iter().find(|zone| zone["condition"] == "full").unwrap();
    let at = (used["zone"].as_u64().unwrap() + 2) * 1024 + 5;
    place.run(&["emulate", "fault", &drive("drives", 0), "flip", &at.to_string()]).ok();
    let scrubbed = place.json(&["scrub", "start", "drives", "--wait"]);
    assert_eq!((&scrubbed["repaired_bytes"], &scrubbed["unrecoverable_bytes"]), (&0.into(), &4096.into()));
    let status = place.run(&["status", "drives", "--json"]);
    let status = status.json();
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(status["action"].as_str().unwrap().contains("restore the lost data"), "{status}");
    assert_eq!(status["lost"].as_array().unwrap().len(), 1, "{status}");
    assert!(!is_right(&place, &data));
}
