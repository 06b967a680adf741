//! The two directions of a stream.
//!
//! Written data goes to the state of the connection, as far as the windows of the peer and of the path allow, and
//! leaves with the driver's next turn. The peer's flow-control window opens as fast as data is read here: if a task
//! reads no more than it can pass on, the peer sends no more (back-pressure).

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use quinn_proto::{FinishError, ReadError, StreamId, VarInt, WriteError};

use crate::connection::{QuicConnectionInner, QuicConnectionState};
use crate::{CloseReason, QuicConnection};

/// Writes of several slices whose total is at most this are copied once, into one buffer.
const MAX_GATHERED_BYTES: usize = 4096;
/// Bytes that a stream may write before other streams of its priority go first.
const PORTION: usize = 64 * 1024;
/// Bytes of a new stream that go before streams that have written as much already. Of a longer first write only the
/// first datagram does.
const FIRST_PORTION: usize = 16 * 1024;
/// The initial priority of streams.
const FIRST_PRIORITY: i32 = 0;
/// The error code that resets a stream whose task is gone: H3_REQUEST_CANCELLED (RFC 9114 §8.1).
const CANCELLED: u64 = 0x10c;
/// The error code that stops a stream which is no longer read: H3_NO_ERROR.
const NO_ERROR: u64 = 0x100;

/// The reason why a stream can be neither read nor written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The peer has reset the stream, with this code.
    Reset(u64),
    /// The peer has stopped reading the stream, with this code.
    Stopped(u64),
    /// The connection is over.
    Connection(CloseReason),
}

/// The send side of a stream. Reset with H3_REQUEST_CANCELLED if dropped before its end.
pub struct SendStream {
    connection: Rc<QuicConnectionInner>,
    id: StreamId,
    /// Its priority among the streams of the connection; the library forgets it with the stream.
    priority: i32,
    /// Bytes that it may still write before it goes behind its equals.
    portion_left: usize,
    is_first_portion: bool,
    /// True if this side has sent a FIN or RESET_STREAM, or received STOP_SENDING.
    over: bool,
}

/// The receive side of a stream. Stopped with H3_NO_ERROR if dropped before its end.
///
/// For each direction one task is remembered: the last that polled it.
pub struct RecvStream {
    connection: Rc<QuicConnectionInner>,
    id: StreamId,
    over: bool,
}

impl SendStream {
    pub(super) fn new(connection: &QuicConnection, id: StreamId) -> Self {
        connection.0.state.borrow_mut().scheduler.add_stream(id, FIRST_PRIORITY);
        Self {
            connection: Rc::clone(&connection.0),
            id,
            priority: FIRST_PRIORITY,
            portion_left: 0,
            is_first_portion: true,
            over: false,
        }
    }

    /// Writes as much of the slices as there is room for.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, StreamEnd>> {
        let id = self.id;
        self.poll_with(cx, |state| write_slices(&mut state.proto.send_stream(id), slices))
    }

    /// Writes as much as there is room for, without copying it. `bytes` keeps the part that was not written.
    pub fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<Result<usize, StreamEnd>> {
        let id = self.id;
        self.poll_with(cx, |state| {
            let chunks = std::slice::from_mut(bytes);
            state.proto.send_stream(id).write_chunks(chunks).map(|written| written.bytes)
        })
    }

    fn poll_with(
        &mut self,
        cx: &Context<'_>,
        write: impl FnOnce(&mut QuicConnectionState) -> Result<usize, WriteError>,
    ) -> Poll<Result<usize, StreamEnd>> {
        let state = &mut *self.connection.state.borrow_mut();
        if let Some(closed) = state.closed {
            return Poll::Ready(Err(StreamEnd::Connection(closed)));
        }
        if self.portion_left == 0 {
            self.portion_left = if self.is_first_portion { FIRST_PORTION } else { PORTION };
            state.begin_portion(self.id, self.priority, self.is_first_portion);
        }
        match state.with_send_window_for(self.priority, write) {
            Ok(count) => {
                self.portion_left = self.portion_left.saturating_sub(count);
                if self.is_first_portion && self.portion_left == 0 {
                    self.is_first_portion = false;
                    self.portion_left = PORTION.saturating_sub(count);
                    state.begin_portion(self.id, self.priority, self.is_first_portion);
                }
                self.connection.mark_ready();
                Poll::Ready(Ok(count))
            }
            Err(WriteError::Blocked) => {
                // Wakes the driver, which tells the peer that we are blocked.
                self.connection.mark_ready();
                register_waker(&mut state.wakers.writers, self.id, cx);
                Poll::Pending
            }
            Err(WriteError::Stopped(code)) => {
                self.over = true;
                reset_stream(state, self.id, code);
                self.connection.mark_ready();
                Poll::Ready(Err(StreamEnd::Stopped(code.into_inner())))
            }
            // A task that has ended a stream itself does not write to it.
            Err(WriteError::ClosedStream) => Poll::Ready(Err(StreamEnd::Stopped(CANCELLED))),
        }
    }

    /// Ends the stream.
    pub fn finish(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let state = &mut *self.connection.state.borrow_mut();
        if let Err(FinishError::Stopped(code)) = state.proto.send_stream(self.id).finish() {
            reset_stream(state, self.id, code);
        }
        self.connection.mark_ready();
    }

    /// Resets the stream: gives up the data that was written, and any that would have followed.
    pub fn reset(&mut self, code: u64) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        reset_stream(&mut self.connection.state.borrow_mut(), self.id, varint(code));
        self.connection.mark_ready();
    }

    /// Waits until the peer stops reading the stream; returns its error code.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, CloseReason>> {
        let state = &mut *self.connection.state.borrow_mut();
        if let Some(closed) = state.closed {
            return Poll::Ready(Err(closed));
        }
        // A stream that the library no longer knows has come to its end, and is not stopped.
        if let Ok(Some(code)) = state.proto.send_stream(self.id).stopped() {
            self.over = true;
            reset_stream(state, self.id, code);
            self.connection.mark_ready();
            return Poll::Ready(Ok(code.into_inner()));
        }
        register_waker(&mut state.wakers.writers, self.id, cx);
        Poll::Pending
    }

    /// Sets the priority: streams with a higher number go first; 0 is the initial one.
    pub fn set_priority(&mut self, priority: i32) {
        let state = &mut *self.connection.state.borrow_mut();
        state.scheduler.remove_stream(self.id, std::mem::replace(&mut self.priority, priority));
        state.scheduler.add_stream(self.id, priority);
        state.begin_portion(self.id, priority, self.is_first_portion);
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.reset(CANCELLED);
        let state = &mut *self.connection.state.borrow_mut();
        state.wakers.writers.remove(&self.id);
        state.scheduler.remove_stream(self.id, self.priority);
    }
}

impl RecvStream {
    pub(super) fn new(connection: &QuicConnection, id: StreamId) -> Self {
        Self { connection: Rc::clone(&connection.0), id, over: false }
    }

    pub fn id(&self) -> u64 {
        self.id.into()
    }

    /// Reads the next bytes; `None` is the end of the stream. Data that arrived before the connection's end can still
    /// be read.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamEnd>> {
        let state = &mut *self.connection.state.borrow_mut();
        if self.over {
            return Poll::Ready(Ok(None));
        }
        let mut stream = state.proto.recv_stream(self.id);
        let Ok(mut chunks) = stream.read(true) else {
            let closed = state.closed.unwrap_or(CloseReason::Transport);
            return Poll::Ready(Err(StreamEnd::Connection(closed)));
        };
        let read = chunks.next(usize::MAX);
        if chunks.finalize().should_transmit() {
            self.connection.mark_ready();
        }
        match read {
            Ok(Some(chunk)) => Poll::Ready(Ok(Some(chunk.bytes))),
            Ok(None) => {
                self.over = true;
                Poll::Ready(Ok(None))
            }
            Err(ReadError::Reset(code)) => {
                self.over = true;
                Poll::Ready(Err(StreamEnd::Reset(code.into_inner())))
            }
            Err(ReadError::Blocked) => match state.closed {
                Some(closed) => Poll::Ready(Err(StreamEnd::Connection(closed))),
                None => {
                    register_waker(&mut state.wakers.readers, self.id, cx);
                    Poll::Pending
                }
            },
        }
    }

    /// Asks the peer to stop sending.
    pub fn stop(&mut self, code: u64) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let state = &mut *self.connection.state.borrow_mut();
        // A stream that has come to its end already needs no stopping.
        state.proto.recv_stream(self.id).stop(varint(code)).unwrap_or_default();
        self.connection.mark_ready();
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.stop(NO_ERROR);
        self.connection.state.borrow_mut().wakers.readers.remove(&self.id);
    }
}

/// Resets the send side, because the peer has asked for it or by our decision. A stream that is over stays as it is.
fn reset_stream(state: &mut QuicConnectionState, id: StreamId, code: VarInt) {
    state.proto.send_stream(id).reset(code).unwrap_or_default();
}

fn register_waker(wakers: &mut BTreeMap<StreamId, Waker>, id: StreamId, cx: &Context<'_>) {
    match wakers.get_mut(&id) {
        Some(waker) => waker.clone_from(cx.waker()),
        None => drop(wakers.insert(id, cx.waker().clone())),
    }
}

fn varint(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// Writes the slices. Each chunk costs an allocation, so small ones are joined first.
fn write_slices(
    stream: &mut quinn_proto::SendStream<'_>,
    slices: &[IoSlice<'_>],
) -> Result<usize, WriteError> {
    let total: usize = slices.iter().map(|slice| slice.len()).sum();
    if slices.len() > 1 && total <= MAX_GATHERED_BYTES {
        let mut gathered = BytesMut::with_capacity(total);
        slices.iter().for_each(|slice| gathered.extend_from_slice(slice));
        let written = stream.write_chunks(&mut [gathered.freeze()])?;
        return Ok(written.bytes);
    }
    let mut written = 0;
    for slice in slices {
        match stream.write(slice) {
            Ok(count) => {
                written += count;
                if count < slice.len() {
                    break;
                }
            }
            Err(_) if written > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}
