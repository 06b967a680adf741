//! gRPC-Web bodies: translator between the encoding that browsers use and gRPC.
//!
//! Messages are framed as in gRPC. Scripts cannot read trailers, so gRPC-Web sends them as a last frame. In the text
//! dialect everything is Base64, in pieces each of which may end with padding.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are bounded by lengths that the lines before have set"
)]

use data_encoding::BASE64;

use crate::head::FieldSection;

/// Flag of the frame that carries the trailers.
const TRAILERS: u8 = 0x80;
/// Number of Base64 characters that are decoded together.
const GROUP: usize = 4;

/// The body is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBase64;

/// Translator of one body, piece by piece.
#[derive(Clone, Debug)]
pub struct GrpcWebTranslator {
    direction: TranslationDirection,
    /// Translation of the last piece.
    pub out: Vec<u8>,
}

#[derive(Clone, Debug)]
enum TranslationDirection {
    /// From text; holds the characters of an incomplete group.
    FromText(Vec<u8>),
    ToBinary,
    ToText,
}

impl GrpcWebTranslator {
    /// Creates a translator for a request in the text dialect.
    pub fn from_text() -> Self {
        Self { direction: TranslationDirection::FromText(Vec::new()), out: Vec::new() }
    }

    /// Creates a translator for a response to a client of the binary or the text dialect.
    pub fn of_response(as_text: bool) -> Self {
        Self {
            direction: if as_text {
                TranslationDirection::ToText
            } else {
                TranslationDirection::ToBinary
            },
            out: Vec::new(),
        }
    }

    /// Translates a piece into `out`.
    pub fn translate(&mut self, piece: &[u8]) -> Result<(), InvalidBase64> {
        self.out.clear();
        match &mut self.direction {
            TranslationDirection::ToBinary => self.out.extend_from_slice(piece),
            TranslationDirection::ToText => encode(piece, &mut self.out),
            TranslationDirection::FromText(letters) => {
                letters.extend_from_slice(piece);
                let whole = letters.len() / GROUP * GROUP;
                decode(&letters[..whole], &mut self.out)?;
                letters.drain(..whole);
            }
        }
        Ok(())
    }

    /// Writes to `out` the bytes after the last piece.
    pub fn finish(&mut self, trailers: Option<&FieldSection>) -> Result<(), InvalidBase64> {
        self.out.clear();
        match &self.direction {
            TranslationDirection::FromText(letters) if letters.is_empty() => {}
            TranslationDirection::FromText(_) => return Err(InvalidBase64),
            TranslationDirection::ToBinary => trailer_frame(trailers, &mut self.out),
            TranslationDirection::ToText => {
                let mut frame = Vec::new();
                trailer_frame(trailers, &mut frame);
                encode(&frame, &mut self.out);
            }
        }
        Ok(())
    }
}

/// Writes the trailer frame, with names in lower case as in HTTP/2.
fn trailer_frame(trailers: Option<&FieldSection>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[TRAILERS, 0, 0, 0, 0]);
    for (_, name, value) in trailers.iter().flat_map(|fields| fields.iter()) {
        out.extend(name.iter().map(u8::to_ascii_lowercase));
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    // Heads are bounded far below 4 GiB.
    let length = (out.len() - start - 5) as u32;
    out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
}

/// Encodes with padding, so that no bytes have to wait for the next piece.
fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + BASE64.encode_len(bytes.len()), 0);
    BASE64.encode_mut(bytes, &mut out[start..]);
}

/// Decodes complete groups. Padding may occur in the middle, at the end of a piece of the sender.
fn decode(letters: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidBase64> {
    let start = out.len();
    let most = BASE64.decode_len(letters.len()).map_err(|_partial| InvalidBase64)?;
    out.resize(start + most, 0);
    let length = BASE64.decode_mut(letters, &mut out[start..]).map_err(|_partial| InvalidBase64)?;
    out.truncate(start + length);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded<'p>(pieces: impl Iterator<Item = &'p [u8]>) -> Result<Vec<u8>, InvalidBase64> {
        let (mut translator, mut all) = (GrpcWebTranslator::from_text(), Vec::new());
        for piece in pieces {
            translator.translate(piece)?;
            all.extend_from_slice(&translator.out);
        }
        translator.finish(None)?;
        Ok(all)
    }

    fn encoded(bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        encode(bytes, &mut text);
        text
    }

    #[test]
    fn base64_matches_the_rfc_4648_examples() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encoded(bytes.as_bytes()), text.as_bytes());
            assert_eq!(decoded([text.as_bytes()].into_iter()), Ok(bytes.as_bytes().to_vec()));
        }
    }

    #[test]
    fn invalid_base64_is_rejected() {
        for text in ["Zg=", "Zg", "Z", "Z===", "====", "Zm9v!mFy", "Z=9v", "Zm9v=Zm9", "Zm\u{e4}v"]
        {
            assert_eq!(decoded([text.as_bytes()].into_iter()), Err(InvalidBase64), "{text}");
        }
    }

    #[test]
    fn trailers_are_the_last_frame() {
        let mut trailers = FieldSection::new();
        trailers.append("Grpc-Status", "0");
        trailers.append("x", "");
        let mut translator = GrpcWebTranslator::of_response(false);
        translator.translate(b"message").unwrap();
        assert_eq!(translator.out, b"message");
        translator.finish(Some(&trailers)).unwrap();
        assert_eq!(translator.out, b"\x80\0\0\0\x15grpc-status: 0\r\nx: \r\n");
        let mut text = GrpcWebTranslator::of_response(true);
        text.finish(Some(&trailers)).unwrap();
        assert_eq!(decoded([text.out.as_slice()].into_iter()), Ok(translator.out));
        let mut none = GrpcWebTranslator::of_response(false);
        none.finish(None).unwrap();
        assert_eq!(none.out, b"\x80\0\0\0\0");
    }

    proptest! {
        #[test]
        fn base64_text_is_decoded_across_chunk_boundaries(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
            cut in 1..7usize,
        ) {
            // Each piece of the sender has its own padding, and the received pieces have other boundaries.
            let text: Vec<u8> = pieces.iter().flat_map(|piece| encoded(piece)).collect();
            prop_assert_eq!(decoded(text.chunks(cut)), Ok(pieces.concat()));
        }

        #[test]
        fn arbitrary_bytes_never_panic_the_base64_decoder(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _either = decoded(bytes.chunks(3));
        }
    }
}
