//! Any command of a member may fail, and the power is cut any number of commands later, before the failure is recorded
//! or after. Then the member is back in its old state, or another one is missing. All writes acknowledged with FUA or
//! by a flush are there, and if the array lists all members as active, they are there without any single one.

use crate::support::{
    array::{geometry, options, run, submit, wp},
    rig::{Act, Rig},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{
    array::{Array, CreateOptions, Drive, MemberState, MemberStatus},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Geometry, ZonedDevice, Zones},
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, ops::RangeInclusive, rc::Rc};

const CHUNK: u64 = 4;
const MEMBERS: usize = 4;
const ZONES: u32 = 4;
/// Capacity of a zone of the array in blocks.
const CAPACITY: u64 = 12 * 3 * CHUNK;

/// An operation during which commands fail or the power is cut.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write { zone: u32, blocks: u64, fua: bool },
    Flush,
    Reset(u32),
    Finish(u32),
    Fail(usize),
    Rebuild,
}

/// Expected state of a zone.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// Identifies the content of this life of the zone.
    life: u64,
    promised: u64,
    submitted: u64,
    /// A reset or finish was submitted and has not completed.
    resetting: bool,
    finishing: bool,
    finished: bool,
}

impl Expected {
    /// Possible tails of the zone, if it was not reset.
    fn ends(&self) -> RangeInclusive<u64> {
        self.promised..=self.submitted
    }
}

fn content(life: u64, zone: u32, from: u64, blocks: u64) -> Vec<u8> {
    let word = |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (life << 32 | zone as u64);
    (from..from + blocks).flat_map(|at| word(at).to_le_bytes().repeat(BLOCK / 8)).collect()
}

struct Trial {
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    array: Array,
    expected: Vec<Expected>,
    /// Description of the trial for messages.
    what: String,
}

impl Trial {
    fn new(policy: Policy, volatile: bool) -> Trial {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = Geometry { volatile_cache: volatile, ..geometry(ZONES + 2, 240, 8) };
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&shape)).collect();
        let options =
            CreateOptions { policy: Some(policy), zone_size_blocks: Some(CAPACITY), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        let expected = (0..ZONES as u64).map(|life| Expected { life, ..Expected::default() }).collect();
        Trial { runtime, rig, drives, array, expected, what: format!("{policy:?} {volatile}") }
    }

    /// Starts a step; the returned cell receives whether it succeeded.
    fn start(&mut self, step: Step) -> Rc<Cell<Option<bool>>> {
        let answer = Rc::new(Cell::new(None));
        let (told, array) = (answer.clone(), self.array.clone());
        let command = match step {
            Step::Write { zone, blocks, fua } => {
                let expected = &mut self.expected[zone as usize];
                let from = expected.submitted;
                expected.submitted += blocks;
                let data = Buf::copy_of(&content(expected.life, zone, from, blocks));
                Command::write(Lba(array.geometry().start(ZoneIndex(zone)).0 + from), data, fua)
            }
            Step::Flush => Command::Flush,
            Step::Reset(zone) => {
                self.expected[zone as usize].resetting = true;
                Command::Reset { zones: Zones::One(ZoneIndex(zone)) }
            }
            Step::Finish(zone) => {
                self.expected[zone as usize].finishing = true;
                Command::Finish { zones: Zones::One(ZoneIndex(zone)) }
            }
            Step::Fail(member) => {
                self.runtime.spawn(async move { told.set(Some(array.fail(member).await.is_ok())) });
                self.runtime.run();
                return answer;
            }
            Step::Rebuild => {
                self.runtime.spawn(async move { told.set(Some(array.rebuild(&|_| ()).await.is_ok())) });
                self.runtime.run();
                return answer;
            }
        };
        let completion: Completion = array.submit(command);
        self.runtime.spawn(async move { told.set(Some(completion.await.result.is_ok())) });
        self.runtime.run();
        answer
    }

    /// Executes a step; `false` if it did not complete.
    fn take(&mut self, step: Step) -> bool {
        let Some(good) = self.start(step).get() else { return false };
        let what = &self.what;
        // A rebuild may fail, as its drive may be the failing one.
        assert!(good || matches!(step, Step::Rebuild), "{what}: {step:?} fails");
        let safe_at_once = !self.array.geometry().volatile_cache;
        match step {
            Step::Write { zone, fua, .. } if fua || safe_at_once => {
                let expected = &mut self.expected[zone as usize];
                expected.promised = expected.submitted;
            }
            Step::Write { .. } | Step::Fail(_) | Step::Rebuild => {}
            Step::Flush => self.expected.iter_mut().for_each(|e| e.promised = e.submitted),
            Step::Reset(zone) => {
                let life = self.expected[zone as usize].life + 100;
                self.expected[zone as usize] = Expected { life, ..Expected::default() };
            }
            Step::Finish(zone) => {
                let expected = &mut self.expected[zone as usize];
                (expected.finished, expected.finishing) = (true, false);
                expected.promised = expected.submitted;
            }
        }
        true
    }

    /// Cuts the power; random drives lose their caches.
    fn cut(&mut self, rng: &mut Rng) {
        self.runtime.clear();
        let lost = rng.below(1 << self.drives.len());
        self.rig.cut_power(rng, |drive| Cut { cache_lost: lost & (1 << (drive % 8)) != 0, zrwa_lost: false });
    }

    fn without(&self, missing: Option<usize>) -> Vec<Drive> {
        let there = self.drives.iter().enumerate().filter(|(member, _)| Some(*member) != missing);
        there.map(|(_, drive)| drive.clone()).collect()
    }

    /// Members that are not active in an inspection of all drives.
    fn lacking(&self) -> Vec<usize> {
        let found = run(&self.runtime, Array::inspect(&self.runtime, self.drives.clone(), None)).unwrap();
        let lacks = |m: &MemberStatus| m.state != MemberState::Active;
        let members = found.status.members.iter().enumerate();
        members.filter(|(_, member)| lacks(member)).map(|(m, _)| m).collect()
    }

    /// Assembles the array, and checks all its zones.
    fn assemble(&mut self, missing: Option<usize>) {
        let drives = self.without(missing);
        self.what += &format!(", then without {missing:?}");
        let what = self.what.clone();
        let array = run(&self.runtime, Array::assemble(&self.runtime, drives));
        self.array = array.unwrap_or_else(|error| panic!("{what}: {error}"));
        let offline = self.array.status().offline;
        assert!(offline.is_empty(), "{what}: {offline:?}");
        self.check(&what);
    }

    /// Checks all zones; their tails are expected from now on.
    fn check(&mut self, what: &str) {
        for zone in 0..ZONES {
            let (state, at) = wp(&self.runtime, &self.array, zone);
            let expected = &mut self.expected[zone as usize];
            if expected.resetting && state == ZoneState::Empty {
                *expected = Expected { life: expected.life + 100, ..Expected::default() };
                continue;
            }
            expected.resetting = false;
            let full = state == ZoneState::Full;
            let may_be_full = expected.finished || expected.finishing || expected.submitted == CAPACITY;
            assert!(!full || may_be_full, "{what}: zone {zone} is full");
            assert!(full || !expected.finished, "{what}: zone {zone} is not full");
            let ends = expected.ends();
            if full && expected.promised < expected.submitted {
                // The end of the data is not reported: only the promised blocks are compared.
                expected.finished = true;
            } else if !full {
                assert!(ends.contains(&at), "{what}: zone {zone} ends at {at}, not in {ends:?}");
                (expected.promised, expected.submitted, expected.finishing) = (at, at, false);
            }
            let start = self.array.geometry().start(ZoneIndex(zone)).0;
            for from in (0..expected.promised).step_by(60) {
                let blocks = (expected.promised - from).min(60);
                let read = Command::read(Lba(start + from), Buf::zeroed(blocks as usize * BLOCK));
                let done = submit(&self.runtime, &self.array, read);
                assert!(
                    done.data[..] == content(expected.life, zone, from, blocks),
                    "{what}: zone {zone} has something else in blocks {from} + {blocks}"
                );
            }
        }
    }
}

impl Drop for Trial {
    /// Tasks hold the array, and the array its drives.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

/// The `at`-th command of `drive` fails, and after `then` more commands of all drives none is executed any more.
#[derive(Clone, Copy, Debug)]
struct Mishap {
    drive: usize,
    at: u64,
    act: Act,
    then: u64,
}

/// Sets the rule for a mishap; the returned cell tells whether the command has failed.
fn follow(rig: &Rig, mishap: Mishap) -> Rc<Cell<bool>> {
    let struck = Rc::new(Cell::new(false));
    let (own, left) = (Cell::new(mishap.at), Cell::new(mishap.then));
    let told = struck.clone();
    rig.rule(move |drive, command| {
        if matches!(command, Command::Report { .. }) {
            return Act::Pass;
        }
        if told.get() {
            if left.get() == 0 {
                return Act::Hold;
            }
            left.set(left.get() - 1);
            return Act::Pass;
        }
        if drive == mishap.drive {
            if own.get() == 0 {
                told.set(true);
                return mishap.act;
            }
            own.set(own.get() - 1);
        }
        Act::Pass
    });
    struck
}

/// Steps before the mishap, and during it.
fn scripts() -> [(Vec<Step>, Vec<Step>); 3] {
    let write = |zone, blocks, fua| Step::Write { zone, blocks, fua };
    let begun = vec![
        write(0, 29, true),
        write(1, 5, true),
        write(2, 60, true),
        write(2, 60, true),
        write(2, 9, true),
    ];
    let ends = vec![
        write(2, 7, true),
        write(1, 3, false),
        Step::Finish(1),
        write(2, 8, true),
        write(0, 6, true),
        Step::Reset(1),
        Step::Reset(2),
        write(2, 9, true),
        write(1, 2, false),
        Step::Finish(0),
        Step::Flush,
    ];
    let writes = vec![
        write(0, 7, true),
        write(0, 1, false),
        write(1, 31, false),
        write(3, 4, false),
        Step::Flush,
        write(0, 12, true),
        write(3, 10, true),
        write(1, 1, true),
        write(0, 40, false),
        Step::Flush,
    ];
    let mut lacking = begun.clone();
    lacking.push(Step::Finish(1));
    lacking.push(Step::Fail(3));
    let rebuild = vec![Step::Rebuild, write(0, 3, true), write(3, 9, false), Step::Flush, Step::Finish(0)];
    [(begun.clone(), writes), (begun, ends), (lacking, rebuild)]
}

fn play(policy: Policy, script: usize, rng: &mut Rng) -> bool {
    let volatile = rng.chance(1, 2);
    let mut trial = Trial::new(policy, volatile);
    let (before, during) = scripts()[script].clone();
    before.into_iter().for_each(|step| assert!(trial.take(step)));
    let replaced = script == 2;
    if replaced {
        let shape = trial.drives[0].device.geometry().clone();
        trial.drives[3] = trial.rig.drive(&shape);
        run(&trial.runtime, trial.array.attach(3, trial.drives[3].clone())).unwrap();
    }
    // In an array that lacks a member only the drive under rebuild may fail.
    let drive = if replaced { MEMBERS } else { rng.below(MEMBERS as u64) as usize };
    let most = if rng.chance(1, 2) { 6 } else { 60 };
    let acts = [Act::Fail, Act::Fail, Act::Refuse, Act::Pass];
    let mishap = Mishap { drive, at: rng.below(60), act: acts[rng.below(4) as usize], then: rng.below(most) };
    trial.what = format!("{} {script} {mishap:?}", trial.what);
    let struck = follow(&trial.rig, mishap);
    for step in during {
        if !trial.take(step) {
            break;
        }
    }
    if !struck.get() {
        return false;
    }
    trial.cut(rng);
    let lacking = trial.lacking();
    let member = if replaced { 3 } else { drive };
    let may_miss = |m: usize| lacking.is_empty() || lacking == [m];
    assert!(lacking.is_empty() || lacking == [member], "{}: {lacking:?} lack something", trial.what);
    // Before an assembly has decided on it, a rebuild may count on some members only.
    let missing = if replaced { member } else { rng.below(MEMBERS as u64 + 1) as usize };
    let missing = Some(missing).filter(|m| *m < MEMBERS && may_miss(*m));
    trial.assemble(missing);
    if trial.array.status().members.iter().all(|m| m.state != MemberState::Out) {
        trial.rig.rule(|_, _| Act::Pass);
        run(&trial.runtime, trial.array.rebuild(&|_| ())).unwrap();
        trial.cut(rng);
        let missing = rng.below(MEMBERS as u64) as usize;
        trial.assemble(Some(missing));
    }
    true
}

fn play_many(policy: Policy, script: usize, times: u64) {
    let mut rng = Rng::new(script as u64);
    let struck = (0..times).filter(|_| play(policy, script, &mut rng)).count() as u64;
    assert!(2 * struck > times / 2, "only {struck} of {times} had a mishap");
}

/// Fewer trials without optimization, where they take long.
const TIMES: u64 = if cfg!(debug_assertions) { 80 } else { 300 };

#[test]
fn error_and_cut_during_writes_keep_promises() {
    Policy::ALL.into_iter().for_each(|policy| play_many(policy, 0, TIMES));
}

#[test]
fn error_and_cut_while_zones_end_keep_promises() {
    Policy::ALL.into_iter().for_each(|policy| play_many(policy, 1, TIMES));
}

#[test]
fn error_and_cut_during_rebuild_keep_promises() {
    Policy::ALL.into_iter().for_each(|policy| play_many(policy, 2, TIMES));
}
