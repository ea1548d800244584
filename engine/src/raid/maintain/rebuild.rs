//! Rebuild: restores the parts of zones that members lack, zone by zone, during reads and writes.
//!
//! The metadata has a bit per zone and member for a lost part: set for a new drive in every zone that is not empty, and
//! for a member that has lost the ZRWA of a zone. The bit is cleared, durably on all members, when the member has
//! everything of that zone: data, parity, slots and log of the tail, and a write pointer that claims no more than is
//! true. From then on the member counts in that zone, also after a crash, so an interrupted rebuild continues with the
//! next zone.
//!
//! A zone that is being written is copied behind its writes until little is left, and then paused for the rest.
//!
//! Zones that lack most parts come first: if two members are lost, every zone has some redundancy again before any zone
//! has all of it.
//!
//! A part in a worn zone is rebuilt in one of the drive's spare zones, if one is left ([`crate::adapt::spare`]).
//!
//! A block that cannot be decoded, because other members cannot read theirs, is lost: the rebuild leaves a bad block
//! there ([`super::fill`]) and continues. When all parts are rebuilt, it tries to fill the bad blocks. A zone that
//! cannot be rebuilt at all is left out.

use crate::{
    buf::{BLOCK, BufMut, is_zero},
    device::{Command, DeviceError, Status, Zones},
    format::{
        oob::Content,
        record::{ParityRecord, Record, TailRecord},
    },
    raid::{
        bad_blocks::RebuildLoss,
        error::{ArrayError, NoPart, NoRebuild, RebuildStop},
        events::Event,
        failures,
        geometry::{ChunkRange, ParityPlace, Role, each, physical},
        io,
        maintain::{
            fill, job,
            part::{self, PartRebuild},
        },
        parts::Raid,
        policy::{
            inplace,
            zrwa::{self, SlotPart},
        },
        power,
        status::{self, LostBlocks, Progress, RebuildOutcome, SkippedPart},
        zone::{
            cells, exclusion,
            flow::{Parities, Zone},
            note, read, relocated, settle, spare, stripe,
        },
    },
    runtime::{self, give_way},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{collections::BTreeMap, ops::Range, rc::Rc};

/// Zones of which one part is rebuilt before the zones are sorted again by the parts that they lack.
const ZONES_IN_PASS: usize = 16;

/// Ends a rebuild, also when its future is dropped.
struct RebuildGuard(Rc<Raid>);

impl Drop for RebuildGuard {
    fn drop(&mut self) {
        self.0.background.end();
        self.0.zones.changed.open();
    }
}

/// Merges blocks of a logical zone, in any order, to ranges.
fn lost_blocks(zone: ZoneIndex, mut blocks: Vec<u64>) -> Vec<LostBlocks> {
    blocks.sort_unstable();
    blocks.dedup();
    let ranges = blocks.chunk_by(|a, b| a + 1 == *b);
    ranges.map(|run| LostBlocks { zone: zone.0, from: run[0], blocks: run.len() as u64 }).collect()
}

/// Zones with members (bits) whose parts need a rebuild, those that lack most parts first; and the size of these
/// parts, in bytes.
async fn lacking(raid: &Raid, left_out: &[SkippedPart]) -> (Vec<(ZoneIndex, u32)>, u64) {
    let mut skipped = BTreeMap::new();
    for part in left_out {
        *skipped.entry(part.zone).or_insert(0) |= 1 << part.member;
    }
    let (mut by_live, mut bytes) = (vec![Vec::new(); raid.members.count() + 1], 0);
    for zone in (0..raid.geometry.zones).map(ZoneIndex) {
        let lacking = lacking_members(raid, zone) & !skipped.get(&zone.0).copied().unwrap_or(0);
        if lacking != 0 {
            bytes += u64::from(lacking.count_ones()) * read::member_bytes(raid, zone);
            by_live[raid.live(zone).count_ones() as usize].push((zone, lacking));
        }
        runtime::work(1);
        give_way().await;
    }
    (by_live.concat(), bytes)
}

/// Members (bits) whose parts of a zone need a rebuild.
fn lacking_members(raid: &Raid, zone: ZoneIndex) -> u32 {
    if raid.zones.is_offline(zone) { 0 } else { raid.zone_records.lost(zone) & raid.members.active() }
}

/// Resets the remains of parts that members lack (a member that was absent may hold obsolete ones), and zones of drives
/// that are not used: they would hold active resources. From then on such remains are reset when their zones end.
pub async fn clear_leftovers(raid: &Raid) {
    raid.may_clear.set(true);
    raid.zone_records.unreadable.work.open();
    raid.zones.changed.open();
    for log in each(raid.members.active()).filter_map(|member| raid.members.log(member)) {
        log.device.clear_unused().await;
    }
    let lacking = lacking(raid, &[]).await.0.into_iter();
    for (zone, member) in lacking.flat_map(|(zone, mask)| each(mask).map(move |member| (zone, member))) {
        let leftover = io::part(raid, zone, member).await.is_some_and(|info| info.state.is_active());
        let is_idle = || raid.zone_records.lost(zone) & (1 << member) != 0 && exclusion::is_free(raid, zone);
        if leftover && is_idle() {
            wait_for_flights(raid, zone).await;
            // A reset in the meantime may have given the part back: it must not be cleared then.
            if is_idle() {
                exclusion::clear(raid, zone, member).await;
            }
        }
    }
}

/// Waits for the commands in flight in `zone`: one that was submitted to a member before it lost its part would, if
/// carried out late, overwrite blocks that are written again.
async fn wait_for_flights(raid: &Raid, zone: ZoneIndex) {
    let running = raid.zones.running(zone);
    if let Some(running) = running {
        drop(settle::pause(raid, &running).await);
    }
}

/// Rebuilds all lost parts that can be rebuilt. The caller has waited for [`job::given_up_ended`].
pub async fn rebuild(raid: &Rc<Raid>, progress: &dyn Fn(Progress)) -> Result<RebuildOutcome, ArrayError> {
    if !raid.background.begin() {
        return Err(NoRebuild::UnderWay.into());
    }
    let guard = RebuildGuard(raid.clone());
    job::run(raid, progress, |raid, report| async move {
        let _guard = guard;
        raid.events.note(Event::RebuildBegun);
        let rebuilt = rebuild_all(&raid, &report).await;
        match &rebuilt {
            Ok(rebuilt) => note_rebuilt(&raid, rebuilt),
            Err(error) => raid.events.note(Event::RebuildStopped(error.clone())),
        }
        rebuilt
    })
    .await
}

fn note_rebuilt(raid: &Raid, rebuilt: &RebuildOutcome) {
    for LostBlocks { zone, from, blocks } in rebuilt.lost.iter().copied() {
        raid.events.note(Event::BlocksLost { zone, from, blocks });
    }
    for SkippedPart { zone, member, reason: why } in rebuilt.left_out.iter().copied() {
        raid.events.note(Event::LeftOut { member, zone, why });
    }
    raid.events.note(Event::RebuildEnded { bytes: rebuilt.bytes });
}

async fn rebuild_all(raid: &Rc<Raid>, progress: &dyn Fn(Progress)) -> Result<RebuildOutcome, ArrayError> {
    let (mut done_bytes, mut rebuilt, mut filled) = (0, RebuildOutcome::default(), false);
    let under_repair = lacking(raid, &[]).await.0.iter().fold(0, |all, (_, lacking)| all | lacking);
    let kept_bytes = status::rebuild_progress(raid).done_bytes;
    let show = |done_bytes: u64, total_bytes: u64| {
        let (done_bytes, total_bytes) = (kept_bytes + done_bytes, kept_bytes + total_bytes);
        progress(Progress { done_bytes, total_bytes: total_bytes.max(done_bytes), kept_bytes });
    };
    clear_leftovers(raid).await;
    loop {
        let changed = raid.zones.changed.wait();
        if raid.background.is_given_up() {
            return Err(NoRebuild::GivenUp.into());
        }
        let (lacking, left_bytes) = lacking(raid, &rebuilt.left_out).await;
        let total_bytes = done_bytes + left_bytes;
        show(done_bytes, total_bytes);
        if lacking.is_empty() && !std::mem::replace(&mut filled, true) {
            done_bytes += fill::fill_bad_blocks(raid).await;
            continue;
        }
        if lacking.is_empty() {
            rebuilt.left_out.extend(left_offline(raid));
            return match raid.members.active() & under_repair == under_repair {
                true => Ok(RebuildOutcome { bytes: done_bytes, ..rebuilt }),
                false => Err(NoRebuild::Failed.into()),
            };
        }
        let mut all_are_busy = true;
        let free = lacking.into_iter().filter(|(zone, _)| exclusion::is_free(raid, *zone));
        for (zone, parts) in free.take(ZONES_IN_PASS) {
            all_are_busy = false;
            let Some(member) = each(parts & lacking_members(raid, zone)).next() else { continue };
            let before = done_bytes;
            let mut report = |bytes: u64| {
                done_bytes += bytes;
                show(done_bytes, total_bytes);
            };
            let (result, lost, lacks) = rebuild_part(raid, zone, member, &mut report).await;
            match result {
                Ok(()) => rebuilt.lost.extend(lost_blocks(zone, lost.blocks)),
                Err(RebuildStop::Again) if !raid.membership.has_failed() => {
                    done_bytes = before;
                    break;
                }
                Err(RebuildStop::Again) => return Err(failures::too_many_failed(raid)),
                // The zone of the drive became worn during the rebuild.
                Err(RebuildStop::Error(NoPart::Worn(_)))
                    if lacks && spare::find_spare(raid, zone, member).await.is_some() =>
                {
                    done_bytes = before;
                    break;
                }
                // The failure of one zone does not stop the rebuild of the others.
                Err(RebuildStop::Error(_)) if !lacks && !raid.membership.has_failed() => {
                    rebuilt.lost.extend(lost_blocks(zone, lost.blocks));
                }
                Err(RebuildStop::Error(reason))
                    if part::check_active(raid, member).is_ok() && !raid.membership.has_failed() =>
                {
                    done_bytes = before;
                    rebuilt.left_out.push(SkippedPart { zone: zone.0, member, reason });
                }
                // The member is out, but other members may lack parts too.
                Err(RebuildStop::Error(_))
                    if !raid.members.is_active(member) && !raid.membership.has_failed() =>
                {
                    done_bytes = before;
                }
                Err(RebuildStop::Error(why)) => return Err(NoRebuild::Zone { zone: zone.0, why }.into()),
            }
        }
        if all_are_busy {
            changed.await;
        }
    }
}

/// As [`rebuild_zone`], while no other operation works on the zone; also returns the blocks that could not be
/// decoded, and whether the member still lacks its part, which is empty then.
async fn rebuild_part(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    report: &mut dyn FnMut(u64),
) -> (Result<(), RebuildStop>, RebuildLoss, bool) {
    raid.background.enter(zone);
    raid.background.work_on(raid.members.seat(member));
    let (lost, power_epoch) = (RebuildLoss::default(), power::drive_epoch(raid, member));
    let mut work = PartRebuild { report, lost, power_epoch };
    let result = rebuild_zone(raid, zone, member, &mut work).await;
    // The member may have its part again, if only a later step has failed.
    let lacks = raid.zone_records.lost(zone) & (1 << member) != 0;
    if result.is_err() && lacks {
        // A partly rebuilt part would hold active resources of the drive.
        let zones = Zones::One(physical(zone));
        part::on_member(raid, member, Command::Reset { zones }).await.ok();
    }
    raid.background.leave();
    raid.zones.changed.open();
    raid.zone_records.unreadable.wake(zone);
    (result, work.lost, lacks)
}

/// Lost parts of offline zones: they cannot be rebuilt now, and are reported as left out.
fn left_offline(raid: &Raid) -> Vec<SkippedPart> {
    let active = raid.members.active();
    let zones = raid.zones.offline();
    let lacking = zones.keys().flat_map(|zone| {
        each(raid.zone_records.lost(ZoneIndex(*zone)) & active).map(|member| (*zone, member))
    });
    let reason = |zone| match raid.zones.is_read_only(ZoneIndex(zone)) {
        true => NoPart::ReadOnly,
        false => NoPart::Offline,
    };
    lacking.map(|(zone, member)| SkippedPart { zone, member, reason: reason(zone) }).collect()
}

/// Rebuilds a member's part of a zone: empties it, moves it if its zone is worn, writes it anew, and logs that.
async fn rebuild_zone(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    work: &mut PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    let zones = Zones::One(physical(zone));
    part::check_waits(raid, zone)?;
    part::check_stuck(raid, zone)?;
    wait_for_flights(raid, zone).await;
    part::check_stop(raid, member)?;
    spare::move_part(raid, zone, member).await?;
    part::check_stop(raid, member)?;
    part::on_member(raid, member, Command::Reset { zones }).await?;
    part::check_stop(raid, member)?;
    relocated::unburn(raid, zone, member);
    let running = raid.zones.running(zone);
    match running {
        // A zone that waits to be opened is opened on this member too, when the rebuild has left it.
        Some(running) if !running.flow.borrow().is_open() => part::rebuilt(raid, zone, member, work).await,
        Some(running) => rebuild_running(raid, &running, member, work).await,
        None => rebuild_full(raid, zone, member, work).await,
    }
}

/// Copies rows `rows` of complete stripes to the member. In a zone with a ZRWA the write pointer follows, up to the
/// position (half chunks) in `follow`.
async fn copy_rows(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    rows: Range<u64>,
    follow: Option<u64>,
    work: &mut PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    let chunk = raid.layout.chunk_blocks;
    let start = raid.members.start(member, zone).0;
    let most = part::batch_blocks(raid);
    let (mut at, end) = (rows.start * chunk, rows.end * chunk);
    while at < end {
        give_way().await;
        // Row by row in a ZRWA: writes have to stay inside it.
        let row_end = if follow.is_some() { (at / chunk + 1) * chunk } else { end };
        let to = (at + most).min(row_end);
        let data = stripe::decode_rows(raid, zone, member, at..to, &mut work.lost).await?;
        part::check_stop(raid, member)?;
        (work.report)(data.len() as u64);
        let content = io::content_of(raid, member, at / chunk);
        let write = match follow {
            Some(_) => io::write_command(raid, member, zone, at, data, content),
            None => io::rows_command(raid, member, zone, at, data),
        };
        part::on_member(raid, member, write).await?;
        if let Some(position) = follow
            && to == row_end
        {
            let wp = to.min(position * (chunk / 2));
            part::on_member(raid, member, Command::FlushZrwa { last: Lba(start + wp - 1) }).await?;
        }
        part::check_stop(raid, member)?;
        at = to;
    }
    Ok(())
}

/// Rebuilds a part of a zone that is full or finished.
async fn rebuild_full(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    work: &mut PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    let layout = &raid.layout;
    if raid.zones.table().info(zone).state != ZoneState::Full {
        // The zone is empty, and so is the part.
        return part::rebuilt(raid, zone, member, work).await;
    }
    let tail = raid.finished_tail(zone);
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    copy_rows(raid, zone, member, 0..stripe, None, work).await?;
    if covered > 0 {
        let mut data = BufMut::zeroed(layout.chunk_blocks as usize * BLOCK);
        let role = layout.role(member, stripe);
        let (index, to) = match role {
            Role::Data(index) => (index, covered.saturating_sub(index * layout.chunk_blocks)),
            Role::Parity(_) => (0, layout.chunk_blocks),
        };
        let piece = ChunkRange { stripe, index, from: 0, to: to.min(layout.chunk_blocks) };
        if piece.to > 0 {
            let none = Parities::default();
            let decode = async |piece: ChunkRange| stripe::decode(raid, zone, piece, role, tail, &none).await;
            let found = stripe::decode_singly(raid, zone, member, piece, &mut work.lost, decode).await?;
            data[..found.len()].copy_from_slice(&found);
        }
        (work.report)(data.len() as u64);
        part::check_stop(raid, member)?;
        let (at, content) = (stripe * layout.chunk_blocks, io::content_of(raid, member, stripe));
        let write = io::write_command(raid, member, zone, at, data.freeze(), content);
        part::on_member(raid, member, write).await?;
    }
    let zones = Zones::One(physical(zone));
    part::on_member(raid, member, Command::Finish { zones }).await?;
    part::check_stop(raid, member)?;
    part::rebuilt(raid, zone, member, work).await
}

/// Rebuilds a part of a zone that is being written.
async fn rebuild_running(
    raid: &Rc<Raid>,
    zone: &Rc<Zone>,
    member: usize,
    work: &mut PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    let layout = raid.layout;
    let zones = Zones::One(physical(zone.index));
    let zrwa = layout.policy.uses_zrwa();
    part::on_member(raid, member, Command::Open { zones, zrwa }).await?;
    let mut row = 0;
    for _ in 0..part::CATCH_UPS {
        // Not the last complete row: a write pointer at its end might claim too much.
        let settled = (zone.flow.borrow().claimed() / layout.data_chunks()).saturating_sub(1);
        if settled < row + layout.distance {
            break;
        }
        let follow = zrwa.then_some(2 * settled);
        copy_rows(raid, zone.index, member, row..settled, follow, work).await?;
        if zone.flow.borrow().has_ended() {
            return Err(RebuildStop::Again);
        }
        row = settled;
    }
    let _pause = settle::pause(raid, zone).await;
    join(raid, zone, member, row, work).await
}

/// Rebuilds the rest of a part in a zone that is quiesced.
async fn join(
    raid: &Rc<Raid>,
    zone: &Rc<Zone>,
    member: usize,
    row: u64,
    work: &mut PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    let layout = raid.layout;
    if zone.flow.borrow().is_over() {
        // A zone that could not be finished stays frozen until it is reset or judged by the next assembly.
        let ends = zone.flow.borrow().has_ended() || raid.zones.is_busy(zone.index);
        return Err(if ends { RebuildStop::Again } else { NoPart::TooFewOthers.into() });
    }
    part::check_stuck(raid, zone.index)?;
    let tail = zone.flow.borrow().complete();
    settle::make_safe(raid, zone, tail).await?;
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    // The highest position that claims no more than the tail, of which the member may be a witness.
    let (zrwa, position) = (layout.policy.uses_zrwa(), layout.policy.position(&layout, member, tail));
    copy_rows(raid, zone.index, member, row..stripe, zrwa.then_some(position), work).await?;
    layout.policy.show_with(raid, zone, member, tail).await;
    // The tail record first: with the policy `inplace` it voids parity that was logged before.
    if let Some(record) = layout.policy.tail_record(raid, zone, tail) {
        copy_log(raid, zone, member, record).await?;
    }
    if covered > 0 {
        copy_tail(raid, zone, member, (stripe, covered), work).await?;
    }
    copy_cells(raid, zone, member, tail).await?;
    if zrwa && position > 2 * stripe {
        let last = raid.members.start(member, zone.index).0 + position * (layout.chunk_blocks / 2) - 1;
        part::on_member(raid, member, Command::FlushZrwa { last: Lba(last) }).await?;
    }
    if zrwa && position == 0 && tail > 0 {
        settle::record_promise_with(raid, zone, tail, member).await;
    }
    part::check_stop(raid, member)?;
    part::rebuilt(raid, zone.index, member, work).await?;
    let mut flow = zone.flow.borrow_mut();
    flow.join(member, position);
    let limit = settle::window(raid, &flow, raid.live(zone.index));
    flow.set_limit(limit);
    Ok(())
}

/// Copies the member's part of a partial stripe: data, and the slots that its tail needs.
async fn copy_tail(
    raid: &Rc<Raid>,
    zone: &Zone,
    member: usize,
    (stripe, covered): (u64, u64),
    work: &mut PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    let layout = &raid.layout;
    let chunk = layout.chunk_blocks;
    if let Role::Data(index) = layout.role(member, stripe)
        && covered > index * chunk
    {
        let to = (covered - index * chunk).min(chunk);
        let piece = ChunkRange { stripe, index, from: 0, to };
        let tail = stripe * layout.stripe_blocks() + covered;
        let role = Role::Data(index);
        let decode = async |piece: ChunkRange| {
            let known = stripe::running_parities(raid, &zone.flow.borrow(), piece)?;
            stripe::decode(raid, zone.index, piece, role, tail, &known).await
        };
        let data = stripe::decode_singly(raid, zone.index, member, piece, &mut work.lost, decode).await?;
        let write = io::write_command(raid, member, zone.index, stripe * chunk, data, Content::Data);
        part::on_member(raid, member, write).await?;
    }
    for (which, SlotPart { index, from, to }) in zrwa::tail_slots(layout, covered) {
        let (slot_member, place) = layout.slot(stripe, index, which);
        if slot_member != member {
            continue;
        }
        // Such a part is rebuilt when the stripe is complete.
        if zone.flow.borrow().contradicts(layout, ChunkRange { stripe, index, from, to }) {
            return Err(DeviceError::from(Status::UnrecoveredReadError).into());
        }
        let data = zone.flow.borrow().parity(which, from, to);
        match place {
            ParityPlace::Row(row) => {
                let content = inplace::version_of(stripe, row, index);
                let at = row * chunk + from;
                part::on_member(raid, member, io::write_command(raid, member, zone.index, at, data, content))
                    .await?;
            }
            ParityPlace::MetaLog => {
                let epoch = zone.flow.borrow().epoch();
                let (index, from) = (index as u32, from as u32);
                let record = ParityRecord { zone: zone.index.0, epoch, stripe, index, from, data };
                log_on(raid, member, Record::Parity(record)).await?;
            }
        }
    }
    Ok(())
}

/// Copies the cells of a quiesced zone to the member. Each copy on another member has the content that was acknowledged last.
async fn copy_cells(raid: &Raid, zone: &Zone, member: usize, tail: u64) -> Result<(), RebuildStop> {
    for (members, at) in cells::all(raid, tail) {
        if !members.clone().any(|holder| holder == member) {
            continue;
        }
        let live = raid.live(zone.index) & !(1 << member);
        for other in members.filter(|other| live & (1 << other) != 0) {
            let done = cells::read_copy(raid, zone.index, other, at).await;
            if done.result.is_ok() && !is_zero(&done.data) {
                let write = io::cell_command(raid, member, zone.index, at, done.data, false);
                part::on_member(raid, member, write).await?;
                part::check_stop(raid, member)?;
                break;
            }
        }
    }
    Ok(())
}

async fn log_on(raid: &Raid, member: usize, record: Record) -> Result<(), RebuildStop> {
    let sequence = raid.membership.next_sequence();
    match raid.members.log(member) {
        Some(log) => Ok(log.append(record, sequence).await.result?),
        None => Err(NoPart::Gone.into()),
    }
}

/// Writes the member's copy of the tail record, if it keeps one.
async fn copy_log(raid: &Raid, zone: &Zone, member: usize, record: TailRecord) -> Result<(), RebuildStop> {
    let layout = &raid.layout;
    let last = record.tail_blocks.saturating_sub(1);
    let (mut members, place) = layout.log(last / layout.stripe_blocks());
    if record.generation > 0 {
        return log_on(raid, member, Record::Tail(record)).await;
    }
    if !members.any(|holder| holder == member) {
        return Ok(());
    }
    let record = note::record(zone, record);
    let ParityPlace::Row(row) = place else { return log_on(raid, member, record).await };
    let sequence = raid.membership.next_sequence();
    let block = zone.flow.borrow().log_block();
    let at = row * layout.chunk_blocks + block;
    let log = io::log_command(raid, member, zone.index, at, (&record, sequence), false);
    part::on_member(raid, member, log).await
}
