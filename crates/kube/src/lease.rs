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

use crate::{Cluster, Identity};

/// Of who writes statuses: nothing breaks while nobody does.
const LEADS: Terms = Terms {
    duration: Duration::from_secs(15),
    look_every: Duration::from_secs(3),
    patience: Duration::from_secs(5),
};

/// How a Lease is held.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// After the last renewal it is another's to take. Whole seconds.
    duration: Duration,
    /// Between renewals, and between looks at it.
    look_every: Duration,
    /// How long the API server may take to answer.
    patience: Duration,
}

/// Tells from now on until when we hold the Lease of that name; `None`: we do not. When nobody asks any more, the Lease is
/// given back; the task ends with that.
pub(crate) fn contend(
    cluster: &Cluster,
    identity: Identity,
    name: &'static str,
) -> (Receiver<Option<Instant>>, JoinHandle<()>) {
    let (held, told) = channel(None);
    let api = Api::namespaced(cluster.client.clone(), &identity.namespace);
    let contender = Contender { api, name, identity: identity.name, terms: LEADS, seen: None };
    (told, tokio::spawn(contender.run(held)))
}

struct Contender {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    terms: Terms,
    /// The renewal that was seen last, and since when it has been the last.
    seen: Option<(Renewal, Instant)>,
}

/// What changes with each renewal.
type Renewal = (Option<String>, Option<MicroTime>);

impl Contender {
    /// Until nobody asks any more; then the Lease is given back, so that nobody has to wait for its end.
    async fn run(mut self, held: Sender<Option<Instant>>) {
        let mut is_failing = false;
        while !held.is_closed() {
            let asked = Instant::now();
            let look = timeout(self.terms.patience, self.look());
            let result = tokio::select! {
                result = look => result,
                () = held.closed() => break,
            };
            match result {
                Ok(Ok(is_ours)) => {
                    is_failing = false;
                    self.tell(&held, is_ours.then(|| asked + self.terms.duration));
                }
                result => {
                    if !std::mem::replace(&mut is_failing, true) {
                        self.complain(&result);
                    }
                    let until = held.borrow().filter(|until| *until > Instant::now());
                    self.tell(&held, until);
                }
            }
            tokio::select! {
                () = sleep(self.terms.look_every) => {}
                () = held.closed() => {}
            }
        }
        self.tell(&held, None);
        // A look that was broken off may have taken it, so that the Lease itself is asked. If that fails, it runs out.
        drop(timeout(self.terms.patience, self.give_back()).await);
    }

    /// A renewal wakes nobody.
    fn tell(&self, held: &Sender<Option<Instant>>, until: Option<Instant>) {
        let changed = held
            .send_if_modified(|held| std::mem::replace(held, until).is_some() != until.is_some());
        if changed {
            let is_ours = until.is_some();
            let message = if is_ours { "holds the Lease" } else { "no longer holds the Lease" };
            tracing::info!(lease = self.name, "{message}");
        }
    }

    fn complain(&self, result: &Result<Result<bool, Error>, tokio::time::error::Elapsed>) {
        let why = match result {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) | Err(_) => "the API server does not answer".to_owned(),
        };
        tracing::warn!(lease = self.name, error = why, "cannot renew or see the Lease");
    }

    /// Renews or takes the Lease if it is ours to; tells whether we hold it.
    async fn look(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.api.get_opt(self.name).await? else {
            return self.create().await;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
        if holder.as_ref().is_some_and(|holder| *holder != self.identity) {
            let renewal = (holder, spec.renew_time.clone());
            let now = Instant::now();
            let duration = seconds(&spec).unwrap_or(self.terms.duration);
            match &self.seen {
                Some((seen, since)) if *seen == renewal => {
                    if now.duration_since(*since) < duration {
                        return Ok(false);
                    }
                }
                Some(_) | None => {
                    self.seen = Some((renewal, now));
                    return Ok(false);
                }
            }
        }
        self.take(lease, spec).await
    }

    async fn create(&self) -> Result<bool, Error> {
        let metadata = ObjectMeta { name: Some(self.name.to_owned()), ..ObjectMeta::default() };
        let spec = Some(self.ours(LeaseSpec::default()));
        self.settle(self.api.create(&PostParams::default(), &Lease { metadata, spec }).await)
    }

    /// With the version that was read: if another was quicker, it is theirs.
    async fn take(&self, lease: Lease, spec: LeaseSpec) -> Result<bool, Error> {
        let spec = Some(self.ours(spec));
        let lease = Lease { spec, metadata: lease.metadata };
        self.settle(self.api.replace(self.name, &PostParams::default(), &lease).await)
    }

    fn settle(&self, written: Result<Lease, Error>) -> Result<bool, Error> {
        match written {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As it is while we hold it.
    fn ours(&self, before: LeaseSpec) -> LeaseSpec {
        renewed(before, &self.identity, self.terms.duration)
    }

    async fn give_back(&self) -> Result<(), Error> {
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
pub(crate) fn renewed(before: LeaseSpec, holder: &str, duration: Duration) -> LeaseSpec {
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

fn seconds(spec: &LeaseSpec) -> Option<Duration> {
    u64::try_from(spec.lease_duration_seconds?).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
