//! Compression in the drive (Braid-ZNS Fig. 4a): capacity efficiency for real data.

use super::{Effort, Experiment};
use crate::{
    datasets::{self, Class, Dataset, Source},
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    work,
};
use anyhow::ensure;
use emu::ssd::{
    Model, Ssd,
    compress::{Choice, CompressedMedia, PAGE, Scheme, Slots, Space},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Zones},
    zone::{Lba, ZoneIndex},
};

pub const BRAID: Experiment =
    Experiment { name: "braid", title: "Compression in the drive: capacity (Braid-ZNS Fig. 4a)", run: braid };

const METHOD: &str = "Each data set is written to a zone of an emulated PM1731a that compresses, by way of its ZRWA, \
64 KiB at a time, and read back. The drive holds the compressed bytes; its capacity efficiency is what was written, over \
the flash pages that it takes. Compression is LZ4 over 16 KiB.

Data sets are files of Debian packages, named below with versions and hashes, and classified by their measured ratio \
(high from 2.5 on, low below 1.4) and by the spread of their compressed sizes (dense if the quartiles are no further \
apart than a sixteenth of a page). The paper's are Silesia, Calgary and others, of which only mozilla (MS) and webster \
(MD) are named: LAB_DATA=directory measures what one has. Neither thresholds nor slots were chosen by what comes out.";

#[rustfmt::skip]
pub(super) const SOURCES: &[Source] = &[
    Source { name: "XML (MIME types)", package: "shared-mime-info", version: "2.2-1", sha256: "dd026add873483566faefebbd8779a1e5e14ab2e44682ebfe238c3828a2b936b", path: "usr/share/mime", suffix: "" },
    Source { name: "XSL (DocBook)", package: "docbook-xsl", version: "1.79.2+dfsg-2", sha256: "4e6e02268b2e02ece218880703fab427df40c52887c8b4076b0b76c11ea7b0fe", path: "usr/share/xml", suffix: ".xsl" },
    Source { name: "tables (Unicode)", package: "unicode-data", version: "15.0.0-1", sha256: "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc", path: "usr/share/unicode", suffix: ".txt" },
    Source { name: "words (American)", package: "wamerican-huge", version: "2020.12.07-2", sha256: "e7084d641d1de29699ad47d7467f921659d1ca57a6ad64a18f8b068aef0a56bc", path: "usr/share/dict", suffix: "" },
    Source { name: "dictionary (WordNet)", package: "wordnet-base", version: "1:3.0-37", sha256: "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752", path: "usr/share/wordnet", suffix: "" },
    Source { name: "executable (LLVM)", package: "libllvm14", version: "1:14.0.6-12", sha256: "cd986403cfe53f47c41b80667f6b344c40fe35de4c5081dad9358b4c77cf64a8", path: "usr/lib/x86_64-linux-gnu/libLLVM-14.so.1", suffix: "" },
    Source { name: "executables (scikit)", package: "python3-sklearn-lib", version: "1.2.1+dfsg-1", sha256: "f57087aeb7e78fa02bb89eed3a36ff626191eb0d9f650ef8116c49e266f5dfb2", path: "usr/lib", suffix: ".so" },
    Source { name: "source (Boost)", package: "libboost1.74-dev", version: "1.74.0+ds1-21", sha256: "ba14fe04d7f138f874bd3ab3a20c4fd1e9f654e271449b8f3e48d20f942dbb93", path: "usr/include", suffix: ".hpp" },
    Source { name: "translations", package: "iso-codes", version: "4.15.0-1", sha256: "b1beb869303229c38288d4ddacfd582c91f594759b5767c9cecebd87f16ff70e", path: "usr/share", suffix: ".mo" },
    Source { name: "database (GeoIP)", package: "geoip-database", version: "20230203+really20191224-0+deb12u1", sha256: "2a293333acd18235f24d7bfd1467e7e59931bb42e614eaf72620b253f0652154", path: "usr/share/GeoIP", suffix: "" },
    Source { name: "images (GNOME)", package: "gnome-backgrounds", version: "43.1-1", sha256: "a670dea21572652127d6e55f9cdb3a226d0037854fdbfd037003c7d00ee0dc4e", path: "usr/share/backgrounds", suffix: "" },
    Source { name: "scenes (POV-Ray)", package: "povray-examples", version: "1:3.7.0.10-2", sha256: "fc77f31ee874a3360281e0843665834549b8a1246462dbdff460ca23d93f3558", path: "usr/share", suffix: "" },
];

/// The systems of the paper.
pub(super) const SYSTEMS: [(&str, Scheme); 3] = [
    ("base", Scheme::Base),
    ("balloon", Scheme::Balloon(Slots::LeastSpace)),
    ("braid", Scheme::Braid(Choice::BySizes)),
];

/// Variants with other decisions.
const OTHERS: [(&str, Scheme); 6] = [
    ("balloon, rests in slots", Scheme::Balloon(Slots::WholeRests)),
    ("balloon, 50 % fit", Scheme::Balloon(Slots::Fitting(50))),
    ("balloon, 90 % fit", Scheme::Balloon(Slots::Fitting(90))),
    ("balloon, all fit", Scheme::Balloon(Slots::Fitting(100))),
    ("compaction alone", Scheme::Braid(Choice::AlwaysCompacted)),
    ("braid alone", Scheme::Braid(Choice::AlwaysBraided)),
];

/// Blocks of a write: a group, and the whole ZRWA.
const WRITE_BLOCKS: usize = 16;

/// Results of a set.
struct SetResult {
    name: String,
    origin: String,
    class: Class,
    /// By system, then by variant.
    spaces: Vec<Space>,
}

fn braid(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let sources = if effort == Effort::Quick { &SOURCES[..1] } else { SOURCES };
    let sets = datasets::all(sources)?;
    let found = work::each("data sets", &sets.found, measure)?;
    let mut figure = this.figure(METHOD);
    for found in &found {
        for ((system, _), space) in SYSTEMS.iter().zip(&found.spaces) {
            figure.rows.push(Row {
                system: system.to_string(),
                host: "free".into(),
                dataset: Some(found.name.clone()),
                capacity_efficiency: Some(space.efficiency()),
                ..Row::default()
            });
        }
    }
    figure.tables.extend([classes(&found), others(&found), origins(&found)]);
    if !found.is_empty() {
        figure.plots.push(plot(&found));
        figure.claims = claims(&found);
    }
    figure.not_measured(sets.missing);
    Ok(figure)
}

fn measure(set: &Dataset) -> anyhow::Result<SetResult> {
    let schemes = SYSTEMS.iter().chain(&OTHERS);
    let spaces = schemes.map(|(_, scheme)| space_of(set, *scheme)).collect::<anyhow::Result<_>>()?;
    Ok(SetResult { name: set.name.clone(), origin: set.origin.clone(), class: set.class(), spaces })
}

/// Writes a set to a zone, and reads it back.
fn space_of(set: &Dataset, scheme: Scheme) -> anyhow::Result<Space> {
    let bytes = &set.bytes[..set.bytes.len() / PAGE * PAGE];
    let blocks = (bytes.len() / BLOCK) as u64;
    let geometry = Geometry { zones: 1, ..Model::pm1731a().scaled(1, blocks).geometry };
    let mut ssd = Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme)));
    let zones = Zones::One(ZoneIndex(0));
    ssd.execute(Command::Open { zones, zrwa: true }).result?;
    let mut at = 0;
    for piece in bytes.chunks(WRITE_BLOCKS * BLOCK) {
        ssd.execute(Command::write(Lba(at), Buf::copy_of(piece), false)).result?;
        at += (piece.len() / BLOCK) as u64;
        ssd.execute(Command::FlushZrwa { last: Lba(at - 1) }).result?;
    }
    for (number, piece) in bytes.chunks(WRITE_BLOCKS * BLOCK).enumerate() {
        let lba = Lba((number * WRITE_BLOCKS) as u64);
        let done = ssd.execute(Command::read(lba, Buf::zeroed(piece.len())));
        done.result?;
        ensure!(done.data[..] == *piece, "{}: {lba:?} reads as something else", set.name);
    }
    Ok(ssd.space().unwrap_or_default().0)
}

/// Ratio of Braid's efficiency to Balloon's.
fn gain(found: &SetResult) -> f64 {
    found.spaces[2].efficiency() / found.spaces[1].efficiency()
}

fn claims(found: &[SetResult]) -> Vec<Claim> {
    const WHY: &str = "How Balloon chooses slots, and which data had the gain, is not published in what this rests on. \
    Its slots here take the least space, whatever is truncated for that, and rests lie byte behind byte, which favours \
    it. At best the gain is";
    let best = |level: char| {
        found.iter().filter(|f| f.class.name().starts_with(level)).max_by(|a, b| gain(a).total_cmp(&gain(b)))
    };
    let claim = |(level, name, paper): (char, &str, f64)| {
        let best = best(level)?;
        let what = format!("capacity of Braid to Balloon, {name} ratio, at best ({})", best.name);
        let fitting = |f: &&SetResult| f.class.name().starts_with(level);
        let over = |other: usize| {
            let gain = |f: &SetResult| f.spaces[2].efficiency() / f.spaces[other].efficiency();
            found.iter().filter(fitting).map(gain).fold(0.0, f64::max)
        };
        let why = format!(
            "{WHY} {:.2} over one whose rests take whole slots, and {:.2} with the smallest slots that 90 of 100 units \
             fit in.",
            over(3),
            over(5)
        );
        Some(Claim::factor(what, paper, gain(best), why).is(ClaimKind::Guess))
    };
    let mut claims: Vec<Claim> =
        [('H', "high", 1.47), ('M', "medium", 1.225)].into_iter().filter_map(claim).collect();
    let truncated: u64 = found.iter().map(|found| found.spaces[2].truncated).sum();
    claims.push(
        Claim::share("units that Braid truncates", 0.0, truncated as f64, "").is(ClaimKind::Construction),
    );
    claims
}

fn classes(found: &[SetResult]) -> Table {
    let header = ["data set", "class", "ratio", "spread", "MiB", "truncated by Balloon", "groups braided"];
    let mut table = Table::new("Data sets by class", &header);
    for found in found {
        let [balloon, braid] = [found.spaces[1], found.spaces[2]];
        let of = |part: u64, all: u64| format!("{:.0} %", 100.0 * part as f64 / all.max(1) as f64);
        table.rows.push(vec![
            found.name.clone(),
            found.class.name().into(),
            format!("{:.2}", found.class.ratio),
            format!("{:.3}", found.class.spread),
            format!("{:.1}", braid.pages as f64 * PAGE as f64 / (1 << 20) as f64),
            of(balloon.truncated, balloon.pages),
            of(braid.braided, braid.braided + braid.compacted),
        ]);
    }
    table
}

fn others(found: &[SetResult]) -> Table {
    let names = OTHERS.iter().map(|other| other.0);
    let header: Vec<&str> = ["data set", "balloon", "braid"].into_iter().chain(names).collect();
    let mut table = Table::new("Bytes a byte of flash, had it been decided otherwise", &header);
    for found in found {
        let values = found.spaces[1..].iter().map(|space| format!("{:.3}", space.efficiency()));
        table.rows.push([found.name.clone()].into_iter().chain(values).collect());
    }
    table
}

fn origins(found: &[SetResult]) -> Table {
    let mut table = Table::new("Where the data come from", &["data set", "files", "SHA-256 of the package"]);
    for found in found {
        let source = SOURCES.iter().find(|source| source.name == found.name);
        let sha256 = source.map_or("", |source| source.sha256);
        table.rows.push(vec![found.name.clone(), found.origin.clone(), sha256.into()]);
    }
    table
}

fn plot(found: &[SetResult]) -> Plot {
    let places: Vec<String> =
        found.iter().map(|found| format!("{} {}", found.class.name(), found.name)).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let line = |system: usize| {
        let values = found.iter().map(|found| found.spaces[system].efficiency()).collect();
        (SYSTEMS[system].0.to_string(), values)
    };
    Plot::named("Capacity efficiency", "bytes a byte of flash", &places, (0..3).map(line).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A set of pages of which in turn this many of 16 parts do not compress.
    fn set(parts: &[usize]) -> Dataset {
        let mut noise = emu::rng::Rng::new(1);
        let mut bytes = vec![0; 160 * PAGE];
        for (page, parts) in bytes.chunks_mut(PAGE).zip(parts.iter().cycle()) {
            noise.fill(&mut page[..PAGE / 16 * parts]);
        }
        Dataset { name: "made".into(), origin: String::new(), bytes }
    }

    #[test]
    fn braid_space_efficiency_matches_constructed_sets() {
        let of = |parts: &[usize]| measure(&set(parts)).unwrap();
        let alike = of(&[7]);
        assert_eq!(alike.class.name(), "MD");
        let efficiency = |found: &SetResult| found.spaces.iter().map(Space::efficiency).collect::<Vec<_>>();
        let [base, balloon, braid] = efficiency(&alike)[..3] else { panic!("three systems") };
        // Three slots, with a separately read rest of each unit, take less than two that fit all units.
        assert!(base == 1.0 && balloon > 2.0 && braid == 2.0, "{balloon} {braid}");
        let mixed = of(&[7, 10, 8, 5]);
        assert_eq!(mixed.class.name(), "MS");
        let mixed = efficiency(&mixed);
        assert!(mixed[2] == 2.0 && mixed[7] < 1.5 && mixed[8] == 2.0, "{mixed:?}");
        let noise = of(&[16]);
        assert_eq!(efficiency(&noise), [1.0; 9]);
        assert_eq!(noise.class.name(), "LD");
    }

    #[test]
    fn braid_claims_use_best_set_of_each_level() {
        let found = [measure(&set(&[7, 10, 8, 5])).unwrap()];
        let claims = claims(&found);
        assert_eq!(claims.len(), 2, "there is nothing of high ratio");
        assert!((claims[0].ours - gain(&found[0])).abs() < 1e-9);
        assert_eq!((claims[1].ours, claims[1].error), (0.0, 0.0));
    }
}
