//! Drives that stall, fail or vanish: the right report, or the right error, within bounds.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use doorpost_tests::{Outcome, doorpost, number, report, run, sum};
use serde_json::{Value, json};
use tempfile::TempDir;

/// QEMU's arguments as options of doorpost.
fn qemu(arguments: &str) -> Vec<String> {
    arguments
        .split_whitespace()
        .map(|argument| format!("--qemu-arg={argument}"))
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split_whitespace().map(str::to_string)
}

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
fn disturbed(options: impl Iterator<Item = String>, disturb: impl FnOnce(&mut Qmp)) -> Outcome {
    let folder = TempDir::new().unwrap();
    let socket: PathBuf = folder.path().join("qmp");
    let mut child = doorpost()
        .args(["run", "--accel", "tcg", "--output-format", "json"])
        .args(options)
        .args(qemu(&format!("-qmp unix:{},server=on,wait=off", socket.display())))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut complaints: Vec<String> = Vec::new();
    for line in lines.by_ref() {
        complaints.push(line.unwrap());
        if complaints.last().is_some_and(|line| line.contains("IOPS")) {
            break;
        }
    }
    let mut qmp = Qmp::connect(&socket);
    disturb(&mut qmp);
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<String>>());
    let output = child.wait_with_output().unwrap();
    complaints.extend(rest.join().unwrap());
    Outcome {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: complaints.join("\n"),
    }
}

#[test]
fn a_drive_slower_than_the_deadline_is_given_up() {
    let begun = Instant::now();
    let options = words("--drive null:1m --rw randread --iodepth 4 --command_timeout 500ms --timeout 100");
    let slow = qemu(
        "-blockdev driver=null-co,node-name=slow,size=1048576,latency-ns=8000000000 -device nvme,serial=slow,drive=slow",
    );
    let outcome = run(options.chain(slow)).expect_status(1);
    outcome.expect_complaint(&["nvme1", "3 resets", "command_timeout"]);
    assert!(begun.elapsed() < Duration::from_secs(90));
}

/// A second controller, on a drive that lets one request a second through until told otherwise.
const THROTTLED: &str = "-object throttle-group,id=tg,x-iops-total=1 \
     -blockdev driver=throttle,throttle-group=tg,node-name=slow,file.driver=null-co,file.size=1048576,file.read-zeroes=on \
     -device nvme,serial=slow,drive=slow";

#[test]
fn a_stall_is_survived_by_a_reset() {
    let options =
        words("--drive null:1m --rw randread --iodepth 16 --vcpus 2 --numjobs 2 --command_timeout 1 --ignore-errors");
    let outcome = disturbed(options.chain(qemu(THROTTLED)), |qmp| {
        // Long enough for aborts and one reset, not for three.
        std::thread::sleep(Duration::from_millis(3500));
        let limits = json!({ "path": "/objects/tg", "property": "limits", "value": { "iops-total": 0 } });
        qmp.call(json!({ "execute": "qom-set", "arguments": limits }));
    })
    .expect_status(0);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    // Two jobs over two namespaces of 256 blocks each: every I/O ended once.
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 1024);
    let recovery = report.pointer("/doorpost/report/controllers/1/recovery").unwrap();
    assert!(
        number(recovery, "/resets") >= 1 && number(recovery, "/timeouts") >= 1,
        "{recovery}"
    );
    assert!(number(recovery, "/reissued") >= 1, "{recovery}");
    assert_eq!(number(&report, "/doorpost/report/controllers/0/recovery/resets"), 0);
}

#[test]
fn a_controller_that_vanishes_is_named() {
    let begun = Instant::now();
    let options = words("--drive null --rw randread --iodepth 8 --runtime 60 --time_based");
    let port = qemu(
        "-device pcie-root-port,id=rp,chassis=1,addr=5.0 -blockdev driver=null-co,node-name=far,size=1073741824 \
         -device nvme,serial=far,drive=far,bus=rp",
    );
    let outcome = disturbed(options.chain(port), |qmp| {
        // The slot's power goes off, as a hand that pulls the drive would have it: Slot Control of the root port at 00:05.0,
        // in its PCI Express capability at 0x54 (power controller off, power indicator off).
        qmp.monitor("o /w 0xcf8 0x8000286c");
        qmp.monitor("o /h 0xcfc 0x07c0");
    })
    .expect_status(1);
    outcome.expect_complaint(&["nvme", "gone"]);
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn metadata_is_refused_by_name() {
    let arguments = "-device nvme,id=m,serial=meta -blockdev driver=null-co,node-name=m0,size=1048576 \
         -device nvme-ns,drive=m0,bus=m,ms=8";
    let report = report(words("--drive null:1m --rw read").chain(qemu(arguments)));
    let controllers = report
        .pointer("/doorpost/report/controllers")
        .and_then(Value::as_array)
        .unwrap();
    let refused: Vec<&str> = controllers
        .iter()
        .filter_map(|c| c.pointer("/namespaces/0/refused").and_then(Value::as_str))
        .collect();
    assert_eq!(refused.len(), 1, "{controllers:#?}");
    assert!(refused[0].contains("8 bytes of metadata"), "{refused:?}");
    // The other one works all the same.
    assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 256);
}

#[test]
fn transfers_obey_the_controller() {
    let none = words("--drive null:8m --rw read --bs 1m").chain(qemu("-global nvme.mdts=0"));
    assert_eq!(sum(&report(none), "/jobs", "/read/total_ios"), 8);
    let seven = words("--drive null:8m --rw read --bs 512k").chain(qemu("-global nvme.mdts=7"));
    assert_eq!(sum(&report(seven), "/jobs", "/read/total_ios"), 16);
    let one = words("--drive null:8m --rw read --bs 16k").chain(qemu("-global nvme.mdts=1"));
    run(one)
        .expect_status(2)
        .expect_complaint(&["bs=16384", "nvme0", "8192"]);
    // Beyond 2 MiB, PRP lists chain.
    let long = words("--drive null:16m --rw read --bs 3m").chain(qemu("-global nvme.mdts=0"));
    assert_eq!(sum(&report(long), "/jobs", "/read/io_bytes"), 15 << 20);
}

#[test]
fn a_drive_that_refuses_writes_is_quoted() {
    // QEMU's controller does not say beforehand that the drive is read-only; each command tells.
    let arguments = "-blockdev driver=null-co,node-name=ro,size=1048576,read-only=on -device nvme,serial=ro,drive=ro";
    let options = words("--drive null:1m --rw randwrite --allow-write");
    let outcome = run(options.chain(qemu(arguments))).expect_status(1);
    let line = outcome
        .stdout
        .lines()
        .find(|line| line.contains("Write") && line.contains("256"));
    assert!(line.is_some(), "{}", outcome.stdout);
    outcome.expect_complaint(&["256 commands failed"]);
}

#[test]
fn doorbells_in_memory_work() {
    let bells = |more: &str| {
        let options = format!("--drive null --rw randread --iodepth 4 --number_ios 4000 --wait poll {more}");
        let report = report(words(&options));
        assert_eq!(sum(&report, "/jobs", "/read/total_ios"), 4000);
        let shadow = report
            .pointer("/doorpost/report/controllers/0/shadow_doorbells")
            .unwrap()
            .as_bool()
            .unwrap();
        (
            shadow,
            number(&report, "/doorpost/report/queues/0/sq_doorbells")
                + number(&report, "/doorpost/report/queues/0/cq_doorbells"),
        )
    };
    let (off, registers) = bells("");
    let (on, memory) = bells("--shadow_doorbells");
    assert!(!off && on);
    // QEMU asks to be rung whenever it has caught up, so that little is saved there; never more is rung.
    assert!(
        memory <= registers,
        "{memory} doorbell writes with shadow doorbells, {registers} without"
    );
}

#[test]
fn what_was_written_is_flushed() {
    let folder = TempDir::new().unwrap();
    let drive = folder.path().join("drive.img");
    std::fs::write(&drive, vec![0; 1 << 20]).unwrap();
    let options = format!(
        "--drive {} --rw write --verify pattern --allow-write --end_fsync",
        drive.display()
    );
    let report = report(words(&options));
    assert_eq!(number(&report, "/doorpost/totals/errors"), 0);
    assert_eq!(
        report.pointer("/doorpost/report/controllers/0/write_cache"),
        Some(&Value::Bool(true))
    );
    // The SMART log of the emulated drive counts what was done.
    assert!(
        report
            .pointer("/doorpost/report/controllers/0/health/host_writes")
            .unwrap()
            .as_u64()
            >= Some(256)
    );
}
