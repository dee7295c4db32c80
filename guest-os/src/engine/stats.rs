//! What a job measures.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

use workload::latency::{Histogram, Summary};
use workload::report::{Direction, ErrorCount, Miscompare};

/// Reads, or writes, of a job.
#[derive(Default)]
pub struct Stats {
    /// I/Os completed, failed ones included.
    pub ios: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// From the look at the clock before the command was written to its doorbell.
    pub slat: Histogram,
    /// From the doorbell to the completion being taken.
    pub clat: Histogram,
    /// The sum of both.
    pub lat: Histogram,
    bw_kib: Summary,
    iops: Summary,
    /// Totals at the last sample.
    sampled: (u64, u64),
}

impl Stats {
    /// One I/O that took `clat` and `lat` nanoseconds, and moved `bytes` bytes.
    #[inline]
    pub fn complete(&mut self, clat: u64, lat: u64, bytes: u64) {
        self.ios += 1;
        self.bytes += bytes;
        self.clat.record(clat, 1);
        self.lat.record(lat, 1);
    }

    /// Bandwidth and IOPS since the last sample, `nanoseconds` ago.
    pub fn sample(&mut self, nanoseconds: u64) {
        let rate = |count: u64| (u128::from(count) * 1_000_000_000 / u128::from(nanoseconds.max(1))) as u64;
        let (ios, bytes) = (self.ios - self.sampled.0, self.bytes - self.sampled.1);
        self.sampled = (self.ios, self.bytes);
        if self.ios > 0 {
            self.iops.record(rate(ios), 1);
            self.bw_kib.record(rate(bytes) / 1024, 1);
        }
    }

    /// Forgets everything: the ramp is over.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The form that travels.
    pub fn report(&self) -> Direction {
        Direction {
            ios: self.ios,
            bytes: self.bytes,
            slat: self.slat.report(),
            clat: self.clat.report(),
            lat: self.lat.report(),
            bw_kib: self.bw_kib,
            iops: self.iops,
        }
    }
}

/// The row of fio's table of depths (1, 2, 4, … 64 and more) that `depth` belongs to.
#[inline]
pub const fn depth_row(depth: usize) -> usize {
    let log = (usize::BITS - 1 - (depth | 1).leading_zeros()) as usize;
    if log < 6 { log } else { 6 }
}

/// The row of fio's tables of batches (0, 4, 8, 16, 32, 64, more) that a batch of `count` belongs to: the first not below it.
#[inline]
pub const fn batch_row(count: usize) -> usize {
    match count {
        0 => 0,
        1..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        17..=32 => 4,
        33..=64 => 5,
        _ => 6,
    }
}

/// What went wrong without ending the job.
#[derive(Default)]
pub struct Failures {
    /// By namespace and status.
    pub errors: Vec<ErrorCount>,
    /// Blocks compared with their pattern.
    pub verified_blocks: u64,
    /// Blocks that differed.
    pub miscompares: u64,
    /// The first of them.
    pub first_miscompare: Option<Miscompare>,
}

impl Failures {
    /// Counts a command that failed.
    #[cold]
    pub fn status(&mut self, namespace: &str, status: nvme::Status) {
        let code = u16::from(status.sct()) << 8 | u16::from(status.sc());
        self.count(namespace, code, &status);
    }

    /// Counts a command of which nobody knows whether it was executed.
    #[cold]
    pub fn lost(&mut self, namespace: &str) {
        self.count(namespace, 0, &"cut off by a controller reset");
    }

    fn count(&mut self, namespace: &str, code: u16, status: &dyn fmt::Display) {
        match self
            .errors
            .iter_mut()
            .find(|e| e.namespace == namespace && e.code == code)
        {
            Some(error) => error.count += 1,
            None => self.errors.push(ErrorCount {
                namespace: namespace.to_string(),
                status: status.to_string(),
                code,
                count: 1,
            }),
        }
    }
}
