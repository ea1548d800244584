//! Requests: reads, writes, discards and flushes, each in the task of its caller.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completion, DeviceError, Done, Status},
    evidence::reread_verified,
    runtime::{COPY, SLICE, all, give_way, is_spent, work},
    volume::{
        address::{self, Address, GRAIN, GRAINS, Unit},
        compress::{self, WriteCount, WriteParts, part_end},
        core::{Need, PagePins, VolumeCore},
        format::{EntryKind, FANOUT},
        gc,
        map::in_one_page,
        piece::{Encoding, PackedPieces},
        space::ZonePurpose,
        state::{Distance, Keep, Lead, Piece, VolumeState},
        stream::Ticket,
        window,
    },
};
use std::cell::RefCell;

/// Number of pages of the map that are read ahead of the current one in a scan of extents.
const PAGES_AHEAD: u64 = 15;

/// Guard of a read in flight: the zone is not reset while it exists.
struct ZoneReader<'c> {
    core: &'c VolumeCore,
    zone: u32,
}

impl<'c> ZoneReader<'c> {
    fn new(core: &'c VolumeCore, place: Address) -> ZoneReader<'c> {
        let mut state = core.state.borrow_mut();
        let (zone, _) = state.space.locate(place);
        state.space.zone_mut(zone).readers += 1;
        ZoneReader { core, zone }
    }
}

impl Drop for ZoneReader<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.borrow_mut();
        let readers = &mut state.space.zone_mut(self.zone).readers;
        *readers -= 1;
        if *readers == 0 {
            drop(state);
            self.core.unread.open();
        }
    }
}

/// A run of a read: consecutive logical blocks, with pieces that lie one behind the other on the device, so that one
/// command reads them.
struct Run<'c> {
    /// Index of the first block in the read.
    from: u64,
    /// Offset of the first piece in the data read from the device, in grains.
    first_grain: u32,
    /// The pieces, in order; empty if all are whole blocks.
    pieces: Vec<PieceRead>,
    completion: Completion,
    _reader: ZoneReader<'c>,
}

/// A piece to be read and expanded: of its unit, `blocks` blocks from index `index` on are wanted.
struct PieceRead {
    grains: u32,
    unit: Unit,
    index: usize,
    blocks: usize,
}

impl PieceRead {
    /// The piece at `place`, of which `blocks` blocks from `block` on are wanted.
    fn of(place: Address, block: u64, blocks: u64) -> PieceRead {
        let (grains, unit) = (address::grains(place), address::unit(place));
        PieceRead { grains, unit, index: (block - unit.first(block)) as usize, blocks: blocks as usize }
    }
}

/// The groups that have to land before a request completes: for each stream the number of the last one, 0 for none.
#[derive(Default)]
struct RequestGroups([u64; 3]);

impl RequestGroups {
    fn add(&mut self, (index, groups): Ticket) {
        self.0[index] = self.0[index].max(groups);
    }

    /// Closes the groups that are large enough, and wakes the tasks of the streams.
    fn launch(&self, core: &VolumeCore) {
        for index in (0..3).filter(|index| self.0[*index] > 0) {
            core.launch(index, false);
            core.wake_stream(index);
        }
        core.note_writes();
    }

    /// Waits until all of the groups have landed.
    async fn wait(&self, core: &VolumeCore) -> Result<(), DeviceError> {
        for index in (0..3).filter(|index| self.0[*index] > 0) {
            core.wait_landed((index, self.0[index])).await?;
        }
        Ok(())
    }
}

/// The last page of the map for which a request has been counted.
#[derive(Default)]
struct CountedPage(Option<u64>);

impl CountedPage {
    /// Counts the page of a block, unless it is the last one. Of several pages that are needed together, the first counts.
    fn count(&mut self, core: &VolumeCore, block: u64) {
        let page = block / FANOUT;
        if self.0.replace(page) != Some(page) {
            let mut state = core.state.borrow_mut();
            let is_known = state.map.is_known(page as u32);
            state.count_lookups(1, is_known);
        }
    }
}

/// Checks that blocks lie in the volume.
///
/// # Errors
/// Invalid Field without blocks, LBA Out of Range beyond the end.
fn check_range(core: &VolumeCore, at: u64, blocks: u64) -> Result<(), DeviceError> {
    if blocks == 0 {
        Err(Status::InvalidField.into())
    } else if at.checked_add(blocks).is_none_or(|end| end > core.blocks.get()) {
        Err(Status::LbaOutOfRange.into())
    } else {
        Ok(())
    }
}

/// Checks that a buffer has whole blocks that lie in the volume; returns their number.
fn check_data(core: &VolumeCore, at: u64, data: &Buf) -> Result<u64, DeviceError> {
    if !data.len().is_multiple_of(BLOCK) {
        return Err(Status::InvalidField.into());
    }
    check_range(core, at, data.blocks()).map(|()| data.blocks())
}

/// Reads blocks into `data`, which must have no other references, from the first block of a view on: a block that is
/// unmapped there is read from the next one of the view, and so on. Blocks that are unmapped everywhere, and holes, read
/// as zeros. The first blocks have the same offset in their units.
pub async fn read(core: &VolumeCore, view: &[u64], mut data: Buf) -> Result<Buf, DeviceError> {
    let blocks = data.blocks();
    for start in view {
        check_data(core, *start, &data)?;
    }
    if let Some(place) = one_run(core, view, blocks) {
        let _reader = ZoneReader::new(core, place);
        let lba = core.state.borrow().lba(&*core.device, place);
        let done = core.device.submit(Command::read(lba, data)).await;
        return done.result.map(|()| done.data);
    }
    let (mut runs, mut from, mut counted) = (Vec::new(), 0, CountedPage::default());
    let bytes = data.as_mut().ok_or(Status::InvalidField)?;
    while from < blocks {
        view.iter().take(1).for_each(|start| counted.count(core, start + from));
        let pages = view.iter().map(|start| ((start + from) / FANOUT) as u32);
        let are_known = |state: &VolumeState| pages.clone().all(|page| state.map.is_known(page));
        let _pins;
        if !are_known(&core.state.borrow()) {
            // Deadlock: the wait for a page may be one for a checkpoint, which waits for readers of zones.
            end_runs(core, &mut runs, bytes).await?;
            _pins = core.hold_all(view.iter().map(|start| start + from), Need::Read).await?;
        }
        from += start_run(core, view, from, blocks, bytes, &mut runs)?;
        give_way().await;
    }
    end_runs(core, &mut runs, bytes).await?;
    Ok(data)
}

/// Waits for the started runs of a read, and copies or expands their data.
async fn end_runs(core: &VolumeCore, runs: &mut Vec<Run<'_>>, bytes: &mut [u8]) -> Result<(), DeviceError> {
    let mut failed = Ok(());
    for Run { from, first_grain, pieces, completion, _reader } in runs.drain(..) {
        let Done { result, data: read, .. } = completion.await;
        // Readers hold their zones until all runs have ended, also after an error.
        failed = failed.and(result);
        if failed.is_err() {
            continue;
        }
        work(read.blocks() as u32 * COPY);
        give_way().await;
        let target = &mut bytes[from as usize * BLOCK..];
        if pieces.is_empty() {
            target[..read.len()].copy_from_slice(&read);
        }
        let mut at = first_grain as usize * GRAIN;
        let mut rest = target;
        for PieceRead { grains, unit, index, blocks } in pieces {
            let (some, others) = rest.split_at_mut(blocks * BLOCK);
            let length = grains as usize * GRAIN;
            read.get(at..at + length)
                .and_then(|piece| core.decoder.borrow_mut().unpack_some(piece, (unit, index), some))
                .ok_or(Status::UnrecoveredReadError)?;
            (at, rest) = (at + length, others);
        }
        core.state.borrow_mut().pool.give(read);
    }
    failed
}

/// Fast path of reads: the place of the first block, if all blocks are uncompressed and consecutive on the device, and
/// their pages are in memory.
fn one_run(core: &VolumeCore, view: &[u64], blocks: u64) -> Option<Address> {
    let [at] = *view else { return None };
    let mut state = core.state.borrow_mut();
    let first = state.map.get(at).filter(|first| address::is_piece(*first) && address::is_whole(*first))?;
    let (_, offset) = state.space.locate(first);
    // Consecutive device blocks without a header between them are of one group. Pieces of one whose trailer is pending
    // land in several writes, the last one last.
    let fits = offset as u64 + blocks <= core.capacity() as u64
        && blocks <= core.device.geometry().max_transfer_blocks as u64
        && state.in_memory(first + blocks - 1).is_none()
        && !state.is_in_window(first);
    (fits && (1..blocks).all(|block| state.map.get(at + block) == Some(first + block)))
        .then_some(first)
        .inspect(|_| state.count_lookups((at + blocks - 1) / FANOUT - at / FANOUT + 1, true))
}

/// A part of a read into several buffers: a run that the device reads without a copy, or blocks from block `from` of the
/// read on that are read otherwise.
enum ReadPart<'c> {
    Direct(Completion, ZoneReader<'c>),
    Other { from: u64, blocks: u64 },
}

/// Reads blocks from `at` on into buffers of `buffers`, in order. Blocks that the device has in one piece
/// ([`crate::device::ZonedDevice::direct_read_blocks`]) are not copied; others are read as by [`read`].
pub async fn read_parts(
    core: &VolumeCore,
    at: u64,
    blocks: u64,
    buffers: &RefCell<BufPool>,
) -> Result<Vec<Buf>, DeviceError> {
    check_range(core, at, blocks)?;
    let (mut parts, mut from, mut counted) = (Vec::new(), 0, CountedPage::default());
    while from < blocks {
        let (place, count) = direct_run(core, at + from, blocks - from);
        match (place, parts.last_mut()) {
            (Some(place), _) => {
                counted.count(core, at + from);
                let reader = ZoneReader::new(core, place);
                let (lba, data) =
                    (core.state.borrow().lba(&*core.device, place), buffers.borrow_mut().take(count));
                let completion = core.device.submit(Command::read(lba, data.freeze()));
                parts.push(ReadPart::Direct(completion, reader));
            }
            (None, Some(ReadPart::Other { blocks, .. })) => *blocks += count,
            (None, _) => parts.push(ReadPart::Other { from, blocks: count }),
        }
        from += count;
        work(count as u32);
        give_way().await;
    }
    // Deadlock: the other parts may wait for pages of the map, and so for a checkpoint, which waits for readers of zones.
    let (mut read, mut others) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        read.push(match part {
            ReadPart::Direct(completion, _reader) => {
                let done = completion.await;
                done.result.map(|()| done.data)
            }
            ReadPart::Other { from, blocks } => {
                let (index, data) = (read.len(), buffers.borrow_mut().take(blocks).freeze());
                others.push(async move { (index, self::read(core, &[at + from], data).await) });
                Ok(Buf::default())
            }
        });
    }
    for (index, part) in all(others.into_iter()).await {
        read[index] = part;
    }
    read.into_iter().collect()
}

/// The place of the first of so many blocks that the device reads without a copy, and their number; no place for blocks
/// that have to be read otherwise.
fn direct_run(core: &VolumeCore, at: u64, blocks: u64) -> (Option<Address>, u64) {
    let mut state = core.state.borrow_mut();
    let is_direct = |first: &Address| address::is_piece(*first) && address::is_whole(*first);
    let first = state.map.get(at).filter(is_direct).filter(|first| !state.is_in_window(*first));
    let Some(first) = first else { return (None, 1) };
    let (device, unit) = (&core.device, core.device.direct_read_blocks());
    let (_, offset) = state.space.locate(first);
    let (_, in_zone) = device.geometry().locate(state.lba(&**device, first));
    let most = (unit - in_zone % unit)
        .min(device.geometry().max_transfer_blocks.min(core.capacity() - offset) as u64)
        .min(blocks);
    let more = (1..most).take_while(|block| state.map.get(at + block) == Some(first + block)).count();
    let count = 1 + more as u64;
    // As in `one_run`: the last block of a group lands last.
    (Some(first).filter(|first| state.in_memory(first + more as Address).is_none()), count)
}

/// Starts the next part of a read, from block `from` of it on: one unmapped block, blocks of one unit in memory, or a
/// run on the device, for which a command is submitted. Returns the number of blocks. The pages of the first one have to
/// be known.
fn start_run<'c>(
    core: &'c VolumeCore,
    view: &[u64],
    from: u64,
    blocks: u64,
    bytes: &mut [u8],
    runs: &mut Vec<Run<'c>>,
) -> Result<u64, DeviceError> {
    let mut state = core.state.borrow_mut();
    let target = &mut bytes[from as usize * BLOCK..];
    let Some(at) = view.first() else {
        target[..(blocks - from) as usize * BLOCK].fill(0);
        return Ok(blocks - from);
    };
    // The run ends with the first page.
    let blocks = in_one_page(view.iter().map(|start| start + from), blocks - from) + from;
    let first = state.seen(view, from);
    if first == 0 {
        target[..BLOCK].fill(0);
        work(COPY / 2);
        return Ok(1);
    }
    let of_first = run_of(&mut state, (view, from), blocks - from, first);
    if let Some(source) = state.in_memory(first) {
        let PieceRead { unit, index, blocks, .. } = PieceRead::of(first, at + from, of_first);
        let some = &mut target[..blocks * BLOCK];
        work(blocks as u32 * COPY);
        let made = core.decoder.borrow_mut().unpack_some(source, (unit, index), some);
        return made.map(|()| of_first).ok_or(Status::UnrecoveredReadError.into());
    }
    if state.is_in_window(first) {
        // All copies of its cell were damaged at the start.
        return Err(Status::UnrecoveredReadError.into());
    }
    let (zone, offset) = state.space.locate(first);
    let most = core.device.geometry().max_transfer_blocks.min(core.capacity() - offset);
    // End of the run so far, in grains from the start of the block in which the first piece begins: the next piece has
    // to begin there.
    let mut end = address::from(first) + address::grains(first);
    let (mut count, mut pieces) = (of_first, Vec::new());
    if !address::is_whole(first) {
        pieces.push(PieceRead::of(first, at + from, of_first));
    }
    while from + count < blocks
        && let next = state.seen(view, from + count)
        && next != 0
        && next == state.space.piece(zone, offset, end, (address::unit(next), address::grains(next)))
        && (end + address::grains(next)).div_ceil(GRAINS) <= most
        && (address::is_whole(next) || !pieces.is_empty())
        && state.in_memory(next).is_none()
    {
        let of_next = run_of(&mut state, (view, from + count), blocks - from - count, next);
        end += address::grains(next);
        if !pieces.is_empty() {
            pieces.push(PieceRead::of(next, at + from + count, of_next));
        }
        count += of_next;
    }
    let lba = state.lba(&*core.device, first);
    let data = state.pool.take(end.div_ceil(GRAINS) as u64).freeze();
    drop(state);
    let completion = core.device.submit(Command::read(lba, data));
    let first_grain = address::from(first);
    runs.push(Run { from, first_grain, pieces, completion, _reader: ZoneReader::new(core, first) });
    Ok(count)
}

/// Reads block `at`, and every alternative that the device has for it, until `verify` accepts one. No request that
/// writes may be in progress.
///
/// # Errors
/// When the block cannot be read, or nothing verifies.
pub async fn read_verified<T>(
    core: &VolumeCore,
    at: u64,
    verify: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, DeviceError> {
    let read = read(core, &[at], Buf::zeroed(BLOCK)).await;
    if let Err(DeviceError::Gone) = read {
        return Err(DeviceError::Gone);
    }
    if let Ok(data) = &read
        && let Some(found) = verify(data)
    {
        return Ok(found);
    }
    core.hold((at / FANOUT) as u32, Need::Read).await?;
    let is_one = |place: &Address| address::is_piece(*place) && address::is_whole(*place);
    let place = core.state.borrow_mut().map.get(at).filter(is_one);
    if let Some(place) = place {
        let lba = core.state.borrow().lba(&*core.device, place);
        if let Some(found) = reread_verified(&*core.device, lba, verify).await {
            core.reread.set(core.reread.get() + 1);
            return Ok(found);
        }
    }
    Err(read.err().unwrap_or(Status::UnrecoveredReadError.into()))
}

/// How blocks are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteTerms {
    /// They are durable at the return.
    pub fua: bool,
    /// Compression.
    pub encoding: Option<Encoding>,
    /// They are of the table of a pool: new blocks may use the reserve, like overwritten ones, and none is squeezed, since
    /// [`read_verified`] has alternatives for whole pieces only.
    pub of_table: bool,
    /// Where a snapshot keeps the blocks.
    pub keep: Option<Keep>,
}

/// The blocks whose pages a change of `block` needs: it, and those where it may be kept.
fn concerned(block: u64, keep: Option<Keep>) -> impl Iterator<Item = u64> + Clone {
    let [to, merged] = [keep.map(|keep| keep.to), keep.and_then(|keep| keep.merged)];
    let others = [to, merged].into_iter().flatten().map(move |distance| distance.of(block));
    std::iter::once(block).chain(others)
}

/// Writes blocks from `at` on.
///
/// # Errors
/// Capacity Exceeded if there is not enough room; some blocks may have been written.
pub async fn write(
    core: &VolumeCore,
    at: u64,
    data: &Buf,
    WriteTerms { fua, encoding, of_table, keep }: WriteTerms,
) -> Result<(), DeviceError> {
    let blocks = check_data(core, at, data)?;
    core.check()?;
    core.note_use();
    let (mut request_groups, mut from, mut result) = (RequestGroups::default(), 0, Ok(()));
    let flushes = fua && core.options.fua_stands_alone && core.device.geometry().volatile_cache;
    let _writing = WriteCount::new(core);
    core.state.borrow_mut().lone.count_write();
    let may_be_hot = blocks == 1 && encoding.is_none() && keep.is_none() && !of_table;
    if may_be_hot && window::write(core, at, data).await? {
        return Ok(());
    }
    let (mut parts, mut counted) = (WriteParts::default(), CountedPage::default());
    while from < blocks && result.is_ok() {
        let (first, mut end, mut packed) = (from, blocks, None);
        if let Some(encoding) = encoding {
            end = part_end(at, first, data);
            if !compress::passes(core, end - first, &parts) {
                packed = Some(compress::pack(core, at, data, first..end, encoding, &mut parts).await);
                // Compression takes 100 µs or more: the slice of this task is used up.
                work(SLICE);
            }
        }
        let pieces = (first, packed.as_ref());
        while from < end && result.is_ok() {
            give_way().await;
            counted.count(core, at + from);
            let pins = hold_to_change(core, concerned(at + from, keep), &request_groups).await?;
            let before = from;
            let terms = WriteTerms { fua: fua && !flushes, encoding, of_table, keep };
            result = place_blocks(core, at, data, (&mut from, end, terms), pieces, &mut request_groups);
            drop(pins);
            if from == before && result.is_ok() {
                request_groups.launch(core);
                core.few.open();
                result = wait_for_room(core).await;
            }
        }
    }
    request_groups.launch(core);
    request_groups.wait(core).await?;
    if flushes {
        core.flush_device().await?;
    }
    result
}

/// Waits until the pages of blocks can be changed. After an error the groups of the request so far are closed.
async fn hold_to_change<'c>(
    core: &'c VolumeCore,
    blocks: impl Iterator<Item = u64> + Clone,
    request_groups: &RequestGroups,
) -> Result<PagePins<'c>, DeviceError> {
    let held = core.hold_all(blocks, Need::Write).await;
    if held.is_err() {
        request_groups.launch(core);
    }
    held
}

/// Waits until there may be room for a write. Fails after a write error, which may have happened during a wait for a
/// page: nothing would make room then.
///
/// # Errors
/// Capacity Exceeded if nothing will make room: more zones than are spare are lost or cannot be emptied.
async fn wait_for_room(core: &VolumeCore) -> Result<(), DeviceError> {
    core.check()?;
    if gc::makes_room(core) {
        core.room.wait().await;
        return core.check();
    }
    // Groups in flight may fill a zone, which can be collected then; and a checkpoint frees dead zones.
    let (groups, checkpoint) = {
        let state = core.state.borrow();
        let on_its_way = state.streams.iter().position(|stream| stream.landed() < stream.closed());
        let groups = on_its_way.map(|index| (index, state.streams[index].closed()));
        (groups, state.done < state.begun.max(state.wanted))
    };
    match groups {
        Some(groups) => core.wait_landed(groups).await,
        None if checkpoint => {
            core.ended.wait().await;
            core.check()
        }
        None if window::give_up(core) => {
            core.room.wait().await;
            core.check()
        }
        None => Err(refuse(core)),
    }
}

/// Counts a request that is refused for lack of room, and wakes garbage collection.
pub fn refuse(core: &VolumeCore) -> DeviceError {
    core.state.borrow_mut().refused += 1;
    core.few.open();
    Status::CapacityExceeded.into()
}

/// Places blocks of a write, from `from` on, in groups: up to `end`, within one page of the map, and as many as there
/// is room for at present; advances `from`. `packed` has the pieces of the blocks from `first` on.
///
/// # Errors
/// Capacity Exceeded if a block would take more room than there is.
fn place_blocks(
    core: &VolumeCore,
    at: u64,
    data: &Buf,
    (from, end, terms): (&mut u64, u64, WriteTerms),
    (first, packed): (u64, Option<&PackedPieces>),
    request_groups: &mut RequestGroups,
) -> Result<(), DeviceError> {
    let (mut encoder, mut state) = (core.encoder.borrow_mut(), core.state.borrow_mut());
    let end = *from + in_one_page(concerned(at + *from, terms.keep), end - *from);
    while *from < end && state.may_write() {
        let block = at + *from;
        let before = state.map.get(block).unwrap_or(0);
        let piece = packed.and_then(|packed| packed.piece((*from - first) as usize));
        let piece = piece.unwrap_or_else(|| (&data[*from as usize * BLOCK..][..BLOCK], Unit::BLOCK));
        let piece = Piece::all(piece);
        if !state.has_room(block, (piece.unit, piece.grains()), terms.of_table, terms.keep) {
            drop(state);
            return Err(refuse(core));
        }
        let (stream, blocks) = (state.stream_of(before, core.options.apart), piece.unit.blocks());
        let leads = terms.keep.into_iter().flat_map(|keep| keep.leads(block, blocks));
        let pieces_left = (data.blocks() - *from).div_ceil(blocks as u64);
        let expected = pieces_left * (1 + leads.clone().count() as u64);
        let of_stream = (stream, terms.fua, expected);
        let squeezed = state.squeezed_grains(core.log(), piece, of_stream).filter(|_| !terms.of_table);
        let squeezed = squeezed.and_then(|grains| {
            encoder.get_or_insert_default().squeeze(piece.bytes, grains, &mut state.squeezing)
        });
        let piece = Piece { bytes: squeezed.unwrap_or(piece.bytes), ..piece };
        let Some(ticket) = state.place(core.log(), block, piece, of_stream, leads) else {
            break;
        };
        request_groups.add(ticket);
        *from += blocks as u64;
        if is_spent() {
            break;
        }
    }
    Ok(())
}

/// How blocks are changed without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// They are unmapped: they read as zeros, and take no room. A snapshot keeps them.
    Discard(Option<Keep>),
    /// They become [holes](address::HOLE).
    Hole,
    /// [`EntryKind::Merge`], of the blocks at this distance.
    Merge(Distance),
    /// [`EntryKind::Return`], of the blocks at this distance.
    Return(Distance),
}

impl MapChange {
    /// The blocks whose pages a change of `block` needs.
    fn concerned(self, block: u64) -> impl Iterator<Item = u64> + Clone {
        let (keep, other) = match self {
            MapChange::Discard(keep) => (keep, None),
            MapChange::Hole => (None, None),
            MapChange::Merge(from) | MapChange::Return(from) => (None, Some(from.of(block))),
        };
        concerned(block, keep).chain(other)
    }

    /// Entries for blocks of one page each.
    fn entries(self, block: u64, blocks: u32) -> impl Iterator<Item = Lead> + Clone {
        let (keep, kind) = match self {
            MapChange::Discard(keep) => (keep, EntryKind::Discard(blocks)),
            MapChange::Hole => (None, EntryKind::Hole(blocks)),
            MapChange::Merge(from) => (None, EntryKind::Merge { from: from.of(block) as u32, blocks }),
            MapChange::Return(from) => (None, EntryKind::Return { from: from.of(block) as u32, blocks }),
        };
        keep.into_iter().flat_map(move |keep| keep.leads(block, blocks)).chain([(block, kind)])
    }

    /// Whether a change of `block` changes nothing. The pages have to be known.
    fn is_idle(self, state: &mut VolumeState, block: u64) -> bool {
        match self {
            MapChange::Discard(_) => state.known(block) == 0,
            MapChange::Hole => state.known(block) == address::HOLE,
            MapChange::Merge(from) | MapChange::Return(from) => state.known(from.of(block)) == 0,
        }
    }
}

/// Changes blocks from `at` on without data. In effect from the return on, and durable after a flush.
///
/// # Errors
/// Capacity Exceeded if a snapshot keeps parts of units for which there is no room.
pub async fn change(core: &VolumeCore, at: u64, blocks: u64, how: MapChange) -> Result<(), DeviceError> {
    for first in how.concerned(at) {
        check_range(core, first, blocks)?;
    }
    core.check()?;
    core.note_use();
    let (mut request_groups, mut block, end) = (RequestGroups::default(), at, at + blocks);
    let (mut purpose, mut counted) = (ZonePurpose::Writer, CountedPage::default());
    while block < end {
        give_way().await;
        // Without a page that was ever written there is nothing to change.
        let of_page = match how {
            MapChange::Hole => None,
            MapChange::Discard(_) => Some(block),
            MapChange::Merge(from) | MapChange::Return(from) => Some(from.of(block)),
        };
        let skipped =
            of_page.map_or(0, |of_page| next_page(core, of_page, of_page + (end - block)) - of_page);
        if skipped > 0 {
            block += skipped;
            continue;
        }
        let part = in_one_page(how.concerned(block), end - block);
        counted.count(core, block);
        let pins = hold_to_change(core, how.concerned(block), &request_groups).await?;
        let is_changed = change_part(core, (block, part as u32), how, purpose, &mut request_groups)?;
        drop(pins);
        if !is_changed {
            request_groups.launch(core);
            core.few.open();
            match wait_for_room(core).await {
                // If nothing else makes room, a discard may begin a zone of the map's share, since it frees others.
                Err(DeviceError::Status(Status::CapacityExceeded)) if purpose == ZonePurpose::Writer => {
                    purpose = ZonePurpose::Discard;
                }
                result => result?,
            }
            continue;
        }
        block += part;
    }
    request_groups.launch(core);
    request_groups.wait(core).await?;
    // Garbage collection may need the zones that are dead now.
    core.few.open();
    core.freed.open();
    Ok(())
}

/// Changes blocks of one page, if the pages that this concerns are known. `false` if there is no room for an entry at
/// present; another zone is begun only if `purpose` permits it.
fn change_part(
    core: &VolumeCore,
    (block, blocks): (u64, u32),
    how: MapChange,
    purpose: ZonePurpose,
    request_groups: &mut RequestGroups,
) -> Result<bool, DeviceError> {
    let mut state = core.state.borrow_mut();
    if (block..block + blocks as u64).all(|block| how.is_idle(&mut state, block)) {
        // The blocks are changed already, but the entry that did so may still be in flight: it has to land.
        let index = state.discards(core.options.apart);
        request_groups.add((index, state.streams[index].begun()));
        return Ok(true);
    }
    if let MapChange::Discard(Some(keep)) = how
        && let Some(held) = state.keeps(block, blocks, keep)
        && !state.space.has_room_for_new(state.space.family(block), held)
    {
        drop(state);
        request_groups.launch(core);
        return Err(refuse(core));
    }
    let ticket = state.change((core.log(), core.options.apart), how.entries(block, blocks), purpose);
    Ok(ticket.is_some_and(|ticket| {
        request_groups.add(ticket);
        true
    }))
}

/// Skips pages that were never written: the first block from `block` on, before `end`, in a page that may exist; `end`
/// if there is none.
fn next_page(core: &VolumeCore, block: u64, end: u64) -> u64 {
    let (page, end_page) = (block / FANOUT, end.div_ceil(FANOUT));
    let next = core.state.borrow().map.next_page(page as u32, end_page as u32) as u64;
    if next == page { block } else { end.min(next * FANOUT) }
}

/// Whether the block at `at` is mapped, and the length of the extent from there, 1 to `most` blocks, in which all
/// blocks are mapped, or all are not.
pub async fn extent(core: &VolumeCore, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
    check_range(core, at, most)?;
    let (mut block, end, mut first) = (at, at + most, None);
    while block < end {
        give_way().await;
        let next = next_page(core, block, end);
        if next > block {
            // Blocks of a page that does not exist are unmapped.
            if first.replace(false) == Some(true) {
                return Ok((true, block - at));
            }
            block = next;
            continue;
        }
        let page = block / FANOUT;
        let part_end = end.min((page + 1) * FANOUT);
        if !core.state.borrow().map.is_known(page as u32) {
            let last = ((end - 1) / FANOUT).min(page + PAGES_AHEAD);
            core.fetch((page as u32)..=(last as u32), Need::Read).await;
            core.hold(page as u32, Need::Read).await?;
        }
        let mut state = core.state.borrow_mut();
        for block in block..part_end {
            // Holes count as mapped.
            let mapped = state.map.get(block).unwrap_or(0) != 0;
            if *first.get_or_insert(mapped) != mapped {
                return Ok((!mapped, block - at));
            }
        }
        block = part_end;
    }
    Ok((first == Some(true), most))
}

/// As [`extent`], of a view, as [`read`] has it; holes count as unmapped.
pub async fn extent_of_view(core: &VolumeCore, view: &[u64], most: u64) -> Result<(bool, u64), DeviceError> {
    for start in view {
        check_range(core, *start, most)?;
    }
    let (mut index, mut first) = (0, None);
    while index < most {
        give_way().await;
        let starts = view.iter().map(|start| start + index);
        let _pins = core.hold_all(starts.clone(), Need::Read).await?;
        let mut state = core.state.borrow_mut();
        let end = index + in_one_page(starts, most - index);
        for index in index..end {
            let mapped = state.seen(view, index) != 0;
            if *first.get_or_insert(mapped) != mapped {
                return Ok((!mapped, index));
            }
        }
        index = end;
    }
    Ok((first == Some(true), most))
}

/// Makes everything durable that was written before this call, whether it has completed or not.
pub async fn settle(core: &VolumeCore) -> Result<(), DeviceError> {
    for ticket in core.close_all() {
        core.wait_landed(ticket).await?;
    }
    flush(core).await
}

/// Makes all writes durable that have completed before this call.
pub async fn flush(core: &VolumeCore) -> Result<(), DeviceError> {
    core.check()?;
    core.state.borrow_mut().lone.count_flush();
    // The groups of completed writes have landed, so a flush of the device covers them.
    core.flush_device().await
}

/// Number of consecutive blocks from block `index` of a view on, at most `most`, that are in the same unit and at the
/// same place as that one. The pages have to be known.
fn run_of(state: &mut VolumeState, (view, index): (&[u64], u64), most: u64, place: Address) -> u64 {
    let (unit, block) = (address::unit(place), view[0] + index);
    let most = most.min(unit.first(block) + unit.blocks() as u64 - block);
    (1..most).find(|next| state.seen(view, index + next) != place).unwrap_or(most)
}
