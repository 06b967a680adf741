//! How much endpoints of one backend are given: limits that are learned, and less for those that say they are full.
//!
//! One thread, beside the workers, looks at both ([`crate::health`]); what is decided is decided in [`balance::limit`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use balance::{ConcurrencyCap, ConcurrencyLimiter, SetMember, Time};

use crate::backend::{Backend, BackendConfig};
use crate::clock;
use crate::dial::pool::{EndpointData, lock};
use crate::worker::Worker;

/// What one backend's endpoints are given.
#[derive(Default)]
pub(crate) struct AdaptiveLimits {
    limiter: Mutex<ConcurrencyLimiter>,
    /// Some endpoint has said that it is full.
    has_overloaded: AtomicBool,
}

impl AdaptiveLimits {
    /// An endpoint is full: somebody has to look when it is not any longer.
    pub(crate) fn mark_overloaded(&self, worker: &Worker) {
        if !self.has_overloaded.swap(true, Ordering::Relaxed) {
            worker.shared.health_waker.wake();
        }
    }
}

impl Backend {
    /// Makes limits of what was seen since the last time, of the endpoints of `current`. Whether somebody may have more. Of
    /// backends that share an endpoint, the first in each `pass` decides about it.
    pub(crate) fn update_limits(&self, current: &BackendConfig, pass: Time) -> bool {
        let Some(settings) = current.limit_settings() else { return false };
        let (waiting, round) = (self.waiting(), pass.as_nanos().max(1));
        let mut limiter = lock(&self.adaptive_limits.limiter);
        limiter.update(&current.set, &settings, waiting, round, clock::now())
    }

    /// How many requests each endpoint may have at once, where there is a limit, and in a word where it comes from.
    pub(crate) fn limits(
        &self,
        current: &BackendConfig,
    ) -> BTreeMap<SocketAddr, (u32, &'static str)> {
        let cap = current.limits.cap;
        let learned: BTreeMap<_, _> = lock(&self.adaptive_limits.limiter)
            .limits()
            .map(|(address, _, reason)| (address, reason.label()))
            .collect();
        let limit = |member: &SetMember<EndpointData>| {
            let (endpoint, most) = (&member.endpoint, member.limit(cap)?);
            let full = endpoint.reduced_limit(clock::now()).is_some_and(|(full, _)| full == most);
            let reason = match cap {
                _ if full => "full",
                ConcurrencyCap::Fixed(_) if member.max_in_flight < u32::MAX => "dealt",
                ConcurrencyCap::Fixed(_) => "fixed",
                // One that another backend decides about.
                ConcurrencyCap::Learned => {
                    learned.get(&endpoint.address).copied().unwrap_or("shared")
                }
                ConcurrencyCap::None => "full",
            };
            Some((endpoint.address, (most, reason)))
        };
        current.set.members().iter().filter_map(limit).collect()
    }

    /// Gives more again to endpoints that are not full any longer: somebody may have that. How long until the next; `None`:
    /// nobody was full.
    pub(crate) fn restore_limits(&self) -> Option<Duration> {
        if !self.adaptive_limits.has_overloaded.swap(false, Ordering::Relaxed) {
            return None;
        }
        let now = clock::now();
        let current = self.current();
        let full =
            current.set.members().iter().filter_map(|member| member.endpoint.reduced_limit(now));
        let next = full.map(|(_, until)| until).min();
        if next.is_some() {
            self.adaptive_limits.has_overloaded.store(true, Ordering::Relaxed);
        }
        Some(next.map_or(Duration::ZERO, |until| until.saturating_since(now)))
    }
}
