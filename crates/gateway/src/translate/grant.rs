//! ReferenceGrants: what objects may refer to in other namespaces.

use super::index::Index;
use crate::objects::{GrantFrom, GrantTo};

/// Whether a route may refer to a Service of another namespace: only if a ReferenceGrant of that namespace says so.
pub(super) fn permits(
    index: &Index<'_>,
    route_kind: &str,
    route_namespace: &str,
    (namespace, service): (&str, &str),
) -> bool {
    let is_from = |from: &GrantFrom| {
        from.group == "gateway.networking.k8s.io"
            && from.kind == route_kind
            && from.namespace == route_namespace
    };
    let is_to = |to: &GrantTo| {
        to.group.is_empty()
            && to.kind == "Service"
            && to.name.as_ref().is_none_or(|name| name == service)
    };
    let there = index.grants.values().filter(|grant| grant.metadata.namespace == namespace);
    there
        .into_iter()
        .any(|grant| grant.spec.from.iter().any(is_from) && grant.spec.to.iter().any(is_to))
}
