//! For what a client's HTTP/2 connection is ended before it would end by itself. One table, with the words of the metric.

use h2::{Error, Reason};

/// What a client did, or did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum H2ClientFault {
    /// It did not begin as HTTP/2 begins.
    Preface,
    /// A head was begun and not completed in time.
    SlowHead,
    /// A head that did not end.
    Fields,
    /// More streams were reset than anybody has reason to.
    Resets,
    /// More frames that only keep us busy than anybody has reason to send.
    Control,
    /// Other work for nothing, by the library's count: heads that unfold, empty frames, malformed requests.
    Excess,
    /// HTTP/2 was not spoken as its rules are.
    Protocol,
    /// It did not answer in time when it was asked whether it is still there.
    KeepaliveTimeout,
}

impl H2ClientFault {
    /// Every one, for the metrics.
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

    /// The metric's label.
    pub(crate) fn word(self) -> &'static str {
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

    /// What the library found fault with, perhaps amid a head; `None`: the client has only left.
    pub(super) fn from_error(error: &Error, amid_head: bool) -> Option<Self> {
        if !error.is_library() {
            return None;
        }
        Some(match error.reason() {
            // The library does not tell what there was too much of; amid a head it can only be fields.
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
        let mut words = HashSet::new();
        for (place, fault) in H2ClientFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
            assert!(words.insert(fault.word()), "{fault:?}");
        }
    }
}
