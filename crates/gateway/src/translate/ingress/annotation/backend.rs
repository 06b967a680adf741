//! Settings of the BackendPolicy of an Ingress's Services: load balancing, affinity, limits and timeouts.

use super::super::dialect::AnnotationDialect;
use super::value::{parse_duration, parse_name, parse_number};
use crate::matching::HostPattern;
use crate::objects::{
    AffinityCookieAttributes, AffinityType, Algorithm, BackendAffinity, BackendPolicySpec,
    BackendProtocol, CookieSecurity, Duration, HashOn, HashOnType, HeededRefusals, MaxInFlight,
    SameSite, is_cookie_path,
};

/// Largest number of attempts that a BackendPolicy allows.
const MAX_ATTEMPTS: u32 = 10;
/// Failures of `proxy-next-upstream` after which Sheave always retries.
const FAILURES: &[&str] = &["error", "timeout", "invalid_header"];
/// Largest queue length that a BackendPolicy allows.
const MAX_QUEUE_LENGTH: u32 = 1_000_000;
/// Largest number of requests in flight that a BackendPolicy allows.
const MAX_SLOTS: u32 = 1_000_000;

/// An annotation about connections to endpoints and the choice among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BackendAnnotation {
    Affinity,
    AffinityMode,
    Balance,
    ConnectTimeout,
    CookieDomain,
    /// The lifetime of the cookie as a date, which the time in `CookieMaxAge` replaces.
    CookieExpires,
    CookieMaxAge,
    CookieName,
    CookiePath,
    /// The name of the affinity cookie; it also enables affinity.
    CookiePersistence,
    CookieSameSite,
    CookieSecure,
    HashKey,
    IdleTimeout,
    MaxInFlight,
    /// The requests in flight of one client address.
    MaxPerClient,
    Protocol,
    QueueLength,
    QueueTimeout,
    /// The failures after which a request is tried at another endpoint.
    RetryOn,
    RetryTries,
}

/// The BackendPolicy of the Services of an Ingress, as far as annotations set it.
pub(super) struct BackendAnnotations {
    /// The policy; its targets are not known yet.
    policy: BackendPolicySpec,
    /// True if session affinity by cookie is on: a cookie name alone does not enable it.
    has_cookie: bool,
    /// The longest of the given timeouts: Sheave has one idle timeout where nginx has two.
    idle_timeout: Option<Duration>,
    /// Limit of the requests in flight of one client; 0: no limit.
    max_per_client: u32,
    /// The number of attempts of a request.
    attempts: Option<u32>,
    /// True if no request is tried a second time.
    retries_nothing: bool,
}

impl Default for BackendAnnotations {
    fn default() -> Self {
        let policy = BackendPolicySpec::for_targets(Vec::new());
        Self {
            policy,
            has_cookie: false,
            idle_timeout: None,
            max_per_client: 0,
            attempts: None,
            retries_nothing: false,
        }
    }
}

impl BackendAnnotations {
    pub(super) fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: BackendAnnotation,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            BackendAnnotation::Affinity if value == "cookie" => {
                self.cookie();
                self.has_cookie = true;
            }
            BackendAnnotation::Affinity => return Err(format!("must be `cookie`, is {value}")),
            BackendAnnotation::AffinityMode if !["balanced", "persistent"].contains(&value) => {
                return Err(format!("must be `balanced` or `persistent`, is {value}"));
            }
            BackendAnnotation::AffinityMode => {}
            BackendAnnotation::Balance => self.balance(value)?,
            BackendAnnotation::ConnectTimeout => {
                self.policy.timeouts.connect = parse_duration(dialect.duration_unit(), value)?
            }
            // ingress-nginx sets `Expires` and `Max-Age`, of which browsers heed the latter.
            BackendAnnotation::CookieExpires | BackendAnnotation::CookieMaxAge => {
                let age = Duration::from_secs(parse_number(value, 1, 86_400)?.into());
                self.cookie().max_age = Some(age);
            }
            BackendAnnotation::CookieName | BackendAnnotation::CookiePersistence => {
                let name = parse_name(value)?;
                self.cookie().name = Some(name);
                self.has_cookie |= setting == BackendAnnotation::CookiePersistence;
            }
            BackendAnnotation::CookieDomain => {
                let domain = value.trim_start_matches('.');
                HostPattern::parse(domain).map_err(|fault| fault.to_string())?;
                self.cookie_attributes().domain = Some(domain.to_owned());
            }
            BackendAnnotation::CookiePath if is_cookie_path(value) => {
                self.cookie_attributes().path = Some(value.to_owned());
            }
            BackendAnnotation::CookiePath => {
                return Err(format!("must be a path from `/` on, is {value}"));
            }
            BackendAnnotation::CookieSameSite => {
                self.cookie_attributes().same_site = match value {
                    "Lax" => SameSite::Lax,
                    "Strict" => SameSite::Strict,
                    "None" => SameSite::None,
                    _ => return Err(format!("must be None, Lax or Strict, is {value}")),
                };
            }
            BackendAnnotation::CookieSecure => match value {
                "true" => self.cookie_attributes().secure = CookieSecurity::Always,
                _ => {
                    let message = "is ignored: the affinity cookie has Secure if the connection of the client has TLS";
                    return Err(message.to_owned());
                }
            },
            BackendAnnotation::HashKey => {
                // In nginx a key leads to one endpoint whatever its load, as with Maglev.
                self.policy.hash_on = Some(parse_hash_key(value)?);
                self.policy.algorithm = Algorithm::Maglev;
            }
            BackendAnnotation::IdleTimeout => {
                self.idle_timeout =
                    self.idle_timeout.max(Some(parse_duration(dialect.duration_unit(), value)?))
            }
            BackendAnnotation::MaxInFlight => {
                let limit = parse_number(value, 1, MAX_SLOTS)?;
                self.policy.max_in_flight_per_endpoint = Some(MaxInFlight::Number(limit));
            }
            // ingress-nginx: `limit_conn` by client address, which counts requests in progress; 0 means no limit.
            BackendAnnotation::MaxPerClient => {
                self.max_per_client = parse_number(value, 0, MAX_SLOTS)?
            }
            BackendAnnotation::Protocol => self.protocol(value)?,
            BackendAnnotation::QueueLength => {
                let length = parse_number(value, 0, MAX_QUEUE_LENGTH)?;
                // In HAProxy, 0 means no limit.
                let length = if length == 0 { MAX_QUEUE_LENGTH } else { length };
                self.policy.queue.max_requests = Some(length);
            }
            BackendAnnotation::QueueTimeout => {
                self.policy.queue.timeout = parse_duration(dialect.duration_unit(), value)?
            }
            BackendAnnotation::RetryOn => self.retry_on(value)?,
            // nginx counts the first attempt too; 0 means no limit.
            BackendAnnotation::RetryTries => {
                let attempts = parse_number(value, 0, MAX_ATTEMPTS)?;
                self.attempts = Some(if attempts == 0 { MAX_ATTEMPTS } else { attempts });
            }
        }
        Ok(())
    }

    /// Returns the policy.
    pub(super) fn into_policy(mut self) -> BackendPolicySpec {
        if let Some(idle) = self.idle_timeout {
            self.policy.timeouts.idle = idle;
        }
        if !self.has_cookie {
            self.policy.affinity = None;
        }
        if self.max_per_client > 0 {
            self.limit_clients();
        }
        let attempts = if self.retries_nothing { Some(1) } else { self.attempts };
        self.policy.retry.attempts = attempts.unwrap_or(self.policy.retry.attempts);
        self.policy
    }

    /// Limits the requests in flight of each client. They are counted only if endpoints have a limit: without one of
    /// the annotations it is the largest, and all else is as without a limit.
    fn limit_clients(&mut self) {
        self.policy.clients.max_per_address = Some(self.max_per_client);
        if self.policy.max_in_flight_per_endpoint.is_none() {
            self.policy.max_in_flight_per_endpoint = Some(MaxInFlight::Number(MAX_SLOTS));
            self.policy.queue.max_requests = Some(0);
            self.policy.heed_refusals = HeededRefusals::None;
        }
    }

    fn cookie(&mut self) -> &mut BackendAffinity {
        let cookie = || BackendAffinity {
            kind: AffinityType::Cookie,
            name: None,
            max_age: None,
            cookie: None,
        };
        self.policy.affinity.get_or_insert_with(cookie)
    }

    fn cookie_attributes(&mut self) -> &mut AffinityCookieAttributes {
        self.cookie().cookie.get_or_insert_default()
    }

    /// Sets the failures that are retried. Sheave retries requests that are idempotent, or of which no byte can have
    /// reached the endpoint.
    fn retry_on(&mut self, value: &str) -> Result<(), String> {
        let (mut statuses, mut result) = (Vec::new(), Ok(()));
        for failure in value.split_ascii_whitespace() {
            let status = failure.strip_prefix("http_").and_then(|code| code.parse().ok());
            match (failure, status) {
                ("off", _) => self.retries_nothing = true,
                (_, Some(status @ (403 | 404 | 429 | 500 | 502 | 503 | 504))) => {
                    statuses.push(status)
                }
                ("non_idempotent", _) => {
                    let message = "is not supported with `non_idempotent`: only idempotent requests \
                                   are sent a second time";
                    result = Err(message.to_owned());
                }
                _ if FAILURES.contains(&failure) => {}
                _ => {
                    let known = "off, error, timeout, invalid_header and http_403, 404, 429, 500, 502, \
                                 503 and 504";
                    result = Err(format!("must be of {known}, is {failure}"));
                }
            }
        }
        self.policy.retry.statuses = statuses;
        result
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

/// Parses a variable of nginx whose value is hashed.
fn parse_hash_key(value: &str) -> Result<HashOn, String> {
    let unnamed = |kind| Ok(HashOn { kind, name: None });
    let named = |kind, name: &str| Ok(HashOn { kind, name: Some(parse_name(name)?) });
    let name = value.strip_prefix('$').unwrap_or_default();
    let name = name.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap_or(name);
    match name {
        "remote_addr" | "binary_remote_addr" => return unnamed(HashOnType::Source),
        // The query is not hashed: requests of one path share an endpoint.
        "uri" | "document_uri" | "request_uri" => return unnamed(HashOnType::Path),
        "host" | "http_host" => return unnamed(HashOnType::Host),
        _ => {}
    }
    if let Some(header) = name.strip_prefix("http_") {
        return named(HashOnType::Header, &header.replace('_', "-"));
    }
    if let Some(cookie) = name.strip_prefix("cookie_") {
        return named(HashOnType::Cookie, cookie);
    }
    if let Some(parameter) = name.strip_prefix("arg_") {
        return named(HashOnType::QueryParam, parameter);
    }
    let known = "$remote_addr, $uri, $request_uri, $host, $http_NAME, $cookie_NAME, $arg_NAME";
    Err(format!("must be one of {known}, is {value}: see `hashOn` of BackendPolicy"))
}
