//! The daemon's end of the control socket. Each connection has a task of its own and may send several requests one
//! after the other; a client that does not read only blocks its own task.

use crate::{
    control::protocol::{Answer, Line, MAX_REQUEST, PROTOCOL, Request},
    reactor::ring::Ring,
};
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
};

/// The socket of a daemon.
pub struct ControlSocket {
    pub(super) path: PathBuf,
    pub(super) listener: Rc<UnixListener>,
    pub(super) connections: Cell<u32>,
    /// Opened when a connection has ended.
    pub(super) ended: Gate,
}

impl ControlSocket {
    /// Listens at `path`, and replaces the socket of a dead daemon. Only its own user may connect.
    pub fn listen(path: &Path) -> Result<ControlSocket> {
        let problem = || format!("{} cannot be created", path.display());
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(problem),
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(problem)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(problem)?;
        listener.set_nonblocking(true).with_context(problem)?;
        Ok(ControlSocket {
            path: path.to_path_buf(),
            listener: Rc::new(listener),
            connections: Cell::new(0),
            ended: Gate::default(),
        })
    }

    /// Removes the socket file.
    pub fn close(&self) {
        // A file that stays behind looks like that of a dead daemon, which is harmless.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The connection of a client.
pub struct ControlConnection {
    ring: Ring,
    stream: Rc<UnixStream>,
    /// Bytes read of the next request.
    pending: Vec<u8>,
}

impl ControlConnection {
    pub(super) fn new(ring: Ring, stream: UnixStream) -> io::Result<ControlConnection> {
        stream.set_nonblocking(true)?;
        Ok(ControlConnection { ring, stream: Rc::new(stream), pending: Vec::new() })
    }

    /// Reads the next line, without its end; `None` at the end of the connection.
    pub(super) async fn read_line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                return Ok(Some(line));
            }
            if self.pending.len() >= MAX_REQUEST {
                self.send(Answer::Error(format!("a request has {MAX_REQUEST} bytes at most"))).await?;
                // The rest is read, since a client that is still writing when the connection ends would not read the
                // answer.
                while self.read_more().await? > 0 {
                    self.pending.clear();
                }
                bail!("the request is too long");
            }
            if self.read_more().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads more bytes; 0 at the end of the connection.
    async fn read_more(&mut self) -> io::Result<usize> {
        let mut part = [0; 4096];
        loop {
            match (&*self.stream).read(&mut part) {
                Ok(count) => {
                    self.pending.extend_from_slice(&part[..count]);
                    return Ok(count);
                }
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

/// Parses a request; the error distinguishes another version of the protocol from invalid data.
pub fn request(line: &[u8]) -> Result<Request> {
    #[derive(Deserialize)]
    struct ClientVersion {
        protocol: u32,
    }
    let version: ClientVersion = serde_json::from_slice(line).context("the request is invalid")?;
    if version.protocol != PROTOCOL {
        let advice = if version.protocol > PROTOCOL { "restart the daemon" } else { "use a newer zoneraid" };
        bail!("this daemon has protocol version {PROTOCOL}, not {}: {advice}", version.protocol);
    }
    let line: Line<Request> = serde_json::from_slice(line).context("the request is invalid")?;
    Ok(line.content)
}
