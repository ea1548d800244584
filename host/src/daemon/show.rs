//! The array, or the volume that it carries, as a block device of the kernel or for NBD clients: shown, served,
//! and taken down at the end.
//!
//! Whether an array carries a volume is asked of its zones, where the volume has its head: nothing of the array
//! knows of volumes, nor does a volume of arrays.

use super::{
    block::{Block, LINKS, lasting_users, link},
    state::{Daemon, Phase, holds_back, log},
};
use crate::{
    nbd::{self, wire::Export},
    output::uuid,
    report::{bytes, no_volume},
    run,
    tails::{Left, Noting, TailFile},
    ublk::{self, BlockDevice, Face, Options},
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    adapt::overlay::Overlay,
    array::ArrayStatus,
    device::{Command, ZonedDevice},
    runtime::Gate,
    volume::{Behaviour, Volume},
    zone::ZoneIndex,
};
use rustix::mm::MlockAllFlags;
use std::{
    cell::{Cell, RefCell},
    fs,
    future::{Future, poll_fn},
    path::Path,
    pin::pin,
    rc::Rc,
    task::Poll,
};

impl Daemon {
    /// Serves the volume on the array to NBD clients at `place`. `left` is what a process knew that died doing so.
    pub fn share(self: &Rc<Self>, place: &nbd::Place, left: Option<Left>) -> Result<()> {
        let status = self.array.status();
        let shared = async {
            let tails = self.note_tails(&status, left.as_ref(), false).await?;
            let volume = self.open_volume(&status, &tails).await;
            let export = |volume: &Volume| Export {
                name: status.name.clone(),
                size_bytes: bytes(volume.blocks()),
                read_only: status.read_only,
            };
            let server = volume.and_then(|volume| {
                let called = &status.name;
                let volume = volume.with_context(|| no_volume(called))?;
                nbd::Server::start(&self.reactor, volume.clone(), place, export(&volume))
            });
            // Otherwise there is nobody who has been answered anything.
            anyhow::Ok((server.inspect_err(|_| tails.remove())?, tails))
        };
        let (server, tails) = self.reactor.wait(shared)??;
        *self.nbd.borrow_mut() = Some((server, tails));
        lock_memory();
        Ok(())
    }

    /// Opens the volume that the array carries, if it does. What it answers is noted in `tails`.
    async fn open_volume(&self, status: &ArrayStatus, tails: &Rc<TailFile>) -> Result<Option<Volume>> {
        let array: Rc<dyn ZonedDevice> = Rc::new(self.array.clone());
        let runtime = self.reactor.runtime();
        let problem = || format!("the volume on '{}' cannot be started", status.name);
        if !Volume::is_on(array.clone()).await.with_context(problem)? {
            return Ok(None);
        }
        let device: Rc<dyn ZonedDevice> = match status.read_only {
            // What a crash has left behind is recovered in memory.
            true => Rc::new(Overlay::over(runtime, array).await),
            false => Rc::new(Noting::of(runtime, array, tails.clone())),
        };
        let volume = Volume::open(runtime, device, Behaviour::default()).await.with_context(problem)?;
        *self.volume.borrow_mut() = Some(volume.clone());
        Ok(Some(volume))
    }

    /// Shows the array to the kernel: takes over the block device in `found`, which an earlier daemon
    /// has left, or makes a new one.
    pub fn show(self: &Rc<Self>, found: &[u32], left: Option<Left>) -> Result<()> {
        let status = self.array.status();
        let device = self.reactor.wait(self.serve(&status, found, left))??;
        let name = format!("ublkb{}", device.id());
        let path = Path::new("/dev").join(&name);
        if self.volume.borrow().is_none() {
            self.demand_stable_writes(&name)?;
        }
        let id = uuid(&status.uuid);
        let link =
            link(Path::new(LINKS), &status.name, &id, &path).map_err(|error| log(&format!("{error:#}"))).ok();
        lock_memory();
        let block = Block {
            path,
            link,
            stop: Cell::new(false),
            stopped: RefCell::new(None),
            changed: Gate::default(),
        };
        let block = Rc::new(block);
        *self.block.borrow_mut() = Some(block.clone());
        // Has udev ask again for the name, which nobody knew when the device appeared.
        let _ = fs::write(Path::new("/sys/class/block").join(name).join("uevent"), "change");
        self.reactor.runtime().spawn(self.clone().keep(block, device));
        Ok(())
    }

    /// Pages must not change while they are written: parity is made of them, and a write that comes
    /// again after this process has died is compared with what is there.
    fn demand_stable_writes(&self, name: &str) -> Result<()> {
        let setting = Path::new("/sys/class/block").join(name).join("queue/stable_writes");
        let problem = format!("{} cannot be set", setting.display());
        // The kernel may wait for requests that this very thread answers.
        let written = self.reactor.wait(self.reactor.offload(move || fs::write(setting, "1")))??;
        written.unwrap_or(Ok(())).context(problem)
    }

    /// Begins a new file of tails, as it is `goes_on` where a process has died that had `left` one.
    async fn note_tails(
        &self,
        status: &ArrayStatus,
        left: Option<&Left>,
        goes_on: bool,
    ) -> Result<Rc<TailFile>> {
        let assembly = self.array.assembly();
        let report = Command::Report { first: ZoneIndex(0), count: self.array.geometry().zones };
        let done = self.array.submit(report).await;
        done.result?;
        let complete: Vec<u64> = match holds_back(status) {
            // What assembly has found is all that counts now, whatever the process before had noted.
            false => done.zones.iter().map(|zone| zone.wp_blocks).collect(),
            // As long as nothing is written, what had been noted counts: the next process finds the same.
            true => match left.filter(|left| left.assembly == assembly) {
                Some(left) => left.complete.clone(),
                None => vec![0; done.zones.len()],
            },
        };
        let path = run::tails_path(&self.directory, &status.uuid);
        let appends = left.filter(|_| goes_on).map_or(&[][..], |left| &left.appends);
        let tails = Rc::new(TailFile::create(&path, &status.uuid, assembly, &complete, appends)?);
        if holds_back(status) && left.is_some() {
            tails.inherit();
        }
        let (begun, noted) = (self.array.clone(), tails.clone());
        self.array.on_begin(Box::new(move || noted.begin(begun.assembly())));
        Ok(tails)
    }

    /// Takes over the block device in `found`, or makes one if there is none.
    async fn serve(&self, status: &ArrayStatus, found: &[u32], left: Option<Left>) -> Result<BlockDevice> {
        let tails = self.note_tails(status, left.as_ref(), !found.is_empty()).await?;
        let chunk_bytes = bytes(status.chunk_blocks);
        let stripe_bytes = chunk_bytes * (status.members.len() as u64 - 1);
        let options = Options {
            tag: ublk::tag(&status.uuid),
            chunk_bytes: chunk_bytes as u32,
            stripe_bytes: stripe_bytes as u32,
            read_only: status.read_only,
        };
        let face = async {
            let volume = self.open_volume(status, &tails).await?;
            anyhow::Ok(volume.map_or_else(|| Face::Zoned(Rc::new(self.array.clone())), Face::Volume))
        };
        match *found {
            [] => {
                let started =
                    async { BlockDevice::start(&self.reactor, face.await?, tails.clone(), &options).await };
                // Otherwise there is no block device that they are about.
                started.await.inspect_err(|_| tails.remove())
            }
            [id] => BlockDevice::recover(&self.reactor, face.await?, tails.clone(), id, left.as_ref()).await,
            _ => bail!("several block devices of '{}' have been left behind", status.name),
        }
    }

    /// Serves the block device until it is to be taken down, or somebody else does that.
    async fn keep(self: Rc<Self>, block: Rc<Block>, device: BlockDevice) {
        let gone = {
            let mut gone = pin!(device.gone());
            let mut ordered = pin!(block.ordered());
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
            Some(result) => {
                let name = self.array.status().name;
                let result = result.with_context(|| format!("'{name}': {} fails", block.path.display()));
                if result.is_ok() {
                    log(&format!("'{name}': {} has been removed by somebody else", block.path.display()));
                    block.unlink();
                    device.forget_tails();
                }
                *self.failure.borrow_mut() = result.err();
                self.set_phase(Phase::Ended);
            }
        }
    }

    /// Takes the block device down. If it is in use, it is either left to the next daemon, or that
    /// is an error.
    pub async fn hide(&self, leave: bool) -> Result<()> {
        let Some(block) = self.block.borrow().clone() else { return Ok(()) };
        let path = block.path.clone();
        // Opening the device may wait for this very thread.
        let users = self.reactor.offload(move || lasting_users(&path)).await?;
        let users = users.context("whoever looked for users of the block device failed")??;
        if leave && !users.is_empty() {
            log(&format!("{} is {}; it stays for the next start", block.path.display(), users.join(", ")));
            return Ok(());
        }
        ensure!(users.is_empty(), "{} is {}; end that first", block.path.display(), users.join(", "));
        self.set_phase(Phase::Ending);
        block.stop.set(true);
        block.changed.open();
        let result = loop {
            if let Some(result) = block.stopped.take() {
                break result;
            }
            block.changed.wait().await;
        };
        block.unlink();
        result.with_context(|| format!("{} cannot be taken down", block.path.display()))
    }

    /// Gives the block device up and makes everything durable.
    pub(super) async fn end(&self, leave: bool) -> Result<()> {
        ensure!(!self.ending.replace(true), "'{}' is being stopped already", self.array.status().name);
        let result = self.end_alone(leave).await;
        self.ending.set(false);
        self.phase_changed.open();
        result
    }

    async fn end_alone(&self, leave: bool) -> Result<()> {
        self.hide(leave).await?;
        let shared = self.nbd.borrow().clone();
        if let Some((server, _)) = &shared {
            let clients = server.clients();
            let called = self.array.status().name;
            ensure!(leave || clients == 0, "'{called}' has {clients} NBD clients; end these first");
            self.set_phase(Phase::Ending);
            server.close().await;
        }
        self.set_phase(Phase::Ending);
        self.end_volume().await?;
        if let Some((_, tails)) = &shared {
            tails.remove();
        }
        if holds_back(&self.array.status()) {
            // Nothing has been written, and nothing shall be.
            return Ok(());
        }
        self.array.submit(Command::Flush).await.result.context("the last flush failed")
    }
}

impl Daemon {
    /// Leaves a volume as a clean stop does, unless somebody goes on using it.
    async fn end_volume(&self) -> Result<()> {
        let volume = self.volume.borrow().clone();
        let served = self.block.borrow().as_ref().is_some_and(|block| !block.stop.get());
        match volume {
            Some(volume) if !served && !self.array.status().read_only => {
                let name = self.array.status().name;
                let stopped = volume.stop().await;
                stopped.with_context(|| format!("the last checkpoint of the volume on '{name}' failed"))
            }
            _ => Ok(()),
        }
    }
}

/// Keeps this process in memory: to fetch it back, the kernel may have to write to the block device
/// first. Without the privilege it works as well, short of memory excepted.
fn lock_memory() {
    let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
}
