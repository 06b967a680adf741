//! `/api/v1/replicas`: slots leased to other replicas, and the connections to them.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::replicas::ReplicaStatus;

/// The response.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReplicasResponse {
    /// Slots that this replica may use now.
    pub(crate) slots_held: u64,
    /// Slots that it has lent to others.
    pub(crate) slots_lent: u64,
    /// Slots of `slots_held` that it has borrowed from others.
    pub(crate) slots_borrowed: u64,
    /// Time at which the certificate of this replica expires, in seconds since the Unix epoch; `null` if it has none.
    pub(crate) certificate_expiry: Option<u64>,
    /// The reason why the newest certificates cannot be used; `null` if there is none.
    pub(crate) certificate_problem: Option<String>,
    /// The other replicas.
    pub(crate) peers: Vec<PeerResponse>,
}

impl ReplicasResponse {
    /// Returns one line: connected replicas, and slots.
    pub(crate) fn summary(&self) -> String {
        let connected = self.peers.iter().filter(|it| it.connected_seconds.is_some()).count();
        let problem = self.certificate_problem.as_deref().unwrap_or_default();
        format!(
            "replicas {connected} of {} connected, slots {} held, {} lent, {} borrowed{}{problem}",
            self.peers.len(),
            self.slots_held,
            self.slots_lent,
            self.slots_borrowed,
            if problem.is_empty() { "" } else { "; certificates: " },
        )
    }
}

/// Another replica.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeerResponse {
    /// Address in the list of replicas.
    pub(crate) address: SocketAddr,
    /// Seconds for which this replica has been connected to it; `null` if it is not.
    pub(crate) connected_seconds: Option<f64>,
    /// The last reason why the connection failed or was lost.
    pub(crate) last_error: Option<String>,
}

pub(super) fn response(status: &ReplicaStatus) -> ReplicasResponse {
    let leases = status.leases();
    let peers = status.channel().map(|channel| channel.peer_states()).unwrap_or_default();
    let peer = |state: replica::PeerState| PeerResponse {
        address: state.member,
        connected_seconds: state.connected_for.map(|time| time.as_secs_f64()),
        last_error: state.last_error,
    };
    let certificates = status.certificates();
    ReplicasResponse {
        certificate_expiry: certificates.expiry,
        certificate_problem: certificates.problem,
        slots_held: leases.held,
        slots_lent: leases.lent,
        slots_borrowed: leases.borrowed,
        peers: peers.into_iter().map(peer).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_counts_connected_replicas() {
        let peer = |connected_seconds| PeerResponse {
            address: ([10, 0, 0, 7], 9903).into(),
            connected_seconds,
            last_error: None,
        };
        let mut response = ReplicasResponse {
            certificate_expiry: Some(1_800_000_000),
            certificate_problem: None,
            slots_held: 12,
            slots_lent: 1,
            slots_borrowed: 3,
            peers: vec![peer(Some(1.5)), peer(None)],
        };
        let line = "replicas 1 of 2 connected, slots 12 held, 1 lent, 3 borrowed";
        assert_eq!(response.summary(), line);
        response.certificate_problem = Some("current.key is missing".to_owned());
        let line = format!("{line}; certificates: current.key is missing");
        assert_eq!(response.summary(), line);
    }
}
