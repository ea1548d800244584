//! Serves the array, its volume or its namespaces, as block devices of the kernel or to NBD clients, and takes them
//! down at the end.
//!
//! Whether an array carries a volume or namespaces is determined from its zones, where both have their headers: the
//! array has no metadata about them, nor they about arrays.

use super::{
    block::{Block, LINKS, front_number, lasting_users, link},
    state::{Daemon, Phase, both, holds_back, log},
};
use crate::{
    process::{
        memory_lock::lock_memory,
        output::{quoted, uuid},
        run,
        size::bytes,
    },
    reactor::workers::WorkerThreads,
    report::{given_up, is_there, no_start, no_volume},
    serve::{
        ack_log::{AckLog, AckLogContents, RecordingDevice},
        nbd::{self, wire::NbdExport},
        ublk::{self, BlockDevice, Face, Options, Orphan},
    },
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::{
    adapt::overlay::Overlay,
    array::ArrayStatus,
    device::{Command, ZonedDevice},
    volume::Volume,
    vzone::{Namespace, Namespaces},
    zone::ZoneIndex,
};
use std::{
    fs,
    future::{Future, poll_fn},
    path::Path,
    pin::pin,
    rc::{Rc, Weak},
    task::Poll,
};

impl Daemon {
    /// Serves the volume on the array to NBD clients at `place`. `left` is the tails file of a dead server.
    pub fn share(self: &Rc<Self>, place: &nbd::NbdAddress, left: Option<AckLogContents>) -> Result<()> {
        let status = self.array.status();
        let problem = || format!("it is unknown whether '{}' carries a volume or namespaces", status.name);
        let shared = async {
            let divided = Namespaces::are_on(Rc::new(self.array.clone())).await.with_context(problem)?;
            ensure!(
                !is_there(divided, "namespaces", &status.name, &status)?,
                "'{}' is divided into namespaces, which cannot be served to NBD clients: use zoneraid start",
                status.name
            );
            let tails = self.note_tails(&status, left.as_ref(), false).await?;
            let volume = self.open_volume(&status, &tails).await;
            let export = |volume: &Volume| NbdExport {
                name: status.name.clone(),
                size_bytes: bytes(volume.blocks()),
                read_only: status.read_only,
            };
            let server = volume.and_then(|volume| {
                let called = &status.name;
                let volume = volume.with_context(|| no_volume(called))?;
                let server = nbd::Server::start(&self.reactor, volume.clone(), place, export(&volume))?;
                tails.note_server(&server.place().argument())?;
                Ok(server)
            });
            // If this fails, no client has been answered, and the tails are not needed.
            server.inspect_err(|_| tails.remove())
        };
        let server = self.reactor.wait(shared)??;
        *self.nbd.borrow_mut() = Some(server);
        lock_memory();
        Ok(())
    }

    /// Opens the volume on the array, if there is one. Its acknowledged ends are stored in `tails`.
    async fn open_volume(&self, status: &ArrayStatus, tails: &Rc<AckLog>) -> Result<Option<Volume>> {
        assert!(self.volume.borrow().is_none(), "the volume on '{}' is opened a second time", status.name);
        let volume = self.volume_on(self.noting(status, tails).await, &status.name).await?;
        self.volume.borrow_mut().clone_from(&volume);
        Ok(volume)
    }

    /// Opens the volume on a device, if there is one.
    async fn volume_on(&self, device: Rc<dyn ZonedDevice>, called: &str) -> Result<Option<Volume>> {
        let problem = || format!("the volume on '{called}' cannot be started");
        let volume = Volume::is_on(device.clone()).await.with_context(problem)?;
        if !is_there(volume, "a volume", called, &self.array.status())? {
            return Ok(None);
        }
        let opened = Volume::open(self.reactor.runtime(), device, self.behaviour).await;
        let volume = opened.map_err(|error| no_start(called, error))?;
        match self.worker_threads() {
            Ok(Some(worker_threads)) => volume.employ(worker_threads),
            Ok(None) => {}
            Err(error) => log(&format!("{called} is compressed on the engine's thread only: {error:#}")),
        }
        if let Some(loss) = given_up(called, volume.given_up()) {
            self.losses.borrow_mut().push(loss);
        }
        Ok(Some(volume))
    }

    /// The compression workers, shared by all volumes; `None` if there are no processors for them.
    fn worker_threads(&self) -> Result<Option<Rc<WorkerThreads>>> {
        let there = self.worker_threads.borrow().upgrade();
        if there.is_some() {
            return Ok(there);
        }
        let worker_threads = WorkerThreads::start(&self.reactor)?;
        *self.worker_threads.borrow_mut() = worker_threads.as_ref().map_or_else(Weak::new, Rc::downgrade);
        Ok(worker_threads)
    }

    /// The array as the device of a volume or of namespaces: acknowledged ends are stored in `tails`; for a read-only
    /// array, their crash recovery writes to memory.
    pub(super) async fn noting(&self, status: &ArrayStatus, tails: &Rc<AckLog>) -> Rc<dyn ZonedDevice> {
        let (runtime, array) = (self.reactor.runtime(), Rc::new(self.array.clone()));
        match status.read_only {
            true => Rc::new(Overlay::over(runtime, array).await),
            false => Rc::new(RecordingDevice::of(runtime, array, tails.clone())),
        }
    }

    /// Serves the array or each of its namespaces as block devices: takes over those in `found`, which a dead daemon
    /// has left, and creates the missing ones.
    pub fn show(self: &Rc<Self>, found: &[Orphan], left: Option<AckLogContents>) -> Result<()> {
        let served = self.reactor.wait(self.serve(found, left))??;
        lock_memory();
        self.look_after(served);
        Ok(())
    }

    /// Serves block devices in the background from now on.
    fn look_after(self: &Rc<Self>, served: Vec<(Rc<Block>, BlockDevice)>) {
        for (block, device) in served {
            let other = self.blocks.borrow().iter().find(|other| other.front() == block.front()).cloned();
            let other = other.map(|other| other.path.clone());
            assert_eq!(
                other,
                None,
                "the block device that already serves the device of {}",
                block.path.display()
            );
            self.blocks.borrow_mut().push(block.clone());
            announce(&block.path);
            self.reactor.runtime().spawn(self.clone().keep(block, device));
        }
        self.blocks.borrow_mut().sort_by_key(|block| block.namespace.as_ref().map(Namespace::number));
    }

    /// Creates the block device of a namespace that has none.
    pub(super) async fn show_namespace(self: &Rc<Self>, namespace: Namespace) -> Result<()> {
        let status = self.array.status();
        let mut served = Vec::new();
        let shown = async {
            let known = self.note_namespace(&namespace, false).await?;
            let front = self.front(&status, namespace).await?;
            self.serve_front(&status, front, known, &[], &mut served).await
        };
        match shown.await {
            Ok(()) => self.look_after(served),
            Err(error) => {
                take_back(served, &[]).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sets `stable_writes`: pages must not change while they are written, since parity is computed from them, and a
    /// write that is reissued after the death of this process is compared with the data in the zone.
    async fn demand_stable_writes(&self, name: &str) -> Result<()> {
        let setting = Path::new("/sys/class/block").join(name).join("queue/stable_writes");
        let problem = format!("{} cannot be set", setting.display());
        // On another thread: the kernel may wait for requests that this thread serves.
        let written = self.reactor.offload(move || fs::write(setting, "1")).await?;
        written.context("the thread that sets it failed").and_then(|written| Ok(written?)).context(problem)
    }

    /// Creates the tails file of this assembly. `left` is that of a dead process; its appends are kept if its block
    /// device is taken over (`goes_on`).
    async fn note_tails(
        &self,
        status: &ArrayStatus,
        left: Option<&AckLogContents>,
        goes_on: bool,
    ) -> Result<Rc<AckLog>> {
        let assembly = self.array.assembly();
        let report = Command::Report { first: ZoneIndex(0), count: self.array.geometry().zones };
        let done = self.array.submit(report).await;
        done.result?;
        let (shown, zones) = (done.zones.len(), self.array.geometry().zones);
        assert_eq!(shown, zones as usize, "zones in a report of the array, and zones of the array");
        let complete: Vec<u64> = match holds_back(status) {
            // An array that is written to continues where the assembly has found the ends.
            false => done.zones.iter().map(|zone| zone.wp_blocks).collect(),
            // As long as nothing is written, the inherited ends count, for the next process as well.
            true => match left.filter(|left| left.assembly == assembly) {
                Some(left) => left.complete.clone(),
                None => vec![0; done.zones.len()],
            },
        };
        let path = run::tails_path(&self.directory, &status.uuid);
        let appends = left.filter(|_| goes_on).map_or(&[][..], |left| &left.appends);
        let inherited = left.filter(|_| holds_back(status));
        let power = inherited.map_or_else(|| self.array.power_marks(), |left| left.power.clone());
        let tails = Rc::new(AckLog::create(&path, &status.uuid, assembly, &complete, appends, &power)?);
        if inherited.is_some() {
            tails.inherit();
        }
        let (begun, noted) = (self.array.clone(), tails.clone());
        self.array.on_begin(Box::new(move || {
            noted.note_power(&begun.power_marks());
            noted.begin(begun.assembly());
        }));
        *self.tails.borrow_mut() = Some(tails.clone());
        Ok(tails)
    }

    /// Serves all block devices. If that fails, the new ones are taken down again.
    async fn serve(
        &self,
        found: &[Orphan],
        left: Option<AckLogContents>,
    ) -> Result<Vec<(Rc<Block>, BlockDevice)>> {
        let status = self.array.status();
        let tails =
            self.note_tails(&status, left.as_ref(), found.iter().any(|orphan| orphan.front == 0)).await?;
        tails.note_block_devices();
        let mut served = Vec::new();
        let Err(error) = self.serve_all(&status, found, (&tails, left), &mut served).await else {
            return Ok(served);
        };
        take_back(served, found).await;
        // Block devices of a dead daemon still need the tails.
        if found.is_empty() {
            tails.remove();
        }
        Err(error)
    }

    async fn serve_all(
        &self,
        status: &ArrayStatus,
        found: &[Orphan],
        (tails, left): (&Rc<AckLog>, Option<AckLogContents>),
        served: &mut Vec<(Rc<Block>, BlockDevice)>,
    ) -> Result<()> {
        let fronts = self.fronts(status, tails).await?;
        let is_known = |orphan: &&Orphan| fronts.iter().any(|front| front.number() == orphan.front);
        if let Some(Orphan { id, .. }) = found.iter().find(|orphan| !is_known(orphan)) {
            bail!(
                "/dev/ublkb{id} serves a namespace or volume that '{}' no longer has: reboot, or remove it",
                status.name
            );
        }
        for front in fronts {
            let number = front.number();
            let orphans: Vec<u32> = found.iter().filter(|o| o.front == number).map(|o| o.id).collect();
            let known = match &front.namespace {
                None => (tails.clone(), left.clone()),
                Some(namespace) => self.note_namespace(namespace, !orphans.is_empty()).await?,
            };
            self.serve_front(status, front, known, &orphans, served).await?;
        }
        Ok(())
    }

    /// Serves one device: by the block device in `orphans`, or a new one.
    async fn serve_front(
        &self,
        status: &ArrayStatus,
        front: ServedDevice,
        (tails, left): (Rc<AckLog>, Option<AckLogContents>),
        orphans: &[u32],
        served: &mut Vec<(Rc<Block>, BlockDevice)>,
    ) -> Result<()> {
        let options = Options { tag: ublk::tag(&status.uuid, front.number()), ..options(status) };
        let face = front.face();
        let device = match *orphans {
            [] => {
                let started = BlockDevice::start(&self.reactor, face, &tails, &options).await;
                started.inspect_err(|_| tails.remove())?
            }
            [id] => BlockDevice::recover(&self.reactor, face, &tails, id, left.as_ref()).await?,
            _ => bail!("several block devices of '{}' have been left behind", status.name),
        };
        if let Some(namespace) = &front.namespace {
            device.is_of(namespace.clone());
        }
        let name = format!("ublkb{}", device.id());
        let path = Path::new("/dev").join(&name);
        let called = front.namespace.as_ref().map(|namespace| (namespace.name(), namespace.number()));
        let link = link(Path::new(LINKS), (&status.name, called), &uuid(&status.uuid), &path);
        let link = link.map_err(|error| log(&format!("{error:#}"))).ok();
        let is_zoned = front.volume.is_none();
        let block = Block::new((path, link), (front.namespace, front.volume), (tails, device.traffic()));
        served.push((Rc::new(block), device));
        if is_zoned {
            self.demand_stable_writes(&name).await?;
        }
        Ok(())
    }

    /// The devices to serve: the array, or the volume on it; or each namespace, or the volume on that.
    async fn fronts(&self, status: &ArrayStatus, tails: &Rc<AckLog>) -> Result<Vec<ServedDevice>> {
        let Some(namespaces) = self.open_namespaces(status, tails).await? else {
            let volume = self.open_volume(status, tails).await?;
            return Ok(vec![ServedDevice { device: Rc::new(self.array.clone()), namespace: None, volume }]);
        };
        let mut fronts = Vec::new();
        for namespace in namespaces {
            fronts.push(self.front(status, namespace).await?);
        }
        Ok(fronts)
    }

    /// A namespace, or the volume on it.
    async fn front(&self, status: &ArrayStatus, namespace: Namespace) -> Result<ServedDevice> {
        let number = front_number(Some(&namespace));
        let other = self.blocks.borrow().iter().find(|other| other.front() == number).cloned();
        let other = other.map(|other| other.path.clone());
        assert_eq!(other, None, "the block device that serves namespace '{}' already", namespace.name());
        let device: Rc<dyn ZonedDevice> = Rc::new(namespace.clone());
        let volume = self.volume_on(device.clone(), &format!("{}/{}", status.name, namespace.name())).await?;
        Ok(ServedDevice { device, namespace: Some(namespace), volume })
    }

    /// Serves a block device until it is to be taken down, or is removed by another process.
    async fn keep(self: Rc<Self>, block: Rc<Block>, device: BlockDevice) {
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
                self.lose(&block).await;
            }
            // The block device stays for the next daemon, which may succeed.
            Some(Err(error)) => {
                let (name, path) = (self.array.status().name, block.path.display());
                *self.failure.borrow_mut() = Some(error.context(format!("'{name}': {path} fails")));
                self.set_phase(Phase::Ended);
            }
        }
    }

    /// Handles the removal of a block device by another process: ends the daemon if it was the last one.
    async fn lose(&self, gone: &Rc<Block>) {
        let name = self.array.status().name;
        log(&format!("'{name}': {} has been removed by another process", gone.path.display()));
        gone.unlink();
        // Wakes a task that was about to take it down.
        *gone.stopped.borrow_mut() = Some(Ok(()));
        gone.changed.open();
        self.forget_block(gone);
        let volume = gone.volume.iter().filter(|_| gone.namespace.is_some());
        let stopped = self.stop_volumes(volume).await;
        // Another task may be adding a block device, or ending the daemon.
        let _turn = self.administration.take().await;
        if !self.blocks.borrow().is_empty() || self.phase.get() != Phase::Running {
            stopped.unwrap_or_else(|error| log(&format!("{error:#}")));
            return;
        }
        let ended = self.end_alone(true).await;
        *self.failure.borrow_mut() = both(stopped, ended).err();
        self.set_phase(Phase::Ended);
    }

    /// Forgets a block device that is gone while the array continues to run.
    fn forget_block(&self, block: &Rc<Block>) {
        self.blocks.borrow_mut().retain(|other| !Rc::ptr_eq(other, block));
        // The tails of a namespace only serve requests that the kernel reissues. Acknowledged ends that are not durable
        // yet are in the tails of the array.
        if block.namespace.is_some() {
            block.tails.remove();
        }
    }

    /// Takes the block devices down. If one is in use, all are left to the next daemon with `leave`; without `leave`
    /// that is an error.
    pub async fn hide(&self, leave: bool) -> Result<()> {
        let blocks = self.blocks.borrow().clone();
        for block in &blocks {
            let used = self.use_of(block).await?;
            if let Some(used) = used.as_ref().filter(|_| leave) {
                log(&format!("{used}; the block device stays for the next start"));
                return Ok(());
            }
            refuse_if_used(used)?;
        }
        if !blocks.is_empty() {
            self.set_phase(Phase::Ending);
        }
        for block in blocks {
            take_down(&block).await?;
        }
        Ok(())
    }

    /// Message that names the users of a block device that do not release it soon; `None` if there are none.
    async fn use_of(&self, block: &Block) -> Result<Option<String>> {
        let path = block.path.clone();
        // On another thread: opening the device may wait for this one.
        let users = self.reactor.offload(move || lasting_users(&path)).await?;
        let users = users.context("the thread that looked for users of the block device failed")??;
        let used =
            || format!("{} is {}", block.link.as_ref().unwrap_or(&block.path).display(), users.join(", "));
        Ok((!users.is_empty()).then(used))
    }

    /// Takes the block device of a namespace down, if it has one, so that the namespace gets no more requests.
    pub(super) async fn hide_namespace(&self, namespace: &Namespace) -> Result<()> {
        let is_of = |block: &&Rc<Block>| {
            block.namespace.as_ref().is_some_and(|shown| shown.number() == namespace.number())
        };
        let Some(block) = self.blocks.borrow().iter().find(is_of).cloned() else { return Ok(()) };
        let array = self.array.status().name;
        ensure!(
            block.volume.is_none(),
            "the volume on '{array}/{}' is in use while '{array}' runs: stop it first with zoneraid stop {}",
            namespace.name(),
            quoted(&array)
        );
        refuse_if_used(self.use_of(&block).await?)?;
        take_down(&block).await?;
        self.forget_block(&block);
        Ok(())
    }

    /// Takes the block devices down, or leaves those in use if `leave` is set, and makes everything durable.
    pub(super) async fn end(&self, leave: bool) -> Result<()> {
        ensure!(!self.ending.replace(true), "'{}' is being stopped already", self.array.status().name);
        let _turn = self.administration.take().await;
        let result = self.end_alone(leave).await;
        self.ending.set(false);
        self.phase_changed.open();
        result
    }

    /// As [`Daemon::end`], for a caller that holds `administration`.
    async fn end_alone(&self, leave: bool) -> Result<()> {
        let hidden = self.hide(leave).await;
        if hidden.is_err() && self.phase.get() == Phase::Running {
            return hidden;
        }
        let shared = self.nbd.borrow().clone();
        if let Some(server) = &shared {
            let clients = server.clients();
            let called = self.array.status().name;
            ensure!(leave || clients == 0, "'{called}' has {clients} NBD clients: disconnect them first");
            self.set_phase(Phase::Ending);
            server.close().await;
        }
        self.set_phase(Phase::Ending);
        let left =
            self.blocks.borrow().iter().find(|block| !block.stop.get()).map(|block| block.path.clone());
        assert!(
            leave || hidden.is_err() || left.is_none(),
            "the array is stopped while it is served as {left:?}"
        );
        let array = self.array.status();
        if array.failed {
            // Nothing can be made durable any more, so the tails stay for the next process.
            self.end_namespaces().await;
            let name = &array.name;
            let stopped = Err(anyhow!(
                "'{name}' has stopped, since too many members are out: start it again when they are back; \
                 acknowledged data is available then"
            ));
            return both(hidden, stopped);
        }
        let stopped = self.end_volumes().await;
        self.end_namespaces().await;
        // Flush also after a failure: acknowledged data is in the zones.
        let flushed = match holds_back(&array) {
            // An array that is read-only or in deferred-write mode has written nothing.
            true => Ok(()),
            false => self.array.submit(Command::Flush).await.result.context("the last flush failed"),
        };
        // From here on the next process does not need the acknowledged ends.
        if hidden.is_ok() && flushed.is_ok() && !self.is_left() {
            self.forget_tails();
        }
        both(both(hidden, stopped), flushed)
    }
}

impl Daemon {
    /// Removes the tails: all acknowledged data is durable, and no block device is left.
    fn forget_tails(&self) {
        self.blocks.borrow().iter().for_each(|block| block.tails.remove());
        if let Some(tails) = self.tails.take() {
            tails.remove();
        }
    }

    /// Stops all volumes cleanly, unless a block device is left to the next daemon.
    async fn end_volumes(&self) -> Result<()> {
        if self.is_left() {
            return Ok(());
        }
        let on_namespaces: Vec<Rc<Block>> = self.blocks.borrow().clone();
        let on_namespaces = on_namespaces.iter().filter(|block| block.namespace.is_some());
        let volumes: Vec<Volume> = on_namespaces.filter_map(|block| block.volume.clone()).collect();
        let own = self.volume.borrow().clone();
        self.stop_volumes(own.iter().chain(&volumes)).await
    }

    /// Writes the last checkpoint of each volume; after a failure it continues with the others.
    async fn stop_volumes(&self, volumes: impl Iterator<Item = &Volume>) -> Result<()> {
        let status = self.array.status();
        let mut all = Ok(());
        for volume in volumes.filter(|_| !status.read_only) {
            if let Some(error) = volume.status().failed {
                // Its users have seen the error; the next start recovers the durable state.
                log(&format!(
                    "the volume on '{}' ends without a checkpoint, since it has failed: {error}",
                    status.name
                ));
                continue;
            }
            let stopped = volume.stop().await;
            let problem = || format!("the last checkpoint of the volume on '{}' failed", status.name);
            all = both(all, stopped.with_context(problem));
        }
        all
    }

    /// Whether block devices are left to the next daemon.
    pub(super) fn is_left(&self) -> bool {
        self.blocks.borrow().iter().any(|block| !block.stop.get())
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
            if device.stop().await.is_ok() {
                block.tails.remove();
            }
            block.unlink();
        }
    }
}

fn refuse_if_used(used: Option<String>) -> Result<()> {
    used.map_or(Ok(()), |used| bail!("{used}: unmount or close it first"))
}

/// Takes a served block device down, and waits for that.
async fn take_down(block: &Block) -> Result<()> {
    ensure!(!block.stop.replace(true), "an earlier attempt to take {} down failed", block.path.display());
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

/// A device that is served to the kernel.
struct ServedDevice {
    device: Rc<dyn ZonedDevice>,
    /// The namespace; `None` for the array.
    namespace: Option<Namespace>,
    /// The volume on it, which is served instead.
    volume: Option<Volume>,
}

impl ServedDevice {
    /// Its number among the devices of the array: 0 for the array itself.
    fn number(&self) -> u16 {
        front_number(self.namespace.as_ref())
    }

    fn face(&self) -> Face {
        match &self.volume {
            Some(volume) => Face::Volume(volume.clone()),
            None => Face::Zoned(self.device.clone()),
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
        tag: ublk::tag(&status.uuid, 0),
        chunk_bytes: chunk_bytes as u32,
        stripe_bytes: stripe_bytes as u32,
        read_only: status.read_only,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        control::{
            name::ArrayName,
            tenants::{self, NewNamespace, NewQos, Tenants},
        },
        members::{FoundArray, OpenDrive, StartTerms},
        reactor::Reactor,
    };
    use emu::ssd::{Ailment, AilmentFile, EmulatedDrive, Model};
    use engine::{
        array::{Array, CreateOptions},
        buf::{BLOCK, Buf},
        zone::Lba,
    };
    use std::{cell::Cell, path::PathBuf, time::Duration};

    fn image(dir: &Path, number: u8) -> PathBuf {
        dir.join(format!("drive{number}.img"))
    }

    /// The daemon of an array of five small drives in `dir`.
    fn daemon(dir: &Path, parities: usize) -> Rc<Daemon> {
        let (reactor, model) = (Reactor::default(), Model::zn540().scaled(16, 2048));
        let open = |number| {
            EmulatedDrive::create_image(&image(dir, number), &model, [number; 16]).unwrap();
            OpenDrive::open(&reactor, &image(dir, number)).unwrap().drive()
        };
        let options = CreateOptions {
            name: "tank".into(),
            uuid: [7; 16],
            chunk_blocks: 16,
            zone_size_blocks: None,
            parities,
            policy: None,
            group_blocks: 0,
            spare_zones: Some(0),
            host: [0; 16],
            autostart: false,
        };
        let made = Array::create(reactor.runtime(), options, (0..5).map(open).collect());
        drop(reactor.wait(made).unwrap().unwrap());
        reactor.runtime().clear();
        let found = FoundArray::by_name(&ArrayName::from(dir.to_path_buf())).unwrap();
        Daemon::start(found, &dir.join("run"), None, StartTerms::default()).unwrap()
    }

    #[test]
    fn tails_file_is_removed_after_last_successful_flush() {
        for fails in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            if Reactor::default().ring().is_err() {
                return;
            }
            let daemon = daemon(dir.path(), 1);
            let status = daemon.array.status();
            let path = run::tails_path(&daemon.directory, &status.uuid);
            let heard = Rc::new(Cell::new(false));
            let ended = async {
                let tails = daemon.note_tails(&status, None, false).await.unwrap();
                let block = || {
                    let shown = (PathBuf::from("/dev/nothing"), None);
                    Rc::new(Block::new(shown, (None, None), (tails.clone(), Rc::default())))
                };
                let (first, last) = (block(), block());
                daemon.blocks.borrow_mut().extend([first.clone(), last.clone()]);
                let device = daemon.noting(&status, &tails).await;
                let write = |at| device.submit(Command::write(Lba(at), Buf::zeroed(BLOCK), false));
                write(0).await.result.unwrap();
                // One task waits for the removal of a block device, and the other device stays.
                let (told, waited_for) = (heard.clone(), first.clone());
                daemon.reactor.runtime().spawn(async move { told.set(take_down(&waited_for).await.is_ok()) });
                daemon.reactor.ring().unwrap().sleep(Duration::from_millis(1)).await;
                daemon.lose(&first).await;
                assert!(daemon.phase.get() == Phase::Running && path.exists());
                for number in 3..5 {
                    let file = AilmentFile::of(&image(dir.path(), number)).unwrap();
                    fails.then(|| file.add(Ailment::Gone).unwrap());
                }
                // Emulated drives read their faults every 5 ms.
                daemon.reactor.ring().unwrap().sleep(Duration::from_millis(20)).await;
                // A write goes to some members; the flush also reaches the others.
                write(1).await.result.unwrap();
                daemon.lose(&last).await;
            };
            daemon.reactor.wait(ended).unwrap();
            assert!(heard.get() && daemon.phase.get() == Phase::Ended);
            let failed = daemon.failure.borrow().as_ref().map(|error| format!("{error:#}"));
            assert_eq!((path.exists(), failed.is_some()), (fails, fails), "{failed:?}");
            daemon.give_up();
        }
    }

    #[test]
    fn refused_namespace_size_keeps_block_device() {
        let dir = tempfile::tempdir().unwrap();
        if Reactor::default().ring().is_err() {
            return;
        }
        let daemon = daemon(dir.path(), 1);
        let status = daemon.array.status();
        let asked = async {
            let array = Rc::new(daemon.array.clone());
            let fitting = Namespaces::fitting(array.geometry());
            Namespaces::create(array.clone(), [8; 16], fitting).await.unwrap();
            let opened = Namespaces::open(daemon.reactor.runtime(), array, tenants::behaviour());
            let tenants = Tenants { namespaces: opened.await.unwrap(), array: status.name.clone() };
            let (name, qos) = ("mail".into(), NewQos { limits: [0; 2], floors: [0; 2], latency_us: 0 });
            let wanted = NewNamespace { name, blocks: 1, active: None, width: 1, weight: 100, qos };
            let namespace = tenants.add(&wanted).await.unwrap();
            *daemon.divided.borrow_mut() = Some(tenants.namespaces.clone());
            let tails = daemon.note_tails(&status, None, false).await.unwrap();
            let (path, used) = (image(dir.path(), 0), (Some(namespace), None));
            let block = Rc::new(Block::new((path, None), used, (tails, Rc::default())));
            *block.stopped.borrow_mut() = Some(Ok(()));
            daemon.blocks.borrow_mut().push(block.clone());
            let most = NewNamespace { name: "logs".into(), blocks: u64::MAX, ..wanted };
            let refused = [
                daemon.create_namespace(&most).await.err(),
                daemon.resize_namespace("mail", u64::MAX).await.err(),
            ];
            assert!(!block.stop.get(), "the block device is taken down");
            refused.map(|error| error.unwrap().to_string())
        };
        for refused in daemon.reactor.wait(asked).unwrap() {
            assert!(refused.starts_with("a namespace of") && refused.ends_with("is too large"), "{refused}");
        }
        daemon.give_up();
    }

    #[test]
    fn block_device_stripe_bytes_equal_data_of_stripe() {
        for parities in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            if Reactor::default().ring().is_err() {
                return;
            }
            let daemon = daemon(dir.path(), parities);
            let options = options(&daemon.array.status());
            assert_eq!(options.stripe_bytes as usize, (5 - parities) * options.chunk_bytes as usize);
            daemon.give_up();
        }
    }
}
