//! The rules of zones, one row for each rule and each refusal: the required behaviour of a drive with the geometry of
//! [`model`], emulated or real.
//!
//! Sources: NVMe Zoned Namespace Command Set 1.1, and hw/nvme of QEMU for the precedence of refusals; see the head of
//! `engine/src/zone.rs`.

use crate::ssd::Model;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Status, Zones, Zrwa},
    zone::{Lba, ZoneIndex, ZoneState},
};

/// Zones of 64 blocks, 45 of which can be written; ZRWAs of 8 in granules of 2.
const SIZE: u64 = 64;
const CAPACITY: u64 = 45;

/// The drive model that the rows are written for.
pub fn model() -> Model {
    let geometry = Geometry {
        zones: 6,
        zone_size_blocks: SIZE,
        zone_capacity_blocks: CAPACITY,
        max_open: 3,
        max_active: 4,
        zrwa: Some(Zrwa { size_blocks: 8, granularity_blocks: 2, max_zones: 2 }),
        oob_bytes: 64,
        max_transfer_blocks: 48,
        max_append_blocks: 16,
        volatile_cache: false,
    };
    Model { name: "conformance".into(), geometry }
}

/// A step of a row, by zone and offset.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Write(u64, u64, u64),
    Append(u32, u64),
    Read(u64, u64, u64),
    Open(u32),
    OpenZrwa(u32),
    Close(u32),
    Finish(u32),
    Reset(u32),
    /// Explicit ZRWA flush of zone, up to and with this offset.
    Flush(u64, u64),
    Report(u32),
    OpenAll,
    OpenAllZrwa,
    CloseAll,
    FinishAll,
    ResetAll,
    ReadOnly(u32),
    Offline(u32),
}

use Action::*;

/// The command of a step. State changes by the drive itself have none: a flush takes their place.
pub fn command(step: Action) -> Command {
    let data = |blocks: u64| Buf::copy_of(&vec![7; blocks as usize * BLOCK]);
    let one = |zone| Zones::One(ZoneIndex(zone));
    let zones = Zones::All;
    match step {
        Write(zone, offset, blocks) => Command::write(Lba(zone * SIZE + offset), data(blocks), false),
        Append(zone, blocks) => Command::append(ZoneIndex(zone), data(blocks), false),
        Read(zone, offset, blocks) => Command::read(Lba(zone * SIZE + offset), data(blocks)),
        Open(zone) => Command::Open { zones: one(zone), zrwa: false },
        OpenZrwa(zone) => Command::Open { zones: one(zone), zrwa: true },
        Close(zone) => Command::Close { zones: one(zone) },
        Finish(zone) => Command::Finish { zones: one(zone) },
        Reset(zone) => Command::Reset { zones: one(zone) },
        Flush(zone, last) => Command::FlushZrwa { last: Lba(zone * SIZE + last) },
        Report(zone) => Command::Report { first: ZoneIndex(zone), count: 10 },
        OpenAll => Command::Open { zones, zrwa: false },
        OpenAllZrwa => Command::Open { zones, zrwa: true },
        CloseAll => Command::Close { zones },
        FinishAll => Command::Finish { zones },
        ResetAll => Command::Reset { zones },
        ReadOnly(_) | Offline(_) => Command::Flush,
    }
}

/// Name, steps before (all of which succeed), the tested step, its result, and then number, state, write pointer and
/// ZRWA of a zone.
pub type Row = (&'static str, &'static [Action], Action, Result<(), Status>, u32, ZoneState, u64, bool);

use ZoneState::{Closed, Empty, ExplicitlyOpen as Explicit, Full, ImplicitlyOpen as Implicit};

const LIMIT_OPEN: &[Action] = &[Open(0), Open(1), Open(2)];
const LIMIT_ACTIVE: &[Action] = &[Write(0, 0, 1), Write(1, 0, 1), Write(2, 0, 1), Close(0), Write(3, 0, 1)];

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    // Writes to sequential zones.
    ("a write opens an empty zone", &[], Write(0, 0, 3), Ok(()), 0, Implicit, 3, false),
    ("a write opens a closed zone", &[Write(0, 0, 3), Close(0)], Write(0, 3, 1), Ok(()), 0, Implicit, 4, false),
    ("a write leaves an explicitly open zone so", &[Open(0)], Write(0, 0, 1), Ok(()), 0, Explicit, 1, false),
    ("a write above the wp", &[Write(0, 0, 3)], Write(0, 4, 1), Err(Status::ZoneInvalidWrite), 0, Implicit, 3, false),
    ("a write below the wp", &[Write(0, 0, 3)], Write(0, 2, 1), Err(Status::ZoneInvalidWrite), 0, Implicit, 3, false),
    ("a write up to the capacity", &[Write(0, 0, 3)], Write(0, 3, 42), Ok(()), 0, Full, 45, false),
    ("a write across the capacity", &[Write(0, 0, 3)], Write(0, 3, 43), Err(Status::ZoneBoundaryError), 0, Implicit, 3, false),
    ("a write to a full zone", &[Finish(0)], Write(0, 0, 1), Err(Status::ZoneIsFull), 0, Full, 45, false),
    ("a write to a read-only zone", &[ReadOnly(0)], Write(0, 0, 1), Err(Status::ZoneIsReadOnly), 0, ZoneState::ReadOnly, 0, false),
    ("a write to an offline zone", &[Offline(0)], Write(0, 0, 1), Err(Status::ZoneIsOffline), 0, ZoneState::Offline, 0, false),
    ("a write beyond the drive", &[], Write(6, 0, 1), Err(Status::LbaOutOfRange), 0, Empty, 0, false),
    ("a write across the end of the drive", &[], Write(5, 63, 2), Err(Status::LbaOutOfRange), 5, Empty, 0, false),
    ("a write of nothing", &[], Write(0, 0, 0), Err(Status::InvalidField), 0, Empty, 0, false),
    ("a write larger than a transfer", &[], Write(0, 0, 49), Err(Status::InvalidField), 0, Empty, 0, false),
    ("a full zone is known before its wp is wrong", &[Finish(0)], Write(0, 50, 30), Err(Status::ZoneIsFull), 0, Full, 45, false),
    ("a wrong wp is known before the boundary", &[], Write(0, 40, 10), Err(Status::ZoneInvalidWrite), 0, Empty, 0, false),
    ("a wrong wp is known before limits", LIMIT_OPEN, Write(3, 1, 1), Err(Status::ZoneInvalidWrite), 3, Empty, 0, false),

    // Appends.
    ("an append opens an empty zone", &[], Append(0, 3), Ok(()), 0, Implicit, 3, false),
    ("an append up to the capacity", &[Write(0, 0, 40)], Append(0, 5), Ok(()), 0, Full, 45, false),
    ("an append across the capacity", &[Write(0, 0, 40)], Append(0, 6), Err(Status::ZoneBoundaryError), 0, Implicit, 40, false),
    ("an append to a full zone", &[Finish(0)], Append(0, 1), Err(Status::ZoneIsFull), 0, Full, 45, false),
    ("an append to a zone with a ZRWA", &[OpenZrwa(0)], Append(0, 1), Err(Status::InvalidZoneOperation), 0, Explicit, 0, true),
    ("an append larger than allowed", &[], Append(0, 17), Err(Status::InvalidField), 0, Empty, 0, false),
    ("an append to no zone", &[], Append(6, 1), Err(Status::LbaOutOfRange), 0, Empty, 0, false),
    ("an append to a read-only zone", &[ReadOnly(0)], Append(0, 1), Err(Status::ZoneIsReadOnly), 0, ZoneState::ReadOnly, 0, false),

    // Reads.
    ("a read above the wp", &[Write(0, 0, 1)], Read(0, 5, 2), Ok(()), 0, Implicit, 1, false),
    ("a read across the capacity", &[], Read(0, 40, 20), Ok(()), 0, Empty, 0, false),
    ("a read above the capacity", &[], Read(0, 50, 2), Ok(()), 0, Empty, 0, false),
    ("a read into the next zone", &[], Read(0, 60, 8), Err(Status::ZoneBoundaryError), 0, Empty, 0, false),
    ("a read beyond the drive", &[], Read(6, 0, 1), Err(Status::LbaOutOfRange), 0, Empty, 0, false),
    ("a read of a read-only zone", &[Write(0, 0, 1), ReadOnly(0)], Read(0, 0, 1), Ok(()), 0, ZoneState::ReadOnly, 1, false),
    ("a read of an offline zone", &[Offline(0)], Read(0, 0, 1), Err(Status::ZoneIsOffline), 0, ZoneState::Offline, 0, false),

    // Open, close, finish, reset.
    ("open an empty zone", &[], Open(0), Ok(()), 0, Explicit, 0, false),
    ("open an implicitly open zone", &[Write(0, 0, 1)], Open(0), Ok(()), 0, Explicit, 1, false),
    ("open an open zone", &[Open(0)], Open(0), Ok(()), 0, Explicit, 0, false),
    ("open a closed zone", &[Open(0), Close(0)], Open(0), Ok(()), 0, Explicit, 0, false),
    ("open a full zone", &[Finish(0)], Open(0), Err(Status::InvalidZoneStateTransition), 0, Full, 45, false),
    ("open a read-only zone", &[ReadOnly(0)], Open(0), Err(Status::InvalidZoneStateTransition), 0, ZoneState::ReadOnly, 0, false),
    ("open no zone", &[], Open(6), Err(Status::LbaOutOfRange), 0, Empty, 0, false),
    ("close an open zone", &[Write(0, 0, 1)], Close(0), Ok(()), 0, Closed, 1, false),
    ("close an open zone without data", &[Open(0)], Close(0), Ok(()), 0, Closed, 0, false),
    ("close a closed zone", &[Open(0), Close(0)], Close(0), Ok(()), 0, Closed, 0, false),
    ("close an empty zone", &[], Close(0), Err(Status::InvalidZoneStateTransition), 0, Empty, 0, false),
    ("close a full zone", &[Finish(0)], Close(0), Err(Status::InvalidZoneStateTransition), 0, Full, 45, false),
    ("finish an empty zone", &[], Finish(0), Ok(()), 0, Full, 45, false),
    ("finish an open zone", &[Write(0, 0, 1)], Finish(0), Ok(()), 0, Full, 45, false),
    ("finish a full zone", &[Finish(0)], Finish(0), Ok(()), 0, Full, 45, false),
    ("finish an offline zone", &[Offline(0)], Finish(0), Err(Status::InvalidZoneStateTransition), 0, ZoneState::Offline, 0, false),
    ("finish no zone", &[], Finish(6), Err(Status::LbaOutOfRange), 0, Empty, 0, false),
    ("reset an empty zone", &[], Reset(0), Ok(()), 0, Empty, 0, false),
    ("reset an open zone", &[Write(0, 0, 1)], Reset(0), Ok(()), 0, Empty, 0, false),
    ("reset a full zone", &[Finish(0)], Reset(0), Ok(()), 0, Empty, 0, false),
    ("reset a read-only zone", &[ReadOnly(0)], Reset(0), Err(Status::InvalidZoneStateTransition), 0, ZoneState::ReadOnly, 0, false),
    ("report from no zone on", &[], Report(6), Err(Status::LbaOutOfRange), 0, Empty, 0, false),

    // All zones at once.
    ("open all leaves empty zones", &[], OpenAll, Ok(()), 0, Empty, 0, false),
    ("open all opens closed zones", &[Write(0, 0, 1), Close(0)], OpenAll, Ok(()), 0, Explicit, 1, false),
    ("open all leaves implicitly open zones", &[Write(0, 0, 1)], OpenAll, Ok(()), 0, Implicit, 1, false),
    ("open all opens all or none", LIMIT_ACTIVE, OpenAll, Err(Status::TooManyOpenZones), 0, Closed, 1, false),
    ("open all gives no ZRWA", &[], OpenAllZrwa, Err(Status::InvalidField), 0, Empty, 0, false),
    ("close all", &[Open(0)], CloseAll, Ok(()), 0, Closed, 0, false),
    ("finish all leaves empty zones", &[Open(1)], FinishAll, Ok(()), 0, Empty, 0, false),
    ("finish all finishes closed zones", &[Open(1), Close(1)], FinishAll, Ok(()), 1, Full, 45, false),
    ("reset all resets full zones", &[Finish(1)], ResetAll, Ok(()), 1, Empty, 0, false),
    ("reset all leaves read-only zones", &[ReadOnly(1)], ResetAll, Ok(()), 1, ZoneState::ReadOnly, 0, false),

    // Limits: three zones open, four active.
    ("a fourth explicit open", LIMIT_OPEN, Open(3), Err(Status::TooManyOpenZones), 3, Empty, 0, false),
    ("a write that would open a fourth zone", LIMIT_OPEN, Write(3, 0, 1), Err(Status::TooManyOpenZones), 3, Empty, 0, false),
    ("an explicitly open zone is no victim", LIMIT_OPEN, Append(3, 1), Err(Status::TooManyOpenZones), 0, Explicit, 0, false),
    ("the first implicitly open zone is closed", &[Write(0, 0, 1), Write(1, 0, 1), Write(2, 0, 1)], Open(3), Ok(()), 0, Closed, 1, false),
    ("a victim keeps its ZRWA", &[OpenZrwa(0), Close(0), Write(0, 0, 1), Open(1), Open(2)], Write(3, 0, 1), Ok(()), 0, Closed, 0, true),
    ("a fifth active zone", LIMIT_ACTIVE, Write(4, 0, 1), Err(Status::TooManyActiveZones), 4, Empty, 0, false),
    ("no victim is closed in vain", LIMIT_ACTIVE, Open(4), Err(Status::TooManyActiveZones), 1, Implicit, 1, false),
    ("too many active comes before too many open", &[Open(0), Open(1), Open(2), Close(2), Open(3)], Open(4), Err(Status::TooManyActiveZones), 4, Empty, 0, false),
    ("a closed zone is active already", LIMIT_ACTIVE, Write(0, 1, 1), Ok(()), 0, Implicit, 2, false),
    ("finish makes room", &[Open(0), Open(1), Open(2), Finish(0)], Open(3), Ok(()), 3, Explicit, 0, false),
    ("a zone that fills up makes room", &[Open(0), Open(1), Open(2), Write(0, 0, 45)], Open(3), Ok(()), 3, Explicit, 0, false),

    // Acquiring a ZRWA.
    ("open with a ZRWA", &[], OpenZrwa(0), Ok(()), 0, Explicit, 0, true),
    ("a third ZRWA", &[OpenZrwa(0), OpenZrwa(1)], OpenZrwa(2), Err(Status::ZrwaResourcesUnavailable), 2, Empty, 0, false),
    ("no ZRWA for an open zone", &[Open(0)], OpenZrwa(0), Err(Status::InvalidZoneStateTransition), 0, Explicit, 0, false),
    ("no ZRWA for a written zone", &[Write(0, 0, 2), Close(0)], OpenZrwa(0), Err(Status::InvalidZoneStateTransition), 0, Closed, 2, false),
    ("no second ZRWA for a zone", &[OpenZrwa(0)], OpenZrwa(0), Err(Status::InvalidZoneStateTransition), 0, Explicit, 0, true),
    ("no ZRWA for a full zone", &[Finish(0)], OpenZrwa(0), Err(Status::InvalidZoneStateTransition), 0, Full, 45, false),
    ("close keeps the ZRWA", &[OpenZrwa(0), Write(0, 3, 1)], Close(0), Ok(()), 0, Closed, 0, true),
    ("open again keeps the ZRWA", &[OpenZrwa(0), Close(0)], Open(0), Ok(()), 0, Explicit, 0, true),
    ("finish releases the ZRWA", &[OpenZrwa(0), OpenZrwa(1), Finish(0)], OpenZrwa(2), Ok(()), 2, Explicit, 0, true),
    ("reset releases the ZRWA", &[OpenZrwa(0), OpenZrwa(1), Reset(0)], OpenZrwa(0), Ok(()), 0, Explicit, 0, true),
    ("a read-only zone has no ZRWA", &[OpenZrwa(0), OpenZrwa(1), ReadOnly(0)], OpenZrwa(2), Ok(()), 2, Explicit, 0, true),

    // Writing in the ZRWA.
    ("a write in the ZRWA leaves the wp", &[OpenZrwa(0)], Write(0, 0, 8), Ok(()), 0, Explicit, 0, true),
    ("a write in the ZRWA in any order", &[OpenZrwa(0), Write(0, 5, 2)], Write(0, 1, 2), Ok(()), 0, Explicit, 0, true),
    ("a write in the ZRWA again", &[OpenZrwa(0), Write(0, 5, 2)], Write(0, 4, 3), Ok(()), 0, Explicit, 0, true),
    ("a write one beyond the ZRWA flushes a granule", &[OpenZrwa(0)], Write(0, 8, 1), Ok(()), 0, Explicit, 2, true),
    ("a write two beyond the ZRWA flushes a granule", &[OpenZrwa(0)], Write(0, 8, 2), Ok(()), 0, Explicit, 2, true),
    ("a write three beyond the ZRWA flushes two", &[OpenZrwa(0)], Write(0, 8, 3), Ok(()), 0, Explicit, 4, true),
    ("a write to the end of the implicit flush range", &[OpenZrwa(0)], Write(0, 0, 16), Ok(()), 0, Explicit, 8, true),
    ("a write beyond the implicit flush range", &[OpenZrwa(0)], Write(0, 15, 2), Err(Status::ZoneInvalidWrite), 0, Explicit, 0, true),
    ("a write below the wp of a zone with a ZRWA", &[OpenZrwa(0), Write(0, 8, 2)], Write(0, 1, 1), Err(Status::ZoneInvalidWrite), 0, Explicit, 2, true),
    ("a write to a closed zone with a ZRWA", &[OpenZrwa(0), Close(0)], Write(0, 3, 1), Ok(()), 0, Implicit, 0, true),
    ("no implicit flush near the end", &[OpenZrwa(0), Write(0, 0, 16), Write(0, 8, 16), Write(0, 16, 16), Write(0, 24, 16), Write(0, 40, 4)], Write(0, 44, 1), Ok(()), 0, Explicit, 38, true),
    ("a write across the capacity in a ZRWA", &[OpenZrwa(0), Write(0, 0, 16), Write(0, 8, 16), Write(0, 16, 16), Write(0, 24, 16)], Write(0, 44, 2), Err(Status::ZoneBoundaryError), 0, Explicit, 32, true),
    ("a read in the ZRWA", &[OpenZrwa(0), Write(0, 3, 1)], Read(0, 3, 1), Ok(()), 0, Explicit, 0, true),

    // Flushing the ZRWA explicitly.
    ("flush a granule", &[OpenZrwa(0)], Flush(0, 1), Ok(()), 0, Explicit, 2, true),
    ("flush the whole ZRWA", &[OpenZrwa(0)], Flush(0, 7), Ok(()), 0, Explicit, 8, true),
    ("flush more than the ZRWA", &[OpenZrwa(0)], Flush(0, 9), Err(Status::ZoneBoundaryError), 0, Explicit, 0, true),
    ("flush one more than the ZRWA", &[OpenZrwa(0)], Flush(0, 8), Err(Status::ZoneBoundaryError), 0, Explicit, 0, true),
    ("flush below the wp", &[OpenZrwa(0), Flush(0, 3)], Flush(0, 1), Err(Status::ZoneBoundaryError), 0, Explicit, 4, true),
    ("flush half a granule", &[OpenZrwa(0)], Flush(0, 2), Err(Status::InvalidField), 0, Explicit, 0, true),
    ("flush a zone without a ZRWA", &[Open(0)], Flush(0, 1), Err(Status::InvalidField), 0, Explicit, 0, false),
    ("flush beyond the drive", &[], Flush(6, 1), Err(Status::LbaOutOfRange), 0, Empty, 0, false),
    ("flush opens a closed zone", &[OpenZrwa(0), Close(0)], Flush(0, 1), Ok(()), 0, Implicit, 2, true),
    ("flush to the end of an odd capacity", &[OpenZrwa(0), Flush(0, 7), Flush(0, 15), Flush(0, 23), Flush(0, 31), Flush(0, 39)], Flush(0, 44), Ok(()), 0, Full, 45, false),
    ("flush beyond the capacity", &[OpenZrwa(0), Flush(0, 7), Flush(0, 15), Flush(0, 23), Flush(0, 31), Flush(0, 39)], Flush(0, 45), Err(Status::ZoneBoundaryError), 0, Explicit, 40, true),
    ("a zone that fills up releases its ZRWA", &[OpenZrwa(0), OpenZrwa(1), Flush(0, 7), Flush(0, 15), Flush(0, 23), Flush(0, 31), Flush(0, 39), Flush(0, 44)], OpenZrwa(2), Ok(()), 2, Explicit, 0, true),
];
