//! Servers that close connections under the hands of a balancer: no request fails, and none is sent twice.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use tests::load::Report;
use tests::random::Random;
use tests::{Behaviour, Client, Configuration, Endpoint, Keep, Result, Sheave, objects};
use tokio::task::JoinSet;
use tokio::time::sleep;

const POSTS: u64 = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_post_fails_where_each_response_ends_its_connection() -> Result {
    const CLIENTS: u64 = 8;
    let endpoint = Endpoint::start(Behaviour::ok().keeping(Keep::CloseSilently)).await?;
    let configuration = Configuration::of(&[endpoint.address])?;
    let sheave = Sheave::serve_with(&configuration, &["--workers", "2"]).await?;

    let posts = |client| {
        let mut random = Random::new(client);
        let pause = move || Duration::from_micros(random.below(2) * random.below(500));
        post(sheave.address(), "app.test".to_owned(), client, POSTS / CLIENTS, pause)
    };
    let clients: JoinSet<_> = (0..CLIENTS).map(posts).collect();
    let report = clients.join_all().await.into_iter().fold(Report::default(), Report::and);
    each_was_served_once(&report, &[endpoint])
}

/// Each server has one client alone, so that the gaps its connections see are the ones meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_post_fails_where_servers_close_idle_connections() -> Result {
    const SERVERS: u64 = 20;
    let idle = Keep::CloseWhenIdle(Duration::from_millis(50));
    let mut endpoints = Vec::new();
    let mut objects = objects::gateway();
    for number in 0..SERVERS {
        let endpoint = Endpoint::start(Behaviour::ok().keeping(idle)).await?;
        let name = format!("app-{number}");
        objects.push(objects::service(&name));
        objects.push(objects::host_route(&format!("{name}.test"), &name));
        objects.extend(objects::slices(&name, &[endpoint.address]));
        endpoints.push(endpoint);
    }
    let configuration = Configuration::empty()?;
    configuration.write("main.yaml", &objects)?;
    let sheave = Sheave::serve_with(&configuration, &["--workers", "2"]).await?;

    let posts = |server| {
        let mut random = Random::new(server);
        let (least, most) = (Duration::from_millis(45), Duration::from_millis(55));
        let pause = move || random.between(least, most);
        post(sheave.address(), format!("app-{server}.test"), server, POSTS / SERVERS, pause)
    };
    let clients: JoinSet<_> = (0..SERVERS).map(posts).collect();
    let report = clients.join_all().await.into_iter().fold(Report::default(), Report::and);
    each_was_served_once(&report, &endpoints)
}

/// POSTs one after another, each with a target of its own.
async fn post(
    address: SocketAddr,
    host: String,
    client: u64,
    count: u64,
    mut pause: impl FnMut() -> Duration,
) -> Report {
    let mut report = Report::default();
    let mut connection = Client::connect(address).await.expect("sheave accepts");
    for number in 0..count {
        let target = format!("/{client}/{number}");
        let outcome = connection.exchange("POST", &target, &[("Host", &host)], b"once").await;
        if outcome.is_err() {
            connection = Client::connect(address).await.expect("sheave accepts");
        }
        report.count(outcome);
        sleep(pause()).await;
    }
    report
}

fn each_was_served_once(report: &Report, endpoints: &[Endpoint]) -> Result {
    report.assert_all_served();
    ensure!(report.requests() == POSTS, "{} requests", report.requests());
    let seen: Vec<_> = endpoints.iter().flat_map(Endpoint::seen).collect();
    let targets: HashSet<&str> = seen.iter().map(|seen| seen.head.target()).collect();
    ensure!(seen.len() as u64 == POSTS && targets.len() as u64 == POSTS, "{} seen", seen.len());
    ensure!(seen.iter().all(|seen| seen.body.is_some()), "a body was cut");
    Ok(())
}
