//! A zoned device or a volume as a block device of the kernel: `/dev/ublkbN`.
//!
//! This is the server side of Linux's ublk protocol, on the process's own ring: one system call submits answers, drive
//! commands and fetches together, on one thread. Existing libraries come with rings, threads and an executor of their
//! own.
//!
//! The block device outlives the process that serves it. When the process dies, the kernel holds requests back until
//! another process takes over, and reissues the unanswered ones; the acknowledged ones are recorded in
//! [`super::ack_log`]. A volume executes reissued requests again (`plain.rs`); for a zoned device the part that is
//! already written has to be recognized (`zoned.rs`, `replay.rs`).

mod abi;
mod control;
mod number;
mod plain;
mod queue;
mod replay;
mod transfer;
mod zoned;

use super::{
    ack_log::{self, AckLog, AckLogContents},
    bytes::Bytes,
};
use crate::reactor::{Reactor, traffic::Traffic};
use abi::Info;
pub use abi::Options;
use anyhow::{Context, Result, ensure};
use control::Controls;
use engine::{
    device::{Geometry, ZonedDevice},
    volume::Volume,
    vzone::Namespace,
};
pub use number::ServedNumber;
use number::{number_of, tag};
use queue::{Queues, UblkBackend};
use replay::Replay;
use std::{fs::File, rc::Rc, thread::available_parallelism};
use zoned::ZonedBackend;

/// Most queues of a block device. One thread serves them all; with several, the processors that use the device do not
/// contend for one queue.
const MAX_QUEUES: u16 = 4;

/// Requests per queue.
const DEPTH: u16 = 128;

// The other half of the slots is for inherited appends.
const _: () = assert!(2 * MAX_QUEUES as usize * DEPTH as usize <= ack_log::SLOTS);

/// A block device that has lost its server process, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// N of `/dev/ublkbN`.
    pub id: u32,
    /// Number of the block device within its array.
    pub number: ServedNumber,
}

/// Block devices of an array that have lost their server process, or are about to.
pub async fn find(reactor: &Reactor, uuid: &[u8; 16]) -> Result<Vec<Orphan>> {
    let found = control::find(reactor, |tag| number_of(uuid, tag).is_some()).await?;
    let left = found.iter().filter(|info| info.state != abi::DEAD);
    let orphan = |info: &Info| Some(Orphan { id: info.device, number: number_of(uuid, info.tag)? });
    Ok(left.filter_map(orphan).collect())
}

/// The device behind a block device.
pub enum Backing {
    Zoned(Rc<dyn ZonedDevice>),
    Volume(Volume),
}

impl Backing {
    /// Features that the ublk driver must support.
    fn features(&self) -> u64 {
        match self {
            Backing::Zoned(_) => abi::FEATURES | abi::ZONED,
            Backing::Volume(_) => abi::FEATURES,
        }
    }

    fn params(&self, options: &Options) -> [u8; abi::PARAMS_BYTES] {
        match self {
            Backing::Zoned(device) => abi::params(device.geometry(), options),
            Backing::Volume(volume) => abi::plain_params(volume.blocks(), volume.sector(), options),
        }
    }

    fn into_backend(self, reactor: &Reactor, ack_log: &Rc<AckLog>, replay: Replay) -> Result<UblkBackend> {
        Ok(match self {
            Backing::Zoned(device) => {
                UblkBackend::Zoned(Box::new(ZonedBackend::new(device, ack_log.clone(), replay)))
            }
            Backing::Volume(volume) => {
                let ring = reactor.ring()?.clone();
                UblkBackend::Volume(Box::new(Bytes::of_sectors(volume, reactor.buffers(), ring)))
            }
        })
    }
}

/// A running `/dev/ublkbN`. If dropped, it is served until the process ends, and then waits for the next process.
pub struct BlockDevice {
    controls: Rc<Controls>,
    queues: Rc<Queues>,
    id: u32,
}

/// Changes the size of a running block device.
pub struct Resizer {
    controls: Rc<Controls>,
    id: u32,
}

impl Resizer {
    /// Gives the block device a size of so many blocks. `false` if this kernel does not support that, before Linux 6.16:
    /// it keeps its size then until it is created again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn resize(&self, blocks: u64) -> Result<bool> {
        self.controls.update_size(self.id, blocks).await
    }
}

impl BlockDevice {
    /// Creates a block device.
    ///
    /// # Errors
    /// The geometry is unsuitable, or the kernel refuses.
    pub async fn start(
        reactor: &Reactor,
        backing: Backing,
        ack_log: &Rc<AckLog>,
        options: &Options,
    ) -> Result<BlockDevice> {
        if let Backing::Zoned(device) = &backing {
            check_geometry(device.geometry())?;
        }
        let (features, params) = (backing.features(), backing.params(options));
        let controls = Controls::open(reactor, features).await?;
        // Remains of a process that died while it started or stopped a device.
        let is_of_array = |tag| number_of(&options.array, tag).is_some();
        for dead in control::find(reactor, is_of_array).await? {
            if dead.state == abi::DEAD {
                controls.delete(dead.device).await?;
            }
        }
        let processors = available_parallelism().map_or(1, usize::from);
        let info = controls
            .add(MAX_QUEUES.min(processors as u16), DEPTH, tag(&options.array, options.number), features)
            .await?;
        let started = async {
            controls.set_params(info.device, &params).await?;
            serve(reactor, &info, backing.into_backend(reactor, ack_log, Replay::default())?)
        };
        let queues = match started.await {
            Ok(served) => served,
            Err(error) => {
                let _ = controls.delete(info.device).await;
                return Err(error);
            }
        };
        let this = BlockDevice { controls: Rc::new(controls), queues, id: info.device };
        match this.go_live().await {
            Ok(()) => Ok(this),
            Err(error) => {
                let _ = this.stop().await;
                Err(error)
            }
        }
    }

    /// Takes over block device `id` from a dead process, as soon as the kernel has noticed its death. `left` is the
    /// acknowledgement log of that process, if this assembly of the array continues at the ends in it.
    pub async fn recover(
        reactor: &Reactor,
        backing: Backing,
        ack_log: &Rc<AckLog>,
        id: u32,
        left: Option<&AckLogContents>,
    ) -> Result<BlockDevice> {
        let problem = || format!("/dev/ublkb{id} cannot be taken over");
        let features = backing.features();
        let controls = Controls::open(reactor, features).await?;
        let info = controls.info(id).await.with_context(problem)?;
        ensure!(
            info.flags & abi::ZONED == features & abi::ZONED,
            "/dev/ublkb{id} is a device of another type (zoned or not)"
        );
        let blocks = match &backing {
            Backing::Zoned(_) => None,
            Backing::Volume(volume) => Some(volume.blocks()),
        };
        let replay = match &backing {
            Backing::Zoned(device) => Replay::after(&**device, left).await.with_context(problem)?,
            Backing::Volume(_) => Replay::default(),
        };
        for slot in (0..ack_log::SLOTS).filter(|slot| !replay.has_noted(*slot)) {
            ack_log.end_append(slot);
        }
        controls.start_recovery(id).await?;
        let queues = serve(reactor, &info, backing.into_backend(reactor, ack_log, replay)?)?;
        let this = BlockDevice { controls: Rc::new(controls), queues, id };
        this.wait_for_fetches().await?;
        this.controls.end_recovery(id).await?;
        if let Some(blocks) = blocks {
            // The other process may have died between the change of the volume and that of the block device. With its
            // former size the device can be used.
            let _ = this.resizer().resize(blocks).await;
        }
        Ok(this)
    }

    /// Sets the namespace that admits reads and writes: the one that is served, or that carries the served volume.
    pub fn is_of(&self, namespace: Namespace) {
        // It is set once only.
        let _ = self.queues.namespace.set(namespace);
    }

    /// Counters of requests.
    pub fn traffic(&self) -> Rc<Traffic> {
        self.queues.traffic.clone()
    }

    /// Changes its size; it must not have been stopped.
    pub fn resizer(&self) -> Resizer {
        Resizer { controls: self.controls.clone(), id: self.id }
    }

    /// N of `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits until another process has removed the block device.
    ///
    /// # Errors
    /// The kernel refuses this process as the server.
    pub async fn gone(&self) -> Result<()> {
        self.queues.drained().await;
        self.queues.check()
    }

    /// Releases a block device that another process has removed. That process waits until the device file is closed,
    /// which the ring holds open as well.
    pub fn let_go(self) {
        self.queues.detach();
    }

    /// Removes the block device. It should not be open: data that its users have not written back by then is lost.
    pub async fn stop(self) -> Result<()> {
        // The kernel waits for the answers to all requests, also of those that wait for free space.
        if let UblkBackend::Volume(volume) = &self.queues.served {
            volume.end_waiting();
        }
        self.controls.stop(self.id).await?;
        self.queues.drained().await;
        self.queues.detach();
        // The last reference, and with it the device file.
        drop(self.queues);
        self.controls.delete(self.id).await
    }

    async fn go_live(&self) -> Result<()> {
        self.wait_for_fetches().await?;
        self.controls.start(self.id).await
    }

    /// Waits until the kernel has received all fetches: starting the device would wait for missing ones for ever.
    async fn wait_for_fetches(&self) -> Result<()> {
        // The driver processes this command after the fetches; its result does not matter.
        let _ = self.controls.info(self.id).await;
        self.queues.check()
    }
}

fn serve(reactor: &Reactor, info: &Info, served: UblkBackend) -> Result<Rc<Queues>> {
    // Memory allocations of this process must not wait for writeback to its own block device. Without the privilege for
    // this setting the server still works, except under memory pressure.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let path = format!("/dev/ublkc{}", info.device);
    let channel = File::options().read(true).write(true).open(&path);
    let channel = channel.with_context(|| format!("{path} cannot be opened"))?;
    Queues::serve(reactor, channel, info, served)
}

/// Whether the kernel supports a block device with zones of this size.
pub fn takes_zone_size(blocks: u64) -> bool {
    blocks.is_power_of_two() && blocks <= u32::MAX as u64 / abi::SECTORS
}

/// Checks that the kernel supports a block device of this geometry.
fn check_geometry(geometry: &Geometry) -> Result<()> {
    ensure!(
        takes_zone_size(geometry.zone_size_blocks),
        "a block device needs a zone size that is a power of two below 2 TiB, this array's is {} KiB",
        geometry.zone_size_blocks * 4
    );
    ensure!(geometry.max_append_blocks > 0, "a zoned block device needs appends");
    Ok(())
}
