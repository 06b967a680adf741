//! Reasons for which we end a client's HTTP/2 connection early. One table, with the metric labels.

use h2::{Error, Reason};

/// Misbehaviour of an HTTP/2 client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum H2ClientFault {
    /// The connection preface is missing or wrong.
    Preface,
    /// A head was not completed within the timeout.
    SlowHead,
    /// A head exceeded the limit on its fields.
    Fields,
    /// The client reset more streams than its allowance.
    Resets,
    /// The client sent more control frames than its allowance.
    Control,
    /// Other excessive load, as the library counts it: large decompressed heads, empty frames,
    /// malformed requests.
    Excess,
    /// The client violated the HTTP/2 protocol.
    Protocol,
    /// The client did not answer a keepalive ping in time.
    KeepaliveTimeout,
}

impl H2ClientFault {
    /// All faults, for the metrics.
    pub(crate) const ALL: [Self; 8] = [
        Self::Preface,
        Self::SlowHead,
        Self::Fields,
        Self::Resets,
        Self::Control,
        Self::Excess,
        Self::Protocol,
        Self::KeepaliveTimeout,
    ];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Preface => "preface",
            Self::SlowHead => "slow_head",
            Self::Fields => "fields",
            Self::Resets => "resets",
            Self::Control => "control",
            Self::Excess => "excess",
            Self::Protocol => "protocol",
            Self::KeepaliveTimeout => "silent",
        }
    }

    /// Returns the fault behind a library error, which may have occurred within a head; `None` if
    /// the client has only disconnected.
    pub(super) fn from_error(error: &Error, amid_head: bool) -> Option<Self> {
        if !error.is_library() {
            return None;
        }
        Some(match error.reason() {
            // The library does not tell which limit was exceeded; within a head it can only be the
            // fields.
            Some(Reason::ENHANCE_YOUR_CALM) if amid_head => Self::Fields,
            Some(Reason::ENHANCE_YOUR_CALM) => Self::Excess,
            Some(_) | None => Self::Protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::H2ClientFault;

    #[test]
    fn fault_indices_and_labels_are_unique() {
        let mut labels = HashSet::new();
        for (place, fault) in H2ClientFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
            assert!(labels.insert(fault.label()), "{fault:?}");
        }
    }
}
