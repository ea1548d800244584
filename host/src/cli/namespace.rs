//! `namespace`: tenants of an array that this process runs for as long as the command takes, or that its daemon runs.
//!
//! The first namespace divides an empty array among tenants, and the removal of the last one leaves it empty: in
//! between its zones belong to the namespaces, and commands for zones take ARRAY/NAME.

use super::{
    args::{CreateNamespace, Namespace, QosOptions},
    daemon::ask,
};
use crate::{
    client::{self, Client},
    clock::clock,
    members::{self, Found, Session},
    name::{ArrayName, NamespaceName},
    output::{self, HEALTHY, Output, quoted, table},
    protocol::Request,
    report::{Division, NamespaceReport, RatesReport, Status, latency_words},
    size::{bytes, show, show_blocks},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::{
    device::{Geometry, ZonedDevice},
    vzone::{Behaviour, Layout, Namespaces, PATIENCE_US, Qos, Rates, Spec, VzoneError},
};
use serde::Serialize;
use std::rc::Rc;

/// Zones of a namespace that may be active at once, if nobody says anything else.
const ACTIVE: u32 = 4;

pub fn run(output: Output, verb: Namespace) -> Result<u8> {
    match verb {
        Namespace::Create(options) => create(output, &options),
        Namespace::List { array } => list(output, &array),
        Namespace::Resize { namespace, size } => resize(output, &namespace, size),
        Namespace::Set { namespace, qos } => set(output, &namespace, &qos),
        Namespace::Remove { namespace, yes } => remove(output, &namespace, yes),
    }?;
    Ok(HEALTHY)
}

/// A namespace, as commands show it.
#[derive(Serialize)]
struct Shown {
    name: String,
    zones: u32,
    capacity_bytes: u64,
    weight: u32,
    /// Zones that may be active at once.
    active: u32,
    /// Zones of the array that each of these has for certain.
    width: u32,
    limits: RatesReport,
    floors: RatesReport,
    latency_us: Option<u32>,
}

impl Shown {
    fn new(spec: &Spec, zone_capacity_blocks: u64) -> Shown {
        Shown {
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

    /// As a daemon says.
    fn reported(namespace: NamespaceReport) -> Shown {
        let NamespaceReport { name, zones, capacity_bytes, weight, active, width, .. } = namespace;
        let NamespaceReport { limits, floors, latency_us, .. } = namespace;
        Shown { name, zones, capacity_bytes, weight, active, width, limits, floors, latency_us }
    }
}

/// Namespaces that run on an array, in this process.
struct Divided {
    session: Session,
    namespaces: Namespaces,
    /// What the user called the array.
    called: ArrayName,
}

impl Divided {
    fn open(session: Session, called: &ArrayName) -> Result<Divided> {
        let behaviour = Behaviour { clock: clock(), patience_us: PATIENCE_US };
        let device = Rc::new(session.array.clone());
        let opened = session.wait(Namespaces::open(session.reactor.runtime(), device, behaviour))?;
        let namespaces = opened.map_err(|error| anyhow!("'{called}': {error}"))?;
        Ok(Divided { session, namespaces, called: called.clone() })
    }

    /// Of an array that has namespaces.
    fn existing(called: &ArrayName) -> Result<Divided> {
        let session = stopped(called)?;
        ensure!(is_divided(&session)?, "'{called}' has no namespaces");
        Divided::open(session, called)
    }

    /// What is wrong, in the words of this program.
    fn explain(&self, error: VzoneError, name: &str) -> anyhow::Error {
        let array = &self.called;
        match error {
            VzoneError::Full { left } => {
                let capacity = self.zone_blocks();
                anyhow!("'{array}' has room for {left} more zones, {}", show_blocks(left * capacity))
            }
            VzoneError::Floors { left } => anyhow!(
                "--active times --width zones of '{array}' would be active for certain, and of those {left} are left"
            ),
            VzoneError::Taken => anyhow!("'{array}' has a namespace '{name}' already"),
            VzoneError::Unknown => {
                let names: Vec<String> =
                    self.namespaces.list().iter().map(|namespace| quoted(namespace.name())).collect();
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                anyhow!("'{array}' has no namespace '{name}'; there are {there}")
            }
            VzoneError::Holds { zone } => {
                anyhow!("zone {zone} of {array}/{name} is written, and would be lost; reset it first")
            }
            error => anyhow!("{array}/{name}: {error}"),
        }
    }

    /// Blocks that a zone of a namespace holds.
    fn zone_blocks(&self) -> u64 {
        self.namespaces.zone_capacity_blocks()
    }

    /// How many zones hold so many blocks.
    fn zones_for(&self, blocks: u64) -> Result<u32> {
        let zones = blocks.div_ceil(self.zone_blocks().max(1));
        u32::try_from(zones).map_err(|_| anyhow!("there are no namespaces of {}", show_blocks(blocks)))
    }
}

/// The array that the user calls so, which has to be stopped: namespaces of one that runs are its daemon's.
fn stopped(called: &ArrayName) -> Result<Session> {
    if let Some(client) = client::find(called)? {
        let name = &client.about.name;
        bail!("'{name}' runs; stop it before its namespaces are changed: zoneraid stop {}", quoted(name));
    }
    members::assembled(called)
}

/// Whether the zones of an array belong to namespaces.
fn is_divided(session: &Session) -> Result<bool> {
    Ok(session.wait(Namespaces::are_on(Rc::new(session.array.clone())))??)
}

/// The array that the user calls so, or the namespace ARRAY/NAME, run by this process.
pub fn session(name: &ArrayName) -> Result<Session> {
    if let Some(session) = meant_by(name)? {
        return Ok(session);
    }
    let session = members::assembled(name)?;
    ensure!(!is_divided(&session)?, "the zones of '{name}' belong to its namespaces; say {name}/NAME");
    Ok(session)
}

/// The namespace that the user calls so, run by this process; nothing if it can only be an array.
pub fn meant_by(name: &ArrayName) -> Result<Option<Session>> {
    let text = name.to_string();
    let Some(wanted) = NamespaceName::new(&text).filter(|_| !name.path().exists()) else { return Ok(None) };
    if !wanted.array.is_path() && !wanted.array.is_word() {
        return Ok(None);
    }
    if let Some(client) = client::find(&wanted.array)? {
        let there = client.about.namespaces.iter().find(|shown| shown.name == wanted.name);
        let shown = there
            .with_context(|| format!("'{}' runs, and has no namespace '{}'", wanted.array, wanted.name))?;
        let device = shown.link.as_ref().unwrap_or(&shown.block_device);
        bail!("'{}' runs; use the block device of {wanted}, {}", client.about.name, device.display());
    }
    let divided = Divided::existing(&wanted.array)?;
    let found = divided.namespaces.list().into_iter().find(|namespace| namespace.name() == wanted.name);
    let namespace = found.ok_or_else(|| divided.explain(VzoneError::Unknown, &wanted.name))?;
    Ok(Some(Session { device: Rc::new(namespace), ..divided.session }))
}

#[derive(Serialize)]
struct Changed {
    array: String,
    zone_capacity_bytes: u64,
    #[serde(flatten)]
    namespace: Shown,
}

impl Changed {
    fn of(divided: &Divided, spec: &Spec) -> Changed {
        let capacity = divided.zone_blocks();
        Changed {
            array: divided.session.array.status().name,
            zone_capacity_bytes: bytes(capacity),
            namespace: Shown::new(spec, capacity),
        }
    }

    /// `called` is the array, as the user said.
    fn print(&self, called: &ArrayName, what: &str, output: Output) -> Result<()> {
        output.print(self, |Changed { zone_capacity_bytes, namespace, .. }| {
            let Shown { name, zones, capacity_bytes, .. } = namespace;
            let (size, of) = (show(*capacity_bytes), show(*zone_capacity_bytes));
            format!("{called}/{name} {what}: {size}, {zones} zones of {of}\n")
        })
    }
}

fn create(output: Output, options: &CreateNamespace) -> Result<()> {
    let NamespaceName { array, name } = &options.namespace;
    let session = stopped(array)?;
    let device: Rc<dyn ZonedDevice> = Rc::new(session.array.clone());
    let new = !is_divided(&session)?;
    if new {
        divide(&session, array, device.clone())?;
    }
    let divided = Divided::open(session, array)?;
    let added = add(&divided, options, name);
    let spec = match added {
        Ok(spec) => spec,
        Err(error) => {
            // An array without namespaces stays one.
            if new {
                dissolve(divided)?;
            }
            return Err(error);
        }
    };
    Changed::of(&divided, &spec).print(array, "is there", output)
}

/// Makes an empty array one of namespaces.
fn divide(session: &Session, array: &ArrayName, device: Rc<dyn ZonedDevice>) -> Result<()> {
    let vzone_zones = Namespaces::fitting(device.geometry());
    let made = session.wait(Namespaces::create(device, output::new_uuid()?, vzone_zones))?;
    match made {
        Err(VzoneError::NotEmpty) => {
            bail!("'{array}' holds data; namespaces are made on an array whose zones are all empty")
        }
        Err(VzoneError::TooSmall) => {
            let Geometry { zones, max_active, .. } = *session.array.geometry();
            bail!("'{array}' has {zones} zones, {max_active} of which may be active: too few for namespaces")
        }
        made => made.map_err(|error| anyhow!("'{array}': {error}")),
    }
}

fn add(divided: &Divided, options: &CreateNamespace, name: &str) -> Result<Spec> {
    let zones = divided.zones_for(options.size)?;
    let active = options.active.unwrap_or(ACTIVE.min(zones));
    ensure!(active <= zones, "of {zones} zones no {active} can be active");
    ensure!((1..=1000).contains(&options.weight), "a weight is 1 to 1000, not {}", options.weight);
    ensure!(options.width.is_power_of_two(), "--width is a power of two, not {}", options.width);
    let most = divided.namespaces.vzone_zones();
    ensure!(options.width <= most, "--width is at most {most} there, as many zones as one is made of");
    let spec = Spec {
        name: name.into(),
        zones,
        max_active: active,
        max_open: active,
        essential: options.width,
        weight: options.weight,
        qos: qos_of(&options.qos)?,
    };
    let added = divided.session.wait(divided.namespaces.add(spec.clone()))?;
    added.map_err(|error| divided.explain(error, name))?;
    Ok(spec)
}

/// Makes the array an empty one again.
fn dissolve(divided: Divided) -> Result<()> {
    let Divided { session, namespaces, .. } = divided;
    session.wait(namespaces.close())?;
    session.wait(Namespaces::dissolve(Rc::new(session.array.clone())))??;
    Ok(())
}

#[derive(Serialize)]
struct Listed {
    array: String,
    /// Zones of namespaces that there is room for, and those that nobody has.
    zones: u64,
    free_zones: u64,
    zone_capacity_bytes: u64,
    namespaces: Vec<ListedNamespace>,
}

#[derive(Serialize)]
struct ListedNamespace {
    #[serde(flatten)]
    shown: Shown,
    written_bytes: u64,
}

impl Listed {
    /// As the daemon of the array says, if it knows of namespaces.
    fn asked(output: Output, mut client: Client) -> Result<Option<Listed>> {
        let status: Status = ask(output, &mut client, &Request::Status)?;
        let Some(division) = status.namespaces else { return Ok(None) };
        let Division { zones, free_zones, zone_capacity_bytes, list } = division;
        let namespaces = list.into_iter().map(|namespace| {
            let written_bytes = namespace.written_bytes;
            ListedNamespace { shown: Shown::reported(namespace), written_bytes }
        });
        let namespaces = namespaces.collect();
        Ok(Some(Listed { array: status.name, zones, free_zones, zone_capacity_bytes, namespaces }))
    }

    /// As the drives say, which are only read.
    fn looked(array: &ArrayName) -> Result<Listed> {
        let session = Found::to_read(array)?.read_only()?;
        ensure!(is_divided(&session)?, "'{array}' has no namespaces");
        let looked = session.wait(Namespaces::look(Rc::new(session.array.clone())))?;
        let Layout { zones, zone_capacity_blocks, namespaces } =
            looked.map_err(|error| anyhow!("'{array}': {error}"))?;
        let given: u64 = namespaces.iter().map(|(spec, _)| spec.zones as u64).sum();
        let listed = |(spec, written): &(Spec, u64)| ListedNamespace {
            shown: Shown::new(spec, zone_capacity_blocks),
            written_bytes: bytes(*written),
        };
        Ok(Listed {
            array: session.array.status().name,
            zones,
            free_zones: zones.saturating_sub(given),
            zone_capacity_bytes: bytes(zone_capacity_blocks),
            namespaces: namespaces.iter().map(listed).collect(),
        })
    }
}

fn list(output: Output, array: &ArrayName) -> Result<()> {
    let asked = client::find(array)?.map(|client| Listed::asked(output, client)).transpose()?;
    let listed = asked.flatten().map_or_else(|| Listed::looked(array), Ok)?;
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
        let Listed { free_zones, zone_capacity_bytes, .. } = *listed;
        let (of, free) = (show(zone_capacity_bytes), show(free_zones.saturating_mul(zone_capacity_bytes)));
        table(&rows) + &format!("room for {free_zones} more zones of {of}, {free}\n")
    })
}

fn resize(output: Output, wanted: &NamespaceName, size: u64) -> Result<()> {
    let divided = Divided::existing(&wanted.array)?;
    let zones = divided.zones_for(size)?;
    let resized = divided.session.wait(divided.namespaces.resize(&wanted.name, zones))?;
    let namespace = resized.map_err(|error| divided.explain(error, &wanted.name))?;
    Changed::of(&divided, &namespace.status().spec).print(&wanted.array, "has another size", output)
}

/// What was typed, as the engine takes it.
fn qos_of(typed: &QosOptions) -> Result<Qos> {
    let rates = |requests: Option<u32>, blocks: Option<u64>| {
        let blocks = blocks.unwrap_or(0);
        let few =
            u32::try_from(blocks).map_err(|_| anyhow!("nothing reads {} a second", show_blocks(blocks)))?;
        anyhow::Ok(Rates { requests: requests.unwrap_or(0), blocks: few })
    };
    Ok(Qos {
        limits: rates(typed.iops, typed.bandwidth)?,
        floors: rates(typed.floor_iops, typed.floor_bandwidth)?,
        latency_us: typed.latency.unwrap_or(0),
    })
}

/// What a namespace may be asked for and gets from now on, in words.
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
        us => format!(", answers within {us} us if others can see to that"),
    };
    limited + &floors + &latency
}

fn set(output: Output, wanted: &NamespaceName, typed: &QosOptions) -> Result<()> {
    let qos = qos_of(typed)?;
    let changed = match client::find(&wanted.array)? {
        Some(client) => set_running(output, client, wanted, qos)?,
        None => {
            let divided = Divided::existing(&wanted.array)?;
            let set = divided.session.wait(divided.namespaces.set_qos(&wanted.name, qos))?;
            let namespace = set.map_err(|error| divided.explain(error, &wanted.name))?;
            Changed::of(&divided, &namespace.status().spec)
        }
    };
    changed.print(&wanted.array, &qos_words(qos), output)
}

/// Has the daemon of the array change what one of its namespaces may be asked for, and gets.
fn set_running(output: Output, mut client: Client, wanted: &NamespaceName, qos: Qos) -> Result<Changed> {
    let array = client.about.name.clone();
    let pair = |Rates { requests, blocks }| [requests, blocks];
    let request = Request::Qos {
        namespace: wanted.name.clone(),
        limits: pair(qos.limits),
        floors: pair(qos.floors),
        latency_us: qos.latency_us,
    };
    let Division { zone_capacity_bytes, list, .. } = ask(output, &mut client, &request)?;
    let set = list.into_iter().find(|namespace| namespace.name == wanted.name);
    let gone = || format!("'{array}' has no namespace '{}' any more", wanted.name);
    let namespace = Shown::reported(set.with_context(gone)?);
    Ok(Changed { array, zone_capacity_bytes, namespace })
}

#[derive(Serialize)]
struct Removed {
    array: String,
    name: String,
    /// Whether it was the last one: the array is empty.
    array_empty: bool,
}

fn remove(output: Output, wanted: &NamespaceName, yes: bool) -> Result<()> {
    let divided = Divided::existing(&wanted.array)?;
    let there = divided.namespaces.list().iter().any(|namespace| namespace.name() == wanted.name);
    ensure!(yes || !there, "this destroys {wanted} and what is in it; --yes does it");
    let removed = divided.session.wait(divided.namespaces.remove(&wanted.name))?;
    removed.map_err(|error| divided.explain(error, &wanted.name))?;
    let removed = Removed {
        array: divided.session.array.status().name,
        name: wanted.name.clone(),
        array_empty: divided.namespaces.list().is_empty(),
    };
    if removed.array_empty {
        dissolve(divided)?;
    }
    output.print(&removed, |removed| {
        let last = if removed.array_empty { format!("; '{}' is empty", wanted.array) } else { String::new() };
        format!("{wanted} is gone{last}\n")
    })
}
