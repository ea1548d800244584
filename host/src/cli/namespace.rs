//! `namespace`: namespaces of an array that this process runs for the duration of the command, or that its daemon runs.
//!
//! The first namespace divides an empty array, and the removal of the last one leaves it empty. As long as it is
//! divided its zones belong to the namespaces, and commands for zones take ARRAY/NAME.

use super::{
    args::{self, CreateNamespace, QosOptions},
    daemon::ask,
    interrupt,
};
use crate::{
    control::{
        client::Client,
        name::{ArrayName, NamespaceName},
        protocol::Request,
        tenants::{self, NewNamespace, Tenants},
    },
    members::{self, FoundArray, Session, find_running},
    process::{
        output::{self, HEALTHY, Output, quoted, table},
        size::{bytes, show, show_blocks},
    },
    report::{Division, NamespaceReport, RatesReport, Status, is_there, latency_words},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::{
    adapt::overlay::Overlay,
    device::{Geometry, ZonedDevice},
    qos::{Qos, Rates},
    vzone::{Namespace, NamespaceLayout, Namespaces, Spec, VzoneError},
};
use serde::Serialize;
use std::rc::Rc;

pub fn run(output: Output, verb: args::NamespaceCommand) -> Result<u8> {
    match verb {
        args::NamespaceCommand::Create(options) => create(output, &options),
        args::NamespaceCommand::List { array } => list(output, &array),
        args::NamespaceCommand::Resize { namespace, size } => resize(output, &namespace, size),
        args::NamespaceCommand::Set { namespace, qos } => set(output, &namespace, &qos),
        args::NamespaceCommand::Remove { namespace, yes } => remove(output, &namespace, yes),
    }?;
    Ok(HEALTHY)
}

/// A namespace in the output of commands.
#[derive(Serialize)]
struct NamespaceOutput {
    name: String,
    zones: u32,
    capacity_bytes: u64,
    weight: u32,
    /// Zones that may be active at once.
    active: u32,
    /// Zones of the array guaranteed to each active zone.
    width: u32,
    limits: RatesReport,
    floors: RatesReport,
    latency_us: Option<u32>,
}

impl NamespaceOutput {
    fn new(spec: &Spec, zone_capacity_blocks: u64) -> NamespaceOutput {
        NamespaceOutput {
            name: spec.name.clone(),
            zones: spec.zones,
            capacity_bytes: bytes(spec.zones as u64 * zone_capacity_blocks),
            weight: spec.weight,
            active: spec.max_active,
            width: spec.essential,
            limits: RatesReport::of(spec.qos.limits),
            floors: RatesReport::of(spec.qos.floors),
            latency_us: Some(spec.qos.latency_us).filter(|us| *us > 0),
        }
    }

    /// From the report of a daemon.
    fn reported(namespace: NamespaceReport) -> NamespaceOutput {
        let NamespaceReport { name, zones, capacity_bytes, weight, active, width, .. } = namespace;
        let NamespaceReport { limits, floors, latency_us, .. } = namespace;
        NamespaceOutput { name, zones, capacity_bytes, weight, active, width, limits, floors, latency_us }
    }
}

/// The namespaces of an array that this process runs.
struct RunningNamespaces {
    session: Session,
    tenants: Tenants,
}

impl RunningNamespaces {
    fn open(session: Session, called: &ArrayName) -> Result<RunningNamespaces> {
        let device = Rc::new(session.array.clone());
        RunningNamespaces::over(device, session, called)
    }

    /// Opens the namespaces on `device`, which has the zones of the array.
    fn over(device: Rc<dyn ZonedDevice>, session: Session, called: &ArrayName) -> Result<RunningNamespaces> {
        let opened = Namespaces::open(session.reactor.runtime(), device, tenants::behaviour());
        let namespaces = session.wait(opened)?.map_err(|error| anyhow!("'{called}': {error}"))?;
        Ok(RunningNamespaces { session, tenants: Tenants { namespaces, array: called.to_string() } })
    }

    /// Opens the namespaces of an array that does not run.
    fn existing(called: &ArrayName) -> Result<RunningNamespaces> {
        let session = members::assembled(called)?;
        ensure!(is_divided(&session)?, "'{called}' has no namespaces");
        RunningNamespaces::open(session, called)
    }

    /// As [`RunningNamespaces::existing`], read-only: writes of opening namespaces stay in memory.
    fn to_read(found: &FoundArray, called: &ArrayName) -> Result<RunningNamespaces> {
        let session = found.read_only()?;
        ensure!(is_divided(&session)?, "'{called}' has no namespaces");
        let array = Rc::new(session.array.clone());
        let device = session.wait(Overlay::over(session.reactor.runtime(), array))?;
        RunningNamespaces::over(Rc::new(device), session, called)
    }

    /// The session with one of the namespaces as its device.
    fn session_of(self, name: &str) -> Result<Session> {
        let namespace = self.tenants.find(name)?;
        Ok(Session { device: Rc::new(namespace), ..self.session })
    }
}

/// Whether the zones of an array belong to namespaces.
pub fn is_divided(session: &Session) -> Result<bool> {
    let divided = session.wait(Namespaces::are_on(Rc::new(session.array.clone())))??;
    let status = session.array.status();
    is_there(divided, "namespaces", &status.name, &status)
}

/// Opens the array `name`, or the namespace ARRAY/NAME, in this process; with the name of the namespace if it is one.
pub fn session(name: &ArrayName) -> Result<(Session, Option<NamespaceName>)> {
    if let Some((session, below)) = meant_by(name)? {
        return Ok((session, Some(below)));
    }
    let session = members::assembled(name)?;
    ensure!(!is_divided(&session)?, "the zones of '{name}' belong to its namespaces: use {name}/NAME");
    Ok((session, None))
}

/// Opens the namespace `name` in this process; `None` if it can only be an array.
pub fn meant_by(name: &ArrayName) -> Result<Option<(Session, NamespaceName)>> {
    let Some(below) = called(name)? else { return Ok(None) };
    Ok(Some((opened(&below)?, below)))
}

/// Opens the namespace `below` of an array that does not run, for a volume of `blocks` blocks, and adds it if it does not
/// exist: then with the namespaces, for its removal if there will be no volume.
pub fn session_for_volume(below: &NamespaceName, blocks: u64) -> Result<(Session, Option<Tenants>)> {
    let NamespaceName { array, name } = below;
    if let Some(client) = find_running(array)? {
        let called = &client.about.name;
        bail!(
            "'{called}' runs, and the volume that has all of a namespace can be created only while it does not run: stop it \
             first with zoneraid stop {}",
            quoted(called)
        );
    }
    let divided = RunningNamespaces::existing(array)?;
    let names = divided.tenants.namespaces.list();
    if names.iter().any(|namespace| namespace.name() == name) {
        return Ok((divided.session_of(name)?, None));
    }
    let wanted = divided.tenants.for_volume(name, blocks)?;
    let again = quoted(&below.to_string());
    interrupt::explain(move || {
        format!(
            "the namespace may be there, with an incomplete volume or without one: run the same command again, zoneraid \
             volume create {again} --size SIZE"
        )
    });
    let RunningNamespaces { session, tenants } = divided;
    let namespace = session.wait(tenants.add(&wanted))??;
    Ok((Session { device: Rc::new(namespace), ..session }, Some(tenants)))
}

/// Opens a namespace of an array that does not run.
pub fn opened(below: &NamespaceName) -> Result<Session> {
    RunningNamespaces::existing(&below.array)?.session_of(&below.name)
}

/// Closes an array that the caller opens again: tasks hold its drives.
pub fn release(session: Session) {
    let reactor = session.reactor.clone();
    drop(session);
    reactor.runtime().clear();
}

/// Name of the array or namespace in the output.
pub fn name_of(session: &Session, below: Option<&NamespaceName>) -> String {
    below.map_or_else(|| session.array.status().name, NamespaceName::to_string)
}

/// As [`meant_by`], read-only, with the array below: nothing is written to the drives or locked.
pub fn to_read(name: &ArrayName) -> Result<Option<(Session, FoundArray)>> {
    let Some(NamespaceName { array, name }) = called(name)? else { return Ok(None) };
    let found = FoundArray::to_read(&array)?;
    let session = RunningNamespaces::to_read(&found, &array)?.session_of(&name)?;
    Ok(Some((session, found)))
}

/// The name of a namespace, if `name` is one; it is an error if its array runs.
fn called(name: &ArrayName) -> Result<Option<NamespaceName>> {
    let Some(wanted) = NamespaceName::meant_by(name) else { return Ok(None) };
    if let Some(client) = find_running(&wanted.array)? {
        let there = client.about.namespaces.iter().find(|shown| shown.name == wanted.name);
        let shown = there
            .with_context(|| format!("'{}' runs, and has no namespace '{}'", wanted.array, wanted.name))?;
        let device = shown.link.as_ref().unwrap_or(&shown.block_device);
        bail!(
            "'{}' runs; use the block device of {wanted}, {}, or zoneraid stop {} first",
            client.about.name,
            device.display(),
            quoted(&client.about.name)
        );
    }
    Ok(Some(wanted))
}

#[derive(Serialize)]
struct NamespaceChangeOutput {
    array: String,
    zone_capacity_bytes: u64,
    #[serde(flatten)]
    namespace: NamespaceOutput,
}

impl NamespaceChangeOutput {
    fn of(divided: &RunningNamespaces, namespace: &Namespace) -> NamespaceChangeOutput {
        let capacity = divided.tenants.namespaces.zone_capacity_blocks();
        NamespaceChangeOutput {
            array: divided.session.array.status().name,
            zone_capacity_bytes: bytes(capacity),
            namespace: NamespaceOutput::new(&namespace.status().spec, capacity),
        }
    }

    /// Sends a request about a namespace to the daemon of the array, and returns the result.
    fn asked(
        output: Output,
        mut client: Client,
        name: &str,
        request: &Request,
    ) -> Result<NamespaceChangeOutput> {
        let array = client.about.name.clone();
        let Division { zone_capacity_bytes, list, .. } = ask(output, &mut client, request)?;
        let changed = list.into_iter().find(|namespace| namespace.name == name);
        let gone = || format!("'{array}' has no namespace '{name}' any more");
        let namespace = NamespaceOutput::reported(changed.with_context(gone)?);
        Ok(NamespaceChangeOutput { array, zone_capacity_bytes, namespace })
    }

    /// `called` is the array as the user named it.
    fn print(&self, called: &ArrayName, what: &str, output: Output) -> Result<()> {
        output.print(self, |NamespaceChangeOutput { zone_capacity_bytes, namespace, .. }| {
            let NamespaceOutput { name, zones, capacity_bytes, .. } = namespace;
            let (size, of) = (show(*capacity_bytes), show(*zone_capacity_bytes));
            format!("{called}/{name} {what}: {size}, {zones} zones of {of}\n")
        })
    }
}

fn create(output: Output, options: &CreateNamespace) -> Result<()> {
    let NamespaceName { array, name } = &options.namespace;
    let wanted = NewNamespace {
        name: name.clone(),
        blocks: options.size,
        active: options.active,
        width: options.width,
        weight: options.weight,
        qos: qos_of(&options.qos)?.into(),
    };
    let changed = match find_running(array)? {
        Some(client) => {
            NamespaceChangeOutput::asked(output, client, name, &Request::CreateNamespace(wanted))?
        }
        None => add(array, &wanted)?,
    };
    changed.print(array, "is created", output)
}

/// Adds a namespace to an array that does not run.
fn add(array: &ArrayName, wanted: &NewNamespace) -> Result<NamespaceChangeOutput> {
    let session = members::assembled(array)?;
    let device: Rc<dyn ZonedDevice> = Rc::new(session.array.clone());
    let new = !is_divided(&session)?;
    if new {
        divide(&session, array, device.clone())?;
    }
    let divided = RunningNamespaces::open(session, array)?;
    match divided.session.wait(divided.tenants.add(wanted))? {
        Ok(namespace) => Ok(NamespaceChangeOutput::of(&divided, &namespace)),
        Err(error) => {
            // An array that had no namespaces must not be left divided.
            if new {
                let without = error.to_string();
                dissolve(divided).with_context(|| {
                    format!(
                        "{without}; '{array}' is divided without namespaces: its zones cannot be released"
                    )
                })?;
            }
            Err(error)
        }
    }
}

/// Prepares an empty array for namespaces; it has none yet.
fn divide(session: &Session, array: &ArrayName, device: Rc<dyn ZonedDevice>) -> Result<()> {
    let vzone_zones = Namespaces::fitting(device.geometry());
    let made = session.wait(Namespaces::create(device, output::new_uuid()?, vzone_zones))?;
    match made {
        Err(VzoneError::NotEmpty) => {
            bail!("'{array}' holds data; the first namespace needs an array whose zones are all empty")
        }
        Err(VzoneError::TooSmall) => {
            let Geometry { zones, max_active, .. } = *session.array.geometry();
            bail!("'{array}' has {zones} zones, {max_active} of which may be active: too few for namespaces")
        }
        made => made.map_err(|error| anyhow!("'{array}': {error}")),
    }
}

/// Reverts [`divide`]: the array is empty again.
fn dissolve(divided: RunningNamespaces) -> Result<()> {
    let RunningNamespaces { session, tenants } = divided;
    session.wait(tenants.namespaces.close())?;
    session.wait(Namespaces::dissolve(Rc::new(session.array.clone())))??;
    Ok(())
}

#[derive(Serialize)]
struct NamespaceListOutput {
    array: String,
    /// Zones of namespaces that the array has room for, and how many of them are free.
    zones: u64,
    free_zones: u64,
    zone_capacity_bytes: u64,
    namespaces: Vec<ListedNamespace>,
}

#[derive(Serialize)]
struct ListedNamespace {
    #[serde(flatten)]
    shown: NamespaceOutput,
    written_bytes: u64,
}

impl NamespaceListOutput {
    /// Asks the daemon; `None` if the array is not divided.
    fn asked(output: Output, mut client: Client) -> Result<Option<NamespaceListOutput>> {
        let status: Status = ask(output, &mut client, &Request::Status)?;
        let Some(division) = status.namespaces else { return Ok(None) };
        let Division { zones, free_zones, zone_capacity_bytes, list } = division;
        let namespaces = list.into_iter().map(|namespace| {
            let written_bytes = namespace.written_bytes;
            ListedNamespace { shown: NamespaceOutput::reported(namespace), written_bytes }
        });
        let namespaces = namespaces.collect();
        Ok(Some(NamespaceListOutput {
            array: status.name,
            zones,
            free_zones,
            zone_capacity_bytes,
            namespaces,
        }))
    }

    /// Reads the drives.
    fn looked(array: &ArrayName) -> Result<NamespaceListOutput> {
        let session = FoundArray::to_read(array)?.read_only()?;
        ensure!(is_divided(&session)?, "'{array}' has no namespaces");
        let looked = session.wait(Namespaces::look(Rc::new(session.array.clone())))?;
        let NamespaceLayout { zones, zone_capacity_blocks, namespaces } =
            looked.map_err(|error| anyhow!("'{array}': {error}"))?;
        let given: u64 = namespaces.iter().map(|(spec, _)| spec.zones as u64).sum();
        let listed = |(spec, written): &(Spec, u64)| ListedNamespace {
            shown: NamespaceOutput::new(spec, zone_capacity_blocks),
            written_bytes: bytes(*written),
        };
        Ok(NamespaceListOutput {
            array: session.array.status().name,
            zones,
            free_zones: zones.saturating_sub(given),
            zone_capacity_bytes: bytes(zone_capacity_blocks),
            namespaces: namespaces.iter().map(listed).collect(),
        })
    }
}

fn list(output: Output, array: &ArrayName) -> Result<()> {
    let asked = find_running(array)?.map(|client| NamespaceListOutput::asked(output, client)).transpose()?;
    let listed = asked.flatten().map_or_else(|| NamespaceListOutput::looked(array), Ok)?;
    output.print(&listed, |listed| {
        let head =
            ["NAME", "SIZE", "WRITTEN", "ZONES", "ACTIVE", "WIDTH", "WEIGHT", "LIMITS", "FLOORS", "LATENCY"];
        let mut rows = vec![head.map(String::from).to_vec()];
        rows.extend(listed.namespaces.iter().map(|ListedNamespace { shown, written_bytes }| {
            vec![
                shown.name.clone(),
                show(shown.capacity_bytes),
                show(*written_bytes),
                shown.zones.to_string(),
                shown.active.to_string(),
                shown.width.to_string(),
                shown.weight.to_string(),
                shown.limits.words(),
                shown.floors.words(),
                latency_words(shown.latency_us),
            ]
        }));
        let NamespaceListOutput { free_zones, zone_capacity_bytes, .. } = *listed;
        let (of, free) = (show(zone_capacity_bytes), show(free_zones.saturating_mul(zone_capacity_bytes)));
        table(&rows) + &format!("room for {free_zones} more zones of {of}, {free}\n")
    })
}

fn resize(output: Output, wanted: &NamespaceName, blocks: u64) -> Result<()> {
    let NamespaceName { array, name } = wanted;
    let changed = match find_running(array)? {
        Some(client) => {
            let request = Request::ResizeNamespace { namespace: name.clone(), blocks };
            NamespaceChangeOutput::asked(output, client, name, &request)?
        }
        None => {
            let divided = RunningNamespaces::existing(array)?;
            let tenants = &divided.tenants;
            let resized = async {
                let (namespace, zones) = tenants.resizable(name, blocks).await?;
                tenants.resize(&namespace, zones).await
            };
            let namespace = divided.session.wait(resized)??;
            NamespaceChangeOutput::of(&divided, &namespace)
        }
    };
    changed.print(array, "has been resized", output)
}

/// Converts the options of the command line.
fn qos_of(typed: &QosOptions) -> Result<Qos> {
    let rates = |requests: Option<u32>, blocks: Option<u64>| {
        let blocks = blocks.unwrap_or(0);
        let few = u32::try_from(blocks)
            .map_err(|_| anyhow!("a bandwidth is less than 16 TiB a second, not {}", show_blocks(blocks)))?;
        anyhow::Ok(Rates { requests: requests.unwrap_or(0), blocks: few })
    };
    Ok(Qos {
        limits: rates(typed.iops, typed.bandwidth)?,
        floors: rates(typed.floor_iops, typed.floor_bandwidth)?,
        latency_us: typed.latency.unwrap_or(0),
    })
}

/// Limits and floors in words.
fn qos_words(qos: Qos) -> String {
    let limited = match qos.limits.is_none() {
        true => "is not limited".into(),
        false => format!("is limited to {}", RatesReport::of(qos.limits).words()),
    };
    let floors = match qos.floors.is_none() {
        true => String::new(),
        false => format!(", gets at least {}", RatesReport::of(qos.floors).words()),
    };
    let latency = match qos.latency_us {
        0 => String::new(),
        us => format!(", has a latency target of {us} us"),
    };
    limited + &floors + &latency
}

fn set(output: Output, wanted: &NamespaceName, typed: &QosOptions) -> Result<()> {
    let qos = qos_of(typed)?;
    let NamespaceName { array, name } = wanted;
    let changed = match find_running(array)? {
        Some(client) => {
            let request = Request::Qos { namespace: name.clone(), qos: qos.into() };
            NamespaceChangeOutput::asked(output, client, name, &request)?
        }
        None => {
            let divided = RunningNamespaces::existing(array)?;
            let namespace = divided.session.wait(divided.tenants.set(name, qos))??;
            NamespaceChangeOutput::of(&divided, &namespace)
        }
    };
    changed.print(array, &qos_words(qos), output)
}

#[derive(Serialize)]
struct NamespaceRemoveOutput {
    array: String,
    name: String,
    /// Whether it was the last one, so that the array is empty now.
    array_empty: bool,
    /// Whether the array was divided but had no namespaces.
    #[serde(skip)]
    was_none: bool,
}

fn remove(output: Output, wanted: &NamespaceName, yes: bool) -> Result<()> {
    let NamespaceName { array, name } = wanted;
    let (array_name, array_empty, was_none) = match find_running(array)? {
        Some(mut client) => {
            let request = Request::RemoveNamespace { namespace: name.clone(), yes };
            let left: Division = ask(output, &mut client, &request)?;
            (client.about.name, left.list.is_empty(), false)
        }
        None => {
            let divided = RunningNamespaces::existing(array)?;
            // A command that was interrupted before the first namespace, or after the last one, leaves such an array.
            let was_none = divided.tenants.namespaces.list().is_empty();
            if !was_none {
                divided.tenants.doomed(name, yes)?;
                divided.session.wait(divided.tenants.remove(name))??;
            }
            let (called, empty) =
                (divided.session.array.status().name, divided.tenants.namespaces.list().is_empty());
            if empty {
                dissolve(divided)?;
            }
            (called, empty, was_none)
        }
    };
    let removed = NamespaceRemoveOutput { array: array_name, name: name.clone(), array_empty, was_none };
    output.print(&removed, |removed| {
        if removed.was_none {
            return format!("'{array}' had no namespaces: its empty division has been removed\n");
        }
        let last = if removed.array_empty { format!("; '{array}' is empty") } else { String::new() };
        format!("{wanted} has been removed{last}\n")
    })
}
