use super::*;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Geometry, Status, Zones, Zrwa},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};

fn geometry() -> Geometry {
    Geometry {
        zones: 4,
        zone_size_blocks: 64,
        zone_capacity_blocks: 48,
        max_open: 2,
        max_active: 3,
        zrwa: Some(Zrwa { size_blocks: 8, granularity_blocks: 2, max_zones: 2 }),
        oob_bytes: 64,
        max_transfer_blocks: 32,
        max_append_blocks: 16,
        volatile_cache: false,
    }
}

fn blocks(n: usize, byte: u8) -> Buf {
    Buf::copy_of(&vec![byte; n * BLOCK])
}

#[test]
fn ssd_returns_written_blocks_and_oob_zeros_elsewhere() {
    let mut ssd = Ssd::in_memory(&geometry());
    let write = |lba, byte| Command::Write {
        lba: Lba(lba),
        data: blocks(2, byte),
        oob: Buf::copy_of(&[byte ^ 0xff; 128]),
        fua: false,
    };
    let open = Command::Open { zones: Zones::One(ZoneIndex(1)), zrwa: true };
    assert_eq!(ssd.execute(open).result, Ok(()));
    assert_eq!(ssd.execute(write(64, 1)).result, Ok(()));
    assert_eq!(ssd.execute(write(68, 2)).result, Ok(()));
    assert_eq!(ssd.execute(write(65, 3)).result, Ok(()));
    let read = Command::Read { lba: Lba(64), data: blocks(6, 9), oob: Buf::copy_of(&[9; 384]) };
    let done = ssd.execute(read);
    assert_eq!(done.result, Ok(()));
    let found: Vec<u8> = (0..6).map(|i| done.data[i * BLOCK + 17]).collect();
    assert_eq!(found, [1, 3, 3, 0, 2, 2]);
    let found: Vec<u8> = (0..6).map(|i| done.oob[i * 64 + 17]).collect();
    assert_eq!(found, [0xfe, 0xfc, 0xfc, 0, 0xfd, 0xfd]);
}

#[test]
fn ssd_append_returns_written_lba() {
    let mut ssd = Ssd::in_memory(&geometry());
    let append = |n| Command::append(ZoneIndex(2), blocks(n, 5), false);
    assert_eq!(ssd.execute(append(3)).lba, Lba(128));
    assert_eq!(ssd.execute(append(1)).lba, Lba(131));
    let open = Command::Open { zones: Zones::One(ZoneIndex(0)), zrwa: true };
    assert_eq!(ssd.execute(open).result, Ok(()));
    let refused = ssd.execute(Command::append(ZoneIndex(0), blocks(1, 5), false));
    assert_eq!(refused.result, Err(Status::InvalidZoneOperation.into()));
}

#[test]
fn ssd_zones_are_closed_after_power_cycle() {
    let geometry = geometry();
    let media = Box::new(MemoryMedia::new(&geometry));
    let mut ssd = Ssd::new(geometry.clone(), media);
    let open = |zone, zrwa| Command::Open { zones: Zones::One(ZoneIndex(zone)), zrwa };
    assert_eq!(ssd.execute(open(0, false)).result, Ok(()));
    assert_eq!(ssd.execute(open(1, true)).result, Ok(()));
    assert_eq!(ssd.execute(Command::Close { zones: Zones::All }).result, Ok(()));
    assert_eq!(ssd.execute(Command::write(Lba(128), blocks(3, 1), false)).result, Ok(()));
    let ssd = Ssd::new(geometry, ssd.state.media);
    let states: Vec<_> = (0..4).map(|z| ssd.zones().info(ZoneIndex(z))).map(|z| (z.state, z.zrwa)).collect();
    use ZoneState::{Closed, Empty};
    assert_eq!(states, [(Empty, false), (Closed, true), (Closed, false), (Empty, false)]);
}

#[test]
fn torn_write_leaves_no_gap_below_write_pointer() {
    let mut torn = 0;
    for seed in 0..300 {
        let mut ssd = Ssd::in_memory(&geometry());
        let open = Command::Open { zones: Zones::One(ZoneIndex(0)), zrwa: true };
        assert_eq!(ssd.execute(open).result, Ok(()));
        let write = Command::write(Lba(0), blocks(14, 1), false);
        ssd.power_cut(&[write], &mut crate::rng::Rng::new(seed), Cut::default()).unwrap();
        let wp = ssd.zones().info(ZoneIndex(0)).wp_blocks;
        let done = ssd.execute(Command::read(Lba(0), blocks(14, 9)));
        let written: Vec<bool> = done.data.chunks(BLOCK).map(|block| block[0] == 1).collect();
        assert!(written[..wp as usize].iter().all(|w| *w), "seed {seed}: wp {wp}, {written:?}");
        torn += (wp > 0 && written.contains(&false)) as u32;
    }
    assert!(torn > 20, "{torn}");
}

fn write(lba: u64, count: usize) -> Command {
    Command::write(Lba(lba), blocks(count, 1), false)
}

fn open_zrwa(zone: u32) -> Command {
    Command::Open { zones: Zones::One(ZoneIndex(zone)), zrwa: true }
}

fn zones(ssd: &Ssd) -> Vec<ZoneInfo> {
    ssd.zones().report(ZoneIndex(0), 4).unwrap()
}

#[test]
fn ssd_refused_write_leaves_zones_unchanged() {
    let mut ssd = Ssd::in_memory(&geometry());
    for lba in [0, 64] {
        assert_eq!(ssd.execute(write(lba, 1)).result, Ok(()));
    }
    let before = zones(&ssd);
    // The first would close a zone, the second is to the zone that was opened the longest ago.
    for (zone, lba) in [(2, 128), (0, 1)] {
        ssd.faults().after(0, Fault::WriteFault(ZoneIndex(zone)));
        assert_eq!(ssd.execute(write(lba, 1)).result, Err(Status::WriteFault.into()));
        assert_eq!(zones(&ssd), before);
    }
    assert_eq!(ssd.execute(write(128, 1)).result, Ok(()));
    assert_eq!(zones(&ssd)[0].state, ZoneState::Closed);
}

#[test]
fn ssd_failed_media_write_leaves_zones_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.img");
    let model = Model { name: "look".into(), geometry: geometry() };
    let drive = EmulatedDrive::create_image(&path, &model, [1; 16]).unwrap();
    assert_eq!(drive.ssd().borrow_mut().execute(write(64, 3)).result, Ok(()));
    drop(drive);
    // Commands that would change the image fail.
    let drive = EmulatedDrive::look_at_image(&path).unwrap();
    let mut ssd = drive.ssd().borrow_mut();
    let (before, one) = (zones(&ssd), Zones::One(ZoneIndex(1)));
    for command in [
        open_zrwa(0),
        write(0, 1),
        write(67, 1),
        Command::Finish { zones: one },
        Command::Finish { zones: Zones::All },
        Command::Reset { zones: one },
        Command::Reset { zones: Zones::All },
    ] {
        let done = ssd.execute(command.clone());
        assert!(matches!(done.result, Err(DeviceError::Os(_))), "{command:?}: {:?}", done.result);
        assert_eq!(zones(&ssd), before, "{command:?}");
    }
}

#[test]
fn offline_zone_never_becomes_read_only() {
    let mut ssd = Ssd::in_memory(&geometry());
    ssd.faults().after(0, Fault::Offline(ZoneIndex(1)));
    ssd.faults().after(1, Fault::ReadOnly(ZoneIndex(1)));
    for _ in 0..2 {
        ssd.execute(Command::Flush);
        assert_eq!(zones(&ssd)[1].state, ZoneState::Offline);
    }
}

#[test]
fn failing_write_is_not_torn_by_power_cut() {
    for seed in 0..100 {
        let mut ssd = Ssd::in_memory(&geometry());
        ssd.faults().after(0, Fault::WriteFault(ZoneIndex(0)));
        assert_eq!(ssd.execute(open_zrwa(0)).result, Ok(()));
        ssd.power_cut(&[write(0, 14)], &mut crate::rng::Rng::new(seed), Cut::default()).unwrap();
        assert!((0..14).all(|lba| ssd.stored(Lba(lba)).unwrap().is_none()), "seed {seed}");
    }
}

/// Zone 0 is sequential, zone 1 has a ZRWA; both have unflushed data when the power is cut.
#[test]
fn torn_block_is_lost_with_rolled_back_data() {
    let (mut torn, mut went_back) = (0, 0);
    for seed in 0..400 {
        let mut ssd = Ssd::in_memory(&Geometry { volatile_cache: true, ..geometry() });
        ssd.tear_sectors();
        let flush_zrwa = Command::FlushZrwa { last: Lba(64 + 3) };
        for command in [write(0, 2), open_zrwa(1), write(64, 8), Command::Flush, write(2, 4), flush_zrwa] {
            assert_eq!(ssd.execute(command).result, Ok(()));
        }
        let cut = Cut { cache_lost: true, zrwa_lost: false };
        let in_flight = [write(6, 3), write(64 + 8, 4)];
        ssd.power_cut(&in_flight, &mut crate::rng::Rng::new(seed), cut).unwrap();
        for (zone, zrwa) in [(0, 0), (1, 8)] {
            let wp = ssd.zones().info(ZoneIndex(zone)).wp_blocks;
            went_back += u32::from(wp < [6, 4][zone as usize]);
            let start = u64::from(zone) * 64;
            let beyond = (wp + zrwa..48).filter(|offset| ssd.stored(Lba(start + offset)).unwrap().is_some());
            let beyond: Vec<u64> = beyond.collect();
            let at_wp = zone == 0 && wp >= 6 && beyond == [wp];
            assert!(beyond.is_empty() || at_wp, "seed {seed}: {beyond:?} of zone {zone}, {wp}");
            torn += u32::from(at_wp);
        }
    }
    assert!(torn > 20 && went_back > 100, "{torn} {went_back}");
}

/// Their headers have valid checksums.
#[test]
fn image_with_impossible_geometry_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let lies: [fn(&mut Geometry); 10] = [
        |g| g.zones = 0,
        |g| g.zones = u32::MAX,
        |g| g.zone_size_blocks = 0,
        |g| (g.zone_size_blocks, g.zone_capacity_blocks) = (u64::MAX, 1),
        |g| g.zone_capacity_blocks = 0,
        |g| g.zone_capacity_blocks = 65,
        |g| g.max_transfer_blocks = u32::MAX,
        |g| g.oob_bytes = u32::MAX,
        |g| g.zrwa = Some(Zrwa { size_blocks: 8, granularity_blocks: 0, max_zones: 1 }),
        |g| g.zrwa = Some(Zrwa { size_blocks: 1 << 63, granularity_blocks: 4, max_zones: 1 }),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let mut geometry = geometry();
        lie(&mut geometry);
        let header = layout::encode_header(&Model { name: "lie".into(), geometry }, &[1; 16]);
        let path = dir.path().join(format!("{number}.img"));
        std::fs::write(&path, header).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let refused = EmulatedDrive::open_image(&path).map(|_| ()).unwrap_err();
        assert!(refused.problem.contains("header of the image is damaged"), "{number}: {}", refused.problem);
    }
}

#[test]
fn image_error_cause_explains_errno() {
    let cause = |errno| super::cause(&std::io::Error::from_raw_os_error(errno));
    for (errno, words) in
        [(13, "permission denied"), (30, "read-only"), (28, "full"), (122, "quota"), (2, "No such")]
    {
        assert!(cause(errno).contains(words), "{errno}: {}", cause(errno));
    }
}
