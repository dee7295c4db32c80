//! A submission queue and its completion queue: the hot path.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::mem::ManuallyDrop;

use hal::barrier::{dma_rmb, mmio_wmb};
use hal::dma::{Dma, DmaError, DmaRing, IoAddr};
use hal::mmio::Mmio;
use thiserror::Error;
use zerocopy::little_endian::U16;

use crate::error::{ProtocolViolation, ViolationKind};
use crate::spec::{self, Command, CommandId, CompletionEntry, Status};

/// The most commands in flight of one queue pair; it leaves 4 bits of a command identifier for the sequence.
pub const MAXIMUM_IN_FLIGHT: u16 = 4095;

/// All slots are taken: find completions first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the submission queue is full")]
pub struct QueueFull;

/// A command's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What was given to [`QueuePair::write`] with the command.
    pub token: u32,
    /// How it ended.
    pub status: Status,
    /// Dword 0 of the completion, whose meaning depends on the command.
    pub result: u32,
}

/// What a queue pair did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QueueCounters {
    /// Writes of the submission queue tail doorbell.
    pub sq_doorbells: u64,
    /// Writes of the completion queue head doorbell.
    pub cq_doorbells: u64,
    /// Commands written.
    pub submitted: u64,
    /// Commands completed, with any status.
    pub completed: u64,
    /// Completions that broke the protocol.
    pub violations: u64,
}

/// No command is in flight in this slot. Beyond every identifier, so that no completion matches it.
const FREE: u32 = u32::MAX;

/// A place for one command in flight. The slot's index is the low part of its commands' identifiers, and the high part is a
/// sequence that moves on with each use, so that a completion of an earlier use is found out.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Slot {
    /// The identifier in flight, or [`FREE`].
    in_flight: u32,
    token: u32,
    /// The identifier of the slot's next command.
    next_id: u16,
    /// The slot to hand out after this one; beyond the table when there is none.
    next_free: u16,
}

/// A submission queue and the completion queue of the same id, owned by one CPU.
///
/// Submit: [`write`](Self::write) any number of commands, then [`commit`](Self::commit) once, which rings one doorbell.
/// Complete: [`poll`](Self::poll) until it returns `None`, then [`acknowledge`](Self::acknowledge) once. Acknowledge before
/// long: the controller has room for `entries - 1` completions that were not acknowledged, and stalls beyond.
///
/// The queues' memory belongs to the device until it has given up the queues; so it is only freed by
/// [`Controller::delete_queue_pair`](crate::Controller::delete_queue_pair). A pair that is dropped otherwise leaks its memory.
pub struct QueuePair<M> {
    sq: ManuallyDrop<DmaRing<Command>>,
    cq: ManuallyDrop<DmaRing<CompletionEntry>>,
    /// The registers from each doorbell on, 4 bytes.
    sq_doorbell: M,
    cq_doorbell: M,
    slots: Box<[Slot]>,
    free: u16,
    in_flight: u16,
    id: u16,
    entries: u16,
    sq_tail: u16,
    /// The tail that the controller knows.
    sq_rung: u16,
    cq_head: u16,
    /// The head that the controller knows.
    cq_rung: u16,
    /// [`CompletionEntry::PHASE_BIT`] or 0: the phase of entries that the controller writes in this round.
    phase: u64,
    /// The part of an identifier that is the slot.
    slot_mask: u16,
    capacity: u16,
    vector: Option<u16>,
    counters: QueueCounters,
    controller: Arc<str>,
}

/// What a queue pair is made of.
pub(crate) struct QueueParameters {
    pub controller: Arc<str>,
    pub id: u16,
    pub entries: u16,
    pub vector: Option<u16>,
    pub page_size: usize,
    pub doorbell_stride: usize,
}

impl<M: Mmio> QueuePair<M> {
    /// Allocates both queues; the controller does not know of them yet. The doorbells lie inside `registers`.
    pub(crate) fn new(registers: &M, dma: &Dma, parameters: QueueParameters) -> Result<Self, DmaError> {
        let QueueParameters {
            controller,
            id,
            entries,
            vector,
            page_size,
            doorbell_stride,
        } = parameters;
        debug_assert!(entries >= 2);
        let capacity = (entries - 1).min(MAXIMUM_IN_FLIGHT);
        // One bit more than the largest slot needs where that is all ones: identifier FFFFh must not occur (Base, 3.3.3.1).
        let slot_bits = u16::BITS - capacity.leading_zeros();
        let slots = (0..capacity)
            .map(|index| Slot {
                in_flight: FREE,
                token: 0,
                next_id: index,
                next_free: index + 1,
            })
            .collect();
        let sq = DmaRing::new(dma, entries.into(), page_size)?;
        let cq = DmaRing::new(dma, entries.into(), page_size)?;
        Ok(Self {
            sq: ManuallyDrop::new(sq),
            cq: ManuallyDrop::new(cq),
            sq_doorbell: registers.window(spec::submission_tail_doorbell(id, doorbell_stride), 4),
            cq_doorbell: registers.window(spec::completion_head_doorbell(id, doorbell_stride), 4),
            slots,
            free: 0,
            in_flight: 0,
            id,
            entries,
            sq_tail: 0,
            sq_rung: 0,
            cq_head: 0,
            cq_rung: 0,
            phase: CompletionEntry::PHASE_BIT,
            slot_mask: (1 << slot_bits) - 1,
            capacity,
            vector,
            counters: QueueCounters::default(),
            controller,
        })
    }

    /// The queues' id; 0 is the admin queue.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Entries of each of the two queues.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// The most commands in flight: one less than entries, and at most [`MAXIMUM_IN_FLIGHT`].
    pub fn capacity(&self) -> u16 {
        self.capacity
    }

    /// The interrupt vector of completions; `None` when the queue raises no interrupts.
    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// Commands written and not completed yet.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// What the queue pair did so far.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Puts a command into the submission queue, without telling the controller. `token` comes back with its completion.
    ///
    /// # Errors
    /// [`QueueFull`] when [`capacity`](Self::capacity) commands are in flight.
    #[inline]
    pub fn write(&mut self, command: &Command, token: u32) -> Result<CommandId, QueueFull> {
        let Some(slot) = self.slots.get_mut(usize::from(self.free)) else {
            return Err(QueueFull);
        };
        self.free = slot.next_free;
        let id = slot.next_id;
        slot.in_flight = id.into();
        slot.token = token;
        // With at most entries - 1 commands in flight the tail never reaches the head.
        self.sq.write(
            self.sq_tail.into(),
            &Command {
                command_id: U16::new(id),
                ..*command
            },
        );
        self.sq_tail = following(self.sq_tail, self.entries);
        self.in_flight += 1;
        self.counters.submitted += 1;
        Ok(CommandId(id))
    }

    /// Tells the controller of all commands written since the last call, by one doorbell; does nothing when there are none.
    #[inline]
    pub fn commit(&mut self) {
        if self.sq_tail != self.sq_rung {
            mmio_wmb();
            self.sq_doorbell.write32(0, self.sq_tail.into());
            self.sq_rung = self.sq_tail;
            self.counters.sq_doorbells += 1;
        }
    }

    /// Whether the controller has written the next completion: one look at its phase tag.
    #[inline]
    pub fn is_ready(&self) -> bool {
        (self.cq.read_word(self.cq_head.into(), 1) ^ self.phase) & CompletionEntry::PHASE_BIT == 0
    }

    /// Takes the next completion, if there is one, and frees its command's slot. The controller learns of it by
    /// [`acknowledge`](Self::acknowledge).
    ///
    /// # Errors
    /// A completion that an honest controller cannot have written is counted and skipped, and no slot is freed for it.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, ProtocolViolation> {
        if !self.is_ready() {
            return Ok(None);
        }
        // The phase says that the entry is there; what is read of it from here on is at least as new.
        dma_rmb();
        let head = usize::from(self.cq_head);
        let entry = CompletionEntry::from_words([self.cq.read_word(head, 0), self.cq.read_word(head, 1)]);
        self.cq_head = following(self.cq_head, self.entries);
        if self.cq_head == 0 {
            self.phase ^= CompletionEntry::PHASE_BIT;
        }

        let id = entry.command_id.get();
        let index = id & self.slot_mask;
        match self.slots.get_mut(usize::from(index)) {
            Some(slot)
                if slot.in_flight == u32::from(id)
                    && entry.sq_id.get() == self.id
                    && entry.sq_head.get() < self.entries =>
            {
                slot.in_flight = FREE;
                slot.next_id = id.wrapping_add(self.slot_mask + 1);
                slot.next_free = self.free;
                let token = slot.token;
                self.free = index;
                self.in_flight -= 1;
                self.counters.completed += 1;
                Ok(Some(Completion {
                    token,
                    status: entry.status(),
                    result: entry.result.get(),
                }))
            }
            _ => Err(self.violation(&entry)),
        }
    }

    /// Tells the controller that all completions taken since the last call may be overwritten, by one doorbell; does nothing
    /// when there are none.
    #[inline]
    pub fn acknowledge(&mut self) {
        if self.cq_head != self.cq_rung {
            self.cq_doorbell.write32(0, self.cq_head.into());
            self.cq_rung = self.cq_head;
            self.counters.cq_doorbells += 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn violation(&mut self, entry: &CompletionEntry) -> ProtocolViolation {
        self.counters.violations += 1;
        let id = entry.command_id.get();
        let (sq_id, sq_head) = (entry.sq_id.get(), entry.sq_head.get());
        let kind = match self.slots.get(usize::from(id & self.slot_mask)) {
            None => ViolationKind::UnknownCommand,
            Some(_) if sq_id != self.id => ViolationKind::WrongQueue { sq_id },
            Some(_) if sq_head >= self.entries => ViolationKind::HeadBeyondQueue {
                sq_head,
                entries: self.entries,
            },
            Some(slot) => match u16::try_from(slot.in_flight) {
                Ok(in_flight) => ViolationKind::StaleSequence {
                    in_flight: CommandId(in_flight),
                },
                Err(_) => ViolationKind::NotInFlight,
            },
        };
        ProtocolViolation {
            controller: self.controller.clone(),
            queue: self.id,
            command: CommandId(id),
            kind,
        }
    }

    /// Where the device finds the submission queue.
    pub(crate) fn submission_address(&self) -> IoAddr {
        self.sq.address()
    }

    /// Where the device finds the completion queue.
    pub(crate) fn completion_address(&self) -> IoAddr {
        self.cq.address()
    }

    /// Frees the queues' memory; the device has given them up.
    pub(crate) fn release(self) {
        drop(ManuallyDrop::into_inner(self.sq));
        drop(ManuallyDrop::into_inner(self.cq));
    }
}

impl<M> fmt::Debug for QueuePair<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("controller", &self.controller)
            .field("id", &self.id)
            .field("entries", &self.entries)
            .field("vector", &self.vector)
            .field("in_flight", &self.in_flight)
            .field("sq_tail", &self.sq_tail)
            .field("cq_head", &self.cq_head)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The index after `index` in a ring of `entries`.
#[inline(always)]
const fn following(index: u16, entries: u16) -> u16 {
    let next = index + 1;
    if next == entries { 0 } else { next }
}
