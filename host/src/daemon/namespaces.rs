//! The namespaces of a running array: opened, scheduled, reported, changed, closed.

use super::{
    block::Block,
    state::{Daemon, Phase, both},
};
use crate::{
    control::{
        protocol::NamespaceDevice,
        tenants::{self, NewNamespace, Tenants},
    },
    process::{
        output::{quoted, uuid},
        run,
        size::bytes,
    },
    reactor::ring::Ring,
    report::{Division, NamespaceReport, VolumeReport, is_there},
    serve::ack_log::{AckLog, AckLogContents},
};
use anyhow::{Context, Result, ensure};
use engine::{
    array::ArrayStatus,
    device::{Command, ZonedDevice},
    vzone::{Namespace, Namespaces, Qos},
    zone::ZoneIndex,
};
use std::{rc::Rc, time::Duration};

/// Interval of scheduler ticks while namespaces are written to.
const TICK: Duration = Duration::from_millis(1);

/// Interval of scheduler ticks otherwise.
const IDLE_TICK: Duration = Duration::from_millis(20);

impl Daemon {
    /// Opens the namespaces of the array, if it is divided. The array's acknowledged ends are stored in `tails`.
    pub(super) async fn open_namespaces(
        &self,
        status: &ArrayStatus,
        tails: &Rc<AckLog>,
    ) -> Result<Option<Vec<Namespace>>> {
        let problem = || format!("the namespaces of '{}' cannot be opened", status.name);
        let divided = Namespaces::are_on(Rc::new(self.array.clone())).await.with_context(problem)?;
        if !is_there(divided, "namespaces", &status.name, status)? {
            return Ok(None);
        }
        assert!(
            self.divided.borrow().is_none(),
            "the namespaces of '{}' are opened a second time",
            status.name
        );
        let runtime = self.reactor.runtime();
        let device = self.noting(status, tails).await;
        let namespaces =
            Namespaces::open(runtime, device, tenants::behaviour()).await.with_context(problem)?;
        let list = namespaces.list();
        ensure!(
            !list.is_empty(),
            "'{}' has no namespaces: create one with zoneraid namespace create",
            status.name
        );
        runtime.spawn(tick_scheduler(namespaces.clone(), self.reactor.ring()?.clone()));
        *self.divided.borrow_mut() = Some(namespaces);
        Ok(Some(list))
    }

    /// Creates the tails file of a namespace. Returns the contents of the previous one if the block device of a dead
    /// process `waits` for its daemon.
    pub(super) async fn note_namespace(
        &self,
        namespace: &Namespace,
        waits: bool,
    ) -> Result<(Rc<AckLog>, Option<AckLogContents>)> {
        let array = self.array.status();
        let path = run::namespace_tails_path(&self.directory, &array.uuid, namespace.number());
        let left = if waits { AckLogContents::read(&path, &array.uuid)? } else { None };
        ensure!(
            !waits || left.is_some(),
            "the block device of '{}/{}' exists, but its acknowledgement log {} is missing: reboot",
            array.name,
            namespace.name(),
            path.display()
        );
        let report = Command::Report { first: ZoneIndex(0), count: namespace.geometry().zones };
        let done = namespace.submit(report).await;
        done.result?;
        let (shown, zones) = (done.zones.len(), namespace.geometry().zones);
        assert_eq!(shown, zones as usize, "zones in a report of a namespace, and zones of the namespace");
        let complete: Vec<u64> = done.zones.iter().map(|zone| zone.wp_blocks).collect();
        let appends = left.as_ref().map_or(&[][..], |left| &left.appends);
        let tails = AckLog::create(&path, &array.uuid, self.array.assembly(), &complete, appends, &[])?;
        Ok((Rc::new(tails), left))
    }

    /// Closes the namespaces cleanly, unless block devices are left to the next daemon.
    pub(super) async fn end_namespaces(&self) {
        if self.is_left() {
            return;
        }
        let divided = self.divided.take();
        if let Some(namespaces) = divided {
            namespaces.close().await;
        }
    }

    /// The block devices of namespaces.
    pub(super) fn namespace_devices(&self) -> Vec<NamespaceDevice> {
        let blocks = self.blocks.borrow();
        let array = self.array.status().uuid;
        let shown = |block: &Rc<Block>| {
            let namespace = block.namespace.as_ref()?;
            let (name, uuid) = (namespace.name().into(), uuid(&tenants::uuid_of(array, namespace.name())));
            Some(NamespaceDevice { name, uuid, block_device: block.path.clone(), link: block.link.clone() })
        };
        blocks.iter().filter_map(shown).collect()
    }

    /// Changes limits and floors of a namespace.
    pub(super) async fn set_qos(&self, name: &str, qos: Qos) -> Result<Division> {
        self.tenants()?.set(name, qos).await?;
        self.divided_now()
    }

    /// Adds a namespace and its block device. The namespace is durable before that, and is removed if the block device
    /// fails.
    pub(super) async fn create_namespace(self: &Rc<Self>, wanted: &NewNamespace) -> Result<Division> {
        let _turn = self.administration.take().await;
        let tenants = self.tenants()?;
        let namespace = tenants.add(wanted).await?;
        if let Err(error) = self.show_namespace(namespace).await {
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
        self.divided_now()
    }

    /// Resizes a namespace. It gets a new block device, since the size of one cannot change.
    pub(super) async fn resize_namespace(self: &Rc<Self>, name: &str, blocks: u64) -> Result<Division> {
        let _turn = self.administration.take().await;
        let tenants = self.tenants()?;
        let (namespace, zones) = tenants.resizable(name, blocks).await?;
        self.hide_namespace(&namespace).await?;
        let resized = tenants.resize(&namespace, zones).await.map(drop);
        // The block device comes back in any case, after a failure with the old size.
        let shown = async { self.show_namespace(tenants.find(name)?).await }.await;
        let unshown = || format!("'{}/{name}' has no block device until the next start", tenants.array);
        both(resized, shown.with_context(unshown))?;
        self.divided_now()
    }

    /// Removes a namespace, other than the last one, after its block device.
    pub(super) async fn remove_namespace(self: &Rc<Self>, name: &str, yes: bool) -> Result<Division> {
        let _turn = self.administration.take().await;
        let tenants = self.tenants()?;
        let doomed = tenants.doomed(name, yes)?;
        let array = &tenants.array;
        ensure!(
            tenants.namespaces.list().len() > 1,
            "'{name}' is the last namespace of '{array}', which is an empty array without it: stop the array \
             first with zoneraid stop {}",
            quoted(array)
        );
        self.hide_namespace(&doomed).await?;
        if let Err(error) = tenants.remove(name).await {
            let shown = self.show_namespace(doomed).await;
            let shown = shown.context("it has no block device until the next start");
            both(Err(error), shown).with_context(|| format!("'{array}/{name}' is not removed"))?;
        }
        self.divided_now()
    }

    /// The namespaces, for a change.
    fn tenants(&self) -> Result<Tenants> {
        let array = self.array.status();
        ensure!(!array.read_only, "'{}' is read-only: stop it and start it without --read-only", array.name);
        ensure!(self.phase.get() == Phase::Running, "'{}' is being stopped", array.name);
        let namespaces = self.divided.borrow().clone();
        let name = array.name;
        let without = || {
            let stop = format!("zoneraid stop {}", quoted(&name));
            format!(
                "'{name}' has no namespaces, and the first one can be created only while it does not run: {stop}"
            )
        };
        Ok(Tenants { namespaces: namespaces.with_context(without)?, array: name.clone() })
    }

    fn divided_now(&self) -> Result<Division> {
        self.division().context("there are no namespaces any more")
    }

    /// Report on the namespaces; `None` if the array is not divided.
    pub(super) fn division(&self) -> Option<Division> {
        let divided = self.divided.borrow();
        let namespaces = divided.as_ref()?;
        let blocks = self.blocks.borrow();
        let capacity = namespaces.zone_capacity_blocks();
        let list = namespaces.list().into_iter().map(|namespace| {
            let is_of = |block: &&Rc<Block>| {
                block.namespace.as_ref().is_some_and(|shown| shown.number() == namespace.number())
            };
            let block = blocks.iter().find(is_of);
            let volume = block.and_then(|block| block.volume.as_ref());
            NamespaceReport {
                block_device: block.map(|block| block.path.display().to_string()),
                link: block.and_then(|block| Some(block.link.as_ref()?.display().to_string())),
                volume: volume.map(|volume| VolumeReport::of(&volume.status(), 0, 0)),
                ..NamespaceReport::of(&namespace.status(), capacity)
            }
        });
        Some(Division::of(namespaces.zones(), bytes(capacity), list.collect()))
    }
}

/// Ticks the scheduler of the namespaces, until the daemon ends.
async fn tick_scheduler(namespaces: Namespaces, ring: Ring) {
    loop {
        let pause = if namespaces.tick() { TICK } else { IDLE_TICK };
        ring.sleep(pause).await;
    }
}
