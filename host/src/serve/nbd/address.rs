//! Address of an NBD server: a Unix socket, or IP address and port.

use anyhow::{Context, Result, ensure};
use std::{
    fmt,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

/// The registered port of NBD.
const PORT: u16 = 10809;

/// Address for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    Socket(PathBuf),
    Address(SocketAddr),
}

/// The URI for clients.
impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NbdAddress::Socket(path) = self else {
            let NbdAddress::Address(address) = self else { return Ok(()) };
            return write!(f, "nbd://{address}");
        };
        f.write_str("nbd+unix:///?socket=")?;
        for byte in path.as_os_str().as_encoded_bytes() {
            match byte {
                b'/' | b'-' | b'.' | b'_' | b'~' => write!(f, "{}", *byte as char)?,
                byte if byte.is_ascii_alphanumeric() => write!(f, "{}", *byte as char)?,
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

/// Parses an address, with or without a port, or else the path of a socket.
///
/// # Errors
/// It is neither.
pub fn parse_place(text: &str) -> Result<NbdAddress, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(NbdAddress::Address(address));
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(NbdAddress::Address(SocketAddr::new(address, PORT)));
    }
    if text.contains(':') && !text.contains('/') {
        return Err(
            "an address is numeric, for example 127.0.0.1:10809; a socket path that contains ':' needs a '/'"
                .into(),
        );
    }
    if text.contains('.') && text.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()) {
        return Err(format!("not an address: for a socket of that name use ./{text}"));
    }
    match std::path::absolute(text) {
        Ok(path) => Ok(NbdAddress::Socket(path)),
        Err(error) => Err(error.to_string()),
    }
}

impl NbdAddress {
    /// The argument of `serve --nbd` for it.
    pub fn argument(&self) -> String {
        match self {
            NbdAddress::Socket(path) => path.display().to_string(),
            NbdAddress::Address(address) => address.to_string(),
        }
    }

    /// Starts to listen. Only this user can connect to a socket; any host that reaches it can connect to an IP address.
    pub(super) fn listen(&self) -> Result<(OwnedFd, NbdAddress)> {
        match self {
            NbdAddress::Socket(path) => {
                let listener = listen_at(path)?;
                Ok((listener.into(), self.clone()))
            }
            NbdAddress::Address(address) => {
                let problem = || format!("cannot listen at {address}");
                let listener = TcpListener::bind(address).with_context(problem)?;
                listener.set_nonblocking(true).with_context(problem)?;
                // The actual port, if any port was requested.
                let address = listener.local_addr().with_context(problem)?;
                Ok((listener.into(), NbdAddress::Address(address)))
            }
        }
    }

    /// Removes the socket file.
    pub(super) fn close(&self) {
        if let NbdAddress::Socket(path) = self {
            // A file that stays behind is recognized as that of a dead server.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens at `path`, and replaces the socket of a dead server, but no other file.
fn listen_at(path: &Path) -> Result<UnixListener> {
    let problem = || format!("{} cannot be created", path.display());
    match path.symlink_metadata() {
        Ok(there) => {
            ensure!(there.file_type().is_socket(), "{} exists and is not a socket", path.display());
            let is_dead =
                UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
            ensure!(is_dead, "{} is the socket of another process, which listens on it", path.display());
            std::fs::remove_file(path).with_context(problem)?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(problem),
    }
    let listener = UnixListener::bind(path).with_context(problem)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(problem)?;
    listener.set_nonblocking(true).with_context(problem)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nbd_address_parses_ip_or_socket_path() {
        let uri = |text: &str| parse_place(text).unwrap().to_string();
        assert_eq!(uri("127.0.0.1:5"), "nbd://127.0.0.1:5");
        assert_eq!(uri("::1"), "nbd://[::1]:10809");
        assert_eq!(uri("[::1]"), "nbd://[::1]:10809");
        assert_eq!(uri("/run/a b/x-1.sock"), "nbd+unix:///?socket=/run/a%20b/x-1.sock");
        assert!(uri("tank.sock").ends_with("/tank.sock"));
        assert!(parse_place("localhost:5").is_err() && parse_place("").is_err());
        // A mistyped address does not become a socket.
        for text in ["999.1.1.1", "127.0.0", "1.2"] {
            assert!(parse_place(text).unwrap_err().ends_with(&format!("use ./{text}")), "{text}");
        }
        assert!(uri("./999.1.1.1").ends_with("/999.1.1.1") && uri("10809").ends_with("/10809"));
    }

    #[test]
    fn nbd_listen_replaces_only_socket_of_dead_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd");
        let place = NbdAddress::Socket(path.clone());
        let (first, _) = place.listen().unwrap();
        assert!(place.listen().unwrap_err().to_string().contains("which listens on it"));
        drop(first);
        let (second, _) = place.listen().unwrap();
        drop(second);
        place.close();
        std::fs::write(&path, "precious").unwrap();
        assert!(place.listen().unwrap_err().to_string().contains("exists and is not a socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
