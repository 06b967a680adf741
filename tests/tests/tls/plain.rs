//! Who speaks plainly where TLS is expected.

use anyhow::ensure;
use tests::certificates::Authority;
use tests::{Behaviour, Result, Scene};

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
