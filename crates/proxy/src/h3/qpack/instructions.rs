//! What comes on the streams beside the sections (RFC 9204 §4.3, §4.4), where no dynamic table is kept: hardly anything
//! may.

use super::super::H3ErrorCode;

/// Sets the capacity of the dynamic table to 0, which it is.
const NO_CAPACITY: u8 = 0x20;
/// More bytes than any integer takes.
const INTEGER_BYTES: u8 = 10;

/// Looks at what a peer's encoder says: an entry has no place.
pub fn check_encoder(bytes: &[u8]) -> Result<(), H3ErrorCode> {
    if bytes.iter().all(|&byte| byte == NO_CAPACITY) {
        return Ok(());
    }
    Err(H3ErrorCode::ENCODER_STREAM_ERROR)
}

/// What a peer's decoder says: that it has dropped streams, and nothing else, for it has never heard of an entry.
#[derive(Debug, Default)]
pub struct QpackDecoderStream {
    /// How many bytes of an instruction have come, if another is to come.
    instruction_bytes: u8,
}

impl QpackDecoderStream {
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), H3ErrorCode> {
        for &byte in bytes {
            let goes_on = match self.instruction_bytes {
                0 if byte & 0xc0 != 0x40 => return Err(H3ErrorCode::DECODER_STREAM_ERROR),
                0 => byte & 0x3f == 0x3f,
                INTEGER_BYTES.. => return Err(H3ErrorCode::DECODER_STREAM_ERROR),
                1.. => byte & 0x80 != 0,
            };
            self.instruction_bytes = if goes_on { self.instruction_bytes + 1 } else { 0 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoder_stream_allows_only_zero_capacity() {
        assert_eq!(check_encoder(&[]), Ok(()));
        assert_eq!(check_encoder(&[0x20, 0x20]), Ok(()));
        for byte in [0x00, 0x21, 0x3f, 0x40, 0x80, 0xc0] {
            assert_eq!(check_encoder(&[0x20, byte]), Err(H3ErrorCode::ENCODER_STREAM_ERROR));
        }
    }

    #[test]
    fn decoder_stream_allows_only_stream_cancellations() {
        let check = |pieces: &[&[u8]]| {
            let mut stream = QpackDecoderStream::default();
            pieces.iter().try_for_each(|piece| stream.check(piece))
        };
        assert_eq!(check(&[&[0x44, 0x7f, 0x00, 0x48]]), Ok(()));
        assert_eq!(check(&[&[0x7f], &[0x80], &[0x01, 0x40]]), Ok(()));
        let bad: &[&[&[u8]]] = &[&[&[0x80]], &[&[0x44, 0x01]], &[&[0x00]], &[&[0x7f], &[0x80; 10]]];
        for pieces in bad {
            assert_eq!(check(pieces), Err(H3ErrorCode::DECODER_STREAM_ERROR), "{pieces:x?}");
        }
    }
}
