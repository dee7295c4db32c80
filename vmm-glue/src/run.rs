//! Starts a guest, listens to it, and leaves nothing behind.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use workload::frame::FrameError;
use workload::report::{Failure, FailureKind, Progress, Report, SCHEMA};

use crate::accel::{self, Accel, Accelerator, Decision, ForeignKvm};
use crate::attempt::{self, Attempt, Message, Terms};
use crate::drive::{Drive, DriveError};
use crate::guest::Arch;
use crate::plan::{Plan, PlanError};
use crate::qemu::{self, Qemu, QemuError};
use crate::signals;

pub use crate::attempt::Ending;

/// How long a guest under a KVM that nobody asked for may stay silent before TCG gets its turn.
const KVM_PATIENCE: Duration = Duration::from_secs(20);
/// Messages that may wait for the listener; a guest that talks faster waits.
const BACKLOG: usize = 64;

/// What the launcher did: the host's facts of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launcher {
    /// `qemu`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Why not KVM, where that was open.
    pub accelerator_reason: Option<String>,
    /// Release of the host's kernel.
    pub host_kernel: String,
    /// CPUs of the guest.
    pub vcpus: u32,
    /// Memory of the guest in bytes.
    pub memory_bytes: u64,
    /// What stood behind each controller.
    pub drives: Vec<LauncherDrive>,
    /// The command, program first.
    pub command: Vec<String>,
    /// When the guest was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// How long the guest took from start to end.
    pub wall_ns: u64,
    /// What the guest said between frames: the last lines of it.
    pub guest_text: Vec<String>,
}

/// What stood behind a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherDrive {
    /// As it was asked for.
    pub drive: String,
    /// Bytes in it.
    pub bytes: u64,
    /// It refuses writes.
    pub read_only: bool,
}

/// A run that went through.
#[derive(Debug)]
pub struct Outcome {
    /// What the guest measured.
    pub report: Report,
    /// What the host knows.
    pub launcher: Launcher,
}

/// What happens on the way.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A sentence for the user.
    Note(&'a str),
    /// The guest is being started.
    Starting(Accelerator),
    /// Totals so far.
    Progress(&'a Progress),
}

/// A run that did not go through.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Failed {
    /// What went wrong, in one line.
    pub error: Box<RunError>,
    /// The last lines of the guest's text.
    pub guest_text: Vec<String>,
    /// The last lines of what QEMU said.
    pub qemu_text: Vec<String>,
}

impl From<RunError> for Failed {
    fn from(error: RunError) -> Self {
        Self {
            error: Box::new(error),
            guest_text: Vec::new(),
            qemu_text: Vec::new(),
        }
    }
}

/// What can go wrong with a run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The parts of the plan do not fit together.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A drive cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// KVM was demanded where it cannot be.
    #[error(transparent)]
    Accel(#[from] ForeignKvm),
    /// There is no QEMU that would do.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// QEMU does not start.
    #[error("{} cannot be started: {error}", program.display())]
    Start {
        /// Its program.
        program: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The file for the serial line cannot be made.
    #[error("the serial line cannot be kept in {}: {error}", path.display())]
    KeepOpen {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The file for the serial line cannot be written any more.
    #[error("the serial line cannot be kept any longer: {0}")]
    Keep(io::Error),
    /// The host lacks something.
    #[error("{step}: {error}")]
    Host {
        /// What for.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// QEMU cannot be waited for.
    #[error("waiting for QEMU: {0}")]
    Wait(io::Error),
    /// A signal came.
    #[error("ended by {}; the guest is stopped", signals::name(*.0))]
    Interrupted(i32),
    /// The run takes too long.
    #[error("the run was not over after {} s; the guest is stopped (--timeout allows more)", .0.as_secs_f64())]
    Timeout(Duration),
    /// The guest says nothing.
    #[error("the guest said nothing for {} s", KVM_PATIENCE.as_secs())]
    Silent,
    /// The guest said what is wrong.
    #[error("{}", .0.message)]
    Guest(Failure),
    /// The serial line was disturbed.
    #[error("{0}; nothing of this run can be trusted")]
    Frame(#[from] FrameError),
    /// The guest is of another version.
    #[error(
        "the guest speaks version {0} of the report, this program version {SCHEMA}; build both from the same source"
    )]
    Schema(u32),
    /// The guest ended badly after its report.
    #[error("the guest sent its report, but then {0}; nothing of this run can be trusted")]
    AfterReport(Ending),
    /// The guest ended without a report.
    #[error(
        "{ending} {}{}",
        if *.said_hello { "before there was a report" } else { "before the first frame" },
        .complaint.as_ref().map_or(String::new(), |complaint| format!(": {complaint}"))
    )]
    Ended {
        /// How.
        ending: Ending,
        /// The guest had begun to speak.
        said_hello: bool,
        /// The last line of what QEMU said, or the guest.
        complaint: Option<String>,
    },
}

impl RunError {
    /// Whether what was asked for cannot be (exit status 2), as opposed to a run that failed (1).
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Plan(_) | Self::Drive(_) | Self::Accel(_) => true,
            Self::Guest(failure) => failure.kind == FailureKind::Usage,
            _ => false,
        }
    }
}

/// Runs a plan. Nothing remains when this returns or panics: QEMU's process group is gone, scratch drives and the guest's
/// image never had a name. When this process is killed by SIGKILL, the kernel kills the program that was started, and only
/// that one: a QEMU that a wrapper script started goes on then, unless the script did so by `exec`.
///
/// SIGINT, SIGTERM and SIGHUP are taken meanwhile, and end the run with [`RunError::Interrupted`].
///
/// # Errors
/// When the plan cannot be carried out, or no whole report arrived.
pub fn run(plan: &Plan<'_>, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Failed> {
    run_by(plan, on_event, accel::decide)
}

fn run_by(
    plan: &Plan<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
    decide: impl FnOnce(Accel, Arch) -> Result<Decision, ForeignKvm>,
) -> Result<Outcome, Failed> {
    let allowed = plan.timeout();
    let end = Instant::now().checked_add(allowed);
    // A time beyond the clock's range is as good as a century.
    let end = end.unwrap_or_else(|| Instant::now() + Duration::from_secs(100 * 365 * 86_400));
    plan.check().map_err(RunError::from)?;
    plan.check_files(&[]).map_err(RunError::from)?;
    let mut drives = Vec::new();
    for spec in &plan.drives {
        drives.push(Drive::open(spec.clone(), plan.jobs.run.allow_write).map_err(RunError::from)?);
    }
    plan.check_drives(&drives).map_err(RunError::from)?;
    let mut keep = None;
    if let Some(path) = &plan.keep_serial {
        let opened = OpenOptions::new().create(true).write(true).truncate(true).open(path);
        keep = Some(opened.map_err(|error| RunError::KeepOpen {
            path: path.clone(),
            error,
        })?);
    }
    let qemu = Qemu::find(plan.arch, plan.qemu.as_deref(), allowed).map_err(RunError::from)?;
    let host = |step: &'static str| move |error: io::Error| RunError::Host { step, error };
    let image = image_file(plan.image).map_err(host("the guest's image finds no memory"))?;

    let (sender, receiver) = mpsc::sync_channel(BACKLOG);
    let on_signal = {
        let sender = sender.clone();
        move |signal| sender.send(Message::Signal(signal)).is_ok()
    };
    let _watch = signals::Watch::start(on_signal).map_err(host("signals cannot be taken"))?;
    let mut decision = decide(plan.accel, plan.arch).map_err(RunError::from)?;
    let mut guest = 0;
    loop {
        let accelerator = decision.accelerator;
        qemu.check(accelerator).map_err(RunError::from)?;
        if let Some(reason) = &decision.reason {
            on_event(Event::Note(reason));
        }
        on_event(Event::Starting(accelerator));
        let line = qemu::command_line(plan, &drives, accelerator, image.as_fd());
        let unasked_kvm = plan.accel == Accel::Auto && accelerator == Accelerator::Kvm;
        let terms = Terms {
            guest,
            total: (end, allowed),
            hello: unasked_kvm.then(|| Instant::now() + KVM_PATIENCE),
        };
        let kept = match &keep {
            Some(file) => Some(file.try_clone().map_err(host("the file for the serial line"))?),
            None => None,
        };
        let started_ms = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |time| time.as_millis() as u64);
        let start = Instant::now();
        let on_progress = &mut |progress: &Progress| on_event(Event::Progress(progress));
        let Attempt {
            result,
            said_hello,
            transcript,
            complaints,
        } = attempt::attempt(&qemu.path, &line, terms, kept, (&sender, &receiver), on_progress);
        match result {
            Ok(report) => {
                let launcher = Launcher {
                    name: "qemu".to_string(),
                    version: qemu.version.to_string(),
                    accelerator: accelerator.to_string(),
                    accelerator_reason: decision.reason,
                    host_kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                    vcpus: plan.vcpus(),
                    memory_bytes: plan.memory(),
                    drives: drives.iter().map(LauncherDrive::from).collect(),
                    command: command(&qemu, &line),
                    started_ms,
                    wall_ns: start.elapsed().as_nanos() as u64,
                    guest_text: transcript.text().map(str::to_string).collect(),
                };
                return Ok(Outcome { report, launcher });
            }
            Err(error @ (RunError::Ended { .. } | RunError::Silent)) if unasked_kvm && !said_hello => {
                decision = Decision {
                    accelerator: Accelerator::Tcg,
                    reason: Some(format!("KVM was tried first, but {error}; using TCG")),
                };
                guest += 1;
            }
            Err(error) => {
                return Err(Failed {
                    error: Box::new(error),
                    guest_text: transcript.last_text(15),
                    qemu_text: complaints,
                });
            }
        }
    }
}

impl From<&Drive> for LauncherDrive {
    fn from(drive: &Drive) -> Self {
        Self {
            drive: drive.spec.to_string(),
            bytes: drive.bytes,
            read_only: drive.read_only,
        }
    }
}

fn command(qemu: &Qemu, line: &qemu::CommandLine<'_>) -> Vec<String> {
    let program = qemu.path.as_os_str().to_os_string();
    let words = std::iter::once(&program).chain(&line.arguments);
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The image in memory, as a file without a name.
fn image_file(image: &[u8]) -> io::Result<std::fs::File> {
    let descriptor = rustix::fs::memfd_create("doorpost-guest", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(descriptor);
    file.write_all(image)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;
    use std::process::{Command, Stdio};
    use workload::frame::{Frame, FrameWriter};

    /// A stand-in for QEMU that gives up under KVM; under TCG the guest says that there is no drive.
    fn fake(folder: &std::path::Path) -> PathBuf {
        let program = folder.join("qemu");
        let mut frames = String::new();
        let failure = Failure {
            kind: FailureKind::Run,
            message: "no drive under TCG".to_string(),
        };
        FrameWriter::new().write(&Frame::Failure(failure), &mut frames).unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n--version) echo 'QEMU emulator version 10.0.2';;\n*'-accel kvm'*) echo 'no KVM' >&2; exit 1;;\n\
             *) cat <<'END'\n{frames}END\nexit 5;;\nesac\n"
        );
        // By another process: a descriptor of ours, open for writing in a sibling test's fork, would make the program busy.
        let mut writer = Command::new("install");
        writer
            .args(["-m", "755", "/dev/stdin"])
            .arg(&program)
            .stdin(Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        program
    }

    fn kvm(_: Accel, _: Arch) -> Result<Decision, ForeignKvm> {
        Ok(Decision {
            accelerator: Accelerator::Kvm,
            reason: None,
        })
    }

    #[test]
    fn tcg_takes_over_once_from_a_kvm_that_nobody_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(&[]);
        plan.qemu = Some(fake(folder.path()));
        plan.accel = Accel::Auto;
        let mut events = Vec::new();
        let failed = run_by(&plan, &mut |event| events.push(format!("{event:?}")), kvm).unwrap_err();
        assert_eq!(failed.to_string(), "no drive under TCG");
        assert_eq!(
            events,
            [
                "Starting(Kvm)",
                "Note(\"KVM was tried first, but QEMU gave up with status 1 before the first frame: no KVM; using TCG\")",
                "Starting(Tcg)"
            ]
        );
        // While a demanded KVM fails.
        plan.accel = Accel::Kvm;
        let failed = run_by(&plan, &mut |_| {}, kvm).unwrap_err();
        assert!(
            failed.to_string().ends_with("before the first frame: no KVM"),
            "{failed}"
        );
    }
}
