//! What was measured: the guest's half of a report.
//!
//! Counts of a run cover the measured window: from the end of the ramp (or the start, without a ramp) to the end of the last
//! job. Times are in nanoseconds unless a name says otherwise.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::job::{JobSet, JobSpec, Wait};
use crate::latency::{LatencyReport, Summary};

/// Version of the schema below; guest and host of one binary always agree, a saved report may not.
pub const SCHEMA: u32 = 3;

/// First frame: who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`SCHEMA`] of the guest.
    pub schema: u32,
    /// `x86_64`, `aarch64` or `powerpc64le`.
    pub architecture: String,
    /// Version of the guest's package.
    pub version: String,
}

/// Once a second while jobs run: totals since the start of the run, ramp included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Time since the start of the run.
    pub elapsed_ns: u64,
    /// Still in the ramp.
    pub ramp: bool,
    /// Jobs that are not done.
    pub jobs: u32,
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Device interrupts taken on all CPUs.
    pub interrupts: u64,
}

/// The run cannot begin, or cannot go on. No report follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// One line that names the thing and the way out.
    pub message: String,
}

/// Whose mistake a [`Failure`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The job does not fit the devices or the machine: exit status 2.
    Usage,
    /// A device, or the machine, failed: exit status 1. (A guest that breaks down itself says so by text and exit status.)
    Run,
}

/// Last frame of a run that went through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] of the guest.
    pub schema: u32,
    /// What it was told to do.
    pub arguments: JobSet,
    /// The machine that the guest found.
    pub machine: Machine,
    /// Each NVMe controller.
    pub controllers: Vec<Controller>,
    /// Each I/O queue pair: the fan-out table.
    pub queues: Vec<Queue>,
    /// Each CPU that ran.
    pub cpus: Vec<Cpu>,
    /// Each job instance.
    pub jobs: Vec<Job>,
    /// What differs from what was asked for, one sentence each.
    pub notes: Vec<String>,
}

/// The machine that the guest found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `x86_64`, `aarch64` or `powerpc64le`.
    pub architecture: String,
    /// How the hypervisor calls itself, or nothing.
    pub hypervisor: String,
    /// CPUs started.
    pub cpus: u32,
    /// Usable memory.
    pub memory_bytes: u64,
    /// `x2apic`, `gicv3` or `xics`.
    pub interrupt_controller: String,
    /// The clock that times are taken from.
    pub clock: Clock,
    /// From the guest's first instruction to the start of the run.
    pub boot_ns: u64,
}

/// The clock that times are taken from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The counter and where its rate comes from.
    pub source: String,
    /// Ticks per second.
    pub hertz: u64,
    /// The architecture promises a constant rate.
    pub invariant: bool,
    /// No CPU ever saw another one's time go backwards in the check before the run.
    pub monotonic: bool,
    /// The largest step backwards seen in that check.
    pub worst_step_back_ns: u64,
}

/// One NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller {
    /// `nvme0`, `nvme1`, … in the order of discovery.
    pub name: String,
    /// PCI address, `0000:00:03.0`.
    pub address: String,
    /// PCI vendor and device id.
    pub pci_id: (u16, u16),
    /// Model number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// NVMe version, `1.4` or `1.2.1`.
    pub version: String,
    /// Vectors in the MSI-X table.
    pub vectors: u32,
    /// I/O queue pairs asked for.
    pub queues_wanted: u32,
    /// I/O queue pairs granted.
    pub queues_granted: u32,
    /// Largest transfer of one command.
    pub max_transfer_bytes: u64,
    /// Bytes from one doorbell to the next.
    pub doorbell_stride: u32,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
    /// It has a volatile write cache, so that a flush means something.
    pub write_cache: bool,
    /// Doorbell values go through memory.
    pub shadow_doorbells: bool,
    /// What was done about commands that took too long.
    pub recovery: Recovery,
    /// Events that it told of, in the specification's words.
    pub events: Vec<String>,
    /// Its health at the end, if it can tell.
    pub health: Option<Health>,
    /// The newest entries of its error log, at the end.
    pub error_log: Vec<ErrorLogEntry>,
}

/// What was done about commands that took too long, or a controller that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Commands that did not complete within the job's `command_timeout`.
    pub timeouts: u64,
    /// Abort commands sent.
    pub aborts: u64,
    /// Controller resets.
    pub resets: u64,
    /// Commands issued again after a reset.
    pub reissued: u64,
}

/// SMART / health information (NVMe Base 2.0, 5.16.1.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Critical warnings, in the specification's words.
    pub warnings: Vec<String>,
    /// Composite temperature in kelvins.
    pub temperature_k: u16,
    /// Available spare, in percent.
    pub spare_percent: u8,
    /// Endurance used, in percent; may exceed 100.
    pub used_percent: u8,
    /// Read commands completed over its life (the lower 64 bits).
    pub host_reads: u64,
    /// Write commands completed over its life (the lower 64 bits).
    pub host_writes: u64,
    /// Power-on hours.
    pub power_on_hours: u64,
    /// Shutdowns without notice.
    pub unsafe_shutdowns: u64,
    /// Media and data integrity errors.
    pub media_errors: u64,
}

/// An entry of the error log (NVMe Base 2.0, 5.16.1.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorLogEntry {
    /// Its number over the controller's life.
    pub number: u64,
    /// Submission queue of the command.
    pub queue: u16,
    /// The specification's name of the status.
    pub status: String,
    /// Namespace id.
    pub namespace: u32,
    /// The first LBA with the error.
    pub lba: u64,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// `nvme0n1`: controller and namespace id.
    pub name: String,
    /// Namespace id.
    pub id: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes per block.
    pub block_size: u32,
    /// Write-protected.
    pub read_only: bool,
    /// Why no job uses it, if none can.
    pub refused: Option<String>,
}

/// One I/O queue pair, and where its interrupts go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// `nvme0`.
    pub controller: String,
    /// Queue id.
    pub id: u16,
    /// Entries of the submission and of the completion queue.
    pub entries: u32,
    /// Index of the CPU that owns it.
    pub cpu: u32,
    /// That CPU's id in hardware: x2APIC id, MPIDR, server number.
    pub cpu_hardware_id: u32,
    /// Entry of the MSI-X table; None: made without interrupts.
    pub msix_entry: Option<u32>,
    /// What arrives at the CPU: vector, LPI or source number.
    pub vector: Option<u32>,
    /// Indices of the job instances that use it.
    pub jobs: Vec<u32>,
    /// Interrupts of its vector taken by the CPU that owns the queue.
    pub interrupts: u64,
    /// Looks at the queue after an interrupt that found nothing: earlier looks had already taken the completions.
    pub spurious: u64,
    /// Completions that the watchdog found though no interrupt had come.
    pub missed: u64,
    /// Commands written.
    pub submissions: u64,
    /// Completions taken.
    pub completions: u64,
    /// Writes of the submission tail doorbell.
    pub sq_doorbells: u64,
    /// Writes of the completion head doorbell.
    pub cq_doorbells: u64,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Index.
    pub cpu: u32,
    /// Id in hardware: x2APIC id, MPIDR, server number.
    pub hardware_id: u32,
    /// Device interrupts taken.
    pub interrupts: u64,
    /// Device interrupts of a vector that was not routed to this CPU.
    pub wrong_cpu: u64,
    /// Interrupts that nobody had asked for.
    pub unexpected: u64,
    /// End-of-interrupt writes, those of timer and wake-up included.
    pub eois: u64,
    /// Watchdog timer interrupts.
    pub ticks: u64,
    /// Times it halted.
    pub halts: u64,
    /// Looks for completions that found none.
    pub empty_polls: u64,
    /// Interrupts found pending, by a CPU that has them masked (`wait=pending`, `hybrid`).
    pub pending_hits: u64,
    /// Interrupts that such a CPU accepted though the look before had not found them pending: they came just then, or ended a
    /// halt.
    pub pending_late: u64,
    /// What one look for pending interrupts costs: the median of many before the run; 0 where none is made.
    pub pending_look_ns: u64,
    /// How long `hybrid` polled before a halt, at last.
    pub poll_length_ns: u64,
    /// Time halted. What is neither this nor polling is work.
    pub halted_ns: u64,
    /// Time spent looking in vain.
    pub polling_ns: u64,
}

/// One job instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Which of the jobs it is a copy of, by its place in [`Report::arguments`].
    pub job: u32,
    /// Index among all copies of all jobs.
    pub index: u32,
    /// The CPU that ran it.
    pub cpu: u32,
    /// How completions were truly found.
    pub wait: Wait,
    /// Namespaces that it used.
    pub files: Vec<String>,
    /// Bytes that it covered of each of these, in their order.
    pub area_bytes: Vec<u64>,
    /// Length of its measured window.
    pub runtime_ns: u64,
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// How many I/Os were in flight when one was submitted: fio's rows 1, 2, 4, 8, 16, 32, 64 and more.
    pub depths: [u64; 7],
    /// I/Os per submission batch: fio's rows 0, 4, 8, 16, 32, 64, more.
    pub submit_batches: [u64; 7],
    /// I/Os per completion batch, likewise.
    pub complete_batches: [u64; 7],
    /// Commands that failed, by status.
    pub errors: Vec<ErrorCount>,
    /// Blocks compared with their pattern.
    pub verified_blocks: u64,
    /// Blocks that differed.
    pub miscompares: u64,
    /// The first that differed.
    pub first_miscompare: Option<Miscompare>,
}

/// Reads or writes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direction {
    /// I/Os completed, failed ones included.
    pub ios: u64,
    /// Bytes moved by those that succeeded.
    pub bytes: u64,
    /// From the first look at the clock to the doorbell: I/Os of one batch share it.
    pub slat: LatencyReport,
    /// From the doorbell to the completion being taken from the queue.
    pub clat: LatencyReport,
    /// The sum of the two.
    pub lat: LatencyReport,
    /// Bandwidth in KiB/s, over intervals of half a second.
    pub bw_kib: Summary,
    /// IOPS over the same intervals.
    pub iops: Summary,
}

/// A status with which commands failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// `nvme0n1`.
    pub namespace: String,
    /// The specification's name of the status.
    pub status: String,
    /// Status code type and status code, `sct << 8 | sc`.
    pub code: u16,
    /// How often.
    pub count: u64,
}

/// A block that did not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miscompare {
    /// `nvme0n1`.
    pub namespace: String,
    /// Logical block address.
    pub lba: u64,
    /// Byte offset in the namespace of the first word that differs.
    pub offset: u64,
    /// What it should be.
    pub expected: u64,
    /// What it is.
    pub found: u64,
}

impl Report {
    /// What a job instance was told to do. A report from elsewhere may name a job that is not there.
    pub fn spec(&self, job: &Job) -> Option<&JobSpec> {
        self.arguments.jobs.get(job.job as usize)
    }

    /// Commands that failed, miscompares included.
    pub fn errors(&self) -> u64 {
        let counts = |job: &Job| {
            job.errors
                .iter()
                .map(|error| error.count)
                .fold(job.miscompares, u64::saturating_add)
        };
        self.jobs.iter().map(counts).fold(0, u64::saturating_add)
    }
}
