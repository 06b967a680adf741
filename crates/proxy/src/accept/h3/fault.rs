//! For what a client's HTTP/3 connection is ended before it would end by itself. One table, with the words of the metric.

use crate::h3::H3ErrorCode;
use crate::quic::CloseReason;

/// What a client did, or did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum H3ClientFault {
    /// More requests were given up than anybody has reason to.
    Resets,
    /// Other work for nothing.
    Excess,
    /// HTTP/3 was not spoken as its rules are, or QPACK.
    Protocol,
    /// QUIC was not.
    Transport,
    /// Nothing has been heard of it for too long, though requests were under way.
    IdleTimeout,
}

impl H3ClientFault {
    /// Every one, for the metrics.
    pub(crate) const ALL: [Self; 5] =
        [Self::Resets, Self::Excess, Self::Protocol, Self::Transport, Self::IdleTimeout];

    /// The metric's label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Resets => "resets",
            Self::Excess => "excess",
            Self::Protocol => "protocol",
            Self::Transport => "transport",
            Self::IdleTimeout => "silent",
        }
    }

    /// What a connection is closed for with this code.
    pub(super) fn from_code(code: H3ErrorCode) -> Self {
        if code == H3ErrorCode::EXCESSIVE_LOAD { Self::Excess } else { Self::Protocol }
    }

    /// What is wrong with a connection that has ended so; `None`: the client has only left.
    pub(super) fn from_close(closed: CloseReason, is_busy: bool) -> Option<Self> {
        match closed {
            CloseReason::Transport => Some(Self::Transport),
            // One of its requests has found what makes the connection useless.
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
        let mut words = HashSet::new();
        for (place, fault) in H3ClientFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
            assert!(words.insert(fault.word()), "{fault:?}");
        }
    }
}
