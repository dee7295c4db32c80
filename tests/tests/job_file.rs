//! Jobs out of fio's job files.

use doorpost_tests::{file, guest, list, report, run, sum};
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
    let job = &list(guest(&random), "/jobs")[0];
    assert_eq!(
        (&job["spec"]["name"], &job["spec"]["rw"], &job["spec"]["iodepth"]),
        (&"random".into(), &"randread".into(), &16.into())
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

#[test]
fn mistakes_are_named_with_file_and_line() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "two.fio", JOBS.as_bytes());
    run(&format!("{path} --drive null")).expect_refusal(&["two.fio", "random, in-order", "--section"]);
    let slip = file(&folder, "slip.fio", b"[job]\niodetph=4\n");
    run(&format!("{slip} --drive null")).expect_refusal(&["slip.fio:2", "iodetph", "iodepth"]);
    let spares = file(&folder, "spares.fio", b"[job]\nfilename=/dev/nvme1n1\nrw=write\n");
    run(&format!("{spares} --drive null --drive null --allow-write")).expect_refusal(&["spares.fio:2", "filename"]);
    run("/nowhere/job.fio --drive null").expect_refusal(&["/nowhere/job.fio"]);
    let writes = file(&folder, "writes.fio", b"[job]\nrw=write\n");
    run(&format!("{writes} --drive null")).expect_refusal(&["rw=write", "--allow-write"]);
}
