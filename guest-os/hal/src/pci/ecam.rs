//! Configuration space through memory (PCI Express Base Specification 5.0, 7.2.2).

use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

use crate::mmio::Mmio;

/// Bytes of configuration space of one function.
const FUNCTION_BYTES: usize = 4096;

/// The configuration space of a range of buses: 4 KiB for each function, 1 MiB for each bus.
#[derive(Clone, Debug)]
pub struct Ecam<M> {
    registers: M,
    first_bus: u8,
}

impl<M: Mmio> Ecam<M> {
    /// The buses from `first_bus` on; the window begins with that bus.
    pub const fn new(registers: M, first_bus: u8) -> Self {
        Self { registers, first_bus }
    }

    fn offset(&self, function: DeviceFunction, register: u16) -> Option<usize> {
        let bus = usize::from(function.bus.checked_sub(self.first_bus)?);
        let offset = (bus << 20 | usize::from(function.device) << 15 | usize::from(function.function) << 12)
            + usize::from(register);
        (usize::from(register) < FUNCTION_BYTES && offset + 4 <= self.registers.len()).then_some(offset)
    }

    /// Reads the aligned 32-bit word at `register`; all ones where there is no such function or bus, as on the bus itself.
    pub fn read(&self, function: DeviceFunction, register: u16) -> u32 {
        self.offset(function, register & !3)
            .map_or(u32::MAX, |offset| self.registers.read32(offset))
    }

    /// Writes the aligned 32-bit word at `register`; nothing happens where there is no such bus.
    pub fn write(&self, function: DeviceFunction, register: u16, value: u32) {
        if let Some(offset) = self.offset(function, register & !3) {
            self.registers.write32(offset, value);
        }
    }
}

impl<M: Mmio + Clone> ConfigurationAccess for Ecam<M> {
    fn read_word(&self, device_function: DeviceFunction, register_offset: u8) -> u32 {
        self.read(device_function, u16::from(register_offset))
    }

    fn write_word(&mut self, device_function: DeviceFunction, register_offset: u8, data: u32) {
        self.write(device_function, u16::from(register_offset), data);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        self.clone()
    }
}
