//! The protocol of the connections of a load, hidden from the loop: HTTP/2 over TCP, or HTTP/3 over QUIC.

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use mio::net::TcpStream;
use mio::{Interest, Registry};

use crate::EventSource;
use crate::http::MessageError;
use crate::job::LoadJob;
use crate::message::{HttpMessage, MessageEvent};
use crate::quic::QuicConnector;
use crate::{http2, http3};

/// Connector with the request for every connection.
pub(super) enum SessionConnector {
    Http2(Rc<HttpMessage>),
    Http3 { dialer: QuicConnector, request: Rc<[u8]> },
}

impl SessionConnector {
    pub(super) fn of(job: &LoadJob) -> Result<Self> {
        if job.http3 {
            if job.request.grpc {
                bail!("gRPC calls need HTTP/2");
            }
            let request = http3::request(&job.request.to_message("https"));
            return Ok(Self::Http3 { dialer: QuicConnector::new()?, request });
        }
        let message = job.request.to_message("http");
        if message.body.len() > http2::MAX_BODY_BYTES {
            bail!("{}", MessageError::TooLong(message.body.len()));
        }
        Ok(Self::Http2(Rc::new(message)))
    }

    /// Starts to connect.
    pub(super) fn connect(
        &self,
        job: &LoadJob,
        index: usize,
        registry: &Registry,
    ) -> Result<StreamSession> {
        let (target, token) = (job.target_of(index), EventSource::Client.token(index));
        match self {
            Self::Http2(message) => {
                let mut socket = TcpStream::connect(target)
                    .with_context(|| format!("cannot connect to {target}"))?;
                socket.set_nodelay(true)?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                registry.register(&mut socket, token, interest)?;
                let wire = Box::new(http2::Http2Session::of_client(socket));
                Ok(StreamSession::Http2 { wire, message: Rc::clone(message), next_stream: 1 })
            }
            Self::Http3 { dialer, request } => {
                let quic = dialer.connect(target, &job.request.host, registry, token)?;
                Ok(StreamSession::Http3(Box::new(http3::Http3Session::new(
                    quic,
                    Rc::clone(request),
                ))))
            }
        }
    }
}

/// One connection.
pub(super) enum StreamSession {
    Http2 { wire: Box<http2::Http2Session>, message: Rc<HttpMessage>, next_stream: u32 },
    Http3(Box<http3::Http3Session>),
}

impl StreamSession {
    /// Begins a request; returns its stream.
    pub(super) fn begin(&mut self) -> u32 {
        match self {
            Self::Http2 { wire, message, next_stream } => {
                let stream = *next_stream;
                *next_stream += 2;
                wire.send(stream, Rc::clone(message));
                stream
            }
            Self::Http3(wire) => wire.begin(),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), MessageError> {
        match self {
            Self::Http2 { wire, .. } => wire.flush(),
            Self::Http3(wire) => wire.flush(),
        }
    }

    pub(super) fn fill(&mut self, scratch: &mut [u8]) -> Result<bool, MessageError> {
        match self {
            Self::Http2 { wire, .. } => wire.fill(scratch),
            Self::Http3(wire) => wire.fill(scratch),
        }
    }

    pub(super) fn next_event(&mut self) -> Result<Option<MessageEvent>, MessageError> {
        match self {
            Self::Http2 { wire, .. } => wire.next_event(),
            Self::Http3(wire) => wire.next_event(),
        }
    }

    /// True if a timer is due; the timers of TCP are in the kernel.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self {
            Self::Http2 { .. } => false,
            Self::Http3(wire) => wire.is_due(now),
        }
    }
}
