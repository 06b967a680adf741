//! Parses the ClientHello, before a configuration is selected for the client.

use gateway::matching::OwnedHostName;
use rustls::Error;
use rustls::server::Acceptor;

/// Size limit of a ClientHello, its records included.
pub const MOST_HELLO_BYTES: usize = 16 * 1024;
/// The header of a record: type, version, length.
const RECORD_HEAD: usize = 5;
/// The type of the first record.
const HANDSHAKE: u8 = 22;

/// The result of parsing the first bytes of a client.
#[derive(Debug, PartialEq)]
pub enum ClientHelloParse {
    /// More bytes are needed.
    Incomplete,
    /// A complete ClientHello with this server name (SNI).
    ///
    /// RFC 6066 §3 requires the name without a trailing dot. Some clients send one nevertheless; it is ignored, as in
    /// the Host of a request. The name is normalised here, and nowhere else.
    Complete(Option<OwnedHostName>),
    /// HTTP without TLS.
    PlainHttp,
    /// Invalid; the bytes are the alert to send.
    Invalid(Error, Vec<u8>),
}

impl ClientHelloParse {
    /// Parses a ClientHello without records, as QUIC carries it.
    pub fn parse_message(hello: &[u8]) -> Self {
        let Ok(length) = u16::try_from(hello.len()) else { return Self::Incomplete };
        let [high, low] = length.to_be_bytes();
        // The version that a first record carries (RFC 8446 §5.1).
        Self::parse(&[&[HANDSHAKE, 3, 1, high, low], hello].concat())
    }

    /// Parses all bytes that a client has sent so far.
    pub fn parse(received: &[u8]) -> Self {
        // An HTTP method begins with a letter, a TLS record with its type, which is not a letter.
        if received.first().is_some_and(u8::is_ascii_alphabetic) {
            return Self::PlainHttp;
        }
        if received.is_empty() || received[0] == HANDSHAKE && !has_record(received) {
            return Self::Incomplete;
        }
        let (mut acceptor, mut left) = (Acceptor::default(), received);
        while !left.is_empty() {
            if acceptor.read_tls(&mut left).is_err() {
                return Self::Invalid(Error::PeerSentOversizedRecord, Vec::new());
            }
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                Self::Complete(hello.server_name().map(|name| OwnedHostName::new(name.as_bytes())))
            }
            Ok(None) => Self::Incomplete,
            Err((error, mut alert)) => {
                let mut answer = Vec::new();
                alert.write_all(&mut answer).expect("a write to a Vec succeeds");
                Self::Invalid(error, answer)
            }
        }
    }
}

/// True if the first record is complete: a hello in small pieces is not parsed again for each of them.
fn has_record(received: &[u8]) -> bool {
    let length = received.get(RECORD_HEAD - 2..RECORD_HEAD);
    length.and_then(|length| length.try_into().ok()).is_some_and(|length| {
        received.len() >= RECORD_HEAD + usize::from(u16::from_be_bytes(length))
    })
}
