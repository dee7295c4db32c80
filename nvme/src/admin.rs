//! Admin commands, polled one at a time, and the I/O queues that they create.

use alloc::sync::Arc;
use core::time::Duration;

use hal::clock::Clock;
use hal::dma::DmaBuffer;
use hal::mmio::Mmio;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::controller::Controller;
use crate::error::Error;
use crate::events::EVENT_TOKEN;
use crate::queue::{QueuePair, QueueParameters};
use crate::spec::{
    AdminOpcode, Command, ControllerStatus, CreateCompletionQueue, CreateSubmissionQueue, DOORBELLS, DataPointer,
    IDENTIFY_BYTES, IdentifyKind, QueueCounts, completion_head_doorbell,
};

/// How often a wait for a completion looks at CSTS as well: a register read leaves the guest.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

impl<M: Mmio, C: Clock> Controller<M, C> {
    /// Asks for `wanted` I/O queue pairs (Set Features, Number of Queues: Base, 5.27.1.5) and returns how many there are: at
    /// least 1, never more than `wanted`, than the controller grants of either kind, or than there are doorbells for in its
    /// registers. To be called once after start, before the first queue is created.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn request_queues(&mut self, wanted: u16) -> Result<u16, Error> {
        self.settings.queues = wanted.max(1);
        let wanted = u32::from(self.settings.queues);
        let result = self.submit(&Command::set_number_of_queues(QueueCounts {
            submission: wanted,
            completion: wanted,
        }))?;
        let granted = QueueCounts::from_dword(result);
        let pair_of_doorbells = 2 * self.info.capabilities.doorbell_stride();
        let doorbells = ((self.registers.len() - DOORBELLS) / pair_of_doorbells).saturating_sub(1);
        let queues = granted
            .submission
            .min(granted.completion)
            .min(wanted)
            .min(doorbells.try_into().unwrap_or(u32::MAX));
        if queues == 0 {
            return Err(self.window_too_small(1));
        }
        // At most `wanted`, which was a u16.
        self.granted = queues as u16;
        Ok(self.granted)
    }

    /// Creates the I/O queue pair `qid`, 1 to [`queues`](Self::queues), each with `entries` entries, brought into 2 to
    /// CAP.MQES + 1. Completions raise interrupt `vector`; with `None` the queue raises none. Whoever handles the interrupt
    /// is in place before this call.
    ///
    /// # Errors
    /// See [`Error`]. When the submission queue cannot be created, the completion queue is deleted again.
    pub fn create_queue_pair(&mut self, qid: u16, entries: u16, vector: Option<u16>) -> Result<QueuePair<M>, Error> {
        self.check_queue_id(qid)?;
        let capabilities = self.info.capabilities;
        let most = u16::try_from(capabilities.maximum_queue_entries()).unwrap_or(u16::MAX);
        let stride = capabilities.doorbell_stride();
        let parameters = QueueParameters {
            controller: self.name.clone(),
            id: qid,
            entries: entries.clamp(2, most),
            vector,
            page_size: self.info.page_size,
            doorbell_stride: stride,
            shadow: self.shadow.as_ref().and_then(|pages| pages.doorbells(qid, stride)),
        };
        let pair = QueuePair::new(&self.registers, &self.dma, parameters).map_err(self.dma_error())?;
        match self.attach(&pair) {
            Ok(()) => Ok(pair),
            Err(error) => {
                if !self.knows(&pair) {
                    pair.release();
                }
                Err(error)
            }
        }
    }

    pub(crate) fn check_queue_id(&self, qid: u16) -> Result<(), Error> {
        if qid == 0 || qid > self.granted || self.created.iter().any(|(created, _)| *created == qid) {
            let (controller, granted) = (self.name.clone(), self.granted);
            return Err(Error::NoSuchQueue {
                controller,
                queue: qid,
                granted,
            });
        }
        Ok(())
    }

    /// Whether the device may know the queues of this pair.
    pub(crate) fn knows(&self, pair: &QueuePair<M>) -> bool {
        self.created.contains(&(pair.id(), pair.submission_address()))
    }

    /// Has the device create the queues of `pair`, which are empty. After an error, [`knows`](Self::knows) tells whether it
    /// may use them all the same.
    pub(crate) fn attach(&mut self, pair: &QueuePair<M>) -> Result<(), Error> {
        let qid = pair.id();
        pair.clear_shadow();
        self.created.push((qid, pair.submission_address()));
        let completions = CreateCompletionQueue {
            qid,
            entries: pair.entries(),
            address: pair.completion_address(),
            vector: pair.vector(),
        };
        let submissions = CreateSubmissionQueue {
            qid,
            entries: pair.entries(),
            address: pair.submission_address(),
            completion_queue: qid,
        };
        let refused = |error: &Error| matches!(error, Error::Status { .. } | Error::Stopped { .. });
        if let Err(error) = self.submit(&Command::create_completion_queue(&completions)) {
            if refused(&error) {
                self.forget(qid);
            }
            return Err(error);
        }
        if let Err(error) = self.submit(&Command::create_submission_queue(&submissions)) {
            // Without the second, the completion queue may still be the device's.
            if refused(&error) && self.submit(&Command::delete_completion_queue(qid)).is_ok() {
                self.forget(qid);
            }
            return Err(error);
        }
        Ok(())
    }

    fn forget(&mut self, qid: u16) {
        self.created.retain(|(created, _)| *created != qid);
    }

    /// Deletes both queues and frees their memory. Commands in flight are lost: their completions are not seen any more.
    /// Queues that a reset took away, and that were not created again, are only freed.
    ///
    /// # Errors
    /// See [`Error`]. The queues' memory is then not freed, as the device may still use it.
    pub fn delete_queue_pair(&mut self, pair: QueuePair<M>) -> Result<(), Error> {
        self.check_owner(&pair)?;
        if self.knows(&pair) {
            self.submit(&Command::delete_submission_queue(pair.id()))?;
            self.submit(&Command::delete_completion_queue(pair.id()))?;
            self.forget(pair.id());
        }
        pair.release();
        Ok(())
    }

    /// A pair of another controller is none of ours, whatever its id.
    pub(crate) fn check_owner(&self, pair: &QueuePair<M>) -> Result<(), Error> {
        if Arc::ptr_eq(pair.controller(), &self.name) {
            Ok(())
        } else {
            Err(Error::NoSuchQueue {
                controller: self.name.clone(),
                queue: pair.id(),
                granted: self.granted,
            })
        }
    }

    /// Reads an identify data structure.
    pub(crate) fn identify<T: FromBytes + IntoBytes + KnownLayout>(
        &mut self,
        kind: IdentifyKind,
        nsid: u32,
    ) -> Result<T, Error> {
        const { assert!(size_of::<T>() <= IDENTIFY_BYTES) };
        let data = self.data_page(AdminOpcode::IDENTIFY)?;
        self.submit(&Command::identify(kind, nsid, data))?;
        let (_, page) = self.admin(AdminOpcode::IDENTIFY)?;
        Ok(page.read(0))
    }

    /// Points at the page for data of an admin command, 4096 bytes, zeroed: a device that writes nothing must not show
    /// earlier data again.
    pub(crate) fn data_page(&mut self, command: AdminOpcode) -> Result<DataPointer, Error> {
        let (_, page) = self.admin(command)?;
        page.clear();
        Ok(DataPointer::within_page(page.address()))
    }

    pub(crate) fn admin(&mut self, command: AdminOpcode) -> Result<&mut (QueuePair<M>, DmaBuffer), Error> {
        let stopped = |reason| Error::Stopped {
            controller: self.name.clone(),
            command,
            reason,
        };
        match (self.stopped, &mut self.admin) {
            (Some(reason), _) => Err(stopped(reason)),
            (None, Some(admin)) => Ok(admin),
            (None, None) => Err(stopped("the controller is not enabled")),
        }
    }

    /// Sends an admin command and waits for its completion; returns dword 0 of it.
    ///
    /// After anything but an error status the admin queue is not used any more: a late completion or a late transfer into
    /// the data page must not be taken for those of another command.
    pub(crate) fn submit(&mut self, command: &Command) -> Result<u32, Error> {
        let result = self.submit_and_wait(command);
        self.stop_after(result)
    }

    pub(crate) fn stop_after<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Ok(_) | Err(Error::Status { .. } | Error::Stopped { .. }) => {}
            Err(_) => self.stopped = Some("an earlier admin command failed for good"),
        }
        result
    }

    fn submit_and_wait(&mut self, command: &Command) -> Result<u32, Error> {
        let opcode = AdminOpcode(command.opcode);
        let after = self.config.command_timeout;
        let deadline = self.clock.deadline(after);
        let mut next_look = self.clock.deadline(STATUS_INTERVAL);

        let (pair, _) = self.admin(opcode)?;
        // One command at a time, and event requests leave it its place, so that there is always room.
        if pair.write(command, opcode.0.into()).is_err() {
            return Err(self.expired(opcode, after));
        }
        pair.commit();
        loop {
            let now = self.clock.ticks();
            let (pair, _) = self.admin(opcode)?;
            if let Some(completion) = pair.poll()? {
                pair.acknowledge();
                if completion.token == EVENT_TOKEN {
                    // At most as often as requests are outstanding.
                    self.note_event(&completion);
                    continue;
                }
                return if completion.status.is_success() {
                    Ok(completion.result)
                } else {
                    let (controller, status) = (self.name.clone(), completion.status);
                    Err(Error::Status {
                        controller,
                        command: opcode,
                        status,
                    })
                };
            }
            if now >= deadline {
                return Err(self.expired(opcode, after));
            }
            if now >= next_look {
                self.check_status()?;
                next_look = self.clock.deadline(STATUS_INTERVAL);
            }
            core::hint::spin_loop();
        }
    }

    /// Why a command did not end: a dead controller says more than a timeout does.
    fn expired(&self, command: AdminOpcode, after: Duration) -> Error {
        match self.status() {
            Err(gone) => gone,
            Ok(status) if status.contains(ControllerStatus::FATAL) => self.fatal(status),
            Ok(_) => Error::Timeout {
                controller: self.name.clone(),
                command,
                after,
            },
        }
    }

    fn window_too_small(&self, qid: u16) -> Error {
        Error::WindowTooSmall {
            controller: self.name.clone(),
            what: "the first I/O queue",
            needed: completion_head_doorbell(qid, self.info.capabilities.doorbell_stride()) + 4,
            length: self.registers.len(),
        }
    }
}
