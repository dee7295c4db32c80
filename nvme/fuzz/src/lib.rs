//! What is fuzzed, without libFuzzer: each target takes any bytes and panics when a property does not hold. The programs in
//! `fuzz_targets` give them to libFuzzer; the emulator's test `fuzz_smoke` includes this file, and runs them on stable Rust.
//!
//! | target | what the bytes decide | what has to hold |
//! |---|---|---|
//! | [`driver`] | how the device lies: registers, completions, data, timing; and what the driver is asked for | no panic; an end within a bound of steps; each command ends at most once; with an honest device no error, no mistake, no memory left |
//! | [`emulator`] | register writes, memory, commands and faults | no panic; bounded work, memory and records; mistakes are fatal |
//! | [`identify`] | identify data of controller and namespaces, and the list of namespaces | no panic; what the driver believes can be used without overflow |
#![forbid(unsafe_code)]

mod device;
mod driver;
mod emulator;
mod identify;
mod input;

pub use driver::driver;
pub use emulator::emulator;
pub use identify::identify;
