//! What a request and a command to a drive cost the daemon on this machine, for the lab (`lab --host FILE`), and how
//! many requests a second it reaches when drives take no time.
//!
//! The array of [`super`] on files in memory, by way of io_uring. The same 4 KiB writes are joined, and not: the
//! commands that joining saves say what one costs, and what is left is the request's. One request at a time says what a
//! turn of the event loop costs. How requests come to the daemon is not part of that: a stand-in for what ublk needs for
//! each, a read of 4 KiB and an operation that does nothing, is measured by itself and added to the request.
//! Costs are processor time of one thread; requests a second are by the clock on the wall, of one thread and of two
//! with an array each, which share nothing: what two threads of transport could reach at most.

use super::{
    CHUNK_BYTES, DATA_CHUNKS,
    file::{FileDrive, thread_seconds},
    median,
};
use crate::{
    output::{HEALTHY, Output},
    ring::Ring,
};
use anyhow::{Context, Result, bail};
use engine::{
    array::{Array, Behaviour, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Completion, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use serde::Serialize;
use sim::ssd::Model;
use std::{
    cell::Cell,
    collections::VecDeque,
    path::{Path, PathBuf},
    rc::Rc,
    time::Instant,
};

const REQUESTS: u64 = 100_000;
const SINGLE_REQUESTS: u64 = 20_000;
const DEEP: usize = 64;

/// What the lab takes, in µs of one thread.
#[derive(Serialize)]
struct Costs {
    /// A request, with `transport_us` in it.
    request_us: f64,
    /// A command to a drive.
    sub_request_us: f64,
    /// A turn of the event loop by itself.
    turn_us: f64,
    /// A stand-in for how requests come in and are answered.
    transport_us: f64,
    points: Vec<Point>,
}

/// Requests a second with drives that take no time.
#[derive(Serialize)]
struct Point {
    threads: usize,
    request_kib: u64,
    depth: usize,
    requests_a_second: f64,
    commands_a_request: f64,
}

/// What a stream of requests took, for each of them.
#[derive(Clone, Copy)]
struct Spent {
    us: f64,
    wall_us: f64,
    commands: f64,
    turns: f64,
}

/// Measures and prints; files are made in `directory`.
pub fn run(output: Output, rounds: usize, directory: Option<PathBuf>) -> Result<u8> {
    if cfg!(debug_assertions) {
        output.note("this is not a release build; the figures mean little");
    }
    let memory = PathBuf::from("/dev/shm");
    let fallback = || if memory.is_dir() { memory.clone() } else { std::env::temp_dir() };
    let directory = directory.unwrap_or_else(fallback);
    let costs = costs(rounds, &directory)?;
    output.print(&costs, text)?;
    Ok(HEALTHY)
}

fn costs(rounds: usize, directory: &Path) -> Result<Costs> {
    let of = |join: bool, count: u64, depth: usize| -> Result<Spent> {
        let rig = Rig::new(directory, join)?;
        rig.median(rounds, count, depth, BLOCK as u64)
    };
    let (joined, each) = (of(true, REQUESTS, DEEP)?, of(false, REQUESTS, DEEP)?);
    let one = of(true, SINGLE_REQUESTS, 1)?;
    let transport_us = Rig::new(directory, true)?.transport(rounds)?;
    let sub_request_us = ((each.us - joined.us) / (each.commands - joined.commands)).max(0.0);
    let engine_us = (joined.us - joined.commands * sub_request_us).max(0.0);
    let turn_us = ((one.us - engine_us - one.commands * sub_request_us) / one.turns).max(0.0);
    let mut points = Vec::new();
    for threads in [1, 2] {
        for request_kib in [4, 16, 64] {
            for depth in [1, 8, DEEP] {
                points.push(point(directory, threads, request_kib, depth)?);
            }
        }
    }
    Ok(Costs { request_us: engine_us + transport_us, sub_request_us, turn_us, transport_us, points })
}

/// So many threads with an array each, all at the same time.
fn point(directory: &Path, threads: usize, request_kib: u64, depth: usize) -> Result<Point> {
    let count = if depth == 1 { SINGLE_REQUESTS } else { REQUESTS } * 4 / request_kib;
    let one = || Rig::new(directory, true)?.median(3, count, depth, request_kib << 10);
    let spent: Result<Vec<Spent>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|spent| spent.unwrap_or_else(|_| bail!("a thread did not end"))).collect()
    });
    let spent = spent?;
    Ok(Point {
        threads,
        request_kib,
        depth,
        requests_a_second: spent.iter().map(|spent| 1e6 / spent.wall_us).sum(),
        commands_a_request: spent.iter().map(|spent| spent.commands).sum::<f64>() / threads as f64,
    })
}

fn text(costs: &Costs) -> String {
    let mut text = format!(
        "One thread of the daemon, drives in files\n  \
         a request {:>29.2} µs\n    of which a stand-in for ublk {:>8.2} µs\n  \
         a command to a drive {:>18.2} µs\n  a turn of the loop {:>20.2} µs\n\n\
         Requests a second, drives that take no time; two threads have an array each\n  \
         threads  KiB  depth  thousand/s  commands each\n",
        costs.request_us, costs.transport_us, costs.sub_request_us, costs.turn_us
    );
    for point in &costs.points {
        text += &format!(
            "  {:>7}  {:>3}  {:>5}  {:>10.0}  {:>13.2}\n",
            point.threads,
            point.request_kib,
            point.depth,
            point.requests_a_second / 1e3,
            point.commands_a_request
        );
    }
    text
}

/// An array over drives in files, on a ring of its own.
struct Rig {
    runtime: Runtime,
    ring: Ring,
    array: Array,
    /// One more drive, for the stand-in.
    other: FileDrive,
    commands: Rc<Cell<u64>>,
}

impl Rig {
    fn new(directory: &Path, join: bool) -> Result<Rig> {
        let ring = Ring::new().context("the kernel gives no io_uring (Linux 6.1 or newer)")?;
        let (runtime, commands, model) = (Runtime::new(), Rc::default(), Model::zn540());
        let capacity = model.geometry.zone_capacity_blocks;
        let geometry = model.scaled(8, capacity).geometry;
        let drive = |n: usize| {
            let device: Rc<dyn ZonedDevice> =
                Rc::new(FileDrive::new(&ring, directory, geometry.clone(), &commands)?);
            anyhow::Ok(Drive { name: n.to_string(), device })
        };
        let drives = (0..=DATA_CHUNKS).map(drive).collect::<Result<Vec<_>>>()?;
        let options = CreateOptions {
            group_blocks: 0,
            spare_zones: None,
            name: "bench".into(),
            uuid: [1; 16],
            chunk_blocks: (CHUNK_BYTES / BLOCK) as u64,
            zone_size_blocks: None,
            parities: 1,
            policy: None,
            host: [0; 16],
            autostart: false,
        };
        let behaviour = Behaviour { join, ..Behaviour::default() };
        let create = Array::create_with(&runtime, options, drives, behaviour);
        let array = runtime.block_on(create, || ring.wait().unwrap_or(false));
        let array = array.context("the array does not answer")??;
        let other = FileDrive::new(&ring, directory, geometry.clone(), &commands)?;
        Ok(Rig { runtime, ring, array, other, commands })
    }

    /// The round with the median time, after one to warm up; each writes the first zone from its start.
    fn median(&self, rounds: usize, count: u64, depth: usize, bytes: u64) -> Result<Spent> {
        let blocks = bytes / BLOCK as u64;
        let round = || {
            let reset = self.array.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) });
            let done = self.runtime.block_on(reset, || self.ring.wait().unwrap_or(false));
            done.context("the array does not answer")?.result?;
            self.stream(&self.array, count, depth, bytes, |n, data| {
                Command::write(Lba(n * blocks), data, false)
            })
        };
        round()?;
        let rounds = (0..rounds.max(1)).map(|_| round()).collect::<Result<Vec<_>>>()?;
        let of = |value: fn(&Spent) -> f64| median(rounds.iter().map(value).collect());
        Ok(Spent {
            us: of(|spent| spent.us),
            wall_us: of(|spent| spent.wall_us),
            commands: of(|spent| spent.commands),
            turns: of(|spent| spent.turns),
        })
    }

    /// µs of a 4 KiB read and of an operation that does nothing, with many on their way.
    fn transport(&self, rounds: usize) -> Result<f64> {
        let both = || {
            let read = self.stream(&self.other, REQUESTS, DEEP, BLOCK as u64, |n, data| {
                Command::read(Lba(n % 64), data)
            })?;
            let nothing = self.stream(&self.other, REQUESTS, DEEP, BLOCK as u64, |n, _| {
                Command::FlushZrwa { last: Lba(n) }
            })?;
            anyhow::Ok(read.us + nothing.us)
        };
        both()?;
        Ok(median((0..rounds.max(1)).map(|_| both()).collect::<Result<Vec<_>>>()?))
    }

    /// Keeps `depth` commands on their way until `count` of them are done.
    fn stream(
        &self,
        device: &dyn ZonedDevice,
        count: u64,
        depth: usize,
        bytes: u64,
        command: impl Fn(u64, Buf) -> Command,
    ) -> Result<Spent> {
        let fresh = || Buf::copy_of(&vec![0x5a; bytes as usize]);
        let mut spare: Vec<Buf> = (0..depth).map(|_| fresh()).collect();
        let mut queue: VecDeque<Completion> = VecDeque::with_capacity(depth);
        let (wall, before, commands) = (Instant::now(), thread_seconds(), self.commands.get());
        let (mut submitted, mut completed, mut turns) = (0, 0, 0_u64);
        while completed < count {
            while submitted < count
                && let Some(buf) = spare.pop()
            {
                queue.push_back(device.submit(command(submitted, buf)));
                submitted += 1;
            }
            self.runtime.run();
            let before = completed;
            while let Some(mut oldest) = queue.pop_front() {
                let Some(done) = oldest.take() else {
                    queue.push_front(oldest);
                    break;
                };
                done.result?;
                // What does nothing gives no buffer back.
                spare.push(if done.data.is_empty() { Buf::default() } else { done.data });
                completed += 1;
            }
            if completed == before {
                turns += 1;
                if !self.ring.wait()? {
                    bail!("the drives do not answer any more");
                }
            }
        }
        let each = |value: f64| value / count as f64;
        Ok(Spent {
            us: each((thread_seconds() - before) * 1e6),
            wall_us: each(wall.elapsed().as_secs_f64() * 1e6),
            commands: each((self.commands.get() - commands) as f64),
            turns: each(turns as f64),
        })
    }
}
