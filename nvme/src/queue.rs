//! A submission queue and its completion queue: the hot path.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::mem::ManuallyDrop;

use hal::barrier::{dma_rmb, mmio_wmb};
use hal::dma::{Dma, DmaError, DmaRing, IoAddr};
use hal::mmio::Mmio;
use thiserror::Error;

use crate::error::{ProtocolViolation, ViolationKind};
use crate::shadow::ShadowDoorbells;
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
    /// Commands that a controller reset took away.
    pub lost: u64,
    /// Completions that broke the protocol.
    pub violations: u64,
    /// Doorbells of either queue that only moved in memory: the controller did not ask to be told (shadow doorbells).
    pub doorbells_saved: u64,
}

/// Set in [`Slot::command`] while no command is in flight: beyond every identifier, so that no completion matches it.
const FREE: u32 = 1 << 16;

/// A place for one command in flight. The slot's index is the low part of its commands' identifiers, and the high part is a
/// sequence that moves on with each use, so that a completion of an earlier use is found out.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Slot {
    /// The identifier in flight; or [`FREE`], and the identifier of the slot's next command.
    command: u32,
    token: u32,
    /// The slot to hand out after this one; beyond the table when there is none.
    next_free: u32,
    /// [`QueuePair::set_epoch`]'s value when the command was written.
    epoch: u32,
}

/// A submission queue and the completion queue of the same id, owned by one CPU.
///
/// Submit: [`write`](Self::write) any number of commands, then [`commit`](Self::commit) once, which rings one doorbell.
/// Complete: [`poll`](Self::poll) until it returns `None`, then [`acknowledge`](Self::acknowledge) once. Acknowledge before
/// long: the controller has room for `entries - 1` completions that were not acknowledged, and stalls beyond.
///
/// Deadlines: the owner tells the time by [`set_epoch`](Self::set_epoch), about ten times a second, and asks for what is
/// [`overdue`](Self::overdue) as often.
///
/// The queues' memory belongs to the device until it has given up the queues; so it is only freed by
/// [`Controller::delete_queue_pair`](crate::Controller::delete_queue_pair). A pair that is dropped otherwise leaks its memory.
pub struct QueuePair<M> {
    sq: ManuallyDrop<DmaRing<Command>>,
    cq: ManuallyDrop<DmaRing<CompletionEntry>>,
    /// The registers from each doorbell on, 4 bytes.
    sq_doorbell: M,
    cq_doorbell: M,
    shadow: Option<ShadowDoorbells>,
    slots: Box<[Slot]>,
    /// The slot to hand out next.
    free: u32,
    sq_tail: u32,
    /// The tail that the controller knows.
    sq_rung: u32,
    cq_head: u32,
    /// The head that the controller knows.
    cq_rung: u32,
    entries: u32,
    /// The part of an identifier that is the slot.
    slot_mask: u32,
    /// [`CompletionEntry::PHASE_BIT`] or 0: the phase of entries that the controller writes in this round.
    phase: u64,
    epoch: u32,
    counters: QueueCounters,
    id: u16,
    capacity: u16,
    vector: Option<u16>,
    controller: Arc<str>,
    /// Tokens of commands that a reset took away, until somebody asks for them.
    lost: Vec<u32>,
}

/// What a queue pair is made of.
pub(crate) struct QueueParameters {
    pub controller: Arc<str>,
    pub id: u16,
    pub entries: u16,
    pub vector: Option<u16>,
    pub page_size: usize,
    pub doorbell_stride: usize,
    pub shadow: Option<ShadowDoorbells>,
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
            shadow,
        } = parameters;
        debug_assert!(entries >= 2);
        let capacity = (entries - 1).min(MAXIMUM_IN_FLIGHT);
        // One bit more than the largest slot needs where that is all ones: identifier FFFFh must not occur (Base, 3.3.3.1).
        let slot_bits = u16::BITS - capacity.leading_zeros();
        let slots = (0..u32::from(capacity))
            .map(|index| Slot {
                command: FREE | index,
                token: 0,
                next_free: index + 1,
                epoch: 0,
            })
            .collect();
        let sq = DmaRing::new(dma, entries.into(), page_size)?;
        let cq = DmaRing::new(dma, entries.into(), page_size)?;
        Ok(Self {
            sq: ManuallyDrop::new(sq),
            cq: ManuallyDrop::new(cq),
            sq_doorbell: registers.window(spec::submission_tail_doorbell(id, doorbell_stride), 4),
            cq_doorbell: registers.window(spec::completion_head_doorbell(id, doorbell_stride), 4),
            shadow,
            slots,
            free: 0,
            sq_tail: 0,
            sq_rung: 0,
            cq_head: 0,
            cq_rung: 0,
            entries: entries.into(),
            slot_mask: (1 << slot_bits) - 1,
            phase: CompletionEntry::PHASE_BIT,
            epoch: 0,
            counters: QueueCounters::default(),
            id,
            capacity,
            vector,
            controller,
            lost: Vec::new(),
        })
    }

    /// The queues' id; 0 is the admin queue.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Entries of each of the two queues.
    pub fn entries(&self) -> u16 {
        self.entries as u16
    }

    /// The most commands in flight: one less than entries, and at most [`MAXIMUM_IN_FLIGHT`].
    pub fn capacity(&self) -> u16 {
        self.capacity
    }

    /// The interrupt vector of completions; `None` when the queue raises no interrupts.
    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// Commands written and not completed yet; those that a reset took away are not among them.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        (self.counters.submitted - self.counters.completed - self.counters.lost) as u16
    }

    /// Whether there is room for one more command: whether [`write`](Self::write) would take it.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        (self.free as usize) < self.slots.len()
    }

    /// Whether doorbells move in memory first ([`Controller::enable_shadow_doorbells`](crate::Controller::enable_shadow_doorbells)).
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadow.is_some()
    }

    /// Tells the time, in steps of the owner's choice that may wrap around: commands written from now on carry it.
    #[inline]
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// The commands in flight that were written at epoch `limit` or before, with their tokens. Look for completions first:
    /// one whose interrupt was lost is in the queue already.
    pub fn overdue(&self, limit: u32) -> impl Iterator<Item = (CommandId, u32)> + '_ {
        self.slots
            .iter()
            .filter(move |slot| slot.command & FREE == 0 && limit.wrapping_sub(slot.epoch).cast_signed() >= 0)
            .map(|slot| (CommandId(slot.command as u16), slot.token))
    }

    /// Takes the tokens of the commands that were in flight when [`Controller::recreate`](crate::Controller::recreate) gave
    /// this pair new queues: they will not complete any more, and the owner decides which to write again. Each is told once.
    pub fn take_lost(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.lost)
    }

    /// What the queue pair did so far.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Puts a command into the submission queue, without telling the controller. `token` comes back with its completion.
    ///
    /// # Errors
    /// [`QueueFull`] when [`capacity`](Self::capacity) commands are in flight.
    #[inline(always)]
    pub fn write(&mut self, command: &Command, token: u32) -> Result<CommandId, QueueFull> {
        let Some(slot) = self.slots.get_mut(self.free as usize) else {
            return Err(QueueFull);
        };
        self.free = slot.next_free;
        slot.command &= !FREE;
        slot.token = token;
        slot.epoch = self.epoch;
        let id = slot.command as u16;
        // With at most entries - 1 commands in flight the tail never reaches the head.
        self.sq
            .write_with(self.sq_tail as usize, command.first_word(CommandId(id)), command);
        self.sq_tail = following(self.sq_tail, self.entries);
        self.counters.submitted += 1;
        Ok(CommandId(id))
    }

    /// Tells the controller of all commands written since the last call, by one doorbell; does nothing when there are none.
    #[inline(always)]
    pub fn commit(&mut self) {
        if self.sq_tail != self.sq_rung {
            let old = core::mem::replace(&mut self.sq_rung, self.sq_tail);
            if let Some(shadow) = &self.shadow
                && !shadow.sq.ring(old, self.sq_tail)
            {
                self.counters.doorbells_saved += 1;
                return;
            }
            mmio_wmb();
            self.sq_doorbell.write32(0, self.sq_tail);
            self.counters.sq_doorbells += 1;
        }
    }

    /// Whether the controller has written the next completion: one look at its phase tag.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        (self.cq.read_word(self.cq_head as usize, 1) ^ self.phase) & CompletionEntry::PHASE_BIT == 0
    }

    /// Takes the next completion, if there is one, and frees its command's slot. The controller learns of it by
    /// [`acknowledge`](Self::acknowledge).
    ///
    /// # Errors
    /// A completion that an honest controller cannot have written is counted and skipped, and no slot is freed for it.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>, ProtocolViolation> {
        let head = self.cq_head;
        let entry = self.cq.at(head as usize);
        if (entry.word::<1>() ^ self.phase) & CompletionEntry::PHASE_BIT != 0 {
            return Ok(None);
        }
        // The phase says that the entry is there; what is read of it from here on is at least as new.
        dma_rmb();
        let words = [entry.word::<0>(), entry.word::<1>()];
        self.cq_head = following(head, self.entries);
        if self.cq_head == 0 {
            self.phase ^= CompletionEntry::PHASE_BIT;
        }

        // By words, as this is the hottest place; `CompletionEntry` names the fields.
        let id = (words[1] >> 32) as u32 & 0xffff;
        let index = id & self.slot_mask;
        // SQID and SQHD in one comparison: SQHD is what is left of them when SQID is ours, and more than any queue if not.
        let sq_head = (words[1] as u32).wrapping_sub(u32::from(self.id) << 16);
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.command == id && sq_head < self.entries => {
                slot.command = FREE | (id + self.slot_mask + 1) & 0xffff;
                slot.next_free = self.free;
                let token = slot.token;
                self.free = index;
                self.counters.completed += 1;
                let status = Status::from_bits((words[1] >> 49) as u16);
                Ok(Some(Completion {
                    token,
                    status,
                    result: words[0] as u32,
                }))
            }
            _ => Err(self.violation(words)),
        }
    }

    /// Tells the controller that all completions taken since the last call may be overwritten, by one doorbell; does nothing
    /// when there are none.
    #[inline(always)]
    pub fn acknowledge(&mut self) {
        if self.cq_head != self.cq_rung {
            let old = core::mem::replace(&mut self.cq_rung, self.cq_head);
            if let Some(shadow) = &self.shadow
                && !shadow.cq.ring(old, self.cq_head)
            {
                self.counters.doorbells_saved += 1;
                return;
            }
            self.cq_doorbell.write32(0, self.cq_head);
            self.counters.cq_doorbells += 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn violation(&mut self, words: [u64; 2]) -> ProtocolViolation {
        self.counters.violations += 1;
        let entry = CompletionEntry::from_words(words);
        let id = entry.command_id.get();
        let (sq_id, sq_head) = (entry.sq_id.get(), entry.sq_head.get());
        let kind = match self.slots.get((u32::from(id) & self.slot_mask) as usize) {
            None => ViolationKind::UnknownCommand,
            Some(_) if sq_id != self.id => ViolationKind::WrongQueue { sq_id },
            Some(_) if u32::from(sq_head) >= self.entries => ViolationKind::HeadBeyondQueue {
                sq_head,
                entries: self.entries(),
            },
            Some(slot) if slot.command & FREE != 0 => ViolationKind::NotInFlight,
            Some(slot) => ViolationKind::StaleSequence {
                in_flight: CommandId(slot.command as u16),
            },
        };
        ProtocolViolation {
            controller: self.controller.clone(),
            queue: self.id,
            command: CommandId(id),
            kind,
        }
    }

    /// Begins anew with empty queues in the same memory, which the device has given up. What was in flight is lost; the
    /// sequences of identifiers go on, so that a completion of before is still found out.
    pub(crate) fn restart(&mut self, shadow: Option<ShadowDoorbells>) {
        self.sq.clear();
        self.cq.clear();
        for (slot, index) in self.slots.iter_mut().zip(0u32..) {
            if slot.command & FREE == 0 {
                self.lost.push(slot.token);
                self.counters.lost += 1;
                slot.command = FREE | (slot.command + self.slot_mask + 1) & 0xffff;
            }
            slot.next_free = index + 1;
        }
        self.free = 0;
        (self.sq_tail, self.sq_rung, self.cq_head, self.cq_rung) = (0, 0, 0, 0);
        self.phase = CompletionEntry::PHASE_BIT;
        self.shadow = shadow;
    }

    /// Forgets what an earlier queue of this id left in the shadow doorbells.
    pub(crate) fn clear_shadow(&self) {
        if let Some(shadow) = &self.shadow {
            shadow.clear();
        }
    }

    /// The controller's name, the very one that its [`Controller`](crate::Controller) has.
    pub(crate) fn controller(&self) -> &Arc<str> {
        &self.controller
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
            .field("sq_tail", &self.sq_tail)
            .field("cq_head", &self.cq_head)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The index after `index` in a ring of `entries`.
#[inline(always)]
const fn following(index: u32, entries: u32) -> u32 {
    let next = index + 1;
    if next == entries { 0 } else { next }
}
