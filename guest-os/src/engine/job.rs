//! One job instance: which I/O comes next, and what became of it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Release;
use core::time::Duration;

use hal::clock::{Clock, TickRate};
use hal::dma::DmaBuffer;
use hal::mmio::MmioRegion;
use nvme::{Command, Completion, NvmOpcode, Prps, QueuePair, Reissue};
use workload::job::{JobSpec, Verify, Wait};
use workload::offsets::{Offsets, Random};
use workload::pattern;
use workload::report;
use workload::report::Miscompare;

use super::stats::{Failures, Stats, batch_row, depth_row};
use super::{EngineQueue, RUN};
use crate::arch::MachineClock;

/// A namespace as one job uses it.
pub struct File {
    /// `nvme0n1`.
    pub name: String,
    /// Namespace id.
    pub id: u32,
    /// Bytes per logical block.
    pub block_size: u64,
    /// Logical blocks per I/O, and from one place where an I/O may begin to the next.
    pub blocks_per_io: u64,
    pub step: u64,
    /// The logical block of the first such place.
    pub first: u64,
    /// Bytes that the job covers.
    pub area: u64,
    /// Which place comes next.
    pub offsets: Offsets,
    /// I/Os of a whole run in it, without a time limit; and those that are still to come.
    pub quota: u64,
    pub left: u64,
    /// The queue pair, by its place in the CPU's list.
    pub queue: usize,
    /// The command of each buffer, whole but for opcode and address.
    pub commands: Vec<Command>,
    /// PRP lists that the commands point to, held while commands may.
    pub _pointers: Vec<Prps>,
}

/// One I/O buffer, and the I/O that uses it.
pub struct Io {
    /// Where the buffer begins in the job's memory.
    pub offset: usize,
    /// Clock before the command was written, and after its doorbell.
    start: u64,
    issued: u64,
    /// Logical block address.
    lba: u64,
    file: u16,
    write: bool,
}

impl Io {
    /// An idle buffer at this offset of the job's memory.
    pub const fn new(offset: usize) -> Self {
        Self {
            offset,
            start: 0,
            issued: 0,
            lba: 0,
            file: 0,
            write: false,
        }
    }
}

/// A job instance on its CPU.
pub struct Job {
    /// What it was told.
    pub spec: Arc<JobSpec>,
    /// Its place in the job set, and when it runs: the number of its phase.
    pub job: usize,
    pub phase: usize,
    /// Index among the copies of all jobs.
    pub index: usize,
    /// Namespaces, used in turn.
    pub files: Vec<File>,
    /// The memory of all I/O buffers.
    buffer: DmaBuffer,
    ios: Vec<Io>,
    next_file: usize,
    /// Numbers of buffers, the first `idle` of them free. Those that a batch takes lie right behind these until it is counted.
    free: Box<[u16]>,
    idle: usize,
    mix: Random,
    /// Whether each I/O is a write, unless that is drawn.
    always: Option<bool>,
    /// Contents belong to their place.
    patterned: bool,
    block_bytes: u64,
    /// I/Os begun, and where that ends.
    started: u64,
    end: u64,
    /// I/Os of a whole run, without a time limit.
    quota: u64,
    /// When it is to begin, to be measured, and to end. Those that have passed are out of reach.
    start_at: u64,
    measure_at: u64,
    end_at: u64,
    /// When measuring began, when the job ended, and when the last sample was taken.
    measured_from: u64,
    pub finished_at: Option<u64>,
    sampled_at: u64,
    read: Stats,
    write: Stats,
    depths: [u64; 7],
    submit_batches: [u64; 7],
    complete_batches: [u64; 7],
    pub failures: Failures,
    /// Totals that were forgotten at the end of the ramp: I/Os and bytes read and written.
    ramp: [u64; 4],
}

/// What a job gets its I/O done with.
pub struct Tools<'a> {
    pub queues: &'a mut [EngineQueue],
    pub rate: TickRate,
    /// The job's place in the CPU's list, as it goes into command tokens.
    pub number: u32,
}

impl Job {
    /// A job over `files` with one part of `buffer` per I/O in flight. None when there is no memory for its lists.
    pub fn new(
        spec: Arc<JobSpec>,
        (job, phase, index): (usize, usize, usize),
        files: Vec<File>,
        buffer: DmaBuffer,
        ios: Vec<Io>,
    ) -> Option<Self> {
        let mut free = Vec::new();
        free.try_reserve_exact(ios.len()).ok()?;
        // The last is taken first.
        free.extend((0..ios.len() as u16).rev());
        let whole = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.quota));
        let quota = match spec.number_ios {
            0 => whole,
            ios => whole.min(ios),
        };
        Some(Self {
            job,
            phase,
            index,
            next_file: 0,
            idle: free.len(),
            free: free.into_boxed_slice(),
            mix: Random::new(spec.randseed ^ 0x6d69_7872, index as u64),
            always: (spec.rw.reads() != spec.rw.writes()).then(|| spec.rw.writes()),
            patterned: spec.verify == Verify::Pattern,
            block_bytes: spec.bs,
            started: 0,
            // Nothing is begun before its time.
            end: 0,
            quota,
            start_at: u64::MAX,
            measure_at: u64::MAX,
            end_at: u64::MAX,
            measured_from: 0,
            finished_at: None,
            sampled_at: 0,
            read: Stats::default(),
            write: Stats::default(),
            depths: [0; 7],
            submit_batches: [0; 7],
            complete_batches: [0; 7],
            failures: Failures::default(),
            ramp: [0; 4],
            spec,
            files,
            buffer,
            ios,
        })
    }

    /// Its phase begins at `now`: from here on it knows its times.
    pub fn begin_phase(&mut self, now: u64, rate: TickRate) {
        let ticks = |us| rate.ticks(Duration::from_micros(us));
        self.start_at = now.saturating_add(ticks(self.spec.startdelay_us));
        self.measure_at = now.saturating_add(ticks(self.spec.delay_us()));
        self.end_at = match self.spec.runtime_us {
            0 => u64::MAX,
            runtime => self.measure_at.saturating_add(ticks(runtime)),
        };
        self.look_up(now);
    }

    /// Does what the time says, and takes a sample; returns when there is something to do next.
    pub fn look_up(&mut self, now: u64) -> u64 {
        if now >= self.start_at {
            self.start_at = u64::MAX;
            let ramp = now < self.measure_at;
            self.begin(now, ramp);
            if !ramp {
                self.measure_at = u64::MAX;
            }
        }
        if self.start_at == u64::MAX {
            if now >= self.measure_at {
                self.measure_at = u64::MAX;
                self.begin_measuring(now);
            }
            self.sample(now);
            if now >= self.end_at {
                self.stop(now);
            }
        }
        self.start_at.min(self.measure_at).min(self.end_at)
    }

    /// The ramp begins, or the measurement.
    fn begin(&mut self, now: u64, ramp: bool) {
        self.measured_from = now;
        self.sampled_at = now;
        // I/Os that the ramp began and did not see the end of belong to the measurement.
        let begun = self.in_flight() as u64;
        self.end = if ramp {
            u64::MAX
        } else {
            self.started.saturating_add(self.quota).saturating_sub(begun)
        };
        for file in &mut self.files {
            file.left = if ramp { u64::MAX } else { file.quota };
        }
    }

    /// The ramp is over: forget what was counted, and begin to measure.
    fn begin_measuring(&mut self, now: u64) {
        self.ramp = self.totals();
        self.read.clear();
        self.write.clear();
        self.failures = Failures::default();
        (self.depths, self.submit_batches, self.complete_batches) = Default::default();
        self.begin(now, false);
    }

    /// Begin no more I/O.
    pub fn stop(&mut self, now: u64) {
        self.end = self.end.min(self.started);
        self.finish_if_idle(now);
    }

    /// I/Os in flight.
    pub fn in_flight(&self) -> usize {
        self.ios.len() - self.idle
    }

    /// The buffer of this number is free again.
    #[inline(always)]
    fn put_back(&mut self, number: u16) {
        if let Some(place) = self.free.get_mut(self.idle) {
            *place = number;
            self.idle += 1;
        }
    }

    fn finish_if_idle(&mut self, now: u64) {
        if self.started >= self.end && self.idle == self.ios.len() && self.finished_at.is_none() {
            self.finished_at = Some(now);
            self.sample(now);
            if self.spec.exitall {
                RUN.exit.store(true, Release);
            }
        }
    }

    /// Begins I/Os as far as there are buffers and room in the queues, and rings each doorbell once.
    #[inline]
    pub fn submit(&mut self, tools: &mut Tools<'_>) {
        if self.idle == 0 || self.started >= self.end {
            return;
        }
        let start = MachineClock.ticks();
        let mut writes = 0u64;
        let idle = self.idle;
        while let Some(&number) = self.free.get(self.idle.wrapping_sub(1)) {
            if self.started >= self.end {
                break;
            }
            let mut file_number = self.next_file;
            if self.files.get(file_number).is_none_or(|file| file.left == 0) {
                file_number = self.file_to_use();
            }
            let (Some(file), Some(io)) = (self.files.get_mut(file_number), self.ios.get_mut(usize::from(number)))
            else {
                break;
            };
            let Some(queue) = tools.queues.get_mut(file.queue) else {
                break;
            };
            if !queue.pair.has_room() {
                break;
            }
            let Some(command) = file.commands.get_mut(usize::from(number)) else {
                break;
            };
            let write = match self.always {
                Some(write) => write,
                None => self.mix.below(100) >= self.spec.rwmixread,
            };
            io.lba = file.first + file.offsets.next_block() * file.step;
            io.start = start;
            io.file = file_number as u16;
            io.write = write;
            if write {
                writes += 1;
                if self.patterned {
                    fill(&mut self.buffer, io.offset, io.lba * file.block_size, self.block_bytes);
                }
            }
            command.set_opcode(if write { NvmOpcode::WRITE } else { NvmOpcode::READ });
            command.set_lba(io.lba);
            if queue
                .pair
                .write(command, tools.number << 16 | u32::from(number))
                .is_err()
            {
                break;
            }
            file.left -= 1;
            self.idle -= 1;
            self.started += 1;
            self.next_file = if file_number + 1 == self.files.len() {
                0
            } else {
                file_number + 1
            };
        }
        let count = idle - self.idle;
        if count == 0 {
            return;
        }
        for file in &self.files {
            if let Some(queue) = tools.queues.get_mut(file.queue) {
                queue.pair.commit();
            }
        }
        let issued = MachineClock.ticks();
        for number in self.free.get(self.idle..idle).unwrap_or_default() {
            if let Some(io) = self.ios.get_mut(usize::from(*number)) {
                io.issued = issued;
            }
        }
        let slat = tools.rate.nanoseconds(issued.saturating_sub(start));
        let reads = count as u64 - writes;
        if reads > 0 {
            self.read.slat.record(slat, reads);
        }
        if writes > 0 {
            self.write.slat.record(slat, writes);
        }
        self.count_depths(count);
        self.submit_batches[batch_row(count)] += 1;
    }

    /// Counts a batch of `count` I/Os as fio does: each at the depth that it made. A row at a time.
    #[inline]
    fn count_depths(&mut self, count: usize) {
        let after = self.in_flight();
        let mut depth = after + 1 - count;
        while depth <= after {
            let row = depth_row(depth);
            let end = if row < 6 { (2 << row) - 1 } else { after };
            let end = end.min(after);
            self.depths[row] += (end + 1 - depth) as u64;
            depth = end + 1;
        }
    }

    /// The next namespace in turn that is not done, when the one whose turn it is has no I/O left.
    #[cold]
    fn file_to_use(&self) -> usize {
        let mut number = self.next_file;
        while self.files.get(number).is_some_and(|file| file.left == 0) {
            number = if number + 1 == self.files.len() { 0 } else { number + 1 };
            if number == self.next_file {
                break;
            }
        }
        number
    }

    /// One of the job's commands ended, as was seen at `now`. Returns whether the job is done.
    #[inline]
    pub fn complete(&mut self, completion: &Completion, now: u64, rate: TickRate) -> bool {
        let number = completion.token as u16;
        let Some(io) = self.ios.get_mut(usize::from(number)) else {
            return false;
        };
        let clat = rate.nanoseconds(now.saturating_sub(io.issued));
        let lat = rate.nanoseconds(now.saturating_sub(io.start));
        let stats = if io.write { &mut self.write } else { &mut self.read };
        if completion.status.is_success() {
            stats.complete(clat, lat, self.block_bytes);
            if self.patterned && !io.write {
                self.check(number);
            }
        } else {
            stats.complete(clat, lat, 0);
            let file = usize::from(io.file);
            if let Some(file) = self.files.get(file) {
                self.failures.status(&file.name, completion.status);
            }
            if !self.spec.continue_on_error {
                self.end = self.end.min(self.started);
            }
        }
        self.put_back(number);
        if self.started >= self.end && self.idle == self.ios.len() {
            self.finish_if_idle(now);
            return true;
        }
        false
    }

    /// A controller reset has cut off the command with this token: issues it again if that is safe, or counts it as failed.
    /// Returns whether it was issued again. Its latency goes on from where it first began.
    pub fn reissue(&mut self, token: u32, pair: &mut QueuePair<MmioRegion>, policy: Reissue) -> bool {
        let number = token as u16;
        let Some(io) = self.ios.get(usize::from(number)) else {
            return false;
        };
        let (write, file) = (io.write, usize::from(io.file));
        let opcode = if write { NvmOpcode::WRITE } else { NvmOpcode::READ };
        let command = self
            .files
            .get(file)
            .and_then(|file| file.commands.get(usize::from(number)));
        if policy.allows(opcode)
            && let Some(command) = command
            && pair.write(command, token).is_ok()
        {
            return true;
        }
        if let Some(file) = self.files.get(file) {
            self.failures.lost(&file.name);
        }
        let stats = if write { &mut self.write } else { &mut self.read };
        stats.ios += 1;
        self.put_back(number);
        self.finish_if_idle(MachineClock.ticks());
        false
    }

    /// Counts a batch of completions.
    #[inline]
    pub fn completed_batch(&mut self, count: usize) {
        self.complete_batches[batch_row(count)] += 1;
    }

    /// Compares what a read brought with what belongs there.
    fn check(&mut self, number: u16) {
        let io = &self.ios[usize::from(number)];
        let file = &self.files[usize::from(io.file)];
        self.failures.verified_blocks += file.blocks_per_io;
        let base = io.lba * file.block_size;
        for (index, block) in (0..self.block_bytes).step_by(file.block_size as usize).enumerate() {
            let wrong = (0..file.block_size).step_by(8).find_map(|at| {
                let offset = base + block + at;
                let (expected, found) = (
                    pattern::word(0, offset),
                    self.buffer.read64(io.offset + (block + at) as usize),
                );
                (expected != found).then_some((offset, expected, found))
            });
            if let Some((offset, expected, found)) = wrong {
                self.failures.miscompares += 1;
                self.failures.first_miscompare.get_or_insert_with(|| Miscompare {
                    namespace: file.name.clone(),
                    lba: io.lba + index as u64,
                    offset,
                    expected,
                    found,
                });
            }
        }
    }

    /// Takes a sample of bandwidth and IOPS when half a second has passed, or the job is done.
    pub fn sample(&mut self, now: u64) {
        let elapsed = MachineClock.rate().nanoseconds(now.saturating_sub(self.sampled_at));
        if elapsed >= 500_000_000 || (self.finished_at.is_some() && elapsed >= 1_000_000) {
            self.read.sample(elapsed);
            self.write.sample(elapsed);
            self.sampled_at = now;
        }
    }

    /// I/Os and bytes read, I/Os and bytes written, since the start of the run.
    pub fn totals(&self) -> [u64; 4] {
        let now = [self.read.ios, self.read.bytes, self.write.ios, self.write.bytes];
        core::array::from_fn(|i| now[i] + self.ramp[i])
    }

    /// The form that travels.
    pub fn report(&self, cpu: usize, wait: Wait) -> report::Job {
        let end = self.finished_at.unwrap_or(self.measured_from);
        report::Job {
            job: self.job as u32,
            index: self.index as u32,
            cpu: cpu as u32,
            wait,
            files: self.files.iter().map(|file| file.name.clone()).collect(),
            area_bytes: self.files.iter().map(|file| file.area).collect(),
            runtime_ns: MachineClock.rate().nanoseconds(end.saturating_sub(self.measured_from)),
            read: self.read.report(),
            write: self.write.report(),
            depths: self.depths,
            submit_batches: self.submit_batches,
            complete_batches: self.complete_batches,
            errors: self.failures.errors.clone(),
            verified_blocks: self.failures.verified_blocks,
            miscompares: self.failures.miscompares,
            first_miscompare: self.failures.first_miscompare.clone(),
        }
    }
}

/// Writes the contents that belong at `offset` of a namespace to `at` of a buffer.
pub fn fill(buffer: &mut DmaBuffer, at: usize, offset: u64, length: u64) {
    for word in (0..length).step_by(8) {
        buffer.write64(at + word as usize, pattern::word(0, offset + word));
    }
}
