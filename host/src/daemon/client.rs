//! A command's end of the control socket.

use super::{
    directory,
    protocol::{About, Answer, Line, MAX_ANSWER, PROTOCOL, Request},
};
use crate::{drive, members::ArrayName, repair::same_file, report::Rebuild};
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// How long a daemon may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the daemon that runs an array.
pub struct Client {
    stream: BufReader<UnixStream>,
    pub about: About,
}

/// The daemons of this machine that this user may talk to.
pub fn running() -> Result<Vec<Client>> {
    let directory = directory();
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Ok(Vec::new());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("{} cannot be listed", directory.display()));
        }
    };
    let mut sockets = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("{} cannot be listed", directory.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "sock") {
            sockets.push(path);
        }
    }
    sockets.sort();
    let clients = sockets.iter().map(|path| Client::connect(path));
    clients.filter_map(Result::transpose).collect()
}

/// The daemon that runs the array which the user calls `name`; `None` if none does.
pub fn find(name: &ArrayName) -> Result<Option<Client>> {
    let clients = running()?;
    let by_path = |client: &Client| name.path().components().count() > 0 && client.uses(name.path());
    let called = name.to_string();
    let by_name = |client: &Client| client.about.name == called || client.about.uuid == called;
    // A path says more than a name.
    let chosen: Vec<bool> = match clients.iter().any(by_path) {
        true => clients.iter().map(by_path).collect(),
        false => clients.iter().map(by_name).collect(),
    };
    let mut found: Vec<Client> =
        clients.into_iter().zip(chosen).filter_map(|(client, chosen)| chosen.then_some(client)).collect();
    if found.len() > 1 {
        let arrays: Vec<String> =
            found.iter().map(|c| format!("'{}' ({})", c.about.name, c.about.uuid)).collect();
        bail!("{name} stands for several running arrays, {}; use a UUID", arrays.join(", "));
    }
    Ok(found.pop())
}

impl Client {
    /// Connects to the daemon behind a socket; `None` if it has died or this user may not.
    fn connect(path: &Path) -> Result<Option<Client>> {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            // Dead, or somebody else's.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("no way to {}", path.display())),
        };
        stream.set_read_timeout(Some(PATIENCE)).context("the socket cannot be set up")?;
        let mut client = Client { stream: BufReader::new(stream), about: About::default() };
        match client.ask(&Request::About, |_| {}, |_| {}) {
            Ok(about) => client.about = about,
            Err(error) => {
                let gone = error.downcast_ref::<std::io::Error>().is_some_and(|e| {
                    matches!(
                        e.kind(),
                        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                    )
                });
                return if gone { Ok(None) } else { Err(error.context(path.display().to_string())) };
            }
        }
        client.stream.get_ref().set_read_timeout(None).context("the socket cannot be set up")?;
        Ok(Some(client))
    }

    /// Whether `path` is a member's drive, the directory of one, or the block device.
    fn uses(&self, path: &Path) -> bool {
        let Ok(path) = std::path::absolute(drive::resolve(path)) else { return false };
        let inside = |drive: &Path| drive.parent().is_some_and(|parent| same_file(parent, &path));
        self.about.block_device.as_ref().is_some_and(|device| same_file(device, &path))
            || self.about.drives.iter().any(|drive| same_file(drive, &path) || inside(drive))
    }

    /// Asks, and waits for the answer.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        note: impl Fn(&str),
        progress: impl Fn(Rebuild),
    ) -> Result<T> {
        let mut line = serde_json::to_vec(&Line { protocol: PROTOCOL, content: request })?;
        line.push(b'\n');
        self.stream.get_ref().write_all(&line).context("the daemon does not listen")?;
        loop {
            let mut line = String::new();
            let read = (&mut self.stream).take(MAX_ANSWER).read_line(&mut line);
            match read {
                Ok(0) => {
                    let gone = std::io::Error::from(ErrorKind::UnexpectedEof);
                    return Err(gone).context("the daemon ended before it answered");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("the daemon does not answer"),
                read => read.context("the daemon ended before it answered")?,
            };
            match read_line(&line)? {
                Answer::Note(text) => note(&text),
                Answer::Progress(at) => progress(at),
                Answer::Error(error) => bail!(error),
                Answer::Done(value) => {
                    return serde_json::from_value(value).context("the daemon answers something else");
                }
            }
        }
    }
}

/// Reads an answer; one of another version is told apart from nonsense.
fn read_line(line: &str) -> Result<Answer> {
    #[derive(serde::Deserialize)]
    struct Version {
        protocol: u32,
    }
    let version: Version = serde_json::from_str(line).context("the daemon does not speak our language")?;
    ensure!(
        version.protocol == PROTOCOL,
        "the daemon speaks version {} of the protocol and this zoneraid version {PROTOCOL}; restart the \
         daemon",
        version.protocol
    );
    let line: Line<Answer> = serde_json::from_str(line).context("the daemon does not speak our language")?;
    Ok(line.content)
}
