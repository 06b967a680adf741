//! Names of the annotations of other ingress controllers.

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
    Affinity,
    AffinityMode,
    AppRoot,
    BackendProtocol,
    Balance,
    BodySize,
    ConnectTimeout,
    CookieMaxAge,
    CookieName,
    /// The name of the affinity cookie; it also enables affinity.
    CookiePersistence,
    ForceTls,
    IdleTimeout,
    MaxInFlight,
    /// Buffering of bodies in nginx. Sheave streams bodies.
    Buffers,
    PermanentCode,
    PermanentRedirect,
    QueueLength,
    QueueTimeout,
    Rewrite,
    TemporalCode,
    TemporalRedirect,
    TlsRedirect,
    TlsRedirectCode,
    UsesPatterns,
    /// Access control or traffic diversion that is not supported. Requests are rejected, because otherwise they would
    /// pass unchecked or reach the wrong Service.
    AccessControl,
}

use AnnotationKey as S;

const NGINX: &[(&str, AnnotationKey)] = &[
    ("affinity", S::Affinity),
    ("affinity-mode", S::AffinityMode),
    ("app-root", S::AppRoot),
    ("backend-protocol", S::BackendProtocol),
    ("force-ssl-redirect", S::ForceTls),
    ("load-balance", S::Balance),
    ("permanent-redirect", S::PermanentRedirect),
    ("permanent-redirect-code", S::PermanentCode),
    ("proxy-body-size", S::BodySize),
    ("proxy-buffer-size", S::Buffers),
    ("proxy-buffering", S::Buffers),
    ("proxy-buffers-number", S::Buffers),
    ("proxy-busy-buffers-size", S::Buffers),
    ("proxy-connect-timeout", S::ConnectTimeout),
    ("proxy-max-temp-file-size", S::Buffers),
    ("proxy-read-timeout", S::IdleTimeout),
    ("proxy-request-buffering", S::Buffers),
    ("proxy-send-timeout", S::IdleTimeout),
    ("rewrite-target", S::Rewrite),
    ("session-cookie-max-age", S::CookieMaxAge),
    ("session-cookie-name", S::CookieName),
    ("ssl-redirect", S::TlsRedirect),
    ("temporal-redirect", S::TemporalRedirect),
    ("temporal-redirect-code", S::TemporalCode),
    ("use-regex", S::UsesPatterns),
];

const HAPROXY_INGRESS: &[(&str, AnnotationKey)] = &[
    ("affinity", S::Affinity),
    ("app-root", S::AppRoot),
    ("backend-protocol", S::BackendProtocol),
    ("balance-algorithm", S::Balance),
    ("maxconn-server", S::MaxInFlight),
    ("maxqueue-server", S::QueueLength),
    ("redirect-to", S::TemporalRedirect),
    ("redirect-to-code", S::TemporalCode),
    ("rewrite-target", S::Rewrite),
    ("session-cookie-name", S::CookieName),
    ("ssl-redirect", S::TlsRedirect),
    ("ssl-redirect-code", S::TlsRedirectCode),
    ("timeout-connect", S::ConnectTimeout),
    ("timeout-queue", S::QueueTimeout),
    ("timeout-server", S::IdleTimeout),
];

const HAPROXY: &[(&str, AnnotationKey)] = &[
    ("cookie-persistence", S::CookiePersistence),
    ("load-balance", S::Balance),
    ("pod-maxconn", S::MaxInFlight),
    ("ssl-redirect", S::TlsRedirect),
    ("ssl-redirect-code", S::TlsRedirectCode),
    ("timeout-connect", S::ConnectTimeout),
    ("timeout-queue", S::QueueTimeout),
    ("timeout-server", S::IdleTimeout),
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
