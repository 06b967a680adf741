//! Addresses of clients that may send requests.
//!
//! ingress-nginx: `deny` and `allow` of nginx's access module. Redirects are answered before it.

use super::value::parse_list;
use crate::objects::{CidrBlock, ClientAddressAccess};

/// Largest number of networks of a SecurityPolicy.
const MAX_NETWORKS: usize = 500;

/// An annotation about addresses of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ClientAnnotation {
    /// Networks of clients that may send requests.
    Allowed,
    /// Networks of clients that may not, even if they are allowed.
    Denied,
}

/// Adds the networks of an annotation. An empty list has no meaning.
pub(super) fn add(
    access: &mut ClientAddressAccess,
    setting: ClientAnnotation,
    value: &str,
) -> Result<(), String> {
    let network = |text| {
        CidrBlock::parse(text)
            .ok_or_else(|| format!("must be networks such as 192.0.2.0/24, has {text}"))
    };
    let networks: Vec<_> =
        parse_list(value, MAX_NETWORKS)?.into_iter().map(network).collect::<Result<_, _>>()?;
    let known = match setting {
        ClientAnnotation::Allowed => &mut access.allow,
        ClientAnnotation::Denied => &mut access.deny,
    };
    // `allowlist-source-range` has an older name.
    if !known.is_empty() && *known != networks {
        return Err("contradicts another list of the same Ingress".to_owned());
    }
    *known = networks;
    Ok(())
}
