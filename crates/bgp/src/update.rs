//! UPDATE messages that announce and withdraw routes. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rustbgpd_wire::attribute::{
    AsPath, AsPathSegment, LargeCommunity, MpReachNlri, MpUnreachNlri, Origin, PathAttribute,
};
use rustbgpd_wire::nlri::{Ipv4NlriEntry, Ipv4Prefix, Ipv6Prefix, NlriEntry, Prefix};
use rustbgpd_wire::update::{Ipv4UnicastMode, UpdateMessage};
use rustbgpd_wire::{Afi, EncodeError, Safi};

use crate::next_hop::NextHops;
use crate::settings::{BgpCommunity, PeerSettings, RouteAttributes, RouteTable};

/// Routes in one message: with their communities they fit into the 4096 bytes of a message.
const ROUTES_PER_MESSAGE: usize = 100;
/// Local preference if the operator sets none: the default of routers.
const DEFAULT_LOCAL_PREFERENCE: u32 = 100;

/// Properties of a session that determine its messages.
#[derive(Clone, Debug)]
pub(crate) struct UpdateContext {
    pub(crate) local_asn: u32,
    /// True if the router is in our AS.
    pub(crate) is_internal: bool,
    /// True if the router understands AS numbers of 4 bytes (RFC 6793).
    pub(crate) has_four_byte_asn: bool,
    /// Addresses of this node; routes of a family without one are not announced.
    pub(crate) next_hops: NextHops,
}

impl UpdateContext {
    pub(crate) const fn new(
        peer: &PeerSettings,
        has_four_byte_asn: bool,
        next_hops: NextHops,
    ) -> Self {
        let (local_asn, is_internal) = (peer.local_asn, peer.is_internal());
        Self { local_asn, is_internal, has_four_byte_asn, next_hops }
    }

    /// True if routes to the address can be announced.
    pub(crate) const fn carries(&self, address: &IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.next_hops.v4.is_some(),
            IpAddr::V6(_) => self.next_hops.v6.is_some(),
        }
    }

    /// Returns the messages that turn what the router knows into what it is to know: withdrawals first.
    pub(crate) fn messages(
        &self,
        announced: &RouteTable,
        wanted: &RouteTable,
    ) -> Result<Vec<UpdateMessage>, EncodeError> {
        let is_gone = |address: &&IpAddr| !wanted.contains_key(address);
        let gone: Vec<_> = announced.keys().filter(is_gone).copied().collect();
        let mut messages = Vec::new();
        for (v4, v6) in [split(&gone)] {
            for part in v4.chunks(ROUTES_PER_MESSAGE) {
                messages.push(self.encode(&[], part, &[])?);
            }
            for part in v6.chunks(ROUTES_PER_MESSAGE) {
                messages.push(self.encode(&[], &[], &[withdrawal(part)])?);
            }
        }
        let mut by_attributes: BTreeMap<&RouteAttributes, Vec<IpAddr>> = BTreeMap::new();
        for (address, attributes) in wanted {
            if announced.get(address) != Some(attributes) && self.carries(address) {
                by_attributes.entry(attributes).or_default().push(*address);
            }
        }
        for (attributes, addresses) in by_attributes {
            self.announce(attributes, &split(&addresses), &mut messages)?;
        }
        Ok(messages)
    }

    fn announce(
        &self,
        of: &RouteAttributes,
        (v4, v6): &(Vec<Ipv4NlriEntry>, Vec<NlriEntry>),
        messages: &mut Vec<UpdateMessage>,
    ) -> Result<(), EncodeError> {
        let shared = self.attributes(of);
        if let Some(next_hop) = self.next_hops.v4 {
            let mut attributes = shared.clone();
            attributes.insert(2, PathAttribute::NextHop(next_hop));
            for part in v4.chunks(ROUTES_PER_MESSAGE) {
                messages.push(self.encode(part, &[], &attributes)?);
            }
        }
        if let Some(next_hop) = self.next_hops.v6 {
            for part in v6.chunks(ROUTES_PER_MESSAGE) {
                let mut attributes = shared.clone();
                attributes.push(announcement(next_hop.into(), part));
                messages.push(self.encode(&[], &[], &attributes)?);
            }
        }
        Ok(())
    }

    /// Returns the attributes of routes of both families, in the order of their type codes.
    fn attributes(&self, of: &RouteAttributes) -> Vec<PathAttribute> {
        let path = if self.is_internal { Vec::new() } else { vec![self.local_asn] };
        let segments =
            if path.is_empty() { Vec::new() } else { vec![AsPathSegment::AsSequence(path)] };
        let mut attributes =
            vec![PathAttribute::Origin(Origin::Igp), PathAttribute::AsPath(AsPath { segments })];
        if self.is_internal {
            let preference = of.local_preference.unwrap_or(DEFAULT_LOCAL_PREFERENCE);
            attributes.push(PathAttribute::LocalPref(preference));
        }
        let (mut standard, mut large) = (Vec::new(), Vec::new());
        for community in &of.communities {
            match *community {
                BgpCommunity::Standard(asn, number) => {
                    standard.push(u32::from(asn) << 16 | u32::from(number));
                }
                BgpCommunity::Large(asn, first, second) => {
                    large.push(LargeCommunity::new(asn, first, second));
                }
            }
        }
        if !standard.is_empty() {
            attributes.push(PathAttribute::Communities(standard));
        }
        if !large.is_empty() {
            attributes.push(PathAttribute::LargeCommunities(large));
        }
        attributes
    }

    fn encode(
        &self,
        announced: &[Ipv4NlriEntry],
        withdrawn: &[Ipv4NlriEntry],
        attributes: &[PathAttribute],
    ) -> Result<UpdateMessage, EncodeError> {
        UpdateMessage::try_build(
            announced,
            withdrawn,
            attributes,
            self.has_four_byte_asn,
            false,
            Ipv4UnicastMode::Body,
        )
    }
}

/// Returns the routes of full length to addresses, by family.
fn split(addresses: &[IpAddr]) -> (Vec<Ipv4NlriEntry>, Vec<NlriEntry>) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(ip) => {
                v4.push(Ipv4NlriEntry { path_id: 0, prefix: Ipv4Prefix::new(*ip, 32) });
            }
            IpAddr::V6(ip) => {
                let prefix = Prefix::V6(Ipv6Prefix::new(*ip, 128));
                v6.push(NlriEntry { path_id: 0, prefix });
            }
        }
    }
    (v4, v6)
}

fn announcement(next_hop: IpAddr, announced: &[NlriEntry]) -> PathAttribute {
    PathAttribute::MpReachNlri(Box::new(MpReachNlri {
        afi: Afi::Ipv6,
        safi: Safi::Unicast,
        next_hop,
        link_local_next_hop: None,
        announced: announced.to_vec(),
        flowspec_announced: Vec::new(),
        evpn_announced: Vec::new(),
        bgpls_announced: Vec::new(),
        vpn_announced: Vec::new(),
        labeled_announced: Vec::new(),
        rtc_announced: Vec::new(),
    }))
}

fn withdrawal(withdrawn: &[NlriEntry]) -> PathAttribute {
    PathAttribute::MpUnreachNlri(Box::new(MpUnreachNlri {
        afi: Afi::Ipv6,
        safi: Safi::Unicast,
        withdrawn: withdrawn.to_vec(),
        flowspec_withdrawn: Vec::new(),
        evpn_withdrawn: Vec::new(),
        bgpls_withdrawn: Vec::new(),
        vpn_withdrawn: Vec::new(),
        labeled_withdrawn: Vec::new(),
        rtc_withdrawn: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn context(is_internal: bool) -> UpdateContext {
        let next_hops =
            NextHops { v4: Some(Ipv4Addr::new(10, 0, 0, 1)), v6: Some("fd00::1".parse().unwrap()) };
        UpdateContext { local_asn: 4_200_000_001, is_internal, has_four_byte_asn: true, next_hops }
    }

    fn table(addresses: &[&str], attributes: &RouteAttributes) -> RouteTable {
        addresses.iter().map(|it| (it.parse().unwrap(), attributes.clone())).collect()
    }

    #[test]
    fn routes_of_both_families_are_announced_with_their_attributes() {
        let attributes = RouteAttributes {
            communities: vec![
                BgpCommunity::Standard(65000, 7),
                BgpCommunity::Large(4_200_000_001, 1, 2),
            ],
            local_preference: Some(200),
        };
        let wanted = table(&["192.0.2.1", "192.0.2.2", "2001:db8::1"], &attributes);
        let messages = context(false).messages(&RouteTable::new(), &wanted).unwrap();
        let [v4, v6] = &messages[..] else { panic!("{messages:?}") };
        let parsed = v4.parse(true, false, &[]).unwrap();
        assert_eq!(parsed.announced.len(), 2);
        let asn = AsPathSegment::AsSequence(vec![4_200_000_001]);
        for expected in [
            PathAttribute::Origin(Origin::Igp),
            PathAttribute::AsPath(AsPath { segments: vec![asn] }),
            PathAttribute::NextHop(Ipv4Addr::new(10, 0, 0, 1)),
            PathAttribute::Communities(vec![65000 << 16 | 7]),
            PathAttribute::LargeCommunities(vec![LargeCommunity::new(4_200_000_001, 1, 2)]),
        ] {
            assert!(parsed.attributes.contains(&expected), "{expected:?}");
        }
        let has_preference =
            |it: &[PathAttribute]| it.iter().any(|it| matches!(it, PathAttribute::LocalPref(200)));
        assert!(!has_preference(&parsed.attributes), "another AS gets no local preference");
        let parsed = v6.parse(true, false, &[]).unwrap();
        let reach = parsed.attributes.iter().find_map(|it| match it {
            PathAttribute::MpReachNlri(reach) => Some((reach.next_hop, reach.announced.len())),
            _ => None,
        });
        assert_eq!(reach, Some(("fd00::1".parse().unwrap(), 1)));
        let internal = context(true).messages(&RouteTable::new(), &wanted).unwrap();
        assert!(has_preference(&internal[0].parse(true, false, &[]).unwrap().attributes));
    }

    #[test]
    fn only_differences_are_sent() {
        let (plain, other) = (
            RouteAttributes::default(),
            RouteAttributes {
                communities: vec![BgpCommunity::Standard(1, 1)],
                ..RouteAttributes::default()
            },
        );
        let known = table(&["192.0.2.1", "192.0.2.2", "2001:db8::1"], &plain);
        assert!(context(false).messages(&known, &known).unwrap().is_empty());
        let mut wanted = table(&["192.0.2.2"], &plain);
        wanted.extend(table(&["192.0.2.3"], &other));
        let messages = context(false).messages(&known, &wanted).unwrap();
        let [v4, v6, announcement] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(v4.parse(true, false, &[]).unwrap().withdrawn.len(), 1);
        let attributes = v6.parse(true, false, &[]).unwrap().attributes;
        assert!(
            matches!(&attributes[..], [PathAttribute::MpUnreachNlri(it)] if it.withdrawn.len() == 1)
        );
        assert_eq!(announcement.parse(true, false, &[]).unwrap().announced.len(), 1);
    }

    #[test]
    fn many_routes_take_several_messages_and_a_family_without_next_hop_none() {
        let addresses: Vec<IpAddr> =
            (0..250).map(|n| IpAddr::V4(Ipv4Addr::new(192, 0, 2, n))).collect();
        let mut wanted: RouteTable =
            addresses.into_iter().map(|it| (it, RouteAttributes::default())).collect();
        wanted.extend(table(&["2001:db8::1"], &RouteAttributes::default()));
        let mut context = context(false);
        context.next_hops.v6 = None;
        let messages = context.messages(&RouteTable::new(), &wanted).unwrap();
        assert_eq!(messages.len(), 3);
        assert!(messages.iter().all(|it| it.encoded_len() <= 4096));
    }
}
