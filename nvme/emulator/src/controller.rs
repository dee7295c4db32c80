//! The controller: registers, and the steps in which it works.

use std::collections::BTreeMap;
use std::fmt;

use nvme::spec::{
    AdminQueueAttributes, Command, CommandId, CompletionEntry, ControllerConfiguration, ControllerStatus, DOORBELLS,
    DataPointer, QueueCounts, Register, SUBSYSTEM_RESET, ShutdownNotification, ShutdownStatus, Status,
};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::config::{Config, NamespaceConfig};
use crate::doorbell::DoorbellBuffers;
use crate::driver_error::DriverError;
use crate::events::{self, Events, Logs};
use crate::features::Features;
use crate::memory::Memory;
use crate::prp::{self, Segment};
use crate::queue::{COMPLETION_ENTRY, CompletionQueue, SUBMISSION_ENTRY, SubmissionQueue};

/// Mistakes of the driver that are kept; what comes after the first ones says little.
const MOST_ERRORS: usize = 256;
/// Interrupts that are kept until they are taken.
const MOST_INTERRUPTS: usize = 1 << 16;

/// A command that the controller took from a submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The submission queue.
    pub queue: u16,
    /// The command.
    pub command: Command,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its status.
    pub status: Status,
    /// Dword 0 of its completion.
    pub result: u32,
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

/// A completion on its way into a completion queue. The phase tag is set when it gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The completion queue.
    pub queue: u16,
    /// The entry.
    pub entry: CompletionEntry,
    /// Whether the queue's interrupt is raised, if it has one.
    pub interrupt: bool,
}

/// An NVMe controller in software.
///
/// The driver's accesses go to [`read32`](Self::read32) and [`write32`](Self::write32); [`process`](Self::process) then does
/// what is pending. It is made of the steps [`fetch`](Self::fetch), [`execute`](Self::execute), [`answer`](Self::answer) and
/// [`post`](Self::post), which a wrapper may take one by one.
pub struct Controller<M> {
    pub(crate) config: Config,
    pub(crate) memory: M,
    pub(crate) namespaces: BTreeMap<u32, NamespaceConfig>,
    cc: ControllerConfiguration,
    pub(crate) csts: ControllerStatus,
    aqa: AdminQueueAttributes,
    asq: u64,
    acq: u64,
    /// By id; the admin queue is 0.
    pub(crate) submission: Vec<Option<SubmissionQueue>>,
    pub(crate) completion: Vec<Option<CompletionQueue>>,
    /// The submission queue that is looked at next.
    next: usize,
    interrupts: Vec<u16>,
    errors: Vec<DriverError>,
    pub(crate) events: Events,
    pub(crate) logs: Logs,
    pub(crate) features: Features,
    pub(crate) doorbell_buffers: Option<DoorbellBuffers>,
    /// Reused by each command.
    pub(crate) data: Vec<u8>,
    pub(crate) compared: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
}

impl<M: Memory> Controller<M> {
    /// A controller with these namespaces, disabled.
    ///
    /// # Panics
    /// When the configuration cannot be told in registers, or two namespaces have one id.
    pub fn new(config: Config, namespaces: impl IntoIterator<Item = NamespaceConfig>, memory: M) -> Self {
        let _ = config.capabilities();
        let QueueCounts { submission, completion } = config.io_queues;
        let mut by_id = BTreeMap::new();
        for namespace in namespaces {
            let id = namespace.id;
            assert!(id >= 1 && id <= config.namespace_limit, "namespace id {id}");
            assert!(by_id.insert(id, namespace).is_none(), "two namespaces of id {id}");
        }
        Self {
            memory,
            namespaces: by_id,
            cc: ControllerConfiguration::default(),
            csts: ControllerStatus::default(),
            aqa: AdminQueueAttributes::default(),
            asq: 0,
            acq: 0,
            submission: (0..=submission).map(|_| None).collect(),
            completion: (0..=completion).map(|_| None).collect(),
            next: 0,
            interrupts: Vec::new(),
            errors: Vec::new(),
            events: Events::default(),
            logs: Logs::default(),
            features: Features::new(config.autonomous_power),
            doorbell_buffers: None,
            data: Vec::new(),
            compared: Vec::new(),
            segments: Vec::new(),
            config,
        }
    }

    /// Size of the register window (BAR 0) in bytes: a power of two, all doorbells included.
    pub fn window(&self) -> usize {
        let queues = self.submission.len().max(self.completion.len());
        (DOORBELLS + 2 * queues * self.config.doorbell_stride).next_power_of_two()
    }

    /// The driver reads the 32-bit register at `offset`.
    pub fn read32(&mut self, offset: usize) -> u32 {
        if !offset.is_multiple_of(4) || offset >= self.window() {
            self.fail(DriverError::NoRegister { offset });
            return u32::MAX;
        }
        let half = |value: u64, register: Register| (value >> (8 * (offset - register.offset()))) as u32;
        match offset {
            0x00 | 0x04 => half(self.config.capabilities().0, Register::Cap),
            0x08 => self.config.version.0,
            0x14 => self.cc.0,
            0x1c => self.csts.0,
            0x24 => self.aqa.0,
            0x28 | 0x2c => half(self.asq, Register::Asq),
            0x30 | 0x34 => half(self.acq, Register::Acq),
            0x68 => self.config.ready_timeouts(),
            _ => 0,
        }
    }

    /// The driver writes the 32-bit register at `offset`.
    pub fn write32(&mut self, offset: usize, value: u32) {
        if !offset.is_multiple_of(4) || offset >= self.window() {
            return self.fail(DriverError::NoRegister { offset });
        }
        let refused = |reason| DriverError::RegisterWrite { offset, value, reason };
        let enabled = self.cc.contains(ControllerConfiguration::ENABLE);
        let replaced = |register: u64, first: usize| {
            let shift = 8 * (offset - first);
            register & !(0xffff_ffff << shift) | u64::from(value) << shift
        };
        match offset {
            0x14 => self.configure(ControllerConfiguration(value)),
            0x20 if self.config.subsystem_reset => {
                // Any other value does nothing (Base, 3.1.3.7).
                if value == SUBSYSTEM_RESET {
                    self.reset_subsystem();
                }
            }
            0x1c if self.config.subsystem_reset && value == ControllerStatus::SUBSYSTEM_RESET_OCCURRED.bits() => {
                self.csts.remove(ControllerStatus::SUBSYSTEM_RESET_OCCURRED);
            }
            0x24..=0x34 if enabled => self.fail(refused("the admin queues cannot change while CC.EN is 1")),
            0x24 => self.aqa = AdminQueueAttributes(value),
            0x28 | 0x2c => self.asq = replaced(self.asq, 0x28),
            0x30 | 0x34 => self.acq = replaced(self.acq, 0x30),
            DOORBELLS.. => self.ring(offset, value),
            0x0c | 0x10 => self.fail(refused("interrupts are masked in the MSI-X table")),
            _ => self.fail(refused("it is read-only or reserved")),
        }
    }

    /// Does all that is pending, one queue after the other, one command at a time. Returns the number of commands executed.
    pub fn process(&mut self) -> usize {
        self.flush();
        let mut executed = 0;
        while let Some(fetched) = self.fetch() {
            executed += 1;
            if let Some(outcome) = self.execute(&fetched)
                && let Some(answer) = self.answer(&fetched, outcome)
            {
                self.post(answer);
            }
        }
        executed
    }

    /// Posts completions that had found their queue full, as far as there is room now.
    pub fn flush(&mut self) {
        for queue in 0..self.completion.len() {
            let waits = self.completion[queue]
                .as_ref()
                .is_some_and(|completions| !completions.waiting.is_empty());
            if !waits || !self.has_room(queue) {
                continue;
            }
            while let Some(completions) = &mut self.completion[queue] {
                if completions.is_full() {
                    break;
                }
                let Some((entry, interrupt)) = completions.waiting.pop_front() else {
                    break;
                };
                self.write_completion(queue as u16, entry, interrupt);
            }
        }
    }

    /// Whether a completion queue has room; where a doorbell buffer may tell of more, it is looked at.
    fn has_room(&mut self, queue: usize) -> bool {
        let full = |this: &Self| !matches!(&this.completion[queue], Some(completions) if !completions.is_full());
        if full(self)
            && let Err(error) = self.look_for_room(queue)
        {
            self.fail(error);
        }
        !full(self)
    }

    /// Takes the next command, the submission queues in turn (round robin arbitration); `None` when there is none, or the
    /// controller is not working. No command is taken whose completion queue is full.
    pub fn fetch(&mut self) -> Option<Fetched> {
        let count = self.submission.len();
        for i in 0..count {
            if !self.is_working() {
                return None;
            }
            let index = (self.next + i) % count;
            if let Err(error) = self.look_for_commands(index) {
                self.fail(error);
                return None;
            }
            let completions = match &self.submission[index] {
                Some(queue) if queue.head != queue.tail => usize::from(queue.completion_queue),
                _ => continue,
            };
            if !self.has_room(completions) {
                continue;
            }
            let Some(queue) = &mut self.submission[index] else {
                continue;
            };
            let address = queue.address + u64::from(queue.head) * SUBMISSION_ENTRY;
            let mut command = Command::default();
            if let Err(source) = self.memory.read(address, command.as_mut_bytes()) {
                self.fail(DriverError::Unmapped {
                    what: "a submission queue",
                    source,
                });
                return None;
            }
            queue.head = (queue.head + 1) % queue.entries;
            let id = CommandId(command.command_id.get());
            if !queue.in_flight.insert(id) {
                self.fail(DriverError::CommandIdInFlight {
                    queue: index as u16,
                    id,
                });
                return None;
            }
            self.next = index + 1;
            return Some(Fetched {
                queue: index as u16,
                command,
            });
        }
        None
    }

    /// Executes a command; `None` when it is not answered now: an Asynchronous Event Request waits for an event, and a
    /// mistake of the driver ends the controller's work.
    pub fn execute(&mut self, fetched: &Fetched) -> Option<Outcome> {
        if events::is_event_request(fetched) {
            let refused = self.async_event_request(&fetched.command);
            self.deliver_events();
            return refused;
        }
        let result = if fetched.queue == 0 {
            self.admin(&fetched.command)
        } else {
            self.io(&fetched.command)
        };
        match result {
            Ok(outcome) => Some(outcome),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// The completion of a command; `None` when its queue was deleted meanwhile.
    pub fn answer(&self, fetched: &Fetched, outcome: Outcome) -> Option<Answer> {
        let queue = self.submission.get(usize::from(fetched.queue))?.as_ref()?;
        let entry = CompletionEntry {
            result: U32::new(outcome.result),
            sq_head: U16::new(queue.head as u16),
            sq_id: U16::new(fetched.queue),
            command_id: fetched.command.command_id,
            ..CompletionEntry::default()
        };
        let entry = entry.with_status(outcome.status, false);
        Some(Answer {
            queue: queue.completion_queue,
            entry,
            interrupt: true,
        })
    }

    /// Posts a completion, or keeps it until its queue has room. The command that it names ends with it.
    pub fn post(&mut self, answer: Answer) {
        let Answer {
            queue,
            entry,
            interrupt,
        } = answer;
        if let Some(Some(submissions)) = self.submission.get_mut(usize::from(entry.sq_id.get())) {
            let ended = submissions.in_flight.remove(&CommandId(entry.command_id.get()));
            if ended {
                self.log_error(&entry);
            }
        }
        let Some(Some(completions)) = self.completion.get_mut(usize::from(queue)) else {
            return;
        };
        if completions.is_full() || !completions.waiting.is_empty() {
            completions.waiting.push_back((entry, interrupt));
        } else {
            self.write_completion(queue, entry, interrupt);
        }
    }

    /// Posts a completion whose phase tag is that of the round before: a driver that looks at it does not see it.
    pub fn post_out_of_phase(&mut self, answer: Answer) {
        let index = usize::from(answer.queue);
        for posted in [false, true] {
            if let Some(Some(completions)) = self.completion.get_mut(index) {
                completions.phase = !completions.phase;
            }
            if !posted {
                self.post(answer);
            }
        }
    }

    /// Whether the command was taken from its queue and not completed yet.
    pub fn is_in_flight(&self, queue: u16, id: CommandId) -> bool {
        matches!(self.submission.get(usize::from(queue)), Some(Some(queue)) if queue.in_flight.contains(&id))
    }

    /// Takes the vectors that were raised since the last call, in order, one for each completion. Interrupts that are held
    /// back by coalescing are among them: by now their time is over.
    pub fn take_interrupts(&mut self) -> Vec<u16> {
        let mut interrupts = std::mem::take(&mut self.interrupts);
        for queue in self.completion.iter_mut().flatten() {
            if queue.uninterrupted > 0 {
                queue.uninterrupted = 0;
                interrupts.extend(queue.vector);
            }
        }
        interrupts
    }

    /// The driver's mistakes so far.
    pub fn errors(&self) -> &[DriverError] {
        &self.errors
    }

    /// The memory that the controller works on.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Where completion queue `id` lies, for tests that write into it behind the controller's back.
    pub fn completion_queue_address(&self, id: u16) -> Option<u64> {
        self.completion
            .get(usize::from(id))?
            .as_ref()
            .map(|queue| queue.address)
    }

    /// The controller meets an internal error: CSTS.CFS, until it is reset.
    pub fn set_fatal(&mut self) {
        self.csts.insert(ControllerStatus::FATAL);
    }

    pub(crate) fn fail(&mut self, error: DriverError) {
        if self.errors.len() < MOST_ERRORS {
            self.errors.push(error);
        }
        self.set_fatal();
    }

    pub(crate) fn is_working(&self) -> bool {
        self.csts.contains(ControllerStatus::READY)
            && !self.csts.contains(ControllerStatus::FATAL)
            && self.csts.shutdown() == ShutdownStatus::Normal
    }

    fn configure(&mut self, cc: ControllerConfiguration) {
        let was = std::mem::replace(&mut self.cc, cc);
        let refused = |reason| DriverError::RegisterWrite {
            offset: Register::Cc.offset(),
            value: cc.0,
            reason,
        };
        let ready = self.csts.contains(ControllerStatus::READY);
        let fatal = self.csts.contains(ControllerStatus::FATAL);
        match (
            was.contains(ControllerConfiguration::ENABLE),
            cc.contains(ControllerConfiguration::ENABLE),
        ) {
            (false, true) => {
                if let Err(error) = self.enable() {
                    self.fail(error);
                }
            }
            (true, false) => {
                self.reset();
                if !ready && !fatal {
                    self.fail(refused("CC.EN was cleared before CSTS.RDY was 1"));
                }
            }
            (true, true) => {
                let kept = |cc: ControllerConfiguration| cc.with_shutdown(ShutdownNotification::None);
                if kept(was) != kept(cc) {
                    self.fail(refused("the configuration cannot change while CC.EN is 1"));
                }
                if cc.shutdown() != ShutdownNotification::None as u32 {
                    self.csts = self.csts.with_shutdown(ShutdownStatus::Complete);
                }
            }
            (false, false) => {}
        }
    }

    fn enable(&mut self) -> Result<(), DriverError> {
        let wrong = |what| Err(DriverError::Enabled { what });
        let page_size = self.page_size();
        if page_size < self.config.minimum_page_size || page_size > self.config.maximum_page_size {
            return wrong("a memory page size that it does not support (CC.MPS)");
        }
        if self.cc.command_set() != 0 {
            return wrong("a command set that it does not support (CC.CSS)");
        }
        if self.cc.submission_entry_size() as u64 != SUBMISSION_ENTRY
            || self.cc.completion_entry_size() as u64 != COMPLETION_ENTRY
        {
            return wrong("queue entry sizes that it does not support (CC.IOSQES, CC.IOCQES)");
        }
        let (sq_entries, cq_entries) = (self.aqa.submission_entries(), self.aqa.completion_entries());
        if sq_entries < 2 || cq_entries < 2 {
            return wrong("an admin queue of one entry (AQA)");
        }
        if [self.asq, self.acq]
            .iter()
            .any(|address| !address.is_multiple_of(page_size as u64))
        {
            return wrong("an admin queue that does not begin at a page (ASQ, ACQ)");
        }
        let submissions = SubmissionQueue::new(self.asq, sq_entries.into(), 0);
        let completions = CompletionQueue::new(self.acq, cq_entries.into(), Some(0));
        self.check_submission_memory(&submissions)?;
        self.check_completion_memory(0, &completions)?;
        self.submission[0] = Some(submissions);
        self.completion[0] = Some(completions);
        self.csts.insert(ControllerStatus::READY);
        Ok(())
    }

    /// A controller level reset (Base, 3.7.2): queues, features and doorbell buffers are gone, the admin queue registers stay.
    fn reset(&mut self) {
        self.submission.fill_with(|| None);
        self.completion.fill_with(|| None);
        self.csts &= ControllerStatus::SUBSYSTEM_RESET_OCCURRED;
        self.next = 0;
        self.events.reset();
        self.features = Features::new(self.config.autonomous_power);
        self.doorbell_buffers = None;
    }

    /// A reset of the NVM subsystem (Base, 3.7.1): as after power on, but CSTS.NSSRO tells of it.
    fn reset_subsystem(&mut self) {
        self.reset();
        self.cc = ControllerConfiguration::default();
        self.csts = ControllerStatus::SUBSYSTEM_RESET_OCCURRED;
        self.aqa = AdminQueueAttributes::default();
        (self.asq, self.acq) = (0, 0);
    }

    /// Writes a completion at the tail of its queue, which has room.
    fn write_completion(&mut self, queue: u16, entry: CompletionEntry, interrupt: bool) {
        let Some(Some(completions)) = self.completion.get_mut(usize::from(queue)) else {
            return;
        };
        let entry = entry.with_status(entry.status(), completions.phase);
        let address = completions.address + u64::from(completions.tail) * COMPLETION_ENTRY;
        if let Err(source) = self.memory.write(address, entry.as_bytes()) {
            return self.fail(DriverError::Unmapped {
                what: "a completion queue",
                source,
            });
        }
        completions.advance();
        let Some(vector) = completions.vector.filter(|_| interrupt) else {
            return;
        };
        // Admin completions are never held back.
        if queue != 0 && self.is_coalesced(vector) {
            let threshold = u32::from(self.features.coalescing.threshold);
            if let Some(Some(completions)) = self.completion.get_mut(usize::from(queue)) {
                completions.uninterrupted += 1;
                if completions.uninterrupted <= threshold {
                    return;
                }
                completions.uninterrupted = 0;
            }
        }
        if self.interrupts.len() < MOST_INTERRUPTS {
            self.interrupts.push(vector);
        }
    }

    /// The memory page size in use.
    pub(crate) fn page_size(&self) -> usize {
        self.cc.page_size()
    }

    /// The whole memory of a new queue is there.
    pub(crate) fn check_submission_memory(&self, queue: &SubmissionQueue) -> Result<(), DriverError> {
        let mut memory = vec![0; queue.entries as usize * SUBMISSION_ENTRY as usize];
        self.memory
            .read(queue.address, &mut memory)
            .map_err(|source| DriverError::Unmapped {
                what: "a submission queue",
                source,
            })
    }

    /// The whole memory of a new queue is there, and no phase tag is set in it.
    pub(crate) fn check_completion_memory(&self, id: u16, queue: &CompletionQueue) -> Result<(), DriverError> {
        let mut memory = vec![0; queue.entries as usize * COMPLETION_ENTRY as usize];
        self.memory
            .read(queue.address, &mut memory)
            .map_err(|source| DriverError::Unmapped {
                what: "a completion queue",
                source,
            })?;
        match memory
            .chunks(COMPLETION_ENTRY as usize)
            .position(|entry| entry[14] & 1 != 0)
        {
            Some(entry) => Err(DriverError::CompletionQueueNotCleared {
                queue: id,
                entry: entry as u32,
            }),
            None => Ok(()),
        }
    }

    /// Sends the first `length` bytes of the data buffer to the driver's memory.
    pub(crate) fn send(&mut self, pointer: DataPointer, length: usize) -> Result<(), DriverError> {
        self.walk(pointer, length)?;
        let mut at = 0;
        for segment in &self.segments {
            self.memory
                .write(segment.address, &self.data[at..at + segment.length])
                .map_err(|source| DriverError::Unmapped { what: "data", source })?;
            at += segment.length;
        }
        Ok(())
    }

    /// Fills the data buffer with `length` bytes of the driver's memory.
    pub(crate) fn receive(&mut self, pointer: DataPointer, length: usize) -> Result<(), DriverError> {
        self.walk(pointer, length)?;
        self.data.resize(length, 0);
        let mut at = 0;
        for segment in &self.segments {
            self.memory
                .read(segment.address, &mut self.data[at..at + segment.length])
                .map_err(|source| DriverError::Unmapped { what: "data", source })?;
            at += segment.length;
        }
        Ok(())
    }

    /// Finds the pieces of `length` bytes of data.
    pub(crate) fn walk(&mut self, pointer: DataPointer, length: usize) -> Result<(), DriverError> {
        self.segments.clear();
        prp::walk(&self.memory, self.cc.page_size(), pointer, length, &mut self.segments)
    }
}

impl<M> fmt::Debug for Controller<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("cc", &self.cc)
            .field("csts", &self.csts)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}
