//! Announcement of the addresses of AddressPools, and the routers that learn of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::objects::{
    AddressPoolSpec, AnnouncementMethod, ApiObject, BgpPeerSpec, RouteCommunity, TypedObject,
};

/// Way in which an address is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressAnnouncement {
    /// One node at a time carries it and announces it on the link.
    Layer2,
    /// Every node that serves it announces a route to it.
    Bgp(BgpAttributes),
}

/// Attributes of routes by BGP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpAttributes {
    /// Communities.
    pub communities: Vec<RouteCommunity>,
    /// Local preference in sessions within one AS.
    pub local_preference: Option<u32>,
}

/// A router, by the name of its BgpPeer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct BgpRouter {
    /// The name.
    pub name: String,
    /// The settings, which are valid.
    pub spec: BgpPeerSpec,
}

impl AddressAnnouncement {
    /// Returns how the addresses of a pool are announced.
    pub(super) fn of(pool: &AddressPoolSpec) -> Self {
        match pool.announcement() {
            AnnouncementMethod::Layer2 => Self::Layer2,
            AnnouncementMethod::Bgp => Self::Bgp(BgpAttributes {
                communities: pool.communities.clone().unwrap_or_default(),
                local_preference: pool.local_preference,
            }),
        }
    }
}

/// Returns the routers of the valid BgpPeers, sorted by name.
pub fn bgp_routers(objects: &[ApiObject]) -> Vec<BgpRouter> {
    let mut by_name: BTreeMap<&str, &TypedObject<BgpPeerSpec>> = BTreeMap::new();
    for object in objects {
        if let ApiObject::BgpPeer(peer) = object {
            by_name.entry(&peer.metadata.name).or_insert(peer);
        }
    }
    let valid = by_name.into_iter().filter(|(_, peer)| peer.spec.fault().is_none());
    valid.map(|(name, peer)| BgpRouter { name: name.to_owned(), spec: peer.spec.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::load_balancer::{ReservedAddresses, assign};
    use crate::parse;

    #[test]
    fn assigned_addresses_are_announced_as_their_pool_says() {
        let pool = |name: &str, network: &str, more: &str| {
            format!(
                "apiVersion: sheave.dev/v1alpha1\nkind: AddressPool\nmetadata: {{name: {name}}}\n\
                 spec: {{addresses: [{network}], {more}}}\n---\n"
            )
        };
        let service = |name: &str, address: &str| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, annotations: \
                 {{sheave.dev/addresses: {address}}}}}\nspec: {{type: LoadBalancer, loadBalancerClass: sheave.dev/l4, \
                 ports: [{{port: 1}}]}}\n---\n"
            )
        };
        let text = [
            pool("routed", "198.51.100.0/29", "announce: [BGP], communities: ['1:2']"),
            pool("link", "192.0.2.0/29", ""),
            service("a", "198.51.100.1"),
            service("b", "192.0.2.1"),
        ];
        let (objects, problems) = parse(&text.concat(), "test.yaml");
        assert!(problems.is_empty(), "{problems:?}");
        let assignment = assign(&objects, false, &ReservedAddresses::default(), &BTreeMap::new());
        let attributes = BgpAttributes {
            communities: vec![RouteCommunity::Standard(1, 2)],
            local_preference: None,
        };
        let expected: BTreeMap<IpAddr, _> = [
            ([192, 0, 2, 1].into(), AddressAnnouncement::Layer2),
            ([198, 51, 100, 1].into(), AddressAnnouncement::Bgp(attributes)),
        ]
        .into();
        assert_eq!(assignment.announcements, expected);
    }
}
