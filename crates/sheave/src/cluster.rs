//! A Kubernetes cluster as a source of objects, and where their statuses are written.
//!
//! It knows flags and the API server's side; what becomes of objects is for the configuration to know.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gateway::Object;
use gateway::addresses;
use gateway::ingress::{self, Served};
use gateway::objects::{EndpointSliceSpec, Resource, SliceEndpoint};
use gateway::status::Status;
use gateway::translate::SERVICE_NAME_LABEL;
use ipnet::IpNet;
use kube::{Addresses, Identity, Objects, Statuses};

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
    dealt: Addresses,
    /// Where Ingresses are served.
    ingresses: Addresses,
    /// The headless Service of all Sheaves, and who of them serves.
    peers: Option<Peers>,
}

/// The Sheaves that share fixed caps.
struct Peers {
    namespace: String,
    service: String,
    serving: Vec<SocketAddr>,
    /// Where those are that are ready.
    nodes: Arc<BTreeSet<Arc<str>>>,
}

/// The API server that the environment names.
pub(crate) async fn connect() -> Result<kube::Cluster, Failure> {
    kube::Cluster::connect().await.map_err(|error| {
        let error = anyhow::Error::from(error);
        Failure::input(format_args!("{error:#}: set KUBECONFIG, or run it in a pod"))
    })
}

impl Cluster {
    /// Begins to watch where the flags ask for it. Needs a running tokio runtime.
    pub(crate) async fn connect(flags: &ClusterFlags) -> Result<Option<Self>, Failure> {
        if !flags.kubernetes {
            return Ok(None);
        }
        let cluster = connect().await?;
        let name = flags.identity.clone().unwrap_or_else(process::host_name);
        let namespace = flags.namespace.as_deref().unwrap_or_else(|| cluster.namespace());
        let identity = Identity { name, namespace: namespace.to_owned() };
        let peers = flags.peers.clone().map(|service| Peers {
            namespace: identity.namespace.clone(),
            service,
            serving: Vec::new(),
            nodes: Arc::default(),
        });
        let objects = Objects::new(&cluster, identity);
        let (dealt, ingresses) = Default::default();
        Ok(Some(Self { objects, pool: flags.pool.clone(), dealt, ingresses, peers }))
    }

    /// What the cluster asks for now, and each Gateway's address.
    pub(crate) fn load(&mut self) -> Contents {
        let kube::Contents { objects, problems } = self.objects.load();
        if let Some(peers) = &mut self.peers {
            peers.find(&objects);
        }
        let served = ingress::served(&objects);
        let addresses = if self.pool.is_empty() {
            gateway::Addresses::Own
        } else {
            let known = self.known(&served);
            addresses::assign(&self.pool, &objects, &known)
        };
        self.dealt = addresses.dealt();
        let place = |it: Served| {
            let addresses = self.dealt.get(&it.gateway).filter(|it| !it.is_empty())?;
            Some(((it.namespace, it.name), addresses.clone()))
        };
        self.ingresses = served.into_iter().filter_map(place).collect();
        Contents { objects, problems, addresses, errors: Errors::LeaveOut }
    }

    /// The addresses that Gateways have, those that stand for classes of Ingresses among them. What a status says goes
    /// before what we remember: another replica may have dealt otherwise.
    fn known(&mut self, served: &[Served]) -> Addresses {
        let mut known = std::mem::take(&mut self.dealt);
        let said = self.objects.ingress_addresses();
        for ingress in served {
            let name = (ingress.namespace.clone(), ingress.name.clone());
            if let Some(addresses) = said.get(&name).filter(|it| !it.is_empty()) {
                known.insert(ingress.gateway.clone(), addresses.clone());
            }
        }
        known.extend(self.objects.addresses().into_iter().filter(|(_, it)| !it.is_empty()));
        known
    }

    /// Waits until there is something to load, and not before the cluster has told all that it holds. May be dropped and
    /// called again.
    pub(crate) async fn changed(&mut self) {
        self.objects.changed().await;
    }

    /// Who shares fixed caps with this Sheave; `None`: nobody has said where to look.
    pub(crate) fn replicas(&self) -> Option<Vec<SocketAddr>> {
        self.peers.as_ref().map(|peers| peers.serving.clone())
    }

    /// The nodes on which a Sheave is ready; none: nobody has said where to look.
    pub(crate) fn nodes(&self) -> Arc<BTreeSet<Arc<str>>> {
        self.peers.as_ref().map(|peers| Arc::clone(&peers.nodes)).unwrap_or_default()
    }

    /// Lets the statuses be written, by whichever replica leads.
    pub(crate) fn publish(&self, statuses: Arc<[Status]>) {
        self.objects.publish(Statuses { statuses, ingresses: self.ingresses.clone() });
    }
}

impl Peers {
    /// Those that are ready, as the slices of the Service say, and those that end: they keep their slots until they have
    /// let their last requests go.
    fn find(&mut self, objects: &[Object]) {
        let slices = objects.iter().filter_map(|object| self.slice(object));
        let endpoints: Vec<_> = slices.flat_map(|slice| &slice.spec.endpoints).collect();
        let is_ready = |endpoint: &SliceEndpoint| endpoint.conditions.ready.unwrap_or(true);
        let ready = endpoints.iter().filter(|endpoint| is_ready(endpoint));
        let nodes = ready.filter_map(|endpoint| endpoint.node_name.as_deref().map(Arc::from));
        let nodes = Arc::new(nodes.collect());
        let serves = |endpoint: &&&SliceEndpoint| {
            is_ready(endpoint) || endpoint.conditions.terminating.unwrap_or(false)
        };
        let serving = endpoints.iter().filter(serves);
        let addresses = serving.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok());
        self.nodes = nodes;
        self.serving = addresses.map(|address: IpAddr| SocketAddr::new(address, 0)).collect();
        self.serving.sort_unstable();
        self.serving.dedup();
    }

    /// What an object says of them.
    fn slice<'o>(&self, object: &'o Object) -> Option<&'o Resource<EndpointSliceSpec>> {
        let Object::EndpointSlice(slice) = object else { return None };
        let metadata = &slice.metadata;
        let is_ours = metadata.namespace == self.namespace
            && metadata.labels.get(SERVICE_NAME_LABEL) == Some(&self.service);
        is_ours.then_some(slice)
    }
}
