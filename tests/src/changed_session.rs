//! A TLS session of a QUIC client that sends something else than the library's.

use std::any::Any;

use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};

/// How a session differs from the library's. By default it does not.
pub(crate) trait SessionChange: Send + Sync + 'static {
    /// Changes the bytes of the handshake that are sent next.
    fn change_handshake(&self, message: &mut [u8]) {
        let _ = message;
    }

    /// Changes the keys by which packets are encrypted after the handshake.
    fn change_key(&self, key: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        key
    }
}

/// A session with a change.
pub(crate) struct ChangedSession<C> {
    session: Box<dyn Session>,
    /// Sets of keys so far: those of the handshake, then those of 1-RTT packets.
    keys: u32,
    change: C,
}

impl<C: SessionChange> ChangedSession<C> {
    pub(crate) fn new(session: Box<dyn Session>, change: C) -> Self {
        Self { session, keys: 0, change }
    }

    fn change_local(&self, keys: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
        KeyPair { local: self.change.change_key(keys.local), remote: keys.remote }
    }
}

impl<C: SessionChange> Session for ChangedSession<C> {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.session.initial_keys(id, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.session.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.session.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.session.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.session.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.session.read_handshake(bytes)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.session.transport_parameters()
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let begun = out.len();
        let keys = self.session.write_handshake(out);
        self.change.change_handshake(&mut out[begun..]);
        let Keys { header, packet } = keys?;
        self.keys += 1;
        let packet = if self.keys > 1 { self.change_local(packet) } else { packet };
        Some(Keys { header, packet })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.session.next_1rtt_keys()?;
        Some(self.change_local(keys))
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.session.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.session.export_keying_material(output, label, context)
    }
}
