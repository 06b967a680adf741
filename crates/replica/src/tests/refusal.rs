//! Peers and messages that are refused, while others are not disturbed.

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::version::{TLS12, TLS13};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::*;
use crate::frame::message_frame;
use crate::wire::{FrameBody, WireHello};

/// Two replicas, and a third member whose part a test plays.
struct RefusalFixture {
    authority: TestAuthority,
    group: Vec<TestReplica>,
    third: ReplicaIdentity,
    number: u64,
}

impl RefusalFixture {
    fn new() -> Self {
        let authority = TestAuthority::new();
        let (mut listeners, members) = listeners(3);
        // Its port stays taken: the replicas cannot connect.
        let third = listeners.pop().unwrap().local_addr().unwrap();
        let start = |listener| {
            TestReplica::start(listener, &members, Some(authority.certificates()), times())
        };
        let group = listeners.into_iter().map(start).collect();
        let third = ReplicaIdentity { member: third, incarnation: 5 };
        Self { authority, group, third, number: 0 }
    }

    fn security(&self) -> ChannelSecurity {
        ChannelSecurity::Tls(self.authority.certificates())
    }

    async fn dial(&self) -> RawPeer {
        RawPeer::dial(self.group[0].me.member, &self.security()).await.unwrap()
    }

    /// Returns a peer that has introduced itself as the third member.
    async fn authenticated(&self) -> RawPeer {
        let mut peer = self.dial().await;
        assert_eq!(peer.introduce(self.third).await, self.group[0].me);
        peer
    }

    /// Checks that one more connection or message is refused, and that others still work.
    async fn check(&mut self, reason: RefusalReason, times: u64) {
        self.group[0].refuses(reason, times).await;
        assert_eq!(self.group[0].sender.counts().refused(reason), times, "{}", reason.name());
        self.number += 1;
        self.group[1].send(&self.group[0], self.number);
        assert_eq!(self.group[0].receive_until(self.number).await, [self.number]);
    }
}

#[tokio::test]
async fn peers_without_a_certificate_for_replicas_are_refused() {
    let mut fixture = RefusalFixture::new();
    let (ours, other) = (&fixture.authority, TestAuthority::new());
    let certificates = [
        other.unchecked(REPLICA_NAME, 4000, ours),
        ours.unchecked("other.sheave.dev", 4000, ours),
        ours.unchecked(REPLICA_NAME, 2001, ours),
        Arc::new(ReplicaCertificates {
            client: Arc::new(anonymous(ours, &[&TLS13])),
            ..ReplicaCertificates::clone(&ours.certificates())
        }),
    ];
    for (times, certificates) in (1..).zip(certificates) {
        let security = ChannelSecurity::Tls(certificates);
        // In TLS 1.3 the client has finished before it is refused.
        let mut peer = RawPeer::dial(fixture.group[0].me.member, &security).await.unwrap();
        peer.is_closed().await;
        fixture.check(RefusalReason::Certificate, times).await;
    }
}

fn anonymous(
    authority: &TestAuthority,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[tokio::test]
async fn connections_without_tls_1_3_are_refused() {
    let mut fixture = RefusalFixture::new();
    let member = fixture.group[0].me.member;
    let mut plaintext = RawPeer::dial(member, &ChannelSecurity::Plaintext).await.unwrap();
    send_hello(&mut plaintext.connection, fixture.third).await.unwrap();
    plaintext.is_closed().await;
    fixture.check(RefusalReason::Tls, 1).await;

    let client = Arc::new(anonymous(&fixture.authority, &[&TLS12]));
    let certificates = ReplicaCertificates::clone(&fixture.authority.certificates());
    let security = ChannelSecurity::Tls(Arc::new(ReplicaCertificates { client, ..certificates }));
    assert!(RawPeer::dial(member, &security).await.is_err());
    fixture.check(RefusalReason::Tls, 2).await;

    drop(TcpStream::connect(member).await.unwrap());
    fixture.check(RefusalReason::Tls, 3).await;
}

#[tokio::test]
async fn certificates_that_are_not_for_replicas_are_an_error() {
    let authority = TestAuthority::new();
    let check = |name: &str, key: Option<&str>, authorities: &str| {
        let (chain, own_key) = authority.issue(name, 4000);
        let key = key.unwrap_or(&own_key).as_bytes();
        let result = ReplicaCertificates::from_pem(chain.as_bytes(), key, authorities.as_bytes());
        result.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(check(REPLICA_NAME, None, &authority.pem), Ok(()));
    let error = |message: &str| Err(message.to_owned());
    let name = "the certificate is not for the name replica.sheave.dev";
    assert_eq!(check("other.sheave.dev", None, &authority.pem), error(name));
    let (_, other_key) = authority.issue(REPLICA_NAME, 4000);
    let unusable = "certificate, key and authorities cannot be used together";
    assert_eq!(check(REPLICA_NAME, Some(&other_key), &authority.pem), error(unusable));
    assert_eq!(check(REPLICA_NAME, None, ""), error("the authority has no certificate"));
    let pem = Err("the key is not valid PEM".to_owned());
    assert_eq!(check(REPLICA_NAME, Some("no key"), &authority.pem), pem);
    let large = "the authority has more than 1048576 bytes";
    assert_eq!(check(REPLICA_NAME, None, &" ".repeat(1 << 21)), error(large));
}

#[tokio::test]
async fn invalid_introductions_are_refused() {
    let mut fixture = RefusalFixture::new();
    let too_large = [0, 0, 4, 1];
    for (times, length) in (1..).zip([u32::MAX.to_be_bytes(), too_large]) {
        let mut peer = fixture.dial().await;
        peer.write(&length).await;
        peer.is_closed().await;
        fixture.check(RefusalReason::FrameSize, times).await;
    }
    for (times, bytes) in (1..).zip([&b"\0\0\0\x05\xff\xff\xff\xff\xff"[..], b"\0\0\0\0"]) {
        let mut peer = fixture.dial().await;
        peer.write(bytes).await;
        peer.is_closed().await;
        fixture.check(RefusalReason::Malformed, times).await;
    }
    let from = Some(fixture.third.into());
    for (times, (version, oldest_version)) in (1..).zip([(0, 0), (9, 2)]) {
        let mut peer = fixture.dial().await;
        let hello = WireHello { version, oldest_version, from: from.clone() };
        peer.send(&WireFrame { body: Some(FrameBody::Hello(hello)) }).await;
        receive_hello(&mut peer.connection, &mut peer.buffer).await.expect("our version");
        peer.is_closed().await;
        fixture.check(RefusalReason::Version, times).await;
    }
    let elsewhere = "10.0.0.1:80".parse().unwrap();
    let mut stranger = fixture.third.member;
    stranger.set_port(1);
    for (times, member) in (1..).zip([elsewhere, stranger, fixture.group[0].me.member]) {
        let mut peer = fixture.dial().await;
        let me = ReplicaIdentity { member, incarnation: 1 };
        send_hello(&mut peer.connection, me).await.unwrap();
        peer.is_closed().await;
        fixture.check(RefusalReason::UnknownMember, times).await;
    }
    let mut peer = fixture.dial().await;
    let nameless = ReplicaIdentity { incarnation: 0, ..fixture.third };
    send_hello(&mut peer.connection, nameless).await.unwrap();
    fixture.check(RefusalReason::Malformed, 3).await;
}

#[tokio::test]
async fn newer_replica_is_understood() {
    let mut fixture = RefusalFixture::new();
    let mut peer = fixture.dial().await;
    let from = Some(fixture.third.into());
    let hello = WireHello { version: 9, oldest_version: 1, from };
    peer.send(&WireFrame { body: Some(FrameBody::Hello(hello)) }).await;
    receive_hello(&mut peer.connection, &mut peer.buffer).await.unwrap();
    let unknown_kind = b"\0\0\0\x07\x7a\x05later";
    peer.write(unknown_kind).await;
    let newer_lease = b"\0\0\0\x04\x12\x02\x08\x02";
    peer.write(newer_lease).await;
    fixture.check(RefusalReason::Version, 1).await;
    let message = lease(fixture.third, fixture.group[0].me, 3, 1);
    peer.send(&message_frame(&message)).await;
    let received = fixture.group[0].receive().await;
    assert_eq!(received, ReceivedMessage { from: fixture.third, message });
}

#[tokio::test]
async fn invalid_messages_close_their_connection() {
    let mut fixture = RefusalFixture::new();
    let me = fixture.group[0].me;
    let impostor = fixture.group[1].me;
    let former = ReplicaIdentity { incarnation: 4, ..fixture.third };
    for (times, from) in (1..).zip([impostor, former]) {
        let mut peer = fixture.authenticated().await;
        peer.send(&message_frame(&lease(from, me, 1, 1))).await;
        peer.is_closed().await;
        fixture.check(RefusalReason::Sender, times).await;
    }
    let mut peer = fixture.authenticated().await;
    peer.send(&message_frame(&lease(fixture.third, me, 1, 257))).await;
    peer.is_closed().await;
    fixture.check(RefusalReason::Absurd, 1).await;
    let mut peer = fixture.authenticated().await;
    peer.write(&(MAX_FRAME_BYTES as u32 + 1).to_be_bytes()).await;
    peer.is_closed().await;
    fixture.check(RefusalReason::FrameSize, 1).await;
}

#[tokio::test]
async fn third_connection_of_a_member_closes_its_first() {
    let mut fixture = RefusalFixture::new();
    let me = fixture.group[0].me;
    let mut first = fixture.authenticated().await;
    let mut second = fixture.authenticated().await;
    let mut third = fixture.authenticated().await;
    first.is_closed().await;
    third.send(&message_frame(&lease(fixture.third, me, 2, 0))).await;
    fixture.group[0].receive_until(2).await;
    // It comes too late: a newer connection has delivered.
    second.send(&message_frame(&lease(fixture.third, me, 1, 0))).await;
    second.is_closed().await;
    third.send(&message_frame(&lease(fixture.third, me, 3, 0))).await;
    assert_eq!(fixture.group[0].receive_until(3).await, [3]);
}

#[tokio::test]
async fn former_incarnation_is_refused_while_its_successor_is_connected() {
    let mut fixture = RefusalFixture::new();
    let me = fixture.group[0].me;
    let mut current = fixture.authenticated().await;
    let mut former = fixture.dial().await;
    let identity = ReplicaIdentity { incarnation: 4, ..fixture.third };
    send_hello(&mut former.connection, identity).await.unwrap();
    former.is_closed().await;
    fixture.check(RefusalReason::StaleIncarnation, 1).await;
    current.send(&message_frame(&lease(fixture.third, me, 5, 0))).await;
    assert_eq!(fixture.group[0].receive_until(5).await, [5]);

    let mut successor = fixture.dial().await;
    let identity = ReplicaIdentity { incarnation: 6, ..fixture.third };
    successor.introduce(identity).await;
    current.is_closed().await;
    successor.send(&message_frame(&lease(identity, me, 6, 0))).await;
    assert_eq!(fixture.group[0].receive_until(6).await, [6]);
}

#[tokio::test]
async fn unauthenticated_connections_do_not_keep_a_member_out() {
    let authority = TestAuthority::new();
    let (mut listeners, members) = listeners(2);
    let start =
        |listener| TestReplica::start(listener, &members, Some(authority.certificates()), times());
    let second_listener = listeners.pop().unwrap();
    let mut first = start(listeners.pop().unwrap());
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(TcpStream::connect(first.me.member).await.unwrap());
    }
    first.refuses(RefusalReason::Handshakes, 64 - MAX_HANDSHAKES as u64).await;
    let second = start(second_listener);
    second.send(&first, 1);
    assert_eq!(first.receive_until(1).await, [1]);
    first.refuses(RefusalReason::Handshakes, 64 - MAX_HANDSHAKES as u64 + 1).await;
    let mut oldest = idle.remove(0);
    assert!(oldest.read_u8().await.is_err(), "closed");
}

#[tokio::test]
async fn handshakes_have_a_deadline() {
    let authority = TestAuthority::new();
    let (mut listeners, members) = listeners(2);
    let quick = ChannelTimes { handshake: Duration::from_millis(50), ..times() };
    let certificates = Some(authority.certificates());
    let replica = TestReplica::start(listeners.remove(0), &members, certificates, quick);
    let mut silent = TcpStream::connect(replica.me.member).await.unwrap();
    replica.refuses(RefusalReason::Timeout, 1).await;
    assert!(silent.read_u8().await.is_err(), "closed");
    // The other member listens and never answers.
    let error = || replica.sender.peer_states()[0].last_error.clone();
    eventually("dialling ends", || error().as_deref() == Some("not connected in time")).await;
}

#[tokio::test]
async fn addresses_of_other_hosts_get_no_handshake() {
    let mut fixture = RefusalFixture::new();
    let source = "127.0.0.9:0".parse().unwrap();
    let mut other = connect(source, fixture.group[0].me.member, PATIENCE).await.unwrap();
    assert!(other.read_u8().await.is_err(), "closed");
    fixture.check(RefusalReason::Source, 1).await;
}
