//! An endpoint's side of an HTTP/1.1 connection: one request, one answer, the next request.

use std::io::{self, Write as _};
use std::rc::Rc;

use mio::net::TcpStream;

use crate::http::{Fault, Incoming, RequestHead, Wanted};

pub(super) struct Http1 {
    socket: TcpStream,
    incoming: Incoming<RequestHead>,
    answer: Option<Answer>,
}

struct Answer {
    bytes: Rc<[u8]>,
    sent: usize,
}

impl Http1 {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, incoming: Incoming::new(), answer: None }
    }

    pub(super) fn next_request(
        &mut self,
        scratch: &mut [u8],
    ) -> Result<Option<(u32, Wanted)>, Fault> {
        self.write_answer()?;
        if self.answer.is_some() {
            return Ok(None);
        }
        let head = self.incoming.read(&self.socket, scratch)?;
        Ok(head.map(|head| (0, head.wanted)))
    }

    /// True if the client has sent bytes of a request that has not been read whole.
    pub(super) fn has_part_of_a_request(&self) -> bool {
        self.incoming.is_partial() || has_unread_bytes(&self.socket)
    }

    pub(super) fn send(&mut self, bytes: Rc<[u8]>) -> Result<(), Fault> {
        self.answer = Some(Answer { bytes, sent: 0 });
        self.write_answer()
    }

    fn write_answer(&mut self) -> Result<(), Fault> {
        let Some(answer) = &mut self.answer else { return Ok(()) };
        while answer.sent < answer.bytes.len() {
            match self.socket.write(&answer.bytes[answer.sent..]) {
                Ok(count) => answer.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Fault::Io(error)),
            }
        }
        self.answer = None;
        Ok(())
    }
}

/// True if the kernel has received, and acknowledged, bytes that are still to be read.
pub(super) fn has_unread_bytes(socket: &TcpStream) -> bool {
    matches!(socket.peek(&mut [0]), Ok(1))
}

#[derive(Default)]
pub(super) struct Answers(Vec<(usize, Rc<[u8]>)>);

impl Answers {
    pub(super) fn of(&mut self, wanted: &Wanted) -> Rc<[u8]> {
        match wanted {
            Wanted::Bytes(length) | Wanted::Call(length) => self.of_length(*length),
            Wanted::Echo(head) => response("200 OK", head),
        }
    }

    fn of_length(&mut self, length: usize) -> Rc<[u8]> {
        if let Some((_, bytes)) = self.0.iter().find(|(known, _)| *known == length) {
            return Rc::clone(bytes);
        }
        let bytes = response("200 OK", &vec![b'x'; length]);
        self.0.push((length, Rc::clone(&bytes)));
        bytes
    }
}

pub(super) fn response(status: &str, body: &[u8]) -> Rc<[u8]> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nServer: endpoint\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes.into()
}
