//! Features of Gateway API that the data plane supports, and versions of its CRDs that Sheave supports.

use super::{
    ConditionReason, ConditionType, GatewayClassStatus, ResourceStatus, StatusCondition,
    StatusDetail,
};

/// The supported features of Gateway API, sorted: `supportedFeatures` of Sheave's GatewayClasses.
///
/// Not included: the mesh features, because a class is of Gateways; `GatewayInfrastructure`, because the resources that
/// Sheave creates for a Gateway are in Sheave's own namespace, or there are none; and features that only the
/// experimental channel has. Some features have had two names.
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

/// The oldest and the newest supported minor version of Gateway API 1.
const MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 6..=7;

/// Features that the CRDs of the standard channel contain from this minor version on. Before it, a route cannot use
/// them.
const RETRY_FEATURES: (u32, &str) = (7, "HTTPRouteRetry");

/// Adds to the status of each GatewayClass if the version of the Gateway API CRDs is supported. The version is the
/// CRDs' annotation `gateway.networking.k8s.io/bundle-version`. Sheave serves all supported objects in either case.
/// Features for which these CRDs have no fields are removed from the list of features.
pub fn report_version(statuses: &mut [ResourceStatus], bundle_version: Option<&str>) {
    let kind = ConditionType::SupportedVersion;
    let (since, retries) = RETRY_FEATURES;
    let has_retries = bundle_version.and_then(minor).is_none_or(|minor| minor >= since);
    for status in statuses {
        if let StatusDetail::GatewayClass(GatewayClassStatus { conditions, features }) =
            &mut status.detail
        {
            features.retain(|feature| has_retries || !feature.starts_with(retries));
            conditions.retain(|condition| condition.kind != kind);
            conditions.push(match version_fault(bundle_version) {
                None => StatusCondition::yes(kind, ConditionReason::SupportedVersion),
                Some(message) => {
                    StatusCondition::no(kind, ConditionReason::UnsupportedVersion, message)
                }
            });
        }
    }
}

/// Returns the minor version of a version of Gateway API 1.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("v1.")?.split(['.', '-']).next()?.parse().ok()
}

fn version_fault(bundle_version: Option<&str>) -> Option<String> {
    let (oldest, newest) = (MINOR_VERSIONS.start(), MINOR_VERSIONS.end());
    let supported = format!("v1.{oldest} to v1.{newest} are supported");
    let Some(version) = bundle_version else {
        return Some(format!("the Gateway API CRDs do not state their version; {supported}"));
    };
    let is_known = minor(version).is_some_and(|minor| MINOR_VERSIONS.contains(&minor));
    (!is_known).then(|| format!("the Gateway API CRDs are of version {version}; {supported}"))
}
