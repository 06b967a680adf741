//! Problems with objects: the one format of all messages about input.

use std::fmt;
use std::sync::Arc;

/// The place where an object was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectOrigin {
    /// The file, or the name that the source gives it.
    pub file: Arc<str>,
    /// The number of the document in the file, from 1; 0 stands for the whole file.
    pub document: usize,
}

/// Returns `Kind namespace/name`, or `Kind name` for kinds without namespaces.
pub(crate) fn label(kind: &str, namespace: &str, name: &str) -> String {
    if ["AddressPool", "BgpPeer", "GatewayClass", "IngressClass", "Namespace"].contains(&kind) {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}

/// A problem with an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectProblem {
    /// The place where the object was written.
    pub origin: ObjectOrigin,
    /// `Kind namespace/name`, as far as they are known.
    pub object: String,
    /// The path of the field, as in `spec.rules[0].matches[0].path.value`. Empty: the whole object.
    pub field: String,
    /// The error, and the remedy if it is not obvious.
    pub message: String,
}

/// Formats one line: `file: document 2: HTTPRoute default/web: spec.rules[0]: message`.
impl fmt::Display for ObjectProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin.file)?;
        if self.origin.document > 0 {
            write!(f, "document {}: ", self.origin.document)?;
        }
        for part in [&self.object, &self.field] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.message)
    }
}
