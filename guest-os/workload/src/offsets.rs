//! Which block comes next.
//!
//! Blocks are numbered from 0 within the job's area; a block is as long as the job's block size.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::pattern::mix;

/// A small, fast source of random numbers, the same for the same seed on every architecture.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// A source that is determined by `seed` and by `stream`, the number of its user.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(
            mix(seed) ^ mix(stream.wrapping_add(1)),
        ))
    }

    /// Any 64 bits.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound` (not 0), by the upper half of a product; the bias is below bound / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
}

/// The order in which a job visits its blocks. Endless: after the last block the next pass begins.
#[derive(Clone, Debug)]
pub enum Offsets {
    /// One block after the other.
    Sequential {
        /// The number of blocks.
        blocks: u64,
        /// The next one.
        next: u64,
    },
    /// Any block each time; some come twice, some never (fio's `norandommap`).
    Free {
        /// The number of blocks.
        blocks: u64,
        /// Where the numbers come from.
        random: Random,
    },
    /// Each block exactly once in a pass, in random order (fio's default random map).
    Mapped(Permutation),
}

impl Offsets {
    /// Blocks `0..blocks` one after the other.
    ///
    /// # Panics
    /// When there is no block (in any of the three constructors).
    pub fn sequential(blocks: u64) -> Self {
        assert!(blocks > 0, "a job over no blocks");
        Self::Sequential { blocks, next: 0 }
    }

    /// Independent random blocks.
    pub fn free(blocks: u64, random: Random) -> Self {
        assert!(blocks > 0, "a job over no blocks");
        Self::Free { blocks, random }
    }

    /// A random permutation of the blocks, another one in each pass.
    pub fn mapped(blocks: u64, random: Random) -> Self {
        Self::Mapped(Permutation::new(blocks, random))
    }

    /// The next block.
    #[inline]
    pub fn next_block(&mut self) -> u64 {
        match self {
            Self::Sequential { blocks, next } => {
                let block = *next;
                *next = if block + 1 == *blocks { 0 } else { block + 1 };
                block
            }
            Self::Free { blocks, random } => random.below(*blocks),
            Self::Mapped(permutation) => permutation.next_block(),
        }
    }
}

/// A random permutation of `0..blocks` without a map: a counter goes through a bijection of the smallest power of two that
/// holds all blocks, and results beyond the last block are skipped (at most every second on average).
#[derive(Clone, Debug)]
pub struct Permutation {
    blocks: u64,
    mask: u64,
    shift: u32,
    /// Odd multipliers and a mask of this pass.
    keys: [u64; 3],
    counter: u64,
    left: u64,
    random: Random,
}

impl Permutation {
    /// A permutation of `0..blocks`; each pass draws another one from `random`.
    ///
    /// # Panics
    /// When there is no block.
    pub fn new(blocks: u64, random: Random) -> Self {
        assert!(blocks > 0, "a job over no blocks");
        let bits = u64::BITS - (blocks - 1).leading_zeros();
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let mut new = Self {
            blocks,
            mask,
            shift: (bits / 2).max(1),
            keys: [0; 3],
            counter: 0,
            left: blocks,
            random,
        };
        new.draw();
        new
    }

    fn draw(&mut self) {
        self.keys = [self.random.word(), self.random.word() | 1, self.random.word() | 1];
        self.counter = 0;
        self.left = self.blocks;
    }

    #[inline]
    fn next_block(&mut self) -> u64 {
        if self.left == 0 {
            self.draw();
        }
        self.left -= 1;
        loop {
            // Each step is a bijection modulo 2^bits: xor, odd product, xor with the own upper half.
            let mut value = (self.counter ^ self.keys[0]) & self.mask;
            self.counter = self.counter.wrapping_add(1);
            value = value.wrapping_mul(self.keys[1]) & self.mask;
            value ^= value >> self.shift;
            value = value.wrapping_mul(self.keys[2]) & self.mask;
            value ^= value >> self.shift;
            if value < self.blocks {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn a_map_visits_each_block_once_a_pass(blocks in 1u64..5000, seed: u64) {
            let mut offsets = Offsets::mapped(blocks, Random::new(seed, 0));
            let mut orders = Vec::new();
            for _ in 0..2 {
                let mut seen = vec![false; blocks as usize];
                let order: Vec<u64> = (0..blocks).map(|_| offsets.next_block()).collect();
                for block in &order {
                    prop_assert!(!std::mem::replace(&mut seen[*block as usize], true), "block {block} twice of {blocks}");
                }
                orders.push(order);
            }
            prop_assert!(blocks < 20 || orders[0] != orders[1], "both passes went the same way");
        }

        #[test]
        fn free_blocks_stay_inside(blocks in 1u64.., seed: u64) {
            let mut offsets = Offsets::free(blocks, Random::new(seed, 1));
            for _ in 0..50 {
                prop_assert!(offsets.next_block() < blocks);
            }
        }
    }

    #[test]
    fn sequences_wrap() {
        let mut offsets = Offsets::sequential(3);
        let visited: Vec<u64> = (0..7).map(|_| offsets.next_block()).collect();
        assert_eq!(visited, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_map_is_spread_like_chance() {
        // Of neighbours in the order, the mean distance of a random permutation is a third of the range.
        let blocks = 1 << 16;
        let mut offsets = Offsets::mapped(blocks, Random::new(7, 0));
        let mut last = offsets.next_block();
        let mut sum = 0;
        for _ in 1..blocks {
            let block = offsets.next_block();
            sum += block.abs_diff(last);
            last = block;
        }
        let mean = sum / blocks;
        assert!(
            mean.abs_diff(blocks / 3) < blocks / 30,
            "mean distance {mean} of {blocks}"
        );
    }

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |seed, stream| Random::new(seed, stream).word();
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }
}
