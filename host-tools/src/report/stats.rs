//! Mean and deviation out of counts and moments.

use workload::latency::Summary;

/// Extremes, mean and deviation, as fio reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation of a sample.
    pub deviation: f64,
    /// Number of values.
    pub samples: u64,
}

impl From<&Summary> for Stats {
    fn from(summary: &Summary) -> Self {
        if summary.count == 0 {
            return Self::default();
        }
        let count = u128::from(summary.count);
        let sum = u128::from(summary.sum);
        // n * sum(x^2) - sum(x)^2 in whole numbers, as far as they reach: the difference of two large floats is noise.
        let spread = match (count.checked_mul(summary.sum_of_squares), sum.checked_mul(sum)) {
            (Some(squares), Some(square)) => squares.saturating_sub(square) as f64,
            _ => (count as f64 * summary.sum_of_squares as f64 - (sum as f64).powi(2)).max(0.0),
        };
        let deviation = if summary.count > 1 {
            (spread / count as f64 / (count - 1) as f64).sqrt()
        } else {
            0.0
        };
        Self {
            min: summary.min as f64,
            max: summary.max as f64,
            mean: summary.sum as f64 / summary.count as f64,
            deviation,
            samples: summary.count,
        }
    }
}

impl Stats {
    /// The rate of several jobs together: what each did adds up, and so do the variances.
    pub fn add_rate(self, other: Self) -> Self {
        Self {
            min: self.min + other.min,
            max: self.max + other.max,
            mean: self.mean + other.mean,
            deviation: self.deviation.hypot(other.deviation),
            samples: self.samples.saturating_add(other.samples),
        }
    }

    /// All values in a unit that is `scale` times as large.
    pub fn scaled(self, scale: f64) -> Self {
        Self {
            min: self.min / scale,
            max: self.max / scale,
            mean: self.mean / scale,
            deviation: self.deviation / scale,
            samples: self.samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(values: &[u64]) -> Summary {
        let mut summary = Summary::new();
        values.iter().for_each(|value| summary.record(*value, 1));
        summary
    }

    #[test]
    fn moments() {
        let stats = Stats::from(&summary(&[2, 4, 4, 4, 5, 5, 7, 9]));
        assert_eq!((stats.min, stats.max, stats.mean, stats.samples), (2.0, 9.0, 5.0, 8));
        assert!((stats.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Stats::from(&Summary::new()), Stats::default());
        assert_eq!(Stats::from(&summary(&[5])).deviation, 0.0);
    }

    #[test]
    fn a_small_spread_of_large_values_is_exact() {
        let stats = Stats::from(&summary(&[1_000_000_000_000, 1_000_000_000_002]));
        assert!((stats.deviation - 2f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn rates_add_up() {
        let a = Stats {
            min: 1.0,
            max: 3.0,
            mean: 2.0,
            deviation: 3.0,
            samples: 2,
        };
        let b = Stats {
            min: 10.0,
            max: 30.0,
            mean: 20.0,
            deviation: 4.0,
            samples: 2,
        };
        assert_eq!(
            a.add_rate(b),
            Stats {
                min: 11.0,
                max: 33.0,
                mean: 22.0,
                deviation: 5.0,
                samples: 4
            }
        );
    }
}
