//! The PROXY protocol, tested from outside: trusted proxies, rejected headers, and headers sent to
//! endpoints.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tests::fixture::start_endpoints;
use tests::raw::{L4Fixture, RawServer, SocketEnd, send_and_read_echo, wait_for_end};
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, objects};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

const HEADERS: &str = include_str!("../../data/strict-proxy-headers.tsv");
const HEADER: &str = "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Address of a trusted proxy, and of an untrusted peer.
const TRUSTED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const UNTRUSTED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn policy(proxy_protocol: &str) -> Value {
    json!({ "proxyProtocol": proxy_protocol, "trustedProxies": ["127.0.0.1/32"] })
}

async fn failures(fixture: &HttpFixture, reason: &str) -> Result<f64> {
    let samples = fixture.sheave.metric_samples("sheave_failures_total").await?;
    let found = samples.into_iter().find(|(labels, _)| labels.contains(&format!("\"{reason}\"")));
    Ok(found.context("a reason")?.1)
}

#[tokio::test]
async fn proxy_headers_are_accepted_or_rejected_per_table() -> Result {
    let fixture =
        HttpFixture::with_client_policy(EndpointBehaviour::ok(), policy("FromTrusted")).await?;
    let lines = HEADERS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut bad = 0.0;
    for line in lines {
        let row: Vec<&str> = line.split('\t').collect();
        let [client, _destination, bytes, _reason] = row[..] else { bail!("four columns: {line}") };
        bad += f64::from(client == "bad");
        check_header(&fixture, client, &unescape(bytes)).await.with_context(|| line.to_owned())?;
    }
    ensure!(failures(&fixture, "bad_proxy_header").await? == bad);
    Ok(())
}

async fn check_header(fixture: &HttpFixture, client: &str, header: &[u8]) -> Result {
    let before = fixture.endpoint().counts().requests;
    let mut connection = fixture.client().await?;
    let request = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let sent: &[&[u8]] = if client == "wait" { &[header] } else { &[header, request] };
    // If the first bytes are malformed, the connection may end before the last byte.
    drop(connection.send(sent.concat()).await);
    match client {
        "wait" => return Ok(()),
        "bad" => {
            ensure!(connection.response("GET").await.is_err(), "the connection gets a response");
            ensure!(fixture.endpoint().counts().requests == before);
            return Ok(());
        }
        _ => {}
    }
    ensure!(connection.response("GET").await?.status() == 200);
    let seen = fixture.endpoint().requests().pop().context("a request")?;
    let forwarded = seen.head.field("x-forwarded-for").context("X-Forwarded-For")?;
    let expected = match client {
        "local" => connection.local_address().ip(),
        client => client.parse::<SocketAddr>()?.ip().to_canonical(),
    };
    ensure!(forwarded == expected.to_string(), "{forwarded}");
    Ok(())
}

/// Decodes `\r
///  \t \\ \xNN`, and `\{N*text}` for N repetitions of text.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let (kind, after) = escaped.split_at(1);
        rest = after;
        match kind {
            "r" => bytes.push(b'\r'),
            "n" => bytes.push(b'\n'),
            "t" => bytes.push(b'\t'),
            "\\" => bytes.push(b'\\'),
            "x" => {
                let (digits, after) = rest.split_at(2);
                bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
                rest = after;
            }
            "{" => {
                let (inside, after) = rest.split_once('}').expect("an end");
                let (times, text) = inside.split_once('*').expect("a number of times");
                bytes.extend(text.repeat(times.parse().expect("a number")).bytes());
                rest = after;
            }
            _ => panic!("no such escape: {text}"),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[tokio::test]
async fn proxy_header_applies_to_all_requests_of_its_connection() -> Result {
    let servers = start_endpoints(1, &EndpointBehaviour::ok()).await?;
    let policies = [objects::client_policy(policy("Required"))];
    let fixture = HttpFixture::with(servers, &policies, &["--access-log", "on"]).await?;
    let mut client = fixture.client().await?;
    client.send_slowly(HEADER.as_bytes(), Duration::from_micros(100)).await?;
    for _ in 0..3 {
        ensure!(client.get("/").await?.status() == 200);
    }
    for line in fixture.sheave.wait_for_access_log(3).await? {
        ensure!(line["client.address"] == "192.0.2.1" && line["client.port"] == 56324, "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn proxy_header_of_an_untrusted_peer_is_rejected() -> Result {
    let fixture =
        HttpFixture::with_client_policy(EndpointBehaviour::ok(), policy("FromTrusted")).await?;
    let address = fixture.sheave.address();
    let mut client = Http1TestClient::connect_from(UNTRUSTED, address).await?;
    ensure!(client.get("/").await?.status() == 200, "an untrusted peer may connect directly");
    let forwarded = fixture.endpoint().only_request().head.field("x-forwarded-for");
    ensure!(forwarded.as_deref() == Some("127.0.0.2"), "{forwarded:?}");
    let mut client = Http1TestClient::connect_from(UNTRUSTED, address).await?;
    client.send(HEADER).await?;
    ensure!(client.response("GET").await?.status() == 400, "a PROXY header is not a request");

    let fixture =
        HttpFixture::with_client_policy(EndpointBehaviour::ok(), policy("Required")).await?;
    // The reset may arrive before the connection is known to be open.
    if let Ok(mut client) = Http1TestClient::connect_from(UNTRUSTED, fixture.sheave.address()).await
    {
        drop(client.send(HEADER).await);
        ensure!(client.get("/").await.is_err());
    }
    ensure!(fixture.endpoint().counts().requests == 0);
    let closed = async || failures(&fixture, "untrusted_proxy").await;
    tests::eventually("the connection is closed", closed, |closed| *closed == 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn missing_proxy_header_times_out() -> Result {
    let policy = json!({
        "proxyProtocol": "FromTrusted",
        "trustedProxies": ["127.0.0.1/32"],
        "timeouts": { "head": "300ms" },
    });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), policy).await?;
    for part in ["", "PROXY TCP4 "] {
        let mut client = fixture.client().await?;
        client.send(part).await?;
        ensure!(client.response("GET").await.is_err(), "the connection gets a response");
    }
    ensure!(failures(&fixture, "proxy_header_timeout").await? == 2.0);
    // A peer that only checks for an open port is not an error.
    drop(fixture.client().await?);
    ensure!(failures(&fixture, "bad_proxy_header").await? == 0.0);
    Ok(())
}

#[tokio::test]
async fn tcp_payload_begins_after_the_proxy_header() -> Result {
    let server = RawServer::echo().await?;
    let policy = objects::client_policy(policy("Required"));
    let fixture = L4Fixture::tcp(&[server.address], &[policy], &["--access-log", "on"]).await?;
    let mut client = fixture.connect().await?;
    client.write_all(HEADER.as_bytes()).await?;
    ensure!(send_and_read_echo(&mut client, b"x").await? == b"x");
    drop(client);
    // Payload in the same packet as the header is forwarded as well.
    let mut client = fixture.connect().await?;
    client.write_all(format!("{HEADER}hello").as_bytes()).await?;
    let mut back = [0; 5];
    client.read_exact(&mut back).await?;
    ensure!(&back == b"hello");
    drop(client);
    for line in fixture.sheave.wait_for_access_log(2).await? {
        ensure!(line["client.address"] == "192.0.2.1" && line["client.port"] == 56324, "{line}");
    }
    let mut client = fixture.connect().await?;
    client.write_all(b"no header").await?;
    ensure!(wait_for_end(&mut client).await? == SocketEnd::Reset);
    let line = fixture.sheave.wait_for_access_log(3).await?.remove(2);
    ensure!(line["error.type"] == "bad_proxy_header", "{line}");
    ensure!(server.accepted() == 2);
    Ok(())
}

/// Starts a server that reads a version 1 header, then answers each request with that header.
async fn start_header_echo_server() -> Result<RawServer> {
    RawServer::start(|stream| async {
        let (from, mut to) = stream.into_split();
        let mut from = BufReader::new(from);
        let mut header = String::new();
        from.read_line(&mut header).await?;
        let mut line = String::new();
        while from.read_line(&mut line).await? > 0 {
            if line == "\r\n" {
                let length = header.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                to.write_all((head + &header).as_bytes()).await?;
            }
            line.clear();
        }
        Ok(())
    })
    .await
}

fn header_v1(client: SocketAddr, destination: SocketAddr) -> String {
    let (from, to) = (client.ip(), destination.ip());
    format!("PROXY TCP4 {from} {to} {} {}\r\n", client.port(), destination.port())
}

#[tokio::test]
async fn endpoint_connection_with_proxy_header_serves_one_client() -> Result {
    let server = start_header_echo_server().await?;
    for capped in [false, true] {
        let mut spec = json!({ "proxyProtocol": "V1" });
        if capped {
            spec["maxInFlightPerEndpoint"] = 1.into();
        }
        let policies = [objects::backend_policy("app", spec)];
        let configuration =
            tests::ConfigDirectory::for_endpoints_with(&[server.address], &policies)?;
        let sheave = tests::SheaveProcess::serve_with(&configuration, &["--workers", "2"]).await?;
        let before = server.accepted();
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Http1TestClient::connect(sheave.address()).await?);
        }
        for _ in 0..3 {
            for client in &mut clients {
                let expected = header_v1(client.local_address(), sheave.address());
                let received = client.get("/").await?;
                ensure!(received.text() == expected, "{:?}, not {expected:?}", received.text());
            }
        }
        let opened = server.accepted() - before;
        let most = if capped { 12 } else { 4 };
        ensure!(opened <= most, "{opened} connections for {most}");
        if capped {
            tests::eventually(
                "at most one connection is open",
                async || Ok(server.open_connections()),
                |open| *open <= 1,
            )
            .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn received_proxy_header_is_forwarded_to_endpoints() -> Result {
    let server = RawServer::start(|mut stream: TcpStream| async move {
        let mut header = [0; 28];
        stream.read_exact(&mut header).await?;
        stream.write_all(&header).await?;
        Ok(())
    });
    let server = server.await?;
    let policies = [
        objects::client_policy(policy("Required")),
        objects::backend_policy("app", json!({ "proxyProtocol": "V2" })),
    ];
    let fixture = L4Fixture::tcp(&[server.address], &policies, &[]).await?;
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(TRUSTED, 0))?;
    let mut client = socket.connect(fixture.listener_address("127.0.0.1")?).await?;
    client.write_all(HEADER.as_bytes()).await?;
    let mut received = [0; 28];
    client.read_exact(&mut received).await?;
    let expected = [
        SIGNATURE,
        &[0x21, 0x11, 0, 12, 192, 0, 2, 1, 198, 51, 100, 2],
        &56324_u16.to_be_bytes(),
        &443_u16.to_be_bytes(),
    ];
    ensure!(received[..] == expected.concat(), "{}", received.escape_ascii());
    Ok(())
}
