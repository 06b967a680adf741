//! Names of the annotations of other ingress controllers.

/// Annotations for behaviour that Sheave always has.
mod fixed;

use super::annotation::{
    BackendAnnotation, BasicAuthAnnotation, CanaryAnnotation, ClientAnnotation,
    ClientCertificateAnnotation, CorsAnnotation, EndpointTlsAnnotation, ErrorPageAnnotation,
    ExternalAuthAnnotation, HostAnnotation, RateAnnotation, RedirectAnnotation, RewriteAnnotation,
    TrafficAnnotation,
};

/// The controller that defines an annotation, which determines the meaning of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnotationDialect {
    /// ingress-nginx.
    IngressNginx,
    /// HAProxy Ingress.
    HaproxyIngress,
    /// The ingress controller of HAProxy Technologies.
    Haproxy,
}

/// The setting that an annotation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnotationKey {
    /// Access control or traffic diversion that is not supported. Requests are rejected, because otherwise they would
    /// pass unchecked or reach the wrong Service.
    AccessControl,
    /// Connections to endpoints and the choice among them.
    Backend(BackendAnnotation),
    /// Names and passwords of users.
    BasicAuth(BasicAuthAnnotation),
    /// Canaries.
    Canary(CanaryAnnotation),
    /// Addresses of clients that may send requests.
    Client(ClientAnnotation),
    /// Certificates of clients.
    ClientCertificate(ClientCertificateAnnotation),
    /// Cross-origin requests.
    Cors(CorsAnnotation),
    /// Header fields of responses.
    CustomHeaders,
    /// Error pages.
    ErrorPage(ErrorPageAnnotation),
    /// TLS to endpoints.
    EndpointTls(EndpointTlsAnnotation),
    /// Authorization by another server.
    ExternalAuth(ExternalAuthAnnotation),
    /// Hosts besides those of rules.
    Host(HostAnnotation),
    /// Nothing, whatever the value: Sheave has no such mechanism, and needs none.
    NoEffect,
    /// Behaviour that Sheave always has: that of these values. The message is for other values.
    Only(&'static [&'static str], &'static str),
    /// Rates of requests.
    RateLimit(RateAnnotation),
    /// Redirects.
    Redirect(RedirectAnnotation),
    /// Changes to requests.
    Rewrite(RewriteAnnotation),
    /// Directives of nginx.
    Snippet,
    /// Limits of the size of requests.
    Traffic(TrafficAnnotation),
}

use AnnotationKey::{
    Backend, BasicAuth, Canary, Client, ClientCertificate, Cors, CustomHeaders, EndpointTls,
    ErrorPage, ExternalAuth, Host, NoEffect, RateLimit, Redirect, Rewrite, Snippet, Traffic,
};
use BackendAnnotation as B;
use BasicAuthAnnotation as U;
use CanaryAnnotation as Y;
use ClientAnnotation as A;
use ClientCertificateAnnotation as X;
use CorsAnnotation as C;
use EndpointTlsAnnotation as T;
use ExternalAuthAnnotation as E;
use HostAnnotation as H;
use RedirectAnnotation as R;
use RewriteAnnotation as W;
use fixed::*;

const NGINX: &[(&str, AnnotationKey)] = &[
    ("affinity", Backend(B::Affinity)),
    ("affinity-mode", Backend(B::AffinityMode)),
    ("affinity-canary-behavior", CANARY_AFFINITY),
    ("allowlist-source-range", Client(A::Allowed)),
    ("app-root", Redirect(R::AppRoot)),
    ("auth-always-set-cookie", ExternalAuth(E::AlwaysSetCookie)),
    ("auth-cache-duration", NoEffect),
    ("auth-cache-key", NoEffect),
    ("auth-keepalive", NoEffect),
    ("auth-keepalive-requests", NoEffect),
    ("auth-keepalive-share-vars", NoEffect),
    ("auth-keepalive-timeout", NoEffect),
    ("auth-method", ExternalAuth(E::Method)),
    ("auth-realm", BasicAuth(U::Realm)),
    ("auth-request-redirect", AUTH_REDIRECT),
    ("auth-response-headers", ExternalAuth(E::ResponseHeaders)),
    ("auth-secret", BasicAuth(U::Secret)),
    ("auth-secret-type", BasicAuth(U::SecretType)),
    ("auth-signin", ExternalAuth(E::SignIn)),
    ("auth-signin-redirect-param", ExternalAuth(E::RedirectParameter)),
    ("auth-tls-error-page", ClientCertificate(X::ErrorPage)),
    ("auth-tls-pass-certificate-to-upstream", ClientCertificate(X::PassesCertificate)),
    ("auth-tls-secret", ClientCertificate(X::Secret)),
    ("auth-tls-verify-client", ClientCertificate(X::Verification)),
    ("auth-tls-verify-depth", ClientCertificate(X::Depth)),
    ("auth-type", BasicAuth(U::Type)),
    ("auth-url", ExternalAuth(E::Url)),
    ("backend-protocol", Backend(B::Protocol)),
    ("canary", Canary(Y::Enabled)),
    ("canary-by-cookie", Canary(Y::Cookie)),
    ("canary-by-header", Canary(Y::Header)),
    ("canary-by-header-pattern", Canary(Y::HeaderPattern)),
    ("canary-by-header-value", Canary(Y::HeaderValue)),
    ("canary-weight", Canary(Y::Weight)),
    ("canary-weight-total", Canary(Y::WeightTotal)),
    ("client-body-buffer-size", NoEffect),
    ("configuration-snippet", Snippet),
    ("cors-allow-credentials", Cors(C::Credentials)),
    ("cors-allow-headers", Cors(C::Headers)),
    ("cors-allow-methods", Cors(C::Methods)),
    ("cors-allow-origin", Cors(C::Origins)),
    ("cors-expose-headers", Cors(C::ExposeHeaders)),
    ("cors-max-age", Cors(C::MaxAge)),
    ("custom-headers", CustomHeaders),
    ("custom-http-errors", ErrorPage(ErrorPageAnnotation::Statuses)),
    ("default-backend", ErrorPage(ErrorPageAnnotation::Service)),
    ("denylist-source-range", Client(A::Denied)),
    ("disable-proxy-intercept-errors", ErrorPage(ErrorPageAnnotation::Disabled)),
    ("enable-access-log", ACCESS_LOG),
    ("enable-cors", Cors(C::Enabled)),
    ("force-ssl-redirect", Redirect(R::ForceTls)),
    ("from-to-www-redirect", Host(H::RedirectsWww)),
    ("limit-allowlist", UNLIMITED_CLIENTS),
    ("limit-burst-multiplier", RateLimit(RateAnnotation::BurstMultiplier)),
    ("limit-connections", Backend(B::MaxPerClient)),
    ("limit-rate", RESPONSE_RATE),
    ("limit-rate-after", RESPONSE_RATE),
    ("limit-rpm", RateLimit(RateAnnotation::PerMinute)),
    ("limit-rps", RateLimit(RateAnnotation::PerSecond)),
    ("limit-whitelist", UNLIMITED_CLIENTS),
    ("load-balance", Backend(B::Balance)),
    ("mirror-host", MIRROR_HOST),
    ("mirror-request-body", MIRROR_BODY),
    ("mirror-target", Rewrite(W::Mirror)),
    ("permanent-redirect", Redirect(R::Permanent)),
    ("permanent-redirect-code", Redirect(R::Code)),
    ("preserve-trailing-slash", REDIRECT_SLASH),
    ("proxy-body-size", Traffic(TrafficAnnotation::BodySize)),
    ("proxy-buffer-size", NoEffect),
    ("proxy-buffering", NoEffect),
    ("proxy-buffers-number", NoEffect),
    ("proxy-busy-buffers-size", NoEffect),
    ("proxy-connect-timeout", Backend(B::ConnectTimeout)),
    ("proxy-cookie-domain", COOKIES),
    ("proxy-cookie-path", COOKIES),
    ("proxy-http-version", HTTP_VERSION),
    ("proxy-max-temp-file-size", NoEffect),
    ("proxy-next-upstream", Backend(B::RetryOn)),
    ("proxy-next-upstream-timeout", RETRY_TIME),
    ("proxy-next-upstream-tries", Backend(B::RetryTries)),
    ("proxy-read-timeout", Backend(B::IdleTimeout)),
    ("proxy-redirect-from", LOCATIONS),
    ("proxy-redirect-to", LOCATIONS),
    ("proxy-request-buffering", NoEffect),
    ("proxy-send-timeout", Backend(B::IdleTimeout)),
    ("proxy-ssl-name", EndpointTls(T::Name)),
    ("proxy-ssl-secret", EndpointTls(T::Secret)),
    ("proxy-ssl-server-name", NoEffect),
    ("proxy-ssl-verify", EndpointTls(T::Verifies)),
    ("relative-redirects", RELATIVE_REDIRECTS),
    ("rewrite-target", Rewrite(W::Target)),
    ("server-alias", Host(H::Aliases)),
    ("service-upstream", CLUSTER_ADDRESS),
    ("session-cookie-change-on-failure", COOKIE_ON_FAILURE),
    ("session-cookie-conditional-samesite-none", COOKIE_SAME_SITE_NONE),
    ("session-cookie-domain", Backend(B::CookieDomain)),
    ("session-cookie-expires", Backend(B::CookieExpires)),
    ("session-cookie-max-age", Backend(B::CookieMaxAge)),
    ("session-cookie-name", Backend(B::CookieName)),
    ("session-cookie-path", Backend(B::CookiePath)),
    ("session-cookie-samesite", Backend(B::CookieSameSite)),
    ("session-cookie-secure", Backend(B::CookieSecure)),
    ("ssl-passthrough", Host(H::PassesTls)),
    ("ssl-redirect", Redirect(R::Tls)),
    ("temporal-redirect", Redirect(R::Temporal)),
    ("temporal-redirect-code", Redirect(R::Code)),
    ("upstream-hash-by", Backend(B::HashKey)),
    ("upstream-hash-by-subset", HASH_SUBSET),
    ("upstream-hash-by-subset-size", NoEffect),
    ("upstream-vhost", Rewrite(W::Host)),
    ("use-regex", Rewrite(W::UsesPatterns)),
    ("whitelist-source-range", Client(A::Allowed)),
    ("x-forwarded-prefix", Rewrite(W::ForwardedPrefix)),
];

const HAPROXY_INGRESS: &[(&str, AnnotationKey)] = &[
    ("affinity", Backend(B::Affinity)),
    ("allowlist-source-range", Client(A::Allowed)),
    ("app-root", Redirect(R::AppRoot)),
    ("auth-realm", BasicAuth(U::Realm)),
    ("auth-secret", BasicAuth(U::Secret)),
    ("auth-type", BasicAuth(U::Type)),
    ("backend-protocol", Backend(B::Protocol)),
    ("balance-algorithm", Backend(B::Balance)),
    ("denylist-source-range", Client(A::Denied)),
    ("maxconn-server", Backend(B::MaxInFlight)),
    ("maxqueue-server", Backend(B::QueueLength)),
    ("proxy-body-size", Traffic(TrafficAnnotation::BodySize)),
    ("redirect-to", Redirect(R::Temporal)),
    ("redirect-to-code", Redirect(R::Code)),
    ("rewrite-target", Rewrite(W::Target)),
    ("session-cookie-name", Backend(B::CookieName)),
    ("ssl-redirect", Redirect(R::Tls)),
    ("ssl-redirect-code", Redirect(R::TlsCode)),
    ("timeout-connect", Backend(B::ConnectTimeout)),
    ("timeout-queue", Backend(B::QueueTimeout)),
    ("timeout-server", Backend(B::IdleTimeout)),
    ("whitelist-source-range", Client(A::Allowed)),
];

const HAPROXY: &[(&str, AnnotationKey)] = &[
    ("allow-list", Client(A::Allowed)),
    ("auth-realm", BasicAuth(U::Realm)),
    ("auth-secret", BasicAuth(U::Secret)),
    ("auth-type", BasicAuth(U::Type)),
    ("blacklist", Client(A::Denied)),
    ("cookie-persistence", Backend(B::CookiePersistence)),
    ("deny-list", Client(A::Denied)),
    ("load-balance", Backend(B::Balance)),
    ("pod-maxconn", Backend(B::MaxInFlight)),
    ("ssl-redirect", Redirect(R::Tls)),
    ("ssl-redirect-code", Redirect(R::TlsCode)),
    ("timeout-connect", Backend(B::ConnectTimeout)),
    ("timeout-queue", Backend(B::QueueTimeout)),
    ("timeout-server", Backend(B::IdleTimeout)),
    ("whitelist", Client(A::Allowed)),
];

/// Prefixes of annotations that restrict access or divert requests.
const ACCESS_CONTROL_PREFIXES: &[&str] = &[
    "allow-list",
    "allowlist",
    "auth-",
    "blacklist",
    "deny-list",
    "denylist",
    "enable-modsecurity",
    "enable-owasp",
    "modsecurity",
    "oauth",
    "satisfy",
    "server-snippet",
    "waf",
    "whitelist",
];

impl AnnotationKey {
    /// True if the setting is that of a canary itself; all others are those of the main Ingress.
    pub(super) fn applies_to_canaries(self) -> bool {
        let is_own = |setting: BackendAnnotation| match setting {
            B::Affinity
            | B::AffinityMode
            | B::Balance
            | B::CookieDomain
            | B::CookieExpires
            | B::CookieMaxAge
            | B::CookieName
            | B::CookiePath
            | B::CookieSameSite
            | B::CookieSecure
            | B::HashKey => true,
            B::ConnectTimeout
            | B::CookiePersistence
            | B::IdleTimeout
            | B::MaxInFlight
            | B::MaxPerClient
            | B::Protocol
            | B::QueueLength
            | B::QueueTimeout
            | B::RetryOn
            | B::RetryTries => false,
        };
        match self {
            Self::Canary(_) => true,
            Self::Backend(setting) => is_own(setting),
            Self::AccessControl
            | Self::BasicAuth(_)
            | Self::Client(_)
            | Self::ClientCertificate(_)
            | Self::Cors(_)
            | Self::CustomHeaders
            | Self::EndpointTls(_)
            | Self::ErrorPage(_)
            | Self::ExternalAuth(_)
            | Self::Host(_)
            | Self::NoEffect
            | Self::Only(..)
            | Self::RateLimit(_)
            | Self::Redirect(_)
            | Self::Rewrite(_)
            | Self::Snippet
            | Self::Traffic(_) => false,
        }
    }
}

impl AnnotationDialect {
    const ALL: [(&'static str, Self); 3] = [
        ("nginx.ingress.kubernetes.io/", Self::IngressNginx),
        ("haproxy-ingress.github.io/", Self::HaproxyIngress),
        ("haproxy.org/", Self::Haproxy),
    ];

    /// Returns the dialect of an annotation, and its name there; `None` if it is not for an ingress controller.
    pub(super) fn find(annotation: &str) -> Option<(Self, &str)> {
        let named =
            |(prefix, dialect): (_, Self)| Some((dialect, annotation.strip_prefix(prefix)?));
        Self::ALL.into_iter().find_map(named)
    }

    /// Returns the part of the names of annotations before the `/`, and the `/`.
    pub(super) fn prefix(self) -> &'static str {
        let named = Self::ALL.into_iter().find(|(_, dialect)| *dialect == self);
        named.map_or("", |(prefix, _)| prefix)
    }

    /// Returns the unit of a duration without a unit.
    pub(super) const fn duration_unit(self) -> &'static str {
        match self {
            Self::IngressNginx => "s",
            Self::HaproxyIngress | Self::Haproxy => "ms",
        }
    }

    /// Returns the setting of a name, or `None` if it is unknown.
    pub(super) fn setting(self, name: &str) -> Option<AnnotationKey> {
        let known = self.settings().iter().find(|(known, _)| *known == name);
        let is_guard = ACCESS_CONTROL_PREFIXES.iter().any(|guard| name.starts_with(guard));
        known
            .map(|(_, setting)| *setting)
            .or_else(|| is_guard.then_some(AnnotationKey::AccessControl))
    }

    const fn settings(self) -> &'static [(&'static str, AnnotationKey)] {
        match self {
            Self::IngressNginx => NGINX,
            Self::HaproxyIngress => HAPROXY_INGRESS,
            Self::Haproxy => HAPROXY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = include_str!("../../../../../docs/guide/from-ingress-nginx.md");

    #[test]
    fn the_guide_names_every_annotation() {
        for (prefix, dialect) in AnnotationDialect::ALL {
            assert!(GUIDE.contains(prefix), "{prefix}");
            for (name, _) in dialect.settings() {
                assert!(GUIDE.contains(&format!("`{name}`")), "{prefix}{name}");
            }
        }
        for guard in ACCESS_CONTROL_PREFIXES {
            assert!(GUIDE.contains(&format!("`{guard}")), "{guard}");
        }
    }
}
