//! Workloads of db_bench on namespaces of one drive (eZNS Fig. 30 to 33), with the model of RocksDB that YCSB uses.

use super::{
    Effort, Experiment,
    ycsb::{THREADS, YcsbCase, Zoning, operations, rows},
};
use crate::{
    apps::ycsb::Workload,
    figure::{Claim, ClaimKind, Figure, Operations, Row},
};

pub const DB_BENCH: Experiment = Experiment {
    name: "db-bench",
    title: "db_bench on namespaces, by a stand-in (eZNS Fig. 30 to 33)",
    run: db_bench,
};

const METHOD: &str = "The stand-in for RocksDB of `ycsb`, all sizes a 32nd, with loads of db_bench: keys are uniform, eight \
clients overwrite, or read, or one of the eight writes. Fig. 30: one namespace of 32 essential and 32 spare zones has the \
drive for itself (local overdrive), or beside three that are idle and lend theirs (global), against static zones four \
wide. Fig. 31: one namespace of 128 and 128, against static zones 16 wide, 4 or 16 KiB in turn. Fig. 32, 33: four \
namespaces, of which two overwrite and two read. Guesses as in `ycsb`. \
Writers begin with so many files in the first level that RocksDB slows them down. They are slowed down and stopped in waves, so that \
halves of a window differ by up to a third.";

const WRITES: &str = "Puts wait for compactions, of which there is one at a time: it reads 128 KiB, and writes 1 MiB, \
which the drive's cache takes at once as long as it is not full, wherever that goes.";

const READS: &str = "A get waits for a die that programs, for up to 780 µs that the model never interrupts, on v-zones as \
on static ones. Beside writers it is more often: on v-zones these write a quarter more in all, compactions included.";

const BOTH: &[Workload] =
    &[Workload::Overwrite, Workload::Overwrite, Workload::ReadRandom, Workload::ReadRandom];

/// The ratio of the sums of a value over two sets of rows.
fn ratio(of: &[Row], over: &[Row], value: fn(&Operations) -> f64) -> f64 {
    let sum = |rows: &[Row]| rows.iter().filter_map(|row| row.operations.as_ref()).map(value).sum::<f64>();
    sum(of) / sum(over)
}

fn speed(found: &Operations) -> f64 {
    found.operations_s
}

fn late(found: &Operations) -> f64 {
    found.p99_9_us
}

fn latest(found: &Operations) -> f64 {
    found.p99_99_us
}

fn db_bench(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let second_ms = if effort == Effort::Quick { 20 } else { 1000 };
    let case = |workloads, namespaces, zoning, (warm_s, s): (u64, u64)| YcsbCase {
        workloads,
        namespaces,
        zoning,
        threads: THREADS,
        filters: false,
        warm_ms: warm_s * second_ms,
        ms: s * second_ms,
    };
    let (alone, mixed) = (&[Workload::Overwrite], &[Workload::ReadWhileWriting]);
    let cases = [
        case(alone, 1, Zoning::STATIC, (4, 12)),
        case(alone, 1, Zoning::ELASTIC, (4, 12)),
        case(alone, 4, Zoning::ELASTIC, (4, 12)),
        case(mixed, 1, Zoning::Static(16, 1), (4, 12)),
        case(mixed, 1, Zoning::Static(16, 4), (4, 12)),
        case(mixed, 1, Zoning::Elastic(8), (4, 12)),
        case(BOTH, 4, Zoning::STATIC, (2, 4)),
        case(BOTH, 4, Zoning::ELASTIC, (2, 4)),
    ];
    let found = rows(this.name, &cases, 1)?;
    let [fixed, local, global, fine, coarse, wide, four, elastic_four] = found.as_slice() else {
        anyhow::bail!("a case has no rows");
    };
    let ((puts, gets), (elastic_puts, elastic_gets)) = (four.split_at(2), elastic_four.split_at(2));
    let claims: [(&str, f64, f64, &str); 10] = [
        ("30: overwrite, local overdrive to static", 1.461, ratio(local, fixed, speed), WRITES),
        ("30: overwrite, global overdrive to static", 1.845, ratio(global, fixed, speed), WRITES),
        ("31: p99.9 of reads, v-zone to static of 16 KiB", 0.713, ratio(wide, coarse, late), READS),
        ("31: p99.99 of reads, v-zone to static of 4 KiB", 0.887, ratio(wide, fine, latest), READS),
        ("31: throughput, v-zone to static of 4 KiB", 1.115, ratio(wide, fine, speed), READS),
        ("31: throughput, v-zone to static of 16 KiB", 1.025, ratio(wide, coarse, speed), READS),
        ("32: p99.9 of reads, v-zones to static", 0.289, ratio(elastic_gets, gets, late), READS),
        ("32: p99.99 of reads, v-zones to static", 0.795, ratio(elastic_gets, gets, latest), READS),
        ("33: writes, v-zones to static", 1.075, ratio(elastic_puts, puts, speed), WRITES),
        ("33: reads, v-zones to static", 1.177, ratio(elastic_gets, gets, speed), READS),
    ];
    let mut figure = this.figure(METHOD);
    let claim = |(what, paper, ours, why): (&str, f64, f64, &str)| {
        Claim::factor(format!("Fig. {what}"), paper, ours, why).is(ClaimKind::Guess)
    };
    figure.claims = claims.map(claim).into();
    figure.rows = found.concat();
    figure.tables.push(operations("Operations, and latencies of reads", &figure.rows));
    Ok(figure)
}
