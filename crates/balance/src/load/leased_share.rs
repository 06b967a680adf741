//! Share of an endpoint's slots that this balancer has by leases ([`crate::leases`]).

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as StdAtomicU64;

use crate::atomic::{AtomicU64, Ordering};
use crate::leases::EndpointShare;
use crate::time::Time;

/// Value of a share that is not limited by leases.
const UNLEASED: u64 = u64::MAX;

/// Time until which the shares of a balancer's endpoints are valid. After it, only their parts without
/// leases are: a lease expires even if the thread that renews it hangs. At first nothing is valid.
#[derive(Clone, Debug, Default)]
pub struct LeaseValidity(Arc<StdAtomicU64>);

impl LeaseValidity {
    /// Sets the time ([`LeaseTable::valid_until`](crate::leases::LeaseTable::valid_until)).
    pub fn set(&self, until: Time) {
        self.0.store(until.as_nanos(), Ordering::Relaxed);
    }

    fn holds_at(&self, now: Time) -> bool {
        now.as_nanos() < self.0.load(Ordering::Relaxed)
    }
}

/// Share of one endpoint: the slots while the leases are valid, and those without leases.
#[derive(Debug)]
pub(crate) struct LeasedShare(AtomicU64);

impl LeasedShare {
    /// Sets the share. A request that began before is in the count of requests in flight that is
    /// read afterwards, or sees the new share and gives its slot back.
    pub(crate) fn set(&self, share: EndpointShare) {
        let packed = u64::from(share.slots) << 32 | u64::from(share.without_leases);
        self.0.store(packed, Ordering::SeqCst);
    }

    /// Withholds all slots until a share is set.
    pub(crate) fn withhold(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    pub(crate) fn forget(&self) {
        self.0.store(UNLEASED, Ordering::SeqCst);
    }

    /// True if leases limit the endpoint.
    pub(crate) fn is_leased(&self) -> bool {
        self.0.load(Ordering::Relaxed) != UNLEASED
    }

    /// Returns the limit on requests in flight; `u32::MAX` if leases do not limit the endpoint.
    #[inline]
    pub(crate) fn most(&self, validity: &LeaseValidity, now: Time) -> u32 {
        let packed = self.0.load(Ordering::SeqCst);
        let valid = packed == UNLEASED || validity.holds_at(now);
        (if valid { packed >> 32 } else { packed & u64::from(u32::MAX) }) as u32
    }
}

impl Default for LeasedShare {
    fn default() -> Self {
        Self(AtomicU64::new(UNLEASED))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn share_without_leases_is_left_when_validity_ends() {
        let (share, validity) = (LeasedShare::default(), LeaseValidity::default());
        let most = |nanos| share.most(&validity, Time::from_nanos(nanos));
        assert_eq!((share.is_leased(), most(0)), (false, u32::MAX));
        share.withhold();
        assert_eq!((share.is_leased(), most(0)), (true, 0));
        share.set(EndpointShare { slots: 5, without_leases: 2, is_emergency: false });
        assert_eq!(most(0), 2);
        validity.set(Time::from_nanos(7));
        assert_eq!([most(6), most(7)], [5, 2]);
        share.forget();
        assert_eq!(most(7), u32::MAX);
    }
}
