//! The architecture behind one facade: the rest of the guest knows these names, and no architecture.
//!
//! | name | what it does |
//! |---|---|
//! | [`exit`] | ends the whole machine, from any CPU |
//! | [`console_write`] | bytes to the console; never waits for ever |
//! | [`MachineClock`], [`ordered_ticks`] | the clock; the same, in order with loads |
//! | [`cpu_index`] | the index of this CPU |
//! | [`start_cpus`] | starts the other CPUs |
//! | [`wake`], [`halt`] | sleep, and the end of another CPU's sleep |
//! | [`interrupts_off`], [`interrupts_on`], [`without_interrupts`] | interrupts of this CPU |
//! | [`PendingSet`], [`take_pending`], [`accept_pending`] | device interrupts without waiting for them to interrupt, with interrupts off |
//! | [`start_tick`], [`stop_tick`] | this CPU's periodic timer |
//! | [`SLOTS`], [`message`], [`vector`] | device interrupts: slot `s` of CPU `c` arrives by `message(c, s)` as `vector(s)` |
//! | [`NAME`], [`INTERRUPT_CONTROLLER`] | what reports call them |
//! | [`map_device`], [`DmaMemory`] | device registers, and memory for devices |
//! | [`mark`] | a sign for instruction counters |
//! | [`Trap`], [`here`], [`wait_for_end`] | for the fatal path |
//!
//! An architecture calls back: `crate::main` once, on the first CPU with interrupts off, and with interrupts off
//! `crate::interrupts::{on_device, on_tick, on_wake, on_unexpected}`. It acknowledges an interrupt after the call returns.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use self::x86_64::{
    DmaMemory, INTERRUPT_CONTROLLER, MachineClock, NAME, PendingSet, SLOTS, Trap, accept_pending, console_write,
    cpu_index, exit, halt, here, interrupts_off, interrupts_on, map_device, mark, message, ordered_ticks, start_cpus,
    start_tick, stop_tick, take_pending, vector, wait_for_end, wake, without_interrupts,
};
