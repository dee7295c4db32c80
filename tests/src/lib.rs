//! End-to-end tests: spawn doorpost, boot the guest, read its report.
//!
//! The programs under test are built by `cargo xtask test`, or by `cargo build -p doorpost -p doorpost-counter-plugin`.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A file beside the test's own executable: `target/debug`.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in target/PROFILE/deps");
    let path = folder.join(name);
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

/// What became of a run.
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
        let Output { status, stdout, stderr } = command.output().expect("the program starts");
        Self {
            status: status.code(),
            stdout: String::from_utf8(stdout).expect("text"),
            stderr: String::from_utf8(stderr).expect("text"),
        }
    }

    /// Asserts an exit status, and shows everything if it is another.
    #[track_caller]
    pub fn expect_status(self, status: i32) -> Self {
        assert_eq!(
            self.status,
            Some(status),
            "exit status\n--- stdout\n{}\n--- stderr\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that the complaint is a single line that holds all of `parts`.
    #[track_caller]
    pub fn expect_complaint(self, parts: &[&str]) -> Self {
        let complaints: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| line.starts_with("doorpost: "))
            .collect();
        assert_eq!(complaints.len(), 1, "one complaint\n--- stderr\n{}", self.stderr);
        for part in parts {
            assert!(
                complaints[0].contains(part),
                "`{part}` in the complaint `{}`",
                complaints[0]
            );
        }
        self
    }
}

/// `doorpost run` on TCG with the given options.
pub fn run<S: AsRef<OsStr>>(options: impl IntoIterator<Item = S>) -> Outcome {
    Outcome::of(doorpost().args(["run", "--accel", "tcg"]).args(options))
}

/// `doorpost run` that must succeed, and its JSON report.
#[track_caller]
pub fn report<S: AsRef<OsStr>>(options: impl IntoIterator<Item = S>) -> Value {
    let outcome = Outcome::of(
        doorpost()
            .args(["run", "--accel", "tcg", "--output-format", "json"])
            .args(options),
    );
    let outcome = outcome.expect_status(0);
    serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{error}: JSON and nothing else on stdout, but:\n{}", outcome.stdout))
}

/// A number in a report.
#[track_caller]
pub fn number(report: &Value, pointer: &str) -> u64 {
    let value = report
        .pointer(pointer)
        .unwrap_or_else(|| panic!("{pointer} is missing in {report:#}"));
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{pointer} is {value}, which is no count"))
}

/// The sum of a number over all entries of an array in a report.
#[track_caller]
pub fn sum(report: &Value, array: &str, field: &str) -> u64 {
    let entries = report.pointer(array).and_then(Value::as_array);
    let entries = entries.unwrap_or_else(|| panic!("{array} is no array in {report:#}"));
    entries.iter().map(|entry| number(entry, field)).sum()
}

/// The pattern that `verify=pattern` means, written out here once more from its documentation: SplitMix64 over the place.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0u64;
    let mut words = Vec::with_capacity(length);
    for _ in 0..length / 8 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        words.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    words
}
