//! Who speaks plainly where TLS is expected.

use anyhow::ensure;
use tests::certificates::Authority;
use tests::tls::Terms;
use tests::{Behaviour, Client, Result, Scene};

#[tokio::test]
async fn who_speaks_http_is_told_what_is_wrong() -> Result {
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
async fn who_speaks_nothing_known_is_not_answered_in_http() -> Result {
    let authority = Authority::new();
    let scene = Scene::secure(Behaviour::ok(), &authority.vouch(&["test"]), &[]).await?;
    let mut client = scene.client().await?;
    client.send([0_u8; 64]).await?;
    ensure!(client.response("GET").await.is_err());
    assert_eq!(scene.endpoint().counts().requests, 0);
    Ok(())
}

#[tokio::test]
async fn who_agreed_on_http2_and_speaks_http1_is_told_so_in_http1() -> Result {
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
