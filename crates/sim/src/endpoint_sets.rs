//! Endpoints of the plain worlds: equals, in one set.

use std::net::SocketAddr;

use balance::{EndpointRegistry, EndpointSet, SetMember};

/// So many, each with what `data` says of its number.
pub(crate) fn equal_endpoints<T>(count: usize, data: impl Fn(usize) -> T) -> EndpointSet<T> {
    let mut ledger = EndpointRegistry::new();
    let member = |number: usize| {
        let address = SocketAddr::from(([10, 0, 0, 1], number as u16));
        SetMember::new(ledger.endpoint(address, || data(number)), 1)
    };
    EndpointSet::new((0..count).map(member).collect())
}
