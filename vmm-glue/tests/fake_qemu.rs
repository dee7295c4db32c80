//! Runs with a stand-in for QEMU: a shell script that says what a guest would.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vmm_glue::accel::Accel;
use vmm_glue::drive::DriveSpec;
use vmm_glue::guest::Arch;
use vmm_glue::plan::Plan;
use vmm_glue::run::{Ending, Event, Failed, Outcome, RunError, run};
use workload::frame::{Frame, FrameWriter};
use workload::job::JobSet;
use workload::report::{Clock, Failure, FailureKind, Hello, Machine, Progress, Report, SCHEMA};

struct Fake {
    folder: TempDir,
}

/// Makes a program of a script.
fn install(program: &Path, text: &str) {
    // By another process: a descriptor of ours, open for writing in a sibling test's fork, would make the program busy.
    let mut writer = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(program)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

impl Fake {
    /// A stand-in that executes `script` where QEMU would run the guest.
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("qemu");
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 10.0.2 (fake)'; exit; fi\ncd '{}'\necho $$ >> pid\n{script}\n",
            folder.path().display()
        );
        install(&program, &text);
        Self { folder }
    }

    /// Text that the script can `cat`.
    fn says(self, name: &str, text: &str) -> Self {
        fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    fn plan(&self) -> Plan<'static> {
        Plan {
            jobs: JobSet::default(),
            arch: Arch::X86_64,
            image: b"the image",
            vcpus: None,
            memory: None,
            accel: Accel::Tcg,
            drives: vec![DriveSpec::Scratch(1 << 20)],
            qemu: Some(self.folder.path().join("qemu")),
            qemu_args: Vec::new(),
            keep_serial: None,
            timeout: Some(Duration::from_secs(20)),
        }
    }

    fn run(&self) -> Result<Outcome, Failed> {
        run(&self.plan(), &mut |_| {})
    }

    /// Whether every process of the stand-in is gone.
    fn is_gone(&self) -> bool {
        let pids = fs::read_to_string(self.folder.path().join("pid")).unwrap();
        pids.lines().all(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    }
}

fn report() -> Report {
    Report {
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
        jobs: Vec::new(),
        notes: Vec::new(),
    }
}

fn hello() -> Frame {
    Frame::Hello(Hello {
        schema: SCHEMA,
        architecture: "x86_64".to_string(),
        version: "0.1.0".to_string(),
    })
}

fn stream(frames: &[Frame]) -> String {
    let mut text = String::from("firmware speaks\n");
    let mut writer = FrameWriter::new();
    for frame in frames {
        writer.write(frame, &mut text).unwrap();
    }
    text
}

fn whole() -> String {
    stream(&[
        hello(),
        Frame::Progress(Progress {
            reads: 7,
            ..Progress::default()
        }),
        Frame::Report(Box::new(report())),
    ])
}

#[test]
fn a_run_that_goes_through() {
    let fake = Fake::new(
        "cat frames; echo \"$@\" > arguments; cat $(grep -o '/proc/self/fd/[0-9]*' arguments) > image; exit 3",
    )
    .says("frames", &whole());
    let mut plan = fake.plan();
    let kept = fake.folder.path().join("serial");
    plan.keep_serial = Some(kept.clone());
    let mut reads = Vec::new();
    let outcome = run(&plan, &mut |event| {
        if let Event::Progress(progress) = event {
            reads.push(progress.reads);
        }
    })
    .unwrap();
    assert_eq!(outcome.report, report());
    assert_eq!(reads, [7]);
    assert_eq!(outcome.launcher.guest_text, ["firmware speaks"]);
    assert_eq!(outcome.launcher.version, "10.0.2");
    assert_eq!(outcome.launcher.accelerator, "tcg");
    assert_eq!(fs::read_to_string(kept).unwrap(), whole());
    assert_eq!(fs::read(fake.folder.path().join("image")).unwrap(), b"the image");
    assert!(
        fs::read_to_string(fake.folder.path().join("arguments"))
            .unwrap()
            .contains("-device nvme,serial=doorpost0")
    );
    assert!(fake.is_gone());
}

#[test]
fn a_report_counts_only_if_the_guest_ends_in_order() {
    let fake = Fake::new("cat frames; exit 35").says("frames", &whole());
    let failed = fake.run().unwrap_err();
    assert!(
        matches!(*failed.error, RunError::AfterReport(Ending::Guest(17))),
        "{failed}"
    );
}

#[test]
fn a_failure_is_passed_on_with_its_kind() {
    for (kind, usage) in [(FailureKind::Usage, true), (FailureKind::Run, false)] {
        let failure = Failure {
            kind,
            message: "nvme0: no such thing".to_string(),
        };
        let fake = Fake::new("cat frames; exit 5").says("frames", &stream(&[hello(), Frame::Failure(failure)]));
        let failed = fake.run().unwrap_err();
        assert_eq!(failed.to_string(), "nvme0: no such thing");
        assert_eq!(failed.error.is_usage(), usage);
        assert_eq!(failed.guest_text, ["firmware speaks"]);
    }
}

#[test]
fn a_disturbed_line_fails_the_run_though_a_report_follows() {
    let disturbed = whole().replacen("\"reads\":7", "\"reads\":8", 1);
    let fake = Fake::new("cat frames; echo 'cpu 0: something'; exit 3").says("frames", &disturbed);
    let failed = fake.run().unwrap_err();
    assert!(
        failed
            .to_string()
            .starts_with("frame 1 from the guest is garbled (its checksum differs)"),
        "{failed}"
    );
    assert_eq!(failed.guest_text.last().unwrap(), "cpu 0: something");
}

#[test]
fn an_end_without_a_report_says_how() {
    let fake = Fake::new("echo 'qemu: -foo: invalid option' >&2; exit 1");
    let failed = fake.run().unwrap_err();
    assert_eq!(
        failed.to_string(),
        "QEMU gave up with status 1 before the first frame: qemu: -foo: invalid option"
    );
    assert_eq!(failed.qemu_text, ["qemu: -foo: invalid option"]);
    let fake = Fake::new("cat frames; exit 0").says("frames", &stream(&[hello()]));
    assert_eq!(
        fake.run().unwrap_err().to_string(),
        "the machine was reset or powered off before there was a report: firmware speaks"
    );
    let fake = Fake::new("echo 'doorpost: this CPU has no x2APIC'; exit 5");
    assert_eq!(
        fake.run().unwrap_err().to_string(),
        "the guest gave up before the first frame: this CPU has no x2APIC"
    );
    let fake = Fake::new("kill -SEGV $$");
    assert_eq!(
        fake.run().unwrap_err().to_string(),
        "QEMU was killed by signal 11 before the first frame"
    );
}

#[test]
fn a_guest_of_another_version_is_refused() {
    let mut text = String::new();
    let frame = Frame::Hello(Hello {
        schema: SCHEMA + 1,
        architecture: "x86_64".to_string(),
        version: "9.9.9".to_string(),
    });
    FrameWriter::new().write(&frame, &mut text).unwrap();
    let failed = Fake::new("cat frames; exit 3").says("frames", &text).run().unwrap_err();
    assert!(
        failed
            .to_string()
            .starts_with(&format!("the guest speaks version {} of the report", SCHEMA + 1)),
        "{failed}"
    );
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let fake = Fake::new("cat frames; sleep 1000 & sleep 1000").says("frames", &stream(&[hello()]));
    let mut plan = fake.plan();
    plan.timeout = Some(Duration::from_millis(300));
    let start = Instant::now();
    let failed = run(&plan, &mut |_| {}).unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the run was not over after 0.3 s; the guest is stopped (--timeout allows more)"
    );
    assert!(start.elapsed() < Duration::from_secs(5) && fake.is_gone());
}

#[test]
fn a_version_that_takes_too_long_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("qemu");
    // One that says nothing; one that never stops; the time bounds both.
    for script in ["sleep 1000", "echo QEMU; exec sleep 1000"] {
        install(
            &program,
            &format!(
                "#!/bin/sh\necho $$ >> '{}'\n{script}\n",
                folder.path().join("pid").display()
            ),
        );
        let fake = Fake::new("exit 3");
        let mut plan = fake.plan();
        plan.qemu = Some(program.clone());
        plan.timeout = Some(Duration::from_millis(300));
        let start = Instant::now();
        let failed = run(&plan, &mut |_| {}).unwrap_err();
        assert_eq!(
            failed.to_string(),
            format!(
                "{} --version did not end within 0.3 s and is stopped; give the path of a QEMU system emulator to --qemu, or a longer --timeout",
                program.display()
            )
        );
        assert!(start.elapsed() < Duration::from_secs(5));
        let pids = fs::read_to_string(folder.path().join("pid")).unwrap();
        assert!(pids.lines().all(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()));
    }
}

#[test]
fn a_guest_that_never_stops_talking_is_ended() {
    for talk in ["yes", "cat /dev/zero"] {
        let fake = Fake::new(talk);
        let mut plan = fake.plan();
        plan.timeout = Some(Duration::from_millis(300));
        let start = Instant::now();
        let failed = run(&plan, &mut |_| {}).unwrap_err();
        assert!(matches!(*failed.error, RunError::Timeout(_)), "{failed}");
        assert!(start.elapsed() < Duration::from_secs(10) && fake.is_gone());
    }
}

#[test]
fn nothing_remains_when_the_callback_panics() {
    let fake = Fake::new("cat frames; sleep 1000").says("frames", &whole());
    let plan = fake.plan();
    let panicked = std::panic::catch_unwind(|| {
        run(&plan, &mut |event| {
            assert!(!matches!(event, Event::Progress(_)), "a panic of ours")
        })
    });
    assert!(panicked.is_err() && fake.is_gone());
}

#[test]
fn nothing_starts_when_the_plan_is_refused() {
    let fake = Fake::new("exit 0");
    let mut plan = fake.plan();
    plan.drives = vec![DriveSpec::File("/no/such/drive".into())];
    let failed = run(&plan, &mut |_| {}).unwrap_err();
    assert!(failed.error.is_usage() && failed.to_string().contains("/no/such/drive"));
    assert!(!fake.folder.path().join("pid").exists());
}
