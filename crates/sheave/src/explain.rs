//! `sheave explain`: how a request would be routed, and why; from files, without a running Sheave. With `--scaling`: how a
//! Service will be scaled.

/// The request, parsed from the command line.
mod request;
/// Descriptions of matches and filters.
mod describe;
/// The settings of a backend, each with its source.
mod policy;
/// Addresses of Services.
mod service;
/// The scaling of a Service.
mod scaling;

use std::path::PathBuf;

use gateway::matching::{HostPattern, MatchResult, RouteExplanation, RouteTable, RuleVerdict};
use gateway::snapshot::{
    Backend, EndpointSource, Listener, ListenerProtocol, Rule, RuleTarget, Snapshot,
};
use gateway::{ApiObject, TranslationResult, TransparentSettings};

use serde::Serialize;

use crate::check::print;
use crate::configuration::{self, CheckedConfiguration};
use crate::failure::Failure;
use crate::files;
use crate::flags::ExplainFlags;
use crate::report::AppliedObjects;
use request::ExplainRequest;
pub(crate) use scaling::ServiceName;

/// Maximum number of listed rules that do not serve the request; the nearest come first.
const MAX_OTHER_RULES: usize = 20;

/// Width of the labels in front of the lines.
const LABEL_WIDTH: usize = 11;

/// Prints how the request would be routed, or how the Service will be scaled.
pub(crate) fn run(flags: &ExplainFlags) -> Result<(), Failure> {
    if let Some(service) = &flags.scaling {
        return scaling::run(service, flags);
    }
    let (Some(path), Some(method), Some(url)) = (&flags.path, &flags.method, &flags.url) else {
        return Err(Failure::input("PATH, METHOD and URL are required without --scaling"));
    };
    let request = ExplainRequest::parse(method, url, &flags.header).map_err(Failure::input)?;
    let paths: &[PathBuf] = std::slice::from_ref(path);
    let mut contents = files::read(paths);
    contents.settings.transparent = Some(any_node());
    let checked = configuration::check(contents).map_err(|problems| {
        let mut lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        lines.push("sheave: a configuration with these errors would be rejected".to_owned());
        Failure::Input(lines)
    })?;
    let CheckedConfiguration { objects, translation, .. } = &checked;
    print(&explain(&request, objects, translation).map_err(Failure::input)?)
}

/// A request to explain by the configuration in force.
pub(crate) struct ExplainQuestion(ExplainRequest);

/// A line of an explanation.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ExplainedLine {
    /// Subject of the line; empty: that of the line before.
    label: String,
    text: String,
}

impl ExplainQuestion {
    /// Reads the parameters of a query, or returns the error: one sentence that names the valid form.
    pub(crate) fn parse(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let (mut method, mut url, mut headers) = ("GET".to_owned(), String::new(), Vec::new());
        for (key, value) in pairs {
            match key.as_str() {
                "method" => method = value,
                "url" => url = value,
                "header" => headers.push(value),
                _ => {
                    return Err(format!(
                        "unknown parameter {key:?}: there are method, url, header"
                    ));
                }
            }
        }
        if url.is_empty() {
            return Err("url is missing: write one such as http://shop.example/cart".to_owned());
        }
        Ok(Self(ExplainRequest::parse(&method, &url, &headers)?))
    }

    /// Translates the objects in force, and explains the request by the result.
    pub(crate) fn answer(&self, applied: &AppliedObjects) -> Result<Vec<ExplainedLine>, String> {
        let AppliedObjects { objects, settings } = applied;
        let translation = gateway::translate(objects, settings);
        let lines = explain(&self.0, objects, &translation)?;
        Ok(lines.iter().map(|line| ExplainedLine::of(line)).collect())
    }
}

impl ExplainedLine {
    fn of(line: &str) -> Self {
        let (label, text) = line.split_at_checked(LABEL_WIDTH).unwrap_or(("", line));
        Self { label: label.trim_end().to_owned(), text: text.to_owned() }
    }
}

/// Returns the settings of a node of no name, which takes the addresses of Services of every IP version.
fn any_node() -> TransparentSettings {
    TransparentSettings { ipv4: true, ipv6: true, ..TransparentSettings::default() }
}

/// Returns the lines to print, or the reason why there is nothing to explain.
fn explain(
    request: &ExplainRequest,
    objects: &[ApiObject],
    translation: &TranslationResult,
) -> Result<Vec<String>, String> {
    let listeners = request.listeners(&translation.snapshot.listeners);
    let connections = request.connections(&translation.snapshot.listeners);
    if listeners.is_empty() && connections.is_empty() {
        return Err(no_listener_message(request, &translation.snapshot));
    }
    let mut lines = Vec::new();
    for (listener, rule) in connections {
        let mut page = ExplanationWriter { objects, translation, lines: &mut lines };
        page.address(listener);
        page.put("protocol", "none is read: each connection is balanced as a whole");
        page.targets(rule);
    }
    for (listener, routes) in listeners {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let page = ExplanationWriter { objects, translation, lines: &mut lines };
        page.listener(request, listener, routes);
    }
    Ok(lines)
}

fn no_listener_message(request: &ExplainRequest, snapshot: &Snapshot) -> String {
    let is_http = |it: &&Listener| match it.protocol {
        ListenerProtocol::Http(_) | ListenerProtocol::Detected { .. } => true,
        ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => false,
    };
    let http = snapshot.listeners.iter().filter(is_http);
    let addresses: Vec<String> = http.map(|it| format!("{} ({})", it.address, it.name)).collect();
    let port = request.port;
    match addresses.as_slice() {
        [] => "no listener of this configuration accepts requests".to_owned(),
        some => {
            format!("no listener accepts requests on port {port}: there are {}", some.join(", "))
        }
    }
}

/// Writer of the explanation, line by line.
struct ExplanationWriter<'p> {
    objects: &'p [ApiObject],
    translation: &'p TranslationResult,
    lines: &'p mut Vec<String>,
}

impl ExplanationWriter<'_> {
    fn listener(mut self, request: &ExplainRequest, listener: &Listener, routes: &RouteTable) {
        self.address(listener);
        let (lines, goes_on) = describe::tls(listener.tls.as_deref(), request);
        self.list("tls", lines);
        if !goes_on {
            return;
        }
        if let Some(http3) = listener.http3 {
            self.put("http3", describe::http3(http3, listener.address.port()));
        }
        let mut request = request.request.clone();
        match proxy::normal_path(&request.path, listener.client.path) {
            Ok(None) => {}
            Ok(Some(path)) => {
                self.put("path", format!("{path}, after normalisation"));
                request.path = path;
            }
            Err(reason) => {
                self.put("path", format!("{reason}: the response is 400"));
                return;
            }
        }
        let RouteExplanation { listener: hosts, verdicts } = routes.explain(&request);
        match hosts {
            None => self.put("", "no listener on this address matches this host"),
            Some(HostPattern::Any) => {}
            Some(hosts) => self.put("", format!("for {}", describe::hosts(hosts))),
        }
        match verdicts.split_first() {
            Some((chosen, others)) if chosen.result == MatchResult::Chosen => {
                self.rule(chosen);
                self.other_rules(others);
            }
            Some(_) | None => {
                self.put("rule", "none: the response is 404 (no_route)");
                self.other_rules(&verdicts);
            }
        }
    }

    fn address(&mut self, listener: &Listener) {
        self.put("listener", format!("{} on {}", listener.name, listener.address));
        self.list("service", service::interception(listener));
        for namespace in listener.consumer_routes.keys() {
            self.put("", format!("clients in namespace {namespace} have routes of their own"));
        }
    }

    fn rule(&mut self, verdict: &RuleVerdict<'_>) {
        let rule = verdict.rule;
        self.put("rule", &rule.name);
        self.put("", describe::conditions(verdict));
        if let Some(filters) = &rule.filters {
            let lines = describe::filters(filters, &self.translation.snapshot);
            self.list("filters", lines);
        }
        self.list("limits", describe::limits(rule));
        self.targets(rule);
    }

    fn targets(&mut self, rule: &Rule) {
        let total: u64 = rule.targets.iter().map(|target| u64::from(target.weight)).sum();
        for target in &rule.targets {
            let weight = target.weight;
            let share = f64::from(weight) * 100.0 / total.max(1) as f64;
            let share = format!("weight {weight} of {total}: {share:.0} % of the rule's requests");
            match target.target {
                RuleTarget::Unresolved => {
                    self.put("backend", "none: the response is 500 (unresolved_backend)");
                    self.put("", share);
                }
                RuleTarget::Backend(index) => {
                    let backend = &self.translation.snapshot.backends[index];
                    self.put("backend", &backend.key);
                    self.put("", share);
                    if let Some(filters) = &target.filters {
                        let lines = describe::filters(filters, &self.translation.snapshot);
                        self.list("filters", lines);
                    }
                    self.backend(backend);
                }
            }
        }
    }

    fn backend(&mut self, backend: &Backend) {
        match &backend.source {
            EndpointSource::Dns { host, port, .. } => {
                self.put("endpoints", format!("the addresses of {host} in DNS, port {port}"));
            }
            EndpointSource::Slices if backend.endpoints.is_empty() => {
                self.put("endpoints", "none: the response is 503 (no_endpoint)");
            }
            EndpointSource::Slices => {
                self.list("endpoints", describe::endpoints(&backend.endpoints))
            }
        }
        let policy = policy::policy_name(self.objects, &self.translation.statuses, &backend.key);
        let affinity = policy::affinity_source(self.objects, policy.as_deref(), &backend.key);
        let lines = policy::lines(&backend.settings, policy.as_deref(), &affinity);
        self.list("policy", lines);
    }

    fn other_rules(&mut self, others: &[RuleVerdict<'_>]) {
        let mut lines: Vec<String> =
            others.iter().take(MAX_OTHER_RULES).map(describe::rejected_rule).collect();
        if others.len() > MAX_OTHER_RULES {
            lines.push(format!("and {} more", others.len() - MAX_OTHER_RULES));
        }
        self.list("not", lines);
    }

    /// Puts the label in front of the first line of the list.
    fn list(&mut self, head: &str, lines: Vec<String>) {
        for (index, line) in lines.into_iter().enumerate() {
            self.put(if index == 0 { head } else { "" }, line);
        }
    }

    fn put(&mut self, head: &str, text: impl std::fmt::Display) {
        self.lines.push(format!("{head:<LABEL_WIDTH$}{text}"));
    }
}

#[cfg(test)]
mod tests;
