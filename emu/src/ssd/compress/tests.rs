use super::*;
use crate::{
    rng::Rng,
    ssd::{Cut, Fault, Ssd},
};
use engine::{
    buf::Buf,
    device::{Command, Geometry, Status, Zones, Zrwa},
};

const SCHEMES: [Scheme; 6] = [
    Scheme::Base,
    Scheme::Balloon(Slots::LeastSpace),
    Scheme::Balloon(Slots::Fitting(90)),
    Scheme::Braid(Choice::BySizes),
    Scheme::Braid(Choice::AlwaysCompacted),
    Scheme::Braid(Choice::AlwaysBraided),
];

/// A page in which this many of 16 parts are noise.
fn page(rng: &mut Rng, parts: u64) -> Vec<u8> {
    let mut page = vec![b'z'; PAGE];
    page.iter_mut().take(PAGE / 16 * parts as usize).for_each(|byte| *byte = rng.below(256) as u8);
    page
}

fn unit(rng: &mut Rng, parts: u64) -> Unit {
    let host = (0..256).map(|_| rng.below(256) as u8).collect();
    Unit { bytes: compress(&page(rng, parts)), about: About { written: rng.below(16) as u8, host } }
}

/// Whether the unit was read back unchanged; Base stores its data uncompressed.
fn same(scheme: Scheme, found: &Unit, unit: &Unit) -> bool {
    let plain = |unit: &Unit| expand(&unit.bytes).unwrap();
    found.about == unit.about && plain(found) == plain(unit) && (scheme == Scheme::Base || found == unit)
}

#[test]
fn compressed_page_expands_and_is_never_longer() {
    let mut rng = Rng::new(1);
    for parts in 0..=16 {
        let page = page(&mut rng, parts);
        let bytes = compress(&page);
        assert!(bytes.len() <= PAGE, "{}", bytes.len());
        assert_eq!(expand(&bytes).unwrap(), page);
    }
    assert_eq!(compress(&page(&mut rng, 16)).len(), PAGE);
    assert!(expand(&[3; 100]).is_err());
}

#[test]
fn compressed_units_read_back_after_truncation_and_cuts() {
    for scheme in SCHEMES {
        for seed in 0..12 {
            let mut rng = Rng::new(seed);
            let (mut zone, mut units) = (blank(scheme, 100), Vec::new());
            let most = 1 + rng.below(16);
            for _ in 0..60 {
                match rng.below(12) {
                    0 => {
                        let group = rng.below(units.len() as u64 / 4 + 1) * 4;
                        let taken = zone.take_from(group);
                        let kept = units.split_off(group as usize);
                        assert_eq!(taken.len(), kept.len());
                        assert!(taken.iter().zip(&kept).all(|(taken, unit)| same(scheme, taken, unit)));
                    }
                    1 | 2 => zone.cut(),
                    _ => {
                        let least = zone.most(0);
                        let group: Vec<Unit> = (0..4)
                            .map(|_| {
                                let parts = rng.below(most + 1);
                                unit(&mut rng, parts)
                            })
                            .collect();
                        let promised = zone.most(4);
                        units.extend(group.clone());
                        zone.push(group);
                        assert!(zone.most(0) <= promised && least <= promised, "{scheme:?}, seed {seed}");
                    }
                }
                assert_eq!(zone.units(), units.len() as u64);
                assert!(zone.unit(units.len() as u64).is_none());
            }
            let rest: Vec<Unit> = (0..rng.below(4)).map(|_| unit(&mut rng, 8)).collect();
            if !rest.is_empty() {
                units.extend(rest.clone());
                zone.push(rest);
            }
            zone.close();
            for (index, unit) in units.iter().enumerate() {
                let found = zone.unit(index as u64).unwrap();
                assert!(same(scheme, &found.unit, unit), "{scheme:?}, seed {seed}: unit {index}");
                let once = !matches!(scheme, Scheme::Balloon(_));
                assert!(found.pieces.len() <= if once { 1 } else { 2 });
                let bytes: u64 = found.pieces.iter().map(|piece| piece.bytes).sum();
                assert!(bytes == 0 || bytes == found.unit.bytes.len() as u64);
            }
            assert!(zone.space().flash_pages <= zone.most(0));
            if !matches!(scheme, Scheme::Balloon(_)) {
                assert!(zone.space().flash_pages <= units.len() as u64, "never more than without");
            }
        }
    }
}

#[test]
fn braid_reordering_needs_fewer_pages_than_compaction() {
    let space = |choice| {
        let (mut zone, mut rng) = (blank(Scheme::Braid(choice), 400), Rng::new(2));
        for _ in 0..100 {
            // The first goes with the third, the second with the last.
            zone.push([7, 10, 8, 5].map(|parts| unit(&mut rng, parts)).to_vec());
        }
        zone.space()
    };
    let (sizes, compacted, braided) =
        (space(Choice::BySizes), space(Choice::AlwaysCompacted), space(Choice::AlwaysBraided));
    assert_eq!(sizes, braided);
    assert_eq!((sizes.braided, compacted.compacted), (100, 100));
    assert!(braided.flash_pages * 5 <= compacted.flash_pages * 4, "{braided:?} {compacted:?}");
}

#[test]
fn balloon_truncated_outlier_is_read_in_two_pieces() {
    let (mut zone, mut rng) = (blank(Scheme::Balloon(Slots::LeastSpace), 400), Rng::new(3));
    for group in 0..40 {
        let parts = if group % 4 == 0 { [3, 3, 3, 9] } else { [3; 4] };
        zone.push(parts.map(|parts| unit(&mut rng, parts)).to_vec());
    }
    assert_eq!(zone.space().truncated, 10);
    let reads: Vec<usize> = (0..4).map(|index| zone.unit(index).unwrap().pieces.len()).collect();
    assert_eq!(reads, [1, 1, 1, 2]);
}

fn geometry(volatile_cache: bool) -> Geometry {
    Geometry {
        zones: 4,
        zone_size_blocks: 128,
        zone_capacity_blocks: 101,
        max_open: 3,
        max_active: 4,
        zrwa: Some(Zrwa { size_blocks: 16, granularity_blocks: 2, max_zones: 3 }),
        oob_bytes: 64,
        max_transfer_blocks: 32,
        max_append_blocks: 16,
        volatile_cache,
    }
}

fn blocks(rng: &mut Rng, count: usize) -> (Buf, Buf) {
    let parts = rng.below(17);
    let data: Vec<u8> = (0..count.div_ceil(4)).flat_map(|_| page(rng, parts)).take(count * BLOCK).collect();
    let host: Vec<u8> = (0..count * 64).map(|_| rng.below(256) as u8).collect();
    (Buf::copy_of(&data), Buf::copy_of(&host))
}

/// Mostly valid commands.
fn draw(rng: &mut Rng, ssd: &Ssd) -> Command {
    let zone = ZoneIndex(rng.below(4) as u32);
    let (info, start, one) = (ssd.zones().info(zone), zone.0 as u64 * 128, Zones::One(zone));
    match rng.below(24) {
        0 => Command::Reset { zones: one },
        1 => Command::Finish { zones: one },
        2 => Command::Close { zones: one },
        3..=5 => Command::Open { zones: one, zrwa: true },
        6 => Command::Flush,
        7 | 8 if info.zrwa => Command::FlushZrwa { last: Lba(start + info.wp_blocks + 1 + 2 * rng.below(8)) },
        _ => {
            let ahead = if info.zrwa { rng.below(17) } else { 0 };
            let count = 1 + rng.below(20) as usize;
            let (data, oob) = blocks(rng, count);
            Command::Write { lba: Lba(start + info.wp_blocks + ahead), data, oob, fua: rng.chance(1, 8) }
        }
    }
}

/// All data that a host can read, and the written blocks.
fn picture(ssd: &mut Ssd) -> Vec<Option<Vec<u8>>> {
    (0..4 * 128)
        .filter(|lba| lba % 128 < 101)
        .map(|lba| {
            let done =
                ssd.execute(Command::Read { lba: Lba(lba), data: Buf::zeroed(BLOCK), oob: Buf::zeroed(64) });
            assert_eq!(done.result, Ok(()));
            let stored = ssd.stored(Lba(lba)).unwrap();
            let seen = [&done.data[..], &done.oob[..]].concat();
            assert_eq!(stored.clone().unwrap_or_else(|| vec![0; BLOCK + 64]), seen);
            stored
        })
        .collect()
}

/// A host cannot tell a compressing drive from another one, through power cuts with all losses and flipped bits.
#[test]
fn compressing_drive_behaves_like_plain_drive() {
    for scheme in SCHEMES {
        let (mut placed, mut lost) = (0, 0);
        for seed in 0..12 {
            let mut rng = Rng::new(seed);
            let shape = geometry(seed % 2 == 1);
            let mut plain = Ssd::in_memory(&shape);
            let mut ssd = Ssd::new(shape.clone(), Box::new(CompressedMedia::new(&shape, scheme)));
            for round in 0..8 {
                for _ in 0..rng.below(60) {
                    if rng.chance(1, 20) {
                        let (lba, bit) = (Lba(rng.below(4) * 128 + rng.below(101)), rng.below(32768) as u32);
                        plain.faults().after(0, Fault::Corrupt { lba, bit });
                        ssd.faults().after(0, Fault::Corrupt { lba, bit });
                    }
                    let command = draw(&mut rng, &plain);
                    assert_eq!(plain.execute(command.clone()).result, ssd.execute(command).result);
                }
                placed += ssd.space().unwrap().0.pages;
                let in_flight = [draw(&mut rng, &plain), draw(&mut rng, &plain)];
                let cut = Cut { cache_lost: rng.chance(1, 2), zrwa_lost: rng.chance(1, 4) };
                lost += u32::from(cut.zrwa_lost);
                let draws = rng.below(u64::MAX);
                plain.power_cut(&in_flight, &mut Rng::new(draws), cut).unwrap();
                ssd.power_cut(&in_flight, &mut Rng::new(draws), cut).unwrap();
                for zone in 0..4 {
                    assert_eq!(plain.zones().info(ZoneIndex(zone)), ssd.zones().info(ZoneIndex(zone)));
                }
                assert!(picture(&mut plain) == picture(&mut ssd), "{scheme:?}, seed {seed}, round {round}");
                if rng.chance(1, 4) {
                    ssd = ssd.copy().unwrap();
                }
            }
        }
        assert!(placed > 300 && lost > 8, "{scheme:?}: {placed} {lost}");
    }
}

#[test]
fn overprovisioned_drive_refuses_excess_and_keeps_accepted_data() {
    for scheme in SCHEMES {
        for parts in [0, 5, 16] {
            let shape = geometry(false);
            let media = CompressedMedia::with_pages(&shape, scheme, 40);
            let (mut ssd, mut plain) = (Ssd::new(shape.clone(), Box::new(media)), Ssd::in_memory(&shape));
            let (mut rng, mut taken, mut refused) = (Rng::new(parts), 0, 0);
            for zone in 0..4 {
                for group in 0..6 {
                    let data: Vec<u8> = (0..4).flat_map(|_| page(&mut rng, parts)).collect();
                    let write = Command::write(Lba(zone * 128 + group * 16), Buf::copy_of(&data), false);
                    let before = ssd.zones().info(ZoneIndex(zone as u32)).wp_blocks;
                    match ssd.execute(write.clone()).result {
                        Ok(()) => {
                            taken += 4;
                            plain.execute(write).result.unwrap();
                        }
                        Err(error) => {
                            refused += 1;
                            assert_eq!(error, Status::CapacityExceeded.into());
                            assert_eq!(ssd.zones().info(ZoneIndex(zone as u32)).wp_blocks, before);
                            break;
                        }
                    }
                }
            }
            let space = ssd.space().unwrap().0;
            assert!(space.flash_pages <= 40, "{scheme:?}: {space:?}");
            assert!(picture(&mut ssd) == picture(&mut plain), "{scheme:?}");
            match (scheme, parts) {
                (Scheme::Base, _) | (_, 16) => assert!(refused > 0 && taken <= 40, "{scheme:?}: {taken}"),
                (Scheme::Braid(_), 0) => assert!(refused == 0 && taken == 96, "{scheme:?}: {taken}"),
                (Scheme::Braid(_), _) => assert!(taken > 60, "{scheme:?}: {taken}"),
                _ => (),
            }
        }
    }
}

/// For any writes, refused, torn, cut, flushed and finished in any order.
#[test]
fn compressing_drive_never_exceeds_its_flash_pages() {
    for scheme in SCHEMES {
        let (mut refused, mut fullest) = (0, 0);
        for seed in 0..12 {
            let (mut rng, shape) = (Rng::new(seed), geometry(false));
            let media = CompressedMedia::with_pages(&shape, scheme, 40);
            let mut ssd = Ssd::new(shape.clone(), Box::new(media));
            ssd.tear_sectors();
            for _ in 0..4 {
                for _ in 0..40 {
                    let command = draw(&mut rng, &ssd);
                    refused += u32::from(ssd.execute(command).result == Err(Status::CapacityExceeded.into()));
                }
                let in_flight = [draw(&mut rng, &ssd), draw(&mut rng, &ssd)];
                let cut = Cut { cache_lost: true, zrwa_lost: rng.chance(1, 4) };
                ssd.power_cut(&in_flight, &mut rng, cut).unwrap();
            }
            assert_eq!(ssd.execute(Command::Finish { zones: Zones::All }).result, Ok(()));
            let pages = ssd.space().unwrap().0.flash_pages;
            assert!(pages <= 40, "{scheme:?}, seed {seed}: {pages}");
            fullest = fullest.max(pages);
        }
        assert!(refused > 20 && fullest > 30, "{scheme:?}: {refused} {fullest}");
    }
}

#[test]
fn full_compressing_drive_tears_no_block() {
    for seed in 0..50 {
        let (mut rng, shape) = (Rng::new(seed), geometry(false));
        let media = CompressedMedia::with_pages(&shape, Scheme::Braid(Choice::BySizes), 4);
        let mut ssd = Ssd::new(shape.clone(), Box::new(media));
        ssd.tear_sectors();
        let noise: Vec<u8> = (0..4).flat_map(|_| page(&mut rng, 16)).collect();
        let write = |lba, blocks| Command::write(Lba(lba), Buf::copy_of(&noise[..blocks * BLOCK]), false);
        assert_eq!(ssd.execute(write(0, 16)).result, Ok(()));
        ssd.power_cut(&[write(16, 4)], &mut rng, Cut::default()).unwrap();
        assert_eq!(ssd.execute(Command::Finish { zones: Zones::All }).result, Ok(()));
        assert_eq!(ssd.space().unwrap().0.flash_pages, 4, "seed {seed}");
    }
}

/// Acknowledged data that is lost may have been replaced by more than the drive can keep.
#[test]
#[should_panic = "cannot announce more than it has"]
fn compressing_drive_with_cache_panics_on_excess_capacity() {
    CompressedMedia::with_pages(&geometry(true), Scheme::Braid(Choice::BySizes), 40);
}

#[test]
fn full_zone_truncated_by_cut_is_placed_again() {
    for scheme in SCHEMES {
        for seed in 0..8 {
            let (mut rng, shape) = (Rng::new(seed), geometry(true));
            let mut ssd = Ssd::new(shape.clone(), Box::new(CompressedMedia::new(&shape, scheme)));
            for lba in [0, 20] {
                let (data, oob) = blocks(&mut rng, 20);
                let write = Command::Write { lba: Lba(lba), data, oob, fua: false };
                assert_eq!(ssd.execute(write).result, Ok(()));
            }
            let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
            assert_eq!(ssd.execute(finish).result, Ok(()));
            let placed = |ssd: &Ssd| ssd.space().unwrap().0.pages;
            assert_eq!(placed(&ssd), 10);
            ssd.faults().after(0, Fault::Corrupt { lba: Lba(5), bit: 3 });
            assert_eq!(ssd.execute(Command::Report { first: ZoneIndex(0), count: 1 }).result, Ok(()));
            assert_eq!(placed(&ssd), 10, "{scheme:?}: after a bit has flipped");
            let cut = Cut { cache_lost: true, zrwa_lost: false };
            ssd.power_cut(&[], &mut rng, cut).unwrap();
            assert_eq!(placed(&ssd), 10, "{scheme:?}, seed {seed}: after a power cut");
        }
    }
}
