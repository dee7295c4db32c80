//! Jobs taken together.

use workload::latency::LatencyReport;
use workload::report::{Direction, Job};

use crate::report::figures::sum;
use crate::report::stats::Stats;

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
