//! What the specifications define, as plain types: registers, commands, completions, identify data, status.
//!
//! "Base" in a citation is the NVM Express Base Specification 2.0, "NVM" the NVM Command Set Specification 1.0, "PCIe" the
//! NVMe over PCIe Transport Specification 1.0. Nothing here does I/O; the driver and the emulated controller share it.

mod command;
mod completion;
mod identify;
mod registers;
mod status;

pub use command::{
    AdminOpcode, Command, CommandId, CreateCompletionQueue, CreateSubmissionQueue, DataPointer, FeatureId,
    IdentifyKind, NvmOpcode, QueueCounts,
};
pub use completion::CompletionEntry;
pub use identify::{
    ControllerType, DataProtection, FormattedSize, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat,
    NAMESPACES_PER_LIST, OptionalNvmCommands, VolatileWriteCache,
};
pub use registers::{
    AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus, DOORBELLS, ReadyTimeouts, Register,
    ShutdownNotification, ShutdownStatus, Version, completion_head_doorbell, submission_tail_doorbell,
};
pub use status::Status;
