//! Namespaces from end to end: commands on image files.

use crate::support::{Place, Ran, Random, drive, fingerprint};
use engine::{device::ZonedDevice, vzone::Namespaces};
use host::{control::name::ArrayName, members::FoundArray};
use std::rc::Rc;

fn create(place: &Place, name: &str, more: &[&str]) -> Ran {
    place.run(&[&["namespace", "create", name], more].concat())
}

#[test]
fn namespaces_keep_data_after_drive_loss() {
    let place = Place::with_array(6);
    create(&place, "drives/mail", &["--size", "64M"]).ok();
    create(&place, "drives/logs", &["--size", "40M", "--weight", "2", "--active", "1"]).ok();
    let (mail, logs) = (Random(1).bytes(5_000_000), Random(2).bytes(3 << 20));
    place.run_with(&["zone", "write", "drives/mail", "0", "--fua"], &mail).ok();
    place.run_with(&["zone", "write", "drives/logs", "1"], &logs).ok();
    let listed = place.json(&["namespace", "list", "drives"]);
    assert_eq!(listed["namespaces"][0]["name"], "mail");
    assert_eq!(listed["namespaces"][1]["weight"], 2);
    assert_eq!(listed["namespaces"][1]["written_bytes"], 3 << 20);

    place.remove(&drive("drives", 2));
    assert_eq!(place.read_zone("drives/mail", 0)[..mail.len()], mail);
    assert_eq!(place.read_zone("drives/logs", 1), logs);
    assert!(place.read_zone("drives/logs", 0).is_empty());
    place.run_with(&["zone", "write", "drives/mail", "0"], &logs).ok();
    place.run(&["replace", "drives", "2", &drive("drives", 5)]).ok();
    place.remove(&drive("drives", 0));
    let all = place.read_zone("drives/mail", 0);
    assert_eq!(all.len(), mail.len().next_multiple_of(4096) + logs.len());
    assert_eq!(all[all.len() - logs.len()..], logs);

    // One namespace is removed, and its data is not in any other; the other namespace is not affected.
    place.run(&["namespace", "remove", "drives/logs"]).fails_with(&["destroys drives/logs", "--yes"]);
    place.run(&["namespace", "remove", "--yes", "drives/logs"]).ok();
    place.run(&["zone", "read", "drives/logs", "1"]).fails_with(&["no namespace 'logs'", "mail"]);
    assert_eq!(place.read_zone("drives/mail", 0), all);
    create(&place, "drives/logs", &["--size", "40M"]).ok();
    assert!(place.read_zone("drives/logs", 1).is_empty());
}

/// A member that is missing while an array is only read misses no write.
#[test]
fn namespace_zone_inspection_writes_nothing() {
    let place = Place::with_array(5);
    create(&place, "drives/mail", &["--size", "64M"]).ok();
    let mail = Random(11).bytes(3 << 20);
    place.run_with(&["zone", "write", "drives/mail", "1", "--fua"], &mail).ok();
    let before = fingerprint(&place.path("drives"));
    let (there, away) = (place.path(&drive("drives", 2)), place.path("away.img"));
    std::fs::rename(&there, &away).unwrap();
    let zones = place.json(&["zone", "report", "drives/mail"]);
    assert_eq!(zones["zones"][1]["wp_bytes"], 3 << 20, "{zones}");
    assert_eq!(place.read_zone("drives/mail", 1), mail);
    std::fs::rename(&away, &there).unwrap();
    assert!(fingerprint(&place.path("drives")) == before, "the drives were written");
    assert_eq!(place.json(&["status", "drives"])["state"], "healthy");
    // Reading neither blocks a process that uses the drives, nor is it blocked by one.
    let held = FoundArray::by_name(&ArrayName::from(place.path("drives"))).unwrap();
    assert_eq!(place.read_zone("drives/mail", 1), mail);
    drop(held);
    place.run(&["zone", "report", "drives/logs"]).fails_with(&["no namespace 'logs'", "mail"]);
}

/// As after a command that was cut off after it had divided the array, or had removed the last namespace.
#[test]
fn namespace_remove_clears_division_without_namespaces() {
    let place = Place::with_array(5);
    {
        let session =
            FoundArray::by_name(&ArrayName::from(place.path("drives"))).unwrap().assemble().unwrap();
        let device = Rc::new(session.array.clone());
        let zones = Namespaces::fitting(device.geometry());
        session
            .wait(Namespaces::create(device, host::process::output::new_uuid().unwrap(), zones))
            .unwrap()
            .unwrap();
        session.reactor.runtime().clear();
    }
    place.run_with(&["zone", "write", "drives", "0"], b"data").fails_with(&["belong to its namespaces"]);
    let removed = place.run(&["namespace", "remove", "drives/mail"]).ok().text();
    assert_eq!(removed, "'drives' had no namespaces: its empty division has been removed\n");
    place.run_with(&["zone", "write", "drives", "0"], b"data").ok();
    place.run(&["namespace", "remove", "drives/mail"]).fails_with(&["'drives' has no namespaces"]);
}

#[test]
fn namespace_resizes_and_last_removal_empties_array() {
    let place = Place::with_array(5);
    let made = create(&place, "drives/a", &["--size", "1M", "--json"]).ok().json();
    let capacity = made["zone_capacity_bytes"].as_u64().unwrap();
    assert_eq!((&made["zones"], &made["capacity_bytes"]), (&1.into(), &capacity.into()));
    let resize = |size: u64| place.run(&["namespace", "resize", "drives/a", "--size", &size.to_string()]);
    let zones = || place.json(&["namespace", "list", "drives"])["namespaces"][0]["zones"].clone();
    resize(2 * capacity + 4096).ok();
    assert_eq!(zones(), 3);
    place.run_with(&["zone", "write", "drives/a", "1"], b"something").ok();
    resize(capacity).fails_with(&["zone 1 of drives/a holds data"]);
    resize(2 * capacity).ok();
    assert_eq!(zones(), 2);
    place.run(&["zone", "reset", "drives/a", "1"]).ok();
    resize(capacity).ok();
    let removed = place.run(&["namespace", "remove", "--yes", "drives/a", "--json"]).ok().json();
    assert_eq!(removed["array_empty"], true);
    let zones = place.json(&["zone", "report", "drives"]);
    let zones = zones["zones"].as_array().unwrap();
    assert!(zones.iter().all(|zone| zone["condition"] == "empty"), "{zones:?}");
    place.run_with(&["zone", "write", "drives", "0"], b"an array like any other").ok();
}

#[test]
fn namespace_commands_refuse_invalid_arguments() {
    let place = Place::with_array(5);
    let refused = |name: &str, more: &[&str], words: &[&str]| {
        create(&place, name, &[&["--size", "40M"], more].concat()).fails_with(words);
    };
    let list = || place.run(&["namespace", "list", "drives"]);
    list().fails_with(&["'drives' has no namespaces"]);
    place.run(&["zone", "read", "drives/a", "0"]).fails_with(&["'drives' has no namespaces"]);
    refused("tank", &[], &["a namespace is called ARRAY/NAME"]);
    refused("nothing/a", &[], &["nothing"]);
    refused("drives/a b", &[], &["a name has 1 to 32 letters"]);
    refused("drives/a", &["--weight", "0"], &["a weight is 1 to 1000"]);
    refused("drives/a", &["--width", "3"], &["power of two, not 3"]);
    refused("drives/a", &["--active", "9"], &["--active 9 is more than the 2 zones"]);
    create(&place, "drives/a", &["--size", "1T"]).fails_with(&["'drives' has room for", "more zones"]);
    create(&place, "drives/a", &["--size", "0"]).fails_with(&["--size"]);
    // After all these refusals the array still has no namespaces.
    list().fails_with(&["'drives' has no namespaces"]);

    create(&place, "drives/a", &["--size", "40M"]).ok();
    refused("drives/a", &[], &["has a namespace 'a' already"]);
    place.run(&["namespace", "remove", "drives/b"]).fails_with(&["no namespace 'b'", "there are a"]);
    place.run(&["namespace", "resize", "drives/b", "--size", "1M"]).fails_with(&["no namespace 'b'"]);
    place.run_with(&["zone", "write", "drives", "5"], b"x").fails_with(&["belong to its namespaces"]);
    place.run(&["zone", "reset", "drives", "0"]).fails_with(&["belong to its namespaces"]);

    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0"], b"data").ok();
    create(&place, "drives/a", &["--size", "1M"]).fails_with(&["'drives' holds data"]);
    assert_eq!(place.read_zone("drives", 0)[..4], *b"data");
}

/// The guaranteed active zones of all namespaces are more than there are.
#[test]
fn namespace_active_zones_cannot_be_guaranteed_twice() {
    let place = Place::new();
    let make = ["emulate", "create", "drives", "--count", "3", "--zones", "80", "--zone-capacity", "8M"];
    place.run(&make).ok();
    place.create("tank", "drives", 3).ok();
    let sized =
        |name: &str, size: &str, active: &str| create(&place, name, &["--size", size, "--active", active]);
    let words = ["too few active zones", "neither guaranteed to other namespaces nor in use"];
    sized("drives/a", "600M", "15").fails_with(&words);
    sized("drives/a", "300M", "4").ok();
    sized("drives/b", "400M", "10").fails_with(&words);
    sized("drives/b", "400M", "2").ok();
    create(&place, "drives/c", &["--size", "1M", "--width", "16"]).fails_with(&["--width", "at most"]);
    let listed = place.json(&["namespace", "list", "drives"]);
    assert_eq!(listed["namespaces"][0]["active"], 4);
}

#[test]
fn namespace_limits_are_kept_until_changed() {
    let place = Place::with_array(5);
    create(&place, "drives/a", &["--size", "1M", "--iops", "500", "--bandwidth", "8M"]).ok();
    let limits = || {
        let listed = place.json(&["namespace", "list", "drives"]);
        let limits = &listed["namespaces"][0]["limits"];
        (limits["requests_per_second"].as_u64(), limits["bytes_per_second"].as_u64())
    };
    assert_eq!(limits(), (Some(500), Some(8 << 20)));
    place.run_with(&["zone", "write", "drives/a", "0"], b"something").ok();
    let said = place.run(&["namespace", "set", "drives/a", "--bandwidth", "4K"]).ok().text();
    assert!(said.contains("drives/a is limited to 4 KiB/s"), "{said}");
    assert_eq!(limits(), (None, Some(4096)));
    assert_eq!(place.read_zone("drives/a", 0)[..9], *b"something");
    place.run(&["namespace", "set", "drives/b"]).fails_with(&["no namespace 'b'"]);
    place.run(&["namespace", "set", "drives/a", "--iops", "0"]).fails_with(&["--iops"]);
    place
        .run(&["namespace", "set", "drives/a", "--bandwidth", "1000T"])
        .fails_with(&["a bandwidth is less than 16 TiB a second, not 1000 TiB"]);
    assert!(place.run(&["namespace", "set", "drives/a"]).ok().text().contains("drives/a is not limited:"));
    assert_eq!(limits(), (None, None));
}

#[test]
fn namespace_floors_are_kept_and_bounded_by_limits() {
    let place = Place::with_array(5);
    create(&place, "drives/a", &["--size", "1M", "--floor-iops", "300", "--latency", "900"]).ok();
    let kept = || {
        let listed = &place.json(&["namespace", "list", "drives"])["namespaces"][0];
        let floors = &listed["floors"];
        let floors = (floors["requests_per_second"].as_u64(), floors["bytes_per_second"].as_u64());
        (floors, listed["latency_us"].as_u64())
    };
    assert_eq!(kept(), ((Some(300), None), Some(900)));
    let set = |more: &[&str]| place.run(&[&["namespace", "set", "drives/a"], more].concat());
    let said = set(&["--floor-bandwidth", "4M", "--bandwidth", "8M", "--latency", "700"]).ok().text();
    assert!(
        said.contains("is limited to 8 MiB/s, gets at least 4 MiB/s, has a latency target of 700 us"),
        "{said}"
    );
    assert_eq!(kept(), ((None, Some(4 << 20)), Some(700)));
    let listed = place.run(&["namespace", "list", "drives"]).ok().text();
    assert!(listed.contains("4 MiB/s") && listed.contains("700 us"), "{listed}");
    for above in [
        &["--floor-bandwidth", "9M", "--bandwidth", "8M"][..],
        &["--floor-iops", "501", "--iops", "500"],
        // Each request has one block at least.
        &["--floor-iops", "501", "--bandwidth", "1M"],
    ] {
        set(above).fails_with(&["drives/a: a floor is above the limit of the same namespace"]);
    }
    set(&["--floor-iops", "0"]).fails_with(&["--floor-iops"]);
    set(&["--latency", "0"]).fails_with(&["--latency"]);
    create(&place, "drives/b", &["--size", "1M", "--floor-iops", "2", "--iops", "1"])
        .fails_with(&["drives/b: a floor is above the limit"]);
    assert_eq!(kept(), ((None, Some(4 << 20)), Some(700)));
    set(&[]).ok();
    assert_eq!(kept(), ((None, None), None));
}

#[test]
fn running_array_without_namespaces_refuses_namespace_changes() {
    let place = Place::with_array(5);
    create(&place, "drives/mail", &["--size", "40M"]).ok();
    let daemon = place.daemon();
    let first = ["'tank' has no namespaces", "only while it does not run", "zoneraid stop tank"];
    create(&place, "tank/logs", &["--size", "1M"]).fails_with(&first);
    place.run(&["namespace", "resize", "drives/mail", "--size", "1M"]).fails_with(&first);
    place.run(&["namespace", "remove", "--yes", "tank/mail"]).fails_with(&first);
    place.run_with(&["zone", "write", "tank/mail", "0"], b"x").fails_with(&["'tank' runs"]);
    let top = place.json(&["top", "tank"]);
    assert_eq!((top["devices"].as_array().unwrap().len(), top["drives"].as_array().unwrap().len()), (0, 5));
    // The list of namespaces does not need the daemon.
    assert_eq!(place.json(&["namespace", "list", "drives"])["namespaces"][0]["name"], "mail");
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    place.run(&["top", "drives"]).fails_with(&["'drives' does not run", "zoneraid start drives"]);
    if host::reactor::ring::Ring::new().is_ok() {
        let serve = ["serve", "drives", "--nbd", "nbd.sock"];
        place.run(&serve).fails_with(&["divided into namespaces", "use zoneraid start"]);
    }
    create(&place, "drives/..", &["--size", "1M"]).fails_with(&["begins with a letter or digit"]);
}

#[test]
fn namespace_can_carry_volume() {
    let place = Place::new();
    let make = ["emulate", "create", "drives", "--count", "3", "--zones", "80", "--zone-capacity", "8M"];
    place.run(&make).ok();
    place.create("tank", "drives", 3).ok();
    create(&place, "drives/db", &["--size", "600M", "--active", "6"]).ok();
    create(&place, "drives/mail", &["--size", "64M"]).ok();
    let made = place.json(&["volume", "create", "drives/db"]);
    assert!(made["usable_bytes"].as_u64() > Some(64 << 20), "{made}");
    place.run(&["volume", "create", "drives/db"]).fails_with(&["drives/db", "no volume"]);
    place.run(&["volume", "create", "drives"]).fails_with(&["belong to its namespaces"]);
    let resize = ["namespace", "resize", "drives/db", "--size", "700M"];
    place.run(&resize).fails_with(&["'drives/db' carries or may carry a volume"]);
    place
        .run(&["volume", "create", "drives/mail"])
        .fails_with(&["no volume can be created on 'drives/mail'", "--active 5"]);
    let whose = ["'drives/db' carries a volume", "zoneraid namespace remove --yes drives/db"];
    for verb in ["reset", "finish", "open", "close"] {
        place.run(&["zone", verb, "drives/db", "5"]).fails_with(&whose);
    }
    place.run_with(&["zone", "write", "drives/db", "5"], b"x").fails_with(&whose);
    assert_eq!(place.json(&["zone", "reset", "drives/mail", "0"])["array"], "drives/mail");
    assert!(place.read_zone("drives/mail", 0).is_empty());
    // A namespace may be exported even if its array does not run.
    place
        .run(&["export", "remove", "drives/mail"])
        .fails_with(&["'tank/mail' cannot be removed", "it is not exported"]);
}

#[test]
fn volume_is_created_with_namespace_of_its_size() {
    let place = Place::new();
    let make = ["emulate", "create", "drives", "--count", "3", "--zones", "200", "--zone-capacity", "8M"];
    place.run(&make).ok();
    place.create("tank", "drives", 3).ok();
    let names = || {
        let listed = place.json(&["namespace", "list", "drives"]);
        let each = listed["namespaces"].as_array().unwrap().iter();
        each.map(|namespace| namespace["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    create(&place, "drives/zones", &["--size", "300M", "--active", "1"]).ok();
    let made = place.json(&["volume", "create", "drives/meta", "--size", "100M"]);
    assert_eq!(
        (&made["size_bytes"], &made["usable_bytes"]),
        (&(100 << 20).into(), &(100 << 20).into()),
        "{made}"
    );
    assert_eq!(names(), ["zones", "meta"]);
    // The next smaller namespace would not have room for it.
    place.run(&["namespace", "remove", "drives/meta", "--yes"]).ok();
    let capacity = place.json(&["namespace", "list", "drives"])["zone_capacity_bytes"].as_u64().unwrap();
    let size = (made["zones"].as_u64().unwrap() - 1) * capacity;
    create(&place, "drives/small", &["--size", &size.to_string(), "--active", "5"]).ok();
    let made = place.json(&["volume", "create", "drives/small", "--size", "100M"]);
    assert!(made["usable_bytes"].as_u64() < Some(100 << 20), "{made}");
    place
        .run(&["volume", "create", "drives/more", "--size", "100G"])
        .fails_with(&["'drives' is too small", "100 GiB"]);
    place.run(&["volume", "create", "drives/more", "--size", "900M"]).fails_with(&["'drives' has room for"]);
    place.run(&["volume", "create", "drives/more"]).fails_with(&["no namespace 'more'"]);
    place
        .run(&["volume", "create", "drives/a b", "--size", "1M"])
        .fails_with(&["a name has 1 to 32 letters"]);
    assert_eq!(names(), ["zones", "small"]);
}

#[test]
fn namespace_can_carry_pool() {
    let place = Place::new();
    let make = ["emulate", "create", "drives", "--count", "3", "--zones", "80", "--zone-capacity", "8M"];
    place.run(&make).ok();
    place.create("tank", "drives", 3).ok();
    create(&place, "drives/vms", &["--size", "700M", "--active", "5"]).ok();
    create(&place, "drives/zones", &["--size", "64M"]).ok();
    place
        .run(&["volume", "create", "drives/vms/mail"])
        .fails_with(&["the size of drives/vms/mail is needed", "--size"]);
    place.run(&["volume", "list", "drives/vms"]).fails_with(&["'drives/vms' carries no volume"]);
    let made = place.json(&["volume", "create", "drives/vms/mail", "--size", "100M", "--iops", "50"]);
    assert_eq!((&made["array"], &made["name"]), (&"drives/vms".into(), &"mail".into()), "{made}");
    place.run(&["volume", "create", "drives/vms/logs", "--size", "2G", "--compression", "lz4"]).ok();
    place
        .run(&["volume", "create", "drives/vms/logs", "--size", "1M"])
        .fails_with(&["a volume 'logs' already"]);
    let volumes = || {
        let listed = place.json(&["volume", "list", "drives/vms"]);
        let each = listed["volumes"].as_array().unwrap().iter();
        each.map(|volume| volume["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(volumes(), ["mail", "logs"]);
    place.run(&["volume", "snapshot", "drives/vms/mail@monday", "drives/vms/logs@monday"]).ok();
    place.run(&["volume", "clone", "drives/vms/mail@monday", "copy"]).ok();
    assert_eq!(place.json(&["volume", "diff", "drives/vms/mail@monday"])["total_bytes"], 0);
    place.run(&["volume", "rollback", "drives/vms/mail@monday", "--yes"]).ok();
    place.run(&["volume", "remove", "drives/vms/copy", "--yes"]).ok();
    place.run(&["volume", "remove", "drives/vms/mail@monday", "--yes"]).ok();
    let resized = place.json(&["volume", "resize", "drives/vms/mail", "--size", "50M"]);
    assert_eq!(resized["size_bytes"], 50 << 20);
    let set = place.json(&["volume", "set", "drives/vms/mail", "--bandwidth", "1M"]);
    assert_eq!(set["array"], "drives/vms/mail");
    place.run(&["volume", "rename", "drives/vms/mail", "post"]).ok();
    assert_eq!(volumes(), ["post", "logs"]);
    place.run(&["volume", "remove", "drives/vms/post"]).fails_with(&["destroys drives/vms/post", "--yes"]);
    place.run(&["volume", "remove", "drives/vms/post", "--yes"]).ok();

    // The names of namespaces, of their volumes and of volumes of a pool on the array are told apart.
    let whole = ["'drives' is divided into namespaces", "drives/NAMESPACE/NAME", "namespace remove"];
    place.run(&["volume", "remove", "drives/vms", "--yes"]).fails_with(&whole);
    place.run(&["volume", "list", "drives"]).fails_with(&whole);
    place
        .run(&["volume", "set", "drives/vms", "--when-full", "queue"])
        .fails_with(&["a pool of volumes", "drives/vms/NAME"]);
    place.run(&["volume", "create", "drives/vms"]).fails_with(&["no volume can be created on 'drives/vms'"]);
    place
        .run(&["volume", "create", "drives/none/mail", "--size", "1M"])
        .fails_with(&["no namespace 'none'", "vms"]);
    let few = ["no volume can be created on 'drives/zones'", "--active 5"];
    place.run(&["volume", "create", "drives/zones/mail", "--size", "1M"]).fails_with(&few);
    place.run_with(&["zone", "write", "drives/zones", "0"], b"data").ok();
    let pool = ["'drives/vms' carries a volume", "zoneraid namespace remove --yes drives/vms"];
    place.run(&["zone", "reset", "drives/vms", "5"]).fails_with(&pool);
    place
        .run(&["namespace", "resize", "drives/vms", "--size", "1G"])
        .fails_with(&["carries or may carry a volume"]);

    // A pool on the whole array has no namespaces.
    let other = Place::with_array(5);
    other.run(&["volume", "create", "drives/mail", "--size", "1M"]).fails_with(&["too small"]);
    other.run(&["volume", "list", "drives/mail"]).fails_with(&["'drives' has no namespaces"]);
}
