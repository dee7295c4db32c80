//! Frames on the serial line: text between them does no harm, and a garbled one is an error and never a wrong figure.

use std::fs;
use std::process::Command;

use doorpost_tests::{Outcome, doorpost, file, run};
use tempfile::TempDir;

/// `doorpost report` of a log.
fn read_again(folder: &TempDir, log: &str) -> Outcome {
    Outcome::of(doorpost().args(["report", &file(folder, "changed.log", log.as_bytes())]))
}

/// What the job measured, in words: all that stands before what only the launcher knows.
fn measured(text: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.contains("err= 0"));
    lines.take_while(|line| !line.starts_with("Machine")).collect()
}

#[test]
fn frames_are_whole_or_an_error() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("serial.log");
    let job = "--drive null --rw randread --iodepth 4 --runtime 1500ms --time_based --keep-serial";
    let first = run(&format!("{job} {}", path.display())).expect_status(0);
    let log = fs::read_to_string(&path).unwrap();
    let frames: Vec<&str> = log.lines().filter(|line| line.starts_with("@doorpost ")).collect();
    assert!(frames.len() >= 3, "hello, progress, report: {frames:#?}");
    let report = frames[frames.len() - 1];

    let again = read_again(&folder, &log).expect_status(0);
    assert!(measured(&first.stdout).contains("read: IOPS="), "{}", first.stdout);
    assert_eq!(measured(&first.stdout), measured(&again.stdout));

    // Text between frames.
    let chatter = log.replace("@doorpost ", "some driver: hello\n@doorpost ");
    let again = read_again(&folder, &chatter).expect_status(0);
    assert_eq!(measured(&first.stdout), measured(&again.stdout));

    let error = |changed: String, parts: &[&str]| {
        assert_ne!(changed, log);
        let outcome = read_again(&folder, &changed).expect_status(1);
        assert_eq!(outcome.stdout, "");
        outcome.expect_complaint(parts);
    };
    // A digit that changed, a letter, one that is missing, text that broke in, a digit too many.
    let (before, digits) = log.split_once("\"completions\":").unwrap();
    let digit = if digits.starts_with('1') { '2' } else { '1' };
    error(format!("{before}\"completions\":{digit}{}", &digits[1..]), &["garbled"]);
    error(log.replacen("\"ios\":", "\"ioz\":", 1), &["garbled"]);
    error(log.replacen("\"completions\":", "\"completion\":", 1), &["garbled"]);
    error(
        log.replace(report, &report.replacen(",", ",\nsome driver: hello\n", 1)),
        &["garbled"],
    );
    error(log.replacen("\"completions\":", "\"completions\":1", 1), &["garbled"]);
    // A frame that is missing: in the middle, and at the end.
    error(log.replace(&format!("{}\n", frames[1]), ""), &["frame"]);
    error(log.replace(report, ""), &["no report"]);
    // Half of the last frame.
    error(log.replace(report, &report[..report.len() / 2]), &["garbled"]);
}

/// A program in front of QEMU whose serial line goes through `sed`.
fn disturbed_qemu(folder: &TempDir, script: &str) -> String {
    let path = folder.path().join("qemu");
    let program = format!("#!/bin/sh\nqemu-system-x86_64 \"$@\" | sed -u '{script}'\n");
    // By another process: a descriptor of ours, open for writing in a sibling test's fork, would make the program busy.
    let install = ["-c", r#"printf %s "$1" > "$2" && chmod +x "$2""#, "sh", &program];
    let status = Command::new("sh").args(install).arg(&path).status();
    assert!(status.unwrap().success());
    path.to_str().unwrap().to_string()
}

#[test]
fn a_line_disturbed_on_the_way_fails_the_run() {
    let job = "--drive null --rw randread --runtime 1500ms --time_based --iodepth 4";
    for (script, error) in [
        (
            "/^@doorpost [0-9]* report/ { s/\"ios\":1/\"ios\":2/; t; s/\"ios\":./\"ios\":1/ }",
            "garbled",
        ),
        ("/^@doorpost [0-9]* progress/ d", "frame"),
        ("/^@doorpost [0-9]* report/ s/,/,\\nsome driver: hello\\n/", "garbled"),
    ] {
        let folder = TempDir::new().unwrap();
        let qemu = disturbed_qemu(&folder, script);
        let outcome = run(&format!("{job} --qemu {qemu}")).expect_status(1);
        assert_eq!(outcome.stdout, "", "{script}");
        outcome.expect_complaint(&[error, "can be trusted"]);
    }
}
