//! Annotations of Ingresses, as equivalent settings.

use super::super::report::TranslationReport;
use super::dialect::{AnnotationDialect, AnnotationKey};
use crate::matching::{HostPattern, PathPattern};
use crate::objects::{
    AffinityType, Algorithm, BackendAffinity, BackendPolicySpec, BackendProtocol, Duration, HashOn,
    HashOnType, IngressSpec, MaxInFlight, PathModifier, PathModifierType, RedirectScheme,
    RequestRedirect, TypedObject,
};

/// The field path of every problem in annotations.
pub(super) const FIELD: &str = "metadata.annotations";

/// Largest queue length that a BackendPolicy allows.
const MAX_QUEUE_LENGTH: u32 = 1_000_000;

/// Settings from the annotations of an Ingress.
pub(super) struct AnnotationSettings {
    /// The BackendPolicy of its Services, as far as annotations set it; its targets are not known yet.
    pub(super) policy: BackendPolicySpec,
    /// The rewrite of paths.
    pub(super) rewrite: Option<RewriteTarget>,
    /// True if paths of `ImplementationSpecific` are regular expressions.
    pub(super) uses_patterns: bool,
    /// True if plain-HTTP requests are redirected to HTTPS; `None` redirects hosts with a certificate.
    pub(super) tls_redirect: Option<bool>,
    /// True if the redirect to HTTPS also applies to hosts without a certificate.
    pub(super) forces_tls: bool,
    /// The status of the redirect to HTTPS.
    pub(super) tls_redirect_code: u16,
    /// The redirect of every request.
    pub(super) redirect: Option<RequestRedirect>,
    /// The path that requests for `/` are redirected to.
    pub(super) app_root: Option<String>,
    /// True if an unsupported annotation restricts access, so that all requests are denied.
    pub(super) denies_all: bool,
    /// True if session affinity by cookie is on: a cookie name alone does not enable it.
    has_cookie: bool,
    /// The longest of the given timeouts: Sheave has one idle timeout where nginx has two.
    idle_timeout: Option<Duration>,
}

/// The new path of a request to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RewriteTarget {
    /// This path, regardless of the requested one.
    FullPath(String),
    /// This path in place of the path of the rule.
    Prefix(String),
    /// A path with captures of a regular expression: `$1`, `$2`.
    Captures(String),
}

/// Returns all settings of an Ingress. Annotations that are not understood are reported by name.
pub(super) fn annotation_settings(
    ingress: &TypedObject<IngressSpec>,
    report: &mut TranslationReport,
) -> AnnotationSettings {
    let mut settings = AnnotationSettings::default();
    for (annotation, value) in &ingress.metadata.annotations {
        let Some((dialect, name)) = AnnotationDialect::find(annotation) else { continue };
        let result = match dialect.setting(name) {
            Some(setting) => settings.add(dialect, setting, value.trim()),
            None => Err("is not supported and is ignored".to_owned()),
        };
        if let Err(message) = result {
            report.problem("Ingress", ingress, FIELD, format!("{annotation} {message}"));
        }
    }
    settings.finish();
    settings
}

impl Default for AnnotationSettings {
    fn default() -> Self {
        Self {
            policy: BackendPolicySpec::for_targets(Vec::new()),
            rewrite: None,
            uses_patterns: false,
            tls_redirect: None,
            forces_tls: false,
            tls_redirect_code: 308,
            redirect: None,
            app_root: None,
            denies_all: false,
            has_cookie: false,
            idle_timeout: None,
        }
    }
}

impl AnnotationSettings {
    /// True if annotations set anything in the BackendPolicy.
    pub(super) fn has_policy(&self) -> bool {
        self.policy != BackendPolicySpec::for_targets(Vec::new())
    }

    fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: AnnotationKey,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            AnnotationKey::Affinity if value == "cookie" => {
                self.cookie();
                self.has_cookie = true;
            }
            AnnotationKey::Affinity => return Err(format!("must be `cookie`, is {value}")),
            AnnotationKey::AffinityMode if !["balanced", "persistent"].contains(&value) => {
                return Err(format!("must be `balanced` or `persistent`, is {value}"));
            }
            AnnotationKey::AffinityMode | AnnotationKey::Buffers => {}
            AnnotationKey::AppRoot => self.app_root = Some(parse_path(value)?),
            AnnotationKey::BackendProtocol => self.protocol(value)?,
            AnnotationKey::Balance => self.balance(value)?,
            AnnotationKey::BodySize if value == "0" => {}
            AnnotationKey::BodySize => {
                let message = "is ignored: the size of bodies is limited per \
                               Gateway, by `limits.bodyBytes` of a ClientPolicy";
                return Err(message.to_owned());
            }
            AnnotationKey::ConnectTimeout => {
                self.policy.timeouts.connect = parse_duration(dialect, value)?
            }
            AnnotationKey::CookieMaxAge => {
                let age = Duration::from_secs(parse_number(value, 1, 86_400)?.into());
                self.cookie().max_age = Some(age);
            }
            AnnotationKey::CookieName | AnnotationKey::CookiePersistence => {
                let name = cookie_name(value)?;
                self.cookie().name = Some(name);
                self.has_cookie |= setting == AnnotationKey::CookiePersistence;
            }
            AnnotationKey::ForceTls => self.forces_tls = parse_bool(value)?,
            AnnotationKey::IdleTimeout => {
                self.idle_timeout = self.idle_timeout.max(Some(parse_duration(dialect, value)?))
            }
            AnnotationKey::MaxInFlight => {
                let limit = parse_number(value, 1, 1_000_000)?;
                self.policy.max_in_flight_per_endpoint = Some(MaxInFlight::Number(limit));
            }
            AnnotationKey::PermanentCode | AnnotationKey::TemporalCode => {
                let code = parse_redirect_status(value)?;
                // The code follows its redirect in the order of names, and has no effect alone.
                self.redirect.iter_mut().for_each(|redirect| redirect.status_code = code);
            }
            AnnotationKey::PermanentRedirect => self.redirect = Some(parse_redirect(value, 301)?),
            AnnotationKey::TemporalRedirect => self.redirect = Some(parse_redirect(value, 302)?),
            AnnotationKey::QueueLength => {
                let length = parse_number(value, 0, MAX_QUEUE_LENGTH)?;
                // In HAProxy, 0 means no limit.
                let length = if length == 0 { MAX_QUEUE_LENGTH } else { length };
                self.policy.queue.max_requests = Some(length);
            }
            AnnotationKey::QueueTimeout => {
                self.policy.queue.timeout = parse_duration(dialect, value)?
            }
            AnnotationKey::Rewrite => self.rewrite = Some(parse_rewrite(dialect, value)?),
            AnnotationKey::TlsRedirect => self.tls_redirect = Some(parse_bool(value)?),
            AnnotationKey::TlsRedirectCode => {
                self.tls_redirect_code = parse_redirect_status(value)?
            }
            AnnotationKey::UsesPatterns => self.uses_patterns = parse_bool(value)?,
            AnnotationKey::AccessControl => {
                self.denies_all = true;
                let message = "is not supported and restricts access: all requests are \
                               answered with 500";
                return Err(message.to_owned());
            }
        }
        Ok(())
    }
}

impl AnnotationSettings {
    fn finish(&mut self) {
        if let Some(idle) = self.idle_timeout {
            self.policy.timeouts.idle = idle;
        }
        if !self.has_cookie {
            self.policy.affinity = None;
        }
    }

    fn cookie(&mut self) -> &mut BackendAffinity {
        let cookie = || BackendAffinity { kind: AffinityType::Cookie, name: None, max_age: None };
        self.policy.affinity.get_or_insert_with(cookie)
    }

    /// Sets the protocol. Like those controllers, it does not verify certificates unless something else requires it.
    fn protocol(&mut self, value: &str) -> Result<(), String> {
        let (protocol, is_encrypted) = match &*value.to_ascii_uppercase() {
            "HTTP" | "H1" => (BackendProtocol::Http1, false),
            "HTTPS" | "H1-SSL" => (BackendProtocol::Http1, true),
            "GRPC" | "H2" => (BackendProtocol::H2c, false),
            "GRPCS" | "H2-SSL" => (BackendProtocol::H2, true),
            _ => return Err(format!("must be HTTP, HTTPS, GRPC or GRPCS, is {value}")),
        };
        self.policy.protocol = Some(protocol);
        self.policy.tls.insecure_skip_verify = is_encrypted;
        Ok(())
    }

    fn balance(&mut self, value: &str) -> Result<(), String> {
        let hashed = |kind| Some(HashOn { kind, name: None });
        let (algorithm, hash_on) = match value {
            "round_robin" | "roundrobin" | "static-rr" => (Algorithm::RoundRobin, None),
            "ewma" => (Algorithm::PeakEwma, None),
            "leastconn" => (Algorithm::LeastLoad, None),
            "random" => (Algorithm::Random, None),
            "source" => (Algorithm::ConsistentHash, hashed(HashOnType::Source)),
            "uri" => (Algorithm::ConsistentHash, hashed(HashOnType::Path)),
            _ => return Err(format!("{value} is not supported: see `algorithm` of BackendPolicy")),
        };
        (self.policy.algorithm, self.policy.hash_on) = (algorithm, hash_on);
        Ok(())
    }
}

fn parse_bool(value: &str) -> Result<bool, String> {
    value.parse().ok().ok_or_else(|| format!("must be `true` or `false`, is {value}"))
}

fn parse_number(value: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("must be a whole number from {least} to {most}, is {value}"))
}

/// Parses a duration. Without a unit, nginx counts in seconds, HAProxy in milliseconds.
fn parse_duration(dialect: AnnotationDialect, value: &str) -> Result<Duration, String> {
    let end = value.find(|char: char| !char.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let default_unit = if dialect == AnnotationDialect::IngressNginx { "s" } else { "ms" };
    let millis = match if unit.is_empty() { default_unit } else { unit } {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = number.parse::<u64>().ok().zip(millis).and_then(|(n, unit)| n.checked_mul(unit));
    let millis = millis.filter(|millis| (1..=86_400_000).contains(millis));
    let message = || format!("must be a time from 1ms to 24h, such as 60 or 60s, is {value}");
    millis.map(Duration::from_millis).ok_or_else(message)
}

fn parse_redirect_status(value: &str) -> Result<u16, String> {
    let code = value.parse().ok().filter(|code| [301, 302, 303, 307, 308].contains(code));
    code.ok_or_else(|| format!("must be 301, 302, 303, 307 or 308, is {value}"))
}

fn cookie_name(value: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=256).contains(&value.len()) && value.bytes().all(is_inner);
    is_name
        .then(|| value.to_owned())
        .ok_or_else(|| format!("must be a name of letters, digits, `-`, `_` and `.`, is {value}"))
}

fn parse_path(value: &str) -> Result<String, String> {
    PathPattern::exact(value).map_err(|fault| fault.to_string())?;
    Ok(value.to_owned())
}

fn parse_rewrite(dialect: AnnotationDialect, value: &str) -> Result<RewriteTarget, String> {
    if dialect == AnnotationDialect::HaproxyIngress {
        return parse_path(value).map(RewriteTarget::Prefix);
    }
    let has_captures = value.contains('$');
    if has_captures {
        Ok(RewriteTarget::Captures(value.to_owned()))
    } else {
        parse_path(value).map(RewriteTarget::FullPath)
    }
}

/// The variable of nginx for the requested path and query.
const REQUEST_URI: &str = "$request_uri";

/// Parses the target of a redirect. If it ends in [`REQUEST_URI`], the path is kept.
fn parse_redirect(value: &str, status_code: u16) -> Result<RequestRedirect, String> {
    let url = value.strip_suffix(REQUEST_URI);
    let keeps_path = url.is_some();
    let url = url.unwrap_or(value);
    let mut redirect = RequestRedirect { status_code, ..Default::default() };
    let mut rest = url;
    if let Some((scheme, authority)) = url.split_once("://") {
        redirect.scheme = Some(match scheme {
            "http" => RedirectScheme::Http,
            "https" => RedirectScheme::Https,
            _ => return Err(format!("must begin with http:// or https://, is {value}")),
        });
        let end = authority.find('/').unwrap_or(authority.len());
        let (host, port) = authority[..end].split_once(':').unwrap_or((&authority[..end], ""));
        let is_host = matches!(HostPattern::parse(host), Ok(HostPattern::Exact(_)));
        let number = port.parse().ok().filter(|port| *port != 0);
        if !is_host || (number.is_none() && !port.is_empty()) {
            return Err(format!("must name a host in lower case, is {value}"));
        }
        (redirect.hostname, redirect.port) = (Some(host.to_owned()), number);
        rest = &authority[end..];
    }
    if rest.is_empty() && keeps_path {
        return Ok(redirect);
    }
    let whole = if rest.is_empty() { "/" } else { rest };
    if keeps_path || PathPattern::exact(whole).is_err() {
        return Err(format!(
            "must be a URL without query and variables, except {REQUEST_URI} in place of its path, is {value}"
        ));
    }
    redirect.path = Some(PathModifier {
        kind: PathModifierType::ReplaceFullPath,
        replace_full_path: Some(whole.to_owned()),
        replace_prefix_match: None,
    });
    Ok(redirect)
}
