//! Compressed bodies: the bytes that a `BodyPump` reads are encoded before they are written.

use std::task::Context;

use super::outer_framing::{OuterFraming, append_delimited};
use super::{BodyError, BodyPump, SinkFraming};
use crate::compression::encoder::{BodyEncoder, EncodingError};

impl BodyPump {
    /// Encodes the body on its way; none of it has been read yet.
    pub(crate) fn encode(&mut self, encoder: Box<BodyEncoder>) {
        self.encoder = Some(encoder);
        self.sink_framing = SinkFraming::Encoded(OuterFraming::of(self.sink_framing));
    }

    pub(super) fn append_encoded(
        &mut self,
        data: &[u8],
        framing: OuterFraming,
    ) -> Result<(), BodyError> {
        self.encode_by(framing, |encoder| encoder.encode(data))
    }

    /// Writes out what the encoder holds back, before the source is awaited: a client gets at once what has arrived.
    /// Returns true if the body is encoded.
    pub(super) fn flush_encoder(&mut self) -> Result<bool, BodyError> {
        let SinkFraming::Encoded(framing) = self.sink_framing else { return Ok(false) };
        self.encode_by(framing, BodyEncoder::flush)?;
        Ok(true)
    }

    /// Ends the encoded body. What follows it, such as trailers, is not encoded.
    pub(super) fn finish_encoding(&mut self, framing: OuterFraming) -> Result<(), BodyError> {
        self.encode_by(framing, BodyEncoder::finish)?;
        // A slow client does not hold the memory of the encoder.
        self.encoder = None;
        self.sink_framing = match framing {
            OuterFraming::Raw => SinkFraming::Raw,
            OuterFraming::Chunked => SinkFraming::Chunked,
            OuterFraming::Stream => SinkFraming::Stream,
        };
        Ok(())
    }

    fn encode_by(
        &mut self,
        framing: OuterFraming,
        step: impl FnOnce(&mut BodyEncoder) -> Result<(), EncodingError>,
    ) -> Result<(), BodyError> {
        if let Some(encoder) = &mut self.encoder {
            step(encoder).map_err(|EncodingError| BodyError::Untranslatable)?;
            append_delimited(encoder.output(), framing, &mut self.out);
            encoder.clear_output();
        }
        Ok(())
    }

    /// True if the encoder has worked for so long that the other tasks of the worker come first. This task is woken then.
    pub(super) fn yields_encoder(&mut self, cx: &Context<'_>) -> bool {
        let ends_turn = self.encoder.as_mut().is_some_and(|encoder| encoder.ends_turn());
        if ends_turn {
            cx.waker().wake_by_ref();
        }
        ends_turn
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read;

    use codec::head::BodyFraming;
    use gateway::snapshot::ContentCoding;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::body::tests::{pair, received};
    use crate::body::{BodyPump, BodySource};
    use crate::compression::encoder::{BodyEncoder, EncoderLimiter};
    use crate::scratch::ScratchMemory;

    /// Function that takes the next encoded bytes, and returns all that could be decoded so far.
    type StreamDecoder = Box<dyn FnMut(&[u8]) -> Vec<u8>>;

    fn decoded(coding: ContentCoding, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            ContentCoding::Gzip => {
                flate2::read::GzDecoder::new(data).read_to_end(&mut out).unwrap();
            }
            ContentCoding::Brotli => {
                brotli::Decompressor::new(data, 4096).read_to_end(&mut out).unwrap();
            }
            ContentCoding::Zstd => {
                out = Vec::with_capacity(4 << 20);
                zstd_safe::decompress(&mut out, data).unwrap();
            }
        }
        out
    }

    fn text(bytes: usize) -> Vec<u8> {
        let words = ["request", "balance", "endpoint", "slot", "queue", "picker", "wake"];
        let mut state = 7_usize;
        let mut text = Vec::new();
        while text.len() < bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.extend_from_slice(words[(state >> 33) % words.len()].as_bytes());
            text.push(b' ');
        }
        text.truncate(bytes);
        text
    }

    fn pump(coding: ContentCoding, from: BodyFraming, to: BodyFraming) -> BodyPump {
        let mut pump = BodyPump::new();
        pump.start(from, to);
        let place = EncoderLimiter::default().admit().unwrap();
        pump.encode(Box::new(BodyEncoder::new(coding, place).unwrap()));
        pump
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn encoded_body_is_decoded_to_the_original() {
        run(async {
            for coding in ContentCoding::ALL {
                for (bytes, to) in [
                    (1, BodyFraming::Chunked),
                    (70_000, BodyFraming::UntilClose),
                    (3 << 20, BodyFraming::Chunked),
                ] {
                    let body = text(bytes);
                    let (mut sender, mut source) = pair().await;
                    let (mut receiver, mut sink) = pair().await;
                    let mut pump = pump(coding, BodyFraming::Length(bytes as u64), to);
                    let scratch = ScratchMemory::default();
                    let transfer = async {
                        let mut source = BodySource { stream: &mut source, buffer: &mut None };
                        poll_fn(|cx| pump.poll(cx, &mut source, &mut sink, &scratch))
                            .await
                            .unwrap();
                        drop(sink);
                    };
                    let mut all = Vec::new();
                    let (sent, (), read) = tokio::join!(
                        sender.write_all(&body),
                        transfer,
                        receiver.read_to_end(&mut all)
                    );
                    sent.unwrap();
                    read.unwrap();
                    let encoded = received(&all, to);
                    assert!(decoded(coding, &encoded) == body, "{coding:?} {bytes}");
                    assert!(
                        bytes == 1 || encoded.len() < bytes / 3,
                        "{coding:?} {}",
                        encoded.len()
                    );
                    assert!(pump.is_done() && pump.encoder.is_none());
                }
            }
        });
    }

    /// A client of an event stream gets each event though the stream does not end.
    #[test]
    fn what_has_arrived_is_sent_before_more_is_awaited() {
        run(async {
            for coding in ContentCoding::ALL {
                let (mut sender, mut source) = pair().await;
                let (mut receiver, mut sink) = pair().await;
                let mut pump = pump(coding, BodyFraming::UntilClose, BodyFraming::UntilClose);
                let scratch = ScratchMemory::default();
                let mut buffer = None;
                let mut source = BodySource { stream: &mut source, buffer: &mut buffer };
                let mut transfer =
                    Box::pin(poll_fn(|cx| pump.poll(cx, &mut source, &mut sink, &scratch)));
                let mut decoder: StreamDecoder = match coding {
                    ContentCoding::Gzip => {
                        let mut decoder = flate2::write::GzDecoder::new(Vec::new());
                        Box::new(move |data| {
                            use std::io::Write;
                            decoder.write_all(data).unwrap();
                            decoder.flush().unwrap();
                            decoder.get_ref().clone()
                        })
                    }
                    ContentCoding::Brotli => {
                        let mut decoder = brotli::DecompressorWriter::new(Vec::new(), 4096);
                        Box::new(move |data| {
                            use std::io::Write;
                            decoder.write_all(data).unwrap();
                            decoder.flush().unwrap();
                            decoder.get_ref().clone()
                        })
                    }
                    ContentCoding::Zstd => {
                        let (mut decoder, mut all) = (zstd_safe::DCtx::create(), Vec::new());
                        Box::new(move |data| {
                            let mut out = [0; 4096];
                            let mut input = zstd_safe::InBuffer::around(data);
                            while input.pos() < data.len() {
                                let mut space = zstd_safe::OutBuffer::around(&mut out[..]);
                                decoder.decompress_stream(&mut space, &mut input).unwrap();
                                all.extend_from_slice(space.as_slice());
                            }
                            all.clone()
                        })
                    }
                };
                let mut expected = Vec::new();
                for event in ["data: 1\n\n", "data: 2\n\n", "data: a longer one\n\n"] {
                    expected.extend_from_slice(event.as_bytes());
                    sender.write_all(event.as_bytes()).await.unwrap();
                    let mut arrived = Vec::new();
                    while arrived != expected {
                        let mut bytes = [0; 4096];
                        let count = tokio::select! {
                            biased;
                            _ = &mut transfer => panic!("the stream does not end"),
                            count = receiver.read(&mut bytes) => count.unwrap(),
                        };
                        arrived = decoder(&bytes[..count]);
                    }
                }
            }
        });
    }
}
