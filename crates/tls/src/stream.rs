//! A TLS session over a socket.
//!
//! Bytes that are reported as written are with the kernel, as without TLS: no flush is needed. If the kernel does not
//! accept all sealed bytes, the rest is kept, and the last plaintext byte in it is not reported until it has left, so
//! that the writer polls again.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use rustls::Error;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::session::TlsSession;

/// Plaintext that is sealed for one write: several full records; also the most that a slow peer makes us keep.
const ENCRYPT_BYTES: usize = 64 * 1024;
/// Bytes that one read has room for, at least: enough for most handshakes and heads.
const READ_LEAST: usize = 4 * 1024;
/// The same, at most.
const READ_MOST: usize = 64 * 1024;
/// Room for record headers, so that a record is read whole if its plaintext fits.
const RECORD_HEADERS_BYTES: usize = 256;

pub struct TlsStream {
    pub socket: TcpStream,
    pub session: Box<TlsSession>,
    /// Plaintext in `session.outgoing` that has not been reported to the writer as written.
    unreported: usize,
    close_notify_sent: bool,
}

impl TlsStream {
    pub fn new(socket: TcpStream, session: Box<TlsSession>) -> Self {
        Self { socket, session, unreported: 0, close_notify_sent: false }
    }

    /// Waits until there is plaintext, or ciphertext that may contain some.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.session.plaintext.is_empty() || self.session.peer_closed {
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_read_ready(cx)
    }

    /// True if there is plaintext, or ciphertext that may contain some, as far as the runtime knows.
    pub fn seems_readable(&self) -> bool {
        let has_come = || self.socket.try_io(Interest::READABLE, || Ok(())).is_ok();
        !self.session.plaintext.is_empty() || self.session.peer_closed || has_come()
    }

    /// True if the peer has neither ended the connection nor sent anything except what TLS itself needs. Asks the
    /// kernel, independent of the runtime's readiness.
    pub fn is_quiet(&mut self) -> bool {
        let mut bytes = [0; READ_LEAST];
        while self.session.plaintext.is_empty() && !self.session.peer_closed {
            let socket = SockRef::from(&self.socket);
            match io::Read::read(&mut &*socket, &mut bytes) {
                Ok(count) if count > 0 => self.session.receive_ciphertext(&bytes[..count]),
                Ok(_) => return false,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
            if self.session.advance_handshake().is_err() {
                return false;
            }
        }
        false
    }

    /// Reads ciphertext once. If the connection ends without a close_notify, returns an error, because the data may be
    /// truncated.
    pub fn poll_read_ciphertext(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<io::Result<()>> {
        // A stream that waits holds no memory for data to come.
        ready!(self.socket.poll_read_ready(cx))?;
        let bytes = &mut self.session.incoming.bytes;
        bytes.reserve_exact(most.clamp(READ_LEAST, READ_MOST) + RECORD_HEADERS_BYTES);
        match ready!(pin!(self.socket.read_buf(bytes)).poll(cx))? {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Writes the sealed bytes. Ready when the kernel has all of them.
    pub fn poll_write_ciphertext(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let TlsSession { outgoing, sent, written, .. } = &mut *self.session;
        while *sent < outgoing.len() {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, &outgoing[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => {
                    *sent += count;
                    *written += count as u64;
                }
            }
        }
        // Frees the memory as well.
        (*outgoing, *sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Returns the result of a write after the kernel accepts no more: of `of` bytes that the writer gave, `written`
    /// are with the kernel.
    fn report_written(&mut self, written: usize, of: usize) -> Poll<io::Result<usize>> {
        let sealed = written + self.unreported;
        let reported =
            if self.unreported == 0 { written } else { sealed.min(of).saturating_sub(1) };
        self.unreported = sealed - reported;
        if reported == 0 { Poll::Pending } else { Poll::Ready(Ok(reported)) }
    }

    fn encrypt(&mut self, plaintext: &[u8]) -> io::Result<()> {
        self.unreported = plaintext.len();
        self.session.encrypt(plaintext).map_err(invalid_data)
    }
}

fn invalid_data(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = space.filled().len();
        loop {
            this.session.plaintext.read(space);
            if space.filled().len() > before || this.session.peer_closed || space.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_read_ciphertext(cx, space.remaining()))?;
            let opened = this.session.decrypt(space);
            // Sends an alert or a key update; if it has to wait, it precedes the next written data.
            let pushed = this.poll_write_ciphertext(cx);
            opened.map_err(invalid_data)?;
            if let Poll::Ready(failed @ Err(_)) = pushed {
                return Poll::Ready(failed);
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut written = 0;
        loop {
            let pushed = match this.poll_write_ciphertext(cx) {
                Poll::Ready(Ok(())) => this.socket.poll_write_ready(cx),
                waits_or_failed => waits_or_failed,
            };
            match pushed {
                Poll::Ready(result) => result?,
                Poll::Pending => return this.report_written(written, bytes.len()),
            }
            let newly_reported = this.unreported.min(bytes.len() - written);
            this.unreported -= newly_reported;
            written += newly_reported;
            if written == bytes.len() || this.unreported > 0 {
                return Poll::Ready(Ok(written));
            }
            let rest = &bytes[written..];
            this.encrypt(&rest[..rest.len().min(ENCRYPT_BYTES)])?;
        }
    }

    /// Joins short slices into one record, such as a frame's header with its payload.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let filled = || slices.iter().filter(|slice| !slice.is_empty());
        let first = filled().next().map_or(&[][..], |slice| slice);
        if first.len() >= ENCRYPT_BYTES || filled().count() < 2 {
            return self.poll_write(cx, first);
        }
        let mut gathered = Vec::new();
        for slice in filled() {
            let room = ENCRYPT_BYTES - gathered.len();
            gathered.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        self.poll_write(cx, &gathered)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_write_ciphertext(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.close_notify_sent, true) {
            this.session.encrypt_close_notify().map_err(invalid_data)?;
        }
        ready!(this.poll_write_ciphertext(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}
