//! Outcomes of responses that a policy compresses, for metrics.

/// Responses that a policy compresses, by what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompressionOutcome {
    Compressed,
    /// Memory is scarce, or the worker encodes too many responses.
    Skipped,
}

impl CompressionOutcome {
    pub(crate) const ALL: [Self; 2] = [Self::Compressed, Self::Skipped];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Compressed => "compressed",
            Self::Skipped => "skipped",
        }
    }
}
