//! Authorizers that speak gRPC: what becomes of their answers. That the messages are those of the protocol is shown by
//! an authorizer with its generated code (tests/conformance/authorizer).

use std::future::pending;

use anyhow::{Context, ensure};
use http::HeaderMap;
use serde_json::{Value, json};
use tests::http2::{Http2TestEndpoint, ReceivedRequest, status};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, endpoint, grpc, objects};

use super::policy;

/// A `CheckResponse` with the status OK, and one with PERMISSION_DENIED.
const OK: &[u8] = b"\x0a\x00";
const DENIED: &[u8] = b"\x0a\x02\x08\x07";

/// Starts Sheave with an authorizer at this address.
async fn fixture(address: std::net::SocketAddr, mut auth: Value) -> Result<HttpFixture> {
    auth["protocol"] = json!("GRPC");
    let mut objects = vec![policy(auth), objects::service("auth")];
    objects.extend(objects::slices("auth", &[address]));
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(endpoints, &objects, &[]).await
}

/// Returns the status that a client gets for a request, and checks that no endpoint got it unless it is allowed.
async fn status_of(fixture: &HttpFixture) -> Result<u16> {
    let response = fixture.client().await?.get("/a").await?;
    let served = fixture.endpoint().counts().requests;
    ensure!((served == 1) == (response.status() == 200), "{response:?}");
    Ok(response.status())
}

#[tokio::test]
async fn an_authorizer_of_grpc_is_asked_by_a_call_over_http2() -> Result {
    let authorizer = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        let question = call.read().await?.bytes;
        let is_asked = [&b"/a?b=c"[..], b"x-tenant"]
            .iter()
            .all(|part| question.windows(part.len()).any(|it| it == *part));
        call.reply(if is_asked { OK } else { DENIED }).await
    })
    .await?;
    let fixture = fixture(authorizer.address, json!({})).await?;
    let mut client = fixture.client().await?;
    for _ in 0..2 {
        let fields = [("Host", "app.test"), ("X-Tenant", "t")];
        let response = client.exchange("GET", "/a?b=c", &fields, b"").await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    let counts = authorizer.counts();
    ensure!(counts.accepted == 1, "the connection is reused: {counts:?}");
    let asked = &counts.heads[0];
    ensure!(asked.method() == "POST", "{asked:?}");
    ensure!(asked.uri().path() == "/envoy.service.auth.v3.Authorization/Check", "{asked:?}");
    ensure!(asked.uri().host() == Some("auth.default"), "{asked:?}");
    for (name, value) in
        [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "5000000u")]
    {
        let found = asked.headers().get(name).context(name)?;
        ensure!(found == value, "{name}: {asked:?}");
    }
    let labels = ["default/auth:80", "allowed"];
    fixture.sheave.wait_for_sum("sheave_backend_authorizations_total", &labels, 2.0).await?;
    Ok(())
}

/// Answers with a message, by the status of HTTP and the one of gRPC.
async fn reply(
    call: ReceivedRequest,
    http: u16,
    body: Vec<u8>,
    code: Option<u32>,
) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    trailers.extend(code.map(|code| (http::HeaderName::from_static("grpc-status"), code.into())));
    call.answer_with(status(http), body, trailers).await
}

#[tokio::test]
async fn messages_that_do_not_allow_a_request_keep_it_from_the_endpoint() -> Result {
    let framed = |message: &[u8]| grpc::message(message).to_vec();
    // A denial with a body of 100 KB.
    let large = [&b"\x12\xa5\x8d\x06\x1a\xa1\x8d\x06"[..], &[b'x'; 100_001]].concat();
    let cases = [
        (framed(DENIED), 200, Some(0), 403, "authorization_denied"),
        (framed(b""), 200, Some(0), 500, "authorizer_error"),
        (framed(b"\xff"), 200, Some(0), 500, "authorizer_error"),
        (framed(&large), 200, Some(0), 500, "authorizer_error"),
        (b"\x01\0\0\0\x02\x0a\0".to_vec(), 200, Some(0), 500, "authorizer_error"),
        (b"\0\0\0\0\x09\x0a\0".to_vec(), 200, Some(0), 500, "authorizer_error"),
        ([framed(OK), framed(OK)].concat(), 200, Some(0), 500, "authorizer_error"),
        (Vec::new(), 200, Some(0), 500, "authorizer_error"),
        (framed(OK), 200, None, 500, "authorizer_error"),
        (framed(OK), 403, Some(0), 500, "authorizer_error"),
        (framed(OK), 200, Some(13), 500, "authorizer_error"),
        (framed(OK), 200, Some(99), 500, "authorizer_error"),
        (framed(OK), 200, Some(4), 500, "authorizer_timeout"),
        (framed(OK), 200, Some(7), 403, "authorization_denied"),
    ];
    for (body, http, code, expected, reason) in cases {
        let case = format!("{http} {code:?} {:?}", &body[..body.len().min(20)]);
        let authorizer = Http2TestEndpoint::start(move |call: ReceivedRequest| {
            reply(call, http, body.clone(), code)
        })
        .await?;
        let fixture = fixture(authorizer.address, json!({})).await?;
        let found = status_of(&fixture).await.context(case.clone())?;
        ensure!(found == expected, "{case}: {found}");
        let labels = [reason];
        fixture.sheave.wait_for_sum("sheave_failures_total", &labels, 1.0).await.context(case)?;
    }
    Ok(())
}

#[tokio::test]
async fn calls_that_fail_keep_the_request_from_the_endpoint() -> Result {
    for (code, expected) in [(7, 403), (16, 403), (14, 500), (2, 500), (0, 500)] {
        let authorizer =
            Http2TestEndpoint::start(
                move |call: ReceivedRequest| async move { call.fail(code).await },
            )
            .await?;
        let found = status_of(&fixture(authorizer.address, json!({})).await?).await?;
        ensure!(found == expected, "{code}: {found}");
    }
    let resetting = Http2TestEndpoint::start(|call: ReceivedRequest| async move {
        call.reset(h2::Reason::INTERNAL_ERROR);
        Ok(())
    })
    .await?;
    let silent = Http2TestEndpoint::start(|call: ReceivedRequest| async move {
        let _open = call;
        pending().await
    })
    .await?;
    let http1 = Endpoint::start(EndpointBehaviour::ok()).await?;
    for (address, reason) in [
        (resetting.address, "authorizer_unavailable"),
        (silent.address, "authorizer_timeout"),
        (http1.address, "authorizer_unavailable"),
        (endpoint::refusing_address().await?, "authorizer_unavailable"),
    ] {
        let fixture = fixture(address, json!({ "timeout": "1s" })).await?;
        ensure!(status_of(&fixture).await? == 500, "{reason}");
        fixture.sheave.wait_for_sum("sheave_failures_total", &[reason], 1.0).await?;
    }
    Ok(())
}
