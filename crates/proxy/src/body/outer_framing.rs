//! Framing of bodies that a `BodyPump` changes on their way: their length is not known before their end.

use codec::h1::write;

use super::SinkFraming;

/// Framing of a body that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OuterFraming {
    /// No framing within the body.
    Raw,
    Chunked,
    /// The stream is told where the body ends.
    Stream,
}

impl OuterFraming {
    /// Returns the framing of a body that would be written as `framing` if it were not changed.
    pub(super) fn of(framing: SinkFraming) -> Self {
        match framing {
            SinkFraming::Chunked => Self::Chunked,
            SinkFraming::Stream => Self::Stream,
            SinkFraming::Raw
            | SinkFraming::GrpcWeb(_)
            | SinkFraming::Encoded(_)
            | SinkFraming::Discard => Self::Raw,
        }
    }
}

/// Appends changed bytes. They may be empty: an empty chunk would end the body.
pub(super) fn append_delimited(data: &[u8], framing: OuterFraming, out: &mut Vec<u8>) {
    match framing {
        OuterFraming::Chunked if data.is_empty() => {}
        OuterFraming::Chunked => append_chunk(data, out),
        OuterFraming::Raw | OuterFraming::Stream => out.extend_from_slice(data),
    }
}

pub(super) fn append_chunk(data: &[u8], out: &mut Vec<u8>) {
    write::chunk_header(data.len(), out);
    out.extend_from_slice(data);
    write::chunk_end(out);
}
