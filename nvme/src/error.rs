//! What can go wrong, with names in it: every message says which controller, queue or command.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use hal::dma::DmaError;
use thiserror::Error;

use crate::spec::{AdminOpcode, CommandId, Status};

/// An error of a controller. `controller` is the name given to [`Controller::start`](crate::Controller::start).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Registers read as all ones, or all zeros: the device was removed, lost power, or its memory decoding is off.
    #[error("{controller}: the device is gone (its registers do not answer)")]
    Gone {
        /// The controller's name.
        controller: Arc<str>,
    },
    /// CSTS.RDY did not become what was waited for.
    #[error("{controller}: CSTS.RDY did not become {} within {after:?}", u8::from(*.ready))]
    NotReady {
        /// The controller's name.
        controller: Arc<str>,
        /// The value that was waited for.
        ready: bool,
        /// How long the wait was: CAP.TO, or CRTO.CRWMT.
        after: Duration,
    },
    /// CSTS.CFS is set: the controller met a fatal error; only a reset helps.
    #[error("{controller}: fatal controller error (CSTS.CFS, CSTS reads {csts:#010x})")]
    FatalStatus {
        /// The controller's name.
        controller: Arc<str>,
        /// The status register.
        csts: u32,
    },
    /// A command was completed with an error status.
    #[error("{controller}: {command} failed: {status}")]
    Status {
        /// The controller's name.
        controller: Arc<str>,
        /// The command.
        command: AdminOpcode,
        /// Its status.
        status: Status,
    },
    /// A command was not completed in time. The controller may still be at it, so that its admin queue is not used again.
    #[error("{controller}: {command} was not completed within {after:?}")]
    Timeout {
        /// The controller's name.
        controller: Arc<str>,
        /// The command.
        command: AdminOpcode,
        /// How long the wait was.
        after: Duration,
    },
    /// Shutdown processing did not end in time.
    #[error("{controller}: shutdown processing did not end within {after:?} (CSTS reads {csts:#010x})")]
    ShutdownTimeout {
        /// The controller's name.
        controller: Arc<str>,
        /// How long the wait was.
        after: Duration,
        /// The status register.
        csts: u32,
    },
    /// The controller takes no commands any more: it was shut down, or an earlier command failed for good.
    #[error("{controller}: {command} cannot be sent: {reason}")]
    Stopped {
        /// The controller's name.
        controller: Arc<str>,
        /// The command that was to be sent.
        command: AdminOpcode,
        /// Why it cannot.
        reason: &'static str,
    },
    /// The device has something that this driver does not support.
    #[error("{controller}: {what} is not supported")]
    Unsupported {
        /// The controller's name.
        controller: Arc<str>,
        /// What it is.
        what: Cow<'static, str>,
    },
    /// A capability register holds what no controller can have.
    #[error("{controller}: {register} has the impossible value {value:#x}")]
    ImpossibleRegister {
        /// The controller's name.
        controller: Arc<str>,
        /// The register and field.
        register: &'static str,
        /// The field's value.
        value: u64,
    },
    /// Identify data holds what no controller can have.
    #[error("{controller}: Identify returned the impossible value {value:#x} for {field}")]
    ImpossibleIdentify {
        /// The controller's name.
        controller: Arc<str>,
        /// The structure's field, with the namespace if it is a namespace's.
        field: Cow<'static, str>,
        /// Its value.
        value: u64,
    },
    /// The window of registers ends before a register that is needed.
    #[error("{controller}: the register window of {length:#x} bytes ends before {needed:#x}, which {what} needs")]
    WindowTooSmall {
        /// The controller's name.
        controller: Arc<str>,
        /// What does not fit.
        what: &'static str,
        /// Bytes needed.
        needed: usize,
        /// Bytes there are.
        length: usize,
    },
    /// A queue was asked for that the controller did not grant, or that exists already.
    #[error("{controller}: no I/O queue {queue}: ids 1 to {granted} were granted, each once")]
    NoSuchQueue {
        /// The controller's name.
        controller: Arc<str>,
        /// The queue's id.
        queue: u16,
        /// How many I/O queues were granted.
        granted: u16,
    },
    /// Shadow doorbells were to be set up too late.
    #[error("{controller}: shadow doorbells have to be set up before the first I/O queue is created")]
    QueuesExist {
        /// The controller's name.
        controller: Arc<str>,
    },
    /// The controller was reset as often as it may be, and does not work.
    #[error("{controller}: given up after {resets} resets{}", last.as_ref().map(|last| format!("; {last}")).unwrap_or_default())]
    ResetsExhausted {
        /// The controller's name.
        controller: Arc<str>,
        /// How many resets there were: [`Config::max_resets`](crate::Config::max_resets).
        resets: u32,
        /// What the last one met, when it was the one that failed.
        last: Option<Box<Error>>,
    },
    /// There is no DMA memory for what was to be set up.
    #[error("{controller}: {source}")]
    Dma {
        /// The controller's name.
        controller: Arc<str>,
        /// Why.
        source: DmaError,
    },
    /// The controller broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolViolation),
}

/// A completion that an honest controller cannot have written. It is counted and dropped, never acted upon.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{controller} queue {queue}: {kind} (completion of command {command})")]
pub struct ProtocolViolation {
    /// The controller's name.
    pub controller: Arc<str>,
    /// The queue that the completion came from.
    pub queue: u16,
    /// The command identifier in it.
    pub command: CommandId,
    /// What is wrong.
    pub kind: ViolationKind,
}

/// What is wrong with a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// The identifier's slot does not exist.
    UnknownCommand,
    /// No command is in flight in that slot: completed twice, or never submitted.
    NotInFlight,
    /// A command is in flight in that slot, but with another sequence: the completion is of an earlier one.
    StaleSequence {
        /// The identifier that is in flight.
        in_flight: CommandId,
    },
    /// SQID names another submission queue.
    WrongQueue {
        /// The SQID.
        sq_id: u16,
    },
    /// SQHD lies beyond the submission queue.
    HeadBeyondQueue {
        /// The SQHD.
        sq_head: u16,
        /// The queue's number of entries.
        entries: u16,
    },
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCommand => f.write_str("unknown command identifier"),
            Self::NotInFlight => f.write_str("no such command is in flight"),
            Self::StaleSequence { in_flight } => write!(f, "stale sequence, {in_flight} is in flight in its slot"),
            Self::WrongQueue { sq_id } => write!(f, "it names submission queue {sq_id}"),
            Self::HeadBeyondQueue { sq_head, entries } => {
                write!(f, "its submission queue head is {sq_head} of {entries} entries")
            }
        }
    }
}
