//! MSI-X (PCI Express Base Specification 5.0, 7.7.2; PCI Local Bus 3.0, 6.8.2).

use super::{DeviceFunction, Ecam, MsiMessage};
use crate::mmio::Mmio;

/// Capability id of MSI-X.
pub(super) const CAPABILITY_ID: u8 = 0x11;
/// Bytes of one table entry.
const ENTRY_BYTES: usize = 16;
/// Vector Control: the entry is masked.
const MASKED: u32 = 1;
/// Message Control, in the upper half of the capability's first word: all entries are masked.
const FUNCTION_MASK: u32 = 1 << 30;
/// Message Control: MSI-X is on, and INTx off.
const ENABLE: u32 = 1 << 31;

/// The MSI-X capability of a function, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// Where it stands in configuration space.
    pub register: u16,
    /// Entries in the table, 1 to 2048.
    pub entries: u16,
    /// The BAR that holds the table.
    pub table_bar: u8,
    /// Where the table begins in that BAR.
    pub table_offset: u32,
}

impl MsixCapability {
    pub(super) fn read<M: Mmio>(ecam: &Ecam<M>, function: DeviceFunction, register: u16) -> Self {
        let table = ecam.read(function, register + 4);
        Self {
            register,
            entries: (ecam.read(function, register) >> 16 & 0x7ff) as u16 + 1,
            table_bar: (table & 7) as u8,
            table_offset: table & !7,
        }
    }

    /// Length of the table in bytes.
    pub const fn table_bytes(&self) -> usize {
        self.entries as usize * ENTRY_BYTES
    }

    /// Switches MSI-X on (and INTx off) with all entries masked as one, or off.
    pub fn enable<M: Mmio>(&self, ecam: &Ecam<M>, function: DeviceFunction, on: bool) {
        let control = ecam.read(function, self.register) & !(ENABLE | FUNCTION_MASK);
        ecam.write(
            function,
            self.register,
            control | if on { ENABLE | FUNCTION_MASK } else { 0 },
        );
    }

    /// Takes the mask off that lies over all entries; what remains is each entry's own.
    pub fn unmask<M: Mmio>(&self, ecam: &Ecam<M>, function: DeviceFunction) {
        let control = ecam.read(function, self.register);
        ecam.write(function, self.register, control & !FUNCTION_MASK);
    }
}

/// The table of messages: each entry goes where its message says.
///
/// It is programmed once, in ascending order, and then left alone: under a hypervisor each write to it leaves the guest.
#[derive(Clone, Debug)]
pub struct MsixTable<M> {
    registers: M,
}

impl<M: Mmio> MsixTable<M> {
    /// The table in this window of registers.
    pub const fn new(registers: M) -> Self {
        Self { registers }
    }

    /// The number of entries.
    pub fn entries(&self) -> usize {
        self.registers.len() / ENTRY_BYTES
    }

    /// Masks `entry`.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn mask(&self, entry: usize) {
        self.registers.write32(entry * ENTRY_BYTES + 12, MASKED);
    }

    /// Gives `entry` its message and unmasks it.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn program(&self, entry: usize, message: MsiMessage) {
        let at = entry * ENTRY_BYTES;
        self.registers.write32(at, message.address as u32);
        self.registers.write32(at + 4, (message.address >> 32) as u32);
        self.registers.write32(at + 8, message.data);
        self.registers.write32(at + 12, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmio::MmioRegion;
    use core::ptr::NonNull;

    #[test]
    fn entries_stand_where_the_specification_puts_them() {
        let mut memory = [0u32; 16];
        // SAFETY: the memory outlives the table, and is looked at only after its last use.
        let registers = unsafe { MmioRegion::new(NonNull::from(&mut memory).cast(), 64) };
        let table = MsixTable::new(registers);
        assert_eq!(table.entries(), 4);
        table.mask(3);
        table.program(
            2,
            MsiMessage {
                address: 0x1_fee0_1000,
                data: 0x4041,
            },
        );
        assert_eq!(memory, [0, 0, 0, 0, 0, 0, 0, 0, 0xfee0_1000, 1, 0x4041, 0, 0, 0, 0, 1]);
    }
}
