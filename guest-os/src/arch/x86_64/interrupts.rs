//! Interrupts and exceptions: the descriptor table, the entries' other half, and the local APIC.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::fmt;
use core::time::Duration;

use hal::pci::MsiMessage;
use irq::x2apic::{DestinationWidth, Divide, MsrBus, VectorSet, X2Apic, encode_message, register};
use spin::Once;
use x86_64::instructions::port::Port;
use x86_64::instructions::tables::lidt;
use x86_64::registers::control::Cr2;
use x86_64::registers::model_specific::Msr;
use x86_64::structures::DescriptorTablePointer;

use super::{clock, local};

/// Vector of device slot 0. Vectors 0x20-0x2f are left to the legacy interrupt controllers, should they ever raise one.
const FIRST_SLOT: u8 = 0x30;
/// Device interrupts of each CPU.
pub const SLOTS: usize = 0xef - FIRST_SLOT as usize;
/// Another CPU has something for this one.
const WAKE: u8 = 0xf0;
/// The local APIC's timer.
const TICK: u8 = 0xf1;
/// The local APIC had an interrupt, and then had not.
pub const SPURIOUS: u8 = 0xff;

global_asm!(
    include_str!("vectors.s"),
    first_slot = const FIRST_SLOT,
    slots = const SLOTS,
    eoi = const register::EOI,
    device = sym device,
    trap = sym trap,
);

/// Model-specific registers, by their instructions.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

impl MsrBus for Cpu {
    #[inline(always)]
    fn read(&self, msr: u32) -> u64 {
        // SAFETY: only the local APIC's driver calls this, with its own registers, and reading those has no effect.
        unsafe { Msr::new(msr).read() }
    }

    #[inline(always)]
    fn write(&self, msr: u32, value: u64) {
        // SAFETY: only the local APIC's driver calls this, with its own registers: none touches memory that Rust knows.
        unsafe { Msr::new(msr).write(value) }
    }
}

/// The local APIC of this CPU.
#[inline(always)]
pub const fn apic() -> X2Apic<Cpu> {
    X2Apic::new(Cpu)
}

/// Registers of an interrupted program, as the entry left them on the stack.
#[repr(C)]
pub struct Trap {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

impl Trap {
    /// The address of the instruction that was interrupted.
    pub const fn instruction(&self) -> u64 {
        self.rip
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            [
                ("rip", self.rip),
                ("rsp", self.rsp),
                ("rflags", self.rflags),
                ("error", self.error),
            ],
            [
                ("rax", self.rax),
                ("rbx", self.rbx),
                ("rcx", self.rcx),
                ("rdx", self.rdx),
            ],
            [("rsi", self.rsi), ("rdi", self.rdi), ("rbp", self.rbp), ("r8", self.r8)],
            [("r9", self.r9), ("r10", self.r10), ("r11", self.r11), ("r12", self.r12)],
            [
                ("r13", self.r13),
                ("r14", self.r14),
                ("r15", self.r15),
                ("cr2", Cr2::read_raw()),
            ],
        ];
        write!(f, "registers of CPU {}:", local::cpu_index())?;
        for row in rows {
            f.write_str("\n ")?;
            for (name, value) in row {
                write!(f, " {name:>6}={value:016x}")?;
            }
        }
        Ok(())
    }
}

/// The registers here and now.
#[inline(never)]
pub fn here() -> Trap {
    let mut at = core::mem::MaybeUninit::<Trap>::zeroed();
    // SAFETY: stores the general registers into their places in a `Trap`; nothing else is touched.
    unsafe {
        asm!(
            "mov [rdi], r15", "mov [rdi + 8], r14", "mov [rdi + 16], r13", "mov [rdi + 24], r12",
            "mov [rdi + 32], r11", "mov [rdi + 40], r10", "mov [rdi + 48], r9", "mov [rdi + 56], r8",
            "mov [rdi + 64], rdi", "mov [rdi + 72], rsi", "mov [rdi + 80], rbp", "mov [rdi + 88], rbx",
            "mov [rdi + 96], rdx", "mov [rdi + 104], rcx", "mov [rdi + 112], rax",
            "lea rax, [rip]", "mov [rdi + 136], rax", "pushfq", "pop rax", "mov [rdi + 152], rax", "mov [rdi + 160], rsp",
            in("rdi") at.as_mut_ptr(), out("rax") _,
        );
        at.assume_init()
    }
}

/// A gate of the interrupt descriptor table (SDM vol. 3A, figure 7-8).
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate(u64, u64);

impl Gate {
    /// An interrupt gate: interrupts are off in the handler. `stack` 0 stays on the current one.
    const fn new(handler: u64, stack: u64) -> Self {
        const PRESENT_INTERRUPT_GATE: u64 = 0x8e00 << 32;
        const CODE_SEGMENT: u64 = 0x08 << 16;
        let low =
            handler & 0xffff | CODE_SEGMENT | stack << 32 | PRESENT_INTERRUPT_GATE | (handler & 0xffff_0000) << 32;
        Self(low, handler >> 32)
    }
}

#[repr(C, align(16))]
struct GateTable(UnsafeCell<[Gate; 256]>);

// SAFETY: written once, by the first CPU, before any other runs and before interrupts are on.
unsafe impl Sync for GateTable {}

static GATES: GateTable = GateTable(UnsafeCell::new([Gate(0, 0); 256]));

/// Fills the table of gates; once, on the first CPU.
pub fn init_gates() {
    unsafe extern "C" {
        static vector_entries: u8;
    }
    let entries = &raw const vector_entries as u64;
    for vector in 0..256 {
        // 2 is the interrupt that cannot be masked, 8 a double fault, 18 a machine check.
        let stack = match vector {
            8 => 1,
            2 | 18 => 2,
            0..32 => local::FAULT_STACKS as u64,
            _ => 0,
        };
        let gate = Gate::new(entries + vector * 16, stack);
        // SAFETY: nobody else uses the table yet.
        unsafe { (*GATES.0.get())[vector as usize] = gate };
    }
}

/// Uses the table of gates on this CPU.
pub fn load_gates() {
    let pointer = DescriptorTablePointer {
        limit: (size_of::<GateTable>() - 1) as u16,
        base: x86_64::VirtAddr::from_ptr(GATES.0.get()),
    };
    // SAFETY: the table lives for ever and was filled.
    unsafe { lidt(&pointer) };
}

/// Masks the legacy interrupt controllers (Intel 8259A): moved away from the exceptions' vectors first, as what is pending in
/// them may still be raised.
pub fn silence_legacy_controllers() {
    for (port, words) in [(0x20u16, [0x11u8, 0x20, 0x04, 0x01]), (0xa0, [0x11, 0x28, 0x02, 0x01])] {
        // SAFETY: the controllers of every PC, or nothing; their initialisation words and masks.
        unsafe {
            Port::new(port).write(words[0]);
            for word in &words[1..] {
                Port::new(port + 1).write(*word);
            }
            Port::new(port + 1).write(0xffu8);
        }
    }
}

extern "C" fn device(slot: usize) {
    crate::interrupts::on_device(slot);
}

extern "C" fn trap(at: &Trap) {
    let vector = at.vector as u8;
    match vector {
        0..32 => fault(vector, at),
        TICK => {
            let count = local::tick();
            if count != 0 {
                apic().start_one_shot(TICK, Divide::By16, count);
            }
            crate::interrupts::on_tick(at);
            apic().end_of_interrupt();
        }
        WAKE => {
            crate::interrupts::on_wake();
            apic().end_of_interrupt();
        }
        _ => {
            crate::interrupts::on_unexpected(u32::from(vector));
            // Spurious interrupts, and those of the legacy controllers, are in service nowhere.
            if apic().in_service(u32::from(vector / 32)) & 1 << (vector % 32) != 0 {
                apic().end_of_interrupt();
            }
        }
    }
}

fn fault(vector: u8, at: &Trap) -> ! {
    let address = Cr2::read_raw();
    if matches!(vector, 8 | 14) && local::is_below_stack(address) {
        crate::fatal::trap("stack overflow", at, Some(address));
    }
    let name = match vector {
        0 => "divide error",
        1 => "debug exception",
        2 => "non-maskable interrupt",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range exceeded",
        6 => "invalid opcode",
        7 => "no floating-point unit",
        8 => "double fault",
        10 => "invalid task state",
        11 => "segment not present",
        12 => "stack segment fault",
        13 => "general protection fault",
        14 => "page fault",
        16 => "x87 error",
        17 => "alignment check",
        18 => "machine check",
        19 => "SIMD error",
        20 => "virtualisation exception",
        21 => "control protection exception",
        _ => "exception of unknown kind",
    };
    crate::fatal::trap(name, at, (vector == 14).then_some(address))
}

/// Runs `work` with this CPU's interrupts off, and leaves them as they were.
#[inline(always)]
pub fn without_interrupts<R>(work: impl FnOnce() -> R) -> R {
    x86_64::instructions::interrupts::without_interrupts(work)
}

/// Switches this CPU's interrupts off.
#[inline(always)]
pub fn interrupts_off() {
    x86_64::instructions::interrupts::disable();
}

/// Switches this CPU's interrupts on.
#[inline(always)]
pub fn interrupts_on() {
    x86_64::instructions::interrupts::enable();
}

/// Sleeps until an interrupt has been handled. Called with interrupts off, and returns with them off.
///
/// An interrupt that came since they were switched off ends the sleep at once: `sti` lets none in before `hlt` has begun.
#[inline(always)]
pub fn halt() {
    // SAFETY: interrupt handlers save what they use.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// The slots whose pending interrupts a CPU looks for.
pub struct PendingSet(VectorSet);

impl PendingSet {
    /// These slots.
    pub fn of(slots: impl Iterator<Item = usize>) -> Self {
        let mut set = VectorSet::default();
        for slot in slots {
            set.insert(vector(slot) as u8);
        }
        Self(set)
    }
}

/// Looks for pending device interrupts of `set`, and takes them: for each, `crate::interrupts::on_device` has been called, and it
/// has been acknowledged. Returns how many were found. Called with interrupts off, and returns with them off.
///
/// The pending bits of the local APIC can be read, but only taking an interrupt clears one: when any is set, interrupts are let
/// in for a moment.
#[inline(always)]
pub fn take_pending(set: &PendingSet) -> u32 {
    let found = apic().count_pending(&set.0);
    if found != 0 {
        accept_pending();
    }
    found
}

/// Takes all interrupts that are pending, the timer's too. Called with interrupts off, and returns with them off.
#[inline(always)]
pub fn accept_pending() {
    // `sti` lets interrupts in only after the instruction that follows it.
    // SAFETY: interrupt handlers save what they use.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
}

/// Sleeps with interrupts off: another CPU is ending the machine.
pub fn wait_for_end() {
    x86_64::instructions::interrupts::disable();
    x86_64::instructions::hlt();
}

/// Starts this CPU's timer: `crate::interrupts::on_tick` is called each `period`.
///
/// The timer is started anew in its handler: the one-shot mode is the one that every hypervisor gets right.
pub fn start_tick(period: Duration) {
    let count = clock::apic_timer_count(period);
    local::set_tick(count);
    apic().start_one_shot(TICK, Divide::By16, count);
}

/// Stops this CPU's timer.
pub fn stop_tick() {
    without_interrupts(|| {
        local::set_tick(0);
        apic().stop_timer();
    });
}

/// Who can be reached, and how.
struct Destinations {
    ids: &'static [u32],
    width: DestinationWidth,
}

static DESTINATIONS: Once<Destinations> = Once::new();

/// Learns the CPUs' ids.
pub fn set_destinations(ids: &'static [u32], width: DestinationWidth) {
    DESTINATIONS.call_once(|| Destinations { ids, width });
}

/// Ends another CPU's [`halt`].
///
/// # Panics
/// When there is no such CPU.
pub fn wake(cpu: usize) {
    let id = DESTINATIONS.get().expect("CPUs are known").ids[cpu];
    // A write to an x2APIC register may overtake earlier stores (SDM vol. 3A, 12.12.3), which the other CPU is to see.
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    apic().send(id, WAKE);
}

/// The vector in which interrupts of `slot` arrive.
pub const fn vector(slot: usize) -> u32 {
    FIRST_SLOT as u32 + slot as u32
}

/// The message by which a device raises its interrupt in `slot` of `cpu`; `None` if it cannot reach that CPU.
pub fn message(cpu: usize, slot: usize) -> Option<MsiMessage> {
    let destinations = DESTINATIONS.get()?;
    let vector = u8::try_from(slot).ok().filter(|slot| usize::from(*slot) < SLOTS)? + FIRST_SLOT;
    encode_message(*destinations.ids.get(cpu)?, vector, destinations.width)
}
