//! Jobs out of fio's job files.

use doorpost_tests::{file, guest, list, number, pattern, report, run, sum};
use tempfile::TempDir;

const JOBS: &str = "\
; two ways to read
[global]
ioengine=libaio
direct=1
bs=8k
size=1m

[random]
rw=randread
iodepth=16

[in-order]
readwrite=read
bs=64k
";

#[test]
fn a_job_runs_as_its_file_says() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "two.fio", JOBS.as_bytes());
    let random = report(&format!("{path} --section random --drive null:1m"));
    let options = &random["jobs"][0]["job options"];
    assert_eq!(
        (&options["name"], &options["rw"], &options["iodepth"]),
        (&"random".into(), &"randread".into(), &"16".into())
    );
    assert_eq!(sum(&random, "/jobs", "/read/total_ios"), 128);
    let notes = list(guest(&random), "/notes");
    assert!(
        notes.contains(&"taken without effect: ioengine=libaio, direct=1".into()),
        "{notes:?}"
    );

    // Options of the command line come after those of the file.
    let shorter = report(&format!("{path} --section in-order --drive null:1m --number_ios 5"));
    assert_eq!(sum(&shorter, "/jobs", "/read/total_ios"), 5);
}

const PHASES: &str = "\
[global]
size=100%
verify=pattern

[write]
rw=write
bs=64k

[read-half]
stonewall
rw=randread
numjobs=3
offset=50%
filename=nvme0n1

[late]
startdelay=200ms
rw=read
bs=4k
number_ios=10
filename=nvme1n1
";

#[test]
fn jobs_run_one_after_the_other_and_together() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "phases.fio", PHASES.as_bytes());
    for wait in ["interrupt", "halt", "poll", "pending", "hybrid"] {
        let drives = "--drive scratch:1m --drive scratch:1m --vcpus 2 --allow-write";
        let report = report(&format!("{path} {drives} --wait {wait}"));
        let jobs: Vec<_> = list(&report, "/jobs")
            .iter()
            .map(|job| {
                let name = job["jobname"].as_str().unwrap();
                let ios = |way: &str| number(job, &format!("/{way}/total_ios"));
                (name, number(job, "/groupid"), ios("read"), ios("write"))
            })
            .collect();
        // The readers would find other than the pattern, had the writer not been done before them.
        let half = ("read-half", 1, 128, 0);
        assert_eq!(
            jobs,
            [("write", 0, 0, 32), half, half, half, ("late", 1, 10, 0)],
            "{wait}"
        );
        assert_eq!(
            sum(guest(&report), "/jobs", "/verified_blocks"),
            3 * 128 * 8 + 10 * 8,
            "{wait}"
        );
    }
}

#[test]
fn a_job_that_ends_can_end_all() {
    let folder = TempDir::new().unwrap();
    let jobs = b"[short]\nexitall\nnumber_ios=100\n[long]\nruntime=60\ntime_based\n[never]\nstonewall\n";
    let path = file(&folder, "exit.fio", jobs);
    let report = report(&format!("{path} --drive null --vcpus 2"));
    let ios = |job: usize| number(&report, &format!("/jobs/{job}/read/total_ios"));
    assert_eq!((ios(0), ios(2)), (100, 0));
    assert!(number(&report, "/jobs/1/job_runtime") < 30_000);
}

#[test]
fn areas_follow_each_other_and_are_gone_through_again() {
    let folder = TempDir::new().unwrap();
    let disk = file(&folder, "disk", &[0; 1 << 20]);
    let job =
        "--rw write --bs 4k --size 64k --offset 64k --offset_increment 128k --numjobs 2 --loops 3 --verify pattern";
    let report = report(&format!("{job} --drive {disk} --allow-write"));
    assert_eq!(sum(&report, "/jobs", "/write/total_ios"), 2 * 3 * 16);
    let (written, whole) = (std::fs::read(&disk).unwrap(), pattern(1 << 20));
    for (number, part) in written.chunks(64 << 10).enumerate() {
        let expected = match number {
            1 | 3 => &whole[number << 16..(number + 1) << 16],
            _ => &[0; 64 << 10],
        };
        assert!(part == expected, "part {number}");
    }
    let report = doorpost_tests::report("--rw randread --drive null:1m --io_size 100k --bs 4k");
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 25);
}

#[test]
fn mistakes_are_named_with_file_and_line() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "two.fio", JOBS.as_bytes());
    run(&format!("{path} --section third --drive null")).expect_refusal(&["two.fio", "third", "random, in-order"]);
    let slip = file(&folder, "slip.fio", b"[job]\niodetph=4\n");
    run(&format!("{slip} --drive null")).expect_refusal(&["slip.fio:2", "iodetph", "iodepth"]);
    let spares = file(&folder, "spares.fio", b"[job]\nfilename=/dev/sdb\nrw=write\n");
    run(&format!("{spares} --drive null --drive null --allow-write")).expect_refusal(&["spares.fio:2", "filename"]);
    let absent = file(&folder, "absent.fio", b"[job]\nfilename=/dev/nvme2n1\n");
    run(&format!("{absent} --drive null --drive null")).expect_refusal(&["nvme2n1", "nvme0n1, nvme1n1"]);
    run("/nowhere/job.fio --drive null").expect_refusal(&["/nowhere/job.fio"]);
    let writes = file(&folder, "writes.fio", b"[job]\nrw=write\n");
    run(&format!("{writes} --drive null")).expect_refusal(&["rw=write", "--allow-write"]);
}
