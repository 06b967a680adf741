//! Which requests go where: an HTTPRoute for each host of an Ingress.

use std::collections::BTreeSet;

use super::super::Report;
use super::super::index::Index;
use super::annotation::{FIELD, Wishes};
use super::class::OurClass;
use super::door::{Doors, hosts, pattern, text};
use super::path::{self, meaning};
use super::source::Place;
use super::{Expansion, derived};
use crate::matching::HostPattern;
use crate::objects::{
    BackendRef, Hostname, HttpFilter, HttpRouteMatch, HttpRouteRule, HttpRouteSpec, IngressBackend,
    IngressPath, IngressPathType, IngressRule, IngressSpec, Object, ParentRef, PathMatch,
    PathMatchType, PathModifier, PathModifierType, RedirectScheme, RequestRedirect, Resource,
};

/// Adds the routes of a class.
pub(super) fn add(
    index: &Index<'_>,
    class: &OurClass<'_>,
    wishes: &[Wishes],
    doors: &Doors<'_>,
    made: &mut Expansion,
    report: &mut Report,
) {
    let rooted = rooted(class);
    for (ingress, wishes) in class.ingresses.iter().zip(wishes) {
        let mut making =
            Making { index, ingress, wishes, doors, rooted: &rooted, report: &mut *report };
        hosts(&ingress.spec).iter().for_each(|(host, rules)| making.host(host, rules, made));
    }
}

/// Hosts of which some rule has all paths, so that no default backend gets any.
fn rooted(class: &OurClass<'_>) -> BTreeSet<HostPattern> {
    let rules = class.ingresses.iter().flat_map(|it| &it.spec.rules);
    let is_root = |path: &IngressPath| {
        path.path_type != IngressPathType::Exact
            && path.path.as_deref().is_none_or(|it| ["", "/"].contains(&it))
    };
    let rules = rules.filter(|rule| rule.http.iter().flat_map(|http| &http.paths).any(is_root));
    rules.map(|rule| pattern(rule.host.as_ref())).collect()
}

/// The routes of an Ingress in the making.
struct Making<'a, 'r> {
    index: &'a Index<'a>,
    ingress: &'a Resource<IngressSpec>,
    wishes: &'a Wishes,
    doors: &'a Doors<'a>,
    rooted: &'a BTreeSet<HostPattern>,
    report: &'r mut Report,
}

/// Rules, and where each comes from.
#[derive(Default)]
struct Rules {
    rules: Vec<HttpRouteRule>,
    places: Vec<Place>,
}

impl Making<'_, '_> {
    fn problem(&mut self, field: &str, message: impl Into<String>) {
        self.report.problem("Ingress", self.ingress, field, message);
    }

    /// Adds what becomes of requests for a host.
    fn host(&mut self, host: &HostPattern, rules: &[(usize, &IngressRule)], made: &mut Expansion) {
        let rules = self.rules(host, rules);
        if rules.rules.is_empty() {
            return;
        }
        let wishes = self.wishes;
        let has_certificate = self.doors.has_certificate(host);
        let wants_tls = wishes.forces_tls || has_certificate && wishes.tls_redirect.unwrap_or(true);
        let (mut parents, plain) = (self.doors.encrypted(host), self.doors.plain(host));
        // Who is sent elsewhere anyway goes there at once.
        if wants_tls && wishes.redirect.is_none() && !wishes.is_closed {
            let rules = self.to_tls(&rules);
            self.route(&format!("{}:tls", text(host)), host, plain, rules, made);
        } else {
            parents.extend(plain);
        }
        if !parents.is_empty() {
            self.route(&text(host), host, parents, rules, made);
        }
    }

    fn route(
        &self,
        suffix: &str,
        host: &HostPattern,
        parent_refs: Vec<ParentRef>,
        Rules { rules, places }: Rules,
        made: &mut Expansion,
    ) {
        let hostnames =
            if *host == HostPattern::Any { vec![] } else { vec![Hostname(host.clone())] };
        let metadata = &self.ingress.metadata;
        // As nobody else can call a route.
        let name = format!("ingress:{}:{suffix}", metadata.name);
        let spec = HttpRouteSpec { parent_refs, hostnames, rules, ..Default::default() };
        let resource = derived(self.ingress, &metadata.namespace, &name, spec);
        made.sources.add("HTTPRoute", &resource, places);
        made.objects.push(Object::HttpRoute(resource.into()));
    }

    /// The rules of a host, with their backends.
    fn rules(&mut self, host: &HostPattern, of_host: &[(usize, &IngressRule)]) -> Rules {
        let mut rules = Rules::default();
        let ingress = self.ingress;
        for (n, rule) in of_host {
            for (m, path) in rule.http.iter().flat_map(|http| &http.paths).enumerate() {
                let field = format!("spec.rules[{n}].http.paths[{m}]");
                if let Some(rule) = self.rule(path, &field) {
                    rules.rules.push(rule);
                    rules.places.push(Place::of(ingress, field));
                }
            }
        }
        if let Some(root) = self.app_root() {
            rules.rules.push(root);
            rules.places.push(Place::of(ingress, FIELD));
        }
        if let Some(backend) = &ingress.spec.default_backend
            && !self.rooted.contains(host)
        {
            let backend = self.backend(backend, "spec.defaultBackend");
            rules.rules.push(self.leading(everything(), None, backend));
            rules.places.push(Place::of(ingress, "spec.defaultBackend"));
        }
        rules
    }

    fn rule(&mut self, path: &IngressPath, field: &str) -> Option<HttpRouteRule> {
        let backend = self.backend(&path.backend, &format!("{field}.backend"));
        match meaning(path, self.wishes) {
            Ok(meaning) => Some(self.leading(meaning.path, meaning.rewrite, backend)),
            Err(message) => {
                self.problem(&format!("{field}.path"), message);
                None
            }
        }
    }

    /// A rule that leads to a backend, or wherever the Ingress sends all its clients. One that leads nowhere answers 500.
    fn leading(
        &self,
        path: PathMatch,
        rewrite: Option<HttpFilter>,
        backend: Option<BackendRef>,
    ) -> HttpRouteRule {
        let matches = vec![HttpRouteMatch { path, ..Default::default() }];
        if self.wishes.is_closed {
            return HttpRouteRule { matches, ..Default::default() };
        }
        if let Some(redirect) = self.wishes.redirect.clone() {
            return HttpRouteRule {
                matches,
                filters: vec![path::redirect(redirect)],
                ..Default::default()
            };
        }
        let (filters, backend_refs) = (Vec::from_iter(rewrite), Vec::from_iter(backend));
        HttpRouteRule { matches, filters, backend_refs, ..Default::default() }
    }

    /// Sends who asks for `/` to where the application begins.
    fn app_root(&self) -> Option<HttpRouteRule> {
        let root = self.wishes.app_root.clone()?;
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
            filters: vec![path::redirect(redirect)],
            ..Default::default()
        })
    }

    /// The same requests, sent to where they come with TLS.
    fn to_tls(&self, rules: &Rules) -> Rules {
        let port = self.doors.https_port;
        let redirect = RequestRedirect {
            scheme: Some(RedirectScheme::Https),
            port: (![0, 443].contains(&port)).then_some(port),
            status_code: self.wishes.tls_redirect_code,
            ..Default::default()
        };
        let rule = |rule: &HttpRouteRule| HttpRouteRule {
            matches: rule.matches.clone(),
            filters: vec![path::redirect(redirect.clone())],
            ..Default::default()
        };
        Rules { rules: rules.rules.iter().map(rule).collect(), places: rules.places.clone() }
    }

    /// A port of a Service, if that is what is named and if it is there.
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

fn everything() -> PathMatch {
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
