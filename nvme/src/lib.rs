#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod admin;
mod controller;
mod error;
mod events;
mod features;
mod namespace;
mod prp;
mod queue;
mod recovery;
mod shadow;
pub mod spec;
mod standstill;

pub use controller::{Config, Controller, ControllerInfo};
pub use error::{Error, ProtocolViolation, ViolationKind};
pub use namespace::{Metadata, MetadataPlacement, Namespace};
pub use prp::{PrpError, Prps};
pub use queue::{Completion, MAXIMUM_IN_FLIGHT, QueueCounters, QueueFull, QueuePair};
pub use recovery::Reissue;
pub use spec::{AsyncEvent, Command, CommandId, DataPointer, NvmOpcode, Status};
pub use standstill::{Owner, Standstill, Word};
