//! Flags for a Kubernetes cluster as the configuration source.

use clap::Args;
use gateway::objects::{GATEWAY_CONTROLLER, INGRESS_CONTROLLER};
use gateway::{AddressFilter, ClusterDomain, ControllerNames, TranslationSettings};
use ipnet::IpNet;

use super::values::{self, ServiceTemplate};

const CLUSTER: &str = "Kubernetes";

/// Flags for a Kubernetes cluster as the configuration source.
#[derive(Debug, Default, Args)]
pub(crate) struct ClusterFlags {
    /// Serve the Gateways, routes, Services and policies of a Kubernetes cluster, and watch them for changes.
    ///
    /// The API server and the credentials are those of the pod, or of the kubeconfig (KUBECONFIG, ~/.kube/config). An
    /// object with errors gets status conditions and does not affect other objects. If the API server is unreachable,
    /// the last known configuration stays in force.
    #[arg(long, help_heading = CLUSTER)]
    pub(crate) kubernetes: bool,

    /// Address pool for Gateways, as CIDR blocks: each Gateway gets one address, and `sheave announce` announces it on
    /// a node [default: each Gateway is served on the addresses in its spec, else on all addresses of the machine].
    #[arg(long, value_name = "CIDR,CIDR...", value_delimiter = ',', requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) pool: Vec<IpNet>,

    /// Serve the Services of type LoadBalancer with `loadBalancerClass: sheave.dev/l4`, at addresses of AddressPools.
    ///
    /// `sheave announce` announces the addresses. Run it on each node, on the node's network. --node-name names the node,
    /// for `externalTrafficPolicy: Local`.
    #[arg(long, requires = "kubernetes", conflicts_with = "service_template", help_heading = CLUSTER)]
    pub(crate) load_balancer: bool,

    /// Serve the Services of type LoadBalancer without a class too.
    #[arg(long, requires = "load_balancer", help_heading = CLUSTER)]
    pub(crate) default_load_balancer: bool,

    /// Create a Service in front of the Sheaves for each Gateway, from this template, in --namespace: JSON of a Service
    /// with `spec.selector`, for example '{"spec":{"type":"LoadBalancer","selector":{"app":"sheave"}}}'.
    ///
    /// The ports of the Service are those of the Gateway's listeners; their target ports are ports of Sheave from 20000
    /// on. The Gateway's status shows the address assigned by the load balancer. If --peers names a Service, deleting
    /// that Service deletes all of these.
    #[arg(long, value_name = "JSON", requires = "kubernetes", conflicts_with = "pool", value_parser = values::service_template, help_heading = CLUSTER)]
    pub(crate) service_template: Option<ServiceTemplate>,

    /// Service in front of the Sheaves, in --namespace. The addresses assigned by its load balancer are published in
    /// the statuses of Gateways and Ingresses.
    #[arg(long, value_name = "NAME", requires = "kubernetes", conflicts_with_all = ["pool", "service_template"], help_heading = CLUSTER)]
    pub(crate) published_service: Option<String>,

    /// Headless Service of the replicas that serve the same endpoints, in --namespace: fixed limits are divided among
    /// the replicas that are ready.
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) peers: Option<String>,

    /// Name of this replica; it must be unique [default: the host name].
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) identity: Option<String>,

    /// Namespace of the Lease for the leader election: the leader writes statuses [default: that of the credentials].
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) namespace: Option<String>,

    /// Namespaces to watch. Objects in other namespaces are not read, so that Roles in these namespaces suffice. Services
    /// and EndpointSlices of --namespace are always read: they are those of the replicas [default: all namespaces].
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',', requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) watch_namespaces: Vec<String>,

    /// Watch all Secrets and ConfigMaps of the watched namespaces.
    ///
    /// By default, only those that Gateways, Ingresses and policies refer to are read, each by its name, so that Roles
    /// with `resourceNames` suffice. These are at most 2,000.
    #[arg(long, requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) watch_all_secrets: bool,

    /// Name of the controller in GatewayClasses; classes with another name belong to another installation.
    ///
    /// Two installations in one cluster need two names, and so do their entries in statuses and their Leases.
    #[arg(long, value_name = "DOMAIN/NAME", default_value = GATEWAY_CONTROLLER, value_parser = values::controller, requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) controller: String,

    /// Name of the controller in IngressClasses.
    #[arg(long, value_name = "DOMAIN/NAME", default_value = INGRESS_CONTROLLER, value_parser = values::controller, requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) ingress_controller: String,

    /// Annotate the pods of balanced Services with their deletion cost, the requests in flight at this replica, so that a
    /// ReplicaSet that shrinks deletes the pods with the fewest.
    ///
    /// The leader writes, at most two pods a second, and only if a mean has changed by half. Needs the verb `patch` on
    /// pods. A cost that another writer has set stays.
    #[arg(long, requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) pod_deletion_cost: bool,

    /// Networks that Services of type ExternalName may resolve to, as CIDR blocks; without this flag, such Services of
    /// the cluster are not served.
    ///
    /// An author of Services can make Sheave connect to each address in these networks. Leave out the networks of pods,
    /// Services and nodes. Loopback, link-local and multicast addresses, metadata services, Sheave's own addresses, and
    /// names of the cluster are never served. Services in files are not restricted.
    #[arg(long, value_name = "CIDR,CIDR...", value_delimiter = ',', requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) external_names: Vec<IpNet>,

    /// Domain of the names of this cluster, which no ExternalName Service may name.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) cluster_domain: String,

    /// Let Gateways of all namespaces share hostnames of a port: the more specific hostname gets the requests.
    ///
    /// By default, the namespace of the oldest Gateway with a hostname owns it, with all names below a wildcard, and
    /// listeners of other namespaces for these names are not served.
    #[arg(long, requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) share_hostnames: bool,
}

impl ClusterFlags {
    /// Returns the settings of a translation, without addresses.
    pub(crate) fn translation_settings(&self) -> TranslationSettings {
        TranslationSettings {
            controllers: ControllerNames {
                gateway: self.controller.as_str().into(),
                ingress: self.ingress_controller.as_str().into(),
            },
            address_filter: AddressFilter::new(self.external_names.clone()),
            cluster_domain: ClusterDomain::new(&self.cluster_domain),
            share_hostnames: self.share_hostnames,
            ..TranslationSettings::default()
        }
    }
}
