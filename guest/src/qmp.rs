//! QEMU's machine protocol: one JSON object per line, over a socket.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

pub struct Qmp(BufReader<UnixStream>);

impl Qmp {
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("QEMU's monitor does not answer")?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut qmp = Self(BufReader::new(stream));
        qmp.line()?; // the greeting
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line).context("QEMU's monitor does not answer")?;
        serde_json::from_str(&line).context("QEMU's monitor has closed its socket")
    }

    /// Executes a command and waits until QEMU has accepted it.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<()> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}")?;
        loop {
            // Events come in between.
            let answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {}", error["desc"].as_str().unwrap_or_default());
            }
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }
}
