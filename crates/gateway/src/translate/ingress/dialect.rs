//! Names of the annotations of other ingress controllers.

use super::annotation::{BackendAnnotation, RedirectAnnotation, RewriteAnnotation};

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
    /// Nothing, whatever the value: Sheave has no such mechanism, and needs none.
    NoEffect,
    /// Behaviour that Sheave always has: that of these values. The message is for other values.
    Only(&'static [&'static str], &'static str),
    /// Redirects.
    Redirect(RedirectAnnotation),
    /// Changes to requests.
    Rewrite(RewriteAnnotation),
}

use AnnotationKey::{Backend, NoEffect, Only, Redirect, Rewrite};
use BackendAnnotation as B;
use RedirectAnnotation as R;
use RewriteAnnotation as W;

const BODY_SIZE: AnnotationKey = Only(
    &["0"],
    "is ignored: the size of bodies is limited per Gateway, by `limits.bodyBytes` of a ClientPolicy",
);

const NGINX: &[(&str, AnnotationKey)] = &[
    ("affinity", Backend(B::Affinity)),
    ("affinity-mode", Backend(B::AffinityMode)),
    ("app-root", Redirect(R::AppRoot)),
    ("backend-protocol", Backend(B::Protocol)),
    ("force-ssl-redirect", Redirect(R::ForceTls)),
    ("load-balance", Backend(B::Balance)),
    ("permanent-redirect", Redirect(R::Permanent)),
    ("permanent-redirect-code", Redirect(R::Code)),
    ("proxy-body-size", BODY_SIZE),
    ("proxy-buffer-size", NoEffect),
    ("proxy-buffering", NoEffect),
    ("proxy-buffers-number", NoEffect),
    ("proxy-busy-buffers-size", NoEffect),
    ("proxy-connect-timeout", Backend(B::ConnectTimeout)),
    ("proxy-max-temp-file-size", NoEffect),
    ("proxy-read-timeout", Backend(B::IdleTimeout)),
    ("proxy-request-buffering", NoEffect),
    ("proxy-send-timeout", Backend(B::IdleTimeout)),
    ("rewrite-target", Rewrite(W::Target)),
    ("session-cookie-max-age", Backend(B::CookieMaxAge)),
    ("session-cookie-name", Backend(B::CookieName)),
    ("ssl-redirect", Redirect(R::Tls)),
    ("temporal-redirect", Redirect(R::Temporal)),
    ("temporal-redirect-code", Redirect(R::Code)),
    ("use-regex", Rewrite(W::UsesPatterns)),
];

const HAPROXY_INGRESS: &[(&str, AnnotationKey)] = &[
    ("affinity", Backend(B::Affinity)),
    ("app-root", Redirect(R::AppRoot)),
    ("backend-protocol", Backend(B::Protocol)),
    ("balance-algorithm", Backend(B::Balance)),
    ("maxconn-server", Backend(B::MaxInFlight)),
    ("maxqueue-server", Backend(B::QueueLength)),
    ("redirect-to", Redirect(R::Temporal)),
    ("redirect-to-code", Redirect(R::Code)),
    ("rewrite-target", Rewrite(W::Target)),
    ("session-cookie-name", Backend(B::CookieName)),
    ("ssl-redirect", Redirect(R::Tls)),
    ("ssl-redirect-code", Redirect(R::TlsCode)),
    ("timeout-connect", Backend(B::ConnectTimeout)),
    ("timeout-queue", Backend(B::QueueTimeout)),
    ("timeout-server", Backend(B::IdleTimeout)),
];

const HAPROXY: &[(&str, AnnotationKey)] = &[
    ("cookie-persistence", Backend(B::CookiePersistence)),
    ("load-balance", Backend(B::Balance)),
    ("pod-maxconn", Backend(B::MaxInFlight)),
    ("ssl-redirect", Redirect(R::Tls)),
    ("ssl-redirect-code", Redirect(R::TlsCode)),
    ("timeout-connect", Backend(B::ConnectTimeout)),
    ("timeout-queue", Backend(B::QueueTimeout)),
    ("timeout-server", Backend(B::IdleTimeout)),
];

/// Prefixes of annotations that restrict access or divert requests.
const ACCESS_CONTROL_PREFIXES: &[&str] = &[
    "allow-list",
    "allowlist",
    "auth-",
    "blacklist",
    "canary",
    "configuration-snippet",
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
