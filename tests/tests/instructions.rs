//! Guest instructions, counted by a TCG plugin between the guest's marks. Counts do not depend on how busy the host is, but for
//! those of a CPU that looks for completions while there are none.
#![forbid(unsafe_code)]

use std::fs;

use doorpost_tests::{counter_plugin, report, sum};
use serde_json::Value;
use tempfile::TempDir;

/// Instructions at the first completed I/O, and between the marks round the run, with the number of its I/Os.
fn count(wait: &str, ios_per_job: u64) -> (u64, u64, u64) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("marks");
    let plugin = format!("--qemu-arg={},out={}", counter_plugin().display(), out.display());
    let report = report([
        "--drive",
        "null",
        "--vcpus",
        "2",
        "--numjobs",
        "2",
        "--rw",
        "randread",
        "--bs",
        "4k",
        "--iodepth",
        "32",
        "--wait",
        wait,
        "--number_ios",
        &ios_per_job.to_string(),
        "--qemu-arg=-plugin",
        &plugin,
    ]);
    let marks: Vec<Value> = fs::read_to_string(&out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    let at = |mark: usize| marks[mark]["instructions"].as_u64().expect("a count");
    assert!(marks.len() >= 3, "first I/O, before, after: {marks:?}");
    (at(0), at(2) - at(1), sum(&report, "/jobs", "/read/total_ios"))
}

/// What each further I/O costs.
fn per_io(wait: &str) -> f64 {
    let (_, few, few_ios) = count(wait, 5_000);
    let (_, many, many_ios) = count(wait, 25_000);
    (many as f64 - few as f64) / (many_ios - few_ios) as f64
}

#[test]
fn a_read_costs_less_than_a_thousand_instructions() {
    for wait in ["interrupt", "poll", "halt"] {
        let instructions = per_io(wait);
        println!("{wait}: {instructions:.0} guest instructions per 4 KiB read");
        assert!((50.0..1000.0).contains(&instructions), "{wait}: {instructions}");
    }
}

#[test]
fn the_first_io_completes_within_fifty_million_instructions() {
    let (first, ..) = count("interrupt", 1_000);
    println!("{first} guest instructions from power-on to the first completed I/O");
    assert!((10_000..50_000_000).contains(&first), "{first}");
}
