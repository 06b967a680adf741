//! Wire form: round trips, and random bytes.

use std::net::{IpAddr, SocketAddr};

use balance::PriorityLevel;
use balance::leases::{
    LEASE_VERSION, LeaseMessage, LentEntry, MAX_MESSAGE_ENTRIES, PoolEntry, PoolKey, PoolState,
    ReplicaIdentity, ReturnedEntry,
};
use balance::limit::{
    LIMITS_VERSION, LimitEntry, LimitMessage, LimitReason, MAX_LIMIT_ENTRIES, ObservationSums,
    SharedLimit,
};
use balance::rate_limit::{LimitId, MAX_TOKEN_ENTRIES, TOKENS_VERSION, TokenAmount, TokenMessage};
use bytes::BytesMut;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::frame::{FrameError, message_frame};
use crate::wire::{FrameBody, WireError, WireLease};

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

fn identity() -> impl Strategy<Value = ReplicaIdentity> {
    (address(), any::<u64>())
        .prop_map(|(member, incarnation)| ReplicaIdentity { member, incarnation })
}

fn pool() -> impl Strategy<Value = PoolEntry> {
    (any::<u64>(), any::<[u32; 4]>(), any::<[u64; 2]>(), 0..PriorityLevel::COUNT).prop_map(
        |(pool, [free, queued, first_queued, wanted], [wait, demand_milli], priority)| {
            let oldest_wait = Duration::from_nanos(wait);
            let priority = PriorityLevel::ALL[priority];
            let state =
                PoolState { free, queued, priority, first_queued, oldest_wait, demand_milli };
            PoolEntry { pool: PoolKey(pool), state, wanted }
        },
    )
}

fn message() -> impl Strategy<Value = LeaseMessage> {
    let lent = (address(), any::<u64>(), any::<u32>(), any::<bool>()).prop_map(
        |(endpoint, granted, keep, closed)| LentEntry { endpoint, granted, keep, closed },
    );
    let returned = (address(), any::<u64>())
        .prop_map(|(endpoint, returned)| ReturnedEntry { endpoint, returned });
    let lists = (vec(lent, 0..9), vec(returned, 0..9), vec(pool(), 0..9));
    (identity(), identity(), any::<[u64; 4]>(), lists).prop_map(
        |(from, to, [sent, echo, lending_epoch, borrowing_epoch], (lent, returned, pools))| {
            LeaseMessage {
                version: LEASE_VERSION,
                from,
                to,
                sent: Time::from_nanos(sent),
                echo: Time::from_nanos(echo),
                lending_epoch,
                borrowing_epoch,
                lent,
                returned,
                pools,
            }
        },
    )
}

/// Decodes all frames of bytes that come in pieces.
fn decode(bytes: &[u8], piece: usize) -> Result<Vec<WireFrame>, FrameError> {
    let (mut buffer, mut frames) = (FrameBuffer::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        buffer.append(piece);
        while let Some(frame) = buffer.next_frame(MAX_FRAME_BYTES)? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn lease_of(frame: WireFrame) -> WireLease {
    match frame.body {
        Some(FrameBody::Lease(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

fn limits() -> impl Strategy<Value = LimitMessage> {
    let reason = prop::sample::select(vec![
        LimitReason::Start,
        LimitReason::Growing,
        LimitReason::Saturation,
        LimitReason::Reported,
        LimitReason::Probing,
    ]);
    let numbers = (any::<[u64; 10]>(), any::<[u32; 3]>());
    let entry = (address(), numbers, reason, any::<bool>()).prop_map(
        |(endpoint, (sums, limits), reason, preferred)| {
            limit_entry(endpoint, sums, limits, (reason, preferred))
        },
    );
    (identity(), any::<u64>(), vec(entry, 0..9)).prop_map(|(from, sent, endpoints)| LimitMessage {
        version: LIMITS_VERSION,
        from,
        sent: Time::from_nanos(sent),
        endpoints,
    })
}

fn limit_entry(
    endpoint: SocketAddr,
    [pool, in_flight_milli, demand_milli, sums @ ..]: [u64; 10],
    [total, claim, reported]: [u32; 3],
    (reason, preferred): (LimitReason, bool),
) -> LimitEntry {
    let [begun_nanos, observed_nanos, in_flight_nanos, limited_nanos, finished, rest @ ..] = sums;
    let [held_nanos, squares] = rest;
    LimitEntry {
        pool: PoolKey(pool),
        endpoint,
        state: SharedLimit {
            in_flight_milli,
            demand_milli,
            total,
            claim,
            reason,
            preferred,
            reported,
        },
        sums: ObservationSums {
            begun_nanos,
            observed_nanos,
            in_flight_nanos,
            limited_nanos,
            finished,
            held_nanos,
            squares,
        },
    }
}

fn limits_of(frame: &WireFrame) -> Result<LimitMessage, WireError> {
    match &frame.body {
        Some(FrameBody::Limits(limits)) => limits.clone().try_into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn largest_message_of_limits_fits_in_a_frame() {
    let endpoint = "[ffff::ffff]:65535".parse().unwrap();
    let from = ReplicaIdentity { member: endpoint, incarnation: u64::MAX };
    let probing = (LimitReason::Probing, true);
    let entry = limit_entry(endpoint, [u64::MAX; 10], [u32::MAX; 3], probing);
    let sent = Time::MAX;
    let endpoints = vec![entry; MAX_LIMIT_ENTRIES];
    let mut message = LimitMessage { version: LIMITS_VERSION, from, sent, endpoints };
    let frame = message_frame(&ReplicaMessage::Limits(message.clone()));
    let mut bytes = BytesMut::new();
    assert!(append_frame(&frame, &mut bytes));
    assert!(bytes.len() < 52_000, "{} bytes", bytes.len());
    assert_eq!(limits_of(&frame), Ok(message.clone()));
    // One more, or another version.
    message.endpoints.push(message.endpoints[0].clone());
    let refused = limits_of(&message_frame(&ReplicaMessage::Limits(message.clone())));
    assert_eq!(refused, Err(WireError::Absurd));
    message.version += 1;
    let refused = limits_of(&message_frame(&ReplicaMessage::Limits(message)));
    assert_eq!(refused, Err(WireError::Version));
}

#[test]
fn largest_message_of_tokens_fits_in_a_frame() {
    let member = "[ffff::ffff]:65535".parse().unwrap();
    let from = ReplicaIdentity { member, incarnation: u64::MAX };
    let tokens = TokenAmount { limit: LimitId(u64::MAX), key: u128::MAX - 1, micros: u64::MAX };
    let mut message = TokenMessage {
        version: TOKENS_VERSION,
        from,
        to: from,
        sent: Time::MAX,
        gift: u64::MAX,
        gift_seen: 7,
        gifts: vec![tokens; MAX_TOKEN_ENTRIES],
        wishes: vec![tokens; MAX_TOKEN_ENTRIES],
    };
    let frame = |message: &TokenMessage| message_frame(&ReplicaMessage::Tokens(message.clone()));
    let decoded = |message: &TokenMessage| match frame(message).body {
        Some(FrameBody::Tokens(tokens)) => TokenMessage::try_from(tokens),
        other => panic!("{other:?}"),
    };
    let mut bytes = BytesMut::new();
    assert!(append_frame(&frame(&message), &mut bytes));
    assert!(bytes.len() < 22_000, "{} bytes", bytes.len());
    assert_eq!(decoded(&message), Ok(message.clone()));
    message.gifts.push(tokens);
    assert_eq!(decoded(&message), Err(WireError::Absurd));
    message.version += 1;
    assert_eq!(decoded(&message), Err(WireError::Version));
}

proptest! {
    #[test]
    fn messages_survive_the_wire_in_any_pieces(
        messages in vec(message(), 1..4),
        piece in 1_usize..300,
    ) {
        let mut bytes = BytesMut::new();
        for message in &messages {
            let frame = message_frame(&ReplicaMessage::Lease(message.clone()));
            assert!(append_frame(&frame, &mut bytes));
        }
        let frames = decode(&bytes, piece).unwrap();
        let decoded: Result<Vec<LeaseMessage>, _> =
            frames.into_iter().map(|frame| lease_of(frame).try_into()).collect();
        prop_assert_eq!(decoded.unwrap(), messages);
    }

    #[test]
    fn learned_limits_survive_the_wire(message in limits(), piece in 1_usize..300) {
        let mut bytes = BytesMut::new();
        assert!(append_frame(&message_frame(&ReplicaMessage::Limits(message.clone())), &mut bytes));
        let frames = decode(&bytes, piece).unwrap();
        prop_assert_eq!(frames.len(), 1);
        prop_assert_eq!(limits_of(&frames[0]), Ok(message));
    }

    #[test]
    fn random_bytes_are_refused_or_ignored(bytes in vec(any::<u8>(), 0..2000)) {
        // As frames with their length, so that the protobuf is decoded too.
        let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&bytes);
        for bytes in [&frame, &bytes] {
            if let Ok(frames) = decode(bytes, 500) {
                for frame in frames {
                    if let Some(FrameBody::Lease(lease)) = frame.body {
                        let _judged: Result<LeaseMessage, _> = lease.try_into();
                    } else if let Some(FrameBody::Limits(limits)) = frame.body {
                        let _judged: Result<LimitMessage, _> = limits.try_into();
                    }
                }
            }
        }
    }

    #[test]
    fn changed_bytes_of_a_message_are_refused_or_another_message(
        message in message(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let frame = message_frame(&ReplicaMessage::Lease(message));
        let mut bytes = frame.encode_to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(WireFrame { body: Some(FrameBody::Lease(lease)) }) = WireFrame::decode(&*bytes)
            && let Ok(message) = LeaseMessage::try_from(lease)
        {
            let frame = message_frame(&ReplicaMessage::Lease(message.clone()));
            prop_assert_eq!(LeaseMessage::try_from(lease_of(frame)), Ok(message));
        }
    }
}

#[test]
fn largest_message_fits_in_a_frame() {
    let endpoint = "[ffff::ffff]:65535".parse().unwrap();
    let me = ReplicaIdentity { member: endpoint, incarnation: u64::MAX };
    let message = lease(me, me, u64::MAX, MAX_MESSAGE_ENTRIES);
    let ReplicaMessage::Lease(mut message) = message else { panic!("{message:?}") };
    for entry in &mut message.lent {
        entry.endpoint = endpoint;
    }
    let returned = ReturnedEntry { endpoint, returned: u64::MAX };
    message.returned = vec![returned; MAX_MESSAGE_ENTRIES];
    let state = PoolState {
        free: u32::MAX,
        queued: u32::MAX,
        priority: PriorityLevel::ALL[PriorityLevel::COUNT - 1],
        first_queued: u32::MAX,
        oldest_wait: Duration::from_nanos(u64::MAX),
        demand_milli: u64::MAX,
    };
    let pool = PoolEntry { pool: PoolKey(u64::MAX), state, wanted: u32::MAX };
    message.pools = vec![pool; MAX_MESSAGE_ENTRIES];
    let frame = message_frame(&ReplicaMessage::Lease(message.clone()));
    let mut bytes = BytesMut::new();
    assert!(append_frame(&frame, &mut bytes));
    assert!(bytes.len() < 37_000, "{} bytes", bytes.len());
    assert_eq!(LeaseMessage::try_from(lease_of(frame)), Ok(message));
}

#[test]
fn pool_of_an_older_sender_has_the_default_priority() {
    // Fields 1 (pool), 3 (queued) and 6 (wanted).
    let pool = [&[0x09][..], &[7; 8], &[0x18, 5], &[0x30, 4]].concat();
    let identity = field(1, &field(1, &[10, 0, 0, 1]));
    let identities = [field(2, &identity), field(3, &identity)].concat();
    let lease = [&[8, LEASE_VERSION as u8][..], &identities, &field(10, &pool)].concat();
    let frame = WireFrame::decode(&*field(2, &lease)).unwrap();
    let message = LeaseMessage::try_from(lease_of(frame)).unwrap();
    let state = PoolState { queued: 5, first_queued: 5, ..PoolState::default() };
    let pool = PoolKey(u64::from_le_bytes([7; 8]));
    assert_eq!(message.pools, [PoolEntry { pool, state, wanted: 4 }]);
}

/// Encodes a field of protobuf with a length.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[tag << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[test]
fn impossible_fields_are_refused() {
    let identity = |ip: &[u8], port: &[u8]| field(1, &[&field(1, ip), port].concat());
    let check = |from: &[u8]| {
        let to = identity(&[10, 0, 0, 2], &[]);
        let lease = [&[8, LEASE_VERSION as u8][..], &field(2, from), &field(3, &to)].concat();
        let frame = WireFrame::decode(&*field(2, &lease)).unwrap();
        LeaseMessage::try_from(lease_of(frame)).map(|message| message.from.member)
    };
    assert_eq!(check(&identity(&[10, 0, 0, 1], &[0x10, 80])), Ok(([10, 0, 0, 1], 80).into()));
    assert_eq!(check(&identity(&[1; 16], &[])), Ok(([257_u16; 8], 0).into()));
    for ip in [&[][..], &[1, 2, 3], &[1; 5], &[1; 15], &[1; 17]] {
        assert_eq!(check(&identity(ip, &[])), Err(WireError::Absurd));
    }
    let port_65536 = [0x10, 0x80, 0x80, 0x04];
    assert_eq!(check(&identity(&[1; 4], &port_65536)), Err(WireError::Absurd));
    assert_eq!(check(&[]), Err(WireError::Absurd), "without an address");
}

#[test]
fn other_versions_and_unknown_kinds_are_known_as_such() {
    let newer = WireFrame::decode(&*field(2, &[8, 2])).unwrap();
    assert_eq!(LeaseMessage::try_from(lease_of(newer)), Err(WireError::Version));
    let unknown = WireFrame::decode(&*field(9, b"later")).unwrap();
    assert_eq!(unknown.body, None);
}
