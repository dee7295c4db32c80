//! What the specifications define, as plain types: registers, commands, completions, identify data, status.
//!
//! "Base" in a citation is the NVM Express Base Specification 2.0, "NVM" the NVM Command Set Specification 1.0, "PCIe" the
//! NVMe over PCIe Transport Specification 1.0. Nothing here does I/O; the driver and the emulated controller share it.

mod command;
mod completion;
mod event;
mod feature;
mod identify;
mod log;
mod registers;
mod status;

pub use command::{
    AdminOpcode, Command, CommandId, CreateCompletionQueue, CreateSubmissionQueue, DEALLOCATE, DataPointer,
    DatasetRange, IdentifyKind, NvmOpcode, abort_succeeded,
};
pub use completion::CompletionEntry;
pub use event::{AsyncEvent, AsyncEventKind};
pub use feature::{
    APST_BYTES, AsyncEventConfiguration, FeatureId, InterruptCoalescing, QueueCounts, VectorConfiguration,
};
pub use identify::{
    CommandSet, ControllerType, DataProtection, FormattedSize, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace,
    LbaFormat, NAMESPACES_PER_LIST, OptionalAdminCommands, OptionalAsyncEvents, OptionalNvmCommands,
    VolatileWriteCache, command_set_descriptor, described_command_set,
};
pub use log::{CriticalWarning, ErrorEntry, LogId, SmartLog};
pub use registers::{
    AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus, DOORBELLS, ReadyTimeouts, Register,
    SUBSYSTEM_RESET, ShutdownNotification, ShutdownStatus, Version, completion_head_doorbell, submission_tail_doorbell,
};
pub use status::Status;
