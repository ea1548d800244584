//! The host and name of an array, the identification of its drives, and its destruction.

use crate::support::{Place, Ran, drive, fingerprint};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

const OTHER: &str = "fedcba9876543210fedcba9876543210";

fn status(place: &Place) -> Value {
    place.json(&["status", "drives"])
}

/// The array that udev is to start when the first drive appears.
fn started_by_udev(place: &Place) -> Option<String> {
    let exported = place.run(&["examine", "--export", &drive("drives", 0)]).ok().text();
    Some(exported.strip_prefix("ZONERAID_UUID=")?.trim().to_string())
}

#[test]
fn array_autostarts_only_on_its_own_host() {
    let place = Place::with_array(5);
    let uuid = status(&place)["uuid"].as_str().unwrap().to_string();
    let known = |of: &str| (status(&place)["host"] == of, started_by_udev(&place));
    assert_eq!(known("this"), (true, Some(uuid.clone())));
    let first = status(&place)["host_id"].as_str().unwrap().to_string();
    // The drives do not contain the machine ID itself.
    assert!(!first.replace('-', "").starts_with("0123456789abcdef"));

    place.be(OTHER);
    assert_eq!(known("other"), (true, None));
    let text = place.run(&["status", "drives"]).text();
    assert!(text.contains(&format!("host: another host ({first})")), "{text}");
    let adopted = place.run(&["adopt", "drives"]).ok().text();
    assert!(adopted.contains("'tank' belongs to this host now"), "{adopted}");
    assert_eq!(known("this"), (true, Some(uuid.clone())));
    assert_ne!(status(&place)["host_id"].as_str(), Some(first.as_str()));
    place.be("0123456789abcdef0123456789abcdef");
    assert_eq!(known("other"), (true, None));
    place.be(OTHER);

    place.run(&["autostart", "tank", "no"]).fails_with(&["no array called 'tank'"]);
    place.run(&["autostart", "drives", "no"]).ok();
    assert_eq!(known("this"), (true, None));
    assert!(place.run(&["list", "drives"]).text().contains("this host, started manually"));
    place.run(&["autostart", "drives", "yes"]).ok();
    assert_eq!(known("this"), (true, Some(uuid)));
    place.run(&["autostart", "drives", "perhaps"]).fails_with(&["perhaps"]);

    // A host without a machine ID owns no array.
    for nobody in ["", "uninitialized\n", "00000000000000000000000000000000"] {
        place.be(nobody);
        assert_eq!(known("other"), (true, None));
        place.run(&["adopt", "drives"]).fails_with(&["this machine has no identity", "/etc/machine-id"]);
    }
}

#[test]
fn create_without_host_or_autostart_is_reported() {
    let place = Place::new();
    place.emulate("drives", 5);
    place.be("");
    let made = place.create("tank", "drives", 5).ok();
    assert!(
        made.stderr.contains("the array belongs to no host, and is not started automatically"),
        "{}",
        made.stderr
    );
    assert_eq!((&status(&place)["host"], &status(&place)["host_id"]), (&"none".into(), &Value::Null));
    place.be(OTHER);
    assert_eq!((&status(&place)["host"], started_by_udev(&place)), (&"none".into(), None));
    place.run(&["destroy", "--yes", "drives"]).ok();
    let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
    let mut create = vec!["create", "--no-autostart", "tank"];
    create.extend(drives.iter().map(String::as_str));
    assert_eq!(place.run(&create).ok().stderr, "");
    let status = status(&place);
    assert_eq!((&status["host"], &status["autostart"]), (&"this".into(), &false.into()));
    assert_eq!(started_by_udev(&place), None);
    let examined = place.json(&["examine", &drives[3]]);
    assert_eq!(examined["superblock"]["host"], "this");
    assert_eq!(examined["superblock"]["autostart"], false);
}

#[test]
fn rename_reaches_member_that_was_away() {
    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0"], b"some data").ok();
    fs::create_dir(place.path("away")).unwrap();
    let third = place.path(&drive("drives", 3));
    fs::rename(&third, place.path("away/drive3.img")).unwrap();
    for name in ["", "a/b", "-x", "tank\n"] {
        let before = fingerprint(&place.path("drives"));
        place.run(&["rename", "drives", "--", name]).fails_with(&["an array cannot have this name"]);
        assert!(fingerprint(&place.path("drives")) == before);
    }
    place.run(&["rename", "drives", "tank"]).fails_with(&["'tank' has this name already"]);
    let renamed = place.run(&["rename", "drives", "pool"]).ok().text();
    assert_eq!(renamed, "'tank' is called 'pool' now\n");
    fs::rename(place.path("away/drive3.img"), &third).unwrap();
    // No member is stale, and the data is there.
    let status = status(&place);
    assert_eq!((&status["name"], &status["state"]), (&"pool".into(), &"healthy".into()));
    let read = place.run(&["zone", "read", "drives", "0", "--length", "9"]).ok();
    assert_eq!(read.stdout, b"some data");
    let own = || place.json(&["examine", &drive("drives", 3)])["superblock"]["array"].clone();
    assert_eq!(own(), "tank");
    place.run(&["zone", "finish", "drives", "0"]).ok();
    assert_eq!(own(), "pool");

    // A name of another array on this machine, as far as this command can see.
    place.emulate("others", 5);
    place.create("tank", "others", 5).ok();
    let in_both = |args: &[&str]| {
        Ran::new(place.command(args).env("ZONERAID_DIR", place.path("others")).output().unwrap())
    };
    in_both(&["rename", "drives", "tank"])
        .fails_with(&["the name 'tank' is used by another array on this machine"]);
    in_both(&["rename", "drives", "lake"]).ok();
}

#[test]
fn missing_member_is_shown_with_model_and_serial() {
    let place = Place::with_array(5);
    let known = status(&place)["members"][2].clone();
    let (model, serial) = (known["model"].as_str().unwrap(), known["serial"].as_str().unwrap());
    assert!(!model.is_empty() && serial.len() == 8);
    place.remove(&drive("drives", 2));
    let status = status(&place);
    for field in ["model", "serial", "size_bytes"] {
        assert_eq!(status["members"][2][field], known[field], "{field}");
    }
    assert_eq!(status["members"][2]["drive"], "");
    let said = format!("member 2, {model}, serial {serial}, is missing");
    assert!(status["status"].as_str().unwrap().contains(&said), "{status}");
    for text in [place.run(&["status", "drives"]), place.run(&["list", "drives"])].map(|ran| ran.text()) {
        let line =
            text.lines().find(|line| line.contains(serial) && line.contains(" - ") || line.starts_with('-'));
        assert!(line.unwrap_or_default().contains(model), "{text}");
    }
    let examined = place.json(&["examine", &drive("drives", 0)]);
    let drives = examined["superblock"]["drives"].as_array().unwrap();
    assert_eq!((drives.len(), &drives[2]["serial"]), (5, &known["serial"]));
    let text = place.run(&["examine", &drive("drives", 0)]).text();
    assert!(text.contains(&format!("{model}, serial {serial}\n")), "{text}");
    // Also for an unusable array.
    place.remove(&drive("drives", 4));
    let status = self::status(&place);
    assert_eq!((&status["state"], &status["members"][2]["serial"]), (&"unusable".into(), &known["serial"]));
}

#[test]
fn replaced_member_shows_serial_of_new_drive() {
    let place = Place::with_array(6);
    let spare = place.json(&["examine", &drive("drives", 5)])["serial"].clone();
    place.run(&["replace", "drives", "1", &drive("drives", 5)]).ok();
    place.remove(&drive("drives", 5));
    place.remove(&drive("drives", 1));
    assert_eq!(status(&place)["members"][1]["serial"], spare);
}

#[test]
fn destroy_requires_yes_and_leaves_blank_drives() {
    let place = Place::with_array(6);
    place.run_with(&["zone", "write", "drives", "0"], b"some data").ok();
    place.run(&["replace", "drives", "1", &drive("drives", 5)]).ok();
    let before = fingerprint(&place.path("drives"));
    let asked =
        ["this destroys 'tank'", "1 of 14 zones in use", "drive3.img", "serial", "confirm with --yes"];
    place.run(&["destroy", "drives"]).fails_with(&asked);
    assert!(fingerprint(&place.path("drives")) == before);
    let destroyed = place.run(&["destroy", "drives", "--yes"]).ok().text();
    assert!(destroyed.starts_with("'tank' is destroyed\n"), "{destroyed}");
    let listed = place.json(&["list", "drives"]);
    assert_eq!(
        (listed["arrays"].as_array().unwrap().len(), listed["blank"].as_array().unwrap().len()),
        (0, 6)
    );
    place.run(&["destroy", "drives"]).fails_with(&["no array called 'drives'"]);
    place.create("again", "drives", 5).ok();
}

#[test]
fn destroy_names_possible_member_quoted_for_shell() {
    let place = Place::with_array(5);
    let image = fs::read(place.path(&drive("drives", 3))).unwrap();
    place.remove(&drive("drives", 3));
    fs::write(place.path("drives/a b.img"), &image[..image.len() / 2]).unwrap();
    let destroyed = place.run(&["destroy", "--yes", "drives"]).ok();
    assert!(destroyed.stderr.contains("zoneraid wipe 'drives/a b.img'"), "{}", destroyed.stderr);
}

#[test]
fn returning_member_of_destroyed_array_is_unusable() {
    let place = Place::with_array(5);
    fs::create_dir(place.path("away")).unwrap();
    let (here, away) = (place.path(&drive("drives", 3)), place.path("away/drive3.img"));
    fs::rename(&here, &away).unwrap();
    // The member alone cannot be destroyed, since the others could continue.
    place.run(&["destroy", "--yes", "away"]).fails_with(&[
        "only",
        "drive3.img of 'tank' is present",
        "the other members can run without it",
    ]);
    place.run(&["destroy", "--yes", "drives"]).ok();
    fs::rename(&away, &here).unwrap();
    let status = status(&place);
    assert_eq!(status["state"], "unusable");
    assert!(status["action"].as_str().unwrap().contains("zoneraid wipe"), "{status}");
    let path = drive("drives", 3);
    place.run(&["wipe", &path]).fails_with(&["member 3 of array 'tank'", "cannot be assembled", "--yes"]);
    place.run(&["wipe", "--yes", &path]).ok();
    assert_eq!(place.json(&["examine", &path])["blank"], true);
}

#[test]
fn wipe_requires_yes_for_members_and_unreadable_drives() {
    let place = Place::with_array(7);
    let wipe = |number: usize| place.run(&["wipe", &drive("drives", number)]);
    wipe(6).ok();
    wipe(2).fails_with(&["member 2 of array 'tank'", "which would be degraded without it", "--yes"]);
    place.run(&["replace", "drives", "2", &drive("drives", 5)]).ok();
    // A former member.
    assert!(wipe(2).ok().text().contains("it was member 2 of array 'tank'"));
    assert_eq!(status(&place)["state"], "healthy");
    place.run(&["fail", "drives", "1"]).ok();
    wipe(0).fails_with(&["member 0 of array 'tank'", "would be lost with it", "--yes"]);
    let both = [drive("drives", 1), drive("drives", 1)];
    place.run(&["wipe", &both[0], &both[1]]).fails_with(&["is named twice"]);
    wipe(1).ok();
    // An unreadable drive is never taken for unused.
    damage(&place, 3);
    wipe(3).fails_with(&["drive3.img", "holds other data", "--yes destroys that"]);
    place.run(&["wipe", "--yes", &drive("drives", 3), &drive("drives", 0)]).ok();
    let listed = place.json(&["list", "drives"]);
    assert_eq!(listed["blank"].as_array().unwrap().len(), 5);
    place.run(&["wipe", "nothing"]).fails_with(&["nothing"]);
    place.run(&["wipe"]).fails_with(&["DRIVE"]);
}

#[test]
fn wipe_requires_yes_for_copies_of_running_members() {
    let place = Place::with_array(6);
    place.run(&["replace", "drives", "4", &drive("drives", 5)]).ok();
    fs::create_dir(place.path("copy")).unwrap();
    for number in 0..6 {
        fs::copy(place.path(&drive("drives", number)), place.path(&drive("copy", number))).unwrap();
    }
    let daemon = place.daemon();
    fs::copy(place.path(&drive("copy", 1)), place.path("drives/twin.img")).unwrap();
    place.run(&["wipe", &drive("copy", 0)]).fails_with(&["member 0 of array 'tank'", "degraded", "--yes"]);
    place.run(&["wipe", "drives/twin.img"]).fails_with(&["member 1 of array 'tank'", "a copy of", "--yes"]);
    // Former members, of the array and of its copy.
    place.run(&["wipe", &drive("drives", 4)]).ok();
    place.run(&["wipe", &drive("copy", 4)]).ok();
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
}

#[test]
fn failed_wipe_names_drives_already_blank() {
    let place = Place::with_array(5);
    let drives = [0, 1, 2].map(|number| drive("drives", number));
    // After half a minute of reading and erasing, ten seconds in which the third drive is removed.
    place.run(&["emulate", "fault", &drives[1], "slow", "100000"]).ok();
    let args = [&["wipe", "--yes"][..], &drives.each_ref().map(String::as_str)].concat();
    let wipe = place.command(&args).spawn().unwrap();
    let begun = Instant::now();
    while place.json(&["examine", &drives[0]])["blank"] == false {
        assert!(begun.elapsed() < Duration::from_secs(300));
    }
    place.run(&["emulate", "fault", &drives[2], "gone"]).ok();
    let said = "drives/drive0.img and drives/drive1.img are blank already";
    Ran::new(wipe.wait_with_output().unwrap()).fails_with(&["drive2.img", said]);
}

/// A drive that may be wiped now may become a member of an array a moment later.
#[test]
fn wipe_keeps_drive_locked_during_membership_check() {
    let place = Place::with_array(7);
    place.run(&["replace", "drives", "2", &drive("drives", 5)]).ok();
    // Reading the other drives takes two seconds.
    place.run(&["emulate", "fault", &drive("drives", 6), "slow", "1000000"]).ok();
    let inode = format!(":{} ", fs::metadata(place.path(&drive("drives", 2))).unwrap().ino());
    let mut wipe = place.command(&["wipe", &drive("drives", 2)]).spawn().unwrap();
    let pid = format!(" {} ", wipe.id());
    let is_seen = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains(&pid) && line.contains(&inode))
    };
    // `/proc/locks` is not read atomically, and may miss a lock: once it was seen there, the lock itself is tried.
    let file = fs::File::open(place.path(&drive("drives", 2))).unwrap();
    let is_locked = || {
        let tried = flock(&file, FlockOperation::NonBlockingLockShared);
        tried.is_err() || flock(&file, FlockOperation::Unlock).is_err()
    };
    let (begun, mut held) = (Instant::now(), 0);
    while wipe.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        if if held > 0 { is_locked() } else { is_seen() } {
            held += 1;
        } else if held > 0 {
            // The process may be ending.
            std::thread::sleep(Duration::from_millis(200));
            assert!(wipe.try_wait().unwrap().is_some(), "let go after {held} looks");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(wipe.wait().unwrap().success() && held > 20, "{held}");
    assert_eq!(place.json(&["examine", &drive("drives", 2)])["blank"], true);
}

/// Makes the metadata log of a member unreadable.
fn damage(place: &Place, number: usize) {
    for lba in ["0", "16384", "1"] {
        place.run(&["emulate", "fault", &drive("drives", number), "flip", lba]);
    }
    let other = place.json(&["examine", &drive("drives", number)]);
    let second = other["zone_size_bytes"].as_u64().unwrap() / 4096;
    place.run(&["emulate", "fault", &drive("drives", number), "flip", &second.to_string()]);
}

/// Kills a creation after some time; returns whether it had completed.
fn kill_creation(place: &Place, after: Duration) -> bool {
    let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
    // Slow drives, so that the creation is cut off at any step.
    drives.iter().for_each(|drive| _ = place.run(&["emulate", "fault", drive, "slow", "200"]).ok());
    let mut create = vec!["create", "--yes", "new"];
    create.extend(drives.iter().map(String::as_str));
    let mut child = place.start(&create, Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < after && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    // It may have ended.
    let _ = child.kill();
    let done = child.wait().unwrap().success();
    drives.iter().for_each(|drive| _ = place.run(&["emulate", "fault", drive, "clear"]).ok());
    done
}

#[test]
fn killed_create_is_reported_unfinished_and_recreatable() {
    let (mut unfinished, mut whole, mut after) = (0, 0, Duration::from_millis(20));
    // Up to completion, in steps that grow for slow machines.
    while whole == 0 {
        let place = Place::new();
        place.emulate("drives", 5);
        let done = kill_creation(&place, after);
        after = after * 9 / 8 + Duration::from_millis(5);
        let listed = place.json(&["list", "drives"]);
        let arrays = listed["arrays"].as_array().unwrap();
        match arrays.first().map(|array| array["stage"].as_str().unwrap()) {
            None => assert!(!done),
            Some("whole") => {
                assert_eq!(arrays[0]["state"], "healthy");
                whole += 1;
            }
            Some("unfinished") => {
                assert!(!done);
                unfinished += 1;
                let said = ["the creation of 'new' was interrupted"];
                place.run(&["start", "drives"]).fails_with(&said);
                let status = status(&place);
                assert_eq!((&status["state"], &status["stage"]), (&"unusable".into(), &"unfinished".into()));
                // Another array may have this name.
                assert_eq!(status["action"], "create it again, or: zoneraid destroy drives");
                assert!(place.run(&["list", "drives"]).text().contains("creation interrupted"));
                let examined = place.run(&["examine", &drive("drives", 0)]).ok().text();
                assert!(examined.contains("its creation was interrupted"), "{examined}");
                assert_eq!(started_by_udev(&place), None);
                match unfinished % 3 {
                    0 => _ = place.run(&["destroy", "drives"]).ok(),
                    1 => {
                        let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
                        let args = [&["wipe"], &drives.iter().map(String::as_str).collect::<Vec<_>>()[..]];
                        place.run(&args.concat()).ok();
                    }
                    _ => {}
                }
                // The drives hold no data to be missed.
                place.create("new", "drives", 5).ok();
                assert_eq!(self::status(&place)["state"], "healthy");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(unfinished >= 4, "{unfinished} unfinished");
}

#[test]
fn raid6_destroy_requires_more_members_than_parities() {
    let place = Place::with_raid6(6);
    let aside = |from: &str, to: &str, members: &[usize]| {
        for member in members {
            fs::rename(place.path(&drive(from, *member)), place.path(&drive(to, *member))).unwrap();
        }
    };
    fs::create_dir(place.path("away")).unwrap();
    aside("drives", "away", &[0, 1, 3, 5]);
    let before = fingerprint(&place.path("drives"));
    let said = "drives/drive2.img and drives/drive4.img of 'tank' are present, and the other members can run \
                without them";
    place.run(&["destroy", "--yes", "drives"]).fails_with(&[said]);
    assert!(fingerprint(&place.path("drives")) == before);
    aside("away", "drives", &[0, 1, 3, 5]);

    // With one member out the array would continue without the drive; with two out it would be lost.
    place.run(&["fail", "drives", "1"]).ok();
    place.run(&["wipe", &drive("drives", 4)]).fails_with(&["which would be degraded without it"]);
    place.run(&["fail", "drives", "3"]).ok();
    place.run(&["wipe", &drive("drives", 4)]).fails_with(&["which would be lost with it"]);
    aside("drives", "away", &[0]);
    place.run(&["destroy", "--yes", "drives"]).ok();
    aside("away", "drives", &[0]);
    assert_eq!(place.run(&["status", "drives"]).code, 2);
}
