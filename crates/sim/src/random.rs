//! Draws random values from a seed: numbers, chances and durations.

use std::time::Duration;

use balance::Rng;

pub(crate) struct RandomSource(Rng);

/// Distribution of service times around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceVariance {
    None,
    /// Uniform between half and one and a half.
    Low,
    Exponential,
    /// One in twenty is about twenty times as long as the others; the variance is that of ten
    /// exponentials.
    High,
}

impl RandomSource {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    pub(crate) fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.0.below((high - low) as usize + 1) as u32
    }

    pub(crate) fn percent(&mut self, chance: u32) -> bool {
        self.between(1, 100) <= chance
    }

    /// Returns an exponentially distributed duration, cut off at `EXPONENTIAL_CUTOFF` times the
    /// mean.
    pub(crate) fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(self.exponential_factor())
    }

    /// Returns a duration as a multiple of its mean.
    pub(crate) fn service_factor(&mut self, variance: ServiceVariance) -> f64 {
        match variance {
            ServiceVariance::None => 1.0,
            ServiceVariance::Low => f64::from(self.between(500, 1500)) / 1000.0,
            ServiceVariance::Exponential => self.exponential_factor(),
            ServiceVariance::High if self.percent(5) => self.exponential_factor() * 10.5,
            ServiceVariance::High => self.exponential_factor() * 0.5,
        }
    }

    fn exponential_factor(&mut self) -> f64 {
        // 53 bits make a fraction in (0, 1].
        let fraction = ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-fraction.ln()).min(f64::from(EXPONENTIAL_CUTOFF))
    }
}

/// Maximum of an exponentially distributed duration, as a multiple of its mean: one in 3000 is cut
/// off.
pub(crate) const EXPONENTIAL_CUTOFF: u32 = 8;
