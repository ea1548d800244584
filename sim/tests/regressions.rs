#![allow(clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic, warnings)]
use engine::{
    array::{Array, CreateOptions, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones, Zrwa,
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Ssd},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

fn geo(zones: u32, cap: u64, limit: u32) -> Geometry {
    Geometry {
        zones,
        zone_size_blocks: cap.next_power_of_two(),
        zone_capacity_blocks: cap,
        max_open: limit,
        max_active: limit,
        zrwa: Some(Zrwa { size_blocks: 32, granularity_blocks: 2, max_zones: limit }),
        oob_bytes: 0,
        max_transfer_blocks: 64,
        max_append_blocks: 64,
        volatile_cache: false,
    }
}
fn drives(n: usize, g: &Geometry) -> Vec<Drive> {
    (0..n)
        .map(|i| Drive { name: format!("drive{i}"), device: Rc::new(EmulatedDrive::in_memory(g)) })
        .collect()
}
fn options(chunk_blocks: u64) -> CreateOptions {
    CreateOptions { name: "t".into(), uuid: [3; 16], chunk_blocks, zone_size_blocks: None }
}
fn run<T>(rt: &Runtime, f: impl Future<Output = T>) -> T {
    rt.block_on(f, || false).expect("hang")
}
fn pattern(from: u64, blocks: u64) -> Vec<u8> {
    (from..from + blocks)
        .flat_map(|b| (b.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 77).to_le_bytes().repeat(BLOCK / 8))
        .collect()
}
fn wcmd(a: &Array, zone: u32, at: u64, blocks: u64, fua: bool) -> Command {
    let s = a.geometry().start(ZoneIndex(zone)).0;
    Command::write(Lba(s + at), Buf::copy_of(&pattern(s + at, blocks)), fua)
}

/// 1: dead partial parity in the metadata log is never forgotten across assemblies.
#[test]
fn leak() {
    let rt = Runtime::new();
    let g = geo(12, 48, 3);
    let all = drives(4, &g);
    let mut a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
    let cap = a.geometry().zone_capacity_blocks;
    println!("active {} cap {cap}", a.geometry().max_active);
    for zone in 0..10 {
        let mut at = 0;
        while at < cap {
            let r = run(&rt, a.submit(wcmd(&a, zone, at, 4, false))).result;
            if r != Ok(()) {
                println!(
                    "zone {zone} at {at}: {r:?} {:?}",
                    a.status().members.iter().map(|m| (m.state, m.note.clone())).collect::<Vec<_>>()
                );
                drop(a);
                rt.clear();
                for _ in 0..3 {
                    match run(&rt, Array::assemble(&rt, all.clone())) {
                        Ok(a) => println!(
                            "assembles again: {:?}",
                            a.status().members.iter().map(|m| (m.state, m.note.clone())).collect::<Vec<_>>()
                        ),
                        Err(e) => println!("does not assemble: {e}"),
                    }
                    rt.clear();
                }
                panic!("array lost");
            }
            at += 4;
        }
        run(&rt, a.submit(Command::Flush)).result.unwrap();
        drop(a);
        rt.clear();
        a = match run(&rt, Array::assemble(&rt, all.clone())) {
            Ok(a) => a,
            Err(e) => panic!("after zone {zone}: {e}"),
        };
        println!("zone {zone} full, assembled");
    }
}

/// 2: finish or reset of a zone whose opening still waits for another zone to end.
fn change_while_waiting(finish: bool) {
    let rt = Runtime::new();
    let g = geo(8, 200, 3);
    let hub = Hub::new();
    let all: Vec<Drive> = (0..4).map(|_| hub.drive(&g)).collect();
    let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
    let cap = a.geometry().zone_capacity_blocks;
    let mut at = 0;
    while at + 12 < cap {
        run(&rt, a.submit(wcmd(&a, 0, at, 12, false))).result.unwrap();
        at += 12;
    }
    rt.run();
    let (z0, z1) = (2 * g.zone_size_blocks, 3 * g.zone_size_blocks);
    hub.set(move |_, c| match c {
        Command::Write { lba, .. } if lba.0 >= z0 && lba.0 < z1 => Do::Hold,
        _ => Do::Pass,
    });
    let w0 = a.submit(wcmd(&a, 0, at, cap - at, false));
    let w1 = a.submit(wcmd(&a, 1, 0, 3, false));
    let zones = Zones::One(ZoneIndex(1));
    let c = a.submit(if finish { Command::Finish { zones } } else { Command::Reset { zones } });
    rt.run();
    println!("change {:?} w1 {:?}", run(&rt, c).result, run(&rt, w1).result);
    hub.set(|_, _| Do::Pass);
    hub.release(|_, _| true);
    println!("w0 {:?}", run(&rt, w0).result);
    rt.run();
    if !finish {
        println!("write again {:?}", run(&rt, a.submit(wcmd(&a, 1, 0, 3, true))).result);
    }
    println!(
        "failed {} {:?}",
        a.status().failed,
        a.status().members.iter().map(|m| (m.state, m.note.clone())).collect::<Vec<_>>()
    );
    assert!(!a.status().failed);
}
#[test]
fn finish_while_waiting() {
    change_while_waiting(true)
}
#[test]
fn reset_while_waiting() {
    change_while_waiting(false)
}

/// 6: the checkpoint fits, the batch that made it necessary does not.
#[test]
fn batch_after_checkpoint() {
    let mut bad = 0;
    for pre in 0..80 {
        let rt = Runtime::new();
        let g = geo(8, 76, 5);
        let all = drives(6, &g);
        let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
        let cap = a.geometry().zone_capacity_blocks;
        assert_eq!(a.geometry().max_active, 3);
        for z in 0..3 {
            let mut at = 0;
            while at < cap - 4 * 20 {
                run(&rt, a.submit(wcmd(&a, z, at, 20, false))).result.unwrap();
                at += 20;
            }
        }
        rt.run();
        for _ in 0..pre {
            run(&rt, a.submit(Command::Reset { zones: Zones::One(ZoneIndex(5)) })).result.unwrap();
        }
        let mut cs = vec![];
        let mut at = cap - 80;
        while at < cap {
            for z in 0..3 {
                cs.push(a.submit(wcmd(&a, z, at, 4, true)));
            }
            at += 4;
        }
        rt.run();
        let err = cs.into_iter().map(|c| run(&rt, c).result).filter(|r| r.is_err()).count();
        let out: Vec<_> = a
            .status()
            .members
            .iter()
            .filter(|m| m.state != MemberState::Active)
            .map(|m| m.note.clone())
            .collect();
        if !out.is_empty() || err > 0 {
            bad += 1;
            println!("pre {pre}: errors {err} failed {} {out:?}", a.status().failed);
        }
    }
    assert_eq!(bad, 0);
}

/// 7: two rebuilds at once.
#[test]
fn two_rebuilds() {
    let mut bad = 0;
    for seed in 0..30 {
        let rt = Runtime::seeded(seed);
        let g = geo(8, 200, 6);
        let hub = Hub::new();
        let mut all: Vec<Drive> = (0..4).map(|_| hub.drive(&g)).collect();
        let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
        for z in 0..4 {
            run(&rt, a.submit(wcmd(&a, z, 0, 200, true))).result.unwrap();
        }
        run(&rt, a.submit(Command::Finish { zones: Zones::All })).result.unwrap();
        run(&rt, a.fail(1)).unwrap();
        run(&rt, a.attach(1, hub.drive(&g))).unwrap();
        hub.set(|_, _| Do::Hold);
        let results = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..2 {
            let (b, r) = (a.clone(), results.clone());
            rt.spawn(async move {
                let x = b.rebuild(&|_| ()).await;
                r.borrow_mut().push(x);
            });
        }
        let mut rng = Rng::new(seed);
        for _ in 0..20000 {
            rt.run();
            if results.borrow().len() == 2 {
                break;
            }
            let n = hub.held.borrow().len() as u64;
            if n == 0 {
                println!("stuck");
                break;
            }
            let pick = rng.below(n);
            let k = Cell::new(0);
            hub.release(|_, _| {
                k.set(k.get() + 1);
                k.get() == pick + 1
            });
        }
        hub.set(|_, _| Do::Pass);
        for _ in 0..50 {
            hub.release(|_, _| true);
            rt.run();
        }
        let states: Vec<_> = a.status().members.iter().map(|m| m.state).collect();
        let mut wrong = 0;
        for z in 0..4u32 {
            let s = a.geometry().start(ZoneIndex(z)).0;
            let d = run(&rt, a.submit(Command::read(Lba(s), Buf::zeroed(200 * BLOCK))));
            wrong += (0..200)
                .filter(|b| d.result.is_err() || d.data[*b as usize * BLOCK..][..BLOCK] != pattern(s + *b, 1))
                .count();
        }
        if wrong > 0 || states.iter().any(|s| *s != MemberState::Active) {
            bad += 1;
            println!(
                "seed {seed}: wrong {wrong} {states:?} {:?} {:?}",
                results.borrow(),
                a.status().members[1].note
            );
        }
    }
    assert_eq!(bad, 0);
}
/// 3: the Rebuilt record that makes the log swap is void.
#[test]
fn rebuilt_lost() {
    let mut bad = 0;
    for n in 0..120 {
        let rt = Runtime::new();
        let g = geo(8, 200, 6);
        let mut all = drives(4, &g);
        let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
        for z in 0..2 {
            run(&rt, a.submit(wcmd(&a, z, 0, 30, true))).result.unwrap();
        }
        run(&rt, a.fail(1)).unwrap();
        all[1] = drives(1, &g).remove(0);
        run(&rt, a.attach(1, all[1].clone())).unwrap();
        for _ in 0..n {
            run(&rt, a.submit(Command::Reset { zones: Zones::One(ZoneIndex(5)) })).result.unwrap();
        }
        run(&rt, a.rebuild(&|_| ())).unwrap();
        assert!(a.status().members.iter().all(|m| m.state == MemberState::Active));
        drop(a);
        rt.clear();
        // Another member is lost, long after the rebuild was reported as done.
        all.remove(3);
        if let Err(e) = run(&rt, Array::assemble(&rt, all.clone())) {
            println!("n={n}: {e}");
            bad += 1;
        }
    }
    assert_eq!(bad, 0);
}

/// Drives whose commands can be held back, failed or swallowed by a rule.
#[derive(Clone, Copy, PartialEq)]
enum Do {
    Pass,
    Hold,
    Fail,
}
struct Hub {
    rule: RefCell<Box<dyn Fn(usize, &Command) -> Do>>,
    held: RefCell<Vec<(usize, Command, Completer)>>,
    slots: Rc<Slots>,
    ssds: RefCell<Vec<Rc<RefCell<Ssd>>>>,
}
struct HubDrive {
    hub: Rc<Hub>,
    i: usize,
    g: Geometry,
}
impl ZonedDevice for HubDrive {
    fn geometry(&self) -> &Geometry {
        &self.g
    }
    fn submit(&self, c: Command) -> Completion {
        let what = (self.hub.rule.borrow())(self.i, &c);
        match what {
            Do::Pass => {
                let s = self.hub.ssds.borrow()[self.i].clone();
                let d = s.borrow_mut().execute(c);
                Completion::ready(d)
            }
            Do::Fail => Completion::failed(Status::InternalError),
            Do::Hold => {
                let (x, y) = self.hub.slots.pair();
                self.hub.held.borrow_mut().push((self.i, c, x));
                y
            }
        }
    }
}
impl Hub {
    fn new() -> Rc<Hub> {
        Rc::new(Hub {
            rule: RefCell::new(Box::new(|_, _| Do::Pass)),
            held: RefCell::default(),
            slots: Rc::default(),
            ssds: RefCell::default(),
        })
    }
    fn drive(self: &Rc<Hub>, g: &Geometry) -> Drive {
        let i = self.ssds.borrow().len();
        self.ssds.borrow_mut().push(Rc::new(RefCell::new(Ssd::in_memory(g))));
        Drive { name: format!("drive{i}"), device: Rc::new(HubDrive { hub: self.clone(), i, g: g.clone() }) }
    }
    fn set(&self, f: impl Fn(usize, &Command) -> Do + 'static) {
        *self.rule.borrow_mut() = Box::new(f);
    }
    fn release(&self, f: impl Fn(usize, &Command) -> bool) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for (i, c, x) in held {
            if f(i, &c) {
                let s = self.ssds.borrow()[i].clone();
                let d = s.borrow_mut().execute(c);
                x.complete(d);
            } else {
                self.held.borrow_mut().push((i, c, x));
            }
        }
    }
}

/// 4: a cache flush fails, write pointers are moved all the same, the power goes before the superblocks know.
#[test]
fn failed_flush_then_cut() {
    let mut bad = 0;
    for seed in 0..40 {
        let rt = Runtime::new();
        let mut g = geo(8, 200, 6);
        g.volatile_cache = true;
        let hub = Hub::new();
        let all: Vec<Drive> = (0..4).map(|_| hub.drive(&g)).collect();
        let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
        run(&rt, a.submit(wcmd(&a, 0, 0, 12, true))).result.unwrap();
        let meta = 2 * g.zone_size_blocks;
        hub.set(move |i, c| match c {
            Command::Flush if i == 2 => Do::Fail,
            // Metadata writes are still on their way when the power goes.
            Command::Write { lba, .. } if lba.0 < meta => Do::Hold,
            Command::Reset { .. } | Command::Finish { .. } => Do::Hold,
            _ => Do::Pass,
        });
        assert_eq!(run(&rt, a.submit(wcmd(&a, 0, 12, 24, false))).result, Ok(()));
        rt.run();
        drop(a);
        rt.clear();
        hub.held.borrow_mut().clear();
        hub.set(|_, _| Do::Pass);
        let mut rng = Rng::new(seed);
        for (i, s) in hub.ssds.borrow().iter().enumerate() {
            s.borrow_mut().power_cut(&[], &mut rng, Cut { cache_lost: i == 2, zrwa_lost: false }).unwrap();
        }
        let a = match run(&rt, Array::assemble(&rt, all.clone())) {
            Ok(a) => a,
            Err(e) => {
                println!("seed {seed}: refused: {e}");
                bad += 1;
                continue;
            }
        };
        let wp = run(&rt, a.submit(Command::Report { first: ZoneIndex(0), count: 1 })).zones[0].wp_blocks;
        let d = run(&rt, a.submit(Command::read(Lba(0), Buf::zeroed(wp as usize * BLOCK))));
        let wrong: Vec<u64> =
            (0..wp).filter(|b| d.data[*b as usize * BLOCK..][..BLOCK] != pattern(*b, 1)).collect();
        let states: Vec<_> = a.status().members.iter().map(|m| m.state).collect();
        if !wrong.is_empty() {
            println!("seed {seed}: wp {wp}, wrong blocks {wrong:?}, {states:?}");
            bad += 1;
        }
    }
    assert_eq!(bad, 0);
}

/// 5: a zone that waits for the limit is opened while a rebuild crosses it off.
#[test]
fn opened_during_rebuilt() {
    let rt = Runtime::new();
    let g = geo(8, 200, 3);
    let hub = Hub::new();
    let mut all: Vec<Drive> = (0..4).map(|_| hub.drive(&g)).collect();
    let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
    let cap = a.geometry().zone_capacity_blocks;
    run(&rt, a.fail(3)).unwrap();
    let mut at = 0;
    while at + 12 < cap {
        run(&rt, a.submit(wcmd(&a, 1, at, 12, false))).result.unwrap();
        at += 12;
    }
    rt.run();
    let meta = 2 * g.zone_size_blocks;
    let z1 = 3 * g.zone_size_blocks;
    // The last write of zone 1 is slow; zone 0 is begun and waits.
    hub.set(move |_, c| match c {
        Command::Write { lba, .. } if lba.0 >= z1 => Do::Hold,
        _ => Do::Pass,
    });
    let w1 = a.submit(wcmd(&a, 1, at, cap - at, false));
    let w0 = a.submit(wcmd(&a, 0, 0, 30, false));
    rt.run();
    let spare = hub.drive(&g);
    run(&rt, a.attach(3, spare.clone())).unwrap();
    // The record that zone 0 is rebuilt is slow.
    hub.set(move |_, c| match c {
        Command::Write { lba, .. } if lba.0 >= z1 || lba.0 < meta => Do::Hold,
        _ => Do::Pass,
    });
    let b = a.clone();
    let result = Rc::new(RefCell::new(None));
    let r2 = result.clone();
    rt.spawn(async move {
        let r = b.rebuild(&|_| ()).await;
        *r2.borrow_mut() = Some(r);
    });
    rt.run();
    println!(
        "held {:?}",
        hub.held
            .borrow()
            .iter()
            .map(|(i, c, _)| (*i, format!("{c:?}").chars().take(30).collect::<String>()))
            .collect::<Vec<_>>()
    );
    // Now zone 1 becomes full (its end needs the data zone only), and zone 0 is opened.
    hub.set(move |_, c| match c {
        Command::Write { lba, .. } if lba.0 < meta => Do::Hold,
        _ => Do::Pass,
    });
    for _ in 0..50 {
        hub.release(|_, c| matches!(c, Command::Write { lba, .. } if lba.0 >= meta));
        rt.run();
    }
    // Then the record arrives.
    hub.set(|_, _| Do::Pass);
    for _ in 0..50 {
        hub.release(|_, _| true);
        rt.run();
    }
    println!("w1 {:?} w0 {:?}", run(&rt, w1).result, run(&rt, w0).result);
    println!(
        "rebuild {:?} status {:?}",
        result.borrow(),
        a.status().members.iter().map(|m| (m.state, m.note.clone())).collect::<Vec<_>>()
    );
    let d = run(&rt, a.submit(Command::read(Lba(0), Buf::zeroed(30 * BLOCK))));
    let wrong: Vec<u64> =
        (0..30).filter(|b| d.data[*b as usize * BLOCK..][..BLOCK] != pattern(*b, 1)).collect();
    println!("read {:?} wrong {wrong:?}", d.result);
    assert!(wrong.is_empty());
}
/// 8: zones that lost their ZRWA keep holding the drive's resources when the array is done with them.
#[test]
fn leftovers_of_lost_zrwa() {
    let rt = Runtime::new();
    let g = geo(10, 200, 4);
    let hub = Hub::new();
    let all: Vec<Drive> = (0..4).map(|_| hub.drive(&g)).collect();
    let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
    assert_eq!(a.geometry().max_active, 2);
    for z in 0..2 {
        run(&rt, a.submit(wcmd(&a, z, 0, 30, true))).result.unwrap();
    }
    drop(a);
    rt.clear();
    let mut rng = Rng::new(1);
    for (i, s) in hub.ssds.borrow().iter().enumerate() {
        s.borrow_mut().power_cut(&[], &mut rng, Cut { cache_lost: false, zrwa_lost: i == 2 }).unwrap();
    }
    let a = run(&rt, Array::assemble(&rt, all.clone())).unwrap();
    println!("{:?}", a.status().members.iter().map(|m| (m.state, m.note.clone())).collect::<Vec<_>>());
    for z in 0..2 {
        run(&rt, a.submit(Command::Finish { zones: Zones::One(ZoneIndex(z)) })).result.unwrap();
    }
    for z in 2..4 {
        run(&rt, a.submit(wcmd(&a, z, 0, 30, true))).result.unwrap();
    }
    println!("{:?}", a.status().members.iter().map(|m| (m.state, m.note.clone())).collect::<Vec<_>>());
    assert!(a.status().members.iter().all(|m| m.state != MemberState::Out));
}
/// 9: a finish of a zone that is full but not settled is answered at once.
#[test]
fn finish_of_unsettled_full_zone() {
    let rt = Runtime::new();
    let g = geo(8, 200, 6);
    let hub = Hub::new();
    let all: Vec<Drive> = (0..4).map(|_| hub.drive(&g)).collect();
    let a = run(&rt, Array::create(&rt, options(4), all.clone())).unwrap();
    let cap = a.geometry().zone_capacity_blocks;
    let mut at = 0;
    while at < cap - 12 {
        run(&rt, a.submit(wcmd(&a, 0, at, 12, false))).result.unwrap();
        at += 12;
    }
    rt.run();
    hub.set(|_, c| if matches!(c, Command::FlushZrwa { .. }) { Do::Hold } else { Do::Pass });
    run(&rt, a.submit(wcmd(&a, 0, at, 12, false))).result.unwrap();
    let mut finish = a.submit(Command::Finish { zones: Zones::One(ZoneIndex(0)) });
    rt.run();
    // The zone is not full on the members yet, so a finish has nothing to answer.
    assert!(finish.take().is_none());
    hub.set(|_, _| Do::Pass);
    hub.release(|_, _| true);
    assert_eq!(run(&rt, finish).result, Ok(()));
    drop(a);
    rt.clear();
    let a = run(&rt, Array::assemble(&rt, all.clone())).unwrap();
    let z = run(&rt, a.submit(Command::Report { first: ZoneIndex(0), count: 1 })).zones[0];
    assert_eq!(z.state, ZoneState::Full);
}
