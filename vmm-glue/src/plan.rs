//! What to run, and the checks that need no guest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use workload::job::{JobError, JobSet, Size};

use crate::accel::Accel;
use crate::drive::{Drive, DriveSpec};
use crate::guest::Arch;

/// Memory of a guest whose job needs little, in bytes.
pub const DEFAULT_MEMORY: u64 = 256 << 20;
/// The smallest memory that a guest boots with, in bytes.
pub const MIN_MEMORY: u64 = 16 << 20;
/// The most memory that a guest is given without being told to, in bytes.
const MAX_DEFAULT_MEMORY: u64 = 8 << 30;
/// What a guest needs besides its buffers, in bytes; generous.
const BESIDES_BUFFERS: u64 = 64 << 20;
/// CPUs of a guest at most: x2APIC ids above 254 need interrupt remapping.
pub const MAX_VCPUS: u32 = 255;
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
    /// CPUs of the guest; None: one for each job.
    pub vcpus: Option<u32>,
    /// Memory of the guest in bytes; None: [`DEFAULT_MEMORY`], or more where the job's buffers need it.
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
    /// More jobs than CPUs.
    #[error(
        "numjobs={jobs} needs {jobs} CPUs, one for each job, but the guest has {vcpus}; give --vcpus {jobs} or fewer jobs"
    )]
    Jobs {
        /// Jobs wanted.
        jobs: u32,
        /// CPUs of the guest.
        vcpus: u32,
    },
    /// More jobs than a guest can have CPUs.
    #[error("numjobs={0} needs {0} CPUs, one for each job, but a guest has {MAX_VCPUS} at most; give fewer jobs")]
    TooManyJobs(u32),
    /// Too many CPUs, or none.
    #[error("vcpus={0} is not a whole number from 1 to {MAX_VCPUS}")]
    Vcpus(u32),
    /// Blocks of no whole number of sectors.
    #[error("bs={0} is no multiple of 512, the smallest block of an NVMe namespace; give --bs {up}", up = bs_up(*.0))]
    BlockSize(u64),
    /// Less memory than the guest boots with, or a fraction of a MiB.
    #[error("memory={0} bytes is not a whole number of MiB from 16M up; give --memory 16M or more")]
    Memory(u64),
    /// The buffers of the job do not fit.
    #[error(
        "numjobs={jobs} x iodepth={iodepth} x bs={bs} needs {} MiB of buffers, and the guest has {} MiB; lower one of them, or give --memory {}M",
        .buffers >> 20, .memory >> 20, (.buffers >> 20) + 64
    )]
    Buffers {
        /// Copies of the job.
        jobs: u32,
        /// I/Os in flight of each.
        iodepth: u32,
        /// Bytes of each I/O.
        bs: u64,
        /// The product.
        buffers: u64,
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
        "bs={bs} is more than the {area} bytes that the job covers of drive {drive}; give a smaller --bs or a larger --size"
    )]
    NoBlock {
        /// Bytes of a block.
        bs: u64,
        /// Bytes covered.
        area: u64,
        /// The drive.
        drive: String,
    },
}

fn bs_up(bs: u64) -> u64 {
    bs.next_multiple_of(512)
}

impl Plan<'_> {
    /// CPUs of the guest.
    pub fn vcpus(&self) -> u32 {
        self.vcpus.unwrap_or(self.jobs.job.numjobs)
    }

    /// Bytes that all I/Os in flight need.
    fn buffers(&self) -> u64 {
        let job = &self.jobs.job;
        u64::from(job.numjobs) * u64::from(job.iodepth).saturating_mul(job.bs)
    }

    /// Memory of the guest in bytes.
    pub fn memory(&self) -> u64 {
        self.memory.unwrap_or_else(|| {
            let needed = self.buffers().saturating_add(BESIDES_BUFFERS);
            needed
                .clamp(DEFAULT_MEMORY, MAX_DEFAULT_MEMORY)
                .next_multiple_of(1 << 20)
        })
    }

    /// How long the whole run may take.
    pub fn timeout(&self) -> Duration {
        let job = &self.jobs.job;
        self.timeout.unwrap_or_else(|| match job.runtime_us {
            Some(us) => Duration::from_micros(us.saturating_add(job.ramp_time_us)).saturating_add(BESIDES_RUNTIME),
            None => Duration::from_micros(job.ramp_time_us).saturating_add(WITHOUT_RUNTIME),
        })
    }

    /// Checks everything but the drives themselves.
    ///
    /// # Errors
    /// When parts do not fit together; each error names the option and the way out.
    pub fn check(&self) -> Result<(), PlanError> {
        let job = &self.jobs.job;
        self.jobs.check()?;
        if self.drives.is_empty() {
            return Err(PlanError::NoDrive);
        }
        if !job.bs.is_multiple_of(512) {
            return Err(PlanError::BlockSize(job.bs));
        }
        if job.numjobs > MAX_VCPUS {
            return Err(PlanError::TooManyJobs(job.numjobs));
        }
        let vcpus = self.vcpus();
        if job.numjobs > vcpus && vcpus > 0 {
            return Err(PlanError::Jobs {
                jobs: job.numjobs,
                vcpus,
            });
        }
        if vcpus == 0 || vcpus > MAX_VCPUS {
            return Err(PlanError::Vcpus(vcpus));
        }
        let memory = self.memory();
        if memory < MIN_MEMORY || !memory.is_multiple_of(1 << 20) {
            return Err(PlanError::Memory(memory));
        }
        if self.buffers() > memory {
            return Err(PlanError::Buffers {
                jobs: job.numjobs,
                iodepth: job.iodepth,
                bs: job.bs,
                buffers: self.buffers(),
                memory,
            });
        }
        Ok(())
    }

    /// Checks that the job fits into its drives.
    ///
    /// # Errors
    /// When it covers more than a drive holds, or less than a block.
    pub fn check_drives(&self, drives: &[Drive]) -> Result<(), PlanError> {
        let job = &self.jobs.job;
        for drive in drives {
            let area = match job.size {
                Size::Bytes(size) if size > drive.bytes => {
                    return Err(PlanError::Size {
                        size,
                        drive: drive.spec.to_string(),
                        bytes: drive.bytes,
                    });
                }
                Size::Bytes(size) => size,
                Size::Percent(percent) => (u128::from(drive.bytes) * u128::from(percent) / 100) as u64,
            };
            if job.bs > area {
                return Err(PlanError::NoBlock {
                    bs: job.bs,
                    area,
                    drive: drive.spec.to_string(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan for one `null` drive with these job options.
    pub(crate) fn plan(options: &[(&str, &str)]) -> Plan<'static> {
        let mut jobs = JobSet::default();
        for (name, value) in options {
            jobs.set(name, value).unwrap();
        }
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
        assert_eq!(
            refusal(|plan| plan.vcpus = Some(2), &jobs),
            "numjobs=4 needs 4 CPUs, one for each job, but the guest has 2; give --vcpus 4 or fewer jobs"
        );
        assert_eq!(
            refusal(|plan| plan.vcpus = Some(0), &[]),
            "vcpus=0 is not a whole number from 1 to 255"
        );
        assert_eq!(
            refusal(|_| {}, &[("numjobs", "256")]),
            "numjobs=256 needs 256 CPUs, one for each job, but a guest has 255 at most; give fewer jobs"
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
            "numjobs=1 x iodepth=64 x bs=1048576 needs 64 MiB of buffers, and the guest has 32 MiB; lower one of them, or give --memory 128M"
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
            576 << 20
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
