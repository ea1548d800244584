//! The daemon's end of the control socket. A connection has a task of its own and may ask several
//! things one after the other; whoever does not read only stops its own task.

use super::{
    Daemon,
    protocol::{Answer, Line, MAX_REQUEST, PROTOCOL, Request},
};
use crate::ring::Ring;
use anyhow::{Context, Result, bail};
use engine::runtime::Gate;
use serde::Deserialize;
use std::{
    cell::Cell,
    io::{self, ErrorKind, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

/// Most connections at a time; more have to wait.
const MAX_CONNECTIONS: u32 = 32;

/// How long it is waited when no connection can be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// The socket of a daemon.
pub struct Control {
    path: PathBuf,
    listener: Rc<UnixListener>,
    connections: Cell<u32>,
    ended: Gate,
}

impl Control {
    /// Listens at `path`, in the place of a daemon that has died. Only its own user may connect.
    pub fn listen(path: &Path) -> Result<Control> {
        let problem = || format!("{} cannot be made", path.display());
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(problem),
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(problem)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(problem)?;
        listener.set_nonblocking(true).with_context(problem)?;
        Ok(Control {
            path: path.to_path_buf(),
            listener: Rc::new(listener),
            connections: Cell::new(0),
            ended: Gate::default(),
        })
    }

    /// Takes the socket's name away.
    pub fn close(&self) {
        // Left behind, it would be taken for the socket of a daemon that has died, which is harmless.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Takes connections until the daemon ends.
    pub async fn serve(&self, daemon: Rc<Daemon>, ring: Ring) {
        loop {
            while self.connections.get() >= MAX_CONNECTIONS {
                self.ended.wait().await;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.connections.set(self.connections.get() + 1);
                    let (served, ring) = (daemon.clone(), ring.clone());
                    daemon.reactor.runtime().spawn(async move {
                        // A client that has gone away is nobody's concern.
                        let _ = Connection::new(ring, stream).serve(&served).await;
                        let control = &served.control;
                        control.connections.set(control.connections.get() - 1);
                        control.ended.open();
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ring.ready(self.listener.clone(), libc::POLLIN).await;
                }
                Err(error) => {
                    super::log(&format!("{}: no connection can be taken: {error}", self.path.display()));
                    ring.sleep(PAUSE).await;
                }
            }
        }
    }
}

/// One client.
pub struct Connection {
    ring: Ring,
    stream: Rc<UnixStream>,
    /// What has been read of the next request.
    pending: Vec<u8>,
}

impl Connection {
    fn new(ring: Ring, stream: UnixStream) -> Connection {
        Connection { ring, stream: Rc::new(stream), pending: Vec::new() }
    }

    async fn serve(&mut self, daemon: &Rc<Daemon>) -> Result<()> {
        self.stream.set_nonblocking(true)?;
        while let Some(line) = self.read_line().await? {
            let answer = match request(&line) {
                Ok(request) => daemon.clone().answer(request, self).await,
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(value) => Answer::Done(value),
                Err(error) => Answer::Error(format!("{error:#}")),
            };
            let sent = self.send(answer).await;
            // Whether or not anybody has waited for it.
            daemon.answered();
            sent?;
        }
        Ok(())
    }

    /// The next line without its end; `None` if there will be none.
    async fn read_line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                return Ok(Some(line));
            }
            if self.pending.len() >= MAX_REQUEST {
                self.send(Answer::Error(format!("a request has {MAX_REQUEST} bytes at most"))).await?;
                bail!("too long a request");
            }
            let mut part = [0; 4096];
            match (&*self.stream).read(&mut part) {
                Ok(0) => return Ok(None),
                Ok(count) => self.pending.extend_from_slice(&part[..count]),
                Err(error) => self.wait(error, libc::POLLIN).await?,
            }
        }
    }

    /// Sends a line.
    pub async fn send(&self, answer: Answer) -> Result<()> {
        let mut line = serde_json::to_vec(&Line { protocol: PROTOCOL, content: answer })?;
        line.push(b'\n');
        let mut left = &line[..];
        while !left.is_empty() {
            match (&*self.stream).write(left) {
                Ok(count) => left = &left[count..],
                Err(error) => self.wait(error, libc::POLLOUT).await?,
            }
        }
        Ok(())
    }

    async fn wait(&self, error: io::Error, events: i16) -> io::Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock => {
                self.ring.ready(self.stream.clone(), events).await;
                Ok(())
            }
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }
}

/// Reads a request; one of another version is told apart from nonsense.
pub fn request(line: &[u8]) -> Result<Request> {
    #[derive(Deserialize)]
    struct Version {
        protocol: u32,
    }
    let version: Version = serde_json::from_slice(line).context("this is no request")?;
    if version.protocol != PROTOCOL {
        let advice = if version.protocol > PROTOCOL { "restart it" } else { "use a newer zoneraid" };
        bail!("this daemon speaks version {PROTOCOL} of the protocol and not {}: {advice}", version.protocol);
    }
    let line: Line<Request> = serde_json::from_slice(line).context("this is no request")?;
    Ok(line.content)
}
