//! Settings of the BackendPolicy of an Ingress's Services: load balancing, affinity, limits and timeouts.

use super::super::dialect::AnnotationDialect;
use super::value::{parse_duration, parse_name, parse_number};
use crate::objects::{
    AffinityType, Algorithm, BackendAffinity, BackendPolicySpec, BackendProtocol, Duration, HashOn,
    HashOnType, MaxInFlight,
};

/// Largest queue length that a BackendPolicy allows.
const MAX_QUEUE_LENGTH: u32 = 1_000_000;

/// An annotation about connections to endpoints and the choice among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BackendAnnotation {
    Affinity,
    AffinityMode,
    Balance,
    ConnectTimeout,
    CookieMaxAge,
    CookieName,
    /// The name of the affinity cookie; it also enables affinity.
    CookiePersistence,
    IdleTimeout,
    MaxInFlight,
    Protocol,
    QueueLength,
    QueueTimeout,
}

/// The BackendPolicy of the Services of an Ingress, as far as annotations set it.
pub(super) struct BackendAnnotations {
    /// The policy; its targets are not known yet.
    policy: BackendPolicySpec,
    /// True if session affinity by cookie is on: a cookie name alone does not enable it.
    has_cookie: bool,
    /// The longest of the given timeouts: Sheave has one idle timeout where nginx has two.
    idle_timeout: Option<Duration>,
}

impl Default for BackendAnnotations {
    fn default() -> Self {
        let policy = BackendPolicySpec::for_targets(Vec::new());
        Self { policy, has_cookie: false, idle_timeout: None }
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
            BackendAnnotation::CookieMaxAge => {
                let age = Duration::from_secs(parse_number(value, 1, 86_400)?.into());
                self.cookie().max_age = Some(age);
            }
            BackendAnnotation::CookieName | BackendAnnotation::CookiePersistence => {
                let name = parse_name(value)?;
                self.cookie().name = Some(name);
                self.has_cookie |= setting == BackendAnnotation::CookiePersistence;
            }
            BackendAnnotation::IdleTimeout => {
                self.idle_timeout =
                    self.idle_timeout.max(Some(parse_duration(dialect.duration_unit(), value)?))
            }
            BackendAnnotation::MaxInFlight => {
                let limit = parse_number(value, 1, 1_000_000)?;
                self.policy.max_in_flight_per_endpoint = Some(MaxInFlight::Number(limit));
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
        self.policy
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
