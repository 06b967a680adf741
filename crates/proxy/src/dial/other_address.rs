//! The address of an endpoint in the other IP version than that of the address by which it is known.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use balance::Time;

use crate::clock;
use crate::mutex::lock;

/// Time for which the address is not used after a failed attempt.
const PAUSE: Duration = Duration::from_secs(30);

/// The address, for connections with the address of a client of that version.
#[derive(Default)]
pub(crate) struct OtherAddress(Mutex<OtherAddressState>);

#[derive(Default)]
struct OtherAddressState {
    address: Option<SocketAddr>,
    avoided_until: Time,
}

impl OtherAddress {
    /// Sets the address. A backend of one IP version does not know it, so it is never removed.
    pub(crate) fn set(&self, address: SocketAddr) {
        lock(&self.0).address = Some(address);
    }

    /// True if setting this address would change nothing.
    pub(crate) fn is_known_as(&self, address: Option<SocketAddr>) -> bool {
        address.is_none() || lock(&self.0).address == address
    }

    /// Returns the address, if there is one and no attempt to connect to it has failed recently.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        let state = lock(&self.0);
        state.address.filter(|_| state.avoided_until <= clock::now())
    }

    /// Avoids the address for a while, because no connection was possible.
    pub(crate) fn avoid(&self) {
        lock(&self.0).avoided_until = clock::now() + PAUSE;
    }
}
