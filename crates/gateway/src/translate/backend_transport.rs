//! Transport to the endpoints of a backend: protocol and TLS.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::backend::{find_port, port_protocol};
use super::backend_tls::{BackendAncestors, BackendTlsPolicies};
use super::draft::{RouteDraft, RuleDraft};
use super::index::ObjectIndex;
use super::listener::GatewayContext;
use super::report::TranslationReport;
use crate::objects::{BackendPolicySpec, BackendProtocol, ServicePort};
use crate::snapshot::{
    AuthorizerProtocol, BackendKey, EndpointProtocol, EndpointTls, ExternalAuthSettings,
    TlsCertificate, TrustAnchors,
};

/// The use of backends by routes.
pub(super) struct BackendUsage {
    pub(super) ancestors: BackendAncestors,
    /// Backends that receive gRPC calls.
    grpc: BTreeSet<BackendKey>,
}

/// Protocol and TLS of connections to a backend's endpoints, before its BackendPolicy is applied.
pub(super) struct BackendTransport {
    pub(super) protocol: EndpointProtocol,
    pub(super) tls: Option<Arc<EndpointTls>>,
    /// True if nothing says what the endpoints speak.
    is_assumed: bool,
}

/// Returns which Gateways route to each backend, and which backends receive gRPC calls: those of GRPCRoutes, and
/// authorizers that speak gRPC.
pub(super) fn backend_usage<'s>(
    routes: &'s [RouteDraft],
    of_policies: impl Iterator<Item = &'s ExternalAuthSettings>,
) -> BackendUsage {
    let of_filters = routes.iter().flat_map(|route| &route.rules);
    let of_filters = of_filters.filter_map(|rule| rule.filters.filters.external_auth.as_deref());
    let authorizers = of_filters.chain(of_policies);
    let grpc = authorizers.filter(|it| matches!(it.protocol, AuthorizerProtocol::Grpc { .. }));
    let grpc = grpc.filter_map(|it| it.backend.clone()).collect();
    let mut usage = BackendUsage { ancestors: BackendAncestors::new(), grpc };
    for route in routes {
        for key in route.rules.iter().flat_map(RuleDraft::keys) {
            let gateways = route.attachments.iter().map(|it| it.gateway);
            usage.ancestors.entry(key.clone()).or_default().extend(gateways);
            if route.is_grpc {
                usage.grpc.insert(key.clone());
            }
        }
    }
    usage
}

impl BackendUsage {
    /// Returns the transport to a backend: the protocol is that of its Service port, else HTTP/2 if it receives gRPC
    /// calls, else HTTP/1.1.
    pub(super) fn transport(
        &self,
        key: &BackendKey,
        index: &ObjectIndex<'_>,
        policies: &BackendTlsPolicies<'_>,
        gateways: &[GatewayContext<'_>],
    ) -> BackendTransport {
        let service = index.services.get(&(&*key.namespace, &*key.service));
        let port = service.and_then(|it| find_port(&it.spec, key.port, key.transport));
        let (protocol, is_assumed) = match port.and_then(port_protocol) {
            Some(protocol) => (protocol, port.is_some_and(is_any_http)),
            None if self.grpc.contains(key) => (EndpointProtocol::Http2, false),
            None => (EndpointProtocol::Http1, true),
        };
        let client = self.client_certificate(key, gateways).map(|(_, certificate)| certificate);
        let tls = policies.find(key, port.map(|port| &*port.name), client);
        BackendTransport { protocol, tls, is_assumed }
    }

    /// Returns the client certificate for connections to a backend. The connections are shared, so they present the
    /// certificate of one Gateway: the oldest that has one.
    fn client_certificate(
        &self,
        key: &BackendKey,
        gateways: &[GatewayContext<'_>],
    ) -> Option<(usize, Arc<TlsCertificate>)> {
        let certificate = |index: &usize| {
            let certificate = gateways[*index].client_certificate.as_ref()?.as_ref().ok()?;
            Some((*index, Arc::clone(certificate)))
        };
        self.ancestors.get(key)?.iter().find_map(certificate)
    }

    /// Reports each Gateway whose client certificate is not presented to endpoints because an older Gateway presents
    /// its own.
    pub(super) fn report_ignored_client_certificates(
        &self,
        policies: &BackendTlsPolicies<'_>,
        gateways: &[GatewayContext<'_>],
        report: &mut TranslationReport,
    ) {
        for (key, indices) in &self.ancestors {
            let Some((first, shown)) = self.client_certificate(key, gateways) else { continue };
            if !policies.covers(&key.namespace, &key.service, None) {
                continue;
            }
            for gateway in indices.iter().filter(|index| **index != first).map(|it| &gateways[*it])
            {
                if let Some(Ok(own)) = &gateway.client_certificate
                    && **own != *shown
                {
                    let metadata = &gateways[first].object.metadata;
                    let (namespace, name) = (&metadata.namespace, &metadata.name);
                    let message = format!(
                        "is not presented to {key}: Gateway {namespace}/{name} is older and presents its own"
                    );
                    let field = "spec.tls.backend.clientCertificateRef";
                    report.problem("Gateway", gateway.object, field, message);
                }
            }
        }
    }
}

/// True if the appProtocol names HTTP without a version.
fn is_any_http(port: &ServicePort) -> bool {
    port.app_protocol.as_deref() == Some("http")
}

impl BackendTransport {
    /// True if the protocol of connections to endpoints is assumed, and may be that of the client as well.
    pub(super) const fn may_be_that_of_the_client(&self) -> bool {
        self.is_assumed && self.tls.is_none()
    }

    /// Applies a BackendPolicy, which has precedence. If TLS is on and no policy configures verification, no
    /// certificate is trusted.
    pub(super) fn with_policy(
        mut self,
        policy: Option<&BackendPolicySpec>,
        key: &BackendKey,
    ) -> Self {
        let protocol = policy.and_then(|policy| policy.protocol);
        self.is_assumed &= protocol.is_none();
        match protocol {
            None => {}
            Some(BackendProtocol::Http1) => self.protocol = EndpointProtocol::Http1,
            Some(BackendProtocol::H2c | BackendProtocol::H2) => {
                self.protocol = EndpointProtocol::Http2;
            }
            Some(BackendProtocol::H3) => self.protocol = EndpointProtocol::Http3,
        }
        let is_plain = protocol == Some(BackendProtocol::H2c);
        if !is_plain && policy.is_some_and(|policy| policy.tls.insecure_skip_verify) {
            self.tls.get_or_insert_with(|| endpoint_tls(TrustAnchors::AcceptAny, key).into());
        }
        if protocol == Some(BackendProtocol::H2) || self.protocol == EndpointProtocol::Http3 {
            self = self.require_tls(key);
        }
        self
    }

    /// Requires TLS. If no policy configures verification, no certificate is trusted.
    pub(super) fn require_tls(mut self, key: &BackendKey) -> Self {
        self.tls.get_or_insert_with(|| endpoint_tls(TrustAnchors::Given(Vec::new()), key).into());
        self
    }
}

/// Returns the TLS settings of a backend without a BackendTLSPolicy.
pub(super) fn endpoint_tls(roots: TrustAnchors, key: &BackendKey) -> EndpointTls {
    let server_name = format!("{}.{}.svc", key.service, key.namespace).into();
    EndpointTls { server_name, subject_names: Vec::new(), roots, client: None }
}
