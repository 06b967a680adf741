//! `envoy.config.rbac.v3`: which clients may call a server (gRFC A41).

use std::collections::HashMap;

use prost::Message;

use super::route::StringMatcher;
use super::well_known::UInt32Value;

/// `envoy.extensions.filters.http.rbac.v3.RBAC`: the filter.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacFilter {
    #[prost(message, optional, tag = "1")]
    pub(crate) rules: Option<RbacRules>,
}

impl RbacFilter {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.filters.http.rbac.v3.RBAC";
}

/// `RBAC`: a call that no policy matches is denied, as the action is to allow.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacRules {
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) policies: HashMap<String, RbacPolicy>,
}

/// `Policy`: matches a call that one permission and one principal match.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacPolicy {
    #[prost(message, repeated, tag = "1")]
    pub(crate) permissions: Vec<RbacPermission>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) principals: Vec<RbacPrincipal>,
}

/// `Permission`: a condition on the call.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RbacPermission {
    #[prost(bool, optional, tag = "3")]
    pub(crate) any: Option<bool>,
}

/// `Principal`: a condition on the client. One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacPrincipal {
    #[prost(message, optional, tag = "1")]
    pub(crate) and_ids: Option<PrincipalSet>,
    #[prost(message, optional, tag = "2")]
    pub(crate) or_ids: Option<PrincipalSet>,
    #[prost(bool, optional, tag = "3")]
    pub(crate) any: Option<bool>,
    #[prost(message, optional, tag = "4")]
    pub(crate) authenticated: Option<AuthenticatedPrincipal>,
    #[prost(message, optional, boxed, tag = "8")]
    pub(crate) not_id: Option<Box<Self>>,
    #[prost(message, optional, tag = "10")]
    pub(crate) direct_remote_ip: Option<CidrRange>,
}

/// `Principal.Set`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PrincipalSet {
    #[prost(message, repeated, tag = "1")]
    pub(crate) ids: Vec<RbacPrincipal>,
}

/// `Principal.Authenticated`: a client with a certificate of this name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticatedPrincipal {
    #[prost(message, optional, tag = "2")]
    pub(crate) principal_name: Option<StringMatcher>,
}

/// `CidrRange`: a network.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CidrRange {
    #[prost(string, tag = "1")]
    pub(crate) address_prefix: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) prefix_len: Option<UInt32Value>,
}

impl RbacRules {
    /// Returns rules that allow what one of the policies matches.
    pub(crate) fn allow(policies: HashMap<String, RbacPolicy>) -> Self {
        Self { action: 0, policies }
    }
}
