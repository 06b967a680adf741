//! Golden tests: `testdata/NAME.in.yaml` must translate to `testdata/NAME.out.yaml`. `UPDATE_EXPECT=1` rewrites the
//! latter.
//!
//! Comments in a case are directives:
//! - `# request: HOST PATH` routes such a request.
//! - `# name: NAME` looks up the SNI rule of a TLS connection, `# name: none` that of a connection without SNI.
//! - `# pool: NETWORK` gives Gateways the addresses of a cluster's pool.
//! - `# services: NAMESPACE` puts a managed Service there in front of each Gateway.
//! - `# known: NAMESPACE/GATEWAY ADDRESS` is the former address of a Gateway, or the one that its load balancer has
//!   assigned.
//! - `# service: ADDRESS` puts all Gateways behind one Service with this address.
//! - `# cluster` reads the objects as those of an API server.
//! - `# external names: NETWORK` lets names in DNS resolve to addresses of the network.
//! - `# rejected: NAME REASON` says that the last answer for a name had addresses that are rejected.
//! - `# unreadable: KIND NAMESPACE/NAME: REASON` says that a Secret or ConfigMap cannot be read.
//! - `# key set: URL REASON` says that a key set could not be fetched.
//! - `# own: ADDRESS` is an address of Sheave, `# private port: PORT` a port of its admin API.
//! - `# controller: NAME` is the name of Sheave's GatewayClasses.
//! - `# transparent: NODE ZONE` turns transparent mode on, for this node and zone; `# no ipv6` leaves IPv6 alone.
//! - `# load balancer: NODE` serves Services of type LoadBalancer on this node; `# default class` those without a class too.
//! - `# proxyless` shows the listeners of the Services' gRPC servers.
//! - `# share hostnames` lets Gateways of all namespaces share hostnames.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Requests of golden files.
mod request_line;

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway::address_pool::assign;
use gateway::jwks::{JwksSubscription, JwksUrl, KeySetState};
use gateway::load_balancer::{self, LoadBalancerService, ReservedAddresses};
use gateway::managed_services::{self, DesiredService, ManagedServices, PublishedAddress};
use gateway::matching::OwnedHostName;
use gateway::objects::{
    GATEWAY_CONTROLLER, ListenFlag, ListenFlagProtocol, ObjectMeta, ShorthandFlags, read, shorthand,
};
use gateway::snapshot::{
    AuthorizerProtocol, AuthorizerTarget, Backend, BackendSettings, ClientAddressRules,
    ClientCertificates, EndpointSource, EndpointTls, ExternalAuthSettings, FieldSelection,
    HttpQuestion, Listener, ListenerProtocol, RevocationCheck, RouteFilters, Rule, RuleTarget,
    SecuritySettings, ServicePortRoutes, SniRule, TlsPayload, TransportProtocol, TrustAnchors,
    XdsServerAccess, XdsServerClients,
};
use gateway::status::{
    GatewayStatus, ListenerStatus, ResourceStatus, StatusCondition, StatusDetail,
};
use gateway::transparent::TransparentService;
use gateway::{
    AddressAssignment, AddressFilter, ApiObject, CertificateObject, CertificateObjectKind,
    ControllerNames, LoadBalancerSettings, ObjectOrigin, ObjectProblem, Snapshot,
    TranslationResult, TranslationSettings, TransparentSettings, certificate_objects, parse,
    translate,
};

#[test]
fn every_golden_case_matches_its_expected_output() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut wrong = Vec::new();
    for input in cases() {
        let file = input.file_name().unwrap().to_str().unwrap();
        let actual = output(&fs::read_to_string(&input).unwrap(), file);
        let expected_path = input.with_file_name(file.replace(".in.", ".out."));
        if update {
            fs::write(&expected_path, &actual).unwrap();
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if actual != expected {
            println!("{file} gives:\n{actual}\nexpected:\n{expected}");
            wrong.push(file.to_owned());
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} (UPDATE_EXPECT=1 accepts the actual output)");
}

#[test]
fn translation_looks_up_no_other_secrets_and_config_maps_than_those_it_reports() {
    let mut referenced = 0;
    for input in cases() {
        let file = input.file_name().unwrap().to_str().unwrap();
        let input = fs::read_to_string(&input).unwrap();
        let (objects, _) = objects(&input, file);
        let settings = settings(&input, &objects);
        let names = certificate_objects(&objects, &settings.controllers);
        referenced += names.len();
        let is_named = |kind, metadata: &ObjectMeta| {
            let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
            names.contains(&CertificateObject { kind, namespace, name })
        };
        let mut fewer = objects.clone();
        fewer.retain(|object| match object {
            ApiObject::Secret(it) => is_named(CertificateObjectKind::Secret, &it.metadata),
            ApiObject::ConfigMap(it) => is_named(CertificateObjectKind::ConfigMap, &it.metadata),
            _ => true,
        });
        let outcome = |objects: &[ApiObject]| {
            let TranslationResult { snapshot, statuses, certificate_validities, .. } =
                translate(objects, &settings);
            format!("{snapshot:?} {statuses:?} {certificate_validities:?}")
        };
        assert_eq!(outcome(&fewer), outcome(&objects), "{file}: {names:?}");
    }
    assert!(referenced > 20, "{referenced} references");
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_input = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(".in.yaml"));
    let mut cases: Vec<_> = entries.filter(is_input).collect();
    cases.sort();
    assert!(!cases.is_empty());
    cases
}

fn output(input: &str, file: &str) -> String {
    let (objects, problems) = objects(input, file);
    let translation = translate(&objects, &settings(input, &objects));
    let defaults = defaults();
    let mut out = String::new();
    section(&mut out, "problems", problems.iter().chain(&translation.problems).map(quoted));
    let snapshot = &translation.snapshot;
    let serves_services = input.contains("# load balancer: ");
    let listener = |it: &Listener| {
        let transport = match it.protocol.transport() {
            TransportProtocol::Tcp => "",
            TransportProtocol::Udp => "/udp",
        };
        let http3 = it.http3.map(|http3| format!(" and {http3:?}")).unwrap_or_default();
        let free = if it.free_bind { " free-bind" } else { "" };
        let public = it.public_port.map(|port| format!(" for {port}")).unwrap_or_default();
        let interception = it
            .interception
            .map(|it| format!(" intercepted keep_client_address={}", it.keep_client_address));
        let interception = interception.unwrap_or_default();
        let kind = match &it.protocol {
            ListenerProtocol::Detected { connections, .. } => {
                let rule = connections.as_ref().map(|rule| shares(rule, snapshot));
                format!(" detected, else {}", rule.as_deref().unwrap_or("closed"))
            }
            ListenerProtocol::Tcp(Some(rule)) if it.interception.is_some() || serves_services => {
                format!(" connections to {}", shares(rule, snapshot))
            }
            ListenerProtocol::Http(_) | ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => {
                String::new()
            }
        };
        let sources = it.sources.as_ref().map(|it| format!(" from {it:?}")).unwrap_or_default();
        let address =
            format!("{}{transport}{public}{free}{http3}{interception}{kind}{sources}", it.address);
        described(&it.name, &address, &it.client, &defaults.0.client)
    };
    section(&mut out, "listeners", snapshot.listeners.iter().map(listener));
    let limits = snapshot.rate_limits.iter().map(|it| quoted(&format!("{it:?}").replace('"', "'")));
    section(&mut out, "rate limits", limits);
    section(&mut out, "tls", snapshot.listeners.iter().flat_map(|it| sni_rules(it, snapshot)));
    section(&mut out, "names", input.lines().flat_map(|line| names(line, snapshot)));
    section(&mut out, "rules", snapshot.rules.iter().filter_map(|rule| special(rule, snapshot)));
    section(&mut out, "requests", input.lines().filter_map(|line| request(line, snapshot)));
    section(&mut out, "consumers", input.lines().flat_map(|line| consumers(line, snapshot)));
    let backend = |it: &Backend| {
        let elsewhere = it.elsewhere.iter().map(|it| format!("elsewhere {}", it.address));
        let endpoints = it.endpoints.iter().map(|endpoint| match &endpoint.zone {
            Some(zone) => format!("{} in {zone}", endpoint.address),
            None => endpoint.address.to_string(),
        });
        let from = match &it.source {
            EndpointSource::Slices => {
                format!("[{}]", endpoints.chain(elsewhere).collect::<Vec<_>>().join(", "))
            }
            EndpointSource::Dns { host, port, is_filtered } => {
                let filtered = if *is_filtered { ", filtered" } else { "" };
                format!("DNS {host}:{port}{filtered}")
            }
        };
        let tls = it.settings.tls.as_deref();
        let from = tls.map_or_else(|| from.clone(), |tls| format!("{from} {}", endpoint_tls(tls)));
        // Described in words, because it contains whole certificates.
        let settings = BackendSettings { tls: None, ..it.settings.clone() };
        described(&it.key, &from, &settings, &defaults.1.settings)
    };
    section(&mut out, "backends", snapshot.backends.iter().map(backend));
    section(&mut out, "xds_servers", snapshot.service_ports.iter().map(xds_server));
    let services = &translation.transparent_services;
    section(&mut out, "transparent_services", services.iter().map(transparent_service));
    let services = &translation.load_balancer_services;
    section(&mut out, "load_balancer_services", services.iter().map(load_balancer_service));
    section(&mut out, "managed_services", translation.managed_services.iter().map(managed_service));
    let retained =
        translation.retained_gateways.iter().map(|(namespace, name)| format!("{namespace}/{name}"));
    section(&mut out, "retained_gateways", retained.filter(|_| input.contains("# services: ")));
    section(&mut out, "statuses", translation.statuses.iter().flat_map(status));
    out
}

fn xds_server(port: &ServicePortRoutes) -> String {
    let ServicePortRoutes { namespace, service, port, server, .. } = port;
    let clients = match &server.access {
        XdsServerAccess::All => "all clients".to_owned(),
        XdsServerAccess::None => "no client".to_owned(),
        XdsServerAccess::Some(clients) => {
            let XdsServerClients { names, addresses } = &**clients;
            format!("clients {names:?} of {:?} but {:?}", addresses.allowed, addresses.denied)
        }
    };
    format!("{namespace}/{service}:{port}: TLS {:?}, {clients}", server.tls)
}

fn objects(input: &str, file: &str) -> (Vec<ApiObject>, Vec<ObjectProblem>) {
    if !input.lines().any(|line| line == "# cluster") {
        return parse(input, file);
    }
    let (mut objects, mut problems) = (Vec::new(), Vec::new());
    for (document, text) in (1..).zip(input.split("\n---\n")) {
        let (value, origin) =
            (serde_saphyr::from_str(text).unwrap(), ObjectOrigin { file: file.into(), document });
        let (more, faults) = read(value, origin);
        objects.extend(more);
        problems.extend(faults);
    }
    (objects, problems)
}

fn settings(input: &str, objects: &[ApiObject]) -> TranslationSettings {
    let values = |name: &str| {
        let prefix = format!("# {name}: ");
        let values = input.lines().filter_map(|line| line.strip_prefix(&*prefix));
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    let networks = values("external names").iter().map(|it| it.parse().unwrap()).collect();
    let mut settings = TranslationSettings::at(addresses(input, objects));
    settings.address_filter = AddressFilter::new(networks);
    settings.address_filter.add_own(values("own").iter().map(|it| it.parse().unwrap()));
    let ports = values("private port");
    ports.iter().for_each(|it| settings.address_filter.add_private_port(it.parse().unwrap()));
    if let [name] = &values("controller")[..] {
        settings.controllers.gateway = (&**name).into();
    }
    let has = |directive: &str| input.lines().any(|line| line == directive);
    settings.transparent = values("transparent").first().map(|place| {
        let (node, zone) = place.split_once(' ').unwrap();
        let (node, zone) = (node.into(), Some(zone.into()));
        TransparentSettings { node, zone, ipv4: true, ipv6: !has("# no ipv6") }
    });
    settings.load_balancer =
        values("load balancer").first().map(|node| load_balancer(input, objects, node));
    settings.share_hostnames = input.lines().any(|line| line == "# share hostnames");
    settings.proxyless = input.lines().any(|line| line == "# proxyless");
    for rejected in values("rejected") {
        let (name, reason) = rejected.split_once(' ').unwrap();
        settings.rejected_answers.insert(name.into(), reason.to_owned());
    }
    for failed in values("key set") {
        let (url, problem) = failed.split_once(' ').unwrap();
        let subscription = JwksSubscription {
            url: JwksUrl::parse(url).unwrap(),
            refresh_interval: Duration::ZERO,
            max_age: Duration::ZERO,
            is_filtered: true,
        };
        let state = KeySetState { keys: None, problem: Some(problem.to_owned()) };
        settings.key_sets.insert(subscription, state);
    }
    for unreadable in values("unreadable") {
        let (object, reason) = unreadable.split_once(": ").unwrap();
        let (kind, name) = object.split_once(' ').unwrap();
        let (namespace, name) = name.split_once('/').unwrap();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let kind = match kind {
            "Secret" => CertificateObjectKind::Secret,
            _ => CertificateObjectKind::ConfigMap,
        };
        let object = CertificateObject { kind, namespace, name };
        settings.unreadable_objects.insert(object, reason.to_owned());
    }
    settings
}

fn known(input: &str) -> BTreeMap<(String, String), Vec<IpAddr>> {
    let mut known: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in input.lines().filter_map(|line| line.strip_prefix("# known: ")) {
        let (owner, address) = line.split_once(' ').unwrap();
        let (namespace, name) = owner.split_once('/').unwrap();
        let owner = (namespace.to_owned(), name.to_owned());
        known.entry(owner).or_default().push(address.parse().unwrap());
    }
    known
}

fn load_balancer(input: &str, objects: &[ApiObject], node: &str) -> LoadBalancerSettings {
    let is_default = input.lines().any(|line| line == "# default class");
    let gateways: Vec<_> =
        input.lines().filter_map(|line| line.strip_prefix("# pool: ")?.parse().ok()).collect();
    let reserved = ReservedAddresses { gateways: &gateways, ..Default::default() };
    let assignment = load_balancer::assign(objects, is_default, &reserved, &known(input));
    LoadBalancerSettings { is_default, node: node.into(), assignment }
}

fn load_balancer_service(service: &LoadBalancerService) -> String {
    let LoadBalancerService { namespace, name, addresses, sockets, is_node_local, .. } = service;
    let findings = service.findings.iter().map(|it| format!("; {}: {}", it.reason, it.message));
    let findings: String = findings.collect();
    let local = if *is_node_local { " local" } else { "" };
    let ports = sockets.len();
    quoted(&format!("{namespace}/{name}{local} {addresses:?} {ports} sockets{findings}"))
}

fn addresses(input: &str, objects: &[ApiObject]) -> AddressAssignment {
    let pool: Vec<_> =
        input.lines().filter_map(|line| line.strip_prefix("# pool: ")?.parse().ok()).collect();
    let known = known(input);
    if let Some(namespace) = input.lines().find_map(|line| line.strip_prefix("# services: ")) {
        let mut managed = ManagedServices::read(objects, namespace, GATEWAY_CONTROLLER);
        for (gateway, addresses) in known {
            let published = addresses.into_iter().map(PublishedAddress::Ip).collect();
            managed.services.entry(gateway).or_default().addresses = published;
        }
        return AddressAssignment::ManagedServices(managed);
    }
    let shared = input.lines().filter_map(|line| line.strip_prefix("# service: ")?.parse().ok());
    let shared: Vec<_> = shared.map(PublishedAddress::Ip).collect();
    if !shared.is_empty() {
        return AddressAssignment::SharedService(shared);
    }
    if pool.is_empty() {
        AddressAssignment::Host
    } else {
        assign(&pool, objects, &known, &ControllerNames::default())
    }
}

fn transparent_service(service: &TransparentService) -> String {
    let TransparentService { namespace, name, uid, addresses, adopt, findings } = service;
    let findings = findings.iter().map(|it| format!("; {}: {}", it.reason, it.message));
    let findings: String = findings.collect();
    let uid = uid.as_ref().map(|uid| format!(" {uid}")).unwrap_or_default();
    quoted(&format!("{namespace}/{name}{uid} {adopt:?} {addresses:?}{findings}"))
}

/// Returns the answers to a request from a namespace that has routes of its own.
fn consumers(line: &str, snapshot: &Snapshot) -> Vec<String> {
    let Some(text) = line.strip_prefix("# request: ") else { return Vec::new() };
    let Some(request) = request_line::parse_request(text) else { return Vec::new() };
    let routes = snapshot.listeners.iter().flat_map(|listener| {
        listener.consumer_routes.iter().map(move |(from, routes)| (listener.address, from, routes))
    });
    let answer = |(address, from, routes): (_, _, &gateway::matching::RouteTable)| {
        let rule = routes.find(&request);
        let rule = rule.map_or_else(|| "nothing".to_owned(), |it| shares(it, snapshot));
        quoted(&format!("{text} from {from} at {address} -> {rule}"))
    };
    routes.map(answer).collect()
}

fn managed_service(service: &DesiredService) -> String {
    let DesiredService { gateway: (namespace, gateway), ports, infrastructure, requested_address } =
        service;
    let ports: Vec<_> = ports
        .iter()
        .map(|((port, transport), target)| format!("{port} {transport:?} -> {target}"))
        .collect();
    let name = managed_services::service_name(&service.gateway);
    let (labels, annotations) = (&infrastructure.labels, &infrastructure.annotations);
    let address = requested_address.map(|it| format!(" at {it}")).unwrap_or_default();
    let ports = ports.join(", ");
    quoted(&format!("{name}{address} of {namespace}/{gateway}: {ports} {labels:?} {annotations:?}"))
}

/// Returns a listener and a backend without any policy.
fn defaults() -> (Listener, Backend) {
    let address = "127.0.0.1:0".parse().unwrap();
    let listen = ListenFlag { protocol: ListenFlagProtocol::Http, address };
    let flags = ShorthandFlags { listen: vec![listen], to: vec![address], ..Default::default() };
    let mut snapshot = translate(&shorthand(&flags), &TranslationSettings::default()).snapshot;
    (snapshot.listeners.remove(0), snapshot.backends.remove(0))
}

fn section(out: &mut String, name: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        return;
    }
    writeln!(out, "{name}:").unwrap();
    for line in lines {
        writeln!(out, "- {line}").unwrap();
    }
}

fn quoted(text: &impl ToString) -> String {
    format!("{:?}", text.to_string())
}

/// Describes a name, its content, and the settings that differ from the defaults.
fn described<S: Debug>(
    name: &impl std::fmt::Display,
    content: &impl std::fmt::Display,
    settings: &S,
    defaults: &S,
) -> String {
    let (settings, defaults) = (format!("{settings:?}"), format!("{defaults:?}"));
    let parts = |text: &str| -> Vec<String> {
        let start = text.find('{').unwrap() + 1;
        text[start..].trim_end_matches('}').trim().split(", ").map(str::to_owned).collect()
    };
    let default_parts = parts(&defaults);
    let special: Vec<_> =
        parts(&settings).into_iter().filter(|part| !default_parts.contains(part)).collect();
    quoted(&format!("{name} {content} {}", special.join(", ")).trim_end())
}

/// Describes the SNI rules of a listener, the most specific hosts first.
fn sni_rules(listener: &Listener, snapshot: &Snapshot) -> Vec<String> {
    let sni_rules = listener.tls.iter().flat_map(|tls| &tls.sni_rules);
    sni_rules
        .map(|it| quoted(&format!("{} {}", listener.address, sni_rule(it, snapshot))))
        .collect()
}

fn sni_rule(rule: &SniRule, snapshot: &Snapshot) -> String {
    let termination = rule.terminate.as_ref().map_or_else(
        || "passed through".to_owned(),
        |termination| {
            let names: Vec<_> = termination.certificates.iter().map(|it| &*it.name).collect();
            let clients = termination.clients.as_ref().map(clients);
            format!("by {}{}", names.join(" and "), clients.unwrap_or_default())
        },
    );
    let payload = match &rule.payload {
        TlsPayload::Requests => "requests".to_owned(),
        TlsPayload::Connections(None) => "closed".to_owned(),
        TlsPayload::Connections(Some(rule)) => shares(rule, snapshot),
    };
    format!("{:?}: {termination}; {payload}", rule.hosts)
}

fn clients(
    ClientCertificates { roots, required, revocation, max_intermediates }: &ClientCertificates,
) -> String {
    let check = revocation.as_ref().map(|check| {
        let RevocationCheck { lists, only_end_entity, accepts_unknown, accepts_expired } = &**check;
        format!(
            ", {} revocation lists only_end_entity={only_end_entity} accepts_unknown={accepts_unknown} \
             accepts_expired={accepts_expired}",
            lists.len()
        )
    });
    let check = check.unwrap_or_default();
    let depth = max_intermediates.map(|most| format!(" intermediates<={most}"));
    let depth = depth.unwrap_or_default();
    format!(", clients of {} authorities required={required}{depth}{check}", roots.len())
}

fn names(line: &str, snapshot: &Snapshot) -> Vec<String> {
    let Some(name) = line.strip_prefix("# name: ") else { return Vec::new() };
    let server_name = (name != "none").then(|| OwnedHostName::new(name.as_bytes()));
    let listeners = snapshot.listeners.iter().filter_map(|it| Some((it.address, it.tls.as_ref()?)));
    let answer = |(address, tls): (_, &std::sync::Arc<gateway::snapshot::ListenerTls>)| {
        let found = tls
            .find(server_name.as_ref().map(OwnedHostName::borrowed))
            .map(|it| sni_rule(it, snapshot));
        quoted(&format!("{name} at {address} -> {}", found.as_deref().unwrap_or("refused")))
    };
    listeners.map(answer).collect()
}

fn endpoint_tls(tls: &EndpointTls) -> String {
    let EndpointTls { server_name, subject_names, roots, client } = tls;
    let roots = match roots {
        TrustAnchors::System => "the system".to_owned(),
        TrustAnchors::Given(roots) => format!("{} authorities", roots.len()),
        TrustAnchors::AcceptAny => "any certificate".to_owned(),
    };
    let client = client.as_ref().map(|client| format!(" presenting {}", client.name));
    let client = client.unwrap_or_default();
    format!("TLS to {server_name} {subject_names:?} trusting {roots}{client}")
}

/// Describes the filters, timeouts and retries of a rule, if there are any.
fn special(rule: &Rule, snapshot: &Snapshot) -> Option<String> {
    let mut parts = Vec::new();
    let mut add = |name: &str, part: Option<String>| {
        parts.extend(part.map(|part| format!("{name}: {part}")));
    };
    add("filters", rule.filters.as_ref().map(|it| filters(it, snapshot)));
    for (n, target) in rule.targets.iter().enumerate() {
        add(&format!("target {n}"), target.filters.as_ref().map(|it| filters(it, snapshot)));
    }
    add("request timeout", rule.request_timeout.map(|it| format!("{it:?}")));
    add("attempt timeout", rule.attempt_timeout.map(|it| format!("{it:?}")));
    add("retry", rule.retry.as_ref().map(|it| format!("{it:?}")));
    add("affinity", rule.affinity.as_ref().map(|it| format!("{it:?}")));
    (!parts.is_empty()).then(|| quoted(&format!("{}: {}", rule.name, parts.join("; "))))
}

/// Describes the filters that are set.
fn filters(filters: &RouteFilters, snapshot: &Snapshot) -> String {
    let mut parts = Vec::new();
    parts.extend(filters.security.as_ref().map(|it| security(it)));
    parts.extend(filters.external_auth.as_ref().map(|it| authorizer(it)));
    parts.extend(filters.rate_limit.map(|it| {
        let limits = &snapshot.rate_limits[it];
        format!("rate limit {} at {}", limits.policy, limits.target)
    }));
    parts.extend(filters.traffic.as_ref().map(|it| format!("{it:?}")));
    parts.extend(filters.cors.as_ref().map(|it| format!("{it:?}")));
    parts.extend(filters.redirect.as_ref().map(|it| format!("{it:?}")));
    parts.extend(filters.rewrite.as_ref().map(|it| format!("{it:?}")));
    for (name, edits) in
        [("request", &filters.request_headers), ("response", &filters.response_headers)]
    {
        if !edits.is_empty() {
            parts.push(format!("{name} {edits:?}"));
        }
    }
    parts.extend(filters.mirrors.iter().map(|mirror| {
        let (share, key) = (mirror.share, &snapshot.backends[mirror.backend].key);
        format!("{} of {} to {key}", share.numerator, share.denominator)
    }));
    parts.join(", ")
}

fn request(line: &str, snapshot: &Snapshot) -> Option<String> {
    let text = line.strip_prefix("# request: ")?;
    let request = request_line::parse_request(text)?;
    let mut answers = snapshot.listeners.iter().map(|listener| {
        let rule = match &listener.protocol {
            ListenerProtocol::Http(routes)
            | ListenerProtocol::Detected { requests: routes, .. } => routes.find(&request),
            ListenerProtocol::Tcp(rule) | ListenerProtocol::Udp(rule) => rule.as_ref(),
        };
        format!(
            "{} {}",
            listener.address,
            rule.map_or_else(
                || "nothing".to_owned(),
                |it| format!(
                    "{}{}{}{}",
                    shares(it, snapshot),
                    security_of(it),
                    rate_limit(it, snapshot),
                    traffic(it)
                )
            )
        )
    });
    let answer = answers.by_ref().collect::<Vec<_>>().join("; ");
    Some(quoted(&format!("{text} -> {answer}")))
}

/// Returns the policy that says which clients may send requests of a rule, if there is one.
fn security_of(rule: &Rule) -> String {
    let settings = rule.filters.as_ref().and_then(|filters| filters.security.as_ref());
    settings.map(|it| format!(", {}", security(it))).unwrap_or_default()
}

fn security(settings: &SecuritySettings) -> String {
    let policy = &settings.policy;
    match &settings.client_addresses {
        None => format!("security {policy}: no client"),
        Some(ClientAddressRules { allowed, denied }) => {
            let addresses = format!("security {policy}: allowed {allowed:?}, denied {denied:?}");
            let clients = settings.client_certificate.as_ref().map(|it| format!(", {it:?}"));
            let users = settings.basic_auth.as_ref().map(|it| format!(", {it:?}"));
            let keys = settings.api_keys.as_ref().map(|it| format!(", {it:?}"));
            let tokens = settings.jwt.as_ref().map(|it| format!(", {it:?}"));
            let auth = settings.external_auth.as_ref();
            let auth = auth.map(|it| format!(", {}", authorizer(it))).unwrap_or_default();
            addresses
                + &clients.unwrap_or_default()
                + &users.unwrap_or_default()
                + &keys.unwrap_or_default()
                + &tokens.unwrap_or_default()
                + &auth
        }
    }
}

/// Describes an authorizer and the question to it.
fn authorizer(settings: &ExternalAuthSettings) -> String {
    let ExternalAuthSettings { backend, protocol, sign_in, .. } = settings;
    let backend = backend.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let protocol = match protocol {
        AuthorizerProtocol::Grpc { authority } => format!("gRPC host '{authority}'"),
        AuthorizerProtocol::Http(it) => {
            let target = match &it.target {
                AuthorizerTarget::Template(template) => template.text.to_string(),
                AuthorizerTarget::Prefix(prefix) => format!("{prefix}*"),
            };
            let HttpQuestion { method, host, positive, cookies, .. } = it;
            format!("{method:?} {target} host {host:?}, {positive:?}, cookies {cookies:?}")
        }
    };
    let names = |fields: &FieldSelection| match fields {
        FieldSelection::All => "*".to_owned(),
        FieldSelection::Only(names) => names.join(" "),
    };
    let page = sign_in.as_ref().map(|it| format!("{} {:?}", it.url.text, it.parameter));
    format!(
        "authorizer {backend}: {protocol}, fields {}; fields {}, body {:?}, sign in {page:?}, timeout {:?}",
        names(&settings.request_fields),
        names(&settings.response_fields),
        settings.max_body_bytes,
        settings.timeout
    ).replace('"', "'")
}

/// Returns the policy that limits the rate of requests of a rule, if there is one.
fn rate_limit(rule: &Rule, snapshot: &Snapshot) -> String {
    let index = rule.filters.as_ref().and_then(|filters| filters.rate_limit);
    let limits = index.map(|index| &snapshot.rate_limits[index]);
    limits.map(|it| format!(" (limited by {} at {})", it.policy, it.target)).unwrap_or_default()
}

/// Returns the policy that says how requests of a rule are handled, if there is one.
fn traffic(rule: &Rule) -> String {
    let settings = rule.filters.as_ref().and_then(|filters| filters.traffic.as_ref());
    settings.map(|it| format!(", {it:?}")).unwrap_or_default()
}

fn shares(rule: &Rule, snapshot: &Snapshot) -> String {
    let shares = rule.targets.iter().map(|share| match share.target {
        RuleTarget::Backend(index) => {
            format!("{} x {}", share.weight, snapshot.backends[index].key)
        }
        RuleTarget::Unresolved => format!("{} x 500", share.weight),
    });
    format!("{}: {}", rule.name, shares.collect::<Vec<_>>().join(", "))
}

fn status(status: &ResourceStatus) -> Vec<String> {
    let object = &status.object;
    let has_none = ["AddressPool", "BgpPeer", "GatewayClass"].contains(&object.kind);
    let namespace = if has_none { "" } else { &object.namespace };
    let name = format!("{} {namespace}/{}", object.kind, object.name).replace(" /", " ");
    let generation = status.observed_generation;
    let line = |part: &str, conditions: &[StatusCondition]| {
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        quoted(&format!("{name}{part} @{generation}: {}", conditions.join(", ")))
    };
    let listener = |it: &ListenerStatus| {
        let part = format!(" {} {:?} x {}", it.name, it.supported_kinds, it.attached_routes);
        line(&part, &it.conditions)
    };
    match &status.detail {
        StatusDetail::GatewayClass(class) => vec![line("", &class.conditions)],
        StatusDetail::Gateway(GatewayStatus {
            addresses,
            conditions,
            listeners,
            attached_listener_sets: sets,
        }) => {
            let at: String = addresses.iter().map(|address| format!(" at {address}")).collect();
            let with = if *sets > 0 { format!(" with {sets} sets") } else { String::new() };
            let whole = line(&format!("{at}{with}"), conditions);
            std::iter::once(whole).chain(listeners.iter().map(listener)).collect()
        }
        StatusDetail::AddressPool(conditions) | StatusDetail::BgpPeer(conditions) => {
            vec![line("", conditions)]
        }
        StatusDetail::ListenerSet(conditions, listeners) => {
            std::iter::once(line("", conditions)).chain(listeners.iter().map(listener)).collect()
        }
        StatusDetail::Route(parents) => {
            let part = |it: &gateway::objects::ParentRef| {
                let section = it.section_name.as_ref().map(|name| format!("/{name}"));
                format!(" at {}{}", it.name, section.unwrap_or_default())
            };
            parents.iter().map(|it| line(&part(&it.parent), &it.conditions)).collect()
        }
        StatusDetail::Policy(targets) => targets
            .iter()
            .map(|it| line(&format!(" at {} {}", it.kind, it.name), &it.conditions))
            .collect(),
    }
}

fn condition(condition: &StatusCondition) -> String {
    let StatusCondition { kind, holds, reason, message } = condition;
    let message = if message.is_empty() { String::new() } else { format!(" ({message})") };
    format!("{kind:?}={holds} {reason:?}{message}")
}
