//! `BgpPeer` (sheave.dev/v1alpha1): a router to which nodes announce addresses by BGP.
//!
//! The doc comments become the reference page and the descriptions of the CRD.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::namespace::LabelSelector;

/// The port of BGP.
const BGP_PORT: u16 = 179;
/// The hold time that RFC 4271 suggests, in seconds.
const DEFAULT_HOLD_TIME: u16 = 90;

/// A router to which nodes announce the addresses of AddressPools with `announce: [BGP]`. It belongs to no namespace.
/// Sheave opens the sessions and accepts no routes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BgpPeerSpec {
    /// The IPv4 or IPv6 address of the router. A link-local address is not supported.
    #[schemars(extend("format" = "ip"))]
    pub address: String,
    /// The port of the router. Default: 179.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The AS of the router.
    #[serde(rename = "peerASN")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub peer_asn: u32,
    /// The AS of the nodes. If it is that of the router, the session is internal (iBGP).
    #[serde(rename = "localASN")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub local_asn: u32,
    /// Seconds without a message of the router after which the session ends, and of the nodes after which the router
    /// withdraws their routes: the lower of this and the router's. Default: 90.
    #[schemars(range(min = 3, max = 65535))]
    pub hold_time: Option<u16>,
    /// The nodes that open a session, by their labels. Default: all nodes with Sheave.
    pub node_selector: Option<LabelSelector>,
    /// The name of a Secret in Sheave's namespace with the password of the TCP connection (RFC 2385) in `password`, of 1
    /// to 80 bytes. Default: no password.
    #[schemars(extend("format" = "name"))]
    pub password_secret: Option<String>,
    /// True if the router of another AS may be more than one hop away. Default: false.
    pub ebgp_multihop: Option<bool>,
    /// True if packets that come from further than one hop away are dropped (GTSM, RFC 5082). The router must have the
    /// same setting. It excludes `ebgpMultihop`. Default: false.
    pub ttl_security: Option<bool>,
    /// The address of the node from which sessions are opened. Each node that is selected must have it. Default: the
    /// address that the node's routes choose.
    #[schemars(extend("format" = "ip"))]
    pub source_address: Option<String>,
}

impl BgpPeerSpec {
    /// Returns the field and the error of an invalid peer.
    pub fn fault(&self) -> Option<(String, String)> {
        let address = self.address.parse().ok();
        let Some(address) = address.filter(is_unicast) else {
            return Some((
                "address".into(),
                "must be a unicast address, and not link-local".into(),
            ));
        };
        let source = self.source_address.as_deref().map(str::parse::<IpAddr>);
        match source {
            Some(Ok(source)) if source.is_ipv4() == address.is_ipv4() && is_unicast(&source) => {}
            None => {}
            Some(_) => {
                let message = "must be a unicast address of the same IP version as `address`";
                return Some(("sourceAddress".into(), message.into()));
            }
        }
        if self.is_multihop() && self.is_ttl_checked() {
            return Some(("ttlSecurity".into(), "excludes ebgpMultihop".into()));
        }
        let (field, message) = self.node_selector.as_ref()?.fault()?;
        Some((format!("nodeSelector.{field}"), message))
    }

    /// Returns the address of the router, if it is valid.
    pub fn router(&self) -> Option<IpAddr> {
        self.address.parse().ok()
    }

    /// Returns the port of the router.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(BGP_PORT)
    }

    /// Returns the proposed hold time in seconds.
    pub fn hold_time(&self) -> u16 {
        self.hold_time.unwrap_or(DEFAULT_HOLD_TIME)
    }

    /// True if the router may be more than one hop away.
    pub fn is_multihop(&self) -> bool {
        self.ebgp_multihop.unwrap_or(false)
    }

    /// True if packets from further away are dropped.
    pub fn is_ttl_checked(&self) -> bool {
        self.ttl_security.unwrap_or(false)
    }
}

fn is_unicast(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(it) => it.is_link_local() || it.is_broadcast(),
        IpAddr::V6(it) => it.is_unicast_link_local(),
    };
    !is_link_local && !address.is_multicast() && !address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(fields: &str) -> Option<String> {
        let text = format!(r#"{{"peerASN": 1, "localASN": 2, {fields}}}"#);
        let spec: BgpPeerSpec = serde_json::from_str(&text).unwrap();
        spec.fault().map(|(field, _)| field)
    }

    #[test]
    fn fields_that_contradict_one_another_are_errors() {
        for (fields, expected) in [
            (r#""address": "10.0.0.1""#, None),
            (r#""address": "2001:db8::1", "sourceAddress": "2001:db8::2""#, None),
            (r#""address": "fe80::1""#, Some("address")),
            (r#""address": "0.0.0.0""#, Some("address")),
            (r#""address": "router""#, Some("address")),
            (r#""address": "10.0.0.1", "sourceAddress": "::1""#, Some("sourceAddress")),
            (
                r#""address": "10.0.0.1", "ebgpMultihop": true, "ttlSecurity": true"#,
                Some("ttlSecurity"),
            ),
            (
                r#""address": "10.0.0.1", "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}"#,
                Some("nodeSelector.matchExpressions[0].operator"),
            ),
        ] {
            assert_eq!(fault(fields).as_deref(), expected, "{fields}");
        }
    }
}
