//! Contents that can be checked: every aligned 8-byte word of a namespace is a function of its place.
//!
//! The word at byte offset `o` is `mix(seed + (o / 8 + 1) * G)`, little-endian, with the constant and the mixing steps of the
//! SplitMix64 generator (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). A block that landed in the
//! wrong place, or is a stale copy of another, therefore differs in nearly every word.

/// The SplitMix64 increment.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64-bit words in which every input bit touches every output bit.
#[inline]
pub const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The word at byte offset `offset` (a multiple of 8) of a namespace.
#[inline]
pub const fn word(seed: u64, offset: u64) -> u64 {
    mix(seed.wrapping_add((offset / 8 + 1).wrapping_mul(GAMMA)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_splitmix64() {
        // First outputs of the published generator with seed 1234567.
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        for (i, value) in expected.into_iter().enumerate() {
            assert_eq!(word(1_234_567, i as u64 * 8), value);
        }
    }
}
