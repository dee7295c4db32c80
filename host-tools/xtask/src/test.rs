//! `cargo xtask test`: every test.

use anyhow::Result;

use crate::project::Project;
use crate::{setup, shell};

/// Sets up, builds the programs that the end-to-end tests start, and runs the tests. All tests run, whether or not one fails;
/// the runner's summary comes last.
///
/// # Errors
/// Any of these fails.
pub fn test(project: &Project, filter: &[String]) -> Result<()> {
    setup::setup(project, setup::Words::WhenMissing)?;
    shell::run(&mut project.cargo(&["build", "--package", "doorpost", "--package", "doorpost-counter-plugin"]))?;
    if filter.is_empty() {
        shell::run(&mut project.cargo(&["test", "--doc", "--workspace", "--quiet"]))?;
    }
    let mut runner = if shell::exists("cargo-nextest") {
        project.cargo(&["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        project.cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"])
    };
    shell::run(runner.args(filter))
}
