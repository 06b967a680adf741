//! Frames in the bytes that they come in, and how much of these is read at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// What begins each frame (RFC 9113 §4.1).
pub(crate) const HEADER_BYTES: usize = 9;
/// A stream's number in that; the bit before is reserved.
const STREAM_BITS: u32 = u32::MAX >> 1;

/// Frames that are shorter than this, on the average, are of many messages.
const SHORT_FRAME_BYTES: usize = 256;
/// So much of such frames is read at a time: a dozen calls of gRPC.
const SMALL_READ_BYTES: usize = 1024;
/// What fewer messages than this need stays in the processor's caches.
const MANY_STREAMS: u32 = 256;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct H2FrameHeader {
    /// Without this header.
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// Tells frames apart, whatever the pieces are that they come in.
#[derive(Debug)]
pub(crate) struct H2FrameScanner {
    /// Of the frame that is coming in.
    left: usize,
    header: [u8; HEADER_BYTES],
    /// As far as the next header is there.
    header_bytes: usize,
}

impl H2FrameScanner {
    /// `before` bytes come first that are no frame.
    pub(crate) fn new(before: usize) -> Self {
        Self { left: before, header: [0; HEADER_BYTES], header_bytes: 0 }
    }

    /// The next header that is whole, and leaves what comes behind it; `None`: all has been walked through.
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

    /// A frame has begun, and not all of it has come.
    pub(crate) fn is_inside_frame(&self) -> bool {
        self.left > 0
    }
}

/// How much of a connection is read at a time.
///
/// The library reads all that has come before a task that waits for any of it has its turn. Of thousands of messages that
/// are under way together each would be looked at again when the processor has long forgotten it: then short frames are
/// read little by little. Where there are fewer, that would only be more calls to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadPacer {
    is_slow: bool,
}

impl ReadPacer {
    /// In what came last so many frames began, and so many messages are under way.
    pub(crate) fn record_read(&mut self, bytes: usize, frames: usize, under_way: u32) {
        self.is_slow = under_way >= MANY_STREAMS && frames * SHORT_FRAME_BYTES > bytes;
    }

    /// Reads. Whether there may be more of what is read little by little.
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
        let mut sip = ReadBuf::new(space.initialize_unfilled_to(most));
        ready!(stream.poll_read(cx, &mut sip))?;
        let count = sip.filled().len();
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
            let mut walk = H2FrameScanner::new(24);
            let mut seen = Vec::new();
            for mut bytes in bytes.chunks(piece) {
                while let Some(header) = walk.next(&mut bytes) {
                    assert_eq!(header.flags, 4);
                    seen.push((header.kind, header.stream, header.length));
                }
                assert!(bytes.is_empty());
            }
            assert_eq!(seen, [(1, 1, 20), (0, 1, 0), (3, 5, 4)], "in pieces of {piece}");
            assert!(!walk.is_inside_frame());
        }
    }

    fn read(pace: ReadPacer, mut bytes: &[u8]) -> (usize, bool) {
        let mut buffer = [0; 4 * SMALL_READ_BYTES];
        let mut space = ReadBuf::new(&mut buffer);
        let cx = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(is_more)) = pace.poll_read(Pin::new(&mut bytes), cx, &mut space) else {
            panic!("what is in memory can be read");
        };
        (space.filled().len(), is_more)
    }

    #[test]
    fn many_short_frames_are_read_in_small_portions() {
        let bytes = [1; 3 * SMALL_READ_BYTES];
        let mut pace = ReadPacer::default();
        assert_eq!(read(pace, &bytes), (3 * SMALL_READ_BYTES, false));
        pace.record_read(1000, 20, MANY_STREAMS - 1);
        assert_eq!(read(pace, &bytes), (3 * SMALL_READ_BYTES, false));
        pace.record_read(1000, 20, MANY_STREAMS);
        assert_eq!(read(pace, &bytes), (SMALL_READ_BYTES, true));
        assert_eq!(read(pace, &bytes[..10]), (10, false));
        pace.record_read(16_393, 1, MANY_STREAMS);
        assert_eq!(read(pace, &bytes), (3 * SMALL_READ_BYTES, false));
    }
}
