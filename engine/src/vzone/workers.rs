//! Worker tasks that carry out commands. They are reused, so that in steady state none is started.

use crate::{
    device::{Completion, Done},
    vzone::{
        core::{NamespaceCore, Tenant, Worker, WorkerJob},
        flush, manage, request,
        transfer::GroupTransfer,
    },
};
use std::rc::Rc;

/// Passes a job to an idle worker, or to a new one.
pub fn employ(core: &Rc<NamespaceCore>, tenant: &Rc<Tenant>, job: WorkerJob) -> Completion {
    let (completer, completion) = core.slots.pair();
    tenant.commands.set(tenant.commands.get() + job.is_command() as u32);
    let idle = core.idle.borrow_mut().pop();
    let worker = idle.unwrap_or_else(|| {
        let worker = Rc::new(Worker::default());
        core.runtime.spawn(serve(core.clone(), worker.clone()));
        worker
    });
    let before = worker.job.replace(Some((tenant.clone(), job, completer)));
    assert!(before.is_none(), "a worker gets a command while it has one");
    worker.begun.open();
    completion
}

/// Queues the relocation of the last group of a v-zone, if it is not queued already.
pub fn move_later(core: &Rc<NamespaceCore>, tenant: &Rc<Tenant>, zone: usize) {
    let ticket = {
        let vzone = &mut tenant.state.borrow_mut().vzones[zone];
        if std::mem::replace(&mut vzone.leaving, true) {
            return;
        }
        vzone.ticket()
    };
    core.moves.set(core.moves.get() + 1);
    // Its completion is dropped: an error stays with the v-zone.
    drop(employ(core, tenant, WorkerJob::Move { zone, ticket }));
}

/// Carries out a job. `flights` is a buffer that is empty before and after.
async fn carry_out(
    core: &Rc<NamespaceCore>,
    tenant: &Rc<Tenant>,
    job: WorkerJob,
    flights: &mut Vec<GroupTransfer>,
) -> Done {
    let result = match job {
        WorkerJob::Read { zone, turn, from, data } => {
            return request::read(core, tenant, (zone, turn), from, data, flights).await;
        }
        WorkerJob::Write { zone, ticket, from, data, fua, begins } => {
            let (done, has_failed) =
                request::write(core, tenant, (zone, ticket, begins), from, (data, fua), flights).await;
            if has_failed {
                move_later(core, tenant, zone);
            }
            request::begun(core, tenant, begins);
            return done;
        }
        WorkerJob::Flush => flush::flush_and_report(core, tenant).await,
        WorkerJob::Finish(zones) => {
            manage::each_in_turn(core, tenant, zones, async |zone| manage::finish(core, tenant, zone).await)
                .await
        }
        WorkerJob::Reset(zones) => {
            manage::each_in_turn(core, tenant, zones, async |zone| manage::reset(core, tenant, zone).await)
                .await
        }
        WorkerJob::Move { zone, ticket } => manage::relocate(core, tenant, zone, ticket, flights).await,
    };
    Done { result, ..Done::ok() }
}

/// Worker task: carries out jobs one after the other.
async fn serve(core: Rc<NamespaceCore>, worker: Rc<Worker>) {
    let mut flights = Vec::new();
    loop {
        let job = worker.job.borrow_mut().take();
        let Some((tenant, job, completer)) = job else {
            worker.begun.wait().await;
            continue;
        };
        let is_command = job.is_command();
        let done = carry_out(&core, &tenant, job, &mut flights).await;
        assert!(flights.is_empty(), "a command ends with {} of its parts in flight", flights.len());
        tenant.commands.set(tenant.commands.get() - is_command as u32);
        // The worker is idle before the completion wakes the submitter, which may submit another command.
        core.idle.borrow_mut().push(worker.clone());
        completer.complete(done);
    }
}
