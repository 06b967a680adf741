//! Descriptions of matches, filters and endpoints in the terms of the objects that define them.

use std::ops::RangeInclusive;
use std::time::Duration;

use gateway::matching::{
    FieldCondition, HostPattern, MatchConditions, MatchResult, OwnedHostName, PathPattern,
    RuleVerdict, UnmetCondition, ValuePattern,
};
use gateway::snapshot::{
    AllowList, AuthorizerProtocol, AuthorizerTarget, ClientAddressRules, ClientCertificateAccess,
    ClientCertificateMode, ConditionOperator, CongestionControl, DirectResponseSettings,
    EndpointSpec, ErrorPageSettings, ErrorPageSource, ExternalAuthSettings, HeaderEdits,
    Http3Settings, HttpQuestion, JwtIssuer, JwtSettings, KeyedRateLimit, ListenerTls, MirrorPolicy,
    PathRewrite, RateLimitKey, RateLimitSettings, RedirectAction, RewriteContinuation,
    RouteFilters, Rule, RuleAction, RuleCondition, RuleSettings, SecuritySettings, Snapshot,
    TlsPayload, TrafficSettings,
};
use ipnet::IpNet;

use super::request::ExplainRequest;

pub(super) fn hosts(pattern: &HostPattern) -> String {
    match pattern {
        HostPattern::Any => "every host".to_owned(),
        HostPattern::Wildcard(name) => format!("*.{name}"),
        HostPattern::Exact(name) => name.to_string(),
    }
}

/// Describes the TLS handling of a connection; true if requests come out of it.
pub(super) fn tls(tls: Option<&ListenerTls>, request: &ExplainRequest) -> (Vec<String>, bool) {
    let name = request.server_name.as_ref().map(OwnedHostName::borrowed);
    let line = |text: &str, goes_on| (vec![text.to_owned()], goes_on);
    let entry = match (tls, request.is_https) {
        (None, false) => return (Vec::new(), true),
        (None, true) => {
            return line("not on this listener: the URL must begin with http://", false);
        }
        (Some(_), false) => {
            return line("required on this listener: the URL must begin with https://", false);
        }
        (Some(tls), true) => tls.find(name),
    };
    let Some(entry) = entry else {
        return line("no certificate matches this name: the connection is refused", false);
    };
    let Some(termination) = &entry.terminate else {
        return line(&format!("TLS passthrough, for {}", hosts(&entry.hosts)), false);
    };
    let mut lines: Vec<_> = termination.certificates.iter().map(|it| it.name.to_string()).collect();
    lines.extend(termination.clients.as_ref().map(|clients| {
        match clients.required {
            true => "a client certificate is required".to_owned(),
            false => {
                "a client certificate is requested; clients without a valid one are accepted too"
                    .to_owned()
            }
        }
    }));
    match entry.payload {
        TlsPayload::Requests => (lines, true),
        TlsPayload::Connections(_) => {
            lines.push(format!(
                "TLS terminated, then proxied as a TCP connection, for {}",
                hosts(&entry.hosts)
            ));
            (lines, false)
        }
    }
}

/// Describes HTTP/3 on a listener of this port.
pub(super) fn http3(http3: Http3Settings, port: u16) -> String {
    let Http3Settings { max_concurrent_streams, zero_rtt, congestion_control, advertised_port } =
        http3;
    let advertised =
        advertised_port.map(|it| format!(", advertised as port {it}")).unwrap_or_default();
    let early = if zero_rtt { ", safe requests accepted in 0-RTT" } else { "" };
    let pace = match congestion_control {
        CongestionControl::Cubic => "",
        CongestionControl::Bbr => ", congestion control BBR",
    };
    format!(
        "on UDP port {port}{advertised}, {max_concurrent_streams} concurrent requests{early}{pace}"
    )
}

/// Describes the conditions of a match.
pub(super) fn conditions(verdict: &RuleVerdict<'_>) -> String {
    let path = match &verdict.route_match.path {
        PathPattern::Exact(path) => format!("path {path}"),
        PathPattern::Prefix(path) => format!("path prefix {path}"),
        PathPattern::Regex(pattern) => format!("path regex {}", pattern.text()),
    };
    let MatchConditions { method, headers, query } = &verdict.route_match.conditions;
    let host = match verdict.hosts {
        HostPattern::Any => None,
        pattern => Some(format!("host {}", hosts(pattern))),
    };
    let method = method.as_ref().map(|method| format!("method {method}"));
    let headers = headers.iter().map(|it| field("header", it));
    let query = query.iter().map(|it| field("query", it));
    let parts = host.into_iter().chain([path]).chain(method).chain(headers).chain(query);
    format!("matches {}", parts.collect::<Vec<_>>().join(", "))
}

fn field(kind: &str, condition: &FieldCondition) -> String {
    let FieldCondition { name, value } = condition;
    match value {
        ValuePattern::Exact(value) => {
            format!("{kind} {name} = {}", shown_value(name.as_ref(), value.as_ref()))
        }
        ValuePattern::Regex(pattern) => {
            format!("{kind} {name} ~ {}", shown_value(name.as_ref(), pattern.text()))
        }
    }
}

/// Returns the value of a field, unless its name says that the value is a credential.
fn shown_value<'v>(name: &str, value: &'v str) -> &'v str {
    const CREDENTIALS: [&str; 8] =
        ["auth", "cookie", "credential", "key", "password", "secret", "signature", "token"];
    let name = name.to_ascii_lowercase();
    let is_credential = CREDENTIALS.iter().any(|part| name.contains(part));
    if is_credential { "(not shown)" } else { value }
}

/// Describes a rule that does not serve the request, with the reason.
pub(super) fn rejected_rule(verdict: &RuleVerdict<'_>) -> String {
    let reason = match verdict.result {
        MatchResult::Chosen => "it is chosen".to_owned(),
        MatchResult::LowerPrecedence => "it also matches, but has lower precedence".to_owned(),
        MatchResult::Unmet(UnmetCondition::Method(method)) => format!("the method is not {method}"),
        MatchResult::Unmet(UnmetCondition::Header(name)) => {
            format!("the header field {name} does not match")
        }
        MatchResult::Unmet(UnmetCondition::QueryParam(name)) => {
            format!("the query's {name} does not match")
        }
        MatchResult::OtherPath => "the path does not match".to_owned(),
        MatchResult::OtherHost => "the host does not match".to_owned(),
        MatchResult::OtherListener => "it belongs to another listener on this address".to_owned(),
    };
    format!("{}: {reason} ({})", verdict.rule.name, conditions(verdict))
}

/// Describes the timeouts and retries that the rule itself sets.
pub(super) fn limits(rule: &Rule) -> Vec<String> {
    let limit = |name: &str, timeout: Option<Duration>| {
        let timeout = match timeout? {
            Duration::MAX => "no limit".to_owned(),
            timeout => format!("{timeout:?}"),
        };
        Some(format!("{name} {timeout}"))
    };
    let retry = rule
        .retry
        .as_ref()
        .map(|retry| format!("attempts {}, retried statuses {:?}", retry.attempts, retry.statuses));
    let request = limit("the whole request", rule.request_timeout);
    let attempt = limit("each attempt", rule.attempt_timeout);
    let affinity = rule.affinity.as_ref().map(|it| format!("session affinity {it:?}"));
    request.into_iter().chain(attempt).chain(retry).chain(affinity).collect()
}

pub(super) fn endpoints(endpoints: &[EndpointSpec]) -> Vec<String> {
    let endpoint = |EndpointSpec { address, other_address, weight, zone, .. }: &EndpointSpec| {
        let other = other_address.map(|other| format!(" and {other}")).unwrap_or_default();
        let zone = zone.as_ref().map(|zone| format!(", zone {zone}")).unwrap_or_default();
        format!("{address}{other}, weight {weight}{zone}")
    };
    endpoints.iter().map(endpoint).collect()
}

/// Describes filters in the order in which they are applied.
pub(super) fn filters(filters: &RouteFilters, snapshot: &Snapshot) -> Vec<String> {
    let RouteFilters {
        security,
        rate_limit,
        traffic,
        external_auth,
        cors,
        redirect,
        rewrite,
        request_headers,
        response_headers,
        mirrors,
    } = filters;
    let mut lines: Vec<_> = traffic.iter().flat_map(|it| request_rule_lines(it)).collect();
    lines.extend(security.iter().filter_map(|it| security_line(it)));
    if let Some(limits) = rate_limit.map(|index| &snapshot.rate_limits[index]) {
        lines.extend(limits.limits.iter().map(|limit| rate_limit_line(limits, limit)));
    }
    let of_policy = security.as_ref().and_then(|it| Some((it, it.external_auth.as_ref()?)));
    lines.extend(of_policy.map(|(policy, auth)| {
        format!("{} (SecurityPolicy {})", authorizer_line(auth), policy.policy)
    }));
    lines.extend(external_auth.iter().map(|it| authorizer_line(it)));
    lines.extend(traffic.iter().flat_map(|it| traffic_lines(it)));
    if let Some(cors) = cors {
        let origins = match &cors.origins {
            AllowList::Any => "every origin".to_owned(),
            AllowList::Only(origins) => format!("{} origins", origins.len()),
        };
        lines.push(format!("CORS for {origins}"));
    }
    lines.extend(redirect.as_ref().map(redirection));
    if let Some(rewrite) = rewrite {
        let host = rewrite.hostname.as_ref().map(|host| format!("host {host}"));
        let path = rewrite.path.as_ref().map(path_rewrite);
        let parts: Vec<_> = host.into_iter().chain(path).collect();
        lines.push(format!("rewrite to {}", parts.join(", ")));
    }
    lines.extend(edits("request", request_headers));
    lines.extend(edits("response", response_headers));
    lines.extend(mirrors.iter().map(|mirror| mirror_line(mirror, snapshot)));
    lines
}

fn authorizer_line(auth: &ExternalAuthSettings) -> String {
    let Some(backend) = &auth.backend else {
        return "500 for all requests: the authorizer cannot be resolved".to_owned();
    };
    let question = match &auth.protocol {
        AuthorizerProtocol::Http(HttpQuestion { method, target, .. }) => {
            let method = method.unwrap_or("the method of the request");
            let target = match target {
                AuthorizerTarget::Template(template) => template.text.to_string(),
                AuthorizerTarget::Prefix(prefix) => format!("{prefix} and the path of the request"),
            };
            format!("{method} {target}")
        }
        AuthorizerProtocol::Grpc { .. } => "a gRPC call".to_owned(),
    };
    let body = auth.max_body_bytes;
    let body = body.map(|it| format!(" and a body of up to {it} bytes")).unwrap_or_default();
    let page = auth.sign_in.as_ref();
    let page = page.map(|it| format!(", 401 redirects to {}", it.url.text)).unwrap_or_default();
    format!("asks {backend} with {question}{body} within {:?}{page}", auth.timeout)
}

fn security_line(settings: &SecuritySettings) -> Option<String> {
    let rule = match &settings.client_addresses {
        None => "500 for all clients: the policy is invalid".to_owned(),
        Some(ClientAddressRules { allowed, denied }) => {
            let list = |networks: &[IpNet]| {
                let texts: Vec<_> = networks.iter().map(ToString::to_string).collect();
                texts.join(", ")
            };
            let allowed = (!allowed.is_empty()).then(|| format!("from {}", list(allowed)));
            let denied = (!denied.is_empty()).then(|| format!("not from {}", list(denied)));
            let parts: Vec<_> = allowed.into_iter().chain(denied).collect();
            let addresses =
                (!parts.is_empty()).then(|| format!("clients {}, else 403", parts.join(", ")));
            let users = settings
                .basic_auth
                .as_ref()
                .map(|it| format!("users of Secret {} with their passwords, else 401", it.secret));
            let keys = settings.api_keys.as_ref();
            let keys = keys.map(|it| format!("one of {} keys, else 401", it.clients.len()));
            let tokens = settings.jwt.as_ref().map(|it| token_check(it));
            let certificate = settings.client_certificate.as_ref().and_then(certificate_check);
            let checks = addresses.into_iter().chain(certificate);
            let checks = checks.chain(users).chain(keys).chain(tokens);
            let checks: Vec<_> = checks.collect();
            if checks.is_empty() {
                return None;
            }
            checks.join("; ")
        }
    };
    Some(format!("{rule} (SecurityPolicy {})", settings.policy))
}

fn certificate_check(access: &ClientCertificateAccess) -> Option<String> {
    let clients = match access.mode {
        ClientCertificateMode::Required => "a valid client certificate",
        ClientCertificateMode::ValidIfPresent => "no client certificate, or a valid one",
        ClientCertificateMode::Any => return None,
    };
    let page = access.error_page.as_ref();
    let other = page.map_or_else(|| "400".to_owned(), |url| format!("redirect to {url}"));
    Some(format!("{clients}, else {other}"))
}

fn token_check(settings: &JwtSettings) -> String {
    let issuer = |it: &JwtIssuer| {
        let audiences = match it.audiences.as_slice() {
            [] => String::new(),
            audiences => format!(" for {}", audiences.join(" or ")),
        };
        let claims = it.claims.iter().map(|it| format!(", claim {} in {}", it.claim, it.field));
        let claims: String = claims.collect();
        let url = it.subscription.as_ref().map(|it| format!(" with keys of {}", it.url.text));
        format!("{}{audiences}{}{claims}", it.name, url.unwrap_or_default())
    };
    let issuers: Vec<_> = settings.issuers.iter().map(issuer).collect();
    format!("a token of {}, else 401", issuers.join(", or of "))
}

fn rate_limit_line(policy: &RateLimitSettings, keyed: &KeyedRateLimit) -> String {
    let key = match &keyed.key {
        RateLimitKey::All => String::new(),
        RateLimitKey::ClientAddress { .. } => " for each client address".to_owned(),
        RateLimitKey::Header(name) => format!(" for each value of {name}"),
    };
    let limit = &keyed.limit;
    let rate =
        format!("{} requests in {:?}, {} at once", limit.requests, limit.period, limit.burst);
    format!("{rate}{key} (RateLimitPolicy {} of {})", policy.policy, policy.target)
}

fn traffic_lines(settings: &TrafficSettings) -> Vec<String> {
    let TrafficSettings {
        policy,
        max_body_bytes,
        request_rules: _,
        direct_response,
        error_pages,
        compression,
    } = settings;
    let body = max_body_bytes.map(|most| format!("request body up to {most} bytes, else 413"));
    let direct = direct_response.as_ref().map(|direct| match direct {
        DirectResponseSettings::Response { .. } => {
            format!("answers with {} in place of an endpoint", response_text(direct))
        }
        DirectResponseSettings::Invalid => "500 for all requests: the policy is invalid".to_owned(),
    });
    let compression = compression.as_ref().map(|it| {
        let codings: Vec<_> = it.codings.iter().map(|coding| coding.token()).collect();
        let (codings, least) = (codings.join(", "), it.min_bytes);
        format!("compresses responses of {least} bytes and more with {codings}, as clients accept")
    });
    let lines = body.into_iter().chain(direct).chain(error_pages.iter().map(error_page_line));
    lines.chain(compression).map(|line| format!("{line} (TrafficPolicy {policy})")).collect()
}

fn response_text(direct: &DirectResponseSettings) -> String {
    match direct {
        DirectResponseSettings::Response { status, content } => {
            let content = content.as_ref().map(|it| format!(" and {it:?}")).unwrap_or_default();
            format!("{status}{content}")
        }
        DirectResponseSettings::Invalid => "500".to_owned(),
    }
}

fn request_rule_lines(settings: &TrafficSettings) -> Vec<String> {
    let rules = settings.request_rules.iter().flat_map(|it| &it.rules);
    let line = |rule| format!("{} (TrafficPolicy {})", request_rule_line(rule), settings.policy);
    rules.map(line).collect()
}

fn request_rule_line(RuleSettings { conditions, action }: &RuleSettings) -> String {
    let condition = |RuleCondition { value, operator, negate }: &RuleCondition| {
        let not = if *negate { "not " } else { "" };
        match operator {
            ConditionOperator::Equals(text) => format!("{} is {not}\"{text}\"", value.text),
            ConditionOperator::Matches(it) => format!("{} {not}matches {}", value.text, it.text()),
        }
    };
    let conditions: Vec<_> = conditions.iter().map(condition).collect();
    let when = match &*conditions {
        [] => String::new(),
        conditions => format!("if {}: ", conditions.join(" and ")),
    };
    let query = |appends: bool| if appends { "" } else { " without the query" };
    let action = match action {
        RuleAction::Set { value, .. } => format!("set a variable to \"{}\"", value.text),
        RuleAction::Rewrite { pattern, replacement, appends_query, then } => {
            let then = match then {
                RewriteContinuation::NextRule => "",
                RewriteContinuation::Route => ", and choose the route anew",
                RewriteContinuation::Forward => ", and forward",
            };
            let (pattern, query) = (pattern.text(), query(*appends_query));
            format!("rewrite {pattern} to {}{query}{then}", replacement.text)
        }
        RuleAction::Redirect { pattern, url, status, .. } => {
            let pattern = pattern.as_ref().map(|it| format!("{} ", it.text())).unwrap_or_default();
            format!("redirect {pattern}with {status} to {}", url.text)
        }
        RuleAction::Respond(response) => format!("answer with {}", response_text(response)),
        RuleAction::Forward => "forward".to_owned(),
    };
    format!("{when}{action}")
}

fn error_page_line(page: &ErrorPageSettings) -> String {
    let ErrorPageSettings { statuses, no_endpoint, response_status, source } = page;
    let range = |it: &RangeInclusive<u16>| match it.start() == it.end() {
        true => it.start().to_string(),
        false => format!("{}-{}", it.start(), it.end()),
    };
    let statuses = statuses.iter().map(range);
    let no_endpoint = no_endpoint.then(|| "a Service without endpoints".to_owned());
    let cases: Vec<_> = statuses.chain(no_endpoint).collect();
    let source = match source {
        ErrorPageSource::Content(content) => format!("{content:?}"),
        ErrorPageSource::Backend(key) => format!("the answer of {key}"),
    };
    let status = response_status.map(|it| format!(" with {it}")).unwrap_or_default();
    format!("error page for {}: {source}{status}", cases.join(", "))
}

fn redirection(redirect: &RedirectAction) -> String {
    let RedirectAction { status, scheme, hostname, port, path } = redirect;
    let parts = [
        scheme.map(|scheme| format!("scheme {}", scheme.text())),
        hostname.as_ref().map(|host| format!("host {host}")),
        port.map(|port| format!("port {port}")),
        path.as_ref().map(path_rewrite),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("redirect with {status} to {}", parts.join(", "))
}

fn path_rewrite(rewrite: &PathRewrite) -> String {
    match rewrite {
        PathRewrite::Full(path) => format!("path {path}"),
        PathRewrite::Prefix { replacement, .. } if replacement.is_empty() => {
            "the path without the prefix".to_owned()
        }
        PathRewrite::Prefix { replacement, .. } => format!("path prefix {replacement}"),
    }
}

fn edits(of: &str, edits: &HeaderEdits) -> Vec<String> {
    let remove = edits.remove.iter().map(|name| format!("{of} header: remove {name}"));
    let value = |name: &str, value: &str| shown_value(name, value).to_owned();
    let set = edits.set.iter().map(|it| {
        format!("{of} header: set {}: {}", it.name, value(it.name.as_ref(), it.value.as_ref()))
    });
    let add = edits.add.iter().map(|it| {
        format!("{of} header: add {}: {}", it.name, value(it.name.as_ref(), it.value.as_ref()))
    });
    remove.chain(set).chain(add).collect()
}

fn mirror_line(mirror: &MirrorPolicy, snapshot: &Snapshot) -> String {
    let share = mirror.share;
    let key = &snapshot.backends[mirror.backend].key;
    format!("mirror to {key}: {} of {} requests", share.numerator, share.denominator)
}
