//! The status of this process in `/proc`: its ignored signals and its capabilities.

/// Whether this process ignores a signal, as with `nohup` the hangup of its terminal.
pub fn ignores(signal: i32) -> bool {
    has_bit(&own_status(), "SigIgn:", signal as u32 - 1)
}

/// The text of /proc/self/status.
pub fn own_status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// Whether a bit is set in a mask of the text of /proc/PID/status.
pub fn has_bit(status: &str, field: &str, bit: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(field));
    mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .is_some_and(|mask| mask >> bit & 1 == 1)
}
