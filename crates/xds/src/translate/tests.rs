//! Golden tests: `testdata/NAME.in.yaml` must translate to `testdata/NAME.out.txt`. `UPDATE_EXPECT=1` rewrites the
//! latter.
//!
//! Comments in a case are directives:
//! - `# unhealthy: NAMESPACE/SERVICE ADDRESS` says that an endpoint is not healthy.
//! - `# client zone: ZONE` shows endpoints as clients of that zone get them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use gateway::TranslationSettings;

use super::*;
use crate::message::{
    ClusterLoadAssignment, HeaderMatcher, HeaderValueOption, LbEndpoint, LeastRequest,
    LoadBalancingPolicy, OutlierDetection, RoundRobin, RouteConfiguration, RouteEntry, TimeSpan,
    TypedExtensionConfig, WrrLocality,
};
use crate::table::EndpointHealth;

#[test]
fn every_golden_case_matches_its_expected_output() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let (update, mut cases) = (std::env::var_os("UPDATE_EXPECT").is_some(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let input = entry.unwrap().path();
        let Some(name) = input.to_str().unwrap().strip_suffix(".in.yaml") else { continue };
        let (actual, expected_path) =
            (output(&fs::read_to_string(&input).unwrap()), format!("{name}.out.txt"));
        if update {
            fs::write(&expected_path, &actual).unwrap();
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        assert_eq!(actual, expected, "{name} (UPDATE_EXPECT=1 accepts the actual output)");
        cases += 1;
    }
    assert!(cases > 1, "{cases}");
}

/// Returns the Snapshot of objects in YAML, for clients that choose endpoints themselves.
pub(crate) fn snapshot(input: &str) -> Snapshot {
    let (objects, problems) = gateway::parse(input, "test.yaml");
    assert!(problems.is_empty(), "{problems:?}");
    let settings = TranslationSettings { proxyless: true, ..TranslationSettings::default() };
    let translation = gateway::translate(&objects, &settings);
    assert!(translation.problems.is_empty(), "{:?}", translation.problems);
    translation.snapshot
}

fn output(input: &str) -> String {
    let translated = translate(&snapshot(input), "cluster.local");
    let (mut health, mut zones) = (EndpointHealth::default(), Vec::new());
    for line in input.lines() {
        if let Some(endpoint) = line.strip_prefix("# unhealthy: ") {
            let (name, address) = endpoint.split_once(' ').unwrap();
            let is_meant = |it: &&Backend| it.key.to_string().starts_with(name);
            let backend = translated.backends.iter().find(is_meant).unwrap();
            health.add_unhealthy(&backend.key, address.parse().unwrap());
        }
        zones.extend(line.strip_prefix("# client zone: "));
    }
    let mut out = String::new();
    for (name, encoded) in &translated.listeners {
        let listener = ListenerResource::decode(&**encoded).unwrap();
        assert_eq!(listener.name, **name);
        let manager = listener.api_listener.unwrap().api_listener.unwrap();
        let manager = HttpConnectionManager::decode(manager.value).unwrap();
        writeln!(out, "listener {name}: routes {}", manager.rds.unwrap().route_config_name)
            .unwrap();
    }
    for (name, encoded) in &translated.routes {
        writeln!(out, "routes {name}:").unwrap();
        let routes = RouteConfiguration::decode(&**encoded).unwrap();
        for route in &routes.virtual_hosts[0].routes {
            writeln!(out, "  {}", described(route)).unwrap();
        }
    }
    for backend in &translated.backends {
        let cluster = cluster(backend);
        let limit = cluster.circuit_breakers.unwrap().thresholds[0].max_requests.unwrap().value;
        let policy = policies(&cluster.load_balancing_policy.unwrap());
        let ejection = cluster.outlier_detection.as_ref().map(ejection).unwrap_or_default();
        writeln!(out, "cluster {}: {policy}, at most {limit} requests{ejection}", cluster.name)
            .unwrap();
    }
    for zone in std::iter::once("").chain(zones) {
        for backend in &translated.backends {
            let ClusterLoadAssignment { cluster_name, endpoints } =
                load_assignment(backend, &health, zone);
            writeln!(out, "endpoints {cluster_name} for zone {zone:?}:").unwrap();
            for locality in endpoints {
                let zone = locality.locality.unwrap().zone;
                let weight = locality.load_balancing_weight.unwrap().value;
                let addresses: Vec<_> = locality.lb_endpoints.iter().map(endpoint).collect();
                let (addresses, priority) = (addresses.join(", "), locality.priority);
                let line =
                    format!("priority {priority}, zone {zone:?}, weight {weight}: {addresses}");
                writeln!(out, "  {line}").unwrap();
            }
        }
    }
    for TranslationFinding { subject, message } in &translated.findings {
        writeln!(out, "finding {subject}: {message}").unwrap();
    }
    out
}

fn described(route: &RouteEntry) -> String {
    let matcher = route.r#match.as_ref().unwrap();
    let path = matcher.path.as_ref().map(|it| format!("path {it}"));
    let prefix = matcher.prefix.as_ref().map(|it| format!("prefix {it}"));
    let regex = matcher.safe_regex.as_ref().map(|it| format!("regex {}", it.regex));
    let header = |it: &HeaderMatcher| {
        let value = it.string_match.as_ref().unwrap();
        let regex = value.safe_regex.as_ref().map(|it| format!("~{}", it.regex));
        format!("{}={}", it.name, value.exact.clone().or(regex).unwrap())
    };
    let conditions = path.into_iter().chain(prefix).chain(regex);
    let conditions: Vec<_> = conditions.chain(matcher.headers.iter().map(header)).collect();
    let mut parts = vec![format!("{}: {} =>", route.name, conditions.join(" "))];
    if let Some(response) = &route.direct_response {
        parts.push(format!("status {}", response.status));
    }
    if let Some(action) = &route.route {
        parts.extend(action.cluster.clone());
        for target in action.weighted_clusters.iter().flat_map(|it| &it.clusters) {
            parts.push(format!("{}*{}", target.name, target.weight.unwrap().value));
            parts.extend(target.request_headers_to_add.iter().map(added));
        }
        if let Some(time) = action.max_stream_duration.and_then(|it| it.max_stream_duration) {
            parts.push(format!("timeout {}.{:09}", time.seconds, time.nanos));
        }
        if let Some(retry) = &action.retry_policy {
            let back_off = retry.retry_back_off.unwrap();
            let millis = |span: Option<TimeSpan>| {
                let span = span.unwrap();
                span.seconds * 1_000 + i64::from(span.nanos) / 1_000_000
            };
            parts.push(format!(
                "retry {} of {} after {} to {} ms",
                retry.num_retries.unwrap().value,
                retry.retry_on,
                millis(back_off.base_interval),
                millis(back_off.max_interval),
            ));
        }
        for hash in &action.hash_policy {
            let header = hash.header.as_ref().map(|it| it.header_name.clone());
            let state = hash.filter_state.as_ref().map(|it| it.key.clone());
            parts.push(format!("hash {}", header.or(state).unwrap()));
        }
    }
    parts.extend(route.request_headers_to_add.iter().map(added));
    parts.extend(route.request_headers_to_remove.iter().map(|it| format!("request -{it}")));
    parts.extend(route.response_headers_to_add.iter().map(added));
    parts.join(" ")
}

fn added(option: &HeaderValueOption) -> String {
    let header = option.header.as_ref().unwrap();
    let sign = if option.append_action == HeaderValueOption::OVERWRITE { "=" } else { "+=" };
    format!("{}{sign}{}", header.key, header.value)
}

fn ejection(it: &OutlierDetection) -> String {
    let millis = |span: Option<TimeSpan>| {
        let span = span.unwrap();
        span.seconds * 1_000 + i64::from(span.nanos) / 1_000_000
    };
    format!(
        ", ejects after {} failures, or below {} thousandths of the deviation ({} requests at {} endpoints in {} ms), \
         for {} to {} ms, at most {} %",
        it.consecutive_5xx.unwrap().value,
        it.success_rate_stdev_factor.unwrap().value,
        it.success_rate_request_volume.unwrap().value,
        it.success_rate_minimum_hosts.unwrap().value,
        millis(it.interval),
        millis(it.base_ejection_time),
        millis(it.max_ejection_time),
        it.max_ejection_percent.unwrap().value,
    )
}

/// Returns the slow start of a policy.
fn slow_start(config: &TypedExtensionConfig) -> Option<String> {
    let value = config.typed_config.as_ref().unwrap().value.clone();
    let settings = match &*config.name {
        RoundRobin::NAME => RoundRobin::decode(value).unwrap().slow_start_config,
        LeastRequest::NAME => LeastRequest::decode(value).unwrap().slow_start_config,
        _ => None,
    }?;
    let (window, least) =
        (settings.slow_start_window.unwrap(), settings.min_weight_percent.unwrap());
    Some(format!(" in {}.{:09} s from {} %", window.seconds, window.nanos, least.value))
}

fn policies(list: &LoadBalancingPolicy) -> String {
    let described = list.policies.iter().map(|policy| {
        let config = policy.typed_extension_config.as_ref().unwrap();
        let short = config.name.rsplit('.').next().unwrap();
        if config.name != WrrLocality::NAME {
            return format!("{short}{}", slow_start(config).unwrap_or_default());
        }
        let value = config.typed_config.as_ref().unwrap().value.clone();
        let inner = WrrLocality::decode(value).unwrap().endpoint_picking_policy.unwrap();
        format!("{short}({})", policies(&inner))
    });
    described.collect::<Vec<_>>().join(" or ")
}

fn endpoint(endpoint: &LbEndpoint) -> String {
    let address = endpoint.endpoint.as_ref().unwrap().address.as_ref().unwrap();
    let target = address.socket_address.as_ref().unwrap();
    let health = if endpoint.health_status == LbEndpoint::HEALTHY { "" } else { " unhealthy" };
    format!("{}:{}{health}", target.address, target.port_value.unwrap())
}
