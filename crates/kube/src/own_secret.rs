//! One Secret of this installation: read by a watch, created if there is none, and replaced if it is still the version
//! that was read.
//!
//! It knows nothing of the content. Each request names the Secret, so a Role with `resourceNames` permits all of them:
//! the Secret is created by server-side apply, for the API server authorises a POST without the name.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube_client::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube_client::{Api, Client, Error};
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{self, Config, Event, watcher};
use thiserror::Error;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::ClusterClient;
use crate::backoff::watch_backoff;

/// Time limit of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Field manager of replacements.
const FIELD_MANAGER: &str = "sheave";

/// Values of a Secret by their names.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// The Secret, as the API server has told last.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SecretState {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// There is one.
    Present(Arc<SecretVersion>),
}

/// One version of the Secret.
#[derive(Clone, PartialEq)]
pub struct SecretVersion {
    /// Type of the Secret.
    pub secret_type: String,
    /// Its values.
    pub data: SecretData,
    metadata: ObjectMeta,
}

/// State of the Secret, and why the state may be out of date.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SecretObservation {
    /// The state.
    pub state: SecretState,
    /// Reason why the Secret cannot be read now.
    pub problem: Option<String>,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretWriteOutcome {
    /// It is written. The watch reports the new version.
    Written,
    /// Another writer was first, and nothing is written. The watch reports its version.
    Superseded,
}

/// Reason why a write failed.
#[derive(Debug, Error)]
pub enum SecretWriteError {
    /// The API server has rejected it, or cannot be reached.
    #[error("the write has failed")]
    Api(#[source] Box<Error>),
    /// There is no answer.
    #[error("the API server does not answer")]
    Timeout,
}

/// The Secret. Dropping it ends its watch.
pub struct OwnSecret {
    /// Changes with each version.
    pub observation: Receiver<SecretObservation>,
    api: Api<Secret>,
    namespace: String,
    name: String,
    watch: JoinHandle<()>,
}

impl Debug for SecretVersion {
    /// Values are never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.data.keys().collect::<Vec<_>>();
        let version = &self.metadata.resource_version;
        f.debug_struct("SecretVersion").field("version", version).field("names", &names).finish()
    }
}

impl OwnSecret {
    /// Starts to watch the Secret. Needs a running tokio runtime.
    #[must_use]
    pub fn watch(cluster: &ClusterClient, namespace: &str, name: &str) -> Self {
        let (observe, observation) = channel(SecretObservation::default());
        let (client, namespace, name) =
            (cluster.client.clone(), namespace.to_owned(), name.to_owned());
        let api = Api::namespaced(client.clone(), &namespace);
        let watch = tokio::spawn(watch_secret(client, namespace.clone(), name.clone(), observe));
        Self { observation, api, namespace, name, watch }
    }

    /// Returns namespace and name, as `namespace/name`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Creates the Secret if there is none. `writer` is the field manager; writers with different values need different
    /// names, so that only the first one creates it.
    ///
    /// # Errors
    /// If the API server does not accept it.
    pub async fn create(
        &self,
        secret_type: &str,
        data: SecretData,
        writer: &str,
    ) -> Result<SecretWriteOutcome, SecretWriteError> {
        let labels = [("app.kubernetes.io/managed-by", "sheave")];
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        };
        let secret = secret(metadata, secret_type, data);
        let (params, patch) = (PatchParams::apply(writer), Patch::Apply(&secret));
        outcome(timeout(WRITE_TIMEOUT, self.api.patch(&self.name, &params, &patch)).await)
    }

    /// Replaces the values of a version, if it is still the newest.
    ///
    /// # Errors
    /// If the API server does not accept it.
    pub async fn replace(
        &self,
        version: &SecretVersion,
        data: SecretData,
    ) -> Result<SecretWriteOutcome, SecretWriteError> {
        let secret = secret(version.metadata.clone(), &version.secret_type, data);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run: false };
        outcome(timeout(WRITE_TIMEOUT, self.api.replace(&self.name, &params, &secret)).await)
    }
}

impl Drop for OwnSecret {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn secret(metadata: ObjectMeta, secret_type: &str, data: SecretData) -> Secret {
    Secret {
        metadata,
        type_: Some(secret_type.to_owned()),
        data: Some(data.into_iter().map(|(name, value)| (name, ByteString(value))).collect()),
        ..Secret::default()
    }
}

fn outcome(
    written: Result<Result<Secret, Error>, tokio::time::error::Elapsed>,
) -> Result<SecretWriteOutcome, SecretWriteError> {
    match written {
        Ok(Ok(_)) => Ok(SecretWriteOutcome::Written),
        // 404: the version that was to be replaced is deleted.
        Ok(Err(Error::Api(status))) if [404, 409].contains(&status.code) => {
            Ok(SecretWriteOutcome::Superseded)
        }
        Ok(Err(error)) => Err(SecretWriteError::Api(Box::new(error))),
        Err(_) => Err(SecretWriteError::Timeout),
    }
}

/// Follows the Secret, forever.
async fn watch_secret(
    client: Client,
    namespace: String,
    name: String,
    observe: Sender<SecretObservation>,
) {
    let api: Api<Secret> = Api::namespaced(client, &namespace);
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(watcher(api, config).backoff(watch_backoff()));
    let mut listed = SecretState::Absent;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = SecretState::Absent,
            Ok(Event::InitApply(secret)) => listed = present(secret),
            Ok(Event::InitDone) => publish(&observe, std::mem::take(&mut listed)),
            Ok(Event::Apply(secret)) => publish(&observe, present(secret)),
            Ok(Event::Delete(_)) => publish(&observe, SecretState::Absent),
            Err(error) => {
                let problem = Some(reason(&error));
                observe.send_if_modified(|it| {
                    std::mem::replace(&mut it.problem, problem) != it.problem
                });
            }
        }
    }
}

fn publish(observe: &Sender<SecretObservation>, state: SecretState) {
    let observation = SecretObservation { state, problem: None };
    observe.send_if_modified(|it| std::mem::replace(it, observation) != *it);
}

fn present(secret: Secret) -> SecretState {
    let data = secret.data.unwrap_or_default();
    SecretState::Present(Arc::new(SecretVersion {
        secret_type: secret.type_.unwrap_or_default(),
        data: data.into_iter().map(|(name, value)| (name, value.0)).collect(),
        metadata: ObjectMeta { managed_fields: None, ..secret.metadata },
    }))
}

/// Returns the reason why a watch has failed, with what the API server says.
fn reason(error: &watcher::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::ApiServer;

    const SECRETS: &str = "/api/v1/secrets";
    const TYPE: &str = "sheave.dev/test";

    fn data(value: &str) -> SecretData {
        SecretData::from([("key".to_owned(), value.as_bytes().to_vec())])
    }

    async fn next(secret: &mut OwnSecret) -> SecretState {
        secret.observation.changed().await.unwrap();
        secret.observation.borrow_and_update().state.clone()
    }

    async fn next_version(secret: &mut OwnSecret) -> Arc<SecretVersion> {
        match next(secret).await {
            SecretState::Present(version) => version,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_replicas_creates_the_secret_and_both_read_it() {
        let server = ApiServer::default();
        let mut secrets =
            [0, 1].map(|_| OwnSecret::watch(&server.cluster(), "sheave", "sheave-replicas"));
        for secret in &mut secrets {
            assert_eq!(next(secret).await, SecretState::Absent);
        }
        let [first, second] = &secrets;
        let written = tokio::join!(
            first.create(TYPE, data("first"), "first"),
            second.create(TYPE, data("second"), "second")
        );
        let outcomes = [written.0.unwrap(), written.1.unwrap()];
        assert!(outcomes.contains(&SecretWriteOutcome::Written), "{outcomes:?}");
        assert!(outcomes.contains(&SecretWriteOutcome::Superseded), "{outcomes:?}");
        let mut versions = Vec::new();
        for secret in &mut secrets {
            versions.push(next_version(secret).await);
        }
        assert_eq!(versions[0], versions[1]);
        assert_eq!(versions[0].secret_type, TYPE);
        let expected = if outcomes[0] == SecretWriteOutcome::Written { "first" } else { "second" };
        assert_eq!(versions[0].data, data(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_newest_version_is_replaced() {
        let server = ApiServer::default();
        let mut secret = OwnSecret::watch(&server.cluster(), "sheave", "sheave-replicas");
        assert_eq!(next(&mut secret).await, SecretState::Absent);
        secret.create(TYPE, data("one"), "one").await.unwrap();
        let first = next_version(&mut secret).await;
        let replaced = secret.replace(&first, data("two")).await.unwrap();
        assert_eq!(replaced, SecretWriteOutcome::Written);
        let second = next_version(&mut secret).await;
        assert_eq!(second.data, data("two"));
        let stale = secret.replace(&first, data("three")).await.unwrap();
        assert_eq!(stale, SecretWriteOutcome::Superseded);
        let object = server.object(SECRETS, "sheave", "sheave-replicas").unwrap();
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "sheave");
        server.remove(SECRETS, "sheave", "sheave-replicas");
        assert_eq!(next(&mut secret).await, SecretState::Absent);
        let deleted = secret.replace(&second, data("four")).await.unwrap();
        assert_eq!(deleted, SecretWriteOutcome::Superseded);
        assert!(server.object(SECRETS, "sheave", "sheave-replicas").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn secret_that_may_not_be_read_is_a_problem_and_is_read_later() {
        let server = ApiServer::default();
        server.forbid(SECRETS, "sheave-replicas");
        let mut secret = OwnSecret::watch(&server.cluster(), "sheave", "sheave-replicas");
        assert_eq!(next(&mut secret).await, SecretState::Unknown);
        let problem = secret.observation.borrow().problem.clone().unwrap();
        assert!(problem.contains("Forbidden"), "{problem}");
        server.permit_all();
        assert_eq!(next(&mut secret).await, SecretState::Absent);
        assert_eq!(secret.observation.borrow().problem, None);
    }

    #[test]
    fn values_of_a_secret_are_not_printed() {
        let metadata = ObjectMeta::default();
        let version =
            SecretVersion { secret_type: TYPE.to_owned(), data: data("hidden"), metadata };
        let text = format!("{version:?}");
        assert!(
            text.contains("key") && !text.contains("hidden") && !text.contains("104"),
            "{text}"
        );
    }
}
