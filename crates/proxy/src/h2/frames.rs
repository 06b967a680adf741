//! Frame boundaries in the received bytes, and the size of each read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Length of a frame header (RFC 9113 §4.1).
pub(crate) const HEADER_BYTES: usize = 9;
/// Mask of the stream identifier in the header; the bit before it is reserved.
const STREAM_BITS: u32 = u32::MAX >> 1;

/// If the average frame is shorter than this, the frames belong to many messages.
const SHORT_FRAME_BYTES: usize = 256;
/// Read size for such frames: about a dozen gRPC calls.
const SMALL_READ_BYTES: usize = 1024;
/// Messages fewer than this fit in the processor's caches together.
const MANY_STREAMS: u32 = 256;

/// The fields of a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct H2FrameHeader {
    /// Length of the payload, without this header.
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// Finds the frame boundaries in a byte stream that arrives in arbitrary pieces.
#[derive(Debug)]
pub(crate) struct H2FrameScanner {
    /// Bytes left of the current frame.
    left: usize,
    header: [u8; HEADER_BYTES],
    /// Bytes of the next header that have arrived.
    header_bytes: usize,
}

impl H2FrameScanner {
    /// `before` bytes precede the first frame.
    pub(crate) fn new(before: usize) -> Self {
        Self { left: before, header: [0; HEADER_BYTES], header_bytes: 0 }
    }

    /// Returns the next complete header, and advances `bytes` past it; `None` if all bytes have been scanned.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Option<H2FrameHeader> {
        let passed = self.left.min(bytes.len());
        self.left -= passed;
        let (header, rest) =
            bytes[passed..].split_at((HEADER_BYTES - self.header_bytes).min(bytes.len() - passed));
        self.header[self.header_bytes..][..header.len()].copy_from_slice(header);
        self.header_bytes += header.len();
        *bytes = rest;
        if self.header_bytes < HEADER_BYTES {
            return None;
        }
        self.header_bytes = 0;
        let [high, middle, low, kind, flags, stream @ ..] = self.header;
        self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
        let stream = u32::from_be_bytes(stream) & STREAM_BITS;
        Some(H2FrameHeader { length: self.left, kind, flags, stream })
    }

    /// True if a frame has begun and not all of it has arrived.
    pub(crate) fn is_inside_frame(&self) -> bool {
        self.left > 0
    }
}

/// Limits the size of each read from a connection.
///
/// The `h2` crate reads everything that is available before any task that waits for a part of it runs. With thousands
/// of concurrent messages, each message would have left the processor's caches before its task runs. So short frames
/// are then read in small portions. With fewer messages, small reads would only mean more system calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadPacer {
    is_slow: bool,
}

impl ReadPacer {
    /// Records the last read: its bytes, the frames that began in it, and the number of messages in progress.
    pub(crate) fn record_read(&mut self, bytes: usize, frames: usize, under_way: u32) {
        self.is_slow = under_way >= MANY_STREAMS && frames * SHORT_FRAME_BYTES > bytes;
    }

    /// Reads. Returns true if the read was limited and more bytes may be available.
    pub(crate) fn poll_read(
        self,
        stream: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        if !self.is_slow {
            return stream.poll_read(cx, space).map_ok(|()| false);
        }
        let most = SMALL_READ_BYTES.min(space.remaining());
        let mut portion = ReadBuf::new(space.initialize_unfilled_to(most));
        ready!(stream.poll_read(cx, &mut portion))?;
        let count = portion.filled().len();
        space.advance(count);
        Poll::Ready(Ok(count == most))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn frame(kind: u8, stream: u32, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 4];
        frame.extend((stream | 1 << 31).to_be_bytes());
        frame.extend(std::iter::repeat_n(0, length.into()));
        frame
    }

    #[test]
    fn frames_are_split_across_read_boundaries() {
        let bytes = [vec![7; 24], frame(1, 1, 20), frame(0, 1, 0), frame(3, 5, 4)].concat();
        for piece in [1, 2, 7, 100] {
            let mut scanner = H2FrameScanner::new(24);
            let mut seen = Vec::new();
            for mut bytes in bytes.chunks(piece) {
                while let Some(header) = scanner.next(&mut bytes) {
                    assert_eq!(header.flags, 4);
                    seen.push((header.kind, header.stream, header.length));
                }
                assert!(bytes.is_empty());
            }
            assert_eq!(seen, [(1, 1, 20), (0, 1, 0), (3, 5, 4)], "in pieces of {piece}");
            assert!(!scanner.is_inside_frame());
        }
    }

    fn read(pacer: ReadPacer, mut bytes: &[u8]) -> (usize, bool) {
        let mut buffer = [0; 4 * SMALL_READ_BYTES];
        let mut space = ReadBuf::new(&mut buffer);
        let cx = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(is_more)) = pacer.poll_read(Pin::new(&mut bytes), cx, &mut space) else {
            panic!("a read from memory is always ready");
        };
        (space.filled().len(), is_more)
    }

    #[test]
    fn many_short_frames_are_read_in_small_portions() {
        let bytes = [1; 3 * SMALL_READ_BYTES];
        let mut pacer = ReadPacer::default();
        assert_eq!(read(pacer, &bytes), (3 * SMALL_READ_BYTES, false));
        pacer.record_read(1000, 20, MANY_STREAMS - 1);
        assert_eq!(read(pacer, &bytes), (3 * SMALL_READ_BYTES, false));
        pacer.record_read(1000, 20, MANY_STREAMS);
        assert_eq!(read(pacer, &bytes), (SMALL_READ_BYTES, true));
        assert_eq!(read(pacer, &bytes[..10]), (10, false));
        pacer.record_read(16_393, 1, MANY_STREAMS);
        assert_eq!(read(pacer, &bytes), (3 * SMALL_READ_BYTES, false));
    }
}
