//! What everything in this process runs on: the tasks, and the ring that their I/O goes through.

use crate::ring::Ring;
use anyhow::{Context, Result};
use engine::runtime::Runtime;
use std::{cell::OnceCell, future::Future, rc::Rc};

/// Tasks and their I/O, on one thread. Clones are the same reactor.
#[derive(Clone, Default)]
pub struct Reactor(Rc<Inner>);

#[derive(Default)]
struct Inner {
    runtime: Runtime,
    /// Made when first needed: emulated drives do without.
    ring: OnceCell<Ring>,
}

impl Reactor {
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    pub fn ring(&self) -> Result<&Ring> {
        if let Some(ring) = self.0.ring.get() {
            return Ok(ring);
        }
        let ring = Ring::new()
            .context("the kernel gives no io_uring, which real drives need (Linux 6.1 or newer)")?;
        Ok(self.0.ring.get_or_init(|| ring))
    }

    /// Runs tasks until `future` is done; an error if nothing can happen any more.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let mut broken = None;
        let value = self.0.runtime.block_on(future, || match self.0.ring.get().map(Ring::wait) {
            Some(Ok(waited)) => waited,
            Some(Err(error)) => {
                broken = Some(error);
                false
            }
            None => false,
        });
        match (value, broken) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error).context("io_uring failed"),
            (None, None) => anyhow::bail!("the drives do not answer any more"),
        }
    }
}
