//! Reports: text as fio writes it, and JSON with fio's keys, each with doorpost's own part.

pub mod figures;
mod group;
pub mod json;
mod latency;
#[cfg(test)]
pub mod sample;
mod stats;
mod tables;
pub mod text;

use serde::{Deserialize, Serialize};
use vmm_glue::run::Launcher;
use workload::report::{Job, Report};

use crate::report::figures::{plural, sum};

/// A run: what the guest measured, and what the host knows, unless only the guest's half was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The guest's half.
    pub report: Report,
    /// The host's half.
    pub launcher: Option<Launcher>,
}

impl Run {
    /// Sums over the whole run.
    pub fn totals(&self) -> Totals {
        let jobs = &self.report.jobs;
        let failures = Failures::of(jobs);
        let reads = sum(jobs.iter().map(|job| job.read.ios));
        let writes = sum(jobs.iter().map(|job| job.write.ios));
        let interrupts = sum(self.report.cpus.iter().map(|cpu| cpu.interrupts));
        let ios = reads.saturating_add(writes);
        Totals {
            reads,
            writes,
            read_bytes: sum(jobs.iter().map(|job| job.read.bytes)),
            written_bytes: sum(jobs.iter().map(|job| job.write.bytes)),
            failed: failures.failed,
            miscompares: failures.miscompares,
            errors: self.report.errors(),
            interrupts,
            interrupts_per_io: (ios > 0).then(|| interrupts as f64 / ios as f64),
        }
    }

    /// What went wrong on the devices, if anything, in a few words.
    pub fn complaint(&self) -> Option<String> {
        Failures::of(&self.report.jobs).complaint()
    }
}

/// What went wrong on the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failures {
    /// Commands that failed.
    pub failed: u64,
    /// Blocks that differed from their pattern.
    pub miscompares: u64,
}

impl Failures {
    /// Those of these job instances.
    pub fn of(jobs: &[Job]) -> Self {
        Self {
            failed: sum(jobs.iter().flat_map(|job| &job.errors).map(|error| error.count)),
            miscompares: sum(jobs.iter().map(|job| job.miscompares)),
        }
    }

    /// In a few words, if there are any.
    pub fn complaint(&self) -> Option<String> {
        let parts = [
            (self.failed, "command", "failed"),
            (self.miscompares, "block", "differed from the pattern"),
        ];
        let parts = parts.iter().filter(|(count, _, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, thing, what)| format!("{} {what}", plural(*count, thing)))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Sums over a whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that failed.
    pub failed: u64,
    /// Blocks that differed from their pattern.
    pub miscompares: u64,
    /// Both.
    pub errors: u64,
    /// Device interrupts taken.
    pub interrupts: u64,
    /// Device interrupts for each completed read or write; None when there was none.
    pub interrupts_per_io: Option<f64>,
}
