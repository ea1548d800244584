//! Joining of writes that are queued in a zone: which writes are sent together, which ones wait, and in which order
//! they complete.

use crate::support::{
    array::{check, geometry, options, run, write_command},
    rig::{Act, Rig},
};
use engine::{
    array::{Array, ArrayOptions},
    device::{Command, Completion, ZonedDevice},
    runtime::Runtime,
};
use std::{cell::RefCell, rc::Rc};

const CHUNK: u64 = 4;
/// Blocks of a stripe of four members.
const STRIPE: u64 = 3 * CHUNK;
/// First block of the first data zone of a drive.
const DATA: u64 = 2 * 128;

/// An array on drives that hold back writes of data and parity. `writes` lists these commands as member, row and
/// blocks.
struct Scene {
    runtime: Runtime,
    rig: Rc<Rig>,
    array: Array,
    writes: Rc<RefCell<Vec<(usize, u64, u64)>>>,
    pending: Vec<Completion>,
    /// Writes to another zone.
    others: Vec<Completion>,
    end: u64,
}

impl Drop for Scene {
    /// Tasks hold the array, and the array its drives.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    fn new(join: bool) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let all = (0..4).map(|_| rig.drive(&geometry(6, 128, 5))).collect();
        let behaviour = ArrayOptions { join, ..ArrayOptions::default() };
        let array = run(&runtime, Array::create_with(&runtime, options(CHUNK), all, behaviour)).unwrap();
        let writes: Rc<RefCell<Vec<_>>> = Rc::default();
        let noted = writes.clone();
        rig.rule(move |member, command| match command {
            Command::Write { lba, data, .. } if lba.0 >= DATA => {
                noted.borrow_mut().push((member, (lba.0 - DATA) / CHUNK, data.blocks()));
                Act::Hold
            }
            _ => Act::Pass,
        });
        Scene { runtime, rig, array, writes, pending: Vec::new(), others: Vec::new(), end: 0 }
    }

    /// Submits writes of these lengths at once; returns the resulting drive commands.
    fn write(&mut self, blocks: &[u64]) -> Vec<(usize, u64, u64)> {
        for blocks in blocks {
            let command = write_command(&self.array, 0, self.end, *blocks, false);
            self.pending.push(self.array.submit(command));
            self.end += blocks;
        }
        self.runtime.run();
        self.writes.take()
    }

    /// Puts a stripe of another zone in flight, so that the drives are busy.
    fn keep_busy(&mut self) {
        let command = write_command(&self.array, 1, 0, STRIPE, false);
        self.others.push(self.array.submit(command));
        self.runtime.run();
        assert_eq!(self.writes.take().len(), 4);
    }

    /// Completes the commands in flight; returns the ones that follow.
    fn complete(&mut self) -> Vec<(usize, u64, u64)> {
        self.rig.release(|_, _| true);
        self.runtime.run();
        self.writes.take()
    }

    /// Number of completed writes, a prefix of those submitted, and their tails.
    fn answered(&mut self) -> (usize, Vec<u64>) {
        let mut tails = Vec::new();
        for completion in &mut self.pending {
            let Some(done) = completion.take() else { break };
            assert_eq!(done.result, Ok(()));
            tails.push(done.tail);
        }
        self.pending.drain(..tails.len());
        assert!(self.pending.iter_mut().all(|rest| rest.take().is_none()), "answered out of order");
        (tails.len(), tails)
    }

    /// Checks that all written blocks can be read, with each member out in turn.
    fn check(self) {
        self.rig.rule(|_, _| Act::Pass);
        check(&self.runtime, &self.array, 0, self.end);
        for member in 0..4 {
            self.rig.rule(move |number, command| match command {
                Command::Read { .. } if number == member => Act::Fail,
                _ => Act::Pass,
            });
            check(&self.runtime, &self.array, 0, self.end);
        }
    }
}

#[test]
fn join_single_write_is_sent_at_once() {
    let mut scene = Scene::new(true);
    for round in 0..2 * STRIPE {
        let sent = scene.write(&[1]);
        assert_eq!(sent.len(), 2, "round {round}: {sent:?}");
        assert_eq!(scene.complete(), []);
        assert_eq!(scene.answered(), (1, vec![round + 1]));
    }
    scene.check();
}

#[test]
fn join_matches_in_flight_blocks_and_keeps_order() {
    let mut scene = Scene::new(true);
    scene.keep_busy();
    assert_eq!(scene.write(&[2]).len(), 2);
    assert_eq!(scene.write(&[1]), [], "less than is in flight");
    // Data in one command, and one slot.
    assert_eq!(scene.write(&[1]), [(0, 0, 2), (1, 4, 2)]);
    assert_eq!(scene.answered().0, 0);
    assert_eq!(scene.complete(), []);
    // Both writes of the joined plan have the plan's end as their tail.
    assert_eq!(scene.answered(), (3, vec![2, 4, 4]));
    scene.check();
}

#[test]
fn join_releases_waiting_writes_once_zone_is_idle() {
    let mut scene = Scene::new(true);
    scene.keep_busy();
    assert_eq!(scene.write(&[3]).len(), 2);
    assert_eq!(scene.write(&[1]), []);
    assert_eq!(scene.complete().len(), 2);
    assert_eq!(scene.answered().0, 1);
    scene.complete();
    assert_eq!(scene.answered().0, 1);
    scene.check();
}

/// Two commands for each of four drives: data and a slot.
#[test]
fn join_delays_no_write_while_load_is_low() {
    let mut scene = Scene::new(true);
    for _ in 0..4 {
        assert_eq!(scene.write(&[1]).len(), 2);
    }
    assert_eq!(scene.write(&[1]), [], "less than is in flight, and the drives are busy");
    assert_eq!(scene.complete().len(), 2);
    scene.complete();
    assert_eq!(scene.answered().0, 5);
    // Completed writes no longer count.
    assert!(!scene.write(&[2]).is_empty());
    assert!(!scene.write(&[1]).is_empty());
    scene.complete();
    scene.check();
}

#[test]
fn join_full_stripes_are_written_without_partial_parity() {
    let mut scene = Scene::new(true);
    let sent = scene.write(&[1; STRIPE as usize]);
    assert_eq!(sent, [(0, 0, CHUNK), (1, 0, CHUNK), (2, 0, CHUNK), (3, 0, CHUNK)]);
    // The recent writes were enough to fill a stripe, so these wait for those in flight.
    assert_eq!(scene.write(&[1, 1, 1]), []);
    let sent = scene.write(&[CHUNK, CHUNK, 1]);
    assert_eq!(sent, [(1, 1, CHUNK), (2, 1, CHUNK), (3, 1, CHUNK), (0, 1, CHUNK)]);
    scene.complete();
    assert_eq!(scene.answered().0, STRIPE as usize + 6);
    scene.check();
}

#[test]
fn join_sends_chunk_in_two_halves() {
    let mut scene = Scene::new(true);
    assert_eq!(scene.write(&[1; CHUNK as usize]), [(0, 0, 2), (1, 4, 2), (0, 0, 2), (1, 4, 2)]);
    scene.complete();
    assert_eq!(scene.answered().0, CHUNK as usize);
    scene.check();
}

#[test]
fn join_write_across_stripes_never_awaits_itself() {
    let mut scene = Scene::new(true);
    // A stripe with its parity, and the rest with its slot.
    assert_eq!(scene.write(&[STRIPE + 1]).len(), 4 + 2);
    scene.complete();
    assert_eq!(scene.answered().0, 1);
    scene.check();
}

#[test]
fn join_disabled_writes_parity_for_each_write() {
    let mut scene = Scene::new(false);
    assert_eq!(scene.write(&[1, 1, 1]), [1; 3].map(|blocks| [(0, 0, blocks), (1, 4, blocks)]).concat());
    scene.complete();
    assert_eq!(scene.answered(), (3, vec![1, 2, 3]));
    scene.check();
}
