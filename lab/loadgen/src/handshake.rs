//! Closed loop of handshakes of TLS 1.3 over TCP or of QUIC: each connection is closed as soon as it is established.

mod tcp;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use mio::Registry;
use quinn_proto::Event;

use crate::EventSource;
use crate::http::MessageError;
use crate::job::{HandshakeJob, LoadReport};
use crate::progress::RunProgress;
use crate::quic::{self, QuicClient};
use crate::tls;

pub(crate) struct HandshakeRun {
    job: HandshakeJob,
    sequences: Vec<ConnectionSequence>,
    course: RunProgress,
}

/// A sequence of connections, one after another.
struct ConnectionSequence {
    dialer: HandshakeConnector,
    /// The current connection; `None` at the end of the load.
    connection: Option<HandshakeConnection>,
    began: Instant,
}

enum HandshakeConnector {
    Tcp(tcp::TcpConnector),
    Quic(Rc<quic::QuicConnector>),
}

enum HandshakeConnection {
    Tcp(Box<tcp::TlsHandshakeConnection>),
    Quic(Box<QuicClient>),
}

impl HandshakeRun {
    pub(crate) fn start(job: HandshakeJob, served: &[u64], registry: &Registry) -> Result<Self> {
        let mut sequences =
            connectors(&job)?.into_iter().map(ConnectionSequence::new).collect::<Vec<_>>();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            sequence.connect(&job, index, registry)?;
        }
        let course =
            RunProgress::begin(job.extent, job.processes.clone(), sequences.len(), served)?;
        Ok(Self { job, sequences, course })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        self.course.is_counting()
    }

    /// Advances one connection as far as its socket allows; when it has ended, starts the next one.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        let sequence = &mut self.sequences[index];
        let Some(connection) = &mut sequence.connection else { return Ok(()) };
        // If sessions are resumed, the first connection of a sequence has none to resume, and does
        // not count.
        let counts = connection.resumes() == self.job.resume;
        let again = match connection.advance(scratch) {
            Ok(false) => return Ok(()),
            Ok(true) if counts => {
                self.course.record_success(sequence.began.elapsed());
                self.course.should_issue()
            }
            Ok(true) => true,
            Err(fault) => self.course.record_failure(&fault),
        };
        sequence.connection = None;
        if again { sequence.connect(&self.job, index, registry) } else { Ok(()) }
    }

    /// Handles due timers of connections, and updates the progress.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<Option<LoadReport>> {
        for index in 0..self.sequences.len() {
            if self.sequences[index].is_due(now) {
                self.advance(index, registry, scratch)?;
            }
        }
        let sequences = &self.sequences;
        self.course.tick(now, served, || sequences.iter().all(|it| it.connection.is_none()))
    }
}

/// Returns a connector for each sequence.
fn connectors(job: &HandshakeJob) -> Result<Vec<HandshakeConnector>> {
    if job.http3 {
        if job.resume || job.ask {
            bail!("over QUIC, sessions are not resumed and no request is sent");
        }
        let dialer = Rc::new(quic::QuicConnector::new()?);
        return Ok((0..job.connections)
            .map(|_| HandshakeConnector::Quic(Rc::clone(&dialer)))
            .collect());
    }
    let provider = Arc::new(tls::provider());
    let dialer = |_| tcp::TcpConnector::new(&provider, job.resume).map(HandshakeConnector::Tcp);
    (0..job.connections).map(dialer).collect()
}

impl ConnectionSequence {
    fn new(dialer: HandshakeConnector) -> Self {
        Self { dialer, connection: None, began: Instant::now() }
    }

    fn connect(&mut self, job: &HandshakeJob, index: usize, registry: &Registry) -> Result<()> {
        let token = EventSource::Client.token(index);
        self.began = Instant::now();
        self.connection = Some(match &self.dialer {
            HandshakeConnector::Tcp(dialer) => {
                HandshakeConnection::Tcp(Box::new(dialer.connect(job, registry, token)?))
            }
            HandshakeConnector::Quic(dialer) => HandshakeConnection::Quic(Box::new(
                dialer.connect(job.target, &job.host, registry, token)?,
            )),
        });
        Ok(())
    }

    /// True if a timer of the connection is due; the timers of TCP are in the kernel.
    fn is_due(&self, now: Instant) -> bool {
        matches!(&self.connection, Some(HandshakeConnection::Quic(quic)) if quic.is_due(now))
    }
}

impl HandshakeConnection {
    fn resumes(&self) -> bool {
        match self {
            Self::Tcp(connection) => connection.resumes,
            Self::Quic(_) => false,
        }
    }

    /// Advances the handshake; true when it is complete.
    fn advance(&mut self, scratch: &mut [u8]) -> Result<bool, MessageError> {
        match self {
            Self::Tcp(connection) => connection.advance(),
            Self::Quic(quic) => advance_quic_handshake(quic, scratch),
        }
    }
}

/// Advances a QUIC handshake; true when the server has confirmed it. Dropping the connection then closes it.
fn advance_quic_handshake(quic: &mut QuicClient, scratch: &mut [u8]) -> Result<bool, MessageError> {
    loop {
        quic.flush()?;
        while let Some(event) = quic.next_event() {
            if let Event::ConnectionLost { reason } = event {
                return Err(MessageError::Quic(reason));
            }
        }
        if quic.is_confirmed() {
            return Ok(true);
        }
        if !quic.fill(scratch)? {
            return Ok(false);
        }
    }
}
