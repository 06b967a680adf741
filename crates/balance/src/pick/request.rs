//! What a request asks for, and what that comes to in one set.

use std::fmt;
use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::queue::QueueParameters;
use crate::time::Time;

/// What a request asks for: of choosing, and of waiting. The default asks for nothing.
///
/// Wishes yield to health: one that names an endpoint counts only as long as that one is a member with a weight, and
/// is not on trial.
pub struct PickRequest<'a, T> {
    /// Endpoints at which the request has been tried already, the latest one last. None of them is chosen while another
    /// endpoint with a weight is reachable. If all that are reachable have been tried, only the latest one is avoided, and
    /// not even that if it is alone. If none is reachable, the same holds of all that have a weight.
    pub tried: &'a [Arc<Endpoint<T>>],
    /// The endpoint that the request is bound to, as by a cookie. If it is full, the request waits for it.
    pub only: Option<&'a Arc<Endpoint<T>>>,
    /// A hash of what requests have in common that are to meet at one endpoint: for
    /// [`ConsistentHash`](crate::Algorithm::ConsistentHash) and [`Maglev`](crate::Algorithm::Maglev). Without it those
    /// choose by load. See [`hash`](crate::hash::hash).
    pub key: Option<u64>,
    /// When it is.
    pub now: Time,
    /// Where it stands if it has to wait.
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
        f.debug_struct("Wish")
            .field("tried", &self.tried)
            .field("only", &self.only)
            .field("key", &self.key)
            .field("now", &self.now)
            .field("rank", &self.queueing)
            .finish()
    }
}

/// What somebody waits for: as much of a wish as outlives the set it was made in.
pub(crate) struct PickConstraints<T> {
    pub(crate) tried: Box<[Arc<Endpoint<T>>]>,
    pub(crate) only: Option<Arc<Endpoint<T>>>,
    /// A key that binds to one endpoint, whichever that is in a set.
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

/// Which members of a set may serve a request; those without a weight never do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EligibleEndpoints {
    /// Any.
    Any,
    /// Any but these.
    AllExcept(Arc<[usize]>),
    /// This one.
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
