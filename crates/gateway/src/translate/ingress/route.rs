//! HTTPRoutes from Ingress rules: one for each host of an Ingress.

use std::collections::BTreeSet;

use super::super::index::ObjectIndex;
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, FIELD};
use super::class::AcceptedIngressClass;
use super::class_listeners::{ClassListeners, hosts, pattern, text};
use super::path::{self, translate_path};
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::matching::HostPattern;
use crate::objects::{
    ApiObject, BackendRef, Hostname, HttpFilter, HttpRouteMatch, HttpRouteRule, HttpRouteSpec,
    IngressBackend, IngressPath, IngressPathType, IngressRule, IngressSpec, ParentRef, PathMatch,
    PathMatchType, PathModifier, PathModifierType, RedirectScheme, RequestRedirect, TypedObject,
};

/// Adds the routes of a class.
pub(super) fn add(
    index: &ObjectIndex<'_>,
    class: &AcceptedIngressClass<'_>,
    settings: &[AnnotationSettings],
    listeners: &ClassListeners<'_>,
    expansion: &mut IngressExpansion,
    report: &mut TranslationReport,
) {
    let hosts_with_root_path = hosts_with_root_path(class);
    for (ingress, settings) in class.ingresses.iter().zip(settings) {
        let mut builder = IngressRouteBuilder {
            index,
            ingress,
            annotations: settings,
            class_listeners: listeners,
            hosts_with_root_path: &hosts_with_root_path,
            report: &mut *report,
        };
        hosts(&ingress.spec).iter().for_each(|(host, rules)| builder.host(host, rules, expansion));
    }
}

/// Returns the hosts for which some rule matches all paths, so that no default backend applies.
fn hosts_with_root_path(class: &AcceptedIngressClass<'_>) -> BTreeSet<HostPattern> {
    let rules = class.ingresses.iter().flat_map(|it| &it.spec.rules);
    let is_root = |path: &IngressPath| {
        path.path_type != IngressPathType::Exact
            && path.path.as_deref().is_none_or(|it| ["", "/"].contains(&it))
    };
    let rules = rules.filter(|rule| rule.http.iter().flat_map(|http| &http.paths).any(is_root));
    rules.map(|rule| pattern(rule.host.as_ref())).collect()
}

/// Builds the routes of an Ingress.
struct IngressRouteBuilder<'a, 'r> {
    index: &'a ObjectIndex<'a>,
    ingress: &'a TypedObject<IngressSpec>,
    annotations: &'a AnnotationSettings,
    class_listeners: &'a ClassListeners<'a>,
    hosts_with_root_path: &'a BTreeSet<HostPattern>,
    report: &'r mut TranslationReport,
}

/// Rules, and the Ingress field that each comes from.
#[derive(Default)]
struct RulesWithSources {
    rules: Vec<HttpRouteRule>,
    places: Vec<IngressField>,
}

impl IngressRouteBuilder<'_, '_> {
    fn problem(&mut self, field: &str, message: impl Into<String>) {
        self.report.problem("Ingress", self.ingress, field, message);
    }

    /// Adds the routes of a host.
    fn host(
        &mut self,
        host: &HostPattern,
        rules: &[(usize, &IngressRule)],
        expansion: &mut IngressExpansion,
    ) {
        let rules = self.rules(host, rules);
        if rules.rules.is_empty() {
            return;
        }
        let settings = self.annotations;
        let has_certificate = self.class_listeners.has_certificate(host);
        let wants_tls = settings.redirects.forces_tls
            || has_certificate && settings.redirects.tls.unwrap_or(true);
        let (mut parents, http_parents) =
            (self.class_listeners.https_parents(host), self.class_listeners.http_parents(host));
        // If all requests are redirected anyway, there is no redirect to HTTPS first.
        if wants_tls && settings.redirects.all.is_none() && !settings.denies_all {
            let rules = self.tls_redirect_rules(&rules);
            self.route(&format!("{}:tls", text(host)), host, http_parents, rules, expansion);
        } else {
            parents.extend(http_parents);
        }
        if !parents.is_empty() {
            self.route(&text(host), host, parents, rules, expansion);
        }
    }

    fn route(
        &self,
        suffix: &str,
        host: &HostPattern,
        parent_refs: Vec<ParentRef>,
        RulesWithSources { rules, places }: RulesWithSources,
        expansion: &mut IngressExpansion,
    ) {
        let hostnames =
            if *host == HostPattern::Any { vec![] } else { vec![Hostname(host.clone())] };
        let metadata = &self.ingress.metadata;
        // No user's route can have this name.
        let name = format!("ingress:{}:{suffix}", metadata.name);
        let spec = HttpRouteSpec { parent_refs, hostnames, rules, ..Default::default() };
        let resource = derived(self.ingress, &metadata.namespace, &name, spec);
        expansion.sources.add("HTTPRoute", &resource, places);
        expansion.objects.push(ApiObject::HttpRoute(resource.into()));
    }

    /// Returns the rules of a host, with their backends.
    fn rules(&mut self, host: &HostPattern, of_host: &[(usize, &IngressRule)]) -> RulesWithSources {
        let mut rules = RulesWithSources::default();
        let ingress = self.ingress;
        for (n, rule) in of_host {
            for (m, path) in rule.http.iter().flat_map(|http| &http.paths).enumerate() {
                let field = format!("spec.rules[{n}].http.paths[{m}]");
                if let Some(rule) = self.rule(path, &field) {
                    rules.rules.push(rule);
                    rules.places.push(IngressField::of(ingress, field));
                }
            }
        }
        if let Some(root) = self.app_root() {
            rules.rules.push(root);
            rules.places.push(IngressField::of(ingress, FIELD));
        }
        if let Some(backend) = &ingress.spec.default_backend
            && !self.hosts_with_root_path.contains(host)
        {
            let backend = self.backend(backend, "spec.defaultBackend");
            rules.rules.push(self.forwarding_rule(any_path(), None, backend));
            rules.places.push(IngressField::of(ingress, "spec.defaultBackend"));
        }
        rules
    }

    fn rule(&mut self, path: &IngressPath, field: &str) -> Option<HttpRouteRule> {
        let backend = self.backend(&path.backend, &format!("{field}.backend"));
        match translate_path(path, &self.annotations.rewrite) {
            Ok(translated) => {
                Some(self.forwarding_rule(translated.path, translated.rewrite, backend))
            }
            Err(message) => {
                self.problem(&format!("{field}.path"), message);
                None
            }
        }
    }

    /// Returns a rule that forwards to a backend, or redirects if the Ingress redirects all requests. Without either,
    /// the rule answers 500.
    fn forwarding_rule(
        &self,
        path: PathMatch,
        rewrite: Option<HttpFilter>,
        backend: Option<BackendRef>,
    ) -> HttpRouteRule {
        let matches = vec![HttpRouteMatch { path, ..Default::default() }];
        if self.annotations.denies_all {
            return HttpRouteRule { matches, ..Default::default() };
        }
        if let Some(redirect) = self.annotations.redirects.all.clone() {
            return HttpRouteRule {
                matches,
                filters: vec![path::redirect_filter(redirect)],
                ..Default::default()
            };
        }
        let (filters, backend_refs) = (Vec::from_iter(rewrite), Vec::from_iter(backend));
        HttpRouteRule { matches, filters, backend_refs, ..Default::default() }
    }

    /// Returns a rule that redirects requests for `/` to the root of the application.
    fn app_root(&self) -> Option<HttpRouteRule> {
        let root = self.annotations.redirects.app_root.clone()?;
        let redirect = RequestRedirect {
            path: Some(PathModifier {
                kind: PathModifierType::ReplaceFullPath,
                replace_full_path: Some(root),
                replace_prefix_match: None,
            }),
            ..Default::default()
        };
        let path = PathMatch { kind: PathMatchType::Exact, value: "/".to_owned() };
        let matches = vec![HttpRouteMatch { path, ..Default::default() }];
        Some(HttpRouteRule {
            matches,
            filters: vec![path::redirect_filter(redirect)],
            ..Default::default()
        })
    }

    /// Returns rules that redirect the same requests to HTTPS.
    fn tls_redirect_rules(&self, rules: &RulesWithSources) -> RulesWithSources {
        let port = self.class_listeners.https_port;
        let redirect = RequestRedirect {
            scheme: Some(RedirectScheme::Https),
            port: (![0, 443].contains(&port)).then_some(port),
            status_code: self.annotations.redirects.tls_code,
            ..Default::default()
        };
        let rule = |rule: &HttpRouteRule| HttpRouteRule {
            matches: rule.matches.clone(),
            filters: vec![path::redirect_filter(redirect.clone())],
            ..Default::default()
        };
        RulesWithSources {
            rules: rules.rules.iter().map(rule).collect(),
            places: rules.places.clone(),
        }
    }

    /// Returns a reference to a Service port, if the backend names one and it exists.
    fn backend(&mut self, backend: &IngressBackend, field: &str) -> Option<BackendRef> {
        if backend.resource.is_some() {
            self.problem(&format!("{field}.resource"), "is not supported, only a Service");
            return None;
        }
        let Some(service) = &backend.service else {
            self.problem(&format!("{field}.service"), "is missing");
            return None;
        };
        let port = match (&service.port.name, service.port.number) {
            (None, Some(number)) => Ok(number),
            (Some(name), None) => self.port(&service.name, name),
            (None, None) | (Some(_), Some(_)) => {
                Err(("port", "must have either a name or a number".to_owned()))
            }
        };
        match port {
            Ok(port) => Some(reference(&service.name, port)),
            Err((part, message)) => {
                self.problem(&format!("{field}.service.{part}"), message);
                None
            }
        }
    }

    fn port(&self, service: &str, name: &str) -> Result<u16, (&'static str, String)> {
        let namespace = &*self.ingress.metadata.namespace;
        let Some(object) = self.index.services.get(&(namespace, service)) else {
            return Err(("name", format!("there is no Service {namespace}/{service}")));
        };
        let port = object.spec.ports.iter().find(|port| port.name == name).map(|port| port.port);
        port.ok_or_else(|| {
            ("port.name", format!("Service {namespace}/{service} has no port {name}"))
        })
    }
}

fn any_path() -> PathMatch {
    PathMatch::default()
}

fn reference(service: &str, port: u16) -> BackendRef {
    BackendRef {
        group: None,
        kind: None,
        namespace: None,
        name: service.to_owned(),
        port: Some(port),
        weight: 1,
        filters: Vec::new(),
    }
}
