//! Lone synchronous writes of a volume on an array that keeps notes: they take little more than a block each, and are
//! found after an end at any moment, with any member lost, from the note or from the trailer.

use crate::support::{
    array::run,
    volume::block,
    zrwa_volume::{Running, Scene},
};
use emu::ssd::{EmulatedDrive, Fault};
use engine::{
    array::{Array, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, Geometry, Slots, ZonedDevice},
    runtime::Runtime,
    volume::{Volume, VolumeOptions},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Every block is of random bytes, so nothing is squeezed.
#[test]
fn lone_synchronous_writes_take_one_block_and_share_trailers() {
    let scene = Scene::new((4, 1), 16, 640);
    let running = scene.start(&[]);
    let before = running.status().written;
    let contents: Vec<(u64, u8)> = (0..300).map(|at| (at * 7, at as u8)).collect();
    contents.iter().for_each(|(at, byte)| running.write(*at, *byte));
    let after = running.status().written;
    let (data, headers) = (after.data - before.data, after.headers - before.headers);
    // A trailer for 15 blocks in a chunk of 16, and some headers at the starts of zones and in their last rows.
    assert_eq!(data, 300);
    assert!((20..=30).contains(&headers), "{headers} headers of {data} blocks");
    running.check(&contents, "while it runs");
    running.kill();
}

/// A flush after each write makes it synchronous, once that is expected.
#[test]
fn writes_with_flushes_share_trailers_and_others_do_not() {
    let scene = Scene::new((4, 1), 16, 640);
    let running = scene.start(&[]);
    let headers_of = |flushes: bool, from: u64| {
        let before = running.status().written.headers;
        for at in from..from + 60 {
            run(&running.runtime, running.volume.write(at, &block(at as u8), false)).unwrap();
            if flushes {
                run(&running.runtime, running.volume.flush()).unwrap();
            }
        }
        running.status().written.headers - before
    };
    assert_eq!(headers_of(false, 0), 60);
    let headers = headers_of(true, 60);
    assert!(headers < 10, "{headers} headers");
    // A program that does not flush any more.
    assert!(headers_of(false, 120) > 50);
    running.kill();
}

#[test]
fn lone_writes_are_found_with_any_members_lost() {
    for (members, parities) in [(3, 1), (4, 1), (5, 2)] {
        let scene = Scene::new((members, parities), 4, 640);
        let running = scene.start(&[]);
        let mut contents = Vec::new();
        for at in 0..26 {
            running.write(at, at as u8 + 1);
            contents.push((at, at as u8 + 1));
            for lost in scene.losses() {
                let what = format!("{members} members without {lost:?}, after {} writes", at + 1);
                let copy = scene.copy();
                let started = copy.start(&lost);
                started.check(&contents, &what);
                // It goes on, and the trailer is found, too.
                started.write(40, 99);
                started.kill();
                let again = copy.start(&lost);
                again.check(&contents, &what);
                again.check(&[(40, 99)], &what);
                again.kill();
            }
        }
        assert!(scene.trailers().len() >= 5, "{} trailers", scene.trailers().len());
        running.kill();
    }
}

/// A start may be interrupted after any of its commands; the next one finds the same.
#[test]
fn start_that_is_interrupted_finds_the_note_again() {
    let scene = Scene::new((4, 1), 4, 640);
    let running = scene.start(&[]);
    let contents = running.write_lone(18);
    running.kill();
    for commands in 0.. {
        let copy = scene.copy();
        let runtime = Runtime::new();
        let left = Rc::new(Cell::new(commands));
        let drives = copy.leaving(&left);
        let started = runtime.block_on(
            async {
                let array = Array::assemble(&runtime, drives).await.ok()?;
                Volume::open(&runtime, Rc::new(array), VolumeOptions::default()).await.ok()
            },
            || false,
        );
        let is_whole = matches!(started, Some(Some(_)));
        runtime.clear();
        drop(started);
        let again = copy.start(&[]);
        again.check(&contents, format!("after a start of {commands} commands"));
        again.kill();
        if is_whole {
            assert!(commands > 20, "{commands}");
            return;
        }
    }
}

#[test]
fn collection_moves_blocks_before_trailers_and_damaged_ones_are_reconstructed() {
    let scene = Scene::new((4, 1), 16, 160);
    let running = scene.start(&[]);
    let lasting: Vec<(u64, u8)> = (0..200).map(|at| (at * 3, at as u8)).collect();
    for (at, byte) in &lasting {
        running.write(*at, *byte);
        running.write(at + 1, 1);
    }
    let trailers = scene.trailers();
    assert!(trailers.len() > 20, "{} trailers", trailers.len());
    for (member, lba, _) in trailers.into_iter().step_by(3) {
        scene.drives[member].ssd().borrow_mut().faults().after(0, Fault::Corrupt { lba, bit: 77 });
        let report = scene.drives[member].submit(Command::Report { first: ZoneIndex(0), count: 1 });
        run(&running.runtime, report).result.unwrap();
    }
    let usable = running.status().usable;
    let mut at = 601;
    while running.status().collected_zones < 8 {
        at = 601 + (at + 7919) % (usable - 601);
        run(&running.runtime, running.volume.write(at, &block(at as u8), false)).unwrap();
    }
    assert!(running.status().written.moved > 100);
    running.check(&lasting, "after collection");
    running.kill();
    let again = scene.start(&[]);
    again.check(&lasting, "after another start");
    again.kill();
}

/// A start and collection look for headers and trailers where such a group has its data.
#[test]
fn data_that_looks_like_a_header_is_not_written_before_a_trailer() {
    let scene = Scene::new((4, 1), 16, 640);
    let running = scene.start(&[]);
    running.write(0, 1);
    let headers_of = |start: &[u8]| {
        let before = running.status().written.headers;
        for at in 1..8 {
            let mut data = block(at as u8).to_vec();
            data[..start.len()].copy_from_slice(start);
            run(&running.runtime, running.volume.write(at, &Buf::copy_of(&data), true)).unwrap();
        }
        running.status().written.headers - before
    };
    assert_eq!((headers_of(b"zvg2"), headers_of(b"zvg1")), (0, 8));
    running.kill();
}

/// A read-only zone gets no trailer; collection reads its note, and a start that finds it writable again writes it.
#[test]
fn pending_trailer_of_read_only_zone_is_found_by_its_note() {
    let scene = Scene::new((4, 1), 16, 160);
    let running = scene.start(&[]);
    let lasting = running.write_lone(7);
    running.kill();
    let zone = scene.blocks_with(b"zvg1")[0].1;
    let zone = scene.drives[0].geometry().locate(zone).0;
    let wear = |member: usize| {
        scene.drives[member].ssd().borrow_mut().faults().after(0, Fault::ReadOnly(zone));
        let report = scene.drives[member].submit(Command::Report { first: ZoneIndex(0), count: 1 });
        run(&Runtime::new(), report).result.unwrap();
    };
    (0..2).for_each(wear);
    let running = scene.start(&[]);
    running.check(&lasting, "in a read-only zone");
    let usable = running.status().usable;
    let mut at = 601;
    while running.status().collected_zones < 40 {
        at = 601 + (at + 7919) % (usable - 601);
        run(&running.runtime, running.volume.write(at, &block(at as u8), false)).unwrap();
    }
    running.check(&lasting, "after collection");
    assert_eq!(running.status().unreadable_zones, 0);
    running.kill();
}

/// The end that is acknowledged with an earlier write does not lie behind the note, which may not be logged yet.
#[test]
fn write_with_note_is_not_acknowledged_with_earlier_one() {
    let scene = Scene::new((4, 1), 16, 640);
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, scene.there(&[]))).unwrap();
    let zone = ZoneIndex(array.geometry().zones - 1);
    let start = array.geometry().start(zone).0;
    let first = array.submit(Command::write(Lba(start), block(1), false));
    let second = array.write_with_note(Lba(start + 1), block(2), Buf::copy_of(b"note"));
    let third = array.submit(Command::write(Lba(start + 2), block(3), false));
    let tails = [first, second, third].map(|completion| run(&runtime, completion).tail);
    assert_eq!(tails, [1, 2, 3]);
    assert!(array.note(zone).is_none());
    runtime.clear();
}

/// An array of which writes with notes can be held.
struct Late {
    array: Array,
    holds: Cell<bool>,
    slots: Rc<Slots>,
    held: RefCell<Vec<Completer>>,
}

impl ZonedDevice for Late {
    fn geometry(&self) -> &Geometry {
        self.array.geometry()
    }

    fn note_room(&self, lba: Lba, blocks: u64) -> usize {
        self.array.note_room(lba, blocks)
    }

    fn write_with_note(&self, lba: Lba, data: Buf, note: Buf) -> Completion {
        if !self.holds.get() {
            return self.array.write_with_note(lba, data, note);
        }
        let (completer, completion) = self.slots.pair();
        self.held.borrow_mut().push(completer);
        completion
    }

    fn submit(&self, command: Command) -> Completion {
        self.array.submit(command)
    }
}

/// Blocks before one trailer are adjacent on the device, and land one by one.
#[test]
fn blocks_before_trailer_are_read_from_memory_until_they_land() {
    let scene = Scene::new((4, 1), 16, 640);
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, scene.there(&[]))).unwrap();
    let (holds, slots, held) = Default::default();
    let late = Rc::new(Late { array, holds, slots, held });
    let volume = run(&runtime, Volume::open(&runtime, late.clone(), VolumeOptions::default())).unwrap();
    for at in 0..3 {
        run(&runtime, volume.write(at, &block(at as u8), true)).unwrap();
    }
    late.holds.set(true);
    let writer = volume.clone();
    runtime.spawn(async move {
        _ = writer.write(3, &block(3), true).await;
    });
    runtime.run();
    assert_eq!(late.held.borrow().len(), 1);
    // Aligned with the pieces, and behind an unmapped block, so that the parts of the read are found one by one.
    for (from, blocks) in [(1, 3), (1, 5)] {
        let read = run(&runtime, volume.read(from, Buf::zeroed(blocks * BLOCK))).unwrap();
        for at in 1..4 {
            let found = &read[(at - from as usize) * BLOCK..][..BLOCK];
            assert!(found == &block(at as u8)[..], "block {at} of {blocks}");
        }
    }
    runtime.clear();
}

#[test]
fn lone_writes_are_found_on_rebuilt_member_alone() {
    for member in 0..4 {
        let scene = Scene::new((4, 1), 16, 640);
        let running = scene.start(&[]);
        let contents = running.write_lone(20);
        let Running { runtime, array, volume } = running;
        run(&runtime, array.fail(member)).unwrap();
        let shape = scene.drives[0].geometry().clone();
        let new = EmulatedDrive::in_memory(&shape);
        let drive = Drive { name: "new".into(), device: Rc::new(new.clone()) };
        run(&runtime, array.attach(member, drive)).unwrap();
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        runtime.clear();
        drop((array, volume));
        let mut drives = scene.drives.clone();
        drives[member] = new;
        let rebuilt = Scene { drives, parities: 1 };
        for lost in (0..4).filter(|lost| *lost != member) {
            let copy = rebuilt.copy();
            let started = copy.start(&[lost]);
            started.check(&contents, format!("member {member} is rebuilt, {lost} is lost"));
            started.kill();
        }
    }
}
