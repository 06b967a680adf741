//! Bodies of gRPC-Web: what a [`Pump`] reads is translated before it is written.

use crate::grpc::web::{NotBase64, Translation};
use crate::h1::write;
use crate::head::FieldSection;

use super::{Pump, Stop, Writing, append_chunk};

/// How a body that is translated is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delimiting {
    /// By nothing in it.
    Raw,
    Chunked,
    /// The stream is told where it ends.
    Stream,
}

impl Pump {
    /// The body is translated on its way; nothing of it has been read yet.
    pub(crate) fn translate(&mut self, translation: Translation) {
        self.translation = Some(Box::new(translation));
        self.writing = Writing::Web(match self.writing {
            Writing::Chunked => Delimiting::Chunked,
            Writing::Stream => Delimiting::Stream,
            Writing::Raw | Writing::Web(_) | Writing::Discard => Delimiting::Raw,
        });
    }

    pub(super) fn append_translated(
        &mut self,
        data: &[u8],
        delimiting: Delimiting,
    ) -> Result<(), Stop> {
        if let Some(translation) = &mut self.translation {
            translation.translate(data).map_err(|NotBase64| Stop::Untranslatable)?;
            append_delimited(&translation.out, delimiting, &mut self.out);
        }
        Ok(())
    }

    /// Trailers become part of the body; nothing comes after it.
    pub(super) fn finish_translation(&mut self, delimiting: Delimiting) -> Result<(), Stop> {
        if let Some(translation) = &mut self.translation {
            let trailers = self.trailers.as_deref();
            translation.finish(trailers).map_err(|NotBase64| Stop::Untranslatable)?;
            append_delimited(&translation.out, delimiting, &mut self.out);
        }
        if delimiting == Delimiting::Chunked {
            write::last_chunk(&FieldSection::new(), &mut self.out);
        }
        Ok(())
    }
}

/// What has been translated may be nothing: an empty chunk would be the last.
fn append_delimited(data: &[u8], delimiting: Delimiting, out: &mut Vec<u8>) {
    match delimiting {
        Delimiting::Chunked if data.is_empty() => {}
        Delimiting::Chunked => append_chunk(data, out),
        Delimiting::Raw | Delimiting::Stream => out.extend_from_slice(data),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::body::Source;
    use crate::body::tests::{pair, received};
    use crate::head::BodyFraming;
    use crate::scratch::Scratch;

    /// What arrives of a body that is read as `from` and written as `to`.
    fn translated(
        wire: &[u8],
        (from, to): (BodyFraming, BodyFraming),
        translation: Translation,
    ) -> Result<Vec<u8>, Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, mut source) = pair().await;
            let (mut receiver, mut sink) = pair().await;
            sender.write_all(wire).await.unwrap();
            drop(sender);
            let mut pump = Pump::new();
            pump.start(from, to);
            pump.translate(translation);
            let mut source = Source { stream: &mut source, buffer: &mut None };
            let scratch = Scratch::default();
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
                Translation::of_response(false),
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
            let arrived =
                translated(wire, (framing, BodyFraming::UntilClose), Translation::from_text());
            assert_eq!(arrived.unwrap(), b"messagem");
        }
    }

    #[test]
    fn invalid_grpc_web_text_stops_the_body() {
        for wire in ["bWV", "!"] {
            let framings = (BodyFraming::Length(wire.len() as u64), BodyFraming::UntilClose);
            let stopped = translated(wire.as_bytes(), framings, Translation::from_text());
            assert_eq!(stopped, Err(Stop::Untranslatable));
        }
    }
}
