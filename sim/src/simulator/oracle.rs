//! The oracle: records the promises of the array, and judges its reads and recoveries.
//!
//! The oracle receives each command at its submission and each completion at its delivery. From these it derives, for
//! each logical zone, the permitted states after a power cut:
//!
//! - the write pointer is at least `durable`: the end of the last write that completed with FUA, or that completed
//!   before a flush was submitted which completed too, or that an earlier recovery reported;
//! - it is at most `submitted`, the end of the submitted writes;
//! - each block below it holds the data that was written there last;
//! - if the process was killed and the drives kept power, the write pointer is also at least the end of the last write
//!   that completed at all;
//! - a reset or finish without a delivered completion happened wholly or not at all; one with a delivered completion
//!   happened.
//!
//! The oracle does not use the array's internal state: it judges the promise, not the implementation.

use super::stamp::{self, Stamp};
use emu::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    zone::{ZoneInfo, ZoneState},
};
use std::collections::BTreeMap;

/// A reset or finish that was submitted and has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Reset,
    Finish,
}

/// The recorded state of one logical zone.
#[derive(Clone, Debug, Default)]
pub struct OracleZone {
    /// For each block up to the submitted end, the number of the write that wrote it.
    writes: Vec<u64>,
    /// The notes of writes, by the end of the write.
    notes: BTreeMap<u64, Vec<u8>>,
    /// Number of resets of the zone so far.
    pub life: u64,
    /// End of the writes that have completed.
    pub acknowledged: u64,
    /// The tail that the process has noted in the acknowledgement log for its successor.
    noted: u64,
    /// End of the data that has to survive a power cut.
    pub durable: u64,
    /// The end that the last recovery reported.
    recovered: u64,
    /// End of the data that has to be there after a kill, although it need not survive a power cut: the successor of
    /// the killed process knows this end from the acknowledgement log.
    answered: u64,
    /// Finished: no block can be written, wherever the tail is.
    pub finished: bool,
    pub change: Option<Change>,
    /// Operations submitted and not completed.
    pub in_flight: u32,
    /// Operations submitted so far.
    begun: u64,
    /// Explicitly opened: the device does not close it by itself.
    pub opened: bool,
    /// An open command is in flight.
    pub opening: bool,
    /// Counts towards the limit of active zones.
    pub active: bool,
    /// The last recovery reported an end inside a write with a note.
    is_torn: bool,
}

impl OracleZone {
    /// End of the submitted writes.
    pub fn submitted(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Counts a submitted operation.
    pub fn begin(&mut self) {
        self.in_flight += 1;
        self.begun += 1;
    }

    /// Counts a completed operation.
    pub fn end(&mut self) {
        self.in_flight -= 1;
    }

    /// Drops the writes from block `end` on.
    fn truncate(&mut self, end: u64) {
        let (below, above) = self.writes.split_at(end.min(self.submitted()) as usize);
        // The write that the end divides, and where that would have ended.
        let divided = below.last().filter(|write| above.first() == Some(write));
        let rest = above.iter().take_while(|write| Some(*write) == divided).count() as u64;
        self.is_torn = rest > 0 && self.notes.contains_key(&(end + rest));
        self.writes.truncate(end as usize);
        self.notes.retain(|tail, _| *tail <= end);
    }

    fn clear(&mut self) {
        let (life, in_flight, begun) = (self.life + 1, self.in_flight, self.begun);
        *self = OracleZone { life, in_flight, begun, ..OracleZone::default() };
    }
}

/// The acknowledged end of each zone when a flush was submitted, with the zone's life.
#[derive(Clone, Debug)]
pub struct FlushPoint(Vec<(u64, u64)>);

/// What a read may return, as of its submission.
#[derive(Clone, Copy, Debug)]
pub struct ReadPoint {
    pub zone: u32,
    pub block: u64,
    life: u64,
    acknowledged: u64,
}

/// For each zone that was idle when a report was submitted, its count of operations then.
#[derive(Clone, Debug)]
pub struct ReportPoint(Vec<Option<u64>>);

/// The promises of one run.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub capacity: u64,
    pub zones: Vec<OracleZone>,
    next_write: u64,
    /// Whether the array declares that completed writes may be lost until a flush.
    pub volatile_cache: bool,
}

impl Oracle {
    /// Restores the state `before`, except that numbers of writes are not used again.
    pub fn go_back(&mut self, before: Oracle) {
        *self = Oracle { next_write: self.next_write, ..before };
    }

    /// Leaves a gap in the numbers of writes, so that the writes of a copy of the array differ from those of the
    /// original.
    pub fn set_apart(&mut self) {
        self.next_write += 1 << 32;
    }

    /// A new array: every zone is empty.
    pub fn new(zones: u32, capacity_blocks: u64, volatile_cache: bool) -> Oracle {
        let zones = vec![OracleZone::default(); zones as usize];
        Oracle { capacity: capacity_blocks, zones, next_write: 1, volatile_cache }
    }

    /// Whether the zone accepts no more writes.
    pub fn is_full(&self, zone: u32) -> bool {
        let z = &self.zones[zone as usize];
        z.finished || z.submitted() == self.capacity
    }

    /// Records a write at the submitted end with the size of `data`, and fills the buffer; returns the start and the
    /// buffer.
    pub fn write(&mut self, zone: u32, mut data: Buf) -> (u64, Buf) {
        let blocks = data.blocks();
        let z = &mut self.zones[zone as usize];
        let (start, write) = (z.submitted(), self.next_write);
        self.next_write += 1;
        assert!(start + blocks <= self.capacity, "the workload writes past the end of zone {zone}");
        if let Some(bytes) = data.as_mut() {
            for (i, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                Stamp { zone, block: start + i as u64, write }.fill(block);
            }
        }
        z.writes.resize((start + blocks) as usize, write);
        z.begin();
        z.active = z.submitted() < self.capacity;
        if !z.active {
            z.opened = false;
        }
        (start, data)
    }

    /// Draws the note of the write that was recorded last, up to `most` bytes; `None` for three of four writes.
    pub fn note(&mut self, zone: u32, most: usize) -> Option<Buf> {
        let z = &mut self.zones[zone as usize];
        let write = *z.writes.last()?;
        let word = (write << 32 | z.submitted() << 8 | zone as u64).to_le_bytes();
        let length = 8 + (write as usize * 131) % (most - 7);
        let note: Vec<u8> = word.into_iter().cycle().take(length).collect();
        (write % 4 == 0).then(|| {
            z.notes.insert(z.submitted(), note.clone());
            Buf::copy_of(&note)
        })
    }

    /// Checks the note of a zone after a recovery: that of the write at its end, or none. A write with a note is there
    /// wholly or not at all.
    ///
    /// # Errors
    /// The note is wrong.
    pub fn check_note(&self, info: &ZoneInfo, note: Option<&[u8]>) -> Result<(), String> {
        let (zone, state) = (info.zone.0, &self.zones[info.zone.0 as usize]);
        if !info.state.is_active() {
            return Ok(());
        }
        let expected = state.notes.get(&info.wp_blocks).map(|note| &note[..]);
        if state.is_torn {
            return Err(format!("zone {zone} ends at {}, inside a write with a note", info.wp_blocks));
        }
        if note != expected {
            let (length, other) = (note.map(<[u8]>::len), expected.map(<[u8]>::len));
            let end = info.wp_blocks;
            return Err(format!(
                "zone {zone} has a note of {length:?} bytes at its end, {end}, instead of {other:?}"
            ));
        }
        Ok(())
    }

    /// Whether a write of this life of the zone may fail because a reset or finish has overtaken it.
    pub fn is_overtaken(&self, zone: u32, life: u64) -> bool {
        let z = &self.zones[zone as usize];
        z.life != life || z.change.is_some() || z.finished
    }

    /// A write of this life of the zone has completed up to `end`; the array reported its tail as `tail`.
    pub fn written(&mut self, zone: u32, life: u64, end: u64, tail: u64, fua: bool) {
        let z = &mut self.zones[zone as usize];
        z.end();
        if z.life != life {
            return;
        }
        z.acknowledged = z.acknowledged.max(end);
        z.noted = z.noted.max(tail).max(end);
        if fua || !self.volatile_cache {
            z.durable = z.durable.max(end);
        }
    }

    /// Records the submission of a flush.
    pub fn flush(&self) -> FlushPoint {
        FlushPoint(self.zones.iter().map(|z| (z.life, z.acknowledged)).collect())
    }

    /// Records the completion of a flush.
    pub fn flushed(&mut self, point: &FlushPoint) {
        for (zone, &(life, acknowledged)) in self.zones.iter_mut().zip(&point.0) {
            if zone.life == life {
                zone.durable = zone.durable.max(acknowledged);
            }
        }
    }

    /// Records the submission of a reset or finish. Writes in flight in the zone may fail from now on.
    pub fn change(&mut self, zone: u32, change: Change) {
        let z = &mut self.zones[zone as usize];
        assert!(z.change.is_none(), "zone {zone} is changed twice at once");
        z.change = Some(change);
        z.begin();
    }

    /// Records the completion of a reset or finish.
    pub fn changed(&mut self, zone: u32) {
        let z = &mut self.zones[zone as usize];
        z.end();
        match z.change.take() {
            Some(Change::Reset) => z.clear(),
            Some(Change::Finish) => {
                z.finished = true;
                z.durable = z.submitted();
                (z.active, z.opened) = (false, false);
            }
            None => {}
        }
    }

    /// Records the submission of a read.
    pub fn read(&mut self, zone: u32, block: u64) -> ReadPoint {
        let z = &mut self.zones[zone as usize];
        z.begin();
        ReadPoint { zone, block, life: z.life, acknowledged: z.acknowledged }
    }

    /// As [`Oracle::read`]; if the zone's end is not known for `sure`, blocks that need not have survived may read as
    /// zeros.
    pub fn read_sure(&mut self, zone: u32, block: u64, sure: bool) -> ReadPoint {
        let point = self.read(zone, block);
        let least = self.zones[zone as usize].durable.min(point.acknowledged);
        ReadPoint { acknowledged: if sure { point.acknowledged } else { least }, ..point }
    }

    /// Whether a reset has overtaken the read, which may fail then.
    pub fn is_reset_since(&self, point: ReadPoint) -> bool {
        let zone = &self.zones[point.zone as usize];
        zone.life != point.life || zone.change == Some(Change::Reset)
    }

    /// Checks the `data` that a read has returned.
    ///
    /// # Errors
    /// The first wrong block.
    pub fn check_read(&mut self, point: ReadPoint, data: &[u8]) -> Result<(), String> {
        self.zones[point.zone as usize].end();
        if self.is_reset_since(point) {
            // It may return any data.
            return Ok(());
        }
        for (i, bytes) in data.chunks_exact(BLOCK).enumerate() {
            self.check_block(point.zone, point.block + i as u64, point.acknowledged, bytes)?;
        }
        Ok(())
    }

    /// Checks one block: below `acknowledged` it must hold its data, up to the submitted end its data or zeros, and
    /// beyond that zeros.
    fn check_block(&self, zone: u32, block: u64, acknowledged: u64, bytes: &[u8]) -> Result<(), String> {
        let write = self.zones[zone as usize].writes.get(block as usize).copied();
        let right = match write {
            Some(write) => {
                Stamp { zone, block, write }.matches(bytes) || block >= acknowledged && stamp::is_zero(bytes)
            }
            None => stamp::is_zero(bytes),
        };
        if right {
            return Ok(());
        }
        let expected = write.map_or("zeros".to_string(), |w| format!("the data of write {w}"));
        Err(format!("zone {zone} block {block} should hold {expected}, but holds {}", stamp::describe(bytes)))
    }

    /// The process has ended: completions that were not delivered are lost.
    pub fn process_ended(&mut self) {
        for zone in &mut self.zones {
            zone.in_flight = 0;
            (zone.opened, zone.opening, zone.active) = (false, false, false);
        }
    }

    /// Number of promised blocks of a zone after a power cut or the kill of the process, from its start.
    pub fn promised(&self, zone: u32) -> u64 {
        let zone = &self.zones[zone as usize];
        zone.durable.max(zone.answered)
    }

    /// The power was cut: only durable data has to survive.
    pub fn power_cut(&mut self) {
        self.zones.iter_mut().for_each(|zone| zone.answered = 0);
    }

    /// The process was killed: acknowledged data has to survive. Returns the noted tails; where a reset was in flight,
    /// the tail is 0 or unchanged.
    pub fn killed(&mut self, rng: &mut Rng) -> Vec<u64> {
        let answered = |zone: &mut OracleZone| {
            let forgotten = zone.change == Some(Change::Reset) && rng.chance(1, 2);
            let (answered, noted) = if forgotten { (0, 0) } else { (zone.acknowledged, zone.noted) };
            zone.answered = answered;
            noted
        };
        self.zones.iter_mut().map(answered).collect()
    }

    /// Lowers all promises to the ends of the last recovery.
    pub fn fall_back(&mut self) {
        for zone in &mut self.zones {
            zone.durable = zone.durable.min(zone.recovered);
            zone.acknowledged = zone.acknowledged.min(zone.recovered);
            zone.answered = zone.answered.min(zone.recovered);
        }
    }

    /// Accepts that a zone ends below the last reported end, but not below the end that was promised `before`; later
    /// writes are discarded.
    ///
    /// # Errors
    /// The zone ends below the promised end.
    pub fn gone_back(&mut self, info: &ZoneInfo, before: &OracleZone) -> Result<(), String> {
        let (zone, wp) = (&mut self.zones[info.zone.0 as usize], info.wp_blocks);
        let promised = before.durable.max(before.answered);
        if wp >= zone.recovered || zone.finished || zone.change.is_some() {
            return Ok(());
        }
        if wp < promised {
            return Err(format!("zone {} went back to {wp}, below {promised}, as it began", info.zone.0));
        }
        zone.life += 1;
        zone.truncate(wp);
        (zone.durable, zone.recovered, zone.acknowledged, zone.noted) = (wp, wp, wp, wp);
        (zone.active, zone.opened) = (wp > 0, false);
        Ok(())
    }

    /// Checks the report of a recovery against the promises; the reported ends are promised from then on.
    ///
    /// # Errors
    /// The broken promise and its zone.
    pub fn recovered(&mut self, report: &[ZoneInfo]) -> Result<(), String> {
        if report.len() != self.zones.len() {
            return Err(format!("{} zones are reported instead of {}", report.len(), self.zones.len()));
        }
        for (index, info) in report.iter().enumerate() {
            if info.zone.0 as usize != index || info.capacity_blocks != self.capacity {
                return Err(format!("zone {index} is reported as {info:?}"));
            }
            self.recovered_in(info)?;
        }
        Ok(())
    }

    /// As [`Oracle::recovered`], for a single zone.
    ///
    /// # Errors
    /// The broken promise.
    pub fn recovered_in(&mut self, info: &ZoneInfo) -> Result<(), String> {
        let zone = &mut self.zones[info.zone.0 as usize];
        recovered_zone(zone, self.capacity, info)
            .map_err(|what| format!("zone {}: {what} ({info:?}, {})", info.zone.0, summary(zone)))
    }

    /// Records the submission of a report.
    pub fn report(&self) -> ReportPoint {
        ReportPoint(self.zones.iter().map(|z| (z.in_flight == 0).then_some(z.begun)).collect())
    }

    /// Checks a report against the recorded states, except for zones with operations in flight since it was submitted.
    ///
    /// # Errors
    /// The zone with a wrong report.
    pub fn check_report(&self, point: &ReportPoint, report: &[ZoneInfo]) -> Result<(), String> {
        for info in report {
            let Some(zone) = self.zones.get(info.zone.0 as usize) else {
                return Err(format!("there is no zone {}", info.zone.0));
            };
            let full = self.is_full(info.zone.0);
            let right = match info.state {
                ZoneState::Full => full,
                ZoneState::Empty => !full && zone.submitted() == 0 && !zone.opened,
                ZoneState::ImplicitlyOpen | ZoneState::Closed => {
                    !full && !zone.opened && info.wp_blocks == zone.submitted()
                }
                ZoneState::ExplicitlyOpen => zone.opened && !full && info.wp_blocks == zone.submitted(),
                ZoneState::ReadOnly | ZoneState::Offline => false,
            };
            if point.0[info.zone.0 as usize] == Some(zone.begun) && !right {
                return Err(format!(
                    "zone {} is reported as {info:?}, but has {}",
                    info.zone.0,
                    summary(zone)
                ));
            }
        }
        Ok(())
    }
}

fn summary(zone: &OracleZone) -> String {
    format!(
        "durable {}, acknowledged {}, submitted {}{}{}",
        zone.durable,
        zone.acknowledged,
        zone.submitted(),
        if zone.finished { ", finished" } else { "" },
        match zone.change {
            Some(Change::Reset) => ", reset in flight",
            Some(Change::Finish) => ", finish in flight",
            None => "",
        }
    )
}

/// As [`Oracle::recovered`], for one zone.
fn recovered_zone(zone: &mut OracleZone, capacity: u64, info: &ZoneInfo) -> Result<(), String> {
    let change = zone.change;
    let wp = match info.state {
        ZoneState::Full if zone.finished || change == Some(Change::Finish) => zone.submitted(),
        ZoneState::Full => capacity,
        ZoneState::Empty => 0,
        ZoneState::Closed | ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen => info.wp_blocks,
        ZoneState::ReadOnly | ZoneState::Offline => return Err("the zone has been given up".into()),
    };
    if info.state == ZoneState::Empty && change == Some(Change::Reset) {
        zone.clear();
        return Ok(());
    }
    let finished = zone.finished || change == Some(Change::Finish) && info.state == ZoneState::Full;
    if zone.finished && info.state != ZoneState::Full {
        return Err("a finished zone is not full any more".into());
    }
    if wp < zone.durable {
        return Err(format!("the write pointer went back to {wp}, below what is durable"));
    }
    if wp < zone.answered {
        return Err(format!("the write pointer went back to {wp}, below what was answered before the kill"));
    }
    if wp > zone.submitted() {
        return Err(format!("the write pointer {wp} is beyond everything that was written"));
    }
    if !finished && (wp == capacity) != (info.state == ZoneState::Full) {
        return Err(format!("the state does not go with the write pointer {wp}"));
    }
    zone.truncate(wp);
    (zone.durable, zone.recovered, zone.answered) = (wp, wp, 0);
    if !finished {
        // In a finished zone, writes that the finish has overtaken may be there or read as zeros.
        (zone.acknowledged, zone.noted) = (wp, wp);
    }
    zone.finished = finished;
    zone.change = None;
    zone.active =
        matches!(info.state, ZoneState::Closed | ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen);
    zone.opened = false;
    Ok(())
}
