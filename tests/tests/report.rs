//! The main job, from the command line to the report.

use std::fs;

use doorpost_tests::{Outcome, check_laws, doorpost, file, guest, list, number, parse, qemu, report, run, sum, text};
use tempfile::TempDir;

#[test]
fn the_main_job_reports_in_text_and_json() {
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("report.json");
    let outcome = run(&format!(
        "--drive scratch:16m --rw randread --bs 4k --iodepth 32 --numjobs 2 --vcpus 2 --runtime 2 --time_based \
         --output {} --output-format normal,json",
        json.display()
    ))
    .expect_status(0);

    // A line each second while it ran.
    let progress = |line: &&str| ["IOPS", "MiB/s", "interrupts/s"].iter().all(|word| line.contains(word));
    let seconds = outcome.stderr.lines().filter(progress).count();
    assert!(seconds >= 1, "progress in\n{}", outcome.stderr);

    // The file holds JSON and nothing else, and standard output the text, which can be told again from the JSON.
    let report = parse(&fs::read_to_string(&json).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let again = Outcome::of(doorpost().arg("report").arg(&json)).expect_status(0);
    assert_eq!(again.stdout, outcome.stdout);
    check_laws(&report);
    let reads = sum(&report, "/jobs", "/read/total_ios");
    assert!(reads > 1000, "{reads} reads in two seconds");
    assert_eq!(number(&report, "/doorpost/totals/errors"), 0);
    for job in list(&report, "/jobs") {
        let runtime = number(job, "/read/runtime");
        assert!(runtime >= 1900, "{runtime} ms");
        assert_eq!(number(job, "/error"), 0);
    }
    let clock = number(guest(&report), "/machine/clock/hertz");
    assert!(clock > 1_000_000, "{clock} Hz");

    for part in [
        "read: IOPS=",
        "BW=",
        "slat (",
        "clat (",
        "clat percentiles",
        "99.00th=[",
        "IO depths",
        &format!("issued rwts: total={reads},0,0,0"),
        "Fan-out",
        "Wait mode : interrupt",
    ] {
        assert!(outcome.stdout.contains(part), "`{part}` in\n{}", outcome.stdout);
    }
    // A row for each queue: controller, queue, CPU, its id, MSI-X entry.
    for row in [["nvme0", "1", "0", "0", "1"], ["nvme0", "2", "1", "1", "2"]] {
        let is_row = |line: &str| line.split_whitespace().take(5).eq(row);
        assert!(outcome.stdout.lines().any(is_row), "{row:?} in\n{}", outcome.stdout);
    }
}

#[test]
fn a_job_ends_with_its_size() {
    // Each block once: a random map of 1 MiB in blocks of 4 KiB.
    let whole = report("--drive null:1m --rw randread --bs 4k --iodepth 7");
    assert_eq!(number(&whole, "/jobs/0/read/total_ios"), 256);
    let half = report("--drive null:1m --rw read --bs 8k --size 50%");
    assert_eq!(number(&half, "/jobs/0/read/total_ios"), 64);
    // Over all drives of a job.
    let two = report("--drive null:1m --drive null:2m --rw read --bs 64k --size 512k");
    assert_eq!(number(&two, "/jobs/0/read/total_ios"), 16);
}

#[test]
fn a_ramp_is_not_counted() {
    let report = report("--drive null --rw randread --iodepth 4 --runtime 1 --ramp_time 1 --time_based");
    assert!(number(&report, "/jobs/0/read/runtime") >= 900);
    // The controller has counted all reads; that the queues' counts agree with the job's, `check_laws` has seen.
    let all = number(guest(&report), "/controllers/0/health/host_reads");
    let counted = number(&report, "/jobs/0/read/total_ios");
    assert!(counted > 0 && all > counted + 100, "{counted} of {all} reads");
}

#[test]
fn the_same_seed_gives_the_same_mix() {
    let mix = |seed: u32| {
        let job = "--drive scratch:4m --rw randrw --rwmixread 70 --number_ios 500 --allow-write";
        let report = report(&format!("{job} --randseed {seed}"));
        let count = |direction: &str| number(&report, &format!("/jobs/0/{direction}/total_ios"));
        (count("read"), count("write"))
    };
    let (reads, writes) = mix(7);
    assert_eq!(reads + writes, 500);
    assert!((300..400).contains(&reads), "{reads} of 500 at 70%");
    assert_eq!(mix(7), (reads, writes));
    assert_ne!(mix(8), (reads, writes));
}

#[test]
fn the_accelerator_is_chosen_and_said() {
    let json = ["--output-format", "json"];
    let job = ["run", "--drive", "null:1m", "--accel", "auto"];
    let outcome = Outcome::of(doorpost().args(job).args(json)).expect_status(0);
    let report = parse(&outcome.stdout);
    let launcher = &report["doorpost"]["launcher"];
    let accelerator = text(launcher, "/accelerator");
    let started = format!("starting the x86_64 guest ({accelerator})");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.iter().filter(|line| **line == started).count(), 1, "{lines:?}");
    match accelerator {
        "kvm" => assert!(launcher["accelerator_reason"].is_null(), "{launcher:#}"),
        _ => {
            let reason = text(launcher, "/accelerator_reason");
            assert!(reason.ends_with("using TCG"), "{reason}");
            assert_eq!(lines.iter().filter(|line| **line == reason).count(), 1, "{lines:?}");
        }
    }
}

#[test]
fn text_goes_to_a_file_too() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("report.txt");
    let outcome = run(&format!(
        "--drive null:1m --norandommap --rw randread --output {}",
        file.display()
    ));
    assert_eq!(outcome.expect_status(0).stdout, "");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("issued rwts: total=256,0,0,0"), "{text}");
}

#[test]
fn the_old_report_stays_when_a_run_fails() {
    let folder = TempDir::new().unwrap();
    let json = file(&folder, "report.json", b"old");
    for (options, status) in [
        (qemu("-S") + " --timeout 1", 1),
        (qemu("-global nvme.mdts=1") + " --bs 64k", 2),
        ("--rw write".to_string(), 2),
    ] {
        let output = format!("--output {json} --output-format json");
        run(&format!("--drive null:1m {output} {options}")).expect_status(status);
        assert_eq!(fs::read(&json).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{options}");
    }
}
