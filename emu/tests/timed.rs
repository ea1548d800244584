//! The emulated SSD with timing: the same zone rules, the command order of its firmware, and the blocks that reach
//! flash.

use emu::{
    clock::Clock,
    conformance::{Action, ROWS, command, model},
    rng::Rng,
    ssd::{
        Cause, Fault, Model, Ssd, TimedDrive,
        compress::{Choice, CompressedMedia, PAGE, Scheme, Slots, compress},
    },
    timing::{Placement, Timing, ZrwaMedium},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Status, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Zones of 64 blocks, 45 of them writable; ZRWAs of 8 blocks in granules of 2.
fn drive(timing: &Timing, seed: Option<u64>) -> (TimedDrive, Clock) {
    let clock = Clock::new();
    let ssd = Rc::new(RefCell::new(Ssd::in_memory(&model().geometry)));
    (TimedDrive::new(ssd, timing, &clock, seed), clock)
}

fn presets() -> [Timing; 3] {
    ["zn540", "zn540-4tb", "pm1731a"].map(|name| Timing::by_name(name).unwrap())
}

/// Submits all commands at once; returns their completions, and the time of the last one in nanoseconds.
fn all(drive: &TimedDrive, clock: &Clock, commands: Vec<Command>) -> (Vec<Done>, u64) {
    let completions: Vec<_> = commands.into_iter().map(|command| drive.submit(command)).collect();
    let mut answers = Vec::new();
    for completion in completions {
        answers.push(Runtime::new().block_on(completion, || clock.advance()).unwrap());
    }
    (answers, clock.now_ns())
}

fn one(drive: &TimedDrive, clock: &Clock, command: Command) -> Result<(), DeviceError> {
    all(drive, clock, vec![command]).0.remove(0).result
}

fn write(lba: u64, blocks: usize) -> Command {
    Command::write(Lba(lba), Buf::zeroed(blocks * BLOCK), false)
}

fn open_zrwa(zone: u32) -> Command {
    Command::Open { zones: Zones::One(ZoneIndex(zone)), zrwa: true }
}

#[test]
fn timed_drive_keeps_zone_rules() {
    for timing in presets() {
        for &(name, before, step, result, zone, state, wp, zrwa) in ROWS {
            let (drive, clock) = drive(&timing, Some(7));
            let perform = |step: Action| {
                match step {
                    Action::ReadOnly(zone) => {
                        drive.ssd().borrow_mut().faults().after(0, Fault::ReadOnly(ZoneIndex(zone)))
                    }
                    Action::Offline(zone) => {
                        drive.ssd().borrow_mut().faults().after(0, Fault::Offline(ZoneIndex(zone)))
                    }
                    _ => (),
                }
                one(&drive, &clock, command(step))
            };
            for step in before {
                assert_eq!(perform(*step), Ok(()), "{name}: {step:?} comes before");
            }
            assert_eq!(perform(step), result.map_err(Into::into), "{name}");
            let info = drive.ssd().borrow().zones().info(ZoneIndex(zone));
            assert_eq!((info.state, info.wp_blocks, info.zrwa), (state, wp, zrwa), "{name}");
        }
    }
}

#[test]
fn timed_drive_executes_commands_in_firmware_order() {
    for timing in presets() {
        let (drive, clock) = drive(&timing, Some(7));
        let (answers, _) = all(&drive, &clock, (0..20).map(|n| write(n * 2, 2)).collect());
        assert!(answers.iter().all(|done| done.result.is_ok()));
        let (answers, _) = all(&drive, &clock, vec![write(66, 2), write(64, 2), write(66, 2)]);
        let results: Vec<_> = answers.iter().map(|done| done.result).collect();
        assert_eq!(results, [Err(Status::ZoneInvalidWrite.into()), Ok(()), Ok(())]);
        let append = || Command::append(ZoneIndex(2), Buf::zeroed(BLOCK), false);
        let (answers, _) = all(&drive, &clock, vec![append(), append(), append()]);
        assert_eq!(answers.iter().map(|done| done.lba.0).collect::<Vec<_>>(), [128, 129, 130]);
    }
}

#[test]
fn timed_jitter_follows_seed_and_is_absent_without() {
    let took = |seed| {
        let (drive, clock) = drive(&Timing::zn540(), seed);
        all(&drive, &clock, (0..20).map(|n| write(n * 2, 2)).collect()).1
    };
    assert_eq!(took(Some(3)), took(Some(3)));
    assert_ne!(took(Some(3)), took(Some(4)));
    // The first write costs 2 µs more; then 20 services, the last transfer of 8 KiB, and the acknowledgement.
    let expected_us = 2.0 + 20.0 * 5.35 + 8192.0 / 3720.0 + 5.3;
    assert_eq!(took(None), (expected_us * 1000.0) as u64);
}

#[test]
fn timed_zrwa_overwrites_never_reach_flash() {
    for timing in presets() {
        let (drive, clock) = drive(&timing, None);
        drive.set_classifier(Box::new(|block| {
            if block.offset_blocks >= block.wp_blocks + 4 { Cause::PartialParity } else { Cause::Data }
        }));
        assert_eq!(one(&drive, &clock, open_zrwa(0)), Ok(()));
        for command in [write(0, 4), write(4, 2), write(4, 2), Command::FlushZrwa { last: Lba(3) }] {
            assert_eq!(one(&drive, &clock, command), Ok(()));
        }
        assert_eq!(one(&drive, &clock, write(4, 2)), Ok(()));
        let counters = drive.counters();
        let (data, parity) = (Cause::Data as usize, Cause::PartialParity as usize);
        assert_eq!((counters.written[data], counters.written[parity]), (6, 4));
        assert_eq!((counters.programmed[data], counters.programmed[parity]), (4, 0));
        assert_eq!((counters.expired[data], counters.expired[parity]), (0, 4));
        // A finish programs the contents of the ZRWA, and pads the rest of the 45 blocks.
        let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
        assert_eq!(one(&drive, &clock, finish), Ok(()));
        let counters = drive.counters();
        assert_eq!((counters.programmed[data], counters.padding, counters.flash_blocks()), (6, 39, 45));
        // Unwritten blocks that the write pointer passes are programmed as padding; blocks in the ZRWA at a reset
        // expire.
        assert_eq!(one(&drive, &clock, open_zrwa(1)), Ok(()));
        assert_eq!(one(&drive, &clock, write(64 + 2, 4)), Ok(()));
        assert_eq!(one(&drive, &clock, Command::FlushZrwa { last: Lba(64 + 3) }), Ok(()));
        let reset = Command::Reset { zones: Zones::One(ZoneIndex(1)) };
        assert_eq!(one(&drive, &clock, reset), Ok(()));
        let counters = drive.counters();
        assert_eq!((counters.padding, counters.programmed[data]), (41, 8));
        assert_eq!((counters.expired[parity], counters.resets, counters.finishes), (6, 1, 1));
    }
}

#[test]
fn timed_overwrites_cost_bandwidth_only_with_flash_zrwa() {
    let took = |zrwa| {
        // One byte per microsecond, so that the drain rate dominates.
        let slow = Timing {
            zrwa,
            drain_mb_s: Some(1.0),
            program_blocks: 1,
            write_buffer_kib: 32,
            ..Timing::zn540()
        };
        let (drive, clock) = drive(&slow, None);
        assert_eq!(one(&drive, &clock, open_zrwa(0)), Ok(()));
        for _ in 0..20 {
            assert_eq!(one(&drive, &clock, write(0, 8)), Ok(()));
        }
        let written = clock.now_ns();
        assert_eq!(one(&drive, &clock, Command::FlushZrwa { last: Lba(7) }), Ok(()));
        written
    };
    let drained = 19 * 8 * 4_096_000;
    assert!(took(ZrwaMedium::Flash) > drained);
    assert!(took(ZrwaMedium::Dram { acknowledge_us: 5.0 }) < drained / 100);
}

#[test]
fn timed_die_programs_match_counters_and_expired_blocks() {
    for zrwa in [ZrwaMedium::Flash, ZrwaMedium::Dram { acknowledge_us: 5.0 }] {
        let (drive, clock) = drive(&Timing { zrwa, program_blocks: 1, ..Timing::zn540() }, None);
        let programs = Rc::new(Cell::new(0));
        let counted = programs.clone();
        drive.watch_dies(Box::new(move |_, what, _, _| {
            counted.set(counted.get() + u64::from(what == "program"))
        }));
        for command in [
            open_zrwa(0),
            write(0, 4),
            write(2, 4),
            // One hole that a flush passes, and one that a write passes.
            write(7, 1),
            Command::FlushZrwa { last: Lba(7) },
            write(9, 8),
            // Some blocks are still in the ZRWA, with a hole among them.
            write(19, 1),
            Command::Finish { zones: Zones::One(ZoneIndex(0)) },
            write(64, 3),
            Command::Finish { zones: Zones::All },
        ] {
            assert_eq!(one(&drive, &clock, command), Ok(()));
        }
        while clock.advance() {}
        let counters = drive.counters();
        let expired: u64 = if zrwa == ZrwaMedium::Flash { counters.expired.iter().sum() } else { 0 };
        assert_eq!((counters.flash_blocks(), expired > 0), (90, zrwa == ZrwaMedium::Flash));
        // The two holes below the finish are not programmed.
        let holes = if zrwa == ZrwaMedium::Flash { 2 } else { 0 };
        assert_eq!(programs.get(), 90 + expired - holes, "{zrwa:?}");
    }
}

#[test]
fn timed_reset_of_all_zones_skips_worn_ones() {
    let took = |worn: &[Fault]| {
        let (drive, clock) = drive(&Timing::zn540(), None);
        for lba in [0, 64, 128] {
            assert_eq!(one(&drive, &clock, write(lba, 30)), Ok(()));
        }
        worn.iter().for_each(|fault| drive.ssd().borrow_mut().faults().after(0, *fault));
        assert_eq!(one(&drive, &clock, Command::Flush), Ok(()));
        let before = clock.now_ns();
        assert_eq!(one(&drive, &clock, Command::Reset { zones: Zones::All }), Ok(()));
        (drive.counters().resets, clock.now_ns() - before)
    };
    let ((three, all_ns), (one, worn_ns)) =
        (took(&[]), took(&[Fault::ReadOnly(ZoneIndex(1)), Fault::Offline(ZoneIndex(2))]));
    assert_eq!((three, one), (3, 1));
    assert!(worn_ns < all_ns / 2, "{worn_ns} {all_ns}");
}

#[test]
fn timed_zone_may_be_reset_externally_before_write() {
    for timing in presets() {
        let (drive, clock) = drive(&timing, None);
        let reset = |zone| drive.ssd().borrow_mut().faults().after(0, Fault::Reset(ZoneIndex(zone)));
        assert_eq!(one(&drive, &clock, write(0, 10)), Ok(()));
        reset(0);
        assert_eq!(one(&drive, &clock, Command::append(ZoneIndex(0), Buf::zeroed(BLOCK), false)), Ok(()));
        for command in [open_zrwa(1), write(64, 8), Command::FlushZrwa { last: Lba(64 + 7) }] {
            assert_eq!(one(&drive, &clock, command), Ok(()));
        }
        reset(1);
        assert_eq!(one(&drive, &clock, write(64, 1)), Ok(()));
        let wp = |zone| drive.ssd().borrow().zones().info(ZoneIndex(zone)).wp_blocks;
        assert_eq!([wp(0), wp(1)], [1, 1]);
    }
}

#[test]
fn timed_writes_complete_with_smallest_write_buffer() {
    for timing in presets() {
        let (drive, clock) = drive(&Timing { write_buffer_kib: 4, ..timing }, Some(1));
        let (answers, _) =
            all(&drive, &clock, vec![write(0, 45), write(64, 1), write(128, 45), write(65, 40)]);
        assert!(answers.iter().all(|done| done.result.is_ok()));
        assert_eq!(one(&drive, &clock, open_zrwa(3)), Ok(()));
        assert_eq!(one(&drive, &clock, write(192, 16)), Ok(()));
        assert_eq!(one(&drive, &clock, Command::Finish { zones: Zones::All }), Ok(()));
        assert_eq!(one(&drive, &clock, Command::Reset { zones: Zones::All }), Ok(()));
    }
}

#[test]
fn timed_reads_return_data_and_fail_after_drop() {
    for timing in presets() {
        let (drive, clock) = drive(&timing, Some(1));
        let data = Buf::copy_of(&[9; 6 * BLOCK]);
        assert_eq!(one(&drive, &clock, Command::write(Lba(0), data, false)), Ok(()));
        let (mut answers, _) = all(&drive, &clock, vec![Command::read(Lba(1), Buf::zeroed(6 * BLOCK))]);
        let done = answers.remove(0);
        assert_eq!((done.data[0], done.data[5 * BLOCK - 1], done.data[5 * BLOCK]), (9, 9, 0));
        let mut lost = drive.submit(Command::read(Lba(0), Buf::zeroed(BLOCK)));
        drop(drive);
        while clock.advance() {}
        assert_eq!(lost.take().unwrap().result, Err(DeviceError::Gone));
    }
}

#[test]
fn timed_namespaces_share_bandwidth_and_counters() {
    let writes = || (0..20).map(|n| write(n * 2, 2)).collect::<Vec<_>>();
    let (first, clock) = drive(&Timing::zn540(), None);
    let alone = all(&first, &clock, writes()).1;
    let (first, clock) = drive(&Timing::zn540(), None);
    let second = first.namespace(Rc::new(RefCell::new(Ssd::in_memory(&model().geometry))));
    let behind: Vec<_> = writes().into_iter().map(|command| first.submit(command)).collect();
    let (answers, both) = all(&second, &clock, writes());
    assert!(answers.iter().all(|done| done.result.is_ok()));
    assert!(behind.into_iter().all(|mut done| done.take().unwrap().result.is_ok()));
    // Only the acknowledgement and the first write of a zone do not take twice as long.
    assert!(both > alone * 19 / 10 && both < alone * 2, "{both} ns for two, {alone} ns for one");
    assert_eq!(first.counters(), second.counters());
    assert_eq!(first.counters().written[Cause::Data as usize], 40);
}

/// A PM1731a with small zones, and `pages` pages written from the start of the first one, of which `parts` of 16 parts
/// do not compress, in turn; and the time of these writes in nanoseconds.
fn filled(scheme: Option<Scheme>, pages: usize, parts: &[usize]) -> (TimedDrive, Clock, u64) {
    // A small buffer, which is full at once.
    filled_as(Timing { write_buffer_kib: 512, ..Timing::pm1731a() }, scheme, pages, parts)
}

fn filled_as(
    timing: Timing,
    scheme: Option<Scheme>,
    pages: usize,
    parts: &[usize],
) -> (TimedDrive, Clock, u64) {
    let (clock, geometry) = (Clock::new(), Model::pm1731a().scaled(2, 4096).geometry);
    let ssd = match scheme {
        Some(scheme) => Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme))),
        None => Ssd::in_memory(&geometry),
    };
    let drive = TimedDrive::new(Rc::new(RefCell::new(ssd)), &timing, &clock, None);
    let (mut noise, mut data) = (Rng::new(1), vec![0; pages * PAGE]);
    for (page, parts) in data.chunks_mut(PAGE).zip(parts.iter().cycle()) {
        noise.fill(&mut page[..PAGE / 16 * parts]);
    }
    let writes = data.chunks(64 * BLOCK).enumerate();
    let write = |(n, data): (usize, &[u8])| Command::write(Lba(n as u64 * 64), Buf::copy_of(data), false);
    let (answers, took) = all(&drive, &clock, writes.map(write).collect());
    assert!(answers.iter().all(|done| done.result.is_ok()));
    while clock.advance() {}
    (drive, clock, took)
}

/// Time to read `pages` pages, in nanoseconds.
fn read_ns((drive, clock, _): &(TimedDrive, Clock, u64), page: usize, pages: usize) -> u64 {
    let before = clock.now_ns();
    let read = Command::read(Lba(page as u64 * 4), Buf::zeroed(pages * PAGE));
    assert_eq!(one(drive, clock, read), Ok(()));
    clock.now_ns() - before
}

const BRAID: Option<Scheme> = Some(Scheme::Braid(Choice::BySizes));

#[test]
fn timed_compressible_data_programs_faster() {
    let took = |scheme, parts| filled(scheme, 1024, &[parts]).2;
    let (plain, quarter, noise) = (took(None, 3), took(BRAID, 3), took(BRAID, 16));
    assert!(quarter * 2 < plain, "{quarter} {plain}");
    assert!(noise.abs_diff(plain) < plain / 20, "{noise} {plain}");
}

#[test]
fn timed_read_senses_shared_flash_page_once() {
    let (plain, braid) = (filled(None, 256, &[3]), filled(BRAID, 256, &[3]));
    // One page: its content is expanded, and only its compressed unit is transferred.
    let (timing, mut stored) = (Timing::pm1731a(), vec![0; PAGE]);
    Rng::new(1).fill(&mut stored[..PAGE / 16 * 3]);
    let less_us = (PAGE - compress(&stored).len()) as f64 / timing.channel_read_mb_s;
    let expected = read_ns(&plain, 8, 1) as f64 / 1e3 + timing.expand_us - less_us;
    assert!((read_ns(&braid, 8, 1) as f64 / 1e3 - expected).abs() < 0.1);
    // Four pages: three flash pages less are sensed.
    let sense_ns = ((timing.read_page_us + timing.channel_read_us) * 1e3) as u64;
    assert!(read_ns(&plain, 8, 4) > read_ns(&braid, 8, 4) + 3 * sense_ns);
}

#[test]
fn timed_incompressible_read_costs_only_one_expansion() {
    let (plain, braid) = (filled(None, 256, &[16]), filled(BRAID, 256, &[16]));
    let expand_ns = (Timing::pm1731a().expand_us * 1e3) as u64;
    for pages in [1, 2, 8] {
        let (plain, braid) = (read_ns(&plain, 8, pages), read_ns(&braid, 8, pages));
        assert!((plain + expand_ns).abs_diff(braid) < 100, "{pages} pages: {plain} {braid}");
    }
}

#[test]
fn timed_truncated_rest_waits_only_for_its_page() {
    // A quarter of each of four flash pages, on dies 0, 1, 2, and 0 again; a truncated rest of the second one, on die
    // 1.
    let timing = Timing { placement: Placement::Striped, dies: 3, channels: 3, ..Timing::pm1731a() };
    let took = |outlier| {
        let mut parts = [3; 16];
        parts[5] = outlier;
        let balloon = Some(Scheme::Balloon(Slots::LeastSpace));
        let drive = filled_as(timing.clone(), balloon, 256, &parts);
        let truncated = drive.0.ssd().borrow().space().unwrap().0.truncated;
        (read_ns(&drive, 0, 16), truncated)
    };
    let ((whole, none), (truncated, some)) = (took(3), took(9));
    assert_eq!((none, some), (0, 16));
    let sense_ns = ((timing.read_page_us + timing.channel_read_us) * 1e3) as u64;
    assert!(truncated < whole + sense_ns / 2, "{whole} {truncated}");
}

#[test]
fn timed_dram_zrwa_write_includes_compression_time() {
    let took = |scheme: Option<Scheme>| {
        let (clock, geometry) = (Clock::new(), model().geometry);
        let ssd = match scheme {
            Some(scheme) => Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme))),
            None => Ssd::in_memory(&geometry),
        };
        let drive = TimedDrive::new(Rc::new(RefCell::new(ssd)), &Timing::pm1731a(), &clock, None);
        assert_eq!(one(&drive, &clock, open_zrwa(0)), Ok(()));
        let before = clock.now_ns();
        assert_eq!(one(&drive, &clock, write(0, 8)), Ok(()));
        clock.now_ns() - before
    };
    let compress_ns = (Timing::pm1731a().compress_us * 1e3) as u64;
    assert!(took(BRAID).abs_diff(took(None) + compress_ns) < 2);
}

#[test]
fn timed_truncated_page_is_read_twice_sequentially() {
    let parts = [&[3; 15][..], &[9]].concat();
    let drive = filled(Some(Scheme::Balloon(Slots::LeastSpace)), 256, &parts);
    let timing = Timing::pm1731a();
    let sense_ns = ((timing.read_page_us + timing.channel_read_us) * 1e3) as u64;
    let (whole, truncated) = (read_ns(&drive, 16, 1), read_ns(&drive, 15, 1));
    assert!((whole + sense_ns..whole + 2 * sense_ns).contains(&truncated), "{whole} {truncated}");
    let counted = drive.0.ssd().borrow().space().unwrap();
    assert_eq!((counted.0.truncated, counted.1.pages, counted.1.flash_pages), (16, 2, 3));
}

#[test]
fn timed_compressing_drive_keeps_zone_rules() {
    for &(name, before, step, result, ..) in ROWS {
        let (clock, geometry) = (Clock::new(), model().geometry);
        let scheme = Scheme::Braid(Choice::BySizes);
        let ssd = Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme)));
        let drive = TimedDrive::new(Rc::new(RefCell::new(ssd)), &Timing::zn540(), &clock, Some(7));
        let perform = |step: Action| {
            match step {
                Action::ReadOnly(zone) => {
                    drive.ssd().borrow_mut().faults().after(0, Fault::ReadOnly(ZoneIndex(zone)))
                }
                Action::Offline(zone) => {
                    drive.ssd().borrow_mut().faults().after(0, Fault::Offline(ZoneIndex(zone)))
                }
                _ => (),
            }
            one(&drive, &clock, command(step))
        };
        before.iter().for_each(|step| assert_eq!(perform(*step), Ok(()), "{name}: {step:?} comes before"));
        assert_eq!(perform(step), result.map_err(Into::into), "{name}");
    }
}
