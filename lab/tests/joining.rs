//! Effects of joining writes on throughput, latency and flash writes, on five simulated ZN540 of 1 TB.

#![allow(clippy::unwrap_used)]

use lab::{
    figure::Row,
    system::System,
    test_bed::{Load, Setup, point},
};

fn row(system: System, zones: u32, request_kib: u64, depth: u32) -> Row {
    let load = Load { depth, ..Load::fio(zones, request_kib) };
    point(&Setup::zn540(system), &load).unwrap()
}

fn both(zones: u32, request_kib: u64, depth: u32) -> [Row; 2] {
    [System::Zraid, System::Zoneraid].map(|system| row(system, zones, request_kib, depth))
}

/// ZRAID's own limit for writes up to 64 KiB is 3,075 MB/s (§6.3): each has its partial parity, which costs the ZN540
/// bandwidth even if it is overwritten later.
#[test]
fn deep_queue_of_small_writes_reaches_full_stripes() {
    for request_kib in [4, 16, 64] {
        for zones in [1, 7, 12] {
            let [zraid, zoneraid] = both(zones, request_kib, 64);
            assert!(zraid.mb_s < 3075.0, "{zraid:?}");
            assert!(zoneraid.mb_s >= 1.4 * 3075.0, "{zoneraid:?}");
            assert!(zoneraid.written.all() <= 1.30, "{zoneraid:?}");
        }
    }
}

#[test]
fn single_write_latency_is_unchanged_by_joining() {
    for request_kib in [4, 64] {
        let [zraid, zoneraid] = both(4, request_kib, 1);
        let of = |row: &Row| (row.mb_s, row.p50_us, row.p99_us);
        assert_eq!(of(&zraid), of(&zoneraid));
    }
}

/// With few writes in flight, joining must not cost concurrency.
#[test]
fn shallow_queues_lose_no_throughput_by_joining() {
    for (zones, request_kib, depth) in
        [(1, 4, 2), (1, 16, 2), (1, 32, 2), (12, 4, 2), (1, 16, 4), (1, 8, 8), (12, 16, 8), (1, 4, 32)]
    {
        let [zraid, zoneraid] = both(zones, request_kib, depth);
        assert!(zoneraid.mb_s >= 0.985 * zraid.mb_s, "{zraid:?} {zoneraid:?}");
    }
}
