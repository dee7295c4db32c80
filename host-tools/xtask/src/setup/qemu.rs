//! Is there a QEMU that is new enough?

use std::fmt;
use std::process::Command;

use anyhow::Result;

use crate::shell;

/// A QEMU release, or a Debian package of one, by its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

/// The first whose TCG has an x2APIC.
pub const NEEDED: Version = Version { major: 9, minor: 0 };

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Reads `9.0.2`, `10.0.2+ds-2`, `1:7.2+dfsg-7+deb12u15`: epoch and all after the second number are left out.
    pub fn parse(text: &str) -> Option<Self> {
        let upstream = text.split_once(':').map_or(text, |(_epoch, rest)| rest);
        let mut numbers = upstream.split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }

    /// Reads the first line of `qemu-system-x86_64 --version`.
    fn from_banner(banner: &str) -> Option<Self> {
        let (_, rest) = banner.lines().next()?.split_once("version ")?;
        Self::parse(rest)
    }
}

/// What is on the search path.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// New enough.
    Good(Version),
    /// Too old.
    Old(Version),
    /// It names no version that we understand.
    Unknown(String),
    /// None.
    None,
}

/// Asks `qemu-system-x86_64`.
///
/// # Errors
/// It is there and does not run.
pub fn look() -> Result<Found> {
    let Some(banner) = shell::output(Command::new("qemu-system-x86_64").arg("--version"))? else {
        return Ok(Found::None);
    };
    Ok(judge(&banner))
}

fn judge(banner: &str) -> Found {
    match Version::from_banner(banner) {
        Some(version) if version >= NEEDED => Found::Good(version),
        Some(version) => Found::Old(version),
        None => Found::Unknown(banner.lines().next().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    #[test]
    fn banners() {
        let debian = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\nCopyright (c) 2003-2025 …\n";
        assert_eq!(judge(debian), Found::Good(version(10, 0)));
        assert_eq!(judge("QEMU emulator version 9.0.0\n"), Found::Good(version(9, 0)));
        assert_eq!(
            judge("QEMU emulator version 7.2.19 (Debian 1:7.2+dfsg-7+deb12u15)"),
            Found::Old(version(7, 2))
        );
        assert_eq!(
            judge("QEMU emulator version 8.2.92 (v9.0.0-rc2)"),
            Found::Old(version(8, 2))
        );
        assert_eq!(judge("something else"), Found::Unknown("something else".into()));
        assert_eq!(judge(""), Found::Unknown(String::new()));
    }

    #[test]
    fn package_versions() {
        assert_eq!(Version::parse("1:10.0.2+ds-2+deb13u1~bpo12+1"), Some(version(10, 0)));
        assert_eq!(Version::parse("1:7.2+dfsg-7+deb12u15"), Some(version(7, 2)));
        assert_eq!(Version::parse("(none)"), None);
        assert_eq!(Version::parse("9"), None);
    }

    #[test]
    fn ten_is_later_than_nine() {
        assert!(version(10, 0) > NEEDED && version(9, 1) > NEEDED && version(8, 9) < NEEDED);
    }
}
