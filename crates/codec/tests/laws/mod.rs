//! Properties that hold for arbitrary bytes. Tests check them on mutated messages, fuzzers on all inputs that they
//! generate.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(unreachable_pub, reason = "the fuzz targets are built from this file too")]

/// Properties of single field values.
pub mod fields;
/// Properties of gRPC's parsers.
pub mod grpc;
/// Properties of HTTP/2 frames and heads.
pub mod h2;
/// Properties of HTTP/3 frames and field sections.
pub mod h3;
/// Properties of path normalisation.
pub mod path;

use codec::first_bytes::{FirstBytes, HTTP2_PREFACE, MAX_DETECTION_BYTES, detect};
use codec::h1::{BadChunk, ChunkedDecoder, ChunkedEvent, HeadLimits, parse, write};
use codec::head::{FieldSection, HttpVersion, RequestHead, RequestMethod, ResponseHead};
use codec::proxy_protocol;

pub const LIMITS: HeadLimits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 1024 };

/// The first `len` bytes give the same protocol as all, or none yet, and a bounded number of bytes is always enough.
pub fn first_bytes(bytes: &[u8], len: usize) {
    let all = detect(bytes);
    let early = detect(&bytes[..len]);
    assert!(early.is_none() || early == all, "{len} bytes give {early:?}, all {all:?}");
    assert!(all.is_some() || bytes.len() < MAX_DETECTION_BYTES);
    let is_preface = bytes.starts_with(HTTP2_PREFACE);
    assert_eq!(all == Some(FirstBytes::Http2), is_preface);
}

/// A prefix of `len` bytes gives the same result as all bytes, or none yet; and a written head parses to the same
/// meaning.
pub fn request(bytes: &[u8], len: usize) {
    let mut head = RequestHead::new();
    let taken = parse::request(bytes, &LIMITS, &mut head);
    let early = parse::request(&bytes[..len], &LIMITS, &mut RequestHead::new());
    assert!(early == Ok(None) || early == taken, "{len} bytes give {early:?}, all {taken:?}");
    first_bytes(bytes, len);
    let Ok(Some(taken)) = taken else { return };
    assert!(taken <= bytes.len());
    // One empty line may come first; then, and with a method longer than any registered one, it is forwarded as it is.
    let is_detected = !bytes.starts_with(b"\r\n") && head.method_bytes().len() <= 32;
    assert!(!is_detected || detect(bytes) == Some(FirstBytes::Http1));

    let once = written_request(&head);
    let mut again = RequestHead::new();
    // Added fields may exceed the limits; larger limits show that nothing else is wrong.
    let roomy = HeadLimits { head_bytes: 8192, fields: 64, target_bytes: 1024 };
    assert_eq!(parse::request(&once, &roomy, &mut again), Ok(Some(once.len())));
    assert_eq!(head.method_bytes(), again.method_bytes());
    assert_eq!(head.target(), again.target());
    assert_eq!(head.authority(), again.authority());
    assert_eq!(head.framing, again.framing);
    assert_eq!(head.upgrade, again.upgrade);
    assert_eq!(head.te_trailers, again.te_trailers);
    assert_eq!(head.expect_continue, again.expect_continue);
    assert_eq!(once, written_request(&again), "written twice");
}

fn written_request(head: &RequestHead) -> Vec<u8> {
    let mut out = Vec::new();
    write::request_head(head, head.framing, head.upgrade, &mut out);
    out
}

/// Checks the same for a response to a request with `method`.
pub fn response(bytes: &[u8], len: usize, method: RequestMethod) {
    let mut head = ResponseHead::new();
    let taken = parse::response(bytes, &LIMITS, method, &mut head);
    let early = parse::response(&bytes[..len], &LIMITS, method, &mut ResponseHead::new());
    assert!(early == Ok(None) || early == taken, "{len} bytes give {early:?}, all {taken:?}");
    let Ok(Some(taken)) = taken else { return };
    assert!(taken <= bytes.len());

    let once = written_response(&head);
    let mut again = ResponseHead::new();
    let roomy = HeadLimits { head_bytes: 8192, fields: 64, target_bytes: 0 };
    assert_eq!(parse::response(&once, &roomy, method, &mut again), Ok(Some(once.len())));
    assert_eq!(head.status, again.status);
    assert_eq!(head.framing, again.framing);
    assert_eq!(head.length_of_absent_body, again.length_of_absent_body);
    assert_eq!(head.upgrade, again.upgrade);
    assert_eq!(once, written_response(&again), "written twice");
}

fn written_response(head: &ResponseHead) -> Vec<u8> {
    let mut out = Vec::new();
    write::response_head(
        head,
        head.framing,
        HttpVersion::Http11,
        head.keep_alive,
        head.upgrade,
        &mut out,
    );
    out
}

/// Result of decoding a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    pub data: Vec<u8>,
    /// Names and values.
    pub trailers: Vec<(Vec<u8>, Vec<u8>)>,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body took this many bytes.
    Complete(usize),
    Incomplete,
    Bad(BadChunk),
}

/// Decoding does not depend on the step size, and a written body decodes to the same data.
pub fn chunked(bytes: &[u8], step: usize) {
    let whole = decode(bytes, bytes.len());
    assert_eq!(decode(bytes, step), whole, "in steps of {step}");
    let End::Complete(taken) = whole.end else { return };
    assert!(taken <= bytes.len());
    assert!(whole.data.len() < taken.max(1));

    let mut reader = ChunkedDecoder::new();
    let mut out = Vec::new();
    let mut at = 0;
    while let Ok(ChunkedEvent::Data { skip, len }) = reader.next(&bytes[at..]) {
        write::chunk_header(len, &mut out);
        out.extend_from_slice(&bytes[at + skip..][..len]);
        write::chunk_end(&mut out);
        at += skip + len;
    }
    write::last_chunk(reader.trailers(), &mut out);
    let again = decode(&out, out.len());
    assert_eq!(again.data, whole.data);
    assert_eq!(again.end, End::Complete(out.len()));
}

/// Decodes a chunked body; each time the decoder needs more, `step` more bytes become available.
pub fn decode(bytes: &[u8], step: usize) -> Decoded {
    let mut reader = ChunkedDecoder::new();
    let (mut data, mut at, mut seen) = (Vec::new(), 0, 0);
    let end = loop {
        match reader.next(&bytes[at..seen]) {
            Ok(ChunkedEvent::Data { skip, len }) => {
                assert!(len > 0, "a data event has at least one byte");
                data.extend_from_slice(&bytes[at + skip..][..len]);
                at += skip + len;
            }
            Ok(ChunkedEvent::End { skip }) => break End::Complete(at + skip),
            Ok(ChunkedEvent::NeedMore { skip }) => {
                at += skip;
                assert_eq!(at, seen, "framing is consumed");
                if seen == bytes.len() {
                    break End::Incomplete;
                }
                seen = bytes.len().min(seen + step.max(1));
            }
            Err(bad) => break End::Bad(bad),
        }
    };
    Decoded { data, trailers: named(reader.trailers()), end }
}

/// True if the bytes may be stored as the value of a field; all parsers of messages make sure of that.
fn is_storable(value: &[u8]) -> bool {
    !value.iter().any(|byte| b"\r\n\0".contains(byte))
}

fn named(fields: &FieldSection) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|(_, name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// A prefix of a PROXY protocol header gives the same result as all bytes, or none yet; and a written header parses
/// again.
pub fn proxy_header(bytes: &[u8], len: usize) {
    let taken = proxy_protocol::parse(bytes);
    let early = proxy_protocol::parse(&bytes[..len]);
    assert!(early == Ok(None) || early == taken, "{len} bytes give {early:?}, all {taken:?}");
    let Ok(Some((header, taken))) = taken else { return };
    assert!(taken <= bytes.len());
    for write in [proxy_protocol::write_v1, proxy_protocol::write_v2] {
        let mut once = Vec::new();
        write(&header, &mut once);
        let Ok(Some((again, length))) = proxy_protocol::parse(&once) else { panic!("{once:?}") };
        assert_eq!(length, once.len());
        let mut twice = Vec::new();
        write(&again, &mut twice);
        assert_eq!(once, twice);
    }
}
