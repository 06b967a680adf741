//! Encoders of compressed bodies, and the limit of their number.
//!
//! Each has a small window, so that a response needs less than [`encoder::MEMORY_BYTES`] while it is encoded, whatever its size.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::GzEncoder;
use gateway::snapshot::ContentCoding;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

/// Memory of one encoder at most, in bytes: 2.5 MiB. That of brotli needs the most.
pub(crate) const MEMORY_BYTES: usize = 5 << 19;
/// Maximum number of responses that a worker encodes at a time.
const MOST_ENCODERS: u32 = 64;
/// Bytes that are encoded before the other tasks of the worker have a turn: about a millisecond of work.
const TURN_BYTES: usize = 64 * 1024;

/// Level of gzip: that of nginx is 1, of `gzip` 6. From 4 on a level costs much and gains little.
const GZIP_LEVEL: u32 = 4;
/// Quality of brotli. From 4 on it splits blocks, which needs more than twice the memory; the highest ones are for files
/// that are compressed once.
const BROTLI_QUALITY: i32 = 3;
/// Window of brotli and zstd, as a power of two: 128 KiB, four times that of gzip.
const WINDOW_BITS: u8 = 17;
/// Level of zstd: its default is 3.
const ZSTD_LEVEL: i32 = 3;
/// Tables of zstd, as powers of two of 4-byte entries: 256 KiB together.
const ZSTD_TABLE_BITS: u32 = 15;

/// Failure of an encoder. None is known to occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodingError;

/// Limit of the responses that a worker encodes at a time.
#[derive(Default)]
pub(crate) struct EncoderLimiter(Rc<Cell<u32>>);

/// A place among the encoders of a worker, until it is dropped.
pub(crate) struct EncoderPlace(Rc<Cell<u32>>);

impl EncoderLimiter {
    /// Takes a place, if there is one.
    pub(crate) fn admit(&self) -> Option<EncoderPlace> {
        let count = self.0.get();
        (count < MOST_ENCODERS).then(|| {
            self.0.set(count + 1);
            EncoderPlace(Rc::clone(&self.0))
        })
    }
}

impl Drop for EncoderPlace {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Encoder of one body.
pub(crate) struct BodyEncoder {
    state: EncoderState,
    /// True if the encoder holds bytes back.
    is_dirty: bool,
    /// Bytes since the last turn of the other tasks.
    turn: usize,
    _place: EncoderPlace,
}

enum EncoderState {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(ZstdEncoder),
}

impl BodyEncoder {
    /// Creates an encoder. `None`: there is no memory for it.
    pub(crate) fn new(coding: ContentCoding, place: EncoderPlace) -> Option<Self> {
        let state = match coding {
            ContentCoding::Gzip => {
                EncoderState::Gzip(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL)))
            }
            ContentCoding::Brotli => {
                let parameters = BrotliEncoderParams {
                    quality: BROTLI_QUALITY,
                    lgwin: i32::from(WINDOW_BITS),
                    ..BrotliEncoderParams::default()
                };
                let encoder = CompressorWriter::with_params(Vec::new(), 4096, &parameters);
                EncoderState::Brotli(Box::new(encoder))
            }
            ContentCoding::Zstd => EncoderState::Zstd(ZstdEncoder::new()?),
        };
        Some(Self { state, is_dirty: true, turn: 0, _place: place })
    }

    /// Encodes bytes of the body.
    pub(crate) fn encode(&mut self, data: &[u8]) -> Result<(), EncodingError> {
        self.turn += data.len();
        self.is_dirty = true;
        match &mut self.state {
            EncoderState::Gzip(encoder) => encoder.write_all(data).map_err(fault),
            EncoderState::Brotli(encoder) => encoder.write_all(data).map_err(fault),
            EncoderState::Zstd(encoder) => encoder.encode(data),
        }
    }

    /// Outputs all that has been encoded so far, if the decoder could not decode it yet.
    pub(crate) fn flush(&mut self) -> Result<(), EncodingError> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        match &mut self.state {
            EncoderState::Gzip(encoder) => encoder.flush().map_err(fault),
            EncoderState::Brotli(encoder) => encoder.flush().map_err(fault),
            EncoderState::Zstd(encoder) => encoder.end(CCtx::flush_stream),
        }
    }

    /// Ends the body.
    pub(crate) fn finish(&mut self) -> Result<(), EncodingError> {
        match &mut self.state {
            EncoderState::Gzip(encoder) => encoder.try_finish().map_err(fault),
            EncoderState::Brotli(encoder) => {
                let empty = CompressorWriter::new(Vec::new(), 1, 0, 10);
                let out = std::mem::replace(&mut **encoder, empty).into_inner();
                *encoder.get_mut() = out;
                Ok(())
            }
            EncoderState::Zstd(encoder) => encoder.end(CCtx::end_stream),
        }
    }

    /// Returns the encoded bytes since the output was cleared.
    pub(crate) fn output(&self) -> &[u8] {
        match &self.state {
            EncoderState::Gzip(encoder) => encoder.get_ref(),
            EncoderState::Brotli(encoder) => encoder.get_ref(),
            EncoderState::Zstd(encoder) => &encoder.out,
        }
    }

    /// Forgets the encoded bytes.
    pub(crate) fn clear_output(&mut self) {
        match &mut self.state {
            EncoderState::Gzip(encoder) => encoder.get_mut().clear(),
            EncoderState::Brotli(encoder) => encoder.get_mut().clear(),
            EncoderState::Zstd(encoder) => encoder.out.clear(),
        }
    }

    /// Returns true if the other tasks of the worker should have a turn. Another one begins then.
    pub(crate) fn ends_turn(&mut self) -> bool {
        let is_over = self.turn >= TURN_BYTES;
        if is_over {
            self.turn = 0;
        }
        is_over
    }
}

/// Encoders write into memory, which does not fail.
fn fault(_: std::io::Error) -> EncodingError {
    EncodingError
}

/// Encoder of zstd, and its output.
struct ZstdEncoder {
    context: CCtx<'static>,
    out: Vec<u8>,
}

impl ZstdEncoder {
    /// Space for one call of the library.
    const SPACE: usize = 16 * 1024;

    fn new() -> Option<Self> {
        let mut context = CCtx::try_create()?;
        for parameter in [
            CParameter::CompressionLevel(ZSTD_LEVEL),
            CParameter::WindowLog(u32::from(WINDOW_BITS)),
            CParameter::HashLog(ZSTD_TABLE_BITS),
            CParameter::ChainLog(ZSTD_TABLE_BITS),
        ] {
            context.set_parameter(parameter).ok()?;
        }
        Some(Self { context, out: Vec::new() })
    }

    fn encode(&mut self, data: &[u8]) -> Result<(), EncodingError> {
        let mut input = InBuffer::around(data);
        while input.pos() < data.len() {
            self.call(|context, space| context.compress_stream(space, &mut input))?;
        }
        Ok(())
    }

    /// Calls a function that ends a block or the whole body until nothing is left to be output.
    fn end(
        &mut self,
        step: impl Fn(&mut CCtx<'static>, &mut OutBuffer<'_, [u8]>) -> Result<usize, usize>,
    ) -> Result<(), EncodingError> {
        while self.call(&step)? > 0 {}
        Ok(())
    }

    fn call(
        &mut self,
        step: impl FnOnce(&mut CCtx<'static>, &mut OutBuffer<'_, [u8]>) -> Result<usize, usize>,
    ) -> Result<usize, EncodingError> {
        let start = self.out.len();
        self.out.resize(start + Self::SPACE, 0);
        let mut space = OutBuffer::around(&mut self.out[start..]);
        let result = step(&mut self.context, &mut space);
        let written = space.pos();
        self.out.truncate(start + written);
        result.map_err(|_code| EncodingError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_of_a_worker_are_limited() {
        let limiter = EncoderLimiter::default();
        let mut places: Vec<_> = (0..MOST_ENCODERS).map(|_| limiter.admit().unwrap()).collect();
        assert!(limiter.admit().is_none());
        places.pop();
        assert!(limiter.admit().is_some());
    }

    #[test]
    fn zstd_keeps_to_its_memory() {
        let mut encoder = ZstdEncoder::new().unwrap();
        let body: Vec<u8> =
            (0..1_u32 << 20).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 27) as u8).collect();
        encoder.encode(&body).unwrap();
        encoder.end(CCtx::end_stream).unwrap();
        assert!(encoder.context.sizeof() < MEMORY_BYTES, "{}", encoder.context.sizeof());
    }

    #[test]
    fn nothing_is_output_if_there_is_nothing_to_flush() {
        for coding in ContentCoding::ALL {
            let place = EncoderLimiter::default().admit().unwrap();
            let mut encoder = BodyEncoder::new(coding, place).unwrap();
            encoder.encode(b"data: 1\n\n").unwrap();
            encoder.flush().unwrap();
            assert!(!encoder.output().is_empty(), "{coding:?}");
            encoder.clear_output();
            encoder.flush().unwrap();
            assert!(encoder.output().is_empty(), "{coding:?}");
        }
    }

    #[test]
    fn other_tasks_have_a_turn_after_a_bounded_number_of_bytes() {
        let place = EncoderLimiter::default().admit().unwrap();
        let mut encoder = BodyEncoder::new(ContentCoding::Zstd, place).unwrap();
        encoder.encode(&[0; TURN_BYTES - 1]).unwrap();
        assert!(!encoder.ends_turn());
        encoder.encode(&[0]).unwrap();
        assert!(encoder.ends_turn());
        assert!(!encoder.ends_turn());
    }
}
