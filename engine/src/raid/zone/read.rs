//! Reads, normal and degraded.
//!
//! A read that one member can answer is that member's read. Everything else, and whatever that
//! member could not answer, is put together by a reader: a task that is kept for the next read.
//!
//! A chunk that cannot be read is the XOR of the parity and the other chunks that the tail covers:
//! above the tail a member may hold leftovers of writes that never completed, which parity knows
//! nothing of. While a stripe is partial its parity is taken from memory.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::xor,
    device::{Command, Completer, Completion, DeviceError, Done, Status},
    raid::core::{Core, Seat},
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::RefCell, rc::Rc};

/// A task that carries out one read after the other.
#[derive(Default)]
pub struct Reader {
    job: RefCell<Option<Job>>,
    work: Gate,
}

struct Job {
    zone: ZoneIndex,
    at: u64,
    blocks: u64,
    /// Empty while the direct read has it.
    data: Buf,
    completer: Completer,
    /// As [`Core::losses`] when the read began.
    losses: u64,
    /// The read of a single member that is on its way already.
    direct: Option<(Seat, Completion)>,
}

/// Blocks `from..to` of chunk `index` of `stripe`.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub stripe: u64,
    pub index: u64,
    pub from: u64,
    pub to: u64,
}

impl Core {
    /// Reads `data.blocks()` blocks from block `at` of a zone.
    pub fn read(self: &Rc<Self>, zone: ZoneIndex, at: u64, data: Buf) -> Completion {
        let (blocks, losses) = (data.blocks(), self.losses.get());
        let direct = self.direct(zone, at, &data);
        let (data, direct) = match direct {
            Some(member) => {
                let piece = self.piece(at, data.blocks());
                let mut completion =
                    self.submit(member, Command::read(self.place(zone, member, piece), data));
                match completion.take() {
                    Some(done) if done.result.is_ok() => return Completion::ready(done),
                    Some(done) => (Buf::default(), Some((self.seat(member), Completion::ready(done)))),
                    None => (Buf::default(), Some((self.seat(member), completion))),
                }
            }
            None => (data, None),
        };
        let (completer, completion) = self.slots.pair();
        let reader = self.idle_readers.borrow_mut().pop().unwrap_or_else(|| {
            let reader = Rc::new(Reader::default());
            self.runtime.spawn(self.clone().serve_reads(reader.clone()));
            reader
        });
        *reader.job.borrow_mut() = Some(Job { zone, at, blocks, data, completer, losses, direct });
        reader.work.open();
        completion
    }

    /// The member that can answer the whole read, if there is one.
    fn direct(&self, zone: ZoneIndex, at: u64, data: &Buf) -> Option<usize> {
        let blocks = data.blocks();
        if at % self.layout.chunk_blocks + blocks > self.layout.chunk_blocks || at + blocks > self.tail(zone)
        {
            return None;
        }
        let piece = self.piece(at, blocks);
        let member = self.layout.member(piece.stripe, piece.index);
        (self.has_piece(zone, member, piece) && !self.has_relocated(zone, member)).then_some(member)
    }

    /// Whether `member` has its blocks of the stripe's row at `piece`'s offsets, as far as is known.
    fn has_piece(&self, zone: ZoneIndex, member: usize, piece: Piece) -> bool {
        let at = piece.stripe * self.layout.chunk_blocks;
        self.live(zone) & (1 << member) != 0 && !self.has_hole(zone, member, at + piece.from..at + piece.to)
    }

    async fn serve_reads(self: Rc<Self>, reader: Rc<Reader>) {
        loop {
            let work = reader.work.wait();
            let job = reader.job.borrow_mut().take();
            if let Some(job) = job {
                self.carry_out(job).await;
                self.idle_readers.borrow_mut().push(reader.clone());
                continue;
            }
            work.await;
        }
    }

    async fn carry_out(self: &Rc<Self>, job: Job) {
        let Job { zone, at, blocks, mut data, completer, losses, direct } = job;
        if let Some((seat, completion)) = direct {
            let done = completion.await;
            match done.result {
                Ok(()) if self.losses.get() == losses => return completer.complete(done),
                Ok(()) => {}
                Err(error) => self.read_failed(zone, seat, error),
            }
            data = done.data;
        }
        if data.blocks() != blocks {
            // The drive kept the buffer of a read that failed.
            data = Buf::zeroed(blocks as usize * BLOCK);
        }
        let result = loop {
            let losses = self.losses.get();
            let result = self.read_pieces(zone, at, &mut data).await;
            if self.losses.get() == losses {
                break result;
            }
        };
        completer.complete(Done { result, data, ..Done::ok() });
    }

    /// Counts a read error; a drive that is gone is taken out, and a part that is gone done without.
    pub fn read_failed(&self, zone: ZoneIndex, seat: Seat, error: DeviceError) {
        let state = &self.members[seat.member];
        state.read_errors.set(state.read_errors.get() + 1);
        if matches!(error, DeviceError::Gone | DeviceError::Timeout) {
            self.member_failed(seat, error, "read");
        } else if error == Status::ZoneIsOffline.into() {
            self.part_failed(zone, seat, error, "read");
        }
    }

    /// Everything below this block of the zone can be read.
    pub fn tail(&self, zone: ZoneIndex) -> u64 {
        if let Some(running) = self.running.borrow().get(&zone.0) {
            return running.flow.borrow().complete;
        }
        match self.table.borrow().info(zone).state {
            ZoneState::Full => self.finished_tail(zone),
            _ => 0,
        }
    }

    /// The tail of a full zone.
    pub fn finished_tail(&self, zone: ZoneIndex) -> u64 {
        self.zones.borrow()[zone.0 as usize].finished.unwrap_or(self.layout.capacity_blocks())
    }

    fn piece(&self, at: u64, blocks: u64) -> Piece {
        let layout = &self.layout;
        let from = at % layout.chunk_blocks;
        Piece {
            stripe: at / layout.stripe_blocks(),
            index: at % layout.stripe_blocks() / layout.chunk_blocks,
            from,
            to: layout.chunk_blocks.min(from + blocks),
        }
    }

    /// Where `piece` lies on `member`, in the row of its stripe.
    pub fn place(&self, zone: ZoneIndex, member: usize, piece: Piece) -> Lba {
        Lba(self.start(member, zone).0 + piece.stripe * self.layout.chunk_blocks + piece.from)
    }

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
                self.submit(member, Command::read(self.place(zone, member, piece), buf))
            });
            pending.push((done_blocks, piece, self.seat(member), completion));
            done_blocks += piece.to - piece.from;
        }
        for (block, piece, seat, completion) in pending {
            let mut found = None;
            if let Some(completion) = completion {
                let done = completion.await;
                match done.result {
                    Ok(()) => found = self.overlay_piece(zone, seat, piece, done.data),
                    Err(error) => self.read_failed(zone, seat, error),
                }
            }
            let bytes = match found {
                Some(bytes) => bytes,
                None => match self.reconstruct(zone, piece).await {
                    Ok(bytes) => bytes,
                    Err(error) => match self.read_own(zone, piece).await {
                        Some(bytes) => bytes,
                        None => self.read_singly(zone, piece).await.ok_or(error)?,
                    },
                },
            };
            let target = data.as_mut().ok_or(DeviceError::Status(Status::InvalidField))?;
            target[block as usize * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
            self.pool.borrow_mut().give(bytes);
        }
        if done_blocks < blocks {
            let target = data.as_mut().ok_or(DeviceError::Status(Status::InvalidField))?;
            target[done_blocks as usize * BLOCK..].fill(0);
        }
        Ok(())
    }

    /// `piece` from its own member, which may have been rebuilt since the read began; `None` if it
    /// has not, or fails too.
    async fn read_own(&self, zone: ZoneIndex, piece: Piece) -> Option<Buf> {
        let member = self.layout.member(piece.stripe, piece.index);
        if !self.has_piece(zone, member, piece) {
            return None;
        }
        let (buf, seat) = (self.pool.borrow_mut().take(piece.to - piece.from).freeze(), self.seat(member));
        let done = self.submit(member, Command::read(self.place(zone, member, piece), buf)).await;
        done.result.ok().and_then(|()| self.overlay_piece(zone, seat, piece, done.data))
    }

    /// `piece` block by block, each from its own member or the others: several may have blocks in it that
    /// they cannot read. `None` if one of them is lost.
    async fn read_singly(self: &Rc<Self>, zone: ZoneIndex, piece: Piece) -> Option<Buf> {
        let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
        for from in piece.from..piece.to {
            let single = Piece { from, to: from + 1, ..piece };
            let found = match self.read_own(zone, single).await {
                Some(found) => found,
                None => self.reconstruct(zone, single).await.ok()?,
            };
            whole.block_mut(from - piece.from).copy_from_slice(&found);
        }
        Some(whole.freeze())
    }

    /// `piece` from the other members.
    pub async fn reconstruct(self: &Rc<Self>, zone: ZoneIndex, piece: Piece) -> Result<Buf, DeviceError> {
        let layout = &self.layout;
        let end = (piece.stripe + 1) * layout.stripe_blocks();
        let mut result = self.pool.borrow_mut().take(piece.to - piece.from);
        let running = self.running.borrow().get(&zone.0).cloned();
        let tail = match running {
            Some(running) if running.flow.borrow().complete < end => {
                // Parity of a partial stripe: in memory, once it belongs to what is complete.
                self.quiesce(&running).await;
                let tail = {
                    let flow = running.flow.borrow();
                    if flow.complete < end && !flow.ended {
                        result.copy_from_slice(
                            &flow.parity[piece.from as usize * BLOCK..piece.to as usize * BLOCK],
                        );
                        Some(flow.complete)
                    } else {
                        None
                    }
                };
                self.resume(&running);
                tail
            }
            _ => None,
        };
        let tail = match tail {
            Some(tail) => tail,
            None => {
                let member = layout.parity_member(piece.stripe);
                result = self.read_member(zone, member, piece, result.freeze()).await?.into_mut();
                self.tail(zone)
            }
        };
        self.xor_covered(zone, piece, tail, Some(piece.index), &mut result).await?;
        Ok(result.freeze())
    }

    /// XORs into `result` what the data chunks of the stripe, but for `except`, hold at
    /// `piece.from..piece.to` below `tail`.
    pub async fn xor_covered(
        &self,
        zone: ZoneIndex,
        piece: Piece,
        tail: u64,
        except: Option<u64>,
        result: &mut BufMut,
    ) -> Result<(), DeviceError> {
        let layout = &self.layout;
        let covered = tail.saturating_sub(piece.stripe * layout.stripe_blocks()).min(layout.stripe_blocks());
        let mut pending = Vec::new();
        for index in (0..layout.data_chunks()).filter(|i| Some(*i) != except) {
            let to = piece.to.min(covered.saturating_sub(index * layout.chunk_blocks));
            if to > piece.from {
                let member = layout.member(piece.stripe, index);
                let source = Piece { index, to, ..piece };
                if !self.has_piece(zone, member, source) {
                    return Err(Status::UnrecoveredReadError.into());
                }
                let buf = self.pool.borrow_mut().take(to - piece.from).freeze();
                pending.push((
                    self.seat(member),
                    source,
                    self.submit(member, Command::read(self.place(zone, member, source), buf)),
                ));
            }
        }
        for (seat, source, completion) in pending {
            let done = completion.await;
            if let Err(error) = done.result {
                self.read_failed(zone, seat, error);
                return Err(Status::UnrecoveredReadError.into());
            }
            let data = self.overlay_piece(zone, seat, source, done.data);
            let data = data.ok_or(DeviceError::from(Status::UnrecoveredReadError))?;
            xor::xor_assign(&mut result[..data.len()], &data);
            self.pool.borrow_mut().give(data);
        }
        Ok(())
    }

    /// Reads `piece`'s offsets of the stripe's row from `member`, whatever its role there.
    pub async fn read_member(
        &self,
        zone: ZoneIndex,
        member: usize,
        piece: Piece,
        buf: Buf,
    ) -> Result<Buf, DeviceError> {
        if !self.has_piece(zone, member, piece) {
            return Err(Status::UnrecoveredReadError.into());
        }
        let seat = self.seat(member);
        let done = self.submit(member, Command::read(self.place(zone, member, piece), buf)).await;
        match done.result {
            Ok(()) => {
                let data = self.overlay_piece(zone, seat, piece, done.data);
                data.ok_or(Status::UnrecoveredReadError.into())
            }
            Err(error) => {
                self.read_failed(zone, seat, error);
                Err(Status::UnrecoveredReadError.into())
            }
        }
    }
}
