//! Seeded random numbers: the same seed gives the same sequence, on every machine.

/// SplitMix64: eight bytes of state; every seed is as good as any other.
///
/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014). Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Rng {
    /// Returns a generator whose whole sequence is determined by `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        debug_assert!(n > 0, "there is no number below 0");
        // Multiply and shift: the bias is below n / 2^64, and no division is needed.
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }
}

/// Mixes the bits of a number: each bit of the result depends on all.
pub(crate) fn mix(bits: u64) -> u64 {
    let mut bits = bits.wrapping_add(STEP);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_the_reference_sequence() {
        let mut rng = Rng::new(1234567);
        assert_eq!(rng.next_u64(), 6457827717110365317);
        assert_eq!(rng.next_u64(), 3203168211198807973);
    }

    #[test]
    fn below_is_uniformly_distributed() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 5];
        for _ in 0..50_000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|times| (9_500..10_500).contains(times)), "{seen:?}");
    }
}
