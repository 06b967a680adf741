//! Flood detection for QUIC: weighs the frames of a client against what they can be good for.
//!
//! A frame of two bytes takes as much work as a request, and a datagram has room for hundreds of them. The library
//! processes a datagram whole and counts its frames. So the account is settled after each turn of the driver, by what
//! the counts have grown, and not frame by frame.

use std::time::Instant;

use quinn_proto::{ConnectionStats, FrameStats};

/// Frames allowed at once, in addition to those that are earned; a tenth of it is refilled each second.
const FRAME_BURST: u64 = 10_000;
/// Frames that one received datagram earns: so many take less work than the datagram itself.
const EARNED_BY_DATAGRAM: u64 = 16;
/// Frames that one STREAM frame to the client earns. It may answer a request, or cause updates of the windows of the
/// stream and of the connection.
const EARNED_BY_STREAM_FRAME: u64 = 10;
/// Frames about paths and connection IDs that are allowed at once; a tenth of it is refilled each second. A client needs
/// a few when it changes its address, and one or two after ten thousand packets if it changes its IDs.
///
/// A PATH_CHALLENGE from another address is answered there by a datagram of 1,200 bytes, even if it came in a short one
/// and the address is false. So this also bounds what can be sent to the address of another.
const PATH_FRAME_BURST: u64 = 100;

/// Account of the frames of one client connection.
pub(super) struct FloodDetector {
    seen: FrameTotals,
    frames: FrameAllowance,
    path_frames: FrameAllowance,
}

impl FloodDetector {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            seen: FrameTotals::default(),
            frames: FrameAllowance::new(FRAME_BURST, now),
            path_frames: FrameAllowance::new(PATH_FRAME_BURST, now),
        }
    }

    /// Settles the account with the current counts of the connection. Returns false if the client floods it.
    pub(super) fn settle(&mut self, stats: &ConnectionStats, now: Instant) -> bool {
        let totals = FrameTotals::new(stats);
        let seen = std::mem::replace(&mut self.seen, totals);
        let earned = EARNED_BY_DATAGRAM * (totals.datagrams - seen.datagrams)
            + EARNED_BY_STREAM_FRAME * (totals.stream_frames_sent - seen.stream_frames_sent);
        self.frames.settle(totals.frames - seen.frames, earned, now)
            && self.path_frames.settle(totals.path_frames - seen.path_frames, 0, now)
    }
}

/// Counts of a connection since its beginning.
#[derive(Clone, Copy, Default)]
struct FrameTotals {
    /// Frames from the client, of any type but PADDING.
    frames: u64,
    /// Those about paths and connection IDs.
    path_frames: u64,
    /// Datagrams from the client.
    datagrams: u64,
    /// STREAM frames to the client.
    stream_frames_sent: u64,
}

impl FrameTotals {
    fn new(stats: &ConnectionStats) -> Self {
        let path_frames = path_frames(&stats.frame_rx);
        Self {
            frames: path_frames + other_frames(&stats.frame_rx),
            path_frames,
            datagrams: stats.udp_rx.datagrams,
            stream_frames_sent: stats.frame_tx.stream,
        }
    }
}

fn path_frames(received: &FrameStats) -> u64 {
    received.path_challenge + received.new_connection_id + received.retire_connection_id
}

fn other_frames(received: &FrameStats) -> u64 {
    let on_streams = received.stream
        + received.reset_stream
        + received.stop_sending
        + received.max_stream_data
        + received.stream_data_blocked;
    let on_connection = received.max_data
        + received.max_streams_bidi
        + received.max_streams_uni
        + received.data_blocked
        + received.streams_blocked_bidi
        + received.streams_blocked_uni;
    let on_packets = received.acks
        + received.ping
        + received.crypto
        + received.path_response
        + received.ack_frequency
        + received.immediate_ack;
    on_streams + on_connection + on_packets
}

/// Token bucket of frames.
struct FrameAllowance {
    left: u64,
    capacity: u64,
    refilled_at: Instant,
}

impl FrameAllowance {
    fn new(capacity: u64, now: Instant) -> Self {
        Self { left: capacity, capacity, refilled_at: now }
    }

    /// Adds what was earned and takes what was spent, in one step. Returns false if it is not enough.
    fn settle(&mut self, spent: u64, earned: u64, now: Instant) -> bool {
        self.add(earned.saturating_sub(spent));
        let missing = spent.saturating_sub(earned);
        if missing > self.left {
            self.refill(now);
        }
        let is_enough = missing <= self.left;
        self.left = self.left.saturating_sub(missing);
        is_enough
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled_at).as_millis();
        let refilled = passed * u128::from(self.capacity) / 10_000;
        // A time that is too short for a token counts on.
        if refilled > 0 {
            self.refilled_at = now;
            self.add(u64::try_from(refilled).unwrap_or(u64::MAX));
        }
    }

    fn add(&mut self, count: u64) {
        self.left = self.left.saturating_add(count).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tests::now;

    /// Lets `frames` count the frames of each turn, and returns the number of turns until the flood is noticed.
    fn turns(most: u32, turn: impl Fn(&mut ConnectionStats), pause: Duration) -> Option<u32> {
        let (mut time, mut stats) = (now(), ConnectionStats::default());
        let mut detector = FloodDetector::new(time);
        (0..most).find(|_| {
            time += pause;
            turn(&mut stats);
            !detector.settle(&stats, time)
        })
    }

    #[test]
    fn datagrams_full_of_small_frames_are_a_flood() {
        let full = |stats: &mut ConnectionStats| {
            stats.udp_rx.datagrams += 1;
            stats.frame_rx.ping += 500;
            stats.frame_rx.max_data += 100;
        };
        let noticed = turns(1000, full, Duration::from_micros(10)).unwrap();
        assert_eq!(u64::from(noticed), FRAME_BURST / (600 - EARNED_BY_DATAGRAM));
    }

    #[test]
    fn each_kind_of_frame_counts() {
        let kinds: [fn(&mut FrameStats) -> &mut u64; 20] = [
            |frames| &mut frames.acks,
            |frames| &mut frames.ack_frequency,
            |frames| &mut frames.crypto,
            |frames| &mut frames.data_blocked,
            |frames| &mut frames.immediate_ack,
            |frames| &mut frames.max_data,
            |frames| &mut frames.max_stream_data,
            |frames| &mut frames.max_streams_bidi,
            |frames| &mut frames.max_streams_uni,
            |frames| &mut frames.new_connection_id,
            |frames| &mut frames.path_challenge,
            |frames| &mut frames.path_response,
            |frames| &mut frames.ping,
            |frames| &mut frames.reset_stream,
            |frames| &mut frames.retire_connection_id,
            |frames| &mut frames.stream_data_blocked,
            |frames| &mut frames.streams_blocked_bidi,
            |frames| &mut frames.streams_blocked_uni,
            |frames| &mut frames.stop_sending,
            |frames| &mut frames.stream,
        ];
        for (place, kind) in kinds.into_iter().enumerate() {
            let full = |stats: &mut ConnectionStats| {
                stats.udp_rx.datagrams += 1;
                *kind(&mut stats.frame_rx) += 100;
            };
            assert!(turns(1000, full, Duration::from_micros(10)).is_some(), "{place}");
        }
    }

    #[test]
    fn path_challenge_in_each_datagram_is_a_flood() {
        let probe = |stats: &mut ConnectionStats| {
            stats.udp_rx.datagrams += 1;
            stats.frame_rx.path_challenge += 1;
        };
        let noticed = turns(10_000, probe, Duration::from_millis(1)).unwrap();
        assert!((100..150).contains(&noticed), "{noticed}");
        assert_eq!(turns(1000, probe, Duration::from_millis(100)), None, "ten a second");
    }

    #[test]
    fn honest_clients_are_no_flood() {
        // Short requests in one datagram, each with a response and updates of windows.
        let requests = |stats: &mut ConnectionStats| {
            stats.udp_rx.datagrams += 1;
            stats.frame_rx.acks += 1;
            stats.frame_rx.stream += 40;
            stats.frame_rx.max_stream_data += 80;
            stats.frame_rx.stop_sending += 40;
            stats.frame_tx.stream += 40;
        };
        let upload = |stats: &mut ConnectionStats| {
            stats.udp_rx.datagrams += 1000;
            stats.frame_rx.acks += 1000;
            stats.frame_rx.stream += 10_000;
            stats.frame_rx.data_blocked += 1000;
        };
        let keep_alive = |stats: &mut ConnectionStats| {
            stats.udp_rx.datagrams += 1;
            stats.frame_rx.ping += 1;
        };
        assert_eq!(turns(10_000, requests, Duration::ZERO), None);
        assert_eq!(turns(10_000, upload, Duration::ZERO), None);
        assert_eq!(turns(100_000, keep_alive, Duration::ZERO), None);
    }
}
