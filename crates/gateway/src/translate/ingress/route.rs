//! HTTPRoutes from Ingress rules: one for each host of an Ingress.

use std::collections::BTreeSet;

use super::super::index::ObjectIndex;
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, CanaryCondition, FIELD, SnippetHeaders};
use super::backend::backend_ref;
use super::canary::ClassCanaries;
use super::class::AcceptedIngressClass;
use super::class_hosts::{ClassHosts, HostTreatment, IndexedRule, pattern, root_backend};
use super::class_listeners::ClassListeners;
use super::path::translate_path;
use super::source::IngressField;
use super::{IngressExpansion, derived, filter, request_policy};
use crate::matching::HostPattern;
use crate::objects::{
    ApiObject, BackendRef, Hostname, HttpFilter, HttpHeader, HttpRouteMatch, HttpRouteRule,
    HttpRouteSpec, IngressBackend, IngressPath, IngressPathType, IngressSpec, ParentRef, PathMatch,
    PathMatchType, PathModifier, PathModifierType, RedirectScheme, RequestRedirect,
    StreamBackendRef, StreamRouteRule, TlsRouteSpec, TypedObject,
};

/// The parts of a class that its routes depend on.
pub(super) struct ClassContext<'a> {
    pub(super) index: &'a ObjectIndex<'a>,
    pub(super) class: &'a AcceptedIngressClass<'a>,
    pub(super) hosts: &'a ClassHosts<'a>,
    pub(super) listeners: &'a ClassListeners<'a>,
    pub(super) canaries: &'a ClassCanaries<'a>,
}

/// Adds the routes of a class.
pub(super) fn add(
    context: &ClassContext<'_>,
    settings: &[&AnnotationSettings],
    expansion: &mut IngressExpansion,
    report: &mut TranslationReport,
) {
    let hosts_with_root_path = hosts_with_root_path(context);
    let ingresses = context.class.ingresses.iter().zip(&context.hosts.of_ingresses);
    for ((ingress, hosts), settings) in ingresses.zip(settings) {
        let mut builder = IngressRouteBuilder {
            index: context.index,
            ingress,
            annotations: settings,
            class_listeners: context.listeners,
            hosts_with_root_path: &hosts_with_root_path,
            canaries: context.canaries,
            routes: Vec::new(),
            report: &mut *report,
        };
        for (host, treatment) in hosts {
            match treatment {
                HostTreatment::Rules(rules) => builder.host(host, rules, expansion),
                HostTreatment::Redirect(to) => builder.host_redirect(host, to, expansion),
            }
        }
        request_policy::add(context.listeners, ingress, settings, builder.routes, expansion);
    }
}

/// Returns the hosts for which some rule matches all paths, so that no default backend applies.
fn hosts_with_root_path(context: &ClassContext<'_>) -> BTreeSet<HostPattern> {
    let rules = context.class.ingresses.iter().flat_map(|it| &it.spec.rules);
    let is_root = |path: &IngressPath| {
        path.path_type != IngressPathType::Exact
            && path.path.as_deref().is_none_or(|it| ["", "/"].contains(&it))
    };
    let rules = rules.filter(|rule| rule.http.iter().flat_map(|http| &http.paths).any(is_root));
    let mut hosts: BTreeSet<_> = rules.map(|rule| pattern(rule.host.as_ref())).collect();
    let aliases = context.hosts.aliases.iter().filter(|(_, host)| hosts.contains(*host));
    let aliases: Vec<_> = aliases.map(|(alias, _)| alias.clone()).collect();
    hosts.extend(aliases);
    hosts
}

/// Builds the routes of an Ingress.
struct IngressRouteBuilder<'a, 'r> {
    index: &'a ObjectIndex<'a>,
    ingress: &'a TypedObject<IngressSpec>,
    annotations: &'a AnnotationSettings,
    class_listeners: &'a ClassListeners<'a>,
    hosts_with_root_path: &'a BTreeSet<HostPattern>,
    canaries: &'a ClassCanaries<'a>,
    /// Hosts and names of the routes that forward requests.
    routes: Vec<(HostPattern, String)>,
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
        rules: &[IndexedRule<'_>],
        expansion: &mut IngressExpansion,
    ) {
        self.passthrough(host, rules, expansion);
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
            self.route(&format!("{host}:tls"), host, http_parents, rules, expansion);
        } else {
            parents.extend(http_parents);
        }
        if !parents.is_empty() {
            let name = self.route(&host.to_string(), host, parents, rules, expansion);
            self.routes.push((host.clone(), name));
        }
    }

    /// Adds a route of the TLS connections of a host that are forwarded to the backend of the path `/`.
    fn passthrough(
        &self,
        host: &HostPattern,
        rules: &[IndexedRule<'_>],
        expansion: &mut IngressExpansion,
    ) {
        let parent = self.class_listeners.passthrough_parent(host, self.ingress);
        let Some((parent, (backend, field))) = parent.zip(root_backend(rules)) else { return };
        // An error of the backend is reported for its path.
        let backend = backend_ref(self.index, self.ingress, backend, "").ok();
        let backend_refs = backend.map(|BackendRef { name, port, weight, .. }| StreamBackendRef {
            group: None,
            kind: None,
            namespace: None,
            name,
            port,
            weight,
        });
        let rule = StreamRouteRule { name: None, backend_refs: Vec::from_iter(backend_refs) };
        let metadata = &self.ingress.metadata;
        let name = format!("ingress:{}:{host}", metadata.name);
        let spec = TlsRouteSpec {
            parent_refs: vec![parent],
            hostnames: vec![Hostname(host.clone())],
            rules: vec![rule],
            ..Default::default()
        };
        let resource = derived(self.ingress, &metadata.namespace, &name, spec);
        let places = vec![IngressField::of(self.ingress, field)];
        expansion.sources.add("TLSRoute", &resource, places);
        expansion.objects.push(ApiObject::TlsRoute(resource.into()));
    }

    /// Adds a route that redirects a host to another one. 308 is `http-redirect-code` of ingress-nginx if it is not
    /// set.
    fn host_redirect(&self, host: &HostPattern, to: &str, expansion: &mut IngressExpansion) {
        let redirect = RequestRedirect {
            hostname: Some(to.to_owned()),
            status_code: 308,
            ..Default::default()
        };
        let matches = vec![HttpRouteMatch { path: any_path(), ..Default::default() }];
        let filters = vec![filter::redirect(redirect)];
        let rule = HttpRouteRule { matches, filters, ..Default::default() };
        let places = vec![IngressField::of(self.ingress, FIELD)];
        let mut parents = self.class_listeners.https_parents(host);
        parents.extend(self.class_listeners.http_parents(host));
        let rules = RulesWithSources { rules: vec![rule], places };
        self.route(&host.to_string(), host, parents, rules, expansion);
    }

    /// Adds a route, and returns its name.
    fn route(
        &self,
        suffix: &str,
        host: &HostPattern,
        parent_refs: Vec<ParentRef>,
        RulesWithSources { rules, places }: RulesWithSources,
        expansion: &mut IngressExpansion,
    ) -> String {
        let hostnames =
            if *host == HostPattern::Any { vec![] } else { vec![Hostname(host.clone())] };
        let metadata = &self.ingress.metadata;
        // No user's route can have this name.
        let name = format!("ingress:{}:{suffix}", metadata.name);
        let spec = HttpRouteSpec { parent_refs, hostnames, rules, ..Default::default() };
        let resource = derived(self.ingress, &metadata.namespace, &name, spec);
        expansion.sources.add("HTTPRoute", &resource, places);
        expansion.objects.push(ApiObject::HttpRoute(resource.into()));
        name
    }

    /// Returns the rules of a host, with their backends.
    fn rules(&mut self, host: &HostPattern, of_host: &[IndexedRule<'_>]) -> RulesWithSources {
        let mut rules = RulesWithSources::default();
        let ingress = self.ingress;
        for (n, rule) in of_host {
            for (m, path) in rule.http.iter().flat_map(|http| &http.paths).enumerate() {
                let field = format!("spec.rules[{n}].http.paths[{m}]");
                let Some(made) = self.rule(path, &field) else { continue };
                let place = IngressField::of(ingress, field);
                for made in self.with_canary(pattern(rule.host.as_ref()), path, made) {
                    rules.rules.push(made);
                    rules.places.push(place.clone());
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

    /// Returns the rule of a path, after those of the requests that its canary decides on by a header field or cookie.
    /// Of two such rules the first has precedence.
    fn with_canary(
        &self,
        host: HostPattern,
        path: &IngressPath,
        mut rule: HttpRouteRule,
    ) -> Vec<HttpRouteRule> {
        let canary = self.canaries.find(self.ingress, host, path);
        // A rule without a backend answers all requests itself.
        let Some(canary) = canary.filter(|_| !rule.backend_refs.is_empty()) else {
            return vec![rule];
        };
        let conditional = |condition: CanaryCondition| {
            let mut rule = rule.clone();
            rule.matches[0].headers.push(condition.header);
            if condition.is_canary {
                rule.backend_refs = vec![canary.backend.clone()];
            }
            rule
        };
        let mut rules: Vec<_> = canary.settings.conditions().into_iter().map(conditional).collect();
        let (main, share) = canary.settings.weights();
        if share > 0 {
            rule.backend_refs[0].weight = main;
            rule.backend_refs.push(BackendRef { weight: share, ..canary.backend.clone() });
        }
        rules.push(rule);
        rules
    }

    /// Returns a rule that forwards to a backend, or redirects if the Ingress redirects all requests. Without either,
    /// the rule answers 500.
    fn forwarding_rule(
        &self,
        path: PathMatch,
        rewrite: Option<PathModifier>,
        backend: Option<BackendRef>,
    ) -> HttpRouteRule {
        let matches = vec![HttpRouteMatch { path, ..Default::default() }];
        if self.annotations.denies_all {
            return HttpRouteRule { matches, ..Default::default() };
        }
        if let Some(redirect) = self.annotations.redirects.all.clone() {
            return HttpRouteRule {
                matches,
                filters: vec![filter::redirect(redirect)],
                ..Default::default()
            };
        }
        let (filters, backend_refs) = (self.filters(rewrite), Vec::from_iter(backend));
        HttpRouteRule { matches, filters, backend_refs, ..Default::default() }
    }

    /// Returns the filters of requests that are forwarded.
    fn filters(&self, path: Option<PathModifier>) -> Vec<HttpFilter> {
        let AnnotationSettings { rewrite, headers, cors, .. } = self.annotations;
        let SnippetHeaders { mut request, response } = headers.clone();
        let prefix = rewrite.forwarded_prefix.clone().filter(|_| path.is_some());
        let name = "X-Forwarded-Prefix".to_owned();
        request.set.extend(prefix.map(|value| HttpHeader { name, value }));
        let filters = [
            filter::rewrite(rewrite.host.clone(), path),
            filter::request_headers(request),
            filter::response_headers(response),
            cors.clone().map(filter::cors),
            rewrite.mirror.as_ref().map(filter::mirror),
        ];
        filters.into_iter().flatten().collect()
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
            filters: vec![filter::redirect(redirect)],
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
            filters: vec![filter::redirect(redirect.clone())],
            ..Default::default()
        };
        RulesWithSources {
            rules: rules.rules.iter().map(rule).collect(),
            places: rules.places.clone(),
        }
    }

    /// Returns a reference to a Service port, if the backend names one and it exists.
    fn backend(&mut self, backend: &IngressBackend, field: &str) -> Option<BackendRef> {
        backend_ref(self.index, self.ingress, backend, field)
            .map_err(|(field, message)| self.problem(&field, message))
            .ok()
    }
}

fn any_path() -> PathMatch {
    PathMatch::default()
}
