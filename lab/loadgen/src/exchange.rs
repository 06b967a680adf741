//! One client connection and the one request under way on it.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::http::{Fault, Incoming, ResponseHead};
use crate::request::Request;

/// What is said over every connection of a job, and what must come back.
pub(crate) struct Script {
    request: Vec<u8>,
    answer_bytes: u64,
    pub(crate) close: bool,
}

impl Script {
    pub(crate) fn of(request: &Request) -> Self {
        let Request { answer_bytes, close, .. } = *request;
        Self { request: request.to_bytes(), answer_bytes, close }
    }

    fn judge(&self, head: &ResponseHead) -> Result<(), Fault> {
        match *head {
            ResponseHead { status: 200, body_bytes, .. } if body_bytes == self.answer_bytes => {
                Ok(())
            }
            ResponseHead { status: 200, body_bytes, .. } => Err(Fault::Length(body_bytes)),
            ResponseHead { status, .. } => Err(Fault::Status(status)),
        }
    }
}

pub(crate) struct Exchange {
    socket: TcpStream,
    /// Bytes of the request that the kernel has taken; all of them means that the answer is awaited.
    sent: usize,
    incoming: Incoming<ResponseHead>,
    /// An answer after which the proxy has yet to close.
    unclosed: Option<ResponseHead>,
    idle: bool,
    /// True if the last answer announced that the connection closes after it.
    closing: bool,
}

impl Exchange {
    /// Begins to connect, with nothing to send yet.
    pub(crate) fn connect_idle(
        target: SocketAddr,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut socket = TcpStream::connect(target)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let incoming = Incoming::new();
        Ok(Self { socket, sent: 0, incoming, unclosed: None, idle: true, closing: false })
    }

    /// Begins to connect. The first request goes out when the socket turns writable.
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

    /// True if the connection takes another request once this one has ended as it did.
    pub(crate) fn is_reusable_after(&self, outcome: &Result<bool, Fault>) -> bool {
        !self.closing && matches!(outcome, Ok(_) | Err(Fault::Status(_)))
    }

    /// Sends and receives as far as the socket goes. True when the answer is complete and as it should be.
    pub(crate) fn advance(&mut self, script: &Script, scratch: &mut [u8]) -> Result<bool, Fault> {
        if self.idle && script.close {
            // Closed already, or not used yet.
            return Ok(false);
        }
        if self.idle {
            // Nothing is due on an idle connection: whatever comes is the other side closing it.
            return self.incoming.read(&self.socket, scratch).map(|_surplus| false);
        }
        let fresh = self.sent == 0;
        if !self.send(&script.request)? || fresh {
            // The answer to what was only just sent cannot be there yet, and will be an event.
            return Ok(false);
        }
        if self.unclosed.is_none() {
            let Some(head) = self.incoming.read(&self.socket, scratch)? else { return Ok(false) };
            if !script.close {
                self.idle = true;
                self.closing = head.closes;
                return script.judge(&head).map(|()| true);
            }
            self.unclosed = Some(head);
        }
        self.await_close(script, scratch)
    }

    fn await_close(&mut self, script: &Script, scratch: &mut [u8]) -> Result<bool, Fault> {
        match self.incoming.read(&self.socket, scratch) {
            Ok(None) => return Ok(false),
            Ok(Some(_)) => return Err(Fault::Surplus),
            Err(Fault::Closed) => self.idle = true,
            Err(fault) => return Err(fault),
        }
        let Some(head) = self.unclosed.take() else { return Ok(false) };
        script.judge(&head).map(|()| true)
    }

    /// True when the whole request is sent.
    fn send(&mut self, request: &[u8]) -> Result<bool, Fault> {
        while self.sent < request.len() {
            match self.socket.write(&request[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if not_yet(&error) => return Ok(false),
                Err(error) => return Err(Fault::Io(error)),
            }
        }
        Ok(true)
    }
}

/// A socket that is still connecting says `NotConnected`.
fn not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
