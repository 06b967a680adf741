//! Handshake of TLS 1.3 over TCP. The client closes as soon as it could send data, and the handshake is complete when
//! the server has closed as well, since the server has then processed the client's Finished.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, NamedGroup};

use crate::http::MessageError;
use crate::job::HandshakeJob;
use crate::tls;

/// Connector of one sequence of connections.
pub(super) struct TcpConnector {
    config: Arc<ClientConfig>,
    tickets: Arc<TicketStore>,
}

impl TcpConnector {
    pub(super) fn new(provider: &Arc<CryptoProvider>, resume: bool) -> Result<Self> {
        let tickets = Arc::new(TicketStore {
            wanted: resume,
            received: AtomicBool::new(false),
            last: Mutex::new(None),
        });
        let mut config = tls::client_config(provider)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::store(Arc::clone(&tickets) as Arc<dyn ClientSessionStore>);
        Ok(Self { config: Arc::new(config), tickets })
    }

    pub(super) fn connect(
        &self,
        job: &HandshakeJob,
        registry: &Registry,
        token: Token,
    ) -> Result<TlsHandshakeConnection> {
        let resumes = self.tickets.begin();
        let name = ServerName::try_from(job.host.clone())?;
        let tls = ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut socket = TcpStream::connect(job.target)
            .with_context(|| format!("cannot connect to {}", job.target))?;
        socket.set_nodelay(true)?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let request = if job.ask { request_text(&job.host) } else { String::new() };
        let tickets = Arc::clone(&self.tickets);
        Ok(TlsHandshakeConnection { socket, tls, tickets, resumes, request, close_sent: false })
    }
}

pub(super) struct TlsHandshakeConnection {
    socket: TcpStream,
    tls: ClientConnection,
    tickets: Arc<TicketStore>,
    /// True if the connection offers a ticket, and therefore must be resumed.
    pub(super) resumes: bool,
    /// Request to send once the handshake permits it; empty after that.
    request: String,
    /// True after our close_notify.
    close_sent: bool,
}

impl TlsHandshakeConnection {
    /// Advances the connection; true when the server has closed as well.
    pub(super) fn advance(&mut self) -> Result<bool, MessageError> {
        match self.try_to_advance() {
            // After our close_notify, an error at the end of the connection does not matter.
            Err(MessageError::Io(_) | MessageError::Closed) if self.close_sent => Ok(true),
            outcome => outcome,
        }
    }

    fn try_to_advance(&mut self) -> Result<bool, MessageError> {
        loop {
            if !self.close_sent && !self.tls.is_handshaking() {
                self.tls.writer().write_all(self.request.as_bytes()).map_err(MessageError::Io)?;
                self.request.clear();
            }
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if would_block(&error) => return Ok(false),
                    Err(error) => return Err(MessageError::Io(error)),
                }
            }
            if !self.close_sent && !self.tls.is_handshaking() && self.tickets.is_satisfied() {
                self.finish()?;
                continue;
            }
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) if self.close_sent => return Ok(true),
                Ok(0) => return Err(MessageError::Closed),
                Ok(_) => {
                    self.tls.process_new_packets().map_err(MessageError::Tls)?;
                }
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) => return Err(MessageError::Io(error)),
            }
        }
    }

    /// Sends close_notify, after a check that resumption was as expected.
    fn finish(&mut self) -> Result<(), MessageError> {
        let resumed = self.tls.handshake_kind() == Some(HandshakeKind::Resumed);
        if resumed != self.resumes {
            return Err(MessageError::NotResumed);
        }
        self.close_sent = true;
        self.tls.send_close_notify();
        self.tls.write_tls(&mut self.socket).map_err(MessageError::Io)?;
        self.socket.shutdown(Shutdown::Write).map_err(MessageError::Io)
    }
}

/// The last ticket of a sequence, for the next connection only.
#[derive(Debug)]
struct TicketStore {
    /// True if each connection has to wait for a ticket.
    wanted: bool,
    received: AtomicBool,
    last: Mutex<Option<Tls13ClientSessionValue>>,
}

impl TicketStore {
    /// Begins a connection; returns whether there is a ticket for it.
    fn begin(&self) -> bool {
        self.received.store(false, Ordering::Relaxed);
        self.last.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn is_satisfied(&self) -> bool {
        !self.wanted || self.received.load(Ordering::Relaxed)
    }
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.received.store(true, Ordering::Relaxed);
        if self.wanted {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns the only request of a connection.
fn request_text(host: &str) -> String {
    format!("GET /b/100 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
