//! What a client says first: read before it is known who answers, if we do at all.

use gateway::matching::OwnedHostName;
use rustls::Error;
use rustls::server::Acceptor;

/// What a ClientHello may take, its records included.
pub(crate) const MOST_HELLO_BYTES: usize = 16 * 1024;
/// The head of a record: type, version, length.
const RECORD_HEAD: usize = 5;
/// The type of the first one.
const HANDSHAKE: u8 = 22;

/// What a client says first.
#[derive(Debug, PartialEq)]
pub(crate) enum ClientHelloParse {
    /// There is more to come.
    Incomplete,
    /// It asks for this name (SNI).
    ///
    /// RFC 6066 §3 has the name sent without a dot at its end. Some clients send one nevertheless; they are served as if
    /// they had not, like a request whose Host has one. The name is normalised here, and nowhere else.
    Complete(Option<OwnedHostName>),
    /// No TLS, but HTTP without it.
    PlainHttp,
    /// It cannot be answered but with these bytes.
    Invalid(Error, Vec<u8>),
}

impl ClientHelloParse {
    /// Looks at a ClientHello that comes without records, as QUIC carries it.
    pub(crate) fn parse_message(hello: &[u8]) -> Self {
        let Ok(length) = u16::try_from(hello.len()) else { return Self::Incomplete };
        let [high, low] = length.to_be_bytes();
        // The version is that which a first record bears (RFC 8446 §5.1).
        Self::parse(&[&[HANDSHAKE, 3, 1, high, low], hello].concat())
    }

    /// Looks at all that a client has said so far.
    pub(crate) fn parse(said: &[u8]) -> Self {
        // A method begins with a letter, a record of TLS with its type, which is none.
        if said.first().is_some_and(u8::is_ascii_alphabetic) {
            return Self::PlainHttp;
        }
        if said.is_empty() || said[0] == HANDSHAKE && !has_record(said) {
            return Self::Incomplete;
        }
        let (mut acceptor, mut left) = (Acceptor::default(), said);
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
                alert.write_all(&mut answer).expect("a Vec takes everything");
                Self::Invalid(error, answer)
            }
        }
    }
}

/// The first record is here: a hello that comes in small pieces is not looked at with each of them.
fn has_record(said: &[u8]) -> bool {
    let length = said.get(RECORD_HEAD - 2..RECORD_HEAD);
    length
        .and_then(|length| length.try_into().ok())
        .is_some_and(|length| said.len() >= RECORD_HEAD + usize::from(u16::from_be_bytes(length)))
}
