//! Deletion costs of pods: the annotation by which the ReplicaSet controller chooses the pods to delete first.
//!
//! It finds the pods behind addresses and writes their annotations, one at a time; it knows nothing of load. The
//! annotation is applied server-side without force: a value that another manager wrote stays. The UID is part of the
//! configuration, so that no later pod of the same name gets the cost of an earlier one, and none is created.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube_client::api::{Patch, PatchParams};
use kube_client::{Api, Client, Error};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout};

use crate::watch::{SharedStore, lock};

/// The annotation.
const ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Time limit of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A pod that is an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodReference {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Reason why a cost was not written.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DeletionCostError {
    /// Another manager wrote the annotation, or the pod is another one now.
    #[error("the pod has a deletion cost of another writer, or is gone: {0}")]
    Conflict(String),
    /// The API server rejects the write.
    #[error("the API server refuses the write: {0}")]
    Refused(String),
    /// The API server cannot be reached.
    #[error("the API server does not answer")]
    Unavailable,
}

/// Writer of deletion costs, for the leader.
pub struct DeletionCostWriter {
    pub(crate) client: Client,
    pub(crate) store: SharedStore,
    pub(crate) leadership: Receiver<Option<Instant>>,
    pub(crate) field_manager: String,
}

impl DeletionCostWriter {
    /// True if this replica is the leader now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership.borrow().is_some_and(|until| until > Instant::now())
    }

    /// Returns the pods that have these addresses, without those that terminate.
    #[must_use]
    pub fn pods_at(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, PodReference> {
        lock(&self.store).pods_at(addresses)
    }

    /// Writes the cost of a pod.
    ///
    /// # Errors
    /// If it is not written.
    pub async fn write(&self, pod: &PodReference, cost: i32) -> Result<(), DeletionCostError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let (params, patch) = (PatchParams::apply(&self.field_manager), manifest(pod, cost));
        match timeout(WRITE_TIMEOUT, api.patch(&pod.name, &params, &Patch::Apply(patch))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(Error::Api(status))) if [404, 409].contains(&status.code) => {
                Err(DeletionCostError::Conflict(status.message.clone()))
            }
            Ok(Err(Error::Api(status))) if status.code < 500 && status.code != 429 => {
                Err(DeletionCostError::Refused(status.message.clone()))
            }
            Ok(Err(_)) | Err(_) => Err(DeletionCostError::Unavailable),
        }
    }
}

fn manifest(pod: &PodReference, cost: i32) -> Value {
    let PodReference { namespace, name, uid } = pod;
    let annotations = json!({ ANNOTATION: cost.to_string() });
    let metadata =
        json!({ "namespace": namespace, "name": name, "uid": uid, "annotations": annotations });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata })
}
