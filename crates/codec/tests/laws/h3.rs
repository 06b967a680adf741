//! Properties of HTTP/3: framing does not depend on the step size, and field sections round-trip.

use std::net::SocketAddr;

use bytes::Bytes;
use codec::h1::{parse, write};
use codec::h3::control::{ControlFrame, ControlStreamReader};
use codec::h3::fields::{read_trailers, write_trailers};
use codec::h3::frame::{FrameContext, FramePart, H3FrameDecoder};
use codec::h3::qpack::instructions::QpackDecoderStream;
use codec::h3::qpack::{self, FieldSectionDecoder, QpackError};
use codec::h3::{H3ErrorCode, PeerRole, request, response};
use codec::head::{BodyFraming, RequestHead, RequestMethod, ResponseHead};

use super::LIMITS;

/// Largest frame payload that is buffered.
const MOST: usize = 256;
pub(super) const ROOMY: parse::HeadLimits =
    parse::HeadLimits { head_bytes: 8192, fields: 64, target_bytes: 1024 };

/// Parsing of frames does not depend on the step size, and no byte of a body is lost.
pub fn frames(bytes: &[u8], step: usize) {
    for peer in [PeerRole::Client, PeerRole::Endpoint] {
        let whole = pieces(bytes, bytes.len(), peer);
        assert_eq!(pieces(bytes, step, peer), whole, "in steps of {step}");
        let whole = control_frames(bytes, bytes.len(), peer);
        assert_eq!(control_frames(bytes, step, peer), whole, "in steps of {step}");
    }
    let check = |step: usize| {
        let mut stream = QpackDecoderStream::default();
        bytes.chunks(step.max(1)).try_for_each(|chunk| stream.check(chunk))
    };
    assert_eq!(check(step), check(bytes.len()));
}

/// Returns the parts of a message, with DATA joined, and true if the stream may end there.
fn pieces(
    bytes: &[u8],
    step: usize,
    peer: PeerRole,
) -> (Vec<FramePart>, Result<bool, H3ErrorCode>) {
    let mut frames = H3FrameDecoder::new(FrameContext::Request, peer, MOST);
    let mut found: Vec<FramePart> = Vec::new();
    for chunk in bytes.chunks(step.max(1)) {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match frames.next(&mut input) {
                Ok(Some(FramePart::Data(more))) => match found.last_mut() {
                    Some(FramePart::Data(data)) => *data = [&data[..], &more].concat().into(),
                    _ => found.push(FramePart::Data(more)),
                },
                Ok(Some(piece)) => {
                    assert!(
                        matches!(&piece, FramePart::Whole(_, payload) if payload.len() <= MOST)
                            || piece == FramePart::TooLarge
                    );
                    found.push(piece);
                }
                Ok(None) => break,
                Err(code) => return (found, Err(code)),
            }
        }
        assert!(input.is_empty(), "all input is consumed");
    }
    (found, Ok(frames.is_at_boundary()))
}

fn control_frames(
    bytes: &[u8],
    step: usize,
    peer: PeerRole,
) -> (Vec<ControlFrame>, Result<(), H3ErrorCode>) {
    let mut control = ControlStreamReader::new(peer);
    let mut found = Vec::new();
    for chunk in bytes.chunks(step.max(1)) {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match control.next(&mut input) {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(code) => return (found, Err(code)),
            }
        }
    }
    (found, Ok(()))
}

/// A parsed section can be written and parsed again, and its head is valid in HTTP/1.1 too.
pub fn section(bytes: &[u8]) {
    if let Ok(lines) = lines(bytes) {
        let mut written = Vec::new();
        qpack::begin(&mut written);
        for (name, value) in &lines {
            qpack::write(name, value, &mut written);
        }
        let lower = |(name, value): (Vec<u8>, _)| (name.to_ascii_lowercase(), value);
        let lines: Vec<_> = lines.into_iter().map(lower).collect();
        assert_eq!(self::lines(&written), Ok(lines));
    }
    for is_whole in [false, true] {
        request_head(bytes, is_whole);
        response_head(bytes, is_whole);
    }
    if let Ok(Some(trailers)) = read_trailers(bytes, &LIMITS) {
        let mut written = Vec::new();
        write_trailers(&trailers, &mut written);
        let again = read_trailers(&written, &ROOMY).unwrap().unwrap();
        assert_eq!(super::named(&again), super::named(&trailers));
    }
}

/// Names and values; names may repeat.
type Lines = Vec<(Vec<u8>, Vec<u8>)>;

fn lines(bytes: &[u8]) -> Result<Lines, QpackError> {
    let mut section = FieldSectionDecoder::new(bytes)?;
    let mut lines = Vec::new();
    while let Some(line) = section.next_line()? {
        let (mut name, mut value) = (Vec::new(), Vec::new());
        line.name.append_to(&mut name)?;
        line.value.append_to(&mut value)?;
        lines.push((name, value));
    }
    Ok(lines)
}

fn request_head(bytes: &[u8], is_whole: bool) {
    let key = || *b"dGhlIHNhbXBsZSBub25jZQ==";
    let mut head = RequestHead::new();
    if request::read(bytes, is_whole, &LIMITS, key, &mut head).is_err() {
        return;
    }
    let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
    let mut written = Vec::new();
    request::write(&head, head.framing, endpoint, &mut written);
    let mut again = RequestHead::new();
    request::read(&written, is_whole, &ROOMY, key, &mut again).unwrap();
    assert_same(&head, &again);

    let framing = in_http1(head.framing);
    let mut text = Vec::new();
    write::request_head(&head, framing, head.upgrade, &mut text);
    assert_eq!(parse::request(&text, &ROOMY, &mut again), Ok(Some(text.len())), "{head:?}");
    assert_same(&head, &again);
    assert_eq!(framing, again.framing);
}

pub(super) fn assert_same(head: &RequestHead, again: &RequestHead) {
    assert_eq!(head.method_bytes(), again.method_bytes());
    assert_eq!(head.target(), again.target());
    assert_eq!(head.path(), again.path());
    assert_eq!(head.authority(), again.authority());
    assert_eq!(head.host(), again.host());
    assert_eq!(head.upgrade, again.upgrade);
    assert_eq!(head.te_trailers, again.te_trailers);
    assert_eq!(head.expect_continue, again.expect_continue);
}

fn response_head(bytes: &[u8], is_whole: bool) {
    let mut head = ResponseHead::new();
    if response::read(bytes, is_whole, &LIMITS, &RequestHead::new(), &mut head).is_err() {
        return;
    }
    let framing = in_http1(head.framing);
    let mut text = Vec::new();
    write::response_head(&head, framing, head.version, true, head.upgrade, &mut text);
    let mut again = ResponseHead::new();
    assert_eq!(
        parse::response(&text, &ROOMY, RequestMethod::Get, &mut again),
        Ok(Some(text.len()))
    );
    assert_eq!(head.status, again.status);
    assert_eq!(framing, again.framing);
}

/// Returns the framing of the body in HTTP/1.1.
pub(super) fn in_http1(framing: BodyFraming) -> BodyFraming {
    if framing == BodyFraming::Stream { BodyFraming::Chunked } else { framing }
}
