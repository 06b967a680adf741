//! The client of the Kubernetes API server: reads the objects of a cluster and writes their
//! statuses.
//!
//! It watches objects and writes statuses. `gateway` knows what objects mean; this crate knows nothing of the data
//! plane, and the data plane never waits for the API server.
#![warn(missing_docs)]

/// The watched kinds.
mod kind;
/// The objects of the cluster, as far as they are known.
mod store;
/// Reflectors: one watch per kind, which fills the store.
mod watch;
/// Services, endpoints and nodes alone, for the layer-4 data path.
mod service_objects;
/// Writes statuses that differ from those in the cluster.
mod publish;
/// Backoff of failed writes, per object.
mod backoff;
/// Writes managed Services in front of Gateways that differ from those in the cluster.
mod gateway_services;
/// Leader election among the replicas.
mod leader_election;
/// One Secret of this installation: watched, created, replaced.
mod own_secret;
/// Questions of an extension API server.
mod api_extension;
/// Requests of an operator's tools.
mod access;
/// HorizontalPodAutoscalers.
mod autoscalers;
/// Events of objects, for operators.
mod events;
/// Deletion costs of pods.
mod deletion_cost;
/// The node of this process: its labels, and the pods on it.
mod node;
/// Announces addresses: on the link, one node holds each address; by BGP, several nodes do.
mod announce;
/// In-memory API server for tests.
#[cfg(test)]
mod api_server;

use std::sync::Arc;

use gateway::objects::GATEWAY_CONTROLLER;
use kube_client::{Client, Config};
use thiserror::Error;

pub use access::{
    AccessError, ClusterListing, EndpointMention, LogLines, OperatorCredentials, PodAnswer,
    PodSummary, RequiredPermission,
};
pub use announce::{
    AnnouncerConfig, EndpointCountsByAddress, announce, install_loopback_address,
    lowest_link_address, remove_loopback_address,
};
pub use api_extension::{AccessedResource, ApiExtensionError, ApiUser, FrontProxySettings};
pub use deletion_cost::{DeletionCostError, DeletionCostWriter, PodReference};
pub use events::{EventObject, EventRecorder, EventReporter, ObjectEvent, write_last_event};
pub use gateway_services::DesiredServices;
pub use node::{NodeDescription, NodeWatch, PodNamespaces};
pub use own_secret::{
    OwnSecret, SecretData, SecretObservation, SecretState, SecretVersion, SecretWriteError,
    SecretWriteOutcome,
};
pub use publish::{DesiredStatuses, IngressAddresses, StatusAddresses};
pub use service_objects::ServiceObjects;
pub use watch::{ClusterContents, ClusterObjects, WatchSelection};

/// Error that prevents a connection to a cluster.
#[derive(Debug, Error)]
pub enum Error {
    /// Neither a kubeconfig nor the files of a pod exist.
    #[error("no credentials for an API server found, neither a kubeconfig nor those of a pod")]
    Credentials(#[source] Box<kube_client::config::InferConfigError>),
    /// The kubeconfig that was named cannot be read, or lacks the context.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[source] Box<kube_client::config::KubeconfigError>),
    /// The credentials are invalid.
    #[error("the credentials for the API server cannot be used")]
    Client(#[source] Box<kube_client::Error>),
}

/// Client of an API server.
#[derive(Clone)]
pub struct ClusterClient {
    client: Client,
}

/// Identity of this replica.
#[derive(Clone, Debug)]
pub struct ReplicaIdentity {
    /// Name, unique among the replicas.
    pub name: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the controller, which all replicas of an installation share.
    pub controller: Arc<str>,
}

impl ReplicaIdentity {
    /// Returns the name of the installation as a writer: the field manager of statuses, and the name of the Lease.
    /// Installations with different controllers have different names, so that both write their own statuses.
    fn writer(&self) -> String {
        match &*self.controller {
            GATEWAY_CONTROLLER => "sheave".to_owned(),
            other => format!("sheave.{}", other.replace('/', ".")),
        }
    }
}

#[cfg(test)]
impl ReplicaIdentity {
    fn for_tests(name: &str) -> Self {
        let controller = GATEWAY_CONTROLLER.into();
        Self { name: name.to_owned(), namespace: "sheave".to_owned(), controller }
    }
}

impl ClusterClient {
    /// Uses the kubeconfig of the environment, or the credentials of the pod. Sends no request yet: if the API server
    /// is down, later requests wait for it.
    ///
    /// # Errors
    /// If there are no credentials, or they cannot be used.
    pub async fn connect() -> Result<Self, Error> {
        let config = Config::infer().await.map_err(|error| Error::Credentials(Box::new(error)))?;
        let client = Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))?;
        Ok(Self { client })
    }

    /// Returns the namespace of the credentials.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }
}
