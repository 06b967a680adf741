//! The API server's side: what a cluster asks for, and what is told of it there.
//!
//! It watches objects and writes statuses. What objects mean is for `gateway` to know; nothing of the data plane is known
//! here, and nothing of it ever waits for the API server.
#![warn(missing_docs)]

/// Which objects of a cluster matter.
mod kind;
/// What the cluster holds, as far as it has been told.
mod store;
/// From the API server's watches to what is known.
mod watch;
/// Statuses, written where they differ.
mod publish;
/// Which of them could not be written.
mod backoff;
/// Services in front of Gateways, written where they differ.
mod gateway_services;
/// Which of several replicas writes.
mod leader_election;
/// Which node carries an address, and that it does.
mod announce;
/// What tests watch and write to.
#[cfg(test)]
mod api_server;

use kube_client::{Client, Config};
use thiserror::Error;

pub use announce::{AnnouncerConfig, EndpointCountsByAddress, announce};
pub use gateway_services::DesiredServices;
pub use publish::{DesiredStatuses, IngressAddresses, StatusAddresses};
pub use watch::{ClusterContents, ClusterObjects};

/// As whom we write: the field manager of statuses, and the name of the Lease.
const WRITER: &str = "sheave";

/// Why there is no cluster to speak to.
#[derive(Debug, Error)]
pub enum Error {
    /// Neither a kubeconfig nor the files of a pod.
    #[error("there are no credentials for an API server, neither of a kubeconfig nor of a pod")]
    Credentials(#[source] Box<kube_client::config::InferConfigError>),
    /// Credentials that cannot be used.
    #[error("the credentials for the API server cannot be used")]
    Client(#[source] Box<kube_client::Error>),
}

/// An API server that we may speak to.
#[derive(Clone)]
pub struct ClusterClient {
    client: Client,
}

/// Who we are among the replicas.
#[derive(Clone, Debug)]
pub struct ReplicaIdentity {
    /// Unique among them.
    pub name: String,
    /// Where the Lease is.
    pub namespace: String,
}

impl ClusterClient {
    /// By the kubeconfig of the environment, or as a pod. Nothing is asked yet: an API server that is down is waited for.
    ///
    /// # Errors
    /// If there are no credentials, or they cannot be used.
    pub async fn connect() -> Result<Self, Error> {
        let config = Config::infer().await.map_err(|error| Error::Credentials(Box::new(error)))?;
        let client = Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))?;
        Ok(Self { client })
    }

    /// The namespace that the credentials name.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }
}
