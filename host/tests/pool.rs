//! Pools from end to end: volumes are created, listed, changed and removed, while the array runs and while it does not.

use crate::{
    support::Place,
    volume::{Client, GO, Server, emulate},
};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

fn place() -> Place {
    let place = Place::new();
    emulate(&place, 4);
    place.create("tank", "drives", 4).ok();
    place
}

/// A client of the volume `name`.
fn client(place: &Place, name: &str) -> Client {
    let mut client = Client::of(place);
    let asked = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat();
    assert_eq!(client.option(GO, &asked).last(), Some(&(1, vec![])), "{name}");
    client
}

/// Names and sizes of the volumes.
fn listed(place: &Place) -> Vec<(String, u64)> {
    let listed = place.json(&["volume", "list", "drives"]);
    let each = listed["volumes"].as_array().unwrap().iter();
    each.map(|volume: &Value| {
        (volume["name"].as_str().unwrap().into(), volume["size_bytes"].as_u64().unwrap())
    })
    .collect()
}

#[test]
fn volumes_of_pool_are_created_changed_and_removed() {
    let place = place();
    place
        .run(&["volume", "create", "drives/mail"])
        .fails_with(&["the size of drives/mail is needed", "--size"]);
    place.run(&["volume", "create", "drives/mail", "--size", "1G"]).ok();
    place.run(&["volume", "create", "drives/logs", "--size", "64M", "--compression", "lz4"]).ok();
    place.run(&["volume", "create", "drives/logs", "--size", "64M"]).fails_with(&["a volume 'logs' already"]);
    let gib = 1 << 30;
    assert_eq!(listed(&place), [("mail".into(), gib), ("logs".into(), gib >> 4)]);
    place.run(&["volume", "rename", "drives/logs", "mail"]).fails_with(&["a volume 'mail' already"]);
    place.run(&["volume", "rename", "drives/logs", "old"]).ok();
    place.run(&["volume", "resize", "drives/old", "--size", "128M"]).ok();
    place.run(&["volume", "resize", "drives/old", "--size", "64M"]).fails_with(&["cannot become smaller"]);
    place.run(&["volume", "set", "drives/old", "--when-full", "queue:9"]).ok();
    let set = place.json(&["volume", "set", "drives/old", "--unit", "16K"]);
    assert_eq!(
        (&set["compression"], &set["when_full"], &set["unit_bytes"]),
        (&"lz4".into(), &"queue:9".into(), &16384.into())
    );
    assert_eq!(listed(&place), [("mail".into(), gib), ("old".into(), gib >> 3)]);
    place
        .run(&["volume", "remove", "drives/logs", "--yes"])
        .fails_with(&["no volume 'logs'", "there are mail, old"]);
    place.run(&["volume", "remove", "drives/old"]).fails_with(&["confirm with --yes"]);
    place.run(&["volume", "remove", "drives/old", "--yes"]).ok();
    assert_eq!(listed(&place), [("mail".into(), gib)]);
    // The array is not one volume, and its zones are not free.
    for args in [
        &["volume", "create", "drives"][..],
        &["volume", "set", "drives", "--when-full", "queue"],
        &["volume", "resize", "drives", "--size", "2G"],
        &["zone", "reset", "drives", "5"],
        &["namespace", "create", "drives/other", "--size", "1M"],
    ] {
        assert_ne!(place.run(args).code, 0, "{args:?}");
    }
}

#[test]
fn one_volume_of_whole_array_is_no_pool() {
    let place = place();
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    place.run(&["volume", "create", "drives/mail", "--size", "1M"]).fails_with(&["carries one volume"]);
    place.run(&["volume", "list", "drives"]).fails_with(&["carries one volume"]);
}

#[test]
fn volumes_of_running_pool_are_served_by_name_and_outlive_the_daemon() {
    let place = place();
    place.run(&["volume", "create", "drives/mail", "--size", "1G"]).ok();
    let server = Server::of(&place, &[]);
    let mut mail = client(&place, "mail");
    assert_eq!(mail.write(1 << 20, &[1; 8192], true), 0);
    let created = place.json(&["volume", "create", "drives/logs", "--size", "64M"]);
    assert_eq!((&created["name"], &created["block_device"]), (&"logs".into(), &Value::Null));
    let mut logs = client(&place, "logs");
    assert_eq!(logs.write(1 << 20, &[2; 8192], false), 0);
    // Without a name, a client does not get any of them.
    assert_eq!(Client::of(&place).option(GO, &[0; 6]).last().map(|(kind, _)| *kind), Some(1 << 31 | 6));
    place.run(&["volume", "resize", "drives/logs", "--size", "128M"]).ok();
    place.run(&["volume", "rename", "drives/logs", "old"]).fails_with(&["stop it first"]);
    place.run(&["volume", "remove", "drives/logs", "--yes"]).fails_with(&["has NBD clients"]);
    let status = place.json(&["status", "drives"]);
    let volumes = status["volumes"].as_array().unwrap();
    assert_eq!((volumes.len(), &volumes[1]["size_bytes"]), (2, &(128_u64 << 20).into()));
    assert_eq!(status["volume"]["used_bytes"].as_u64().unwrap() % 4096, 0);
    // Acknowledged writes of a daemon that is killed are there.
    assert_eq!(server.end(Signal::KILL), None);
    let _server = Server::of(&place, &[]);
    for (name, byte) in [("mail", 1), ("logs", 2)] {
        let mut client = client(&place, name);
        assert_eq!(client.read(1 << 20, 8192), Ok(vec![byte; 8192]), "{name}");
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]), "{name}");
    }
    // The server notices some moments later that the clients have gone.
    let removed = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        place.run(&["volume", "remove", "drives/logs", "--yes"]).code == 0
    });
    assert!(removed);
    assert_eq!(listed(&place), [("mail".into(), 1 << 30)]);
    place.run(&["stop", "drives"]).ok();
    assert_eq!(listed(&place), [("mail".into(), 1 << 30)]);
}
