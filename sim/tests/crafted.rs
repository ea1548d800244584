//! Forged metadata: every checksum is right, and the values are not.
//!
//! A drive with such metadata is treated as damaged: it is named, with the invalid field, and the array runs without
//! it. Nothing panics, and no memory or time is spent in proportion to a forged number.

use crate::support::{
    self,
    array::{check, options, run, write},
    rig::{Act, Rig},
};
use emu::rng::Rng;
use engine::{
    array::{Array, CreateOptions, Drive, DriveExamination, MemberState, examine},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice, Zones},
    format::{
        Origin, Uuid, VERSION,
        oob::{Content, Mark, OOB_BYTES, SUMMED_OOB_BYTES},
        record::{
            BadBlocks, BurnedRange, Checkpoint, HEADER_BYTES, Header, Lacks, ParityRecord, PartBadBlocks,
            RELOCATED, Record, TailRecord, ZoneRecord,
        },
        superblock::{CELLS, NOTES, Superblock, SuperblockMember},
    },
    raid::{geometry::META_ZONES, policy::Policy},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, ops::Range, rc::Rc};

const MEMBERS: usize = 4;
/// The member with forged metadata.
const LIAR: usize = 1;

fn geometry(policy: Policy) -> Geometry {
    let geometry = support::array::geometry(12, 220, 8);
    if policy == Policy::Log { Geometry { zrwa: None, ..geometry } } else { geometry }
}

/// An array with data that is not running.
struct Bed {
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    /// The member's metadata before it is forged.
    found: DriveExamination,
    /// Number of blocks read.
    read_blocks: Rc<Cell<u64>>,
}

impl Bed {
    fn new(policy: Policy) -> Bed {
        let rig = Rig::new();
        let drives: Vec<Drive> = (0..MEMBERS).map(|_| rig.drive(&geometry(policy))).collect();
        let runtime = Runtime::new();
        let options = CreateOptions { policy: Some(policy), ..options(8) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        write(&runtime, &array, 0, 0, 11, true);
        write(&runtime, &array, 1, 0, 640, true);
        write(&runtime, &array, 2, 0, 50, true);
        run(&runtime, array.submit(Command::Reset { zones: Zones::One(ZoneIndex(2)) })).result.unwrap();
        write(&runtime, &array, 2, 0, 5, true);
        // A tail that member `LIAR` is one of those to log.
        write(&runtime, &array, 3, 0, 27, true);
        runtime.clear();
        let read_blocks = Rc::new(Cell::new(0));
        let count = read_blocks.clone();
        rig.rule(move |_, command| {
            if let Command::Read { data, .. } = command {
                count.set(count.get() + data.blocks());
            }
            Act::Pass
        });
        let found = run(&runtime, examine(&runtime, &drives[LIAR])).unwrap();
        Bed { rig, drives, found, read_blocks }
    }

    fn liar(&self) -> &Drive {
        &self.drives[LIAR]
    }

    /// The inactive metadata zone, into which a newer log is written.
    fn zone(&self) -> ZoneIndex {
        ZoneIndex(self.found.generation as u32 % 2)
    }

    fn origin(&self, block: u64) -> Origin {
        let lba = self.liar().device.geometry().start(self.zone()).0 + block;
        Origin { array: self.found.superblock.array, member: LIAR as u32, lba }
    }

    fn submit(&self, command: Command) {
        let runtime = Runtime::new();
        assert_eq!(run(&runtime, self.liar().device.submit(command)).result, Ok(()));
    }

    /// Resets a metadata zone and writes `bytes` to it.
    fn put_in(&self, zone: ZoneIndex, bytes: &[u8]) {
        self.submit(Command::Reset { zones: Zones::One(zone) });
        let start = self.liar().device.geometry().start(zone).0;
        for (at, piece) in (start..).step_by(32).zip(bytes.chunks(32 * BLOCK)) {
            self.submit(Command::write(Lba(at), Buf::copy_of(piece), true));
        }
    }

    /// Resets the inactive metadata zone and writes `bytes` to it.
    fn put(&self, bytes: &[u8]) {
        self.put_in(self.zone(), bytes);
    }

    /// A checkpoint that could be the next one of the log.
    fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            generation: self.found.generation + 1,
            incomplete: Default::default(),
            moved: Default::default(),
            superblock: self.found.superblock.clone(),
            zones: vec![ZoneRecord::default(); self.found.superblock.zones as usize],
            burned: Vec::new(),
            bad_blocks: Vec::new(),
            parity: Vec::new(),
            tails: Vec::new(),
        }
    }

    /// Checks that the array runs without the forged member, for a reason that names it and the field, and has all its
    /// data.
    fn expect_damaged(&self, field: &str) {
        let runtime = Runtime::new();
        let name = &self.liar().name;
        let words = |said: &str| {
            let named = said.contains(name.as_str()) && said.contains("damaged") && said.contains(field);
            assert!(named, "not {field} of {name}: {said}");
        };
        words(&run(&runtime, examine(&runtime, self.liar())).expect_err(field).to_string());
        let inspected = run(&runtime, Array::inspect(&runtime, self.drives.clone(), None)).unwrap();
        words(&inspected.status.members[LIAR].note.to_string());
        let array = run(&runtime, Array::assemble(&runtime, self.drives.clone())).unwrap();
        for (role, member) in array.status().members.into_iter().enumerate() {
            let state = if role == LIAR { MemberState::Out } else { MemberState::Active };
            assert_eq!(member.state, state, "{field}: {}", member.note);
        }
        words(&array.status().members[LIAR].note.to_string());
        for (zone, tail) in [(0, 11), (1, 640), (2, 5), (3, 27)] {
            check(&runtime, &array, zone, tail);
        }
        runtime.clear();
    }
}

type Change = fn(&mut Superblock);

/// A forged part of the metadata.
enum Lie {
    Superblock(Change),
    Checkpoint(fn(&mut Checkpoint)),
    /// Four bytes at an offset into the checkpoint.
    Number(usize, u32),
    /// A record behind the checkpoint, with its sequence number.
    Record(Record, u64),
}

use Lie::{Checkpoint as InCheckpoint, Number, Record as Behind, Superblock as InSuperblock};

/// Offset of the superblock's head in a checkpoint, and of the counts behind the members and the only assembly.
const SUPERBLOCK_AT: usize = HEADER_BYTES + 8;
const COUNTS_AT: usize = SUPERBLOCK_AT + MEMBERS_AT + 112 * MEMBERS + 16;
/// Offset of the superblock's members from the start of its head.
const MEMBERS_AT: usize = 240;

fn lies() -> Vec<(&'static str, Lie)> {
    let parity = |zone, index, stripe, from, blocks: usize| {
        let data = Buf::zeroed(blocks * BLOCK);
        Behind(Record::Parity(ParityRecord { zone, epoch: 0, stripe, index, from, data }), 60)
    };
    let tail = |zone, tail_blocks| TailRecord { zone, generation: 0, epoch: 0, tail_blocks };
    vec![
        ("zones", InSuperblock(|s| s.zones = 4_000_000_000)),
        ("zones", InSuperblock(|s| s.zones = 11)),
        ("zones", InSuperblock(|s| s.zones = 0)),
        ("rows", InSuperblock(|s| s.rows = 1 << 62)),
        ("rows", InSuperblock(|s| s.rows = u64::MAX)),
        ("rows", InSuperblock(|s| s.rows = 28)),
        ("rows", InSuperblock(|s| s.rows = 0)),
        ("zone size", InSuperblock(|s| s.zone_size_blocks = 0)),
        ("zone size", InSuperblock(|s| s.zone_size_blocks = 640)),
        ("zone size", InSuperblock(|s| s.zone_size_blocks = u64::MAX)),
        ("chunk blocks", InSuperblock(|s| s.chunk_blocks = 1)),
        ("chunk blocks", InSuperblock(|s| s.chunk_blocks = 0)),
        ("chunk blocks", InSuperblock(|s| s.chunk_blocks = 12)),
        ("chunk blocks", InSuperblock(|s| s.chunk_blocks = 1 << 31)),
        ("distance", InSuperblock(|s| s.distance = 0)),
        ("distance", InSuperblock(|s| s.distance = 28)),
        ("distance", InSuperblock(|s| s.distance = u32::MAX)),
        ("aggregate", InSuperblock(|s| s.aggregate = 0)),
        ("aggregate", InSuperblock(|s| s.aggregate = 3)),
        ("aggregate", InSuperblock(|s| s.aggregate = 32)),
        ("max active", InSuperblock(|s| s.max_active = 0)),
        ("max active", InSuperblock(|s| s.max_active = 11)),
        ("log blocks", InSuperblock(|s| s.log_blocks = 0)),
        ("log blocks", InSuperblock(|s| s.log_blocks = u32::MAX)),
        ("event", InSuperblock(|s| s.event = 0)),
        ("event", InSuperblock(|s| s.event = 1 << 63)),
        ("event", InSuperblock(|s| s.event = 1 << 61)),
        ("floor", InSuperblock(|s| s.floor = s.event + 1)),
        ("assembly", InSuperblock(|s| s.assembly = u64::MAX)),
        ("name", InSuperblock(|s| s.name = "../../etc/cron.d/x".into())),
        ("name", InSuperblock(|s| s.name = "tank\u{1b}[2J".into())),
        ("name", InSuperblock(|s| s.name = "knat\u{202e}".into())),
        ("name", InSuperblock(|s| s.name = "two\nlines".into())),
        ("name", InSuperblock(|s| s.name = "-rf".into())),
        ("name", InSuperblock(|s| s.name = "..".into())),
        ("name", InSuperblock(|s| s.name.clear())),
        // The second byte of the name is not UTF-8.
        ("name", Number(SUPERBLOCK_AT + 40, 0xffff_ff74)),
        ("autostart", Number(SUPERBLOCK_AT + 192, 2)),
        ("autostart", Number(SUPERBLOCK_AT + 192, u32::MAX)),
        ("stage", Number(SUPERBLOCK_AT + 196, 0)),
        ("stage", Number(SUPERBLOCK_AT + 196, 4)),
        ("stage", Number(SUPERBLOCK_AT + 196, u32::MAX)),
        ("size", InSuperblock(|s| s.members[3].drive_id.size_bytes = (1 << 63) + 1)),
        ("size", InSuperblock(|s| s.members[0].drive_id.size_bytes = u64::MAX)),
        ("model", InSuperblock(|s| s.members[3].drive_id.model = "ZN\u{1b}[2J".into())),
        ("model", InSuperblock(|s| s.members[0].drive_id.model = " ".into())),
        ("serial", InSuperblock(|s| s.members[3].drive_id.serial = "1\n2".into())),
        ("serial", InSuperblock(|s| s.members[0].drive_id.serial = "\u{202e}1".into())),
        // Not UTF-8, in the last member.
        ("model", Number(SUPERBLOCK_AT + MEMBERS_AT + 112 * (MEMBERS - 1) + 48, 0xffff_ff74)),
        ("serial", Number(SUPERBLOCK_AT + MEMBERS_AT + 112 * (MEMBERS - 1) + 88, 0xffff_ff74)),
        ("since", InSuperblock(|s| s.members[3].since = s.event + 1)),
        ("uuid", InSuperblock(|s| s.members[3].uuid = s.members[0].uuid)),
        ("members", InSuperblock(|s| s.members.truncate(2))),
        ("members", InSuperblock(|s| s.members.resize(33, s.members[0].clone()))),
        ("members", Number(SUPERBLOCK_AT + 148, u32::MAX)),
        ("policy", Number(SUPERBLOCK_AT + 168, 4)),
        ("policy", Number(SUPERBLOCK_AT + 168, 0)),
        ("array", InSuperblock(|s| s.array = Uuid([9; 16]))),
        ("zone records", Number(COUNTS_AT, 4_000_000_000)),
        ("zone records", Number(COUNTS_AT, 0)),
        ("zone records", InCheckpoint(|c| c.zones.truncate(9))),
        ("parities", Number(COUNTS_AT + 4, u32::MAX)),
        ("tails", Number(COUNTS_AT + 8, u32::MAX)),
        ("burned", Number(COUNTS_AT + 12, u32::MAX)),
        ("bad blocks", Number(COUNTS_AT + 16, u32::MAX)),
        ("generation", InCheckpoint(|c| c.generation = u64::MAX)),
        ("finished", InCheckpoint(|c| c.zones[3].finished = Some(649))),
        ("finished", InCheckpoint(|c| c.zones[3].finished = Some(1 << 62))),
        ("lost", InCheckpoint(|c| c.zones[3].lost = 1 << 4)),
        ("lost", InCheckpoint(|c| c.zones[3].lost = u32::MAX)),
        ("waits", InCheckpoint(|c| c.zones[3].waits = 1 << 4)),
        ("place", InCheckpoint(|c| _ = c.moved.insert(3, 11))),
        ("place", InCheckpoint(|c| _ = c.moved.insert(3, 12))),
        ("place", InCheckpoint(|c| _ = c.moved.insert(3, u32::MAX))),
        ("place", InCheckpoint(|c| c.moved = [(3, 12), (4, 12)].into())),
        ("zone of bad blocks", InCheckpoint(|c| c.bad_blocks.push(bad_block(10, 0, 0, 1)))),
        ("member of bad blocks", InCheckpoint(|c| c.bad_blocks.push(bad_block(0, 4, 0, 1)))),
        ("start of bad blocks", InCheckpoint(|c| c.bad_blocks.push(bad_block(0, 0, 2, 1)))),
        ("end of bad blocks", InCheckpoint(|c| c.bad_blocks.push(bad_block(0, 0, 0, 217)))),
        ("zone of burned", InCheckpoint(|c| c.burned.push(burned(10, 0, 0, 1)))),
        ("member of burned", InCheckpoint(|c| c.burned.push(burned(0, 4, 0, 1)))),
        ("from", InCheckpoint(|c| c.burned.push(burned(0, 0, 2, 1)))),
        ("to", InCheckpoint(|c| c.burned.push(burned(0, 0, 0, u64::MAX)))),
        ("to", InCheckpoint(|c| c.burned.push(burned(0, 0, 0, 217)))),
        (
            "tail",
            InCheckpoint(|c| c.tails.push(TailRecord { zone: 0, generation: 0, epoch: 0, tail_blocks: 649 })),
        ),
        ("sequence", Behind(Record::Reset { first: 0, count: 1 }, u64::MAX)),
        ("zone", Behind(Record::Reset { first: 10, count: 1 }, 60)),
        ("count", Behind(Record::Reset { first: 9, count: 2 }, 60)),
        ("count", Behind(Record::ResetDone { first: 1, count: u32::MAX, epoch: 0 }, 60)),
        ("zone", Behind(Record::Finish { zone: 1 << 20, epoch: 0, tail_blocks: 0 }, 60)),
        ("tail", Behind(Record::Finish { zone: 0, epoch: 0, tail_blocks: 649 }, 60)),
        ("zone", Behind(Record::Rebuilt { zone: 10, epoch: 0, members: 1 }, 60)),
        ("members", Behind(Record::Rebuilt { zone: 0, epoch: 0, members: 1 << 31 }, 60)),
        ("zone", Behind(Record::Lacks(Lacks { zone: 10, epoch: 0, members: 1 }), 60)),
        ("members that lack", Behind(Record::Lacks(Lacks { zone: 0, epoch: 0, members: 1 << 4 }), 60)),
        ("zone of bad blocks", Behind(Record::BadBlocks(bad_blocks(10, 0, 0..1)), 60)),
        ("member of bad blocks", Behind(Record::BadBlocks(bad_blocks(0, 4, 0..1)), 60)),
        ("end of bad blocks", Behind(Record::BadBlocks(bad_blocks(0, 0, 0..u64::MAX)), 60)),
        ("zone", Behind(Record::Decided { zone: 10, epoch: 0 }, 60)),
        ("zone of tail", Behind(Record::Tail(tail(10, 1)), 60)),
        ("tail", Behind(Record::Tail(tail(0, u64::MAX)), 60)),
        ("generation of tail", Behind(Record::Tail(TailRecord { generation: u32::MAX, ..tail(0, 1) }), 60)),
        ("zone of parity", parity(1_000_000_000, 0, 0, 0, 1)),
        ("index", parity(0, 3, 0, 0, 1)),
        ("index", parity(0, RELOCATED - 1, 0, 0, 1)),
        ("stripe", parity(0, 0, 27, 0, 1)),
        ("stripe", parity(0, 0, u64::MAX, 0, 1)),
        ("from", parity(0, 0, 0, 8, 1)),
        ("data bytes", parity(0, 0, 0, 7, 2)),
        ("data bytes", parity(0, RELOCATED, 0, 0, 9)),
    ]
}

fn burned(zone: u32, member: u32, from: u64, to: u64) -> BurnedRange {
    BurnedRange { zone, member, epoch: 0, from, to }
}

fn bad_block(zone: u32, member: u32, from: u64, to: u64) -> BadBlocks {
    BadBlocks { zone, member, epoch: 0, from, to }
}

fn bad_blocks(zone: u32, member: u32, range: Range<u64>) -> PartBadBlocks {
    PartBadBlocks { zone, member, epoch: 0, ranges: vec![range] }
}

/// Recomputes the checksum of a changed record.
fn seal(bytes: &mut [u8]) {
    let len = HEADER_BYTES + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    bytes[52..56].fill(0);
    let crc = crc32c::crc32c(&bytes[..len.min(bytes.len())]);
    bytes[52..56].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn assemble_names_forged_field_and_omits_drive() {
    for (field, lie) in lies() {
        let bed = Bed::new(Policy::Zrwa);
        let mut checkpoint = bed.checkpoint();
        let mut behind = None;
        let mut number = None;
        match lie {
            InSuperblock(change) => {
                change(&mut checkpoint.superblock);
                let zones = checkpoint.superblock.zones.min(100) as usize;
                checkpoint.zones.resize(zones, ZoneRecord::default());
            }
            InCheckpoint(change) => change(&mut checkpoint),
            Number(at, value) => number = Some((at, value)),
            Behind(record, sequence) => behind = Some((record, sequence)),
        }
        let mut bytes = Record::Checkpoint(Box::new(checkpoint)).encode(bed.origin(0), 50).to_vec();
        if let Some((at, value)) = number {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            seal(&mut bytes);
        }
        if let Some((record, sequence)) = behind {
            let origin = bed.origin((bytes.len() / BLOCK) as u64);
            record.encode_to(&mut bytes, origin, sequence);
        }
        bed.put(&bytes);
        bed.expect_damaged(field);
    }
}

/// Control: without a forged value the same log is accepted. Otherwise the test above would also pass if no log was.
#[test]
fn log_without_forged_field_is_accepted() {
    let bed = Bed::new(Policy::Zrwa);
    let (mut bytes, superblock) = (Vec::new(), &bed.found.superblock);
    let layout = superblock.layout();
    assert_eq!((superblock.zones, layout.rows, layout.capacity_blocks()), (10, 27, 648));
    assert_eq!((superblock.lineage.assemblies.len(), superblock.lineage.attempts.len()), (1, 0));
    let mut checkpoint = bed.checkpoint();
    checkpoint.burned.push(burned(9, 3, 0, 216));
    checkpoint.zones[9] = ZoneRecord { finished: Some(648), lost: 0b1111, ..ZoneRecord::default() };
    Record::Checkpoint(Box::new(checkpoint)).encode_to(&mut bytes, bed.origin(0), 50);
    let data = Buf::zeroed(BLOCK);
    let parity = ParityRecord { zone: 9, epoch: 0, stripe: 26, index: 2, from: 7, data };
    let tail = TailRecord { zone: 9, generation: 0, epoch: 0, tail_blocks: 648 };
    let records = [
        Record::Superblock(Box::new(superblock.clone())),
        Record::Parity(ParityRecord { index: RELOCATED, ..parity.clone() }),
        Record::Parity(parity),
        Record::Tail(tail),
        Record::Rebuilt { zone: 9, epoch: 0, members: 0b1111 },
        Record::Reset { first: 8, count: 2 },
        Record::ResetDone { first: 0, count: 10, epoch: 60 },
    ];
    for record in &records {
        let origin = bed.origin((bytes.len() / BLOCK) as u64);
        record.encode_to(&mut bytes, origin, 60);
    }
    bed.put(&bytes);
    let runtime = Runtime::new();
    let found = run(&runtime, examine(&runtime, bed.liar())).unwrap();
    assert_eq!(
        (found.records, found.damaged, found.generation),
        (1 + records.len(), 0, bed.found.generation + 1)
    );
}

/// Values that are valid for one drive alone and contradict the other members.
#[test]
fn assemble_outvotes_drive_with_contradicting_superblock() {
    let lies: [(&str, Change); 6] = [
        ("rows", |s| s.rows = 20),
        ("distance", |s| s.distance = 1),
        ("zones", |s| (s.zones, s.max_active) = (9, 2)),
        ("zone size", |s| s.zone_size_blocks *= 2),
        ("max active", |s| s.max_active -= 1),
        ("policy", |s| (s.policy, s.incompatible) = (Policy::InPlace, s.incompatible & !(NOTES | CELLS))),
    ];
    for (field, change) in lies {
        let bed = Bed::new(Policy::Zrwa);
        let mut checkpoint = bed.checkpoint();
        change(&mut checkpoint.superblock);
        checkpoint.superblock.event = 50;
        checkpoint.zones.truncate(checkpoint.superblock.zones as usize);
        bed.put(&Record::Checkpoint(Box::new(checkpoint)).encode(bed.origin(0), 50));
        let runtime = Runtime::new();
        // The drive alone is valid.
        run(&runtime, examine(&runtime, bed.liar())).unwrap();
        let array = run(&runtime, Array::assemble(&runtime, bed.drives.clone())).unwrap();
        let note = array.status().members[LIAR].note.to_string();
        assert!(note.contains(&bed.liar().name) && note.contains(field), "{field}: {note}");
        for (zone, tail) in [(0, 11), (1, 640), (2, 5), (3, 27)] {
            check(&runtime, &array, zone, tail);
        }
    }
}

/// An array that continued from the largest sequence number could not be read any more.
#[test]
fn assemble_outvotes_drive_with_distant_sequence_number() {
    let bed = Bed::new(Policy::Zrwa);
    let mut bytes = Record::Checkpoint(Box::new(bed.checkpoint())).encode(bed.origin(0), 50).to_vec();
    let origin = bed.origin((bytes.len() / BLOCK) as u64);
    Record::Reset { first: 9, count: 1 }.encode_to(&mut bytes, origin, 1 << 62);
    bed.put(&bytes);
    for _ in 0..2 {
        let runtime = Runtime::new();
        let array = run(&runtime, Array::assemble(&runtime, bed.drives.clone())).unwrap();
        let note = array.status().members[LIAR].note.to_string();
        assert!(note.contains(&bed.liar().name) && note.contains("sequence"), "{note}");
        for (zone, tail) in [(0, 11), (1, 640), (2, 5), (3, 27)] {
            check(&runtime, &array, zone, tail);
        }
        runtime.clear();
    }
}

/// Without a majority the array is refused, and nothing is written.
#[test]
fn assemble_refuses_exhausting_sequence_number_without_majority() {
    let bed = Bed::new(Policy::Zrwa);
    for member in [1, 2] {
        let superblock = bed.found.superblock.clone();
        forge(&bed.drives[member], member as u32, superblock, |superblock| superblock.event = 1 << 62);
    }
    bed.rig.rule(|_, command| match command {
        Command::Read { .. } | Command::Report { .. } => Act::Pass,
        _ => panic!("{command:?}"),
    });
    let runtime = Runtime::new();
    let refused = run(&runtime, Array::assemble(&runtime, bed.drives.clone())).err().unwrap().to_string();
    assert!(refused.contains("sequence = 4611686018427387904 is invalid"), "{refused}");
}

/// Zone epochs by the resets in the drive's log; without them the forged log would be one from before these resets.
fn known_zones(drive: &Drive, count: u32) -> Vec<ZoneRecord> {
    let mut zones = vec![ZoneRecord::default(); count as usize];
    let meta_blocks = META_ZONES as u64 * drive.device.geometry().zone_size_blocks;
    for (record, _) in support::array::records(&Runtime::new(), drive, meta_blocks) {
        if let Record::ResetDone { first, count, epoch } = record {
            zones[first as usize..][..count as usize].iter_mut().for_each(|zone| zone.epoch = epoch);
        }
    }
    zones
}

/// Starts a new log on a drive, with a superblock changed by `change`.
fn forge(drive: &Drive, member: u32, mut superblock: Superblock, change: impl FnOnce(&mut Superblock)) {
    let runtime = Runtime::new();
    let generation = run(&runtime, examine(&runtime, drive)).map_or(0, |found| found.generation) + 1;
    change(&mut superblock);
    let zone = ZoneIndex(1 - generation as u32 % 2);
    let start = drive.device.geometry().start(zone);
    let zones = known_zones(drive, superblock.zones);
    let origin = Origin { array: superblock.array, member, lba: start.0 };
    let (incomplete, burned, bad_blocks) = Default::default();
    let (parity, tails, sequence) = (Vec::new(), Vec::new(), superblock.event);
    let moved = Default::default();
    let checkpoint =
        Checkpoint { generation, incomplete, moved, superblock, zones, burned, bad_blocks, parity, tails };
    let data = Record::Checkpoint(Box::new(checkpoint)).encode(origin, sequence);
    for command in [Command::Reset { zones: Zones::One(zone) }, Command::write(start, data, true)] {
        assert_eq!(run(&runtime, drive.device.submit(command)).result, Ok(()));
    }
}

/// The label of a drive that is being filled names a member that the array does not have.
#[test]
fn inspect_ignores_label_of_larger_array() {
    let bed = Bed::new(Policy::Zrwa);
    let mut superblock = bed.found.superblock.clone();
    superblock.members.push(SuperblockMember { uuid: Uuid([77; 16]), ..superblock.members[0].clone() });
    let filled = bed.rig.drive(&geometry(Policy::Zrwa));
    let lba = filled.device.geometry().start(ZoneIndex(1));
    let origin = Origin { array: superblock.array, member: MEMBERS as u32, lba: lba.0 };
    let label = Record::Superblock(Box::new(superblock)).encode(origin, 1);
    let runtime = Runtime::new();
    assert_eq!(run(&runtime, filled.device.submit(Command::write(lba, label, true))).result, Ok(()));
    let content = run(&runtime, examine(&runtime, &filled)).err().map(|error| error.to_string());
    assert!(content.is_some_and(|content| content.contains("copy of member 4")), "not taken for a label");
    let found = run(&runtime, Array::inspect_with(&runtime, bed.drives.clone(), &[filled], None)).unwrap();
    assert_eq!(found.copies, []);
}

/// An assembly that skipped many event numbers and was interrupted after it had written one superblock leaves an event
/// number there that the array never reaches.
#[test]
fn assemble_ignores_replaced_drive_with_high_event() {
    for replaced in 1..=MEMBERS {
        let bed = Bed::new(Policy::Zrwa);
        let mut drives = bed.drives.clone();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
        let forged = run(&runtime, examine(&runtime, bed.liar())).unwrap().superblock;
        for step in 0..replaced {
            let member = (LIAR + step) % MEMBERS;
            drives[member] = bed.rig.drive(&geometry(Policy::Zrwa));
            run(&runtime, array.fail(member)).unwrap();
            run(&runtime, array.attach(member, drives[member].clone())).unwrap();
            run(&runtime, array.rebuild(&|_| ())).unwrap();
        }
        runtime.clear();
        forge(bed.liar(), LIAR as u32, forged, |superblock| superblock.event += 1 << 32);
        drives.insert(0, bed.liar().clone());
        for missing in [None].into_iter().chain((0..MEMBERS).map(Some)) {
            let mut offered = drives.clone();
            missing.map(|member| offered.remove(1 + member));
            let found = run(&runtime, Array::inspect(&runtime, offered, None)).unwrap();
            for (role, member) in found.status.members.iter().enumerate() {
                let state = if Some(role) == missing { MemberState::Out } else { MemberState::Active };
                assert_eq!(member.state, state, "{role} without {missing:?}: {}", member.note);
                assert!(state == MemberState::Out || member.drive == drives[1 + role].name);
            }
        }
    }
}

/// The same for a drive that is out, after all other members have been replaced.
#[test]
fn assemble_ignores_failed_drive_after_replacing_others() {
    let bed = Bed::new(Policy::Zrwa);
    let mut drives = bed.drives.clone();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
    let forged = run(&runtime, examine(&runtime, bed.liar())).unwrap().superblock;
    run(&runtime, array.fail(LIAR)).unwrap();
    for member in (0..MEMBERS).filter(|member| *member != LIAR) {
        drives[member] = bed.rig.drive(&geometry(Policy::Zrwa));
        run(&runtime, array.replace(member, drives[member].clone(), &|_| ())).unwrap();
    }
    runtime.clear();
    forge(bed.liar(), LIAR as u32, forged, |superblock| superblock.event += 1 << 32);
    let found = run(&runtime, Array::inspect(&runtime, drives, None)).unwrap();
    for (role, member) in found.status.members.iter().enumerate() {
        let state = if role == LIAR { MemberState::Out } else { MemberState::Active };
        assert_eq!(member.state, state, "{role}: {}", member.note);
    }
}

/// A drive that failed before it took over the role of another may hold nearly the same superblock as the drive that it
/// did not replace.
#[test]
fn interrupted_replacement_keeps_original_drive_as_member() {
    let bed = Bed::new(Policy::Zrwa);
    let about = bed.found.superblock.clone();
    let (liar, event) = (&about.members[LIAR], about.event);
    // One replacement has failed; the next one was interrupted before its own superblock was written.
    let failed = bed.rig.drive(&geometry(Policy::Zrwa));
    let newcomer = |since: u64| {
        move |superblock: &mut Superblock| {
            let member = &mut superblock.members[LIAR];
            (member.uuid, member.taking_over) = (Uuid([since as u8; 16]), Some(member.since));
            (member.since, superblock.event) = (since, since);
        }
    };
    forge(&failed, LIAR as u32, about.clone(), newcomer(event + 1));
    for told in [0, 2] {
        forge(&bed.drives[told], told as u32, about.clone(), newcomer(event + 5));
    }
    let runtime = Runtime::new();
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
        let drives = bed.drives.iter().chain([&failed]).collect::<Vec<_>>();
        let drives = order.map(|i: usize| drives[i].clone()).to_vec();
        let found = run(&runtime, Array::inspect(&runtime, drives, None)).unwrap();
        assert_eq!(found.status.members[LIAR].drive, bed.liar().name, "{}", liar.uuid);
        assert!(found.status.members.iter().all(|member| member.state == MemberState::Active));
    }
}

#[test]
fn assemble_refuses_other_format_version_by_number() {
    let newer = VERSION + 1;
    for (version, advice) in [(2, "an older one, or create the array again"), (newer, "use a newer one")] {
        let bed = Bed::new(Policy::Zrwa);
        let mut bytes = Record::Checkpoint(Box::new(bed.checkpoint())).encode(bed.origin(0), 50).to_vec();
        // All other fields may have another layout in that version.
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        bytes[HEADER_BYTES..HEADER_BYTES + 300].fill(0xa5);
        seal(&mut bytes);
        bed.put(&bytes);
        if version < VERSION {
            // A log of an older version counts only if there is no other.
            let runtime = Runtime::new();
            run(&runtime, examine(&runtime, bed.liar())).unwrap();
            bed.submit(Command::Reset { zones: Zones::One(ZoneIndex(1 - bed.zone().0)) });
        }
        let runtime = Runtime::new();
        let refused = run(&runtime, Array::assemble(&runtime, bed.drives.clone())).err().unwrap().to_string();
        let named = format!("{} has format version {version}", bed.liar().name);
        assert!(refused.starts_with(&named) && refused.contains(advice), "{refused}");
    }
}

/// Contents of a drive's metadata zones, and how the drive is reported then.
#[test]
fn examine_distinguishes_blank_foreign_and_damaged_drives() {
    let said = |bed: &Bed| {
        let runtime = Runtime::new();
        run(&runtime, examine(&runtime, bed.liar())).unwrap_err().to_string()
    };
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let used = 1 - bed.zone().0;
        let start = bed.liar().device.geometry().start(ZoneIndex(used));
        let damage = |bytes: &[u8]| bed.put_in(ZoneIndex(used), bytes);
        let checkpoint = Record::Checkpoint(Box::new(bed.checkpoint()));
        let log = checkpoint.encode(Origin { lba: start.0, ..bed.origin(0) }, 50).to_vec();
        // A wrong magic; a flipped bit; a missing head with a record behind it.
        let mut other = log.clone();
        other[..8].copy_from_slice(b"somebody");
        damage(&other);
        assert!(said(&bed).contains("holds other data"), "{}", said(&bed));
        let mut flipped = log.clone();
        flipped[200] ^= 1;
        damage(&flipped);
        let damaged = format!("its metadata is damaged in block {} of the drive", start.0);
        assert!(said(&bed).ends_with(&damaged), "{}", said(&bed));
        let behind = [&[0; BLOCK][..], &log].concat();
        damage(&behind);
        assert!(said(&bed).ends_with(&damaged), "{}", said(&bed));
        // Empty metadata zones, and data elsewhere.
        bed.submit(Command::Reset { zones: Zones::One(ZoneIndex(used)) });
        assert!(!said(&bed).contains("is blank"), "{}", said(&bed));
        // None of these drives prevents the assembly of the others.
        let runtime = Runtime::new();
        let array = run(&runtime, Array::assemble(&runtime, bed.drives.clone())).unwrap();
        check(&runtime, &array, 1, 640);
        runtime.clear();
        bed.submit(Command::Reset { zones: Zones::All });
        assert!(said(&bed).ends_with("is blank"), "{}", said(&bed));
    }
}

#[test]
fn examine_reports_damage_on_drives_with_few_zones() {
    for zones in 1..=6 {
        let rig = Rig::new();
        let drive = rig.drive(&Geometry { zones, ..geometry(Policy::Zrwa) });
        let runtime = Runtime::new();
        let said = || {
            let runtime = Runtime::new();
            run(&runtime, examine(&runtime, &drive)).unwrap_err().to_string()
        };
        assert!(said().ends_with("is blank"), "{zones} zones: {}", said());
        let data = Buf::copy_of(&b"zoneraid".repeat(BLOCK / 8));
        run(&runtime, drive.device.submit(Command::write(Lba(0), data, true))).result.unwrap();
        assert!(
            said().ends_with("its metadata is damaged in block 0 of the drive"),
            "{zones} zones: {}",
            said()
        );
    }
}

/// A record of the forged member, in its log or in a data zone.
struct Place {
    lba: u64,
    bytes: Vec<u8>,
}

/// The records in `zone`, and all its bytes.
fn records(drive: &Drive, zone: u32) -> (Vec<Place>, Vec<u8>) {
    let runtime = Runtime::new();
    let start = drive.device.geometry().start(ZoneIndex(zone)).0;
    let read = |at: u64| {
        let command = Command::read(Lba(start + at), Buf::zeroed(BLOCK));
        run(&runtime, drive.device.submit(command)).data.to_vec()
    };
    let report = Command::Report { first: ZoneIndex(zone), count: 1 };
    let info = run(&runtime, drive.device.submit(report)).zones[0];
    // In data zones including the blocks in the ZRWA.
    let end = match info.state {
        ZoneState::Empty => 0,
        ZoneState::Full => 220,
        _ => (info.wp_blocks + if info.zrwa { 32 } else { 0 }).min(220),
    };
    let bytes: Vec<u8> = (0..end).flat_map(read).collect();
    let mut places = Vec::new();
    for at in 0..end {
        let Some(header) = Header::read(&bytes[at as usize * BLOCK..]) else { continue };
        let len = header.blocks() as usize * BLOCK;
        if header.origin.lba == start + at {
            places.push(Place { lba: start + at, bytes: bytes[at as usize * BLOCK..][..len].to_vec() });
        }
    }
    (places, bytes)
}

/// Overwrites random fields of a record, and recomputes its checksum.
fn mutate(bytes: &mut [u8], rng: &mut Rng) {
    let len = HEADER_BYTES + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    for _ in 0..rng.range(1..4) {
        let reach = if rng.chance(1, 4) { len } else { len.min(HEADER_BYTES + 320) };
        let from = if rng.chance(1, 8) { 10 } else { HEADER_BYTES as u64 };
        let at = rng.range(from..reach as u64) as usize;
        let value = [0, 1, 0x7f, 0x80, 0xff, rng.below(256) as u8][rng.below(6) as usize];
        let end = (at + [1, 2, 4, 8][rng.below(4) as usize]).min(len);
        bytes[at..end].fill(value);
    }
    seal(bytes);
}

/// Most blocks that an inspection of four drives may read: every metadata zone, once for each possible aggregation of
/// zones, and the rows ahead of the write pointers in ten data zones.
const MOST_READ: u64 = 4 * (2 * 220 * 5 + 10 * 300);

#[test]
fn inspect_survives_ten_thousand_tampered_logs() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let mut rng = Rng::new(policy as u64);
        let used = 1 - bed.zone().0;
        let start = bed.liar().device.geometry().start(ZoneIndex(used));
        let (in_log, log) = records(bed.liar(), used);
        let in_data: Vec<Place> = (2..12).flat_map(|zone| records(bed.liar(), zone).0).collect();
        assert!(in_log.len() > 2, "{} records", in_log.len());
        assert!(policy != Policy::Zrwa || !in_data.is_empty());
        let (mut accepted, mut refused) = (0, 0);
        for round in 0..3400 {
            if !in_data.is_empty() && rng.chance(1, 4) {
                let place = &in_data[rng.below(in_data.len() as u64) as usize];
                let mut bytes = place.bytes.clone();
                mutate(&mut bytes, &mut rng);
                bed.submit(Command::write(Lba(place.lba), Buf::copy_of(&bytes), false));
            } else {
                let place = &in_log[rng.below(in_log.len() as u64) as usize];
                let (at, len) = ((place.lba - start.0) as usize * BLOCK, place.bytes.len());
                let mut bytes = log.clone();
                mutate(&mut bytes[at..at + len], &mut rng);
                bed.put_in(ZoneIndex(used), &bytes);
            }
            if policy == Policy::InPlace {
                tamper_with_mark(&bed, &mut rng);
            }
            let runtime = Runtime::new();
            bed.read_blocks.set(0);
            match run(&runtime, Array::inspect(&runtime, bed.drives.clone(), None)) {
                Ok(found) => {
                    assert_eq!(
                        (found.geometry.zones, found.zones.len(), found.status.members.len()),
                        (10, 10, 4)
                    );
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
            assert!(bed.read_blocks.get() < MOST_READ, "round {round}: {} blocks", bed.read_blocks.get());
            for place in &in_data {
                bed.submit(Command::write(Lba(place.lba), Buf::copy_of(&place.bytes), false));
            }
        }
        assert!(accepted > 1000, "{accepted} accepted, {refused} refused");
        assert_eq!(bed.rig.held(), 0);
    }
}

/// Writes a forged mark into the out-of-band metadata of a block in a random open zone.
fn tamper_with_mark(bed: &Bed, rng: &mut Rng) {
    let device = &bed.liar().device;
    let runtime = Runtime::new();
    let zone = ZoneIndex(rng.range(2..5) as u32);
    let info = run(&runtime, device.submit(Command::Report { first: zone, count: 1 })).zones[0];
    let lba = device.geometry().start(zone).0 + info.wp_blocks + rng.below(32);
    if !info.zrwa || lba >= device.geometry().start(zone).0 + info.capacity_blocks {
        return;
    }
    let covers = [0, 1, 2, 3, 4, 31, 32, 255][rng.below(8) as usize];
    let content = [Content::Data, Content::Parity(covers), Content::Ahead(covers)][rng.below(3) as usize];
    let (epoch, generation) = (rng.below(3) as u32, rng.below(4) as u32);
    let origin = Origin { lba, ..bed.origin(0) };
    let oob: [u8; SUMMED_OOB_BYTES] = Mark { epoch, generation, content, sum: None }.encode(origin);
    let data = Buf::zeroed(BLOCK);
    bed.submit(Command::Write { lba: Lba(lba), data, oob: Buf::copy_of(&oob[..OOB_BYTES]), fua: false });
}
