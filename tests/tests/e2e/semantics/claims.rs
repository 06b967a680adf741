//! Fields that only a trusted proxy may write, and trailers that would be such fields.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::http1::ParsedHead;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep};

/// Names by which applications learn of the client or of the original request.
const CLAIMS: [&str; 20] = [
    "X_Forwarded_For",
    "X-Forwarded_For",
    "X_Forwarded_Proto",
    "x_real_ip",
    "X_User",
    "user_id",
    "X-Forwarded-Server",
    "X-Forwarded-Scheme",
    "X-Forwarded-Prefix",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-User",
    "True-Client-IP",
    "X-Client-IP",
    "CF-Connecting-IP",
    "X-Original-URL",
    "X-Original-Method",
    "X-Rewrite-URL",
    "ssl-client-verify",
    "ssl-client-subject-dn",
    "Proxy",
];

/// Returns the head that the endpoint gets for a GET with these fields from this address, under this ClientPolicy.
async fn forwarded_head(policy: Value, source: &str, names: &[&str]) -> Result<ParsedHead> {
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), policy).await?;
    let mut client =
        Http1TestClient::connect_from(source.parse()?, fixture.sheave.address()).await?;
    let fields: Vec<_> = names.iter().map(|name| (*name, "6.6.6.6")).collect();
    ensure!(client.exchange("GET", "/", &fields, b"").await?.status() == 200);
    Ok(fixture.endpoint().only_request().head)
}

#[tokio::test]
async fn claims_of_an_untrusted_client_are_removed() -> Result {
    let names = [&CLAIMS[..], &["X-Real-IP", "X-Kept"]].concat();
    let head = forwarded_head(json!({}), "127.0.0.1", &names).await?;
    for name in CLAIMS {
        ensure!(!head.has_field(name), "{name} was forwarded: {head:#?}");
    }
    assert_eq!(head.field_values("x-real-ip"), ["127.0.0.1"]);
    assert_eq!(head.field_values("x-kept"), ["6.6.6.6"]);
    Ok(())
}

#[tokio::test]
async fn claims_of_a_trusted_proxy_are_kept() -> Result {
    let policy = json!({ "trustedProxies": ["127.0.0.2"] });
    let names = [&CLAIMS[..], &["X-Real-IP"]].concat();
    let head = forwarded_head(policy, "127.0.0.2", &names).await?;
    for name in names {
        assert_eq!(head.field_values(name), ["6.6.6.6"], "{name}");
    }
    Ok(())
}

/// Some load balancers add to X-Forwarded-For and pass on the X-Real-IP that the client wrote.
#[tokio::test]
async fn real_ip_is_the_client_that_a_trusted_proxy_reports() -> Result {
    let policy = json!({ "trustedProxies": ["127.0.0.2"] });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), policy).await?;
    let mut client =
        Http1TestClient::connect_from("127.0.0.2".parse()?, fixture.sheave.address()).await?;
    let fields = [("X-Real-IP", "6.6.6.6"), ("X-Forwarded-For", "7.7.7.7, 203.0.113.9")];
    ensure!(client.exchange("GET", "/", &fields, b"").await?.status() == 200);
    let head = fixture.endpoint().only_request().head;
    assert_eq!(head.field_values("x-real-ip"), ["203.0.113.9"]);
    Ok(())
}

#[tokio::test]
async fn policy_keeps_claims_of_untrusted_clients() -> Result {
    let policy = json!({ "headers": { "withUnderscore": "Keep" } });
    let names = ["user_id", "X_Forwarded_For", "True-Client-IP"];
    let head = forwarded_head(policy, "127.0.0.1", &names).await?;
    assert_eq!(head.field_values("user_id"), ["6.6.6.6"]);
    ensure!(!head.has_field("x_forwarded_for") && !head.has_field("true-client-ip"), "{head:?}");

    let policy = json!({ "headers": { "proxyFields": "Keep" } });
    let head = forwarded_head(policy, "127.0.0.1", &names).await?;
    assert_eq!(head.field_values("true-client-ip"), ["6.6.6.6"]);
    ensure!(!head.has_field("user_id"), "{head:?}");
    Ok(())
}

/// RFC 9110 §6.5.1.
#[tokio::test]
async fn trailers_that_could_pass_for_header_fields_are_left_out() -> Result {
    let names =
        ["Cookie", "Authorization", "X-Real-IP", "Content-Type", "user_id", "Host", "Range"];
    let lines: String = names.iter().map(|name| format!("{name}: 1\r\n")).collect();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n{lines}\
         Set-Cookie: a=b\r\nSum: 2\r\n\r\n"
    );
    let steps = vec![ServeStep::ReadBody, ServeStep::send(&answer)];
    let fixture = HttpFixture::of(steps).await?;
    let mut client = fixture.client().await?;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await?;
    client.send(format!("5\r\nhello\r\n0\r\n{lines}Grpc-Status: 0\r\nSum: 5\r\n\r\n")).await?;
    let response = client.response("POST").await?;
    let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        fixture.endpoint().only_request().trailers,
        [named("Grpc-Status", "0"), named("Sum", "5")]
    );
    // Metadata of gRPC responses may have underscores.
    assert_eq!(response.trailers, [named("user_id", "1"), named("Sum", "2")]);
    Ok(())
}

/// TRACE would show a script the cookies that the browser hides from it.
#[tokio::test]
async fn trace_is_answered_405() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let response =
        fixture.client().await?.exchange("TRACE", "/", &[("Cookie", "a=b")], b"").await?;
    ensure!(response.status() == 405, "{response:?}");
    ensure!(response.field("allow").is_some_and(|allow| allow.contains("GET")), "{response:?}");
    ensure!(fixture.endpoint().counts().requests == 0);
    Ok(())
}
