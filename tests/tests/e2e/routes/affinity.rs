//! Session affinity: clients stay at their endpoint as long as it can serve.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::fixture::{addresses, start_endpoints};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, SheaveProcess, eventually,
    objects,
};

pub(super) const ONE_WORKER: &[&str] = &["--workers", "1"];

async fn start_fixture(count: usize, policy: Value) -> Result<HttpFixture> {
    let policies = [objects::backend_policy("app", policy)];
    HttpFixture::with(
        start_endpoints(count, &EndpointBehaviour::ok()).await?,
        &policies,
        ONE_WORKER,
    )
    .await
}

/// Returns the number of requests that each endpoint got.
pub(super) fn counts(endpoints: &[Endpoint]) -> Vec<u64> {
    endpoints.iter().map(|endpoint| endpoint.counts().requests).collect()
}

/// Returns the index of the endpoint that gets the request of `ask`.
pub(super) async fn endpoint_that_served(
    fixture: &HttpFixture,
    ask: impl AsyncFnOnce() -> Result,
) -> Result<usize> {
    let before = counts(&fixture.endpoints);
    ask().await?;
    let after = counts(&fixture.endpoints);
    let index = before.iter().zip(after).position(|(before, after)| *before < after);
    index.context("no endpoint got the request")
}

/// Returns the affinity outcomes, summed over all Services.
async fn affinity_outcomes(sheave: &SheaveProcess) -> Result<BTreeMap<String, f64>> {
    let samples = sheave.metric_samples("sheave_backend_affinity_total").await?;
    let outcome = |labels: &str| labels.split('"').rev().nth(1).unwrap_or_default().to_owned();
    let mut outcomes = BTreeMap::new();
    for (labels, count) in samples {
        *outcomes.entry(outcome(&labels)).or_default() += count;
    }
    Ok(outcomes)
}

fn cookie_policy() -> Value {
    json!({ "affinity": { "type": "Cookie", "name": "pod", "maxAge": "1h" } })
}

/// Returns the cookie `pod` of a first response, as the client repeats it.
async fn first_cookie(client: &mut Http1TestClient) -> Result<String> {
    let response = client.get("/").await?;
    let cookie = response.field("set-cookie").context("a cookie")?;
    Ok(cookie.split(';').next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_cookie_keeps_a_client_at_its_endpoint() -> Result {
    let fixture = start_fixture(4, cookie_policy()).await?;
    let mut indexes = BTreeSet::new();
    for _ in 0..8 {
        let mut client = fixture.client().await?;
        let response = client.get("/").await?;
        let cookie = response.field("set-cookie").context("a cookie")?;
        let (pair, attributes) = cookie.split_once("; ").context("attributes")?;
        assert_eq!(attributes, "Path=/; Max-Age=3600; HttpOnly; SameSite=Lax");
        for address in addresses(&fixture.endpoints) {
            ensure!(!pair.contains(&address.port().to_string()), "{pair} shows {address}");
        }
        let cookies = format!("theme=dark; {pair}; x=y");
        let index = endpoint_that_served(&fixture, async || {
            for _ in 0..10 {
                let response = client.exchange("GET", "/", &[("Cookie", &cookies)], b"").await?;
                ensure!(
                    !response.head.has_field("set-cookie"),
                    "the client already has a cookie: {response:?}"
                );
            }
            Ok(())
        });
        indexes.insert(index.await?);
    }
    ensure!(indexes.len() > 1, "all clients are at one endpoint");
    let expected = [("begun", 8.0), ("broken", 0.0), ("kept", 80.0)];
    assert_eq!(
        affinity_outcomes(&fixture.sheave).await?,
        expected.map(|(outcome, n)| (outcome.to_owned(), n)).into()
    );
    Ok(())
}

#[tokio::test]
async fn affinity_cookie_works_at_every_replica() -> Result {
    let endpoints = start_endpoints(8, &EndpointBehaviour::ok()).await?;
    let policies = [objects::backend_policy("app", cookie_policy())];
    let key = tests::ConfigDirectory::empty()?;
    key.write_text("key", "0123456789abcdef")?;
    let file = key.path().join("key");
    let arguments = ["--workers", "2", "--affinity-key-file", file.to_str().context("a path")?];
    let fixture = HttpFixture::with(endpoints, &policies, &arguments).await?;
    let replica = SheaveProcess::serve_with(&fixture.configuration, &arguments).await?;
    check_replicas_agree(&fixture, &replica).await?;
    // A change of the endpoints changes no cookie.
    let mut all = addresses(&fixture.endpoints);
    all.reverse();
    fixture.configuration.set_endpoints(&all[1..])?;
    fixture.sheave.wait_for_endpoints(&all[1..]).await?;
    fixture.configuration.set_endpoints(&all)?;
    fixture.sheave.wait_for_endpoints(&all).await?;
    replica.wait_for_endpoints(&all).await?;
    check_replicas_agree(&fixture, &replica).await
}

/// The UID of a Service is known to all replicas, so that no flag is needed in a cluster.
#[tokio::test]
async fn affinity_cookie_works_at_every_replica_by_the_uid_of_the_service() -> Result {
    let endpoints = start_endpoints(8, &EndpointBehaviour::ok()).await?;
    let mut service = objects::service("app");
    service["metadata"]["uid"] = "6f1c1c6e-3a1f-4b5e-9a53-9f7d3c1f2b11".into();
    let mut all = objects::gateway();
    all.extend([service, objects::route("app")]);
    all.extend(objects::slices("app", &addresses(&endpoints)));
    all.push(objects::backend_policy("app", cookie_policy()));
    let configuration = tests::ConfigDirectory::empty()?;
    configuration.write("all.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let replica = SheaveProcess::serve(&configuration).await?;
    check_replicas_agree(&HttpFixture { sheave, configuration, endpoints }, &replica).await
}

/// Without a key that replicas share, a client cannot compute a cookie; a foreign one is replaced.
#[tokio::test]
async fn affinity_cookie_of_another_key_is_replaced() -> Result {
    let fixture = start_fixture(4, cookie_policy()).await?;
    let other = SheaveProcess::serve(&fixture.configuration).await?;
    let pair = first_cookie(&mut Http1TestClient::connect(other.address()).await?).await?;
    let mut client = fixture.client().await?;
    let response = client.exchange("GET", "/", &[("Cookie", &pair)], b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    let own = response.field("set-cookie").context("a cookie")?;
    ensure!(!own.starts_with(&pair), "{own} of {pair}");
    Ok(())
}

/// Checks that a client keeps its endpoint if its requests go to another replica.
async fn check_replicas_agree(fixture: &HttpFixture, replica: &SheaveProcess) -> Result {
    for _ in 0..8 {
        let mut client = fixture.client().await?;
        let mut pair = String::new();
        let first = endpoint_that_served(fixture, async || {
            pair = first_cookie(&mut client).await?;
            Ok(())
        });
        let first = first.await?;
        let repeated = endpoint_that_served(fixture, async || {
            let mut client = Http1TestClient::connect(replica.address()).await?;
            client.exchange("GET", "/", &[("Cookie", &pair)], b"").await?;
            Ok(())
        });
        assert_eq!(repeated.await?, first, "{pair}");
    }
    Ok(())
}

#[tokio::test]
async fn client_of_a_removed_endpoint_gets_another() -> Result {
    let fixture = start_fixture(3, cookie_policy()).await?;
    let mut client = fixture.client().await?;
    let mut pair = String::new();
    let index = endpoint_that_served(&fixture, async || {
        pair = first_cookie(&mut client).await?;
        Ok(())
    });
    let index = index.await?;
    let mut left = addresses(&fixture.endpoints);
    left.remove(index);
    fixture.configuration.set_endpoints(&left)?;
    fixture.sheave.wait_for_endpoints(&left).await?;
    let response = client.exchange("GET", "/", &[("Cookie", &pair)], b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    let other = response.field("set-cookie").context("another cookie")?;
    ensure!(!other.starts_with(&pair), "{other}");
    assert_eq!(affinity_outcomes(&fixture.sheave).await?["broken"], 1.0);
    for wrong in ["pod=", "pod=0123456789abcdef01234567", "pod=\u{fc}\"", "pod=...0"] {
        let response = client.exchange("GET", "/", &[("Cookie", wrong)], b"").await?;
        ensure!(response.status() == 200 && response.head.has_field("set-cookie"), "{wrong}");
    }
    Ok(())
}

/// One cookie is valid for all Services of a client: requests to one Service do not replace the
/// affinity to another.
#[tokio::test]
async fn affinity_cookie_is_per_service() -> Result {
    let servers = start_endpoints(4, &EndpointBehaviour::ok()).await?;
    let mut all = objects::gateway();
    let refs = json!([{ "name": "one", "port": 80 }, { "name": "two", "port": 80 }]);
    all.push(objects::route_with("both", json!({ "rules": [{ "backendRefs": refs }] })));
    for (service, servers) in ["one", "two"].iter().zip(servers.chunks(2)) {
        let cookie = json!({ "affinity": { "type": "Cookie" } });
        all.extend([objects::service(service), objects::backend_policy(service, cookie)]);
        all.extend(objects::slices(service, &addresses(servers)));
    }
    let configuration = tests::ConfigDirectory::empty()?;
    configuration.write("both.yaml", &all)?;
    let sheave = SheaveProcess::serve_with(&configuration, ONE_WORKER).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let mut pair = String::new();
    for _ in 0..100 {
        let response = client.exchange("GET", "/", &[("Cookie", &pair)], b"").await?;
        if let Some(cookie) = response.field("set-cookie") {
            pair = cookie.split(';').next().unwrap_or_default().to_owned();
        }
    }
    let used = counts(&servers).iter().filter(|count| **count > 0).count();
    assert_eq!(used, 2, "one endpoint of each Service: {:?}", counts(&servers));
    let expected = [("begun", 2.0), ("broken", 0.0), ("kept", 98.0)];
    assert_eq!(
        affinity_outcomes(&sheave).await?,
        expected.map(|(outcome, n)| (outcome.to_owned(), n)).into()
    );
    Ok(())
}

/// A client waits for its own endpoint if it is busy, but falls back to another instead of being
/// refused.
#[tokio::test]
async fn client_of_a_busy_endpoint_waits_and_then_falls_back() -> Result {
    let mut policy = cookie_policy();
    policy["maxInFlightPerEndpoint"] = json!(1);
    policy["queue"] = json!({ "timeout": "300ms" });
    let policies = [objects::backend_policy("app", policy)];
    let servers = start_endpoints(2, &EndpointBehaviour::gated()).await?;
    let fixture = HttpFixture::with(servers, &policies, ONE_WORKER).await?;
    let mut client = fixture.client().await?;
    fixture.endpoints.iter().for_each(|endpoint| endpoint.open_gate(1));
    let pair = first_cookie(&mut client).await?;
    let fields = [("Cookie", pair.as_str())];
    let own = fixture.endpoints.iter().position(|it| it.counts().requests == 1).context("one")?;
    let (own, other) = (&fixture.endpoints[own], &fixture.endpoints[1 - own]);

    let held = tests::client::request("GET", "/", &fields, b"");
    client.send(&held).await?;
    own.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    let mut second = fixture.client().await?;
    second.send(&held).await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    own.open_gate(2);
    for client in [&mut client, &mut second] {
        ensure!(
            !client.response("GET").await?.head.has_field("set-cookie"),
            "the client's endpoint was free in time"
        );
    }

    client.send(&held).await?;
    own.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    let response = second.exchange("GET", "/", &fields, b"").await?;
    ensure!(response.status() == 200 && response.head.has_field("set-cookie"), "{response:?}");
    assert_eq!(other.counts().requests, 1);
    own.open_gate(1);
    ensure!(client.response("GET").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn a_header_keeps_a_client_at_its_endpoint() -> Result {
    let fixture =
        start_fixture(4, json!({ "affinity": { "type": "Header", "name": "X-Pod" } })).await?;
    let mut client = fixture.client().await?;
    let first = client.get("/").await?.field("x-pod").context("a token")?;
    for _ in 0..10 {
        let response = client.exchange("GET", "/", &[("x-pod", &first)], b"").await?;
        assert_eq!(response.head.field_values("x-pod"), [first.as_str()]);
    }
    ensure!(counts(&fixture.endpoints).contains(&11), "{:?}", counts(&fixture.endpoints));
    Ok(())
}

#[tokio::test]
async fn an_address_keeps_a_client_at_its_endpoint() -> Result {
    let fixture = start_fixture(4, json!({ "affinity": { "type": "Source" } })).await?;
    let mut indexes = BTreeSet::new();
    for last in 1..=16 {
        let address = Ipv4Addr::new(127, 0, 0, last).into();
        let ask = async || {
            for _ in 0..2 {
                let mut client =
                    Http1TestClient::connect_from(address, fixture.sheave.address()).await?;
                ensure!(client.get("/").await?.status() == 200);
            }
            Ok(())
        };
        let before = counts(&fixture.endpoints);
        let index = endpoint_that_served(&fixture, ask).await?;
        assert_eq!(
            counts(&fixture.endpoints)[index],
            before[index] + 2,
            "both requests should get the same endpoint"
        );
        indexes.insert(index);
    }
    ensure!(indexes.len() > 1, "all addresses are at one endpoint");
    let kept = async || Ok(affinity_outcomes(&fixture.sheave).await?["kept"]);
    eventually("affinity is kept for all", kept, |kept| *kept == 32.0).await?;
    Ok(())
}

/// Requests with the same key go to the same endpoint; keys are spread over the endpoints.
#[tokio::test]
async fn hash_keys_determine_the_endpoint() -> Result {
    for algorithm in ["ConsistentHash", "Maglev"] {
        for (kind, name) in [
            ("Header", Some("x-key")),
            ("Cookie", Some("key")),
            ("QueryParam", Some("key")),
            ("Path", None),
            ("Host", None),
        ] {
            let hash_on = json!({ "type": kind, "name": name });
            let fixture =
                start_fixture(4, json!({ "algorithm": algorithm, "hashOn": hash_on })).await?;
            let mut client = fixture.client().await?;
            let mut indexes = BTreeSet::new();
            for key in 0..16 {
                let (header, cookie) = (key.to_string(), format!("a=b; key={key}"));
                let (target, host) = (format!("/{key}?key={key}"), format!("{key}.test"));
                let fields =
                    [("X-Key", header.as_str()), ("Cookie", cookie.as_str()), ("Host", &host)];
                let before = counts(&fixture.endpoints);
                let index = endpoint_that_served(&fixture, async || {
                    for _ in 0..3 {
                        client.exchange("GET", &target, &fields, b"").await?;
                    }
                    Ok(())
                });
                let index = index.await?;
                let got = counts(&fixture.endpoints)[index] - before[index];
                assert_eq!(got, 3, "{algorithm} by {kind}: {key} is not kept together");
                indexes.insert(index);
            }
            ensure!(indexes.len() > 1, "{algorithm} by {kind}: keys are not spread");
        }
    }
    Ok(())
}
