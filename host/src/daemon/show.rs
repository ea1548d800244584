//! The array as a block device of the kernel: shown, served, and taken down at the end.

use super::{
    block::{Block, LINKS, lasting_users, link},
    state::{Daemon, Phase, holds_back, log},
};
use crate::{
    output::uuid,
    report::bytes,
    run,
    tails::{Left, TailFile},
    ublk::{self, BlockDevice, Options},
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::ArrayStatus,
    device::{Command, ZonedDevice},
    runtime::Gate,
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
    /// Shows the array to the kernel: takes over the block device in `found`, which an earlier daemon
    /// has left, or makes a new one.
    pub fn show(self: &Rc<Self>, found: &[u32], left: Option<Left>) -> Result<()> {
        let status = self.array.status();
        let device = self.reactor.wait(self.serve(&status, found, left))??;
        let name = format!("ublkb{}", device.id());
        let path = Path::new("/dev").join(&name);
        self.demand_stable_writes(&name)?;
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

    /// Takes over the block device in `found`, or makes one if there is none.
    async fn serve(&self, status: &ArrayStatus, found: &[u32], left: Option<Left>) -> Result<BlockDevice> {
        let array: Rc<dyn ZonedDevice> = Rc::new(self.array.clone());
        let assembly = self.array.assembly();
        let report = Command::Report { first: ZoneIndex(0), count: array.geometry().zones };
        let done = array.submit(report).await;
        done.result?;
        let complete: Vec<u64> = match holds_back(status) {
            // What assembly has found is all that counts now, whatever the process before had noted.
            false => done.zones.iter().map(|zone| zone.wp_blocks).collect(),
            // As long as nothing is written, what had been noted counts: the next process finds the same.
            true => match left.as_ref().filter(|left| left.assembly == assembly) {
                Some(left) => left.complete.clone(),
                None => vec![0; done.zones.len()],
            },
        };
        let path = run::tails_path(&self.directory, &status.uuid);
        let appends = left.as_ref().filter(|_| !found.is_empty()).map_or(&[][..], |left| &left.appends);
        let tails = Rc::new(TailFile::create(&path, &status.uuid, assembly, &complete, appends)?);
        if holds_back(status) && left.is_some() {
            tails.inherit();
        }
        let (begun, noted) = (self.array.clone(), tails.clone());
        self.array.on_begin(Box::new(move || noted.begin(begun.assembly())));
        let chunk_bytes = bytes(status.chunk_blocks);
        let stripe_bytes = chunk_bytes * (status.members.len() as u64 - 1);
        let options = Options {
            tag: ublk::tag(&status.uuid),
            chunk_bytes: chunk_bytes as u32,
            stripe_bytes: stripe_bytes as u32,
            read_only: status.read_only,
        };
        match *found {
            [] => {
                let started = BlockDevice::start(&self.reactor, array, tails.clone(), &options).await;
                // Otherwise there is no block device that they are about.
                started.inspect_err(|_| tails.remove())
            }
            [id] => BlockDevice::recover(&self.reactor, array, tails, id, left.as_ref()).await,
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
        self.set_phase(Phase::Ending);
        if holds_back(&self.array.status()) {
            // Nothing has been written, and nothing shall be.
            return Ok(());
        }
        self.array.submit(Command::Flush).await.result.context("the last flush failed")
    }
}

/// Keeps this process in memory: to fetch it back, the kernel may have to write to the block device
/// first. Without the privilege it works as well, short of memory excepted.
fn lock_memory() {
    let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
}
