//! The configuration in force and the rejected objects: written by the control loop, read by the
//! admin API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use gateway::addresses::EndpointsByNode;
use gateway::load_balancer::{AddressAnnouncement, BgpRouter, LoadBalancerService};
use gateway::managed_services::DesiredService;
use gateway::objects::GatewayName;
use gateway::status::ResourceStatus;
use gateway::translate::CertificateValidity;
use gateway::transparent::TransparentService;
use gateway::{ApiObject, ObjectProblem, TranslationSettings};

/// Phase of the process life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessPhase {
    Starting,
    Ready,
    /// Drain delay: the process shuts down, and still accepts new connections.
    Leaving,
    Draining,
}

/// Result of reading a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    /// It is the same as the configuration in force.
    Unchanged,
    /// Only endpoints changed, and were replaced.
    Endpoints,
    /// A new Snapshot is in force.
    Applied,
    /// It had errors; the previous configuration stays in force.
    Refused,
}

/// Managed Services of a translation.
#[derive(Debug, Default)]
pub(crate) struct TranslatedServices {
    pub(crate) desired: Vec<DesiredService>,
    /// Gateways whose Services are left unchanged.
    pub(crate) retained: BTreeSet<GatewayName>,
}

/// Objects in force, from which an explanation is made anew.
#[derive(Debug, Default)]
pub(crate) struct AppliedObjects {
    pub(crate) objects: Vec<ApiObject>,
    pub(crate) settings: TranslationSettings,
}

/// State of the process and its configuration.
#[derive(Clone, Debug)]
pub(crate) struct ProcessReport {
    pub(crate) phase: ProcessPhase,
    /// Number of configurations applied since the start; the first is 1.
    pub(crate) generation: u64,
    /// Time at which the configuration in force was applied.
    pub(crate) applied_at: Option<SystemTime>,
    /// Errors of the configuration read last; if empty, it is in force.
    pub(crate) problems: Arc<[ObjectProblem]>,
    /// Addresses that could not be bound, with the reason.
    pub(crate) unbound: Arc<[String]>,
    /// The objects in force; they are shared, not copied.
    pub(crate) applied: Arc<AppliedObjects>,
    /// Name of the controller in statuses.
    pub(crate) controller: Arc<str>,
    /// Status of each object in force.
    pub(crate) statuses: Arc<[ResourceStatus]>,
    /// The managed Services that should exist in front of Gateways.
    pub(crate) services: Arc<TranslatedServices>,
    /// Certificates in use.
    pub(crate) certificates: Arc<[CertificateValidity]>,
    /// Number of endpoints per node, for each address of a pool.
    pub(crate) endpoint_counts: Arc<BTreeMap<IpAddr, EndpointsByNode>>,
    /// Nodes with a ready replica, if the cluster is the source.
    pub(crate) nodes: Arc<BTreeSet<Arc<str>>>,
    /// Services with the annotation of transparent mode.
    pub(crate) transparent_services: Arc<[TransparentService]>,
    /// Services of type LoadBalancer that are served.
    pub(crate) load_balancers: Arc<[LoadBalancerService]>,
    /// Announcement of the addresses of these Services.
    pub(crate) announcements: Arc<BTreeMap<IpAddr, AddressAnnouncement>>,
    /// Routers to which routes to addresses are announced.
    pub(crate) bgp_routers: Arc<[BgpRouter]>,
    /// Name of this node, for the addresses that only nodes with endpoints carry; empty if unknown.
    pub(crate) node: Arc<str>,
    /// Count per outcome, in the order of [`ReloadOutcome::ALL`].
    pub(crate) reloads: [u64; ReloadOutcome::ALL.len()],
    /// DNS lookups: answered, failed.
    pub(crate) lookups: [u64; 2],
    /// Number of names whose last lookup failed.
    pub(crate) names_failing: usize,
    /// Fetches of key sets: done, failed.
    pub(crate) key_set_fetches: [u64; 2],
    /// Number of key sets whose last fetch failed.
    pub(crate) key_sets_failing: usize,
    /// Number of key sets that are not there: not fetched yet, or too old.
    pub(crate) key_sets_missing: usize,
}

impl ReloadOutcome {
    pub(crate) const ALL: [Self; 4] =
        [Self::Unchanged, Self::Endpoints, Self::Applied, Self::Refused];

    /// Returns the label value for metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Endpoints => "endpoints",
            Self::Applied => "applied",
            Self::Refused => "refused",
        }
    }
}

impl ProcessReport {
    pub(crate) fn new() -> Self {
        Self {
            phase: ProcessPhase::Starting,
            generation: 0,
            applied_at: None,
            problems: Arc::default(),
            unbound: Arc::default(),
            applied: Arc::default(),
            controller: Arc::default(),
            statuses: Arc::default(),
            services: Arc::default(),
            certificates: Arc::default(),
            endpoint_counts: Arc::default(),
            nodes: Arc::default(),
            transparent_services: Arc::default(),
            load_balancers: Arc::default(),
            announcements: Arc::default(),
            bgp_routers: Arc::default(),
            node: Arc::default(),
            reloads: [0; ReloadOutcome::ALL.len()],
            lookups: [0; 2],
            names_failing: 0,
            key_set_fetches: [0; 2],
            key_sets_failing: 0,
            key_sets_missing: 0,
        }
    }

    pub(crate) fn count(&mut self, reload: ReloadOutcome) {
        self.reloads[reload as usize] += 1;
    }
}
