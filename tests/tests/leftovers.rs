//! Whatever ends doorpost, nothing remains: no emulator, no scratch file, no half of a report.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use doorpost_tests::{doorpost, qemu};
use tempfile::TempDir;

/// Processes whose command line holds a word. Read from /proc: not every machine has pgrep.
fn running(word: &str) -> Vec<OsString> {
    let holds = |entry: &fs::DirEntry| {
        // A process may end in between.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    let entries = fs::read_dir("/proc").expect("there is /proc").flatten();
    entries.filter(holds).map(|entry| entry.file_name()).collect()
}

fn files(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

/// Ends a run by a signal; returns its exit status. Emulator and files must be gone, at once if doorpost could see to it.
fn ended_by(signal: &str) -> Option<i32> {
    // A word that tells this run's emulator from those of tests beside it.
    let word = format!("doorpost-{signal}-{}", std::process::id());
    let folder = TempDir::new().unwrap();
    let options = format!(
        "--accel tcg --drive scratch:1m --rw randread --runtime 60 --time_based --output report.json --output-format json {}",
        qemu(&format!("-name {word}"))
    );
    let mut child = doorpost()
        .arg("run")
        .args(options.split_whitespace())
        .env("TMPDIR", folder.path())
        .current_dir(folder.path())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The first progress line: it runs.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("IOPS")));
    assert!(line.is_some(), "no progress line");
    // doorpost and QEMU.
    assert_eq!(running(&word).len(), 2);
    assert_eq!(files(folder.path()), [""; 0], "while it runs");
    let kill = ["-c", r#"kill -s "$1" "$2""#, "sh", signal, &child.id().to_string()];
    assert!(Command::new("sh").args(kill).status().unwrap().success());
    let status = child.wait().unwrap().code();
    if status.is_some() {
        assert_eq!(running(&word), [""; 0], "QEMU outlives a SIG{signal}");
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while !running(&word).is_empty() {
        assert!(Instant::now() < deadline, "QEMU outlives a SIG{signal}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(files(folder.path()), [""; 0], "after a SIG{signal}");
    status
}

#[test]
fn a_signal_ends_the_run_in_order() {
    assert_eq!(ended_by("INT"), Some(130));
    assert_eq!(ended_by("TERM"), Some(143));
    assert_eq!(ended_by("HUP"), Some(129));
}

#[test]
fn a_sudden_death_leaves_nothing() {
    assert_eq!(ended_by("KILL"), None);
    // As a panic that aborts would.
    assert_eq!(ended_by("ABRT"), None);
}

#[test]
fn a_run_that_goes_wrong_leaves_nothing() {
    let word = format!("doorpost-wrong-{}", std::process::id());
    let name = qemu(&format!("-name {word}"));
    for wrong in ["-nonsense", "-S", "-append test=panic", "-global nvme.mdts=1"] {
        let folder = TempDir::new().unwrap();
        let options = format!(
            "--accel tcg --drive scratch --bs 64k --timeout 2 {name} {}",
            qemu(wrong)
        );
        let mut command = doorpost();
        command.arg("run").args(options.split_whitespace());
        let status = command.env("TMPDIR", folder.path()).output().unwrap().status;
        assert!(!status.success(), "{wrong}");
        assert_eq!(running(&word), [""; 0], "{wrong}");
        assert_eq!(files(folder.path()), [""; 0], "{wrong}");
    }
}
