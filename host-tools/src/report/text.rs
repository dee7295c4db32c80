//! The report for people: fio's familiar form, then doorpost's own part.

use std::fmt::{self, Write};

use workload::job::{JobSpec, Load};
use workload::report::{Direction, Job};

use crate::report::figures::{bandwidth, binary, count, decimal, per_second, percent};
use crate::report::group::{Block, Together, blocks, rows};
use crate::report::latency::{Distribution, PERCENTILES, percentile_unit, unit};
use crate::report::stats::Stats;
use crate::report::tables;
use crate::report::{Failures, Run};

/// Writes a run's report.
pub fn render(run: &Run) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = fio(run, &mut text);
    let _ = tables::write(run, &mut text);
    // Names come from devices; control characters of theirs are nothing for a terminal.
    text.retain(|c| c == '\n' || !c.is_control());
    text
}

/// A direction's name, and how to get at it.
type Way = (&'static str, fn(&Job) -> &Direction);
const WAYS: [Way; 2] = [("read", |job| &job.read), ("write", |job| &job.write)];

fn fio(run: &Run, out: &mut String) -> fmt::Result {
    let report = &run.report;
    let blocks = blocks(report);
    if blocks.is_empty() {
        return writeln!(out, "no job ran");
    }
    // A report from elsewhere may name a job that it does not tell of.
    let default = JobSpec::default();
    let spec = |block: &Block| report.arguments.jobs.get(block.job).unwrap_or(&default).clone();
    for block in &blocks {
        header(&spec(block), block.group, out)?;
    }
    for block in &blocks {
        writeln!(out)?;
        write_block(block, &spec(block), out)?;
    }
    let last = blocks.iter().map(|block| block.group).max().unwrap_or(0);
    for group in 0..=last {
        let jobs: Vec<Job> = blocks
            .iter()
            .filter(|block| block.group == group)
            .flat_map(|block| block.jobs.iter().cloned())
            .collect();
        if jobs.is_empty() {
            continue;
        }
        writeln!(out, "\nRun status group {group} (all jobs):")?;
        for (name, direction) in WAYS {
            let together = Together::of(&jobs, direction);
            if together.ios > 0 {
                status(name, &together, &jobs, direction, out)?;
            }
        }
    }
    Ok(())
}

fn write_block(block: &Block, spec: &JobSpec, out: &mut String) -> fmt::Result {
    let jobs = &block.jobs;
    let failures = Failures::of(jobs);
    let complaint = failures
        .complaint()
        .map_or(String::new(), |complaint| format!(" ({complaint})"));
    writeln!(
        out,
        "{}: (groupid={}, jobs={}): err= {}{complaint}",
        spec.name,
        block.group,
        jobs.len(),
        failures.failed.saturating_add(failures.miscompares)
    )?;
    let ways = WAYS.map(|(name, direction)| (name, Together::of(jobs, direction)));
    let mut both = Together::default();
    for (name, together) in ways.iter().filter(|(_, together)| together.ios > 0) {
        way(name, together, out)?;
        both.lat.merge(&together.lat);
    }
    distribution(&Distribution::of(&both.lat), out)?;
    let depths = rows(jobs, |job| job.depths);
    shares(
        "  IO depths    :",
        ["1", "2", "4", "8", "16", "32", ">=64"],
        depths,
        out,
    )?;
    let names = ["0", "4", "8", "16", "32", "64", ">=64"];
    shares("     submit    :", names, rows(jobs, |job| job.submit_batches), out)?;
    shares("     complete  :", names, rows(jobs, |job| job.complete_batches), out)?;
    writeln!(
        out,
        "     issued rwts: total={},{},0,0 short=0,0,0,0 dropped=0,0,0,0",
        ways[0].1.ios, ways[1].1.ios
    )?;
    writeln!(
        out,
        "     latency   : target=0, window=0, percentile=100.00%, depth={}",
        spec.iodepth
    )
}

fn header(spec: &JobSpec, group: u32, out: &mut String) -> fmt::Result {
    let bs = if spec.bs < 10_240 {
        format!("{}B", spec.bs)
    } else {
        format!("{}B", binary(spec.bs))
    };
    let mix = match spec.rw {
        Load::ReadWrite | Load::RandReadWrite => format!(" ({}% reads)", spec.rwmixread),
        _ => String::new(),
    };
    writeln!(
        out,
        "{}: (g={group}): rw={}{mix}, bs=(R) {bs}-{bs}, (W) {bs}-{bs}, (T) {bs}-{bs}, ioengine=doorpost, iodepth={}",
        spec.name, spec.rw, spec.iodepth
    )
}

fn way(name: &str, together: &Together, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "  {name}: IOPS={}, BW={}({}B/{}msec)",
        count(per_second(together.ios, together.runtime_ns)),
        bandwidth(per_second(together.bytes, together.runtime_ns)),
        binary(together.bytes),
        together.runtime_ns / 1_000_000
    )?;
    for (label, latency) in [
        ("slat", &together.slat),
        ("clat", &together.clat),
        (" lat", &together.lat),
    ] {
        let stats = Stats::from(&latency.summary);
        let (unit, scale) = unit(&stats);
        let stats = stats.scaled(scale);
        writeln!(
            out,
            "    {label} ({unit}): min={:.0}, max={:.0}, avg={:5.2}, stdev={:5.2}",
            stats.min.floor(),
            stats.max.floor(),
            stats.mean,
            stats.deviation
        )?;
    }
    percentiles(together, out)?;
    let (bw_unit, scale) = if together.bw_kib.mean > 1024.0 * 1024.0 {
        ("MiB/s", 1024.0)
    } else {
        ("KiB/s", 1.0)
    };
    let bw = together.bw_kib.scaled(scale);
    writeln!(
        out,
        "   bw ({bw_unit:>7}): min={:5.0}, max={:5.0}, per=100.00%, avg={:5.2}, stdev={:5.2}, samples={}",
        bw.min, bw.max, bw.mean, bw.deviation, bw.samples
    )?;
    let iops = together.iops;
    writeln!(
        out,
        "   iops        : min={:5.0}, max={:5.0}, avg={:5.2}, stdev={:5.2}, samples={}",
        iops.min, iops.max, iops.mean, iops.deviation, iops.samples
    )
}

fn percentiles(together: &Together, out: &mut String) -> fmt::Result {
    let values: Option<Vec<u64>> = PERCENTILES.iter().map(|ppm| together.clat.percentile(*ppm)).collect();
    let Some(values) = values else { return Ok(()) };
    let (unit, scale) = percentile_unit(values[0], values[values.len() - 1]);
    let values: Vec<u64> = values
        .iter()
        .map(|value| (*value as f64 / scale).round() as u64)
        .collect();
    let width = values
        .iter()
        .map(|value| value.to_string().len())
        .max()
        .unwrap_or(1)
        .max(4);
    writeln!(out, "    clat percentiles ({unit}):")?;
    let cells: Vec<String> = PERCENTILES
        .iter()
        .zip(&values)
        .map(|(ppm, value)| format!(" {:>5.2}th=[{value:>width$}]", f64::from(*ppm) / 1e4))
        .collect();
    let lines: Vec<String> = cells
        .chunks(4)
        .map(|cells| format!("     |{}", cells.join(",")))
        .collect();
    writeln!(out, "{}", lines.join(",\n"))
}

fn distribution(distribution: &Distribution, out: &mut String) -> fmt::Result {
    let units: [(&str, &[f64]); 3] = [
        ("nsec", &distribution.nsec),
        ("usec", &distribution.usec),
        ("msec", &distribution.msec),
    ];
    for (unit, rows) in units {
        let cells: Vec<String> = rows
            .iter()
            .zip(Distribution::NAMES)
            .filter(|(share, _)| **share > 0.0)
            .map(|(share, name)| format!("{name}={:.2}%", share.max(0.01)))
            .collect();
        for cells in cells.chunks(5) {
            writeln!(out, "  lat ({unit})   : {}", cells.join(", "))?;
        }
    }
    Ok(())
}

fn shares(label: &str, names: [&str; 7], counts: [u64; 7], out: &mut String) -> fmt::Result {
    let total = counts.iter().copied().fold(0, u64::saturating_add);
    let cells: Vec<String> = counts
        .iter()
        .zip(names)
        // A share that is not nothing is never shown as nothing.
        .map(|(count, name)| {
            format!(
                "{name}={:.1}%",
                percent(*count, total).max(if *count > 0 { 0.1 } else { 0.0 })
            )
        })
        .collect();
    writeln!(out, "{label} {}", cells.join(", "))
}

fn status(
    name: &str,
    together: &Together,
    jobs: &[Job],
    direction: impl Fn(&Job) -> &Direction,
    out: &mut String,
) -> fmt::Result {
    let each = jobs.iter().map(|job| per_second(direction(job).bytes, job.runtime_ns));
    let (least, most) = (each.clone().min().unwrap_or(0), each.max().unwrap_or(0));
    let shortest = jobs.iter().map(|job| job.runtime_ns).min().unwrap_or(0);
    writeln!(
        out,
        "{:>7}: bw={}, {}B/s-{}B/s ({}B/s-{}B/s), io={}B ({}B), run={}-{}msec",
        name.to_uppercase(),
        bandwidth(per_second(together.bytes, together.runtime_ns)),
        binary(least),
        binary(most),
        decimal(least),
        decimal(most),
        binary(together.bytes),
        decimal(together.bytes),
        shortest / 1_000_000,
        together.runtime_ns / 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_run_with_everything() {
        insta::assert_snapshot!(render(&sample::run()));
    }

    #[test]
    fn a_quiet_run_from_a_serial_line() {
        insta::assert_snapshot!(render(&sample::quiet()));
    }

    #[test]
    fn an_empty_report_is_no_panic() {
        let mut run = sample::quiet();
        run.report.jobs.clear();
        run.report.queues.clear();
        run.report.cpus.clear();
        run.report.controllers.clear();
        assert!(render(&run).starts_with("no job ran\n"));
    }

    #[test]
    fn figures_of_a_mad_guest_are_no_panic() {
        let mut run = sample::run();
        for job in &mut run.report.jobs {
            job.runtime_ns = 0;
            job.read.ios = u64::MAX;
            job.read.bytes = u64::MAX;
            job.depths = [u64::MAX; 7];
            job.errors.iter_mut().for_each(|error| error.count = u64::MAX / 8);
        }
        run.report.cpus.iter_mut().for_each(|cpu| cpu.interrupts = u64::MAX);
        assert!(!render(&run).is_empty());
    }

    #[test]
    fn control_characters_of_a_device_do_not_reach_the_terminal() {
        let mut run = sample::quiet();
        run.report.controllers[0].model = "evil\x1b[2Jname\n".to_string();
        assert!(render(&run).contains("evil[2Jname"));
    }
}
