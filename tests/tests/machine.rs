//! Machines of other sizes and kinds than the usual one.
#![forbid(unsafe_code)]

use std::process::Command;

use doorpost_tests::{Outcome, doorpost, number, report, sum};
use tempfile::TempDir;

#[test]
fn sixteen_mebibytes_are_enough() {
    let report = report([
        "--memory",
        "16M",
        "--vcpus",
        "2",
        "--numjobs",
        "2",
        "--drive",
        "null",
        "--rw",
        "randread",
        "--iodepth",
        "32",
        "--number_ios",
        "1000",
    ]);
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 2000);
    assert!(number(&report, "/doorpost/report/machine/memory_bytes") < 16 << 20);
}

#[test]
fn memory_and_bars_above_four_gibibytes() {
    let report = report([
        "--memory",
        "6G",
        "--drive",
        "null",
        "--rw",
        "randread",
        "--number_ios",
        "1000",
    ]);
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 1000);
    assert!(number(&report, "/doorpost/report/machine/memory_bytes") > 5 << 30);
}

#[test]
fn one_cpu_and_many() {
    for cpus in ["1", "8", "32"] {
        let report = report([
            "--vcpus",
            cpus,
            "--numjobs",
            cpus,
            "--drive",
            "null",
            "--rw",
            "randread",
            "--number_ios",
            "200",
        ]);
        assert_eq!(
            sum(&report, "/jobs", "/read/total_ios"),
            200 * cpus.parse::<u64>().unwrap()
        );
        let used: Vec<u64> = report["doorpost"]["report"]["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|q| number(q, "/cpu"))
            .collect();
        assert_eq!(used, (0..cpus.parse().unwrap()).collect::<Vec<u64>>());
    }
}

#[test]
fn controllers_behind_bridges() {
    let arguments = [
        "-device",
        "pcie-root-port,id=rp1,chassis=1,addr=4.0,multifunction=on",
        "-device",
        "pcie-root-port,id=rp2,chassis=2,addr=4.1",
        "-blockdev",
        "driver=null-co,node-name=far,size=1048576,read-zeroes=on",
        "-device",
        "nvme,serial=far,drive=far,bus=rp2",
    ];
    let arguments = arguments.map(|argument| format!("--qemu-arg={argument}"));
    let options = ["--drive", "null:1m", "--rw", "read"].map(String::from);
    let report = report(options.iter().chain(&arguments));
    let controllers = report["doorpost"]["report"]["controllers"].as_array().unwrap();
    assert_eq!(controllers.len(), 2, "{controllers:#?}");
    assert!(controllers.iter().any(
        |controller| controller["address"].as_str().unwrap().starts_with("0000:0")
            && !controller["address"].as_str().unwrap().starts_with("0000:00")
    ));
    assert_eq!(sum(&report, "/doorpost/report/queues", "/completions"), 512);
}

#[test]
fn several_namespaces_with_gaps() {
    let arguments = [
        "-device",
        "nvme,id=more,serial=more",
        "-blockdev",
        "driver=null-co,node-name=n3,size=1048576,read-zeroes=on",
        "-device",
        "nvme-ns,drive=n3,bus=more,nsid=3",
        "-blockdev",
        "driver=null-co,node-name=n7,size=2097152,read-zeroes=on",
        "-device",
        "nvme-ns,drive=n7,bus=more,nsid=7,logical_block_size=4096,physical_block_size=4096",
    ];
    let arguments = arguments.map(|argument| format!("--qemu-arg={argument}"));
    let options = ["--drive", "null:1m", "--rw", "read"].map(String::from);
    let report = report(options.iter().chain(&arguments));
    let files = report.pointer("/doorpost/report/jobs/0/files").unwrap().to_string();
    assert!(files.contains("n3\"") && files.contains("n7\""), "{files}");
    // 1 MiB, 1 MiB and 2 MiB in blocks of 4 KiB.
    assert_eq!(number(&report, "/jobs/0/read/total_ios"), 1024);
}

#[test]
fn the_image_is_small_and_boots_by_hand() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("guest.elf");
    Outcome::of(doorpost().args(["image", "--arch", "x86_64", "-o"]).arg(&image)).expect_status(0);
    let length = std::fs::metadata(&image).unwrap().len();
    assert!(length < 400 << 10, "{length} bytes");
    let log = folder.path().join("serial.log");
    // As in the README, on a machine without firmware's help for PCI.
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-M",
        "q35",
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "64M",
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
    ])
    .args(["-append", "rw=randread bs=4k iodepth=4 numjobs=2 number_ios=100"])
    .arg("-serial")
    .arg(format!("file:{}", log.display()))
    .arg("-kernel")
    .arg(&image)
    .args([
        "-blockdev",
        "driver=null-co,node-name=d0,size=1073741824,read-zeroes=on",
        "-device",
        "nvme,serial=hand,drive=d0",
    ]);
    let mut child = qemu.spawn().expect("QEMU starts");
    assert!(
        child.wait().unwrap().success(),
        "without a debug exit device the guest powers off by ACPI"
    );
    let text = Outcome::of(doorpost().arg("report").arg(&log)).expect_status(0).stdout;
    assert!(text.contains("read: IOPS="), "{text}");
}
