//! The bytes of one peer, whatever carries them.
//!
//! Clients and endpoints are read and written through this, so that bodies, tunnels and heads know nothing of what is
//! below. What only a socket can do (splice, options) asks for the socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::dial::h3::h1_fallback::H1Fallback;
use crate::failure::Failure;
use crate::h1::write;
use crate::h2;
use crate::h3;
use crate::head::{BodyFraming, FieldSection, HttpVersion, ResponseHead};
use crate::sys::{self, ThreadBound};
use crate::tls::{TlsSession, TlsStream};

/// Of what is read from one stream of many, so much may have to be kept until its window opens.
const MESSAGE_BYTES: usize = 64 * 1024;

/// What carries the bytes of one peer.
pub(crate) enum PeerStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    /// A connection of HTTP/1.1 that frames bodies itself.
    Framed(Box<H1Fallback>),
    /// One request and its response, on a stream of HTTP/2.
    H2(Box<h2::H2Stream>),
    /// The same of HTTP/3, which stays with its worker.
    H3(Box<ThreadBound<h3::H3Stream>>),
}

/// How a stream of many was ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// The peer reset it.
    Reset,
    /// The peer would not have it, and has done nothing of the request.
    Refused,
    /// The connection takes no more; the peer has done nothing of the request.
    Unprocessed,
    /// What the peer sent made no sense.
    Malformed,
    /// Its connection has ended.
    Closed,
}

/// How the bytes of a connection came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// By a FIN, which acknowledges all that the peer's kernel has received (RFC 9293, section 3.10.4).
    Finished,
    /// By a reset or a timeout. Our kernel takes no acknowledgement from a reset, and acknowledgements may be delayed, so
    /// that the peer may have read what nothing has acknowledged.
    Broken,
}

impl ConnectionEnd {
    /// That which a read of so many bytes tells; `None`: there is more.
    pub(crate) fn of(read: Result<usize, &io::Error>) -> Option<Self> {
        match read {
            Ok(0) => Some(Self::Finished),
            Ok(_) => None,
            // TLS tells of a FIN without `close_notify` so.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(Self::Finished),
            Err(_) => Some(Self::Broken),
        }
    }

    /// How many bytes the peer's kernel has received at most; `None`: perhaps all.
    pub(crate) fn received_at_most(self, stream: &PeerStream) -> Option<u64> {
        match self {
            // The SYN counts as a byte.
            Self::Finished => stream.socket().and_then(sys::bytes_acked)?.checked_sub(1),
            Self::Broken => None,
        }
    }
}

/// A stream that no runtime watches: on its way to another worker.
pub(crate) struct DetachedStream {
    socket: std::net::TcpStream,
    tls: Option<Box<TlsSession>>,
}

impl DetachedStream {
    /// Watched by the runtime that calls, from now on.
    pub(crate) fn attach(self) -> io::Result<PeerStream> {
        let socket = TcpStream::from_std(self.socket)?;
        Ok(match self.tls {
            None => PeerStream::Tcp(socket),
            Some(session) => PeerStream::Tls(Box::new(TlsStream::new(socket, session))),
        })
    }
}

/// How a response's head is put to a client.
pub(crate) struct ResponseFraming {
    /// Of the request.
    pub(crate) version: HttpVersion,
    /// Of the body that follows.
    pub(crate) framing: BodyFraming,
    /// The client may send another request.
    pub(crate) keep_alive: bool,
    /// What follows is not HTTP.
    pub(crate) upgrade: bool,
}

impl ResponseFraming {
    /// Nothing follows but another head.
    pub(crate) fn without_body(version: HttpVersion) -> Self {
        Self { version, framing: BodyFraming::None, keep_alive: true, upgrade: false }
    }
}

impl From<h3::H3Stream> for PeerStream {
    fn from(message: h3::H3Stream) -> Self {
        Self::H3(Box::new(ThreadBound::new(message)))
    }
}

impl PeerStream {
    /// Puts a response's head on its way: into `out`, where it is part of the bytes, else at once.
    pub(crate) fn put_head(
        &mut self,
        head: &ResponseHead,
        manner: &ResponseFraming,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => {
                write::response_head(
                    head,
                    manner.framing,
                    manner.version,
                    manner.keep_alive,
                    manner.upgrade,
                    out,
                );
                Ok(())
            }
            Self::H2(message) => message.put_head(head, manner),
            Self::H3(message) => message.put_head(head, manner, out),
        }
    }

    /// Ready when a read would not wait; costs no system call while nothing has come.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.poll_read_ready(cx),
            Self::Tls(tls) => tls.poll_read_ready(cx),
            Self::Framed(framed) => framed.poll_read_ready(cx),
            // To try costs no system call either.
            Self::H2(_) | Self::H3(_) => Poll::Ready(Ok(())),
        }
    }

    /// Whether a read might not wait, as of the last look of the runtime. Leaves nobody to be woken.
    pub(crate) fn seems_readable(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.try_io(Interest::READABLE, || Ok(())).is_ok(),
            Self::Tls(tls) => tls.seems_readable(),
            Self::Framed(framed) => framed.tls.seems_readable(),
            Self::H2(_) | Self::H3(_) => true,
        }
    }

    /// How a body of which its head says `said` is delimited when it comes or goes by this.
    pub(crate) fn framing(&self, said: BodyFraming) -> BodyFraming {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => said,
            Self::H2(_) | Self::H3(_) if said == BodyFraming::None => BodyFraming::None,
            Self::H2(_) | Self::H3(_) => BodyFraming::Stream,
        }
    }

    /// Writes the last bytes of a message, with its end if all of them go out.
    pub(crate) fn poll_write_last(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, bytes),
            Self::Framed(framed) => framed.poll_write(cx, &[IoSlice::new(bytes)], true),
            Self::H2(message) => message.poll_write(cx, &[IoSlice::new(bytes)], true),
            Self::H3(message) => message.poll_write(cx, &[IoSlice::new(bytes)], true),
        }
    }

    /// How much is worth reading before it is written: what is read and not taken has to be kept.
    pub(crate) fn max_read(&self) -> usize {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => usize::MAX,
            Self::H2(_) | Self::H3(_) => MESSAGE_BYTES,
        }
    }

    /// Ends the message, where that is not part of its bytes.
    pub(crate) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        trailers: Option<&FieldSection>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Tls(_) => {
                debug_assert!(trailers.is_none(), "they are written as bytes");
                Poll::Ready(Ok(()))
            }
            Self::Framed(framed) => framed.poll_end(cx, trailers),
            Self::H2(message) => Poll::Ready(message.end(trailers)),
            Self::H3(message) => message.poll_end(cx, trailers),
        }
    }

    /// How the one message that this carries was ended before its time, as far as that has been seen.
    pub(crate) fn message_error(&self) -> Option<StreamError> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => None,
            Self::H2(message) => message.error(),
            Self::H3(message) => message.error(),
        }
    }

    /// The trailers of a message whose end has been read.
    pub(crate) fn take_trailers(&mut self) -> Option<Box<FieldSection>> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => None,
            Self::H2(message) => message.take_trailers(),
            Self::H3(message) => message.take_trailers(),
        }
    }

    /// TLS has not agreed on HTTP/2, so HTTP/1.1 it is.
    pub(crate) fn has_settled_on_http1(&self) -> bool {
        match self {
            Self::Tls(tls) => tls.session.common_state().alpn_protocol() != Some(b"h2"),
            Self::Framed(_) => true,
            // Known beforehand.
            Self::Tcp(_) | Self::H2(_) | Self::H3(_) => false,
        }
    }

    /// The socket, if what is read and written is what goes over it.
    pub(crate) fn plain_socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(socket) => Some(socket),
            Self::Tls(_) | Self::Framed(_) | Self::H2(_) | Self::H3(_) => None,
        }
    }

    /// The socket, if it carries nothing but this.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(socket) => Some(socket),
            Self::Tls(tls) => Some(&tls.socket),
            Self::Framed(framed) => Some(&framed.tls.socket),
            Self::H2(_) | Self::H3(_) => None,
        }
    }

    /// Bytes on the wire of which `before` were there and `bytes` more have been written; the first `unsealed` were
    /// written before anything was sealed.
    pub(crate) fn wire_bytes_written(&self, unsealed: u64, before: u64, bytes: u64) -> u64 {
        match self {
            Self::Tcp(_) | Self::H2(_) | Self::H3(_) => before + bytes,
            Self::Tls(tls) => unsealed + tls.session.written,
            Self::Framed(framed) => unsealed + framed.tls.session.written,
        }
    }

    /// Whether the peer has neither ended the connection nor sent anything that nobody asked for, as the kernel says.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Tcp(socket) => {
                let mut byte = [MaybeUninit::uninit()];
                let seen = SockRef::from(&*socket).peek(&mut byte);
                matches!(seen, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            Self::Tls(tls) => tls.is_quiet(),
            Self::Framed(framed) => framed.tls.is_quiet(),
            // It carries one request and is never kept.
            Self::H2(_) | Self::H3(_) => false,
        }
    }

    /// Closes with a reset, so that what the peer got does not look whole.
    pub(crate) fn reset_on_close(&self) {
        if let Some(socket) = self.socket() {
            // Where it cannot be set, the connection is closed all the same.
            drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
        }
    }

    /// Ready when the connection has broken, which a peer that has only finished sending has not done.
    pub(crate) async fn wait_broken(&self) {
        if let Some(socket) = self.socket() {
            drop(socket.ready(Interest::ERROR).await);
        }
    }

    /// What was plain until now goes by the session from now on.
    pub(crate) fn with_tls(self, session: Box<TlsSession>) -> Self {
        match self {
            Self::Tcp(socket) => Self::Tls(Box::new(TlsStream::new(socket, session))),
            other @ (Self::Tls(_) | Self::Framed(_) | Self::H2(_) | Self::H3(_)) => other,
        }
    }

    /// Taken from the runtime that watches it; nothing waits to be written.
    pub(crate) fn detach(self) -> Option<DetachedStream> {
        let (socket, tls) = match self {
            Self::Tcp(socket) => (socket, None),
            Self::Tls(tls) => (tls.socket, Some(tls.session)),
            Self::Framed(framed) => (framed.tls.socket, Some(framed.tls.session)),
            // It belongs to a connection that stays where it is.
            Self::H2(_) | Self::H3(_) => return None,
        };
        Some(DetachedStream { socket: socket.into_std().ok()?, tls })
    }

    /// Watched by the runtime that calls, from now on.
    pub(crate) fn reattach(self) -> Option<Self> {
        self.detach()?.attach().ok()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            Self::Tls(tls) => tls.socket.local_addr(),
            Self::Framed(framed) => framed.tls.socket.local_addr(),
            Self::H2(_) | Self::H3(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, space),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, space),
            Self::Framed(framed) => framed.poll_read(cx, space),
            Self::H2(message) => message.poll_read(cx, space),
            Self::H3(message) => message.poll_read(cx, space),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, bytes),
            Self::Framed(framed) => framed.poll_write(cx, &[IoSlice::new(bytes)], false),
            Self::H2(message) => message.poll_write(cx, &[IoSlice::new(bytes)], false),
            Self::H3(message) => message.poll_write(cx, &[IoSlice::new(bytes)], false),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write_vectored(cx, slices),
            Self::Framed(framed) => framed.poll_write(cx, slices, false),
            Self::H2(message) => message.poll_write(cx, slices, false),
            Self::H3(message) => message.poll_write(cx, slices, false),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
            Self::Framed(framed) => Pin::new(&mut framed.tls).poll_flush(cx),
            Self::H2(_) | Self::H3(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
            Self::Framed(framed) => framed.poll_shutdown(cx),
            Self::H2(message) => Poll::Ready(message.end(None)),
            Self::H3(message) => message.poll_end(cx, None),
        }
    }
}
