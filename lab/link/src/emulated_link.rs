//! One direction of the link: computes whether a packet arrives, and when. Time and seed are arguments; no packet is
//! forwarded here.

use std::time::Duration;

use crate::conditions::LinkConditions;

/// Bottleneck with a queue in front of it, followed by a wire that delays and loses packets.
pub(crate) struct EmulatedLink {
    conditions: LinkConditions,
    chance: SplitMixRandom,
    /// Time at which the last accepted packet leaves the bottleneck.
    free_at: Duration,
}

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PacketOutcome {
    Arrives(Duration),
    /// Lost on the wire, after its transmission at the bottleneck.
    Lost,
    /// Dropped, because the queue had no room for it.
    QueueFull,
}

impl EmulatedLink {
    pub(crate) fn new(conditions: LinkConditions, seed: u64) -> Self {
        Self { conditions, chance: SplitMixRandom(seed), free_at: Duration::ZERO }
    }

    /// Computes the outcome of a packet of this size that is sent now. Packets keep their order.
    pub(crate) fn send(&mut self, now: Duration, bytes: usize) -> PacketOutcome {
        if self.waiting_bytes(now) > self.queue_room(bytes) {
            return PacketOutcome::QueueFull;
        }
        self.free_at = self.free_at.max(now) + self.transmission(bytes);
        if self.chance.draw() < self.conditions.loss {
            return PacketOutcome::Lost;
        }
        PacketOutcome::Arrives(self.free_at + self.conditions.delay)
    }

    /// Returns the bytes that have not left the bottleneck, including the packet in transmission.
    fn waiting_bytes(&self, now: Duration) -> u64 {
        let Some(rate) = self.conditions.bits_per_second else { return 0 };
        let busy = self.free_at.saturating_sub(now).as_nanos();
        (busy * u128::from(rate.get()) / 8_000_000_000) as u64
    }

    fn queue_room(&self, bytes: usize) -> u64 {
        self.conditions.queue_bytes.saturating_sub(bytes as u64)
    }

    fn transmission(&self, bytes: usize) -> Duration {
        match self.conditions.bits_per_second {
            Some(rate) => Duration::from_nanos(bytes as u64 * 8_000_000_000 / rate),
            None => Duration::ZERO,
        }
    }
}

/// Reproducible random numbers: Steele's SplitMix64.
struct SplitMixRandom(u64);

impl SplitMixRandom {
    /// Draws from [0, 1).
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn line(conditions: &str) -> EmulatedLink {
        EmulatedLink::new(conditions.parse().unwrap(), 7)
    }

    #[test]
    fn packet_takes_the_delay_plus_its_transmission_time() {
        let mut far = line("delay-us=50000");
        assert_eq!(far.send(MILLISECOND, 1500), PacketOutcome::Arrives(51 * MILLISECOND));
        // 1,250 bytes at 10 Mbit/s are a millisecond.
        let mut slow = line("delay-us=50000,kbit=10000");
        assert_eq!(slow.send(MILLISECOND, 1250), PacketOutcome::Arrives(52 * MILLISECOND));
    }

    #[test]
    fn packets_are_transmitted_one_after_the_other() {
        let mut slow = line("delay-us=5000,kbit=10000");
        let fates: Vec<PacketOutcome> = (0..3).map(|_| slow.send(Duration::ZERO, 1250)).collect();
        assert_eq!(fates, [6, 7, 8].map(|at| PacketOutcome::Arrives(at * MILLISECOND)));
        // After an idle time, a packet does not wait for earlier ones.
        assert_eq!(slow.send(100 * MILLISECOND, 1250), PacketOutcome::Arrives(106 * MILLISECOND));
    }

    #[test]
    fn full_queue_drops_packets_until_one_has_left() {
        let mut slow = line("kbit=10000,queue-bytes=3750");
        let fates: Vec<PacketOutcome> = (0..5).map(|_| slow.send(Duration::ZERO, 1250)).collect();
        let arrives = |at| PacketOutcome::Arrives(at * MILLISECOND);
        assert_eq!(
            fates,
            [
                arrives(1),
                arrives(2),
                arrives(3),
                PacketOutcome::QueueFull,
                PacketOutcome::QueueFull
            ]
        );
        // A dropped packet takes no transmission time.
        assert_eq!(slow.send(MILLISECOND, 1250), arrives(4));
        assert_eq!(slow.send(MILLISECOND, 1250), PacketOutcome::QueueFull);
    }

    #[test]
    fn losses_are_independent_and_at_the_configured_rate() {
        let mut lossy = line("loss=0.01");
        let lost: Vec<bool> =
            (0..200_000).map(|_| lossy.send(Duration::ZERO, 1500) == PacketOutcome::Lost).collect();
        let count = lost.iter().filter(|&&lost| lost).count();
        // Within four standard deviations (44.5) of 2,000.
        assert!((1_822..=2_178).contains(&count), "{count}");
        // Losses are independent: 20 pairs of successive losses are expected.
        let pairs = lost.windows(2).filter(|pair| pair[0] && pair[1]).count();
        assert!((3..=40).contains(&pairs), "{pairs}");
    }

    #[test]
    fn lost_packet_still_takes_transmission_time() {
        let mut lossy = line("kbit=10000,loss=1");
        assert_eq!(lossy.send(Duration::ZERO, 1250), PacketOutcome::Lost);
        assert_eq!(lossy.free_at, MILLISECOND);
    }

    #[test]
    fn same_seed_loses_the_same_packets() {
        let lost = |seed| -> Vec<bool> {
            let mut line = EmulatedLink::new("loss=0.5".parse().unwrap(), seed);
            (0..64).map(|_| line.send(Duration::ZERO, 100) == PacketOutcome::Lost).collect()
        };
        assert_eq!(lost(3), lost(3));
        assert_ne!(lost(3), lost(4));
    }
}
