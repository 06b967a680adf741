//! Reasons for which we end a client's HTTP/3 connection early. One table, with the metric labels.

use codec::h3::H3ErrorCode;
use quic::CloseReason;

/// Misbehaviour of an HTTP/3 client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum H3ClientFault {
    /// The client cancelled more requests than its allowance.
    Resets,
    /// Other excessive load.
    Excess,
    /// The client violated the HTTP/3 or QPACK protocol.
    Protocol,
    /// The client violated the QUIC protocol.
    Transport,
    /// The client fell silent for longer than the idle timeout while requests were in flight.
    IdleTimeout,
}

impl H3ClientFault {
    /// All faults, for the metrics.
    pub(crate) const ALL: [Self; 5] =
        [Self::Resets, Self::Excess, Self::Protocol, Self::Transport, Self::IdleTimeout];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Resets => "resets",
            Self::Excess => "excess",
            Self::Protocol => "protocol",
            Self::Transport => "transport",
            Self::IdleTimeout => "silent",
        }
    }

    /// Returns the fault behind a connection that we close with this code.
    pub(super) fn from_code(code: H3ErrorCode) -> Self {
        if code == H3ErrorCode::EXCESSIVE_LOAD { Self::Excess } else { Self::Protocol }
    }

    /// Returns the fault behind the end of a connection; `None` if the client has only
    /// disconnected.
    pub(super) fn from_close(closed: CloseReason, is_busy: bool) -> Option<Self> {
        match closed {
            CloseReason::Transport => Some(Self::Transport),
            CloseReason::Flood => Some(Self::Excess),
            // One of its requests has detected an error of the whole connection.
            CloseReason::ByUs => Some(Self::Protocol),
            CloseReason::TimedOut => is_busy.then_some(Self::IdleTimeout),
            CloseReason::ByPeer { .. }
            | CloseReason::Refused
            | CloseReason::TlsFailed(_)
            | CloseReason::Reset
            | CloseReason::VersionMismatch => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::H3ClientFault;

    #[test]
    fn fault_indices_and_labels_are_unique() {
        let mut labels = HashSet::new();
        for (place, fault) in H3ClientFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
            assert!(labels.insert(fault.label()), "{fault:?}");
        }
    }
}
