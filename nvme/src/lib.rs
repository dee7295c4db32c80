#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod admin;
mod controller;
mod error;
mod namespace;
mod prp;
mod queue;
pub mod spec;

pub use controller::{Config, Controller, ControllerInfo};
pub use error::{Error, ProtocolViolation, ViolationKind};
pub use namespace::{Metadata, MetadataPlacement, Namespace};
pub use prp::{PrpError, Prps};
pub use queue::{Completion, MAXIMUM_IN_FLIGHT, QueueCounters, QueueFull, QueuePair};
pub use spec::{Command, CommandId, DataPointer, NvmOpcode, Status};
