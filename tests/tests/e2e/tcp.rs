//! TCP proxying: balancing by connection, intact data, and the end of each direction.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::endpoint::refusing_address;
use tests::payload::{self, BodyDigest};
use tests::raw::{
    L4Fixture, RawServer, SocketEnd, read_digest, reset, send_and_read_echo, send_pattern,
    wait_for_end,
};
use tests::{Result, eventually, objects};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Small enough for a busy machine, large enough for every copying path.
const LARGE: u64 = 64 * 1024 * 1024;

fn backend_policy(spec: Value) -> Value {
    objects::backend_policy("app", spec)
}

#[tokio::test]
async fn half_closed_client_gets_the_response() -> Result {
    let server = RawServer::start(|mut stream| async move {
        let mut question = Vec::new();
        stream.read_to_end(&mut question).await?;
        stream.write_all(&question.repeat(2)).await?;
        Ok(())
    });
    let server = server.await?;
    let fixture = L4Fixture::tcp(&[server.address], &[], &[]).await?;
    let mut client = fixture.connect().await?;
    client.write_all(b"question").await?;
    client.shutdown().await?;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await?;
    ensure!(answer == b"questionquestion", "{answer:?}");
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn half_closed_endpoint_gets_the_remaining_bytes() -> Result {
    let (received, mut rest) = tokio::sync::mpsc::channel(1);
    let server = RawServer::start(move |mut stream| {
        let received = received.clone();
        async move {
            stream.write_all(b"greeting").await?;
            stream.shutdown().await?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await?;
            Ok(received.send(all).await?)
        }
    });
    let server = server.await?;
    let fixture = L4Fixture::tcp(&[server.address], &[], &[]).await?;
    let mut client = fixture.connect().await?;
    let mut greeting = Vec::new();
    client.read_to_end(&mut greeting).await?;
    ensure!(greeting == b"greeting", "{greeting:?}");
    client.write_all(b"the rest").await?;
    client.shutdown().await?;
    ensure!(rest.recv().await.context("the rest")? == b"the rest");
    fixture.sheave.wait_until_idle().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_stream_arrives_whole_both_ways() -> Result {
    let server = RawServer::echo().await?;
    let fixture = L4Fixture::tcp(&[server.address], &[], &["--access-log", "on"]).await?;
    let (from, to) = fixture.connect().await?.into_split();
    let (sent, back) = tokio::join!(send_pattern(to, LARGE), read_digest(from));
    sent?;
    ensure!(back? == BodyDigest::of_pattern(LARGE));
    let line = fixture.sheave.wait_for_access_log(1).await?.remove(0);
    ensure!(line["sheave.received_bytes"] == LARGE && line["sheave.sent_bytes"] == LARGE, "{line}");
    ensure!(line["network.transport"] == "tcp" && line.get("error.type").is_none(), "{line}");
    for metric in ["listener_received", "listener_sent", "backend_sent", "endpoint_received"] {
        let bytes = fixture.sheave.metric_sum(&format!("sheave_{metric}_bytes_total")).await?;
        ensure!(bytes == LARGE as f64, "{metric}: {bytes}");
    }
    Ok(())
}

#[tokio::test]
async fn slow_reader_applies_back_pressure() -> Result {
    const CLIENTS: usize = 16;
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    let server = RawServer::start(move |mut stream| {
        let counted = counted.clone();
        async move {
            for piece in payload::pieces(LARGE) {
                stream.write_all(piece).await?;
                counted.fetch_add(piece.len() as u64, Ordering::SeqCst);
            }
            Ok(())
        }
    });
    let server = server.await?;
    let fixture = L4Fixture::tcp(&[server.address], &[], &["--workers", "1"]).await?;
    let before = fixture.sheave.memory_bytes()?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(16 * 1024)?;
        clients.push(socket.connect(fixture.listener_address("127.0.0.1")?).await?);
    }
    let mut last = u64::MAX;
    let progress = async || {
        // It is stuck if nothing is sent in this time.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = sent.load(Ordering::SeqCst);
        Ok((now, now == std::mem::replace(&mut last, now)))
    };
    let (stuck, _) =
        eventually("back-pressure", progress, |(sent, same)| *sent > 0 && *same).await?;
    ensure!(stuck < CLIENTS as u64 * LARGE / 2, "{stuck} bytes were taken from the endpoint");
    let grown = fixture.sheave.memory_bytes()?.saturating_sub(before);
    // A buffer of 256 KiB for each connection, and the worker's own.
    ensure!(grown < 12 * 1024 * 1024, "{grown} bytes for {CLIENTS} connections");

    let (from, _to) = clients.remove(0).into_split();
    ensure!(read_digest(from).await? == BodyDigest::of_pattern(LARGE), "data was lost meanwhile");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_respect_the_cap_and_none_is_lost_in_the_queue() -> Result {
    const CLIENTS: usize = 200;
    let servers = [RawServer::echo().await?, RawServer::echo().await?];
    let addresses = servers.each_ref().map(|server| server.address);
    let policy = json!({ "maxInFlightPerEndpoint": 3, "queue": { "timeout": "1h" } });
    let arguments = ["--workers", "4"];
    let fixture = L4Fixture::tcp(&addresses, &[backend_policy(policy)], &arguments).await?;
    let address = fixture.listener_address("127.0.0.1")?;
    let clients: JoinSet<_> = (0..CLIENTS)
        .map(|number| async move {
            let mut stream = TcpStream::connect(address).await?;
            let bytes = number.to_string().into_bytes();
            ensure!(send_and_read_echo(&mut stream, &bytes).await? == bytes);
            stream.shutdown().await?;
            ensure!(wait_for_end(&mut stream).await? == SocketEnd::Graceful);
            Ok(())
        })
        .collect();
    for outcome in clients.join_all().await {
        outcome?;
    }
    for server in &servers {
        ensure!(server.max_open_connections() <= 3, "{} at once", server.max_open_connections());
        ensure!(server.accepted() >= CLIENTS / 4, "{} connections", server.accepted());
    }
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn connection_without_a_slot_is_reset() -> Result {
    let server = RawServer::echo().await?;
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "maxRequests": 1, "timeout": "300ms" },
    });
    let fixture = L4Fixture::tcp(&[server.address], &[backend_policy(policy)], &[]).await?;
    let mut first = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut first, b"x").await? == b"x");
    let begun = Instant::now();
    let mut second = fixture.connect().await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    ensure!(
        fixture.connect_and_wait_for_end().await? == SocketEnd::Reset,
        "a connection over the full queue is not reset"
    );
    ensure!(
        wait_for_end(&mut second).await? == SocketEnd::Reset,
        "a connection over the queue timeout is not reset"
    );
    ensure!(begun.elapsed() >= Duration::from_millis(300));
    ensure!(send_and_read_echo(&mut first, b"y").await? == b"y");
    let failures = fixture.sheave.metric_samples("sheave_failures_total").await?;
    for reason in ["queue_full", "queue_timeout"] {
        let count = failures.iter().find(|(labels, _)| labels.contains(reason));
        ensure!(count.is_some_and(|(_, count)| *count == 1.0), "{reason}: {count:?}");
    }
    Ok(())
}

#[tokio::test]
async fn client_that_leaves_the_queue_loses_no_slot() -> Result {
    let server = RawServer::echo().await?;
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let fixture = L4Fixture::tcp(&[server.address], &[backend_policy(policy)], &[]).await?;
    let mut first = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut first, b"x").await? == b"x");
    let second = fixture.connect().await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    let mut third = fixture.connect().await?;
    fixture.sheave.wait_for_queue_length(2).await?;
    reset(second)?;
    fixture.sheave.wait_for_queue_length(1).await?;
    drop(first);
    ensure!(send_and_read_echo(&mut third, b"z").await? == b"z");
    ensure!(server.accepted() == 2);
    Ok(())
}

#[tokio::test]
async fn refused_connection_is_retried_without_data_loss() -> Result {
    let server = RawServer::echo().await?;
    let dead = refusing_address().await?;
    let fixture = L4Fixture::tcp(&[dead, server.address], &[], &[]).await?;
    for number in 0..20_u8 {
        let mut client = fixture.connect().await?;
        ensure!(send_and_read_echo(&mut client, &[number; 100]).await? == [number; 100]);
    }
    ensure!(server.accepted() == 20);
    ensure!(fixture.sheave.metric_sum("sheave_endpoint_failures_total").await? > 0.0);
    ensure!(fixture.sheave.metric_sum("sheave_backend_retries_total").await? > 0.0);
    Ok(())
}

#[tokio::test]
async fn without_an_endpoint_connections_are_reset() -> Result {
    for to in [vec![], vec![refusing_address().await?]] {
        let fixture = L4Fixture::tcp(&to, &[], &[]).await?;
        ensure!(fixture.connect_and_wait_for_end().await? == SocketEnd::Reset, "{to:?}");
        fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

#[tokio::test]
async fn reset_is_propagated_to_the_other_side() -> Result {
    let (ended, mut ends) = tokio::sync::mpsc::channel(1);
    let server = RawServer::start(move |mut stream| {
        let ended = ended.clone();
        async move {
            let mut byte = [0];
            stream.read_exact(&mut byte).await?;
            stream.write_all(&byte).await?;
            if byte == *b"r" {
                return reset(stream);
            }
            Ok(ended.send(wait_for_end(&mut stream).await?).await?)
        }
    });
    let server = server.await?;
    let fixture = L4Fixture::tcp(&[server.address], &[], &[]).await?;
    let mut client = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut client, b"r").await? == b"r");
    ensure!(wait_for_end(&mut client).await? == SocketEnd::Reset);
    let mut client = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut client, b"c").await? == b"c");
    reset(client)?;
    ensure!(ends.recv().await == Some(SocketEnd::Reset));
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn idle_connection_is_reset() -> Result {
    let server = RawServer::echo().await?;
    let timeout = Duration::from_millis(700);
    let policy = objects::client_policy(json!({ "timeouts": { "stream": "700ms" } }));
    let fixture = L4Fixture::tcp(&[server.address], &[policy], &[]).await?;
    let mut client = fixture.connect().await?;
    let connected = Instant::now();
    let mut last = connected;
    while last < connected + timeout {
        tokio::time::sleep(Duration::from_millis(50)).await; // The pause of a client.
        last = Instant::now();
        ensure!(send_and_read_echo(&mut client, b"x").await? == b"x");
    }
    ensure!(wait_for_end(&mut client).await? == SocketEnd::Reset);
    ensure!(last.elapsed() >= timeout, "{:?}", last.elapsed());
    Ok(())
}

#[tokio::test]
async fn connections_continue_during_drain() -> Result {
    let server = RawServer::echo().await?;
    let mut fixture = L4Fixture::tcp(&[server.address], &[], &["--drain-timeout", "1h"]).await?;
    let mut client = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut client, b"x").await? == b"x");
    fixture.sheave.signal(Signal::TERM)?;
    let refused = async || Ok(fixture.connect().await.is_err());
    eventually("new connections are refused", refused, |refused| *refused).await?;
    ensure!(send_and_read_echo(&mut client, b"y").await? == b"y");
    client.shutdown().await?;
    ensure!(wait_for_end(&mut client).await? == SocketEnd::Graceful);
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

#[tokio::test]
async fn drain_timeout_closes_connections() -> Result {
    let server = RawServer::echo().await?;
    let mut fixture = L4Fixture::tcp(&[server.address], &[], &["--drain-timeout", "300ms"]).await?;
    let mut client = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut client, b"x").await? == b"x");
    fixture.sheave.signal(Signal::TERM)?;
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(2), "connections were cut");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_disturbs_no_connection() -> Result {
    let servers = [RawServer::echo().await?, RawServer::echo().await?, RawServer::echo().await?];
    let addresses = servers.each_ref().map(|server| server.address);
    let fixture = L4Fixture::tcp(&addresses, &[], &["--workers", "2"]).await?;
    let address = fixture.listener_address("127.0.0.1")?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients: JoinSet<_> =
        (0..8).map(|_| exchange_until_stopped(address, stopped.clone())).collect();
    for round in 0..30 {
        let some: Vec<_> = addresses.iter().copied().cycle().skip(round).take(2).collect();
        fixture.set_endpoints(&some)?;
        fixture.sheave.wait_for_endpoints(&some).await?;
    }
    stop.send(true)?;
    let mut rounds = 0;
    for outcome in clients.join_all().await {
        rounds += outcome?;
    }
    ensure!(rounds > 100, "{rounds}");
    Ok(())
}

/// Runs one long connection, and short ones beside it, until it is stopped. Returns the number of
/// rounds.
async fn exchange_until_stopped(
    address: SocketAddr,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> Result<u64> {
    let mut long = TcpStream::connect(address).await?;
    let mut rounds = 0;
    while !*stopped.borrow() {
        ensure!(send_and_read_echo(&mut long, b"long").await? == b"long");
        let mut short = TcpStream::connect(address).await?;
        ensure!(send_and_read_echo(&mut short, b"short").await? == b"short");
        rounds += 1;
    }
    Ok(rounds)
}

#[tokio::test]
async fn wildcard_listener_logs_ipv4_clients_as_ipv4() -> Result {
    let server = RawServer::echo().await?;
    let fixture = L4Fixture::tcp(&[server.address], &[], &["--access-log", "on"]).await?;
    for (number, ip) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        let mut client = TcpStream::connect(fixture.listener_address(ip)?).await?;
        ensure!(send_and_read_echo(&mut client, b"x").await? == b"x");
        drop(client);
        let lines = fixture.sheave.wait_for_access_log(number + 1).await?;
        ensure!(lines[number]["client.address"] == ip, "{}", lines[number]);
    }
    Ok(())
}

#[tokio::test]
async fn listener_enforces_its_connection_limit() -> Result {
    let server = RawServer::echo().await?;
    let policy = objects::client_policy(json!({ "connections": { "max": 1 } }));
    let fixture = L4Fixture::tcp(&[server.address], &[policy], &[]).await?;
    let mut first = fixture.connect().await?;
    ensure!(send_and_read_echo(&mut first, b"x").await? == b"x");
    let mut second = fixture.connect().await?;
    let mut byte = [0];
    let closed = timeout(Duration::from_secs(20), second.read(&mut byte)).await?;
    ensure!(!matches!(closed, Ok(count) if count > 0), "{closed:?}");
    ensure!(fixture.sheave.metric_sum("sheave_listener_connections_refused_total").await? == 1.0);
    ensure!(server.accepted() == 1);
    Ok(())
}
