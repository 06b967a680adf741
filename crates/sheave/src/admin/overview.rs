//! JSON of the dashboard's pages: the state of the process, aggregated so that its size does not grow with the number of
//! endpoints.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use gateway::load_balancer::LoadBalancerService;
use gateway::snapshot::TransportProtocol;
use proxy::TrafficSummary;
use serde::{Deserialize, Serialize};

use super::exposition::seconds;
use super::history::quantile;
use super::recorder::TrafficSample;
use super::{ComponentStatuses, ProblemInfo};
use crate::process;
use crate::report::{ProcessPhase, ProcessReport};

/// Maximum number of listeners, routes, backends and rate limits of the overview, each: the busiest.
const MAX_ROWS: usize = 50;
/// Maximum number of rows of one page of a list.
const MAX_PAGE: usize = 200;
/// Maximum number of problems, certificates and Services, each.
const MAX_LISTED: usize = 1000;

/// Response of `/api/v1/overview`.
#[derive(Serialize)]
pub(super) struct OverviewResponse<'s> {
    /// Number of the sample: a greater one is newer.
    sample: u64,
    at_seconds: Option<f64>,
    /// Length of the interval that rates are about.
    interval_seconds: f64,
    process: ProcessInfo,
    totals: TotalsInfo,
    listeners: Vec<ListenerRow<'s>>,
    listener_count: usize,
    routes: Vec<RouteRow<'s>>,
    route_count: usize,
    backends: Vec<BackendRow<'s>>,
    backend_count: usize,
    rate_limits: Vec<RateLimitRow<'s>>,
    /// Rejected requests per second by reason, of all backends.
    rejections: Vec<RejectionRow>,
}

#[derive(Serialize)]
struct ProcessInfo {
    version: &'static str,
    /// `starting`, `ready`, `leaving` or `draining`.
    phase: &'static str,
    started_seconds: f64,
    node: String,
    generation: u64,
    applied_at_seconds: Option<f64>,
    problems: usize,
    unbound_listeners: usize,
    certificates: usize,
    /// Expiry of the certificate that expires first.
    first_certificate_expiry: Option<u64>,
    load_balancers: usize,
    memory_bytes: u64,
    /// Parts of the process that are on.
    transparent: bool,
    leases_slots: bool,
    xds: bool,
}

/// Requests of all routes together.
#[derive(Serialize)]
struct TotalsInfo {
    requests_per_second: f64,
    /// Responses of class 5xx.
    errors_per_second: f64,
    /// Requests that slots and queues rejected (429 and 503).
    rejections_per_second: f64,
    /// Requests that RateLimitPolicies rejected (429).
    rate_limited_per_second: f64,
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
    waiting: u32,
    in_flight: u32,
    /// `null`: an endpoint has no limit.
    slots: Option<u32>,
    endpoints: u32,
    troubled_endpoints: u32,
    client_connections: u64,
}

#[derive(Serialize)]
struct ListenerRow<'s> {
    name: &'s str,
    address: SocketAddr,
    protocol: &'static str,
    tls: bool,
    http3: bool,
    intercepted: bool,
    connections: u64,
    connections_per_second: f64,
    /// Names of rules that serve its requests, of those in `routes`.
    routes: Vec<&'s str>,
}

#[derive(Serialize)]
struct RouteRow<'s> {
    name: &'s str,
    requests_per_second: f64,
    errors_per_second: f64,
    rejections_per_second: f64,
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
    /// Backends with the share of each, in percent.
    backends: Vec<(&'s str, f64)>,
}

#[derive(Serialize)]
struct BackendRow<'s> {
    name: &'s str,
    requests_per_second: f64,
    failures_per_second: f64,
    retries_per_second: f64,
    rejections_per_second: f64,
    waiting: u32,
    queue_max: u32,
    in_flight: u32,
    slots: Option<u32>,
    endpoints: u32,
    troubled_endpoints: u32,
    panicking: bool,
    service_seconds: Option<f64>,
    /// Rejected requests since the start by reason; reasons without one are left out.
    rejected: Vec<(&'static str, u64)>,
}

#[derive(Serialize)]
struct RateLimitRow<'s> {
    policy: &'s str,
    target: &'s str,
    admitted: u64,
    rejected: u64,
    rejections_per_second: f64,
}

#[derive(Serialize)]
struct RejectionRow {
    reason: &'static str,
    per_second: f64,
    since_start: u64,
}

/// One page of a list.
#[derive(Serialize)]
pub(super) struct PageResponse<R> {
    total: usize,
    offset: usize,
    rows: Vec<R>,
}

/// Query of a page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// Part of the name, in any case of letters.
    #[serde(default)]
    search: String,
    #[serde(default)]
    sort: RowOrder,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

/// Order of backends; the greatest come first.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RowOrder {
    #[default]
    Requests,
    Waiting,
    Rejections,
    Failures,
    Troubled,
    Name,
}

/// Response of `/api/v1/certificates`.
#[derive(Serialize)]
pub(super) struct CertificatesResponse {
    /// Time of this process, with which expiry is compared.
    now_seconds: u64,
    total: usize,
    certificates: Vec<CertificateRow>,
}

#[derive(Serialize)]
struct CertificateRow {
    name: String,
    not_after_seconds: u64,
    /// The reason why it is not valid now.
    problem: Option<String>,
}

/// Response of `/api/v1/problems`.
#[derive(Serialize)]
pub(super) struct ProblemsResponse {
    generation: u64,
    total: usize,
    problems: Vec<ProblemInfo>,
    unbound_listeners: Vec<String>,
}

/// Response of `/api/v1/load-balancers`.
#[derive(Serialize)]
pub(super) struct LoadBalancersResponse {
    total: usize,
    services: Vec<LoadBalancerRow>,
}

#[derive(Serialize)]
struct LoadBalancerRow {
    namespace: String,
    name: String,
    addresses: Vec<IpAddr>,
    sockets: Vec<String>,
    /// True if only nodes with endpoints carry the addresses.
    node_local: bool,
    findings: Vec<String>,
}

/// Returns the overview of a sample as JSON.
pub(super) fn overview<'s>(
    sample: &'s TrafficSample,
    report: &ProcessReport,
    components: &ComponentStatuses,
    started: SystemTime,
) -> OverviewResponse<'s> {
    let summary = &sample.summary;
    let busy_routes = busiest(sample.routes.iter().map(|it| it.requests));
    let is_shown = |rule: &usize| busy_routes.contains(rule);
    let mut busy_listeners = busiest(summary.listeners.iter().map(|it| it.open));
    busy_listeners.sort_unstable();
    OverviewResponse {
        sample: sample.number,
        at_seconds: sample.at.map(seconds),
        interval_seconds: sample.seconds,
        process: process_info(report, components, started),
        totals: totals(sample),
        listeners: busy_listeners
            .into_iter()
            .map(|index| {
                let listener = &summary.listeners[index];
                let rules = listener.rules.iter().filter(|rule| is_shown(rule));
                ListenerRow {
                    name: &listener.name,
                    address: listener.address,
                    protocol: listener.protocol,
                    tls: listener.tls,
                    http3: listener.http3,
                    intercepted: listener.is_intercepted,
                    connections: listener.open,
                    connections_per_second: sample.rate(sample.accepted[index]),
                    routes: rules.map(|rule| &*summary.routes[*rule].name).collect(),
                }
            })
            .collect(),
        listener_count: summary.listeners.len(),
        routes: busy_routes.iter().map(|index| route_row(sample, *index)).collect(),
        route_count: summary.routes.len(),
        backends: busiest(sample.backends.iter().map(|it| it.requests))
            .into_iter()
            .map(|index| backend_row(sample, index))
            .collect(),
        backend_count: summary.backends.len(),
        rate_limits: busiest(sample.limited.iter().copied())
            .into_iter()
            .map(|index| {
                let limit = &summary.rate_limits[index];
                RateLimitRow {
                    policy: &limit.policy,
                    target: &limit.target,
                    admitted: limit.admitted,
                    rejected: limit.rejected,
                    rejections_per_second: sample.rate(sample.limited[index]),
                }
            })
            .collect(),
        rejections: rejections(sample),
    }
}

/// Returns the indices of the greatest counts, the greatest first; equal ones keep their order.
fn busiest(counts: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut order: Vec<(Reverse<u64>, usize)> =
        counts.enumerate().map(|(index, count)| (Reverse(count), index)).collect();
    order.sort_unstable();
    order.into_iter().take(MAX_ROWS).map(|(_, index)| index).collect()
}

fn process_info(
    report: &ProcessReport,
    components: &ComponentStatuses,
    started: SystemTime,
) -> ProcessInfo {
    ProcessInfo {
        version: env!("CARGO_PKG_VERSION"),
        phase: match report.phase {
            ProcessPhase::Starting => "starting",
            ProcessPhase::Ready => "ready",
            ProcessPhase::Leaving => "leaving",
            ProcessPhase::Draining => "draining",
        },
        started_seconds: seconds(started),
        node: report.node.to_string(),
        generation: report.generation,
        applied_at_seconds: report.applied_at.map(seconds),
        problems: report.problems.len(),
        unbound_listeners: report.unbound.len(),
        certificates: report.certificates.len(),
        first_certificate_expiry: report.certificates.iter().map(|it| it.not_after()).min(),
        load_balancers: report.load_balancers.len(),
        memory_bytes: process::resident_bytes().unwrap_or_default(),
        transparent: components.agent.is_some(),
        leases_slots: components.replicas.is_some(),
        xds: components.xds.is_some(),
    }
}

fn totals(sample: &TrafficSample) -> TotalsInfo {
    let bounds = TrafficSummary::duration_bounds();
    let totals = &sample.totals;
    let troubled = sample.summary.backends.iter().map(|it| it.troubled);
    TotalsInfo {
        requests_per_second: sample.rate(totals.requests),
        errors_per_second: sample.rate(totals.errors),
        rejections_per_second: sample.rate(totals.rejected),
        rate_limited_per_second: sample.rate(sample.limited.iter().sum()),
        p50_seconds: quantile(&sample.durations, bounds, 0.5),
        p99_seconds: quantile(&sample.durations, bounds, 0.99),
        waiting: totals.waiting,
        in_flight: totals.in_flight,
        slots: totals.slots,
        endpoints: totals.endpoints,
        troubled_endpoints: troubled.fold(0, u32::saturating_add),
        client_connections: sample.summary.listeners.iter().map(|it| it.open).sum(),
    }
}

fn route_row(sample: &TrafficSample, index: usize) -> RouteRow<'_> {
    let (route, interval) = (&sample.summary.routes[index], &sample.routes[index]);
    let bounds = TrafficSummary::duration_bounds();
    let weights: u64 = route.targets.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let backend = |(backend, weight): &(usize, u32)| {
        let share = f64::from(*weight) * 100.0 / weights.max(1) as f64;
        Some((&*sample.summary.backends.get(*backend)?.name, share))
    };
    RouteRow {
        name: &route.name,
        requests_per_second: sample.rate(interval.requests),
        errors_per_second: sample.rate(interval.errors),
        rejections_per_second: sample.rate(interval.rejected),
        p50_seconds: quantile(&interval.durations, bounds, 0.5),
        p99_seconds: quantile(&interval.durations, bounds, 0.99),
        backends: route.targets.iter().filter_map(backend).collect(),
    }
}

fn backend_row(sample: &TrafficSample, index: usize) -> BackendRow<'_> {
    let (backend, interval) = (&sample.summary.backends[index], &sample.backends[index]);
    let reasons = TrafficSummary::rejection_reasons().zip(backend.rejected.iter().copied());
    BackendRow {
        name: &backend.name,
        requests_per_second: sample.rate(interval.requests),
        failures_per_second: sample.rate(interval.failures),
        retries_per_second: sample.rate(interval.retries),
        rejections_per_second: sample.rate(interval.rejected.iter().sum()),
        waiting: backend.waiting,
        queue_max: backend.queue_max,
        in_flight: backend.in_flight,
        slots: backend.slots,
        endpoints: backend.endpoints,
        troubled_endpoints: backend.troubled,
        panicking: backend.is_panicking,
        service_seconds: backend.service_seconds,
        rejected: reasons.filter(|(_, count)| *count > 0).collect(),
    }
}

fn rejections(sample: &TrafficSample) -> Vec<RejectionRow> {
    let row = |(index, reason): (usize, &'static str)| {
        let recent = sample.backends.iter().filter_map(|it| it.rejected.get(index)).sum();
        let all = sample.summary.backends.iter().filter_map(|it| it.rejected.get(index)).sum();
        RejectionRow { reason, per_second: sample.rate(recent), since_start: all }
    };
    TrafficSummary::rejection_reasons().enumerate().map(row).collect()
}

/// Returns a page of the backends of a sample as JSON.
pub(super) fn backend_page<'s>(
    sample: &'s TrafficSample,
    query: &PageQuery,
) -> PageResponse<impl Serialize + use<'s>> {
    let search = query.search.to_lowercase();
    let backends = &sample.summary.backends;
    let mut matching: Vec<usize> = (0..backends.len())
        .filter(|index| backends[*index].name.to_lowercase().contains(&search))
        .collect();
    let rank = |index: &usize| {
        let (backend, interval) = (&backends[*index], &sample.backends[*index]);
        Reverse(match query.sort {
            RowOrder::Requests => interval.requests,
            RowOrder::Waiting => u64::from(backend.waiting),
            RowOrder::Rejections => interval.rejected.iter().sum(),
            RowOrder::Failures => interval.failures,
            RowOrder::Troubled => u64::from(backend.troubled),
            RowOrder::Name => 0,
        })
    };
    // The sort is stable, and backends are sorted by name.
    matching.sort_by_key(rank);
    let total = matching.len();
    let limit = query.limit.unwrap_or(MAX_ROWS).min(MAX_PAGE);
    let shown = matching.into_iter().skip(query.offset).take(limit);
    let rows = shown.map(|index| backend_row(sample, index)).collect();
    PageResponse { total, offset: query.offset, rows }
}

pub(super) fn certificates(report: &ProcessReport, now: SystemTime) -> CertificatesResponse {
    let now = seconds(now) as u64;
    let mut certificates: Vec<_> = report.certificates.iter().collect();
    certificates.sort_by_key(|it| it.not_after());
    let row = |it: &gateway::translate::CertificateValidity| CertificateRow {
        name: it.name().to_owned(),
        not_after_seconds: it.not_after(),
        problem: it.problem(now).map(|problem| problem.message),
    };
    CertificatesResponse {
        now_seconds: now,
        total: certificates.len(),
        certificates: certificates.into_iter().take(MAX_LISTED).map(row).collect(),
    }
}

pub(super) fn problems(report: &ProcessReport) -> ProblemsResponse {
    ProblemsResponse {
        generation: report.generation,
        total: report.problems.len(),
        problems: report.problems.iter().take(MAX_LISTED).map(ProblemInfo::of).collect(),
        unbound_listeners: report.unbound.iter().take(MAX_LISTED).cloned().collect(),
    }
}

pub(super) fn load_balancers(report: &ProcessReport) -> LoadBalancersResponse {
    let row = |service: &LoadBalancerService| LoadBalancerRow {
        namespace: service.namespace.to_string(),
        name: service.name.to_string(),
        addresses: service.addresses.clone(),
        sockets: service.sockets.iter().map(socket_name).collect(),
        node_local: service.is_node_local,
        findings: service
            .findings
            .iter()
            .map(|it| format!("{}: {}", it.reason, it.message))
            .collect(),
    };
    LoadBalancersResponse {
        total: report.load_balancers.len(),
        services: report.load_balancers.iter().take(MAX_LISTED).map(row).collect(),
    }
}

fn socket_name((address, transport): &(SocketAddr, TransportProtocol)) -> String {
    let transport = match transport {
        TransportProtocol::Tcp => "tcp",
        TransportProtocol::Udp => "udp",
    };
    format!("{address}/{transport}")
}
