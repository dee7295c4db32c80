//! Bad input ends in one line that names it and the way out, with status 2, and leaves nothing behind.

use std::fs;

use doorpost_tests::{Outcome, doorpost, file, qemu, run};
use tempfile::TempDir;

/// A run that must be refused.
#[track_caller]
fn refused(options: &str, parts: &[&str]) {
    run(options).expect_refusal(parts);
}

#[test]
fn options_are_named() {
    refused("--drive null --iodetph 4", &["iodetph", "iodepth"]);
    refused("--drive null --bs 4q", &["bs", "4q"]);
    refused("--drive null --rw sideways", &["sideways", "randread"]);
    refused("--drive null --wait never", &["never", "poll"]);
    refused("--drive null --time_based", &["time_based", "--runtime"]);
    refused("--drive null --iodepth 0", &["iodepth", "65535"]);
    refused("--drive null --output-format yaml", &["yaml", "json"]);
    refused(
        "--drive null --output-format normal,json",
        &["normal,json", "--output FILE"],
    );
    refused("--drive null --output /nowhere/report.json", &["/nowhere/report.json"]);
    refused("--drive null --arch sparc", &["sparc", "x86_64"]);
    refused("--drive null --memory 1M", &["memory", "16M"]);
    refused("--drive null --vcpus 0", &["vcpus", "255"]);
    Outcome::of(doorpost().arg("rnu")).expect_refusal(&["rnu", "--help"]);
}

#[test]
fn drives_are_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    refused("", &["--drive"]);
    refused(&format!("--drive {path}/missing.img"), &["missing.img"]);
    let empty = file(&folder, "empty.img", b"");
    refused(&format!("--drive {empty}"), &["empty.img", "0 bytes"]);
    let odd = file(&folder, "odd.img", &[0; 1000]);
    refused(&format!("--drive {odd}"), &["odd.img", "512"]);
    refused(&format!("--drive {path}"), &[path]);
    refused("--drive null:0", &["null:0"]);
    refused("--drive scratch:4q", &["4q"]);
}

#[test]
fn jobs_that_do_not_fit_are_named() {
    refused("--drive null --bs 1000", &["bs", "1000", "512"]);
    refused("--drive null:1m --size 2m", &["size", "1048576"]);
    refused("--drive null --numjobs 5000", &["numjobs", "4096"]);
    let much = "--drive null --bs 1m --iodepth 64 --memory 16m";
    refused(much, &["memory"]);
    // Only the guest knows these.
    let wide = qemu("-global nvme.logical_block_size=4096 -global nvme.physical_block_size=4096");
    refused(&format!("--drive null --bs 512 {wide}"), &["bs=512", "nvme0n1", "4096"]);
    let small = qemu("-global nvme.mdts=1");
    refused(
        &format!("--drive null --bs 12k {small}"),
        &["bs=12288", "nvme0", "8192"],
    );
    let less = qemu("-m 16M");
    let tight = "--drive null --bs 1m --iodepth 15";
    refused(&format!("{tight} {less}"), &["memory"]);
}

#[test]
fn a_job_file_is_checked_like_options() {
    let folder = TempDir::new().unwrap();
    let with = |contents: &[u8]| {
        let job = file(&folder, "job", contents);
        run(&format!("--drive null {}", qemu(&format!("-initrd {job}"))))
    };
    with(b"rw=randread iodetph=4").expect_refusal(&["iodetph"]);
    with(b"rw=randwrite").expect_refusal(&["allow_write"]);
    with(&[0xff; 100]).expect_refusal(&["initrd", "text"]);
    let long = with(&[b' '; 100_000]).expect_status(1);
    long.expect_complaint(&["initrd", "64 KiB"]);
}

#[test]
fn writes_need_a_word() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "precious.img", &[7; 1 << 20]);
    for rw in ["write", "randwrite", "rw", "randrw"] {
        refused(&format!("--drive {drive} --rw {rw}"), &["--allow-write", rw]);
    }
    assert!(fs::read(&drive).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn an_emulator_that_cannot_start_is_named() {
    let missing = run("--drive null --qemu /nowhere/qemu").expect_status(1);
    missing.expect_complaint(&["/nowhere/qemu", "--qemu"]);
    let stranger = run("--drive null --qemu /bin/cat").expect_status(1);
    stranger.expect_complaint(&["/bin/cat", "--qemu"]);
    let nowhere = doorpost()
        .args(["run", "--accel", "tcg", "--drive", "null"])
        .env("PATH", "")
        .output();
    let nowhere = Outcome::from(nowhere.unwrap()).expect_status(1);
    nowhere.expect_complaint(&["qemu-system-x86_64", "cargo xtask setup"]);
}

#[test]
fn an_emulator_that_refuses_is_quoted() {
    let outcome = run(&format!("--drive null {}", qemu("-nonsense"))).expect_status(1);
    outcome.expect_complaint(&["-nonsense"]);
}
