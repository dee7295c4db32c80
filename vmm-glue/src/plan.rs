//! What to run, and the checks that need no guest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use workload::job::{JobError, JobSet, JobSpec, Size};

use crate::accel::Accel;
use crate::drive::{Drive, DriveSpec};
use crate::guest::Arch;
use crate::overwrite::Identity;

/// Memory of a guest whose job needs little, in bytes.
pub const DEFAULT_MEMORY: u64 = 256 << 20;
/// The smallest memory that a guest boots with, in bytes.
pub const MIN_MEMORY: u64 = 16 << 20;
/// The most memory that a guest is given without being told to, in bytes.
const MAX_DEFAULT_MEMORY: u64 = 8 << 30;
/// The most memory that q35 gives in one piece, in bytes: with more, 2 GiB lie below 4 GiB and the rest above. A job's buffers
/// are one piece.
const ONE_PIECE: u64 = 2816 << 20;
/// What lies below 4 GiB then, in bytes.
const LOWER_PIECE: u64 = 2 << 30;
/// What a guest needs besides its I/Os, in bytes; generous.
const BESIDES_IOS: u64 = 16 << 20;
/// How far below the estimate a guest may be told to go: the estimate is that generous.
const GENEROSITY: u64 = 8 << 20;
/// What a copy of a job keeps of its latencies, in bytes; so many are in [`BESIDES_IOS`].
const HISTOGRAMS: u64 = 96 << 10;
const COPIES_INCLUDED: u64 = 32;
/// What an I/O needs besides its buffer on each drive, in bytes: entries of both queues, a list of pages, what is kept of it.
const BESIDES_BUFFER: u64 = 600;
/// Controllers of a guest at most: q35's root bus has 32 slots, and keeps the first and the last for its bridges.
pub const MAX_DRIVES: usize = 30;
/// CPUs of a guest at most: x2APIC ids above 254 need interrupt remapping.
pub const MAX_VCPUS: u32 = 255;
/// CPUs of a guest that is not told how many, at most: further copies of a job share them.
const DEFAULT_MAX_VCPUS: u32 = 64;
/// What a run may take besides the job's own time.
const BESIDES_RUNTIME: Duration = Duration::from_secs(60);
/// What a run may take whose job names no time.
const WITHOUT_RUNTIME: Duration = Duration::from_secs(300);

/// One run.
#[derive(Debug)]
pub struct Plan<'a> {
    /// What the guest does.
    pub jobs: JobSet,
    /// The guest's architecture.
    pub arch: Arch,
    /// The guest: an ELF image that QEMU can boot.
    pub image: &'a [u8],
    /// CPUs of the guest; None: one for each copy of a job that runs at the same time, up to 64.
    pub vcpus: Option<u32>,
    /// Memory of the guest in bytes; None: [`DEFAULT_MEMORY`], or more where the job's I/Os need it.
    pub memory: Option<u64>,
    /// What runs the guest's code.
    pub accel: Accel,
    /// What stands behind the NVMe controllers, one each.
    pub drives: Vec<DriveSpec>,
    /// QEMU's program; None: the one in PATH.
    pub qemu: Option<PathBuf>,
    /// Further arguments for QEMU, as they are.
    pub qemu_args: Vec<OsString>,
    /// Where to keep the bytes of the serial line.
    pub keep_serial: Option<PathBuf>,
    /// How long the whole run may take; None: the job's own time and a minute, or five minutes for a job without one.
    pub timeout: Option<Duration>,
}

/// The parts of a plan do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The job's own options contradict each other.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Nothing to drive.
    #[error("no drive is given; add --drive FILE, --drive null or --drive scratch")]
    NoDrive,
    /// More controllers than the machine has slots for.
    #[error(
        "{0} drives are given, but the machine has slots for {MAX_DRIVES} controllers; give --drive {MAX_DRIVES} times at most"
    )]
    TooManyDrives(usize),
    /// Writing one file would destroy another.
    #[error("{file} is the same file as {other}, and would overwrite it; give another file")]
    SameFile {
        /// The file that would be written, with its option.
        file: String,
        /// What it would destroy, with its option.
        other: String,
    },
    /// Too many CPUs, or none.
    #[error("vcpus={0} is not a whole number from 1 to {MAX_VCPUS}")]
    Vcpus(u32),
    /// Blocks of no whole number of sectors.
    #[error("bs={0} is no multiple of 512, the smallest block of an NVMe namespace; give --bs {up}", up = bs_up(*.0))]
    BlockSize(u64),
    /// Less memory than the guest boots with, or a fraction of a MiB.
    #[error("memory={0} bytes is not a whole number of MiB from 16M up; give --memory 16M or more")]
    Memory(u64),
    /// The jobs' I/Os do not fit.
    #[error(
        "{what} about {needed} MiB, and the guest has {} MiB; lower one of them, or give --memory {}M",
        .memory >> 20, in_one_piece(*.needed) >> 20, needed = .needed.div_ceil(1 << 20)
    )]
    TooLittleMemory {
        /// What needs so much.
        what: String,
        /// What the guest needs, in bytes.
        needed: u64,
        /// Memory of the guest.
        memory: u64,
    },
    /// The job covers more than there is.
    #[error("size={size} is beyond drive {drive}, which holds {bytes} bytes; give --size {bytes} or less")]
    Size {
        /// Bytes that the job covers.
        size: u64,
        /// The drive.
        drive: String,
        /// Bytes in it.
        bytes: u64,
    },
    /// Not a single block fits.
    #[error(
        "bs={bs} is more than the {area} bytes that the job covers of drive {drive}; give a smaller --bs or a larger {}",
        if *.whole { "drive" } else { "--size" }
    )]
    NoBlock {
        /// Bytes of a block.
        bs: u64,
        /// Bytes covered.
        area: u64,
        /// Which are all that the drive has.
        whole: bool,
        /// The drive.
        drive: String,
    },
}

fn bs_up(bs: u64) -> u64 {
    bs.next_multiple_of(512)
}

/// How much memory, in whole MiB, has room for so many bytes on one side of the hole below 4 GiB.
fn in_one_piece(needed: u64) -> u64 {
    let memory = match needed {
        0..=ONE_PIECE => needed,
        _ => needed.saturating_add(LOWER_PIECE),
    };
    memory.checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
}

impl Plan<'_> {
    /// CPUs of the guest.
    pub fn vcpus(&self) -> u32 {
        let copies = u32::try_from(self.jobs.widest()).unwrap_or(u32::MAX);
        let allowed = self.jobs.jobs.iter().flat_map(|job| &job.cpus_allowed).max();
        let named = allowed.map_or(0, |last| u32::from(*last) + 1);
        self.vcpus.unwrap_or_else(|| copies.min(DEFAULT_MAX_VCPUS).max(named))
    }

    /// Queue pairs that each controller is asked for, at most.
    pub fn queue_pairs(&self) -> u32 {
        self.vcpus().saturating_mul(self.jobs.run.queues_per_cpu as u32)
    }

    /// About how many bytes of memory the guest needs.
    fn needed_memory(&self) -> u64 {
        let of_job = |job: &JobSpec| {
            // Buffers are whole pages.
            let buffer = job.bs.max(1).checked_next_multiple_of(4096).unwrap_or(u64::MAX);
            let io = buffer.saturating_add(self.drives.len() as u64 * BESIDES_BUFFER);
            (job.numjobs * job.iodepth).saturating_mul(io)
        };
        let ios = self.jobs.jobs.iter().map(of_job).fold(0, u64::saturating_add);
        let copies = self.jobs.instances().saturating_sub(COPIES_INCLUDED);
        ios.saturating_add(BESIDES_IOS + copies * HISTOGRAMS)
    }

    /// Memory of the guest in bytes.
    pub fn memory(&self) -> u64 {
        self.memory
            .unwrap_or_else(|| in_one_piece(self.needed_memory()).clamp(DEFAULT_MEMORY, MAX_DEFAULT_MEMORY))
    }

    /// How long the whole run may take.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| match self.jobs.longest_us() {
            Some(us) => Duration::from_micros(us).saturating_add(BESIDES_RUNTIME),
            None => {
                let delays = self
                    .jobs
                    .jobs
                    .iter()
                    .map(JobSpec::delay_us)
                    .fold(0, u64::saturating_add);
                Duration::from_micros(delays).saturating_add(WITHOUT_RUNTIME)
            }
        })
    }

    /// Checks everything but the drives themselves.
    ///
    /// # Errors
    /// When parts do not fit together; each error names the option and the way out.
    pub fn check(&self) -> Result<(), PlanError> {
        self.jobs.check()?;
        if self.drives.is_empty() {
            return Err(PlanError::NoDrive);
        }
        if self.drives.len() > MAX_DRIVES {
            return Err(PlanError::TooManyDrives(self.drives.len()));
        }
        if let Some(job) = self.jobs.jobs.iter().find(|job| !job.bs.is_multiple_of(512)) {
            return Err(PlanError::BlockSize(job.bs));
        }
        let vcpus = self.vcpus();
        if vcpus == 0 || vcpus > MAX_VCPUS {
            return Err(PlanError::Vcpus(vcpus));
        }
        let memory = self.memory();
        if memory < MIN_MEMORY || !memory.is_multiple_of(1 << 20) {
            return Err(PlanError::Memory(memory));
        }
        let needed = self.needed_memory();
        if memory < needed.saturating_sub(GENEROSITY) {
            return Err(PlanError::TooLittleMemory {
                what: match &self.jobs.jobs[..] {
                    [job] => format!(
                        "numjobs={} x iodepth={} x bs={} needs",
                        job.numjobs, job.iodepth, job.bs
                    ),
                    _ => "numjobs x iodepth x bs of all jobs together need".to_string(),
                },
                needed,
                memory,
            });
        }
        Ok(())
    }

    /// Checks that no file that is written is a drive or another such file, by whatever links. `others` are files that the
    /// caller writes, each with its option.
    ///
    /// # Errors
    /// [`PlanError::SameFile`].
    pub fn check_files(&self, others: &[(&str, &Path)]) -> Result<(), PlanError> {
        let keep = self.keep_serial.as_deref().map(|path| ("--keep-serial", path));
        let drives = self.drives.iter().filter_map(|drive| match drive {
            DriveSpec::File(path) => Some(("--drive", path.as_path())),
            DriveSpec::Null(_) | DriveSpec::Scratch(_) => None,
        });
        let written: Vec<_> = others.iter().copied().chain(keep).collect();
        let all: Vec<_> = written.iter().copied().chain(drives).collect();
        let name = |(option, path): &(&str, &Path)| format!("{option} {}", path.display());
        for (at, file) in written.iter().enumerate() {
            let Some(identity) = Identity::of(file.1) else { continue };
            let mut behind = all[at + 1..].iter();
            if let Some(other) = behind.find(|other| Identity::of(other.1).as_ref() == Some(&identity)) {
                return Err(PlanError::SameFile {
                    file: name(file),
                    other: name(other),
                });
            }
        }
        Ok(())
    }

    /// Checks that the job fits into its drives.
    ///
    /// # Errors
    /// When it covers more than a drive holds, or less than a block.
    pub fn check_drives(&self, drives: &[Drive]) -> Result<(), PlanError> {
        for job in &self.jobs.jobs {
            // The guest finds controllers in the order of their drives.
            drives
                .iter()
                .enumerate()
                .filter(|(number, _)| job.uses(&format!("nvme{number}n1")))
                .try_for_each(|(_, drive)| check_drive(job, drive))?;
        }
        Ok(())
    }
}

fn check_drive(job: &JobSpec, drive: &Drive) -> Result<(), PlanError> {
    let area = match job.size {
        Size::Bytes(size) if size > drive.bytes => {
            return Err(PlanError::Size {
                size,
                drive: drive.spec.to_string(),
                bytes: drive.bytes,
            });
        }
        size => size.of(drive.bytes),
    };
    if job.bs > area {
        return Err(PlanError::NoBlock {
            bs: job.bs,
            area,
            whole: area == drive.bytes,
            drive: drive.spec.to_string(),
        });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan for one `null` drive with these job options.
    pub(crate) fn plan(options: &[(&str, &str)]) -> Plan<'static> {
        let words: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let jobs = JobSet::read(&words.join(" ")).unwrap();
        Plan {
            jobs,
            arch: Arch::X86_64,
            image: b"image",
            vcpus: None,
            memory: None,
            accel: Accel::Tcg,
            drives: vec![DriveSpec::Null(1 << 20)],
            qemu: None,
            qemu_args: Vec::new(),
            keep_serial: None,
            timeout: None,
        }
    }

    fn refusal(change: impl FnOnce(&mut Plan<'static>), options: &[(&str, &str)]) -> String {
        let mut plan = plan(options);
        change(&mut plan);
        plan.check().unwrap_err().to_string()
    }

    #[test]
    fn one_cpu_for_each_job() {
        let jobs = [("numjobs", "4")];
        assert_eq!(plan(&jobs).vcpus(), 4);
        assert_eq!(plan(&jobs).check(), Ok(()));
        let mut fewer = plan(&jobs);
        fewer.vcpus = Some(2);
        assert_eq!(fewer.check(), Ok(()));
        assert_eq!(plan(&[("numjobs", "600")]).vcpus(), 64);
        assert_eq!(plan(&[("numjobs", "600"), ("cpus_allowed", "0-99")]).vcpus(), 100);
        let phases = plan(&[
            ("numjobs", "3"),
            ("name", "a"),
            ("stonewall", "1"),
            ("name", "b"),
            ("stonewall", "1"),
        ]);
        assert_eq!((phases.vcpus(), phases.jobs.instances()), (3, 6));
        assert_eq!(
            refusal(|plan| plan.vcpus = Some(0), &[]),
            "vcpus=0 is not a whole number from 1 to 255"
        );
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(
            refusal(|plan| plan.drives.clear(), &[]),
            "no drive is given; add --drive FILE, --drive null or --drive scratch"
        );
        assert_eq!(
            refusal(|_| {}, &[("bs", "1000")]),
            "bs=1000 is no multiple of 512, the smallest block of an NVMe namespace; give --bs 1024"
        );
        assert!(refusal(|_| {}, &[("rw", "randwrite")]).contains("--allow-write"));
        assert!(refusal(|plan| plan.memory = Some(8 << 20), &[]).contains("memory=8388608"));
        assert!(refusal(|plan| plan.memory = Some((16 << 20) + 1), &[]).contains("whole number of MiB"));
        assert_eq!(
            refusal(|plan| plan.memory = Some(32 << 20), &[("bs", "1m"), ("iodepth", "64")]),
            "numjobs=1 x iodepth=64 x bs=1048576 needs about 81 MiB, and the guest has 32 MiB; lower one of them, or give --memory 81M"
        );
        assert!(
            refusal(|_| {}, &[("bs", "1g"), ("iodepth", "65535"), ("numjobs", "255")])
                .contains("and the guest has 8192 MiB")
        );
    }

    #[test]
    fn memory_grows_with_the_buffers() {
        assert_eq!(plan(&[]).memory(), 256 << 20);
        assert_eq!(
            plan(&[("bs", "1m"), ("iodepth", "256"), ("numjobs", "2")]).memory(),
            529 << 20
        );
        // Beyond q35's largest piece the buffers go above 4 GiB.
        assert_eq!(
            plan(&[("bs", "1m"), ("iodepth", "3000")]).memory(),
            (3000 + 16 + 2 + 2048) << 20
        );
        // Each drive has lists of pages and queue entries for each I/O.
        let deep = [("bs", "512"), ("iodepth", "65535"), ("numjobs", "2")];
        let mut plan = plan(&deep);
        assert_eq!(
            plan.memory(),
            (2 * 65_535 * (4096 + 600) + (16u64 << 20)).next_multiple_of(1 << 20)
        );
        plan.drives = vec![DriveSpec::Null(1 << 20); 4];
        assert_eq!(
            plan.memory(),
            (2 * 65_535 * (4096 + 2400) + (16u64 << 20)).next_multiple_of(1 << 20)
        );
    }

    #[test]
    fn memory_that_is_plainly_too_small_is_refused_and_the_advice_is_taken() {
        let small = [("iodepth", "32"), ("numjobs", "2")];
        let mut tight = plan(&small);
        tight.memory = Some(16 << 20);
        assert_eq!(tight.check(), Ok(()));
        let mut plan = plan(&[("bs", "64k"), ("iodepth", "128"), ("numjobs", "2")]);
        plan.memory = Some(25 << 20);
        assert_eq!(plan.check(), Ok(()));
        plan.memory = Some(16 << 20);
        let error = plan.check().unwrap_err().to_string();
        assert!(
            error.ends_with("needs about 33 MiB, and the guest has 16 MiB; lower one of them, or give --memory 33M"),
            "{error}"
        );
        plan.memory = Some(33 << 20);
        assert_eq!(plan.check(), Ok(()));
    }

    #[test]
    fn a_machine_has_thirty_slots() {
        let mut plan = plan(&[]);
        plan.drives = vec![DriveSpec::Null(1 << 20); 30];
        assert_eq!(plan.check(), Ok(()));
        plan.drives.push(DriveSpec::Null(1 << 20));
        assert_eq!(
            plan.check().unwrap_err().to_string(),
            "31 drives are given, but the machine has slots for 30 controllers; give --drive 30 times at most"
        );
    }

    #[test]
    fn nothing_that_is_written_is_a_drive() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("disk"), "").unwrap();
        std::os::unix::fs::symlink("disk", at("link")).unwrap();
        let mut plan = plan(&[]);
        plan.drives = vec![DriveSpec::Null(1 << 20), DriveSpec::File(at("disk"))];
        plan.keep_serial = Some(at("serial"));
        assert_eq!(plan.check_files(&[("--output", &at("report"))]), Ok(()));
        let same = |file: String, other: String| Err(PlanError::SameFile { file, other });
        let name = |option: &str, file: &str| format!("{option} {}", at(file).display());
        assert_eq!(
            plan.check_files(&[("--output", &at("link"))]),
            same(name("--output", "link"), name("--drive", "disk"))
        );
        assert_eq!(
            plan.check_files(&[("--output", &at("serial"))]),
            same(name("--output", "serial"), name("--keep-serial", "serial"))
        );
        plan.keep_serial = Some(at("link"));
        assert_eq!(
            plan.check_files(&[]),
            same(name("--keep-serial", "link"), name("--drive", "disk"))
        );
    }

    #[test]
    fn the_job_fits_into_its_drives() {
        let drives = || vec![Drive::open(DriveSpec::Null(1 << 20), false).unwrap()];
        let error = |options: &[(&str, &str)]| plan(options).check_drives(&drives()).unwrap_err().to_string();
        assert_eq!(plan(&[("size", "1m")]).check_drives(&drives()), Ok(()));
        assert_eq!(
            error(&[("size", "2m")]),
            "size=2097152 is beyond drive null:1048576, which holds 1048576 bytes; give --size 1048576 or less"
        );
        assert_eq!(
            error(&[("bs", "64k"), ("size", "1%")]),
            "bs=65536 is more than the 10485 bytes that the job covers of drive null:1048576; give a smaller --bs or a larger --size"
        );
        assert!(error(&[("bs", "2m")]).ends_with("of drive null:1048576; give a smaller --bs or a larger drive"));
    }

    #[test]
    fn time_limits() {
        assert_eq!(plan(&[]).timeout(), Duration::from_secs(300));
        assert_eq!(
            plan(&[("runtime", "5"), ("ramp_time", "500ms")]).timeout(),
            Duration::from_millis(65_500)
        );
        assert!(
            plan(&[("runtime", "18446744073709551615us"), ("ramp_time", "1")]).timeout() > Duration::from_secs(1 << 40)
        );
    }
}
