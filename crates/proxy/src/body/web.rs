//! gRPC-Web bodies: the bytes that a `BodyPump` reads are translated before they are written.

use codec::grpc::web::{GrpcWebTranslator, InvalidBase64};
use codec::h1::write;
use codec::head::FieldSection;

use super::outer_framing::{OuterFraming, append_delimited};
use super::{BodyError, BodyPump, SinkFraming};

impl BodyPump {
    /// Translates the body on its way; none of it has been read yet.
    pub(crate) fn translate(&mut self, translator: GrpcWebTranslator) {
        self.translator = Some(Box::new(translator));
        self.sink_framing = SinkFraming::GrpcWeb(OuterFraming::of(self.sink_framing));
    }

    pub(super) fn append_translated(
        &mut self,
        data: &[u8],
        framing: OuterFraming,
    ) -> Result<(), BodyError> {
        if let Some(translator) = &mut self.translator {
            translator.translate(data).map_err(|InvalidBase64| BodyError::Untranslatable)?;
            append_delimited(&translator.out, framing, &mut self.out);
        }
        Ok(())
    }

    /// Ends the body: trailers become part of it, and nothing follows it.
    pub(super) fn finish_translation(&mut self, framing: OuterFraming) -> Result<(), BodyError> {
        if let Some(translator) = &mut self.translator {
            let trailers = self.trailers.as_deref();
            translator.finish(trailers).map_err(|InvalidBase64| BodyError::Untranslatable)?;
            append_delimited(&translator.out, framing, &mut self.out);
        }
        if framing == OuterFraming::Chunked {
            write::last_chunk(&FieldSection::new(), &mut self.out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use codec::head::BodyFraming;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::body::BodySource;
    use crate::body::tests::{pair, received};
    use crate::scratch::ScratchMemory;

    /// Returns the bytes that arrive if a body is read as `from` and written as `to`.
    fn translated(
        wire: &[u8],
        (from, to): (BodyFraming, BodyFraming),
        translator: GrpcWebTranslator,
    ) -> Result<Vec<u8>, BodyError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, mut source) = pair().await;
            let (mut receiver, mut sink) = pair().await;
            sender.write_all(wire).await.unwrap();
            drop(sender);
            let mut pump = BodyPump::new();
            pump.start(from, to);
            pump.translate(translator);
            let mut source = BodySource { stream: &mut source, buffer: &mut None };
            let scratch = ScratchMemory::default();
            poll_fn(|cx| pump.poll(cx, &mut source, &mut sink, &scratch)).await?;
            drop(sink);
            let mut all = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut receiver, &mut all).await.unwrap();
            Ok(received(&all, to))
        })
    }

    #[test]
    fn grpc_web_response_ends_with_a_trailers_frame() {
        for framing in [BodyFraming::Chunked, BodyFraming::UntilClose] {
            let arrived = translated(
                b"message",
                (BodyFraming::UntilClose, framing),
                GrpcWebTranslator::of_response(false),
            );
            assert_eq!(arrived.unwrap(), b"message\x80\0\0\0\0");
        }
    }

    #[test]
    fn grpc_web_text_is_decoded_in_any_framing() {
        let text = b"bWVzc2FnZQ==bQ==";
        let chunked = b"5\r\nbWVzc\r\nb\r\n2FnZQ==bQ==\r\n0\r\n\r\n";
        let length = BodyFraming::Length(text.len() as u64);
        for (wire, framing) in [(&text[..], length), (chunked, BodyFraming::Chunked)] {
            let arrived = translated(
                wire,
                (framing, BodyFraming::UntilClose),
                GrpcWebTranslator::from_text(),
            );
            assert_eq!(arrived.unwrap(), b"messagem");
        }
    }

    #[test]
    fn invalid_grpc_web_text_stops_the_body() {
        for wire in ["bWV", "!"] {
            let framings = (BodyFraming::Length(wire.len() as u64), BodyFraming::UntilClose);
            let stopped = translated(wire.as_bytes(), framings, GrpcWebTranslator::from_text());
            assert_eq!(stopped, Err(BodyError::Untranslatable));
        }
    }
}
