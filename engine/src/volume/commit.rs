//! Group commit: the task of a stream waits for groups in flight, completes them, and begins the next zone.

use crate::volume::{core::VolumeCore, gc, stream::Stream};
use std::rc::Rc;

/// Task of the stream with this index; runs until writing fails.
pub async fn serve(core: Rc<VolumeCore>, index: usize) {
    let moved = gc::moved_stream(&core);
    loop {
        let flight = core.with_stream(index, |stream, _| stream.next_landing());
        if let Some(flight) = flight {
            let mut done = flight.await;
            if let Err(error) = std::mem::replace(&mut done.result, Ok(())) {
                return core.fail(error);
            }
            let capacity = core.capacity();
            let full = core.with_stream(index, |stream, common| {
                let full = stream.land(done, capacity, common);
                // Groups of moved blocks are closed when they are full: no request waits for one.
                if index != moved {
                    stream.launch(index, capacity, common);
                }
                full
            });
            core.landed(index, full);
        } else if core.with_stream(index, |stream, _| stream.waits_for_zone()) {
            let begun_before = core.with_stream(index, |stream, _| stream.has_begun());
            if begun_before && core.flush_device().await.is_err() {
                return;
            }
            core.with_stream(index, Stream::begin_zone);
        } else {
            core.wait_for_groups(index).await;
        }
    }
}
