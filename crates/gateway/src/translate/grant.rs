//! ReferenceGrants: what objects may refer to in other namespaces.

use super::index::ObjectIndex;
use crate::objects::GrantTo;

/// Whether an object of Gateway API may refer to one of the core group in another namespace: only if a ReferenceGrant of
/// that namespace says so.
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
