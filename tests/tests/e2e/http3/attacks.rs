//! Protocol violations, floods and starvation. Sheave bounds or ends each at a small cost and
//! counts it, and serves other clients meanwhile.

use std::net::SocketAddr;

use anyhow::{Result as Outcome, ensure};
use serde_json::json;
use tests::http3::{PacketOverride, RawHttp3Connection, block, code, frame, initial_datagrams};
use tests::random::SeededRandom;
use tests::{Endpoint, EndpointBehaviour, Result, within};
use tokio::net::UdpSocket;

use super::fixture::Http3Fixture;

/// Memory that an attack may cost: far more than it does, far less than it asks for.
const MAX_MEMORY_GROWTH: u64 = 24 << 20;

/// Returns a site that answers at once, and its memory size then.
async fn attack_target(policy: serde_json::Value) -> Result<(Http3Fixture, Endpoint, u64)> {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    ensure!(site.client().await?.get("/").await?.status() == 200);
    let memory = site.sheave.memory_bytes()?;
    Ok((site, endpoint, memory))
}

/// Checks that the attack has cost little memory and that other clients are served.
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

/// Rapid reset (CVE-2023-44487): requests that are cancelled as soon as they are sent. The
/// connection is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset_flood_closes_the_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let wire = site.raw_connection().await?;
    let flood = async {
        while let Ok((mut sending, mut receiving)) = wire.open_request_stream(&get()).await {
            // An error here means that the connection is closed, which the next request shows.
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

/// Frames of a reserved type (RFC 9114 §7.2.8), which are skipped: the connection is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_frame_flood_closes_the_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let wire = site.raw_connection().await?;
    let reserved = frame(0x21, b"").repeat(100);
    let flood = async {
        let (mut sending, _receiving) = wire.open_request_stream(&reserved).await?;
        while sending.write_all(&reserved).await.is_ok() {}
        Outcome::<()>::Ok(())
    };
    within("the end of the flood", flood).await??;
    assert_eq!(wire.wait_for_close_code().await?, Some(code::EXCESSIVE_LOAD));
    site.wait_for_metric("sheave_http3_connections_ended_total", "excess").await?;
    check_health(&site, memory).await
}

/// The same on the control stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_frame_flood_closes_the_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let mut wire = site.raw_connection().await?;
    let updates = frame(code::MAX_PUSH_ID, &[0]).repeat(100);
    let flood = async { while wire.control.write_all(&updates).await.is_ok() {} };
    within("the end of the flood", flood).await?;
    assert_eq!(wire.wait_for_close_code().await?, Some(code::EXCESSIVE_LOAD));
    site.wait_for_metric("sheave_http3_connections_ended_total", "excess").await?;
    check_health(&site, memory).await
}

/// Frames of QUIC itself that serve no request, hundreds in each datagram: the connection is closed, before the library
/// has processed many of them, and others are served meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_frame_flood_closes_the_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let client = site.client().await?;
    let ended = async || {
        let samples = site.sheave.metric_samples("sheave_http3_connections_ended_total").await?;
        let floods = samples.iter().filter(|(labels, _)| labels.contains("\"excess\""));
        Outcome::<f64>::Ok(floods.map(|(_, count)| count).sum())
    };
    let frames: [&[u8]; 5] = [
        // PING, MAX_DATA, PATH_CHALLENGE, an empty STREAM frame, STREAMS_BLOCKED (RFC 9000 §19).
        &[0x01],
        &[0x10, 0x01],
        &[0x1a, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x0a, 0x02, 0x00],
        &[0x16, 0x01],
    ];
    for (floods, frame) in frames.into_iter().enumerate() {
        let packets = PacketOverride::default();
        let config = packets.config(site.tls_options.quic_crypto()?);
        let wire = RawHttp3Connection::connect_with(site.sheave.address(), config).await?;
        let (mut sending, _receiving) = wire.open_request_stream(&get()).await?;
        packets.repeat(frame);
        // The bytes give the packets their size; none of them arrives.
        let load = async { while sending.write_all(&[0; 10_000]).await.is_ok() {} };
        within("the end of the flood", load).await?;
        let end = wire.wait_for_close_code().await?;
        ensure!(end == Some(code::EXCESSIVE_LOAD), "{frame:02x?}: {end:?}");
        ensure!(client.get("/").await?.status() == 200);
        tests::eventually("a count", ended, |ended| *ended as usize == floods + 1).await?;
    }
    check_health(&site, memory).await
}

/// If a head does not end within its timeout, Sheave answers with an error.
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

/// A violation of HTTP/3 closes the connection, and is counted.
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

/// A malformed request ends its stream, not the connection.
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

/// Silent streams cost nothing but their identifier, and no longer than the head timeout.
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

/// Returns a UDP socket with a port of its own, connected to Sheave's UDP port.
async fn connect_udp(to: SocketAddr) -> Outcome<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// Garbage is dropped. No response is larger than the datagram, and running connections are not
/// disturbed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_datagrams_disturb_no_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let client = site.client().await?;
    let socket = connect_udp(site.sheave.address()).await?;
    let mut random = SeededRandom::new(6);
    for number in 0..20_000 {
        let length = random.below(1400) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        // If the buffer is full, the garbage is dropped on the way.
        drop(socket.send(&bytes).await);
        if number % 1000 == 0 {
            ensure!(client.get("/").await?.status() == 200);
        }
    }
    check_health(&site, memory).await
}

/// If the version is unknown, the client gets the list of known versions (RFC 9000 §6).
#[tokio::test]
async fn unknown_versions_are_negotiated() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let socket = connect_udp(site.sheave.address()).await?;
    // Version 0 marks such a response itself: a response to it would never end.
    socket.send(&long_header(0, 3)).await?;
    socket.send(&long_header(0x0a0a_0a0a, 2)).await?;
    let mut answer = vec![0; 2000];
    let length = within("an answer", socket.recv(&mut answer)).await??;
    let answer = &answer[..length];
    ensure!(answer[0] & 0x80 != 0 && answer[1..5] == [0; 4], "{answer:02x?}");
    ensure!(
        answer[5..14] == [8, 2, 2, 2, 2, 2, 2, 2, 2],
        "the first response is not to the second datagram: {answer:02x?}"
    );
    ensure!(answer.windows(4).any(|version| version == [0, 0, 0, 1]), "{answer:02x?}");
    check_health(&site, memory).await
}

/// Returns a datagram that begins a connection of this version (RFC 8999 §5.1), with this source
/// connection ID.
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

/// Thousands of unfinished handshakes cost a bounded memory. Running connections are not disturbed,
/// and a new client connects meanwhile, after address validation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_flood_is_bounded_and_disturbs_no_connection() -> Result {
    let (site, _endpoint, memory) = attack_target(json!({})).await?;
    let client = site.client().await?;
    let flood = initial_datagrams(&site.tls_options, "test", 8000)?;
    for burst in flood.chunks(400) {
        // A new port each time, like a client with forged addresses.
        let socket = connect_udp(site.sheave.address()).await?;
        for datagram in burst {
            drop(socket.send(datagram).await);
        }
        ensure!(client.get("/").await?.status() == 200);
        ensure!(site.client().await?.get("/").await?.status() == 200);
    }
    ensure!(site.sheave.metric_sum("sheave_quic_retries_total").await? > 0.0);
    // Two workers begin 256 handshakes each before they require address validation; the flood is
    // fifteen times as many.
    let growth = site.sheave.memory_bytes()?.saturating_sub(memory);
    ensure!(growth < 64 << 20, "{growth} bytes more");
    Ok(())
}
