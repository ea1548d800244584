//! Names of arrays and of volumes.

/// Longest name, in bytes.
pub const NAME_BYTES: usize = 64;

/// Whether a character is visible on a terminal: neither a control character nor invisible, and without effect on the
/// order of others.
pub fn shows(c: char) -> bool {
    let unseen = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff0}'..='\u{fffd}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !unseen
}

/// Why `name` is not valid for an array or a volume; `None` if it is. Names become files below /dev, are printed on terminals and
/// typed into shells, and the superblock of a crafted drive may contain any text.
pub fn wrong_with_name(name: &str) -> Option<&'static str> {
    if !(1..=NAME_BYTES).contains(&name.len()) {
        Some("it has 1 to 64 bytes")
    } else if name.contains('/') {
        Some("it cannot contain '/', or it would look like a path")
    } else if !name.chars().all(shows) {
        Some("it cannot contain invisible characters")
    } else if name.trim() != name {
        Some("it cannot begin or end with a space")
    } else if name.starts_with('-') {
        Some("it cannot begin with '-', or it would look like an option")
    } else if [".", ".."].contains(&name) {
        Some("'.' and '..' are names of directories")
    } else {
        None
    }
}
