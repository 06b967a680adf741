//! Servers that close idle connections while a request is on its way: no request fails, and none is
//! sent twice.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use socket2::SockRef;
use tests::load::LoadResults;
use tests::random::SeededRandom;
use tests::{
    ConfigDirectory, ConnectionReuse, Endpoint, EndpointBehaviour, Http1TestClient, Result,
    SheaveProcess, objects,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::spawn;
use tokio::task::JoinSet;
use tokio::time::sleep;

const POSTS: u64 = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_post_fails_if_each_response_closes_its_connection() -> Result {
    const CLIENTS: u64 = 8;
    let endpoint = Endpoint::start(
        EndpointBehaviour::ok().with_connection_reuse(ConnectionReuse::CloseSilently),
    )
    .await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "2"]).await?;

    let posts = |client| {
        let mut random = SeededRandom::new(client);
        let pause = move || Duration::from_micros(random.below(2) * random.below(500));
        post(sheave.address(), "app.test".to_owned(), client, POSTS / CLIENTS, pause)
    };
    let clients: JoinSet<_> = (0..CLIENTS).map(posts).collect();
    let report =
        clients.join_all().await.into_iter().fold(LoadResults::default(), LoadResults::merge);
    check_each_served_once(&report, &[endpoint])
}

/// Each server has only one client, so that its connections are idle exactly as long as the client
/// pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_post_fails_if_servers_close_idle_connections() -> Result {
    const SERVERS: u64 = 50;
    let idle = ConnectionReuse::CloseWhenIdle(Duration::from_millis(50));
    let mut endpoints = Vec::new();
    let mut objects = objects::gateway();
    for number in 0..SERVERS {
        let endpoint = Endpoint::start(EndpointBehaviour::ok().with_connection_reuse(idle)).await?;
        let name = format!("app-{number}");
        objects.push(objects::service(&name));
        objects.push(objects::host_route(&format!("{name}.test"), &name));
        objects.extend(objects::slices(&name, &[endpoint.address]));
        endpoints.push(endpoint);
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &objects)?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "2"]).await?;

    let posts = |server| {
        let mut random = SeededRandom::new(server);
        let (least, most) = (Duration::from_millis(45), Duration::from_millis(55));
        let pause = move || random.between(least, most);
        post(sheave.address(), format!("app-{server}.test"), server, POSTS / SERVERS, pause)
    };
    let clients: JoinSet<_> = (0..SERVERS).map(posts).collect();
    let report =
        clients.join_all().await.into_iter().fold(LoadResults::default(), LoadResults::merge);
    check_each_served_once(&report, &endpoints)
}

/// Acknowledgements may be delayed, and one that arrives with a reset is not processed: a missing
/// acknowledgement does not prove that the endpoint has not read the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn post_read_before_a_reset_is_not_retried() -> Result {
    const ROUNDS: usize = 10;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let configuration = ConfigDirectory::for_endpoints(&[listener.local_addr()?])?;
    let posts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&posts);
    let endpoint = spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.expect("the listener is open");
            spawn(answer_gets_and_reset_posts(socket, Arc::clone(&count)));
        }
    });
    let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "1"]).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let host = [("Host", "app.test")];
    for _ in 0..ROUNDS {
        // A POST reuses an idle connection only after another one has shown that the endpoint keeps
        // connections open.
        for pause in [Duration::from_millis(50), Duration::ZERO] {
            // After some exchanges a kernel treats the connection as interactive and delays its
            // acknowledgements.
            for _ in 0..8 {
                let answered = client.exchange("GET", "/", &host, b"").await?;
                ensure!(answered.status() == 200, "{answered:?}");
            }
            sleep(pause).await; // The pause of a client.
            let lost = client.exchange("POST", "/", &host, b"once").await?;
            ensure!(lost.status() == 502, "{lost:?}");
        }
    }
    endpoint.abort();
    ensure!(posts.load(Ordering::Relaxed) == 2 * ROUNDS, "{posts:?} POSTs of {}", 2 * ROUNDS);
    Ok(())
}

/// Answers GETs, and resets the connection at once after reading a POST.
async fn answer_gets_and_reset_posts(mut socket: TcpStream, posts: Arc<AtomicUsize>) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("a socket has the option");
    let mut read = Vec::new();
    while socket.read_buf(&mut read).await.is_ok_and(|count| count > 0) {
        if read.ends_with(b"\r\n\r\n") && read.starts_with(b"GET") {
            read.clear();
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            socket.write_all(response).await.expect("the connection is open");
        } else if read.ends_with(b"once") {
            posts.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Sends POSTs one after another, each with a unique target.
async fn post(
    address: SocketAddr,
    host: String,
    client: u64,
    count: u64,
    mut pause: impl FnMut() -> Duration,
) -> LoadResults {
    let mut report = LoadResults::default();
    let mut connection =
        Http1TestClient::connect(address).await.expect("sheave accepts connections");
    for number in 0..count {
        let target = format!("/{client}/{number}");
        let outcome = connection.exchange("POST", &target, &[("Host", &host)], b"once").await;
        if outcome.is_err() {
            connection =
                Http1TestClient::connect(address).await.expect("sheave accepts connections");
        }
        report.add_result(outcome);
        sleep(pause()).await; // The pause of a client.
    }
    report
}

fn check_each_served_once(report: &LoadResults, endpoints: &[Endpoint]) -> Result {
    report.assert_all_served();
    ensure!(report.requests() == POSTS, "{} requests", report.requests());
    let seen: Vec<_> = endpoints.iter().flat_map(Endpoint::requests).collect();
    let targets: HashSet<&str> = seen.iter().map(|seen| seen.head.target()).collect();
    ensure!(seen.len() as u64 == POSTS && targets.len() as u64 == POSTS, "{} seen", seen.len());
    ensure!(seen.iter().all(|seen| seen.body.is_some()), "a body was cut");
    Ok(())
}
