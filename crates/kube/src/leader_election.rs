//! A Lease: which of several replicas does what only one may do. Who holds it renews it; who does not looks on, and takes
//! it when it has not been renewed for as long as it says.
//!
//! Clocks of machines are never compared: a Lease has run out when *we* have seen no renewal for its duration. The holder
//! counts from before it asked for the renewal, so it stops before anybody else may begin.

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

/// Of who writes statuses: nothing breaks while nobody does.
const LEADER_TIMING: LeaseTiming = LeaseTiming {
    duration: Duration::from_secs(15),
    retry_period: Duration::from_secs(3),
    request_timeout: Duration::from_secs(5),
};

/// How a Lease is held.
#[derive(Clone, Copy, Debug)]
struct LeaseTiming {
    /// After the last renewal it is another's to take. Whole seconds.
    duration: Duration,
    /// Between renewals, and between looks at it.
    retry_period: Duration,
    /// How long the API server may take to answer.
    request_timeout: Duration,
}

/// Tells from now on until when we hold the Lease of that name; `None`: we do not. When nobody asks any more, the Lease is
/// given back; the task ends with that.
pub(crate) fn start_election(
    cluster: &ClusterClient,
    identity: ReplicaIdentity,
    name: &'static str,
) -> (Receiver<Option<Instant>>, JoinHandle<()>) {
    let (held, told) = channel(None);
    let api = Api::namespaced(cluster.client.clone(), &identity.namespace);
    let contender = LeaderElector {
        api,
        name,
        identity: identity.name,
        timing: LEADER_TIMING,
        observed_renewal: None,
    };
    (told, tokio::spawn(contender.run(held)))
}

struct LeaderElector {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    timing: LeaseTiming,
    /// The renewal that was seen last, and since when it has been the last.
    observed_renewal: Option<(LeaseRenewal, Instant)>,
}

/// What changes with each renewal.
type LeaseRenewal = (Option<String>, Option<MicroTime>);

impl LeaderElector {
    /// Until nobody asks any more; then the Lease is given back, so that nobody has to wait for its end.
    async fn run(mut self, held: Sender<Option<Instant>>) {
        let mut is_failing = false;
        while !held.is_closed() {
            let asked = Instant::now();
            let look = timeout(self.timing.request_timeout, self.try_acquire_or_renew());
            let result = tokio::select! {
                result = look => result,
                () = held.closed() => break,
            };
            match result {
                Ok(Ok(is_ours)) => {
                    is_failing = false;
                    self.publish(&held, is_ours.then(|| asked + self.timing.duration));
                }
                result => {
                    if !std::mem::replace(&mut is_failing, true) {
                        self.log_failure(&result);
                    }
                    let until = held.borrow().filter(|until| *until > Instant::now());
                    self.publish(&held, until);
                }
            }
            tokio::select! {
                () = sleep(self.timing.retry_period) => {}
                () = held.closed() => {}
            }
        }
        self.publish(&held, None);
        // A look that was broken off may have taken it, so that the Lease itself is asked. If that fails, it runs out.
        drop(timeout(self.timing.request_timeout, self.release()).await);
    }

    /// A renewal wakes nobody.
    fn publish(&self, held: &Sender<Option<Instant>>, until: Option<Instant>) {
        let changed = held
            .send_if_modified(|held| std::mem::replace(held, until).is_some() != until.is_some());
        if changed {
            let is_ours = until.is_some();
            let message = if is_ours { "holds the Lease" } else { "no longer holds the Lease" };
            tracing::info!(lease = self.name, "{message}");
        }
    }

    fn log_failure(&self, result: &Result<Result<bool, Error>, tokio::time::error::Elapsed>) {
        let why = match result {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) | Err(_) => "the API server does not answer".to_owned(),
        };
        tracing::warn!(lease = self.name, error = why, "cannot renew or see the Lease");
    }

    /// Renews or takes the Lease if it is ours to; tells whether we hold it.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.api.get_opt(self.name).await? else {
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
        let metadata = ObjectMeta { name: Some(self.name.to_owned()), ..ObjectMeta::default() };
        let spec = Some(self.held_spec(LeaseSpec::default()));
        self.check_conflict(
            self.api.create(&PostParams::default(), &Lease { metadata, spec }).await,
        )
    }

    /// With the version that was read: if another was quicker, it is theirs.
    async fn update(&self, lease: Lease, spec: LeaseSpec) -> Result<bool, Error> {
        let spec = Some(self.held_spec(spec));
        let lease = Lease { spec, metadata: lease.metadata };
        self.check_conflict(self.api.replace(self.name, &PostParams::default(), &lease).await)
    }

    fn check_conflict(&self, written: Result<Lease, Error>) -> Result<bool, Error> {
        match written {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As it is while we hold it.
    fn held_spec(&self, before: LeaseSpec) -> LeaseSpec {
        renewed_spec(before, &self.identity, self.timing.duration)
    }

    async fn release(&self) -> Result<(), Error> {
        let Some(lease) = self.api.get_opt(self.name).await? else { return Ok(()) };
        let Some(spec) = &lease.spec else { return Ok(()) };
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            return Ok(());
        }
        let spec = LeaseSpec { holder_identity: Some(String::new()), ..spec.clone() };
        let lease = Lease { spec: Some(spec), metadata: lease.metadata };
        self.api.replace(self.name, &PostParams::default(), &lease).await?;
        Ok(())
    }
}

/// As a Lease is from now on, when somebody takes or renews it.
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
