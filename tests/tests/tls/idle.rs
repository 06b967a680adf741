//! What a connection costs in memory that is encrypted and does nothing.

use anyhow::{Context, ensure};
use tests::certificates::Authority;
use tests::tls::Terms;
use tests::{Behaviour, Client, Result, Scene, http2, idle};

const CONNECTIONS: usize = 1000;

/// What one may cost that has served a request. rustls keeps what TLS 1.3 needs to change keys and to hand out tickets.
const MOST_FOR_HTTP1: u64 = 32 * 1024;
/// The same, with HTTP/2's state and tables of fields.
const MOST_FOR_HTTP2: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http1_connections_use_little_memory() -> Result {
    let authority = Authority::new();
    let terms = Terms::trusting(&authority);
    let scene = scene(&authority).await?;
    let open = async || {
        let mut client = Client::connect_tls(scene.sheave.address(), "test", &terms).await?;
        ensure!(client.post("/", &idle::body()).await?.status() == 200);
        Ok(client)
    };
    let mut clients =
        idle::cost_little(&scene.sheave, "HTTP/1.1 over TLS", CONNECTIONS, MOST_FOR_HTTP1, open)
            .await?;
    let last = clients.last_mut().context("there are many")?;
    ensure!(last.get("/").await?.status() == 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http2_connections_use_little_memory() -> Result {
    let authority = Authority::new();
    let terms = Terms::trusting(&authority).offering(&["h2"]);
    let scene = scene(&authority).await?;
    let open = async || {
        let stream = terms.connect(scene.sheave.address(), "test").await?;
        let client = http2::Client::over(stream, &h2::client::Builder::new()).await?;
        ensure!(client.post("/", idle::body()).await?.status() == 200);
        Ok(client)
    };
    let clients =
        idle::cost_little(&scene.sheave, "HTTP/2 over TLS", CONNECTIONS, MOST_FOR_HTTP2, open)
            .await?;
    let last = clients.last().context("there are many")?;
    ensure!(last.get("/").await?.status() == 200);
    Ok(())
}

async fn scene(authority: &Authority) -> Result<Scene> {
    Scene::secure(Behaviour::ok(), &authority.vouch(&["test"]), &[]).await
}
