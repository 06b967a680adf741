//! Channels over real sockets on loopback.

/// Wire form: round trips, and random bytes.
mod wire;
/// Wire form of reports, and their delivery.
mod reports;
/// Shared keys: wire form, and the connections that carry them.
mod keys;
/// Delivery, order, restarts, back-pressure.
mod delivery;
/// Renewal of connections and certificates.
mod renewal;
/// Peers and messages that are refused.
mod refusal;
/// Lease tables that share a cap over channels.
mod leases;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use balance::leases::{LEASE_VERSION, LeaseMessage, LentEntry, ReplicaIdentity};
use balance::time::Time;
use bytes::BytesMut;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{interval, timeout};

use crate::connection::{PeerConnection, connect, secure_dialled};
use crate::frame::{FrameBuffer, append_frame};
use crate::hello::{receive_hello, send_hello};
use crate::members::ChannelSecurity;
use crate::wire::WireFrame;
use crate::*;

/// Time in which everything here happens, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Certificate authority.
struct TestAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns the PEM of a new certificate and its key.
    fn issue(&self, name: &str, expiry_year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(expiry_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Returns new certificates of a replica that trusts this authority.
    fn certificates(&self) -> Arc<ReplicaCertificates> {
        self.certificates_with(&self.pem)
    }

    /// Returns new certificates of a replica that trusts these authorities.
    fn certificates_with(&self, authorities: &str) -> Arc<ReplicaCertificates> {
        let (chain, key) = self.issue(REPLICA_NAME, 4000);
        let pem = (chain.as_bytes(), key.as_bytes(), authorities.as_bytes());
        Arc::new(ReplicaCertificates::from_pem(pem.0, pem.1, pem.2).unwrap())
    }

    /// Returns certificates that no replica would use.
    fn unchecked(&self, name: &str, year: i32, trusted: &Self) -> Arc<ReplicaCertificates> {
        let (chain, key) = self.issue(name, year);
        let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.pem.as_bytes()).unwrap()).unwrap();
        Arc::new(ReplicaCertificates::from_parts(chain, key, Arc::new(roots)).unwrap())
    }
}

/// Replica with its channel.
struct TestReplica {
    me: ReplicaIdentity,
    sender: ChannelSender,
    receiver: ChannelReceiver,
    members: watch::Sender<Arc<[SocketAddr]>>,
    certificates: watch::Sender<Option<Arc<ReplicaCertificates>>>,
}

impl TestReplica {
    fn start(
        listener: TcpListener,
        members: &[SocketAddr],
        certificates: Option<Arc<ReplicaCertificates>>,
        times: ChannelTimes,
    ) -> Self {
        Self::start_again(listener, 1, members, certificates, times)
    }

    fn start_again(
        listener: TcpListener,
        incarnation: u64,
        members: &[SocketAddr],
        certificates: Option<Arc<ReplicaCertificates>>,
        times: ChannelTimes,
    ) -> Self {
        let me = ReplicaIdentity { member: listener.local_addr().unwrap(), incarnation };
        let members = watch::Sender::new(Arc::from(members));
        let certificates = watch::Sender::new(certificates);
        let (sender, receiver) = start_channel(ChannelSettings {
            me,
            listener,
            port: 0,
            members: members.subscribe(),
            certificates: certificates.subscribe(),
            times,
        })
        .unwrap();
        Self { me, sender, receiver, members, certificates }
    }

    /// Returns replicas that are members of one another, with certificates of one authority.
    fn group(count: usize, authority: &TestAuthority) -> Vec<Self> {
        let (listeners, members) = listeners(count);
        let start =
            |listener| Self::start(listener, &members, Some(authority.certificates()), times());
        listeners.into_iter().map(start).collect()
    }

    fn send(&self, to: &Self, number: u64) {
        self.sender.send(to.me.member, lease(self.me, to.me, number, 0));
    }

    async fn receive(&mut self) -> ReceivedMessage {
        timeout(PATIENCE, self.receiver.receive()).await.unwrap().unwrap()
    }

    /// Receives until the message with this number comes; returns the numbers.
    async fn receive_until(&mut self, last: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        while numbers.last() != Some(&last) {
            numbers.push(number(&self.receive().await.message));
        }
        numbers
    }

    /// Waits until so many connections or messages were refused for this reason.
    async fn refuses(&self, reason: RefusalReason, times: u64) {
        let counts = self.sender.counts();
        eventually(reason.name(), || counts.refused(reason) >= times).await;
    }

    fn count(&self, counter: impl Fn(&ChannelCounts) -> &AtomicU64) -> u64 {
        counter(self.sender.counts()).load(Ordering::Relaxed)
    }

    fn is_connected_to(&self, member: SocketAddr) -> bool {
        let states = self.sender.peer_states();
        states.iter().any(|it| it.member == member && it.connected_for.is_some())
    }
}

/// Times with which certificates are soon in use, and a slow machine ends no connection.
fn times() -> ChannelTimes {
    let (handshake, write, idle) = (PATIENCE, PATIENCE, PATIENCE);
    let renewal = Duration::from_millis(20);
    ChannelTimes { handshake, write, idle, renewal, ..ChannelTimes::default() }
}

fn listeners(count: usize) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let members = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
    (listeners, members)
}

/// Returns a message with a number, and as many entries of each kind as given.
fn lease(
    from: ReplicaIdentity,
    to: ReplicaIdentity,
    number: u64,
    entries: usize,
) -> ReplicaMessage {
    let entry = |at: usize| LentEntry {
        endpoint: SocketAddr::from(([10, 0, (at >> 8) as u8, at as u8], 80)),
        granted: u64::MAX,
        keep: u32::MAX,
        closed: true,
    };
    ReplicaMessage::Lease(LeaseMessage {
        version: LEASE_VERSION,
        from,
        to,
        sent: Time::from_nanos(number),
        echo: Time::ZERO,
        lending_epoch: 1,
        borrowing_epoch: 0,
        lent: (0..entries).map(entry).collect(),
        returned: Vec::new(),
        pools: Vec::new(),
    })
}

fn number(message: &ReplicaMessage) -> u64 {
    match message {
        ReplicaMessage::Lease(lease) => lease.sent.as_nanos(),
        other => panic!("{other:?}"),
    }
}

/// Waits until a condition holds.
async fn eventually(condition: &str, mut holds: impl FnMut() -> bool) {
    let mut checks = interval(Duration::from_millis(1));
    let wait = async {
        while !holds() {
            checks.tick().await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{condition} does not hold"));
}

/// A peer that speaks as it likes.
struct RawPeer {
    connection: PeerConnection,
    buffer: FrameBuffer,
}

impl RawPeer {
    async fn dial(to: SocketAddr, security: &ChannelSecurity) -> std::io::Result<Self> {
        let source = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = connect(source, to, PATIENCE).await?;
        let connection = secure_dialled(socket, security).await?;
        Ok(Self { connection, buffer: FrameBuffer::default() })
    }

    /// Introduces itself and waits for the reply.
    async fn introduce(&mut self, me: ReplicaIdentity) -> ReplicaIdentity {
        send_hello(&mut self.connection, me).await.unwrap();
        receive_hello(&mut self.connection, &mut self.buffer).await.unwrap()
    }

    async fn send(&mut self, frame: &WireFrame) {
        let mut bytes = BytesMut::new();
        assert!(append_frame(frame, &mut bytes));
        self.write(&bytes).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.connection.write_all(bytes).await.unwrap();
        self.connection.flush().await.unwrap();
    }

    async fn next_frame(&mut self) -> WireFrame {
        loop {
            if let Some(frame) = self.buffer.next_frame(MAX_FRAME_BYTES).unwrap() {
                return frame;
            }
            assert!(self.buffer.read(&mut self.connection).await.unwrap() > 0, "closed");
        }
    }

    /// Waits until the other side closes the connection.
    async fn is_closed(&mut self) {
        let end = async {
            while self.buffer.read(&mut self.connection).await.is_ok_and(|bytes| bytes > 0) {}
        };
        timeout(PATIENCE, end).await.unwrap();
    }
}
