//! Names of fields in which a proxy or load balancer tells the application about the client or the original request.
//!
//! Applications and their frameworks believe these fields, whatever wrote them. The list has what nginx and
//! ingress-nginx, HAProxy, Envoy, Traefik, oauth2-proxy and the large providers write, RFC 9440, and fields by which
//! frameworks override the target.

/// Names of which each is a claim.
pub(super) const CLAIM_NAMES: [&str; 16] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "client-cert",
    "client-cert-chain",
    "client-ip",
    "fastly-client-ip",
    "front-end-https",
    "true-client-ip",
    "x-azure-clientip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
    // A CGI program takes `Proxy` for the variable HTTP_PROXY (CVE-2016-5385).
    "proxy",
];

/// Beginnings; every name with one of them is a claim.
const CLAIM_PREFIXES: [&str; 5] =
    ["ssl-client-", "x-amzn-mtls-", "x-forwarded-", "x-original-", "x-ssl-client-"];

/// True if `name` begins as a claim, without regard to case.
#[inline]
pub(super) fn has_claim_prefix(name: &[u8]) -> bool {
    // Few names begin with one of these letters.
    matches!(name.first(), Some(b's' | b'S' | b'x' | b'X')) && begins_with_any(name)
}

fn begins_with_any(name: &[u8]) -> bool {
    CLAIM_PREFIXES.iter().any(|prefix| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::KnownFieldName;

    #[test]
    fn claims_are_found_in_any_case() {
        let examples = ["X-Forwarded-Client-Cert", "ssl-client-subject-dn"];
        for name in CLAIM_NAMES.iter().chain(&CLAIM_PREFIXES).chain(&examples) {
            for name in [name.to_lowercase(), name.to_uppercase()] {
                let known = KnownFieldName::recognise(name.as_bytes());
                assert_eq!(known, KnownFieldName::ProxyClaim, "{name}");
            }
        }
    }

    #[test]
    fn other_names_are_no_claims() {
        for name in ["", "x", "cookie", "x-requested-with", "x-forwarded", "set-cookie", "client"] {
            let known = KnownFieldName::recognise(name.as_bytes());
            assert_eq!(known, KnownFieldName::Other, "{name}");
        }
    }
}
