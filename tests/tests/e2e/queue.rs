//! Requests beyond the capacity of endpoints: they are queued in order for a limited time, and
//! excess requests are refused with Retry-After.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::fixture::{addresses, start_endpoints};
use tests::load::{ClientPattern, LoadGenerator, open_loop};
use tests::machine::CpuWaitMeter;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, Http1TestResponse, HttpFixture, Result,
    eventually, objects,
};
use tokio::time::{Instant, sleep_until};

/// Added to an upper bound of time, for a machine that is busy with other tests.
const MARGIN: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_slots_stay_busy_at_twice_the_capacity() -> Result {
    const SLOTS: u32 = 16;
    let queue_timeout = Duration::from_millis(400);
    let policy = json!({
        "maxInFlightPerEndpoint": 4,
        "queue": { "maxRequests": 24, "timeout": "400ms" },
        "overload": { "retryAfter": "3s" },
    });
    let servers = start_endpoints(4, &EndpointBehaviour::slow(Duration::from_millis(200))).await?;
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(servers, &policies, &["--workers", "2"]).await?;

    // 16 slots of 200 ms serve 80 requests a second.
    let load = open_loop(fixture.sheave.address(), Duration::from_micros(6250), 960);
    let (from, to) = (Duration::from_secs(1), Duration::from_secs(5));
    let start = Instant::now();
    let measure = async {
        sleep_until(start + from).await; // The queue fills.
        let (before, meter) = (total_busy_time(&fixture), CpuWaitMeter::start(&fixture.sheave)?);
        sleep_until(start + to).await; // The load that is measured.
        Ok::<_, anyhow::Error>((total_busy_time(&fixture) - before, meter.waited()?))
    };
    let (outcomes, measured) = tokio::join!(load, measure);

    let (worked, waited) = measured?;
    let busy = worked.as_secs_f64() / (to - from).as_secs_f64() / f64::from(SLOTS);
    eprintln!("slots were busy for {busy:.3} of the time; threads waited {waited:?} for a CPU");
    // If other processes use the CPUs, slots are empty because no request arrives to fill them.
    ensure!(busy >= 0.95 || waited > (to - from) / 4, "slots were busy for {busy:.3} of the time");
    let mut refused = 0;
    for (took, outcome) in outcomes {
        let response = outcome?;
        match response.status() {
            200 => {}
            429 => {
                refused += 1;
                check_refusal(&response, 429, "3")?;
                ensure!(took <= queue_timeout + MARGIN, "refused after {took:?}");
            }
            other => anyhow::bail!("{other}: {response:?}"),
        }
    }
    ensure!(refused > 300, "about half of the requests should be refused: {refused}");
    let most = fixture.endpoints.iter().map(|endpoint| endpoint.counts().max_in_flight).max();
    ensure!(most == Some(4), "{most:?}");
    Ok(())
}

fn total_busy_time(fixture: &HttpFixture) -> Duration {
    fixture.endpoints.iter().map(|endpoint| endpoint.counts().busy_time).sum()
}

/// Checks that Sheave itself refused an excess request.
fn check_refusal(response: &Http1TestResponse, status: u16, retry_after: &str) -> Result {
    ensure!(response.status() == status, "{response:?}");
    ensure!(response.field("retry-after").as_deref() == Some(retry_after), "{response:?}");
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.starts_with("sheave;") && reason.contains("error="), "{response:?}");
    Ok(())
}

/// Returns one gated endpoint that accepts one request at a time.
async fn one_slot_fixture(queue: Value) -> Result<HttpFixture> {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": queue });
    HttpFixture::with_backend_policy(EndpointBehaviour::gated(), policy).await
}

/// Returns a client that has sent a request to this path and has no response yet.
async fn begin_request(fixture: &HttpFixture, path: &str) -> Result<Http1TestClient> {
    let mut client = fixture.client().await?;
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await?;
    Ok(client)
}

/// Returns a client whose request has taken the only slot.
async fn occupy_slot(fixture: &HttpFixture) -> Result<Http1TestClient> {
    let client = begin_request(fixture, "/first").await?;
    fixture.endpoint().wait_for_counts("the slot is taken", |counts| counts.in_flight == 1).await?;
    Ok(client)
}

#[tokio::test]
async fn queue_is_served_in_arrival_order() -> Result {
    let fixture = one_slot_fixture(json!({})).await?;
    let mut clients = vec![occupy_slot(&fixture).await?];
    for number in 1..=5 {
        clients.push(begin_request(&fixture, &format!("/{number}")).await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    for client in &mut clients {
        fixture.endpoint().open_gate(1);
        ensure!(client.response("GET").await?.status() == 200);
    }
    let seen = fixture.endpoint().requests();
    let order: Vec<&str> = seen.iter().map(|seen| seen.head.target()).collect();
    assert_eq!(order, ["/first", "/1", "/2", "/3", "/4", "/5"]);
    assert_eq!(fixture.endpoint().counts().accepted, 1, "the slot's connection was not reused");
    Ok(())
}

#[tokio::test]
async fn queued_request_is_refused_after_the_timeout() -> Result {
    let fixture = one_slot_fixture(json!({ "timeout": "300ms" })).await?;
    let mut first = occupy_slot(&fixture).await?;
    let begun = Instant::now();
    let response = fixture.client().await?.get("/").await?;
    let took = begun.elapsed();
    check_refusal(&response, 429, "1")?;
    ensure!(took >= Duration::from_millis(300) && took <= Duration::from_millis(300) + MARGIN);
    fixture.endpoint().open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn requests_over_the_queue_limit_are_refused_at_once() -> Result {
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "maxRequests": 1, "timeout": "1h" },
        "overload": { "status": 503, "retryAfter": "7s" },
    });
    let fixture = HttpFixture::with_backend_policy(EndpointBehaviour::gated(), policy).await?;
    let mut first = occupy_slot(&fixture).await?;
    let mut second = begin_request(&fixture, "/second").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    let mut third = fixture.client().await?;
    check_refusal(&third.get("/third").await?, 503, "7")?;

    fixture.endpoint().open_gate(3);
    ensure!(first.response("GET").await?.status() == 200);
    ensure!(second.response("GET").await?.status() == 200);
    ensure!(
        third.get("/again").await?.status() == 200,
        "a refused client can send another request"
    );
    Ok(())
}

#[tokio::test]
async fn zero_length_queue_refuses_requests_that_would_wait() -> Result {
    let fixture = one_slot_fixture(json!({ "maxRequests": 0 })).await?;
    let mut first = occupy_slot(&fixture).await?;
    check_refusal(&fixture.client().await?.get("/").await?, 429, "1")?;
    fixture.endpoint().open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn backend_without_endpoints_is_answered_503_at_once() -> Result {
    let fixture = HttpFixture::with(Vec::new(), &[], &[]).await?;
    let response = fixture.client().await?.get("/").await?;
    ensure!(response.status() == 503, "{response:?}");
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("destination_unavailable"), "{reason}");
    Ok(())
}

#[tokio::test]
async fn queued_request_waits_for_an_endpoint_until_the_timeout() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "300ms" } });
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(Vec::new(), &policies, &[]).await?;
    let begun = Instant::now();
    let response = fixture.client().await?.get("/").await?;
    ensure!(response.status() == 503, "{response:?}");
    let took = begun.elapsed();
    ensure!(took >= Duration::from_millis(300) && took <= Duration::from_millis(300) + MARGIN);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn new_endpoint_serves_the_queue() -> Result {
    let mut fixture = one_slot_fixture(json!({ "timeout": "1h" })).await?;
    let mut first = occupy_slot(&fixture).await?;
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(begin_request(&fixture, "/").await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    fixture.endpoints.push(Endpoint::start(EndpointBehaviour::ok()).await?);
    let meter = CpuWaitMeter::start(&fixture.sheave)?;
    fixture.configuration.set_endpoints(&addresses(&fixture.endpoints))?;
    let ready = Instant::now();
    for client in &mut waiting {
        ensure!(client.response("GET").await?.status() == 200);
    }
    // No slot has been released: the new endpoint is enough.
    let took = ready.elapsed();
    eprintln!("the queue was served {took:?} after the endpoint was written");
    ensure!(took <= MARGIN + meter.waited()?, "after {took:?}");
    assert_eq!(fixture.endpoints[1].counts().requests, 3);
    fixture.endpoints[0].open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn first_endpoint_serves_the_queue() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(Vec::new(), &policies, &[]).await?;
    let mut client = begin_request(&fixture, "/").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    fixture.configuration.set_endpoints(&[endpoint.address])?;
    ensure!(client.response("GET").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn client_that_leaves_the_queue_loses_no_slot() -> Result {
    let fixture = one_slot_fixture(json!({ "timeout": "1h" })).await?;
    let mut first = occupy_slot(&fixture).await?;
    let mut waiting = Vec::new();
    for number in 1..=4 {
        waiting.push(begin_request(&fixture, &format!("/{number}")).await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    waiting.remove(2).reset();
    drop(waiting.remove(0));
    fixture.sheave.wait_for_queue_length(2).await?;

    fixture.endpoint().open_gate(4);
    ensure!(first.response("GET").await?.status() == 200);
    for client in &mut waiting {
        ensure!(client.response("GET").await?.status() == 200);
    }
    ensure!(fixture.client().await?.get("/last").await?.status() == 200);
    let seen = fixture.endpoint().requests();
    let order: Vec<&str> = seen.iter().map(|seen| seen.head.target()).collect();
    assert_eq!(order, ["/first", "/2", "/4", "/last"]);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn raised_cap_admits_queued_requests() -> Result {
    let fixture = one_slot_fixture(json!({ "timeout": "1h" })).await?;
    let mut clients = vec![occupy_slot(&fixture).await?];
    for number in 1..=3 {
        clients.push(begin_request(&fixture, "/").await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    set_cap(&fixture, 3)?;
    fixture.endpoint().wait_for_counts("three at once", |counts| counts.in_flight == 3).await?;
    fixture.sheave.wait_for_queue_length(1).await?;

    // A lower cap does not affect running requests; their number falls to it as they finish.
    set_cap(&fixture, 1)?;
    let capped = async || Ok(fixture.sheave.backends().await?[0].max_in_flight_per_endpoint);
    eventually("the cap is in force", capped, |cap| *cap == Some(1)).await?;
    for left in [2, 1] {
        fixture.endpoint().open_gate(1);
        fixture.endpoint().wait_for_counts("one less", |counts| counts.in_flight == left).await?;
        ensure!(fixture.sheave.backends().await?[0].waiting == 1);
    }
    fixture.endpoint().open_gate(2);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    fixture.sheave.wait_until_idle().await
}

fn set_cap(fixture: &HttpFixture, cap: u32) -> Result {
    let spec = json!({ "maxInFlightPerEndpoint": cap, "queue": { "timeout": "1h" } });
    let mut main = objects::gateway();
    main.extend([objects::route("app"), objects::service("app")]);
    main.push(objects::backend_policy("app", spec));
    Ok(fixture.configuration.write("main.yaml", &main)?)
}

#[tokio::test]
async fn removed_cap_admits_all_queued_requests() -> Result {
    let fixture = one_slot_fixture(json!({ "timeout": "1h" })).await?;
    let mut clients = vec![occupy_slot(&fixture).await?];
    for number in 1..=3 {
        clients.push(begin_request(&fixture, "/").await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    let mut main = objects::gateway();
    main.extend([objects::route("app"), objects::service("app")]);
    fixture.configuration.write("main.yaml", &main)?;
    fixture.endpoint().wait_for_counts("four at once", |counts| counts.in_flight == 4).await?;
    fixture.endpoint().open_gate(4);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn queue_limits_hold_without_endpoints() -> Result {
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "maxRequests": 2, "timeout": "1h" },
    });
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(Vec::new(), &policies, &[]).await?;
    let mut waiting = Vec::new();
    for number in 1..=2 {
        waiting.push(begin_request(&fixture, "/").await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    check_refusal(&fixture.client().await?.get("/").await?, 429, "1")?;
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    fixture.configuration.set_endpoints(&[endpoint.address])?;
    for client in &mut waiting {
        ensure!(client.response("GET").await?.status() == 200);
    }
    fixture.sheave.wait_until_idle().await
}

/// Returns a client that has sent a request with this priority and has no response yet.
async fn begin_request_with_priority(
    fixture: &HttpFixture,
    path: &str,
    priority: &str,
) -> Result<Http1TestClient> {
    let mut client = fixture.client().await?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: test\r\nX-Priority: {priority}\r\n\r\n");
    client.send(head).await?;
    Ok(client)
}

/// Returns the order in which the only endpoint got requests, after the first.
fn served_order(fixture: &HttpFixture) -> Vec<String> {
    let seen = fixture.endpoint().requests();
    seen.iter().skip(1).map(|seen| seen.head.target().to_owned()).collect()
}

#[tokio::test]
async fn higher_priority_is_served_first() -> Result {
    let priority = json!({ "header": "X-Priority", "values": [
        { "value": "gold", "priority": 1 }, { "value": "batch", "priority": 6 },
    ] });
    let fixture = one_slot_fixture(json!({ "timeout": "1h", "priority": priority })).await?;
    let mut clients = vec![occupy_slot(&fixture).await?];
    let requests = ["batch", "0", "gold", "rusty", "gold"];
    for (number, priority) in requests.iter().enumerate() {
        clients.push(begin_request_with_priority(&fixture, &format!("/{number}"), priority).await?);
        fixture.sheave.wait_for_queue_length(number as u64 + 1).await?;
    }
    let by_priority =
        fixture.sheave.metric_samples("sheave_backend_queue_length_by_priority").await?;
    let waiting: Vec<f64> = by_priority.iter().map(|(_, waiting)| *waiting).collect();
    assert_eq!(waiting, [0.0, 2.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0], "{by_priority:?}");
    fixture.endpoint().open_gate(clients.len());
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    assert_eq!(served_order(&fixture), ["/2", "/4", "/1", "/3", "/0"]);
    assert_eq!(fixture.sheave.metric_sum("sheave_backend_priorities_ignored_total").await?, 2.0);
    fixture.sheave.wait_until_idle().await
}

/// Writes two rules for the only Service: one for the prefix `/pay`, and one for all other paths.
fn write_two_rules(fixture: &HttpFixture, policy: Value) -> Result {
    let refs = json!([{ "name": "app", "port": 80 }]);
    let pay = json!([{ "path": { "type": "PathPrefix", "value": "/pay" } }]);
    let rules = json!([
        { "name": "pay", "matches": pay, "backendRefs": refs },
        { "backendRefs": refs },
    ]);
    let mut main = objects::gateway();
    main.extend([objects::route_with("app", json!({ "rules": rules })), objects::service("app")]);
    main.push(objects::backend_policy("app", policy));
    Ok(fixture.configuration.write("main.yaml", &main)?)
}

async fn two_rule_fixture(queue: Value) -> Result<HttpFixture> {
    let policy = json!({ "maxInFlightPerEndpoint": 2 });
    let fixture = HttpFixture::with_backend_policy(EndpointBehaviour::gated(), policy).await?;
    write_two_rules(&fixture, json!({ "maxInFlightPerEndpoint": 1, "queue": queue }))?;
    let capped = async || Ok(fixture.sheave.backends().await?[0].max_in_flight_per_endpoint);
    eventually("the rules are in force", capped, |cap| *cap == Some(1)).await?;
    Ok(fixture)
}

/// Queues requests one after another, then serves them all. Returns the order in which they were
/// served.
async fn queue_and_serve(fixture: &HttpFixture, paths: &[&str]) -> Result<Vec<String>> {
    let mut clients = vec![occupy_slot(fixture).await?];
    for (number, path) in (1..).zip(paths) {
        clients.push(begin_request(fixture, path).await?);
        fixture.sheave.wait_for_queue_length(number).await?;
    }
    fixture.endpoint().open_gate(clients.len());
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    fixture.sheave.wait_until_idle().await?;
    Ok(served_order(fixture))
}

#[tokio::test]
async fn flood_of_one_route_does_not_delay_another() -> Result {
    let fixture = two_rule_fixture(json!({ "timeout": "1h" })).await?;
    let order = queue_and_serve(&fixture, &["/a", "/b", "/c", "/d", "/pay/1", "/pay/2"]).await?;
    assert_eq!(order, ["/a", "/pay/1", "/b", "/pay/2", "/c", "/d"]);
    Ok(())
}

#[tokio::test]
async fn route_priority_is_respected() -> Result {
    let routes = json!([{ "name": "app", "sectionName": "pay", "priority": 0 }]);
    let queue = json!({ "timeout": "1h", "priority": { "routes": routes } });
    let fixture = two_rule_fixture(queue).await?;
    let order = queue_and_serve(&fixture, &["/a", "/b", "/pay/1", "/c", "/pay/2"]).await?;
    assert_eq!(order, ["/pay/1", "/pay/2", "/a", "/b", "/c"]);
    Ok(())
}

#[tokio::test]
async fn higher_priority_evicts_a_lower_one() -> Result {
    let queue =
        json!({ "maxRequests": 1, "timeout": "1h", "priority": { "header": "X-Priority" } });
    let fixture = one_slot_fixture(queue).await?;
    let mut first = occupy_slot(&fixture).await?;
    let mut lower = begin_request_with_priority(&fixture, "/lower", "5").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    let mut higher = begin_request_with_priority(&fixture, "/higher", "u=2, i").await?;
    let refused = lower.response("GET").await?;
    check_refusal(&refused, 429, "1")?;
    let counted = async || fixture.sheave.metric_sum("sheave_backend_refused_total").await;
    eventually("the refusal is counted", counted, |counted| *counted == 1.0).await?;
    fixture.endpoint().open_gate(2);
    ensure!(first.response("GET").await?.status() == 200);
    ensure!(higher.response("GET").await?.status() == 200);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_would_miss_its_deadline_is_refused_with_retry_after() -> Result {
    let slow = EndpointBehaviour::slow(Duration::from_millis(100));
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1m" } });
    let fixture = HttpFixture::with_backend_policy(slow, policy).await?;
    let refs = json!([{ "name": "app", "port": 80 }]);
    let hasty = json!({
        "matches": [{ "path": { "type": "PathPrefix", "value": "/hasty" } }],
        "backendRefs": refs,
        "timeouts": { "request": "2s" },
    });
    let rules = json!([hasty, { "backendRefs": refs }]);
    let mut main = objects::gateway();
    main.extend([objects::route_with("app", json!({ "rules": rules })), objects::service("app")]);
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "timeout": "1m", "fairness": "None" },
        "overload": { "retryAfter": "2s" },
    });
    main.push(objects::backend_policy("app", policy));
    fixture.configuration.write("main.yaml", &main)?;

    let mut waiting = Vec::new();
    for _ in 0..100 {
        waiting.push(begin_request(&fixture, "/").await?);
    }
    // Enough requests have been served to know the rate, and more than 6 s of requests are left.
    let endpoint = fixture.endpoint();
    let counts = endpoint.wait_for_counts("twenty", |counts| counts.requests >= 20).await?;
    let refused = fixture.client().await?.get("/hasty").await?;
    let served = endpoint.counts().requests - counts.requests;
    ensure!(refused.status() == 429, "{refused:?}");
    // Twenty are served until the deadline.
    ensure!(served < 10, "it waited while {served} requests were served");
    let after: u64 = refused.field("retry-after").unwrap_or_default().parse()?;
    ensure!((3..=30).contains(&after), "retry after {after} s");
    let reason = refused.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("expected wait is too long"), "{reason}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_and_queue_changes_under_load_lose_no_request() -> Result {
    let servers = start_endpoints(2, &EndpointBehaviour::slow(Duration::from_millis(5))).await?;
    let policies = [objects::backend_policy("app", json!({ "maxInFlightPerEndpoint": 4 }))];
    let fixture = HttpFixture::with(servers, &policies, &["--workers", "2"]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 16, ClientPattern::GET);
    for round in 0..40 {
        let cap = 1 + round % 4;
        let priority = match round % 3 {
            0 => json!({}),
            1 => json!({ "header": "X-Priority" }),
            _ => json!({ "default": round % 8 }),
        };
        let fairness = if round % 2 == 0 { "PerRoute" } else { "None" };
        let policy = json!({
            "maxInFlightPerEndpoint": cap,
            "queue": {
                "maxRequests": 20 + round,
                "timeout": format!("{}s", 20 + round),
                "fairness": fairness,
                "priority": priority,
            },
        });
        let mut main = objects::gateway();
        main.extend([objects::route("app"), objects::service("app")]);
        main.push(objects::backend_policy("app", policy));
        fixture.configuration.write("main.yaml", &main)?;
        let capped = async || Ok(fixture.sheave.backends().await?[0].max_in_flight_per_endpoint);
        eventually("the cap is in force", capped, |now| *now == Some(cap)).await?;
    }
    let report = load.stop().await;
    report.assert_all_served();
    let most = fixture.endpoints.iter().map(|endpoint| endpoint.counts().max_in_flight).max();
    ensure!(most <= Some(4), "{most:?}");
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn shorter_queue_limits_apply_from_the_next_request() -> Result {
    let fixture = one_slot_fixture(json!({ "timeout": "1h" })).await?;
    let mut first = occupy_slot(&fixture).await?;
    let mut patient = begin_request(&fixture, "/patient").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    let spec = |queue: Value| json!({ "maxInFlightPerEndpoint": 2, "queue": queue });
    write_two_rules(&fixture, spec(json!({ "maxRequests": 2, "timeout": "200ms" })))?;
    // The higher cap admits the queued request, which shows that the policy is in force.
    fixture.endpoint().wait_for_counts("two at once", |counts| counts.in_flight == 2).await?;
    check_refusal(&fixture.client().await?.get("/hasty").await?, 429, "1")?;
    write_two_rules(&fixture, spec(json!({ "maxRequests": 0 })))?;
    let refused = async || fixture.sheave.metric_sum("sheave_backend_refused_total").await;
    let before = refused().await?;
    eventually(
        "requests are refused at once",
        async || {
            let begun = Instant::now();
            check_refusal(&fixture.client().await?.get("/at-once").await?, 429, "1")?;
            Ok(begun.elapsed())
        },
        |took| *took < Duration::from_millis(200),
    )
    .await?;
    ensure!(refused().await? > before);
    fixture.endpoint().open_gate(2);
    ensure!(first.response("GET").await?.status() == 200);
    ensure!(patient.response("GET").await?.status() == 200);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn sustained_overload_sheds_requests_that_waited_too_long() -> Result {
    let timeout = Duration::from_millis(1_500);
    let fixture = one_slot_fixture(json!({ "timeout": "1500ms", "target": "100ms" })).await?;
    let mut first = occupy_slot(&fixture).await?;
    let mut second = begin_request(&fixture, "/second").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    let queued = Instant::now();
    sleep_until(queued + timeout / 2).await; // The next request comes later.
    let mut third = begin_request(&fixture, "/third").await?;
    fixture.sheave.wait_for_queue_length(2).await?;
    fixture.endpoint().open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    fixture.sheave.wait_for_queue_length(1).await?;
    // Then the queue has not been empty for the timeout. The third request may still wait for half of it.
    sleep_until(queued + timeout).await;
    let mut fourth = begin_request(&fixture, "/fourth").await?;
    fixture.sheave.wait_for_queue_length(2).await?;
    fixture.endpoint().open_gate(2);
    ensure!(second.response("GET").await?.status() == 200);
    let shed = third.response("GET").await?;
    check_refusal(&shed, 429, "1")?;
    ensure!(shed.field("proxy-status").unwrap_or_default().contains("sustained overload"));
    ensure!(fourth.response("GET").await?.status() == 200);
    fixture.sheave.wait_until_idle().await
}
