//! Request mirroring: copies never affect the original requests.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::endpoint::refusing_address;
use tests::payload::BodyDigest;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, eventually, objects};

use crate::fixture::{RouteFixture, backend_ref, rules_with_filters};

fn mirror(service: &str) -> Value {
    json!({ "type": "RequestMirror", "requestMirror": { "backendRef": backend_ref(service) } })
}

/// Returns the number of copies for this Service with this outcome.
async fn mirrored_count(site: &RouteFixture, service: &str, outcome: &str) -> Result<f64> {
    let samples = site.sheave.metric_samples("sheave_backend_mirrors_total").await?;
    let labels = [format!("/{service}:80\""), format!("\"{outcome}\"")];
    let has_labels = |text: &str| labels.iter().all(|label| text.contains(label));
    Ok(samples.iter().filter(|(text, _)| has_labels(text)).map(|(_, count)| count).sum())
}

/// Waits until this number of copies for the Service `copy` has had this outcome.
async fn wait_for_mirrored(site: &RouteFixture, outcome: &str, expected: f64) -> Result {
    let observe = async || mirrored_count(site, "copy", outcome).await;
    eventually(outcome, observe, |count| *count >= expected).await?;
    assert_eq!(mirrored_count(site, "copy", outcome).await?, expected, "{outcome}");
    Ok(())
}

#[tokio::test]
async fn mirrored_request_equals_the_original() -> Result {
    let app = Endpoint::start(EndpointBehaviour::ok()).await?;
    let loud =
        "HTTP/1.1 500 Oh\r\nX-Copy: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n";
    let copy = Endpoint::start(EndpointBehaviour::answering(loud)).await?;
    let other = Endpoint::start(EndpointBehaviour::ok()).await?;
    let set = json!({ "set": [{ "name": "X-Set", "value": "1" }] });
    let filters = json!([
        mirror("copy"),
        { "type": "RequestHeaderModifier", "requestHeaderModifier": set },
        mirror("other"),
    ]);
    let services = [("app", &app), ("copy", &copy), ("other", &other)];
    let site = RouteFixture::of(rules_with_filters(filters), &services).await?;
    let mut client = site.client().await?;
    let chunked = "POST /c HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n0\r\nSum: 5\r\n\r\n";
    for (bytes, method) in [
        (tests::client::request("GET", "/a?b", &[("Cookie", "c=d")], b""), "GET"),
        (tests::client::request("POST", "/b", &[], &[b'x'; 60_000]), "POST"),
        (chunked.as_bytes().to_vec(), "POST"),
        (tests::client::request("HEAD", "/d", &[], b""), "HEAD"),
    ] {
        client.send(bytes).await?;
        let response = client.response(method).await?;
        ensure!(response.status() == 200 && !response.head.has_field("x-copy"), "{response:?}");
        // One after another, so that the copies arrive in the same order.
        let requests = app.counts().requests;
        for endpoint in [&copy, &other] {
            endpoint.wait_for_counts("the copy", |counts| counts.requests == requests).await?;
        }
    }
    wait_for_mirrored(&site, "answered", 4.0).await?;
    for endpoint in [&copy, &other] {
        for (mirrored, original) in endpoint.requests().iter().zip(app.requests()) {
            assert_eq!(mirrored.head.start, original.head.start);
            assert_eq!(mirrored.head.fields, original.head.fields);
            assert_eq!(mirrored.head.field_values("x-set"), ["1"]);
            assert_eq!((mirrored.body, &mirrored.trailers), (original.body, &original.trailers));
        }
    }
    assert_eq!(copy.requests()[1].body, Some(BodyDigest::of(&[b'x'; 60_000])));
    Ok(())
}

#[tokio::test]
async fn fraction_of_requests_is_mirrored() -> Result {
    let (app, copy) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let mut part = mirror("copy");
    part["requestMirror"]["fraction"] = json!({ "numerator": 1, "denominator": 4 });
    let mut nothing = mirror("copy");
    nothing["requestMirror"]["percent"] = json!(0);
    let rules = rules_with_filters(json!([part, nothing]));
    let site = RouteFixture::of(rules, &[("app", &app), ("copy", &copy)]).await?;
    let mut client = site.client().await?;
    for _ in 0..1000 {
        ensure!(client.get("/").await?.status() == 200);
    }
    site.sheave.wait_until_idle().await?;
    // For 1000 samples six standard deviations are 82.
    let copied = copy.counts().requests;
    ensure!((168..=332).contains(&copied), "{copied} of 1000");
    Ok(())
}

/// A worker limits its concurrent copies; all original requests are answered meanwhile.
#[tokio::test]
async fn hanging_mirror_does_not_affect_traffic() -> Result {
    let app = Endpoint::start(EndpointBehaviour::ok()).await?;
    let copy = Endpoint::start(vec![ServeStep::WaitForever]).await?;
    let site = RouteFixture::of(
        rules_with_filters(json!([mirror("copy")])),
        &[("app", &app), ("copy", &copy)],
    )
    .await?;
    let mut client = site.client().await?;
    for _ in 0..300 {
        ensure!(client.post("/", b"body").await?.status() == 200);
    }
    wait_for_mirrored(&site, "too_many", 44.0).await?;
    assert_eq!(
        copy.wait_for_counts("copies", |counts| counts.requests == 256).await?.in_flight,
        256
    );
    assert_eq!(app.counts().requests, 300);
    Ok(())
}

#[tokio::test]
async fn dead_mirror_does_not_affect_traffic() -> Result {
    let app = Endpoint::start(EndpointBehaviour::ok()).await?;
    let closing = Endpoint::start(vec![ServeStep::Close]).await?;
    let dead: SocketAddr = refusing_address().await?;
    let mut more = vec![objects::service("dead")];
    more.extend(objects::slices("dead", &[dead]));
    let rules = rules_with_filters(json!([mirror("copy"), mirror("dead")]));
    let site = RouteFixture::with(rules, &[("app", &app), ("copy", &closing)], &more).await?;
    let mut client = site.client().await?;
    for _ in 0..20 {
        ensure!(client.get("/").await?.status() == 200);
    }
    wait_for_mirrored(&site, "failed", 20.0).await?;
    let observe = async || mirrored_count(&site, "dead", "failed").await;
    eventually("failed copies for the dead Service", observe, |count| *count == 20.0).await?;
    Ok(())
}

/// A request body larger than the retry buffer is not mirrored, and neither is an incomplete
/// request.
#[tokio::test]
async fn large_requests_are_not_mirrored() -> Result {
    let (app, copy) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let site = RouteFixture::of(
        rules_with_filters(json!([mirror("copy")])),
        &[("app", &app), ("copy", &copy)],
    )
    .await?;
    let mut client = site.client().await?;
    let large = vec![b'x'; 1_000_000];
    ensure!(client.post("/", &large).await?.status() == 200);
    wait_for_mirrored(&site, "not_whole", 1.0).await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf").await?;
    app.wait_for_counts("the head", |counts| counts.requests == 2).await?;
    client.reset();
    wait_for_mirrored(&site, "not_whole", 2.0).await?;
    assert_eq!(app.requests()[0].body, Some(BodyDigest::of(&large)));
    assert_eq!(copy.counts().accepted, 0);
    Ok(())
}

/// A copy gets a slot or is dropped: it never queues, and never exceeds a cap.
#[tokio::test]
async fn mirrored_requests_never_queue() -> Result {
    let app = Endpoint::start(EndpointBehaviour::ok()).await?;
    let copy = Endpoint::start(EndpointBehaviour::gated()).await?;
    let capped = objects::backend_policy("copy", json!({ "maxInFlightPerEndpoint": 1 }));
    let services = [("app", &app), ("copy", &copy)];
    let site =
        RouteFixture::with(rules_with_filters(json!([mirror("copy")])), &services, &[capped])
            .await?;
    let mut client = site.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    copy.wait_for_counts("the first copy", |counts| counts.in_flight == 1).await?;
    for _ in 0..5 {
        ensure!(client.get("/").await?.status() == 200);
    }
    wait_for_mirrored(&site, "no_slot", 5.0).await?;
    site.sheave.wait_for_queue_length(0).await?;
    copy.open_gate(1);
    wait_for_mirrored(&site, "answered", 1.0).await?;
    assert_eq!(copy.counts().requests, 1);
    Ok(())
}

/// Upgrades are not mirrored, because the copy would hold a connection without any use.
#[tokio::test]
async fn upgrades_are_not_mirrored() -> Result {
    let upgrade =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let app = Endpoint::start(vec![ServeStep::send(upgrade), ServeStep::Tunnel]).await?;
    let copy = Endpoint::start(EndpointBehaviour::slow(Duration::ZERO)).await?;
    let site = RouteFixture::of(
        rules_with_filters(json!([mirror("copy")])),
        &[("app", &app), ("copy", &copy)],
    )
    .await?;
    let mut client = site.client().await?;
    client
        .send("GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
        .await?;
    ensure!(client.read_final_head().await?.0.status() == 101);
    drop(client);
    site.sheave.wait_until_idle().await?;
    assert_eq!(copy.counts().accepted, 0);
    Ok(())
}

/// If a mirror switches protocols without a request to do so, its connection carries no further
/// copy or request.
#[tokio::test]
async fn mirror_connection_that_switches_protocols_is_not_reused() -> Result {
    let switching =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let app = Endpoint::start(EndpointBehaviour::ok()).await?;
    let copy = Endpoint::start(EndpointBehaviour::answering(switching)).await?;
    let direct = json!({ "type": "PathPrefix", "value": "/direct" });
    let rules = json!([
        { "backendRefs": [backend_ref("app")], "filters": [mirror("copy")] },
        { "matches": [{ "path": direct }], "backendRefs": [backend_ref("copy")] },
    ]);
    // The idle connections of a capped endpoint are shared by all workers.
    let capped = objects::backend_policy("copy", json!({ "maxInFlightPerEndpoint": 4 }));
    let site = RouteFixture::with(rules, &[("app", &app), ("copy", &copy)], &[capped]).await?;
    let mut client = site.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    copy.wait_for_counts("the copy", |counts| counts.requests == 1).await?;
    site.sheave.wait_until_idle().await?;
    ensure!(client.get("/direct").await?.status() == 502);
    let counts = copy.counts();
    assert_eq!(counts.accepted, counts.requests, "a tunnel carried another request");
    Ok(())
}
