//! Recovery: abort a command, reset the controller, give queue pairs new queues, and know what may be sent again.
//!
//! The steps, for commands that are [`overdue`](QueuePair::overdue):
//!
//! 1. Look at the queue: a completion whose interrupt was lost is there already.
//! 2. [`Controller::abort`] each, and wait a little for its completion.
//! 3. [`Controller::reset`], while no CPU touches any queue pair of the controller.
//! 4. [`Controller::recreate`] each queue pair, and write again, out of [`QueuePair::take_lost`], what [`Reissue`] allows.
//!
//! A controller may be shared among the CPUs that own its queue pairs, behind a lock: a pair is only touched by the call that
//! it is given to.

use alloc::boxed::Box;
use core::time::Duration;

use hal::clock::Clock;
use hal::mmio::Mmio;

use crate::controller::Controller;
use crate::error::Error;
use crate::queue::QueuePair;
use crate::spec::{
    Capabilities, Command, CommandId, ControllerStatus, NvmOpcode, Register, SUBSYSTEM_RESET, abort_succeeded,
};

/// How often the device's place on the bus is restored while it does not answer after a subsystem reset.
const RESTORE_INTERVAL: Duration = Duration::from_millis(100);

/// Which commands may be sent again after a reset, when nobody knows whether they were executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reissue {
    /// Those that change nothing: Read, Compare, Verify, Flush.
    Reads,
    /// Also those that change the same blocks in the same way when they come twice: Write, Write Zeroes, Dataset Management.
    /// Safe as long as nobody else wrote to these blocks meanwhile.
    ReadsAndWrites,
}

impl Reissue {
    /// Whether a command with this opcode may be sent again. One that is not known may not.
    pub const fn allows(self, opcode: NvmOpcode) -> bool {
        match opcode {
            NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY | NvmOpcode::FLUSH => true,
            NvmOpcode::WRITE | NvmOpcode::WRITE_ZEROES | NvmOpcode::DATASET_MANAGEMENT => {
                matches!(self, Self::ReadsAndWrites)
            }
            _ => false,
        }
    }
}

impl<M: Mmio, C: Clock> Controller<M, C> {
    /// Asks the controller to abort a command (Base, 5.1). True when it did: the command is completed as aborted. False when
    /// it could not: the command was completed already, or is being executed. One at a time, so within any ACL.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn abort(&mut self, queue: u16, command: CommandId) -> Result<bool, Error> {
        self.submit(&Command::abort(queue, command)).map(abort_succeeded)
    }

    /// Resets the controller (CC.EN = 0) and brings it up again as it was: number of queues, features, event requests and
    /// shadow doorbells. One that does not even answer this is reset with its NVM subsystem, where it can (NSSR). What fails
    /// is tried again, as long as fewer than [`Config::max_resets`](crate::Config::max_resets) resets were made lately
    /// ([`Config::resets_forgotten_after`](crate::Config::resets_forgotten_after)). Each wait is bounded by CAP.TO.
    ///
    /// No CPU may use a queue pair of this controller from this call on, until it was [recreated](Self::recreate).
    ///
    /// # Errors
    /// [`Error::Gone`], or [`Error::ResetsExhausted`] with what the last try met. What was in flight never completes then.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.reset_with(|| {})
    }

    /// As [`reset`](Self::reset). A subsystem reset may take the device's configuration space with it: `restore` puts that
    /// back (memory decoding, bus mastering, BARs, MSI-X). It is called after such a reset, again and again while the
    /// registers do not answer.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    pub fn reset_with(&mut self, mut restore: impl FnMut()) -> Result<(), Error> {
        let mut last = None;
        if self.clock.ticks() > self.resets_count_until && self.stopped.is_none() {
            self.recent_resets = 0;
        }
        while self.recent_resets < self.config.max_resets {
            self.resets += 1;
            self.recent_resets += 1;
            match self.try_reset(&mut restore) {
                Ok(()) => {
                    self.resets_count_until = self.clock.deadline(self.config.resets_forgotten_after);
                    return Ok(());
                }
                Err(error) => {
                    self.stopped = Some("a reset of the controller failed");
                    if matches!(error, Error::Gone { .. }) {
                        return Err(error);
                    }
                    log::warn!(
                        "{error}; that was reset {} of {}",
                        self.recent_resets,
                        self.config.max_resets
                    );
                    last = Some(error);
                }
            }
        }
        self.stopped = Some("the controller was given up");
        Err(Error::ResetsExhausted {
            controller: self.name.clone(),
            resets: self.recent_resets,
            last: last.map(Box::new),
        })
    }

    fn try_reset(&mut self, restore: &mut impl FnMut()) -> Result<(), Error> {
        self.stopped = Some("the controller is being reset");
        self.silence(restore)?;
        // RDY = 0: the device has given up all queues and all memory.
        self.created.clear();
        self.events.restart();
        if let Some((pair, _)) = &mut self.admin {
            pair.restart(None);
            drop(pair.take_lost());
        }
        self.enable()?;
        self.stopped = None;
        self.identify_controller()?;
        self.restore_settings()
    }

    /// Makes the device stop: by CC.EN, or by a reset of its subsystem.
    fn silence(&mut self, restore: &mut impl FnMut()) -> Result<(), Error> {
        let error = match self.disable() {
            Err(error) if !matches!(error, Error::Gone { .. }) => error,
            result => return result,
        };
        if !self.info.capabilities.contains(Capabilities::SUBSYSTEM_RESET) {
            return Err(error);
        }
        log::warn!("{error}; resetting the NVM subsystem");
        self.registers.write32(Register::Nssr.offset(), SUBSYSTEM_RESET);
        let deadline = self.clock.deadline(self.info.ready_timeout);
        let mut next_restore = 0;
        loop {
            let now = self.clock.ticks();
            if now >= next_restore {
                restore();
                next_restore = self.clock.deadline(RESTORE_INTERVAL);
            }
            match self.status() {
                Ok(status) if !status.contains(ControllerStatus::READY) => return Ok(()),
                result if now >= deadline => return result.and(Err(error)),
                _ => core::hint::spin_loop(),
            }
        }
    }

    /// Gives a queue pair that a [reset](Self::reset) took away new queues, of the same id, vector and size, in the same
    /// memory. What was in flight is lost, completions that nobody looked at included: see [`QueuePair::take_lost`].
    ///
    /// # Errors
    /// [`Error::NoSuchQueue`] when the controller granted fewer queues than before, or the pair was recreated already; else
    /// see [`Error`]. After one the pair must not be used: reset again, or delete it.
    pub fn recreate(&mut self, pair: &mut QueuePair<M>) -> Result<(), Error> {
        self.check_owner(pair)?;
        if !self.knows(pair) {
            let stride = self.info.capabilities.doorbell_stride();
            let shadow = self
                .shadow
                .as_ref()
                .and_then(|pages| pages.doorbells(pair.id(), stride));
            pair.restart(shadow);
        }
        self.check_queue_id(pair.id())?;
        self.attach(pair)?;
        self.restore_vector(pair.vector())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_nothing_is_sent_again_unless_told() {
        for opcode in 0..=u8::MAX {
            let reads = Reissue::Reads.allows(NvmOpcode(opcode));
            let writes = Reissue::ReadsAndWrites.allows(NvmOpcode(opcode));
            assert_eq!(reads, matches!(opcode, 0 | 2 | 5 | 0xc), "{opcode:#x}");
            assert_eq!(writes, reads || matches!(opcode, 1 | 8 | 9), "{opcode:#x}");
        }
    }
}
