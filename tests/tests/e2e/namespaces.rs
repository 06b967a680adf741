//! Namespaces whose Services name the same endpoints: what one does changes nothing for the other.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::fixture::{addresses, start_endpoints};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, ServeStep,
    SheaveProcess, eventually, objects,
};

const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const FULL: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";

/// Services `app` of the namespaces `a` and `b`, with the same endpoints and a host for each.
struct TwoNamespaces {
    sheave: SheaveProcess,
    endpoints: Vec<Endpoint>,
}

impl TwoNamespaces {
    /// Starts endpoints that answer `/fail` with 500 and `/full` with 503 and `Retry-After`. The
    /// policies apply to the Services of `a` and of `b`.
    async fn start(count: usize, policies: [Value; 2]) -> Result<Self> {
        let behaviour = EndpointBehaviour::from(vec![
            ServeStep::ReadBody,
            ServeStep::AnswerFor("/fail", FAILURE),
            ServeStep::AnswerFor("/full", FULL),
            ServeStep::WaitForGate,
            ServeStep::Answer,
        ]);
        let endpoints = start_endpoints(count, &behaviour).await?;
        let mut all = objects::gateway_with(json!([{
            "name": "http",
            "protocol": "HTTP",
            "port": 0,
            "allowedRoutes": { "namespaces": { "from": "All" } },
        }]));
        for (namespace, policy) in ["a", "b"].into_iter().zip(policies) {
            let mut own = objects::slices("app", &addresses(&endpoints));
            own.push(objects::service("app"));
            own.push(objects::host_route(&host(namespace), "app"));
            own.push(objects::backend_policy("app", policy));
            all.extend(own.into_iter().map(|it| objects::in_namespace(namespace, it)));
        }
        let configuration = ConfigDirectory::empty()?;
        configuration.write("both.yaml", &all)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "1"]).await?;
        Ok(Self { sheave, endpoints })
    }

    /// Returns the status of a request to a namespace's Service.
    async fn get(&self, namespace: &str, target: &str) -> Result<u16> {
        let mut client = Http1TestClient::connect(self.sheave.address()).await?;
        let response = client.exchange("GET", target, &[("Host", &host(namespace))], b"").await?;
        Ok(response.status())
    }

    /// Sends a request that its endpoint answers when the gate opens.
    async fn hold(&self, namespace: &str) -> Result<Http1TestClient> {
        let mut client = Http1TestClient::connect(self.sheave.address()).await?;
        client.send(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host(namespace))).await?;
        Ok(client)
    }

    /// Waits until this number of requests is in flight at all endpoints together.
    async fn wait_for_in_flight(&self, expected: usize) -> Result {
        let in_flight = async || Ok(self.endpoints.iter().map(|it| it.counts().in_flight).sum());
        eventually("requests in flight", in_flight, |count: &usize| *count == expected).await?;
        Ok(())
    }

    /// Returns the sum of a metric's samples for a namespace's Service.
    async fn metric(&self, name: &str, namespace: &str) -> Result<f64> {
        let label = format!("\"{namespace}/app:80\"");
        let samples = self.sheave.metric_samples(name).await?;
        Ok(samples.iter().filter(|(labels, _)| labels.contains(&label)).map(|(_, it)| it).sum())
    }
}

fn host(namespace: &str) -> String {
    format!("{namespace}.example")
}

#[tokio::test]
async fn failures_of_one_namespace_do_not_eject_endpoints_of_another() -> Result {
    let passive = json!({ "health": { "passive": {} } });
    let fixture = TwoNamespaces::start(2, [passive.clone(), passive]).await?;
    let ejections = "sheave_backend_ejections_total";
    let failing = async || {
        ensure!(fixture.get("b", "/fail").await? >= 500);
        fixture.metric(ejections, "b").await
    };
    eventually("an ejection for b", failing, |count| *count > 0.0).await?;
    ensure!(fixture.metric(ejections, "a").await? == 0.0);
    ensure!(fixture.metric("sheave_endpoint_failures_total", "a").await? == 0.0);
    fixture.endpoints.iter().for_each(|endpoint| endpoint.open_gate(100));
    for _ in 0..8 {
        ensure!(fixture.get("a", "/").await? == 200);
    }
    let served: Vec<_> = fixture.endpoints.iter().map(|it| it.counts().requests).collect();
    ensure!(fixture.metric("sheave_endpoint_attempts_total", "a").await? == 8.0, "{served:?}");
    Ok(())
}

#[tokio::test]
async fn refusals_of_one_namespace_do_not_lower_the_limit_of_another() -> Result {
    let cap = json!({ "maxInFlightPerEndpoint": 4 });
    let fixture = TwoNamespaces::start(1, [cap.clone(), cap]).await?;
    for _ in 0..2 {
        ensure!(fixture.get("b", "/full").await? == 503);
    }
    ensure!(fixture.metric("sheave_endpoint_limit", "b").await? == 1.0);
    ensure!(fixture.metric("sheave_endpoint_limit", "a").await? == 4.0);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(fixture.hold("a").await?);
    }
    fixture.wait_for_in_flight(4).await
}

/// The cap of a Service is exact for the requests of its own namespace. It does not count those of
/// another, which would otherwise fill it.
#[tokio::test]
async fn requests_of_one_namespace_take_no_slots_of_another() -> Result {
    let cap = json!({ "maxInFlightPerEndpoint": 2 });
    let fixture = TwoNamespaces::start(1, [cap, json!({})]).await?;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(fixture.hold("b").await?);
    }
    fixture.wait_for_in_flight(8).await?;
    for _ in 0..3 {
        held.push(fixture.hold("a").await?);
    }
    let waiting = async || fixture.metric("sheave_backend_queue_length", "a").await;
    eventually("one of a waits", waiting, |count| *count == 1.0).await?;
    fixture.wait_for_in_flight(10).await?;
    fixture.endpoints[0].open_gate(11);
    for client in &mut held {
        ensure!(client.response("GET").await?.status() == 200);
    }
    Ok(())
}
