//! Tokens of issuers (JWT) that a SecurityPolicy requires.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestResponse, HttpFixture, Result, endpoint, eventually,
    grpc, objects, within,
};

use crate::grpc::fixture::{GrpcFixture, METHOD};

const ISSUER: &str = "https://issuer.test";

/// An issuer with one key.
struct TestIssuer {
    key: EcdsaKeyPair,
    key_id: &'static str,
}

impl TestIssuer {
    fn new(key_id: &'static str) -> Result<Self> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)?;
        Ok(Self { key, key_id })
    }

    fn key_set(&self) -> String {
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        let text = |bytes| BASE64URL_NOPAD.encode(bytes);
        let key = json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256",
            "kid": self.key_id, "x": text(x), "y": text(y) });
        json!({ "keys": [key] }).to_string()
    }

    fn token(&self, claims: Value) -> Result<String> {
        self.token_with(&json!({ "alg": "ES256", "kid": self.key_id }), claims)
    }

    /// Returns a token with these claims, besides those that all tokens have.
    #[expect(clippy::disallowed_methods, reason = "the token is valid today")]
    fn token_with(&self, header: &Value, claims: Value) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let mut all = json!({ "iss": ISSUER, "aud": "shop", "exp": now + 600, "sub": "ann" });
        let members = claims.as_object().context("claims are an object")?.clone();
        all.as_object_mut().context("claims are an object")?.extend(members);
        let text = |it: &Value| BASE64URL_NOPAD.encode(it.to_string().as_bytes());
        let signed = format!("{}.{}", text(header), text(&all));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes())?;
        Ok(format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref())))
    }
}

fn policy(jwt: Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": "tokens" },
        "spec": { "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }], "jwt": jwt },
    })
}

fn config_map(key_set: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "keys" },
        "data": { "jwks": key_set },
    })
}

fn provider(jwks: Value) -> Value {
    let user = json!([{ "claim": "sub", "header": "X-User" }]);
    json!({ "issuer": ISSUER, "audiences": ["shop"], "jwks": jwks, "claimsToHeaders": user })
}

fn of_map() -> Value {
    provider(json!({ "configMap": { "name": "keys" } }))
}

async fn fixture(objects: &[Value]) -> Result<HttpFixture> {
    HttpFixture::with(vec![Endpoint::start(EndpointBehaviour::ok()).await?], objects, &[]).await
}

async fn get(fixture: &HttpFixture, token: &str) -> Result<Http1TestResponse> {
    let value = format!("Bearer {token}");
    let fields = [("Authorization", &*value), ("X-User", "root")];
    Ok(fixture.client().await?.exchange("GET", "/", &fields, b"").await?)
}

async fn outcomes(fixture: &HttpFixture, outcome: &str) -> Result<f64> {
    let samples = fixture.sheave.metric_samples("sheave_jwt_requests_total").await?;
    let label = format!("outcome=\"{outcome}\"");
    Ok(samples.iter().filter(|(labels, _)| labels.contains(&label)).map(|(_, it)| it).sum())
}

#[tokio::test]
async fn a_token_admits_a_request_and_its_claims_reach_the_endpoint() -> Result {
    let issuer = TestIssuer::new("one")?;
    let jwt = json!({ "providers": [of_map()] });
    let fixture = fixture(&[config_map(&issuer.key_set()), policy(jwt)]).await?;
    let token = issuer.token(json!({}))?;
    for _ in 0..2 {
        let response = get(&fixture, &token).await?;
        ensure!(response.status() == 200, "{response:?}");
        let head = fixture.endpoint().requests().pop().context("no request")?.head;
        ensure!(head.field_values("x-user") == ["ann"], "{head:?}");
        ensure!(head.field("authorization") == Some(format!("Bearer {token}")), "{head:?}");
    }
    // The client's own field is removed, even if the token has no such claim.
    let response = get(&fixture, &issuer.token(json!({ "sub": null }))?).await?;
    ensure!(response.status() == 200, "{response:?}");
    let head = fixture.endpoint().requests().pop().context("no request")?.head;
    ensure!(!head.has_field("x-user"), "{head:?}");
    ensure!(outcomes(&fixture, "verified").await? > 0.5);
    Ok(())
}

#[tokio::test]
async fn tokens_that_are_not_valid_are_refused_with_the_reason() -> Result {
    let (issuer, other) = (TestIssuer::new("one")?, TestIssuer::new("one")?);
    let jwt = json!({ "providers": [of_map()] });
    let objects = [config_map(&issuer.key_set()), policy(jwt)];
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = HttpFixture::with(endpoints, &objects, &["--access-log", "on"]).await?;
    let header = |member: &str, value: Value| {
        let mut header = json!({ "alg": "ES256", "kid": "one" });
        header[member] = value;
        issuer.token_with(&header, json!({}))
    };
    for (token, outcome, reason) in [
        (other.token(json!({}))?, "signature", "the signature of the token is wrong"),
        (issuer.token(json!({ "exp": 1 }))?, "expired", "the token has expired"),
        (issuer.token(json!({ "exp": null }))?, "no_expiry", "the token has no expiry (exp)"),
        (issuer.token(json!({ "aud": "bank" }))?, "audience", "the token is for another audience"),
        (issuer.token(json!({ "iss": "x" }))?, "issuer", "the issuer of the token is not accepted"),
        (header("alg", json!("none"))?, "algorithm", "the algorithm of the token is not accepted"),
        (header("alg", json!("HS256"))?, "algorithm", "the algorithm of the token is not accepted"),
        (header("kid", json!("two"))?, "unknown_key", "the issuer has no key for the token"),
        (
            header("crit", json!(["exp"]))?,
            "critical_extension",
            "the token has a critical extension (crit) that is unknown",
        ),
        ("x".repeat(8193), "too_long", "the token is longer than 8 KiB"),
        ("x.y".to_owned(), "malformed", "the token is not a signed JWT"),
    ] {
        let before = outcomes(&fixture, outcome).await?;
        let response = get(&fixture, &token).await?;
        ensure!(response.status() == 401, "{outcome}: {response:?}");
        let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{reason}\"");
        ensure!(response.field("www-authenticate") == Some(challenge), "{response:?}");
        let status = response.field("proxy-status").unwrap_or_default();
        ensure!(status.contains(reason), "{status}");
        ensure!(outcomes(&fixture, outcome).await? - before > 0.5, "{outcome}");
    }
    // Without a token there is no error to describe (RFC 6750 §3).
    for fields in [&[][..], &[("Authorization", "Basic YTpi")]] {
        let response = fixture.client().await?.exchange("GET", "/", fields, b"").await?;
        ensure!(response.status() == 401, "{response:?}");
        ensure!(response.field("www-authenticate").as_deref() == Some("Bearer"), "{response:?}");
    }
    let token = format!("Bearer {}", issuer.token(json!({}))?);
    let twice = [("Authorization", &*token), ("Authorization", &*token)];
    let response = fixture.client().await?.exchange("GET", "/", &twice, b"").await?;
    ensure!(response.status() == 401, "{response:?}");
    ensure!(fixture.endpoint().counts().requests == 0);
    let log = fixture.sheave.wait_for_access_log(1).await?;
    ensure!(log[0]["error.type"] == "invalid_token", "{log:?}");
    ensure!(log[0]["sheave.token.fault"] == "signature", "{log:?}");
    Ok(())
}

#[tokio::test]
async fn the_token_is_taken_from_its_place_and_removed_if_asked() -> Result {
    let issuer = TestIssuer::new("one")?;
    let sources = json!({ "headers": ["X-Token"], "params": ["token"], "cookies": ["token"] });
    let jwt = json!({ "providers": [of_map()], "extractFrom": sources, "forward": false });
    let fixture = fixture(&[config_map(&issuer.key_set()), policy(jwt)]).await?;
    let token = issuer.token(json!({}))?;
    let (target, cookie) = (format!("/x?a=1&token={token}"), format!("a=1; token={token}"));
    for (target, fields) in [
        ("/x?a=1", vec![("X-Token", &*token)]),
        (&*target, vec![]),
        ("/x?a=1", vec![("Cookie", &*cookie)]),
    ] {
        let response = fixture.client().await?.exchange("GET", target, &fields, b"").await?;
        ensure!(response.status() == 200, "{response:?}");
        let head = fixture.endpoint().requests().pop().context("no request")?.head;
        ensure!(head.target() == "/x?a=1" && !head.has_field("x-token"), "{head:?}");
        ensure!(head.field("cookie").is_none_or(|it| it == "a=1"), "{head:?}");
        ensure!(head.field("x-user").as_deref() == Some("ann"), "{head:?}");
    }
    ensure!(get(&fixture, &token).await?.status() == 401);
    Ok(())
}

#[tokio::test]
async fn a_key_that_is_replaced_is_refused_at_once() -> Result {
    let (old, new) = (TestIssuer::new("old")?, TestIssuer::new("new")?);
    let fixture = fixture(&[]).await?;
    let write = |issuer: &TestIssuer| {
        let jwt = json!({ "providers": [of_map()] });
        let objects = [config_map(&issuer.key_set()), policy(jwt)];
        fixture.configuration.write("tokens.yaml", &objects)
    };
    let (old_token, new_token) = (old.token(json!({}))?, new.token(json!({}))?);
    let status = async |token: &str| Ok(get(&fixture, token).await?.status());
    write(&old)?;
    eventually("a token is required", || status(&new_token), |it| *it == 401).await?;
    ensure!(status(&old_token).await? == 200);
    write(&new)?;
    eventually("the old key is refused", || status(&old_token), |it| *it == 401).await?;
    ensure!(status(&new_token).await? == 200);
    Ok(())
}

#[tokio::test]
async fn key_sets_that_cannot_be_used_are_errors() -> Result {
    for (key_set, message) in [
        ("<html>", "data.jwks is no JSON Web Key Set"),
        ("{\"keys\": [{\"kty\": \"oct\", \"k\": \"hunter2\"}]}", "keys[0] is symmetric"),
        (
            "{\"keys\": [{\"kty\": \"EC\", \"d\": \"hunter2\"}]}",
            "keys[0] has the secret part of a key",
        ),
    ] {
        let jwt = json!({ "providers": [of_map()] });
        let refused = fixture(&[config_map(key_set), policy(jwt)]).await.err();
        let text = format!("{:?}", refused.context("Sheave serves it")?);
        ensure!(text.contains(message) && !text.contains("hunter2"), "{text}");
    }
    Ok(())
}

/// Starts a server of a key set at an address.
async fn serve_keys(address: &str, key_set: &str) -> Result<Endpoint> {
    let length = key_set.len();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{key_set}");
    Endpoint::start_at(address.parse()?, EndpointBehaviour::answering(&answer)).await
}

#[tokio::test]
async fn keys_are_fetched_by_url_and_again_for_an_unknown_key() -> Result {
    let (old, new) = (TestIssuer::new("old")?, TestIssuer::new("new")?);
    let keys = serve_keys("127.0.0.1:0", &old.key_set()).await?;
    let address = keys.address.to_string();
    let url = format!("http://{address}/keys?all");
    let jwt = json!({ "providers": [provider(json!({ "url": url, "refreshInterval": "24h" }))] });
    let fixture = fixture(&[policy(jwt)]).await?;
    // The first configuration waits for its keys.
    let (old_token, new_token) = (old.token(json!({}))?, new.token(json!({}))?);
    ensure!(get(&fixture, &old_token).await?.status() == 200);
    let asked = keys.requests().pop().context("no request")?.head;
    ensure!(asked.target() == "/keys?all" && asked.field("host") == Some(address.clone()));
    keys.kill().await?;
    let restarted = async {
        loop {
            // The old server's socket closes when its task has ended.
            match serve_keys(&address, &new.key_set()).await {
                Ok(keys) => break keys,
                Err(_in_use) => tokio::task::yield_now().await,
            }
        }
    };
    let keys = within("the address is free", restarted).await?;
    let status = async || Ok(get(&fixture, &new_token).await?.status());
    eventually("the new key is known", status, |status| *status == 200).await?;
    ensure!(get(&fixture, &old_token).await?.status() == 401);
    ensure!(keys.counts().requests == 1, "{:?}", keys.counts());
    Ok(())
}

#[tokio::test]
async fn an_issuer_whose_keys_cannot_be_fetched_affects_no_other() -> Result {
    let issuer = TestIssuer::new("one")?;
    let refusing = endpoint::refusing_address().await?;
    let mut down = provider(json!({ "url": format!("http://{refusing}/keys") }));
    down["issuer"] = "https://down.test".into();
    let jwt = json!({ "providers": [down, of_map()] });
    let fixture = fixture(&[config_map(&issuer.key_set()), policy(jwt)]).await?;
    let response = get(&fixture, &issuer.token(json!({ "iss": "https://down.test" }))?).await?;
    ensure!(response.status() == 401, "{response:?}");
    let challenge = response.field("www-authenticate").unwrap_or_default();
    ensure!(challenge.contains("the keys of the issuer are not available"), "{challenge}");
    ensure!(get(&fixture, &issuer.token(json!({}))?).await?.status() == 200);
    ensure!(outcomes(&fixture, "keys_unavailable").await? > 0.5);
    ensure!(fixture.sheave.metric_sum("sheave_jwks_missing").await? > 0.5);
    fixture.sheave.wait_for_log(0, "cannot fetch a key set").await?;
    Ok(())
}

#[tokio::test]
async fn claims_are_keys_of_rate_limits() -> Result {
    let issuer = TestIssuer::new("one")?;
    let key = json!({ "type": "Header", "name": "X-User" });
    let limit = json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": { "name": "users" },
        "spec": {
            "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }],
            "limits": [{ "requests": 2, "period": "1h", "key": key }],
        },
    });
    let jwt = json!({ "providers": [of_map()] });
    let fixture = fixture(&[config_map(&issuer.key_set()), policy(jwt), limit]).await?;
    let (ann, bob) = (issuer.token(json!({}))?, issuer.token(json!({ "sub": "bob" }))?);
    // Requests without a valid token use up no limit, whatever name they bear.
    for _ in 0..3 {
        ensure!(get(&fixture, "x").await?.status() == 401);
    }
    for (token, status) in [(&ann, 200), (&ann, 200), (&ann, 429), (&bob, 200), (&bob, 200)] {
        let response = get(&fixture, token).await?;
        ensure!(response.status() == status, "{response:?}");
    }
    ensure!(get(&fixture, &bob).await?.status() == 429);
    Ok(())
}

#[tokio::test]
async fn claims_decide_about_the_priority_in_the_queue() -> Result {
    let issuer = TestIssuer::new("one")?;
    let mut provider = of_map();
    provider["claimsToHeaders"] = json!([{ "claim": "class", "header": "X-Class" }]);
    let priority = json!({ "header": "X-Class", "values": [
        { "value": "gold", "priority": 1 }, { "value": "batch", "priority": 6 },
    ] });
    let queue = json!({ "timeout": "1h", "priority": priority });
    let backend = json!({ "maxInFlightPerEndpoint": 1, "queue": queue });
    let objects = [
        config_map(&issuer.key_set()),
        policy(json!({ "providers": [provider] })),
        objects::backend_policy(SERVICE, backend),
    ];
    let endpoints = vec![Endpoint::start(EndpointBehaviour::gated()).await?];
    let fixture = HttpFixture::with(endpoints, &objects, &[]).await?;
    let mut clients = Vec::new();
    for (number, class) in ["batch", "batch", "gold"].iter().enumerate() {
        let token = issuer.token(json!({ "class": class }))?;
        let mut client = fixture.client().await?;
        // The client's own field has no effect.
        let head = format!(
            "GET /{number} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\nX-Class: gold\r\n\r\n"
        );
        client.send(head).await?;
        clients.push(client);
        match number {
            0 => drop(
                fixture
                    .endpoint()
                    .wait_for_counts("the slot is in use", |it| it.requests == 1)
                    .await?,
            ),
            _ => fixture.sheave.wait_for_queue_length(number as u64).await?,
        }
    }
    fixture.endpoint().open_gate(clients.len());
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    let order: Vec<_> = fixture.endpoint().requests();
    let order: Vec<_> = order.iter().map(|it| it.head.target().to_owned()).collect();
    ensure!(order == ["/0", "/2", "/1"], "{order:?}");
    Ok(())
}

#[tokio::test]
async fn a_call_without_a_token_ends_with_unauthenticated() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let issuer = TestIssuer::new("one")?;
    let mut tokens = policy(json!({ "providers": [of_map()] }));
    tokens["spec"]["targetRefs"] = json!([{ "kind": "Gateway", "name": "edge" }]);
    let fixture = GrpcFixture::of(&[&server], &[config_map(&issuer.key_set()), tokens]).await?;
    let answer = fixture.client().await?.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::UNAUTHENTICATED && answer.trailers_only, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn the_token_of_the_guide_is_accepted_by_its_example() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = fs::read_to_string(root.join("docs/guide/authentication.md"))?;
    let token = guide.lines().find_map(|line| line.strip_prefix("TOKEN=")).context("no token")?;
    let example = fs::read_to_string(root.join("examples/jwt.yaml"))?;
    let inline = example.lines().map(str::trim).find(|line| line.starts_with("{\"keys\""));
    let inline = json!({ "inline": inline.context("no key set")? });
    let mut provider = provider(inline);
    provider["issuer"] = "https://issuer.example.com".into();
    let fixture = fixture(&[policy(json!({ "providers": [provider] }))]).await?;
    let response = get(&fixture, token).await?;
    ensure!(response.status() == 200, "{response:?}");
    ensure!(example.contains("issuer: https://issuer.example.com"));
    Ok(())
}
