//! Names of fields in which a proxy or load balancer tells the application about the client or the original request.
//!
//! Applications and their frameworks believe these fields, whatever wrote them. The list has what nginx and
//! ingress-nginx, HAProxy, Envoy, Traefik, oauth2-proxy and the large providers write, RFC 9440, and fields by which
//! frameworks override the target.

/// Names with one first letter: beginnings, of which all names are claims, and whole names.
type ClaimNames = (&'static [&'static [u8]], &'static [&'static [u8]]);

const C: ClaimNames = (
    &[],
    &[
        b"cf-connecting-ip",
        b"cf-connecting-ipv6",
        b"client-cert",
        b"client-cert-chain",
        b"client-ip",
    ],
);
const F: ClaimNames = (&[], &[b"fastly-client-ip", b"front-end-https"]);
// A CGI program takes `Proxy` for the variable HTTP_PROXY (CVE-2016-5385).
const P: ClaimNames = (&[], &[b"proxy"]);
const S: ClaimNames = (&[b"ssl-client-"], &[]);
const T: ClaimNames = (&[], &[b"true-client-ip"]);
const X: ClaimNames = (
    &[b"x-forwarded-", b"x-original-", b"x-ssl-client-", b"x-amzn-mtls-"],
    &[
        b"x-azure-clientip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-envoy-external-address",
        b"x-real-ip",
        b"x-rewrite-url",
        b"x-scheme",
        b"x-url-scheme",
    ],
);

/// Length that no whole name and no beginning exceeds.
pub(super) const MAX_BYTES: usize = 24;

/// True if `name` is one of these names, without regard to case.
pub(super) fn is_proxy_claim(name: &[u8]) -> bool {
    let Some(first) = name.first() else { return false };
    let (prefixes, names) = match first.to_ascii_lowercase() {
        b'c' => C,
        b'f' => F,
        b'p' => P,
        b's' => S,
        b't' => T,
        b'x' => X,
        _ => return false,
    };
    let begins = |prefix: &&[u8]| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    prefixes.iter().any(begins) || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_in_any_case() {
        for (prefixes, names) in [C, F, P, S, T, X] {
            for name in prefixes.iter().chain(names) {
                assert!(name.len() <= MAX_BYTES);
                assert!(is_proxy_claim(name));
                assert!(is_proxy_claim(&name.to_ascii_uppercase()));
            }
        }
        assert!(is_proxy_claim(b"X-Forwarded-Client-Cert"));
        assert!(is_proxy_claim(b"ssl-client-subject-dn"));
    }

    #[test]
    fn other_names_are_no_claims() {
        for name in ["", "x", "cookie", "x-requested-with", "x-forwarded", "proxy-status", "client"]
        {
            assert!(!is_proxy_claim(name.as_bytes()), "{name}");
        }
    }
}
