//! The user of a request, as the proxy in the API server names it. Only that proxy is believed: it has a client
//! certificate of the cluster's authority for it.

use axum::http::HeaderMap;
use kube::{ApiUser, FrontProxySettings};
use rustls_pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::proxy_certificate::ValidityPeriod;

/// Most groups and attributes of one user.
const MAX_VALUES: usize = 256;

/// Identity that a client has proven by a certificate of the trusted authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerIdentity {
    /// Common name of the certificate; `None`: the client has shown none.
    pub(super) common_name: Option<String>,
    /// Reason why the certificate proves nothing: its time.
    pub(super) problem: Option<String>,
}

impl PeerIdentity {
    /// Returns the identity of a chain that has been verified, except for the time of the certificate itself. `now` is
    /// in seconds since 1970.
    pub(super) fn of(chain: Option<&[CertificateDer<'_>]>, now: u64) -> Self {
        let leaf = chain.and_then(|chain| Certificate::from_der(chain.first()?).ok());
        let Some(leaf) = leaf else { return Self::default() };
        let problem = ValidityPeriod::of(&leaf).problem(now);
        let name = leaf.tbs_certificate().subject().common_name().ok().flatten();
        let common_name = name.map(String::from).unwrap_or_default();
        Self { common_name: problem.is_none().then_some(common_name), problem }
    }

    /// Returns the user of a request; `None`: the client is not the proxy, or it names no user.
    pub(super) fn user(
        &self,
        settings: &FrontProxySettings,
        fields: &HeaderMap,
    ) -> Option<ApiUser> {
        let name = self.common_name.as_ref()?;
        let names = &settings.allowed_names;
        if !names.is_empty() && !names.contains(name) {
            return None;
        }
        let values = |field: &str| {
            let values = fields.get_all(field).iter().take(MAX_VALUES);
            values.filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect::<Vec<_>>()
        };
        let user = settings.user_fields.iter().find_map(|field| values(field).into_iter().next());
        let groups = settings.group_fields.iter().flat_map(|field| values(field)).collect();
        let extra = fields.keys().filter_map(|field| {
            let prefixes = settings.extra_prefixes.iter().map(|it| it.to_ascii_lowercase());
            let key = prefixes
                .into_iter()
                .find_map(|it| field.as_str().strip_prefix(it.as_str()).map(str::to_owned))?;
            Some((key, values(field.as_str())))
        });
        let extra = extra.take(MAX_VALUES).collect();
        Some(ApiUser { name: user.filter(|name| !name.is_empty())?, groups, extra })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    /// A time within the default validity of test certificates.
    const NOW: u64 = 1_800_000_000;

    fn settings() -> FrontProxySettings {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        FrontProxySettings {
            authorities: String::new(),
            allowed_names: list(&["front-proxy-client"]),
            user_fields: list(&["X-Remote-User"]),
            group_fields: list(&["X-Remote-Group"]),
            extra_prefixes: list(&["X-Remote-Extra-"]),
        }
    }

    fn identity(name: Option<&str>) -> PeerIdentity {
        PeerIdentity { common_name: name.map(str::to_owned), problem: None }
    }

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_the_proxy_names_a_user() {
        let sent = [
            ("x-remote-user", "hpa"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-scopes", "read"),
            ("accept", "*/*"),
        ];
        let user = |name| identity(name).user(&settings(), &fields(&sent));
        let expected = ApiUser {
            name: "hpa".to_owned(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: vec![("scopes".to_owned(), vec!["read".to_owned()])],
        };
        assert_eq!(user(Some("front-proxy-client")), Some(expected));
        assert_eq!(user(Some("kubelet")), None, "a certificate for another use");
        assert_eq!(user(None), None, "no certificate");
        let proxy = identity(Some("front-proxy-client"));
        assert_eq!(proxy.user(&settings(), &fields(&sent[1..])), None, "no user");
        assert_eq!(proxy.user(&settings(), &fields(&[("x-remote-user", "")])), None);
    }

    #[test]
    fn common_name_is_that_of_the_certificate() {
        let name_of = |parts: &[(DnType, &str)]| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in parts {
                params.distinguished_name.push(kind.clone(), *value);
            }
            let certificate = params.self_signed(&key).unwrap();
            PeerIdentity::of(Some(&[certificate.der().clone()]), NOW).common_name.unwrap()
        };
        let organization = || DnType::OrganizationName;
        assert_eq!(name_of(&[(organization(), "k8s"), (DnType::CommonName, "proxy")]), "proxy");
        assert_eq!(name_of(&[(organization(), "a,CN=proxy")]), "", "not within another attribute");
        assert_eq!(PeerIdentity::of(None, NOW), PeerIdentity::default());
    }
}
