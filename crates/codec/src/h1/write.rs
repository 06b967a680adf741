//! Encoder of heads and chunks. It appends to a buffer that the caller reuses.
//!
//! Fields that delimit the message or belong to the connection are written anew from the parsed values, never copied
//! from the received bytes. So a field that the next hop might interpret differently cannot get through.

#![expect(clippy::indexing_slicing, reason = "positions are computed from the sizes of the arrays")]

use crate::head::{
    BodyFraming, FieldSection, HttpVersion, KnownFieldName, RequestHead, ResponseHead, is_trailer,
};

/// Writes the head of a request as HTTP/1.1 in origin form.
///
/// `upgrade` may be true only for a head that requests an upgrade.
pub fn request_head(head: &RequestHead, framing: BodyFraming, upgrade: bool, out: &mut Vec<u8>) {
    debug_assert!(framing != BodyFraming::UntilClose, "no request is delimited by its connection");
    put(out, &[head.method_bytes(), b" ", head.sent_target(), b" HTTP/1.1\r\nHost: "]);
    put(out, &[head.sent_authority(), b"\r\n"]);
    head.fields.write_lines(|name| is_sent_on(name, framing), out);
    framing_field(framing, out);
    if head.te_trailers {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
    // TE holds for one hop, and Connection must say so (RFC 9110 §10.1.4).
    match (upgrade, head.te_trailers) {
        (true, true) => out.extend_from_slice(b"Connection: upgrade, TE\r\n"),
        (true, false) => out.extend_from_slice(b"Connection: upgrade\r\n"),
        (false, true) => out.extend_from_slice(b"Connection: TE\r\n"),
        (false, false) => {}
    }
    if upgrade {
        upgrade_fields(&head.fields, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of a response as HTTP/1.1, for a client that speaks `client_version`.
pub fn response_head(
    head: &ResponseHead,
    framing: BodyFraming,
    client_version: HttpVersion,
    keep_alive: bool,
    upgrade: bool,
    out: &mut Vec<u8>,
) {
    let hundreds = b'0' + (head.status / 100) as u8;
    let tens = b'0' + (head.status / 10 % 10) as u8;
    let ones = b'0' + (head.status % 10) as u8;
    let mut start = *b"HTTP/1.1 000 ";
    start["HTTP/1.1 ".len()..][..3].copy_from_slice(&[hundreds, tens, ones]);
    put(out, &[&start, head.reason(), b"\r\n"]);
    head.fields.write_lines(|name| is_sent_on(name, framing), out);
    match head.length_of_absent_body {
        Some(length) if framing == BodyFraming::None => {
            framing_field(BodyFraming::Length(length), out)
        }
        _ => framing_field(framing, out),
    }
    if upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
        upgrade_fields(&head.fields, out);
    } else if !head.is_interim() {
        match (keep_alive, client_version) {
            (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
            (true, HttpVersion::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (true, HttpVersion::Http11 | HttpVersion::Http2 | HttpVersion::Http3) => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the chunk size line. `len` must not be 0: that would end the body.
pub fn chunk_header(len: usize, out: &mut Vec<u8>) {
    debug_assert!(len > 0);
    let first = (len.max(1).ilog2() / 4) as usize;
    for digit in (0..=first).rev() {
        out.push(b"0123456789abcdef"[len >> (4 * digit) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the CRLF after the data of a chunk.
pub fn chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and the trailer section.
///
/// A trailer may not carry the meaning of a header field (RFC 9110 §6.5.1): such names are left out.
pub fn last_chunk(trailers: &FieldSection, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, text, value) in trailers.iter() {
        if is_trailer(name, text) {
            field(text, value, out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// True if the field is forwarded. The hop-by-hop fields of RFC 9110 §7.6.1 are not; framing fields and Host are
/// written separately.
pub fn is_sent_on(name: KnownFieldName, framing: BodyFraming) -> bool {
    match name {
        KnownFieldName::Connection
        | KnownFieldName::KeepAlive
        | KnownFieldName::ProxyConnection
        | KnownFieldName::TransferEncoding
        | KnownFieldName::Te
        | KnownFieldName::Upgrade
        | KnownFieldName::ContentLength
        | KnownFieldName::Host
        | KnownFieldName::ProxyAuthenticate
        | KnownFieldName::ProxyAuthorization
        | KnownFieldName::Http2Settings => false,
        // Announces trailers, which only a chunked body or a stream can have.
        KnownFieldName::Trailer => matches!(framing, BodyFraming::Chunked | BodyFraming::Stream),
        KnownFieldName::Other
        | KnownFieldName::ProxyClaim
        | KnownFieldName::WithUnderscore
        | KnownFieldName::XRealIp
        | KnownFieldName::Expect
        | KnownFieldName::Via
        | KnownFieldName::Forwarded
        | KnownFieldName::XForwardedFor
        | KnownFieldName::XForwardedProto
        | KnownFieldName::XForwardedHost
        | KnownFieldName::XForwardedPort
        | KnownFieldName::XRequestId
        | KnownFieldName::Date
        | KnownFieldName::RetryAfter
        | KnownFieldName::ProxyStatus
        | KnownFieldName::AltSvc => true,
    }
}

fn framing_field(framing: BodyFraming, out: &mut Vec<u8>) {
    match framing {
        BodyFraming::None | BodyFraming::UntilClose | BodyFraming::Stream => {}
        BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        BodyFraming::Length(length) => {
            const NAME: usize = "Content-Length: ".len();
            let mut line = *b"Content-Length: 00000000000000000000\r\n";
            let start = write_digits(length, &mut line, NAME + 20) - NAME;
            line.copy_within(..NAME, start);
            out.extend_from_slice(&line[start..]);
        }
    }
}

fn upgrade_fields(fields: &FieldSection, out: &mut Vec<u8>) {
    for protocol in fields.values(KnownFieldName::Upgrade) {
        field(b"Upgrade", protocol, out);
    }
}

fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put(out, &[name, b": ", value, b"\r\n"]);
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Formats a number in decimal digits, in `space`.
pub(crate) fn digits(number: u64, space: &mut [u8; 20]) -> &[u8] {
    let start = write_digits(number, space, 20);
    &space[start..]
}

/// Writes a number in decimal digits, up to 20, so that they end before `end`. Returns where they begin.
fn write_digits<const SIZE: usize>(mut number: u64, space: &mut [u8; SIZE], end: usize) -> usize {
    let mut start = end;
    loop {
        start -= 1;
        space[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(
        status: u16,
        framing: BodyFraming,
        client_version: HttpVersion,
        keep_alive: bool,
    ) -> String {
        let mut head = ResponseHead::new();
        head.status = status;
        head.length_of_absent_body = Some(7);
        head.fields.append("Content-Length", "1");
        head.fields.append("Connection", "X");
        head.fields.append("Trailer", "Y");
        head.fields.append("Server", "a");
        let mut out = Vec::new();
        response_head(&head, framing, client_version, keep_alive, false, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn framing_and_connection_fields_are_regenerated() {
        assert_eq!(
            response(200, BodyFraming::Chunked, HttpVersion::Http11, true),
            "HTTP/1.1 200 OK\r\nTrailer: Y\r\nServer: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        assert_eq!(
            response(404, BodyFraming::Length(1234567890), HttpVersion::Http11, false),
            "HTTP/1.1 404 Not Found\r\nServer: a\r\nContent-Length: 1234567890\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            response(299, BodyFraming::UntilClose, HttpVersion::Http10, false),
            "HTTP/1.1 299 \r\nServer: a\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            response(200, BodyFraming::Length(0), HttpVersion::Http10, true),
            "HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"
        );
    }

    #[test]
    fn response_without_a_body_keeps_its_content_length() {
        assert_eq!(
            response(304, BodyFraming::None, HttpVersion::Http11, true),
            "HTTP/1.1 304 Not Modified\r\nServer: a\r\nContent-Length: 7\r\n\r\n"
        );
    }

    #[test]
    fn switching_protocols_response_names_the_upgrade_protocol() {
        let mut head = ResponseHead::new();
        head.status = 101;
        head.fields.append("upgrade", "websocket");
        let mut out = Vec::new();
        response_head(&head, BodyFraming::None, HttpVersion::Http11, true, true, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
    }

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for len in [1, 9, 15, 16, 255, 256, 4095, 4096, 65_536, 262_144, usize::MAX] {
            let mut out = Vec::new();
            chunk_header(len, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{len:x}\r\n"));
        }
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 1, 9, 10, 99, 100, 65_535, u64::MAX] {
            assert_eq!(digits(number, &mut [0; 20]), number.to_string().as_bytes());
            let mut out = Vec::new();
            framing_field(BodyFraming::Length(number), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("Content-Length: {number}\r\n"));
        }
    }
}
