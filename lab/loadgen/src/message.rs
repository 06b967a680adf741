//! Protocol-independent HTTP messages: heads, bodies, trailers. A stream is the number that its connection assigns to
//! it.

/// Name and value.
pub(crate) type HeaderPair = (Vec<u8>, Vec<u8>);

pub(crate) fn field(name: &str, value: &str) -> HeaderPair {
    (name.into(), value.into())
}

/// A request or a response; its last part ends the stream.
pub(crate) struct HttpMessage {
    pub(crate) head: Vec<HeaderPair>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<HeaderPair>,
}

/// Event received from the peer.
pub(crate) enum MessageEvent {
    Head { stream: u32, fields: DecodedFields, last: bool },
    Data { stream: u32, bytes: u64, last: bool },
    Reset { stream: u32, code: u64 },
    GoAway { code: u64 },
}

/// Decoded header or trailer fields.
pub(crate) struct DecodedFields(pub(crate) Vec<(Vec<u8>, Vec<u8>, u8)>);

impl DecodedFields {
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(own, ..)| own == name.as_bytes());
        found.map(|(_, value, _)| value.as_slice())
    }

    /// Formats the fields as lines of HTTP/1.1.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let line = |(name, value, _): &(Vec<u8>, Vec<u8>, u8)| {
            [name, ": ".as_bytes(), value, b"\r\n"].concat()
        };
        self.0.iter().flat_map(line).collect()
    }
}
