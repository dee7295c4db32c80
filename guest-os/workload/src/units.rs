//! Sizes and times as fio writes them: `4k`, `1m`, `8GiB`, `5`, `500ms`, `2m`.

use alloc::string::{String, ToString};

use thiserror::Error;

/// A value that is no size or no time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// The number itself cannot be read.
    #[error("`{0}` does not begin with a whole number")]
    Number(String),
    /// The letters behind the number are no unit.
    #[error("`{unit}` in `{text}` is no unit; known are {known}")]
    Unit {
        /// The whole value.
        text: String,
        /// The letters.
        unit: String,
        /// The units that would do.
        known: &'static str,
    },
    /// The product does not fit into 64 bits.
    #[error("`{0}` is too large")]
    Large(String),
}

fn split(text: &str) -> Result<(u64, String), UnitError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(UnitError::Number(text.to_string()));
    }
    let number = text[..digits].parse().map_err(|_| UnitError::Large(text.to_string()))?;
    Ok((number, text[digits..].trim().to_ascii_lowercase()))
}

/// Reads a size in bytes. Like fio with `kb_base=1024`: `k`, `kb` and `kib` are all 1024, and so on up to `p`.
///
/// # Errors
/// When it is no number, the unit is unknown, or the size exceeds 64 bits.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text)?;
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => {
            return Err(UnitError::Unit {
                text: text.to_string(),
                unit,
                known: "k, m, g, t, p",
            });
        }
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| UnitError::Large(text.to_string()))
}

/// Reads a time in microseconds; a bare number is so many microseconds as `bare` says: fio has options in seconds and others
/// in microseconds.
///
/// # Errors
/// When it is no number, the unit is unknown, or the time exceeds 64 bits.
pub fn parse_time(text: &str, bare: u64) -> Result<u64, UnitError> {
    let (number, unit) = split(text)?;
    let factor = match unit.as_str() {
        "" => bare,
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => {
            return Err(UnitError::Unit {
                text: text.to_string(),
                unit,
                known: "us, ms, s, m, h, d",
            });
        }
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| UnitError::Large(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("1m", 1 << 20),
            ("8GiB", 8 << 30),
            (" 2t ", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-4k", "4x", "1.5m", "99999999999999999999", "999999999p"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_size("4q").unwrap_err().to_string(),
            "`q` in `4q` is no unit; known are k, m, g, t, p"
        );
    }

    #[test]
    fn times() {
        for (text, us) in [
            ("5", 5_000_000),
            ("500ms", 500_000),
            ("10us", 10),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
        ] {
            assert_eq!(parse_time(text, 1_000_000), Ok(us), "{text}");
        }
        for text in ["", "s", "4q", "999999999999999999d"] {
            assert!(parse_time(text, 1).is_err(), "{text}");
        }
    }
}
