//! `cargo xtask ci`: every check that a change has to pass.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::project::Project;
use crate::{arrows, setup, shell, test};

/// A check. The order is that of the list: quick ones first, tests last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// rustfmt leaves every file as it is
    Fmt,
    /// The rules of the rooms
    Arrows,
    /// clippy has nothing to say about the host's packages
    Clippy,
    /// clippy has nothing to say about the guest
    ClippyGuest,
    /// Licences, versions and origins of what we build upon
    Deny,
    /// The guest builds, and stays small
    Guest,
    /// The documentation builds without a warning
    Doc,
    /// Miri finds no undefined behaviour in the driver's own tests (where it is installed)
    Miri,
    /// Every test
    Test,
}

/// The target that the guest is built for.
const GUEST_TARGET: &str = "x86_64-unknown-none";
/// Most bytes that the guest's image may have: code and data as loaded.
const GUEST_LIMIT: u64 = 400 * 1024;
/// Versions of the tools that are installed where they are missing.
const CARGO_DENY: (&str, &str) = ("cargo-deny", "0.20.2");
const CARGO_NEXTEST: (&str, &str) = ("cargo-nextest", "0.9.143");

/// Runs `steps`, or all if there are none.
///
/// # Errors
/// The first step that fails; the message holds the command that repeats it.
pub fn ci(project: &Project, steps: &[Step]) -> Result<()> {
    setup::setup(project, setup::Words::All)?;
    for step in Step::value_variants()
        .iter()
        .filter(|step| steps.is_empty() || steps.contains(step))
    {
        let value = step.to_possible_value().context("every step has a name")?;
        let name = value.get_name();
        println!(
            "\n== {name}: {}",
            value.get_help().map(ToString::to_string).unwrap_or_default()
        );
        let start = Instant::now();
        step.run(project)
            .with_context(|| format!("step {name} failed; `cargo xtask ci {name}` repeats it"))?;
        // The tests come last, and their summary stays the last line.
        if *step != Step::Test {
            println!("== {name}: passed in {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

impl Step {
    fn run(self, project: &Project) -> Result<()> {
        let guest = [
            "--package",
            "doorpost-guest",
            "--features",
            "image",
            "--target",
            GUEST_TARGET,
        ];
        match self {
            Self::Fmt => show(&mut project.cargo(&["fmt", "--all", "--check"])),
            Self::Arrows => arrows::check(project),
            Self::Clippy => {
                show(&mut project.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
            }
            Self::ClippyGuest => {
                show(
                    project
                        .cargo(&["clippy"])
                        .args(guest)
                        .args(["--profile", "guest", "--", "-D", "warnings"]),
                )
            }
            Self::Deny => {
                tool(project, CARGO_DENY)?;
                show(&mut project.cargo(&["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))
            }
            Self::Guest => {
                show(project.cargo(&["build", "--profile", "guest"]).args(guest))?;
                size(project)
            }
            Self::Doc => show(
                project
                    .cargo(&["doc", "--workspace", "--no-deps"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Miri => miri(project),
            Self::Test => {
                tool(project, CARGO_NEXTEST)?;
                test::test(project, &[])
            }
        }
    }
}

/// Shows a command, and runs it.
fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", shell::line(command));
    shell::run(command)
}

/// Installs a tool of cargo's if it is missing.
fn tool(project: &Project, (name, version): (&str, &str)) -> Result<()> {
    if shell::exists(name) {
        return Ok(());
    }
    println!("{name} is missing, to be installed now (some minutes)");
    // Built in a third less time: the tools run for seconds.
    let quick = [
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ];
    show(
        project
            .cargo(&["install", "--locked", "--quiet", &format!("{name}@{version}")])
            .envs(quick),
    )
}

/// Runs the driver's tests under Miri, those against the emulated controller with fewer cases. Miri is a component of nightly
/// toolchains, which the project does not ask for: without it this says so.
fn miri(project: &Project) -> Result<()> {
    if !shell::succeeds(
        project
            .command("rustup")
            .args(["run", "nightly", "cargo", "miri", "--version"]),
    ) {
        println!("SKIPPED: Miri is not here (rustup toolchain install nightly --component miri --component rust-src)");
        return Ok(());
    }
    // One process for each test: Miri runs a process on a single core.
    tool(project, CARGO_NEXTEST)?;
    show(
        project
            .command("rustup")
            .args(["run", "nightly", "cargo", "miri", "nextest", "run"])
            .args(["--package", "doorpost-nvme"]),
    )
}

/// Checks that the guest's image is small.
fn size(project: &Project) -> Result<()> {
    let image = project.target().join(GUEST_TARGET).join("guest/doorpost-guest");
    let rustc = |argument: &[&str]| -> Result<String> {
        shell::output(project.command("rustc").args(argument))?.context("rustc is not on the search path")
    };
    let host = rustc(&["-vV"])?;
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`rustc -vV` names no host")?;
    let sysroot = rustc(&["--print", "sysroot"])?;
    let tool = format!("{}/lib/rustlib/{host}/bin/llvm-size", sysroot.trim());
    let table = shell::output(Command::new(&tool).arg(&image))?.with_context(|| format!("there is no {tool}"))?;
    let sizes = Sizes::parse(&table).with_context(|| format!("cannot read the sizes in `{}`", table.trim()))?;
    let loaded = sizes.text + sizes.data;
    println!(
        "guest image: {loaded} bytes of code and data (limit {GUEST_LIMIT}); {} bytes zeroed at start",
        sizes.bss
    );
    if loaded >= GUEST_LIMIT {
        bail!("the guest's image has {loaded} bytes, and has to stay below {GUEST_LIMIT}");
    }
    Ok(())
}

/// A line of `llvm-size`.
#[derive(Debug, PartialEq, Eq)]
struct Sizes {
    text: u64,
    data: u64,
    bss: u64,
}

impl Sizes {
    fn parse(table: &str) -> Option<Self> {
        let mut numbers = table.lines().nth(1)?.split_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self {
            text: next()?,
            data: next()?,
            bss: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let table = "   text\t   data\t    bss\t    dec\t    hex\tfilename\n  123456\t   789\t  4096\t 128341\t  1f555\tguest\n";
        assert_eq!(
            Sizes::parse(table),
            Some(Sizes {
                text: 123_456,
                data: 789,
                bss: 4096
            })
        );
        assert_eq!(Sizes::parse("text data\n"), None);
        assert_eq!(Sizes::parse("text data bss\nx y z"), None);
    }
}
