//! What each CPU has of its own: index, descriptor tables, and stacks for faults.

use core::arch::asm;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::AtomicU32;

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::GsBase;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

/// Bytes of a stack for faults.
const FAULT_STACK_BYTES: usize = 8192;
/// Stacks for faults: one each for double faults, for interrupts that cannot be masked, and for all others.
pub const FAULT_STACKS: usize = 3;

/// A CPU's own memory. GS points to it.
#[repr(C, align(4096))]
pub struct Local {
    index: AtomicU32,
    /// Count to start the timer with again; 0 when it is stopped.
    tick: AtomicU32,
    /// The page below the stack.
    guard: Range<u64>,
    segments: GlobalDescriptorTable<8>,
    task: TaskStateSegment,
    fault_stacks: [[u8; FAULT_STACK_BYTES]; FAULT_STACKS],
}

/// The index of this CPU.
#[inline(always)]
pub fn cpu_index() -> usize {
    // 64 bits wide, of which a 32-bit load clears the upper half.
    let index: u64;
    // SAFETY: GS points to this CPU's `Local` from the start; a CPU's index never changes.
    unsafe {
        asm!("mov {0:e}, gs:[{1}]", out(reg) index, const offset_of!(Local, index), options(pure, readonly, nostack, preserves_flags))
    };
    index as usize
}

/// This CPU's count to start its timer with again; 0 when it is stopped.
pub fn tick() -> u32 {
    let count: u32;
    // SAFETY: as in `cpu_index`.
    unsafe {
        asm!("mov {0:e}, gs:[{1}]", out(reg) count, const offset_of!(Local, tick), options(readonly, nostack, preserves_flags))
    };
    count
}

/// Sets what [`tick`] returns.
pub fn set_tick(count: u32) {
    // SAFETY: as in `cpu_index`; only this CPU uses the field.
    unsafe {
        asm!("mov gs:[{1}], {0:e}", in(reg) count, const offset_of!(Local, tick), options(nostack, preserves_flags))
    };
}

/// Whether `address` is in the page below this CPU's stack.
pub fn is_below_stack(address: u64) -> bool {
    let local = GsBase::read().as_ptr::<Local>();
    // SAFETY: GS points to this CPU's `Local` from the start.
    unsafe { &(*local).guard }.contains(&address)
}

/// Gives this CPU its memory: segments, task state, GS.
///
/// # Safety
/// `local` is zeroed memory that this CPU alone uses from now on. `guard` is the page below its stack.
pub unsafe fn install(local: *mut Local, index: usize, guard: Range<u64>) {
    // SAFETY: the caller vouches that nobody else has it. It lives for ever: no CPU stops before the machine does.
    let local: &'static mut Local = unsafe { &mut *local };
    *local.index.get_mut() = index as u32;
    local.guard = guard;
    let mut task = TaskStateSegment::new();
    let mut tops = task.interrupt_stack_table;
    for (top, stack) in tops.iter_mut().zip(&local.fault_stacks) {
        *top = VirtAddr::from_ptr(stack) + FAULT_STACK_BYTES as u64;
    }
    task.interrupt_stack_table = tops;
    local.task = task;
    local.segments = GlobalDescriptorTable::empty();
    // The selectors of boot.s: 0x08 is code, 0x10 data.
    local.segments.append(Descriptor::kernel_code_segment());
    let data = local.segments.append(Descriptor::kernel_data_segment());
    // SAFETY: the task state stays where it is for ever.
    let task = local
        .segments
        .append(unsafe { Descriptor::tss_segment_unchecked(&raw const local.task) });
    // SAFETY: the table has the segments in use, in the places that they had in the boot table.
    unsafe {
        local.segments.load_unsafe();
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(task);
    }
    GsBase::write(VirtAddr::from_ptr(local));
}
