//! Finds QEMU and writes its command line.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::accel::Accelerator;
use crate::child::Child;
use crate::drive::{Backing, Drive};
use crate::guest::Arch;
use crate::plan::Plan;

/// How long `--version` may take, if the whole run may.
const PATIENCE: Duration = Duration::from_secs(20);
/// I/O queue pairs of a controller unless more are needed; QEMU's own default.
const QUEUE_PAIRS: u32 = 64;
/// Largest transfer of a controller unless more is needed, as a power of two in pages of 4 KiB; QEMU's own default.
const MDTS: u32 = 7;
/// Entries of the largest MSI-X table.
const MAX_VECTORS: u32 = 2048;

/// A QEMU that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// Its program.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
}

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// There is no QEMU that would do.
#[derive(Debug, Error)]
pub enum QemuError {
    /// Not in PATH.
    #[error(
        "{program} is not in PATH; install it with `cargo xtask setup` (on Debian: apt install {package}), or give --qemu PATH"
    )]
    Missing {
        /// The program.
        program: &'static str,
        /// Debian's package of it.
        package: &'static str,
    },
    /// It does not start.
    #[error("{path} cannot be started: {error}; give the path of a QEMU system emulator to --qemu", path = path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// It does not answer.
    #[error(
        "{path} --version did not end within {} s and is stopped; give the path of a QEMU system emulator to --qemu{}",
        .after.as_secs_f64(),
        if *.after < PATIENCE { ", or a longer --timeout" } else { "" },
        path = path.display()
    )]
    Hung {
        /// The program.
        path: PathBuf,
        /// How long it was waited for.
        after: Duration,
    },
    /// It is something else.
    #[error("{path} does not say `QEMU emulator version`: {answer}; give the path of a QEMU system emulator to --qemu", path = path.display())]
    Stranger {
        /// The program.
        path: PathBuf,
        /// What it said instead.
        answer: String,
    },
    /// Too old for the guest under TCG.
    #[error(
        "{path} is QEMU {version}, and its TCG has no x2APIC, which the guest needs; install QEMU {MIN_TCG} or later with `cargo xtask setup`",
        path = path.display()
    )]
    Old {
        /// The program.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
}

/// The first QEMU whose TCG has an x2APIC.
const MIN_TCG: Version = Version(9, 0, 0);

const fn program(arch: Arch) -> (&'static str, &'static str) {
    match arch {
        Arch::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
    }
}

impl Qemu {
    /// Finds QEMU in PATH, or takes the program given, and asks for its version, for `patience` at most.
    ///
    /// # Errors
    /// When there is none, or the program given is none.
    pub fn find(arch: Arch, given: Option<&Path>, patience: Duration) -> Result<Self, QemuError> {
        let path = match given {
            Some(path) => path.to_path_buf(),
            None => {
                let (program, package) = program(arch);
                in_path(program).ok_or(QemuError::Missing { program, package })?
            }
        };
        let patience = patience.min(PATIENCE);
        let answer = match first_words(&path, patience) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(QemuError::Hung { path, after: patience }),
            Err(error) => return Err(QemuError::Start { path, error }),
        };
        match version(&answer) {
            Some(version) => Ok(Self { path, version }),
            None => {
                let answer = answer
                    .lines()
                    .next()
                    .unwrap_or("it says nothing")
                    .chars()
                    .take(80)
                    .collect();
                Err(QemuError::Stranger { path, answer })
            }
        }
    }

    /// Checks that this QEMU can run the guest by `accelerator`.
    ///
    /// # Errors
    /// [`QemuError::Old`].
    pub fn check(&self, accelerator: Accelerator) -> Result<(), QemuError> {
        if accelerator == Accelerator::Tcg && self.version < MIN_TCG {
            return Err(QemuError::Old {
                path: self.path.clone(),
                version: self.version,
            });
        }
        Ok(())
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file();
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(is_program)
}

/// The beginning of what a program answers to `--version`; None if it does not end its answer in time.
fn first_words(path: &Path, patience: Duration) -> io::Result<Option<String>> {
    let mut command = Command::new(path);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = Child::spawn(command, &[])?;
    let output = child.pipes().stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(4096).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    });
    receiver.recv_timeout(patience).ok().transpose()
}

/// Reads `QEMU emulator version 10.0.2 (…)`.
fn version(answer: &str) -> Option<Version> {
    let rest = answer.split_once("QEMU emulator version ")?.1;
    let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut parts = number.split('.').map(|part| part.parse().ok());
    let major = parts.next()??;
    let mut next = || parts.next().flatten().unwrap_or(0);
    Some(Version(major, next(), next()))
}

/// A command line for QEMU, and the descriptors that it inherits.
#[derive(Debug)]
pub struct CommandLine<'a> {
    /// Arguments, without the program.
    pub arguments: Vec<OsString>,
    /// Descriptors that QEMU needs under the same numbers.
    pub inherited: Vec<BorrowedFd<'a>>,
}

/// Writes the command line of a run. `image` is a file that holds the guest; QEMU reads image and drives by descriptors that
/// it inherits, so that no file needs a name.
pub fn command_line<'a>(
    plan: &Plan<'_>,
    drives: &'a [Drive],
    accelerator: Accelerator,
    image: BorrowedFd<'a>,
) -> CommandLine<'a> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut inherited = vec![image];
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    match plan.arch {
        Arch::X86_64 => {
            let (accel, cpu) = match accelerator {
                Accelerator::Tcg => ("tcg,thread=multi", "max"),
                // Some hosts' KVM refuses the register behind this feature, and the guest has no use for it.
                Accelerator::Kvm => ("kvm", "host,-arch-capabilities"),
            };
            add(&["-M", "q35", "-accel", accel, "-cpu", cpu]);
            add(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        }
    }
    add(&[
        "-smp",
        &plan.vcpus().to_string(),
        "-m",
        &format!("{}M", plan.memory() >> 20),
    ]);
    add(&["-kernel", &format!("/proc/self/fd/{}", image.as_raw_fd())]);
    add(&["-append", &plan.jobs.to_arguments()]);
    add(&["-chardev", "stdio,id=serial,signal=off", "-serial", "chardev:serial"]);
    let device_options = device_options(plan);
    for (number, drive) in drives.iter().enumerate() {
        let node = format!("node-name=d{number}");
        let by_descriptor = |driver: &str, file: BorrowedFd<'a>| {
            let descriptor = file.as_raw_fd();
            let read_only = if drive.read_only { "on" } else { "off" };
            (
                Some((file, format!("fd={descriptor},set={descriptor}"))),
                format!("driver={driver},{node},filename=/dev/fdset/{descriptor},read-only={read_only}"),
            )
        };
        let (descriptor, block) = match &drive.backing {
            // With zeros read back, what a guest sees is defined.
            Backing::Null => (
                None,
                format!("driver=null-co,{node},size={},read-zeroes=on", drive.bytes),
            ),
            Backing::File(file) => by_descriptor("file", file.as_fd()),
            Backing::BlockDevice(file) => by_descriptor("host_device", file.as_fd()),
        };
        if let Some((file, set)) = descriptor {
            inherited.push(file);
            add(&["-add-fd", &set]);
        }
        add(&["-blockdev", &block]);
        add(&[
            "-device",
            &format!("nvme,serial=doorpost{number},drive=d{number}{device_options}"),
        ]);
    }
    arguments.extend(plan.qemu_args.iter().cloned());
    CommandLine { arguments, inherited }
}

/// What a controller needs beyond QEMU's defaults, so that the job fits it.
fn device_options(plan: &Plan<'_>) -> String {
    let mut options = String::new();
    let pairs = plan.queue_pairs();
    if pairs > QUEUE_PAIRS {
        options += &format!(",max_ioqpairs={pairs},msix_qsize={}", (pairs + 1).min(MAX_VECTORS));
    }
    // The largest transfer is a power of two in pages of 4 KiB.
    let mdts = plan
        .jobs
        .max_block()
        .div_ceil(4096)
        .next_power_of_two()
        .trailing_zeros();
    if mdts > MDTS {
        options += &format!(",mdts={mdts}");
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::DriveSpec;
    use crate::plan::tests::plan;

    fn words(plan: &Plan<'_>, drives: &[Drive], accelerator: Accelerator) -> (String, usize) {
        let image = tempfile::tempfile().unwrap();
        let line = command_line(plan, drives, accelerator, image.as_fd());
        let text: Vec<_> = line.arguments.iter().map(|word| word.to_string_lossy()).collect();
        let text = text
            .join(" ")
            .replace(&format!("/fd/{}", image.as_raw_fd()), "/fd/IMAGE");
        (text, line.inherited.len())
    }

    #[test]
    fn a_whole_command_line() {
        let mut plan = plan(&[("rw", "randread"), ("numjobs", "2")]);
        plan.qemu_args = vec!["-global".into(), "nvme.mdts=1".into()];
        let drives = [Drive::open(DriveSpec::Null(8 << 30), false).unwrap()];
        let (text, inherited) = words(&plan, &drives, Accelerator::Tcg);
        assert_eq!(
            text,
            "-nodefaults -no-user-config -display none -no-reboot -M q35 -accel tcg,thread=multi -cpu max \
             -device isa-debug-exit,iobase=0xf4,iosize=4 -smp 2 -m 256M -kernel /proc/self/fd/IMAGE \
             -append name=job rw=randread numjobs=2 \
             -chardev stdio,id=serial,signal=off -serial chardev:serial \
             -blockdev driver=null-co,node-name=d0,size=8589934592,read-zeroes=on -device nvme,serial=doorpost0,drive=d0 \
             -global nvme.mdts=1"
        );
        assert_eq!(inherited, 1);
        assert!(
            words(&plan, &drives, Accelerator::Kvm)
                .0
                .contains("-accel kvm -cpu host,-arch-capabilities")
        );
    }

    #[test]
    fn files_go_by_descriptor_and_read_only_unless_writes_are_allowed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        for allowed in [false, true] {
            let spec = DriveSpec::File(file.path().to_path_buf());
            let drives = [
                Drive::open(spec, allowed).unwrap(),
                Drive::open(DriveSpec::Scratch(1 << 20), allowed).unwrap(),
            ];
            let (text, inherited) = words(&plan(&[]), &drives, Accelerator::Tcg);
            assert!(!text.contains(&*file.path().to_string_lossy()));
            let Backing::File(opened) = &drives[0].backing else {
                panic!("a file")
            };
            let number = opened.as_raw_fd();
            let read_only = if allowed { "off" } else { "on" };
            assert!(text.contains(&format!(
                "-add-fd fd={number},set={number} -blockdev driver=file,node-name=d0,filename=/dev/fdset/{number},read-only={read_only}"
            )));
            assert!(text.contains("-device nvme,serial=doorpost1,drive=d1"));
            assert_eq!(inherited, 3);
        }
    }

    #[test]
    fn many_cpus_need_many_queues() {
        let mut plan = plan(&[("numjobs", "80")]);
        plan.vcpus = Some(80);
        let drives = [Drive::open(DriveSpec::Null(8 << 30), false).unwrap()];
        assert!(
            words(&plan, &drives, Accelerator::Tcg)
                .0
                .contains("drive=d0,max_ioqpairs=80,msix_qsize=81")
        );
        plan.vcpus = Some(100);
        assert!(
            words(&plan, &drives, Accelerator::Tcg)
                .0
                .contains(",max_ioqpairs=100,msix_qsize=101")
        );
    }

    #[test]
    fn large_blocks_need_large_transfers() {
        let drives = [Drive::open(DriveSpec::Null(8 << 30), false).unwrap()];
        let line = |bs: &str| words(&plan(&[("bs", bs)]), &drives, Accelerator::Tcg).0;
        assert!(!line("512k").contains("mdts"));
        assert!(line("1m").ends_with("drive=d0,mdts=8") && line("1537k").ends_with("drive=d0,mdts=9"));
    }

    #[test]
    fn versions() {
        assert_eq!(
            version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright"),
            Some(Version(10, 0, 2))
        );
        assert_eq!(version("QEMU emulator version 9.1"), Some(Version(9, 1, 0)));
        assert_eq!(version("QEMU emulator version 10.1.50-dirty"), Some(Version(10, 1, 50)));
        assert_eq!(version("cat (GNU coreutils) 9.1"), None);
        let old = Qemu {
            path: "/usr/bin/q".into(),
            version: Version(7, 2, 15),
        };
        assert!(old.check(Accelerator::Kvm).is_ok());
        let error = old.check(Accelerator::Tcg).unwrap_err().to_string();
        assert!(
            error.starts_with("/usr/bin/q is QEMU 7.2.15, and its TCG has no x2APIC"),
            "{error}"
        );
        assert!(
            error.contains("install QEMU 9.0.0 or later with `cargo xtask setup`"),
            "{error}"
        );
    }

    #[test]
    fn a_stranger_is_no_qemu() {
        let error = Qemu::find(Arch::X86_64, Some(Path::new("/bin/cat")), PATIENCE)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/bin/cat does not say `QEMU emulator version`: "),
            "{error}"
        );
        let error = Qemu::find(Arch::X86_64, Some(Path::new("/no/such")), PATIENCE)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/no/such cannot be started: No such file"), "{error}");
    }
}
