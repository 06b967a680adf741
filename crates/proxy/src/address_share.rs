//! The share of one client address in the slots and queue places of a backend.
//!
//! An address has an entry only while a request of it holds or waits for a slot, so there are never more entries than
//! slots and queue places. An IPv6 client is its network of 64 bits, which a subscriber has as a whole (RFC 6177).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::Backend;
use crate::failure::Failure;
use crate::mutex::lock;

/// Number of tables, so that workers seldom meet at a lock.
const TABLES: usize = 16;

/// Numbers of requests by client address; empty and without memory while no policy limits them.
#[derive(Default)]
pub(crate) struct AddressShares(OnceLock<AddressTables>);

/// The tables. The hasher has random keys, so that clients cannot choose addresses that collide.
#[derive(Default)]
struct AddressTables {
    tables: [Mutex<HashMap<IpAddr, u32>>; TABLES],
    hasher: std::hash::RandomState,
}

/// A place in the share of an address; given back when dropped.
pub(crate) struct AddressPlace {
    backend: Arc<Backend>,
    address: IpAddr,
}

impl AddressShares {
    fn count(&self, address: IpAddr, most: NonZeroU32) -> bool {
        let mut table = lock(self.0.get_or_init(AddressTables::default).table(address));
        let count = table.entry(address).or_insert(0);
        let is_free = *count < most.get();
        *count += u32::from(is_free);
        is_free
    }

    fn give_back(&self, address: IpAddr) {
        let Some(tables) = self.0.get() else { return };
        if let Entry::Occupied(mut entry) = lock(tables.table(address)).entry(address) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

impl AddressTables {
    fn table(&self, address: IpAddr) -> &Mutex<HashMap<IpAddr, u32>> {
        &self.tables[self.hasher.hash_one(address) as usize % TABLES]
    }
}

impl AddressPlace {
    /// Takes a place for a request of `client`, if its address has fewer than `most`.
    pub(crate) fn take(
        backend: &Arc<Backend>,
        client: IpAddr,
        most: NonZeroU32,
    ) -> Result<Box<Self>, Failure> {
        let address = network(client);
        if !backend.address_shares.count(address, most) {
            return Err(Failure::AddressShare);
        }
        Ok(Box::new(Self { backend: Arc::clone(backend), address }))
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        self.backend.address_shares.give_back(self.address);
    }
}

/// Returns the address that stands for the client.
pub(crate) fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_an_address_are_limited_and_returned() {
        let shares = AddressShares::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let most = NonZeroU32::new(2).unwrap();
        assert!(shares.count(one, most) && shares.count(one, most) && shares.count(other, most));
        assert!(!shares.count(one, most));
        shares.give_back(one);
        assert!(shares.count(one, most));
        for address in [one, one, other] {
            shares.give_back(address);
        }
        let tables = shares.0.get().unwrap();
        assert!(tables.tables.iter().all(|table| lock(table).is_empty()));
    }

    #[test]
    fn ipv6_client_is_its_network_and_mapped_ipv4_is_ipv4() {
        let parse = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(parse("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(parse("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(parse("192.0.2.1"), "192.0.2.1");
    }
}
