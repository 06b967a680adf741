//! `sheave explain --scaling`: the demand for a Service, and what a HorizontalPodAutoscaler will do at its next sync.
//!
//! The demand is that of a running Sheave, by its admin API. The autoscaler is read from the API server, if there is one.

/// Quantities of Kubernetes.
mod quantity;
/// The HorizontalPodAutoscaler.
mod autoscaler;
/// The load that it reads.
mod observed_load;
/// Its next step.
mod recommendation;

use anyhow::Context;
use kube::ClusterClient;
use serde_json::Value;
use tokio::runtime;

use crate::admin::{self, BackendInfo, BackendsResponse, RoutesResponse};
use crate::check::print;
use crate::failure::Failure;
use crate::flags::ExplainFlags;
use crate::metrics_api::ScalingMetric;
use autoscaler::{AutoscalerObject, MetricUse, TargetValue};
use observed_load::ObservedLoad;
use recommendation::{ScalingRecommendation, recommend};

/// Maximum number of listed Services and autoscalers.
const MAX_LISTED: usize = 10;

/// Share of a cap below which a target is hardly meant.
const TINY_SHARE: f64 = 0.01;

/// Service, as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceName {
    /// `None`: any namespace, if one alone has the Service.
    namespace: Option<String>,
    name: String,
    port: Option<u16>,
}

impl ServiceName {
    /// Parses `NAMESPACE/NAME:PORT`, whose namespace and port may be left out.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text:?} is not NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT");
        let (path, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((path, port)) => (path, Some(port.parse().ok().filter(|port| *port > 0))),
        };
        let port = match port {
            Some(None) => return Err(malformed()),
            Some(port) => port,
            None => None,
        };
        let (namespace, name) = match path.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, path),
        };
        let is_label = |text: &str| {
            let is_inner =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            (1..=63).contains(&text.len()) && text.bytes().all(is_inner)
        };
        if !is_label(name) || !namespace.is_none_or(is_label) {
            return Err(malformed());
        }
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned(), port })
    }

    /// Returns the name, with this namespace if it has none.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        let namespace = self.namespace.clone().unwrap_or_else(|| namespace.to_owned());
        Self { namespace: Some(namespace), ..self.clone() }
    }

    /// True if the backend of this name, `namespace/service:port`, is one of the Service.
    pub(crate) fn is_of_backend(&self, backend: &str) -> bool {
        let parts = || {
            let (path, port) = backend.rsplit_once(':')?;
            let (namespace, name) = path.split_once('/')?;
            Some((namespace, name, port.parse().ok()?))
        };
        parts().is_some_and(|(namespace, name, port): (_, _, u16)| {
            name == self.name
                && self.namespace.as_ref().is_none_or(|it| it == namespace)
                && self.port.is_none_or(|it| it == port)
        })
    }

    fn is_of(&self, backend: &BackendInfo) -> bool {
        backend.service == self.name
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == backend.namespace)
            && self.port.is_none_or(|port| port == backend.port)
    }
}

/// Autoscalers of the Service's namespace, or the reason why they are not known.
type KnownAutoscalers = Result<Vec<AutoscalerObject>, String>;

/// Prints the explanation.
pub(crate) fn run(service: &ServiceName, flags: &ExplainFlags) -> Result<(), Failure> {
    let unread = |error: String| {
        Failure::input(format_args!("cannot read the demand at {}: {error}", flags.admin))
    };
    let answer: BackendsResponse = admin::query(flags.admin, "/api/v1/backends").map_err(unread)?;
    let routes: RoutesResponse = admin::query(flags.admin, "/api/v1/routes").map_err(unread)?;
    let backends = select(service, &answer.backends).map_err(Failure::input)?;
    let load = ObservedLoad::new(backends, &routes.routes);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start its thread")?;
    let autoscalers = runtime.block_on(read_autoscalers(load.namespace()));
    print(&explain(&load, &autoscalers))
}

/// Returns the backends of the Service, at least one; all are of one namespace.
fn select<'b>(
    service: &ServiceName,
    backends: &'b [BackendInfo],
) -> Result<Vec<&'b BackendInfo>, String> {
    let found: Vec<_> = backends.iter().filter(|it| service.is_of(it)).collect();
    let Some(first) = found.first() else { return Err(unknown_message(service, backends)) };
    match found.iter().find(|it| it.namespace != first.namespace) {
        None => Ok(found),
        Some(other) => Err(format!(
            "there are Services {} in the namespaces {} and {}: name one as NAMESPACE/NAME",
            service.name, first.namespace, other.namespace
        )),
    }
}

fn unknown_message(service: &ServiceName, backends: &[BackendInfo]) -> String {
    let namespace = service.namespace.as_ref().map(|it| format!("{it}/")).unwrap_or_default();
    let port = service.port.map(|it| format!(":{it}")).unwrap_or_default();
    let asked = format!("{namespace}{}{port}", service.name);
    if backends.is_empty() {
        return format!("no route refers to Service {asked}: no route refers to any Service");
    }
    let mut known: Vec<_> = backends.iter().map(|it| it.name.as_str()).take(MAX_LISTED).collect();
    if backends.len() > MAX_LISTED {
        known.push("...");
    }
    format!("no route refers to Service {asked}; routes refer to {}", known.join(", "))
}

async fn read_autoscalers(namespace: &str) -> KnownAutoscalers {
    let client = ClusterClient::connect().await;
    let client = client.map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
    let found = client.autoscalers(namespace).await.map_err(|error| {
        format!("{error} (it takes `list` on horizontalpodautoscalers.autoscaling)")
    })?;
    let parse = |value: Value| serde_json::from_value(value).map_err(|error| error.to_string());
    found.into_iter().map(parse).collect()
}

/// Returns the lines to print.
fn explain(load: &ObservedLoad<'_>, autoscalers: &KnownAutoscalers) -> Vec<String> {
    let mut page = ScalingPage::default();
    for backend in &load.backends {
        page.demand(backend);
    }
    match autoscalers {
        Err(reason) => page.put("autoscaler", format!("not known: {reason}")),
        Ok(autoscalers) => page.autoscalers(load, autoscalers),
    }
    page.0
}

/// Lines of the explanation.
#[derive(Default)]
struct ScalingPage(Vec<String>);

impl ScalingPage {
    fn demand(&mut self, backend: &BackendInfo) {
        let BackendInfo { demand_all_replicas: demand, rates_all_replicas: rates, .. } = backend;
        self.put("service", &backend.name);
        self.put(
            "demand",
            format!(
                "{:.2} concurrent requests: {:.2} in flight, {:.2} waiting, {:.2} rejected",
                demand.total, demand.in_flight, demand.queued, demand.rejected
            ),
        );
        self.put("", "the mean of 15 s at all replicas of Sheave");
        self.put(
            "rates",
            format!(
                "{:.2} requests per second, of which {:.2} are rejected",
                rates.requests_per_second, rates.rejections_per_second
            ),
        );
        let count = backend.endpoints.len();
        let serving = backend.endpoints.iter().filter(|it| it.health == "serving").count();
        let text = match cap(backend) {
            None => format!("{count}, {serving} serving; none has a limit"),
            Some(cap) => {
                let full = cap * count as f64;
                let needed = (demand.total / cap).ceil();
                format!(
                    "{count}, {serving} serving, each with {cap:.0} requests at a time: full at {full:.0}; \
                     the demand fills {needed:.0}"
                )
            }
        };
        self.put("endpoints", text);
    }

    fn autoscalers(&mut self, load: &ObservedLoad<'_>, autoscalers: &[AutoscalerObject]) {
        let mut has_one = false;
        for autoscaler in autoscalers {
            let used = autoscaler.spec.metrics.iter().filter_map(|it| it.of_sheave());
            let used: Vec<MetricUse> = used.filter(|it| load.has_metric(it)).collect();
            if !used.is_empty() {
                has_one = true;
                self.autoscaler(load, autoscaler, &used);
            }
        }
        if has_one {
            return;
        }
        let text = "none scales by a metric of this Service, or of a route that refers to it,";
        self.put("autoscaler", format!("{text} in namespace {}", load.namespace()));
        for other in autoscalers.iter().take(MAX_LISTED) {
            let metrics: Vec<_> = other.spec.metrics.iter().map(|it| it.name()).collect();
            self.put("", format!("{} scales by {}", other.metadata.name, metrics.join(", ")));
        }
        if autoscalers.len() > MAX_LISTED {
            self.put("", format!("and {} more", autoscalers.len() - MAX_LISTED));
        }
    }

    fn autoscaler(
        &mut self,
        load: &ObservedLoad<'_>,
        autoscaler: &AutoscalerObject,
        used: &[MetricUse],
    ) {
        let spec = &autoscaler.spec;
        let pods = autoscaler.status.current_replicas;
        let pods = pods.map_or_else(|| "an unknown number of".to_owned(), |pods| pods.to_string());
        self.put(
            "autoscaler",
            format!(
                "{}: {} {} has {pods} pods, of {} to {}",
                autoscaler.metadata.name,
                spec.scale_target_ref.kind,
                spec.scale_target_ref.name,
                spec.min_replicas.unwrap_or(1),
                spec.max_replicas
            ),
        );
        let mut next = None;
        for used in used {
            let metric = format!("{} of {}", used.metric.name(), used.selection);
            let value = match load.value(used) {
                Ok(value) => value,
                Err(reason) => {
                    self.put("metric", format!("{metric} has no value: {reason}"));
                    continue;
                }
            };
            self.put("metric", format!("{metric} is {value:.2}"));
            let ScalingRecommendation { pods, reasons } =
                recommend(autoscaler, &used.target, value);
            for reason in reasons {
                self.put("", reason);
            }
            for warning in warnings(used, &load.ports(used)) {
                self.put("warning", warning);
            }
            next = next.max(pods);
        }
        let others = spec.metrics.len() - used.len();
        if others > 0 {
            self.put(
                "",
                format!("of its {others} other metrics, the highest counts if it is higher"),
            );
        }
        let text = match (next, autoscaler.status.current_replicas) {
            (Some(next), Some(now)) if next > now => format!("{next} pods: {} more", next - now),
            (Some(next), Some(now)) if next < now => format!("{next} pods: {} fewer", now - next),
            (Some(next), _) => format!("{next} pods: no change"),
            (None, _) => "no change".to_owned(),
        };
        self.put("next sync", text);
        for condition in &autoscaler.status.conditions {
            let is_noteworthy = match condition.kind.as_str() {
                "ScalingLimited" => condition.status == "True",
                _ => condition.status == "False",
            };
            if is_noteworthy {
                self.put("it says", format!("{}: {}", condition.reason, condition.message));
            }
        }
    }

    fn put(&mut self, head: &str, text: impl std::fmt::Display) {
        self.0.push(format!("{head:<11}{text}"));
    }
}

/// Returns the mean limit of the endpoints of a Service, if each has one.
///
/// The policy's limit, if it is fixed: those of the endpoints are this replica's parts of it.
fn cap(backend: &BackendInfo) -> Option<f64> {
    if let Some(fixed) = backend.max_in_flight_per_endpoint {
        return Some(f64::from(fixed));
    }
    let limits = backend.endpoints.iter().map(|it| it.limit.map(f64::from));
    let limits: Vec<f64> = limits.collect::<Option<_>>()?;
    (!limits.is_empty()).then(|| limits.iter().sum::<f64>() / limits.len() as f64)
}

/// Returns what is hardly meant about a target.
fn warnings(used: &MetricUse, selected: &[&BackendInfo]) -> Vec<String> {
    let mut warnings = Vec::new();
    match (&used.target, used.metric) {
        (TargetValue::Total(_), _) => warnings.push(
            "the target is one for all pods together: averageValue is the one for each pod".to_owned(),
        ),
        (TargetValue::Average(target), ScalingMetric::Demand | ScalingMetric::InFlight) => {
            let caps = selected.iter().map(|it| cap(it)).collect::<Option<Vec<f64>>>();
            let cap: f64 = caps.into_iter().flatten().sum();
            if cap > 0.0 && *target > cap {
                warnings.push(format!(
                    "the target {target} exceeds the {cap:.0} requests that a pod takes at a time: requests wait \
                     before there is a pod more"
                ));
            }
            if cap > 0.0 && *target < cap * TINY_SHARE {
                warnings.push(format!(
                    "the target {target} is less than a hundredth of the {cap:.0} requests that a pod takes at a time"
                ));
            }
        }
        (TargetValue::Average(_), ScalingMetric::Waiting) => {}
        (
            TargetValue::Average(_) | TargetValue::Invalid(_),
            ScalingMetric::Rejected | ScalingMetric::RejectionRate,
        ) => warnings.push(
            "rejections are none with enough pods: by them alone the autoscaler removes the pods that it has added"
                .to_owned(),
        ),
        (TargetValue::Average(_) | TargetValue::Invalid(_), _) => {}
    }
    warnings
}

#[cfg(test)]
mod tests;
