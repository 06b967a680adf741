//! The strictness tables, sent byte for byte to the running binary: decisions of the codec hold on
//! the wire, and no part of a rejected message reaches the other side.

use anyhow::{Context, bail, ensure};
use tests::http1::RemainingBody;
use tests::payload::BodyDigest;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1Error, Http1TestClient, HttpFixture, Result,
    ServeStep, SheaveProcess, objects,
};

const REQUESTS: &str = include_str!("../../data/strict-requests.tsv");
const RESPONSES: &str = include_str!("../../data/strict-responses.tsv");
const CHUNKED: &str = include_str!("../../data/strict-chunked.tsv");

const CHUNKED_REQUEST: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const CHUNKED_RESPONSE: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

#[tokio::test]
async fn requests_are_accepted_or_rejected_per_table() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    for row in rows(REQUESTS) {
        check_request(&fixture, &row).await.with_context(|| format!("{row:?}"))?;
    }
    let counts = fixture.endpoint().counts();
    ensure!(counts.protocol_errors.iter().all(|error| error.contains("closed")), "{counts:?}");
    Ok(())
}

async fn check_request(fixture: &HttpFixture, row: &[&str]) -> Result {
    let [status, connection, body, bytes, _reason] = *row else { bail!("five columns") };
    let before = fixture.endpoint().counts();
    let mut client = fixture.client().await?;
    drop(client.send(unescape(bytes)).await);
    match status {
        "pass" => {
            fixture
                .endpoint()
                .wait_for_counts("the request", |counts| counts.requests > before.requests)
                .await?;
            if body == "none" {
                check_passed(&mut client, connection, bytes).await?;
            }
            return Ok(());
        }
        // No response is expected; the check below shows that nothing was forwarded.
        "wait" => {}
        status => {
            // Some of the methods are invalid; only HEAD would make a difference.
            let response = client.response("GET").await?;
            ensure!(response.status().to_string() == status, "{response:?}");
            ensure!(response.closes() && response.head.has_field("proxy-status"), "{response:?}");
            client.expect_end().await?;
        }
    }
    let after = fixture.endpoint().counts();
    ensure!(after.requests == before.requests && after.accepted == before.accepted, "{after:?}");
    Ok(())
}

async fn check_passed(client: &mut Http1TestClient, connection: &str, bytes: &str) -> Result {
    let method = bytes.trim_start_matches("\\r\\n").split(' ').next().unwrap_or("");
    let response = client.response(method).await?;
    ensure!(response.status() == 200, "{response:?}");
    match connection {
        "close" => client.expect_end().await?,
        _ => ensure!(!response.closes(), "{response:?}"),
    }
    Ok(())
}

#[tokio::test]
async fn chunked_requests_are_accepted_or_rejected_per_table() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    for row in rows(CHUNKED) {
        check_chunked_request(&fixture, &row).await.with_context(|| format!("{row:?}"))?;
    }
    Ok(())
}

async fn check_chunked_request(fixture: &HttpFixture, row: &[&str]) -> Result {
    let [status, data, _trailers, _rest, bytes, _reason] = *row else { bail!("six columns") };
    let before = fixture.endpoint().counts().requests;
    let mut client = fixture.client().await?;
    // The head is sent first, so that it is forwarded before the body is found to be invalid.
    client.send(CHUNKED_REQUEST).await?;
    fixture.endpoint().wait_for_counts("the head", |counts| counts.requests > before).await?;
    drop(client.send(unescape(bytes)).await);
    match status {
        "pass" => {
            let response = client.response("POST").await?;
            ensure!(response.status() == 200, "{response:?}");
            let body = last_body(fixture);
            ensure!(body == Some(BodyDigest::of(&unescape(data))), "another body: {body:?}");
            return Ok(());
        }
        "wait" => client.reset(),
        status => {
            let response = client.response("POST").await?;
            ensure!(response.status().to_string() == status, "{response:?}");
            client.expect_end().await?;
        }
    }
    fixture
        .endpoint()
        .wait_for_counts("the end of the request", |counts| counts.in_flight == 0)
        .await?;
    ensure!(last_body(fixture).is_none(), "the body looked complete");
    Ok(())
}

fn last_body(fixture: &HttpFixture) -> Option<BodyDigest> {
    fixture.endpoint().requests().last().and_then(|seen| seen.body)
}

/// An endpoint with a fixed response, addressed by its host name.
struct AnsweringEndpoint {
    host: String,
    endpoint: Endpoint,
}

/// Starts Sheave in front of endpoints with one response each. It has one worker: a client that
/// moves to another worker would not find the idle connection of its last request there.
async fn start_answering_endpoints(
    answers: impl Iterator<Item = Vec<ServeStep>>,
) -> Result<(SheaveProcess, Vec<AnsweringEndpoint>)> {
    let mut objects = objects::gateway();
    let mut answering = Vec::new();
    for (number, steps) in answers.enumerate() {
        let endpoint = Endpoint::start(steps).await?;
        let (name, host) = (format!("row-{number}"), format!("row-{number}.test"));
        objects.extend([objects::service(&name), objects::host_route(&host, &name)]);
        objects.extend(objects::slices(&name, &[endpoint.address]));
        answering.push(AnsweringEndpoint { host, endpoint });
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &objects)?;
    Ok((SheaveProcess::serve_with(&configuration, &["--workers", "1"]).await?, answering))
}

#[tokio::test]
async fn responses_are_accepted_or_rejected_per_table() -> Result {
    // Rows about sizes are left out: the limits of the table are not those of the binary.
    let rows: Vec<Vec<&str>> = rows(RESPONSES).filter(|row| !row[4].contains("\\{")).collect();
    let steps = |row: &Vec<&str>| {
        let end = if row[2] == "close" || row[0] == "wait" {
            ServeStep::Close
        } else {
            ServeStep::ReadBody
        };
        vec![ServeStep::ReadBody, ServeStep::Send(unescape(row[4])), end]
    };
    let (sheave, answering) = start_answering_endpoints(rows.iter().map(steps)).await?;
    for (row, answering) in rows.iter().zip(&answering) {
        check_response(&sheave, row, answering).await.with_context(|| format!("{row:?}"))?;
    }
    Ok(())
}

async fn check_response(
    sheave: &SheaveProcess,
    row: &[&str],
    answering: &AnsweringEndpoint,
) -> Result {
    let [status, connection, _body, method, bytes, _reason] = *row else { bail!("six columns") };
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let fields = [("Host", answering.host.as_str())];
    client.send(tests::client::request(method, "/", &fields, b"")).await?;
    let answer = unescape(bytes);
    let informational = answer.get(9) == Some(&b'1') && status == "pass";
    if informational {
        // No final response follows.
        return Ok(());
    }
    let response = client.response(method).await?;
    let own = response.head.has_field("proxy-status");
    if status != "pass" {
        ensure!(response.status() == 502 && own, "{response:?}");
        return Ok(());
    }
    ensure!(!own, "{response:?}");
    client.send(tests::client::request(method, "/", &fields, b"")).await?;
    client.response(method).await?;
    let kept = answering.endpoint.counts().accepted == 1;
    // A POST uses a fresh connection until the endpoint has shown that it keeps connections open.
    ensure!(kept == (connection == "keep") || method == "POST", "the connection was kept: {kept}");
    Ok(())
}

#[tokio::test]
async fn chunked_responses_are_accepted_or_rejected_per_table() -> Result {
    let rows: Vec<Vec<&str>> = rows(CHUNKED).collect();
    let steps = |row: &Vec<&str>| {
        let answer = [CHUNKED_RESPONSE.as_bytes(), &unescape(row[4])].concat();
        vec![ServeStep::ReadBody, ServeStep::Send(answer), ServeStep::Close]
    };
    let (sheave, answering) = start_answering_endpoints(rows.iter().map(steps)).await?;
    for (row, answering) in rows.iter().zip(&answering) {
        let outcome = chunked_response(&sheave, &answering.host).await;
        let [status, data, trailers, ..] = row[..] else { bail!("six columns") };
        match (status, outcome) {
            ("pass", outcome) => {
                let (body, passed) = outcome.with_context(|| format!("{row:?}"))?;
                ensure!(body == unescape(data), "{row:?}: {body:?}");
                ensure!(passed == trailers.is_empty(), "{row:?}: trailers");
            }
            (_, Ok(whole)) => bail!("{row:?}: the body looked complete: {whole:?}"),
            (_, Err(error)) => ensure!(error.is_connection_end(), "{row:?}: {error}"),
        }
    }
    Ok(())
}

/// Returns a body, and true if it had no trailers. A 502 is returned as the end of the connection.
async fn chunked_response(
    sheave: &SheaveProcess,
    host: &str,
) -> Result<(Vec<u8>, bool), Http1Error> {
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let fields = [("Host", host), ("TE", "trailers"), ("Connection", "TE")];
    client.send(tests::client::request("GET", "/", &fields, b"")).await?;
    let (head, _) = client.read_final_head().await?;
    if head.status() == 502 {
        return Err(Http1Error::Closed);
    }
    let left = head.response_body("GET")?;
    assert_eq!(left, RemainingBody::ChunkHead, "{head:?}");
    let body = client.reader.body(left).await?;
    Ok((body.bytes, body.trailers.is_empty()))
}

/// Returns the columns of all rows except comments.
fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let rows = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| row.split('\t').collect())
}

/// Decodes the escapes that the first table describes.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        rest = &escape[1..];
        match escape.as_bytes()[0] {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                bytes.push(u8::from_str_radix(&rest[..2], 16).expect("two hexadecimal digits"));
                rest = &rest[2..];
            }
            b'{' => {
                let (repeated, after) = rest.split_once('}').expect("a closing brace");
                let (count, text) = repeated.split_once('*').expect("N*text");
                bytes.extend(unescape(text).repeat(count.parse().expect("a count")));
                rest = after;
            }
            other => panic!("unknown escape: {}", char::from(other)),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[test]
fn table_escapes_are_decoded() {
    assert_eq!(unescape(r"a\r\n\t\\\x00\{3*b\x41}c"), b"a\r\n\t\\\0bAbAbAc");
}
