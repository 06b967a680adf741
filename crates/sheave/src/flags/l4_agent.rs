//! Flags of the layer-4 agent.

use std::env;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::{self, AdminAddress};
use super::{LogFormat, NODE_NAME, OBSERVE, PROCESS, SOURCES};
use crate::process;

const NODE: &str = "Node";

/// Flags of `sheave l4`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  The Services of a cluster, in a pod with hostNetwork, with the node name from the downward API:
    sheave l4 --kubernetes --node $(NODE_NAME)
  Services, EndpointSlices and Nodes of files, at addresses to which routes lead:
    sheave l4 --config /etc/sheave --node n1
  The same, and this node answers ARP and neighbor discovery for the addresses:
    sheave l4 --config /etc/sheave --node n1 --announce
  The endpoint of a connection, and why:
    sheave l4 --admin 127.0.0.1:9904 --explain tcp,198.51.100.7:40000,192.0.2.65:443
  Before an uninstallation, on each node:
    sheave l4 --node n1 --remove

Signals: SIGTERM and SIGINT end the process, and the data path goes on; SIGHUP reloads the files.
Exit codes: 0 success, 1 invalid input, 2 Sheave failed, or this node cannot have the data path.")]
pub(crate) struct L4Flags {
    /// File or directory with Services, EndpointSlices and Nodes (YAML or JSON); repeatable. It is watched.
    #[arg(long, value_name = "PATH", conflicts_with = "kubernetes", help_heading = SOURCES)]
    pub(crate) config: Vec<PathBuf>,

    /// Read the Services, EndpointSlices and Nodes of a Kubernetes cluster, and watch them for changes.
    ///
    /// The API server and the credentials are those of the pod, or of the kubeconfig (KUBECONFIG, ~/.kube/config). If the
    /// API server is unreachable, the last known objects stay in force.
    #[arg(long, help_heading = SOURCES)]
    pub(crate) kubernetes: bool,

    /// Name of this node in EndpointSlices [default: NODE_NAME of the environment, else the host name].
    #[arg(long, value_name = "NAME", value_parser = node_name, help_heading = NODE)]
    pub(crate) node: Option<String>,

    /// Interface at which packets of virtual addresses arrive; repeatable [default: those of the default routes, and
    /// that of the node's InternalIP].
    #[arg(long, value_name = "DEV", help_heading = NODE)]
    pub(crate) uplink: Vec<String>,

    /// Way to the pods of other nodes: `auto` is `layer2` for nodes on the same segment, else `vxlan`.
    ///
    /// With `layer2` and `vxlan`, pods answer clients directly, from their own nodes. If the network forbids that, use
    /// `full-nat`: replies return through this node, and the pods see its address. All nodes need the same mode.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = DeliveryChoice::Auto, help_heading = NODE)]
    pub(crate) mode: DeliveryChoice,

    /// Answer ARP and neighbor discovery for the virtual addresses, on one node of a network alone.
    ///
    /// Without it, routes lead here. In a cluster `sheave announce` announces the addresses.
    #[arg(long, conflicts_with = "kubernetes", help_heading = NODE)]
    pub(crate) announce: bool,

    /// UDP port of the tunnel between nodes; all nodes need the same one.
    #[arg(long, value_name = "PORT", default_value_t = 8473, value_parser = clap::value_parser!(u16).range(1..), help_heading = NODE)]
    pub(crate) vxlan_port: u16,

    /// Connections that this node remembers at most; 262,144 take about 70 MB. A table that exists keeps its size.
    #[arg(long, value_name = "N", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1024..=16_777_216), help_heading = NODE)]
    pub(crate) connections: u32,

    /// Folder of the pinned programs and maps, in a BPF file system [default: /sys/fs/bpf/sheave/NODE if there is one,
    /// else /run/sheave/l4/NODE, where one is mounted].
    #[arg(long, value_name = "PATH", help_heading = NODE)]
    pub(crate) pin_folder: Option<PathBuf>,

    /// Remove the data path of this node, and exit.
    #[arg(long, conflicts_with_all = ["config", "kubernetes"], help_heading = PROCESS)]
    pub(crate) remove: bool,

    /// Remove the data path when the process ends by a signal, before an uninstallation.
    ///
    /// Without it the data path goes on, so that an upgrade loses nothing.
    #[arg(long, help_heading = PROCESS)]
    pub(crate) remove_on_exit: bool,

    /// Ask the agent at --admin which endpoint a connection gets, and why; PROTOCOL is tcp or udp.
    #[arg(long, value_name = "PROTOCOL,CLIENT:PORT,ADDRESS:PORT", conflicts_with_all = ["config", "kubernetes", "remove"], help_heading = OBSERVE)]
    pub(crate) explain: Option<String>,

    /// Address of the admin API (metrics, health, state), or `off`; port 0 takes any free port.
    #[arg(long, value_name = "ADDR", default_value = "off", help_heading = OBSERVE)]
    pub(crate) admin: AdminAddress,

    /// Host name of the admin API, as for `sheave serve`; repeatable.
    #[arg(long, value_name = "NAME", value_parser = values::host_name, help_heading = OBSERVE)]
    pub(crate) admin_host: Vec<String>,

    /// Format of log events on standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = OBSERVE)]
    pub(crate) log_format: LogFormat,
}

/// Way to the pods of other nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum DeliveryChoice {
    /// `layer2` for nodes on the same segment, else `vxlan`.
    Auto,
    /// Direct server return on the same segment.
    Layer2,
    /// Direct server return through a tunnel.
    Vxlan,
    /// Replies return through this node.
    FullNat,
}

impl L4Flags {
    /// Returns the name of this node.
    pub(crate) fn node_name(&self) -> String {
        let named = self.node.clone().or_else(|| env::var(NODE_NAME).ok());
        named.filter(|name| !name.is_empty()).unwrap_or_else(process::host_name)
    }

    /// Returns the error of a combination of flags that is invalid.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        let has_source = self.kubernetes || !self.config.is_empty() || self.remove;
        (!has_source)
            .then_some("nothing to serve: name files with --config, or a cluster with --kubernetes")
    }
}

/// Parses a node's name, which becomes the name of a folder.
fn node_name(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_valid = text.bytes().all(is_name) && text.bytes().any(|it| it != b'.');
    if is_valid && text.len() <= 253 {
        Ok(text.to_owned())
    } else {
        Err("a node's name has letters, digits, '-' and '.'".to_owned())
    }
}
