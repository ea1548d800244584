//! Compression workers of a volume, like the threads of the host: they return their blocks a random number of task
//! steps later, compressed or not.

use emu::rng::Rng;
use engine::volume::{CompressionJob, CompressionWorkers, PendingJob, PieceEncoder};
use std::{cell::RefCell, future::poll_fn, rc::Rc, task::Poll};

/// Most steps until the result is returned.
const MOST_STEPS: u64 = 40;

pub(super) struct Helpers {
    rng: RefCell<Rng>,
    packer: Rc<RefCell<PieceEncoder>>,
}

impl Helpers {
    pub(super) fn new(seed: u64) -> Helpers {
        Helpers { rng: RefCell::new(Rng::new(seed)), packer: Rc::default() }
    }
}

impl CompressionWorkers for Helpers {
    fn take(&self, mut packing: CompressionJob) -> Result<PendingJob, CompressionJob> {
        let mut rng = self.rng.borrow_mut();
        if rng.chance(1, 5) {
            return Err(packing);
        }
        let (mut steps, gives_up) = (rng.below(MOST_STEPS), rng.chance(1, 10));
        let packer = self.packer.clone();
        Ok(Box::pin(async move {
            poll_fn(|context| {
                if steps == 0 {
                    return Poll::Ready(());
                }
                steps -= 1;
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            packing.run(&mut packer.borrow_mut());
            (!gives_up).then_some(packing)
        }))
    }
}
