//! Latencies the way fio shows them: units, percentiles, and the rows of the distribution.

use workload::latency::{LatencyReport, middle};

use crate::report::figures::percent;
use crate::report::stats::Stats;

/// fio's list of percentiles, in parts per million.
pub const PERCENTILES: [u32; 17] = [
    10_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000, 800_000, 900_000, 950_000, 990_000,
    995_000, 999_000, 999_500, 999_900,
];

/// A unit of time, and how many nanoseconds it has.
pub type Unit = (&'static str, f64);
const NSEC: Unit = ("nsec", 1.0);
const USEC: Unit = ("usec", 1e3);
const MSEC: Unit = ("msec", 1e6);

/// The unit in which fio shows these statistics of nanoseconds.
pub fn unit(stats: &Stats) -> Unit {
    if stats.min > 2e6 && stats.max > 99_999_999.0 && stats.deviation > 1e6 {
        MSEC
    } else if stats.min > 2e3 && stats.max > 99_999.0 && stats.deviation > 1e3 {
        USEC
    } else {
        NSEC
    }
}

/// The unit in which fio shows percentiles that reach from `lowest` to `highest` nanoseconds.
pub fn percentile_unit(lowest: u64, highest: u64) -> Unit {
    match (lowest, highest) {
        (2_000_001.., 100_000_000..) => MSEC,
        (2_001.., 100_000..) => USEC,
        _ => NSEC,
    }
}

/// Upper bounds of the rows of a distribution within one unit.
const BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Shares of all I/Os, in percent, by the latency that they stay below.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Below 2, 4, 10, … 1000 nanoseconds.
    pub nsec: [f64; 10],
    /// Likewise in microseconds.
    pub usec: [f64; 10],
    /// Likewise in milliseconds; then below 2000, and 2000 or more.
    pub msec: [f64; 12],
}

impl Distribution {
    /// Names of the rows.
    pub const NAMES: [&'static str; 12] = [
        "2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000",
    ];

    /// Sorts latencies into rows.
    pub fn of(latency: &LatencyReport) -> Self {
        let (mut nsec, mut usec, mut msec) = ([0u64; 10], [0u64; 10], [0u64; 12]);
        for &(bucket, count) in &latency.buckets {
            let nanoseconds = middle(usize::from(bucket));
            let (rows, value): (&mut [u64], u64) = match nanoseconds {
                0..1_000 => (&mut nsec, nanoseconds),
                1_000..1_000_000 => (&mut usec, nanoseconds / 1_000),
                _ => (&mut msec, nanoseconds / 1_000_000),
            };
            let row = BOUNDS.iter().position(|bound| value < *bound);
            let row = row.unwrap_or(if value < 2000 { 10 } else { 11 });
            rows[row] = rows[row].saturating_add(count);
        }
        let total = latency
            .buckets
            .iter()
            .map(|(_, count)| *count)
            .fold(0, u64::saturating_add);
        Self {
            nsec: nsec.map(|count| percent(count, total)),
            usec: usec.map(|count| percent(count, total)),
            msec: msec.map(|count| percent(count, total)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::latency::Histogram;

    #[test]
    fn rows_have_upper_bounds() {
        let mut histogram = Histogram::new();
        for (nanoseconds, times) in [(1, 1), (2, 1), (999, 1), (1_500, 1), (60_000, 5), (1_500_000_000, 1)] {
            histogram.record(nanoseconds, times);
        }
        let distribution = Distribution::of(&histogram.report());
        assert_eq!(
            (distribution.nsec[0], distribution.nsec[1], distribution.nsec[9]),
            (10.0, 10.0, 10.0)
        );
        assert_eq!((distribution.usec[0], distribution.usec[5]), (10.0, 50.0));
        assert_eq!(distribution.msec[10], 10.0);
        let all: f64 = distribution
            .nsec
            .iter()
            .chain(&distribution.usec)
            .chain(&distribution.msec)
            .sum();
        assert!((all - 100.0).abs() < 1e-9);
    }

    #[test]
    fn units_follow_the_values() {
        let stats = |min: f64, max: f64, deviation: f64| Stats {
            min,
            max,
            deviation,
            ..Stats::default()
        };
        assert_eq!(unit(&stats(1_500.0, 200_000.0, 5_000.0)), NSEC);
        assert_eq!(unit(&stats(5_000.0, 200_000.0, 5_000.0)), USEC);
        assert_eq!(unit(&stats(5e6, 2e8, 5e6)), MSEC);
        assert_eq!(percentile_unit(60_000, 750_000), USEC);
        assert_eq!(percentile_unit(1_000, 750_000), NSEC);
        assert_eq!(percentile_unit(3_000_000, 750_000_000), MSEC);
    }
}
