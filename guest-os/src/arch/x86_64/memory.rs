//! Physical memory during boot: reading tables that the loader and the firmware left, and keeping them out of the heap.

use core::ops::Range;

/// Where physical memory ends that the first page tables reach.
pub const FIRST_TABLES_END: u64 = 1 << 32;

/// Physical memory below 4 GiB, while the first page tables map all of it.
#[derive(Clone, Copy)]
pub struct Physical(());

impl Physical {
    /// # Safety
    /// The first page tables are in use for as long as this is, and slices that come from it are used later only where the
    /// final tables map them too.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// `length` bytes at `address`; `None` at 0, and beyond 4 GiB.
    pub fn bytes(self, address: u64, length: u64) -> Option<Bytes> {
        let end = address.checked_add(length)?;
        if address == 0 || end > FIRST_TABLES_END {
            return None;
        }
        // SAFETY: mapped, by the promise of `new`; nothing writes to what loader and firmware left, as it is kept out of the heap.
        Some(Bytes(unsafe {
            core::slice::from_raw_parts(address as *const u8, length as usize)
        }))
    }

    /// Up to `length` bytes at `address`, cut off at 4 GiB.
    pub fn bytes_up_to(self, address: u64, length: u64) -> Option<Bytes> {
        self.bytes(address, length.min(FIRST_TABLES_END.checked_sub(address)?))
    }
}

/// Bytes with little-endian fields; a field outside of them reads as 0.
#[derive(Clone, Copy)]
pub struct Bytes(pub &'static [u8]);

impl Bytes {
    fn field<const N: usize>(self, offset: usize) -> [u8; N] {
        self.0
            .get(offset..)
            .and_then(|rest| rest.first_chunk())
            .copied()
            .unwrap_or([0; N])
    }

    /// The byte at `offset`.
    pub fn u8(self, offset: usize) -> u8 {
        self.field::<1>(offset)[0]
    }

    /// The 16-bit field at `offset`.
    pub fn u16(self, offset: usize) -> u16 {
        u16::from_le_bytes(self.field(offset))
    }

    /// The 32-bit field at `offset`.
    pub fn u32(self, offset: usize) -> u32 {
        u32::from_le_bytes(self.field(offset))
    }

    /// The 64-bit field at `offset`.
    pub fn u64(self, offset: usize) -> u64 {
        u64::from_le_bytes(self.field(offset))
    }
}

/// Ranges of memory that are in use, before there is a heap to keep them in.
pub struct Ranges {
    ranges: [Range<u64>; Self::MOST],
    count: usize,
}

impl Ranges {
    const MOST: usize = 48;

    /// None yet.
    pub const fn new() -> Self {
        Self {
            ranges: [const { 0..0 }; Self::MOST],
            count: 0,
        }
    }

    /// Enters a range. Once there is no room, the last one grows to hold it: memory may be lost, but none is used twice.
    pub fn add(&mut self, range: Range<u64>) {
        match self.ranges.get_mut(self.count) {
            Some(free) => {
                *free = range;
                self.count += 1;
            }
            None => {
                let last = &mut self.ranges[Self::MOST - 1];
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
        }
    }

    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + Clone + '_ {
        self.ranges[..self.count].iter().cloned()
    }
}

/// Calls `free` with each part of `whole` that no range of `used` touches.
pub fn without(whole: Range<u64>, used: impl Iterator<Item = Range<u64>> + Clone, mut free: impl FnMut(Range<u64>)) {
    let mut at = whole.start;
    while at < whole.end {
        let next = used
            .clone()
            .filter(|u| u.start < whole.end && u.end > at && u.start < u.end)
            .min_by_key(|u| u.start);
        let Some(next) = next else {
            free(at..whole.end);
            return;
        };
        if next.start > at {
            free(at..next.start);
        }
        at = next.end;
    }
}
