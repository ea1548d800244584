//! The identity of this machine, by which arrays know their host.
//!
//! `/etc/machine-id` is confidential: it is never written to a drive. A hash of it is, which is particular to zoneraid,
//! as `sd_id128_get_machine_app_specific` of systemd computes it and machine-id(5) recommends: the machine cannot be
//! identified from it, and other programs have other hashes.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::path::PathBuf;

/// Environment variable that names a file to read instead of /etc/machine-id.
pub const FILE_VARIABLE: &str = "ZONERAID_MACHINE_ID";

/// Application ID of zoneraid's hash; random.
const APPLICATION: [u8; 16] =
    [0x26, 0xd0, 0xea, 0xd6, 0x41, 0x56, 0x60, 0x95, 0x82, 0xc6, 0x7b, 0x8c, 0x98, 0x91, 0xe7, 0xb2];

/// The host of an array that belongs to no machine.
pub const NO_HOST: [u8; 16] = [0; 16];

/// Error message where the identity is needed.
pub const NO_IDENTITY: &str = "this machine has no identity: /etc/machine-id is missing or empty \
    (systemd-machine-id-setup makes one)";

/// The host ID of this machine; `None` if it has no identity.
pub fn id() -> Option<[u8; 16]> {
    let set = std::env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty());
    let file = set.map_or(PathBuf::from("/etc/machine-id"), PathBuf::from);
    let text = std::fs::read_to_string(file).ok()?;
    id_of(text.trim(), APPLICATION)
}

/// The application-specific ID that systemd derives from a machine-id (32 hexadecimal digits).
fn id_of(machine: &str, application: [u8; 16]) -> Option<[u8; 16]> {
    let is_id = machine.len() == 32 && machine.bytes().all(|c| c.is_ascii_hexdigit());
    let machine = u128::from_str_radix(machine, 16).ok().filter(|id| is_id && *id != 0)?.to_be_bytes();
    let mut hash = Hmac::<Sha256>::new_from_slice(&machine).ok()?;
    hash.update(&application);
    let mut id: [u8; 16] = hash.finalize().into_bytes().first_chunk().copied()?;
    // Version and variant bits of a random UUID.
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Some(id)
}

/// The host of an array, relative to this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    This,
    Other,
    #[serde(rename = "none")]
    NoHost,
}

impl Owner {
    /// Classifies the host ID of an array's superblock.
    pub fn of(host: &[u8; 16]) -> Owner {
        match *host {
            NO_HOST => Owner::NoHost,
            host if id() == Some(host) => Owner::This,
            _ => Owner::Other,
        }
    }

    /// The host of an array in a few words, and whether it is started automatically there.
    pub fn words(self, autostart: bool) -> &'static str {
        match (self, autostart) {
            (Owner::This, true) => "this host",
            (Owner::This, false) => "this host, started manually",
            (Owner::Other, _) => "another host",
            (Owner::NoHost, _) => "no host",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::output::uuid;

    #[test]
    fn host_id_equals_systemd_app_specific_machine_id() {
        // Output of `systemd-id128 machine-id --app-specific` on a machine of this identity.
        let application = 0x8bd8_1d63_2a4f_4e6c_9c1e_0d6a_5a8f_93c1_u128.to_be_bytes();
        let id = |machine: &str| id_of(machine, application).map(|id| uuid(&id));
        assert_eq!(id("0123456789abcdef0123456789abcdef").unwrap(), "20605f01-90a1-4549-9d2e-458e5ca0b9d1");
        for wrong in [
            "",
            "uninitialized",
            "00000000000000000000000000000000",
            "0123456789abcdef",
            "+123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(id(wrong), None, "{wrong}");
        }
    }
}
