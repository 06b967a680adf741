//! ReferenceGrants: what objects may refer to in other namespaces.

use super::index::Index;
use crate::objects::{GrantFrom, GrantTo};

/// Whether an object of Gateway API may refer to one of the core group in another namespace: only if a ReferenceGrant of
/// that namespace says so.
pub(super) fn permits(
    index: &Index<'_>,
    (kind, namespace): (&str, &str),
    (target_kind, target_namespace, target): (&str, &str, &str),
) -> bool {
    let is_from = |from: &GrantFrom| {
        from.group == "gateway.networking.k8s.io"
            && from.kind == kind
            && from.namespace == namespace
    };
    let is_to = |to: &GrantTo| {
        to.group.is_empty()
            && to.kind == target_kind
            && to.name.as_ref().is_none_or(|name| name == target)
    };
    let there = index.grants.values().filter(|grant| grant.metadata.namespace == target_namespace);
    there
        .into_iter()
        .any(|grant| grant.spec.from.iter().any(is_from) && grant.spec.to.iter().any(is_to))
}
