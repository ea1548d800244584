//! One run of a guest: passes its output on, carries out its requests, judges its end.

use crate::{
    initramfs,
    kernel::Kernel,
    machine::{self, Machine},
    qmp::Qmp,
};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::json;
use std::{
    env, fs,
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Child, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Exit status: the time limit was reached.
pub const TOO_LONG: u8 = 124;
/// Exit status: there is no guest, or it died.
pub const NO_GUEST: u8 = 125;

/// Signals that end the runner, which then removes its directories: interrupt, terminate, hang up.
const SIGNALS: [i32; 3] = [2, 15, 1];

/// Polling interval of the shared directory.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    machine: Machine,
    /// Directory that the guest sees as /mnt/guest; a new one by default, removed at the end
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Command line for bash
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// What only the outside can do.
#[derive(Subcommand)]
pub enum Ask {
    /// Cut the power and boot again: memory is lost, drives keep their data and zone states
    Reset {
        /// Delay in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 0)]
        after: u64,
    },
    /// Pull a drive out
    Unplug {
        /// The number in the drive's serial
        drive: usize,
    },
}

impl Run {
    pub fn run(&self) -> Result<ExitCode> {
        let temporary;
        let out = match &self.out {
            Some(out) => out,
            None => {
                temporary = tempfile::tempdir()?;
                temporary.path()
            }
        };
        let end = live(&self.machine, &self.command.join(" "), 0, out, &mut std::io::stdout())?;
        if let End::Died(words) | End::TooLong(words) = &end {
            eprintln!("guest: {}; the end of its console:\n{words}", end.sentence());
        }
        Ok(ExitCode::from(end.status()))
    }
}

/// The end of a guest, with the last lines of its console if it did not exit by itself.
pub enum End {
    Exited(u8),
    Died(String),
    TooLong(String),
}

impl End {
    pub fn status(&self) -> u8 {
        match self {
            Self::Exited(status) => *status,
            Self::TooLong(_) => TOO_LONG,
            Self::Died(_) => NO_GUEST,
        }
    }

    pub fn sentence(&self) -> String {
        match self {
            Self::Exited(status) => format!("exit status {status}"),
            Self::Died(_) => "the guest died".into(),
            Self::TooLong(_) => "the time limit is over".into(),
        }
    }
}

/// Runs `command` in a guest; its output goes to `sink` and to `log` in `out`.
pub fn live(machine: &Machine, command: &str, seed: u64, out: &Path, sink: &mut dyn Write) -> Result<End> {
    let kernel = Kernel::find(machine.kernel.as_deref())?;
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let out = out.canonicalize()?;
    let notes = Notes::new(&out)?;
    let binary = env::current_exe()?;
    let bin = binary.parent().context("this program is in no directory")?;
    let tools: Result<Vec<String>> =
        machine.tools.iter().map(|package| Ok(package.programs()?.display().to_string())).collect();
    let environment = [
        ("GUEST_KERNEL", kernel.root.canonicalize()?.display().to_string()),
        ("GUEST_BIN", bin.display().to_string()),
        ("GUEST_TOOLS", tools?.join(":")),
        ("GUEST_CWD", env::current_dir()?.display().to_string()),
        ("GUEST_SEED", seed.to_string()),
        ("GUEST_INIT", if machine.systemd { "systemd" } else { "command" }.into()),
    ];
    let quote = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let environment: String =
        environment.iter().map(|(name, value)| format!("export {name}={}\n", quote(value))).collect();
    fs::write(notes.0.join("environment"), environment)?;
    fs::write(notes.0.join("command"), command)?;

    let room = machine::room()?;
    let initramfs = room.path().join("initramfs");
    initramfs::write(&kernel, &initramfs)?;
    let qemu = machine.start(&kernel, &initramfs, &out, room.path())?;
    let end = watch(qemu, machine, &notes, &room.path().join("qmp"), &mut OutputLog::new(&out, sink)?)?;
    // It is missing if QEMU has refused its arguments.
    let serial = room.path().join("serial");
    if serial.exists() {
        fs::copy(serial, out.join("serial"))?;
    }
    Ok(match end {
        End::Died(_) => End::Died(machine::last_words(room.path())),
        End::TooLong(_) => End::TooLong(machine::last_words(room.path())),
        exited => exited,
    })
}

fn watch(
    mut qemu: Child,
    machine: &Machine,
    notes: &Notes,
    socket: &Path,
    log: &mut OutputLog,
) -> Result<End> {
    let limit = Instant::now() + Duration::from_secs(machine.time_limit);
    let mut reset_at: Option<Instant> = None;
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        signal_hook::flag::register(signal, signalled.clone()).context("signals cannot be watched")?;
    }
    loop {
        if signalled.load(Ordering::Relaxed) {
            qemu.kill()?;
            qemu.wait()?;
            bail!("ended by a signal");
        }
        let ended = qemu.try_wait()?.is_some();
        log.pass_on()?;
        if ended {
            return Ok(notes.status().map_or_else(|| End::Died(String::new()), End::Exited));
        }
        if Instant::now() >= limit {
            qemu.kill()?;
            qemu.wait()?;
            return Ok(End::TooLong(String::new()));
        }
        if reset_at.is_some_and(|at| Instant::now() >= at) {
            reset_at = None;
            Qmp::connect(socket)?.execute("system_reset", json!({}))?;
        }
        if let Some(request) = notes.request() {
            let answer = match request.split_once(' ') {
                Some(("reset", after)) => {
                    let after = Duration::from_millis(after.parse().unwrap_or_default());
                    reset_at = Some(Instant::now() + after);
                    Ok(())
                }
                Some(("unplug", drive)) => Qmp::connect(socket).and_then(|mut qmp| {
                    qmp.execute("device_del", json!({ "id": format!("controller{drive}") }))
                }),
                _ => Err(anyhow::anyhow!("the runner does not know '{request}'")),
            };
            notes.answer(&answer.err().map(|error| error.to_string()).unwrap_or_default())?;
        }
        thread::sleep(LOOK);
    }
}

/// The part of the shared directory for messages between runner and guest.
struct Notes(PathBuf);

impl Notes {
    fn new(out: &Path) -> Result<Self> {
        let dir = out.join(".guest");
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)?;
        Ok(Self(dir))
    }

    fn status(&self) -> Option<u8> {
        fs::read_to_string(self.0.join("status")).ok()?.trim().parse().ok()
    }

    fn request(&self) -> Option<String> {
        let file = self.0.join("request");
        let request = fs::read_to_string(&file).ok()?;
        fs::remove_file(file).ok()?;
        Some(request)
    }

    fn answer(&self, answer: &str) -> Result<()> {
        replace(&self.0.join("answer"), answer)
    }
}

/// Replaces a file atomically.
fn replace(file: &Path, contents: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, contents)?;
    fs::rename(new, file)?;
    Ok(())
}

impl Ask {
    /// In the guest: leaves the request and waits for the answer.
    pub fn ask(&self) -> Result<()> {
        let notes = Path::new("/mnt/guest/.guest");
        ensure!(notes.is_dir(), "this is not a guest: there is no host to ask");
        let answer = notes.join("answer");
        let request = match self {
            Self::Reset { after } => format!("reset {after}"),
            Self::Unplug { drive } => format!("unplug {drive}"),
        };
        replace(&notes.join("request"), &request)?;
        for _ in 0..1000 {
            if let Ok(text) = fs::read_to_string(&answer) {
                fs::remove_file(&answer)?;
                ensure!(text.is_empty(), "{text}");
                return Ok(());
            }
            thread::sleep(LOOK);
        }
        bail!("the runner does not answer")
    }
}

/// The output of the command, read from the shared directory.
struct OutputLog<'a> {
    file: fs::File,
    sink: &'a mut dyn Write,
}

impl<'a> OutputLog<'a> {
    fn new(out: &Path, sink: &'a mut dyn Write) -> Result<Self> {
        let path = out.join("log");
        fs::write(&path, "")?;
        Ok(Self { file: fs::File::open(path)?, sink })
    }

    fn pass_on(&mut self) -> Result<()> {
        // Reading continues at the former end of the file.
        let position = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(position))?;
        let mut new = Vec::new();
        self.file.read_to_end(&mut new)?;
        self.sink.write_all(&new)?;
        self.sink.flush()?;
        Ok(())
    }
}
