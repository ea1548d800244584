//! Control socket, client side.

use super::{
    name::ArrayName,
    protocol::{About, Answer, Line, PROTOCOL, Request},
};
use crate::{
    drive::{self, same_file},
    process::{
        output::{note, quoted},
        run,
    },
    report::Rebuild,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use emu::ssd::cause;
use rustix::net::sockopt::socket_peercred;
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

/// Time limit for all daemons together to answer requests about themselves and their status.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit for an answer for which the daemon has to read its drives.
const PATIENCE_WITH_DRIVES: Duration = Duration::from_secs(30);

/// Sockets that did not answer, with the reason: a process tries each once.
static SILENT: Mutex<BTreeMap<PathBuf, NoAnswer>> = Mutex::new(BTreeMap::new());

/// Why a socket did not answer.
#[derive(Clone)]
pub struct NoAnswer {
    pub why: String,
    /// This user has no permission to connect.
    pub is_denied: bool,
}

impl From<String> for NoAnswer {
    fn from(why: String) -> NoAnswer {
        NoAnswer { why, is_denied: false }
    }
}

/// Error: a connection to a daemon failed.
#[derive(Debug, thiserror::Error)]
#[error("no connection to the daemon: {}", cause(.0))]
struct NoConnection(io::Error);

/// A connection to the daemon that runs an array.
pub struct Client {
    /// Socket of the daemon.
    pub socket: PathBuf,
    stream: BufReader<TimedSocket>,
    pub about: About,
}

/// A socket with a deadline for reads.
struct TimedSocket {
    socket: UnixStream,
    deadline: Option<Instant>,
}

impl Read for TimedSocket {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(left)?;
        match self.socket.read(target) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            read => read,
        }
    }
}

/// The daemons of this machine that answer this user. A daemon that does not answer is reported in one line, and does
/// not delay the others beyond the deadline.
///
/// # Errors
/// No thread can be started.
pub fn running() -> Result<Vec<Client>> {
    let mut sockets = Vec::new();
    for directory in run::directories() {
        match self::sockets(&directory) {
            Ok(there) => sockets.extend(there),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                fall_silent(&directory, format!("running arrays cannot be listed: {}", cause(&error)).into());
            }
        }
    }
    let silent = silent();
    sockets.retain(|socket| !silent.contains_key(socket));
    sockets.sort();
    let (sender, answers) = mpsc::channel();
    let deadline = Instant::now() + PATIENCE;
    for (number, path) in sockets.iter().cloned().enumerate() {
        let sender = sender.clone();
        // Connecting may block for ever, too. Threads beyond the deadline are abandoned, with their results.
        let ask = move || _ = sender.send((number, Client::connect(&path, deadline)));
        std::thread::Builder::new().spawn(ask).context("no thread can be started")?;
    }
    drop(sender);
    let mut clients: Vec<Option<Client>> = sockets.iter().map(|_| None).collect();
    let mut waiting: Vec<usize> = (0..sockets.len()).collect();
    while let Ok((number, answer)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        waiting.retain(|other| *other != number);
        match answer {
            Ok(client) => clients[number] = client,
            Err(error) => {
                let no_connection = error.downcast_ref::<NoConnection>();
                let is_denied = no_connection
                    .is_some_and(|NoConnection(error)| error.kind() == ErrorKind::PermissionDenied);
                fall_silent(&sockets[number], NoAnswer { why: format!("{error:#}"), is_denied });
            }
        }
    }
    for number in waiting {
        fall_silent(&sockets[number], no_answer(PATIENCE).into());
    }
    Ok(clients.into_iter().flatten().collect())
}

/// Sockets that did not answer this process, with the reason.
pub fn silent() -> BTreeMap<PathBuf, NoAnswer> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Socket of the daemon of the array with this UUID, and the reason why it did not answer this process; `None` if it
/// did.
pub fn silence_of(uuid: &str) -> Option<(PathBuf, NoAnswer)> {
    let of_it = |socket: &Path| socket.file_stem().is_some_and(|stem| stem.to_string_lossy() == uuid);
    silent().into_iter().find(|(socket, _)| of_it(socket))
}

fn no_answer(patience: Duration) -> String {
    format!("the daemon does not answer within {} seconds", patience.as_secs_f64().ceil())
}

/// Records that a socket does not answer, and reports the reason once.
pub fn fall_silent(socket: &Path, silence: NoAnswer) {
    let text = format!("{}: {}", socket.display(), silence.why);
    if SILENT.lock().unwrap_or_else(PoisonError::into_inner).insert(socket.to_path_buf(), silence).is_none() {
        note(&text);
    }
}

/// Socket files in `directory`, also of dead daemons.
fn sockets(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sock") {
            sockets.push(path);
        }
    }
    Ok(sockets)
}

/// The daemon that runs the array with this name, UUID or path; `None` if none does.
///
/// # Errors
/// The name is ambiguous, or the daemon does not answer.
pub fn find(name: &ArrayName) -> Result<Option<Client>> {
    let clients = running()?;
    let by_path = |client: &Client| name.path().components().count() > 0 && client.uses(name.path());
    let called = name.to_string();
    let by_name = |client: &Client| client.about.name == called || client.about.uuid == called.to_lowercase();
    let chosen = |client: &Client| by_path(client) || by_name(client);
    let other_path = !clients.iter().any(by_path) && name.is_path();
    let mut found: Vec<Client> = clients.into_iter().filter(|client| chosen(client)).collect();
    if found.len() > 1 || other_path && !found.is_empty() {
        let mut arrays: Vec<String> =
            found.iter().map(|c| format!("'{}' ({}), which runs", c.about.name, c.about.uuid)).collect();
        arrays.extend(other_path.then(|| format!("the path {}", quoted(&format!("./{name}")))));
        bail!("{name} may mean {}; use a UUID or a path with a '/'", arrays.join(", or "));
    }
    if found.is_empty()
        && let Some((socket, silence)) = silence_of(&called.to_lowercase())
    {
        bail!("'{name}' runs, but its daemon cannot be queried ({}): {}", socket.display(), silence.why);
    }
    Ok(found.pop())
}

impl Client {
    /// Connects to the daemon behind a socket; `None` if it has died.
    fn connect(path: &Path, deadline: Instant) -> Result<Option<Client>> {
        let socket = match UnixStream::connect(path) {
            Ok(socket) => socket,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
                return Ok(None);
            }
            Err(error) => bail!(NoConnection(error)),
        };
        socket.set_write_timeout(Some(PATIENCE)).context("the socket cannot be set up")?;
        let pid = socket_peercred(&socket).map(|peer| peer.pid.as_raw_nonzero());
        let stream = BufReader::new(TimedSocket { socket, deadline: None });
        let mut client = Client { socket: path.to_path_buf(), stream, about: About::default() };
        let with_pid = |error: anyhow::Error| match pid {
            Ok(pid) => anyhow!("process {pid}: {error:#}"),
            Err(_) => error,
        };
        match client.ask_until(&Request::About, Some(deadline), |_| {}, |_| {}) {
            Ok(about) => client.about = about,
            Err(error) if error.downcast_ref::<io::Error>().is_some_and(is_gone) => return Ok(None),
            Err(error) => return Err(with_pid(error)),
        }
        Ok(Some(client))
    }

    /// Whether `path` is the drive of a member, the directory of such a drive, or a block device of the array.
    pub fn uses(&self, path: &Path) -> bool {
        let Ok(path) = std::path::absolute(drive::resolve(path)) else { return false };
        let inside = |drive: &Path| drive.parent().is_some_and(|parent| same_file(parent, &path));
        self.about.device(&path).is_some()
            || self.about.drives.iter().any(|drive| same_file(drive, &path) || inside(drive))
    }

    /// Sends a request and waits for its result; without a time limit for requests that change the array.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        note: impl Fn(&str),
        progress: impl Fn(Rebuild),
    ) -> Result<T> {
        let patience = match request {
            Request::About | Request::Status | Request::Traffic => Some(PATIENCE),
            Request::Zones { .. } | Request::Examine { .. } => Some(PATIENCE_WITH_DRIVES),
            Request::Adopt | Request::Autostart { .. } | Request::ErrorLimit { .. } => None,
            Request::SetVolume { .. } | Request::Qos { .. } => None,
            Request::CreateVolume { .. } | Request::RemoveVolume { .. } | Request::CreateNamespace(_) => None,
            Request::SnapshotVolumes { .. } | Request::CloneSnapshot { .. } => None,
            Request::RollBackVolume { .. } => None,
            // Reads the map of the volume.
            Request::CompareSnapshot { .. } | Request::CountSpace { .. } => None,
            Request::ResizeNamespace { .. } | Request::RemoveNamespace { .. } => None,
            Request::Fail { .. } | Request::Replace { .. } | Request::Rebuild | Request::Stop => None,
            Request::CancelCopy { .. } | Request::Scrub(_) => None,
        };
        self.ask_until(request, patience.map(|patience| Instant::now() + patience), note, progress)
    }

    fn ask_until<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        deadline: Option<Instant>,
        note: impl Fn(&str),
        progress: impl Fn(Rebuild),
    ) -> Result<T> {
        let started = Instant::now();
        self.stream.get_mut().deadline = deadline;
        let mut line = serde_json::to_vec(&Line { protocol: PROTOCOL, content: request })?;
        line.push(b'\n');
        (&self.stream.get_ref().socket)
            .write_all(&line)
            .context("the request cannot be sent to the daemon")?;
        loop {
            let mut line = Vec::new();
            let read = (&mut self.stream).take(request.most_answered()).read_until(b'\n', &mut line);
            match read {
                Ok(0) => {
                    let gone = io::Error::from(ErrorKind::UnexpectedEof);
                    return Err(gone).context("the daemon ended before it answered");
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    bail!(no_answer(deadline.map_or(PATIENCE, |deadline| deadline - started)))
                }
                read => read.context("the daemon ended before it answered")?,
            };
            match self::answer(&line)? {
                Answer::Note(text) => note(&text),
                Answer::Progress(at) => progress(at),
                Answer::Error(error) => bail!(error),
                Answer::Done(value) => {
                    return serde_json::from_value(value).context("the daemon sent an unexpected answer");
                }
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Parses an answer; the error distinguishes another version of the protocol from invalid data.
pub fn answer(line: &[u8]) -> Result<Answer> {
    #[derive(serde::Deserialize)]
    struct DaemonVersion {
        protocol: u32,
    }
    let nonsense = "the daemon sent an invalid message";
    let version: DaemonVersion = serde_json::from_slice(line).context(nonsense)?;
    let advice = if version.protocol > PROTOCOL { "use a newer zoneraid" } else { "restart the daemon" };
    ensure!(
        version.protocol == PROTOCOL,
        "the daemon has protocol version {}, this zoneraid {PROTOCOL}: {advice}",
        version.protocol
    );
    let line: Line<Answer> = serde_json::from_slice(line).context(nonsense)?;
    Ok(line.content)
}
