//! `cargo xtask bench`: guest instructions per I/O, counted by a plugin of QEMU's TCG.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::project::Project;
use crate::{setup, shell};

/// A row: how a CPU finds completions, and how many I/Os are in flight.
struct Case {
    wait: &'static str,
    depth: u32,
    jobs: u32,
}

const CASES: &[Case] = &[
    case("poll", 32),
    case("interrupt", 32),
    case("pending", 32),
    case("hybrid", 32),
    case("halt", 32),
    case("interrupt", 1),
    case("pending", 1),
    case("hybrid", 1),
    case("halt", 1),
];

const fn case(wait: &'static str, depth: u32) -> Case {
    Case { wait, depth, jobs: 2 }
}

/// I/Os per job of the two runs of a row.
const SHORT: u32 = 20_000;
const LONG: u32 = 100_000;

/// Counters of the plugin, and their headings.
const COUNTERS: &[(&str, &str)] = &[
    ("instructions", "instructions"),
    ("mmio_writes", "MMIO writes"),
    ("mmio_reads", "MMIO reads"),
    ("wrmsr", "wrmsr"),
    ("hlt", "hlt"),
    ("pause", "pause"),
];

/// What a run yielded.
struct Run {
    /// The plugin's lines at the guest's marks: first completed I/O, start of the run, end of the run.
    marks: Vec<Value>,
    ios: u64,
    interrupts: u64,
}

/// Builds, measures, and prints the table.
///
/// # Errors
/// A build or a run fails, or its output does not hold what is needed.
pub fn bench(project: &Project, markdown: bool) -> Result<()> {
    setup::setup(project, setup::Words::WhenMissing)?;
    let packages = ["--package", "doorpost", "--package", "doorpost-counter-plugin"];
    shell::run(project.cargo(&["build", "--release"]).args(packages))?;
    let release = project.target().join("release");
    let folder = tempfile::tempdir().context("cannot make a folder for the counts")?;

    let mut rows = Vec::new();
    let mut first_io = u64::MAX;
    for case in CASES {
        eprintln!("wait {}, depth {} x {} …", case.wait, case.depth, case.jobs);
        let short = case.run(&release, folder.path(), SHORT)?;
        let long = case.run(&release, folder.path(), LONG)?;
        for run in [&short, &long] {
            first_io = first_io.min(run.first_io()?);
        }
        rows.push(case.row(&short, &long)?);
    }

    let mut heading = vec!["wait".to_owned(), "depth x jobs".to_owned()];
    heading.extend(COUNTERS.iter().map(|(_, title)| (*title).to_owned()));
    heading.push("interrupts".to_owned());
    print!("{}", table(&heading, &rows, markdown));
    println!("\nPer I/O: 4 KiB random reads of QEMU's null block device, all CPUs together.");
    println!(
        "From power-on to the first completed I/O, firmware included: {:.2} million instructions.",
        first_io as f64 / 1e6
    );
    Ok(())
}

impl Case {
    fn run(&self, release: &Path, folder: &Path, ios: u32) -> Result<Run> {
        let plugin = release.join("libdoorpost_counter_plugin.so");
        let (counts, report) = (folder.join("counts"), folder.join("report.json"));
        // A comma within a value is doubled for QEMU.
        let value = |path: &Path| path.display().to_string().replace(',', ",,");
        let plugin = format!("{},out={},mmio=1", value(&plugin), value(&counts));
        let mut doorpost = Command::new(release.join("doorpost"));
        doorpost
            .args([
                "run", "--accel", "tcg", "--vcpus", "2", "--drive", "null", "--rw", "randread", "--bs", "4k",
            ])
            .args([
                "--wait",
                self.wait,
                "--iodepth",
                &self.depth.to_string(),
                "--numjobs",
                &self.jobs.to_string(),
            ])
            .args(["--number_ios", &ios.to_string(), "--output-format", "json", "--output"])
            .arg(&report)
            .args(["--qemu-arg=-plugin", &format!("--qemu-arg={plugin}")])
            .stdin(Stdio::null());
        let output = doorpost
            .output()
            .with_context(|| format!("cannot start `{}`", shell::line(&doorpost)))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!(
                "`{}` failed ({}): {}",
                shell::line(&doorpost),
                output.status,
                complaint.trim()
            );
        }
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        Run::parse(&read(&counts)?, &read(&report)?)
    }

    /// The row's cells: per I/O, by the slope between two runs.
    fn row(&self, short: &Run, long: &Run) -> Result<Vec<String>> {
        ensure!(
            long.ios > short.ios,
            "the longer run did {} I/Os, the shorter {}",
            long.ios,
            short.ios
        );
        let ios = (long.ios - short.ios) as f64;
        let mut row = vec![self.wait.to_owned(), format!("{} x {}", self.depth, self.jobs)];
        for (counter, _) in COUNTERS {
            let digits = if *counter == "instructions" { 1 } else { 3 };
            row.push(slope(
                short.between_marks(counter)?,
                long.between_marks(counter)?,
                ios,
                digits,
            ));
        }
        row.push(slope(short.interrupts, long.interrupts, ios, 3));
        Ok(row)
    }
}

/// What each of `ios` further I/Os adds, in a cell. A count that chance made smaller in the longer run is no count per I/O.
fn slope(short: u64, long: u64, ios: f64, digits: usize) -> String {
    format!("{:.digits$}", long.saturating_sub(short) as f64 / ios)
}

impl Run {
    fn parse(counts: &str, report: &str) -> Result<Self> {
        let mut marks = Vec::new();
        for line in counts.lines() {
            let line: Value = serde_json::from_str(line).with_context(|| format!("not a line of counts: `{line}`"))?;
            if line["event"] == "mark" {
                marks.push(line);
            }
        }
        ensure!(
            marks.len() == 3,
            "the guest executed its mark {} times and not 3 times",
            marks.len()
        );
        let report: Value = serde_json::from_str(report).context("the report is not JSON")?;
        let total = |name: &str| {
            let value = report["doorpost"]["totals"][name].as_u64();
            value.with_context(|| format!("the report has no doorpost.totals.{name}"))
        };
        Ok(Self {
            marks,
            ios: total("reads")?,
            interrupts: total("interrupts")?,
        })
    }

    /// Instructions from power-on to the first completed I/O, the read that proves a queue before the run starts.
    fn first_io(&self) -> Result<u64> {
        count(&self.marks[0], "instructions")
    }

    /// A count from the run's start to its end.
    fn between_marks(&self, counter: &str) -> Result<u64> {
        let (start, end) = (count(&self.marks[1], counter)?, count(&self.marks[2], counter)?);
        end.checked_sub(start).with_context(|| format!("{counter} went down"))
    }
}

fn count(mark: &Value, counter: &str) -> Result<u64> {
    mark[counter]
        .as_u64()
        .with_context(|| format!("a line of counts has no {counter}"))
}

/// Lays out a table, numbers to the right.
fn table(heading: &[String], rows: &[Vec<String>], markdown: bool) -> String {
    let all = || std::iter::once(heading).chain(rows.iter().map(Vec::as_slice));
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let words = 2;
    let mut text = String::new();
    for (number, row) in all().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < words {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let cells: Vec<String> = cells.collect();
        if markdown {
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
            if number == 0 {
                let rule = |column: usize| if column < words { "---" } else { "---:" };
                let rules: Vec<&str> = (0..heading.len()).map(rule).collect();
                text.push_str(&format!("|{}|\n", rules.join("|")));
            }
        } else {
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(start: u64, end: u64) -> String {
        let line = |event: &str, n: u64| {
            let counters: String = COUNTERS.iter().map(|(name, _)| format!(",\"{name}\":{n}")).collect();
            format!("{{\"event\":\"{event}\"{counters}}}\n")
        };
        line("mark", start - 7) + &line("mark", start) + &line("mark", end) + &line("exit", end + 1000)
    }

    fn report(reads: u64, interrupts: u64) -> String {
        format!(r#"{{"doorpost":{{"totals":{{"reads":{reads},"interrupts":{interrupts}}}}}}}"#)
    }

    #[test]
    fn the_slope_leaves_out_start_and_end() {
        // 500 at the start and end of each run, then 3 per I/O; an interrupt every fourth.
        let short = Run::parse(&counts(1000, 1000 + 500 + 3 * 200), &report(200, 50)).unwrap();
        let long = Run::parse(&counts(9000, 9000 + 500 + 3 * 1000), &report(1000, 250)).unwrap();
        assert_eq!((short.ios, long.ios), (200, 1000));
        assert_eq!(short.first_io().unwrap(), 993);
        let row = CASES[0].row(&short, &long).unwrap();
        assert_eq!(
            row,
            [
                "poll", "32 x 2", "3.0", "3.000", "3.000", "3.000", "3.000", "3.000", "0.250"
            ]
        );
        assert!(CASES[0].row(&long, &short).is_err());
    }

    #[test]
    fn output_that_lacks_something_is_refused() {
        let refused = |counts: &str, report: &str| Run::parse(counts, report).err().unwrap().to_string();
        let line = r#"{"event":"mark","instructions":1}"#;
        assert!(refused(line, &report(1, 1)).contains("1 times"));
        assert!(refused("x", &report(1, 1)).contains("`x`"));
        assert!(refused(&counts(7, 8), "{}").contains("totals.reads"));
        assert!(refused(&counts(7, 8), r#"{"doorpost":{"totals":{"reads":1}}}"#).contains("interrupts"));
        let three = format!("{line}\n{line}\n{line}\n");
        let run = Run::parse(&three, &report(1, 1)).unwrap();
        assert!(run.between_marks("wrmsr").unwrap_err().to_string().contains("wrmsr"));
    }

    #[test]
    fn tables() {
        let heading = ["wait", "depth x jobs", "n"].map(str::to_owned);
        let rows = [vec!["poll".to_owned(), "1 x 2".to_owned(), "10.0".to_owned()]];
        assert_eq!(
            table(&heading, &rows, false),
            "wait  depth x jobs     n\npoll  1 x 2         10.0\n"
        );
        let expected = "| wait | depth x jobs |    n |\n|---|---|---:|\n| poll | 1 x 2        | 10.0 |\n";
        assert_eq!(table(&heading, &rows, true), expected);
    }
}
