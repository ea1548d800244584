//! An array on drives under control of a test, and the ways in which it ends.

use super::{
    array::{check, geometry, options, run, wp, write, write_command},
    rig::{Act, Rig},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, CreateOptions, Drive, MemberState},
    device::{Command, Completion, Geometry, ZonedDevice, Zones},
    raid::policy::Policy,
    runtime::Runtime,
    zone::ZoneIndex,
};
use std::{cell::Cell, rc::Rc};

pub const CHUNK: u64 = 4;
/// Blocks of a stripe of four members.
pub const STRIPE: u64 = 3 * CHUNK;
/// Metadata zones of a drive, before the data zones.
pub const META: u32 = 2;
pub const ZONES: u32 = 6;

pub struct Scene {
    pub runtime: Runtime,
    pub rig: Rc<Rig>,
    pub drives: Vec<Drive>,
    pub array: Array,
    pub shape: Geometry,
}

impl Drop for Scene {
    /// Tasks hold the array, and the array its drives.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    pub fn new(policy: Policy) -> Scene {
        Scene::shaped(policy, geometry(ZONES + META, 240, 8))
    }

    /// With drives that have a volatile cache.
    pub fn volatile(policy: Policy) -> Scene {
        Scene::shaped(policy, Geometry { volatile_cache: true, ..geometry(ZONES + META, 240, 8) })
    }

    pub fn shaped(policy: Policy, shape: Geometry) -> Scene {
        Scene::created(CreateOptions { policy: Some(policy), ..options(CHUNK) }, shape)
    }

    /// With zones that are written by appends, in groups of `group_blocks` blocks.
    pub fn appended(group_blocks: u32) -> Scene {
        let options = CreateOptions { policy: Some(Policy::Log), group_blocks, ..options(CHUNK) };
        Scene::created(options, geometry(ZONES + META, 240, 8))
    }

    pub fn created(options: CreateOptions, shape: Geometry) -> Scene {
        Scene::with_members(4, options, shape)
    }

    pub fn with_members(count: usize, options: CreateOptions, shape: Geometry) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let drives: Vec<_> = (0..count).map(|_| rig.drive(&shape)).collect();
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        Scene { runtime, rig, drives, array, shape }
    }

    pub fn write(&self, zone: u32, at: u64, blocks: u64) {
        write(&self.runtime, &self.array, zone, at, blocks, true);
    }

    /// Submits a command and leaves it in flight.
    pub fn start(&self, command: Command) -> Completion {
        let pending = self.array.submit(command);
        self.runtime.run();
        pending
    }

    pub fn start_write(&self, zone: u32, at: u64, blocks: u64) -> Completion {
        self.start(write_command(&self.array, zone, at, blocks, true))
    }

    pub fn submit(&self, command: Command) {
        assert_eq!(run(&self.runtime, self.array.submit(command)).result, Ok(()));
    }

    /// Executes all held commands and those that follow from them.
    pub fn release(&self) {
        self.rig.rule(|_, _| Act::Pass);
        self.runtime.run();
        while self.rig.release(|_, _| true) > 0 {
            self.runtime.run();
        }
    }

    /// Ends the process; the drives keep power.
    pub fn stop(&self) {
        self.runtime.clear();
        self.rig.drop_held();
        self.rig.rule(|_, _| Act::Pass);
    }

    /// Cuts the power; the drives that `lost` selects lose their caches.
    pub fn cut(&self, lost: impl Fn(usize) -> bool) {
        self.runtime.clear();
        self.rig.cut_power(&mut Rng::new(1), |drive| Cut { cache_lost: lost(drive), zrwa_lost: false });
    }

    pub fn without(&self, missing: Option<usize>) -> Vec<Drive> {
        let there = self.drives.iter().enumerate().filter(|(member, _)| Some(*member) != missing);
        there.map(|(_, drive)| drive.clone()).collect()
    }

    pub fn assemble(&mut self, missing: Option<usize>) {
        self.array = run(&self.runtime, Array::assemble(&self.runtime, self.without(missing))).unwrap();
    }

    /// Starts an assembly without `missing` and runs it as far as it gets.
    pub fn start_assembly(&self, missing: Option<usize>) {
        let (runtime, there) = (self.runtime.clone(), self.without(missing));
        self.runtime.spawn(async move { _ = Array::assemble(&runtime, there).await });
        self.runtime.run();
    }

    /// Attaches a blank drive as `member`, without a rebuild.
    pub fn replace(&mut self, member: usize) {
        if self.array.status().members[member].state != MemberState::Out {
            run(&self.runtime, self.array.fail(member)).unwrap();
        }
        self.drives[member] = self.rig.drive(&self.shape);
        run(&self.runtime, self.array.attach(member, self.drives[member].clone())).unwrap();
    }

    pub fn rebuild(&self) {
        run(&self.runtime, self.array.rebuild(&|_| ())).unwrap();
    }

    /// Starts a rebuild; the returned cell tells whether it has ended, and successfully.
    pub fn start_rebuild(&self) -> Rc<Cell<Option<bool>>> {
        let (array, told) = (self.array.clone(), Rc::new(Cell::new(None)));
        let result = told.clone();
        self.runtime.spawn(async move { told.set(Some(array.rebuild(&|_| ()).await.is_ok())) });
        self.runtime.run();
        result
    }

    pub fn refused(&self, command: Command) -> bool {
        run(&self.runtime, self.array.submit(command)).result.is_err()
    }

    pub fn states(&self) -> Vec<(MemberState, u32)> {
        self.array.status().members.iter().map(|m| (m.state, m.zones_to_rebuild)).collect()
    }

    pub fn tail(&self, zone: u32) -> u64 {
        wp(&self.runtime, &self.array, zone).1
    }

    pub fn check(&self, zone: u32, tail: u64) {
        check(&self.runtime, &self.array, zone, tail);
    }

    /// First block of data on a drive.
    pub fn data(&self) -> u64 {
        META as u64 * self.shape.zone_size_blocks
    }

    /// Injects a fault into a member's drive, without notice to the array.
    pub fn damage(&self, member: usize, fault: Fault) {
        self.rig.damage(member, fault);
        // Faults take effect with the next command.
        assert_eq!(run(&self.runtime, self.drives[member].device.submit(Command::Flush)).result, Ok(()));
    }
}

/// The physical zone of a member that holds `zone`.
pub fn part(zone: u32) -> ZoneIndex {
    ZoneIndex(zone + META)
}

pub fn reset(zone: u32) -> Command {
    Command::Reset { zones: Zones::One(ZoneIndex(zone)) }
}

pub fn finish(zone: u32) -> Command {
    Command::Finish { zones: Zones::One(ZoneIndex(zone)) }
}

/// Whether a command writes metadata, if data begins at block `data`.
pub fn is_metadata(command: &Command, data: u64) -> bool {
    matches!(command, Command::Write { lba, .. } if lba.0 < data)
}

/// Whether a command writes to these blocks.
pub fn writes_to(command: &Command, blocks: std::ops::Range<u64>) -> bool {
    matches!(command, Command::Write { lba, .. } if blocks.contains(&lba.0))
}

pub const ACTIVE: (MemberState, u32) = (MemberState::Active, 0);
pub const LACKS_ONE: (MemberState, u32) = (MemberState::Rebuilding, 1);
