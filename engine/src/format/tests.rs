//! Compares docs/FORMAT.md with the codec.
//!
//! The tables of the document are parsed. Records are encoded with values that differ in every
//! byte, and each value has to be exactly where the document puts its field, with no byte of the
//! record left undocumented.

use crate::{
    adapt::append,
    buf::{BLOCK, Buf},
    device::{DriveId, Geometry},
    format::{
        codec::{Absurd, RecordError},
        lineage::{Attempt, Lineage},
        name::NAME_BYTES,
        oob::{Content, Mark, OOB_BYTES, SUMMED_OOB_BYTES},
        record::*,
        superblock::{self, ErrorCounts, MODEL_BYTES, SERIAL_BYTES, Stage, Superblock, SuperblockMember},
        *,
    },
    raid::{
        geometry::{Layout, MAX_MEMBERS, MAX_PARITIES, META_ZONES, ParityPlace, Role},
        journal::log::log_blocks,
        policy::{Policy, zrwa},
    },
};
use std::collections::{BTreeMap, BTreeSet};

mod nonsense;

const DOCUMENT: &str = include_str!("../../../docs/FORMAT.md");

/// Rows of the table with a head row that starts with `head` (its first cells) below the heading `title`.
fn table(title: &str, head: &[&str]) -> Vec<Vec<&'static str>> {
    let of_title = DOCUMENT.lines().skip_while(|line| line.trim_start_matches('#').trim() != title).skip(1);
    let section: Vec<&str> = of_title.take_while(|line| !line.starts_with('#')).collect();
    let cells = |line: &'static str| -> Vec<&'static str> {
        line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>()
    };
    let rows: Vec<_> = section
        .iter()
        .skip_while(|line| !(line.starts_with('|') && cells(line).starts_with(head)))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| cells(line))
        .collect();
    assert!(!rows.is_empty(), "FORMAT.md has no table {head:?} in '{title}'");
    rows
}

/// Takes the fields that the document lists under `title` off the front of `bytes`, and compares them with the values
/// that were encoded there.
fn take(bytes: &mut &[u8], title: &str, expected: &[(&str, &[u8])]) {
    let (mut at, mut names) = (0, Vec::new());
    for row in table(title, &["offset", "bytes", "field", "meaning"]) {
        let [offset, size, name, _] = row[..] else { panic!("{title}: {row:?}") };
        let value = expected.iter().find(|(field, _)| *field == name);
        let reserved: &[u8] = &[0; 8];
        let value = match value {
            Some((_, value)) => value,
            None if name == "reserved" => &reserved[..size.parse().unwrap()],
            None => panic!("{title}: the codec has no field '{name}'"),
        };
        assert_eq!(offset.parse(), Ok(at), "{title}, {name}: offset");
        if let Ok(size) = size.parse::<usize>() {
            assert_eq!(value.len(), size, "{title}, {name}: size");
        }
        let found = bytes.get(at..at + value.len());
        assert_eq!(found, Some(value), "{title}, {name}: not where it should be");
        at += value.len();
        names.push(name);
    }
    for (name, _) in expected {
        assert!(names.contains(name), "{title}: '{name}' is not documented");
    }
    *bytes = &bytes[at..];
}

/// Values that differ in every byte from those of all other numbers up to 31.
fn u64_of(number: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| number * 8 + i as u8 + 1))
}

fn u32_of(number: u8) -> u32 {
    u64_of(number) as u32
}

fn uuid_of(number: u8) -> Uuid {
    Uuid(std::array::from_fn(|i| number * 16 + i as u8))
}

const ORIGIN_MEMBER: u8 = 20;

fn origin() -> Origin {
    Origin { array: uuid_of(3), member: u32_of(ORIGIN_MEMBER), lba: u64_of(21) }
}

/// Encodes a record, checks its header, and returns its payload.
fn payload(record: &Record, kind: u16) -> Vec<u8> {
    let bytes = record.encode(origin(), u64_of(22)).to_vec();
    assert_eq!(bytes.len() % BLOCK, 0);
    let mut payload = bytes[HEADER_BYTES..].to_vec();
    let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    assert!(payload.split_off(len).iter().all(|byte| *byte == 0), "padding");
    let mut covered = bytes[..HEADER_BYTES + len].to_vec();
    covered[52..56].fill(0);
    let crc = crc32c::crc32c(&covered).to_le_bytes();
    let mut header = &bytes[..HEADER_BYTES];
    let fields: [(&str, &[u8]); 8] = [
        ("magic", b"zoneraid"),
        ("version", &VERSION.to_le_bytes()),
        ("kind", &kind.to_le_bytes()),
        ("payload bytes", &(len as u32).to_le_bytes()),
        ("array", &uuid_of(3).0),
        ("sequence", &u64_of(22).to_le_bytes()),
        ("lba", &u64_of(21).to_le_bytes()),
        ("member", &u32_of(ORIGIN_MEMBER).to_le_bytes()),
    ];
    let fields: Vec<_> = fields.into_iter().chain([("crc", &crc[..])]).collect();
    take(&mut header, "Record header", &fields);
    assert!(header.is_empty(), "the header is longer than documented");
    payload
}

fn check_payload(record: &Record, kind: u16, title: &str, expected: &[(&str, &[u8])]) {
    let bytes = payload(record, kind);
    let mut rest = &bytes[..];
    take(&mut rest, title, expected);
    assert!(rest.is_empty(), "{title}: {} bytes are not documented", rest.len());
}

fn superblock() -> Superblock {
    Superblock {
        compatible: u64_of(1),
        read_only_compatible: u64_of(2),
        incompatible: u64_of(3),
        array: uuid_of(2),
        name: "tank".into(),
        event: u64_of(8),
        floor: u64_of(9),
        chunk_blocks: 16,
        rows: u64_of(10),
        distance: u32_of(11),
        zone_size_blocks: u64_of(12),
        zones: u32_of(13),
        max_active: u32_of(14),
        log_blocks: u32_of(15),
        assembly: u64_of(16),
        policy: Policy::InPlace,
        aggregate: 4,
        parities: u32_of(7),
        group_blocks: u32_of(4),
        checksum_group_blocks: 0,
        host: uuid_of(6),
        autostart: true,
        stage: Stage::Ending,
        runner: uuid_of(14),
        error_limit: u32_of(17),
        members: (0..3).map(|i| member(uuid_of(8 + i as u8), i)).collect(),
        lineage: Lineage {
            assemblies: vec![uuid_of(11), uuid_of(12)],
            attempts: vec![Attempt { event: u64_of(25), id: uuid_of(13) }],
        },
    }
}

/// The member with role `i`: all of its fields differ from those of others.
fn member(uuid: Uuid, i: usize) -> SuperblockMember {
    let (model, serial) = (format!("model {i}"), format!("serial {i}"));
    let drive_id = DriveId { model, serial, size_bytes: u64_of(24 + i as u8) >> 1 };
    let taking_over = (i == 2).then_some(1);
    let [reads, wrong, writes, repaired] = [0x100, 0x200, 0x300, 0x400].map(|count| count + i as u16);
    let errors = ErrorCounts { reads, wrong, writes, repaired };
    SuperblockMember { uuid, since: i as u64, active: i != 1, taking_over, drive_id, errors }
}

/// A valid superblock, of an array on drives of 100 zones, with all features known.
pub fn sane(members: usize) -> Superblock {
    Superblock {
        compatible: 0,
        read_only_compatible: 0,
        incompatible: 0,
        event: 9,
        floor: 8,
        rows: 20,
        distance: 2,
        zone_size_blocks: 1 << 14,
        zones: 98,
        max_active: 4,
        log_blocks: 100,
        assembly: 9,
        parities: 1,
        group_blocks: 0,
        members: (0..members).map(|i| member(Uuid([i as u8; 16]), i % 4)).collect(),
        lineage: Lineage {
            assemblies: vec![uuid_of(11), uuid_of(12)],
            attempts: vec![Attempt { event: 9, id: uuid_of(13) }],
        },
        ..superblock()
    }
}

fn take_superblock(bytes: &mut &[u8]) {
    let mut name = b"tank".to_vec();
    name.resize(NAME_BYTES, 0);
    let expected: [(&str, &[u8]); 22] = [
        ("compatible", &u64_of(1).to_le_bytes()),
        ("read-only-compatible", &u64_of(2).to_le_bytes()),
        ("incompatible", &u64_of(3).to_le_bytes()),
        ("array", &uuid_of(2).0),
        ("name", &name),
        ("event", &u64_of(8).to_le_bytes()),
        ("floor", &u64_of(9).to_le_bytes()),
        ("chunk blocks", &16u32.to_le_bytes()),
        ("distance", &u32_of(11).to_le_bytes()),
        ("rows", &u64_of(10).to_le_bytes()),
        ("zone size", &u64_of(12).to_le_bytes()),
        ("zones", &u32_of(13).to_le_bytes()),
        ("max active", &u32_of(14).to_le_bytes()),
        ("log blocks", &u32_of(15).to_le_bytes()),
        ("assembly", &u64_of(16).to_le_bytes()),
        ("policy", &3u32.to_le_bytes()),
        ("aggregate", &4u32.to_le_bytes()),
        ("host", &uuid_of(6).0),
        ("autostart", &1u32.to_le_bytes()),
        ("stage", &3u32.to_le_bytes()),
        ("parities", &u32_of(7).to_le_bytes()),
        ("group blocks", &u32_of(4).to_le_bytes()),
    ];
    let counts = [("members", &[3, 0, 0, 0][..]), ("assemblies", &[2, 0, 0, 0]), ("attempts", &[1, 0, 0, 0])];
    let expected: Vec<_> = expected.into_iter().chain(counts).collect();
    let runner = uuid_of(14);
    let error_limit = u32_of(17).to_le_bytes();
    let expected = [&expected[..], &[("runner", &runner.0), ("error limit", &error_limit)]].concat();
    take(bytes, "Superblock head", &expected);
    for i in 0..3 {
        let (flags, size) = ([1, 0, 3][i as usize], u64_of(24 + i) >> 1);
        let before = (i == 2) as u64;
        let text = |text: String, len: usize| {
            let mut bytes = text.into_bytes();
            bytes.resize(len, 0);
            bytes
        };
        let [reads, wrong, writes, repaired] =
            [0x100, 0x200, 0x300, 0x400].map(|count| u16::to_le_bytes(count + i as u16));
        let expected: [(&str, &[u8]); 11] = [
            ("uuid", &uuid_of(8 + i).0),
            ("flags", &u32::to_le_bytes(flags)),
            ("reads", &reads),
            ("wrong", &wrong),
            ("since", &u64::to_le_bytes(i as u64)),
            ("before", &before.to_le_bytes()),
            ("size", &size.to_le_bytes()),
            ("model", &text(format!("model {i}"), 40)),
            ("serial", &text(format!("serial {i}"), 20)),
            ("writes", &writes),
            ("repaired", &repaired),
        ];
        take(bytes, "Superblock member", &expected);
    }
    for number in [11, 12] {
        take(bytes, "Superblock assembly", &[("id", &uuid_of(number).0)]);
    }
    let attempt: [(&str, &[u8]); 2] = [("event", &u64_of(25).to_le_bytes()), ("id", &uuid_of(13).0)];
    take(bytes, "Superblock attempt", &attempt);
}

fn parity(number: u8) -> ParityRecord {
    ParityRecord {
        zone: u32_of(number),
        index: u32_of(number + 1),
        epoch: u64_of(number + 2),
        stripe: u64_of(number + 3),
        from: u32_of(number + 4),
        data: Buf::copy_of(&vec![number; number as usize * BLOCK]),
    }
}

fn take_parity(bytes: &mut &[u8], number: u8) {
    let data = vec![number; number as usize * BLOCK];
    let expected: [(&str, &[u8]); 7] = [
        ("zone", &u32_of(number).to_le_bytes()),
        ("index", &u32_of(number + 1).to_le_bytes()),
        ("epoch", &u64_of(number + 2).to_le_bytes()),
        ("stripe", &u64_of(number + 3).to_le_bytes()),
        ("from", &u32_of(number + 4).to_le_bytes()),
        ("data bytes", &(data.len() as u32).to_le_bytes()),
        ("data", &data),
    ];
    take(bytes, "Parity", &expected);
}

fn tail(number: u8) -> TailRecord {
    TailRecord {
        zone: u32_of(number),
        generation: u32_of(number + 3),
        epoch: u64_of(number + 1),
        tail_blocks: u64_of(number + 2),
    }
}

fn burned(number: u8) -> BurnedRange {
    BurnedRange {
        zone: u32_of(number),
        member: u32_of(number + 1),
        epoch: u64_of(number + 2),
        from: u64_of(number + 3),
        to: u64_of(number + 4),
    }
}

/// Takes burned blocks or a bad block, which have the same layout.
fn take_burned(bytes: &mut &[u8], title: &str, number: u8) {
    let expected: [(&str, &[u8]); 5] = [
        ("zone", &u32_of(number).to_le_bytes()),
        ("member", &u32_of(number + 1).to_le_bytes()),
        ("epoch", &u64_of(number + 2).to_le_bytes()),
        ("from", &u64_of(number + 3).to_le_bytes()),
        ("to", &u64_of(number + 4).to_le_bytes()),
    ];
    take(bytes, title, &expected);
}

fn bad_blocks(number: u8) -> PartBadBlocks {
    PartBadBlocks {
        zone: u32_of(number),
        member: u32_of(number + 1),
        epoch: u64_of(number + 2),
        ranges: vec![u64_of(number + 3)..u64_of(number + 4), u64_of(number + 5)..u64_of(number + 6)],
    }
}

fn take_bad_blocks(bytes: &mut &[u8], number: u8) {
    let expected: [(&str, &[u8]); 4] = [
        ("zone", &u32_of(number).to_le_bytes()),
        ("member", &u32_of(number + 1).to_le_bytes()),
        ("epoch", &u64_of(number + 2).to_le_bytes()),
        ("bad blocks", &2u32.to_le_bytes()),
    ];
    take(bytes, "Bad blocks of a part", &expected);
    for first in [number + 3, number + 5] {
        let (from, to) = (u64_of(first).to_le_bytes(), u64_of(first + 1).to_le_bytes());
        take(bytes, "Range of bad blocks", &[("from", &from), ("to", &to)]);
    }
}

fn bad_block(number: u8) -> BadBlocks {
    let BurnedRange { zone, member, epoch, from, to } = burned(number);
    BadBlocks { zone, member, epoch, from, to }
}

fn take_tail(bytes: &mut &[u8], number: u8) {
    let expected: [(&str, &[u8]); 4] = [
        ("zone", &u32_of(number).to_le_bytes()),
        ("generation", &u32_of(number + 3).to_le_bytes()),
        ("epoch", &u64_of(number + 1).to_le_bytes()),
        ("tail", &u64_of(number + 2).to_le_bytes()),
    ];
    take(bytes, "Tail", &expected);
}

#[test]
fn format_document_gives_reason_of_each_version() {
    let rows = table("Versions", &["version", "why"]);
    let versions: Vec<u16> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(versions, (1..=VERSION).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| !row[1].is_empty()));
}

#[test]
fn format_constants_match_document() {
    let documented: BTreeMap<&str, &str> =
        table("Numbers", &["number", "value"]).into_iter().map(|row| (row[0], row[1])).collect();
    let roomy = Geometry {
        zones: 3,
        zone_size_blocks: 1 << 40,
        zone_capacity_blocks: 1 << 40,
        max_open: 0,
        max_active: 0,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 1,
        max_append_blocks: 1,
        volatile_cache: false,
    };
    let decodes = |members: usize| {
        let bytes = Record::Superblock(Box::new(sane(members))).encode(origin(), 1);
        Record::read(&bytes, origin()).is_ok()
    };
    let fewest = (0..100).find(|members| decodes(*members)).unwrap();
    let most = (0..100).rfind(|members| decodes(*members)).unwrap();
    assert_eq!(most, MAX_MEMBERS);
    let coded = [
        ("block, bytes", BLOCK.to_string()),
        ("magic", String::from_utf8(MAGIC.to_vec()).unwrap()),
        ("version", VERSION.to_string()),
        ("record header, bytes", HEADER_BYTES.to_string()),
        ("out-of-band metadata, bytes", OOB_BYTES.to_string()),
        ("out-of-band metadata with a checksum, bytes", SUMMED_OOB_BYTES.to_string()),
        ("longest name, bytes", NAME_BYTES.to_string()),
        ("longest model, bytes", MODEL_BYTES.to_string()),
        ("longest serial, bytes", SERIAL_BYTES.to_string()),
        ("fewest members", fewest.to_string()),
        ("most members", most.to_string()),
        ("most parities", MAX_PARITIES.to_string()),
        ("metadata zones", META_ZONES.to_string()),
        ("most blocks used of a metadata zone", log_blocks(&roomy, Policy::Zrwa).to_string()),
        // Unknown compatible features are ignored.
        ("known compatible features", "0".into()),
        ("known read-only-compatible features", superblock::KNOWN_READ_ONLY_COMPATIBLE.to_string()),
        ("known incompatible features", superblock::KNOWN_INCOMPATIBLE.to_string()),
    ];
    assert_eq!(documented, coded.iter().map(|(name, value)| (*name, value.as_str())).collect());
    assert!(DOCUMENT.starts_with(&format!("# The on-media format, version {VERSION}\n")));
}

#[test]
fn records_with_impossible_fields_name_first_of_them() {
    let of = sane(4);
    let absurd = |field, value| Err(Absurd { field, value });
    let chunk = |chunk_blocks: u32| {
        Record::Superblock(Box::new(Superblock { chunk_blocks, ..sane(4) })).check(10, &of)
    };
    assert_eq!(chunk(of.chunk_blocks), Ok(()));
    // Neither a power of two nor, if it is one, too large.
    for chunk_blocks in [of.chunk_blocks + 1, 1 << 31] {
        assert_eq!(chunk(chunk_blocks), absurd("chunk blocks", chunk_blocks.into()));
    }
    let parity = |stripe, from, blocks: usize| {
        let (epoch, data) = (1, Buf::zeroed(blocks * BLOCK));
        Record::Parity(ParityRecord { zone: 0, index: 0, epoch, stripe, from, data }).check(10, &of)
    };
    let blocks = of.chunk_blocks as usize;
    assert_eq!(parity(of.rows - 1, 0, blocks), Ok(()));
    assert_eq!(parity(of.rows, 0, blocks), absurd("stripe", of.rows));
    assert_eq!(parity(0, of.chunk_blocks, 0), absurd("from", of.chunk_blocks.into()));
    assert_eq!(parity(0, 1, blocks), absurd("data bytes", (blocks * BLOCK) as u64));
}

#[test]
fn superblock_enforces_minimum_members_per_raid_level() {
    let reads = |parities: u32, members: usize| {
        let superblock = Superblock { parities, ..sane(members) };
        let bytes = Record::Superblock(Box::new(superblock)).encode(origin(), 10);
        Record::read(&bytes, origin()).map(|_| ())
    };
    for (parities, fewest) in [(1, 3), (2, 4)] {
        assert_eq!(reads(parities, fewest), Ok(()));
        assert_eq!(reads(parities, MAX_MEMBERS), Ok(()));
        let absurd = RecordError::Absurd(Absurd { field: "members", value: fewest as u64 - 1 });
        assert_eq!(reads(parities, fewest - 1), Err(absurd));
    }
    for parities in [0, 3, u32::MAX] {
        let absurd = RecordError::Absurd(Absurd { field: "parities", value: parities.into() });
        assert_eq!(reads(parities, 5), Err(absurd));
    }
    let single = |parities: u32, members: usize, policy: Policy| {
        let superblock = Superblock { parities, policy, incompatible: superblock::SINGLE, ..sane(members) };
        superblock.check().map_err(|absurd| absurd.field)
    };
    assert_eq!(single(0, 1, Policy::Log), Ok(()));
    assert_eq!(single(0, 2, Policy::Log), Err("members"));
    assert_eq!(single(0, 1, Policy::Zrwa), Err("policy"));
    assert_eq!(single(1, 3, Policy::Log), Err("parities"));
    let bounds: BTreeMap<&str, &str> =
        table("Bounds", &["field", "bounds"]).into_iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(bounds["parities"], "1 or 2; 0 with the incompatible feature 64, and only then");
    assert_eq!(bounds["members"], "3 to 32 with one parity, 4 to 32 with two, 1 without; no UUID twice");
}

#[test]
fn record_kinds_match_document_and_others_are_rejected() {
    let kinds = table("Record header", &["kind", "record"]);
    let names: Vec<_> = kinds.iter().map(|row| (row[0].parse::<u16>().unwrap(), row[1])).collect();
    let coded = [
        (Record::Superblock(Box::new(superblock())), "superblock"),
        (Record::Reset { first: 0, count: 0 }, "reset"),
        (Record::ResetDone { first: 0, count: 0, epoch: 0 }, "reset done"),
        (Record::Finish { zone: 0, epoch: 0, tail_blocks: 0 }, "finish"),
        (Record::Rebuilt { zone: 0, epoch: 0, members: 0 }, "rebuilt"),
        (Record::Parity(parity(1)), "parity"),
        (Record::Tail(tail(1)), "tail"),
        (Record::Lacks(Lacks { zone: 0, members: 0, epoch: 0 }), "lacks"),
        (Record::BadBlocks(bad_blocks(1)), "bad blocks"),
        (Record::Decided { zone: 0, epoch: 0 }, "decided"),
        (Record::Claim { host: uuid_of(1), id: uuid_of(2) }, "claim"),
        (Record::Checksums(last_checksums()), "checksums"),
        (Record::Note(tail(1), Buf::copy_of(b"note")), "note"),
    ];
    assert_eq!(names[0], (1, "checkpoint"));
    assert_eq!(names.len(), coded.len() + 1);
    for ((record, name), documented) in coded.iter().zip(&names[1..]) {
        assert_eq!(documented.1, *name);
        payload(record, documented.0);
    }
    // Unknown kinds, with the payload of each known one.
    for (record, _) in &coded {
        let mut bytes = record.encode(origin(), 1).to_vec();
        for kind in (0..=300).filter(|kind| !names.iter().any(|(known, _)| known == kind)) {
            bytes[10..12].copy_from_slice(&kind.to_le_bytes());
            seal(&mut bytes);
            let read = Record::read(&bytes, origin());
            assert_eq!(read.map(|_| ()).unwrap_err(), RecordError::Damaged, "kind {kind}");
        }
    }
}

/// Corrects the checksum of a changed record.
fn seal(bytes: &mut [u8]) {
    let len = HEADER_BYTES + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    bytes[52..56].fill(0);
    let crc = crc32c::crc32c(&bytes[..len]);
    bytes[52..56].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn record_fields_match_document() {
    let (a, b, c) = (u32_of(1).to_le_bytes(), u32_of(2).to_le_bytes(), u64_of(3).to_le_bytes());
    let d = u64_of(4).to_le_bytes();
    let bytes = payload(&Record::Superblock(Box::new(superblock())), 2);
    let mut rest = &bytes[..];
    take_superblock(&mut rest);
    assert!(rest.is_empty());
    let (first, count) = (u32_of(1), u32_of(2));
    check_payload(&Record::Reset { first, count }, 3, "Reset", &[("first", &a), ("count", &b)]);
    let record = Record::ResetDone { first, count, epoch: u64_of(3) };
    check_payload(&record, 4, "Reset done", &[("first", &a), ("count", &b), ("epoch", &c)]);
    let record = Record::Finish { zone: u32_of(1), epoch: u64_of(3), tail_blocks: u64_of(4) };
    check_payload(&record, 5, "Finish", &[("zone", &a), ("epoch", &c), ("tail", &d)]);
    let record = Record::Rebuilt { zone: u32_of(1), members: u32_of(2), epoch: u64_of(3) };
    check_payload(&record, 6, "Rebuilt", &[("zone", &a), ("members", &b), ("epoch", &c)]);
    let bytes = payload(&Record::Parity(parity(2)), 7);
    let mut rest = &bytes[..];
    take_parity(&mut rest, 2);
    assert!(rest.is_empty());
    let bytes = payload(&Record::Tail(tail(5)), 8);
    let mut rest = &bytes[..];
    take_tail(&mut rest, 5);
    assert!(rest.is_empty());
    let record = Record::Note(TailRecord { generation: 0, ..tail(1) }, Buf::copy_of(b"note"));
    let fields_of_tail = [
        ("generation", &[0; 4][..]),
        ("epoch", &u64_of(2).to_le_bytes()),
        ("tail", &u64_of(3).to_le_bytes()),
    ];
    let fields = [("zone", &a[..]), ("note bytes", &4u32.to_le_bytes()), ("note", b"note")];
    check_payload(&record, 14, "Note", &fields_of_tail.into_iter().chain(fields).collect::<Vec<_>>());
    let record = Record::Lacks(Lacks { zone: u32_of(1), members: u32_of(2), epoch: u64_of(3) });
    check_payload(&record, 9, "Lacks", &[("zone", &a), ("members", &b), ("epoch", &c)]);
    let bytes = payload(&Record::BadBlocks(bad_blocks(6)), 10);
    let mut rest = &bytes[..];
    take_bad_blocks(&mut rest, 6);
    assert!(rest.is_empty());
    let record = Record::Decided { zone: u32_of(1), epoch: u64_of(3) };
    check_payload(&record, 11, "Decided", &[("zone", &a), ("epoch", &c)]);
    let record = Record::Claim { host: uuid_of(1), id: uuid_of(2) };
    check_payload(&record, 12, "Claim", &[("host", &uuid_of(1).0), ("id", &uuid_of(2).0)]);
    let fields: [(&str, &[u8]); 5] = [
        ("zone", &a),
        ("count", &2u32.to_le_bytes()),
        ("epoch", &c),
        ("from", &d),
        ("sums", &[b.as_slice(), u32_of(3).to_le_bytes().as_slice()].concat()),
    ];
    check_payload(&Record::Checksums(last_checksums()), 13, "Checksums of the last groups", &fields);
}

fn last_checksums() -> LastChecksums {
    LastChecksums { zone: u32_of(1), epoch: u64_of(3), from: u64_of(4), sums: vec![u32_of(2), u32_of(3)] }
}

#[test]
fn checkpoint_parts_match_document_in_order() {
    let checkpoint = Checkpoint {
        generation: u64_of(1),
        incomplete: BTreeSet::from([1]),
        moved: [(1, u32_of(11))].into(),
        superblock: superblock(),
        zones: vec![
            ZoneRecord { epoch: u64_of(2), resetting: true, lost: u32_of(3), ..ZoneRecord::default() },
            ZoneRecord {
                epoch: u64_of(4),
                resetting: false,
                finished: Some(u64_of(5)),
                lost: u32_of(6),
                waits: u32_of(7),
                since: u64_of(8),
            },
        ],
        burned: vec![burned(5)],
        bad_blocks: vec![bad_block(7), bad_block(8), bad_block(9), bad_block(10)],
        parity: vec![parity(1), parity(2), parity(3)],
        tails: vec![tail(4)],
    };
    let bytes = payload(&Record::Checkpoint(Box::new(checkpoint)), 1);
    let mut rest = &bytes[..];
    for row in table("Checkpoint", &["part", "times"]) {
        match row[0] {
            "checkpoint head" => {
                take(&mut rest, "Checkpoint head", &[("generation", &u64_of(1).to_le_bytes())]);
            }
            "superblock head" => take_superblock(&mut rest),
            // Compared together with the head.
            "superblock member" | "superblock assembly" | "superblock attempt" => {}
            "checkpoint counts" => {
                let count = |n: u8| [n, 0, 0, 0];
                let expected: [(&str, &[u8]); 5] = [
                    ("zones", &count(2)),
                    ("parities", &count(3)),
                    ("tails", &count(1)),
                    ("burned", &count(1)),
                    ("bad blocks", &count(4)),
                ];
                take(&mut rest, "Checkpoint counts", &expected);
            }
            "zone record" => {
                let zones =
                    [(2, u64::MAX, 3, 1u32, 0, 0, 0), (4, u64_of(5), 6, 2, u32_of(7), u32_of(11), u64_of(8))];
                for (epoch, finished, lost, flags, waits, place, since) in zones {
                    let expected: [(&str, &[u8]); 7] = [
                        ("epoch", &u64_of(epoch).to_le_bytes()),
                        ("finished", &finished.to_le_bytes()),
                        ("lost", &u32_of(lost).to_le_bytes()),
                        ("flags", &flags.to_le_bytes()),
                        ("waits", &waits.to_le_bytes()),
                        ("place", &place.to_le_bytes()),
                        ("since", &since.to_le_bytes()),
                    ];
                    take(&mut rest, "Zone record", &expected);
                }
            }
            "tail" => take_tail(&mut rest, 4),
            "burned" => take_burned(&mut rest, "Burned", 5),
            "bad blocks" => (7..=10).for_each(|number| take_burned(&mut rest, "Bad blocks", number)),
            "parity" => (1..=3).for_each(|number| take_parity(&mut rest, number)),
            other => panic!("no such part: {other}"),
        }
    }
    assert!(rest.is_empty(), "{} bytes of a checkpoint are not documented", rest.len());
}

/// Letter of a parity of a stripe in the drawings of the document.
fn drawn(layout: &Layout, which: usize) -> &'static str {
    if layout.parities == 1 { "" } else { ["P", "Q"][which] }
}

#[test]
fn layout_matches_examples_of_document() {
    let log = |layout: &Layout, stripe: u64| {
        let (members, place) = layout.log(stripe);
        members.map(|member| (member, place, format!("log {stripe}"))).collect()
    };
    let slot = |parity: &str, stripe, index| format!("slot {parity}{stripe}.{index}");
    let version = |parity: &str, stripe, index| format!("version {parity}{stripe}.{}", index + 1);
    let of = |policy, members, parities, rows| Layout {
        policy,
        members,
        parities,
        chunk_blocks: 2,
        rows,
        distance: 2,
    };
    check_example(of(Policy::Zrwa, 4, 1, 5), "A data zone", slot, log);
    check_example(of(Policy::Zrwa, 5, 2, 6), "Two parities", slot, log);
    check_example(of(Policy::InPlace, 4, 1, 5), "Parity in place", version, |_, _| Vec::new());
    check_example(of(Policy::InPlace, 5, 2, 5), "Two parities in place", version, |_, _| Vec::new());
}

/// Compares the example below `title` with a layout: the names of slots, and the other content.
fn check_example(
    layout: Layout,
    title: &str,
    slot: impl Fn(&str, u64, u64) -> String,
    others: impl Fn(&Layout, u64) -> Vec<(usize, ParityPlace, String)>,
) {
    let members = layout.members;
    let mut expected: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    let mut put = |place: &ParityPlace, member: usize, what: String| {
        let row = match place {
            ParityPlace::Row(row) => row.to_string(),
            ParityPlace::MetaLog => "metadata log".into(),
        };
        expected.entry(row).or_insert_with(|| vec![Vec::new(); members])[member].push(what);
    };
    for stripe in 0..layout.rows {
        let of_stripe = (0..layout.data_chunks() - 1).flat_map(|i| (0..layout.parities).map(move |w| (i, w)));
        for (index, which) in of_stripe {
            let (member, place) = layout.slot(stripe, index, which);
            put(&place, member, slot(drawn(&layout, which), stripe, index));
        }
        others(&layout, stripe).into_iter().for_each(|(member, place, what)| put(&place, member, what));
        for member in 0..members {
            let what = match layout.role(member, stripe) {
                Role::Data(index) => format!("D{stripe}.{index}"),
                Role::Parity(which) => format!("{}{stripe}", ["P", "Q"][which]),
            };
            put(&ParityPlace::Row(stripe), member, what);
        }
    }
    let rows = table(title, &["row", "member 0"]);
    assert_eq!(rows.len(), expected.len());
    for row in rows {
        for (member, cell) in row[1..].iter().enumerate() {
            assert_eq!(
                *cell,
                expected[row[0]][member].join(", "),
                "{title}, row {}, member {member}",
                row[0]
            );
        }
    }
}

#[test]
fn append_mark_fields_match_document() {
    let mark = append::mark::AppendMark { block: u32_of(1), from: u32_of(2), void: u32_of(3) };
    let owner = append::mark::MarkOwner { member: uuid_of(5).0, zone: u32_of(4) };
    let bytes = mark.encode(&owner);
    let covered = [&owner.member[..], &owner.zone.to_le_bytes(), &bytes[4..]].concat();
    let crc = crc32c::crc32c(&covered).to_le_bytes();
    let data = [9; BLOCK];
    let seal = append::mark::seal(&owner, u64_of(6), u32_of(1), &data);
    let sealed = [
        &owner.member[..],
        &owner.zone.to_le_bytes(),
        &u64_of(6).to_le_bytes(),
        &u32_of(1).to_le_bytes(),
        &oob::data_sum(&data).to_le_bytes(),
    ];
    let expected: [(&str, &[u8]); 5] = [
        ("crc", &crc),
        ("block", &u32_of(1).to_le_bytes()),
        ("from", &u32_of(2).to_le_bytes()),
        ("void", &u32_of(3).to_le_bytes()),
        ("seal", &crc32c::crc32c(&sealed.concat()).to_le_bytes()),
    ];
    let bytes = [&bytes[..], &seal[..]].concat();
    let mut rest = &bytes[..];
    take(&mut rest, "Zones that are written by appends", &expected);
    assert!(rest.is_empty());
}

#[test]
fn oob_metadata_fields_match_document() {
    let contents =
        [(Content::Data, 1, 0), (Content::Parity(7), 2, 7), (Content::Ahead(9), 3, 9), (Content::Log, 4, 0)];
    for ((content, kind, covers), sum) in
        contents.into_iter().flat_map(|of| [(of, None), (of, Some(u32_of(4)))])
    {
        let bytes = Mark { epoch: u32_of(1), generation: u32_of(2), content, sum }.encode(origin());
        let end = if sum.is_some() { SUMMED_OOB_BYTES } else { OOB_BYTES };
        let parts = [
            &uuid_of(3).0[..],
            &u32_of(ORIGIN_MEMBER).to_le_bytes(),
            &u64_of(21).to_le_bytes(),
            &bytes[4..end],
        ];
        let crc = crc32c::crc32c(&parts.concat()).to_le_bytes();
        let (flags, sum) = (sum.is_some() as u8, sum.unwrap_or_default().to_le_bytes());
        let expected: [(&str, &[u8]); 7] = [
            ("crc", &crc),
            ("epoch", &u32_of(1).to_le_bytes()),
            ("generation", &u32_of(2).to_le_bytes()),
            ("kind", &[kind]),
            ("covers", &[covers]),
            ("flags", &[flags]),
            ("checksum", &sum),
        ];
        let mut rest = &bytes[..];
        take(&mut rest, "Parity in place", &expected);
        assert!(rest.is_empty());
    }
}

#[test]
fn zrwa_write_pointer_claims_match_document() {
    let rows = table("What a write pointer says", &["the member's part of row r", "half of it", "all of it"]);
    let [inner, last, parity] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(inner[1..], ["r·k + i + 1", "r·k + i + 2"]);
    assert_eq!(last[1..], ["r·k + k", "r·k + k + 1 if D ≥ 2, k ≥ 3 and r + 1 < R; otherwise r·k + k"]);
    assert_eq!(parity[1..], ["nothing: refused", "r·k + k"]);
    let layouts = |parities: usize| {
        let of = move |members, distance| Layout {
            policy: Policy::Zrwa,
            members,
            parities,
            chunk_blocks: 2,
            rows: 7,
            distance,
        };
        (parities + 2..=6).flat_map(move |members| (1..=3).map(move |distance| of(members, distance)))
    };
    for layout in layouts(1) {
        let k = layout.data_chunks();
        for (r, member) in (0..layout.rows).flat_map(|r| (0..layout.members).map(move |m| (r, m))) {
            let carried = (layout.distance >= 2 && k >= 3 && r + 1 < layout.rows) as u64;
            let (half, all) = match layout.role(member, r) {
                Role::Data(i) if i < k - 1 => (Some(r * k + i + 1), r * k + i + 2),
                Role::Data(_) => (Some(r * k + k), r * k + k + carried),
                Role::Parity(_) => (None, r * k + k),
            };
            assert_eq!(zrwa::claim(&layout, member, 2 * r + 1), half);
            assert_eq!(zrwa::claim(&layout, member, 2 * r + 2), Some(all));
        }
    }
    let with_two = "`r`, whatever it holds there, says that `(r + 1)·k` chunks are complete";
    assert!(DOCUMENT.contains(with_two));
    for layout in layouts(2) {
        for (r, member) in (0..layout.rows).flat_map(|r| (0..layout.members).map(move |m| (r, m))) {
            assert_eq!(zrwa::claim(&layout, member, 2 * r + 1), None);
            assert_eq!(zrwa::claim(&layout, member, 2 * r + 2), Some((r + 1) * layout.data_chunks()));
        }
    }
}

#[test]
fn largest_superblock_fits_in_one_block() {
    let mut superblock = sane(MAX_MEMBERS);
    (0..100).for_each(|number| superblock.lineage.commit(Uuid([number; 16]), MAX_MEMBERS));
    (0..9).for_each(|number| superblock.lineage.attempt(Attempt { event: 9, id: Uuid([200 + number; 16]) }));
    let bytes = Record::Superblock(Box::new(superblock)).encode(origin(), 10);
    assert_eq!(bytes.blocks(), 1);
    assert!(Record::read(&bytes, origin()).is_ok());
}
