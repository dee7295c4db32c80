//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use vmm_glue::accel::Accel;
use vmm_glue::drive::DriveSpec;
use vmm_glue::guest::Arch;
use workload::units::{parse_size, parse_time};

use crate::job_options::JobArguments;

/// Measures the interrupt path of NVMe in a guest: fio's load, run by a guest of a few hundred kilobytes that boots in a
/// moment and counts every interrupt, doorbell and empty look.
#[derive(Debug, Parser)]
#[command(name = "doorpost", version, disable_help_subcommand = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  doorpost run --drive null --rw randread --iodepth 32 --numjobs 2 --runtime 5
      4 KiB random reads for five seconds; each job has a CPU, a queue and a vector of its own
  doorpost image --arch x86_64 -o guest.elf
      the guest alone, for a QEMU command line of your own (vfio-pci, say)
  doorpost report serial.log
      the report out of a kept serial line

`doorpost run --help` lists all options of a run.";

const RUN_EXAMPLES: &str = "\
Examples:
  Random reads of 4 KiB by two jobs, without any drive behind the controller:
      doorpost run --drive null --rw randread --iodepth 32 --numjobs 2 --runtime 5
  One interrupt per I/O, on two controllers with four CPUs:
      doorpost run --drive null --drive null --numjobs 4 --vcpus 4 --wait interrupt --runtime 5
  The same without interrupts:
      doorpost run --drive null --wait poll --runtime 5
  Write a pattern to a file and read it back, checking each block:
      truncate -s 64M disk.img
      doorpost run --drive disk.img --rw write --verify pattern --allow-write
      doorpost run --drive disk.img --rw read --verify pattern
  A job file of fio's, for a shorter time than it says:
      doorpost run random-read.fio --drive null --runtime 5
  A report for people and one for programs:
      doorpost run --drive scratch --runtime 5 --output-format normal,json --output report.json
  A controller that moves at most 8 KiB by one command:
      doorpost run --drive null --bs 64k --runtime 5 --qemu-arg -global --qemu-arg nvme.mdts=1

Sizes take k, m, g, t (powers of 1024); times take us, ms, s, m, h, and are in seconds without a unit, as in fio.
Exit status: 0 done; 1 the run failed, or commands failed; 2 usage; 128 + n after signal n.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot the guest, run a job on NVMe, print the report
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArguments>),
    /// Write the guest's image, for a QEMU command line of your own
    Image(ImageArguments),
    /// Print the report of an earlier run, from its serial line or its JSON
    Report(ReportArguments),
}

/// Options of `doorpost run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The job.
    #[command(flatten)]
    pub job: JobArguments,

    /// What stands behind an NVMe controller: a file or block device, `null[:SIZE]` (nothing; 8g) or `scratch[:SIZE]` (a
    /// temporary file; 64m). Once per controller
    #[arg(long, value_name = "FILE|null|scratch", help_heading = "Machine")]
    pub drive: Vec<String>,
    /// The guest's architecture
    #[arg(long, value_name = "ARCH", default_value = "x86_64", help_heading = "Machine")]
    pub arch: Arch,
    /// CPUs of the guest [default: one for each copy of a job, up to 64]
    #[arg(long, value_name = "N", help_heading = "Machine", allow_hyphen_values = true, value_parser = whole_number)]
    pub vcpus: Option<u32>,
    /// Memory of the guest, 16m or more [default: 256m, or what the job's I/Os need]
    #[arg(long, value_name = "SIZE", help_heading = "Machine", allow_hyphen_values = true, value_parser = size)]
    pub memory: Option<u64>,
    /// What runs the guest: auto (KVM if guests truly run there, else TCG), kvm, tcg
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Machine")]
    pub accel: Accel,
    /// QEMU's program [default: the one in PATH]
    #[arg(long, value_name = "PATH", help_heading = "Machine")]
    pub qemu: Option<PathBuf>,
    /// One more argument for QEMU, as it is; may be repeated
    #[arg(long, value_name = "ARG", help_heading = "Machine", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,
    /// How long the whole run may take [default: the job's own time and a minute, or 5 minutes]
    #[arg(long, value_name = "TIME", help_heading = "Machine", allow_hyphen_values = true, value_parser = duration)]
    pub timeout: Option<Duration>,

    /// Where the report goes.
    #[command(flatten)]
    pub output: OutputArguments,
    /// Keep the bytes of the guest's serial line
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub keep_serial: Option<PathBuf>,
    /// Failed commands and blocks that differ do not make the exit status 1
    #[arg(long, help_heading = "Output")]
    pub ignore_errors: bool,
}

/// Where a report goes.
#[derive(Debug, Args)]
pub struct OutputArguments {
    /// Where the report goes (the JSON, if both formats are wanted) [default: standard output]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Formats of the report
    #[arg(
        long = "output-format",
        alias = "output_format",
        value_name = "normal,json",
        default_value = "normal",
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Output"
    )]
    pub formats: Vec<Format>,
}

/// A format of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text, as fio writes it.
    Normal,
    /// JSON with fio's keys.
    Json,
}

/// Options of `doorpost image`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  doorpost image --arch x86_64 -o guest.elf\n      writes the guest, and says the QEMU command line that boots it"
)]
pub struct ImageArguments {
    /// The guest's architecture
    #[arg(long, value_name = "ARCH", default_value = "x86_64")]
    pub arch: Arch,
    /// Where to write the image; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Options of `doorpost report`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  doorpost report serial.log\n      FILE is what --keep-serial wrote, or a QEMU line of your own with -serial file:serial.log\n  doorpost report report.json\n      the text of a report that was written as JSON"
)]
pub struct ReportArguments {
    /// A kept serial line, or the JSON of an earlier run; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where the report goes.
    #[command(flatten)]
    pub output: OutputArguments,
}

impl RunArguments {
    /// The drives that are asked for.
    ///
    /// # Errors
    /// When one is malformed.
    pub fn drives(&self) -> Result<Vec<DriveSpec>, String> {
        let drives = self.drive.iter().map(|text| {
            text.parse()
                .map_err(|error: vmm_glue::drive::DriveError| error.to_string())
        });
        drives.collect()
    }
}

fn whole_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number"))
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    match parse_time(text, 1_000_000) {
        Ok(0) => Err(format!("`{text}` is no time at all")),
        Ok(us) => Ok(Duration::from_micros(us)),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage;
    use clap::CommandFactory;

    fn run(words: &[&str]) -> Result<RunArguments, String> {
        let words = ["doorpost", "run"].iter().chain(words);
        match Cli::try_parse_from(words)
            .map_err(|error| usage::one_line(&error))?
            .command
        {
            Command::Run(arguments) => Ok(*arguments),
            other => panic!("{other:?}"),
        }
    }

    fn error(words: &[&str]) -> String {
        let words = ["doorpost"].iter().chain(words);
        usage::one_line(&Cli::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_reach_the_job() {
        let arguments = run(&[
            "--rw=randrw",
            "--bs",
            "8k",
            "--iodepth=32",
            "--numjobs=2",
            "--runtime=5",
            "--ramp_time=500ms",
            "--time_based",
            "--size=50%",
            "--number_ios=9",
            "--rwmixread=70",
            "--randseed=1",
            "--norandommap",
            "--name=x",
            "--wait=poll",
            "--verify=pattern",
            "--end_fsync",
            "--command_timeout=2",
            "--retry_writes",
            "--shadow_doorbells",
            "--allow-write",
        ])
        .unwrap();
        let text = arguments.job.job().unwrap().jobs.to_arguments();
        assert_eq!(
            text,
            "wait=poll command_timeout=2000000us retry_writes shadow_doorbells allow_write name=x rw=randrw bs=8192 iodepth=32 \
             numjobs=2 size=50% number_ios=9 runtime=5000000us time_based ramp_time=500000us rwmixread=70 randseed=1 \
             norandommap verify=pattern end_fsync"
        );
        let other = run(&["--ramp-time=1", "--time-based", "--number-ios=3", "--allow_write"]).unwrap();
        let text = other.job.job().unwrap().jobs.to_arguments();
        assert!(
            text.contains("time_based ramp_time=1000000us") && text.starts_with("allow_write name="),
            "{text}"
        );
    }

    #[test]
    fn arguments_for_qemu_pass_as_they_are() {
        let arguments = run(&[
            "--qemu-arg",
            "-global",
            "--qemu-arg",
            "nvme.mdts=1",
            "--qemu-arg=--help",
        ])
        .unwrap();
        assert_eq!(arguments.qemu_arg, ["-global", "nvme.mdts=1", "--help"]);
    }

    #[test]
    fn mistakes_are_named_in_one_line() {
        assert_eq!(
            error(&["run", "--iodetph", "4"]),
            "unknown option --iodetph; did you mean --iodepth? (--help lists them all)"
        );
        assert_eq!(
            error(&["run", "--colour=red"]),
            "unknown option --colour (--help lists them all)"
        );
        assert_eq!(
            error(&["rum"]),
            "unknown command rum; did you mean run? (--help lists them all)"
        );
        assert_eq!(
            error(&[]),
            "no command is given; try `doorpost run --drive null`, or --help"
        );
        assert_eq!(error(&["run", "--drive"]), "--drive needs a value");
        assert_eq!(error(&["run", "--drive", "--rw", "read"]), "--drive needs a value");
        assert_eq!(
            error(&["run", "--accel", "xen"]),
            "--accel: `xen` is none of auto, kvm, tcg"
        );
        assert_eq!(
            error(&["run", "--arch=vax"]),
            "--arch: there is no guest for `vax`; there is one for x86_64"
        );
        assert_eq!(
            error(&["run", "--memory=12q"]),
            "--memory: `q` in `12q` is no unit; known are k, m, g, t, p"
        );
        assert_eq!(error(&["run", "--vcpus", "-1"]), "--vcpus: `-1` is not a whole number");
        assert_eq!(error(&["run", "--timeout=0"]), "--timeout: `0` is no time at all");
        assert_eq!(
            error(&["run", "--output-format=xml"]),
            "--output-format: `xml`: it is none of normal, json"
        );
        assert_eq!(
            error(&["run", "--bs=1", "--bs=2"]),
            "--bs is given twice; leave one out"
        );
        assert_eq!(error(&["image"]), "--output is missing (--help shows how it is given)");
        assert_eq!(error(&["report"]), "<FILE> is missing (--help shows how it is given)");
        assert_eq!(
            error(&["run", "job.fio", "stray"]),
            "`stray` stands alone; options begin with -- (--help lists them all)"
        );
        assert_eq!(
            error(&["run", "--section", "a"]),
            "<JOB.fio> is missing (--help shows how it is given)"
        );
    }

    #[test]
    fn values_are_named_with_their_option() {
        let job_error = |word: &str| run(&[word]).unwrap().job.job().unwrap_err();
        assert_eq!(
            job_error("--bs=4q"),
            "--bs: `q` in `4q` is no unit; known are k, m, g, t, p"
        );
        assert_eq!(
            job_error("--iodepth=-1"),
            "--iodepth: `-1` is not a whole number from 1 to 65535"
        );
        assert_eq!(
            job_error("--rw=sideways"),
            "--rw: `sideways` is none of read, write, randread, randwrite, rw, randrw"
        );
        assert_eq!(
            job_error("--norandommap=yes"),
            "--norandommap: `yes` is neither 0 nor 1"
        );
        assert_eq!(
            run(&["--drive=null:4q"]).unwrap().drives().unwrap_err(),
            "drive null:4q: `q` in `4q` is no unit; known are k, m, g, t, p"
        );
    }
}
