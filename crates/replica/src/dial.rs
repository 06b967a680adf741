//! The connection to one peer: dialling, sending, renewal.
//!
//! A connection is renewed when the certificates change, and from time to time. The next one is
//! complete before the last one is closed, and carries messages once the peer has read all of the
//! last one: nothing is lost or out of order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{PeerConnection, connect, is_certificate_error, secure_dialled};
use crate::context::ChannelContext;
use crate::counts::count;
use crate::frame::{FrameBuffer, append_frame, keep_alive_frame, message_frame};
use crate::hello::{HelloError, receive_hello, send_hello};
use crate::members::{ChannelSecurity, canonical};
use crate::peer::PeerChannel;
use crate::settings::{MAX_RECONNECT_PAUSE, MIN_RECONNECT_PAUSE};

/// Task that keeps a connection to one peer and sends the messages to it.
#[derive(Debug)]
pub(crate) struct PeerDialer {
    pub(crate) member: SocketAddr,
    pub(crate) peer: Arc<PeerChannel>,
    pub(crate) context: Arc<ChannelContext>,
    pub(crate) security: watch::Receiver<ChannelSecurity>,
}

/// Connection that the peer has accepted.
struct DialledConnection {
    connection: PeerConnection,
    /// Changes when the protection in use is no longer the newest.
    security: watch::Receiver<ChannelSecurity>,
}

/// Reason why there is no connection to a peer.
#[derive(Debug, Error)]
enum DialError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
    #[error("peer's certificate is not accepted: {0}")]
    Certificate(#[source] io::Error),
    #[error("peer has closed the connection in its handshake: {0}")]
    Closed(#[source] io::Error),
    #[error("{0}")]
    Hello(#[source] HelloError),
    #[error("the replica at this address is {0}")]
    OtherMember(SocketAddr),
    #[error("not connected in time")]
    Timeout,
}

impl DialError {
    const fn name(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Tls(_) => "connect_tls",
            Self::Certificate(_) => "connect_certificate",
            Self::Closed(_) => "connect_closed",
            Self::Hello(_) => "connect_hello",
            Self::OtherMember(_) => "connect_other_member",
            Self::Timeout => "connect_timeout",
        }
    }
}

impl From<HelloError> for DialError {
    fn from(error: HelloError) -> Self {
        match error {
            HelloError::Connection(error) => Self::Closed(error),
            error => Self::Hello(error),
        }
    }
}

/// Pause before the next attempt to connect: it doubles.
struct ReconnectPause(Duration);

impl ReconnectPause {
    const fn new() -> Self {
        Self(MIN_RECONNECT_PAUSE)
    }

    async fn wait(&mut self, context: &ChannelContext) {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_RECONNECT_PAUSE);
        sleep(context.jittered(pause)).await;
    }
}

impl PeerDialer {
    pub(crate) async fn run(self) {
        let mut pause = ReconnectPause::new();
        loop {
            let dialled = self.dial_until_connected(&mut pause).await;
            let since = Instant::now();
            self.peer.record_connected();
            tracing::info!(peer = %self.member, "connected to a replica");
            let error = self.send(dialled).await;
            self.peer.record_lost(error.to_string());
            tracing::info!(peer = %self.member, %error, "lost the connection to a replica");
            if since.elapsed() >= MAX_RECONNECT_PAUSE {
                pause = ReconnectPause::new();
            }
            pause.wait(&self.context).await;
        }
    }

    async fn dial_until_connected(&self, pause: &mut ReconnectPause) -> DialledConnection {
        loop {
            let dialled = timeout(self.context.times.handshake, self.dial()).await;
            match dialled.unwrap_or(Err(DialError::Timeout)) {
                Ok(dialled) => {
                    count(&self.context.counts.connects, 1);
                    self.context.forget_problems(self.member);
                    return dialled;
                }
                Err(error) => self.note_failed(&error),
            }
            pause.wait(&self.context).await;
        }
    }

    fn note_failed(&self, error: &DialError) {
        count(&self.context.counts.connects_failed, 1);
        if self.context.is_new_problem(self.member, error.name()) {
            tracing::warn!(peer = %self.member, %error, "cannot connect to a replica");
        }
        self.peer.record_failed_attempt(error.to_string());
    }

    async fn dial(&self) -> Result<DialledConnection, DialError> {
        let context = &self.context;
        let mut security = self.security.clone();
        let newest = security.borrow_and_update().clone();
        let port = if self.member.port() == 0 { context.port } else { self.member.port() };
        let target = SocketAddr::new(self.member.ip(), port);
        let socket = connect(context.me.member, target, context.times.write).await;
        let socket = socket.map_err(DialError::Connect)?;
        let secured = secure_dialled(socket, &newest).await;
        let mut connection = secured.map_err(|error| match is_certificate_error(&error) {
            true => DialError::Certificate(error),
            false => DialError::Tls(error),
        })?;
        send_hello(&mut connection, context.me).await.map_err(DialError::Closed)?;
        let reply = receive_hello(&mut connection, &mut FrameBuffer::default()).await?;
        let member = canonical(reply.member);
        if member != self.member {
            return Err(DialError::OtherMember(member));
        }
        Ok(DialledConnection { connection, security })
    }

    /// Sends messages until the connection is lost; returns the reason.
    async fn send(&self, dialled: DialledConnection) -> io::Error {
        let mut connection = dialled.connection;
        let mut renewal = Box::pin(self.renew(dialled.security));
        loop {
            let sent = tokio::select! {
                error = end_of(&mut connection) => Err(error),
                () = self.peer.has_message() => self.write_messages(&mut connection).await,
                () = sleep(self.context.times.keep_alive) => {
                    self.write(&mut connection, &keep_alive()).await
                }
                renewed = &mut renewal => {
                    finish(connection, self.context.times.write).await;
                    connection = renewed.connection;
                    renewal = Box::pin(self.renew(renewed.security));
                    Ok(())
                }
            };
            if let Err(error) = sent {
                return error;
            }
        }
    }

    /// Waits until the connection is to be replaced, and returns the next one.
    async fn renew(&self, mut security: watch::Receiver<ChannelSecurity>) -> DialledConnection {
        let times = self.context.times;
        tokio::select! {
            Ok(()) = security.changed() => sleep(self.context.random_part(times.renewal)).await,
            () = sleep(self.context.jittered(times.max_age)) => {}
        }
        self.dial_until_connected(&mut ReconnectPause::new()).await
    }

    /// Writes the messages that wait, all at once. If that fails, they are lost. Secrets are not
    /// written to a connection that is not encrypted: on loopback too, another process may have the
    /// address of a member.
    async fn write_messages(&self, connection: &mut PeerConnection) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        let mut sent = 0;
        let is_encrypted = connection.is_encrypted();
        for message in self.peer.take() {
            if message.is_secret() && !is_encrypted {
                continue;
            }
            if append_frame(&message_frame(&message), &mut bytes) {
                sent += 1;
            } else {
                count(&self.context.counts.messages_dropped, 1);
            }
        }
        let bytes = if sent > 0 { bytes } else { keep_alive() };
        self.write(connection, &bytes).await?;
        count(&self.context.counts.messages_sent, sent);
        Ok(())
    }

    async fn write(&self, connection: &mut PeerConnection, bytes: &[u8]) -> io::Result<()> {
        let write = async {
            connection.write_all(bytes).await?;
            connection.flush().await
        };
        timeout(self.context.times.write, write).await??;
        count(&self.context.counts.bytes_sent, bytes.len());
        Ok(())
    }
}

fn keep_alive() -> BytesMut {
    let mut bytes = BytesMut::new();
    append_frame(&keep_alive_frame(), &mut bytes);
    bytes
}

/// Waits for the end of a connection on which we only send, and returns the reason. A later version
/// of the peer may send something; it is ignored.
async fn end_of(connection: &mut PeerConnection) -> io::Error {
    let mut bytes = [0; 512];
    loop {
        match connection.read(&mut bytes).await {
            Ok(0) => return io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the peer"),
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// Closes a connection, and waits until the peer has read all of it, for so long at most.
async fn finish(mut connection: PeerConnection, time: Duration) {
    let closed = async {
        if connection.shutdown().await.is_ok() {
            end_of(&mut connection).await;
        }
    };
    // A peer that does not read gets nothing out of order: it closes the older connection.
    timeout(time, closed).await.unwrap_or_default();
}
