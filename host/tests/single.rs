//! A single drive without parity, from the command line: created, filled, replaced, damaged and scrubbed.

use crate::{
    json::check_schema,
    scrub::{block, full_zones},
    support::{Place, Random, drive},
    volume::{Server, emulate, is_right, serve_filled},
};

/// A served volume with `data` at its start on drive 0, and drive 1, which is blank.
fn served(data: &[u8]) -> (Place, Server) {
    let place = Place::new();
    emulate(&place, 2);
    let created = place.run(&["create", "solo", "--level", "single", &drive("drives", 0)]).ok();
    assert!(created.stderr.contains("if the drive is lost"), "{}", created.stderr);
    let server = serve_filled(&place, data);
    (place, server)
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

/// A read of a block with a flipped bit fails, a scrub counts the block as unrecoverable, and `status` has its range.
#[test]
fn wrong_block_of_single_drive_is_lost_and_listed() {
    let data = Random(8).bytes(20 << 20);
    let (place, _server) = served(&data);
    let zone = *full_zones(&place).first().expect("a full zone");
    place.run(&["emulate", "fault", &drive("drives", 0), "flip", &block(zone, 5)]).ok();
    let scrubbed = place.json(&["scrub", "start", "drives", "--wait"]);
    assert_eq!((&scrubbed["repaired_bytes"], &scrubbed["unrecoverable_bytes"]), (&0.into(), &4096.into()));
    let status = place.run(&["status", "drives", "--json"]);
    let status = status.json();
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(status["action"].as_str().unwrap().contains("restore the lost data"), "{status}");
    assert_eq!(status["lost"].as_array().unwrap().len(), 1, "{status}");
    assert!(!is_right(&place, &data));
}
