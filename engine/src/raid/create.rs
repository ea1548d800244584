//! Creation of an array, and its design for given drives.

use crate::{
    adapt::{aggregate::AggregateDevice, append::mark::mark_bytes, checksum::block::GROUP_BLOCKS},
    device::{Command, DriveId, Geometry, ZonedDevice},
    format::{
        Uuid,
        lineage::Lineage,
        name::wrong_with_name,
        oob::SUMMED_OOB_BYTES,
        record::{Record, ZoneRecord},
        superblock::{
            AGGREGATES, CELLS, CHECKSUM_BLOCKS, CHECKSUMS, CHUNK_BLOCKS, ERROR_LIMIT, GENERATIONS,
            GROUP_CHECKSUMS, GROUPS, NOTES, Order, SINGLE, Stage, Superblock, SuperblockMember,
            ZRWA_CHECKSUM_BLOCKS, members_of,
        },
    },
    raid::{
        ArrayOptions, Drive, LogStep,
        bad_blocks::BadBlockMap,
        durable,
        erase::{kept_drive_id, member_uuid, wipe_for_member},
        error::{ArrayError, BadDrive, Disqualification, DriveFault, NoDesign, Room},
        generations::Generations,
        geometry::{MAX_PARITIES, META_ZONES},
        journal::{
            log::{checkpoint_blocks, log_blocks},
            logged::LiveRecords,
        },
        parts::Raid,
        policy::{Policy, log},
        recover::scan::{find_log, prepare},
        run,
        zone_records::ZoneRecords,
    },
    runtime::Runtime,
    zone::{ZoneIndex, is_worn},
};
use std::{collections::BTreeMap, rc::Rc};

/// Blocks of a member that may be in flight at once in a zone that is written by appends: more would not make a drive
/// faster.
const APPENDED_BLOCKS: u64 = 32;

/// By default one of so many zones is a spare zone.
const ZONES_A_SPARE: u32 = 128;

/// Default of [`CreateOptions::checksum_group_blocks`]: as many as a checksum block has room for.
pub const CHECKSUM_GROUP_BLOCKS: u32 = *GROUP_BLOCKS.end() as u32;

/// Options of a new array.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// 1 to 64 bytes, visible characters without `/` (see [`wrong_with_name`]).
    pub name: String,
    /// Random, chosen by the caller.
    pub uuid: [u8; 16],
    /// Blocks in a chunk: a power of two; where the policy uses the drives' ZRWA, at least twice its
    /// flush granularity and at most half of it.
    pub chunk_blocks: u64,
    /// Distance between two logical zones; the next power of two above the capacity by default.
    /// If it is smaller than the possible capacity of a zone, the capacity is cut to it.
    pub zone_size_blocks: Option<u64>,
    /// Parities of a stripe: 1 (RAID-5) or 2 (RAID-6), the number of drives that may be lost.
    pub parities: usize,
    /// How partial stripes are protected; by default the best policy that the drives support.
    pub policy: Option<Policy>,
    /// If it is not 0, members' zones are written by appends, this many blocks in any order: a power of two. The policy
    /// is then `log`.
    pub group_blocks: u32,
    /// Zones of each drive that are reserved to replace worn ones, in units as the array uses them; by default one in
    /// 128.
    pub spare_zones: Option<u32>,
    /// Whether each block of a zone has a checksum: in the out-of-band metadata of the drives, or, if one of them has not
    /// enough, in blocks of the zones, with the policy `log`. Not for zones that are written by appends.
    pub checksums: bool,
    /// Blocks that share a checksum block, if checksums are in blocks of the zones: 1 to 1,008.
    pub checksum_group_blocks: u32,
    /// UUID of the owner; zeros for none.
    pub host: [u8; 16],
    /// Whether the array starts automatically on `host`.
    pub autostart: bool,
}

impl CreateOptions {
    /// Options of a RAID-5 with chunks of 64 KiB and the best policy that the drives support, without an owner.
    pub fn new(name: &str, uuid: [u8; 16]) -> CreateOptions {
        CreateOptions {
            name: name.into(),
            uuid,
            chunk_blocks: 16,
            zone_size_blocks: None,
            parities: 1,
            policy: None,
            group_blocks: 0,
            spare_zones: None,
            checksums: false,
            checksum_group_blocks: CHECKSUM_GROUP_BLOCKS,
            host: [0; 16],
            autostart: false,
        }
    }

    /// Whether the array can have checksums, with the policy that it has without them; or the reason why not.
    ///
    /// # Errors
    /// The array is impossible without checksums, too.
    pub fn may_have_checksums(
        &self,
        runtime: &Runtime,
        drives: &[Drive],
    ) -> Result<Result<(), ArrayError>, ArrayError> {
        let without = CreateOptions { checksums: false, ..self.clone() };
        let policy = Some(design(runtime, &without, drives)?.policy);
        let with = CreateOptions { checksums: true, policy, ..without };
        Ok(design(runtime, &with, drives).map(|_| ()))
    }
}

/// Properties of an array before it is created (see [`crate::array::Array::design`]).
#[derive(Clone, Debug)]
pub struct Design {
    /// Geometry of the array.
    pub geometry: Geometry,
    /// How partial stripes are protected.
    pub policy: Policy,
    /// Blocks of a group, if members' zones are written by appends; otherwise 0.
    pub group_blocks: u32,
    /// Number of zones of a drive that are used as one.
    pub aggregate: u32,
    /// Blocks of all members together that hold parity when every zone is full.
    pub parity_blocks: u64,
    /// Blocks of all members together in zones for metadata.
    pub metadata_blocks: u64,
    /// Blocks of all members together in spare zones.
    pub spare_blocks: u64,
}

/// As [`crate::array::Array::design`].
pub fn design(runtime: &Runtime, options: &CreateOptions, drives: &[Drive]) -> Result<Design, ArrayError> {
    let Draft { superblock, geometry, members } = draft(runtime, options, drives, ArrayOptions::default())?;
    let capacities = members.iter().map(|member| member.device.geometry().zone_capacity_blocks);
    let zones = members.iter().map(|member| member.device.geometry().zones).min().unwrap_or(0);
    let spare = zones - META_ZONES - geometry.zones;
    Ok(Design {
        spare_blocks: capacities.clone().map(|capacity| capacity * spare as u64).sum(),
        policy: superblock.policy,
        group_blocks: superblock.group_blocks,
        aggregate: superblock.aggregate,
        parity_blocks: superblock.parities as u64
            * superblock.layout().rows
            * superblock.layout().chunk_blocks
            * geometry.zones as u64,
        metadata_blocks: capacities.map(|capacity| capacity * META_ZONES as u64).sum(),
        geometry,
    })
}

/// As [`crate::array::Array::create`].
pub async fn create(
    runtime: &Runtime,
    options: &CreateOptions,
    drives: Vec<Drive>,
    behaviour: ArrayOptions,
) -> Result<Rc<Raid>, ArrayError> {
    let options = &with_spares(runtime, options, &drives, behaviour).await?;
    let Draft { mut superblock, geometry, members } = draft(runtime, options, &drives, behaviour)?;
    superblock.runner = Uuid(runtime.host().id);
    let records = without_worn(&superblock, &members).await?;
    let zone_records = ZoneRecords::new(records, Vec::new(), BadBlockMap::default(), Generations::default());
    let raid = Raid::new(runtime, superblock, geometry, zone_records, 1, behaviour);
    for (member, (drive, Drive { name, device })) in drives.into_iter().zip(members).enumerate() {
        let power_epoch = device.power_epoch();
        let wiped = wipe_for_member(&*drive.device, &*device).await;
        wiped.map_err(|error| BadDrive::new(&name, DriveFault::Reset(error)))?;
        check_forgotten(runtime, &drive).await?;
        // The first checkpoint goes to the other zone, which is zone 0.
        let log =
            raid.new_log(member, drive.device, (device, BTreeMap::new()), (1, 0), LiveRecords::default());
        raid.members.put(member, name.clone(), log.clone(), power_epoch);
        for zone in worn_zones(&*log.device).await.into_iter().filter(|zone| *zone >= META_ZONES) {
            if raid.zone_records.lost(ZoneIndex(zone - META_ZONES)) & (1 << member) == 0
                && let Some(spare) = log.device.find_free().await
            {
                log.device.place(ZoneIndex(zone), spare.zone);
            }
        }
        let written = log.checkpoint(&*raid, true).await;
        written.map_err(|error| BadDrive::new(&name, DriveFault::Unwritable(error)))?;
    }
    run::start_logs(&raid);
    end_making(&raid).await?;
    raid.may_clear.set(true);
    raid.runtime.spawn(run::keep_membership(raid.clone()));
    Ok(raid)
}

/// Worn zones of a device.
pub async fn worn_zones(device: &dyn ZonedDevice) -> Vec<u32> {
    let count = device.geometry().zones;
    let report = device.submit(Command::Report { first: ZoneIndex(0), count }).await;
    let worn = report.zones.iter().filter(|info| is_worn(info.state));
    worn.map(|info| info.zone.0).collect()
}

/// The options with enough spare zones for the drive with most worn ones, if the number is not chosen: see
/// [`crate::array::Array::spares_for`].
pub async fn with_spares(
    runtime: &Runtime,
    options: &CreateOptions,
    drives: &[Drive],
    behaviour: ArrayOptions,
) -> Result<CreateOptions, ArrayError> {
    let mut options = options.clone();
    if options.spare_zones.is_none() {
        let Draft { superblock, members, .. } = draft(runtime, &options, drives, behaviour)?;
        let mut most = 0;
        for member in &members {
            most = most.max(worn_zones(&*member.device).await.len() as u32);
        }
        let zones = members.iter().map(|member| member.device.geometry().zones).min().unwrap_or(0);
        let spare = zones.saturating_sub(META_ZONES + superblock.zones);
        options.spare_zones = (most > spare).then_some(most);
    }
    Ok(options)
}

/// The records of the zones of a new array: a worn part without a spare zone counts as lost. Refuses if a zone lacks
/// more parts than there are parities.
async fn without_worn(superblock: &Superblock, members: &[Drive]) -> Result<Vec<ZoneRecord>, ArrayError> {
    let mut records = vec![ZoneRecord::default(); superblock.zones as usize];
    for (member, drive) in members.iter().enumerate() {
        let (shown, zones) = (META_ZONES + superblock.zones, drive.device.geometry().zones);
        let worn = worn_zones(&*drive.device).await;
        let spare = (shown..zones).filter(|zone| !worn.contains(zone)).count();
        // A worn metadata zone takes one of the last spare zones first.
        let logs = worn.iter().filter(|zone| **zone < META_ZONES).count();
        let parts = worn.iter().filter(|zone| (META_ZONES..shown).contains(*zone));
        for zone in parts.skip(spare.saturating_sub(logs)) {
            records[(zone - META_ZONES) as usize].lost |= 1 << member;
        }
    }
    match records.iter().position(|record| record.lost.count_ones() > superblock.parities) {
        Some(zone) => {
            let drives = records[zone].lost.count_ones() as usize;
            Err(NoDesign::Worn { zone: zone as u32, drives }.into())
        }
        None => Ok(records),
    }
}

/// Refuses a drive that still has the log of an array after it has been emptied: its metadata zone cannot be written
/// any more.
pub async fn check_forgotten(runtime: &Runtime, drive: &Drive) -> Result<(), BadDrive> {
    match find_log(runtime, drive).await {
        Err(reason) if !reason.is_intact() => Ok(()),
        _ => Err(BadDrive::new(&drive.name, DriveFault::HoldsLog)),
    }
}

/// A new array before anything is written.
struct Draft {
    superblock: Superblock,
    geometry: Geometry,
    /// The drives as the array uses them.
    members: Vec<Drive>,
}

fn draft(
    runtime: &Runtime,
    options: &CreateOptions,
    drives: &[Drive],
    behaviour: ArrayOptions,
) -> Result<Draft, ArrayError> {
    let geometries = || drives.iter().map(|drive| drive.device.geometry());
    let have_room = geometries().all(|geometry| geometry.oob_bytes as usize >= SUMMED_OOB_BYTES);
    let in_blocks = options.checksums && options.group_blocks == 0 && !have_room;
    let policy = match options.policy {
        _ if options.group_blocks > 0 => Policy::Log,
        Some(policy) => policy,
        None if options.parities == 0 => Policy::Log,
        None => Policy::best_for(geometries()),
    };
    let aggregate = aggregate_for(policy, options.parities, options.chunk_blocks, geometries());
    let uuid = |member: usize| member_uuid(Uuid(options.uuid), member, 1);
    let groups = if in_blocks { options.checksum_group_blocks } else { 0 };
    let order = |member: usize| match behaviour.log_step >= LogStep::Unsequenced && !in_blocks {
        true => Order::Any,
        false => Order::of(policy, (options.group_blocks, groups), options.checksums, uuid(member)),
    };
    if options.checksums && options.group_blocks > 0 && (options.group_blocks == 1 || !have_room) {
        return Err(NoDesign::ChecksumsOfAppends.into());
    }
    if in_blocks && policy == Policy::InPlace {
        return Err(NoDesign::ChecksumsInBlocks { policy: policy.name() }.into());
    }
    for drive in drives {
        check_appends(drive, options.group_blocks as u64, options.checksums)?;
    }
    let prepared = |(member, drive): (usize, &Drive)| {
        let device = prepare(runtime, drive.device.clone(), order(member), aggregate)?;
        Some(Drive { name: drive.name.clone(), device })
    };
    let members: Vec<Drive> = drives.iter().enumerate().filter_map(prepared).collect();
    if in_blocks && (groups == 0 || members.len() < drives.len()) {
        return Err(NoDesign::ChecksumGroups { blocks: options.checksum_group_blocks }.into());
    }
    let mut superblock = plan(options, (policy, aggregate, groups), &members)?;
    // Model, serial number and size of the drive itself, not of the device that adapts it.
    for (member, drive) in superblock.members.iter_mut().zip(drives) {
        member.drive_id = kept_drive_id(&*drive.device);
    }
    let geometry = array_geometry(&superblock, geometries().any(|geometry| geometry.volatile_cache));
    Ok(Draft { superblock, geometry, members })
}

/// The superblock of a new array; refuses impossible designs.
fn plan(
    options: &CreateOptions,
    (policy, aggregate, checksum_group_blocks): (Policy, u32, u32),
    drives: &[Drive],
) -> Result<Superblock, ArrayError> {
    if let Some(wrong) = wrong_with_name(&options.name) {
        return Err(ArrayError::Name(wrong));
    }
    let parities = options.parities;
    if parities > MAX_PARITIES {
        return Err(NoDesign::Parities(parities).into());
    }
    if !members_of(parities).contains(&(drives.len() as u64)) {
        return Err(NoDesign::Drives { parities, drives: drives.len() }.into());
    }
    let chunk = options.chunk_blocks;
    if !chunk.is_power_of_two() || !CHUNK_BLOCKS.contains(&chunk) {
        return Err(NoDesign::Chunk { blocks: chunk }.into());
    }
    if parities == 0 && policy != Policy::Log {
        return Err(NoDesign::PolicyOfSingle { policy: policy.name() }.into());
    }
    let distance = match policy.uses_zrwa() {
        true => distance_in_zrwa(chunk, policy.rows_in_zrwa(parities), drives)?,
        // The distance is in stripes, each with a chunk of every member.
        false if options.group_blocks > 1 => (APPENDED_BLOCKS / chunk).max(log::IN_FLIGHT_STRIPES),
        false => log::IN_FLIGHT_STRIPES,
    };
    let geometries = || drives.iter().map(|d| d.device.geometry());
    let capacity = geometries().map(|g| g.zone_capacity_blocks).min().unwrap_or(0);
    let count = drives.len() as u64;
    let stripe = chunk * (count - parities as u64);
    let rows = options.zone_size_blocks.map_or(u64::MAX, |size| size / stripe).min(capacity / chunk);
    let zones = geometries().map(|g| g.zones).min().unwrap_or(0).saturating_sub(META_ZONES);
    let spare = options.spare_zones.unwrap_or(zones / ZONES_A_SPARE);
    if spare > 0 && spare >= zones {
        return Err(NoDesign::Spares { spare, zones }.into());
    }
    let zones = zones - spare;
    if rows == 0 || zones == 0 {
        return Err(NoDesign::Zones { chunk_blocks: chunk, stripe_blocks: stripe }.into());
    }
    let capacity = rows * stripe;
    // Two active zones are reserved: the metadata zone that is being written, and a full zone under repair. With checksum
    // blocks a third one: an empty zone that is being finished.
    let reserved = if checksum_group_blocks > 0 { 3 } else { 2 };
    let active =
        geometries().map(|g| active_zones(g, policy)).min().unwrap_or(0).saturating_sub(reserved).min(zones);
    if active == 0 {
        return Err(NoDesign::OpenZones.into());
    }
    let array = Uuid(options.uuid);
    let marks_have_sums = options.checksums && checksum_group_blocks == 0 && options.group_blocks == 0;
    let mut superblock = Superblock {
        compatible: 0,
        read_only_compatible: 0,
        incompatible: (if options.group_blocks > 0 { GROUPS } else { 0 })
            | (if parities == 0 { SINGLE } else { 0 })
            | (if marks_have_sums && policy == Policy::Zrwa { GENERATIONS } else { 0 })
            | (if policy == Policy::Zrwa { NOTES | CELLS } else { 0 })
            | match options.checksums {
                false => 0,
                _ if options.group_blocks > 0 => GROUP_CHECKSUMS,
                _ if marks_have_sums => CHECKSUMS,
                _ if policy.uses_zrwa() => ZRWA_CHECKSUM_BLOCKS,
                _ => CHECKSUM_BLOCKS,
            },
        array,
        name: options.name.clone(),
        event: 1,
        floor: 1,
        chunk_blocks: chunk as u32,
        rows,
        distance: distance.min(most_distance(policy, parities, rows)) as u32,
        zone_size_blocks: options.zone_size_blocks.unwrap_or(capacity.next_power_of_two()),
        zones,
        max_active: active,
        log_blocks: 0,
        assembly: 1,
        policy,
        aggregate,
        parities: parities as u32,
        group_blocks: options.group_blocks,
        checksum_group_blocks,
        host: Uuid(options.host),
        autostart: options.autostart,
        stage: Stage::Making,
        runner: Uuid::default(),
        error_limit: ERROR_LIMIT,
        members: (0..drives.len())
            .map(|member| SuperblockMember::new(member_uuid(array, member, 1), 1, DriveId::default()))
            .collect(),
        // Id of the first assembly: the array's UUID is as random as any id.
        lineage: Lineage::new(array),
    };
    // Partial parity of all active zones has to fit in a log; in half of it, if the policy writes much to logs.
    let share = if policy.writes_much_to_logs() { 2 } else { 1 };
    let room = geometries().map(|g| log_blocks(g, policy)).min().unwrap_or(0) / share;
    while checkpoint_blocks(&superblock) > room && superblock.max_active > 1 {
        superblock.max_active -= 1;
    }
    // Or room for relocated blocks: as many as a member's part of a zone has.
    let relocated = if policy.writes_much_to_logs() { rows * chunk } else { 0 };
    let log_blocks = checkpoint_blocks(&superblock).max(relocated);
    superblock.log_blocks = log_blocks.min(u32::MAX as u64) as u32;
    superblock.check().map_err(NoDesign::Absurd)?;
    for drive in drives {
        check_drive(&drive.name, &*drive.device, &superblock)?;
    }
    Ok(superblock)
}

/// Rows that partial parity can be ahead of its stripe in the drives' ZRWA.
fn distance_in_zrwa(chunk: u64, rows: u64, drives: &[Drive]) -> Result<u64, NoDesign> {
    let mut zrwa = u64::MAX;
    for drive in drives {
        let Some(found) = drive.device.geometry().zrwa else {
            return Err(NoDesign::NoZrwa { drive: drive.name.clone() });
        };
        zrwa = zrwa.min(found.size_blocks);
    }
    match zrwa / chunk / rows {
        0 => Err(NoDesign::ChunkForZrwa { blocks: chunk, zrwa_blocks: zrwa, chunks: rows }),
        distance => Ok(distance),
    }
}

/// Most rows that partial parity can be ahead of its stripe in zones with `rows` rows. With the policy `zrwa` the log blocks
/// of tails are as many times as far ahead as there are parities. As long as no write pointer has moved they have to lie in
/// the zone: they show that the drives have lost its ZRWAs.
fn most_distance(policy: Policy, parities: usize, rows: u64) -> u64 {
    match policy {
        Policy::Zrwa => (rows / (parities as u64 + 1)).max(1),
        Policy::InPlace | Policy::Log => rows,
    }
}

/// Zones that a drive can have active at once for an array: the smallest of its limits.
fn active_zones(geometry: &Geometry, policy: Policy) -> u32 {
    let limited = |limit: u32| if limit == 0 { u32::MAX } else { limit };
    let zrwas = match policy.uses_zrwa() {
        true => geometry.zrwa.map_or(0, |zrwa| zrwa.max_zones),
        false => u32::MAX,
    };
    limited(geometry.max_open).min(limited(geometry.max_active)).min(zrwas)
}

/// Number of zones of the drives that are used as one: more than 1 if a ZRWA does not hold a chunk of data and its
/// slots. The ZRWA of an aggregate holds two of each, so that write pointers can be held back (ZRAID §4.4, §6.5).
fn aggregate_for<'a>(
    policy: Policy,
    parities: usize,
    chunk_blocks: u64,
    drives: impl Iterator<Item = &'a Geometry> + Clone,
) -> u32 {
    let holds = |chunks: u64, aggregate: u32| {
        drives.clone().all(|drive| {
            let zrwa = AggregateDevice::geometry_of(drive, aggregate).and_then(|geometry| geometry.zrwa);
            zrwa.is_some_and(|zrwa| zrwa.size_blocks >= chunks * chunk_blocks)
        })
    };
    let rows = policy.rows_in_zrwa(parities);
    let too_small = |drive: &Geometry| drive.zrwa.is_some_and(|zrwa| zrwa.size_blocks < rows * chunk_blocks);
    if !policy.uses_zrwa() || !drives.clone().any(too_small) {
        return 1;
    }
    AGGREGATES.into_iter().find(|aggregate| holds(2 * rows, *aggregate)).unwrap_or(1)
}

/// Geometry of the array as the host sees it, with `volatile` if a member may lose completed writes in a power cut.
pub fn array_geometry(superblock: &Superblock, volatile: bool) -> Geometry {
    Geometry {
        zones: superblock.zones,
        zone_size_blocks: superblock.zone_size_blocks,
        zone_capacity_blocks: superblock.layout().capacity_blocks(),
        max_open: superblock.max_active,
        max_active: superblock.max_active,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 4096,
        max_append_blocks: 4096,
        // With other policies a write is durable only when write pointers or a log show it.
        volatile_cache: volatile || !superblock.policy.is_safe_when_complete(),
    }
}

/// Checks that the zones of a drive can be written by appends, in groups of `group_blocks` blocks; 0 for no appends.
pub fn check_appends(drive: &Drive, group_blocks: u64, checksums: bool) -> Result<(), BadDrive> {
    let (geometry, need) = (drive.device.geometry(), mark_bytes(checksums));
    let lack = match group_blocks {
        0 | 1 => return Ok(()),
        _ if geometry.max_append_blocks == 0 => Disqualification::Append,
        _ if (geometry.oob_bytes as usize) < need => Disqualification::OobBytes {
            have: geometry.oob_bytes,
            need: need as u32,
            purpose: if checksums { "the policy 'append' with checksums" } else { "the policy 'append'" },
        },
        _ => return Ok(()),
    };
    Err(BadDrive::new(&drive.name, lack))
}

/// Checks that a drive can hold its part of an array.
pub fn check_drive(name: &str, device: &dyn ZonedDevice, superblock: &Superblock) -> Result<(), BadDrive> {
    check_geometry(device.geometry(), superblock).map_err(|lack| BadDrive::new(name, lack))
}

fn check_geometry(geometry: &Geometry, superblock: &Superblock) -> Result<(), Disqualification> {
    let layout = superblock.layout();
    let (log, transfer) = (log_blocks(geometry, superblock.policy), geometry.max_transfer_blocks as u64);
    let sizes = [
        (Room::Zones, geometry.zone_capacity_blocks, layout.rows * layout.chunk_blocks),
        (Room::Log, log, superblock.log_blocks as u64),
        (Room::Requests, transfer, layout.chunk_blocks),
    ];
    for (what, have, need) in sizes {
        if have < need {
            return Err(Disqualification::Blocks { what, have, need });
        }
    }
    if layout.policy.uses_zrwa() {
        let Some(zrwa) = geometry.zrwa else {
            return Err(Disqualification::Zrwa);
        };
        let (have, need) = (zrwa.size_blocks, layout.window_blocks());
        if have < need {
            return Err(Disqualification::ZrwaBlocks { have, need });
        }
        // Where write pointers show how much is complete, they stop inside chunks.
        let (step_blocks, step) = layout.policy.flush_step(&layout);
        let (chunk_blocks, granularity_blocks) = (layout.chunk_blocks, zrwa.granularity_blocks);
        if !step_blocks.is_multiple_of(granularity_blocks) {
            return Err(Disqualification::Granularity { step, chunk_blocks, granularity_blocks });
        }
    }
    let (have, need) = (geometry.oob_bytes, superblock.oob_bytes() as u32);
    if have < need {
        let purpose = if superblock.has_checksums() { "a checksum" } else { "the policy 'inplace'" };
        return Err(Disqualification::OobBytes { have, need, purpose });
    }
    if geometry.zones < superblock.zones + META_ZONES {
        return Err(Disqualification::Zones { have: geometry.zones, need: superblock.zones + META_ZONES });
    }
    let need = superblock.max_active.saturating_add(2);
    let have = active_zones(geometry, superblock.policy);
    if have < need {
        return Err(Disqualification::ActiveZones { have, need });
    }
    Ok(())
}

/// Marks a new array as complete on all members. Members that have not been updated when the power fails are
/// members all the same: the floor is not above their event.
async fn end_making(raid: &Raid) -> Result<(), ArrayError> {
    let event = raid.membership.next_sequence();
    let superblock = raid.membership.change(|superblock| {
        (superblock.event, superblock.stage) = (event, Stage::Whole);
        superblock.clone()
    });
    durable::append_to(raid, raid.members.active(), Record::Superblock(Box::new(superblock)), event).await;
    raid.membership.change(|superblock| superblock.floor = event);
    let out = raid.members.out();
    if out == 0 { Ok(()) } else { Err(ArrayError::Incomplete(raid.members.notes(out))) }
}
