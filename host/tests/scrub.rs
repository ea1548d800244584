//! Scrubs of a running array, from the command line: blocks that a drive cannot read or returns wrong are found and
//! repaired, and the history is kept.

use crate::{
    json::check_schema,
    support::{Place, Random, drive},
    volume::{Server, emulate, is_right, serve_filled},
};
use emu::ssd::{ImageMedia, Ssd};
use engine::{buf::BLOCK, zone::Lba};
use rustix::process::Signal;
use serde_json::Value;
use std::{path::Path, time::Duration};

/// Blocks of a zone of a drive.
const ZONE: u64 = 1024;

/// A served volume of 64 MiB with `data` at its start, on an array of five drives.
fn served(data: &[u8], checksums: &str) -> (Place, Server) {
    let place = Place::new();
    emulate(&place, 6);
    let members: Vec<String> = (0..5).map(|number| drive("drives", number)).collect();
    let create = ["create", "tank", "--checksums", checksums];
    place.run(&create.into_iter().chain(members.iter().map(String::as_str)).collect::<Vec<_>>()).ok();
    let server = serve_filled(&place, data);
    (place, server)
}

/// Zones of the array that are full.
pub fn full_zones(place: &Place) -> Vec<u64> {
    let report = place.json(&["zone", "report", "drives"]);
    let zones = report["zones"].as_array().unwrap().iter();
    zones.filter(|zone| zone["condition"] == "full").map(|zone| zone["zone"].as_u64().unwrap()).collect()
}

/// Block `at` of the part of a zone of the array on a drive.
pub fn block(zone: u64, at: u64) -> String {
    ((zone + 2) * ZONE + at).to_string()
}

fn scrub(place: &Place, args: &[&str]) -> Value {
    place.json(&[&["scrub"], args].concat())
}

/// Checks that a block of member 1 was repaired, which was wrong, and one of member 2, which was unreadable.
fn check_repaired(status: &Value) {
    let of = |member: &Value| [&member["repaired_bytes"], &member["wrong_bytes"]].map(|bytes| bytes.as_u64());
    let counts: Vec<_> = status["members"].as_array().unwrap()[1..3].iter().map(of).collect();
    assert_eq!(counts, [[Some(4096), Some(4096)], [Some(4096), Some(0)]], "{status}");
}

/// The counts of the drives reach the limit, which is set while the array runs, and is higher again when it does not.
#[test]
fn drive_with_more_repaired_blocks_than_limit_is_to_be_replaced() {
    let (place, server) = served(&Random(33).bytes(40 << 20), "on");
    let zone = *full_zones(&place).first().expect("a full zone");
    for at in 5..8 {
        place.run(&["emulate", "fault", &drive("drives", 1), "flip", &block(zone, at)]).ok();
    }
    assert_eq!(scrub(&place, &["start", "drives", "--wait"])["repaired_bytes"], 3 * 4096);
    assert_eq!(place.json(&["status", "drives"])["state"], "healthy");
    assert!(
        place.run(&["error-limit", "drives", "3"]).ok().text().contains("when 3 blocks of it were repaired")
    );
    let reached = place.run(&["status", "drives"]);
    assert_eq!(reached.code, 1, "{}", reached.stderr);
    assert!(
        reached.text().contains("3 blocks of member 1 had to be repaired, and the limit is 3"),
        "{}",
        reached.text()
    );
    assert!(reached.text().contains("zoneraid replace tank 1 NEW"), "{}", reached.text());
    assert_eq!(server.end(Signal::TERM), Some(0));
    place.run(&["error-limit", "drives", "4"]).ok();
    assert_eq!(place.json(&["status", "drives"])["state"], "healthy");
}

#[test]
fn scrub_repairs_wrong_and_unreadable_blocks_and_keeps_history() {
    let data = Random(31).bytes(40 << 20);
    let (place, server) = served(&data, "on");
    let never = scrub(&place, &["status", "drives"]);
    assert_eq!((&never["state"], &never["history"]), (&"never".into(), &Value::Array(Vec::new())));
    let zone = *full_zones(&place).first().expect("a full zone");
    place.run(&["emulate", "fault", &drive("drives", 1), "flip", &block(zone, 5)]).ok();
    place.run(&["emulate", "fault", &drive("drives", 2), "unreadable", &block(zone, 600)]).ok();
    let done = scrub(&place, &["start", "drives", "--wait"]);
    assert_eq!(done["state"], "complete", "{done}");
    check_schema(&done, "scrub.json");
    let (wrong, unreadable) = (&done["errors"]["wrong"], &done["errors"]["unreadable"]);
    assert_eq!((wrong, unreadable, &done["repaired_bytes"]), (&1.into(), &1.into(), &8192.into()), "{done}");
    assert_eq!(
        (&done["findings"][0]["role"], &done["findings"][0]["zone"]),
        (&1.into(), &zone.into()),
        "{done}"
    );
    assert!(done["scanned_bytes"].as_u64().unwrap() > 40 << 20, "{done}");
    let status = place.json(&["status", "drives"]);
    check_schema(&status, "status.json");
    assert_eq!((&status["state"], &status["may_be_lost"]), (&"healthy".into(), &1.into()), "{status}");
    assert_eq!(status["scrub"]["repaired_bytes"], 8192, "{status}");
    check_repaired(&status);
    assert!(is_right(&place, &data));
    let text = place.run(&["scrub", "status", "drives"]).ok().text();
    assert!(text.contains("member 1, 4 KiB at 20 KiB: wrong, repaired"), "{text}");
    assert!(place.run(&["status", "drives"]).ok().text().contains("  scrub: complete "));

    // The blocks are right after a restart, with the faults still there and without another drive.
    assert_eq!(server.end(Signal::TERM), Some(0));
    place.run(&["fail", "drives", "3"]).ok();
    let server = Server::of(&place, &[]);
    assert!(is_right(&place, &data));
    check_repaired(&place.json(&["status", "drives"]));
    let again = scrub(&place, &["start", "drives", "--wait", "--since-last"]);
    assert_eq!((&again["state"], &again["errors"]["wrong"]), (&"complete".into(), &0.into()), "{again}");
    assert!(again["scanned_bytes"].as_u64() < done["scanned_bytes"].as_u64(), "{again}");
    assert_eq!(again["history"].as_array().unwrap().len(), 2);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn scrub_is_paused_stopped_and_continues_after_restart() {
    let data = Random(32).bytes(40 << 20);
    let (place, server) = served(&data, "off");
    place.run(&["scrub", "pause", "drives"]).fails_with(&["no scrub of 'tank' is under way"]);
    let begun = scrub(&place, &["start", "drives", "--rate", "4M"]);
    assert_eq!(begun["state"], "running", "{begun}");
    assert_eq!(scrub(&place, &["pause", "drives"])["state"], "paused");
    let paused = scrub(&place, &["status", "drives"]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(scrub(&place, &["status", "drives"])["scanned_bytes"], paused["scanned_bytes"]);
    assert_eq!(scrub(&place, &["start", "drives"])["state"], "running");
    assert_eq!(server.end(Signal::TERM), Some(0));
    place.run(&["scrub", "status", "drives"]).fails_with(&["'drives' does not run", "zoneraid start drives"]);

    let server = Server::of(&place, &[]);
    let status = scrub(&place, &["status", "drives"]);
    assert_eq!(
        (&status["state"], &status["started_at"]),
        (&"running".into(), &begun["started_at"]),
        "{status}"
    );
    let stopped = scrub(&place, &["stop", "drives"]);
    assert_eq!((&stopped["state"], &stopped["history"][0]["state"]), (&"stopped".into(), &"stopped".into()));
    let all = scrub(&place, &["start", "--all"]);
    check_schema(&all, "scrub-all.json");
    assert_eq!(
        (all["arrays"].as_array().unwrap().len(), &all["arrays"][0]["array"]),
        (1, &"tank".into()),
        "{all}"
    );
    assert!(is_right(&place, &data));
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// Without checksums and with one parity it is not known which block is wrong: that is reported, and fails.
#[test]
fn scrub_reports_contradiction_that_it_cannot_repair() {
    let data = Random(33).bytes(40 << 20);
    let (place, server) = served(&data, "off");
    let zone = *full_zones(&place).first().expect("a full zone");
    place.run(&["emulate", "fault", &drive("drives", 1), "flip", &block(zone, 5)]).ok();
    let ran = place.run(&["scrub", "start", "drives", "--wait", "--json"]);
    let done: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        (ran.code, &done["errors"]["contradictions"], &done["unrecoverable_bytes"]),
        (1, &1.into(), &4096.into()),
        "{done}"
    );
    assert_eq!(
        (&done["findings"][0]["role"], &done["findings"][0]["kind"]),
        (&Value::Null, &"contradictory".into())
    );
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// What cannot be repaired is in the status, also after a restart, until it can be read again.
#[test]
fn unreadable_ranges_are_exact_after_restart() {
    let data = Random(34).bytes(40 << 20);
    let (place, server) = served(&data, "off");
    let zone = *full_zones(&place).first().expect("a full zone");
    for number in [1, 2] {
        place.run(&["emulate", "fault", &drive("drives", number), "unreadable", &block(zone, 5)]).ok();
    }
    let ran = place.run(&["scrub", "start", "drives", "--wait"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let range = |role: u32| {
        serde_json::json!({
            "role": role, "zone": zone, "offset_bytes": 20480, "length_bytes": 4096, "lost": true
        })
    };
    let (none, expected) = (Value::Array(Vec::new()), Value::Array(vec![range(1), range(2)]));
    let status = place.json(&["status", "drives"]);
    assert_eq!((&status["unreadable"], &status["may_be_lost"]), (&expected, &0.into()), "{status}");
    check_schema(&status, "status.json");
    // One of the two blocks may be parity.
    let lost = status["lost"].as_array().unwrap();
    assert!((1..=2).contains(&lost.len()), "{status}");
    assert!(lost.iter().all(|lost| lost["zone"] == zone && lost["bytes"] == 4096), "{status}");
    assert!(place.run(&["status", "drives"]).text().contains("   lost: 4 KiB at "), "{status}");
    assert_eq!(server.end(Signal::TERM), Some(0));
    let server = Server::of(&place, &[]);
    let mut status = place.json(&["status", "drives"]);
    for _ in 0..100 {
        if status["unreadable"] != none {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        status = place.json(&["status", "drives"]);
    }
    assert_eq!(status["unreadable"], expected, "{status}");
    place.run(&["emulate", "fault", &drive("drives", 1), "clear"]).ok();
    scrub(&place, &["start", "drives", "--wait"]);
    let status = place.json(&["status", "drives"]);
    assert_eq!((&status["unreadable"], &status["state"]), (&none, &"healthy".into()), "{status}");
    assert_eq!(status["lost"], none, "{status}");
    assert_eq!(status["members"][2]["repaired_bytes"], 4096, "{status}");
    assert_eq!(server.end(Signal::TERM), Some(0));
}

fn opened(path: &Path) -> Ssd {
    let image = ImageMedia::open(path).unwrap();
    Ssd::new(image.model().geometry.clone(), Box::new(image))
}

/// Changes `count` random written blocks of the data zones of a drive: a bit of data or metadata flips, a write is lost,
/// or has gone to another block. Returns the earlier contents of these blocks.
fn edit(path: &Path, random: &mut Random, count: usize) -> Vec<(Lba, Vec<u8>)> {
    let mut ssd = opened(path);
    let data = 2 * ZONE..6 * ZONE;
    let written: Vec<Lba> = data.map(Lba).filter(|lba| ssd.stored(*lba).unwrap().is_some()).collect();
    let mut draw = |below: usize| random.below(below as u64) as usize;
    let mut before = Vec::new();
    for _ in 0..count {
        let (lba, other) = (written[draw(written.len())], written[draw(written.len())]);
        let Some(bytes) = ssd.stored(lba).unwrap() else { continue };
        let changed = match draw(4) {
            0 => None,
            1 => ssd.stored(other).unwrap(),
            _ => {
                let (mut flipped, bit) = (bytes.clone(), draw(bytes.len().min(BLOCK + 20) * 8));
                flipped[bit / 8] ^= 1 << (bit % 8);
                Some(flipped)
            }
        };
        ssd.forge(lba, changed.as_deref()).unwrap();
        before.push((lba, bytes));
    }
    before
}

fn undo(path: &Path, before: Vec<(Lba, Vec<u8>)>) {
    let mut ssd = opened(path);
    for (lba, bytes) in before.into_iter().rev() {
        ssd.forge(lba, Some(&bytes)).unwrap();
    }
}

/// Thousands of silent changes of images: no read returns a wrong byte, and with changes on one drive none fails.
#[test]
fn edited_images_of_array_with_checksums_return_no_wrong_byte() {
    for (policy, model) in [("zrwa", "zn540"), ("inplace", "zn540"), ("log", "zn540"), ("log", "smr")] {
        let place = Place::new();
        let emulated = ["emulate", "create", "drives", "--count", "5", "--model", model];
        place.run(&[&emulated[..], &["--zones", "32", "--zone-capacity", "4M"]].concat()).ok();
        let members: Vec<String> = (0..5).map(|number| drive("drives", number)).collect();
        let create = ["create", "tank", "--checksums", "on", "--policy", policy];
        place.run(&create.into_iter().chain(members.iter().map(String::as_str)).collect::<Vec<_>>()).ok();
        let mut random = Random(41);
        // SMR disks have no metadata: a part of their zones holds checksums.
        let full = if model == "smr" { 63 << 18 } else { 16 << 20 };
        let data: Vec<Vec<u8>> = [9 << 20, full].map(|len| random.bytes(len)).into();
        for (zone, data) in data.iter().enumerate() {
            place.run_with(&["zone", "write", "drives", &zone.to_string()], data).ok();
        }
        let (mut edits, mut failed) = (0, 0);
        for round in 0..16 {
            let struck = if round < 10 { round % 5..round % 5 + 1 } else { 0..5 };
            if round == 13 {
                place.run(&["fail", "drives", "2"]).ok();
            }
            let paths: Vec<_> = struck.map(|number| place.path(&drive("drives", number))).collect();
            let before: Vec<_> = paths.iter().map(|path| edit(path, &mut random, 100)).collect();
            edits += before.iter().map(Vec::len).sum::<usize>();
            for (zone, data) in data.iter().enumerate() {
                let read = place.run(&["zone", "read", "drives", &zone.to_string()]);
                let is_right = read.stdout == data[..read.stdout.len().min(data.len())];
                assert!(is_right, "{policy}, {model}: round {round}, zone {zone}");
                assert!(
                    read.code == 0 || round >= 10,
                    "{policy}, {model}: round {round}, zone {zone}: {}",
                    read.stderr
                );
                failed += (read.code != 0) as u32;
            }
            paths.iter().zip(before).for_each(|(path, before)| undo(path, before));
        }
        assert!(edits > 3000 && failed > 0, "{policy}, {model}: {edits} edits, {failed} reads failed");
    }
}
