//! Load of a Service, as a running Sheave tells it: of its ports, and of the routes that refer to them.

use super::autoscaler::MetricUse;
use crate::admin::{BackendInfo, RouteInfo};
use crate::metrics_api::{ScalingMetric, SelectedKind};

/// Ports of one Service, and the rules of the routes of its namespace.
pub(super) struct ObservedLoad<'r> {
    /// At least one.
    pub(super) backends: Vec<&'r BackendInfo>,
    rules: Vec<&'r RouteInfo>,
}

impl<'r> ObservedLoad<'r> {
    /// Returns the load of a Service; routes of other namespaces are no metrics of its autoscalers.
    pub(super) fn new(backends: Vec<&'r BackendInfo>, routes: &'r [RouteInfo]) -> Self {
        let namespace = backends.first().map(|it| it.namespace.as_str());
        let is_near =
            |it: &&RouteInfo| it.name.split_once('/').map(|(namespace, _)| namespace) == namespace;
        let rules = routes.iter().filter(is_near).collect();
        Self { backends, rules }
    }

    pub(super) fn namespace(&self) -> &'r str {
        self.backends.first().map(|it| it.namespace.as_str()).unwrap_or_default()
    }

    /// True if the metric is one of this Service, or of a route that refers to it.
    pub(super) fn has_metric(&self, used: &MetricUse) -> bool {
        match used.kind {
            SelectedKind::Service => !self.ports(used).is_empty(),
            SelectedKind::Route => self.selected_rules(used).any(|it| self.receives_from(it)),
        }
    }

    /// Returns the selected ports of the Service.
    pub(super) fn ports(&self, used: &MetricUse) -> Vec<&'r BackendInfo> {
        let is_selected = |it: &&BackendInfo| used.selects_port(&it.service, it.port);
        self.backends.iter().copied().filter(is_selected).collect()
    }

    /// Returns the value of the metric, or the reason why it has none.
    pub(super) fn value(&self, used: &MetricUse) -> Result<f64, String> {
        let metric = used.metric;
        if used.kind == SelectedKind::Service {
            return Ok(self.ports(used).into_iter().map(|it| value_of_port(metric, it)).sum());
        }
        if !metric.is_rate() {
            let name = metric.name();
            return Err(format!(
                "routes have no {name}: requests wait for a Service, not for a route"
            ));
        }
        let unknown = "Sheave averages no rates of routes without metricsApi.enabled of the chart";
        // All rules that the metric selects count, those to other Services too.
        let values = self.selected_rules(used).map(|it| value_of_rule(metric, it));
        values.sum::<Option<f64>>().ok_or_else(|| unknown.to_owned())
    }

    fn selected_rules(&self, used: &MetricUse) -> impl Iterator<Item = &'r RouteInfo> {
        self.rules.iter().copied().filter(move |it| {
            let mut parts = it.name.splitn(3, '/').skip(1);
            let (route, rule) = (parts.next(), parts.next());
            used.selects_rule(route.unwrap_or_default(), rule.unwrap_or_default())
        })
    }

    fn receives_from(&self, rule: &RouteInfo) -> bool {
        self.backends.iter().any(|it| rule.backends.contains(&it.name))
    }
}

fn value_of_port(metric: ScalingMetric, backend: &BackendInfo) -> f64 {
    let demand = &backend.demand_all_replicas;
    match metric {
        ScalingMetric::Demand => demand.total,
        ScalingMetric::InFlight => demand.in_flight,
        ScalingMetric::Waiting => demand.queued,
        ScalingMetric::Rejected => demand.rejected,
        ScalingMetric::RequestRate => backend.rates_all_replicas.requests_per_second,
        ScalingMetric::RejectionRate => backend.rates_all_replicas.rejections_per_second,
    }
}

/// Returns a rate; `None` if it is not known.
fn value_of_rule(metric: ScalingMetric, rule: &RouteInfo) -> Option<f64> {
    let rates = rule.rates_all_replicas.as_ref()?;
    let is_rejections = metric == ScalingMetric::RejectionRate;
    Some(if is_rejections { rates.rejections_per_second } else { rates.requests_per_second })
}
