//! CPUs that mask interrupts and look for pending ones. That interrupts found pending were accepted, one for one, `check_laws`
//! looks in each report.

use doorpost_tests::{file, guest, list, number, pattern, report, sum};
use serde_json::Value;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// Random reads on two CPUs, none of which may be lost.
#[track_caller]
fn run(wait: &str, depth: u32, ios: u64) -> Value {
    let job = format!("--vcpus 2 --numjobs 2 --rw randread --iodepth {depth} --number_ios {ios}");
    let report = report(&format!("--drive null --drive null {job} --wait {wait}"));
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2 * ios);
    let mode = wait.split(' ').next().unwrap();
    assert!(list(guest(&report), "/jobs").iter().all(|job| job["wait"] == mode));
    report
}

#[test]
fn every_interrupt_is_found_pending() {
    for depth in [1, 32] {
        let report = run("pending", depth, 5000);
        for cpu in list(guest(&report), "/cpus") {
            let (hits, late) = (number(cpu, "/pending_hits"), number(cpu, "/pending_late"));
            assert!(hits > 0 && number(cpu, "/empty_polls") > 0, "{cpu}");
            // Between a look and the moment that lets interrupts in, few can come.
            assert!(late <= hits / 4, "{cpu}");
            assert!(number(cpu, "/pending_look_ns") > 0, "{cpu}");
            assert!(number(cpu, "/polling_ns") > 0, "{cpu}");
        }
    }
}

#[test]
fn the_watchdog_ticks_though_interrupts_are_masked() {
    let report = report("--drive null --rw randread --time_based --runtime 2 --wait pending");
    assert!(number(guest(&report), "/cpus/0/ticks") >= 10);
}

#[test]
fn pending_brings_the_same_data() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "drive.img", &pattern(8 * MIB));
    for wait in ["pending", "hybrid"] {
        let report = report(&format!(
            "--drive {drive} --rw randread --iodepth 8 --verify pattern --wait {wait}"
        ));
        assert_eq!(
            number(guest(&report), "/jobs/0/verified_blocks"),
            (8 * MIB / 512) as u64
        );
        assert_eq!(number(guest(&report), "/jobs/0/miscompares"), 0);
    }
}

#[test]
fn hybrid_polls_for_as_long_as_it_is_told_and_then_halts() {
    // Never: nothing but halts. For a second: nothing but polls.
    let never = run("hybrid --hybrid 0", 1, 1000);
    assert!(sum(guest(&never), "/cpus", "/halts") > 0);
    assert!(sum(guest(&never), "/cpus", "/halted_ns") > 0);
    assert_eq!(sum(guest(&never), "/cpus", "/empty_polls"), 0);
    let always = run("hybrid --hybrid 1000000", 1, 1000);
    assert_eq!(sum(guest(&always), "/cpus", "/halts"), 0);
    assert!(sum(guest(&always), "/cpus", "/empty_polls") > 0);
}

#[test]
fn adaptive_polling_stays_within_its_bound() {
    let report = run("hybrid --adaptive --hybrid 40", 1, 2000);
    for cpu in list(guest(&report), "/cpus") {
        assert!(
            [0, 10_000, 20_000, 40_000].contains(&number(cpu, "/poll_length_ns")),
            "{cpu}"
        );
    }
}
