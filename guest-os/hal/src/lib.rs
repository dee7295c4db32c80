//! Hardware access for doorpost's guest: the one room that touches device registers and device-shared memory.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mmio`] | device registers: the [`Mmio`](mmio::Mmio) trait and [`MmioRegion`](mmio::MmioRegion), whose accesses are single pinned instructions |
//! | [`dma`] | memory shared with devices: [`IoAddr`](dma::IoAddr), [`DmaBuffer`](dma::DmaBuffer), [`DmaRing`](dma::DmaRing), [`DmaAllocator`](dma::DmaAllocator) |
//! | [`barrier`] | `dma_wmb`, `dma_rmb`, `mmio_wmb` |
//! | [`clock`] | [`Clock`](clock::Clock) and the conversion of its ticks |
//! | [`pci`] | functions, BARs, and MSI-X tables |
//! | `fake` | (feature `fake`) all of the above for tests on a host |
//!
//! Drivers import this crate and stay free of unsafe code themselves.
#![cfg_attr(not(any(test, feature = "fake")), no_std)]

extern crate alloc;

mod arch;
pub mod barrier;
pub mod clock;
pub mod dma;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod mmio;
pub mod pci;
