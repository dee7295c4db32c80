use core::arch::asm;
use core::sync::atomic::{Ordering, compiler_fence, fence};

/// # Safety
/// `address` is a mapped, naturally aligned device register of 8 bits.
#[inline(always)]
pub(crate) unsafe fn load8(address: *const u8) -> u8 {
    let value: u8;
    // SAFETY: the caller vouches for the address; the instruction touches nothing else.
    unsafe { asm!("mov {0}, byte ptr [{1}]", out(reg_byte) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// # Safety
/// `address` is a mapped, naturally aligned device register of 16 bits.
#[inline(always)]
pub(crate) unsafe fn load16(address: *const u16) -> u16 {
    let value: u16;
    // SAFETY: the caller vouches for the address; the instruction touches nothing else.
    unsafe { asm!("mov {0:x}, word ptr [{1}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// # Safety
/// `address` is a mapped, naturally aligned device register of 32 bits.
#[inline(always)]
pub(crate) unsafe fn load32(address: *const u32) -> u32 {
    let value: u32;
    // SAFETY: the caller vouches for the address; the instruction touches nothing else.
    unsafe { asm!("mov {0:e}, dword ptr [{1}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// # Safety
/// `address` is a mapped, naturally aligned device register of 32 bits, and the device tolerates this write.
#[inline(always)]
pub(crate) unsafe fn store32(address: *mut u32, value: u32) {
    // SAFETY: the caller vouches for the address and the write.
    unsafe { asm!("mov dword ptr [{0}], {1:e}", in(reg) address, in(reg) value, options(nostack, preserves_flags)) };
}

/// # Safety
/// `address` is a mapped, naturally aligned device register of 8 bits, and the device tolerates this write.
#[inline(always)]
pub(crate) unsafe fn store8(address: *mut u8, value: u8) {
    // SAFETY: the caller vouches for the address and the write.
    unsafe { asm!("mov byte ptr [{0}], {1}", in(reg) address, in(reg_byte) value, options(nostack, preserves_flags)) };
}

/// # Safety
/// `address` is a mapped, naturally aligned device register of 16 bits, and the device tolerates this write.
#[inline(always)]
pub(crate) unsafe fn store16(address: *mut u16, value: u16) {
    // SAFETY: the caller vouches for the address and the write.
    unsafe { asm!("mov word ptr [{0}], {1:x}", in(reg) address, in(reg) value, options(nostack, preserves_flags)) };
}

// x86-64 is total store order (Intel SDM vol. 3A 10.2.2): stores to write-back memory are seen in program order, also
// before a later store to uncached memory, and loads are not reordered with loads. Only the compiler must be held back.

#[inline(always)]
pub(crate) fn dma_wmb() {
    compiler_fence(Ordering::SeqCst);
}

#[inline(always)]
pub(crate) fn dma_rmb() {
    compiler_fence(Ordering::SeqCst);
}

#[inline(always)]
pub(crate) fn mmio_wmb() {
    compiler_fence(Ordering::SeqCst);
}

/// A load may overtake an earlier store, even here: it takes a fence.
#[inline(always)]
pub(crate) fn dma_mb() {
    fence(Ordering::SeqCst);
}
