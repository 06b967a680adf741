//! Status of a call: the gRPC codes, and their HTTP equivalents.

use std::time::Duration;

use crate::head::FieldSection;

/// Status code of a call, with the numbers of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GrpcCode {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl GrpcCode {
    /// All codes, by number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Parses the value of `grpc-status`. An unknown code counts as UNKNOWN, as in gRPC clients.
    pub fn parse(text: &[u8]) -> Self {
        let number = str::from_utf8(text).ok().and_then(|text| text.parse::<usize>().ok());
        number.and_then(|number| Self::ALL.get(number).copied()).unwrap_or(Self::Unknown)
    }

    /// Returns the code for a call that got an HTTP error instead of a gRPC status, by the mapping that gRPC clients
    /// use; extended for statuses that only this proxy sends.
    pub fn of_http(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 405 | 501 | 505 => Self::Unimplemented,
            408 => Self::DeadlineExceeded,
            413 | 414 | 431 => Self::ResourceExhausted,
            429 | 502..=504 => Self::Unavailable,
            499 => Self::Cancelled,
            _ => Self::Unknown,
        }
    }

    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the metric label, in gRPC's spelling.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Status of a call, as sent by an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcCallStatus {
    pub code: GrpcCode,
    pub pushback: RetryPushback,
}

/// Instruction of an endpoint about the next attempt (gRFC A6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPushback {
    /// No instruction.
    Unspecified,
    After(Duration),
    /// No further attempt.
    Never,
}

impl GrpcCallStatus {
    /// Parses the status from trailers, or from a head that nothing follows.
    pub fn of(fields: &FieldSection) -> Option<Self> {
        let code = GrpcCode::parse(fields.get("grpc-status")?);
        let pushback =
            fields.get("grpc-retry-pushback-ms").map_or(RetryPushback::Unspecified, |text| {
                let milliseconds = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                // A negative or malformed value forbids further attempts.
                milliseconds.map_or(RetryPushback::Never, |it| {
                    RetryPushback::After(Duration::from_millis(it))
                })
            });
        Some(Self { code, pushback })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::GrpcCode;

    #[test]
    fn grpc_status_codes_are_parsed_by_number() {
        let mut labels = BTreeSet::new();
        for (number, code) in GrpcCode::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(code.number()), number);
            assert_eq!(GrpcCode::parse(number.to_string().as_bytes()), code);
            assert!(labels.insert(code.label()), "{code:?}");
        }
        for text in ["17", "-1", "", "OK", "256", "\u{e4}", "99999999999999999999999"] {
            assert_eq!(GrpcCode::parse(text.as_bytes()), GrpcCode::Unknown, "{text}");
        }
    }
}
