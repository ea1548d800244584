//! `volume`: a block device on an array.

use super::args::Volume as Verb;
use crate::{
    members,
    name::ArrayName,
    output::{HEALTHY, Output, new_uuid, quoted, uuid},
    report::bytes,
    size::show,
};
use anyhow::{Context, Result, ensure};
use engine::{
    device::ZonedDevice,
    volume::{Plan, Volume},
};
use serde::Serialize;
use std::rc::Rc;

#[derive(Serialize)]
struct Created {
    array: String,
    /// Of the volume.
    uuid: String,
    size_bytes: u64,
    /// How much of it may be used at once.
    usable_bytes: u64,
}

pub fn run(output: Output, verb: Verb) -> Result<u8> {
    match verb {
        Verb::Create { array, size } => create(output, &array, size),
    }
}

fn create(output: Output, name: &ArrayName, blocks: Option<u64>) -> Result<u8> {
    let session = members::assembled(name)?;
    let array: Rc<dyn ZonedDevice> = Rc::new(session.array.clone());
    let called = session.array.status().name;
    let problem = || format!("'{called}' gets no volume");
    let id = new_uuid()?;
    session.wait(Volume::create(array.clone(), id, blocks))?.with_context(problem)?;
    let plan = Plan::of(array.geometry(), blocks).with_context(problem)?;
    let created = Created {
        array: called,
        uuid: uuid(&id),
        size_bytes: bytes(plan.blocks),
        usable_bytes: bytes(plan.usable.min(plan.blocks)),
    };
    output.print(&created, |created| {
        let thin = match created.usable_bytes < created.size_bytes {
            true => format!(", of which {} may be used at once", show(created.usable_bytes)),
            false => String::new(),
        };
        let name = quoted(&name.to_string());
        format!(
            "'{}' carries a volume of {}{thin}; as a block device: zoneraid start {name}, for NBD clients: \
             zoneraid serve {name} --nbd SOCKET\n",
            created.array,
            show(created.size_bytes),
        )
    })?;
    Ok(HEALTHY)
}

/// Refuses to touch the zones of an array that carries a volume: they are the volume's own.
pub fn refuse_if_there(session: &members::Session) -> Result<()> {
    let name = session.array.status().name;
    let is_on = session.wait(Volume::is_on(session.device.clone()))?;
    ensure!(
        !is_on.unwrap_or(false),
        "'{name}' carries a volume, whose zones are its own; whoever does not want it any more makes the drives \
         blank: zoneraid destroy {}",
        quoted(&name)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_the_schema_says() {
        let created = Created { array: "tank".into(), uuid: String::new(), size_bytes: 0, usable_bytes: 0 };
        assert_eq!(crate::output::undescribed(&created, "volume-create.json"), [""; 0]);
    }
}
