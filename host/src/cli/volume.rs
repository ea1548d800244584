//! `volume`: a block device on an array, or on a namespace of one; those of a pool are in `pool.rs`.

use super::{daemon::ask, interrupt, namespace, pool, volume_args::VolumeCommand as Verb};
use crate::{
    control::{
        name::{ArrayName, NamespaceName},
        pool::Confirmed,
        protocol::{Request, VolumeChange},
    },
    members::{Session, find_running},
    process::{
        output::{HEALTHY, Output, new_uuid, quoted, uuid},
        size::{bytes, show},
    },
    report::{Compression, MORE_ACTIVE, VolumeSet, hidden, is_there, no_start, no_volume},
};
use anyhow::{Context, Error, Result, bail, ensure};
use engine::{
    device::ZonedDevice,
    qos::Qos,
    volume::{NoVolume, PoolError, Volume, VolumeCreateOptions, VolumeError, VolumeOptions, VolumePlan},
};
use serde::Serialize;
use std::rc::Rc;

#[derive(Serialize)]
struct VolumeCreateOutput {
    array: String,
    /// UUID of the volume.
    uuid: String,
    size_bytes: u64,
    /// Capacity without compression.
    usable_bytes: u64,
    /// Zones of the array or namespace, and those of them reserved for garbage collection and for the map.
    zones: u32,
    collection_zones: u32,
    map_zones: u32,
    compression: Compression,
    /// Compression unit: most data compressed together.
    unit_bytes: u64,
    /// Logical sector size.
    sector_bytes: u32,
}

#[derive(Serialize)]
struct VolumeResizeOutput {
    array: String,
    size_bytes: u64,
    /// Capacity without compression.
    usable_bytes: u64,
    /// Whether the block device has the size; `None` without one.
    block_device_resized: Option<bool>,
}

pub fn run(output: Output, verb: Verb) -> Result<u8> {
    match verb {
        Verb::Create { array, size, compression, unit, sector_size, shares } => {
            if let Some((pool, below)) = pool::of(output, &array)? {
                let blocks =
                    size.with_context(|| format!("the size of {below} is needed: add --size SIZE"))?;
                let mut qos = Qos::default();
                shares.qos().apply(&mut qos);
                ensure!(qos.is_possible(), PoolError::FloorAboveLimit);
                let shares = (qos.into(), shares.guarantee.unwrap_or(0));
                return pool.create(output, &below, blocks, (compression, unit, sector_size), shares);
            }
            ensure!(shares.qos().is_none(), PoolError::NotInPool);
            ensure!(shares.guarantee.is_none(), PoolError::NoGuarantee);
            let (uuid, codec) = (new_uuid()?, compression.0);
            create(
                output,
                &array,
                VolumeCreateOptions {
                    uuid,
                    blocks: size,
                    sector: sector_size,
                    codec,
                    unit,
                    ..VolumeCreateOptions::default()
                },
            )
        }
        Verb::List { array } => pool::list(output, &array),
        Verb::Rename { volume, name } => pool::rename(output, &volume, &name),
        Verb::Remove { volume, yes } => pool::remove(output, &volume, yes),
        Verb::Snapshot { snapshots } => pool::snapshot(output, &snapshots),
        Verb::Clone { snapshot, name } => pool::add_clone(output, &snapshot, &name),
        Verb::Rollback { snapshot, remove_later, yes } => {
            pool::roll_back(output, &snapshot, Confirmed { yes, remove_later })
        }
        Verb::Diff { snapshot, later } => pool::diff(output, snapshot, later),
        Verb::Resize { array, size } => resize(output, &array, size),
        Verb::Set { array, compression, unit, lend, when_full, shares } => {
            let unit_bytes = unit.map(|unit| unit.bytes() as u64);
            let change = VolumeChange {
                compression,
                unit_bytes,
                lent_blocks: lend,
                when_full,
                qos: shares.qos(),
                guaranteed_blocks: shares.guarantee,
                blocks: None,
            };
            let (set, _) = set(output, &array, change)?;
            output.print(&set, |set| set_text(set, change))?;
            Ok(HEALTHY)
        }
    }
}

/// The changed settings in words.
fn set_text(set: &VolumeSet, change: VolumeChange) -> String {
    let VolumeSet { array, compression, unit_bytes, lent_bytes, when_full, .. } = set;
    let VolumeSet { limits, floors, latency_us, guaranteed_bytes, .. } = set;
    let mut text = String::new();
    if change.compression.is_some() || change.unit_bytes.is_some() {
        text += &match compression.0 {
            None => format!("new data of the volume on '{array}' is not compressed\n"),
            Some(_) => {
                let how = compression.does(*unit_bytes);
                format!("new data of the volume on '{array}' is compressed {how}\n")
            }
        };
    }
    if change.lent_blocks.is_some() {
        let lent = show(*lent_bytes);
        text += &format!(
            "{lent} of the reserve of the volume on '{array}' are lent to new blocks until it stops\n"
        );
    }
    if change.when_full.is_some() {
        text += &match when_full.0 {
            0 => format!("writes without free space on '{array}' fail at once\n"),
            seconds => format!("writes without free space on '{array}' wait for up to {seconds} seconds\n"),
        };
    }
    if change.qos.limits != [None; 2] {
        text += &match limits.is_none() {
            true => format!("reads and writes of {array} are not limited\n"),
            false => format!("reads and writes of {array} are limited to {}\n", limits.words()),
        };
    }
    if change.qos.floors != [None; 2] {
        text += &match floors.is_none() {
            true => format!("no reads and writes of {array} are guaranteed\n"),
            false => format!("{array} gets at least {} under sufficient load\n", floors.words()),
        };
    }
    if change.qos.latency_us.is_some() {
        text += &match latency_us {
            None => format!("reads and writes of {array} have no latency target\n"),
            Some(us) => format!("reads and writes of {array} have a latency target of {us} us\n"),
        };
    }
    if change.guaranteed_blocks.is_some() {
        text += &match guaranteed_bytes {
            0 => format!("no space is guaranteed to {array}\n"),
            bytes => format!("{} are guaranteed to {array} and its snapshots\n", show(*bytes)),
        };
    }
    text
}

/// Changes the volume, by the daemon if one runs the array, or else in this process; also whether it was the daemon.
fn set(output: Output, name: &ArrayName, change: VolumeChange) -> Result<(VolumeSet, bool)> {
    if let Some((pool, below)) = pool::of(output, name)? {
        return pool.set(output, &below, change);
    }
    if let Some(below) = NamespaceName::meant_by(name)
        && let Some(mut client) = find_running(&below.array)?
    {
        let request = Request::SetVolume { on: Some(below.name), volume: None, change };
        return Ok((ask(output, &mut client, &request)?, true));
    }
    let (session, called) = match namespace::meant_by(name)? {
        Some((session, below)) => (session, below.to_string()),
        None => {
            if let Some(mut client) = find_running(name)? {
                let request = Request::SetVolume { on: None, volume: None, change };
                return Ok((ask(output, &mut client, &request)?, true));
            }
            let (session, below) = namespace::session(name)?;
            let called = namespace::name_of(&session, below.as_ref());
            (session, called)
        }
    };
    ensure!(
        change.lent_blocks.is_none(),
        "the reserve can be lent only while '{called}' runs: start or serve it first"
    );
    let runtime = session.reactor.runtime();
    session.wait(async {
        let device = session.device.clone();
        let volume = Volume::is_on(device.clone()).await?;
        if !is_there(volume, "a volume", &called, &session.array.status())? {
            bail!(no_volume(&called));
        }
        let volume = Volume::open(runtime, device, VolumeOptions::default()).await;
        if let Err(VolumeError::IsPool) = volume {
            bail!("'{called}' carries a pool of volumes: use {called}/NAME");
        }
        let volume = volume.map_err(|error| no_start(&called, error))?;
        change.carry_out(&volume).await?;
        Ok((VolumeSet::of(called, &volume.status()), false))
    })?
}

fn create(output: Output, name: &ArrayName, options: VolumeCreateOptions) -> Result<u8> {
    let (session, below, added) = match (NamespaceName::meant_by(name), options.blocks) {
        (Some(below), Some(blocks)) => {
            let (session, added) = namespace::session_for_volume(&below, blocks)?;
            (session, Some(below), added)
        }
        _ => {
            let (session, below) = namespace::session(name)?;
            (session, below, None)
        }
    };
    let created = create_on(&session, name, below.as_ref(), options);
    if let (Err(error), Some(below), Some(tenants)) = (&created, &below, added) {
        // A namespace that was added for the volume must not be left without it.
        let left =
            format!("{error:#}; the namespace '{below}' that was added for it is left without a volume");
        session.wait(tenants.remove(&below.name))?.with_context(|| left)?;
    }
    print_created(output, name, below.as_ref(), created?)
}

/// Creates a volume on the device of a session: an array, or the namespace `below`.
fn create_on(
    session: &Session,
    name: &ArrayName,
    below: Option<&NamespaceName>,
    options: VolumeCreateOptions,
) -> Result<(VolumeCreateOutput, VolumePlan)> {
    let array: Rc<dyn ZonedDevice> = session.device.clone();
    let called = namespace::name_of(session, below);
    let problem = || format!("no volume can be created on '{called}'");
    let again = quoted(&name.to_string());
    interrupt::explain(move || {
        format!("an incomplete volume is completed by the same command: zoneraid volume create {again}")
    });
    let created = session.wait(Volume::create(session.reactor.runtime(), array.clone(), options))?;
    if let Err(VolumeError::Hidden { zones }) = created {
        return Err(hidden(&zones, "a volume", &called, &session.array.status()));
    }
    if let (Err(VolumeError::Design(NoVolume::FewActive { active, least })), Some(below)) = (&created, below)
    {
        bail!(pool::few_active(&below.to_string(), *active, *least));
    }
    if let Err(VolumeError::Design(NoVolume::FewActive { .. })) = &created {
        return Err(Error::from(created.err().context("there is no volume")?))
            .with_context(|| format!("{}; in zoneraid create, {MORE_ACTIVE}", problem()));
    }
    created.with_context(problem)?;
    let plan = VolumePlan::of(array.geometry(), options.blocks, options.shards).with_context(problem)?;
    let created = VolumeCreateOutput {
        array: called,
        uuid: uuid(&options.uuid),
        size_bytes: bytes(plan.blocks),
        usable_bytes: bytes(plan.usable.min(plan.blocks)),
        zones: plan.zones,
        collection_zones: plan.collection_zones,
        map_zones: plan.zones - plan.collection_zones - plan.data_zones,
        compression: Compression(options.codec),
        unit_bytes: options.unit.min(plan.unit).bytes() as u64,
        sector_bytes: options.sector as u32,
    };
    Ok((created, plan))
}

/// Prints a volume that was created on the array `name`, or on the namespace `below`, while the array does not run.
fn print_created(
    output: Output,
    name: &ArrayName,
    below: Option<&NamespaceName>,
    (created, plan): (VolumeCreateOutput, VolumePlan),
) -> Result<u8> {
    output.print(&created, |created| {
        let thin = at_once(created.usable_bytes, created.size_bytes);
        let thin = match created.compression.0 {
            Some(_) if !thin.is_empty() => format!("{thin}, or more if it compresses"),
            _ => thin,
        };
        let array = below.map_or(name, |below| &below.array);
        let start = format!("zoneraid start {}", quoted(&array.to_string()));
        let serve = match below {
            Some(_) => String::new(),
            None => {
                format!(", for NBD clients: zoneraid serve {} --nbd SOCKET", quoted(&name.to_string()))
            }
        };
        let size = show(created.size_bytes);
        let sectors = match created.sector_bytes {
            4096 => String::new(),
            bytes => format!(" in sectors of {bytes} bytes"),
        };
        let VolumeCreateOutput { zones, collection_zones, map_zones, .. } = created;
        let data_zones = plan.data_zones;
        let capacity = show(bytes(plan.capacity.into()));
        format!(
            "'{}' carries a volume of {size}{sectors}{thin}; as a block device: {start}{serve}\n\
             of {zones} zones of {capacity} {data_zones} are for data, {collection_zones} are set aside for garbage \
             collection and {map_zones} for the map; the more zones, the smaller is the share of these\n",
            created.array
        )
    })?;
    Ok(HEALTHY)
}

/// Changes the size of the volume to `blocks` blocks of 4 KiB, by the daemon if one runs the array.
fn resize(output: Output, name: &ArrayName, blocks: u64) -> Result<u8> {
    let again = quoted(&name.to_string());
    interrupt::explain(move || {
        format!(
            "the volume has its former size or the new one: run the same command again, zoneraid volume resize {again} --size \
             SIZE"
        )
    });
    let change = VolumeChange { blocks: Some(blocks), ..VolumeChange::default() };
    let (set, is_running) = set(output, name, change)?;
    let VolumeSet { array, size_bytes, usable_bytes, block_device_resized, .. } = set;
    let resized = VolumeResizeOutput { array, size_bytes, usable_bytes, block_device_resized };
    output.print(&resized, |resized| {
        let VolumeResizeOutput { array, size_bytes, usable_bytes, block_device_resized } = resized;
        let (size, thin) = (show(*size_bytes), at_once(*usable_bytes, *size_bytes));
        let then = match block_device_resized {
            Some(true) => "; so has its block device, and a larger file system can be made of it",
            Some(false) => {
                "; its block device has the former size until the array is stopped and started again, since this kernel \
                 cannot change it (from Linux 6.16 on)"
            }
            None if is_running => "; NBD clients see that when they connect again",
            None => "; a file system that is to use a larger size has to be enlarged as well",
        };
        format!("the volume on '{array}' has {size} now{thin}{then}\n")
    })?;
    Ok(HEALTHY)
}

/// Clause about the part of a volume that may be used at once; empty if that is all of it.
fn at_once(usable_bytes: u64, size_bytes: u64) -> String {
    match usable_bytes < size_bytes {
        true => format!(", of which {} may be used at once", show(usable_bytes)),
        false => String::new(),
    }
}

/// Refuses commands for zones if the array, or the namespace `below`, carries a volume, which owns them.
pub fn refuse_if_there(session: &Session, name: &ArrayName, below: Option<&NamespaceName>) -> Result<()> {
    let called = namespace::name_of(session, below);
    let volume = session.wait(Volume::is_on(session.device.clone()))??;
    let is_on = is_there(volume, "a volume", &called, &session.array.status())?;
    let (how, end) = match below {
        Some(_) => ("remove the namespace", "zoneraid namespace remove --yes"),
        None => ("destroy the array", "zoneraid destroy"),
    };
    let mend = match session.array.status().offline.is_empty() {
        true => "",
        false => "to give up its lost data, start or serve the array with --give-up; ",
    };
    ensure!(
        !is_on,
        "'{called}' carries a volume, which manages its zones itself; {mend}to remove the volume, {how}: {end} {}",
        quoted(&name.to_string())
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{RatesReport, WhenFull};
    use engine::{qos::Rates, volume::Codec};

    #[test]
    fn json_output_matches_schema() {
        let created = VolumeCreateOutput {
            array: "tank".into(),
            uuid: String::new(),
            size_bytes: 0,
            usable_bytes: 0,
            zones: 0,
            collection_zones: 0,
            map_zones: 0,
            compression: Compression(None),
            unit_bytes: 4096,
            sector_bytes: 4096,
        };
        assert_eq!(crate::process::output::undescribed(&created, "volume-create.json"), [""; 0]);
        let compression = Compression(Some(Codec::Lz4));
        let resized = VolumeResizeOutput {
            array: "tank".into(),
            size_bytes: 0,
            usable_bytes: 0,
            block_device_resized: Some(true),
        };
        assert_eq!(crate::process::output::undescribed(&resized, "volume-resize.json"), [""; 0]);
        let when_full = WhenFull(60);
        let set = VolumeSet {
            array: "tank".into(),
            compression,
            unit_bytes: 4096,
            lent_bytes: 0,
            when_full,
            limits: RatesReport::of(Rates { requests: 9, blocks: 0 }),
            floors: RatesReport::of(Rates { requests: 0, blocks: 8 }),
            latency_us: Some(500),
            guaranteed_bytes: 4096,
            size_bytes: 4096,
            usable_bytes: 4096,
            block_device_resized: None,
        };
        assert_eq!(crate::process::output::undescribed(&set, "volume-set.json"), [""; 0]);
    }
}
