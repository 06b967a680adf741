//! Expressions, the steps of a rule: each reads or writes registers, and ends the rule if it does not match.

use std::time::Duration;

use libc::{
    NFT_CMP_EQ, NFT_CT_STATUS, NFT_DYNSET_OP_UPDATE, NFT_META_L4PROTO, NFT_META_MARK,
    NFT_META_NFPROTO, NFT_NAT_DNAT, NFT_NAT_SNAT, NFT_PAYLOAD_NETWORK_HEADER,
    NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_1, NFT_REG_2, NFT_REG_VERDICT, NFT_REG32_00,
    NFT_REJECT_TCP_RST,
};

use crate::attributes::AttributeList;

/// `NFTA_*`: kinds of attributes.
mod kind {
    pub(super) const EXPR_NAME: u16 = 1;
    pub(super) const EXPR_DATA: u16 = 2;
    pub(super) const DATA_VALUE: u16 = 1;
    pub(super) const DATA_VERDICT: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const VERDICT_CHAIN: u16 = 2;
    pub(super) const META_DREG: u16 = 1;
    pub(super) const META_KEY: u16 = 2;
    pub(super) const CT_DREG: u16 = 1;
    pub(super) const CT_KEY: u16 = 2;
    pub(super) const PAYLOAD_DREG: u16 = 1;
    pub(super) const PAYLOAD_BASE: u16 = 2;
    pub(super) const PAYLOAD_OFFSET: u16 = 3;
    pub(super) const PAYLOAD_LEN: u16 = 4;
    pub(super) const BITWISE_SREG: u16 = 1;
    pub(super) const BITWISE_DREG: u16 = 2;
    pub(super) const BITWISE_LEN: u16 = 3;
    pub(super) const BITWISE_MASK: u16 = 4;
    pub(super) const BITWISE_XOR: u16 = 5;
    pub(super) const CMP_SREG: u16 = 1;
    pub(super) const CMP_OP: u16 = 2;
    pub(super) const CMP_DATA: u16 = 3;
    pub(super) const LOOKUP_SET: u16 = 1;
    pub(super) const LOOKUP_SREG: u16 = 2;
    pub(super) const LOOKUP_DREG: u16 = 3;
    pub(super) const DYNSET_SET_NAME: u16 = 1;
    pub(super) const DYNSET_OP: u16 = 3;
    pub(super) const DYNSET_SREG_KEY: u16 = 4;
    pub(super) const DYNSET_TIMEOUT: u16 = 6;
    pub(super) const IMMEDIATE_DREG: u16 = 1;
    pub(super) const IMMEDIATE_DATA: u16 = 2;
    pub(super) const OBJREF_IMM_TYPE: u16 = 1;
    pub(super) const OBJREF_IMM_NAME: u16 = 2;
    pub(super) const NAT_TYPE: u16 = 1;
    pub(super) const NAT_FAMILY: u16 = 2;
    pub(super) const NAT_REG_ADDR_MIN: u16 = 3;
    pub(super) const NAT_REG_PROTO_MIN: u16 = 5;
    pub(super) const REJECT_TYPE: u16 = 1;
}

/// Version of the Internet Protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    /// NFPROTO_*.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::V4 => libc::NFPROTO_IPV4 as u8,
            Self::V6 => libc::NFPROTO_IPV6 as u8,
        }
    }
}

/// The header from whose begin a field of a packet is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PayloadBase {
    Network,
    Transport,
}

/// The address that a translation changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NatDirection {
    Source,
    Destination,
}

/// The end of a rule that matches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FlowVerdict {
    Drop,
    Return,
    Goto(&'static str),
}

/// One step of a rule.
///
/// Steps use the first register, of 16 bytes, unless they name a word: four bytes of it or of what follows.
#[derive(Clone, Debug)]
pub(crate) enum RuleExpression {
    /// Loads the transport protocol.
    LoadProtocol,
    /// Loads the version of IP.
    LoadVersion,
    /// Loads the mark.
    LoadMark,
    /// Loads the status bits of the connection.
    LoadConnectionStatus,
    /// Loads bytes of the packet, from this word on.
    LoadPayload { base: PayloadBase, offset: u32, length: u32, word: u32 },
    /// Loads a constant.
    LoadValue(Vec<u8>),
    /// Loads a constant into the second register.
    LoadSecondValue(Vec<u8>),
    /// Keeps these bits of the register's first bytes, at most four.
    Mask(Vec<u8>),
    /// Matches if the register has this value.
    Equals(Vec<u8>),
    /// Matches if the set has the register's value.
    IsIn(&'static str),
    /// Matches if the map has the register's value, and loads what it maps to.
    Translate(&'static str),
    /// Adds the register's value to the set, or renews its time there.
    Renew(&'static str, Duration),
    /// Counts the packet.
    Count(&'static str),
    /// Translates to the address in the first register; a destination also to the port in the second.
    Nat(NatDirection, IpVersion),
    /// Answers with a reset.
    RejectWithReset,
    /// Ends the rule.
    Verdict(FlowVerdict),
}

impl RuleExpression {
    /// Returns name and data of the expression, as the kernel reads them.
    pub(crate) fn attributes(&self) -> AttributeList {
        let (name, data) = self.name_and_data();
        AttributeList::default().text(kind::EXPR_NAME, name).list(kind::EXPR_DATA, &data)
    }

    fn name_and_data(&self) -> (&'static str, AttributeList) {
        let list = AttributeList::default();
        let first = NFT_REG_1 as u32;
        match self {
            Self::LoadProtocol => ("meta", meta(NFT_META_L4PROTO)),
            Self::LoadVersion => ("meta", meta(NFT_META_NFPROTO)),
            Self::LoadMark => ("meta", meta(NFT_META_MARK)),
            Self::LoadConnectionStatus => {
                ("ct", list.u32(kind::CT_DREG, first).u32(kind::CT_KEY, NFT_CT_STATUS as u32))
            }
            Self::LoadPayload { base, offset, length, word } => {
                let base = match base {
                    PayloadBase::Network => NFT_PAYLOAD_NETWORK_HEADER,
                    PayloadBase::Transport => NFT_PAYLOAD_TRANSPORT_HEADER,
                };
                let list = list
                    .u32(kind::PAYLOAD_DREG, NFT_REG32_00 as u32 + word)
                    .u32(kind::PAYLOAD_BASE, base as u32)
                    .u32(kind::PAYLOAD_OFFSET, *offset)
                    .u32(kind::PAYLOAD_LEN, *length);
                ("payload", list)
            }
            Self::LoadValue(value) => ("immediate", immediate(NFT_REG_1, &constant(value))),
            Self::LoadSecondValue(value) => ("immediate", immediate(NFT_REG_2, &constant(value))),
            Self::Mask(mask) => ("bitwise", bitwise_and(mask)),
            Self::Equals(value) => {
                let list = list
                    .u32(kind::CMP_SREG, first)
                    .u32(kind::CMP_OP, NFT_CMP_EQ as u32)
                    .list(kind::CMP_DATA, &constant(value));
                ("cmp", list)
            }
            Self::IsIn(set) => ("lookup", lookup(set)),
            Self::Translate(map) => ("lookup", lookup(map).u32(kind::LOOKUP_DREG, first)),
            Self::Renew(set, timeout) => ("dynset", update(set, *timeout)),
            Self::Count(counter) => {
                let list = list.u32(kind::OBJREF_IMM_TYPE, super::OBJECT_COUNTER);
                ("objref", list.text(kind::OBJREF_IMM_NAME, counter))
            }
            Self::Nat(direction, version) => ("nat", nat(*direction, *version)),
            Self::RejectWithReset => {
                ("reject", list.u32(kind::REJECT_TYPE, NFT_REJECT_TCP_RST as u32))
            }
            Self::Verdict(verdict) => {
                ("immediate", immediate(NFT_REG_VERDICT, &verdict_data(*verdict)))
            }
        }
    }
}

fn meta(key: i32) -> AttributeList {
    let list = AttributeList::default().u32(kind::META_DREG, NFT_REG_1 as u32);
    list.u32(kind::META_KEY, key as u32)
}

fn lookup(set: &str) -> AttributeList {
    let list = AttributeList::default().text(kind::LOOKUP_SET, set);
    list.u32(kind::LOOKUP_SREG, NFT_REG_1 as u32)
}

fn bitwise_and(mask: &[u8]) -> AttributeList {
    AttributeList::default()
        .u32(kind::BITWISE_SREG, NFT_REG_1 as u32)
        .u32(kind::BITWISE_DREG, NFT_REG_1 as u32)
        .u32(kind::BITWISE_LEN, mask.len() as u32)
        .list(kind::BITWISE_MASK, &constant(mask))
        .list(kind::BITWISE_XOR, &constant(&vec![0; mask.len()]))
}

fn update(set: &str, timeout: Duration) -> AttributeList {
    AttributeList::default()
        .text(kind::DYNSET_SET_NAME, set)
        .u32(kind::DYNSET_OP, NFT_DYNSET_OP_UPDATE as u32)
        .u32(kind::DYNSET_SREG_KEY, NFT_REG_1 as u32)
        .u64(kind::DYNSET_TIMEOUT, timeout.as_millis() as u64)
}

fn nat(direction: NatDirection, version: IpVersion) -> AttributeList {
    let (kind, port) = match direction {
        NatDirection::Source => (NFT_NAT_SNAT, None),
        NatDirection::Destination => (NFT_NAT_DNAT, Some(NFT_REG_2)),
    };
    let list = AttributeList::default()
        .u32(kind::NAT_TYPE, kind as u32)
        .u32(kind::NAT_FAMILY, version.number().into())
        .u32(kind::NAT_REG_ADDR_MIN, NFT_REG_1 as u32);
    port.into_iter().fold(list, |list, port| list.u32(kind::NAT_REG_PROTO_MIN, port as u32))
}

fn immediate(register: i32, data: &AttributeList) -> AttributeList {
    let list = AttributeList::default().u32(kind::IMMEDIATE_DREG, register as u32);
    list.list(kind::IMMEDIATE_DATA, data)
}

fn constant(value: &[u8]) -> AttributeList {
    AttributeList::default().bytes(kind::DATA_VALUE, value)
}

fn verdict_data(verdict: FlowVerdict) -> AttributeList {
    let code = |code: i32| AttributeList::default().u32(kind::VERDICT_CODE, code as u32);
    let verdict = match verdict {
        FlowVerdict::Drop => code(libc::NF_DROP),
        FlowVerdict::Return => code(libc::NFT_RETURN),
        FlowVerdict::Goto(chain) => code(libc::NFT_GOTO).text(kind::VERDICT_CHAIN, chain),
    };
    AttributeList::default().list(kind::DATA_VERDICT, &verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes that nft 1.0.6 sends for `meta l4proto tcp return` (`nft --debug=mnl`), in our order, which does
    /// not matter.
    #[test]
    #[cfg(target_endian = "little")]
    fn expressions_are_encoded_as_the_kernel_reads_them() {
        let meta = [
            [9, 0, 1, 0].as_slice(),
            b"meta\0\0\0\0",
            &[20, 0, 2, 0x80],
            &[8, 0, 1, 0, 0, 0, 0, 1],
            &[8, 0, 2, 0, 0, 0, 0, 16],
        ];
        assert_eq!(RuleExpression::LoadProtocol.attributes().as_bytes(), meta.concat());
        let compare = [
            [8, 0, 1, 0].as_slice(),
            b"cmp\0",
            &[32, 0, 2, 0x80],
            &[8, 0, 1, 0, 0, 0, 0, 1],
            &[8, 0, 2, 0, 0, 0, 0, 0],
            &[12, 0, 3, 0x80],
            &[5, 0, 1, 0, 6, 0, 0, 0],
        ];
        assert_eq!(RuleExpression::Equals(vec![6]).attributes().as_bytes(), compare.concat());
        let verdict = [
            [14, 0, 1, 0].as_slice(),
            b"immediate\0\0\0",
            &[28, 0, 2, 0x80],
            &[8, 0, 1, 0, 0, 0, 0, 0],
            &[16, 0, 2, 0x80],
            &[12, 0, 2, 0x80],
            &[8, 0, 1, 0, 0xff, 0xff, 0xff, 0xfb],
        ];
        let returns = RuleExpression::Verdict(FlowVerdict::Return);
        assert_eq!(returns.attributes().as_bytes(), verdict.concat());
    }
}
