//! What happens when completions do not come: look, abort, reset the controller, issue again, or give up with a reason.
//!
//! Queue pairs belong to CPUs, and a controller reset takes them all away at once. So all CPUs that own a queue pair of the
//! controller come to a [`Standstill`] first. One of them, the conductor, resets; then each makes its own queue pairs anew and
//! issues again what may be issued again. Every wait here has a bound.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use core::time::Duration;

use hal::clock::Clock;
use hal::mmio::MmioRegion;
use nvme::{CommandId, Controller, Owner, Standstill};
use spin::{Mutex, MutexGuard};
use workload::report::{Failure, Recovery};

use super::{Engine, RUN, protocol, run_failure};
use crate::arch::MachineClock;
use crate::cpu::Cpu;

/// An interrupt that is this much later than its completion does not come any more.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// A queue without a completion for this long is reason to ask the controller how it is.
const CONCERN: Duration = Duration::from_secs(1);
/// What an Abort is given to take effect.
const ABORT_GRACE: Duration = Duration::from_secs(1);
/// Aborts sent for one queue before it is the controller's turn to be reset.
const ABORTS: usize = 4;
/// How long CPUs may take to come to a stop, or to make their queues anew.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why a controller is reset whose commands do not complete.
const TOO_LATE: &str = "its commands take longer than command_timeout allows";

/// One recovery at a time: two conductors would wait for each other to stop.
static CONDUCTED: AtomicBool = AtomicBool::new(false);

/// A controller as all CPUs share it. Its queue pairs are not here: they belong to the CPUs.
pub struct SharedController {
    /// `nvme0`.
    pub name: String,
    controller: Mutex<Controller<MmioRegion, MachineClock>>,
    standstill: Standstill,
    timeouts: AtomicU64,
    aborts: AtomicU64,
    reissued: AtomicU64,
}

impl SharedController {
    /// Shares a controller that is up.
    pub const fn new(name: String, controller: Controller<MmioRegion, MachineClock>) -> Self {
        Self {
            name,
            controller: Mutex::new(controller),
            standstill: Standstill::new(),
            timeouts: AtomicU64::new(0),
            aborts: AtomicU64::new(0),
            reissued: AtomicU64::new(0),
        }
    }

    /// The controller itself. Whoever has it sends admin commands, which all end in bounded time.
    pub fn lock(&self) -> MutexGuard<'_, Controller<MmioRegion, MachineClock>> {
        self.controller.lock()
    }

    /// What was done.
    pub fn recovery(&self) -> Recovery {
        Recovery {
            timeouts: self.timeouts.load(Relaxed),
            aborts: self.aborts.load(Relaxed),
            resets: u64::from(self.lock().resets()),
            reissued: self.reissued.load(Relaxed),
        }
    }
}

/// How far the recovery of a queue has come.
#[derive(Default)]
pub struct QueueState {
    /// When completions last came, or the queue last was empty.
    pub moved: u64,
    /// Since when completions lie there of which no interrupt has told.
    pub suspect_since: Option<u64>,
    /// Aborts were sent; until when they may take effect.
    abort_deadline: Option<u64>,
}

/// A controller, as the CPU knows it that owns queue pairs of it.
pub struct OwnedController {
    shared: Arc<SharedController>,
    owner: Owner,
}

impl OwnedController {
    /// From here on this CPU takes part in each reset, until it [leaves](Self::leave).
    pub fn enter(shared: &Arc<SharedController>) -> Self {
        Self {
            shared: shared.clone(),
            owner: shared.standstill.enter(),
        }
    }

    /// This CPU's queue pairs are at rest from here on: a reset does not wait for it.
    pub fn leave(self) {
        self.shared.standstill.leave(self.owner);
    }

    /// Whether it is this one.
    pub fn is(&self, shared: &Arc<SharedController>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Engine {
    /// Looks at each queue whose completions are late. Called ten times a second.
    pub(super) fn look_for_lost(&mut self, cpu: &Cpu, now: u64) -> Result<(), Failure> {
        self.epoch = self.epoch.wrapping_add(1);
        for number in 0..self.controllers.len() {
            self.join_recovery(number, cpu)?;
        }
        if self.controllers.iter().any(|owned| owned.owner.is_stopped()) {
            // The run ends before the reset does: these queue pairs are not this CPU's to look at.
            return Ok(());
        }
        for number in 0..self.queues.len() {
            let queue = &mut self.queues[number];
            queue.pair.set_epoch(self.epoch);
            if queue.pair.in_flight() == 0 {
                queue.state.moved = now;
                queue.state.suspect_since = None;
                continue;
            }
            if self.wait.uses_interrupts() && queue.pair.is_ready() && !cpu.any_ready() {
                // Once may be chance: the interrupt is on its way. A while later it is lost.
                let since = *queue.state.suspect_since.get_or_insert(now);
                if now.saturating_sub(since) >= self.rate.ticks(LOST_AFTER) {
                    queue.state.suspect_since = None;
                    let found = self.reap(number)?;
                    self.queues[number].missed += found as u64;
                }
                continue;
            }
            queue.state.suspect_since = None;
            if now.saturating_sub(queue.state.moved) > self.rate.ticks(CONCERN) {
                let status = queue.shared.lock().check_status();
                match status {
                    Ok(()) => {}
                    Err(error @ nvme::Error::FatalStatus { .. }) => {
                        log::warn!("{error}");
                        self.recover(number, cpu, &error.to_string())?;
                        continue;
                    }
                    Err(error) => return Err(run_failure(error.to_string())),
                }
            }
            self.end_overdue(number, cpu, now)?;
        }
        Ok(())
    }

    /// Commands that take longer than the job allows: abort them, and reset the controller if that does not end them.
    fn end_overdue(&mut self, number: usize, cpu: &Cpu, now: u64) -> Result<(), Failure> {
        let queue = &mut self.queues[number];
        let limit = self.epoch.wrapping_sub(self.timeout_epochs);
        let overdue: Vec<CommandId> = queue.pair.overdue(limit).map(|late| late.0).take(ABORTS).collect();
        if overdue.is_empty() {
            queue.state.abort_deadline = None;
            return Ok(());
        }
        match queue.state.abort_deadline {
            Some(deadline) if now < deadline => Ok(()),
            Some(_) => self.recover(number, cpu, TOO_LATE),
            None => {
                let id = queue.pair.id();
                let shared = queue.shared.clone();
                log::warn!(
                    "{} queue {id}: commands are too late; aborting {}",
                    shared.name,
                    overdue.len()
                );
                shared.timeouts.fetch_add(overdue.len() as u64, Relaxed);
                for command in overdue {
                    shared.aborts.fetch_add(1, Relaxed);
                    // Not in the condition, where the lock would be held for the whole block.
                    let aborted = shared.lock().abort(id, command);
                    if let Err(error) = aborted {
                        log::warn!("{error}");
                        return self.recover(number, cpu, TOO_LATE);
                    }
                }
                self.queues[number].state.abort_deadline = Some(MachineClock.deadline(ABORT_GRACE));
                Ok(())
            }
        }
    }

    /// Resets a queue's controller, unless another CPU is at it, or at another controller: then the next look up tells more.
    fn recover(&mut self, number: usize, cpu: &Cpu, why: &str) -> Result<(), Failure> {
        let shared = self.queues[number].shared.clone();
        let Some(owned) = self.controllers.iter().find(|owned| owned.is(&shared)) else {
            return Ok(());
        };
        if CONDUCTED.swap(true, AcqRel) {
            return Ok(());
        }
        if !shared.standstill.conduct(&owned.owner) {
            CONDUCTED.store(false, Release);
            return Ok(());
        }
        log::warn!("{}: resetting the controller", shared.name);
        wait(cpu, &shared.name, "stop", || shared.standstill.all_stopped())?;
        shared
            .lock()
            .reset()
            .map_err(|error| run_failure(format!("{error}: {why}")))?;
        shared.standstill.resume();
        self.recreate(&shared)?;
        wait(cpu, &shared.name, "make their queues anew", || {
            shared.standstill.all_resumed()
        })?;
        shared.standstill.end();
        CONDUCTED.store(false, Release);
        Ok(())
    }

    /// Stops, if this controller is to be reset, until that is done; then makes this CPU's queues anew.
    fn join_recovery(&mut self, number: usize, cpu: &Cpu) -> Result<(), Failure> {
        let owned = &mut self.controllers[number];
        let shared = owned.shared.clone();
        if !shared.standstill.join(&mut owned.owner) {
            return Ok(());
        }
        wait(cpu, &shared.name, "be reset", || {
            shared.standstill.may_resume() || RUN.stop.load(Acquire)
        })?;
        if !shared.standstill.may_resume() {
            return Ok(());
        }
        self.recreate(&shared)?;
        shared.standstill.resumed(&mut self.controllers[number].owner);
        Ok(())
    }

    /// Makes this CPU's queue pairs of a controller anew, and issues again what was in flight.
    fn recreate(&mut self, shared: &Arc<SharedController>) -> Result<(), Failure> {
        for queue in self
            .queues
            .iter_mut()
            .filter(|queue| Arc::ptr_eq(&queue.shared, shared))
        {
            shared
                .lock()
                .recreate(&mut queue.pair)
                .map_err(|error| run_failure(error.to_string()))?;
            queue.state.abort_deadline = None;
            queue.state.moved = MachineClock.ticks();
            for token in queue.pair.take_lost() {
                let Some(job) = self.jobs.get_mut((token >> 16) as usize) else {
                    continue;
                };
                let was_active = job.finished_at.is_none();
                if job.reissue(token, &mut queue.pair, self.reissue) {
                    shared.reissued.fetch_add(1, Relaxed);
                }
                self.active -= usize::from(was_active && job.finished_at.is_some() && job.phase == self.phase);
            }
            queue.pair.commit();
        }
        Ok(())
    }
}

/// Waits until all CPUs of a controller did something, or too long.
fn wait(cpu: &Cpu, controller: &str, what: &str, done: impl Fn() -> bool) -> Result<(), Failure> {
    let deadline = MachineClock.deadline(PATIENCE);
    while !done() {
        if MachineClock.ticks() > deadline {
            return Err(run_failure(format!(
                "{controller}: its CPUs did not {what} within {} s",
                PATIENCE.as_secs()
            )));
        }
        cpu.heartbeat.add(1);
        core::hint::spin_loop();
    }
    Ok(())
}

/// Flushes the namespaces that the jobs wrote to, if they ask for it.
impl Engine {
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        for (number, job) in self.jobs.iter_mut().enumerate() {
            if !(job.spec.end_fsync && job.spec.rw.writes()) {
                continue;
            }
            for file in 0..job.files.len() {
                let Some(queue) = self.queues.get_mut(job.files[file].queue) else {
                    continue;
                };
                let name = job.files[file].name.clone();
                let command = nvme::Command::flush(job.files[file].id);
                if queue.pair.write(&command, (number as u32) << 16).is_err() {
                    return Err(run_failure(format!("{name}: no room for a flush")));
                }
                queue.pair.commit();
                let deadline = MachineClock.deadline(self.command_timeout);
                loop {
                    if let Some(completion) = queue.pair.poll().map_err(protocol)? {
                        queue.pair.acknowledge();
                        if !completion.status.is_success() {
                            job.failures.status(&name, completion.status);
                        }
                        break;
                    }
                    if MachineClock.ticks() > deadline {
                        return Err(run_failure(format!("{name}: the final flush did not complete in time")));
                    }
                    core::hint::spin_loop();
                }
            }
        }
        Ok(())
    }
}
