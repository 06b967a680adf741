//! Reasons why tokens are refused: their labels in metrics and logs, and what clients get to know.

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFault {
    Malformed,
    TooLong,
    Several,
    Algorithm,
    CriticalExtension,
    Issuer,
    Audience,
    NoExpiry,
    Expired,
    NotYetValid,
    KeysUnavailable,
    UnknownKey,
    AmbiguousKey,
    Signature,
}

impl TokenFault {
    /// All reasons, for the metrics.
    pub(super) const ALL: [Self; 14] = [
        Self::Malformed,
        Self::TooLong,
        Self::Several,
        Self::Algorithm,
        Self::CriticalExtension,
        Self::Issuer,
        Self::Audience,
        Self::NoExpiry,
        Self::Expired,
        Self::NotYetValid,
        Self::KeysUnavailable,
        Self::UnknownKey,
        Self::AmbiguousKey,
        Self::Signature,
    ];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Several => "several",
            Self::Algorithm => "algorithm",
            Self::CriticalExtension => "critical_extension",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::NoExpiry => "no_expiry",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::KeysUnavailable => "keys_unavailable",
            Self::UnknownKey => "unknown_key",
            Self::AmbiguousKey => "ambiguous_key",
            Self::Signature => "signature",
        }
    }

    /// Returns the description that the client gets.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "the token is not a signed JWT",
            Self::TooLong => "the token is longer than 8 KiB",
            Self::Several => "the request has several tokens",
            Self::Algorithm => "the algorithm of the token is not accepted",
            Self::CriticalExtension => "the token has a critical extension (crit) that is unknown",
            Self::Issuer => "the issuer of the token is not accepted",
            Self::Audience => "the token is for another audience",
            Self::NoExpiry => "the token has no expiry (exp)",
            Self::Expired => "the token has expired",
            Self::NotYetValid => "the token is not valid yet",
            Self::KeysUnavailable => "the keys of the issuer are not available",
            Self::UnknownKey => "the issuer has no key for the token",
            Self::AmbiguousKey => "the token names no key (kid), and the issuer has several",
            Self::Signature => "the signature of the token is wrong",
        }
    }
}
