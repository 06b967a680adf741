//! Flood detection for HTTP/2: weighs a client's frames that only cause work against the useful
//! ones.
//!
//! The detector sees the bytes before the library does, frame by frame, and reads no more than the
//! frame headers. So one account covers every kind of flood, and ends it before the library has
//! processed the frames.

use balance::Time;
use codec::h2::frames::{H2FrameHeader, H2FrameScanner};

use super::fault::H2ClientFault;
use crate::accept::token_bucket::{RESET_PRICE, TokenBucket};
use crate::h2::ReadPacer;

/// Connection preface (RFC 9113 §3.4).
pub(in crate::accept) use codec::first_bytes::HTTP2_PREFACE as PREFACE;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Control frames allowed at once, in addition to those that are earned; a tenth of it is refilled
/// each second.
const CONTROL_FRAME_BURST: u32 = 1000;
/// Bytes sent by us that earn one control frame: gRPC sends PING while it receives, to estimate the
/// bandwidth-delay product.
const BYTES_PER_FRAME: usize = 128;
/// WINDOW_UPDATE frames allowed at once, in addition to those that are earned; a tenth of it is refilled each second.
const WINDOW_UPDATE_BURST: u32 = 10_000;
/// WINDOW_UPDATE frames that one DATA frame to the client earns, and one request of the client: two are usual, one for
/// the stream and one for the connection.
const WINDOW_UPDATES_EARNED: u32 = 10;

/// Requests that are read before those already read are served. Served early, their data is still
/// in the processor's caches, and other connections get their turn.
const MAX_REQUESTS_PER_POLL: u64 = 32;

/// Account of everything that the client of a connection has sent.
pub(super) struct FloodDetector {
    scanner: H2FrameScanner,
    /// Type of the frame that is arriving, or arrived last.
    kind: u8,
    /// Size of the reads.
    pub(super) pace: ReadPacer,
    /// True if a header block has begun and further frames of it follow.
    head_is_open: bool,
    /// True if the latest header block opened a stream; false if it was trailers.
    head_opens_stream: bool,
    /// Number of the latest stream (RFC 9113 §5.1.1: each stream has a higher number than those
    /// before).
    last_stream: u32,
    streams: u64,
    /// Value of `streams` when the current poll began, and the number of requests in flight then.
    streams_before: u64,
    requests_in_flight: u32,
    resets: TokenBucket,
    control_frames: TokenBucket,
    window_updates: TokenBucket,
    /// Number of streams that the client has reset.
    pub(super) streams_reset: u64,
    /// Number of streams whose heads the library has processed.
    pub(super) streams_processed: u64,
    /// Number of bytes received.
    pub(super) bytes_received: u64,
    /// True once everything has been sent, and the client is expected to close the connection too.
    pub(super) is_closing: bool,
    /// True once the time for that has expired.
    pub(super) close_wait_expired: bool,
    fault: Option<H2ClientFault>,
}

impl FloodDetector {
    /// Creates a detector for a connection with up to `open` concurrent streams.
    pub(super) fn new(open: u32, now: Time) -> Self {
        Self {
            scanner: H2FrameScanner::new(PREFACE.len()),
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
            window_updates: TokenBucket::new(WINDOW_UPDATE_BURST, now),
            streams_reset: 0,
            streams_processed: 0,
            bytes_received: 0,
            is_closing: false,
            close_wait_expired: false,
            fault: None,
        }
    }

    /// Records received bytes. Returns how many of them may be passed on: all of them unless there
    /// is a fault.
    pub(super) fn record_received(&mut self, received: &[u8]) -> usize {
        self.bytes_received += received.len() as u64;
        let (mut bytes, mut frames) = (received, 0);
        while self.fault.is_none()
            && let Some(header) = self.scanner.next(&mut bytes)
        {
            frames += 1;
            self.begin_frame(header);
        }
        self.pace.record_read(received.len(), frames, self.requests_in_flight);
        received.len() - bytes.len()
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
                self.window_updates.earn(WINDOW_UPDATES_EARNED);
            }
            CONTINUATION => self.head_is_open = flags & END_HEADERS == 0,
            DATA => self.control_frames.earn(u32::from(length > 0)),
            WINDOW_UPDATE => {
                if !self.window_updates.spend(1) {
                    self.fault.get_or_insert(H2ClientFault::Control);
                }
            }
            RST_STREAM => {
                self.streams_reset += 1;
                if !self.resets.spend(RESET_PRICE) {
                    self.fault.get_or_insert(H2ClientFault::Resets);
                }
            }
            // PING, SETTINGS, PRIORITY, and unknown frame types.
            _ => {
                if !self.control_frames.spend(1) {
                    self.fault.get_or_insert(H2ClientFault::Control);
                }
            }
        }
    }

    /// Records that the library has processed every complete frame, since it asks for more bytes.
    pub(super) fn mark_processed(&mut self) {
        self.streams_processed =
            self.streams - u64::from(self.head_opens_stream && self.is_within_head());
    }

    /// Begins a poll of the connection's task: requests read earlier are being served, `under_way`
    /// of them by now.
    pub(super) fn begin_poll(&mut self, under_way: u32) {
        self.streams_before = self.streams;
        self.requests_in_flight = under_way;
    }

    /// True if enough requests have been read in this poll.
    pub(super) fn is_poll_exhausted(&self) -> bool {
        self.streams - self.streams_before >= MAX_REQUESTS_PER_POLL
    }

    /// Records that we have sent `bytes` bytes.
    pub(super) fn record_sent(&mut self, bytes: usize) {
        self.control_frames.earn(u32::try_from(bytes / BYTES_PER_FRAME).unwrap_or(u32::MAX));
    }

    /// Records that DATA frames have been handed over for sending.
    pub(super) fn record_data_frames(&mut self, frames: u32) {
        self.window_updates.earn(frames.saturating_mul(WINDOW_UPDATES_EARNED));
    }

    /// Returns the flood that the client has caused, if any: then no more is read from it.
    pub(super) fn fault(&self) -> Option<H2ClientFault> {
        self.fault
    }

    /// True if a head has begun and is not complete.
    pub(super) fn is_within_head(&self) -> bool {
        self.head_is_open
            || (self.scanner.is_inside_frame() && matches!(self.kind, HEADERS | CONTINUATION))
    }
}

#[cfg(test)]
mod tests {
    use codec::h2::frames::HEADER_BYTES;

    use super::*;
    use crate::clock;

    const PING: u8 = 6;

    fn detector() -> FloodDetector {
        of_streams(100)
    }

    fn of_streams(open: u32) -> FloodDetector {
        let mut detector = FloodDetector::new(open, clock::now());
        detector.record_received(PREFACE);
        detector
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
            let mut detector = detector();
            frames.concat().chunks(piece).for_each(|bytes| {
                assert_eq!(detector.record_received(bytes), bytes.len());
            });
            assert_eq!(detector.streams_reset, 2, "in pieces of {piece}");
            assert!(!detector.is_within_head());
        }
    }

    #[test]
    fn header_block_is_open_until_its_last_frame_is_complete() {
        let mut detector = detector();
        detector.record_received(&frame(HEADERS, 0, 5));
        assert!(detector.is_within_head());
        let last = frame(CONTINUATION, END_HEADERS, 5);
        detector.record_received(&last[..last.len() - 1]);
        assert!(detector.is_within_head());
        detector.record_received(&last[last.len() - 1..]);
        assert!(!detector.is_within_head());
    }

    fn of_stream(mut frame: Vec<u8>, stream: u8) -> Vec<u8> {
        frame[HEADER_BYTES - 1] = stream;
        frame
    }

    #[test]
    fn read_batch_ends_after_a_fixed_number_of_requests() {
        let mut detector = detector();
        for stream in (1u8..).step_by(2).take(MAX_REQUESTS_PER_POLL as usize) {
            assert!(!detector.is_poll_exhausted());
            detector.record_received(&of_stream(frame(HEADERS, END_HEADERS, 5), stream));
            detector.record_received(&of_stream(frame(DATA, 0, 200), stream));
        }
        assert!(detector.is_poll_exhausted());
        detector.begin_poll(MAX_REQUESTS_PER_POLL as u32);
        assert!(!detector.is_poll_exhausted());
    }

    #[test]
    fn streams_count_once_their_header_blocks_are_complete() {
        let mut detector = detector();
        detector.record_received(&of_stream(frame(HEADERS, END_HEADERS, 5), 1));
        assert_eq!(detector.streams_processed, 0, "the library has not asked for more");
        let mut seen = |bytes: &[u8]| {
            detector.record_received(bytes);
            detector.mark_processed();
            detector.streams_processed
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
        let mut detector = detector();
        let pair = [frame(HEADERS, END_HEADERS, 5), frame(RST_STREAM, 0, 4)].concat();
        let pairs = (0..10 * CONTROL_FRAME_BURST).take_while(|_| {
            detector.record_received(&pair);
            detector.fault().is_none()
        });
        let pairs = pairs.count() as u32;
        assert!((CONTROL_FRAME_BURST..5 * CONTROL_FRAME_BURST).contains(&pairs), "{pairs}");
        assert_eq!(detector.fault(), Some(H2ClientFault::Resets));
        assert_eq!(detector.record_received(&pair), 0, "no more bytes are passed on");
    }

    #[test]
    fn all_concurrent_streams_may_be_reset_at_once() {
        let open = 8 * CONTROL_FRAME_BURST;
        let mut detector = of_streams(open);
        for frames in [frame(HEADERS, END_HEADERS, 5), frame(RST_STREAM, 0, 4)] {
            (0..open).for_each(|_| assert_eq!(detector.record_received(&frames), frames.len()));
        }
        assert_eq!(detector.fault(), None);
    }

    #[test]
    fn client_that_resets_every_other_stream_is_not_stopped() {
        let mut detector = detector();
        for _ in 0..10 * CONTROL_FRAME_BURST {
            detector.record_received(&frame(HEADERS, END_HEADERS, 5).repeat(2));
            detector.record_received(&frame(RST_STREAM, 0, 4));
        }
        assert_eq!(detector.fault(), None);
    }

    #[test]
    fn ping_allowance_grows_with_bytes_sent() {
        let mut detector = detector();
        for _ in 0..10 * CONTROL_FRAME_BURST {
            detector.record_sent(4096);
            detector.record_received(&frame(PING, 0, 8));
        }
        assert_eq!(detector.fault(), None);
        for _ in 0..5 * CONTROL_FRAME_BURST {
            detector.record_sent(17);
            detector.record_received(&frame(PING, 0, 8));
        }
        assert_eq!(detector.fault(), Some(H2ClientFault::Control));
    }

    #[test]
    fn window_updates_are_bounded_by_data_sent() {
        let mut detector = detector();
        for _ in 0..WINDOW_UPDATE_BURST {
            detector.record_data_frames(1);
            detector.record_received(&frame(WINDOW_UPDATE, 0, 4).repeat(2));
        }
        assert_eq!(detector.fault(), None, "a stream's and the connection's for each DATA frame");
        for _ in 0..2 * WINDOW_UPDATE_BURST {
            detector.record_received(&frame(WINDOW_UPDATE, 0, 4));
        }
        assert_eq!(detector.fault(), Some(H2ClientFault::Control));
    }
}
