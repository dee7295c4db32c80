//! Guest instructions, counted by a TCG plugin between the guest's marks. Counts do not depend on how busy the host is, but for
//! those of a CPU that looks for completions while there are none.

use std::fs;

use doorpost_tests::{counter_plugin, number, parse, qemu, report, sum};
use tempfile::TempDir;

/// Instructions at the first completed I/O, and between the marks round the run, with the number of its I/Os.
fn count(wait: &str, ios_per_job: u64) -> (u64, u64, u64) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("marks");
    let plugin = qemu(&format!("-plugin {},out={}", counter_plugin().display(), out.display()));
    let job = "--drive null --vcpus 2 --numjobs 2 --rw randread --bs 4k --iodepth 32";
    let report = report(&format!("{job} --wait {wait} --number_ios {ios_per_job} {plugin}"));
    let marks = fs::read_to_string(&out).unwrap();
    let marks: Vec<u64> = marks
        .lines()
        .map(|line| number(&parse(line), "/instructions"))
        .collect();
    let [first, before, after, ..] = marks[..] else {
        panic!("first I/O, before, after: {marks:?}");
    };
    (first, after - before, sum(&report, "/jobs", "/read/total_ios"))
}

/// What each further I/O costs.
fn per_io(wait: &str) -> f64 {
    let (_, few, few_ios) = count(wait, 2_000);
    let (_, many, many_ios) = count(wait, 12_000);
    let instructions = (many as f64 - few as f64) / (many_ios - few_ios) as f64;
    println!("{wait}: {instructions:.0} guest instructions per 4 KiB read");
    assert!(instructions > 50.0, "{instructions} are too few to be true");
    instructions
}

#[test]
fn a_read_costs_less_than_a_thousand_instructions() {
    for wait in ["interrupt", "poll"] {
        // A CPU that waits by looking executes more the longer the emulator's own threads keep it waiting, and on a busy host
        // they do. What a read costs is the least of it.
        let least = (0..6).map(|_| per_io(wait)).find(|instructions| *instructions < 1000.0);
        assert!(least.is_some(), "{wait}");
    }
}

#[test]
fn a_read_costs_the_same_on_any_host_where_cpus_sleep() {
    let instructions = per_io("halt");
    assert!(instructions < 450.0, "{instructions}");
}

#[test]
fn a_look_for_pending_interrupts_before_each_halt_costs_little() {
    // A wait of no length: the path of `pending`, without looks in vain, of which the host decides how many there are.
    let instructions = per_io("hybrid --hybrid 0");
    assert!(instructions < 450.0, "{instructions}");
}

#[test]
fn the_first_io_completes_within_fifty_million_instructions() {
    let (first, ..) = count("interrupt", 100);
    println!("{first} guest instructions from power-on to the first completed I/O");
    assert!((10_000..50_000_000).contains(&first), "{first}");
}
