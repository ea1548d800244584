//! Properties of the zone rules, whatever the order of commands.
#![allow(clippy::unwrap_used)]

use engine::{
    device::{Geometry, Status, Zrwa},
    table::{WriteEffect, ZoneTable},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use proptest::prelude::*;

const ZONES: u32 = 6;
const SIZE: u64 = 32;

#[derive(Clone, Debug)]
enum Call {
    Write(u32, u64, u64),
    WriteAtWp(u32, u64),
    Append(u32, u64),
    FlushZrwa(u32, u64),
    FlushGranules(u32, u64),
    Open(u32, bool),
    Close(u32),
    Finish(u32),
    Reset(u32),
    OpenAll,
    CloseAll,
    FinishAll,
    ResetAll,
    ReadOnly(u32),
    Offline(u32),
}

fn call() -> impl Strategy<Value = Call> {
    let zone = || 0..ZONES;
    prop_oneof![
        4 => (zone(), 0..SIZE, 0..20u64).prop_map(|(z, o, n)| Call::Write(z, o, n)),
        8 => (zone(), 1..14u64).prop_map(|(z, n)| Call::WriteAtWp(z, n)),
        3 => (zone(), 0..20u64).prop_map(|(z, n)| Call::Append(z, n)),
        2 => (zone(), 0..SIZE).prop_map(|(z, o)| Call::FlushZrwa(z, o)),
        4 => (zone(), 1..5u64).prop_map(|(z, n)| Call::FlushGranules(z, n)),
        6 => (zone(), any::<bool>()).prop_map(|(z, zrwa)| Call::Open(z, zrwa)),
        2 => zone().prop_map(Call::Close),
        1 => zone().prop_map(Call::Finish),
        4 => zone().prop_map(Call::Reset),
        1 => Just(Call::OpenAll),
        1 => Just(Call::CloseAll),
        1 => Just(Call::FinishAll),
        1 => Just(Call::ResetAll),
        1 => zone().prop_map(Call::ReadOnly),
        1 => zone().prop_map(Call::Offline),
    ]
}

fn geometry() -> impl Strategy<Value = Geometry> {
    let zrwa = (1..3u64, 1..4u64, 0..4u32).prop_map(|(granularity_blocks, n, max_zones)| Zrwa {
        size_blocks: granularity_blocks * n * 2,
        granularity_blocks,
        max_zones,
    });
    (20..=SIZE, 0..4u32, 0..5u32, proptest::option::of(zrwa)).prop_map(
        |(zone_capacity_blocks, max_open, max_active, zrwa)| Geometry {
            zones: ZONES,
            zone_size_blocks: SIZE,
            zone_capacity_blocks,
            max_open,
            max_active,
            zrwa,
            oob_bytes: 0,
            max_transfer_blocks: 64,
            max_append_blocks: 64,
            volatile_cache: false,
        },
    )
}

/// The zone states and the counts of a table.
fn picture(table: &ZoneTable) -> (Vec<ZoneInfo>, [u32; 3]) {
    let zones = table.report(ZoneIndex(0), ZONES).unwrap();
    (zones, [table.open_zones(), table.active_zones(), table.zrwa_zones()])
}

fn apply(table: &mut ZoneTable, geometry: &Geometry, call: &Call) -> Result<Option<WriteEffect>, Status> {
    let at = |zone: u32, offset: u64| Lba(geometry.start(ZoneIndex(zone)).0 + offset);
    let wp = |table: &ZoneTable, zone: u32| table.info(ZoneIndex(zone)).wp_blocks;
    let granularity = geometry.zrwa.map_or(1, |zrwa| zrwa.granularity_blocks);
    match *call {
        Call::Write(zone, offset, n) => return table.write(at(zone, offset), n).map(Some),
        Call::WriteAtWp(zone, n) => return table.write(at(zone, wp(table, zone)), n).map(Some),
        Call::Append(zone, n) => return table.append(ZoneIndex(zone), n).map(Some),
        Call::FlushZrwa(zone, offset) => return table.flush_zrwa(at(zone, offset)).map(Some),
        Call::FlushGranules(zone, n) => {
            return table.flush_zrwa(at(zone, wp(table, zone) + n * granularity - 1)).map(Some);
        }
        Call::Open(zone, zrwa) => table.open(ZoneIndex(zone), zrwa)?,
        Call::Close(zone) => table.close(ZoneIndex(zone))?,
        Call::Finish(zone) => table.finish(ZoneIndex(zone))?,
        Call::Reset(zone) => table.reset(ZoneIndex(zone))?,
        Call::OpenAll => table.open_all()?,
        Call::CloseAll => table.close_all(),
        Call::FinishAll => table.finish_all(|_| ()),
        Call::ResetAll => table.reset_all(|_| ()),
        Call::ReadOnly(zone) => table.set_read_only(ZoneIndex(zone)),
        Call::Offline(zone) => table.set_offline(ZoneIndex(zone)),
    }
    Ok(None)
}

fn check_invariants(table: &ZoneTable, geometry: &Geometry) {
    let (zones, [open, active, zrwa]) = picture(table);
    let count = |f: fn(&ZoneInfo) -> bool| zones.iter().filter(|z| f(z)).count() as u32;
    assert_eq!(open, count(|z| z.state.is_open()));
    assert_eq!(active, count(|z| z.state.is_active()));
    assert_eq!(zrwa, count(|z| z.zrwa));
    assert!(geometry.max_open == 0 || open <= geometry.max_open, "{open} open");
    assert!(geometry.max_active == 0 || active <= geometry.max_active, "{active} active");
    assert!(zrwa <= geometry.zrwa.map_or(0, |z| z.max_zones), "{zrwa} with a ZRWA");
    for zone in zones.iter().filter(|z| !matches!(z.state, ZoneState::ReadOnly | ZoneState::Offline)) {
        let at_end = zone.wp_blocks == geometry.zone_capacity_blocks;
        assert!(zone.wp_blocks <= geometry.zone_capacity_blocks, "{zone:?}");
        assert_eq!(zone.state == ZoneState::Full, at_end, "{zone:?}");
        assert!(zone.state != ZoneState::Empty || zone.wp_blocks == 0, "{zone:?}");
        assert!(!zone.zrwa || zone.state.is_active(), "{zone:?}");
        if zone.zrwa {
            assert_eq!(zone.wp_blocks % geometry.zrwa.unwrap().granularity_blocks, 0, "{zone:?}");
        }
    }
}

/// Checks the effect of a successful write by rules that are worded differently from those of the table.
fn check_effect(before: &ZoneInfo, call: &Call, effect: &WriteEffect, geometry: &Geometry) {
    assert_eq!(effect.wp_before_blocks, before.wp_blocks);
    assert!(effect.wp_blocks >= before.wp_blocks);
    assert_eq!(effect.filled, effect.wp_blocks == geometry.zone_capacity_blocks);
    let blocks = match *call {
        Call::Write(_, _, n) | Call::WriteAtWp(_, n) | Call::Append(_, n) => n,
        _ => return,
    };
    let end = effect.offset_blocks + blocks;
    assert!(end <= geometry.zone_capacity_blocks);
    match geometry.zrwa.filter(|_| before.zrwa) {
        None => assert_eq!((effect.offset_blocks, effect.wp_blocks), (before.wp_blocks, end)),
        Some(zrwa) => {
            // The least number of granules that brings the end of the write into the ZRWA.
            let least = (0..)
                .map(|n| before.wp_blocks + n * zrwa.granularity_blocks)
                .find(|wp| end <= wp + zrwa.size_blocks);
            assert_eq!(Some(effect.wp_blocks), least);
            assert!(!effect.filled, "an implicit flush never fills a zone");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn zone_table_keeps_invariants_refused_call_changes_nothing(
        geometry in geometry(),
        calls in proptest::collection::vec(call(), 1..120),
    ) {
        let mut table = ZoneTable::new(&geometry);
        for call in &calls {
            let before = picture(&table);
            match apply(&mut table, &geometry, call) {
                Err(_) => prop_assert_eq!(&picture(&table), &before, "{:?} was refused", call),
                Ok(Some(effect)) => {
                    check_effect(&before.0[effect.zone.0 as usize], call, &effect, &geometry);
                }
                Ok(None) => (),
            }
            check_invariants(&table, &geometry);
        }
        // A table loaded from a report is equal.
        let mut copy = ZoneTable::new(&geometry);
        picture(&table).0.iter().for_each(|zone| copy.load(zone));
        prop_assert_eq!(picture(&copy), picture(&table));
    }
}

fn limited(max_open: u32, max_active: u32) -> ZoneTable {
    ZoneTable::new(&Geometry {
        zones: ZONES,
        zone_size_blocks: SIZE,
        zone_capacity_blocks: SIZE,
        max_open,
        max_active,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 64,
        max_append_blocks: 64,
        volatile_cache: false,
    })
}

#[test]
fn zone_table_closes_first_implicitly_opened_zone_first() {
    let mut table = limited(2, 0);
    let write =
        |table: &mut ZoneTable, zone: u64, offset| table.write(Lba(zone * SIZE + offset), 1).map(|_| ());
    let state = |table: &ZoneTable, zone| table.info(ZoneIndex(zone)).state;
    write(&mut table, 3, 0).unwrap();
    write(&mut table, 1, 0).unwrap();
    write(&mut table, 3, 1).unwrap();
    write(&mut table, 2, 0).unwrap();
    assert_eq!(state(&table, 3), ZoneState::Closed);
    assert_eq!(state(&table, 1), ZoneState::ImplicitlyOpen);
    table.open(ZoneIndex(4), false).unwrap();
    assert_eq!(state(&table, 1), ZoneState::Closed);
    table.open(ZoneIndex(2), false).unwrap();
    assert_eq!(write(&mut table, 5, 0), Err(Status::TooManyOpenZones));
}

#[test]
fn zone_table_failed_open_closes_no_other_zone() {
    let mut table = limited(2, 2);
    table.write(Lba(0), 1).unwrap();
    table.write(Lba(SIZE), 1).unwrap();
    assert_eq!(table.write(Lba(2 * SIZE), 1), Err(Status::TooManyActiveZones));
    assert_eq!(table.open(ZoneIndex(2), false), Err(Status::TooManyActiveZones));
    assert_eq!(table.info(ZoneIndex(0)).state, ZoneState::ImplicitlyOpen);
    assert_eq!(table.open_zones(), 2);
}
