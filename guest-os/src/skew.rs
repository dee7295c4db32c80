//! Whether the CPUs' clocks agree: a time taken on one CPU must never lie before one that another CPU took earlier.

use alloc::string::ToString;
use core::sync::atomic::{AtomicU64, Ordering::*};

use hal::clock::Clock;
use workload::report;

use crate::arch::{self, MachineClock};
use crate::machine::Machine;

/// The latest time that any CPU saw.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The largest step backwards that any CPU saw, in ticks.
static WORST: AtomicU64 = AtomicU64::new(0);

/// Compares this CPU's clock with the latest time seen anywhere. All CPUs do so at the same time, right before a run.
pub fn observe() {
    for _ in 0..200 {
        let latest = LATEST.load(SeqCst);
        // Not before the load above has its value.
        let now = arch::ordered_ticks();
        if now < latest {
            WORST.fetch_max(latest - now, Relaxed);
        }
        LATEST.fetch_max(now, SeqCst);
    }
}

/// What is known of the clock.
pub fn report(machine: &Machine) -> report::Clock {
    let worst = WORST.load(Relaxed);
    report::Clock {
        source: machine.clock_source.to_string(),
        hertz: machine.clock_hertz,
        invariant: machine.clock_invariant,
        monotonic: worst == 0,
        worst_step_back_ns: MachineClock.rate().nanoseconds(worst),
    }
}
