//! Leader election with a Lease: one of several replicas does what only one may do. The holder renews the Lease; the
//! others observe it, and take it over when it has not been renewed for its duration.
//!
//! Clocks of machines are never compared: a Lease has expired when *this replica* has seen no renewal for its duration.
//! The holder counts from before it sent the renewal, so it stops before any other replica may begin.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube_client::api::{ObjectMeta, PostParams};
use kube_client::{Api, Error};
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::{ClusterClient, ReplicaIdentity};

/// Timing for the writer of statuses: a gap without a leader breaks nothing.
const LEADER_TIMING: LeaseTiming = LeaseTiming {
    duration: Duration::from_secs(15),
    retry_period: Duration::from_secs(3),
    request_timeout: Duration::from_secs(5),
};

/// Timing of a Lease.
#[derive(Clone, Copy, Debug)]
struct LeaseTiming {
    /// Time after the last renewal at which another replica may take the Lease. Whole seconds.
    duration: Duration,
    /// Interval of renewals, and of checks by the other replicas.
    retry_period: Duration,
    /// Time limit for a request to the API server.
    request_timeout: Duration,
}

/// Starts the election. The receiver holds the time until which this replica is the leader; `None`: it is not. When the
/// receiver is dropped, the Lease is released and the task ends.
pub(crate) fn start_election(
    cluster: &ClusterClient,
    identity: ReplicaIdentity,
    name: String,
) -> (Receiver<Option<Instant>>, JoinHandle<()>) {
    let (sender, leadership) = channel(None);
    let api = Api::namespaced(cluster.client.clone(), &identity.namespace);
    let elector = LeaderElector {
        api,
        name,
        identity: identity.name,
        timing: LEADER_TIMING,
        observed_renewal: None,
    };
    (leadership, tokio::spawn(elector.run(sender)))
}

struct LeaderElector {
    api: Api<Lease>,
    name: String,
    identity: String,
    timing: LeaseTiming,
    /// The last observed renewal, and the time when it was first observed.
    observed_renewal: Option<(LeaseRenewal, Instant)>,
}

/// Fields that change with each renewal.
type LeaseRenewal = (Option<String>, Option<MicroTime>);

impl LeaderElector {
    /// Runs until the receiver is dropped, then releases the Lease, so that another replica need not wait for its
    /// expiry.
    async fn run(mut self, sender: Sender<Option<Instant>>) {
        let mut is_failing = false;
        while !sender.is_closed() {
            let started = Instant::now();
            let attempt = timeout(self.timing.request_timeout, self.try_acquire_or_renew());
            let result = tokio::select! {
                result = attempt => result,
                () = sender.closed() => break,
            };
            match result {
                Ok(Ok(is_ours)) => {
                    is_failing = false;
                    self.publish(&sender, is_ours.then(|| started + self.timing.duration));
                }
                result => {
                    if !std::mem::replace(&mut is_failing, true) {
                        self.log_failure(&result);
                    }
                    let until = sender.borrow().filter(|until| *until > Instant::now());
                    self.publish(&sender, until);
                }
            }
            tokio::select! {
                () = sleep(self.timing.retry_period) => {}
                () = sender.closed() => {}
            }
        }
        self.publish(&sender, None);
        // A cancelled attempt may have taken the Lease, so the Lease itself is read. If this fails, the Lease expires.
        drop(timeout(self.timing.request_timeout, self.release()).await);
    }

    /// Publishes the leadership. A renewal does not notify the receivers.
    fn publish(&self, held: &Sender<Option<Instant>>, until: Option<Instant>) {
        let changed = held
            .send_if_modified(|held| std::mem::replace(held, until).is_some() != until.is_some());
        if changed {
            let is_ours = until.is_some();
            let message = if is_ours { "became the leader" } else { "no longer the leader" };
            tracing::info!(lease = %self.name, "{message}");
        }
    }

    fn log_failure(&self, result: &Result<Result<bool, Error>, tokio::time::error::Elapsed>) {
        let reason = match result {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) | Err(_) => "the API server does not answer".to_owned(),
        };
        tracing::warn!(lease = %self.name, error = reason, "cannot renew or read the Lease");
    }

    /// Takes or renews the Lease if allowed; returns whether this replica holds it.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            return self.create().await;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
        if holder.as_ref().is_some_and(|holder| *holder != self.identity) {
            let renewal = (holder, spec.renew_time.clone());
            let now = Instant::now();
            let duration = lease_duration(&spec).unwrap_or(self.timing.duration);
            match &self.observed_renewal {
                Some((seen, since)) if *seen == renewal => {
                    if now.duration_since(*since) < duration {
                        return Ok(false);
                    }
                }
                Some(_) | None => {
                    self.observed_renewal = Some((renewal, now));
                    return Ok(false);
                }
            }
        }
        self.update(lease, spec).await
    }

    async fn create(&self) -> Result<bool, Error> {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let spec = Some(self.held_spec(LeaseSpec::default()));
        self.check_conflict(
            self.api.create(&PostParams::default(), &Lease { metadata, spec }).await,
        )
    }

    /// Replaces the version that was read: if another replica wrote first, the Lease belongs to it.
    async fn update(&self, lease: Lease, spec: LeaseSpec) -> Result<bool, Error> {
        let spec = Some(self.held_spec(spec));
        let lease = Lease { spec, metadata: lease.metadata };
        self.check_conflict(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn check_conflict(&self, written: Result<Lease, Error>) -> Result<bool, Error> {
        match written {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the spec of a Lease held by this replica.
    fn held_spec(&self, before: LeaseSpec) -> LeaseSpec {
        renewed_spec(before, &self.identity, self.timing.duration)
    }

    async fn release(&self) -> Result<(), Error> {
        let Some(lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let Some(spec) = &lease.spec else { return Ok(()) };
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            return Ok(());
        }
        let spec = LeaseSpec { holder_identity: Some(String::new()), ..spec.clone() };
        let lease = Lease { spec: Some(spec), metadata: lease.metadata };
        self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        Ok(())
    }
}

/// Returns the spec of a Lease that `holder` takes or renews now.
pub(crate) fn renewed_spec(before: LeaseSpec, holder: &str, duration: Duration) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let is_new = before.holder_identity.as_deref() != Some(holder);
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
        acquire_time: if is_new { Some(now.clone()) } else { before.acquire_time },
        renew_time: Some(now),
        lease_transitions: Some(transitions.saturating_add(i32::from(is_new))),
        ..before
    }
}

fn lease_duration(spec: &LeaseSpec) -> Option<Duration> {
    u64::try_from(spec.lease_duration_seconds?).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
