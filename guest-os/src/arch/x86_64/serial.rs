//! COM1: a 16550 UART (National Semiconductor PC16550D, registers in table I).

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::port::Port;

/// I/O port of COM1's first register.
const BASE: u16 = 0x3f8;
const DATA: u16 = BASE;
const INTERRUPT_ENABLE: u16 = BASE + 1;
const FIFO_CONTROL: u16 = BASE + 2;
const LINE_CONTROL: u16 = BASE + 3;
const MODEM_CONTROL: u16 = BASE + 4;
const LINE_STATUS: u16 = BASE + 5;
const SCRATCH: u16 = BASE + 7;

/// Line status: the transmit FIFO is empty.
const FIFO_EMPTY: u8 = 1 << 5;
/// Line status: the last bit has left.
const ALL_SENT: u8 = 1 << 6;
/// Bytes that fit into an empty FIFO.
const FIFO_BYTES: usize = 16;

/// Ticks of the clock (at 1 to 5 GHz, 2 to 9 s) that the UART may take for one FIFO: a host that reads slowly stops it.
const PATIENCE: u64 = 9_000_000_000;

static PRESENT: AtomicBool = AtomicBool::new(false);
/// The UART has kept us waiting once. It is asked, but not waited for, until it moves again.
static STALLED: AtomicBool = AtomicBool::new(false);

fn read(port: u16) -> u8 {
    // SAFETY: registers of a UART, or of nothing, at the address that every PC gives to COM1.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, value: u8) {
    // SAFETY: as above; all values written here are meant for a UART.
    unsafe { Port::new(port).write(value) }
}

/// Sets the UART up: 115200 baud, 8 data bits, no parity, FIFO on, no interrupts. Without one, nothing is ever written.
pub fn init() {
    write(SCRATCH, 0x5a);
    if read(SCRATCH) != 0x5a {
        return;
    }
    write(INTERRUPT_ENABLE, 0);
    write(LINE_CONTROL, 0x80); // the divisor's registers in place of data and interrupt enable
    write(DATA, 1); // 115200 baud
    write(INTERRUPT_ENABLE, 0);
    write(LINE_CONTROL, 0x03);
    write(FIFO_CONTROL, 0x07); // on, and both emptied
    write(MODEM_CONTROL, 0x03);
    PRESENT.store(true, Ordering::Relaxed);
}

/// Waits for a bit of the line status; `false` if it does not come.
fn wait_for(bit: u8) -> bool {
    if read(LINE_STATUS) & bit != 0 {
        STALLED.store(false, Ordering::Relaxed);
        return true;
    }
    let begin = super::ticks();
    while !STALLED.load(Ordering::Relaxed) {
        if read(LINE_STATUS) & bit != 0 {
            return true;
        }
        if super::ticks().wrapping_sub(begin) > PATIENCE {
            STALLED.store(true, Ordering::Relaxed);
        }
        core::hint::spin_loop();
    }
    false
}

/// Writes bytes; what the UART does not take is lost.
pub fn send(bytes: &[u8]) {
    if !PRESENT.load(Ordering::Relaxed) {
        return;
    }
    for piece in bytes.chunks(FIFO_BYTES) {
        if !wait_for(FIFO_EMPTY) {
            return;
        }
        // One instruction for all of them: under a hypervisor that is one exit from the guest, not 16.
        // SAFETY: `piece` is readable, and the UART takes bytes at this port.
        unsafe {
            asm!(
                "rep outsb",
                in("dx") DATA,
                inout("rsi") piece.as_ptr() => _,
                inout("rcx") piece.len() => _,
                options(nostack, readonly, preserves_flags)
            );
        }
    }
}

/// Waits until everything has left.
pub fn drain() {
    if PRESENT.load(Ordering::Relaxed) {
        wait_for(ALL_SENT);
    }
}
