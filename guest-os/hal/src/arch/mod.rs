//! Register accesses and barriers, one file per architecture; the same names in each.
//!
//! Every MMIO access is exactly one load or store instruction with a plain register address: a hypervisor that
//! emulates the access decodes that instruction, and on arm64 it cannot decode writeback or pair forms at all.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod imp;

pub(crate) use imp::*;
