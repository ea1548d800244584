//! Layers on arrays as subjects of the array simulator: namespaces, a volume, or a volume on a namespace, which may
//! also lie on a single drive.
//!
//! The array simulator plays any zoned device made of drives ([`Subject`]), with all its ends and faults: power cuts,
//! kills, orderly shutdowns, kills followed by a power cut, lost ZRWAs, rebuilds, replacements, deferred starts, two
//! lost members. A layer is therefore presented as a zoned device: namespaces concatenated (`concat`), a volume as
//! zones that are written in order (`zoned`). Operations on members go to the array below; the promises of the layer
//! are judged.
//!
//! The parameters of a stack are derived from its random UUID.

mod concat;
mod single;
mod zoned;

use super::{
    scenario::Scenario,
    subject::{ArrayMaker, AssembleOptions, Maker, Subject, SubjectError, Work},
    volume::RecordingArray,
};
use concat::NamespaceConcat;
use emu::rng::Rng;
use engine::{
    array::{Array, ArrayStatus, CreateOptions, Drive, MemberState, PowerMark, Tails, ZoneScrub},
    device::{Command, Completion, Geometry, ZonedDevice},
    qos::Qos,
    raid::{events, policy::Policy},
    runtime::Runtime,
    volume::{self, Choice, Codec, Level, NewVolume, Opened, Pool, SectorSize, Unit, Volume, VolumePlan},
    vzone::{self, Namespaces, PATIENCE_US},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};
use zoned::VolumeZones;

/// The layer on the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    Namespaces,
    Volume,
    /// A volume on one of two namespaces.
    VolumeOnNamespace,
    /// A volume on one of two namespaces of a single drive.
    VolumeOnNamespaceOnDrive,
    /// A pool of two volumes, one of which is presented, on one of two namespaces.
    PoolOnNamespace,
}

impl Layer {
    pub const ALL: [Layer; 5] = [
        Layer::Namespaces,
        Layer::Volume,
        Layer::VolumeOnNamespace,
        Layer::VolumeOnNamespaceOnDrive,
        Layer::PoolOnNamespace,
    ];

    /// Whether the layer lies on a single drive.
    pub fn is_on_drive(self) -> bool {
        self == Layer::VolumeOnNamespaceOnDrive
    }

    fn is_volume_on_namespace(self) -> bool {
        matches!(self, Layer::VolumeOnNamespace | Layer::VolumeOnNamespaceOnDrive | Layer::PoolOnNamespace)
    }

    /// Numbers of additional zones and of additional active zones that a member needs for the layer.
    fn more(self) -> (u32, u32) {
        if self.is_volume_on_namespace() { (28, 9) } else { (16, 6) }
    }

    /// The layer's name in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Namespaces => "namespaces",
            Layer::Volume => "volume",
            Layer::VolumeOnNamespace => "volume-on-namespace",
            Layer::VolumeOnNamespaceOnDrive => "volume-on-namespace-on-drive",
            Layer::PoolOnNamespace => "pool-on-namespace",
        }
    }
}

/// The largest stripe of an array with a layer, in blocks including parity.
const MOST_STRIPE: u64 = 40;

/// Makes arrays with a layer on them.
#[derive(Clone)]
pub struct LayeredMaker {
    pub layer: Layer,
    pub arrays: ArrayMaker,
}

/// Parameters of a stack, derived from its UUID.
struct StackParameters {
    vzone_zones: u32,
    namespaces: u32,
    size_percent: u64,
    codec: Option<Codec>,
    unit: Unit,
    behaviour: volume::VolumeOptions,
}

impl StackParameters {
    fn of(uuid: &[u8; 16]) -> StackParameters {
        let mut seed = [0; 8];
        seed.copy_from_slice(&uuid[..8]);
        let mut rng = Rng::new(u64::from_le_bytes(seed));
        StackParameters {
            vzone_zones: 1 + rng.below(2) as u32,
            namespaces: 1 + rng.below(3) as u32,
            size_percent: 30 + rng.below(65),
            codec: match rng.below(4) {
                0 => Some(Codec::Lz4),
                1 => Level::new(1).map(Codec::Zstd),
                _ => None,
            },
            unit: Unit::default(),
            behaviour: volume::VolumeOptions {
                choice: if rng.chance(1, 2) { Choice::Greedy } else { Choice::CostBenefit },
                map_pages: Some(2 + rng.below(3) as usize),
                changed_pages: Some(1 + rng.below(2) as usize),
                ..volume::VolumeOptions::default()
            },
        }
    }
}

/// A subject: the array, its acknowledgement log, and the zoned device that presents the layer.
struct LayeredSubject {
    array: Array,
    tails: Rc<RefCell<Tails>>,
    shown: Rc<dyn ZonedDevice>,
    /// The array had written nothing when the layer was started.
    deferred: bool,
}

/// Name of the presented volume of a pool.
const PRESENTED: &str = "presented";

/// Most blocks of the presented volume of a pool, in percent of the usable ones: the pool also has a table.
const MOST_PERCENT: u64 = 60;

/// Creates a pool with two volumes. `options` are those of a volume without a pool.
async fn create_pool(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    usable: u64,
    options: volume::VolumeCreateOptions,
) -> Result<(), SubjectError> {
    let of_pool = volume::VolumeCreateOptions { blocks: None, ..options };
    Pool::create(runtime, device.clone(), of_pool).await.map_err(SubjectError::other)?;
    let opened = volume::open(runtime, device, volume::VolumeOptions::default()).await;
    let Opened::Pool(pool) = opened.map_err(SubjectError::other)? else {
        return Err(SubjectError::other("a pool is taken for a volume"));
    };
    let blocks = options.blocks.unwrap_or(usable).min((usable * MOST_PERCENT / 100).max(1));
    for (number, name) in (0..).zip(["other", PRESENTED]) {
        let new = NewVolume {
            name: name.into(),
            uuid: [number; 16],
            blocks,
            sector: SectorSize::default(),
            codec: options.codec,
            unit: options.unit,
            qos: Qos::default(),
            guaranteed: 0,
        };
        pool.add(new).await.map_err(SubjectError::other)?;
    }
    pool.space().stop().await.map_err(SubjectError::other)
}

/// Opens the namespaces on `device`.
async fn namespaces_on(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    clock: &Rc<Cell<u64>>,
) -> Result<Namespaces, SubjectError> {
    let time = clock.clone();
    let clock: vzone::Clock = Rc::new(move || time.get());
    let behaviour = vzone::NamespaceOptions { clock, patience_us: PATIENCE_US, admission: false };
    Namespaces::open(runtime, device, behaviour).await.map_err(SubjectError::other)
}

impl LayeredMaker {
    /// Prepares the layer on a new array.
    async fn prepare(
        self,
        runtime: Runtime,
        device: Rc<dyn ZonedDevice>,
        uuid: [u8; 16],
    ) -> Result<(), SubjectError> {
        let shape = StackParameters::of(&uuid);
        let (mut below, mut divided) = (device.clone(), None);
        if self.layer != Layer::Volume {
            let vzone_zones = if self.layer == Layer::Namespaces { shape.vzone_zones } else { 1 };
            Namespaces::create(device.clone(), uuid, vzone_zones).await.map_err(SubjectError::other)?;
            let clock = Rc::new(Cell::new(1_000_000));
            let max_active = device.geometry().max_active;
            let namespaces = namespaces_on(&runtime, device, &clock).await?;
            let one_large = self.layer.is_volume_on_namespace();
            let count = if one_large { 2 } else { shape.namespaces };
            concat::fill(&namespaces, (count, one_large), max_active).await?;
            if let Some(first) = namespaces.list().into_iter().next() {
                below = Rc::new(first);
            }
            divided = Some(namespaces);
        }
        if self.layer != Layer::Namespaces {
            let plan = VolumePlan::of(below.geometry(), None, None).map_err(SubjectError::other)?;
            let blocks = Some((plan.usable * shape.size_percent / 100).max(1));
            let StackParameters { codec, unit, .. } = shape;
            let options = volume::VolumeCreateOptions { uuid, blocks, codec, unit, ..Default::default() };
            match self.layer {
                Layer::PoolOnNamespace => create_pool(&runtime, below, plan.usable, options).await?,
                _ => Volume::create(&runtime, below, options).await.map_err(SubjectError::other)?,
            }
        }
        if let Some(namespaces) = divided {
            namespaces.close().await;
        }
        Ok(())
    }

    /// Starts the layer on an assembled array.
    async fn bring_up(self, runtime: Runtime, array: Array) -> Result<Rc<dyn Subject>, SubjectError> {
        let deferred = array.is_deferred();
        let (noted, tails) = RecordingArray::over(&runtime, array.clone());
        let shape = StackParameters::of(&array.status().uuid);
        let shown = self.show(runtime, Rc::new(noted), shape).await;
        let shown = shown.map_err(|why| match array.status().offline.as_slice() {
            [] => why,
            offline => SubjectError::other(format!("{why:?}, with offline zones {offline:?}")),
        })?;
        Ok(Rc::new(LayeredSubject { array, tails, shown, deferred }))
    }

    /// The zoned device that presents the layer on `device`.
    async fn show(
        &self,
        runtime: Runtime,
        mut device: Rc<dyn ZonedDevice>,
        shape: StackParameters,
    ) -> Result<Rc<dyn ZonedDevice>, SubjectError> {
        let clock = Rc::new(Cell::new(1_000_000));
        let mut namespaces = None;
        if self.layer != Layer::Volume {
            let found = namespaces_on(&runtime, device.clone(), &clock).await?;
            if let Some(first) = found.list().into_iter().next() {
                device = Rc::new(first);
            }
            namespaces = Some(found);
        }
        Ok(match (self.layer, namespaces) {
            (Layer::Namespaces, Some(namespaces)) => Rc::new(
                NamespaceConcat::new(&runtime, namespaces, clock)
                    .ok_or_else(|| SubjectError::other("all namespaces are gone"))?,
            ),
            _ => {
                let opened = volume::open(&runtime, device, shape.behaviour).await;
                let volume = match opened.map_err(SubjectError::other)? {
                    Opened::Volume(volume) => volume,
                    Opened::Pool(pool) => pool.find(PRESENTED).map_err(SubjectError::other)?,
                };
                Rc::new(VolumeZones::open(&runtime, volume).await?)
            }
        })
    }
}

impl Maker for LayeredMaker {
    fn policy(&self) -> Option<Policy> {
        self.arrays.policy()
    }

    fn parities(&self) -> Option<usize> {
        self.arrays.parities()
    }

    fn appends(&self, drawn: bool) -> bool {
        self.arrays.appends(drawn)
    }

    fn arrange(&self, scenario: &mut Scenario) -> bool {
        let small = scenario.members as u64 * scenario.chunk_blocks <= MOST_STRIPE;
        if !small || scenario.aggregate > 1 || scenario.cramped {
            return false;
        }
        let (drive, chunk) = (&mut scenario.drive, scenario.chunk_blocks);
        let (more_zones, more_active) = self.layer.more();
        drive.zones += more_zones;
        let more = |limit: &mut u32| *limit += if *limit > 0 { more_active } else { 0 };
        [&mut drive.max_open, &mut drive.max_active].into_iter().for_each(more);
        drive.zrwa.iter_mut().for_each(|zrwa| more(&mut zrwa.max_zones));
        // Checkpoints of metadata logs include the partial parity of these zones.
        let records = scenario.parities as u64 * 4 * more_active as u64 * (chunk + 4);
        drive.zone_capacity_blocks += records.next_multiple_of(chunk);
        drive.zone_size_blocks = drive.zone_size_blocks.max(drive.zone_capacity_blocks);
        scenario.zone_size_blocks = None;
        let misfortune = &mut scenario.misfortune;
        (misfortune.change, misfortune.change_percent, misfortune.destroy_percent) = (0, 0, 0);
        scenario.forks = scenario.forks.min(3);
        scenario.rounds = scenario.rounds.min(5);
        if self.layer.is_on_drive() {
            single::arrange(scenario);
        }
        true
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn may_lose_completed(&self, policy: Policy, members: bool) -> bool {
        self.layer != Layer::Namespaces || self.arrays.may_lose_completed(policy, members)
    }

    fn create(
        &self,
        runtime: &Runtime,
        options: CreateOptions,
        drives: Vec<Drive>,
        join: bool,
    ) -> Work<Rc<dyn Subject>> {
        let (maker, runtime) = (self.clone(), runtime.clone());
        if self.layer.is_on_drive() {
            return single::create(maker, runtime, options.uuid, drives);
        }
        Box::pin(async move {
            let uuid = options.uuid;
            let array = Array::create_with(&runtime, options, drives, maker.arrays.behaviour(join)).await?;
            maker.clone().prepare(runtime.clone(), Rc::new(array.clone()), uuid).await?;
            maker.bring_up(runtime, array).await
        })
    }

    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, how: AssembleOptions) -> Work<Rc<dyn Subject>> {
        let (maker, runtime) = (self.clone(), runtime.clone());
        if self.layer.is_on_drive() {
            return single::assemble(maker, runtime, drives);
        }
        Box::pin(async move {
            let array = maker.arrays.array(&runtime, drives, how).await?;
            maker.bring_up(runtime, array).await
        })
    }
}

impl ZonedDevice for LayeredSubject {
    fn geometry(&self) -> &Geometry {
        self.shown.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        self.shown.submit(command)
    }
}

impl Subject for LayeredSubject {
    fn attach(&self, member: usize, drive: Drive) -> Work<()> {
        Subject::attach(&self.array, member, drive)
    }

    fn replace(&self, member: usize, drive: Drive) -> Work<()> {
        Subject::replace(&self.array, member, drive)
    }

    fn cancel_replacement(&self) -> bool {
        Subject::cancel_replacement(&self.array)
    }

    fn rebuild(&self) -> Work<u64> {
        Subject::rebuild(&self.array)
    }

    fn scrub(&self, zone: u32) -> Work<ZoneScrub> {
        Subject::scrub(&self.array, zone)
    }

    fn fail(&self, member: usize) -> Work<()> {
        Subject::fail(&self.array, member)
    }

    fn members(&self) -> Vec<(MemberState, String)> {
        Subject::members(&self.array)
    }

    fn array_status(&self) -> Option<ArrayStatus> {
        Subject::array_status(&self.array)
    }

    fn assembly(&self) -> u64 {
        Subject::assembly(&self.array)
    }

    fn power_marks(&self) -> Vec<PowerMark> {
        Subject::power_marks(&self.array)
    }

    fn events(&self, since: u64) -> Option<events::EventList> {
        Subject::events(&self.array, since)
    }

    fn is_deferred(&self) -> bool {
        Subject::is_deferred(&self.array)
    }

    fn began_deferred(&self) -> bool {
        self.deferred
    }

    fn complete(&self, drive: Drive) -> Work<()> {
        Subject::complete(&self.array, drive)
    }

    fn array_zones(&self) -> u32 {
        self.array.geometry().zones
    }

    fn tails(&self) -> Option<Vec<u64>> {
        Some(self.tails.borrow().blocks.clone())
    }
}
