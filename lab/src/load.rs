//! Load as fio makes it: jobs that keep a number of requests in flight, each followed by the
//! next as soon as it completes.

use anyhow::{Context, Result, bail};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Done, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use sim::{clock::Clock, rng::Rng};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// What the requests of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes one behind the other.
    Write,
    /// Zone appends.
    Append,
    /// Writes that go round in the ZRWA of a zone and never move its write pointer.
    Overwrite,
    /// Writes of random places.
    Scatter,
    /// Reads of random places.
    Read,
    /// Resets of all of the job's zones, one after the other.
    Reset,
}

/// A job on a zone, or reads from several.
#[derive(Clone, Debug)]
pub struct Job {
    pub kind: Kind,
    pub zone: ZoneIndex,
    /// Reads go to any of these zones as well, and resets to all.
    pub further: Vec<ZoneIndex>,
    pub blocks: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Least time from the start of a request to that of the next.
    pub period_ns: u64,
    /// When the job begins, so that jobs are not in step.
    pub start_ns: u64,
    /// Mean of random pauses after requests; 0 for none.
    pub pause_ns: u64,
}

impl Job {
    /// A job that is as fast as the device lets it.
    pub fn new(kind: Kind, zone: u32, kib: u64, depth: u32) -> Job {
        Job {
            kind,
            zone: ZoneIndex(zone),
            further: Vec::new(),
            blocks: kib * 1024 / BLOCK as u64,
            depth,
            period_ns: 0,
            start_ns: 0,
            pause_ns: 0,
        }
    }
}

/// Requests of a job that completed while it was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub bytes: u64,
    /// As much of it as completed in the second half of the window.
    pub second_half_bytes: u64,
    pub window_ns: u64,
    /// In rising order.
    pub latencies_ns: Vec<u64>,
}

impl Measured {
    /// 10⁶ bytes a second.
    pub fn mb_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.window_ns as f64
    }

    /// How much more completed in the second half of the window than in the first: 0 when nothing changes.
    pub fn drift(&self) -> f64 {
        let first = self.bytes - self.second_half_bytes;
        if first == 0 { 0.0 } else { self.second_half_bytes as f64 / first as f64 - 1.0 }
    }

    /// MiB a second.
    pub fn mib_s(&self) -> f64 {
        self.mb_s() * 1e6 / (1u64 << 20) as f64
    }

    /// Mean latency.
    pub fn mean_us(&self) -> f64 {
        self.latencies_ns.iter().sum::<u64>() as f64 / self.latencies_ns.len().max(1) as f64 / 1e3
    }

    /// The latency that this share of all requests does not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let at = (self.latencies_ns.len() as f64 * share) as usize;
        self.latencies_ns
            .get(at.min(self.latencies_ns.len().saturating_sub(1)))
            .map_or(0.0, |ns| *ns as f64 / 1e3)
    }

    /// Several jobs together.
    pub fn sum(parts: &[Measured]) -> Measured {
        let mut latencies_ns: Vec<u64> = parts.iter().flat_map(|part| &part.latencies_ns).copied().collect();
        latencies_ns.sort_unstable();
        Measured {
            bytes: parts.iter().map(|part| part.bytes).sum(),
            second_half_bytes: parts.iter().map(|part| part.second_half_bytes).sum(),
            window_ns: parts.first().map_or(0, |part| part.window_ns),
            latencies_ns,
        }
    }
}

/// When the jobs are measured, in nanoseconds of virtual time from the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from_ns: u64,
    pub to_ns: u64,
    /// It lasts up to here while its halves differ.
    most_ns: u64,
}

/// Halves of a window that differ by more are not steady.
const STEADY: f64 = 0.01;

impl Window {
    /// From and to these milliseconds.
    pub fn ms(from: u64, to: u64) -> Window {
        Window::steady(from, to, to)
    }

    /// The same, and longer while its halves differ by more than 1 %, up to `most`.
    pub fn steady(from: u64, to: u64, most: u64) -> Window {
        Window { from_ns: from * 1_000_000, to_ns: to * 1_000_000, most_ns: most * 1_000_000 }
    }

    /// Half as long again, unless that is not to be.
    fn longer(self) -> Option<Window> {
        let more_ms = (self.to_ns - self.from_ns) / 2_000_000;
        let to_ns = self.most_ns.min(self.to_ns + more_ms * 1_000_000);
        (to_ns > self.to_ns).then_some(Window { to_ns, ..self })
    }
}

/// Windows are cut in two between two slices of so much time: all last whole milliseconds.
const SLICE_NS: u64 = 500_000;

/// What the requests of one job share.
struct Running {
    job: Job,
    device: Rc<dyn ZonedDevice>,
    clock: Clock,
    from_ns: u64,
    written: Cell<u64>,
    rng: RefCell<Rng>,
    /// Bytes that completed in each slice of the window.
    slices: RefCell<Vec<u64>>,
    latencies_ns: RefCell<Vec<u64>>,
    failed: Rc<RefCell<Option<String>>>,
}

/// Runs all jobs at the same time and gives what was measured of each. The clock goes on from
/// wherever it is; the tasks of `runtime`, which a device may have as well, end.
///
/// # Errors
/// When the device refuses or fails a request.
pub fn run(
    runtime: &Runtime,
    device: &Rc<dyn ZonedDevice>,
    clock: &Clock,
    jobs: &[Job],
    window: Window,
) -> Result<Vec<Measured>> {
    run_at_pace(runtime, device, clock, jobs, window, &|| clock.advance())
}

/// As [`run`], with time that passes as `pass` lets it: [`Clock::advance`] or [`Clock::keep_pace`].
///
/// # Errors
/// When the device refuses or fails a request.
pub fn run_at_pace(
    runtime: &Runtime,
    device: &Rc<dyn ZonedDevice>,
    clock: &Clock,
    jobs: &[Job],
    window: Window,
    pass: &dyn Fn() -> bool,
) -> Result<Vec<Measured>> {
    let begin = clock.now_ns();
    let failed = Rc::default();
    let mut running = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let shared = Rc::new(Running {
            job: job.clone(),
            device: device.clone(),
            clock: clock.clone(),
            from_ns: begin + window.from_ns,
            written: Cell::new(0),
            rng: RefCell::new(Rng::new(number as u64)),
            slices: RefCell::default(),
            latencies_ns: RefCell::default(),
            failed: Rc::clone(&failed),
        });
        if job.kind == Kind::Overwrite {
            let open = device.submit(Command::Open { zones: Zones::One(job.zone), zrwa: true });
            let done = runtime.block_on(open, pass).context("a drive does not answer")?;
            done.result.with_context(|| format!("zone {}", job.zone.0))?;
        }
        running.push(shared);
    }
    for shared in &running {
        // Nobody looks at what is written, so that writes may share it.
        let data = Buf::zeroed(shared.job.blocks as usize * BLOCK);
        for _ in 0..shared.job.depth {
            let data = if shared.job.kind == Kind::Read { Buf::zeroed(data.len()) } else { data.clone() };
            let shared = shared.clone();
            runtime.spawn(async move { shared.requests(data).await });
        }
    }
    let mut window = window;
    let measured = loop {
        runtime.block_on(clock.sleep((begin + window.to_ns).saturating_sub(clock.now_ns())), pass);
        let measured: Vec<Measured> = running.iter().map(|shared| shared.measured(window)).collect();
        match window.longer() {
            Some(longer) if Measured::sum(&measured).drift().abs() > STEADY => window = longer,
            _ => break measured,
        }
    };
    runtime.clear();
    if let Some(problem) = failed.take() {
        bail!("{problem}");
    }
    let finished = measured.into_iter().zip(&running).map(|(measured, shared)| {
        let mut latencies_ns = shared.latencies_ns.take();
        latencies_ns.sort_unstable();
        Measured { latencies_ns, ..measured }
    });
    Ok(finished.collect())
}

impl Running {
    async fn requests(&self, mut data: Buf) {
        // Jobs with a period do not all start at once.
        let phase = self.rng.borrow_mut().below(self.job.period_ns);
        self.clock.sleep(self.job.start_ns + phase).await;
        while self.failed.borrow().is_none() {
            let submitted = self.clock.now_ns();
            let Some(command) = self.next(data) else { return };
            let done: Done = self.device.submit(command).await;
            let now = self.clock.now_ns();
            if let Err(error) = done.result {
                self.fail(&error);
            } else if now >= self.from_ns {
                let (slices, slice) =
                    (&mut *self.slices.borrow_mut(), ((now - self.from_ns) / SLICE_NS) as usize);
                slices.resize(slices.len().max(slice + 1), 0);
                slices[slice] += done.data.len() as u64;
                self.latencies_ns.borrow_mut().push(now - submitted);
            }
            data = done.data;
            let next = submitted + self.job.period_ns;
            if next > now {
                self.clock.sleep(next - now).await;
            }
            if self.job.pause_ns > 0 {
                let pause = self.rng.borrow_mut().exponential() * self.job.pause_ns as f64;
                self.clock.sleep(pause as u64).await;
            }
        }
    }

    fn next(&self, data: Buf) -> Option<Command> {
        let Job { kind, zone, ref further, blocks, .. } = self.job;
        let geometry = self.device.geometry();
        let start = geometry.start(zone).0;
        let written = self.written.get();
        self.written.set(written + blocks);
        let sequential = matches!(kind, Kind::Write | Kind::Append);
        if sequential && written + blocks > geometry.zone_capacity_blocks {
            self.fail(&"it is full before the measurement ends; measure for a shorter time");
            return None;
        }
        Some(match kind {
            Kind::Write => Command::write(Lba(start + written), data, false),
            Kind::Append => Command::append(zone, data, false),
            Kind::Overwrite => {
                let size = geometry.zrwa.map_or(blocks, |zrwa| zrwa.size_blocks);
                Command::write(Lba(start + written % size), data, false)
            }
            Kind::Scatter => {
                let place = self.rng.borrow_mut().below(geometry.zone_capacity_blocks / blocks);
                Command::write(Lba(start + place * blocks), data, false)
            }
            Kind::Reset => {
                let turn = (written / blocks) as usize % (1 + further.len());
                let zone = if turn == 0 { zone } else { further[turn - 1] };
                Command::Reset { zones: Zones::One(zone) }
            }
            Kind::Read => {
                let mut rng = self.rng.borrow_mut();
                let zone = match rng.below(1 + further.len() as u64) {
                    0 => zone,
                    n => further[n as usize - 1],
                };
                let place = rng.below(geometry.zone_capacity_blocks / blocks);
                Command::read(Lba(geometry.start(zone).0 + place * blocks), data)
            }
        })
    }

    /// What completed in the window, without latencies.
    fn measured(&self, window: Window) -> Measured {
        let window_ns = window.to_ns - window.from_ns;
        let slices = self.slices.borrow();
        let bytes_from =
            |slice: usize| slices.iter().take((window_ns / SLICE_NS) as usize).skip(slice).sum::<u64>();
        let second_half_bytes = bytes_from((window_ns / 2 / SLICE_NS) as usize);
        Measured { bytes: bytes_from(0), second_half_bytes, window_ns, ..Measured::default() }
    }

    fn fail(&self, problem: &dyn std::fmt::Display) {
        let problem = format!("{:?} on zone {}: {problem}", self.job.kind, self.job.zone.0);
        self.failed.borrow_mut().get_or_insert(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_by_half_up_to_their_end() {
        let grown = std::iter::successors(Some(Window::steady(15, 40, 100)), |window| window.longer());
        let ends: Vec<u64> = grown.map(|window| window.to_ns / 1_000_000).collect();
        assert_eq!(ends, [40, 52, 70, 97, 100]);
        assert!(Window::ms(15, 40).longer().is_none());
    }
}
