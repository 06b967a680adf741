//! Requests bound to an endpoint by a cookie or a hash key: they go elsewhere while it is dead, and
//! return to it afterwards.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::{EndpointBehaviour, HttpFixture, Result, objects};

use super::load::{LoadProtocol, RecordedLoad, assert_all_served};
use super::outage_helpers::{
    ANSWERS, CLIENTS, SERVICE_TIME, assert_budget_is_left, kill, requests, restart, start_fixture,
    wait_for_health,
};

/// Clients with session affinity: each has a key of its own, and the first cookie that it received.
#[derive(Default)]
struct AffinityClients {
    cookies: BTreeMap<usize, String>,
}

impl AffinityClients {
    /// Returns the endpoint of each client. One request is in flight at a time, so that load does
    /// not influence the choice.
    async fn endpoint_of_each_client(&mut self, fixture: &HttpFixture) -> Result<Vec<SocketAddr>> {
        let mut assigned = Vec::new();
        let mut connection = fixture.client().await?;
        for number in 0..CLIENTS {
            let (key, before) = (number.to_string(), requests(&fixture.endpoints));
            let cookie = self.cookies.entry(number).or_default();
            let fields = [("X-Key", key.as_str()), ("Cookie", cookie.as_str())];
            let response = connection.exchange("GET", "/", &fields, b"").await?;
            ensure!(response.status() == 200, "{response:?}");
            if let Some(given) = response.field("set-cookie").filter(|_| cookie.is_empty()) {
                given.split(';').next().unwrap_or_default().clone_into(cookie);
            }
            let mut after = requests(&fixture.endpoints).into_iter().zip(before);
            let index = after
                .position(|(after, before)| after > before)
                .context("no endpoint got the request")?;
            assigned.push(fixture.endpoints[index].address);
        }
        Ok(assigned)
    }
}

/// Checks a load of requests, some of them bound to an endpoint that dies and returns.
async fn check_affinity_is_restored(policy: Value) -> Result {
    let mut fixture = start_fixture(3, &[objects::backend_policy("app", policy)]).await?;
    let address = fixture.endpoints[0].address;
    let mut clients = AffinityClients::default();
    clients.endpoint_of_each_client(&fixture).await?;
    let before = clients.endpoint_of_each_client(&fixture).await?;
    let bound = before.iter().filter(|endpoint| **endpoint == address).count();
    ensure!(bound > 0 && bound < CLIENTS, "{bound} clients are bound to the endpoint");

    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("GET"));
    load.wait_for_responses(ANSWERS).await?;
    kill(fixture.endpoints.remove(0)).await?;
    load.wait_for_responses(ANSWERS).await?;
    let meanwhile = clients.endpoint_of_each_client(&fixture).await?;
    fixture.endpoints.insert(0, restart(address, &EndpointBehaviour::slow(SERVICE_TIME)).await?);
    wait_for_health(&fixture.sheave, address, "serving").await?;
    load.wait_for_responses(ANSWERS).await?;
    assert_all_served(&load.stop().await)?;
    assert_budget_is_left(&fixture.sheave).await?;
    fixture.sheave.wait_until_idle().await?;

    ensure!(
        meanwhile.iter().all(|endpoint| *endpoint != address),
        "a request went to the dead endpoint"
    );
    assert_eq!(
        clients.endpoint_of_each_client(&fixture).await?,
        before,
        "a client did not return to its endpoint"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cookie_clients_move_away_from_a_dead_endpoint_and_back() -> Result {
    check_affinity_is_restored(json!({ "affinity": { "type": "Cookie", "name": "pod" } })).await
}

fn hash_on_key_policy(algorithm: &str) -> Value {
    json!({ "algorithm": algorithm, "hashOn": { "type": "Header", "name": "x-key" } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_hash_keys_move_away_from_a_dead_endpoint_and_back() -> Result {
    check_affinity_is_restored(hash_on_key_policy("ConsistentHash")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maglev_keys_move_away_from_a_dead_endpoint_and_back() -> Result {
    check_affinity_is_restored(hash_on_key_policy("Maglev")).await
}
