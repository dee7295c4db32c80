//! The report for programs: fio's keys, and one object `doorpost` with everything else.

use serde::{Serialize, Serializer};
use workload::job::{JobSet, JobSpec};
use workload::latency::LatencyReport;
use workload::options::{OPTIONS, RUN_OPTIONS, Settings};
use workload::report::{Direction, Job};

use crate::report::figures::{date, per_second, percent};
use crate::report::group::group_of;
use crate::report::latency::{Distribution, PERCENTILES};
use crate::report::stats::Stats;
use crate::report::{Run, Totals};

/// Writes a run's report, newline at the end.
///
/// # Errors
/// When it cannot be put into JSON, which a report of ours always can.
pub fn render(run: &Run) -> serde_json::Result<String> {
    let ended_ms = run
        .launcher
        .as_ref()
        .map(|launcher| launcher.started_ms.saturating_add(launcher.wall_ns / 1_000_000));
    let bw = |direction: fn(&Job) -> &Direction| -> f64 {
        run.report
            .jobs
            .iter()
            .map(|job| Stats::from(&direction(job).bw_kib).mean)
            .sum()
    };
    let all = (bw(|job| &job.read), bw(|job| &job.write));
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        timestamp: ended_ms.map(|ms| ms / 1000),
        timestamp_ms: ended_ms,
        time: ended_ms.map(|ms| date(ms / 1000)),
        global_options: run_options(&run.report.arguments),
        jobs: run.report.jobs.iter().map(|job| job_entry(run, job, all)).collect(),
        disk_util: [],
        doorpost: Own {
            totals: run.totals(),
            run,
        },
    };
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "doorpost version")]
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(rename = "global options")]
    global_options: Keyed<&'static str, String>,
    jobs: Vec<JobEntry>,
    disk_util: [(); 0],
    doorpost: Own<'a>,
}

#[derive(Serialize)]
struct Own<'a> {
    totals: Totals,
    #[serde(flatten)]
    run: &'a Run,
}

/// A map whose keys keep their order.
struct Keyed<K, V>(Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Keyed<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

type Shares = Keyed<&'static str, f64>;

#[derive(Serialize)]
struct JobEntry {
    jobname: String,
    groupid: u32,
    error: u32,
    eta: u64,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Keyed<&'static str, String>,
    read: Way,
    write: Way,
    trim: Way,
    sync: Sync,
    job_runtime: u64,
    // The guest has no user mode, no tasks and no pages to fault in.
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    majf: u64,
    minf: u64,
    iodepth_level: Shares,
    iodepth_submit: Shares,
    iodepth_complete: Shares,
    latency_ns: Shares,
    latency_us: Shares,
    latency_ms: Shares,
    latency_depth: u32,
    latency_target: u64,
    latency_percentile: f64,
    latency_window: u64,
}

#[derive(Serialize)]
struct Way {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Latency,
    clat_ns: Latency,
    lat_ns: Latency,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: u64,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: u64,
}

#[derive(Serialize)]
struct Sync {
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Serialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Keyed<String, u64>>,
}

/// Linux's numbers, which fio reports: input/output error, and what a failed verification gives.
const EIO: u32 = 5;
const EILSEQ: u32 = 84;

fn job_entry(run: &Run, job: &Job, all_bw: (f64, f64)) -> JobEntry {
    // A report from elsewhere may name a job that it does not tell of.
    let default = JobSpec::default();
    let spec = run.report.spec(job).unwrap_or(&default);
    let mut both = job.read.lat.clone();
    both.merge(&job.write.lat);
    let distribution = Distribution::of(&both);
    let nothing = Direction::default();
    let error = match (job.errors.iter().any(|error| error.count > 0), job.miscompares) {
        (true, _) => EIO,
        (false, 1..) => EILSEQ,
        (false, 0) => 0,
    };
    JobEntry {
        jobname: spec.name.clone(),
        groupid: group_of(&run.report.arguments, job.job as usize),
        error,
        eta: 0,
        elapsed: (job.runtime_ns / 1000)
            .saturating_add(spec.delay_us())
            .div_ceil(1_000_000),
        options: options(spec),
        read: way(&job.read, job.runtime_ns, all_bw.0),
        write: way(&job.write, job.runtime_ns, all_bw.1),
        trim: way(&nothing, 0, 0.0),
        sync: Sync {
            total_ios: 0,
            lat_ns: latency(&nothing.lat, false),
        },
        job_runtime: job.runtime_ns / 1_000_000,
        usr_cpu: 0.0,
        sys_cpu: 0.0,
        ctx: 0,
        majf: 0,
        minf: 0,
        iodepth_level: shares(["1", "2", "4", "8", "16", "32", ">=64"], job.depths),
        iodepth_submit: shares(BATCHES, job.submit_batches),
        iodepth_complete: shares(BATCHES, job.complete_batches),
        latency_ns: rows(&distribution.nsec),
        latency_us: rows(&distribution.usec),
        latency_ms: rows(&distribution.msec),
        latency_depth: spec.iodepth as u32,
        latency_target: 0,
        latency_percentile: 100.0,
        latency_window: 0,
    }
}

const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

fn shares(names: [&'static str; 7], counts: [u64; 7]) -> Shares {
    let total = counts.iter().copied().fold(0, u64::saturating_add);
    Keyed(
        names
            .into_iter()
            .zip(counts.map(|count| percent(count, total)))
            .collect(),
    )
}

fn rows(shares: &[f64]) -> Shares {
    Keyed(Distribution::NAMES.into_iter().zip(shares.iter().copied()).collect())
}

/// Options that are listed even where they are what they are by default.
const ALWAYS: &[&str] = &[
    "name",
    "rw",
    "bs",
    "iodepth",
    "numjobs",
    "size",
    "rwmixread",
    "randseed",
    "verify",
    "wait",
];

/// A job's own options.
fn options(spec: &JobSpec) -> Keyed<&'static str, String> {
    listed(
        |name| !RUN_OPTIONS.contains(&name),
        Settings {
            job: spec.clone(),
            ..Settings::default()
        },
    )
}

/// Options of the whole run.
fn run_options(set: &JobSet) -> Keyed<&'static str, String> {
    listed(
        |name| RUN_OPTIONS.contains(&name),
        Settings {
            run: set.run.clone(),
            ..Settings::default()
        },
    )
}

fn listed(is_meant: impl Fn(&str) -> bool, settings: Settings) -> Keyed<&'static str, String> {
    let default = Settings::default();
    let options = OPTIONS
        .iter()
        .filter(|option| is_meant(option.name))
        .filter_map(|option| {
            let value = option.get(&settings);
            (ALWAYS.contains(&option.name) || value != option.get(&default)).then_some((option.name, value))
        });
    Keyed(options.collect())
}

fn way(direction: &Direction, runtime_ns: u64, all_bw: f64) -> Way {
    let bw_bytes = per_second(direction.bytes, runtime_ns);
    let bw = Stats::from(&direction.bw_kib);
    let iops = Stats::from(&direction.iops);
    Way {
        io_bytes: direction.bytes,
        io_kbytes: direction.bytes / 1024,
        bw_bytes,
        bw: bw_bytes / 1024,
        iops: if runtime_ns == 0 {
            0.0
        } else {
            direction.ios as f64 * 1e9 / runtime_ns as f64
        },
        runtime: if direction.ios == 0 { 0 } else { runtime_ns / 1_000_000 },
        total_ios: direction.ios,
        short_ios: 0,
        drop_ios: 0,
        slat_ns: latency(&direction.slat, false),
        clat_ns: latency(&direction.clat, true),
        lat_ns: latency(&direction.lat, false),
        bw_min: direction.bw_kib.min,
        bw_max: direction.bw_kib.max,
        bw_agg: if all_bw > 0.0 { bw.mean * 100.0 / all_bw } else { 0.0 },
        bw_mean: bw.mean,
        bw_dev: bw.deviation,
        bw_samples: bw.samples,
        iops_min: direction.iops.min,
        iops_max: direction.iops.max,
        iops_mean: iops.mean,
        iops_stddev: iops.deviation,
        iops_samples: iops.samples,
    }
}

fn latency(latency: &LatencyReport, percentiles: bool) -> Latency {
    let stats = Stats::from(&latency.summary);
    let percentile = |ppm: &u32| Some((format!("{:.6}", f64::from(*ppm) / 1e4), latency.percentile(*ppm)?));
    Latency {
        min: latency.summary.min,
        max: latency.summary.max,
        mean: stats.mean,
        stddev: stats.deviation,
        samples: stats.samples,
        percentile: (percentiles && stats.samples > 0)
            .then(|| Keyed(PERCENTILES.iter().filter_map(percentile).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn keys_and_figures() {
        let text = render(&sample::run()).unwrap();
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        // The guest's own report is kept as it came, and tested by its crate.
        value["doorpost"]["report"] = "…".into();
        insta::assert_snapshot!(serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn a_json_without_a_launcher_has_no_invented_time() {
        let value: serde_json::Value = serde_json::from_str(&render(&sample::quiet()).unwrap()).unwrap();
        assert!(value.get("timestamp").is_none() && value["doorpost"]["launcher"].is_null());
    }

    #[test]
    fn keys_are_unique() {
        // A reader that takes the last of two equal keys would give a shorter text back.
        let text = render(&sample::run()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let again = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(again.lines().count(), text.lines().count());
    }
}
