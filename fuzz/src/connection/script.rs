//! Scripts: what a client does on one connection, and how the endpoint answers its requests.
//!
//! A script is text, so that a corpus can be read and a dictionary helps: steps that are separated by `\n@`, each with a
//! letter for its kind and its bytes.

/// Most steps of one script.
const MAX_STEPS: usize = 48;
/// What begins each further step.
const SEPARATOR: &[u8] = b"\n@";

/// A parsed script, with steps of a client over TCP or over QUIC.
pub(super) struct Script<S> {
    pub(super) client: Vec<S>,
    /// Answers to requests, in the order in which the requests arrive at the endpoint.
    pub(super) answers: Vec<Answer>,
    /// `t`: the client is a trusted proxy.
    pub(super) is_trusted: bool,
}

/// An answer of the endpoint.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    /// `p`: the endpoint answers when it has the head of the request.
    pub(super) is_early: bool,
    /// `x`: the endpoint closes its connection after this answer.
    pub(super) closes: bool,
}

impl<S> Script<S> {
    /// Parses a script. `step` parses a step of the client from its kind and its bytes; steps of an unknown kind do
    /// nothing.
    pub(super) fn parse(bytes: &[u8], step: impl Fn(u8, &[u8]) -> Option<S>) -> Self {
        let mut script = Self { client: Vec::new(), answers: Vec::new(), is_trusted: false };
        for text in split(bytes).take(MAX_STEPS) {
            let Some((&kind, bytes)) = text.split_first() else { continue };
            let answer = |is_early, closes| Answer { bytes: bytes.to_vec(), is_early, closes };
            match kind {
                b't' => script.is_trusted = true,
                b'e' => script.answers.push(answer(false, false)),
                b'p' => script.answers.push(answer(true, false)),
                b'x' => script.answers.push(answer(false, true)),
                _ => script.client.extend(step(kind, bytes)),
            }
        }
        script
    }
}

/// Splits at separators.
fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let all = rest?;
        let end = all.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        rest = end.map(|end| &all[end + SEPARATOR.len()..]);
        Some(&all[..end.unwrap_or(all.len())])
    })
}
