//! Memory, registers and a clock for tests on a host.
//!
//! [`FakeDma`] is the memory of a machine whose I/O addresses differ from its memory addresses, so that a driver that mixes
//! them up fails; the device half of a test reads and writes it by [`IoAddr`], and touching what no driver allocated is an
//! error. [`FakeClock`] moves only when told to, or by a step at each look.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thiserror::Error;

use crate::clock::{Clock, TickRate};
use crate::dma::{Dma, DmaAllocator, DmaError, IoAddr, read_memory, write_memory};

/// A device touched memory that no driver had given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("DMA of {length} bytes at {address:?} touches memory that was not allocated")]
pub struct BadDma {
    /// Where the access began.
    pub address: IoAddr,
    /// Its length in bytes.
    pub length: usize,
}

/// DMA memory of a test: the driver allocates from it, the device accesses it by I/O address.
#[derive(Clone, Default)]
pub struct FakeDma(Arc<Mutex<Bus>>);

#[derive(Default)]
struct Bus {
    next: u64,
    left: usize,
    /// I/O address of each live allocation, its memory and length.
    live: BTreeMap<u64, (Memory, usize)>,
}

/// Where an allocation lies. A pointer and not its address, so that Miri knows what it may touch.
#[derive(Clone, Copy)]
struct Memory(NonNull<u8>);

// SAFETY: the bus only touches the memory under its lock, by volatile accesses.
unsafe impl Send for Memory {}

impl FakeDma {
    /// A machine with `capacity` bytes of DMA memory.
    pub fn new(capacity: usize) -> Self {
        // Far above any address of a process, so that a memory address is never a valid I/O address.
        Self(Arc::new(Mutex::new(Bus {
            next: 0x0080_0000_0000_0000,
            left: capacity,
            live: BTreeMap::new(),
        })))
    }

    /// The driver's handle.
    pub fn dma(&self) -> Dma {
        Dma::new(self.clone())
    }

    /// The number of live allocations.
    pub fn live(&self) -> usize {
        self.0.lock().unwrap().live.len()
    }

    /// A device reads memory.
    ///
    /// # Errors
    /// When any byte was not allocated.
    pub fn read(&self, address: IoAddr, target: &mut [u8]) -> Result<(), BadDma> {
        let bus = self.0.lock().unwrap();
        let source = bus.find(address, target.len())?;
        // SAFETY: `find` checked the range; the allocation lives while the lock is held.
        unsafe { read_memory(source, target) };
        Ok(())
    }

    /// A device writes memory, in ascending order.
    ///
    /// # Errors
    /// When any byte was not allocated; then nothing was written.
    pub fn write(&self, address: IoAddr, source: &[u8]) -> Result<(), BadDma> {
        let bus = self.0.lock().unwrap();
        let target = bus.find(address, source.len())?;
        // SAFETY: `find` checked the range; the allocation lives while the lock is held.
        unsafe { write_memory(target, source) };
        Ok(())
    }
}

impl Bus {
    fn find(&self, address: IoAddr, length: usize) -> Result<*mut u8, BadDma> {
        let bad = BadDma { address, length };
        let (start, (memory, size)) = self.live.range(..=address.value()).next_back().ok_or(bad)?;
        let offset = usize::try_from(address.value() - start).map_err(|_| bad)?;
        if offset > *size || length > size - offset {
            return Err(bad);
        }
        // SAFETY: inside the allocation.
        Ok(unsafe { memory.0.as_ptr().add(offset) })
    }
}

// SAFETY: memory comes zeroed from the global allocator with the alignment asked for, under an I/O address that no other
// live allocation has.
unsafe impl DmaAllocator for FakeDma {
    fn allocate(&self, length: usize, align: usize) -> Result<(NonNull<u8>, IoAddr), DmaError> {
        let mut bus = self.0.lock().unwrap();
        let error = DmaError::OutOfMemory { length, align };
        bus.left = bus.left.checked_sub(length).ok_or(error)?;
        let layout = Layout::from_size_align(length, align).map_err(|_| error)?;
        // SAFETY: `Dma::allocate` never asks for 0 bytes.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(error)?;
        let address = bus.next.next_multiple_of(align as u64);
        // A hole behind each allocation catches a device that runs past its end.
        bus.next = address + length as u64 + 4096;
        bus.live.insert(address, (Memory(memory), length));
        Ok((memory, IoAddr::new(address)))
    }

    unsafe fn release(&self, memory: NonNull<u8>, address: IoAddr, length: usize, align: usize) {
        let mut bus = self.0.lock().unwrap();
        bus.live
            .remove(&address.value())
            .expect("released what was never allocated");
        bus.left += length;
        // SAFETY: the layout that `allocate` used.
        unsafe { dealloc(memory.as_ptr(), Layout::from_size_align(length, align).unwrap()) }
    }
}

/// A clock of 1 GHz that tests move by hand; it can also step by itself at each look, so that waiting loops end.
#[derive(Clone, Debug, Default)]
pub struct FakeClock {
    now: Arc<AtomicU64>,
    step: u64,
}

impl FakeClock {
    /// A clock at 0 that moves on by `step` nanoseconds whenever somebody reads it.
    pub fn stepping(step: u64) -> Self {
        Self {
            now: Arc::default(),
            step,
        }
    }

    /// Moves the clock on by `nanoseconds`.
    pub fn advance(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn ticks(&self) -> u64 {
        self.now.fetch_add(self.step, Ordering::Relaxed)
    }

    fn rate(&self) -> TickRate {
        TickRate::from_hertz(1_000_000_000)
    }
}
