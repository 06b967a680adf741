//! A TLS session without its socket: ciphertext in, plaintext out, and back.
//!
//! It uses the unbuffered interface of rustls, so that all memory is ours. An idle session holds its keys and no
//! buffer, and moves to another worker together with its socket. tokio-rustls, in contrast, keeps 4 KiB for each idle
//! connection, and its stream cannot leave the runtime that it was made in.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};
use tokio::io::ReadBuf;

/// Maximum plaintext in a record (RFC 8446 §5.1).
const RECORD_BYTES: usize = 16 * 1024;
/// Maximum overhead of a record: header, explicit nonce, type and tag.
const RECORD_OVERHEAD: usize = 5 + 8 + 1 + 16;

pub struct TlsSession {
    connection: UnbufferedConnection,
    pub(super) incoming: CiphertextBuffer,
    /// Decrypted bytes that the reader had no room for.
    pub(super) plaintext: PlaintextBuffer,
    /// Ciphertext to be written, of which the first `sent` bytes are written.
    pub(super) outgoing: Vec<u8>,
    pub(super) sent: usize,
    /// Total ciphertext that the kernel has accepted.
    pub written: u64,
    /// True if the peer has sent close_notify.
    pub(super) peer_closed: bool,
    /// The error that ended the session.
    failed: Option<Error>,
}

enum UnbufferedConnection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Received ciphertext, of which the first `used` bytes have been decrypted.
#[derive(Default)]
pub(super) struct CiphertextBuffer {
    pub(super) bytes: Vec<u8>,
    used: usize,
}

/// Plaintext, of which the first `read` bytes have been read.
#[derive(Default)]
pub(super) struct PlaintextBuffer {
    bytes: Vec<u8>,
    read: usize,
}

/// An action to take as soon as the session may send.
enum SendAction<'t> {
    Nothing,
    Encrypt(&'t [u8]),
    EncryptCloseNotify,
}

/// The result of processing the received records once.
enum SessionProgress {
    Continue,
    Wait,
}

impl TlsSession {
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        UnbufferedClientConnection::new(config, name)
            .map(|side| Self::new(UnbufferedConnection::Client(side)))
    }

    pub fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config)
            .map(|side| Self::new(UnbufferedConnection::Server(side)))
    }

    fn new(connection: UnbufferedConnection) -> Self {
        let (incoming, plaintext) = (CiphertextBuffer::default(), PlaintextBuffer::default());
        Self {
            connection,
            incoming,
            plaintext,
            outgoing: Vec::new(),
            sent: 0,
            written: 0,
            peer_closed: false,
            failed: None,
        }
    }

    /// Returns the negotiated state of the handshake so far.
    pub fn common_state(&self) -> &CommonState {
        match &self.connection {
            UnbufferedConnection::Client(side) => side,
            UnbufferedConnection::Server(side) => side,
        }
    }

    /// Appends received ciphertext.
    pub fn receive_ciphertext(&mut self, ciphertext: &[u8]) {
        self.incoming.bytes.extend_from_slice(ciphertext);
    }

    /// Decrypts all that has been received. Plaintext goes to `space`; the rest is kept.
    pub(super) fn decrypt(&mut self, space: &mut ReadBuf<'_>) -> Result<(), Error> {
        let result = self.advance(space, SendAction::Nothing);
        self.incoming.compact();
        result
    }

    /// Continues the handshake, as far as the received bytes allow.
    pub fn advance_handshake(&mut self) -> Result<(), Error> {
        self.decrypt(&mut ReadBuf::new(&mut []))
    }

    /// Encrypts `plaintext`.
    pub(super) fn encrypt(&mut self, plaintext: &[u8]) -> Result<(), Error> {
        self.advance(&mut ReadBuf::new(&mut []), SendAction::Encrypt(plaintext))
    }

    /// Encrypts a close_notify alert.
    pub(super) fn encrypt_close_notify(&mut self) -> Result<(), Error> {
        self.advance(&mut ReadBuf::new(&mut []), SendAction::EncryptCloseNotify)
    }

    /// Processes received records until none is left. After an error, `outgoing` holds the alert for it.
    fn advance(&mut self, space: &mut ReadBuf<'_>, mut task: SendAction<'_>) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            let mut bytes = std::mem::take(&mut self.incoming.bytes);
            let (used, progress) =
                self.process_records(&mut bytes[self.incoming.used..], space, &mut task);
            self.incoming.bytes = bytes;
            self.incoming.used += used;
            match progress {
                Ok(SessionProgress::Continue) => {}
                Ok(SessionProgress::Wait) => break,
                Err(error) => {
                    self.fail(&error);
                    return Err(error);
                }
            }
        }
        match task {
            SendAction::Encrypt(_) => Err(Error::HandshakeNotComplete),
            SendAction::Nothing | SendAction::EncryptCloseNotify => Ok(()),
        }
    }

    /// Ends the session: received bytes are no longer processed, because the state of rustls is inconsistent after an
    /// error, and it would panic. Only the alert is fetched.
    fn fail(&mut self, error: &Error) {
        self.failed = Some(error.clone());
        let space = &mut ReadBuf::new(&mut []);
        while self.common_state().wants_write()
            && self.process_records(&mut [], space, &mut SendAction::Nothing).1.is_ok()
        {}
    }

    fn process_records(
        &mut self,
        bytes: &mut [u8],
        space: &mut ReadBuf<'_>,
        task: &mut SendAction<'_>,
    ) -> (usize, Result<SessionProgress, Error>) {
        let Self { connection: side, plaintext: plain, outgoing, peer_closed: ended, .. } = self;
        let mut buffers = IoBuffers { space, plaintext: plain, outgoing, peer_closed: ended };
        match side {
            UnbufferedConnection::Client(side) => {
                buffers.process_status(side.process_tls_records(bytes), task)
            }
            UnbufferedConnection::Server(side) => {
                buffers.process_status(side.process_tls_records(bytes), task)
            }
        }
    }
}

/// Buffers that a session writes to while it processes records.
struct IoBuffers<'a, 'b, 's> {
    space: &'a mut ReadBuf<'b>,
    plaintext: &'s mut PlaintextBuffer,
    outgoing: &'s mut Vec<u8>,
    peer_closed: &'s mut bool,
}

impl IoBuffers<'_, '_, '_> {
    /// Does what the session asks for; returns the number of received bytes that are used.
    fn process_status<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
        task: &mut SendAction<'_>,
    ) -> (usize, Result<SessionProgress, Error>) {
        let UnbufferedStatus { mut discard, state } = status;
        let next = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            discard += record.discard;
                            self.plaintext.take(record.payload, self.space);
                        }
                        Err(error) => return (discard, Err(error)),
                    }
                }
                Ok(SessionProgress::Continue)
            }
            Ok(ConnectionState::EncodeTlsData(mut message)) => {
                encode(&mut message, self.outgoing);
                Ok(SessionProgress::Continue)
            }
            // The data is in `outgoing`, which is written before any later data.
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                Ok(SessionProgress::Continue)
            }
            Ok(ConnectionState::PeerClosed) => {
                *self.peer_closed = true;
                Ok(SessionProgress::Continue)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                match std::mem::replace(task, SendAction::Nothing) {
                    SendAction::Nothing => Ok(SessionProgress::Wait),
                    SendAction::Encrypt(plaintext) => {
                        seal(&mut traffic, plaintext, self.outgoing).map(|()| SessionProgress::Wait)
                    }
                    SendAction::EncryptCloseNotify => {
                        append(self.outgoing, RECORD_OVERHEAD + 2, |space| {
                            traffic.queue_close_notify(space)
                        })
                        .map(|()| SessionProgress::Wait)
                    }
                }
            }
            // We never offer early data over TCP; all other states wait for the peer.
            Ok(_) => Ok(SessionProgress::Wait),
            Err(error) => Err(error),
        };
        (discard, next)
    }
}

fn encode<Data>(message: &mut EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) {
    let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) =
        message.encode(&mut [])
    else {
        return;
    };
    let end = outgoing.len();
    outgoing.resize(end + required_size, 0);
    message.encode(&mut outgoing[end..]).expect("the buffer has the required size");
}

fn seal<Data>(
    traffic: &mut WriteTraffic<'_, Data>,
    plaintext: &[u8],
    outgoing: &mut Vec<u8>,
) -> Result<(), Error> {
    let records = plaintext.len() / RECORD_BYTES + 1;
    let guess = plaintext.len() + records * RECORD_OVERHEAD;
    append(outgoing, guess, |space| traffic.encrypt(plaintext, space))
}

/// Appends the output of `write`, which is hardly longer than `guess` bytes.
fn append(
    outgoing: &mut Vec<u8>,
    guess: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), Error> {
    let end = outgoing.len();
    outgoing.resize(end + guess, 0);
    let mut written = write(&mut outgoing[end..]);
    if let Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) = written {
        outgoing.resize(end + required_size, 0);
        written = write(&mut outgoing[end..]);
    }
    outgoing.truncate(end + *written.as_ref().unwrap_or(&0));
    written.map(drop).map_err(|_exhausted| Error::EncryptError)
}

impl CiphertextBuffer {
    /// Frees the memory except for the unused bytes.
    fn compact(&mut self) {
        let left = &self.bytes[self.used..];
        // This does not allocate if no bytes are left.
        self.bytes = left.to_vec();
        self.used = 0;
    }
}

impl PlaintextBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.read == self.bytes.len()
    }

    fn take(&mut self, payload: &[u8], space: &mut ReadBuf<'_>) {
        let fits = payload.len().min(space.remaining());
        space.put_slice(&payload[..fits]);
        self.bytes.extend_from_slice(&payload[fits..]);
    }

    /// Moves buffered plaintext into `space`, as far as there is room.
    pub(super) fn read(&mut self, space: &mut ReadBuf<'_>) {
        let left = &self.bytes[self.read..];
        let fits = left.len().min(space.remaining());
        space.put_slice(&left[..fits]);
        self.read += fits;
        if self.is_empty() {
            *self = Self::default();
        }
    }
}
