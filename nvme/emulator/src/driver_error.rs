//! What a driver may not do.

use nvme::spec::CommandId;
use thiserror::Error;

use crate::memory::Unmapped;

/// A mistake of the driver. The controller records it and sets CSTS.CFS: it does not go on as if nothing had happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A register that cannot be written, or not now, was written.
    #[error("write of {value:#x} to register {offset:#x}: {reason}")]
    RegisterWrite {
        /// The register's offset.
        offset: usize,
        /// The value.
        value: u32,
        /// What is wrong about it.
        reason: &'static str,
    },
    /// An offset outside of the register window, or not a multiple of 4.
    #[error("access to offset {offset:#x}, where there is no register")]
    NoRegister {
        /// The offset.
        offset: usize,
    },
    /// The controller was enabled with properties that it cannot work with.
    #[error("enabled with {what}")]
    Enabled {
        /// What is wrong.
        what: &'static str,
    },
    /// A doorbell of a queue that does not exist, or of a controller that is not ready.
    #[error("doorbell of {queue} rung: {reason}")]
    NoSuchDoorbell {
        /// The queue.
        queue: QueueName,
        /// Why there is none.
        reason: &'static str,
    },
    /// A doorbell value that is not inside the queue.
    #[error("doorbell of {queue} set to {value} of {entries} entries")]
    DoorbellBeyondQueue {
        /// The queue.
        queue: QueueName,
        /// The value.
        value: u32,
        /// The queue's number of entries.
        entries: u32,
    },
    /// A doorbell moved over entries that are not the driver's: a full submission queue, or completions never posted.
    #[error("doorbell of {queue} moved from {from} to {to}, with room for {room}")]
    DoorbellTooFar {
        /// The queue.
        queue: QueueName,
        /// The value before.
        from: u32,
        /// The value written.
        to: u32,
        /// How far it could move.
        room: u32,
    },
    /// A doorbell was set to the value that it had: needless, and invalid (Base, 5.2, Invalid Doorbell Write Value).
    #[error("doorbell of {queue} set to {value} again")]
    DoorbellUnchanged {
        /// The queue.
        queue: QueueName,
        /// The value.
        value: u32,
    },
    /// A doorbell register was rung with another value than stands in the doorbell buffer: the buffer comes first (Base,
    /// Annex B.5).
    #[error("doorbell of {queue} set to {value}, with {shadow} in the doorbell buffer")]
    ShadowDiffers {
        /// The queue.
        queue: QueueName,
        /// The value in the buffer.
        shadow: u32,
        /// The value written.
        value: u32,
    },
    /// A command identifier that is in flight in the same submission queue was used again.
    #[error("command {id} of submission queue {queue} is in flight already")]
    CommandIdInFlight {
        /// The submission queue.
        queue: u16,
        /// The identifier.
        id: CommandId,
    },
    /// Memory that was given for a queue, a list, or data is not mapped.
    #[error("{what}: {source}")]
    Unmapped {
        /// What it was for.
        what: &'static str,
        /// What is not there.
        source: Unmapped,
    },
    /// A PRP entry with a page offset that it may not have.
    #[error("PRP entry {entry:#x} may not point inside a page")]
    PrpOffset {
        /// The entry.
        entry: u64,
    },
    /// A metadata pointer that is not aligned to 4 bytes (Base, 3.3.3.1, MPTR).
    #[error("metadata pointer {address:#x} is not aligned to 4 bytes")]
    MetadataPointer {
        /// The pointer.
        address: u64,
    },
    /// A transfer larger than MDTS.
    #[error("a transfer of {length} bytes, beyond MDTS of {limit} bytes")]
    TransferTooLarge {
        /// The transfer.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A completion queue whose memory was not cleared: the driver would find completions in it that are none.
    #[error("entry {entry} of the new completion queue {queue} is not cleared")]
    CompletionQueueNotCleared {
        /// The queue.
        queue: u16,
        /// The first entry that has its phase tag set.
        entry: u32,
    },
}

/// A queue, as an error names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueName {
    /// The submission queue of that id.
    Submission(u16),
    /// The completion queue of that id.
    Completion(u16),
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Submission(id) => write!(f, "submission queue {id}"),
            Self::Completion(id) => write!(f, "completion queue {id}"),
        }
    }
}
