//! Device registers.
//!
//! A driver is generic over [`Mmio`]: in the guest that is an [`MmioRegion`], in a test a register file in software.

use core::ptr::NonNull;

use crate::arch;

/// A window of device registers. Offsets are in bytes from its start and naturally aligned.
///
/// Every call is one access on the bus, in program order with other accesses of the same window. An offset outside of the
/// window, or a misaligned one, is a mistake of the driver and panics; it never reaches the bus.
pub trait Mmio {
    /// Length of the window in bytes.
    fn len(&self) -> usize;

    /// Whether the window holds no register at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the 32-bit register at `offset`.
    fn read32(&self, offset: usize) -> u32;

    /// Writes the 32-bit register at `offset`.
    fn write32(&self, offset: usize, value: u32);

    /// Reads a 64-bit register as two halves, the lower first (NVMe Base 2.0, 3.1: registers may be accessed so).
    fn read64_halves(&self, offset: usize) -> u64 {
        let low = self.read32(offset);
        let high = self.read32(offset + 4);
        u64::from(high) << 32 | u64::from(low)
    }

    /// Writes a 64-bit register as two halves, the lower first.
    fn write64_halves(&self, offset: usize, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }

    /// A part of this window as a window of its own, `length` bytes from `offset` on.
    ///
    /// # Panics
    /// When the part does not lie inside this window.
    fn window(&self, offset: usize, length: usize) -> Self
    where
        Self: Sized;
}

/// Registers of a real device, mapped into the address space with the attributes of device memory.
#[derive(Clone, Debug)]
pub struct MmioRegion {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: an `MmioRegion` is an address; the registers behind it may be accessed from any CPU.
unsafe impl Send for MmioRegion {}
// SAFETY: as above; accesses are single instructions, and ordering among CPUs is the driver's own affair.
unsafe impl Sync for MmioRegion {}

impl MmioRegion {
    /// Describes `length` bytes of device registers mapped at `base`.
    ///
    /// # Safety
    /// The range is mapped as device memory for as long as the region or any window of it lives, holds nothing that Rust
    /// code owns, and `base` is aligned to 8 bytes.
    pub const unsafe fn new(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length }
    }

    /// The mapped address of the first register.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    fn register(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(
            offset.is_multiple_of(size) && self.length >= size && offset <= self.length - size,
            "MMIO access of {size} bytes at {offset:#x} in a window of {:#x} bytes",
            self.length
        );
        // SAFETY: the offset was just found to lie inside the region.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Reads the 8-bit register at `offset`.
    #[inline(always)]
    pub fn read8(&self, offset: usize) -> u8 {
        // SAFETY: inside the region, whose creator vouched for it.
        unsafe { arch::load8(self.register(offset, 1)) }
    }

    /// Writes the 8-bit register at `offset`.
    #[inline(always)]
    pub fn write8(&self, offset: usize, value: u8) {
        // SAFETY: inside the region, whose creator vouched for it.
        unsafe { arch::store8(self.register(offset, 1), value) }
    }

    /// Reads the 16-bit register at `offset`.
    #[inline(always)]
    pub fn read16(&self, offset: usize) -> u16 {
        // SAFETY: inside the region and aligned, whose creator vouched for it.
        unsafe { arch::load16(self.register(offset, 2).cast()) }
    }

    /// Writes the 16-bit register at `offset`.
    #[inline(always)]
    pub fn write16(&self, offset: usize, value: u16) {
        // SAFETY: inside the region and aligned, whose creator vouched for it.
        unsafe { arch::store16(self.register(offset, 2).cast(), value) }
    }
}

impl Mmio for MmioRegion {
    #[inline(always)]
    fn len(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: inside the region and aligned, whose creator vouched for it.
        unsafe { arch::load32(self.register(offset, 4).cast()) }
    }

    #[inline(always)]
    fn write32(&self, offset: usize, value: u32) {
        // SAFETY: inside the region and aligned, whose creator vouched for it.
        unsafe { arch::store32(self.register(offset, 4).cast(), value) }
    }

    fn window(&self, offset: usize, length: usize) -> Self {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "window of {length:#x} bytes at {offset:#x} in {:#x} bytes of registers",
            self.length
        );
        // SAFETY: inside this region, so all that its creator vouched for holds for the part.
        unsafe { Self::new(NonNull::new_unchecked(self.base.as_ptr().add(offset)), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(memory: &mut [u64]) -> MmioRegion {
        // SAFETY: the memory outlives the region in each test and is not touched otherwise meanwhile.
        unsafe { MmioRegion::new(NonNull::from(&mut *memory).cast(), size_of_val(memory)) }
    }

    #[test]
    fn reads_what_was_written_and_windows_shift_offsets() {
        let mut memory = [0u64; 4];
        let registers = region(&mut memory);
        registers.write64_halves(8, 0x1122_3344_5566_7788);
        assert_eq!(registers.read64_halves(8), 0x1122_3344_5566_7788);
        assert_eq!(registers.window(12, 4).read32(0), 0x1122_3344);
        registers.write16(2, 0xabcd);
        registers.write8(1, 0xef);
        assert_eq!(registers.read32(0), 0xabcd_ef00);
        assert_eq!((registers.read8(3), registers.read16(2)), (0xab, 0xabcd));
    }

    #[test]
    #[should_panic(expected = "MMIO access of 4 bytes at 0x20 in a window of 0x20 bytes")]
    fn refuses_an_offset_outside() {
        let mut memory = [0u64; 4];
        region(&mut memory).read32(32);
    }

    #[test]
    #[should_panic(expected = "MMIO access of 4 bytes at 0x2")]
    fn refuses_a_misaligned_offset() {
        let mut memory = [0u64; 4];
        region(&mut memory).read32(2);
    }

    #[test]
    #[should_panic(expected = "window of 0x18 bytes at 0x10")]
    fn refuses_a_window_outside() {
        let mut memory = [0u64; 4];
        let _ = region(&mut memory).window(16, 24);
    }
}
