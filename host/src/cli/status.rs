//! `status` of one array.

use super::{daemon::ask, overview};
use crate::{
    control::{name::ArrayName, protocol::Request},
    members::{FoundArray, find_running, listed},
    process::{
        machine::Owner,
        output::{self, Output, shaded_state, table},
        size::show,
    },
    report::{
        Compression, Division, LostRange, NamespaceReport, PoolVolumeReport, Rebuild, Status, VolumeLosses,
        VolumeRange, VolumeReport, WrittenBytes, latency_words, so_many_zones,
    },
};
use anyhow::Result;
use indicatif::HumanDuration;
use std::time::Duration;

/// Number of zones of a drive that are used as one, if more than one.
pub fn as_one(aggregate: u32) -> String {
    if aggregate > 1 { format!(", {aggregate} zones of a drive as one") } else { String::new() }
}

/// Words about checksums behind the policy, if the array has them.
pub fn with_checksums(checksums: bool) -> &'static str {
    if checksums { ", with checksums" } else { "" }
}

pub fn status(output: Output, names: &[ArrayName]) -> Result<u8> {
    let [name] = names else { return overview::status(output, names) };
    let status = status_of(output, name)?;
    output.print(&status, status_text)?;
    Ok(status.state.code())
}

/// Status of an array, from its daemon, or else from the drives.
pub fn status_of(output: Output, name: &ArrayName) -> Result<Status> {
    if let Some(mut client) = find_running(name)? {
        return ask(output, &mut client, &Request::Status);
    }
    let found = FoundArray::to_look(name)?;
    for (path, error) in &found.damaged {
        output.note(&format!("{}: {error}; continuing without it", path.display()));
    }
    Ok(Status::looked(&found, found.glance(PATIENCE_TO_INSPECT)?))
}

/// Time limit for the inspection of the drives.
pub const PATIENCE_TO_INSPECT: Duration = Duration::from_secs(60);

/// Most offline zones, and most ranges of lost data, named on the terminal.
const MOST_LISTED: usize = 10;

fn status_text(status: &Status) -> String {
    let mut text = format!("  array: {}\n", status.name);
    text += &format!("   uuid: {}\n  state: {}\n", status.uuid, status.state.shaded());
    text += &format!(" status: {}\n", output::in_one_line(&status.status));
    if let Some(action) = &status.action {
        text += &format!(" action: {}\n", output::in_one_line(action));
    }
    let mut size = format!("{}, chunks of {}", status.level, show(status.chunk_bytes));
    if let (Some(zones), Some(capacity)) = (status.zones, status.zone_capacity_bytes) {
        size += &format!(", {zones} zones of {}", show(capacity));
    }
    if let Some(all) = status.size_bytes() {
        size += &format!(", {} altogether", show(all));
    }
    let (together, checksums) = (as_one(status.aggregate), with_checksums(status.checksums));
    text += &format!("   size: {size}\n policy: {}{together}{checksums}\n", status.policy);
    let id = status.host_id.as_ref().filter(|_| status.host == Owner::Other);
    let id = id.map(|id| format!(" ({id})")).unwrap_or_default();
    text += &format!("   host: {}{id}\n", status.host.words(status.autostart));
    if let Some(rebuild) = &status.rebuild {
        text += &format!("{:>7}: {}\n", rebuild.kind(), rebuild_text(rebuild));
    }
    if let Some(scrub) = &status.scrub {
        text += &format!("  scrub: {}\n", scrub.line());
    }
    text += &lost_text(status.lost.iter().map(zone_range), "");
    if !status.used_by.is_empty() {
        let how = if status.changing { ", and keeps changing" } else { "" };
        text += &format!(" in use: by {}{how}\n", output::in_one_line(&listed(&status.used_by)));
    }
    if let Some(pid) = status.pid {
        let device = match (&status.block_device, &status.link) {
            (Some(device), Some(link)) => format!("{device} ({link})"),
            (Some(device), None) => device.clone(),
            (None, _) if status.namespaces.is_some() => "one for each namespace".to_string(),
            (None, _) if status.volumes.is_some() && status.nbd.is_none() => {
                "one for each volume".to_string()
            }
            (None, _) => "none".to_string(),
        };
        text += &format!(" device: {device}, by process {pid}\n");
    }
    if let Some(place) = &status.nbd {
        text += &format!("    nbd: {place}\n");
    }
    if let Some(volume) = &status.volume {
        text += &volume_text(volume);
    }
    if let Some(volumes) = &status.volumes {
        text += &volumes_text(volumes);
        for PoolVolumeReport { name, lost, .. } in volumes {
            let of = format!(" of the volume '{name}'");
            text += &lost.as_ref().map_or_else(String::new, |lost| volume_losses_text(lost, &of));
        }
    }
    if let Some(division) = &status.namespaces {
        text += &division_text(division);
    }
    if !status.offline_zones.is_empty() {
        text += "offline:\n";
        let mut rows = vec![["ZONE", "WAITS FOR", "REASON"].map(String::from).to_vec()];
        rows.extend(status.offline_zones.iter().take(MOST_LISTED).map(|zone| {
            let roles: Vec<String> = zone.waits_for.iter().map(|role| format!("member {role}")).collect();
            let roles = if roles.is_empty() { "-".to_string() } else { roles.join(", ") };
            vec![zone.zone.to_string(), roles, zone.reason.clone()]
        }));
        text += &table(&rows);
        if status.offline_zones.len() > MOST_LISTED {
            text +=
                &format!("and {} more (--json names them all)\n", status.offline_zones.len() - MOST_LISTED);
        }
    }
    text += "members:\n";
    let heads = ["ROLE", "DRIVE", "STATE", "SIZE", "MODEL", "SERIAL", "READ", "WRITE", "REPAIRED", "NOTE"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(status.members.iter().map(|member| {
        let drive = if member.drive.is_empty() { "-".to_string() } else { member.drive.clone() };
        let note = if member.state == "rebuilding" && member.note.is_empty() {
            format!("{} to rebuild", so_many_zones(member.zones_to_rebuild as usize))
        } else if member.note.is_empty() && member.moved_zones > 0 {
            let moved = so_many_zones(member.moved_zones as usize);
            format!("{moved} worn, in spare ones; {} left", member.spare_zones)
        } else {
            member.note.clone()
        };
        let or_dash = |text: Option<String>| text.unwrap_or("-".into());
        vec![
            member.role.to_string(),
            drive,
            shaded_state(&member.state),
            or_dash(member.size_bytes.map(show)),
            or_dash(member.model.clone()),
            or_dash(member.serial.clone()),
            member.read_errors.to_string(),
            member.write_errors.to_string(),
            show(member.repaired_bytes),
            note,
        ]
    }));
    text + &table(&rows)
}

/// The table of the volumes of a pool, each with its snapshots behind it.
pub fn volumes_text(volumes: &[PoolVolumeReport]) -> String {
    let heads = [
        "NAME",
        "DEVICE",
        "SIZE",
        "ALLOCATED",
        "OWN",
        "SHARED",
        "SECTORS",
        "COMPRESSION",
        "WHEN FULL",
        "LIMITS",
        "FLOORS",
        "LATENCY",
        "GUARANTEED",
        "ORIGIN",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let none = || "-".to_string();
    let counted = |bytes: Option<u64>| bytes.map_or_else(none, show);
    for volume in volumes {
        rows.push(vec![
            volume.name.clone(),
            volume.block_device.clone().unwrap_or_else(none),
            show(volume.size_bytes),
            show(volume.allocated_bytes),
            counted(volume.own_bytes),
            counted(volume.shared_bytes),
            volume.sector_bytes.to_string(),
            volume.compression.to_string(),
            volume.when_full.to_string(),
            volume.limits.words(),
            volume.floors.words(),
            latency_words(volume.latency_us),
            if volume.guaranteed_bytes == 0 { none() } else { show(volume.guaranteed_bytes) },
            volume.clone_of.clone().unwrap_or_else(none),
        ]);
        rows.extend(volume.snapshots.iter().map(|snapshot| {
            let name = format!("{}@{}", volume.name, snapshot.name);
            let sizes = [snapshot.size_bytes, snapshot.allocated_bytes].map(show);
            let counted = [snapshot.own_bytes, snapshot.shared_bytes].map(counted);
            let mut row = vec![name, none()];
            row.extend(sizes.into_iter().chain(counted).chain((0..8).map(|_| none())));
            row
        }));
    }
    table(&rows)
}

/// Words about the space of a pool that is guaranteed and not used.
pub fn set_aside_text(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(", {} more free in guaranteed space", show(bytes)) }
}

fn division_text(division: &Division) -> String {
    let heads = [
        "NAME",
        "DEVICE",
        "SIZE",
        "USED",
        "ACTIVE",
        "WIDTHS",
        "ESSENTIAL",
        "OWN",
        "HELD",
        "BORROWED",
        "WEIGHT",
        "LIMITS",
        "FLOORS",
        "LATENCY",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(division.list.iter().map(|namespace| {
        let (size, used) = match &namespace.volume {
            Some(volume) => (volume.size_bytes, volume.used_bytes),
            None => (namespace.capacity_bytes, namespace.written_bytes),
        };
        let widths: Vec<String> = namespace.widths.iter().map(u32::to_string).collect();
        vec![
            namespace.name.clone(),
            namespace.block_device.clone().unwrap_or("-".into()),
            show(size),
            show(used),
            format!("{} of {}", namespace.active_zones, namespace.active),
            if widths.is_empty() { "-".into() } else { widths.join(", ") },
            namespace.essential.to_string(),
            namespace.own_spares.to_string(),
            namespace.held_spares.to_string(),
            namespace.borrowed_spares.to_string(),
            namespace.weight.to_string(),
            namespace.limits.words(),
            namespace.floors.words(),
            latency_words(namespace.latency_us),
        ]
    }));
    let Division { free_zones, zone_capacity_bytes, .. } = division;
    let room = format!("namespaces: room for {free_zones} more zones of {}\n", show(*zone_capacity_bytes));
    let mut text = room + &table(&rows);
    for NamespaceReport { name, lost, volume, volumes, .. } in &division.list {
        let of = format!(" of '{name}'");
        text += &lost_text(lost.iter().map(|range| zone_range(range) + &of), &of);
        if let (Some(pool), Some(volumes)) = (volume, volumes) {
            let VolumeReport { used_bytes, usable_bytes, free_bytes, .. } = pool;
            let [used, usable, free] = [used_bytes, usable_bytes, free_bytes].map(|bytes| show(*bytes));
            text += &format!("pool on '{name}': {used} of {usable} used, {free} free\n");
            text += &volumes_text(volumes);
            for PoolVolumeReport { name, lost, .. } in volumes {
                let of = format!(" of the volume '{name}'{of}");
                text += &lost.as_ref().map_or_else(String::new, |lost| volume_losses_text(lost, &of));
            }
        }
        if let Some(lost) = volume.as_ref().and_then(|volume| volume.lost.as_ref()) {
            text += &volume_losses_text(lost, &format!(" of the volume{of}"));
        }
    }
    text
}

/// Words about a lost range of a zone.
fn zone_range(lost: &LostRange) -> String {
    format!("{} at {} of zone {}", show(lost.bytes), show(lost.start_bytes), lost.zone)
}

/// Lines about the losses `of` a volume.
fn volume_losses_text(lost: &VolumeLosses, of: &str) -> String {
    let range = |range: &VolumeRange| format!("{} at {}{of}", show(range.bytes), show(range.offset_bytes));
    let mut text = lost_text(lost.ranges.iter().map(range), of);
    if lost.may_be_more {
        text += &format!("   lost: perhaps more{of}, since some of its metadata is lost\n");
    }
    text
}

/// Lines about the first [`MOST_LISTED`] lost ranges, and the number of the others, which are ranges `of` something.
fn lost_text(ranges: impl ExactSizeIterator<Item = String>, of: &str) -> String {
    let more = ranges.len().saturating_sub(MOST_LISTED);
    let mut text: String = ranges.take(MOST_LISTED).map(|range| format!("   lost: {range}\n")).collect();
    if more > 0 {
        text += &format!("   lost: and {more} more ranges{of} (--json names them all)\n");
    }
    text
}

fn volume_text(volume: &VolumeReport) -> String {
    let VolumeReport { size_bytes, used_bytes, free_bytes, collection, written, .. } = volume;
    let compresses = volume.compression != Compression(None) || volume.physical_bytes < *used_bytes;
    let sectors = match volume.sector_bytes {
        4096 => String::new(),
        bytes => format!(" in sectors of {bytes} bytes"),
    };
    let mut text = format!(
        " volume: {}{sectors}, {} used, {} free{}; {} of {} zones are free\n",
        show(*size_bytes),
        show(*used_bytes),
        show(*free_bytes),
        set_aside_text(volume.set_aside_bytes),
        volume.free_zones,
        volume.valid_bytes.len(),
    );
    if volume.lent_bytes > 0 {
        let (lent, reserve) = (show(volume.lent_bytes), show(volume.reserve_bytes));
        text += &format!("  reserve: {lent} of {reserve} are lent to new blocks until it stops\n");
    }
    if volume.when_full.0 > 0 {
        text += &format!(
            "  when full: writes wait for up to {} seconds; {} do now\n",
            volume.when_full.0, volume.waiting_writes
        );
    }
    if compresses {
        let how = volume.compression.does(volume.unit_bytes);
        text += &format!(
            "  ratio: {:.2}: {} take {}, so there is room for {} like that; new data is written {how}\n",
            volume.compression_ratio,
            show(*used_bytes),
            show(volume.physical_bytes),
            show(volume.effective_bytes),
        );
    }
    text += &written_text(written, compresses, volume.write_amplification);
    let hit_rate = volume.map_hit_rate.map_or("no page needed yet".into(), |rate| {
        // Rounded down: 100 % means that no page had to be read.
        format!("hit rate {:.1} %", (rate * 1000.0).floor() / 10.0)
    });
    let pages = volume.map_cached_pages.max(volume.map_written_pages);
    text += &format!(
        "    map: {} % in memory, {} of at most {}; without packing, all of it takes {}; {hit_rate}\n",
        (100 * volume.map_cached_pages).checked_div(pages).unwrap_or(100),
        show(volume.map_cached_bytes),
        show(volume.map_memory_bytes),
        show(volume.map_bytes),
    );
    let active = if collection.active { "active" } else { "idle" };
    let unreadable = match collection.unreadable_zones {
        0 => String::new(),
        count => format!(", {} cannot be", so_many_zones(count as usize)),
    };
    text += &format!(
        "     gc: {active}; {} emptied{unreadable}\n",
        so_many_zones(collection.collected_zones as usize)
    );
    if let Some(lost) = &volume.lost {
        text += &volume_losses_text(lost, " of the volume");
    }
    if let Some(why) = &volume.failed {
        text += &format!("         the volume refuses writes: {}\n", output::in_one_line(why));
    }
    text
}

/// Lines about the bytes written to the drives, by purpose.
fn written_text(written: &WrittenBytes, compresses: bool, amplification: f64) -> String {
    let first = match written.user_bytes {
        0 => "no user data yet".to_string(),
        bytes => {
            format!("{} for users; {amplification:.2} times as much in all, without rebuilds", show(bytes))
        }
    };
    let saved = Some((written.saved_bytes, "saved by compression")).filter(|_| compresses);
    let rebuilt = Some((written.rebuild_bytes, "rebuilt")).filter(|(bytes, _)| *bytes > 0);
    let row = |parts: &[Option<(u64, &str)>]| {
        let parts = parts.iter().flatten().map(|(bytes, what)| format!("{} {what}", show(*bytes)));
        parts.collect::<Vec<_>>().join(", ")
    };
    let window = Some((written.window_bytes, "in the hot window")).filter(|(bytes, _)| *bytes > 0);
    let volume =
        [window, Some((written.gc_bytes, "moved")), saved, Some((written.header_bytes, "of headers"))];
    let others = [
        Some((written.map_bytes, "of map")),
        Some((written.padding_bytes, "of padding")),
        Some((written.parity_bytes, "of parity")),
        rebuilt,
    ];
    format!("written: {first}\n         {},\n         {}\n", row(&volume), row(&others))
}

pub fn rebuild_text(rebuild: &Rebuild) -> String {
    let Rebuild { copied, done_bytes, total_bytes, bytes_per_second, seconds_left, running } = rebuild;
    let what = copied.as_ref().map(|copied| format!("member {} to {}, ", copied.role, copied.drive));
    if !running || rebuild.total_bytes == 0 {
        let doing = if *running { "the drive is being emptied" } else { "interrupted" };
        let what = output::in_one_line(&what.unwrap_or_default());
        return format!("{what}{} of {}, {doing}", show(*done_bytes), show(*total_bytes));
    }
    let left = match *seconds_left {
        Some(seconds) => format!("{} left", HumanDuration(Duration::from_secs(seconds))),
        None => "just begun".into(),
    };
    let what = output::in_one_line(&what.unwrap_or_default());
    format!("{what}{} of {}, {}/s, {left}", show(*done_bytes), show(*total_bytes), show(*bytes_per_second))
}
