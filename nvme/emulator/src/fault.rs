//! A device that misbehaves: [`Faulty`] wraps a [`Controller`] and takes its steps one by one, so that it can spoil any.
//!
//! Nothing is left to chance. A [`Rule`] says which commands it applies to and what happens to them, and time is counted in
//! calls of [`Faulty::process`]. [`Seeded`] makes rules out of a seed, which a test that fails has to print.

use std::fmt;
use std::ops::RangeInclusive;

use nvme::spec::{CommandId, ControllerStatus, Register, SUBSYSTEM_RESET, Status};
use zerocopy::little_endian::{U16, U32};

use crate::controller::{Answer, Controller, Fetched, Outcome};
use crate::driver_error::DriverError;
use crate::memory::Memory;
use crate::random::Random;

/// What happens to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is fetched, and never heard of again.
    Stall,
    /// It is not executed, and completed with this status.
    Status(Status),
    /// It is executed, and not completed.
    DropCompletion,
    /// It is completed without its interrupt.
    DropInterrupt,
    /// It is completed twice.
    Duplicate,
    /// It is completed that many calls of `process` later, unless it was aborted or its queue is gone by then.
    Delay(u64),
    /// It is completed behind the next command of its queue, or at the end of the call of `process`.
    Reorder,
    /// Its completion has the phase tag of the round before, so that it looks as if it were not there.
    Phase,
    /// Its completion names this command instead.
    CommandId(CommandId),
    /// Its completion names this submission queue instead.
    SubmissionQueue(u16),
    /// Its completion says that the submission queue's head is there.
    SubmissionHead(u16),
    /// Dword 0 of its completion is this.
    Result(u32),
    /// It is executed, and then these bytes are written over its data, from that offset on (in the first page of data).
    Data {
        /// Offset in bytes.
        offset: u16,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The controller fails instead: CSTS.CFS.
    Fatal,
    /// The device is removed instead: all registers read as ones.
    Remove,
}

/// Which commands a fault applies to, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Only commands of this submission queue.
    pub queue: Option<u16>,
    /// Only commands with this opcode.
    pub opcode: Option<u8>,
    /// The first so many matching commands are left alone.
    pub skip: u64,
    /// Then so many are hit.
    pub times: u64,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// The next command of submission queue `queue`.
    pub fn next(queue: u16, fault: Fault) -> Self {
        Self {
            queue: Some(queue),
            opcode: None,
            skip: 0,
            times: 1,
            fault,
        }
    }

    /// All commands of submission queue `queue` with that opcode.
    pub fn every(queue: u16, opcode: u8, fault: Fault) -> Self {
        Self {
            queue: Some(queue),
            opcode: Some(opcode),
            skip: 0,
            times: u64::MAX,
            fault,
        }
    }

    /// Whether the rule hits this command; counts it.
    fn hits(&mut self, fetched: &Fetched) -> bool {
        let matches = self.queue.is_none_or(|queue| queue == fetched.queue)
            && self.opcode.is_none_or(|opcode| opcode == fetched.command.opcode);
        if !matches || self.times == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times -= 1;
        true
    }
}

/// A controller with faults. Without rules it behaves as the controller inside.
#[derive(Debug)]
pub struct Faulty<M> {
    controller: Controller<M>,
    rules: Vec<Rule>,
    /// Completions held back, with the call of `process` that they are due at; in the order they were held.
    held: Vec<(u64, Answer)>,
    /// Completions that let the next one of their queue go first.
    overtaken: Vec<Answer>,
    calls: u64,
    removed: bool,
    /// Register reads that return something else.
    registers: Vec<(usize, u32)>,
    /// How many reads of CSTS still show the RDY of before the last write of CC.
    ready_lag: u64,
    lag: u64,
    shown: ControllerStatus,
}

impl<M: Memory> Faulty<M> {
    /// Wraps `controller`.
    pub fn new(controller: Controller<M>) -> Self {
        Self {
            controller,
            rules: Vec::new(),
            held: Vec::new(),
            overtaken: Vec::new(),
            calls: 0,
            removed: false,
            registers: Vec::new(),
            ready_lag: 0,
            lag: 0,
            shown: ControllerStatus::default(),
        }
    }

    /// The controller inside.
    pub fn controller(&mut self) -> &mut Controller<M> {
        &mut self.controller
    }

    /// Adds a rule; of several that hit one command, the first applies.
    pub fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Drops all rules; completions that are held stay so until they are due.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Reads of the register at `offset` return `value` from now on.
    pub fn set_register(&mut self, offset: usize, value: u32) {
        self.registers.retain(|(at, _)| *at != offset);
        self.registers.push((offset, value));
    }

    /// After each write of CC, CSTS.RDY keeps its old value for that many reads; `u64::MAX` is for ever. A reset of the NVM
    /// subsystem heals it.
    pub fn set_ready_lag(&mut self, reads: u64) {
        self.ready_lag = reads;
    }

    /// The device is removed: registers read as ones, writes go nowhere, and nothing is done any more.
    pub fn remove(&mut self) {
        self.removed = true;
    }

    /// Posts a completion that no command asked for.
    pub fn inject(&mut self, answer: Answer) {
        self.controller.post(answer);
    }

    /// Size of the register window in bytes.
    pub fn window(&self) -> usize {
        self.controller.window()
    }

    /// The driver reads a register.
    pub fn read32(&mut self, offset: usize) -> u32 {
        if self.removed {
            return u32::MAX;
        }
        let value = self.controller.read32(offset);
        if let Some((_, value)) = self.registers.iter().find(|(at, _)| *at == offset) {
            return *value;
        }
        if offset == Register::Csts.offset() {
            let mut status = ControllerStatus(value);
            if self.lag > 0 {
                self.lag = self.lag.saturating_sub(1);
                status.set(ControllerStatus::READY, self.shown.contains(ControllerStatus::READY));
            }
            self.shown = status;
            return status.0;
        }
        value
    }

    /// The driver writes a register.
    pub fn write32(&mut self, offset: usize, value: u32) {
        if self.removed {
            return;
        }
        if offset == Register::Cc.offset() {
            self.lag = self.ready_lag;
        }
        if offset == Register::Nssr.offset() && value == SUBSYSTEM_RESET {
            (self.lag, self.ready_lag) = (0, 0);
        }
        self.controller.write32(offset, value);
    }

    /// Does all that is pending, as far as the faults let it. Returns the number of commands fetched.
    pub fn process(&mut self) -> usize {
        if self.removed {
            return 0;
        }
        self.calls += 1;
        self.controller.flush();
        let due = self.calls;
        for (_, answer) in self.held.extract_if(.., |(at, _)| *at <= due) {
            let (queue, id) = (answer.entry.sq_id.get(), CommandId(answer.entry.command_id.get()));
            if self.controller.is_in_flight(queue, id) {
                self.controller.post(answer);
            }
        }
        let mut fetched = 0;
        while !self.removed {
            let Some(next) = self.controller.fetch() else { break };
            fetched += 1;
            match self
                .rules
                .iter_mut()
                .find_map(|rule| rule.hits(&next).then(|| rule.fault.clone()))
            {
                None => self.complete(&next, |_| {}),
                Some(fault) => self.spoil(&next, fault),
            }
        }
        for answer in std::mem::take(&mut self.overtaken) {
            self.controller.post(answer);
        }
        fetched
    }

    /// Takes the vectors that were raised since the last call.
    pub fn take_interrupts(&mut self) -> Vec<u16> {
        self.controller.take_interrupts()
    }

    /// The driver's mistakes so far.
    pub fn errors(&self) -> &[DriverError] {
        self.controller.errors()
    }

    fn spoil(&mut self, fetched: &Fetched, fault: Fault) {
        match fault {
            Fault::Stall => {}
            Fault::Fatal => self.controller.set_fatal(),
            Fault::Remove => self.removed = true,
            Fault::Status(status) => {
                let answer = self.controller.answer(fetched, Outcome::from(status));
                answer.into_iter().for_each(|answer| self.post(answer));
            }
            Fault::DropCompletion => {
                self.controller.execute(fetched);
            }
            Fault::DropInterrupt => self.complete(fetched, |answer| answer.interrupt = false),
            Fault::CommandId(id) => self.complete(fetched, |answer| answer.entry.command_id = U16::new(id.0)),
            Fault::SubmissionQueue(id) => self.complete(fetched, |answer| answer.entry.sq_id = U16::new(id)),
            Fault::SubmissionHead(head) => self.complete(fetched, |answer| answer.entry.sq_head = U16::new(head)),
            Fault::Result(result) => self.complete(fetched, |answer| answer.entry.result = U32::new(result)),
            Fault::Duplicate => {
                if let Some(answer) = self.run(fetched) {
                    self.controller.post(answer);
                    self.controller.post(answer);
                }
            }
            Fault::Delay(calls) => {
                if let Some(answer) = self.run(fetched) {
                    self.held.push((self.calls.saturating_add(calls), answer));
                }
            }
            Fault::Reorder => {
                let answer = self.run(fetched);
                self.overtaken.extend(answer);
            }
            Fault::Phase => {
                if let Some(answer) = self.run(fetched) {
                    self.controller.post_out_of_phase(answer);
                }
            }
            Fault::Data { offset, bytes } => {
                let answer = self.run(fetched);
                // A driver's page that is not there was recorded by the execution.
                let _ = self
                    .controller
                    .memory()
                    .write(fetched.command.prp1.get().wrapping_add(offset.into()), &bytes);
                answer.into_iter().for_each(|answer| self.post(answer));
            }
        }
    }

    fn run(&mut self, fetched: &Fetched) -> Option<Answer> {
        let outcome = self.controller.execute(fetched)?;
        self.controller.answer(fetched, outcome)
    }

    fn complete(&mut self, fetched: &Fetched, change: impl FnOnce(&mut Answer)) {
        if let Some(mut answer) = self.run(fetched) {
            change(&mut answer);
            self.post(answer);
        }
    }

    /// Posts a completion, and behind it those that it overtook.
    fn post(&mut self, answer: Answer) {
        self.controller.post(answer);
        for overtaken in self
            .overtaken
            .extract_if(.., |overtaken| overtaken.queue == answer.queue)
        {
            self.controller.post(overtaken);
        }
    }
}

/// Faults out of a seed: the same seed is the same plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeded {
    seed: u64,
    random: Random,
}

impl Seeded {
    /// The generator of that seed.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            random: Random::new(seed),
        }
    }

    /// Rules for `count` commands of these submission queues, among the next hundred or so of each. Most leave the device
    /// alive; one plan in eight ends with it failed or removed.
    pub fn rules(&mut self, queues: RangeInclusive<u16>, count: usize) -> Vec<Rule> {
        let (first, number) = (*queues.start(), u64::from(queues.end() - queues.start()) + 1);
        let mut rules: Vec<_> = (0..count)
            .map(|_| Rule {
                queue: Some(first + self.random.below(number) as u16),
                opcode: None,
                skip: self.random.below(100),
                times: 1,
                fault: self.fault(),
            })
            .collect();
        if self.random.below(8) == 0 {
            let fault = if self.random.below(2) == 0 {
                Fault::Fatal
            } else {
                Fault::Remove
            };
            rules.push(Rule {
                queue: None,
                opcode: None,
                skip: self.random.below(200),
                times: 1,
                fault,
            });
        }
        rules
    }

    /// Adds such rules to a device; CSTS.RDY may be slow besides.
    pub fn spoil<M: Memory>(&mut self, device: &mut Faulty<M>, queues: RangeInclusive<u16>, count: usize) {
        if self.random.below(4) == 0 {
            device.set_ready_lag(self.random.below(64));
        }
        for rule in self.rules(queues, count) {
            device.add(rule);
        }
    }

    fn fault(&mut self) -> Fault {
        let random = &mut self.random;
        match random.below(14) {
            0 => Fault::Stall,
            1 => Fault::Status(Status::INTERNAL_ERROR),
            2 => Fault::Status(Status::from_bits(random.next() as u16)),
            3 => Fault::DropCompletion,
            4 => Fault::DropInterrupt,
            5 => Fault::Duplicate,
            6 | 7 => Fault::Delay(random.below(32)),
            8 | 9 => Fault::Reorder,
            10 => Fault::CommandId(CommandId(random.next() as u16)),
            11 => Fault::SubmissionQueue(random.below(8) as u16),
            12 => Fault::SubmissionHead(random.next() as u16),
            _ => Fault::Result(random.next() as u32),
        }
    }
}

impl fmt::Display for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)
    }
}
