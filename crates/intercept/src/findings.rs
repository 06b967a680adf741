//! Other programs on this node that translate addresses or filter packets, as far as files and netfilter tell.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::InterceptError;
use crate::netlink::NetfilterSocket;
use crate::nftables::{dropping_input_chain, list_chains, list_tables, name_of_table};
use crate::rule_table::TABLE_PREFIX;

/// Something on the node that matters to transparent mode. `Display` gives a sentence for operators.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum NodeFinding {
    /// Cilium is on the node.
    Cilium,
    /// Calico's eBPF data plane is on the node.
    CalicoEbpf,
    /// kube-proxy runs in IPVS mode.
    Ipvs,
    /// NodeLocal DNSCache runs on the node.
    NodeLocalDns,
    /// A chain of nftables drops what it does not accept on its way to the node.
    InputFirewall {
        /// Name of the table.
        table: String,
        /// Name of the chain.
        chain: String,
    },
    /// Bridged packets do not pass the rules of IP.
    BridgeFilteringOff,
    /// Another process of ours has a table.
    AnotherAgent {
        /// Name of its table.
        table: String,
    },
}

impl fmt::Display for NodeFinding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cilium => out.write_str(
                "Cilium is on this node: if it replaces kube-proxy, it translates the addresses of Services when \
                 pods connect, before any rule of ours, and connections bypass Sheave",
            ),
            Self::CalicoEbpf => out.write_str(
                "Calico's eBPF data plane is on this node: it translates the addresses of Services when pods \
                 connect, before any rule of ours, and connections bypass Sheave",
            ),
            Self::Ipvs => out.write_str(
                "kube-proxy runs in IPVS mode on this node: the rules come before IPVS, but this is tested less than \
                 the iptables and nftables modes",
            ),
            Self::NodeLocalDns => out.write_str(
                "NodeLocal DNSCache runs on this node: the kernel does not track connections to its addresses, so \
                 they cannot be taken",
            ),
            Self::InputFirewall { table, chain } => write!(
                out,
                "the firewall of this node drops what it does not know (chain {chain} of table {table}): it must \
                 accept TCP to the port of transparent mode from pods",
            ),
            Self::BridgeFilteringOff => out.write_str(
                "net.bridge.bridge-nf-call-iptables is 0 on this node: clients' addresses cannot be kept between pods \
                 on one bridge",
            ),
            Self::AnotherAgent { table } => write!(
                out,
                "another process of Sheave has rules on this node (table inet {table}): the newer one takes the \
                 connections",
            ),
        }
    }
}

/// Returns what matters to transparent mode in the network namespace of this thread.
///
/// `own_table` is the name of our table, which is not reported. Firewalls by iptables-legacy are not found:
/// [`LeaseKeeper`](crate::LeaseKeeper) notices their effect.
pub fn node_findings(own_table: &str) -> Result<Vec<NodeFinding>, InterceptError> {
    let mut findings = findings_in_files(Path::new("/"));
    let mut socket = NetfilterSocket::open()?;
    socket.dump(&list_chains(), |chain| {
        if let Some((table, chain)) = dropping_input_chain(chain) {
            let (table, chain) = (table.to_owned(), chain.to_owned());
            findings.push(NodeFinding::InputFirewall { table, chain });
        }
    })?;
    socket.dump(&list_tables(), |table| {
        let name = name_of_table(table).unwrap_or_default();
        if name.starts_with(TABLE_PREFIX) && name != own_table {
            findings.push(NodeFinding::AnotherAgent { table: name.to_owned() });
        }
    })?;
    Ok(findings)
}

/// Findings by the files of /proc and /sys below `root`.
fn findings_in_files(root: &Path) -> Vec<NodeFinding> {
    let exists = |path: &str| root.join(path).exists();
    let is_off = |path: &str| fs::read_to_string(root.join(path)).is_ok_and(|it| it.trim() == "0");
    let checks = [
        (exists("sys/class/net/cilium_host") || exists("sys/fs/bpf/cilium"), NodeFinding::Cilium),
        (
            exists("sys/class/net/bpfin.cali") || exists("sys/class/net/bpfout.cali"),
            NodeFinding::CalicoEbpf,
        ),
        (exists("sys/class/net/kube-ipvs0"), NodeFinding::Ipvs),
        (exists("sys/class/net/nodelocaldns"), NodeFinding::NodeLocalDns),
        (is_off("proc/sys/net/bridge/bridge-nf-call-iptables"), NodeFinding::BridgeFilteringOff),
    ];
    checks.into_iter().filter(|(is_there, _)| *is_there).map(|(_, finding)| finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_are_found_by_their_files() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(findings_in_files(root.path()), []);
        for (file, text, finding) in [
            ("sys/class/net/cilium_host", "", NodeFinding::Cilium),
            ("sys/class/net/bpfin.cali", "", NodeFinding::CalicoEbpf),
            ("sys/class/net/kube-ipvs0", "", NodeFinding::Ipvs),
            ("sys/class/net/nodelocaldns", "", NodeFinding::NodeLocalDns),
            ("proc/sys/net/bridge/bridge-nf-call-iptables", "0\n", NodeFinding::BridgeFilteringOff),
        ] {
            let root = tempfile::tempdir().unwrap();
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            assert_eq!(findings_in_files(root.path()), [finding]);
        }
    }
}
