//! Jobs taken together.

use workload::job::JobSet;
use workload::latency::LatencyReport;
use workload::report::{Direction, Job, Report};

use crate::report::figures::sum;
use crate::report::stats::Stats;

/// The group of a job: as in fio, each `stonewall` and each `new_group` begins one.
pub fn group_of(set: &JobSet, job: usize) -> u32 {
    let begun = set.jobs.iter().take(job + 1).skip(1);
    begun.filter(|job| job.stonewall || job.new_group).count() as u32
}

/// Job instances that are reported together: the copies of a job, or with `group_reporting` all of a group.
pub struct Block {
    /// The job after which it is named, by its place in the set.
    pub job: usize,
    /// Its group.
    pub group: u32,
    /// The instances.
    pub jobs: Vec<Job>,
}

/// The blocks of a report, in the order of the jobs.
pub fn blocks(report: &Report) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let together = |job: usize| report.arguments.jobs.get(job).is_some_and(|spec| spec.group_reporting);
    for instance in &report.jobs {
        let job = instance.job as usize;
        let group = group_of(&report.arguments, job);
        let same =
            |block: &&mut Block| block.job == job || (block.group == group && together(job) && together(block.job));
        match blocks.iter_mut().find(same) {
            Some(block) => block.jobs.push(instance.clone()),
            None => blocks.push(Block {
                job,
                group,
                jobs: vec![instance.clone()],
            }),
        }
    }
    blocks
}

/// What several instances of a job did in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Together {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Length of the longest measured window, in nanoseconds.
    pub runtime_ns: u64,
    /// Submission latency.
    pub slat: LatencyReport,
    /// Completion latency.
    pub clat: LatencyReport,
    /// Both.
    pub lat: LatencyReport,
    /// Bandwidth in KiB/s.
    pub bw_kib: Stats,
    /// IOPS.
    pub iops: Stats,
}

impl Together {
    /// Adds up one direction of `jobs`.
    pub fn of(jobs: &[Job], direction: impl Fn(&Job) -> &Direction) -> Self {
        let mut together = Self::default();
        for job in jobs {
            let part = direction(job);
            together.ios = together.ios.saturating_add(part.ios);
            together.bytes = together.bytes.saturating_add(part.bytes);
            together.runtime_ns = together.runtime_ns.max(job.runtime_ns);
            together.slat.merge(&part.slat);
            together.clat.merge(&part.clat);
            together.lat.merge(&part.lat);
            together.bw_kib = together.bw_kib.add_rate((&part.bw_kib).into());
            together.iops = together.iops.add_rate((&part.iops).into());
        }
        together
    }
}

/// Adds up a row of counts over jobs.
pub fn rows<const N: usize>(jobs: &[Job], row: impl Fn(&Job) -> [u64; N]) -> [u64; N] {
    std::array::from_fn(|i| sum(jobs.iter().map(|job| row(job)[i])))
}
