//! Normalised host names. Host names are compared only in this form.
//!
//! TLS server names and the hosts of requests come from clients, which may write one name in several ways. If two
//! places normalised them differently, a connection could be secured for one listener and its requests routed by
//! another.

/// Longest name in DNS: 253 bytes, and a dot at the end.
const MAX_BYTES: usize = 254;

/// A normalised host name: lower case, without a dot at its end, empty if it is longer than the DNS limit.
///
/// One dot is removed, because it only marks the name as absolute. A second one is an empty label, which no pattern
/// matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostName<'b>(&'b [u8]);

/// Buffer for a normalised host name; unused if the name is already normalised.
#[derive(Default)]
pub struct HostNameBuffer(Option<[u8; MAX_BYTES]>);

/// A normalised host name that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedHostName(Box<[u8]>);

impl<'b> HostName<'b> {
    /// Normalises a host without its port.
    #[inline]
    pub fn new(written: &'b [u8], buffer: &'b mut HostNameBuffer) -> Self {
        let is_normal =
            written.len() <= MAX_BYTES && written.last() != Some(&b'.') && !has_uppercase(written);
        if is_normal { Self(written) } else { Self::normalised(written, buffer) }
    }

    /// Normalises a name into the buffer. A function of its own, because clients mostly send normalised names.
    #[cold]
    fn normalised(written: &[u8], buffer: &'b mut HostNameBuffer) -> Self {
        let space = buffer.0.insert([0; MAX_BYTES]);
        let Some(copy) = space.get_mut(..written.len()) else { return Self(b"") };
        copy.copy_from_slice(written);
        copy.make_ascii_lowercase();
        Self(copy.strip_suffix(b".").unwrap_or(copy))
    }

    /// Returns the bytes of the name.
    pub fn as_bytes(self) -> &'b [u8] {
        self.0
    }
}

/// True if the text contains an upper-case letter. Every request takes this path, so eight bytes are compared at once.
#[inline]
fn has_uppercase(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks();
    let spread = |byte: u8| u64::from_ne_bytes([byte; 8]);
    let is_upper = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        // The top bit of each byte becomes 1 if its other bits are at least `A`, or above `Z`.
        let low = word & spread(0x7F);
        let (from_a, above_z) = (low + spread(0x80 - b'A'), low + spread(0x7F - b'Z'));
        from_a & !above_z & !word & spread(0x80) != 0
    };
    words.iter().any(is_upper) || rest.iter().any(u8::is_ascii_uppercase)
}

impl HostNameBuffer {
    /// Creates an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }
}

impl OwnedHostName {
    /// Normalises a host without its port.
    pub fn new(written: &[u8]) -> Self {
        Self(HostName::new(written, &mut HostNameBuffer::new()).0.into())
    }

    /// Borrows the name.
    pub fn borrowed(&self) -> HostName<'_> {
        HostName(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_case_is_found_at_every_position() {
        for length in 0..20 {
            for place in 0..length {
                for byte in 0..=u8::MAX {
                    let mut text = vec![b'a'; length];
                    text[place] = byte;
                    assert_eq!(has_uppercase(&text), byte.is_ascii_uppercase(), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn host_name_is_normalized() {
        let long = "a".repeat(MAX_BYTES + 1);
        for (written, normal) in [
            ("secure.example.com", "secure.example.com"),
            ("Secure.EXAMPLE.com", "secure.example.com"),
            ("secure.example.com.", "secure.example.com"),
            ("secure.example.com..", "secure.example.com."),
            (".", ""),
            ("", ""),
            ("[::1]", "[::1]"),
            (&long, ""),
        ] {
            let name = OwnedHostName::new(written.as_bytes());
            assert_eq!(name.borrowed().as_bytes(), normal.as_bytes(), "{written}");
        }
    }
}
