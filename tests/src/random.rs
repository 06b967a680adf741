//! Seeded pseudo-random numbers (splitmix64).

use std::time::Duration;

/// Seeded generator.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns true with a probability of `percent` per cent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + (most - least).mul_f64(self.unit())
    }

    /// Returns an exponentially distributed time, capped at eight times the mean.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64((-self.unit().ln()).min(8.0))
    }

    /// Returns a number in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_has_its_mean() {
        let mut random = SeededRandom::new(1);
        let sum: Duration =
            (0..10_000).map(|_| random.exponential(Duration::from_millis(10))).sum();
        let mean = sum / 10_000;
        assert!(mean > Duration::from_millis(9) && mean < Duration::from_millis(11), "{mean:?}");
    }
}
