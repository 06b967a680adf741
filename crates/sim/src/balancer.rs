//! One Sheave replica: its counts of endpoints, its backends, and the results of requests.

use std::net::SocketAddr;
use std::sync::Arc;

use balance::health::AttemptTotals;
use balance::{EndpointRegistry, EndpointSet, SetMember};

use crate::backend::SimulatedBackend;
use crate::fault_simulation::ServerEndpoint;
use crate::invariants::ResendAccount;
use crate::plan::SimulationPlan;
use crate::random::RandomSource;

pub(crate) struct SimulatedBalancer {
    /// Endpoints by server.
    pub(crate) endpoints: Vec<Arc<ServerEndpoint>>,
    pub(crate) backends: Vec<SimulatedBackend>,
    /// Attempt totals by server.
    pub(crate) totals: Vec<AttemptTotals>,
    /// Resends beside the retry budget, by server.
    pub(crate) resends: Vec<ResendAccount>,
    /// Probes that hold a slot.
    pub(crate) probing: usize,
}

impl SimulatedBalancer {
    pub(crate) fn new(plan: &SimulationPlan, dice: &mut RandomSource) -> Self {
        let mut registry = EndpointRegistry::new();
        // The port of an address is the number of the server.
        let address = |server: usize| SocketAddr::from(([10, 0, 0, 1], server as u16));
        let endpoint = |server| registry.endpoint(address(server), || server);
        let endpoints: Vec<_> = (0..plan.servers.len()).map(endpoint).collect();
        let totals = vec![AttemptTotals::default(); endpoints.len()];
        let resends = endpoints.iter().map(|_| ResendAccount::default()).collect();
        let mut balancer = Self { endpoints, backends: Vec::new(), totals, resends, probing: 0 };
        for backend in &plan.backends {
            let weights: Vec<_> = backend.weights.iter().copied().map(Some).collect();
            let set = balancer.set(&weights);
            balancer.backends.push(SimulatedBackend::new(plan, backend, set, dice));
        }
        balancer
    }

    /// Returns the set of servers with a weight.
    pub(crate) fn set(&self, weights: &[Option<u32>]) -> Arc<EndpointSet<usize>> {
        let member = |(endpoint, weight): (&Arc<_>, &Option<u32>)| {
            weight.map(|weight| SetMember::new(Arc::clone(endpoint), weight))
        };
        Arc::new(EndpointSet::new(self.endpoints.iter().zip(weights).filter_map(member).collect()))
    }

    /// Returns the requests in flight, over all endpoints.
    pub(crate) fn in_flight(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.in_flight() as usize).sum()
    }
}
