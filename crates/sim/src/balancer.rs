//! One Sheave: endpoints as it counts them, its backends, and what it has seen of requests.

use std::net::SocketAddr;
use std::sync::Arc;

use balance::health::Totals;
use balance::{EndpointSet, Ledger, Member};

use crate::backend::Backend;
use crate::dice::Dice;
use crate::laws::ResendAccount;
use crate::plan::Plan;
use crate::world::Endpoint;

pub(crate) struct Balancer {
    /// By server.
    pub(crate) endpoints: Vec<Arc<Endpoint>>,
    pub(crate) backends: Vec<Backend>,
    /// What has come of requests, by server.
    pub(crate) totals: Vec<Totals>,
    /// Resends beside the retry budget, by server.
    pub(crate) resends: Vec<ResendAccount>,
    /// Probes that hold a slot.
    pub(crate) probing: usize,
}

impl Balancer {
    pub(crate) fn new(plan: &Plan, dice: &mut Dice) -> Self {
        let mut ledger = Ledger::new();
        // Addresses that tell which server is which.
        let address = |server: usize| SocketAddr::from(([10, 0, 0, 1], server as u16));
        let endpoint = |server| ledger.endpoint(address(server), || server);
        let endpoints: Vec<_> = (0..plan.servers.len()).map(endpoint).collect();
        let totals = vec![Totals::default(); endpoints.len()];
        let resends = endpoints.iter().map(|_| ResendAccount::default()).collect();
        let mut balancer = Self { endpoints, backends: Vec::new(), totals, resends, probing: 0 };
        for backend in &plan.backends {
            let weights: Vec<_> = backend.weights.iter().copied().map(Some).collect();
            let set = balancer.set(&weights);
            balancer.backends.push(Backend::new(plan, backend, set, dice));
        }
        balancer
    }

    /// The servers with a weight.
    pub(crate) fn set(&self, weights: &[Option<u32>]) -> Arc<EndpointSet<usize>> {
        let member = |(endpoint, weight): (&Arc<_>, &Option<u32>)| {
            weight.map(|weight| Member::new(Arc::clone(endpoint), weight))
        };
        Arc::new(EndpointSet::new(self.endpoints.iter().zip(weights).filter_map(member).collect()))
    }

    /// Requests in flight, over all endpoints.
    pub(crate) fn in_flight(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.in_flight() as usize).sum()
    }
}
