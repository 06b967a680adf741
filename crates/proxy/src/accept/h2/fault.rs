//! For what a client's HTTP/2 connection is ended before it would end by itself. One table, with the words of the metric.

use h2::{Error, Reason};

/// What a client did, or did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It did not begin as HTTP/2 begins.
    Preface,
    /// A head was begun and not completed in time.
    SlowHead,
    /// Heads of too many or too long fields, or one that did not end.
    Fields,
    /// More streams were reset than anybody has reason to.
    Resets,
    /// More frames that only keep us busy than anybody has reason to send.
    Control,
    /// Other work for nothing, by the library's count: empty frames, malformed requests.
    Excess,
    /// HTTP/2 was not spoken as its rules are.
    Protocol,
    /// It did not answer in time when it was asked whether it is still there.
    Silent,
}

impl Fault {
    /// Every one, for the metrics.
    pub(crate) const ALL: [Self; 8] = [
        Self::Preface,
        Self::SlowHead,
        Self::Fields,
        Self::Resets,
        Self::Control,
        Self::Excess,
        Self::Protocol,
        Self::Silent,
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
            Self::Silent => "silent",
        }
    }

    /// What the library found fault with; `None`: the client has only left.
    pub(super) fn found(error: &Error) -> Option<Self> {
        if !error.is_library() {
            return None;
        }
        Some(match error.reason() {
            // Several kinds of excess share one reason; the text that goes with it tells them apart.
            Some(Reason::ENHANCE_YOUR_CALM) => {
                let text = error.to_string();
                let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
                if says(&["too_many_continuations", "header_list_way_too_large"]) {
                    Self::Fields
                } else if says(&["too_many_resets"]) {
                    Self::Resets
                } else {
                    Self::Excess
                }
            }
            Some(_) | None => Self::Protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Fault;

    #[test]
    fn each_fault_has_a_place_and_a_word_of_its_own() {
        let mut words = HashSet::new();
        for (place, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
            assert!(words.insert(fault.word()), "{fault:?}");
        }
    }
}
