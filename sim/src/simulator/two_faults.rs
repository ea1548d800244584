//! Faults beyond the guarantee: as many members are missing as the array tolerates, and the drive of one more is
//! faulty.
//!
//! Such a combination may cost data, but must never return wrong data. Some forks therefore strike one member more than
//! there are parities, and judge the array by a weaker rule. The array may refuse to assemble, have offline zones and
//! fail reads. It must not return wrong data or zeros, report a zone as ending before its promised end, leave a command
//! unanswered, or destroy data that can still be recovered: when the missing members are back, all promised data is
//! there again. Excepted are zones that the array has written to in the meantime and of which more members than
//! parities now lack their parts, the struck member included. The fork records these zones itself (`ForkState`).
//!
//! The same faults without missing members are within the guarantee, and so are faults of as many members at once as
//! there are parities.

use super::{
    assembly,
    command_queue::Bay,
    drives, ends,
    fault_budget::{Losses, named, others},
    health::{self, REMEDIES},
    recovered,
    subject::{AssembleOptions, SubjectError},
    world::{End, Failure, World},
};
use emu::ssd::{Cut, Fault, Kind};
use engine::{
    array::ArrayError,
    buf::{BLOCK, Buf},
    device::Command,
    format::record::Header,
    raid::{error::NoArray, policy::Policy},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeSet;

/// A set of faults that strikes one member's drive.
#[derive(Clone, Debug, Default)]
struct FaultSet {
    what: &'static str,
    /// Each fault with the number of commands that are executed before it.
    faults: Vec<(u64, Fault)>,
    /// The drive is missing.
    absent: bool,
    /// The drive loses the contents of its ZRWAs, by a power cut.
    zrwa_lost: bool,
    /// Zones of the array of which the drive may lack its part until the fault is mended.
    ruined: BTreeSet<u32>,
    /// The drive is no usable member until it gets a new metadata log (`renews`) or its reads work again (`mends`).
    outcast: bool,
    renews: bool,
    /// The failing reads may start to work again.
    mends: bool,
    /// Zones of the array that were reset or finished outside of the array.
    tampered: BTreeSet<u32>,
}

/// Faults of other members at the time of a blow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherFaults {
    Nobody,
    /// Other members suffer as well, at most as many in all as there are parities.
    Others,
    /// One member more suffers than there are parities.
    TooMany,
}

/// The state of a fork with one fault too many, as the simulator records it.
struct ForkState {
    /// The members that are missing in the first half.
    missing: Vec<usize>,
    struck: usize,
    /// Suspects: members that may lack data, missing or not.
    stale: Vec<usize>,
    /// Number of members that may lack a zone.
    parities: usize,
    blow: FaultSet,
    /// The array was assembled without the missing members, which are stale since then.
    assembled: bool,
    /// Zones that were online without the missing members, and may have been written.
    went_on: BTreeSet<u32>,
    /// Zones in which reads have failed.
    failed: BTreeSet<u32>,
}

impl ForkState {
    /// Whether all promised data of a zone has to be there once all members are back.
    fn is_due(&self, zone: u32) -> bool {
        if self.blow.tampered.contains(&zone) {
            return false;
        }
        let ruined = self.blow.outcast || self.blow.ruined.contains(&zone) || self.failed.contains(&zone);
        // The struck member lacks it as well.
        !ruined || self.lacking(self.went_on.contains(&zone)) < self.parities
    }

    /// Number of members beside the struck one that lack data: the suspects, and the missing members too if `missing`.
    fn lacking(&self, missing: bool) -> usize {
        let also = self.missing.iter().filter(|member| missing && !self.stale.contains(member));
        self.stale.len() + also.count()
    }
}

/// Judges the array while as many members are missing as it tolerates and the drive of one more is faulty; then
/// again when they are back. Suspects may lack data.
///
/// # Errors
/// A result that is not allowed even beyond the guarantee.
pub(super) fn judge_beyond(world: &mut World<'_>, losses: &Losses) -> Result<(), Failure> {
    let stale = losses.suspects.clone();
    let struck = other_than(world, &stale);
    let blow = draw_blow(world, struck, OtherFaults::TooMany);
    let mut missing = as_many_as_may(world, &stale, Some(struck));
    if blow.absent && losses.offered && !stale.is_empty() {
        // Suspects that are being rebuilt are offered; the absent struck member is the missing one.
        world.trace.note(|| format!("fork: not whole: {}", named(&stale)));
        missing.retain(|member| !stale.contains(member));
    }
    let what = format!("without {missing:?}, and member {struck}: {}", blow.what);
    world.trace.note(|| format!("fork: beyond the promise, {what}: {blow:?}"));
    let mut books = ForkState {
        missing,
        struck,
        stale,
        parities: world.scenario.parities,
        blow,
        assembled: false,
        went_on: BTreeSet::new(),
        failed: BTreeSet::new(),
    };
    // With the policy `inplace` this cannot be told from writes that never reached the drive.
    let zrwa_lost = losses.zrwa_lost || books.blow.zrwa_lost && world.scenario.policy == Policy::InPlace;
    if zrwa_lost && world.scenario.policy.uses_zrwa() {
        world.oracle.fall_back();
    }
    if losses.cache_lost {
        // More members lack blocks than parity covers: judged as after a power cut.
        world.oracle.power_cut();
    }
    world.lenient = true;
    let beyond = world.scenario.misfortune.beyond;
    let judged = suffer(world, &mut books).and_then(|()| {
        match beyond && books.assembled && world.rng.chance(1, REMEDIES) {
            true => health::judge_remedies_beyond(world, books.struck),
            false => return_all(world, &mut books),
        }
    });
    judged.map_err(|failure| Failure(format!("beyond the promise ({what}): {failure}")))
}

/// All drives lose their ZRWAs at once, which is beyond the guarantee: zones may be offline and reads may fail, but
/// no zone may end before its promised data, and reads must not return anything else.
///
/// # Errors
/// Lost or wrong data without an error.
pub(super) fn judge_common_loss(world: &mut World<'_>) -> Result<(), Failure> {
    if !world.scenario.policy.uses_zrwa() || world.members.len() == 1 {
        return Ok(());
    }
    world.trace.note(|| "fork: all drives lose their ZRWAs".into());
    world.lenient = true;
    ends::cut_power(world, |_| Cut { cache_lost: false, zrwa_lost: true })?;
    if assembly::assemble_from(world, |_| true)?.is_err() {
        return Ok(());
    }
    let report = recovered::take_report(world, |_| true)?;
    recovered::verify_where(world, &report, |_| true)?;
    world.counts.beyond += 1;
    Ok(())
}

/// The first half: members are missing and another one is struck.
fn suffer(world: &mut World<'_>, books: &mut ForkState) -> Result<(), Failure> {
    strike_with(world, books.struck, &books.blow)?;
    let absent = books.blow.absent.then_some(books.struck);
    let too_many = absent.is_some() && books.missing.len() == books.parities;
    match assembly::assemble_from(world, |member| !books.missing.contains(&member) && Some(member) != absent)?
    {
        Err(why) => {
            world.trace.note(|| format!("refused: {why}"));
            let real = world.names(books.struck, &why)
                || matches!(
                    why,
                    SubjectError::TooFew(_) | SubjectError::Array(ArrayError::Drives(NoArray::TooFew { .. }))
                );
            match real {
                true => Ok(()),
                false => Err(Failure(format!("the refusal names no cause: {why}"))),
            }
        }
        Ok(()) if too_many => Err(Failure("it assembles with one member too many missing".into())),
        Ok(()) => {
            books.assembled = true;
            if has_stopped(world, books)? {
                books.went_on = (0..world.oracle.zones.len() as u32).collect();
                return Ok(());
            }
            let report = recovered::take_report(world, |_| true)?;
            let online = report.iter().filter(|info| info.state != ZoneState::Offline);
            books.went_on = online.map(|info| info.zone.0).collect();
            // The assembly has written a new metadata log on the struck drive.
            books.blow.outcast &= !books.blow.renews;
            books.failed = recovered::verify_where(world, &report, |_| true)?;
            if world.scenario.misfortune.beyond {
                health::judge_readable(world, &books.failed)?;
            }
            world.counts.beyond += 1;
            if world.rng.chance(1, 2) {
                recovered::write_on(world)?;
            }
            Ok(())
        }
    }
}

/// Whether more members than parities are out of service, so that the array answers nothing any more.
///
/// # Errors
/// A member is out that was neither struck nor missing nor a suspect.
fn has_stopped(world: &World<'_>, books: &ForkState) -> Result<bool, Failure> {
    let cause = |member: &usize| *member == books.struck || books.missing.contains(member);
    let (caused, others): (Vec<usize>, Vec<usize>) =
        world.unsound_members().partition(|member| cause(member) || books.stale.contains(member));
    match others.first() {
        // Power cuts may have displaced more blocks than the member's metadata log has room for.
        Some(member) if !world.scenario.cramped => {
            Err(Failure(format!("member {member} is not active, without any cause")))
        }
        _ => Ok(caused.len() > books.parities),
    }
}

/// The second half: the power is cut, and the missing members are back.
fn return_all(world: &mut World<'_>, books: &mut ForkState) -> Result<(), Failure> {
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(1, 2);
    ends::cut_power(world, |_| Cut { cache_lost, zrwa_lost: false })?;
    let Some(bay) = world.members[books.struck] else { return Ok(()) };
    world.command_queue.ssd(bay).faults().calm();
    if books.blow.mends && world.rng.chance(1, 2) {
        world.trace.note(|| "its reads work again".into());
        world.command_queue.ssd(bay).faults().mend();
        books.blow.outcast = false;
        // The contents of a log that was replaced by a new one are not read any more.
        if !(books.assembled && books.blow.renews) {
            books.blow.ruined.clear();
        }
    }
    if books.assembled && books.stale.is_empty() && world.rng.chance(1, 3) {
        force(world, books)?;
    }
    world.trace.note(|| format!("fork: all are back; gone on with {:?}", books.went_on));
    let back = |what: String| Failure(format!("when all are back, {what}"));
    let assembled = assembly::assemble_from(world, |_| true)?;
    if let Err(why) = assembled {
        // The returned members are stale and the struck one is unusable. That is a valid refusal only if the array
        // was used without the returned members, or might have been before the fault took effect.
        let late = books.blow.faults.iter().any(|(commands, _)| *commands > 0);
        let too_many = books.lacking(books.assembled || late) >= books.parities;
        return if books.blow.outcast && too_many {
            Ok(())
        } else {
            Err(back(format!("it does not assemble: {why}")))
        };
    }
    let report =
        recovered::take_report(world, |zone| !books.is_due(zone)).map_err(|failure| back(failure.0))?;
    recovered::verify_where(world, &report, |zone| !books.is_due(zone)).map_err(|failure| back(failure.0))?;
    world.counts.beyond += 1;
    Ok(())
}

/// Assembles by force (`Behaviour::force`) without the struck member, from members that were missing and are stale:
/// this has to succeed, and all data that can be read is correct.
fn force(world: &mut World<'_>, books: &mut ForkState) -> Result<(), Failure> {
    world.trace.note(|| format!("fork: by force, without member {}", books.struck));
    let by_force = |what: String| Failure(format!("by force, {what}"));
    let how = AssembleOptions { force: true, ..world.how() };
    if let Err(why) = assembly::assemble_as(world, |member| member != books.struck, how)? {
        return Err(by_force(format!("it does not assemble: {why}")));
    }
    let report = recovered::take_report(world, |_| true).map_err(|failure| by_force(failure.0))?;
    recovered::verify_where(world, &report, |_| true).map_err(|failure| by_force(failure.0))?;
    let online = report.iter().filter(|info| info.state != ZoneState::Offline);
    books.went_on.extend(online.map(|info| info.zone.0));
    world.counts.beyond += 1;
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(1, 2);
    ends::cut_power(world, |_| Cut { cache_lost, zrwa_lost: false })
}

/// Strikes as many members as there are parities, suspects first, while all are present: the guarantee holds in
/// full.
///
/// # Errors
/// A broken promise.
pub(super) fn judge_blow(world: &mut World<'_>, suspects: &[usize]) -> Result<(), Failure> {
    let may_suffer = as_many_as_may(world, suspects, None);
    let mut struck = may_suffer.clone();
    world.rng.shuffle(&mut struck);
    if struck.len() > 1 && world.rng.chance(1, 2) {
        struck.truncate(1);
    }
    let alone = struck.len() == 1 && suspects.iter().all(|member| struck.contains(member));
    let beside = if alone { OtherFaults::Nobody } else { OtherFaults::Others };
    let blows: Vec<_> = struck.into_iter().map(|member| (member, draw_blow(world, member, beside))).collect();
    world.trace.note(|| format!("fork: members struck: {blows:?}"));
    let what: Vec<_> = blows.iter().map(|(member, blow)| format!("member {member}: {}", blow.what)).collect();
    let judged = bear(world, &may_suffer, &blows);
    judged.map_err(|failure| Failure(format!("{}: {failure}", what.join(", "))))
}

/// The blows are survived, also if all members in `may_suffer` are missing at the second assembly.
fn bear(world: &mut World<'_>, may_suffer: &[usize], blows: &[(usize, FaultSet)]) -> Result<(), Failure> {
    for (member, blow) in blows {
        strike_with(world, *member, blow)?;
    }
    let tampered = |zone: u32| blows.iter().any(|(_, blow)| blow.tampered.contains(&zone));
    for again in [false, true] {
        let without = if again && world.rng.chance(1, 2) { may_suffer } else { &[] };
        if let Err(why) = assembly::assemble_from(world, |member| !without.contains(&member))? {
            return Err(Failure(format!("the array does not assemble: {why}")));
        }
        let report = recovered::take_report(world, tampered)?;
        recovered::verify_where(world, &report, tampered)?;
        recovered::count_judgement(world);
        world.hear(|member| may_suffer.contains(&member))?;
        match world.unsound_members().find(|member| !may_suffer.contains(member)) {
            Some(_) if world.scenario.cramped => (),
            Some(member) => {
                return Err(Failure(format!("member {member} is not active, without any cause")));
            }
            None => (),
        }
        if !again {
            recovered::write_on(world)?;
            let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(1, 2);
            ends::end_by(world, End::PowerCut, cache_lost)?;
        }
    }
    Ok(())
}

/// A random member that is not in `members`.
pub(super) fn other_than(world: &mut World<'_>, members: &[usize]) -> usize {
    *world.rng.pick(&others(world.members.len(), members))
}

/// As many members as there are parities: `suspects`, then random other members except `but`.
fn as_many_as_may(world: &mut World<'_>, suspects: &[usize], but: Option<usize>) -> Vec<usize> {
    let mut chosen = suspects.to_vec();
    while chosen.len() < world.scenario.parities {
        let not: Vec<usize> = chosen.iter().copied().chain(but).collect();
        chosen.push(other_than(world, &not));
    }
    chosen
}

fn strike_with(world: &mut World<'_>, member: usize, blow: &FaultSet) -> Result<(), Failure> {
    let Some(bay) = world.members[member] else { return Ok(()) };
    world.coverage.struck = blow.what;
    if blow.zrwa_lost {
        let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(1, 2);
        ends::cut_power(world, |other| Cut { cache_lost, zrwa_lost: other == bay })?;
    }
    for (commands, fault) in &blow.faults {
        world.command_queue.ssd(bay).faults().after(*commands, *fault);
    }
    Ok(())
}

/// The zone of the array that a zone of a drive belongs to, `None` for the metadata log. The number is beyond the
/// array's last zone if the drive's zone is not in use.
fn zone_of(world: &World<'_>, bay: Bay, zone: ZoneIndex) -> Option<u32> {
    drives::places(world, bay).zone_at(zone.0 / world.scenario.aggregate)
}

/// Zones of a drive that are not empty and are in use: by the metadata log if `metadata`, otherwise by zones of the
/// array.
fn begun_zones(world: &World<'_>, bay: Bay, metadata: bool) -> Vec<ZoneInfo> {
    let count = world.command_queue.geometry(bay).zones;
    let zones: Vec<_> =
        (0..count).map(|zone| world.command_queue.ssd(bay).zones().info(ZoneIndex(zone))).collect();
    let places = drives::places(world, bay);
    let used = |info: &ZoneInfo| match places.zone_at(info.zone.0 / world.scenario.aggregate) {
        Some(zone) => !metadata && (zone as usize) < world.oracle.zones.len(),
        None => metadata,
    };
    zones.into_iter().filter(|info| info.state != ZoneState::Empty && used(info)).collect()
}

/// Draws a blow for the drive of a member; some kinds depend on the faults of other members (`beside`).
fn draw_blow(world: &mut World<'_>, member: usize, beside: OtherFaults) -> FaultSet {
    let beyond = beside == OtherFaults::TooMany;
    let Some(bay) = world.members[member] else { return FaultSet::default() };
    match world.rng.below(9) {
        0 if beyond => FaultSet { what: "absent", absent: true, ..FaultSet::default() },
        0 | 1 => draw_log_blow(world, bay),
        2 if world.scenario.policy == Policy::Zrwa => draw_tail_blow(world, bay),
        2 | 3 => draw_unreadable(world, bay),
        4 => draw_worn(world, bay),
        // Survived only if all other members are intact.
        5 if beside == OtherFaults::Nobody => draw_tampered(world, bay),
        6 if loses_zrwa(world, beyond) => {
            let ruined =
                begun_zones(world, bay, false).into_iter().filter_map(|info| zone_of(world, bay, info.zone));
            FaultSet { what: "lost ZRWAs", zrwa_lost: true, ruined: ruined.collect(), ..FaultSet::default() }
        }
        6 | 7 => {
            let first = world.rng.below(8);
            let failing = (0..1 + world.rng.below(3))
                .map(|n| (first + n, Fault::Fail { kind: Kind::Report, late: false }));
            FaultSet { what: "failing reports", faults: failing.collect(), ..FaultSet::default() }
        }
        _ => {
            let kind = *world.rng.pick(&Kind::ALL);
            let fault = Fault::Fail { kind, late: world.rng.chance(1, 2) };
            let ruined = (0..world.oracle.zones.len() as u32).collect();
            let faults = vec![(world.rng.below(60), fault)];
            FaultSet { what: "a failing command", faults, ruined, ..FaultSet::default() }
        }
    }
}

/// Whether the loss of a ZRWA may be drawn. Once ZRWA contents are lost, empty zones and zeros cannot be told from
/// writes that never arrived. With [`Policy::InPlace`] zones end where they were last recovered.
fn loses_zrwa(world: &World<'_>, beyond: bool) -> bool {
    match world.scenario.policy {
        Policy::Zrwa => !beyond,
        Policy::InPlace => true,
        Policy::Log => false,
    }
}

/// A block of the metadata log becomes unreadable, or one of its bits flips.
fn draw_log_blow(world: &mut World<'_>, bay: Bay) -> FaultSet {
    let Some(lba) = pick_block(world, bay, true) else { return FaultSet::default() };
    // The log may hold displaced blocks of any zone.
    let displaces = world.scenario.policy == Policy::Log;
    let zones = if displaces { world.oracle.zones.len() as u32 } else { 0 };
    let blow = FaultSet { outcast: true, renews: true, ruined: (0..zones).collect(), ..FaultSet::default() };
    if world.rng.chance(1, 2) {
        let faults = vec![(0, Fault::Unreadable(lba))];
        return FaultSet { what: "unreadable metadata", faults, mends: true, ..blow };
    }
    // A record about a zone of which only the missing member holds data exists nowhere else.
    if !is_followed(world, bay, lba) {
        return FaultSet::default();
    }
    let bit = world.rng.below(BLOCK as u64 * 8) as u32;
    let faults = vec![(0, Fault::Corrupt { lba, bit })];
    FaultSet { what: "flipped metadata", faults, ..blow }
}

/// Whether the metadata log has another record after a block.
pub(super) fn is_followed(world: &World<'_>, bay: Bay, lba: Lba) -> bool {
    let geometry = world.command_queue.geometry(bay).clone();
    let (zone, at) = geometry.locate(lba);
    let written =
        world.command_queue.ssd(bay).zones().info(zone).wp_blocks.min(geometry.zone_capacity_blocks);
    (at + 1..written).any(|block| is_record(world, bay, Lba(geometry.start(zone).0 + block)))
}

/// Whether a record begins at a block.
fn is_record(world: &World<'_>, bay: Bay, lba: Lba) -> bool {
    let done = world.command_queue.ssd(bay).execute(Command::read(lba, Buf::zeroed(BLOCK)));
    done.result.is_ok() && Header::read(&done.data).is_some()
}

/// A random block of a zone in use, often one that was written lately.
pub(super) fn pick_block(world: &mut World<'_>, bay: Bay, metadata: bool) -> Option<Lba> {
    const BELOW: u64 = 24;
    let zones = begun_zones(world, bay, metadata);
    if zones.is_empty() {
        return None;
    }
    let info = zones[world.rng.below(zones.len() as u64) as usize];
    let geometry = world.command_queue.geometry(bay).clone();
    let above = geometry.zrwa.filter(|_| info.zrwa).map_or(0, |zrwa| zrwa.size_blocks);
    let full = geometry.zone_capacity_blocks;
    let wp = if info.state == ZoneState::Full { full } else { info.wp_blocks };
    let from = if world.rng.chance(1, 2) { 0 } else { wp.saturating_sub(BELOW) };
    let to = (wp + above).min(full).max(from + 1);
    Some(Lba(geometry.start(info.zone).0 + from + world.rng.below(to - from)))
}

/// Log blocks in a data zone become unreadable, or get a flipped bit.
fn draw_tail_blow(world: &mut World<'_>, bay: Bay) -> FaultSet {
    let geometry = world.command_queue.geometry(bay).clone();
    let size = geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks);
    let mut found = Vec::new();
    for info in begun_zones(world, bay, false) {
        let start = geometry.start(info.zone).0;
        for block in info.wp_blocks..(info.wp_blocks + size).min(geometry.zone_capacity_blocks) {
            let lba = Lba(start + block);
            if is_record(world, bay, lba) {
                found.push((info.zone, lba));
            }
        }
    }
    if found.is_empty() {
        return draw_unreadable(world, bay);
    }
    let (zone, lba) = *world.rng.pick(&found);
    let ruined = zone_of(world, bay, zone).into_iter().collect();
    // The fault is permanent: recovery would trust a tail that was unreadable once and is readable later.
    let fault = match world.rng.chance(1, 2) {
        true => Fault::Unreadable(lba),
        false => Fault::Corrupt { lba, bit: world.rng.below(BLOCK as u64 * 8) as u32 },
    };
    FaultSet { what: "a damaged log block", faults: vec![(0, fault)], ruined, ..FaultSet::default() }
}

/// Blocks of data zones become unreadable.
fn draw_unreadable(world: &mut World<'_>, bay: Bay) -> FaultSet {
    let mut blow = FaultSet { what: "unreadable blocks", mends: true, ..FaultSet::default() };
    for _ in 0..1 + world.rng.below(4) {
        let Some(lba) = pick_block(world, bay, false) else { return blow };
        // The fault is permanent then: recovery would trust a tail that was unreadable once and is readable later.
        blow.mends &= !is_record(world, bay, lba);
        blow.faults.push((0, Fault::Unreadable(lba)));
        let zone = world.command_queue.geometry(bay).locate(lba).0;
        blow.ruined.extend(zone_of(world, bay, zone));
    }
    blow
}

/// A zone becomes read-only or offline, at once or after up to 99 commands.
fn draw_worn(world: &mut World<'_>, bay: Bay) -> FaultSet {
    let zone = ZoneIndex(world.rng.below(world.command_queue.geometry(bay).zones as u64) as u32);
    let fault = if world.rng.chance(1, 2) { Fault::ReadOnly(zone) } else { Fault::Offline(zone) };
    let later = if world.rng.chance(1, 2) { 0 } else { world.rng.below(100) };
    let ruined: BTreeSet<u32> = zone_of(world, bay, zone).into_iter().collect();
    let outcast = ruined.is_empty();
    FaultSet { what: "a worn zone", faults: vec![(later, fault)], ruined, outcast, ..FaultSet::default() }
}

/// A zone is reset or finished outside of the array.
fn draw_tampered(world: &mut World<'_>, bay: Bay) -> FaultSet {
    let mut zones = begun_zones(world, bay, false);
    // Near its start or end a zone that was changed outside of the array can look like the result of a crash.
    let (chunk, data_chunks) = (world.scenario.chunk_blocks, world.scenario.data_chunks());
    let window = world
        .scenario
        .drive
        .zrwa
        .map_or(2, |zrwa| world.scenario.aggregate as u64 * zrwa.size_blocks / chunk)
        .max(4);
    // Where zones are written by appends the window is 32 blocks of each member.
    let appended = world.scenario.group_blocks > 1;
    let window = if appended { window.max(2 * 32 / chunk) } else { window };
    let margin = window * chunk * data_chunks;
    zones.retain(|info| {
        let zone = zone_of(world, bay, info.zone).map(|zone| &world.oracle.zones[zone as usize]);
        let inside = margin..world.oracle.capacity.saturating_sub(margin);
        // Nor can a finish in progress be told from a finish outside of the array.
        zone.is_some_and(|zone| {
            zone.change.is_none() && inside.contains(&zone.durable) && inside.contains(&zone.submitted())
        })
    });
    if zones.is_empty() {
        return FaultSet::default();
    }
    let zone = zones[world.rng.below(zones.len() as u64) as usize].zone;
    // With the policy `inplace` a zone that was reset may end before data that its last parity version decodes.
    let may_reset = world.scenario.policy != Policy::InPlace;
    let reset = may_reset && (world.rng.chance(1, 2) || !world.maker.notices_others());
    // All small zones that are used as one.
    let parts = world.scenario.aggregate;
    let fault = |part| match reset {
        true => Fault::Reset(ZoneIndex(zone.0 / parts * parts + part)),
        false => Fault::Finish(ZoneIndex(zone.0 / parts * parts + part)),
    };
    let what = if reset { "a zone reset by another hand" } else { "a zone finished by another hand" };
    let faults = (0..parts).map(|part| (0, fault(part))).collect();
    let ruined: BTreeSet<u32> = zone_of(world, bay, zone).into_iter().collect();
    FaultSet { what, faults, tampered: ruined.clone(), ruined, ..FaultSet::default() }
}
