//! A line each second while a run goes on: a bar on a terminal, else lines on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use workload::report::Progress as Totals;

use crate::report::figures::{binary, count};

/// Shows how a run goes.
pub struct Progress {
    bar: Option<ProgressBar>,
    total_us: Option<u64>,
    last: Totals,
}

impl Progress {
    /// For a run that lasts so long, if that is known.
    pub fn new(total_us: Option<u64>) -> Self {
        let bar = io::stderr().is_terminal().then(|| match total_us {
            Some(us) => {
                let style = ProgressStyle::with_template("{bar:24} {msg}");
                ProgressBar::new(us).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            }
            None => ProgressBar::new_spinner(),
        });
        Self {
            bar,
            total_us,
            last: Totals::default(),
        }
    }

    /// Says a sentence.
    pub fn note(&self, note: &str) {
        match &self.bar {
            Some(bar) => bar.println(note),
            // A closed standard error must not end the run.
            None => drop(writeln!(io::stderr(), "{note}")),
        }
    }

    /// Shows what was done since the last totals.
    pub fn show(&mut self, totals: &Totals) {
        let line = line(&self.last, totals, self.total_us);
        self.last = totals.clone();
        match &self.bar {
            Some(bar) => {
                bar.set_position(totals.elapsed_ns / 1000);
                bar.set_message(line);
                bar.tick();
            }
            None => self.note(&line),
        }
    }

    /// Takes the bar away.
    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(last: &Totals, now: &Totals, total_us: Option<u64>) -> String {
    let nanoseconds = u128::from(now.elapsed_ns.saturating_sub(last.elapsed_ns).max(1));
    let rate = |now: u64, last: u64| (u128::from(now.saturating_sub(last)) * 1_000_000_000 / nanoseconds) as u64;
    let reads = rate(now.reads, last.reads);
    let writes = rate(now.writes, last.writes);
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    let mut line = format!("{:.1}", seconds(now.elapsed_ns));
    if let Some(us) = total_us {
        line += &format!("/{:.1}", seconds(us.saturating_mul(1000)));
    }
    line += &format!(" s: {} job{}", now.jobs, if now.jobs == 1 { "" } else { "s" });
    if now.ramp {
        line += " (ramp)";
    }
    for (name, ios, bytes, last_bytes) in [
        ("read", reads, now.read_bytes, last.read_bytes),
        ("write", writes, now.written_bytes, last.written_bytes),
    ] {
        if bytes > 0 || (name == "read" && now.writes == 0) {
            line += &format!(", {name} {} IOPS {}B/s", count(ios), binary(rate(bytes, last_bytes)));
        }
    }
    line + &format!(", {} interrupts/s", count(rate(now.interrupts, last.interrupts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_interval() {
        let last = Totals {
            elapsed_ns: 1_000_000_000,
            reads: 1000,
            read_bytes: 4_096_000,
            interrupts: 500,
            ..Totals::default()
        };
        let now = Totals {
            elapsed_ns: 3_000_000_000,
            ramp: true,
            jobs: 2,
            reads: 41_000,
            read_bytes: 41_000 * 4096,
            interrupts: 2500,
            ..Totals::default()
        };
        assert_eq!(
            line(&last, &now, Some(5_000_000)),
            "3.0/5.0 s: 2 jobs (ramp), read 20.0k IOPS 78.1MiB/s, 1000 interrupts/s"
        );
        // A guest whose totals go backwards breaks nothing.
        assert_eq!(
            line(&now, &last, None),
            "1.0 s: 0 jobs, read 0 IOPS 0B/s, 0 interrupts/s"
        );
    }

    #[test]
    fn writes_are_shown_if_there_are_any() {
        let now = Totals {
            elapsed_ns: 1_000_000_000,
            jobs: 1,
            writes: 10,
            written_bytes: 40_960,
            ..Totals::default()
        };
        assert_eq!(
            line(&Totals::default(), &now, None),
            "1.0 s: 1 job, write 10 IOPS 40.0KiB/s, 0 interrupts/s"
        );
    }
}
