//! Read buffers, and the pool of them that a worker keeps.
//!
//! An idle connection holds no buffer. The pool is last in, first out, so that the few buffers in use stay in the
//! cache, no matter how many connections there are.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::stream::PeerStream;

/// Buffer size for clients: enough for nearly every head and the start of its body.
pub(crate) const BUFFER_BYTES: usize = 16 * 1024;
/// Buffer size for endpoints: a response of 64 KiB with its head takes one read.
const ENDPOINT_BUFFER_BYTES: usize = 80 * 1024;
/// Limit of unused buffers that a worker keeps.
const MAX_POOLED: usize = 64;

pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], start: 0, end: 0 }
    }

    /// Creates a buffer that holds bytes which have been read elsewhere.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { start: 0, end: bytes.len(), bytes }
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once. `Ready(Ok(0))` means that the peer has closed its side.
    ///
    /// Grows to hold up to `most` unread bytes; the caller does not read more once that many are buffered.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut PeerStream,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.make_room(most);
        let mut space = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut space))?;
        let count = space.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }

    /// Ensures room for at least a quarter of a buffer: moves the unread bytes to the front, or grows.
    fn make_room(&mut self, most: usize) {
        if self.bytes.len() - self.end >= BUFFER_BYTES / 4 {
            return;
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < BUFFER_BYTES / 4 {
            let doubled = (self.bytes.len() * 2).clamp(BUFFER_BYTES, most.max(BUFFER_BYTES));
            self.bytes.resize(doubled.max(self.end + 1), 0);
        }
    }
}

/// Pool of a worker's unused buffers.
#[derive(Default)]
pub(crate) struct BufferPool {
    for_clients: RefCell<Vec<ReadBuffer>>,
    for_endpoints: RefCell<Vec<ReadBuffer>>,
    /// True while memory is scarce: new buffers are small.
    is_tight: Cell<bool>,
}

impl BufferPool {
    pub(crate) fn take(&self) -> ReadBuffer {
        self.for_clients.borrow_mut().pop().unwrap_or_else(|| ReadBuffer::new(BUFFER_BYTES))
    }

    pub(crate) fn take_for_endpoint(&self) -> ReadBuffer {
        let known = self.for_endpoints.borrow_mut().pop();
        known.unwrap_or_else(|| {
            let is_tight = self.is_tight.get();
            ReadBuffer::new(if is_tight { BUFFER_BYTES } else { ENDPOINT_BUFFER_BYTES })
        })
    }

    /// Makes new buffers small while memory is scarce.
    pub(crate) fn set_tight(&self, is_tight: bool) {
        self.is_tight.set(is_tight);
    }

    pub(crate) fn give_back(&self, mut buffer: ReadBuffer) {
        let buffers = match buffer.bytes.len() {
            BUFFER_BYTES => &self.for_clients,
            ENDPOINT_BUFFER_BYTES => &self.for_endpoints,
            // The buffer has grown for one large head.
            _ => return,
        };
        let mut buffers = buffers.borrow_mut();
        if buffers.len() < MAX_POOLED {
            (buffer.start, buffer.end) = (0, 0);
            buffers.push(buffer);
        }
    }

    /// Returns the buffer of a connection to the pool, if it holds no unread bytes.
    pub(crate) fn reclaim(&self, slot: &mut Option<ReadBuffer>) {
        if slot.as_ref().is_some_and(ReadBuffer::is_empty)
            && let Some(buffer) = slot.take()
        {
            self.give_back(buffer);
        }
    }
}
