//! What holds for the report of any run, whatever the job and the machine.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{guest, list, number, sum};

/// Asserts that the figures of a report agree with one another.
#[track_caller]
pub fn check_laws(report: &Value) {
    let guest = guest(report);
    list(report, "/jobs").iter().for_each(check_job);
    check_interrupts(guest);
    check_totals(report);
    // A command that a reset cut off was submitted twice.
    if sum(guest, "/controllers", "/recovery/resets") == 0 {
        check_queues(report);
    }
}

#[track_caller]
fn check_job(job: &Value) {
    for direction in ["read", "write"] {
        let half = &job[direction];
        let ios = number(half, "/total_ios");
        let timed = |latency: &str| number(half, &format!("/{latency}/N"));
        assert_eq!((timed("clat_ns"), timed("lat_ns")), (ios, ios), "{direction}");
        // I/Os that were in flight when the ramp ended were submitted before anything was measured.
        let unmeasured = ios - timed("slat_ns");
        assert!(unmeasured <= in_flight(job), "{direction} without slat: {unmeasured}");
        if number(job, "/error") == 0 {
            let bytes = ios * option(job, "bs").expect("bs");
            assert_eq!(number(half, "/io_bytes"), bytes, "{direction} bytes");
        }
        if ios > 0 {
            check_percentiles(half);
        }
        if ios > 0 && unmeasured == 0 {
            let mean = |latency: &str| half[latency]["mean"].as_f64().expect("a mean");
            let apart = mean("lat_ns") - mean("slat_ns") - mean("clat_ns");
            // Each is rounded down to a nanosecond.
            assert!(apart.abs() < 1.5, "lat is slat and clat, but for {apart} ns");
        }
    }
    if number(job, "/read/total_ios") + number(job, "/write/total_ios") > 0 {
        let parts = job["iodepth_level"].as_object().expect("depths");
        let whole: f64 = parts.values().filter_map(Value::as_f64).sum();
        assert!((whole - 100.0).abs() < 0.1, "depths add up to {whole} %");
    }
}

/// The value of a job's option that is a number, as fio's part of the report lists it.
fn option(job: &Value, name: &str) -> Option<u64> {
    let text = job["job options"][name].as_str()?;
    Some(text.trim_end_matches("us").parse().expect("a number"))
}

/// I/Os of a job that a ramp can have left in flight.
fn in_flight(job: &Value) -> u64 {
    match option(job, "ramp_time") {
        None => 0,
        Some(_) => option(job, "iodepth").expect("iodepth"),
    }
}

#[track_caller]
fn check_percentiles(half: &Value) {
    let percentiles = half["clat_ns"]["percentile"].as_object().expect("percentiles");
    let mut ranks: Vec<(f64, u64)> = percentiles
        .iter()
        .map(|(rank, value)| (rank.parse().expect("a rank"), value.as_u64().expect("a time")))
        .collect();
    ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(ranks.is_sorted_by_key(|rank| rank.1), "{ranks:?}");
    // A percentile is its bucket's, and a bucket is exact to 1/64.
    let most = number(half, "/clat_ns/max");
    let last = ranks.last().expect("percentiles").1;
    assert!(last <= most + most / 64 + 1, "{last} beyond {most}");
    let least = number(half, "/clat_ns/min");
    assert!(ranks[0].1 >= least - least / 64, "{} before {least}", ranks[0].1);
}

/// Interrupts by vector add up to the CPU's, which acknowledged each; none went astray, and none was lost.
#[track_caller]
fn check_interrupts(guest: &Value) {
    let polls = list(guest, "/jobs").iter().any(|job| job["wait"] == "poll");
    let waits = |modes: [&str; 2]| {
        list(guest, "/jobs")
            .iter()
            .any(|job| modes.iter().any(|mode| job["wait"] == *mode))
    };
    let halts = waits(["halt", "hybrid"]);
    let masks = waits(["pending", "hybrid"]);
    for cpu in list(guest, "/cpus") {
        let count = |field: &str| number(cpu, field);
        let interrupts = count("/interrupts");
        let mut vectors = BTreeMap::new();
        for queue in list(guest, "/queues").iter().filter(|queue| queue["cpu"] == cpu["cpu"]) {
            assert_eq!(queue["vector"].is_null(), polls, "{queue}");
            assert_eq!(queue["msix_entry"].is_null(), polls, "{queue}");
            let taken = number(queue, "/interrupts");
            let same = vectors
                .insert(queue["vector"].as_u64(), taken)
                .is_none_or(|n| n == taken);
            assert!(same, "queues of one vector tell the same: {queue}");
            assert!(number(queue, "/spurious") <= taken, "{queue}");
        }
        assert_eq!(vectors.values().sum::<u64>(), interrupts, "{vectors:?} {cpu}");
        assert_eq!((count("/wrong_cpu"), count("/unexpected")), (0, 0), "{cpu}");
        // The rest: another CPU woke this one to begin, or tells that it is done.
        let known = interrupts + count("/ticks");
        let wakes = number(guest, "/machine/cpus");
        assert!((known..=known + wakes).contains(&count("/eois")), "{cpu}");
        assert!(!polls || interrupts == 0, "{cpu}");
        assert!(halts || count("/halts") == 0, "{cpu}");
        let (hits, late) = (count("/pending_hits"), count("/pending_late"));
        // Each interrupt that was found pending was accepted, once.
        assert_eq!(hits + late, if masks { interrupts } else { 0 }, "{cpu}");
        assert!(halts || count("/halted_ns") == 0, "{cpu}");
    }
    assert_eq!(sum(guest, "/queues", "/missed"), 0);
}

/// What was submitted was completed, and doorbells were rung for it.
#[track_caller]
fn check_queues(report: &Value) {
    let guest = guest(report);
    let jobs = list(report, "/jobs");
    let ios = sum(guest, "/jobs", "/read/ios") + sum(guest, "/jobs", "/write/ios");
    assert_eq!(sum(guest, "/queues", "/completions"), ios, "completions and I/Os");
    for queue in list(guest, "/queues") {
        let count = |field: &str| number(queue, field);
        let (submitted, completed) = (count("/submissions"), count("/completions"));
        let users = list(queue, "/jobs").iter().filter_map(Value::as_u64);
        let before: u64 = users.map(|job| in_flight(&jobs[job as usize])).sum();
        assert!((submitted..=submitted + before).contains(&completed), "{queue}");
        assert!(count("/sq_doorbells") <= submitted, "{queue}");
        assert!(count("/cq_doorbells") <= completed, "{queue}");
        let name = &queue["controller"];
        let mut controllers = list(guest, "/controllers").iter();
        let controller = controllers.find(|c| c["name"] == *name).expect("a queue's controller");
        if completed > before && controller["shadow_doorbells"] == false {
            assert!(count("/sq_doorbells") > 0 && count("/cq_doorbells") > 0, "{queue}");
        }
    }
}

/// The totals are those of the parts.
#[track_caller]
fn check_totals(report: &Value) {
    let guest = guest(report);
    let totals = &report["doorpost"]["totals"];
    for (total, direction, part, fio) in [
        ("/reads", "read", "ios", "total_ios"),
        ("/writes", "write", "ios", "total_ios"),
        ("/read_bytes", "read", "bytes", "io_bytes"),
        ("/written_bytes", "write", "bytes", "io_bytes"),
    ] {
        let total = number(totals, total);
        assert_eq!(sum(guest, "/jobs", &format!("/{direction}/{part}")), total);
        assert_eq!(sum(report, "/jobs", &format!("/{direction}/{fio}")), total);
    }
    assert_eq!(number(totals, "/interrupts"), sum(guest, "/cpus", "/interrupts"));
    assert_eq!(number(totals, "/miscompares"), sum(guest, "/jobs", "/miscompares"));
}
