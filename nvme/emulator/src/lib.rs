//! An NVMe controller in software, for one process: test partner of the `nvme` driver, and device of a launcher without
//! hardware.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Controller`] | the device: registers by offset, and the steps that [`process`](Controller::process) is made of |
//! | [`Memory`] | the memory that the driver shares with it |
//! | [`Backend`] | what a namespace keeps its blocks in: [`NullBackend`], [`RamBackend`], [`FileBackend`] |
//! | [`DriverError`] | what a driver did that no driver may: recorded, and fatal (CSTS.CFS) |
//! | [`fault`] | a wrapper that makes the device misbehave, in chosen and repeatable ways |
//!
//! The controller does nothing by itself: it works when `process` is called, in a fixed order, so that a test that fails
//! once fails again. Interrupts are collected as vector numbers for [`Controller::take_interrupts`].
#![forbid(unsafe_code)]

mod admin;
mod backend;
mod config;
mod controller;
mod driver_error;
pub mod fault;
mod io;
mod memory;
mod prp;
mod queue;

pub use backend::{Backend, FileBackend, NullBackend, RamBackend};
pub use config::{Config, NamespaceConfig};
pub use controller::{Answer, Controller, Fetched, Outcome};
pub use driver_error::{DriverError, QueueName};
pub use memory::{Memory, Unmapped};
