//! Listeners of the Gateway that represents an IngressClass: one for each host, and one with TLS for each host that has
//! a certificate.

use std::collections::{BTreeMap, BTreeSet};

use super::super::client_options::{CLIENT_CA, CLIENT_CERTIFICATE, CLIENT_VERIFY_DEPTH, REQUESTED};
use super::super::index::ObjectIndex;
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, FIELD, HostClientCertificates};
use super::class::AcceptedIngressClass;
use super::class_hosts::{ClassHosts, HostTreatment, root_backend};
use super::source::IngressField;
use super::{IngressExpansion, NAMESPACE, derived};
use crate::matching::{HostPattern, HostTrie};
use crate::objects::{
    AllowedNamespaces, AllowedRoutes, ApiObject, FromNamespaces, GatewayClassSpec, GatewaySpec,
    GrantFrom, GrantTo, Hostname, IngressClassSpec, IngressSpec, ListenerSpec, ListenerTlsConfig,
    ObjectMeta, ObjectRef, ParentRef, ReferenceGrantSpec, TlsModeType, TypedObject,
};

/// Annotations of an IngressClass that set its ports.
pub(super) const HTTP_PORT: &str = "sheave.dev/http-port";
pub(super) const HTTPS_PORT: &str = "sheave.dev/https-port";

/// The listeners of a class.
pub(super) struct ClassListeners<'a> {
    class: &'a str,
    http_port: u16,
    pub(super) https_port: u16,
    /// The hosts of rules, and the first Ingress of each.
    http: BTreeMap<HostPattern, &'a TypedObject<IngressSpec>>,
    https: BTreeMap<HostPattern, HostCertificate<'a>>,
    /// The hosts whose TLS is not terminated, and the Ingress that gets their connections.
    passthrough: BTreeMap<HostPattern, &'a TypedObject<IngressSpec>>,
    /// The hosts whose clients are asked for certificates, and the Ingress that asks.
    clients: BTreeMap<HostPattern, HostClients<'a>>,
    /// Hosts with a certificate whose TLS is not terminated.
    unused_certificates: BTreeSet<HostPattern>,
    /// Indices of the HTTPS listeners by host.
    https_hosts: HostTrie<usize>,
    /// Names of the HTTPS listeners.
    https_names: Vec<String>,
}

/// The Ingress that provides the certificate of a host.
#[derive(Clone, Copy)]
struct HostCertificate<'a> {
    ingress: &'a TypedObject<IngressSpec>,
    /// Index in `spec.tls`.
    number: usize,
    secret: &'a str,
}

/// The verification of the client certificates of a host.
struct HostClients<'a> {
    ingress: &'a TypedObject<IngressSpec>,
    certificates: HostClientCertificates,
}

/// Returns the listeners that the Ingresses of a class need.
pub(super) fn class_listeners<'a>(
    class: &AcceptedIngressClass<'a>,
    hosts: &ClassHosts<'a>,
    settings: &[&AnnotationSettings],
    report: &mut TranslationReport,
) -> ClassListeners<'a> {
    let mut listeners = ClassListeners {
        class: &class.object.metadata.name,
        http_port: port(class.object, HTTP_PORT, 80, report),
        https_port: port(class.object, HTTPS_PORT, 443, report),
        http: BTreeMap::new(),
        https: BTreeMap::new(),
        passthrough: BTreeMap::new(),
        clients: BTreeMap::new(),
        unused_certificates: BTreeSet::new(),
        https_hosts: HostTrie::default(),
        https_names: Vec::new(),
    };
    let ingresses = class.ingresses.iter().copied();
    for ((ingress, hosts), settings) in ingresses.clone().zip(&hosts.of_ingresses).zip(settings) {
        for host in hosts.keys() {
            listeners.http.entry(host.clone()).or_insert(ingress);
        }
        if settings.hosts.passes_tls {
            listeners.add_passthrough(ingress, hosts, report);
        }
        if let Some(certificates) = &settings.client_certificates {
            listeners.add_clients(ingress, hosts, certificates, report);
        }
    }
    ingresses.for_each(|ingress| listeners.add_certificates(ingress, report));
    listeners.add_certificates_of_aliases(&hosts.aliases);
    listeners.separate_hosts_of_clients(report);
    for (place, host) in listeners.https.keys().enumerate() {
        *listeners.https_hosts.entry(host) = place;
        listeners.https_names.push(listener_name("https", host));
    }
    listeners
}

fn port(
    class: &TypedObject<IngressClassSpec>,
    annotation: &str,
    default: u16,
    report: &mut TranslationReport,
) -> u16 {
    let Some(value) = class.metadata.annotations.get(annotation) else { return default };
    // Port 0, for any free port, is allowed in files. In a cluster, clients could not learn the port.
    let is_port = |port: &u16| *port != 0 || !class.metadata.in_cluster;
    value.parse().ok().filter(is_port).unwrap_or_else(|| {
        let message = format!("{annotation} must be a port, is {value}");
        report.problem("IngressClass", class, FIELD, message);
        default
    })
}

impl<'a> ClassListeners<'a> {
    fn add_certificates(
        &mut self,
        ingress: &'a TypedObject<IngressSpec>,
        report: &mut TranslationReport,
    ) {
        for (number, tls) in ingress.spec.tls.iter().enumerate() {
            let field = format!("spec.tls[{number}]");
            let Some(secret) = tls.secret_name.as_deref() else {
                let message = "is missing: certificates are read only from Secrets";
                report.problem("Ingress", ingress, &format!("{field}.secretName"), message);
                continue;
            };
            let mut named: Vec<_> = tls.hosts.iter().map(|host| host.0.clone()).collect();
            if named.is_empty() {
                named.push(HostPattern::Any);
            }
            for host in named {
                if self.passthrough.contains_key(&host) {
                    self.unused_certificates.insert(host);
                    continue;
                }
                let first =
                    self.https.entry(host).or_insert(HostCertificate { ingress, number, secret });
                let (older, younger) = (&first.ingress.metadata, &ingress.metadata);
                if first.secret != secret || older.namespace != younger.namespace {
                    let message = format!(
                        "Ingress {}/{} already provides the certificate of one of these hosts",
                        older.namespace, older.name
                    );
                    report.problem("Ingress", ingress, &field, message);
                }
            }
        }
    }

    /// Adds the hosts of an Ingress whose TLS is not terminated. The first Ingress of a host gets its connections.
    fn add_passthrough(
        &mut self,
        ingress: &'a TypedObject<IngressSpec>,
        hosts: &BTreeMap<HostPattern, HostTreatment<'a>>,
        report: &mut TranslationReport,
    ) {
        for (host, treatment) in hosts {
            let HostTreatment::Rules(rules) = treatment else { continue };
            if *host != HostPattern::Any && root_backend(rules).is_some() {
                self.passthrough.entry(host.clone()).or_insert(ingress);
            } else {
                let message = "nginx.ingress.kubernetes.io/ssl-passthrough needs a host with the \
                               path `/`: TLS is terminated";
                report.problem("Ingress", ingress, FIELD, message);
            }
        }
    }

    /// Adds the hosts of an Ingress whose clients are asked for certificates. The first Ingress of a host decides.
    fn add_clients(
        &mut self,
        ingress: &'a TypedObject<IngressSpec>,
        hosts: &BTreeMap<HostPattern, HostTreatment<'a>>,
        certificates: &HostClientCertificates,
        report: &mut TranslationReport,
    ) {
        let is_served =
            |treatment: &HostTreatment<'_>| matches!(treatment, HostTreatment::Rules(_));
        for host in hosts.iter().filter(|(_, it)| is_served(it)).map(|(host, _)| host) {
            let asked = HostClients { ingress, certificates: certificates.clone() };
            let first = self.clients.entry(host.clone()).or_insert(asked);
            if first.certificates != *certificates {
                let ObjectMeta { namespace, name, .. } = &first.ingress.metadata;
                let message = format!(
                    "nginx.ingress.kubernetes.io/auth-tls-secret and others have no effect for \
                     {host}: those of Ingress {namespace}/{name} apply"
                );
                report.problem("Ingress", ingress, FIELD, message);
            }
        }
    }

    /// Gives each host whose clients are asked for certificates a listener of its own, so that no other host asks too.
    fn separate_hosts_of_clients(&mut self, report: &mut TranslationReport) {
        for (host, asked) in &self.clients {
            if self.https.contains_key(host) || self.passthrough.contains_key(host) {
                continue;
            }
            let mut covering = host.covering_wildcards().chain([HostPattern::Any]);
            let certificate = covering.find_map(|it| self.https.get(&it).copied());
            match certificate {
                Some(certificate) => {
                    self.https.insert(host.clone(), certificate);
                }
                None => {
                    let message = format!(
                        "nginx.ingress.kubernetes.io/auth-tls-secret needs TLS for {host}: requests \
                         without TLS have no client certificate"
                    );
                    report.problem("Ingress", asked.ingress, FIELD, message);
                }
            }
        }
    }

    /// Returns the verification of the client certificates of a host.
    pub(super) fn client_certificates(
        &self,
        host: &HostPattern,
    ) -> Option<&HostClientCertificates> {
        self.clients.get(host).map(|it| &it.certificates)
    }

    /// Returns the options of the listener of a host.
    fn options(&self, host: &HostPattern) -> BTreeMap<String, String> {
        let Some(clients) = self.client_certificates(host) else { return BTreeMap::new() };
        let HostClientCertificates { namespace, secret, depth, .. } = clients;
        [
            (CLIENT_CA, format!("{namespace}/{secret}")),
            (CLIENT_CERTIFICATE, REQUESTED.to_owned()),
            (CLIENT_VERIFY_DEPTH, depth.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Adds the certificate of a host for its aliases, as far as they have none.
    fn add_certificates_of_aliases(&mut self, aliases: &BTreeMap<HostPattern, HostPattern>) {
        for (alias, host) in aliases {
            if let Some(certificate) = self.https.get(host).copied()
                && !self.passthrough.contains_key(alias)
            {
                self.https.entry(alias.clone()).or_insert(certificate);
            }
        }
    }

    /// Adds the Gateway, its class, and ReferenceGrants for the certificates.
    pub(super) fn add(
        &self,
        index: &ObjectIndex<'_>,
        class: &AcceptedIngressClass<'_>,
        expansion: &mut IngressExpansion,
    ) {
        let gateway_class = format!("ingress:{}", self.class);
        let spec = GatewayClassSpec {
            controller_name: index.settings.controllers.gateway.to_string(),
            ..Default::default()
        };
        let resource = derived(class.object, "", &gateway_class, spec);
        expansion.sources.add(
            "GatewayClass",
            &resource,
            vec![IngressField::of(class.ingresses[0], "")],
        );
        expansion.objects.push(ApiObject::GatewayClass(resource.into()));

        let (listeners, places) = self.listeners();
        let spec =
            GatewaySpec { gateway_class_name: gateway_class, listeners, ..Default::default() };
        let resource = derived(class.object, NAMESPACE, self.class, spec);
        expansion.sources.add("Gateway", &resource, places);
        expansion.objects.push(ApiObject::Gateway(resource.into()));

        let of_secrets =
            self.https.values().map(|it| (&*it.ingress.metadata.namespace, it.ingress));
        let of_clients = self.clients.values().map(|it| it.ingress);
        let of_secrets = of_secrets.chain(of_clients.map(|it| (&*it.metadata.namespace, it)));
        for (namespace, ingress) in of_secrets.collect::<BTreeMap<_, _>>() {
            let name = format!("ingress:{}", self.class);
            let resource = derived(ingress, namespace, &name, grant());
            expansion.objects.push(ApiObject::ReferenceGrant(resource.into()));
        }
    }

    fn listeners(&self) -> (Vec<ListenerSpec>, Vec<IngressField>) {
        let http = self.http.iter().map(|(host, ingress)| {
            let listener = ListenerSpec {
                name: listener_name("http", host),
                port: self.http_port,
                protocol: "HTTP".to_owned(),
                ..listener(host)
            };
            (listener, IngressField::of(ingress, "spec.rules"))
        });
        let https = self.https.iter().map(|(host, certified)| {
            let HostCertificate { ingress, number, secret } = certified;
            let reference = ObjectRef {
                namespace: Some(ingress.metadata.namespace.clone()),
                name: (*secret).to_owned(),
                ..Default::default()
            };
            let listener = ListenerSpec {
                name: listener_name("https", host),
                port: self.https_port,
                protocol: "HTTPS".to_owned(),
                tls: Some(ListenerTlsConfig {
                    certificate_refs: vec![reference],
                    options: self.options(host),
                    ..Default::default()
                }),
                ..listener(host)
            };
            (listener, IngressField::of(ingress, format!("spec.tls[{number}].secretName")))
        });
        let passthrough = self.passthrough.iter().map(|(host, ingress)| {
            let mode = TlsModeType::Passthrough;
            let listener = ListenerSpec {
                name: listener_name("tls", host),
                port: self.https_port,
                protocol: "TLS".to_owned(),
                tls: Some(ListenerTlsConfig { mode, ..Default::default() }),
                ..listener(host)
            };
            (listener, IngressField::of(ingress, FIELD))
        });
        http.chain(https).chain(passthrough).unzip()
    }

    /// True if TLS is available for all of these hosts.
    pub(super) fn has_certificate(&self, host: &HostPattern) -> bool {
        !self.https_hosts.covering(host).is_empty() || self.unused_certificates.contains(host)
    }

    /// Returns the listener of a host whose TLS is not terminated, if the Ingress gets its connections.
    pub(super) fn passthrough_parent(
        &self,
        host: &HostPattern,
        ingress: &TypedObject<IngressSpec>,
    ) -> Option<ParentRef> {
        let owner = self.passthrough.get(host)?;
        std::ptr::eq(*owner, ingress).then(|| self.parent(listener_name("tls", host)))
    }

    /// Returns the listeners without TLS for a host; for the pattern of all hosts, all such listeners.
    pub(super) fn http_parents(&self, host: &HostPattern) -> Vec<ParentRef> {
        if *host == HostPattern::Any {
            return self.http.keys().map(|host| self.parent(listener_name("http", host))).collect();
        }
        vec![self.parent(listener_name("http", host))]
    }

    /// Returns the listeners with TLS for a host.
    pub(super) fn https_parents(&self, host: &HostPattern) -> Vec<ParentRef> {
        let mut places = self.https_hosts.common(host);
        places.sort_unstable();
        places.into_iter().map(|place| self.parent(self.https_names[*place].clone())).collect()
    }

    fn parent(&self, listener: String) -> ParentRef {
        ParentRef {
            namespace: Some(NAMESPACE.to_owned()),
            name: self.class.to_owned(),
            section_name: Some(listener),
            ..Default::default()
        }
    }
}

/// Returns a listener name such as `https:www.example.com`. A listener of a user's Gateway cannot have such a name.
fn listener_name(scheme: &str, host: &HostPattern) -> String {
    match host {
        HostPattern::Any => scheme.to_owned(),
        HostPattern::Exact(_) | HostPattern::Wildcard(_) => format!("{scheme}:{host}"),
    }
}

fn listener(host: &HostPattern) -> ListenerSpec {
    let namespaces = AllowedNamespaces { from: Some(FromNamespaces::All), selector: None };
    ListenerSpec {
        hostname: Some(host.clone()).filter(|host| *host != HostPattern::Any).map(Hostname),
        allowed_routes: AllowedRoutes { namespaces, kinds: Vec::new() },
        ..Default::default()
    }
}

fn grant() -> ReferenceGrantSpec {
    let from = GrantFrom {
        group: "gateway.networking.k8s.io".to_owned(),
        kind: "Gateway".to_owned(),
        namespace: NAMESPACE.to_owned(),
    };
    let to = GrantTo { group: String::new(), kind: "Secret".to_owned(), name: None };
    ReferenceGrantSpec { from: vec![from], to: vec![to] }
}
