//! The size of each read from a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// If the average frame is shorter than this, the frames belong to many messages.
const SHORT_FRAME_BYTES: usize = 256;
/// Read size for such frames: about a dozen gRPC calls.
const SMALL_READ_BYTES: usize = 1024;
/// Messages fewer than this fit in the processor's caches together.
const MANY_STREAMS: u32 = 256;

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
