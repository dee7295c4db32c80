//! Order between memory that a device reads and writes, and its registers.
//!
//! | barrier | orders | used |
//! |---|---|---|
//! | [`dma_wmb`] | stores to DMA memory, one before the next | between the parts of a descriptor whose order matters |
//! | [`dma_rmb`] | loads from DMA memory, one before the next | after a completion's phase, before the rest of it |
//! | [`dma_mb`] | all accesses to DMA memory, a store before a load too | between a shadow doorbell and the look at its event index |
//! | [`mmio_wmb`] | stores to DMA memory before a store to a register | before a doorbell |

use crate::arch;

/// Stores to DMA memory before this call are seen by devices before stores after it.
#[inline(always)]
pub fn dma_wmb() {
    arch::dma_wmb();
}

/// Loads from DMA memory after this call see data at least as new as loads before it.
#[inline(always)]
pub fn dma_rmb() {
    arch::dma_rmb();
}

/// All accesses to DMA memory before this call are done before any after it, as devices see them: the one barrier that holds
/// a load back until an earlier store is seen.
#[inline(always)]
pub fn dma_mb() {
    arch::dma_mb();
}

/// Stores to DMA memory before this call are seen by devices before they see a register write after it.
#[inline(always)]
pub fn mmio_wmb() {
    arch::mmio_wmb();
}
