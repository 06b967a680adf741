//! Tests of sessions, without sockets.

use proptest::prelude::*;
use rustbgpd_wire::notification::cease_subcode;
use rustbgpd_wire::{RouteRefreshMessage, UpdateMessage};

use super::*;
use crate::settings::RouteAttributes;

const ROUTER_ASN: u32 = 65001;
const OUR_ASN: u32 = 4_200_000_001;
const HOLD_TIME: u16 = 9;

/// A session, with the router's side in the hands of the test.
struct Wire {
    session: PeerSession,
    now: Instant,
}

pub(crate) fn settings() -> PeerSettings {
    PeerSettings {
        name: "router".to_owned(),
        address: [127, 0, 0, 1].into(),
        port: 179,
        peer_asn: ROUTER_ASN,
        local_asn: OUR_ASN,
        hold_time: HOLD_TIME,
        source: None,
        password: None,
        is_multihop: false,
        is_ttl_checked: false,
    }
}

pub(crate) fn session() -> PeerSession {
    let next_hops =
        NextHops { v4: Some([10, 0, 0, 1].into()), v6: Some("fd00::1".parse().unwrap()) };
    PeerSession::new(settings(), [10, 0, 0, 1].into(), next_hops)
}

pub(crate) fn open(asn: u32) -> Message {
    let family = |afi| Capability::MultiProtocol { afi, safi: Safi::Unicast };
    Message::Open(OpenMessage {
        version: 4,
        my_as: u16::try_from(asn).unwrap_or(23456),
        hold_time: 90,
        bgp_identifier: [10, 0, 0, 2].into(),
        capabilities: vec![family(Afi::Ipv4), family(Afi::Ipv6), Capability::FourOctetAs { asn }],
    })
}

/// Returns the messages in a buffer.
pub(crate) fn messages(bytes: &mut BytesMut) -> Vec<Message> {
    let mut found = Vec::new();
    while let Some(length) = peek_message_length(bytes, MAX_MESSAGE_LEN).unwrap() {
        let mut one = bytes.split_to(length.into()).freeze();
        found.push(decode_message(&mut one, MAX_MESSAGE_LEN).unwrap());
    }
    found
}

impl Wire {
    fn new() -> Self {
        let mut wire = Self { session: session(), now: Instant::now() };
        wire.session.start(wire.now);
        wire
    }

    /// Returns a session that is up, of which everything has been read.
    fn established() -> Self {
        let mut wire = Self::new();
        wire.receive(&open(ROUTER_ASN));
        wire.receive(&Message::Keepalive);
        assert!(wire.session.is_established(), "{:?}", wire.session.end);
        wire.sent();
        wire
    }

    fn sent(&mut self) -> Vec<Message> {
        messages(&mut self.session.outbound)
    }

    fn receive(&mut self, message: &Message) {
        self.session.receive(&mut encode_message(message).unwrap(), self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.session.expire(self.now);
    }

    fn notification(&mut self) -> (u8, u8) {
        let sent = self.sent();
        let [.., Message::Notification(it)] = &sent[..] else { panic!("{sent:?}") };
        (it.code.as_u8(), it.subcode)
    }

    fn end(&self) -> &str {
        self.session.end.as_deref().expect("the session has ended")
    }
}

fn routes(addresses: &[&str]) -> RouteTable {
    addresses.iter().map(|it| (it.parse().unwrap(), RouteAttributes::default())).collect()
}

#[tokio::test]
async fn session_comes_up_and_routes_are_announced_and_withdrawn() {
    let mut wire = Wire::new();
    let sent = wire.sent();
    let [Message::Open(ours)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((ours.my_as, ours.four_byte_as(), ours.hold_time), (23456, OUR_ASN, HOLD_TIME));
    wire.session.announce(&routes(&["192.0.2.1"]));
    assert_eq!(wire.sent(), [], "the session is not up");
    wire.receive(&open(ROUTER_ASN));
    wire.receive(&Message::Keepalive);
    assert_eq!(wire.sent(), [Message::Keepalive]);
    wire.session.announce(&routes(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!(wire.sent().len(), 2);
    wire.session.announce(&routes(&["192.0.2.1"]));
    assert_eq!(wire.sent().len(), 1);
    assert_eq!(wire.session.announced.len(), 1);
    wire.receive(&Message::RouteRefresh(RouteRefreshMessage::new(Afi::Ipv4, Safi::Unicast)));
    wire.session.announce(&routes(&["192.0.2.1"]));
    assert_eq!(wire.sent().len(), 1, "the router has asked for all routes");
}

#[tokio::test]
async fn router_of_another_as_is_rejected_with_both_numbers() {
    let mut wire = Wire::new();
    wire.receive(&open(65999));
    assert_eq!(wire.notification(), (2, 2));
    assert_eq!(wire.end(), "the router is in AS 65999, and peerASN is 65001");
}

#[tokio::test]
async fn reason_of_the_router_is_kept() {
    let mut wire = Wire::new();
    let rejection = NotificationMessage::new(NotificationCode::OpenMessage, 2, bytes::Bytes::new());
    wire.receive(&Message::Notification(rejection));
    assert_eq!(wire.end(), "the router closed it: Bad Peer AS (localASN is 4200000001)");
    let mut wire = Wire::established();
    let text = encode_shutdown_communication("new \u{7}firmware");
    let cease = NotificationMessage::new(NotificationCode::Cease, 2, text);
    wire.receive(&Message::Notification(cease));
    assert!(wire.end().ends_with("\"new firmware\""), "{}", wire.end());
}

#[tokio::test]
async fn what_is_not_bgp_ends_the_session_with_a_notification() {
    let mut wire = Wire::established();
    let now = wire.now;
    wire.session.receive(&mut BytesMut::from(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]), now);
    assert_eq!(wire.notification(), (1, 1));
    assert!(wire.end().contains("not BGP"), "{}", wire.end());
    // A message that claims to be longer than any is rejected before it arrives.
    let mut wire = Wire::established();
    let header = [&[0xff; 16][..], &[0xff, 0xff, 2]].concat();
    wire.session.receive(&mut BytesMut::from(&header[..]), now);
    assert_eq!(wire.notification(), (1, 2));
}

#[tokio::test]
async fn silent_router_is_dead_after_the_hold_time() {
    let mut wire = Wire::established();
    for _ in 0..3 {
        wire.pass(3);
        assert_eq!(wire.sent(), [Message::Keepalive]);
        wire.receive(&Message::Keepalive);
    }
    wire.pass(8);
    assert!(wire.session.is_established());
    wire.pass(1);
    assert_eq!(wire.notification(), (4, 0));
    assert!(wire.session.next_timer().is_none());
    let mut wire = Wire::new();
    wire.pass(20);
    assert_eq!(wire.notification(), (4, 0), "a router without an OPEN");
}

#[tokio::test]
async fn stop_tells_the_router_the_reason() {
    let mut wire = Wire::established();
    wire.session.stop("the node drains", wire.now);
    let sent = wire.sent();
    let [Message::Notification(it)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(
        (it.code, it.subcode),
        (NotificationCode::Cease, cease_subcode::ADMINISTRATIVE_SHUTDOWN)
    );
    assert_eq!(extract_shutdown_communication(it), Ok(Some("the node drains")));
}

#[tokio::test]
async fn routes_of_the_router_are_discarded() {
    let mut wire = Wire::established();
    let empty = bytes::Bytes::new;
    let update = UpdateMessage {
        withdrawn_routes: empty(),
        path_attributes: bytes::Bytes::from_static(&[0x40, 1, 1, 99]),
        nlri: bytes::Bytes::from_static(&[32, 192, 0, 2, 9]),
    };
    wire.receive(&Message::Update(update));
    assert!(wire.session.is_established());
    assert_eq!((wire.session.counts.updates_discarded, wire.session.announced.len()), (1, 0));
}

#[tokio::test]
async fn family_that_the_router_does_not_speak_is_not_announced() {
    let mut wire = Wire::new();
    let Message::Open(mut theirs) = open(ROUTER_ASN) else { panic!("it is an OPEN") };
    theirs.capabilities.remove(1);
    wire.receive(&Message::Open(theirs));
    wire.receive(&Message::Keepalive);
    wire.sent();
    wire.session.announce(&routes(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!((wire.sent().len(), wire.session.announced.len()), (1, 1));
}

proptest! {
    #[test]
    fn no_bytes_make_a_session_panic_or_keep_more_than_a_message(
        parts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                // The header of a message with any type and length.
                (19..5000_u16, 0..7_u8, prop::collection::vec(any::<u8>(), 0..200)).prop_map(
                    |(length, kind, body)| {
                        [&[0xff; 16][..], &length.to_be_bytes(), &[kind], &body].concat()
                    },
                ),
            ],
            0..20,
        ),
        is_up in any::<bool>(),
    ) {
        let mut wire = Wire { session: session(), now: Instant::now() };
        wire.session.start(wire.now);
        if is_up {
            wire.receive(&open(ROUTER_ASN));
            wire.receive(&Message::Keepalive);
        }
        let mut inbound = BytesMut::new();
        for part in parts {
            inbound.extend_from_slice(&part);
            wire.session.receive(&mut inbound, wire.now);
            if wire.session.end.is_none() {
                prop_assert!(inbound.len() < usize::from(MAX_MESSAGE_LEN));
            }
        }
    }
}
