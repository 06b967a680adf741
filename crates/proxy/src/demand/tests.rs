//! Counting of demand per worker, and the rejections that a client connection remembers.

use std::sync::Arc;
use std::thread;

use balance::EndpointSet;
use balance::demand::WINDOW;
use balance::peer_reports::{BackendHash, REPORTED_WINDOWS, ReportedDemand, ReportedRates};
use gateway::snapshot::{BackendKey, BackendSettings, TransportProtocol};

use super::refusal_history::{MAX_REMEMBERED, RefusalHistory};
use super::*;
use crate::affinity::AffinityKey;
use crate::backend::Backend;

fn second(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn backend(service: &str) -> Arc<Backend> {
    let (namespace, service) = ("default".into(), service.into());
    let key =
        BackendKey { namespace, service, port: 80, transport: TransportProtocol::Tcp, node: None };
    let settings = BackendSettings::default();
    let key_source = Arc::new(AffinityKey::new(None));
    Arc::new(Backend::new(key, EndpointSet::empty(), settings, None, key_source, 2, None))
}

/// Returns the request-seconds of all rejected requests so far, which ended long ago.
fn rejected(backend: &Backend) -> f64 {
    backend.demand.read(|averager| averager.request_seconds().rejected)
}

#[test]
fn retry_on_the_same_connection_withdraws_its_rejected_demand() {
    let (web, api) = (backend("web"), backend("api"));
    let (mut client, mut other) = (RefusalHistory::default(), RefusalHistory::default());
    client.record_refusal(&web, 0, second(10));
    client.record_refusal(&api, 0, second(10));
    other.record_refusal(&web, 1, second(10));
    // The connection has moved to another worker since; the rejection is still withdrawn from the
    // first.
    let quarter = Time::from_nanos(10_250_000_000);
    client.take_back(&web, quarter);
    assert_eq!((rejected(&web), rejected(&api)), (1.25, 1.0));
    // Once for each rejection, and not after its time.
    client.take_back(&web, quarter);
    other.take_back(&web, second(12));
    assert_eq!((rejected(&web), rejected(&api)), (1.25, 1.0));
    assert_eq!(web.demand.read(DemandAverager::rejected_requests), 2);
    assert!(other.0.is_empty() && client.0.len() == 1, "expired rejections are forgotten");
}

#[test]
fn rejections_beyond_the_remembered_ones_count_in_full() {
    let web = backend("web");
    let mut client = RefusalHistory::default();
    for _ in 0..MAX_REMEMBERED + 5 {
        client.record_refusal(&web, 0, second(10));
    }
    for _ in 0..MAX_REMEMBERED + 5 {
        client.take_back(&web, second(10));
    }
    assert_eq!(rejected(&web), 5.0);
}

#[test]
fn rejected_requests_count_for_the_service_time() {
    let web = backend("web");
    let now = clock::now();
    let before = Time::from_nanos(now.as_nanos() - 340_000_000);
    web.demand.shard(1).take(before);
    web.demand.shard(1).give_back(before, now);
    web.demand.read(|_| ());
    RefusalHistory::default().record_refusal(&web, 0, second(10));
    assert!((rejected(&web) - 0.34).abs() < 1e-9, "{}", rejected(&web));
}

#[test]
fn demand_rise_notifies_all_subscribers_once_if_expected() {
    let tracker = DemandTracker::new(1, None);
    let (mut one, mut other) = (tracker.subscribe_rises(), tracker.subscribe_rises());
    tracker.signal_rise();
    assert!(!one.has_changed().unwrap(), "no subscriber expects it");
    tracker.expect_rise(RiseListener::Subscribers);
    tracker.signal_rise();
    assert!(one.has_changed().unwrap() && other.has_changed().unwrap());
    one.mark_unchanged();
    other.mark_unchanged();
    tracker.signal_rise();
    assert!(!one.has_changed().unwrap(), "once");
}

#[test]
fn demand_of_peers_adds_to_our_own_and_notifies_subscribers() {
    let tracker = DemandTracker::new(1, None);
    let mut rises = tracker.subscribe_rises();
    let demand = ReportedDemand { in_flight: 1_000, queued: 500, rejected: 0 };
    let averages = [demand; REPORTED_WINDOWS.len()];
    let rates = ReportedRates { requests: 7_000, rejected: 1_000 };
    let report = DemandReport { backend: BackendHash(1), present: demand, averages, rates };
    let (peer, now) = (([10, 0, 0, 1], 9903).into(), clock::now());
    assert!(!tracker.is_active(WINDOW, 0.0));
    tracker.expect_rise(RiseListener::Subscribers);
    tracker.record_peer(peer, report, now);
    assert!(rises.has_changed().unwrap());
    rises.mark_unchanged();
    assert_eq!(tracker.average_of_all(WINDOW).total(), 1.5);
    assert_eq!(tracker.rates_of_all(), RequestRates { requests: 7.0, rejected: 1.0 });
    assert!(tracker.is_active(WINDOW, 1.0) && !tracker.is_active(WINDOW, 2.0));
    // Demand that goes on is no rise; our own requests add to it.
    tracker.expect_rise(RiseListener::Subscribers);
    tracker.record_peer(peer, report, now);
    assert!(!rises.has_changed().unwrap());
    tracker.shard(0).take(now);
    assert!(tracker.average_of_all(WINDOW).total() > 1.5);
}

#[test]
fn readers_make_progress_while_workers_write() {
    const REQUESTS: u64 = 200_000;
    let tracker = DemandTracker::new(2, None);
    thread::scope(|scope| {
        for worker in 0..2 {
            let shard = tracker.shard(worker);
            scope.spawn(move || {
                for _ in 0..REQUESTS {
                    let taken = clock::now();
                    shard.wait(taken);
                    shard.grant(taken);
                    shard.give_back(taken, clock::now());
                }
            });
        }
        let mut last = 0.0;
        for _ in 0..2_000 {
            let (present, spent) = tracker.read(|it| (it.present(), it.request_seconds()));
            assert!((0.0..=2.0).contains(&present.total()), "{present:?}");
            // Requests that were read as in flight may turn out to have ended before.
            assert!(spent.in_flight > last - 0.1, "{spent:?} after {last}");
            last = spent.in_flight;
        }
    });
    let (present, served) = tracker.read(|it| (it.present(), it.service_time()));
    assert_eq!(present.total(), 0.0);
    assert!(served.is_some());
}
