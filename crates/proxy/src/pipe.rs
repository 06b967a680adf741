//! A kernel pipe, through which pages move from socket to socket without a copy (`splice`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Requested capacity of a pipe; the kernel may grant less.
const PIPE_BYTES: usize = 256 * 1024;

pub(crate) struct SplicePipe {
    reader: OwnedFd,
    writer: OwnedFd,
    buffered: usize,
}

impl SplicePipe {
    /// Creates a pipe; `None` if no file descriptor is left: bodies are then copied.
    pub(crate) fn new() -> Option<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // If the pipes of the user have reached the page limit, a smaller pipe works too.
        let _smaller = fcntl_setpipe_size(&writer, PIPE_BYTES);
        Some(Self { reader, writer, buffered: 0 })
    }

    /// Returns the number of bytes in the pipe.
    pub(crate) fn len(&self) -> usize {
        self.buffered
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffered == 0
    }

    /// Moves up to `most` bytes from the socket into the empty pipe. Returns 0 if the peer has finished.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &TcpStream,
        most: u64,
    ) -> Poll<io::Result<usize>> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(PIPE_BYTES);
        loop {
            ready!(source.poll_read_ready(cx))?;
            let moved =
                source.try_io(Interest::READABLE, || move_pages(source, &self.writer, most));
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => {
                    self.buffered = *moved.as_ref().unwrap_or(&0);
                    return Poll::Ready(moved);
                }
            }
        }
    }

    /// Moves the bytes in the pipe to the socket.
    pub(crate) fn poll_empty(
        &mut self,
        cx: &mut Context<'_>,
        sink: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(sink.poll_write_ready(cx))?;
            let moved =
                sink.try_io(Interest::WRITABLE, || move_pages(&self.reader, sink, self.buffered));
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => {
                    self.buffered -= *moved.as_ref().unwrap_or(&0);
                    return Poll::Ready(moved);
                }
            }
        }
    }
}

impl AsRawFd for SplicePipe {
    /// Returns the descriptor of the end that is written, the later one.
    fn as_raw_fd(&self) -> RawFd {
        self.writer.as_raw_fd()
    }
}

fn move_pages(
    from: impl std::os::fd::AsFd,
    to: impl std::os::fd::AsFd,
    most: usize,
) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(splice(from, None, to, None, most, flags)?)
}
