//! Sizes as people type and read them. Factors are powers of 1024.

use engine::buf::BLOCK;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Parses a size such as `65536`, `64K` or `64KiB`; returns bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("a size starts with a number, as in 64K".to_string());
    }
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 1,
        "m" | "mib" => 2,
        "g" | "gib" => 3,
        "t" | "tib" => 4,
        _ => return Err(format!("'{unit}' is not a unit; use K, M, G or T, which are powers of 1024")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << (10 * power)));
    bytes.ok_or_else(|| "the size is too large".to_string())
}

/// As [`parse`], for sizes that have to be whole blocks and not 0; returns blocks.
pub fn parse_blocks(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err("the size cannot be 0".into()),
        bytes if bytes.is_multiple_of(BLOCK as u64) => Ok(bytes / BLOCK as u64),
        bytes => Err(format!("{bytes} bytes are not a multiple of the block size, {BLOCK}")),
    }
}

/// `blocks` in bytes, saturating: a size that a user has typed may be absurd.
pub fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK as u64)
}

/// The sum, saturating: sizes in answers of other processes may be absurd.
pub fn total(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// `bytes` in the largest unit that leaves a whole number or up to one decimal place.
pub fn show(bytes: u64) -> String {
    let power = (bytes.max(1).ilog2() / 10).min(4) as usize;
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        format!("{} {}", bytes / unit, UNITS[power])
    } else {
        format!("{:.1} {}", bytes as f64 / unit as f64, UNITS[power])
    }
}

/// As [`show`], from blocks.
pub fn show_blocks(blocks: u64) -> String {
    show(bytes(blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_parses_all_spellings_and_refuses_others() {
        assert_eq!(parse("65536"), Ok(65536));
        assert_eq!(parse("64k"), Ok(65536));
        assert_eq!(parse("64 KiB"), Ok(65536));
        assert_eq!(parse("2G"), Ok(2 << 30));
        for nonsense in ["", "K", "64Q", "-1", "1.5M"] {
            assert!(parse(nonsense).is_err_and(|error| !error.contains("too large")), "{nonsense}");
        }
        for large in ["99999999999T", "99999999999999999999999"] {
            assert!(parse(large).is_err_and(|error| error.contains("too large")), "{large}");
        }
        assert!(parse("-1").is_err_and(|error| error.contains("starts with a number")));
        assert_eq!(parse_blocks("64K"), Ok(16));
        assert!(parse_blocks("0").is_err());
        assert!(parse_blocks("4097").is_err());
    }

    #[test]
    fn size_is_shown_in_fitting_unit() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(65536), "64 KiB");
        assert_eq!(show(1077 << 20), "1.1 GiB");
        assert_eq!(show_blocks(u64::MAX), "16777216.0 TiB");
    }
}
