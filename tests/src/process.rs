//! The programs under test, and what becomes of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file beside the test's own executable: `target/debug`.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.parent().and_then(Path::parent);
    let path = folder.expect("tests lie in target/PROFILE/deps").join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo xtask test`, or `cargo build -p doorpost -p doorpost-counter-plugin` first",
        path.display()
    );
    path
}

/// The program.
pub fn doorpost() -> Command {
    let mut command = Command::new(built("doorpost"));
    command.env_remove("RUST_BACKTRACE");
    command
}

/// The TCG plugin that counts guest instructions.
pub fn counter_plugin() -> PathBuf {
    built("libdoorpost_counter_plugin.so")
}

/// `doorpost run` on TCG with these options, separated by white space.
pub fn run(options: &str) -> Outcome {
    Outcome::of(
        doorpost()
            .args(["run", "--accel", "tcg"])
            .args(options.split_whitespace()),
    )
}

/// What became of a command.
pub struct Outcome {
    /// Exit status; None after a signal.
    pub status: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

impl Outcome {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Self {
        command.output().expect("the program starts").into()
    }

    /// Asserts an exit status, and shows everything if it is another.
    #[track_caller]
    pub fn expect_status(self, status: i32) -> Self {
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        let shown = format!("exit status\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
        assert_eq!(self.status, Some(status), "{shown}");
        self
    }

    /// Asserts that the complaint is a single line that holds all of `parts`; returns that line.
    #[track_caller]
    pub fn expect_complaint(&self, parts: &[&str]) -> &str {
        let complaints: Vec<&str> = self.stderr.lines().filter(|l| l.starts_with("doorpost: ")).collect();
        assert_eq!(complaints.len(), 1, "one complaint\n--- stderr\n{}", self.stderr);
        for part in parts {
            assert!(complaints[0].contains(part), "`{part}` in `{}`", complaints[0]);
        }
        complaints[0]
    }

    /// Asserts that what was asked for is refused: status 2, one line that holds all of `parts`, and nothing printed.
    #[track_caller]
    pub fn expect_refusal(self, parts: &[&str]) {
        let outcome = self.expect_status(2);
        let complaint = outcome.expect_complaint(parts);
        assert_eq!(outcome.stdout, "");
        // Some things only the guest knows, and it is announced when it starts.
        let others = outcome.stderr.lines().filter(|line| *line != complaint);
        for line in others {
            assert!(line.starts_with("starting the "), "`{line}` besides `{complaint}`");
        }
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}
