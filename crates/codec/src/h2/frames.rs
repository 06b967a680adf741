//! Frame boundaries in the received bytes.

#![expect(clippy::indexing_slicing, reason = "counts are bounded by the lengths of both sides")]

/// Length of a frame header (RFC 9113 §4.1).
pub const HEADER_BYTES: usize = 9;
/// Mask of the stream identifier in the header; the bit before it is reserved.
const STREAM_BITS: u32 = u32::MAX >> 1;

/// The fields of a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2FrameHeader {
    /// Length of the payload, without this header.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

/// Finds the frame boundaries in a byte stream that arrives in arbitrary pieces.
#[derive(Debug)]
pub struct H2FrameScanner {
    /// Bytes left of the current frame.
    left: usize,
    header: [u8; HEADER_BYTES],
    /// Bytes of the next header that have arrived.
    header_bytes: usize,
}

impl H2FrameScanner {
    /// `before` bytes precede the first frame.
    pub fn new(before: usize) -> Self {
        Self { left: before, header: [0; HEADER_BYTES], header_bytes: 0 }
    }

    /// Returns the next complete header, and advances `bytes` past it; `None` if all bytes have been scanned.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<H2FrameHeader> {
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
    pub fn is_inside_frame(&self) -> bool {
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
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
}
