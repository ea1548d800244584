//! Reports on a running array: its status, its namespaces, its devices and the requests to these.

use super::{
    block::{Block, served_number},
    state::{Daemon, absolute, log, lost_in, notify},
};
use crate::{
    control::{
        pool,
        protocol::{About, NamespaceDevice, TrafficDevice, TrafficDrive, TrafficReport},
        tenants,
    },
    drive::ModelAndSerial,
    process::{
        output::{quoted, uuid},
        size::bytes,
    },
    report::{
        Division, EventReport, LostRange, NamespaceReport, PoolVolumeReport, Status, VolumeReport,
        ZoneContents, level,
    },
};
use engine::{
    array::{LostBlocks, MemberState},
    buf::BLOCK,
    device::ZonedDevice,
    volume::Volume,
    vzone::Namespace,
};
use sd_notify::NotifyState;
use std::rc::Rc;

/// The status report.
pub fn status(daemon: &Daemon) -> Status {
    let array = daemon.array.status();
    let mut status = Status::of(&array.name, &array, daemon.array.geometry());
    for member in status.members.iter_mut().filter(|member| !member.drive.is_empty()) {
        member.drive = absolute(&member.drive).display().to_string();
    }
    status.pid = Some(std::process::id());
    status.longest_turn_us = Some(daemon.reactor.turns().longest_us());
    if let Some(block) = daemon.own_block() {
        status.block_device = Some(block.path.display().to_string());
        status.link = block.link.as_ref().map(|link| link.display().to_string());
    }
    status.nbd = daemon.nbd.borrow().as_ref().map(|server| server.place().to_string());
    status.volume = daemon.volume.borrow().as_ref().map(|volume| {
        let drives = daemon.drives.borrow();
        let drives_bytes: u64 = drives.iter().map(|drive| drive.traffic.writes.bytes()).sum();
        let rebuilt_bytes = daemon.rebuilder.written_bytes();
        let report =
            VolumeReport::of(&volume.status(), drives_bytes / BLOCK as u64, rebuilt_bytes / BLOCK as u64);
        match daemon.pool.borrow().is_some() {
            // The blocks of a pool are more than it has room for; what is lost is told of its volumes.
            true => VolumeReport { size_bytes: report.usable_bytes + report.reserve_bytes, ..report },
            false => {
                VolumeReport { lost: daemon.volume_losses.borrow().of(&array.lost, (None, None)), ..report }
            }
        }
    });
    status.volumes = pool_volumes(daemon, None, &array.lost);
    status.namespaces = division(daemon, &array.lost);
    match (&status.volume, &status.namespaces) {
        (Some(_), _) => status.respect(ZoneContents::Volume),
        (None, Some(_)) => status.respect(ZoneContents::Namespaces),
        (None, None) => {}
    }
    if let Some(volume) = status.volume.as_ref().filter(|_| !status.failed_zones.is_empty()) {
        // Users do not reset the zones of a volume: the advice to do so is replaced.
        status.action = Some(match volume.failed {
            Some(_) => format!(
                "stop it and start it again, so that the volume uses other zones: zoneraid stop {}",
                quoted(&status.name)
            ),
            None => "none needed; the volume moves its data to other zones".into(),
        });
    }
    status.add_shortages();
    status.events = EventReport::lately(daemon.array.events(0));
    status.rebuild = daemon.rebuilder.progress();
    status.scrub = daemon.scrubber.report();
    if status.rebuild.is_some() && array.members.iter().all(|m| m.state != MemberState::Out) {
        status.action = None;
    }
    status.identify(&daemon.drives.borrow())
}

/// Reports on the volumes of the pool of an array that has lost `lost`, or of that on a namespace; `None` if there is no pool.
pub(super) fn pool_volumes(
    daemon: &Daemon,
    namespace: Option<&Namespace>,
    lost: &[LostBlocks],
) -> Option<Vec<PoolVolumeReport>> {
    let pool = daemon.pool_on(namespace.map(Namespace::name))?;
    let (blocks, losses) = (daemon.blocks.borrow(), daemon.volume_losses.borrow());
    let report = |volume: &Volume| {
        let number = served_number(namespace, Some(volume));
        let block = blocks.iter().find(|block| block.number() == number);
        PoolVolumeReport {
            block_device: block.map(|block| block.path.display().to_string()),
            link: block.and_then(|block| Some(block.link.as_ref()?.display().to_string())),
            lost: losses.of(lost, (namespace.map(Namespace::number), volume.slot())),
            ..pool::report(&pool, volume)
        }
    };
    Some(pool.volumes().iter().map(report).collect())
}

/// Report on the namespaces of an array that has lost `lost`; `None` if it is not divided.
pub(super) fn division(daemon: &Daemon, lost: &[LostBlocks]) -> Option<Division> {
    let divided = daemon.divided.borrow();
    let namespaces = divided.as_ref()?;
    let blocks = daemon.blocks.borrow();
    let capacity = namespaces.zone_capacity_blocks();
    let list = namespaces.list().into_iter().map(|namespace| {
        let is_of = |block: &&Rc<Block>| {
            block.namespace.as_ref().is_some_and(|shown| shown.number() == namespace.number())
        };
        let volumes = pool_volumes(daemon, Some(&namespace), lost);
        // Its volumes have block devices.
        let block = blocks.iter().find(is_of).filter(|_| volumes.is_none());
        let pool = daemon.pool_on(Some(namespace.name())).map(|pool| pool.space().clone());
        let volume = pool.or_else(|| block.and_then(|block| block.volume.clone())).map(|volume| {
            let report = VolumeReport::of(&volume.status(), 0, 0);
            match volumes.is_some() {
                true => VolumeReport { size_bytes: report.usable_bytes + report.reserve_bytes, ..report },
                false => {
                    let number = (Some(namespace.number()), None);
                    VolumeReport { lost: daemon.volume_losses.borrow().of(lost, number), ..report }
                }
            }
        });
        NamespaceReport {
            block_device: block.map(|block| block.path.display().to_string()),
            link: block.and_then(|block| Some(block.link.as_ref()?.display().to_string())),
            volume,
            volumes,
            lost: lost_in(&namespace, lost).iter().map(LostRange::of).collect(),
            ..NamespaceReport::of(&namespace.status(), capacity)
        }
    });
    Some(Division::of(namespaces.zones(), bytes(capacity), list.collect()))
}

/// Identity of the array, its daemon and its devices.
pub fn about(daemon: &Daemon) -> About {
    let status = daemon.array.status();
    let drives = status.members.iter().filter(|member| !member.drive.is_empty());
    let block = daemon.own_block();
    About {
        name: status.name.clone(),
        uuid: uuid(&status.uuid),
        pid: std::process::id(),
        block_device: block.as_ref().map(|block| block.path.clone()),
        link: block.as_ref().and_then(|block| block.link.clone()),
        namespaces: namespace_devices(daemon),
        level: level(status.parities),
        members: status.members.len() as u32,
        policy: status.policy.name_with(status.group_blocks).into(),
        aggregate: status.aggregate,
        drives: drives.map(|member| absolute(&member.drive)).collect(),
    }
}

/// The block devices of namespaces, and of the volumes of a pool.
fn namespace_devices(daemon: &Daemon) -> Vec<NamespaceDevice> {
    let blocks = daemon.blocks.borrow();
    let array = daemon.array.status().uuid;
    let shown = |block: &Rc<Block>| {
        let uuid = match (&block.namespace, &block.volume) {
            (_, Some(volume)) if volume.slot().is_some() => uuid(&volume.uuid()),
            (namespace, _) => uuid(&tenants::uuid_of(array, namespace.as_ref()?.name())),
        };
        let name = block.name()?;
        Some(NamespaceDevice { name, uuid, block_device: block.path.clone(), link: block.link.clone() })
    };
    blocks.iter().filter_map(shown).collect()
}

/// Request counters of block devices and drives.
pub(super) fn traffic_report(daemon: &Daemon) -> TrafficReport {
    let (blocks, drives, status) = (daemon.blocks.borrow(), daemon.drives.borrow(), daemon.array.status());
    let devices = blocks.iter().map(|block| TrafficDevice {
        namespace: block.name(),
        client: None,
        counted: block.traffic.counted(),
    });
    let of_nbd = daemon.nbd.borrow().as_ref().map(|server| server.counted());
    let of_nbd = of_nbd.into_iter().flat_map(|(all, clients)| {
        let clients = clients.into_iter().map(|(number, counted)| (Some(number), counted));
        let lines = [(None, all)].into_iter().chain(clients);
        lines.map(|(client, counted)| TrafficDevice { namespace: None, client, counted })
    });
    let drives = drives.iter().map(|drive| {
        let name = drive.path.display().to_string();
        let role = status.members.iter().position(|member| member.drive == name);
        TrafficDrive {
            drive: absolute(&name),
            role: role.map(|role| role as u32),
            counted: drive.traffic.counted(),
        }
    });
    TrafficReport {
        devices: devices.chain(of_nbd).collect(),
        drives: drives.collect(),
        turns: daemon.reactor.turns().counts(),
    }
}

/// Logs the members that have gone out since the last call, and sends the array's status to the service manager.
pub(super) fn publish_status(daemon: &Daemon) {
    let array = daemon.array.status();
    let members = array.members.iter();
    let before = daemon.logged_states.replace(members.map(|member| member.state).collect());
    let (was, is) = (before.len(), array.members.len());
    assert!(was == 0 || was == is, "an array of {was} members has {is}");
    for (role, member) in array.members.iter().enumerate() {
        if member.state == MemberState::Out && before.get(role) != Some(&MemberState::Out) {
            let drive = if member.drive.is_empty() { "" } else { &format!(" ({})", member.drive) };
            let why = if member.note.is_empty() { "" } else { &format!(": {}", member.note) };
            let does = if member.awaited { "waits for" } else { "runs without" };
            let drive_id = ModelAndSerial::kept(&member.drive_id).words();
            log(&format!("'{}' {does} member {role}{drive}{drive_id}{why}", array.name));
        }
    }
    let status = status(daemon);
    notify(&[NotifyState::Status(&format!("{}: {}", status.state, status.status))]);
}
