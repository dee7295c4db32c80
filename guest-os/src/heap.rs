//! The heap: every range of memory that nothing else needs.

use alloc::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::{NonNull, null_mut};

use spin::Mutex;
use talc::{ErrOnOom, Span, Talc};

use crate::{arch, fatal};

/// Ranges smaller than this are left alone.
const SMALLEST: u64 = 64 << 10;

/// Tries for the lock while the guest is ending because of a fault: whoever holds it may never come back.
const TRIES_AFTER_A_FAULT: u32 = 1 << 20;

struct Heap(Mutex<Talc<ErrOnOom>>);

#[global_allocator]
static HEAP: Heap = Heap(Mutex::new(Talc::new(ErrOnOom)));

impl Heap {
    /// Runs `work` with the heap locked and interrupts off; `None` if the lock cannot be had any more.
    fn with<R>(&self, work: impl FnOnce(&mut Talc<ErrOnOom>) -> R) -> Option<R> {
        arch::without_interrupts(|| {
            let mut tries = 0;
            loop {
                if let Some(mut heap) = self.0.try_lock() {
                    return Some(work(&mut heap));
                }
                if fatal::has_begun() {
                    tries += 1;
                    if tries > TRIES_AFTER_A_FAULT {
                        return None;
                    }
                }
                core::hint::spin_loop();
            }
        })
    }
}

// SAFETY: memory comes from Talc, which is used under one lock; a failure is null, as the trait wants it.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches that the size is not 0.
        match self.with(|heap| unsafe { heap.malloc(layout) }) {
            Some(Ok(memory)) => memory.as_ptr(),
            _ => null_mut(),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller vouches that the memory came from `alloc` with this layout, so it is not null.
        self.with(|heap| unsafe { heap.free(NonNull::new_unchecked(memory), layout) });
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() {
            // SAFETY: the caller vouches for memory and layout, and the new size is larger.
            let grown =
                self.with(|heap| unsafe { heap.grow_in_place(NonNull::new_unchecked(memory), layout, new_size) });
            if let Some(Ok(memory)) = grown {
                return memory.as_ptr();
            }
        }
        // SAFETY: the caller vouches that the new size is valid for this alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: as above, and not 0.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: two allocations of at least this size, the old one given up afterwards.
            unsafe {
                memory.copy_to_nonoverlapping(new, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
        }
        new
    }
}

/// Gives a range of memory to the heap; small ones are not worth it.
///
/// # Safety
/// The memory is mapped, usable, and nothing else uses it, now or later.
pub unsafe fn add(range: Range<u64>) {
    if range.end.saturating_sub(range.start) < SMALLEST {
        return;
    }
    let span = Span::new(range.start as *mut u8, range.end as *mut u8);
    // SAFETY: the caller vouches for the memory. A range too small for bookkeeping is not claimed, which loses nothing.
    let _ = HEAP.with(|heap| unsafe { heap.claim(span) });
}
