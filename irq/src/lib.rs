//! Interrupt controllers of the guest's architectures, and how vectors are spread over CPUs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`fanout`] | which CPU, queue and vector each job gets |
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod fanout;
