//! Status of a call: the gRPC codes, their meaning for the health of the endpoint, and their HTTP equivalents.

use std::time::Duration;

use balance::AttemptResult;

use crate::head::FieldSection;

/// Status code of a call, with the numbers of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum GrpcCode {
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
    pub(crate) const ALL: [Self; 17] = [
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
    pub(crate) fn parse(text: &[u8]) -> Self {
        let number = str::from_utf8(text).ok().and_then(|text| text.parse::<usize>().ok());
        number.and_then(|number| Self::ALL.get(number).copied()).unwrap_or(Self::Unknown)
    }

    /// Returns the code for a call that got an HTTP error instead of a gRPC status, by the mapping that gRPC clients
    /// use; extended for statuses that only this proxy sends.
    pub(crate) fn of_http(status: u16) -> Self {
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

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the metric label, in gRPC's spelling.
    pub(crate) fn word(self) -> &'static str {
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
pub(crate) struct GrpcCallStatus {
    pub(crate) code: GrpcCode,
    pub(crate) pushback: RetryPushback,
}

/// Instruction of an endpoint about the next attempt (gRFC A6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPushback {
    /// No instruction.
    Unspecified,
    After(Duration),
    /// No further attempt.
    Never,
}

impl GrpcCallStatus {
    /// Parses the status from trailers, or from a head that nothing follows.
    pub(crate) fn of(fields: &FieldSection) -> Option<Self> {
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

    /// Returns the result of the attempt for the health of the endpoint.
    pub(crate) fn end(self) -> AttemptResult {
        match self.code {
            // An exception in a handler is the endpoint's fault, like a 500.
            GrpcCode::Unknown | GrpcCode::Internal | GrpcCode::Unavailable | GrpcCode::DataLoss => {
                AttemptResult::ServerError
            }
            GrpcCode::ResourceExhausted => AttemptResult::Refused {
                retry_after: match self.pushback {
                    RetryPushback::After(pause) => Some(pause),
                    RetryPushback::Unspecified | RetryPushback::Never => None,
                },
            },
            GrpcCode::DeadlineExceeded => AttemptResult::TimedOut,
            GrpcCode::Ok
            | GrpcCode::Cancelled
            | GrpcCode::InvalidArgument
            | GrpcCode::NotFound
            | GrpcCode::AlreadyExists
            | GrpcCode::PermissionDenied
            | GrpcCode::FailedPrecondition
            | GrpcCode::Aborted
            | GrpcCode::OutOfRange
            | GrpcCode::Unimplemented
            | GrpcCode::Unauthenticated => AttemptResult::Success,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use balance::AttemptResult;

    use super::{GrpcCallStatus, GrpcCode, RetryPushback};
    use crate::head::FieldSection;

    #[test]
    fn grpc_status_codes_are_parsed_by_number() {
        let mut words = HashSet::new();
        for (number, code) in GrpcCode::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(code.number()), number);
            assert_eq!(GrpcCode::parse(number.to_string().as_bytes()), code);
            assert!(words.insert(code.word()), "{code:?}");
        }
        for text in ["17", "-1", "", "OK", "256", "\u{e4}", "99999999999999999999999"] {
            assert_eq!(GrpcCode::parse(text.as_bytes()), GrpcCode::Unknown, "{text}");
        }
    }

    #[test]
    fn grpc_status_maps_to_a_health_signal() {
        let status = |code: &str, pushback: Option<&str>| {
            let mut fields = FieldSection::new();
            fields.append("grpc-status", code);
            if let Some(pushback) = pushback {
                fields.append("grpc-retry-pushback-ms", pushback);
            }
            GrpcCallStatus::of(&fields).unwrap()
        };
        assert_eq!(GrpcCallStatus::of(&FieldSection::new()), None);
        assert_eq!(status("0", None).end(), AttemptResult::Success);
        assert_eq!(status("12", None).end(), AttemptResult::Success);
        assert_eq!(status("14", None).end(), AttemptResult::ServerError);
        assert_eq!(status("99", None).end(), AttemptResult::ServerError);
        assert_eq!(status("4", None).end(), AttemptResult::TimedOut);
        assert_eq!(status("8", None).end(), AttemptResult::Refused { retry_after: None });
        let second = Some(Duration::from_secs(1));
        assert_eq!(status("8", Some("1000")).end(), AttemptResult::Refused { retry_after: second });
        assert_eq!(status("8", Some("-1")).pushback, RetryPushback::Never);
        assert_eq!(status("8", Some("soon")).pushback, RetryPushback::Never);
    }
}
