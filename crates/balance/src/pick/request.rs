//! Constraints of one request, and the members of a set that satisfy them.

use std::fmt;
use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::queue::QueueParameters;
use crate::time::Time;

/// Constraints of a request: for picking and for queueing. The default has none.
///
/// Health takes precedence: a constraint that names an endpoint counts only while the endpoint is a
/// member with a weight, and not half-open.
pub struct PickRequest<'a, T> {
    /// Endpoints at which the request has been tried already, the latest one last. None of them is
    /// chosen while another endpoint with a weight is reachable. If all that are reachable have
    /// been tried, only the latest one is avoided, and not even that if it is the only one. If none
    /// is reachable, the same holds for all that have a weight.
    pub tried: &'a [Arc<Endpoint<T>>],
    /// Endpoint that the request is bound to, as by a cookie. If it is full, the request waits for
    /// it.
    pub only: Option<&'a Arc<Endpoint<T>>>,
    /// Hash of a property by which requests are to meet at one endpoint: for
    /// [`ConsistentHash`](crate::Algorithm::ConsistentHash) and
    /// [`Maglev`](crate::Algorithm::Maglev). Without it these balance by load. See
    /// [`hash`](crate::hash::hash).
    pub key: Option<u64>,
    /// Current time.
    pub now: Time,
    /// Priority, flow and deadline if it has to wait.
    pub queueing: QueueParameters,
}

impl<T> Clone for PickRequest<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PickRequest<'_, T> {}

impl<T> Default for PickRequest<'_, T> {
    fn default() -> Self {
        Self {
            tried: &[],
            only: None,
            key: None,
            now: Time::ZERO,
            queueing: QueueParameters::default(),
        }
    }
}

impl<T> fmt::Debug for PickRequest<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PickRequest")
            .field("tried", &self.tried)
            .field("only", &self.only)
            .field("key", &self.key)
            .field("now", &self.now)
            .field("queueing", &self.queueing)
            .finish()
    }
}

/// Constraints of a queued request: the part of a pick request that outlives the set it was made
/// for.
pub(crate) struct PickConstraints<T> {
    pub(crate) tried: Box<[Arc<Endpoint<T>>]>,
    pub(crate) only: Option<Arc<Endpoint<T>>>,
    /// Key that binds to one endpoint, depending on the set.
    pub(crate) key: Option<u64>,
}

impl<T> PickConstraints<T> {
    pub(crate) fn request(&self, now: Time) -> PickRequest<'_, T> {
        PickRequest {
            tried: &self.tried,
            only: self.only.as_ref(),
            key: self.key,
            now,
            ..PickRequest::default()
        }
    }

    pub(crate) fn eligible(&self, set: &EndpointSet<T>) -> EligibleEndpoints {
        set.eligible(&self.tried, self.only.as_ref(), self.key)
    }
}

/// Members of a set that may serve a request; those without a weight never do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EligibleEndpoints {
    /// Any member.
    Any,
    /// Any member except these.
    AllExcept(Arc<[usize]>),
    /// This member only.
    Only(usize),
}

impl EligibleEndpoints {
    pub(crate) fn allows(&self, member: usize) -> bool {
        match self {
            Self::Any => true,
            Self::AllExcept(excluded) => !excluded.contains(&member),
            Self::Only(only) => member == *only,
        }
    }
}
