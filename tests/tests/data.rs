//! The data is real: what the host wrote is what the guest reads, and the other way round.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use doorpost_tests::{file, guest, list, number, pattern, qemu, report, run, sum};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const FOUR_K_BLOCKS: &str = "-global nvme.logical_block_size=4096 -global nvme.physical_block_size=4096";

/// Reads a patterned file in I/Os of `bs`, checking all of it.
#[track_caller]
fn read_all(bs: &str, qemu_arguments: &str) {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "drive.img", &pattern(8 * MIB));
    for rw in ["read", "randread"] {
        let job = format!("--drive {drive} --rw {rw} --bs {bs} --iodepth 4 --verify pattern");
        let report = report(&format!("{job} {}", qemu(qemu_arguments)));
        assert_eq!(sum(&report, "/jobs", "/read/io_bytes"), 8 * MIB as u64);
        let guest = guest(&report);
        let block = number(guest, "/controllers/0/namespaces/0/block_size");
        assert_eq!(block, if qemu_arguments.is_empty() { 512 } else { 4096 });
        assert_eq!(number(guest, "/jobs/0/verified_blocks"), 8 * MIB as u64 / block);
        assert_eq!(number(guest, "/jobs/0/miscompares"), 0);
    }
}

/// Writes all of a file from the guest in I/Os of `bs`, and compares it here.
#[track_caller]
fn write_all(bs: &str, qemu_arguments: &str) {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "drive.img", &vec![0xee; 8 * MIB]);
    let job = format!("--drive {drive} --rw randwrite --bs {bs} --iodepth 4 --verify pattern --allow-write");
    let report = report(&format!("{job} {}", qemu(qemu_arguments)));
    assert_eq!(sum(&report, "/jobs", "/write/io_bytes"), 8 * MIB as u64);
    assert_holds(&drive, &pattern(8 * MIB));
}

/// Asserts what is in a file; says where it differs, not how.
#[track_caller]
fn assert_holds(path: &str, expected: &[u8]) {
    let found = fs::read(path).unwrap();
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(
        (found.len(), differs),
        (expected.len(), None),
        "length, first byte that differs"
    );
}

#[test]
fn reads_bring_what_the_host_wrote() {
    read_all("4k", "");
    read_all("4k", FOUR_K_BLOCKS);
    read_all("512", "");
}

#[test]
fn long_reads_need_prp_lists() {
    read_all("1m", "");
    read_all("1m", FOUR_K_BLOCKS);
    // A pair of PRP entries, and a list.
    read_all("8k", "");
    read_all("512k", "");
}

#[test]
fn writes_leave_what_the_guest_meant() {
    write_all("4k", "");
    write_all("4k", FOUR_K_BLOCKS);
}

#[test]
fn long_writes_need_prp_lists() {
    write_all("1m", "");
    write_all("1m", FOUR_K_BLOCKS);
}

#[test]
fn transfers_obey_the_controller() {
    let reads = |bs: &str, mdts: u32| {
        let limit = qemu(&format!("-global nvme.mdts={mdts}"));
        let report = report(&format!("--drive null:16m --rw read --bs {bs} {limit}"));
        sum(&report, "/jobs", "/read/total_ios")
    };
    // No limit; beyond 2 MiB, PRP lists chain.
    assert_eq!(reads("1m", 0), 16);
    assert_eq!(reads("3m", 0), 5);
    assert_eq!(reads("512k", 7), 32);
    // One page more is refused: see bad_input.rs.
    assert_eq!(reads("8k", 1), 2048);
}

#[test]
fn drives_of_unequal_size_are_each_covered() {
    let report = report("--drive null:1m --drive null:3m --rw randread --bs 64k --iodepth 4");
    let job = &list(guest(&report), "/jobs")[0];
    assert_eq!(job["area_bytes"], serde_json::json!([1 << 20, 3 << 20]));
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 64);
}

#[test]
fn what_was_written_is_flushed() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "drive.img", &vec![0; MIB]);
    let job = "--rw write --verify pattern --allow-write --end_fsync";
    let report = report(&format!("--drive {drive} {job}"));
    assert_eq!(number(&report, "/doorpost/totals/errors"), 0);
    let controller = &list(guest(&report), "/controllers")[0];
    assert_eq!(controller["write_cache"], true);
    // The SMART log of the emulated drive counts what was done.
    assert!(number(controller, "/health/host_writes") >= 256, "{controller}");
    assert_holds(&drive, &pattern(MIB));
}

#[test]
fn a_drive_that_refuses_writes_is_quoted() {
    // QEMU's controller does not say beforehand that the drive is read-only; each command tells.
    let drive = "-blockdev driver=null-co,node-name=ro,size=1048576,read-only=on -device nvme,serial=ro,drive=ro";
    let job = "--drive null:1m --rw randwrite --allow-write";
    let outcome = run(&format!("{job} {}", qemu(drive))).expect_status(1);
    let counted = |line: &str| line.contains("Write") && line.contains("256");
    assert!(outcome.stdout.lines().any(counted), "{}", outcome.stdout);
    outcome.expect_complaint(&["256 commands failed"]);
}

#[test]
fn jobs_and_drives_keep_apart() {
    let folder = TempDir::new().unwrap();
    let drives = ["a.img", "b.img"].map(|name| file(&folder, name, &vec![0xee; 2 * MIB]));
    let [a, b] = &drives;
    let job = "--rw write --bs 16k --iodepth 8 --numjobs 2 --size 1m --verify pattern --allow-write";
    report(&format!("--drive {a} --drive {b} {job}"));
    // The first half of each, and nothing beyond.
    let mut expected = pattern(MIB);
    expected.resize(2 * MIB, 0xee);
    for drive in &drives {
        assert_holds(drive, &expected);
    }
    // And back into the guest, where reads and writes alternate.
    let job = "--rw randrw --bs 16k --iodepth 8 --numjobs 2 --size 1m --verify pattern --allow-write";
    let report = report(&format!("--drive {a} --drive {b} {job}"));
    assert!(sum(guest(&report), "/jobs", "/verified_blocks") > 0);
    for drive in &drives {
        assert_holds(drive, &expected);
    }
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let folder = TempDir::new().unwrap();
    let mut contents = pattern(MIB);
    contents[700_001] ^= 1;
    let drive = file(&folder, "drive.img", &contents);
    let job = format!("--drive {drive} --rw read --bs 4k --verify pattern");
    let outcome = run(&job).expect_status(1);
    // 700001 / 512 = 1367.
    outcome.expect_complaint(&["1 block", "--ignore-errors"]);
    let named = |line: &str| line.contains("nvme0n1") && line.contains("1367");
    assert!(outcome.stdout.lines().any(named), "{}", outcome.stdout);
    let report = report(&format!("{job} --ignore-errors"));
    assert_eq!(number(&report, "/doorpost/totals/miscompares"), 1);
    let first = &guest(&report)["jobs"][0]["first_miscompare"];
    assert_eq!((number(first, "/lba"), number(first, "/offset")), (1367, 700_000));
    let flipped = number(first, "/expected") ^ number(first, "/found");
    assert_eq!(flipped, 1 << 8, "{first}");
}

#[test]
fn reading_leaves_the_file_alone() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "drive.img", &pattern(MIB));
    // A file that cannot be written is as good for reading.
    fs::set_permissions(&drive, Permissions::from_mode(0o444)).unwrap();
    report(&format!("--drive {drive} --rw randread"));
    assert_holds(&drive, &pattern(MIB));
}

#[test]
fn a_device_error_is_counted_and_fails_the_run() {
    let folder = TempDir::new().unwrap();
    let drive = file(&folder, "drive.img", &pattern(MIB));
    let rules = b"[inject-error]\nevent = \"none\"\nerrno = \"5\"\nsector = \"1024\"\n";
    let rules = file(&folder, "blkdebug.conf", rules);
    // A second controller, whose drive fails at sector 1024.
    let bad = qemu(&format!(
        "-blockdev driver=blkdebug,node-name=bad,config={rules},image.driver=file,image.filename={drive} \
         -device nvme,serial=bad,drive=bad"
    ));
    let job = format!("--drive null:1m --rw read --bs 4k {bad}");
    let outcome = run(&job).expect_status(1);
    assert!(outcome.stdout.contains("nvme1n1"), "{}", outcome.stdout);
    outcome.expect_complaint(&["1 command", "--ignore-errors"]);
    let report = report(&format!("{job} --ignore-errors"));
    assert_eq!(number(&report, "/doorpost/totals/failed"), 1);
    let errors = list(guest(&report), "/jobs/0/errors");
    assert_eq!(
        (errors.len(), &errors[0]["namespace"]),
        (1, &"nvme1n1".into()),
        "{errors:?}"
    );
}
