//! Endpoints of the plain worlds: equals, in one set.

use std::net::SocketAddr;

use balance::{EndpointSet, Ledger, Member};

/// So many, each with what `data` says of its number.
pub(crate) fn endpoints<T>(count: usize, data: impl Fn(usize) -> T) -> EndpointSet<T> {
    let mut ledger = Ledger::new();
    let member = |number: usize| {
        let address = SocketAddr::from(([10, 0, 0, 1], number as u16));
        Member::new(ledger.endpoint(address, || data(number)), 1)
    };
    EndpointSet::new((0..count).map(member).collect())
}
