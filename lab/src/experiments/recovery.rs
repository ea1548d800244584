//! Time of assembly after a power cut, by the fill level of the logs.

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Table},
    stream::Stream,
    system::System,
    test_bed::{Setup, TestBed},
    work,
};
use emu::{ssd::Model, timing::Timing};

pub const RECOVERY: Experiment = Experiment {
    name: "recovery",
    title: "Recovery after a power cut over the fill of logs (Zebra's evaluation)",
    run: recovery,
};

const METHOD: &str = "Four ZN540 of 4 TB, (3 + 1): four zones, each written so far in requests of 8 KiB, then a power cut; \
the time is from the first command of assembly to the last, on a host that costs nothing. RAIZN reads its logs, so that \
its time grows with them; how full they were is not published. 'Log' is what a member's log holds of a zone's capacity. \
Every policy begins new metadata logs at assembly.";

const SYSTEMS: [System; 3] = [System::RaiznPlus, System::Zebra, System::Zoneraid];

fn setup(system: System) -> Setup {
    let (model, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    let model = model.scaled(64, Model::zn540_4tb().geometry.zone_capacity_blocks);
    Setup { model, timing, members: 4, stores: true, ..Setup::zn540(system) }
}

fn recovery(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let written: &[u64] = if effort == Effort::Quick { &[8, 16] } else { &[16, 64, 160] };
    let points: Vec<(System, u64)> =
        written.iter().flat_map(|mib| SYSTEMS.map(|system| (system, *mib))).collect();
    let found = work::each(this.name, &points, |(system, mib)| {
        let bed = TestBed::new(&setup(*system))?;
        let stream = |zone| Stream { zone, unit_kib: 8, units: 1..2, mib: *mib, ..Stream::default() };
        let left = bed.write_streams(&(0..4).map(stream).collect::<Vec<_>>())?;
        let logged = left.written.logged_parity + left.written.headers;
        let again = bed.cut_power(None)?;
        Ok((again.took_us / 1e3, again.read_blocks as f64 / 256.0, logged * *mib as f64))
    })?;
    let capacity_mib = setup(System::Zebra).model.geometry.zone_capacity_blocks as f64 / 256.0;
    let header = ["MiB a zone", "log, % of a zone", "system", "ms", "MiB read", "RAIZN+ to it"];
    let mut table = Table::new("Recovery after a power cut", &header);
    let (mut ratios, mut values) = (Vec::new(), Vec::new());
    for (mib, found) in written.iter().zip(found.chunks(SYSTEMS.len())) {
        let fill = 100.0 * found[0].2 / capacity_mib;
        for (system, (ms, read, _)) in SYSTEMS.iter().zip(found) {
            let ratio = found[0].0 / ms;
            let cells = [
                mib.to_string(),
                format!("{fill:.1}"),
                system.name().into(),
                format!("{ms:.1}"),
                format!("{read:.1}"),
                format!("{ratio:.1}"),
            ];
            table.rows.push(cells.to_vec());
            values.push((system.name().to_string(), fill.round() as u64, *ms));
        }
        ratios.push((fill, found[0].0 / found[1].0));
    }
    let mut figure = this.figure(METHOD);
    figure.tables.push(table);
    figure.plots.push(Plot::through("Time of recovery", "% of a log zone that is filled", "ms", &values));
    let ratios_at: Vec<(String, u64, f64)> =
        ratios.iter().map(|(fill, ratio)| ("RAIZN+ to Zebra".into(), fill.round() as u64, *ratio)).collect();
    let plot = Plot::through("RAIZN+'s time to Zebra's", "% of a log zone that is filled", "×", &ratios_at);
    figure.plots.push(plot.limit("slides: 14.2", 14.2));
    if let (Some(first), Some(last)) = (ratios.first(), ratios.last()) {
        let slope = (last.1 - first.1) / (last.0 - first.0);
        let level = last.0 + (14.2 - last.1) / slope;
        let at_half = last.1 + slope * (50.0 - last.0);
        let why = format!(
            "With logs half full, on a straight line through what was measured; at {:.0} % it is {:.1}, and 14.2 at {level:.0} %. \
             How full they were is not published.",
            last.0, last.1
        );
        let claim = Claim::factor("recovery, RAIZN's time to Zebra's", 14.2, at_half, why);
        figure.claims = vec![claim.is(ClaimKind::Guess)];
    }
    Ok(figure)
}
