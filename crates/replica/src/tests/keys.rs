//! Shared keys: wire form, and the connections that carry them.

use balance::shared_keys::{KeyMessage, KeyOffer, KeySecret, MAX_SHARED_KEYS, OFFER_TIME};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::frame::message_frame;
use crate::wire::{FrameBody, WireError};

fn offer(secret: [u8; 32], age: Duration) -> KeyOffer {
    KeyOffer { secret: Arc::new(KeySecret::new(secret)), age }
}

fn keys(count: usize) -> ReplicaMessage {
    let keys = (0..count).map(|at| offer([at as u8; 32], OFFER_TIME)).collect();
    ReplicaMessage::TicketKeys(KeyMessage { keys })
}

fn decode(frame: WireFrame) -> Result<ReplicaMessage, WireError> {
    match frame.body {
        Some(FrameBody::TicketKeys(keys)) => keys.try_into().map(ReplicaMessage::TicketKeys),
        other => panic!("{other:?}"),
    }
}

/// Returns the frame as the other side reads it.
fn over_the_wire(message: &ReplicaMessage) -> WireFrame {
    let mut bytes = BytesMut::new();
    assert!(append_frame(&message_frame(message), &mut bytes));
    let mut buffer = FrameBuffer::default();
    buffer.append(&bytes);
    buffer.next_frame(MAX_FRAME_BYTES).unwrap().unwrap()
}

/// Returns a frame with these bytes as the only secret.
fn frame_of_secret(secret: &[u8]) -> WireFrame {
    let key = [&[1 << 3 | 2, secret.len() as u8], secret].concat();
    let keys = [&[1 << 3 | 2, key.len() as u8][..], &key].concat();
    let frame = [&[7 << 3 | 2, keys.len() as u8][..], &keys].concat();
    WireFrame::decode(&*frame).unwrap()
}

proptest! {
    #[test]
    fn keys_survive_the_wire(offers in vec((any::<[u8; 32]>(), any::<u64>()), 0..9)) {
        let key = |(secret, age)| offer(secret, Duration::from_millis(age));
        let keys = offers.into_iter().map(key).collect();
        let message = ReplicaMessage::TicketKeys(KeyMessage { keys });
        prop_assert_eq!(decode(over_the_wire(&message)), Ok(message));
    }

    #[test]
    fn random_keys_are_refused_or_ignored(bytes in vec(any::<u8>(), 0..120)) {
        let mut frame = vec![7 << 3 | 2, bytes.len() as u8];
        frame.extend_from_slice(&bytes);
        if let Ok(frame) = WireFrame::decode(&*frame)
            && frame.body.is_some()
        {
            let _judged = decode(frame);
        }
    }
}

#[test]
fn secrets_of_another_length_are_refused() {
    assert!(decode(frame_of_secret(&[1; 32])).is_ok());
    for length in [0, 1, 31, 33, 64] {
        let secret = vec![1; length];
        assert_eq!(decode(frame_of_secret(&secret)), Err(WireError::Absurd), "{length}");
    }
    assert_eq!(decode(over_the_wire(&keys(MAX_SHARED_KEYS + 1))), Err(WireError::Absurd));
    assert!(decode(over_the_wire(&keys(MAX_SHARED_KEYS))).is_ok());
}

#[test]
fn secrets_are_not_shown() {
    let frame = frame_of_secret(&[0xab; 32]);
    let message = decode(frame.clone()).unwrap();
    let shown = format!("{frame:?} {message:?}");
    assert!(!shown.contains("171") && !shown.contains("ab, "), "{shown}");
}

#[tokio::test]
async fn keys_go_over_tls() {
    let authority = TestAuthority::new();
    let mut group = TestReplica::group(2, &authority);
    let (mut other, first) = (group.pop().unwrap(), group.pop().unwrap());
    eventually("connected", || first.is_connected_to(other.me.member)).await;
    first.sender.send_to_all(&keys(MAX_SHARED_KEYS + 1));
    other.refuses(RefusalReason::Absurd, 1).await;
    first.sender.send_to_all(&keys(3));
    assert_eq!(other.receive().await, ReceivedMessage { from: first.me, message: keys(3) });
    assert_eq!(first.count(|it| &it.connects), 1);
}

/// The connection does not end, so leases do not suffer.
#[tokio::test]
async fn keys_are_neither_sent_nor_taken_without_tls() {
    let (mut listeners, members) = listeners(3);
    let third = listeners.pop().unwrap();
    let third_me = ReplicaIdentity { member: third.local_addr().unwrap(), incarnation: 5 };
    let start = |listener| TestReplica::start(listener, &members, None, times());
    let mut group: Vec<_> = listeners.into_iter().map(start).collect();
    let (mut other, first) = (group.pop().unwrap(), group.pop().unwrap());
    eventually("connected", || first.is_connected_to(other.me.member)).await;
    // What is sent after the keys arrives first.
    first.sender.send_to_all(&keys(3));
    first.send(&other, 7);
    assert_eq!(other.receive_until(7).await, [7]);
    assert_eq!(other.sender.counts().refused(RefusalReason::Unencrypted), 0, "none is sent");
    // A peer that sends them nevertheless.
    let mut peer = RawPeer::dial(other.me.member, &ChannelSecurity::Plaintext).await.unwrap();
    peer.introduce(third_me).await;
    peer.send(&message_frame(&keys(3))).await;
    other.refuses(RefusalReason::Unencrypted, 1).await;
    peer.send(&message_frame(&lease(third_me, other.me, 8, 0))).await;
    assert_eq!(other.receive_until(8).await, [8]);
}
