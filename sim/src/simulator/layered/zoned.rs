//! A volume presented as zones that are written in order, for the array simulator.
//!
//! Each zone is a range of blocks of the volume, with a state block below all ranges. A zone ends at its first block of
//! zeros. A reset discards the range; it is recorded in the state block first, so that the next process completes an
//! interrupted one. A finish is recorded when all earlier writes are durable. Writes complete in order.

use crate::simulator::subject::SubjectError;
use engine::{
    buf::{BLOCK, Buf, BufMut},
    device::{Command, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::{Gate, Runtime},
    table::ZoneTable,
    volume::Volume,
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Number of zones.
const ZONES: u32 = 6;

/// Capacity of the largest zone in blocks: every start reads all of them.
const MOST_BLOCKS: u64 = 120;

/// Most blocks of a command.
const MOST_TRANSFER: u32 = 32;

/// Contents of a zone's state block.
const NOTHING: u8 = 0;
const IS_RESET: u8 = 1;
const FINISHED: u8 = 2;

/// The order of commands for a zone, and its completed writes that are not durable yet.
#[derive(Default)]
struct Turn {
    tickets: Cell<u64>,
    settled: Cell<u64>,
    gate: Gate,
    /// Numbers of completed writes without FUA, and of the durable ones among them.
    plain: Cell<u64>,
    safe: Cell<u64>,
}

impl Turn {
    fn ticket(&self) -> u64 {
        self.tickets.replace(self.tickets.get() + 1)
    }

    async fn wait(&self, ticket: u64) {
        while self.settled.get() != ticket {
            self.gate.wait().await;
        }
    }

    fn end(&self) {
        self.settled.set(self.settled.get() + 1);
        self.gate.open();
    }
}

struct VolumeZonesInner {
    volume: Volume,
    geometry: Geometry,
    table: RefCell<ZoneTable>,
    turns: Vec<Turn>,
}

/// The zones of a volume.
pub(super) struct VolumeZones {
    runtime: Runtime,
    slots: Rc<Slots>,
    inner: Rc<VolumeZonesInner>,
}

impl VolumeZones {
    /// Presents a volume as zones, and completes interrupted resets.
    pub(super) async fn open(runtime: &Runtime, volume: Volume) -> Result<VolumeZones, SubjectError> {
        let capacity = (volume.blocks().saturating_sub(ZONES as u64) / ZONES as u64).min(MOST_BLOCKS);
        if capacity == 0 {
            return Err(SubjectError::Other("the volume is too small to be shown as zones".into()));
        }
        let geometry = Geometry {
            zones: ZONES,
            zone_size_blocks: capacity,
            zone_capacity_blocks: capacity,
            max_open: 0,
            max_active: 0,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: MOST_TRANSFER,
            max_append_blocks: 0,
            volatile_cache: true,
        };
        let table = RefCell::new(ZoneTable::new(&geometry));
        let turns = (0..ZONES).map(|_| Turn::default()).collect();
        let inner = VolumeZonesInner { volume, geometry, table, turns };
        for zone in 0..ZONES {
            inner.find(zone).await.map_err(SubjectError::other)?;
        }
        inner.volume.audit().await.map_err(SubjectError::other)?;
        Ok(VolumeZones { runtime: runtime.clone(), slots: Rc::default(), inner: Rc::new(inner) })
    }
}

impl VolumeZonesInner {
    /// The first block of a zone in the volume.
    fn start(&self, zone: u32) -> u64 {
        ZONES as u64 + zone as u64 * self.geometry.zone_capacity_blocks
    }

    async fn note(&self, zone: u32, state: u8) -> Result<(), DeviceError> {
        let mut block = BufMut::zeroed(BLOCK);
        block.block_mut(0)[0] = state;
        self.volume.write(zone as u64, &block.freeze(), true).await
    }

    /// Finds the end of a zone, and discards any data behind it.
    async fn find(&self, zone: u32) -> Result<(), DeviceError> {
        let (start, capacity) = (self.start(zone), self.geometry.zone_capacity_blocks);
        let noted = self.volume.read(zone as u64, Buf::zeroed(BLOCK)).await?[0];
        if noted == IS_RESET {
            return self.empty(zone).await;
        }
        let all = self.volume.read(start, Buf::zeroed(capacity as usize * BLOCK)).await?;
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let end = all.chunks_exact(BLOCK).position(is_zero).map_or(capacity, |end| end as u64);
        let behind = &all[end as usize * BLOCK..];
        if !is_zero(behind) {
            self.volume.discard(start + end, capacity - end).await?;
            self.volume.flush().await?;
        }
        let state = match (noted, end) {
            (FINISHED, _) => ZoneState::Full,
            (_, 0) => ZoneState::Empty,
            (_, end) if end == capacity => ZoneState::Full,
            _ => ZoneState::Closed,
        };
        let wp_blocks = if state == ZoneState::Full { capacity } else { end };
        let (zone, capacity_blocks) = (ZoneIndex(zone), capacity);
        self.table.borrow_mut().load(&ZoneInfo { zone, state, wp_blocks, capacity_blocks, zrwa: false });
        Ok(())
    }

    /// Completes a reset that the state block records.
    async fn empty(&self, zone: u32) -> Result<(), DeviceError> {
        self.volume.discard(self.start(zone), self.geometry.zone_capacity_blocks).await?;
        self.volume.flush().await?;
        self.note(zone, NOTHING).await
    }

    async fn write(&self, (zone, ticket): (u32, u64), from: u64, data: Buf, fua: bool) -> Done {
        let turn = &self.turns[zone as usize];
        let written = self.volume.write(self.start(zone) + from, &data, fua).await;
        turn.wait(ticket).await;
        let plain = turn.plain.get() + u64::from(!fua);
        turn.plain.set(plain);
        let mut result = written;
        if fua && result.is_ok() && plain > turn.safe.get() {
            result = self.volume.flush().await;
            turn.safe.set(plain);
        }
        turn.end();
        let tail = from + data.blocks();
        Done { result, data, tail, ..Done::ok() }
    }

    async fn change(&self, (zone, ticket): (u32, u64), finish: bool) -> Result<(), DeviceError> {
        let turn = &self.turns[zone as usize];
        turn.wait(ticket).await;
        let result = match finish {
            true => match self.volume.flush().await {
                Ok(()) => self.note(zone, FINISHED).await,
                failed => failed,
            },
            false => match self.note(zone, IS_RESET).await {
                Ok(()) => self.empty(zone).await,
                failed => failed,
            },
        };
        let mut table = self.table.borrow_mut();
        let changed = match finish {
            true => table.finish(ZoneIndex(zone)),
            false => table.reset(ZoneIndex(zone)),
        };
        turn.end();
        result.and(changed.map_err(DeviceError::Status))
    }
}

impl VolumeZones {
    /// Checks a command against the zone table; returns the operation to carry out.
    fn accept(&self, command: Command) -> Result<Job, Status> {
        let inner = &self.inner;
        let mut table = inner.table.borrow_mut();
        let ticket = |zone: ZoneIndex| (zone.0, inner.turns[zone.0 as usize].ticket());
        let chosen = |zones: Zones| match zones {
            Zones::One(zone) => vec![zone],
            Zones::All => (0..ZONES).map(ZoneIndex).collect(),
        };
        Ok(match command {
            Command::Read { lba, data, .. } => {
                table.check_read(lba, data.blocks())?;
                Job::Read(ZONES as u64 + lba.0, data)
            }
            Command::Write { lba, data, fua, .. } => {
                let effect = table.write(lba, data.blocks())?;
                Job::Write(ticket(effect.zone), effect.offset_blocks, data, fua)
            }
            Command::Flush => Job::Flush,
            Command::Finish { zones } | Command::Reset { zones } => {
                let finish = matches!(command, Command::Finish { .. });
                Job::Change(chosen(zones).into_iter().map(ticket).collect(), finish)
            }
            Command::Open { zones: Zones::One(zone), .. } => {
                table.open(zone, false)?;
                Job::Nothing(Vec::new())
            }
            Command::Close { zones: Zones::One(zone) } => {
                table.close(zone)?;
                Job::Nothing(Vec::new())
            }
            Command::Report { first, count } => Job::Nothing(table.report(first, count)?),
            _ => return Err(Status::InvalidOpcode),
        })
    }
}

/// An operation on the volume.
enum Job {
    Read(u64, Buf),
    Write((u32, u64), u64, Buf, bool),
    Flush,
    Change(Vec<(u32, u64)>, bool),
    Nothing(Vec<ZoneInfo>),
}

impl VolumeZonesInner {
    async fn carry_out(&self, job: Job) -> Done {
        let result = match job {
            Job::Read(at, data) => {
                return match self.volume.read(at, data).await {
                    Ok(data) => Done::with_data(data),
                    Err(error) => Done::error(error),
                };
            }
            Job::Write(turn, from, data, fua) => return self.write(turn, from, data, fua).await,
            Job::Flush => self.volume.flush().await,
            Job::Change(turns, finish) => {
                let mut result = Ok(());
                for turn in turns {
                    result = result.and(self.change(turn, finish).await);
                }
                result
            }
            Job::Nothing(_) => Ok(()),
        };
        Done { result, ..Done::ok() }
    }
}

impl ZonedDevice for VolumeZones {
    fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let job = match self.accept(command) {
            Ok(Job::Nothing(zones)) => return Completion::ready(Done { zones, ..Done::ok() }),
            Ok(job) => job,
            Err(status) => return Completion::failed(status),
        };
        let (inner, (completer, completion)) = (self.inner.clone(), self.slots.pair());
        self.runtime.spawn(async move { completer.complete(inner.carry_out(job).await) });
        completion
    }
}
