//! Guest architectures.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// An architecture that there is a guest image for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// 64-bit x86 with x2APIC.
    X86_64,
}

impl Arch {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::X86_64];

    /// The name in options and reports, which is Rust's name too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
        }
    }

    /// Whether this host runs such code itself, so that KVM may run the guest.
    pub fn is_host(self) -> bool {
        self.name() == std::env::consts::ARCH
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no guest for this architecture.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no guest for `{0}`; there is one for {known}", known = names())]
pub struct UnknownArch(String);

fn names() -> String {
    Arch::ALL.iter().map(|arch| arch.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Arch {
    type Err = UnknownArch;

    fn from_str(text: &str) -> Result<Self, UnknownArch> {
        let known = Self::ALL.iter().find(|arch| arch.name() == text);
        known.copied().ok_or_else(|| UnknownArch(text.to_string()))
    }
}
