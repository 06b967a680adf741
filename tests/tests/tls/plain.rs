//! Who speaks plainly where TLS is expected.

use anyhow::ensure;
use tests::certificates::Authority;
use tests::tls::Terms;
use tests::{Behaviour, Client, Result, Scene};

#[tokio::test]
async fn plain_http_on_a_tls_port_is_answered_400() -> Result {
    let authority = Authority::new();
    let scene = Scene::secure(Behaviour::ok(), &authority.vouch(&["test"]), &[]).await?;
    let mut client = scene.client().await?;
    let response = client.get("/").await?;
    ensure!(response.status() == 400 && response.closes(), "{response:?}");
    ensure!(response.text().contains("TLS"), "{response:?}");
    client.end().await?;
    assert_eq!(scene.endpoint().counts().requests, 0);
    Ok(())
}

#[tokio::test]
async fn non_tls_bytes_get_no_http_response() -> Result {
    let authority = Authority::new();
    let scene = Scene::secure(Behaviour::ok(), &authority.vouch(&["test"]), &[]).await?;
    let mut client = scene.client().await?;
    client.send([0_u8; 64]).await?;
    ensure!(client.response("GET").await.is_err());
    assert_eq!(scene.endpoint().counts().requests, 0);
    Ok(())
}

#[tokio::test]
async fn http1_after_negotiating_http2_is_answered_505() -> Result {
    let authority = Authority::new();
    let scene = Scene::secure(Behaviour::ok(), &authority.vouch(&["test"]), &[]).await?;
    let terms = Terms::trusting(&authority).offering(&["h2"]);
    let mut client = Client::connect_tls(scene.sheave.address(), "test", &terms).await?;
    let response = client.get("/").await?;
    ensure!(response.status() == 505 && response.closes(), "{response:?}");
    ensure!(response.text().contains("HTTP/2"), "{response:?}");
    assert_eq!(scene.endpoint().counts().requests, 0);
    Ok(())
}
