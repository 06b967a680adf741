//! Selection of a query: the Services or routes whose values it asks for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gateway::snapshot::BackendKey;
use proxy::{BackendDemand, Proxy, RequestDemand, RequestRates, WINDOW};

use super::label_selector::LabelSelector;
use super::metric::{MetricError, ScalingMetric};

const SERVICE: &str = "service";
const PORT: &str = "port";
const ROUTE: &str = "route";
const RULE: &str = "rule";
/// Label that names the object, and label that names a part of it.
const OF_SERVICES: [&str; 2] = [SERVICE, PORT];
const OF_ROUTES: [&str; 2] = [ROUTE, RULE];

/// Values by the labels of their objects.
pub(super) type LabelledValues = BTreeMap<MetricLabels, f64>;

/// Labels of a value: the object, and the port of a Service or the rule of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MetricLabels {
    pub(super) kind: SelectedKind,
    pub(super) object: String,
    pub(super) part: String,
}

/// Kind of the objects that a query selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SelectedKind {
    Service,
    /// HTTPRoutes, GRPCRoutes and others; routes of one name count together.
    Route,
}

/// Objects of a namespace that a query selects for a metric.
#[derive(Debug)]
pub(super) struct MetricSelection {
    metric: ScalingMetric,
    namespace: String,
    kind: SelectedKind,
    /// Name of the object, besides the selector.
    name: Option<String>,
    selector: LabelSelector,
    /// Text of the selector, for messages.
    text: String,
}

impl SelectedKind {
    /// Returns the labels of its values: that of the object, and that of its part.
    pub(crate) const fn labels(self) -> [&'static str; 2] {
        match self {
            Self::Service => OF_SERVICES,
            Self::Route => OF_ROUTES,
        }
    }
}

impl MetricSelection {
    /// Returns the selection of a selector that names a Service or a route.
    ///
    /// # Errors
    /// If the selector is malformed, names neither or both, or if the metric is none of routes.
    pub(super) fn by_labels(
        metric: ScalingMetric,
        namespace: &str,
        selector: &str,
    ) -> Result<Self, MetricError> {
        let parsed = LabelSelector::parse(selector).map_err(MetricError::bad_request)?;
        let known = [OF_SERVICES, OF_ROUTES].concat();
        if let Some(label) = parsed.unknown_label(&known) {
            let known = known.join(", ");
            let message = format!("metric selector: there is no label {label:?}, only {known}");
            return Err(MetricError::bad_request(message));
        }
        let kind = match (parsed.names(SERVICE), parsed.names(ROUTE)) {
            (true, false) => SelectedKind::Service,
            (false, true) => SelectedKind::Route,
            (true, true) => {
                let message = "metric selector: it names a Service or a route, not both";
                return Err(MetricError::bad_request(message.to_owned()));
            }
            // Without a name the sum of all Services would scale one of them.
            (false, false) => {
                let message = "metric selector: required, with the name of the Service, as \
                               matchLabels: {service: NAME}, or for rates that of a route, as {route: NAME}";
                return Err(MetricError::bad_request(message.to_owned()));
            }
        };
        let selection = Self {
            metric,
            namespace: namespace.to_owned(),
            kind,
            name: None,
            selector: parsed,
            text: selector.to_owned(),
        };
        selection.check()
    }

    /// Returns the selection of one object; the selector may select parts of it.
    ///
    /// # Errors
    /// If the selector is malformed, or if the metric is none of routes.
    pub(super) fn by_name(
        metric: ScalingMetric,
        namespace: &str,
        kind: SelectedKind,
        name: &str,
        selector: &str,
    ) -> Result<Self, MetricError> {
        let parsed = LabelSelector::parse(selector).map_err(MetricError::bad_request)?;
        let selection = Self {
            metric,
            namespace: namespace.to_owned(),
            kind,
            name: Some(name.to_owned()),
            selector: parsed,
            text: selector.to_owned(),
        };
        selection.check()
    }

    fn check(self) -> Result<Self, MetricError> {
        if self.kind == SelectedKind::Route && !self.metric.is_rate() {
            let rates = ScalingMetric::ALL.into_iter().filter(|it| it.is_rate());
            let rates: Vec<_> = rates.map(ScalingMetric::name).collect();
            let message = format!(
                "routes have no {}: requests wait for a Service, not for a route; routes have {}",
                self.metric.name(),
                rates.join(" and ")
            );
            return Err(MetricError::bad_request(message));
        }
        let labels = self.kind.labels();
        if let Some(label) = self.selector.unknown_label(&labels) {
            let known = labels.join(", ");
            let message =
                format!("metric selector: there is no label {label:?} here, only {known}");
            return Err(MetricError::bad_request(message));
        }
        Ok(self)
    }

    /// Returns the values of the selected objects.
    ///
    /// # Errors
    /// If nothing is selected: the autoscaler is to say so, and to scale nothing to its minimum.
    pub(super) fn read(&self, proxy: &Proxy) -> Result<LabelledValues, MetricError> {
        let values: Vec<(MetricLabels, f64)> = match self.kind {
            SelectedKind::Service => {
                let names = self.names().into_iter();
                let found = names.flat_map(|name| proxy.demands_of(&self.namespace, name));
                let value = |(key, demand): (BackendKey, BackendDemand)| {
                    let value = self.metric.value(demand.average(WINDOW), demand.rates());
                    Some((self.labels_of_backend(&key)?, value))
                };
                found.filter_map(value).collect()
            }
            SelectedKind::Route => {
                let found = proxy.rates_of_routes(|rule| self.labels_of_rule(rule).is_some());
                let value = |(rule, rates): (Arc<str>, RequestRates)| {
                    let value = self.metric.value(RequestDemand::default(), rates);
                    Some((self.labels_of_rule(&rule)?, value))
                };
                found.into_iter().filter_map(value).collect()
            }
        };
        self.sum(values)
    }

    /// Returns the names of which some may be selected; no other name is.
    fn names(&self) -> BTreeSet<&str> {
        let [of_object, _] = self.kind.labels();
        match &self.name {
            Some(name) => BTreeSet::from([name.as_str()]),
            None => self.selector.values(of_object).unwrap_or_default(),
        }
    }

    fn sum(&self, values: Vec<(MetricLabels, f64)>) -> Result<LabelledValues, MetricError> {
        let mut sums = LabelledValues::new();
        for (labels, value) in values {
            *sums.entry(labels).or_default() += value;
        }
        if sums.is_empty() {
            return Err(MetricError::not_found(self.nothing_message()));
        }
        Ok(sums)
    }

    fn nothing_message(&self) -> String {
        let Self { namespace, text, .. } = self;
        let that = match (&self.name, text.is_empty()) {
            (None, _) => format!("that matches {text:?}"),
            (Some(name), true) => format!("with the name {name:?}"),
            (Some(name), false) => format!("with the name {name:?} that matches {text:?}"),
        };
        match self.kind {
            SelectedKind::Service => {
                format!("no route refers to a Service in namespace {namespace} {that}")
            }
            SelectedKind::Route => format!("there is no route in namespace {namespace} {that}"),
        }
    }

    /// Returns the labels of a backend; `None`: it is not selected.
    fn labels_of_backend(&self, key: &BackendKey) -> Option<MetricLabels> {
        (*key.namespace == *self.namespace).then_some(())?;
        self.labels(&key.service, || key.port.to_string())
    }

    /// Returns the labels of a rule, whose name is `namespace/route/rule`; `None`: it is not selected.
    fn labels_of_rule(&self, name: &str) -> Option<MetricLabels> {
        let mut parts = name.splitn(3, '/');
        let (namespace, route) = (parts.next()?, parts.next()?);
        (namespace == self.namespace).then_some(())?;
        self.labels(route, || parts.next().unwrap_or_default().to_owned())
    }

    fn labels(&self, object: &str, part: impl FnOnce() -> String) -> Option<MetricLabels> {
        if self.name.as_ref().is_some_and(|name| name != object) {
            return None;
        }
        let [of_object, _] = self.kind.labels();
        // First the name alone: among many objects few have it.
        if !self.selector.allows(of_object, object) {
            return None;
        }
        let part = part();
        let value = |label: &str| match label == of_object {
            true => Some(Cow::from(object)),
            false => Some(Cow::from(&part)),
        };
        let is_selected = self.selector.matches(value);
        is_selected.then(|| MetricLabels {
            kind: self.kind,
            object: object.to_owned(),
            part: part.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use gateway::snapshot::TransportProtocol;

    use super::*;

    fn key(namespace: &str, service: &str, port: u16) -> BackendKey {
        let transport = TransportProtocol::Tcp;
        BackendKey {
            namespace: namespace.into(),
            service: service.into(),
            port,
            transport,
            node: None,
        }
    }

    /// Returns the sums of Services, each with its port as the value, as `service:port=sum`.
    fn services(selection: &MetricSelection) -> Result<Vec<String>, MetricError> {
        let udp = BackendKey { transport: TransportProtocol::Udp, ..key("shop", "web", 80) };
        let keys = [
            key("shop", "web", 80),
            udp,
            key("shop", "web", 443),
            key("shop", "api", 80),
            key("other", "web", 80),
        ];
        let value = |key: &BackendKey| {
            selection.labels_of_backend(key).map(|labels| (labels, f64::from(key.port)))
        };
        lines(selection.sum(keys.iter().filter_map(value).collect())?)
    }

    /// Returns the sums of routes, each rule with the value 1.
    fn routes(selection: &MetricSelection) -> Result<Vec<String>, MetricError> {
        let rules = ["shop/web/0", "shop/web/canary", "shop/api/0", "other/web/0", "odd"];
        let value = |rule: &&str| selection.labels_of_rule(rule).map(|labels| (labels, 1.0));
        lines(selection.sum(rules.iter().filter_map(value).collect())?)
    }

    fn lines(sums: LabelledValues) -> Result<Vec<String>, MetricError> {
        let line =
            |(labels, sum): (MetricLabels, f64)| format!("{}:{}={sum}", labels.object, labels.part);
        Ok(sums.into_iter().map(line).collect())
    }

    fn by_labels(metric: ScalingMetric, selector: &str) -> Result<MetricSelection, MetricError> {
        MetricSelection::by_labels(metric, "shop", selector)
    }

    #[test]
    fn services_of_the_namespace_are_selected_by_labels() {
        let select = |selector: &str| {
            services(&by_labels(ScalingMetric::Demand, selector).unwrap()).unwrap()
        };
        assert_eq!(select("port=80,service=api"), ["api:80=80"]);
        // Both transports of a port are one value.
        assert_eq!(select("service=web"), ["web:443=443", "web:80=160"]);
        assert_eq!(select("service=web,port!=443"), ["web:80=160"]);
        assert_eq!(select("service in (api, web),port=80"), ["api:80=80", "web:80=160"]);
    }

    #[test]
    fn rules_of_a_route_are_selected_by_labels() {
        let select = |selector: &str| {
            routes(&by_labels(ScalingMetric::RequestRate, selector).unwrap()).unwrap()
        };
        assert_eq!(select("route=web"), ["web:0=1", "web:canary=1"]);
        assert_eq!(select("route=web,rule=canary"), ["web:canary=1"]);
    }

    #[test]
    fn one_object_is_selected_by_its_name() {
        let select = |kind, selector: &str| {
            let metric = ScalingMetric::RejectionRate;
            MetricSelection::by_name(metric, "shop", kind, "web", selector)
        };
        let service = select(SelectedKind::Service, "").unwrap();
        assert_eq!(services(&service).unwrap(), ["web:443=443", "web:80=160"]);
        let port = select(SelectedKind::Service, "port=443").unwrap();
        assert_eq!(services(&port).unwrap(), ["web:443=443"]);
        let route = select(SelectedKind::Route, "rule=0").unwrap();
        assert_eq!(routes(&route).unwrap(), ["web:0=1"]);
        let error = select(SelectedKind::Route, "port=443").unwrap_err();
        assert!(error.message.contains("no label \"port\" here, only route, rule"), "{error:?}");
        let none = services(&select(SelectedKind::Service, "port=1").unwrap()).unwrap_err();
        assert!(none.message.contains("with the name \"web\" that matches \"port=1\""), "{none:?}");
    }

    #[test]
    fn selection_without_an_answer_says_why() {
        let error = |selector: &str| by_labels(ScalingMetric::Demand, selector).unwrap_err();
        assert_eq!(error("").status, StatusCode::BAD_REQUEST);
        assert!(error("").message.contains("matchLabels: {service: NAME}"));
        assert!(error("service").message.contains("required"));
        assert!(error("service!=api").message.contains("required"));
        assert!(error("service=web,app=web").message.contains("no label \"app\""));
        assert!(error("service in web").message.contains("is not a requirement"));
        assert!(error("service=web,route=web").message.contains("not both"));
        assert!(error("service=web,rule=0").message.contains("no label \"rule\" here"));
        let of_routes = error("route=web").message;
        assert!(of_routes.contains("routes have no sheave_demand"), "{of_routes}");
        assert!(of_routes.contains("sheave_requests_per_second and sheave_rejections_per_second"));
        let missing = by_labels(ScalingMetric::Demand, "service=cart").unwrap();
        let missing = services(&missing).unwrap_err();
        assert_eq!(missing.status, StatusCode::NOT_FOUND);
        assert!(missing.message.contains("namespace shop that matches \"service=cart\""));
        assert_eq!(missing.body()["code"], 404);
        let route = by_labels(ScalingMetric::RequestRate, "route=cart").unwrap();
        let route = routes(&route).unwrap_err();
        assert!(route.message.contains("no route in namespace shop that matches \"route=cart\""));
    }
}
