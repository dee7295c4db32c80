//! Options of jobs on the command line: the table that guest and job files read, with a text for each.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use workload::job::JobSet;
use workload::options::{ALIASES, RUN_OPTIONS, Settings};

use crate::job_file::{self, JobFile, WITHOUT_EFFECT};

/// The jobs, in fio's words. Values are read by the same code as the guest's boot arguments.
#[derive(Debug, Default)]
pub struct JobArguments {
    file: Option<PathBuf>,
    section: Option<String>,
    /// Names and values, in the order of the table.
    given: Vec<(&'static str, String)>,
    /// Options of fio that change nothing here.
    without_effect: Vec<String>,
}

const JOB: &str = "Job";
const RUN: &str = "Waiting and queues";

/// Name, word for the value (nothing: a flag), and what it does.
const HELP: &[(&str, &str, &str)] = &[
    ("name", "NAME", "Name of the job in the report [default: job]"),
    (
        "rw",
        "LOAD",
        "Kind of load: read, write, randread, randwrite, rw, randrw [default: read]",
    ),
    ("bs", "SIZE", "Bytes per I/O [default: 4k]"),
    (
        "blockalign",
        "SIZE",
        "Random I/Os begin at multiples of so many bytes [default: of bs]",
    ),
    ("iodepth", "N", "I/Os in flight per copy of the job [default: 1]"),
    ("numjobs", "N", "Copies of the job, on the CPUs in turn [default: 1]"),
    (
        "filename",
        "NAMES",
        "The namespaces to use, as nvme0n1 or nvme0n1:nvme1n1; controllers are numbered in the order of --drive [default: all]",
    ),
    (
        "size",
        "SIZE",
        "How much of each namespace to cover, in bytes or percent [default: 100%]",
    ),
    (
        "io_size",
        "SIZE",
        "How much to move in each namespace [default: what `size` covers, once]",
    ),
    (
        "offset",
        "SIZE",
        "Where that part of each namespace begins, in bytes or percent [default: 0]",
    ),
    (
        "offset_increment",
        "SIZE",
        "How much later each further copy of the job begins [default: 0]",
    ),
    ("number_ios", "N", "At most this many I/Os per copy"),
    ("loops", "N", "How often to go through `size` [default: 1]"),
    (
        "runtime",
        "TIME",
        "How long to run at most [default: until `size` is done]",
    ),
    (
        "time_based",
        "",
        "Go round again when `size` is done, until `runtime` is over",
    ),
    (
        "ramp_time",
        "TIME",
        "How long to run before measuring begins [default: 0]",
    ),
    (
        "startdelay",
        "TIME",
        "How long to wait before the first I/O [default: 0]",
    ),
    (
        "rwmixread",
        "PERCENT",
        "Reads in 100 I/Os of a mixed load [default: 50]",
    ),
    ("randrepeat", "0|1", "The same random numbers in each run [default: 1]"),
    (
        "randseed",
        "N",
        "Start of the random numbers; the same seed gives the same I/Os",
    ),
    ("norandommap", "", "Random blocks need not come once each"),
    (
        "verify",
        "HOW",
        "What reads check and writes leave: none, pattern [default: none]. Reads check every block, also one that this run has \
         not written: a mixed load needs a drive that holds the pattern already",
    ),
    ("end_fsync", "", "Flush what was written, at the end of the run"),
    (
        "continue_on_error",
        "all|none",
        "Whether a job goes on when a command fails [default: all]",
    ),
    ("exitall", "", "When this job ends, all jobs end"),
    ("stonewall", "", "Begin when all jobs before this one are done"),
    ("new_group", "", "Begin a group of reports"),
    (
        "group_reporting",
        "",
        "Report all jobs of a group together, and not only the copies of each",
    ),
    (
        "cpus_allowed",
        "LIST",
        "The CPUs that copies may run on, as 0,2-3 [default: all]",
    ),
    (
        "cpus_allowed_policy",
        "shared|split",
        "As fio has it; copies take the CPUs in turn either way, and stay there [default: shared]",
    ),
    (
        "wait",
        "MODE",
        "How a CPU finds completions: interrupt (keeps running), halt (sleeps), poll (no interrupts), pending (masks interrupts \
         and looks for pending ones), hybrid (pending, then halt) [default: interrupt]",
    ),
    (
        "hybrid",
        "USEC",
        "Microseconds that wait=hybrid looks before it halts [default: 200]",
    ),
    (
        "adaptive",
        "",
        "wait=hybrid finds that length itself, as KVM's halt polling does, with --hybrid as its bound",
    ),
    (
        "queues_per_cpu",
        "N",
        "Queue pairs of each controller that each CPU owns [default: 1]",
    ),
    (
        "vectors",
        "HOW",
        "Interrupt vectors of a CPU: one per-queue, one per-controller, or one shared by all its queues [default: per-queue]",
    ),
    (
        "command_timeout",
        "TIME",
        "How long a command may take before it is aborted, and its controller reset if that does not help [default: 30]",
    ),
    (
        "retry_writes",
        "",
        "Issue writes again that a controller reset has cut off; without it they count as failed",
    ),
    (
        "shadow_doorbells",
        "",
        "Leave doorbell values in memory where the controller offers that (DBBUF), and ring only when it asks",
    ),
    (
        "allow_write",
        "",
        "Writes to the drives are allowed; they destroy what the drives hold",
    ),
];

impl Args for JobArguments {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("file")
            .value_name("JOB.fio")
            .help("A job file of fio's; options given here come after its own, for each of its jobs")
            .help_heading(JOB)
            .value_parser(value_parser!(PathBuf));
        let section = Arg::new("section")
            .long("section")
            .value_name("NAME")
            .help("The only job of that file to run [default: all]")
            .help_heading(JOB)
            .requires("file")
            .allow_hyphen_values(true);
        let mut command = command.arg(file).arg(section);
        for (name, value, help) in HELP {
            let mut arg = Arg::new(*name)
                .long(*name)
                .help(*help)
                .help_heading(if RUN_OPTIONS.contains(name) { RUN } else { JOB });
            if name.contains('_') {
                // The definition is made once, and lives as long as the program.
                let hyphens: &'static str = name.replace('_', "-").leak();
                arg = match *name {
                    "allow_write" => arg.long(hyphens).alias("allow_write"),
                    _ => arg.alias(hyphens),
                };
            }
            for (alias, _) in ALIASES.iter().filter(|alias| alias.1 == *name) {
                arg = arg.alias(*alias);
            }
            arg = match *value {
                "" => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("1")
                    .hide_default_value(true)
                    .value_name("0|1"),
                value => arg.value_name(value).allow_hyphen_values(true),
            };
            command = command.arg(arg);
        }
        command = command.arg(
            Arg::new("rwmixwrite")
                .long("rwmixwrite")
                .value_name("PERCENT")
                .hide(true)
                .allow_hyphen_values(true),
        );
        for name in WITHOUT_EFFECT {
            command = command.arg(
                Arg::new(*name)
                    .long(*name)
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("")
                    .action(ArgAction::Append)
                    .hide(true),
            );
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for JobArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let word = |name: &str| matches.get_one::<String>(name).cloned();
        let names = HELP.iter().map(|help| help.0).chain(["rwmixwrite"]);
        let mut without_effect = Vec::new();
        for name in WITHOUT_EFFECT {
            for value in matches.get_many::<String>(name).into_iter().flatten() {
                without_effect.push(job_file::word(name, value));
            }
        }
        Ok(Self {
            file: matches.get_one("file").cloned(),
            section: word("section"),
            given: names.filter_map(|name| Some((name, word(name)?))).collect(),
            without_effect,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl JobArguments {
    /// The jobs that these options ask for, and options that have no effect here.
    ///
    /// # Errors
    /// When a value does not fit its option, in one line with the option's name.
    pub fn job(&self) -> Result<JobFile, String> {
        let mut read = match &self.file {
            Some(path) => {
                // What the command line says anew need not make sense in the file.
                let anew: BTreeSet<&str> = self.given.iter().map(|given| given.0).collect();
                job_file::read(path, self.section.as_deref(), &anew)?
            }
            None => JobFile {
                jobs: JobSet::default(),
                without_effect: Vec::new(),
            },
        };
        let mut run = read.jobs.run.clone();
        for job in &mut read.jobs.jobs {
            let mut settings = Settings {
                run,
                job: std::mem::take(job),
            };
            for (name, value) in &self.given {
                settings.set(name, value).map_err(|error| format!("--{error}"))?;
            }
            Settings { run, job: *job } = settings;
        }
        read.jobs.run = run;
        read.without_effect.extend(self.without_effect.iter().cloned());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::options::OPTIONS;

    #[test]
    fn every_option_of_the_guest_is_one_of_ours() {
        let ours: Vec<&str> = HELP.iter().map(|help| help.0).collect();
        let theirs: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
        assert_eq!(ours, theirs);
        for option in OPTIONS {
            let help = HELP.iter().find(|help| help.0 == option.name).unwrap();
            // What is on unless said otherwise takes a value.
            let is_flag = option.is_flag() && option.name != "randrepeat";
            assert_eq!(help.1.is_empty(), is_flag, "{}", option.name);
        }
    }
}
