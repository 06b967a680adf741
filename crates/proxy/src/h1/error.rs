//! Why bytes were refused: one variant for each reason, one line for its words, one for its status.

use thiserror::Error;

/// The bytes are no head at all.
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

/// The fields do not say, in one way only, where the body ends.
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
            Self::ConnectionField => "field of a connection of HTTP/1.1",
            Self::LengthWithoutBody => "content-length of a message that has no body",
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

/// Why a request is refused. Nothing of it is sent on, and its connection is closed after the answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.reason())]
pub enum BadRequest {
    Syntax(BadSyntax),
    Framing(BadFraming),
    Version,
    Connect,
    Target,
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
            Self::Connect => "CONNECT is not served",
            Self::Target => "malformed request target",
            Self::TargetTooLong => "request target too long",
            Self::HostMissing => "no host",
            Self::HostRepeated => "more than one host",
            Self::HostDiffers => "host is not the authority asked for",
            Self::Host => "malformed host",
            Self::Expectation => "expectation other than 100-continue",
        }
    }

    /// The status to answer with.
    pub fn status(self) -> u16 {
        match self {
            Self::Syntax(bad) => bad.status(),
            Self::Framing(bad) => bad.status(),
            Self::Target
            | Self::HostMissing
            | Self::HostRepeated
            | Self::HostDiffers
            | Self::Host => 400,
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

/// Why a response is refused. The endpoint's connection is closed; the client gets 502 in its place.
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
            Self::UnexpectedUpgrade => "switching protocols though nobody asked for it",
            Self::Upgrade => "switching protocols without naming one",
            Self::ProtocolViolation => "response that breaks the rules of its protocol",
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

/// Why a chunked body is refused. Where it ends is unknown, so its connection is closed.
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

    /// The status to answer with, while there has been no answer yet.
    pub fn status(self) -> u16 {
        match self {
            Self::Size | Self::Extension | Self::LineEnd | Self::DataEnd => 400,
            Self::SizeTooLarge | Self::ExtensionsTooLong => 413,
            Self::Trailers(bad) => bad.status(),
        }
    }
}
