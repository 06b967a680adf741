//! Who breaks rules, floods or starves: each costs us little, is ended or bounded, and is counted; others are served.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result as Outcome, ensure};
use quinn_proto::{Endpoint as Quic, EndpointConfig};
use serde_json::json;
use tests::http3::{block, code, frame};
use tests::random::SeededRandom;
use tests::{Endpoint, EndpointBehaviour, Result, within};
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::fixture::Http3Fixture;

/// What an attack may cost in memory: far more than it does, far less than it asks for.
const MAX_MEMORY_GROWTH: u64 = 24 << 20;

/// A site that serves at once, and what it costs then.
async fn attack_target(policy: serde_json::Value) -> Result<(Http3Fixture, Endpoint, u64)> {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    ensure!(site.client().await?.get("/").await?.status() == 200);
    let memory = site.sheave.memory_bytes()?;
    Ok((site, endpoint, memory))
}

/// It has not cost much, and everybody else is served.
async fn check_health(site: &Http3Fixture, memory: u64) -> Result {
    let growth = site.sheave.memory_bytes()?.saturating_sub(memory);
    ensure!(growth < MAX_MEMORY_GROWTH, "{growth} bytes more");
    ensure!(site.client().await?.get("/").await?.status() == 200);
    Ok(())
}

fn get() -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "test")];
    frame(code::HEADERS, &block(&fields))
}

/// Requests that are given up as soon as they are sent (CVE-2023-44487): the connection is ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset_flood_closes_the_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let wire = site.raw_connection().await?;
    let flood = async {
        while let Ok((mut sending, mut receiving)) = wire.open_request_stream(&get()).await {
            // Who is told to go hears so.
            drop(sending.reset(code::REQUEST_CANCELLED.into()));
            drop(receiving.stop(code::REQUEST_CANCELLED.into()));
        }
    };
    within("the end of the flood", flood).await?;
    assert_eq!(wire.wait_for_close_code().await?, Some(code::EXCESSIVE_LOAD));
    site.wait_for_metric("sheave_http3_connections_ended_total", "resets").await?;
    ensure!(site.sheave.metric_sum("sheave_http3_streams_reset_total").await? > 0.0);
    check_health(&site, memory).await
}

/// A head that does not end is waited for as long as the policy says, and answered then.
#[tokio::test]
async fn incomplete_head_is_answered_408() -> Result {
    let (site, _endpoint, memory) =
        attack_target(json!({ "timeouts": { "head": "200ms" } })).await?;
    let wire = site.raw_connection().await?;
    let head = get();
    let (_sending, mut receiving) = wire.open_request_stream(&head[..head.len() - 1]).await?;
    within("an answer", receiving.read_to_end(10_000)).await??;
    let lines = site.sheave.wait_for_access_log(2).await?;
    let line = lines.last().expect("two lines");
    assert_eq!(line["http.response.status_code"], 408);
    assert_eq!(line["error.type"], "head_timeout");
    check_health(&site, memory).await
}

/// What HTTP/3 does not allow ends the connection, and is counted.
#[tokio::test]
async fn protocol_violation_closes_the_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let wire = site.raw_connection().await?;
    // A body without a head.
    let (_sending, _receiving) = wire.open_request_stream(&frame(code::DATA, b"hello")).await?;
    assert_eq!(wire.wait_for_close_code().await?, Some(code::FRAME_UNEXPECTED));
    site.wait_for_metric("sheave_http3_connections_ended_total", "protocol").await?;
    check_health(&site, memory).await
}

/// A request that is malformed is the end of its stream, not of the connection.
#[tokio::test]
async fn malformed_request_is_refused_and_the_connection_stays_open() -> Result {
    let (site, endpoint, memory) = attack_target(json!({})).await?;
    let wire = site.raw_connection().await?;
    let base = [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "test")];
    let upper_case = [&base[..], &[("X-Upper", "1")]].concat();
    let connection = [&base[..], &[("connection", "close")]].concat();
    let out_of_order = [&base[..3], &[("a", "b")], &base[3..]].concat();
    let no_path = [&base[..2], &base[3..]].concat();
    for fields in [upper_case, connection, out_of_order, no_path] {
        let (mut sending, mut receiving) =
            wire.open_request_stream(&frame(code::HEADERS, &block(&fields))).await?;
        sending.finish()?;
        // It is answered with 400, or reset.
        drop(within("an end", receiving.read_to_end(10_000)).await?);
    }
    let (mut sending, mut receiving) = wire.open_request_stream(&get()).await?;
    sending.finish()?;
    ensure!(!within("an answer", receiving.read_to_end(10_000)).await??.is_empty());
    assert_eq!(endpoint.counts().requests, 2);
    check_health(&site, memory).await
}

/// Streams that are opened and say nothing hold nothing but their number, and no longer than heads may take.
#[tokio::test]
async fn silent_streams_time_out() -> Result {
    let (site, _endpoint, memory) =
        attack_target(json!({ "timeouts": { "head": "200ms" } })).await?;
    let wire = site.raw_connection().await?;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(wire.open_request_stream(&[0x01]).await?);
    }
    for (_, receiving) in &mut held {
        within("an answer", receiving.read_to_end(10_000)).await??;
    }
    check_health(&site, memory).await
}

/// A connection to Sheave's UDP port from a port of its own.
async fn connect_udp(to: SocketAddr) -> Outcome<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// Garbage is dropped: nothing is answered with more than was sent, and running connections notice nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_datagrams_disturb_no_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let client = site.client().await?;
    let socket = connect_udp(site.sheave.address()).await?;
    let mut random = SeededRandom::new(6);
    for number in 0..20_000 {
        let length = random.below(1400) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        // A full buffer is garbage that was dropped on the way.
        drop(socket.send(&bytes).await);
        if number % 1000 == 0 {
            ensure!(client.get("/").await?.status() == 200);
        }
    }
    check_health(&site, memory).await
}

/// Who speaks a version that nobody knows is told which ones are known (RFC 9000 §6).
#[tokio::test]
async fn unknown_versions_are_negotiated() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let socket = connect_udp(site.sheave.address()).await?;
    // Version 0 is what such an answer has itself: to answer one would be to go on for ever.
    socket.send(&long_header(0, 3)).await?;
    socket.send(&long_header(0x0a0a_0a0a, 2)).await?;
    let mut answer = vec![0; 2000];
    let length = within("an answer", socket.recv(&mut answer)).await??;
    let answer = &answer[..length];
    ensure!(answer[0] & 0x80 != 0 && answer[1..5] == [0; 4], "{answer:02x?}");
    ensure!(
        answer[5..14] == [8, 2, 2, 2, 2, 2, 2, 2, 2],
        "the second is the first answered: {answer:02x?}"
    );
    ensure!(answer.windows(4).any(|version| version == [0, 0, 0, 1]), "{answer:02x?}");
    check_health(&site, memory).await
}

/// A datagram that begins a connection in this version (RFC 8999 §5.1), whose client calls itself so.
fn long_header(version: u32, client: u8) -> Vec<u8> {
    let mut datagram = vec![0xc0];
    datagram.extend_from_slice(&version.to_be_bytes());
    for name in [1, client] {
        datagram.push(8);
        datagram.extend_from_slice(&[name; 8]);
    }
    datagram.resize(1200, 0);
    datagram
}

/// What so many clients begin with who are not heard of again: their whole ClientHello, in one datagram or two.
fn initial_datagrams(site: &Http3Fixture, clients: usize) -> Outcome<Vec<Vec<u8>>> {
    let mut quic = Quic::new(Arc::new(EndpointConfig::default()), None, true, None);
    let config = site.tls_options.quic_config()?;
    let now = Instant::now().into_std();
    let mut datagrams = Vec::new();
    for _ in 0..clients {
        let connected = quic.connect(now, config.clone(), site.sheave.address(), "test");
        let (_, mut connection) = connected?;
        loop {
            let mut datagram = Vec::new();
            if connection.poll_transmit(now, 1, &mut datagram).is_none() {
                break;
            }
            datagrams.push(datagram);
        }
    }
    Ok(datagrams)
}

/// Thousands who begin a handshake and leave cost a bounded memory; running connections go on, and who comes in the middle
/// of it is let in, after it has shown where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_flood_is_bounded_and_disturbs_no_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let client = site.client().await?;
    let flood = initial_datagrams(&site, 8000)?;
    for burst in flood.chunks(400) {
        // From another port each time, as who forges addresses does.
        let socket = connect_udp(site.sheave.address()).await?;
        for datagram in burst {
            drop(socket.send(datagram).await);
        }
        ensure!(client.get("/").await?.status() == 200);
        ensure!(site.client().await?.get("/").await?.status() == 200);
    }
    ensure!(site.sheave.metric_sum("sheave_quic_retries_total").await? > 0.0);
    // Two workers begin 256 handshakes each before they ask for more; the flood is fifteen times as many.
    let growth = site.sheave.memory_bytes()?.saturating_sub(memory);
    ensure!(growth < 64 << 20, "{growth} bytes more");
    Ok(())
}
