//! Namespaces: zone rules within a tenant, isolation between tenants, and runs of the simulator.

use crate::support::rig;
use emu::{
    conformance::{
        Action::{self, *},
        ROWS, command, model,
    },
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault, Kind, Ssd},
};
use engine::{
    adapt::sequence::Sequencer,
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones,
    },
    evidence::Presence,
    qos::{Qos, Rates},
    raid::policy::Policy,
    runtime::Runtime,
    vzone::{
        Namespace, NamespaceOptions, Namespaces, PATIENCE_US, Spec, VzoneError,
        format::{self, BlockFiller, End, JournalEntry, JournalHeader, StripeGroups},
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::simulator::{
    command_queue::CommandQueue,
    layer::seeds::run_seeds,
    namespaces::{DeviceBelow, NamespaceModel, NamespaceSummary},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::Future,
    rc::Rc,
    slice::from_ref,
};

/// A drive with zones that can be offline for a while, like those of an array with a missing member.
struct Frail {
    drive: EmulatedDrive,
    away: RefCell<Vec<ZoneIndex>>,
    /// If `Some`, holds the completions of writes of reservations, the first block of a zone in use.
    held: RefCell<Option<Vec<Completer>>>,
    /// Geometry that the drive reports.
    geometry: Geometry,
    optimal: u64,
}

impl Frail {
    fn new(geometry: Geometry, drive: EmulatedDrive) -> Frail {
        Frail { drive, away: RefCell::default(), held: RefCell::default(), geometry, optimal: 1 }
    }

    fn ssd(&self) -> &Rc<RefCell<Ssd>> {
        self.drive.ssd()
    }

    fn is_away(&self, zone: ZoneIndex) -> bool {
        self.away.borrow().contains(&zone)
    }

    /// The zone that a command addresses, if it is a single one.
    fn zone_of(&self, command: &Command) -> Option<ZoneIndex> {
        match command {
            Command::Read { lba, .. } | Command::Write { lba, .. } => Some(self.geometry().locate(*lba).0),
            Command::Finish { zones: Zones::One(zone) } | Command::Reset { zones: Zones::One(zone) } => {
                Some(*zone)
            }
            _ => None,
        }
    }
}

impl ZonedDevice for Frail {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn optimal_write_blocks(&self) -> u64 {
        self.optimal
    }

    fn submit(&self, command: Command) -> Completion {
        if self.zone_of(&command).is_some_and(|zone| self.is_away(zone)) {
            return Completion::failed(Status::ZoneIsOffline);
        }
        if let (Command::Write { lba, .. }, Some(held)) = (&command, &mut *self.held.borrow_mut())
            && matches!(self.geometry().locate(*lba), (ZoneIndex(2..), 0))
        {
            let (answer, completion) = Rc::new(Slots::default()).pair();
            held.push(answer);
            return completion;
        }
        let mut completion = self.drive.submit(command);
        let mut done = completion.take().unwrap();
        for info in done.zones.iter_mut().filter(|info| self.is_away(info.zone)) {
            (info.state, info.wp_blocks) = (ZoneState::Offline, 0);
        }
        Completion::ready(done)
    }
}

/// A drive, its namespaces, and their clock.
struct Rig {
    runtime: Runtime,
    drive: Rc<Frail>,
    clock: Rc<Cell<u64>>,
    namespaces: Namespaces,
}

impl Rig {
    fn new(geometry: &Geometry, vzone_zones: u32) -> Rig {
        Rig::over(geometry, geometry.clone(), vzone_zones)
    }

    /// Over a drive with other limits than those that it reports.
    fn over(drive: &Geometry, geometry: Geometry, vzone_zones: u32) -> Rig {
        Rig::on(Rc::new(Frail::new(geometry, EmulatedDrive::in_memory(drive))), vzone_zones)
    }

    fn on(drive: Rc<Frail>, vzone_zones: u32) -> Rig {
        let runtime = Runtime::new();
        let made = Namespaces::create(drive.clone(), *b"sixteen bytes...", vzone_zones);
        runtime.block_on(made, || false).unwrap().unwrap();
        let clock = Rc::new(Cell::new(0));
        let namespaces = open(&runtime, &drive, &clock);
        Rig { runtime, drive, clock, namespaces }
    }

    fn add(&self, spec: Spec) -> Result<Namespace, VzoneError> {
        self.runtime.block_on(self.namespaces.add(spec), || false).unwrap()
    }

    fn run(&self, namespace: &Namespace, command: Command) -> Done {
        self.runtime.block_on(namespace.submit(command), || false).unwrap()
    }

    fn write(&self, namespace: &Namespace, lba: u64, byte: u8, blocks: usize) -> Result<(), DeviceError> {
        let data = Buf::copy_of(&vec![byte; blocks * BLOCK]);
        self.run(namespace, Command::write(Lba(lba), data, true)).result
    }

    fn fault(&self, fault: Fault) {
        self.drive.ssd().borrow_mut().faults().after(0, fault);
    }

    /// First byte of each block.
    fn read(&self, namespace: &Namespace, lba: u64, blocks: usize) -> Vec<u8> {
        let done = self.run(namespace, Command::read(Lba(lba), Buf::zeroed(blocks * BLOCK)));
        assert_eq!(done.result, Ok(()));
        done.data.chunks(BLOCK).map(|block| block[0]).collect()
    }

    fn zone(&self, namespace: &Namespace, zone: u32) -> (ZoneState, u64) {
        let done = self.run(namespace, Command::Report { first: ZoneIndex(zone), count: 1 });
        (done.zones[0].state, done.zones[0].wp_blocks)
    }

    /// Ends the process and opens the namespaces in a new one.
    fn again(self) -> Rig {
        self.runtime.clear();
        let runtime = Runtime::new();
        let namespaces = open(&runtime, &self.drive, &self.clock);
        Rig { runtime, namespaces, ..self }
    }
}

fn open(runtime: &Runtime, drive: &Rc<Frail>, clock: &Rc<Cell<u64>>) -> Namespaces {
    try_open(runtime, drive, clock).unwrap()
}

fn try_open(runtime: &Runtime, drive: &Rc<Frail>, clock: &Rc<Cell<u64>>) -> Result<Namespaces, VzoneError> {
    let clock = clock.clone();
    let behaviour =
        NamespaceOptions { clock: Rc::new(move || clock.get()), patience_us: PATIENCE_US, admission: true };
    runtime.block_on(Namespaces::open(runtime, drive.clone(), behaviour), || false).unwrap()
}

/// A drive for v-zones of the shape that the table `ROWS` expects, of `parts` zones each.
fn drive_for_rows(parts: u32) -> Geometry {
    let capacity = 45 / parts as u64 + 1;
    Geometry {
        zones: 2 + 1 + 7 * parts + parts,
        zone_size_blocks: capacity + 3,
        zone_capacity_blocks: capacity,
        max_open: 0,
        max_active: 0,
        zrwa: None,
        oob_bytes: 0,
        ..model().geometry
    }
}

fn spec(name: &str, zones: u32, max_active: u32) -> Spec {
    let qos = Qos::default();
    Spec { name: name.into(), zones, max_active, max_open: max_active, essential: 1, weight: 1, qos }
}

/// A checkpoint always fits into a zone of the journal, however small the zones are.
#[test]
fn namespace_is_refused_if_journal_could_overflow() {
    let drive = Geometry { zones: 900, ..drive_for_rows(9) };
    let rig = Rig::new(&drive, 1);
    let full = VzoneError::JournalFull { blocks: drive.zone_capacity_blocks };
    assert_eq!(rig.add(spec("large", 800, 4)).err(), Some(full));
    let namespace = rig.add(spec("small", 500, 4)).unwrap();
    let resized = rig.runtime.block_on(rig.namespaces.resize("small", 800), || false).unwrap();
    assert_eq!(resized.err(), Some(full));
    let blocks = namespace.geometry().zone_capacity_blocks;
    for zone in 0..500 {
        let lba = namespace.geometry().start(ZoneIndex(zone)).0;
        assert_eq!(rig.write(&namespace, lba, 1, blocks as usize), Ok(()), "zone {zone}");
    }
    let rig = rig.again();
    assert_eq!(rig.zone(&rig.namespaces.list()[0], 499), (ZoneState::Full, blocks));
}

#[test]
fn namespace_follows_zone_rules_without_zrwa() {
    let zrwa = |step: &Action| matches!(step, OpenZrwa(_) | Flush(..) | OpenAllZrwa);
    // Zone faults can be injected into drives only.
    let befalls = |step: &Action| matches!(step, ReadOnly(_) | Offline(_));
    for parts in [1, 3, 5, 9, 15] {
        let mut drive = drive_for_rows(parts);
        drive.zones += 32;
        let mut checked = 0;
        for &(name, before, step, result, zone, state, wp, _) in ROWS {
            if before.iter().chain([&step]).any(|step| zrwa(step) || befalls(step)) {
                continue;
            }
            checked += 1;
            let rig = Rig::new(&drive, parts);
            let namespace = rig.add(Spec { max_open: 3, ..spec("rows", 6, 4) }).unwrap();
            for step in before {
                assert_eq!(rig.run(&namespace, command(*step)).result, Ok(()), "{parts}, {name}: {step:?}");
            }
            let found = rig.run(&namespace, command(step)).result;
            assert_eq!(found, result.map_err(Into::into), "{parts}, {name}");
            assert_eq!(rig.zone(&namespace, zone), (state, wp), "{parts}, {name}");
            rig.namespaces.audit().unwrap();
        }
        assert!(checked > 60, "{checked} rows are for zones without a ZRWA");
    }
}

#[test]
fn namespace_refuses_zrwa_commands() {
    let rig = Rig::new(&Geometry { zones: 80, ..drive_for_rows(3) }, 3);
    let namespace = rig.add(spec("plain", 2, 1)).unwrap();
    for step in [OpenZrwa(0), Flush(0, 1)] {
        let refused = Err(Status::InvalidZoneOperation.into());
        assert_eq!(rig.run(&namespace, command(step)).result, refused, "{step:?}");
    }
}

#[test]
fn namespaces_are_isolated_and_survive_restart() {
    let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
    let (one, two) = (rig.add(spec("one", 3, 2)).unwrap(), rig.add(spec("two", 3, 2)).unwrap());
    rig.write(&one, 0, 1, 20).unwrap();
    rig.write(&two, 0, 2, 33).unwrap();
    rig.write(&two, 64, 3, 45).unwrap();
    rig.write(&one, 20, 4, 5).unwrap();
    assert_eq!(rig.run(&one, Command::Finish { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
    let rig = rig.again();
    let [one, two] = rig.namespaces.list().try_into().ok().unwrap();
    assert_eq!((one.name(), two.name()), ("one", "two"));
    let expected: Vec<u8> = [vec![1; 20], vec![4; 5], vec![0; 20]].concat();
    assert_eq!(rig.read(&one, 0, 45), expected);
    assert_eq!(rig.zone(&one, 0), (ZoneState::Full, 45));
    assert_eq!(rig.read(&two, 0, 45), [vec![2; 33], vec![0; 12]].concat());
    assert_eq!(rig.read(&two, 64, 45), vec![3; 45]);
    assert_eq!(rig.read(&one, 64, 45), vec![0; 45]);
    assert_eq!((rig.zone(&two, 0), rig.zone(&two, 1)), ((ZoneState::Closed, 33), (ZoneState::Full, 45)));
    // Writes continue at the write pointer.
    rig.write(&two, 33, 5, 12).unwrap();
    assert_eq!(rig.read(&two, 30, 15), [vec![2; 3], vec![5; 12]].concat());
    rig.namespaces.audit().unwrap();
}

/// With groups of several zones, of different widths, and v-zones that are not full.
#[test]
fn written_block_of_namespace_is_found_by_its_place_on_device() {
    let geometry = Geometry { zones: 300, max_active: 34, max_open: 34, ..drive_for_rows(15) };
    let rig = Rig::new(&geometry, 15);
    let all: Vec<Namespace> =
        ["a", "b"].map(|name| rig.add(Spec { essential: 2, ..spec(name, 4, 4) }).unwrap()).into();
    // Each block has a byte of its own.
    let writes = [(0, 0, 20), (1, 0, 10), (0, 20, 25), (1, 64, 45), (0, 128, 3)];
    let mut expected = BTreeMap::new();
    for (namespace, first, count) in writes {
        for at in first..first + count {
            let byte = expected.len() as u8 + 1;
            rig.write(&all[namespace], at, byte, 1).unwrap();
            expected.insert((namespace, at), byte);
        }
    }
    assert!(expected.len() < 256 && all.iter().any(|namespace| namespace.status().widths != [1]));
    let (mut singly, mut at_once) = (BTreeMap::new(), BTreeSet::new());
    let (size, capacity) = (geometry.zone_size_blocks, geometry.zone_capacity_blocks);
    let blocks_of =
        |(zone, range): (ZoneIndex, std::ops::Range<u64>)| range.map(move |at| zone.0 as u64 * 64 + at);
    for zone in 0..geometry.zones {
        for (number, namespace) in all.iter().enumerate() {
            for at in 0..capacity {
                for block in namespace
                    .stored_in(ZoneIndex(zone), from_ref(&(at..at + 1)))
                    .into_iter()
                    .flat_map(&blocks_of)
                {
                    let lba = Lba(zone as u64 * size + at);
                    let stored = rig.drive.ssd().borrow_mut().stored(lba).unwrap().unwrap();
                    assert_eq!(singly.insert((number, block), stored[0]), None);
                }
            }
            let found = namespace.stored_in(ZoneIndex(zone), from_ref(&(0..capacity)));
            at_once.extend(found.into_iter().flat_map(&blocks_of).map(|block| (number, block)));
        }
    }
    assert_eq!(singly, expected);
    assert!(at_once.iter().eq(expected.keys()));
}

#[test]
fn qos_limits_change_at_runtime_and_persist() {
    let rig = Rig::new(&Geometry { zones: 60, ..drive_for_rows(3) }, 3);
    let one = rig.add(spec("one", 4, 2)).unwrap();
    let limits = |requests| {
        let (limits, floors) = (Rates { requests, blocks: 9 }, Rates { requests: 1, blocks: 2 });
        Qos { limits, floors, latency_us: requests }
    };
    let limit = |namespaces: &Namespaces, requests| {
        let limited = rig.runtime.block_on(namespaces.set_qos("one", limits(requests)), || false).unwrap();
        limited.map(|namespace| namespace.status().spec.qos)
    };
    rig.write(&one, 0, 1, 10).unwrap();
    let running = one.submit(Command::write(Lba(10), Buf::zeroed(5 * BLOCK), false));
    assert_eq!(limit(&rig.namespaces, 7).unwrap(), limits(7));
    assert_eq!(rig.runtime.block_on(running, || false).unwrap().result, Ok(()));
    // The earlier handle is still valid, and has the new limits.
    assert_eq!(one.status().spec.qos, limits(7));
    rig.write(&one, 15, 2, 5).unwrap();
    let none = rig.runtime.block_on(rig.namespaces.set_qos("two", limits(1)), || false).unwrap();
    assert!(matches!(none, Err(VzoneError::Unknown)));
    // A floor above the limit.
    let impossible = Qos { floors: Rates { requests: 8, blocks: 0 }, ..limits(7) };
    let refused = rig.runtime.block_on(rig.namespaces.set_qos("one", impossible), || false).unwrap();
    assert!(matches!(refused, Err(VzoneError::FloorAboveLimit)));
    assert!(matches!(
        rig.add(Spec { qos: impossible, ..spec("two", 1, 1) }),
        Err(VzoneError::FloorAboveLimit)
    ));
    let kept = |rig: &Rig| rig.namespaces.list()[0].status().spec.qos;
    // The limits survive a resize, journal checkpoints, which these changes cause, and a restart.
    let resized = rig.runtime.block_on(rig.namespaces.resize("one", 3), || false).unwrap().unwrap();
    assert_eq!(resized.status().spec.qos, limits(7));
    for round in 0..100 {
        assert_eq!(limit(&rig.namespaces, 8 + round).unwrap(), limits(8 + round));
    }
    for _ in 0..40 {
        let reset = Command::Reset { zones: Zones::One(ZoneIndex(1)) };
        rig.write(&resized, 64, 3, 45).unwrap();
        assert_eq!(rig.run(&resized, reset).result, Ok(()));
    }
    let rig = rig.again();
    assert_eq!(kept(&rig), limits(107));
    let rig = rig.again();
    assert_eq!(kept(&rig), limits(107));
}

/// Submits a request for one block that takes `takes_us` once it is admitted; returns how long it waited for admission,
/// in microseconds.
fn ask(rig: &Rig, namespace: &Namespace, takes_us: u64) -> u64 {
    let (clock, begun_us) = (&rig.clock, rig.clock.get());
    let sleep = |us| {
        clock.set(clock.get() + us);
        std::future::ready(())
    };
    let passed = rig.runtime.block_on(namespace.admit(1, sleep), || false).unwrap();
    let waited_us = clock.get() - begun_us;
    clock.set(clock.get() + takes_us);
    namespace.answered(passed, 1);
    waited_us
}

/// Submits requests of all namespaces in turn until the next look; returns the total wait of each in microseconds.
fn ask_all(rig: &Rig, asks: &[(&Namespace, u64)]) -> Vec<u64> {
    let (end_us, mut waited_us) = (rig.clock.get() + 10_000, vec![0; asks.len()]);
    while rig.clock.get() < end_us {
        for ((namespace, takes_us), waited_us) in asks.iter().zip(&mut waited_us) {
            *waited_us += ask(rig, namespace, *takes_us);
        }
    }
    rig.namespaces.tick();
    waited_us
}

#[test]
fn throttle_protects_floors_and_latency_class_until_released() {
    let rig = Rig::new(&Geometry { zones: 60, ..drive_for_rows(3) }, 3);
    let (one, two) = (rig.add(spec("one", 2, 1)).unwrap(), rig.add(spec("two", 2, 1)).unwrap());
    let set = |rig: &Rig, qos| {
        rig.runtime.block_on(rig.namespaces.set_qos("one", qos), || false).unwrap().unwrap();
    };
    let held = |namespace: &Namespace| namespace.status().held_to;
    let floor = Qos { floors: Rates { requests: 5000, blocks: 0 }, ..Qos::default() };
    // The first namespace can reach half of its floor at most.
    let both = |rig: &Rig| {
        let list = rig.namespaces.list();
        ask_all(rig, &[(&list[0], 400), (&list[1], 100)])
    };
    assert_eq!((both(&rig), held(&two)), (vec![0, 0], None));
    set(&rig, floor);
    both(&rig);
    // The second namespace had 2000 requests a second, and is throttled to about half of that at the least.
    assert!(held(&two).is_some_and(|rate| (900..1900).contains(&rate)) && held(&one).is_none());
    assert!(both(&rig)[1] > 0);
    // Without guarantees the throttle is released at once.
    set(&rig, Qos::default());
    assert_eq!((held(&two), both(&rig)), (None, vec![0, 0]));
    // A namespace of the latency class is not throttled itself.
    set(&rig, Qos { latency_us: 399, ..Qos::default() });
    // The throttle needs to know the throughput of the device first.
    for _ in 0..9 {
        assert_eq!((both(&rig), held(&two)), (vec![0, 0], None));
    }
    both(&rig);
    assert!(held(&two).is_some() && held(&one).is_none());
    // A request that is late for one target may not be for another.
    set(&rig, Qos { latency_us: 400, ..Qos::default() });
    assert!((0..100).any(|_| both(&rig)[1] == 0 && held(&two).is_none()));
    set(&rig, Qos { latency_us: 399, ..Qos::default() });
    assert!((0..3).any(|_| both(&rig)[1] == 0 && held(&two).is_some()));
    set(&rig, Qos { latency_us: 400, ..Qos::default() });
    // Released after a period without requests; the guarantee applies again after a restart.
    (0..11).for_each(|_| _ = ask_all(&rig, &[(&two, 100)]));
    assert_eq!((held(&two), both(&rig)), (None, vec![0, 0]));
    set(&rig, floor);
    let rig = rig.again();
    let [one, two] = rig.namespaces.list().try_into().ok().unwrap();
    both(&rig);
    assert!(held(&two).is_some());
    // A removed namespace has no guarantee, and an added one may have.
    rig.runtime.block_on(rig.namespaces.remove("one"), || false).unwrap().unwrap();
    assert_eq!((held(&two), ask(&rig, &two, 100)), (None, 0));
    drop(one);
    let three = rig.add(Spec { qos: floor, ..spec("three", 2, 1) }).unwrap();
    for _ in 0..2 {
        ask_all(&rig, &[(&three, 400), (&two, 100)]);
    }
    assert!(held(&two).is_some());
    rig.runtime.block_on(rig.namespaces.resize("three", 1), || false).unwrap().unwrap();
    rig.namespaces.audit().unwrap();
}

#[test]
fn throttle_admits_requests_of_all_namespaces_in_turn() {
    let rig = Rig::new(&Geometry { zones: 90, ..drive_for_rows(3) }, 3);
    let floor = Qos { floors: Rates { requests: 5000, blocks: 0 }, ..Qos::default() };
    let one = rig.add(Spec { qos: floor, ..spec("one", 2, 1) }).unwrap();
    let (two, three) = (rig.add(spec("two", 2, 1)).unwrap(), rig.add(spec("three", 2, 1)).unwrap());
    for _ in 0..3 {
        ask_all(&rig, &[(&one, 400), (&two, 100), (&three, 100)]);
    }
    let rate = |namespace: &Namespace| namespace.status().held_to.unwrap();
    let all = rate(&two) + rate(&three);
    rig.clock.set(rig.clock.get() + 5000);
    // After an idle period neither has to wait for its own rate; the second one waits for the first, as the throttled
    // requests of all namespaces are admitted one at a time.
    assert_eq!(ask(&rig, &two, 0), 0);
    assert_eq!(ask(&rig, &three, 0), 1_000_000_u64.div_ceil(all));
    // Alone, a namespace is limited by its own rate.
    let waited_us: u64 = (0..20).map(|_| ask(&rig, &two, 0)).sum();
    assert!(waited_us >= 18 * 1_000_000 / rate(&two), "{waited_us}");
    // A namespace of the latency class is released.
    let class = Qos { latency_us: 1000, ..Qos::default() };
    rig.runtime.block_on(rig.namespaces.set_qos("two", class), || false).unwrap().unwrap();
    rig.namespaces.tick();
    assert_eq!(two.status().held_to, None);
}

#[test]
fn qos_limit_delays_excess_requests_at_admission() {
    let rig = Rig::new(&Geometry { zones: 60, ..drive_for_rows(3) }, 3);
    let one = rig.add(spec("one", 2, 1)).unwrap();
    let waits = || (0..31).map(|_| ask(&rig, &one, 0)).sum::<u64>();
    assert_eq!(waits(), 0);
    let qos = Qos { limits: Rates { requests: 1000, blocks: 0 }, ..Qos::default() };
    rig.runtime.block_on(rig.namespaces.set_qos("one", qos), || false).unwrap().unwrap();
    // A burst of ten and one more are admitted at once.
    assert_eq!(waits(), 20_000);
    rig.runtime.block_on(rig.namespaces.set_qos("one", Qos::default()), || false).unwrap().unwrap();
    assert_eq!(waits(), 0);
    // A limit that is set again starts without the earlier one's history.
    rig.runtime.block_on(rig.namespaces.set_qos("one", qos), || false).unwrap().unwrap();
    assert_eq!(waits(), 20_000);
}

#[test]
fn reset_or_removed_zones_read_as_zeros() {
    let rig = Rig::new(&Geometry { zones: 40, ..drive_for_rows(3) }, 3);
    let one = rig.add(spec("one", 2, 2)).unwrap();
    for round in 0..20 {
        rig.write(&one, 0, 1 + round, 45).unwrap();
        assert_eq!(rig.run(&one, Command::Reset { zones: Zones::All }).result, Ok(()));
        assert_eq!(rig.read(&one, 0, 45), vec![0; 45]);
    }
    rig.write(&one, 0, 77, 30).unwrap();
    let removed = rig.runtime.block_on(rig.namespaces.remove("one"), || false).unwrap();
    assert_eq!(removed, Ok(()));
    assert_eq!(rig.write(&one, 30, 1, 1), Err(Status::NamespaceNotReady.into()));
    let two = rig.add(spec("two", 2, 2)).unwrap();
    assert_eq!(rig.read(&two, 0, 45), vec![0; 45]);
    rig.write(&two, 0, 9, 1).unwrap();
    assert_eq!(rig.read(&two, 0, 3), [9, 0, 0]);
    let rig = rig.again();
    assert_eq!(rig.namespaces.list().len(), 1);
    rig.namespaces.audit().unwrap();
}

#[test]
fn namespace_resize_preserves_data_and_refuses_occupied_zones() {
    let rig = Rig::new(&Geometry { zones: 40, ..drive_for_rows(3) }, 3);
    let one = rig.add(spec("one", 2, 2)).unwrap();
    rig.write(&one, 64, 7, 20).unwrap();
    let resize = |rig: &Rig, zones| {
        rig.runtime.block_on(rig.namespaces.resize("one", zones), || false).unwrap().map(|_| ())
    };
    assert_eq!(resize(&rig, 100), Err(VzoneError::Full { left: 6 }));
    assert_eq!(resize(&rig, 0), Err(VzoneError::Shape));
    assert_eq!(resize(&rig, 1), Err(VzoneError::Holds { zone: 1 }));
    assert_eq!(resize(&rig, 5), Ok(()));
    // The earlier handle is no longer valid.
    assert_eq!(rig.write(&one, 84, 1, 1), Err(Status::NamespaceNotReady.into()));
    let one = rig.namespaces.list().remove(0);
    assert_eq!(rig.zone(&one, 1), (ZoneState::ImplicitlyOpen, 20));
    rig.write(&one, 84, 8, 5).unwrap();
    rig.write(&one, 4 * 64, 9, 5).unwrap();
    assert_eq!(rig.run(&one, Command::Reset { zones: Zones::One(ZoneIndex(4)) }).result, Ok(()));
    assert_eq!(resize(&rig, 2), Ok(()));
    let rig = rig.again();
    let one = rig.namespaces.list().remove(0);
    assert_eq!((one.geometry().zones, one.status().spec.max_active), (2, 2));
    assert_eq!(rig.read(&one, 64, 26), [vec![7; 20], vec![8; 5], vec![0]].concat());
    let layout = rig.runtime.block_on(Namespaces::look(rig.drive.clone()), || false).unwrap().unwrap();
    assert_eq!((layout.zones, layout.zone_capacity_blocks), (6, 45));
    assert_eq!(layout.namespaces, [(spec("one", 2, 2), 25)]);
    // After it has shrunk, it can grow again.
    assert_eq!(resize(&rig, 3), Ok(()));
    rig.namespaces.audit().unwrap();
}

#[test]
fn dissolve_empties_device_without_namespaces() {
    let rig = Rig::new(&Geometry { zones: 40, ..drive_for_rows(3) }, 3);
    let one = rig.add(spec("one", 2, 2)).unwrap();
    rig.write(&one, 0, 7, 20).unwrap();
    let dissolve =
        |rig: &Rig| rig.runtime.block_on(Namespaces::dissolve(rig.drive.clone()), || false).unwrap();
    assert_eq!(dissolve(&rig), Err(VzoneError::InUse));
    assert_eq!(rig.runtime.block_on(rig.namespaces.remove("one"), || false).unwrap(), Ok(()));
    assert_eq!(rig.runtime.block_on(rig.namespaces.close(), || false), Some(()));
    assert_eq!(dissolve(&rig), Ok(()));
    let report = rig.drive.submit(Command::Report { first: ZoneIndex(0), count: 40 });
    let zones = rig.runtime.block_on(report, || false).unwrap().zones;
    assert!(zones.iter().all(|zone| zone.state == ZoneState::Empty), "{zones:?}");
    let looked = rig.runtime.block_on(Namespaces::look(rig.drive.clone()), || false).unwrap();
    assert_eq!(looked, Err(VzoneError::None));
}

#[test]
fn namespace_add_refuses_impossible_specs_with_reason() {
    let limited = Geometry { zones: 60, max_active: 14, max_open: 14, ..drive_for_rows(3) };
    let rig = Rig::new(&limited, 3);
    assert_eq!(rig.add(spec("", 1, 1)).err(), Some(VzoneError::Name));
    assert_eq!(rig.add(spec("a/b", 1, 1)).err(), Some(VzoneError::Name));
    assert_eq!(rig.add(spec("a", 1, 2)).err(), Some(VzoneError::Shape));
    assert_eq!(rig.add(Spec { essential: 3, ..spec("a", 1, 1) }).err(), Some(VzoneError::Shape));
    assert!(matches!(rig.add(spec("a", 1000, 1)).err(), Some(VzoneError::Full { .. })));
    // Of 14 active zones the journal has two, and one is kept in reserve.
    assert_eq!(
        rig.add(Spec { essential: 2, ..spec("a", 6, 6) }).err(),
        Some(VzoneError::Floors { left: 11 })
    );
    rig.add(Spec { essential: 2, ..spec("a", 5, 5) }).unwrap();
    assert_eq!(rig.add(spec("a", 1, 1)).err(), Some(VzoneError::Taken));
    assert_eq!(rig.add(spec("b", 2, 2)).err(), Some(VzoneError::Floors { left: 1 }));
    let removed = rig.runtime.block_on(rig.namespaces.remove("c"), || false).unwrap();
    assert_eq!(removed, Err(VzoneError::Unknown));
}

/// Local and global overdrive, and reclaim of spares from namespaces that do not write (§4.4.2 to §4.4.4).
#[test]
fn ballooning_widens_groups_and_reclaims_idle_spares() {
    let geometry = Geometry { zones: 300, max_active: 34, max_open: 34, ..drive_for_rows(15) };
    let rig = Rig::new(&geometry, 15);
    let all: Vec<Namespace> =
        ["a", "b"].map(|name| rig.add(Spec { essential: 2, ..spec(name, 4, 4) }).unwrap()).into();
    // Groups may have 30 active zones, of which 16 are guaranteed: 14 are spare, and the other namespace lends its
    // seven.
    rig.write(&all[0], 0, 7, 20).unwrap();
    let status = all[0].status();
    assert_eq!((status.widths, status.spares), (vec![8], 6));
    // The other one gets its guaranteed zones, and the spares that are left.
    rig.write(&all[1], 0, 8, 10).unwrap();
    assert_eq!(all[1].status().widths, [8]);
    rig.namespaces.audit().unwrap();
    rig.clock.set(PATIENCE_US - 1);
    rig.namespaces.tick();
    rig.runtime.run();
    assert_eq!(rig.namespaces.moved_groups(), 0);
    rig.write(&all[1], 10, 9, 1).unwrap();
    rig.clock.set(PATIENCE_US);
    rig.namespaces.tick();
    rig.runtime.run();
    assert_eq!(rig.namespaces.moved_groups(), 1);
    let status = all[0].status();
    assert_eq!((status.widths.as_slice(), status.spares), (&[2][..], 0));
    assert_eq!(rig.read(&all[0], 0, 21), [vec![7; 20], vec![0]].concat());
    rig.write(&all[0], 20, 6, 20).unwrap();
    rig.namespaces.audit().unwrap();
    let rig = rig.again();
    let all = rig.namespaces.list();
    assert_eq!(rig.read(&all[0], 0, 45), [vec![7; 20], vec![6; 20], vec![0; 5]].concat());
    assert_eq!(rig.read(&all[1], 0, 12), [vec![8; 10], vec![9], vec![0]].concat());
}

/// A namespace that has had no time to open a group is not inactive: the first one to write gets no more than the
/// others do (§4.4.3).
#[test]
fn ballooning_borrows_only_from_inactive_namespaces() {
    let geometry = Geometry { zones: 300, max_active: 34, max_open: 34, ..drive_for_rows(15) };
    let rig = Rig::new(&geometry, 15);
    for name in ["a", "b", "c", "d"] {
        rig.add(spec(name, 4, 4)).unwrap();
    }
    // Groups may have 30 active zones, of which 16 are guaranteed: each namespace has three of 14 spares.
    let next_width = |rig: &Rig| {
        let one = rig.namespaces.list().remove(0);
        assert_eq!(rig.run(&one, Command::Reset { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
        rig.write(&one, 0, 7, 20).unwrap();
        one.status().widths[0]
    };
    // After 16 reservations, some of which were made in advance, the others are inactive.
    assert_eq!([(); 4].map(|()| next_width(&rig)), [4, 4, 8, 8]);
    // With one more namespace each has two of twelve spares, and half of the six that the others lend now.
    rig.add(spec("e", 2, 2)).unwrap();
    assert_eq!(next_width(&rig), 4);
    let rig = rig.again();
    assert_eq!(next_width(&rig), 2);
    rig.namespaces.audit().unwrap();
}

/// A failed write affects its v-zone alone, and only until the next start.
#[test]
fn vzone_with_failed_write_moves_at_next_start() {
    let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
    let one = rig.add(spec("one", 3, 1)).unwrap();
    rig.write(&one, 0, 7, 20).unwrap();
    // The first group has the first four zones behind the journal.
    rig.drive.ssd().borrow_mut().faults().after(0, Fault::WriteFault(ZoneIndex(3)));
    assert_eq!(rig.write(&one, 20, 8, 16), Err(Status::WriteFault.into()));
    assert_eq!(rig.write(&one, 36, 8, 1), Err(Status::ZoneIsReadOnly.into()));
    assert_eq!(rig.zone(&one, 0).0, ZoneState::ReadOnly);
    assert_eq!(rig.read(&one, 0, 30), [vec![7; 20], vec![0; 10]].concat());
    // Only one v-zone may be active, and the failed one no longer is.
    rig.write(&one, 64, 9, 10).unwrap();
    rig.namespaces.audit().unwrap();
    let rig = rig.again();
    let one = rig.namespaces.list().remove(0);
    assert_eq!((rig.zone(&one, 0), rig.zone(&one, 1)), ((ZoneState::Closed, 20), (ZoneState::Closed, 10)));
    rig.write(&one, 20, 6, 20).unwrap();
    rig.write(&one, 74, 5, 1).unwrap();
    assert_eq!(rig.read(&one, 0, 41), [vec![7; 20], vec![6; 20], vec![0]].concat());
    assert_eq!(rig.read(&one, 64, 12), [vec![9; 10], vec![5, 0]].concat());
    assert_eq!(rig.namespaces.moved_groups(), 1);
    rig.namespaces.audit().unwrap();
}

/// An offline zone at a start is no evidence of the end of a v-zone: all data is there when the zone is back.
#[test]
fn vzone_data_survives_zone_offline_for_one_start() {
    let geometry = Geometry { zones: 100, ..drive_for_rows(5) };
    let filled = |rig: &Rig| {
        let one = rig.add(spec("one", 3, 2)).unwrap();
        rig.write(&one, 0, 7, 20).unwrap();
        rig.write(&one, 64, 8, 45).unwrap();
        rig.write(&one, 128, 9, 1).unwrap();
    };
    let mut doubted = 0;
    for zone in 2..20 {
        let rig = Rig::new(&geometry, 5);
        filled(&rig);
        rig.drive.away.borrow_mut().push(ZoneIndex(zone));
        let rig = rig.again();
        rig.runtime.run();
        rig.namespaces.audit().unwrap();
        let one = rig.namespaces.list().remove(0);
        let is_offline = |index: &u32| rig.zone(&one, *index).0 == ZoneState::Offline;
        let offline: Vec<u32> = (0..3).filter(is_offline).collect();
        assert!(offline.len() <= 1, "{offline:?}");
        doubted += offline.len();
        for index in offline {
            let lba = 64 * index as u64 + [20, 45, 1][index as usize];
            let refused = rig.write(&one, lba, 1, 1);
            assert_eq!(refused, Err(Status::ZoneIsOffline.into()), "zone {zone}");
        }
        rig.drive.away.borrow_mut().clear();
        let rig = rig.again();
        rig.runtime.run();
        let one = rig.namespaces.list().remove(0);
        assert_eq!(rig.read(&one, 0, 45), [vec![7; 20], vec![0; 25]].concat(), "zone {zone}");
        assert_eq!(rig.read(&one, 64, 45), vec![8; 45], "zone {zone}");
        assert_eq!(rig.read(&one, 128, 2), [9, 0], "zone {zone}");
        rig.write(&one, 20, 7, 5).unwrap();
        rig.write(&one, 129, 9, 1).unwrap();
        rig.namespaces.audit().unwrap();
    }
    // The first and the last v-zone have groups of four zones in all, the second one of five.
    assert!(doubted >= 13, "{doubted}");
}

/// An offline zone of the journal hides where the journal ends: the other zone may be older.
#[test]
fn namespaces_refuse_opening_with_offline_journal_zone() {
    let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
    let are_on =
        |rig: &Rig| rig.runtime.block_on(Namespaces::are_on(rig.drive.clone()), || false).unwrap().unwrap();
    let yes = |rig: &Rig| are_on(rig) == Presence::Yes;
    let one = rig.add(spec("one", 3, 2)).unwrap();
    rig.write(&one, 0, 7, 20).unwrap();
    for zone in [0, 1].map(ZoneIndex) {
        *rig.drive.away.borrow_mut() = vec![zone];
        assert!(yes(&rig), "{zone:?}");
        rig.runtime.clear();
        let opened = try_open(&rig.runtime, &rig.drive, &rig.clock);
        assert!(matches!(opened, Err(VzoneError::Device(_))), "{zone:?}");
    }
    // The reservations in their zones prove that there are namespaces.
    *rig.drive.away.borrow_mut() = vec![ZoneIndex(0), ZoneIndex(1)];
    assert!(yes(&rig));
    rig.drive.away.borrow_mut().clear();
    let rig = rig.again();
    assert_eq!(rig.read(&rig.namespaces.list()[0], 0, 21), [vec![7; 20], vec![0]].concat());
    // A device without namespaces is recognized even if its first zones are offline.
    let drive = EmulatedDrive::in_memory(rig.drive.geometry());
    let start = drive.geometry().start(ZoneIndex(7));
    let write = drive.submit(Command::write(start, Buf::copy_of(&[7; BLOCK]), true));
    assert_eq!(rig.runtime.block_on(write, || false).unwrap().result, Ok(()));
    let drive = Frail::new(drive.geometry().clone(), drive);
    *drive.away.borrow_mut() = vec![ZoneIndex(0), ZoneIndex(1)];
    let drive = Rc::new(drive);
    assert_eq!(are_on(&Rig { drive, ..rig }), Presence::No);
}

/// A close during a reservation waits for its completion, and no longer.
#[test]
fn namespaces_close_completes_when_reservation_is_refused() {
    let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
    let one = rig.add(spec("one", 3, 2)).unwrap();
    rig.runtime.run();
    *rig.drive.held.borrow_mut() = Some(Vec::new());
    let _write = one.submit(Command::write(Lba(0), Buf::copy_of(&[7; BLOCK]), true));
    rig.runtime.run();
    let closed = Rc::new(Cell::new(false));
    let (namespaces, told) = (rig.namespaces.clone(), closed.clone());
    rig.runtime.spawn(async move {
        namespaces.close().await;
        told.set(true);
    });
    rig.runtime.run();
    assert!(!closed.get());
    let answers = rig.drive.held.take().unwrap();
    assert!(!answers.is_empty());
    answers.into_iter().for_each(|answer| answer.complete(Done::error(Status::TooManyActiveZones.into())));
    rig.runtime.run();
    assert!(closed.get());
}

/// A loss is reported to the tenant that it concerns, whichever tenant's flush detects it.
#[test]
fn flush_reports_loss_to_affected_namespace_only() {
    let geometry = Geometry { zones: 100, volatile_cache: true, ..drive_for_rows(5) };
    for worn in [true, false] {
        let rig = Rig::new(&geometry, 5);
        let all = ["a", "b", "c"].map(|name| rig.add(spec(name, 3, 2)).unwrap());
        let [a, b, c] = &all;
        let flush = |namespace: &Namespace| rig.run(namespace, Command::Flush).result;
        for namespace in [a, b] {
            let data = Buf::copy_of(&[7; 10 * BLOCK]);
            assert_eq!(rig.run(namespace, Command::write(Lba(0), data, false)).result, Ok(()));
        }
        // The first group has the zones behind the journal.
        if worn {
            rig.fault(Fault::ReadOnly(ZoneIndex(2)));
        }
        rig.fault(Fault::Fail { kind: Kind::Flush, late: false });
        let lost = Err(Status::InternalError.into());
        assert_eq!(flush(c), Ok(()), "{worn}");
        assert_eq!(flush(b), if worn { Ok(()) } else { lost }, "{worn}");
        assert_eq!(rig.zone(b, 0).0 == ZoneState::ReadOnly, !worn);
        assert_eq!((flush(a), flush(a), flush(b)), (lost, Ok(()), Ok(())), "{worn}");
        assert_eq!(rig.write(a, 10, 8, 1), Err(Status::ZoneIsReadOnly.into()));
        assert_eq!(rig.write(b, 64, 8, 1), Ok(()));
        rig.namespaces.audit().unwrap();
    }
}

/// A zone that was worn before is no evidence of the loss by a failed flush.
#[test]
fn flush_loss_is_not_attributed_to_worn_zone() {
    let geometry = Geometry { zones: 100, volatile_cache: true, ..drive_for_rows(5) };
    for restarted in [true, false] {
        let rig = Rig::new(&geometry, 5);
        let a = rig.add(spec("a", 3, 2)).unwrap();
        rig.add(spec("b", 3, 2)).unwrap();
        rig.write(&a, 0, 7, 10).unwrap();
        rig.fault(Fault::ReadOnly(ZoneIndex(2)));
        let rig = match restarted {
            true => rig.again(),
            false => {
                assert!(rig.write(&a, 10, 7, 10).is_err());
                rig.runtime.run();
                rig
            }
        };
        let [a, b] = rig.namespaces.list().try_into().ok().unwrap();
        assert_eq!(rig.zone(&a, 0).0, ZoneState::ReadOnly);
        let data = Buf::copy_of(&[8; 10 * BLOCK]);
        assert_eq!(rig.run(&b, Command::write(Lba(0), data, false)).result, Ok(()));
        rig.fault(Fault::Fail { kind: Kind::Flush, late: false });
        let flush = |namespace: &Namespace| rig.run(namespace, Command::Flush).result;
        assert_eq!(flush(&a), Ok(()), "{restarted}");
        assert_eq!((flush(&b), flush(&b)), (Err(Status::InternalError.into()), Ok(())), "{restarted}");
        rig.namespaces.audit().unwrap();
    }
}

/// As before, after a failed flush whose report of the zones failed, too.
#[test]
fn flush_loss_after_failed_report_is_not_attributed_to_worn_zone() {
    let geometry = Geometry { zones: 100, volatile_cache: true, ..drive_for_rows(5) };
    let rig = Rig::new(&geometry, 5);
    let a = rig.add(spec("a", 3, 2)).unwrap();
    rig.add(spec("b", 3, 2)).unwrap();
    rig.write(&a, 0, 7, 10).unwrap();
    rig.fault(Fault::ReadOnly(ZoneIndex(2)));
    let rig = rig.again();
    let [_, b] = rig.namespaces.list().try_into().ok().unwrap();
    for (lba, report) in [(0, Some(Kind::Report)), (64, None)] {
        let data = Buf::copy_of(&[8; 10 * BLOCK]);
        assert_eq!(rig.run(&b, Command::write(Lba(lba), data, false)).result, Ok(()));
        for kind in [Kind::Flush].into_iter().chain(report) {
            rig.fault(Fault::Fail { kind, late: false });
        }
        let flush = || rig.run(&b, Command::Flush).result;
        assert_eq!((flush(), flush()), (Err(Status::InternalError.into()), Ok(())), "block {lba}");
    }
}

/// A zone that the device refuses because of its limit of active zones is not lost.
#[test]
fn reservations_refused_by_active_limit_are_retried() {
    let claimed = Geometry { zones: 15, max_active: 14, max_open: 14, ..drive_for_rows(3) };
    let rig = Rig::over(&Geometry { max_active: 6, max_open: 6, ..claimed.clone() }, claimed, 3);
    let one = rig.add(Spec { essential: 2, ..spec("one", 3, 3) }).unwrap();
    // Four active zones are left beside those of the journal: two groups of two.
    rig.write(&one, 0, 1, 5).unwrap();
    rig.write(&one, 64, 2, 5).unwrap();
    let third = one.submit(Command::write(Lba(128), Buf::copy_of(&[3; 5 * BLOCK]), true));
    rig.runtime.run();
    for _ in 0..5 {
        rig.namespaces.tick();
        rig.runtime.run();
    }
    rig.namespaces.audit().unwrap();
    assert_eq!(rig.run(&one, Command::Finish { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
    rig.namespaces.tick();
    assert_eq!(rig.runtime.block_on(third, || false).unwrap().result, Ok(()));
    assert_eq!(rig.read(&one, 128, 6), [3, 3, 3, 3, 3, 0]);
    assert_eq!(rig.run(&one, Command::Reset { zones: Zones::All }).result, Ok(()));
    // No zone has been lost.
    (0..3).for_each(|zone| rig.write(&one, 64 * zone, 4, 45).unwrap());
    rig.namespaces.audit().unwrap();
}

/// On a device that allows fewer active zones than it reports, like an array with offline zones, one is always left for
/// the journal: at runtime and at a start.
#[test]
fn journal_keeps_active_zone_when_groups_take_others() {
    let claimed = Geometry { zones: 40, max_active: 14, max_open: 14, ..drive_for_rows(3) };
    for essential in [1, 2] {
        let limited = Geometry { max_active: 6, max_open: 6, ..claimed.clone() };
        let mut rig = Rig::over(&limited, claimed.clone(), 3);
        rig.add(Spec { essential, ..spec("one", 5, 5) }).unwrap();
        // Leaves no spares.
        let rest = 11 - 5 * essential;
        rig.add(spec("two", rest, rest)).unwrap();
        for round in 0..40 {
            let one = rig.namespaces.list().remove(0);
            // As many as there are active zones for.
            let writes = (0..5).map(|zone| {
                let lba = one.geometry().start(ZoneIndex(zone));
                one.submit(Command::write(lba, Buf::copy_of(&[round; 5 * BLOCK]), true))
            });
            let mut writes: Vec<Completion> = writes.collect();
            for _ in 0..5 {
                rig.namespaces.tick();
                rig.runtime.run();
            }
            let taken = writes
                .iter_mut()
                .filter_map(Completion::take)
                .inspect(|done| assert_eq!(done.result, Ok(())));
            assert_eq!(taken.count(), 4 / essential as usize, "{essential}, {round}");
            // Journal records, and so checkpoints.
            for requests in 0..5 {
                let limits = Rates { requests, blocks: 0 };
                let qos = Qos { limits, ..Qos::default() };
                let set = rig.runtime.block_on(rig.namespaces.set_qos("two", qos), || false).unwrap();
                set.unwrap();
                rig.namespaces.tick();
                rig.runtime.run();
            }
            rig.namespaces.audit().unwrap();
            rig = rig.again();
            let one = rig.namespaces.list().remove(0);
            assert_eq!(rig.run(&one, Command::Reset { zones: Zones::All }).result, Ok(()));
            rig.runtime.run();
        }
    }
}

/// A v-zone that is moved at a start counts for its namespace meanwhile.
#[test]
fn worn_vzone_moved_at_start_counts_as_active() {
    let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
    let one = rig.add(spec("one", 3, 1)).unwrap();
    rig.write(&one, 0, 7, 20).unwrap();
    // The first group has the first four zones behind the journal.
    rig.fault(Fault::ReadOnly(ZoneIndex(3)));
    assert!(rig.write(&one, 20, 8, 16).is_err());
    rig.runtime.run();
    let rig = rig.again();
    let one = rig.namespaces.list().remove(0);
    assert_eq!(rig.zone(&one, 0), (ZoneState::Closed, 20));
    assert_eq!(rig.write(&one, 64, 9, 5), Err(Status::TooManyActiveZones.into()));
    rig.write(&one, 20, 6, 5).unwrap();
    assert_eq!(rig.read(&one, 0, 26), [vec![7; 20], vec![6; 5], vec![0]].concat());
    rig.namespaces.audit().unwrap();
}

/// A write that was admitted, and then finds that earlier v-zones keep their zones, is refused, and can be repeated
/// later.
#[test]
fn vzone_refused_for_active_limit_stays_empty() {
    for blocks in [5, 45] {
        let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
        let one = rig.add(spec("one", 3, 1)).unwrap();
        rig.write(&one, 0, 7, 20).unwrap();
        rig.fault(Fault::Fail { kind: Kind::Finish, late: false });
        let finish = one.submit(Command::Finish { zones: Zones::One(ZoneIndex(0)) });
        let write = |lba, blocks: usize| {
            one.submit(Command::write(Lba(lba), Buf::copy_of(&vec![8; blocks * BLOCK]), true))
        };
        let (first, behind) = (write(64, blocks), (blocks < 45).then(|| write(64 + 5, 5)));
        rig.runtime.run();
        let result = |completion: Completion| rig.runtime.block_on(completion, || false).unwrap().result;
        assert!(result(finish).is_err());
        for refused in [Some(first), behind].into_iter().flatten() {
            assert_eq!(result(refused), Err(Status::TooManyActiveZones.into()), "{blocks}");
        }
        assert_eq!(rig.zone(&one, 1), (ZoneState::Empty, 0), "{blocks}");
        assert_eq!(rig.run(&one, Command::Reset { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
        rig.write(&one, 64, 8, blocks).unwrap();
        assert_eq!(rig.read(&one, 64, 45), [vec![8; blocks], vec![0; 45 - blocks]].concat());
        rig.namespaces.audit().unwrap();
    }
}

/// A v-zone that cannot release its active zones counts for its namespace; writes that would wait for it are refused.
#[test]
fn write_is_refused_while_vzone_keeps_active_zones() {
    let rig = Rig::new(&Geometry { zones: 100, ..drive_for_rows(5) }, 5);
    let one = rig.add(spec("one", 3, 1)).unwrap();
    rig.write(&one, 0, 7, 20).unwrap();
    rig.fault(Fault::Fail { kind: Kind::Finish, late: false });
    let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
    assert!(rig.run(&one, finish).result.is_err());
    assert_eq!(rig.write(&one, 64, 8, 5), Err(Status::TooManyActiveZones.into()));
    // A reset releases them.
    assert_eq!(rig.run(&one, Command::Reset { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
    rig.write(&one, 64, 8, 5).unwrap();
    // One zone of a wide group becomes read-only: where the group ends is unknown.
    rig.fault(Fault::ReadOnly(ZoneIndex(7)));
    rig.read(&one, 64, 5);
    let rig = rig.again();
    rig.runtime.run();
    let one = rig.namespaces.list().remove(0);
    assert_eq!(rig.zone(&one, 1).0, ZoneState::ReadOnly);
    assert_eq!(rig.read(&one, 64, 5), [8; 5]);
    assert_eq!(rig.write(&one, 0, 8, 5), Err(Status::TooManyActiveZones.into()));
    rig.namespaces.audit().unwrap();
}

/// A move continues in other zones after a write to its target fails, and the failed zones are not lost.
#[test]
fn vzone_move_retries_in_other_zones_after_failure() {
    let geometry = Geometry { zones: 300, max_active: 34, max_open: 34, ..drive_for_rows(15) };
    let rig = Rig::new(&geometry, 15);
    let one = rig.add(Spec { essential: 2, ..spec("one", 4, 4) }).unwrap();
    rig.write(&one, 0, 7, 20).unwrap();
    let [width] = one.status().widths[..] else { panic!("{:?}", one.status()) };
    assert!(width > 2);
    // The next zones are reserved, and then one of them fails.
    rig.runtime.run();
    rig.fault(Fault::WriteFault(ZoneIndex(2 + width)));
    rig.clock.set(PATIENCE_US);
    rig.namespaces.tick();
    rig.runtime.run();
    assert_eq!((rig.namespaces.moved_groups(), one.status().widths), (1, vec![2]));
    rig.write(&one, 20, 6, 10).unwrap();
    assert_eq!(rig.read(&one, 0, 31), [vec![7; 20], vec![6; 10], vec![0]].concat());
    rig.namespaces.audit().unwrap();
}

/// A move releases the active zones of the old group before it takes others, also if that succeeds only at the second
/// attempt or one of them is worn: there may be no others, and spares are counted once.
#[test]
fn vzone_move_continues_after_failed_finish_of_source() {
    let wide = Geometry { zones: 300, max_active: 34, max_open: 34, ..drive_for_rows(15) };
    // One group holds all active zones.
    let narrow = Geometry { zones: 60, max_active: 11, max_open: 11, ..drive_for_rows(8) };
    for (geometry, vzone_zones, essential) in [(wide, 15, 2), (narrow, 8, 1)] {
        for fault in [Fault::Fail { kind: Kind::Finish, late: false }, Fault::ReadOnly(ZoneIndex(3))] {
            let rig = Rig::new(&geometry, vzone_zones);
            let one = rig.add(Spec { essential, ..spec("one", 4, 1) }).unwrap();
            rig.write(&one, 0, 7, 11).unwrap();
            assert_eq!(one.status().widths, [8]);
            rig.runtime.run();
            rig.fault(fault);
            rig.clock.set(PATIENCE_US);
            rig.namespaces.tick();
            rig.runtime.run();
            let status = one.status();
            let found = (rig.namespaces.moved_groups(), status.widths, status.spares);
            assert_eq!(found, (1, vec![essential], 0), "{vzone_zones}: {fault:?}");
            rig.write(&one, 11, 6, 20).unwrap();
            rig.namespaces.audit().unwrap();
            let rig = rig.again();
            let one = rig.namespaces.list().remove(0);
            assert_eq!(rig.read(&one, 0, 32), [vec![7; 11], vec![6; 20], vec![0]].concat());
        }
    }
}

/// Finishing fills zones up, which delays all others.
#[test]
fn vzone_move_finishes_source_only_if_needed() {
    let geometry = Geometry { zones: 300, max_active: 34, max_open: 34, ..drive_for_rows(15) };
    for written in 1..=2 {
        let rig = Rig::new(&geometry, 15);
        let one = rig.add(spec("one", 4, 2)).unwrap();
        (0..written)
            .for_each(|zone| rig.write(&one, one.geometry().start(ZoneIndex(zone)).0, 7, 11).unwrap());
        rig.runtime.run();
        rig.fault(Fault::Fail { kind: Kind::Finish, late: false });
        rig.clock.set(PATIENCE_US);
        for _ in 0..written {
            rig.namespaces.tick();
            rig.runtime.run();
        }
        assert_eq!(rig.namespaces.moved_groups(), written as u64);
        assert_eq!((one.status().widths, one.status().spares), (vec![1; written as usize], 0));
        rig.namespaces.audit().unwrap();
        // The first finish meets the fault.
        let finished = rig.run(&one, Command::Finish { zones: Zones::One(ZoneIndex(0)) }).result;
        assert_eq!(finished.is_ok(), written == 2);
    }
}

/// The start of data in a zone and the length of units follow the optimal write size of the device.
#[test]
fn vzone_data_aligns_to_optimal_write_size() {
    // Not if that would cost more than an eighth of a zone.
    for (optimal, lead_blocks) in [(1, 1), (4, 4), (5, 1)] {
        let geometry = Geometry { zones: 100, ..drive_for_rows(1) };
        let geometry = Geometry { zone_size_blocks: 40, zone_capacity_blocks: 39, ..geometry };
        let drive = Frail { optimal, ..Frail::new(geometry.clone(), EmulatedDrive::in_memory(&geometry)) };
        let rig = Rig::on(Rc::new(drive), 4);
        let one = rig.add(spec("one", 4, 2)).unwrap();
        rig.write(&one, 0, 7, 30).unwrap();
        let found = |entries: &[JournalEntry]| match (&entries[0], entries.last()) {
            (JournalEntry::Identity(identity), Some(JournalEntry::Vzone(.., groups, _))) => {
                (identity.lead_blocks, groups.group(0).unwrap().1)
            }
            _ => panic!("{entries:?}"),
        };
        let unit_blocks = if lead_blocks > 1 { lead_blocks } else { 8 / one.status().widths[0] };
        assert_eq!(found(&journal_of(&rig).1), (lead_blocks, unit_blocks), "{optimal}");
        let all = 4 * (39 - lead_blocks as u64);
        assert!((all - 16..=all).contains(&one.geometry().zone_capacity_blocks));
        let rig = rig.again();
        let one = rig.namespaces.list().remove(0);
        assert_eq!(rig.read(&one, 0, 31), [vec![7; 30], vec![0]].concat());
        rig.write(&one, 30, 8, 30).unwrap();
        assert_eq!(rig.read(&one, 0, 30), [7; 30]);
        assert_eq!(rig.read(&one, 30, 31), [vec![8; 30], vec![0]].concat());
    }
}

/// The entries of the journal on a drive, and the head of its last block.
fn journal_of(rig: &Rig) -> (JournalHeader, Vec<JournalEntry>) {
    let run = |command| rig.runtime.block_on(rig.drive.submit(command), || false).unwrap();
    let zones = run(Command::Report { first: ZoneIndex(0), count: 2 }).zones;
    let info = zones.iter().find(|info| info.wp_blocks > 0).unwrap();
    let start = rig.drive.geometry().start(info.zone);
    let data = run(Command::read(start, Buf::zeroed(info.wp_blocks as usize * BLOCK))).data;
    let blocks = data.chunks(BLOCK).map(|block| format::read(block).unwrap());
    blocks.reduce(|(_, entries), (head, more)| (head, [entries, more].concat())).unwrap()
}

/// A copy of the drive with a forged journal; its blocks have this head except for offset and kind.
fn forged(rig: &Rig, head: JournalHeader, entries: &[JournalEntry]) -> Rc<Frail> {
    let ssd = rig.drive.ssd().borrow().copy().unwrap();
    let drive = Frail::new(rig.drive.geometry.clone(), EmulatedDrive::new(Rc::new(RefCell::new(ssd))));
    let run = |command| rig.runtime.block_on(drive.submit(command), || false).unwrap().result.unwrap();
    (0..2).for_each(|zone| run(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }));
    let mut filler = BlockFiller::default();
    entries.iter().for_each(|entry| filler.add(entry));
    for index in 0..filler.len().min(5) {
        let kind = 1 + (index + 1 == filler.len()) as u8;
        let mut block = vec![0; BLOCK];
        filler.seal(index, JournalHeader { offset: index as u32, kind, ..head }, &mut block);
        run(Command::write(Lba(index as u64), Buf::copy_of(&block), true));
    }
    Rc::new(drive)
}

/// A journal without damage may have any content: it is refused, or the namespaces can be used.
#[test]
fn namespace_journal_with_invalid_content_is_refused() {
    let rig = Rig::new(&Geometry { zones: 60, zone_capacity_blocks: 16, ..drive_for_rows(3) }, 3);
    let one = rig.add(Spec { essential: 2, ..spec("one", 5, 5) }).unwrap();
    rig.add(spec("two", 2, 1)).unwrap();
    (0..4).for_each(|zone| rig.write(&one, 64 * zone, 7, 20).unwrap());
    // Two groups, of two zones and of one.
    rig.write(&one, 20, 7, 20).unwrap();
    assert_eq!(rig.run(&one, Command::Finish { zones: Zones::One(ZoneIndex(1)) }).result, Ok(()));
    rig.fault(Fault::WriteFault(ZoneIndex(6)));
    let sealed = (2..4).find(|zone| rig.write(&one, 64 * zone + 20, 7, 10).is_err()).unwrap();
    rig.runtime.run();
    let (head, entries) = journal_of(&rig);
    let owner = |entry: &JournalEntry| match entry {
        JournalEntry::Vzone(_, zone, groups, end) => Some((*zone, *groups, *end)),
        _ => None,
    };
    // Entries are after-images: the last one counts.
    let last = |zone| entries.iter().filter_map(owner).rfind(|(of, ..)| *of == zone).unwrap();
    let (two_groups, one_group) = (last(0).1, last(sealed as u32).1);
    assert_eq!((two_groups.len(), two_groups.zones().len(), one_group.len()), (2, 3, 1));
    assert!(matches!(last(sealed as u32).2, End::Sealed(20)) && last(1).2 == End::Finished(20));
    let opened = |head: JournalHeader, more: &[JournalEntry]| {
        let runtime = Runtime::new();
        let drive = forged(&rig, head, &[&entries, more].concat());
        let looked = runtime.block_on(Namespaces::look(drive.clone()), || false).unwrap();
        let opened = try_open(&runtime, &drive, &rig.clock).map(|_| ());
        runtime.clear();
        assert_eq!(looked.map(|_| ()), opened);
        opened
    };
    let vzone = |zone, groups, end| vec![JournalEntry::Vzone(0, zone, groups, end)];
    let mut uneven = StripeGroups::default();
    assert!(uneven.push(&[50, 51, 52], 8));
    let absurd = Err(VzoneError::Absurd);
    for (more, result) in [
        (vec![], Ok(())),
        (vzone(0, two_groups, End::Sealed(30)), Ok(())),
        (vzone(0, two_groups, End::Sealed(45)), Ok(())),
        (vzone(0, two_groups, End::Sealed(29)), absurd),
        (vzone(0, two_groups, End::Sealed(46)), absurd),
        (vzone(0, two_groups, End::Finished(45)), Ok(())),
        (vzone(0, two_groups, End::Finished(46)), absurd),
        (vzone(2, one_group, End::Sealed(31)), absurd),
        (vzone(2, one_group, End::Sealed(u64::MAX)), absurd),
        (vzone(2, StripeGroups::default(), End::Sealed(0)), absurd),
        (vzone(2, StripeGroups::default(), End::Finished(0)), Ok(())),
        (vzone(4, uneven, End::Open), absurd),
        (vzone(4, two_groups, End::Open), absurd),
    ] {
        assert_eq!(opened(head, &more), result, "{more:?}");
    }
    for most in [u64::MAX, 1 << 63] {
        assert_eq!(opened(JournalHeader { generation: most, ..head }, &[]), absurd);
        assert_eq!(opened(JournalHeader { serial: most, ..head }, &[]), absurd);
    }
    assert_eq!(
        opened(JournalHeader { generation: (1 << 63) - 1, serial: (1 << 63) - 1, ..head }, &[]),
        Ok(())
    );
    assert_eq!(opened(JournalHeader { mark: !head.mark, ..head }, &[]), absurd);
    let mut rng = Rng::new(1);
    let mut refused = 0;
    for _ in 0..3000 {
        let mut entries = entries.clone();
        let mut head = head;
        (0..1 + rng.below(3)).for_each(|_| distort(&mut rng, &mut head, &mut entries));
        refused += !is_lived_with(&rig, forged(&rig, head, &entries)) as u32;
    }
    assert!((500..2500).contains(&refused), "{refused}");
}

/// Changes a random value in a journal.
fn distort(rng: &mut Rng, head: &mut JournalHeader, entries: &mut Vec<JournalEntry>) {
    let at = rng.below(entries.len() as u64) as usize;
    let number = |rng: &mut Rng| match rng.below(4) {
        0 => [0, 1, u64::MAX, 1 << 63, u32::MAX as u64][rng.below(5) as usize],
        _ => rng.below(70),
    };
    match rng.below(12) {
        0 => head.generation = number(rng),
        1 => head.serial = number(rng),
        2 => _ = entries.remove(at.max(1).min(entries.len() - 1)),
        3 => entries.push(entries[at].clone()),
        4 => entries.push(JournalEntry::Removed(number(rng) as u32)),
        _ => match &mut entries[at] {
            JournalEntry::Identity(identity) => match rng.below(3) {
                0 => identity.zones = number(rng) as u32,
                1 => identity.zone_capacity_blocks = number(rng),
                _ => identity.vzone_zones = number(rng) as u32,
            },
            JournalEntry::Namespace(id, spec) => match rng.below(8) {
                0 => *id = number(rng) as u32,
                1 => spec.zones = number(rng) as u32,
                2 => spec.max_active = number(rng) as u32,
                3 => spec.max_open = number(rng) as u32,
                4 => spec.essential = number(rng) as u32,
                5 => spec.weight = number(rng) as u32,
                6 => spec.qos.floors.requests = number(rng) as u32,
                _ => spec.name.clear(),
            },
            JournalEntry::Removed(id) => *id = number(rng) as u32,
            JournalEntry::Vzone(id, zone, groups, end) => match rng.below(6) {
                0 => *id = number(rng) as u32,
                1 => *zone = number(rng) as u32,
                2 => *end = End::Sealed(number(rng)),
                3 => *end = End::Finished(number(rng)),
                4 => *end = End::Open,
                _ => {
                    let width = 1 + rng.below(4) as usize;
                    let zones: Vec<u32> = (0..width).map(|_| 20 + rng.below(45) as u32).collect();
                    let kept = groups.first(rng.below(groups.len() as u64 + 1) as usize);
                    *groups = kept;
                    groups.push(&zones, 1 + rng.below(255) as u32);
                }
            },
        },
    }
}

/// Whether the namespaces on a drive can be opened; if so, all of them are used.
fn is_lived_with(rig: &Rig, drive: Rc<Frail>) -> bool {
    let runtime = Runtime::new();
    let looked = runtime.block_on(Namespaces::look(drive.clone()), || false).unwrap();
    let clock = Rc::new(Cell::new(rig.clock.get()));
    let opened = try_open(&runtime, &drive, &clock);
    let Ok(namespaces) = opened else {
        runtime.clear();
        return false;
    };
    assert!(looked.is_ok());
    for namespace in namespaces.list() {
        let geometry = namespace.geometry().clone();
        for zone in (0..geometry.zones).map(ZoneIndex) {
            let submit = |command| runtime.block_on(namespace.submit(command), || false);
            let info = submit(Command::Report { first: zone, count: 1 }).unwrap().zones[0];
            let start = geometry.start(zone);
            let blocks = geometry.zone_capacity_blocks as usize;
            assert!(submit(Command::read(start, Buf::zeroed(blocks * BLOCK))).is_some());
            if info.wp_blocks < geometry.zone_capacity_blocks {
                // The write may wait for zones of other namespaces.
                let data = Buf::zeroed(BLOCK);
                _ = submit(Command::write(Lba(start.0 + info.wp_blocks), data, true));
            }
        }
    }
    clock.set(clock.get() + PATIENCE_US);
    namespaces.tick();
    runtime.run();
    _ = namespaces.audit();
    runtime.clear();
    true
}

/// The journal alternates between its two zones.
#[test]
fn namespace_journal_alternates_between_its_zones() {
    let mut rig = Rig::new(&Geometry { zones: 40, ..drive_for_rows(3) }, 3);
    rig.add(spec("one", 2, 2)).unwrap();
    for round in 0..60 {
        let one = rig.namespaces.list().remove(0);
        rig.write(&one, 64, 1 + round, 20).unwrap();
        assert_eq!(rig.run(&one, Command::Reset { zones: Zones::One(ZoneIndex(1)) }).result, Ok(()));
        if round % 7 == 0 {
            rig = rig.again();
        }
        rig.namespaces.audit().unwrap();
    }
}

/// Namespaces on a drive that executes commands under control of the test.
struct Small {
    runtime: Runtime,
    command_queue: Rc<CommandQueue>,
    clock: Rc<Cell<u64>>,
}

impl Small {
    fn over(command_queue: CommandQueue) -> Small {
        Small { runtime: Runtime::new(), command_queue: Rc::new(command_queue), clock: Rc::default() }
    }

    fn device(&self) -> Rc<dyn ZonedDevice> {
        Rc::new(Sequencer::new(&self.runtime, Rc::new(self.command_queue.drive(0))))
    }

    fn open(&self) -> impl Future<Output = Result<Namespaces, VzoneError>> + 'static {
        let (runtime, device, clock) = (self.runtime.clone(), self.device(), self.clock.clone());
        let behaviour = NamespaceOptions {
            clock: Rc::new(move || clock.get()),
            patience_us: PATIENCE_US,
            admission: true,
        };
        async move { Namespaces::open(&runtime, device, behaviour).await }
    }

    /// Executes and completes all commands in order until the future is done.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let idle = || {
            let busy = self.command_queue.queued() + self.command_queue.executed() > 0;
            self.command_queue.run_all();
            busy
        };
        self.runtime.block_on(future, idle).unwrap()
    }

    /// Executes or completes one command; `false` if there is none.
    fn step(&self) -> bool {
        self.runtime.run();
        match (self.command_queue.executed(), self.command_queue.queued()) {
            (0, 0) => return false,
            (0, _) => _ = self.command_queue.execute_now(0, false),
            _ => _ = self.command_queue.deliver(0),
        }
        self.runtime.run();
        true
    }

    /// A copy of the drive after a power cut at this moment.
    fn cut(&self, cache_lost: bool, seed: u64) -> Small {
        let copy = self.command_queue.copy().unwrap();
        copy.power_cut(&mut Rng::new(seed), |_| Cut { cache_lost, zrwa_lost: false }).unwrap();
        Small::over(copy)
    }

    /// Checks that all promised data is there, before and after the work in the background, and that it can be written
    /// on.
    fn check(&self, when: &str) {
        let namespaces = self.run(self.open()).unwrap();
        let wide = namespaces.list().remove(0);
        let all = |blocks: usize| {
            let read = wide.submit(Command::read(Lba(0), Buf::zeroed(45 * BLOCK)));
            let found: Vec<u8> = self.run(read).data.chunks(BLOCK).map(|block| block[0]).collect();
            let rest = vec![0; 45 - blocks];
            assert_eq!(found, [vec![7; 20], vec![8; blocks - 20], rest].concat(), "{when}");
            assert_eq!(namespaces.audit(), Ok(()), "{when}");
        };
        all(20);
        while self.step() {}
        all(20);
        let more = Command::write(Lba(20), Buf::copy_of(&[8; 9 * BLOCK]), true);
        assert_eq!(self.run(wide.submit(more)).result, Ok(()), "{when}");
        all(29);
        self.runtime.clear();
    }
}

/// A namespace with a wide group that is not written any more, on a drive under control of the test; up to `max_active`
/// v-zones of it may be active.
fn forgotten(max_active: u32, volatile_cache: bool) -> (Small, Namespaces, Namespace) {
    let drive = Geometry { zones: 60, max_active: 20, max_open: 20, volatile_cache, ..drive_for_rows(15) };
    let command_queue = CommandQueue::default();
    command_queue.insert(Ssd::in_memory(&drive));
    let small = Small::over(command_queue);
    small.run(Namespaces::create(small.device(), [3; 16], 15)).unwrap();
    let namespaces = small.run(small.open()).unwrap();
    let wide = small.run(namespaces.add(Spec { essential: 2, ..spec("wide", 2, max_active) })).unwrap();
    let data = Command::write(Lba(0), Buf::copy_of(&[7; 20 * BLOCK]), true);
    assert_eq!(small.run(wide.submit(data)).result, Ok(()));
    assert_eq!(wide.status().widths, [8]);
    (small, namespaces, wide)
}

#[test]
fn namespace_being_read_refuses_resize_and_removal() {
    let (small, namespaces, wide) = forgotten(1, false);
    let read = wide.submit(Command::read(Lba(0), Buf::zeroed(20 * BLOCK)));
    small.runtime.run();
    assert_eq!(small.run(namespaces.resize("wide", 1)).err(), Some(VzoneError::InUse));
    assert_eq!(small.run(namespaces.remove("wide")).err(), Some(VzoneError::InUse));
    assert_eq!(small.run(read).data.chunks(BLOCK).map(|block| block[0]).sum::<u8>(), 7 * 20);
    assert!(small.run(namespaces.resize("wide", 1)).is_ok());
    assert_eq!(namespaces.audit(), Ok(()));
    small.runtime.clear();
}

/// The flush would complete for a namespace that is no longer informed of losses.
#[test]
fn namespace_being_flushed_refuses_resize_and_removal() {
    let (small, namespaces, wide) = forgotten(1, false);
    let flush = wide.submit(Command::Flush);
    small.runtime.run();
    assert_eq!(small.run(namespaces.resize("wide", 1)).err(), Some(VzoneError::InUse));
    assert_eq!(small.run(namespaces.remove("wide")).err(), Some(VzoneError::InUse));
    assert_eq!(small.run(flush).result, Ok(()));
    assert!(small.run(namespaces.resize("wide", 1)).is_ok());
    assert_eq!(small.run(namespaces.remove("wide")), Ok(()));
    small.runtime.clear();
}

#[test]
fn namespace_removal_waits_for_move_and_resize() {
    let (small, namespaces, _) = forgotten(1, false);
    small.clock.set(PATIENCE_US);
    namespaces.tick();
    let (other, result) = (namespaces.clone(), Rc::new(Cell::new(None)));
    let resized = result.clone();
    small.runtime.spawn(async move { resized.set(Some(other.resize("wide", 1).await.is_ok())) });
    small.runtime.run();
    // Both begin while the group is being moved.
    assert_eq!(small.run(namespaces.remove("wide")), Ok(()));
    assert_eq!((result.get(), namespaces.moved_groups()), (Some(true), 1));
    assert_eq!((namespaces.list().len(), namespaces.audit()), (0, Ok(())));
    let added = small.run(namespaces.add(spec("next", 2, 1))).map(|_| ());
    assert_eq!(added, Ok(()));
    small.runtime.clear();
    let again = small.cut(false, 1);
    let namespaces = again.run(again.open()).unwrap();
    assert_eq!((namespaces.list().len(), namespaces.audit()), (1, Ok(())));
    again.runtime.clear();
}

/// Reclaim moves a group; the power is cut at every moment of that, and again at every moment of the recovery.
#[test]
fn reclaim_survives_cuts_during_move_and_recovery() {
    for volatile in [false, true] {
        let (small, namespaces, _) = forgotten(1, volatile);
        small.clock.set(PATIENCE_US);
        namespaces.tick();
        let mut moment = 0;
        loop {
            let cut = small.cut(volatile, moment);
            cut.check(&format!("volatile {volatile}, cut at {moment}"));
            let again = small.cut(volatile, moment);
            let opening = again.open();
            again.runtime.spawn(async move { _ = opening.await });
            for second in 0.. {
                let when = format!("volatile {volatile}, cut at {moment} and at {second} of the recovery");
                again.cut(volatile, second).check(&when);
                if !again.step() {
                    break;
                }
            }
            again.runtime.clear();
            moment += 1;
            if !small.step() {
                break;
            }
        }
        assert_eq!(namespaces.moved_groups(), 1);
        assert!(moment > 20, "{moment}");
        small.runtime.clear();
    }
}

/// A write does not wait for the rest of a move, at any moment of it, and the power is cut at every moment.
#[test]
fn vzone_move_yields_to_write_and_survives_cuts() {
    for (volatile, begins_another) in [(false, false), (true, false), (true, true)] {
        let (mut stopped, mut spared, mut moved) = (0, 0, 0);
        for begun in 0.. {
            let (small, namespaces, wide) = forgotten(2, volatile);
            small.clock.set(PATIENCE_US);
            namespaces.tick();
            let going_on = (0..begun).all(|_| small.step());
            let start = if begins_another { wide.geometry().zone_size_blocks } else { 20 };
            let write = wide.submit(Command::write(Lba(start), Buf::copy_of(&[8; 3 * BLOCK]), true));
            let answered = Rc::new(Cell::new(false));
            let noted = answered.clone();
            small.runtime.spawn(async move { noted.set(write.await.result.is_ok()) });
            small.runtime.run();
            for moment in 0.. {
                let when = format!("volatile {volatile}, written after {begun}, cut at {moment}");
                let cut = small.cut(volatile, moment);
                let again = cut.run(cut.open()).unwrap();
                let wide = again.list().remove(0);
                let bytes = |at: u64, blocks: usize| -> Vec<u8> {
                    let read = wide.submit(Command::read(Lba(at), Buf::zeroed(blocks * BLOCK)));
                    cut.run(read).data.chunks(BLOCK).map(|block| block[0]).collect()
                };
                let all = || {
                    assert_eq!(bytes(0, 20), [7; 20], "{when}");
                    let found = bytes(start, 3);
                    let there = found.iter().take_while(|byte| **byte == 8).count();
                    assert_eq!(found[there..], vec![0; 3 - there], "{when}");
                    assert!(there == 3 || !answered.get(), "{when}: {found:?}");
                };
                all();
                while cut.step() {}
                all();
                assert_eq!(again.audit(), Ok(()), "{when}");
                cut.runtime.clear();
                if !small.step() {
                    break;
                }
                assert_eq!(namespaces.audit(), Ok(()), "{when}");
            }
            assert!(answered.get(), "written after {begun}");
            assert_eq!(namespaces.audit(), Ok(()));
            if namespaces.moved_groups() == 0 {
                stopped += 1;
                assert_eq!(wide.status().widths[0], 8);
                // If the move had begun, the group is left alone for twice as long.
                let moved_after = |patience: u64| {
                    small.clock.set(patience * PATIENCE_US);
                    namespaces.tick();
                    while small.step() {}
                    namespaces.moved_groups() > 0
                };
                spared += !moved_after(2) as u32;
                assert!(moved_after(3), "written after {begun}");
            } else {
                moved += 1;
            }
            small.runtime.clear();
            if !going_on {
                break;
            }
        }
        assert!(spared > 10 && moved > 5, "{stopped} stopped, {spared} were spared, {moved} did not");
    }
}

/// Any write of a move may be carried out and still complete with an error, whether the move stops or continues. The
/// state of the journal is then unknown, and every possible state has to stay valid.
#[test]
fn vzone_move_survives_executed_write_reported_as_failed() {
    let mut failed = 0;
    for begun in 0..40 {
        for moment in 0..40 {
            let (small, namespaces, wide) = forgotten(2, false);
            small.clock.set(PATIENCE_US);
            namespaces.tick();
            (0..begun).for_each(|_| _ = small.step());
            let write = wide.submit(Command::write(Lba(20), Buf::copy_of(&[8; 3 * BLOCK]), true));
            small.runtime.spawn(async move { _ = write.await });
            (0..moment).for_each(|_| _ = small.step());
            let fault = Fault::Fail { kind: Kind::Write, late: true };
            small.command_queue.ssd(0).faults().after(0, fault);
            while small.step() {}
            failed += small.run(namespaces.add(spec("next", 1, 1))).is_err() as u32;
            small.runtime.clear();
            let cut = small.cut(false, 1);
            cut.command_queue.ssd(0).faults().calm();
            let again = cut.run(cut.open()).unwrap();
            let when = format!("written after {begun}, failed at {moment}");
            assert_eq!(again.audit(), Ok(()), "{when}");
            let wide = again.list().remove(0);
            let report = cut.run(wide.submit(Command::Report { first: ZoneIndex(0), count: 1 }));
            assert!((20..=23).contains(&report.zones[0].wp_blocks), "{when}: {:?}", report.zones[0]);
            let read = wide.submit(Command::read(Lba(0), Buf::zeroed(24 * BLOCK)));
            let found: Vec<u8> = cut.run(read).data.chunks(BLOCK).map(|block| block[0]).collect();
            let there = found[20..].iter().take_while(|byte| **byte == 8).count();
            assert_eq!(found, [vec![7; 20], vec![8; there], vec![0; 4 - there]].concat(), "{when}");
            cut.runtime.clear();
        }
    }
    assert!(failed > 10, "{failed}");
}

fn play(over: Option<DeviceBelow>, seeds: std::ops::Range<u64>) -> NamespaceSummary {
    run_seeds::<NamespaceModel>(over, seeds, 2, &|| ())
}

#[test]
fn namespaces_simulation_passes_on_drive_and_arrays() {
    let array = |policy| DeviceBelow::Array { policy, parities: 1, group_blocks: 0 };
    let appended = DeviceBelow::Array { policy: Policy::Log, parities: 1, group_blocks: 16 };
    let overs = [DeviceBelow::Drive, appended].into_iter().chain(Policy::ALL.map(array));
    for over in overs {
        let count = if over == DeviceBelow::Drive { 60 } else { 6 };
        let summary = play(Some(over), 0..count);
        let failures: Vec<_> = summary.failures.iter().map(|f| (f.seed, f.failure.as_deref())).collect();
        assert!(failures.is_empty(), "{over:?}: {failures:?}");
        assert!(summary.counts.judgements > count && summary.counts.operations > 10 * count);
        assert!(over != DeviceBelow::Drive || summary.counts.own.moved_groups > 0);
    }
}

/// A v-zone holds whole segments, and so ends before the physical zones do. The power is cut at every moment of the
/// write that fills it.
#[test]
fn vzone_smaller_than_zones_is_full_after_cut() {
    for volatile in [false, true] {
        let drive = Geometry {
            zones: 40,
            zone_size_blocks: 24,
            zone_capacity_blocks: 24,
            max_active: 12,
            max_open: 12,
            volatile_cache: volatile,
            ..drive_for_rows(3)
        };
        let command_queue = CommandQueue::default();
        command_queue.insert(Ssd::in_memory(&drive));
        let small = Small::over(command_queue);
        small.run(Namespaces::create(small.device(), [3; 16], 3)).unwrap();
        let namespaces = small.run(small.open()).unwrap();
        let one = small.run(namespaces.add(Spec { essential: 2, ..spec("one", 2, 1) })).unwrap();
        let (capacity, next) = (one.geometry().zone_capacity_blocks, one.geometry().zone_size_blocks);
        assert_eq!((capacity, next), (68, 128));
        let write = |at: u64, byte: u8, blocks: usize, fua| {
            Command::write(Lba(at), Buf::copy_of(&vec![byte; blocks * BLOCK]), fua)
        };
        for at in [0, 30] {
            assert_eq!(small.run(one.submit(write(at, 7, 30, true))).result, Ok(()));
        }
        let (last, filled) = (one.submit(write(60, 8, 8, false)), Rc::new(Cell::new(false)));
        let noted = filled.clone();
        small.runtime.spawn(async move { noted.set(last.await.result.is_ok()) });
        let (mut moment, mut seen_full) = (0, 0);
        loop {
            let when = format!("volatile {volatile}, cut at {moment}");
            let cut = small.cut(volatile, moment);
            let namespaces = cut.run(cut.open()).unwrap();
            let one = namespaces.list().remove(0);
            let done = cut.run(one.submit(Command::Report { first: ZoneIndex(0), count: 1 }));
            let (state, wp) = (done.zones[0].state, done.zones[0].wp_blocks);
            assert!(state == ZoneState::Full || !filled.get(), "{when}: {state:?} at {wp}");
            seen_full += (state == ZoneState::Full) as u32;
            if state != ZoneState::Full {
                assert!((60..68).contains(&wp), "{when}: {wp}");
                let rest = write(wp, 8, (68 - wp) as usize, true);
                assert_eq!(cut.run(one.submit(rest)).result, Ok(()), "{when}");
            }
            for (at, blocks, byte) in [(0, 60, 7), (60, 8, 8)] {
                let read = cut.run(one.submit(Command::read(Lba(at), Buf::zeroed(blocks * BLOCK))));
                assert!(read.data.iter().all(|found| *found == byte), "{when}: {at}");
            }
            // Only one v-zone may be active.
            assert_eq!(cut.run(one.submit(write(next, 9, 5, true))).result, Ok(()), "{when}");
            while cut.step() {}
            assert_eq!(namespaces.audit(), Ok(()), "{when}");
            cut.runtime.clear();
            if !small.step() {
                break;
            }
            moment += 1;
        }
        assert!(filled.get() && (1..=moment as u32).contains(&seen_full), "{seen_full} of {}", moment + 1);
        small.runtime.clear();
    }
}

/// The future of a change is dropped while its record is being written: the change is made all the same.
#[test]
fn changes_of_namespaces_are_made_though_given_up() {
    let (runtime, drives) = (Runtime::new(), rig::Rig::new());
    let device = drives.drive(&Geometry { zones: 60, ..drive_for_rows(3) }).device;
    let created = Namespaces::create(device.clone(), *b"sixteen bytes...", 3);
    runtime.block_on(created, || false).unwrap().unwrap();
    let options = NamespaceOptions { clock: Rc::new(|| 0), patience_us: PATIENCE_US, admission: true };
    let namespaces =
        runtime.block_on(Namespaces::open(&runtime, device, options), || false).unwrap().unwrap();
    let begin = || drives.rule(|_, _| rig::Act::Hold);
    let end = || {
        assert!(drives.held() > 0);
        drives.rule(|_, _| rig::Act::Pass);
        while drives.release(|_, _| true) > 0 {
            runtime.run();
        }
        let list = namespaces.list();
        assert!(
            list.iter().all(|one| runtime
                .block_on(one.submit(Command::Flush), || false)
                .unwrap()
                .result
                .is_ok())
        );
        list.first().map(|one| (one.geometry().zones, one.status().spec.qos.latency_us))
    };
    begin();
    assert!(runtime.block_on(namespaces.add(spec("one", 2, 1)), || false).is_none());
    assert_eq!(end(), Some((2, 0)));
    begin();
    assert!(runtime.block_on(namespaces.resize("one", 3), || false).is_none());
    assert_eq!(end(), Some((3, 0)));
    begin();
    let qos = Qos { latency_us: 900, ..Qos::default() };
    assert!(runtime.block_on(namespaces.set_qos("one", qos), || false).is_none());
    assert_eq!(end(), Some((3, 900)));
    begin();
    assert!(runtime.block_on(namespaces.remove("one"), || false).is_none());
    assert_eq!(end(), None);
}

/// The write waits for the reset of its v-zone, whose record comes after that of the move.
#[test]
fn vzone_move_gives_zones_back_if_write_waits_to_begin() {
    let (small, namespaces, wide) = forgotten(2, false);
    let zones = Zones::One(ZoneIndex(1));
    assert_eq!(small.run(wide.submit(Command::Finish { zones })).result, Ok(()));
    small.clock.set(PATIENCE_US);
    namespaces.tick();
    small.runtime.run();
    let reset = wide.submit(Command::Reset { zones });
    let start = Lba(wide.geometry().zone_size_blocks);
    let write = wide.submit(Command::write(start, Buf::copy_of(&[8; 3 * BLOCK]), true));
    assert_eq!(small.run(reset).result, Ok(()));
    assert_eq!(small.run(write).result, Ok(()));
    while small.step() {}
    assert_eq!((namespaces.moved_groups(), namespaces.audit()), (1, Ok(())));
    small.runtime.clear();
}

/// At the first attempt no zone of the source is finished, and it holds all active zones.
#[test]
fn vzone_move_finishes_source_at_second_attempt() {
    let geometry = Geometry { zones: 60, max_active: 11, max_open: 11, ..drive_for_rows(8) };
    let rig = Rig::new(&geometry, 8);
    let one = rig.add(spec("one", 4, 1)).unwrap();
    rig.write(&one, 0, 7, 11).unwrap();
    assert_eq!(one.status().widths, [8]);
    rig.runtime.run();
    (0..8).for_each(|_| rig.fault(Fault::Fail { kind: Kind::Finish, late: false }));
    rig.clock.set(PATIENCE_US);
    rig.namespaces.tick();
    rig.runtime.run();
    assert_eq!((rig.namespaces.moved_groups(), one.status().widths), (1, vec![1]));
    rig.namespaces.audit().unwrap();
}

/// A newer checkpoint is complete and has a damaged block behind it: the other zone has the same state.
#[test]
fn namespace_journal_with_damage_gives_way_to_intact_one() {
    let rig = Rig::new(&Geometry { zones: 40, ..drive_for_rows(3) }, 3);
    rig.add(spec("one", 2, 2)).unwrap();
    let rig = rig.again();
    let (head, entries) = journal_of(&rig);
    rig.runtime.clear();
    let runtime = Runtime::new();
    let run = |command| runtime.block_on(rig.drive.submit(command), || false).unwrap();
    let zones = run(Command::Report { first: ZoneIndex(0), count: 2 }).zones;
    let other = zones.iter().find(|info| info.wp_blocks == 0).unwrap().zone;
    let mut filler = BlockFiller::default();
    entries.iter().for_each(|entry| filler.add(entry));
    let mut bytes = vec![7; 2 * BLOCK];
    let newer = JournalHeader { generation: head.generation + 1, offset: 0, kind: 2, ..head };
    filler.seal(0, newer, &mut bytes[..BLOCK]);
    let written = Command::write(rig.drive.geometry().start(other), Buf::copy_of(&bytes), true);
    assert_eq!(run(written).result, Ok(()));
    let found = try_open(&runtime, &rig.drive, &rig.clock).unwrap();
    assert_eq!(found.list().len(), 1);
    runtime.clear();
}

/// A v-zone gets its second group when a failed flush shows that its first one has lost data.
#[test]
fn vzone_failing_while_it_grows_counts_as_active() {
    let (small, _namespaces, wide) = forgotten(1, false);
    let write = |lba: u64, blocks: usize| {
        wide.submit(Command::write(Lba(lba), Buf::copy_of(&vec![8; blocks * BLOCK]), true))
    };
    let grown = write(20, 9);
    while !wide.status().widths.is_empty() {
        assert!(small.step());
    }
    let _flush = wide.submit(Command::Flush);
    for fault in [Fault::ReadOnly(ZoneIndex(2)), Fault::Fail { kind: Kind::Flush, late: false }] {
        small.command_queue.ssd(0).faults().after(0, fault);
    }
    // The flush, and the report that follows.
    for _ in 0..2 {
        small.runtime.run();
        let newest = small.command_queue.queued() - 1;
        small.command_queue.execute_now(newest, false);
        small.command_queue.deliver(0);
    }
    small.runtime.run();
    let begun = write(wide.geometry().zone_size_blocks, 3);
    assert_eq!(small.run(begun).result, Err(Status::TooManyActiveZones.into()));
    assert!(small.run(grown).result.is_err());
    small.runtime.clear();
}
