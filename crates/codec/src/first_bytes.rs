//! Detection of a protocol by the first bytes that a client sends.
//!
//! HTTP is recognised by its request line or connection preface. All else is opaque here, and so is what a client sends
//! after the server has spoken first.

/// Maximum length of a method. The longest registered one has 17 bytes.
const MAX_METHOD_BYTES: usize = 32;
/// Length from which a target counts as one of HTTP, even if the version does not follow yet.
const MAX_TARGET_BYTES: usize = 8192;
/// The end of a request line, as far as it is compared: the space before the version, and the major version.
const VERSION: &[u8] = b" HTTP/1.";
/// The first bytes of a TLS record that carries a handshake (RFC 8446 §5.1).
const TLS_HANDSHAKE: &[u8] = &[22, 3];

/// Number of bytes after which [`detect`] always decides.
pub const MAX_DETECTION_BYTES: usize = MAX_METHOD_BYTES + 1 + MAX_TARGET_BYTES + VERSION.len();

/// The connection preface of HTTP/2 (RFC 9113 §3.4).
pub const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol that the first bytes of a connection indicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// A request line of HTTP/1.x, valid or not in its details.
    Http1,
    /// The connection preface of HTTP/2.
    Http2,
    /// A TLS handshake.
    Tls,
    /// Anything else.
    Other,
}

/// Returns the protocol that these first bytes of a client indicate; `None` if more bytes are needed.
///
/// Further bytes do not change a decision, and [`MAX_DETECTION_BYTES`] are always enough for one.
#[must_use]
pub fn detect(bytes: &[u8]) -> Option<FirstBytes> {
    match compare(bytes, HTTP2_PREFACE) {
        PrefixMatch::Equal => return Some(FirstBytes::Http2),
        PrefixMatch::Incomplete => return None,
        PrefixMatch::Different => {}
    }
    match compare(bytes, TLS_HANDSHAKE) {
        PrefixMatch::Equal => Some(FirstBytes::Tls),
        PrefixMatch::Incomplete => None,
        PrefixMatch::Different => detect_request_line(bytes),
    }
}

/// Recognises `method SP target SP HTTP/1.` (RFC 9112 §3).
fn detect_request_line(bytes: &[u8]) -> Option<FirstBytes> {
    let method = bytes.iter().take_while(|byte| is_token_byte(**byte)).count();
    let rest = bytes.get(method..)?;
    if method > MAX_METHOD_BYTES {
        return Some(FirstBytes::Other);
    }
    let (space, rest) = rest.split_first()?;
    if method == 0 || *space != b' ' {
        return Some(FirstBytes::Other);
    }
    let target = rest.iter().take_while(|byte| is_target_byte(**byte)).count();
    if target >= MAX_TARGET_BYTES {
        return Some(FirstBytes::Http1);
    }
    let version = rest.get(target..)?;
    if target == 0 && !version.is_empty() {
        return Some(FirstBytes::Other);
    }
    match compare(version, VERSION) {
        PrefixMatch::Equal => Some(FirstBytes::Http1),
        PrefixMatch::Incomplete => None,
        PrefixMatch::Different => Some(FirstBytes::Other),
    }
}

/// True for a byte of a token (RFC 9110 §5.6.2).
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// True for a byte that can be in a target. Some clients do not escape what is not ASCII.
const fn is_target_byte(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

enum PrefixMatch {
    /// The bytes begin with all that was wanted.
    Equal,
    /// They end before that.
    Incomplete,
    Different,
}

fn compare(bytes: &[u8], wanted: &[u8]) -> PrefixMatch {
    if bytes.starts_with(wanted) {
        return PrefixMatch::Equal;
    }
    if wanted.starts_with(bytes) { PrefixMatch::Incomplete } else { PrefixMatch::Different }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the input is decided as `expected`, and that only its whole length decides.
    fn check(input: &[u8], expected: FirstBytes) {
        assert_eq!(detect(input), Some(expected), "{:?}", String::from_utf8_lossy(input));
        let before = &input[..input.len() - 1];
        assert_eq!(detect(before), None, "{:?}", String::from_utf8_lossy(before));
    }

    #[test]
    fn request_lines_are_http1() {
        check(b"GET / HTTP/1.", FirstBytes::Http1);
        check(b"OPTIONS * HTTP/1.", FirstBytes::Http1);
        check(b"CONNECT a.example:443 HTTP/1.", FirstBytes::Http1);
        check(b"M-SEARCH /caf\xc3\xa9?q=1 HTTP/1.", FirstBytes::Http1);
        check(b"PRI * HTTP/1.", FirstBytes::Http1);
        let long = [b"GET /", [b'a'; MAX_TARGET_BYTES - 1].as_slice()].concat();
        check(&long, FirstBytes::Http1);
    }

    #[test]
    fn preface_is_http2_and_a_handshake_is_tls() {
        check(HTTP2_PREFACE, FirstBytes::Http2);
        check(&[22, 3], FirstBytes::Tls);
    }

    #[test]
    fn all_else_is_other() {
        for input in [
            b"\x00".as_slice(),
            b"\r",
            b"*1\r",
            b"get key\r",
            b"GET /key\r",
            b"GET / F",
            b"GET / HTTP/2",
            b"PRI * HTTP/2.0\r\n\r\nX",
            b"GET  ",
            b"EHLO a.example\r",
            b"SSH-2.0-OpenSSH_9.2p1\r",
            b"\x16\x04",
            &[b'A'; MAX_METHOD_BYTES + 1],
        ] {
            check(input, FirstBytes::Other);
        }
    }
}
