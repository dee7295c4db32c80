//! Admin commands, polled one at a time, and the I/O queues that they create.

use core::time::Duration;

use hal::clock::Clock;
use hal::dma::DmaBuffer;
use hal::mmio::Mmio;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::controller::Controller;
use crate::error::Error;
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
        let wanted = u32::from(wanted.max(1));
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
        if qid == 0 || qid > self.granted || self.created.contains(&qid) {
            let (controller, granted) = (self.name.clone(), self.granted);
            return Err(Error::NoSuchQueue {
                controller,
                queue: qid,
                granted,
            });
        }
        let capabilities = self.info.capabilities;
        let most = u16::try_from(capabilities.maximum_queue_entries()).unwrap_or(u16::MAX);
        let entries = entries.clamp(2, most);
        let parameters = QueueParameters {
            controller: self.name.clone(),
            id: qid,
            entries,
            vector,
            page_size: self.info.page_size,
            doorbell_stride: capabilities.doorbell_stride(),
        };
        let pair = QueuePair::new(&self.registers, &self.dma, parameters).map_err(self.dma_error())?;
        let completions = CreateCompletionQueue {
            qid,
            entries,
            address: pair.completion_address(),
            vector,
        };
        if let Err(error) = self.submit(&Command::create_completion_queue(&completions)) {
            return Err(given_up(pair, error));
        }
        let submissions = CreateSubmissionQueue {
            qid,
            entries,
            address: pair.submission_address(),
            completion_queue: qid,
        };
        if let Err(error) = self.submit(&Command::create_submission_queue(&submissions)) {
            return Err(match self.submit(&Command::delete_completion_queue(qid)) {
                Ok(_) => given_up(pair, error),
                // The completion queue may still be the device's: its memory stays allocated.
                Err(_) => error,
            });
        }
        self.created.push(qid);
        Ok(pair)
    }

    /// Deletes both queues and frees their memory. Commands in flight are lost: their completions are not seen any more.
    ///
    /// # Errors
    /// See [`Error`]. The queues' memory is then not freed, as the device may still use it.
    pub fn delete_queue_pair(&mut self, pair: QueuePair<M>) -> Result<(), Error> {
        self.submit(&Command::delete_submission_queue(pair.id()))?;
        self.submit(&Command::delete_completion_queue(pair.id()))?;
        self.created.retain(|&qid| qid != pair.id());
        pair.release();
        Ok(())
    }

    /// Reads an identify data structure.
    pub(crate) fn identify<T: FromBytes + IntoBytes + KnownLayout>(
        &mut self,
        kind: IdentifyKind,
        nsid: u32,
    ) -> Result<T, Error> {
        const { assert!(size_of::<T>() <= IDENTIFY_BYTES) };
        let (_, page) = self.admin(AdminOpcode::IDENTIFY)?;
        // A device that writes nothing must not show an earlier structure again.
        page.clear();
        let data = DataPointer::within_page(page.address());
        self.submit(&Command::identify(kind, nsid, data))?;
        let (_, page) = self.admin(AdminOpcode::IDENTIFY)?;
        Ok(page.read(0))
    }

    fn admin(&mut self, command: AdminOpcode) -> Result<&mut (QueuePair<M>, DmaBuffer), Error> {
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
    fn submit(&mut self, command: &Command) -> Result<u32, Error> {
        let result = self.submit_and_wait(command);
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
        // One command at a time, so that there is always room.
        if pair.write(command, opcode.0.into()).is_err() {
            return Err(self.expired(opcode, after));
        }
        pair.commit();
        loop {
            let now = self.clock.ticks();
            let (pair, _) = self.admin(opcode)?;
            if let Some(completion) = pair.poll()? {
                pair.acknowledge();
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

/// Frees the memory of queues that the device refused, and only then; returns the reason.
fn given_up<M: Mmio>(pair: QueuePair<M>, error: Error) -> Error {
    if matches!(error, Error::Status { .. } | Error::Stopped { .. }) {
        pair.release();
    }
    error
}
