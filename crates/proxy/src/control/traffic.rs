//! Counts of the traffic since the start, per listener, rule and backend, for curves and pages.
//!
//! Sums over workers and endpoints are formed here, so that a page about thousands of endpoints costs a reader little.

use std::net::SocketAddr;
use std::sync::Arc;

use gateway::snapshot::{ListenerProtocol, RuleTarget};

use super::{BackendView, Proxy, view_backend};
use crate::active_config::{ActiveConfig, ActiveListener, Route};
use crate::backend::Backend;
use crate::failure::Failure;
use crate::observe::{Histogram, RouteCounters, SingleWriterCounter};
use crate::rate_limit::RateLimiter;

/// Traffic of a process since its start.
#[derive(Clone, Debug, Default)]
pub struct TrafficSummary {
    pub listeners: Vec<ListenerTraffic>,
    /// In the order of the rules in the configuration.
    pub routes: Vec<RouteTraffic>,
    /// Sorted by key.
    pub backends: Vec<BackendTraffic>,
    pub rate_limits: Vec<RateLimitTraffic>,
}

/// Connections of one listener.
#[derive(Clone, Debug)]
pub struct ListenerTraffic {
    pub name: Arc<str>,
    /// The bound address.
    pub address: SocketAddr,
    /// `http`, `tcp`, `udp`, or `detected` if the first bytes of a connection determine it.
    pub protocol: &'static str,
    /// True if every connection begins with TLS.
    pub tls: bool,
    pub http3: bool,
    /// True if connections are intercepted on the node: the address is a Service's.
    pub is_intercepted: bool,
    pub open: u64,
    pub accepted: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Indices of the rules that may serve its requests, in [`TrafficSummary::routes`].
    pub rules: Vec<usize>,
}

/// Requests of one rule of a route.
#[derive(Clone, Debug)]
pub struct RouteTraffic {
    /// `namespace/route/rule`.
    pub name: Arc<str>,
    /// Responses by the first digit of the status; 0: requests without an answer.
    pub responses: [u64; 6],
    /// Requests that the slots and the queue of a backend rejected.
    pub rejected: u64,
    /// TCP connections and UDP flows that have ended.
    pub sessions: u64,
    /// Number of requests per bucket of durations; see [`TrafficSummary::duration_bounds`].
    pub durations: Vec<u64>,
    /// Indices in [`TrafficSummary::backends`], with their weights.
    pub targets: Vec<(usize, u32)>,
}

/// Requests of one backend, and the state of its endpoints together.
#[derive(Clone, Debug)]
pub struct BackendTraffic {
    /// `namespace/service:port`.
    pub name: Arc<str>,
    /// Requests that asked for a slot. A retried request counts for each slot that it asks for.
    pub requests: u64,
    /// Failures of attempts through the endpoints' fault.
    pub failures: u64,
    /// Rejected requests by reason, in the order of [`TrafficSummary::rejection_reasons`].
    pub rejected: Vec<u64>,
    pub retries: u64,
    pub waiting: u32,
    pub in_flight: u32,
    /// Slots of all endpoints together; `None`: there is no limit.
    pub slots: Option<u32>,
    pub endpoints: u32,
    /// Endpoints that serve no requests, or fewer than their share: ejected, unhealthy, unreachable or half-open.
    pub troubled: u32,
    /// True in panic mode: too few endpoints are healthy, so health is ignored.
    pub is_panicking: bool,
    pub queue_max: u32,
    /// Mean time for which a request holds a slot, in seconds.
    pub service_seconds: Option<f64>,
}

/// Requests to a target of a RateLimitPolicy.
#[derive(Clone, Debug)]
pub struct RateLimitTraffic {
    pub policy: String,
    pub target: String,
    pub admitted: u64,
    pub rejected: u64,
}

impl TrafficSummary {
    /// Returns the upper bounds of the buckets of durations, in seconds; the last bucket has none.
    #[must_use]
    pub fn duration_bounds() -> &'static [f64] {
        Histogram::bounds()
    }

    /// Returns the reasons for which a backend rejects requests, as metrics have them.
    pub fn rejection_reasons() -> impl Iterator<Item = &'static str> {
        Failure::REFUSALS.iter().map(|refusal| refusal.attributes().label)
    }
}

impl Proxy {
    /// Returns the traffic since the start. It costs some ten nanoseconds per endpoint, and no request anything.
    #[must_use]
    pub fn traffic(&self) -> TrafficSummary {
        let active_config = self.shared.config.load();
        TrafficSummary {
            listeners: active_config.listeners.iter().flatten().map(listener_traffic).collect(),
            routes: (0..active_config.routes.len())
                .map(|index| route_traffic(&active_config, index))
                .collect(),
            backends: active_config.backends.iter().map(|it| backend_traffic(it)).collect(),
            rate_limits: active_config.rate_limiters.iter().map(|it| limit_traffic(it)).collect(),
        }
    }

    /// Returns the backends with the names that `is_selected` selects.
    pub fn backends_named(&self, is_selected: impl Fn(&str) -> bool) -> Vec<BackendView> {
        let active_config = self.shared.config.load();
        let selected = active_config.backends.iter().filter(|it| is_selected(&it.name));
        selected.map(|backend| view_backend(backend)).collect()
    }
}

fn listener_traffic(listener: &ActiveListener) -> ListenerTraffic {
    let bound = &listener.bound;
    let (protocol, mut rules): (_, Vec<usize>) = match &listener.protocol {
        ListenerProtocol::Http(routes) => ("http", routes.rules().map(|rule| rule.index).collect()),
        ListenerProtocol::Tcp(rule) => ("tcp", rule.iter().map(|rule| rule.index).collect()),
        ListenerProtocol::Udp(rule) => ("udp", rule.iter().map(|rule| rule.index).collect()),
        ListenerProtocol::Detected { requests, connections } => {
            let rules = requests.rules().chain(connections);
            ("detected", rules.map(|rule| rule.index).collect())
        }
    };
    rules.sort_unstable();
    rules.dedup();
    ListenerTraffic {
        name: Arc::clone(&listener.name),
        address: bound.address,
        protocol,
        tls: listener.sni_table.is_some(),
        http3: listener.http3.is_some(),
        is_intercepted: bound.is_intercepted,
        open: u64::from(bound.open()),
        accepted: sum(bound.counters.iter().map(|shard| &shard.accepted)),
        received_bytes: sum(bound.counters.iter().map(|shard| &shard.received_bytes)),
        sent_bytes: sum(bound.counters.iter().map(|shard| &shard.sent_bytes)),
        rules,
    }
}

fn route_traffic(active_config: &ActiveConfig, index: usize) -> RouteTraffic {
    let (route, rule): (&Route, _) = (&active_config.routes[index], &active_config.rules[index]);
    let count =
        |pick: fn(&RouteCounters) -> &SingleWriterCounter| sum(route.counters.iter().map(pick));
    let targets = rule.targets.iter().filter_map(|it| match it.target {
        RuleTarget::Backend(backend) => Some((backend, it.weight)),
        RuleTarget::Unresolved => None,
    });
    RouteTraffic {
        name: Arc::clone(&route.name),
        responses: std::array::from_fn(|class| {
            sum(route.counters.iter().map(|shard| &shard.responses[class]))
        }),
        rejected: count(|shard| &shard.refused),
        sessions: count(|shard| &shard.l4_sessions),
        durations: Histogram::sum(route.counters.iter().map(|shard| &shard.duration)).counts,
        targets: targets.collect(),
    }
}

fn backend_traffic(backend: &Backend) -> BackendTraffic {
    let current = backend.current();
    let troubled = backend.health.troubled(&current.settings.health);
    let (mut failures, mut in_trouble) = (0, 0);
    let members = current.set.members();
    for member in members {
        let endpoint = &member.endpoint;
        failures += sum(endpoint.data.counters.iter().map(|shard| &shard.failures));
        let is_troubled = !endpoint.is_reachable() || troubled.contains(&endpoint.address);
        in_trouble += u32::from(is_troubled);
    }
    let slots = current.slots();
    let (counts, service_time) = backend.demand.counts();
    BackendTraffic {
        name: Arc::clone(&backend.name),
        requests: counts.requests,
        failures,
        rejected: (0..Failure::REFUSALS.len())
            .map(|reason| sum(backend.counters.iter().map(|shard| &shard.refused[reason])))
            .collect(),
        retries: sum(backend.counters.iter().map(|shard| &shard.retries)),
        waiting: backend.waiting(),
        in_flight: current.in_flight(),
        slots: (slots < u32::MAX && !members.is_empty()).then_some(slots),
        endpoints: u32::try_from(members.len()).unwrap_or(u32::MAX),
        troubled: in_trouble,
        is_panicking: backend.health.is_panicking(),
        queue_max: current.settings.queue_max_requests,
        service_seconds: service_time.map(|time| time.as_secs_f64()),
    }
}

fn limit_traffic(limiter: &RateLimiter) -> RateLimitTraffic {
    let [policy, target] = limiter.labels();
    RateLimitTraffic {
        policy,
        target,
        admitted: sum(limiter.counters.iter().map(|shard| &shard.admitted)),
        rejected: sum(limiter.counters.iter().map(|shard| &shard.rejected)),
    }
}

fn sum<'c>(shards: impl Iterator<Item = &'c SingleWriterCounter>) -> u64 {
    shards.map(SingleWriterCounter::value).fold(0, u64::wrapping_add)
}
