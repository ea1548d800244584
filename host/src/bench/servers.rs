//! The NBD server of zoneraid beside nbdkit and qemu-nbd: processor time of each server for a request of fio.
//!
//! Servers listen on Unix sockets in a temporary directory, in memory if the machine has `/dev/shm`. nbdkit and qemu-nbd
//! serve one file, zoneraid a volume on a RAID-5 of five emulated drives: it writes parity and a log as well, and its
//! drives are five files. Processor time is user and system time of the server's process, by `/proc/PID/stat`, in ticks
//! of 10 ms; each figure is the median of the rounds. Servers that are not installed have a row without figures.

use super::{CHUNK_BYTES, DATA_CHUNKS, begin, median, pq, processor};
use crate::process::output::{HEALTHY, Output, table};
use anyhow::{Context, Result, bail, ensure};
use rustix::param::clock_ticks_per_second;
use serde::Serialize;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Exported bytes that are read and written, all of them once before the measurement.
const SPAN_BYTES: u64 = if cfg!(debug_assertions) { 16 << 20 } else { 512 << 20 };
/// Bytes of the requests of a round.
const SMALL_BYTES: u64 = if cfg!(debug_assertions) { 4 << 20 } else { 256 << 20 };
const LARGE_BYTES: u64 = if cfg!(debug_assertions) { 16 << 20 } else { 2 << 30 };
/// Time limit for the start of a server.
const PATIENCE: Duration = Duration::from_secs(30);
/// Package with the client.
const CLIENT_PACKAGE: &str = "fio";

#[derive(Serialize)]
struct PeerComparison {
    processor: String,
    servers: Vec<ServerCosts>,
    /// P and Q of four chunks of 64 KiB by the engine and by ISA-L, in data bytes; `None` if it is not installed.
    pq_gb_s: f64,
    pq_isal_gb_s: Option<f64>,
    /// Command that installs ISA-L; `None` if it is installed.
    isal_install: Option<&'static str>,
}

/// Costs of a request of one server: time between two requests, and processor time of the server.
#[derive(Default, Serialize)]
struct ServerCosts {
    server: &'static str,
    /// Command that installs the missing programs, the server or fio; `None` if the server was measured.
    install: Option<String>,
    /// 4 KiB at random places, queue depth 32.
    write_4k_ns: Option<f64>,
    write_4k_cpu_ns: Option<f64>,
    read_4k_ns: Option<f64>,
    read_4k_cpu_ns: Option<f64>,
    /// 1 MiB, sequential, queue depth 8.
    read_1m_ns: Option<f64>,
    read_1m_cpu_ns: Option<f64>,
}

/// A server to be measured.
#[derive(Clone, Copy)]
enum Served {
    Zoneraid,
    Nbdkit,
    QemuNbd,
}

impl Served {
    const ALL: [Served; 3] = [Served::Zoneraid, Served::Nbdkit, Served::QemuNbd];

    fn name(self) -> &'static str {
        match self {
            Served::Zoneraid => "zoneraid serve --nbd",
            Served::Nbdkit => "nbdkit file",
            Served::QemuNbd => "qemu-nbd",
        }
    }

    /// Program and package of another server than zoneraid.
    fn package(self) -> Option<(&'static str, &'static str)> {
        match self {
            Served::Zoneraid => None,
            Served::Nbdkit => Some(("nbdkit", "nbdkit")),
            Served::QemuNbd => Some(("qemu-nbd", "qemu-utils")),
        }
    }

    /// Command that installs this server and fio, as far as they are missing; `None` if both are installed.
    fn install(self) -> Option<String> {
        let client = Some((CLIENT_PACKAGE, CLIENT_PACKAGE));
        let missing =
            [client, self.package()].into_iter().flatten().filter(|(program, _)| !is_installed(program));
        let packages: Vec<&str> = missing.map(|(_, package)| package).collect();
        (!packages.is_empty()).then(|| format!("apt-get install {}", packages.join(" ")))
    }

    /// The server on `socket`, with its files in `dir`.
    fn command(self, dir: &Path, socket: &Path) -> Result<Command> {
        let file = dir.join("disk");
        if self.package().is_some() {
            std::fs::File::create(&file)?.set_len(SPAN_BYTES)?;
        }
        Ok(match self {
            Served::Zoneraid => {
                let run = |words: &[&str]| -> Result<()> {
                    let output = zoneraid(dir)?.args(words).output()?;
                    let text = String::from_utf8_lossy(&output.stderr);
                    ensure!(output.status.success(), "zoneraid {}: {text}", words.join(" "));
                    Ok(())
                };
                run(&["emulate", "create", "drives", "--zones", "40", "--zone-capacity", "16M"])?;
                let drives: Vec<String> = (0..=DATA_CHUNKS).map(|n| format!("drives/drive{n}.img")).collect();
                let drives = drives.iter().map(String::as_str);
                run(&["create", "bench", "--yes"].into_iter().chain(drives).collect::<Vec<_>>())?;
                run(&["volume", "create", "drives"])?;
                let mut command = zoneraid(dir)?;
                command.args(["serve", "drives", "--nbd"]).arg(socket);
                command
            }
            Served::Nbdkit => {
                let mut command = Command::new("nbdkit");
                command
                    .args(["--foreground", "--exit-with-parent", "--unix"])
                    .arg(socket)
                    .arg("file")
                    .arg(file);
                command
            }
            Served::QemuNbd => {
                let mut command = Command::new("qemu-nbd");
                command
                    .args(["--format=raw", "--persistent", "--shared=0", "--socket"])
                    .arg(socket)
                    .arg(file);
                command
            }
        })
    }
}

/// Whether a program is in a directory of `$PATH`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// This program, with its files in `dir`.
fn zoneraid(dir: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program is not found")?);
    command.current_dir(dir).env_remove("ZONERAID_DIR");
    command.env("ZONERAID_RUN_DIR", dir.join("run")).env("ZONERAID_STATE_DIR", dir.join("state"));
    Ok(command)
}

/// A running server. It is killed when this is dropped.
struct RunningServer {
    child: Child,
    socket: PathBuf,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RunningServer {
    fn start(served: Served, dir: &Path) -> Result<RunningServer> {
        let socket = dir.join("socket");
        let mut command = served.command(dir, &socket)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("{} does not start", served.name()))?;
        let mut server = RunningServer { child, socket };
        let begun = Instant::now();
        while !server.socket.exists() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{} has ended: {status}", served.name());
            }
            ensure!(begun.elapsed() < PATIENCE, "{} does not listen", served.name());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// User and system time of the server so far, in seconds.
    fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = cpu_ticks(&stat).context("/proc/PID/stat is of an unknown form")?;
        Ok(ticks as f64 / clock_ticks_per_second() as f64)
    }

    /// Runs fio once; returns its number of requests and its report of them.
    fn load(&self, job: &FioJob) -> Result<(f64, f64)> {
        let uri = format!("--uri=nbd+unix:///?socket={}", self.socket.display());
        let mut fio = Command::new(CLIENT_PACKAGE);
        fio.args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--randrepeat=1", &uri]);
        fio.args([&format!("--rw={}", job.kind), &format!("--bs={}", job.bytes)]);
        fio.args([
            &format!("--iodepth={}", job.depth),
            &format!("--size={SPAN_BYTES}"),
            &format!("--io_size={}", job.all),
        ]);
        let output = fio.stdin(Stdio::null()).output().context("fio cannot be started")?;
        ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr).trim());
        // fio may print notes before the object.
        let begin = output.stdout.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let report: Value = serde_json::from_slice(&output.stdout[begin..]).context("fio gives no report")?;
        let done = &report["jobs"][0][if job.kind.ends_with("write") { "write" } else { "read" }];
        let (requests, ms) = (done["total_ios"].as_f64(), done["runtime"].as_f64());
        let (requests, ms) = requests.zip(ms).context("fio reports no requests")?;
        ensure!(requests > 0.0, "fio has sent no requests");
        Ok((requests, ms * 1e6 / requests))
    }

    /// Time between two requests, and processor time of the server for each, in ns.
    fn cost(&self, rounds: usize, job: &FioJob) -> Result<[Option<f64>; 2]> {
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let before = self.cpu_seconds()?;
            let (requests, ns) = self.load(job)?;
            costs[0].push(ns);
            costs[1].push((self.cpu_seconds()? - before) * 1e9 / requests);
        }
        Ok(costs.map(|costs| Some(median(costs))))
    }
}

/// Ticks in user and system mode of a process, by its `/proc/PID/stat`. The name of the program may contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
    Some(ticks.next()?? + ticks.next()??)
}

/// A load of fio.
struct FioJob {
    kind: &'static str,
    bytes: &'static str,
    depth: usize,
    /// Bytes of all requests.
    all: u64,
}

const FILL: FioJob = FioJob { kind: "write", bytes: "1M", depth: 8, all: SPAN_BYTES };
const WRITE_4K: FioJob = FioJob { kind: "randwrite", bytes: "4k", depth: 32, all: SMALL_BYTES };
const READ_4K: FioJob = FioJob { kind: "randread", bytes: "4k", depth: 32, all: SMALL_BYTES };
const READ_1M: FioJob = FioJob { kind: "read", bytes: "1M", depth: 8, all: LARGE_BYTES };

fn measure(served: Served, rounds: usize) -> Result<ServerCosts> {
    let server = served.name();
    let install = served.install();
    if install.is_some() {
        return Ok(ServerCosts { server, install, ..ServerCosts::default() });
    }
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.context("no temporary directory can be created")?;
    let running = RunningServer::start(served, dir.path())?;
    running.load(&FILL)?;
    let [write_4k_ns, write_4k_cpu_ns] = running.cost(rounds, &WRITE_4K)?;
    let [read_4k_ns, read_4k_cpu_ns] = running.cost(rounds, &READ_4K)?;
    let [read_1m_ns, read_1m_cpu_ns] = running.cost(rounds, &READ_1M)?;
    Ok(ServerCosts {
        server,
        install,
        write_4k_ns,
        write_4k_cpu_ns,
        read_4k_ns,
        read_4k_cpu_ns,
        read_1m_ns,
        read_1m_cpu_ns,
    })
}

/// Runs the comparison and prints it.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let bar = output.steps("measuring", Served::ALL.len() as u64 + 1);
    bar.enable_steady_tick(Duration::from_secs(2));
    let mut servers = Vec::new();
    for served in Served::ALL {
        bar.set_message(served.name());
        servers.push(measure(served, rounds).with_context(|| served.name())?);
        bar.inc(1);
    }
    let (pq_gb_s, pq_isal_gb_s) = pq(rounds, DATA_CHUNKS, CHUNK_BYTES)?;
    bar.finish_and_clear();
    let isal_install = pq_isal_gb_s.is_none().then_some("apt-get install libisal2");
    let compared = PeerComparison { processor: processor(), servers, pq_gb_s, pq_isal_gb_s, isal_install };
    output.print(&compared, comparison_text)?;
    Ok(HEALTHY)
}

fn comparison_text(compared: &PeerComparison) -> String {
    let heads = ["PROCESSOR TIME OF THE SERVER", "4 KiB WRITE", "4 KiB READ", "1 MiB READ", "NOTE"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let us = |ns: Option<f64>| ns.map_or("-".to_string(), |ns| format!("{:.1} µs", ns / 1e3));
    rows.extend(compared.servers.iter().map(|costs| {
        let note = costs.install.as_ref().map(|install| format!("not installed: {install}"));
        let figures = [costs.write_4k_cpu_ns, costs.read_4k_cpu_ns, costs.read_1m_cpu_ns].map(us);
        let [write, read, large] = figures;
        vec![costs.server.to_string(), write, read, large, note.unwrap_or_default()]
    }));
    let isal = match (compared.pq_isal_gb_s, compared.isal_install) {
        (Some(rate), _) => format!("{rate:.1} GB/s"),
        (None, install) => format!("not installed: {}", install.unwrap_or_default()),
    };
    format!(
        "{}\n{}P and Q of {DATA_CHUNKS} chunks of 64 KiB: {:.1} GB/s; by ISA-L: {isal}\n",
        compared.processor,
        table(&rows),
        compared.pq_gb_s
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_fields_behind_program_name() {
        let stat = "71 (a) b (c) S 1 71 71 0 -1 4194560 101 0 0 0 17 25 0 0 20 0 1 0 5 6 7";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("71 (a) S 1 2"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(cpu_ticks(&own).is_some(), "{own}");
    }

    #[test]
    fn server_is_killed_when_dropped() {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        let server = RunningServer { child, socket: PathBuf::new() };
        assert!(server.cpu_seconds().is_ok() && proc.exists());
        drop(server);
        assert!(!proc.exists());
    }
}
