//! What is in force and what was refused: written by the control loop, read by the admin API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use gateway::ObjectProblem;
use gateway::addresses::{EndpointsByNode, GatewayName};
use gateway::managed_services::DesiredService;
use gateway::status::ResourceStatus;
use gateway::translate::CertificateValidity;

/// Where the process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessPhase {
    Starting,
    Ready,
    /// It ends, and still takes in who comes.
    Leaving,
    Draining,
}

/// What became of a configuration that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    /// It is what was in force already.
    Unchanged,
    /// Endpoints alone changed, and were swapped.
    Endpoints,
    /// A new Snapshot is in force.
    Applied,
    /// It had errors; what was in force still is.
    Refused,
}

/// What a translation says of Services in front of Gateways.
#[derive(Debug, Default)]
pub(crate) struct TranslatedServices {
    pub(crate) fronts: Vec<DesiredService>,
    /// Gateways whose Services stay as they are.
    pub(crate) retained: BTreeSet<GatewayName>,
}

/// The state of configuration.
#[derive(Clone, Debug)]
pub(crate) struct ProcessReport {
    pub(crate) phase: ProcessPhase,
    /// How many configurations have been put in force, counted from 1.
    pub(crate) generation: u64,
    /// When the one in force was.
    pub(crate) applied_at: Option<SystemTime>,
    /// Errors of what was read last; empty: it is in force.
    pub(crate) problems: Arc<[ObjectProblem]>,
    /// Addresses that cannot be listened on, and why.
    pub(crate) unbound: Arc<[String]>,
    /// What became of each object in force.
    pub(crate) statuses: Arc<[ResourceStatus]>,
    /// The Services that should be in front of Gateways.
    pub(crate) services: Arc<TranslatedServices>,
    /// Certificates in use.
    pub(crate) certificates: Arc<[CertificateValidity]>,
    /// How many endpoints of each address of a pool are on which node.
    pub(crate) endpoint_counts: Arc<BTreeMap<IpAddr, EndpointsByNode>>,
    /// The nodes on which a Sheave is ready, where the cluster knows.
    pub(crate) nodes: Arc<BTreeSet<Arc<str>>>,
    /// How often each came, in the order of [`ReloadOutcome::ALL`].
    pub(crate) reloads: [u64; ReloadOutcome::ALL.len()],
    /// Questions to DNS: answered, failed.
    pub(crate) lookups: [u64; 2],
    /// Names of which the last question failed.
    pub(crate) names_failing: usize,
}

impl ReloadOutcome {
    pub(crate) const ALL: [Self; 4] =
        [Self::Unchanged, Self::Endpoints, Self::Applied, Self::Refused];

    /// The metric's label.
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
            statuses: Arc::default(),
            services: Arc::default(),
            certificates: Arc::default(),
            endpoint_counts: Arc::default(),
            nodes: Arc::default(),
            reloads: [0; ReloadOutcome::ALL.len()],
            lookups: [0; 2],
            names_failing: 0,
        }
    }

    pub(crate) fn count(&mut self, reload: ReloadOutcome) {
        self.reloads[reload as usize] += 1;
    }
}
