//! Takes block devices down, and ends the daemon: all acknowledged data becomes durable.

use super::{
    block::{Block, lasting_users},
    scrub,
    state::{Daemon, Phase, both, holds_back, log},
};
use crate::{process::output::quoted, reactor::Reactor, serve::ublk::ServedNumber};
use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::{
    array::Array,
    device::{Command, ZonedDevice},
    volume::Volume,
    vzone::Namespace,
};
use std::rc::Rc;

/// Takes the block devices down, or leaves those in use if `leave` is set, and makes everything durable.
pub(super) async fn end(daemon: &Daemon, leave: bool) -> Result<()> {
    ensure!(!daemon.ending.replace(true), "'{}' is being stopped already", daemon.array.status().name);
    let _turn = daemon.administration.take().await;
    let result = end_alone(daemon, leave).await;
    daemon.ending.set(false);
    daemon.phase_changed.open();
    result
}

/// As [`end`], for a caller that holds `administration`.
async fn end_alone(daemon: &Daemon, leave: bool) -> Result<()> {
    let hidden = take_down_all(daemon, leave).await;
    if hidden.is_err() && daemon.phase.get() == Phase::Running {
        return hidden;
    }
    let shared = daemon.nbd.borrow().clone();
    if let Some(server) = &shared {
        let clients = server.clients();
        let called = daemon.array.status().name;
        ensure!(leave || clients == 0, "'{called}' has {clients} NBD clients: disconnect them first");
        daemon.set_phase(Phase::Ending);
        server.close().await;
    }
    daemon.set_phase(Phase::Ending);
    scrub::interrupt(daemon);
    let left = daemon.blocks.borrow().iter().find(|block| !block.stop.get()).map(|block| block.path.clone());
    assert!(
        leave || hidden.is_err() || left.is_none(),
        "the array is stopped while it is served as {left:?}"
    );
    let array = daemon.array.status();
    if array.failed {
        // Nothing can be made durable any more, so the acknowledgement log stays for the next process.
        end_namespaces(daemon).await;
        let name = &array.name;
        let stopped = Err(anyhow!(
            "'{name}' has stopped, since too many members are out: start it again when they are back; \
             acknowledged data is available then"
        ));
        return both(hidden, stopped);
    }
    let stopped = end_volumes(daemon).await;
    end_namespaces(daemon).await;
    // Flush also after a failure: acknowledged data is in the zones.
    let flushed = match holds_back(&array) {
        // An array that is read-only or in deferred-write mode has written nothing.
        true => Ok(()),
        false => daemon.array.submit(Command::Flush).await.result.context("the last flush failed"),
    };
    // From here on the next process does not need the acknowledged ends.
    if hidden.is_ok() && flushed.is_ok() && !daemon.is_left() {
        forget_ack_logs(daemon);
        // A rebuild in progress keeps the array from being closed: the next assembly has more to do then.
        _ = daemon.array.close().await;
    }
    both(both(hidden, stopped), flushed)
}

/// Takes the block devices down. If one is in use, all are left to the next daemon with `leave`; without `leave`
/// that is an error.
async fn take_down_all(daemon: &Daemon, leave: bool) -> Result<()> {
    let blocks = daemon.blocks.borrow().clone();
    for block in &blocks {
        let used = use_of(&daemon.reactor, block).await?;
        if let Some(used) = used.as_ref().filter(|_| leave) {
            log(&format!("{used}; the block device stays for the next start"));
            return Ok(());
        }
        refuse_if_used(used)?;
    }
    if !blocks.is_empty() {
        daemon.set_phase(Phase::Ending);
    }
    for block in blocks {
        take_down(&block).await?;
    }
    Ok(())
}

/// Takes the block device of a namespace down, if it has one, so that the namespace gets no more requests.
pub(super) async fn take_down_namespace(daemon: &Daemon, namespace: &Namespace) -> Result<()> {
    let is_of = |block: &&Rc<Block>| {
        block.namespace.as_ref().is_some_and(|shown| shown.number() == namespace.number())
    };
    let found = daemon.blocks.borrow().iter().find(is_of).cloned();
    let has_volume = found.as_ref().is_some_and(|block| block.volume.is_some());
    let array = daemon.array.status().name;
    ensure!(
        !has_volume && !daemon.pools.borrow().contains_key(&namespace.number()),
        "the volume on '{array}/{}' is in use while '{array}' runs: stop it first with zoneraid stop {}",
        namespace.name(),
        quoted(&array)
    );
    let Some(block) = found else { return Ok(()) };
    refuse_if_used(use_of(&daemon.reactor, &block).await?)?;
    take_down(&block).await?;
    forget_block(daemon, &block);
    Ok(())
}

/// Takes the block device of a volume of a pool down, if it has one.
pub(super) async fn take_down_volume(daemon: &Daemon, number: ServedNumber) -> Result<()> {
    let block = daemon.blocks.borrow().iter().find(|block| block.number() == number).cloned();
    let Some(block) = block else { return Ok(()) };
    refuse_if_used(use_of(&daemon.reactor, &block).await?)?;
    take_down(&block).await?;
    forget_block(daemon, &block);
    Ok(())
}

/// Handles the removal of a block device by another process: ends the daemon if it was the last one.
pub(super) async fn handle_removal(daemon: &Daemon, gone: &Rc<Block>) {
    let name = daemon.array.status().name;
    log(&format!("'{name}': {} has been removed by another process", gone.path.display()));
    gone.unlink();
    // Wakes a task that was about to take it down.
    *gone.stopped.borrow_mut() = Some(Ok(()));
    gone.changed.open();
    forget_block(daemon, gone);
    // The array, and each pool, end with the daemon.
    let volume = gone.volume.iter().filter(|_| gone.has_own_log());
    let stopped = stop_volumes(&daemon.array, volume).await;
    // Another task may be adding a block device, or ending the daemon.
    let _turn = daemon.administration.take().await;
    if !daemon.blocks.borrow().is_empty() || daemon.phase.get() != Phase::Running {
        stopped.unwrap_or_else(|error| log(&format!("{error:#}")));
        return;
    }
    let ended = end_alone(daemon, true).await;
    *daemon.failure.borrow_mut() = both(stopped, ended).err();
    daemon.set_phase(Phase::Ended);
}

/// Message that names the users of a block device that do not release it soon; `None` if there are none.
async fn use_of(reactor: &Reactor, block: &Block) -> Result<Option<String>> {
    let path = block.path.clone();
    // On another thread: opening the device may wait for this one.
    let users = reactor.offload(move || lasting_users(&path)).await?;
    let users = users.context("the thread that looked for users of the block device failed")??;
    let used = || format!("{} is {}", block.link.as_ref().unwrap_or(&block.path).display(), users.join(", "));
    Ok((!users.is_empty()).then(used))
}

/// Forgets a block device that is gone while the array continues to run.
fn forget_block(daemon: &Daemon, block: &Rc<Block>) {
    daemon.blocks.borrow_mut().retain(|other| !Rc::ptr_eq(other, block));
    // The acknowledgement log of a namespace only serves requests that the kernel reissues. Acknowledged ends that are
    // not durable yet are in that of the array.
    if block.has_own_log() {
        block.ack_log.remove();
    }
}

/// Removes the acknowledgement logs: all acknowledged data is durable, and no block device is left.
fn forget_ack_logs(daemon: &Daemon) {
    daemon.blocks.borrow().iter().for_each(|block| block.ack_log.remove());
    daemon.pools.borrow().values().for_each(|on| on.ack_log.remove());
    if let Some(ack_log) = daemon.ack_log.take() {
        ack_log.remove();
    }
}

/// Stops all volumes cleanly, unless a block device is left to the next daemon.
async fn end_volumes(daemon: &Daemon) -> Result<()> {
    if daemon.is_left() {
        return Ok(());
    }
    let volumes = daemon.volumes();
    stop_volumes(&daemon.array, volumes.iter().map(|(_, volume)| volume)).await
}

/// Writes the last checkpoint of each volume; after a failure it continues with the others.
async fn stop_volumes<'a>(array: &Array, volumes: impl Iterator<Item = &'a Volume>) -> Result<()> {
    let status = array.status();
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

/// Closes the namespaces cleanly, unless block devices are left to the next daemon.
async fn end_namespaces(daemon: &Daemon) {
    if daemon.is_left() {
        return;
    }
    let divided = daemon.divided.take();
    if let Some(namespaces) = divided {
        namespaces.close().await;
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

#[cfg(test)]
mod tests {
    use super::{
        super::{
            open,
            tests::{MEMBERS, image, with_daemon},
        },
        *,
    };
    use crate::process::run;
    use emu::ssd::{Ailment, AilmentFile};
    use engine::{
        buf::{BLOCK, Buf},
        zone::Lba,
    };
    use std::{cell::Cell, path::PathBuf, time::Duration};

    #[test]
    fn ack_log_is_removed_after_last_successful_flush() {
        for fails in [false, true] {
            with_daemon(1, |dir, daemon| {
                let status = daemon.array.status();
                let path = run::ack_log_path(&daemon.directory, &status.uuid);
                let heard = Rc::new(Cell::new(false));
                let ended = async {
                    let ack_log = open::create_ack_log(daemon, &status, None, false).await.unwrap();
                    let block = || {
                        let shown = (PathBuf::from("/dev/nothing"), None);
                        Rc::new(Block::new(shown, (None, None), (ack_log.clone(), Rc::default())))
                    };
                    let (first, last) = (block(), block());
                    daemon.blocks.borrow_mut().extend([first.clone(), last.clone()]);
                    let device = open::recording(daemon, &status, &ack_log).await;
                    let write = |at| device.submit(Command::write(Lba(at), Buf::zeroed(BLOCK), false));
                    write(0).await.result.unwrap();
                    // One task waits for the removal of a block device, and the other device stays.
                    let (told, waited_for) = (heard.clone(), first.clone());
                    let waiting = async move { told.set(take_down(&waited_for).await.is_ok()) };
                    daemon.reactor.runtime().spawn(waiting);
                    daemon.reactor.ring().unwrap().sleep(Duration::from_millis(1)).await;
                    handle_removal(daemon, &first).await;
                    assert!(daemon.phase.get() == Phase::Running && path.exists());
                    for number in 3..MEMBERS {
                        let file = AilmentFile::of(&image(dir, number)).unwrap();
                        fails.then(|| file.add(Ailment::Gone).unwrap());
                    }
                    // Emulated drives read their faults every 5 ms.
                    daemon.reactor.ring().unwrap().sleep(Duration::from_millis(20)).await;
                    // A write goes to some members; the flush also reaches the others.
                    write(1).await.result.unwrap();
                    handle_removal(daemon, &last).await;
                };
                daemon.reactor.wait(ended).unwrap();
                assert!(heard.get() && daemon.phase.get() == Phase::Ended);
                let failed = daemon.failure.borrow().as_ref().map(|error| format!("{error:#}"));
                assert_eq!((path.exists(), failed.is_some()), (fails, fails), "{failed:?}");
            });
        }
    }
}
