//! Latency in fio's log-linear buckets, so that percentiles mean what fio's mean.
//!
//! A value below 128 ns has a bucket of its own. Above, each power of two is split into 64 buckets, so that a bucket is never
//! wider than 1/64 of its value. A percentile is the middle of the bucket in which the sample of that rank lies.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

/// Bits of a value that choose the bucket within its power of two.
const SUB_BITS: u32 = 6;
/// Buckets in each power of two.
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Powers of two covered; longer latencies go into the last bucket.
const GROUPS: usize = 29;
/// Number of buckets: the largest latency told apart is about 17 seconds.
pub const BUCKETS: usize = GROUPS * SUB_BUCKETS;

/// The bucket of a latency.
#[inline]
pub const fn bucket(nanoseconds: u64) -> usize {
    let error_bits = (u64::BITS - 1 - (nanoseconds | 1).leading_zeros()).saturating_sub(SUB_BITS);
    // Without error bits a value is its own bucket; each further bit has SUB_BUCKETS more, and what remains of the value has
    // its uppermost bit set, which is one more SUB_BUCKETS.
    let index = ((error_bits as usize) << SUB_BITS) + (nanoseconds >> error_bits) as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// The latency that stands for a bucket: its middle, in nanoseconds. What lies beyond the last bucket stands for it.
pub const fn middle(bucket: usize) -> u64 {
    let bucket = if bucket < BUCKETS { bucket } else { BUCKETS - 1 };
    if bucket < 2 * SUB_BUCKETS {
        return bucket as u64;
    }
    let error_bits = (bucket >> SUB_BITS) - 1;
    let width = 1u64 << error_bits;
    (1 << (error_bits + SUB_BITS as usize)) + (bucket % SUB_BUCKETS) as u64 * width + width / 2
}

/// Latencies of one kind, as they are taken.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    summary: Summary,
}

/// Count, extremes and moments of a set of values, in nanoseconds (or whatever unit the values have).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of values.
    pub count: u64,
    /// Smallest value; 0 when there is none.
    pub min: u64,
    /// Largest value; 0 when there is none.
    pub max: u64,
    /// Sum of all values. It stays at the largest number once it is reached, as the other figures do.
    pub sum: u64,
    /// Sum of all squares, as upper and lower 64 bits.
    #[serde(with = "wide")]
    pub sum_of_squares: u128,
}

/// JSON numbers end at 64 bits.
mod wide {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        [(value >> 64) as u64, *value as u64].serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let [high, low] = <[u64; 2]>::deserialize(deserializer)?;
        Ok(u128::from(high) << 64 | u128::from(low))
    }
}

impl Default for Summary {
    fn default() -> Self {
        Self::new()
    }
}

impl Summary {
    /// No values yet.
    pub const fn new() -> Self {
        Self {
            count: 0,
            min: 0,
            max: 0,
            sum: 0,
            sum_of_squares: 0,
        }
    }

    /// Adds `times` equal values.
    #[inline]
    pub fn record(&mut self, value: u64, times: u64) {
        if self.count == 0 || value < self.min {
            self.min = value;
        }
        if value > self.max {
            self.max = value;
        }
        // One I/O each nanosecond takes 584 years to fill a count; a sum of deep queues' latencies takes days.
        self.count += times;
        let product = value.saturating_mul(times);
        self.sum = self.sum.saturating_add(product);
        // 10^18 latencies of 10 seconds do not fill 128 bits.
        self.sum_of_squares = self
            .sum_of_squares
            .wrapping_add(u128::from(value) * u128::from(product));
    }

    /// Adds all values of another set.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 {
            other.min
        } else {
            self.min.min(other.min)
        };
        self.max = self.max.max(other.max);
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.sum_of_squares = self.sum_of_squares.saturating_add(other.sum_of_squares);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            summary: Summary::new(),
        }
    }

    /// Takes one latency in nanoseconds, that `times` I/Os had in common.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64, times: u64) {
        self.counts[bucket(nanoseconds)] += times;
        self.summary.record(nanoseconds, times);
    }

    /// Forgets everything (at the end of the ramp).
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.summary = Summary::new();
    }

    /// The form that travels.
    pub fn report(&self) -> LatencyReport {
        let buckets = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (i as u16, *n))
            .collect();
        LatencyReport {
            summary: self.summary,
            buckets,
        }
    }
}

/// A histogram as it travels: only buckets with samples, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Count, extremes and moments in nanoseconds.
    pub summary: Summary,
    /// Bucket number and samples in it.
    #[serde(deserialize_with = "ascending")]
    pub buckets: Vec<(u16, u64)>,
}

/// Takes buckets only in the order in which they travel: then there are no more of them than a histogram has.
fn ascending<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(u16, u64)>, D::Error> {
    struct Ascending;
    impl<'de> Visitor<'de> for Ascending {
        type Value = Vec<(u16, u64)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(
                f,
                "pairs of a bucket below {BUCKETS} and its samples, in ascending order"
            )
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
            let mut buckets: Vec<(u16, u64)> = Vec::new();
            while let Some((bucket, samples)) = pairs.next_element::<(u16, u64)>()? {
                if usize::from(bucket) >= BUCKETS || buckets.last().is_some_and(|last| last.0 >= bucket) {
                    return Err(Error::invalid_value(Unexpected::Unsigned(bucket.into()), &self));
                }
                buckets.push((bucket, samples));
            }
            Ok(buckets)
        }
    }
    deserializer.deserialize_seq(Ascending)
}

impl LatencyReport {
    /// Adds the samples of another report.
    pub fn merge(&mut self, other: &Self) {
        self.summary.merge(&other.summary);
        for &(index, count) in &other.buckets {
            match self.buckets.binary_search_by_key(&index, |b| b.0) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
                Err(at) => self.buckets.insert(at, (index, count)),
            }
        }
    }

    /// The latency, in nanoseconds, at or below which `parts_per_million` of the samples lie; None without samples.
    pub fn percentile(&self, parts_per_million: u32) -> Option<u64> {
        let total: u128 = self.buckets.iter().map(|b| u128::from(b.1)).sum();
        let wanted = total * u128::from(parts_per_million);
        let mut seen = 0;
        for &(index, count) in &self.buckets {
            seen += u128::from(count);
            if seen * 1_000_000 >= wanted {
                return Some(middle(usize::from(index)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    #[test]
    fn bucket_borders() {
        // Worked by hand from the rule: 128..=129 share the first bucket of width 2.
        for (nanoseconds, index) in [
            (0, 0),
            (1, 1),
            (127, 127),
            (128, 128),
            (129, 128),
            (130, 129),
            (255, 191),
            (256, 192),
            (1000, 317),
        ] {
            assert_eq!(bucket(nanoseconds), index, "{nanoseconds}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!((middle(127), middle(128), middle(192)), (127, 129, 258));
    }

    proptest! {
        #[test]
        fn a_value_lies_within_its_bucket(value in 0u64..17_000_000_000) {
            let stand_in = middle(bucket(value));
            prop_assert!(stand_in.abs_diff(value) <= value / 64, "{value} is shown as {stand_in}");
        }

        #[test]
        fn buckets_are_in_order(a in 0u64..20_000_000_000, b in 0u64..20_000_000_000) {
            prop_assert!(bucket(a.min(b)) <= bucket(a.max(b)));
        }

        #[test]
        fn percentiles_have_the_rank_of_the_sample(mut samples in prop::collection::vec(0u64..1_000_000, 1..200), ppm in 1u32..=1_000_000) {
            let mut histogram = Histogram::new();
            for sample in &samples {
                histogram.record(*sample, 1);
            }
            samples.sort_unstable();
            let rank = (samples.len() as u64 * u64::from(ppm)).div_ceil(1_000_000) as usize;
            prop_assert_eq!(histogram.report().percentile(ppm), Some(middle(bucket(samples[rank - 1]))));
        }
    }

    #[test]
    fn merging_equals_recording_together() {
        let (mut a, mut b, mut both) = (Histogram::new(), Histogram::new(), Histogram::new());
        for (i, value) in [5u64, 900, 900, 70_000, 3, 1_000_000_000].into_iter().enumerate() {
            if i % 2 == 0 { &mut a } else { &mut b }.record(value, 2);
            both.record(value, 2);
        }
        let mut merged = a.report();
        merged.merge(&b.report());
        assert_eq!(merged, both.report());
        assert_eq!(
            merged.summary.sum_of_squares,
            2 * (25 + 2 * 810_000 + 4_900_000_000 + 9 + 1_000_000_000_000_000_000)
        );
        let text = serde_json::to_string(&merged).unwrap();
        assert_eq!(serde_json::from_str::<LatencyReport>(&text).unwrap(), merged);
    }

    #[test]
    fn figures_stay_at_their_largest() {
        let mut histogram = Histogram::new();
        histogram.record(u64::MAX, u64::MAX - 2);
        histogram.record(u64::MAX, 2);
        let one = histogram.report();
        let mut two = one.clone();
        two.merge(&one);
        for report in [&one, &two] {
            assert_eq!((report.summary.count, report.summary.sum), (u64::MAX, u64::MAX));
            assert_eq!(report.buckets, [(BUCKETS as u16 - 1, u64::MAX)]);
        }
        // 2 * (2^64 - 1)^2 fits into 128 bits no more.
        assert_eq!(two.summary.sum_of_squares, u128::MAX);
        assert_eq!(two.percentile(500_000), Some(middle(BUCKETS - 1)));
        assert_eq!(middle(usize::MAX), middle(BUCKETS - 1));
    }

    #[test]
    fn buckets_out_of_order_or_range_are_refused() {
        let summary = serde_json::to_string(&Summary::new()).unwrap();
        let read = |buckets: &str| {
            serde_json::from_str::<LatencyReport>(&std::format!("{{\"summary\":{summary},\"buckets\":{buckets}}}"))
        };
        assert_eq!(read("[[3,1],[1855,2]]").unwrap().buckets, [(3, 1), (1855, 2)]);
        for buckets in ["[[1856,1]]", "[[3,1],[3,1]]", "[[3,1],[2,1]]"] {
            let error = std::string::ToString::to_string(&read(buckets).unwrap_err());
            assert!(error.contains("expected pairs of a bucket below 1856"), "{error}");
        }
    }

    #[test]
    fn nothing_has_no_percentile() {
        assert_eq!(LatencyReport::default().percentile(500_000), None);
        assert_eq!(
            Histogram::new().report(),
            LatencyReport {
                summary: Summary::new(),
                buckets: vec![]
            }
        );
    }
}
