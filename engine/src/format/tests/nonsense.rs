//! Damaged and invalid records, with a right checksum or without, are decoded or refused without a panic.

use super::*;

#[test]
fn record_with_wrong_payload_length_is_rejected() {
    for record in
        [Record::Superblock(Box::new(sane(4))), Record::Reset { first: 1, count: 2 }, Record::Tail(tail(1))]
    {
        let bytes = record.encode(origin(), 1).to_vec();
        let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
        for (other, intact) in [(len, true), (len + 8, false), (len - 8, false)] {
            let mut bytes = bytes.clone();
            bytes[12..16].copy_from_slice(&other.to_le_bytes());
            seal(&mut bytes);
            assert_eq!(Record::read(&bytes, origin()).is_ok(), intact, "{record:?}, {other} bytes");
        }
    }
}

/// Decodes a superblock of three members with `value` at `at`, and a right checksum.
fn superblock_with(at: usize, value: &[u8]) -> Result<Superblock, RecordError> {
    let mut bytes = Record::Superblock(Box::new(sane(3))).encode(origin(), 10).to_vec();
    bytes[HEADER_BYTES + at..][..value.len()].copy_from_slice(value);
    seal(&mut bytes);
    match Record::read(&bytes, origin())?.0 {
        Record::Superblock(read) => Ok(*read),
        other => panic!("{other:?}"),
    }
}

#[test]
fn superblock_rejects_invalid_stage_size_and_text_fields() {
    let absurd = |at: usize, value: &[u8]| match superblock_with(at, value) {
        Err(RecordError::Absurd(absurd)) => absurd.field,
        other => panic!("{value:?} at {at}: {other:?}"),
    };
    let read = |at: usize, value: &[u8]| superblock_with(at, value).unwrap();
    // Offsets in the tables of docs/FORMAT.md: in the superblock head, and in the second member.
    let (host, autostart, stage) = (176, 192, 196);
    let (size, model, serial) = (240 + 112 + 40, 240 + 112 + 48, 240 + 112 + 88);
    assert_eq!(read(host, &[0xff; 16]).host, Uuid([0xff; 16]));
    assert!(!read(autostart, &[0]).autostart);
    for (value, known) in [(1, Stage::Making), (2, Stage::Whole), (3, Stage::Ending)] {
        assert_eq!(read(stage, &[value]).stage, known);
    }
    for value in [0, 4, 0xff] {
        assert_eq!(absurd(stage, &[value]), "stage");
        assert!(value == 0 || absurd(autostart, &[value]) == "autostart");
    }
    assert_eq!(absurd(autostart, &[1, 0, 0, 0x80]), "autostart");
    assert_eq!(absurd(stage, &[2, 0, 0, 0x80]), "stage");
    for value in [0, 3, 0xff] {
        assert_eq!(absurd(200, &[value]), "parities");
    }
    // Two parities need four members, and there are three.
    assert_eq!(absurd(200, &[2]), "members");
    assert_eq!(read(size, &(1u64 << 63).to_le_bytes()).members[1].drive_id.size_bytes, 1 << 63);
    for bytes in [(1u64 << 63) + 1, u64::MAX] {
        assert_eq!(absurd(size, &bytes.to_le_bytes()), "size");
    }
    for (at, len, field) in [(model, MODEL_BYTES, "model"), (serial, SERIAL_BYTES, "serial")] {
        let text = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(len, 0);
            bytes
        };
        let kept = |read: Superblock| match field {
            "model" => read.members[1].drive_id.model.clone(),
            _ => read.members[1].drive_id.serial.clone(),
        };
        let longest = "x".repeat(len);
        for good in ["", "a/b \u{e4}", "-", ".", "a\u{20ac}", longest.as_str()] {
            assert_eq!(kept(read(at, &text(good))), good);
        }
        for bad in ["\n", "a\u{1b}[31m", " a", "a ", "\u{202e}a", "\u{feff}", "\t"] {
            assert_eq!(absurd(at, &text(bad)), field, "{bad:?}");
        }
        // Not UTF-8: within, and cut off at the end.
        assert_eq!(absurd(at, &[b'a', 0xff]), field);
        assert_eq!(absurd(at, &[&longest.as_bytes()[1..], &[0xe2]].concat()), field);
    }
}

#[test]
fn superblock_sanitizes_drive_model_and_serial() {
    let longest = "\u{20ac}".repeat(MODEL_BYTES);
    let cases = [
        ("  WDC  ZN540 ", "WDC  ZN540"),
        ("a\u{0}b\u{1b}c", "abc"),
        ("\u{200b} x", "x"),
        (longest.as_str(), &longest[..39]),
        (&format!("{} end", "y".repeat(39)), &"y".repeat(39)),
        ("", ""),
    ];
    for (reported, kept) in cases {
        assert_eq!(superblock::kept_of(reported, MODEL_BYTES), kept);
        assert_eq!(superblock::kept_of(kept, MODEL_BYTES), kept);
    }
}

/// Changes some bytes, and corrects the checksum.
fn mutate(bytes: &mut [u8], random: &mut impl FnMut() -> u64) {
    let len = HEADER_BYTES + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    for _ in 0..1 + random() % 4 {
        // Numbers are in the first bytes; the rest is data of blocks, and much larger.
        let reach = if random().is_multiple_of(4) { len } else { len.min(HEADER_BYTES + 400) };
        let at = HEADER_BYTES + random() as usize % (reach - HEADER_BYTES);
        let value = [0, 1, 0x7f, 0x80, 0xff, random() as u8][random() as usize % 6];
        let end = (at + [1, 2, 4, 8][random() as usize % 4]).min(len);
        bytes[at..end].fill(value);
    }
    if random().is_multiple_of(8) {
        bytes[10] = (random() % 12) as u8;
    }
    if random().is_multiple_of(8) {
        let len = random() % (bytes.len() - HEADER_BYTES + 1) as u64;
        bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    }
    seal(bytes);
}

/// Pseudo-random numbers from a seed (xorshift).
fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn record_mutations_are_read_or_rejected_without_panic() {
    let parity = |from| ParityRecord {
        zone: 3,
        epoch: 4,
        stripe: 5,
        index: 1,
        from,
        data: Buf::copy_of(&[7; 2 * BLOCK]),
    };
    let checkpoint = Checkpoint {
        generation: 3,
        incomplete: Default::default(),
        moved: Default::default(),
        superblock: sane(5),
        zones: vec![ZoneRecord::default(); 98],
        burned: vec![BurnedRange { zone: 1, member: 2, epoch: 3, from: 4, to: 6 }],
        bad_blocks: vec![BadBlocks { zone: 1, member: 2, epoch: 3, from: 4, to: 6 }],
        parity: vec![parity(2), parity(6)],
        tails: vec![TailRecord { zone: 1, generation: 0, epoch: 2, tail_blocks: 3 }],
    };
    let records = [
        Record::Checkpoint(Box::new(checkpoint)),
        Record::Superblock(Box::new(sane(3))),
        Record::Reset { first: 1, count: 2 },
        Record::Finish { zone: 1, epoch: 2, tail_blocks: 3 },
        Record::Parity(parity(0)),
        Record::Tail(TailRecord { zone: 1, generation: 0, epoch: 2, tail_blocks: 3 }),
        Record::Note(
            TailRecord { zone: 1, generation: 0, epoch: 2, tail_blocks: 3 },
            Buf::copy_of(&[5; 300]),
        ),
    ];
    let mut random = random(0x5eed);
    let (mut read, mut refused) = (0, 0);
    for record in &records {
        let good = record.encode(origin(), 10).to_vec();
        let (again, ..) = Record::read(&good, origin()).unwrap();
        assert_eq!(
            again.check(10, &sane(if matches!(record, Record::Superblock(_)) { 3 } else { 5 })),
            Ok(())
        );
        for _ in 0..5000 {
            let mut bytes = good.clone();
            mutate(&mut bytes, &mut random);
            match Record::read(&bytes, origin()) {
                Ok((record, sequence, blocks)) => {
                    // A decoded record is no larger than its input.
                    assert!(blocks as usize * BLOCK <= bytes.len());
                    _ = record.check(sequence, &sane(5));
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}

#[test]
fn random_bytes_are_read_or_rejected_without_panic() {
    let mut random = random(0xb17e5);
    for _ in 0..20_000 {
        let len = HEADER_BYTES + random() as usize % 3 * 100 + random() as usize % 200;
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        _ = Record::read(&bytes, origin());
        // The same bytes behind a valid header.
        let header = Record::Reset { first: 0, count: 0 }.encode(origin(), 1);
        bytes[..HEADER_BYTES].copy_from_slice(&header[..HEADER_BYTES]);
        bytes[10] = (random() % 12) as u8;
        bytes[12..16].copy_from_slice(&((len - HEADER_BYTES) as u32).to_le_bytes());
        seal(&mut bytes);
        if let Ok((record, sequence, _)) = Record::read(&bytes, origin()) {
            _ = record.check(sequence, &sane(5));
        }
        // Out-of-band metadata, with a checksum that is right and one that is not.
        let mut mark = [0; OOB_BYTES];
        mark.copy_from_slice(&bytes[HEADER_BYTES - OOB_BYTES..HEADER_BYTES]);
        assert_eq!(Mark::read(&mark, origin()), None);
        mark[12..].copy_from_slice(&[(random() % 5) as u8, random() as u8, 0, (random() % 2) as u8]);
        let parts =
            [&origin().array.0[..], &origin().member.to_le_bytes(), &origin().lba.to_le_bytes(), &mark[4..]];
        let crc = crc32c::crc32c(&parts.concat()).to_le_bytes();
        mark[..4].copy_from_slice(&crc);
        if let Some(read) = Mark::read(&mark, origin()) {
            assert_eq!(read.encode(origin())[..OOB_BYTES], mark);
        }
    }
}
