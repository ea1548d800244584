//! Pools from end to end: volumes, snapshots and clones are created, listed, changed and removed, while the array runs and
//! while it does not.

use crate::{
    support::Place,
    volume::{Client, GO, Server, emulate},
};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// NBD_CMD_WRITE and NBD_CMD_FLUSH, without flags.
const WRITE: (u16, u16) = (0, 1);
const FLUSH: (u16, u16) = (0, 3);

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

/// Names of the volumes, and of their snapshots behind them, in the table of `volume list`.
fn listed_names(place: &Place) -> Vec<String> {
    let text = place.run(&["volume", "list", "drives"]).ok().text();
    let rows = text.lines().skip(1).take_while(|line| line.starts_with("  "));
    rows.filter_map(|line| Some(line.split_whitespace().next()?.to_string())).collect()
}

/// Offsets and lengths of the ranges in which a volume differs from a snapshot of it.
fn changed(place: &Place, args: &[&str]) -> Vec<(u64, u64)> {
    let changed = place.json(&[&["volume", "diff"], args].concat());
    let ranges = changed["ranges"].as_array().unwrap().iter();
    let ranges: Vec<(u64, u64)> = ranges
        .map(|range| (range["offset_bytes"].as_u64().unwrap(), range["length_bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(changed["total_bytes"], ranges.iter().map(|(_, length)| length).sum::<u64>());
    ranges
}

/// Runs a command until it succeeds: the server notices some moments later that clients have gone.
fn ok_at_last(place: &Place, args: &[&str]) {
    let is_done = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        place.run(args).code == 0
    });
    assert!(is_done, "{args:?}: {}", place.run(args).stderr);
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
    place.run(&["volume", "resize", "drives/old", "--size", "64M"]).ok();
    place.run(&["volume", "resize", "drives/old", "--size", "128M"]).ok();
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
fn limits_of_volumes_are_set_shown_and_kept() {
    let place = place();
    for args in [
        &["volume", "create", "drives", "--iops", "9"][..],
        &["volume", "create", "drives", "--bandwidth", "1M"],
    ] {
        place.run(args).fails_with(&["are for the volumes of a pool (ARRAY/NAME)"]);
    }
    let limits = |requests: Option<u32>, bytes: Option<u64>| serde_json::json!({ "requests_per_second": requests, "bytes_per_second": bytes });
    place.run(&["volume", "create", "drives/mail", "--size", "1G"]).ok();
    let create = ["volume", "create", "drives/logs", "--size", "64M", "--iops", "500", "--bandwidth", "4M"];
    assert_eq!(place.json(&create)["limits"], limits(Some(500), Some(4 << 20)));
    let set = |option, value| place.json(&["volume", "set", "drives/logs", option, value])["limits"].clone();
    assert_eq!(set("--bandwidth", "0"), limits(Some(500), None));
    assert_eq!(set("--when-full", "queue"), limits(Some(500), None));
    place.run(&["volume", "snapshot", "drives/logs@monday"]).ok();
    let listed = place.json(&["volume", "list", "drives"]);
    let all: Vec<&Value> =
        listed["volumes"].as_array().unwrap().iter().map(|volume| &volume["limits"]).collect();
    assert_eq!(all, [&limits(None, None), &limits(Some(500), None)]);
    let text = place.run(&["volume", "list", "drives"]).ok().text();
    assert!(text.contains(" LIMITS ") && text.contains(" 500 requests/s "), "{text}");
    for (args, said) in [
        (["--iops", "0", "--bandwidth", "0"], "reads and writes of tank/logs are not limited\n"),
        (
            ["--iops", "7", "--bandwidth", "4K"],
            "reads and writes of tank/logs are limited to 7 requests/s, 4 KiB/s\n",
        ),
    ] {
        assert_eq!(place.run(&[&["volume", "set", "drives/logs"][..], &args].concat()).ok().text(), said);
    }
    place
        .run(&["volume", "set", "drives/logs@monday", "--iops", "1"])
        .fails_with(&["a snapshot cannot be changed"]);
    for (value, why) in [("16T", "less than 16 TiB a second"), ("5", "not a multiple")] {
        place.run(&["volume", "set", "drives/logs", "--bandwidth", value]).fails_with(&[why]);
    }
}

#[test]
fn floors_of_volumes_are_set_shown_and_served() {
    let place = place();
    let refused =
        place.run(&["volume", "create", "drives/mail", "--size", "1G", "--iops", "9", "--floor-iops", "10"]);
    refused.fails_with(&["a floor is above the limit"]);
    // The refused volume has not made the array a pool.
    place.run(&["volume", "list", "drives"]).fails_with(&[]);
    let create =
        ["volume", "create", "drives/mail", "--size", "1G", "--floor-iops", "500", "--latency", "900"];
    let made = place.json(&create);
    assert_eq!((&made["floors"]["requests_per_second"], &made["latency_us"]), (&500.into(), &900.into()));
    place.run(&["volume", "create", "drives/logs", "--size", "64M"]).ok();
    let _server = Server::of(&place, &[]);
    let (mut mail, mut logs) = (client(&place, "mail"), client(&place, "logs"));
    for at in 0..200 {
        assert_eq!((logs.write(at * 4096, &[1; 4096], false), mail.write(0, &[2; 4096], false)), (0, 0));
    }
    for (args, said) in [
        (["--floor-iops", "0"], "no reads and writes of tank/mail are guaranteed\n"),
        (["--floor-bandwidth", "1M"], "tank/mail gets at least 1 MiB/s under sufficient load\n"),
        (["--latency", "0"], "reads and writes of tank/mail have no latency target\n"),
        (["--latency", "70"], "reads and writes of tank/mail have a latency target of 70 us\n"),
    ] {
        assert_eq!(place.run(&[&["volume", "set", "drives/mail"][..], &args].concat()).ok().text(), said);
    }
    place.run(&["volume", "set", "drives/mail", "--bandwidth", "4K"]).fails_with(&["a floor is above"]);
    let listed = place.json(&["volume", "list", "drives"]);
    let mail = &listed["volumes"][0];
    assert_eq!((&mail["floors"]["bytes_per_second"], &mail["latency_us"]), (&(1 << 20).into(), &70.into()));
    assert_eq!(mail["limits"]["bytes_per_second"], Value::Null);
    let text = place.run(&["volume", "list", "drives"]).ok().text();
    assert!(text.contains(" FLOORS ") && text.contains(" 1 MiB/s ") && text.contains(" 70 us "), "{text}");
}

#[test]
fn limited_volume_waits_without_blocking_flush_and_others() {
    let place = place();
    place.run(&["volume", "create", "drives/mail", "--size", "1G", "--iops", "1"]).ok();
    place.run(&["volume", "create", "drives/logs", "--size", "64M"]).ok();
    let server = Server::of(&place, &[]);
    let (mut mail, mut logs) = (client(&place, "mail"), client(&place, "logs"));
    // More requests than workers.
    let write = |client: &mut Client, cookies: std::ops::Range<u64>| {
        for cookie in cookies {
            client.request(WRITE, cookie, (cookie * 4096, 4096));
            client.say(&[1; 4096]);
        }
    };
    let begun = Instant::now();
    write(&mut mail, 100..200);
    mail.request(FLUSH, 1, (0, 0));
    let mut replies = vec![mail.replied()];
    while !replies.contains(&(0, 1)) {
        replies.push(mail.replied());
    }
    assert!(replies.len() < 50, "the flush waits for {} writes", replies.len() - 1);
    (0..100).for_each(|at| assert_eq!(logs.write(at * 4096, &[2; 4096], false), 0));
    place.run(&["volume", "set", "drives/mail", "--iops", "0"]).ok();
    while replies.len() < 101 {
        replies.push(mail.replied());
    }
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    replies.sort_unstable();
    assert!(replies.into_iter().eq([1].into_iter().chain(100..200).map(|cookie| (0, cookie))));
    // The end of the daemon waits for no limit, and the next one has the limits.
    let set = place.json(&["volume", "set", "drives/mail", "--bandwidth", "4K"]);
    assert_eq!(set["limits"]["bytes_per_second"], 4096);
    write(&mut mail, 200..300);
    mail.request(FLUSH, 1, (0, 0));
    while mail.replied() != (0, 1) {}
    let begun = Instant::now();
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let server = Server::of(&place, &[]);
    assert_eq!(place.json(&["status", "drives"])["volumes"][0]["limits"]["bytes_per_second"], 4096);
    assert_eq!(client(&place, "mail").read(299 * 4096, 4096), Ok(vec![1; 4096]));
    server.end(Signal::TERM);
}

#[test]
fn one_volume_of_whole_array_is_no_pool() {
    let place = place();
    place.run(&["volume", "create", "drives", "--size", "64M"]).ok();
    place.run(&["volume", "create", "drives/mail", "--size", "1M"]).fails_with(&["carries one volume"]);
    place.run(&["volume", "list", "drives"]).fails_with(&["carries one volume"]);
    place.run(&["volume", "resize", "drives", "--size", "32M"]).fails_with(&["only a volume of a pool"]);
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
    let refused = ["data up to byte 1056768 ", "blkdiscard -o 1052672 DEVICE", "size is unchanged"];
    place.run(&["volume", "resize", "drives/logs", "--size", "1052672"]).fails_with(&refused);
    let cut = place.json(&["volume", "resize", "drives/logs", "--size", "2M"]);
    assert_eq!((&cut["size_bytes"], &cut["block_device_resized"]), (&(2 << 20).into(), &Value::Null));
    // EINVAL: behind the end.
    assert_ne!(logs.write(3 << 20, &[2; 8192], false), 0);
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
    ok_at_last(&place, &["volume", "remove", "drives/logs", "--yes"]);
    assert_eq!(listed(&place), [("mail".into(), 1 << 30)]);
    place.run(&["stop", "drives"]).ok();
    assert_eq!(listed(&place), [("mail".into(), 1 << 30)]);
}

#[test]
fn snapshots_and_clones_of_running_pool_are_served_and_outlive_the_daemon() {
    const MIB: u64 = 1 << 20;
    let place = place();
    place.run(&["volume", "create", "drives/mail", "--size", "1G"]).ok();
    place.run(&["volume", "create", "drives/logs", "--size", "64M"]).ok();
    let server = Server::of(&place, &[]);
    let (mut mail, mut logs) = (client(&place, "mail"), client(&place, "logs"));
    let page = |byte: u8| vec![byte; 8192];
    assert_eq!((mail.write(MIB, &page(1), false), logs.write(0, &page(1), false)), (0, 0));
    let made = place.run(&["volume", "snapshot", "drives/mail@monday", "drives/logs@monday"]).ok().text();
    assert_eq!(made, "tank/mail@monday is made: 1 GiB\ntank/logs@monday is made: 64 MiB\n");
    assert_eq!((mail.write(MIB, &page(2), false), logs.write(4096, &page(2), false)), (0, 0));
    place.run(&["volume", "snapshot", "drives/mail@tuesday"]).ok();
    assert_eq!(mail.write(2 * MIB, &page(3), true), 0);
    let mut monday = client(&place, "mail@monday");
    assert_eq!((monday.read(MIB, 8192), monday.read(2 * MIB, 8192)), (Ok(page(1)), Ok(page(0))));
    // EPERM
    assert_eq!((monday.write(MIB, &page(9), false), monday.read(MIB, 8192)), (1, Ok(page(1))));
    assert_eq!(changed(&place, &["drives/mail@monday", "tuesday"]), [(MIB, 8192)]);
    assert_eq!(changed(&place, &["drives/mail@monday"]), [(MIB, 8192), (2 * MIB, 8192)]);
    assert_eq!(changed(&place, &["drives/logs@monday"]), [(4096, 8192)]);
    let table = place.run(&["volume", "diff", "drives/mail@tuesday"]).ok().text();
    assert_eq!(table, "  OFFSET  LENGTH\n   2 MiB   8 KiB\ntotal: 8 KiB\n");
    let cloned = place.json(&["volume", "clone", "drives/mail@monday", "old"]);
    assert_eq!((&cloned["name"], &cloned["clone_of"]), (&"old".into(), &"mail@monday".into()));
    let mut old = client(&place, "old");
    assert_eq!((old.read(MIB, 8192), old.write(MIB + 4096, &page(4), true)), (Ok(page(1)), 0));
    assert_eq!((monday.read(MIB, 8192), mail.read(MIB, 8192)), (Ok(page(1)), Ok(page(2))));
    assert_eq!(listed_names(&place), ["mail", "mail@monday", "mail@tuesday", "logs", "logs@monday", "old"]);
    let status = place.json(&["status", "drives"]);
    assert_eq!(status["volumes"][0]["snapshots"][1]["name"], "tuesday");
    assert!(place.run(&["status", "drives"]).ok().text().contains(" mail@monday "));
    for (args, words) in [
        (&["snapshot", "drives/mail@monday"][..], &["a snapshot 'mail@monday' already"][..]),
        (&["snapshot", "drives/mail@a", "drives/mail@b"], &["'mail' is named twice"]),
        (&["snapshot", "drives/mail@a", "pond/mail@a"], &["all of one array"]),
        (&["snapshot", "drives/post@a"], &["no volume 'post'", "there are mail, logs, old"]),
        (&["snapshot", "drives/old@a"], &["snapshots of a clone"]),
        (&["clone", "drives/mail@sunday", "new"], &["no snapshot 'mail@sunday'"]),
        (&["clone", "drives/mail@monday", "logs"], &["a volume 'logs' already"]),
        (&["rollback", "drives/mail@tuesday", "--yes"], &["'tank/mail' has NBD clients"]),
        (&["rollback", "drives/mail@monday", "--yes"], &["later snapshots: tuesday", "--remove-later"]),
        (&["set", "drives/mail@monday", "--when-full", "queue"], &["a snapshot cannot be changed"]),
        (&["resize", "drives/mail@monday", "--size", "2G"], &["a snapshot cannot be changed"]),
        (&["diff", "drives/mail@sunday"], &["no snapshot 'mail@sunday'"]),
        (&["diff", "drives/mail@monday", "sunday"], &["no snapshot 'mail@sunday'"]),
        (&["diff", "drives/mail@tuesday", "monday"], &["is not later than the first one"]),
        (&["remove", "drives/mail", "--yes"], &["has snapshots (monday, tuesday)"]),
        (&["remove", "drives/mail@monday", "--yes"], &["clones of the snapshot (old)"]),
        (&["remove", "drives/mail@tuesday"], &["destroys the snapshot tank/mail@tuesday", "--yes"]),
    ] {
        place.run(&[&["volume"], args].concat()).fails_with(words);
    }
    // A refused removal does not end the service.
    assert_eq!(client(&place, "mail@monday").read(MIB, 4096), Ok(vec![1; 4096]));
    let tuesday = client(&place, "mail@tuesday");
    let refused = place.run(&["volume", "remove", "drives/mail@tuesday", "--yes"]);
    refused.fails_with(&["'tank/mail@tuesday' has NBD clients"]);
    assert_eq!(server.end(Signal::KILL), None);
    drop((monday, tuesday, old));
    let server = Server::of(&place, &[]);
    for (name, at, byte) in [
        ("mail", MIB, 2),
        ("mail", 2 * MIB, 3),
        ("mail@monday", MIB, 1),
        ("mail@tuesday", MIB, 2),
        ("mail@tuesday", 2 * MIB, 0),
        ("logs@monday", 0, 1),
        ("old", MIB, 1),
        ("old", MIB + 4096, 4),
    ] {
        assert_eq!(client(&place, name).read(at, 4096), Ok(vec![byte; 4096]), "{name}");
    }
    ok_at_last(&place, &["volume", "remove", "drives/old", "--yes"]);
    ok_at_last(&place, &["volume", "remove", "drives/mail@monday", "--yes"]);
    assert_eq!(client(&place, "mail@tuesday").read(MIB, 8192), Ok(page(2)));
    assert_eq!(listed_names(&place), ["mail", "mail@tuesday", "logs", "logs@monday"]);
    server.end(Signal::TERM);
}

/// With later snapshots, and in use; snapshots that stay are served as before.
#[test]
fn running_pool_returns_to_snapshot() {
    const MIB: u64 = 1 << 20;
    let place = place();
    place.run(&["volume", "create", "drives/mail", "--size", "64M"]).ok();
    let server = Server::of(&place, &[]);
    let write = |byte: u8| {
        assert_eq!(client(&place, "mail").write(MIB, &[byte; 4096], true), 0);
    };
    let read = |name: &str| client(&place, name).read(MIB, 4096).map(|data| data[0]);
    for (byte, name) in [(1, "monday"), (2, "tuesday"), (3, "friday")] {
        write(byte);
        place.run(&["volume", "snapshot", &format!("drives/mail@{name}")]).ok();
    }
    write(4);
    let roll_back =
        |more: &[&str]| place.run(&[&["volume", "rollback", "drives/mail@monday"], more].concat());
    roll_back(&["--yes"]).fails_with(&["later snapshots: friday, tuesday", "--remove-later"]);
    roll_back(&["--remove-later"]).fails_with(&["and the snapshots friday, tuesday", "--yes"]);
    // The first two are not served any more when the third one is refused.
    let user = client(&place, "mail");
    roll_back(&["--remove-later", "--yes"]).fails_with(&["'tank/mail' has NBD clients"]);
    assert_eq!((read("mail@tuesday"), read("mail@friday")), (Ok(2), Ok(3)));
    drop(user);
    let args = ["volume", "rollback", "drives/mail@monday", "--remove-later", "--yes"];
    ok_at_last(&place, &args);
    assert_eq!((read("mail"), read("mail@monday")), (Ok(1), Ok(1)));
    assert_eq!(listed_names(&place), ["mail", "mail@monday"]);
    write(5);
    place.run(&["volume", "snapshot", "drives/mail@sunday"]).ok();
    place.run(&["volume", "clone", "drives/mail@sunday", "copy"]).ok();
    roll_back(&["--remove-later", "--yes"]).fails_with(&["clones of the snapshot (copy)"]);
    assert_eq!((read("mail"), read("copy")), (Ok(5), Ok(5)));
    server.end(Signal::TERM);
}

#[test]
fn snapshots_of_stopped_pool_are_cloned_compared_and_rolled_back_to() {
    let place = place();
    place.run(&["volume", "create", "drives/mail", "--size", "64M"]).ok();
    let write = |at: u64, byte: u8| {
        let server = Server::of(&place, &[]);
        // Without a name, a client gets the only volume, whatever snapshots it has.
        let mut client = Client::ready(&place, false);
        assert_eq!(client.write(at, &[byte; 4096], true), 0);
        drop(client);
        server.end(Signal::TERM);
    };
    let read = |name: &str, at: u64| {
        let server = Server::of(&place, &[]);
        let read = client(&place, name).read(at, 4096).map(|data| data[0]);
        server.end(Signal::TERM);
        read
    };
    write(0, 1);
    place.run(&["volume", "snapshot", "drives/mail@monday"]).ok();
    write(0, 2);
    write(8192, 3);
    assert_eq!(changed(&place, &["drives/mail@monday"]), [(0, 4096), (8192, 4096)]);
    place.run(&["volume", "snapshot", "drives/mail@tuesday"]).ok();
    write(0, 4);
    assert_eq!(changed(&place, &["drives/mail@monday", "tuesday"]), [(0, 4096), (8192, 4096)]);
    place.run(&["volume", "clone", "drives/mail@tuesday", "test"]).ok();
    assert_eq!(listed_names(&place), ["mail", "mail@monday", "mail@tuesday", "test"]);
    let table = place.run(&["volume", "list", "drives"]).ok().text();
    assert!(
        table.lines().any(|line| line.starts_with("  test ") && line.ends_with(" mail@tuesday")),
        "{table}"
    );
    assert_eq!((read("test", 0), read("mail@monday", 0), read("mail@monday", 8192)), (Ok(2), Ok(1), Ok(0)));
    let roll_back = |snapshot: &str| place.run(&["volume", "rollback", snapshot, "--yes"]);
    roll_back("drives/mail@monday").fails_with(&["later snapshots: tuesday", "--remove-later"]);
    roll_back("drives/mail@sunday").fails_with(&["no snapshot 'mail@sunday'"]);
    place.run(&["volume", "rollback", "drives/mail@tuesday"]).fails_with(&[
        "everything that was written to tank/mail since the snapshot 'tuesday', up to 4 KiB",
        "confirm with --yes",
    ]);
    assert_eq!(read("mail", 0), Ok(4));
    roll_back("drives/mail@tuesday").ok();
    assert_eq!((read("mail", 0), read("mail", 8192)), (Ok(2), Ok(3)));
    assert_eq!(changed(&place, &["drives/mail@tuesday"]), []);
    place.run(&["volume", "remove", "drives/mail@tuesday", "--yes"]).fails_with(&["snapshot (test)"]);
    place.run(&["volume", "remove", "drives/test", "--yes"]).ok();
    place.run(&["volume", "remove", "drives/mail@tuesday", "--yes"]).ok();
    roll_back("drives/mail@monday").ok();
    assert_eq!((read("mail", 0), read("mail", 8192)), (Ok(1), Ok(0)));
    place.run(&["volume", "remove", "drives/mail@monday", "--yes"]).ok();
    assert_eq!(listed_names(&place), ["mail"]);
    place.run(&["volume", "remove", "drives/mail", "--yes"]).ok();
}
