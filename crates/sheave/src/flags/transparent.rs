//! Flags of transparent mode.

use std::env;
use std::net::IpAddr;

use clap::Args;

use super::NODE_NAME;
use super::values::PortRange;
use crate::process;

const TRANSPARENT: &str = "Transparent mode";

/// Flags of transparent mode.
#[derive(Debug, Default, Args)]
pub(crate) struct TransparentFlags {
    /// Take the connections that are made on this node to the ClusterIPs of Services with the annotation
    /// `sheave.dev/balance: requests`, and balance their requests.
    ///
    /// Run it on each node, on the node's network, with the capability NET_ADMIN. Neither clients nor pods change. If
    /// the process ends or hangs, kube-proxy serves new connections.
    #[arg(long, requires = "kubernetes", help_heading = TRANSPARENT)]
    pub(crate) transparent: bool,

    /// Name of this node in Kubernetes [default: NODE_NAME of the environment, else the host name].
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = TRANSPARENT)]
    pub(crate) node_name: Option<String>,

    /// Ports of this node at which taken connections arrive: the first free one is used. An upgrade has two processes on
    /// a node for a while. The rules refuse all other connections to the port.
    #[arg(long, value_name = "FIRST-LAST", default_value_t, requires = "transparent", help_heading = TRANSPARENT)]
    pub(crate) transparent_ports: PortRange,

    /// Addresses of this node at which taken connections arrive, at most one of each IP version, neither loopback nor
    /// link-local. Only Services with an address of the same version are taken [default: the addresses from which the
    /// node connects to others].
    #[arg(long, value_name = "ADDR,ADDR", value_delimiter = ',', requires = "transparent", help_heading = TRANSPARENT)]
    pub(crate) transparent_addresses: Vec<IpAddr>,
}

impl TransparentFlags {
    /// Returns the name of this node.
    pub(crate) fn node_name(&self) -> String {
        let named = self.node_name.clone().or_else(|| env::var(NODE_NAME).ok());
        named.filter(|name| !name.is_empty()).unwrap_or_else(process::host_name)
    }
}
