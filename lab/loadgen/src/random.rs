//! Reproducible random numbers.

use std::time::Duration;

/// Marsaglia's xorshift64*.
pub(crate) struct XorShiftRandom(u64);

impl XorShiftRandom {
    pub(crate) fn new(seed: u64) -> Self {
        // Adjacent seeds must not start with similar draws, and zero would stay zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Draws from an exponential distribution: gaps between independent arrivals, and service times of great variance.
    pub(crate) fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-self.unit().ln())
    }

    /// Draws from (0, 1].
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_draws_have_their_mean_and_spread() {
        let mut random = XorShiftRandom::new(7);
        let draws: Vec<f64> = (0..20_000)
            .map(|_| random.exponential(Duration::from_millis(10)).as_secs_f64())
            .collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let above_mean = draws.iter().filter(|&&draw| draw > 0.010).count() as f64;
        assert!((0.0097..0.0103).contains(&mean), "{mean}");
        // One in e.
        assert!((0.36..0.376).contains(&(above_mean / draws.len() as f64)), "{above_mean}");
    }
}
