//! Model of the host in front of the drives: CPU time of requests and queueing.
//!
//! A request passes its job's own thread, then a thread of the driver or daemon, then the array; the array's commands
//! to a drive pass such a thread again. A thread takes queued work in batches, as an event loop does, and forwards a
//! batch when its time has passed. All of a cost is charged on the way in, including that of the completion. If a
//! scheduler keeps writes of a zone in order, its lock is held for some time after a write has completed; merging is
//! that of the engine's sequencer (`engine/src/adapt/sequence.rs`), as measured with `mq-deadline`.
//!
//! The parameters of [`Host::io_uring`] and [`Host::mq_deadline`] are fitted to writes on single drives (`lab
//! calibrate`), those of [`Host::spdk`] to its own null devices, and those of our daemon are in a file (`zoneraid bench
//! host`). None is fitted to an array.

use crate::trace::Trace;
use anyhow::{Context, Result, bail};
use emu::clock::Clock;
use engine::{
    buf::BLOCK,
    device::{Command, Completion, DriveId, Geometry, Slots, ZonedDevice, Zones},
    runtime::Runtime,
    zone::ZoneIndex,
};
use serde_json::Value;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fs,
    path::Path,
    rc::Rc,
};

/// Results of `zoneraid bench host` on the machine that the documents name.
const DAEMON: &str = include_str!("../hosts/daemon.json");

/// Costs of a host, in µs.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub name: String,
    /// Cost of a request on its job's own thread; each job has one.
    pub submit_us: f64,
    /// Threads of the driver or daemon, among which zones are divided; 0 if they are never a bottleneck.
    pub threads: u32,
    /// Largest batch of a thread.
    pub batch: usize,
    /// Cost of a batch as such: a system call, a wake-up.
    pub turn_us: f64,
    /// Cost of a request on a thread of the driver or daemon.
    pub request_us: f64,
    /// Cost of a command to a drive, on the same thread.
    pub sub_request_us: f64,
    pub lock: Option<Lock>,
}

/// The lock of a zone, if writes to it have to stay in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lock {
    /// Time that it is held after the completion of a command, per request in it.
    pub request_us: f64,
    /// Additional time for a command of several requests.
    pub merged_us: f64,
}

impl Host {
    /// The names of [`Host::by_name`] that need no file.
    pub const NAMES: [&str; 5] = ["free", "spdk", "io_uring", "mq-deadline", "daemon"];

    /// A host without costs.
    pub fn free() -> Host {
        Host {
            name: "free".into(),
            submit_us: 0.0,
            threads: 0,
            batch: 64,
            turn_us: 0.0,
            request_us: 0.0,
            sub_request_us: 0.0,
            lock: None,
        }
    }

    /// One thread with the same cost for a request and for a command to a drive.
    pub fn one_thread(us: f64) -> Host {
        let name = format!("{us} µs");
        Host { name, threads: (us > 0.0) as u32, request_us: us, sub_request_us: us, ..Host::free() }
    }

    /// A reactor as SPDK's: `bdevperf` on one writes 1.64 million 4 KiB blocks a second to memory (0.6 µs each) and
    /// reads 0.84 million through `raid5f` on the same (0.6 µs more).
    pub fn spdk() -> Host {
        Host { name: "spdk".into(), ..Host::one_thread(0.6) }
    }

    /// The kernel without a scheduler, fio with `io_uring` and a polling thread; a driver on many processors.
    pub fn io_uring() -> Host {
        Host { name: "io_uring".into(), submit_us: 1.3, ..Host::free() }
    }

    /// The same with `mq-deadline`, for drives with zones that are written in order.
    pub fn mq_deadline() -> Host {
        let lock = Some(Lock { request_us: 2.0, merged_us: 1.5 });
        Host { name: "mq-deadline".into(), lock, ..Host::io_uring() }
    }

    /// Our daemon, as measured on the machine that the documents name.
    ///
    /// # Errors
    /// The file that comes with the lab is invalid.
    pub fn daemon() -> Result<Host> {
        Host::measured("daemon", DAEMON)
    }

    /// A host by its name, µs on one thread ('2'), or a file that `zoneraid bench host --json` wrote.
    ///
    /// # Errors
    /// `name` is none of these.
    pub fn by_name(name: &str) -> Result<Host> {
        Ok(match name {
            "free" => Host::free(),
            "spdk" => Host::spdk(),
            "io_uring" => Host::io_uring(),
            "mq-deadline" => Host::mq_deadline(),
            "daemon" => Host::daemon()?,
            _ => match name.parse() {
                Ok(us) => Host::one_thread(us),
                Err(_) => Host::from_file(Path::new(name))?,
            },
        })
    }

    fn from_file(path: &Path) -> Result<Host> {
        let what = || format!("{} is neither {}, nor µs, nor a file", path.display(), Host::NAMES.join(", "));
        let text = fs::read_to_string(path).with_context(what)?;
        let name = path.file_stem().map_or("file".into(), |stem| stem.to_string_lossy().into_owned());
        Host::measured(&name, &text).with_context(|| path.display().to_string())
    }

    fn measured(name: &str, text: &str) -> Result<Host> {
        let value: Value = serde_json::from_str(text).context("is no JSON")?;
        let us = |field: &str| match value[field].as_f64() {
            Some(us) if us >= 0.0 => Ok(us),
            _ => bail!("has no {field}, as the output of 'zoneraid bench host --json' has"),
        };
        Ok(Host {
            name: name.into(),
            threads: 1,
            turn_us: us("turn_us")?,
            request_us: us("request_us")?,
            sub_request_us: us("sub_request_us")?,
            ..Host::free()
        })
    }

    /// Cost of a request, apart from commands to drives.
    pub fn us(&self) -> f64 {
        self.submit_us + self.request_us
    }

    /// The costs that apply, without the name: a lock only if writes are `sequenced`.
    pub fn in_front_of(&self, sequenced: bool) -> Host {
        Host { name: String::new(), lock: self.lock.filter(|_| sequenced), ..self.clone() }
    }

    fn is_free(&self) -> bool {
        let costs = [self.submit_us, self.turn_us, self.request_us, self.sub_request_us];
        self.lock.is_none() && costs.iter().all(|us| *us == 0.0)
    }
}

fn ns(us: f64) -> u64 {
    (us * 1e3) as u64
}

/// Continuation of work when its time has passed.
type Continuation = Box<dyn FnOnce()>;

/// The threads of a host. Clones are the same threads.
#[derive(Clone)]
pub struct Threads(Rc<HostInner>);

struct HostInner {
    host: Host,
    clock: Clock,
    runtime: Runtime,
    threads: Vec<Thread>,
    trace: Option<Trace>,
}

#[derive(Default)]
struct Thread {
    busy: Cell<bool>,
    waiting: RefCell<VecDeque<(u64, Continuation)>>,
}

impl Threads {
    /// The threads of `host`, all idle; `trace` records when they work.
    pub fn new(host: &Host, clock: &Clock, runtime: &Runtime, trace: Option<Trace>) -> Threads {
        let threads = (0..host.threads).map(|_| Thread::default()).collect();
        let (host, clock, runtime) = (host.clone(), clock.clone(), runtime.clone());
        Threads(Rc::new(HostInner { host, clock, runtime, threads, trace }))
    }

    /// Wraps `device` for jobs: requests pass the job's own thread and one of the driver or daemon.
    pub fn before(&self, device: Rc<dyn ZonedDevice>) -> Rc<dyn ZonedDevice> {
        if self.0.host.is_free() {
            return device;
        }
        Rc::new(ArrayRequests {
            device,
            threads: self.clone(),
            slots: Rc::default(),
            free_ns: RefCell::default(),
        })
    }

    /// Wraps `drive` for the array: commands pass a thread, and if writes are `sequenced` the lock of a zone is held,
    /// by the number of requests of `request_blocks`.
    pub fn behind(
        &self,
        drive: Rc<dyn ZonedDevice>,
        sequenced: bool,
        request_blocks: u64,
    ) -> Rc<dyn ZonedDevice> {
        if self.0.host.is_free() {
            return drive;
        }
        let lock = self.0.host.lock.filter(|_| sequenced);
        if lock.is_none() && self.0.threads.is_empty() {
            return drive;
        }
        let threads = self.clone();
        Rc::new(Commands { drive, threads, lock, request_blocks, slots: Rc::default() })
    }

    /// Runs `work` after the thread of a zone has spent `us` on it.
    fn spend(&self, zone: ZoneIndex, us: f64, work: impl FnOnce() + 'static) {
        let Some(number) = (zone.0 as usize).checked_rem(self.0.threads.len()) else { return work() };
        let thread = &self.0.threads[number];
        thread.waiting.borrow_mut().push_back((ns(us), Box::new(work)));
        if !thread.busy.replace(true) {
            // Work that arrives in the same instant belongs to the same batch.
            let threads = self.clone();
            self.0.clock.at(self.0.clock.now_ns(), move || threads.turn(number));
        }
    }

    fn turn(&self, number: usize) {
        let HostInner { host, clock, trace, .. } = &*self.0;
        let thread = &self.0.threads[number];
        let taken: Vec<(u64, Continuation)> = {
            let mut waiting = thread.waiting.borrow_mut();
            let count = waiting.len().min(host.batch);
            waiting.drain(..count).collect()
        };
        if taken.is_empty() {
            return thread.busy.set(false);
        }
        let now = clock.now_ns();
        let end = now + ns(host.turn_us) + taken.iter().map(|work| work.0).sum::<u64>();
        if let Some(trace) = trace {
            trace.busy("host", &format!("thread {number}"), format!("{} at once", taken.len()), now..end);
        }
        let threads = self.clone();
        clock.at(end, move || {
            taken.into_iter().for_each(|(_, work)| work());
            threads.turn(number);
        });
    }
}

/// The zone of a command, or zone 0.
fn zone_of(command: &Command, geometry: &Geometry) -> ZoneIndex {
    match command {
        Command::Read { lba, .. } | Command::Write { lba, .. } | Command::FlushZrwa { last: lba } => {
            geometry.locate(*lba).0
        }
        Command::Append { zone, .. }
        | Command::Open { zones: Zones::One(zone), .. }
        | Command::Close { zones: Zones::One(zone) }
        | Command::Finish { zones: Zones::One(zone) }
        | Command::Reset { zones: Zones::One(zone) } => *zone,
        _ => ZoneIndex(0),
    }
}

/// An array as seen by jobs.
struct ArrayRequests {
    device: Rc<dyn ZonedDevice>,
    threads: Threads,
    slots: Rc<Slots>,
    /// By zone: when its job's thread has submitted all requests so far.
    free_ns: RefCell<Vec<u64>>,
}

impl ArrayRequests {
    /// When the job's thread has submitted one more.
    fn submitted_ns(&self, zone: ZoneIndex) -> u64 {
        let mut free = self.free_ns.borrow_mut();
        let place = zone.0 as usize;
        if free.len() <= place {
            free.resize(place + 1, 0);
        }
        let HostInner { host, clock, .. } = &*self.threads.0;
        free[place] = free[place].max(clock.now_ns()) + ns(host.submit_us);
        free[place]
    }
}

impl ZonedDevice for ArrayRequests {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let zone = zone_of(&command, self.geometry());
        let due = self.submitted_ns(zone);
        let (completer, completion) = self.slots.pair();
        let (device, threads) = (self.device.clone(), self.threads.clone());
        self.threads.0.clock.at(due, move || {
            let runtime = threads.0.runtime.clone();
            threads.spend(zone, threads.0.host.request_us, move || {
                let submitted = device.submit(command);
                runtime.spawn(async move { completer.complete(submitted.await) });
            });
        });
        completion
    }
}

/// A drive as seen by the array.
struct Commands {
    drive: Rc<dyn ZonedDevice>,
    threads: Threads,
    lock: Option<Lock>,
    request_blocks: u64,
    slots: Rc<Slots>,
}

impl Commands {
    /// Time that the lock of the zone is held after this command.
    fn held_ns(&self, command: &Command) -> u64 {
        let (Some(lock), Command::Write { data, .. }) = (self.lock, command) else { return 0 };
        let requests = data.len().div_ceil(BLOCK * self.request_blocks.max(1) as usize);
        let merged_us = if requests > 1 { lock.merged_us } else { 0.0 };
        ns(merged_us + lock.request_us * requests as f64)
    }
}

impl ZonedDevice for Commands {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn drive_id(&self) -> DriveId {
        self.drive.drive_id()
    }

    fn submit(&self, command: Command) -> Completion {
        let (zone, held) = (zone_of(&command, self.geometry()), self.held_ns(&command));
        let (completer, completion) = self.slots.pair();
        let (drive, threads) = (self.drive.clone(), self.threads.clone());
        self.threads.spend(zone, self.threads.0.host.sub_request_us, move || {
            let submitted = drive.submit(command);
            let clock = threads.0.clock.clone();
            threads.0.runtime.spawn(async move {
                let done = submitted.await;
                if held > 0 {
                    clock.sleep(held).await;
                }
                completer.complete(done);
            });
        });
        completion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(host: &Host, clock: &Clock) -> Threads {
        Threads::new(host, clock, &Runtime::new(), None)
    }

    #[test]
    fn host_thread_completes_batch_at_end_of_turn() {
        let (clock, log) = (Clock::new(), Rc::new(RefCell::new(Vec::new())));
        let host = Host { batch: 2, turn_us: 1.0, ..Host::one_thread(2.0) };
        let threads = threads(&host, &clock);
        for n in 0..3 {
            let (log, at) = (log.clone(), clock.clone());
            threads.spend(ZoneIndex(n), 2.0, move || log.borrow_mut().push((n, at.now_ns())));
        }
        while clock.advance() {}
        assert_eq!(*log.borrow(), [(0, 5000), (1, 5000), (2, 8000)]);
    }

    #[test]
    fn host_threads_share_zones_and_none_costs_nothing() {
        let host = Host { threads: 2, ..Host::one_thread(1.0) };
        for (host, last) in [(host, 2000), (Host { threads: 0, ..Host::one_thread(1.0) }, 0)] {
            let (clock, done) = (Clock::new(), Rc::new(Cell::new(0)));
            let threads = threads(&host, &clock);
            for zone in 0..4 {
                let (done, at) = (done.clone(), clock.clone());
                threads.spend(ZoneIndex(zone), 1.0, move || done.set(at.now_ns()));
            }
            while clock.advance() {}
            assert_eq!(done.get(), last);
        }
    }

    #[test]
    fn host_is_found_by_name_cost_or_file() {
        for name in Host::NAMES {
            assert_eq!(Host::by_name(name).unwrap().name, name);
        }
        assert_eq!(Host::by_name("2").unwrap(), Host::one_thread(2.0));
        assert_eq!(Host::by_name("0").unwrap().us(), 0.0);
        let nowhere = Host::by_name("/nowhere").unwrap_err().to_string();
        assert!(nowhere.contains("mq-deadline"), "{nowhere}");
        let wrong = Host::measured("x", "{\"request_us\": 1.0}").unwrap_err().to_string();
        assert!(wrong.contains("turn_us"), "{wrong}");
    }
}
