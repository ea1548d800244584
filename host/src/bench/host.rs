//! Processor time of the daemon for a request and for a command to a drive on this machine, as input for the lab (`lab
//! --host FILE`), and its request rate with drives that take no time.
//!
//! The array of [`super`] on null drives behind io_uring. The same 4 KiB writes are sent with and without merging: the
//! number of commands saved gives the cost of a command, and the rest is the cost of the request. That cost is no less
//! than the ring's part of it, which commands to a null drive without an array give: on a busy machine caches are cold
//! at times, and a difference of two measurements may be too small, or negative. A queue depth of one gives the cost of
//! a turn of the event loop. A stand-in takes the place of a ublk device: for each request it copies the data from a
//! kernel file, and sends one more command as the answer.
//!
//! Costs are processor time of one thread. Request rates are wall-clock, of the array alone and with the stand-in,
//! beside the processor time of a request; for one thread, and for two with an array each, which share nothing: an upper
//! limit for two threads.

use super::{
    DATA_CHUNKS, begin, median,
    null::{NullDrive, thread_seconds},
    options_with,
};
use crate::{
    process::output::{HEALTHY, Output},
    reactor::ring::Ring,
};
use anyhow::{Context, Result, bail};
use emu::ssd::Model;
use engine::{
    array::{Array, ArrayOptions, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use std::{cell::Cell, collections::VecDeque, fs::File, os::unix::fs::FileExt, rc::Rc, time::Instant};

const NO_RING: &str = "the kernel gives no io_uring (Linux 6.1 or newer)";

const REQUESTS: u64 = 100_000;
const SINGLE_REQUESTS: u64 = 20_000;
const DEEP: usize = 64;

/// Costs for the lab, in µs of one thread.
#[derive(Serialize)]
struct HostCosts {
    /// A request, including `transport_us`.
    request_us: f64,
    /// A command to a drive.
    sub_request_us: f64,
    /// A turn of the event loop without other work.
    turn_us: f64,
    /// Stand-in for the transport of a request and its answer.
    transport_us: f64,
    points: Vec<Point>,
}

/// Write rates with null drives.
#[derive(Serialize)]
struct Point {
    threads: usize,
    request_kib: u64,
    depth: usize,
    /// Through the stand-in for a block device.
    requests_a_second: f64,
    /// To the array directly.
    array_requests_a_second: f64,
    /// Time between two requests of one thread, and its processor time for each, through the stand-in.
    request_ns: f64,
    request_cpu_ns: f64,
    /// The same to the array directly.
    array_request_ns: f64,
    array_request_cpu_ns: f64,
    commands_a_request: f64,
}

/// Cost of a stream, per request.
#[derive(Clone, Copy)]
pub(super) struct StreamCost {
    pub us: f64,
    pub wall_us: f64,
    commands: f64,
    turns: f64,
}

/// Runs the benchmark and prints the results.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let costs = costs(rounds)?;
    output.print(&costs, text)?;
    Ok(HEALTHY)
}

fn costs(rounds: usize) -> Result<HostCosts> {
    let of = |join: bool, fronted: bool, count: u64, depth: usize| {
        ArrayRig::new(join, fronted)?.median(rounds, count, depth, BLOCK as u64)
    };
    let (joined, each) = (of(true, false, REQUESTS, DEEP)?, of(false, false, REQUESTS, DEEP)?);
    let saved_us = (each.us - joined.us) / (each.commands - joined.commands);
    let sub_request_us = saved_us.max(command_us(rounds, REQUESTS, DEEP)?);
    let fronted = of(true, true, REQUESTS, DEEP)?;
    let one = of(true, false, SINGLE_REQUESTS, 1)?;
    let engine_us = (joined.us - joined.commands * sub_request_us).max(0.0);
    let turn_us = ((one.us - engine_us - one.commands * sub_request_us) / one.turns).max(0.0);
    let transport_us = (fronted.us - joined.us).max(0.0);
    let mut points = Vec::new();
    for threads in [1, 2] {
        for request_kib in [4, 16, 64] {
            for depth in [1, 8, DEEP] {
                points.push(point(threads, request_kib, depth)?);
            }
        }
    }
    Ok(HostCosts { request_us: engine_us + transport_us, sub_request_us, turn_us, transport_us, points })
}

/// Processor time of the ring for a command to a null drive, with `depth` in flight, in µs: the median of the rounds after a warm-up.
fn command_us(rounds: usize, count: u64, depth: usize) -> Result<f64> {
    let ring = Ring::new().context(NO_RING)?;
    let (runtime, commands) = (Runtime::new(), Rc::default());
    let drive = NullDrive::new(&ring, Model::zn540().geometry, &commands)?;
    let round = || {
        let mut queue: VecDeque<Completion> = VecDeque::with_capacity(depth);
        let (begun, mut submitted, mut completed) = (thread_seconds(), 0, 0);
        while completed < count {
            while submitted < count && queue.len() < depth {
                queue.push_back(drive.submit(Command::FlushZrwa { last: Lba(0) }));
                submitted += 1;
            }
            runtime.run();
            let before = completed;
            while let Some(done) = queue.front_mut().and_then(Completion::take) {
                done.result?;
                queue.pop_front();
                completed += 1;
            }
            if completed == before && !ring.wait()? {
                bail!("the drives no longer respond");
            }
        }
        Ok((thread_seconds() - begun) * 1e6 / count as f64)
    };
    round()?;
    Ok(median((0..rounds.max(1)).map(|_| round()).collect::<Result<_>>()?))
}

/// Rates of this number of threads, each with an array, running at the same time.
fn point(threads: usize, request_kib: u64, depth: usize) -> Result<Point> {
    let count = if depth == 1 { SINGLE_REQUESTS } else { REQUESTS } * 4 / request_kib;
    let all = |fronted: bool| -> Result<Vec<StreamCost>> {
        let one = || ArrayRig::new(true, fronted)?.median(3, count, depth, request_kib << 10);
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            let ended = running.into_iter().map(|thread| thread.join());
            ended.map(|spent| spent.unwrap_or_else(|_| bail!("a thread did not end"))).collect()
        })
    };
    let (alone, fronted) = (all(false)?, all(true)?);
    let mean_ns = |spent: &[StreamCost], us: fn(&StreamCost) -> f64| {
        spent.iter().map(us).sum::<f64>() * 1e3 / threads as f64
    };
    let a_second = |spent: &[StreamCost]| spent.iter().map(|spent| 1e6 / spent.wall_us).sum();
    Ok(Point {
        threads,
        request_kib,
        depth,
        requests_a_second: a_second(&fronted),
        array_requests_a_second: a_second(&alone),
        request_ns: mean_ns(&fronted, |spent| spent.wall_us),
        request_cpu_ns: mean_ns(&fronted, |spent| spent.us),
        array_request_ns: mean_ns(&alone, |spent| spent.wall_us),
        array_request_cpu_ns: mean_ns(&alone, |spent| spent.us),
        commands_a_request: alone.iter().map(|spent| spent.commands).sum::<f64>() / threads as f64,
    })
}

fn text(costs: &HostCosts) -> String {
    let mut text = format!(
        "One thread of the daemon, null drives\n  \
         a request {:>29.2} µs\n    of which a stand-in for ublk {:>8.2} µs\n  \
         a command to a drive {:>18.2} µs\n  a turn of the loop {:>20.2} µs\n\n\
         Thousands of writes a second; two threads have an array each\n  \
         threads  KiB  depth  with a block device  array alone  commands each  CPU, ns each  alone\n",
        costs.request_us, costs.transport_us, costs.sub_request_us, costs.turn_us
    );
    for point in &costs.points {
        text += &format!(
            "  {:>7}  {:>3}  {:>5}  {:>19.0}  {:>11.0}  {:>13.2}  {:>12.0}  {:>5.0}\n",
            point.threads,
            point.request_kib,
            point.depth,
            point.requests_a_second / 1e3,
            point.array_requests_a_second / 1e3,
            point.commands_a_request,
            point.request_cpu_ns,
            point.array_request_cpu_ns
        );
    }
    text
}

/// Stand-in for a block device in front of the array: the source of the data of requests, and the target of their
/// answers.
struct RequestMemory {
    memory: File,
    answers: NullDrive,
}

/// Size of the source, in bytes.
const FRONT_BYTES: usize = 1 << 20;

/// An array on null drives, with its own ring.
pub(super) struct ArrayRig {
    runtime: Runtime,
    ring: Ring,
    array: Array,
    front: Option<RequestMemory>,
    commands: Rc<Cell<u64>>,
}

impl ArrayRig {
    fn new(join: bool, fronted: bool) -> Result<ArrayRig> {
        ArrayRig::with(options_with(1), join, fronted)
    }

    /// An array that is created with `options`.
    pub(super) fn with(options: CreateOptions, join: bool, fronted: bool) -> Result<ArrayRig> {
        let ring = Ring::new().context(NO_RING)?;
        let (runtime, commands, model) = (Runtime::new(), Rc::default(), Model::zn540());
        let capacity = model.geometry.zone_capacity_blocks;
        let geometry = model.scaled(8, capacity).geometry;
        let drive = |n: usize| {
            let device: Rc<dyn ZonedDevice> = Rc::new(NullDrive::new(&ring, geometry.clone(), &commands)?);
            anyhow::Ok(Drive { name: n.to_string(), device })
        };
        let drives = (0..=DATA_CHUNKS).map(drive).collect::<Result<Vec<_>>>()?;
        let behaviour = ArrayOptions { join, ..ArrayOptions::default() };
        let create = Array::create_with(&runtime, options, drives, behaviour);
        let array = runtime.block_on(create, || ring.wait().unwrap_or(false));
        let array = array.context("the array does not answer")??;
        let front = || {
            let memory = File::from(memfd_create("zoneraid-bench", MemfdFlags::CLOEXEC)?);
            memory.write_all_at(&vec![0x5a; FRONT_BYTES], 0)?;
            // Answers are not counted as commands to drives.
            anyhow::Ok(RequestMemory {
                memory,
                answers: NullDrive::new(&ring, geometry.clone(), &Rc::default())?,
            })
        };
        let front = fronted.then(front).transpose()?;
        Ok(ArrayRig { runtime, ring, array, front, commands })
    }

    /// The round with the median time, after a warm-up. Each round writes the first zone from its start.
    pub(super) fn median(&self, rounds: usize, count: u64, depth: usize, bytes: u64) -> Result<StreamCost> {
        let round = || {
            let reset = self.array.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) });
            let done = self.runtime.block_on(reset, || self.ring.wait().unwrap_or(false));
            done.context("the array does not answer")?.result?;
            self.stream(count, depth, bytes)
        };
        round()?;
        let rounds = (0..rounds.max(1)).map(|_| round()).collect::<Result<Vec<_>>>()?;
        let of = |value: fn(&StreamCost) -> f64| median(rounds.iter().map(value).collect());
        Ok(StreamCost {
            us: of(|spent| spent.us),
            wall_us: of(|spent| spent.wall_us),
            commands: of(|spent| spent.commands),
            turns: of(|spent| spent.turns),
        })
    }

    /// Keeps `depth` writes of `bytes` bytes in flight until `count` have completed, and been answered if there is a
    /// stand-in.
    fn stream(&self, count: u64, depth: usize, bytes: u64) -> Result<StreamCost> {
        let blocks = bytes / BLOCK as u64;
        let fresh = || Buf::copy_of(&vec![0x5a; bytes as usize]);
        let mut spare: Vec<Buf> = (0..depth).map(|_| fresh()).collect();
        let mut queue: VecDeque<Completion> = VecDeque::with_capacity(depth);
        let mut answers: VecDeque<(Completion, Buf)> = VecDeque::with_capacity(depth);
        let (wall, before, commands) = (Instant::now(), thread_seconds(), self.commands.get());
        let (mut submitted, mut completed, mut turns) = (0, 0, 0_u64);
        while completed < count {
            while submitted < count
                && let Some(mut data) = spare.pop()
            {
                if let (Some(front), Some(memory)) = (&self.front, data.as_mut()) {
                    front.memory.read_exact_at(memory, submitted * bytes % FRONT_BYTES as u64)?;
                }
                queue.push_back(self.array.submit(Command::write(Lba(submitted * blocks), data, false)));
                submitted += 1;
            }
            self.runtime.run();
            let before = completed;
            while let Some(done) = queue.front_mut().and_then(Completion::take) {
                queue.pop_front();
                done.result?;
                let answer = match &self.front {
                    Some(front) => front.answers.submit(Command::FlushZrwa { last: Lba(0) }),
                    None => Completion::ready(Done::ok()),
                };
                answers.push_back((answer, done.data));
            }
            while let Some(done) = answers.front_mut().and_then(|(answer, _)| answer.take()) {
                done.result?;
                spare.extend(answers.pop_front().map(|(_, data)| data));
                completed += 1;
            }
            if completed == before {
                turns += 1;
                if !self.ring.wait()? {
                    bail!("the drives no longer respond");
                }
            }
        }
        let each = |value: f64| value / count as f64;
        Ok(StreamCost {
            us: each((thread_seconds() - before) * 1e6),
            wall_us: each(wall.elapsed().as_secs_f64() * 1e6),
            commands: each((self.commands.get() - commands) as f64),
            turns: each(turns as f64),
        })
    }
}
