//! The loop in which a CPU runs its jobs: submit, find completions, record.
//!
//! One CPU owns the queue pairs and the jobs in its [`Engine`]; nothing here is shared, locked or allocated while jobs run.
//! Jobs run in phases (fio's `stonewall`): all CPUs go from one to the next together.
//! Every tenth of a second the loop looks up from its work ([`Engine::look_up`]): time limits, samples, the watchdog for lost
//! interrupts, and on the first CPU the progress line.

pub mod job;
pub mod recovery;
pub mod stats;
mod wait;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use core::time::Duration;

use hal::clock::{Clock, TickRate};
use hal::dma::{Dma, DmaBuffer};
use hal::mmio::MmioRegion;
use irq::halt_poll::HaltPoll;
use nvme::{PrpError, Prps, QueueCounters, QueuePair, Reissue};
use workload::job::{JobSet, Wait};
use workload::report::{self, Failure, FailureKind};

use crate::arch::{self, MachineClock, PendingSet};
use crate::cpu::{self, Cpu, SLOT_WORDS};
use crate::interrupts::TICK;
use crate::{progress, skew};
use job::{Job, Tools};
use recovery::{OwnedController, QueueState, SharedController};
use wait::{Hybrid, Look, Pending, Sleep, Spin, WaitMode};

/// How long the loop may go without looking up.
const LOOK_UP: Duration = TICK;
/// How long the proof of a queue's interrupt may take.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);

/// What all CPUs of a run have in common.
pub struct Run {
    /// CPUs whose queues are proved, or that failed.
    proved: AtomicUsize,
    /// CPUs that have compared their clocks.
    compared: AtomicUsize,
    /// When the run began; 0 before.
    began: AtomicU64,
    /// The phase that the run is in, when it began, and how many times a CPU has come to the end of one.
    phase: AtomicUsize,
    phase_began: AtomicU64,
    ended: AtomicUsize,
    /// A job with `exitall` has ended, and all others are to.
    exit: AtomicBool,
    /// CPUs that are done.
    pub finished: AtomicUsize,
    /// Somebody failed: end at once.
    pub stop: AtomicBool,
    /// The first I/O has completed.
    first_io: AtomicBool,
}

/// The one run of this guest.
pub static RUN: Run = Run {
    proved: AtomicUsize::new(0),
    compared: AtomicUsize::new(0),
    began: AtomicU64::new(0),
    phase: AtomicUsize::new(0),
    phase_began: AtomicU64::new(0),
    ended: AtomicUsize::new(0),
    exit: AtomicBool::new(false),
    finished: AtomicUsize::new(0),
    stop: AtomicBool::new(false),
    first_io: AtomicBool::new(false),
};

impl Run {
    /// The clock when the run began; None before.
    pub fn began(&self) -> Option<u64> {
        Some(self.began.load(Acquire)).filter(|began| *began != 0)
    }
}

/// A command that proves a queue: a read of one block, into memory of its own.
pub struct Proof {
    command: nvme::Command,
    _buffer: DmaBuffer,
    _pointers: Prps,
}

impl Proof {
    /// A read of the first block of namespace `id`, on a controller with pages of `page_size` bytes.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(dma: &Dma, id: u32, block_size: u64, page_size: usize) -> Result<Self, PrpError> {
        let length = block_size as usize;
        let buffer = dma.allocate(length, 4096)?;
        let pointers = Prps::new(dma, &buffer, 0, length, page_size)?;
        Ok(Self {
            command: nvme::Command::read(id, 0, 1, pointers.data_pointer()),
            _buffer: buffer,
            _pointers: pointers,
        })
    }
}

/// A queue pair in an engine, and where its interrupts arrive.
pub struct EngineQueue {
    /// The controller.
    pub shared: Arc<SharedController>,
    /// The queue pair.
    pub pair: QueuePair<MmioRegion>,
    /// Proves the queue.
    proof: Proof,
    /// MSI-X entry, and the CPU's slot.
    pub entry: Option<usize>,
    pub slot: Option<usize>,
    /// Job instances that use it.
    pub jobs: Vec<usize>,
    /// Looks after an interrupt that found nothing.
    pub spurious: u64,
    /// Completions found without an interrupt.
    pub missed: u64,
    /// Counters when measuring began, and interrupts of its slot then.
    pub base: QueueCounters,
    pub base_interrupts: u64,
    /// The same when the run ended.
    pub end: QueueCounters,
    pub end_interrupts: u64,
    /// For commands that are late.
    state: QueueState,
}

impl EngineQueue {
    /// A queue pair that has done nothing yet.
    pub fn new(
        shared: Arc<SharedController>,
        pair: QueuePair<MmioRegion>,
        proof: Proof,
        route: Option<(usize, usize)>,
        jobs: Vec<usize>,
    ) -> Self {
        Self {
            shared,
            pair,
            proof,
            entry: route.map(|r| r.0),
            slot: route.map(|r| r.1),
            jobs,
            spurious: 0,
            missed: 0,
            base: QueueCounters::default(),
            base_interrupts: 0,
            end: QueueCounters::default(),
            end_interrupts: 0,
            state: QueueState::default(),
        }
    }
}

/// A CPU's jobs and queues.
pub struct Engine {
    wait: Wait,
    /// Sorted by slot.
    pub queues: Vec<EngineQueue>,
    /// The controllers of these queues.
    controllers: Vec<OwnedController>,
    /// Words of the bitmap of slots that these queues use.
    words: Range<usize>,
    /// The same, for looks at what is pending.
    pending: PendingSet,
    pub jobs: Vec<Job>,
    /// The first CPU of the run leads: it marks, and prints progress.
    leads: bool,
    /// CPUs in the run.
    cpus: usize,
    rate: TickRate,
    /// The phase that this CPU is in, of so many.
    phase: usize,
    phases: usize,
    /// How long after its beginning the run is measured, in ticks: the longest delay of a job of the first phase.
    delay: u64,
    /// Clock at the end of that.
    measure_at: u64,
    measuring: bool,
    next_look_up: u64,
    /// Look ups so far, and how many of them a command may take.
    epoch: u32,
    timeout_epochs: u32,
    command_timeout: Duration,
    /// What may be issued again after a reset.
    reissue: Reissue,
    /// Jobs of this phase that are not done.
    active: usize,
    halts: u64,
    empty_polls: u64,
    pending_hits: u64,
    pending_late: u64,
    pending_look_ns: u64,
    /// How long to poll before a halt; the same in ticks of the clock.
    halt_poll: HaltPoll,
    poll_ticks: u64,
    /// Ticks of the clock spent halted, and looking in vain.
    halted: u64,
    polling: u64,
    base: report::Cpu,
    /// The measured window's counts, once it is over.
    pub counts: report::Cpu,
    /// Why the run cannot go on.
    pub failure: Option<Failure>,
}

impl Engine {
    /// An engine for its share of a job set; `leads` for the first CPU of `cpus`.
    pub fn new(set: &JobSet, mut queues: Vec<EngineQueue>, jobs: Vec<Job>, leads: bool, cpus: usize) -> Self {
        let rate = MachineClock.rate();
        let run = &set.run;
        let phases = set.phases();
        let first = phases.first().and_then(|first| set.jobs.get(first.clone()));
        let delay = first.into_iter().flatten().map(|job| job.delay_us()).max();
        let halt_poll = match run.adaptive {
            true => HaltPoll::adaptive(run.hybrid_us * 1000),
            false => HaltPoll::fixed(run.hybrid_us * 1000),
        };
        queues.sort_by_key(|queue| queue.slot);
        // Rounded up, and one more for the part of an interval that had passed when the command was written.
        let timeout = run.command_timeout_us.div_ceil(LOOK_UP.as_micros() as u64) + 1;
        let timeout_epochs = u32::try_from(timeout).unwrap_or(u32::MAX / 2);
        let controllers = owned(&queues);
        Self {
            wait: run.wait,
            words: words(&queues),
            pending: PendingSet::of(queues.iter().filter_map(|queue| queue.slot)),
            queues,
            controllers,
            active: 0,
            jobs,
            leads,
            cpus,
            rate,
            phase: 0,
            phases: phases.len(),
            delay: rate.ticks(Duration::from_micros(delay.unwrap_or(0))),
            measure_at: 0,
            measuring: false,
            next_look_up: 0,
            epoch: 0,
            timeout_epochs,
            command_timeout: Duration::from_micros(run.command_timeout_us),
            reissue: match run.retry_writes {
                true => Reissue::ReadsAndWrites,
                false => Reissue::Reads,
            },
            halts: 0,
            empty_polls: 0,
            pending_hits: 0,
            pending_late: 0,
            pending_look_ns: 0,
            halt_poll,
            poll_ticks: rate.ticks(Duration::from_nanos(halt_poll.length())),
            halted: 0,
            polling: 0,
            base: report::Cpu::default(),
            counts: report::Cpu::default(),
            failure: None,
        }
    }

    /// Takes the engine apart, for its queue pairs to be deleted. The I/O buffers stay: a controller that does not obey may
    /// still write to them, and the machine ends soon.
    pub fn release(self) -> impl Iterator<Item = (Arc<SharedController>, QueuePair<MmioRegion>)> {
        core::mem::forget(self.jobs);
        self.queues.into_iter().map(|queue| {
            core::mem::forget(queue.proof);
            (queue.shared, queue.pair)
        })
    }

    /// Proves the queues, waits for the other CPUs to have done so, and runs the jobs to their end.
    pub fn run(&mut self) {
        let cpu = cpu::this();
        arch::start_tick(TICK);
        if let Err(failure) = self.prove(cpu) {
            self.fail(failure);
        }
        RUN.proved.fetch_add(1, AcqRel);
        self.wait_for_start();
        if !RUN.stop.load(Acquire) {
            cpu.watched.store(true, Relaxed);
            if self.wait.masks_interrupts() {
                arch::interrupts_off();
            }
            let ended = self.run_phases(cpu);
            cpu.watched.store(false, Relaxed);
            if let Err(failure) = ended {
                self.fail(failure);
            }
        }
        self.settle(cpu);
        arch::interrupts_on();
        // No interrupt may come between the CPU's count and those of its vectors, so that they add up.
        arch::without_interrupts(|| {
            self.counts = since(&self.count(cpu), &self.base);
            if self.wait.masks_interrupts() {
                self.counts.pending_look_ns = self.pending_look_ns;
            }
            if self.wait == Wait::Hybrid {
                self.counts.poll_length_ns = self.halt_poll.length();
            }
            for queue in &mut self.queues {
                queue.end = *queue.pair.counters();
                queue.end_interrupts = queue.slot.map_or(0, |slot| cpu.interrupts(slot));
            }
        });
        if self.failure.is_none()
            && !RUN.stop.load(Acquire)
            && let Err(failure) = self.flush()
        {
            self.fail(failure);
        }
        self.leave();
        cpu.jobs.set(0);
        RUN.finished.fetch_add(1, AcqRel);
        if !self.leads {
            arch::stop_tick();
        }
    }

    /// Runs the jobs of one phase after the other. Whoever ends a phase last begins the next.
    fn run_phases(&mut self, cpu: &Cpu) -> Result<(), Failure> {
        loop {
            match self.wait {
                Wait::Interrupt => self.turn::<Spin>(cpu)?,
                Wait::Halt => self.turn::<Sleep>(cpu)?,
                Wait::Poll => self.turn::<Look>(cpu)?,
                Wait::Pending => self.turn::<Pending>(cpu)?,
                Wait::Hybrid => self.turn::<Hybrid>(cpu)?,
            }
            if self.phase + 1 >= self.phases || RUN.stop.load(Acquire) {
                return Ok(());
            }
            self.phase += 1;
            if RUN.ended.fetch_add(1, AcqRel) + 1 == self.phase * self.cpus {
                RUN.phase_began.store(MachineClock.ticks(), Release);
                RUN.phase.store(self.phase, Release);
                let this = arch::cpu_index();
                (0..self.cpus).filter(|other| *other != this).for_each(arch::wake);
            }
            while RUN.phase.load(Acquire) < self.phase {
                // Other CPUs may need this one for a reset; the tick sees to it that it looks.
                if MachineClock.ticks() >= self.next_look_up && !self.look_up(cpu)? {
                    return Ok(());
                }
                arch::interrupts_off();
                if RUN.phase.load(Acquire) < self.phase {
                    arch::halt();
                }
                if !self.wait.masks_interrupts() {
                    arch::interrupts_on();
                }
            }
            self.begin_phase(RUN.phase_began.load(Acquire));
        }
    }

    /// The jobs of this phase begin, each when its delay is over.
    fn begin_phase(&mut self, now: u64) {
        self.active = 0;
        for job in self.jobs.iter_mut().filter(|job| job.phase == self.phase) {
            job.begin_phase(now, self.rate);
            self.active += 1;
        }
        self.next_look_up = now;
    }

    /// This CPU's queue pairs are at rest from here on: a recovery does not wait for it.
    fn leave(&mut self) {
        for controller in self.controllers.drain(..) {
            controller.leave();
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        RUN.stop.store(true, Release);
    }

    /// Interrupts of the last completions may still be on their way, when earlier looks had found these already.
    fn settle(&mut self, cpu: &Cpu) {
        if self.wait.uses_interrupts() {
            let deadline = MachineClock.deadline(Duration::from_micros(200));
            while MachineClock.ticks() < deadline {
                if self.wait.masks_interrupts() {
                    self.take_pending(cpu);
                }
                core::hint::spin_loop();
            }
        }
    }

    /// The counters so far; whose they are is for the report to say.
    fn count(&self, cpu: &Cpu) -> report::Cpu {
        report::Cpu {
            interrupts: cpu.device_interrupts.get(),
            wrong_cpu: cpu.wrong_cpu.get(),
            unexpected: cpu.unexpected.get(),
            eois: cpu.eois(),
            ticks: cpu.ticks.get(),
            halts: self.halts,
            empty_polls: self.empty_polls,
            pending_hits: self.pending_hits,
            pending_late: self.pending_late,
            halted_ns: self.rate.nanoseconds(self.halted),
            polling_ns: self.rate.nanoseconds(self.polling),
            ..report::Cpu::default()
        }
    }

    /// Reads once through each queue, and sees its interrupt arrive: a lost route is found before anything is measured.
    fn prove(&mut self, cpu: &Cpu) -> Result<(), Failure> {
        for queue in &mut self.queues {
            let before = queue.slot.map(|slot| cpu.interrupts(slot));
            if queue.pair.write(&queue.proof.command, 0).is_err() {
                let (name, id) = (&queue.shared.name, queue.pair.id());
                return Err(run_failure(format!("{name} queue {id}: no room for a first command")));
            }
            queue.pair.commit();
            let deadline = MachineClock.deadline(PROOF_TIMEOUT);
            let mut completed = false;
            loop {
                let interrupted = before.is_none_or(|n| queue.slot.is_some_and(|slot| cpu.interrupts(slot) > n));
                // Looking only after the interrupt shows that it never comes before the completion.
                if interrupted || MachineClock.ticks() >= deadline {
                    completed |= queue.pair.poll().map_err(protocol)?.is_some();
                }
                if completed && interrupted {
                    break;
                }
                if MachineClock.ticks() >= deadline {
                    return Err(run_failure(unproved(queue, completed)));
                }
                core::hint::spin_loop();
            }
            queue.pair.acknowledge();
            if !RUN.first_io.swap(true, AcqRel) {
                arch::mark();
            }
        }
        for word in 0..SLOT_WORDS {
            cpu.take_ready(word);
        }
        if self.wait.masks_interrupts() {
            arch::without_interrupts(|| self.time_looks());
        }
        Ok(())
    }

    /// All CPUs begin together, when the last has proved its queues, and all have compared their clocks.
    fn wait_for_start(&mut self) {
        while RUN.proved.load(Acquire) < self.cpus {
            core::hint::spin_loop();
        }
        skew::observe();
        RUN.compared.fetch_add(1, AcqRel);
        let mut now = 0;
        if self.leads {
            while RUN.compared.load(Acquire) < self.cpus {
                core::hint::spin_loop();
            }
            if !RUN.stop.load(Acquire) && self.delay == 0 {
                arch::mark();
            }
            now = MachineClock.ticks().max(1);
            RUN.began.store(now, Release);
        }
        while now == 0 {
            core::hint::spin_loop();
            now = RUN.began.load(Acquire);
        }
        for queue in &mut self.queues {
            queue.state.moved = now;
        }
        self.begin_phase(now);
        self.measure_at = now.saturating_add(self.delay);
        self.take_base(cpu::this());
        self.measuring = self.delay == 0;
    }

    fn take_base(&mut self, cpu: &Cpu) {
        // As at the end, the counts are those of one moment.
        arch::without_interrupts(|| {
            self.base = self.count(cpu);
            for queue in &mut self.queues {
                queue.base = *queue.pair.counters();
                queue.base_interrupts = queue.slot.map_or(0, |slot| cpu.interrupts(slot));
                (queue.spurious, queue.missed) = (0, 0);
            }
        });
    }

    /// The loop. `W` is the way to find completions, so that each way has a loop of its own.
    fn turn<W: WaitMode>(&mut self, cpu: &Cpu) -> Result<(), Failure> {
        while self.active > 0 {
            if MachineClock.ticks() >= self.next_look_up && !self.look_up(cpu)? {
                break;
            }
            for (number, job) in self.jobs.iter_mut().enumerate() {
                job.submit(&mut Tools {
                    queues: &mut self.queues,
                    rate: self.rate,
                    number: number as u32,
                });
            }
            W::find(self, cpu)?;
        }
        Ok(())
    }

    /// Takes all completions that lie in a queue; returns how many.
    #[inline]
    fn reap(&mut self, number: usize) -> Result<usize, Failure> {
        let Some(queue) = self.queues.get_mut(number) else {
            return Ok(0);
        };
        let mut count = 0;
        let mut now = 0;
        let mut last = 0;
        while let Some(completion) = queue.pair.poll().map_err(protocol)? {
            if count == 0 {
                now = MachineClock.ticks();
                queue.state.moved = now;
            }
            count += 1;
            last = (completion.token >> 16) as usize;
            if let Some(job) = self.jobs.get_mut(last)
                && job.complete(&completion, now, self.rate)
            {
                self.active -= 1;
            }
        }
        if count > 0 {
            queue.pair.acknowledge();
            if let Some(job) = self.jobs.get_mut(last) {
                job.completed_batch(count);
            }
        }
        Ok(count)
    }

    /// Takes the completions of every queue whose interrupt has arrived; returns whether any had.
    #[inline]
    fn reap_ready(&mut self, cpu: &Cpu) -> Result<bool, Failure> {
        let mut any = false;
        for word in self.words.clone() {
            let mut bits = cpu.take_ready(word);
            while bits != 0 {
                any = true;
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let first = self.queues.partition_point(|queue| queue.slot < Some(slot));
                let mut number = first;
                let mut count = 0;
                while self.queues.get(number).is_some_and(|queue| queue.slot == Some(slot)) {
                    count += self.reap(number)?;
                    self.queues[number].state.suspect_since = None;
                    number += 1;
                }
                if count == 0
                    && let Some(queue) = self.queues.get_mut(first)
                {
                    queue.spurious += 1;
                }
            }
        }
        Ok(any)
    }

    /// Everything that is not the hot path, ten times a second. False: another CPU has failed, whose error tells; nobody waits
    /// for what is in flight.
    #[cold]
    fn look_up(&mut self, cpu: &Cpu) -> Result<bool, Failure> {
        let now = MachineClock.ticks();
        if RUN.stop.load(Acquire) {
            return Ok(false);
        }
        cpu.heartbeat.add(1);
        if !self.measuring && now >= self.measure_at {
            self.measuring = true;
            if self.leads {
                arch::mark();
            }
            self.take_base(cpu);
        }
        self.next_look_up = now.saturating_add(self.rate.ticks(LOOK_UP));
        let exit = RUN.exit.load(Acquire);
        for job in &mut self.jobs {
            if job.finished_at.is_some() {
                continue;
            }
            if exit {
                // Those of later phases never begin.
                job.stop(now);
                self.active -= usize::from(job.phase == self.phase && job.finished_at.is_some());
            } else if job.phase == self.phase {
                let next = job.look_up(now);
                self.active -= usize::from(job.finished_at.is_some());
                self.next_look_up = self.next_look_up.min(next);
            }
        }
        let unfinished = self.jobs.iter().filter(|job| job.finished_at.is_none()).count();
        cpu.jobs.set(unfinished as u64);
        if self.wait.masks_interrupts() {
            self.accept_all(cpu);
        }
        self.look_for_lost(cpu, now)?;
        let totals = self
            .jobs
            .iter()
            .map(Job::totals)
            .fold([0; 4], |sum, job| core::array::from_fn(|i| sum[i] + job[i]));
        let shown = &cpu.totals;
        for (counter, value) in [&shown.reads, &shown.read_bytes, &shown.writes, &shown.written_bytes]
            .into_iter()
            .zip(totals)
        {
            counter.set(value);
        }
        if self.leads {
            progress::show(now, !self.measuring);
        }
        if self.measure_at > now {
            self.next_look_up = self.next_look_up.min(self.measure_at);
        }
        // Somebody may have failed while this CPU stood still.
        Ok(!RUN.stop.load(Acquire))
    }
}

/// The words of the bitmap of slots that these queues use.
fn words(queues: &[EngineQueue]) -> Range<usize> {
    let words = || queues.iter().filter_map(|queue| queue.slot).map(|slot| slot / 64);
    match (words().min(), words().max()) {
        (Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    }
}

/// The controllers of these queues, each once.
fn owned(queues: &[EngineQueue]) -> Vec<OwnedController> {
    let mut controllers: Vec<OwnedController> = Vec::new();
    for queue in queues {
        if !controllers.iter().any(|known| known.is(&queue.shared)) {
            controllers.push(OwnedController::enter(&queue.shared));
        }
    }
    controllers
}

/// What was counted between two moments.
fn since(now: &report::Cpu, base: &report::Cpu) -> report::Cpu {
    report::Cpu {
        interrupts: now.interrupts - base.interrupts,
        wrong_cpu: now.wrong_cpu - base.wrong_cpu,
        unexpected: now.unexpected - base.unexpected,
        eois: now.eois - base.eois,
        ticks: now.ticks - base.ticks,
        halts: now.halts - base.halts,
        empty_polls: now.empty_polls - base.empty_polls,
        pending_hits: now.pending_hits - base.pending_hits,
        pending_late: now.pending_late - base.pending_late,
        halted_ns: now.halted_ns - base.halted_ns,
        polling_ns: now.polling_ns - base.polling_ns,
        ..report::Cpu::default()
    }
}

/// A device, or the machine, failed.
pub fn run_failure(message: String) -> Failure {
    Failure {
        kind: FailureKind::Run,
        message,
    }
}

#[cold]
fn protocol(violation: nvme::ProtocolViolation) -> Failure {
    run_failure(format!("{violation}"))
}

#[cold]
fn unproved(queue: &EngineQueue, completed: bool) -> String {
    let (name, id, seconds) = (&queue.shared.name, queue.pair.id(), PROOF_TIMEOUT.as_secs());
    match (completed, queue.entry) {
        (true, Some(entry)) => format!(
            "{name} queue {id}: a first read completed, but its interrupt (MSI-X entry {entry}, CPU {}) did not arrive within {seconds} s; wait=poll goes without interrupts",
            arch::cpu_index()
        ),
        _ => format!("{name} queue {id}: a first read did not complete within {seconds} s"),
    }
}
