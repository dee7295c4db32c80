//! What to do: jobs in fio's words.
//!
//! A [`JobSet`] is what a guest is told to do: how the run as a whole goes ([`RunSpec`]), and its jobs ([`JobSpec`]). Which
//! options there are, and how they are written, is in [`options`](crate::options).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::parse_size;

/// The largest block that a job may ask for, in bytes.
pub const MAX_BLOCK_SIZE: u64 = 1 << 30;
/// The deepest queue that a job may ask for.
pub const MAX_IODEPTH: u64 = 65_535;
/// How long `hybrid` looks unless the run says otherwise, in microseconds: KVM's own bound on x86.
pub const DEFAULT_HYBRID_US: u64 = 200;
/// How long `hybrid` may look at most, in microseconds.
pub const MAX_HYBRID_US: u64 = 1_000_000;
/// How long a command may be given, in microseconds: time is looked at ten times a second.
pub const COMMAND_TIMEOUT_US: RangeInclusive<u64> = 200_000..=3_600_000_000;
/// The most copies of a job, and the most of all jobs together.
pub const MAX_NUMJOBS: u64 = 4096;
/// The most queue pairs of one controller that a CPU may own.
pub const MAX_QUEUES_PER_CPU: u64 = 64;
/// Declares an enum whose variants have a name in options and reports.
macro_rules! named {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $text:literal $(| $alias:literal)*,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$inner])* #[serde(rename = $text)] $variant,)+ }

        impl $name {
            /// All names, in the order of the documentation.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name in options and reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = Choice;

            fn from_str(text: &str) -> Result<Self, Choice> {
                match text {
                    $($text $(| $alias)* => Ok(Self::$variant),)+
                    _ => Err(Choice { value: text.to_string(), known: Self::NAMES }),
                }
            }
        }
    };
}

/// A word that is none of the known ones.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{value}` is none of {}", known.join(", "))]
pub struct Choice {
    /// What was given.
    pub value: String,
    /// What would do.
    pub known: &'static [&'static str],
}

named! {
    /// The kind of load (`rw`).
    Load {
        /// Sequential reads.
        Read = "read",
        /// Sequential writes.
        Write = "write",
        /// Random reads.
        RandRead = "randread",
        /// Random writes.
        RandWrite = "randwrite",
        /// Sequential reads and writes, mixed.
        ReadWrite = "rw" | "readwrite",
        /// Random reads and writes, mixed.
        RandReadWrite = "randrw",
    }
}

impl Load {
    /// Whether the job writes to the device.
    pub const fn writes(self) -> bool {
        matches!(
            self,
            Self::Write | Self::RandWrite | Self::ReadWrite | Self::RandReadWrite
        )
    }

    /// Whether the job reads from the device.
    pub const fn reads(self) -> bool {
        matches!(
            self,
            Self::Read | Self::RandRead | Self::ReadWrite | Self::RandReadWrite
        )
    }

    /// Whether blocks come in random order.
    pub const fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite)
    }
}

named! {
    /// How a CPU finds completions (`wait`).
    Wait {
        /// The CPU keeps running; an interrupt marks the queue that has completions.
        Interrupt = "interrupt",
        /// The CPU halts when it has nothing to do; an interrupt wakes it.
        Halt = "halt",
        /// The CPU looks at the queue; its queues are made without interrupts.
        Poll = "poll",
        /// The CPU masks interrupts, and looks which ones its interrupt controller has pending.
        Pending = "pending",
        /// As `pending` for a while, then the CPU halts.
        Hybrid = "hybrid",
    }
}

impl Wait {
    /// Whether the queues need interrupt vectors.
    pub const fn uses_interrupts(self) -> bool {
        !matches!(self, Self::Poll)
    }

    /// Whether interrupts stay masked while the CPU works.
    pub const fn masks_interrupts(self) -> bool {
        matches!(self, Self::Pending | Self::Hybrid)
    }
}

named! {
    /// Which queues share an interrupt vector (`vectors`).
    Vectors {
        /// None, as far as a controller has MSI-X entries enough.
        PerQueue = "per-queue",
        /// Those of a controller on the same CPU.
        PerController = "per-controller",
        /// All on the same CPU.
        Shared = "shared",
    }
}

named! {
    /// What reads check and writes leave (`verify`).
    Verify {
        /// Nothing is checked; writes leave whatever the buffer holds.
        None = "none" | "0",
        /// Contents that are a function of their place: [`crate::pattern`].
        Pattern = "pattern",
    }
}

named! {
    /// How copies of a job share the CPUs of `cpus_allowed`.
    CpuPolicy {
        /// In turn.
        Shared = "shared",
        /// One CPU each; more copies than CPUs begin again.
        Split = "split",
    }
}

/// How much of each namespace a job covers, or where it begins (`size`, `io_size`, `offset`, `offset_increment`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// This many bytes.
    Bytes(u64),
    /// This share of the namespace, 0 to 100.
    Percent(u8),
}

impl Size {
    /// Nothing.
    pub const ZERO: Self = Self::Bytes(0);

    /// As bytes of a namespace of `whole` bytes.
    pub const fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole as u128 * percent as u128 / 100) as u64,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(percent @ 0..=100) => Ok(Self::Percent(percent)),
                _ => Err(format!("`{text}` is not 0% to 100%")),
            },
            None => parse_size(text).map(Self::Bytes).map_err(|error| error.to_string()),
        }
    }
}

/// How the run as a whole goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// How completions are found.
    pub wait: Wait,
    /// How long `hybrid` looks before it halts, in microseconds.
    pub hybrid_us: u64,
    /// `hybrid` finds the length itself, with `hybrid_us` as its bound.
    pub adaptive: bool,
    /// Queue pairs of each controller that each CPU owns, as far as they are granted.
    pub queues_per_cpu: u64,
    /// Which queues share a vector.
    pub vectors: Vectors,
    /// How long a command may take before it is aborted, and the controller reset if that does not help, in microseconds.
    pub command_timeout_us: u64,
    /// Issue writes again that a controller reset has cut off; without it they count as failed.
    pub retry_writes: bool,
    /// Leave doorbell values in memory where the controller offers that, and ring only when it asks.
    pub shadow_doorbells: bool,
    /// Writes to devices are allowed.
    pub allow_write: bool,
}

impl Default for RunSpec {
    fn default() -> Self {
        Self {
            wait: Wait::Interrupt,
            hybrid_us: DEFAULT_HYBRID_US,
            adaptive: false,
            queues_per_cpu: 1,
            vectors: Vectors::PerQueue,
            // As long as Linux gives it.
            command_timeout_us: 30_000_000,
            retry_writes: false,
            shadow_doorbells: false,
            allow_write: false,
        }
    }
}

/// One job: a load, `numjobs` times. Numbers that are 0 by default mean that nothing is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Name in reports.
    pub name: String,
    /// Kind of load.
    pub rw: Load,
    /// Bytes per I/O.
    pub bs: u64,
    /// I/Os begin at multiples of this many bytes; 0: of `bs`.
    pub blockalign: u64,
    /// I/Os in flight per copy, over all its namespaces.
    pub iodepth: u64,
    /// Copies of the job.
    pub numjobs: u64,
    /// The namespaces that it uses, by name, with `:` between; nothing: all.
    pub filename: String,
    /// The part of each namespace that is covered.
    pub size: Size,
    /// Bytes that are moved in each namespace; nothing: those of `size`.
    pub io_size: Size,
    /// Where that part begins.
    pub offset: Size,
    /// How much later each further copy begins.
    pub offset_increment: Size,
    /// At most this many I/Os per copy.
    pub number_ios: u64,
    /// How often `size` is gone through.
    pub loops: u64,
    /// How long to run at most, in microseconds; 0: until `size` is done.
    pub runtime_us: u64,
    /// Go round again when `size` is done, until `runtime` is over.
    pub time_based: bool,
    /// How long to run before measuring begins, in microseconds.
    pub ramp_time_us: u64,
    /// How long to wait before the first I/O, in microseconds.
    pub startdelay_us: u64,
    /// Reads in 100 I/Os of a mixed load.
    pub rwmixread: u64,
    /// The same random numbers in each run.
    pub randrepeat: bool,
    /// Start of the random numbers.
    pub randseed: u64,
    /// Do not care whether random blocks come once each.
    pub norandommap: bool,
    /// What reads check and writes leave.
    pub verify: Verify,
    /// Flush each namespace that was written, at the end of the job.
    pub end_fsync: bool,
    /// Go on when a command fails.
    pub continue_on_error: bool,
    /// When this job ends, all end.
    pub exitall: bool,
    /// Wait until all jobs before this one are done.
    pub stonewall: bool,
    /// Begin a group of reports.
    pub new_group: bool,
    /// Report all jobs of a group together.
    pub group_reporting: bool,
    /// The CPUs that its copies may run on; none: all.
    pub cpus_allowed: Vec<u16>,
    /// How the copies share them.
    pub cpus_allowed_policy: CpuPolicy,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            name: "job".to_string(),
            rw: Load::Read,
            bs: 4096,
            blockalign: 0,
            iodepth: 1,
            numjobs: 1,
            filename: String::new(),
            size: Size::Percent(100),
            io_size: Size::ZERO,
            offset: Size::ZERO,
            offset_increment: Size::ZERO,
            number_ios: 0,
            loops: 1,
            runtime_us: 0,
            time_based: false,
            ramp_time_us: 0,
            startdelay_us: 0,
            rwmixread: 50,
            randrepeat: true,
            randseed: 0x8989,
            norandommap: false,
            verify: Verify::None,
            end_fsync: false,
            continue_on_error: true,
            exitall: false,
            stonewall: false,
            new_group: false,
            group_reporting: false,
            cpus_allowed: Vec::new(),
            cpus_allowed_policy: CpuPolicy::Shared,
        }
    }
}

impl JobSpec {
    /// How long a run of it takes that is bounded by time, in microseconds.
    pub const fn longest_us(&self) -> Option<u64> {
        match self.runtime_us {
            0 => None,
            runtime => Some(self.delay_us().saturating_add(runtime)),
        }
    }

    /// How long after its phase begins it is measured, in microseconds.
    pub const fn delay_us(&self) -> u64 {
        self.startdelay_us.saturating_add(self.ramp_time_us)
    }

    /// Whether it uses this namespace (`nvme0n1`).
    pub fn uses(&self, namespace: &str) -> bool {
        self.filename.is_empty() || self.files().any(|name| name == namespace)
    }

    /// The namespaces that it names.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.filename.split(':').filter(|name| !name.is_empty())
    }
}

/// Everything a guest is told to do. It travels as its [arguments](JobSet::to_arguments).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct JobSet {
    /// How the run goes.
    pub run: RunSpec,
    /// The jobs, at least one.
    pub jobs: Vec<JobSpec>,
}

impl Default for JobSet {
    fn default() -> Self {
        Self {
            run: RunSpec::default(),
            jobs: vec![JobSpec::default()],
        }
    }
}

impl From<JobSet> for String {
    fn from(set: JobSet) -> Self {
        set.to_arguments()
    }
}

impl TryFrom<String> for JobSet {
    type Error = JobError;

    fn try_from(text: String) -> Result<Self, JobError> {
        Self::from_arguments(&text)
    }
}

/// An option that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// No option has this name.
    #[error("unknown option `{name}`{}", hint(nearest))]
    Unknown {
        /// What was given.
        name: String,
        /// The option that it resembles.
        nearest: Option<&'static str>,
    },
    /// A value does not fit its option.
    #[error("{name}: {problem}")]
    Value {
        /// The option.
        name: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The options do not fit together.
    #[error("{0}")]
    Conflict(String),
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

impl JobSet {
    /// Copies of all jobs.
    pub fn instances(&self) -> u64 {
        self.jobs.iter().map(|job| job.numjobs).sum()
    }

    /// The jobs that run at the same time: ranges of their list, one after the other.
    pub fn phases(&self) -> Vec<core::ops::Range<usize>> {
        let mut phases = Vec::new();
        let mut first = 0;
        for (number, job) in self.jobs.iter().enumerate().skip(1) {
            if job.stonewall {
                phases.push(first..number);
                first = number;
            }
        }
        phases.push(first..self.jobs.len());
        phases
    }

    /// How long a run takes if each of its phases is bounded by time, in microseconds.
    pub fn longest_us(&self) -> Option<u64> {
        let phase = |jobs: &[JobSpec]| {
            jobs.iter()
                .map(JobSpec::longest_us)
                .try_fold(0, |most, us| Some(us?.max(most)))
        };
        self.phases()
            .into_iter()
            .try_fold(0u64, |sum, jobs| Some(sum.saturating_add(phase(&self.jobs[jobs])?)))
    }

    /// The most copies that run at the same time.
    pub fn widest(&self) -> u64 {
        let copies = |jobs: &[JobSpec]| jobs.iter().map(|job| job.numjobs).sum();
        self.phases()
            .into_iter()
            .map(|jobs| copies(&self.jobs[jobs]))
            .max()
            .unwrap_or(0)
    }

    /// The longest block of any job.
    pub fn max_block(&self) -> u64 {
        self.jobs.iter().map(|job| job.bs).max().unwrap_or(0)
    }

    /// Checks what no single option shows.
    ///
    /// # Errors
    /// [`JobError::Conflict`] with the way out.
    pub fn check(&self) -> Result<(), JobError> {
        let run = &self.run;
        if run.wait != Wait::Hybrid && (run.adaptive || run.hybrid_us != DEFAULT_HYBRID_US) {
            return Err(JobError::Conflict(format!(
                "hybrid and adaptive say how long wait=hybrid looks, and wait is {}; add --wait hybrid",
                run.wait
            )));
        }
        if self.instances() > MAX_NUMJOBS {
            return Err(JobError::Conflict(format!(
                "the jobs have {} copies together, and {MAX_NUMJOBS} can run; use a smaller numjobs",
                self.instances()
            )));
        }
        for job in &self.jobs {
            self.check_job(job).map_err(|problem| {
                JobError::Conflict(match self.jobs.len() {
                    1 => problem,
                    _ => format!("job {}: {problem}", job.name),
                })
            })?;
        }
        Ok(())
    }

    fn check_job(&self, job: &JobSpec) -> Result<(), String> {
        if job.rw.writes() && !self.run.allow_write {
            return Err(format!(
                "rw={} writes to the drive, which destroys what it holds; add --allow-write (allow_write in boot arguments) if that is meant",
                job.rw
            ));
        }
        if job.time_based && job.runtime_us == 0 {
            return Err("time_based needs a runtime; add --runtime SECONDS".to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_end_at_a_stonewall() {
        let job = |stonewall, runtime_us, numjobs| JobSpec {
            stonewall,
            runtime_us,
            numjobs,
            startdelay_us: 1,
            ..JobSpec::default()
        };
        let mut set = JobSet {
            jobs: vec![job(true, 5, 1), job(false, 9, 2), job(true, 7, 2)],
            ..JobSet::default()
        };
        assert_eq!(set.phases(), [0..2, 2..3]);
        assert_eq!((set.longest_us(), set.instances(), set.widest()), (Some(18), 5, 3));
        set.jobs[1].runtime_us = 0;
        assert_eq!(set.longest_us(), None);
    }

    #[test]
    fn sizes_are_bytes_or_a_share() {
        assert_eq!("25%".parse::<Size>().unwrap().of(1 << 20), 1 << 18);
        assert_eq!("64k".parse::<Size>().unwrap().of(1), 65536);
        assert_eq!("101%".parse::<Size>().unwrap_err(), "`101%` is not 0% to 100%");
    }
}
