//! Output of a migration: derived objects as values, under names and within limits that a cluster accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::MigrationSettings;
use super::names::UniqueNames;
use crate::matching::HostPattern;
use crate::objects::{
    ApiObject, BackendPolicySpec, GatewaySpec, HttpFilter, HttpRouteSpec, ObjectMeta, ParentRef,
    RouteTarget, SecurityPolicySpec, TypedObject, UrlRewrite,
};

/// Largest number of rules of an HTTPRoute, and of targets of a policy.
const MAX_ENTRIES: usize = 16;
/// Largest number of parents of an HTTPRoute.
const MAX_PARENTS: usize = 32;
/// Largest number of listeners of a Gateway.
const MAX_LISTENERS: usize = 64;
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const SHEAVE: &str = "sheave.dev/v1alpha1";

/// Writes derived objects as values.
pub(super) struct ObjectWriter<'a> {
    settings: &'a MigrationSettings,
    /// Names of objects, by kind and namespace, and of listeners, by Gateway.
    names: UniqueNames,
    /// The HTTPRoutes into which a derived one is divided, by its namespace and name.
    routes: BTreeMap<(String, String), Vec<String>>,
    /// The requests of rules that are written: listener, hosts and match.
    served: BTreeSet<String>,
    /// Settings that the written objects cannot have: namespace and name of the Ingress, and the difference.
    pub(super) differences: Vec<(String, String, String)>,
    /// Objects that a cluster does not accept, and the reason.
    pub(super) unacceptable: Vec<String>,
}

impl<'a> ObjectWriter<'a> {
    /// Returns a writer that uses no name of the objects that exist.
    pub(super) fn new(settings: &'a MigrationSettings, existing: &[ApiObject]) -> Self {
        let mut names = UniqueNames::default();
        for object in existing {
            if let Some((kind, metadata)) = identity(object) {
                names.reserve(&scope(kind, &metadata.namespace), &metadata.name);
            }
        }
        Self {
            settings,
            names,
            routes: BTreeMap::new(),
            served: BTreeSet::new(),
            differences: Vec::new(),
            unacceptable: Vec::new(),
        }
    }

    /// Returns the objects, those first that others refer to.
    pub(super) fn write(&mut self, objects: &[ApiObject]) -> Vec<Value> {
        let mut written: Vec<(usize, Value)> = Vec::new();
        // Policies refer to routes, which may be divided.
        for object in objects {
            if let ApiObject::HttpRoute(route) = object {
                written.extend(self.http_route(route).into_iter().map(|it| (2, it)));
            }
        }
        for object in objects {
            written.extend(self.other(object));
        }
        written.sort_by_key(|(order, _)| *order);
        written.into_iter().map(|(_, value)| value).collect()
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "Ingresses expand into few kinds")]
    fn other(&mut self, object: &ApiObject) -> Vec<(usize, Value)> {
        match object {
            ApiObject::Gateway(gateway) => vec![(0, self.gateway(gateway))],
            ApiObject::ReferenceGrant(grant) => {
                let mut spec = grant.spec.clone();
                for from in &mut spec.from {
                    from.namespace.clone_from(&self.settings.gateway_namespace);
                }
                let version = "gateway.networking.k8s.io/v1beta1";
                vec![(1, self.object(version, "ReferenceGrant", &grant.metadata, &spec))]
            }
            ApiObject::TlsRoute(route) => {
                let mut spec = route.spec.clone();
                self.rename_parents(&mut spec.parent_refs);
                vec![(2, self.object(GATEWAY_API, "TLSRoute", &route.metadata, &spec))]
            }
            ApiObject::BackendTlsPolicy(it) => {
                vec![(3, self.object(GATEWAY_API, "BackendTLSPolicy", &it.metadata, &it.spec))]
            }
            ApiObject::BackendPolicy(it) => {
                let spec = self.object(SHEAVE, "BackendPolicy", &it.metadata, &it.spec);
                vec![(3, without_defaults(spec))]
            }
            ApiObject::RateLimitPolicy(it) => {
                self.policies("RateLimitPolicy", it, |it| &mut it.target_refs)
            }
            ApiObject::SecurityPolicy(it) => {
                self.differences.extend(missing_grant(it));
                self.policies("SecurityPolicy", it, |it| &mut it.target_refs)
            }
            ApiObject::TrafficPolicy(it) => {
                self.policies("TrafficPolicy", it, |it| &mut it.target_refs)
            }
            // The GatewayClass is the user's; HTTPRoutes are written before.
            _ => Vec::new(),
        }
    }

    fn gateway(&mut self, gateway: &TypedObject<GatewaySpec>) -> Value {
        let mut spec = gateway.spec.clone();
        spec.gateway_class_name.clone_from(&self.settings.gateway_class);
        for listener in &mut spec.listeners {
            listener.name = self.listener_name(&gateway.metadata.name, &listener.name);
        }
        let metadata = ObjectMeta::named(&self.settings.gateway_namespace, &gateway.metadata.name);
        let count = spec.listeners.len();
        if count > MAX_LISTENERS {
            self.unacceptable.push(format!(
                "Gateway {}/{} has {count} listeners, and a cluster accepts {MAX_LISTENERS}: migrate fewer hosts at once, \
                 with an IngressClass for each part",
                metadata.namespace, metadata.name
            ));
        }
        self.object(GATEWAY_API, "Gateway", &metadata, &spec)
    }

    /// Returns a route, or several with the same hosts if it has too many rules or parents for one. Up to nine of them
    /// keep the order of rules of the same precedence, because that is the order of their names.
    fn http_route(&mut self, route: &TypedObject<HttpRouteSpec>) -> Vec<Value> {
        let ObjectMeta { namespace, name, .. } = &route.metadata;
        let mut spec = route.spec.clone();
        self.rename_parents(&mut spec.parent_refs);
        self.change_impossible_values(&route.metadata, &mut spec);
        self.remove_shadowed_rules(&mut spec);
        let first = self.names.name(&scope("HTTPRoute", namespace), name);
        let (mut written, mut parts) = (Vec::new(), Vec::new());
        let (parents, rules) = (mem::take(&mut spec.parent_refs), mem::take(&mut spec.rules));
        for parents in parents.chunks(MAX_PARENTS) {
            for rules in rules.chunks(MAX_ENTRIES) {
                let part = match parts.is_empty() {
                    true => first.clone(),
                    false => self.names.another(&scope("HTTPRoute", namespace), &first),
                };
                let spec = HttpRouteSpec {
                    parent_refs: parents.to_vec(),
                    rules: rules.to_vec(),
                    ..spec.clone()
                };
                written.push(value(GATEWAY_API, "HTTPRoute", namespace, &part, &spec));
                parts.push(part);
            }
        }
        self.routes.insert((namespace.clone(), name.clone()), parts);
        written
    }

    /// Removes rules all of whose requests an older Ingress serves. The ages of the written objects are all the same.
    fn remove_shadowed_rules(&mut self, spec: &mut HttpRouteSpec) {
        let HttpRouteSpec { parent_refs, hostnames, rules, .. } = spec;
        rules.retain(|rule| {
            let mut is_new = false;
            for (parent, condition) in parent_refs
                .iter()
                .flat_map(|parent| rule.matches.iter().map(move |it| (parent, it)))
            {
                is_new |= self.served.insert(format!("{parent:?} {hostnames:?} {condition:?}"));
            }
            is_new
        });
    }

    /// Changes values that an HTTPRoute cannot have, and records the differences.
    fn change_impossible_values(&mut self, metadata: &ObjectMeta, spec: &mut HttpRouteSpec) {
        let mut differences = BTreeSet::new();
        for rule in &mut spec.rules {
            for filter in &mut rule.filters {
                differences.extend(change_impossible_values(filter));
            }
            rule.filters.retain(|it| it.url_rewrite != Some(UrlRewrite::default()));
        }
        let parts = metadata.name.strip_prefix("ingress:").and_then(|name| name.split_once(':'));
        let Some((ingress, _)) = parts else { return };
        for difference in differences {
            let difference = format!("metadata.annotations: {difference}");
            self.differences.push((metadata.namespace.clone(), ingress.to_owned(), difference));
        }
    }

    /// Returns a policy, or several if it has too many targets for one.
    fn policies<S: Clone + Serialize>(
        &mut self,
        kind: &str,
        policy: &TypedObject<S>,
        targets: impl Fn(&mut S) -> &mut Vec<RouteTarget>,
    ) -> Vec<(usize, Value)> {
        let ObjectMeta { namespace, name, .. } = &policy.metadata;
        let mut spec = policy.spec.clone();
        let renamed = |target: &RouteTarget| {
            let parts = self.routes.get(&(namespace.clone(), target.name.clone()));
            let target = |name: &String| RouteTarget { name: name.clone(), ..target.clone() };
            parts.into_iter().flatten().map(target).collect::<Vec<_>>()
        };
        let all: Vec<_> = targets(&mut spec).iter().flat_map(renamed).collect();
        let first = self.names.name(&scope(kind, namespace), name);
        let mut written = Vec::new();
        for part in all.chunks(MAX_ENTRIES) {
            let name = match written.is_empty() {
                true => first.clone(),
                false => self.names.another(&scope(kind, namespace), &first),
            };
            *targets(&mut spec) = part.to_vec();
            written.push((3, value(SHEAVE, kind, namespace, &name, &spec)));
        }
        written
    }

    fn rename_parents(&mut self, parents: &mut [ParentRef]) {
        for parent in parents {
            parent.namespace = Some(self.settings.gateway_namespace.clone());
            let gateway = parent.name.clone();
            parent.name = self.gateway_name(&gateway);
            if let Some(section) = &mut parent.section_name {
                *section = self.listener_name(&gateway, section);
            }
        }
    }

    fn gateway_name(&mut self, old: &str) -> String {
        let scope = scope("Gateway", &self.settings.gateway_namespace);
        self.names.name(&scope, old)
    }

    fn listener_name(&mut self, gateway: &str, old: &str) -> String {
        self.names.name(&format!("listeners of {gateway}"), old)
    }

    fn object(
        &mut self,
        version: &str,
        kind: &str,
        metadata: &ObjectMeta,
        spec: &impl Serialize,
    ) -> Value {
        let ObjectMeta { namespace, name, .. } = metadata;
        let name = self.names.name(&scope(kind, namespace), name);
        value(version, kind, namespace, &name, spec)
    }
}

/// Changes the values of a filter that the API does not allow, and returns the differences.
fn change_impossible_values(filter: &mut HttpFilter) -> Vec<String> {
    let mut differences = Vec::new();
    let is_possible = |host: &String| matches!(HostPattern::parse(host), Ok(HostPattern::Exact(_)));
    let host = filter
        .url_rewrite
        .as_mut()
        .and_then(|rewrite| rewrite.hostname.take_if(|host| !is_possible(host)));
    differences.extend(host.map(|host| {
        format!("requests to endpoints keep their host: an HTTPRoute cannot set {host}")
    }));
    let cors = filter.cors.iter_mut();
    // Every origin, and others besides, mean the same.
    cors.filter(|cors| cors.allow_origins.iter().any(|it| it.0 == "*"))
        .for_each(|cors| cors.allow_origins.retain(|it| it.0 == "*"));
    if let Some(cors) = filter.cors.as_mut().filter(|cors| cors.max_age == 0) {
        cors.max_age = 1;
        differences.push("cors-max-age is 1 s, the least of an HTTPRoute".to_owned());
    }
    differences
}

/// Returns the difference if a policy refers to an authorizer of another namespace, which an Ingress may do in other
/// cases than a policy: the namespace and name of the Ingress, and the grant that is needed.
fn missing_grant(policy: &TypedObject<SecurityPolicySpec>) -> Option<(String, String, String)> {
    let ObjectMeta { namespace, name, .. } = &policy.metadata;
    let authorizer = &policy.spec.external_auth.as_ref()?.backend_ref;
    let other = authorizer.namespace.as_ref().filter(|other| *other != namespace)?;
    let note = format!(
        "metadata.annotations: all requests are answered with 500 until a ReferenceGrant of namespace {other} lets \
         SecurityPolicies of namespace {namespace} refer to Service {}",
        authorizer.name
    );
    Some((namespace.clone(), name.strip_prefix("ingress:")?.to_owned(), note))
}

/// Returns the kind and metadata of an object of a kind that is written.
#[expect(clippy::wildcard_enum_match_arm, reason = "Ingresses expand into few kinds")]
fn identity(object: &ApiObject) -> Option<(&'static str, &ObjectMeta)> {
    match object {
        ApiObject::Gateway(it) => Some(("Gateway", &it.metadata)),
        ApiObject::ReferenceGrant(it) => Some(("ReferenceGrant", &it.metadata)),
        ApiObject::HttpRoute(it) => Some(("HTTPRoute", &it.metadata)),
        ApiObject::TlsRoute(it) => Some(("TLSRoute", &it.metadata)),
        ApiObject::BackendTlsPolicy(it) => Some(("BackendTLSPolicy", &it.metadata)),
        ApiObject::BackendPolicy(it) => Some(("BackendPolicy", &it.metadata)),
        ApiObject::RateLimitPolicy(it) => Some(("RateLimitPolicy", &it.metadata)),
        ApiObject::SecurityPolicy(it) => Some(("SecurityPolicy", &it.metadata)),
        ApiObject::TrafficPolicy(it) => Some(("TrafficPolicy", &it.metadata)),
        _ => None,
    }
}

fn scope(kind: &str, namespace: &str) -> String {
    format!("{kind} of {namespace}")
}

fn value(version: &str, kind: &str, namespace: &str, name: &str, spec: &impl Serialize) -> Value {
    // A spec is data of names and values.
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let metadata = json!({ "name": name, "namespace": namespace });
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), version.into());
    object.insert("kind".to_owned(), kind.into());
    object.insert("metadata".to_owned(), metadata);
    object.insert("spec".to_owned(), without_nothing(spec));
    Value::Object(object)
}

/// Removes fields without a value.
fn without_nothing(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, without_nothing(value)));
            let is_something = |value: &Value| match value {
                Value::Null => false,
                Value::Array(entries) => !entries.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
            };
            Value::Object(fields.filter(|(_, value)| is_something(value)).collect())
        }
        Value::Array(entries) => entries.into_iter().map(without_nothing).collect(),
        value @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => value,
    }
}

/// Removes the settings of a BackendPolicy that are the defaults.
fn without_defaults(mut policy: Value) -> Value {
    let defaults = serde_json::to_value(BackendPolicySpec::for_targets(Vec::new()));
    remove_equal(&mut policy["spec"], &without_nothing(defaults.unwrap_or_default()));
    policy
}

fn remove_equal(value: &mut Value, default: &Value) {
    let (Value::Object(fields), Value::Object(defaults)) = (value, default) else { return };
    for (name, default) in defaults {
        let Some(value) = fields.get_mut(name) else { continue };
        remove_equal(value, default);
        let is_default = value == default || value.as_object().is_some_and(Map::is_empty);
        if is_default {
            fields.remove(name);
        }
    }
}
