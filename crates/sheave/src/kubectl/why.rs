//! `kubectl sheave why POD`: why a pod gets no or so many requests, as each replica of Sheave sees it.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use kube::{EndpointMention, PodSummary};

use super::replicas::{ReplicaAnswer, ReplicaGroup};
use super::text::{escaped, table, wrapped};
use crate::admin::{BackendInfo, BackendsResponse, EndpointInfo};
use crate::check::print;
use crate::failure::Failure;
use crate::live_cluster::{LiveCluster, access_failure};

/// Time between the two samples of which rates are made.
const INTERVAL: Duration = Duration::from_secs(1);
const BACKENDS: &str = "/api/v1/backends";
/// Share of the mean below or above which a share is named.
const NOTABLE: f64 = 2.0;

/// A pod with everything that decides its requests.
struct PodCase {
    pod: PodSummary,
    /// Services that name the pod, or the reason why they are not known.
    services: Result<Vec<EndpointMention>, String>,
    replicas: Vec<ReplicaAnswer<BackendsResponse>>,
    /// The same, a second before.
    before: Vec<ReplicaAnswer<BackendsResponse>>,
}

/// One replica's view of the pod as an endpoint of a backend.
struct EndpointView<'c> {
    replica: &'c str,
    backend: &'c BackendInfo,
    /// `None`: the replica does not have the endpoint.
    endpoint: Option<&'c EndpointInfo>,
    /// Requests within the last second, of the endpoint and of all endpoints.
    recent: (u64, u64),
}

/// Prints the reasons.
pub(super) fn run(
    cluster: &LiveCluster,
    group: &ReplicaGroup<'_>,
    pod: &str,
) -> Result<(), Failure> {
    let (namespace, name) = pod.split_once('/').unwrap_or_else(|| (cluster.namespace(), pod));
    let pod = cluster.wait(cluster.client.pod(namespace, name));
    let pod = pod.map_err(|error| access_failure(&error))?;
    let services = cluster.wait(cluster.client.endpoints_of(&pod));
    let services = services.map_err(|error| error.to_string());
    let before = group.ask(BACKENDS);
    // Rates are differences between two samples.
    thread::sleep(INTERVAL);
    let replicas = group.ask(BACKENDS);
    let is_answered = replicas.iter().any(|(_, answer)| answer.is_ok());
    print(&PodCase { pod, services, replicas, before }.lines())?;
    if is_answered { Ok(()) } else { Err(Failure::input("no replica of Sheave answers")) }
}

impl PodCase {
    fn lines(&self) -> Vec<String> {
        let mut lines = wrapped("", &self.title());
        lines.extend(self.service_lines());
        for (replica, answer) in &self.replicas {
            if let Err(reason) = answer {
                let text = format!("replica {} does not tell: {reason}", escaped(replica));
                lines.extend(wrapped("- ", &text));
            }
        }
        let backends = self.backends();
        for (name, views) in &backends {
            lines.push(String::new());
            lines.extend(wrapped("", &format!("Backend {name}")));
            let heading =
                ["REPLICA", "HEALTH", "IN FLIGHT", "LIMIT", "WEIGHT", "REQ/S", "SHARE", "FAILED"];
            let rows: Vec<_> = views.iter().map(EndpointView::row).collect();
            lines.extend(table(&heading, &rows));
            for view in views {
                for reason in view.reasons() {
                    let text = format!("{}: {reason}", view.replica);
                    lines.extend(wrapped("- ", &text));
                }
            }
        }
        lines
    }

    fn title(&self) -> String {
        let pod = &self.pod;
        let addresses: Vec<_> = pod.addresses.iter().map(ToString::to_string).collect();
        let addresses = match addresses.as_slice() {
            [] => "no address yet".to_owned(),
            some => some.join(", "),
        };
        let readiness = match (pod.is_terminating, pod.is_ready) {
            (true, _) => "terminating",
            (false, true) => "ready",
            (false, false) => "not ready",
        };
        format!("Pod {}/{}: {addresses}, {}, {readiness}", pod.namespace, pod.name, pod.phase)
    }

    fn service_lines(&self) -> Vec<String> {
        let services = match &self.services {
            Err(reason) => return wrapped("- ", &format!("its Services are not known: {reason}")),
            Ok(services) => services,
        };
        if services.is_empty() {
            let text = match self.pod.addresses.is_empty() {
                true => "no Service has this pod as an endpoint: it has no address yet",
                false => {
                    "no Service has this pod as an endpoint, so it gets no requests: no selector of a Service in its \
                     namespace matches its labels"
                }
            };
            return wrapped("- ", text);
        }
        let backends = self.backends();
        let mut lines = Vec::new();
        for mention in services {
            let service = format!("{}/{}", self.pod.namespace, mention.service);
            let is_routed = |it: &BackendInfo| {
                it.namespace == self.pod.namespace && it.service == mention.service
            };
            let has_backend = backends.values().flatten().any(|view| is_routed(view.backend));
            let text = match (mention.is_ready, mention.is_terminating) {
                (_, true) => "the pod is terminating: it gets no new requests",
                (false, false) => {
                    "the pod is not ready, so it gets no requests: its readiness probe fails, or a readiness gate is open"
                }
                (true, false) if !has_backend && self.knows_all() => {
                    "ready, but no route or Ingress of Sheave refers to this Service: its requests do not pass Sheave"
                }
                (true, false) => "ready",
            };
            lines.extend(wrapped("- ", &format!("Service {service}: {text}")));
        }
        lines
    }

    /// True if every replica has told its backends.
    fn knows_all(&self) -> bool {
        self.replicas.iter().all(|(_, answer)| answer.is_ok())
    }

    /// Returns the backends that have the pod as an endpoint in a replica, or whose Service names it, with the views of
    /// all replicas.
    fn backends(&self) -> BTreeMap<&str, Vec<EndpointView<'_>>> {
        let mut found: BTreeMap<&str, Vec<EndpointView<'_>>> = BTreeMap::new();
        for (replica, answer) in &self.replicas {
            let Ok(response) = answer else { continue };
            for backend in response.backends.iter().filter(|it| self.concerns(it)) {
                let view = self.view(replica, backend);
                found.entry(&backend.name).or_default().push(view);
            }
        }
        found
    }

    fn concerns(&self, backend: &BackendInfo) -> bool {
        let is_service = |mention: &EndpointMention| {
            backend.namespace == self.pod.namespace && backend.service == mention.service
        };
        self.endpoint(backend).is_some() || self.services.iter().flatten().any(is_service)
    }

    fn endpoint<'b>(&self, backend: &'b BackendInfo) -> Option<&'b EndpointInfo> {
        backend.endpoints.iter().find(|it| self.pod.addresses.contains(&it.address.ip()))
    }

    fn view<'c>(&'c self, replica: &'c str, backend: &'c BackendInfo) -> EndpointView<'c> {
        let earlier = self.before.iter().find(|(name, _)| name == replica);
        let earlier = earlier.and_then(|(_, answer)| answer.as_ref().ok());
        let earlier = earlier.and_then(|it| it.backends.iter().find(|it| it.name == backend.name));
        let count = |endpoint: &EndpointInfo| {
            let known = earlier
                .and_then(|it| it.endpoints.iter().find(|it| it.address == endpoint.address));
            known.map_or(0, |known| endpoint.requests.saturating_sub(known.requests))
        };
        let endpoint = self.endpoint(backend);
        let all = backend.endpoints.iter().map(count).sum();
        EndpointView { replica, backend, endpoint, recent: (endpoint.map_or(0, count), all) }
    }
}

impl EndpointView<'_> {
    fn row(&self) -> Vec<String> {
        let Some(endpoint) = self.endpoint else {
            let mut row = vec![self.replica.to_owned(), "unknown".to_owned()];
            row.extend(std::iter::repeat_n("-".to_owned(), 6));
            return row;
        };
        let limit = endpoint.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        let share = match self.recent {
            (_, 0) => "-".to_owned(),
            (own, all) => format!("{:.0} %", own as f64 * 100.0 / all as f64),
        };
        vec![
            self.replica.to_owned(),
            endpoint.health.to_string(),
            endpoint.in_flight.to_string(),
            limit,
            endpoint.weight.to_string(),
            self.recent.0.to_string(),
            share,
            endpoint.failures.to_string(),
        ]
    }

    /// Returns everything that keeps requests from the endpoint or sends it more than others.
    fn reasons(&self) -> Vec<String> {
        let Some(endpoint) = self.endpoint else {
            return vec![
                "this replica does not have the endpoint: the pod is not ready, it has only just become ready, or its \
                 address is one that Sheave rejects (see `kubectl sheave status`)"
                    .to_owned(),
            ];
        };
        let mut reasons = Vec::new();
        if let Some(reason) = health_reason(&endpoint.health) {
            let text = match self.backend.panicking {
                true => format!("{reason}; too few endpoints are healthy, so health is ignored"),
                false => reason.to_owned(),
            };
            reasons.push(text);
        }
        if endpoint.weight == 0 {
            reasons.push("its weight is 0: it gets no requests".to_owned());
        }
        self.add_limit_reasons(endpoint, &mut reasons);
        self.add_share_reasons(endpoint, &mut reasons);
        reasons
    }

    fn add_limit_reasons(&self, endpoint: &EndpointInfo, reasons: &mut Vec<String>) {
        let Some(limit) = endpoint.limit else { return };
        let origin = limit_origin(endpoint.limit_reason.as_deref().unwrap_or_default());
        if limit == 0 {
            reasons.push(format!("its limit is 0 ({origin}): it gets no requests by this replica"));
        } else if endpoint.in_flight >= limit {
            let waiting = self.backend.queue_length;
            reasons.push(format!(
                "all {limit} slots are in use ({origin}); {waiting} requests wait for a free slot of any endpoint"
            ));
        }
        let limits: Vec<u32> = self.backend.endpoints.iter().filter_map(|it| it.limit).collect();
        let sum: u64 = limits.iter().map(|limit| u64::from(*limit)).sum();
        let mean = sum as f64 / limits.len().max(1) as f64;
        if limit > 0 && f64::from(limit) * NOTABLE <= mean {
            reasons.push(format!("its limit is {limit}, the mean of all is {mean:.1} ({origin})"));
        }
    }

    fn add_share_reasons(&self, endpoint: &EndpointInfo, reasons: &mut Vec<String>) {
        let (own, all) = self.recent;
        let count = self.backend.endpoints.len();
        if all == 0 {
            reasons.push(
                "no request has been sent to any endpoint of this backend within the last second"
                    .to_owned(),
            );
            return;
        }
        let weights: u64 = self.backend.endpoints.iter().map(|it| u64::from(it.weight)).sum();
        let fair = f64::from(endpoint.weight) / weights.max(1) as f64;
        let share = own as f64 / all as f64;
        // With few requests a share is chance.
        if count > 1 && all >= 20 && (share * NOTABLE <= fair || share >= fair * NOTABLE) {
            reasons.push(format!(
                "{own} of {all} requests of the last second; by its weight it would be {:.0} %: {} decides, which \
                 prefers endpoints with less to do",
                100.0 * fair,
                self.backend.algorithm
            ));
        }
    }
}

fn health_reason(health: &str) -> Option<&'static str> {
    match health {
        "serving" => None,
        "slow_start" => Some("it is new: its share grows during the slow start"),
        "ejected" => Some(
            "it is ejected after failures (BackendPolicy health.passive): no requests until a trial succeeds",
        ),
        "half_open" => Some("it was ejected, and gets single requests as a trial"),
        "unhealthy" => Some("its active health check fails: no requests"),
        "unreachable" => Some("connections to it fail: no requests until one succeeds"),
        _ => Some("its health is none that this version knows"),
    }
}

fn limit_origin(reason: &str) -> &'static str {
    match reason {
        "fixed" => "maxInFlight of its BackendPolicy",
        "assigned" => "this replica's part of maxInFlight",
        "leased" => "slots that this replica has leased of maxInFlight",
        "reported" => "reported by the endpoint",
        "full" => "lowered after the endpoint has rejected requests",
        "start" | "growing" | "saturation" | "probing" | "shared" => "learned from its latency",
        _ => "the reason is none that this version knows",
    }
}

#[cfg(test)]
mod tests;
