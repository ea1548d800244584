//! Reads and writes of a namespace.

use crate::{
    buf::{BLOCK, Buf},
    device::{Completion, DeviceError, Done},
    vzone::{
        admission::WriterCounts,
        allocate::{self, AllocationPurpose},
        core::{NamespaceCore, Tenant, Vzone},
        flush,
        format::{End, JournalEntry, StripeGroups},
        group_end, journal,
        shape::GroupShape,
        transfer::{self, GroupRange, GroupTransfer},
    },
    zone::{Lba, ZoneIndex},
};
use std::{cell::Cell, rc::Rc};

/// Divides the blocks `from..to` of a v-zone into one range for each group.
fn stretches<'g>(
    core: &NamespaceCore,
    groups: &'g StripeGroups,
    from: u64,
    to: u64,
) -> impl Iterator<Item = GroupRange<'g>> + use<'g> {
    let zone_blocks = core.identity.data_blocks();
    let mut base = 0;
    (0..groups.len()).filter_map(move |index| {
        let (width, unit_blocks, zones) = groups.group(index)?;
        let shape = GroupShape { width, unit_blocks, zone_blocks };
        let start = base;
        base += shape.blocks();
        let range = from.max(start)..to.min(base);
        (range.start < range.end).then(|| GroupRange {
            shape,
            zones,
            at: range.start - from,
            range: range.start - start..range.end - start,
        })
    })
}

/// Reads blocks from `from` on into `data`, in ticket order (`turn`) and within the congestion window; blocks beyond
/// the tail are zeros.
pub async fn read(
    core: &NamespaceCore,
    tenant: &Tenant,
    (zone, turn): (usize, u64),
    from: u64,
    mut data: Buf,
    flights: &mut Vec<GroupTransfer>,
) -> Done {
    let asked = data.blocks();
    let blocks = loop {
        {
            let mut state = tenant.state.borrow_mut();
            let vzone = &mut state.vzones[zone];
            let to = (from + asked).min(vzone.tail).max(from);
            let blocks = to - from;
            let may_go = blocks == 0 || core.window.get().admits(&vzone.reads, blocks);
            if vzone.reads_submitted == turn && may_go {
                if let Some(bytes) = data.as_mut() {
                    bytes[blocks as usize * BLOCK..].fill(0);
                }
                vzone.reads.submitted(blocks);
                vzone.count_read();
                let (groups, others) = (vzone.groups, vzone.read_tickets > vzone.reads_submitted);
                drop(state);
                if others {
                    tenant.gates[zone].open();
                }
                for stretch in stretches(core, &groups, from, to) {
                    transfer::begin_read(core, &stretch, &mut data, flights);
                }
                break blocks;
            }
        }
        tenant.gates[zone].wait().await;
    };
    if blocks == 0 {
        return Done::with_data(data);
    }
    let begun_us = core.now_us();
    let result = transfer::end_read(core, &mut data, flights).await;
    let latency_us = core.now_us().saturating_sub(begun_us);
    {
        let reads = &mut tenant.state.borrow_mut().vzones[zone].reads;
        match result {
            Ok(()) => reads.completed(blocks, latency_us),
            Err(_) => reads.cancelled(blocks),
        }
    }
    tenant.gates[zone].open();
    Done { result, data, ..Done::ok() }
}

/// [`crate::device::ZonedDevice::reread`] of block `from` of a v-zone.
pub fn reread(
    core: &NamespaceCore,
    tenant: &Tenant,
    zone: ZoneIndex,
    from: u64,
    attempt: u32,
) -> Option<Completion> {
    let state = tenant.state.borrow();
    let vzone = state.vzones.get(zone.0 as usize).filter(|vzone| from < vzone.tail && !state.removed)?;
    let groups = vzone.groups;
    let stretch = stretches(core, &groups, from, from + 1).next()?;
    let (physical, at) = stretch.first()?;
    core.device.reread(core.lba(physical, at), attempt)
}

/// Updates the congestion window of reads, if a look is due.
pub fn update_read_window(core: &NamespaceCore, now_us: u64, tenants: &[Rc<Tenant>]) {
    let mut window = core.window.get();
    let Some(since_us) = window.is_due(now_us) else { return };
    let (mut readers, mut asking) = (Vec::new(), 0);
    for tenant in tenants {
        let mut state = tenant.state.borrow_mut();
        let before = readers.len();
        readers.extend(state.vzones.iter_mut().filter_map(|vzone| vzone.reads.seen()));
        asking += (readers.len() > before || state.last_write_us > since_us) as u32;
    }
    window.look(now_us, asking > 1, &readers);
    core.window.set(window);
}

/// Writes blocks from `from` on: submitted in ticket order and within the limits of admission control, completed when
/// all changes with earlier tickets have. `begins` is the number of a write that opens the first group of its v-zone.
/// Returns also whether the v-zone has failed by the write, and is to be relocated.
pub async fn write(
    core: &NamespaceCore,
    tenant: &Tenant,
    (zone, ticket, begins): (usize, u64, Option<u64>),
    from: u64,
    (data, fua): (Buf, bool),
    flights: &mut Vec<GroupTransfer>,
) -> (Done, bool) {
    tenant.wait(zone, |vzone| vzone.submitted == ticket).await;
    let through = fua && {
        let vzone = &tenant.state.borrow().vzones[zone];
        vzone.plain_end <= vzone.flushed || !core.device.geometry().volatile_cache
    };
    let turn = (zone, ticket, begins);
    let begun_us = Cell::new(admit(core, tenant, zone, data.blocks()).await);
    let submitted = submit_write(core, tenant, turn, from, (&data, through), &begun_us, flights).await;
    tenant.state.borrow_mut().vzones[zone].submit();
    tenant.gates[zone].open();
    let landed = transfer::end_write(core, flights).await;
    let now_us = core.now_us();
    tenant.wait(zone, |vzone| vzone.settled == ticket).await;
    let failed = tenant.state.borrow().vzones[zone].failed.map_or(Ok(()), Err);
    let mut result = failed.and(submitted).and(landed);
    let to = from + data.blocks();
    if result.is_ok() {
        {
            let vzone = &mut tenant.state.borrow_mut().vzones[zone];
            let (tail, end) = (vzone.tail, core.allocated(&vzone.groups));
            assert!((from..=to).contains(&tail), "blocks {from} to {to} are behind a tail of {tail}");
            assert!(to <= end, "a tail of {to} blocks, of {end} in the groups of the v-zone");
            vzone.tail = to;
        }
        if to == tenant.geometry.zone_capacity_blocks {
            result = group_end::filled(core, tenant, zone).await;
        }
    }
    let has_failed = result.is_err();
    if let Err(error) = result {
        tenant.fail_vzone(zone, error);
    }
    if submitted.and(landed).is_ok() {
        note_write(core, tenant, zone, data.blocks(), (begun_us.get(), now_us));
    }
    let others_begin = {
        let mut state = tenant.state.borrow_mut();
        state.vzones[zone].settle();
        !state.beginning.is_empty()
    };
    tenant.gates[zone].open();
    if others_begin {
        core.room.open();
    }
    let result = match result {
        Ok(()) if fua && !through => flush::flush_zone(core, tenant, zone).await,
        result => result,
    };
    let lba = Lba(tenant.geometry.start(ZoneIndex(zone as u32)).0 + from);
    (Done { result, data, lba, tail: to, ..Done::ok() }, has_failed)
}

/// Submits a write to the device, and opens groups where the previous one ends. With `fua`, device writes have FUA. If
/// a group was opened, `begun_us` is set to the time after that.
async fn submit_write(
    core: &NamespaceCore,
    tenant: &Tenant,
    (zone, ticket, begins): (usize, u64, Option<u64>),
    from: u64,
    (data, fua): (&Buf, bool),
    begun_us: &Cell<u64>,
    flights: &mut Vec<GroupTransfer>,
) -> Result<(), DeviceError> {
    let (mut at, to) = (from, from + data.blocks());
    while at < to {
        core.check()?;
        let Vzone { groups, failed, .. } = tenant.state.borrow().vzones[zone];
        failed.map_or(Ok(()), Err)?;
        let end = core.allocated(&groups);
        if at < end {
            let next = to.min(end);
            for stretch in stretches(core, &groups, at, next) {
                let stretch = GroupRange { at: stretch.at + at - from, ..stretch };
                transfer::begin_write(core, &stretch, data, fua, flights);
            }
            if !fua && core.device.geometry().volatile_cache {
                tenant.state.borrow_mut().vzones[zone].plain_end = next;
            }
            at = next;
            continue;
        }
        // A group is opened when all writes to the previous one have completed, and its zones are inactive.
        transfer::end_write(core, flights).await?;
        tenant.wait(zone, |vzone| vzone.settled == ticket).await;
        tenant.state.borrow().vzones[zone].failed.map_or(Ok(()), Err)?;
        tenant.state.borrow_mut().vzones[zone].tail = at;
        group_end::filled(core, tenant, zone).await?;
        if let Some(number) = begins.filter(|_| at == 0) {
            allocate::wait_to_begin(core, tenant, number).await?;
        }
        tenant.state.borrow_mut().vzones[zone].opening = true;
        let opened = open_group(core, tenant, zone).await;
        tenant.state.borrow_mut().vzones[zone].opening = false;
        opened?;
        if begins.is_some() {
            check_active(tenant);
        }
        begun(core, tenant, begins);
        begun_us.set(core.now_us());
    }
    Ok(())
}

/// Asserts, after a v-zone was begun, that a namespace has no more active v-zones than it may have. After a start it
/// may have more, since v-zones that had failed can be written again.
fn check_active(tenant: &Tenant) {
    let engaged = tenant.state.borrow().engaged_count(tenant.geometry.zone_capacity_blocks);
    let most = tenant.spec.max_active as usize;
    assert!(engaged <= most, "{engaged} v-zones of a namespace are active, and {most} may be");
}

/// Removes a write that begins a v-zone from the queue, since it has opened the first group, or has failed.
pub fn begun(core: &NamespaceCore, tenant: &Tenant, begins: Option<u64>) {
    if let Some(number) = begins {
        tenant.state.borrow_mut().beginning.retain(|other| *other != number);
        core.room.open();
    }
}

/// Waits until the v-zone owes no write tokens, and takes those of the write; returns the time.
async fn admit(core: &NamespaceCore, tenant: &Tenant, zone: usize, blocks: u64) -> u64 {
    loop {
        {
            let now_us = core.now_us();
            let mut state = tenant.state.borrow_mut();
            state.last_write_us = now_us;
            let vzone = &mut state.vzones[zone];
            let (pace, width) = (core.pace.get(), vzone.width());
            vzone.tokens.refill(now_us, &pace, width);
            if vzone.tokens.admits() {
                vzone.tokens.submitted(blocks);
                return now_us;
            }
        }
        tenant.gates[zone].wait().await;
    }
}

/// Reports the latency of a write to admission control.
fn note_write(
    core: &NamespaceCore,
    tenant: &Tenant,
    zone: usize,
    blocks: u64,
    (begun_us, now_us): (u64, u64),
) {
    let width = tenant.state.borrow().vzones[zone].width();
    let mut pace = core.pace.get();
    pace.completed(blocks, width, now_us.saturating_sub(begun_us));
    core.pace.set(pace);
}

/// Updates the pace of write admission control, if a look is due; returns whether admission control is active.
pub fn update_write_pace(core: &NamespaceCore, now_us: u64, tenants: &[Rc<Tenant>]) -> bool {
    let mut pace = core.pace.get();
    if let Some(since_us) = pace.is_due(now_us) {
        let mut writers = WriterCounts::default();
        for tenant in tenants {
            let mut state = tenant.state.borrow_mut();
            writers.namespaces += (state.last_write_us > since_us && core.admission) as u32;
            for vzone in &mut state.vzones {
                let width = vzone.width() as u64;
                writers.physical_zones += if vzone.tokens.take_written() { width } else { 0 };
            }
        }
        pace.look(now_us, writers);
        core.pace.set(pace);
    }
    pace.block_ns().is_some()
}

/// Opens the next group of a v-zone. The journal records it durably before anything is written to the zones.
async fn open_group(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let mut groups = tenant.state.borrow().vzones[zone].groups;
    let most = core.identity.vzone_zones - groups.zones().len() as u32;
    assert!(most > 0, "a v-zone that is written at its end has all of its {} zones", groups.zones().len());
    let taken = allocate::allocate(core, tenant, AllocationPurpose::Group { most }).await?;
    let fits = groups.push(&taken.zones, taken.unit_blocks);
    assert!(fits, "a group of {:?}, with units of {} blocks", taken.zones, taken.unit_blocks);
    let apply = || {
        core.handed(&taken.zones);
        let vzone = &mut tenant.state.borrow_mut().vzones[zone];
        (vzone.groups, vzone.active, vzone.spares) = (groups, true, taken.spares);
    };
    let entry = JournalEntry::Vzone(tenant.id, zone as u32, groups, End::Open);
    journal::record(core, entry, apply).await
}
