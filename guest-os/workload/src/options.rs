//! The options of jobs and runs: their names, what they take, and how they are written.
//!
//! One table serves the command line (`--bs 4k`), job files (`bs=4k`), and the guest's boot arguments (`bs=4k`), by which the
//! host hands the jobs over and by which a person can start the guest without the host side. In boot arguments each `name=`
//! begins a job; what stands before the first holds for all.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Display;
use core::ops::RangeInclusive;
use core::str::FromStr;

use crate::job::{
    COMMAND_TIMEOUT_US, JobError, JobSet, JobSpec, MAX_BLOCK_SIZE, MAX_HYBRID_US, MAX_IODEPTH, MAX_NUMJOBS,
    MAX_QUEUES_PER_CPU, RunSpec, Size,
};
use crate::units::{parse_size, parse_time};

/// One job and the run that it is part of, as options set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How the run goes.
    pub run: RunSpec,
    /// The job.
    pub job: JobSpec,
}

/// An option.
pub struct JobOption {
    /// Its name, as fio has it where fio has it.
    pub name: &'static str,
    kind: Kind,
}

enum Kind {
    /// `1`, `0`, or nothing for 1.
    Flag(fn(&mut Settings) -> &mut bool),
    /// A whole number.
    Number(RangeInclusive<u64>, fn(&mut Settings) -> &mut u64),
    /// Bytes.
    Bytes(RangeInclusive<u64>, fn(&mut Settings) -> &mut u64),
    /// A time in microseconds; a bare number is so many of them.
    Time(u64, fn(&mut Settings) -> &mut u64),
    /// Anything else: how it is read, and how it is written.
    Text(fn(&mut Settings, &str) -> Result<(), String>, fn(&Settings) -> String),
}

/// A bare number is in seconds.
const SECONDS: u64 = 1_000_000;

const ANY: RangeInclusive<u64> = 0..=u64::MAX;

/// Reads a word by its type, whose error tells what is wrong.
fn word<T: FromStr<Err: Display>>(place: &mut T, text: &str) -> Result<(), String> {
    *place = text.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(())
}

macro_rules! word {
    ($part:ident . $field:ident) => {
        Kind::Text(
            |settings, text| word(&mut settings.$part.$field, text),
            |settings| settings.$part.$field.to_string(),
        )
    };
}

macro_rules! at {
    ($part:ident . $field:ident) => {
        |settings| &mut settings.$part.$field
    };
}

const fn option(name: &'static str, kind: Kind) -> JobOption {
    JobOption { name, kind }
}

/// All options, in the order in which they are written.
pub const OPTIONS: &[JobOption] = &[
    option(
        "name",
        Kind::Text(
            |settings, text| {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
                    return Err(format!("`{text}` is not 1 to 64 letters, digits, `-`, `_` or `.`"));
                }
                settings.job.name = text.to_string();
                Ok(())
            },
            |settings| settings.job.name.clone(),
        ),
    ),
    option("rw", word!(job.rw)),
    option("bs", Kind::Bytes(1..=MAX_BLOCK_SIZE, at!(job.bs))),
    option("blockalign", Kind::Bytes(0..=MAX_BLOCK_SIZE, at!(job.blockalign))),
    option("iodepth", Kind::Number(1..=MAX_IODEPTH, at!(job.iodepth))),
    option("numjobs", Kind::Number(1..=MAX_NUMJOBS, at!(job.numjobs))),
    option(
        "filename",
        Kind::Text(
            |settings, text| {
                settings.job.filename = namespaces(text)?;
                Ok(())
            },
            |settings| settings.job.filename.clone(),
        ),
    ),
    option(
        "size",
        Kind::Text(
            |settings, text| {
                let size = text.parse()?;
                if matches!(size, Size::Bytes(0) | Size::Percent(0)) {
                    return Err(format!("`{text}` is nothing at all; give bytes, or 1% to 100%"));
                }
                settings.job.size = size;
                Ok(())
            },
            |settings| settings.job.size.to_string(),
        ),
    ),
    option("io_size", word!(job.io_size)),
    option("offset", word!(job.offset)),
    option("offset_increment", word!(job.offset_increment)),
    option("number_ios", Kind::Number(ANY, at!(job.number_ios))),
    option("loops", Kind::Number(1..=u64::MAX, at!(job.loops))),
    option("runtime", Kind::Time(SECONDS, at!(job.runtime_us))),
    option("time_based", Kind::Flag(at!(job.time_based))),
    option("ramp_time", Kind::Time(SECONDS, at!(job.ramp_time_us))),
    option("startdelay", Kind::Time(SECONDS, at!(job.startdelay_us))),
    option("rwmixread", Kind::Number(0..=100, at!(job.rwmixread))),
    option("randrepeat", Kind::Flag(at!(job.randrepeat))),
    option("randseed", Kind::Number(ANY, at!(job.randseed))),
    option("norandommap", Kind::Flag(at!(job.norandommap))),
    option("verify", word!(job.verify)),
    option("end_fsync", Kind::Flag(at!(job.end_fsync))),
    option(
        "continue_on_error",
        Kind::Text(
            |settings, text| {
                settings.job.continue_on_error = match text {
                    "" | "1" | "all" => true,
                    "0" | "none" => false,
                    _ => return Err(format!("`{text}` is none of none, all")),
                };
                Ok(())
            },
            |settings| if settings.job.continue_on_error { "all" } else { "none" }.to_string(),
        ),
    ),
    option("exitall", Kind::Flag(at!(job.exitall))),
    option("stonewall", Kind::Flag(at!(job.stonewall))),
    option("new_group", Kind::Flag(at!(job.new_group))),
    option("group_reporting", Kind::Flag(at!(job.group_reporting))),
    option(
        "cpus_allowed",
        Kind::Text(
            |settings, text| {
                settings.job.cpus_allowed = parse_cpus(text)?;
                Ok(())
            },
            |settings| {
                let cpus: Vec<String> = settings.job.cpus_allowed.iter().map(ToString::to_string).collect();
                cpus.join(",")
            },
        ),
    ),
    option("cpus_allowed_policy", word!(job.cpus_allowed_policy)),
    option("wait", word!(run.wait)),
    option("hybrid", Kind::Number(0..=MAX_HYBRID_US, at!(run.hybrid_us))),
    option("adaptive", Kind::Flag(at!(run.adaptive))),
    option(
        "queues_per_cpu",
        Kind::Number(1..=MAX_QUEUES_PER_CPU, at!(run.queues_per_cpu)),
    ),
    option("vectors", word!(run.vectors)),
    option(
        "command_timeout",
        Kind::Text(
            |settings, text| {
                let us = parse_time(text, SECONDS).map_err(|error| error.to_string())?;
                if !COMMAND_TIMEOUT_US.contains(&us) {
                    return Err(format!("`{text}` is not 200ms to 1h"));
                }
                settings.run.command_timeout_us = us;
                Ok(())
            },
            |settings| format!("{}us", settings.run.command_timeout_us),
        ),
    ),
    option("retry_writes", Kind::Flag(at!(run.retry_writes))),
    option("shadow_doorbells", Kind::Flag(at!(run.shadow_doorbells))),
    option("allow_write", Kind::Flag(at!(run.allow_write))),
];

/// Options that hold for the whole run, in whichever job they stand.
pub const RUN_OPTIONS: &[&str] = &[
    "wait",
    "hybrid",
    "adaptive",
    "queues_per_cpu",
    "vectors",
    "command_timeout",
    "retry_writes",
    "shadow_doorbells",
    "allow_write",
];

/// fio's other names of options.
pub const ALIASES: &[(&str, &str)] = &[
    ("readwrite", "rw"),
    ("blocksize", "bs"),
    ("ba", "blockalign"),
    ("io_limit", "io_size"),
    ("start_delay", "startdelay"),
    ("allrandrepeat", "randrepeat"),
];

/// Two options that are one to us: fio's `rwmixwrite` is what `rwmixread` leaves.
const RWMIXWRITE: &str = "rwmixwrite";

/// Our name of an option that may be named otherwise.
pub fn canonical(name: &str) -> &str {
    ALIASES
        .iter()
        .find(|alias| alias.0 == name)
        .map_or(name, |alias| alias.1)
}

/// Whether there is an option of this name.
pub fn is_known(name: &str) -> bool {
    let name = canonical(name);
    name == RWMIXWRITE || OPTIONS.iter().any(|option| option.name == name)
}

impl Settings {
    /// Sets one option by its name.
    ///
    /// # Errors
    /// When the name is unknown or the value does not fit; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), JobError> {
        if name == RWMIXWRITE {
            let share = number(value, &(0..=100)).map_err(|problem| JobError::Value {
                name: RWMIXWRITE,
                problem,
            })?;
            self.job.rwmixread = 100 - share;
            return Ok(());
        }
        let canonical = canonical(name);
        let Some(option) = OPTIONS.iter().find(|option| option.name == canonical) else {
            return Err(JobError::Unknown {
                name: name.to_string(),
                nearest: nearest(name),
            });
        };
        option.set(self, value.trim()).map_err(|problem| JobError::Value {
            name: option.name,
            problem,
        })
    }
}

impl JobOption {
    /// Whether it can stand without a value.
    pub const fn is_flag(&self) -> bool {
        matches!(self.kind, Kind::Flag(_))
    }

    fn set(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        match &self.kind {
            Kind::Flag(at) => *at(settings) = flag(text)?,
            Kind::Number(range, at) => *at(settings) = number(text, range)?,
            Kind::Bytes(range, at) => {
                let bytes = parse_size(text).map_err(|error| error.to_string())?;
                *at(settings) = within(bytes, text, range)?;
            }
            Kind::Time(bare, at) => *at(settings) = parse_time(text, *bare).map_err(|error| error.to_string())?,
            Kind::Text(set, _) => set(settings, text)?,
        }
        Ok(())
    }

    /// The value, as it can be read again.
    pub fn get(&self, settings: &Settings) -> String {
        // The table names places once, for writing; this is no hot path.
        let mut settings = settings.clone();
        match &self.kind {
            Kind::Flag(at) => u8::from(*at(&mut settings)).to_string(),
            Kind::Number(_, at) | Kind::Bytes(_, at) => at(&mut settings).to_string(),
            Kind::Time(_, at) => format!("{}us", at(&mut settings)),
            Kind::Text(_, get) => get(&settings),
        }
    }
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("`{text}` is neither 0 nor 1")),
    }
}

fn number(text: &str, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let value = value.filter(|value| range.contains(value));
    value.ok_or_else(|| not_within(text, range))
}

fn within(value: u64, text: &str, range: &RangeInclusive<u64>) -> Result<u64, String> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(not_within(text, range))
    }
}

fn not_within(text: &str, range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (min, u64::MAX) => format!("`{text}` is not a whole number from {min}"),
        (min, max) => format!("`{text}` is not a whole number from {min} to {max}"),
    }
}

/// Names of namespaces with `:` between them.
fn namespaces(text: &str) -> Result<String, String> {
    for name in text.split(':').filter(|_| !text.is_empty()) {
        let numbers = name
            .strip_prefix("/dev/")
            .unwrap_or(name)
            .strip_prefix("nvme")
            .and_then(|rest| rest.split_once('n'));
        let is_number = |text: &str| !text.is_empty() && text.len() < 11 && text.bytes().all(|b| b.is_ascii_digit());
        if !numbers.is_some_and(|(controller, namespace)| is_number(controller) && is_number(namespace)) {
            return Err(format!(
                "`{name}` is not a namespace as the guest names it; write nvme0n1 for the first drive, with `:` between several"
            ));
        }
    }
    Ok(text.replace("/dev/", ""))
}

/// `0,2-4`.
fn parse_cpus(text: &str) -> Result<Vec<u16>, String> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let problem = || format!("`{part}` in `{text}` is not a CPU, or a range of CPUs as 0-3");
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (
            first.trim().parse().map_err(|_| problem())?,
            last.trim().parse().map_err(|_| problem())?,
        );
        if first > last || last >= 4096 {
            return Err(problem());
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

impl JobSet {
    /// Reads boot arguments: options separated by white space, `name=value` or a bare `name` for a flag.
    ///
    /// # Errors
    /// At the first option that is wrong, or when the options do not fit together.
    pub fn from_arguments(arguments: &str) -> Result<Self, JobError> {
        let set = Self::read(arguments)?;
        set.check()?;
        Ok(set)
    }

    /// As [`from_arguments`](Self::from_arguments), without a look at how the options fit together.
    ///
    /// # Errors
    /// At the first option that is wrong.
    pub fn read(arguments: &str) -> Result<Self, JobError> {
        let mut all = Settings::default();
        let mut jobs: Vec<JobSpec> = Vec::new();
        for word in arguments.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if name == "name" {
                jobs.push(all.job.clone());
            }
            match jobs.last_mut() {
                None => all.set(name, value)?,
                Some(job) => {
                    let mut settings = Settings {
                        run: all.run.clone(),
                        job: core::mem::take(job),
                    };
                    settings.set(name, value)?;
                    (all.run, *job) = (settings.run, settings.job);
                }
            }
        }
        if jobs.is_empty() {
            jobs.push(all.job);
        }
        Ok(Self { run: all.run, jobs })
    }

    /// The boot arguments that [`from_arguments`](Self::from_arguments) reads back to these jobs.
    pub fn to_arguments(&self) -> String {
        let defaults = Settings::default();
        let mut words = Vec::new();
        let mut write = |settings: &Settings, of_run: bool| {
            for option in OPTIONS {
                if RUN_OPTIONS.contains(&option.name) != of_run {
                    continue;
                }
                let value = option.get(settings);
                if option.name == "name" || value != option.get(&defaults) {
                    words.push(match (option.is_flag(), value.as_str()) {
                        (true, "1") => option.name.to_string(),
                        _ => format!("{}={value}", option.name),
                    });
                }
            }
        };
        let mut settings = Settings {
            run: self.run.clone(),
            ..Settings::default()
        };
        write(&settings, true);
        for job in &self.jobs {
            settings.job = job.clone();
            write(&settings, false);
        }
        words.join(" ")
    }
}

/// The known option that is fewest edits away, if that is few enough to be a slip.
pub fn nearest(name: &str) -> Option<&'static str> {
    let names = OPTIONS.iter().map(|option| option.name);
    let near = names.map(|option| (edits(name, option), option)).min()?;
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
    use crate::job::{Load, Vectors, Wait};
    use proptest::prelude::*;

    fn one(arguments: &str) -> JobSpec {
        JobSet::from_arguments(arguments).unwrap().jobs.remove(0)
    }

    #[test]
    fn arguments_set_what_they_say() {
        let set = JobSet::from_arguments(
            "rw=randrw bs=8k iodepth=32 numjobs=2 runtime=5 ramp_time=500ms time_based norandommap size=50% allow_write",
        )
        .unwrap();
        let job = &set.jobs[0];
        assert!(set.run.allow_write && job.time_based && job.norandommap);
        assert_eq!((job.rw, job.bs), (Load::RandReadWrite, 8192));
        assert_eq!((job.runtime_us, job.ramp_time_us), (5_000_000, 500_000));
        assert_eq!(JobSet::from_arguments("  ").unwrap(), JobSet::default());
        let job = one("rwmixwrite=30 cpus_allowed=4,0-2 filename=/dev/nvme0n1:nvme1n3");
        assert_eq!(job.rwmixread, 70);
        assert_eq!(job.cpus_allowed, [0, 1, 2, 4]);
        assert_eq!(job.filename, "nvme0n1:nvme1n3");
    }

    #[test]
    fn a_name_begins_a_job() {
        let set = JobSet::from_arguments("bs=8k wait=poll name=a iodepth=2 name=b stonewall vectors=shared").unwrap();
        let [a, b] = &set.jobs[..] else { panic!("{set:?}") };
        assert_eq!((a.name.as_str(), a.bs, a.iodepth, a.stonewall), ("a", 8192, 2, false));
        assert_eq!((b.name.as_str(), b.bs, b.iodepth, b.stonewall), ("b", 8192, 1, true));
        assert_eq!((set.run.wait, set.run.vectors), (Wait::Poll, Vectors::Shared));
        assert_eq!(
            set.to_arguments(),
            "wait=poll vectors=shared name=a bs=8192 iodepth=2 name=b bs=8192 stonewall"
        );
    }

    #[test]
    fn errors_name_the_option_and_the_way_out() {
        let error = |arguments: &str| JobSet::from_arguments(arguments).unwrap_err().to_string();
        for (arguments, message) in [
            ("iodetph=4", "unknown option `iodetph`; did you mean `iodepth`?"),
            ("colour=red", "unknown option `colour`"),
            ("bs=4q", "bs: `q` in `4q` is no unit; known are k, m, g, t, p"),
            ("bs=0", "bs: `0` is not a whole number from 1 to 1073741824"),
            ("iodepth=0", "iodepth: `0` is not a whole number from 1 to 65535"),
            ("iodepth=-1", "iodepth: `-1` is not a whole number from 1 to 65535"),
            (
                "rw=sideways",
                "rw: `sideways` is none of read, write, randread, randwrite, rw, randrw",
            ),
            ("size=0%", "size: `0%` is nothing at all; give bytes, or 1% to 100%"),
            (
                "wait=never",
                "wait: `never` is none of interrupt, halt, poll, pending, hybrid",
            ),
            ("time_based", "time_based needs a runtime; add --runtime SECONDS"),
            ("time_based=yes", "time_based: `yes` is neither 0 nor 1"),
            (
                "name=a;b",
                "name: `a;b` is not 1 to 64 letters, digits, `-`, `_` or `.`",
            ),
            (
                "cpus_allowed=3-1",
                "cpus_allowed: `3-1` in `3-1` is not a CPU, or a range of CPUs as 0-3",
            ),
            (
                "filename=/dev/sda",
                "filename: `/dev/sda` is not a namespace as the guest names it; write nvme0n1 for the first drive, with `:` between several",
            ),
            (
                "name=a name=b time_based",
                "job b: time_based needs a runtime; add --runtime SECONDS",
            ),
            (
                "numjobs=4096 name=a name=b",
                "the jobs have 8192 copies together, and 4096 can run; use a smaller numjobs",
            ),
        ] {
            assert_eq!(error(arguments), message, "{arguments}");
        }
        for words in ["hybrid=50", "adaptive wait=pending"] {
            assert!(error(words).ends_with("; add --wait hybrid"), "{}", error(words));
        }
        assert!(error("rw=randwrite").contains("--allow-write"));
    }

    /// A value other than the default for each option.
    fn value(name: &str) -> &'static str {
        match name {
            "name" => "other",
            "rw" => "randread",
            "filename" => "nvme0n1:nvme1n1",
            "size" | "io_size" | "offset" | "offset_increment" => "25%",
            "verify" => "pattern",
            "continue_on_error" => "none",
            "cpus_allowed" => "0,2-3",
            "cpus_allowed_policy" => "split",
            "wait" => "poll",
            "vectors" => "shared",
            "command_timeout" => "5s",
            "randrepeat" => "0",
            "numjobs" | "loops" | "queues_per_cpu" | "iodepth" => "3",
            _ => "1",
        }
    }

    #[test]
    fn every_option_is_read_as_it_is_written() {
        for option in OPTIONS {
            let mut settings = Settings::default();
            settings.set(option.name, value(option.name)).unwrap();
            assert_ne!(settings, Settings::default(), "{}", option.name);
            let set = JobSet {
                run: settings.run,
                jobs: [settings.job].to_vec(),
            };
            assert_eq!(JobSet::read(&set.to_arguments()), Ok(set), "{}", option.name);
        }
        for name in RUN_OPTIONS {
            let mut settings = Settings::default();
            settings.set(name, value(name)).unwrap();
            assert_eq!(settings.job, JobSpec::default(), "{name}");
        }
    }

    #[test]
    fn names_do_not_collide() {
        for (at, option) in OPTIONS.iter().enumerate() {
            assert!(
                OPTIONS[..at].iter().all(|other| other.name != option.name),
                "{}",
                option.name
            );
            assert!(ALIASES.iter().all(|alias| alias.0 != option.name), "{}", option.name);
        }
        for (alias, name) in ALIASES {
            assert!(OPTIONS.iter().any(|option| option.name == *name), "{alias}");
        }
    }

    proptest! {
        #[test]
        fn jobs_come_back_as_they_were(
            jobs in prop::collection::vec(prop::collection::vec(0..OPTIONS.len(), 0..12), 1..4), numbers: [u64; 3],
        ) {
            let mut run = RunSpec::default();
            let jobs = jobs.into_iter().map(|options| {
                let mut settings = Settings { run: run.clone(), ..Settings::default() };
                for option in options.into_iter().map(|number| &OPTIONS[number]) {
                    settings.set(option.name, value(option.name)).unwrap();
                }
                (settings.job.randseed, settings.job.number_ios, settings.job.runtime_us) = (numbers[0], numbers[1], numbers[2]);
                run = settings.run;
                settings.job
            }).collect();
            let set = JobSet { run, jobs };
            prop_assert_eq!(JobSet::read(&set.to_arguments()), Ok(set));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC{0,80}") {
            let _ = JobSet::from_arguments(&text);
        }

        #[test]
        fn any_value_is_taken_or_refused(option in 0..OPTIONS.len(), value in "[-0-9a-z.:/,%]{0,12}") {
            let mut settings = Settings::default();
            let before = settings.clone();
            if settings.set(OPTIONS[option].name, &value).is_err() {
                prop_assert_eq!(settings, before);
            }
        }
    }
}
