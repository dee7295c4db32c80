//! An NVMe controller in software, for one process: test partner of the `nvme` driver, and device of a launcher without
//! hardware.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Controller`] | the device: registers by offset, and the steps that [`process`](Controller::process) is made of |
//! | [`Memory`] | the memory that the driver shares with it |
//! | [`Backend`] | what a namespace keeps its blocks in: [`NullBackend`], [`RamBackend`], [`FileBackend`] |
//! | [`DriverError`] | what a driver did that no driver may: recorded, and fatal (CSTS.CFS) |
//! | [`Random`] | numbers that repeat for a seed |
//! | [`fault`] | a wrapper that makes the device misbehave, in chosen and repeatable ways |
//!
//! The controller does nothing by itself: it works when `process` is called, in a fixed order, so that a test that fails
//! once fails again. Interrupts are collected as vector numbers for [`Controller::take_interrupts`].
#![forbid(unsafe_code)]

mod admin;
mod backend;
mod config;
mod controller;
mod doorbell;
mod driver_error;
mod events;
pub mod fault;
mod features;
mod io;
mod memory;
mod prp;
mod queue;
mod random;

pub use backend::{Backend, FileBackend, NullBackend, RamBackend};
pub use config::{Config, NamespaceConfig};
pub use controller::{Answer, Controller, Fetched, Outcome};
pub use driver_error::{DriverError, QueueName};
pub use memory::{Memory, Unmapped};
pub use random::Random;
