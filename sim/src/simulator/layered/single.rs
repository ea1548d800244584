//! A layer on a single drive without an array; its only faults are kills, shutdowns and power cuts.

use super::{LayeredMaker, StackParameters};
use crate::simulator::{
    layer::sequenced,
    scenario::{Misfortune, Scenario},
    subject::{Subject, SubjectError, Work},
};
use engine::{
    array::{Drive, MemberState},
    device::{Command, Completion, Geometry, ZonedDevice, Zones},
    runtime::Runtime,
};
use std::rc::Rc;

/// The parameters of a stack on a single drive, which has no UUID to derive them from.
fn shape_of(geometry: &Geometry) -> StackParameters {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&(geometry.zone_capacity_blocks << 32 | geometry.zones as u64).to_le_bytes());
    StackParameters::of(&seed)
}

/// Zones of a drive in addition to those of a member of an array.
const MORE_ZONES: u32 = 12;

/// Changes a scenario to a single drive, with zones of the same size as an array's.
pub(super) fn arrange(scenario: &mut Scenario) {
    let data_chunks = scenario.data_chunks();
    (scenario.members, scenario.parities, scenario.mixed, scenario.spare_zones) = (1, 1, false, 0);
    let drive = &mut scenario.drive;
    drive.zrwa = None;
    drive.zones += MORE_ZONES;
    drive.zone_capacity_blocks *= data_chunks;
    drive.zone_size_blocks = drive.zone_size_blocks.max(drive.zone_capacity_blocks);
    let Misfortune { kill_percent, shutdown_percent, cut_in_recovery_percent, power_hidden, .. } =
        scenario.misfortune;
    let drain_percent = scenario.misfortune.drain_percent;
    scenario.misfortune = Misfortune {
        kill_percent,
        shutdown_percent,
        cut_in_recovery_percent,
        power_hidden,
        drain_percent,
        ..Misfortune::default()
    };
}

struct Single {
    name: String,
    shown: Rc<dyn ZonedDevice>,
}

/// Creates the layer on a new drive.
pub(super) fn create(
    maker: LayeredMaker,
    runtime: Runtime,
    uuid: [u8; 16],
    drives: Vec<Drive>,
) -> Work<Rc<dyn Subject>> {
    Box::pin(async move {
        let device = sequenced(&runtime, &drives).map_err(SubjectError::other)?;
        // Erases the remains of an interrupted creation.
        let emptied = device.submit(Command::Reset { zones: Zones::All }).await.result;
        emptied.map_err(SubjectError::other)?;
        maker.clone().prepare(runtime.clone(), device, uuid).await?;
        assemble(maker, runtime, drives).await
    })
}

/// Starts the layer on its drive.
pub(super) fn assemble(maker: LayeredMaker, runtime: Runtime, drives: Vec<Drive>) -> Work<Rc<dyn Subject>> {
    Box::pin(async move {
        let device = sequenced(&runtime, &drives).map_err(SubjectError::other)?;
        let shape = shape_of(device.geometry());
        let name = drives.first().map(|drive| drive.name.clone()).unwrap_or_default();
        let shown = maker.show(runtime, device, shape).await?;
        Ok(Rc::new(Single { name, shown }) as Rc<dyn Subject>)
    })
}

impl ZonedDevice for Single {
    fn geometry(&self) -> &Geometry {
        self.shown.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        self.shown.submit(command)
    }
}

impl Subject for Single {
    fn attach(&self, _: usize, _: Drive) -> Work<()> {
        Box::pin(async { Err(SubjectError::Other("there is no array".into())) })
    }

    fn rebuild(&self) -> Work<u64> {
        Box::pin(async { Ok(0) })
    }

    fn fail(&self, _: usize) -> Work<()> {
        Box::pin(async { Err(SubjectError::Other("there is no array".into())) })
    }

    fn members(&self) -> Vec<(MemberState, String)> {
        vec![(MemberState::Active, self.name.clone())]
    }

    fn assembly(&self) -> u64 {
        0
    }
}
