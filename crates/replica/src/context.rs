//! State that all connections of the channel use.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use balance::leases::ReplicaIdentity;
use balance::rng::Rng;

use crate::counts::ChannelCounts;
use crate::settings::ChannelTimes;

/// Maximum number of problems that are remembered as logged. Further ones are only counted.
const MAX_PROBLEMS: usize = 4096;

#[derive(Debug)]
pub(crate) struct ChannelContext {
    pub(crate) me: ReplicaIdentity,
    pub(crate) port: u16,
    pub(crate) times: ChannelTimes,
    pub(crate) counts: Arc<ChannelCounts>,
    /// Problems that were logged, by peer and reason, until a connection with the peer succeeds.
    logged: Mutex<BTreeSet<(SocketAddr, &'static str)>>,
    rng: Mutex<Rng>,
}

impl ChannelContext {
    pub(crate) fn new(me: ReplicaIdentity, port: u16, times: ChannelTimes) -> Self {
        Self {
            me,
            port,
            times,
            counts: Arc::new(ChannelCounts::default()),
            logged: Mutex::new(BTreeSet::new()),
            // Replicas that start at the same time have other addresses.
            rng: Mutex::new(Rng::new(
                me.incarnation ^ balance::hash::hash(me.member.to_string().as_bytes()),
            )),
        }
    }

    /// Returns true if this problem is to be logged: it is not known yet.
    pub(crate) fn is_new_problem(&self, peer: SocketAddr, reason: &'static str) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.len() < MAX_PROBLEMS && logged.insert((peer, reason))
    }

    /// Forgets the problems with these reasons: they are over, and the next one is logged again.
    pub(crate) fn forget_problems(&self, peer: SocketAddr) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|&(of, _)| of != peer);
    }

    /// Returns a random duration: at least half of this one, and less than all of it.
    pub(crate) fn jittered(&self, duration: Duration) -> Duration {
        let half = duration / 2;
        half + self.random_part(half)
    }

    /// Returns a random part of a duration.
    pub(crate) fn random_part(&self, duration: Duration) -> Duration {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        duration.mul_f64(rng.below(1 << 20) as f64 / f64::from(1 << 20))
    }
}
