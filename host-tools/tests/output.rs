//! Where a run's report goes, and what that does to the exit status. A shell script stands in for QEMU.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use common::{fake_qemu, run_on};
use tempfile::TempDir;
use workload::frame::{Frame, FrameWriter};
use workload::job::{JobSet, Wait};
use workload::report::{Clock, Direction, ErrorCount, Hello, Job, Machine, Report, SCHEMA};

/// A guest whose job had three commands fail.
fn words_of_the_guest() -> String {
    let job = Job {
        job: 0,
        index: 0,
        cpu: 0,
        wait: Wait::Interrupt,
        files: vec!["nvme0n1".to_string()],
        area_bytes: vec![1 << 20],
        runtime_ns: 1_000_000,
        read: Direction::default(),
        write: Direction::default(),
        depths: [0; 7],
        submit_batches: [0; 7],
        complete_batches: [0; 7],
        errors: vec![ErrorCount {
            namespace: "nvme0n1".to_string(),
            status: "Internal Error".to_string(),
            code: 6,
            count: 3,
        }],
        verified_blocks: 0,
        miscompares: 0,
        first_miscompare: None,
    };
    let report = Report {
        schema: SCHEMA,
        arguments: JobSet::default(),
        machine: Machine {
            architecture: "x86_64".to_string(),
            hypervisor: String::new(),
            cpus: 1,
            memory_bytes: 256 << 20,
            interrupt_controller: "x2apic".to_string(),
            clock: Clock {
                source: "tsc".to_string(),
                hertz: 1_000_000_000,
                invariant: true,
                monotonic: true,
                worst_step_back_ns: 0,
            },
            boot_ns: 1,
        },
        controllers: Vec::new(),
        queues: Vec::new(),
        cpus: Vec::new(),
        jobs: vec![job],
        notes: Vec::new(),
    };
    let hello = Hello {
        schema: SCHEMA,
        architecture: "x86_64".to_string(),
        version: "0.1.0".to_string(),
    };
    let mut text = String::new();
    let mut writer = FrameWriter::new();
    for frame in [Frame::Hello(hello), Frame::Report(Box::new(report))] {
        writer.write(&frame, &mut text).unwrap();
    }
    text
}

#[test]
fn device_errors_are_told_though_nobody_reads_the_report() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("words"), words_of_the_guest()).unwrap();
    let qemu = fake_qemu(folder.path(), "cat words; exit 3");
    for (more, status) in [(&[][..], 1), (&["--ignore-errors"][..], 0)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = run_on(&qemu);
        command.args(["--drive", "null"]).args(more).stdout(writer);
        let Output {
            status: ended, stderr, ..
        } = command.output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(ended.code(), Some(status), "{more:?}: {stderr}");
        assert_eq!(stderr.contains("doorpost: 3 commands failed"), status == 1, "{stderr}");
    }
}

#[test]
fn no_output_overwrites_a_drive_or_another_output() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let at = |name: &str| path(name).display().to_string();
    let qemu = fake_qemu(folder.path(), "touch started; exit 1");
    fs::write(path("disk.img"), vec![7; 1 << 20]).unwrap();
    symlink("disk.img", path("link")).unwrap();
    fs::hard_link(path("disk.img"), path("hard")).unwrap();
    fs::create_dir(path("sub")).unwrap();
    symlink("../new", path("sub/dangling")).unwrap();
    let refused = |arguments: &[&str], named: [&str; 2]| {
        let output = run_on(&qemu).args(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for name in named {
            assert!(stderr.contains(name), "`{name}` in {stderr}");
        }
    };
    for option in ["--output", "--keep-serial"] {
        for name in ["disk.img", "link", "hard", "./sub/../disk.img"] {
            let named = [
                &format!("{option} {}", at(name))[..],
                &format!("--drive {}", at("disk.img")),
            ];
            refused(&["--drive", &at("disk.img"), option, &at(name)], named);
            // Also where the job may write to the drive.
            refused(
                &[
                    "--drive",
                    "null",
                    "--drive",
                    &at("disk.img"),
                    "--allow-write",
                    option,
                    &at(name),
                ],
                named,
            );
        }
    }
    for (output, serial) in [
        ("new", "new"),
        ("new", "sub/dangling"),
        ("sub/../new", "new"),
        ("link", "hard"),
    ] {
        let named = [
            &format!("--output {}", at(output))[..],
            &format!("--keep-serial {}", at(serial)),
        ];
        refused(
            &["--drive", "null", "--output", &at(output), "--keep-serial", &at(serial)],
            named,
        );
    }
    assert!(fs::read(path("disk.img")).unwrap() == vec![7; 1 << 20]);
    assert!(!path("new").exists() && !path("started").exists());
    // What is no file may be named twice.
    let null = ["--output", "/dev/null", "--keep-serial", "/dev/null"];
    let output = run_on(&qemu).args(["--drive", "null"]).args(null).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(Path::new(&at("started")).exists());
}
