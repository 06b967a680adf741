//! The words in which streams and connections are ended (RFC 9114 §8.1, RFC 9204 §6).

/// Why a stream or a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct H3ErrorCode(pub u64);

impl H3ErrorCode {
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const CONNECT_ERROR: Self = Self(0x10f);
    pub const VERSION_FALLBACK: Self = Self(0x110);
    pub const DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const ENCODER_STREAM_ERROR: Self = Self(0x201);
    pub const DECODER_STREAM_ERROR: Self = Self(0x202);

    /// What the peer is told beside the number, for whoever reads its log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NO_ERROR => "",
            Self::GENERAL_PROTOCOL_ERROR => "the rules of HTTP/3 are broken",
            Self::INTERNAL_ERROR => "we failed",
            Self::STREAM_CREATION_ERROR => "a stream that may not be",
            Self::CLOSED_CRITICAL_STREAM => "a stream was ended that the connection needs",
            Self::FRAME_UNEXPECTED => "a frame where it may not be",
            Self::FRAME_ERROR => "a malformed frame",
            Self::EXCESSIVE_LOAD => "more than anybody has reason to send",
            Self::ID_ERROR => "a stream or push that may not be named",
            Self::SETTINGS_ERROR => "settings that may not be",
            Self::MISSING_SETTINGS => "no settings",
            Self::REQUEST_REJECTED => "the request was not begun",
            Self::REQUEST_CANCELLED => "the request was given up",
            Self::REQUEST_INCOMPLETE => "the request did not come whole",
            Self::MESSAGE_ERROR => "a malformed message",
            Self::CONNECT_ERROR => "the tunnel broke",
            Self::VERSION_FALLBACK => "not over HTTP/3",
            Self::DECOMPRESSION_FAILED => "no field section, or one of a dynamic table",
            Self::ENCODER_STREAM_ERROR => "an entry for a dynamic table",
            Self::DECODER_STREAM_ERROR => "word of a dynamic table that is not there",
            _ => "unknown",
        }
    }
}
