//! Reads and writes of members' parts of zones: addresses, commands, out-of-band metadata, and checksums.
//!
//! Everything that reads or writes such blocks gets its commands here, except for the metadata logs
//! ([`crate::raid::journal`]) and the copy of a drive, which writes to a device that is no member yet.
//!
//! In an array with checksums, every block is written with a mark that has the checksum of its data, and every read
//! returns the marks, which [`crate::raid::zone::checksum`] compares.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion},
    format::{
        Origin,
        oob::{Content, Mark, SUMMED_OOB_BYTES, data_sum},
        record::Record,
    },
    raid::{
        failures,
        geometry::{Role, each, physical},
        parts::Raid,
        policy::inplace::version_of,
    },
    zone::{Lba, ZoneIndex, ZoneInfo},
};

/// Submits `command`, which concerns `zone`, to every member of `mask` and waits; an error costs a member its part
/// of the zone, or takes it out ([`failures::part_failed`](crate::raid::failures::part_failed)).
pub async fn on_parts(
    raid: &Raid,
    zone: ZoneIndex,
    mask: u32,
    what: &'static str,
    command: impl Fn(usize) -> Command,
) {
    let pending: Vec<_> =
        each(mask).map(|m| (raid.members.seat(m), raid.members.submit(m, command(m)))).collect();
    for (seat, completion) in pending {
        if let Err(error) = completion.await.result {
            failures::part_failed(raid, zone, seat, error, what);
        }
    }
}

/// Zone report of a member's part of a zone; `None` if the drive does not answer.
pub async fn part(raid: &Raid, zone: ZoneIndex, member: usize) -> Option<ZoneInfo> {
    for _ in 0..2 {
        let report = Command::Report { first: physical(zone), count: 1 };
        if let Some(info) = raid.members.submit(member, report).await.zones.first() {
            return Some(*info);
        }
    }
    None
}

/// Content of the blocks of `member` in row `row` of a complete stripe.
pub fn content_of(raid: &Raid, member: usize, row: u64) -> Content {
    match raid.layout.role(member, row) {
        Role::Data(_) => Content::Data,
        Role::Parity(_) => version_of(0, 0, raid.layout.data_chunks() - 1),
    }
}

/// Address on `member` of block `at` of its part of `zone`.
pub fn address(raid: &Raid, member: usize, zone: ZoneIndex, at: u64) -> Lba {
    Lba(raid.members.start(member, zone).0 + at)
}

/// Reads into `data` from block `at` of a member's part of `zone`. Blocks are returned as the drive has them: without
/// relocated blocks ([`crate::raid::zone::relocated`]), and also if they are bad blocks. The completion has to pass
/// through [`checksum::checked`](crate::raid::zone::checksum::checked).
pub fn read(raid: &Raid, member: usize, zone: ZoneIndex, at: u64, data: Buf) -> Completion {
    let oob = match raid.checksums {
        true => {
            let len = data.blocks() as usize * oob_bytes(raid, member);
            raid.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64).freeze().slice(0..len)
        }
        false => Buf::default(),
    };
    read_marked(raid, member, zone, at, data, oob)
}

/// As [`read`], with the out-of-band metadata of the blocks.
pub fn read_marked(raid: &Raid, member: usize, zone: ZoneIndex, at: u64, data: Buf, oob: Buf) -> Completion {
    raid.members.submit(member, Command::Read { lba: address(raid, member, zone, at), data, oob })
}

/// Bytes of out-of-band metadata of each block of a member's drive.
pub fn oob_bytes(raid: &Raid, member: usize) -> usize {
    raid.members.device(member).map_or(0, |device| device.geometry().oob_bytes as usize)
}

/// Writes `data` from block `at` of a member's part of `zone` on.
pub fn write(
    raid: &Raid,
    member: usize,
    zone: ZoneIndex,
    at: u64,
    data: Buf,
    content: Content,
) -> Completion {
    raid.members.submit(member, write_command(raid, member, zone, at, data, content))
}

/// Write command for `data` at block `at` of a member's part of `zone`, with the out-of-band metadata that the
/// policy requires.
pub fn write_command(
    raid: &Raid,
    member: usize,
    zone: ZoneIndex,
    at: u64,
    data: Buf,
    content: Content,
) -> Command {
    let lba = address(raid, member, zone, at);
    let oob = match raid.uses_marks() {
        true => oob(raid, member, lba, &data, |_| mark(raid, zone, content)),
        false => Buf::default(),
    };
    Command::Write { lba, data, oob, fua: false }
}

/// Write command for blocks of complete stripes, from block `at` of a member's part on, with out-of-band metadata only
/// if the array has checksums.
pub fn rows_command(raid: &Raid, member: usize, zone: ZoneIndex, at: u64, data: Buf) -> Command {
    let lba = address(raid, member, zone, at);
    let content = |block| content_of(raid, member, (at + block) / raid.layout.chunk_blocks);
    let oob = match raid.checksums {
        true => oob(raid, member, lba, &data, |block| mark(raid, zone, content(block))),
        false => Buf::default(),
    };
    Command::Write { lba, data, oob, fua: false }
}

/// The mark of a block of `zone` that is written now.
fn mark(raid: &Raid, zone: ZoneIndex, content: Content) -> Mark {
    let (epoch, generation) = (raid.zone_records.epoch(zone) as u32, raid.membership.generation());
    Mark { epoch, generation, content, sum: None }
}

/// Write command for blocks whose out-of-band metadata exists already: decoded or copied ones.
pub fn copied_command(lba: Lba, data: Buf, oob: Buf) -> Command {
    Command::Write { lba, data, oob, fua: false }
}

/// Write command for a log block at block `at` of a member's part of `zone`.
pub fn log_command(
    raid: &Raid,
    member: usize,
    zone: ZoneIndex,
    at: u64,
    (record, sequence): (&Record, u64),
    fua: bool,
) -> Command {
    let lba = address(raid, member, zone, at);
    let record = record.encode(origin(raid, member, lba.0), sequence);
    with_fua(write_command(raid, member, zone, at, record, Content::Log), fua)
}

/// Write command for a cell ([`crate::raid::zone::cells`]) at block `at` of a member's part of `zone`.
pub fn cell_command(raid: &Raid, member: usize, zone: ZoneIndex, at: u64, data: Buf, fua: bool) -> Command {
    with_fua(write_command(raid, member, zone, at, data, Content::Log), fua)
}

/// A write command with this FUA flag.
fn with_fua(command: Command, fua: bool) -> Command {
    match command {
        Command::Write { lba, data, oob, .. } => Command::Write { lba, data, oob, fua },
        command => command,
    }
}

/// Out-of-band metadata for blocks of a member with these data: the mark of each block by number, with the checksum of
/// its data if the array has checksums.
pub fn oob(raid: &Raid, member: usize, lba: Lba, data: &[u8], mark: impl Fn(u64) -> Mark) -> Buf {
    let (size, blocks) = (oob_bytes(raid, member), data.len() / BLOCK);
    let len = size * blocks;
    // The slice is still the only reference to the buffer.
    let mut oob = raid.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64);
    let places = oob[..len].chunks_exact_mut(size.max(1));
    for ((at, bytes), block) in (0..).zip(places).zip(data.chunks(BLOCK)) {
        let mark = Mark { sum: raid.checksums.then(|| data_sum(block)), ..mark(at) };
        let (own, rest) = bytes.split_at_mut(SUMMED_OOB_BYTES.min(size));
        own.copy_from_slice(&mark.encode(origin(raid, member, lba.0 + at))[..own.len()]);
        rest.fill(0);
    }
    oob.freeze().slice(0..len)
}

/// The identity of block `lba` of a member, which is stored with its metadata.
pub fn origin(raid: &Raid, member: usize, lba: u64) -> Origin {
    Origin { array: raid.array, member: member as u32, lba }
}
