//! What is spoken to the endpoints of a backend: by which protocol, and how it is encrypted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::TranslationReport;
use super::backend::find_port;
use super::backend_tls::{BackendAncestors, BackendTlsPolicies};
use super::draft::{RouteDraft, RuleDraft};
use super::index::ObjectIndex;
use super::listener::AcceptedGateway;
use crate::objects::{BackendPolicySpec, BackendProtocol, ServicePort};
use crate::snapshot::{BackendKey, EndpointProtocol, EndpointTls, TlsCertificate, TrustAnchors};

/// Who leads to backends, and what for.
pub(super) struct BackendUsage {
    pub(super) ancestors: BackendAncestors,
    /// Backends that calls of gRPC go to.
    grpc: BTreeSet<BackendKey>,
}

/// What is spoken to a backend's endpoints, as far as policies of theirs do not say it.
pub(super) struct BackendTransport {
    pub(super) protocol: EndpointProtocol,
    pub(super) tls: Option<Arc<EndpointTls>>,
}

/// Who leads to each backend.
pub(super) fn backend_usage(routes: &[RouteDraft]) -> BackendUsage {
    let mut users = BackendUsage { ancestors: BackendAncestors::new(), grpc: BTreeSet::new() };
    for route in routes {
        for key in route.rules.iter().flat_map(RuleDraft::keys) {
            let gateways = route.attachments.iter().map(|it| it.gateway);
            users.ancestors.entry(key.clone()).or_default().extend(gateways);
            if route.is_grpc {
                users.grpc.insert(key.clone());
            }
        }
    }
    users
}

impl BackendUsage {
    /// What is spoken to a backend: what its port says, else HTTP/2 to those that calls of gRPC go to.
    pub(super) fn transport(
        &self,
        key: &BackendKey,
        index: &ObjectIndex<'_>,
        policies: &BackendTlsPolicies<'_>,
        gateways: &[AcceptedGateway<'_>],
    ) -> BackendTransport {
        let service = index.services.get(&(&*key.namespace, &*key.service));
        let port = service.and_then(|it| find_port(&it.spec, key.port, key.transport));
        let protocol = match port.and_then(port_protocol) {
            Some(protocol) => protocol,
            None if self.grpc.contains(key) => EndpointProtocol::Http2,
            None => EndpointProtocol::Http1,
        };
        let client = self.client_certificate(key, gateways).map(|(_, certificate)| certificate);
        let tls = policies.find(key, port.map(|port| &*port.name), client);
        BackendTransport { protocol, tls }
    }

    /// Connections to an endpoint are shared, so that they show the certificate of one Gateway: the oldest that has one.
    fn client_certificate(
        &self,
        key: &BackendKey,
        gateways: &[AcceptedGateway<'_>],
    ) -> Option<(usize, Arc<TlsCertificate>)> {
        let certificate = |place: &usize| {
            let certificate = gateways[*place].client_certificate.as_ref()?.as_ref().ok()?;
            Some((*place, Arc::clone(certificate)))
        };
        self.ancestors.get(key)?.iter().find_map(certificate)
    }

    /// Reports each Gateway whose certificate is not shown to endpoints that an older one shows its own to.
    pub(super) fn report_ignored_client_certificates(
        &self,
        policies: &BackendTlsPolicies<'_>,
        gateways: &[AcceptedGateway<'_>],
        report: &mut TranslationReport,
    ) {
        for (key, places) in &self.ancestors {
            let Some((first, shown)) = self.client_certificate(key, gateways) else { continue };
            if !policies.covers(&key.namespace, &key.service, None) {
                continue;
            }
            for gateway in places.iter().filter(|place| **place != first).map(|it| &gateways[*it]) {
                if let Some(Ok(own)) = &gateway.client_certificate
                    && **own != *shown
                {
                    let metadata = &gateways[first].object.metadata;
                    let (namespace, name) = (&metadata.namespace, &metadata.name);
                    let message = format!(
                        "is not shown to {key}: Gateway {namespace}/{name} is older and shows its own there"
                    );
                    let field = "spec.tls.backend.clientCertificateRef";
                    report.problem("Gateway", gateway.object, field, message);
                }
            }
        }
    }
}

/// What a port says, by the names that Kubernetes agreed upon, those that Istio brought, and our own; others mean nothing.
fn port_protocol(port: &ServicePort) -> Option<EndpointProtocol> {
    match port.app_protocol.as_deref()? {
        "kubernetes.io/h2c" | "h2c" | "http2" | "grpc" => Some(EndpointProtocol::Http2),
        "kubernetes.io/ws" | "kubernetes.io/wss" | "http" => Some(EndpointProtocol::Http1),
        "sheave.dev/h3" => Some(EndpointProtocol::Http3),
        _ => None,
    }
}

impl BackendTransport {
    /// What a BackendPolicy says goes first. TLS without a policy that says whom to believe believes nobody.
    pub(super) fn with_policy(
        mut self,
        policy: Option<&BackendPolicySpec>,
        key: &BackendKey,
    ) -> Self {
        let asked = policy.and_then(|policy| policy.protocol);
        match asked {
            None => {}
            Some(BackendProtocol::Http1) => self.protocol = EndpointProtocol::Http1,
            Some(BackendProtocol::H2c | BackendProtocol::H2) => {
                self.protocol = EndpointProtocol::Http2;
            }
            Some(BackendProtocol::H3) => self.protocol = EndpointProtocol::Http3,
        }
        let is_plain = asked == Some(BackendProtocol::H2c);
        if !is_plain && policy.is_some_and(|policy| policy.tls.insecure_skip_verify) {
            self.tls.get_or_insert_with(|| endpoint_tls(TrustAnchors::AcceptAny, key).into());
        }
        if asked == Some(BackendProtocol::H2) || self.protocol == EndpointProtocol::Http3 {
            self = self.require_tls(key);
        }
        self
    }

    /// Encrypted in any case; where nobody says whom to believe, nobody is.
    pub(super) fn require_tls(mut self, key: &BackendKey) -> Self {
        self.tls.get_or_insert_with(|| endpoint_tls(TrustAnchors::Given(Vec::new()), key).into());
        self
    }
}

/// TLS to a backend of which no BackendTLSPolicy says more.
pub(super) fn endpoint_tls(roots: TrustAnchors, key: &BackendKey) -> EndpointTls {
    let server_name = format!("{}.{}.svc", key.service, key.namespace).into();
    EndpointTls { server_name, subject_names: Vec::new(), roots, client: None }
}
