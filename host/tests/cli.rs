//! The command line from end to end, on image files.

use crate::support::{Place, Ran, Random, drive, fingerprint};
use emu::ssd::{EmulatedDrive, Model};
use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    time::{Duration, Instant},
};

#[test]
fn fail_of_missing_member_names_others_gone_out() {
    for json in [false, true] {
        let place = Place::with_raid6(6);
        [2, 4].into_iter().for_each(|number| place.remove(&drive("drives", number)));
        match json {
            true => assert_eq!(place.json(&["fail", "drives", "2"])["also_out"], serde_json::json!([4])),
            false => {
                let said = place.run(&["fail", "drives", "2"]).ok().text();
                assert!(said.ends_with("; member 4, missing at the start, is out as well\n"), "{said}");
            }
        }
        place.run(&["fail", "drives", "4"]).fails_with(&["member 4 is out already"]);
    }
}

#[test]
fn file_survives_successive_drive_losses_with_replacement() {
    let place = Place::with_array(7);
    let data = Random(1).bytes(9_000_001);
    let written = place.run_with(&["zone", "write", "tank", "0", "--fua", "--json"], &data);
    assert!(written.code == 4, "an array is not found by name outside its directory");
    let written = place.run_with(&["zone", "write", "drives", "0", "--fua", "--json"], &data).ok();
    assert_eq!(written.json()["written_bytes"], 9_000_001);
    assert_eq!(written.json()["padded_bytes"], 4096 - 9_000_001 % 4096);

    place.remove(&drive("drives", 3));
    assert_eq!(place.run(&["status", "drives"]).code, 1);
    assert_eq!(place.read_zone("drives", 0)[..data.len()], data);

    let more = Random(2).bytes(1 << 20);
    place.run_with(&["zone", "write", "drives", "0"], &more).ok();
    place.run(&["replace", "drives", "3", &drive("drives", 5)]).ok();
    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!(status["state"], "healthy");
    assert_eq!(status["members"][3]["drive"], drive("drives", 5));

    // Another drive is lost, and named by a path that no longer exists.
    place.remove(&drive("drives", 0));
    let whole: Vec<u8> = data.iter().copied().chain([0; 4096 - 9_000_001 % 4096]).chain(more).collect();
    assert_eq!(place.read_zone("drives", 0), whole);
    place.run(&["replace", &drive("drives", 0), &drive("drives", 6)]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    assert_eq!(place.read_zone(&drive("drives", 6), 0), whole);
}

/// Any two of six drives may be lost, before writes without them and after.
#[test]
fn file_survives_loss_of_any_two_raid6_drives() {
    let place = Place::with_raid6(9);
    let data = Random(21).bytes(9_000_001);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    let status = |code: i32| {
        let status = place.run(&["status", "drives", "--json"]);
        assert_eq!(status.code, code);
        status.json()
    };
    let healthy = status(0);
    assert_eq!((&healthy["level"], &healthy["may_be_lost"]), (&"raid6".into(), &2.into()));
    assert_eq!(healthy["status"], "every member is in sync; any two of them may be lost");
    let there = |number: usize| place.path(&drive("drives", number));
    let away = |number: usize| place.path(&format!("away{number}.img"));
    for (one, two) in (0..6).flat_map(|one| (0..one).map(move |two| (one, two))) {
        [one, two].into_iter().for_each(|number| fs::rename(there(number), away(number)).unwrap());
        assert!(place.read_zone("drives", 0)[..data.len()] == data, "without {one} and {two}");
        let missing = status(1);
        assert_eq!((&missing["provisional"], &missing["may_be_lost"]), (&true.into(), &0.into()));
        [one, two].into_iter().for_each(|number| fs::rename(away(number), there(number)).unwrap());
    }
    assert_eq!(status(0)["may_be_lost"], 2);

    // One drive is lost: degraded, and another one may be lost.
    place.remove(&drive("drives", 2));
    place.run_with(&["zone", "write", "drives", "1", "--fua"], &data).ok();
    let one = status(1);
    assert_eq!((&one["state"], &one["may_be_lost"]), (&"degraded".into(), &1.into()));
    let said = one["status"].as_str().unwrap();
    assert!(said.starts_with("member 2, zn540") && said.contains("one more member may be lost"), "{said}");
    place.run(&["fail", "drives", "5"]).ok();
    let two = status(1);
    assert_eq!(two["may_be_lost"], 0);
    let said = two["status"].as_str().unwrap();
    assert!(said.contains("and member 5") && said.contains("losing another member would lose it"), "{said}");
    let action = two["action"].as_str().unwrap();
    assert!(action.contains("zoneraid replace drives 2 NEW") && action.contains("then member 5"), "{action}");
    place.run(&["fail", "drives", "0"]).fails_with(&["members 2 and 5 are not in sync"]);
    place.run(&["rebuild", "drives"]).fails_with(&["member 2 is out"]);
    place.run_with(&["zone", "write", "drives", "2", "--fua"], &data).ok();

    // One after the other is replaced; the array is not healthy before the second one is.
    let replaced = place.run(&["replace", "drives", "2", &drive("drives", 6), "--json"]).ok().json();
    assert_eq!(replaced["still_out"], serde_json::json!([5]));
    assert!(replaced["rebuilt_bytes"].as_u64() >= Some(4 << 20), "{replaced}");
    assert_eq!(status(1)["may_be_lost"], 1);
    let text = place.run(&["replace", "drives", "5", &drive("drives", 7)]).ok().text();
    assert!(!text.contains("out"), "{text}");
    assert_eq!(status(0)["may_be_lost"], 2);
    place.remove(&drive("drives", 0));
    place.remove(&drive("drives", 3));
    for zone in 0..3 {
        assert!(place.read_zone("drives", zone)[..data.len()] == data, "zone {zone}");
    }
    // A third lost drive is one too many; the refusal says how to help.
    place.remove(&drive("drives", 1));
    let status = place.run(&["status", "drives", "--json"]);
    assert_eq!(status.code, 2);
    let (why, action) = (status.json()["status"].to_string(), status.json()["action"].to_string());
    assert!(why.contains("only 3 of 6 members are usable, at least 4 are needed"), "{why}");
    assert!(action.contains("connect all but two of the members 0, 1 and 3;"), "{action}");
    place.run(&["zone", "read", "drives", "0"]).fails_with(&["at least 4"]);
}

/// The level in `list`, `status`, `examine` and a dry run.
#[test]
fn raid_level_is_shown_by_all_commands() {
    let place = Place::new();
    place.emulate("drives", 6);
    let mut sizes = Vec::new();
    for (level, parities) in [("raid5", 1), ("raid6", 2)] {
        let drives: Vec<String> = (0..6).map(|n| drive("drives", n)).collect();
        let create = |args: &[&'static str]| {
            let drives = drives.iter().map(String::as_str);
            let args: Vec<&str> = ["create", "tank", "--level", level]
                .iter()
                .copied()
                .chain(args.iter().copied())
                .chain(drives)
                .collect();
            place.run(&args).ok()
        };
        let dry = create(&["--dry-run", "--json", "--yes"]).json();
        let made = create(&["--json", "--yes"]).json();
        for field in ["level", "zones", "capacity_bytes", "parity_bytes", "metadata_bytes"] {
            assert_eq!(dry[field], made[field], "{field}");
        }
        let (data, parity) =
            (made["capacity_bytes"].as_u64().unwrap(), made["parity_bytes"].as_u64().unwrap());
        assert_eq!(parity * (6 - parities), data * parities, "{made}");
        sizes.push(data);
        assert_eq!(made["level"], level);
        assert_eq!(place.json(&["status", "drives"])["level"], level);
        assert_eq!(place.json(&["list", "drives"])["arrays"][0]["level"], level);
        assert_eq!(place.json(&["examine", &drives[3]])["superblock"]["level"], level);
        let said = create(&["--dry-run", "--yes"]).text();
        assert!(said.contains(&format!("altogether; {level}, policy zrwa")), "{said}");
        for (command, wanted) in [
            (&["status", "drives"][..], format!("size: {level}, chunks of 64 KiB")),
            (&["examine", &drives[0]], format!("'tank', role 0 of 6, {level}")),
            (&["list", "drives"], level.to_string()),
        ] {
            let text = place.run(command).ok().text();
            assert!(text.contains(&wanted), "{text}");
        }
        let here = place.command(&["status"]).current_dir(place.path("drives")).output().unwrap();
        let text = String::from_utf8(here.stdout).unwrap();
        assert!(text.contains("LEVEL") && text.contains(&format!("tank   {level}")), "{text}");
    }
    assert_eq!(sizes[0] * 4, sizes[1] * 5);
    // Too few members are refused by the name of the level, in a dry run, too.
    for (level, members, said) in [
        ("raid6", 3, "RAID-6 takes 4 to 32 drives, not 3"),
        ("raid5", 2, "RAID-5 takes 3 to 32 drives, not 2"),
    ] {
        place.create_as(level, "new", "drives", members).fails_with(&[said]);
        let drives: Vec<String> = (0..members).map(|n| drive("drives", n)).collect();
        let mut args = vec!["create", "new", "--level", level, "--dry-run", "--yes"];
        args.extend(drives.iter().map(String::as_str));
        place.run(&args).fails_with(&[said]);
    }
    place.run(&["create", "new", "--level", "raid7", "x"]).fails_with(&["raid7", "raid5, raid6"]);
}

/// Moves drives from one directory to another one.
fn carry(place: &Place, from: &str, to: &str, numbers: &[usize]) {
    for number in numbers {
        fs::rename(place.path(&drive(from, *number)), place.path(&drive(to, *number))).unwrap();
    }
}

/// Two of four members are enough, and so are the other two. If both halves have continued separately, the newer one is
/// the array when they are united, and no member of the other is used.
#[test]
fn raid6_split_halves_reunited_newer_half_wins() {
    for newer in [0, 1] {
        let place = Place::new();
        place.emulate("drives", 4);
        let made = place.create_as("raid6", "tank", "drives", 4).ok();
        assert!(made.stderr.contains("only the newer pair is used when they are united"), "{}", made.stderr);
        let data: Vec<Vec<u8>> = (0..4).map(|seed| Random(seed + 31).bytes(3 << 20)).collect();
        let write = |zone: &str, data: &[u8]| {
            _ = place.run_with(&["zone", "write", "drives", zone, "--fua"], data).ok()
        };
        write("0", &data[0]);
        fs::create_dir(place.path("away")).unwrap();
        let halves = [[0, 1], [2, 3]];
        for half in [0, 1] {
            carry(&place, "drives", "away", &halves[1 - half]);
            write("1", &data[1 + half]);
            if half == newer {
                write("2", &data[3]);
            }
            carry(&place, "away", "drives", &halves[1 - half]);
        }
        let status = place.run(&["status", "drives", "--json"]).json();
        for (half, state) in [(newer, "active"), (1 - newer, "out")] {
            for member in halves[half] {
                assert_eq!(status["members"][member]["state"], state, "member {member}, {newer} is newer");
            }
        }
        for (zone, wanted) in [(0, &data[0]), (1, &data[1 + newer]), (2, &data[3])] {
            assert!(place.read_zone("drives", zone) == *wanted, "zone {zone}, {newer} is newer");
        }
        for member in halves[1 - newer] {
            let role = member.to_string();
            place.run(&["replace", "drives", &role, &drive("drives", member), "--yes"]).ok();
        }
        assert_eq!(place.run(&["status", "drives"]).code, 0);
        halves[newer].iter().for_each(|member| place.remove(&drive("drives", *member)));
        assert!(place.read_zone("drives", 1) == data[1 + newer]);
    }
}

/// With five members, any three include one that records which members continued without which others.
#[test]
fn raid6_stale_members_with_one_current_are_refused() {
    let place = Place::new();
    place.emulate("drives", 5);
    assert_eq!(place.create_as("raid6", "tank", "drives", 5).ok().stderr, "");
    let data = Random(41).bytes(3 << 20);
    fs::create_dir(place.path("away")).unwrap();
    carry(&place, "drives", "away", &[3, 4]);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    for knows in 0..3 {
        let others: Vec<usize> = (0..3).filter(|member| *member != knows).collect();
        carry(&place, "away", "drives", &[3, 4]);
        carry(&place, "drives", "away", &others);
        place.run(&["zone", "read", "drives", "0"]).fails_with(&["only 1 of 5 members are usable"]);
        place.run_with(&["zone", "write", "drives", "1"], &data).fails_with(&["only 1 of 5 members"]);
        carry(&place, "away", "drives", &others);
        carry(&place, "drives", "away", &[3, 4]);
    }
    assert!(place.read_zone("drives", 0) == data);
}

/// With one RAID-6 member out, the zones that another one lacks can be rebuilt.
#[test]
fn raid6_rebuild_completes_while_another_member_is_out() {
    let place = Place::with_raid6(7);
    let data = Random(22).bytes(6 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    place.run(&["emulate", "fault", &drive("drives", 1), "offline", "2"]).ok();
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    place.run(&["emulate", "fault", &drive("drives", 1), "clear"]).ok();
    let lacking = place.run(&["status", "drives", "--json"]).json();
    assert_eq!((&lacking["members"][1]["state"], &lacking["may_be_lost"]), (&"rebuilding".into(), &1.into()));
    assert_eq!(
        lacking["status"],
        "member 1 has 1 zone to rebuild; all data is there, and one more member may be lost"
    );
    place.run(&["fail", "drives", "4"]).ok();
    let both = place.run(&["status", "drives", "--json"]).json();
    let said = both["status"].as_str().unwrap();
    assert!(said.contains("and member 1 has 1 zone to rebuild"), "{said}");
    assert_eq!(both["may_be_lost"], 0);
    place.run(&["fail", "drives", "0"]).fails_with(&["members 1 and 4 are not in sync"]);
    let rebuilt = place.run(&["rebuild", "drives"]).ok().text();
    assert!(rebuilt.contains("rebuilt\nmember 4 is still out"), "{rebuilt}");
    let after = place.run(&["status", "drives", "--json"]).json();
    assert_eq!((&after["members"][1]["state"], &after["may_be_lost"]), (&"active".into(), &1.into()));
    place.run(&["replace", "drives", "4", &drive("drives", 6)]).ok();
    place.remove(&drive("drives", 0));
    place.remove(&drive("drives", 5));
    assert!(place.read_zone("drives", 0) == [&data[..], &data[..]].concat());
}

/// A working drive is copied: any other drive may be lost afterwards.
#[test]
fn replace_copies_working_drive() {
    let place = Place::with_array(7);
    let data = Random(11).bytes(11_000_000);
    place.run_with(&["zone", "write", "drives", "0"], &data).ok();
    place.run_with(&["zone", "write", "drives", "1", "--fua"], &data[..70_000]).ok();
    let replaced = place.json(&["replace", "drives", "2", &drive("drives", 5)]);
    assert!(replaced["copied_bytes"].as_u64() >= Some(2 << 20), "{replaced}");
    assert_eq!(replaced["rebuilt_bytes"], 0);
    let status = place.run(&["status", "drives", "--json"]).ok().json();
    assert_eq!(
        (&status["state"], &status["members"][2]["drive"]),
        (&"healthy".into(), &drive("drives", 5).into())
    );
    // The old drive is a former member, and can be a member again only as a replacement.
    place.remove(&drive("drives", 0));
    assert!(place.read_zone("drives", 0)[..data.len()] == data);
    assert!(place.read_zone("drives", 1)[..70_000] == data[..70_000]);
    let text = place.run(&["replace", "drives", "0", &drive("drives", 6)]).ok();
    assert!(text.stderr.contains("member 0 is out"), "{}", text.stderr);
    place.run(&["replace", "drives", "1", &drive("drives", 2)]).fails_with(&["--yes"]);
    let text = place.run(&["replace", "--now", "--yes", "drives", "1", &drive("drives", 2)]).ok();
    assert!(
        text.text().contains("rebuilt") && text.stderr.contains("member 1 was still working"),
        "{}",
        text.stderr
    );
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    place.remove(&drive("drives", 3));
    assert!(place.read_zone("drives", 0)[..data.len()] == data);
}

/// Creates an array of emulated drives, checks its policy and aggregation, and that it survives the loss of drives.
fn policy(model: &str, zones: &str, wanted: &[&str], policy: &str, aggregate: u32) {
    let place = Place::new();
    let emulate = ["emulate", "create", "d", "--model", model, "--zones", zones, "--zone-capacity", "8M"];
    place.run(&emulate).ok();
    let raid6 = wanted.contains(&"raid6");
    let drives: Vec<String> = (0..4).map(|n| drive("d", n)).collect();
    let mut create = [&["create", "tank", "--json"], wanted].concat();
    create.extend(drives.iter().map(String::as_str));
    let created = place.run(&create).ok().json();
    assert_eq!((&created["policy"], &created["aggregate"]), (&policy.into(), &aggregate.into()), "{model}");
    let data = Random(3).bytes(3 << 20);
    place.run_with(&["zone", "write", "d", "0", "--block-size", "12K"], &data).ok();
    place.remove(&drive("d", 1));
    if raid6 {
        place.run(&["fail", "d", "3"]).ok();
    }
    assert!(place.read_zone("d", 0) == data, "{model} with {policy}");
    place.run(&["replace", "d", "1", &drive("d", 4)]).ok();
    place.run_with(&["zone", "write", "d", "0", "--fua"], &data).ok();
    if raid6 {
        place.run(&["replace", "d", "3", &drive("d", 3), "--yes"]).ok();
        place.remove(&drive("d", 0));
    }
    place.remove(&drive("d", 2));
    assert!(place.read_zone("d", 0) == [&data[..], &data[..]].concat(), "{model} with {policy}");
    let status = place.run(&["status", "d", "--json"]).json();
    assert_eq!((&status["policy"], &status["aggregate"]), (&policy.into(), &aggregate.into()));
    let listed = place.run(&["list", "d", "--json"]).ok().json();
    assert_eq!(listed["arrays"][0]["policy"], policy);
    let examined = place.run(&["examine", &drive("d", 3), "--json"]).ok().json();
    assert_eq!(examined["superblock"]["aggregate"], aggregate);
}

#[test]
fn create_selects_policy_and_aggregation_by_drive_model() {
    policy("zn540", "16", &[], "zrwa", 1);
    policy("zn540", "16", &["--policy", "log"], "log", 1);
    policy("zn540", "16", &["--policy", "inplace"], "inplace", 1);
    policy("plain-zns", "16", &[], "log", 1);
    policy("smr", "16", &[], "log", 1);
    // ZRAID §6.5.
    policy("pm1731a", "48", &[], "zrwa", 4);
    let raid6 = ["--level", "raid6"];
    for (wanted, name) in
        [(&[][..], "zrwa"), (&["--policy", "log"], "log"), (&["--policy", "inplace"], "inplace")]
    {
        policy("zn540", "16", &[&raid6[..], wanted].concat(), name, 1);
    }
    policy("smr", "16", &raid6, "log", 1);
    policy("pm1731a", "80", &raid6, "zrwa", 8);
}

#[test]
fn create_refuses_zrwa_policies_without_zrwa() {
    let place = Place::new();
    let emulate = ["emulate", "create", "d", "--model", "smr", "--zones", "16", "--zone-capacity", "8M"];
    place.run(&emulate).ok();
    let drives: Vec<String> = (0..4).map(|n| drive("d", n)).collect();
    for policy in ["zrwa", "inplace"] {
        let mut create = vec!["create", "tank", "--policy", policy];
        create.extend(drives.iter().map(String::as_str));
        place.run(&create).fails_with(&["drive0.img has no ZRWA", "this policy needs"]);
    }
}

/// Kills a writer at a random moment, removes the `lost` drives, and checks that all acknowledged data is there.
fn kill_and_lose(lost: &[usize], fua: bool, random: &mut Random) {
    let seed = random.0;
    let members = 4 + lost.len();
    let place = if lost.len() == 1 { Place::with_array(6) } else { Place::with_raid6(8) };
    let data = random.bytes(12 << 20);
    let log = place.path("acknowledged");
    let block_size = (4096 << random.below(8)).to_string();
    let depth = (1 + random.below(16)).to_string();
    let mut args = vec!["zone", "write", "drives", "0", "--ack-log", "acknowledged"];
    args.extend(["--block-size", &block_size, "--queue-depth", &depth]);
    args.extend(fua.then_some("--fua"));
    let mut child = place.start(&args, data.clone());
    let lines = if fua { 1 + random.below(40) } else { 1 };
    let acknowledged = || fs::read_to_string(&log).unwrap_or_default();
    let started = Instant::now();
    while (acknowledged().lines().count() as u64) < lines && child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is acknowledged, seed {seed}");
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    lost.iter().for_each(|lost| place.remove(&drive("drives", *lost)));
    let promised: usize = acknowledged().lines().last().map_or(0, |line| line.parse().unwrap());
    let there = place.read_zone("drives", 0);
    assert!(
        promised > 0 && promised <= there.len(),
        "{promised} promised, {} there, seed {seed}",
        there.len()
    );
    assert!(there[..] == data[..there.len()], "what is there is not what was written, seed {seed}");

    // Writes continue at the write pointer, and the lost drives can be replaced.
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data[there.len()..]).ok();
    for (new, lost) in lost.iter().enumerate() {
        place.run(&["replace", "drives", &lost.to_string(), &drive("drives", members + new)]).ok();
    }
    assert_eq!(place.run(&["status", "drives"]).code, 0, "seed {seed}");
    let mut others: Vec<usize> = (0..members).filter(|member| !lost.contains(member)).collect();
    for _ in lost {
        let other = others.swap_remove(random.below(others.len() as u64) as usize);
        place.remove(&drive("drives", other));
    }
    assert!(place.read_zone("drives", 0) == data, "the zone is not what was written, seed {seed}");
}

#[test]
fn acknowledged_data_survives_killed_writer_and_drive_loss() {
    let mut random = Random::new();
    for lost in 0..5 {
        kill_and_lose(&[lost], true, &mut random);
        kill_and_lose(&[lost], false, &mut random);
    }
}

#[test]
fn raid6_survives_killed_writer_and_two_drive_losses() {
    let mut random = Random::new();
    for lost in [[0, 1], [5, 0], [2, 5], [1, 3], [4, 2], [3, 4]] {
        kill_and_lose(&lost, random.below(2) == 0, &mut random);
    }
}

#[test]
fn status_exit_code_reflects_array_state() {
    let place = Place::with_array(6);
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    assert_eq!(place.run(&["status", &drive("drives", 2)]).code, 0);
    place.run(&["fail", "drives", "2"]).ok();
    let status = place.run(&["status", "drives", "--json"]);
    assert_eq!((status.code, status.json()["state"].as_str().unwrap()), (1, "degraded"));
    assert_eq!(status.json()["members"][2]["state"], "out");
    assert!(status.json()["action"].as_str().unwrap().contains("zoneraid replace drives 2"));
    place.run(&["replace", "drives", "2", &drive("drives", 5)]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 0);

    place.remove(&drive("drives", 0));
    place.remove(&drive("drives", 1));
    let status = place.run(&["status", "drives", "--json"]);
    assert_eq!((status.code, status.json()["state"].as_str().unwrap()), (2, "unusable"));
    place.run(&["zone", "read", "drives", "0"]).fails_with(&[]);
    place.run(&["status", "nothing"]).fails_with(&["no array called 'nothing'"]);
    place.run(&["rebuild"]).fails_with(&["<ARRAY>"]);
}

#[test]
fn array_name_resolves_in_current_and_environment_directory() {
    let place = Place::with_array(5);
    let elsewhere =
        place.command(&["status", "tank"]).env("ZONERAID_DIR", place.path("drives")).output().unwrap();
    assert!(elsewhere.status.success());
    let here = place.command(&["status", "tank"]).current_dir(place.path("drives")).output().unwrap();
    assert!(here.status.success());
    place.run(&["status", "tank"]).fails_with(&["tank"]);
}

#[test]
fn inspection_writes_nothing_and_makes_no_member_stale() {
    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0"], &Random(5).bytes(3 << 20)).ok();
    fs::rename(place.path("drives/drive4.img"), place.path("away.img")).unwrap();
    // The first inspection makes the drives complete the actions of their power-on.
    assert_eq!(place.run(&["status", "drives"]).code, 1);
    let before = fingerprint(&place.path("drives"));
    assert_eq!(place.run(&["status", "drives"]).code, 1);
    place.run(&["examine", &drive("drives", 0)]).ok();
    place.run(&["list", "drives"]).ok();
    place.run(&["zone", "report", "drives"]).ok();
    assert!(place.read_zone("drives", 0) == Random(5).bytes(3 << 20));
    assert!(fingerprint(&place.path("drives")) == before, "looking wrote to a drive");
    fs::rename(place.path("away.img"), place.path("drives/drive4.img")).unwrap();
    assert_eq!(place.run(&["status", "drives"]).code, 0);

    // Once the array was written without the drive, it is stale, and is not used.
    fs::rename(place.path("drives/drive4.img"), place.path("away.img")).unwrap();
    place.run_with(&["zone", "write", "drives", "0"], &Random(6).bytes(1 << 20)).ok();
    fs::rename(place.path("away.img"), place.path("drives/drive4.img")).unwrap();
    assert_eq!(place.run(&["status", "drives"]).code, 1);
    let expected = [Random(5).bytes(3 << 20), Random(6).bytes(1 << 20)].concat();
    assert!(place.read_zone("drives", 0) == expected);
    place.run(&["replace", "drives", "4", &drive("drives", 4)]).fails_with(&["member 4", "--yes"]);
    place.run(&["replace", "drives", "4", &drive("drives", 3), "--yes"]).fails_with(&["in use"]);
    place.run(&["replace", "drives", "4", &drive("drives", 4), "--yes"]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    place.remove(&drive("drives", 0));
    assert!(place.read_zone("drives", 0) == expected);
}

#[test]
fn replace_with_unsuitable_drive_keeps_member() {
    let place = Place::with_array(5);
    place.run(&["emulate", "create", "small", "--count", "1", "--zones", "8", "--zone-capacity", "8M"]).ok();
    place.run(&["replace", "drives", "1", "small/drive0.img"]).fails_with(&["small/drive0.img"]);
    assert_eq!(place.run(&["status", "drives"]).code, 0);
}

#[test]
fn two_arrays_in_one_directory_are_never_mixed() {
    let place = Place::with_array(10);
    let drives: Vec<String> = (5..10).map(|n| drive("drives", n)).collect();
    let mut args = vec!["create", "pond"];
    args.extend(drives.iter().map(String::as_str));
    place.run(&args).ok();
    place.run(&["status", "drives"]).fails_with(&["2 arrays", "tank", "pond"]);
    let status = place.run(&["status", &drive("drives", 7), "--json"]).ok().json();
    assert_eq!(status["name"], "pond");
    assert_eq!(status["members"].as_array().unwrap().len(), 5);
    place.run(&["replace", &drive("drives", 0), &drive("drives", 7)]).fails_with(&["array 'pond'", "--yes"]);
    place.run(&["fail", &drive("drives", 0), &drive("drives", 7)]).fails_with(&["not a member of 'tank'"]);
    let mixed = [drive("drives", 0), drive("drives", 7), drive("drives", 8)];
    place.run(&["create", "new", &mixed[0], &mixed[1], &mixed[2]]).fails_with(&[
        "member 0 of array 'tank'",
        "member 2 of array 'pond'",
        "--yes",
    ]);
}

#[test]
fn create_overwrites_members_only_with_yes() {
    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], b"precious").ok();
    let before = fingerprint(&place.path("drives"));
    place.create("new", "drives", 5).fails_with(&["--yes", "tank"]);
    let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
    let mut args = vec!["create", "new", "--dry-run", "--yes"];
    args.extend(drives.iter().map(String::as_str));
    let said = place.run(&args).ok().text();
    assert!(said.contains("would destroy: member 4 of array 'tank'") && said.contains("dry run"), "{said}");
    assert!(fingerprint(&place.path("drives")) == before, "a dry run wrote to a drive");
    place.run(&["emulate", "create", "drives"]).fails_with(&["drive0.img", "exists"]);
    // As on a file system without enough space.
    let mut limited = std::process::Command::new("sh");
    let limit = r#"trap "" XFSZ; ulimit -f 8; exec "$0" emulate create none"#;
    let limited = limited.args(["-c", limit, env!("CARGO_BIN_EXE_zoneraid")]).current_dir(place.path(""));
    Ran::new(limited.output().unwrap()).fails_with(&["drive0.img", "too large"]);
    assert_eq!(std::fs::read_dir(place.path("none")).unwrap().count(), 0);
    place.run(&["create", "x", &drives[0], &drives[0], &drives[1]]).fails_with(&["named twice"]);
    args.retain(|arg| *arg != "--dry-run");
    let made = place.run(&args).ok().text();
    assert!(made.ends_with("the kernel module ublk_drv: zoneraid start drives\n"), "{made}");
    assert!(
        made.contains("zoneraid volume create drives, and then zoneraid serve drives --nbd SOCKET"),
        "{made}"
    );
    assert_eq!(place.json(&["status", "drives"])["name"], "new");
    assert!(place.read_zone("drives", 0).is_empty());
}

#[test]
fn incomplete_arguments_and_drives_outside_directory_are_refused() {
    let place = Place::with_array(6);
    place.emulate("others", 1);
    let before = [fingerprint(&place.path("drives")), fingerprint(&place.path("others"))];
    let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
    let nameless: Vec<&str> =
        ["create", "--yes"].into_iter().chain(drives.iter().map(String::as_str)).collect();
    place
        .run(&nameless)
        .fails_with(&["drives/drive0.img is a drive", "zoneraid create NAME drives/drive0.img"]);
    place
        .run(&["replace", "drives", "3", "9"])
        .fails_with(&["9 is not a drive", "zoneraid replace drives 3 NEW"]);
    place.run(&["replace", "3", "9"]).fails_with(&["a role needs its array"]);
    for options in [&[][..], &["--now"]] {
        let args = [&["replace", "drives", "3", "others/drive0.img"][..], options].concat();
        place.run(&args).fails_with(&["others/drive0.img", "are in different directories", "links to them"]);
    }
    assert!([fingerprint(&place.path("drives")), fingerprint(&place.path("others"))] == before);
    let daemon = place.daemon();
    place.run(&["replace", "tank", "3", "others/drive0.img"]).fails_with(&["are in different directories"]);
    place.run(&["stop", "tank"]).ok();
    daemon.join().unwrap();
    assert!(fingerprint(&place.path("others")) == before[1]);
    // Named from another directory.
    place
        .run(&["fail", "drives", "drive3.img"])
        .fails_with(&["drive3.img does not exist", "member 3 of 'tank' is"]);
    place.remove("drives/drive4.img");
    place.run(&["fail", "drives", "drive3.img"]).fails_with(&["member 3 of 'tank' is"]);
    place.run(&["replace", "drives", "4", &drive("drives", 5)]).ok();
    // A link to the drive is accepted.
    std::os::unix::fs::symlink("../others/drive0.img", place.path("drives/link.img")).unwrap();
    place.run(&["replace", "drives", "3", "drives/link.img"]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    place.run(&["wipe", "drives"]).fails_with(&["zoneraid: drives: is neither a drive nor an image of one"]);
    place.run(&["zone", "finish", "drives", "0"]).ok();
    place.run(&["zone", "open", "drives", "0"]).fails_with(&["zone 0, which is full: Invalid Zone State"]);
}

/// Runs `zoneraid` on a terminal; returns its output and exit code.
fn on_a_terminal(place: &Place, args: &str, input: &str) -> (String, i32) {
    let mut script = std::process::Command::new("script");
    let run = format!("{} {args}", env!("CARGO_BIN_EXE_zoneraid"));
    script
        .args(["-qec", &run, "/dev/null"])
        .current_dir(place.path(""))
        .env("ZONERAID_RUN_DIR", place.path("run"));
    script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = script.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    (String::from_utf8_lossy(&ran.stdout).into_owned(), ran.status.code().unwrap())
}

#[test]
fn zone_read_refuses_terminal_zone_write_announces_input() {
    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0"], b"\x1b[2Jobey").ok();
    let (said, code) = on_a_terminal(&place, "zone read drives 0", "");
    assert!(
        code == 4 && said.contains("does not write raw data to a terminal") && !said.contains("obey\0"),
        "{said:?}"
    );
    let (said, code) = on_a_terminal(&place, "zone write drives 1", "typed\n\x04");
    assert!(code == 0 && said.contains("typed text is written until Ctrl-D"), "{code}, {said:?}");
    assert!(place.read_zone("drives", 1).starts_with(b"typed\n\0"));
}

#[test]
fn foreign_files_are_ignored_and_damaged_images_refused() {
    let place = Place::with_array(6);
    fs::write(place.path("drives/notes.txt"), "not a drive").unwrap();
    fs::write(place.path("drives/other.img"), vec![7; 100_000]).unwrap();
    assert_eq!(place.run(&["status", "drives"]).code, 0, "files that are no images do not matter");
    place.run(&["examine", "drives/other.img"]).fails_with(&["other.img"]);
    place.run(&["examine", "drives/missing.img"]).fails_with(&["missing.img"]);
    place.run(&["create", "x", "drives/other.img", &drive("drives", 5)]).fails_with(&["other.img"]);

    // The header of an image, behind its magic.
    let mut image = fs::File::options().write(true).open(place.path("drives/drive1.img")).unwrap();
    image.seek(SeekFrom::Start(100)).unwrap();
    image.write_all(&[0xff; 64]).unwrap();
    drop(image);
    place.run(&["examine", &drive("drives", 1)]).fails_with(&["drive1.img"]);
    let status = place.run(&["status", "drives"]);
    assert_eq!(status.code, 1, "{}", status.stderr);
    assert!(status.stderr.contains("drive1.img"), "{}", status.stderr);
}

/// Overwrites the first bytes of every record in a drive's image.
fn lose_metadata(path: &std::path::Path, with: &[u8]) {
    let mut image = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut block = [0; 4096];
    let mut records = 0;
    for at in (0..).step_by(4096) {
        image.seek(SeekFrom::Start(at)).unwrap();
        if image.read_exact(&mut block).is_err() {
            break;
        }
        if block.starts_with(b"zoneraid") {
            image.seek(SeekFrom::Start(at)).unwrap();
            image.write_all(with).unwrap();
            records += 1;
        }
    }
    assert!(records > 0);
}

#[test]
fn drive_with_lost_metadata_is_not_reported_blank() {
    let place = Place::with_array(6);
    lose_metadata(&place.path(&drive("drives", 1)), b"somebody");
    let examined = place.json(&["examine", &drive("drives", 1)]);
    let error = examined["superblock_error"].as_str().unwrap();
    assert!(error.contains("holds other data"), "{error}");
    let listed = place.json(&["list", "drives"]);
    assert_eq!(listed["blank"].as_array().unwrap().len(), 1, "{listed}");
    assert!(listed["unseen"].to_string().contains("holds other data"), "{listed}");
    let status = place.run(&["status", "drives"]);
    assert_eq!(status.code, 1, "{}", status.stderr);
    assert!(status.stderr.contains("drive1.img") || status.stdout.windows(10).any(|w| w == b"drive1.img"));

    // The checksum is wrong, so the version does not count.
    lose_metadata(&place.path(&drive("drives", 2)), b"zoneraid\x0b\0");
    let examined = place.json(&["examine", &drive("drives", 2)]);
    let error = examined["superblock_error"].as_str().unwrap();
    assert!(error.contains("metadata is damaged in block "), "{error}");
}

/// An array with `data` in zone 0, which is zone 2 of each drive and begins with block 4096.
fn with_data(data: &[u8]) -> Place {
    let place = Place::with_array(6);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], data).ok();
    place
}

fn fault(place: &Place, number: usize, fault: &[&str]) -> serde_json::Value {
    place.json(&[&["emulate", "fault", &drive("drives", number)], fault].concat())
}

#[test]
fn array_continues_without_gone_drive_until_readmitted() {
    let data = Random(11).bytes(4 << 20);
    let place = with_data(&data);
    assert_eq!(fault(&place, 1, &["gone"])["gone"], true);
    place.run(&["examine", &drive("drives", 1)]).fails_with(&["drive1.img", "the drive is gone"]);
    let status = place.run(&["status", "drives", "--json"]);
    assert_eq!((status.code, &status.json()["members"][1]["state"]), (1, &"missing".into()));
    assert!(place.read_zone("drives", 0) == data);
    assert_eq!(fault(&place, 1, &["clear"])["gone"], false);
    assert_eq!(place.run(&["status", "drives"]).code, 0, "it has missed nothing");
    fault(&place, 1, &["gone"]);
    place.run_with(&["zone", "write", "drives", "1"], &data).ok();
    fault(&place, 1, &["clear"]);
    assert_eq!(place.run(&["status", "drives"]).code, 1, "what it missed makes it stale");
    place.run(&["replace", "--yes", "drives", "1", &drive("drives", 1)]).ok();
    assert_eq!(place.run(&["status", "drives"]).code, 0);
    (0..2).for_each(|zone| assert!(place.read_zone("drives", zone) == data));
}

#[test]
fn examine_lists_worn_zones_and_marks_metadata_zones() {
    let place = Place::with_array(6);
    fault(&place, 1, &["read-only", "1"]);
    fault(&place, 1, &["offline", "3"]);
    let image = drive("drives", 1);
    assert_eq!(place.json(&["examine", &image])["worn_zones"], serde_json::json!([1, 3]));
    let said = place.run(&["examine", &image]).ok().text();
    assert!(said.contains("worn: 1 (for metadata) and 3 cannot be written any more"), "{said}");
}

#[test]
fn array_continues_without_read_only_or_offline_zone() {
    for state in ["read-only", "offline"] {
        let data = Random(12).bytes(4 << 20);
        let place = with_data(&data);
        let faults = fault(&place, 1, &[state, "2"]);
        let zones = [&faults["read_only_zones"], &faults["offline_zones"]];
        let (hit, spared) = if state == "offline" { (zones[1], zones[0]) } else { (zones[0], zones[1]) };
        assert_eq!((hit, spared), (&serde_json::json!([2]), &serde_json::json!([])));
        assert!(place.read_zone("drives", 0) == data, "{state}");
        let more = Random(13).bytes(1 << 20);
        place.run_with(&["zone", "write", "drives", "0", "--fua"], &more).ok();
        place.run_with(&["zone", "write", "drives", "1", "--fua"], &more).ok();
        assert!(place.read_zone("drives", 0) == [&data[..], &more].concat(), "{state}");
        assert!(place.read_zone("drives", 1) == more, "{state}");
        assert_eq!(place.run(&["status", "drives"]).code, 1, "{state}");
        place.run(&["fail", "drives", "1"]).ok();
        place.run(&["replace", "drives", "1", &drive("drives", 5)]).ok();
        assert_eq!(place.run(&["status", "drives"]).code, 0, "{state}");
        place.remove(&drive("drives", 3));
        assert!(place.read_zone("drives", 0) == [&data[..], &more].concat(), "{state}");
    }
}

#[test]
fn worn_zone_is_rebuilt_in_spare_zone() {
    let place = Place::new();
    place.emulate("drives", 5);
    let drives: Vec<String> = (0..5).map(|n| drive("drives", n)).collect();
    let args = ["create", "tank", "--spare-zones", "1"].into_iter().chain(drives.iter().map(String::as_str));
    let created = place.run(&args.collect::<Vec<_>>()).ok();
    assert!(created.text().contains("spare zones 40 MiB"), "{}", created.text());
    let data = Random(12).bytes(4 << 20);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    fault(&place, 1, &["offline", "2"]);
    let status = place.run(&["status", "drives"]);
    assert!(status.code == 1 && status.text().contains("zoneraid rebuild drives"), "{}", status.text());
    place.run(&["rebuild", "drives"]).ok();
    let status = place.json(&["status", "drives"]);
    let member = &status["members"][1];
    assert_eq!((&member["moved_zones"], &member["spare_zones"]), (&1.into(), &0.into()), "{status}");
    assert_eq!(status["state"], "healthy");
    // There is no spare zone left for the next one.
    fault(&place, 1, &["offline", "3"]);
    place.run_with(&["zone", "write", "drives", "1", "--fua"], &data).ok();
    let status = place.run(&["status", "drives"]);
    assert!(status.code == 1 && status.text().contains("zoneraid replace drives 1"), "{}", status.text());
    assert!(place.run(&["rebuild", "drives"]).code != 0);
    place.remove(&drive("drives", 3));
    assert!(place.read_zone("drives", 0) == data);
}

#[test]
fn unreadable_blocks_are_decoded_with_one_per_stripe() {
    let data = Random(14).bytes(4 << 20);
    let place = with_data(&data);
    assert_eq!(fault(&place, 1, &["unreadable", "4096"])["unreadable_blocks"], serde_json::json!([4096]));
    assert!(place.read_zone("drives", 0) == data);
    fault(&place, 2, &["unreadable", "4096"]);
    let lost = place.run(&["zone", "read", "drives", "0"]);
    assert_eq!(lost.code, 4, "{}", lost.stderr);
    assert!(lost.stdout == data[..lost.stdout.len()], "up to there it is right");
    fault(&place, 2, &["clear"]);
    assert!(place.read_zone("drives", 0) == data);
}

/// A block of a new zone epoch that the drive has not written is decoded, with checksums; its repair is lost, too.
#[test]
fn emulated_stale_block_is_old_until_cleared_and_decoded_with_checksums() {
    for checksums in ["on", "off"] {
        let (old, new) = (Random(15).bytes(1 << 20), Random(16).bytes(1 << 20));
        let place = Place::new();
        place.emulate("drives", 5);
        let members: Vec<String> = (0..5).map(|number| drive("drives", number)).collect();
        let args = ["create", "tank", "--checksums", checksums].into_iter();
        place.run(&args.chain(members.iter().map(String::as_str)).collect::<Vec<_>>()).ok();
        place.run_with(&["zone", "write", "drives", "0", "--fua"], &old).ok();
        assert_eq!(fault(&place, 1, &["stale", "4096"])["stale_blocks"], serde_json::json!([4096]));
        assert!(place.read_zone("drives", 0) == old);
        place.run(&["zone", "reset", "drives", "0"]).ok();
        place.run_with(&["zone", "write", "drives", "0", "--fua"], &new).ok();
        let read = place.read_zone("drives", 0);
        let wrong: Vec<usize> = (0..new.len() / 4096)
            .filter(|block| read[block * 4096..][..4096] != new[block * 4096..][..4096])
            .collect();
        match wrong[..] {
            [] => assert_eq!(checksums, "on"),
            [block] => {
                assert_eq!(checksums, "off");
                assert!(read[block * 4096..][..4096] == old[block * 4096..][..4096]);
            }
            _ => panic!("wrong blocks {wrong:?}"),
        }
        fault(&place, 1, &["clear"]);
        assert!(place.read_zone("drives", 0) == new);
    }
}

#[test]
fn emulated_flipped_bit_is_read_without_error_if_there_are_no_checksums() {
    let data = Random(15).bytes(1 << 20);
    let place = Place::new();
    place.emulate("drives", 6);
    let members: Vec<String> = (0..6).map(|number| drive("drives", number)).collect();
    let args = ["create", "tank", "--checksums", "off"].into_iter().chain(members.iter().map(String::as_str));
    place.run(&args.collect::<Vec<_>>()).ok();
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    assert_eq!(fault(&place, 1, &["flip", "4096"])["flipped_blocks"], serde_json::json!([4096]));
    let read = place.read_zone("drives", 0);
    let bits: u32 = read.iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((read.len(), bits), (data.len(), 1));
    fault(&place, 1, &["clear"]);
    assert!(place.read_zone("drives", 0) == data);
}

/// With checksums the block is decoded, and a rebuilt drive has no wrong block.
#[test]
fn flipped_bit_is_decoded_in_array_with_checksums() {
    let data = Random(15).bytes(1 << 20);
    let place = Place::new();
    place.emulate("drives", 6);
    let members: Vec<String> = (0..5).map(|number| drive("drives", number)).collect();
    let args = ["create", "tank"].into_iter().chain(members.iter().map(String::as_str));
    assert!(place.run(&args.collect::<Vec<_>>()).ok().text().contains("with checksums"));
    assert_eq!(place.json(&["status", "drives"])["checksums"], true);
    place.run_with(&["zone", "write", "drives", "0", "--fua"], &data).ok();
    fault(&place, 1, &["flip", "4096"]);
    assert!(place.read_zone("drives", 0) == data);
    fault(&place, 2, &["flip", "4097"]);
    assert!(place.read_zone("drives", 0) == data);
    // On two drives in the same stripe the block is lost, and the read fails.
    fault(&place, 2, &["flip", "4096"]);
    let lost = place.run(&["zone", "read", "drives", "0"]);
    assert!(lost.code == 4 && lost.stdout == data[..lost.stdout.len()], "{}", lost.stderr);
    (1..3).for_each(|number| _ = fault(&place, number, &["clear"]));
    assert!(place.read_zone("drives", 0) == data);
    // Also by default, and with zones that are written by appends.
    let append = ["create", "other", "--policy", "append", "--dry-run", "--yes"];
    let args: Vec<&str> = append.into_iter().chain(members.iter().map(String::as_str)).collect();
    assert!(place.run(&args).ok().text().contains("policy append, with checksums"));
    // Drives without room for checksums of such zones.
    let mut model = Model::zn540().scaled(16, 2048);
    model.geometry.oob_bytes = 16;
    let narrow: Vec<String> = (0..5).map(|number| format!("narrow{number}.img")).collect();
    for (number, name) in (0..).zip(&narrow) {
        drop(EmulatedDrive::create_image(&place.path(name), &model, [number; 16]).unwrap());
    }
    let append = ["create", "other", "--policy", "append", "--checksums", "on", "--dry-run", "--yes"];
    let args: Vec<&str> = append.into_iter().chain(narrow.iter().map(String::as_str)).collect();
    place.run(&args).fails_with(&["'append' has checksums nowhere else"]);
    // By default there are none, and the command says so.
    let append = ["create", "other", "--policy", "append", "--dry-run", "--yes"];
    let args: Vec<&str> = append.into_iter().chain(narrow.iter().map(String::as_str)).collect();
    let created = place.run(&args);
    assert!(
        created.stderr.contains("will have no checksums") && created.stderr.contains("'append'"),
        "{}",
        created.stderr
    );
    assert!(!created.ok().text().contains("with checksums"));
}

#[test]
fn emulated_slow_drive_delays_reads() {
    let data = Random(16).bytes(4 << 20);
    let place = with_data(&data);
    assert_eq!(fault(&place, 1, &["slow", "5000"])["slow"], 5000);
    let start = Instant::now();
    assert!(place.read_zone("drives", 0) == data);
    // Sixteen chunks of 64 KiB, each of which takes more than 4 µs to copy.
    assert!(start.elapsed() > Duration::from_millis(16 * 5 * 4), "{:?}", start.elapsed());
    assert_eq!(fault(&place, 1, &["slow", "1"])["slow"], 1);
}

#[test]
fn emulate_fault_refuses_impossible_faults() {
    let place = Place::new();
    place.emulate("drives", 1);
    fs::write(place.path("text"), "not a drive").unwrap();
    let image = drive("drives", 0);
    let refused = |fault: &[&str], words: &[&str]| {
        place.run(&[&["emulate", "fault"], fault].concat()).fails_with(words);
    };
    refused(&[&image, "read-only", "16"], &["no zone 16", "16, from 0"]);
    refused(&[&image, "offline", "16"], &["no zone 16", "16, from 0"]);
    refused(&[&image, "unreadable", "32768"], &["no block 32768", "32768, from 0"]);
    refused(&[&image, "flip", "-1"], &["-1"]);
    refused(&[&image, "slow", "0"], &["FACTOR", "1000000"]);
    refused(&[&image, "slow", "1000001"], &["FACTOR", "1000000"]);
    refused(&[&image, "slow", "0.5"], &["FACTOR"]);
    refused(&["text", "gone"], &["text", "not the image of an emulated drive"]);
    refused(&["missing", "gone"], &["missing", "No such file"]);
    refused(&["drives", "gone"], &["drives", "directory"]);
    assert_eq!(fs::read_dir(place.path("drives")).unwrap().count(), 1, "nothing was written");
    // A model with gaps: zones with a capacity below their size.
    place.run(&["emulate", "create", "gaps", "--count", "1", "--zones", "4", "--zone-capacity", "12K"]).ok();
    refused(&[&drive("gaps", 0), "flip", "3"], &["block 3", "beyond the capacity of zone 0"]);
}

#[test]
fn zone_commands_manage_zones_and_explain_limits() {
    let place = Place::with_array(5);
    let report = place.json(&["zone", "report", "drives"]);
    let zones = report["zones"].as_array().unwrap();
    let capacity = zones[0]["capacity_bytes"].as_u64().unwrap();
    assert!(capacity > 8 << 20 && zones.iter().all(|zone| zone["condition"] == "empty"));
    let beyond = zones.len().to_string();
    place.run(&["zone", "read", "drives", &beyond]).fails_with(&["there is no zone"]);

    let data = Random(3).bytes(capacity as usize + 1);
    place
        .run_with(&["zone", "write", "drives", "1"], &data)
        .fails_with(&[&format!("{capacity} bytes of the input are durable"), "full"]);
    assert!(place.read_zone("drives", 1) == data[..capacity as usize]);
    assert_eq!(place.json(&["zone", "report", "drives", "1"])["zones"][0]["condition"], "full");
    assert!(place.json(&["zone", "report", "drives", "1"])["zones"][0]["wp_bytes"].is_null());
    place.run_with(&["zone", "write", "drives", "1"], b"x").fails_with(&["full"]);

    let noted = place.run_with(&["zone", "write", "drives", "2"], b"short").ok();
    assert!(noted.stderr.contains("4091 zero bytes"), "{}", noted.stderr);
    let part = place.run(&["zone", "read", "drives", "2", "--offset", "2", "--length", "3"]).ok();
    assert_eq!(part.stdout, b"ort");
    place.run(&["zone", "read", "drives", "2", "--offset", "4097"]).fails_with(&["4096", "4097"]);

    place.run(&["zone", "finish", "drives", "2"]).ok();
    assert_eq!(place.json(&["zone", "report", "drives", "2"])["zones"][0]["condition"], "full");
    assert_eq!(place.run(&["zone", "read", "drives", "2", "--length", "5"]).ok().stdout, b"short");
    for zone in ["1", "2"] {
        place.run(&["zone", "reset", "drives", zone]).ok();
        assert_eq!(place.json(&["zone", "report", "drives", zone])["zones"][0]["condition"], "empty");
        assert!(place.read_zone("drives", zone.parse().unwrap()).is_empty());
    }
    let open = place.run(&["zone", "open", "drives", "3"]).ok();
    assert!(open.stderr.contains("when this command ends zone 3 is empty again"), "{}", open.stderr);
    assert_eq!(place.json(&["zone", "report", "drives", "3"])["zones"][0]["condition"], "empty");
    let report = place.run(&["zone", "report", "drives"]).ok().text();
    assert!(report.lines().last().unwrap().starts_with("14 zones: 14 empty; 0 B of"), "{report}");
    place.run(&["zone", "close", "drives", "1"]).fails_with(&["zone 1"]);
}

#[test]
fn closed_output_pipe_is_no_error() {
    let place = Place::with_array(5);
    place.run_with(&["zone", "write", "drives", "0"], &Random(4).bytes(4 << 20)).ok();
    for args in [&["zone", "read", "drives", "0"][..], &["zone", "report", "drives"][..]] {
        let mut child = place.command(args).spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.len()), (Some(0), 0), "{args:?}");
    }
}

#[test]
fn zone_write_of_empty_input_writes_nothing() {
    let place = Place::with_array(5);
    let written = place.run_with(&["zone", "write", "drives", "0", "--fua", "--json"], b"").ok().json();
    assert_eq!((written["written_bytes"].as_u64(), written["wp_bytes"].as_u64()), (Some(0), Some(0)));
}

#[test]
fn killed_rebuild_continues_to_healthy_array() {
    let mut random = Random::new();
    for round in 0..6 {
        let seed = random.0;
        let place = Place::with_array(6);
        let data: Vec<Vec<u8>> = (0..3).map(|_| random.bytes(15 << 20)).collect();
        for (zone, data) in data.iter().enumerate() {
            place.run_with(&["zone", "write", "drives", &zone.to_string()], data).ok();
        }
        let lost = round % 5;
        place.remove(&drive("drives", lost));
        let args = ["replace", "drives", &lost.to_string(), &drive("drives", 5)];
        let mut child = place.command(&args).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let status = place.json(&["status", "drives"]);
        match status["members"][lost]["state"].as_str().unwrap() {
            "missing" | "out" => place.run(&[&args[..], &["--yes"]].concat()).ok(),
            _ => place.run(&["rebuild", "drives"]).ok(),
        };
        assert_eq!(place.run(&["status", "drives"]).code, 0, "seed {seed}");
        place.remove(&drive("drives", (lost + 1) % 5));
        for (zone, data) in data.iter().enumerate() {
            assert!(place.read_zone("drives", zone as u32) == *data, "zone {zone} is wrong, seed {seed}");
        }
    }
}

#[test]
fn readme_commands_behave_as_documented() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let lines = readme.lines().filter_map(|line| line.strip_prefix("    "));
    // Background processes are tested in host/tests/volume.rs.
    let runs = |line: &&str| line.contains("drives") && !line.ends_with('&');
    let commands: Vec<&str> = lines.filter(runs).collect();
    assert_eq!(commands.len(), 11, "{commands:#?}");
    let place = Place::new();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_zoneraid")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    for command in commands {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", command]).current_dir(place.path("")).env("PATH", &path);
        let ran = shell.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        let expected = i32::from(command.contains("degraded"));
        assert_eq!(ran.status.code(), Some(expected), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
        if command.contains("head") {
            assert_eq!(said, "1\n2\n3\n");
        }
    }
}
