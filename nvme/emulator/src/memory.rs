//! Memory of the machine that the controller is part of.

use thiserror::Error;

/// The device touched memory that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes at {address:#x} are not mapped for the device")]
pub struct Unmapped {
    /// Where the access began.
    pub address: u64,
    /// Its length in bytes.
    pub length: usize,
}

/// Memory by I/O address, as a device sees it.
pub trait Memory {
    /// Reads `target.len()` bytes.
    ///
    /// # Errors
    /// When any of them is not mapped.
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), Unmapped>;

    /// Writes `source`. The order in which its 8-byte words become visible is ascending.
    ///
    /// # Errors
    /// When any byte is not mapped; then nothing is written.
    fn write(&self, address: u64, source: &[u8]) -> Result<(), Unmapped>;
}
