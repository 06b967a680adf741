//! The byte stream of one peer, over any transport.
//!
//! Clients and endpoints are read and written through this type, so that bodies, tunnels and heads do not depend on the
//! transport. Operations that only a socket supports (splice, options) ask for the socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use codec::h1::write;
use codec::head::{BodyFraming, FieldSection, ResponseFraming, ResponseHead};
use socket2::SockRef;
use tls::{TlsSession, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::dial::h3::framed_stream::H1FallbackStream;
use crate::failure::Failure;
use crate::h2;
use crate::h3;
use crate::sys::{self, ThreadBound};

/// Maximum number of bytes to read at once for a multiplexed stream, and to keep until its flow-control window opens.
const MAX_STREAM_READ: usize = 64 * 1024;
/// The same until the stream has accepted more: thousands of streams whose windows stay shut keep little.
const FIRST_STREAM_READ: usize = 16 * 1024;
/// Number of bytes to read at once for a connection that has not accepted more yet.
const FIRST_CONNECTION_READ: usize = 64 * 1024;

/// The transport of one peer's bytes.
pub(crate) enum PeerStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    /// An HTTP/1.1 connection that frames bodies itself.
    Framed(Box<H1FallbackStream>),
    /// One request and its response, on an HTTP/2 stream.
    H2(Box<h2::H2Stream>),
    /// One request and its response, on an HTTP/3 stream, which is bound to its worker's thread.
    H3(Box<ThreadBound<h3::H3Stream>>),
}

/// The reason for which a multiplexed stream ended prematurely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// The peer reset it.
    Reset,
    /// The peer refused it without processing the request.
    Refused,
    /// The connection accepts no more streams; the peer has not processed the request.
    Unprocessed,
    /// The peer sent a malformed message.
    Malformed,
    /// The connection has ended.
    Closed,
}

/// The way in which a connection's byte stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// By a FIN, which acknowledges all that the peer's kernel has received (RFC 9293, section 3.10.4).
    Finished,
    /// By a reset or a timeout. Our kernel takes no acknowledgement from a reset, and acknowledgements may be delayed,
    /// so that the peer may have read what nothing has acknowledged.
    Broken,
}

impl ConnectionEnd {
    /// Returns the end that the result of a read shows; `None`: the stream goes on.
    pub(crate) fn of(read: Result<usize, &io::Error>) -> Option<Self> {
        match read {
            Ok(0) => Some(Self::Finished),
            Ok(_) => None,
            // TLS reports a FIN without `close_notify` as this error.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(Self::Finished),
            Err(_) => Some(Self::Broken),
        }
    }

    /// Returns the maximum number of bytes that the peer's kernel has received; `None`: possibly all.
    pub(crate) fn received_at_most(self, stream: &PeerStream) -> Option<u64> {
        match self {
            // The SYN counts as a byte.
            Self::Finished => stream.socket().and_then(sys::bytes_acked)?.checked_sub(1),
            Self::Broken => None,
        }
    }
}

/// A stream that is registered with no runtime: it moves to another worker.
pub(crate) struct DetachedStream {
    socket: std::net::TcpStream,
    tls: Option<Box<TlsSession>>,
}

impl DetachedStream {
    /// Registers the stream with the calling runtime.
    pub(crate) fn attach(self) -> io::Result<PeerStream> {
        let socket = TcpStream::from_std(self.socket)?;
        Ok(match self.tls {
            None => PeerStream::Tcp(socket),
            Some(session) => PeerStream::Tls(Box::new(TlsStream::new(socket, session))),
        })
    }
}

impl From<h3::H3Stream> for PeerStream {
    fn from(message: h3::H3Stream) -> Self {
        Self::H3(Box::new(ThreadBound::new(message)))
    }
}

impl PeerStream {
    /// Writes a response's head: into `out` if the head is part of the byte stream, else directly to the stream.
    pub(crate) fn put_head(
        &mut self,
        head: &ResponseHead,
        response_framing: &ResponseFraming,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => {
                write::response_head(
                    head,
                    response_framing.framing,
                    response_framing.version,
                    response_framing.keep_alive,
                    response_framing.upgrade,
                    out,
                );
                Ok(())
            }
            Self::H2(message) => message.put_head(head, response_framing),
            Self::H3(message) => message.put_head(head, response_framing, out),
        }
    }

    /// Ready when a read would not block. Needs no system call while no data has arrived.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.poll_read_ready(cx),
            Self::Tls(tls) => tls.poll_read_ready(cx),
            Self::Framed(framed) => framed.poll_read_ready(cx),
            // A read attempt needs no system call either.
            Self::H2(_) | Self::H3(_) => Poll::Ready(Ok(())),
        }
    }

    /// True if a read might not block, according to the runtime's last poll. Registers no waker.
    pub(crate) fn seems_readable(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.try_io(Interest::READABLE, || Ok(())).is_ok(),
            Self::Tls(tls) => tls.seems_readable(),
            Self::Framed(framed) => framed.tls.seems_readable(),
            Self::H2(_) | Self::H3(_) => true,
        }
    }

    /// Returns the framing of a body on this transport, if its head declares `declared`.
    pub(crate) fn framing(&self, declared: BodyFraming) -> BodyFraming {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => declared,
            Self::H2(_) | Self::H3(_) if declared == BodyFraming::None => BodyFraming::None,
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

    /// Returns the maximum number of bytes to read before they are written to this stream, which has accepted
    /// `accepted` bytes of the message so far. Bytes that it does not accept must be kept: so no more are read at once
    /// than it has shown to accept.
    pub(crate) fn max_read(&self, accepted: u64) -> usize {
        let accepted = usize::try_from(accepted).unwrap_or(usize::MAX);
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => accepted.max(FIRST_CONNECTION_READ),
            Self::H2(_) | Self::H3(_) => accepted.clamp(FIRST_STREAM_READ, MAX_STREAM_READ),
        }
    }

    /// Returns the bytes that have arrived on a multiplexed stream and have not been read. `None` if there are none and
    /// no more will arrive, or if the kernel holds them.
    pub(crate) fn unread_bytes(&mut self) -> Option<usize> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => None,
            Self::H2(message) => message.unread_bytes(),
            Self::H3(message) => message.unread_bytes(),
        }
    }

    /// Ends the message, if its end is not part of the byte stream.
    pub(crate) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        trailers: Option<&FieldSection>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Tls(_) => {
                debug_assert!(trailers.is_none(), "trailers are part of the byte stream");
                Poll::Ready(Ok(()))
            }
            Self::Framed(framed) => framed.poll_end(cx, trailers),
            Self::H2(message) => Poll::Ready(message.end(trailers)),
            Self::H3(message) => message.poll_end(cx, trailers),
        }
    }

    /// Returns the reason for which the stream's message ended prematurely, if that has been detected.
    pub(crate) fn message_error(&self) -> Option<StreamError> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => None,
            Self::H2(message) => message.error(),
            Self::H3(message) => message.error(),
        }
    }

    /// If the message is incomplete when the stream is dropped, resets the stream as cancelled instead of failed.
    pub(crate) fn cancel_on_drop(&mut self) {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => {}
            Self::H2(message) => message.cancel_on_drop(),
            Self::H3(message) => message.cancel_on_drop(),
        }
    }

    /// Takes the trailers of a message whose end has been read.
    pub(crate) fn take_trailers(&mut self) -> Option<Box<FieldSection>> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Framed(_) => None,
            Self::H2(message) => message.take_trailers(),
            Self::H3(message) => message.take_trailers(),
        }
    }

    /// True if TLS has not negotiated HTTP/2 (ALPN), so the connection is HTTP/1.1.
    pub(crate) fn has_settled_on_http1(&self) -> bool {
        match self {
            Self::Tls(tls) => tls.session.common_state().alpn_protocol() != Some(b"h2"),
            Self::Framed(_) => true,
            // The protocol is known before the connection is made.
            Self::Tcp(_) | Self::H2(_) | Self::H3(_) => false,
        }
    }

    /// Returns the socket, if the bytes read and written are the bytes on the wire.
    pub(crate) fn plain_socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(socket) => Some(socket),
            Self::Tls(_) | Self::Framed(_) | Self::H2(_) | Self::H3(_) => None,
        }
    }

    /// Returns the socket, if it carries only this stream.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(socket) => Some(socket),
            Self::Tls(tls) => Some(&tls.socket),
            Self::Framed(framed) => Some(&framed.tls.socket),
            Self::H2(_) | Self::H3(_) => None,
        }
    }

    /// Returns the number of bytes written on the wire, if `before` had been written and `bytes` more have been written
    /// since. With TLS, `unsealed` is the number of plaintext bytes before the handshake.
    pub(crate) fn wire_bytes_written(&self, unsealed: u64, before: u64, bytes: u64) -> u64 {
        match self {
            Self::Tcp(_) | Self::H2(_) | Self::H3(_) => before + bytes,
            Self::Tls(tls) => unsealed + tls.session.written,
            Self::Framed(framed) => unsealed + framed.tls.session.written,
        }
    }

    /// True if, according to the kernel, the peer has neither closed the connection nor sent unsolicited bytes.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Tcp(socket) => {
                let mut byte = [MaybeUninit::uninit()];
                let seen = SockRef::from(&*socket).peek(&mut byte);
                matches!(seen, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            Self::Tls(tls) => tls.is_quiet(),
            Self::Framed(framed) => framed.tls.is_quiet(),
            // It carries one request and is never pooled.
            Self::H2(_) | Self::H3(_) => false,
        }
    }

    /// Makes the close a reset, so that the peer does not mistake what it received for complete.
    pub(crate) fn reset_on_close(&self) {
        if let Some(socket) = self.socket() {
            // If the option cannot be set, the connection is still closed.
            drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
        }
    }

    /// Waits until the connection is broken. A half-closed connection is not broken.
    pub(crate) async fn wait_broken(&self) {
        if let Some(socket) = self.socket() {
            drop(socket.ready(Interest::ERROR).await);
        }
    }

    /// Switches a plain connection to TLS with this session.
    pub(crate) fn with_tls(self, session: Box<TlsSession>) -> Self {
        match self {
            Self::Tcp(socket) => Self::Tls(Box::new(TlsStream::new(socket, session))),
            other @ (Self::Tls(_) | Self::Framed(_) | Self::H2(_) | Self::H3(_)) => other,
        }
    }

    /// Removes the stream from its runtime; no bytes must be waiting to be written.
    pub(crate) fn detach(self) -> Option<DetachedStream> {
        let (socket, tls) = match self {
            Self::Tcp(socket) => (socket, None),
            Self::Tls(tls) => (tls.socket, Some(tls.session)),
            Self::Framed(framed) => (framed.tls.socket, Some(framed.tls.session)),
            // The stream belongs to a connection that stays on its worker.
            Self::H2(_) | Self::H3(_) => return None,
        };
        Some(DetachedStream { socket: socket.into_std().ok()?, tls })
    }

    /// Registers the stream with the calling runtime.
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
