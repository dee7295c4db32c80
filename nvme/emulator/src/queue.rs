//! The controller's side of queues.

use std::collections::{BTreeSet, VecDeque};

use nvme::spec::{CommandId, CompletionEntry};

use crate::driver_error::{DriverError, QueueName};

pub(crate) const SUBMISSION_ENTRY: u64 = 64;
pub(crate) const COMPLETION_ENTRY: u64 = 16;

#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub address: u64,
    pub entries: u32,
    pub completion_queue: u16,
    /// The next command to fetch.
    pub head: u32,
    pub tail: u32,
    /// Fetched and not completed.
    pub in_flight: BTreeSet<CommandId>,
    /// With doorbell buffers: the buffer is looked at.
    pub awake: bool,
}

impl SubmissionQueue {
    pub fn new(address: u64, entries: u32, completion_queue: u16) -> Self {
        Self {
            address,
            entries,
            completion_queue,
            head: 0,
            tail: 0,
            in_flight: BTreeSet::new(),
            awake: false,
        }
    }

    /// The driver set the tail doorbell.
    pub fn ring(&mut self, id: u16, value: u32) -> Result<(), DriverError> {
        let queue = QueueName::Submission(id);
        let waiting = distance(self.head, self.tail, self.entries);
        self.tail = moved(queue, self.tail, value, self.entries, self.entries - 1 - waiting)?;
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub address: u64,
    pub entries: u32,
    pub vector: Option<u16>,
    /// The first completion that the driver has not acknowledged.
    pub head: u32,
    pub tail: u32,
    pub phase: bool,
    /// With doorbell buffers: full, and the buffer is looked at no more.
    pub asleep: bool,
    /// Completions since the last interrupt that is still held back (coalescing).
    pub uninterrupted: u32,
    /// Completions that found the queue full, with whether they raise an interrupt.
    pub waiting: VecDeque<(CompletionEntry, bool)>,
}

impl CompletionQueue {
    pub fn new(address: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            address,
            entries,
            vector,
            head: 0,
            tail: 0,
            phase: true,
            asleep: false,
            uninterrupted: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The driver set the head doorbell.
    pub fn ring(&mut self, id: u16, value: u32) -> Result<(), DriverError> {
        let posted = distance(self.head, self.tail, self.entries);
        self.head = moved(QueueName::Completion(id), self.head, value, self.entries, posted)?;
        Ok(())
    }

    pub fn is_full(&self) -> bool {
        distance(self.head, self.tail, self.entries) == self.entries - 1
    }

    /// The tail moves on behind an entry that was written.
    pub fn advance(&mut self) {
        self.tail = (self.tail + 1) % self.entries;
        if self.tail == 0 {
            self.phase = !self.phase;
        }
    }
}

fn distance(from: u32, to: u32, entries: u32) -> u32 {
    if to >= from { to - from } else { to + entries - from }
}

fn moved(queue: QueueName, from: u32, to: u32, entries: u32, room: u32) -> Result<u32, DriverError> {
    if to >= entries {
        Err(DriverError::DoorbellBeyondQueue {
            queue,
            value: to,
            entries,
        })
    } else if to == from {
        Err(DriverError::DoorbellUnchanged { queue, value: to })
    } else if distance(from, to, entries) > room {
        Err(DriverError::DoorbellTooFar { queue, from, to, room })
    } else {
        Ok(to)
    }
}
