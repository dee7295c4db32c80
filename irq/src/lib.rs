//! Interrupt controllers of the guest's architectures, and how vectors are spread over CPUs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`fanout`] | which CPU, queue and vector each job gets |
//! | [`halt_poll`] | how long to poll before a halt |
//! | [`x2apic`] | the local APIC of x86 in x2APIC mode, and interrupt messages |
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod fanout;
pub mod halt_poll;
pub mod x2apic;
