//! A closed loop of TLS 1.3 handshakes: the client closes as soon as it could send something, and one counts
//! when the server has closed as well, since it has then dealt with the client's last word. What a client may
//! leave out (checking the certificate) this one leaves out.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use mio::net::TcpStream;
use mio::{Interest, Registry};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, NamedGroup,
    SignatureScheme,
};

use crate::Side;
use crate::course::Course;
use crate::http::Fault;
use crate::job::{LoadReport, ShakeJob};

pub(crate) struct Shake {
    job: ShakeJob,
    places: Vec<Place>,
    course: Course,
}

/// One connection after another.
struct Place {
    config: Arc<ClientConfig>,
    tickets: Arc<Tickets>,
    /// None once no more are wanted.
    connection: Option<Connection>,
}

struct Connection {
    socket: TcpStream,
    tls: ClientConnection,
    began: Instant,
    /// It offers a ticket, and so must be resumed.
    resumes: bool,
    /// What is still to be said once that is possible.
    request: String,
    /// We have said that nothing more will come.
    over: bool,
}

impl Shake {
    pub(crate) fn start(job: ShakeJob, served: &[u64], registry: &Registry) -> Result<Self> {
        let provider = Arc::new(provider());
        let mut places = (0..job.connections)
            .map(|_| Place::new(&provider, job.resume))
            .collect::<Result<Vec<_>>>()?;
        for (index, place) in places.iter_mut().enumerate() {
            place.connect(&job, index, registry)?;
        }
        let course = Course::begin(job.extent, job.processes.clone(), places.len(), served)?;
        Ok(Self { job, places, course })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        self.course.counts()
    }

    /// Takes one connection as far as it goes; when it is closed, the next one begins.
    pub(crate) fn advance(&mut self, index: usize, registry: &Registry) -> Result<()> {
        let place = &mut self.places[index];
        let Some(connection) = &mut place.connection else { return Ok(()) };
        // The first of a place that resumes has nothing to resume, and is no part of the load.
        let counts = connection.resumes == self.job.resume;
        let again = match connection.advance(&place.tickets) {
            Ok(false) => return Ok(()),
            Ok(true) if counts => {
                self.course.answered(connection.began.elapsed());
                self.course.issues()
            }
            Ok(true) => true,
            Err(fault) => self.course.failed(&fault),
        };
        place.connection = None;
        if again { place.connect(&self.job, index, registry) } else { Ok(()) }
    }

    pub(crate) fn tick(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
        let places = &self.places;
        self.course.tick(now, served, || places.iter().all(|place| place.connection.is_none()))
    }
}

impl Place {
    fn new(provider: &Arc<CryptoProvider>, resume: bool) -> Result<Self> {
        let tickets = Arc::new(Tickets {
            wanted: resume,
            came: AtomicBool::new(false),
            last: Mutex::new(None),
        });
        let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::store(Arc::clone(&tickets) as Arc<dyn ClientSessionStore>);
        Ok(Self { config: Arc::new(config), tickets, connection: None })
    }

    fn connect(&mut self, job: &ShakeJob, index: usize, registry: &Registry) -> Result<()> {
        let resumes = self.tickets.begin();
        let name = ServerName::try_from(job.host.clone())?;
        let tls = ClientConnection::new(Arc::clone(&self.config), name)?;
        let began = Instant::now();
        let mut socket = TcpStream::connect(job.target)
            .with_context(|| format!("cannot connect to {}", job.target))?;
        socket.set_nodelay(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, Side::Client.token(index), interest)?;
        let request = if job.ask { ask(&job.host) } else { String::new() };
        self.connection = Some(Connection { socket, tls, began, resumes, request, over: false });
        Ok(())
    }
}

impl Connection {
    /// True when the other side has closed as well.
    fn advance(&mut self, tickets: &Tickets) -> Result<bool, Fault> {
        match self.try_to_advance(tickets) {
            // How a connection ends that nobody needs any more is no fault.
            Err(Fault::Io(_) | Fault::Closed) if self.over => Ok(true),
            outcome => outcome,
        }
    }

    fn try_to_advance(&mut self, tickets: &Tickets) -> Result<bool, Fault> {
        loop {
            if !self.over && !self.tls.is_handshaking() {
                self.tls.writer().write_all(self.request.as_bytes()).map_err(Fault::Io)?;
                self.request.clear();
            }
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if not_yet(&error) => return Ok(false),
                    Err(error) => return Err(Fault::Io(error)),
                }
            }
            if !self.over && !self.tls.is_handshaking() && tickets.suffice() {
                self.finish()?;
                continue;
            }
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) if self.over => return Ok(true),
                Ok(0) => return Err(Fault::Closed),
                Ok(_) => {
                    self.tls.process_new_packets().map_err(Fault::Tls)?;
                }
                Err(error) if not_yet(&error) => return Ok(false),
                Err(error) => return Err(Fault::Io(error)),
            }
        }
    }

    /// Says that nothing more will come.
    fn finish(&mut self) -> Result<(), Fault> {
        let resumed = self.tls.handshake_kind() == Some(HandshakeKind::Resumed);
        if resumed != self.resumes {
            return Err(Fault::NotResumed);
        }
        self.over = true;
        self.tls.send_close_notify();
        self.tls.write_tls(&mut self.socket).map_err(Fault::Io)?;
        self.socket.shutdown(Shutdown::Write).map_err(Fault::Io)
    }
}

/// The last ticket of a place, for the next connection alone.
#[derive(Debug)]
struct Tickets {
    /// Each connection is to wait for one.
    wanted: bool,
    came: AtomicBool,
    last: Mutex<Option<Tls13ClientSessionValue>>,
}

impl Tickets {
    /// A connection begins; says whether there is a ticket for it.
    fn begin(&self) -> bool {
        self.came.store(false, Ordering::Relaxed);
        self.last.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn suffice(&self) -> bool {
        !self.wanted || self.came.load(Ordering::Relaxed)
    }
}

impl ClientSessionStore for Tickets {
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
        self.came.store(true, Ordering::Relaxed);
        if self.wanted {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Takes any certificate: what is measured is the server.
#[derive(Debug)]
struct Unverified;

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// A request that is the only one of its connection.
fn ask(host: &str) -> String {
    format!("GET /b/100 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// X25519 alone, so that every server exchanges keys in the same way.
fn provider() -> CryptoProvider {
    CryptoProvider { kx_groups: vec![kx_group::X25519], ..default_provider() }
}

fn not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
