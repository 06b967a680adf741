//! Instructions on the QPACK encoder and decoder streams (RFC 9204 §4.3, §4.4). Without a dynamic table, hardly any is
//! allowed.

use super::super::H3ErrorCode;

/// Set Dynamic Table Capacity to 0, its only allowed value.
const NO_CAPACITY: u8 = 0x20;
/// Longest integer, in bytes.
const INTEGER_BYTES: u8 = 10;

/// Checks the instructions of the peer's encoder: any that needs a dynamic table is an error.
pub fn check_encoder(bytes: &[u8]) -> Result<(), H3ErrorCode> {
    if bytes.iter().all(|&byte| byte == NO_CAPACITY) {
        return Ok(());
    }
    Err(H3ErrorCode::ENCODER_STREAM_ERROR)
}

/// Parser of the peer's decoder stream. Only Stream Cancellation is allowed: the other instructions refer to entries of
/// the dynamic table, and there are none.
#[derive(Debug, Default)]
pub struct QpackDecoderStream {
    /// Bytes received of an incomplete instruction; 0 between instructions.
    instruction_bytes: u8,
}

impl QpackDecoderStream {
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), H3ErrorCode> {
        for &byte in bytes {
            let continues = match self.instruction_bytes {
                0 if byte & 0xc0 != 0x40 => return Err(H3ErrorCode::DECODER_STREAM_ERROR),
                0 => byte & 0x3f == 0x3f,
                INTEGER_BYTES.. => return Err(H3ErrorCode::DECODER_STREAM_ERROR),
                1.. => byte & 0x80 != 0,
            };
            self.instruction_bytes = if continues { self.instruction_bytes + 1 } else { 0 };
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
