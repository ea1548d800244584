//! A zoned device, or a volume, as a block device of the kernel: `/dev/ublkbN`.
//!
//! This is the server side of Linux's ublk protocol, on the ring that everything else here uses:
//! one system call hands in answers, drive commands and fetches together, on one thread. The
//! libraries that exist bring rings, threads and an executor of their own.
//!
//! The block device outlives the process that serves it. When the process dies, the kernel holds
//! requests back until another one takes over, and issues those again that had no answer; what had been
//! answered is known from [`crate::tails`]. A volume carries those out again (`plain.rs`); of zones it has to be
//! known how much of them is there already (`zoned.rs`, `replay.rs`).

mod abi;
mod control;
mod plain;
mod queue;
mod replay;
mod transfer;
mod zoned;

use crate::{
    bytes::Bytes,
    reactor::Reactor,
    tails::{self, Left, TailFile},
    traffic::Traffic,
};
use abi::Info;
pub use abi::Options;
use anyhow::{Context, Result, ensure};
use control::Controls;
use engine::{
    device::{Geometry, ZonedDevice},
    volume::Volume,
    vzone::Namespace,
};
use queue::{Queues, Served};
use replay::Replay;
use std::{fs::File, rc::Rc, thread::available_parallelism};
use zoned::Zoned;

/// Most queues of a block device. One thread serves them all; they keep the processors that use
/// the device from waiting for each other.
const MAX_QUEUES: u16 = 4;

/// Requests that a queue holds.
const DEPTH: u16 = 128;

const _: () = assert!(2 * MAX_QUEUES as usize * DEPTH as usize <= tails::SLOTS);

/// Bits of a tag that say which of the block devices of an array it is; the others say which array.
const FRONT_BITS: u32 = 16;

/// The tag of the block device `front` of an array, which may have several.
pub fn tag(uuid: &[u8; 16], front: u16) -> u64 {
    let value = u128::from_ne_bytes(*uuid);
    let array = value as u64 ^ (value >> 64) as u64;
    array >> FRONT_BITS << FRONT_BITS | front as u64
}

/// A block device whose process has died, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// N of `/dev/ublkbN`.
    pub id: u32,
    /// Which of the block devices of its array it is.
    pub front: u16,
}

/// The block devices of an array whose process has died, or is about to.
pub async fn find(reactor: &Reactor, uuid: &[u8; 16]) -> Result<Vec<Orphan>> {
    let found = control::find(reactor, tag(uuid, 0)).await?;
    let left = found.iter().filter(|info| info.state != abi::DEAD);
    Ok(left.map(|info| Orphan { id: info.device, front: info.tag as u16 }).collect())
}

/// What a block device shows.
pub enum Face {
    Zoned(Rc<dyn ZonedDevice>),
    Volume(Volume),
}

impl Face {
    /// What the driver has to be able to do.
    fn features(&self) -> u64 {
        match self {
            Face::Zoned(_) => abi::FEATURES | abi::ZONED,
            Face::Volume(_) => abi::FEATURES,
        }
    }

    fn params(&self, options: &Options) -> [u8; abi::PARAMS_BYTES] {
        match self {
            Face::Zoned(device) => abi::params(device.geometry(), options),
            Face::Volume(volume) => abi::plain_params(volume.blocks(), volume.sector(), options),
        }
    }

    fn served(self, reactor: &Reactor, tails: &Rc<TailFile>, replay: Replay) -> Result<Served> {
        Ok(match self {
            Face::Zoned(device) => Served::Zoned(Zoned::new(device, tails.clone(), replay)),
            Face::Volume(volume) => {
                let ring = reactor.ring()?.clone();
                Served::Volume(Box::new(Bytes::of_sectors(volume, reactor.buffers(), ring)))
            }
        })
    }
}

/// A device that the kernel has as `/dev/ublkbN`. Dropped, it is served for as long as the
/// process lives, and waits for the next process then.
pub struct BlockDevice {
    controls: Controls,
    queues: Rc<Queues>,
    id: u32,
}

impl BlockDevice {
    /// Makes a new block device.
    pub async fn start(
        reactor: &Reactor,
        face: Face,
        tails: &Rc<TailFile>,
        options: &Options,
    ) -> Result<BlockDevice> {
        if let Face::Zoned(device) = &face {
            check_geometry(device.geometry())?;
        }
        let (features, params) = (face.features(), face.params(options));
        let controls = Controls::open(reactor, features).await?;
        // What a process left that died while it started or stopped.
        for dead in control::find(reactor, options.tag).await? {
            if dead.state == abi::DEAD {
                controls.delete(dead.device).await?;
            }
        }
        let processors = available_parallelism().map_or(1, usize::from);
        let info = controls.add(MAX_QUEUES.min(processors as u16), DEPTH, options.tag, features).await?;
        let started = async {
            controls.set_params(info.device, &params).await?;
            face.served(reactor, tails, Replay::default()).and_then(|served| serve(reactor, &info, served))
        };
        let queues = match started.await {
            Ok(served) => served,
            Err(error) => {
                let _ = controls.delete(info.device).await;
                return Err(error);
            }
        };
        let this = BlockDevice { controls, queues, id: info.device };
        match this.go_live().await {
            Ok(()) => Ok(this),
            Err(error) => {
                let _ = this.stop().await;
                Err(error)
            }
        }
    }

    /// Takes over the block device `id` from a process that has died, as soon as the kernel has
    /// noticed. `left` is what that process knew, if the array is the same one, taken over.
    pub async fn recover(
        reactor: &Reactor,
        face: Face,
        tails: &Rc<TailFile>,
        id: u32,
        left: Option<&Left>,
    ) -> Result<BlockDevice> {
        let problem = || format!("/dev/ublkb{id} cannot be taken over");
        let features = face.features();
        let controls = Controls::open(reactor, features).await?;
        let info = controls.info(id).await.with_context(problem)?;
        ensure!(info.flags & abi::ZONED == features & abi::ZONED, "/dev/ublkb{id} shows something else");
        let replay = match &face {
            Face::Zoned(device) => Replay::after(&**device, left).await.with_context(problem)?,
            Face::Volume(_) => Replay::default(),
        };
        for slot in (0..tails::SLOTS).filter(|slot| !replay.has_noted(*slot)) {
            tails.end_append(slot);
        }
        controls.start_recovery(id).await?;
        let queues = serve(reactor, &info, face.served(reactor, tails, replay)?)?;
        let this = BlockDevice { controls, queues, id };
        this.settled().await?;
        this.controls.end_recovery(id).await?;
        Ok(this)
    }

    /// What it shows is this namespace, or lies in it: that says when reads and writes may go.
    pub fn is_of(&self, namespace: Namespace) {
        // Of no other one before.
        let _ = self.queues.namespace.set(namespace);
    }

    /// What is asked of it.
    pub fn traffic(&self) -> Rc<Traffic> {
        self.queues.traffic.clone()
    }

    /// N of `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits until the kernel has no use for this process any more: somebody else has removed the
    /// block device, or an error says why it cannot be served.
    pub async fn gone(&self) -> Result<()> {
        self.queues.drained().await;
        self.queues.check()
    }

    /// Lets go of a block device that somebody else has removed, who waits for that: the ring holds its file as well.
    pub fn let_go(self) {
        self.queues.detach();
    }

    /// Removes the block device. What nobody has written back by then is lost, so nobody should
    /// have it open.
    pub async fn stop(self) -> Result<()> {
        // The kernel waits for all that it has asked for.
        if let Served::Volume(volume) = &self.queues.served {
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
        self.settled().await?;
        self.controls.start(self.id).await
    }

    /// Waits until the kernel has seen all fetches: starting a device waits for them for ever.
    async fn settled(&self) -> Result<()> {
        // Whatever it says, it comes after the fetches.
        let _ = self.controls.info(self.id).await;
        self.queues.check()
    }
}

fn serve(reactor: &Reactor, info: &Info, served: Served) -> Result<Rc<Queues>> {
    // Memory that this process needs must not wait for writes through its own block device.
    // Without the privilege to say so it works as well, short of memory excepted.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let path = format!("/dev/ublkc{}", info.device);
    let channel = File::options().read(true).write(true).open(&path);
    let channel = channel.with_context(|| format!("{path} cannot be opened"))?;
    Queues::serve(reactor, channel, info, served)
}

/// Whether the kernel can have a block device whose zones are so many blocks apart.
pub fn takes_zone_size(blocks: u64) -> bool {
    blocks.is_power_of_two() && blocks <= u32::MAX as u64 / abi::SECTORS
}

/// Checks that the kernel can have a block device of this geometry.
fn check_geometry(geometry: &Geometry) -> Result<()> {
    ensure!(
        takes_zone_size(geometry.zone_size_blocks),
        "a block device needs a zone size that is a power of two below 2 TiB, this array's is {} KiB",
        geometry.zone_size_blocks * 4
    );
    ensure!(geometry.max_append_blocks > 0, "a zoned block device needs appends");
    Ok(())
}
