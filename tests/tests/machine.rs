//! Machines of other sizes and kinds than the usual one.

use std::fs;
use std::path::Path;
use std::process::Command;

use doorpost_tests::{Outcome, doorpost, file, guest, list, number, qemu, report, sum, text};
use serde_json::Value;
use tempfile::TempDir;

/// A short job on a machine that QEMU is told to make.
#[track_caller]
fn on(machine: &str) -> Value {
    let job = "--drive null --vcpus 2 --numjobs 2 --rw randread --iodepth 4 --number_ios 500";
    let report = report(&format!("{job} {}", qemu(machine)));
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 1000);
    report
}

#[test]
fn sixteen_mebibytes_are_enough() {
    let job = "--drive null --rw randread --bs 4k --iodepth 32 --numjobs 2 --vcpus 2 --number_ios 2000";
    let report = report(&format!("--memory 16M {job}"));
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 4000);
    assert!(number(guest(&report), "/machine/memory_bytes") < 16 << 20);
}

#[test]
fn memory_and_bars_above_four_gibibytes() {
    let report = report("--memory 6G --drive null --rw randread --number_ios 1000");
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 1000);
    assert!(number(guest(&report), "/machine/memory_bytes") > 5 << 30);
}

#[test]
fn one_cpu_and_many() {
    // CPUs that spin would only wait for one another on a host with fewer.
    for cpus in [1, 8, 32] {
        let job = "--drive null --rw randread --number_ios 200 --wait halt";
        let report = report(&format!("{job} --vcpus {cpus} --numjobs {cpus}"));
        assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 200 * cpus);
        let queues = list(guest(&report), "/queues").iter();
        let used: Vec<u64> = queues.map(|queue| number(queue, "/cpu")).collect();
        assert_eq!(used, (0..cpus).collect::<Vec<u64>>());
    }
}

#[test]
fn more_cpus_than_jobs() {
    let report = report("--vcpus 4 --drive null --rw randread --number_ios 200 --wait halt");
    assert_eq!(number(guest(&report), "/machine/cpus"), 4);
    assert_eq!(list(guest(&report), "/queues").len(), 1);
}

#[test]
fn bars_that_no_firmware_placed() {
    // QEMU's microvm: no firmware that knows PCI, no ACPI table (MCFG) that says where it is, no HPET.
    let report = on("-M microvm,pcie=on");
    let said = report["doorpost"]["launcher"]["guest_text"].to_string();
    assert!(said.contains("MCFG"), "{said}");
}

#[test]
fn cpus_with_less() {
    // Without pages of 1 GiB; and one of twenty years ago, but for the x2APIC.
    for cpu in ["max,-pdpe1gb", "qemu64,+x2apic"] {
        on(&format!("-cpu {cpu}"));
    }
}

#[test]
fn cpus_in_sockets() {
    // APIC ids with gaps: three cores take two bits.
    let report = on("-smp 6,sockets=2,cores=3");
    assert_eq!(number(guest(&report), "/machine/cpus"), 6);
}

#[test]
fn a_job_in_a_file() {
    let folder = TempDir::new().unwrap();
    let job = file(&folder, "job", b"rw=randread bs=8k iodepth=2 number_ios=77\n");
    let report = report(&format!(
        "--drive null --number_ios 5 {}",
        qemu(&format!("-initrd {job}"))
    ));
    let options = &report["jobs"][0]["job options"];
    assert_eq!((&options["bs"], &options["iodepth"]), (&"8192".into(), &"2".into()));
    assert_eq!(number(&report, "/jobs/0/read/total_ios"), 77);
}

#[test]
fn controllers_behind_bridges() {
    let bridge = qemu(
        "-device pcie-root-port,id=rp1,chassis=1,addr=4.0,multifunction=on \
         -device pcie-root-port,id=rp2,chassis=2,addr=4.1 \
         -blockdev driver=null-co,node-name=far,size=1048576,read-zeroes=on -device nvme,serial=far,drive=far,bus=rp2",
    );
    let report = report(&format!("--drive null:1m --rw read {bridge}"));
    let controllers = list(guest(&report), "/controllers");
    assert_eq!(controllers.len(), 2, "{controllers:#?}");
    let far = controllers.iter().find(|c| c["serial"] == "far").expect("the far one");
    assert!(!text(far, "/address").starts_with("0000:00:"), "{far}");
    assert_eq!(sum(guest(&report), "/queues", "/completions"), 512);
}

#[test]
fn several_namespaces_with_gaps() {
    let more = qemu(
        "-device nvme,id=more,serial=more \
         -blockdev driver=null-co,node-name=n3,size=1048576,read-zeroes=on -device nvme-ns,drive=n3,bus=more,nsid=3 \
         -blockdev driver=null-co,node-name=n7,size=2097152,read-zeroes=on \
         -device nvme-ns,drive=n7,bus=more,nsid=7,logical_block_size=4096,physical_block_size=4096",
    );
    let report = report(&format!("--drive null:1m --rw read {more}"));
    let files = guest(&report)["jobs"][0]["files"].to_string();
    assert!(files.contains("n3\"") && files.contains("n7\""), "{files}");
    // 1 MiB, 1 MiB and 2 MiB in blocks of 4 KiB.
    assert_eq!(number(&report, "/jobs/0/read/total_ios"), 1024);
}

#[test]
fn metadata_is_refused_by_name() {
    let more = qemu(
        "-device nvme,id=m,serial=meta -blockdev driver=null-co,node-name=m0,size=1048576 \
         -device nvme-ns,drive=m0,bus=m,ms=8",
    );
    let report = report(&format!("--drive null:1m --rw read {more}"));
    let controllers = list(guest(&report), "/controllers");
    let refused: Vec<&str> = controllers
        .iter()
        .filter_map(|c| c["namespaces"][0]["refused"].as_str())
        .collect();
    assert_eq!(refused.len(), 1, "{controllers:#?}");
    assert!(refused[0].contains("8 bytes of metadata"), "{refused:?}");
    // The other one works all the same.
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 256);
}

#[test]
fn the_image_is_small_and_the_same_by_either_way() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("guest.elf");
    let written = Outcome::of(doorpost().args(["image", "--arch", "x86_64", "-o"]).arg(&image)).expect_status(0);
    assert_eq!(written.stdout, "");
    let printed = doorpost().args(["image", "-o", "-"]).output().unwrap();
    assert!(printed.status.success() && printed.stderr.is_empty());
    assert!(printed.stdout == fs::read(&image).unwrap());
    assert!(printed.stdout.starts_with(b"\x7fELF"));
    assert!(printed.stdout.len() < 400 << 10, "{} bytes", printed.stdout.len());
}

/// The first command line for QEMU in a text: it goes on while lines end in a backslash.
fn qemu_line(text: &str) -> String {
    let lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("qemu-system-x86_64"));
    let mut line = String::new();
    for part in lines {
        line += part.trim().trim_end_matches('\\');
        if !part.ends_with('\\') {
            break;
        }
    }
    line
}

/// Runs a command line as a stranger would type it, with some words replaced, in a folder; returns its exit status and output.
#[track_caller]
fn by_hand(line: &str, replace: &[(&str, &str)], folder: &Path) -> Outcome {
    let mut line = line.to_string();
    for (old, new) in replace {
        assert!(line.contains(old), "`{old}` in `{line}`");
        line = line.replace(old, new);
    }
    let command = format!("timeout 100 {line}");
    Outcome::of(Command::new("sh").args(["-c", &command]).current_dir(folder))
}

/// `doorpost report` of a serial line.
#[track_caller]
fn reads_in(log: &Path) {
    let text = Outcome::of(doorpost().arg("report").arg(log)).expect_status(0).stdout;
    assert!(text.contains("issued rwts: total=200,0,0,0"), "{text}");
}

/// Two jobs that end by themselves.
const SHORT: (&str, &str) = ("runtime=5", "number_ios=100");
/// What QEMU exits with when the guest, done, writes 1 to the debug exit device.
const DONE: i32 = 3;

#[test]
fn the_line_that_image_prints_works() {
    let folder = TempDir::new().unwrap();
    let image = doorpost()
        .args(["image", "-o", "guest.elf"])
        .current_dir(folder.path())
        .output();
    let printed = Outcome::from(image.unwrap()).expect_status(0).stderr;
    by_hand(&qemu_line(&printed), &[SHORT], folder.path()).expect_status(DONE);
    reads_in(&folder.path().join("serial.log"));
}

#[test]
fn the_line_in_the_readme_works() {
    let folder = TempDir::new().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let line = qemu_line(&fs::read_to_string(path).unwrap());
    let image = doorpost()
        .args(["image", "-o", "guest.elf"])
        .current_dir(folder.path())
        .output();
    Outcome::from(image.unwrap()).expect_status(0);
    by_hand(&line, &[SHORT], folder.path()).expect_status(DONE);
    reads_in(&folder.path().join("serial.log"));
    // Without its debug exit device, the guest powers off by ACPI.
    let exit = (" -device isa-debug-exit,iobase=0xf4,iosize=4", "");
    by_hand(&line, &[SHORT, exit], folder.path()).expect_status(0);
    reads_in(&folder.path().join("serial.log"));
}
