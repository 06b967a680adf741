//! Endpoint sets of equal endpoints, for the simple simulations.

use std::net::SocketAddr;

use balance::{EndpointRegistry, EndpointSet, SetMember};

/// Returns a set of this many endpoints, each with the `data` of its number.
pub(crate) fn equal_endpoints<T>(count: usize, data: impl Fn(usize) -> T) -> EndpointSet<T> {
    let mut registry = EndpointRegistry::new();
    let member = |number: usize| {
        let address = SocketAddr::from(([10, 0, 0, 1], number as u16));
        SetMember::new(registry.endpoint(address, || data(number)), 1)
    };
    EndpointSet::new((0..count).map(member).collect())
}
