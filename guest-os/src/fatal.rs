//! The end of a guest that cannot go on: panics, faults, a CPU that stands still.
//!
//! The first CPU that fails says so and ends the machine. Another one that fails meanwhile only stops, so that it cannot
//! garble what the first one says; and a failure while failing ends the machine at once.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::{self, Trap};
use crate::machine::ExitStatus;

/// Nobody has failed; otherwise the index + 1 of the CPU that did first.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// Whether the guest is on its way out.
pub fn has_begun() -> bool {
    FAILED.load(Ordering::Relaxed) != 0
}

/// Returns only on the first CPU that fails, and only once there.
fn begin() {
    arch::interrupts_off();
    let me = arch::cpu_index() + 1;
    match FAILED.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(first) if first == me => arch::exit(ExitStatus::Fault),
        Err(_) => loop {
            arch::wait_for_end();
        },
    }
}

/// Ends the machine with this message, its last line. Every failure of the guest itself comes through here, and every
/// machine that it cannot run on.
///
/// The heap may be locked or broken by whatever failed: nothing here may rely on it.
pub fn end(message: &str, status: ExitStatus) -> ! {
    begin();
    finish(message, status)
}

fn finish(message: &str, status: ExitStatus) -> ! {
    crate::println!("doorpost: {message}");
    arch::exit(status)
}

/// A CPU exception that nothing expects: prints what the CPU was doing, and ends the machine.
pub fn trap(what: &str, at: &Trap, address: Option<u64>) -> ! {
    begin();
    let mut message = Message::new();
    let _ = write!(
        message,
        "FAULT {what} on CPU {} at {:#x}",
        arch::cpu_index(),
        at.instruction()
    );
    if let Some(address) = address {
        let _ = write!(message, ", address {address:#x}");
    }
    crate::println!("{at}");
    finish(message.text(), ExitStatus::Fault)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    begin();
    let mut message = Message::new();
    let _ = write!(message, "PANIC on CPU {}", arch::cpu_index());
    if let Some(place) = info.location() {
        let _ = write!(message, " at {}:{}", place.file(), place.line());
    }
    let _ = write!(message, ": {}", info.message());
    let at = arch::here();
    crate::println!("{at}");
    finish(message.text(), ExitStatus::Fault)
}

/// Text without the heap; what does not fit is cut off.
struct Message {
    text: [u8; 512],
    used: usize,
}

impl Message {
    const fn new() -> Self {
        Self {
            text: [0; 512],
            used: 0,
        }
    }

    fn text(&self) -> &str {
        match core::str::from_utf8(&self.text[..self.used]) {
            Ok(text) => text,
            // The cut went through a character.
            Err(error) => core::str::from_utf8(&self.text[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let count = text.len().min(self.text.len() - self.used);
        self.text[self.used..self.used + count].copy_from_slice(&text.as_bytes()[..count]);
        self.used += count;
        Ok(())
    }
}

/// Fails on purpose if the boot arguments ask for it, so that tests can see how the guest ends:
/// `test=fault` reads an address that is not there, `test=panic` panics, `test=stack` overflows the stack.
pub fn self_test(arguments: &str) {
    match arguments.split_whitespace().find_map(|word| word.strip_prefix("test=")) {
        Some("fault") => {
            // SAFETY: not safe at all, and meant so: nothing is mapped there.
            unsafe { core::ptr::without_provenance::<u64>(0x18).read_volatile() };
        }
        Some("panic") => panic!("asked for by test=panic"),
        Some("stack") => {
            overflow(&[0; 64]);
        }
        _ => {}
    }
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "the stack has to end")]
fn overflow(above: &[u64; 64]) -> u64 {
    let mine = core::hint::black_box(*above);
    overflow(&mine) + core::hint::black_box(mine[0])
}
