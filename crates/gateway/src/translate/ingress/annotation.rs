//! What annotations ask for, as the settings of ours that mean the same.

use super::super::Report;
use super::dialect::{Dialect, Setting};
use crate::matching::{HostPattern, PathPattern};
use crate::objects::{
    Affinity, AffinityType, Algorithm, BackendPolicySpec, BackendProtocol, Duration, HashOn,
    HashOnType, IngressSpec, MaxInFlight, PathModifier, PathModifierType, RedirectScheme,
    RequestRedirect, Resource,
};

/// The field of every problem here.
pub(super) const FIELD: &str = "metadata.annotations";

/// As many as a queue may ever have.
const LONGEST_QUEUE: u32 = 1_000_000;

/// What the annotations of an Ingress ask for.
pub(super) struct Wishes {
    /// How its Services are used, as far as they say; its targets are not known yet.
    pub(super) policy: BackendPolicySpec,
    /// What endpoints are asked for.
    pub(super) rewrite: Option<Rewrite>,
    /// Paths of `ImplementationSpecific` are regular expressions.
    pub(super) uses_patterns: bool,
    /// Whether who comes without TLS is sent to come with it; not given: where there is a certificate.
    pub(super) tls_redirect: Option<bool>,
    /// Even where there is no certificate of ours.
    pub(super) forces_tls: bool,
    /// The status of the answer that says so.
    pub(super) tls_redirect_code: u16,
    /// Where every request is sent.
    pub(super) redirect: Option<RequestRedirect>,
    /// Where who asks for `/` is sent.
    pub(super) app_root: Option<String>,
    /// Something asks for what we do not do, and without which nothing is to pass.
    pub(super) is_closed: bool,
    /// Whether there is a cookie at all: its name alone asks for none.
    has_cookie: bool,
    /// The longest of those that are given, for Sheave has one where nginx has two.
    idle: Option<Duration>,
}

/// What an endpoint is asked for in place of what the client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rewrite {
    /// This, whatever it was.
    Whole(String),
    /// This in place of the path of the rule.
    Prefix(String),
    /// With what a regular expression has found: `$1`, `$2`.
    Captured(String),
}

/// Every wish of an Ingress. What is not understood is reported, by its name.
pub(super) fn wishes(ingress: &Resource<IngressSpec>, report: &mut Report) -> Wishes {
    let mut wishes = Wishes::default();
    for (annotation, value) in &ingress.metadata.annotations {
        let Some((dialect, name)) = Dialect::find(annotation) else { continue };
        let result = match dialect.setting(name) {
            Some(setting) => wishes.add(dialect, setting, value.trim()),
            None => Err("is not supported, and left out".to_owned()),
        };
        if let Err(message) = result {
            report.problem("Ingress", ingress, FIELD, format!("{annotation} {message}"));
        }
    }
    wishes.settle();
    wishes
}

impl Default for Wishes {
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
            is_closed: false,
            has_cookie: false,
            idle: None,
        }
    }
}

impl Wishes {
    /// Whether it asks for anything that is the Services' own.
    pub(super) fn has_policy(&self) -> bool {
        self.policy != BackendPolicySpec::for_targets(Vec::new())
    }

    fn add(&mut self, dialect: Dialect, setting: Setting, value: &str) -> Result<(), String> {
        match setting {
            Setting::Affinity if value == "cookie" => {
                self.cookie();
                self.has_cookie = true;
            }
            Setting::Affinity => return Err(format!("must be `cookie`, is {value}")),
            Setting::AffinityMode if !["balanced", "persistent"].contains(&value) => {
                return Err(format!("must be `balanced` or `persistent`, is {value}"));
            }
            Setting::AffinityMode | Setting::Buffers => {}
            Setting::AppRoot => self.app_root = Some(path(value)?),
            Setting::BackendProtocol => self.protocol(value)?,
            Setting::Balance => self.balance(value)?,
            Setting::BodySize if value == "0" => {}
            Setting::BodySize => {
                let message = "is left out: bodies are not limited for an Ingress alone, but for a \
                               Gateway, by `limits.bodyBytes` of a ClientPolicy";
                return Err(message.to_owned());
            }
            Setting::ConnectTimeout => self.policy.timeouts.connect = time(dialect, value)?,
            Setting::CookieMaxAge => {
                let age = Duration::from_secs(number(value, 1, 86_400)?.into());
                self.cookie().max_age = Some(age);
            }
            Setting::CookieName | Setting::CookiePersistence => {
                let name = cookie_name(value)?;
                self.cookie().name = Some(name);
                self.has_cookie |= setting == Setting::CookiePersistence;
            }
            Setting::ForceTls => self.forces_tls = yes(value)?,
            Setting::IdleTimeout => self.idle = self.idle.max(Some(time(dialect, value)?)),
            Setting::MaxInFlight => {
                let limit = number(value, 1, 1_000_000)?;
                self.policy.max_in_flight_per_endpoint = Some(MaxInFlight::Number(limit));
            }
            Setting::PermanentCode | Setting::TemporalCode => {
                let code = code(value)?;
                // It stands after its redirect in the order of names, and means nothing alone.
                self.redirect.iter_mut().for_each(|redirect| redirect.status_code = code);
            }
            Setting::PermanentRedirect => self.redirect = Some(target(value, 301)?),
            Setting::TemporalRedirect => self.redirect = Some(target(value, 302)?),
            Setting::QueueLength => {
                let length = number(value, 0, LONGEST_QUEUE)?;
                // HAProxy's 0 is no limit.
                let length = if length == 0 { LONGEST_QUEUE } else { length };
                self.policy.queue.max_requests = Some(length);
            }
            Setting::QueueTimeout => self.policy.queue.timeout = time(dialect, value)?,
            Setting::Rewrite => self.rewrite = Some(rewrite(dialect, value)?),
            Setting::TlsRedirect => self.tls_redirect = Some(yes(value)?),
            Setting::TlsRedirectCode => self.tls_redirect_code = code(value)?,
            Setting::UsesPatterns => self.uses_patterns = yes(value)?,
            Setting::Guard => {
                self.is_closed = true;
                let message = "is not supported, and without it nothing may pass: requests are \
                               answered with 500";
                return Err(message.to_owned());
            }
        }
        Ok(())
    }
}

impl Wishes {
    fn settle(&mut self) {
        if let Some(idle) = self.idle {
            self.policy.timeouts.idle = idle;
        }
        if !self.has_cookie {
            self.policy.affinity = None;
        }
    }

    fn cookie(&mut self) -> &mut Affinity {
        let cookie = || Affinity { kind: AffinityType::Cookie, name: None, max_age: None };
        self.policy.affinity.get_or_insert_with(cookie)
    }

    /// As those controllers do it, a certificate that is not asked for by other means is not looked at.
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

fn yes(value: &str) -> Result<bool, String> {
    value.parse().ok().ok_or_else(|| format!("must be `true` or `false`, is {value}"))
}

fn number(value: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("must be a whole number from {least} to {most}, is {value}"))
}

/// nginx counts in seconds where there is no unit, HAProxy in milliseconds.
fn time(dialect: Dialect, value: &str) -> Result<Duration, String> {
    let end = value.find(|char: char| !char.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let usual = if dialect == Dialect::Nginx { "s" } else { "ms" };
    let millis = match if unit.is_empty() { usual } else { unit } {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = number.parse::<u64>().ok().zip(millis).and_then(|(n, unit)| n.checked_mul(unit));
    let millis = millis.filter(|millis| (1..=86_400_000).contains(millis));
    let message = || format!("must be a time from 1ms to 24h, as 60 or 60s, is {value}");
    millis.map(Duration::from_millis).ok_or_else(message)
}

fn code(value: &str) -> Result<u16, String> {
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

fn path(value: &str) -> Result<String, String> {
    PathPattern::exact(value).map_err(|fault| fault.to_string())?;
    Ok(value.to_owned())
}

fn rewrite(dialect: Dialect, value: &str) -> Result<Rewrite, String> {
    if dialect == Dialect::HaproxyIngress {
        return path(value).map(Rewrite::Prefix);
    }
    let has_captures = value.contains('$');
    if has_captures {
        Ok(Rewrite::Captured(value.to_owned()))
    } else {
        path(value).map(Rewrite::Whole)
    }
}

/// nginx's variable for what the client asked for.
const SAME: &str = "$request_uri";

/// Where a URL leads: its path stays where it ends in [`SAME`].
fn target(value: &str, status_code: u16) -> Result<RequestRedirect, String> {
    let url = value.strip_suffix(SAME);
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
            "must be a URL without query and variables, but for {SAME} in place of its path, is {value}"
        ));
    }
    redirect.path = Some(PathModifier {
        kind: PathModifierType::ReplaceFullPath,
        replace_full_path: Some(whole.to_owned()),
        replace_prefix_match: None,
    });
    Ok(redirect)
}
