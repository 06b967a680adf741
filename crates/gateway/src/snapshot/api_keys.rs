//! Keys of clients, as the data plane checks them.

use std::fmt;
use std::sync::Arc;

use crate::objects::FieldName;

/// Clients that may send requests with their keys.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeySettings {
    /// `namespace/name` of the policy.
    pub policy: Arc<str>,
    /// The keys with the IDs of their clients. There is at least one; each key is there once.
    pub clients: Vec<(SecretKey, Arc<str>)>,
    /// The places of a request where the key may be; the first one that a request has counts. There is at least one.
    pub sources: Vec<CredentialSource>,
    /// The name of the header field in which endpoints get the ID of the client, in lower case.
    pub client_header: Option<Box<str>>,
    /// True if the key is removed from the request that endpoints get.
    pub removes_key: bool,
}

/// A key of a client, which is never shown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretKey(pub Box<[u8]>);

/// A place of a request where a credential may be: a key, or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// The header field of this name, in lower case.
    Header(Box<str>),
    /// The parameter of the query of this name.
    QueryParameter(Box<str>),
    /// The cookie of this name.
    Cookie(Box<str>),
}

impl CredentialSource {
    /// Returns the places with these names, in the order in which they are searched.
    pub(crate) fn of(
        headers: &[FieldName],
        params: &[FieldName],
        cookies: &[FieldName],
    ) -> Vec<Self> {
        let name = |name: &FieldName| Box::from(&*name.0);
        let headers = headers.iter().map(|it| Self::Header(it.0.to_lowercase().into()));
        let params = params.iter().map(|it| Self::QueryParameter(name(it)));
        let cookies = cookies.iter().map(|it| Self::Cookie(name(it)));
        headers.chain(params).chain(cookies).collect()
    }
}

// Neither clients nor keys are shown.
impl fmt::Debug for ApiKeySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy: _, clients, sources, client_header, removes_key } = self;
        let removed = if *removes_key { ", removed" } else { "" };
        write!(f, "{} keys in {sources:?}{removed}", clients.len())?;
        client_header.iter().try_for_each(|name| write!(f, ", client in {name}"))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey")
    }
}
