//! `cargo xtask run`: build, then the main job.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::project::Project;
use crate::{setup, shell};

/// The main job, option by option.
const MAIN_JOB: &[&[&str]] = &[
    &["--drive", "scratch:64M"],
    &["--rw", "randread"],
    &["--bs", "4k"],
    &["--iodepth", "32"],
    &["--numjobs", "2"],
    &["--runtime", "5"],
    &["--time_based"],
    &["--vcpus", "2"],
    &["--accel", "auto"],
    &["--output", "report.json"],
    &["--output-format", "normal,json"],
];

/// Sets up, builds, and becomes `doorpost run`; returns only if that fails.
///
/// # Errors
/// Any of the three fails.
pub fn run(project: &Project, args: &[String]) -> Result<()> {
    setup::setup(project, setup::Words::WhenMissing)?;
    shell::run(&mut project.cargo(&["build", "--release", "--package", "doorpost"]))?;
    let mut doorpost = std::process::Command::new(project.target().join("release/doorpost"));
    doorpost.arg("run").args(with_main_job(args));
    eprintln!("$ {}", shell::line(&doorpost));
    Err(doorpost.exec()).with_context(|| format!("cannot start `{}`", shell::line(&doorpost)))
}

/// The main job's options without those that `args` give, then `args`.
fn with_main_job(args: &[String]) -> Vec<String> {
    let given = |option: &str| {
        args.iter()
            .any(|arg| arg == option || arg.strip_prefix(option).is_some_and(|v| v.starts_with('=')))
    };
    let timed = !given("--number_ios");
    MAIN_JOB
        .iter()
        .filter(|words| !given(words[0]) && (timed || !["--runtime", "--time_based"].contains(&words[0])))
        .flat_map(|words| words.iter().map(|word| (*word).to_owned()))
        .chain(args.iter().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(args: &[&str]) -> String {
        with_main_job(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>()).join(" ")
    }

    const ALL: &str = "--drive scratch:64M --rw randread --bs 4k --iodepth 32 --numjobs 2 --runtime 5 --time_based \
                       --vcpus 2 --accel auto --output report.json --output-format normal,json";

    #[test]
    fn without_arguments_the_main_job() {
        assert_eq!(merged(&[]), ALL);
    }

    #[test]
    fn an_option_replaces_its_namesake_only() {
        let expected = ALL.replace("--iodepth 32 ", "") + " --iodepth 1";
        assert_eq!(merged(&["--iodepth", "1"]), expected);
        let expected = ALL.replace("--output report.json ", "") + " --output=x";
        assert_eq!(merged(&["--output=x"]), expected, "--output-format stays");
        let expected = ALL.replace("--drive scratch:64M ", "") + " --drive null --drive null";
        assert_eq!(merged(&["--drive", "null", "--drive", "null"]), expected);
    }

    #[test]
    fn a_number_of_ios_ends_the_time_limit() {
        let expected = ALL.replace("--runtime 5 --time_based ", "") + " --number_ios 9";
        assert_eq!(merged(&["--number_ios", "9"]), expected);
    }
}
