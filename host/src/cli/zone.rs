//! `zone`: the zones of an array, in the terms of blkzone.
//!
//! # Acknowledgements of `zone write`
//! A number in the acknowledgement log is appended only once all bytes up to it, from the start of the zone, are safe
//! from a power cut together with the loss of a member. With `--fua` that is after every write; otherwise after every
//! flush, of which there is one every [`FLUSH_EVERY`] bytes and one at the end.

use super::{
    args::{ZoneCommand, ZoneWrite},
    daemon::ask,
    interrupt, namespace,
    status::PATIENCE_TO_INSPECT,
    volume::refuse_if_there,
};
use crate::{
    control::{name::ArrayName, protocol::Request},
    members::{FoundArray, Session, find_running, listed},
    process::{
        output::{CopyProgress, HEALTHY, Output, quoted, table},
        size::{bytes, show, total},
    },
    report::{self, Status, Zones, check_zone, condition, has_wp},
};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use engine::{
    buf::{BLOCK, Buf},
    device::{self, Command, Completion, ZonedDevice},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use serde::Serialize;
use std::{
    collections::VecDeque,
    fs::{File, Metadata},
    io::{ErrorKind, IsTerminal, Read, Seek, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bytes between two flushes of a write without FUA.
const FLUSH_EVERY: u64 = 8 << 20;

/// Bytes in one read command, if the array takes that many.
const READ_BYTES: u64 = 1 << 20;

pub fn run(output: Output, verb: ZoneCommand) -> Result<u8> {
    match verb {
        ZoneCommand::Report { array, zone } => report(output, &array, zone),
        ZoneCommand::Write(options) => write(output, &options),
        ZoneCommand::Read { array, zone, offset, length } => read(output, &array, zone, offset, length),
        ZoneCommand::Reset { array, zone } => manage(output, &array, zone, |zones| Command::Reset { zones }),
        ZoneCommand::Finish { array, zone } => {
            manage(output, &array, zone, |zones| Command::Finish { zones })
        }
        ZoneCommand::Open { array, zone } => {
            manage(output, &array, zone, |zones| Command::Open { zones, zrwa: false })
        }
        ZoneCommand::Close { array, zone } => manage(output, &array, zone, |zones| Command::Close { zones }),
    }?;
    Ok(HEALTHY)
}

fn zone_info(session: &Session, zone: u32) -> Result<ZoneInfo> {
    check_zone(zone, session.device.geometry().zones)?;
    let done = session.run(Command::Report { first: ZoneIndex(zone), count: 1 })?;
    done.zones.into_iter().next().with_context(|| format!("the zone report of the array lacks zone {zone}"))
}

/// The zones of an array, or one of them: as its daemon reports, or else as found on the drives.
pub fn zones_of(output: Output, array: &ArrayName, zone: Option<u32>) -> Result<Zones> {
    if let Some((session, _)) = namespace::to_read(array)? {
        let geometry = session.device.geometry().clone();
        let all = session.run(Command::Report { first: ZoneIndex(0), count: geometry.zones })?.zones;
        return Zones::of(&array.to_string(), &geometry, &all, zone);
    }
    if let Some(mut client) = find_running(array)? {
        return ask(output, &mut client, &Request::Zones { zone });
    }
    let looked = FoundArray::to_look(array)?.glance(PATIENCE_TO_INSPECT)?;
    let found = looked.inspected.map_err(Error::msg)?;
    if !looked.users.is_empty() {
        let how = if looked.changing { ", and keeps changing" } else { "" };
        output.note(&format!("'{array}' is in use by {}{how}", listed(&looked.users)));
    }
    let is_meant = |info: &ZoneInfo| zone.is_none_or(|zone| info.zone.0 == zone);
    let doubtful = |info: &&ZoneInfo| info.state == ZoneState::Offline && looked.changing && is_meant(info);
    if let Some(info) = found.zones.iter().find(doubtful) {
        let users = listed(&looked.users);
        bail!("zone {} is being changed by {users}: its state cannot be determined", info.zone.0);
    }
    Zones::of(&found.status.name, &found.geometry, &found.zones, zone)
}

fn report(output: Output, array: &ArrayName, zone: Option<u32>) -> Result<()> {
    let report = zones_of(output, array, zone)?;
    let picture = zone.is_none() && std::io::stdout().is_terminal();
    output.print(&report, |report: &Zones| {
        let head = if picture { draw(&report.zones, columns()) } else { String::new() };
        let summary = if zone.is_none() { summary(&report.zones) } else { String::new() };
        let mut rows = vec![["ZONE", "START", "COND", "WP", "CAP"].map(String::from).to_vec()];
        rows.extend(report.zones.iter().map(|zone| {
            let wp = zone.wp_bytes.map_or("-".to_string(), |wp| wp.to_string());
            let condition = zone.condition.clone();
            vec![
                zone.zone.to_string(),
                zone.start_bytes.to_string(),
                condition,
                wp,
                zone.capacity_bytes.to_string(),
            ]
        }));
        head + &table(&rows) + &summary
    })
}

/// Number of zones by condition, and the bytes written in all of them.
fn summary(zones: &[report::Zone]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for zone in zones {
        match counts.iter_mut().find(|(condition, _)| *condition == zone.condition) {
            Some((_, count)) => *count += 1,
            None => counts.push((&zone.condition, 1)),
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(condition, count)| format!("{count} {condition}")).collect();
    let capacity = total(zones.iter().map(|zone| zone.capacity_bytes));
    let written = total(zones.iter().map(written));
    format!("{} zones: {}; {} of {} written\n", zones.len(), counts.join(", "), show(written), show(capacity))
}

/// Bytes written in a zone, as far as its condition tells.
fn written(zone: &report::Zone) -> u64 {
    match zone.condition.as_str() {
        "full" => zone.capacity_bytes,
        _ => zone.wp_bytes.unwrap_or(0),
    }
}

/// Most lines of the picture: if there are more zones, several share a character.
const PICTURE_LINES: usize = 8;

fn columns() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col.into())
}

/// Draws a character for each zone, or for several: tenths written, or its condition.
fn draw(zones: &[report::Zone], columns: usize) -> String {
    let columns = if columns == 0 { 80 } else { columns }.saturating_sub(2).max(10);
    let each = zones.len().div_ceil(columns * PICTURE_LINES).max(1);
    let drawn: String = zones.chunks(each).map(character).collect();
    let drawn: Vec<char> = drawn.chars().collect();
    let mut text = String::new();
    for line in drawn.chunks(columns) {
        text += &format!("  {}\n", line.iter().collect::<String>());
    }
    let shared = if each > 1 { format!("; {each} zones a character") } else { String::new() };
    text + &format!("  . empty, 0-9 tenths written, # full, r read-only, ! offline{shared}\n\n")
}

fn character(zones: &[report::Zone]) -> char {
    let any = |condition: &str| zones.iter().any(|zone| zone.condition == condition);
    let all = |condition: &str| zones.iter().all(|zone| zone.condition == condition);
    let capacity = total(zones.iter().map(|zone| zone.capacity_bytes)).max(1);
    let tenths = total(zones.iter().map(written)).saturating_mul(10) / capacity;
    match () {
        () if any("offline") => '!',
        () if any("read-only") => 'r',
        () if all("empty") => '.',
        () if all("full") => '#',
        () => char::from_digit(tenths.min(9) as u32, 10).unwrap_or('9'),
    }
}

#[derive(Serialize)]
struct ZoneManageOutput {
    array: String,
    zone: u32,
    condition: &'static str,
    wp_bytes: Option<u64>,
}

fn manage(
    output: Output,
    array: &ArrayName,
    zone: u32,
    command: impl Fn(device::Zones) -> Command,
) -> Result<()> {
    let (session, below) = namespace::session(array)?;
    refuse_if_there(&session, array, below.as_ref())?;
    let before = condition(zone_info(&session, zone)?.state);
    let called = quoted(&array.to_string());
    interrupt::explain(move || {
        format!(
            "zone {zone} is {before} as before, or has been changed: check with zoneraid zone report {called} \
             {zone}"
        )
    });
    session
        .run(command(device::Zones::One(ZoneIndex(zone))))
        .with_context(|| format!("zone {zone}, which is {before}"))?;
    let info = zone_info(&session, zone)?;
    let managed = ZoneManageOutput {
        array: namespace::name_of(&session, below.as_ref()),
        zone,
        condition: condition(info.state),
        wp_bytes: has_wp(info.state).then(|| bytes(info.wp_blocks)),
    };
    output.print(&managed, |managed| format!("zone {zone} is {}\n", managed.condition))?;
    if info.state.is_open() {
        // Zones stay open only while the array runs, which ends with this command.
        let after = if info.wp_blocks == 0 { "empty" } else { "closed" };
        output
            .note(&format!("no daemon runs the array: when this command ends zone {zone} is {after} again"));
    }
    Ok(())
}

/// Source of `zone read`: the array, or the block device of a running one.
struct ZoneSource {
    zone: report::Zone,
    /// Most bytes of one read.
    at_most: u64,
    /// Reads whole blocks at a byte offset of the device.
    read: Box<dyn Fn(u64, Buf) -> Result<Buf>>,
    /// The array that is read, if other processes may use it meanwhile.
    found: Option<FoundArray>,
    /// The zones of the array that may contain the data, as they were before the read.
    before: Vec<ZoneInfo>,
}

impl ZoneSource {
    fn open(output: Output, array: &ArrayName, zone: u32) -> Result<ZoneSource> {
        let only = |zones: Zones| zones.zones.into_iter().next().context("the array has no such zone");
        let of_session = |session: Session, found, others: Vec<ZoneInfo>| {
            let geometry = session.device.geometry().clone();
            let info = zone_info(&session, zone)?;
            let at_most = bytes(geometry.max_transfer_blocks.max(1) as u64).min(READ_BYTES);
            let read = move |at: u64, buf| Ok(session.run(Command::read(Lba(at / BLOCK as u64), buf))?.data);
            let zone = only(Zones::of("", &geometry, &[info], None)?)?;
            let before = if others.is_empty() { vec![info] } else { others };
            anyhow::Ok(ZoneSource { zone, at_most, read: Box::new(read), found, before })
        };
        if let Some((session, found)) = namespace::to_read(array)? {
            // All zones of the array: a zone may move from one namespace to another meanwhile.
            let count = session.array.geometry().zones;
            let done = session.wait(session.array.submit(Command::Report { first: ZoneIndex(0), count }))?;
            done.result?;
            return of_session(session, Some(found), done.zones);
        }
        let Some(mut client) = find_running(array)? else {
            let found = FoundArray::to_read(array)?;
            return of_session(found.read_only()?, Some(found), Vec::new());
        };
        let status: Status = ask(output, &mut client, &Request::Status)?;
        let name = &status.name;
        ensure!(
            status.volume.is_none(),
            "'{name}' runs and carries a volume, so that its zones cannot be read: stop it first with zoneraid stop {}",
            quoted(name)
        );
        let zone = only(ask(output, &mut client, &Request::Zones { zone: Some(zone) })?)?;
        let path = client.about.block_device.as_ref();
        let path = path.with_context(|| format!("'{name}' runs, but has no block device to read from"))?;
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = file.with_context(|| format!("{} cannot be opened", path.display()))?;
        let read = move |at: u64, mut buf: Buf| {
            file.read_exact_at(buf.as_mut().context("a read buffer is still in use")?, at)?;
            Ok(buf)
        };
        Ok(ZoneSource { zone, at_most: READ_BYTES, read: Box::new(read), found: None, before: Vec::new() })
    }

    /// Fails if a zone was reset while it was read, or if that is unknown: its write pointer is behind the former one.
    fn check_wp(&self) -> Result<()> {
        let Some(found) = &self.found else { return Ok(()) };
        // No process writes to an array that waits for its daemon, and a glance cannot determine its ends as exactly.
        if found.is_waited_for()? {
            return Ok(());
        }
        let looked = found.glance(PATIENCE_TO_INSPECT)?;
        let by = listed(&looked.users);
        let unknown = |zone: u32, why: String| {
            format!(
                "it is unknown whether zone {zone} was reset while it was read, since {why}: read it again"
            )
        };
        let now = looked.inspected.map_err(|error| anyhow!("{}", unknown(self.zone.zone, error)))?;
        for before in &self.before {
            let held = match before.state {
                ZoneState::Full => before.capacity_blocks,
                state if has_wp(state) => before.wp_blocks,
                _ => 0,
            };
            let zone = before.zone.0;
            if held == 0 {
                continue;
            }
            let now = now.zones.get(zone as usize).filter(|now| now.state != ZoneState::Offline);
            let now = now.with_context(|| unknown(zone, format!("it is offline now, in use by {by}")))?;
            let of_array = format!(" of '{}'", found.label.name);
            let whose = if self.before.len() > 1 { &of_array } else { "" };
            ensure!(
                !has_wp(now.state) || now.wp_blocks >= held,
                "zone {zone}{whose} was reset by {by} while it was read"
            );
        }
        Ok(())
    }

    /// Fails if the block at a byte offset of the zone is not `first` any more, as it was read: the zone has been reset
    /// and written again. Outside of the engine a zone has no number that changes with a reset, so this is not noticed
    /// if the zone was written up to its former write pointer again and has the same block there.
    fn check_block(&self, at: u64, first: &[u8]) -> Result<()> {
        let zone = self.zone.zone;
        let now = (self.read)(self.zone.start_bytes + at, Buf::zeroed(first.len())).with_context(|| {
            format!("it is unknown whether zone {zone} was reset while it was read: read it again")
        })?;
        ensure!(now[..] == *first, "zone {zone} was reset while it was read: read it again");
        Ok(())
    }
}

fn read(output: Output, array: &ArrayName, zone: u32, offset: u64, length: Option<u64>) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    ensure!(
        !stdout.is_terminal(),
        "zone read does not write raw data to a terminal: redirect standard output to a file or a program"
    );
    let source = ZoneSource::open(output, array, zone)?;
    let report::Zone { condition, start_bytes, wp_bytes, capacity_bytes, .. } = &source.zone;
    ensure!(condition != "offline", "zone {zone} is offline; its data cannot be read");
    let end = wp_bytes.unwrap_or(*capacity_bytes);
    ensure!(offset <= end, "zone {zone} holds {end} bytes, which is less than --offset {offset}");
    let end = length.and_then(|length| offset.checked_add(length)).map_or(end, |wanted| wanted.min(end));
    let progress = output.transfer("read", Some(end - offset));
    let told = Arc::new(AtomicU64::new(offset));
    let read_so_far = told.clone();
    interrupt::explain(move || {
        let at = read_so_far.load(Ordering::Relaxed);
        format!("zone {zone} was read up to byte {at}: continue with --offset {at}")
    });
    let mut at = offset;
    let mut begin = None;
    while at < end {
        let first = at / BLOCK as u64;
        let last = end.min(bytes(first) + source.at_most).div_ceil(BLOCK as u64);
        let read = (source.read)(start_bytes + bytes(first), Buf::zeroed(bytes(last - first) as usize));
        let data = read.or_else(|error| {
            // The blocks of a zone that was reset have no right checksums.
            source.check_wp()?;
            Err(error.context(format!("zone {zone} cannot be read at byte {at}")))
        })?;
        let until = end.min(bytes(last));
        begin.get_or_insert_with(|| (bytes(first), data[..BLOCK].to_vec()));
        let part = &data[(at - bytes(first)) as usize..(until - bytes(first)) as usize];
        match stdout.write_all(part) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            result => result.context("standard output cannot be written")?,
        }
        at = until;
        told.store(at, Ordering::Relaxed);
        progress.set_position(at - offset);
    }
    crate::process::output::ignore_closed_pipe(stdout.flush())
        .context("standard output cannot be written")?;
    source.check_wp()?;
    begin.map_or(Ok(()), |(at, first)| source.check_block(at, &first))
}

#[derive(Serialize)]
struct ZoneWriteOutput {
    array: String,
    zone: u32,
    /// Bytes of standard input that were written.
    written_bytes: u64,
    /// Zeros added to fill the last block.
    padded_bytes: u64,
    wp_bytes: u64,
}

fn write(output: Output, options: &ZoneWrite) -> Result<()> {
    let zone = options.zone;
    let (session, below) = namespace::session(&options.array)?;
    refuse_if_there(&session, &options.array, below.as_ref())?;
    let info = zone_info(&session, zone)?;
    ensure!(has_wp(info.state), "zone {zone} is {} and takes no writes", condition(info.state));
    let most = session.device.geometry().max_transfer_blocks as u64;
    ensure!(
        options.block_size <= most,
        "--block-size is too large for this array: {} at most",
        show(bytes(most))
    );
    let log = options.ack_log.as_ref().map(|path| {
        let file = File::options().append(true).create(true).open(path);
        file.with_context(|| format!("{} cannot be opened", path.display()))
    });
    let mut writer = ZoneWriter {
        session: &session,
        zone,
        fua: options.fua,
        depth: options.queue_depth as usize,
        log: log.transpose()?,
        queue: VecDeque::new(),
        spare: Vec::new(),
        submitted: bytes(info.wp_blocks),
        completed: bytes(info.wp_blocks),
        durable: bytes(info.wp_blocks),
        told: Arc::new(AtomicU64::new(bytes(info.wp_blocks))),
        start: bytes(info.wp_blocks),
        progress: output.transfer("write", input_bytes()),
    };
    let mut input = Input { stdin: std::io::stdin().lock(), taken: 0, padded: 0, ended: false };
    if input.stdin.is_terminal() {
        output.note("standard input is a terminal: typed text is written until Ctrl-D");
    }
    let (told, start, called) = (writer.told.clone(), writer.start, quoted(&options.array.to_string()));
    interrupt::explain(move || {
        let durable = told.load(Ordering::Relaxed);
        format!(
            "{} bytes of the input are durable in zone {zone}, up to byte {durable}; its write pointer may be \
             further on: zoneraid zone report {called} {zone}",
            durable - start
        )
    });
    let result = writer.copy(&mut input, bytes(options.block_size), bytes(info.capacity_blocks));
    let (start, durable) = (writer.start, writer.durable);
    interrupt::forget();
    // Removes the progress bar from the screen before any message.
    drop(writer);
    if input.padded > 0 {
        output.note(&format!(
            "the input ends inside a block of {BLOCK} bytes; {} zero bytes were added",
            input.padded
        ));
    }
    if let Err(error) = result {
        let stored = (durable - start).min(input.taken);
        let error = session.explain(error);
        return Err(error.context(format!("{stored} bytes of the input are durable in zone {zone}")));
    }
    let written = ZoneWriteOutput {
        array: namespace::name_of(&session, below.as_ref()),
        zone,
        written_bytes: input.taken,
        padded_bytes: input.padded,
        wp_bytes: durable,
    };
    output.print(&written, |w| {
        format!("{} bytes written to zone {zone}; its wp is at {}\n", w.written_bytes, w.wp_bytes)
    })
}

/// Bytes left in standard input, if it is a file.
fn input_bytes() -> Option<u64> {
    let mut file = File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(Metadata::is_file)?;
    metadata.len().checked_sub(file.stream_position().ok()?)
}

/// Standard input in whole blocks.
struct Input<'a> {
    stdin: std::io::StdinLock<'a>,
    taken: u64,
    padded: u64,
    ended: bool,
}

impl Input<'_> {
    /// Fills `target` from its start and returns the bytes filled: whole blocks, the last one padded with zeros, and
    /// less than all only at the end of the input.
    fn fill(&mut self, target: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < target.len() && !self.ended {
            match self.stdin.read(&mut target[filled..]) {
                Ok(0) => self.ended = true,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("standard input cannot be read"),
            }
        }
        self.taken += filled as u64;
        let whole = filled.next_multiple_of(BLOCK);
        target[filled..whole].fill(0);
        self.padded += (whole - filled) as u64;
        Ok(whole)
    }

    fn has_more(&mut self) -> Result<bool> {
        let mut byte = [0];
        loop {
            match self.stdin.read(&mut byte) {
                Ok(count) => return Ok(count > 0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("standard input cannot be read"),
            }
        }
    }
}

/// The writes in flight, and how far they are acknowledged. Positions are in bytes from the start of the zone;
/// `durable` ≤ `completed` ≤ `submitted`.
struct ZoneWriter<'a> {
    session: &'a Session,
    zone: u32,
    fua: bool,
    depth: usize,
    log: Option<File>,
    queue: VecDeque<(u64, Completion)>,
    spare: Vec<Buf>,
    submitted: u64,
    completed: u64,
    durable: u64,
    /// `durable`, for the message when a signal ends the process.
    told: Arc<AtomicU64>,
    /// Position of the first write.
    start: u64,
    progress: CopyProgress,
}

impl ZoneWriter<'_> {
    fn copy(&mut self, input: &mut Input<'_>, block_size: u64, capacity: u64) -> Result<()> {
        loop {
            let room = block_size.min(capacity - self.submitted) as usize;
            if room == 0 {
                self.settle()?;
                if !input.ended && input.has_more()? {
                    bail!("the zone is full at {capacity} bytes, and the input is longer");
                }
                return Ok(());
            }
            let mut buf = self.spare.pop().unwrap_or_default();
            if buf.len() < room || !buf.is_unique() {
                buf = Buf::zeroed(room);
            }
            let target = buf.as_mut().context("a write buffer is still in use")?;
            let filled = input.fill(&mut target[..room])?;
            if filled > 0 {
                let data = if filled < buf.len() { buf.slice(0..filled) } else { buf };
                self.submit(data)?;
            }
            if input.ended {
                return self.settle();
            }
        }
    }

    fn submit(&mut self, data: Buf) -> Result<()> {
        while self.queue.len() >= self.depth {
            self.complete_one()?;
        }
        let geometry = self.session.device.geometry();
        let lba = Lba(geometry.start(ZoneIndex(self.zone)).0 + self.submitted / BLOCK as u64);
        self.submitted += data.len() as u64;
        let completion = self.session.device.submit(Command::write(lba, data, self.fua));
        self.queue.push_back((self.submitted, completion));
        self.session.reactor.runtime().run();
        if !self.fua && self.submitted - self.durable >= FLUSH_EVERY {
            self.settle()?;
        }
        Ok(())
    }

    /// Waits for the oldest write.
    fn complete_one(&mut self) -> Result<()> {
        let Some((end, completion)) = self.queue.pop_front() else { return Ok(()) };
        let done = self.session.wait(completion)?;
        done.result.with_context(|| format!("the write that ends at byte {end} failed"))?;
        self.completed = end;
        self.progress.set_position(end - self.start);
        self.spare.push(done.data);
        if self.fua { self.promise() } else { Ok(()) }
    }

    /// Waits for all writes and flushes them.
    fn settle(&mut self) -> Result<()> {
        while !self.queue.is_empty() {
            self.complete_one()?;
        }
        if self.durable < self.completed {
            self.session.run(Command::Flush).context("the flush failed")?;
            self.promise()?;
        }
        Ok(())
    }

    /// Records that all completed writes are durable, also in the acknowledgement log.
    fn promise(&mut self) -> Result<()> {
        self.durable = self.completed;
        self.told.store(self.durable, Ordering::Relaxed);
        match &mut self.log {
            // One call for the line, so that a killed process leaves all of it or nothing.
            Some(log) => log
                .write_all(format!("{}\n", self.durable).as_bytes())
                .context("the acknowledgement log cannot be written"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(condition: &str, wp_bytes: Option<u64>) -> report::Zone {
        report::Zone { zone: 0, start_bytes: 0, condition: condition.into(), wp_bytes, capacity_bytes: 100 }
    }

    #[test]
    fn zone_picture_shows_fill_and_state_of_zones() {
        let zones = [
            zone("empty", Some(0)),
            zone("closed", Some(1)),
            zone("implicitly-open", Some(99)),
            zone("full", None),
            zone("read-only", None),
            zone("offline", None),
        ];
        assert!(draw(&zones, 80).starts_with("  .09#r!\n"), "{}", draw(&zones, 80));
        let many: Vec<report::Zone> = (0..10_000).map(|n| zone("closed", Some(n % 2 * 100))).collect();
        let drawn = draw(&many, 42);
        assert!(drawn.lines().count() <= PICTURE_LINES + 2, "{drawn}");
        assert!(drawn.starts_with(&format!("  {}\n", "5".repeat(40))), "{drawn}");
        let said = summary(&zones);
        assert!(said.starts_with("6 zones: 1 empty, 1 closed, 1 implicitly-open, 1 full,"), "{said}");
        assert!(said.ends_with("200 B of 600 B written\n"), "{said}");
    }
}
