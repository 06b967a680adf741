//! Reference parser: compares our parsing of a connection's bytes with that of hyper's server.

#![allow(unreachable_pub, reason = "the fuzz targets are built from this file too")]

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use codec::h1::{ChunkedDecoder, ChunkedEvent, HeadLimits, parse};
use codec::head::{BodyFraming, RequestHead};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Incoming};
use hyper::http::request;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};

const LIMITS: HeadLimits = HeadLimits { head_bytes: 16_384, fields: 100, target_bytes: 8192 };

/// One request as parsed by a server. Bytes are escaped for legibility.
#[derive(Debug)]
pub struct Seen {
    pub method: String,
    pub target: String,
    authority: String,
    /// Names in lower case, and values.
    fields: Vec<(String, String)>,
    /// `None`: chunked.
    length: Option<u64>,
    /// `None`: incomplete.
    pub body: Option<String>,
}

/// Checks that hyper accepts each request that we accept, with the same head, the same body and the same end of the
/// body.
pub fn agrees(bytes: &[u8]) {
    let ours = seen_by_us(bytes);
    if ours.is_empty() {
        return;
    }
    let theirs = requests(bytes);
    assert!(
        theirs.len() >= ours.len(),
        "hyper rejects a request that we accept: {ours:?}, hyper: {theirs:?}"
    );
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours.method, theirs.method);
        // hyper reports an asterisk only if one was sent.
        assert!(ours.target == theirs.target || ours.target == "*", "{ours:?} {theirs:?}");
        assert_eq!(ours.authority, theirs.authority);
        assert_eq!(ours.length, theirs.length, "{ours:?} {theirs:?}");
        assert!(ours.body.is_none() || ours.body == theirs.body, "{ours:?} {theirs:?}");
        for field in &ours.fields {
            assert!(theirs.fields.contains(field), "{field:?} is not in {theirs:?}");
        }
    }
}

fn seen_by_us(bytes: &[u8]) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut head = RequestHead::new();
    let mut rest = bytes;
    while let Ok(Some(taken)) = parse::request(rest, &LIMITS, &mut head) {
        let body = body(head.framing, &rest[taken..]);
        all.push(Seen {
            method: text(head.method_bytes()),
            target: text(head.target()),
            authority: text(head.authority()),
            fields: head
                .fields
                .iter()
                .map(|(_, name, value)| (text(name).to_lowercase(), text(value)))
                .collect(),
            length: length(head.framing),
            body: body.as_ref().map(|(data, _)| text(data)),
        });
        match body {
            Some((_, len)) if head.keep_alive && !head.upgrade => rest = &rest[taken + len..],
            _ => break,
        }
    }
    all
}

fn length(framing: BodyFraming) -> Option<u64> {
    match framing {
        BodyFraming::None => Some(0),
        BodyFraming::Length(length) => Some(length),
        BodyFraming::Chunked => None,
        BodyFraming::UntilClose | BodyFraming::Stream => {
            panic!("not a framing of an HTTP/1.1 request")
        }
    }
}

/// Returns the data of a body, and the number of bytes that it took.
fn body(framing: BodyFraming, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    if let Some(length) = length(framing) {
        let length = usize::try_from(length).ok()?;
        return Some((bytes.get(..length)?.to_vec(), length));
    }
    let mut reader = ChunkedDecoder::new();
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        match reader.next(&bytes[at..]).ok()? {
            ChunkedEvent::Data { skip, len } => {
                data.extend_from_slice(&bytes[at + skip..][..len]);
                at += skip + len;
            }
            ChunkedEvent::NeedMore { .. } => return None,
            ChunkedEvent::End { skip } => return Some((data, at + skip)),
        }
    }
}

/// Returns the requests that hyper finds in the bytes of a connection, complete or not.
pub fn requests(bytes: &[u8]) -> Vec<Seen> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let seen = Rc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            let at = seen.borrow().len();
            seen.borrow_mut().push(seen_head(&head, body.size_hint().exact()));
            let body = body.collect().await.map(|body| text(&body.to_bytes()));
            seen.borrow_mut()[at].body = body.ok();
            // A CONNECT that succeeded would end the requests.
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok::<_, Infallible>(response)
        }
    });
    let wire = Wire { input: bytes.to_vec(), at: 0 };
    let mut server = http1::Builder::new();
    // The end of the input must not suppress the responses.
    server.max_headers(200).half_close(true);
    let mut connection = pin!(server.serve_connection(wire, service));
    let mut context = Context::from_waker(Waker::noop());
    // The connection yields from time to time, and no waker would resume it: poll it repeatedly.
    let ends = (0..10_000).any(|_| connection.as_mut().poll(&mut context).is_ready());
    assert!(ends, "hyper does not finish");
    seen.take()
}

fn seen_head(head: &request::Parts, length: Option<u64>) -> Seen {
    let query = head.uri.query().map_or(String::new(), |query| format!("?{query}"));
    let authority = match (head.uri.authority(), head.headers.get("host")) {
        (Some(authority), _) => authority.as_str().as_bytes(),
        (None, Some(host)) => host.as_bytes(),
        (None, None) => b"",
    };
    let fields =
        head.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    Seen {
        method: text(head.method.as_str().as_bytes()),
        target: text((head.uri.path().to_owned() + &query).as_bytes()),
        authority: text(authority),
        fields: fields.map(|(name, value)| (text(name), text(value))).collect(),
        length,
        body: None,
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// A connection that yields the input and then EOF, and discards all output.
struct Wire {
    input: Vec<u8>,
    at: usize,
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let len = buffer.remaining().min(self.input.len() - self.at);
        buffer.put_slice(&self.input[self.at..][..len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
