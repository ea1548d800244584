//! Fairness: latency of one quiet client beside eight greedy ones, and duration of the turns of the event loop.
//!
//! An array of drives that complete at once and store nothing carries two volumes of 8 TiB, each in its own namespace,
//! served to NBD clients by one event loop as in the daemon. The quiet client writes 4 KiB, waits for the reply, and
//! pauses. The greedy clients keep as many requests in flight as they may, on the same volume or on the other one.
//! Since the drives are no bottleneck, the processor is: this is the strictest case.
//!
//! Latencies are measured twice: in wall-clock time, and in processor time of the event loop between a request and its
//! reply, which does not depend on other load of this machine. The limit applies to the latter. Rounds without and with
//! greedy clients alternate, and each figure is the median of its rounds.

use super::{
    DATA_CHUNKS, begin,
    idle::Idle,
    median,
    null::thread_seconds,
    options_with,
    peer::{BLOCK_STATUS, Peer, TRIM, WRITE, head},
};
use crate::{
    process::{
        clock::clock,
        output::{FAILED, HEALTHY, Output, table},
    },
    reactor::{Reactor, ring::Ring},
    serve::nbd::{NbdAddress, Server},
};
use anyhow::{Context, Result, bail, ensure};
use emu::rng::Rng;
use engine::{
    array::{Array, Drive},
    buf::BLOCK,
    device::ZonedDevice,
    qos::Qos,
    volume::{Volume, VolumeCreateOptions, VolumeOptions},
    vzone::{self, Namespaces, PATIENCE_US, Spec},
};
use rustix::io::Errno;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Limit for the latency of the quiet client beside greedy ones, as a multiple of its latency alone.
const MOST_RATIO: f64 = 3.0;
/// Limit for a turn of the event loop, in µs of processor time.
const MOST_TURN_US: u64 = 2_000;

const GREEDY: u64 = 8;
/// Requests of the quiet client in each half of a round, and the pause between two of them.
const REQUESTS: usize = if cfg!(debug_assertions) { 20 } else { 400 };
const PAUSE: Duration = Duration::from_millis(2);

/// Logical blocks of a volume, zones of its namespace, and zones of each drive.
const BLOCKS: u64 = 1 << 31;
const VOLUME_ZONES: u32 = 60;
const VOLUME_ACTIVE: u32 = 5;
/// Zones of the array in a zone of a namespace.
const VZONE_ZONES: u32 = 4;
const DRIVE_ZONES: u32 = 640;
const DRIVE_ACTIVE: u32 = 64;
/// Range of the small writes: 64 GiB.
const REGION_BLOCKS: u64 = 1 << 24;
/// Length of a request without data: nearly 4 GiB.
const MOST_BYTES: u32 = u32::MAX / BLOCK as u32 * BLOCK as u32;

#[derive(Serialize)]
struct Fairness {
    most_ratio: f64,
    most_turn_us: u64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    greedy: &'static str,
    /// The greedy clients use the volume of the quiet one.
    same_volume: bool,
    /// 99th percentile of the quiet client's latency, in wall-clock time.
    alone_p99_us: f64,
    beside_p99_us: f64,
    /// The same in processor time of the event loop.
    alone_p99_work_us: f64,
    beside_p99_work_us: f64,
    ratio: f64,
    /// Requests of all greedy clients together: rate, time between two of them, and processor time of the event loop for
    /// each, with that of the requests of the quiet client.
    greedy_requests_a_second: f64,
    greedy_request_ns: f64,
    greedy_request_cpu_ns: f64,
    /// In processor time, at most a quarter too high; of all rounds after the warm-up.
    longest_turn_us: u64,
}

/// Load of the greedy clients.
#[derive(Clone, Copy)]
enum Greed {
    SmallWrites,
    LargeWrites,
    Discards,
    Status,
}

const GREED: [(Greed, &str); 4] = [
    (Greed::SmallWrites, "4 KiB writes, 32 each"),
    (Greed::LargeWrites, "1 MiB writes, 8 each"),
    (Greed::Discards, "4 KiB writes and discards of 4 GiB, 16 each"),
    (Greed::Status, "block status of 4 GiB, 8 each"),
];

/// What the quiet client measures.
struct Latencies {
    /// 99th percentiles of the latency, in µs: wall-clock time, and processor time of the event loop.
    p99_us: f64,
    p99_work_us: f64,
    /// Processor time of the event loop from the first request to the last reply, in seconds.
    loop_seconds: f64,
}

/// Time between two requests of all greedy clients together, and processor time of the event loop for each.
struct GreedyCost {
    ns: f64,
    cpu_ns: f64,
}

/// Handles of the event loop's thread for other threads.
struct ServerHandles {
    sockets: [PathBuf; 2],
    /// Takes a quiet client, and returns its latencies.
    quiet: mpsc::Sender<Peer>,
    latencies: mpsc::Receiver<Result<Latencies>>,
}

/// Runs the benchmark, prints the results, and fails if a limit is exceeded.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let dir = tempfile::tempdir().context("no directory for sockets can be created")?;
    let (ready, wait) = mpsc::channel();
    let (stop, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    let rows = std::thread::scope(|scope| {
        let (stop, longest, dir) = (&stop, &longest, dir.path());
        let server = scope.spawn(move || serve(dir, ready, stop, longest));
        let measured = || {
            let served = wait.recv_timeout(Duration::from_secs(60)).context("the volumes are not served")?;
            let bar = output.steps("measuring", GREED.len() as u64 * 2);
            let mut rows = Vec::new();
            for same_volume in [true, false] {
                for greed in GREED {
                    rows.push(row(&served, rounds, greed, same_volume, longest)?);
                    bar.inc(1);
                }
            }
            bar.finish_and_clear();
            anyhow::Ok(rows)
        };
        let rows = measured();
        stop.store(true, Relaxed);
        match server.join() {
            Ok(ended) => ended.and(rows),
            Err(_) => bail!("the server did not end"),
        }
    })?;
    let fairness = Fairness { most_ratio: MOST_RATIO, most_turn_us: MOST_TURN_US, rows };
    output.print(&fairness, text)?;
    let is_within = |row: &Row| row.ratio <= MOST_RATIO && row.longest_turn_us <= MOST_TURN_US;
    match fairness.rows.iter().all(is_within) {
        true => Ok(HEALTHY),
        false => Ok(FAILED),
    }
}

fn text(fairness: &Fairness) -> String {
    let head = [
        "eight greedy clients",
        "volume",
        "p99 alone",
        "beside",
        "of the loop alone",
        "beside",
        "ratio",
        "requests/s",
        "of the loop each",
        "longest turn",
    ];
    let us = |us: f64| format!("{us:.0} µs");
    let row = |row: &Row| {
        vec![
            row.greedy.to_string(),
            if row.same_volume { "the same" } else { "another" }.to_string(),
            us(row.alone_p99_us),
            us(row.beside_p99_us),
            us(row.alone_p99_work_us),
            us(row.beside_p99_work_us),
            format!("{:.2}", row.ratio),
            format!("{:.0}", row.greedy_requests_a_second),
            us(row.greedy_request_cpu_ns / 1e3),
            us(row.longest_turn_us as f64),
        ]
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head.map(String::from).to_vec()).chain(fairness.rows.iter().map(row)).collect();
    format!(
        "one quiet client beside eight greedy ones, drives that answer at once\n{}\nlimits: ratio {}, turn {} µs\n",
        table(&rows),
        fairness.most_ratio,
        fairness.most_turn_us
    )
}

/// Serves both volumes until `stop` is set.
fn serve(
    dir: &Path,
    ready: mpsc::Sender<ServerHandles>,
    stop: &AtomicBool,
    longest: &AtomicU64,
) -> Result<()> {
    let reactor = Reactor::timing_work();
    let ring = reactor.ring()?.clone();
    let volumes = reactor.wait(volumes(&reactor))??;
    let mut servers = Vec::new();
    for (index, volume) in volumes.into_iter().enumerate() {
        let place = NbdAddress::Socket(socket(dir, index));
        servers.push(Server::start(&reactor, vec![(String::new(), volume)], &place, false)?);
    }
    let sockets = [socket(dir, 0), socket(dir, 1)];
    // The receiver is gone if the benchmark has failed.
    let ((quiet_in, clients), (found, latencies)) = (mpsc::channel(), mpsc::channel());
    let _ = ready.send(ServerHandles { sockets, quiet: quiet_in, latencies });
    reactor.wait(async {
        let mut before = reactor.turns().counts();
        while !stop.load(Relaxed) {
            ring.sleep(Duration::from_millis(20)).await;
            let measured = match clients.try_recv() {
                Ok(peer) => Some(quiet(ring.clone(), peer).await),
                Err(_) => None,
            };
            // [`row`] takes the maximum after each measurement, so that it is updated before the result is sent.
            let now = reactor.turns().counts();
            longest.fetch_max(now.since(&before).all_but_one_in_us(u64::MAX).unwrap_or(0), Relaxed);
            before = now;
            if let Some(latencies) = measured {
                let _ = found.send(latencies);
            }
        }
        for server in servers {
            server.close().await;
        }
    })?;
    reactor.runtime().clear();
    Ok(())
}

fn socket(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("volume{index}"))
}

/// Two volumes, each in a namespace of one array.
async fn volumes(reactor: &Reactor) -> Result<[Volume; 2]> {
    let drives: Vec<Rc<Idle>> =
        (0..=DATA_CHUNKS).map(|_| Rc::new(Idle::with_active(DRIVE_ZONES, DRIVE_ACTIVE))).collect();
    let options = options_with(1);
    let runtime = reactor.runtime();
    let members = drives.iter().enumerate();
    let members = members.map(|(n, drive)| Drive { name: n.to_string(), device: drive.clone() }).collect();
    let array: Rc<dyn ZonedDevice> = Rc::new(Array::create(runtime, options, members).await?);
    Namespaces::create(array.clone(), [1; 16], VZONE_ZONES).await?;
    let behaviour = vzone::NamespaceOptions { clock: clock(), patience_us: PATIENCE_US, admission: true };
    let namespaces = Namespaces::open(runtime, array, behaviour).await?;
    let namespace = async |name: &str| {
        let (name, qos) = (name.into(), Qos::default());
        let (zones, max_active) = (VOLUME_ZONES, VOLUME_ACTIVE);
        let spec = Spec { name, zones, max_active, max_open: max_active, essential: 1, weight: 1, qos };
        let namespace: Rc<dyn ZonedDevice> = Rc::new(namespaces.add(spec).await?);
        anyhow::Ok(namespace)
    };
    let volume = async |namespace: Rc<dyn ZonedDevice>| {
        let options =
            VolumeCreateOptions { uuid: [2; 16], blocks: Some(BLOCKS), ..VolumeCreateOptions::default() };
        Volume::create(runtime, namespace.clone(), options).await?;
        // Drives that do not store data cannot return map pages: the whole map stays in memory.
        let behaviour = VolumeOptions { map_pages: Some(usize::MAX / 2), ..VolumeOptions::default() };
        anyhow::Ok(Volume::open(runtime, namespace, behaviour).await?)
    };
    // Both namespaces are added before the first volume takes the spare zones.
    let [quiet, other] = [namespace("quiet").await?, namespace("other").await?];
    let volumes = [volume(quiet).await?, volume(other).await?];
    runtime.spawn(tick_scheduler(namespaces, reactor.ring()?.clone()));
    drives.iter().for_each(|drive| drive.idle());
    Ok(volumes)
}

/// Ticks the scheduler of the namespaces, as the daemon does.
async fn tick_scheduler(namespaces: Namespaces, ring: Ring) {
    loop {
        ring.sleep(Duration::from_millis(1)).await;
        namespaces.tick();
    }
}

/// Medians of the rounds, each without and with greedy clients, and the longest turn beside greedy ones.
fn row(
    served: &ServerHandles,
    rounds: usize,
    (greed, called): (Greed, &'static str),
    same_volume: bool,
    longest: &AtomicU64,
) -> Result<Row> {
    let mut figures: [Vec<f64>; 8] = Default::default();
    let mut longest_turn_us = 0;
    // The first round is the warm-up.
    for round in 0..=rounds {
        let alone = ask_quiet(served)?;
        longest.store(0, Relaxed);
        let (beside, greedy) = beside(served, greed, same_volume, round as u64)?;
        let ratio = beside.p99_work_us / alone.p99_work_us;
        let of_round = [
            alone.p99_us,
            beside.p99_us,
            alone.p99_work_us,
            beside.p99_work_us,
            ratio,
            1e9 / greedy.ns,
            greedy.ns,
            greedy.cpu_ns,
        ];
        if round > 0 {
            figures.iter_mut().zip(of_round).for_each(|(figures, figure)| figures.push(figure));
            longest_turn_us = longest_turn_us.max(longest.load(Relaxed));
        }
    }
    let [
        alone_p99_us,
        beside_p99_us,
        alone_p99_work_us,
        beside_p99_work_us,
        ratio,
        greedy_requests_a_second,
        greedy_request_ns,
        greedy_request_cpu_ns,
    ] = figures.map(median);
    Ok(Row {
        greedy: called,
        same_volume,
        alone_p99_us,
        beside_p99_us,
        alone_p99_work_us,
        beside_p99_work_us,
        ratio,
        greedy_requests_a_second,
        greedy_request_ns,
        greedy_request_cpu_ns,
        longest_turn_us,
    })
}

/// Runs the quiet client, see [`quiet`].
fn ask_quiet(served: &ServerHandles) -> Result<Latencies> {
    let peer = Peer::connect(&served.sockets[0], false)?;
    served.quiet.send(peer).ok().context("the server has ended")?;
    served.latencies.recv().context("the server has ended")?
}

/// The 99th percentiles of the quiet client. It is a task of the event loop, and receives its replies through the ring,
/// as from a network. So it measures the loop's own latency, independent of other load of this machine, and at most one
/// turn of the loop too long.
async fn quiet(ring: Ring, peer: Peer) -> Result<Latencies> {
    let (mut walls, mut works) = (Vec::new(), Vec::new());
    let socket = Rc::new(peer.into_socket()?);
    let mut rng = Rng::new(7);
    let begun = thread_seconds();
    for _ in 0..REQUESTS {
        ring.sleep(PAUSE).await;
        // A range that is not discarded: overlapping requests are executed one after the other.
        let at = (BLOCKS - 1 - rng.below(REGION_BLOCKS)) * BLOCK as u64;
        let request = [&head(WRITE, (at, BLOCK as u32))[..], &[0x5a; BLOCK]].concat();
        let (wall, work) = (Instant::now(), thread_seconds());
        let sent = rustix::io::write(&*socket, &request)?;
        ensure!(sent == request.len(), "the socket takes no request");
        let (mut reply, mut received) = ([0; 16], 0);
        while received < reply.len() {
            match rustix::io::read(&*socket, &mut reply[received..]) {
                Ok(0) => bail!("the server has hung up"),
                Ok(count) => received += count,
                Err(Errno::AGAIN) => _ = ring.ready(socket.clone(), libc::POLLIN).await,
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(reply[4..8] == [0; 4], "a request of the quiet client fails");
        works.push((thread_seconds() - work) * 1e6);
        walls.push(wall.elapsed().as_secs_f64() * 1e6);
    }
    let p99 = |mut of: Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() - 1 - of.len() / 100]
    };
    let loop_seconds = thread_seconds() - begun;
    Ok(Latencies { p99_us: p99(walls), p99_work_us: p99(works), loop_seconds })
}

/// Runs the quiet client beside greedy ones; also returns the cost of a request of these.
fn beside(
    served: &ServerHandles,
    greed: Greed,
    same_volume: bool,
    round: u64,
) -> Result<(Latencies, GreedyCost)> {
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let socket = &served.sockets[!same_volume as usize];
    std::thread::scope(|scope| {
        let spawn = |number| {
            let (stop, answered) = (&stop, &answered);
            scope.spawn(move || greedy(socket, greed, round << 8 | number, stop, answered))
        };
        let clients: Vec<_> = (0..GREEDY).map(spawn).collect();
        std::thread::sleep(Duration::from_millis(100));
        let (before, began) = (answered.load(Relaxed), Instant::now());
        let quiet = ask_quiet(served);
        let requests = (answered.load(Relaxed) - before).max(1) as f64;
        let ns = began.elapsed().as_secs_f64() * 1e9 / requests;
        stop.store(true, Relaxed);
        for client in clients {
            match client.join() {
                Ok(ended) => ended.context("a greedy client")?,
                Err(_) => bail!("a greedy client did not end"),
            }
        }
        let quiet = quiet?;
        let cpu_ns = quiet.loop_seconds * 1e9 / requests;
        Ok((quiet, GreedyCost { ns, cpu_ns }))
    })
}

/// Keeps requests in flight until it is stopped.
fn greedy(socket: &Path, greed: Greed, seed: u64, stop: &AtomicBool, answered: &AtomicU64) -> Result<()> {
    let mut peer = Peer::connect(socket, matches!(greed, Greed::Status))?;
    let (mut rng, data) = (Rng::new(seed), vec![0x5a; 1 << 20]);
    let depth = match greed {
        Greed::SmallWrites => 32,
        Greed::LargeWrites | Greed::Status => 8,
        Greed::Discards => 16,
    };
    let mut send = |peer: &mut Peer, number: u64| {
        let mut block = |blocks| rng.below(blocks) * BLOCK as u64;
        match greed {
            // Fifteen of sixteen requests are writes, so that each discard finds written blocks.
            Greed::Discards if !number.is_multiple_of(16) => {
                peer.request(WRITE, (block(REGION_BLOCKS), 4096), &data[..BLOCK])
            }
            Greed::SmallWrites => peer.request(WRITE, (block(REGION_BLOCKS), 4096), &data[..BLOCK]),
            Greed::LargeWrites => peer.request(WRITE, (block(REGION_BLOCKS), 1 << 20), &data),
            Greed::Discards => peer.request(TRIM, (block(REGION_BLOCKS), MOST_BYTES), &[]),
            // A quarter of the requests is for the range with data.
            Greed::Status if number.is_multiple_of(4) => {
                peer.request(BLOCK_STATUS, (block(REGION_BLOCKS), MOST_BYTES), &[])
            }
            Greed::Status => peer.request(BLOCK_STATUS, (block(BLOCKS - (1 << 20)), MOST_BYTES), &[]),
        }
    };
    for number in 0..depth {
        send(&mut peer, number)?;
    }
    let mut number = depth;
    while !stop.load(Relaxed) {
        peer.reply()?;
        answered.fetch_add(1, Relaxed);
        send(&mut peer, number)?;
        number += 1;
    }
    for _ in 0..depth {
        peer.reply()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_output_matches_schema() {
        let row = Row {
            greedy: GREED[0].1,
            same_volume: true,
            alone_p99_us: 1.0,
            beside_p99_us: 2.0,
            alone_p99_work_us: 1.0,
            beside_p99_work_us: 2.0,
            ratio: 2.0,
            greedy_requests_a_second: 1.0,
            greedy_request_ns: 1.0,
            greedy_request_cpu_ns: 1.0,
            longest_turn_us: 1,
        };
        let fairness = Fairness { most_ratio: MOST_RATIO, most_turn_us: MOST_TURN_US, rows: vec![row] };
        assert_eq!(crate::process::output::undescribed(&fairness, "bench-fairness.json"), [""; 0]);
    }
}
