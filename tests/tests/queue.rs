//! Requests beyond what endpoints can take: they wait in order for a while, and the rest is refused politely.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::load::open_loop;
use tests::machine::waited_for_cpu;
use tests::scene::{addresses, endpoints};
use tests::{Behaviour, Client, Endpoint, Response, Result, Scene, objects};
use tokio::time::{Instant, sleep_until};

/// What is added to a bound on time for a machine that is busy with other tests.
const MARGIN: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_twice_the_load_that_can_be_served_all_slots_stay_busy() -> Result {
    const SLOTS: u32 = 16;
    let queue_timeout = Duration::from_millis(400);
    let policy = json!({
        "maxInFlightPerEndpoint": 4,
        "queue": { "maxRequests": 24, "timeout": "400ms" },
        "overload": { "retryAfter": "3s" },
    });
    let servers = endpoints(4, &Behaviour::slow(Duration::from_millis(200))).await?;
    let policies = [objects::backend_policy("app", policy)];
    let scene = Scene::with(servers, &policies, &["--workers", "2"]).await?;

    // 16 slots of 200 ms serve 80 requests a second.
    let load = open_loop(scene.sheave.address(), Duration::from_micros(6250), 960);
    let (from, to) = (Duration::from_secs(1), Duration::from_secs(5));
    let start = Instant::now();
    let measure = async {
        sleep_until(start + from).await;
        let before = (worked(&scene), waited(&scene)?);
        sleep_until(start + to).await;
        Ok::<_, anyhow::Error>((worked(&scene) - before.0, waited(&scene)? - before.1))
    };
    let (outcomes, measured) = tokio::join!(load, measure);

    let (worked, waited) = measured?;
    let busy = worked.as_secs_f64() / (to - from).as_secs_f64() / f64::from(SLOTS);
    eprintln!("slots were busy for {busy:.3} of the time; threads waited {waited:?} for a CPU");
    // Where others take the machine, slots are empty because nobody comes to fill them.
    ensure!(busy >= 0.95 || waited > (to - from) / 4, "slots were busy for {busy:.3} of the time");
    let mut refused = 0;
    for (took, outcome) in outcomes {
        let response = outcome?;
        match response.status() {
            200 => {}
            429 => {
                refused += 1;
                refusal(&response, 429, "3")?;
                ensure!(took <= queue_timeout + MARGIN, "refused after {took:?}");
            }
            other => anyhow::bail!("{other}: {response:?}"),
        }
    }
    ensure!(refused > 300, "about half is refused: {refused}");
    let most = scene.endpoints.iter().map(|endpoint| endpoint.counts().most_in_flight).max();
    ensure!(most == Some(4), "{most:?}");
    Ok(())
}

fn worked(scene: &Scene) -> Duration {
    scene.endpoints.iter().map(|endpoint| endpoint.counts().worked).sum()
}

/// How long Sheave and this test could not run.
fn waited(scene: &Scene) -> Result<Duration> {
    Ok(waited_for_cpu(scene.sheave.process()?)? + waited_for_cpu(rustix::process::getpid())?)
}

/// An answer of Sheave's own to a request too many.
fn refusal(response: &Response, status: u16, retry_after: &str) -> Result {
    ensure!(response.status() == status, "{response:?}");
    ensure!(response.field("retry-after").as_deref() == Some(retry_after), "{response:?}");
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.starts_with("sheave;") && reason.contains("error="), "{response:?}");
    Ok(())
}

/// One gated endpoint that takes one request at a time.
async fn one_slot(queue: Value) -> Result<Scene> {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": queue });
    Scene::governed(Behaviour::gated(), policy).await
}

/// A client whose request to this path has been sent and not answered.
async fn begin(scene: &Scene, path: &str) -> Result<Client> {
    let mut client = scene.client().await?;
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await?;
    Ok(client)
}

/// The only slot is taken by the request of this client.
async fn occupy(scene: &Scene) -> Result<Client> {
    let client = begin(scene, "/first").await?;
    scene.endpoint().until("the slot is taken", |counts| counts.in_flight == 1).await?;
    Ok(client)
}

#[tokio::test]
async fn who_came_first_is_served_first() -> Result {
    let scene = one_slot(json!({})).await?;
    let mut clients = vec![occupy(&scene).await?];
    for number in 1..=5 {
        clients.push(begin(&scene, &format!("/{number}")).await?);
        scene.sheave.waiting(number).await?;
    }
    for client in &mut clients {
        scene.endpoint().open_gate(1);
        ensure!(client.response("GET").await?.status() == 200);
    }
    let seen = scene.endpoint().seen();
    let order: Vec<&str> = seen.iter().map(|seen| seen.head.target()).collect();
    assert_eq!(order, ["/first", "/1", "/2", "/3", "/4", "/5"]);
    assert_eq!(scene.endpoint().counts().accepted, 1, "the slot's connection went with it");
    Ok(())
}

#[tokio::test]
async fn nobody_waits_longer_than_the_timeout() -> Result {
    let scene = one_slot(json!({ "timeout": "300ms" })).await?;
    let mut first = occupy(&scene).await?;
    let begun = Instant::now();
    let response = scene.client().await?.get("/").await?;
    let took = begun.elapsed();
    refusal(&response, 429, "1")?;
    ensure!(took >= Duration::from_millis(300) && took <= Duration::from_millis(300) + MARGIN);
    scene.endpoint().open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    scene.sheave.idle().await
}

#[tokio::test]
async fn beyond_the_queue_requests_are_refused_at_once() -> Result {
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "maxRequests": 1, "timeout": "1h" },
        "overload": { "status": 503, "retryAfter": "7s" },
    });
    let scene = Scene::governed(Behaviour::gated(), policy).await?;
    let mut first = occupy(&scene).await?;
    let mut second = begin(&scene, "/second").await?;
    scene.sheave.waiting(1).await?;
    let mut third = scene.client().await?;
    refusal(&third.get("/third").await?, 503, "7")?;

    scene.endpoint().open_gate(3);
    ensure!(first.response("GET").await?.status() == 200);
    ensure!(second.response("GET").await?.status() == 200);
    ensure!(third.get("/again").await?.status() == 200, "a refused client may go on");
    Ok(())
}

#[tokio::test]
async fn a_queue_of_none_refuses_all_that_would_wait() -> Result {
    let scene = one_slot(json!({ "maxRequests": 0 })).await?;
    let mut first = occupy(&scene).await?;
    refusal(&scene.client().await?.get("/").await?, 429, "1")?;
    scene.endpoint().open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn without_an_endpoint_the_answer_is_503_at_once() -> Result {
    let scene = Scene::with(Vec::new(), &[], &[]).await?;
    let response = scene.client().await?.get("/").await?;
    ensure!(response.status() == 503, "{response:?}");
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("destination_unavailable"), "{reason}");
    Ok(())
}

#[tokio::test]
async fn without_an_endpoint_a_queue_waits_for_one() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "300ms" } });
    let policies = [objects::backend_policy("app", policy)];
    let scene = Scene::with(Vec::new(), &policies, &[]).await?;
    let begun = Instant::now();
    let response = scene.client().await?.get("/").await?;
    ensure!(response.status() == 503, "{response:?}");
    let took = begun.elapsed();
    ensure!(took >= Duration::from_millis(300) && took <= Duration::from_millis(300) + MARGIN);
    scene.sheave.idle().await
}

#[tokio::test]
async fn an_endpoint_that_joins_takes_from_the_queue() -> Result {
    let mut scene = one_slot(json!({ "timeout": "1h" })).await?;
    let mut first = occupy(&scene).await?;
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(begin(&scene, "/").await?);
        scene.sheave.waiting(number).await?;
    }
    scene.endpoints.push(Endpoint::start(Behaviour::ok()).await?);
    scene.configuration.set_endpoints(&addresses(&scene.endpoints))?;
    for client in &mut waiting {
        ensure!(client.response("GET").await?.status() == 200);
    }
    assert_eq!(scene.endpoints[1].counts().requests, 3);
    scene.endpoints[0].open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    scene.sheave.idle().await
}

#[tokio::test]
async fn the_first_endpoint_of_all_takes_from_the_queue() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let policies = [objects::backend_policy("app", policy)];
    let scene = Scene::with(Vec::new(), &policies, &[]).await?;
    let mut client = begin(&scene, "/").await?;
    scene.sheave.waiting(1).await?;
    let endpoint = Endpoint::start(Behaviour::ok()).await?;
    scene.configuration.set_endpoints(&[endpoint.address])?;
    ensure!(client.response("GET").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_takes_nothing_with_it() -> Result {
    let scene = one_slot(json!({ "timeout": "1h" })).await?;
    let mut first = occupy(&scene).await?;
    let mut waiting = Vec::new();
    for number in 1..=4 {
        waiting.push(begin(&scene, &format!("/{number}")).await?);
        scene.sheave.waiting(number).await?;
    }
    waiting.remove(2).reset();
    drop(waiting.remove(0));
    scene.sheave.waiting(2).await?;

    scene.endpoint().open_gate(4);
    ensure!(first.response("GET").await?.status() == 200);
    for client in &mut waiting {
        ensure!(client.response("GET").await?.status() == 200);
    }
    ensure!(scene.client().await?.get("/last").await?.status() == 200);
    let seen = scene.endpoint().seen();
    let order: Vec<&str> = seen.iter().map(|seen| seen.head.target()).collect();
    assert_eq!(order, ["/first", "/2", "/4", "/last"]);
    scene.sheave.idle().await
}

#[tokio::test]
async fn a_raised_cap_lets_the_queue_in() -> Result {
    let scene = one_slot(json!({ "timeout": "1h" })).await?;
    let mut clients = vec![occupy(&scene).await?];
    for number in 1..=3 {
        clients.push(begin(&scene, "/").await?);
        scene.sheave.waiting(number).await?;
    }
    set_cap(&scene, 3)?;
    scene.endpoint().until("three at once", |counts| counts.in_flight == 3).await?;
    scene.sheave.waiting(1).await?;

    // A lower cap takes nothing away from what runs; what runs drains down to it.
    set_cap(&scene, 1)?;
    let capped = async || Ok(scene.sheave.backends().await?[0].max_in_flight_per_endpoint);
    tests::eventually("the cap is in force", capped, |cap| *cap == Some(1)).await?;
    for left in [2, 1] {
        scene.endpoint().open_gate(1);
        scene.endpoint().until("one less", |counts| counts.in_flight == left).await?;
        ensure!(scene.sheave.backends().await?[0].waiting == 1);
    }
    scene.endpoint().open_gate(2);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    scene.sheave.idle().await
}

fn set_cap(scene: &Scene, cap: u32) -> Result {
    let spec = json!({ "maxInFlightPerEndpoint": cap, "queue": { "timeout": "1h" } });
    let mut main = objects::gateway();
    main.extend([objects::route("app"), objects::service("app")]);
    main.push(objects::backend_policy("app", spec));
    Ok(scene.configuration.write("main.yaml", &main)?)
}

#[tokio::test]
async fn a_removed_cap_lets_everybody_in() -> Result {
    let scene = one_slot(json!({ "timeout": "1h" })).await?;
    let mut clients = vec![occupy(&scene).await?];
    for number in 1..=3 {
        clients.push(begin(&scene, "/").await?);
        scene.sheave.waiting(number).await?;
    }
    let mut main = objects::gateway();
    main.extend([objects::route("app"), objects::service("app")]);
    scene.configuration.write("main.yaml", &main)?;
    scene.endpoint().until("four at once", |counts| counts.in_flight == 4).await?;
    scene.endpoint().open_gate(4);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    scene.sheave.idle().await
}
