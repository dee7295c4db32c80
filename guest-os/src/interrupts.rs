//! What happens in an interrupt: it is counted and marked. The work is done by the CPU's loop.

use core::time::Duration;

use crate::arch::{self, Trap};
use crate::{cpu, fatal, machine::ExitStatus};

/// Between two ticks of the watchdog.
pub const TICK: Duration = Duration::from_millis(100);
/// Ticks without a turn of the loop, after which the CPU counts as stuck: 20 s.
const STUCK_TICKS: u64 = 200;

/// A device interrupt. The architecture acknowledges it after this returns.
#[inline(always)]
pub fn on_device(slot: usize) {
    cpu::this().arrived(slot);
}

/// The watchdog's timer. It also ends a halt, so that a lost interrupt cannot stop a CPU for good.
pub fn on_tick(at: &Trap) {
    if cpu::all().is_empty() {
        return;
    }
    if cpu::this().is_stuck(STUCK_TICKS) {
        crate::println!("WATCHDOG CPU {} makes no progress\n{at}", arch::cpu_index());
        fatal::end(
            "the guest's watchdog found a CPU that makes no progress",
            ExitStatus::Fault,
        );
    }
}

/// Another CPU has something for this one.
pub fn on_wake() {
    if let Some(cpu) = cpu::all().get(arch::cpu_index()) {
        cpu.wakes.add(1);
    }
}

/// An interrupt that nobody asked for: counted, and shown in the report.
pub fn on_unexpected(_vector: u32) {
    if let Some(cpu) = cpu::all().get(arch::cpu_index()) {
        cpu.unexpected.add(1);
    }
}
