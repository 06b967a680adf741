//! What the data plane has, by Gateway API's names, and which versions of its definitions we know.

use super::{Condition, ConditionType, Detail, Reason, Status};

/// The features of Gateway API that are served, sorted: what a GatewayClass of ours says in `supportedFeatures`.
///
/// Left out are the mesh, which is another product; `GatewayInfrastructure`, for we make nothing for a Gateway that could
/// have its labels; and what the experimental channel alone has. Some features have had two names.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "GRPCRouteRequestHeaderModifier",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayPort8080",
    "GatewayRouteHostnameIntersectionPrecedence",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteBackendURLRewrite",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryCodes",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// The oldest and the newest minor version of Gateway API 1 whose definitions we know.
const MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 6..=7;

/// Adds to the status of each GatewayClass whether we know the version of Gateway API's definitions: what their annotation
/// `gateway.networking.k8s.io/bundle-version` says. We serve what we understand in either case.
pub fn tell_version(statuses: &mut [Status], bundle_version: Option<&str>) {
    let kind = ConditionType::SupportedVersion;
    for status in statuses {
        if let Detail::GatewayClass(conditions) = &mut status.detail {
            let fault = version_fault(bundle_version);
            conditions.retain(|condition| condition.kind != kind);
            conditions.push(match fault {
                None => Condition::yes(kind, Reason::SupportedVersion),
                Some(message) => Condition::no(kind, Reason::UnsupportedVersion, message),
            });
        }
    }
}

fn version_fault(bundle_version: Option<&str>) -> Option<String> {
    let (oldest, newest) = (MINOR_VERSIONS.start(), MINOR_VERSIONS.end());
    let known = format!("known are v1.{oldest} to v1.{newest}");
    let Some(version) = bundle_version else {
        return Some(format!("the definitions of Gateway API do not say their version: {known}"));
    };
    let minor = version.strip_prefix("v1.").and_then(|rest| rest.split(['.', '-']).next());
    let is_known = minor
        .and_then(|minor| minor.parse().ok())
        .is_some_and(|minor: u32| MINOR_VERSIONS.contains(&minor));
    (!is_known).then(|| format!("the definitions of Gateway API are of version {version}: {known}"))
}
