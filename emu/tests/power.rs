//! Power cuts of a single drive, checked block by block: durable data is there, every other block has one of its
//! versions, and the drive obeys the zone rules.

use emu::{
    rng::Rng,
    ssd::{
        Cut, ImageMedia, Model, Ssd,
        compress::{Choice, CompressedMedia, Scheme, Slots},
    },
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Zones, Zrwa},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};

const ZONES: u32 = 6;
const SIZE: u64 = 64;
const OOB: usize = 64;
const ZRWA: Zrwa = Zrwa { size_blocks: 8, granularity_blocks: 2, max_zones: 2 };

fn geometry(volatile_cache: bool) -> Geometry {
    Geometry {
        zones: ZONES,
        zone_size_blocks: SIZE,
        zone_capacity_blocks: 45,
        max_open: 3,
        max_active: 4,
        zrwa: Some(ZRWA),
        oob_bytes: OOB as u32,
        max_transfer_blocks: 16,
        max_append_blocks: 8,
        volatile_cache,
    }
}

/// Versions of a block; 0 is unwritten.
#[derive(Clone, Default)]
struct Block {
    durable: u64,
    newest: u64,
    in_flight: Vec<u64>,
}

/// Counters of all runs, to check that the test reaches the relevant cases.
#[derive(Default, Debug)]
struct Reached {
    lost: u64,
    survived: u64,
    in_flight_landed: u64,
    wp_went_back: u64,
    full_zone_reopened: u64,
    zrwa_lost: u64,
}

struct Run {
    ssd: Ssd,
    geometry: Geometry,
    rng: Rng,
    blocks: Vec<Block>,
    durable_wp: Vec<u64>,
    /// Zones that commands in flight may reset or finish.
    unsettled: Vec<u32>,
    tag: u64,
}

impl Run {
    fn new(seed: u64, ssd: Ssd) -> Run {
        let geometry = ssd.geometry().clone();
        let blocks = vec![Block::default(); (ZONES as u64 * SIZE) as usize];
        let durable_wp = vec![0; ZONES as usize];
        Run { ssd, geometry, rng: Rng::new(seed), blocks, durable_wp, unsettled: Vec::new(), tag: 0 }
    }

    fn info(&self, zone: u32) -> ZoneInfo {
        self.ssd.zones().info(ZoneIndex(zone))
    }

    fn of_zone(&mut self, zone: u32) -> &mut [Block] {
        &mut self.blocks[zone as usize * SIZE as usize..][..SIZE as usize]
    }

    /// A random command, mostly valid; its data identifies it.
    fn command(&mut self) -> Command {
        let zone = self.rng.below(ZONES as u64) as u32;
        let info = self.info(zone);
        let one = Zones::One(ZoneIndex(zone));
        let start = zone as u64 * SIZE;
        match self.rng.below(20) {
            0 => Command::Reset { zones: one },
            1 => Command::Finish { zones: one },
            2 => Command::Close { zones: one },
            3..=5 => Command::Open { zones: one, zrwa: self.rng.chance(3, 4) },
            6 => Command::Flush,
            7 | 8 if info.zrwa => {
                let granules = 1 + self.rng.below(4);
                Command::FlushZrwa { last: Lba(start + info.wp_blocks + granules * 2 - 1) }
            }
            7 | 8 => {
                let (data, oob) = self.payload(8);
                Command::Append { zone: ZoneIndex(zone), data, oob, fua: self.rng.chance(1, 8) }
            }
            _ => {
                let ahead = if info.zrwa { self.rng.below(10) } else { 0 };
                let (data, oob) = self.payload(12);
                let lba = Lba(start + info.wp_blocks + ahead);
                Command::Write { lba, data, oob, fua: self.rng.chance(1, 8) }
            }
        }
    }

    fn payload(&mut self, most: u64) -> (Buf, Buf) {
        let blocks = 1 + self.rng.below(most) as usize;
        self.tag += 1;
        let tag = self.tag.to_le_bytes();
        (Buf::copy_of(&tag.repeat(blocks * BLOCK / 8)), Buf::copy_of(&tag.repeat(blocks * OOB / 8)))
    }

    fn step(&mut self) {
        let command = self.command();
        let done = self.ssd.execute(command.clone());
        if done.result.is_err() {
            return;
        }
        let volatile = self.geometry.volatile_cache;
        match command {
            Command::Write { lba, data, fua, .. } => self.written(lba, data.blocks(), fua || !volatile),
            Command::Append { data, fua, .. } => self.written(done.lba, data.blocks(), fua || !volatile),
            Command::Flush => {
                self.blocks.iter_mut().for_each(|b| b.durable = b.newest);
                self.durable_wp = (0..ZONES).map(|zone| self.info(zone).wp_blocks).collect();
            }
            Command::Reset { zones: Zones::One(zone) } => {
                self.of_zone(zone.0).fill(Block::default());
                self.durable_wp[zone.0 as usize] = 0;
            }
            Command::Finish { zones: Zones::One(zone) } => {
                self.durable_wp[zone.0 as usize] = self.geometry.zone_capacity_blocks;
            }
            Command::FlushZrwa { last } if !volatile => {
                let zone = (last.0 / SIZE) as usize;
                self.durable_wp[zone] = last.0 % SIZE + 1;
            }
            _ => (),
        }
    }

    fn written(&mut self, lba: Lba, blocks: u64, durable: bool) {
        let zone = (lba.0 / SIZE) as u32;
        let tag = self.tag;
        let info = self.info(zone);
        for block in &mut self.blocks[lba.0 as usize..][..blocks as usize] {
            block.newest = tag;
            if durable {
                block.durable = tag;
            }
        }
        if durable && !self.geometry.volatile_cache {
            self.durable_wp[zone as usize] = info.wp_blocks;
        } else if durable && !info.zrwa && info.state != ZoneState::Full {
            // Sequential: a write with FUA makes all earlier blocks durable.
            self.durable_wp[zone as usize] = info.wp_blocks;
            let end = info.wp_blocks as usize;
            self.of_zone(zone)[..end].iter_mut().for_each(|b| b.durable = b.newest);
        }
    }

    fn cut(&mut self, cut: Cut, reached: &mut Reached) {
        let in_flight: Vec<Command> = (0..self.rng.below(5)).map(|_| self.in_flight()).collect();
        let before: Vec<ZoneInfo> = (0..ZONES).map(|zone| self.info(zone)).collect();
        self.ssd.power_cut(&in_flight, &mut self.rng, cut).unwrap();
        assert!(self.ssd.zones().active_zones() <= self.geometry.max_active);
        assert!(self.ssd.zones().zrwa_zones() <= ZRWA.max_zones);
        assert_eq!(self.ssd.zones().open_zones(), 0);
        for zone in 0..ZONES {
            self.check(zone, &before[zone as usize], cut, reached);
            self.durable_wp[zone as usize] = self.info(zone).wp_blocks;
        }
        self.unsettled.clear();
    }

    fn in_flight(&mut self) -> Command {
        let command = self.command();
        match &command {
            Command::Write { lba, data, .. } => {
                let (tag, first) = (self.tag, lba.0 as usize);
                let end = (first + data.blocks() as usize).min(self.blocks.len());
                self.blocks[first..end].iter_mut().for_each(|b| b.in_flight.push(tag));
            }
            Command::Append { zone, .. } => {
                let tag = self.tag;
                self.of_zone(zone.0).iter_mut().for_each(|b| b.in_flight.push(tag));
            }
            Command::Reset { zones: Zones::One(zone) } | Command::Finish { zones: Zones::One(zone) } => {
                self.unsettled.push(zone.0);
            }
            _ => (),
        }
        command
    }

    fn check(&mut self, zone: u32, before: &ZoneInfo, cut: Cut, reached: &mut Reached) {
        let now = self.info(zone);
        let (capacity, start) = (self.geometry.zone_capacity_blocks, zone as u64 * SIZE);
        let unsettled = self.unsettled.contains(&zone);
        let wp = if now.state == ZoneState::Full { capacity } else { now.wp_blocks };
        assert!(!now.zrwa || now.state == ZoneState::Closed, "{now:?}");
        assert_eq!(now.state == ZoneState::Empty, wp == 0 && !now.zrwa, "{now:?}");
        assert!((now.state == ZoneState::Full) == (wp == capacity), "{now:?}");
        assert!(unsettled || wp >= self.durable_wp[zone as usize], "{now:?} of {before:?}");
        assert!(!(cut.zrwa_lost && now.zrwa), "{now:?}");
        reached.wp_went_back += (wp < before.wp_blocks) as u64;
        reached.full_zone_reopened +=
            (before.state == ZoneState::Full && now.state == ZoneState::Closed) as u64;
        reached.zrwa_lost += (before.zrwa && !now.zrwa && now.state == ZoneState::Closed) as u64;
        let read = |ssd: &mut Ssd, offset: u64| {
            let (data, oob) = (Buf::zeroed(BLOCK), Buf::zeroed(OOB));
            let done = ssd.execute(Command::Read { lba: Lba(start + offset), data, oob });
            assert_eq!(done.result, Ok(()));
            let tags = done.data.chunks(8).chain(done.oob.chunks(8));
            let tags: Vec<u64> = tags.map(|t| u64::from_le_bytes(t.try_into().unwrap())).collect();
            assert!(tags.iter().all(|t| *t == tags[0]), "block {offset} of {now:?} mixes versions: {tags:?}");
            tags[0]
        };
        for offset in 0..capacity {
            let found = read(&mut self.ssd, offset);
            let block = self.blocks[(start + offset) as usize].clone();
            let landed = block.in_flight.contains(&found);
            let at = format!(
                "block {offset} holds {found}, was {} ({} durable), {now:?} of {before:?}",
                block.newest, block.durable
            );
            // In a zone that is not full no block above the write pointer, or the end of the ZRWA, is written.
            let reach = if now.zrwa { wp + ZRWA.size_blocks } else { wp };
            assert!(offset < reach || found == 0, "{at}");
            let cleared = unsettled && wp == 0 || cut.zrwa_lost && before.zrwa && offset >= wp;
            let finished = before.state == ZoneState::Full || now.state == ZoneState::Full && unsettled;
            if landed {
                reached.in_flight_landed += 1;
            } else if cleared {
                assert!(unsettled || found == 0, "{at}");
            } else if offset < wp && !unsettled && !finished && wp <= before.wp_blocks {
                // Blocks below the write pointer have their newest version.
                assert_eq!(found, block.newest, "{at}");
            } else if cut.cache_lost && self.geometry.volatile_cache {
                assert!(unsettled && found == 0 || found == block.newest || found == block.durable, "{at}");
            } else {
                assert!(unsettled && found == 0 || found == block.newest, "{at}");
            }
            reached.lost += (found != block.newest && !landed && !cleared) as u64;
            reached.survived += (found == block.newest && block.newest != block.durable) as u64;
            self.blocks[(start + offset) as usize] =
                Block { durable: found, newest: found, in_flight: Vec::new() };
        }
        for offset in capacity..SIZE {
            self.blocks[(start + offset) as usize] = Block::default();
        }
    }
}

fn run(seed: u64, ssd: Ssd, reached: &mut Reached) {
    let mut run = Run::new(seed, ssd);
    for _ in 0..6 {
        for _ in 0..1 + run.rng.below(60) {
            run.step();
        }
        let cut = Cut { cache_lost: run.rng.chance(1, 2), zrwa_lost: run.rng.chance(1, 4) };
        run.cut(cut, reached);
    }
}

#[test]
fn power_cut_keeps_durable_data_and_block_versions() {
    for volatile_cache in [false, true] {
        let mut reached = Reached::default();
        for seed in 0..500 {
            run(seed, Ssd::in_memory(&geometry(volatile_cache)), &mut reached);
        }
        println!("volatile cache: {volatile_cache}, {reached:?}");
        assert!(reached.in_flight_landed > 0 && reached.zrwa_lost > 0, "{reached:?}");
        if volatile_cache {
            assert!(reached.lost > 0 && reached.survived > 0, "{reached:?}");
            assert!(reached.wp_went_back > 0 && reached.full_zone_reopened > 0, "{reached:?}");
        }
    }
}

#[test]
fn power_cut_keeps_durable_data_on_compressing_drive() {
    for scheme in [Scheme::Balloon(Slots::LeastSpace), Scheme::Braid(Choice::BySizes)] {
        for volatile_cache in [false, true] {
            let (mut reached, geometry) = (Reached::default(), geometry(volatile_cache));
            for seed in 0..200 {
                run(
                    seed,
                    Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme))),
                    &mut reached,
                );
            }
            assert!(reached.in_flight_landed > 0 && reached.zrwa_lost > 0, "{scheme:?}: {reached:?}");
        }
    }
}

fn blocks(count: usize, byte: u8) -> (Buf, Buf) {
    (Buf::copy_of(&vec![byte; count * BLOCK]), Buf::copy_of(&vec![byte; count * OOB]))
}

fn write(lba: u64, count: usize, byte: u8, fua: bool) -> Command {
    let (data, oob) = blocks(count, byte);
    Command::Write { lba: Lba(lba), data, oob, fua }
}

fn open_zrwa(zone: u32) -> Command {
    Command::Open { zones: Zones::One(ZoneIndex(zone)), zrwa: true }
}

fn read(ssd: &mut Ssd, lba: u64) -> (Vec<u8>, Vec<u8>) {
    let done = ssd.execute(Command::Read { lba: Lba(lba), data: Buf::zeroed(BLOCK), oob: Buf::zeroed(OOB) });
    assert_eq!(done.result, Ok(()));
    (done.data.to_vec(), done.oob.to_vec())
}

#[test]
fn finish_may_drop_zrwa_beyond_write_pointer() {
    for (drops, volatile_cache) in [(false, false), (true, false), (true, true)] {
        for seed in 0..20 {
            let mut ssd = Ssd::in_memory(&geometry(volatile_cache));
            if drops {
                ssd.drop_at_finish();
            }
            for command in [
                open_zrwa(0),
                write(0, 6, 1, false),
                Command::Flush,
                write(3, 3, 2, false),
                Command::FlushZrwa { last: Lba(3) },
                write(SIZE, 2, 3, false),
                Command::Finish { zones: Zones::All },
            ] {
                ssd.execute(command).result.unwrap();
            }
            let mut found: Vec<u8> = (0..6).map(|lba| read(&mut ssd, lba).0[0]).collect();
            assert_eq!(found, if drops { [1, 1, 1, 2, 0, 0] } else { [1, 1, 1, 2, 2, 2] });
            assert_eq!(read(&mut ssd, SIZE + 1).0[0], 3, "a zone without a ZRWA keeps all");
            ssd.power_cut(&[], &mut Rng::new(seed), Cut { cache_lost: true, zrwa_lost: false }).unwrap();
            found = (4..6).map(|lba| read(&mut ssd, lba).0[0]).collect();
            assert_eq!(found, if drops { [0, 0] } else { [2, 2] }, "seed {seed}: what is dropped stays so");
        }
    }
}

/// Content of a block: one byte for each sector of 512 bytes, and one for its metadata.
fn sectors(ssd: &mut Ssd, lba: u64) -> (Vec<u8>, u8) {
    let (data, oob) = read(ssd, lba);
    let one = |bytes: &[u8]| {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {lba}: a sector is torn");
        bytes[0]
    };
    (data.chunks(512).map(one).collect(), one(&oob))
}

#[test]
fn power_cut_may_tear_blocks_in_flight_only() {
    let (mut torn, mut apart) = (0, 0);
    for seed in 0..400 {
        let tears = seed % 4 != 0;
        let mut ssd = Ssd::in_memory(&geometry(false));
        if tears {
            ssd.tear_sectors();
        }
        for command in [open_zrwa(0), write(0, 4, 1, true), write(SIZE, 4, 1, true)] {
            ssd.execute(command).result.unwrap();
        }
        let in_flight = [write(1, 2, 2, true), write(SIZE + 4, 3, 2, true)];
        ssd.power_cut(&in_flight, &mut Rng::new(seed), Cut::default()).unwrap();
        for lba in [0, 3, SIZE, SIZE + 3] {
            assert_eq!(sectors(&mut ssd, lba), (vec![1; 8], 1), "seed {seed}: {lba} was not being written");
        }
        let wp = SIZE + ssd.zones().info(ZoneIndex(1)).wp_blocks;
        for lba in [1, 2, SIZE + 4, SIZE + 5, SIZE + 6] {
            let (data, oob) = sectors(&mut ssd, lba);
            let old = if lba < SIZE { 1 } else { 0 };
            assert!(data.iter().chain([&oob]).all(|byte| [old, 2].contains(byte)), "seed {seed}: {data:?}");
            let whole = data.iter().all(|byte| *byte == data[0]);
            torn += !whole as u32;
            apart += (whole && oob != data[0]) as u32;
            let may = tears && (lba < SIZE || lba == wp && data.is_sorted_by(|a, b| a >= b));
            assert!(whole && oob == data[0] || may, "seed {seed}: {lba} with {data:?} and {oob}");
        }
    }
    assert!(torn > 50 && apart > 2, "{torn} {apart}");
}

#[test]
fn fua_write_may_leave_earlier_writes_volatile() {
    let mut lost = [[0; 2]; 2];
    for seed in 0..400 {
        let alone = seed % 2 == 1;
        let mut ssd = Ssd::in_memory(&geometry(true));
        if alone {
            ssd.let_fua_stand_alone();
        }
        for command in [
            write(0, 2, 1, false),
            open_zrwa(1),
            write(SIZE, 2, 1, false),
            Command::Flush,
            write(2, 4, 2, false),
            write(6, 1, 3, true),
            write(7, 2, 4, false),
            write(SIZE + 2, 4, 2, false),
            // Four blocks beyond the window: its first four blocks are flushed.
            write(SIZE + 11, 1, 3, true),
            write(SIZE + 12, 1, 4, false),
        ] {
            ssd.execute(command).result.unwrap();
        }
        ssd.power_cut(&[], &mut Rng::new(seed), Cut { cache_lost: true, zrwa_lost: false }).unwrap();
        for (zone, fua) in [(0, 6), (1, 11)] {
            let start = zone as u64 * SIZE;
            let wp = ssd.zones().info(ZoneIndex(zone)).wp_blocks;
            assert!(wp >= if zone == 0 { 7 } else { 4 }, "seed {seed}: {wp}");
            let found = |ssd: &mut Ssd, offset| read(ssd, start + offset).0[0];
            let kept = [found(&mut ssd, 0), found(&mut ssd, 1), found(&mut ssd, fua)];
            assert_eq!(kept, [1, 1, 3], "seed {seed}: what is durable");
            let holes = (2..4).filter(|offset| found(&mut ssd, *offset) != 2).count();
            lost[zone as usize][alone as usize] += holes;
        }
    }
    let [[kind, unkind], [kind_zrwa, unkind_zrwa]] = lost;
    assert_eq!((kind, kind_zrwa), (0, 0));
    assert!(unkind > 50 && unkind_zrwa > 50, "{lost:?}");
}

#[test]
fn power_cut_of_image_behaves_like_memory() {
    let folder = std::env::temp_dir().join(format!("zoneraid-power-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for seed in 0..20 {
        let path = folder.join(format!("{seed}.img"));
        let model = Model { name: "power".into(), geometry: geometry(seed % 2 == 0) };
        let image = ImageMedia::create(&path, &model, [7; 16]).unwrap();
        let ssd = Ssd::new(model.geometry.clone(), Box::new(image));
        run(seed, ssd, &mut Reached::default());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
