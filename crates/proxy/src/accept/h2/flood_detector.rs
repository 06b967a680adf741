//! What a client's frames are worth: counts those that make work for nothing against those that do not.
//!
//! It sees the bytes before the library does, frame by frame, and nothing in them but what each frame is. So floods are
//! ended by one account, whichever frames they are made of, before the library has worked through them.

use balance::Time;

use super::fault::H2ClientFault;
use crate::accept::token_bucket::{RESET_PRICE, TokenBucket};
use crate::h2::frames::{H2FrameHeader, H2FrameScanner, ReadPacer};

/// What begins a connection in place of a frame (RFC 9113 §3.4).
pub(in crate::accept) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Idle frames that may be sent at once, beyond what is earned; a tenth of it each second.
const CONTROL_FRAME_BURST: u32 = 1000;
/// So many bytes that we send earn one idle frame: gRPC pings while it receives, to learn how wide the way is.
const BYTES_PER_FRAME: usize = 128;

/// So many requests are read before those are served that have been: what they need is still in the processor's caches
/// then, and other connections have their turn.
const MAX_REQUESTS_PER_POLL: u64 = 32;

/// What a connection's client has sent so far.
pub(super) struct FloodDetector {
    walk: H2FrameScanner,
    /// Of the frame that is coming in, or came last.
    kind: u8,
    /// How much is read at a time.
    pub(super) pace: ReadPacer,
    /// A head has begun and has further frames.
    head_is_open: bool,
    /// The head that came last began a stream, and did not only end one.
    head_opens_stream: bool,
    /// The stream that began last (RFC 9113 §5.1.1: each has a higher number than those before).
    last_stream: u32,
    streams: u64,
    /// As many as that when this turn of the connection began, and so many requests were under way.
    streams_before: u64,
    requests_in_flight: u32,
    resets: TokenBucket,
    control_frames: TokenBucket,
    /// Streams that the client has reset.
    pub(super) streams_reset: u64,
    /// Streams of whose heads the library has made what it would.
    pub(super) streams_processed: u64,
    /// Bytes that have come.
    pub(super) bytes_received: u64,
    /// All has been said, and the client is to close the connection too.
    pub(super) is_closing: bool,
    /// It has had its time for that.
    pub(super) close_wait_expired: bool,
    fault: Option<H2ClientFault>,
}

impl FloodDetector {
    /// Of a connection that may have so many streams open.
    pub(super) fn new(open: u32, now: Time) -> Self {
        Self {
            walk: H2FrameScanner::new(PREFACE.len()),
            kind: DATA,
            pace: ReadPacer::default(),
            head_is_open: false,
            head_opens_stream: false,
            last_stream: 0,
            streams: 0,
            streams_before: 0,
            requests_in_flight: 0,
            resets: TokenBucket::of_resets(open, now),
            control_frames: TokenBucket::new(CONTROL_FRAME_BURST, now),
            streams_reset: 0,
            streams_processed: 0,
            bytes_received: 0,
            is_closing: false,
            close_wait_expired: false,
            fault: None,
        }
    }

    /// The client has sent this. How much of it is worth going on with: all, as long as there is no fault.
    pub(super) fn record_received(&mut self, heard: &[u8]) -> usize {
        self.bytes_received += heard.len() as u64;
        let (mut bytes, mut frames) = (heard, 0);
        while self.fault.is_none()
            && let Some(header) = self.walk.next(&mut bytes)
        {
            frames += 1;
            self.begin_frame(header);
        }
        self.pace.record_read(heard.len(), frames, self.requests_in_flight);
        heard.len() - bytes.len()
    }

    fn begin_frame(&mut self, header: H2FrameHeader) {
        let H2FrameHeader { length, kind, flags, stream } = header;
        self.kind = kind;
        match kind {
            HEADERS => {
                self.head_is_open = flags & END_HEADERS == 0;
                self.head_opens_stream = stream > self.last_stream;
                if self.head_opens_stream {
                    self.last_stream = stream;
                    self.streams += 1;
                }
                self.resets.earn(1);
                self.control_frames.earn(1);
            }
            CONTINUATION => self.head_is_open = flags & END_HEADERS == 0,
            DATA => self.control_frames.earn(u32::from(length > 0)),
            WINDOW_UPDATE => {}
            RST_STREAM => {
                self.streams_reset += 1;
                if !self.resets.spend(RESET_PRICE) {
                    self.fault.get_or_insert(H2ClientFault::Resets);
                }
            }
            // PING, SETTINGS, PRIORITY, and what nobody knows.
            _ => {
                if !self.control_frames.spend(1) {
                    self.fault.get_or_insert(H2ClientFault::Control);
                }
            }
        }
    }

    /// The library asks for more, so it has dealt with every frame that is whole.
    pub(super) fn mark_processed(&mut self) {
        self.streams_processed =
            self.streams - u64::from(self.head_opens_stream && self.is_within_head());
    }

    /// The connection's task runs again: what had been read before is being served, so many requests by now.
    pub(super) fn begin_poll(&mut self, under_way: u32) {
        self.streams_before = self.streams;
        self.requests_in_flight = under_way;
    }

    /// Enough has been read for now.
    pub(super) fn is_poll_exhausted(&self) -> bool {
        self.streams - self.streams_before >= MAX_REQUESTS_PER_POLL
    }

    /// We have sent so many bytes.
    pub(super) fn record_sent(&mut self, bytes: usize) {
        self.control_frames.earn(u32::try_from(bytes / BYTES_PER_FRAME).unwrap_or(u32::MAX));
    }

    /// What the client has done that nobody has reason to: nothing more is read from it.
    pub(super) fn fault(&self) -> Option<H2ClientFault> {
        self.fault
    }

    /// A head has begun, and not all of it has come.
    pub(super) fn is_within_head(&self) -> bool {
        self.head_is_open
            || (self.walk.is_inside_frame() && matches!(self.kind, HEADERS | CONTINUATION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::h2::frames::HEADER_BYTES;

    const PING: u8 = 6;

    fn meter() -> FloodDetector {
        of_streams(100)
    }

    fn of_streams(open: u32) -> FloodDetector {
        let mut meter = FloodDetector::new(open, clock::now());
        meter.record_received(PREFACE);
        meter
    }

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.extend(std::iter::repeat_n(0, length.into()));
        frame
    }

    #[test]
    fn resets_are_counted_across_read_boundaries() {
        let frames = [
            frame(HEADERS, END_HEADERS, 20),
            frame(RST_STREAM, 0, 4),
            frame(DATA, 0, 200),
            frame(RST_STREAM, 0, 4),
        ];
        for piece in [1, 2, 7, 100, 1000] {
            let mut meter = meter();
            frames.concat().chunks(piece).for_each(|bytes| {
                assert_eq!(meter.record_received(bytes), bytes.len());
            });
            assert_eq!(meter.streams_reset, 2, "in pieces of {piece}");
            assert!(!meter.is_within_head());
        }
    }

    #[test]
    fn header_block_is_open_until_its_last_frame_is_complete() {
        let mut meter = meter();
        meter.record_received(&frame(HEADERS, 0, 5));
        assert!(meter.is_within_head());
        let last = frame(CONTINUATION, END_HEADERS, 5);
        meter.record_received(&last[..last.len() - 1]);
        assert!(meter.is_within_head());
        meter.record_received(&last[last.len() - 1..]);
        assert!(!meter.is_within_head());
    }

    fn of_stream(mut frame: Vec<u8>, stream: u8) -> Vec<u8> {
        frame[HEADER_BYTES - 1] = stream;
        frame
    }

    #[test]
    fn read_batch_ends_after_a_fixed_number_of_requests() {
        let mut meter = meter();
        for stream in (1u8..).step_by(2).take(MAX_REQUESTS_PER_POLL as usize) {
            assert!(!meter.is_poll_exhausted());
            meter.record_received(&of_stream(frame(HEADERS, END_HEADERS, 5), stream));
            meter.record_received(&of_stream(frame(DATA, 0, 200), stream));
        }
        assert!(meter.is_poll_exhausted());
        meter.begin_poll(MAX_REQUESTS_PER_POLL as u32);
        assert!(!meter.is_poll_exhausted());
    }

    #[test]
    fn streams_count_once_their_header_blocks_are_complete() {
        let mut meter = meter();
        meter.record_received(&of_stream(frame(HEADERS, END_HEADERS, 5), 1));
        assert_eq!(meter.streams_processed, 0, "the library has not asked for more");
        let mut seen = |bytes: &[u8]| {
            meter.record_received(bytes);
            meter.mark_processed();
            meter.streams_processed
        };
        let head = of_stream(frame(HEADERS, 0, 5), 3);
        assert_eq!(seen(&head[..head.len() - 1]), 1);
        assert_eq!(seen(&head[head.len() - 1..]), 1);
        assert_eq!(seen(&of_stream(frame(CONTINUATION, END_HEADERS, 5), 3)), 2);
        let trailers = of_stream(frame(HEADERS, END_HEADERS, 5), 1);
        assert_eq!(seen(&trailers[..HEADER_BYTES]), 2);
        assert_eq!(seen(&trailers[HEADER_BYTES..]), 2);
    }

    #[test]
    fn client_that_resets_every_stream_is_stopped() {
        let mut meter = meter();
        let pair = [frame(HEADERS, END_HEADERS, 5), frame(RST_STREAM, 0, 4)].concat();
        let pairs = (0..10 * CONTROL_FRAME_BURST).take_while(|_| {
            meter.record_received(&pair);
            meter.fault().is_none()
        });
        let pairs = pairs.count() as u32;
        assert!((CONTROL_FRAME_BURST..5 * CONTROL_FRAME_BURST).contains(&pairs), "{pairs}");
        assert_eq!(meter.fault(), Some(H2ClientFault::Resets));
        assert_eq!(meter.record_received(&pair), 0, "nothing is passed on any more");
    }

    #[test]
    fn all_concurrent_streams_may_be_reset_at_once() {
        let open = 8 * CONTROL_FRAME_BURST;
        let mut meter = of_streams(open);
        for frames in [frame(HEADERS, END_HEADERS, 5), frame(RST_STREAM, 0, 4)] {
            (0..open).for_each(|_| assert_eq!(meter.record_received(&frames), frames.len()));
        }
        assert_eq!(meter.fault(), None);
    }

    #[test]
    fn client_that_resets_every_other_stream_is_not_stopped() {
        let mut meter = meter();
        for _ in 0..10 * CONTROL_FRAME_BURST {
            meter.record_received(&frame(HEADERS, END_HEADERS, 5).repeat(2));
            meter.record_received(&frame(RST_STREAM, 0, 4));
        }
        assert_eq!(meter.fault(), None);
    }

    #[test]
    fn ping_allowance_grows_with_bytes_sent() {
        let mut meter = meter();
        for _ in 0..10 * CONTROL_FRAME_BURST {
            meter.record_sent(4096);
            meter.record_received(&frame(PING, 0, 8));
        }
        assert_eq!(meter.fault(), None);
        for _ in 0..5 * CONTROL_FRAME_BURST {
            meter.record_sent(17);
            meter.record_received(&frame(PING, 0, 8));
        }
        assert_eq!(meter.fault(), Some(H2ClientFault::Control));
    }
}
