//! The guest never hangs silently: whatever goes wrong ends the run with a status and a reason.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use doorpost_tests::{Outcome, doorpost, run};
use tempfile::TempDir;

/// A run whose guest is told to fail by a self-test in its boot arguments: QEMU takes the last ones.
fn failing(test: &str) -> String {
    let append = format!("--qemu-arg={test}");
    let outcome = run(["--drive", "null", "--qemu-arg=-append", &append, "--timeout", "30"]).expect_status(1);
    format!("{}{}", outcome.stdout, outcome.stderr)
}

#[test]
fn a_panic_is_told() {
    let text = failing("test=panic");
    assert!(text.contains("PANIC") && text.contains("asked for"), "{text}");
}

#[test]
fn a_fault_prints_registers() {
    let text = failing("test=fault");
    for part in ["FAULT", "rip", "cr2", "rsp", "rax"] {
        assert!(text.to_lowercase().contains(&part.to_lowercase()), "{part} in {text}");
    }
}

#[test]
fn a_stack_overflow_is_a_fault() {
    let text = failing("test=stack");
    assert!(text.contains("FAULT"), "{text}");
}

#[test]
fn x2apic_is_required_in_one_line() {
    let outcome = run(["--drive", "null", "--qemu-arg=-cpu", "--qemu-arg=max,-x2apic"]).expect_status(1);
    assert!(outcome.stderr.contains("x2APIC"), "{}", outcome.stderr);
}

#[test]
fn a_guest_that_says_nothing_is_ended() {
    let begun = Instant::now();
    // Stopped before its first instruction.
    let outcome = run(["--drive", "null", "--qemu-arg=-S", "--timeout", "2"]).expect_status(1);
    outcome.expect_complaint(&["2 s", "--timeout"]);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

/// Processes whose command line holds a word. Read from /proc: not every machine has pgrep.
fn running(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let holds = |entry: &std::fs::DirEntry| {
        // A process may end in between.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    entries
        .filter(holds)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_signal_leaves_no_emulator_behind() {
    for (signal, status) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        // A word that tells this run's emulator from those of tests beside it.
        let word = format!("doorpost-signal-test-{signal}-{}", std::process::id());
        let folder = TempDir::new().unwrap();
        let mut child = doorpost()
            .args([
                "run",
                "--accel",
                "tcg",
                "--drive",
                "scratch:1m",
                "--rw",
                "randread",
                "--runtime",
                "60",
                "--time_based",
            ])
            .args([
                "--qemu-arg=-name",
                &format!("--qemu-arg={word}"),
                "--output",
                "never.json",
                "--output-format",
                "json",
            ])
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The first progress line: it runs.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("IOPS")));
        assert!(line.is_some(), "no progress line");
        assert!(!running(&word).is_empty());
        let pid = child.id().to_string();
        assert!(
            Command::new("sh")
                .args(["-c", r#"kill -s "$1" "$2""#, "sh", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(child.wait().unwrap().code(), status);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !running(&word).is_empty() {
            assert!(Instant::now() < deadline, "QEMU outlives a SIG{signal}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "files are left behind"
        );
    }
}

#[test]
fn the_serial_log_is_kept_and_read_again() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("serial.log");
    let log = log.to_str().unwrap();
    let first = run(["--drive", "null:1m", "--rw", "read", "--keep-serial", log]).expect_status(0);
    let again = Outcome::of(doorpost().args(["report", log])).expect_status(0);
    let line = |text: &str| {
        text.lines()
            .find(|line| line.contains("read: IOPS="))
            .map(str::to_string)
    };
    assert_eq!(line(&first.stdout), line(&again.stdout));
    // A byte lost on the way is an error, not another figure.
    let text = std::fs::read_to_string(log)
        .unwrap()
        .replacen("\"ios\":", "\"ioz\":", 1);
    std::fs::write(log, text).unwrap();
    Outcome::of(doorpost().args(["report", log]))
        .expect_status(1)
        .expect_complaint(&["garbled"]);
}
