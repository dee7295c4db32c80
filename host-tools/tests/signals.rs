//! Whatever ends the program, no QEMU is left behind. A shell script stands in for QEMU.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{fake_qemu, run_on};
use tempfile::TempDir;

/// Starts a run whose QEMU sleeps, and waits until it does.
fn start() -> (Child, TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let program = fake_qemu(folder.path(), "echo $$ > pid.new; mv pid.new pid; exec sleep 1000");
    let child = run_on(&program)
        .args(["--drive", "scratch:1m"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(within_seconds(20, || pid.exists()), "QEMU was never started");
    let qemu = fs::read_to_string(&pid).unwrap().trim().to_string();
    (child, folder, qemu)
}

fn within_seconds(seconds: u64, mut condition: impl FnMut() -> bool) -> bool {
    (0..seconds * 100).any(|_| {
        let met = condition();
        if !met {
            thread::sleep(Duration::from_millis(10));
        }
        met
    })
}

fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill(signal: &str, child: &Child) {
    // The shell's own: not every machine has the program.
    let status = Command::new("sh")
        .args(["-c", r#"kill "$1" "$2""#, "sh", signal, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_signal_ends_the_run_in_order() {
    for (signal, status, name) in [
        ("-INT", 130, "SIGINT"),
        ("-TERM", 143, "SIGTERM"),
        ("-HUP", 129, "SIGHUP"),
    ] {
        let (mut child, folder, qemu) = start();
        kill(signal, &child);
        let ended = child.wait().unwrap();
        assert_eq!(ended.code(), Some(status), "{signal}");
        assert!(!runs(&qemu), "{signal}");
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let last = text.lines().last().unwrap();
        assert_eq!(last, format!("doorpost: ended by {name}; the guest is stopped"));
        // The scratch drive never had a name: only the script and its note are here.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}

#[test]
fn nothing_remains_even_after_sigkill() {
    let (mut child, folder, qemu) = start();
    assert!(runs(&qemu));
    kill("-KILL", &child);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(within_seconds(5, || !runs(&qemu)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
