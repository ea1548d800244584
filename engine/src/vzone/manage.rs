//! Finish, reset and relocation of v-zones, and the tasks that reserve and reset zones.

use crate::{
    buf::Buf,
    device::{Command, DeviceError, Status, Zones},
    runtime::{COPY, MOST_WORK, SLICE, give_way, work},
    vzone::{
        allocate::{self, AllocationPurpose},
        balloon::floor_power,
        core::{NamespaceCore, Tenant},
        flush,
        format::{End, JournalEntry, StripeGroups, reservation},
        group_end::{self, is_out},
        journal,
        shape::GroupShape,
        transfer::{self, GroupRange, GroupTransfer},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{collections::VecDeque, ops::Range, rc::Rc};

/// Maximum number of attempts of a relocation.
const MOVE_TRIES: u32 = 3;

/// Each time that a namespace writes during a relocation, the idle time after which its spares are taken back is
/// doubled, this many times at most.
const MOST_STOPS: u32 = 10;

/// Number of reads in flight while a group is copied, in parallel to the writes.
const READS_AHEAD: usize = 4;

/// Maximum number of blocks that are copied by one command: larger commands would delay others.
const MOST_COPIED: u32 = 1024;
const _: () = assert!(MOST_COPIED * COPY + SLICE <= MOST_WORK);

/// Changes v-zones, each in the turn of its ticket; returns the first error.
pub async fn each_in_turn(
    core: &NamespaceCore,
    tenant: &Tenant,
    zones: Vec<(usize, u64)>,
    change: impl AsyncFn(usize) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let mut result = Ok(());
    for (zone, ticket) in zones {
        tenant.enter(zone, ticket).await;
        result = result.and(change(zone).await);
        tenant.leave(zone);
        core.room.open();
    }
    result
}

/// Finishes a v-zone. Its end is recorded before its physical zones are finished, since their write pointers do not
/// show it afterwards.
pub async fn finish(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let vzone = tenant.state.borrow().vzones[zone];
    vzone.failed.map_or(Ok(()), Err)?;
    let capacity = tenant.geometry.zone_capacity_blocks;
    if matches!(vzone.end, End::Finished(_)) || vzone.tail == capacity {
        return Ok(());
    }
    flush::flush_vzone(core, tenant, zone).await?;
    let usable = core.usable(&vzone.groups);
    assert!(vzone.tail <= usable, "a v-zone is finished at block {}, of {usable}", vzone.tail);
    let end = End::Finished(vzone.tail);
    let apply = || tenant.state.borrow_mut().vzones[zone].end = end;
    journal::record(core, JournalEntry::Vzone(tenant.id, zone as u32, vzone.groups, end), apply).await?;
    let finished = group_end::finish_last(core, tenant, zone).await;
    if finished.is_err() {
        core.stick(tenant, zone);
    }
    finished
}

/// Resets a v-zone: it is empty when the journal has recorded that it has no zones. The zones are reset in the
/// background.
pub async fn reset(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let vzone = tenant.state.borrow().vzones[zone];
    if vzone.groups.is_empty() && vzone.end == End::Open {
        return Ok(());
    }
    let apply = || empty(core, tenant, zone);
    journal::record(
        core,
        JournalEntry::Vzone(tenant.id, zone as u32, StripeGroups::default(), End::Open),
        apply,
    )
    .await
}

/// Takes all zones from a v-zone after its reset or removal was recorded.
pub fn empty(core: &NamespaceCore, tenant: &Tenant, zone: usize) {
    let mut state = tenant.state.borrow_mut();
    let vzone = &mut state.vzones[zone];
    let groups = std::mem::take(&mut vzone.groups);
    (vzone.end, vzone.tail, vzone.plain_end, vzone.flushed) = (End::Open, 0, 0, 0);
    vzone.epoch = vzone.epoch.wrapping_add(1);
    (vzone.active, vzone.stuck, vzone.lost, vzone.reported_by) = (false, false, None, None);
    let spares = std::mem::take(&mut vzone.spares);
    state.spares -= spares;
    state.hold();
    drop(state);
    core.give_up(groups.zones());
    core.room.open();
}

/// Relocates the last group of a v-zone, in the turn of its ticket.
pub async fn relocate(
    core: &NamespaceCore,
    tenant: &Tenant,
    zone: usize,
    ticket: u64,
    flights: &mut Vec<GroupTransfer>,
) -> Result<(), DeviceError> {
    tenant.enter(zone, ticket).await;
    let _turn = core.moving.take().await;
    let mut result = relocate_now(core, tenant, (zone, ticket), flights).await;
    for _ in 1..MOVE_TRIES {
        if result.is_ok() || core.check().is_err() {
            break;
        }
        // The target zones may be the cause: other ones are tried.
        release_targets(core);
        result = relocate_now(core, tenant, (zone, ticket), flights).await;
    }
    tenant.state.borrow_mut().doubled = false;
    release_targets(core);
    if let Err(error) = result {
        let sealed = matches!(tenant.state.borrow().vzones[zone].end, End::Sealed(_));
        // After a journal error it is not known which state is recorded, so nothing is changed any more.
        if sealed && core.check().is_ok() {
            // The source zones that are still active are finished, if possible.
            _ = group_end::finish_last(core, tenant, zone).await;
        }
        tenant.fail_vzone(zone, error);
        core.stick(tenant, zone);
    }
    tenant.state.borrow_mut().vzones[zone].leaving = false;
    core.moves.set(core.moves.get() - 1);
    tenant.leave(zone);
    result
}

/// Releases the target zones of a relocation that was not completed.
fn release_targets(core: &NamespaceCore) {
    let zones = std::mem::take(&mut *core.copying.borrow_mut());
    core.handed(&zones);
    core.give_up(&zones);
    core.room.open();
}

/// The steps of a relocation: the end of the group is recorded (sealed); its zones are finished, which fills them, but
/// only if the copy needs their active zones; the data is copied to zones without an owner, and flushed; the new zones
/// are recorded instead of the old ones; these are released. If the zones were not finished and the tenant wants to
/// write meanwhile, the v-zone is recorded as open again, and keeps its group.
async fn relocate_now(
    core: &NamespaceCore,
    tenant: &Tenant,
    (zone, ticket): (usize, u64),
    flights: &mut Vec<GroupTransfer>,
) -> Result<(), DeviceError> {
    let vzone = tenant.state.borrow().vzones[zone];
    if vzone.failed.is_some() {
        return seal_failed(core, tenant, zone).await;
    }
    let sealed = matches!(vzone.end, End::Sealed(_));
    // A group is not relocated if a later command for its v-zone waits, or a write that begins a v-zone.
    let is_wanted = || {
        let state = tenant.state.borrow();
        state.vzones[zone].tickets > ticket + 1 || !state.beginning.is_empty()
    };
    let wide = vzone.active && vzone.end == End::Open && vzone.spares > 0 && !is_wanted();
    if !(sealed || wide) {
        return Ok(());
    }
    if !sealed && vzone.tail == core.usable(&vzone.groups) {
        return group_end::filled(core, tenant, zone).await;
    }
    let Some((width, unit_blocks, old)) = vzone.groups.group(vzone.groups.len().wrapping_sub(1)) else {
        return Ok(());
    };
    // A failed flush marks no sealed v-zone as having lost writes, so failed flushes are counted here.
    let before = core.losses.get();
    if !sealed {
        seal(core, tenant, zone).await?;
    }
    // Also if an earlier attempt has sealed the v-zone.
    let doubled = double(core, tenant, zone);
    if !doubled {
        group_end::finish_last(core, tenant, zone).await?;
    }
    let kept = vzone.groups.first(vzone.groups.len() - 1);
    let from = (core.shape(width, unit_blocks), old);
    let target = tenant.spec.essential.min(width);
    let length = vzone.tail - core.allocated(&kept);
    let losses = core.losses.get();
    let can_stop = doubled && !sealed;
    let is_to_stop = || can_stop && is_wanted() && core.losses.get() == before;
    let copied = copy(core, tenant, from, (kept, target), length, flights, is_to_stop).await?;
    let Some(groups) = copied else {
        // Before the wait for the record: the spares of the copy are not counted any more, but its zones are still
        // active.
        release_targets(core);
        let now_us = core.now_us();
        let apply = || {
            let mut state = tenant.state.borrow_mut();
            state.vzones[zone].end = End::Open;
            (state.stops, state.last_write_us) = ((state.stops + 1).min(MOST_STOPS), now_us);
        };
        return journal::record(
            core,
            JournalEntry::Vzone(tenant.id, zone as u32, vzone.groups, End::Open),
            apply,
        )
        .await;
    };
    flush::flush_device(core).await?;
    if core.losses.get() != losses {
        return Err(Status::WriteFault.into());
    }
    let both = old.iter().find(|zone| groups.zones().contains(zone));
    assert_eq!(both, None, "a zone that is the source and the target of a relocation");
    let end = core.usable(&groups);
    assert!(vzone.tail <= end, "{} blocks were relocated to zones for {end}", vzone.tail);
    let apply = || {
        core.copying.borrow_mut().clear();
        core.handed(groups.zones());
        let mut state = tenant.state.borrow_mut();
        let vzone = &mut state.vzones[zone];
        (vzone.groups, vzone.end, vzone.flushed) = (groups, End::Open, vzone.tail);
        (vzone.active, vzone.stuck) = (vzone.tail < core.usable(&groups), false);
        let spares = std::mem::take(&mut vzone.spares);
        (state.spares, state.stops) = (state.spares - spares, 0);
        state.hold();
        drop(state);
        core.give_up(old);
        core.moved_groups.set(core.moved_groups.get() + 1);
    };
    journal::record(core, JournalEntry::Vzone(tenant.id, zone as u32, groups, End::Open), apply).await
}

/// Permits source and target of a relocation to be active at once, if the namespace may have another active v-zone and
/// no write is waiting to begin one. Returns whether that is permitted.
fn double(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> bool {
    let mut state = tenant.state.borrow_mut();
    let engaged = state.engaged_count(tenant.geometry.zone_capacity_blocks) + state.beginning.len();
    // V-zones that keep their active zones may have used up the guaranteed ones.
    let fits = core.arbiter.borrow().fits(tenant.spec.essential);
    state.doubled |= state.vzones[zone].active && engaged < tenant.spec.max_active as usize && fits;
    state.doubled
}

/// Records the v-zone as sealed at its end: its last group has to be relocated before anything else is written to it.
async fn seal(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    flush::flush_vzone(core, tenant, zone).await?;
    let vzone = tenant.state.borrow().vzones[zone];
    let kept = core.allocated(&vzone.groups.first(vzone.groups.len().saturating_sub(1)));
    let usable = core.usable(&vzone.groups);
    assert!(
        !vzone.groups.is_empty() && (kept..=usable).contains(&vzone.tail),
        "the last group of a v-zone, blocks {kept} to {usable}, is sealed at block {}",
        vzone.tail
    );
    let end = End::Sealed(vzone.tail);
    let apply = || tenant.state.borrow_mut().vzones[zone].end = end;
    journal::record(core, JournalEntry::Vzone(tenant.id, zone as u32, vzone.groups, end), apply).await
}

/// Seals a v-zone in which a write has failed, and finishes its active zones. It is relocated, and can be written
/// again, when the namespaces are opened the next time. A v-zone without a group, since its first one could not be
/// opened, is empty again and can be written at once.
async fn seal_failed(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let vzone = tenant.state.borrow().vzones[zone];
    if vzone.groups.is_empty() && vzone.end == End::Open {
        let mut state = tenant.state.borrow_mut();
        let info = state.table.info(ZoneIndex(zone as u32));
        state.table.load(&ZoneInfo { state: ZoneState::Empty, wp_blocks: 0, ..info });
        state.vzones[zone].failed = None;
        return Ok(());
    }
    if vzone.active {
        vzone.lost.map_or(Ok(()), Err)?;
        seal(core, tenant, zone).await?;
        group_end::finish_last(core, tenant, zone).await?;
    }
    Ok(())
}

/// Copies the first `length` blocks of a group to new groups of `width` zones behind the groups `kept`; returns `kept`
/// with the new groups, or `None` if `is_to_stop` has stopped it.
///
/// Data that fills whole zones is copied to wider groups if spares are free: these zones do not stay active, and the
/// copy is faster.
async fn copy(
    core: &NamespaceCore,
    tenant: &Tenant,
    (shape, old): (GroupShape, &[u32]),
    (mut groups, width): (StripeGroups, u32),
    length: u64,
    flights: &mut Vec<GroupTransfer>,
    is_to_stop: impl Fn() -> bool,
) -> Result<Option<StripeGroups>, DeviceError> {
    let mut at = 0;
    while at < length {
        if is_to_stop() {
            return Ok(None);
        }
        let filled = ((length - at) / shape.zone_blocks) as u32;
        let most = floor_power(filled.min(shape.width)).max(width);
        let taken = allocate::allocate(core, tenant, AllocationPurpose::Moved { least: width, most }).await?;
        let fits = groups.push(&taken.zones, taken.unit_blocks);
        assert!(fits, "a group of {:?}, with units of {} blocks", taken.zones, taken.unit_blocks);
        core.copying.borrow_mut().extend(&taken.zones);
        let new = core.shape(taken.zones.len() as u32, taken.unit_blocks);
        let blocks = new.blocks().min(length - at);
        let (from, to) = ((shape, old, at), (new, &taken.zones[..]));
        let mut copied = copy_group(core, from, to, blocks, flights, &is_to_stop).await;
        if copied == Ok(true) && blocks == new.blocks() {
            copied = flush::flush_cache(core).await.map(|()| true);
        }
        tenant.state.borrow_mut().spares -= taken.spares;
        if !copied? {
            return Ok(None);
        }
        if blocks == new.blocks() {
            let mut arbiter = core.arbiter.borrow_mut();
            taken.zones.iter().for_each(|zone| arbiter.retire(*zone));
            drop(arbiter);
            core.room.open();
            core.work.open();
        }
        at += blocks;
    }
    Ok(Some(groups))
}

/// Copies `blocks` blocks of a group, from `from` on, to the start of another one; `false` if `is_to_stop` has stopped
/// it before the end.
async fn copy_group(
    core: &NamespaceCore,
    (old_shape, old, from): (GroupShape, &[u32], u64),
    (new_shape, new): (GroupShape, &[u32]),
    blocks: u64,
    flights: &mut Vec<GroupTransfer>,
    is_to_stop: impl Fn() -> bool,
) -> Result<bool, DeviceError> {
    let most = MOST_COPIED.min(core.device.geometry().max_transfer_blocks) as u64;
    let stretch = |shape, zones, range: Range<u64>| GroupRange { shape, zones, range, at: 0 };
    let (mut begun, mut written, mut result) = (0, Buf::default(), Ok(()));
    let mut reads = VecDeque::with_capacity(READS_AHEAD);
    loop {
        while result.is_ok() && begun < blocks && reads.len() < READS_AHEAD && !is_to_stop() {
            let range = begun..blocks.min(begun + most);
            let (mut data, mut parts) = (core.take_buffer(range.end - begun).freeze(), Vec::new());
            let source = stretch(old_shape, old, from + range.start..from + range.end);
            transfer::begin_read(core, &source, &mut data, &mut parts);
            begun = range.end;
            reads.push_back((range, data, parts));
        }
        // Reads in flight are completed in any case: they keep their zones from being reset.
        let Some((range, mut data, mut parts)) = reads.pop_front() else { break };
        work(data.blocks() as u32 * COPY);
        give_way().await;
        result = result.and(transfer::end_read(core, &mut data, &mut parts).await);
        result = result.and(transfer::end_write(core, flights).await);
        if result.is_ok() {
            transfer::begin_write(core, &stretch(new_shape, new, range), &data, false, flights);
            core.give_buffer(std::mem::replace(&mut written, data));
        }
    }
    result = result.and(transfer::end_write(core, flights).await);
    core.give_buffer(written);
    result.map(|()| begun == blocks)
}

/// Whether an error is caused by the limits of open or active zones of the device.
fn is_limit(error: DeviceError) -> bool {
    [Status::TooManyActiveZones, Status::TooManyOpenZones].map(DeviceError::from).contains(&error)
}

/// Task that reserves zones when too few are ready, until changes are stopped.
pub(super) async fn supply(core: Rc<NamespaceCore>) {
    loop {
        let binding = core.binding.take().await;
        if core.check().is_err() {
            return;
        }
        let next = core.arbiter.borrow_mut().reserve();
        let Some((zone, serial)) = next else {
            drop(binding);
            core.work.wait().await;
            continue;
        };
        let mut blocks = core.take_buffer(core.identity.lead_blocks as u64);
        reservation(core.identity.mark(), serial, &mut blocks);
        let lba = Lba(core.device.geometry().start(ZoneIndex(zone)).0);
        let done = core.device.submit(Command::write(lba, blocks.freeze(), true)).await;
        drop(binding);
        core.refusals.set(core.refusals.get() + done.result.is_err() as u64);
        match done.result {
            Ok(()) => core.arbiter.borrow_mut().reserved(zone),
            Err(error) if is_limit(error) => {
                // The device has more active zones than the arbiter knows of, for now.
                core.arbiter.borrow_mut().unreserved(zone);
                core.refused.set(true);
                core.give_buffer(done.data);
                match core.check() {
                    Ok(()) => core.work.wait().await,
                    // `Namespaces::close` waits for this reservation.
                    Err(_) => core.room.open(),
                }
                continue;
            }
            Err(error) => {
                core.arbiter.borrow_mut().fail(zone, is_out(error));
                core.work.open();
            }
        }
        core.give_buffer(done.data);
        core.room.open();
    }
}

/// Task that resets released zones, until changes are stopped.
pub(super) async fn clean(core: Rc<NamespaceCore>) {
    loop {
        if core.check().is_err() {
            return;
        }
        let next = core.arbiter.borrow_mut().clean();
        let Some(zone) = next else {
            core.work.wait().await;
            continue;
        };
        let done = core.device.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await;
        core.refusals.set(core.refusals.get() + done.result.is_err() as u64);
        match done.result {
            Ok(()) => core.arbiter.borrow_mut().cleaned(zone),
            Err(error) => core.arbiter.borrow_mut().fail(zone, is_out(error)),
        }
        core.room.open();
        core.work.open();
    }
}
