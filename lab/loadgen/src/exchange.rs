//! One client connection and the one request under way on it.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::http::{Fault, Incoming, ResponseHead};

pub(crate) struct Exchange {
    socket: TcpStream,
    /// Bytes of the request that the kernel has taken; all of them means that the answer is awaited.
    sent: usize,
    incoming: Incoming<ResponseHead>,
    idle: bool,
}

impl Exchange {
    /// Begins to connect. The first request goes out when the socket turns writable.
    pub(crate) fn connect(
        target: SocketAddr,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut socket = TcpStream::connect(target)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { socket, sent: 0, incoming: Incoming::new(), idle: false })
    }

    pub(crate) fn begin(&mut self) {
        self.sent = 0;
        self.idle = false;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle
    }

    /// Sends and receives as far as the socket goes. True when the answer is complete and as it should be.
    pub(crate) fn advance(
        &mut self,
        request: &[u8],
        answer_bytes: u64,
        scratch: &mut [u8],
    ) -> Result<bool, Fault> {
        if self.idle {
            // Nothing is due on an idle connection: whatever comes is the other side closing it.
            return self.incoming.read(&self.socket, scratch).map(|_surplus| false);
        }
        let fresh = self.sent == 0;
        if !self.send(request)? || fresh {
            // The answer to what was only just sent cannot be there yet, and will be an event.
            return Ok(false);
        }
        let Some(head) = self.incoming.read(&self.socket, scratch)? else { return Ok(false) };
        self.idle = true;
        match head {
            ResponseHead { status: 200, body_bytes } if body_bytes == answer_bytes => Ok(true),
            ResponseHead { status: 200, body_bytes } => Err(Fault::Length(body_bytes)),
            ResponseHead { status, .. } => Err(Fault::Status(status)),
        }
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
