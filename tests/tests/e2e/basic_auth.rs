//! Users that a SecurityPolicy admits with their passwords.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, ensure};
use data_encoding::BASE64;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http1::ParsedHead;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, grpc, objects,
};
use tokio::task::JoinSet;

use crate::grpc::fixture::{GrpcFixture, METHOD};

/// Made by `htpasswd` 2.4.71, all of the password `secret`.
const BCRYPT: &str = "ann:$2y$05$PhRmFM0twWKvgUsfTnxtCOUtaX/xEKwZl5DFPaJFrqB/Wo0l4wtZq";
const SHA: &str = "bob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";
const APR1: &str = "eve:$apr1$1ldR0To.$ByyxwvND8ojBXW2mdNGtV/";
/// At a usual cost.
const SLOW: &str = "ann:$2y$10$AZgNY8T5E86CthAkGGoYq.gsglweK6vGUWwBMqLuUAH0wdlHUdRYu";
/// The password `secret` at a high cost, so that verifications take long.
const COSTLY: &str = "max:$2y$13$sd4mGua9u686.5a57cTqtemmlmJnVnQW2OSEjC6.uoF1z2dF7BeHy";

fn secret(lines: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "users" },
        "stringData": { "auth": lines.join("\n") },
    })
}

fn policy(mut basic: Value) -> Value {
    basic["users"] = json!({ "name": "users" });
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": "users" },
        "spec": {
            "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }],
            "basicAuth": basic,
        },
    })
}

async fn fixture(objects: &[Value], arguments: &[&str]) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(endpoints, objects, arguments).await
}

fn credentials(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()))
}

async fn get(client: &mut Http1TestClient, fields: &[&str]) -> Result<ParsedHead> {
    let fields: Vec<_> = fields.iter().map(|value| ("Authorization", *value)).collect();
    Ok(client.exchange("GET", "/", &fields, b"").await?.head)
}

#[tokio::test]
async fn users_get_in_with_their_passwords_and_others_get_401() -> Result {
    let objects = [secret(&[BCRYPT, SHA, APR1]), policy(json!({ "realm": "The \"shop\"" }))];
    let fixture = fixture(&objects, &[]).await?;
    let mut client = fixture.client().await?;
    let right = ["ann", "bob", "eve"].map(|user| credentials(user, "secret"));
    for value in &right {
        // Verified, then known.
        for _ in 0..2 {
            ensure!(get(&mut client, &[value]).await?.status() == 200, "{value}");
            let seen = fixture.endpoint().requests().pop().context("no request")?;
            ensure!(seen.head.field("authorization").as_deref() == Some(value), "{seen:?}");
        }
    }
    let served = fixture.endpoint().counts().requests;
    let wrong = [
        credentials("ann", "wrong"),
        credentials("ann", ""),
        credentials("", "secret"),
        credentials("mallory", "secret"),
        credentials("ANN", "secret"),
        credentials("bob", "secret\0"),
        right[0].replace("Basic", "Bearer"),
        right[0].replace("Basic ", "Basic"),
        "Basic".to_owned(),
        "Basic ====".to_owned(),
    ];
    let no_single_value: [&[&str]; 3] = [&[], &[&right[0], &right[1]], &[&right[0], "Bearer x"]];
    let wrong = wrong.iter().map(|value| vec![value.as_str()]);
    for values in wrong.chain(no_single_value.map(<[_]>::to_vec)) {
        let head = get(&mut client, &values).await?;
        ensure!(head.status() == 401, "{values:?}: {head:?}");
        let challenge = head.field("www-authenticate");
        let expected = r#"Basic realm="The \"shop\"", charset="UTF-8""#;
        ensure!(challenge.as_deref() == Some(expected), "{head:?}");
    }
    ensure!(fixture.endpoint().counts().requests == served, "{:?}", fixture.endpoint().counts());
    let reason = ["\"unauthenticated\""];
    fixture.sheave.wait_for_sum("sheave_failures_total", &reason, 13.0).await
}

#[tokio::test]
async fn endpoints_get_the_name_in_place_of_the_password_if_the_policy_says_so() -> Result {
    let basic = json!({ "forwardCredentials": false, "forwardUsernameHeader": "X-User" });
    let fixture = fixture(&[secret(&[BCRYPT]), policy(basic)], &[]).await?;
    let mut client = fixture.client().await?;
    let right = credentials("ann", "secret");
    let fields = [("Authorization", &*right), ("x-user", "root"), ("X-USER", "admin")];
    let response = client.exchange("GET", "/", &fields, b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    let seen = fixture.endpoint().requests().pop().context("no request")?;
    ensure!(seen.head.field_values("x-user") == ["ann"], "{seen:?}");
    ensure!(!seen.head.has_field("authorization"), "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn a_changed_secret_is_in_force_at_once() -> Result {
    let fixture = fixture(&[], &[]).await?;
    let mut client = fixture.client().await?;
    let (ann, bob) = (credentials("ann", "secret"), credentials("bob", "secret"));
    let users = |lines: &[&str]| [policy(json!({})), secret(lines)];
    fixture.configuration.write("users.yaml", &users(&[BCRYPT, SHA]))?;
    let status = async || Ok(get(&mut fixture.client().await?, &[]).await?.status());
    eventually("a password is required", status, |status| *status == 401).await?;
    ensure!(get(&mut client, &[&ann]).await?.status() == 200);
    // The hash of the empty password.
    let changed = "ann:$2y$05$BdLyVvl/p.GP2HvXjFr//OQFDbrKG/aksBvpBgUdhzP5Vd1Jn1Tvu";
    fixture.configuration.write("users.yaml", &users(&[changed]))?;
    let status = async || Ok(get(&mut fixture.client().await?, &[&ann]).await?.status());
    eventually("the old password is refused", status, |status| *status == 401).await?;
    ensure!(get(&mut client, &[&credentials("ann", "")]).await?.status() == 200);
    ensure!(get(&mut client, &[&bob]).await?.status() == 401);
    Ok(())
}

#[tokio::test]
async fn a_missing_or_malformed_secret_is_an_error_that_shows_no_password() -> Result {
    for (secrets, message) in [
        (vec![], "there is no Secret default/users"),
        (vec![secret(&[SHA, "ann:hunter2"])], "data.auth line 2 has a hash that is not supported"),
    ] {
        let objects = [secrets, vec![policy(json!({}))]].concat();
        let refused = fixture(&objects, &[]).await.err().context("Sheave serves it")?;
        let text = format!("{refused:?}");
        ensure!(text.contains(message) && !text.contains("hunter2"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn preflight_requests_and_redirects_ask_for_no_password() -> Result {
    let cors = json!({ "type": "CORS", "cors": { "allowOrigins": ["https://app.test"] } });
    let mut route = objects::route(SERVICE);
    let redirect = json!({ "type": "RequestRedirect", "requestRedirect": { "scheme": "https" } });
    route["spec"]["rules"][0]["filters"] = json!([cors]);
    let moved = json!({ "matches": [{ "path": { "value": "/moved" } }], "filters": [redirect] });
    route["spec"]["rules"].as_array_mut().context("rules")?.push(moved);
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(vec![endpoint], &[], &[]).await?;
    let mut objects = objects::gateway();
    objects.extend([route, objects::service(SERVICE), secret(&[BCRYPT]), policy(json!({}))]);
    fixture.configuration.write("main.yaml", &objects)?;
    let status = async || Ok(get(&mut fixture.client().await?, &[]).await?.status());
    eventually("a password is required", status, |status| *status == 401).await?;
    let mut client = fixture.client().await?;
    let origin = ("Origin", "https://app.test");
    let preflight = [origin, ("Access-Control-Request-Method", "PUT")];
    ensure!(client.exchange("OPTIONS", "/", &preflight, b"").await?.status() < 300);
    ensure!(client.exchange("OPTIONS", "/", &[], b"").await?.status() == 401);
    ensure!(client.exchange("GET", "/moved", &[], b"").await?.status() == 302);
    // A script of the origin may read that a password is missing.
    let refused = client.exchange("GET", "/", &[origin], b"").await?;
    let readable = refused.field("access-control-allow-origin");
    ensure!(readable.as_deref() == Some("https://app.test"), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_call_without_credentials_ends_with_unauthenticated() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let mut policy = policy(json!({}));
    policy["spec"]["targetRefs"] = json!([{ "kind": "Gateway", "name": "edge" }]);
    let fixture = GrpcFixture::of(&[&server], &[secret(&[BCRYPT]), policy]).await?;
    let answer = fixture.client().await?.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::UNAUTHENTICATED && answer.trailers_only, "{answer:?}");
    Ok(())
}

/// Wrong passwords at a high cost fill the queue of verifications. The worker, which is one, serves all else.
#[tokio::test]
async fn wrong_passwords_keep_no_worker_from_serving() -> Result {
    const REQUESTS: u8 = 160;
    let mut other = objects::host_route("open.test", SERVICE);
    other["metadata"]["name"] = "other".into();
    let fixture =
        fixture(&[secret(&[COSTLY, SHA]), policy(json!({})), other], &["--workers", "1"]).await?;
    let known = credentials("bob", "secret");
    ensure!(get(&mut fixture.client().await?, &[&known]).await?.status() == 200);

    let mut attempts = JoinSet::new();
    for number in 0..REQUESTS {
        let source = IpAddr::from(Ipv4Addr::new(127, 0, 1, number));
        let mut client = Http1TestClient::connect_from(source, fixture.sheave.address()).await?;
        attempts.spawn(async move {
            let wrong = credentials("max", &format!("wrong-{number}"));
            get(&mut client, &[&wrong]).await
        });
    }
    let is_overload = |head: &ParsedHead| head.status() == 503 && head.has_field("retry-after");
    // The queue is full long before many verifications are over.
    let mut rejected = 0;
    while rejected < 20 {
        let head = attempts.join_next().await.context("too few are rejected")???;
        ensure!(is_overload(&head) || head.status() == 401, "{head:?}");
        rejected += u8::from(is_overload(&head));
    }
    let mut client = fixture.client().await?;
    for _ in 0..50 {
        let open = client.exchange("GET", "/", &[("Host", "open.test")], b"").await?;
        ensure!(open.status() == 200, "{open:?}");
        ensure!(get(&mut client, &[&known]).await?.status() == 200);
    }
    let waiting = attempts.len();
    ensure!(waiting > 100, "{waiting} of {REQUESTS} passwords wait");
    Ok(())
}

/// One client cannot take the places of all.
#[tokio::test]
async fn one_client_has_a_share_of_the_queue_of_passwords() -> Result {
    let fixture = fixture(&[secret(&[SLOW]), policy(json!({}))], &["--workers", "1"]).await?;
    let mut attempts = JoinSet::new();
    for number in 0..30 {
        let mut client = fixture.client().await?;
        attempts.spawn(async move {
            get(&mut client, &[&credentials("ann", &format!("wrong-{number}"))]).await
        });
    }
    // One is verified, and 16 wait.
    let mut rejected = 0;
    while rejected < 10 {
        let head = attempts.join_next().await.context("too few are rejected")???;
        rejected += u8::from(head.status() == 503);
    }
    let source = IpAddr::from(Ipv4Addr::new(127, 0, 0, 9));
    let mut other = Http1TestClient::connect_from(source, fixture.sheave.address()).await?;
    let right = credentials("ann", "secret");
    ensure!(get(&mut other, &[&right]).await?.status() == 200);
    let waiting = attempts.len();
    ensure!(waiting > 8, "{waiting} passwords of the first client wait");
    Ok(())
}
