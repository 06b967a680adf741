//! The sets, chains and rules of the table.
//!
//! As `nft list table` would print them, for the proxy at 10.0.0.1:15001 and the marks by default:
//!
//! ```text
//! table inet sheave_15001 {
//!     flags owner
//!     set services4 { type ipv4_addr . inet_service }
//!     map clients4 { type mark : ipv4_addr }
//!     set lease { type nf_proto; flags dynamic,timeout; timeout 1500ms }
//!     chain take4 {
//!         tcp flags & (syn | ack) == syn counter name taken
//!         dnat ip to 10.0.0.1:15001
//!     }
//!     chain prerouting {
//!         type nat hook prerouting priority -110
//!         meta nfproto @lease ip daddr . tcp dport @services4 goto take4
//!     }
//!     chain output {
//!         type nat hook output priority -110
//!         meta mark 0x10ff udp dport 15001 update @lease { meta nfproto timeout 1500ms } drop
//!         meta mark & 0xffffff00 == 0x1000 return
//!         meta nfproto @lease ip daddr . tcp dport @services4 goto take4
//!     }
//!     chain postrouting {
//!         type nat hook postrouting priority 90
//!         snat ip to meta mark map @clients4
//!     }
//!     chain input {
//!         type filter hook input priority 0
//!         tcp dport 15001 ct status & dnat == dnat return
//!         tcp dport 15001 counter name refused reject with tcp reset
//!     }
//! }
//! ```
//!
//! and the same for IPv6, which has an element of its own in the lease. `tests/kernel/table.txt` is what `nft` prints.
//! Priority -110 comes before kube-proxy's -100, 90 before the masquerading at 100. NAT chains
//! see the first packet of a connection alone, so other packets pay for nothing but the two steps of `input`.

use std::net::SocketAddr;

use libc::{NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING};

use super::{RuleTableConfig, address_bytes};
use crate::lease::LEASE_TIMEOUT;
use crate::netlink::NetfilterMessage;
use crate::nftables::{
    ChainHook, DataType, FlowVerdict, IpVersion, NatDirection, PayloadBase, RuleExpression,
    SetDefinition, TableMessages,
};
use crate::socket_mark::SocketMark;

/// Names in the kernel.
pub(crate) mod names {
    pub(crate) const TABLE_PREFIX: &str = "sheave_";
    pub(crate) const SERVICES_IPV4: &str = "services4";
    pub(crate) const SERVICES_IPV6: &str = "services6";
    pub(crate) const CLIENTS_IPV4: &str = "clients4";
    pub(crate) const CLIENTS_IPV6: &str = "clients6";
    pub(crate) const LEASE: &str = "lease";
    pub(crate) const TAKEN: &str = "taken";
    pub(crate) const REFUSED: &str = "refused";
    pub(super) const TAKE_IPV4: &str = "take4";
    pub(super) const TAKE_IPV6: &str = "take6";
    pub(super) const PREROUTING: &str = "prerouting";
    pub(super) const OUTPUT: &str = "output";
    pub(super) const POSTROUTING: &str = "postrouting";
    pub(super) const INPUT: &str = "input";
}

const SETS: [SetDefinition; 5] = [
    SetDefinition {
        name: names::SERVICES_IPV4,
        key: DataType::IPV4.and(DataType::PORT),
        value: None,
        timeout: None,
    },
    SetDefinition {
        name: names::SERVICES_IPV6,
        key: DataType::IPV6.and(DataType::PORT),
        value: None,
        timeout: None,
    },
    SetDefinition {
        name: names::CLIENTS_IPV4,
        key: DataType::MARK,
        value: Some(DataType::IPV4),
        timeout: None,
    },
    SetDefinition {
        name: names::CLIENTS_IPV6,
        key: DataType::MARK,
        value: Some(DataType::IPV6),
        timeout: None,
    },
    SetDefinition {
        name: names::LEASE,
        key: DataType::IP_VERSION,
        value: None,
        timeout: Some(LEASE_TIMEOUT),
    },
];

const CHAINS: [(&str, Option<ChainHook>); 6] = [
    (names::TAKE_IPV4, None),
    (names::TAKE_IPV6, None),
    (names::PREROUTING, Some(nat_hook(NF_INET_PRE_ROUTING, -110))),
    (names::OUTPUT, Some(nat_hook(NF_INET_LOCAL_OUT, -110))),
    (names::POSTROUTING, Some(nat_hook(NF_INET_POST_ROUTING, 90))),
    (names::INPUT, Some(ChainHook { kind: "filter", hook: NF_INET_LOCAL_IN, priority: 0 })),
];

const fn nat_hook(hook: i32, priority: i32) -> ChainHook {
    ChainHook { kind: "nat", hook, priority }
}

/// IPPROTO_TCP and IPPROTO_UDP.
const TCP: [u8; 1] = [6];
const UDP: [u8; 1] = [17];
/// Offset of the destination port, in UDP and in TCP.
const DESTINATION_PORT: u32 = 2;
/// Offset of the flags of TCP, and its flags SYN and ACK.
const TCP_FLAGS: u32 = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h): the destination was translated.
const STATUS_DESTINATION_TRANSLATED: u32 = 1 << 5;

/// A chain, and a rule in it.
type ChainRule = (&'static str, Vec<RuleExpression>);

/// Rules for one configuration.
pub(super) struct TableLayout<'c> {
    config: &'c RuleTableConfig,
}

impl<'c> TableLayout<'c> {
    pub(super) fn new(config: &'c RuleTableConfig) -> Self {
        Self { config }
    }

    /// Returns the messages that make the table, each with its part in words. The table comes first.
    pub(super) fn messages(&self, table: &TableMessages) -> Vec<(String, NetfilterMessage)> {
        let mut messages = vec![("the table".to_owned(), table.new_table())];
        for (id, set) in (1..).zip(&SETS) {
            messages.push((format!("the set {}", set.name), table.new_set(id, set)));
        }
        for name in [names::TAKEN, names::REFUSED] {
            messages.push((format!("the counter {name}"), table.new_counter(name)));
        }
        for (name, hook) in &CHAINS {
            messages.push((format!("the chain {name}"), table.new_chain(name, hook.as_ref())));
        }
        for (chain, rule) in self.rules() {
            messages.push((format!("a rule of {chain}"), table.new_rule(chain, &rule)));
        }
        messages
    }

    fn rules(&self) -> Vec<ChainRule> {
        let renewal = self.config.marks.renewal();
        let renewals = self.config.proxy.iter().map(|proxy| (names::OUTPUT, renew(proxy, renewal)));
        let mut rules: Vec<_> = renewals.collect();
        rules.push((names::OUTPUT, self.leave_own_packets()));
        for proxy in self.config.proxy.iter() {
            let version = version_of(proxy);
            let (take, clients) = match version {
                IpVersion::V4 => (names::TAKE_IPV4, names::CLIENTS_IPV4),
                IpVersion::V6 => (names::TAKE_IPV6, names::CLIENTS_IPV6),
            };
            rules.extend([
                (names::PREROUTING, go_to_take(version)),
                (names::OUTPUT, go_to_take(version)),
                (take, count_syn()),
                (take, translate_to(proxy)),
                (names::POSTROUTING, translate_to_client(version, clients)),
                (names::INPUT, let_translated_in(proxy)),
                (names::INPUT, refuse_others(proxy)),
            ]);
        }
        rules
    }

    fn leave_own_packets(&self) -> Vec<RuleExpression> {
        let (mask, fixed) = self.config.marks.fixed_bits();
        vec![
            RuleExpression::LoadMark,
            RuleExpression::Mask(mask.to_ne_bytes().to_vec()),
            RuleExpression::Equals(fixed.to_ne_bytes().to_vec()),
            RuleExpression::Verdict(FlowVerdict::Return),
        ]
    }
}

fn version_of(address: SocketAddr) -> IpVersion {
    if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
}

/// Renews the lease by a datagram of ours, and drops it.
fn renew(proxy: SocketAddr, mark: SocketMark) -> Vec<RuleExpression> {
    vec![
        RuleExpression::LoadMark,
        RuleExpression::Equals(mark.value().to_ne_bytes().to_vec()),
        RuleExpression::LoadProtocol,
        RuleExpression::Equals(UDP.to_vec()),
        load_destination_port(0),
        RuleExpression::Equals(proxy.port().to_be_bytes().to_vec()),
        RuleExpression::LoadVersion,
        RuleExpression::Equals(vec![version_of(proxy).number()]),
        RuleExpression::Renew(names::LEASE, LEASE_TIMEOUT),
        RuleExpression::Verdict(FlowVerdict::Drop),
    ]
}

fn go_to_take(version: IpVersion) -> Vec<RuleExpression> {
    // Offset and length of the destination address.
    let (services, offset, length, take) = match version {
        IpVersion::V4 => (names::SERVICES_IPV4, 16, 4, names::TAKE_IPV4),
        IpVersion::V6 => (names::SERVICES_IPV6, 24, 16, names::TAKE_IPV6),
    };
    vec![
        RuleExpression::LoadVersion,
        RuleExpression::IsIn(names::LEASE),
        RuleExpression::Equals(vec![version.number()]),
        RuleExpression::LoadProtocol,
        RuleExpression::Equals(TCP.to_vec()),
        RuleExpression::LoadPayload { base: PayloadBase::Network, offset, length, word: 0 },
        load_destination_port(length / 4),
        RuleExpression::IsIn(services),
        RuleExpression::Verdict(FlowVerdict::Goto(take)),
    ]
}

fn count_syn() -> Vec<RuleExpression> {
    let base = PayloadBase::Transport;
    vec![
        RuleExpression::LoadPayload { base, offset: TCP_FLAGS, length: 1, word: 0 },
        RuleExpression::Mask(vec![SYN | ACK]),
        RuleExpression::Equals(vec![SYN]),
        RuleExpression::Count(names::TAKEN),
    ]
}

fn translate_to(proxy: SocketAddr) -> Vec<RuleExpression> {
    vec![
        RuleExpression::LoadValue(address_bytes(proxy.ip())),
        RuleExpression::LoadSecondValue(proxy.port().to_be_bytes().to_vec()),
        RuleExpression::Nat(NatDirection::Destination, version_of(proxy)),
    ]
}

fn translate_to_client(version: IpVersion, clients: &'static str) -> Vec<RuleExpression> {
    vec![
        RuleExpression::LoadVersion,
        RuleExpression::Equals(vec![version.number()]),
        RuleExpression::LoadMark,
        RuleExpression::Translate(clients),
        RuleExpression::Nat(NatDirection::Source, version),
    ]
}

fn let_translated_in(proxy: SocketAddr) -> Vec<RuleExpression> {
    let mut rule = is_to_proxy(proxy);
    rule.extend([
        RuleExpression::LoadConnectionStatus,
        RuleExpression::Mask(STATUS_DESTINATION_TRANSLATED.to_ne_bytes().to_vec()),
        RuleExpression::Equals(STATUS_DESTINATION_TRANSLATED.to_ne_bytes().to_vec()),
        RuleExpression::Verdict(FlowVerdict::Return),
    ]);
    rule
}

/// Refuses the rest, connections that the kernel does not track among them.
fn refuse_others(proxy: SocketAddr) -> Vec<RuleExpression> {
    let mut rule = is_to_proxy(proxy);
    rule.extend([RuleExpression::Count(names::REFUSED), RuleExpression::RejectWithReset]);
    rule
}

fn is_to_proxy(proxy: SocketAddr) -> Vec<RuleExpression> {
    vec![
        RuleExpression::LoadProtocol,
        RuleExpression::Equals(TCP.to_vec()),
        load_destination_port(0),
        RuleExpression::Equals(proxy.port().to_be_bytes().to_vec()),
        RuleExpression::LoadVersion,
        RuleExpression::Equals(vec![version_of(proxy).number()]),
    ]
}

fn load_destination_port(word: u32) -> RuleExpression {
    let base = PayloadBase::Transport;
    RuleExpression::LoadPayload { base, offset: DESTINATION_PORT, length: 2, word }
}
