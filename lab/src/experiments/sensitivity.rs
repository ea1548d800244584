//! Sensitivity of the results to unpublished parameters.

use super::{Effort, Experiment, zebra::large};
use crate::{
    figure::{Figure, Plot, Table},
    host::Host,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};
use emu::timing::{Timing, ZrwaMedium};

pub const SENSITIVITY: Experiment = Experiment {
    name: "sensitivity",
    title: "How far the results move with parameters that are guesses",
    run: sensitivity,
};

const METHOD: &str = "Each guessed parameter is halved and doubled, everything else stays. The ratios are single \
points of the figures above, on the host with mq-deadline; a ratio that moves with a guess is worth as little as the guess. \
Active zones of the PM1731a (256 in eZNS, 384 in ZRAID) are no limit of any of them.";

/// A guessed parameter, and how to scale it.
type GuessedParameter = (&'static str, fn(&mut Setup, f64));

const GUESSES: [GuessedParameter; 7] = [
    ("write buffer", |setup, by| {
        setup.timing.write_buffer_kib = (setup.timing.write_buffer_kib as f64 * by) as u64;
    }),
    ("latency of a write to a ZRWA in memory", |setup, by| {
        if let ZrwaMedium::Dram { acknowledge_us } = &mut setup.timing.zrwa {
            *acknowledge_us *= by;
        }
    }),
    ("explicit ZRWA flush", |setup, by| {
        scale_flush(&mut setup.timing, by);
    }),
    ("RAIZN's queue", |setup, by| setup.section.sub_request_us *= by),
    ("a write to a ZRWA in the firmware", |setup, by| setup.timing.zrwa_write_factor *= by),
    ("dies of the ZN540, and their unit", |setup, by| {
        // More dies have smaller program units: bandwidth is unchanged.
        if setup.timing.drain_mb_s.is_some() {
            setup.timing.dies = (setup.timing.dies as f64 * by) as u32;
            setup.timing.program_blocks = (setup.timing.program_blocks as f64 / by) as u64;
        }
    }),
    ("a request's share of the lock of mq-deadline", |setup, by| {
        if let Some(lock) = &mut setup.host.lock {
            lock.request_us *= by;
        }
    }),
];

fn scale_flush(timing: &mut Timing, by: f64) {
    timing.zrwa_flush_firmware_us *= by;
    timing.zrwa_flush_acknowledge_us *= by;
}

/// A ratio of the claims: numerator, denominator, setup, zones and request size in KiB.
type Ratio = (&'static str, System, System, fn(System) -> Setup, u32, u64);

const RATIOS: [Ratio; 8] = [
    ("Fig. 7: ZRAID to RAIZN+, 8 KiB, 12 zones", System::Zraid, System::RaiznPlus, Setup::zn540, 12, 8),
    ("Fig. 7: ZRAID to RAIZN+, 64 KiB, 7 zones", System::Zraid, System::RaiznPlus, Setup::zn540, 7, 64),
    ("Fig. 7: ZRAID to RAIZN, 16 KiB, 12 zones", System::Zraid, System::Raizn, Setup::zn540, 12, 16),
    ("Fig. 8: Z+S+M to Z+S, 8 KiB, 12 zones", System::ZSM, System::ZS, Setup::zn540, 12, 8),
    ("Fig. 11: ZRAID to RAIZN+, 8 KiB, 15 zones", System::Zraid, System::RaiznPlus, Setup::pm1731a, 15, 8),
    ("Fig. 7: ZRAID to RAIZN+, 4 KiB, 1 zone", System::Zraid, System::RaiznPlus, Setup::zn540, 1, 4),
    ("Zebra to RAIZN, large zones, 8 KiB, 7 zones", System::Zebra, System::Raizn, large, 7, 8),
    ("zoneraid to ZRAID, 16 KiB, 7 zones", System::Zoneraid, System::Zraid, Setup::zn540, 7, 16),
];

fn sensitivity(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let ratios = if effort == Effort::Quick { &RATIOS[..1] } else { &RATIOS[..] };
    let changes: Vec<(GuessedParameter, f64)> =
        GUESSES.iter().flat_map(|guess| [0.5, 2.0].map(|by| (*guess, by))).collect();
    let mut points = Vec::new();
    for ratio in ratios {
        points.push((*ratio, None));
        points.extend(changes.iter().map(|change| (*ratio, Some(*change))));
    }
    let found = work::each(this.name, &points, |(ratio, change)| {
        let mb_s = |system| {
            let mut setup = ratio.3(system).on(&Host::mq_deadline());
            if let Some(((_, apply), by)) = change {
                apply(&mut setup, *by);
            }
            let load =
                if setup.partitioned { Load::long(ratio.4, ratio.5) } else { Load::fio(ratio.4, ratio.5) };
            anyhow::Ok(point(&setup, &Load { seeds: 1, ..load })?.mb_s)
        };
        Ok(mb_s(ratio.1)? / mb_s(ratio.2)?)
    })?;
    let mut header = vec!["ratio".to_string(), "0: as it is".into()];
    header.extend((1..).zip(&changes).map(|(at, ((name, _), by))| format!("{at}: {name} × {by}")));
    let mut table = Table { header, ..Table::default() };
    for (ratio, values) in ratios.iter().zip(found.chunks(changes.len() + 1)) {
        let mut cells = vec![ratio.0.to_string()];
        cells.extend(values.iter().map(|value| format!("{value:.3}")));
        table.rows.push(cells);
    }
    let mut figure = this.figure(METHOD);
    let places: Vec<String> = (0..=changes.len()).map(|at| at.to_string()).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let lines = ratios
        .iter()
        .zip(found.chunks(changes.len() + 1))
        .map(|(ratio, values)| (ratio.0.to_string(), values.to_vec()))
        .collect();
    let plot = Plot::named("Ratios as each guess is halved and doubled", "×", &places, lines);
    figure.plots.push(Plot { x: "column of the table".into(), ..plot });
    figure.tables.push(table);
    Ok(figure)
}
