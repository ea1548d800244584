//! `status` never reports a better state than the real one, and its advice helps.

use crate::{
    support::{Place, Random, drive},
    volume::{Client, Server, emulate, with_volume},
};
use rustix::process::Signal;
use std::{fs, time::Duration};

fn fault(place: &Place, number: usize, what: &[&str]) {
    let drive = drive("drives", number);
    place.run(&[&["emulate", "fault", &drive][..], what].concat()).ok();
    // Emulated drives read their faults every 5 ms.
    std::thread::sleep(Duration::from_millis(20));
}

/// State, `may_be_lost`, description of the problem, and advice.
fn status(place: &Place) -> (String, u64, String, String) {
    let status = place.run(&["status", "drives", "--json"]).json();
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_string();
    (text("state"), status["may_be_lost"].as_u64().unwrap(), text("status"), text("action"))
}

#[test]
fn refused_fail_and_rebuild_leave_missing_members_unchanged() {
    let place = Place::with_raid6(6);
    let (away, there) = (place.path("away.img"), place.path(&drive("drives", 1)));
    let healthy = status(&place);
    fs::rename(&there, &away).unwrap();
    place.run(&["rebuild", "drives"]).fails_with(&["member 1 is out"]);
    place.run(&["fail", "drives", "9"]).fails_with(&["there is no role 9"]);
    fs::rename(&away, &there).unwrap();
    assert_eq!(status(&place), healthy);
    // `fail` takes the first missing member out, and says so.
    fs::rename(&there, &away).unwrap();
    let said = place.run(&["fail", "drives", "1"]).ok().text();
    assert!(said.starts_with("member 1 ") && said.contains("is out"), "{said}");
    place.run(&["fail", "drives", "1"]).fails_with(&["member 1 is out already"]);
    // With a second member missing the others are needed.
    let (second, aside) = (place.path(&drive("drives", 2)), place.path("aside.img"));
    fs::rename(&second, &aside).unwrap();
    place.run(&["fail", "drives", "3"]).fails_with(&["members 1 and 2 are not in sync"]);
    place.run(&["fail", "drives", "1"]).fails_with(&["member 1 is out already"]);
    fs::rename(&aside, &second).unwrap();
    let (state, may_be_lost, said, _) = status(&place);
    assert_eq!((state.as_str(), may_be_lost), ("degraded", 1), "{said}");
    assert!(!said.contains("member 2"), "{said}");
}

#[test]
fn unreadable_blocks_degrade_status_until_drive_is_replaced() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let data = Random(71).bytes(16 << 20);
    for (at, part) in (0..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        assert_eq!(client.write(at, part, false), 0);
    }
    assert_eq!(status(&place).0, "healthy");
    // Data zones follow two metadata zones: blocks at the start of some of them.
    for zone in 3..8 {
        fault(&place, 1, &["unreadable", &(zone * 1024 + 5).to_string()]);
    }
    let read = |client: &mut Client| {
        let read = (0..).step_by(1 << 20).take(16).map(|at| client.read(at, 1 << 20).unwrap());
        read.flatten().collect::<Vec<u8>>()
    };
    assert!(read(&mut client) == data);
    let (state, may_be_lost, said, action) = status(&place);
    assert_eq!((state.as_str(), may_be_lost), ("degraded", 0), "{said}");
    assert!(
        said.contains("the drive of member 1 cannot read up to") && said.contains("all data is there"),
        "{said}"
    );
    assert!(
        action.contains("zoneraid replace drives 1 NEW") || action.contains("zoneraid replace tank 1 NEW"),
        "{action}"
    );
    // The advice helps.
    place.run(&["replace", "drives", "1", &drive("drives", 5)]).ok();
    let (state, may_be_lost, said, _) = status(&place);
    assert_eq!((state.as_str(), may_be_lost), ("healthy", 1), "{said}");
    assert!(read(&mut client) == data);
    drop(client);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn failed_array_advises_stop_and_recovers_with_members() {
    let place = Place::new();
    emulate(&place, 6);
    place.create_as("raid6", "tank", "drives", 6).ok();
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let data = Random(72).bytes(1 << 20);
    assert_eq!(client.write(0, &data, false), 0);
    (0..3).for_each(|number| fault(&place, number, &["gone"]));
    assert_ne!(client.write(1 << 20, &data, true), 0);
    let (state, may_be_lost, said, action) = status(&place);
    assert_eq!((state.as_str(), may_be_lost), ("unusable", 0), "{said}");
    assert!(
        action.contains("connect the drives of members 0, 1 and 2 again") && action.contains("zoneraid stop"),
        "{action}"
    );
    (0..3).for_each(|number| fault(&place, number, &["clear"]));
    assert_eq!(status(&place).3, action);
    drop(client);
    // As the advice says.
    std::thread::sleep(Duration::from_millis(100));
    place.run(&["stop", "drives"]).ok();
    drop(server);
    let server = Server::of(&place, &[]);
    assert!(Client::ready(&place, false).read(0, data.len() as u32).unwrap() == data);
    assert_eq!(status(&place).0, "healthy");
    assert_eq!(server.end(Signal::TERM), Some(0));
}
