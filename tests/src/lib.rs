//! End-to-end tests: spawn doorpost, boot the guest, read its report.
//!
//! The programs under test are built by `cargo xtask test`, or by `cargo build -p doorpost -p doorpost-counter-plugin`.
#![forbid(unsafe_code)]

mod laws;
mod process;
mod reading;

pub use laws::check_laws;
pub use process::{Outcome, counter_plugin, doorpost, run};
pub use reading::{list, number, parse, sum, text};

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

/// QEMU arguments as words for [`run`] and [`report`].
pub fn qemu(arguments: &str) -> String {
    let words = arguments.split_whitespace().map(|word| format!("--qemu-arg={word}"));
    words.collect::<Vec<_>>().join(" ")
}

/// The JSON report of a [`run`] that must succeed, found to obey the laws that hold for any run.
#[track_caller]
pub fn report(options: &str) -> Value {
    let outcome = run(&format!("--output-format json {options}")).expect_status(0);
    let report = parse(&outcome.stdout);
    check_laws(&report);
    report
}

/// The guest's own half of a report.
#[track_caller]
pub fn guest(report: &Value) -> &Value {
    report
        .pointer("/doorpost/report")
        .expect("a report holds what the guest said")
}

/// A file in a folder, with these contents; its path as a word of a command line.
#[track_caller]
pub fn file(folder: &TempDir, name: &str, contents: &[u8]) -> String {
    let path = folder.path().join(name);
    fs::write(&path, contents).expect("a temporary folder can be written");
    path.to_str().expect("temporary folders have names of text").to_string()
}

/// The pattern that `verify=pattern` means, written out here once more from its documentation: SplitMix64 over the place.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0u64;
    let mut bytes = Vec::with_capacity(length);
    for _ in 0..length / 8 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes
}
