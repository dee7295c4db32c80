//! Starting the other CPUs (Intel SDM vol. 3A, 10.4.4): all at once.

use alloc::alloc::{Layout, alloc_zeroed};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use hal::clock::Clock;
use irq::x2apic::StartUpPage;
use spin::Once;

use super::clock::MachineClock;
use super::interrupts::{self, SPURIOUS, apic};
use super::local::{self, Local};
use super::{paging, wait_for_end};
use crate::machine::Machine;

/// A CPU's stack in bytes.
const STACK_BYTES: usize = 32 << 10;
/// How long a CPU may take to come up. Hosts with fewer CPUs than the guest, or that emulate them, are slow.
const PATIENCE: Duration = Duration::from_secs(20);
/// After this long, a CPU that has not come up is sent its second start-up interrupt.
const SECOND_TRY: Duration = Duration::from_millis(10);

/// The memory of one CPU.
#[repr(C, align(4096))]
struct Block {
    /// Not mapped: a stack that overflows ends here.
    guard: [u8; 4096],
    stack: [u8; STACK_BYTES],
    local: Local,
}

global_asm!(
    include_str!("boot.s"),
    start = sym super::start,
    page_tables = sym paging::ROOT,
    next_block = sym NEXT_BLOCK,
    blocks = sym BLOCKS,
    block_bytes = const size_of::<Block>(),
    first_stack_top = sym FIRST_STACK_TOP,
    start_other = sym start_other,
);

unsafe extern "C" {
    static start_up_code: u8;
    static start_up_code_end: u8;
}

/// The next block that a CPU takes.
static NEXT_BLOCK: AtomicU32 = AtomicU32::new(0);
/// How many there are.
static BLOCKS: AtomicU32 = AtomicU32::new(0);
/// Where the stack of the first one begins.
static FIRST_STACK_TOP: AtomicU64 = AtomicU64::new(0);
/// The page below 1 MiB where CPUs start; 0 if there is none.
static START_UP_PAGE: AtomicU64 = AtomicU64::new(0);

struct StartUp {
    /// APIC ids by CPU index.
    ids: Vec<u32>,
    /// Which CPUs have come up, by index.
    up: Box<[AtomicBool]>,
    entry: fn(usize) -> !,
}

static START_UP: Once<StartUp> = Once::new();

/// Keeps a page below 1 MiB for the start of CPUs.
pub fn set_start_up_page(address: u64) {
    START_UP_PAGE.store(address, Ordering::Relaxed);
}

/// Starts CPUs 1 to `count` - 1, and returns when all of them run `entry`, with interrupts off. Called once.
///
/// # Errors
/// There is no memory for them, or some did not come up: which.
pub fn start_cpus(machine: &Machine, count: usize, entry: fn(usize) -> !) -> Result<(), String> {
    if count <= 1 {
        return Ok(());
    }
    if count > machine.cpus.len() {
        return Err(format!(
            "{count} CPUs were asked for, and the machine has {}",
            machine.cpus.len()
        ));
    }
    let page_address = START_UP_PAGE.load(Ordering::Relaxed);
    let page = StartUpPage::at(page_address)
        .filter(|_| page_address != 0)
        .ok_or_else(|| String::from("no page of memory below 1 MiB is free to start CPUs from"))?;
    prepare_blocks(count - 1)?;
    let start_up = START_UP.call_once(|| StartUp {
        ids: machine.cpus[..count].to_vec(),
        up: (0..count).map(|_| AtomicBool::new(false)).collect(),
        entry,
    });
    // SAFETY: the code is below a page long; the page is mapped, and kept free for it.
    unsafe {
        let code = &raw const start_up_code;
        let length = (&raw const start_up_code_end).offset_from_unsigned(code);
        code.copy_to_nonoverlapping(page_address as *mut u8, length);
    }
    // What the CPUs are going to read must be stored before they are told: x2APIC writes may overtake stores.
    core::sync::atomic::fence(Ordering::SeqCst);
    let others = &start_up.ids[1..];
    for id in others {
        apic().init(*id);
    }
    for id in others {
        apic().start(*id, page);
    }
    let (second, end) = (MachineClock.deadline(SECOND_TRY), MachineClock.deadline(PATIENCE));
    let mut tried_again = false;
    let mut first_missing = 1;
    loop {
        while start_up
            .up
            .get(first_missing)
            .is_some_and(|up| up.load(Ordering::Acquire))
        {
            first_missing += 1;
        }
        if first_missing == count {
            return Ok(());
        }
        let now = MachineClock.ticks();
        let missing = || {
            (1..count)
                .filter(|cpu| !start_up.up[*cpu].load(Ordering::Acquire))
                .map(|cpu| start_up.ids[cpu])
        };
        if now > second && !tried_again {
            tried_again = true;
            missing().for_each(|id| apic().start(id, page));
        }
        if now > end {
            let ids: Vec<String> = missing().map(|id| format!("{id}")).collect();
            return Err(format!(
                "CPUs did not start within {} s, by APIC id: {}",
                PATIENCE.as_secs(),
                ids.join(", ")
            ));
        }
        core::hint::spin_loop();
    }
}

/// Memory for `count` CPUs, with a guard below each stack.
fn prepare_blocks(count: usize) -> Result<(), String> {
    let out_of_memory = || {
        format!(
            "not enough memory for {count} more CPUs ({} KiB each); give the guest more memory, or fewer CPUs",
            size_of::<Block>() >> 10
        )
    };
    let layout = Layout::array::<Block>(count).map_err(|_| out_of_memory())?;
    // SAFETY: the layout has a size, as `count` is not 0.
    let blocks = unsafe { alloc_zeroed(layout) };
    if blocks.is_null() {
        return Err(out_of_memory());
    }
    for number in 0..count {
        paging::unmap_page(blocks as u64 + (number * size_of::<Block>()) as u64).map_err(|_| out_of_memory())?;
    }
    FIRST_STACK_TOP.store(blocks as u64 + offset_of!(Block, local) as u64, Ordering::Relaxed);
    BLOCKS.store(count as u32, Ordering::Release);
    Ok(())
}

/// A CPU's first steps in Rust, on the stack of block `number`.
extern "C" fn start_other(number: u32) -> ! {
    let top = FIRST_STACK_TOP.load(Ordering::Relaxed) + u64::from(number) * size_of::<Block>() as u64;
    let bottom = top - STACK_BYTES as u64;
    apic().enable(SPURIOUS);
    let id = apic().id();
    let index = START_UP
        .get()
        .and_then(|start_up| start_up.ids.iter().position(|known| *known == id));
    // SAFETY: the block is this CPU's alone, as it took its number.
    unsafe { local::install(top as *mut Local, index.unwrap_or(usize::MAX), bottom - 4096..bottom) };
    interrupts::load_gates();
    match (START_UP.get(), index) {
        (Some(start_up), Some(index)) => {
            start_up.up[index].store(true, Ordering::Release);
            (start_up.entry)(index)
        }
        // Nobody asked for this one.
        _ => loop {
            wait_for_end();
        },
    }
}
