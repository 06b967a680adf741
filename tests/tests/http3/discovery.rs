//! Discovery of HTTP/3 by clients, and HTTP/3 without configuration files.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, http2, objects};

use crate::fixture::{Http3Fixture, http3_policy};

/// Responses over TCP advertise it; responses over HTTP/3 do not.
#[tokio::test]
async fn responses_over_tcp_advertise_http3() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let address = site.sheave.address();
    let advertised = format!("h3=\":{}\"; ma=86400", address.port());
    let mut over_http1 = Http1TestClient::connect_tls(address, "test", &site.tls_options).await?;
    let over_http1 = over_http1.get("/").await?;
    assert_eq!(over_http1.field("alt-svc"), Some(advertised.clone()));
    let over_http2 =
        http2::Http2TestClient::connect_tls(address, &site.tls_options).await?.get("/").await?;
    assert_eq!(over_http2.field("alt-svc"), Some(&*advertised));
    let over_http3 = site.client().await?.get("/").await?;
    assert_eq!(over_http3.field("alt-svc"), None);
    let listeners = site.sheave.admin_get("/api/v1/listeners").await?.text();
    ensure!(listeners.contains("\"http3\":true"), "{listeners}");
    Ok(())
}

/// An endpoint's Alt-Svc names a port that clients do not reach through Sheave.
#[tokio::test]
async fn endpoint_alt_svc_is_not_forwarded() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":5443\"\r\nContent-Length: 0\r\n\r\n";
    let endpoint = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let mut client =
        Http1TestClient::connect_tls(site.sheave.address(), "test", &site.tls_options).await?;
    let ours = format!("h3=\":{}\"; ma=86400", site.sheave.address().port());
    assert_eq!(client.get("/").await?.field("alt-svc"), Some(ours));
    assert_eq!(site.client().await?.get("/").await?.field("alt-svc"), None);
    Ok(())
}

/// A Service in front may map ports: then Sheave advertises the port that clients can reach.
#[tokio::test]
async fn alt_svc_advertises_the_configured_port() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let policy = json!({ "http3": { "advertisedPort": 443 } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    let mut client =
        Http1TestClient::connect_tls(site.sheave.address(), "test", &site.tls_options).await?;
    assert_eq!(client.get("/").await?.field("alt-svc").as_deref(), Some("h3=\":443\"; ma=86400"));
    Ok(())
}

/// HTTP/3 can be turned on and off while Sheave runs. Existing connections are closed gracefully.
#[tokio::test]
async fn policy_turns_http3_on_and_off() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    site.configuration.write("policy.yaml", &[objects::client_policy(json!({}))])?;
    let line = site.sheave.wait_for_log(0, "no longer listening").await?;
    let end = client.wait_for_close().await?;
    ensure!(end.is_h3_no_error(), "{end:?}");
    let mut over_http1 =
        Http1TestClient::connect_tls(site.sheave.address(), "test", &site.tls_options).await?;
    assert_eq!(over_http1.get("/").await?.field("alt-svc"), None);

    site.configuration.write("policy.yaml", &[http3_policy(json!({}))])?;
    site.sheave.wait_for_log(line, "listening").await?;
    ensure!(site.client().await?.get("/").await?.status() == 200);
    Ok(())
}

/// `--listen https://` serves HTTP/3 by default, and not with `--no-http3`.
#[tokio::test]
async fn listen_flag_enables_http3_unless_disabled() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let to = endpoint.address.to_string();
    let arguments = ["--listen", "https://127.0.0.1:0", "--to", &to];
    let sheave = SheaveProcess::start(arguments).await?;
    sheave.wait_for_log(0, "/udp").await?;
    let listeners = sheave.admin_get("/api/v1/listeners").await?.text();
    ensure!(listeners.contains("\"http3\":true"), "{listeners}");

    let sheave = SheaveProcess::start(arguments.iter().chain(&["--no-http3"])).await?;
    let listeners = sheave.admin_get("/api/v1/listeners").await?.text();
    ensure!(listeners.contains("\"http3\":false"), "{listeners}");
    Ok(())
}

/// If the port is in use, the error says so.
#[tokio::test]
async fn udp_port_in_use_is_an_error() -> Result {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let listen = format!("https://{}", taken.local_addr()?);
    let arguments = ["serve", "--listen", &listen, "--to", "127.0.0.1:1", "--admin", "127.0.0.1:0"];
    let output = tests::sheave::run(arguments).await?;
    let text = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{text}");
    let line = text.lines().find(|line| line.contains("cannot listen on")).context("an error")?;
    ensure!(line.contains("in use"), "{line}");
    Ok(())
}
