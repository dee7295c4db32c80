//! Measures the interrupt path of passed-through NVMe, from the device's message to the vCPU.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod failure;
mod guest_image;
mod job_file;
mod job_options;
mod output;
mod progress;
mod report;
mod usage;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::{Cli, Command};
use crate::failure::Usage;

fn main() -> ExitCode {
    let done = match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Run(arguments) => commands::run::run(&arguments),
            Command::Image(arguments) => commands::image::image(&arguments),
            Command::Report(arguments) => commands::report::report(&arguments),
        },
        Err(help) if matches!(help.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            write!(io::stdout(), "{help}").map_err(Into::into)
        }
        Err(error) => Err(Usage(usage::one_line(&error)).into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is gone too, the status still tells.
            let _ = failure::explain(&error, &mut io::stderr().lock());
            ExitCode::from(failure::status(&error))
        }
    }
}
