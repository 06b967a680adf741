//! Tests of connections, over sockets.

use rustbgpd_wire::{Message, encode_message};
use tokio::io::duplex;
use tokio::sync::watch::channel;

use super::*;
use crate::session::tests::{messages, open, session};

/// Runs a session with a router that is a task of the test, which has this much buffer.
async fn run_with<F: Future<Output = ()>>(
    buffer: usize,
    routes: RouteTable,
    router: impl FnOnce(tokio::io::DuplexStream) -> F,
) -> (String, SharedReport) {
    let (ours, theirs) = duplex(buffer);
    let (_routes, mut routes) = channel(routes);
    let (_stop, mut stop) = channel(None);
    let report = SharedReport::new("router");
    let inputs =
        SessionInputs { routes: &mut routes, stop: &mut stop, hold_time: Duration::from_secs(9) };
    let (reason, ()) = tokio::join!(run(ours, session(), inputs, &report), router(theirs));
    (reason, report)
}

async fn send(stream: &mut tokio::io::DuplexStream, message: &Message) {
    stream.write_all(&encode_message(message).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn routes_reach_the_router_and_the_end_of_the_connection_is_the_end() {
    let routes = RouteTable::from([([192, 0, 2, 1].into(), Default::default())]);
    let (reason, report) = run_with(64 * 1024, routes, async |mut stream| {
        send(&mut stream, &open(65001)).await;
        send(&mut stream, &Message::Keepalive).await;
        let mut received = BytesMut::new();
        let mut found = Vec::new();
        while !found.iter().any(|it| matches!(it, Message::Update(_))) {
            stream.read_buf(&mut received).await.unwrap();
            found.extend(messages(&mut received));
        }
    })
    .await;
    assert_eq!(reason, "the router closed the connection");
    let counts = report.lock().counts;
    assert_eq!((counts.established, counts.updates_sent), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn router_that_takes_no_data_is_dead() {
    let routes = (0..=255).map(|n| ([192, 0, 2, n].into(), Default::default())).collect();
    let (reason, _) = run_with(256, routes, async |mut stream| {
        send(&mut stream, &open(65001)).await;
        loop {
            let sent = encode_message(&Message::Keepalive).unwrap();
            if stream.write_all(&sent).await.is_err() {
                return;
            }
            // The interval of the router's KEEPALIVEs, on the paused clock.
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    })
    .await;
    assert_eq!(reason, "the router takes no data");
}
