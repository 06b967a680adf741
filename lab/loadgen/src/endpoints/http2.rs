//! Server side of an HTTP/2 connection: concurrent streams, each answered when its request is complete.

use std::rc::Rc;

use mio::net::TcpStream;

use crate::http::{MessageError, ResponseSpec, bytes_in_path};
use crate::http2::{Http2Session, MAX_BODY_BYTES};
use crate::message::{DecodedFields, HttpMessage, MessageEvent, field};
use crate::request::grpc_message;

pub(super) struct Http2Server {
    wire: Http2Session,
    /// Requests whose body has not ended yet.
    incomplete: Vec<(u32, ResponseSpec)>,
}

impl Http2Server {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { wire: Http2Session::of_server(socket), incomplete: Vec::new() }
    }

    pub(super) fn next_request(
        &mut self,
        scratch: &mut [u8],
    ) -> Result<Option<(u32, ResponseSpec)>, MessageError> {
        loop {
            let Some(event) = self.wire.next_event()? else {
                // All requests received so far are answered with one write.
                self.wire.flush()?;
                if !self.wire.fill(scratch)? {
                    return Ok(None);
                }
                continue;
            };
            if let Some(request) = self.take(event) {
                return Ok(Some(request));
            }
        }
    }

    /// Returns the request that this event completes.
    fn take(&mut self, event: MessageEvent) -> Option<(u32, ResponseSpec)> {
        match event {
            MessageEvent::Head { stream, fields, last: true } => Some((stream, wanted(&fields))),
            MessageEvent::Head { stream, fields, last: false } => {
                self.incomplete.push((stream, wanted(&fields)));
                None
            }
            MessageEvent::Data { last: false, .. } | MessageEvent::GoAway { .. } => None,
            MessageEvent::Data { stream, .. } => self.remove(stream),
            MessageEvent::Reset { stream, .. } => {
                self.remove(stream);
                None
            }
        }
    }

    fn remove(&mut self, stream: u32) -> Option<(u32, ResponseSpec)> {
        let index = self.incomplete.iter().position(|(own, _)| *own == stream)?;
        Some(self.incomplete.swap_remove(index))
    }

    /// Sends a response, at once if no further request is buffered.
    pub(super) fn send(
        &mut self,
        stream: u32,
        answer: Rc<HttpMessage>,
    ) -> Result<(), MessageError> {
        self.wire.send(stream, answer);
        if self.wire.has_more() { Ok(()) } else { self.wire.flush() }
    }
}

fn wanted(fields: &DecodedFields) -> ResponseSpec {
    let path = String::from_utf8_lossy(fields.value(":path").unwrap_or_default());
    let bytes = bytes_in_path(&path);
    if path.ends_with("/echo") {
        ResponseSpec::Echo(fields.to_text())
    } else if fields.value("content-type") == Some(b"application/grpc") {
        ResponseSpec::Call(bytes)
    } else {
        ResponseSpec::Bytes(bytes)
    }
}

#[derive(Default)]
pub(super) struct Http2Responses(Vec<(ResponseKind, Rc<HttpMessage>)>);

#[derive(PartialEq)]
enum ResponseKind {
    Body(usize),
    Call(usize),
}

impl Http2Responses {
    pub(super) fn of(&mut self, wanted: &ResponseSpec) -> Result<Rc<HttpMessage>, MessageError> {
        let (kind, bytes) = match wanted {
            ResponseSpec::Bytes(bytes) => (ResponseKind::Body(*bytes), *bytes),
            ResponseSpec::Call(bytes) => (ResponseKind::Call(*bytes), *bytes),
            ResponseSpec::Echo(head) => return Ok(response("200", head.clone())),
        };
        if let Some((_, answer)) = self.0.iter().find(|(known, _)| *known == kind) {
            return Ok(Rc::clone(answer));
        }
        if bytes > MAX_BODY_BYTES {
            return Err(MessageError::TooLong(bytes));
        }
        let answer = match kind {
            ResponseKind::Body(bytes) => response("200", vec![b'x'; bytes]),
            ResponseKind::Call(bytes) => result(bytes),
        };
        self.0.push((kind, Rc::clone(&answer)));
        Ok(answer)
    }
}

pub(super) fn failure() -> Rc<HttpMessage> {
    response("500", b"broken".to_vec())
}

fn response(status: &str, body: Vec<u8>) -> Rc<HttpMessage> {
    let head = vec![
        field(":status", status),
        field("server", "endpoint"),
        field("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        field("content-type", "text/plain"),
        field("content-length", &body.len().to_string()),
    ];
    Rc::new(HttpMessage { head, body, trailers: Vec::new() })
}

/// Returns the response of a successful gRPC call.
fn result(bytes: usize) -> Rc<HttpMessage> {
    Rc::new(HttpMessage {
        head: vec![field(":status", "200"), field("content-type", "application/grpc")],
        body: grpc_message(bytes),
        trailers: vec![field("grpc-status", "0"), field("grpc-message", "")],
    })
}
