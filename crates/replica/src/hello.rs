//! Introduction of both sides: the first frame of a connection, and the reply to it.
//!
//! The reply tells the dialling side that it is accepted: in TLS 1.3 its own handshake is complete
//! before the other side has verified its certificate.

use std::io;

use balance::leases::ReplicaIdentity;
use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::frame::{FrameBuffer, FrameError, append_frame};
use crate::wire::{FrameBody, WireFrame, WireHello, identity};

/// Version of the protocol: frames, and what they mean. A new kind of frame or field needs no new
/// version, for replicas ignore those that they do not know.
pub const PROTOCOL_VERSION: u32 = 1;

/// Oldest version that we understand.
const OLDEST_VERSION: u32 = 1;

/// Maximum size of the first frame in bytes: nothing is known of the peer yet.
const MAX_HELLO_BYTES: usize = 1024;

/// Reason why the peer's introduction fails.
#[derive(Debug, Error)]
pub(crate) enum HelloError {
    /// The connection has failed or ended.
    #[error("connection failed before the peer introduced itself")]
    Connection(#[source] io::Error),
    /// The bytes are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The first frame is no introduction, or has impossible fields.
    #[error("the first frame is no valid introduction")]
    Invalid,
    /// The peer's versions and ours have none in common.
    #[error("peer has protocol version {0}, this replica has {PROTOCOL_VERSION}")]
    Version(u32),
}

impl From<io::Error> for HelloError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// Sends our introduction.
pub(crate) async fn send_hello(
    connection: &mut (impl AsyncWrite + Unpin),
    me: ReplicaIdentity,
) -> io::Result<()> {
    let hello = WireHello {
        version: PROTOCOL_VERSION,
        oldest_version: OLDEST_VERSION,
        from: Some(me.into()),
    };
    let mut bytes = BytesMut::new();
    append_frame(&WireFrame { body: Some(FrameBody::Hello(hello)) }, &mut bytes);
    connection.write_all(&bytes).await?;
    connection.flush().await
}

/// Receives the introduction of the peer.
pub(crate) async fn receive_hello(
    connection: &mut (impl AsyncRead + Unpin),
    buffer: &mut FrameBuffer,
) -> Result<ReplicaIdentity, HelloError> {
    loop {
        if let Some(frame) = buffer.next_frame(MAX_HELLO_BYTES)? {
            let Some(FrameBody::Hello(hello)) = frame.body else { return Err(HelloError::Invalid) };
            return check_hello(hello);
        }
        if buffer.read(connection).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

fn check_hello(hello: WireHello) -> Result<ReplicaIdentity, HelloError> {
    if hello.version < OLDEST_VERSION || hello.oldest_version > PROTOCOL_VERSION {
        return Err(HelloError::Version(hello.version));
    }
    let from = identity(hello.from).map_err(|_error| HelloError::Invalid)?;
    // 0 means that an incarnation is not known.
    if from.incarnation == 0 { Err(HelloError::Invalid) } else { Ok(from) }
}
