//! The final page tables (Intel SDM vol. 3A, 5.5).
//!
//! Memory lies at its physical address, write-back; device registers too, uncached, and only once somebody has asked for them.
//! Everything else, page 0 first of all, is not there. Physical addresses from 2^47 on appear sign-extended, as addresses
//! must be. Only the image's code can be executed, if the CPU has no-execute pages.

use alloc::alloc::{Layout, alloc_zeroed};
use core::arch::x86_64::__cpuid;
use core::ops::Range;

use spin::Mutex;
use x86_64::structures::paging::PageTableFlags as Flags;

const PAGE: u64 = 4096;
/// The page table entry's bits that are an address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Physical addresses beyond this cannot be reached with four levels.
const LIMIT: u64 = 1 << 48;

/// Read-only: code and constants.
pub const READ: Flags = Flags::PRESENT;
/// Memory.
pub const MEMORY: Flags = READ.union(Flags::WRITABLE);
/// Device registers: PAT entry 3, strong uncacheable after reset (SDM vol. 3A, table 13-12).
const UNCACHED: Flags = Flags::NO_CACHE.union(Flags::WRITE_THROUGH);
const DEVICE: Flags = MEMORY.union(UNCACHED).union(Flags::NO_EXECUTE);

#[repr(C, align(4096))]
pub struct Table([u64; 512]);

/// The root, whose address other CPUs must be able to load in 32-bit mode.
pub static ROOT: Root = Root(core::cell::UnsafeCell::new(Table([0; 512])));

/// The top-level table.
#[repr(transparent)]
pub struct Root(core::cell::UnsafeCell<Table>);

// SAFETY: the table is changed only under the lock `MAPPER`.
unsafe impl Sync for Root {}

static MAPPER: Mutex<Mapper> = Mutex::new(Mapper {
    gigabyte_pages: false,
    no_execute: false,
});

struct Mapper {
    gigabyte_pages: bool,
    no_execute: bool,
}

/// An entry, and the bytes that it covers.
struct Slot {
    entry: *mut u64,
    covers: u64,
}

/// Why a range cannot be mapped.
#[derive(Debug)]
pub enum MapError {
    /// It is beyond 2^48.
    OutOfReach,
    /// It is memory, and was to be device registers, or the other way round.
    Overlap,
    /// No memory for page tables.
    OutOfMemory,
}

/// The address at which physical address `physical` appears: itself, with bit 47 copied upwards.
pub const fn virtual_address(physical: u64) -> u64 {
    ((physical << 16) as i64 >> 16) as u64
}

impl Mapper {
    /// Walks down to the entry that decides about `address`: one that maps it, or one that is empty.
    fn find(&self, address: u64) -> Slot {
        let mut table = ROOT.0.get().cast::<u64>();
        let mut covers = 1u64 << 39;
        loop {
            let index = (address / covers % 512) as usize;
            // SAFETY: a table has 512 entries, and is reached at its physical address.
            let entry = unsafe { table.add(index) };
            // SAFETY: as above.
            let value = unsafe { entry.read_volatile() };
            let leaf = covers == PAGE || value & Flags::HUGE_PAGE.bits() != 0;
            if value & Flags::PRESENT.bits() == 0 || leaf {
                return Slot { entry, covers };
            }
            table = (value & ADDRESS) as *mut u64;
            covers /= 512;
        }
    }

    /// Puts an empty table below an entry, or one that maps the same as the entry did.
    fn descend(&self, slot: &Slot) -> Result<(), MapError> {
        // SAFETY: the layout has a size.
        let table = unsafe { alloc_zeroed(Layout::new::<Table>()) }.cast::<u64>();
        if table.is_null() {
            return Err(MapError::OutOfMemory);
        }
        // SAFETY: `find` returned a valid entry, and the new table has 512 entries.
        unsafe {
            let old = slot.entry.read_volatile();
            if old != 0 {
                let step = slot.covers / 512;
                let leaf = if step == PAGE {
                    old & !Flags::HUGE_PAGE.bits()
                } else {
                    old
                };
                for index in 0..512 {
                    table.add(index).write(leaf + index as u64 * step);
                }
            }
            slot.entry.write_volatile(table as u64 | MEMORY.bits());
        }
        Ok(())
    }

    fn map(&self, range: Range<u64>, mut flags: Flags) -> Result<(), MapError> {
        if range.end > LIMIT || range.start > range.end {
            return Err(MapError::OutOfReach);
        }
        if !self.no_execute {
            flags.remove(Flags::NO_EXECUTE);
        }
        let mut at = range.start & !(PAGE - 1);
        while at < range.end {
            let slot = self.find(virtual_address(at));
            // SAFETY: `find` returned a valid entry.
            let value = unsafe { slot.entry.read_volatile() };
            if value & Flags::PRESENT.bits() != 0 {
                if Flags::from_bits_retain(value) & UNCACHED != flags & UNCACHED {
                    return Err(MapError::Overlap);
                }
                at = (at & !(slot.covers - 1)) + slot.covers;
                continue;
            }
            let possible =
                slot.covers == PAGE || slot.covers == PAGE << 9 || slot.covers == PAGE << 18 && self.gigabyte_pages;
            // The last page may go beyond the range, but no larger one.
            let fits = at.is_multiple_of(slot.covers) && (slot.covers == PAGE || range.end - at >= slot.covers);
            if possible && fits {
                let huge = if slot.covers == PAGE {
                    Flags::empty()
                } else {
                    Flags::HUGE_PAGE
                };
                // SAFETY: `find` returned a valid entry; from absent to present needs no flush (SDM vol. 3A, 5.10.4.3).
                unsafe { slot.entry.write_volatile(at | (flags | huge).bits()) };
                at += slot.covers;
            } else {
                self.descend(&slot)?;
            }
        }
        Ok(())
    }
}

/// Learns what the CPU can do; before anything is mapped.
pub fn init() {
    let features = __cpuid(0x8000_0001).edx;
    *MAPPER.lock() = Mapper {
        gigabyte_pages: features & 1 << 26 != 0,
        no_execute: features & 1 << 20 != 0,
    };
}

/// Maps memory, whole pages only.
///
/// # Errors
/// See [`MapError`].
pub fn map_memory(range: Range<u64>, flags: Flags) -> Result<(), MapError> {
    let whole = range.start.next_multiple_of(PAGE)..range.end & !(PAGE - 1);
    if whole.is_empty() {
        Ok(())
    } else {
        super::without_interrupts(|| MAPPER.lock().map(whole, flags))
    }
}

/// Maps device registers.
///
/// # Errors
/// See [`MapError`].
pub fn map_registers(range: Range<u64>) -> Result<(), MapError> {
    super::without_interrupts(|| MAPPER.lock().map(range, DEVICE))
}

/// Takes one page away, for good: a guard below a stack. Only while no other CPU can have used it.
///
/// # Errors
/// See [`MapError`].
pub fn unmap_page(address: u64) -> Result<(), MapError> {
    super::without_interrupts(|| {
        let mapper = MAPPER.lock();
        loop {
            let slot = mapper.find(address);
            if slot.covers == PAGE {
                // SAFETY: `find` returned a valid entry.
                unsafe { slot.entry.write_volatile(0) };
                x86_64::instructions::tlb::flush(x86_64::VirtAddr::new(address));
                return Ok(());
            }
            mapper.descend(&slot)?;
        }
    })
}

/// Switches to these tables.
///
/// # Safety
/// They map all that is in use: image, stack, heap.
pub unsafe fn activate() {
    // SAFETY: the caller vouches for the tables.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) ROOT.0.get(), options(nostack, preserves_flags)) };
}
