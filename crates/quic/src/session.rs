//! TLS within QUIC, on the server side of a client connection: the ClientHello selects the configuration.
//!
//! Handshake bytes are buffered until the ClientHello is complete, which may take several datagrams. The server name
//! in it selects the SNI entry, as over TCP, and from then on the session uses the configuration of that entry.

use std::any::Any;
use std::sync::Arc;

use gateway::matching::{HostName, OwnedHostName};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::HandshakeKind;
use rustls::quic::{DirectionalKeys, KeyChange, Secrets, ServerConnection, Version};
use tls::{
    ClientHelloParse, MOST_HELLO_BYTES, ServerTlsConfig, ServerTlsMode, SniEntry, quic_protocol,
};

use crate::SniSource;
use crate::close_reason::description;

/// The version of QUIC that we support (RFC 9000).
pub(super) const VERSION: u32 = 1;
/// The start of a ClientHello: its type, and its length in three bytes (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;
const HELLO_HEAD: usize = 4;
/// The reason phrase of errors for which TLS requires none.
const NO_REASON: &str = "";

/// Creates the TLS sessions of one host's clients.
pub(super) struct SniServerConfig {
    sni_source: SniSource,
    /// The part that is the same for all SNI entries: the keys of Initial packets, which are public.
    protocol: Arc<QuicServerConfig>,
}

impl SniServerConfig {
    pub(super) fn new(sni_source: SniSource) -> Self {
        Self { sni_source, protocol: quic_protocol() }
    }

    /// Returns the SNI entry for `name` in the current configuration, and its TLS configuration; else the alert with
    /// which the client is rejected.
    fn site(
        &self,
        name: Option<HostName<'_>>,
    ) -> Result<(Arc<SniEntry>, Arc<rustls::ServerConfig>), u8> {
        let current = (self.sni_source)().ok_or(description::INTERNAL_ERROR)?;
        let site = current.sni_table.find(name).ok_or(description::UNRECOGNIZED_NAME)?;
        match &site.mode {
            ServerTlsMode::Terminate(ServerTlsConfig { over_quic: Some(config), .. }) => {
                let config = if current.early_data {
                    &config.with_early_data
                } else {
                    &config.without_early_data
                };
                Ok((Arc::clone(site), Arc::clone(config)))
            }
            // TLS passthrough is not possible over QUIC.
            ServerTlsMode::Terminate(ServerTlsConfig { over_quic: None, .. })
            | ServerTlsMode::PassThrough => Err(description::UNRECOGNIZED_NAME),
            ServerTlsMode::Refuse => Err(description::INTERNAL_ERROR),
        }
    }
}

impl crypto::ServerConfig for SniServerConfig {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.protocol.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.protocol.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let stage = QuicTlsState::AwaitingClientHello {
            client_hello: Vec::new(),
            parameters: Box::new(*parameters),
        };
        Box::new(QuicTlsSession { config: self, state: stage })
    }
}

/// The result of a handshake.
pub(super) struct QuicHandshakeData {
    pub(super) server_name: Option<OwnedHostName>,
    pub(super) site: Arc<SniEntry>,
    pub(super) resumed: bool,
}

struct QuicTlsSession {
    config: Arc<SniServerConfig>,
    state: QuicTlsState,
}

enum QuicTlsState {
    /// The ClientHello is not complete yet.
    AwaitingClientHello {
        client_hello: Vec<u8>,
        parameters: Box<TransportParameters>,
    },
    Handshaking(Box<QuicTlsHandshake>),
}

/// A handshake with the configuration of an SNI entry.
struct QuicTlsHandshake {
    tls: ServerConnection,
    server_name: Option<OwnedHostName>,
    site: Arc<SniEntry>,
    /// True if the driver has been told that the server name is known.
    data_reported: bool,
    next: Option<Secrets>,
}

impl QuicTlsSession {
    fn handshake(&self) -> Option<&QuicTlsHandshake> {
        match &self.state {
            QuicTlsState::Handshaking(handshake) => Some(handshake),
            QuicTlsState::AwaitingClientHello { .. } => None,
        }
    }

    /// Selects the SNI entry once the ClientHello is complete. Returns the handshake bytes that were buffered so far.
    fn select_site(&mut self) -> Result<Option<Vec<u8>>, TransportError> {
        let QuicTlsState::AwaitingClientHello { client_hello: received, parameters } =
            &mut self.state
        else {
            return Ok(None);
        };
        let Some(server_name) = client_hello_name(received)? else { return Ok(None) };
        let name = server_name.as_ref().map(OwnedHostName::borrowed);
        let (site, config) = self.config.site(name).map_err(alert_error)?;
        let mut encoded = Vec::new();
        parameters.write(&mut encoded);
        let tls = ServerConnection::new(config, Version::V1, encoded)
            .map_err(|_unusable| alert_error(description::INTERNAL_ERROR))?;
        let received = std::mem::take(received);
        let handshake =
            QuicTlsHandshake { tls, server_name, site, data_reported: false, next: None };
        self.state = QuicTlsState::Handshaking(Box::new(handshake));
        Ok(Some(received))
    }
}

/// Returns the server name in a ClientHello; `None` if it is not complete.
fn client_hello_name(received: &[u8]) -> Result<Option<Option<OwnedHostName>>, TransportError> {
    let Some((&[kind, a, b, c], _)) = received.split_first_chunk::<HELLO_HEAD>() else {
        return Ok(None);
    };
    if kind != CLIENT_HELLO {
        return Err(alert_error(description::UNEXPECTED_MESSAGE));
    }
    let length = HELLO_HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
    if length > MOST_HELLO_BYTES {
        return Err(alert_error(description::DECODE_ERROR));
    }
    let Some(hello) = received.get(..length) else { return Ok(None) };
    match ClientHelloParse::parse_message(hello) {
        ClientHelloParse::Complete(name) => Ok(Some(name)),
        // The last byte of an alert is its description.
        ClientHelloParse::Invalid(_, alert) => {
            Err(alert_error(alert.last().copied().unwrap_or(description::DECODE_ERROR)))
        }
        ClientHelloParse::Incomplete | ClientHelloParse::PlainHttp => {
            Err(alert_error(description::DECODE_ERROR))
        }
    }
}

fn alert_error(alert: u8) -> TransportError {
    let code = TransportErrorCode::crypto(alert);
    TransportError { code, frame: None, reason: NO_REASON.to_owned() }
}

impl crypto::Session for QuicTlsSession {
    fn initial_keys(&self, id: &ConnectionId, _side: Side) -> Keys {
        let keys = crypto::ServerConfig::initial_keys(&*self.config, VERSION, id);
        keys.unwrap_or_else(|_| unreachable!("a session is created for the supported version"))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let QuicTlsHandshake { tls, server_name, site, .. } = self.handshake()?;
        Some(Box::new(QuicHandshakeData {
            server_name: server_name.clone(),
            site: Arc::clone(site),
            resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
        }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.handshake()?.tls.peer_certificates()?.to_vec()))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let DirectionalKeys { header, packet } = self.handshake()?.tls.zero_rtt_keys()?;
        Some((Box::new(header), Box::new(packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.handshake().is_none_or(|handshake| handshake.tls.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let QuicTlsState::AwaitingClientHello { client_hello: received, .. } = &mut self.state {
            received.extend_from_slice(bytes);
        }
        let received = self.select_site()?;
        let QuicTlsState::Handshaking(handshake) = &mut self.state else { return Ok(false) };
        handshake.read(received.as_deref().unwrap_or(bytes))?;
        Ok(!std::mem::replace(&mut handshake.data_reported, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let encoded =
            self.handshake().and_then(|handshake| handshake.tls.quic_transport_parameters());
        let Some(mut encoded) = encoded else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut encoded)?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let QuicTlsState::Handshaking(handshake) = &mut self.state else { return None };
        let keys = match handshake.tls.write_hs(out)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                handshake.next = Some(next);
                keys
            }
        };
        let (local, remote) = (keys.local, keys.remote);
        Some(Keys {
            header: KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) },
            packet: KeyPair { local: Box::new(local.packet), remote: Box::new(remote.packet) },
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let QuicTlsState::Handshaking(handshake) = &mut self.state else { return None };
        let keys = handshake.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    /// Servers send Retry packets, and never receive any.
    fn is_valid_retry(&self, _id: &ConnectionId, _header: &[u8], _payload: &[u8]) -> bool {
        false
    }

    /// No protocol that is carried here needs exported keys.
    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

impl QuicTlsHandshake {
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        self.tls.read_hs(bytes).map_err(|error| match self.tls.alert() {
            Some(alert) => TransportError {
                code: TransportErrorCode::crypto(alert.into()),
                frame: None,
                reason: error.to_string(),
            },
            None => TransportErrorCode::PROTOCOL_VIOLATION.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: &TransportError) -> u64 {
        error.code.into()
    }

    #[test]
    fn invalid_client_hello_is_rejected_before_buffering() {
        assert_eq!(client_hello_name(&[1, 0, 0]).unwrap(), None);
        let refused = client_hello_name(&[2, 0, 0, 1]).unwrap_err();
        assert_eq!(code(&refused), 0x100 + 10);
        let long = client_hello_name(&[1, 1, 0, 0]).unwrap_err();
        assert_eq!(code(&long), 0x100 + 50);
        let empty = client_hello_name(&[1, 0, 0, 0]).unwrap_err();
        assert_eq!(code(&empty), 0x100 + 50);
    }
}
