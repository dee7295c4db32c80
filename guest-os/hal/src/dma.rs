//! Memory that devices read and write.
//!
//! A device may change such memory at any moment, so that no reference to it is ever handed out: every access is a volatile
//! load or store of a plain word, or a copy made of them. The address that a device uses, [`IoAddr`], is a type of its own:
//! it equals the physical address on some platforms, and on others (TCE windows, vIOMMU) it does not.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An address as a device sees it, to be put into its registers and descriptors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct IoAddr(u64);

impl IoAddr {
    /// The I/O address with this value.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The value to put into a register or descriptor.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on.
    ///
    /// # Panics
    /// When the sum does not fit into 64 bits.
    pub const fn offset(self, bytes: usize) -> Self {
        match self.0.checked_add(bytes as u64) {
            Some(value) => Self(value),
            None => panic!("I/O address beyond 64 bits"),
        }
    }
}

impl fmt::Debug for IoAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io:{:#x}", self.0)
    }
}

/// Why DMA memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaError {
    /// No contiguous memory of that size is left.
    #[error(
        "no {length} bytes of DMA memory (aligned to {align}) are left; give the guest more memory, or the job less depth or smaller blocks"
    )]
    OutOfMemory {
        /// Bytes asked for.
        length: usize,
        /// Alignment asked for, in bytes.
        align: usize,
    },
    /// The memory is there, but the window of I/O addresses is full.
    #[error("no {length} bytes are left in the device's window of {window} bytes of I/O addresses")]
    OutOfWindow {
        /// Bytes asked for.
        length: usize,
        /// Size of the whole window in bytes.
        window: u64,
    },
}

/// Where DMA memory comes from, one per platform (or per device, where devices have windows of their own).
///
/// # Safety
/// An implementation returns memory that nothing else uses until it is released, that is zeroed, mapped and cached as
/// ordinary memory, that starts at a multiple of `align` both for the CPU and for the device, and whose `len` bytes are
/// contiguous for both.
pub unsafe trait DmaAllocator: Send + Sync {
    /// Hands out `length` bytes (not 0), aligned to `align` bytes (a power of two).
    ///
    /// # Errors
    /// See [`DmaError`].
    fn allocate(&self, length: usize, align: usize) -> Result<(NonNull<u8>, IoAddr), DmaError>;

    /// Takes back what [`allocate`](Self::allocate) handed out.
    ///
    /// # Safety
    /// The four values belong to one earlier allocation of this allocator, that no device and no code uses any more.
    unsafe fn release(&self, memory: NonNull<u8>, address: IoAddr, length: usize, align: usize);
}

/// A handle on the platform's DMA memory; cloning it is cheap.
#[derive(Clone)]
pub struct Dma(Arc<dyn DmaAllocator>);

impl Dma {
    /// A handle on `allocator`.
    pub fn new(allocator: impl DmaAllocator + 'static) -> Self {
        Self(Arc::new(allocator))
    }

    /// Zeroed, contiguous memory of `length` bytes, aligned to `align` bytes for CPU and device; released when dropped.
    ///
    /// # Errors
    /// See [`DmaError`].
    ///
    /// # Panics
    /// When `length` is 0 or `align` is no power of two.
    pub fn allocate(&self, length: usize, align: usize) -> Result<DmaBuffer, DmaError> {
        assert!(
            length > 0 && align.is_power_of_two(),
            "DMA memory of {length} bytes aligned to {align}"
        );
        // Rings and words of up to 8 bytes rely on it.
        let align = align.max(8);
        let (memory, address) = self.0.allocate(length, align)?;
        Ok(DmaBuffer {
            memory,
            address,
            length,
            align,
            allocator: self.0.clone(),
        })
    }
}

impl fmt::Debug for Dma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dma")
    }
}

/// Memory shared with a device. Offsets are in bytes; one outside of the buffer is a driver's mistake and panics.
///
/// The owner must not drop a buffer before the device has stopped using it: deleting the queue, or a controller reset.
pub struct DmaBuffer {
    memory: NonNull<u8>,
    address: IoAddr,
    length: usize,
    align: usize,
    allocator: Arc<dyn DmaAllocator>,
}

// SAFETY: the buffer owns its memory; all accesses are volatile words.
unsafe impl Send for DmaBuffer {}
// SAFETY: a shared reference only reads memory, by volatile words.
unsafe impl Sync for DmaBuffer {}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        // SAFETY: exactly what `allocate` returned; the owner vouches that the device is done with it.
        unsafe {
            self.allocator
                .release(self.memory, self.address, self.length, self.align)
        }
    }
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuffer({:?}, {} bytes)", self.address, self.length)
    }
}

impl DmaBuffer {
    /// The address of the first byte for the device.
    pub fn address(&self) -> IoAddr {
        self.address
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn at<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        assert!(
            offset.is_multiple_of(align_of::<T>()) && self.length >= size && offset <= self.length - size,
            "DMA access of {size} bytes at {offset:#x} in a buffer of {:#x} bytes",
            self.length
        );
        // SAFETY: inside the buffer.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// Reads a 32-bit word (little-endian in memory).
    #[inline(always)]
    pub fn read32(&self, offset: usize) -> u32 {
        // SAFETY: inside the buffer and aligned; volatile, as the device may write it.
        u32::from_le(unsafe { self.at::<u32>(offset).read_volatile() })
    }

    /// Reads a 64-bit word (little-endian in memory).
    #[inline(always)]
    pub fn read64(&self, offset: usize) -> u64 {
        // SAFETY: inside the buffer and aligned; volatile, as the device may write it.
        u64::from_le(unsafe { self.at::<u64>(offset).read_volatile() })
    }

    /// Writes a 32-bit word (little-endian in memory).
    #[inline(always)]
    pub fn write32(&mut self, offset: usize, value: u32) {
        // SAFETY: inside the buffer and aligned; volatile, as the device may read it.
        unsafe { self.at::<u32>(offset).write_volatile(value.to_le()) }
    }

    /// Writes a 64-bit word (little-endian in memory).
    #[inline(always)]
    pub fn write64(&mut self, offset: usize, value: u64) {
        // SAFETY: inside the buffer and aligned; volatile, as the device may read it.
        unsafe { self.at::<u64>(offset).write_volatile(value.to_le()) }
    }

    /// Copies `target.len()` bytes out of the buffer.
    pub fn copy_out(&self, offset: usize, target: &mut [u8]) {
        self.check(offset, target.len());
        // SAFETY: the range was checked above.
        unsafe { read_memory(self.memory.as_ptr().add(offset), target) }
    }

    /// Copies `source` into the buffer.
    pub fn copy_in(&mut self, offset: usize, source: &[u8]) {
        self.check(offset, source.len());
        // SAFETY: the range was checked above.
        unsafe { write_memory(self.memory.as_ptr().add(offset), source) }
    }

    /// Reads a structure, byte for byte; the copy is private, so that the device can no longer change it.
    pub fn read<T: FromBytes + IntoBytes + KnownLayout>(&self, offset: usize) -> T {
        let mut value = T::new_zeroed();
        self.copy_out(offset, value.as_mut_bytes());
        value
    }

    /// Writes a structure, byte for byte.
    pub fn write<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) {
        self.copy_in(offset, value.as_bytes());
    }

    /// Sets every byte to 0.
    pub fn clear(&mut self) {
        // SAFETY: the buffer owns `length` bytes from `memory` on.
        unsafe { self.memory.as_ptr().write_bytes(0, self.length) }
        crate::barrier::dma_wmb();
    }

    #[track_caller]
    fn check(&self, offset: usize, length: usize) {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "DMA access of {length} bytes at {offset:#x} in a buffer of {:#x} bytes",
            self.length
        );
    }
}

/// DMA memory whose 32-bit words several CPUs use, each words of its own or not: shadow doorbells.
///
/// It is released with the last handle, [`DmaWord`]s included.
#[derive(Clone, Debug)]
pub struct SharedDma(Arc<DmaBuffer>);

impl SharedDma {
    /// Shares `buffer`.
    pub fn new(buffer: DmaBuffer) -> Self {
        Self(Arc::new(buffer))
    }

    /// The address of the first byte for the device.
    pub fn address(&self) -> IoAddr {
        self.0.address
    }

    /// The word at `offset` bytes.
    ///
    /// # Panics
    /// When the offset is misaligned, or outside.
    pub fn word(&self, offset: usize) -> DmaWord {
        let word = self.0.at::<u32>(offset);
        DmaWord {
            // SAFETY: a pointer into memory that was allocated is not null.
            word: unsafe { NonNull::new_unchecked(word) },
            _buffer: self.0.clone(),
        }
    }

    /// Sets every word to 0.
    pub fn clear(&self) {
        for offset in (0..=self.0.length - 4).step_by(4) {
            self.word(offset).store(0);
        }
    }
}

/// A 32-bit word of DMA memory (little-endian) that CPUs share with a device, and keep alive.
#[derive(Debug)]
pub struct DmaWord {
    word: NonNull<u32>,
    /// Held for the word.
    _buffer: Arc<DmaBuffer>,
}

// SAFETY: a word is an address into memory that the handle keeps alive; all accesses are atomic.
unsafe impl Send for DmaWord {}
// SAFETY: as above.
unsafe impl Sync for DmaWord {}
impl DmaWord {
    #[inline(always)]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the buffer, which lives as long as this handle; every access goes through here.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr()) }
    }

    /// Reads the word; other accesses may move around it, unless a barrier holds them.
    #[inline(always)]
    pub fn load(&self) -> u32 {
        u32::from_le(self.atomic().load(Ordering::Relaxed))
    }

    /// Writes the word; other accesses may move around it, unless a barrier holds them.
    #[inline(always)]
    pub fn store(&self, value: u32) {
        self.atomic().store(value.to_le(), Ordering::Relaxed);
    }
}

/// A ring or table of equal entries of `T` in DMA memory: a queue of submissions, of completions, an MSI translation table.
///
/// `T` is made of whole 64-bit words (a compile-time check), and an entry is written and read word by word.
pub struct DmaRing<T> {
    buffer: DmaBuffer,
    entries: usize,
    entry: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable + Copy> DmaRing<T> {
    const WORDS: usize = {
        assert!(
            size_of::<T>().is_multiple_of(8) && size_of::<T>() > 0,
            "an entry is made of whole 64-bit words"
        );
        size_of::<T>() / 8
    };

    /// A zeroed ring of `entries` entries, aligned to `align` bytes.
    ///
    /// # Errors
    /// See [`DmaError`].
    pub fn new(dma: &Dma, entries: usize, align: usize) -> Result<Self, DmaError> {
        let buffer = dma.allocate(entries * Self::WORDS * 8, align)?;
        Ok(Self {
            buffer,
            entries,
            entry: PhantomData,
        })
    }

    /// The number of entries.
    #[inline(always)]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// The address of entry 0 for the device.
    pub fn address(&self) -> IoAddr {
        self.buffer.address
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> *mut u64 {
        assert!(index < self.entries, "entry {index} of a ring of {}", self.entries);
        // SAFETY: the buffer holds `entries` entries of `WORDS` words.
        unsafe { self.buffer.memory.as_ptr().cast::<u64>().add(index * Self::WORDS) }
    }

    /// Writes entry `index`, its words in ascending order.
    #[inline(always)]
    pub fn write(&mut self, index: usize, value: &T) {
        let target = self.entry(index);
        let source = core::ptr::from_ref(value).cast::<u64>();
        for word in 0..Self::WORDS {
            // SAFETY: `target` has `WORDS` aligned words, `source` as many of any alignment.
            unsafe { target.add(word).write_volatile(source.add(word).read_unaligned()) }
        }
    }

    /// Writes entry `index` as [`write`](Self::write) does, but with `first` (in the CPU's byte order) for its first word: a
    /// template with one word of its own. No copy of the whole entry is made on the way.
    #[inline(always)]
    pub fn write_with(&mut self, index: usize, first: u64, rest: &T) {
        const { assert!(align_of::<T>() >= 8, "an entry aligned to its words") };
        let target = self.entry(index);
        let source = core::ptr::from_ref(rest).cast::<u64>();
        // SAFETY: `target` has `WORDS` aligned words.
        unsafe { target.write_volatile(first.to_le()) };
        let copy = |word: usize| {
            if word < Self::WORDS {
                // SAFETY: both have `WORDS` aligned words. The loads are volatile so that each is followed by its store: loaded
                // all at once, the words would not fit into registers.
                unsafe { target.add(word).write_volatile(source.add(word).read_volatile()) }
            }
        };
        // One after the other, since a compiler that is told to keep code small keeps loops.
        const { assert!(Self::WORDS <= 8, "at most eight words") };
        copy(1);
        copy(2);
        copy(3);
        copy(4);
        copy(5);
        copy(6);
        copy(7);
    }

    /// Reads entry `index`, its words in ascending order; the copy is private.
    #[inline(always)]
    pub fn read(&self, index: usize) -> T {
        let source = self.entry(index);
        let mut value = T::new_zeroed();
        let target = core::ptr::from_mut(&mut value).cast::<u64>();
        for word in 0..Self::WORDS {
            // SAFETY: `source` has `WORDS` aligned words, `target` as many of any alignment; any bits are a `T`.
            unsafe { target.add(word).write_unaligned(source.add(word).read_volatile()) }
        }
        value
    }

    /// Reads the 64-bit word `word` of entry `index`, in the CPU's byte order.
    ///
    /// # Panics
    /// When the entry has no such word.
    #[inline(always)]
    pub fn read_word(&self, index: usize, word: usize) -> u64 {
        assert!(word < Self::WORDS, "word {word} of an entry of {}", Self::WORDS);
        // SAFETY: inside the entry.
        u64::from_le(unsafe { self.entry(index).add(word).read_volatile() })
    }

    /// Entry `index`, to read its words: the index is checked once for all of them.
    ///
    /// # Panics
    /// When there is no such entry.
    #[inline(always)]
    pub fn at(&self, index: usize) -> DmaEntry<'_, T> {
        DmaEntry {
            words: self.entry(index),
            ring: PhantomData,
        }
    }

    /// Sets every byte of the ring to 0.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }
}

/// An entry of a [`DmaRing`].
#[derive(Clone, Copy)]
pub struct DmaEntry<'a, T> {
    words: *const u64,
    ring: PhantomData<&'a DmaRing<T>>,
}

impl<T: FromBytes + IntoBytes + Immutable + Copy> DmaEntry<'_, T> {
    /// Reads the 64-bit word `WORD`, in the CPU's byte order, anew at each call.
    #[inline(always)]
    pub fn word<const WORD: usize>(&self) -> u64 {
        const { assert!(WORD < DmaRing::<T>::WORDS, "a word beyond the entry") };
        // SAFETY: inside the entry, whose ring lives as long as this borrow of it.
        u64::from_le(unsafe { self.words.add(WORD).read_volatile() })
    }
}

/// Reads memory that a device may write: in words where it is aligned, else in bytes, in ascending order.
///
/// # Safety
/// `target.len()` bytes from `source` on are readable.
pub(crate) unsafe fn read_memory(source: *const u8, target: &mut [u8]) {
    let head = source.align_offset(8).min(target.len());
    let (bytes, rest) = target.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<8>();
    let read = |at: usize, bytes: &mut [u8]| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the caller's range.
            *byte = unsafe { source.add(at + i).read_volatile() };
        }
    };
    read(0, bytes);
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: within the caller's range, and aligned.
        *word = unsafe { source.add(head).cast::<u64>().add(i).read_volatile() }.to_ne_bytes();
    }
    read(head + 8 * words.len(), tail);
}

/// Writes memory that a device may read, likewise.
///
/// # Safety
/// `source.len()` bytes from `target` on are writable.
pub(crate) unsafe fn write_memory(target: *mut u8, source: &[u8]) {
    let head = target.align_offset(8).min(source.len());
    let (bytes, rest) = source.split_at(head);
    let (words, tail) = rest.as_chunks::<8>();
    let write = |at: usize, bytes: &[u8]| {
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: within the caller's range.
            unsafe { target.add(at + i).write_volatile(*byte) };
        }
    };
    write(0, bytes);
    for (i, word) in words.iter().enumerate() {
        // SAFETY: within the caller's range, and aligned.
        unsafe {
            target
                .add(head)
                .cast::<u64>()
                .add(i)
                .write_volatile(u64::from_ne_bytes(*word))
        };
    }
    write(head + 8 * words.len(), tail);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeDma;

    #[test]
    fn entries_and_words_are_little_endian_and_in_place() {
        let bus = FakeDma::new(1 << 20);
        let dma = bus.dma();
        let mut ring = DmaRing::<[u32; 4]>::new(&dma, 8, 4096).unwrap();
        assert_eq!(ring.read(7), [0; 4]);
        ring.write(3, &[1u32.to_le(), 2u32.to_le(), 3u32.to_le(), 4u32.to_le()]);
        assert_eq!(ring.read_word(3, 1), 4 << 32 | 3);
        assert_eq!(
            (ring.at(3).word::<0>(), ring.at(3).word::<1>()),
            (2 << 32 | 1, 4 << 32 | 3)
        );
        let mut seen = [0; 16];
        bus.read(ring.address().offset(48), &mut seen).unwrap();
        assert_eq!(seen, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        ring.clear();
        assert_eq!(ring.read(3), [0; 4]);
    }

    #[test]
    fn a_template_is_written_with_a_first_word_of_its_own() {
        let bus = FakeDma::new(1 << 20);
        let mut ring = DmaRing::<[u64; 3]>::new(&bus.dma(), 4, 4096).unwrap();
        ring.write_with(2, 0x1122, &[7, 8u64.to_le(), 9u64.to_le()]);
        assert_eq!([0, 1, 2].map(|word| ring.read_word(2, word)), [0x1122, 8, 9]);
        assert_eq!((ring.read(1), ring.read(3)), ([0; 3], [0; 3]));
    }

    #[test]
    fn shared_words_live_as_long_as_any_handle() {
        let bus = FakeDma::new(1 << 20);
        let shared = SharedDma::new(bus.dma().allocate(4096, 4096).unwrap());
        let (address, word) = (shared.address(), shared.word(4092));
        word.store(0x0102_0304);
        shared.word(0).store(9);
        let mut seen = [0; 4];
        bus.read(address.offset(4092), &mut seen).unwrap();
        assert_eq!(seen, [4, 3, 2, 1]);
        shared.clear();
        assert_eq!((word.load(), shared.word(0).load()), (0, 0));
        drop(shared);
        bus.write(address.offset(4092), &[5, 0, 0, 0]).unwrap();
        assert_eq!(word.load(), 5);
        drop(word);
        assert_eq!(bus.live(), 0);
    }

    #[test]
    fn a_dropped_buffer_is_gone_from_the_bus() {
        let bus = FakeDma::new(1 << 20);
        let mut buffer = bus.dma().allocate(100, 4096).unwrap();
        buffer.copy_in(90, &[7; 10]);
        let mut seen = [0; 10];
        let address = buffer.address().offset(90);
        bus.read(address, &mut seen).unwrap();
        assert_eq!(seen, [7; 10]);
        drop(buffer);
        assert!(bus.read(address, &mut seen).is_err());
    }

    #[test]
    fn memory_runs_out_with_a_reason() {
        let bus = FakeDma::new(4096);
        let error = bus.dma().allocate(8192, 4096).unwrap_err();
        assert_eq!(
            error,
            DmaError::OutOfMemory {
                length: 8192,
                align: 4096
            }
        );
    }

    #[test]
    #[should_panic(expected = "DMA access of 4 bytes at 0x62 in a buffer of 0x64 bytes")]
    fn offsets_outside_panic() {
        FakeDma::new(4096).dma().allocate(100, 8).unwrap().read32(98);
    }

    #[test]
    #[should_panic(expected = "entry 8 of a ring of 8")]
    fn entries_outside_panic() {
        DmaRing::<u64>::new(&FakeDma::new(4096).dma(), 8, 8).unwrap().read(8);
    }
}
