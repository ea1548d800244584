//! `status` without an array, and `list`: all arrays and drives at a glance.
//!
//! One array or drive in trouble does not prevent the overview: a daemon that does not respond, or a drive that is slow
//! or cannot be opened, costs a moment and a line, and the rest is shown. Nothing is locked meanwhile.

use super::daemon::ask;
use crate::{
    control::{
        client::{self, Client, NoAnswer},
        name::ArrayName,
        protocol::Request,
    },
    drive::{
        self, ModelAndSerial, User,
        label::{Content, Label},
        same_file,
    },
    members::{FoundArray, LookResult, OpenDrive, PATIENCE_TO_LOOK, Scan, find_running, listed, places},
    process::{
        machine::Owner,
        output::{FAILED, HEALTHY, Output, shaded_state, table, uuid},
        size::show,
    },
    reactor::Reactor,
    report::{Life, Rebuild, State, Status, StatusMember, Zones, used_zones},
};
use anyhow::Result;
use serde::Serialize;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// The status of an array, wherever it was found.
struct ArrayOverview {
    status: Status,
    /// Zones that are not empty; `None` if that cannot be determined.
    used_zones: Option<u32>,
}

/// The running arrays, and the arrays on drives that no daemon runs.
fn arrays(output: Output, reactor: &Reactor, scans: &[Scan], running: Vec<Client>) -> Vec<ArrayOverview> {
    let mut known = BTreeSet::new();
    let mut arrays = Vec::new();
    let mut names: Vec<String> = running.iter().map(|client| client.about.name.clone()).collect();
    for mut client in running {
        known.insert(client.about.uuid.clone());
        match seen_by_daemon(output, &mut client) {
            Ok(seen) => arrays.push(seen),
            Err(error) => {
                let about = &client.about;
                let why = format!("'{}', process {}: {error:#}", about.name, about.pid);
                client::fall_silent(&client.socket, why.into());
            }
        }
    }
    let labels = scans.iter().flat_map(|scan| scan.arrays().into_iter().map(move |label| (scan, label)));
    let labels: Vec<(&Scan, &Label)> =
        labels.filter(|(_, label)| !known.contains(&uuid(&label.uuid))).collect();
    names.extend(labels.iter().map(|(_, label)| label.name.clone()));
    for (scan, label) in labels {
        let mut found = FoundArray::among(reactor, scan, label);
        if names.iter().filter(|name| **name == label.name).count() > 1 {
            found.called = uuid(&label.uuid);
        }
        arrays.push(seen_on_drives(&found));
    }
    arrays
}

fn seen_by_daemon(output: Output, client: &mut Client) -> Result<ArrayOverview> {
    let status: Status = ask(output, client, &Request::Status)?;
    let zones: Result<Zones> = ask(output, client, &Request::Zones { zone: None });
    let used = |zones: Zones| zones.zones.iter().filter(|zone| zone.condition != "empty").count() as u32;
    Ok(ArrayOverview { status, used_zones: zones.ok().map(used) })
}

fn seen_on_drives(found: &FoundArray) -> ArrayOverview {
    let looked = match found.glance(PATIENCE_TO_LOOK) {
        Ok(looked) => looked,
        Err(error) => {
            LookResult { inspected: Err(format!("{error:#}")), users: found.users(), changing: false }
        }
    };
    let used_zones = looked.inspected.as_ref().ok().map(|array| used_zones(&array.zones));
    ArrayOverview { status: Status::looked(found, looked), used_zones }
}

#[derive(Serialize)]
struct Overview {
    arrays: Vec<ArrayLine>,
    /// Drives that could not be read.
    unseen: Vec<UnusableDrive>,
    /// Daemons that do not report the status of their arrays.
    silent: Vec<SilentDaemon>,
}

#[derive(Serialize)]
struct ArrayLine {
    name: String,
    uuid: String,
    level: String,
    state: State,
    status: String,
    action: Option<String>,
    /// How many more members may be lost without a loss of data.
    may_be_lost: u32,
    /// `None` while the array is unusable, like the numbers of zones.
    size_bytes: Option<u64>,
    zones: Option<u32>,
    used_zones: Option<u32>,
    members: u32,
    members_active: u32,
    rebuild: Option<Rebuild>,
    /// Processes that use the drives and have no control socket.
    used_by: Vec<User>,
    /// Whether the array keeps changing, so that its status is of different moments.
    changing: bool,
    /// Whether its daemon was killed, and users of the block device or NBD clients wait for the next one.
    waits_for_daemon: bool,
    /// Process of the daemon; `None` if the array does not run.
    pid: Option<u32>,
    block_device: Option<String>,
    /// Address for NBD clients; `None` if the array does not serve any.
    nbd: Option<String>,
    /// Size and use of its volume, as reported by its daemon.
    volume_size_bytes: Option<u64>,
    volume_used_bytes: Option<u64>,
    host: Owner,
    /// Whether it is started automatically on its host.
    autostart: bool,
    stage: Life,
}

#[derive(Clone, Serialize)]
struct UnusableDrive {
    drive: String,
    error: String,
}

/// A daemon that does not respond.
#[derive(Clone, Serialize)]
struct SilentDaemon {
    socket: String,
    error: String,
    /// Whether this user has no permission to connect to it.
    #[serde(skip)]
    is_denied: bool,
}

impl SilentDaemon {
    /// The daemons that have not responded to this process.
    fn all() -> Vec<SilentDaemon> {
        let silent = client::silent().into_iter();
        silent
            .map(|(socket, NoAnswer { why, is_denied })| SilentDaemon {
                socket: socket.display().to_string(),
                error: why,
                is_denied,
            })
            .collect()
    }
}

/// Message that there are no `things` in `dirs`; if it is `blind`, not everything could be examined.
fn none_of(things: &str, dirs: &[PathBuf], blind: bool) -> String {
    let named =
        |dirs: &[PathBuf]| dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" or ");
    match dirs {
        _ if blind => format!("no {things} found, but not everything could be examined\n"),
        [] => format!("no {things} in {}; to look elsewhere, name a directory\n", named(&places())),
        dirs => format!("no {things} in {}\n", named(dirs)),
    }
}

impl ArrayLine {
    fn new(seen: ArrayOverview) -> ArrayLine {
        let ArrayOverview { status, used_zones } = seen;
        ArrayLine {
            size_bytes: status.size_bytes(),
            members: status.members.len() as u32,
            members_active: status.active() as u32,
            name: status.name,
            uuid: status.uuid,
            level: status.level,
            state: status.state,
            status: status.status,
            action: status.action,
            may_be_lost: status.may_be_lost,
            zones: status.zones,
            used_zones,
            rebuild: status.rebuild,
            used_by: status.used_by,
            changing: status.changing,
            waits_for_daemon: status.waits_for_daemon,
            pid: status.pid,
            block_device: status.block_device,
            nbd: status.nbd,
            volume_size_bytes: status.volume.as_ref().map(|volume| volume.size_bytes),
            volume_used_bytes: status.volume.as_ref().map(|volume| volume.used_bytes),
            host: status.host,
            autostart: status.autostart,
            stage: status.stage,
        }
    }

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or("-".into());
        let zones = self.used_zones.zip(self.zones).map(|(used, zones)| format!("{used} of {zones} zones"));
        // A volume fills all zones sooner or later, so its own use is shown.
        let volume = self.volume_used_bytes.zip(self.volume_size_bytes);
        let used = volume.map(|(used, size)| format!("{} of {}", show(used), show(size))).or(zones);
        let doing = match (&self.rebuild, self.pid) {
            (Some(rebuild), _) => format!("{}, {}", rebuild.kind(), rebuild.percent()),
            (None, Some(pid)) => format!("runs (process {pid})"),
            (None, None) if self.changing => format!("being changed by {}", listed(&self.used_by)),
            (None, None) if !self.used_by.is_empty() => format!("in use by {}", listed(&self.used_by)),
            (None, None) if self.waits_for_daemon => "waits for its daemon".into(),
            (None, None) => "does not run".into(),
        };
        vec![
            self.name.clone(),
            self.level.clone(),
            shaded_as(self.stage, self.state),
            or_dash(self.size_bytes.map(show)),
            or_dash(used),
            format!("{} of {}", self.members_active, self.members),
            doing,
            or_dash(self.block_device.clone().or(self.nbd.clone())),
            self.host.words(self.autostart).to_string(),
            self.uuid.clone(),
        ]
    }
}

/// The stage of an array that is not complete, unless it keeps changing, or else its state.
fn shaded_as(stage: Life, state: State) -> String {
    stage.shaded().filter(|_| state != State::Changing).unwrap_or_else(|| state.shaded())
}

/// The array with this name.
fn named(output: Output, name: &ArrayName) -> Result<ArrayOverview> {
    match find_running(name)? {
        Some(mut client) => seen_by_daemon(output, &mut client),
        None => Ok(seen_on_drives(&FoundArray::to_look(name)?)),
    }
}

/// Prints the status of all arrays, or of those with these names, a line each.
pub fn status(output: Output, names: &[ArrayName]) -> Result<u8> {
    let (reactor, mut failed) = (Reactor::default(), Vec::new());
    let (seen, unseen): (Vec<ArrayOverview>, _) = match names {
        [] => {
            let running = client::running()?;
            let scans = Scan::everywhere(&reactor, PATIENCE_TO_LOOK)?;
            let unseen = unseen(&scans, &running);
            (arrays(output, &reactor, &scans, running), unseen)
        }
        names => {
            let found = names.iter().map(|name| named(output, name).map_err(|error| failed.push(error)));
            (found.flatten().collect(), Vec::new())
        }
    };
    for error in &failed {
        output.error(&format!("{error:#}"));
    }
    if seen.is_empty() && !failed.is_empty() {
        return Ok(FAILED);
    }
    let arrays = seen.into_iter().map(ArrayLine::new).collect();
    let overview = Overview { arrays, unseen, silent: SilentDaemon::all() };
    output.print(&overview, |overview| {
        let heads =
            ["ARRAY", "LEVEL", "STATE", "SIZE", "USED", "MEMBERS", "ACTIVITY", "DEVICE", "HOST", "UUID"];
        let mut rows = vec![heads.map(String::from).to_vec()];
        rows.extend(overview.arrays.iter().map(ArrayLine::cells));
        let blind = !overview.unseen.is_empty() || !overview.silent.is_empty();
        let mut text = if rows.len() == 1 { none_of("arrays", &[], blind) } else { table(&rows) };
        for drive in &overview.unseen {
            text += &format!("not examined: {} {}\n", drive.drive, drive.error);
        }
        text
    })?;
    let worst = overview.arrays.iter().map(|array| array.state).max().map_or(HEALTHY, State::code);
    // The state of a silent daemon's array is unknown, unless this user has no permission to connect and the drives
    // were inspected instead.
    let is_known = |silent: &SilentDaemon| {
        let of_it = |array: &ArrayLine| silent.socket.ends_with(&format!("/{}.sock", array.uuid));
        silent.is_denied && overview.arrays.iter().any(of_it)
    };
    let is_blind = overview.silent.iter().any(|silent| !is_known(silent));
    Ok(if worst == HEALTHY && is_blind || !failed.is_empty() { FAILED } else { worst })
}

/// The drives that could not be read, except those that daemons hold: these report them.
fn unseen(scans: &[Scan], running: &[Client]) -> Vec<UnusableDrive> {
    let held =
        |path: &Path| running.iter().any(|c| c.about.drives.iter().any(|drive| same_file(drive, path)));
    let mut unseen = Vec::new();
    for scan in scans {
        let silent = scan.drives.iter().filter_map(|drive| match &drive.content {
            Content::Filled(filled) => Some((drive.path.clone(), filled.sentence.clone())),
            Content::Other(what) => Some((drive.path.clone(), what.clone())),
            Content::Blank | Content::Member(_) => None,
        });
        let all = scan.damaged.iter().cloned().chain(silent).filter(|(path, _)| !held(path));
        unseen.extend(all.map(|(path, error)| {
            // The process that uses it may be writing its metadata.
            let user = drive::user(&path).map(|user| format!("; it is in use by {user}")).unwrap_or_default();
            UnusableDrive { drive: shown(&path), error: error + &user }
        }));
    }
    unseen
}

/// A path in the working directory without the leading `./`.
fn shown(path: &Path) -> String {
    path.strip_prefix("./").unwrap_or(path).display().to_string()
}

#[derive(Serialize)]
struct ListOutput {
    arrays: Vec<ListedArray>,
    blank: Vec<Blank>,
    /// Drives that could not be read, or hold other data.
    unseen: Vec<UnusableDrive>,
    /// Daemons that do not report the status of their arrays.
    silent: Vec<SilentDaemon>,
}

#[derive(Serialize)]
struct ListedArray {
    name: String,
    uuid: String,
    level: String,
    state: State,
    size_bytes: Option<u64>,
    members: u32,
    /// Roles with a drive.
    members_found: u32,
    members_active: u32,
    policy: String,
    /// Number of small zones of a drive that are used as one.
    aggregate: u32,
    /// Whether the array keeps changing, so that its status is of different moments.
    changing: bool,
    /// The block device, if the array runs.
    block_device: Option<String>,
    host: Owner,
    /// Whether it is started automatically on its host.
    autostart: bool,
    stage: Life,
    drives: Vec<ListedMember>,
}

#[derive(Serialize)]
struct ListedMember {
    /// Empty if it is missing.
    drive: String,
    role: u32,
    state: String,
    size_bytes: Option<u64>,
    model: Option<String>,
    serial: Option<String>,
}

#[derive(Serialize)]
struct Blank {
    drive: String,
    size_bytes: u64,
    model: Option<String>,
    serial: Option<String>,
}

pub fn list(output: Output, dirs: &[PathBuf]) -> Result<u8> {
    let reactor = Reactor::default();
    let running = client::running()?;
    let scans = match dirs {
        [] => Scan::everywhere(&reactor, PATIENCE_TO_LOOK)?,
        dirs => dirs.iter().map(|dir| Scan::of(&reactor, dir, PATIENCE_TO_LOOK)).collect::<Result<_>>()?,
    };
    let unseen = unseen(&scans, &running);
    // For given directories, arrays that run on drives elsewhere are left out.
    let drives = || scans.iter().flat_map(|scan| &scan.drives);
    let here = |client: &Client| {
        let lies_here = |drive: &PathBuf| drives().any(|other| same_file(drive, &other.path));
        dirs.is_empty() || client.about.drives.iter().any(lies_here)
    };
    let seen = arrays(output, &reactor, &scans, running.into_iter().filter(here).collect());
    let labelled = |uuid: &str| {
        let of_array = scans
            .iter()
            .flat_map(|scan| &scan.drives)
            .filter(|drive| drive.label().is_some_and(|label| self::uuid(&label.uuid) == uuid));
        of_array.collect::<Vec<_>>()
    };
    let blank = scans.iter().flat_map(|scan| &scan.drives).filter(|drive| drive.content == Content::Blank);
    let listed = ListOutput {
        arrays: seen
            .into_iter()
            .map(|seen| ListedArray::new(&seen.status, &labelled(&seen.status.uuid)))
            .collect(),
        blank: blank.map(Blank::new).collect(),
        unseen,
        silent: SilentDaemon::all(),
    };
    output.print(&listed, |listed| match listed_text(listed) {
        text if text.is_empty() => none_of("drives", dirs, !listed.silent.is_empty()),
        text => text,
    })?;
    Ok(HEALTHY)
}

impl Blank {
    fn new(drive: &OpenDrive) -> Blank {
        let ModelAndSerial { model, serial } = drive::drive_id(&drive.path);
        Blank { drive: shown(&drive.path), size_bytes: drive.size_bytes(), model, serial }
    }
}

impl ListedArray {
    /// `labelled` are the drives with a label of the array, including stale ones.
    fn new(status: &Status, labelled: &[&OpenDrive]) -> ListedArray {
        let there: Vec<&StatusMember> = status.members.iter().filter(|m| !m.drive.is_empty()).collect();
        // Including missing members: model and serial number help to find them.
        let mut drives: Vec<ListedMember> = status.members.iter().map(ListedMember::of).collect();
        for drive in labelled {
            // A path that is not valid UTF-8 is only found as it was printed.
            let printed = drive.path.display().to_string();
            let is_it = |member: &&StatusMember| {
                member.drive == printed || same_file(Path::new(&member.drive), &drive.path)
            };
            let used = there.iter().any(is_it);
            if let Some(label) = drive.label().filter(|_| !used) {
                // A twin has a label as new as the array's: nothing distinguishes it from the member in use.
                let state = if label.event == status.event { "twin" } else { "stale" }.to_string();
                let Blank { drive, size_bytes, model, serial } = Blank::new(drive);
                let (role, size_bytes) = (label.role, Some(size_bytes));
                drives.push(ListedMember { drive, role, state, size_bytes, model, serial });
            }
        }
        ListedArray {
            name: status.name.clone(),
            uuid: status.uuid.clone(),
            level: status.level.clone(),
            state: status.state,
            size_bytes: status.size_bytes(),
            members: status.members.len() as u32,
            members_found: there.len() as u32,
            members_active: status.active() as u32,
            policy: status.policy.clone(),
            aggregate: status.aggregate,
            changing: status.changing,
            block_device: status.block_device.clone(),
            host: status.host,
            autostart: status.autostart,
            stage: status.stage,
            drives,
        }
    }
}

impl ListedMember {
    fn of(member: &StatusMember) -> ListedMember {
        ListedMember {
            drive: shown(Path::new(&member.drive)),
            role: member.role,
            state: member.state.clone(),
            size_bytes: member.size_bytes,
            model: member.model.clone(),
            serial: member.serial.clone(),
        }
    }
}

fn listed_text(listed: &ListOutput) -> String {
    let heads = [
        "DRIVE",
        "SIZE",
        "MODEL",
        "SERIAL",
        "ROLE",
        "STATE",
        "ARRAY",
        "LEVEL",
        "MEMBERS",
        "ARRAY STATE",
        "HOST",
        "UUID",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let or_dash = |text: &Option<String>| text.clone().unwrap_or("-".into());
    for array in &listed.arrays {
        let active = format!("{} of {}", array.members_active, array.members);
        for drive in &array.drives {
            rows.push(vec![
                if drive.drive.is_empty() { "-".into() } else { drive.drive.clone() },
                or_dash(&drive.size_bytes.map(show)),
                or_dash(&drive.model),
                or_dash(&drive.serial),
                drive.role.to_string(),
                shaded_state(&drive.state),
                array.name.clone(),
                array.level.clone(),
                active.clone(),
                shaded_as(array.stage, array.state),
                array.host.words(array.autostart).to_string(),
                array.uuid.clone(),
            ]);
        }
    }
    for blank in &listed.blank {
        let (model, serial) = (or_dash(&blank.model), or_dash(&blank.serial));
        rows.push(vec![
            blank.drive.clone(),
            show(blank.size_bytes),
            model,
            serial,
            "-".into(),
            "blank".into(),
        ]);
    }
    let mut text = if rows.len() == 1 { String::new() } else { table(&rows) };
    for drive in &listed.unseen {
        text += &format!("{}: {}\n", drive.drive, drive.error);
    }
    text
}
