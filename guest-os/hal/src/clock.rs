//! Time: a counter that runs at a constant rate, and the conversion of its ticks.

use core::time::Duration;

/// A monotonic counter at a constant rate: TSC, CNTVCT, time base.
pub trait Clock {
    /// The counter now.
    fn ticks(&self) -> u64;

    /// The rate of the counter.
    fn rate(&self) -> TickRate;

    /// The counter's value once `wait` has passed from now on; saturates.
    fn deadline(&self, wait: Duration) -> u64 {
        self.ticks().saturating_add(self.rate().ticks(wait))
    }
}

/// The rate of a [`Clock`], prepared so that a conversion to nanoseconds costs one multiplication and one shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickRate {
    hertz: u64,
    multiplier: u64,
}

/// Nanoseconds = ticks * multiplier >> SHIFT.
const SHIFT: u32 = 32;

impl TickRate {
    /// A rate of `hertz` ticks a second.
    ///
    /// # Panics
    /// When the rate is 0 or above 1 THz: no counter runs so.
    pub const fn from_hertz(hertz: u64) -> Self {
        assert!(
            hertz > 0 && hertz <= 1_000_000_000_000,
            "a clock of 0 Hz, or of over 1 THz"
        );
        let multiplier = ((1_000_000_000u128 << SHIFT) / hertz as u128) as u64;
        Self { hertz, multiplier }
    }

    /// Ticks per second.
    pub const fn hertz(self) -> u64 {
        self.hertz
    }

    /// `ticks` in nanoseconds, rounded down.
    #[inline]
    pub const fn nanoseconds(self, ticks: u64) -> u64 {
        ((ticks as u128 * self.multiplier as u128) >> SHIFT) as u64
    }

    /// The number of ticks in `time`, rounded up, saturating.
    pub const fn ticks(self, time: Duration) -> u64 {
        let exact = (time.as_nanos() * self.hertz as u128).div_ceil(1_000_000_000);
        if exact > u64::MAX as u128 {
            u64::MAX
        } else {
            exact as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_both_ways_within_a_tick() {
        for hertz in [
            1_000,
            62_500_000,
            512_000_000,
            1_000_000_000,
            2_995_200_000,
            4_999_999_999,
        ] {
            let rate = TickRate::from_hertz(hertz);
            for nanoseconds in [0u64, 1, 999, 1_000_000, 1_000_000_000, 3_600_000_000_000] {
                let ticks = rate.ticks(Duration::from_nanos(nanoseconds));
                let back = rate.nanoseconds(ticks);
                let tick = 1_000_000_000 / hertz + 1;
                // The prepared multiplier is exact to 1 in 2^32 of a nanosecond per tick.
                let slack = tick + ticks / (1 << 32) + 1;
                assert!(
                    back.abs_diff(nanoseconds) <= slack,
                    "{hertz} Hz, {nanoseconds} ns came back as {back} ns"
                );
            }
        }
    }

    #[test]
    fn far_deadlines_saturate() {
        assert_eq!(TickRate::from_hertz(1_000_000_000).ticks(Duration::MAX), u64::MAX);
    }
}
