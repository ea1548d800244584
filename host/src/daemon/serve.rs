//! Serves the array, its volume, the volumes of its pool or its namespaces, as block devices of the kernel or to NBD clients.

use super::{
    block::{Block, LINKS, link, served_number},
    end, open,
    state::{Daemon, NamespacePool, Phase, log},
};
use crate::{
    control::pool::volumes_with_snapshots,
    process::{
        memory_lock::lock_memory,
        output::{quoted, uuid},
        size::bytes,
    },
    reactor::Reactor,
    report::{is_there, no_volume},
    serve::{
        ack_log::{AckLog, AckLogContents},
        nbd,
        ublk::{Backing, BlockDevice, Options, Orphan, ServedNumber},
    },
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::ArrayStatus,
    device::ZonedDevice,
    volume::{Opened, Volume},
    vzone::{Namespace, Namespaces},
};
use std::{
    fs,
    future::{Future, poll_fn},
    path::Path,
    pin::pin,
    rc::Rc,
    task::Poll,
};

/// Serves the volume on the array, or all of its pool, to NBD clients at `place`. `left` is the acknowledgement log of a dead server.
pub fn serve_nbd(daemon: &Rc<Daemon>, place: &nbd::NbdAddress, left: Option<AckLogContents>) -> Result<()> {
    let status = daemon.array.status();
    let problem = || format!("it is unknown whether '{}' carries a volume or namespaces", status.name);
    let shared = async {
        let divided = Namespaces::are_on(Rc::new(daemon.array.clone())).await.with_context(problem)?;
        ensure!(
            !is_there(divided, "namespaces", &status.name, &status)?,
            "'{}' is divided into namespaces, which cannot be served to NBD clients: use zoneraid start",
            status.name
        );
        let ack_log = open::create_ack_log(daemon, &status, left.as_ref(), false).await?;
        let volume = open::open_volume(daemon, &status, &ack_log).await;
        let server = volume.and_then(|volume| {
            let called = &status.name;
            let volumes = match volume.with_context(|| no_volume(called))? {
                Opened::Volume(volume) => vec![(called.clone(), volume)],
                Opened::Pool(pool) => volumes_with_snapshots(&pool),
            };
            let server = nbd::Server::start(&daemon.reactor, volumes, place, status.read_only)?;
            ack_log.note_server(&server.place().argument())?;
            Ok(server)
        });
        // If this fails, no client has been answered, and the acknowledgement log is not needed.
        server.inspect_err(|_| ack_log.remove())
    };
    let server = daemon.reactor.wait(shared)??;
    *daemon.nbd.borrow_mut() = Some(server);
    lock_memory();
    Ok(())
}

/// Serves the array or each of its namespaces as block devices: takes over those in `found`, which a dead daemon
/// has left, and creates the missing ones.
pub fn serve_block_devices(
    daemon: &Rc<Daemon>,
    found: &[Orphan],
    left: Option<AckLogContents>,
) -> Result<()> {
    let served = daemon.reactor.wait(serve(daemon, found, left))??;
    lock_memory();
    look_after(daemon, served);
    Ok(())
}

/// Serves block devices in the background from now on.
fn look_after(daemon: &Rc<Daemon>, served: Vec<(Rc<Block>, BlockDevice)>) {
    for (block, device) in served {
        let other = daemon.blocks.borrow().iter().find(|other| other.number() == block.number()).cloned();
        let other = other.map(|other| other.path.clone());
        assert_eq!(
            other,
            None,
            "the block device that already serves the device of {}",
            block.path.display()
        );
        daemon.blocks.borrow_mut().push(block.clone());
        announce(&block.path);
        daemon.reactor.runtime().spawn(keep(daemon.clone(), block, device));
    }
    daemon.blocks.borrow_mut().sort_by_key(|block| block.number());
}

/// Creates the block device of a namespace that has none.
pub(super) async fn serve_namespace(daemon: &Rc<Daemon>, namespace: Namespace) -> Result<()> {
    let status = daemon.array.status();
    let mut served = Vec::new();
    let shown = async {
        let shown = served_by(daemon, &status, namespace, &[]).await?;
        for shown in shown {
            serve_device(daemon, &status, shown, &[], &mut served).await?;
        }
        Ok(())
    };
    match shown.await {
        Ok(()) => look_after(daemon, served),
        Err(error) => {
            take_back(served, &[]).await;
            return Err(error);
        }
    }
    Ok(())
}

/// Creates the block device of a volume of the pool of the array, or of that on a namespace, that has none.
pub(super) async fn serve_volume(daemon: &Rc<Daemon>, on: Option<&str>, volume: Volume) -> Result<()> {
    let status = daemon.array.status();
    assert!(volume.slot().is_some(), "the volume on '{}' is served beside its pool", status.name);
    let (device, namespace, ack_log): (Rc<dyn ZonedDevice>, _, _) = match on {
        Some(on) => {
            let found = daemon.pool_on_namespace(on);
            let without = || format!("'{}/{on}' carries no pool of volumes", status.name);
            let NamespacePool { namespace, ack_log, .. } = found.with_context(without)?;
            (Rc::new(namespace.clone()), Some(namespace), ack_log)
        }
        None => {
            let ack_log = daemon.ack_log.borrow().clone().context("the array has no acknowledgement log")?;
            (Rc::new(daemon.array.clone()), None, ack_log)
        }
    };
    let shown = ServedDevice { device, namespace, volume: Some(volume), log: Some((ack_log, None)) };
    let mut served = Vec::new();
    let result = serve_device(daemon, &status, shown, &[], &mut served).await;
    match result {
        Ok(()) => look_after(daemon, served),
        Err(_) => take_back(served, &[]).await,
    }
    result
}

/// Sets `stable_writes`: pages must not change while they are written, since parity is computed from them, and a
/// write that is reissued after the death of this process is compared with the data in the zone.
async fn demand_stable_writes(reactor: &Reactor, name: &str) -> Result<()> {
    let setting = Path::new("/sys/class/block").join(name).join("queue/stable_writes");
    let problem = format!("{} cannot be set", setting.display());
    // On another thread: the kernel may wait for requests that this thread serves.
    let written = reactor.offload(move || fs::write(setting, "1")).await?;
    written.context("the thread that sets it failed").and_then(|written| Ok(written?)).context(problem)
}

/// Serves all block devices. If that fails, the new ones are taken down again.
async fn serve(
    daemon: &Daemon,
    found: &[Orphan],
    left: Option<AckLogContents>,
) -> Result<Vec<(Rc<Block>, BlockDevice)>> {
    let status = daemon.array.status();
    let ack_log = open::create_ack_log(
        daemon,
        &status,
        left.as_ref(),
        found.iter().any(|orphan| orphan.number == ServedNumber::ARRAY),
    )
    .await?;
    ack_log.note_block_devices();
    let mut served = Vec::new();
    let Err(error) = serve_all(daemon, &status, found, (&ack_log, left), &mut served).await else {
        return Ok(served);
    };
    take_back(served, found).await;
    // Block devices of a dead daemon still need the acknowledgement log.
    if found.is_empty() {
        ack_log.remove();
        daemon.pools.borrow().values().for_each(|on| on.ack_log.remove());
    }
    Err(error)
}

async fn serve_all(
    daemon: &Daemon,
    status: &ArrayStatus,
    found: &[Orphan],
    (ack_log, left): (&Rc<AckLog>, Option<AckLogContents>),
    served: &mut Vec<(Rc<Block>, BlockDevice)>,
) -> Result<()> {
    let devices = served_devices(daemon, status, found, (ack_log, left)).await?;
    let is_known = |orphan: &&Orphan| devices.iter().any(|shown| shown.number() == orphan.number);
    if let Some(Orphan { id, .. }) = found.iter().find(|orphan| !is_known(orphan)) {
        bail!(
            "/dev/ublkb{id} serves a namespace or volume that '{}' no longer has: reboot, or remove it",
            status.name
        );
    }
    for shown in devices {
        let number = shown.number();
        let orphans: Vec<u32> = found.iter().filter(|o| o.number == number).map(|o| o.id).collect();
        serve_device(daemon, status, shown, &orphans, served).await?;
    }
    Ok(())
}

/// Serves one device: by the block device in `orphans`, or a new one.
async fn serve_device(
    daemon: &Daemon,
    status: &ArrayStatus,
    shown: ServedDevice,
    orphans: &[u32],
    served: &mut Vec<(Rc<Block>, BlockDevice)>,
) -> Result<()> {
    let number = shown.number();
    let options = Options { number, ..options(status) };
    let backing = shown.backing();
    let (ack_log, left) = match (shown.log, &shown.namespace) {
        (None, Some(namespace)) => {
            open::create_namespace_ack_log(daemon, namespace, !orphans.is_empty()).await?
        }
        (log, _) => log.context("the array has no acknowledgement log")?,
    };
    let device = match *orphans {
        [] => {
            let started = BlockDevice::start(&daemon.reactor, backing, &ack_log, &options).await;
            // That of the array, or of a pool, serves other block devices, too.
            let is_of_pool = shown.volume.as_ref().is_some_and(|volume| volume.slot().is_some());
            started.inspect_err(|_| {
                if !is_of_pool {
                    ack_log.remove()
                }
            })?
        }
        [id] => BlockDevice::recover(&daemon.reactor, backing, &ack_log, id, left.as_ref()).await?,
        _ => bail!("several block devices of '{}' have been left behind", status.name),
    };
    if let Some(namespace) = &shown.namespace {
        device.is_of(namespace.clone());
    }
    let name = format!("ublkb{}", device.id());
    let path = Path::new("/dev").join(&name);
    let of_pool = shown.volume.as_ref().and_then(|volume| Some((volume.name()?, volume.slot()?)));
    let of_namespace = shown.namespace.as_ref().map(|namespace| (namespace.name(), namespace.number()));
    let of_pool = of_pool.as_ref().map(|(name, slot)| (&**name, *slot));
    let below: Vec<(&str, u32)> = of_namespace.into_iter().chain(of_pool).collect();
    let link = link(Path::new(LINKS), (&status.name, &below), &uuid(&status.uuid), &path);
    let link = link.map_err(|error| log(&format!("{error:#}"))).ok();
    let is_zoned = shown.volume.is_none();
    let block = Block::new((path, link), (shown.namespace, shown.volume), (ack_log, device.traffic()));
    let block = Block { resizer: Some(device.resizer()), ..block };
    served.push((Rc::new(block), device));
    if is_zoned {
        demand_stable_writes(&daemon.reactor, &name).await?;
    }
    Ok(())
}

/// The devices to serve: the array, or the volume or those of the pool on it; or the same for each namespace.
async fn served_devices(
    daemon: &Daemon,
    status: &ArrayStatus,
    found: &[Orphan],
    (ack_log, left): (&Rc<AckLog>, Option<AckLogContents>),
) -> Result<Vec<ServedDevice>> {
    let Some(namespaces) = open::open_namespaces(daemon, status, ack_log).await? else {
        let device: Rc<dyn ZonedDevice> = Rc::new(daemon.array.clone());
        let of = |volume| ServedDevice {
            device: device.clone(),
            namespace: None,
            volume,
            log: Some((ack_log.clone(), left.clone())),
        };
        return Ok(match open::open_volume(daemon, status, ack_log).await? {
            None => vec![of(None)],
            Some(Opened::Volume(volume)) => vec![of(Some(volume))],
            Some(Opened::Pool(pool)) => {
                let volumes = pool.volumes();
                let name = &status.name;
                ensure!(
                    !volumes.is_empty(),
                    "the pool of '{name}' has no volumes: create one with zoneraid volume create {}/NAME",
                    quoted(name)
                );
                volumes.into_iter().map(|volume| of(Some(volume))).collect()
            }
        });
    };
    let mut devices = Vec::new();
    for namespace in namespaces {
        devices.extend(served_by(daemon, status, namespace, found).await?);
    }
    let name = &status.name;
    ensure!(
        !devices.is_empty(),
        "the pools on the namespaces of '{name}' have no volumes: create one with zoneraid volume create \
         {}/NAMESPACE/NAME",
        quoted(name)
    );
    Ok(devices)
}

/// A namespace, or the volume or those of the pool on it. `found` are the block devices of a dead daemon.
async fn served_by(
    daemon: &Daemon,
    status: &ArrayStatus,
    namespace: Namespace,
    found: &[Orphan],
) -> Result<Vec<ServedDevice>> {
    let number = served_number(Some(&namespace), None);
    let is_of = |other: &ServedNumber| *other == number || other.namespace == number.number;
    let other = daemon.blocks.borrow().iter().find(|other| is_of(&other.number())).cloned();
    let other = other.map(|other| other.path.clone());
    assert_eq!(other, None, "the block device that serves namespace '{}' already", namespace.name());
    let device: Rc<dyn ZonedDevice> = Rc::new(namespace.clone());
    let of = |volume, log| ServedDevice {
        device: device.clone(),
        namespace: Some(namespace.clone()),
        volume,
        log,
    };
    let called = format!("{}/{}", status.name, namespace.name());
    Ok(match open::volume_on(daemon, device.clone(), &called).await? {
        Some(Opened::Pool(pool)) => {
            let waits = found.iter().any(|orphan| is_of(&orphan.number));
            let log = open::create_namespace_ack_log(daemon, &namespace, waits).await?;
            open::note_pool(daemon, status, &namespace, &pool, &log.0);
            let volumes = pool.volumes().into_iter();
            volumes.map(|volume| of(Some(volume), Some(log.clone()))).collect()
        }
        Some(Opened::Volume(volume)) => vec![of(Some(volume), None)],
        None => vec![of(None, None)],
    })
}

/// Serves a block device until it is to be taken down, or is removed by another process.
async fn keep(daemon: Rc<Daemon>, block: Rc<Block>, device: BlockDevice) {
    let gone = {
        let mut gone = pin!(device.gone());
        let mut ordered = pin!(block.wait_for_stop());
        poll_fn(|context| match ordered.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => gone.as_mut().poll(context).map(Some),
        })
        .await
    };
    match gone {
        None => {
            *block.stopped.borrow_mut() = Some(device.stop().await);
            block.changed.open();
        }
        Some(Ok(())) => {
            device.let_go();
            end::handle_removal(&daemon, &block).await;
        }
        // The block device stays for the next daemon, which may succeed.
        Some(Err(error)) => {
            let (name, path) = (daemon.array.status().name, block.path.display());
            *daemon.failure.borrow_mut() = Some(error.context(format!("'{name}': {path} fails")));
            daemon.set_phase(Phase::Ended);
        }
    }
}

/// Makes udev process a block device and its partitions again: when they appeared the name of the array was not known,
/// and LVM only uses devices on an `add` event.
fn announce(device: &Path) {
    let directory = Path::new("/sys/class/block").join(device.file_name().unwrap_or_default());
    let entries = fs::read_dir(&directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut partitions: Vec<_> = entries.filter(|path| path.join("partition").exists()).collect();
    partitions.sort();
    for directory in [directory].into_iter().chain(partitions) {
        // Fails harmlessly without udev.
        let _ = fs::write(directory.join("uevent"), "add");
    }
}

/// Takes block devices down again, except those that were `found`.
async fn take_back(served: Vec<(Rc<Block>, BlockDevice)>, found: &[Orphan]) {
    for (block, device) in served {
        if found.iter().all(|orphan| orphan.id != device.id()) {
            if device.stop().await.is_ok() && (block.number() == ServedNumber::ARRAY || block.has_own_log()) {
                block.ack_log.remove();
            }
            block.unlink();
        }
    }
}

/// A device that is to be served to the kernel: the array, a namespace, or a volume on either.
struct ServedDevice {
    device: Rc<dyn ZonedDevice>,
    /// The namespace; `None` for the array.
    namespace: Option<Namespace>,
    /// The volume on it, which is served instead.
    volume: Option<Volume>,
    /// The acknowledgement log, with the one of a dead process; `None` if a namespace is to get its own.
    log: Option<(Rc<AckLog>, Option<AckLogContents>)>,
}

impl ServedDevice {
    /// Its number among the devices of the array.
    fn number(&self) -> ServedNumber {
        served_number(self.namespace.as_ref(), self.volume.as_ref())
    }

    fn backing(&self) -> Backing {
        match &self.volume {
            Some(volume) => Backing::Volume(volume.clone()),
            None => Backing::Zoned(self.device.clone()),
        }
    }
}

/// Properties of the block devices of an array.
fn options(status: &ArrayStatus) -> Options {
    let chunk_bytes = bytes(status.chunk_blocks);
    let (members, parities) = (status.members.len(), status.parities);
    assert!(parities < members, "an array of {members} members has {parities} parities");
    let stripe_bytes = chunk_bytes * (members - parities) as u64;
    Options {
        array: status.uuid,
        number: ServedNumber::ARRAY,
        chunk_bytes: chunk_bytes as u32,
        stripe_bytes: stripe_bytes as u32,
        read_only: status.read_only,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{MEMBERS, with_daemon},
        *,
    };

    #[test]
    fn block_device_stripe_bytes_equal_data_of_stripe() {
        for parities in [1, 2] {
            with_daemon(parities, |_, daemon| {
                let options = options(&daemon.array.status());
                let data = MEMBERS as usize - parities;
                assert_eq!(options.stripe_bytes as usize, data * options.chunk_bytes as usize);
            });
        }
    }
}
