//! Header fields: end-to-end fields, hop-by-hop fields, and fields that Sheave sets.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::http1::ParsedHead;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result};

/// Returns the head that the endpoint gets for a GET with these fields from an untrusted client.
async fn forwarded_head(fields: &[(&str, &str)]) -> Result<ParsedHead> {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    ensure!(client.exchange("GET", "/", fields, b"").await?.status() == 200);
    Ok(fixture.endpoint().only_request().head)
}

/// Returns the same for a client at 127.0.0.2, which is a trusted proxy.
async fn forwarded_head_from_trusted(fields: &[(&str, &str)]) -> Result<ParsedHead> {
    let fixture = HttpFixture::with_client_policy(
        EndpointBehaviour::ok(),
        json!({ "trustedProxies": ["127.0.0.2"] }),
    )
    .await?;
    let mut client =
        Http1TestClient::connect_from("127.0.0.2".parse()?, fixture.sheave.address()).await?;
    ensure!(client.exchange("GET", "/", fields, b"").await?.status() == 200);
    Ok(fixture.endpoint().only_request().head)
}

#[tokio::test]
async fn end_to_end_fields_pass_unchanged_and_in_order() -> Result {
    let fields = [
        ("X-B", "1"),
        ("Cookie", "a=b"),
        ("x-a", "2, 3"),
        ("X-B", "4"),
        ("Authorization", "Basic eA=="),
        ("X-Empty", ""),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "vendor=value"),
        ("baggage", "k=v"),
    ];
    let head = forwarded_head(&fields).await?;
    let sent: Vec<_> = fields.iter().map(|(name, value)| (*name, *value)).collect();
    let names: Vec<&str> = sent.iter().map(|(name, _)| *name).collect();
    let passed = head.fields.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let passed: Vec<_> = passed.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(passed, sent);
    Ok(())
}

#[tokio::test]
async fn hop_by_hop_request_fields_are_removed() -> Result {
    let head = forwarded_head(&[
        ("Connection", "keep-alive, X-Secret"),
        ("connection", " x-other ,"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("TE", "gzip"),
        ("X-Secret", "1"),
        ("X-Other", "2"),
        ("X-Kept", "3"),
    ])
    .await?;
    for name in ["keep-alive", "proxy-connection", "te", "x-secret", "x-other", "upgrade"] {
        ensure!(!head.has_field(name), "{name} was forwarded: {head:#?}");
    }
    ensure!(head.field("x-kept").as_deref() == Some("3"), "{head:#?}");
    ensure!(!head.field_lists("connection", "x-secret"), "{head:#?}");
    Ok(())
}

/// Fields that determine framing or routing cannot be removed by a `Connection` option.
#[tokio::test]
async fn connection_option_cannot_remove_framing_or_routing_fields() -> Result {
    for name in ["Host", "Content-Length", "Transfer-Encoding"] {
        let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
        let mut client = fixture.client().await?;
        match client.exchange("POST", "/", &[("Connection", name)], b"hello").await {
            Ok(response) if response.status() == 200 => {
                let head = fixture.endpoint().only_request().head;
                ensure!(head.field("host").as_deref() == Some("test"), "{name}: {head:#?}");
                ensure!(head.field("content-length").as_deref() == Some("5"), "{name}: {head:#?}");
            }
            Ok(response) => ensure!(response.status() == 400, "{name}: {response:?}"),
            Err(error) => ensure!(error.is_connection_end(), "{name}: {error}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn hop_by_hop_response_fields_are_removed() -> Result {
    let answer = "HTTP/1.1 200 Fine\r\nConnection: X-Secret\r\nX-Secret: 1\r\nKeep-Alive: max=3\r\n\
        Proxy-Connection: x\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: s\r\nX-Kept: 3\r\n\
        Date: Fri, 20 Nov 2026 09:00:00 GMT\r\nContent-Length: 0\r\n\r\n";
    let fixture = HttpFixture::of(EndpointBehaviour::answering(answer)).await?;
    let response = fixture.client().await?.get("/").await?;
    for name in ["x-secret", "keep-alive", "proxy-connection"] {
        ensure!(!response.head.has_field(name), "{name} was forwarded: {response:#?}");
    }
    assert_eq!(response.head.start, "HTTP/1.1 200 Fine");
    assert_eq!(response.head.field_values("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(response.head.field_values("server"), ["s"]);
    assert_eq!(response.head.field_values("date"), ["Fri, 20 Nov 2026 09:00:00 GMT"]);
    assert_eq!(response.head.field_values("x-kept"), ["3"]);
    ensure!(
        !response.head.has_field("proxy-status"),
        "proxy-status is only for local responses: {response:#?}"
    );
    Ok(())
}

/// RFC 9110 §7.6.3.
#[tokio::test]
async fn via_is_appended_to_existing_entries() -> Result {
    assert_eq!(forwarded_head(&[]).await?.field("via").as_deref(), Some("1.1 sheave"));
    let head = forwarded_head(&[("Via", "1.0 first, 1.1 second (comment)")]).await?;
    let via = head.field("via");
    assert_eq!(via.as_deref(), Some("1.0 first, 1.1 second (comment), 1.1 sheave"));
    Ok(())
}

#[tokio::test]
async fn forwarding_fields_of_an_untrusted_client_are_replaced() -> Result {
    let forged = [
        ("X-Forwarded-For", "6.6.6.6"),
        ("x-forwarded-for", "7.7.7.7"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil.test"),
        ("Forwarded", "for=6.6.6.6;proto=https"),
        ("X-Request-Id", "chosen"),
    ];
    let head = forwarded_head(&forged).await?;
    assert_eq!(head.field("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(head.field("x-forwarded-proto").as_deref(), Some("http"));
    assert_eq!(head.field("x-forwarded-host").as_deref(), Some("test"));
    let text = format!("{head:?}");
    for value in ["6.6.6.6", "7.7.7.7", "evil.test", "chosen"] {
        ensure!(!text.contains(value), "{value} was forwarded: {head:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn forwarding_fields_of_a_trusted_proxy_are_extended() -> Result {
    let head = forwarded_head_from_trusted(&[
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "public.test"),
        ("X-Request-Id", "chosen"),
    ])
    .await?;
    assert_eq!(head.field("x-forwarded-for").as_deref(), Some("203.0.113.9, 127.0.0.2"));
    assert_eq!(head.field("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(head.field("x-forwarded-host").as_deref(), Some("public.test"));
    assert_eq!(head.field("x-request-id").as_deref(), Some("chosen"));

    let head = forwarded_head_from_trusted(&[("Forwarded", "for=203.0.113.9;proto=https")]).await?;
    let forwarded = head.field("forwarded").context("Forwarded")?;
    ensure!(forwarded.starts_with("for=203.0.113.9;proto=https"), "{forwarded}");
    Ok(())
}

#[tokio::test]
async fn each_request_gets_a_unique_id() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    for _ in 0..10 {
        client.get("/").await?;
    }
    let seen = fixture.endpoint().requests();
    let ids = seen.iter().map(|seen| seen.head.field("x-request-id").unwrap_or_default());
    let ids: std::collections::HashSet<String> = ids.collect();
    ensure!(ids.len() == 10 && ids.iter().all(|id| id.len() >= 16), "{ids:?}");
    Ok(())
}

/// RFC 9209 on every local response. Its content is checked in the tests of those responses.
#[tokio::test]
async fn local_responses_carry_proxy_status() -> Result {
    let fixture = HttpFixture::with(Vec::new(), &[], &[]).await?;
    let mut client = fixture.client().await?;
    let response = client.get("/").await?;
    let status = response.field("proxy-status").unwrap_or_default();
    ensure!(status == "sheave; error=destination_unavailable" || status.starts_with("sheave;"));
    ensure!(response.head.has_field("date"), "RFC 9110 §6.6.1: {response:?}");
    ensure!(response.head.has_field("content-length"), "{response:?}");
    let response = client.exchange("HEAD", "/", &[], b"").await?;
    ensure!(response.status() == 503, "an answer to HEAD has no body: {response:?}");
    ensure!(client.get("/").await?.status() == 503, "the connection stays open");
    Ok(())
}

#[tokio::test]
async fn unmatched_request_is_404() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let route = tests::objects::host_route("only.test", "app");
    let mut main = tests::objects::gateway();
    main.extend([route, tests::objects::service("app")]);
    fixture.configuration.write("main.yaml", &main)?;
    let mut client = fixture.client().await?;
    let status = async || Ok(client.get("/").await?.status());
    tests::eventually("the route is removed", status, |status| *status == 404).await?;
    let response = client.get("/").await?;
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("destination_not_found"), "{response:?}");
    let found = client.exchange("GET", "/", &[("Host", "ONLY.test:99")], b"").await?;
    ensure!(found.status() == 200, "{found:?}");
    Ok(())
}
