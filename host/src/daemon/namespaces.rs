//! Changes of the namespaces of a running array.

use super::{
    end, serve,
    state::{Daemon, Phase, both},
    status,
};
use crate::{
    control::tenants::{NewNamespace, Tenants},
    process::output::quoted,
    report::Division,
};
use anyhow::{Context, Result, ensure};
use engine::qos::Qos;
use std::rc::Rc;

/// Changes limits and floors of a namespace.
pub(super) async fn set_qos(daemon: &Daemon, name: &str, qos: Qos) -> Result<Division> {
    tenants(daemon)?.set(name, qos).await?;
    divided_now(daemon)
}

/// Adds a namespace and its block device. The namespace is durable before that, and is removed if the block device
/// fails.
pub(super) async fn create_namespace(daemon: &Rc<Daemon>, wanted: &NewNamespace) -> Result<Division> {
    let _turn = daemon.administration.take().await;
    let tenants = tenants(daemon)?;
    let namespace = tenants.add(wanted).await?;
    if let Err(error) = serve::serve_namespace(daemon, namespace).await {
        let called = format!("{}/{}", tenants.array, wanted.name);
        let what = match tenants.remove(&wanted.name).await {
            Ok(()) => "is not created, since its block device failed".into(),
            Err(why) => {
                format!(
                    "is created, and gets its block device at the next start, since it cannot be removed ({why:#})"
                )
            }
        };
        return Err(error.context(format!("'{called}' {what}")));
    }
    divided_now(daemon)
}

/// Resizes a namespace. It gets a new block device, since the size of one cannot change.
pub(super) async fn resize_namespace(daemon: &Rc<Daemon>, name: &str, blocks: u64) -> Result<Division> {
    let _turn = daemon.administration.take().await;
    let tenants = tenants(daemon)?;
    let (namespace, zones) = tenants.resizable(name, blocks).await?;
    end::take_down_namespace(daemon, &namespace).await?;
    let resized = tenants.resize(&namespace, zones).await.map(drop);
    // The block device comes back in any case, after a failure with the old size.
    let shown = async { serve::serve_namespace(daemon, tenants.find(name)?).await }.await;
    let unshown = || format!("'{}/{name}' has no block device until the next start", tenants.array);
    both(resized, shown.with_context(unshown))?;
    divided_now(daemon)
}

/// Removes a namespace, other than the last one, after its block device.
pub(super) async fn remove_namespace(daemon: &Rc<Daemon>, name: &str, yes: bool) -> Result<Division> {
    let _turn = daemon.administration.take().await;
    let tenants = tenants(daemon)?;
    let doomed = tenants.doomed(name, yes)?;
    let array = &tenants.array;
    ensure!(
        tenants.namespaces.list().len() > 1,
        "'{name}' is the last namespace of '{array}', which is an empty array without it: stop the array \
         first with zoneraid stop {}",
        quoted(array)
    );
    end::take_down_namespace(daemon, &doomed).await?;
    if let Err(error) = tenants.remove(name).await {
        let shown = serve::serve_namespace(daemon, doomed).await;
        let shown = shown.context("it has no block device until the next start");
        both(Err(error), shown).with_context(|| format!("'{array}/{name}' is not removed"))?;
    }
    divided_now(daemon)
}

/// The namespaces, for a change.
fn tenants(daemon: &Daemon) -> Result<Tenants> {
    let array = daemon.array.status();
    ensure!(!array.read_only, "'{}' is read-only: stop it and start it without --read-only", array.name);
    ensure!(daemon.phase.get() == Phase::Running, "'{}' is being stopped", array.name);
    let namespaces = daemon.divided.borrow().clone();
    let name = array.name;
    let without = || {
        let stop = format!("zoneraid stop {}", quoted(&name));
        format!(
            "'{name}' has no namespaces, and the first one can be created only while it does not run: {stop}"
        )
    };
    Ok(Tenants { namespaces: namespaces.with_context(without)?, array: name.clone() })
}

fn divided_now(daemon: &Daemon) -> Result<Division> {
    status::division(daemon, &daemon.array.status().lost).context("there are no namespaces any more")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            block::Block,
            open,
            tests::{image, with_daemon},
        },
        *,
    };
    use crate::control::{qos::NewQos, tenants};
    use engine::{device::ZonedDevice, vzone::Namespaces};

    #[test]
    fn refused_namespace_size_keeps_block_device() {
        with_daemon(1, |dir, daemon| {
            let status = daemon.array.status();
            let asked = async {
                let array = Rc::new(daemon.array.clone());
                let fitting = Namespaces::fitting(array.geometry());
                Namespaces::create(array.clone(), [8; 16], fitting).await.unwrap();
                let opened = Namespaces::open(daemon.reactor.runtime(), array, tenants::behaviour());
                let tenants = Tenants { namespaces: opened.await.unwrap(), array: status.name.clone() };
                let (name, qos) = ("mail".into(), NewQos::default());
                let wanted = NewNamespace { name, blocks: 1, active: None, width: 1, weight: 100, qos };
                let namespace = tenants.add(&wanted).await.unwrap();
                *daemon.divided.borrow_mut() = Some(tenants.namespaces.clone());
                let ack_log = open::create_ack_log(daemon, &status, None, false).await.unwrap();
                let (path, used) = (image(dir, 0), (Some(namespace), None));
                let block = Rc::new(Block::new((path, None), used, (ack_log, Rc::default())));
                *block.stopped.borrow_mut() = Some(Ok(()));
                daemon.blocks.borrow_mut().push(block.clone());
                let most = NewNamespace { name: "logs".into(), blocks: u64::MAX, ..wanted };
                let refused = [
                    create_namespace(daemon, &most).await.err(),
                    resize_namespace(daemon, "mail", u64::MAX).await.err(),
                ];
                assert!(!block.stop.get(), "the block device is taken down");
                refused.map(|error| error.unwrap().to_string())
            };
            for refused in daemon.reactor.wait(asked).unwrap() {
                assert!(
                    refused.starts_with("a namespace of") && refused.ends_with("is too large"),
                    "{refused}"
                );
            }
        });
    }
}
