//! The machine as it was found at boot, in words that know no architecture.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

use hal::mmio::MmioRegion;

/// What the architecture found before `main`.
pub struct Machine {
    /// Usable memory in bytes, all of it together.
    pub memory_bytes: u64,
    /// The interrupt controller's id of each CPU; the place in this list is the CPU's index, and the boot CPU comes first.
    pub cpus: Vec<u32>,
    /// Boot arguments.
    pub arguments: &'static str,
    /// The file that was loaded beside the guest (QEMU: `-initrd`).
    pub payload: Option<&'static [u8]>,
    /// PCI host bridges.
    pub pci: Vec<PciHost>,
    /// The hypervisor's signature, `KVMKVMKVM` or `TCGTCGTCGTCG`; empty if none shows itself.
    pub hypervisor: String,
    /// Ticks per second of the clock.
    pub clock_hertz: u64,
    /// Where that figure comes from.
    pub clock_source: &'static str,
    /// The CPU promises that the clock runs at one rate, whatever the CPU does.
    pub clock_invariant: bool,
    /// The clock when the guest's first Rust code ran.
    pub entered_at: u64,
}

/// A PCI host bridge: its configuration space, and where its devices' BARs may lie.
pub struct PciHost {
    /// Segment group.
    pub segment: u16,
    /// Its buses.
    pub buses: RangeInclusive<u8>,
    /// Configuration space from the first of those buses on, mapped.
    pub ecam: MmioRegion,
    /// Addresses below 4 GiB for BARs that no firmware placed; may be empty.
    pub window32: Range<u64>,
    /// The same above 4 GiB.
    pub window64: Range<u64>,
}

/// How the run of the whole machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// The job was done, and its report sent.
    Done = 0,
    /// The run failed; a line or a frame says why.
    Failed = 1,
    /// The job cannot be run as it was asked for.
    Usage = 2,
    /// The guest itself failed: a fault, a panic, a CPU that stands still.
    Fault = 3,
}
