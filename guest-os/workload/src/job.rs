//! What to do: jobs in fio's words.
//!
//! The same names serve the command line (`--bs 4k`), and the guest's boot arguments (`bs=4k`), by which the host hands the
//! job over and by which a person can start the guest without the host side.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::{UnitError, parse_size, parse_time_us};

/// The largest block that a job may ask for, in bytes.
pub const MAX_BLOCK_SIZE: u64 = 1 << 30;
/// The deepest queue that a job may ask for.
pub const MAX_IODEPTH: u64 = 65_535;
/// How long a command is given unless the job says otherwise, in microseconds: as long as Linux gives it.
const DEFAULT_COMMAND_TIMEOUT_US: u64 = 30_000_000;
/// How long `hybrid` looks unless the job says otherwise, in microseconds: KVM's own bound on x86.
const DEFAULT_HYBRID_US: u64 = 200;
/// How long `hybrid` may look at most, in microseconds.
pub const MAX_HYBRID_US: u64 = 1_000_000;
/// How long a command may be given, in microseconds: time is looked at ten times a second.
pub const COMMAND_TIMEOUT_US: RangeInclusive<u64> = 200_000..=3_600_000_000;
/// The most copies of a job.
pub const MAX_NUMJOBS: u64 = 4096;

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
        !matches!(self, Self::Read | Self::RandRead)
    }

    /// Whether the job reads from the device.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite)
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
    /// What reads check and writes leave (`verify`).
    Verify {
        /// Nothing is checked; writes leave whatever the buffer holds.
        None = "none" | "0",
        /// Contents that are a function of their place: [`crate::pattern`].
        Pattern = "pattern",
    }
}

/// How much of each namespace a job covers (`size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// This many bytes from the start.
    Bytes(u64),
    /// This share of the namespace, 1 to 100.
    Percent(u8),
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// One job: a load, `numjobs` times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name in reports.
    pub name: String,
    /// Kind of load.
    pub rw: Load,
    /// Bytes per I/O.
    pub bs: u64,
    /// I/Os in flight per job, over all its namespaces.
    pub iodepth: u32,
    /// Copies of the job, each on a CPU of its own.
    pub numjobs: u32,
    /// How long to run at most, in microseconds; None: until `size` bytes are done.
    pub runtime_us: Option<u64>,
    /// How long to run before measuring begins, in microseconds.
    pub ramp_time_us: u64,
    /// Go round again when `size` is done, until `runtime` is over.
    pub time_based: bool,
    /// The part of each namespace that is covered.
    pub size: Size,
    /// At most this many I/Os per job.
    pub number_ios: Option<u64>,
    /// Reads in 100 I/Os of a mixed load.
    pub rwmixread: u8,
    /// Start of the random numbers; the same seed gives the same I/Os.
    pub randseed: u64,
    /// Do not care whether random blocks come once each.
    pub norandommap: bool,
    /// How completions are found.
    pub wait: Wait,
    /// How long `hybrid` looks before it halts, in microseconds.
    pub hybrid_us: u64,
    /// `hybrid` finds the length itself, with `hybrid_us` as its bound.
    pub adaptive: bool,
    /// What reads check and writes leave.
    pub verify: Verify,
    /// Flush each namespace that was written, at the end of the job.
    pub end_fsync: bool,
    /// How long a command may take before it is aborted, and the controller reset if that does not help, in microseconds.
    pub command_timeout_us: u64,
    /// Issue writes again that a controller reset has cut off; without it they count as failed.
    pub retry_writes: bool,
    /// Leave doorbell values in memory where the controller offers that, and ring only when it asks.
    pub shadow_doorbells: bool,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            name: "job".to_string(),
            rw: Load::Read,
            bs: 4096,
            iodepth: 1,
            numjobs: 1,
            runtime_us: None,
            ramp_time_us: 0,
            time_based: false,
            size: Size::Percent(100),
            number_ios: None,
            rwmixread: 50,
            randseed: 0x8989,
            norandommap: false,
            wait: Wait::Interrupt,
            hybrid_us: DEFAULT_HYBRID_US,
            adaptive: false,
            verify: Verify::None,
            end_fsync: false,
            command_timeout_us: DEFAULT_COMMAND_TIMEOUT_US,
            retry_writes: false,
            shadow_doorbells: false,
        }
    }
}

/// Everything a guest is told to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSet {
    /// The job.
    pub job: JobSpec,
    /// Writes to devices are allowed.
    pub allow_write: bool,
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
    /// A size or time is malformed.
    #[error("{name}: {error}")]
    Unit {
        /// The option.
        name: String,
        /// What is wrong.
        error: UnitError,
    },
    /// A word is none of the known ones.
    #[error("{name}: {error}")]
    Choice {
        /// The option.
        name: String,
        /// What is wrong.
        error: Choice,
    },
    /// A number is out of its range.
    #[error("{name}: `{value}` is not a whole number from {min} to {max}")]
    Range {
        /// The option.
        name: String,
        /// What was given.
        value: String,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// The options do not fit together.
    #[error("{0}")]
    Conflict(String),
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// Names of all options of a job set, as in boot arguments.
pub const OPTIONS: &[&str] = &[
    "name",
    "rw",
    "bs",
    "iodepth",
    "numjobs",
    "runtime",
    "ramp_time",
    "time_based",
    "size",
    "number_ios",
    "rwmixread",
    "randseed",
    "norandommap",
    "wait",
    "hybrid",
    "adaptive",
    "verify",
    "allow_write",
    "end_fsync",
    "command_timeout",
    "retry_writes",
    "shadow_doorbells",
];

impl JobSet {
    /// Sets one option by its name.
    ///
    /// # Errors
    /// When the name is unknown or the value does not fit; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), JobError> {
        let unit = |error| JobError::Unit {
            name: name.to_string(),
            error,
        };
        let choice = |error| JobError::Choice {
            name: name.to_string(),
            error,
        };
        let range = |min, max| {
            let error = || JobError::Range {
                name: name.to_string(),
                value: value.to_string(),
                min,
                max,
            };
            value.parse().ok().filter(|n| (min..=max).contains(n)).ok_or_else(error)
        };
        let size = |min, max| {
            let bytes = parse_size(value).map_err(unit)?;
            if (min..=max).contains(&bytes) {
                Ok(bytes)
            } else {
                Err(JobError::Range {
                    name: name.to_string(),
                    value: value.to_string(),
                    min,
                    max,
                })
            }
        };
        let flag = || match value {
            "" | "1" => Ok(true),
            "0" => Ok(false),
            _ => Err(JobError::Range {
                name: name.to_string(),
                value: value.to_string(),
                min: 0,
                max: 1,
            }),
        };
        let job = &mut self.job;
        match name {
            "name" => {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if value.is_empty() || value.len() > 64 || !value.chars().all(plain) {
                    return Err(JobError::Conflict(format!(
                        "name: `{value}` is not 1 to 64 letters, digits, `-`, `_` or `.`"
                    )));
                }
                job.name = value.to_string();
            }
            "rw" => job.rw = value.parse().map_err(choice)?,
            "bs" => job.bs = size(1, MAX_BLOCK_SIZE)?,
            "iodepth" => job.iodepth = range(1, MAX_IODEPTH)? as u32,
            "numjobs" => job.numjobs = range(1, MAX_NUMJOBS)? as u32,
            "runtime" => job.runtime_us = Some(parse_time_us(value).map_err(unit)?).filter(|us| *us > 0),
            "ramp_time" => job.ramp_time_us = parse_time_us(value).map_err(unit)?,
            "time_based" => job.time_based = flag()?,
            "size" => {
                job.size = match value.strip_suffix('%') {
                    Some(percent) => {
                        let error = || JobError::Range {
                            name: name.to_string(),
                            value: value.to_string(),
                            min: 1,
                            max: 100,
                        };
                        Size::Percent(
                            percent
                                .parse()
                                .ok()
                                .filter(|n| (1..=100).contains(n))
                                .ok_or_else(error)?,
                        )
                    }
                    None => Size::Bytes(size(1, u64::MAX)?),
                }
            }
            "number_ios" => job.number_ios = Some(range(1, u64::MAX)?),
            "rwmixread" => job.rwmixread = range(0, 100)? as u8,
            "randseed" => job.randseed = range(0, u64::MAX)?,
            "norandommap" => job.norandommap = flag()?,
            "wait" => job.wait = value.parse().map_err(choice)?,
            "hybrid" => job.hybrid_us = range(0, MAX_HYBRID_US)?,
            "adaptive" => job.adaptive = flag()?,
            "verify" => job.verify = value.parse().map_err(choice)?,
            "end_fsync" => job.end_fsync = flag()?,
            "command_timeout" => {
                let us = parse_time_us(value).map_err(unit)?;
                if !COMMAND_TIMEOUT_US.contains(&us) {
                    return Err(JobError::Conflict(format!(
                        "command_timeout: `{value}` is not 200ms to 1h"
                    )));
                }
                job.command_timeout_us = us;
            }
            "retry_writes" => job.retry_writes = flag()?,
            "shadow_doorbells" => job.shadow_doorbells = flag()?,
            "allow_write" => self.allow_write = flag()?,
            _ => {
                return Err(JobError::Unknown {
                    name: name.to_string(),
                    nearest: nearest(name),
                });
            }
        }
        Ok(())
    }

    /// Reads boot arguments: options separated by white space, `name=value` or a bare `name` for a flag.
    ///
    /// # Errors
    /// At the first option that is wrong, or when the options do not fit together.
    pub fn from_arguments(arguments: &str) -> Result<Self, JobError> {
        let mut set = Self::default();
        for word in arguments.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            set.set(name, value)?;
        }
        set.check()?;
        Ok(set)
    }

    /// The boot arguments that [`from_arguments`](Self::from_arguments) reads back to this job set.
    pub fn to_arguments(&self) -> String {
        let job = &self.job;
        let mut words: Vec<String> = Vec::new();
        words.push(format!(
            "name={} rw={} bs={} iodepth={} numjobs={}",
            job.name, job.rw, job.bs, job.iodepth, job.numjobs
        ));
        if let Some(us) = job.runtime_us {
            words.push(format!("runtime={us}us"));
        }
        if job.ramp_time_us > 0 {
            words.push(format!("ramp_time={}us", job.ramp_time_us));
        }
        words.push(format!(
            "size={} rwmixread={} randseed={} wait={} verify={}",
            job.size, job.rwmixread, job.randseed, job.wait, job.verify
        ));
        if let Some(ios) = job.number_ios {
            words.push(format!("number_ios={ios}"));
        }
        if job.hybrid_us != DEFAULT_HYBRID_US {
            words.push(format!("hybrid={}", job.hybrid_us));
        }
        if job.command_timeout_us != DEFAULT_COMMAND_TIMEOUT_US {
            words.push(format!("command_timeout={}us", job.command_timeout_us));
        }
        for (name, on) in [
            ("time_based", job.time_based),
            ("norandommap", job.norandommap),
            ("adaptive", job.adaptive),
            ("end_fsync", job.end_fsync),
            ("retry_writes", job.retry_writes),
            ("shadow_doorbells", job.shadow_doorbells),
            ("allow_write", self.allow_write),
        ] {
            if on {
                words.push(name.to_string());
            }
        }
        words.join(" ")
    }

    /// Checks what no single option shows.
    ///
    /// # Errors
    /// [`JobError::Conflict`] with the way out.
    pub fn check(&self) -> Result<(), JobError> {
        let job = &self.job;
        if job.rw.writes() && !self.allow_write {
            return Err(JobError::Conflict(format!(
                "rw={} writes to the drive, which destroys what it holds; add --allow-write (allow_write in boot arguments) if that is meant",
                job.rw
            )));
        }
        if job.wait != Wait::Hybrid && (job.adaptive || job.hybrid_us != DEFAULT_HYBRID_US) {
            return Err(JobError::Conflict(format!(
                "hybrid and adaptive say how long wait=hybrid looks, and wait is {}; add --wait hybrid",
                job.wait
            )));
        }
        if job.time_based && job.runtime_us.is_none() {
            return Err(JobError::Conflict(
                "time_based needs a runtime; add --runtime SECONDS".to_string(),
            ));
        }
        Ok(())
    }
}

/// The known option that is fewest edits away, if that is few enough to be a slip.
pub fn nearest(name: &str) -> Option<&'static str> {
    let near = OPTIONS.iter().map(|option| (edits(name, option), *option)).min()?;
    (near.0 <= 1 + name.len() / 4).then_some(near.1)
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_read_as_written() {
        let set = JobSet::from_arguments("rw=randrw bs=8k iodepth=32 numjobs=2 runtime=5 ramp_time=500ms time_based norandommap size=50% allow_write").unwrap();
        assert!(set.allow_write && set.job.time_based && set.job.norandommap);
        assert_eq!(
            (set.job.rw, set.job.bs, set.job.size),
            (Load::RandReadWrite, 8192, Size::Percent(50))
        );
        assert_eq!((set.job.runtime_us, set.job.ramp_time_us), (Some(5_000_000), 500_000));
        assert_eq!(JobSet::from_arguments("  ").unwrap(), JobSet::default());
        assert_eq!(
            JobSet::from_arguments("rw=readwrite allow_write=1").unwrap().job.rw,
            Load::ReadWrite
        );
    }

    #[test]
    fn errors_name_the_option_and_the_way_out() {
        let error = |arguments: &str| JobSet::from_arguments(arguments).unwrap_err().to_string();
        assert_eq!(error("iodetph=4"), "unknown option `iodetph`; did you mean `iodepth`?");
        assert_eq!(error("colour=red"), "unknown option `colour`");
        assert_eq!(error("bs=4q"), "bs: `q` in `4q` is no unit; known are k, m, g, t, p");
        assert_eq!(error("bs=0"), "bs: `0` is not a whole number from 1 to 1073741824");
        assert_eq!(error("iodepth=0"), "iodepth: `0` is not a whole number from 1 to 65535");
        assert_eq!(
            error("iodepth=-1"),
            "iodepth: `-1` is not a whole number from 1 to 65535"
        );
        assert_eq!(
            error("rw=sideways"),
            "rw: `sideways` is none of read, write, randread, randwrite, rw, randrw"
        );
        assert_eq!(error("size=0%"), "size: `0%` is not a whole number from 1 to 100");
        assert_eq!(
            error("wait=never"),
            "wait: `never` is none of interrupt, halt, poll, pending, hybrid"
        );
        for words in ["hybrid=50", "adaptive wait=pending"] {
            assert!(error(words).ends_with("; add --wait hybrid"), "{}", error(words));
        }
        assert_eq!(error("time_based"), "time_based needs a runtime; add --runtime SECONDS");
        assert_eq!(
            error("name=a;b"),
            "name: `a;b` is not 1 to 64 letters, digits, `-`, `_` or `.`"
        );
        assert!(error("rw=randwrite").contains("--allow-write"));
    }

    #[test]
    fn every_option_can_be_set() {
        for name in OPTIONS {
            let value = match *name {
                "rw" => "read",
                "wait" => "poll",
                "verify" => "none",
                "command_timeout" => "5s",
                _ => "1",
            };
            assert_eq!(JobSet::default().set(name, value), Ok(()), "{name}");
        }
    }

    prop_compose! {
        fn any_set()(
            names in ("[a-z][a-z0-9_.-]{0,20}", 0..Load::NAMES.len(), 0..Wait::NAMES.len(), 0..Verify::NAMES.len()),
            numbers in (1..=MAX_BLOCK_SIZE, 1..=MAX_IODEPTH as u32, 1..=MAX_NUMJOBS as u32, 0..=100u8, any::<u64>()),
            times in (prop::option::of(1..u64::MAX), 0..u64::MAX),
            size in prop_oneof![(1..u64::MAX).prop_map(Size::Bytes), (1..=100u8).prop_map(Size::Percent)],
            number_ios in prop::option::of(1..u64::MAX),
            flags in any::<[bool; 6]>(),
            command_timeout_us in COMMAND_TIMEOUT_US,
            hybrid_us in 0..=MAX_HYBRID_US,
        ) -> JobSet {
            let rw: Load = Load::NAMES[names.1].parse().unwrap();
            let wait: Wait = Wait::NAMES[names.2].parse().unwrap();
            let hybrid = wait == Wait::Hybrid;
            JobSet {
                allow_write: rw.writes(),
                job: JobSpec {
                    name: names.0, rw, wait, verify: Verify::NAMES[names.3].parse().unwrap(),
                    bs: numbers.0, iodepth: numbers.1, numjobs: numbers.2, rwmixread: numbers.3, randseed: numbers.4,
                    runtime_us: times.0, ramp_time_us: times.1, size, number_ios,
                    time_based: flags[0] && times.0.is_some(), norandommap: flags[1], end_fsync: flags[2], retry_writes: flags[3],
                    shadow_doorbells: flags[4], command_timeout_us,
                    hybrid_us: if hybrid { hybrid_us } else { DEFAULT_HYBRID_US }, adaptive: hybrid && flags[5],
                },
            }
        }
    }

    proptest! {
        #[test]
        fn arguments_come_back_as_the_same_job(set in any_set()) {
            prop_assert_eq!(JobSet::from_arguments(&set.to_arguments()), Ok(set));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC{0,80}") {
            let _ = JobSet::from_arguments(&text);
        }
    }
}
