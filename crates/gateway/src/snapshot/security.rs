//! The clients that may send requests, as the data plane checks them.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::api_keys::ApiKeySettings;
use super::basic_auth::BasicAuthSettings;
use super::external_auth::ExternalAuthSettings;
use super::jwt::JwtSettings;
use crate::objects::{CidrBlock, ClientAddressAccess, ClientCertificateAccess};

/// The settings of one target of a SecurityPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecuritySettings {
    /// `namespace/name` of the policy.
    pub policy: Arc<str>,
    /// The addresses of clients; `None`: the policy is invalid, and no request is served.
    pub client_addresses: Option<ClientAddressRules>,
    /// The certificates of clients; `None`: none is needed.
    pub client_certificate: Option<ClientCertificateAccess>,
    /// The users that may send requests; `None`: no password is needed.
    pub basic_auth: Option<BasicAuthSettings>,
    /// The clients that may send requests with their keys; `None`: no key is needed.
    pub api_keys: Option<Arc<ApiKeySettings>>,
    /// The issuers with whose tokens requests may be sent; `None`: no token is needed.
    pub jwt: Option<Arc<JwtSettings>>,
    /// Authorization by another server.
    pub external_auth: Option<ExternalAuthSettings>,
}

/// The addresses of clients that may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddressRules {
    /// Networks of clients that may; empty is all.
    pub allowed: Vec<IpNet>,
    /// Networks of clients that may not, even if they are allowed.
    pub denied: Vec<IpNet>,
}

impl From<&ClientAddressAccess> for ClientAddressRules {
    fn from(access: &ClientAddressAccess) -> Self {
        let networks = |blocks: &[CidrBlock]| blocks.iter().map(|it| it.0).collect();
        let ClientAddressAccess { allow, deny } = access;
        Self { allowed: networks(allow), denied: networks(deny) }
    }
}

impl ClientAddressRules {
    /// True if a client with this address may send requests.
    #[must_use]
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let is_in = |networks: &[IpNet]| networks.iter().any(|it| it.contains(&client));
        !is_in(&self.denied) && (self.allowed.is_empty() || is_in(&self.allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allowed: &[&str], denied: &[&str]) -> ClientAddressRules {
        let networks = |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect();
        ClientAddressRules { allowed: networks(allowed), denied: networks(denied) }
    }

    #[test]
    fn a_denied_network_wins_over_an_allowed_one() {
        let rules = rules(&["10.0.0.0/8", "2001:db8::/32"], &["10.1.0.0/16"]);
        let admits = |client: &str| rules.admits(client.parse().unwrap());
        assert!(admits("10.2.0.1") && admits("2001:db8::1"));
        assert!(!admits("10.1.0.1") && !admits("192.0.2.1") && !admits("2001:db9::1"));
    }

    #[test]
    fn all_but_denied_networks_are_allowed_by_default() {
        let rules = rules(&[], &["192.0.2.0/24"]);
        assert!(rules.admits("192.0.3.1".parse().unwrap()));
        assert!(rules.admits("2001:db8::1".parse().unwrap()));
        // A client of IPv4 at a socket of both IP versions.
        assert!(!rules.admits("::ffff:192.0.2.1".parse().unwrap()));
    }
}
