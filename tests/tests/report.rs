//! The main job, from the command line to the report.
#![forbid(unsafe_code)]

use doorpost_tests::{number, report, run, sum};

const MAIN_JOB: [&str; 14] = [
    "--drive",
    "scratch:16m",
    "--rw",
    "randread",
    "--bs",
    "4k",
    "--iodepth",
    "32",
    "--numjobs",
    "2",
    "--runtime",
    "2",
    "--time_based",
    "--vcpus=2",
];

#[test]
fn the_main_job_reads_and_reports() {
    let report = report(MAIN_JOB);
    let reads = sum(&report, "/jobs", "/read/total_ios");
    assert!(reads > 1000, "{reads} reads in two seconds");
    assert_eq!(number(&report, "/doorpost/totals/errors"), 0);
    assert_eq!(sum(&report, "/jobs", "/error"), 0);
    assert_eq!(sum(&report, "/doorpost/report/queues", "/completions"), reads);
    assert_eq!(sum(&report, "/doorpost/report/queues", "/missed"), 0);
    let bytes = sum(&report, "/jobs", "/read/io_bytes");
    assert_eq!(bytes, reads * 4096);
    for job in report["jobs"].as_array().unwrap() {
        let runtime = number(job, "/read/runtime");
        assert!((1900..4000).contains(&runtime), "{runtime} ms");
        assert_eq!(number(job, "/read/lat_ns/N"), number(job, "/read/total_ios"));
        assert!(number(job, "/read/clat_ns/percentile/99.000000") >= number(job, "/read/clat_ns/percentile/50.000000"));
    }
    assert!(number(&report, "/doorpost/report/machine/clock/hertz") > 1_000_000);
}

#[test]
fn the_text_is_in_the_form_of_fio() {
    let outcome = run(MAIN_JOB).expect_status(0);
    for part in [
        "read: IOPS=",
        "BW=",
        "slat (",
        "clat (",
        "clat percentiles",
        "99.00th=[",
        "IO depths",
        "issued rwts: total=",
        "nvme0",
    ] {
        assert!(outcome.stdout.contains(part), "`{part}` in\n{}", outcome.stdout);
    }
    // A line each second while it ran.
    assert!(
        outcome.stderr.lines().filter(|line| line.contains("IOPS")).count() >= 1,
        "progress in\n{}",
        outcome.stderr
    );
}

#[test]
fn a_job_ends_with_its_size() {
    // Each block once: a random map of 1 MiB in blocks of 4 KiB.
    let report = report(["--drive", "null:1m", "--rw", "randread", "--bs", "4k", "--iodepth", "7"]);
    assert_eq!(number(&report, "/jobs/0/read/total_ios"), 256);
    let report = self::report(["--drive", "null:1m", "--rw", "read", "--bs", "8k", "--size", "50%"]);
    assert_eq!(number(&report, "/jobs/0/read/total_ios"), 64);
}

#[test]
fn a_ramp_is_not_counted() {
    let report = report([
        "--drive",
        "null",
        "--rw",
        "randread",
        "--runtime",
        "1",
        "--ramp_time",
        "1",
        "--time_based",
        "--iodepth",
        "4",
    ]);
    let runtime = number(&report, "/jobs/0/read/runtime");
    assert!((900..1500).contains(&runtime), "{runtime} ms");
    let completions = sum(&report, "/doorpost/report/queues", "/completions");
    assert_eq!(completions, number(&report, "/jobs/0/read/total_ios"));
}

#[test]
fn the_same_seed_gives_the_same_mix() {
    let mix = |seed: &str| {
        let report = report([
            "--drive",
            "scratch:4m",
            "--rw",
            "randrw",
            "--rwmixread",
            "70",
            "--number_ios",
            "500",
            "--randseed",
            seed,
            "--allow-write",
        ]);
        (
            number(&report, "/jobs/0/read/total_ios"),
            number(&report, "/jobs/0/write/total_ios"),
        )
    };
    let (reads, writes) = mix("7");
    assert_eq!(reads + writes, 500);
    assert!((300..400).contains(&reads), "{reads} of 500 at 70%");
    assert_eq!(mix("7"), (reads, writes));
}
