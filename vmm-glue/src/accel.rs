//! KVM or TCG, decided by trying.
//!
//! That `/dev/kvm` opens says little: some hosts emulate guests in software behind it, hundreds of times slower than TCG
//! would. So a loop of known length runs under KVM first, and its speed decides.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::arch;
use crate::guest::Arch;

/// What was asked for (`--accel`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accel {
    /// KVM if a guest truly runs there, else TCG.
    #[default]
    Auto,
    /// KVM, or an error.
    Kvm,
    /// TCG.
    Tcg,
}

/// What runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The host's CPUs.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// No such accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is none of auto, kvm, tcg")]
pub struct UnknownAccel(String);

impl FromStr for Accel {
    type Err = UnknownAccel;

    fn from_str(text: &str) -> Result<Self, UnknownAccel> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(UnknownAccel(text.to_string())),
        }
    }
}

/// How fast a loop ran under KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Guest instructions.
    pub instructions: u64,
    /// The time that they took.
    pub elapsed: Duration,
}

impl Speed {
    /// Instructions per second below which the host must be emulating: a CPU does a hundred times as many, even nested.
    const EMULATED: f64 = 10e6;

    /// Instructions per second.
    pub fn per_second(self) -> f64 {
        self.instructions as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Why KVM does not run guests here.
#[derive(Debug, Error)]
pub enum KvmError {
    /// The device cannot be opened.
    #[error("/dev/kvm cannot be opened: {0}")]
    Open(io::Error),
    /// The host's CPUs are of another kind than the guest's.
    #[error("this host's CPUs ({}) do not run such guests", std::env::consts::ARCH)]
    Foreign,
    /// No memory for the trial.
    #[error("KVM's trial found no memory")]
    Memory,
    /// A step of the trial failed.
    #[error("KVM fails at {step}: {error}")]
    Failed {
        /// The ioctl.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The guest left for an unforeseen reason.
    #[error("KVM's trial guest left with {0}")]
    Exit(String),
    /// The guest did not come back.
    #[error("KVM's trial guest did not come back within a second")]
    Stuck,
}

/// The choice, and the reason where it was one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What runs the guest.
    pub accelerator: Accelerator,
    /// Why it is not KVM, in one sentence, if that was open.
    pub reason: Option<String>,
}

/// KVM was demanded for a guest that the host's CPUs cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("KVM runs no {guest} guest on a host of {}; use --accel tcg", std::env::consts::ARCH)]
pub struct ForeignKvm {
    guest: Arch,
}

/// Decides what runs a guest.
///
/// # Errors
/// When KVM is demanded for a guest of another architecture.
pub fn decide(wanted: Accel, guest: Arch) -> Result<Decision, ForeignKvm> {
    decide_by(wanted, guest, arch::kvm_speed)
}

fn decide_by(
    wanted: Accel,
    guest: Arch,
    try_kvm: impl FnOnce() -> Result<Speed, KvmError>,
) -> Result<Decision, ForeignKvm> {
    let plain = |accelerator| Decision {
        accelerator,
        reason: None,
    };
    let tcg = |reason: String| Decision {
        accelerator: Accelerator::Tcg,
        reason: Some(reason),
    };
    match wanted {
        Accel::Tcg => Ok(plain(Accelerator::Tcg)),
        Accel::Kvm if guest.is_host() => Ok(plain(Accelerator::Kvm)),
        Accel::Kvm => Err(ForeignKvm { guest }),
        Accel::Auto if !guest.is_host() => Ok(tcg(format!("{}; using TCG", KvmError::Foreign))),
        Accel::Auto => Ok(match try_kvm() {
            Err(error) => tcg(format!("{error}; using TCG")),
            Ok(speed) if speed.per_second() < Speed::EMULATED => tcg(format!(
                "KVM is here but runs {:.1} M instructions/s: it emulates guests; using TCG",
                speed.per_second() / 1e6
            )),
            Ok(_) => plain(Accelerator::Kvm),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(instructions: u64, milliseconds: u64) -> Speed {
        Speed {
            instructions,
            elapsed: Duration::from_millis(milliseconds),
        }
    }

    /// The decision on an x86_64 host for its own guests.
    fn auto(result: Result<Speed, KvmError>) -> Decision {
        let guest = *Arch::ALL.iter().find(|arch| arch.is_host()).unwrap_or(&Arch::X86_64);
        decide_by(Accel::Auto, guest, || result).unwrap()
    }

    #[test]
    fn a_fast_kvm_is_used_and_a_slow_or_broken_one_is_not() {
        if !Arch::X86_64.is_host() {
            assert_eq!(auto(Ok(speed(1_000_000, 1))).accelerator, Accelerator::Tcg);
            return;
        }
        assert_eq!(
            auto(Ok(speed(1_000_000, 1))),
            Decision {
                accelerator: Accelerator::Kvm,
                reason: None
            }
        );
        let slow = auto(Ok(speed(130_000, 100)));
        assert_eq!(slow.accelerator, Accelerator::Tcg);
        assert_eq!(
            slow.reason.unwrap(),
            "KVM is here but runs 1.3 M instructions/s: it emulates guests; using TCG"
        );
        let absent = auto(Err(KvmError::Open(io::Error::from_raw_os_error(2))));
        assert_eq!(absent.accelerator, Accelerator::Tcg);
        assert!(absent.reason.unwrap().starts_with("/dev/kvm cannot be opened: "));
        assert_eq!(auto(Err(KvmError::Stuck)).accelerator, Accelerator::Tcg);
    }

    #[test]
    fn a_demand_is_not_tried() {
        let never = || -> Result<Speed, KvmError> { panic!("tried") };
        assert_eq!(
            decide_by(Accel::Tcg, Arch::X86_64, never).unwrap().accelerator,
            Accelerator::Tcg
        );
        let kvm = decide_by(Accel::Kvm, Arch::X86_64, never);
        assert_eq!(kvm.is_ok(), Arch::X86_64.is_host());
    }

    #[test]
    fn names() {
        assert_eq!("kvm".parse(), Ok(Accel::Kvm));
        assert_eq!(
            "xen".parse::<Accel>().unwrap_err().to_string(),
            "`xen` is none of auto, kvm, tcg"
        );
    }
}
