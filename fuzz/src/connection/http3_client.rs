//! The client of one script over HTTP/3.

use std::cell::Cell;
use std::collections::BTreeMap;

use quinn_proto::{ClientConfig, Dir, StreamId, VarInt};

use super::fixture::Fixture;
use super::quic_client::{Delivery, QuicClient};
use super::script::Script;

/// Most requests of one step that cancels them.
const MAX_CANCELLED: u8 = 64;

/// A step of the client. The first byte of a step that needs a stream selects it: a digit a request stream, another byte
/// a unidirectional stream. A stream is opened when it is first used.
pub(super) enum Http3Step {
    /// `c`: sends these bytes. `f`: sends a frame with the type in the first byte.
    Send(StreamName, Vec<u8>),
    /// `h`: ends the stream.
    Finish(StreamName),
    /// `r`: resets the stream, with this code (RFC 9114 §8.1).
    Reset(StreamName, u8),
    /// `s`: asks the worker to stop sending, with this code.
    StopSending(StreamName, u8),
    /// `n`: sends these bytes on that many new request streams, and resets them.
    Cancel(u8, Vec<u8>),
    /// `w`: withholds datagrams until they are delivered.
    Withhold,
    /// `d`: delivers them: reversed (`r`), each twice (`2`), without the first (`l`) or in order.
    Deliver(Delivery),
    /// `j`: sends a datagram of these bytes.
    Datagram(Vec<u8>),
    /// `a`: changes the address.
    Migrate,
    /// `k`: updates the keys.
    UpdateKeys,
    /// `y`: reads no further.
    StopReading,
    /// `z`: the script begins before the end of the handshake, with early data if the client has a ticket.
    BeginEarly,
    /// `b`: closes the connection, for this reason.
    Close(Vec<u8>),
}

/// Name of a stream in a script.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamName(u8);

impl StreamName {
    fn dir(self) -> Dir {
        if self.0.is_ascii_digit() { Dir::Bi } else { Dir::Uni }
    }
}

impl Http3Step {
    pub(super) fn parse(kind: u8, bytes: &[u8]) -> Option<Self> {
        let first = bytes.split_first();
        let stream = || first.map(|(&name, rest)| (StreamName(name), rest));
        let code = |rest: &[u8]| rest.first().copied().unwrap_or_default();
        Some(match kind {
            b'c' => stream().map(|(name, rest)| Self::Send(name, rest.to_vec()))?,
            b'f' => stream().and_then(|(name, rest)| Some(Self::Send(name, frame(rest)?)))?,
            b'h' => Self::Finish(stream()?.0),
            b'r' => stream().map(|(name, rest)| Self::Reset(name, code(rest)))?,
            b's' => stream().map(|(name, rest)| Self::StopSending(name, code(rest)))?,
            b'n' => first.map(|(&count, rest)| Self::Cancel(count, rest.to_vec()))?,
            b'w' => Self::Withhold,
            b'd' => Self::Deliver(match bytes.first() {
                Some(b'r') => Delivery::Reversed,
                Some(b'2') => Delivery::Repeated,
                Some(b'l') => Delivery::FirstLost,
                _ => Delivery::InOrder,
            }),
            b'j' => Self::Datagram(bytes.to_vec()),
            b'a' => Self::Migrate,
            b'k' => Self::UpdateKeys,
            b'y' => Self::StopReading,
            b'z' => Self::BeginEarly,
            b'b' => Self::Close(bytes.to_vec()),
            _ => return None,
        })
    }
}

/// Returns a frame with the right length; `None` if it has no type.
fn frame(bytes: &[u8]) -> Option<Vec<u8>> {
    let (kind, payload) = bytes.split_first()?;
    // Two bytes are enough for any script (RFC 9000 §16).
    let length = u16::try_from(payload.len()).ok().filter(|&length| length < 0x4000)? | 0x4000;
    Some([&[kind & 0x3f], &length.to_be_bytes()[..], payload].concat())
}

/// The connection of one script.
struct Http3Client<'f> {
    fixture: &'f Fixture,
    quic: QuicClient,
    streams: BTreeMap<StreamName, StreamId>,
    is_trusted: bool,
    /// Number of request streams.
    requests: &'f Cell<usize>,
}

/// Does the client's steps and closes the connection. Counts the request streams in `requests`.
pub(super) async fn act(
    fixture: &Fixture,
    config: ClientConfig,
    script: &Script<Http3Step>,
    requests: &Cell<usize>,
) {
    let is_trusted = script.is_trusted;
    let quic = QuicClient::new(fixture, config, fixture.source(is_trusted));
    let streams = BTreeMap::new();
    let mut client = Http3Client { fixture, quic, streams, is_trusted, requests };
    if !script.client.iter().any(|step| matches!(step, Http3Step::BeginEarly)) {
        client.quic.exchange(&fixture.quiescence).await;
        assert!(!client.quic.connection.is_handshaking(), "the handshake is not complete");
        assert!(!client.quic.connection.is_closed(), "the worker refuses the connection");
    }
    for step in &script.client {
        client.act(step);
        client.quic.exchange(&fixture.quiescence).await;
    }
    client.quic.deliver(Delivery::InOrder);
    client.quic.close(b"");
    client.quic.exchange(&fixture.quiescence).await;
}

impl Http3Client<'_> {
    fn act(&mut self, step: &Http3Step) {
        match step {
            Http3Step::Send(name, bytes) => self.on_stream(*name, |quic, id| quic.write(id, bytes)),
            Http3Step::Finish(name) => self.on_stream(*name, |quic, id| {
                drop(quic.connection.send_stream(id).finish());
            }),
            Http3Step::Reset(name, code) => self.on_stream(*name, |quic, id| {
                drop(quic.connection.send_stream(id).reset(error_code(*code)));
            }),
            Http3Step::StopSending(name, code) if name.dir() == Dir::Bi => {
                self.on_stream(*name, |quic, id| {
                    drop(quic.connection.recv_stream(id).stop(error_code(*code)));
                });
            }
            Http3Step::StopSending(..) | Http3Step::BeginEarly => {}
            Http3Step::Cancel(count, bytes) => self.cancel(*count, bytes),
            Http3Step::Withhold => self.quic.withhold(),
            Http3Step::Deliver(delivery) => self.quic.deliver(*delivery),
            Http3Step::Datagram(bytes) => self.quic.send(bytes),
            Http3Step::Migrate => self.quic.migrate(self.fixture.source(self.is_trusted)),
            Http3Step::UpdateKeys => self.quic.connection.force_key_update(),
            Http3Step::StopReading => self.quic.reads = false,
            Http3Step::Close(reason) => self.quic.close(reason),
        }
    }

    /// Calls the function with a stream, if the server permits it.
    fn on_stream(&mut self, name: StreamName, act: impl FnOnce(&mut QuicClient, StreamId)) {
        let id = self.streams.get(&name).copied().or_else(|| self.open(name.dir()));
        let Some(id) = id else { return };
        self.streams.insert(name, id);
        act(&mut self.quic, id);
    }

    fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let id = self.quic.open(dir)?;
        self.requests.set(self.requests.get() + usize::from(dir == Dir::Bi));
        Some(id)
    }

    fn cancel(&mut self, count: u8, bytes: &[u8]) {
        for _ in 0..count.min(MAX_CANCELLED) {
            let Some(id) = self.open(Dir::Bi) else { return };
            self.quic.write(id, bytes);
            drop(self.quic.connection.send_stream(id).reset(error_code(0x0c)));
        }
    }
}

/// Returns one of HTTP/3's error codes, or one near them.
fn error_code(low: u8) -> VarInt {
    VarInt::from_u32(0x100 | u32::from(low))
}

/// A GET of `/` for the host `a` (RFC 9204, appendix A), whose stream ends.
const HONEST_REQUEST: &[u8] = b"\x01\x08\0\0\xd1\xd7\xc1\x50\x01a";
/// The end of the default response: DATA of two bytes.
const HONEST_END: &[u8] = b"\0\x02ok";

/// Sends a request on a connection of its own, and requires the endpoint's response.
pub(super) async fn request(fixture: &Fixture, config: ClientConfig) {
    let mut quic = QuicClient::new(fixture, config, fixture.source(false));
    quic.exchange(&fixture.quiescence).await;
    let id = quic.open(Dir::Bi).expect("the worker permits a request");
    quic.write(id, HONEST_REQUEST);
    quic.connection.send_stream(id).finish().expect("the stream is open");
    quic.exchange(&fixture.quiescence).await;
    let response = &quic.received[&id];
    assert!(response.ends_with(HONEST_END), "an honest request is answered with {response:?}");
    quic.close(b"");
    quic.exchange(&fixture.quiescence).await;
}
