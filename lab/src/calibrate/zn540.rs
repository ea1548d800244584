//! Western Digital ZN540 of 1 TB and of 4 TB.

use super::{Bench, CalibrationRow, CalibrationTable, mean, measure};
use crate::load::{Job, RequestKind, Window};
use anyhow::Result;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice, Zones},
    zone::{Lba, ZoneIndex},
};

const ZAPRAID: &str = "ZapRAID Fig. 1";
const STONET: &str = "StoNet NVMeBenchmarks";
const ZRAID: &str = "ZRAID §6";

pub(super) fn rows() -> Result<Vec<CalibrationRow>> {
    let mut table = CalibrationTable { drive: "zn540-4tb", source: ZAPRAID, unit: "MiB/s", rows: Vec::new() };
    writes_and_appends(&mut table)?;
    reads(&mut table)?;
    latencies(&mut table)?;
    management(&mut table)?;
    reads_beside_writes(&mut table)?;
    Ok(table.rows)
}

fn writes_and_appends(table: &mut CalibrationTable) -> Result<()> {
    let window = Window::ms(50, 350);
    for (kind, zones, kib, depth, published) in [
        (RequestKind::Write, 1, 4, 1, 337.6),
        (RequestKind::Write, 1, 8, 1, 613.6),
        (RequestKind::Write, 1, 16, 1, 1050.0),
        (RequestKind::Write, 6, 4, 1, 777.2),
        (RequestKind::Append, 1, 4, 4, 541.5),
        (RequestKind::Append, 1, 8, 4, 1026.7),
        (RequestKind::Append, 1, 16, 4, 1050.1),
        (RequestKind::Append, 2, 4, 4, 577.5),
    ] {
        let predicted = measure(table.drive, kind, zones, kib, depth, window)?.mib_s();
        table.row(describe(kind, zones, kib, depth), predicted, published);
    }
    (table.drive, table.source) = ("zn540", STONET);
    for (kind, zones, kib, depth, published) in [
        (RequestKind::Write, 1, 4, 1, 332.6),
        (RequestKind::Write, 1, 8, 1, 667.3),
        (RequestKind::Write, 1, 16, 1, 928.0),
        (RequestKind::Write, 1, 32, 1, 1145.0),
        (RequestKind::Write, 1, 64, 1, 1143.0),
        (RequestKind::Write, 2, 4, 1, 553.0),
        (RequestKind::Write, 4, 4, 1, 704.0),
        (RequestKind::Write, 8, 4, 1, 726.0),
        (RequestKind::Write, 14, 4, 1, 712.0),
        (RequestKind::Append, 1, 4, 1, 256.6),
        (RequestKind::Append, 1, 4, 2, 436.0),
        (RequestKind::Append, 1, 4, 4, 516.0),
        (RequestKind::Append, 2, 4, 4, 559.0),
        (RequestKind::Append, 4, 4, 4, 512.0),
        (RequestKind::Append, 14, 4, 4, 520.0),
    ] {
        let predicted = measure(table.drive, kind, zones, kib, depth, window)?.mib_s();
        let row = table.row(describe(kind, zones, kib, depth), predicted, published);
        match (kind, zones, kib) {
            (RequestKind::Write, 1, 8 | 16) => row.missed(
                15.0,
                "published 8 KiB writes take as long as 4 KiB ones and 16 KiB ones longer than a straight line",
            ),
            (RequestKind::Append, 4 | 14, _) => {
                row.missed(15.0, "published appends get slower with more zones; the firmware of the model does not")
            }
            _ => (),
        }
    }
    (table.unit, table.source) = ("MB/s", ZRAID);
    let predicted = measure(table.drive, RequestKind::Write, 14, 64, 1, window)?.mb_s();
    table.row("most writes of the drive", predicted, 1230.0);
    (table.unit, table.source) = ("×", "ZRAID §6.5");
    let zone = measure(table.drive, RequestKind::Write, 1, 64, 1, window)?.mb_s();
    let zrwa = measure(table.drive, RequestKind::Overwrite, 1, 64, 1, window)?.mb_s();
    table.row("64 KiB overwrites in the ZRWA against writes to a zone", zrwa / zone, 1.0);
    Ok(())
}

fn reads(table: &mut CalibrationTable) -> Result<()> {
    (table.unit, table.source) = ("MiB/s", STONET);
    let window = Window::ms(2, 102);
    for (kib, depth, published) in [
        (4, 1, 53.5),
        (4, 8, 385.0),
        (4, 32, 1071.0),
        (4, 128, 1658.0),
        (4, 256, 1709.0),
        (8, 256, 2315.0),
        (16, 256, 2507.0),
    ] {
        let predicted = measure(table.drive, RequestKind::Read, 1, kib, depth, window)?.mib_s();
        table.row(describe(RequestKind::Read, 1, kib, depth), predicted, published);
    }
    table.unit = "µs";
    for (kib, published) in [(4, 72.6), (8, 84.1), (16, 101.6)] {
        let predicted = measure(table.drive, RequestKind::Read, 1, kib, 1, window)?.mean_us();
        table.row(format!("{kib} KiB read"), predicted, published);
    }
    Ok(())
}

fn latencies(table: &mut CalibrationTable) -> Result<()> {
    let window = Window::ms(1, 101);
    for (kind, name, published, first) in
        [(RequestKind::Write, "write", 11.6, 13.6), (RequestKind::Append, "append", 14.7, 17.5)]
    {
        let predicted = measure(table.drive, kind, 1, 4, 1, window)?.mean_us();
        table.row(format!("4 KiB {name}"), predicted, published);
        let bench = Bench::new(table.drive)?;
        let predicted = mean(800, |zone| {
            let zone = ZoneIndex(zone);
            let data = Buf::zeroed(BLOCK);
            let took = bench.time(match kind {
                RequestKind::Append => Command::append(zone, data, false),
                _ => Command::write(bench.drive.geometry().start(zone), data, false),
            })?;
            bench.time(Command::Reset { zones: Zones::One(zone) })?;
            Ok(took)
        })?;
        table.row(format!("first {name} to an empty zone"), predicted, first);
    }
    Ok(())
}

fn management(table: &mut CalibrationTable) -> Result<()> {
    let zones = Zones::One(ZoneIndex(0));
    let bench = Bench::new(table.drive)?;
    let mut close_us = 0.0;
    let open_us = mean(800, |_| {
        let open = bench.time(Command::Open { zones, zrwa: false })?;
        close_us += bench.time(Command::Close { zones })? / 800.0;
        Ok(open)
    })?;
    table.row("open", open_us, 9.6);
    table.row("close", close_us, 11.0);

    table.source = ZRAID;
    let bench = Bench::new(table.drive)?;
    bench.time(Command::Open { zones, zrwa: true })?;
    let flush_us = mean(1000, |n| bench.time(Command::FlushZrwa { last: Lba((n as u64 + 1) * 8 - 1) }))?;
    table.row("explicit ZRWA flush, 32 KiB", flush_us, 6.8);

    table.source = STONET;
    let bench = Bench::new(table.drive)?;
    let finish_us = mean(800, |zone| bench.time(Command::Finish { zones: Zones::One(ZoneIndex(zone)) }))?;
    table.row("finish, empty", finish_us, 13.5);
    table.unit = "ms";
    let capacity = bench.drive.geometry().zone_capacity_blocks;
    for (occupied, blocks, published) in [
        ("1 block", 1, 907.0),
        ("25 %", capacity / 4, 681.0),
        ("50 %", capacity / 2, 457.0),
        ("all but a block", capacity - 1, 2.6),
    ] {
        let bench = Bench::new(table.drive)?;
        bench.prefill(ZoneIndex(0), blocks)?;
        let predicted = bench.time(Command::Finish { zones })? / 1e3;
        table.row(format!("finish, {occupied} written"), predicted, published);
    }
    for (sixteenths, published) in [(0, 1.6), (1, 5.2), (4, 7.9), (8, 11.3), (16, 15.8)] {
        let bench = Bench::new(table.drive)?;
        bench.time(Command::Open { zones, zrwa: false })?;
        bench.prefill(ZoneIndex(0), capacity * sixteenths / 16)?;
        let predicted = bench.time(Command::Reset { zones })? / 1e3;
        table.row(format!("reset, {} % written", sixteenths as f64 * 6.25), predicted, published);
    }
    for (occupied, blocks, published) in [("nothing", 0, 1.58), ("all", capacity - 1, 15.4)] {
        let bench = Bench::new(table.drive)?;
        bench.prefill(ZoneIndex(0), blocks)?;
        bench.time(Command::Finish { zones })?;
        let predicted = bench.time(Command::Reset { zones })? / 1e3;
        table.row(format!("reset, finished with {occupied} written"), predicted, published);
    }
    Ok(())
}

fn reads_beside_writes(table: &mut CalibrationTable) -> Result<()> {
    table.unit = "µs";
    let bench = Bench::new(table.drive)?;
    // 128 KiB every 125 µs are 1,000 MiB/s.
    let writes = Job { period_ns: 125_000, ..Job::new(RequestKind::Write, 0, 128, 1) };
    let reads = Job::new(RequestKind::Read, 1, 4, 1);
    let measured = bench.run(&[writes, reads], Window::ms(20, 1020))?;
    for (share, published) in [(0.95, 224.0), (0.99, 432.0)] {
        let item = format!("4 KiB read beside 1,000 MiB/s of writes, p{:.0}", share * 100.0);
        table.row(item, measured[1].quantile_us(share), published);
    }
    Ok(())
}

fn describe(kind: RequestKind, zones: u32, kib: u64, depth: u32) -> String {
    let (what, zones) = match (kind, zones) {
        (RequestKind::Read, _) => ("random reads", String::new()),
        (RequestKind::Append, 1) => ("appends", " to one zone".to_string()),
        (RequestKind::Append, n) => ("appends", format!(" to {n} zones")),
        (_, 1) => ("writes", " to one zone".to_string()),
        (_, n) => ("writes", format!(" to {n} zones")),
    };
    format!("{kib} KiB {what}{zones}, QD{depth}")
}
