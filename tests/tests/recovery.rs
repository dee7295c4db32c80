//! Drives that stall or vanish while a job runs: the right report, or the right error, within bounds.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use doorpost_tests::{Outcome, check_laws, doorpost, guest, list, number, parse, qemu, run, sum};
use serde_json::{Value, json};
use tempfile::TempDir;

/// QEMU's machine protocol.
struct Qmp {
    lines: BufReader<UnixStream>,
    socket: UnixStream,
}

impl Qmp {
    fn connect(path: &Path) -> Self {
        let deadline = Instant::now() + Duration::from_secs(20);
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(error) => assert!(Instant::now() < deadline, "QEMU's socket: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut qmp = Self {
            lines: BufReader::new(socket.try_clone().unwrap()),
            socket,
        };
        qmp.call(json!({ "execute": "qmp_capabilities" }));
        qmp
    }

    /// A command, and its answer; events are passed over.
    fn call(&mut self, command: Value) -> Value {
        writeln!(self.socket, "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "QEMU closed its socket");
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if let Some(value) = answer.get("return") {
                return value.clone();
            }
        }
    }

    /// A line for the monitor that people use.
    fn monitor(&mut self, line: &str) {
        let text = self.call(json!({ "execute": "human-monitor-command", "arguments": { "command-line": line } }));
        assert_eq!(text, "", "{line}");
    }
}

/// Starts a run with a QMP socket, waits for its first progress line, does something to it, and waits for its end.
fn disturbed(options: &str, disturb: impl FnOnce(&mut Qmp)) -> Outcome {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("qmp");
    let monitor = qemu(&format!("-qmp unix:{},server=on,wait=off", socket.display()));
    let mut child = doorpost()
        .args(["run", "--accel", "tcg", "--output-format", "json"])
        .args(format!("{options} {monitor}").split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let mut said = Vec::new();
    for line in lines.by_ref() {
        said.push(line);
        if said.last().is_some_and(|line| line.contains("IOPS")) {
            break;
        }
    }
    let mut qmp = Qmp::connect(&socket);
    disturb(&mut qmp);
    let rest = std::thread::spawn(move || lines.collect::<Vec<String>>());
    let mut outcome = Outcome::from(child.wait_with_output().unwrap());
    said.extend(rest.join().unwrap());
    outcome.stderr = said.join("\n");
    outcome
}

#[test]
fn a_drive_slower_than_the_deadline_is_given_up() {
    let slow = qemu(
        "-blockdev driver=null-co,node-name=slow,size=1048576,latency-ns=3000000000 -device nvme,serial=slow,drive=slow",
    );
    let job = "--drive null:1m --rw randread --iodepth 4 --command_timeout 400ms --timeout 100";
    let outcome = run(&format!("{job} {slow}")).expect_status(1);
    outcome.expect_complaint(&["nvme1", "3 resets", "command_timeout"]);
}

/// A second controller, on a drive that lets one request a second through until told otherwise.
const THROTTLED: &str = "-object throttle-group,id=tg,x-iops-total=1 \
     -blockdev driver=throttle,throttle-group=tg,node-name=slow,file.driver=null-co,file.size=1048576,file.read-zeroes=on \
     -device nvme,serial=slow,drive=slow";

#[test]
fn a_stall_is_survived_by_a_reset() {
    let job = "--drive null:1m --rw randread --iodepth 16 --vcpus 2 --numjobs 2 --command_timeout 1 --ignore-errors";
    let outcome = disturbed(&format!("{job} {}", qemu(THROTTLED)), |qmp| {
        // Long enough for aborts and one reset, not for three.
        std::thread::sleep(Duration::from_millis(3500));
        let limits = json!({ "path": "/objects/tg", "property": "limits", "value": { "iops-total": 0 } });
        qmp.call(json!({ "execute": "qom-set", "arguments": limits }));
    })
    .expect_status(0);
    let report = parse(&outcome.stdout);
    check_laws(&report);
    // Two jobs over two namespaces of 256 blocks each: every I/O ended once.
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 1024);
    let [sound, slow] = list(guest(&report), "/controllers") else {
        panic!("two controllers");
    };
    for event in ["timeouts", "resets", "reissued"] {
        assert!(number(slow, &format!("/recovery/{event}")) >= 1, "{event}: {slow}");
    }
    assert_eq!(number(sound, "/recovery/resets"), 0);
}

#[test]
fn a_controller_that_vanishes_is_named() {
    let port = qemu(
        "-device pcie-root-port,id=rp,chassis=1,addr=5.0 -blockdev driver=null-co,node-name=far,size=1073741824 \
         -device nvme,serial=far,drive=far,bus=rp",
    );
    let job = "--drive null --rw randread --iodepth 8 --runtime 60 --time_based --timeout 55";
    let outcome = disturbed(&format!("{job} {port}"), |qmp| {
        // The slot's power goes off, as a hand that pulls the drive would have it: Slot Control of the root port at 00:05.0,
        // in its PCI Express capability at 0x54 (power controller off, power indicator off).
        qmp.monitor("o /w 0xcf8 0x8000286c");
        qmp.monitor("o /h 0xcfc 0x07c0");
    })
    .expect_status(1);
    outcome.expect_complaint(&["nvme", "gone"]);
}
