//! HTTP/1.1 endpoints that die under load, like a killed process.

use std::collections::BTreeSet;

use anyhow::ensure;
use tests::fixture::start_endpoints;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, eventually};
use tokio::time::Instant;

use super::load::{
    LoadProtocol, RecordedLoad, assert_all_served, assert_none_failed_after, failed,
};
use super::outage_helpers::{
    ANSWERS, CLIENTS, TWO_WORKERS, assert_budget_is_left, kill, start_fixture,
};

/// Kills this many of all endpoints one after another under a load of GETs, none of which may fail.
async fn check_gets_survive(deaths: usize, all: usize) -> Result {
    let mut fixture = start_fixture(all, &[]).await?;
    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("GET"));
    load.wait_for_responses(ANSWERS).await?;
    for _ in 0..deaths {
        kill(fixture.endpoints.remove(0)).await?;
        load.wait_for_responses(ANSWERS).await?;
    }
    assert_all_served(&load.stop().await)?;
    assert_budget_is_left(&fixture.sheave).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_one_of_three_endpoints_dies() -> Result {
    check_gets_survive(1, 3).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_two_of_three_endpoints_die() -> Result {
    check_gets_survive(2, 3).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_four_of_five_endpoints_die() -> Result {
    check_gets_survive(4, 5).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_four_of_five_endpoints_die_at_once() -> Result {
    let mut fixture = start_fixture(5, &[]).await?;
    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("GET"));
    load.wait_for_responses(ANSWERS).await?;
    fixture.endpoints.truncate(1);
    load.wait_for_responses(ANSWERS).await?;
    assert_all_served(&load.stop().await)?;
    assert_budget_is_left(&fixture.sheave).await
}

/// A POST that begins after the death succeeds, and no POST is served twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_death_fails_only_posts_in_flight() -> Result {
    let mut fixture = start_fixture(3, &[]).await?;
    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("POST"));
    load.wait_for_responses(ANSWERS).await?;
    let mut seen = kill(fixture.endpoints.remove(0)).await?;
    let death = Instant::now();
    load.wait_for_responses(ANSWERS).await?;
    let answers = load.stop().await;
    assert_none_failed_after(death, &answers)?;
    seen.extend(fixture.endpoints.iter().flat_map(Endpoint::requests));
    let targets: BTreeSet<_> = seen.iter().map(|seen| seen.head.target()).collect();
    assert_eq!(targets.len(), seen.len(), "a POST was sent twice");
    assert_budget_is_left(&fixture.sheave).await
}

/// All POSTs have been received when the endpoint dies, so exactly those of the dead endpoint fail.
#[tokio::test]
async fn only_posts_received_by_the_dead_endpoint_fail() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::gated()).await?;
    let mut fixture = HttpFixture::with(servers, &[], TWO_WORKERS).await?;
    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("POST"));
    let in_flight = async || {
        Ok(fixture.endpoints.iter().map(|endpoint| endpoint.counts().in_flight).sum::<usize>())
    };
    eventually("all requests are in flight", in_flight, |all| *all == CLIENTS).await?;
    let lost = fixture.endpoints[0].counts().in_flight;
    ensure!(lost > 0, "the endpoint got no request");
    kill(fixture.endpoints.remove(0)).await?;
    fixture.endpoints.iter().for_each(|endpoint| endpoint.open_gate(100 * CLIENTS));
    load.wait_for_responses(5 * CLIENTS).await?;
    let answers = load.stop().await;
    let failed = failed(&answers);
    assert_eq!(failed.len(), lost, "{failed:#?}");
    ensure!(failed.iter().all(|answer| answer.target.ends_with("/0")), "{failed:#?}");
    assert_budget_is_left(&fixture.sheave).await
}
