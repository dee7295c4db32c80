//! doorpost's own commands: setup, run, test, ci, arrows, bench.
#![forbid(unsafe_code)]

mod arrows;
mod bench;
mod ci;
mod project;
mod run;
mod setup;
mod shell;
mod sources;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use project::Project;

/// Builds, runs and checks doorpost. Each command first sets up what it needs.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing: Rust's targets, a C linker, QEMU 9.0 or later
    ///
    /// Says first what it will install, then installs only that. Rust's parts come from rustup, as rust-toolchain.toml names them.
    /// The rest comes from the machine's own Debian mirror, QEMU from backports where the release's own is older than 9.0. The
    /// machine's package sources stay as they are: backports are read through a private list in the target folder. Packages are
    /// installed as root or by sudo; where neither works, the exact commands are printed and nothing is done (status 1).
    Setup {
        /// Only say what is there and what is missing (status 1 if anything is)
        #[arg(long)]
        check: bool,
    },
    /// Build doorpost and run the main job, or a variation of it
    ///
    /// The main job: 4 KiB random reads of a 64 MiB scratch file behind an emulated NVMe controller, 32 deep, by 2 jobs on 2
    /// CPUs for 5 seconds; the report is printed and written to report.json.
    ///
    /// ARGS are options of `doorpost run`. Each takes the place of the main job's option of the same name, and the rest of the
    /// main job stays; --number_ios also ends its time limit.
    ///
    /// Busy polling, deeper: `cargo xtask run --wait poll --iodepth 64`
    ///
    /// Two controllers, four CPUs: `cargo xtask run --drive null --drive null --vcpus 4 --numjobs 4`
    ///
    /// All options of `doorpost run`: `cargo xtask run -- --help`
    Run {
        /// Options of `doorpost run`, instead of the main job's of the same name
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run every test: unit, documentation and end to end (boots the guest)
    ///
    /// Takes cargo-nextest where it is installed, else `cargo test`; the last line is the runner's summary. With FILTER, only the
    /// tests that it selects run, without those in documentation.
    Test {
        /// Arguments of the test runner, such as part of a test's name
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Run every check that a change has to pass; ends with the tests
    ///
    /// Stops at the first that fails, and prints the command that repeats it.
    Ci {
        /// Only these steps, in the order of the list
        #[arg(value_enum)]
        steps: Vec<ci::Step>,
    },
    /// Check the rules of the rooms: who imports whom, where unsafe and target_arch may stand
    Arrows,
    /// Count guest instructions per I/O, and from power-on to the first I/O
    ///
    /// Runs doorpost under QEMU's TCG with the counter plugin, twice per row with different numbers of I/Os; the slope between
    /// the two leaves out the start and the end of a run. Counts do not depend on the speed of the machine, except where a CPU
    /// spins while it waits.
    Bench {
        /// Print the table in markdown
        #[arg(long)]
        markdown: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = Project::find().and_then(|project| match arguments.command {
        Command::Setup { check: true } => setup::check(&project),
        Command::Setup { check: false } => setup::setup(&project, setup::Words::All),
        Command::Run { args } => run::run(&project, &args),
        Command::Test { filter } => test::test(&project, &filter),
        Command::Ci { steps } => ci::ci(&project, &steps),
        Command::Arrows => arrows::check(&project),
        Command::Bench { markdown } => bench::bench(&project, markdown),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
