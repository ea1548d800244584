//! Records a run as a trace for Chrome (`chrome://tracing`) and Perfetto: threads of the host, commands of each member
//! by zone, and dies, each on a track of its own.

use emu::clock::Clock;
use engine::{
    device::{Command, Completion, DriveId, Geometry, Slots, ZonedDevice},
    runtime::Runtime,
};
use serde_json::{Value, json};
use std::{cell::RefCell, collections::BTreeMap, ops::Range, rc::Rc};

/// A list of events. Clones are the same trace.
#[derive(Clone, Default)]
pub struct Trace(Rc<RefCell<Vec<Span>>>);

struct Span {
    process: String,
    track: String,
    name: String,
    ns: Range<u64>,
    /// Whether events on its track may overlap.
    overlaps: bool,
}

impl Trace {
    /// Records an event of a resource that does one thing at a time.
    pub fn busy(&self, process: &str, track: &str, name: String, ns: Range<u64>) {
        self.add(process, track, name, ns, false);
    }

    fn add(&self, process: &str, track: &str, name: String, ns: Range<u64>, overlaps: bool) {
        let span = Span { process: process.into(), track: track.into(), name, ns, overlaps };
        self.0.borrow_mut().push(span);
    }

    /// Wraps `device` so that its commands are traced as those of `process`.
    pub fn of(
        &self,
        process: String,
        device: Rc<dyn ZonedDevice>,
        clock: &Clock,
        runtime: &Runtime,
    ) -> Rc<dyn ZonedDevice> {
        let (trace, clock, runtime) = (self.clone(), clock.clone(), runtime.clone());
        Rc::new(TracedDevice { process, device, trace, clock, runtime, slots: Rc::default() })
    }

    /// The events that ended in the last `last_ns`, in the format of Chrome's traces; times in µs.
    pub fn json(&self, last_ns: u64) -> Value {
        let spans = self.0.borrow();
        let end_ns = spans.iter().map(|span| span.ns.end).max().unwrap_or(0);
        let spans: Vec<&Span> = spans.iter().filter(|span| span.ns.end + last_ns >= end_ns).collect();
        let mut tracks: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut processes: BTreeMap<&str, usize> = BTreeMap::new();
        for span in spans.iter() {
            let next = processes.len() + 1;
            processes.entry(&span.process).or_insert(next);
            let next = tracks.len() + 1;
            tracks.entry((&span.process, &span.track)).or_insert(next);
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let named = |kind: &str, pid: usize, tid: usize, name: &str| json!({ "ph": "M", "name": kind, "pid": pid, "tid": tid, "args": { "name": name } });
        let mut events: Vec<Value> =
            processes.iter().map(|(name, pid)| named("process_name", *pid, 0, name)).collect();
        let names = tracks
            .iter()
            .map(|((process, track), tid)| named("thread_name", processes[process], *tid, track));
        events.extend(names);
        for (number, span) in spans.iter().enumerate() {
            let (pid, tid) = (processes[&*span.process], tracks[&(&*span.process, &*span.track)]);
            if span.overlaps {
                for (phase, at) in [("b", span.ns.start), ("e", span.ns.end)] {
                    events.push(json!({
                        "ph": phase, "cat": span.track, "id": number, "name": span.name, "pid": pid, "tid": tid,
                        "ts": us(at),
                    }));
                }
            } else {
                let took = us(span.ns.end - span.ns.start);
                events.push(json!({
                    "ph": "X", "name": span.name, "pid": pid, "tid": tid, "ts": us(span.ns.start), "dur": took,
                }));
            }
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ns" })
    }
}

/// A device with traced commands.
struct TracedDevice {
    process: String,
    device: Rc<dyn ZonedDevice>,
    trace: Trace,
    clock: Clock,
    runtime: Runtime,
    slots: Rc<Slots>,
}

impl TracedDevice {
    /// The name of a command, and its track.
    fn describe(&self, command: &Command) -> (String, String) {
        let zone = |lba| format!("zone {}", self.geometry().locate(lba).0.0);
        match command {
            Command::Write { lba, data, .. } => (format!("write {} KiB", data.len() >> 10), zone(*lba)),
            Command::Read { lba, data, .. } => (format!("read {} KiB", data.len() >> 10), zone(*lba)),
            Command::FlushZrwa { last } => ("flush ZRWA".into(), zone(*last)),
            _ => ("other".into(), "other".into()),
        }
    }
}

impl ZonedDevice for TracedDevice {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn drive_id(&self) -> DriveId {
        self.device.drive_id()
    }

    fn submit(&self, command: Command) -> Completion {
        let (name, track) = self.describe(&command);
        let (from, submitted) = (self.clock.now_ns(), self.device.submit(command));
        let (completer, completion) = self.slots.pair();
        let (process, trace, clock) = (self.process.clone(), self.trace.clone(), self.clock.clone());
        self.runtime.spawn(async move {
            let done = submitted.await;
            trace.add(&process, &track, name, from..clock.now_ns(), true);
            completer.complete(done);
        });
        completion
    }
}
