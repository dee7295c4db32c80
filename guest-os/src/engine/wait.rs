//! The ways to find completions.

use core::time::Duration;

use hal::clock::Clock;
use workload::report::Failure;

use super::Engine;
use crate::arch::{self, MachineClock};
use crate::cpu::Cpu;

/// Looks for completions in a row before the loop goes round, when there is nothing else to do.
const LOOKS: u64 = 64;
/// Looks of `hybrid` from one look at the clock to the next.
const LOOKS_PER_CLOCK: u64 = 8;
/// Looks that are timed together, and how often.
const TIMED_LOOKS: u64 = 16;
const TIMINGS: usize = 101;

/// A way to find completions.
pub trait WaitMode {
    /// Takes the completions that can be found now; waits a little, if that is the way, when there are none.
    fn find(engine: &mut Engine, cpu: &Cpu) -> Result<(), Failure>;
}

/// `interrupt`: the CPU keeps running, an interrupt marks the queue.
pub struct Spin;

impl WaitMode for Spin {
    #[inline]
    fn find(engine: &mut Engine, cpu: &Cpu) -> Result<(), Failure> {
        // Whatever arrives after this look at the counter is told by the counter.
        let seen = cpu.device_interrupts.get();
        if engine.reap_ready(cpu)? {
            return Ok(());
        }
        let began = MachineClock.ticks();
        let mut looks = 0;
        while looks < LOOKS && cpu.device_interrupts.get() == seen {
            looks += 1;
            core::hint::spin_loop();
        }
        engine.empty_polls += looks;
        engine.polling += MachineClock.ticks().wrapping_sub(began);
        Ok(())
    }
}

/// `halt`: the CPU sleeps until an interrupt comes.
pub struct Sleep;

impl WaitMode for Sleep {
    #[inline]
    fn find(engine: &mut Engine, cpu: &Cpu) -> Result<(), Failure> {
        let seen = cpu.device_interrupts.get();
        if !engine.reap_ready(cpu)? && engine.active > 0 {
            engine.empty_polls += 1;
            // With interrupts off, none can come between this look and the halt, which lets them in.
            arch::interrupts_off();
            if cpu.device_interrupts.get() == seen {
                engine.halts += 1;
                let began = MachineClock.ticks();
                arch::halt();
                engine.halted += MachineClock.ticks().wrapping_sub(began);
            }
            arch::interrupts_on();
        }
        Ok(())
    }
}

/// `poll`: the CPU looks at the queues themselves.
pub struct Look;

impl WaitMode for Look {
    #[inline]
    fn find(engine: &mut Engine, _: &Cpu) -> Result<(), Failure> {
        let ready = |engine: &Engine| engine.queues.iter().position(|queue| queue.pair.is_ready());
        let mut first = ready(engine);
        if first.is_none() {
            let began = MachineClock.ticks();
            let mut looks = 0;
            while looks < LOOKS && first.is_none() {
                looks += 1;
                core::hint::spin_loop();
                first = ready(engine);
            }
            engine.empty_polls += looks;
            engine.polling += MachineClock.ticks().wrapping_sub(began);
        }
        if let Some(first) = first {
            for number in first..engine.queues.len() {
                engine.reap(number)?;
            }
        }
        Ok(())
    }
}

/// `pending`: interrupts stay masked, and the CPU looks which are pending.
pub struct Pending;

impl WaitMode for Pending {
    #[inline]
    fn find(engine: &mut Engine, cpu: &Cpu) -> Result<(), Failure> {
        engine.take_pending(cpu);
        // Not only what the look has found: the handler marks also what came while interrupts were let in.
        if engine.reap_ready(cpu)? || engine.active == 0 {
            return Ok(());
        }
        let began = MachineClock.ticks();
        let mut looks = 1;
        while looks < LOOKS && engine.take_pending(cpu) == 0 {
            looks += 1;
            core::hint::spin_loop();
        }
        engine.empty_polls += looks;
        engine.polling += MachineClock.ticks().wrapping_sub(began);
        Ok(())
    }
}

/// `hybrid`: as `pending` for a while, then the CPU halts.
pub struct Hybrid;

impl WaitMode for Hybrid {
    #[inline]
    fn find(engine: &mut Engine, cpu: &Cpu) -> Result<(), Failure> {
        engine.take_pending(cpu);
        if engine.reap_ready(cpu)? || engine.active == 0 {
            return Ok(());
        }
        let began = MachineClock.ticks();
        let mut now = began;
        let mut found = false;
        while !found && now.wrapping_sub(began) < engine.poll_ticks && now < engine.next_look_up {
            let mut looks = 0;
            while looks < LOOKS_PER_CLOCK && !found {
                found = engine.take_pending(cpu) != 0;
                looks += 1;
                core::hint::spin_loop();
            }
            engine.empty_polls += looks - u64::from(found);
            now = MachineClock.ticks();
        }
        engine.polling += now.wrapping_sub(began);
        if !found && now < engine.next_look_up {
            engine.halts += 1;
            let before = cpu.device_interrupts.get();
            // Interrupts are off: what came after the last look ends the halt at once.
            arch::halt();
            let woken = MachineClock.ticks();
            engine.pending_late += cpu.device_interrupts.get() - before;
            engine.halted += woken.wrapping_sub(now);
            now = woken;
        }
        let waited = engine.rate.nanoseconds(now.wrapping_sub(began));
        engine.halt_poll.waited(waited);
        engine.poll_ticks = engine.rate.ticks(Duration::from_nanos(engine.halt_poll.length()));
        Ok(())
    }
}

impl Engine {
    /// Takes the interrupts that are pending, if a look finds any, and marks their slots; returns how many it found.
    #[inline(always)]
    pub(super) fn take_pending(&mut self, cpu: &Cpu) -> u32 {
        let before = cpu.device_interrupts.get();
        let found = arch::take_pending(&self.pending);
        if found != 0 {
            self.pending_hits += u64::from(found);
            let accepted = cpu.device_interrupts.get() - before;
            self.pending_late += accepted.saturating_sub(u64::from(found));
        }
        found
    }

    /// Takes all interrupts that are pending, the watchdog's among them.
    pub(super) fn accept_all(&mut self, cpu: &Cpu) {
        self.take_pending(cpu);
        let before = cpu.device_interrupts.get();
        arch::accept_pending();
        self.pending_late += cpu.device_interrupts.get() - before;
    }

    /// Times the look for pending interrupts, while no I/O is in flight.
    pub(super) fn time_looks(&mut self) {
        let mut times = [0; TIMINGS];
        for time in &mut times {
            let began = MachineClock.ticks();
            for _ in 0..TIMED_LOOKS {
                arch::take_pending(&self.pending);
            }
            *time = MachineClock.ticks().wrapping_sub(began);
        }
        times.sort_unstable();
        self.pending_look_ns = self.rate.nanoseconds(times[TIMINGS / 2]).div_ceil(TIMED_LOOKS);
    }
}
