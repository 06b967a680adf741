//! A QUIC client whose packets carry frames of the test's choice, which no library sends.
//!
//! It is an ordinary client whose packet protection is replaced: it encrypts other frames than those that the library
//! has written. So its packets are valid, and acknowledged, at the full rate of the path.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use quinn_proto::ConnectError;
use quinn_proto::crypto::{ClientConfig, CryptoError, PacketKey, Session};
use quinn_proto::transport_parameters::TransportParameters;

use crate::changed_session::{ChangedSession, SessionChange};

/// Frames that replace those of the 1-RTT packets of a client.
#[derive(Clone, Default)]
pub struct PacketOverride(Arc<Mutex<PacketPayload>>);

#[derive(Default)]
enum PacketPayload {
    /// What the library has written.
    #[default]
    Own,
    /// This frame, as often as there is room for it.
    Repeated(Vec<u8>),
    /// These frames in the next packet, as far as there is room for them.
    Once(Vec<u8>),
}

impl PacketOverride {
    /// Fills each further packet with this frame.
    pub fn repeat(&self, frame: &[u8]) {
        *self.payload() = PacketPayload::Repeated(frame.to_vec());
    }

    /// Sends these frames in the next packet.
    pub fn send_once(&self, frames: &[u8]) {
        *self.payload() = PacketPayload::Once(frames.to_vec());
    }

    /// Returns a configuration of clients whose packets are replaced, with this configuration of TLS.
    pub fn config(&self, tls: Arc<dyn ClientConfig>) -> quinn::ClientConfig {
        quinn::ClientConfig::new(Arc::new(OverrideClientConfig { tls, packets: self.clone() }))
    }

    fn payload(&self) -> MutexGuard<'_, PacketPayload> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, payload: &mut [u8]) {
        let mut chosen = self.payload();
        match &*chosen {
            PacketPayload::Own => {}
            PacketPayload::Repeated(frame) => {
                let mut rest = payload.chunks_exact_mut(frame.len());
                rest.by_ref().for_each(|place| place.copy_from_slice(frame));
                // PADDING.
                rest.into_remainder().fill(0);
            }
            PacketPayload::Once(frames) => {
                let length = frames.len().min(payload.len());
                payload.fill(0);
                payload[..length].copy_from_slice(&frames[..length]);
                *chosen = PacketPayload::Own;
            }
        }
    }
}

struct OverrideClientConfig {
    tls: Arc<dyn ClientConfig>,
    packets: PacketOverride,
}

impl ClientConfig for OverrideClientConfig {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = Arc::clone(&self.tls).start_session(version, server_name, params)?;
        Ok(Box::new(ChangedSession::new(session, self.packets.clone())))
    }
}

impl SessionChange for PacketOverride {
    fn change_key(&self, key: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(OverridePacketKey { key, packets: self.clone() })
    }
}

struct OverridePacketKey {
    key: Box<dyn PacketKey>,
    packets: PacketOverride,
}

impl PacketKey for OverridePacketKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len() - self.tag_len();
        self.packets.fill(&mut buf[header_len..end]);
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}
