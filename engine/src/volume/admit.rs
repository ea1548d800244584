//! Admission of the requests to the volumes of a pool, by limits, floors and latency classes.

use crate::{
    qos::{AdmittedRequest, Qos},
    volume::{
        error::{PoolError, VolumeError},
        part::{PoolCore, PoolVolume, VolumeOfPool},
        pool_table::VolumeRecord,
    },
};
use std::rc::Rc;

/// Updates the throttling of volumes, if that is due. There is no periodic task: each request does so when it arrives, and
/// while it waits.
fn look(pool: &PoolCore, now_us: impl Fn() -> u64) {
    if pool.qos.has_guarantees() {
        let volumes = pool.volumes.borrow();
        let heads = volumes.values().filter(|volume| volume.number() == 0);
        pool.qos.look(now_us(), heads.map(|volume| (&volume.qos_state, 1)));
    }
}

impl VolumeOfPool {
    /// The volume by whose quality of service requests are admitted: of a snapshot, the one that it was made of.
    fn client(&self) -> Rc<PoolVolume> {
        self.pool.head_of(&self.volume).unwrap_or_else(|| self.volume.clone())
    }

    /// Limits, floors and latency class of reads and writes; of a snapshot, those of its volume.
    pub fn qos(&self) -> Qos {
        self.client().qos_state.qos()
    }

    /// As [`super::Volume::set_qos`].
    pub async fn set_qos(&self, change: impl FnOnce(&mut Qos) + 'static) -> Result<(), VolumeError> {
        let change_if_possible = move |record: &mut VolumeRecord| {
            change(&mut record.qos);
            if record.qos.is_possible() { Ok(()) } else { Err(PoolError::FloorAboveLimit.into()) }
        };
        self.set_if(change_if_possible).await
    }

    /// Whether requests have to be admitted.
    pub fn needs_admission(&self) -> bool {
        self.pool.qos.has_guarantees() || !self.qos().limits.is_none()
    }

    /// The rate to which it is throttled for others, in blocks a second, and whether its floors and its latency target are
    /// out of reach.
    pub fn throttling(&self) -> (Option<u64>, [bool; 2]) {
        let client = self.client();
        (client.qos_state.held_to(), client.qos_state.out_of_reach())
    }

    /// As [`super::Volume::admit`].
    pub async fn admit<F: Future<Output = ()>>(
        &self,
        blocks: u64,
        now_us: impl Fn() -> u64,
        sleep: impl Fn(u64) -> F,
    ) -> AdmittedRequest {
        let (pool, now_us) = (&self.pool, &now_us);
        look(pool, now_us);
        let sleep = |us| {
            let slept = sleep(us);
            async move {
                slept.await;
                look(pool, now_us);
            }
        };
        pool.qos.admit(&self.client().qos_state, blocks, now_us, sleep).await
    }

    /// As [`super::Volume::answered`].
    pub fn answered(&self, admitted: AdmittedRequest, blocks: u64, now_us: impl Fn() -> u64) {
        self.pool.qos.answered(&self.client().qos_state, admitted, blocks, now_us);
    }
}
