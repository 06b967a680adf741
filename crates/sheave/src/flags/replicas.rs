//! Flags of replicas that serve the same endpoints.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values;

const REPLICAS: &str = "Replicas";

/// Port for other replicas, if their addresses have none.
const DEFAULT_PORT: u16 = 9903;

#[derive(Clone, Debug, Args)]
pub(crate) struct ReplicaFlags {
    /// Replicas that serve the same endpoints, this one included, as ADDRESS:PORT. Fixed limits are divided among the
    /// replicas, so that all of them together keep each limit.
    ///
    /// Give each replica the same list. After its start, a replica uses its share after 2 s. Without --lease-slots the
    /// addresses are identifiers only: no connection is made to them.
    #[arg(long, value_name = "ADDR,ADDR...", value_delimiter = ',', value_parser = values::replica, help_heading = REPLICAS)]
    pub(crate) replicas: Vec<SocketAddr>,

    /// Entry of --replicas that stands for this replica; with --peers, the pod's address.
    #[arg(long, value_name = "ADDR", value_parser = values::own_replica, help_heading = REPLICAS)]
    pub(crate) replica: Option<SocketAddr>,

    /// Let replicas lend slots of endpoints with a fixed limit to one another, so that they are where requests wait.
    ///
    /// Replicas connect to one another for this, at the addresses of --replicas, or at --replica-port of the pods of
    /// --peers. They also tell one another their demand, so that an autoscaler can ask any of them. Each needs
    /// --replica-secret or --replica-certs, unless all are on one machine (loopback addresses).
    #[arg(long, requires = "replica", help_heading = REPLICAS)]
    pub(crate) lease_slots: bool,

    /// Folder with tls.crt, tls.key and ca.crt, with which replicas authenticate one another; a mounted Secret is one.
    ///
    /// The certificate must be for the DNS name replica.sheave.dev, and each replica must trust the issuer of the
    /// others' (ca.crt may have several). The files are watched; a renewal interrupts nothing.
    #[arg(long, value_name = "FOLDER", requires = "lease_slots", help_heading = REPLICAS)]
    pub(crate) replica_certs: Option<PathBuf>,

    /// Secret in --namespace with the authorities that issue certificates for replicas; Sheave creates it.
    ///
    /// Each replica issues itself a certificate for a day, in memory, and renews it. Authorities are replaced after two
    /// months; the next one is trusted before it issues. If the Secret is deleted, it is created again, and
    /// certificates of the old authorities are no longer accepted. The token needs the verbs get, list, watch, create,
    /// patch and update for the name of this Secret alone.
    #[arg(long, value_name = "NAME", requires_all = ["lease_slots", "kubernetes"], conflicts_with = "replica_certs", help_heading = REPLICAS)]
    pub(crate) replica_secret: Option<String>,

    /// TCP port at which replicas connect to one another, if their addresses have none.
    #[arg(long, value_name = "PORT", requires = "lease_slots", default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..), help_heading = REPLICAS)]
    pub(crate) replica_port: u16,

    /// Rule for a replica that reaches no other one, for backends of which it has no slot.
    #[arg(long, value_name = "RULE", requires = "lease_slots", value_enum, default_value_t, help_heading = REPLICAS)]
    pub(crate) cut_off: CutOffRule,
}

/// Rule for a replica that reaches no other one and has no slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CutOffRule {
    /// Requests wait: no limit is exceeded.
    #[default]
    Strict,
    /// It uses one slot of each such backend, beyond the limit.
    Available,
}

impl ReplicaFlags {
    /// Returns the port at which a replica listens for others.
    pub(crate) fn port_of(&self, replica: SocketAddr) -> u16 {
        match replica.port() {
            0 => self.replica_port,
            port => port,
        }
    }

    /// Returns the error of an invalid combination: one sentence that names the remedy.
    pub(super) fn conflict(&self, has_peers: bool) -> Option<&'static str> {
        match self.replica {
            None if has_peers => Some(
                "--peers needs the address of this replica: add --replica with the pod's address",
            ),
            Some(_) if has_peers && !self.replicas.is_empty() => Some(
                "--peers and --replicas exclude each other: use --peers in a cluster, --replicas elsewhere",
            ),
            Some(_) if has_peers => self.missing_certificates(true),
            Some(me) if !self.replicas.contains(&me) => Some(
                "--replica must be one of --replicas, and all replicas must have the same list",
            ),
            None if !self.replicas.is_empty() => {
                Some("--replicas needs the address of this replica: add --replica ADDR")
            }
            Some(_) | None => self.missing_certificates(false),
        }
    }

    fn missing_certificates(&self, has_peers: bool) -> Option<&'static str> {
        let is_local = !has_peers && self.replicas.iter().all(|it| it.ip().is_loopback());
        let has_none = self.replica_certs.is_none() && self.replica_secret.is_none();
        let is_missing = self.lease_slots && !is_local && has_none;
        is_missing.then_some(
            "--lease-slots needs --replica-secret in a cluster, or --replica-certs, unless all replicas \
             have loopback addresses: they send nothing to one another without TLS",
        )
    }
}
