//! Golden test of the JSON output: each command prints exactly the fields of its schema in `schemas/`, with values of
//! the types that the schema gives.

use crate::support::{Place, Ran, drive};
use engine::{
    qos::{Qos, Rates},
    vzone::{NamespaceStatus, Spec},
};
use host::report::{Division, NamespaceReport};
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path};

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("schemas").join(name);
    serde_json::from_str(&fs::read_to_string(&path).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Checks `value` against the part of JSON Schema that the schemas use; fields must match exactly.
fn check(value: &Value, schema: &Value, at: &str) {
    if let Some(constant) = schema.get("const") {
        assert_eq!(value, constant, "{at}");
    }
    if let Some(options) = schema.get("enum") {
        assert!(options.as_array().unwrap().contains(value), "{at}: {value} is none of {options}");
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(
        types.iter().any(|t| t == found || t == "number" && found == "integer"),
        "{at}: {value}, not {types:?}"
    );
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64()) {
        assert!(number >= least, "{at}: {value}, below {least}");
    }
    if let Value::Array(items) = value {
        items.iter().enumerate().for_each(|(n, item)| check(item, &schema["items"], &format!("{at}[{n}]")));
    }
    if let Value::Object(fields) = value {
        let properties = schema["properties"].as_object().unwrap();
        let (have, want): (BTreeSet<_>, BTreeSet<_>) = (fields.keys().collect(), properties.keys().collect());
        assert_eq!(have, want, "{at}");
        fields.iter().for_each(|(name, field)| check(field, &properties[name], &format!("{at}.{name}")));
    }
}

/// Checks that a value has exactly the fields of a schema.
pub fn check_schema(value: &Value, name: &str) {
    check(value, &schema(name), name);
}

#[test]
fn json_output_of_commands_matches_schemas() {
    let place = Place::new();
    let prints = |name: &str, args: &[&str]| {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        check(&place.run_with(&args, b"some data").json(), &schema(name), name);
    };
    let drives: Vec<String> = (0..7).map(|n| drive("d", n)).collect();
    prints(
        "emulate-create.json",
        &["emulate", "create", "d", "--count", "7", "--zones", "16", "--zone-capacity", "8M"],
    );
    let mut create = vec!["create", "tank"];
    create.extend(drives[..5].iter().map(String::as_str));
    for fault in [
        &["flip", "3"][..],
        &["drop", "4"],
        &["misdirect", "4", "5"],
        &["stale", "6"],
        &["offline", "3"],
        &["read-only", "2"],
        &["unreadable", "3"],
        &["slow", "2"],
    ] {
        prints("emulate-fault.json", &[&["emulate", "fault", &drives[6]], fault].concat());
    }
    prints("emulate-fault.json", &["emulate", "fault", &drives[6], "gone"]);
    prints("emulate-fault.json", &["emulate", "fault", &drives[6], "clear"]);
    prints("create.json", &[&create[..], &["--dry-run"]].concat());
    prints("create.json", &create);
    prints("status.json", &["status", "d"]);
    prints("examine.json", &["examine", &drives[0]]);
    prints("examine-export.json", &["examine", "--export", &drives[0]]);
    prints("examine-export.json", &["examine", "--export", "/dev/null"]);
    prints("examine.json", &["examine", &drives[6]]);
    prints("list.json", &["list", "d"]);
    fs::create_dir(place.path("elsewhere")).unwrap();
    prints("list.json", &["list", "elsewhere"]);
    for directory in ["d", "elsewhere"] {
        let all = place.command(&["status", "--json"]).current_dir(place.path(directory)).output().unwrap();
        check(&serde_json::from_slice(&all.stdout).unwrap(), &schema("status-all.json"), "status-all.json");
    }
    prints("zone-write.json", &["zone", "write", "d", "0", "--fua"]);
    prints("zone-report.json", &["zone", "report", "d"]);
    prints("zone-report.json", &["zone", "report", "d", "0"]);
    prints("zone-manage.json", &["zone", "open", "d", "1"]);
    prints("zone-manage.json", &["zone", "finish", "d", "0"]);
    prints("zone-manage.json", &["zone", "reset", "d", "0"]);
    prints("namespace-change.json", &["namespace", "create", "d/mail", "--size", "1M"]);
    prints("zone-report.json", &["zone", "report", "d/mail"]);
    prints("namespace-change.json", &["namespace", "resize", "d/mail", "--size", "40M"]);
    prints("namespace-list.json", &["namespace", "list", "d"]);
    prints("namespace-remove.json", &["namespace", "remove", "--yes", "d/mail"]);
    prints("fail.json", &["fail", "d", "1"]);
    prints("status.json", &["status", "d"]);
    prints("rebuild.json", &["replace", "d", "1", &drives[5]]);
    prints("rebuild.json", &["rebuild", "d"]);
    prints("rename.json", &["rename", "d", "pool"]);
    prints("adopt.json", &["adopt", "d"]);
    prints("autostart.json", &["autostart", "d", "no"]);
    prints("error-limit.json", &["error-limit", "d", "20"]);
    prints("examine.json", &["examine", &drives[0]]);
    prints("wipe.json", &["wipe", "--yes", &drives[1], &drives[6]]);
    place.remove(&drives[0]);
    prints("status.json", &["status", "d"]);
    prints("list.json", &["list", "d"]);
    place.remove(&drives[2]);
    prints("status.json", &["status", "d"]);
    prints("destroy.json", &["destroy", "--yes", "d"]);
    prints("list.json", &["list", "d"]);
}

/// Fields of namespaces that only a daemon with block devices reports.
#[test]
fn status_json_of_namespaces_matches_schema() {
    let place = Place::with_array(5);
    let (limits, floors) = (Rates { requests: 0, blocks: 256 }, Rates { requests: 9, blocks: 0 });
    let (name, qos) = ("mail".into(), Qos { limits, floors, latency_us: 700 });
    let namespace = NamespaceStatus {
        spec: Spec { name, zones: 4, max_active: 4, max_open: 4, essential: 1, weight: 1, qos },
        active: 2,
        own_spares: 3,
        spares: 5,
        widths: vec![1, 2],
        written_blocks: 7,
        read_blocks: 3,
        read_window_blocks: Some(32),
        tokens: -2,
        held_to: Some(2),
        out_of_reach: [true, false],
    };
    let report = NamespaceReport::of(&namespace, 100);
    assert_eq!((report.limits.requests_per_second, report.limits.bytes_per_second), (None, Some(1 << 20)));
    assert_eq!((report.borrowed_spares, report.essential, report.written_bytes), (2, 4, 7 * 4096));
    let scheduled = (report.read_bytes_in_flight, report.read_window_bytes, report.token_bytes);
    assert_eq!(scheduled, (3 << 12, Some(32 << 12), -8192));
    assert_eq!((report.floors.requests_per_second, report.floors.bytes_per_second), (Some(9), None));
    assert_eq!((report.latency_us, report.held_to_bytes_per_second), (Some(700), Some(8192)));
    assert_eq!((report.floors_out_of_reach, report.latency_out_of_reach), (true, false));
    let mut status = place.json(&["status", "drives"]);
    assert_eq!(status["namespaces"], Value::Null);
    status["namespaces"] = serde_json::to_value(Division::of(10, 409_600, vec![report])).unwrap();
    assert_eq!(status["namespaces"]["free_zones"], 6);
    check(&status, &schema("status.json"), "status.json");
}

#[test]
fn status_schema_covers_all_events_and_namespace_volumes() {
    let source = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/report/events.rs")).unwrap();
    let kinds = source.split_once("fn kind(event").unwrap().1.split_once("\n}\n").unwrap().0;
    let kinds: BTreeSet<&str> = kinds.split('"').skip(1).step_by(2).collect();
    let schema = &schema("status.json")["properties"];
    let known = schema["events"]["items"]["properties"]["event"]["enum"].as_array().unwrap();
    assert_eq!(kinds, known.iter().map(|kind| kind.as_str().unwrap()).collect());
    let namespace = &schema["namespaces"]["properties"]["list"]["items"]["properties"];
    assert_eq!(namespace["volume"]["properties"], schema["volume"]["properties"]);
}

#[test]
fn json_errors_are_objects_on_standard_error() {
    let place = Place::new();
    for args in [&["status", "nothing", "--json"][..], &["--json", "rebuild"][..], &["bogus", "--json"][..]] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.stdout.len()), (4, 0));
        let error: Value = serde_json::from_str(&ran.stderr).unwrap();
        assert_eq!(error["output_version"], 1);
        assert!(!error["error"].as_str().unwrap().is_empty());
        let known = schema("error.json");
        assert!(error.as_object().unwrap().keys().all(|key| known["properties"].get(key).is_some()));
    }
}

#[test]
fn demo_loses_nothing_and_output_matches_schema() {
    let place = Place::new();
    fs::create_dir_all(place.path("tree/empty")).unwrap();
    for n in 0..20 {
        fs::write(place.path(&format!("tree/file {n}")), vec![n as u8; n * 30_000]).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", place.path("tree/link")).unwrap();
    for seed in ["1", "2", "3"] {
        let demo = place.run(&["demo", "tree", "--seed", seed, "--json"]).ok().json();
        check(&demo, &schema("demo.json"), "demo.json");
        assert_eq!(demo["lost_bytes"], 0);
        assert_eq!(demo["verified_bytes"], demo["input_bytes"]);
        assert_eq!(demo["acknowledged_bytes"], demo["input_bytes"]);
        assert_eq!(demo["entries_same"], 22);
        assert!(demo["recovered_at_cut_bytes"].as_u64() >= demo["acknowledged_at_cut_bytes"].as_u64());
        assert!(demo["commands_in_flight"].as_u64() > Some(0));
        assert_eq!(demo["power_cuts"], 3);
        let cuts = demo["cuts"].as_array().unwrap();
        assert_eq!(cuts.len(), 2);
        assert!(cuts.iter().all(|cut| cut["recovered_bytes"].as_u64() >= cut["acknowledged_bytes"].as_u64()));
        assert!(cuts.iter().all(|cut| cut["commands_in_flight"].as_u64() > Some(0)));
    }
    fs::create_dir(place.path("nothing")).unwrap();
    place.run(&["demo", "nothing"]).ok();
    place.run(&["demo", "missing"]).fails_with(&["missing"]);
}

#[test]
fn bench_host_output_matches_schema() {
    let place = Place::new();
    let ran = place.run(&["bench", "host", "--rounds", "1", "--json"]);
    if host::reactor::ring::Ring::new().is_err() {
        ran.fails_with(&["io_uring"]);
        return;
    }
    let bench = ran.ok().json();
    check(&bench, &schema("bench-host.json"), "bench-host.json");
    assert!(bench["sub_request_us"].as_f64() > Some(0.0), "{bench}");
    assert_eq!(bench["points"].as_array().map(Vec::len), Some(18));
}

#[test]
fn bench_checksums_output_matches_schema() {
    let place = Place::new();
    if host::reactor::ring::Ring::new().is_err() {
        return;
    }
    let bench = place.run(&["bench", "checksums", "--rounds", "1", "--json"]).ok().json();
    check(&bench, &schema("bench-checksums.json"), "bench-checksums.json");
    assert_eq!(bench["engine"].as_array().map(Vec::len), Some(4));
}

/// With an empty `$PATH` no server is installed, so that the row of each says how to install it.
#[test]
fn bench_peers_output_matches_schema() {
    let place = Place::new();
    let bench = place
        .command(&["bench", "--peers", "--rounds", "1", "--json"])
        .env("PATH", "/nowhere")
        .output()
        .map(Ran::new)
        .unwrap()
        .ok()
        .json();
    check(&bench, &schema("bench-peers.json"), "bench-peers.json");
    let installs: Vec<_> =
        bench["servers"].as_array().unwrap().iter().map(|row| row["install"].as_str()).collect();
    let all = ["fio", "fio nbdkit", "fio qemu-utils"].map(|packages| format!("apt-get install {packages}"));
    assert_eq!(installs, all.each_ref().map(|install| Some(install.as_str())));
    place.run(&["bench", "--peers", "--volume"]).fails_with(&["--peers"]);
    let bench = place.run(&["bench", "--peers", "--rounds", "1", "--json"]).ok().json();
    check(&bench, &schema("bench-peers.json"), "bench-peers.json");
    for row in bench["servers"].as_array().unwrap() {
        assert_eq!(row["install"].is_null(), row["read_1m_cpu_ns"].is_number(), "{row}");
        assert_eq!(row["install"].is_null(), row["write_4k_ns"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn json_output_of_pool_commands_matches_schemas() {
    let place = Place::new();
    place.run(&["emulate", "create", "d", "--count", "4", "--zones", "32", "--zone-capacity", "8M"]).ok();
    place.create("tank", "d", 4).ok();
    let prints = |name: &str, args: &[&str]| check(&place.json(args), &schema(name), name);
    prints("volume-create-in-pool.json", &["volume", "create", "d/mail", "--size", "1G"]);
    prints("volume-list.json", &["volume", "list", "d"]);
    prints("volume-set.json", &["volume", "set", "d/mail", "--compression", "lz4"]);
    prints("volume-resize.json", &["volume", "resize", "d/mail", "--size", "2G"]);
    prints("volume-snapshot.json", &["volume", "snapshot", "d/mail@monday"]);
    prints("volume-diff.json", &["volume", "diff", "d/mail@monday"]);
    prints("volume-create-in-pool.json", &["volume", "clone", "d/mail@monday", "old"]);
    prints("volume-list.json", &["volume", "list", "d"]);
    prints("volume-remove.json", &["volume", "remove", "d/old", "--yes"]);
    prints("volume-rollback.json", &["volume", "rollback", "d/mail@monday", "--yes"]);
    prints("volume-remove.json", &["volume", "remove", "d/mail@monday", "--yes"]);
    prints("volume-rename.json", &["volume", "rename", "d/mail", "post"]);
    prints("volume-remove.json", &["volume", "remove", "d/post", "--yes"]);
}

#[test]
fn bench_output_matches_schemas() {
    let place = Place::new();
    let bench = |level: &str| {
        let bench = place.run(&["bench", "--rounds", "1", "--json", "--level", level]).ok().json();
        check(&bench, &schema("bench.json"), "bench.json");
        assert_eq!(bench["level"], level);
        assert!(bench["write_4k_ns"].as_f64() > Some(0.0));
        bench
    };
    let (raid5, raid6) = (bench("raid5"), bench("raid6"));
    assert_eq!((&raid5["members"], &raid5["stripe_write_to_pq_ratio"]), (&5.into(), &Value::Null));
    assert_eq!((&raid6["members"], &raid6["pq_chunks"]), (&6.into(), &4.into()));
    let number = |name: &str| raid6[name].as_f64().unwrap();
    assert!(number("pq_gb_s") > 0.0);
    let ratio = number("stripe_write_gb_s") / number("pq_gb_s");
    assert!((number("stripe_write_to_pq_ratio") / ratio - 1.0).abs() < 1e-9);
    assert!(number("write_4k_cpu_ns") > 0.0 && number("read_4k_cpu_ns") > 0.0);
    assert!(raid6["processor"].as_str().is_some_and(|model| !model.is_empty()));
    // ISA-L is measured with both sizes of chunks or, if it is not installed, with none.
    assert_eq!(raid6["pq_isal_gb_s"].is_null(), raid6["pq_4k_isal_gb_s"].is_null());
    let text = place.run(&["bench", "--rounds", "1", "--level", "raid6"]).ok().text();
    assert!(text.starts_with("RAID-6 4+2, 64 KiB chunks"), "{text}");
    assert!(text.contains("P and Q of 4 chunks of 64 KiB"), "{text}");
    let namespaces = place.run(&["bench", "--namespaces", "--rounds", "1", "--json"]).ok().json();
    check(&namespaces, &schema("bench-namespaces.json"), "bench-namespaces.json");
    assert_eq!(namespaces["write_4k_allocations"].as_f64().map(|each| each < 0.01), Some(true));
    assert_eq!(namespaces["read_4k_allocations"].as_f64().map(|each| each < 0.01), Some(true));
    let volume = place.run(&["bench", "--volume", "--rounds", "1", "--json"]).ok().json();
    check(&volume, &schema("bench-volume.json"), "bench-volume.json");
    assert!(
        volume["write_4k_random_ns"].as_f64() > Some(0.0)
            && volume["write_amplification"].as_f64() > Some(1.0)
    );
    assert_eq!(volume["pools"][1]["volumes"], 100);
}

#[test]
fn bench_rows_are_measured_one_by_one() {
    let place = Place::new();
    let bench =
        |args: &[&str]| place.run(&[&["bench", "--rounds", "1", "--json"], args].concat()).ok().json();
    let one = bench(&["--row", "pq_4k"]);
    check(&one, &schema("bench.json"), "bench.json");
    assert!(one["pq_4k_gb_s"].as_f64() > Some(0.0), "{one}");
    for other in ["write_4k_ns", "stripe_write_gb_s", "xor_gb_s", "pq_gb_s", "stripe_write_to_xor_ratio"] {
        assert!(one[other].is_null(), "{one}");
    }
    let two = bench(&["--row", "stripe_write", "--row", "xor"]);
    let ratio = two["stripe_write_gb_s"].as_f64().unwrap() / two["xor_gb_s"].as_f64().unwrap();
    assert!((two["stripe_write_to_xor_ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9, "{two}");
    let pools = bench(&["--volume", "--volumes", "3", "--row", "pools"]);
    check(&pools, &schema("bench-volume.json"), "bench-volume.json");
    let volumes = |at: usize| &pools["pools"][at]["volumes"];
    assert_eq!((volumes(0), volumes(1)), (&1.into(), &3.into()));
    assert!(pools["pools"][1]["read_4k_random_cpu_ns"].as_f64() > Some(0.0), "{pools}");
    assert_eq!(pools["units"].as_array().map(Vec::len), Some(0));
    place.run(&["bench", "--row", "pools"]).fails_with(&["no row pools here", "stripe_write_copy"]);
    place.run(&["bench", "host", "--row", "xor"]).fails_with(&["--row"]);
    place.run(&["bench", "--volumes", "3"]).fails_with(&["--volume"]);
}
