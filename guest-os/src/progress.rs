//! A line each second while jobs run.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hal::clock::Clock;
use workload::frame::Frame;
use workload::report::Progress;

use crate::arch::MachineClock;
use crate::cpu;
use crate::engine::RUN;
use crate::outbox;

/// When the next line is due, in ticks; 0 before the first.
static DUE: AtomicU64 = AtomicU64::new(0);

/// Sends the line if it is due. Only the CPU that leads the run calls this.
pub fn show(now: u64, ramp: bool) {
    let Some(began) = RUN.began() else { return };
    let second = MachineClock.rate().hertz();
    let due = DUE.load(Relaxed);
    if due == 0 {
        DUE.store(began + second, Relaxed);
        return;
    }
    if now < due {
        return;
    }
    // Late lines do not bunch up.
    DUE.store(due + second * ((now - due) / second + 1), Relaxed);
    let mut progress = Progress {
        elapsed_ns: MachineClock.rate().nanoseconds(now - began),
        ramp,
        ..Progress::default()
    };
    for cpu in cpu::all() {
        progress.jobs += cpu.jobs.get() as u32;
        progress.reads += cpu.totals.reads.get();
        progress.read_bytes += cpu.totals.read_bytes.get();
        progress.writes += cpu.totals.writes.get();
        progress.written_bytes += cpu.totals.written_bytes.get();
        progress.interrupts += cpu.device_interrupts.get();
    }
    outbox::send(&Frame::Progress(progress));
}
