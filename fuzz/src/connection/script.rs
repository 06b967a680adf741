//! Scripts: what a client does on one connection, and how the endpoint answers its requests.
//!
//! A script is text, so that a corpus can be read and a dictionary helps: steps that are separated by `\n@`, each with a
//! letter for its kind and its bytes.

/// Most steps of one script.
const MAX_STEPS: usize = 48;
/// What begins each further step.
const SEPARATOR: &[u8] = b"\n@";

/// A parsed script.
pub(super) struct Script {
    pub(super) client: Vec<ClientStep>,
    /// Answers to requests, in the order in which the requests arrive at the endpoint.
    pub(super) answers: Vec<Answer>,
    /// `t`: the client is a trusted proxy.
    pub(super) is_trusted: bool,
}

/// A step of the client. After each the worker does all that it can do, so that steps are the pieces that it reads.
pub(super) enum ClientStep {
    /// `c`: sends these bytes. `f`: sends a frame of HTTP/2 with the type, the flags and the stream in the first bytes.
    Send(Vec<u8>),
    /// `h`: closes the sending side.
    HalfClose,
    /// `r`: resets the connection.
    Reset,
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

impl Script {
    /// Parses a script; steps of an unknown kind do nothing.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut script = Self { client: Vec::new(), answers: Vec::new(), is_trusted: false };
        for step in split(bytes).take(MAX_STEPS) {
            let Some((kind, bytes)) = step.split_first() else { continue };
            let answer = |is_early, closes| Answer { bytes: bytes.to_vec(), is_early, closes };
            match kind {
                b'c' => script.client.push(ClientStep::Send(bytes.to_vec())),
                b'f' => script.client.extend(frame(bytes).map(ClientStep::Send)),
                b't' => script.is_trusted = true,
                b'h' => script.client.push(ClientStep::HalfClose),
                b'r' => script.client.push(ClientStep::Reset),
                b'e' => script.answers.push(answer(false, false)),
                b'p' => script.answers.push(answer(true, false)),
                b'x' => script.answers.push(answer(false, true)),
                _ => {}
            }
        }
        script
    }

    /// Returns all bytes that the client sends.
    pub(super) fn client_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for step in &self.client {
            match step {
                ClientStep::Send(bytes) => all.extend_from_slice(bytes),
                ClientStep::HalfClose | ClientStep::Reset => break,
            }
        }
        all
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

/// Returns a frame with the right length; `None` if its header is incomplete.
fn frame(bytes: &[u8]) -> Option<Vec<u8>> {
    let ([kind, flags, stream], payload) = bytes.split_first_chunk()?;
    let [.., high, middle, low] = u32::try_from(payload.len()).ok()?.to_be_bytes();
    Some([&[high, middle, low, *kind, *flags, 0, 0, 0, *stream], payload].concat())
}
