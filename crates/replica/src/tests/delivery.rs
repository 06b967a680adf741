//! Delivery, order, restarts, back-pressure.

use tokio::net::TcpSocket;
use tokio::time::Instant;

use super::*;
use crate::frame::message_frame;
use crate::wire::FrameBody;

#[tokio::test]
async fn three_replicas_exchange_messages() {
    let mut group = TestReplica::group(3, &TestAuthority::new());
    for from in 0..3 {
        for to in (0..3).filter(|&to| to != from) {
            let message = lease(group[from].me, group[to].me, 7, 256);
            group[from].sender.send(group[to].me.member, message.clone());
            let received = group[to].receive().await;
            assert_eq!(received, ReceivedMessage { from: group[from].me, message });
        }
    }
    for replica in &group {
        let states = replica.sender.peer_states();
        assert_eq!(states.len(), 2);
        assert!(states.iter().all(|it| it.connected_for.is_some()), "{states:?}");
        assert_eq!(replica.count(|it| &it.messages_sent), 2);
        assert_eq!(replica.count(|it| &it.messages_received), 2);
        assert!(RefusalReason::ALL.iter().all(|&it| replica.sender.counts().refused(it) == 0));
    }
}

#[tokio::test]
async fn restarted_replica_is_reached_again() {
    let authority = TestAuthority::new();
    let (mut listeners, members) = listeners(2);
    let start = |listener, run| {
        let certificates = Some(authority.certificates());
        TestReplica::start_again(listener, run, &members, certificates, times())
    };
    let mut second = start(listeners.pop().unwrap(), 1);
    let mut first = start(listeners.pop().unwrap(), 1);
    for run in 2..5 {
        first.send(&second, run);
        assert_eq!(second.receive_until(run).await, [run]);
        let member = second.me.member;
        drop(second);
        eventually("the loss is noticed", || !first.is_connected_to(member)).await;
        assert!(first.sender.peer_states()[0].last_error.is_some());
        let mut listener = None;
        eventually("the address is free", || {
            listener = TcpListener::bind(member).ok();
            listener.is_some()
        })
        .await;
        second = start(listener.unwrap(), run);
        second.send(&first, run);
        let received = first.receive().await;
        assert_eq!((received.from, number(&received.message)), (second.me, run));
    }
}

#[tokio::test]
async fn replica_that_leaves_gets_nothing_until_it_is_back() {
    let mut group = TestReplica::group(3, &TestAuthority::new());
    let all = Arc::clone(&group[0].members.borrow());
    let (first, third) = (group[0].me.member, group[2].me.member);
    group[0].send(&group[2], 1);
    group[2].receive_until(1).await;

    group[0].members.send_replace(Arc::from(&all[..2]));
    eventually("the peer is forgotten", || group[0].sender.peer_states().len() == 1).await;
    group[0].send(&group[2], 2);
    assert_eq!(group[0].count(|it| &it.messages_dropped), 1);
    eventually("its connection is closed", || !group[2].is_connected_to(first)).await;
    group[0].refuses(RefusalReason::UnknownMember, 1).await;

    group[0].members.send_replace(all);
    eventually("the peer is known", || group[0].is_connected_to(third)).await;
    group[0].send(&group[2], 3);
    assert_eq!(group[2].receive_until(3).await, [3]);
    group[2].send(&group[0], 4);
    assert_eq!(group[0].receive_until(4).await, [4]);
}

#[tokio::test]
async fn consumer_that_lags_pauses_reading_and_gets_the_newest_message() {
    let mut group = TestReplica::group(2, &TestAuthority::new());
    let mut last = 0;
    // About 14 kB each.
    while group[0].count(|it| &it.messages_replaced) < 100 {
        last += 1;
        let message = lease(group[0].me, group[1].me, last, 256);
        group[0].sender.send(group[1].me.member, message);
        tokio::task::yield_now().await;
        assert!(last < 1_000_000, "the sender is never slowed down");
    }
    let in_transit = group[0].count(|it| &it.messages_sent);
    assert!(in_transit < 1_000, "{in_transit} messages in buffers");
    let received = group[1].receive_until(last).await;
    assert!(received.is_sorted_by(|one, other| one < other), "{received:?}");
}

/// A member whose connections a test serves by hand, without TLS.
struct RawMember {
    listener: tokio::net::TcpListener,
    me: ReplicaIdentity,
}

impl RawMember {
    /// Returns the member and its address. Its connections have a small receive buffer.
    fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(8).unwrap();
        let me = ReplicaIdentity { member: listener.local_addr().unwrap(), incarnation: 9 };
        Self { listener, me }
    }

    async fn accept(&self) -> RawPeer {
        let (socket, _) = self.listener.accept().await.unwrap();
        let mut peer = RawPeer { connection: Box::new(socket), buffer: FrameBuffer::default() };
        receive_hello(&mut peer.connection, &mut peer.buffer).await.unwrap();
        send_hello(&mut peer.connection, self.me).await.unwrap();
        peer
    }
}

/// Sends until no more messages leave, and returns the number of the last one.
async fn fill(replica: &TestReplica, to: ReplicaIdentity) -> u64 {
    let mut last = 0;
    let mut sent_at = Instant::now();
    let mut sent = 0;
    while sent_at.elapsed() < Duration::from_millis(100) {
        last += 1;
        replica.sender.send(to.member, lease(replica.me, to, last, 256));
        tokio::task::yield_now().await;
        let now_sent = replica.count(|it| &it.messages_sent);
        if now_sent > sent {
            (sent, sent_at) = (now_sent, Instant::now());
        }
    }
    last
}

#[tokio::test]
async fn peer_that_does_not_read_costs_bounded_memory_and_gets_the_newest_message() {
    let raw = RawMember::new();
    let (mut listeners, mut members) = listeners(1);
    members.push(raw.me.member);
    let replica = TestReplica::start(listeners.remove(0), &members, None, times());
    let mut peer = raw.accept().await;
    let last = fill(&replica, raw.me).await;
    let bytes = replica.count(|it| &it.bytes_sent);
    assert!(bytes < 4 * SOCKET_BUFFER_BYTES as u64, "{bytes} bytes in buffers");
    assert!(replica.count(|it| &it.messages_replaced) > 0);

    let newest = message_frame(&lease(replica.me, raw.me, last, 256));
    let mut older = 0;
    loop {
        let frame = peer.next_frame().await;
        if frame == newest {
            break;
        }
        older += u64::from(matches!(frame.body, Some(FrameBody::Lease(_))));
    }
    assert_eq!(older + 1, last - replica.count(|it| &it.messages_replaced));
}

#[tokio::test]
async fn peer_that_does_not_read_is_disconnected_and_dialled_again() {
    let raw = RawMember::new();
    let (mut listeners, mut members) = listeners(1);
    members.push(raw.me.member);
    let impatient = ChannelTimes { write: Duration::from_millis(50), ..times() };
    let replica = TestReplica::start(listeners.remove(0), &members, None, impatient);
    let _stuck = raw.accept().await;
    let last = fill(&replica, raw.me).await;
    let mut peer = timeout(PATIENCE, raw.accept()).await.unwrap();
    replica.sender.send(raw.me.member, lease(replica.me, raw.me, last + 1, 0));
    let newest = message_frame(&lease(replica.me, raw.me, last + 1, 0));
    while peer.next_frame().await != newest {}
}

#[tokio::test]
async fn idle_connection_carries_keep_alives() {
    let frequent = ChannelTimes { keep_alive: Duration::from_millis(20), ..times() };
    let (listeners, members) = listeners(2);
    let start = |listener| TestReplica::start(listener, &members, None, frequent);
    let group: Vec<_> = listeners.into_iter().map(start).collect();
    // Each has four bytes.
    eventually("they arrive", || group[0].count(|it| &it.bytes_received) > 80).await;
    assert_eq!(group[1].count(|it| &it.connects), 1);
    assert_eq!(group[0].count(|it| &it.messages_received), 0);
}

#[tokio::test]
async fn connection_without_frames_is_closed() {
    let raw = RawMember::new();
    let (mut listeners, mut members) = listeners(1);
    members.push(raw.me.member);
    let impatient = ChannelTimes { idle: Duration::from_millis(50), ..times() };
    let replica = TestReplica::start(listeners.remove(0), &members, None, impatient);
    let mut silent = RawPeer::dial(replica.me.member, &ChannelSecurity::Plaintext).await.unwrap();
    assert_eq!(silent.introduce(raw.me).await, replica.me);
    silent.is_closed().await;
}

#[tokio::test]
async fn plaintext_beyond_loopback_is_an_error() {
    let outside: SocketAddr = "10.0.0.1:7".parse().unwrap();
    let (mut listeners, mut members) = listeners(2);
    let me = ReplicaIdentity { member: members[0], incarnation: 1 };
    let settings = |listener, members: &[SocketAddr]| ChannelSettings {
        me,
        listener,
        port: 0,
        members: watch::channel(Arc::from(members)).1,
        certificates: watch::channel(None).1,
        times: times(),
    };
    let error = |settings| start_channel(settings).unwrap_err().to_string();
    let beyond = "replicas need certificates: 10.0.0.1:7 is not a loopback address";
    assert_eq!(error(settings(listeners.pop().unwrap(), &[outside])), beyond);
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    assert!(error(settings(everywhere, &members)).contains("0.0.0.0"));

    let replica = TestReplica::start(listeners.pop().unwrap(), &members, None, times());
    members.push(outside);
    replica.members.send_replace(Arc::from(&*members));
    let counts = Arc::clone(replica.sender.counts());
    eventually("refused", || counts.updates_refused.load(Ordering::Relaxed) == 1).await;
    assert_eq!(replica.sender.peer_states().len(), 1, "the former members stay");
    replica.certificates.send_replace(Some(TestAuthority::new().certificates()));
    eventually("accepted", || replica.sender.peer_states().len() == 2).await;
}
