//! Counts of events since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of events since the start. Each is useful by itself, so they order no other memory.
#[derive(Debug, Default)]
pub struct ChannelCounts {
    /// Messages sent.
    pub messages_sent: AtomicU64,
    /// Messages received, checked and handed to the consumer.
    pub messages_received: AtomicU64,
    /// Bytes of frames sent, before TLS.
    pub bytes_sent: AtomicU64,
    /// Bytes of frames received, before TLS.
    pub bytes_received: AtomicU64,
    /// Messages that a newer one has replaced before they were sent.
    pub messages_replaced: AtomicU64,
    /// Messages that were not sent: the peer is not a member, or the message is too large.
    pub messages_dropped: AtomicU64,
    /// Connections dialled and accepted by the peer.
    pub connects: AtomicU64,
    /// Attempts to connect that failed.
    pub connects_failed: AtomicU64,
    /// Members or certificates that could not be used; the former ones stay in use.
    pub updates_refused: AtomicU64,
    refused: [AtomicU64; RefusalReason::ALL.len()],
}

impl ChannelCounts {
    /// Returns the number of connections and messages of peers that were refused.
    pub fn refused(&self, reason: RefusalReason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self, reason: RefusalReason) {
        count(&self.refused[reason as usize], 1);
    }
}

pub(crate) fn count(counter: &AtomicU64, events: usize) {
    counter.fetch_add(events as u64, Ordering::Relaxed);
}

/// Reason why a connection is closed, or a message ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The connection comes from an address that no peer has.
    Source,
    /// The address has too many connections in their handshake; the oldest is closed.
    Handshakes,
    /// The handshakes have taken too long.
    Timeout,
    /// The connection is not TLS as we require it, or the other side has ended its handshake.
    Tls,
    /// The certificate is missing, not trusted, expired, or not for replicas.
    Certificate,
    /// The bytes are not a frame, or the first frame is not an introduction.
    Malformed,
    /// A frame is larger than allowed.
    FrameSize,
    /// The protocol version, or that of a message, is not ours.
    Version,
    /// The sender is not a member.
    UnknownMember,
    /// The sender was started again, and its successor is connected.
    StaleIncarnation,
    /// A message names another sender than its connection.
    Sender,
    /// A field of a message is impossible, or there are too many entries.
    Absurd,
    /// The message has secrets, and its connection is not encrypted.
    Unencrypted,
}

impl RefusalReason {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Source,
        Self::Handshakes,
        Self::Timeout,
        Self::Tls,
        Self::Certificate,
        Self::Malformed,
        Self::FrameSize,
        Self::Version,
        Self::UnknownMember,
        Self::StaleIncarnation,
        Self::Sender,
        Self::Absurd,
        Self::Unencrypted,
    ];

    /// Returns the name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Handshakes => "handshakes",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Certificate => "certificate",
            Self::Malformed => "malformed",
            Self::FrameSize => "frame_size",
            Self::Version => "version",
            Self::UnknownMember => "unknown_member",
            Self::StaleIncarnation => "stale_incarnation",
            Self::Sender => "sender",
            Self::Absurd => "absurd",
            Self::Unencrypted => "unencrypted",
        }
    }
}
