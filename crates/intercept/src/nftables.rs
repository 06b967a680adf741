//! The messages of nftables that a table of ours consists of: table, sets, chains, rules, elements.
//!
//! Names and numbers are those of linux/netfilter/nf_tables.h; libc has all but the kinds of attributes. The table is
//! of the family `inet`, which has IPv4 and IPv6.

use std::time::Duration;

use libc::{
    NF_ACCEPT, NFNL_SUBSYS_NFTABLES, NFPROTO_INET, NFT_MSG_DELSETELEM, NFT_MSG_GETCHAIN,
    NFT_MSG_GETOBJ, NFT_MSG_GETSETELEM, NFT_MSG_GETTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWOBJ,
    NFT_MSG_NEWRULE, NFT_MSG_NEWSET, NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE, NFT_SET_EVAL,
    NFT_SET_MAP, NFT_SET_TIMEOUT, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL,
};

use crate::attributes::{AttributeList, find, find_text, find_u32, find_u64};
use crate::netlink::NetfilterMessage;

/// The expressions of rules.
mod expression;

pub(crate) use expression::{FlowVerdict, IpVersion, NatDirection, PayloadBase, RuleExpression};

/// `NFTA_*`: kinds of attributes.
mod kind {
    pub(super) const LIST_ELEM: u16 = 1;
    pub(super) const TABLE_NAME: u16 = 1;
    pub(super) const TABLE_FLAGS: u16 = 2;
    pub(super) const CHAIN_TABLE: u16 = 1;
    pub(super) const CHAIN_NAME: u16 = 3;
    pub(super) const CHAIN_HOOK: u16 = 4;
    pub(super) const CHAIN_POLICY: u16 = 5;
    pub(super) const CHAIN_TYPE: u16 = 7;
    pub(super) const HOOK_HOOKNUM: u16 = 1;
    pub(super) const HOOK_PRIORITY: u16 = 2;
    pub(super) const RULE_TABLE: u16 = 1;
    pub(super) const RULE_CHAIN: u16 = 2;
    pub(super) const RULE_EXPRESSIONS: u16 = 4;
    pub(super) const SET_TABLE: u16 = 1;
    pub(super) const SET_NAME: u16 = 2;
    pub(super) const SET_FLAGS: u16 = 3;
    pub(super) const SET_KEY_TYPE: u16 = 4;
    pub(super) const SET_KEY_LEN: u16 = 5;
    pub(super) const SET_DATA_TYPE: u16 = 6;
    pub(super) const SET_DATA_LEN: u16 = 7;
    pub(super) const SET_ID: u16 = 10;
    pub(super) const SET_TIMEOUT: u16 = 11;
    pub(super) const SET_ELEM_LIST_TABLE: u16 = 1;
    pub(super) const SET_ELEM_LIST_SET: u16 = 2;
    pub(super) const SET_ELEM_LIST_ELEMENTS: u16 = 3;
    pub(super) const SET_ELEM_KEY: u16 = 1;
    pub(super) const SET_ELEM_DATA: u16 = 2;
    pub(super) const DATA_VALUE: u16 = 1;
    pub(super) const OBJ_TABLE: u16 = 1;
    pub(super) const OBJ_NAME: u16 = 2;
    pub(super) const OBJ_TYPE: u16 = 3;
    pub(super) const OBJ_DATA: u16 = 4;
    pub(super) const COUNTER_PACKETS: u16 = 2;
}

/// NFT_TABLE_F_OWNER: the table belongs to the socket that makes it, and goes with it.
const TABLE_OWNED: u32 = 2;
/// NFT_OBJECT_COUNTER.
const OBJECT_COUNTER: u32 = 1;
/// Elements in one message, so that their list stays below 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 1000;

/// Data type of a key or a value, as `nft list` prints it (nftables' `enum datatypes`); the kernel knows its length
/// alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataType {
    number: u32,
    length: u32,
}

impl DataType {
    pub(crate) const IPV4: Self = Self { number: 7, length: 4 };
    pub(crate) const IPV6: Self = Self { number: 8, length: 16 };
    pub(crate) const IP_VERSION: Self = Self { number: 2, length: 1 };
    pub(crate) const PORT: Self = Self { number: 13, length: 2 };
    pub(crate) const MARK: Self = Self { number: 19, length: 4 };

    /// Returns the type of two values, one behind the other.
    pub(crate) const fn and(self, second: Self) -> Self {
        // TYPE_BITS of nftables: 6. Each value begins at a register of four bytes.
        let length = self.length.next_multiple_of(4) + second.length.next_multiple_of(4);
        Self { number: (self.number << 6) | second.number, length }
    }
}

/// A set or a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetDefinition {
    pub(crate) name: &'static str,
    pub(crate) key: DataType,
    /// Type of the values of a map.
    pub(crate) value: Option<DataType>,
    /// Time after which elements expire; they are then renewed by rules.
    pub(crate) timeout: Option<Duration>,
}

/// The place where the kernel calls a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainHook {
    /// `nat` or `filter`.
    pub(crate) kind: &'static str,
    /// NF_INET_*.
    pub(crate) hook: i32,
    pub(crate) priority: i32,
}

/// Key and value of an element; sets have empty values.
pub(crate) type ElementBytes = (Vec<u8>, Vec<u8>);

/// The messages about one table.
#[derive(Clone, Debug)]
pub(crate) struct TableMessages {
    pub(crate) table: String,
}

impl TableMessages {
    /// Creates the table, owned by the socket that sends this; fails if there is one of this name.
    pub(crate) fn new_table(&self) -> NetfilterMessage {
        let attributes = AttributeList::default()
            .text(kind::TABLE_NAME, &self.table)
            .u32(kind::TABLE_FLAGS, TABLE_OWNED);
        message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, attributes)
    }

    pub(crate) fn new_set(&self, id: u32, set: &SetDefinition) -> NetfilterMessage {
        let mut flags = 0;
        let mut rest = AttributeList::default();
        if let Some(value) = set.value {
            flags |= NFT_SET_MAP as u32;
            rest =
                rest.u32(kind::SET_DATA_TYPE, value.number).u32(kind::SET_DATA_LEN, value.length);
        }
        if let Some(timeout) = set.timeout {
            flags |= (NFT_SET_TIMEOUT | NFT_SET_EVAL) as u32;
            rest = rest.u64(kind::SET_TIMEOUT, timeout.as_millis() as u64);
        }
        let attributes = AttributeList::default()
            .text(kind::SET_TABLE, &self.table)
            .text(kind::SET_NAME, set.name)
            .u32(kind::SET_FLAGS, flags)
            .u32(kind::SET_KEY_TYPE, set.key.number)
            .u32(kind::SET_KEY_LEN, set.key.length)
            .u32(kind::SET_ID, id)
            .followed_by(&rest);
        message(NFT_MSG_NEWSET, NLM_F_CREATE | NLM_F_EXCL, attributes)
    }

    /// Creates a counter that rules add to.
    pub(crate) fn new_counter(&self, name: &str) -> NetfilterMessage {
        let attributes = self.counter(name).list(kind::OBJ_DATA, &AttributeList::default());
        message(NFT_MSG_NEWOBJ, NLM_F_CREATE | NLM_F_EXCL, attributes)
    }

    /// Creates a chain; without a hook, one that rules of other chains go to.
    pub(crate) fn new_chain(&self, name: &str, hook: Option<&ChainHook>) -> NetfilterMessage {
        let mut attributes = AttributeList::default()
            .text(kind::CHAIN_TABLE, &self.table)
            .text(kind::CHAIN_NAME, name);
        if let Some(ChainHook { kind: chain_type, hook, priority }) = hook {
            let hook = AttributeList::default()
                .u32(kind::HOOK_HOOKNUM, *hook as u32)
                .u32(kind::HOOK_PRIORITY, *priority as u32);
            attributes = attributes
                .list(kind::CHAIN_HOOK, &hook)
                .u32(kind::CHAIN_POLICY, NF_ACCEPT as u32)
                .text(kind::CHAIN_TYPE, chain_type);
        }
        message(NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, attributes)
    }

    /// Adds a rule at the end of a chain.
    pub(crate) fn new_rule(&self, chain: &str, rule: &[RuleExpression]) -> NetfilterMessage {
        let expressions = rule.iter().fold(AttributeList::default(), |list, expression| {
            list.list(kind::LIST_ELEM, &expression.attributes())
        });
        let attributes = AttributeList::default()
            .text(kind::RULE_TABLE, &self.table)
            .text(kind::RULE_CHAIN, chain)
            .list(kind::RULE_EXPRESSIONS, &expressions);
        message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, attributes)
    }

    pub(crate) fn add_elements(
        &self,
        set: &'static str,
        elements: &[ElementBytes],
    ) -> impl Iterator<Item = NetfilterMessage> {
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, set, elements)
    }

    pub(crate) fn delete_elements(
        &self,
        set: &'static str,
        elements: &[ElementBytes],
    ) -> impl Iterator<Item = NetfilterMessage> {
        self.elements(NFT_MSG_DELSETELEM, 0, set, elements)
    }

    /// Deletes all elements of a set.
    pub(crate) fn flush_set(&self, set: &str) -> NetfilterMessage {
        message(NFT_MSG_DELSETELEM, 0, self.element_list(set))
    }

    /// Asks for one element; ENOENT if the set does not have it or it has expired.
    pub(crate) fn element(&self, set: &str, key: &[u8]) -> NetfilterMessage {
        let element = element_list(&[(key.to_vec(), Vec::new())]);
        let attributes = self.element_list(set).list(kind::SET_ELEM_LIST_ELEMENTS, &element);
        message(NFT_MSG_GETSETELEM, 0, attributes)
    }

    /// Asks for the value of a counter, which [`packets_of`] reads.
    pub(crate) fn counter_value(&self, name: &str) -> NetfilterMessage {
        message(NFT_MSG_GETOBJ, 0, self.counter(name))
    }

    fn counter(&self, name: &str) -> AttributeList {
        AttributeList::default()
            .text(kind::OBJ_TABLE, &self.table)
            .text(kind::OBJ_NAME, name)
            .u32(kind::OBJ_TYPE, OBJECT_COUNTER)
    }

    fn element_list(&self, set: &str) -> AttributeList {
        AttributeList::default()
            .text(kind::SET_ELEM_LIST_TABLE, &self.table)
            .text(kind::SET_ELEM_LIST_SET, set)
    }

    fn elements(
        &self,
        operation: i32,
        flags: i32,
        set: &'static str,
        elements: &[ElementBytes],
    ) -> impl Iterator<Item = NetfilterMessage> {
        elements.chunks(ELEMENTS_PER_MESSAGE).map(move |elements| {
            let elements = element_list(elements);
            let attributes = self.element_list(set).list(kind::SET_ELEM_LIST_ELEMENTS, &elements);
            message(operation, flags, attributes)
        })
    }
}

fn element_list(elements: &[ElementBytes]) -> AttributeList {
    elements.iter().fold(AttributeList::default(), |list, (key, value)| {
        let mut element = AttributeList::default().list(kind::SET_ELEM_KEY, &data(key));
        if !value.is_empty() {
            element = element.list(kind::SET_ELEM_DATA, &data(value));
        }
        list.list(kind::LIST_ELEM, &element)
    })
}

fn data(value: &[u8]) -> AttributeList {
    AttributeList::default().bytes(kind::DATA_VALUE, value)
}

fn message(operation: i32, flags: i32, attributes: AttributeList) -> NetfilterMessage {
    let family = NFPROTO_INET;
    NetfilterMessage { subsystem: NFNL_SUBSYS_NFTABLES, operation, flags, family, attributes }
}

/// Returns the packets that a counter has counted.
pub(crate) fn packets_of(counter: &[u8]) -> Option<u64> {
    find_u64(find(counter, kind::OBJ_DATA)?, kind::COUNTER_PACKETS)
}

/// Asks for all tables, of all families; [`name_of_table`] reads each.
pub(crate) fn list_tables() -> NetfilterMessage {
    let mut message = message(NFT_MSG_GETTABLE, 0, AttributeList::default());
    message.family = libc::NFPROTO_UNSPEC;
    message
}

pub(crate) fn name_of_table(table: &[u8]) -> Option<&str> {
    find_text(table, kind::TABLE_NAME)
}

/// Asks for all chains, of all families.
pub(crate) fn list_chains() -> NetfilterMessage {
    let mut message = message(NFT_MSG_GETCHAIN, 0, AttributeList::default());
    message.family = libc::NFPROTO_UNSPEC;
    message
}

/// Returns table and name of a chain that filters what comes to this machine and drops it by default.
pub(crate) fn dropping_input_chain(chain: &[u8]) -> Option<(&str, &str)> {
    let hook = find_u32(find(chain, kind::CHAIN_HOOK)?, kind::HOOK_HOOKNUM)?;
    let policy = find_u32(chain, kind::CHAIN_POLICY)?;
    let drops = hook == libc::NF_INET_LOCAL_IN as u32 && policy == libc::NF_DROP as u32;
    let names = (find_text(chain, kind::CHAIN_TABLE)?, find_text(chain, kind::CHAIN_NAME)?);
    drops.then_some(names)
}
