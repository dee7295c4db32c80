//! Queues and vectors over CPUs, and interrupts counted one by one. That they add up, `check_laws` looks in each report.

use std::collections::BTreeSet;

use doorpost_tests::{guest, list, number, qemu, report, run, sum};
use serde_json::Value;

fn queues(report: &Value) -> &[Value] {
    list(guest(report), "/queues")
}

/// The different values of a count.
fn different(entries: &[Value], field: &str) -> Vec<u64> {
    let values: BTreeSet<u64> = entries.iter().map(|entry| number(entry, field)).collect();
    values.into_iter().collect()
}

#[test]
fn two_controllers_on_four_cpus_use_eight_queues() {
    let job = "--vcpus 4 --numjobs 4 --rw randread --iodepth 8 --number_ios 2000 --wait interrupt";
    let report = report(&format!("--drive null --drive null {job}"));
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
        assert_eq!(list(queue, "/jobs").len(), 1);
        assert_eq!(
            queue["cpu"], queue["cpu_hardware_id"],
            "QEMU counts its CPUs' ids from 0"
        );
    }
    // No two queues of a CPU share a vector.
    let vectors: BTreeSet<_> = queues
        .iter()
        .map(|q| (number(q, "/cpu"), number(q, "/vector")))
        .collect();
    assert_eq!(vectors.len(), 8);
}

/// Interrupts per I/O at depth 1.
fn at_depth_one(wait: &str) -> f64 {
    let job = "--vcpus 2 --numjobs 2 --rw randread --iodepth 1 --number_ios 3000";
    let report = report(&format!("--drive null {job} --wait {wait}"));
    for job in list(guest(&report), "/jobs") {
        assert_eq!(job["wait"], wait);
    }
    let ios = sum(&report, "/jobs", "/read/total_ios");
    assert_eq!(ios, 6000);
    sum(guest(&report), "/cpus", "/interrupts") as f64 / ios as f64
}

#[test]
fn each_io_at_depth_one_brings_one_interrupt() {
    for wait in ["interrupt", "halt"] {
        let interrupts = at_depth_one(wait);
        assert!(
            (interrupts - 1.0).abs() <= 0.02,
            "{wait}: {interrupts} interrupts per I/O"
        );
    }
}

#[test]
fn polling_takes_no_interrupt() {
    assert_eq!(at_depth_one("poll"), 0.0);
}

#[test]
fn halting_halts() {
    let report = report("--drive null --rw randread --number_ios 1000 --wait halt");
    // How often depends on how fast the emulator's other threads are.
    assert!(number(guest(&report), "/cpus/0/halts") > 0);
}

/// A run of four jobs on a controller with fewer queues or vectors; its notes must say `note`.
#[track_caller]
fn degraded(limit: &str, note: &str) -> Value {
    degraded_on("--vcpus 4", limit, note)
}

#[track_caller]
fn degraded_on(machine: &str, limit: &str, note: &str) -> Value {
    let job = format!("{machine} --numjobs 4 --rw randread --iodepth 4 --number_ios 500");
    let report = report(&format!(
        "--drive null {job} {}",
        qemu(&format!("-global nvme.{limit}"))
    ));
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2000);
    for job in list(&report, "/jobs") {
        assert_eq!(number(job, "/read/total_ios"), 500);
    }
    let notes = guest(&report)["notes"].to_string();
    assert!(notes.contains(note), "{notes}");
    report
}

#[test]
fn a_single_vector_is_enough() {
    let report = degraded("msix_qsize=1", "1 of 4 MSI-X entries");
    assert_eq!(queues(&report).len(), 1);
    assert_eq!(list(&queues(&report)[0], "/jobs").len(), 4);
    assert_eq!(different(queues(&report), "/msix_entry"), [0]);
    assert_eq!(different(queues(&report), "/cpu"), [0]);
    assert!(number(guest(&report), "/cpus/0/interrupts") > 0);
}

#[test]
fn a_single_vector_is_enough_for_several_queues() {
    let report = degraded_on("--vcpus 1 --queues_per_cpu 4", "msix_qsize=1", "1 of 4 MSI-X entries");
    assert_eq!(queues(&report).len(), 4);
    assert_eq!(different(queues(&report), "/msix_entry"), [0]);
    assert_eq!(different(queues(&report), "/completions"), [500]);
}

#[test]
fn two_vectors_share_out_four_queues() {
    let report = degraded_on("--vcpus 2 --queues_per_cpu 2", "msix_qsize=2", "2 of 4 MSI-X entries");
    assert_eq!(queues(&report).len(), 4);
    assert_eq!(different(queues(&report), "/msix_entry"), [0, 1]);
    assert_eq!(different(queues(&report), "/cpu"), [0, 1]);
}

#[test]
fn as_many_vectors_as_queues_are_enough() {
    let report = degraded("msix_qsize=4", "");
    assert_eq!(different(queues(&report), "/msix_entry"), [0, 1, 2, 3]);
    assert_eq!(different(queues(&report), "/cpu"), [0, 1, 2, 3]);
}

#[test]
fn a_single_queue_is_enough() {
    let report = degraded("max_ioqpairs=1", "granted 1 of 4 queue pairs");
    assert_eq!(queues(&report).len(), 1);
    assert_eq!(list(&queues(&report)[0], "/jobs").len(), 4);
}

#[test]
fn two_queues_share_out_four_jobs() {
    let report = degraded("max_ioqpairs=2", "granted 2 of 4 queue pairs");
    assert_eq!(different(queues(&report), "/cpu"), [0, 1]);
    for queue in queues(&report) {
        assert_eq!(number(queue, "/completions"), 1000, "{queue}");
    }
}

#[test]
fn more_jobs_than_cpus_share_their_queues() {
    let report = report("--drive null --vcpus 2 --numjobs 7 --rw randread --iodepth 4 --number_ios 300 --wait halt");
    let jobs = queues(&report).iter().map(|queue| list(queue, "/jobs").len());
    assert_eq!(jobs.collect::<Vec<_>>(), [4, 3]);
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2100);
}

#[test]
fn queues_of_a_cpu_can_share_vectors() {
    let vectors = |sharing: &str| {
        let job = "--vcpus 2 --queues_per_cpu 3 --numjobs 6 --rw randread --iodepth 2 --number_ios 300";
        let report = report(&format!("--drive null --drive null {job} --vectors {sharing}"));
        assert_eq!(queues(&report).len(), 12);
        assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 1800);
        different(queues(&report), "/vector").len()
    };
    assert_eq!(["per-queue", "per-controller", "shared"].map(vectors), [12, 4, 2]);
}

#[test]
fn jobs_run_on_the_cpus_that_they_are_allowed() {
    let report = report("--drive null --vcpus 4 --numjobs 3 --cpus_allowed 1,3 --rw randread --number_ios 200");
    let cpus: Vec<u64> = list(guest(&report), "/jobs")
        .iter()
        .map(|job| number(job, "/cpu"))
        .collect();
    assert_eq!(cpus, [1, 3, 1]);
    assert_eq!(different(queues(&report), "/cpu"), [1, 3]);
    run("--drive null --vcpus 2 --cpus_allowed 2").expect_refusal(&["cpus_allowed", "CPU 2", "0 to 1"]);
}

#[test]
fn doorbells_in_memory_work() {
    let bells = |more: &str| {
        let job = "--rw randread --iodepth 4 --number_ios 4000 --wait poll";
        let report = report(&format!("--drive null {job} {more}"));
        assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 4000);
        let controller = &list(guest(&report), "/controllers")[0];
        assert_eq!(controller["shadow_doorbells"], !more.is_empty());
        number(&queues(&report)[0], "/sq_doorbells") + number(&queues(&report)[0], "/cq_doorbells")
    };
    // How many are saved is the controller's affair: an emulator that keeps up asks for each.
    let (registers, memory) = (bells(""), bells("--shadow_doorbells"));
    assert!(
        memory <= registers,
        "{memory} writes with shadow doorbells, {registers} without"
    );
}
