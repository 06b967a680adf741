//! Parse errors of HTTP/1: one variant for each reason, with its message and its status in one line each.

use thiserror::Error;

use crate::path::BadPath;

/// Syntax error: the bytes are not a message head.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.reason())]
pub enum BadSyntax {
    StartLine,
    LineEnd,
    FieldName,
    FieldValue,
    TooManyFields,
    TooLarge,
}

impl BadSyntax {
    pub fn reason(self) -> &'static str {
        match self {
            Self::StartLine => "malformed start line",
            Self::LineEnd => "line not ended by CRLF",
            Self::FieldName => "malformed field name, or a folded line",
            Self::FieldValue => "forbidden byte in a field value",
            Self::TooManyFields => "too many fields",
            Self::TooLarge => "head too large",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::StartLine | Self::LineEnd | Self::FieldName | Self::FieldValue => 400,
            Self::TooManyFields | Self::TooLarge => 431,
        }
    }
}

/// Framing error: the fields do not define the end of the body unambiguously.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.reason())]
pub enum BadFraming {
    LengthAndEncoding,
    LengthRepeated,
    LengthNotANumber,
    EncodingInHttp10,
    EncodingNotChunked,
    EncodingUnknown,
    TooManyOptions,
    ConnectionField,
    LengthWithoutBody,
}

impl BadFraming {
    pub fn reason(self) -> &'static str {
        match self {
            Self::LengthAndEncoding => "both content-length and transfer-encoding",
            Self::LengthRepeated => "more than one content-length",
            Self::LengthNotANumber => "content-length is not a number",
            Self::EncodingInHttp10 => "transfer-encoding in HTTP/1.0",
            Self::EncodingNotChunked => "transfer-encoding does not end in one chunked",
            Self::EncodingUnknown => "transfer-encoding other than chunked",
            Self::TooManyOptions => "too many connection options",
            Self::ConnectionField => "connection-specific field, not allowed in HTTP/2 and HTTP/3",
            Self::LengthWithoutBody => "non-zero content-length in a message without a body",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::LengthAndEncoding
            | Self::LengthRepeated
            | Self::LengthNotANumber
            | Self::EncodingInHttp10
            | Self::EncodingNotChunked
            | Self::TooManyOptions
            | Self::ConnectionField
            | Self::LengthWithoutBody => 400,
            Self::EncodingUnknown => 501,
        }
    }
}

/// Reason to reject a request. No part of it is forwarded, and its connection is closed after the response.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.reason())]
pub enum BadRequest {
    Syntax(BadSyntax),
    Framing(BadFraming),
    Version,
    Connect,
    Trace,
    Target,
    Path(BadPath),
    TargetTooLong,
    HostMissing,
    HostRepeated,
    HostDiffers,
    Host,
    Expectation,
}

impl BadRequest {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Syntax(bad) => bad.reason(),
            Self::Framing(bad) => bad.reason(),
            Self::Version => "HTTP version other than 1.0 and 1.1",
            Self::Connect => "CONNECT is not supported",
            Self::Trace => "TRACE is not supported",
            Self::Target => "malformed request target",
            Self::Path(BadPath::AboveRoot) => "path leads above the root",
            Self::Path(BadPath::EscapedSlash) => "escaped slash or backslash in the path",
            Self::TargetTooLong => "request target too long",
            Self::HostMissing => "no host",
            Self::HostRepeated => "more than one host",
            Self::HostDiffers => "host differs from the requested authority",
            Self::Host => "malformed host",
            Self::Expectation => "expectation other than 100-continue",
        }
    }

    /// Returns the status of the response to the client.
    pub fn status(self) -> u16 {
        match self {
            Self::Syntax(bad) => bad.status(),
            Self::Framing(bad) => bad.status(),
            Self::Target
            | Self::Path(_)
            | Self::HostMissing
            | Self::HostRepeated
            | Self::HostDiffers
            | Self::Host => 400,
            Self::Trace => 405,
            Self::TargetTooLong => 414,
            Self::Expectation => 417,
            Self::Connect => 501,
            Self::Version => 505,
        }
    }
}

impl From<BadSyntax> for BadRequest {
    fn from(bad: BadSyntax) -> Self {
        Self::Syntax(bad)
    }
}

impl From<BadFraming> for BadRequest {
    fn from(bad: BadFraming) -> Self {
        Self::Framing(bad)
    }
}

impl From<BadPath> for BadRequest {
    fn from(bad: BadPath) -> Self {
        Self::Path(bad)
    }
}

/// Reason to reject a response. The connection to the endpoint is closed, and the client gets 502 instead.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.reason())]
pub enum BadResponse {
    Syntax(BadSyntax),
    Framing(BadFraming),
    Version,
    Status,
    InterimWithBody,
    TooManyInterim,
    Upgrade,
    UnexpectedUpgrade,
    ProtocolViolation,
}

impl BadResponse {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Syntax(bad) => bad.reason(),
            Self::Framing(bad) => bad.reason(),
            Self::Version => "HTTP version other than 1.0 and 1.1",
            Self::Status => "status below 100",
            Self::InterimWithBody => "interim response with a body",
            Self::TooManyInterim => "too many interim responses",
            Self::UnexpectedUpgrade => "101 response without an upgrade request",
            Self::Upgrade => "invalid 101 Switching Protocols response",
            Self::ProtocolViolation => "response violates the HTTP protocol",
        }
    }
}

impl From<BadSyntax> for BadResponse {
    fn from(bad: BadSyntax) -> Self {
        Self::Syntax(bad)
    }
}

impl From<BadFraming> for BadResponse {
    fn from(bad: BadFraming) -> Self {
        Self::Framing(bad)
    }
}

/// Reason to reject a chunked body. The end of the body is unknown, so its connection is closed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.reason())]
pub enum BadChunk {
    Size,
    SizeTooLarge,
    Extension,
    ExtensionsTooLong,
    LineEnd,
    DataEnd,
    Trailers(BadSyntax),
}

impl BadChunk {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Size => "malformed chunk size",
            Self::SizeTooLarge => "chunk size too large",
            Self::Extension => "forbidden byte in a chunk extension",
            Self::ExtensionsTooLong => "chunk extensions too long",
            Self::LineEnd => "chunk size not ended by CRLF",
            Self::DataEnd => "chunk data not ended by CRLF",
            Self::Trailers(bad) => bad.reason(),
        }
    }

    /// Returns the status for the client, if no response has been sent yet.
    pub fn status(self) -> u16 {
        match self {
            Self::Size | Self::Extension | Self::LineEnd | Self::DataEnd => 400,
            Self::SizeTooLarge | Self::ExtensionsTooLong => 413,
            Self::Trailers(bad) => bad.status(),
        }
    }
}
