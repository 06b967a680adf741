//! Server side of an HTTP/1.1 connection: one request, one response, the next request.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::rc::Rc;

use mio::net::TcpStream;

use crate::http::{MessageError, MessageReader, RequestHead, ResponseSpec};

pub(super) struct Http1Server {
    socket: TcpStream,
    incoming: MessageReader<RequestHead>,
    answer: Option<PendingResponse>,
    /// True if nothing follows the response to the last request.
    is_last: bool,
}

struct PendingResponse {
    bytes: Rc<[u8]>,
    sent: usize,
}

impl Http1Server {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, incoming: MessageReader::new(), answer: None, is_last: false }
    }

    pub(super) fn next_request(
        &mut self,
        scratch: &mut [u8],
    ) -> Result<Option<(u32, ResponseSpec)>, MessageError> {
        self.write_answer()?;
        if self.answer.is_some() {
            return Ok(None);
        }
        let Some(head) = self.incoming.read(&self.socket, scratch)? else { return Ok(None) };
        self.is_last = head.closes;
        Ok(Some((0, head.wanted)))
    }

    /// True if the client has sent part of a request.
    pub(super) fn has_part_of_a_request(&self) -> bool {
        self.incoming.is_partial() || has_unread_bytes(&self.socket)
    }

    pub(super) fn send(&mut self, bytes: Rc<[u8]>) -> Result<(), MessageError> {
        self.answer = Some(PendingResponse { bytes, sent: 0 });
        self.write_answer()
    }

    fn write_answer(&mut self) -> Result<(), MessageError> {
        let Some(answer) = &mut self.answer else { return Ok(()) };
        while answer.sent < answer.bytes.len() {
            match self.socket.write(&answer.bytes[answer.sent..]) {
                Ok(count) => answer.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(MessageError::Io(error)),
            }
        }
        self.answer = None;
        if self.is_last {
            self.socket.shutdown(Shutdown::Write).map_err(MessageError::Io)?;
        }
        Ok(())
    }
}

/// True if the kernel has received, and acknowledged, bytes that are still to be read.
pub(super) fn has_unread_bytes(socket: &TcpStream) -> bool {
    matches!(socket.peek(&mut [0]), Ok(1))
}

#[derive(Default)]
pub(super) struct Http1Responses(Vec<(usize, Rc<[u8]>)>);

impl Http1Responses {
    pub(super) fn of(&mut self, wanted: &ResponseSpec) -> Rc<[u8]> {
        match wanted {
            ResponseSpec::Bytes(length) | ResponseSpec::Call(length) => self.of_length(*length),
            ResponseSpec::Echo(head) => response("200 OK", head),
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
