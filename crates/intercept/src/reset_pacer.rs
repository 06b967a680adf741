//! The rate at which connections that bypass are reset, so that their clients do not all come back at once.

use std::time::Duration;

/// Most resets that are due at once, however late the caller asks.
const MAX_BURST: u32 = 64;

/// Says how many connections may be reset now: about `per_second`, at random times. Pure: time and randomness are
/// handed in.
#[derive(Clone, Debug)]
pub struct ResetPacer {
    mean_interval: Duration,
    next: Duration,
}

impl ResetPacer {
    /// Returns a pacer for this rate, 1 to 10,000 a second, that begins now.
    pub fn new(now: Duration, per_second: u32) -> Self {
        Self { mean_interval: Duration::from_secs(1) / per_second.clamp(1, 10_000), next: now }
    }

    /// Returns the number of resets that are due. `random` gives any 64-bit numbers, evenly distributed.
    pub fn due(&mut self, now: Duration, mut random: impl FnMut() -> u64) -> usize {
        let mut due = 0;
        while self.next <= now && due < MAX_BURST {
            due += 1;
            // Between a half and one and a half of the mean.
            let share = 0.5 + random() as f64 / u64::MAX as f64;
            self.next += self.mean_interval.mul_f64(share);
        }
        // A late caller does not catch up.
        if due == MAX_BURST {
            self.next = self.next.max(now);
        }
        due as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> impl FnMut() -> u64 {
        let mut state = 1_u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.rotate_left(32)
        }
    }

    #[test]
    fn resets_come_at_the_rate_and_jittered() {
        let mut pacer = ResetPacer::new(Duration::ZERO, 100);
        let mut random = random();
        let steps = (0..10_000).map(|ms| pacer.due(Duration::from_millis(ms), &mut random));
        let steps: Vec<_> = steps.collect();
        let total: usize = steps.iter().sum();
        assert!((950..1050).contains(&total), "{total} in 10 s at 100/s");
        assert!(steps.iter().all(|due| *due <= 1));
    }

    #[test]
    fn late_caller_gets_a_bounded_burst() {
        let mut pacer = ResetPacer::new(Duration::ZERO, 10_000);
        let mut random = random();
        let later = Duration::from_secs(3600);
        assert_eq!(pacer.due(later, &mut random), 64);
        assert!(pacer.due(later, &mut random) <= 1);
    }
}
