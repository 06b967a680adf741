//! An endpoint's side of an HTTP/2 connection: requests of many streams, each answered when it is whole.

use std::rc::Rc;

use mio::net::TcpStream;

use crate::http::{Fault, Wanted, bytes_in_path};
use crate::http2::{MAX_BODY_BYTES, Wire};
use crate::message::{Event, Fields, Message, field};
use crate::request::grpc_message;

pub(super) struct Http2 {
    wire: Wire,
    /// Requests whose body has yet to end.
    incomplete: Vec<(u32, Wanted)>,
}

impl Http2 {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { wire: Wire::of_server(socket), incomplete: Vec::new() }
    }

    pub(super) fn next_request(
        &mut self,
        scratch: &mut [u8],
    ) -> Result<Option<(u32, Wanted)>, Fault> {
        loop {
            let Some(event) = self.wire.next_event()? else {
                // All that is here has been answered, in one write.
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

    /// The request that is whole with this.
    fn take(&mut self, event: Event) -> Option<(u32, Wanted)> {
        match event {
            Event::Head { stream, fields, last: true } => Some((stream, wanted(&fields))),
            Event::Head { stream, fields, last: false } => {
                self.incomplete.push((stream, wanted(&fields)));
                None
            }
            Event::Data { last: false, .. } | Event::GoAway { .. } => None,
            Event::Data { stream, .. } => self.remove(stream),
            Event::Reset { stream, .. } => {
                self.remove(stream);
                None
            }
        }
    }

    fn remove(&mut self, stream: u32) -> Option<(u32, Wanted)> {
        let place = self.incomplete.iter().position(|(own, _)| *own == stream)?;
        Some(self.incomplete.swap_remove(place))
    }

    /// Goes out at once if nothing else is to be read first.
    pub(super) fn send(&mut self, stream: u32, answer: Rc<Message>) -> Result<(), Fault> {
        self.wire.send(stream, answer);
        if self.wire.has_more() { Ok(()) } else { self.wire.flush() }
    }
}

fn wanted(fields: &Fields) -> Wanted {
    let path = String::from_utf8_lossy(fields.value(":path").unwrap_or_default());
    let bytes = bytes_in_path(&path);
    if path.ends_with("/echo") {
        Wanted::Echo(fields.to_text())
    } else if fields.value("content-type") == Some(b"application/grpc") {
        Wanted::Call(bytes)
    } else {
        Wanted::Bytes(bytes)
    }
}

#[derive(Default)]
pub(super) struct Answers(Vec<(Kind, Rc<Message>)>);

#[derive(PartialEq)]
enum Kind {
    Body(usize),
    Call(usize),
}

impl Answers {
    pub(super) fn of(&mut self, wanted: &Wanted) -> Result<Rc<Message>, Fault> {
        let (kind, bytes) = match wanted {
            Wanted::Bytes(bytes) => (Kind::Body(*bytes), *bytes),
            Wanted::Call(bytes) => (Kind::Call(*bytes), *bytes),
            Wanted::Echo(head) => return Ok(response("200", head.clone())),
        };
        if let Some((_, answer)) = self.0.iter().find(|(known, _)| *known == kind) {
            return Ok(Rc::clone(answer));
        }
        if bytes > MAX_BODY_BYTES {
            return Err(Fault::TooLong(bytes));
        }
        let answer = match kind {
            Kind::Body(bytes) => response("200", vec![b'x'; bytes]),
            Kind::Call(bytes) => result(bytes),
        };
        self.0.push((kind, Rc::clone(&answer)));
        Ok(answer)
    }
}

pub(super) fn failure() -> Rc<Message> {
    response("500", b"broken".to_vec())
}

fn response(status: &str, body: Vec<u8>) -> Rc<Message> {
    let head = vec![
        field(":status", status),
        field("server", "endpoint"),
        field("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        field("content-type", "text/plain"),
        field("content-length", &body.len().to_string()),
    ];
    Rc::new(Message { head, body, trailers: Vec::new() })
}

/// What a call that went well comes to.
fn result(bytes: usize) -> Rc<Message> {
    Rc::new(Message {
        head: vec![field(":status", "200"), field("content-type", "application/grpc")],
        body: grpc_message(bytes),
        trailers: vec![field("grpc-status", "0"), field("grpc-message", "")],
    })
}
