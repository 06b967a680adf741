//! One client connection with its request in flight.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::http::{MessageError, MessageReader, ResponseHead};
use crate::request::JobRequest;

/// The request of every connection of a job, and the expected response.
pub(crate) struct RequestTemplate {
    request: Vec<u8>,
    answer_bytes: u64,
    pub(crate) close: bool,
}

impl RequestTemplate {
    pub(crate) fn of(request: &JobRequest) -> Self {
        let JobRequest { answer_bytes, close, .. } = *request;
        Self { request: request.to_bytes(), answer_bytes, close }
    }

    fn check(&self, head: &ResponseHead) -> Result<(), MessageError> {
        match *head {
            ResponseHead { status: 200, body_bytes, .. } if body_bytes == self.answer_bytes => {
                Ok(())
            }
            ResponseHead { status: 200, body_bytes, .. } => Err(MessageError::Length(body_bytes)),
            ResponseHead { status, .. } => Err(MessageError::Status(status)),
        }
    }
}

pub(crate) struct Http1Client {
    socket: TcpStream,
    /// Bytes of the request written to the kernel; if all, the response is pending.
    sent: usize,
    incoming: MessageReader<ResponseHead>,
    /// A complete response, after which the proxy has not closed yet.
    awaiting_close: Option<ResponseHead>,
    idle: bool,
    /// True if the last response announced that the connection closes after it.
    closing: bool,
}

impl Http1Client {
    /// Starts to connect, without a request.
    pub(crate) fn connect_idle(
        target: SocketAddr,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut socket = TcpStream::connect(target)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let incoming = MessageReader::new();
        Ok(Self { socket, sent: 0, incoming, awaiting_close: None, idle: true, closing: false })
    }

    /// Starts to connect. The first request is sent when the socket becomes writable.
    pub(crate) fn connect(
        target: SocketAddr,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut exchange = Self::connect_idle(target, registry, token)?;
        exchange.begin();
        Ok(exchange)
    }

    pub(crate) fn begin(&mut self) {
        self.sent = 0;
        self.idle = false;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle
    }

    /// True if the connection accepts another request after this outcome.
    pub(crate) fn is_reusable_after(&self, outcome: &Result<bool, MessageError>) -> bool {
        !self.closing && matches!(outcome, Ok(_) | Err(MessageError::Status(_)))
    }

    /// Sends and receives as far as the socket allows; true when the response is complete and as expected.
    pub(crate) fn advance(
        &mut self,
        script: &RequestTemplate,
        scratch: &mut [u8],
    ) -> Result<bool, MessageError> {
        if self.idle && script.close {
            // The connection is closed already, or not used yet.
            return Ok(false);
        }
        if self.idle {
            // No response is due on an idle connection: only the peer closing it is expected.
            return self.incoming.read(&self.socket, scratch).map(|_surplus| false);
        }
        let fresh = self.sent == 0;
        if !self.send(&script.request)? || fresh {
            // The response to a request that was only just sent comes with an event of its own.
            return Ok(false);
        }
        if self.awaiting_close.is_none() {
            let Some(head) = self.incoming.read(&self.socket, scratch)? else { return Ok(false) };
            if !script.close {
                self.idle = true;
                self.closing = head.closes;
                return script.check(&head).map(|()| true);
            }
            self.awaiting_close = Some(head);
        }
        self.await_close(script, scratch)
    }

    fn await_close(
        &mut self,
        script: &RequestTemplate,
        scratch: &mut [u8],
    ) -> Result<bool, MessageError> {
        match self.incoming.read(&self.socket, scratch) {
            Ok(None) => return Ok(false),
            Ok(Some(_)) => return Err(MessageError::TrailingBytes),
            Err(MessageError::Closed) => self.idle = true,
            Err(fault) => return Err(fault),
        }
        let Some(head) = self.awaiting_close.take() else { return Ok(false) };
        script.check(&head).map(|()| true)
    }

    /// Sends the request; true when all of it is sent.
    fn send(&mut self, request: &[u8]) -> Result<bool, MessageError> {
        while self.sent < request.len() {
            match self.socket.write(&request[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) => return Err(MessageError::Io(error)),
            }
        }
        Ok(true)
    }
}

/// True if the operation would block; a socket that is still connecting returns `NotConnected`.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
