//! Properties of HTTP/2: frame boundaries do not depend on the step size, and a head has one meaning in all versions.

use std::net::SocketAddr;

use codec::h1::{parse, write};
use codec::h2::frames::{H2FrameHeader, H2FrameScanner, HEADER_BYTES};
use codec::h2::{fields, request, response};
use codec::head::{BodyFraming, RequestHead, ResponseHead};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::Scheme;

use super::h3::{ROOMY, assert_same, in_http1};
use super::{LIMITS, named};

/// Frame headers do not depend on the step size, and are those that a simple loop finds.
pub fn frames(bytes: &[u8], step: usize, before: usize) {
    let mut scanner = H2FrameScanner::new(before);
    let mut found = Vec::new();
    for mut piece in bytes.chunks(step.max(1)) {
        while let Some(header) = scanner.next(&mut piece) {
            found.push(header);
        }
        assert!(piece.is_empty(), "all input is consumed");
    }
    assert_eq!(found, simple_frames(bytes, before), "in steps of {step}");
}

/// Returns the headers of all frames after the first bytes.
pub fn simple_frames(bytes: &[u8], before: usize) -> Vec<H2FrameHeader> {
    let mut found = Vec::new();
    let mut at = before;
    while let Some(header) = bytes.get(at..).and_then(|rest| rest.first_chunk::<HEADER_BYTES>()) {
        let [a, b, c, kind, flags, stream @ ..] = *header;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        found.push(H2FrameHeader { length, kind, flags, stream });
        at += HEADER_BYTES + length;
    }
    found
}

/// Lines of `name: value` as the fields of a message; pseudo-header fields come first, without their colon.
struct Message {
    pseudo: Vec<(Vec<u8>, Vec<u8>)>,
    fields: HeaderMap,
}

impl Message {
    /// Returns the message, as `h2` hands it over: of valid names and values alone.
    fn new(bytes: &[u8]) -> Self {
        let (mut pseudo, mut fields) = (Vec::new(), HeaderMap::new());
        for line in bytes.split(|&byte| byte == b'\n') {
            let (is_pseudo, line) = match line.split_first() {
                Some((b':', rest)) => (true, rest),
                _ => (false, line),
            };
            let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii_start());
            if is_pseudo {
                pseudo.push((name.to_vec(), value.to_vec()));
            } else if let Ok(name) = HeaderName::from_lowercase(name)
                && let Ok(value) = HeaderValue::from_bytes(value)
            {
                fields.append(name, value);
            }
        }
        Self { pseudo, fields }
    }

    fn pseudo(&self, name: &str) -> Option<&[u8]> {
        let mut found = self.pseudo.iter().filter(|(text, _)| text == name.as_bytes());
        found.next().map(|(_, value)| value.as_slice())
    }

    fn request(&self) -> Option<http::request::Parts> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = self.pseudo("scheme").map(Scheme::try_from).transpose().ok()?;
        uri.authority = self.pseudo("authority").map(TryFrom::try_from).transpose().ok()?;
        uri.path_and_query = self.pseudo("path").map(TryFrom::try_from).transpose().ok()?;
        let mut request = http::Request::new(());
        *request.uri_mut() = http::Uri::from_parts(uri).ok()?;
        *request.method_mut() = self.pseudo("method")?.try_into().ok()?;
        *request.headers_mut() = self.fields.clone();
        Some(request.into_parts().0)
    }

    fn response(&self) -> Option<http::response::Parts> {
        let mut response = http::Response::new(());
        *response.status_mut() = self.pseudo("status")?.try_into().ok()?;
        *response.headers_mut() = self.fields.clone();
        Some(response.into_parts().0)
    }
}

/// A head that is accepted can be written for HTTP/2 and HTTP/1.1, and has the same meaning there.
pub fn head(bytes: &[u8]) {
    let message = Message::new(bytes);
    for is_whole in [false, true] {
        if let Some(parts) = message.request() {
            let protocol = message.pseudo("protocol").and_then(|it| str::from_utf8(it).ok());
            request_head(&parts, protocol, is_whole);
        }
        if let Some(parts) = message.response() {
            response_head(&parts, is_whole);
        }
    }
    trailers(&message.fields);
}

fn request_head(parts: &http::request::Parts, protocol: Option<&str>, is_whole: bool) {
    let key = || *b"dGhlIHNhbXBsZSBub25jZQ==";
    let mut head = RequestHead::new();
    if request::read(parts, protocol, is_whole, &LIMITS, key, &mut head).is_err() {
        return;
    }
    let mut again = RequestHead::new();
    let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
    if let Ok(written) = request::write(&head, head.framing, Scheme::HTTP, endpoint) {
        let parts = written.into_parts().0;
        let protocol = head.upgrade.then_some("websocket");
        request::read(&parts, protocol, is_whole, &ROOMY, key, &mut again).unwrap();
        assert_same(&head, &again);
    }
    let framing = in_http1(head.framing);
    let mut text = Vec::new();
    write::request_head(&head, framing, head.upgrade, &mut text);
    assert_eq!(parse::request(&text, &ROOMY, &mut again), Ok(Some(text.len())), "{head:?}");
    assert_same(&head, &again);
    assert_eq!(framing, again.framing);
}

fn response_head(parts: &http::response::Parts, is_whole: bool) {
    let (request, mut head) = (RequestHead::new(), ResponseHead::new());
    if response::read(parts, is_whole, &LIMITS, &request, &mut head).is_err() {
        return;
    }
    let framing = in_http1(head.framing);
    let mut text = Vec::new();
    write::response_head(&head, framing, head.version, true, head.upgrade, &mut text);
    let mut again = ResponseHead::new();
    let taken = parse::response(&text, &ROOMY, codec::head::RequestMethod::Get, &mut again);
    assert_eq!(taken, Ok(Some(text.len())));
    assert_eq!(head.status, again.status);
    assert!(framing == again.framing || framing == BodyFraming::UntilClose);
}

fn trailers(map: &HeaderMap) {
    let Some(trailers) = fields::read_trailers(map) else { return };
    let Some(written) = fields::write_trailers(&trailers) else { return };
    let again = fields::read_trailers(&written).unwrap();
    assert_eq!(named(&again), named(&trailers));
}
