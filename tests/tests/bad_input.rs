//! Bad input ends in one line that names it and the way out, with status 2, and leaves nothing behind.
#![forbid(unsafe_code)]

use std::fs;

use doorpost_tests::{Outcome, doorpost, run};
use tempfile::TempDir;

#[test]
fn options_are_named() {
    run(["--drive", "null", "--iodetph", "4"])
        .expect_status(2)
        .expect_complaint(&["iodetph", "iodepth"]);
    run(["--drive", "null", "--bs", "4q"])
        .expect_status(2)
        .expect_complaint(&["bs", "4q"]);
    run(["--drive", "null", "--rw", "sideways"])
        .expect_status(2)
        .expect_complaint(&["sideways", "randread"]);
    run(["--drive", "null", "--wait", "never"])
        .expect_status(2)
        .expect_complaint(&["never", "poll"]);
    run(["--drive", "null", "--time_based"])
        .expect_status(2)
        .expect_complaint(&["time_based", "--runtime"]);
    run(["--drive", "null", "--iodepth", "0"])
        .expect_status(2)
        .expect_complaint(&["iodepth", "65535"]);
    run(["--drive", "null", "--output-format", "yaml"])
        .expect_status(2)
        .expect_complaint(&["yaml", "json"]);
    Outcome::of(doorpost().args(["rnu"]))
        .expect_status(2)
        .expect_complaint(&["rnu", "--help"]);
}

#[test]
fn drives_are_named() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    run(Vec::<&str>::new()).expect_status(2).expect_complaint(&["--drive"]);
    run(["--drive", &path("missing.img")])
        .expect_status(2)
        .expect_complaint(&["missing.img"]);
    fs::write(path("empty.img"), b"").unwrap();
    run(["--drive", &path("empty.img")])
        .expect_status(2)
        .expect_complaint(&["empty.img", "0 bytes"]);
    fs::write(path("odd.img"), [0; 1000]).unwrap();
    run(["--drive", &path("odd.img")])
        .expect_status(2)
        .expect_complaint(&["odd.img", "512"]);
    run(["--drive", folder.path().to_str().unwrap()])
        .expect_status(2)
        .expect_complaint(&[folder.path().to_str().unwrap()]);
    run(["--drive", "null:0"])
        .expect_status(2)
        .expect_complaint(&["null:0"]);
    run(["--drive", "scratch:4q"])
        .expect_status(2)
        .expect_complaint(&["4q"]);
}

#[test]
fn jobs_that_do_not_fit_are_named() {
    run(["--drive", "null", "--bs", "1000"])
        .expect_status(2)
        .expect_complaint(&["bs", "1000", "512"]);
    run(["--drive", "null:1m", "--size", "2m"])
        .expect_status(2)
        .expect_complaint(&["size", "1048576"]);
    run(["--drive", "null", "--numjobs", "4", "--vcpus", "2"])
        .expect_status(2)
        .expect_complaint(&["4", "--vcpus"]);
    // Only the guest knows these.
    let wide = [
        "--qemu-arg=-global",
        "--qemu-arg=nvme.logical_block_size=4096",
        "--qemu-arg=-global",
        "--qemu-arg=nvme.physical_block_size=4096",
    ];
    run(["--drive", "null", "--bs", "512"].iter().chain(&wide))
        .expect_status(2)
        .expect_complaint(&["bs=512", "nvme0n1", "4096"]);
    let small = ["--qemu-arg=-global", "--qemu-arg=nvme.mdts=1"];
    run(["--drive", "null", "--bs", "64k"].iter().chain(&small))
        .expect_status(2)
        .expect_complaint(&["bs=65536", "nvme0", "8192"]);
    run(["--drive", "null", "--bs", "1m", "--iodepth", "64", "--memory", "16m"])
        .expect_status(2)
        .expect_complaint(&["memory"]);
}

#[test]
fn writes_need_a_word() {
    let folder = TempDir::new().unwrap();
    let drive = folder.path().join("precious.img");
    fs::write(&drive, vec![7; 1 << 20]).unwrap();
    for rw in ["write", "randwrite", "rw", "randrw"] {
        run(["--drive", drive.to_str().unwrap(), "--rw", rw])
            .expect_status(2)
            .expect_complaint(&["--allow-write", rw]);
    }
    assert!(fs::read(&drive).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_missing_emulator_is_named() {
    run(["--drive", "null", "--qemu", "/nowhere/qemu"])
        .expect_status(1)
        .expect_complaint(&["/nowhere/qemu"]);
}

#[test]
fn an_emulator_that_refuses_is_quoted() {
    let outcome = run(["--drive", "null", "--qemu-arg=-nonsense"]).expect_status(1);
    assert!(outcome.stderr.contains("nonsense"), "{}", outcome.stderr);
}
