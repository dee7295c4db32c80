//! The data is real: what the host wrote is what the guest reads, and the other way round.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use doorpost_tests::{number, pattern, report, run, sum};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

fn file(folder: &TempDir, contents: &[u8]) -> String {
    let path = folder.path().join("drive.img");
    fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_string()
}

const FOUR_K_BLOCKS: [&str; 4] = [
    "--qemu-arg=-global",
    "--qemu-arg=nvme.logical_block_size=4096",
    "--qemu-arg=-global",
    "--qemu-arg=nvme.physical_block_size=4096",
];

/// Reads a patterned file in blocks of `bs`, checking all of it.
fn read_all(bs: &str, more: &[&str]) {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, &pattern(16 * MIB));
    for rw in ["read", "randread"] {
        let options = [
            "--drive",
            &drive,
            "--rw",
            rw,
            "--bs",
            bs,
            "--iodepth",
            "4",
            "--verify",
            "pattern",
        ];
        let report = report(options.iter().chain(more));
        assert_eq!(sum(&report, "/jobs", "/read/io_bytes"), 16 * MIB as u64);
        let block = number(&report, "/doorpost/report/controllers/0/namespaces/0/block_size");
        assert_eq!(
            number(&report, "/doorpost/report/jobs/0/verified_blocks"),
            16 * MIB as u64 / block
        );
        assert_eq!(number(&report, "/doorpost/report/jobs/0/miscompares"), 0);
    }
}

/// Writes all of a file from the guest in blocks of `bs`, and compares it here.
fn write_all(bs: &str, more: &[&str]) {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, &vec![0xee; 16 * MIB]);
    let options = [
        "--drive",
        &drive,
        "--rw",
        "randwrite",
        "--bs",
        bs,
        "--iodepth",
        "4",
        "--verify",
        "pattern",
        "--allow-write",
    ];
    let report = report(options.iter().chain(more));
    assert_eq!(sum(&report, "/jobs", "/write/io_bytes"), 16 * MIB as u64);
    let written = fs::read(Path::new(&drive)).unwrap();
    let expected = pattern(16 * MIB);
    let wrong = written.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!((written.len(), wrong), (expected.len(), None));
}

#[test]
fn reads_bring_what_the_host_wrote() {
    read_all("4k", &[]);
    read_all("4k", &FOUR_K_BLOCKS);
    read_all("512", &[]);
}

#[test]
fn long_reads_need_prp_lists() {
    read_all("1m", &[]);
    read_all("1m", &FOUR_K_BLOCKS);
    // A pair of PRP entries, and a list.
    read_all("8k", &[]);
    read_all("512k", &[]);
}

#[test]
fn writes_leave_what_the_guest_meant() {
    write_all("4k", &[]);
    write_all("4k", &FOUR_K_BLOCKS);
    write_all("1m", &[]);
    write_all("1m", &FOUR_K_BLOCKS);
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let folder = TempDir::new().unwrap();
    let mut contents = pattern(MIB);
    contents[700_001] ^= 1;
    let drive = file(&folder, &contents);
    let outcome = run(["--drive", &drive, "--rw", "read", "--bs", "4k", "--verify", "pattern"]).expect_status(1);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    // 700001 / 512 = 1367.
    assert!(text.contains("nvme0n1") && text.contains("1367"), "{text}");
    run([
        "--drive",
        &drive,
        "--rw",
        "read",
        "--bs",
        "4k",
        "--verify",
        "pattern",
        "--ignore-errors",
    ])
    .expect_status(0);
}

#[test]
fn reading_leaves_the_file_alone() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, &pattern(MIB));
    // A file that cannot be written is as good for reading.
    let mut permissions = fs::metadata(&drive).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&drive, permissions).unwrap();
    report(["--drive", &drive, "--rw", "randread"]);
    assert!(fs::read(&drive).unwrap() == pattern(MIB));
}

#[test]
fn a_device_error_is_counted_and_fails_the_run() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, &pattern(MIB));
    let rules = folder.path().join("blkdebug.conf");
    fs::write(
        &rules,
        "[inject-error]\nevent = \"none\"\nerrno = \"5\"\nsector = \"1024\"\n",
    )
    .unwrap();
    // A second controller whose drive fails at sector 1024.
    let blockdev = format!(
        "driver=blkdebug,node-name=bad,config={},image.driver=file,image.filename={drive}",
        rules.display()
    );
    let arguments = ["-blockdev", &blockdev, "-device", "nvme,serial=bad,drive=bad"].map(|a| format!("--qemu-arg={a}"));
    let options = ["--drive", "null:1m", "--rw", "read", "--bs", "4k"].map(String::from);
    let outcome = run(options.iter().chain(&arguments)).expect_status(1);
    assert!(outcome.stdout.contains("nvme1n1"), "{}", outcome.stdout);
}
