//! How long to look for interrupts before a CPU halts, found by trial, as KVM's halt polling finds it for a host CPU: a wait that
//! a longer look would have spared the halt makes it longer, one that no look can spare makes it shorter.

/// A length to poll for, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaltPoll {
    length: u64,
    most: u64,
    adaptive: bool,
}

impl HaltPoll {
    /// The length after the first growth, in nanoseconds.
    pub const START: u64 = 10_000;

    /// Always `length` nanoseconds.
    pub const fn fixed(length: u64) -> Self {
        Self {
            length,
            most: length,
            adaptive: false,
        }
    }

    /// From nothing to `most` nanoseconds, as waits teach.
    pub const fn adaptive(most: u64) -> Self {
        Self {
            length: 0,
            most,
            adaptive: true,
        }
    }

    /// How long to poll before the next halt, in nanoseconds.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Learns from a wait that is over, polling and halt together, in nanoseconds.
    pub fn waited(&mut self, nanoseconds: u64) {
        if !self.adaptive || nanoseconds <= self.length {
            return;
        }
        if nanoseconds > self.most {
            self.length /= 2;
            // What is shorter than the first step is none.
            if self.length < Self::START {
                self.length = 0;
            }
        } else {
            self.length = (self.length * 2).max(Self::START).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_waits_make_it_longer_and_long_ones_shorter() {
        let mut poll = HaltPoll::adaptive(50_000);
        let mut lengths = std::vec::Vec::new();
        for wait in [30_000, 30_000, 30_000, 45_000, 45_000, 60_000, 60_000, 60_000, 60_000] {
            poll.waited(wait);
            lengths.push(poll.length());
        }
        assert_eq!(lengths, [10_000, 20_000, 40_000, 50_000, 50_000, 25_000, 12_500, 0, 0]);
    }

    #[test]
    fn a_fixed_length_stays() {
        let mut poll = HaltPoll::fixed(50_000);
        for wait in [1, 60_000, u64::MAX] {
            poll.waited(wait);
            assert_eq!(poll.length(), 50_000);
        }
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bound(most in 0u64..1_000_000_000, waits: std::vec::Vec<u64>) {
            let mut poll = HaltPoll::adaptive(most);
            for wait in waits {
                poll.waited(wait);
                prop_assert!(poll.length() <= most);
            }
        }
    }
}
