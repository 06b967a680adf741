//! ReferenceGrants: permit references to objects in other namespaces.

use super::index::ObjectIndex;
use crate::objects::GrantTo;

/// True if a ReferenceGrant permits an object of Gateway API to refer to an object of the core group in another
/// namespace.
pub(super) fn permits(
    index: &ObjectIndex<'_>,
    (kind, namespace): (&str, &str),
    (target_kind, target_namespace, target): (&str, &str, &str),
) -> bool {
    let is_meant = |to: &GrantTo| {
        to.group.is_empty()
            && to.kind == target_kind
            && to.name.as_ref().is_none_or(|name| name == target)
    };
    let granted = index.granted.get(&(target_namespace, kind, namespace));
    granted.into_iter().flatten().copied().any(is_meant)
}
