//! Queues and vectors over CPUs, and interrupts counted one by one.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use doorpost_tests::{number, report, sum};
use serde_json::Value;

fn queues(report: &Value) -> &Vec<Value> {
    report
        .pointer("/doorpost/report/queues")
        .and_then(Value::as_array)
        .expect("queues")
}

#[test]
fn two_controllers_on_four_cpus_use_eight_queues() {
    let report = report([
        "--vcpus",
        "4",
        "--drive",
        "null",
        "--drive",
        "null",
        "--numjobs",
        "4",
        "--rw",
        "randread",
        "--iodepth",
        "8",
        "--number_ios",
        "2000",
        "--wait",
        "interrupt",
    ]);
    let queues = queues(&report);
    assert_eq!(queues.len(), 8);
    let routes: BTreeSet<_> = queues
        .iter()
        .map(|q| (q["controller"].to_string(), number(q, "/cpu")))
        .collect();
    assert_eq!(routes.len(), 8, "each controller has a queue on each CPU");
    for queue in queues {
        assert!(number(queue, "/interrupts") > 0, "{queue}");
        assert_eq!(number(queue, "/completions"), 1000, "{queue}");
        assert_eq!(number(queue, "/missed"), 0, "{queue}");
        assert_eq!(queue["jobs"].as_array().unwrap().len(), 1);
    }
    // No two queues of a CPU share a vector, and no interrupt went astray.
    let vectors: BTreeSet<_> = queues
        .iter()
        .map(|q| (number(q, "/cpu"), number(q, "/vector")))
        .collect();
    assert_eq!(vectors.len(), 8);
    assert_eq!(sum(&report, "/doorpost/report/cpus", "/wrong_cpu"), 0);
    assert_eq!(sum(&report, "/doorpost/report/cpus", "/unexpected"), 0);
    let by_queue = sum(&report, "/doorpost/report/queues", "/interrupts");
    assert_eq!(sum(&report, "/doorpost/report/cpus", "/interrupts"), by_queue);
}

/// Interrupts and I/Os at depth 1.
fn at_depth_one(wait: &str) -> (u64, u64) {
    let report = report([
        "--drive",
        "null",
        "--vcpus",
        "2",
        "--numjobs",
        "2",
        "--rw",
        "randread",
        "--iodepth",
        "1",
        "--number_ios",
        "3000",
        "--wait",
        wait,
    ]);
    assert_eq!(sum(&report, "/doorpost/report/queues", "/missed"), 0);
    for job in report["doorpost"]["report"]["jobs"].as_array().unwrap() {
        assert_eq!(job["wait"], wait);
    }
    (
        sum(&report, "/doorpost/report/cpus", "/interrupts"),
        sum(&report, "/jobs", "/read/total_ios"),
    )
}

#[test]
fn each_io_at_depth_one_brings_one_interrupt() {
    for wait in ["interrupt", "halt"] {
        let (interrupts, ios) = at_depth_one(wait);
        assert_eq!(ios, 6000);
        assert!(
            (interrupts as f64 / ios as f64 - 1.0).abs() <= 0.02,
            "{wait}: {interrupts} interrupts for {ios} I/Os"
        );
    }
}

#[test]
fn polling_takes_no_interrupt() {
    let (interrupts, ios) = at_depth_one("poll");
    assert_eq!((interrupts, ios), (0, 6000));
}

#[test]
fn halting_halts() {
    let report = report([
        "--drive",
        "null",
        "--rw",
        "randread",
        "--number_ios",
        "1000",
        "--wait",
        "halt",
    ]);
    // How often depends on how fast the emulator's other threads are.
    assert!(number(&report, "/doorpost/report/cpus/0/halts") > 0);
}

/// A run on a controller with fewer queues or vectors than jobs.
fn degraded(global: &str) -> Value {
    report([
        "--drive",
        "null",
        "--vcpus",
        "4",
        "--numjobs",
        "4",
        "--rw",
        "randread",
        "--iodepth",
        "4",
        "--number_ios",
        "500",
        "--qemu-arg=-global",
        &format!("--qemu-arg={global}"),
    ])
}

#[test]
fn a_single_vector_is_enough() {
    let report = degraded("nvme.msix_qsize=1");
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2000);
    assert!(
        queues(&report)
            .iter()
            .all(|queue| number(queue, "/msix_entry") == 0 && number(queue, "/cpu") == 0)
    );
    assert!(number(&report, "/doorpost/report/cpus/0/interrupts") > 0);
    let notes = report.pointer("/doorpost/report/notes").unwrap().to_string();
    assert!(notes.contains("1 of 4 MSI-X entries"), "{notes}");
}

#[test]
fn as_many_vectors_as_queues_are_enough() {
    let report = degraded("nvme.msix_qsize=4");
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2000);
    let entries: BTreeSet<_> = queues(&report)
        .iter()
        .map(|queue| number(queue, "/msix_entry"))
        .collect();
    assert_eq!(entries, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn a_single_queue_is_enough() {
    let report = degraded("nvme.max_ioqpairs=1");
    assert_eq!(queues(&report).len(), 1);
    assert_eq!(number(&report, "/doorpost/report/queues/0/completions"), 2000);
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2000);
    let notes = report.pointer("/doorpost/report/notes").unwrap().to_string();
    assert!(notes.contains("granted 1 of 4 queue pairs"), "{notes}");
}
