//! The endpoints of a cluster by zone, as clients of one zone get them.

use std::collections::BTreeMap;

use gateway::snapshot::{Backend, EndpointSpec};

use crate::message::{
    ClientLocality, ClusterLoadAssignment, HostAddress, HostEndpoint, LbEndpoint,
    LocalityLbEndpoints,
};
use crate::name;
use crate::table::EndpointHealth;

/// Returns the endpoints of a backend for clients in a zone, which is empty if it is not known.
///
/// Each zone is a locality, with the weights of its endpoints as its weight, so that all endpoints get equal shares. If
/// the zone is preferred, its endpoints come first. If no endpoint is healthy, health is ignored: a late answer is better
/// than none.
pub(crate) fn load_assignment(
    backend: &Backend,
    health: &EndpointHealth,
    client_zone: &str,
) -> ClusterLoadAssignment {
    let is_healthy = |it: &&EndpointSpec| !health.is_unhealthy(&backend.key, it.address);
    let ignores_health = !backend.endpoints.iter().any(|it| is_healthy(&it));
    let mut zones: BTreeMap<&str, ZoneEndpoints> = BTreeMap::new();
    for endpoint in &backend.endpoints {
        let serves = ignores_health || is_healthy(&endpoint);
        zones
            .entry(endpoint.zone.as_deref().unwrap_or_default())
            .or_default()
            .add(endpoint, serves);
    }
    let prefers = |zone: &str| {
        backend.settings.prefers_same_zone && !client_zone.is_empty() && zone == client_zone
    };
    // Priorities have no gaps, so the others come second only if some come first.
    let is_first_there = zones.iter().any(|(zone, it)| prefers(zone) && it.weight > 0);
    let endpoints = zones.into_iter().map(|(zone, endpoints)| {
        let priority = u32::from(is_first_there && !prefers(zone));
        endpoints.locality(zone, priority)
    });
    let mut endpoints: Vec<_> = endpoints.collect();
    endpoints.sort_by_key(|it| it.priority);
    ClusterLoadAssignment { cluster_name: name::cluster(&backend.key).to_string(), endpoints }
}

/// The endpoints of a zone.
#[derive(Default)]
struct ZoneEndpoints {
    endpoints: Vec<LbEndpoint>,
    /// The sum of the weights of those that are healthy.
    weight: u32,
}

impl ZoneEndpoints {
    fn add(&mut self, endpoint: &EndpointSpec, serves: bool) {
        let weight = endpoint.weight.max(1);
        if serves {
            self.weight = self.weight.saturating_add(weight);
        }
        let health_status = if serves { LbEndpoint::HEALTHY } else { LbEndpoint::UNHEALTHY };
        let endpoint = HostEndpoint { address: Some(HostAddress::of(endpoint.address)) };
        let load_balancing_weight = Some(weight.into());
        self.endpoints.push(LbEndpoint {
            endpoint: Some(endpoint),
            health_status,
            load_balancing_weight,
        });
    }

    fn locality(self, zone: &str, priority: u32) -> LocalityLbEndpoints {
        let locality = ClientLocality { zone: zone.to_owned(), ..ClientLocality::default() };
        LocalityLbEndpoints {
            locality: Some(locality),
            lb_endpoints: self.endpoints,
            // Clients ignore a locality without a weight, and so it keeps its place.
            load_balancing_weight: Some(self.weight.max(1).into()),
            priority,
        }
    }
}
