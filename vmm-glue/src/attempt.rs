//! One guest: started, listened to, ended.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use workload::frame::Frame;
use workload::report::{Failure, Progress, Report, SCHEMA};

use crate::child::Child;
use crate::qemu::CommandLine;
use crate::run::RunError;
use crate::serial::{Lines, Transcript};

/// How long QEMU may take to end after the guest's last frame, or after it closed the serial line.
const GOODBYE: Duration = Duration::from_secs(10);
/// How long to listen on after a garbled frame, for text that explains it.
const EXPLANATION: Duration = Duration::from_secs(1);
/// Lines kept of what QEMU says.
const COMPLAINTS: usize = 20;

/// What reaches the listener.
pub(crate) enum Message {
    /// Something of the serial line of guest number so and so; an earlier guest's may come late.
    Serial(u32, Serial),
    /// We are to end.
    Signal(i32),
}

/// What a serial line brings.
pub(crate) enum Serial {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Its end.
    End,
    /// The file that keeps it cannot be written.
    Keep(std::io::Error),
}

/// Which guest it is, and when to give it up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Number of the guest in this run.
    pub(crate) guest: u32,
    /// The end of the whole run, and how long it was allowed to take.
    pub(crate) total: (Instant, Duration),
    /// Until when the guest must have said hello, if that is bounded more tightly.
    pub(crate) hello: Option<Instant>,
}

/// What came of one guest.
pub(crate) struct Attempt {
    /// Its report, or why there is none.
    pub(crate) result: Result<Report, RunError>,
    /// The guest began to speak.
    pub(crate) said_hello: bool,
    /// What it said between frames.
    pub(crate) transcript: Transcript,
    /// The last lines of what QEMU said.
    pub(crate) complaints: Vec<String>,
}

/// Starts a guest and listens to it until it ends, a deadline passes or a signal comes. QEMU is gone when this returns.
pub(crate) fn attempt(
    program: &std::path::Path,
    line: &CommandLine<'_>,
    terms: Terms,
    keep: Option<File>,
    (sender, receiver): (&SyncSender<Message>, &Receiver<Message>),
    on_progress: &mut dyn FnMut(&Progress),
) -> Attempt {
    let mut command = Command::new(program);
    command.args(&line.arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut listener = Listener::default();
    let mut child = match Child::spawn(command, &line.inherited) {
        Ok(child) => child,
        Err(error) => {
            let program = program.to_path_buf();
            return listener.finish(Err(RunError::Start { program, error }), Vec::new());
        }
    };
    let mut complaints = Complaints::default();
    let pipes = child.pipes();
    if let Some(stdout) = pipes.stdout.take() {
        let sender = sender.clone();
        thread::spawn(move || {
            pump(stdout, keep, |serial| {
                sender.send(Message::Serial(terms.guest, serial)).is_ok()
            })
        });
    }
    if let Some(stderr) = pipes.stderr.take() {
        complaints.collect(stderr);
    }
    let result = listener.listen(&mut child, terms, receiver, on_progress, &complaints);
    child.kill();
    listener.finish(result, complaints.lines())
}

/// Carries the serial line's bytes to the listener, and to the file that keeps them.
fn pump(mut from: impl Read, mut keep: Option<File>, to: impl Fn(Serial) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                let bytes = &buffer[..length];
                if let Some(file) = &mut keep
                    && let Err(error) = file.write_all(bytes)
                {
                    to(Serial::Keep(error));
                    return;
                }
                // Nobody listens any more: QEMU was given up.
                if !to(Serial::Bytes(bytes.to_vec())) {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    to(Serial::End);
}

/// The last lines of what QEMU says.
#[derive(Default)]
struct Complaints {
    lines: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Complaints {
    fn collect(&mut self, from: impl Read + Send + 'static) {
        let lines = Arc::clone(&self.lines);
        self.reader = Some(thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            // A line without end must not fill our memory.
            while (&mut from)
                .take(4096)
                .read_until(b'\n', &mut line)
                .is_ok_and(|length| length > 0)
            {
                let text = String::from_utf8_lossy(&line);
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == COMPLAINTS {
                    lines.pop_front();
                }
                lines.push_back(text);
                line.clear();
            }
        }));
    }

    /// The lines of a QEMU that has ended.
    fn lines(&self) -> Vec<String> {
        // The pipe ends with QEMU, unless something else took it along; then what is there has to do.
        let deadline = Instant::now() + Duration::from_millis(500);
        while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| !line.trim().is_empty()).cloned().collect()
    }
}

/// What was heard so far.
#[derive(Default)]
struct Listener {
    lines: Lines,
    transcript: Transcript,
    said_hello: bool,
    report: Option<Box<Report>>,
    failure: Option<Failure>,
    broken: Option<RunError>,
}

impl Listener {
    fn finish(self, result: Result<Report, RunError>, complaints: Vec<String>) -> Attempt {
        Attempt {
            result,
            said_hello: self.said_hello,
            transcript: self.transcript,
            complaints,
        }
    }

    fn listen(
        &mut self,
        child: &mut Child,
        terms: Terms,
        messages: &Receiver<Message>,
        on_progress: &mut dyn FnMut(&Progress),
        complaints: &Complaints,
    ) -> Result<Report, RunError> {
        let (total, allowed) = terms.total;
        let mut goodbye: Option<Instant> = None;
        loop {
            let hello = terms.hello.filter(|_| !self.said_hello);
            let next = [Some(total), hello, goodbye]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(total);
            let now = Instant::now();
            if now >= next {
                if goodbye.is_some_and(|at| now >= at) {
                    break;
                }
                return Err(if now >= total {
                    RunError::Timeout(allowed)
                } else {
                    RunError::Silent
                });
            }
            match messages.recv_timeout(next - now) {
                Ok(Message::Signal(signal)) => return Err(RunError::Interrupted(signal)),
                Ok(Message::Serial(guest, _)) if guest != terms.guest => {}
                Ok(Message::Serial(_, Serial::Bytes(bytes))) => self.take(&bytes, on_progress),
                Ok(Message::Serial(_, Serial::Keep(error))) => return Err(RunError::Keep(error)),
                Ok(Message::Serial(_, Serial::End)) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if goodbye.is_none() {
                if self.broken.is_some() {
                    goodbye = Some(now + EXPLANATION);
                } else if self.report.is_some() || self.failure.is_some() {
                    goodbye = Some(now + GOODBYE);
                }
            }
        }
        if let Some(line) = self.lines.finish() {
            self.line(&line, on_progress);
        }
        let patience = if self.broken.is_some() { EXPLANATION } else { GOODBYE };
        let status = child.wait_at_most(patience).map_err(RunError::Wait)?;
        self.verdict(status, complaints)
    }

    fn take(&mut self, bytes: &[u8], on_progress: &mut dyn FnMut(&Progress)) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(bytes, |line| self.line(&line, on_progress));
        self.lines = lines;
    }

    fn line(&mut self, line: &str, on_progress: &mut dyn FnMut(&Progress)) {
        match self.transcript.line(line) {
            // After a garbled frame the rest is only listened to for its text.
            _ if self.broken.is_some() => {}
            Err(error) => self.broken = Some(RunError::Frame(error)),
            Ok(None) => {}
            Ok(Some(Frame::Hello(hello))) if hello.schema != SCHEMA => {
                self.broken = Some(RunError::Schema(hello.schema));
            }
            Ok(Some(Frame::Hello(_))) => self.said_hello = true,
            Ok(Some(Frame::Progress(progress))) => on_progress(&progress),
            Ok(Some(Frame::Report(report))) => self.report = Some(report),
            Ok(Some(Frame::Failure(failure))) => self.failure = Some(failure),
        }
    }

    /// What it all means. A failure outweighs everything, and a report counts only if the guest then ended in order.
    fn verdict(&mut self, status: Option<ExitStatus>, complaints: &Complaints) -> Result<Report, RunError> {
        if let Some(failure) = self.failure.take() {
            return Err(RunError::Guest(failure));
        }
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let ending = Ending::of(status);
        match self.report.take() {
            Some(report) if ending.is_orderly() => Ok(*report),
            Some(_) => Err(RunError::AfterReport(ending)),
            None => Err(RunError::Ended {
                ending,
                said_hello: self.said_hello,
                complaint: complaints.lines().pop().or_else(|| {
                    // A guest that gives up early names itself.
                    let said = self.transcript.last_text(1).pop()?;
                    Some(said.trim_start_matches("doorpost: ").to_string())
                }),
            }),
        }
    }
}

/// How QEMU ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Status 0: the machine was powered off, or was reset.
    PowerOff,
    /// The guest wrote this to its exit device.
    Guest(u8),
    /// QEMU gave up by itself, with this status.
    Qemu(i32),
    /// QEMU was killed by this signal.
    Signal(i32),
    /// It did not end, and was killed by us.
    Never,
}

impl Ending {
    /// Reads an exit status. QEMU's `isa-debug-exit` turns a guest's value n, which is never 0, into 2n + 1; QEMU itself gives
    /// up with 1.
    fn of(status: Option<ExitStatus>) -> Self {
        let Some(status) = status else { return Self::Never };
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::PowerOff,
            (Some(code), _) if code > 1 && code % 2 == 1 => Self::Guest((code / 2) as u8),
            (Some(code), _) => Self::Qemu(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Whether a guest that has sent its report ends like this.
    const fn is_orderly(self) -> bool {
        matches!(self, Self::PowerOff | Self::Guest(1))
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PowerOff => f.write_str("the machine was reset or powered off"),
            Self::Guest(1) => f.write_str("the guest was done"),
            Self::Guest(2) => f.write_str("the guest gave up"),
            Self::Guest(3) => f.write_str("the guest refused its job"),
            Self::Guest(4) => f.write_str("the guest broke down (a fault, a panic, or a CPU that stood still)"),
            Self::Guest(value) => write!(f, "the guest ended with status {value}"),
            Self::Qemu(code) => write!(f, "QEMU gave up with status {code}"),
            Self::Signal(signal) => write!(f, "QEMU was killed by signal {signal}"),
            Self::Never => f.write_str("QEMU did not end by itself"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses() {
        let exited = |code: i32| Ending::of(Some(ExitStatus::from_raw(code << 8)));
        assert_eq!(exited(0), Ending::PowerOff);
        assert_eq!(exited(1), Ending::Qemu(1));
        assert_eq!(exited(2), Ending::Qemu(2));
        assert_eq!(exited(3), Ending::Guest(1));
        assert_eq!(exited(255), Ending::Guest(127));
        assert_eq!(Ending::of(Some(ExitStatus::from_raw(9))), Ending::Signal(9));
        assert_eq!(Ending::of(None), Ending::Never);
        assert!(exited(0).is_orderly() && exited(3).is_orderly());
        assert!(!exited(5).is_orderly() && !exited(1).is_orderly() && !Ending::Never.is_orderly());
    }
}
