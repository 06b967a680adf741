//! Transport parameters that we announce, and settings for sending.

use std::sync::Arc;
use std::time::Duration;

use gateway::snapshot::CongestionControl;
use quinn_proto::congestion::{BbrConfig, ControllerFactory};
use quinn_proto::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::cubic::CubicFactory;

/// Receive window of one stream, in bytes: as over HTTP/2.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Receive window of one connection, in bytes.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Unidirectional streams of the peer: its control stream, two of QPACK, and some that mean nothing (RFC 9114 §6.2).
const UNI_STREAMS: u32 = 16;
/// Handshake bytes that may arrive out of order.
const CRYPTO_BUFFER: usize = 16 * 1024;
/// Bounds of the bytes of a connection that may be written and unacknowledged; the bound follows the congestion
/// window.
const LEAST_UNACKNOWLEDGED: u64 = 256 * 1024;
const MOST_UNACKNOWLEDGED: u64 = 4 * 1024 * 1024;
/// Initial size of datagrams; larger sizes are probed (RFC 8899).
const FIRST_DATAGRAM: u16 = 1200;
/// The largest size that is probed: an Ethernet frame's worth over IPv4, and the most that browsers accept.
const LARGEST_DATAGRAM: u16 = 1472;
/// Precision of the search for the path's MTU: an Ethernet frame's worth over IPv6 is 20 bytes less.
const DATAGRAM_STEP: u16 = 4;

/// Settings that differ from connection to connection.
pub(super) struct TransportOptions {
    /// Bidirectional streams that the peer may have open at a time.
    pub(super) bi_streams: u32,
    /// The idle timeout: after this time without a packet from the peer the connection is closed.
    pub(super) idle_timeout: Duration,
    /// The interval of PINGs to the peer, if any are sent.
    pub(super) keep_alive: Option<Duration>,
    /// The congestion control algorithm.
    pub(super) congestion_control: CongestionControl,
}

impl TransportOptions {
    pub(super) fn config(&self) -> Arc<TransportConfig> {
        let mut larger = MtuDiscoveryConfig::default();
        larger.upper_bound(LARGEST_DATAGRAM).minimum_change(DATAGRAM_STEP);
        let mut config = TransportConfig::default();
        // A timeout that QUIC cannot encode becomes the longest that it can.
        let idle =
            IdleTimeout::try_from(self.idle_timeout).unwrap_or_else(|_longer| VarInt::MAX.into());
        config
            .max_concurrent_bidi_streams(self.bi_streams.into())
            .max_concurrent_uni_streams(UNI_STREAMS.into())
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(self.keep_alive)
            .stream_receive_window(STREAM_WINDOW.into())
            .receive_window(CONNECTION_WINDOW.into())
            .send_window(LEAST_UNACKNOWLEDGED)
            .crypto_buffer_size(CRYPTO_BUFFER)
            .initial_mtu(FIRST_DATAGRAM)
            .mtu_discovery_config(Some(larger))
            .datagram_receive_buffer_size(None)
            .congestion_controller_factory(self.controllers());
        Arc::new(config)
    }

    fn controllers(&self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self.congestion_control {
            CongestionControl::Cubic => Arc::new(CubicFactory),
            CongestionControl::Bbr => Arc::new(BbrConfig::default()),
        }
    }
}

/// Returns the bytes that may be written and unacknowledged, for a congestion window of `window` bytes: twice that, so
/// that there is always more to send, and a client that reads slowly does not make us buffer what it cannot get yet.
pub(super) fn max_unacknowledged(window: u64) -> u64 {
    window.saturating_mul(2).clamp(LEAST_UNACKNOWLEDGED, MOST_UNACKNOWLEDGED)
}

/// Returns the same bound for the most urgent stream, from the bound `most` of the others: half as much again.
pub(super) fn max_unacknowledged_of_leader(most: u64) -> u64 {
    most + most / 2
}

#[cfg(test)]
mod tests {
    use quinn_proto::congestion::Bbr;

    use super::*;
    use crate::tests::now;

    #[test]
    fn unacknowledged_bytes_bound_follows_the_congestion_window() {
        assert_eq!(max_unacknowledged(12_000), LEAST_UNACKNOWLEDGED);
        assert_eq!(max_unacknowledged(1_000_000), 2_000_000);
        assert_eq!(max_unacknowledged(u64::MAX), MOST_UNACKNOWLEDGED);
    }

    fn terms(congestion_control: CongestionControl) -> TransportOptions {
        TransportOptions {
            bi_streams: 1,
            idle_timeout: Duration::MAX,
            keep_alive: None,
            congestion_control,
        }
    }

    #[test]
    fn huge_idle_timeout_does_not_overflow() {
        // The conversion does not panic.
        drop(terms(CongestionControl::Cubic).config());
    }

    #[test]
    fn path_uses_the_configured_congestion_controller() {
        let is_bbr = |asked| {
            let controller = terms(asked).controllers().build(now(), FIRST_DATAGRAM);
            controller.into_any().is::<Bbr>()
        };
        assert!(is_bbr(CongestionControl::Bbr));
        assert!(!is_bbr(CongestionControl::Cubic));
    }
}
