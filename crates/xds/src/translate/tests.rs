//! Golden tests: `testdata/NAME.in.yaml` must translate to `testdata/NAME.out.txt`. `UPDATE_EXPECT=1` rewrites the
//! latter.
//!
//! Comments in a case are directives:
//! - `# unhealthy: NAMESPACE/SERVICE ADDRESS` says that an endpoint is not healthy.
//! - `# servers` shows the listeners of servers.
//! - `# client zone: ZONE` shows endpoints as clients of that zone get them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use gateway::TranslationSettings;

use super::*;
use crate::message::{
    ClusterLoadAssignment, ClusterResource, CommonTlsContext, EndpointTlsContext, HeaderMatcher,
    HeaderValueOption, HttpProtocolOptions, LbEndpoint, LeastRequest, LoadBalancingPolicy,
    OutlierDetection, PrincipalSet, RbacFilter, RbacPrincipal, RoundRobin, RouteConfiguration,
    RouteEntry, ServerTlsContext, StringMatcher, TimeSpan, TypedExtensionConfig, WrrLocality,
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
    for (name, encoded) in translated.servers.iter().filter(|_| input.contains("# servers\n")) {
        let listener = ListenerResource::decode(&**encoded).unwrap();
        writeln!(out, "server {name}: {}", described_server(&listener)).unwrap();
    }
    for (name, TranslatedResource { any, envoy }) in &translated.routes {
        writeln!(out, "routes {name}:").unwrap();
        write_routes(&mut out, any);
        if let Some(envoy) = envoy {
            writeln!(out, "routes {name} of Envoys:").unwrap();
            write_routes(&mut out, envoy);
        }
    }
    for backend in &translated.backends {
        let cluster = cluster(backend);
        let limit = cluster.circuit_breakers.unwrap().thresholds[0].max_requests.unwrap().value;
        let policy = policies(&cluster.load_balancing_policy.unwrap());
        let ejection = cluster.outlier_detection.as_ref().map(ejection).unwrap_or_default();
        writeln!(out, "cluster {}: {policy}, at most {limit} requests{ejection}", cluster.name)
            .unwrap();
        if let Some(ClusterResource { transport_socket, .. }) = encrypted_cluster(backend) {
            let socket = transport_socket.unwrap();
            let context = EndpointTlsContext::decode(socket.typed_config.unwrap().value).unwrap();
            writeln!(out, "  with certificates: {}", tls(&context.common_tls_context.unwrap()))
                .unwrap();
        }
        writeln!(out, "cluster of Envoys: {}", described_for_envoys(&envoy::cluster(backend)))
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

fn write_routes(out: &mut String, encoded: &Bytes) {
    let routes = RouteConfiguration::decode(&**encoded).unwrap();
    for host in &routes.virtual_hosts {
        if host.domains != ["*"] {
            writeln!(out, "  hosts {}", host.domains.join(", ")).unwrap();
        }
        for route in &host.routes {
            writeln!(out, "  {}", described(route)).unwrap();
        }
    }
}

fn described_server(listener: &ListenerResource) -> String {
    let chain = listener.default_filter_chain.as_ref().unwrap();
    let socket = chain.transport_socket.as_ref().map(|it| {
        let context = it.typed_config.as_ref().unwrap().value.clone();
        let context = ServerTlsContext::decode(context).unwrap();
        let is_required = context.require_client_certificate.unwrap().value;
        format!("{}, client certificate {is_required}", tls(&context.common_tls_context.unwrap()))
    });
    let manager = chain.filters[0].typed_config.as_ref().unwrap().value.clone();
    let filters = HttpConnectionManager::decode(manager).unwrap().http_filters;
    assert_eq!(filters.last().unwrap(), &HttpFilter::router());
    let access = filters.iter().filter(|it| it.name == "rbac").map(|it| {
        let filter = RbacFilter::decode(it.typed_config.as_ref().unwrap().value.clone()).unwrap();
        let policies = filter.rules.unwrap().policies.into_values();
        let principals: Vec<_> = policies.flat_map(|it| it.principals).collect();
        format!("{:?}", principals.iter().map(principal).collect::<Vec<_>>())
    });
    let access = access.collect::<Vec<_>>().join(", ");
    format!("{}; clients {access}", socket.unwrap_or_else(|| "plaintext".to_owned()))
}

fn tls_of_envoys(context: &EndpointTlsContext) -> String {
    let common = context.common_tls_context.as_ref().unwrap();
    let validation = common.validation_context.as_ref().unwrap();
    let trusted = validation.trusted_ca.as_ref().map(|it| match &it.inline_string {
        Some(pem) => format!("{} authorities", pem.matches("BEGIN").count()),
        None => it.filename.clone().unwrap(),
    });
    let names = validation.match_typed_subject_alt_names.iter();
    let names: Vec<_> = names
        .map(|it| format!("{} {}", it.san_type, string_match(it.matcher.as_ref().unwrap())))
        .collect();
    format!("to {} over {:?}, {trusted:?}, names {names:?}", context.sni, common.alpn_protocols)
}

fn tls(context: &CommonTlsContext) -> String {
    let own = &context.tls_certificate_provider_instance.as_ref().unwrap().instance_name;
    let validation = context.validation_context.as_ref().map(|it| {
        let authorities = it.ca_certificate_provider_instance.as_ref().unwrap();
        let names = it.match_subject_alt_names.iter().map(string_match).collect::<Vec<_>>();
        format!(", authorities {}, names {names:?}", authorities.instance_name)
    });
    format!("certificate {own}{}", validation.unwrap_or_default())
}

fn string_match(matcher: &StringMatcher) -> String {
    let regex = matcher.safe_regex.as_ref().map(|it| format!("~{}", it.regex));
    matcher.exact.clone().or(regex).unwrap()
}

fn principal(principal: &RbacPrincipal) -> String {
    let set = |name: &str, set: &PrincipalSet| {
        let ids: Vec<_> = set.ids.iter().map(self::principal).collect();
        format!("{name}({})", ids.join(", "))
    };
    let RbacPrincipal { and_ids, or_ids, authenticated, not_id, direct_remote_ip, .. } = principal;
    let parts = [
        and_ids.as_ref().map(|it| set("all", it)),
        or_ids.as_ref().map(|it| set("any", it)),
        authenticated.as_ref().map(|it| string_match(it.principal_name.as_ref().unwrap())),
        not_id.as_ref().map(|it| format!("not {}", self::principal(it))),
        direct_remote_ip
            .as_ref()
            .map(|it| format!("{}/{}", it.address_prefix, it.prefix_len.unwrap().value)),
    ];
    parts.into_iter().flatten().collect()
}

fn described_for_envoys(cluster: &ClusterResource) -> String {
    let thresholds = cluster.circuit_breakers.as_ref().unwrap().thresholds[0];
    let budget = thresholds.retry_budget.unwrap();
    let options = &cluster.typed_extension_protocol_options[HttpProtocolOptions::NAME];
    let options = HttpProtocolOptions::decode(options.value.clone()).unwrap();
    let socket = cluster.transport_socket.as_ref().map(|it| {
        let context = it.typed_config.as_ref().unwrap().value.clone();
        let context = EndpointTlsContext::decode(context).unwrap();
        format!(", TLS {}", tls_of_envoys(&context))
    });
    let versions = options.explicit_http_config;
    let protocol = match versions.map(|it| it.http2_protocol_options.is_some()) {
        Some(true) => "HTTP/2",
        Some(false) => "HTTP/1.1",
        None => "HTTP of the request",
    };
    format!(
        "{}, {protocol}{}, at most {} requests, {} % retries or {}",
        policies(cluster.load_balancing_policy.as_ref().unwrap()),
        socket.unwrap_or_default(),
        thresholds.max_requests.unwrap().value,
        budget.budget_percent.unwrap().value,
        budget.min_retry_concurrency.unwrap().value,
    )
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
    let query = matcher.query_parameters.iter().map(|it| {
        format!("?{}={}", it.name, it.string_match.as_ref().unwrap().exact.as_ref().unwrap())
    });
    let conditions = conditions.chain(matcher.headers.iter().map(header)).chain(query);
    let conditions: Vec<_> = conditions.collect();
    let mut parts = vec![format!("{}: {} =>", route.name, conditions.join(" "))];
    if let Some(response) = &route.direct_response {
        parts.push(format!("status {}", response.status));
    }
    if let Some(redirect) = &route.redirect {
        let path = redirect.path_redirect.as_ref().map(|it| format!("path {it}"));
        let prefix = redirect.prefix_rewrite.as_ref().map(|it| format!("prefix {it}"));
        let scheme = redirect.scheme_redirect.clone().unwrap_or_default();
        let (host, port) = (&redirect.host_redirect, redirect.port_redirect);
        let path = path.or(prefix).unwrap_or_default();
        let code = redirect.response_code;
        parts.push(format!("redirect {code} to {scheme}://{host}:{port} {path}"));
    }
    if let Some(action) = &route.route {
        if !action.prefix_rewrite.is_empty() {
            parts.push(format!("prefix rewritten to {} at", action.prefix_rewrite));
        }
        if let Some(rewrite) = &action.regex_rewrite {
            parts.push(format!("path rewritten to {} at", rewrite.substitution));
        }
        parts.extend(action.host_rewrite_literal.as_ref().map(|it| format!("host {it} at")));
        parts.extend(action.cluster.clone());
        for target in action.weighted_clusters.iter().flat_map(|it| &it.clusters) {
            parts.push(format!("{}*{}", target.name, target.weight.unwrap().value));
            parts.extend(target.request_headers_to_add.iter().map(added));
        }
        for mirror in &action.request_mirror_policies {
            let share = mirror.runtime_fraction.unwrap().default_value.unwrap().numerator;
            parts.push(format!("copied to {} ({share} of a million)", mirror.cluster));
        }
        if let Some(time) = action.timeout.filter(|it| it.seconds > 0 || it.nanos > 0) {
            parts.push(format!("timeout {}.{:09}", time.seconds, time.nanos));
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
                "retry {} of {}{:?} after {} to {} ms",
                retry.num_retries.unwrap().value,
                retry.retry_on,
                retry.retriable_status_codes,
                millis(back_off.base_interval),
                millis(back_off.max_interval),
            ));
        }
        if let Some(time) = action.retry_policy.as_ref().and_then(|it| it.per_try_timeout) {
            parts.push(format!("attempt {}.{:09}", time.seconds, time.nanos));
        }
        for hash in &action.hash_policy {
            let header = hash.header.as_ref().map(|it| it.header_name.clone());
            let state = hash.filter_state.as_ref().map(|it| it.key.clone());
            let source = hash.connection_properties.map(|_| "source".to_owned());
            parts.push(format!("hash {}", header.or(state).or(source).unwrap()));
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
