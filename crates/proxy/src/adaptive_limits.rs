//! Adaptive concurrency limits of one backend: learned limits, and reduced limits for endpoints that report overload.
//!
//! The health thread ([`crate::health`]) updates both; the decisions are made in [`balance::limit`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use balance::leases::PoolKey;
use balance::{ConcurrencyCap, ConcurrencyLimiter, SetMember, Time, hash};

use crate::backend::{Backend, BackendConfig};
use crate::clock;
use crate::dial::pool::EndpointData;
use crate::health::HealthWaker;
use crate::mutex::lock;

/// The adaptive concurrency limits of one backend's endpoints.
#[derive(Default)]
pub(crate) struct AdaptiveLimits {
    limiter: Mutex<ConcurrencyLimiter>,
    /// True if an endpoint has reported overload.
    has_overloaded: AtomicBool,
}

impl AdaptiveLimits {
    /// Records that an endpoint is overloaded, so that the health thread restores its limit later.
    pub(crate) fn mark_overloaded(&self, health_waker: &HealthWaker) {
        if !self.has_overloaded.swap(true, Ordering::Relaxed) {
            health_waker.wake();
        }
    }
}

impl Backend {
    /// Updates the limits of the endpoints of `current` from the samples since the last update. Returns true if a limit
    /// has been raised. If several backends share an endpoint, the first in each `pass` sets its limit.
    pub(crate) fn update_limits(&self, current: &BackendConfig, pass: Time) -> bool {
        let Some(settings) = current.limit_settings() else { return false };
        let (waiting, round) = (self.waiting(), pass.as_nanos().max(1));
        let mut limiter = lock(&self.adaptive_limits.limiter);
        let (set, now) = (&current.set, clock::now());
        match self.leases.as_ref().and_then(|leases| leases.limit_sharing.get()) {
            Some(sharing) => {
                // The key is the same at each replica.
                let key = PoolKey(hash::hash(self.name.as_bytes()));
                let shared = (key, &mut *lock(sharing));
                limiter.update_shared(set, &settings, waiting, round, shared, now)
            }
            None => limiter.update(set, &settings, waiting, round, now),
        }
    }

    /// Returns the concurrency limit of each limited endpoint, and the origin of the limit as a label.
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
                ConcurrencyCap::Fixed(_) if endpoint.is_leased() => "leased",
                ConcurrencyCap::Fixed(_) if member.max_in_flight < u32::MAX => "assigned",
                ConcurrencyCap::Fixed(_) => "fixed",
                // Another backend sets the limit of this shared endpoint.
                ConcurrencyCap::Learned => {
                    learned.get(&endpoint.address).copied().unwrap_or("shared")
                }
                ConcurrencyCap::None => "full",
            };
            Some((endpoint.address, (most, reason)))
        };
        current.set.members().iter().filter_map(limit).collect()
    }

    /// Restores the limits of endpoints whose overload has ended. Returns the time until the next one is restored;
    /// `None`: no endpoint was overloaded.
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
