//! `status` without an array, and `list`: everything there is, on one page.
//!
//! Whoever asks for everything shall see it although one array or drive is in trouble: a daemon that does not
//! answer, a drive that takes too long or cannot be opened costs a moment and a line, and the rest is shown.
//! Nobody is kept from anything meanwhile.

use super::daemon::ask;
use crate::{
    client::{self, Client, Silence},
    drive::{self, Plate, User, same_file},
    label::{Content, Label},
    machine::Owner,
    members::{Found, Looked, OpenDrive, PATIENCE_TO_LOOK, Scan, find_running, listed, places},
    name::ArrayName,
    output::{FAILED, HEALTHY, Output, shaded_state, table, uuid},
    protocol::Request,
    reactor::Reactor,
    report::{Life, Rebuild, State, Status, StatusMember, Zones, used_zones},
    size::show,
};
use anyhow::Result;
use serde::Serialize;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// An array, wherever it was found.
struct Seen {
    status: Status,
    /// Zones that are not empty, as far as anybody can tell.
    used_zones: Option<u32>,
}

/// The arrays that run, and those on the drives that nobody else holds.
fn arrays(output: Output, reactor: &Reactor, scans: &[Scan], running: Vec<Client>) -> Vec<Seen> {
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
        let mut found = Found::among(reactor, scan, label);
        if names.iter().filter(|name| **name == label.name).count() > 1 {
            found.called = uuid(&label.uuid);
        }
        arrays.push(seen_on_drives(&found));
    }
    arrays
}

fn seen_by_daemon(output: Output, client: &mut Client) -> Result<Seen> {
    let status: Status = ask(output, client, &Request::Status)?;
    let zones: Result<Zones> = ask(output, client, &Request::Zones { zone: None });
    let used = |zones: Zones| zones.zones.iter().filter(|zone| zone.condition != "empty").count() as u32;
    Ok(Seen { status, used_zones: zones.ok().map(used) })
}

fn seen_on_drives(found: &Found) -> Seen {
    let looked = match found.glance(PATIENCE_TO_LOOK) {
        Ok(looked) => looked,
        Err(error) => Looked { inspected: Err(format!("{error:#}")), users: found.users(), changing: false },
    };
    let used_zones = looked.inspected.as_ref().ok().map(|array| used_zones(&array.zones));
    Seen { status: Status::looked(found, looked), used_zones }
}

#[derive(Serialize)]
struct Overview {
    arrays: Vec<ArrayLine>,
    /// Drives that could not be looked at.
    unseen: Vec<Unseen>,
    /// Daemons that do not say how their arrays are.
    silent: Vec<Silent>,
}

#[derive(Serialize)]
struct ArrayLine {
    name: String,
    uuid: String,
    level: String,
    state: State,
    status: String,
    action: Option<String>,
    /// How many more members may be lost before data is.
    may_be_lost: u32,
    /// Nothing while the array is unusable, as the numbers of zones.
    size_bytes: Option<u64>,
    zones: Option<u32>,
    used_zones: Option<u32>,
    members: u32,
    members_active: u32,
    rebuild: Option<Rebuild>,
    /// Processes that use the drives and cannot be asked.
    used_by: Vec<User>,
    /// Whether they change the array all the time, so that what is said of it is of different moments.
    changing: bool,
    /// A daemon was killed, and what uses its block device, or its NBD clients, wait for the next one.
    waits_for_daemon: bool,
    /// Nothing if nobody runs the array.
    pid: Option<u32>,
    block_device: Option<String>,
    /// Where NBD clients connect, if they can.
    nbd: Option<String>,
    /// Of the volume that it carries, as its daemon tells.
    volume_size_bytes: Option<u64>,
    volume_used_bytes: Option<u64>,
    host: Owner,
    /// Whether it starts by itself where it belongs.
    autostart: bool,
    stage: Life,
}

#[derive(Clone, Serialize)]
struct Unseen {
    drive: String,
    error: String,
}

/// A daemon that does not answer.
#[derive(Clone, Serialize)]
struct Silent {
    socket: String,
    error: String,
    /// This user may not ask it.
    #[serde(skip)]
    is_denied: bool,
}

impl Silent {
    /// Those who have been asked so far.
    fn all() -> Vec<Silent> {
        let silent = client::silent().into_iter();
        silent
            .map(|(socket, Silence { why, is_denied })| Silent {
                socket: socket.display().to_string(),
                error: why,
                is_denied,
            })
            .collect()
    }
}

/// That there are no `things`, and where they are not; whoever could not look everywhere does not say so.
fn none_of(things: &str, dirs: &[PathBuf], blind: bool) -> String {
    let named =
        |dirs: &[PathBuf]| dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" or ");
    match dirs {
        _ if blind => format!("no {things} among what could be looked at\n"),
        [] => format!("no {things} in {}; to look elsewhere, name a directory\n", named(&places())),
        dirs => format!("no {things} in {}\n", named(dirs)),
    }
}

impl ArrayLine {
    fn new(seen: Seen) -> ArrayLine {
        let Seen { status, used_zones } = seen;
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
        // Of a volume all zones are used, sooner or later.
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

/// What is wrong with an array, in a word or two: where in its life it is, unless nobody can tell, or else how it is.
fn shaded_as(stage: Life, state: State) -> String {
    stage.shaded().filter(|_| state != State::Changing).unwrap_or_else(|| state.shaded())
}

/// The arrays that are called so.
fn named(output: Output, names: &[ArrayName]) -> Result<Vec<Seen>> {
    let seen = |name| match find_running(name)? {
        Some(mut client) => seen_by_daemon(output, &mut client),
        None => Ok(seen_on_drives(&Found::to_look(name)?)),
    };
    names.iter().map(seen).collect()
}

/// Says how all arrays are, or those with these names, a line each.
pub fn status(output: Output, names: &[ArrayName]) -> Result<u8> {
    let reactor = Reactor::default();
    let (seen, unseen) = match names {
        [] => {
            let running = client::running()?;
            let scans = Scan::everywhere(&reactor, PATIENCE_TO_LOOK)?;
            let unseen = unseen(&scans, &running);
            (arrays(output, &reactor, &scans, running), unseen)
        }
        names => (named(output, names)?, Vec::new()),
    };
    let arrays = seen.into_iter().map(ArrayLine::new).collect();
    let overview = Overview { arrays, unseen, silent: Silent::all() };
    output.print(&overview, |overview| {
        let heads =
            ["ARRAY", "LEVEL", "STATE", "SIZE", "USED", "MEMBERS", "ACTIVITY", "DEVICE", "HOST", "UUID"];
        let mut rows = vec![heads.map(String::from).to_vec()];
        rows.extend(overview.arrays.iter().map(ArrayLine::cells));
        let blind = !overview.unseen.is_empty() || !overview.silent.is_empty();
        let mut text = if rows.len() == 1 { none_of("arrays", &[], blind) } else { table(&rows) };
        for drive in &overview.unseen {
            text += &format!("not looked at: {} {}\n", drive.drive, drive.error);
        }
        text
    })?;
    let worst = overview.arrays.iter().map(|array| array.state).max().map_or(HEALTHY, State::code);
    // Nobody knows how theirs are, but where somebody who may not ask has looked at the drives.
    let is_known = |silent: &Silent| {
        let of_it = |array: &ArrayLine| silent.socket.ends_with(&format!("/{}.sock", array.uuid));
        silent.is_denied && overview.arrays.iter().any(of_it)
    };
    let is_blind = overview.silent.iter().any(|silent| !is_known(silent));
    Ok(if worst == HEALTHY && is_blind { FAILED } else { worst })
}

/// The drives that nobody could look at; those that daemons hold are seen by these.
fn unseen(scans: &[Scan], running: &[Client]) -> Vec<Unseen> {
    let held =
        |path: &Path| running.iter().any(|c| c.about.drives.iter().any(|drive| same_file(drive, path)));
    let mut unseen = Vec::new();
    for scan in scans {
        let silent = scan.drives.iter().filter_map(|drive| match &drive.content {
            Content::Other(what) => Some((drive.path.clone(), what.clone())),
            Content::Blank | Content::Member(_) => None,
        });
        let all = scan.damaged.iter().cloned().chain(silent).filter(|(path, _)| !held(path));
        unseen.extend(all.map(|(path, error)| {
            // It may become something just now.
            let user = drive::user(&path).map(|user| format!("; it is in use by {user}")).unwrap_or_default();
            Unseen { drive: shown(&path), error: error + &user }
        }));
    }
    unseen
}

/// A path in the current directory without the dot before it.
fn shown(path: &Path) -> String {
    path.strip_prefix("./").unwrap_or(path).display().to_string()
}

#[derive(Serialize)]
struct Listed {
    arrays: Vec<ListedArray>,
    blank: Vec<Blank>,
    /// Drives that could not be looked at, or hold something else.
    unseen: Vec<Unseen>,
    /// Daemons that do not say how their arrays are.
    silent: Vec<Silent>,
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
    /// Zones of a drive that are used as one.
    aggregate: u32,
    /// Whether somebody changes it all the time, so that what is said of it is of different moments.
    changing: bool,
    /// What the array runs as, if it does.
    block_device: Option<String>,
    host: Owner,
    /// Whether it starts by itself where it belongs.
    autostart: bool,
    stage: Life,
    drives: Vec<ListedMember>,
}

#[derive(Serialize)]
struct ListedMember {
    /// Empty if it is gone.
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
    // In a directory, arrays that run on drives elsewhere are none of its business.
    let drives = || scans.iter().flat_map(|scan| &scan.drives);
    let here = |client: &Client| {
        let lies_here = |drive: &PathBuf| drives().any(|other| same_file(drive, &other.path));
        dirs.is_empty() || client.about.drives.iter().any(lies_here)
    };
    let seen = arrays(output, &reactor, &scans, running.into_iter().filter(here).collect());
    let stale = |uuid: &str| {
        let of_array = scans
            .iter()
            .flat_map(|scan| &scan.drives)
            .filter(|drive| drive.label().is_some_and(|label| self::uuid(&label.uuid) == uuid));
        of_array.collect::<Vec<_>>()
    };
    let blank = scans.iter().flat_map(|scan| &scan.drives).filter(|drive| drive.content == Content::Blank);
    let listed = Listed {
        arrays: seen
            .into_iter()
            .map(|seen| ListedArray::new(&seen.status, &stale(&seen.status.uuid)))
            .collect(),
        blank: blank.map(Blank::new).collect(),
        unseen,
        silent: Silent::all(),
    };
    output.print(&listed, |listed| match listed_text(listed) {
        text if text.is_empty() => none_of("drives", dirs, !listed.silent.is_empty()),
        text => text,
    })?;
    Ok(HEALTHY)
}

impl Blank {
    fn new(drive: &OpenDrive) -> Blank {
        let Plate { model, serial } = drive::plate(&drive.path);
        Blank { drive: shown(&drive.path), size_bytes: drive.size_bytes(), model, serial }
    }
}

impl ListedArray {
    /// `labelled` are drives that say they are of the array, of which some may be done without.
    fn new(status: &Status, labelled: &[&OpenDrive]) -> ListedArray {
        let there: Vec<&StatusMember> = status.members.iter().filter(|m| !m.drive.is_empty()).collect();
        // Those that are gone, too, so that somebody can find them.
        let mut drives: Vec<ListedMember> = status.members.iter().map(ListedMember::of).collect();
        for drive in labelled {
            // A path that is no text is only found as it was printed.
            let printed = drive.path.display().to_string();
            let is_it = |member: &&StatusMember| {
                member.drive == printed || same_file(Path::new(&member.drive), &drive.path)
            };
            let used = there.iter().any(is_it);
            if let Some(label) = drive.label().filter(|_| !used) {
                // Nothing tells it from the one that is there.
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

fn listed_text(listed: &Listed) -> String {
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
