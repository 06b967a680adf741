//! Settings of the proxy in the API server, as the ConfigMap `extension-apiserver-authentication` has them.

use std::collections::BTreeMap;

/// Identity of the proxy, and the fields in which it names the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxySettings {
    /// Authorities of its client certificate, in PEM.
    pub authorities: String,
    /// Common names that its certificate may have; empty: any.
    pub allowed_names: Vec<String>,
    /// Fields with the user's name; the first that a request has counts.
    pub user_fields: Vec<String>,
    /// Fields with the user's groups.
    pub group_fields: Vec<String>,
    /// Beginnings of the names of fields with further attributes.
    pub extra_prefixes: Vec<String>,
}

impl FrontProxySettings {
    /// Reads the values of the ConfigMap; the error says which one is missing or malformed.
    pub(super) fn read(data: &BTreeMap<String, String>) -> Result<Self, &'static str> {
        let authorities = data.get("requestheader-client-ca-file").cloned();
        let authorities = authorities.filter(|it| !it.trim().is_empty());
        let list = |name: &'static str, missing: &'static str| match data.get(name) {
            None => Err(missing),
            Some(text) => serde_json::from_str::<Vec<String>>(text).map_err(|_ignored| missing),
        };
        Ok(Self {
            authorities: authorities.ok_or("requestheader-client-ca-file is missing")?,
            allowed_names: list(
                "requestheader-allowed-names",
                "requestheader-allowed-names is not a list of names",
            )?,
            user_fields: list(
                "requestheader-username-headers",
                "requestheader-username-headers is not a list of names",
            )?,
            group_fields: list(
                "requestheader-group-headers",
                "requestheader-group-headers is not a list of names",
            )?,
            extra_prefixes: list(
                "requestheader-extra-headers-prefix",
                "requestheader-extra-headers-prefix is not a list of names",
            )?,
        })
    }
}
