//! Hosts of the Ingresses of a class: those of rules, their aliases, and names that are redirected.

use std::collections::{BTreeMap, BTreeSet};

use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, FIELD};
use super::class::AcceptedIngressClass;
use crate::matching::HostPattern;
use crate::objects::{
    Hostname, IngressBackend, IngressPath, IngressRule, IngressSpec, TypedObject,
};

/// A rule of an Ingress, with its index.
pub(super) type IndexedRule<'a> = (usize, &'a IngressRule);

/// The hosts of a class.
pub(super) struct ClassHosts<'a> {
    /// The hosts of each Ingress.
    pub(super) of_ingresses: Vec<BTreeMap<HostPattern, HostTreatment<'a>>>,
    /// The host of rules that each alias stands for.
    pub(super) aliases: BTreeMap<HostPattern, HostPattern>,
}

/// The treatment of requests for a host.
pub(super) enum HostTreatment<'a> {
    /// These rules apply.
    Rules(Vec<IndexedRule<'a>>),
    /// Requests are redirected to this host.
    Redirect(String),
}

impl<'a> ClassHosts<'a> {
    /// Returns the hosts. As with ingress-nginx, the host of a rule precedes an alias, and both precede a redirect.
    pub(super) fn new(
        class: &AcceptedIngressClass<'a>,
        settings: &[&AnnotationSettings],
        report: &mut TranslationReport,
    ) -> Self {
        let own: Vec<_> = class.ingresses.iter().map(|it| rule_hosts(&it.spec)).collect();
        let known: BTreeSet<HostPattern> = own.iter().flat_map(|it| it.keys()).cloned().collect();
        let mut aliases = BTreeMap::new();
        let ingresses = class.ingresses.iter().copied();
        for ((ingress, hosts), settings) in ingresses.zip(&own).zip(settings) {
            for alias in &settings.hosts.aliases {
                add_aliases(alias, (ingress, hosts), &known, &mut aliases, report);
            }
        }
        let mut redirected = BTreeSet::new();
        let mut of_ingresses = Vec::new();
        for (hosts, settings) in own.into_iter().zip(settings) {
            let aliases_of = |host: &HostPattern| {
                let host = host.clone();
                aliases.iter().filter(move |(_, of)| **of == host).map(|(alias, _)| alias.clone())
            };
            let mut all = BTreeMap::new();
            for (host, rules) in hosts {
                if settings.hosts.redirects_www
                    && let Some((from, to)) = www_redirect(&host)
                    && !known.contains(&from)
                    && !aliases.contains_key(&from)
                    && redirected.insert(from.clone())
                {
                    all.insert(from, HostTreatment::Redirect(to));
                }
                for alias in aliases_of(&host) {
                    all.insert(alias, HostTreatment::Rules(rules.clone()));
                }
                all.insert(host, HostTreatment::Rules(rules));
            }
            of_ingresses.push(all);
        }
        Self { of_ingresses, aliases }
    }
}

/// Adds an alias of each host of an Ingress's rules; one name can stand for one host only.
fn add_aliases(
    alias: &HostPattern,
    (ingress, hosts): (&TypedObject<IngressSpec>, &BTreeMap<HostPattern, Vec<IndexedRule<'_>>>),
    known: &BTreeSet<HostPattern>,
    aliases: &mut BTreeMap<HostPattern, HostPattern>,
    report: &mut TranslationReport,
) {
    for host in hosts.keys().filter(|host| **host != HostPattern::Any) {
        let taken = aliases.get(alias).filter(|of| *of != host);
        let message = match taken {
            _ if known.contains(alias) => "it is the host of a rule".to_owned(),
            Some(other) => format!("it is an alias of {other}"),
            None => {
                aliases.insert(alias.clone(), host.clone());
                continue;
            }
        };
        let alias = alias.to_string();
        let message =
            format!("nginx.ingress.kubernetes.io/server-alias {alias} is ignored: {message}");
        report.problem("Ingress", ingress, FIELD, message);
    }
}

/// Returns the host that is redirected, and the one that it is redirected to.
fn www_redirect(host: &HostPattern) -> Option<(HostPattern, String)> {
    let HostPattern::Exact(to) = host else { return None };
    let from = to.strip_prefix("www.").map_or_else(|| format!("www.{to}"), str::to_owned);
    Some((HostPattern::Exact(from.into()), to.to_string()))
}

/// Returns the hosts of the rules of an Ingress; a default backend adds every other host.
fn rule_hosts(spec: &IngressSpec) -> BTreeMap<HostPattern, Vec<IndexedRule<'_>>> {
    let mut hosts: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (n, rule) in spec.rules.iter().enumerate() {
        hosts.entry(pattern(rule.host.as_ref())).or_default().push((n, rule));
    }
    if spec.default_backend.is_some() {
        hosts.entry(HostPattern::Any).or_default();
    }
    hosts
}

/// Returns the backend of the path `/`, and its field path.
pub(super) fn root_backend<'a>(rules: &[IndexedRule<'a>]) -> Option<(&'a IngressBackend, String)> {
    rules.iter().find_map(|(n, rule)| {
        let mut paths = rule.http.iter().flat_map(|http| &http.paths).enumerate();
        let is_root = |path: &IngressPath| ["", "/"].contains(&path.path.as_deref().unwrap_or("/"));
        let (m, path) = paths.find(|(_, path)| is_root(path))?;
        Some((&path.backend, format!("spec.rules[{n}].http.paths[{m}]")))
    })
}

/// Returns the hosts that a rule matches.
pub(super) fn pattern(host: Option<&Hostname>) -> HostPattern {
    host.map_or(HostPattern::Any, |host| host.0.clone())
}
