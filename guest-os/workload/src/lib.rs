//! The contract of doorpost's guest and host.
//!
//! Both sides are built from this crate, so that a job means the same to both and a report cannot be misread:
//!
//! | module | what it holds |
//! |---|---|
//! | [`units`] | sizes and times as fio writes them |
//! | [`job`] | what to do: [`JobSet`](job::JobSet) |
//! | [`options`] | fio's names and values for that, in boot arguments and elsewhere |
//! | [`offsets`] | which block comes next |
//! | [`pattern`] | contents of blocks that can be checked |
//! | [`latency`] | fio's log-linear latency buckets |
//! | [`report`] | what was measured |
//! | [`frame`] | how reports travel over a serial line that also carries text |
//!
//! Everything is integer arithmetic: guests have no floating point unit to speak of.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod frame;
pub mod job;
pub mod latency;
pub mod offsets;
pub mod options;
pub mod pattern;
pub mod report;
pub mod units;
