//! Reads, and the comparison of their blocks with the checksums.

use super::{
    block::{NO_SUM, is_last, is_valid, sum_in, sum_of},
    learn,
    state::{ChecksumInner, SumJob, SumJobParts, SumReader, ZoneSums},
};
use crate::{
    buf::{BLOCK, Buf, BufMut, is_zero},
    device::{Command, Completion, DeviceError, Done, Status},
    zone::ZoneIndex,
};
use std::rc::{Rc, Weak};

/// Where the checksum of a block is.
enum SumSource {
    /// In memory.
    Known(u32),
    /// Nowhere: it is unverified, or not written.
    Unverified,
    /// In the checksum block of its group, which is not in memory.
    OnDrive,
}

/// Reads blocks of a zone.
pub fn read(inner: &Rc<ChecksumInner>, zone: ZoneIndex, at: u64, data: Buf, oob: Buf) -> Completion {
    let refused = |error: DeviceError, data, oob| Completion::ready(Done { data, oob, ..Done::error(error) });
    let blocks = match inner.geometry.check_buffers(&data, &oob, inner.geometry.max_transfer_blocks) {
        Ok(blocks) if at + blocks <= inner.geometry.zone_capacity_blocks => blocks,
        Ok(_) => return refused(Status::ZoneBoundaryError.into(), data, oob),
        Err(status) => return refused(status.into(), data, oob),
    };
    let parts = match inner.shape.left_in_group(at) >= blocks {
        true => {
            let is_known = !matches!(source(inner, zone, at), SumSource::OnDrive);
            let sums = if is_known { None } else { begin_load(inner, zone, at) };
            let mut read = inner.device.submit(Command::read(inner.place(zone, at), data));
            // A drive in memory has answered already.
            let answered = if is_known { read.take() } else { None };
            match answered {
                Some(done) => match compare(inner, zone, at, &done, None) {
                    Some(result) => return Completion::ready(Done { result, ..done }),
                    None => SumJobParts::One(Completion::ready(done), sums),
                },
                None => SumJobParts::One(read, sums),
            }
        }
        false => SumJobParts::Several(data),
    };
    let (completer, completion) = inner.slots.pair();
    let idle = inner.idle.borrow_mut().pop();
    let reader = idle.unwrap_or_else(|| {
        let reader = Rc::new(SumReader::default());
        inner.runtime.spawn(serve(reader.clone(), Rc::downgrade(inner)));
        reader
    });
    let before = reader.job.replace(Some((SumJob { zone, at, parts }, completer)));
    assert!(before.is_none(), "a reader gets a read while it has one");
    reader.begun.open();
    completion
}

/// Task that waits for reads, one after the other.
async fn serve(reader: Rc<SumReader>, device: Weak<ChecksumInner>) {
    loop {
        let job = reader.job.borrow_mut().take();
        let Some((SumJob { zone, at, parts }, completer)) = job else {
            reader.begun.wait().await;
            continue;
        };
        let Some(inner) = device.upgrade() else { return };
        let done = match parts {
            SumJobParts::One(data, sums) => {
                // The checksum block is waited for even if the data cannot be read: others may need it.
                let loaded = match sums {
                    Some(read) => Some(end_load(&inner, zone, at, read.await)),
                    None => None,
                };
                let mut done = data.await;
                done.result = verify(&inner, zone, at, &done, loaded).await;
                done
            }
            SumJobParts::Several(data) => {
                let mut data = data.into_mut();
                let result = gather(&inner, zone, at, &mut data).await;
                Done { result, ..Done::with_data(data.freeze()) }
            }
        };
        // The reader is idle before the completion wakes the submitter, which may submit another read.
        inner.idle.borrow_mut().push(reader.clone());
        drop(inner);
        completer.complete(done);
    }
}

/// Reads blocks of several groups.
async fn gather(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    at: u64,
    data: &mut BufMut,
) -> Result<(), DeviceError> {
    let blocks = data.blocks();
    let (mut parts, mut sent) = (Vec::new(), 0);
    while sent < blocks {
        let count = inner.shape.left_in_group(at + sent).min(blocks - sent);
        let buf = inner.pool.borrow_mut().take(count).freeze();
        parts.push((sent, inner.device.submit(Command::read(inner.place(zone, at + sent), buf))));
        sent += count;
    }
    let mut result = Ok(());
    for (from, part) in parts {
        let mut done = part.await;
        done.result = verify(inner, zone, at + from, &done, None).await;
        if done.result.is_ok() {
            data[from as usize * BLOCK..][..done.data.len()].copy_from_slice(&done.data);
        }
        result = result.and(done.result);
        inner.pool.borrow_mut().give(done.data);
    }
    result
}

fn of(sum: u32) -> SumSource {
    if sum == NO_SUM { SumSource::Unverified } else { SumSource::Known(sum) }
}

/// Where the checksum of block `at` of a zone is.
fn source(inner: &ChecksumInner, zone: ZoneIndex, at: u64) -> SumSource {
    let first = inner.shape.first(at);
    let in_memory = inner.with(zone, |sums| match sums {
        ZoneSums::Open(open) if at >= open.first => Some(open.sum(at).unwrap_or(NO_SUM)),
        _ => None,
    });
    let key = (zone.0, first);
    let of_block = |block: &Buf| of(sum_in(block, at - first));
    in_memory
        .map(of)
        .or_else(|| inner.sealing.borrow().get(&key).map(of_block))
        .or_else(|| inner.cache.borrow().get(key).map(of_block))
        .unwrap_or(SumSource::OnDrive)
}

/// Begins to read the checksum block of the group of block `at`; `None` if that is being read already.
fn begin_load(inner: &ChecksumInner, zone: ZoneIndex, at: u64) -> Option<Completion> {
    let first = inner.shape.first(at);
    let mut loading = inner.loading.borrow_mut();
    if loading.contains_key(&(zone.0, first)) {
        return None;
    }
    loading.insert((zone.0, first), Rc::default());
    let buf = inner.pool.borrow_mut().take(1).freeze();
    Some(inner.device.submit(Command::read(inner.sum_place(zone, first), buf)))
}

/// Ends what [`begin_load`] has begun: the checksum block is kept in memory if it is valid. `None` if it was never
/// written.
///
/// # Errors
/// Unrecovered Read Error if it is not valid, and errors of the drive.
fn end_load(inner: &ChecksumInner, zone: ZoneIndex, at: u64, done: Done) -> Result<Option<Buf>, DeviceError> {
    let first = inner.shape.first(at);
    if let Some(gate) = inner.loading.borrow_mut().remove(&(zone.0, first)) {
        gate.open();
    }
    let is_blank = match done.result {
        Ok(()) => is_zero(&done.data),
        Err(error) => error == Status::DeallocatedBlock.into(),
    };
    if is_blank {
        return Ok(None);
    }
    done.result?;
    if is_valid(&done.data, &inner.owner(zone, first), inner.shape.len(first)) {
        inner.cache.borrow_mut().put((zone.0, first), done.data.clone());
        return Ok(Some(done.data));
    }
    inner.wrong_reads.set(inner.wrong_reads.get() + 1);
    Err(Status::UnrecoveredReadError.into())
}

/// The checksum block of the group of block `at`, from the drive.
async fn load(inner: &ChecksumInner, zone: ZoneIndex, at: u64) -> Result<Option<Buf>, DeviceError> {
    let key = (zone.0, inner.shape.first(at));
    loop {
        if let Some(read) = begin_load(inner, zone, at) {
            return end_load(inner, zone, at, read.await);
        }
        let gate = inner.loading.borrow().get(&key).cloned();
        if let Some(gate) = gate {
            gate.wait().await;
        }
        if let Some(block) = inner.cache.borrow().get(key) {
            return Ok(Some(block.clone()));
        }
    }
}

/// Compares the blocks of a read in one group, from block `at` on, with their checksums. `loaded` is the checksum block, if
/// it was read for this.
///
/// # Errors
/// Unrecovered Read Error, if a block differs, or the checksum block is not valid. Deallocated Or Unwritten Logical Block
/// only where nothing was written. Other errors of the drive.
async fn verify(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    at: u64,
    done: &Done,
    loaded: Option<Result<Option<Buf>, DeviceError>>,
) -> Result<(), DeviceError> {
    learn::look(inner, zone).await?;
    if let Some(result) = compare(inner, zone, at, done, None) {
        return result;
    }
    let loaded = match loaded {
        Some(loaded) => loaded?,
        None => load(inner, zone, at).await?,
    };
    if let Some(result) = compare(inner, zone, at, done, loaded.as_ref()) {
        return result;
    }
    let is_blank = done.result.is_err() || is_zero(&done.data);
    match is_blank && is_behind_end(inner, zone, inner.shape.first(at)).await? {
        true => done.result,
        false => Err(Status::UnrecoveredReadError.into()),
    }
}

/// The result of [`verify`]; `None` if it depends on a checksum block that is neither in memory nor `loaded`.
fn compare(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    at: u64,
    done: &Done,
    loaded: Option<&Buf>,
) -> Option<Result<(), DeviceError>> {
    let deallocated = Err(Status::DeallocatedBlock.into());
    if done.result.is_err() && done.result != deallocated {
        return Some(done.result);
    }
    let first = inner.shape.first(at);
    let wrong = Err(Status::UnrecoveredReadError.into());
    let find = |at: u64| match (source(inner, zone, at), loaded) {
        (SumSource::OnDrive, Some(sums)) => of(sum_in(sums, at - first)),
        (found, _) => found,
    };
    if matches!(find(at), SumSource::OnDrive) {
        return None;
    }
    if done.result == deallocated && inner.in_zrwa() {
        // One of them may be unwritten.
        let mut blocks = at..at + done.data.blocks();
        let is_written = blocks.all(|at| matches!(find(at), SumSource::Known(_)));
        return Some(if is_written { wrong } else { deallocated });
    }
    if done.result == deallocated {
        let next = inner.with(zone, |sums| match sums {
            ZoneSums::Open(open) => open.next(),
            _ => u64::MAX,
        });
        return Some(if at < next { wrong } else { deallocated });
    }
    for (at, block) in (at..).zip(done.data.chunks(BLOCK)) {
        let is_right = match find(at) {
            SumSource::Known(sum) => sum_of(block) == sum,
            SumSource::Unverified => true,
            SumSource::OnDrive => return None,
        };
        if !is_right {
            inner.wrong_reads.set(inner.wrong_reads.get() + 1);
            return Some(wrong);
        }
    }
    Some(Ok(()))
}

/// Whether the group that begins with block `first`, which has no checksum block, is behind the end of a zone that was
/// finished: the last checksum block before it says so.
async fn is_behind_end(inner: &ChecksumInner, zone: ZoneIndex, first: u64) -> Result<bool, DeviceError> {
    match inner.with(zone, |sums| matches!(sums, ZoneSums::Ended)) {
        true => ends_before(inner, zone, first).await,
        false => Ok(false),
    }
}

/// Whether the last checksum block before the group that begins with block `first` says that the zone was finished there.
pub async fn ends_before(inner: &ChecksumInner, zone: ZoneIndex, first: u64) -> Result<bool, DeviceError> {
    let mut first = first;
    while let Some(before) = first.checked_sub(inner.shape.group_blocks) {
        let kept = inner.cache.borrow().get((zone.0, before)).cloned();
        let found = match kept {
            Some(kept) => Some(kept),
            None => load(inner, zone, before).await?,
        };
        if let Some(found) = found {
            return Ok(is_last(&found));
        }
        first = before;
    }
    Ok(false)
}
