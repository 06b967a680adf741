//! Renewal of connections and certificates.

use tokio::time::MissedTickBehavior;

use super::*;

/// Sends a thousand messages a second up to this number, and lets something happen every 150 ms.
async fn send_steadily(
    from: &TestReplica,
    to: ReplicaIdentity,
    last: u64,
    mut events: impl Iterator<Item = ()>,
) {
    let mut ticks = interval(Duration::from_millis(1));
    // On a busy machine they are fewer a second, and never several at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1..=last {
        from.sender.send(to.member, lease(from.me, to, number, 0));
        if number % 150 == 0 {
            events.next();
        }
        ticks.tick().await;
    }
}

/// Checks that all messages have come in their order, except those that a newer one has replaced.
fn check(from: &TestReplica, received: &[u64]) {
    assert!(received.is_sorted_by(|one, other| one < other), "out of order");
    let last = *received.last().unwrap();
    let replaced = from.count(|it| &it.messages_replaced);
    assert_eq!(received.len() as u64, last - replaced, "messages are lost");
    let gap = received.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(gap < 50, "{gap} messages replaced at once");
    assert_eq!(from.count(|it| &it.messages_dropped), 0);
}

#[tokio::test]
async fn no_message_is_lost_while_certificates_and_authorities_change() {
    let (old, new) = (TestAuthority::new(), TestAuthority::new());
    let both = format!("{}{}", old.pem, new.pem);
    let mut group = TestReplica::group(2, &old);
    let mut second = group.pop().unwrap();
    let first = group.pop().unwrap();
    let renewals = [
        (&old, &old.pem),
        (&old, &old.pem),
        (&old, &both),
        (&new, &both),
        (&new, &new.pem),
        (&new, &new.pem),
    ];
    let certificates = [first.certificates.clone(), second.certificates.clone()];
    let issued = renewals.map(|(authority, trusted)| {
        certificates.each_ref().map(|_| authority.certificates_with(trusted))
    });
    let events = issued.into_iter().map(|issued| {
        for (replica, issued) in certificates.iter().zip(issued) {
            replica.send_replace(Some(issued));
        }
    });
    eventually("connected", || first.is_connected_to(second.me.member)).await;
    const LAST: u64 = 1_050;
    let sending = send_steadily(&first, second.me, LAST, events);
    let ((), received) = tokio::join!(sending, second.receive_until(LAST));
    check(&first, &received);
    assert!(first.count(|it| &it.connects) > 4, "{}", first.count(|it| &it.connects));
    assert_eq!(first.count(|it| &it.connects_failed), 0);
    let states = first.sender.peer_states();
    let connected_for = states[0].connected_for.unwrap();
    assert!(connected_for > Duration::from_millis(900), "never lost: {states:?}");
}

#[tokio::test]
async fn connections_are_renewed_with_age_and_keep_the_order() {
    let (listeners, members) = listeners(2);
    let young = ChannelTimes { max_age: Duration::from_millis(20), ..times() };
    let start = |listener| TestReplica::start(listener, &members, None, young);
    let mut group: Vec<_> = listeners.into_iter().map(start).collect();
    let mut second = group.pop().unwrap();
    let first = group.pop().unwrap();
    let mut last = 0;
    let mut received = Vec::new();
    while first.count(|it| &it.connects) < 20 {
        last += 1;
        first.send(&second, last);
        received.extend(second.receive_until(last).await);
    }
    assert_eq!(received, (1..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn replica_with_a_wrong_authority_connects_once_it_has_the_right_one() {
    let (right, wrong) = (TestAuthority::new(), TestAuthority::new());
    let (mut listeners, members) = listeners(2);
    let start = |listener, authority: &TestAuthority| {
        TestReplica::start(listener, &members, Some(authority.certificates()), times())
    };
    let mut second = start(listeners.pop().unwrap(), &wrong);
    let first = start(listeners.pop().unwrap(), &right);
    first.send(&second, 1);
    let failed = || first.count(|it| &it.connects_failed) > 1;
    eventually("attempts fail", failed).await;
    let error = first.sender.peer_states()[0].last_error.clone().unwrap();
    assert!(error.contains("certificate is not accepted"), "{error}");
    assert_eq!(first.count(|it| &it.messages_sent), 0);

    first.send(&second, 2);
    second.certificates.send_replace(Some(right.certificates()));
    assert_eq!(second.receive_until(2).await, [2], "the newest message is kept");
}
