//! Error codes that end streams and connections (RFC 9114 §8.1, RFC 9204 §6).

/// Reason to end a stream or a connection.
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

    /// Returns the reason phrase that the peer receives with the code, for its log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NO_ERROR => "",
            Self::GENERAL_PROTOCOL_ERROR => "HTTP/3 protocol violation",
            Self::INTERNAL_ERROR => "internal error",
            Self::STREAM_CREATION_ERROR => "stream type not accepted",
            Self::CLOSED_CRITICAL_STREAM => "critical stream closed",
            Self::FRAME_UNEXPECTED => "frame not allowed here",
            Self::FRAME_ERROR => "malformed frame",
            Self::EXCESSIVE_LOAD => "excessive load",
            Self::ID_ERROR => "invalid stream or push ID",
            Self::SETTINGS_ERROR => "invalid SETTINGS",
            Self::MISSING_SETTINGS => "control stream does not begin with SETTINGS",
            Self::REQUEST_REJECTED => "request not processed",
            Self::REQUEST_CANCELLED => "request cancelled",
            Self::REQUEST_INCOMPLETE => "incomplete request",
            Self::MESSAGE_ERROR => "malformed message",
            Self::CONNECT_ERROR => "tunnel failed",
            Self::VERSION_FALLBACK => "retry over HTTP/1.1",
            Self::DECOMPRESSION_FAILED => "malformed field section, or use of a dynamic table",
            Self::ENCODER_STREAM_ERROR => "encoder instruction for a disabled dynamic table",
            Self::DECODER_STREAM_ERROR => "decoder instruction for a disabled dynamic table",
            _ => "unknown",
        }
    }
}
