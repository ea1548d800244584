//! Reads, normal and degraded.
//!
//! A read that lies on one member is submitted to it directly. All other reads, and direct reads that fail, are carried
//! out by a reader: a task that is kept for later reads.
//!
//! A chunk that cannot be read is decoded from parity and the blocks of the other chunks that lie below the tail: above
//! the tail a member may hold blocks of writes that did not complete, which parity does not cover. The parities of a
//! partial stripe are taken from memory.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode,
    device::{Command, Completion, DeviceError, Done, Status},
    raid::{
        geometry::{ChunkRange, Role},
        members::is_unreadable,
        parts::Raid,
        seat::Seat,
        zone::{
            flow::{Flow, Parities, Zone},
            reader::{ReadJob, ReadWorker},
        },
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

impl Raid {
    /// Reads `data.blocks()` blocks from block `at` of a zone.
    pub fn read(self: &Rc<Self>, zone: ZoneIndex, at: u64, data: Buf) -> Completion {
        let (blocks, losses) = (data.blocks(), self.members.losses());
        let direct = self.direct(zone, at, &data);
        let (data, direct) = match direct {
            Some((member, piece)) => {
                let mut completion =
                    self.members.submit(member, Command::read(self.place(zone, member, piece), data));
                match completion.take() {
                    Some(done) if done.result.is_ok() && !self.notices_power_loss(1 << member) => {
                        self.note_read(zone, member, piece, Ok(()));
                        return Completion::ready(done);
                    }
                    Some(done) => {
                        (Buf::default(), Some((self.members.seat(member), Completion::ready(done))))
                    }
                    None => (Buf::default(), Some((self.members.seat(member), completion))),
                }
            }
            None => (data, None),
        };
        let (completer, completion) = self.slots.pair();
        let reader = self.readers.take().unwrap_or_else(|| {
            let reader = Rc::new(ReadWorker::default());
            self.runtime.spawn(self.clone().serve_reads(reader.clone()));
            reader
        });
        *reader.job.borrow_mut() = Some(ReadJob { zone, at, blocks, data, completer, losses, direct });
        reader.work.open();
        completion
    }

    /// The member that can serve the whole read, and the piece to read; `None` if there is no such member.
    fn direct(&self, zone: ZoneIndex, at: u64, data: &Buf) -> Option<(usize, ChunkRange)> {
        let (blocks, (_, offset)) = (data.blocks(), self.layout.chunk_of(at));
        if offset + blocks > self.layout.chunk_blocks || at + blocks > self.tail(zone) {
            return None;
        }
        let piece = self.piece(at, blocks);
        assert!(piece.to <= self.layout.chunk_blocks, "a direct read of {piece:?}");
        let member = self.layout.member(piece.stripe, piece.index);
        let is_direct = self.has_piece(zone, member, piece) && !self.has_relocated(zone, member);
        is_direct.then_some((member, piece))
    }

    /// Whether `member` holds its blocks of the stripe's row at `piece`'s offsets, as far as is known without reading.
    pub(super) fn has_piece(&self, zone: ZoneIndex, member: usize, piece: ChunkRange) -> bool {
        let at = piece.stripe * self.layout.chunk_blocks;
        self.live(zone) & (1 << member) != 0
            && !self.zone_records.has_bad_block(zone, member, at + piece.from..at + piece.to)
            && (self.members.suspects() & (1 << member) == 0 || !self.zones.is_running(zone))
            && at + piece.to <= self.kept_end(zone, member)
    }

    /// Exclusive end of the blocks that a member is known to keep of its part of a zone; `u64::MAX` if all. A part that
    /// becomes read-only while the array runs may have lost the contents of its ZRWA.
    pub(super) fn kept_end(&self, zone: ZoneIndex, member: usize) -> u64 {
        let cut = self.zones.cut_end(zone, member);
        let may_lack_zrwa = self.zones.stuck_members(zone) & (1 << member) != 0
            && self.layout.policy.uses_zrwa()
            && self.members.is_worn(member)
            && !self.zones.is_read_only(zone);
        let Some(running) = self.zones.running(zone).filter(|_| may_lack_zrwa) else { return cut };
        let passed =
            running.flow.borrow().positions()[member] * self.layout.policy.position_blocks(&self.layout);
        passed.min(cut)
    }

    /// Task of a reader: carries out its reads, one after the other.
    async fn serve_reads(self: Rc<Self>, reader: Rc<ReadWorker>) {
        loop {
            let work = reader.work.wait();
            let job = reader.job.borrow_mut().take();
            if let Some(job) = job {
                self.carry_out(job).await;
                self.readers.give(reader.clone());
                continue;
            }
            if reader.ended.get() {
                return;
            }
            work.await;
        }
    }

    async fn carry_out(self: &Rc<Self>, job: ReadJob) {
        let ReadJob { zone, at, blocks, mut data, completer, losses, direct } = job;
        if let Some((seat, completion)) = direct {
            let done = completion.await;
            self.note_read(zone, seat.member, self.piece(at, blocks), done.result);
            self.notices_power_loss(1 << seat.member);
            match done.result {
                Ok(()) if self.members.losses() == losses => return completer.complete(done),
                Ok(()) => {}
                Err(error) => self.read_failed(zone, seat, error),
            }
            data = done.data;
        }
        if data.blocks() != blocks {
            // The failed read has not returned the buffer.
            data = Buf::zeroed(blocks as usize * BLOCK);
        }
        let result = loop {
            self.power_checked().await;
            self.parts_checked(zone).await;
            let losses = self.members.losses();
            let result = self.read_pieces(zone, at, &mut data).await;
            if self.members.losses() == losses {
                break result;
            }
        };
        completer.complete(Done { result, data, ..Done::ok() });
    }

    /// Counts a read error. The member of a drive that is gone is taken out; a part in an offline zone is lost.
    pub fn read_failed(&self, zone: ZoneIndex, seat: Seat, error: DeviceError) {
        self.members.count_read_error(seat.member);
        if matches!(error, DeviceError::Gone | DeviceError::Timeout) {
            self.member_failed(seat, error, "read");
        } else if error == Status::ZoneIsOffline.into() {
            self.part_failed(zone, seat, error, "read");
        }
    }

    /// Records after a read whether the member's drive can read `piece`.
    fn note_read(&self, zone: ZoneIndex, member: usize, piece: ChunkRange, result: Result<(), DeviceError>) {
        let at = piece.stripe * self.layout.chunk_blocks;
        self.note_read_of(zone, member, at + piece.from..at + piece.to, result);
    }

    /// As [`Raid::note_read`], for `blocks` counted from the start of the part.
    pub fn note_read_of(
        &self,
        zone: ZoneIndex,
        member: usize,
        blocks: Range<u64>,
        result: Result<(), DeviceError>,
    ) {
        match result {
            Ok(()) => self.zone_records.unreadable.remove(zone.0, member, blocks),
            Err(error) if is_unreadable(error) && self.members.is_active(member) => {
                self.zone_records.unreadable.add(zone.0, member, blocks);
            }
            Err(_) => {}
        }
    }

    /// End of the blocks of a zone that hold data; blocks above are read as zeros.
    pub fn tail(&self, zone: ZoneIndex) -> u64 {
        match self.zones.complete(zone) {
            Some(complete) => complete,
            None if self.zones.state(zone) == ZoneState::Full => self.finished_tail(zone),
            None => 0,
        }
    }

    /// The tail of a full zone.
    pub fn finished_tail(&self, zone: ZoneIndex) -> u64 {
        self.zone_records.record(zone).finished.unwrap_or(self.layout.capacity_blocks())
    }

    /// The blocks of a read of `blocks` blocks from block `at` of a zone that are in the chunk of `at`.
    pub(super) fn piece(&self, at: u64, blocks: u64) -> ChunkRange {
        let layout = &self.layout;
        let ((chunk, from), k) = (layout.chunk_of(at), layout.data_chunks());
        let stripe = chunk / k;
        ChunkRange { stripe, index: chunk - stripe * k, from, to: layout.chunk_blocks.min(from + blocks) }
    }

    /// Address of `piece` on `member`, in the row of its stripe.
    pub fn place(&self, zone: ZoneIndex, member: usize, piece: ChunkRange) -> Lba {
        Lba(self.members.start(member, zone).0 + piece.stripe * self.layout.chunk_blocks + piece.from)
    }

    /// Reads blocks of a zone from block `at` on into `data`, piece by piece; pieces that cannot be read are decoded.
    async fn read_pieces(
        self: &Rc<Self>,
        zone: ZoneIndex,
        at: u64,
        data: &mut Buf,
    ) -> Result<(), DeviceError> {
        let blocks = data.blocks();
        let tail = self.tail(zone);
        let mut pending = Vec::new();
        let mut done_blocks = 0;
        while done_blocks < blocks && at + done_blocks < tail {
            let left = (blocks - done_blocks).min(tail - at - done_blocks);
            let piece = self.piece(at + done_blocks, left);
            let member = self.layout.member(piece.stripe, piece.index);
            let completion = self.has_piece(zone, member, piece).then(|| {
                let buf = self.pool.borrow_mut().take(piece.to - piece.from).freeze();
                self.members.submit(member, Command::read(self.place(zone, member, piece), buf))
            });
            pending.push((done_blocks, piece, self.members.seat(member), completion));
            done_blocks += piece.to - piece.from;
        }
        for (block, piece, seat, completion) in pending {
            let mut found = None;
            if let Some(completion) = completion {
                found = self.take_read(zone, seat, piece, completion.await).await.ok();
            }
            let bytes = match found {
                Some(bytes) => bytes,
                None => match self.reconstruct(zone, piece).await {
                    Ok(bytes) => bytes,
                    Err(error) => self.read_singly(zone, piece).await.ok_or(error)?,
                },
            };
            let target = data.as_mut().ok_or(DeviceError::Status(Status::InvalidField))?;
            target[block as usize * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
            self.pool.borrow_mut().give(bytes);
        }
        if done_blocks < blocks && self.zones.is_offline(zone) {
            // A read-only zone may have held more blocks, above the end that recovery found.
            return Err(Status::UnrecoveredReadError.into());
        }
        if done_blocks < blocks {
            let target = data.as_mut().ok_or(DeviceError::Status(Status::InvalidField))?;
            target[done_blocks as usize * BLOCK..].fill(0);
        }
        Ok(())
    }

    /// Reads `piece` from its own member; `None` if the member lacks it or the read fails.
    async fn read_own(&self, zone: ZoneIndex, piece: ChunkRange) -> Option<Buf> {
        let member = self.layout.member(piece.stripe, piece.index);
        if !self.has_piece(zone, member, piece) {
            return None;
        }
        let buf = self.pool.borrow_mut().take(piece.to - piece.from).freeze();
        let seat = self.members.seat(member);
        let done = self.members.submit(member, Command::read(self.place(zone, member, piece), buf)).await;
        match done.result {
            Ok(()) => self.take_read(zone, seat, piece, done).await.ok(),
            Err(_) => None,
        }
    }

    /// Reads `piece` block by block, since several members may have unreadable blocks in it. Each block is read from
    /// its own member, which may have been rebuilt meanwhile, or decoded from the others. `None` if a block is lost.
    async fn read_singly(self: &Rc<Self>, zone: ZoneIndex, piece: ChunkRange) -> Option<Buf> {
        let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
        for from in piece.from..piece.to {
            let single = ChunkRange { from, to: from + 1, ..piece };
            let found = match self.read_own(zone, single).await {
                Some(found) => found,
                None => self.reconstruct(zone, single).await.ok()?,
            };
            whole.block_mut(from - piece.from).copy_from_slice(&found);
        }
        Some(whole.freeze())
    }

    /// Decodes `piece` from the other members.
    pub async fn reconstruct(
        self: &Rc<Self>,
        zone: ZoneIndex,
        piece: ChunkRange,
    ) -> Result<Buf, DeviceError> {
        let partial = match self.zones.running(zone) {
            Some(running) => self.partial_stripe(&running, piece).await?,
            None => None,
        };
        let (tail, known) = partial.unwrap_or_else(|| (self.tail(zone), Parities::default()));
        let decoded = self.decode(zone, piece, Role::Data(piece.index), tail, &known).await;
        decoded.map_err(|_| Status::UnrecoveredReadError.into())
    }

    /// Tail and running parities of the stripe that is being written, at `piece`'s offsets; `None` if the parities of
    /// the stripe are on the members. Waits until all blocks below this tail are complete: they do not change any more,
    /// so writes may continue meanwhile.
    ///
    /// # Errors
    /// Unrecovered Read Error, if the zone fails before that: the parities cover blocks that are not on the members.
    pub(super) async fn partial_stripe(
        &self,
        zone: &Zone,
        piece: ChunkRange,
    ) -> Result<Option<(u64, Parities)>, DeviceError> {
        let (tail, known) = {
            let flow = zone.flow.borrow();
            let end = (piece.stripe + 1) * self.layout.stripe_blocks();
            let Some((tail, is_in_memory)) = flow.partial_stripe(end) else { return Ok(None) };
            (tail, is_in_memory.then(|| self.running_parities(&flow, piece)))
        };
        match zone.wait_until_complete(tail).await {
            true => Ok(known.map(|known| (tail, known))),
            false => Err(Status::UnrecoveredReadError.into()),
        }
    }

    /// Copies the running parities at `piece`'s offsets.
    pub fn running_parities(&self, flow: &Flow, piece: ChunkRange) -> Parities {
        let bytes = piece.from as usize * BLOCK..piece.to as usize * BLOCK;
        let copy = |which: usize| self.copy(&flow.parities[which][bytes.clone()]);
        std::array::from_fn(|which| (which < self.layout.parities).then(|| copy(which)))
    }

    /// Decodes the content of `role` at `piece`'s offsets from the other members. All blocks of the stripe below `tail`
    /// are complete. Parities in `known` are not read.
    ///
    /// # Errors
    /// Unrecovered Read Error, if needed blocks are lost; another error, if they may still exist.
    pub async fn decode(
        &self,
        zone: ZoneIndex,
        piece: ChunkRange,
        role: Role,
        tail: u64,
        known: &Parities,
    ) -> Result<Buf, DeviceError> {
        self.decode_without(zone, piece, role, (tail, known), 0).await
    }

    /// As [`Raid::decode`], without reading from the members `avoided` (bits).
    pub(super) async fn decode_without(
        &self,
        zone: ZoneIndex,
        piece: ChunkRange,
        role: Role,
        (tail, known): (u64, &Parities),
        avoided: u32,
    ) -> Result<Buf, DeviceError> {
        let layout = &self.layout;
        let k = layout.data_chunks();
        let covered = tail.saturating_sub(piece.stripe * layout.stripe_blocks()).min(layout.stripe_blocks());
        let chunks = covered.saturating_sub(piece.from).div_ceil(layout.chunk_blocks);
        assert!(chunks <= k && piece.to <= layout.chunk_blocks, "{piece:?} of {chunks} chunks is decoded");
        let symbols = &layout.symbols(chunks)[..layout.members];
        let own = match role {
            Role::Data(index) => index,
            Role::Parity(which) => k + which as u64,
        };
        let in_memory = |index: u64| index.checked_sub(k).and_then(|which| known[which as usize].as_ref());
        // Blocks above the tail are not read: a member may hold blocks of incomplete writes there.
        let part = |index: u64| match index < k {
            true => ChunkRange {
                index,
                to: piece.to.min(covered.saturating_sub(index * layout.chunk_blocks)),
                ..piece
            },
            false => piece,
        };
        let is_there = |index: &u64| {
            let member = layout.member(piece.stripe, *index);
            let has = || avoided >> member & 1 == 0 && self.has_piece(zone, member, part(*index));
            *index != own && (*index < chunks || *index >= k) && (in_memory(*index).is_some() || has())
        };
        let mut error = Status::UnrecoveredReadError.into();
        let mut present = (0..layout.members as u64).filter(is_there).fold(0, |all, index| all | 1 << index);
        loop {
            let recipe = decode::solve(present, symbols, symbols[own as usize]);
            let recipe = recipe.ok_or(error)?;
            let mut pending = Vec::new();
            for index in recipe.sources().iter().map(|source| source.stored as u64) {
                let (member, part) = (layout.member(piece.stripe, index), part(index));
                let read = match in_memory(index) {
                    Some(parity) => Ok(parity.clone()),
                    None => {
                        let buf = self.pool.borrow_mut().take(part.to - part.from).freeze();
                        Err(self.members.submit(member, Command::read(self.place(zone, member, part), buf)))
                    }
                };
                pending.push((index, self.members.seat(member), part, read));
            }
            let mut blocks = Vec::new();
            for (index, seat, part, read) in pending {
                let found = match read {
                    Ok(parity) => Ok(parity),
                    Err(completion) => self.take_read(zone, seat, part, completion.await).await,
                };
                match found {
                    Ok(data) => blocks.push(padded(data, piece.to - piece.from)),
                    Err(failed) => {
                        present &= !(1 << index);
                        error = if is_unreadable(failed) { error } else { failed };
                    }
                }
            }
            if blocks.len() == recipe.sources().len() {
                let mut result = self.pool.borrow_mut().take(piece.to - piece.from);
                recipe.run(&mut result, &blocks);
                blocks.into_iter().for_each(|block| self.pool.borrow_mut().give(block));
                return Ok(result.freeze());
            }
        }
    }

    /// Evaluates the completion of a read of `piece` from a member: records errors, and puts relocated blocks in place.
    async fn take_read(
        &self,
        zone: ZoneIndex,
        seat: Seat,
        piece: ChunkRange,
        done: Done,
    ) -> Result<Buf, DeviceError> {
        self.note_read(zone, seat.member, piece, done.result);
        if self.notices_power_loss(1 << seat.member) {
            self.power_checked().await;
        }
        match done.result {
            // The part may have been lost during the read.
            Ok(()) if !self.has_piece(zone, seat.member, piece) => Err(Status::UnrecoveredReadError.into()),
            Ok(()) => Ok(self.overlay_piece(zone, seat.member, piece, done.data)),
            Err(error) => {
                self.read_failed(zone, seat, error);
                Err(error)
            }
        }
    }

    /// Reads `piece`'s offsets of the stripe's row from `member`, whether it holds data or parity there.
    pub async fn read_member(
        &self,
        zone: ZoneIndex,
        member: usize,
        piece: ChunkRange,
    ) -> Result<Buf, DeviceError> {
        if !self.has_piece(zone, member, piece) {
            return Err(Status::UnrecoveredReadError.into());
        }
        let (buf, seat) =
            (self.pool.borrow_mut().take(piece.to - piece.from).freeze(), self.members.seat(member));
        let done = self.members.submit(member, Command::read(self.place(zone, member, piece), buf)).await;
        self.take_read(zone, seat, piece, done).await
    }
}

/// Pads `data` with zeros to this number of blocks.
fn padded(data: Buf, blocks: u64) -> Buf {
    assert!(data.blocks() <= blocks, "{} blocks of {blocks} were read", data.blocks());
    if data.blocks() == blocks {
        return data;
    }
    let mut whole = BufMut::zeroed(blocks as usize * BLOCK);
    whole[..data.len()].copy_from_slice(&data);
    whole.freeze()
}
