//! A Kubernetes cluster as a source of objects, and where their statuses are written.
//!
//! It knows flags and the API server's side; what becomes of objects is for the configuration to know.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use gateway::status::Status;
use gateway::{Addresses, addresses};
use ipnet::IpNet;
use kube::{Identity, Objects};

use crate::configuration::Errors;
use crate::failure::Failure;
use crate::files::Contents;
use crate::flags::ClusterFlags;
use crate::process;

/// The objects of a cluster, watched.
pub(crate) struct Cluster {
    objects: Objects,
    pool: Vec<IpNet>,
    /// What Gateways were given last; a status that says so may still be on its way.
    dealt: BTreeMap<(String, String), Vec<IpAddr>>,
}

impl Cluster {
    /// Begins to watch where the flags ask for it. Needs a running tokio runtime.
    pub(crate) async fn connect(flags: &ClusterFlags) -> Result<Option<Self>, Failure> {
        if !flags.kubernetes {
            return Ok(None);
        }
        let cluster = kube::Cluster::connect().await.map_err(|error| {
            let error = anyhow::Error::from(error);
            Failure::input(format_args!("{error:#}: set KUBECONFIG, or run it in a pod"))
        })?;
        let name = flags.identity.clone().unwrap_or_else(process::host_name);
        let namespace = flags.namespace.as_deref().unwrap_or_else(|| cluster.namespace());
        let identity = Identity { name, namespace: namespace.to_owned() };
        let objects = Objects::new(&cluster, identity);
        Ok(Some(Self { objects, pool: flags.pool.clone(), dealt: BTreeMap::new() }))
    }

    /// What the cluster asks for now, and each Gateway's address.
    pub(crate) fn load(&mut self) -> Contents {
        let kube::Contents { objects, problems } = self.objects.load();
        let addresses = if self.pool.is_empty() {
            Addresses::Own
        } else {
            // What a status says goes before what we remember: another replica may have dealt otherwise.
            let said = self.objects.addresses().into_iter().filter(|(_, it)| !it.is_empty());
            let mut known = std::mem::take(&mut self.dealt);
            known.extend(said);
            addresses::assign(&self.pool, &objects, &known)
        };
        self.dealt = addresses.assigned();
        Contents { objects, problems, addresses, errors: Errors::LeaveOut }
    }

    /// Waits until there is something to load, and not before the cluster has told all that it holds. May be dropped and
    /// called again.
    pub(crate) async fn changed(&mut self) {
        self.objects.changed().await;
    }

    /// Lets the statuses be written, by whichever replica leads.
    pub(crate) fn publish(&self, statuses: Arc<[Status]>) {
        self.objects.publish(statuses);
    }
}
